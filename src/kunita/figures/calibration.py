"""The figures of a leave-one-out study: is the uncertainty true, how large are the errors, does it
know which?
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kunita.figures import themed
from kunita.figures.style import COLOURS, DASHES, MARKERS, PAGE_WIDTH, styled

BINS = 10
"""Of the histogram of the probability integral transform."""

Colour = str | tuple[str, float]
"""With its opacity, where that is not one."""


@dataclasses.dataclass(frozen=True)
class Palette:
    """The colours of a figure.

    Args:
        own: of the method that it is about.
        other: of what is compared with it.
        ink, faint: of lines that say something, and of those to hold on to.
        shade: of areas in the background.
        gap: between bars.
        methods: of the lines of other methods, which dashes tell apart too.
    """

    own: str
    other: str
    ink: str
    faint: str
    shade: Colour
    gap: str
    methods: tuple[str, ...]


PRINT = Palette(
    COLOURS[2], COLOURS[1], COLOURS[0], "0.6", "0.93", "white", (*COLOURS[:2], *COLOURS[3:])
)
SCREEN = Palette(
    themed.SECOND,
    themed.ACCENT,
    themed.INK,
    themed.FAINT,
    (themed.FAINT, 0.25),
    "none",
    (themed.INK, themed.ACCENT, themed.THIRD),
)
"""The same, as a page that may be light or dark has them."""


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
def calibration(
    methods: Sequence[Honesty], levels: np.ndarray, band: np.ndarray, title: str
) -> Figure:
    """Coverage against what was promised, and the histogram of the probability integral transform.

    Args:
        methods: one of them the figure's own.
        levels: (l,) at which the band is known.
        band: (2, l) interval of the own method's coverage, over cases.
        title: of the histogram.
    """
    figure = Figure(figsize=(PAGE_WIDTH, 3.4), layout="constrained")
    curves, histogram = figure.subplots(1, 2, width_ratios=(1.25, 1))
    coverage_panel(curves, methods, levels, band, PRINT)
    curves.set_title("coverage")
    for one in methods:
        if one.own:
            histogram_panel(histogram, one, PRINT)
    histogram.set_title(title)
    handles, labels = curves.get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=min(len(labels), 7), frameon=False
    )
    return figure


def coverage_panel(
    axes: Axes, methods: Sequence[Honesty], levels: np.ndarray, band: np.ndarray, palette: Palette
) -> None:
    """The share of landmarks inside their regions against what was promised."""
    axes.plot([0, 100], [0, 100], color=palette.faint, linewidth=0.8)
    axes.fill_between(100 * levels, *(100 * band), color=palette.own, alpha=0.18, linewidth=0)
    for k, one in enumerate(methods):
        _coverage(axes, one, k, palette)
    axes.set(xlabel="nominal (%)", ylabel="landmarks inside (%)", xlim=(0, 100), ylim=(0, 100))


def _coverage(axes: Axes, one: Honesty, k: int, palette: Palette) -> None:
    """The share of landmarks inside as a function of the level: steps, one for each landmark."""
    levels = np.concatenate([[0.0], np.sort(one.pits), [1.0]])
    share = np.concatenate([[0.0], np.arange(1, len(one.pits) + 1) / len(one.pits), [1.0]])
    style = {"color": palette.own, "linewidth": 2.0, "zorder": 3} if one.own else _faint(k, palette)
    axes.step(100 * levels, 100 * share, where="post", label=one.label, **style)


def _faint(k: int, palette: Palette) -> dict:
    colour = palette.methods[k % len(palette.methods)]
    return {"color": colour, "linestyle": DASHES[(k + 1) % len(DASHES)], "linewidth": 1.0}


def histogram_panel(axes: Axes, one: Honesty, palette: Palette) -> None:
    """How often each probability came; the band is what honest predictions give by chance, two
    standard errors.
    """
    n = len(one.pits)
    counts, edges = np.histogram(one.pits, bins=BINS, range=(0, 1))
    heights = counts * BINS / n
    axes.bar(
        edges[:-1],
        heights,
        width=1 / BINS,
        align="edge",
        color=palette.own,
        alpha=0.55,
        edgecolor=palette.gap,
    )
    chance = 2 * np.sqrt((BINS - 1) / n)
    axes.axhspan(1 - chance, 1 + chance, color=palette.faint, alpha=0.25, linewidth=0)
    axes.axhline(1.0, color=palette.ink, linewidth=0.8)
    axes.set(
        xlabel="probability of the region that just holds it",
        ylabel="density (1 if honest)",
        xlim=(0, 1),
    )


# ------------------------------------------------------------------------------------------- errors


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
    """Errors of left-out landmarks as boxes with every case's mean, and paired differences with
    their intervals.
    """
    figure = Figure(figsize=(PAGE_WIDTH, 1.2 + 0.3 * len(methods)), layout="constrained")
    boxes, paired = figure.subplots(1, 2, sharey=True)
    box_panel(boxes, methods, own, PRINT)
    difference_panel(paired, methods, own, PRINT)
    boxes.set_title("landmarks (box), means of cases (dots)")
    paired.set_title("differences by case, mean with 95 % interval")
    return figure


def box_panel(axes: Axes, methods: Sequence[Errors], own: str, palette: Palette) -> None:
    """A row for each method: the errors of all landmarks, and the means of cases."""
    for place, one in zip(_places(axes, methods), methods, strict=True):
        _box(axes, one, place, palette, mine=one.label == own)
    axes.set(xlabel="error of a left-out landmark (mm)")
    axes.set_xlim(left=0)


def difference_panel(axes: Axes, methods: Sequence[Errors], own: str, palette: Palette) -> None:
    """A row for each method: by how much it misses more than our own, case by case."""
    for place, one in zip(_places(axes, methods), methods, strict=True):
        if one.more_mm is not None:
            _difference(axes, one, place, palette)
    axes.axvline(0.0, color=palette.ink, linewidth=0.8)
    axes.set(xlabel=f"error more than {own}'s (mm)")


def _places(axes: Axes, methods: Sequence[Errors]) -> list[int]:
    """The rows of the methods, from the top, under their names."""
    places = list(range(len(methods)))[::-1]
    axes.set_yticks(places, [one.label for one in methods])
    axes.set_ylim(-0.6, len(methods) - 0.4)
    return places


def _box(axes: Axes, one: Errors, place: int, palette: Palette, *, mine: bool) -> None:
    thin = {"linewidth": 0.8, "color": palette.ink}
    drawn = axes.boxplot(
        [one.errors_mm],
        positions=[place],
        orientation="horizontal",
        widths=0.6,
        patch_artist=True,
        manage_ticks=False,
        showfliers=False,
        medianprops={"color": palette.ink},
        whiskerprops=thin,
        capprops=thin,
    )
    drawn["boxes"][0].set(
        facecolor=(palette.own, 0.6) if mine else palette.shade,
        edgecolor=palette.ink,
        linewidth=0.8,
    )
    _dots(axes, one.case_errors_mm, place, palette)


def _dots(axes: Axes, values: np.ndarray, place: int, palette: Palette) -> None:
    axes.plot(values, np.full(len(values), place), MARKERS[0], color=palette.other, ms=2.5, mew=0)


def _difference(axes: Axes, one: Errors, place: int, palette: Palette) -> None:
    assert one.more_mm is not None  # its caller asked
    _dots(axes, one.more_mm, place, palette)
    mean = float(one.more_mm.mean())
    if one.interval_mm is not None:
        axes.plot(
            one.interval_mm,
            [place, place],
            color=palette.ink,
            linewidth=1.6,
            solid_capstyle="butt",
            gid="interval",
        )
    axes.plot([mean], [place], MARKERS[3], color=palette.ink, ms=5)


# ----------------------------------------------------------------------------------- sparsification


@dataclasses.dataclass(frozen=True, eq=False)
class Sparsified:
    """What is left of a method's mean error when its least sure predictions are set aside.

    Args:
        label: of the method.
        fractions: (n,) set aside.
        remaining, oracle: (n,) mean error of the rest over that of all; by predicted sd, and by the
            error itself.
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
        sparsification_panel(axes, one, PRINT, mine=one.label == own)
        axes.set_title(f"{one.label}: area {one.area:.2f}")
    panels[0].set(ylabel="mean error of the rest / of all", ylim=(0, None))
    panels[0].legend(loc="lower left", frameon=False)
    return figure


def sparsification_panel(axes: Axes, one: Sparsified, palette: Palette, *, mine: bool) -> None:
    """What is left of the mean error when the least sure predictions are set aside, and the least
    that could be.
    """
    percent, colour = 100 * one.fractions, palette.own if mine else palette.other
    axes.fill_between(percent, one.oracle, one.remaining, color=colour, alpha=0.15, linewidth=0)
    axes.plot(percent, one.remaining, color=colour, label="by predicted sd")
    axes.plot(
        percent,
        one.oracle,
        color=palette.ink,
        linestyle=DASHES[1],
        linewidth=0.9,
        label="by true error",
    )
    axes.axhline(1.0, color=palette.faint, linewidth=0.8)
    axes.set(xlabel="set aside (%)", xlim=(0, 100))
