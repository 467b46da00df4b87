"""BIRL's histology landmarks, CSV with the header `,X,Y`: pixels, x right, y down."""

from pathlib import Path

import numpy as np

from kunita.io.frames import Frame, flip_points
from kunita.io.landmark_files.delimited import delimited, header_of, row
from kunita.io.landmark_files.format import Format, decimal
from kunita.io.landmark_files.reading import Listed, Reading
from kunita.io.landmark_files.table import LandmarkTable
from kunita.io.landmark_files.text import Text

HEADER = ("", "x", "y")


def recognises(text: Text) -> bool:
    """Whether the header is that of an unnamed running number, X and Y."""
    return header_of(text) == HEADER


def read(text: Text, reading: Reading) -> tuple[LandmarkTable, ...]:
    """One table; the numbers of the rows are names only if they leave some out.

    A running number says no more than the order, and some files count from 0 and others from 1.
    """
    table = delimited(text)
    if table.header != HEADER:
        raise text.refusal(table.header_line, "the columns ,X,Y", table.header_line.text)
    points = np.array(table.points("x", "y")).reshape(-1, 2)
    numbers = table.column("")
    running = any(list(numbers) == [str(i + base) for i in range(len(numbers))] for base in (0, 1))
    return (reading.world(text, Listed(points, None if running else numbers), default=Frame.IMAGE),)


def render(path: Path, tables: tuple[LandmarkTable, ...], frame: Frame) -> str:
    """One list, counted from 1."""
    (table,) = tables
    rows = [
        row((str(i), *map(decimal, point)))
        for i, point in enumerate(flip_points(table.points, frame), start=1)
    ]
    return "\n".join((",X,Y", *rows)) + "\n"


BIRL = Format("birl", recognises, read, (), (".csv",), render, (Frame.IMAGE,))
