"""`summary.json` and `landmarks.csv`: a registration in numbers, for programs and for spreadsheets."""

import csv
import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from kunita.io.frames import Frame
from kunita.io.writing import complete
from kunita.outputs.summary import LandmarkRows, Summary


def summary_document(summary: Summary, **more: Any) -> Any:
    """A summary as JSON: what is not a number (a leave-one-out that cannot be) is null."""
    return plain({**dataclasses.asdict(summary), **more})


def write_json(path: Path, document: Any, *, overwrite: bool = False) -> None:
    """Write a JSON document that every reader accepts."""
    with complete(path, overwrite=overwrite) as partial:
        text = json.dumps(plain(document), indent=2, ensure_ascii=False, allow_nan=False)
        partial.write_text(text + "\n", encoding="utf-8")


def write_landmark_rows(path: Path, rows: LandmarkRows) -> None:
    """One line per landmark pair, mm and mm², in memory's own frame, which the first line states."""
    d = rows.fixed.shape[1]
    frame = Frame.RAS if d == 3 else Frame.IMAGE
    with complete(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        file.write(
            f"# Kunita landmarks; CoordinateSystem = {frame.value}; Units = mm; covariances in mm2\n"
        )
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_landmark_columns(d))
        for i in range(len(rows.names)):
            writer.writerow(_landmark_cells(rows, i))


def _landmark_columns(d: int) -> list[str]:
    """The names of the columns of `landmarks.csv`."""
    axes = "xyz"[:d]
    sides = [f"{side}_{axis}" for side in ("moving", "fixed", "predicted") for axis in axes]
    covariance = [f"cov_{axes[a]}{axes[b]}" for a, b in _upper(d)]
    judged = ["residual", "loo_error", "loo_chi2", "weight", "suspect", "suspicion", "known"]
    return ["name", *sides, *covariance, *judged]


def _landmark_cells(rows: LandmarkRows, i: int) -> list[str | int]:
    """One line of `landmarks.csv`."""
    covariance = rows.covariances[i]
    numbers = [*rows.moving[i], *rows.fixed[i], *rows.predicted[i]]
    numbers += [covariance[a, b] for a, b in _upper(len(covariance))]
    numbers += [rows.residuals[i], rows.loo_errors[i], rows.loo_chi2[i], rows.weights[i]]
    words = [f"{number:.9g}" for number in numbers]
    return [rows.names[i], *words, int(rows.suspect[i]), rows.suspicion[i], int(rows.known[i])]


def _upper(d: int) -> list[tuple[int, int]]:
    """The places of a symmetric matrix that say all of it."""
    return [(a, b) for a in range(d) for b in range(a, d)]


def plain(value: Any) -> Any:
    """The same in terms of JSON: lists, dictionaries, and null where a number is not finite."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [plain(item) for item in value]
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, np.integer | np.bool_):
        return value.item()
    return value
