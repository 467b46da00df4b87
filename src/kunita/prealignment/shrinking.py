"""Images made ready for the search for an alignment: finite, shrunk, between 0 and 1."""

import numpy as np
from scipy import ndimage

from kunita.data.image import Grid, Image
from kunita.errors import ImageError
from kunita.prealignment.options import Level, SearchOptions

LEAST_VOXELS = 4
"""Along each axis; with fewer an image has no inside, and no gradient to follow."""

LEAST_SHRUNK = 8
"""No axis is shrunk to fewer voxels than this."""

LARGER = 8
"""How many times the voxels of a level the larger of two images may keep."""


def voxel_length(moving: Grid, fixed: Grid, voxels: int) -> float:
    """The length of voxels of which the smaller image has so many; no shorter than its own."""
    lengths = []
    for grid in (moving, fixed):
        own = grid.voxel_volume
        wanted = own * grid.size / voxels
        lengths.append(max(own, wanted) ** (1 / grid.dimension))
    return min(lengths)


def ready(image: Image, side: str, length: float, options: SearchOptions) -> Image:
    """An image at the finest level: one channel, finite, shrunk, clipped, between 0 and 1."""
    _check_voxels(image.grid, side)
    values = image.data.mean(axis=-1) if image.channels else image.data
    finite = _finite(values, side)
    shrunk = _shrunk(Image(finite, image.affine), length, options.fine[-1].voxels)
    low, high = _range(shrunk.data, options.clipped)
    if not high > low:
        raise ImageError(
            f"{side} image: all its voxels have the same value, so there is nothing to align"
        )
    relative = (shrunk.data - low) / (high - low)
    return Image(np.clip(relative, 0, 1), shrunk.affine)


def _check_voxels(grid: Grid, side: str) -> None:
    """Refuse an image that is too thin."""
    if min(grid.shape) < LEAST_VOXELS:
        size = "×".join(str(n) for n in grid.shape)
        raise ImageError(
            f"{side} image: expected at least {LEAST_VOXELS} voxels along each axis to align by, "
            f"found {size}; give a single slice as a 2-D image"
        )


def _finite(values: np.ndarray, side: str) -> np.ndarray:
    """Values with the median in place of those that are not finite."""
    is_finite = np.isfinite(values)
    if np.all(is_finite):
        return values
    if not np.any(is_finite):
        raise ImageError(f"{side} image: expected finite voxels, found none")
    median = np.median(values[is_finite])
    return np.where(is_finite, values, median)


def _range(values: np.ndarray, clipped: float) -> tuple[float, float]:
    """Between which values all but a share at either end lie; if nothing does, the whole range."""
    low, high = np.quantile(values, [clipped, 1 - clipped])
    if high > low:
        return float(low), float(high)
    return float(values.min()), float(values.max())


def at_level(image: Image, length: float, level: Level) -> Image:
    """An image as it is compared at a level."""
    shrunk = _shrunk(image, length, level.voxels)
    smooth = ndimage.gaussian_filter(shrunk.data, level.smoothing, mode="nearest")
    return Image(smooth, shrunk.affine)


def _shrunk(image: Image, length: float, voxels: int) -> Image:
    """Means over blocks of voxels whose edges have about the same length.

    Args:
        image: of one channel.
        length: of the edges. They are longer if there would be very many blocks.
        voxels: how many blocks the smaller of two images has.
    """
    grid = image.grid
    volume = grid.voxel_volume * grid.size
    least = (volume / (LARGER * voxels)) ** (1 / grid.dimension)
    wanted = np.rint(max(length, least) / grid.spacing)
    most = np.array(grid.shape) // LEAST_SHRUNK
    factors = np.maximum(np.minimum(wanted, most), 1).astype(int)
    data = image.data
    for axis, factor in enumerate(factors.tolist()):
        data = _block_means(data, factor, axis)
    affine = image.affine @ np.diag(np.append(factors, 1.0))
    affine[:-1, -1] = grid.world((factors - 1) / 2)
    return Image(data, affine)


def _block_means(data: np.ndarray, factor: int, axis: int) -> np.ndarray:
    """Means of so many neighbours along an axis; what is left over at its end is dropped."""
    if factor == 1:
        return data
    lines = np.moveaxis(data, axis, 0)
    length = len(lines) // factor * factor
    total = np.zeros((length // factor, *lines.shape[1:]))
    for first in range(factor):
        total += lines[first:length:factor]
    return np.moveaxis(total / factor, 0, axis)
