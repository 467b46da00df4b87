"""Exact Newton on the two equations of the optimum: follows the path of optima, and finishes."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from kunita import numerics
from kunita.inference.gauss_newton import path_space_at
from kunita.inference.path_space import AbstractPathSpace
from kunita.inference.problem import (
    SEARCH_DRIFT,
    Errors,
    Problem,
    State,
    Step,
    advance,
    arrival,
    departure,
    errors_of,
    no_step,
    settle,
)
from kunita.jaxrun.programs import compiled


def errors_after(problem: Problem, state: State, step: Step) -> Errors:
    """The errors as a function of a step from a state."""
    _, start = departure(problem, state.alignment, state.momenta, step)
    return errors_of(problem, start, arrival(problem, start, state.trajectory.times))


@compiled
def newton_step(problem: Problem, state: State) -> Step:
    """(B_q + DB_p)δp₀ + (…)β = F − φ₁ − Dλ together with the trend's equation, by forward
    differentiation.
    """
    origin, unpack = ravel_pytree(no_step(problem))
    flat = lambda w: ravel_pytree(errors_after(problem, state, unpack(w)))[0]
    slope = numerics.matrix_of(lambda v: jax.jvp(flat, (origin,), (v,))[1], origin.size)
    return unpack(jnp.linalg.solve(slope, -flat(origin)))


@compiled
def newton_step_by_products(problem: Problem, state: State, linear: AbstractPathSpace) -> Step:
    """The same by GMRES, preconditioned with the path-space Gauss–Newton step, which is this one
    with Λ for B_qJᵀ.

    The kernel's variance makes a pull (1/mm) comparable to a gap (mm).
    """
    unit = problem.kernel.variance
    to_mm = lambda errors: Errors(errors.gap, unit * errors.pull)
    from_mm = lambda errors: Errors(errors.gap, errors.pull / unit)

    def product(errors: Errors) -> Errors:
        after = lambda step: errors_after(problem, state, step)
        _, change = jax.jvp(after, (no_step(problem),), (linear.step(from_mm(errors)),))
        return jax.tree.map(jnp.negative, to_mm(change))

    gmres = jax.scipy.sparse.linalg.gmres
    errors, _ = gmres(
        product, to_mm(state.errors), tol=1e-3, restart=20, maxiter=1, solve_method="incremental"
    )
    return linear.step(from_mm(errors))


def exact_newton(
    problem: Problem, state: State, tolerance: float, max_drift: float = SEARCH_DRIFT
) -> Iterator[State]:
    """Exact Newton steps, shortened until the gap closes and the energy does not rise."""
    while state.misfit > tolerance:
        if problem.is_small:
            step = newton_step(problem, state)
        else:
            step = newton_step_by_products(problem, state, path_space_at(problem, state))
        trials = ((t, advance(problem, state, step * t)) for t in (1.0, 0.5, 0.25, 0.125))
        trial = next((new for t, new in trials if closes_gap(state, new, 0.5 * t)), None)
        if trial is None:
            return
        state = settle(problem, trial, max_drift)
        yield state


def closes_gap(old: State, new: State, share: float) -> bool:
    """Whether a trial closes this share of the gap without raising the energy (beyond rounding)."""
    limit = float(old.energy) + 1e-9 * abs(float(old.energy)) + 1e-12
    return new.trusted and float(new.energy) <= limit and new.misfit <= (1 - share) * old.misfit
