"""One look at a registration: the fixed image, the warped one on top of it, and how sure the registration is where."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from kunita.data.image import Grid, Image
from kunita.outputs.dense import Lattice, plane
from kunita.outputs.maps import Maps
from kunita.outputs.summary import LandmarkRows
from kunita.outputs.warp import interpolator

VIEWS = ((2, "axial"), (1, "coronal"), (0, "sagittal"))
NEAR_MM = 4.0
"""Landmarks within this distance of a plane are drawn on it."""


def overview(found: Maps, fixed: Image, moving: Image | None, rows: LandmarkRows) -> Figure:
    """Planes through the middle of the landmarks: fixed image, warped moving image, 95 % radius in mm."""
    grid = found.grid
    centre = np.clip(np.rint(grid.index(np.median(rows.fixed, axis=0))), 0, np.array(grid.shape) - 1)
    views = _views(grid)
    titles = ["fixed image", *(["moving image, warped"] if moving is not None else []), "95 % radius (mm)"]
    figure = Figure(figsize=(4.2 * len(titles), 3.8 * len(views)), layout="constrained")
    axes = figure.subplots(len(views), len(titles), squeeze=False)
    planes = [plane(grid, axis, centre[axis]) if axis is not None else _everything(grid) for axis, _ in views]
    top = float(np.quantile(np.concatenate([found.on(p, "radius").ravel() for p in planes]), 0.98))
    for row, ((axis, title), lattice) in enumerate(zip(views, planes, strict=True)):
        pictures: list[tuple[np.ndarray, str, float | None]] = [(_cut(fixed, lattice), "gray", None)]
        if moving is not None:
            index = moving.grid.index(found.pull_back.origins(lattice))
            pictures.append((interpolator(moving, "linear")(index), "gray", None))
        pictures.append((found.on(lattice, "radius"), "viridis", top))
        for column, (data, colours, limit) in enumerate(pictures):
            drawn = _draw(axes[row, column], data, axis, grid, colours, limit)
            _dots(axes[row, column], rows, grid, axis, centre)
            axes[row, column].set_title(f"{titles[column]}, {title}" if title else titles[column], fontsize=10)
        figure.colorbar(drawn, ax=axes[row, -1], shrink=0.85)
    return figure


def _views(grid: Grid) -> list[tuple[int | None, str]]:
    """One plane across each axis of the world that the grid's axes are closest to; in 2-D the picture itself."""
    if grid.dimension == 2:
        return [(None, "")]
    nearest = np.abs(grid.affine[:3, :3] / grid.spacing)
    return [(int(np.argmax(nearest[world])), name) for world, name in VIEWS]


def _everything(grid: Grid) -> Lattice:
    return tuple(np.arange(n, dtype=float) for n in grid.shape)


def _cut(image: Image, lattice: Lattice) -> np.ndarray:
    return image.data[np.ix_(*(axis.astype(int) for axis in lattice))]


def _draw(axes: Any, data: np.ndarray, axis: int | None, grid: Grid, colours: str, limit: float | None) -> Any:
    """A plane with the world's directions as people expect them: up is up, and x grows to the right."""
    flat = data if axis is None else np.squeeze(data, axis=axis)
    spacing = grid.spacing if axis is None else np.delete(grid.spacing, axis)
    shown = np.swapaxes(flat, 0, 1)
    low = 0.0 if limit else None
    drawn = axes.imshow(
        shown, cmap=colours, origin="upper" if axis is None else "lower", vmin=low, vmax=limit,
        aspect=float(spacing[1] / spacing[0]), interpolation="nearest",
    )  # fmt: skip
    if axis is not None:
        directions = np.delete(grid.affine[:3, :3] / grid.spacing, axis, axis=1)
        strongest = [directions[np.argmax(np.abs(directions[:, k])), k] for k in (0, 1)]
        axes.set_xlim(*sorted(axes.get_xlim(), reverse=bool(strongest[0] < 0)))
        axes.set_ylim(*sorted(axes.get_ylim(), reverse=bool(strongest[1] < 0)))
    axes.set_xticks([])
    axes.set_yticks([])
    return drawn


def _dots(axes: Any, rows: LandmarkRows, grid: Grid, axis: int | None, centre: np.ndarray) -> None:
    """Fixed landmarks as circles, predicted ones as crosses, where they are near the plane."""
    fixed, predicted = grid.index(rows.fixed), grid.index(rows.predicted)
    if axis is not None:
        near = np.abs(fixed[:, axis] - centre[axis]) * grid.spacing[axis] < NEAR_MM
        fixed, predicted = (np.delete(points[near], axis, axis=1) for points in (fixed, predicted))
    limits = axes.get_xlim(), axes.get_ylim()
    axes.plot(*fixed.T, "o", mfc="none", mec="tab:red", ms=6, mew=1.2)
    axes.plot(*predicted.T, "+", color="tab:orange", ms=6, mew=1.2)
    axes.set_xlim(limits[0])
    axes.set_ylim(limits[1])
