"""Smoothing of images by Gaussians."""

import numpy as np
from jaxtyping import Float
from scipy import ndimage

from kunita import splines
from kunita.jaxrun.doors import Array

MOST_BY_MATRIX = 12
"""Up to so many voxels along an axis for each tap of the filter it is a product with a matrix: its
numbers are multiplied many times faster than the taps of SciPy's loop."""


def smooth(
    values: Float[Array, "*grid"],
    widths: Float[Array, " d"],
    border: str = "nearest",
    truncate: float = 3.0,
) -> Float[Array, "*grid"]:
    """Smooth by a Gaussian.

    Args:
        values: in single precision.
        widths: standard deviations along each axis, in voxels.
        border: what lies beyond the image, as SciPy names it: "nearest" or "constant" (zero).
        truncate: where the Gaussian ends, in standard deviations.
    """
    smoothed = values
    for axis, width in enumerate(widths):
        if width == 0:
            continue
        count = values.shape[axis]
        taps = 2 * truncate * width + 1
        if count <= MOST_BY_MATRIX * taps:
            matrix = _along(np.eye(count), float(width), 0, border, truncate)
            smoothed = splines.multiply_along(matrix.astype(np.float32), smoothed, axis)
        else:
            smoothed = _along(smoothed, float(width), axis, border, truncate)
    return smoothed


def _along(values: np.ndarray, width: float, axis: int, border: str, truncate: float) -> np.ndarray:
    """SciPy's filter along one axis; of unit vectors it makes its own matrix."""
    return ndimage.gaussian_filter1d(values, width, axis, mode=border, truncate=truncate)
