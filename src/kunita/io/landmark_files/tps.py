"""Morphometrics' `.tps`: one block of landmarks per specimen, in pixels, times SCALE if every
specimen has one.

tpsDig counts y from the lower edge of the image upwards, so pixels need the image's height before
they are points.
"""

import dataclasses
import re

import numpy as np

from kunita.errors import FileError
from kunita.io.frames import Frame
from kunita.io.landmark_files.format import Format
from kunita.io.landmark_files.reading import Listed, Reading
from kunita.io.landmark_files.table import GIVEN, LandmarkTable
from kunita.io.landmark_files.text import Line, Text

START = re.compile(r"\s*LM(3?)\s*=\s*(\d{1,9})\s*", re.IGNORECASE | re.ASCII)
FIELD = re.compile(r"\s*(\w+)\s*=\s*(.*?)\s*")


@dataclasses.dataclass(frozen=True, eq=False)
class Specimen:
    """A block: its landmarks as they are in the file, its scale, and what identifies it."""

    points: np.ndarray
    scale: float | None
    identity: str


def recognises(text: Text) -> bool:
    """Whether the first line is LM= or LM3=."""
    return START.fullmatch(text.lines[0].text) is not None


def read(text: Text, reading: Reading) -> tuple[LandmarkTable, ...]:
    """One table per specimen."""
    starts = [i for i, line in enumerate(text.lines) if START.fullmatch(line.text)]
    if not starts or starts[0] != 0:
        raise text.refusal(text.lines[0], "LM=n or LM3=n", text.lines[0].text)
    stops = (*starts[1:], len(text.lines))
    specimens = [_specimen(text, text.lines[a:b]) for a, b in zip(starts, stops, strict=True)]
    scaled = all(specimen.scale is not None for specimen in specimens)
    return tuple(_table(text, reading, specimen, scaled) for specimen in specimens)


def _specimen(text: Text, lines: tuple[Line, ...]) -> Specimen:
    match = START.fullmatch(lines[0].text)
    assert match is not None  # the lines were cut there
    d, n = 3 if match[1] else 2, int(match[2])
    rows = [(line, line.text.split()) for line in lines[1 : n + 1]]
    for line, words in rows:
        if len(words) != d:
            raise text.refusal(line, f"{d} coordinates", line.text)
    if len(rows) < n:
        raise text.refusal(lines[-1], f"{n} landmarks", f"{len(rows)} before the block ends")
    points = np.array([text.point(line, words) for line, words in rows]).reshape(-1, d)
    fields = _fields(text, lines[n + 1 :])
    scales = [text.number(line, value) for line, key, value in fields if key == "SCALE"]
    if scales and not scales[0] > 0:
        raise text.refusal(lines[0], "a SCALE above zero", scales[0])
    identity = " ".join(
        value for name in ("ID", "IMAGE") for _, key, value in fields if key == name
    )
    return Specimen(points, scales[0] if scales else None, identity)


def _fields(text: Text, lines: tuple[Line, ...]) -> list[tuple[Line, str, str]]:
    """The KEY=value lines of a block; the points of its curves are passed over."""
    fields, skipped = [], 0
    for line in lines:
        match = FIELD.fullmatch(line.text)
        if match is None and not skipped:
            raise text.refusal(line, "KEY=value after the landmarks", line.text)
        skipped = max(skipped - 1, 0)
        if match is not None:
            fields.append((line, match[1].upper(), match[2]))
            skipped = (
                max(0, int(text.number(line, match[2]))) if match[1].upper() == "POINTS" else 0
            )
    return fields


def _table(text: Text, reading: Reading, specimen: Specimen, scaled: bool) -> LandmarkTable:
    n = len(specimen.points)
    names = tuple(str(i) for i in range(1, n + 1))
    listed = Listed(specimen.points, names, None, (specimen.identity,) * n)
    scale = specimen.scale if scaled and specimen.scale is not None else None
    if specimen.points.shape[1] == 2 and reading.frame is None:
        return _upright(text, reading, listed, scale)
    return reading.world(
        text, listed if scale is None else listed.scaled(scale), calibrated=scale is not None
    )


def _upright(text: Text, reading: Reading, listed: Listed, scale: float | None) -> LandmarkTable:
    """Pixels whose y was counted from the lower edge of the image, counted from the upper one."""
    if reading.image is None:
        raise FileError(
            f"{text.path}: y may count from the image's lower edge: give the image (image=) to turn it over, "
            "or --frame IMAGE (frame=) if y already counts downwards"
        )
    reading.refuse_index_options(text)
    grid = reading.grid(text, 2)
    pixels = np.stack([listed.points[:, 0], grid.shape[1] - listed.points[:, 1]], axis=1)
    points = grid.world(pixels) if scale is None else pixels * scale
    return dataclasses.replace(listed, points=points).table(Frame.IMAGE, GIVEN)


TPS = Format("tps", recognises, read, own_suffixes=(".tps",))
