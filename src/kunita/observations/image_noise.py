"""The noise of compared intensities: its local variance and heavy tails.

**Variance.** A residual has the variance s² + κ²|h|², h the gradient there: beside the noise of the
intensities, voxels lie about κ beside their place, since outlines are cut between voxels. Both are
found from (1.4826 MAD)² of residuals whose gradients are alike. Voxels without a gradient take no
part: they say nothing, and an empty background has no noise. Where the surroundings differ by more,
their mean square is taken: regions that do not match count less. All is found anew at every step.
Large residuals at the beginning make weak data and cautious steps.
"""

import dataclasses
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import optimize

from kunita import smoothing
from kunita.jaxrun.doors import Array

HUBER = 2.5
"""Residuals beyond so many standard deviations pull no more than one of that size."""

CLIP = 4.0
"""Residuals count up to so many standard deviations towards the local variance."""

MAD_TO_SD = 1.4826
"""Of a normal distribution."""

EMPTY = 1e-4
"""Residuals below this share of the largest are those of an empty background."""

LEAST_NOISE = 1e-3
"""The least standard deviation of the noise, over the largest residual, and over the contrast of
what is compared: images that agree to rounding would otherwise have none."""

FLAT = 0.05
"""Voxels whose gradients are below this share of the typical one are an empty background."""

LEAST_OFFSET = 0.05
"""What κ is at least, over the distance of the voxels that are compared. Displacements between
nodes are splines, and features are smoothed before they are moved: without noise, textures are
registered within 0.05 pixels and not better. On sharp outlines, where noise says less than that, 95
% regions held 86 % without this, 93 % with 0.1 (eight pairs); textures without outlines held 95 %
and 97 %."""

BARELY = 1e-6
"""A share of surroundings below this is none."""

CLASSES = 8
"""Of steepness, by which the law of the noise is found."""

ROUNDS = 6
"""In which the line of that law is found."""

MOST_FOR_LAW = 100_000
"""About so many voxels are enough to find that law."""

TINY = float(np.finfo(np.float32).tiny)
"""What a division by zero divides by instead."""


@dataclasses.dataclass(frozen=True, eq=False)
class ImageNoise:
    """The noise model of one step, frozen within it.

    Args:
        variance: (k, c) s² + κ²|h|², times the excess.
        excess: (k, c) by how much the residuals around a voxel vary more than the law says, no less
            than one.
        tails: (k, c) Huber's weights.
        decimation: f.
    """

    variance: np.ndarray
    excess: np.ndarray
    tails: np.ndarray
    decimation: float

    @property
    def weights(self) -> Float[Array, "k c"]:
        """ρ/(s² f)."""
        return self.tails / (self.variance * np.float32(self.decimation))


@dataclasses.dataclass(frozen=True)
class NoiseLaw:
    """The variance of a residual by the gradient h there: s² + κ²|h|².

    Voxels that lie κ beside their place, as those of a mask or of a sharp edge between voxels do,
    have residuals that grow with the gradient.

    Args:
        base: s².
        per_steepness: κ², mm².
    """

    base: float
    per_steepness: float

    def at(self, steepness: Float[Array, " k"]) -> Float[Array, " k"]:
        """Of voxels with some |h|²."""
        return self.base + self.per_steepness * steepness


def noise_law(
    residual: Float[Array, " k"],
    steepness: Float[Array, " k"],
    counts: Float[Array, " k"],
    contrast: float,
    least_offset: float,
) -> NoiseLaw:
    """The law that residuals follow, by robust variances of voxels that are alike in steepness.

    Classes of steepness inform alike: they have equal sums of |h|².

    Args:
        residual: r of one channel.
        steepness: |h|² of it.
        counts: which voxels count, of those that have a gradient.
        contrast: its standard deviation over the image.
        least_offset: what κ is at least, mm.
    """
    seen = np.flatnonzero(counts > 0)
    step = max(1, len(seen) // MOST_FOR_LAW)
    seen = seen[::step]
    sizes = np.abs(residual[seen])
    steep = steepness[seen].astype(np.float64)
    largest = float(sizes.max(initial=0.0))
    least = max((LEAST_NOISE * largest) ** 2, (LEAST_NOISE * contrast) ** 2, TINY)
    is_told = sizes > EMPTY * largest
    if not np.any(is_told):
        return NoiseLaw(least, least_offset**2)
    steep_of_classes, variances = _classes(sizes[is_told], steep[is_told])
    base, per_steepness = _line(steep_of_classes, variances)
    return NoiseLaw(max(base, least), max(per_steepness, least_offset**2))


def _classes(
    sizes: Float[Array, " k"], steepness: Float[Array, " k"]
) -> tuple[Float[Array, " b"], Float[Array, " b"]]:
    """Mean steepness and robust variance of the voxels of each class."""
    order = np.argsort(steepness)
    sums = np.cumsum(steepness[order])
    ends = np.searchsorted(sums, sums[-1] * np.arange(1, CLASSES) / CLASSES)
    parts = [part for part in np.split(order, ends) if len(part)]
    steep = np.array([steepness[part].mean() for part in parts])
    variances = np.array([(MAD_TO_SD * np.median(sizes[part])) ** 2 for part in parts])
    return steep, variances


def _line(steepness: Float[Array, " b"], variances: Float[Array, " b"]) -> tuple[float, float]:
    """s² and κ², neither negative, of the line v = s² + κ²|h|² through the variances.

    A variance errs in proportion to itself: Σ (V/v − 1)² with v of the last round in the
    denominator. With V there, a class of smooth background that hardly has noise would decide.
    """
    scale = max(float(steepness.mean()), TINY)
    columns = np.stack([np.ones_like(steepness), steepness / scale], axis=1)
    line = np.full_like(variances, max(float(variances.mean()), TINY))
    for _ in range(ROUNDS):
        found, _ = optimize.nnls(columns / line[:, None], variances / line)
        line = np.maximum(columns @ found, TINY)
    return float(found[0]), float(found[1] / scale)


class LeastNoise(NamedTuple):
    """What the noise is at least.

    Args:
        contrast: (c,) the standard deviation of each channel over the image, of which s is a small
            share at least.
        offset: κ, mm.
    """

    contrast: np.ndarray
    offset: float


class Surroundings(NamedTuple):
    """What is around the voxels.

    Args:
        shape: of their grid.
        window: (d,) the width of the surroundings along each axis, in voxels of that grid.
    """

    shape: tuple[int, ...]
    window: np.ndarray

    def mean(self, values: Float[Array, " k"], counts: Float[Array, " k"]) -> Float[Array, " k"]:
        """Around each voxel, of those that count; zero where there are none."""
        total = self._sum(values * counts)
        share = self._sum(counts)
        return total / np.maximum(share, BARELY)

    def _sum(self, values: Float[Array, " k"]) -> Float[Array, " k"]:
        on_grid = values.reshape(self.shape).astype(np.float32, copy=False)
        return smoothing.smooth(on_grid, self.window, border="constant").ravel()


def local_excess(
    residual: Float[Array, "k c"],
    expected: Float[Array, "k c"],
    counts: Float[Array, " k"],
    around: Surroundings,
) -> Float[Array, "k c"]:
    """By how much residuals vary more than expected around each voxel, no less than one.

    Args:
        residual: r.
        expected: the variance by the law.
        counts: which voxels count, of those that have a gradient.
        around: what is around them.
    """
    squares = np.minimum(residual**2 / expected, CLIP**2)
    by_channel = [around.mean(one, counts) for one in squares.T]
    return np.maximum(np.stack(by_channel, axis=1), 1.0).astype(np.float32)


def expected_variance(
    residual: Float[Array, "k c"],
    slopes: Float[Array, "k c d"],
    counts: Float[Array, " k"],
    least: LeastNoise,
) -> Float[Array, "k c"]:
    """s² + κ²|h|² of every voxel and channel.

    Args:
        residual: r.
        slopes: h.
        counts: which voxels count, of those that have a gradient.
        least: noise.
    """
    steepness = np.einsum("kcd,kcd->kc", slopes, slopes)
    columns = []
    for channel, contrast in enumerate(least.contrast):
        steep = steepness[:, channel]
        law = noise_law(residual[:, channel], steep, counts, float(contrast), least.offset)
        columns.append(law.at(steep))
    return np.stack(columns, axis=1).astype(np.float32)


def huber_weights(
    residual: Float[Array, "k c"], variance: Float[Array, "k c"]
) -> Float[Array, "k c"]:
    """min(1, 2.5 s/|r|)."""
    relative = np.abs(residual) / np.sqrt(variance)
    return HUBER / np.maximum(relative, HUBER)


def is_steep(slopes: Float[Array, "k c d"], counts: Float[Array, " k"]) -> Float[Array, " k"]:
    """One where any channel has a gradient, compared with the typical one of voxels that count."""
    squares = np.einsum("kcd,kcd->kc", slopes, slopes)
    typical = counts @ squares / max(float(counts.sum()), 1.0)
    return np.any(squares > FLAT**2 * typical, axis=1).astype(np.float32)
