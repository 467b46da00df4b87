"""A smooth function on a whole grid: computed on the coarsest nodes that are good enough,
interpolated in between.

The displacement and its covariance vary over a length scale, an image over a voxel. So the
expensive function is evaluated at nodes along the grid's own axes and carried to the voxels by
tensor-product splines: one small matrix per axis and a few products per slab. The error is
*measured*, at random places and around the landmarks, where it is largest, and the nodes are
refined until it is small enough. What is measured against is always the function in double
precision; at very many nodes it may be evaluated in single precision, where that shows to be as
good.
"""

import dataclasses
import math
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

SINGLE_SHARE = 0.2
"""Of the tolerance, what the function in single precision may err by."""

VERY_MANY = 8_000
"""Nodes from which on single precision is worth a program of its own, unless the caller knows
better."""

Lattice = tuple[np.ndarray, ...]
"""Voxel coordinates along each axis, which span a lattice of points: a slab, a plane, a coarser
grid."""

Progress = Callable[[float], None]
"""Told the fraction that is done."""

Function = Callable[[np.ndarray, Progress], np.ndarray]
"""(m, d) world points and a progress → (m, c) values."""


FINE_VOXEL, SMALL_EXTENT = 0.2, 20.0
"""Voxels and boxes, mm, below which errors are allowed in proportion: a micrometre is much under a
microscope."""


def fineness(grid: Grid) -> float:
    """The share of the usual tolerances, which are in millimetres, that a grid of small voxels or
    extent allows.
    """
    extent = float(((np.array(grid.shape) - 1) * grid.spacing).max()) or SMALL_EXTENT
    return min(1.0, float(grid.spacing.min()) / FINE_VOXEL, extent / SMALL_EXTENT)


@dataclasses.dataclass(frozen=True, eq=False)
class SmoothField:
    """A vector-valued function on a grid, known at nodes.

    Args:
        grid: the voxels it is for.
        nodes: for each axis, increasing voxel coordinates of the nodes, from the first voxel to the
            last.
        values: (k₁, …, k_d, c) at the nodes.
        error: largest errors seen where it was checked: of the components, and of what is derived
            from them.
        good: whether they are within the tolerances asked for.
        checks: (m, d) voxel coordinates where it was checked.
        exact: (m, c) what the function is there.
        precision: the numbers that the values were computed with.
    """

    grid: Grid
    nodes: tuple[np.ndarray, ...]
    values: np.ndarray
    error: np.ndarray
    good: bool
    checks: np.ndarray
    exact: np.ndarray
    precision: str = "float64"

    def on(self, lattice: Lattice, components: slice = slice(None)) -> np.ndarray:
        """Values on a lattice, (n₁, …, n_d, c), each component in one piece of memory."""
        pairs = zip(self.nodes, lattice, strict=True)
        return self.combined(
            [spline_weights(nodes, coordinates) for nodes, coordinates in pairs], components
        )

    def combined(self, weights: list[np.ndarray], components: slice = slice(None)) -> np.ndarray:
        """The values at the nodes, combined along each axis with the rows of an (n, k) matrix: (n₁,
        …, n_d, c).
        """
        values = np.ascontiguousarray(np.moveaxis(self.values[..., components], -1, 0))
        *others, last = (matrix.astype(values.dtype) for matrix in weights)
        values = values @ last.T  # the slab's axis first: what follows is then small
        for axis, matrix in reversed(list(enumerate(others, start=1))):
            shape = values.shape
            product = matrix @ values.reshape(
                math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
            )
            values = product.reshape(*shape[:axis], len(matrix), *shape[axis + 1 :])
        return np.moveaxis(values, 0, -1)

    def at(self, index: np.ndarray) -> np.ndarray:
        """Values at (m, d) voxel coordinates, (m, c)."""
        weights = [spline_weights(nodes, index[:, axis]) for axis, nodes in enumerate(self.nodes)]
        parts = np.array_split(np.arange(len(index)), max(1, len(index) // 128))
        return np.concatenate([self._at([w[part] for w in weights]) for part in parts])

    def _at(self, weights: list[np.ndarray]) -> np.ndarray:
        values = np.tensordot(weights[0], self.values, axes=(1, 0))
        for along in weights[1:]:
            values = np.einsum("mk,mk...->m...", along, values)
        return values


def spline_weights(nodes: np.ndarray, coordinates: np.ndarray, order: int = 0) -> np.ndarray:
    """(n, k): what each node contributes to the interpolating spline, or a derivative of it, at
    each coordinate.
    """
    if len(nodes) == 1:
        return np.full((len(coordinates), 1), 0.0 if order else 1.0)
    if order == 0 and np.array_equal(nodes, coordinates):
        return np.eye(len(nodes))
    degree = next(k for k in (DEGREE, 3, 1) if len(nodes) > k)
    return make_interp_spline(nodes, np.eye(len(nodes)), k=degree)(coordinates, nu=order)


def smooth_field(
    function: Function,
    tolerances: Callable[[np.ndarray], np.ndarray],
    grid: Grid,
    spacing_mm: float,
    around: np.ndarray,
    progress: Progress = lambda fraction: None,
    *,
    between_voxels: bool = False,
    derived: Callable[[np.ndarray], np.ndarray] = lambda values: values,
    faster: Function | None = None,
    many: int = VERY_MANY,
    most_nodes: int = MOST_NODES,
    single_share: float = SINGLE_SHARE,
) -> SmoothField:
    """Sample a function at nodes that are refined until interpolation is within the tolerances.

    Args:
        function: what is interpolated, in double precision.
        tolerances: (m, c') exact values, of what is derived → (m, c') errors that are allowed
            there.
        grid: the voxels that the field is for.
        spacing_mm: distance of the first nodes.
        around: (n, d) world points near which the function varies most: checked, in addition to
            random places.
        progress: told the fraction done; it starts again with each refinement.
        between_voxels: whether the field is wanted there too, not only at the voxels.
        derived: (m, c) values → (m, c') what must be exact enough; by default the values
            themselves.
        faster: the same in single precision; used at very many nodes if it is good enough.
        many: from how many nodes on that is.
        most_nodes: there are no more.
        single_share: of the tolerance, what the function in single precision may err by.
    """
    least = finest_spacing(grid, most_nodes)
    spacing = max(spacing_mm, least)
    checks = random_places(grid, around, spacing, between_voxels=between_voxels)
    exact = function(grid.world(checks), lambda fraction: None)
    allowed = tolerances(derived(exact))
    misses = lambda found: np.abs(derived(found) - derived(exact))
    while True:
        nodes = _nodes(grid, spacing)
        if faster is not None and math.prod(map(len, nodes)) >= many:
            single = (
                misses(faster(grid.world(checks), lambda fraction: None)) <= single_share * allowed
            )
            function, faster = (faster if np.all(single) else function), None
        values = _sampled(function, grid, nodes, progress)
        field = SmoothField(
            grid, nodes, values, np.zeros(0), False, checks, exact, str(values.dtype)
        )
        missed = misses(field.at(checks))
        worst = float(np.max(missed / allowed)) / SAFETY
        if worst <= 1 or spacing <= least:
            return dataclasses.replace(field, error=missed.max(axis=0), good=worst <= 1)
        spacing = max(
            least, spacing * float(np.clip(0.9 * worst ** (-1 / (DEGREE + 1)), 0.4, 0.85))
        )


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
    return tuple(
        np.array([k]) if a == axis else np.arange(n, dtype=float) for a, n in enumerate(grid.shape)
    )


def lattice_points(grid: Grid, lattice: Lattice) -> np.ndarray:
    """World coordinates of a lattice, (n₁, …, n_d, d)."""
    return lattice_map(grid.affine, lattice)


def lattice_map(affine: np.ndarray, lattice: Lattice) -> np.ndarray:
    """What an affine map makes of a lattice, (n₁, …, n_d, d), each component in one piece of
    memory.
    """
    axes = np.ix_(*lattice)
    components = [
        sum((a * x for a, x in zip(row[:-1], axes, strict=True)), start=row[-1])
        for row in affine[:-1]
    ]
    return np.moveaxis(np.stack(components), 0, -1)


def _sampled(
    function: Function, grid: Grid, nodes: tuple[np.ndarray, ...], progress: Progress
) -> np.ndarray:
    index = np.stack(np.meshgrid(*nodes, indexing="ij"), axis=-1).reshape(-1, grid.dimension)
    return function(grid.world(index), progress).reshape(*(len(k) for k in nodes), -1)


def _nodes(grid: Grid, spacing_mm: float) -> tuple[np.ndarray, ...]:
    """Nodes of about this distance along each axis, ends included; never finer than the voxels."""
    return tuple(
        np.linspace(0, n - 1, k) for n, k in zip(grid.shape, _counts(grid, spacing_mm), strict=True)
    )


def _counts(grid: Grid, spacing_mm: float) -> np.ndarray:
    extents = (np.array(grid.shape) - 1) * grid.spacing
    return np.minimum(
        np.maximum(np.ceil(extents / spacing_mm).astype(int) + 1, DEGREE + 1), grid.shape
    )


def random_places(
    grid: Grid,
    around: np.ndarray,
    spacing_mm: float,
    *,
    between_voxels: bool = False,
    seed: int = 0,
) -> np.ndarray:
    """Voxel coordinates where an error is measured: anywhere, and around given points."""
    rng = np.random.default_rng(seed)
    last = np.array(grid.shape) - 1
    anywhere = rng.uniform(0, 1, (NUM_CHECKS, grid.dimension)) * last
    scatter = 0.25 * spacing_mm * rng.normal(size=anywhere.shape)
    near = np.clip(
        grid.index(around[rng.integers(len(around), size=NUM_CHECKS)] + scatter), 0, last
    )
    checks = np.concatenate([anywhere, near])
    return checks if between_voxels else np.rint(checks)
