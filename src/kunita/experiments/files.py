"""An experiment as files: one JSON document, a CSV for each table, PNG and PDF of each figure."""

import csv
import dataclasses
import inspect
import json
from pathlib import Path
from typing import Any

import kunita
from kunita.experiments.experiment import Experiment, Plate, Table
from kunita.io.summary_files import plain, write_json

FORMATS = (".png", ".pdf")
DOTS_PER_INCH = 200


def written_before(name: str, folder: Path) -> list[Path]:
    """The files of an earlier run of this experiment, as its document lists them."""
    listing = folder / f"{name}.json"
    try:
        names = json.loads(listing.read_text(encoding="utf-8"))["files"]
    except (OSError, ValueError, KeyError, TypeError):
        names = []
    return [
        path
        for path in (listing, *(folder / Path(str(other)).name for other in names))
        if path.is_file()
    ]


def write_experiment(experiment: Experiment, folder: Path) -> None:
    """Write everything into a folder."""
    write_json(folder / f"{experiment.name}.json", document(experiment))
    for table in experiment.tables:
        _write_table(table, folder / f"{table.name}.csv")
    for plate in experiment.plates:
        _write_plate(plate, folder)


def summary(experiment: Experiment) -> Any:
    """The document with the main table only."""
    return document(dataclasses.replace(experiment, tables=experiment.tables[:1]))


def document(experiment: Experiment) -> Any:
    """All numbers and words of an experiment, for programs; `columns` says what is in each table."""
    return plain(
        {
            "experiment": experiment.name,
            "version": kunita.__version__,
            "files": file_names(experiment),
            "settings": dataclasses.asdict(experiment.settings),
            "findings": list(experiment.findings),
            "columns": {
                table.name: inspect.getdoc(type(table.rows[0]))
                for table in experiment.tables
                if table.rows
            },
            "tables": {
                table.name: [dataclasses.asdict(row) for row in table.rows]
                for table in experiment.tables
            },
        }
    )


def file_names(experiment: Experiment) -> list[str]:
    """Of everything that is written beside the document."""
    tables = [f"{table.name}.csv" for table in experiment.tables]
    plates = [f"{plate.name}{suffix}" for plate in experiment.plates for suffix in FORMATS]
    return [*tables, *plates, *experiment.beside]


def _write_table(table: Table, path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(table.columns)
        for row in table.rows:
            values = (getattr(row, column) for column in table.columns)
            writer.writerow(
                [f"{value:.6g}" if isinstance(value, float) else value for value in values]
            )


def _write_plate(plate: Plate, folder: Path) -> None:
    for suffix in FORMATS:
        undated = (
            {"CreationDate": None} if suffix == ".pdf" else {}
        )  # the same run gives the same file
        plate.figure.savefig(folder / f"{plate.name}{suffix}", dpi=DOTS_PER_INCH, metadata=undated)
