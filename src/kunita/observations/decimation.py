"""How many voxels count as one: neighbouring residuals are correlated.

With the autocorrelation ρ of r/s the score Σ h w r varies by Σ h ρ h, and not by Σ h h. So a voxel
counts as 1/f of an independent one,

    f = Σ h·(ρ ∗ h) / Σ h·h,    h in units of s.

Where channels are compared together, ρ is a matrix of correlations. At least f is what smoothing
by τ makes of white noise, ρ(r) = exp(−r²/4τ²).
"""

import dataclasses
import functools
from typing import Any

import numpy as np
import scipy.fft
from jaxtyping import Complex, Float

from kunita.jaxrun.doors import Array
from kunita.observations.image_noise import TINY

CUT = 0.05
"""The autocorrelation is used up to the distance where its mean falls below this."""

LEAST_OVERLAP = 0.05
"""Lags at which fewer pairs than this share of all overlap are left out."""

Spectrum = Complex[Array, "*half"]
"""Of a real function on the padded grid; half of the last axis is enough."""


def decimation_factor(
    scaled_residual: Float[Array, "k c"],
    scaled_slopes: Float[Array, "k c d"],
    shape: tuple[int, ...],
    spacing: Float[Array, " d"],
    smoothing: float,
) -> float:
    """The decimation factor f, for which residuals and slopes are in units of s.

    Args:
        scaled_residual: r/s, zero where nothing is compared.
        scaled_slopes: h/s, likewise.
        shape: of the grid of voxels.
        spacing: of that grid, mm.
        smoothing: τ, mm.
    """
    lags = _Lags.of(shape, spacing)
    correlations = lags.correlations(scaled_residual)
    of_noise = _white(lags.distances, smoothing)
    products = _products_of_slopes(lags, scaled_slopes)
    least = lags.total(of_noise, np.einsum("cc...->...", products))
    found = lags.total_of_channels(correlations, products)
    total = float(np.sum(scaled_slopes.astype(np.float64) ** 2))
    return max(found, least) / total if total > 0 else 1.0


def _white(distances: Float[Array, "*padded"], smoothing: float) -> Float[Array, "*padded"]:
    """The autocorrelation of white noise that was smoothed by τ."""
    if smoothing == 0:
        return (distances == 0).astype(np.float32)
    return np.exp(-((distances / (2 * smoothing)) ** 2))


def _products_of_slopes(
    lags: "_Lags", scaled_slopes: Float[Array, "k c d"]
) -> Complex[Array, "c c *half"]:
    """Spectra of Σ h_c(x)·h_e(x + lag) over all voxels x."""
    num_channels, d = scaled_slopes.shape[1:]
    total: Any = 0
    for a in range(d):
        waves = np.stack([lags.transform(scaled_slopes[:, c, a]) for c in range(num_channels)])
        total = total + np.conj(waves)[:, None] * waves
    return total


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
    correlations = lags.correlations(scaled_residual)
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
        shortest: edge of the image, mm.
    """

    shape: tuple[int, ...]
    padded: tuple[int, ...]
    distances: np.ndarray
    shortest: float

    @classmethod
    def of(cls, shape: tuple[int, ...], spacing: np.ndarray) -> "_Lags":
        padded = tuple(scipy.fft.next_fast_len(n + n // 4 + 8, real=True) for n in shape)
        squared = np.zeros(padded, np.float32)
        for axis, (count, step) in enumerate(zip(padded, spacing, strict=True)):
            lag = np.minimum(np.arange(count), count - np.arange(count)) * step
            along = [1] * len(padded)
            along[axis] = count
            squared = squared + (lag.reshape(along) ** 2).astype(np.float32)
        shortest = float(np.min(np.array(shape) * spacing))
        return cls(shape, padded, np.sqrt(squared), shortest)

    def transform(self, values: Float[Array, " k"]) -> Spectrum:
        return scipy.fft.rfftn(values.reshape(self.shape), self.padded)

    @functools.cached_property
    def _multiplicity(self) -> Float[Array, " f"]:
        """How often the frequencies along the last axis stand in the whole spectrum."""
        count = self.padded[-1]
        twice = np.full(count // 2 + 1, 2.0)
        twice[0] = 1.0
        if count % 2 == 0:
            twice[-1] = 1.0
        return twice

    def total(self, kernel: Float[Array, "*padded"], products: Spectrum) -> float:
        """Σ ρ(lag) X(lag) over all lags, by Parseval's theorem, from the spectrum of X."""
        both = np.conj(scipy.fft.rfftn(kernel)) * products
        by_frequency = both.real @ self._multiplicity
        return float(by_frequency.sum() / kernel.size)

    def total_of_channels(
        self, kernels: Float[Array, "c c *padded"], products: Complex[Array, "c c *half"]
    ) -> float:
        """The same, summed over all pairs of channels."""
        pairs = np.ndindex(kernels.shape[:2])
        return sum(self.total(kernels[pair], products[pair]) for pair in pairs)

    def correlate(self, kernel: Spectrum, values: Float[Array, " k"]) -> Float[Array, " k"]:
        """Σ_y ρ(y − x) a(y) at every voxel x, from the transform of ρ."""
        whole = scipy.fft.irfftn(np.conj(kernel) * self.transform(values), self.padded)
        inside = tuple(slice(count) for count in self.shape)
        return whole[inside].ravel()

    def correlations(self, scaled: Float[Array, "k c"]) -> Float[Array, "c c *padded"]:
        """Correlations between channels at every lag, zero beyond the distance of the cut."""
        seen = np.any(scaled != 0, axis=1).astype(np.float32)
        of_seen = self.transform(seen)
        pairs = self._sum_over_pairs(of_seen, of_seen)
        waves = [self.transform(one) for one in _standardised(scaled, seen).T]
        count = len(waves)
        rho = np.empty((count, count, *self.padded), np.float32)
        for c, e in np.ndindex(count, count):
            sums = self._sum_over_pairs(waves[c], waves[e])
            rho[c, e] = sums / np.maximum(pairs, 1)
        rho[:, :, pairs <= LEAST_OVERLAP * pairs.flat[0]] = 0
        rho[:, :, self.distances > self._cut(rho)] = 0
        return rho

    def _sum_over_pairs(self, first: Spectrum, second: Spectrum) -> Float[Array, "*padded"]:
        """Σ a(x) b(x + lag) over all voxels, at every lag, from the transforms."""
        return scipy.fft.irfftn(np.conj(first) * second, self.padded)

    def _cut(self, rho: Float[Array, "c c *padded"]) -> float:
        """The distance at which the radial mean of the channels' own correlations falls below."""
        own = np.mean([rho[c, c] for c in range(len(rho))], axis=0)
        finest = float(np.min(self.distances[self.distances > 0]))
        longest = max(4.0, self.shortest / finest / 8)
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
