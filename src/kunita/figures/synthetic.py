"""One registration by several models at equal parameters: deformed grids, folds, and uncertainty
against distance.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, QuadMesh
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from kunita.figures.style import COLOURS, DASHES, MARKERS, PAGE_WIDTH, styled

NUM_LINES = 40
"""About as many lines of the grid each way as can still be told apart on half a page."""

FOLD_COLOUR = COLOURS[2]
MOVING_STYLE: dict[str, Any] = {
    "marker": "o",
    "ms": 3,
    "mfc": "white",
    "mec": "black",
    "mew": 0.6,
    "ls": "",
}
FIXED_STYLE: dict[str, Any] = {
    "marker": "D",
    "ms": 2.8,
    "mfc": COLOURS[4],
    "mec": "black",
    "mew": 0.5,
    "ls": "",
}

CLOSE_UP_MM = 3.0
"""Half the side of a close-up."""


@dataclasses.dataclass(frozen=True, eq=False)
class Deformed:
    """A mesh of moving space as a model maps it.

    Args:
        model: the model's name.
        converged: whether the fit did.
        nodes: (r, c, 2) centres of the square cells that tile the box, moving space, mm.
        arrived: (r, c, 2) where each node goes in fixed space, mm.
        fc: (r, c) Frobenius norm of the covariance there, mm².
        stretch: (r, c) determinant of the map's Jacobian at the node; not positive where the map
            folds.
        landmarks: (n, 2) where the moving landmarks go, mm.
    """

    model: str
    converged: bool
    nodes: np.ndarray
    arrived: np.ndarray
    fc: np.ndarray
    stretch: np.ndarray
    landmarks: np.ndarray

    @property
    def title(self) -> str:
        kind = "small deformation" if self.model == "small" else f"diffeomorphic, {self.model}"
        return kind if self.converged else f"{kind} (not converged)"


@dataclasses.dataclass(frozen=True, eq=False)
class Comparison:
    """Models at equal parameters, on one mesh; and the small deformation, which may fold, on a
    finer one.

    Args:
        title: the parameters, for people.
        moving, fixed: (n, 2) landmarks, mm.
        prior_fc: FC of a point before any landmark is seen, mm².
        small, endpoint, pathwise: the models, with the same nodes.
        fine: the small deformation again.
    """

    title: str
    moving: np.ndarray
    fixed: np.ndarray
    prior_fc: float
    small: Deformed
    endpoint: Deformed
    pathwise: Deformed
    fine: Deformed

    @property
    def models(self) -> tuple[Deformed, ...]:
        return self.small, self.endpoint, self.pathwise


@dataclasses.dataclass(frozen=True, eq=False)
class Profile:
    """FC against the distance to the nearest landmark: median and band over the places at that
    distance, mm².

    Args:
        model: the model's name.
        distance: (k,) mm, in increasing order; negative inside the ring of landmarks.
        median, low, high: (k,) mm².
    """

    model: str
    distance: np.ndarray
    median: np.ndarray
    low: np.ndarray
    high: np.ndarray


@styled
def warped_grids(comparisons: Sequence[Comparison]) -> Figure:
    """The paper's figure, one row per set of parameters: small deformation beside diffeomorphic, FC
    as colour.

    Every colour stands where its point arrives; the colours of a row mean the same. The last column
    looks closely at the small deformation where its Jacobian is smallest: there it folds, if it
    does.
    """
    figure, grid = _sheet(len(comparisons))
    for line, comparison in zip(grid, comparisons, strict=True):
        shown = (comparison.fine, comparison.endpoint, comparison.fine)
        for axes, deformed in zip(line, shown, strict=True):
            colours = _uncertainty(axes, deformed, _top(shown[:2]))
            _lines(axes, deformed, NUM_LINES if axes is not line[2] else 3 * NUM_LINES)
            _folds(axes, deformed)
            _landmarks(axes, comparison)
            axes.set_title(deformed.title)
        _close_up(line[2], comparison.fine)
        _row_label(line[0], comparison)
        figure.colorbar(
            colours,
            ax=list(line),
            label="FC (mm²)",
            extend="max",
            shrink=0.88,
            aspect=22,
            pad=0.015,
        )
    _finish(figure, grid, folds=True)
    return figure


@styled
def readings(comparisons: Sequence[Comparison]) -> Figure:
    """The two readings of the diffeomorphic posterior around the same flow, and their ratio."""
    figure, grid = _sheet(len(comparisons))
    for line, comparison in zip(grid, comparisons, strict=True):
        pair = (comparison.endpoint, comparison.pathwise)
        for axes, deformed in zip(line, pair, strict=False):
            colours = _uncertainty(axes, deformed, _top(pair))
            axes.set_title(deformed.model)
        figure.colorbar(
            colours,
            ax=list(line[:2]),
            label="FC (mm²)",
            extend="max",
            shrink=0.85,
            aspect=22,
            pad=0.02,
        )
        ratio = _ratio(line[2], comparison)
        figure.colorbar(ratio, ax=line[2], label="ratio of FC", shrink=0.85, aspect=22, pad=0.04)
        for axes in line:
            _landmarks(axes, comparison)
        _row_label(line[0], comparison)
    _finish(figure, grid, folds=False)
    return figure


@styled
def fc_against_distance(
    comparisons: Sequence[Comparison], profiles: Sequence[Sequence[Profile]]
) -> Figure:
    """Median and band of FC per distance to the nearest landmark, one panel per set of parameters.

    The distance is that of the point before it moves, and is drawn to the left inside the ring of
    landmarks.
    """
    figure = Figure(figsize=(PAGE_WIDTH, 3.4), layout="constrained")
    row = figure.subplots(1, len(comparisons), squeeze=False)[0]
    for axes, comparison, several in zip(row, comparisons, profiles, strict=True):
        for i, profile in enumerate(several):
            _profile(axes, profile, i)
        axes.axhline(comparison.prior_fc, color="0.45", ls=DASHES[3], lw=1)
        axes.axvline(0, color="0.45", lw=0.6)
        reach = _reach(comparison.prior_fc, several)
        axes.set(title=_stacked(comparison.title), xlim=reach, ylim=(0, None))
        axes.set_xlabel("distance to nearest landmark (mm)\n← inside · outside →")
    row[0].set_ylabel("FC (mm²)")
    _profile_legend(figure, [deformed.title for deformed in comparisons[0].models])
    return figure


# ---------------------------------------------------------------------------------- parts of panels


def _stacked(title: str) -> str:
    """The parameters on lines of their own: for a narrow panel."""
    return title.replace(": ", "\n").replace(", noise", ",\nnoise")


def _profile(axes: Axes, profile: Profile, which: int) -> None:
    style: dict[str, Any] = {"color": COLOURS[which], "ls": DASHES[which]}
    axes.fill_between(
        profile.distance, profile.low, profile.high, color=COLOURS[which], alpha=0.1, lw=0
    )
    for edge in (profile.low, profile.high):
        axes.plot(profile.distance, edge, **style, lw=0.4)
    axes.plot(
        profile.distance, profile.median, **style, marker=MARKERS[which], ms=3, markevery=(which, 3)
    )


def _reach(prior_fc: float, profiles: Sequence[Profile]) -> tuple[float, float]:
    """The distances up to which anything differs from the prior by a hundredth."""
    distance = profiles[0].distance
    edges = np.stack([edge for profile in profiles for edge in (profile.low, profile.high)])
    differs = distance[np.any(np.abs(edges / prior_fc - 1) > 0.01, axis=0)]
    margin = distance[1] - distance[0]
    return max(distance[0], differs.min() - margin), min(distance[-1], differs.max() + margin)


def _profile_legend(figure: Figure, names: Sequence[str]) -> None:
    handles: list[Line2D | Patch] = [
        Line2D(
            [], [], color=COLOURS[i], ls=DASHES[i], marker=MARKERS[i], ms=3, label=f"{name}: median"
        )
        for i, name in enumerate(names)
    ]
    handles += [
        Line2D([], [], color="0.45", ls=DASHES[3], lw=1, label="prior, before any landmark"),
        Patch(
            facecolor="0.88",
            edgecolor="0.4",
            lw=0.4,
            label="bands: 80 % of the places at that distance",
        ),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False)


def _sheet(num_rows: int) -> tuple[Figure, np.ndarray]:
    """Three columns on the width of a page."""
    figure = Figure(figsize=(PAGE_WIDTH, 2.0 * num_rows + 0.45), layout="constrained")
    return figure, figure.subplots(num_rows, 3, squeeze=False)


def _top(several: Sequence[Deformed]) -> float:
    """The top of a common colour scale; what the colour bar's arrow stands for is half a percent of
    a panel at most.
    """
    return max(float(np.quantile(deformed.fc, 0.995)) for deformed in several)


def _uncertainty(axes: Axes, deformed: Deformed, top: float) -> QuadMesh:
    x, y = np.moveaxis(deformed.arrived, -1, 0)
    _frame(axes, deformed)
    return axes.pcolormesh(
        x, y, deformed.fc, shading="gouraud", cmap="viridis", vmin=0, vmax=top, rasterized=True
    )


def _frame(axes: Axes, deformed: Deformed) -> None:
    """The box of the mesh, as it is in moving space."""
    axes.grid(False)
    limit = float(np.abs(deformed.nodes).max())
    axes.set(aspect="equal", xlim=(-limit, limit), ylim=(-limit, limit))


def _lines(axes: Axes, deformed: Deformed, count: int) -> None:
    """The images of straight lines of moving space, about this many each way."""
    step = max(1, round(len(deformed.arrived) / count))
    lines = [
        *deformed.arrived[step // 2 :: step],
        *deformed.arrived[:, step // 2 :: step].swapaxes(0, 1),
    ]
    axes.add_collection(LineCollection(lines, colors="white", linewidths=0.35, alpha=0.8))


def _folds(axes: Axes, deformed: Deformed) -> None:
    """Hatched and outlined: where the image of the mesh lies on itself upside down."""
    if deformed.stretch.min() > 0:
        return
    x, y = np.moveaxis(deformed.arrived, -1, 0)
    lowest = float(deformed.stretch.min()) - 1
    inside = axes.contourf(
        x, y, deformed.stretch, [lowest, 0], colors=[FOLD_COLOUR], alpha=0.6, hatches=["//////"]
    )
    inside.set_edgecolor("black")
    inside.set_linewidth(0)
    axes.contour(x, y, deformed.stretch, [0], colors="black", linewidths=0.8)


def _close_up(axes: Axes, deformed: Deformed) -> None:
    """Narrow a panel down to the place where the Jacobian is smallest."""
    inner = float(np.abs(deformed.nodes).max()) - CLOSE_UP_MM
    x, y = np.clip(deformed.arrived.reshape(-1, 2)[deformed.stretch.argmin()], -inner, inner)
    axes.set(xlim=(x - CLOSE_UP_MM, x + CLOSE_UP_MM), ylim=(y - CLOSE_UP_MM, y + CLOSE_UP_MM))
    axes.set_title(f"close-up, det J ≥ {deformed.stretch.min():.2f}".replace("≥ -", "≥ −"))


def _ratio(axes: Axes, comparison: Comparison) -> QuadMesh:
    """Pathwise over endpoint, on the mesh as it arrives."""
    x, y = np.moveaxis(comparison.pathwise.arrived, -1, 0)
    ratio = comparison.pathwise.fc / comparison.endpoint.fc
    _frame(axes, comparison.pathwise)
    axes.set_title("pathwise / endpoint")
    return axes.pcolormesh(x, y, ratio, shading="gouraud", cmap="cividis", rasterized=True)


def _landmarks(axes: Axes, comparison: Comparison) -> None:
    axes.plot(*comparison.moving.T, **MOVING_STYLE)
    axes.plot(*comparison.fixed.T, **FIXED_STYLE)


def _row_label(axes: Axes, comparison: Comparison) -> None:
    axes.set_ylabel(f"{_stacked(comparison.title)}\n\ny (mm)", fontsize=7.5)


def _finish(figure: Figure, grid: np.ndarray, folds: bool) -> None:
    for axes in grid[-1]:
        axes.set_xlabel("x (mm)")
    handles: list[Line2D | Patch] = [
        Line2D([], [], **MOVING_STYLE, label="moving landmarks"),
        Line2D([], [], **FIXED_STYLE, label="fixed landmarks"),
    ]
    if folds:
        handles.append(
            Patch(
                facecolor=FOLD_COLOUR,
                alpha=0.5,
                edgecolor="black",
                hatch="/////",
                label="det J ≤ 0",
            )
        )
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
