"""How much of one image lies inside another."""

import numpy as np

from kunita.data.image import Grid, Image
from kunita.errors import ImageError

MOST_SAMPLED = 200_000
"""Voxels at which an overlap is measured, at most."""


def overlap(
    moving: Image,
    fixed: Image,
    matrix: np.ndarray,
    moving_mask: Image | None = None,
    fixed_mask: Image | None = None,
) -> float:
    """The share of the moving voxels that lie inside the fixed image after an alignment.

    Args:
        moving, fixed: the images; only their grids count.
        matrix: (d + 1, d + 1) from moving world to fixed world.
        moving_mask: only its voxels that are not zero count. It need not be on the
            moving image's grid. Default: all voxels of the moving image.
        fixed_mask: voxels of the fixed image count where it is not zero. Default: all.
    """
    d = moving.grid.dimension
    points = _sampled_points(moving, moving_mask)
    arrived = points @ matrix[:d, :d].T + matrix[:d, d]
    is_inside = _lies_inside(fixed.grid, arrived)
    if fixed_mask is not None:
        is_inside &= _lies_in_mask(fixed_mask, arrived)
    return float(np.mean(is_inside))


def _sampled_points(image: Image, mask: Image | None) -> np.ndarray:
    """World coordinates of an image's voxels inside its mask, if any; a part of very many."""
    if mask is None:
        chosen = _sampled(np.arange(image.grid.size))
        return _voxel_centres(image.grid, chosen)
    is_masked = _as_mask(mask, image.grid.dimension)
    chosen = _sampled(np.flatnonzero(is_masked))
    points = _voxel_centres(mask.grid, chosen)
    inside = points[_lies_inside(image.grid, points)]
    if not len(inside):
        raise ImageError("mask: expected voxels that are not zero inside its image, found none")
    return inside


def _sampled(numbers: np.ndarray) -> np.ndarray:
    """All of them, or if they are very many, a random part."""
    if len(numbers) <= MOST_SAMPLED:
        return numbers
    key = np.random.default_rng(0)
    return numbers[key.integers(len(numbers), size=MOST_SAMPLED)]


def _voxel_centres(grid: Grid, numbers: np.ndarray) -> np.ndarray:
    """World coordinates of voxels by their numbers, the last axis varying fastest."""
    index = np.unravel_index(numbers, grid.shape)
    return grid.world(np.stack(index, axis=-1))


def _lies_inside(grid: Grid, points: np.ndarray) -> np.ndarray:
    """Whether each point lies in a voxel of the grid."""
    nearest = np.rint(grid.index(points))
    last = np.array(grid.shape) - 1
    return np.all((nearest >= 0) & (nearest <= last), axis=-1)


def _lies_in_mask(mask: Image, points: np.ndarray) -> np.ndarray:
    """Whether each point lies in a voxel of the mask that is not zero."""
    is_masked = _as_mask(mask, points.shape[1])
    found = _lies_inside(mask.grid, points)
    nearest = np.rint(mask.grid.index(points[found])).astype(int)
    found[found] = is_masked[tuple(nearest.T)]
    return found


def _as_mask(mask: Image, d: int) -> np.ndarray:
    """Where a mask is neither zero nor NaN."""
    if mask.channels or mask.grid.dimension != d:
        raise ImageError(f"mask: expected one channel in {d}-D, found shape {mask.data.shape}")
    return np.nan_to_num(mask.data) != 0
