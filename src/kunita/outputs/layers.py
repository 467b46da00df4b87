"""What there is to look at on the fixed grid."""

import dataclasses
import functools

import numpy as np

from kunita.data.image import Image


@dataclasses.dataclass(frozen=True, eq=False)
class Layers:
    """Images that lie on each other, where there are any: the fixed one, the warped one, the
    label's probability.
    """

    fixed: Image | None = None
    warped: Image | None = None
    probability: Image | None = None

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
        there = self.any_label >= 0.5
        if not there.any():
            return None
        others = [tuple(b for b in range(there.ndim) if b != a) for a in range(there.ndim)]
        middle = [
            np.average(np.arange(n), weights=there.sum(axis=o))
            for n, o in zip(there.shape, others, strict=True)
        ]
        return self.probability.grid.world(np.array(middle))
