"""What to expect between landmarks: the predicted 95 % radius over a region, in millimetres."""

import dataclasses

import numpy as np

from kunita.data.image import Image
from kunita.outputs.hull import hull_of
from kunita.outputs.targets import remoteness
from kunita.record import Registration

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
    marked = reg.informing
    inside, _ = hull_of(marked).lattice(MOST_PLACES)
    return _expected(reg, np.concatenate([inside, marked]))


def expected_in_labels(reg: Registration, labels: Image) -> Expected | None:
    """Over the labels' voxels, or some of them; the worst on their border too, where it mostly is;
    None without any.
    """
    inside = labels.data != 0
    if not inside.any():
        return None
    anywhere, border = (labels.grid.world(_some_voxels(mask)) for mask in (inside, _border(inside)))
    found = _expected(reg, anywhere)
    worst = float(reg.evaluation.predict(border).radius(LEVEL).max())
    return dataclasses.replace(
        found,
        worst_radius95_mm=max(worst, found.worst_radius95_mm),
        places=len(anywhere) + len(border),
    )


def compared_places(reg: Registration) -> np.ndarray:
    """(m, d) points of the moving space where the images that drove a registration were compared,
    some of them.
    """
    if reg.images is None:
        return np.zeros((0, reg.fixed.dimension))
    mismatch = reg.images.mismatch_map
    return mismatch.grid.world(_some_voxels(np.isfinite(mismatch.data)))


def expected_where_compared(reg: Registration) -> Expected | None:
    """Where images were compared, or some places of it; None where landmarks alone drove the fit."""
    places = compared_places(reg)
    return _expected(reg, places) if len(places) else None


def _some_voxels(mask: np.ndarray) -> np.ndarray:
    """(m, d) indices of the voxels of a mask, or of some of them, chosen at random."""
    places = np.flatnonzero(mask)
    some = places[np.random.default_rng(0).permutation(len(places))[:MOST_PLACES]]
    return np.stack(np.unravel_index(np.sort(some), mask.shape), axis=1)


def _border(inside: np.ndarray) -> np.ndarray:
    """The voxels of a mask that have a neighbour outside of it; the image's end is outside."""
    padded = np.pad(inside, 1)
    whole = inside.copy()
    for axis in range(inside.ndim):
        for shift in (0, 2):
            window = tuple(
                slice(shift, shift + n) if a == axis else slice(1, n + 1)
                for a, n in enumerate(inside.shape)
            )
            whole &= padded[window]
    return inside & ~whole


def _expected(reg: Registration, points: np.ndarray) -> Expected:
    radius = reg.evaluation.predict(points).radius(LEVEL)
    share = float(np.mean(remoteness(reg, points).extrapolates))
    return Expected(float(np.median(radius)), float(radius.max()), share, len(points))
