"""What to expect between landmarks: the predicted 95 % radius over a region, in millimetres."""

import dataclasses

import numpy as np

from kunita.data.image import Image
from kunita.outputs.hull import hull_of
from kunita.outputs.targets import remoteness
from kunita.registration import Registration

MOST_PLACES = 2000
"""Where a region is looked at."""

LEVEL = 0.95


@dataclasses.dataclass(frozen=True)
class Expected:
    """How sure the registration says it is over a region of the moving space.

    Args:
        median_radius95_mm, worst_radius95_mm: of the balls that hold the true points, 95 % each.
        extrapolating: the share of the region where the prior says more than the landmarks do.
        places: how many points stand for the region.
    """

    median_radius95_mm: float
    worst_radius95_mm: float
    extrapolating: float
    places: int


def expected_in_hull(reg: Registration) -> Expected:
    """Over the convex hull of the landmarks that were used, its corners included."""
    marked = reg.moving.points[reg.used]
    inside, _ = hull_of(marked).lattice(MOST_PLACES)
    return _expected(reg, np.concatenate([inside, marked]))


def expected_in_labels(reg: Registration, labels: Image) -> Expected | None:
    """Over the labels' voxels, or some of them; None where there are none."""
    inside = np.flatnonzero(labels.data)
    if not len(inside):
        return None
    some = inside[np.random.default_rng(0).permutation(len(inside))[:MOST_PLACES]]
    voxels = np.stack(np.unravel_index(np.sort(some), labels.grid.shape), axis=1)
    return _expected(reg, labels.grid.world(voxels))


def _expected(reg: Registration, points: np.ndarray) -> Expected:
    radius = reg.evaluation.predict(points).radius(LEVEL)
    share = float(np.mean(remoteness(reg, points).extrapolates))
    return Expected(float(np.median(radius)), float(radius.max()), share, len(points))
