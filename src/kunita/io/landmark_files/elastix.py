"""Points for elastix and transformix, and the points that transformix writes.

`point` or `index`, their number, then the coordinates: world LPS mm, or voxel indices from 0. Where
the first word is the number, they are indices. In 2-D nothing is assumed: BIRL's files look the
same and hold pixels.
"""

import re
from pathlib import Path

import numpy as np

from kunita.io.frames import Frame, flip_points
from kunita.io.landmark_files.format import Format, decimal
from kunita.io.landmark_files.reading import Listed, Reading
from kunita.io.landmark_files.table import LandmarkTable
from kunita.io.landmark_files.text import Line, Text

KINDS = ("point", "index")
COUNT = re.compile(r"0*[1-9]\d{0,8}", re.ASCII)


def recognises(text: Text) -> bool:
    """Whether the first line is `point`, `index` or one whole number, and a line with a number or
    numbers follows.
    """
    first = text.lines[0].text.split()
    return first[0] in KINDS or (
        len(first) == 1 and len(text.lines) > 1 and COUNT.fullmatch(first[0]) is not None
    )


def read(text: Text, reading: Reading) -> tuple[LandmarkTable, ...]:
    """One table, without names."""
    words = [(line, word) for line in text.lines for word in line.text.split()]
    kind = words[0][1] if words[0][1] in KINDS else "index"
    counted = words[1:] if words[0][1] in KINDS else words
    listed = _listed(text, counted)
    if kind == "index":
        return (reading.indexed(text, listed, base=0),)
    return (reading.world(text, listed, default=_default(listed)),)


def _listed(text: Text, counted: list[tuple[Line, str]]) -> Listed:
    """The number of points, then as many times two or three numbers."""
    if not counted:
        raise text.refusal(text.lines[-1], "the number of points", "the end of the file")
    line, word = counted[0]
    if not COUNT.fullmatch(word):
        raise text.refusal(line, "the number of points", word)
    n, words = int(word), counted[1:]
    dimensions = _dimensions(words)
    if len(words) not in [n * d for d in dimensions]:
        expected = f"{n} points of {' or '.join(map(str, dimensions))} coordinates"
        raise text.refusal(text.lines[-1], expected, f"{len(words)} numbers")
    d = len(words) // n
    points = [
        text.point(words[i][0], [word for _, word in words[i : i + d]]) for i in range(0, n * d, d)
    ]
    return Listed(np.array(points))


def _dimensions(words: list[tuple[Line, str]]) -> tuple[int, ...]:
    """What the first row of coordinates allows the dimension to be.

    A row of two or three numbers is one point. Were the count alone to tell, two of three points in
    3-D, which is what is left of a file cut short, would pass for three in 2-D. Rows of any other
    width are free-form.
    """
    width = sum(line == words[0][0] for line, _ in words)
    return (width,) if width in (2, 3) else (2, 3)


def _default(listed: Listed) -> Frame | None:
    return Frame.LPS if listed.points.shape[1] == 3 else None


def render(path: Path, tables: tuple[LandmarkTable, ...], frame: Frame) -> str:
    """One list of world points."""
    (table,) = tables
    rows = [" ".join(map(decimal, point)) for point in flip_points(table.points, frame)]
    return "\n".join(("point", str(len(table)), *rows)) + "\n"


def recognises_output(text: Text) -> bool:
    """Whether the first line is one of `outputpoints.txt`."""
    return text.lines[0].text.startswith("Point") and "OutputPoint" in text.lines[0].text


def read_output(text: Text, reading: Reading) -> tuple[LandmarkTable, ...]:
    """The points that transformix was given and the points that it made of them."""
    volumes = [_bracketed(text, field) for field in ("InputPoint", "OutputPoint")]
    if volumes[0].points.shape != volumes[1].points.shape:
        raise text.refusal(
            None, "input and output points of one dimension", [v.points.shape for v in volumes]
        )
    return tuple(reading.world(text, listed, default=_default(listed)) for listed in volumes)


def _bracketed(text: Text, field: str) -> Listed:
    """The numbers in the brackets after a field, on every line as many."""
    found = [(line, re.search(rf"\b{field}\s*=\s*\[([^\]]*)\]", line.text)) for line in text.lines]
    points: list[tuple[float, ...]] = []
    for line, match in found:
        words = match[1].split() if match else []
        if len(words) not in (2, 3) or (points and len(words) != len(points[0])):
            raise text.refusal(
                line, f"{field} = [ 2 or 3 numbers, as on the first line ]", line.text
            )
        points.append(text.point(line, words))
    return Listed(np.array(points))


ELASTIX = Format(
    "elastix", recognises, read, (), (".pts", ".txt"), render, (Frame.LPS, Frame.IMAGE)
)
TRANSFORMIX = Format("transformix", recognises_output, read_output)
