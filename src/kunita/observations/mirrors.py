"""Whether one of two images is mirrored or upside down, by the gradients of coarse images.

Files say how their axes lie in the world, and some say it wrongly. Then the images may still agree
somewhat: a chest upside down has the outline of a chest. So the moving image is reversed along
every choice of its axes, and shifted against the fixed one by up to a quarter of its length. If
gradients are then correlated by far more, that is said.
"""

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np
import scipy.fft
from jaxtyping import Float

from kunita.jaxrun.doors import Array
from kunita.observations.intensities import Comparison, IntensityLevel

LONGEST_SHIFT = 0.25
"""Over the number of voxels along an axis."""

FAR_BETTER = 0.15
LEAST = 0.5
"""Reversed, gradients are correlated by so much more, and by so much at least, if one of the images
is mirrored."""


@dataclasses.dataclass(frozen=True)
class Reversal:
    """What reversing the moving image would change.

    Args:
        axes: of the moving image's voxels that are reversed, counted from 0.
        before: the correlation of gradients as the images are, at the best shift.
        after: the same with these axes reversed.
    """

    axes: tuple[int, ...]
    before: float
    after: float

    @property
    def is_far_better(self) -> bool:
        return self.after > max(LEAST, self.before + FAR_BETTER)


def best_reversal(level: IntensityLevel, compared: Comparison) -> Reversal:
    """The choice of axes with the largest correlation.

    Args:
        level: of coarse images.
        compared: these, aligned but not deformed.
    """
    seen = compared.counts[:, None, None]
    shape = level.view.shape
    fixed = compared.fixed_slopes * seen
    moving = compared.moving_slopes * seen
    before = _best_correlation(moving, fixed, shape)
    found = {}
    for axes in _choices(len(shape)):
        turned = _reversed(moving, level, axes)
        found[axes] = _best_correlation(turned, fixed, shape)
    best = max(found, key=lambda axes: found[axes])
    return Reversal(best, before, found[best])


def _choices(dimension: int) -> Iterator[tuple[int, ...]]:
    """All choices of axes but none."""
    for count in range(1, dimension + 1):
        yield from itertools.combinations(range(dimension), count)


def _reversed(
    slopes: Float[Array, "k c d"], level: IntensityLevel, axes: tuple[int, ...]
) -> Float[Array, "k c d"]:
    """The gradients of an image that is reversed along some axes of its voxels.

    They are taken for those along the axes of the voxels, as the alignment hardly turns them.
    """
    k, c, d = slopes.shape
    turn = np.linalg.svd(level.view.lattice.affine[:d, :d])
    frame = turn.U @ turn.Vh
    signs = np.where(np.isin(np.arange(d), axes), -1.0, 1.0)
    mirror = (frame * signs) @ frame.T
    on_grid = slopes.reshape(*level.view.shape, c, d)
    turned = np.flip(on_grid, axes) @ mirror.astype(np.float32)
    return turned.reshape(k, c, d)


def _best_correlation(
    moving: Float[Array, "k c d"], fixed: Float[Array, "k c d"], shape: tuple[int, ...]
) -> float:
    """The largest Σ f·m/√(Σ|f|² Σ|m|²) over all shifts."""
    size = float(np.linalg.norm(moving)) * float(np.linalg.norm(fixed))
    if size == 0:
        return 0.0
    longest = [int(LONGEST_SHIFT * count) for count in shape]
    sums = _sums_by_shift(moving, fixed, shape, longest)
    allowed = [np.arange(-most, most + 1) for most in longest]
    return float(sums[np.ix_(*allowed)].max() / size)


def _sums_by_shift(
    moving: Float[Array, "k c d"],
    fixed: Float[Array, "k c d"],
    shape: tuple[int, ...],
    longest: list[int],
) -> Float[Array, "*padded"]:
    """Σ m(x)·f(x + shift); shifts that are negative count from the end of each axis."""
    axes = range(len(shape))
    padded = [
        scipy.fft.next_fast_len(count + most, real=True)
        for count, most in zip(shape, longest, strict=True)
    ]
    of_moving, of_fixed = (
        scipy.fft.rfftn(values.reshape(*shape, -1), padded, axes=axes) for values in (moving, fixed)
    )
    spectrum = np.sum(np.conj(of_moving) * of_fixed, axis=-1)
    return scipy.fft.irfftn(spectrum, padded, axes=axes)
