"""What of an image is compared: smoothed intensities, or how they stand out from their
surroundings.

    ssd:   I_τ = G_τ ∗ I
    lncc:  (I_τ − μ)/√(v + ε²),   μ = G_ω ∗ I_τ,   v = G_ω ∗ I_τ² − μ²

The squared difference of the second kind is the local normalised correlation, but for a constant.
It does not see what changes slowly: bias fields, another window of grey values, the density of a
lung.
"""

import dataclasses

import numpy as np
from jaxtyping import Float

from kunita.jaxrun.doors import Array
from kunita.smoothing import smooth

METRICS = {"ssd": ("ssd",), "lncc": ("lncc",), "both": ("ssd", "lncc")}
"""The channels of each metric."""


@dataclasses.dataclass(frozen=True)
class FeatureOptions:
    """How intensities become features; lengths in voxels (of the finer image, along its finest
    axis).

    Args:
        window: ω over τ.
        least_window: ω at least.
        contrast: ε over the standard deviation of the image.
    """

    window: float = 3.0
    least_window: float = 2.5
    contrast: float = 0.1


DEFAULT_FEATURES = FeatureOptions()


def features(
    data: Float[Array, "*grid"],
    spacing: Float[Array, " d"],
    metric: str,
    smoothing: float,
    voxel: float,
    options: FeatureOptions = DEFAULT_FEATURES,
) -> Float[Array, "*grid c"]:
    """The channels of an image on one level.

    Args:
        data: intensities.
        spacing: of the voxels, mm.
        metric: "ssd", "lncc" or "both".
        smoothing: τ, in voxels.
        voxel: the length of a voxel that τ is in units of, mm.
        options: of the features.
    """
    smoothed = _gaussian(data.astype(np.float32), smoothing * voxel, spacing)
    channels = []
    for kind in METRICS[metric]:
        if kind == "ssd":
            channels.append(smoothed)
        else:
            window = max(options.window * smoothing, options.least_window)
            floor = options.contrast * float(np.std(data))
            channels.append(standing_out(smoothed, window * voxel, spacing, floor))
    return np.stack(channels, axis=-1)


def standing_out(
    data: Float[Array, "*grid"], window: float, spacing: Float[Array, " d"], floor: float
) -> Float[Array, "*grid"]:
    """How intensities stand out from their surroundings: (I − μ)/√(v + ε²).

    Intensities may be large numbers that differ by little, so they are centred before they are
    squared.
    """
    centred = data - np.float32(data.mean(dtype=np.float64))
    mean = _gaussian(centred, window, spacing)
    square = _gaussian(centred * centred, window, spacing)
    variance = np.maximum(square - mean * mean, 0)
    return (centred - mean) / np.sqrt(variance + floor**2)


def _gaussian(data: np.ndarray, sd: float, spacing: np.ndarray) -> np.ndarray:
    """Smooth by a Gaussian of this width, mm. What is constant stays so to the last digit."""
    if sd == 0:
        return data
    middle = np.float32(data.mean(dtype=np.float64))
    return smooth(data - middle, sd / spacing) + middle
