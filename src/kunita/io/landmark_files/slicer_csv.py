"""Slicer's exported control points, CSV: the names of the coordinate columns, l,p,s or r,a,s, state
the frame.
"""

import numpy as np

from kunita.io.frames import Frame
from kunita.io.landmark_files.delimited import delimited, header_of
from kunita.io.landmark_files.format import Format
from kunita.io.landmark_files.reading import Listed, Reading
from kunita.io.landmark_files.table import LandmarkTable
from kunita.io.landmark_files.text import Text

AXES = {Frame.LPS: ("l", "p", "s"), Frame.RAS: ("r", "a", "s")}
NO = frozenset({"0", "false"})


def recognises(text: Text) -> bool:
    """Whether the header has l, p, s or r, a, s."""
    header = set(header_of(text))
    return any(header >= set(axes) for axes in AXES.values())


def read(text: Text, reading: Reading) -> tuple[LandmarkTable, ...]:
    """One table; points that are not `defined` are undefined whatever their numbers say."""
    table = delimited(text)
    stated = [frame for frame, axes in AXES.items() if set(axes) <= set(table.header)]
    if len(stated) != 1:
        raise text.refusal(table.header_line, "the columns l,p,s or r,a,s", table.header_line.text)
    points = np.array(table.points(*AXES[stated[0]])).reshape(-1, 3)
    placed = [cell.lower() not in NO for cell in table.column("defined")]
    points = np.where(np.array(placed, dtype=bool)[:, None], points, np.nan)
    listed = Listed(points, table.column("label", "name"), None, table.column("description"))
    return (reading.world(text, listed, stated=stated[0]),)


SLICER_CSV = Format("slicer-csv", recognises, read)
