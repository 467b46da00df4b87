"""Closures of the moment equations against simulation, and what a plain simulation can resolve."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from kunita.figures.ellipses import ellipses
from kunita.figures.style import COLOURS, DASHES, MARKERS, PAGE_WIDTH, styled

SHOWN = {
    "arrival": "distance of mean arrivals (mm)",
    "point covariance": "‖covariance difference‖,\nper point (mm²)",
    "joint covariance": "‖covariance difference‖,\njoint (mm²)",
    "cloud covariance": "‖covariance difference‖,\ncloud of all points (mm²)",
}
"""The measures, and what they are called on an axis."""

LIMITS = {
    "arrival": (2e-4, 100.0),
    "point covariance": (5e-4, 2e3),
    "joint covariance": (5e-3, 2e3),
    "cloud covariance": (1e-3, 2e3),
}


def _distinct(values: Any) -> list:
    """In the order of their first appearance."""
    return list(dict.fromkeys(values))


@styled
def closure_errors(rows: Sequence[Any]) -> Figure:
    """Error of each closure per shape and length scale, with the paper's figures and the
    simulation's own error.

    Args:
        rows: with shape, length_scale_mm, closure, measure, error, standard_error, simulation_error
            and paper.
    """
    shapes = _distinct(r.shape for r in rows)
    figure = Figure(figsize=(PAGE_WIDTH, 8.6), layout="constrained")
    grid = figure.subplots(len(SHOWN), len(shapes), sharex=True, sharey="row", squeeze=False)
    for line, (measure, label) in zip(grid, SHOWN.items(), strict=True):
        for axes, shape in zip(line, shapes, strict=True):
            _closures(
                axes, [r for r in rows if (r.shape, r.measure) == (shape, measure)], LIMITS[measure]
            )
            axes.set_title(shape if measure == "arrival" else "")
        line[0].set_ylabel(label)
    for axes in grid[-1]:
        axes.set_xlabel("length scale σ (mm)")
    closures = _distinct(r.closure for r in rows)
    handles: list[Artist] = [
        Line2D([], [], ls="", marker=MARKERS[i], color=COLOURS[i], label=closure)
        for i, closure in enumerate(closures)
    ]
    handles += [
        Line2D([], [], color="black", ls="--", label="paper (its norm is not said)"),
        Patch(facecolor="0.85", edgecolor="0.6", label="error of the simulation"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    return figure


def _closures(axes: Axes, rows: Sequence[Any], limits: tuple[float, float]) -> None:
    """One panel: length scales side by side, closures beside each other."""
    scales, closures = (
        _distinct(r.length_scale_mm for r in rows),
        _distinct(r.closure for r in rows),
    )
    axes.set(yscale="log", ylim=limits, xlim=(-0.5, len(scales) - 0.5))
    axes.set_xticks(range(len(scales)), [f"{scale:g}" for scale in scales])
    for row in rows:
        place, which = scales.index(row.length_scale_mm), closures.index(row.closure)
        x = place + 0.18 * (which - (len(closures) - 1) / 2)
        marker, colour = MARKERS[which], COLOURS[which]
        if row.error < limits[1]:
            axes.errorbar(
                x, row.error, row.standard_error, marker=marker, color=colour, capsize=2, lw=0.8
            )
        else:
            axes.plot(x, 0.5 * limits[1], marker=marker, color=colour)
            axes.text(
                x, 0.25 * limits[1], "diverges", ha="center", va="top", fontsize=6.5, rotation=90
            )
        if which == 0:
            axes.bar(
                place, row.simulation_error, 0.8, color="0.85", edgecolor="0.6", lw=0.5, zorder=0
            )
            if row.paper is not None:
                axes.hlines(row.paper, place - 0.4, place + 0.4, color="black", ls="--", lw=1)


@styled
def errors_against_paths(curve: Sequence[Any], rows: Sequence[Any]) -> Figure:
    """What a plain simulation says of `ll`, against its number of paths: chance first, then the
    closure's own error.

    Args:
        curve: with shape, length_scale_mm, measure, num_paths, from_ll, from_truth and paper.
        rows: of `closure_errors`, for the closure's own error.
    """
    scales = _distinct(r.length_scale_mm for r in curve)
    figure = Figure(figsize=(PAGE_WIDTH, 8.2), layout="constrained")
    grid = figure.subplots(len(SHOWN), len(scales), sharex=True, sharey="row", squeeze=False)
    for line, (measure, label) in zip(grid, SHOWN.items(), strict=True):
        for axes, scale in zip(line, scales, strict=True):
            mine = [r for r in curve if (r.measure, r.length_scale_mm) == (measure, scale)]
            own = [
                r
                for r in rows
                if (r.measure, r.length_scale_mm, r.closure) == (measure, scale, "ll")
            ]
            _paths(axes, mine, own)
            axes.set_title(f"σ = {scale:g} mm" if measure == "arrival" else "")
        line[0].set_ylabel(label)
    for axes in grid[-1]:
        axes.set_xlabel("number of paths")
    handles = [
        Line2D([], [], color=COLOURS[1], marker=MARKERS[0], label="simulation against ll, circle"),
        Line2D([], [], color=COLOURS[2], marker=MARKERS[1], label="the same, flower"),
        Line2D(
            [], [], color="0.5", ls=DASHES[3], label="simulation against the truth: chance alone"
        ),
        Line2D([], [], color=COLOURS[1], ls=DASHES[2], label="error of ll itself (median), circle"),
        Line2D([], [], color=COLOURS[2], ls=DASHES[4], label="the same, flower"),
        Line2D(
            [], [], color="black", ls=DASHES[1], label="paper (its number of paths is not said)"
        ),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False)
    return figure


def _paths(axes: Axes, curve: Sequence[Any], own: Sequence[Any]) -> None:
    axes.set(xscale="log", yscale="log")
    for i, shape in enumerate(_distinct(r.shape for r in curve)):
        mine = [r for r in curve if r.shape == shape]
        paths = [r.num_paths for r in mine]
        axes.plot(paths, [r.from_ll for r in mine], color=COLOURS[1 + i], marker=MARKERS[i])
        axes.plot(paths, [r.from_truth for r in mine], color="0.5", ls=DASHES[3])
        axes.axhline(
            next(r.median_error for r in own if r.shape == shape),
            color=COLOURS[1 + i],
            ls=DASHES[2 + 2 * i],
            lw=0.8,
        )
    if curve[0].paper is not None:
        axes.axhline(curve[0].paper, color="black", ls=DASHES[1])


@dataclasses.dataclass(frozen=True, eq=False)
class Arrivals:
    """Where landmarks arrive: (s, n, 2) draws, and means and covariances by two closures."""

    length_scale_mm: float
    points: np.ndarray
    draws: np.ndarray
    ll: tuple[np.ndarray, np.ndarray]
    gaussian: tuple[np.ndarray, np.ndarray]


@styled
def arrivals(cases: Sequence[Arrivals], every: int = 4) -> Figure:
    """Simulated arrivals of every fourth landmark, with the 95 % ellipses of `ll` and of
    `gaussian`.
    """
    figure = Figure(figsize=(PAGE_WIDTH, 3.25), layout="constrained")
    row = figure.subplots(1, len(cases), sharex=True, sharey=True, squeeze=False)[0]
    for axes, case in zip(row, cases, strict=True):
        shown = slice(None, None, every)
        axes.plot(*case.points.T, "o", mfc="white", mec="black", ms=2.5, mew=0.6)
        axes.plot(*case.draws[:, shown].reshape(-1, 2).T, ",", color="0.45", rasterized=True)
        for which, (mean, cov), dash in ((2, case.ll, "--"), (1, case.gaussian, "-")):
            blocks = np.einsum("iaib->iab", cov)[shown]
            axes.add_collection(
                ellipses(axes, mean[shown], blocks, edgecolors=COLOURS[which], linestyles=dash)
            )
            axes.plot(*mean[shown].T, ls="", marker="+x"[which == 2], color=COLOURS[which], ms=5)
        axes.set(aspect="equal", xlabel="x (mm)", title=f"σ = {case.length_scale_mm:g} mm")
    figure.axes[0].set_ylabel("y (mm)")
    handles = [
        Line2D(
            [], [], ls="", marker="o", mfc="white", mec="black", ms=2.5, mew=0.6, label="landmarks"
        ),
        Line2D(
            [],
            [],
            ls="",
            marker=".",
            color="0.45",
            ms=2,
            label=f"simulated arrivals of every {every}th",
        ),
        Line2D([], [], ls="--", marker="x", color=COLOURS[2], label="ll, 95 %"),
        Line2D([], [], ls="-", marker="+", color=COLOURS[1], label="gaussian, 95 %"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)
    return figure
