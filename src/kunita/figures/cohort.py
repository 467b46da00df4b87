"""The figures of a cohort's page, in the page's colours: every case, and whether the uncertainty is
true.
"""

import dataclasses
import unicodedata
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator

from kunita.figures import calibration as panels
from kunita.figures.calibration import SCREEN, Errors, Honesty, Sparsified
from kunita.figures.themed import ACCENT, FAINT, INK, SECOND, WARN, shortened, themed
from kunita.scores import calibrated_coverage

WIDTH = 6.0
"""Inches, as the figures of a registration's page."""

MOST_NAMES, LONGEST_NAME = 60, 14.0
"""More cases than that have rows without names; and the width of a name, in letter sizes."""

MOST_DOTS = 5000
"""More landmarks than that are not drawn one by one."""

MUCH = 2.0
"""Distances before that are so many times all others are at the edge of the axis: they would leave
no room."""


@dataclasses.dataclass(frozen=True, eq=False)
class CaseErrors:
    """A case: its name, (n,) errors of its landmarks, each left out, and means before and with
    rigid alignment; mm.

    Args:
        inside: how many of them lie inside their 95 % region.
    """

    label: str
    errors_mm: np.ndarray
    inside: int
    before_mm: float
    rigid_mm: float

    @property
    def mean_mm(self) -> float:
        return float(self.errors_mm.mean())


@themed
def case_errors(cases: Sequence[CaseErrors], own: str) -> Figure:
    """A row for each case: the mean error before, with rigid alignment and with our own, and every
    landmark.

    Args:
        cases: in the order of their rows, from the top.
        own: what our own method is called.
    """
    figure, axes = _rows([one.label for one in cases])
    rows, means = np.arange(len(cases)), np.array([one.mean_mm for one in cases])
    before, rigid = (
        np.array([getattr(one, name) for one in cases]) for name in ("before_mm", "rigid_mm")
    )
    dots = sum(len(one.errors_mm) for one in cases) <= MOST_DOTS
    most = max(
        float(rigid.max()),
        float(means.max()),
        *(float(one.errors_mm.max()) for one in cases if dots),
    )
    end = 1.05 * (max(most, float(before.max())) if before.max() < MUCH * most else most)
    if dots:
        for row, one in enumerate(cases):
            axes.plot(
                one.errors_mm,
                np.full(len(one.errors_mm), row),
                "o",
                ms=2.6,
                mew=0,
                color=FAINT,
                alpha=0.75,
            )
    far = before > end
    if not far.all():
        axes.plot(before[~far], rows[~far], "|", ms=8, mew=1.6, color=INK, label="before")
    if far.any():
        words = f"before, up to {before.max():.0f} mm"
        axes.plot(
            np.full(far.sum(), 0.985 * end), rows[far], ">", ms=4.5, mew=0, color=INK, label=words
        )
    axes.plot(rigid, rows, "o", ms=5.2, mew=1.2, mfc="none", color=ACCENT, label="rigid, left out")
    axes.plot(means, rows, "D", ms=4.8, mew=0, color=SECOND, label=f"{own}, left out", zorder=3)
    axes.set(
        xlim=(0, end or 1.0),
        xlabel="error (mm): means of cases" + (", and landmarks (grey)" if dots else ""),
    )
    _legend(figure, axes)
    return figure


@themed
def case_coverage(cases: Sequence[CaseErrors]) -> Figure:
    """A row for each case: the share of its landmarks inside their 95 % region, and what chance
    allows.
    """
    figure, axes = _rows([one.label for one in cases])
    rows, counts = np.arange(len(cases)), np.array([len(one.errors_mm) for one in cases])
    shares = np.array([one.inside for one in cases]) / counts
    low, high = (np.array(ends) for ends in zip(*(_by_chance(int(n)) for n in counts), strict=True))
    axes.hlines(
        rows,
        100 * low,
        100 * high,
        color=FAINT,
        alpha=0.55,
        linewidth=5,
        label="honest regions, by chance",
    )
    few = shares < low
    axes.plot(100 * shares[~few], rows[~few], "D", ms=4.8, mew=0, color=SECOND, zorder=3)
    axes.plot(100 * shares[few], rows[few], "X", ms=7, mew=0, color=WARN, zorder=3)
    for row, one in enumerate(cases[:MOST_NAMES]):
        words = f"{one.inside}/{len(one.errors_mm)}" if len(cases) <= MOST_NAMES else ""
        axes.text(1.02, row, words, transform=axes.get_yaxis_transform(), va="center", fontsize=8)
    axes.axvline(95, color=INK, linestyle=":", linewidth=1.0, label="95 %")
    axes.set(xlim=(axes.get_xlim()[0], 101), xlabel="landmarks inside their 95 % region (%)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7))
    _legend(figure, axes)
    return figure


def _by_chance(n: int) -> tuple[float, float]:
    """Between which shares n honest regions of 95 % hold their landmarks, 95 % of the time."""
    low, high = calibrated_coverage(n, np.array([0.95]), 0.95)
    return float(low[0]), float(high[0])


@themed
def coverage(methods: Sequence[Honesty], levels: np.ndarray, band: np.ndarray) -> Figure:
    """Coverage of every method against what was promised, with the band of our own over cases."""
    figure, axes = _panel(3.6 + 0.2 * (len(methods) // 5))
    panels.coverage_panel(axes, methods, levels, band, SCREEN)
    axes.set_xlabel("promised (%)")
    _legend(figure, axes)
    return figure


@themed
def transform_histogram(one: Honesty) -> Figure:
    """Where landmarks fell in their predicted distributions."""
    figure, axes = _panel(3.4)
    panels.histogram_panel(axes, one, SCREEN)
    return figure


@themed
def method_errors(methods: Sequence[Errors], own: str) -> Figure:
    """Errors of all landmarks as boxes, with every case's mean."""
    figure, axes = _panel(0.8 + 0.3 * len(methods))
    panels.box_panel(axes, methods, own, SCREEN)
    axes.grid(visible=False, axis="y")
    return figure


@themed
def method_differences(methods: Sequence[Errors], own: str) -> Figure:
    """By how much other methods miss more, case by case, and the mean with its interval."""
    others = [one for one in methods if one.more_mm is not None]
    figure, axes = _panel(0.8 + 0.3 * len(methods))
    panels.difference_panel(axes, others, own, SCREEN)
    axes.grid(visible=False, axis="y")
    return figure


@themed
def sparsification(one: Sparsified) -> Figure:
    """What is left of the mean error when the least sure predictions are set aside."""
    figure, axes = _panel(3.0)
    panels.sparsification_panel(axes, one, SCREEN, mine=True)
    axes.set(ylabel="mean error of the rest / of all", ylim=(0, None))
    _legend(figure, axes)
    return figure


# --------------------------------------------------------------------------------------------- axes


def _panel(height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, figure.subplots()


def _rows(names: Sequence[str]) -> tuple[Figure, Axes]:
    """A figure with a row for each name; many rows are close together, and have none."""
    n = len(names)
    figure, axes = _panel(1.0 + (0.24 if n <= 16 else 0.175) * min(n, MOST_NAMES))
    labels = [shortened(name, LONGEST_NAME) for name in names] if n <= MOST_NAMES else []
    axes.set_yticks(np.arange(len(labels)), labels)
    _make_room(figure, max(map(_num_wide, labels), default=0))
    axes.set_ylim(n - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
    return figure, axes


def _num_wide(text: str) -> int:
    """Letters that are as wide as they are high, in the page's fonts."""
    return sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)


def _make_room(figure: Figure, num_wide: int) -> None:
    """At the left, for letters that the fonts in which the figure is measured do not have."""
    room, engine = 0.05 * num_wide / WIDTH, figure.get_layout_engine()
    if isinstance(engine, ConstrainedLayoutEngine):
        engine.set(rect=(room, 0.0, 1.0 - room, 1.0))


def _legend(figure: Figure, axes: Axes) -> None:
    """Above the axes."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside upper left",
        ncols=4,
        borderpad=0.2,
        columnspacing=1.4,
        handletextpad=0.5,
        handlelength=2.2,
    )
