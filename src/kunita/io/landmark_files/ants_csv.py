"""Points for ITK and ANTs, CSV with the header x,y,z,t: LPS mm, all four columns also in 2-D.

ANTs keeps numbers only. Names go to the last column, `comment`, with running numbers before them as
`label`.
"""

from pathlib import Path

import numpy as np

from kunita.io.frames import Frame, flip_points
from kunita.io.landmark_files.delimited import Delimited, delimited, header_of, row
from kunita.io.landmark_files.format import Format, decimal, one_line
from kunita.io.landmark_files.reading import Listed, Reading
from kunita.io.landmark_files.table import LandmarkTable
from kunita.io.landmark_files.text import Text

AXES = ("x", "y", "z", "t")


def recognises(text: Text) -> bool:
    """Whether the header begins x,y,z,t."""
    return header_of(text)[:4] == AXES


def read(text: Text, reading: Reading) -> tuple[LandmarkTable, ...]:
    """One table; in the frame IMAGE without its z, which must be zero."""
    table = delimited(text)
    if table.header[:4] != AXES:
        raise text.refusal(table.header_line, "the columns x,y,z,t first", table.header_line.text)
    points = np.array(table.points("x", "y", "z")).reshape(-1, 3)
    names, descriptions = _names(table)
    if reading.frame is not Frame.IMAGE:
        return (reading.world(text, Listed(points, names, None, descriptions), default=Frame.LPS),)
    deep = np.flatnonzero(np.nan_to_num(points[:, 2]))
    if deep.size:
        line, cells = table.rows[deep[0]]
        raise text.refusal(line, "z = 0, since the frame IMAGE is 2-D", cells[2])
    return (reading.world(text, Listed(points[:, :2], names, None, descriptions)),)


def _names(table: Delimited) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names and descriptions: comments are names where labels only count the rows and comments tell
    them apart.
    """
    labels, comments = table.column("label"), table.column("comment")
    counting = [label.removesuffix(".0") for label in labels] == [
        str(i) for i in range(1, len(labels) + 1)
    ]
    telling = all(comments) and len(set(comments)) == len(comments)
    if telling and (counting or not any(labels)):
        return comments, ("",) * len(comments)
    return labels, comments


def render(path: Path, tables: tuple[LandmarkTable, ...], frame: Frame) -> str:
    """One list, with labels and comments only if there are names."""
    (table,) = tables
    one_line(path, table.names)
    points = flip_points(table.points, frame)
    padded = np.hstack([points, np.zeros((len(points), 4 - points.shape[1]))])
    named = any(table.names)
    rows = [
        row((*map(decimal, values), *((str(i), name) if named else ())))
        for i, (values, name) in enumerate(zip(padded, table.names, strict=True), start=1)
    ]
    return "\n".join((row((*AXES, *(("label", "comment") if named else ()))), *rows)) + "\n"


ANTS = Format(
    "ants",
    recognises,
    read,
    shared_suffixes=(".csv", ".txt"),
    render=render,
    frames=(Frame.LPS, Frame.IMAGE),
    keeps=frozenset({"names"}),
)
