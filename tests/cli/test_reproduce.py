"""`kunita reproduce`: what it writes, what it replaces, what it refuses before anything is computed."""

import json

import pytest

from cli.cases import kunita_command
from kunita.errors import ExitStatus
from kunita.experiments import synthetic

TINY = synthetic.Settings(
    num_landmarks=8, box_mm=30.0, bin_mm=3.0, refinement=1, parameters=(synthetic.Parameters("only", 5.0, cell_mm=3.0),)
)


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(synthetic, "QUICK", TINY)


def test_an_experiment_is_written_as_tables_and_figures_and_says_what_it_found(tiny, tmp_path):
    out = tmp_path / "new"
    ended = kunita_command("reproduce", "synthetic", "--quick", "--out", out)
    assert ended.status == ExitStatus.DONE
    document = json.loads((out / "synthetic.json").read_text(encoding="utf-8"))
    assert document["findings"][0] in ended.out
    assert document["settings"]["num_landmarks"] == 8
    stems = {"synthetic", "synthetic_ratios", "synthetic_distance"}
    assert {path.stem for path in out.glob("*.csv")} == stems == set(document["tables"])
    assert {path.stem for path in out.glob("*.png")} == {path.stem for path in out.glob("*.pdf")} != set()
    assert "circle to flower" in ended.err  # what takes long is said


def test_results_are_replaced_only_when_asked_and_nothing_of_the_old_ones_stays(tiny, tmp_path):
    for name in ("synthetic.json", "synthetic_old.csv", "notes.csv"):
        (tmp_path / name).write_text("old")
    command = ("reproduce", "synthetic", "--quick", "--out", tmp_path, "--json")
    refused = kunita_command(*command)
    assert refused.status == ExitStatus.REFUSED
    assert "--overwrite" in refused.err
    assert (tmp_path / "synthetic.json").read_text() == "old"
    ended = kunita_command(*command, "--overwrite")
    assert ended.status == ExitStatus.DONE
    assert not (tmp_path / "synthetic_old.csv").exists()
    assert (tmp_path / "notes.csv").read_text() == "old"
    assert json.loads(ended.out)["synthetic"] == json.loads((tmp_path / "synthetic.json").read_text())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("moments", "--cases", "cases.tsv"), "generated landmarks"),
        (("all", "--cases", "absent.tsv"), "absent.tsv"),
        (("clinical", "--seed", "-1"), "--seed"),
        (("magic",), "magic"),
    ],
)
def test_what_cannot_be_run_is_refused_in_one_line(arguments, said, tmp_path):
    ended = kunita_command("reproduce", *arguments, "--quick", "--out", tmp_path / "new")
    assert ended.status == ExitStatus.REFUSED
    assert said in ended.err
    assert ended.err.count("\n") == 1
    assert not (tmp_path / "new").exists()
