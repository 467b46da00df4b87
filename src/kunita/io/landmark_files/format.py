"""Format: one outside convention for landmark files, and what it can hold."""

import dataclasses
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path

from kunita.errors import FileError
from kunita.io.frames import Frame
from kunita.io.landmark_files.reading import Reading
from kunita.io.landmark_files.table import LandmarkTable
from kunita.io.landmark_files.text import Text


@dataclasses.dataclass(frozen=True)
class Format:
    """How files of one convention are recognised, read and, if Kunita writes them, rendered.

    Args:
        name: what users call it.
        recognises: whether a text is in this format.
        read: the tables that a text lists.
        own_suffixes: ends of file names that are always this format, and the first the usual one.
        shared_suffixes: ends of file names that others use too.
        render: the text of some tables in a frame; None if the format is only read.
        frames: those it can be written in; the first of a dimension is taken unless another is
            asked for.
        keeps: the fields of a table that survive, beside the points; "undefined" for undefined
            points.
        volumes: how many tables one file can hold when written.
    """

    name: str
    recognises: Callable[[Text], bool]
    read: Callable[[Text, Reading], tuple[LandmarkTable, ...]]
    own_suffixes: tuple[str, ...] = ()
    shared_suffixes: tuple[str, ...] = ()
    render: Callable[[Path, tuple[LandmarkTable, ...], Frame], str] | None = None
    frames: tuple[Frame, ...] = ()
    keeps: frozenset[str] = frozenset()
    volumes: int = 1


def decimal(number: float) -> str:
    """The shortest decimal that reads back as the same double; zero without a sign."""
    return repr(float(number) + 0.0)


def one_line(path: Path, strings: Sequence[str], forbidden: str = "") -> None:
    """Refuse names and descriptions that a format of lines cannot hold: control characters, and
    those forbidden.
    """
    for row, string in enumerate(strings, start=1):
        bad = [c for c in string if unicodedata.category(c) in ("Cc", "Cs") or c in forbidden]
        if bad:
            raise FileError(
                f"{path}: row {row}: {string!r:.80} cannot be written in this format: it has a {bad[0]!r}"
            )
