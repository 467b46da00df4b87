"""The noise of compared intensities: its local variance and heavy tails.

**Variance.** A residual has the variance s² + κ²|h|², h the gradient there: beside the noise of the
intensities, voxels lie about κ beside their place, since outlines are cut between voxels. Both are
found from (1.4826 MAD)² of residuals whose gradients are alike, κ within limits. Voxels without a
gradient take no part: they say nothing, and an empty background has no noise. Where the
surroundings differ by more, their mean square is taken: regions that do not match count less. All
is found anew at every step. Large residuals at the beginning make weak data and cautious steps.
"""

import dataclasses
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
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
"""Residuals below this share of the largest are nothing but rounding."""

LEAST_NOISE = 1e-3
"""The least standard deviation of the noise, over the largest residual, and over the contrast of
what is compared: images that agree to rounding would otherwise have none."""

FLAT = 0.05
"""Voxels whose gradients are below this share of the typical one are an empty background."""

BARELY = 1e-6
"""A share of surroundings below this is none."""

LEAST_OFFSET = 0.05
MOST_OFFSET = 0.3
"""What κ is at least and at most, in voxels.

Displacements between nodes are splines, and features are smoothed before they are moved: textures
without noise are registered within 0.05 pixels and not better. An outline that is cut between
pixels lies up to half a pixel beside its place. The upper limit was chosen between two experiments.
Objects that are cut out pixel by pixel need about that much (condition E of
benchmarks/image_truth.py). More of it is not noise but what is not registered yet, or cannot be:
without a limit, labels of brains agree worse (Dice 0.726 against 0.733 on ten pairs for tuning).
"""

CLASSES = 8
"""Of steepness, by which the law of the noise is found."""

ROUNDS = 6
"""In which the line of that law is found."""

LEAST_OF_CLASS = 30
"""Classes with fewer voxels say nothing: one bright pixel has a class of its own."""

MOST_FOR_LAW = 100_000
"""So many voxels are enough to find that law."""

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
    offsets: tuple[float, float],
) -> NoiseLaw:
    """The law that residuals follow, by robust variances of voxels that are alike in steepness.

    Classes of steepness inform alike: they have equal sums of |h|².

    Args:
        residual: r of one channel.
        steepness: |h|² of it.
        counts: which voxels count, of those that have a gradient.
        contrast: its standard deviation over the image.
        offsets: what κ is at least and at most, mm.
    """
    found = _Residuals.of(residual, steepness, counts, contrast)
    shortest, longest = offsets
    if not len(found.sizes):
        return NoiseLaw(found.least, shortest**2)
    base, per_steepness = _line(*_classes(found.sizes, found.steepness))
    if per_steepness > longest**2:
        typical = longest**2 * float(np.median(found.steepness))
        base = max(base, _robust_variance(found.sizes) - typical)
    within = min(max(per_steepness, shortest**2), longest**2)
    return NoiseLaw(max(base, found.least), within)


class _Residuals(NamedTuple):
    """Residuals that the noise is found from.

    Args:
        sizes: |r|.
        steepness: |h|².
        least: what s² is at least.
    """

    sizes: np.ndarray
    steepness: np.ndarray
    least: float

    @classmethod
    def of(
        cls,
        residual: Float[Array, " k"],
        steepness: Float[Array, " k"],
        counts: Float[Array, " k"],
        contrast: float,
    ) -> "_Residuals":
        """Of the voxels that count, or of some of them, without those that are but rounding."""
        some = _some_of(np.flatnonzero(counts > 0))
        sizes = np.abs(residual[some])
        largest = float(sizes.max(initial=0.0))
        is_more = sizes > EMPTY * largest
        least = _least_variance(max(largest, contrast))
        return cls(sizes[is_more], steepness[some][is_more].astype(np.float64), least)


def _least_variance(size: float) -> float:
    """Of what has this size."""
    return max((LEAST_NOISE * size) ** 2, TINY)


def _some_of(rows: Int[Array, " k"]) -> Int[Array, " m"]:
    """Evenly chosen ones, where there are very many."""
    if len(rows) <= MOST_FOR_LAW:
        return rows
    places = np.linspace(0, len(rows) - 1, MOST_FOR_LAW)
    return rows[places.astype(int)]


def _robust_variance(sizes: Float[Array, " k"]) -> float:
    """(1.4826 MAD)²."""
    return (MAD_TO_SD * float(np.median(sizes))) ** 2


def _classes(
    sizes: Float[Array, " k"], steepness: Float[Array, " k"]
) -> tuple[Float[Array, " b"], Float[Array, " b"]]:
    """Mean steepness and robust variance of the voxels of each class; of all, if all are few."""
    order = np.argsort(steepness)
    sums = np.cumsum(steepness[order])
    ends = np.searchsorted(sums, sums[-1] * np.arange(1, CLASSES) / CLASSES)
    parts = [part for part in np.split(order, ends) if len(part) >= LEAST_OF_CLASS] or [order]
    steep = np.array([steepness[part].mean() for part in parts])
    variances = np.array([_robust_variance(sizes[part]) for part in parts])
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


class NoiseLimits(NamedTuple):
    """Between which limits the noise of the channels is.

    Args:
        contrast: (c,) the standard deviation of each channel over the image, of which s is a small
            share at least.
        offsets: what κ is at least and at most, mm.
    """

    contrast: np.ndarray
    offsets: tuple[float, float]


class Surroundings(NamedTuple):
    """What is around the voxels.

    Args:
        shape: of their grid.
        window: (d,) the width of the surroundings along each axis, in voxels of that grid.
    """

    shape: tuple[int, ...]
    window: np.ndarray

    def share(self, counts: Float[Array, " k"]) -> Float[Array, " k"]:
        """Of the surroundings that counts."""
        return self._sum(counts)

    def means(self, values: Float[Array, "k c"], counts: Float[Array, " k"]) -> Float[Array, "k c"]:
        """Around each voxel, of those that count; zero where there are none."""
        share = np.maximum(self.share(counts), BARELY)
        totals = [self._sum(one * counts) for one in values.T]
        return np.stack(totals, axis=1) / share[:, None]

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
    return np.maximum(around.means(squares, counts), 1.0).astype(np.float32)


def expected_variance(
    residual: Float[Array, "k c"],
    slopes: Float[Array, "k c d"],
    counts: Float[Array, " k"],
    limits: NoiseLimits,
) -> Float[Array, "k c"]:
    """s² + κ²|h|² of every voxel and channel.

    Args:
        residual: r.
        slopes: h.
        counts: which voxels count, of those that have a gradient.
        limits: of the noise.
    """
    steepness = np.einsum("kcd,kcd->kc", slopes, slopes)
    columns = []
    for channel, contrast in enumerate(limits.contrast):
        steep = steepness[:, channel]
        law = noise_law(residual[:, channel], steep, counts, float(contrast), limits.offsets)
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
