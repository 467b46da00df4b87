"""What the figures of a study show: the same values for print and for the page."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from kunita import scores
from kunita.cohort.study_findings import OWN
from kunita.cohort.study_tables import Collected, coverage_band, difference_row
from kunita.figures.calibration import Errors, Honesty, Sparsified

SURER = ("paper", "small", OWN)
"""Methods that are surer of one landmark than of another, as far as they are drawn."""


@dataclasses.dataclass(frozen=True, eq=False)
class Pictured:
    """Values to draw.

    Args:
        honesty: of every method.
        levels, band: (l,) and (2, l): the interval of our own method's coverage over cases.
        errors: of every method but `none`, whose distances would leave no room for the differences
            that matter.
        sparsified: of those that are surer of one landmark than of another.
    """

    honesty: tuple[Honesty, ...]
    levels: np.ndarray
    band: np.ndarray
    errors: tuple[Errors, ...]
    sparsified: tuple[Sparsified, ...]

    @property
    def own(self) -> Honesty:
        return next(one for one in self.honesty if one.own)


def pictured(found: Sequence[Collected], draws: np.ndarray) -> Pictured:
    """From what every method predicted; `draws` are those of `scores.case_draws`."""
    mine = next(one for one in found if one.method == OWN)
    return Pictured(
        tuple(Honesty(one.method, one.pits, own=one is mine) for one in found),
        np.array(scores.CALIBRATION_LEVELS),
        coverage_band(mine, draws)[1:],
        tuple(_compared(one, mine, draws) for one in found if one.method != "none"),
        tuple(_sparsified(one) for one in found if one.method in SURER),
    )


def _compared(one: Collected, mine: Collected, draws: np.ndarray) -> Errors:
    means = one.by_case(one.errors)
    if one is mine:
        return Errors(one.method, one.errors, means)
    apart = difference_row(one, mine, draws).error
    ends = None if apart.low is None or apart.high is None else (apart.low, apart.high)
    return Errors(one.method, one.errors, means, means - mine.by_case(mine.errors), ends)


def _sparsified(one: Collected) -> Sparsified:
    curve = one.sparsification
    mean = curve.oracle_mm[0]
    return Sparsified(
        one.method, curve.fractions, curve.remaining_mm / mean, curve.oracle_mm / mean, curve.area
    )
