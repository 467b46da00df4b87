"""Tables of a page, which sort by any column."""

import dataclasses
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import numpy as np

from kunita import scores
from kunita.gaussians import GaussianPoints
from kunita.outputs.summary import LandmarkRows
from kunita.report.answer import mm

MOST_ROWS = 1000
"""Of a table on a page; files hold all."""

JUDGEMENTS = ("left out", "held by", "suspicion")
"""Columns about how a landmark agrees with the others."""


@dataclasses.dataclass(frozen=True)
class Column:
    """A column: its name, what it means, and whether it holds numbers."""

    name: str
    meaning: str = ""
    number: bool = True


@dataclasses.dataclass(frozen=True)
class Cell:
    """What a cell shows, and the number that it sorts by."""

    text: str
    value: float | str = ""


@dataclasses.dataclass(frozen=True)
class Row:
    """A row; its kind marks it, its id can be linked to."""

    cells: tuple[Cell, ...]
    kind: str = ""
    id: str = ""


@dataclasses.dataclass(frozen=True)
class Table:
    """A table, under a name that is unique in its page."""

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    note: str = ""


def number(value: float | None, text: str | None = None) -> Cell:
    """A number, sorted as itself; a dash where it is not known."""
    known = value is not None and np.isfinite(value)
    return Cell(
        text or mm(value) if known else "–", float(value) if known and value is not None else "NaN"
    )


def landmark_table(rows: LandmarkRows, *, judged: bool = True) -> Table:
    """What became of every landmark; of very many those that are predicted worst.

    Args:
        rows: of the landmarks.
        judged: whether each was predicted from the others, and doubted; beside images none is.
    """
    made = _whole_landmark_table(rows)
    if judged:
        return made
    kept = [k for k, column in enumerate(made.columns) if column.name not in JUDGEMENTS]
    shorter = [
        dataclasses.replace(row, cells=tuple(row.cells[k] for k in kept)) for row in made.rows
    ]
    columns = tuple(made.columns[k] for k in kept)
    return dataclasses.replace(made, columns=columns, rows=tuple(shorter))


def _whole_landmark_table(rows: LandmarkRows) -> Table:
    known = GaussianPoints(rows.predicted, rows.covariances)
    pits = 100 * scores.pit(rows.loo_chi2, rows.known)
    numbers = np.stack(
        [rows.before, rows.residuals, rows.loo_errors, pits, known.std, known.radius(0.95)], axis=1
    )
    weighted = bool(np.any((rows.weights != 1) & (rows.weights != 0)))
    partial = bool(np.any(rows.known < rows.fixed.shape[1]))
    columns = _landmark_columns(weighted=weighted, partial=partial)
    shown = _worst(rows)
    made = [
        _landmark_row(rows, numbers[i], int(i), weighted=weighted, partial=partial) for i in shown
    ]
    n = len(rows.names)
    note = f"{n} {'landmark' if n == 1 else 'landmarks'}, lengths in mm; a name leads the viewer to its place."
    if len(shown) < n:
        note = f"The {MOST_ROWS} of {n} landmarks that are predicted worst; all are in landmarks.csv. Lengths in mm."
    return Table("landmark-table", "Landmarks (mm)", columns, tuple(made), note)


def _landmark_columns(*, weighted: bool, partial: bool) -> tuple[Column, ...]:
    return (
        Column("name", "of the landmark", number=False),
        Column("before", "distance before the registration, mm"),
        Column("after", "distance after it, mm: how closely the fit follows the mark"),
        Column("left out", "error if it is predicted from the others, mm"),
        Column(
            "held by",
            "probability of the smallest region that holds it then, %: near 100 is a surprise",
        ),
        Column("sd", "posterior standard deviation of the map there, mm"),
        Column("95 % radius", "of the map there, mm"),
        *((Column("weight", "in the robust fit"),) if weighted else ()),
        *((Column("known", "directions in which it is known"),) if partial else ()),
        Column("suspicion", "why it cannot be right", number=False),
    )


def _worst(rows: LandmarkRows) -> np.ndarray:
    if len(rows.names) <= MOST_ROWS:
        return np.arange(len(rows.names))
    judged = np.where(np.isfinite(rows.loo_errors), rows.loo_errors, rows.residuals)
    return np.argsort(-judged, kind="stable")[:MOST_ROWS]


def _landmark_row(
    rows: LandmarkRows, numbers: np.ndarray, i: int, *, weighted: bool, partial: bool
) -> Row:
    before, after, left_out, region, sd, radius = (float(value) for value in numbers)
    cells = (
        Cell(rows.names[i]),
        number(before),
        number(after),
        number(left_out),
        number(region, f"{region:.0f} %"),
        number(sd),
        number(radius),
        *((number(float(rows.weights[i])),) if weighted else ()),
        *((number(float(rows.known[i]), str(rows.known[i])),) if partial else ()),
        Cell(rows.suspicion[i] or ("not used" if rows.weights[i] == 0 else "")),
    )
    return Row(cells, "suspect" if rows.suspect[i] else "")


def target_table(document: Any) -> Table | None:
    """Named targets; None where there are none."""
    named = [target for target in document["targets"] if "name" in target]
    if not named:
        return None
    frame = "RAS" if document["dimension"] == 3 else "IMAGE"
    nearest, source = "nearest landmark", "landmarks"
    if document.get("registered_images"):
        nearest, source = "nearest information", "what was compared"
    columns = (
        Column("target", number=False),
        Column(f"fixed, {frame} (mm)", "where it is predicted", number=False),
        Column("95 % radius", "of the ball that holds it, mm"),
        Column("sd", "standard deviation, mm"),
        Column("TRE", "predicted target registration error, mm"),
        Column(nearest, "its distance, mm"),
        Column("rests on", number=False),
    )
    rows = tuple(_target_row(target, source) for target in named[:MOST_ROWS])
    return Table("target-table", "Targets", columns, rows)


def _target_row(target: Any, source: str) -> Row:
    place = ", ".join(f"{x:.1f}" for x in target["position"])
    near = number(target["nearest_mm"], f"{target['nearest']}, {mm(target['nearest_mm'])}")
    rests = "the prior: an extrapolation" if target["extrapolates"] else source
    cells = (
        Cell(target["name"]),
        Cell(place),
        number(target["radius95_mm"]),
        number(target["std_mm"]),
        number(target["tre_mm"]),
        near,
        Cell(rests),
    )
    return Row(cells, "suspect" if target["extrapolates"] else "")


def input_table(inputs: Mapping[str, Any]) -> Table:
    """The files that went in, by name alone: a page may be sent to others."""
    titles = ("input", "file", "bytes", "SHA-256")
    columns = tuple(Column(title, number=title == "bytes") for title in titles)
    return Table(
        "inputs", "Inputs", columns, tuple(_input_row(role, one) for role, one in inputs.items())
    )


def _input_row(role: str, one: Any) -> Row:
    size = one["bytes"]
    cells = (
        Cell(role),
        Cell(PurePath(one["path"]).name),
        number(float(size), f"{size:,}"),
        Cell(one["sha256"]),
    )
    return Row(cells)
