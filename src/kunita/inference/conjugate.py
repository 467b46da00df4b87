"""Conjugate gradients for (I + MΛ)l = g, one system by itself or several in a block."""

import dataclasses
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from kunita.inference.deflation import Deflation
from kunita.inference.lattice_model import (
    TINY,
    Duals,
    LatticeSystem,
    Solved,
    Vector,
    by_system,
    dots,
)
from kunita.jaxrun.doors import Array

CLEANED = 4
"""After so many steps a residual is made orthogonal to the coarse space again."""

DEPENDENT = 1e-6
"""Eigenvalues of correlations below this, relative to the largest, are rounding."""

LOST = 0.02
"""Where the true residual of a block is above this share of the first one, its systems are solved
one by one as well. Rounding may spoil a block that is nearly as large as the space."""


@dataclasses.dataclass(frozen=True)
class ConjugateOptions:
    """When conjugate gradients end.

    Args:
        tolerance: of the norm of the residual, relative to that at the start.
        max_iterations: after which they end in any case.
    """

    tolerance: float
    max_iterations: int


def solve(
    system: LatticeSystem,
    force: Duals,
    options: ConjugateOptions,
    coarse: "Deflation | None" = None,
    start: Float[Array, "d n"] | None = None,
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
        start: nearly the solution, where the search begins.
    """
    found = _first(force, coarse) if start is None else _continued(system, force, coarse, start)
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
    step = _ratios(square, dots(at.direction.moved, product))
    found = at.found.plus(at.direction, step)
    dual = at.rest.dual - by_system(step) * product
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


def _ratios(first: Float[Array, " c"], second: Float[Array, " c"]) -> Float[Array, " c"]:
    return first / np.maximum(second, TINY)


def _first(force: Duals, coarse: "Deflation | None") -> Vector:
    """Where conjugate gradients begin."""
    if coarse is not None:
        return coarse.project(force)
    return Vector(np.zeros_like(force), np.zeros_like(force))


def _continued(
    system: LatticeSystem,
    force: Duals,
    coarse: "Deflation | None",
    start: Float[Array, "d n"],
) -> Vector:
    """A start, with what the coarse space adds to it."""
    found = system.covaried(np.broadcast_to(start, force.shape).astype(np.float32))
    added = _first(force - system.applied(found), coarse)
    return found.plus(added, np.ones(len(force)))


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
