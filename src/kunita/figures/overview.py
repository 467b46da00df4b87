"""One look at a registration: the fixed image, the warped one beside it, and how sure the
registration is where.
"""

import dataclasses
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy.optimize import linear_sum_assignment

from kunita.data.image import Grid
from kunita.figures.themed import themed
from kunita.outputs.dense import Lattice, plane
from kunita.outputs.layers import Layers
from kunita.outputs.maps import Maps
from kunita.outputs.summary import LandmarkRows

NEAR_MM = 4.0
"""Landmarks within this distance of a plane are drawn on it."""

OVERLAY = 0.8
"""How much of the image below is covered by a map."""

BORDERS = (0.05, 0.5, 0.95)
"""The label's outline: where it almost surely begins, where it probably is, where it almost surely
is."""


@dataclasses.dataclass(frozen=True)
class View:
    """A plane of a grid as people look at it: across one axis, with two others to the right and up."""

    title: str
    across: int | None
    right: int
    up: int
    world: tuple[int, int] = (0, 1)
    letters: str = ""

    def flat(self, data: np.ndarray) -> np.ndarray:
        """A lattice's data as a picture: rows go up, columns to the right; colours stay last."""
        order = [
            self.up,
            self.right,
            *([] if self.across is None else [self.across]),
            *range(data.ndim)[-1:],
        ]
        spatial = 2 if self.across is None else 3
        picture = np.transpose(data, order[:spatial] if data.ndim == spatial else order)
        return picture if self.across is None else picture[:, :, 0]


@dataclasses.dataclass(frozen=True)
class Layer:
    """A column of the figure: what it shows on a plane, in which colours, and over which image, if
    over any.
    """

    title: str
    data: np.ndarray
    colours: str
    top: float | None = None
    below: np.ndarray | None = None


@themed
def overview(found: Maps, layers: Layers, rows: LandmarkRows) -> Figure:
    """Planes through the label, or through the middle of the landmarks: images, outlines, 95 %
    radius in mm.
    """
    centre = _centre(found, layers, rows)
    views = views_of(found.grid)
    planes = [_lattice(found.grid, view, centre) for view in views]
    top = float(
        np.quantile(
            np.concatenate([found.on(lattice, "radius").ravel() for lattice in planes]), 0.98
        )
    )
    columns = 2 if layers.warped is None else 3
    figure = Figure(figsize=(4.2 * columns, 3.8 * len(views)), layout="constrained")
    axes = figure.subplots(len(views), columns, squeeze=False)
    for row, (view, lattice) in enumerate(zip(views, planes, strict=True)):
        for place, layer in zip(axes[row], _layers(found, layers, lattice, top), strict=True):
            drawn = draw_layer(place, layer, view, found.grid)
            if layers.any_label is not None:
                _outline(place, view, _cut(layers.any_label, lattice))
            _dots(place, rows, found.grid, view, centre)
        figure.colorbar(drawn, ax=axes[row, -1], shrink=0.85, extend="max")
    near = f" within {NEAR_MM:.0f} mm of the plane" if found.grid.dimension == 3 else ""
    outline = (
        "; cyan: the label with probability 50 % (dotted: 5 and 95 %)"
        if layers.probability is not None
        else ""
    )
    doubts = ", □ suspects" if rows.suspect.any() else ""
    figure.supxlabel(f"○ fixed, + predicted landmarks{near}{doubts}{outline}", fontsize=9)
    return figure


def _centre(found: Maps, layers: Layers, rows: LandmarkRows) -> np.ndarray:
    """The voxel that all planes go through."""
    middle = np.median(rows.fixed, axis=0) if layers.inside is None else layers.inside
    return np.clip(np.rint(found.grid.index(middle)), 0, np.array(found.grid.shape) - 1)


def views_of(grid: Grid) -> list[View]:
    """One plane across each axis of the world, along the grid's own axes; in 2-D the picture
    itself, y down.
    """
    if grid.dimension == 2:
        return [View("", None, 0, 1)]
    closeness = np.abs(grid.affine[:3, :3] / grid.spacing)
    x, y, z = (int(axis) for axis in linear_sum_assignment(-closeness)[1])
    return [
        View("axial", z, x, y, (0, 1), "LRPA"),
        View("coronal", y, x, z, (0, 2), "LRIS"),
        View("sagittal", x, y, z, (1, 2), "PAIS"),
    ]


def _lattice(grid: Grid, view: View, centre: np.ndarray) -> Lattice:
    if view.across is None:
        return tuple(np.arange(n, dtype=float) for n in grid.shape)
    return plane(grid, view.across, centre[view.across])


def _layers(found: Maps, layers: Layers, lattice: Lattice, top: float) -> list[Layer]:
    images = (("fixed image", layers.fixed), ("moving image, warped", layers.warped))
    shown = [
        Layer(title, _cut(image.data, lattice), "gray")
        for title, image in images
        if image is not None
    ]
    below = None if layers.fixed is None else _cut(layers.fixed.data, lattice)
    return [*shown, Layer("95 % radius (mm)", found.on(lattice, "radius"), "viridis", top, below)]


def _cut(data: np.ndarray, lattice: Lattice) -> np.ndarray:
    return data[np.ix_(*(axis.astype(int) for axis in lattice))]


def draw_layer(axes: Any, layer: Layer, view: View, grid: Grid) -> Any:
    """A plane with up above and x growing to the right, its sides lettered."""
    aspect = float(grid.spacing[view.up] / grid.spacing[view.right])
    low = 0.0 if layer.top else None
    if layer.below is not None:
        axes.imshow(view.flat(layer.below), cmap="gray", origin="lower", aspect=aspect)
    drawn = axes.imshow(
        view.flat(layer.data),
        cmap=layer.colours,
        origin="lower",
        vmin=low,
        vmax=layer.top,
        aspect=aspect,
        alpha=None if layer.below is None else OVERLAY,
    )
    axes.set_title(f"{layer.title}, {view.title}" if view.title else layer.title, fontsize=10)
    axes.set_xticks([])
    axes.set_yticks([])
    signs = _signs(view, grid)
    axes.set_xlim(*sorted(axes.get_xlim(), reverse=bool(signs[0] < 0)))
    axes.set_ylim(*sorted(axes.get_ylim(), reverse=bool(signs[1] < 0)))
    for letter, (x, y) in zip(
        view.letters, ((0.03, 0.5), (0.97, 0.5), (0.5, 0.03), (0.5, 0.97)), strict=False
    ):
        box = {"facecolor": "black", "alpha": 0.6, "pad": 1.5, "linewidth": 0}
        axes.text(
            x,
            y,
            letter,
            transform=axes.transAxes,
            color="white",
            fontsize=8,
            ha="center",
            va="center",
            bbox=box,
        )
    return drawn


def _signs(view: View, grid: Grid) -> tuple[float, ...]:
    """Whether the axes to the right and up run along the world's, or against them; in 2-D y runs
    down.
    """
    if view.across is None:
        return 1.0, -1.0
    return tuple(
        grid.affine[world, axis]
        for world, axis in zip(view.world, (view.right, view.up), strict=True)
    )


def _outline(axes: Any, view: View, probability: np.ndarray) -> None:
    if probability.max() > BORDERS[0] and min(view.flat(probability).shape) > 1:
        axes.contour(
            view.flat(probability),
            BORDERS,
            colors="cyan",
            linewidths=(0.7, 1.4, 0.7),
            linestyles=(":", "-", ":"),
        )


def _dots(axes: Any, rows: LandmarkRows, grid: Grid, view: View, centre: np.ndarray) -> None:
    """Fixed landmarks as circles, predicted ones as crosses, where they are near the plane;
    suspects in a square.
    """
    fixed, predicted, suspect = grid.index(rows.fixed), grid.index(rows.predicted), rows.suspect
    if view.across is not None:
        near = (
            np.abs(fixed[:, view.across] - centre[view.across]) * grid.spacing[view.across]
            < NEAR_MM
        )
        fixed, predicted, suspect = fixed[near], predicted[near], suspect[near]
    limits = axes.get_xlim(), axes.get_ylim()
    axes.plot(*fixed[:, [view.right, view.up]].T, "o", mfc="none", mec="tab:red", ms=6, mew=1.2)
    axes.plot(*predicted[:, [view.right, view.up]].T, "+", color="tab:orange", ms=6, mew=1.2)
    axes.plot(
        *fixed[suspect][:, [view.right, view.up]].T, "s", mfc="none", mec="yellow", ms=11, mew=1.5
    )
    axes.set_xlim(limits[0])
    axes.set_ylim(limits[1])
