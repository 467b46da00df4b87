"""Noise that is correlated by itself, beyond what smoothing makes of it: it is divided out.

White noise that a level smooths by τ has the autocorrelation exp(−x²/4τ²). Where the noise of the
images themselves is correlated over a width c, as that of ultrasound and of resampled images is,
residuals of a level have exp(−x²/4(τ² + c²)) along an axis. They say little of what is coarser than
c, and much of what is finer: there, they have hardly any noise. So residuals and slopes are divided
by the spectrum's root before they are compared,

    r̂ ← r̂/√P,   ĥ ← ĥ/√P,   P = (G² + ε)/(1 + ε),   G = exp(−½Σ c_a²k_a²).

A displacement that changes little over c passes through the filter, W(h·u) ≈ (Wh)·u, so that the
model stays r ≈ h·u + noise; the noise is then nearly as if white noise had been smoothed by τ. ε
keeps frequencies at which there is next to nothing from being amplified without end; for what it
leaves of the correlation there is the decimation factor.

On textures with noise correlated over 1.5 px the mean error falls from 0.21 to 0.13 px.
"""

import dataclasses

import numpy as np
import scipy.fft
from jaxtyping import Float

from kunita.jaxrun.doors import Array
from kunita.observations.image_noise import HUBER, MAD_TO_SD, TINY

FLOOR = 0.02
"""ε: filters amplify sevenfold at most. With 0.1 the error on textures is 0.15 px."""

WORTH_WHITENING = 0.5
"""Where no width c exceeds this, in voxels of the level, nothing is divided out. On textures, white
noise gives 0 to 0.4, and a corner that is registered wrongly up to 0.5. Slices of brains have 0.6
to 0.9, and their labels agree better with the filter (Dice 0.743 against 0.739 on six pairs for
tuning)."""

LONGEST = 1 / 6
"""The largest width that is divided out, over the shortest length scale of the displacements: these
must change little over it. What is correlated farther is not noise but what does not match, and is
left to the decimation factor."""

PADDING = 16
"""Voxels of nothing around the image, so that the filter does not wrap around."""


@dataclasses.dataclass(frozen=True, eq=False)
class Whitening:
    """The filter that divides correlated noise out.

    Args:
        widths: (d,) c along each axis, in voxels of the level.
        shape: of the level's voxels.
    """

    widths: np.ndarray
    shape: tuple[int, ...]

    def __call__(self, values: Float[Array, "k ..."]) -> Float[Array, "k ..."]:
        """Filtered values, one or several of each voxel; they are zero where nothing counts."""
        on_grid = values.reshape(*self.shape, -1)
        filtered = self._filtered(on_grid)
        return filtered.reshape(values.shape).astype(np.float32)

    def _filtered(self, values: Float[Array, "*grid m"]) -> Float[Array, "*grid m"]:
        axes = range(len(self.shape))
        padding = PADDING + int(np.ceil(6 * self.widths.max()))
        padded = tuple(scipy.fft.next_fast_len(n + padding, real=True) for n in self.shape)
        waves = scipy.fft.rfftn(values, padded, axes=axes)
        waves *= self._gains(padded)[..., None]
        filtered = scipy.fft.irfftn(waves, padded, axes=axes)
        return filtered[tuple(slice(count) for count in self.shape)]

    def _gains(self, padded: tuple[int, ...]) -> Float[Array, "*half"]:
        """1/√P at the frequencies of a real transform."""
        power = (np.exp(-self._exponent(padded)) + FLOOR) / (1 + FLOOR)
        return (1 / np.sqrt(power)).astype(np.float32)

    def _exponent(self, padded: tuple[int, ...]) -> Float[Array, "*half"]:
        """Σ c_a²k_a²."""
        cycles = [scipy.fft.fftfreq(count) for count in padded[:-1]]
        cycles.append(scipy.fft.rfftfreq(padded[-1]))
        squares = [
            (2 * np.pi * width * along) ** 2
            for width, along in zip(self.widths, cycles, strict=True)
        ]
        return sum(np.ix_(*squares))


def whitening_of(
    residual: Float[Array, "k c"],
    counts: Float[Array, " k"],
    shape: tuple[int, ...],
    smoothing: Float[Array, " d"],
    shortest: Float[Array, " d"],
) -> Whitening | None:
    """The filter for some residuals; None where they are as white as smoothing leaves them.

    Args:
        residual: r, channel by channel.
        counts: which voxels count.
        shape: of their grid.
        smoothing: τ along each axis, in voxels of this grid.
        shortest: length scale of the displacements along each axis, in voxels of this grid.
    """
    if not counts.any():
        return None
    found = excess_widths(residual, counts, shape, smoothing)
    widths = np.minimum(found, LONGEST * shortest)
    return Whitening(widths, shape) if widths.max() > WORTH_WHITENING else None


def excess_widths(
    residual: Float[Array, "k c"],
    counts: Float[Array, " k"],
    shape: tuple[int, ...],
    smoothing: Float[Array, " d"],
) -> Float[Array, " d"]:
    """c along each axis: −1/(4 log ρ₁) = τ² + c², ρ₁ the correlation of neighbours."""
    by_channel = [_neighbour_correlations(one, counts, shape) for one in residual.T]
    correlations = np.clip(np.mean(by_channel, axis=0), 1e-3, 1 - 1e-3)
    squares = -1 / (4 * np.log(correlations))
    return np.sqrt(np.maximum(squares - smoothing**2, 0))


def _neighbour_correlations(
    residual: Float[Array, " k"], counts: Float[Array, " k"], shape: tuple[int, ...]
) -> Float[Array, " d"]:
    """ρ₁ along each axis."""
    seen = counts.reshape(shape)
    clipped = _clipped(residual, counts).reshape(shape)
    variance = np.sum(clipped**2, dtype=np.float64) / seen.sum()
    products = _neighbour_products(clipped)
    pairs = _neighbour_products(seen)
    return products / np.maximum(pairs * variance, TINY)


def _clipped(residual: Float[Array, " k"], counts: Float[Array, " k"]) -> Float[Array, " k"]:
    """Residuals that count; large ones are clipped, as they are of what does not match."""
    sd = MAD_TO_SD * float(np.median(np.abs(residual[counts > 0])))
    return np.clip(residual, -HUBER * sd, HUBER * sd) * counts


def _neighbour_products(values: Float[Array, "*grid"]) -> Float[Array, " d"]:
    """Σ a(x)a(x + 1) along each axis."""
    along = [np.moveaxis(values, axis, 0) for axis in range(values.ndim)]
    return np.array([np.sum(one[1:] * one[:-1], dtype=np.float64) for one in along])
