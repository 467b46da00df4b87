"""A smooth function on a whole grid: computed on the coarsest nodes that are good enough, interpolated in between.

The displacement and its covariance vary over a length scale, an image over a voxel. So the expensive function is
evaluated at nodes along the grid's own axes and carried to the voxels by tensor-product splines: one small matrix per
axis and a few products per slab. The error is *measured*, at random places and around the landmarks, where it is
largest, and the nodes are refined until it is small enough.
"""

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np
from scipy.interpolate import make_interp_spline

from kunita.data.image import Grid

DEGREE = 5
MOST_NODES = 1_500_000
SLAB_VOXELS = 1_000_000
NUM_CHECKS = 256
SAFETY = 0.5
"""The checks see some places only: what they see must stay below this fraction of the tolerance."""

Lattice = tuple[np.ndarray, ...]
"""Voxel coordinates along each axis, which span a lattice of points: a slab, a plane, a coarser grid."""

Progress = Callable[[float], None]
"""Told the fraction that is done."""


@dataclasses.dataclass(frozen=True, eq=False)
class SmoothField:
    """A vector-valued function on a grid, known at nodes.

    Args:
        grid: the voxels it is for.
        nodes: for each axis, increasing voxel coordinates of the nodes, from the first voxel to the last.
        values: (k₁, …, k_d, c) at the nodes.
        error: (c,) largest error seen where it was checked.
        good: whether that error is within the tolerance asked for.
    """

    grid: Grid
    nodes: tuple[np.ndarray, ...]
    values: np.ndarray
    error: np.ndarray
    good: bool

    def on(self, lattice: Lattice, components: slice = slice(None)) -> np.ndarray:
        """Values on a lattice, (n₁, …, n_d, c)."""
        values = self.values[..., components]
        for axis in reversed(range(self.grid.dimension)):  # the slab's axis first: what follows is then small
            weights = spline_weights(self.nodes[axis], lattice[axis])
            values = np.moveaxis(np.tensordot(weights, values, axes=(1, axis)), 0, axis)
        return values

    def at(self, index: np.ndarray) -> np.ndarray:
        """Values at (m, d) voxel coordinates, (m, c)."""
        parts = [self._at(part) for part in np.array_split(index, max(1, len(index) // 32))]
        return np.concatenate(parts)

    def _at(self, index: np.ndarray) -> np.ndarray:
        values = np.tensordot(spline_weights(self.nodes[0], index[:, 0]), self.values, axes=(1, 0))
        for axis in range(1, self.grid.dimension):
            values = np.einsum("mk,mk...->m...", spline_weights(self.nodes[axis], index[:, axis]), values)
        return values


def spline_weights(nodes: np.ndarray, coordinates: np.ndarray) -> np.ndarray:
    """(n, k): what each node contributes to the interpolating spline at each coordinate."""
    if len(nodes) == 1:
        return np.ones((len(coordinates), 1))
    if np.array_equal(nodes, coordinates):
        return np.eye(len(nodes))
    degree = next(k for k in (DEGREE, 3, 1) if len(nodes) > k)
    return make_interp_spline(nodes, np.eye(len(nodes)), k=degree)(coordinates)


def smooth_field(
    function: Callable[[np.ndarray, Progress], np.ndarray],
    tolerances: Callable[[np.ndarray], np.ndarray],
    grid: Grid,
    spacing_mm: float,
    around: np.ndarray,
    progress: Progress = lambda fraction: None,
    *,
    between_voxels: bool = False,
) -> SmoothField:
    """Sample a function at nodes that are refined until interpolation is within the tolerances.

    Args:
        function: (m, d) world points and a progress → (m, c) values.
        tolerances: (m, c) exact values → (m, c) errors that are allowed there.
        grid: the voxels that the field is for.
        spacing_mm: distance of the first nodes.
        around: (n, d) world points near which the function varies most: checked, in addition to random places.
        progress: told the fraction done; it starts again with each refinement.
        between_voxels: whether the field is wanted there too, not only at the voxels.
    """
    least = finest_spacing(grid, MOST_NODES)
    spacing = max(spacing_mm, least)
    checks = _checks(grid, around, spacing, between_voxels)
    exact = function(grid.world(checks), lambda fraction: None)
    allowed = tolerances(exact)
    while True:
        field = _sampled(function, grid, _nodes(grid, spacing), progress)
        misses = np.abs(field.at(checks) - exact)
        worst = float(np.max(misses / allowed)) / SAFETY
        if worst <= 1 or spacing <= least:
            return dataclasses.replace(field, error=misses.max(axis=0), good=worst <= 1)
        spacing = max(least, spacing * float(np.clip(0.9 * worst ** (-1 / (DEGREE + 1)), 0.5, 0.85)))


def finest_spacing(grid: Grid, most: int) -> float:
    """The smallest distance of nodes along the grid's axes with no more than so many of them, mm."""
    spacing = float(grid.spacing.min())
    while np.prod(_counts(grid, spacing), dtype=float) > most:
        spacing *= 1.03
    return spacing


def slabs(grid: Grid) -> Iterator[Lattice]:
    """The voxels of a grid, some layers of the last axis at a time."""
    thickness = max(1, SLAB_VOXELS * grid.shape[-1] // grid.size)
    whole = [np.arange(n, dtype=float) for n in grid.shape]
    for start in range(0, grid.shape[-1], thickness):
        yield (*whole[:-1], whole[-1][start : start + thickness])


def plane(grid: Grid, axis: int, k: float) -> Lattice:
    """The voxels of one plane across an axis."""
    return tuple(np.array([k]) if a == axis else np.arange(n, dtype=float) for a, n in enumerate(grid.shape))


def lattice_points(grid: Grid, lattice: Lattice) -> np.ndarray:
    """World coordinates of a lattice, (n₁, …, n_d, d)."""
    return grid.world(np.stack(np.meshgrid(*lattice, indexing="ij"), axis=-1))


def _sampled(
    function: Callable[[np.ndarray, Progress], np.ndarray],
    grid: Grid,
    nodes: tuple[np.ndarray, ...],
    progress: Progress,
) -> SmoothField:
    index = np.stack(np.meshgrid(*nodes, indexing="ij"), axis=-1).reshape(-1, grid.dimension)
    values = function(grid.world(index), progress)
    shape = tuple(len(k) for k in nodes)
    return SmoothField(grid, nodes, values.reshape(*shape, -1), np.zeros(values.shape[1]), good=False)


def _nodes(grid: Grid, spacing_mm: float) -> tuple[np.ndarray, ...]:
    """Nodes of about this distance along each axis, ends included; never finer than the voxels."""
    return tuple(np.linspace(0, n - 1, k) for n, k in zip(grid.shape, _counts(grid, spacing_mm), strict=True))


def _counts(grid: Grid, spacing_mm: float) -> np.ndarray:
    extents = (np.array(grid.shape) - 1) * grid.spacing
    return np.minimum(np.maximum(np.ceil(extents / spacing_mm).astype(int) + 1, DEGREE + 1), grid.shape)


def _checks(grid: Grid, around: np.ndarray, spacing_mm: float, between_voxels: bool) -> np.ndarray:
    """Voxel coordinates where the error is measured: anywhere, and around given points."""
    rng = np.random.default_rng(0)
    last = np.array(grid.shape) - 1
    anywhere = rng.uniform(0, 1, (NUM_CHECKS, grid.dimension)) * last
    scatter = 0.25 * spacing_mm * rng.normal(size=anywhere.shape)
    near = np.clip(grid.index(around[rng.integers(len(around), size=NUM_CHECKS)] + scatter), 0, last)
    checks = np.concatenate([anywhere, near])
    return checks if between_voxels else np.rint(checks)
