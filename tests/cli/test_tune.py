"""`kunita tune` and `register --prior`: learned on some files, used on others."""

import json

import numpy as np
import pytest

import kunita
from cli.cases import kunita_command
from kunita.data.landmarks import Landmarks
from kunita.errors import ExitStatus
from kunita.io.landmark_files.files import write_landmarks


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Three small flat cases as files, and the table that lists them."""
    folder, rng = tmp_path_factory.mktemp("cohort"), np.random.default_rng(0)
    rows = ["case\tmoving\tfixed"]
    for k in range(3):
        x = rng.uniform(0, 100, (12, 2))
        f = x + 4 * np.sin(x[:, ::-1] / 25 + k) + 0.5 * rng.normal(size=x.shape)
        for side, points in (("moving", x), ("fixed", f)):
            write_landmarks(folder / f"{side}{k}.csv", Landmarks(points))
        rows.append(f"case {k}\tmoving{k}.csv\tfixed{k}.csv")
    (folder / "cases.tsv").write_text("\n".join(rows) + "\n")
    return folder / "cases.tsv"


def test_a_prior_is_learned_written_and_used(table, tmp_path):
    prior = tmp_path / "prior.json"
    ended = kunita_command("tune", table, "--out", prior, "--frame", "IMAGE", "--json")
    assert ended.status == ExitStatus.DONE, ended.err
    document = json.loads(prior.read_text(encoding="utf-8"))
    printed = json.loads(ended.out)
    assert printed.pop("out") == str(prior)
    assert printed.pop("report") == str(prior.with_suffix(".html"))
    assert printed == document
    assert document["cases"] == ["case 0", "case 1", "case 2"]
    sides = (table.parent / "moving0.csv", table.parent / "fixed0.csv")
    command = (
        "register",
        *sides,
        "--out",
        tmp_path / "result",
        "--frame",
        "IMAGE",
        "--prior",
        prior,
        "--json",
    )
    used = kunita_command(*command)
    assert used.status == ExitStatus.DONE, used.err
    summary = json.loads(used.out)
    assert summary["kernel"] == document["kernel"]
    assert summary["noise_mm"] == pytest.approx(document["noise_mm"])
    assert summary["parameters"] == []  # nothing was chosen on this case
    assert (
        kunita.read_prior(prior).kernel
        == kunita.load(tmp_path / "result" / "registration.h5").kernel
    )


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--prior", "missing.json"), "missing.json"),
        (("--prior", "SUMMARY"), "expected a prior, as `kunita tune` writes it"),
        (("--prior", "PRIOR", "--length-scale", "3"), "the prior has its own"),
        (("--prior", "PRIOR", "--kernel", "matern52"), "the prior has its own"),
    ],
)
def test_a_prior_that_cannot_be_used_is_refused(table, tmp_path, more, words):
    prior = tmp_path / "prior.json"
    kunita.write_prior(prior, kunita.Prior(kunita.Gaussian(30.0, 3.0), 0.5))
    summary = tmp_path / "summary.json"
    summary.write_text(json.dumps({**json.loads(prior.read_text()), "residual_mm": 0.4}))
    sides = (table.parent / "moving0.csv", table.parent / "fixed0.csv")
    places = {"PRIOR": str(prior), "SUMMARY": str(summary)}
    more = [places.get(word, word) for word in more]
    ended = kunita_command(
        "register", *sides, "--out", tmp_path / "result", "--frame", "IMAGE", *more
    )
    assert ended.status == ExitStatus.REFUSED
    assert words in ended.err
    assert not (tmp_path / "result").exists()


def test_the_page_beside_a_prior_is_of_its_cases(table, tmp_path):
    ended = kunita_command("tune", table, "--out", tmp_path / "mine.json", "--frame", "IMAGE")
    assert ended.status == ExitStatus.DONE, ended.err
    assert f"look at    {tmp_path / 'mine.html'}" in ended.out
    page = (tmp_path / "mine.html").read_text(encoding="utf-8")
    assert all(f'href="#case-{k}"' in page and f'id="case-{k}"' in page for k in (1, 2, 3))
    assert "moving0.csv" in page
    assert str(table.parent) not in page.replace(
        str(table), ""
    )  # but in the command that was typed


def test_without_a_report_there_is_the_prior_alone(table, tmp_path):
    ended = kunita_command(
        "tune", table, "--out", tmp_path / "prior.json", "--frame", "IMAGE", "--no-report"
    )
    assert ended.status == ExitStatus.DONE, ended.err
    assert [path.name for path in tmp_path.iterdir()] == ["prior.json"]
    assert "look at" not in ended.out


@pytest.mark.parametrize(
    ("name", "words"), [("prior.json", "--overwrite"), ("prior.html", "expected a prior")]
)
def test_a_page_of_another_is_not_replaced_and_nothing_is_computed(table, tmp_path, name, words):
    (tmp_path / "prior.html").write_text("mine")
    ended = kunita_command("tune", table, "--out", tmp_path / name, "--frame", "IMAGE")
    assert ended.status == ExitStatus.REFUSED
    assert words in ended.err
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]


def test_a_prior_is_not_replaced_unasked(table, tmp_path):
    (tmp_path / "prior.json").write_text("mine")
    ended = kunita_command("tune", table, "--out", tmp_path / "prior.json", "--frame", "IMAGE")
    assert ended.status == ExitStatus.REFUSED
    assert "--overwrite" in ended.err
    assert (tmp_path / "prior.json").read_text() == "mine"
