"""Regions that hold a Gaussian point, drawn."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import EllipseCollection
from scipy.stats import chi2


def ellipses(
    axes: Axes, means: np.ndarray, covariances: np.ndarray, level: float = 0.95, **style: Any
) -> EllipseCollection:
    """The regions that hold this share of each 2-D Gaussian: half-axes √(χ² λ), two degrees of
    freedom.
    """
    values, vectors = np.linalg.eigh(covariances)
    sizes = 2 * np.sqrt(chi2.ppf(level, 2) * np.maximum(values, 0))
    angles = np.degrees(np.arctan2(vectors[:, 1, 1], vectors[:, 0, 1]))
    return EllipseCollection(
        sizes[:, 1],
        sizes[:, 0],
        angles,
        units="x",
        offsets=means,
        offset_transform=axes.transData,
        **{"facecolors": "none", "linewidths": 0.9, **style},
    )
