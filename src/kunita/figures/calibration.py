"""The figures of a leave-one-out study: is the uncertainty true, how large are the errors, does it know which?"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kunita.figures.style import COLOURS, DASHES, MARKERS, PAGE_WIDTH, styled

BINS = 10
"""Of the histogram of the probability integral transform."""

OWN = COLOURS[2]
"""The colour of the method that a figure is about."""


@dataclasses.dataclass(frozen=True, eq=False)
class Honesty:
    """Whether the regions that a method predicts hold as many landmarks as they say.

    Args:
        label: of the method.
        pits: (n,) probability of the smallest region that holds each landmark.
        own: whether the figure is about this method: it is drawn with its band and its histogram.
    """

    label: str
    pits: np.ndarray
    own: bool = False


@styled
def calibration(methods: Sequence[Honesty], levels: np.ndarray, band: np.ndarray, title: str) -> Figure:
    """Coverage against what was promised, and the histogram of the probability integral transform.

    Args:
        methods: one of them the figure's own.
        levels: (l,) at which the band is known.
        band: (2, l) interval of the own method's coverage, over cases.
        title: of the histogram.
    """
    figure = Figure(figsize=(PAGE_WIDTH, 3.4), layout="constrained")
    curves, histogram = figure.subplots(1, 2, width_ratios=(1.25, 1))
    curves.plot([0, 100], [0, 100], color="0.6", linewidth=0.8)
    curves.fill_between(100 * levels, *(100 * band), color=OWN, alpha=0.18, linewidth=0)
    for k, one in enumerate(methods):
        _coverage(curves, one, k)
    curves.set(title="coverage", xlabel="nominal (%)", ylabel="landmarks inside (%)", xlim=(0, 100), ylim=(0, 100))
    for one in methods:
        if one.own:
            _histogram(histogram, one)
    histogram.set_title(title)
    handles, labels = curves.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 7), frameon=False)
    return figure


def _coverage(axes: Axes, one: Honesty, k: int) -> None:
    """The share of landmarks inside as a function of the level: steps, one for each landmark."""
    levels = np.concatenate([[0.0], np.sort(one.pits), [1.0]])
    share = np.concatenate([[0.0], np.arange(1, len(one.pits) + 1) / len(one.pits), [1.0]])
    style = {"color": OWN, "linewidth": 2.0, "zorder": 3} if one.own else _faint(k)
    axes.step(100 * levels, 100 * share, where="post", label=one.label, **style)


def _faint(k: int) -> dict:
    colours = [colour for colour in COLOURS if colour != OWN]
    return {"color": colours[k % len(colours)], "linestyle": DASHES[(k + 1) % len(DASHES)], "linewidth": 1.0}


def _histogram(axes: Axes, one: Honesty) -> None:
    """How often each probability came; the band is what honest predictions give by chance, two standard errors."""
    n = len(one.pits)
    counts, edges = np.histogram(one.pits, bins=BINS, range=(0, 1))
    axes.bar(edges[:-1], counts * BINS / n, width=1 / BINS, align="edge", color=OWN, alpha=0.55, edgecolor="white")
    chance = 2 * np.sqrt((BINS - 1) / n)
    axes.axhspan(1 - chance, 1 + chance, color="0.5", alpha=0.2, linewidth=0)
    axes.axhline(1.0, color="0.3", linewidth=0.8)
    axes.set(xlabel="probability of the region that just holds it", ylabel="density (1 if honest)", xlim=(0, 1))


# -------------------------------------------------------------------------------------------------------------- errors


@dataclasses.dataclass(frozen=True, eq=False)
class Errors:
    """The errors of a method, and how they compare with those of the figure's own, case by case.

    Args:
        label: of the method.
        errors_mm: (n,) of all landmarks.
        case_errors_mm: (k,) means of the cases.
        more_mm: (k,) the case means less the own method's; None for that one.
        interval_mm: of the mean of these, if there are enough cases.
    """

    label: str
    errors_mm: np.ndarray
    case_errors_mm: np.ndarray
    more_mm: np.ndarray | None = None
    interval_mm: tuple[float, float] | None = None


@styled
def errors(methods: Sequence[Errors], own: str) -> Figure:
    """Errors of left-out landmarks as boxes with every case's mean, and paired differences with their intervals."""
    figure = Figure(figsize=(PAGE_WIDTH, 1.2 + 0.3 * len(methods)), layout="constrained")
    boxes, paired = figure.subplots(1, 2, sharey=True)
    places = list(range(len(methods)))[::-1]
    for place, one in zip(places, methods, strict=True):
        _box(boxes, one, place, mine=one.label == own)
        if one.more_mm is not None:
            _difference(paired, one, place)
    paired.axvline(0.0, color="0.3", linewidth=0.8)
    boxes.set_yticks(places, [one.label for one in methods])
    boxes.set(xlabel="error of a left-out landmark (mm)", title="landmarks (box), means of cases (dots)")
    boxes.set_xlim(left=0)
    paired.set(xlabel=f"error more than {own}'s (mm)", title="differences by case, mean with 95 % interval")
    return figure


def _box(axes: Axes, one: Errors, place: int, *, mine: bool) -> None:
    drawn = axes.boxplot(
        [one.errors_mm], positions=[place], orientation="horizontal", widths=0.6, patch_artist=True, manage_ticks=False,
        showfliers=False, medianprops={"color": COLOURS[0]}, whiskerprops={"linewidth": 0.8},
    )  # fmt: skip
    drawn["boxes"][0].set(facecolor=OWN if mine else "0.93", alpha=0.6 if mine else 1.0, edgecolor="0.2", linewidth=0.8)
    axes.plot(one.case_errors_mm, np.full(len(one.case_errors_mm), place), MARKERS[0], color=COLOURS[1], ms=2.5, mew=0)


def _difference(axes: Axes, one: Errors, place: int) -> None:
    assert one.more_mm is not None  # its caller asked
    axes.plot(one.more_mm, np.full(len(one.more_mm), place), MARKERS[0], color=COLOURS[1], ms=2.5, mew=0)
    mean = float(one.more_mm.mean())
    if one.interval_mm is not None:
        axes.plot(
            one.interval_mm, [place, place], color=COLOURS[0], linewidth=1.6, solid_capstyle="butt", gid="interval"
        )
    axes.plot([mean], [place], MARKERS[3], color=COLOURS[0], ms=5)


# ------------------------------------------------------------------------------------------------------ sparsification


@dataclasses.dataclass(frozen=True, eq=False)
class Sparsified:
    """What is left of a method's mean error when its least sure predictions are set aside.

    Args:
        label: of the method.
        fractions: (n,) set aside.
        remaining, oracle: (n,) mean error of the rest over that of all; by predicted sd, and by the error itself.
        area: between the two.
    """

    label: str
    fractions: np.ndarray
    remaining: np.ndarray
    oracle: np.ndarray
    area: float


@styled
def sparsification(methods: Sequence[Sparsified], own: str) -> Figure:
    """One panel for each method that is surer of one landmark than of another."""
    figure = Figure(figsize=(PAGE_WIDTH, 2.6), layout="constrained")
    panels = figure.subplots(1, len(methods), sharey=True, squeeze=False)[0]
    for axes, one in zip(panels, methods, strict=True):
        percent = 100 * one.fractions
        colour = OWN if one.label == own else COLOURS[1]
        axes.fill_between(percent, one.oracle, one.remaining, color=colour, alpha=0.15, linewidth=0)
        axes.plot(percent, one.remaining, color=colour, label="by predicted sd")
        axes.plot(percent, one.oracle, color=COLOURS[0], linestyle=DASHES[1], linewidth=0.9, label="by true error")
        axes.axhline(1.0, color="0.6", linewidth=0.8)
        axes.set(title=f"{one.label}: area {one.area:.2f}", xlabel="set aside (%)", xlim=(0, 100))
    panels[0].set(ylabel="mean error of the rest / of all", ylim=(0, None))
    panels[0].legend(loc="lower left", frameon=False)
    return figure
