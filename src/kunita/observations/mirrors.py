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
from kunita.observations.image_noise import TINY, is_steep
from kunita.observations.intensities import Comparison, IntensityLevel

LONGEST_SHIFT = 0.25
"""Over the number of voxels along an axis."""

FAR_BETTER = 0.15
LEAST = 0.5
"""Reversed, gradients are correlated by so much more, and by so much at least, if one of the images
is mirrored. Chosen on a lung and ten pairs of people (`benchmarks/image_relation.py develop`): the
lung is correlated by 0.98, and reversed by 0.61; for people both lie between 0.67 and 0.79 and
differ by 0.02 at most."""

BETTER_BY_CHANCE = 3.0
LARGE_BY_CHANCE = 5.0
"""Small images are correlated by chance, and the largest of many correlations is asked. So the
limits are at least so many standard deviations of chance."""


@dataclasses.dataclass(frozen=True)
class Reversal:
    """What reversing the moving image would change.

    Args:
        axes: of the moving image's voxels that are reversed, counted from 0.
        before: the correlation of gradients as the images are, at the best shift.
        after: the same with these axes reversed.
        chance: the standard deviation of such a correlation of images with nothing in common.
    """

    axes: tuple[int, ...]
    before: float
    after: float
    chance: float = 0.0

    @property
    def is_far_better(self) -> bool:
        return is_far_better(self.before, self.after, self.chance)


def is_far_better(before: float, after: float, chance: float) -> bool:
    """Whether a correlation is large, and larger than another by more than chance."""
    least_gain = max(FAR_BETTER, BETTER_BY_CHANCE * chance)
    least = max(LEAST, LARGE_BY_CHANCE * chance)
    return after > max(least, before + least_gain)


def best_reversal(
    level: IntensityLevel, compared: Comparison, linear: Float[Array, "d d"]
) -> Reversal:
    """The choice of axes with the largest correlation.

    Args:
        level: of coarse images.
        compared: these, aligned but not deformed.
        linear: of that alignment.
    """
    d = len(linear)
    to_space = linear @ level.view.lattice.affine[:d, :d]
    shape = level.view.shape
    fixed = evened(compared.fixed_slopes, compared.counts)
    moving = evened(compared.moving_slopes, compared.counts)
    before = _best_correlation(moving, fixed, shape)
    found = {}
    for axes in _choices(len(shape)):
        turned = _reversed(moving, shape, to_space, axes)
        found[axes] = _best_correlation(turned, fixed, shape)
    best = max(found, key=lambda axes: found[axes])
    return Reversal(best, before, found[best])


def evened(slopes: Float[Array, "k c d"], counts: Float[Array, " k"]) -> Float[Array, "k c d"]:
    """g/√(|g|² + e²), e the typical size of a gradient: outlines count no more than what is inside.

    The outline of a section on a white slide is strong, and much the same on both sides.
    """
    squares = np.sum(slopes**2, axis=2, keepdims=True)
    steep = is_steep(slopes, counts) * counts > 0
    sizes = np.sqrt(squares + _typical(squares[steep]))
    return counts[:, None, None] * slopes / sizes


def _typical(squares: Float[Array, "k c 1"]) -> Float[Array, "c 1"]:
    """e² of each channel; one without any gradient."""
    if not len(squares):
        return np.ones(squares.shape[1:])
    return np.median(squares, axis=0) + TINY


def _choices(dimension: int) -> Iterator[tuple[int, ...]]:
    """All choices of axes but none."""
    for count in range(1, dimension + 1):
        yield from itertools.combinations(range(dimension), count)


def _reversed(
    slopes: Float[Array, "k c d"],
    shape: tuple[int, ...],
    to_space: Float[Array, "d d"],
    axes: tuple[int, ...],
) -> Float[Array, "k c d"]:
    """The gradients of an image that is reversed along some axes of its voxels: B⁻ᵀSBᵀg.

    Gradients are covectors. Along the voxels' axes they are Bᵀg, and there S changes their signs.

    Args:
        slopes: g of the image.
        shape: of its voxels.
        to_space: B, from voxels to the space of the gradients.
        axes: that are reversed.
    """
    signs = np.where(np.isin(np.arange(len(to_space)), axes), -1.0, 1.0)
    mirror = (to_space * signs) @ np.linalg.inv(to_space)
    on_grid = slopes.reshape(*shape, *slopes.shape[1:])
    turned = np.flip(on_grid, axes) @ mirror.astype(np.float32)
    return turned.reshape(slopes.shape)


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
