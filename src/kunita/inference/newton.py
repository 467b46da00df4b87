"""Exact Newton on the two optimality conditions: it finishes a search that has come near the
answer.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from kunita import numerics
from kunita.inference.gauss_newton import SLACK
from kunita.inference.path_space import AbstractPathSpace, linearise
from kunita.inference.problem import (
    Problem,
    Residual,
    State,
    Step,
    advance,
    arrival,
    departure,
    in_mm,
    no_step,
    observed,
    residual_of,
)
from kunita.inference.search import AbstractHostPoint, AbstractSearch, Truth, branch
from kunita.jaxrun.doors import Scalar
from kunita.jaxrun.programs import compiled

LEAST_SLACK = 1e-12
"""Nats by which the energy may rise in a step, beside `SLACK`: where it is zero itself."""

GMRES_TOLERANCE = 1e-3
"""Of the residual in a step by products. What is left is corrected in the next step."""

GMRES_DIRECTIONS = 60
"""The most products in such a step. With 20, steps stalled on 300 landmarks that are displaced by
20 mm (`300/4` of `benchmarks/solver_cases.py`)."""

SHORTEST = 0.125
"""The shortest step that is tried, as a fraction of the whole one."""


def residual_after(problem: Problem, state: State, step: Step) -> Residual:
    """The residual as a function of a step from a state, the noise as it is at the state."""
    _, start = departure(problem, state.alignment, state.momenta, step)
    times = state.trajectory.times
    end = arrival(problem, start, times)
    arrived, _ = end
    information = observed(problem, arrived, state.jacobians)
    return residual_of(problem, start, end, information.force)


@compiled
def newton_step(problem: Problem, state: State) -> Step:
    """(MB_q + B_p)δp₀ + (…)β = Hᵀr − λ together with the trend's equation.

    The matrix is formed by forward differentiation. Residuals are in mm, so that no row is far
    larger than another.
    """
    origin, unpack = ravel_pytree(no_step(problem))

    def flat(coordinates: jax.Array) -> jax.Array:
        residual = residual_after(problem, state, unpack(coordinates))
        scaled = in_mm(residual, state.local_variance, state.unit_variance)
        vector, _ = ravel_pytree(scaled)
        return vector

    def along(tangent: jax.Array) -> jax.Array:
        _, change = jax.jvp(flat, (origin,), (tangent,))
        return change

    slope = numerics.matrix_of(along, origin.size)
    solution = jnp.linalg.solve(slope, -flat(origin))
    return unpack(solution)


@compiled
def newton_step_by_products(problem: Problem, state: State, linear: AbstractPathSpace) -> Step:
    """The same by GMRES, preconditioned with the Gauss–Newton step, which has Λ for B_qJᵀ."""
    unit = state.unit_variance
    precision = numerics.inverse_small(state.local_variance)

    def from_mm(residual: Residual) -> Residual:
        force = jnp.einsum("iab,ib->ia", precision, residual.force)
        trend = residual.trend / unit
        return Residual(force, trend)

    def after(step: Step) -> Residual:
        return residual_after(problem, state, step)

    def product(residual: Residual) -> Residual:
        step = linear.step(from_mm(residual))
        staying = no_step(problem)
        _, change = jax.jvp(after, (staying,), (step,))
        in_units = in_mm(change, state.local_variance, unit)
        return jax.tree.map(jnp.negative, in_units)

    residual, _ = jax.scipy.sparse.linalg.gmres(
        product,
        in_mm(state.residual, state.local_variance, unit),
        tol=GMRES_TOLERANCE,
        restart=GMRES_DIRECTIONS,
        maxiter=1,
        solve_method="incremental",
    )
    return linear.step(from_mm(residual))


class Pursuit(AbstractHostPoint):
    """Where the search is, the step that is tried, at which length, and how the last trial went."""

    state: State
    direction: Step
    length: Scalar
    moved: Truth
    stuck: Truth


class ExactNewton(AbstractSearch[Pursuit]):
    """Exact Newton steps, shortened until the residual falls and the energy does not rise."""

    tolerance: Scalar

    def init(self, problem: Problem, start: State) -> Pursuit:
        return Pursuit(
            state=start,
            direction=no_step(problem),
            length=np.ones(()),
            moved=np.bool_(True),
            stuck=np.bool_(False),
        )

    def ended(self, pursuit: Pursuit) -> Truth:
        converged = pursuit.state.residual_mm <= self.tolerance
        return converged | pursuit.stuck

    def step(self, problem: Problem, pursuit: Pursuit) -> Pursuit:
        state = pursuit.state
        direction = branch(
            pursuit.moved,
            lambda: self._direction(problem, state),
            lambda: pursuit.direction,
        )
        trial = advance(problem, state, direction.scaled(pursuit.length))
        shorter = dataclasses.replace(
            pursuit,
            direction=direction,
            length=0.5 * pursuit.length,
            moved=np.bool_(False),
            stuck=pursuit.length <= SHORTEST,
        )
        return branch(
            closes(state, trial, 0.5 * pursuit.length),
            lambda: dataclasses.replace(self.init(problem, trial), direction=direction),
            lambda: shorter,
        )

    def _direction(self, problem: Problem, state: State) -> Step:
        if problem.is_small:
            return newton_step(problem, state)
        linear = linearise(problem.simplified, state)
        return newton_step_by_products(problem, state, linear)


def closes(old: State, new: State, share: Scalar) -> Truth:
    """Whether a trial takes this share off the residual and does not raise the energy."""
    slack = SLACK * abs(old.energy) + LEAST_SLACK
    limit = old.energy + slack
    descends = new.compared_energy <= limit
    target = (1 - share) * old.residual_mm
    closer = new.residual_mm <= target
    return new.is_trusted & descends & closer
