"""Images carried by a registration: a fixed voxel takes the value of the moving image where it
comes from.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from kunita.data.image import Image, as_grid
from kunita.data.slices import in_plane, on_slice
from kunita.errors import ArgumentError, ImageError
from kunita.outputs.dense import slabs
from kunita.outputs.maps import PullBack, pull_back, warn
from kunita.record import Registration

INTERPOLATIONS = ("nearest", "linear", "cubic")

SNAP = 1e-6
"""A point closer than this to a voxel's centre, in voxels, is that centre: what does not move stays
bit for bit."""


def warp_image(
    reg: Registration,
    image: Any,
    reference: Any,
    *,
    interpolation: str = "linear",
    inverse: bool = False,
) -> Image:
    """The moving image on the grid of the reference, an Image or Grid in fixed space.

    Args:
        reg: a registration.
        image: an image of the moving space; its type of numbers is kept, and what lies outside of
            it becomes 0.
        reference: where the voxels of the result are. Where planes were registered, image and
            reference may be volumes of one slice, stored the same way.
        interpolation: "linear", "cubic", or "nearest" for labels.
        inverse: warp a *fixed* image onto a grid of the *moving* space instead.
    """
    _check(image, interpolation)
    place = as_grid(reference)
    image = in_plane(image, place, reg.fixed.dimension, "image")
    pulled = pull_back(reg, place, inverse=inverse)
    warn(pulled.remarks)
    data = np.concatenate(
        list(warped_slabs(pulled, image, interpolation)), axis=pulled.grid.dimension - 1
    )
    return on_slice(Image(data, pulled.grid.affine, image.channels), place)


def warped_slabs(pulled: PullBack, image: Image, interpolation: str) -> Iterator[np.ndarray]:
    """The warped image slab by slab, in the image's type of numbers."""
    _check(image, interpolation)
    if image.grid.dimension != pulled.grid.dimension:
        raise ImageError(
            f"image: expected {pulled.grid.dimension}-D, found {image.grid.dimension}-D"
        )
    look_up = interpolator(image, interpolation)
    for slab in slabs(pulled.grid):
        yield look_up(image.grid.index(pulled.origins(slab)))


def interpolator(image: Image, interpolation: str) -> Callable[[np.ndarray], np.ndarray]:
    """A function from (…, d) voxel coordinates to values (with channels, if there are any); 0
    outside.
    """
    from scipy import ndimage  # takes long to import

    if interpolation == "nearest":
        return lambda index: nearest(image, index)
    planes = (
        [image.data[..., c] for c in range(image.data.shape[-1])]
        if image.channels
        else [image.data]
    )
    order = {"linear": 1, "cubic": 3}[interpolation]
    if order > 1:
        planes = [
            ndimage.spline_filter(plane, order, output=np.float64, mode="mirror")
            for plane in planes
        ]

    def look_up(index: np.ndarray) -> np.ndarray:
        index = _snapped(index)
        last = np.array(image.grid.shape) - 1
        inside = np.all(
            (index >= -0.5 - SNAP) & (index <= last + 0.5 + SNAP), axis=-1
        )  # within the outer voxels too
        coordinates = np.moveaxis(np.clip(index, 0, last), -1, 0)
        values = [
            inside
            * ndimage.map_coordinates(
                plane, coordinates, np.float64, order, mode="mirror", prefilter=False
            )
            for plane in planes
        ]
        smooth = as_type(
            np.stack(values, axis=-1) if image.channels else values[0], image.data.dtype
        )
        still = np.all(
            index == np.rint(index), axis=-1
        )  # a voxel's own centre: its own value, bit for bit
        smooth[still] = nearest(image, index[still])
        return smooth

    return look_up


def nearest(image: Image, index: np.ndarray) -> np.ndarray:
    """The values of the voxels that hold (…, d) coordinates; 0 outside the image."""
    voxels = np.floor(index + (0.5 + SNAP)).astype(
        np.int64
    )  # halves always up: no voxel is skipped
    inside = np.all((voxels >= 0) & (voxels < image.grid.shape), axis=-1)
    values = image.data[tuple(np.moveaxis(np.where(inside[..., None], voxels, 0), -1, 0))]
    values[~inside] = 0
    return values


def as_type(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Numbers in a type that may be narrower: rounded and kept within its range, never wrapped
    around.
    """
    if dtype.kind == "f":
        return values.astype(dtype)
    low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return np.clip(np.rint(values), low, high).astype(dtype)


def _snapped(index: np.ndarray) -> np.ndarray:
    whole = np.rint(index)
    return np.where(np.abs(index - whole) < SNAP, whole, index)


def _check(image: Any, interpolation: str) -> None:
    if not isinstance(image, Image):
        raise ImageError(f"image: expected an Image (see read_image), found {type(image).__name__}")
    if interpolation not in INTERPOLATIONS:
        raise ArgumentError(
            f"interpolation: expected one of {', '.join(INTERPOLATIONS)}, found {interpolation!r}"
        )
