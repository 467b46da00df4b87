"""The figures of one registration's page: errors, calibration, Jacobian, solver and evidence, in
the page's colours.
"""

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from kunita.figures.themed import ACCENT, FAINT, INK, SECOND, WARN, shortened, text_width, themed
from kunita.inference.solve import Progress
from kunita.scores import calibrated_coverage

WIDTH = 6.0
"""Inches, that is 432 units of the drawing: a text of 8 has 9 pixels on a column of 480."""

MOST_NAMES = 60
"""More landmarks than that are curves without names."""

TEXT, LONGEST_NAME = 8.0, 14.0
"""The size of small text, and how many times that a landmark's name may be wide: some 22 letters.
"""

FEW = 60
"""Iterations with a marker each."""

MOST_COUNTED = 1_000_000
"""Determinants that the histogram counts, evenly spaced among more; the least is the least of all.
"""

BINS = 49

AFTER, LEFT_OUT = "after (fitted)", "left out (predicted from the others)"

WIDE, WIDE_VOLUMES, SPREAD = 15.0, 3.0, 50.0
"""Ratios from which an axis is logarithmic: the largest distance to the median, determinants, the
solver's numbers."""

CURVE_POINTS = 400

STEPS = ((0.7, (1, 1.5, 2, 3, 4, 5, 6, 8)), (2.3, (1, 2, 5)), (3.2, (1, 3)))
"""Numbers on a logarithmic axis of fewer decades than the first."""

RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

LOWEST = -12.0
"""Of the log evidence, relative to its best: what is below is as good as impossible."""


# ---------------------------------------------------------------------------------------- landmarks


@themed
def landmark_errors(
    names: Sequence[str],
    before: np.ndarray,
    after: np.ndarray,
    left_out: np.ndarray,
    suspect: np.ndarray,
) -> Figure:
    """How far every landmark is from its fixed point, mm; those that were predicted worst come
    first.

    Where the distances before are of another order than those that matter, the axis is logarithmic.

    Args:
        names: of the landmarks; those of many are not written.
        before, after: (n,) distances without and with the registration that was fitted to them.
        left_out: (n,) distances if a landmark is predicted from the others; NaN where that is not
            known.
        suspect: (n,) whether a landmark cannot be right.
    """
    before, after, left_out = (
        np.asarray(values, dtype=float) for values in (before, after, left_out)
    )
    found = _Errors(before, after, left_out, np.asarray(suspect, dtype=bool))
    order = np.argsort(-found.judged, kind="stable")
    if len(names) > MOST_NAMES:
        return _error_curves(found.shown(order))
    return _error_rows([shortened(names[i], LONGEST_NAME) for i in order], found.shown(order))


@dataclasses.dataclass(frozen=True, eq=False)
class _Errors:
    """Distances of the landmarks, mm, and the least that is told apart on a logarithmic axis; 0 if
    it is linear.
    """

    before: np.ndarray
    after: np.ndarray
    left_out: np.ndarray
    suspect: np.ndarray
    floor: float = 0.0

    @property
    def judged(self) -> np.ndarray:
        """What tells a landmark best: how far off it was predicted, where that is known."""
        return np.where(np.isfinite(self.left_out), self.left_out, self.after)

    @property
    def most(self) -> float:
        return float(np.nanmax([self.before, self.after, self.left_out], initial=0.0))

    def shown(self, order: np.ndarray) -> "_Errors":
        """In this order, none less than what the axis can show."""
        others = np.concatenate([self.after, self.judged])
        typical, positive = float(np.median(others)) if others.size else 0.0, others[others > 0]
        wide = 0 < WIDE * typical < self.most
        floor = max(1e-4 * self.most, 0.7 * float(positive.min())) if wide else 0.0
        before, after, left_out = (
            np.maximum(v, floor)[order] for v in (self.before, self.after, self.left_out)
        )
        return _Errors(before, after, left_out, self.suspect[order], floor)

    def scale(self, axes: Axes, which: str) -> None:
        """Set an axis so that all of them are on it."""
        if self.floor:
            _logarithmic(axes, which, 0.85 * self.floor, 1.2 * self.most)
        else:
            axes.set(**{f"{which}lim": (0.0, 1.04 * self.most or 1.0)})


def _error_rows(labels: list[str], found: _Errors) -> Figure:
    """A row for each landmark: the line from before to after, and how far off it is predicted
    without itself.
    """
    n, widest = len(labels), max(map(text_width, labels), default=0.0) * TEXT / 72
    bold = 1.15 if found.suspect.any() else 1.0
    figure, (axes,) = _figure(0.9 + (0.22 if n <= 16 else 0.165) * n, left=0.2 + bold * widest)
    found.scale(axes, "x")
    rows = np.arange(n)
    axes.hlines(rows, found.before, found.after, color=FAINT, linewidth=1.1, alpha=0.7, zorder=1)
    axes.plot(found.before, rows, "|", ms=8, mew=1.6, color=INK, label="before")
    axes.plot(found.after, rows, "o", ms=4.6, mew=0, color=ACCENT, label=AFTER, zorder=3)
    if np.isfinite(found.left_out).any():
        axes.plot(found.left_out, rows, "D", ms=4.4, mew=0, color=SECOND, label=LEFT_OUT, zorder=3)
    if found.suspect.any():
        worst = found.judged[found.suspect]
        axes.plot(
            worst, rows[found.suspect], "X", ms=8, mew=0, color=WARN, label="suspect", zorder=4
        )
    axes.set_yticks(rows, labels)
    for tick, bad in zip(axes.get_yticklabels(), found.suspect, strict=True):
        tick.set(color=WARN if bad else INK, fontweight="bold" if bad else "normal")
    axes.set(ylim=(n - 0.4, -0.6), xlabel="distance from the fixed landmark (mm)")
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
    _legend(axes, right=True)
    return figure


def _error_curves(found: _Errors) -> Figure:
    """The distances that many landmarks have, each kind from its smallest to its largest."""
    figure, (axes,) = _figure(3.1)
    found.scale(axes, "y")
    kinds = (
        ("before", found.before, INK, ":"),
        (AFTER, found.after, ACCENT, "-"),
        (LEFT_OUT, found.left_out, SECOND, "--"),
    )
    for label, values, colour, dashes in kinds:
        known = values[np.isfinite(values)]
        if known.size:
            share = np.linspace(0, 1, min(len(known), CURVE_POINTS))
            axes.plot(
                100 * share, np.quantile(known, share), color=colour, linestyle=dashes, label=label
            )
    if found.suspect.any():
        judged = found.judged[found.suspect]
        share = np.searchsorted(np.sort(found.judged), judged) / (len(found.judged) - 1)
        axes.plot(100 * share, judged, "X", ms=6, mew=0, color=WARN, label="suspect", zorder=4)
    axes.set(xlim=(0, 101), xlabel="landmarks with a smaller distance (%)", ylabel="distance (mm)")
    _legend(axes)
    return figure


# -------------------------------------------------------------------------------------- calibration


@themed
def calibration_curve(pits: np.ndarray, band: float = 0.95) -> Figure:
    """The share of left-out landmarks inside their regions against what was promised, and what
    chance allows.

    Args:
        pits: (n,) probability of the smallest region that holds each landmark.
        band: probability with which the curve of honest predictions is within the band, level by
            level.
    """
    n, pits = len(pits), np.sort(pits)
    figure, (axes,) = _figure(3.3)
    levels = np.linspace(0, 1, 401)
    low, high = calibrated_coverage(n, levels, band)
    words = f"honest predictions of {n} landmarks, {100 * band:.0f} %"
    axes.fill_between(
        100 * levels, 100 * low, 100 * high, color=FAINT, alpha=0.28, linewidth=0, label=words
    )
    axes.plot([0, 100], [0, 100], color=INK, linestyle=":", linewidth=1.0)
    x, y = np.concatenate([[0.0], pits, [1.0]]), np.concatenate([np.arange(n + 1) / n, [1.0]])
    axes.step(
        100 * x, 100 * y, where="post", color=ACCENT, linewidth=2.0, label="left-out landmarks"
    )
    for place, verdict in (((0.04, 0.93), "too cautious"), ((0.96, 0.05), "too sure")):
        side = "left" if place[0] < 0.5 else "right"
        axes.text(
            *place,
            verdict,
            transform=axes.transAxes,
            ha=side,
            color=INK,
            alpha=0.75,
            style="italic",
            fontsize=8,
        )
    axes.set(xlim=(0, 100), ylim=(0, 100), xlabel="promised (%)", ylabel="landmarks inside (%)")
    _legend(axes)
    return figure


# ----------------------------------------------------------------------------------------- Jacobian


@themed
def jacobian_histogram(
    determinants: np.ndarray, dimension: int = 3, most_counted: int = MOST_COUNTED
) -> Figure:
    """How much volume changed, point by point: the determinants of the Jacobian, the least of which
    is marked.

    Args:
        determinants: of any shape; those that are not finite do not count.
        dimension: of space, for the words.
        most_counted: of more than that, so many are counted; the least is always among all.
    """
    values = np.ravel(determinants)
    values = values[np.isfinite(values)]
    least, most = (float(values.min()), float(values.max())) if values.size else (1.0, 1.0)
    figure, (axes,) = _figure(2.6)
    folds, wide = least <= 0, 0 < WIDE_VOLUMES * least < most
    edges = _edges(min(least, 1.0), max(most, 1.0), logarithmic=wide)
    counted = np.clip(values[:: max(1, values.size // most_counted)], edges[0], edges[-1])
    share = np.histogram(counted, edges)[0] / max(counted.size, 1)
    axes.stairs(100 * share, edges, fill=True, color=ACCENT, alpha=0.55, linewidth=0)
    axes.stairs(100 * share, edges, color=ACCENT, linewidth=1.0)
    what = "area" if dimension == 2 else "volume"
    axes.axvline(1.0, color=INK, linestyle="--", linewidth=1.0, label=f"no change of {what}")
    if folds:
        axes.axvline(0.0, color=WARN, linestyle="-.", linewidth=1.2, label="0: space folds below")
    colour, foot = WARN if folds else SECOND, axes.get_xaxis_transform()
    axes.plot(
        [least], [0.05], "v", ms=8, mew=0, color=colour, transform=foot, label=f"least, {least:.3g}"
    )
    if wide:
        _logarithmic(axes, "x", edges[0], edges[-1])
    axes.set(xlabel=f"Jacobian determinant: {what} after / before", ylabel="share of points (%)")
    axes.set_ylim(bottom=0)
    _legend(axes)
    return figure


def _edges(low: float, high: float, *, logarithmic: bool) -> np.ndarray:
    """Bins from the least to the largest determinant, with 1 well inside."""
    if logarithmic:
        return np.geomspace(low / 1.05, high * 1.05, BINS + 1)
    margin = max(0.04 * (high - low), 0.005)
    return np.linspace(low - margin, high + margin, BINS + 1)


# ------------------------------------------------------------------------------------------- solver


@themed
def solver_history(history: Sequence[Progress], residual: str = "residual (mm)") -> Figure:
    """Energy and residual, iteration by iteration; every other method is shaded."""
    figure, (above, below) = _figure(3.4, left=0.72, rows=2)
    energies, residuals = (
        np.array([(row.energy, row.gap_mm) for row in history], dtype=float).reshape(-1, 2).T
    )
    _iterations(above, energies, ACCENT, "-", spread=SPREAD)
    _iterations(below, residuals, SECOND, "--", spread=0.0)
    _methods((above, below), [row.method for row in history])
    above.set_ylabel("energy")
    below.set(ylabel=residual, xlabel="iteration", xlim=(0.5, max(len(history), 1) + 0.5))
    below.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8, min_n_ticks=1))
    figure.align_ylabels([above, below])
    return figure


def _iterations(axes: Axes, values: np.ndarray, colour: str, dashes: str, *, spread: float) -> None:
    """One quantity of the solver, on a logarithmic axis if it spreads more; what is no number is a
    cross at the top.
    """
    count, known = np.arange(1, len(values) + 1), np.isfinite(values)
    marker = "o" if len(values) <= FEW else ""
    axes.plot(
        count,
        np.where(known, values, np.nan),
        color=colour,
        linestyle=dashes,
        marker=marker,
        ms=3.5,
        mew=0,
    )
    for place in count[~known]:
        axes.plot(
            [place], [0.94], "x", color=WARN, ms=6, mew=1.6, transform=axes.get_xaxis_transform()
        )
    positive = values[known & (values > 0)]
    if positive.size and positive.max() > spread * positive.min():
        low, high = float(positive.min()), float(positive.max())
        _logarithmic(axes, "y", low / 2, max(2 * high, 10 * low))
    elif positive.size:
        axes.set_ylim(min(0.0, float(values[known].min())), 1.25 * float(positive.max()))


def _methods(panels: Sequence[Axes], methods: list[str]) -> None:
    """The methods of a search, if there are several: bands, with their names where there is room."""
    groups = [(method, len(list(rows))) for method, rows in itertools.groupby(methods)]
    if len(groups) < 2:
        return
    ends = np.cumsum([0, *(size for _, size in groups)]) + 0.5
    inches = (WIDTH - 0.86) / len(methods)
    taken = -np.inf
    for k, (method, size) in enumerate(groups):
        for axes in panels if k % 2 else ():
            axes.axvspan(ends[k], ends[k + 1], color=FAINT, alpha=0.16, linewidth=0)
        middle = ends[k] + size / 2
        half = 0.55 * text_width(method) * TEXT / 72 / inches
        if middle - half > taken:
            _above(panels[0], middle, method)
            taken = middle + half


def _above(axes: Axes, place: float, words: str) -> None:
    """Words above a panel."""
    above = axes.get_xaxis_transform()
    axes.text(place, 1.03, words, transform=above, ha="center", fontsize=TEXT)


# ----------------------------------------------------------------------------------------- evidence


@themed
def evidence_curve(
    scales_mm: np.ndarray,
    log_evidence: np.ndarray,
    chosen_mm: float,
    interval: tuple[float, float] | None,
    decided: bool,
) -> Figure:
    """The log evidence as a function of the length scale, relative to its best.

    Args:
        scales_mm, log_evidence: (m,) the curve, NaN where there is no number.
        chosen_mm: the length scale that was used.
        interval: 95 %, mm; None where the length scale was given.
        decided: whether the landmarks told it.
    """
    figure, (axes,) = _figure(2.7)
    known = np.isfinite(log_evidence)
    scales, values = np.asarray(scales_mm)[known], np.asarray(log_evidence)[known]
    values = values - values.max() if values.size else values
    low, high = _likely(scales, values, chosen_mm)
    _logarithmic(axes, "x", low, high)
    if interval is not None and np.isfinite(interval[0]):
        words = f"95 %: {interval[0]:.3g} to {interval[1]:.3g} mm"
        shade = axes.axvspan(
            max(interval[0], low), min(interval[1], high), color=FAINT, alpha=0.25, linewidth=0
        )
        if not decided:
            words = "not determined by the landmarks"
            shade.set(facecolor="none", alpha=1.0, hatch="////")
        shade.set_label(words)
    axes.plot(scales, values, color=ACCENT, marker="o", ms=3.2, mew=0, label="log evidence")
    source = "given" if interval is None else "chosen"
    axes.axvline(
        chosen_mm,
        color=SECOND,
        linestyle="--",
        linewidth=1.6,
        label=f"{source}: {chosen_mm:.3g} mm",
    )
    floor = float(np.clip(1.1 * values.min(initial=0.0), LOWEST, -3.0))
    axes.set(
        ylim=(floor, -0.06 * floor),
        xlabel="length scale (mm)",
        ylabel="log evidence, less its best",
    )
    _legend(axes)
    return figure


def _likely(scales: np.ndarray, values: np.ndarray, used: float) -> tuple[float, float]:
    """Between which length scales to look: where the evidence is not hopeless, one further, and
    what was used.
    """
    near = np.flatnonzero(values >= LOWEST)
    if not near.size:
        return 0.5 * used, 2.0 * used
    shown = np.append(scales[max(near[0] - 1, 0) : near[-1] + 2], used)
    return float(shown.min()) / 1.02, float(shown.max()) * 1.02


# --------------------------------------------------------------------------------------------- axes


def _figure(
    height: float, left: float = 0.62, bottom: float = 0.46, top: float = 0.36, rows: int = 1
) -> tuple[Figure, list[Axes]]:
    """A figure of this height with margins in inches, a legend's room at the top; panels in a
    column.
    """
    figure = Figure(figsize=(WIDTH, height))
    panels = figure.subplots(rows, 1, sharex=True, squeeze=False)[:, 0]
    figure.subplots_adjust(
        left=left / WIDTH,
        right=1 - 0.14 / WIDTH,
        bottom=bottom / height,
        top=1 - top / height,
        hspace=0.16,
    )
    return figure, list(panels)


def _legend(axes: Axes, *, right: bool = False) -> None:
    """Above the axes, from the left or to the right."""
    axes.legend(
        loc="lower right" if right else "lower left",
        bbox_to_anchor=(float(right), 1.0),
        ncols=4,
        borderpad=0.35,
        columnspacing=1.4,
        handletextpad=0.5,
        handlelength=1.7,
    )


def _logarithmic(axes: Axes, which: str, low: float, high: float) -> None:
    """A logarithmic axis, x or y, between these, with about five plain numbers on it."""
    axes.set(**{f"{which}scale": "log", f"{which}lim": (low, high)})
    first, last = int(np.floor(np.log10(low))), int(np.ceil(np.log10(high)))
    plain = low >= 0.9e-3 and high <= 1.1e5
    steps = next((steps for span, steps in STEPS if plain and np.log10(high / low) < span), (1,))
    stride = 1 if len(steps) > 1 else max(1, (last - first) // 5)
    ticks = [step * 10.0**k for k in range(first, last + 1, stride) for step in steps]
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(FixedLocator([tick for tick in ticks if low <= tick <= high]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{value:g}" if plain else _power(value))
    )


def _power(value: float) -> str:
    """A power of ten that needs no mathematics to be parsed."""
    return f"10{str(round(np.log10(value))).translate(RAISED)}"
