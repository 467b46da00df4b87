"""The linear model around a flow on a grid, by products alone: sites are lattice nodes and
landmarks.

The prior covariance of the sites is Λ, and the alignment moves them by Hβ, H = J h(x̃), with a flat
prior on β. With the information M and the force b of the observations, and η what the present path
contributes,

    M̃ = M − MHA⁻¹HᵀM,    A = HᵀMH,    g = b + Mη,
    l = (I + M̃Λ)⁻¹(g − MHA⁻¹Hᵀg),    β = A⁻¹(Hᵀg − HᵀMΛl)

are the dual of the best path and the change of the alignment: given the flow, the best alignment
has a closed form, and what is left is a system for the flow alone, with Hᵀl = 0.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from kunita import numerics
from kunita.flow.grid_flow import FlowCovariance
from kunita.jaxrun.doors import Array
from kunita.observations.lattice import CellInformation, Lattice

TINY = float(np.finfo(np.float64).tiny)
"""What a division by zero divides by instead."""

UNINFORMED = 1e-9
"""Directions of the alignment that are told less than this share of the best one are not moved."""

Duals = Float[Array, "c d n"]
"""Forces on the sites, one system after another."""


@dataclasses.dataclass(frozen=True, eq=False)
class SiteInformation:
    """M of the sites: of all voxels at the nodes of the lattice, and of each landmark by itself.

    Args:
        cells: of the voxels; its nodes are the first sites.
        marks: (k, d, d) precisions of landmarks, the last sites.
    """

    cells: CellInformation
    marks: np.ndarray

    def product(self, x: Duals) -> Duals:
        """Mx."""
        num_nodes = self.cells.lattice.num_nodes
        of_nodes = self.cells.product(x[..., :num_nodes])
        of_marks = np.einsum("nab,cbn->can", self.marks, x[..., num_nodes:])
        return np.concatenate([of_nodes, of_marks.astype(np.float32)], axis=-1)

    @property
    def whole(self) -> "SiteInformation":
        """M itself, as `ProfiledInformation.whole` is."""
        return self

    def node_precisions(self) -> Float[Array, " n"]:
        """About what the voxels around each node say of it along an axis, 1/mm²."""
        cells = self.cells.cells
        means = np.einsum("aac->c", cells) / len(cells)
        return self.cells.view.gather(means[None])[0]

    def matrix(self) -> Float[Array, "k k"]:
        """M as a matrix, in double precision."""
        d = self.marks.shape[-1]
        n = self.cells.lattice.num_nodes + len(self.marks)
        products = as_rows(self.product(unit_forces(d, n)))
        return (products + products.T) / 2

    def draw(self, generator: np.random.Generator, count: int) -> Duals:
        """So many forces with the covariance M."""
        d = self.marks.shape[-1]
        of_nodes = self.cells.draw(generator, count)
        root = numerics.root_small(self.marks)
        white = generator.standard_normal((count, d, len(self.marks)))
        of_marks = np.einsum("nab,cbn->can", root, white)
        return np.concatenate([of_nodes, of_marks.astype(np.float32)], axis=-1)


@dataclasses.dataclass(frozen=True, eq=False)
class ProfiledInformation:
    """What observations say of the sites if the alignment may move freely: M − MHA⁻¹HᵀM, A = HᵀMH.

    The alignment and the flow nearly compensate each other. With the alignment profiled out, a
    search for the flow need not resolve that.

    Args:
        whole: M.
        design: (b, d, n) H.
        pulled: (b, d, n) MH.
        inverse: (b, b) A⁻¹.
    """

    whole: SiteInformation
    design: np.ndarray
    pulled: np.ndarray
    inverse: np.ndarray

    @classmethod
    def of(cls, whole: SiteInformation, design: Float[Array, "b d n"]) -> "ProfiledInformation":
        """With the directions H of the alignment, which may be none."""
        pulled = whole.product(design) if len(design) else design
        inner = _pairwise(design, pulled)
        # A direction that the compared voxels do not inform is left as it is.
        return cls(whole, design, pulled, np.linalg.pinv(inner, UNINFORMED, hermitian=True))

    @functools.cached_property
    def _pulled_rows(self) -> Float[Array, "b k"]:
        """MH in double precision: the alignment and the flow nearly compensate each other."""
        return as_rows(self.pulled)

    def product(self, x: Duals) -> Duals:
        """(M − MHA⁻¹HᵀM)x."""
        along = as_rows(x) @ self._pulled_rows.T
        return self.whole.product(x) - self._held(along)

    def matrix(self) -> Float[Array, "k k"]:
        """The same as a matrix; the difference is taken in double precision."""
        flat = self._pulled_rows
        return self.whole.matrix() - flat.T @ self.inverse @ flat

    def without_alignment(self, force: Float[Array, "d n"]) -> Float[Array, "d n"]:
        """(I − MHA⁻¹Hᵀ)g: what of a force the alignment does not follow."""
        along = _along(self.design, force)
        return force - self._held(along[None])[0]

    def shift(self, force: Float[Array, "d n"], moved: Float[Array, "d n"]) -> Float[Array, " b"]:
        """β = A⁻¹(Hᵀg − HᵀMx): how far the alignment moves beside a displacement x of the flow."""
        along = _along(self.design, force)
        followed = _along(self.pulled, moved)
        return self.inverse @ (along - followed)

    def turned(self, shift: Float[Array, " b"]) -> Float[Array, "d n"]:
        """Hβ."""
        return np.tensordot(shift.astype(np.float32), self.design, axes=1)

    def _held(self, along: Float[Array, "c b"]) -> Duals:
        """MHA⁻¹y."""
        weights = (along @ self.inverse).astype(np.float32)
        return np.tensordot(weights, self.pulled, axes=1)


@dataclasses.dataclass(frozen=True, eq=False)
class LatticeSystem:
    """The linear systems (I + MΛ)l = g of a flow and of what observations say.

    Args:
        flow: Λ.
        information: M, or M with the alignment profiled out.
    """

    flow: FlowCovariance
    information: SiteInformation | ProfiledInformation

    @property
    def shape(self) -> tuple[int, int]:
        """Of a force: dimension and number of sites."""
        d, n = self.flow.psi.shape[2:]
        return d, n

    def applied(self, vector: "Vector") -> Duals:
        """(I + MΛ)x."""
        return vector.dual + self.information.product(vector.moved)

    def covaried(self, dual: Duals) -> "Vector":
        """x together with Λx."""
        return Vector(dual, self.flow.product(dual))


@dataclasses.dataclass(frozen=True, eq=False)
class LatticeModel:
    """Λ, H and M of the sites.

    Args:
        flow: Λ.
        design: (b, d, n) H.
        information: M.
    """

    flow: FlowCovariance
    design: np.ndarray
    information: SiteInformation

    @property
    def lattice(self) -> Lattice:
        """Whose nodes are the first sites."""
        return self.information.cells.lattice

    @property
    def system(self) -> LatticeSystem:
        """Without the alignment."""
        return LatticeSystem(self.flow, self.information)


@dataclasses.dataclass(frozen=True, eq=False)
class BestPath:
    """The minimiser of the linear problem.

    Args:
        dual: (d, n) l.
        moved: (d, n) Λl + Hβ, the displacement of the sites.
        shift: (b,) β, the change of the alignment.
        num_iterations: of conjugate gradients.
    """

    dual: np.ndarray
    moved: np.ndarray
    shift: np.ndarray
    num_iterations: int


@dataclasses.dataclass(frozen=True, eq=False)
class Solved:
    """A solution of (I + MΛ)l = g.

    Args:
        dual: l.
        moved: Λl.
        num_iterations: of conjugate gradients.
        residual: norm of what remains, relative to that at the start, of the worst system.
    """

    dual: np.ndarray
    moved: np.ndarray
    num_iterations: int
    residual: float


Solver = Callable[[Duals], Solved]
"""Solves (I + MΛ)l = g for several g."""


def best_path(
    profiled: ProfiledInformation, force: Float[Array, "d n"], solver: Solver
) -> BestPath:
    """The best path and change of the alignment.

    Args:
        profiled: M and H.
        force: g = b + Mη.
        solver: of the system with the alignment profiled out.
    """
    pulling = profiled.without_alignment(force)
    solved = solver(pulling[None])
    moved = solved.moved[0]
    shift = profiled.shift(force, moved)
    return BestPath(solved.dual[0], moved + profiled.turned(shift), shift, solved.num_iterations)


class Vector(NamedTuple):
    """Forces on the sites together with their product with Λ, so that Λ is never inverted.

    Args:
        dual: x.
        moved: Λx.
    """

    dual: np.ndarray
    moved: np.ndarray

    def square(self) -> Float[Array, " c"]:
        """xᵀΛx of each system; rounding does not make it negative."""
        return np.maximum(dots(self.dual, self.moved), 0.0)

    def plus(self, other: "Vector", factor: Float[Array, " c"]) -> "Vector":
        """x + αy, with an α for each system."""
        share = by_system(factor)
        return Vector(self.dual + share * other.dual, self.moved + share * other.moved)


def unit_forces(d: int, n: int) -> Duals:
    """All unit forces."""
    size = d * n
    return np.eye(size, dtype=np.float32).reshape(size, d, n)


def as_rows(duals: Duals) -> Float[Array, "c k"]:
    """Forces as rows, in double precision."""
    d, n = duals.shape[1:]
    return duals.reshape(len(duals), d * n).astype(np.float64)


def _along(directions: Float[Array, "b d n"], x: Float[Array, "d n"]) -> Float[Array, " b"]:
    """Inner products with some directions, in double precision."""
    return np.einsum("bdn,dn->b", directions, x, dtype=np.float64)


def _pairwise(x: Float[Array, "b d n"], y: Float[Array, "b d n"]) -> Float[Array, "b b"]:
    """Inner products of all with all, made symmetric, in double precision."""
    inner = np.einsum("bdn,cdn->bc", x, y, dtype=np.float64)
    return (inner + inner.T) / 2


def dots(x: Duals, y: Duals) -> Float[Array, " c"]:
    """Inner products, system by system, in double precision."""
    return np.sum(x * y, axis=(1, 2), dtype=np.float64)


def by_system(factor: Float[Array, " c"]) -> Float[Array, "c 1 1"]:
    """A factor for each system, in single precision."""
    return factor.astype(np.float32)[:, None, None]
