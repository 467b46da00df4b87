"""Transforms for other programs: a displacement field on the coarsest grid that linear
interpolation allows.

Every such program pulls back: the transform that warps the *moving image* onto fixed is a map of
points from fixed to moving space, sampled on the fixed grid. It is written as L ∘ D: first a
displacement D that is small and smooth, then the affine L, so that outside the field the alignment
alone remains.

A straight line between two points of a curve lies on one side of it, h²u''/8 away in the middle. So
the vectors of the field are not the displacement u itself but lie half of that on the other side: v
= u − Σ h²∂²u/16, off by no more than the middle then is, and the same error is reached with a grid
√2 times as coarse along each axis.
"""

import dataclasses
import itertools
from typing import Any

import numpy as np

from kunita.data.image import Grid
from kunita.data.slices import grid_in
from kunita.kernels import length_scales
from kunita.outputs.dense import (
    Progress,
    SmoothField,
    fineness,
    finest_spacing,
    smooth_field,
    spline_weights,
)
from kunita.outputs.maps import displacement, faster_form, first_spacing, in_batches
from kunita.record import AnyEvaluation, Registration

TOLERANCE = 0.01
"""Largest error of the interpolated transform, mm: most of it is spent on linear interpolation, the
rest on splines."""

IMAGE_TOLERANCE = 0.05
"""The same where images drive a registration, in voxels of the finer image. Such a flow has detail
of a few voxels. A hundredth of a millimetre would ask for a grid finer than the images, and for
files of 230 MB in place of 30 (lung CT)."""

SPLINE_SHARE = 0.1
IMAGE_SPLINE_SHARE = 0.3
"""Of the tolerance, what splines may err by. Where images drive a registration the velocity is a
cubic spline, which others converge to slowly: a third of the nodes are then enough."""

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
        tolerance_mm: the largest that is good.
    """

    affine: np.ndarray
    grid: Grid
    displacement: np.ndarray
    error_mm: float
    tolerance_mm: float = TOLERANCE

    @property
    def good(self) -> bool:
        return self.error_mm <= self.tolerance_mm

    def total_displacement(self) -> np.ndarray:
        """L(x + u(x)) − x at the grid's points: the whole map as one field."""
        points = self.grid.world(
            np.stack(np.meshgrid(*map(np.arange, self.grid.shape), indexing="ij"), axis=-1)
        )
        d = self.grid.dimension
        return (points + self.displacement) @ self.affine[:d, :d].T + self.affine[:d, d] - points


def forward_transform(
    reg: Registration,
    box: Any = None,
    progress: Progress = lambda fraction: None,
    *,
    most_vectors: int = MOST_VECTORS,
) -> CompositeTransform:
    """Warps moving images onto fixed: as a map of points, fixed → moving. `box`: the fixed image or
    its grid. There are no more vectors than `most_vectors`.
    """
    grid = _checked_box(reg, box, reg.fixed_support)
    return _composite(reg, grid, reg.fixed_support, progress, most_vectors, inverse=False)


def inverse_transform(
    reg: Registration, box: Any = None, progress: Progress = lambda fraction: None
) -> CompositeTransform:
    """Warps fixed images onto moving: as a map of points, moving → fixed. `box`: the moving image or
    its grid.
    """
    grid = _checked_box(reg, box, reg.moving_support)
    return _composite(reg, grid, reg.moving_support, progress, MOST_VECTORS, inverse=True)


def _checked_box(reg: Registration, box: Any, support: np.ndarray) -> Grid:
    """The grid that was given, or the box of the landmarks."""
    if box is None:
        return landmark_box(support, max(length_scales(reg.kernel)))
    return grid_in(box, reg.fixed.dimension, "box")


def landmark_box(points: np.ndarray, length_scale: float) -> Grid:
    """The smallest upright box that holds the points and three length scales around them."""
    low, high = (
        points.min(axis=0) - MARGIN * length_scale,
        points.max(axis=0) + MARGIN * length_scale,
    )
    affine = np.diag(np.append(high - low, 1.0))
    affine[:-1, -1] = low
    return Grid((2,) * len(low), affine)


def _composite(
    reg: Registration,
    box: Grid,
    around: np.ndarray,
    progress: Progress,
    most_vectors: int,
    *,
    inverse: bool,
) -> CompositeTransform:
    tolerance = _tolerance(reg, box)
    share = SPLINE_SHARE if reg.images is None else IMAGE_SPLINE_SHARE
    box, d = upright(box), box.dimension
    affine = reg.posterior.affine if inverse else np.linalg.inv(reg.posterior.affine)
    back = np.linalg.inv(affine[:d, :d]).T

    def displace(map_: AnyEvaluation, x: np.ndarray) -> np.ndarray:
        return displacement(map_, x, affine, inverse=inverse) @ back

    field = smooth_field(
        in_batches(lambda x: displace(reg.evaluation, x)),
        lambda exact: np.full_like(exact, share * tolerance),
        _divided(box, (FINE,) * d),
        first_spacing(reg),
        around,
        progress,
        between_voxels=True,
        faster=faster_form(reg.posterior, displace),
    )
    vectors, error = _coarsest(field, tolerance, most_vectors)
    return CompositeTransform(affine, _divided(box, vectors.shape[:-1]), vectors, error, tolerance)


def _tolerance(reg: Registration, box: Grid) -> float:
    """The largest error that a transform in a box may have, mm."""
    if reg.images is None:
        return TOLERANCE * fineness(box)
    spacings = (reg.images.moving_grid.spacing.min(), reg.images.fixed_grid.spacing.min())
    return IMAGE_TOLERANCE * float(min(spacings))


def upright(box: Grid) -> Grid:
    """The box itself, or if it is sheared, which displacement fields cannot be, the rectangular one
    around it.
    """
    d, axes = box.dimension, box.affine[:-1, :-1] / box.spacing
    if np.allclose(axes.T @ axes, np.eye(d), atol=1e-6):
        return box
    u, _, vt = np.linalg.svd(axes)
    rotation = u @ vt
    corners = box.world(
        np.stack(np.meshgrid(*((0, n - 1) for n in box.shape), indexing="ij"), axis=-1).reshape(
            -1, d
        )
    )
    low, high = (edge(corners @ rotation, axis=0) for edge in (np.min, np.max))
    affine = np.eye(d + 1)
    affine[:d, :d], affine[:d, d] = rotation * np.maximum(high - low, 1e-6), rotation @ low
    return Grid((2,) * d, affine)


def _divided(box: Grid, counts: tuple[int, ...]) -> Grid:
    """The same box, from first to last voxel centre, with other numbers of points along its axes."""
    steps = np.maximum(np.array(box.shape) - 1, 1) / (np.array(counts) - 1)
    affine = box.affine @ np.diag(np.append(steps, 1.0))
    return Grid(counts, affine)


def _coarsest(field: SmoothField, tolerance: float, most_vectors: int) -> tuple[np.ndarray, float]:
    """The vectors of the coarsest grid whose linear interpolation stays within the tolerance, and
    its error, mm.

    The spacing follows from the field's second derivatives; the error is then measured where the
    posterior is known. The vectors are single numbers, which are good to 1e-6 of the displacement,
    as are the files that they are for.
    """
    field = dataclasses.replace(field, values=field.values.astype(np.float32))
    extents = (FINE - 1) * field.grid.spacing
    least, bend = finest_spacing(field.grid, most_vectors), _bend(field)
    splines = float(np.linalg.norm(field.error))
    spacing = max(
        least, np.sqrt(max(tolerance - splines, SPLINE_SHARE * tolerance) / max(bend, 1e-12))
    )
    while True:
        counts = np.maximum(np.ceil(extents / spacing).astype(int) + 1, 2)
        vectors = _vectors(field, counts, extents / (counts - 1))
        missed = _interpolated(vectors, field.checks / (FINE - 1) * (counts - 1)) - field.exact
        error = float(max(np.linalg.norm(missed, axis=1).max(), splines + bend * spacing**2))
        if error <= tolerance or spacing <= least:
            return vectors, error
        spacing = max(least, 0.95 * spacing * float(np.clip(np.sqrt(tolerance / error), 0.3, 1.0)))


def _bend(field: SmoothField) -> float:
    """The largest |Σ ±∂²u|/16 over all signs, which times h² is the error at corners and middles of
    cells, 1/mm.
    """
    finer = [np.linspace(0, FINE - 1, 2 * len(nodes) - 1) for nodes in field.nodes]
    bends = []
    for bent, step in enumerate(field.grid.spacing):
        pairs = enumerate(zip(field.nodes, finer, strict=True))
        weights = [spline_weights(*pair, order=2 if axis == bent else 0) for axis, pair in pairs]
        bends.append(field.combined(weights) / step**2)
    signs = [(1, *others) for others in itertools.product((1, -1), repeat=len(bends) - 1)]
    sums = (sum(sign * bend for sign, bend in zip(row, bends, strict=True)) for row in signs)
    return max(float(np.sqrt(np.max(np.sum(total**2, axis=-1)))) for total in sums) / 16


def _vectors(field: SmoothField, counts: np.ndarray, spacing: np.ndarray) -> np.ndarray:
    """V = u − Σ h²∂²u/16 on a grid, along each axis by itself (the mixed terms are of fourth
    order).
    """
    weights = []
    for nodes, count, h, step in zip(field.nodes, counts, spacing, field.grid.spacing, strict=True):
        ends = np.linspace(0, FINE - 1, count)
        weights.append(
            spline_weights(nodes, ends)
            - (h / step) ** 2 / 16 * spline_weights(nodes, ends, order=2)
        )
    return field.combined(weights)


def _interpolated(vectors: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Linear interpolation at (m, d) coordinates of a grid, as programs do it that read the field."""
    low = np.clip(np.floor(index).astype(int), 0, np.array(vectors.shape[:-1]) - 2)
    share, total = index - low, np.zeros((len(index), vectors.shape[-1]))
    for corner in itertools.product((0, 1), repeat=index.shape[1]):
        weight = np.prod(np.where(corner, share, 1 - share), axis=1)
        total += weight[:, None] * vectors[tuple((low + corner).T)]
    return total
