"""The structure that images have where they count: gradients at some of their voxels."""

import dataclasses
import functools

import numpy as np
from jaxtyping import Float

from kunita.errors import ImageError
from kunita.jaxrun.doors import Array
from kunita.observations.features import features
from kunita.observations.image_pair import ImagePair, ImageSide

MOST_VOXELS = 200_000
"""Of each image that are asked."""

SMOOTHING = 1.0
"""Of the images, voxels."""


@dataclasses.dataclass(frozen=True, eq=False)
class Slopes:
    """Gradients of an image's features at some of its voxels.

    Args:
        places: (k, d) the voxels.
        gradients: (k, c, d) per mm of the space in which these are.
    """

    places: np.ndarray
    gradients: np.ndarray

    @functools.cached_property
    def total(self) -> float:
        """Σ|g|²."""
        return float(np.sum(self.gradients**2, dtype=np.float64))


def slopes_of(pair: ImagePair) -> tuple[Slopes, Slopes]:
    """Slopes of the moving image in its world, and of the fixed one in the space of the flow.

    An image without any where it counts is refused.
    """
    moving = Slopes(*_slopes(pair, pair.moving, "moving"))
    places, gradients = _slopes(pair, pair.fixed, "fixed")
    return moving, Slopes(places - pair.origin, gradients)


def _slopes(
    pair: ImagePair, side: ImageSide, name: str
) -> tuple[Float[Array, "k d"], Float[Array, "k c d"]]:
    """Some of the voxels that count in the world of their image, and gradients per mm of it."""
    d = side.dimension
    values = features(side.data, side.spacing, pair.metric, SMOOTHING, pair.voxel, pair.options)
    numbers = np.flatnonzero(side.mask)
    step = -(-len(numbers) // MOST_VOXELS)
    chosen = np.unravel_index(numbers[::step], side.mask.shape)
    by_axis = [np.gradient(values, axis=axis)[chosen] for axis in range(d)]
    to_voxels = np.linalg.inv(side.affine[:d, :d])
    gradients = np.stack(by_axis, axis=-1) @ to_voxels
    if not np.any(gradients):
        raise ImageError(
            f"{name} image: it has no structure where it counts, so there is nothing to register"
        )
    places = np.stack(chosen, axis=-1) @ side.affine[:d, :d].T + side.affine[:d, d]
    return places, gradients
