"""Two images on planes of the fixed grid: after the alignment alone, and after the whole
registration.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

from kunita.data.image import Image
from kunita.image_checks import check_image
from kunita.outputs.dense import Lattice, lattice_map
from kunita.outputs.maps import Maps
from kunita.outputs.warp import interpolator

QUANTILES = (0.01, 0.99)
"""Of an image's values, those that are drawn black and white."""

MOST_VALUES = 1_000_000
"""Voxels that these are found from."""


@dataclasses.dataclass(frozen=True, eq=False)
class BeforeAfter:
    """Both images on a lattice of the fixed grid, black at 0 and white at 1; NaN where there is
    none.

    Args:
        fixed: the fixed image.
        before: the moving one, carried by the alignment alone.
        after: the moving one, carried by the whole registration.
    """

    fixed: np.ndarray
    before: np.ndarray
    after: np.ndarray

    @property
    def differences(self) -> tuple[np.ndarray, np.ndarray]:
        """Fixed minus moving, before and after."""
        return self.fixed - self.before, self.fixed - self.after


def before_and_after(
    found: Maps, moving: Image, fixed: Image, *, same_scale: bool
) -> Callable[[Lattice], BeforeAfter]:
    """What gives both images on any lattice of the fixed grid.

    Args:
        found: the maps of the registration.
        moving, fixed: its images; colours become luminance.
        same_scale: whether intensities mean the same in both, and have one window of grey values.
    """
    grey_fixed = _windowed(check_image(fixed, "fixed"), None)
    window = _window(check_image(fixed, "fixed").data) if same_scale else None
    grey_moving = _windowed(check_image(moving, "moving"), window)
    look_up = interpolator(grey_moving, "linear")

    def carried(origins: np.ndarray) -> np.ndarray:
        index = grey_moving.grid.index(origins)
        last = np.array(grey_moving.grid.shape) - 0.5
        is_inside = np.all((index >= -0.5) & (index <= last), axis=-1)
        return np.where(is_inside, look_up(index), np.nan)

    def on(lattice: Lattice) -> BeforeAfter:
        aligned = lattice_map(found.pull_back.affine @ found.grid.affine, lattice)
        return BeforeAfter(
            fixed=grey_fixed.data[np.ix_(*(axis.astype(int) for axis in lattice))],
            before=carried(aligned),
            after=carried(found.pull_back.origins(lattice)),
        )

    return on


def _windowed(image: Image, window: tuple[float, float] | None) -> Image:
    """An image that is 0 where it is drawn black and 1 where it is drawn white."""
    low, high = window or _window(image.data)
    scaled = (image.data.astype(np.float32) - low) / (high - low)
    return Image(scaled, image.affine)


def _window(data: np.ndarray) -> tuple[float, float]:
    """The values that are drawn black and white."""
    every = max(1, data.size // MOST_VALUES)
    values = data.ravel()[::every].astype(np.float32)
    low, high = np.quantile(values[np.isfinite(values)], QUANTILES)
    return float(low), float(max(high, low + 1e-6))
