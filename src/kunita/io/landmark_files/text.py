"""The text of a landmark file, and the refusals that name its lines."""

import csv
import dataclasses
import functools
import json
import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kunita.errors import FileError

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
MISSING = re.compile(r"|na|n/a|[+-]?nan(\(\w*\))?", re.IGNORECASE)
"""What stands where a number should, when the point was never put down."""


@dataclasses.dataclass(frozen=True)
class Line:
    """A line that is not blank, and its number from 1."""

    number: int
    text: str


@dataclasses.dataclass(frozen=True)
class Text:
    """What a file says. Lines end at line feeds only, so that no exotic separator inside a name
    ends one.
    """

    path: Path
    content: str

    @functools.cached_property
    def lines(self) -> tuple[Line, ...]:
        numbered = enumerate(self.content.split("\n"), start=1)
        return tuple(Line(number, text) for number, text in numbered if text.strip())

    def refusal(self, line: Line | None, expected: str, found: object) -> FileError:
        """The error that says what was expected on a line and what was found."""
        return FileError.at(self.path, None if line is None else line.number, expected, found)

    def document(self, expected: str) -> Any:
        """What the text says as JSON."""
        try:
            return json.loads(self.content)
        except json.JSONDecodeError as error:
            raise self.refusal(Line(error.lineno, ""), expected, error.msg) from error
        except (RecursionError, ValueError) as error:  # brackets or digits past Python's limits
            raise self.refusal(None, expected, str(error)) from error

    def cells(self, line: Line, delimiter: str = ",") -> tuple[str, ...]:
        """The fields of a line; a quoted one may hold the delimiter, and twice a quote for one."""
        try:
            row = next(csv.reader([line.text], delimiter=delimiter, skipinitialspace=True))
        except csv.Error as error:
            raise self.refusal(line, f"fields separated by {delimiter!r}", line.text) from error
        return tuple(cell.strip() for cell in row)

    def number(self, line: Line, cell: str) -> float:
        """A finite number."""
        value = float(cell) if NUMBER.fullmatch(cell) else math.nan
        if not math.isfinite(value):
            raise self.refusal(line, "a finite number", cell)
        return value

    def numbers(self, line: Line, cells: Sequence[str], what: str) -> tuple[float, ...]:
        """Finite numbers, or, if every cell says that there is none, as many NaN."""
        missing = [MISSING.fullmatch(cell) is not None for cell in cells]
        if all(missing):
            return (math.nan,) * len(cells)
        if any(missing):
            raise self.refusal(line, f"all of {what} or none", ", ".join(cells))
        return tuple(self.number(line, cell) for cell in cells)

    def point(self, line: Line, cells: Sequence[str]) -> tuple[float, ...]:
        """The coordinates of a point; NaN for one that is listed but undefined."""
        return self.numbers(line, cells, "a point's coordinates")


def read_text(path: str | os.PathLike) -> Text:
    """Read a file as UTF-8, with or without a byte order mark, whatever its line ends."""
    place = Path(path)
    try:
        data = place.read_bytes()
    except FileNotFoundError as error:
        raise FileError(f"{place}: no such file") from error
    except IsADirectoryError as error:
        raise FileError(f"{place}: a directory, not a file") from error
    except (OSError, ValueError) as error:
        raise FileError(
            f"{place}: cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from error
    content = _decoded(place, data).replace("\r\n", "\n").replace("\r", "\n")
    if not content.strip():
        raise FileError.at(place, 1, "landmarks", "an empty file")
    return Text(place, content)


def _decoded(place: Path, data: bytes) -> str:
    try:
        content = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise FileError.at(
            place, line, "text in UTF-8", data[error.start : error.start + 8]
        ) from error
    if "\0" in content:
        line = content[: content.index("\0")].count("\n") + 1
        raise FileError.at(place, line, "text", "binary data")
    return content
