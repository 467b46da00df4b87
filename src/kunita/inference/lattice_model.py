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
import scipy.linalg
from jaxtyping import Float, Int

from kunita import numerics
from kunita.flow.grid_flow import FlowCovariance
from kunita.jaxrun.doors import Array
from kunita.observations.lattice import CellInformation, Lattice

TINY = float(np.finfo(np.float64).tiny)
"""What a division by zero divides by instead."""

CLEANED = 4
"""After so many steps a residual is made orthogonal to the coarse space again."""

DEPENDENT = 1e-6
"""Eigenvalues of correlations below this, relative to the largest, are rounding."""

LOST = 0.02
"""Where the true residual of a block is above this share of the first one, its systems are solved
one by one as well. Rounding may spoil a block that is nearly as large as the space."""

LEAST_GAIN = 1.0
"""A node takes part in a coarse space if images say more of it than so many times the prior. On
lung CT, whose mask covers a third of the lattice, its matrix is then a seventh as large."""

MOST_COARSE = 1200
WIDER = 1.2
"""A coarse space has at most so many unknowns, as its matrix takes their square times all unknowns.
Where it has more, its nodes are moved apart by this factor, again and again."""

TOGETHER = 64
"""Displacements that are multiplied together: more need much memory."""

UNINFORMED = 1e-9
"""Directions of the alignment that are told less than this share of the best one are not moved."""

JITTER = 1e-6
"""Added to the diagonal of the coarse matrix: rounding in single precision may leave it
indefinite."""

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
        products = _as_matrix(self.product(_units(d, n)))
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
        return _as_matrix(self.pulled)

    def product(self, x: Duals) -> Duals:
        """(M − MHA⁻¹HᵀM)x."""
        along = _as_matrix(x) @ self._pulled_rows.T
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


@dataclasses.dataclass(frozen=True)
class ConjugateOptions:
    """When conjugate gradients end.

    Args:
        tolerance: of the norm of the residual, relative to that at the start.
        max_iterations: after which they end in any case.
    """

    tolerance: float
    max_iterations: int


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
        return np.maximum(_dots(self.dual, self.moved), 0.0)

    def plus(self, other: "Vector", factor: Float[Array, " c"]) -> "Vector":
        """x + αy, with an α for each system."""
        share = _by_system(factor)
        return Vector(self.dual + share * other.dual, self.moved + share * other.moved)


def solve(
    system: LatticeSystem,
    force: Duals,
    options: ConjugateOptions,
    coarse: "Deflation | None" = None,
) -> Solved:
    """Conjugate gradients in the inner product of Λ, for several systems at once.

    I + MΛ is self-adjoint and positive in ⟨x, y⟩ = xᵀΛy. A step costs one product with either
    matrix, and Λ is never inverted: with every vector its product with Λ is carried along.

    Well-determined smooth displacements slow conjugate gradients down. A coarse space that has them
    is solved at once, and what is searched stays conjugate to it.

    Args:
        system: Λ and M.
        force: g.
        options: when to end.
        coarse: a coarse space.
    """
    found = _first(force, coarse)
    rest = system.covaried(force - system.applied(found))
    iterate = Iterate(found, rest, _fresh(rest, coarse))
    first = rest.square()
    num_iterations = 0
    while num_iterations < options.max_iterations and _is_above(iterate, first, options):
        num_iterations += 1
        is_cleaned = num_iterations % CLEANED == 0
        iterate = _next(system, iterate, coarse, is_cleaned=is_cleaned)
    found = iterate.found
    residual = float(np.sqrt(np.max(_ratios(iterate.rest.square(), first))))
    return Solved(found.dual, found.moved, num_iterations, residual)


class Iterate(NamedTuple):
    """Where conjugate gradients are.

    Args:
        found: the solution so far.
        rest: the residual.
        direction: of the next step.
    """

    found: Vector
    rest: Vector
    direction: Vector


def _next(
    system: LatticeSystem, at: Iterate, coarse: "Deflation | None", *, is_cleaned: bool
) -> Iterate:
    """One step of conjugate gradients."""
    square = at.rest.square()
    product = system.applied(at.direction)
    step = _ratios(square, _dots(at.direction.moved, product))
    found = at.found.plus(at.direction, step)
    dual = at.rest.dual - _by_system(step) * product
    if coarse is not None and is_cleaned:
        found, dual = _cleaned(system, found, dual, coarse)
    rest = system.covaried(dual)
    ratio = _ratios(rest.square(), square)
    return Iterate(found, rest, _fresh(rest, coarse).plus(at.direction, ratio))


def _cleaned(
    system: LatticeSystem, found: Vector, rest: Duals, coarse: "Deflation"
) -> tuple[Vector, Duals]:
    """The same solution and residual without what rounding has brought back of the coarse space.

    In single precision that part would grow from step to step.
    """
    part = coarse.project(rest)
    ones = np.ones(len(rest))
    return found.plus(part, ones), rest - system.applied(part)


def _is_above(iterate: Iterate, first: Float[Array, " c"], options: ConjugateOptions) -> bool:
    """Whether the residual of any system is still above the tolerance."""
    return bool(np.any(iterate.rest.square() > options.tolerance**2 * first))


def _by_system(factor: Float[Array, " c"]) -> Float[Array, "c 1 1"]:
    """A factor for each system, in single precision."""
    return factor.astype(np.float32)[:, None, None]


def _ratios(first: Float[Array, " c"], second: Float[Array, " c"]) -> Float[Array, " c"]:
    return first / np.maximum(second, TINY)


def _first(force: Duals, coarse: "Deflation | None") -> Vector:
    """Where conjugate gradients begin."""
    if coarse is not None:
        return coarse.project(force)
    return Vector(np.zeros_like(force), np.zeros_like(force))


def _fresh(rest: Vector, coarse: "Deflation | None") -> Vector:
    """The direction of steepest descent, conjugate to a coarse space."""
    if coarse is None:
        return rest
    minus = np.full(len(rest.dual), -1.0)
    return rest.plus(coarse.conjugate_part(rest.moved), minus)


# ------------------------------------------------------------------------------------ in a block


class Block(NamedTuple):
    """Where block conjugate gradients are; the residuals of all systems are CQ.

    Args:
        found: the solutions so far.
        basis: Q, orthonormal in the inner product of Λ.
        direction: P, of the next step.
        shares: (c, c) C, what each residual has of the basis.
    """

    found: Vector
    basis: Vector
    direction: Vector
    shares: np.ndarray


def solve_together(
    system: LatticeSystem,
    force: Duals,
    options: ConjugateOptions,
    coarse: "Deflation | None" = None,
) -> Solved:
    """Block conjugate gradients: all systems search the space that any of them has found.

    With 88 systems of lung CT this takes a third of the steps of `solve`. The residuals are kept as
    combinations of an orthonormal basis, so that they may become dependent (Dubrulle, Retooling the
    method of block conjugate gradients, 2001):

        X ← X + C ξ P,    ζQ′ = Q − ξTP,    C ← Cζ,    P ← Q′ + ζᵀP,    ξ = ⟨P, TP⟩⁻¹,

    with T = I + MΛ, and systems in rows. The residual that is reported is the true one, of the
    duals. Where it is large, the systems are solved one by one as well, and the better answer is
    taken.

    Args:
        system: Λ and M.
        force: g.
        options: when to end.
        coarse: a coarse space, which is solved at once.
    """
    found = _first(force, coarse)
    rest = system.covaried(force - system.applied(found))
    first = rest.square()
    basis, shares = _orthonormal(rest)
    block = Block(found, basis, _fresh(basis, coarse), shares)
    num_iterations = 0
    while num_iterations < options.max_iterations and _is_block_above(block, first, options):
        num_iterations += 1
        is_cleaned = num_iterations % CLEANED == 0
        block = _next_block(system, block, coarse, is_cleaned=is_cleaned)
    together = _as_solved(system, force, block.found.dual, num_iterations, first)
    if together.residual < LOST:
        return together
    alone = solve(system, force, options, coarse)
    return min(together, alone, key=lambda solved: solved.residual)


def _as_solved(
    system: LatticeSystem,
    force: Duals,
    dual: Duals,
    num_iterations: int,
    first: Float[Array, " c"],
) -> Solved:
    """Duals as a solution, with their true residual; infinite if they are not finite."""
    found = system.covaried(dual)
    rest = system.covaried(force - system.applied(found))
    residual = float(np.sqrt(np.max(_ratios(rest.square(), first))))
    true = residual if np.isfinite(residual) else np.inf
    return Solved(found.dual, found.moved, num_iterations, true)


def _next_block(
    system: LatticeSystem, at: Block, coarse: "Deflation | None", *, is_cleaned: bool
) -> Block:
    """One step of block conjugate gradients."""
    product = system.applied(at.direction)
    step = np.linalg.pinv(_grams(at.direction.moved, product), hermitian=True)
    found = _plus(at.found, _combined(at.shares @ step, at.direction))
    dual = at.basis.dual - _mixed(step, product)
    if coarse is not None and is_cleaned:
        part = coarse.project(dual)
        found = _plus(found, _combined(at.shares, part))
        dual = dual - system.applied(part)
    basis, change = _orthonormal(system.covaried(dual))
    direction = _plus(_fresh(basis, coarse), _combined(change.T, at.direction))
    return Block(found, basis, direction, at.shares @ change)


def _orthonormal(vectors: Vector) -> tuple[Vector, Float[Array, "c c"]]:
    """Q and A with x = AQ and ⟨Q, Q⟩ = I; what vectors depend on each other by is zero in Q."""
    inner = _grams(vectors.dual, vectors.moved)
    # Squares that are rounding, zero or even negative, belong to vectors that are nothing.
    squares = np.diag(inner)
    is_there = squares > DEPENDENT**2 * squares.max(initial=TINY)
    scale = np.sqrt(np.where(is_there, squares, np.inf))
    values, axes = np.linalg.eigh(inner / np.outer(scale, scale))
    is_kept = values > DEPENDENT * max(values[-1], TINY)
    roots = np.sqrt(np.where(is_kept, values, 1.0))
    kept_axes = axes * is_kept
    outwards = np.where(is_there, scale, 0.0)[:, None] * kept_axes * roots
    inwards = (kept_axes / roots).T / scale
    return _combined(inwards, vectors), outwards


def _is_block_above(block: Block, first: Float[Array, " c"], options: ConjugateOptions) -> bool:
    """Whether the residual of any system is still above the tolerance."""
    return bool(np.any(_block_squares(block) > options.tolerance**2 * first))


def _block_squares(block: Block) -> Float[Array, " c"]:
    """The squared norm of each residual."""
    return np.sum(block.shares**2, axis=1)


def _grams(x: Duals, y: Duals) -> Float[Array, "c c"]:
    """Inner products of all with all, made symmetric."""
    inner = x.reshape(len(x), -1) @ y.reshape(len(y), -1).T
    double = inner.astype(np.float64)
    return (double + double.T) / 2


def _mixed(weights: Float[Array, "c e"], x: Duals) -> Duals:
    """Combinations of systems."""
    return np.tensordot(weights.astype(np.float32), x, axes=1)


def _combined(weights: Float[Array, "c e"], x: Vector) -> Vector:
    return Vector(_mixed(weights, x.dual), _mixed(weights, x.moved))


def _plus(x: Vector, y: Vector) -> Vector:
    return Vector(x.dual + y.dual, x.moved + y.moved)


@dataclasses.dataclass(frozen=True, eq=False)
class Deflation:
    """A coarse space that conjugate gradients need not search: Z = ΛE, E unit forces at some sites.

    With A = Λ⁻¹ + M, the products AZ = E + MZ need no inverse of Λ.

    Args:
        sites: (k,) which sites.
        moved: (kd, nd) Zᵀ.
        product: (kd, nd) (AZ)ᵀ.
        scale: (kd,) square roots of the diagonal of ZᵀAZ.
        factor: of ZᵀAZ, scaled so that its diagonal is one.
    """

    sites: np.ndarray
    moved: np.ndarray
    product: np.ndarray
    scale: np.ndarray
    factor: tuple[np.ndarray, bool]

    @classmethod
    def of(cls, system: LatticeSystem, sites: Int[Array, " k"]) -> "Deflation":
        """The coarse space of some sites."""
        covaried = system.flow.columns(sites)
        product = _informed(system, covaried)
        _add_units(product, sites)
        moved = covaried.reshape(len(covaried), -1)
        inner = (moved @ product.T).astype(np.float64)
        scale = np.sqrt(np.diag(inner))
        return cls(sites, moved, product, scale, _factor_scaled(inner, scale))

    @classmethod
    def at_informed(
        cls, system: LatticeSystem, distance: float, most: int = MOST_COARSE
    ) -> "Deflation | None":
        """The coarse space of nodes so far apart, of those that images say something of.

        Of the others the prior decides, and conjugate gradients need no help. None without any.

        Args:
            system: Λ and M.
            distance: of the nodes, mm; more where there would be too many.
            most: unknowns.
        """
        information = system.information.whole
        lattice = information.cells.lattice
        gains = information.node_precisions() * system.flow.grid.variance
        is_informed = gains > LEAST_GAIN
        chosen = lattice.subset(distance)
        while np.sum(is_informed[chosen]) * system.shape[0] > most:
            distance *= WIDER
            chosen = lattice.subset(distance)
        informed = chosen[is_informed[chosen]]
        return cls.of(system, informed) if len(informed) else None

    def coefficients(self, projections: Float[Array, "c k"]) -> Float[Array, "c k"]:
        """(ZᵀAZ)⁻¹y."""
        scaled = projections.astype(np.float64) / self.scale
        solved = scipy.linalg.cho_solve(self.factor, scaled.T).T
        return (solved / self.scale).astype(np.float32)

    def forces(self, coefficients: Float[Array, "c k"], like: Duals) -> Duals:
        """Ec."""
        forces = np.zeros_like(like)
        forces[:, :, self.sites] = coefficients.reshape(len(like), like.shape[1], -1)
        return forces

    def project(self, rest: Duals) -> "Vector":
        """The part of a solution that the coarse space has: Z(ZᵀAZ)⁻¹Zᵀr."""
        flat = rest.reshape(len(rest), -1)
        weights = self.coefficients(flat @ self.moved.T)
        return self._vector(weights, rest)

    def conjugate_part(self, covaried: Duals) -> "Vector":
        """What of z = Λr is not conjugate to the coarse space: Z(ZᵀAZ)⁻¹ZᵀAz."""
        flat = covaried.reshape(len(covaried), -1)
        weights = self.coefficients(flat @ self.product.T)
        return self._vector(weights, covaried)

    def _vector(self, weights: Float[Array, "c k"], like: Duals) -> "Vector":
        moved = (weights @ self.moved).reshape(like.shape)
        return Vector(self.forces(weights, like), moved)


@dataclasses.dataclass(frozen=True, eq=False)
class DenseSolver:
    """(I + MΛ)⁻¹ by a factor of I + LᵀML, Λ = LLᵀ.

    Args:
        root: L.
        information: M.
        factor: of I + LᵀML.
    """

    root: np.ndarray
    information: np.ndarray
    factor: tuple[np.ndarray, bool]

    @classmethod
    def of(cls, system: LatticeSystem) -> "DenseSolver":
        """Form Λ by products with unit vectors, and factor."""
        covariance = _as_matrix(system.flow.product(_units(*system.shape)))
        return cls.of_matrices(covariance, system.information.matrix())

    @classmethod
    def of_matrices(
        cls, covariance: Float[Array, "k k"], information: Float[Array, "k k"]
    ) -> "DenseSolver":
        """Factor Λ and I + LᵀML."""
        root = numerics.factor_semidefinite(covariance)
        inner = root.T @ information @ root
        inner[np.diag_indices(len(inner))] += 1
        return cls(root, information, _factor_above_one(inner))

    @property
    def log_det(self) -> float:
        """log|I + MΛ|."""
        return 2 * float(np.log(np.diag(self.factor[0])).sum())

    def solve(self, force: Duals) -> Duals:
        """(I + MΛ)⁻¹g = g − ML(I + LᵀML)⁻¹Lᵀg."""
        columns = force.reshape(len(force), -1).T.astype(np.float64)
        inner = scipy.linalg.cho_solve(self.factor, self.root.T @ columns)
        solved = columns - self.information @ (self.root @ inner)
        return np.ascontiguousarray(solved.T).reshape(force.shape).astype(np.float32)

    def solved(self, system: LatticeSystem, force: Duals) -> Solved:
        """The same with Λl."""
        found = system.covaried(self.solve(force))
        return Solved(found.dual, found.moved, num_iterations=0, residual=0.0)


def _factor_above_one(matrix: Float[Array, "k k"]) -> tuple[np.ndarray, bool]:
    """A factor of I + LᵀML, whose eigenvalues are no less than one.

    Where images agree to rounding, M is so large that its own rounding makes some of them less, and
    even negative. These are one.
    """
    try:
        return scipy.linalg.cho_factor(matrix, lower=True)
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(matrix)
        at_least_one = (vectors * np.maximum(values, 1)) @ vectors.T
        return scipy.linalg.cho_factor(at_least_one, lower=True)


def _informed(system: LatticeSystem, displacements: Duals) -> Float[Array, "c k"]:
    """M times many displacements, some at a time."""
    product = np.empty((len(displacements), displacements[0].size), np.float32)
    for first in range(0, len(displacements), TOGETHER):
        some = slice(first, first + TOGETHER)
        informed = system.information.product(displacements[some])
        product[some] = informed.reshape(len(informed), -1)
    return product


def _add_units(rows: Float[Array, "kd dn"], sites: Int[Array, " k"]) -> None:
    """Add unit forces at the sites, the axes before the sites, in place."""
    numbers = np.arange(len(rows))
    num_axes = len(rows) // len(sites)
    num_sites = rows.shape[1] // num_axes
    columns = (numbers // len(sites)) * num_sites + sites[numbers % len(sites)]
    rows[numbers, columns] += 1.0


def _factor_scaled(
    inner: Float[Array, "k k"], scale: Float[Array, " k"]
) -> tuple[np.ndarray, bool]:
    """The Cholesky factor of a matrix whose diagonal is brought to one."""
    correlations = (inner + inner.T) / (2 * np.outer(scale, scale))
    jitter = JITTER
    while True:
        try:
            lifted = correlations + jitter * np.eye(len(scale))
            return scipy.linalg.cho_factor(lifted, lower=True)
        except np.linalg.LinAlgError:
            # Rounding grows with the matrix. With more of it, conjugate gradients take more steps.
            jitter *= 10


def _units(d: int, n: int) -> Duals:
    """All unit forces."""
    size = d * n
    return np.eye(size, dtype=np.float32).reshape(size, d, n)


def _as_matrix(duals: Duals) -> Float[Array, "c k"]:
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


def _dots(x: Duals, y: Duals) -> Float[Array, " c"]:
    """Inner products, system by system, in double precision."""
    return np.sum(x * y, axis=(1, 2), dtype=np.float64)
