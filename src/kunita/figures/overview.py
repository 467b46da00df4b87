"""One look at a registration: the fixed image, the warped one beside it, and how sure the
registration is where.
"""

import dataclasses
from collections.abc import Sequence
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

MISMATCH_COLOURS = (1.0, 4.0)
"""The ends of the colours of a mismatch: it is no less than one, and residuals are clipped at four
standard deviations."""

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
    bottom: float = 0.0


@themed
def overview(found: Maps, layers: Layers, rows: LandmarkRows) -> Figure:
    """Planes through the label, what was compared or the landmarks: images, outlines, 95 % radius
    in mm, and where images do not match.
    """
    centre = centre_voxel(found, layers, rows)
    views = views_of(found.grid)
    planes = [plane_of(found.grid, view, centre) for view in views]
    top = _largest_radius(found, planes)
    shown = [_layers(found, layers, lattice, top) for lattice in planes]
    columns = len(shown[0])
    figure = Figure(figsize=(4.2 * columns, 3.8 * len(views)), layout="constrained")
    axes = figure.subplots(len(views), columns, squeeze=False)
    for row, (view, lattice) in enumerate(zip(views, planes, strict=True)):
        for place, layer in zip(axes[row], shown[row], strict=True):
            drawn = draw_layer(place, layer, view, found.grid)
            if layers.any_label is not None:
                _outline(place, view, _cut(layers.any_label, lattice))
            _dots(place, rows, found.grid, view, centre)
            if layer.top is not None:
                figure.colorbar(drawn, ax=place, shrink=0.85, extend="max")
    figure.supxlabel(_legend(found, layers, rows), fontsize=9)
    return figure


def _largest_radius(found: Maps, planes: Sequence[Lattice]) -> float:
    """The end of the colours: most radii are below."""
    radii = np.concatenate([found.on(lattice, "radius").ravel() for lattice in planes])
    return float(np.quantile(radii, 0.98))


def _legend(found: Maps, layers: Layers, rows: LandmarkRows) -> str:
    """What the marks mean."""
    parts = []
    if len(rows.names):
        near = f" within {NEAR_MM:.0f} mm of the plane" if found.grid.dimension == 3 else ""
        doubts = ", □ suspects" if rows.suspect.any() else ""
        parts.append(f"○ fixed, + predicted landmarks{near}{doubts}")
    if layers.probability is not None:
        parts.append("cyan: the label with probability 50 % (dotted: 5 and 95 %)")
    if layers.mismatch is not None:
        parts.append("mismatch: above 2 the images do not match; no colour: not compared")
    return "; ".join(parts)


def centre_voxel(found: Maps, layers: Layers, rows: LandmarkRows) -> np.ndarray:
    """The voxel that all planes go through: in the label, in what was compared, among the
    landmarks, or in the middle of the grid.
    """
    last = np.array(found.grid.shape) - 1
    if layers.place is not None:
        middle = found.grid.index(layers.place)
    elif len(rows.fixed):
        middle = found.grid.index(np.median(rows.fixed, axis=0))
    else:
        middle = last / 2
    return np.clip(np.rint(middle), 0, last)


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


def plane_of(grid: Grid, view: View, centre: np.ndarray) -> Lattice:
    """The voxels of a view through a voxel."""
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
    shown.append(Layer("95 % radius (mm)", found.on(lattice, "radius"), "viridis", top, below))
    if layers.mismatch is not None:
        data = _cut(layers.mismatch.data, lattice)
        known = np.where(data > 0, data, np.nan)
        low, high = MISMATCH_COLOURS
        shown.append(Layer("mismatch", known, "plasma", high, below, low))
    return shown


def _cut(data: np.ndarray, lattice: Lattice) -> np.ndarray:
    return data[np.ix_(*(axis.astype(int) for axis in lattice))]


def draw_layer(axes: Any, layer: Layer, view: View, grid: Grid) -> Any:
    """A plane with up above and x growing to the right, its sides lettered."""
    aspect = float(grid.spacing[view.up] / grid.spacing[view.right])
    low = layer.bottom if layer.top else None
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
    _letter_sides(axes, view)
    return drawn


def _letter_sides(axes: Any, view: View) -> None:
    """What is to the left, right, below and above."""
    places = ((0.03, 0.5), (0.97, 0.5), (0.5, 0.03), (0.5, 0.97))
    box = {"facecolor": "black", "alpha": 0.6, "pad": 1.5, "linewidth": 0}
    for letter, (x, y) in zip(view.letters, places, strict=False):
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
