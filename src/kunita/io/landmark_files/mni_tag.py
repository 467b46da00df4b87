"""MNI tag points, `.tag`, of one volume or two: world mm of MINC, which is RAS.

MNI Tag Point File
Volumes = 2;
% a comment
Points =
 x1 y1 z1 x2 y2 z2 [weight structure patient] ["label"]
 …;
"""

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from kunita.errors import FileError
from kunita.io.frames import Frame, flip_points
from kunita.io.landmark_files.format import Format, decimal, one_line
from kunita.io.landmark_files.reading import Listed, Reading
from kunita.io.landmark_files.table import LandmarkTable
from kunita.io.landmark_files.text import Line, Text

FIRST = "MNI Tag Point File"
HEADER_WORD = re.compile(r"[%#][^\n]*|[;=]|[^\s;=]+")
POINT_WORD = re.compile(r'[%#][^\n]*|"[^"\n]*"?|;|[^\s;]+')


@dataclasses.dataclass(frozen=True)
class Word:
    """A word, its line, and where in the text it ends."""

    text: str
    line: Line
    end: int


@dataclasses.dataclass(frozen=True)
class Record:
    """One tag: the line it ends on, its coordinates in every volume, and its label."""

    line: Line
    coordinates: tuple[str, ...]
    label: str


def recognises(text: Text) -> bool:
    """Whether the first line is the format's."""
    return text.content.startswith(FIRST)


def read(text: Text, reading: Reading) -> tuple[LandmarkTable, ...]:
    """One table per volume, with the same names."""
    if text.content.partition("\n")[0].rstrip() != FIRST:
        raise text.refusal(Line(1, ""), f"the line {FIRST!r}", text.content.partition("\n")[0])
    volumes, start = _header(text)
    records = _records(text, _words(text, POINT_WORD, start), 3 * volumes)
    names = tuple(record.label for record in records)
    tables = []
    for k in range(volumes):
        points = [
            text.point(record.line, record.coordinates[3 * k : 3 * k + 3]) for record in records
        ]
        tables.append(
            reading.world(text, Listed(np.array(points).reshape(-1, 3), names), default=Frame.RAS)
        )
    return tuple(tables)


def _words(text: Text, pattern: re.Pattern[str], start: int) -> Iterator[Word]:
    """The words from a place on, comments left out; the last is empty and marks the end of the
    file.
    """
    number, counted = 1, 0
    for match in pattern.finditer(text.content, start):
        number, counted = number + text.content.count("\n", counted, match.start()), match.start()
        if match[0][0] not in "%#":
            yield Word(match[0], Line(number, match[0]), match.end())
    yield Word("", Line(number, ""), len(text.content))


def _header(text: Text) -> tuple[int, int]:
    """The number of volumes, and where the points begin."""
    words = _words(text, HEADER_WORD, len(FIRST))
    found = [next(words, Word("", text.lines[-1], 0)) for _ in range(6)]
    for word, expected in zip(found, ("Volumes", "=", "", ";", "Points", "="), strict=True):
        if expected and word.text != expected:
            raise text.refusal(
                word.line, f"{expected!r} of 'Volumes = 1 or 2; Points ='", word.text
            )
    if found[2].text not in ("1", "2"):
        raise text.refusal(found[2].line, "1 or 2 volumes", found[2].text)
    return int(found[2].text), found[5].end


def _records(text: Text, words: Iterator[Word], width: int) -> list[Record]:
    """Coordinates may wrap over lines; what follows the last of them on its line belongs to it."""
    records: list[Record] = []
    found = list(words)
    at = 0
    while found[at].text not in (";", ""):
        coordinates = found[at : at + width]
        for word in coordinates:
            if word.text in (";", ""):
                raise text.refusal(
                    word.line, f"{width} coordinates per point", word.text or "the end of the file"
                )
        at += width
        line = coordinates[-1].line
        tail = _tail(found, at, line)
        at += len(tail)
        records.append(
            Record(line, tuple(word.text for word in coordinates), _label(text, line, tail))
        )
    if found[at].text != ";":
        raise text.refusal(found[at].line, "';' after the last point", "the end of the file")
    if found[at + 1].text:
        raise text.refusal(
            found[at + 1].line, "nothing after the ';' that ends the points", found[at + 1].text
        )
    return records


def _tail(found: list[Word], at: int, line: Line) -> list[Word]:
    end = at
    while found[end].text not in (";", "") and found[end].line.number == line.number:
        end += 1
    return found[at:end]


def _label(text: Text, line: Line, tail: list[Word]) -> str:
    """After the coordinates come nothing, a label, three numbers, or three numbers and a label."""
    words = [word.text for word in tail]
    if len(words) not in (0, 1, 3, 4):
        raise text.refusal(
            line, "[weight structure patient] [label] after the coordinates", " ".join(words)
        )
    for word in words[:3] if len(words) > 1 else ():
        text.number(line, word)
    label = words[-1] if len(words) in (1, 4) else ""
    if label.startswith('"') and (len(label) == 1 or not label.endswith('"')):
        raise text.refusal(line, "a quote at the end of the label", label)
    return label[1:-1] if label.startswith('"') else label


def render(path: Path, tables: tuple[LandmarkTable, ...], frame: Frame) -> str:
    """One or two volumes; the format has no way to write a quote inside a label."""
    names = _common_names(path, tables)
    one_line(path, names, forbidden='"')
    coordinates = np.hstack([flip_points(table.points, frame) for table in tables])
    rows = [
        f' {" ".join(map(decimal, point))} "{name}"'
        for point, name in zip(coordinates, names, strict=True)
    ]
    return f"{FIRST}\nVolumes = {len(tables)};\n\nPoints =\n" + "\n".join(rows) + ";\n"


def _common_names(path: Path, tables: tuple[LandmarkTable, ...]) -> tuple[str, ...]:
    """A tag has one label for all its volumes."""
    if len({len(table) for table in tables}) > 1:
        raise FileError(
            f"{path}: expected as many points in both volumes, found {[len(table) for table in tables]}"
        )
    named = {table.names for table in tables if any(table.names)}
    if len(named) > 1:
        raise FileError(f"{path}: expected the same names in both volumes: a tag has one label")
    return named.pop() if named else tables[0].names


MNI_TAG = Format(
    "tag",
    recognises,
    read,
    own_suffixes=(".tag",),
    render=render,
    frames=(Frame.RAS,),
    keeps=frozenset({"names"}),
    volumes=2,
)
