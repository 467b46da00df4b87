"""The noise of compared intensities: its local variance, heavy tails, and correlated neighbours.

**Variance.** s² is (1.4826 MAD)² of the residual, and where the surroundings differ by more, their
mean square: regions that do not match count less. It is found anew at every step. Large residuals
at the beginning make weak data and cautious steps.

**Decimation.** Neighbouring residuals are correlated. With the autocorrelation ρ of r/s the score
Σ h w r varies by Σ h ρ h, and not by Σ h h. So a voxel counts as 1/f of an independent one,

    f = Σ h·(ρ ∗ h) / Σ h·h,    h in units of s.

Where channels are compared together, ρ is a matrix of correlations. At least f is what smoothing
by τ makes of white noise, ρ(r) = exp(−r²/4τ²).
"""

import dataclasses

import numpy as np
import scipy.fft
from jaxtyping import Float
from scipy import ndimage

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

CUT = 0.05
"""The autocorrelation is used up to the distance where its mean falls below this."""

TINY = float(np.finfo(np.float32).tiny)
"""What a division by zero divides by instead."""

LEAST_OVERLAP = 0.05
"""Lags at which fewer pairs than this share of all overlap are left out."""


@dataclasses.dataclass(frozen=True, eq=False)
class ImageNoise:
    """The noise model of one step, frozen within it.

    Args:
        variance: (k, c) s².
        tails: (k, c) Huber's weights.
        decimation: f.
    """

    variance: np.ndarray
    tails: np.ndarray
    decimation: float

    @property
    def weights(self) -> Float[Array, "k c"]:
        """ρ/(s² f)."""
        return self.tails / (self.variance * np.float32(self.decimation))


def robust_variance(residual: Float[Array, " k"], counts: Float[Array, " k"]) -> float:
    """(1.4826 MAD)² of the residuals that count.

    Residuals of exactly zero, or nearly, are those of an empty background around what is compared,
    and say nothing of the noise. If nothing else is left, the images agree to rounding, and it is
    zero.
    """
    seen = np.abs(residual[counts > 0])
    largest = float(seen.max(initial=0.0))
    seen = seen[seen > EMPTY * largest]
    if not len(seen):
        return 0.0
    sd = MAD_TO_SD * float(np.median(seen))
    return max(sd**2, (LEAST_NOISE * largest) ** 2)


def local_variance(
    residual: Float[Array, "k c"],
    counts: Float[Array, " k"],
    shape: tuple[int, ...],
    window: Float[Array, " d"],
    contrast: Float[Array, " c"],
) -> Float[Array, "k c"]:
    """s² of every voxel and channel.

    Args:
        residual: r.
        counts: which voxels count.
        shape: of their grid.
        window: the width of the surroundings along each axis, in voxels of this grid.
        contrast: the standard deviation of each channel over the image.
    """
    on_grid = counts.reshape(shape)
    share = ndimage.gaussian_filter(on_grid, window, mode="constant") + 1e-6
    columns = []
    for one, spread in zip(residual.T, contrast, strict=True):
        common = max(robust_variance(one, counts), (LEAST_NOISE * spread) ** 2, TINY)
        clipped = np.minimum(one**2, CLIP**2 * common) * counts
        mean = ndimage.gaussian_filter(clipped.reshape(shape), window, mode="constant") / share
        columns.append(np.maximum(mean.ravel(), common))
    return np.stack(columns, axis=1).astype(np.float32)


def huber_weights(
    residual: Float[Array, "k c"], variance: Float[Array, "k c"]
) -> Float[Array, "k c"]:
    """min(1, 2.5 s/|r|)."""
    relative = np.abs(residual) / np.sqrt(variance)
    return HUBER / np.maximum(relative, HUBER)


def share_of_background(slopes: Float[Array, "k c d"], counts: Float[Array, " k"]) -> float:
    """The share of the voxels that count, in which no channel has a gradient."""
    seen = slopes[counts > 0]
    squares = np.sum(seen.astype(np.float64) ** 2, axis=2)
    is_flat = squares <= FLAT**2 * np.mean(squares, axis=0)
    return float(np.mean(np.all(is_flat, axis=1))) if len(seen) else 0.0


# -------------------------------------------------------------------------------------- decimation


def decimation(
    scaled_residual: Float[Array, "k c"],
    scaled_slopes: Float[Array, "k c d"],
    shape: tuple[int, ...],
    spacing: Float[Array, " d"],
    smoothing: float,
) -> float:
    """The decimation factor f: how many voxels count as one.

    Args:
        scaled_residual: r/s, zero where nothing is compared.
        scaled_slopes: h/s, likewise.
        shape: of the grid of voxels.
        spacing: of that grid, mm.
        smoothing: τ, mm.
    """
    lags = _Lags.of(shape, spacing)
    correlations = lags.correlations(scaled_residual)
    distances = lags.distances
    white = np.exp(-((distances / (2 * smoothing)) ** 2)) if smoothing > 0 else distances == 0
    num_channels = scaled_residual.shape[1]
    found = 0.0
    least = 0.0
    total = float(np.sum(scaled_slopes.astype(np.float64) ** 2))
    for a in range(scaled_slopes.shape[2]):
        waves = [lags.transform(scaled_slopes[:, c, a]) for c in range(num_channels)]
        for c in range(num_channels):
            least += lags.inner(waves[c], waves[c], white)
            for e in range(num_channels):
                found += lags.inner(waves[c], waves[e], correlations[c, e])
    return max(found, least) / max(total, TINY)


def correlated(
    scaled_residual: Float[Array, "k c"],
    scaled_slopes: Float[Array, "k c d"],
    shape: tuple[int, ...],
    spacing: Float[Array, " d"],
) -> Float[Array, "k c d"]:
    """Σ_y ρ(y − x) h(y): the slopes h/s, averaged as the residuals r/s are correlated.

    Args:
        scaled_residual: r/s, zero where nothing is compared.
        scaled_slopes: h/s, likewise.
        shape: of the grid of voxels.
        spacing: of that grid, mm.
    """
    lags = _Lags.of(shape, spacing)
    correlations = lags.correlations(scaled_residual).astype(np.float32)
    averaged = np.zeros_like(scaled_slopes)
    num_channels, d = scaled_slopes.shape[1:]
    for c, e in np.ndindex(num_channels, num_channels):
        kernel = scipy.fft.rfftn(correlations[c, e])
        for a in range(d):
            averaged[:, c, a] += lags.correlate(kernel, scaled_slopes[:, e, a])
    return averaged


@dataclasses.dataclass(frozen=True, eq=False)
class _Lags:
    """Correlations over all lags on a padded grid, by Fourier transforms.

    Args:
        shape: of the voxels.
        padded: so that lags of a quarter of it do not wrap around.
        distances: of every lag, mm.
    """

    shape: tuple[int, ...]
    padded: tuple[int, ...]
    distances: np.ndarray

    @classmethod
    def of(cls, shape: tuple[int, ...], spacing: np.ndarray) -> "_Lags":
        padded = tuple(scipy.fft.next_fast_len(n + n // 4 + 8, real=True) for n in shape)
        squared = np.zeros(padded, np.float32)
        for axis, (count, step) in enumerate(zip(padded, spacing, strict=True)):
            lag = np.minimum(np.arange(count), count - np.arange(count)) * step
            along = [1] * len(padded)
            along[axis] = count
            squared = squared + (lag.reshape(along) ** 2).astype(np.float32)
        return cls(shape, padded, np.sqrt(squared))

    def transform(self, values: Float[Array, " k"]) -> np.ndarray:
        return scipy.fft.rfftn(values.reshape(self.shape), self.padded)

    def inner(self, first: np.ndarray, second: np.ndarray, kernel: np.ndarray) -> float:
        """Σ a(x) ρ(lag) b(x + lag), where the correlation ρ of two channels need not be even."""
        spectrum = np.conj(scipy.fft.rfftn(kernel.astype(np.float32)))
        cross = scipy.fft.irfftn(np.conj(first) * second * spectrum, self.padded)
        return float(cross[(0,) * len(self.shape)])

    def correlate(self, kernel: np.ndarray, values: Float[Array, " k"]) -> Float[Array, " k"]:
        """Σ_y ρ(y − x) a(y) at every voxel x, from the transform of ρ."""
        whole = scipy.fft.irfftn(np.conj(kernel) * self.transform(values), self.padded)
        inside = tuple(slice(count) for count in self.shape)
        return whole[inside].ravel()

    def correlations(self, scaled: Float[Array, "k c"]) -> Float[Array, "c c *padded"]:
        """Correlations between channels at every lag, zero beyond the distance of the cut."""
        seen = np.any(scaled != 0, axis=1).astype(np.float32)
        centred = _standardised(scaled, seen)
        pairs = self._sum_over_pairs(seen, seen)
        count = scaled.shape[1]
        rho = np.empty((count, count, *self.padded))
        for c, e in np.ndindex(count, count):
            sums = self._sum_over_pairs(centred[:, c], centred[:, e])
            rho[c, e] = sums / np.maximum(pairs, 1)
        enough = pairs > LEAST_OVERLAP * pairs.flat[0]
        rho = np.where(enough, rho, 0)
        return np.where(self.distances <= self._cut(rho), rho, 0)

    def _sum_over_pairs(self, first: Float[Array, " k"], second: Float[Array, " k"]) -> np.ndarray:
        """Σ a(x) b(x + lag) over all voxels, at every lag."""
        spectrum = np.conj(self.transform(first)) * self.transform(second)
        return scipy.fft.irfftn(spectrum, self.padded)

    def _cut(self, rho: Float[Array, "c c *padded"]) -> float:
        """The distance at which the radial mean of the channels' own correlations falls below."""
        own = np.mean([rho[c, c] for c in range(len(rho))], axis=0)
        finest = float(np.min(self.distances[self.distances > 0]))
        longest = max(4.0, min(self.shape) / 8)
        bins = np.rint(self.distances / finest).astype(int).ravel()
        sums = np.bincount(bins, own.ravel())
        counts = np.bincount(bins)
        profile = sums / np.maximum(counts, 1)
        low = np.flatnonzero((profile < CUT) & (counts > 0))
        first = low[0] if len(low) else longest
        return float(min(first, longest)) * finest


def _standardised(values: Float[Array, "k c"], seen: Float[Array, " k"]) -> Float[Array, "k c"]:
    """Columns of mean zero and variance one over the voxels that are seen, zero elsewhere."""
    count = max(float(seen.sum()), 1.0)
    mean = values.sum(axis=0) / count
    centred = (values - mean) * seen[:, None]
    variance = np.sum(centred**2, axis=0) / count
    return centred / np.sqrt(np.maximum(variance, TINY))
