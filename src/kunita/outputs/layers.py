"""What there is to look at on the fixed grid."""

import dataclasses
import functools

import numpy as np

from kunita.data.image import Grid, Image


@dataclasses.dataclass(frozen=True, eq=False)
class Layers:
    """Images to look at, where there are any.

    Args:
        fixed, warped: on the fixed grid.
        probability: of the label, there.
        mismatch: of images that drove the fit, there; 0 where nothing was compared.
        moving: on its own grid.
    """

    fixed: Image | None = None
    warped: Image | None = None
    probability: Image | None = None
    mismatch: Image | None = None
    moving: Image | None = None

    @functools.cached_property
    def any_label(self) -> np.ndarray | None:
        """The probability of being inside any of the labels."""
        if self.probability is None:
            return None
        return (
            self.probability.data.sum(axis=-1)
            if self.probability.channels
            else self.probability.data
        )

    @functools.cached_property
    def inside(self) -> np.ndarray | None:
        """(d,) the middle of where a label probably is, mm; None if it is nowhere."""
        if self.probability is None or self.any_label is None:
            return None
        return _middle(self.any_label >= 0.5, self.probability.grid)

    @functools.cached_property
    def place(self) -> np.ndarray | None:
        """(d,) what to look at first, mm: the label, or the middle of what was compared; None
        where neither is known.
        """
        if self.inside is not None or self.mismatch is None:
            return self.inside
        return _middle(self.mismatch.data > 0, self.mismatch.grid)


def _middle(there: np.ndarray, grid: Grid) -> np.ndarray | None:
    """(d,) the mean place of the voxels of a mask, mm; None if there are none."""
    if not there.any():
        return None
    others = [tuple(b for b in range(there.ndim) if b != a) for a in range(there.ndim)]
    middle = [
        np.average(np.arange(n), weights=there.sum(axis=o))
        for n, o in zip(there.shape, others, strict=True)
    ]
    return grid.world(np.array(middle))
