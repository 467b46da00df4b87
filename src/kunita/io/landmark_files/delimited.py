"""Delimited: a text with comments, one header row, and rows of as many cells."""

import csv
import dataclasses
import io
from collections.abc import Sequence

from kunita.io.landmark_files.text import Line, Text


@dataclasses.dataclass(frozen=True)
class Delimited:
    """The parts of a delimited text; the header is in lower case, rows of empty cells are left out."""

    text: Text
    comments: tuple[Line, ...]
    header_line: Line
    header: tuple[str, ...]
    rows: tuple[tuple[Line, tuple[str, ...]], ...]

    def places(self, *names: str) -> list[int]:
        """The places of columns that must be there."""
        absent = [name for name in names if name not in self.header]
        if absent:
            raise self.text.refusal(
                self.header_line, f"a column {absent[0]!r}", self.header_line.text
            )
        return [self.header.index(name) for name in names]

    def column(self, *names: str) -> tuple[str, ...]:
        """The cells of the first of these columns that is there; empty strings if none is."""
        there = [name for name in names if name in self.header]
        if not there:
            return ("",) * len(self.rows)
        return tuple(cells[self.header.index(there[0])] for _, cells in self.rows)

    def points(self, *names: str) -> list[tuple[float, ...]]:
        """One point per row from the columns with these names."""
        places = self.places(*names)
        return [self.text.point(line, [cells[k] for k in places]) for line, cells in self.rows]


def is_comment(line: Line) -> bool:
    """A spreadsheet may have put quotes around it."""
    return line.text.lstrip(' "').startswith("#")


def header_of(text: Text) -> tuple[str, ...]:
    """The cells of the first line that is not a comment, in lower case; none if there is no such
    line.
    """
    line = next((line for line in text.lines if not is_comment(line)), None)
    return (
        () if line is None else tuple(cell.lower() for cell in text.cells(line, _delimiter(line)))
    )


def delimited(text: Text) -> Delimited:
    """Take a text apart; every row must have as many cells as the header, and no named column may
    come twice.
    """
    start = next((i for i, line in enumerate(text.lines) if not is_comment(line)), None)
    if start is None:
        raise text.refusal(text.lines[-1], "a header row", "the end of the file")
    line = text.lines[start]
    header = tuple(cell.lower() for cell in text.cells(line, _delimiter(line)))
    twice = [name for name in header if name and header.count(name) > 1]
    if twice:
        raise text.refusal(line, f"one column {twice[0]!r}", line.text)
    rows = tuple((row, text.cells(row, _delimiter(line))) for row in text.lines[start + 1 :])
    kept = tuple((row, cells) for row, cells in rows if any(cells))
    for row, cells in kept:
        if len(cells) != len(header):
            raise text.refusal(
                row, f"{len(header)} columns, as in the header", f"{len(cells)}: {row.text}"
            )
    return Delimited(text, text.lines[:start], line, header, kept)


def row(cells: Sequence[str], delimiter: str = ",") -> str:
    """One line of cells, quoted where that is needed to read them back."""
    line = io.StringIO()
    csv.writer(line, delimiter=delimiter, lineterminator="").writerow(cells)
    return line.getvalue()


def _delimiter(line: Line) -> str:
    """The header tells: a tab, else a comma, else a semicolon."""
    return next((mark for mark in ("\t", ",", ";") if mark in line.text), ",")
