"""BigWarp's landmark pairs, CSV without a header: name, active, the moving point, the fixed point.

Coordinates are in the image's calibration with the origin at its corner: there is no patient's
orientation.
"""

import numpy as np

from kunita.io.frames import Frame
from kunita.io.landmark_files.format import Format
from kunita.io.landmark_files.reading import Listed, Reading
from kunita.io.landmark_files.table import LandmarkTable
from kunita.io.landmark_files.text import Line, Text

ACTIVE = {"true": True, "false": False}
UNSET = frozenset({"infinity", "-infinity", "inf", "-inf"})


def recognises(text: Text) -> bool:
    """Whether the first line has six or eight fields, the second of them true or false."""
    cells = text.cells(text.lines[0])
    return len(cells) in (6, 8) and cells[1].lower() in ACTIVE


def read(text: Text, reading: Reading) -> tuple[LandmarkTable, ...]:
    """The moving table and the fixed one, without the pairs that are switched off."""
    rows = [(line, text.cells(line)) for line in text.lines]
    width = len(rows[0][1])
    for line, cells in rows:
        if width not in (6, 8) or len(cells) != width or cells[1].lower() not in ACTIVE:
            raise text.refusal(
                line, "name, true or false, and two points of 2 or 3 coordinates", line.text
            )
    d = (width - 2) // 2
    active = [(line, cells) for line, cells in rows if ACTIVE[cells[1].lower()]]
    names = tuple(cells[0] for _, cells in active)
    volumes = (
        [_point(text, line, cells[2 + k : 2 + k + d]) for line, cells in active] for k in (0, d)
    )
    listed = [Listed(np.array(points).reshape(-1, d), names) for points in volumes]
    return tuple(
        reading.world(text, volume, default=Frame.IMAGE if d == 2 else None) for volume in listed
    )


def _point(text: Text, line: Line, cells: tuple[str, ...]) -> tuple[float, ...]:
    """An unset coordinate is infinite."""
    return text.point(line, ["nan" if cell.lower() in UNSET else cell for cell in cells])


BIGWARP = Format("bigwarp", recognises, read)
