"""An experiment's files say what the experiment says."""

import csv
import dataclasses
import json

import pytest
from matplotlib.figure import Figure
from PIL import Image as Picture

from kunita.experiments.experiment import Experiment, Plate, Table
from kunita.experiments.files import write_experiment, written_before


@dataclasses.dataclass(frozen=True)
class Row:
    name: str
    error_mm: float | None
    below: bool


@dataclasses.dataclass(frozen=True)
class Settings:
    seed: int = 3


ROWS = (Row("frozen", 0.1234567, True), Row("ll", float("inf"), False), Row("none", None, False))
EXPERIMENT = Experiment("trial", Settings(), (Table("trial", ROWS), Table("trial_empty", ())),
                        (Plate("trial_drawn", Figure(figsize=(1, 1))),), ("It works.",))  # fmt: skip


def test_tables_and_findings_are_in_the_document_and_every_table_is_a_csv(tmp_path):
    write_experiment(EXPERIMENT, tmp_path)
    document = json.loads((tmp_path / "trial.json").read_text(encoding="utf-8"))
    assert document["findings"] == ["It works."]
    assert document["settings"] == {"seed": 3}
    assert document["tables"]["trial"][0] == {
        "name": "frozen",
        "error_mm": 0.1234567,
        "below": True,
    }
    assert document["tables"]["trial"][1]["error_mm"] is None  # JSON has no infinity
    with (tmp_path / "trial.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == ["frozen", "ll", "none"]
    assert float(rows[0]["error_mm"]) == pytest.approx(0.1234567, rel=1e-5)
    assert [row["error_mm"] for row in rows[1:]] == ["inf", ""]


def test_figures_are_png_and_pdf(tmp_path):
    write_experiment(EXPERIMENT, tmp_path)
    with Picture.open(tmp_path / "trial_drawn.png") as picture:
        assert picture.size == (200, 200)
    assert (tmp_path / "trial_drawn.pdf").read_bytes().startswith(b"%PDF")


def test_only_files_that_its_document_lists_are_an_experiments_own(tmp_path):
    write_experiment(EXPERIMENT, tmp_path)
    for name in ("trials.csv", "trial.txt", "other.json", "trial_notes.csv"):
        (tmp_path / name).touch()
    found = {path.name for path in written_before("trial", tmp_path)}
    assert found == {
        "trial.json",
        "trial.csv",
        "trial_empty.csv",
        "trial_drawn.png",
        "trial_drawn.pdf",
    }
    (tmp_path / "trial.json").write_text("[3]")
    assert [path.name for path in written_before("trial", tmp_path)] == ["trial.json"]
