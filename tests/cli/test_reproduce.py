"""`kunita reproduce`: what it writes, what it replaces, what it refuses before anything is
computed."""

import contextlib
import dataclasses
import io
import json

import numpy as np
import pytest

from cli.cases import Ended, kunita_command
from kunita.arguments import parser
from kunita.data.landmarks import Landmarks
from kunita.errors import ExitStatus
from kunita.experiments import clinical, synthetic
from kunita.io.landmark_files.files import write_landmarks
from kunita.reproduce import run_clinical, run_experiments

TINY = synthetic.Settings(
    num_landmarks=8,
    box_mm=30.0,
    bin_mm=3.0,
    refinement=1,
    parameters=(synthetic.Parameters("only", 5.0, cell_mm=3.0),),
)


def run_tiny(args, cases, tell):
    return synthetic.synthetic(TINY, tell)


def reproduced(run, *words):
    """Run the command with another run of the experiment that it names."""
    args = parser().parse_args(["reproduce", *map(str, words)])
    out = io.StringIO()
    err = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = run_experiments(args, {args.experiment: run})
    return Ended(int(status), out.getvalue(), err.getvalue())


def test_an_experiment_is_written_as_tables_and_figures_and_says_what_it_found(tmp_path):
    out = tmp_path / "new"
    ended = reproduced(run_tiny, "synthetic", "--quick", "--out", out)
    assert ended.status == ExitStatus.DONE
    document = json.loads((out / "synthetic.json").read_text(encoding="utf-8"))
    assert document["findings"][0] in ended.out
    assert document["settings"]["num_landmarks"] == 8
    stems = {"synthetic", "synthetic_ratios", "synthetic_distance"}
    assert {path.stem for path in out.glob("*.csv")} == stems == set(document["tables"])
    assert (
        {path.stem for path in out.glob("*.png")}
        == {path.stem for path in out.glob("*.pdf")}
        != set()
    )
    assert "circle to flower" in ended.err  # what takes long is said


def test_results_are_replaced_only_when_asked_and_nothing_of_the_old_ones_stays(tmp_path):
    for name in ("synthetic_old.csv", "synthetic_mine.csv", "notes.csv"):
        (tmp_path / name).write_text("old")
    earlier = json.dumps({"files": ["synthetic_old.csv", "../synthetic_mine.csv/.."]})
    (tmp_path / "synthetic.json").write_text(earlier)
    command = ("reproduce", "synthetic", "--quick", "--out", tmp_path, "--json")
    refused = kunita_command(*command)
    assert refused.status == ExitStatus.REFUSED
    assert "--overwrite" in refused.err
    assert (tmp_path / "synthetic.json").read_text() == earlier
    ended = reproduced(run_tiny, *command[1:], "--overwrite")
    assert ended.status == ExitStatus.DONE
    assert not (tmp_path / "synthetic_old.csv").exists()
    assert {(tmp_path / name).read_text() for name in ("synthetic_mine.csv", "notes.csv")} == {
        "old"
    }
    printed, written = (
        json.loads(ended.out)["synthetic"],
        json.loads((tmp_path / "synthetic.json").read_text()),
    )
    assert printed["findings"] == written["findings"]
    assert printed["tables"] == {"synthetic": written["tables"]["synthetic"]}


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


@pytest.fixture
def cohort(tmp_path):
    """A table of three cases of six landmarks, as CSV that states its frame."""
    rng, names = np.random.default_rng(0), [f"p{i}" for i in range(6)]
    rows = ["case\tmoving\tfixed"]
    for k in range(3):
        points = rng.uniform(0, 60, (6, 3))
        moved = points + 2 * np.sin(points[:, [1, 2, 0]] / 20) + rng.normal(0, 0.3, points.shape)
        write_landmarks(tmp_path / f"m{k}.csv", Landmarks(points, names))
        write_landmarks(tmp_path / f"f{k}.csv", Landmarks(moved, names, 0.3**2))
        rows.append(f"patient {k}\tm{k}.csv\tf{k}.csv")
    (tmp_path / "cases.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return tmp_path / "cases.tsv"


def test_a_cohort_of_ones_own_is_run_and_the_settings_state_it_and_no_other(cohort, tmp_path):
    few = dataclasses.replace(clinical.QUICK, length_scales_mm=(10.0, 50.0), panels_mm=())

    def run_few(args, cases, tell):
        return run_clinical(args, cases, tell, few)

    ended = reproduced(run_few, "clinical", "--quick", "--cases", cohort, "--out", tmp_path / "new")
    assert ended.status == ExitStatus.DONE, ended.err
    document = json.loads((tmp_path / "new" / "clinical.json").read_text(encoding="utf-8"))
    assert document["settings"]["table"] == str(cohort)
    assert document["settings"]["generated"] is None
    assert {row["case"] for row in document["tables"]["clinical_landmarks"]} == {
        f"patient {k}" for k in range(3)
    }
    assert [row["landmarks"] for row in document["tables"]["clinical"]] == [18, 18, 18]
    assert "3 cases, 18 landmarks, 54 exact refits" in ended.out
    assert "No case has images" in ended.out
