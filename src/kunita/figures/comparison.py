"""How well two images lie on each other, before and after a registration that they drove."""

import dataclasses
from collections.abc import Callable

import numpy as np
from matplotlib.figure import Figure

from kunita.data.image import Grid
from kunita.figures.overview import Layer, View, draw_layer, plane_of, views_of
from kunita.figures.themed import themed
from kunita.outputs.comparison import BeforeAfter
from kunita.outputs.dense import Lattice

SQUARES = 9
"""Of the checkerboard along the longest axis of the grid."""

MOST_PIXELS = 1024
"""Of a plane along one axis."""

DIFFERENCES = "RdBu_r"
"""Colours of differences: blue where the fixed image is darker, red where it is brighter."""


@dataclasses.dataclass(frozen=True, eq=False)
class Compared:
    """Both images on the planes that are drawn.

    Args:
        grid: the fixed one.
        views: of it.
        planes: what is seen on each.
        steps: voxels between two pixels.
    """

    grid: Grid
    views: tuple[View, ...]
    planes: tuple[BeforeAfter, ...]
    steps: int

    def mean_differences(self) -> tuple[float, float]:
        """The mean absolute difference on these planes before and after, in parts of the window,
        where both are known.
        """
        pairs = [plane.differences for plane in self.planes]
        before = np.concatenate([first.ravel() for first, _ in pairs])
        after = np.concatenate([second.ravel() for _, second in pairs])
        known = np.isfinite(before + after)
        if not known.any():
            return float("nan"), float("nan")
        return float(np.abs(before[known]).mean()), float(np.abs(after[known]).mean())


def compared_planes(
    grid: Grid, centre: np.ndarray, on: Callable[[Lattice], BeforeAfter]
) -> Compared:
    """Look at both images on the planes through a voxel."""
    views = tuple(views_of(grid))
    steps = -(-max(grid.shape) // MOST_PIXELS)
    lattices = [_thinned(plane_of(grid, view, centre), steps) for view in views]
    return Compared(grid, views, tuple(on(lattice) for lattice in lattices), steps)


def _thinned(lattice: Lattice, steps: int) -> Lattice:
    return tuple(axis[::steps] for axis in lattice)


@themed
def before_after(compared: Compared) -> Figure:
    """A checkerboard of both images and their difference, each before and after."""
    rows = len(compared.views)
    figure = Figure(figsize=(15.2, 3.8 * rows), layout="constrained")
    axes = figure.subplots(rows, 4, squeeze=False)
    top = _largest_difference(compared)
    for row, (view, plane) in enumerate(zip(compared.views, compared.planes, strict=True)):
        for place, layer in zip(axes[row], _layers(compared, view, plane, top), strict=True):
            drawn = draw_layer(place, layer, view, compared.grid)
        figure.colorbar(drawn, ax=axes[row, -1], shrink=0.85, extend="both")
    return figure


def _largest_difference(compared: Compared) -> float:
    """The end of the colours: most differences before are below."""
    before = np.concatenate([plane.differences[0].ravel() for plane in compared.planes])
    known = np.abs(before[np.isfinite(before)])
    return float(np.quantile(known, 0.98)) if known.any() else 1.0


def _layers(compared: Compared, view: View, plane: BeforeAfter, top: float) -> list[Layer]:
    squares = _squares(compared, plane.fixed.shape, view)
    before, after = plane.differences
    grey = lambda title, moving: Layer(title, np.where(squares, moving, plane.fixed), "gray", 1.0)
    coloured = lambda title, data: Layer(title, data, DIFFERENCES, top, bottom=-top)
    return [
        grey("checkerboard before", plane.before),
        grey("checkerboard after", plane.after),
        coloured("difference before", before),
        coloured("difference after", after),
    ]


def _squares(compared: Compared, shape: tuple[int, ...], view: View) -> np.ndarray:
    """Where a checkerboard of a plane shows the moving image; its squares are square in mm."""
    grid = compared.grid
    edge = float((np.array(grid.shape) * grid.spacing).max()) / SQUARES
    number = np.zeros(shape, dtype=int)
    for axis in (view.right, view.up):
        along = np.arange(shape[axis]) * compared.steps * grid.spacing[axis] // edge
        spread = [1] * len(shape)
        spread[axis] = shape[axis]
        number = number + along.astype(int).reshape(spread)
    return number % 2 == 1
