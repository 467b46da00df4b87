"""An experiment as files: one JSON document, a CSV for each table, PNG and PDF of each figure."""

import csv
import dataclasses
from pathlib import Path
from typing import Any

import kunita
from kunita.experiments.experiment import Experiment, Plate, Table
from kunita.io.summary_files import plain, write_json

SUFFIXES = (".json", ".csv", ".png", ".pdf")
DOTS_PER_INCH = 200


def written_before(name: str, folder: Path) -> list[Path]:
    """The files of an earlier run of this experiment."""
    return sorted(path for suffix in SUFFIXES for path in (*folder.glob(f"{name}{suffix}"),
                                                           *folder.glob(f"{name}_*{suffix}")))  # fmt: skip


def write_experiment(experiment: Experiment, folder: Path) -> None:
    """Write everything into a folder."""
    write_json(folder / f"{experiment.name}.json", document(experiment))
    for table in experiment.tables:
        _write_table(table, folder / f"{table.name}.csv")
    for plate in experiment.plates:
        _write_plate(plate, folder)


def document(experiment: Experiment) -> Any:
    """All numbers and words of an experiment, for programs."""
    return plain({
        "experiment": experiment.name,
        "version": kunita.__version__,
        "settings": dataclasses.asdict(experiment.settings),
        "findings": list(experiment.findings),
        "tables": {table.name: [dataclasses.asdict(row) for row in table.rows] for table in experiment.tables},
    })  # fmt: skip


def _write_table(table: Table, path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(table.columns)
        for row in table.rows:
            values = (getattr(row, column) for column in table.columns)
            writer.writerow([f"{value:.6g}" if isinstance(value, float) else value for value in values])


def _write_plate(plate: Plate, folder: Path) -> None:
    plate.figure.savefig(folder / f"{plate.name}.png", dpi=DOTS_PER_INCH)
    plate.figure.savefig(folder / f"{plate.name}.pdf", dpi=DOTS_PER_INCH)
