"""The linear model around a flow on a grid, by products alone: sites are lattice nodes and
landmarks.

The prior covariance of the sites is Λ, and the alignment moves them by Hβ, H = J h(x̃), with a flat
prior on β. With the information M and the force b of the observations, and η what the present path
contributes,

    l₀ = (I + MΛ)⁻¹(b + Mη),    QH = (I + MΛ)⁻¹MH,    β = (HᵀQH)⁻¹Hᵀl₀,    l = l₀ − QHβ

are the change of the alignment and the dual of the best path. All systems are solved side by side.
"""

import dataclasses
from typing import NamedTuple

import numpy as np
import scipy.linalg
from jaxtyping import Float, Int

from kunita import numerics
from kunita.flow.grid_flow import FlowCovariance
from kunita.jaxrun.doors import Array
from kunita.observations.lattice import CellInformation

TINY = float(np.finfo(np.float64).tiny)
"""What a division by zero divides by instead."""

CLEANED = 4
"""After so many steps a residual is made orthogonal to the coarse space again."""

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

    def draw(self, generator: np.random.Generator, count: int) -> Duals:
        """So many forces with the covariance M."""
        d = self.marks.shape[-1]
        of_nodes = self.cells.draw(generator, count)
        root = numerics.root_small(self.marks)
        white = generator.standard_normal((count, d, len(self.marks)))
        of_marks = np.einsum("nab,cbn->can", root, white)
        return np.concatenate([of_nodes, of_marks.astype(np.float32)], axis=-1)


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

    def covariance(self, dual: Duals) -> Duals:
        """Λx."""
        return self.flow.product(dual)


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
        guess: (d, n) l₀, what the next solve may start from.
        num_iterations: of conjugate gradients.
    """

    dual: np.ndarray
    moved: np.ndarray
    shift: np.ndarray
    guess: np.ndarray
    num_iterations: int


def best_path(
    model: LatticeModel,
    force: Float[Array, "d n"],
    contribution: Float[Array, "d n"],
    guess: Float[Array, "d n"] | None,
    explained: Float[Array, "b d n"],
    options: ConjugateOptions,
) -> BestPath:
    """The best path and change of the alignment.

    Args:
        model: Λ, H and M.
        force: b.
        contribution: η.
        guess: l₀ of an earlier solve.
        explained: QH, or that of an earlier step: then the change of the alignment is that of a
            quasi-Newton method, with the same fixed point.
        options: of conjugate gradients.
    """
    forces = force + model.information.product(contribution[None])
    start = None if guess is None else guess[None]
    solved = solve(model, forces, start, options)
    whole = solved.dual[0]
    moved = solved.moved[0]
    if not len(explained):
        return BestPath(whole, moved, np.zeros(0), whole, solved.num_iterations)
    information = np.einsum("bdn,cdn->bc", model.design, explained, dtype=np.float64)
    pulled = np.einsum("bdn,dn->b", model.design, whole, dtype=np.float64)
    shift = np.linalg.solve(information, pulled)
    weights = shift.astype(np.float32)
    dual = whole - np.tensordot(weights, explained, axes=1)
    held = model.covariance(np.tensordot(weights, explained, axes=1)[None])[0]
    turned = np.tensordot(weights, model.design, axes=1)
    return BestPath(dual, moved - held + turned, shift, whole, solved.num_iterations)


def explain_design(model: LatticeModel, options: ConjugateOptions) -> Float[Array, "b d n"]:
    """QH."""
    if not len(model.design):
        return model.design
    forces = model.information.product(model.design)
    return solve(model, forces, None, options).dual


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


class Vector(NamedTuple):
    """Forces on the sites together with their product with Λ, so that Λ is never inverted.

    Args:
        dual: x.
        moved: Λx.
    """

    dual: np.ndarray
    moved: np.ndarray

    def square(self) -> Float[Array, " c"]:
        """XᵀΛx of each system; rounding does not make it negative."""
        return np.maximum(_dots(self.dual, self.moved), 0.0)

    def plus(self, other: "Vector", factor: Float[Array, " c"]) -> "Vector":
        """x + αy, with an α for each system."""
        share = _by_system(factor)
        return Vector(self.dual + share * other.dual, self.moved + share * other.moved)


def solve(
    model: LatticeModel,
    force: Duals,
    start: Duals | None,
    options: ConjugateOptions,
    coarse: "Deflation | None" = None,
) -> Solved:
    """Conjugate gradients in the inner product of Λ, for several systems at once.

    I + MΛ is self-adjoint and positive in ⟨x, y⟩ = xᵀΛy. A step costs one product with either
    matrix, and Λ is never inverted: with every vector its product with Λ is carried along.

    Well-determined smooth displacements slow conjugate gradients down. A coarse space that has them
    is solved at once, and what is searched stays conjugate to it.

    Args:
        model: Λ and M.
        force: g.
        start: a first guess; not together with a coarse space.
        options: when to end.
        coarse: a coarse space.
    """
    found = _first(model, force, start, coarse)
    rest = _covaried(model, force - _applied(model, found))
    iterate = Iterate(found, rest, _fresh(rest, coarse))
    first = rest.square()
    num_iterations = 0
    while num_iterations < options.max_iterations and _is_above(iterate, first, options):
        num_iterations += 1
        is_cleaned = num_iterations % CLEANED == 0
        iterate = _next(model, iterate, coarse, is_cleaned=is_cleaned)
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
    model: LatticeModel, at: Iterate, coarse: "Deflation | None", *, is_cleaned: bool
) -> Iterate:
    """One step of conjugate gradients."""
    square = at.rest.square()
    product = _applied(model, at.direction)
    step = _ratios(square, _dots(at.direction.moved, product))
    found = at.found.plus(at.direction, step)
    dual = at.rest.dual - _by_system(step) * product
    if coarse is not None and is_cleaned:
        found, dual = _cleaned(model, found, dual, coarse)
    rest = _covaried(model, dual)
    ratio = _ratios(rest.square(), square)
    return Iterate(found, rest, _fresh(rest, coarse).plus(at.direction, ratio))


def _cleaned(
    model: LatticeModel, found: Vector, rest: Duals, coarse: "Deflation"
) -> tuple[Vector, Duals]:
    """The same solution and residual without what rounding has brought back of the coarse space.

    In single precision that part would grow from step to step.
    """
    part = coarse.project(rest)
    ones = np.ones(len(rest))
    return found.plus(part, ones), rest - _applied(model, part)


def _is_above(iterate: Iterate, first: Float[Array, " c"], options: ConjugateOptions) -> bool:
    """Whether the residual of any system is still above the tolerance."""
    return bool(np.any(iterate.rest.square() > options.tolerance**2 * first))


def _covaried(model: LatticeModel, dual: Duals) -> Vector:
    return Vector(dual, model.covariance(dual))


def _by_system(factor: Float[Array, " c"]) -> Float[Array, "c 1 1"]:
    """A factor for each system, in single precision."""
    return factor.astype(np.float32)[:, None, None]


def _ratios(first: Float[Array, " c"], second: Float[Array, " c"]) -> Float[Array, " c"]:
    return first / np.maximum(second, TINY)


def _first(
    model: LatticeModel, force: Duals, start: Duals | None, coarse: "Deflation | None"
) -> Vector:
    """Where conjugate gradients begin."""
    if coarse is not None:
        return coarse.project(force)
    if start is not None:
        return _covaried(model, start)
    return Vector(np.zeros_like(force), np.zeros_like(force))


def _applied(model: LatticeModel, vector: Vector) -> Duals:
    """(I + MΛ)x."""
    return vector.dual + model.information.product(vector.moved)


def _fresh(rest: Vector, coarse: "Deflation | None") -> Vector:
    """The direction of steepest descent, conjugate to a coarse space."""
    if coarse is None:
        return rest
    minus = np.full(len(rest.dual), -1.0)
    return rest.plus(coarse.conjugate_part(rest.moved), minus)


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
    def of(cls, model: LatticeModel, sites: Int[Array, " k"], batch: int = 64) -> "Deflation":
        """Multiply unit forces at the sites, some at a time."""
        d, n = model.flow.psi.shape[2:]
        size = d * len(sites)
        moved = np.empty((size, d * n), np.float32)
        product = np.empty_like(moved)
        for first in range(0, size, batch):
            rows = np.arange(first, min(first + batch, size))
            units = _unit_forces(rows, sites, d, n)
            covaried = model.covariance(units)
            whole = units + model.information.product(covaried)
            moved[rows] = covaried.reshape(len(rows), -1)
            product[rows] = whole.reshape(len(rows), -1)
        inner = (moved @ product.T).astype(np.float64)
        scale = np.sqrt(np.diag(inner))
        factor = _factor_scaled(inner, scale)
        return cls(sites, moved, product, scale, factor)

    def coefficients(self, projections: Float[Array, "c k"]) -> Float[Array, "c k"]:
        """(ZᵀAZ)⁻¹y."""
        scaled = projections.astype(np.float64) / self.scale
        solved = scipy.linalg.cho_solve(self.factor, scaled.T).T
        return (solved / self.scale).astype(np.float32)

    def forces(self, coefficients: Float[Array, "c k"], like: Duals) -> Duals:
        """Ec."""
        d = like.shape[1]
        forces = np.zeros_like(like)
        forces[:, :, self.sites] = coefficients.reshape(len(coefficients), d, -1)
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


def _unit_forces(rows: Int[Array, " r"], sites: Int[Array, " k"], d: int, n: int) -> Duals:
    """Unit forces: rows count the sites within each axis."""
    units = np.zeros((len(rows), d, n), np.float32)
    axes = rows // len(sites)
    chosen = sites[rows % len(sites)]
    units[np.arange(len(rows)), axes, chosen] = 1.0
    return units


def _factor_scaled(
    inner: Float[Array, "k k"], scale: Float[Array, " k"]
) -> tuple[np.ndarray, bool]:
    """The Cholesky factor of a matrix whose diagonal is brought to one."""
    correlations = (inner + inner.T) / (2 * np.outer(scale, scale))
    correlations[np.diag_indices(len(scale))] += JITTER
    return scipy.linalg.cho_factor(correlations, lower=True)


def _dots(x: Duals, y: Duals) -> Float[Array, " c"]:
    """Inner products, system by system, in double precision."""
    return np.sum(x * y, axis=(1, 2), dtype=np.float64)
