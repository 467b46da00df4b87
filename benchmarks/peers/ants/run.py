"""ANTsPy: `fit_transform_to_paired_points`, B-spline fields composed until the landmarks meet, with
its own defaults.

ANTs' transforms map *fixed* points to moving space, since they are made to resample images; to map
our moving points to fixed space the two sets change places. There is no noise or kernel to set: the
B-spline mesh of the domain regularises.
"""

import functools
import sys
from collections.abc import Callable
from pathlib import Path

import ants
import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1]))

from trial import PointMap, Problem, main

MARGIN = 0.2
"""Of the domain beyond the judged box, as a part of its side: the fields vanish at the domain's
edge."""

VOXELS = 96
"""Along each side of the domain."""


def domain(problem: Problem, side: int, margin: float) -> ants.ANTsImage:
    """A blank image around the box."""
    width = (problem.high - problem.low) * (1 + 2 * margin)
    origin = problem.low - margin * (problem.high - problem.low)
    blank = np.zeros((side,) * problem.dimension, dtype=np.float32)
    return ants.from_numpy(blank, origin=tuple(origin), spacing=tuple(width / (side - 1)))


def transform(problem: Problem, kind: str) -> ants.ANTsTransform:
    """The transform that carries our moving points to their fixed partners."""
    found = ants.fit_transform_to_paired_points(
        moving_points=problem.fixed,
        fixed_points=problem.moving,
        transform_type=kind,
        domain_image=domain(problem, VOXELS, MARGIN),
    )
    return found["forward_transform"] if isinstance(found, dict) else found


def fit(problem: Problem, kind: str) -> PointMap:
    """The fitted transform as a map of points."""
    found = transform(problem, kind)
    return lambda points: np.array([found.apply_to_point(tuple(point)) for point in points])


def warp(problem: Problem, points: np.ndarray) -> Callable[[], object]:
    """Resample an image of the grid's size through a stored field."""
    found, image = transform(problem, "bspline"), domain(problem, problem.side, 0.0)
    return lambda: ants.apply_ants_transform_to_image(found, image, image)


def carry(problem: Problem, points: np.ndarray) -> Callable[[], object]:
    """Carry the grid's points through a stored field, one by one as the library offers it."""
    found = transform(problem, "bspline")
    return lambda: [found.apply_to_point(tuple(point)) for point in points]


if __name__ == "__main__":
    main(
        {kind: functools.partial(fit, kind=kind) for kind in ("diffeo", "syn")},
        {"image": warp, "points": carry},
    )
