"""Kunita's own table: CSV or TSV with named columns, covariances included, and the frame in a
comment or a sidecar.

    # kunita landmarks; CoordinateSystem = RAS; Units = mm
    label,x,y,z,cov_xx,cov_xy,cov_xz,cov_yy,cov_yz,cov_zz,description

Columns come in any order and unknown ones are ignored. The sidecar is a JSON file of the same stem,
`{"CoordinateSystem": "RAS", "Units": "mm"}`, looked at when no comment states the frame.
"""

import dataclasses
import re
from functools import partial
from pathlib import Path

import numpy as np

from kunita.data.landmarks import covariance_flaw
from kunita.io.frames import Frame, flip_covariances, flip_points
from kunita.io.landmark_files.covariance_entries import covariances_of, entries, entry_names
from kunita.io.landmark_files.delimited import Delimited, delimited, header_of, row
from kunita.io.landmark_files.format import Format, decimal, one_line
from kunita.io.landmark_files.reading import Listed, Reading, frame_code, millimetres
from kunita.io.landmark_files.table import LandmarkTable
from kunita.io.landmark_files.text import Line, Text, read_text

FRAME = re.compile(r"CoordinateSystem\"?\s*[=:]\s*\"?(\w+)", re.IGNORECASE)
UNITS = re.compile(r"\bUnits\"?\s*[=:]\s*\"?([^\W\d_]+)", re.IGNORECASE)
PIXELS = frozenset({"px", "pixel", "pixels"})


@dataclasses.dataclass(frozen=True)
class Statement:
    """The frame and the unit that a file, or its sidecar, states; None where it does not."""

    frame: Frame | None = None
    unit: float | None = None


def recognises(text: Text) -> bool:
    """Whether the header has columns x and y."""
    return {"x", "y"} <= set(header_of(text))


def read(text: Text, reading: Reading) -> tuple[LandmarkTable, ...]:
    """One table."""
    table = delimited(text)
    statement = _statement(text, table.comments)
    if statement.frame is None:
        statement = _sidecar(text.path) or statement
    axes = ("x", "y", "z") if "z" in table.header else ("x", "y")
    points = np.array(table.points(*axes)).reshape(-1, len(axes))
    listed = Listed(
        points,
        table.column("label", "name"),
        _covariances(table, points),
        table.column("description", "desc"),
    )
    scaled = listed if statement.unit is None else listed.scaled(statement.unit)
    return (
        reading.world(text, scaled, stated=statement.frame, calibrated=statement.unit is not None),
    )


def _statement(text: Text, comments: tuple[Line, ...]) -> Statement:
    frames = [(line, match[1]) for line in comments if (match := FRAME.search(line.text))]
    units = [(line, match[1]) for line in comments if (match := UNITS.search(line.text))]
    if len({code.upper() for _, code in frames}) > 1:
        raise text.refusal(frames[-1][0], "one coordinate system", [code for _, code in frames])
    lengths = [millimetres(text, line, unit) for line, unit in units if unit.lower() not in PIXELS]
    return Statement(
        frame_code(text, *frames[0]) if frames else None, lengths[0] if lengths else None
    )


def _sidecar(path: Path) -> Statement | None:
    """What a JSON file of the same stem states; one without a coordinate system belongs to
    something else.
    """
    place = path.with_suffix(".json")
    if not place.is_file():
        return None
    text = read_text(place)
    content = text.document("the JSON sidecar of a table")
    if not isinstance(content, dict) or "CoordinateSystem" not in content:
        return None
    unit = str(content.get("Units", "px"))
    length = None if unit.lower() in PIXELS else millimetres(text, None, unit, "Units")
    return Statement(
        frame_code(text, None, str(content["CoordinateSystem"]), "CoordinateSystem"), length
    )


def _covariances(table: Delimited, points: np.ndarray) -> np.ndarray | None:
    """All of the entries, for every defined point or for none."""
    names = entry_names(points.shape[1])
    if not any(name.startswith("cov_") for name in table.header):
        return None
    places = table.places(*names)
    listed = np.array(
        [
            table.text.numbers(line, [cells[k] for k in places], "a covariance's entries")
            for line, cells in table.rows
        ]
    ).reshape(-1, len(names))
    defined, known = ~np.isnan(points).any(axis=1), ~np.isnan(listed).any(axis=1)
    if not known[defined].any():
        return None
    lacking = np.flatnonzero(defined & ~known)
    if lacking.size:
        line, cells = table.rows[lacking[0]]
        raise table.text.refusal(line, "a covariance, as other points have", ", ".join(cells))
    covariances = covariances_of(listed, points.shape[1])
    for i in np.flatnonzero(defined):
        flaw = covariance_flaw(covariances[i])
        if flaw is not None:
            raise table.text.refusal(
                table.rows[i][0], "a positive definite covariance", f"{flaw}: {listed[i].tolist()}"
            )
    return covariances


def render(path: Path, tables: tuple[LandmarkTable, ...], frame: Frame, delimiter: str) -> str:
    """One table, in which every number reads back as the same double."""
    (table,) = tables
    one_line(path, table.names)
    one_line(path, table.descriptions)
    described = any(table.descriptions)
    spread = () if table.covariances is None else entry_names(table.dimension)
    header = ("label", *"xyz"[: table.dimension], *spread, *(("description",) if described else ()))
    numbers = _numbers(table, frame)
    rows = [
        row((name, *map(_cell, values), *((description,) if described else ())), delimiter)
        for name, values, description in zip(table.names, numbers, table.descriptions, strict=True)
    ]
    comment = f"# kunita landmarks; CoordinateSystem = {frame.value}; Units = mm"
    return "\n".join((comment, row(header, delimiter), *rows)) + "\n"


def _numbers(table: LandmarkTable, frame: Frame) -> np.ndarray:
    points = flip_points(table.points, frame)
    if table.covariances is None:
        return points
    return np.hstack([points, entries(flip_covariances(table.covariances, frame))])


def _cell(number: float) -> str:
    """Undefined is said in so many letters: a row of empty cells would pass for a blank line."""
    return "n/a" if np.isnan(number) else decimal(number)


KEEPS = frozenset({"names", "covariances", "descriptions", "undefined"})
FRAMES = (Frame.RAS, Frame.LPS, Frame.IMAGE)
CSV = Format(
    "csv", recognises, read, (), (".csv", ".txt"), partial(render, delimiter=","), FRAMES, KEEPS
)
TSV = Format(
    "tsv", recognises, read, (), (".tsv", ".txt"), partial(render, delimiter="\t"), FRAMES, KEEPS
)
