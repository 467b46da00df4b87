"""What an experiment gives: tables of numbers, figures, and its conclusions in words."""

import dataclasses
from collections.abc import Callable
from typing import Any

from matplotlib.figure import Figure

PAPER_AMPLITUDE_MM, PAPER_NOISE_MM = 1.0, 0.5**0.5
"""The paper's kernel has amplitude 1 (`eq:cov-fun` of [wassermann:14]), and its data term ‖·‖² is
the noise D = ½I."""

Progress = Callable[[float], None]
"""Told the fraction that is done."""

Tell = Callable[[str], Progress]
"""Told what begins; gives what is to be told how far it is."""


def silent(_description: str) -> Progress:
    """A `Tell` that nobody listens to."""
    return lambda fraction: None


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows of one frozen dataclass of plain values, whose fields are the columns; units are part of
    their names.
    """

    name: str
    rows: tuple[Any, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(field.name for field in dataclasses.fields(self.rows[0])) if self.rows else ()


@dataclasses.dataclass(frozen=True)
class Plate:
    """A figure and the stem of its file names."""

    name: str
    figure: Figure


@dataclasses.dataclass(frozen=True)
class Experiment:
    """An experiment that was run: how it was set up, what came out, and what that says.

    Args:
        name: the experiment's name on the command line, and the stem of its document.
        settings: a frozen dataclass of plain values: everything that is needed to run it again.
        tables: all numbers; the first is the experiment's main table.
        plates: all figures.
        findings: sentences made from the numbers.
        beside: names of further files that are written with it.
    """

    name: str
    settings: Any
    tables: tuple[Table, ...]
    plates: tuple[Plate, ...]
    findings: tuple[str, ...]
    beside: tuple[str, ...] = ()
