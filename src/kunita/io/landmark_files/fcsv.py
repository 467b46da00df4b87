"""Slicer's older fiducial lists, `.fcsv`: the columns are fixed by their place, the frame is in the
header.

A file that states no frame is RAS: so were all those written before the line existed. A file
without Slicer 4's first line is Slicer 3's, which has other columns.
"""

import re
from pathlib import Path

import numpy as np

from kunita.io.frames import Frame, flip_points
from kunita.io.landmark_files.delimited import row
from kunita.io.landmark_files.format import Format, decimal, one_line
from kunita.io.landmark_files.reading import Listed, Reading, frame_code
from kunita.io.landmark_files.table import LandmarkTable
from kunita.io.landmark_files.text import Line, Text

FIRST = "# Markups fiducial file version"
COLUMNS = "id,x,y,z,ow,ox,oy,oz,vis,sel,lock,label,desc,associatedNodeID"
SLICER_3 = "label,x,y,z,sel,vis"
FRAME = re.compile(r"#\s*CoordinateSystem\s*=(.*)", re.IGNORECASE)
MARKUPS = re.compile(r"#\s*(Markups fiducial file|columns\s*=\s*id\b)", re.IGNORECASE)


def recognises(text: Text) -> bool:
    """Whether the first line is one of Slicer's."""
    return (
        re.match(r"#\s*(Markups fiducial|Fiducial List) file", text.lines[0].text, re.IGNORECASE)
        is not None
    )


def read(text: Text, reading: Reading) -> tuple[LandmarkTable, ...]:
    """One table."""
    header = [line for line in text.lines if line.text.startswith("#")]
    rows = [line for line in text.lines if not line.text.startswith("#")]
    markups = any(MARKUPS.match(line.text) for line in header)
    listed = _listed(text, rows, COLUMNS if markups else SLICER_3)
    return (reading.world(text, listed, stated=_stated(text, header), default=Frame.RAS),)


def _stated(text: Text, header: list[Line]) -> Frame | None:
    """The frame that the header states; a spreadsheet may have left commas after it."""
    found = [
        (line, match[1].strip().rstrip(",").strip())
        for line in header
        if (match := FRAME.match(line.text))
    ]
    frames = {frame_code(text, line, code) for line, code in found}
    if len(frames) > 1:
        raise text.refusal(found[-1][0], "one coordinate system", [code for _, code in found])
    return frames.pop() if frames else None


def _listed(text: Text, rows: list[Line], columns: str) -> Listed:
    """Rows of these columns, x, y, z the second to the fourth; those after may be missing."""
    names = columns.split(",")
    cells = [text.cells(line) for line in rows]
    for line, fields in zip(rows, cells, strict=True):
        if not 4 <= len(fields) <= len(names):
            otherwise = "" if columns == COLUMNS else f" (or a first line '{FIRST} = …')"
            raise text.refusal(line, f"the columns {columns}{otherwise}", line.text)
    points = [text.point(line, fields[1:4]) for line, fields in zip(rows, cells, strict=True)]
    named = [dict(zip(names, fields, strict=False)) for fields in cells]
    labels, descriptions = (tuple(row.get(name, "") for row in named) for name in ("label", "desc"))
    return Listed(np.array(points).reshape(-1, 3), labels, None, descriptions)


def render(path: Path, tables: tuple[LandmarkTable, ...], frame: Frame) -> str:
    """One list, with the frame in words, as Slicer writes it since 4.11."""
    (table,) = tables
    one_line(path, table.names)
    one_line(path, table.descriptions)
    fixed = ("0", "0", "0", "1", "1", "1", "0")
    rows = [
        row((str(i + 1), *map(decimal, point), *fixed, table.names[i], table.descriptions[i], ""))
        for i, point in enumerate(flip_points(table.points, frame))
    ]
    header = (f"{FIRST} = 4.11", f"# CoordinateSystem = {frame.value}", f"# columns = {COLUMNS}")
    return "\n".join((*header, *rows)) + "\n"


FCSV = Format(
    "fcsv",
    recognises,
    read,
    own_suffixes=(".fcsv",),
    render=render,
    frames=(Frame.LPS, Frame.RAS),
    keeps=frozenset({"names", "descriptions"}),
)
