"""Transforms for other programs: a displacement field on the coarsest grid that linear interpolation allows.

Every such program pulls back: the transform that warps the *moving image* onto fixed is a map of points from fixed to
moving space, sampled on the fixed grid. It is written as L ∘ D: first a displacement D that is small and smooth, then
the affine L, so that outside the field the alignment alone remains.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

from kunita.data.image import Grid
from kunita.kernels import length_scales
from kunita.outputs.dense import Progress, SmoothField, finest_spacing, smooth_field
from kunita.outputs.maps import NODES_PER_SCALE, in_batches
from kunita.registration import Registration

TOLERANCE = 0.01
"""Largest error of the interpolated transform, mm: most of it is spent on linear interpolation, the rest on splines."""

SPLINE_SHARE = 0.1
MOST_VECTORS = 20_000_000
MARGIN = 3.0
"""Without an image the field covers the landmarks' box and this many length scales around it."""

FINE = 100_001
"""Divisions of a box along each axis on which its nodes lie: fine enough to put them anywhere."""


@dataclasses.dataclass(frozen=True, eq=False)
class CompositeTransform:
    """A map of points x ↦ L(x + u(x)), u interpolated linearly on a grid and zero outside.

    Args:
        affine: L, (d + 1, d + 1), world to world.
        grid: where the displacement is known.
        displacement: u, (…, d), mm, along the world's axes.
        error_mm: the largest error of interpolating u that was seen.
    """

    affine: np.ndarray
    grid: Grid
    displacement: np.ndarray
    error_mm: float

    @property
    def good(self) -> bool:
        return self.error_mm <= TOLERANCE

    def total_displacement(self) -> np.ndarray:
        """L(x + u(x)) − x at the grid's points: the whole map as one field."""
        points = self.grid.world(np.stack(np.meshgrid(*map(np.arange, self.grid.shape), indexing="ij"), axis=-1))
        d = self.grid.dimension
        return (points + self.displacement) @ self.affine[:d, :d].T + self.affine[:d, d] - points


def forward_transform(
    reg: Registration, box: Grid | None = None, progress: Progress = lambda fraction: None
) -> CompositeTransform:
    """Warps moving images onto fixed: as a map of points, fixed → moving. `box`: the fixed image's grid."""
    box = box or landmark_box(reg.fixed.points, max(length_scales(reg.kernel)))
    return _composite(
        reg, reg.posterior.move_back, np.linalg.inv(reg.posterior.affine), box, reg.fixed.points, progress
    )


def inverse_transform(
    reg: Registration, box: Grid | None = None, progress: Progress = lambda fraction: None
) -> CompositeTransform:
    """Warps fixed images onto moving: as a map of points, moving → fixed. `box`: the moving image's grid."""
    box = box or landmark_box(reg.moving.points, max(length_scales(reg.kernel)))
    return _composite(reg, reg.posterior.move, reg.posterior.affine, box, reg.moving.points, progress)


def landmark_box(points: np.ndarray, length_scale: float) -> Grid:
    """The smallest upright box that holds the points and three length scales around them."""
    low, high = points.min(axis=0) - MARGIN * length_scale, points.max(axis=0) + MARGIN * length_scale
    affine = np.diag(np.append(high - low, 1.0))
    affine[:-1, -1] = low
    return Grid((2,) * len(low), affine)


def _composite(
    reg: Registration,
    move: Callable[[np.ndarray], np.ndarray],
    affine: np.ndarray,
    box: Grid,
    around: np.ndarray,
    progress: Progress,
) -> CompositeTransform:
    box, d, back = upright(box), box.dimension, np.linalg.inv(affine)
    displace = in_batches(lambda x: move(x) @ back[:d, :d].T + back[:d, d] - x)
    spline_tolerance = SPLINE_SHARE * TOLERANCE
    spacing = min(length_scales(reg.kernel)) / NODES_PER_SCALE
    field = smooth_field(
        displace, lambda exact: np.full_like(exact, spline_tolerance), _divided(box, (FINE,) * d), spacing, around,
        progress, between_voxels=True,
    )  # fmt: skip
    counts, error = _coarsest(field, TOLERANCE - spline_tolerance)
    displacement = field.on(tuple(np.linspace(0, FINE - 1, k) for k in counts))
    return CompositeTransform(affine, _divided(box, counts), displacement, error + float(np.linalg.norm(field.error)))


def upright(box: Grid) -> Grid:
    """The box itself, or if it is sheared, which displacement fields cannot be, the rectangular one around it."""
    d, axes = box.dimension, box.affine[:-1, :-1] / box.spacing
    if np.allclose(axes.T @ axes, np.eye(d), atol=1e-6):
        return box
    u, _, vt = np.linalg.svd(axes)
    rotation = u @ vt
    corners = box.world(np.stack(np.meshgrid(*((0, n - 1) for n in box.shape), indexing="ij"), axis=-1).reshape(-1, d))
    low, high = (edge(corners @ rotation, axis=0) for edge in (np.min, np.max))
    affine = np.eye(d + 1)
    affine[:d, :d], affine[:d, d] = rotation * np.maximum(high - low, 1e-6), rotation @ low
    return Grid((2,) * d, affine)


def _divided(box: Grid, counts: tuple[int, ...]) -> Grid:
    """The same box, from first to last voxel centre, with other numbers of points along its axes."""
    steps = np.maximum(np.array(box.shape) - 1, 1) / (np.array(counts) - 1)
    affine = box.affine @ np.diag(np.append(steps, 1.0))
    return Grid(counts, affine)


def _coarsest(field: SmoothField, tolerance: float) -> tuple[tuple[int, ...], float]:
    """The fewest points along each axis whose linear interpolation stays within the tolerance, and its error.

    The error falls with the square of the distance between points; it is measured at the centre of every cell.
    """
    extents = (FINE - 1) * field.grid.spacing
    least = finest_spacing(field.grid, MOST_VECTORS)
    spacing = max(least, 2 * max(e / (len(k) - 1) for e, k in zip(extents, field.nodes, strict=True)))
    while True:
        counts = tuple(int(k) for k in np.maximum(np.ceil(extents / spacing).astype(int) + 1, 2))
        error = _linear_error(field, counts)
        if error <= tolerance or spacing <= least:
            return counts, error
        spacing = max(least, spacing * float(np.clip(0.95 * np.sqrt(tolerance / error), 0.3, 0.95)))


def _linear_error(field: SmoothField, counts: tuple[int, ...]) -> float:
    """Distance between the field at the centres of all cells and the mean of the corners there, at its largest."""
    ends = tuple(np.linspace(0, FINE - 1, k) for k in counts)
    corners = field.on(ends)
    for axis in range(len(counts)):
        after, before = (np.take(corners, range(*span), axis) for span in ((1, counts[axis]), (0, counts[axis] - 1)))
        corners = (after + before) / 2
    centres = field.on(tuple((e[1:] + e[:-1]) / 2 for e in ends))
    return float(np.sqrt(np.max(np.sum((centres - corners) ** 2, axis=-1))))
