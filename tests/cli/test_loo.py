"""`kunita loo`: what it writes and prints, what it refuses, and that processes change nothing."""

import csv
import dataclasses
import hashlib
import json
import shutil

import jax
import numpy as np
import pytest

from cli.cases import kunita_command
from cohorts import three_cases
from kunita.cohort.study import PAPER, Trained, study
from kunita.cohort.study_findings import OWN, Learning
from kunita.errors import ExitStatus
from kunita.io.landmark_files.files import write_landmarks
from kunita.io.prior_files import write_prior
from kunita.kernels import Gaussian
from kunita.loo import FILES, Settings, experiment_of, unconverged
from kunita.prior import Prior

METHODS = ["none", "rigid", "affine", "tps", "paper", "small", OWN]
TEXTS = [name for name in FILES if name.endswith((".csv", ".json"))]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Three generated cases of twelve landmarks, as a user has them."""
    folder, rows = tmp_path_factory.mktemp("cohort"), ["case\tmoving\tfixed"]
    for case in three_cases():
        for side in ("moving", "fixed"):
            write_landmarks(folder / f"{case.name}_{side}.csv", getattr(case, side))
        rows.append(f"{case.name}\t{case.name}_moving.csv\t{case.name}_fixed.csv")
    (folder / "cases.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return folder / "cases.tsv"


@pytest.fixture(scope="module")
def unoptimised():
    """A fixture of a module is made before those of its first test, which would set this."""
    jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture(scope="module")
def finished(table, unoptimised, tmp_path_factory):
    """A run in one process."""
    out = tmp_path_factory.mktemp("loo") / "new"
    return out, kunita_command("loo", table, "--out", out, "--fast", "--json")


@pytest.fixture(scope="module")
def prior(tmp_path_factory):
    """The file of a prior, so that nothing needs to be learned."""
    path = tmp_path_factory.mktemp("prior") / "prior.json"
    write_prior(path, Prior(Gaussian(30.0, 2.0), 0.9, cases=("x", "y")))
    return path


@pytest.fixture(scope="module")
def finished_with_prior(table, prior, unoptimised, tmp_path_factory):
    """A run in one process with a given prior; programs that other tests compiled in another way
    are forgotten first."""
    jax.clear_caches()
    out = tmp_path_factory.mktemp("given") / "new"
    words = ("--fast", "--common-noise", "--no-report")
    return out, kunita_command("loo", table, "--out", out, "--prior", prior, *words)


def rows(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_everything_is_written_and_nothing_else(finished):
    out, ended = finished
    assert ended.status == ExitStatus.DONE, ended.err
    assert {path.name for path in out.iterdir()} == set(FILES)
    assert set(json.loads((out / "loo.json").read_text(encoding="utf-8"))["files"]) == set(
        FILES
    ) - {"loo.json"}


def test_the_printed_document_has_what_scripts_rely_on(finished):
    document = json.loads(finished[1].out)
    assert set(document["coverage"]) == {"50", "80", "90", "95", "99"}
    assert (document["n_cases"], document["n_landmarks"]) == (3, 36)
    assert list(document["baselines"]) == METHODS[:-1]
    for scores in (document, *document["baselines"].values()):
        assert {"error_mm", "coverage", "nll"} <= set(scores)
    assert document["error_mm"] < document["baselines"]["none"]["error_mm"]
    assert "leave-one-patient-out" in document["findings"][0]


def test_tables_and_document_say_the_same(finished):
    out, ended = finished
    printed, methods = json.loads(ended.out), rows(out / "methods.csv")
    assert [row["method"] for row in methods] == METHODS
    assert float(methods[-1]["error_mm"]) == pytest.approx(printed["error_mm"], rel=1e-5)
    marks = [
        row
        for row in rows(out / "landmarks.csv")
        if row["method"] == OWN and row["left_out"] == "alone"
    ]
    assert np.mean([float(row["error_mm"]) for row in marks]) == pytest.approx(
        printed["error_mm"], rel=1e-5
    )
    cases = [row for row in rows(out / "cases.csv") if row["method"] == OWN]
    assert [row["learned_on"] for row in cases] == ["2"] * 3
    assert len({row["amplitude_mm"] for row in cases}) == 3  # each learned on other cases


def test_the_page_has_every_case_and_the_checksums_of_what_went_in(finished, table):
    out, ended = finished
    page = (out / "report.html").read_text(encoding="utf-8")
    assert json.loads(ended.out)["report"] == str(out / "report.html")
    for k, case in enumerate(three_cases()):
        assert f'id="case-{k + 1}"><summary><b>{case.name}</b>' in page
        for side in ("moving", "fixed"):
            assert (
                hashlib.sha256((table.parent / f"{case.name}_{side}.csv").read_bytes()).hexdigest()
                in page
            )


def test_without_a_report_an_earlier_one_does_not_stay(finished, table, prior, tmp_path):
    out = tmp_path / "again"
    shutil.copytree(finished[0], out)
    (out / "mine.txt").write_text("mine")
    words = ("--fast", "--overwrite", "--no-report", "--prior", prior)
    ended = kunita_command("loo", table, "--out", out, *words)
    assert ended.status == ExitStatus.DONE, ended.err
    assert {path.name for path in out.iterdir()} == {*FILES, "mine.txt"} - {"report.html"}
    assert "report.html" not in json.loads((out / "loo.json").read_text(encoding="utf-8"))["files"]
    assert "look at" not in ended.out


def test_processes_change_no_byte(finished_with_prior, table, prior, tmp_path):
    """Of what is left out: priors are learned in one process in any case."""
    out, _ = finished_with_prior
    words = ("--fast", "--common-noise", "--no-report", "--quiet", "--workers", "2")
    ended = kunita_command("loo", table, "--out", tmp_path / "spread", "--prior", prior, *words)
    assert ended.status == ExitStatus.DONE, ended.err
    for name in TEXTS:
        assert (tmp_path / "spread" / name).read_bytes() == (out / name).read_bytes(), name


def test_a_given_prior_serves_all_cases_and_nothing_is_learned(finished_with_prior):
    out, ended = finished_with_prior
    assert ended.status == ExitStatus.DONE, ended.err
    assert "nothing was learned here" in ended.out
    own = [row for row in rows(out / "cases.csv") if row["method"] in ("small", OWN)]
    learned = {
        (row["length_scale_mm"], row["amplitude_mm"], row["noise_mm"], row["learned_on"])
        for row in own
    }
    assert learned == {("30", "2", "0.9", "2")}


def test_a_result_is_replaced_only_when_asked(finished, table):
    out, _ = finished
    before = (out / "loo.json").read_bytes()
    refused = kunita_command("loo", table, "--out", out, "--fast")
    assert refused.status == ExitStatus.REFUSED
    assert "--overwrite" in refused.err
    assert (out / "loo.json").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--prior", "p.json", "--length-scales", "10,50"), "--length-scales"),
        (("--prior", "p.json", "--align", "affine"), "--align"),
        (("--prior", "p.json", "--kernel", "matern52"), "--kernel"),
        (("--prior", "p.json", "--scale-noise"), "--scale-noise"),
        (("--common-noise", "--scale-noise"), "--scale-noise"),
        (("--workers", "0"), "--workers"),
        (("--length-scales", "10,-3"), "--length-scales"),
        (("--seed", "x"), "--seed"),
    ],
)
def test_what_cannot_be_run_is_refused_in_one_line(arguments, said, table, tmp_path):
    ended = kunita_command("loo", table, "--out", tmp_path / "new", *arguments)
    assert ended.status == ExitStatus.REFUSED
    assert said in ended.err
    assert ended.err.count("\n") == 1
    assert not (tmp_path / "new").exists()


def test_a_table_that_is_not_there_is_refused(tmp_path):
    ended = kunita_command("loo", tmp_path / "absent.tsv", "--out", tmp_path / "new")
    assert ended.status == ExitStatus.REFUSED
    assert "absent.tsv" in ended.err


def test_fits_that_did_not_converge_are_counted():
    cases = three_cases()
    methods = [Trained(name, (PAPER,) * 3, bare=True) for name in ("paper", OWN)]
    found = study(cases, methods, exact=False)
    whole = experiment_of(found, Settings("cases.tsv"), Learning.GIVEN)
    lost = dataclasses.replace(found[-1].alone, converged=np.arange(12) > 2)
    some = experiment_of(
        (*found[:-1], dataclasses.replace(found[-1], alone=lost)),
        Settings("cases.tsv"),
        Learning.GIVEN,
    )
    assert (unconverged(whole), unconverged(some)) == (0, 3)
    assert any(
        "3 predictions come from fits that did not converge" in finding for finding in some.findings
    )
