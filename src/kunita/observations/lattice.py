"""A lattice of control points along the voxel axes of an image, which all its voxels are read by.

The displacement of a voxel is the natural cubic spline through the displacements of the nodes,
δ(x_k) = N_k u, and N is a tensor product. So what all voxels say together is said at the nodes,

    b = Σ N_kᵀ f_k,    M = Σ N_kᵀ W_k N_k,

with a force f_k and an information W_k (d × d) for each voxel. For M the information of the
voxels is first pooled in cells that are narrower than the lattice: N hardly changes within one.
The pooled information is positive semidefinite as well, so that M has a root by cells.
"""

import dataclasses
import functools

import numpy as np
import scipy.sparse
from jaxtyping import Float, Int

from kunita import numerics, splines
from kunita.jaxrun.doors import Array

CELLS_PER_NODE = {2: 3, 3: 2}
"""Cells along each axis for one node, by dimension."""


@dataclasses.dataclass(frozen=True, eq=False)
class LatticeAxis:
    """The nodes along one axis of voxels; lengths in voxels.

    Args:
        first: of the nodes.
        step: between nodes.
        count: of nodes.
        cells_per_node: how many cells are as long as a step.
    """

    first: float
    step: float
    count: int
    cells_per_node: int

    @classmethod
    def covering(cls, low: float, high: float, step: float, cells_per_node: int) -> "LatticeAxis":
        """Nodes from low to high, one beyond each."""
        inner = max(int(np.ceil((high - low) / step)) + 1, 2)
        spare = (inner - 1) * step - (high - low)
        return cls(low - spare / 2 - step, step, inner + 2, cells_per_node)

    @property
    def nodes(self) -> Float[Array, " m"]:
        return self.first + self.step * np.arange(self.count)

    @property
    def cells(self) -> Float[Array, " c"]:
        """The centres of the cells."""
        width = self.step / self.cells_per_node
        return self.first + width * np.arange((self.count - 1) * self.cells_per_node + 1)

    def spread(self, places: Float[Array, " k"]) -> Float[Array, "k m"]:
        """From values at the nodes to values at places."""
        return splines.natural_matrix((places - self.first) / self.step, self.count)

    def pool(self, places: Float[Array, " k"]) -> scipy.sparse.csr_matrix:
        """From values at places to sums in cells: what is between two centres is shared."""
        centres = self.cells
        width = centres[1] - centres[0]
        x = np.clip((places - self.first) / width, 0, len(centres) - 1)
        left = np.minimum(x.astype(int), len(centres) - 2)
        right_share = x - left
        shares = np.concatenate([1 - right_share, right_share])
        cells = np.concatenate([left, left + 1])
        columns = np.tile(np.arange(len(places)), 2)
        shape = (len(centres), len(places))
        return scipy.sparse.csr_matrix((shares.astype(np.float32), (cells, columns)), shape)


@dataclasses.dataclass(frozen=True, eq=False)
class Lattice:
    """Nodes along the voxel axes of an image.

    Args:
        axes: of the lattice, in voxels.
        affine: (d + 1, d + 1) from voxels to the world.
    """

    axes: tuple[LatticeAxis, ...]
    affine: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(axis.count for axis in self.axes)

    @property
    def num_nodes(self) -> int:
        return int(np.prod(self.shape))

    @property
    def num_cells(self) -> int:
        return int(np.prod([len(axis.cells) for axis in self.axes]))

    @property
    def steps(self) -> Float[Array, " d"]:
        """Between nodes along each axis, mm."""
        voxels = np.linalg.norm(self.affine[:-1, :-1], axis=0)
        return voxels * [axis.step for axis in self.axes]

    @functools.cached_property
    def nodes(self) -> Float[Array, "n d"]:
        """In the world, mm."""
        return self.world([axis.nodes for axis in self.axes])

    def subset(self, distance: float) -> Int[Array, " k"]:
        """Every so many-th node along each axis, about this many mm apart, as row numbers."""
        chosen = []
        for axis, step in zip(self.axes, self.steps, strict=True):
            stride = max(1, round(distance / step))
            first = (axis.count - 1) % stride // 2
            chosen.append(slice(first, None, stride))
        numbers = np.arange(self.num_nodes).reshape(self.shape)
        return numbers[tuple(chosen)].ravel()

    def world(self, places: list[np.ndarray]) -> Float[Array, "k d"]:
        """All combinations of places along the axes, in the world."""
        d = len(self.axes)
        mesh = np.stack(np.meshgrid(*places, indexing="ij"), axis=-1)
        flat = mesh.reshape(-1, d)
        return flat @ self.affine[:d, :d].T + self.affine[:d, d]

    def at(self, places: list[np.ndarray]) -> "LatticeView":
        """How the lattice is seen by voxels at all combinations of these places."""
        return LatticeView(self, tuple(places))


@dataclasses.dataclass(frozen=True, eq=False)
class LatticeView:
    """Spread and gather between the nodes of a lattice and a regular grid of voxels.

    Args:
        lattice: the nodes.
        places: of the voxels along each axis.
    """

    lattice: Lattice
    places: tuple[np.ndarray, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(places) for places in self.places)

    @functools.cached_property
    def _spreads(self) -> list[np.ndarray]:
        pairs = zip(self.lattice.axes, self.places, strict=True)
        return [axis.spread(places).astype(np.float32) for axis, places in pairs]

    @functools.cached_property
    def _pools(self) -> list[scipy.sparse.csr_matrix]:
        pairs = zip(self.lattice.axes, self.places, strict=True)
        return [axis.pool(places) for axis, places in pairs]

    def spread(self, values: Float[Array, "q n"]) -> Float[Array, "q k"]:
        """N u: from the nodes to the voxels."""
        on_lattice = values.astype(np.float32, copy=False).reshape(-1, *self.lattice.shape)
        spread = splines.separable(self._spreads, on_lattice)
        return spread.reshape(len(values), -1)

    def gather(self, values: Float[Array, "q k"]) -> Float[Array, "q n"]:
        """Nᵀf: from the voxels to the nodes."""
        return self._gather_by(self._spreads, values)

    def gather_squared(self, values: Float[Array, "q k"]) -> Float[Array, "q n"]:
        """Σ N_ki² f_k: what the voxels say of each node alone."""
        squared = [spread**2 for spread in self._spreads]
        return self._gather_by(squared, values)

    def _gather_by(
        self, spreads: list[np.ndarray], values: Float[Array, "q k"]
    ) -> Float[Array, "q n"]:
        """The transpose of a spread along each axis."""
        transposed = [np.ascontiguousarray(spread.T) for spread in spreads]
        on_grid = values.astype(np.float32, copy=False).reshape(-1, *self.shape)
        gathered = splines.separable(transposed, on_grid)
        return gathered.reshape(len(values), -1)

    def pool(self, values: Float[Array, "q k"]) -> Float[Array, "q c"]:
        """What the voxels in each cell add up to."""
        pooled = values.reshape(-1, *self.shape)
        for axis, matrix in enumerate(self._pools):
            front = np.moveaxis(pooled, axis + 1, 0)
            shape = front.shape
            summed = matrix @ front.reshape(shape[0], -1)
            pooled = np.moveaxis(summed.reshape(-1, *shape[1:]), 0, axis + 1)
        return np.ascontiguousarray(pooled).reshape(len(values), -1)


@dataclasses.dataclass(frozen=True, eq=False)
class CellInformation:
    """M = Σ_c N_cᵀ W_c N_c over the cells of a lattice.

    Args:
        lattice: the nodes.
        cells: (d, d, c) W, the pooled information, 1/mm².
    """

    lattice: Lattice
    cells: np.ndarray

    @functools.cached_property
    def view(self) -> LatticeView:
        return self.lattice.at([axis.cells for axis in self.lattice.axes])

    def product(self, x: Float[Array, "c d n"]) -> Float[Array, "c d n"]:
        """Mx."""
        d, n = x.shape[1:]
        at_cells = self.view.spread(x.reshape(-1, n))
        pulled = splines.blockwise(self.cells, at_cells.reshape(len(x), d, -1))
        return self.view.gather(pulled.reshape(len(at_cells), -1)).reshape(x.shape)

    def local(self) -> Float[Array, "n d d"]:
        """The diagonal blocks of M, one for each node."""
        d = len(self.cells)
        gathered = self.view.gather_squared(self.cells.reshape(d * d, -1))
        return np.moveaxis(gathered.reshape(d, d, -1), -1, 0)

    def informed(self, share: float) -> Int[Array, " k"]:
        """The nodes around which this share of the cells is informed, compared with inner nodes."""
        is_informed = np.einsum("aac->c", self.cells) > 0
        seen = self.view.gather(is_informed[None].astype(np.float32))[0]
        return np.flatnonzero(seen > share * seen.max())

    @functools.cached_property
    def _roots(self) -> Float[Array, "d d c"]:
        first = np.moveaxis(self.cells, -1, 0)
        root = numerics.root_small(first.astype(np.float64))
        return np.moveaxis(root, 0, -1).astype(np.float32)

    def draw(self, generator: np.random.Generator, count: int) -> Float[Array, "c d n"]:
        """So many forces with the covariance M."""
        d = len(self.cells)
        white = generator.standard_normal((count, *self.cells.shape[1:]), np.float32)
        forces = splines.blockwise(self._roots, white)
        gathered = self.view.gather(forces.reshape(count * d, -1))
        return gathered.reshape(count, d, -1)
