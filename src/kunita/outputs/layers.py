"""What there is to look at on the fixed grid."""

import dataclasses

import numpy as np

from kunita.data.image import Image


@dataclasses.dataclass(frozen=True, eq=False)
class Layers:
    """Images that lie on each other, where there are any: the fixed one, the warped one, the label's probability."""

    fixed: Image | None = None
    warped: Image | None = None
    probability: Image | None = None

    @property
    def any_label(self) -> np.ndarray | None:
        """The probability of being inside any of the labels."""
        if self.probability is None:
            return None
        return self.probability.data.sum(axis=-1) if self.probability.channels else self.probability.data

    @property
    def inside(self) -> np.ndarray | None:
        """(d,) the middle of where a label probably is, mm; None if it is nowhere."""
        found = self.any_label
        if self.probability is None or found is None or not np.any(found >= 0.5):
            return None
        return self.probability.grid.world(np.argwhere(found >= 0.5).mean(axis=0))
