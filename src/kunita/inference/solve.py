"""Find the most probable flow: continuation in the noise, and four methods from cheap to robust.

A level of the continuation multiplies the noise D by c ≥ 1. Within a level the cheapest method goes first, and the next
one when it stalls:

1. path-space Gauss–Newton (`gauss_newton`): needs only the covariance Λ_XX of the flow;
2. exact Newton (`newton`), damped: follows the path of optima, and finishes;
3. Levenberg–Marquardt in the initial momenta (`trust_region`): a trust region on the Gauss–Newton Hessian;
4. a trust region on the exact Hessian, for the largest deformations.

Each is compiled when it is first needed.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from kunita import numerics
from kunita.errors import Outcome
from kunita.flow import shooting
from kunita.inference.gauss_newton import gauss_newton
from kunita.inference.newton import exact_newton
from kunita.inference.path_space import path_space
from kunita.inference.problem import SEARCH_DRIFT, Errors, Problem, State, look, look_again, no_step, settle
from kunita.inference.trend import Alignment, Trend
from kunita.inference.trust_region import trust_region
from kunita.kernels import AbstractKernel
from kunita.observations import LandmarkObservations
from kunita.precision import Array, Scalar, compiled

TOLERANCE = 1e-6
"""Converged when no landmark's gap exceeds this fraction of the typical noise, nor this many mm (in proportion, along
directions in which a landmark is vaguer than the typical one)."""

ROUNDING = 1e-13
"""Of the landmarks' extent: no gap can be closed beyond it."""

NEAR = 1e-3
"""The search ends at this fraction of the typical noise; the rest is done with the final, finer time steps."""

LEVELS = (1e4, 1e3, 1e2, 30.0, 10.0, 3.0, 1.0)
"""Factors on the noise, where continuation is needed."""

MAX_ITERATIONS = 60
"""Of one method at one level."""

MAX_TOTAL, MAX_ROUGHLY = 400, 100
"""Of all together: then no further level is tried. A rough fit that takes longer is of landmarks that contradict."""

REFRESH_ROUNDS = 20
"""Of the noise that the map carries over from moving landmarks."""

Method = Callable[[Problem, State, float], Iterator[State]]

METHODS: tuple[tuple[str, Method], ...] = (
    ("path-space Gauss-Newton", gauss_newton),
    ("exact Newton", exact_newton),
    ("Levenberg-Marquardt", functools.partial(trust_region, False)),
    ("exact Newton", exact_newton),
    ("exact trust region", functools.partial(trust_region, True)),
    ("exact Newton", exact_newton),
)


@dataclasses.dataclass(frozen=True)
class Progress:
    """One line of the solver's log."""

    method: str
    noise_factor: float
    energy: float
    gap_mm: float
    num_steps: int


class Log(list[Progress]):
    """The rows so far, and whether the last method used up its iterations."""

    exhausted: bool = False


@dataclasses.dataclass(frozen=True)
class Fit:
    """The fitted flow and how the solve ended."""

    kernel: AbstractKernel
    trend: Trend
    alignment: Alignment
    trajectory: shooting.Trajectory
    targets: Float[Array, "n d"]
    noise: Float[Array, "n d d"]
    errors: Errors
    energy: float
    gap_mm: float
    outcome: Outcome
    history: tuple[Progress, ...]

    @property
    def converged(self) -> bool:
        return self.outcome.converged

    @property
    def iterations(self) -> int:
        return len(self.history)


def solve(
    problem: Problem, alignment: Alignment, momenta: Float[Array, "n d"] | None = None, *, roughly: bool = False
) -> Fit:
    """The most probable flow, from a first alignment and zero momenta (or those of a similar problem).

    If full Gauss–Newton steps from there converge, the problem is nearly linear and that is the answer. Otherwise the
    noise is raised and lowered again level by level, each level starting where the last one ended. `roughly` ends
    where the search does: good enough for the energy, which is flat there, not for an answer.
    """
    times = numerics.time_grid(shooting.DEFAULT_STEPS)
    momenta = np.zeros(problem.targets.shape) if momenta is None else momenta
    start = look(problem, alignment, momenta, no_step(problem), times)
    sd, log = problem.noise_sd, Log()
    rounding = ROUNDING * float(np.ptp(np.asarray(problem.targets), axis=0).max())
    near = NEAR * sd + rounding
    tolerance = near if roughly else TOLERANCE * min(1.0, sd) + rounding
    state = directly(problem, start, near, SEARCH_DRIFT, log)
    if state.misfit > near:
        state = continuation(problem, start, near, log, MAX_ROUGHLY if roughly else MAX_TOTAL)
    if not roughly:
        state = directly(problem, state, tolerance, shooting.MAX_DRIFT, log)
    failure = Outcome.ITERATIONS if log.exhausted or len(log) >= MAX_TOTAL else Outcome.STALLED
    outcome = Outcome.CONVERGED if state.misfit <= tolerance else failure
    return Fit(
        problem.kernel, problem.trend, state.alignment, state.trajectory, problem.targets, problem.noise,
        state.errors, float(state.energy), float(state.gap_mm), outcome, tuple(log),
    )  # fmt: skip


def directly(problem: Problem, state: State, tolerance: float, max_drift: float, log: Log) -> State:
    """Full Gauss–Newton steps, and exact Newton where they end near the optimum but are slow."""
    state = settle(problem, state, max_drift)
    full_steps = functools.partial(gauss_newton, halvings=0, max_drift=max_drift)
    state = follow("path-space Gauss-Newton", full_steps, problem, state, tolerance, 1.0, log)
    if tolerance < state.misfit < 0.3 * problem.noise_sd:
        newton = functools.partial(exact_newton, max_drift=max_drift)
        state = follow("exact Newton", newton, problem, state, tolerance, 1.0, log)
    return state


def continuation(problem: Problem, state: State, near: float, log: Log, most: int = MAX_TOTAL) -> State:
    """Lower the noise from 10⁴·D to D, level by level; where a level is too far from the last one, halve the way.

    Gauss–Newton and exact Newton follow the path of optima; when it cannot be followed in steps of 5 % or more, the
    trust regions take the level over; when they fail too, one last try is made at the noise itself.
    """
    reached, ahead, lost = np.inf, list(LEVELS), False
    while ahead and len(log) < most:
        factor = ahead[0]
        level = eqx.tree_at(lambda p: p.noise, problem, factor * problem.noise)
        goal = near if factor == 1.0 else 10 * near * factor**0.5
        start = settle(level, look_again(level, state))
        close = lost or (np.isfinite(reached) and factor > 0.95 * reached)
        for name, method in METHODS if close else METHODS[:2]:
            trial = follow(name, method, level, start, goal, factor, log)
            if trial.misfit <= goal:
                break
            start = trial if close else start
        if trial.misfit <= goal or close or not np.isfinite(reached):
            lost = trial.misfit > goal and close
            reached, state, ahead = factor, trial, ahead[-1:] if lost and factor > 1 else ahead[1:]
        else:
            ahead.insert(0, float(np.sqrt(reached * factor)) if factor < 0.9 * reached else 0.96 * reached)
    return state


def follow(
    name: str,
    method: Method,
    problem: Problem,
    state: State,
    tolerance: float,
    factor: float,
    log: Log,
) -> State:
    """Run one method at one level, keeping the log."""
    began = len(log)
    for new in itertools.islice(method(problem, state, tolerance), MAX_ITERATIONS):
        state = new
        log.append(Progress(name, factor, float(state.energy), float(state.gap_mm), state.trajectory.num_steps))
    log.exhausted = len(log) - began == MAX_ITERATIONS or (log.exhausted and len(log) == began)
    return state


# ------------------------------------------------------------------------------------------ the small-deformation model


def solve_small(problem: Problem, alignment: Alignment) -> Fit:
    """The small-deformation model: regression of the displacement, the alignment refined until it stands still.

    A Gauss–Newton step around the flow that does not move; linear but for the rotation, so a few rounds suffice.
    """
    log = Log()
    while True:
        still, errors, energy, beta, shift = regression_step(problem, alignment)
        log.append(Progress("regression", 1.0, float(energy), float(shift), 0))
        converged = shift <= TOLERANCE * min(1.0, problem.noise_sd)
        if converged or len(log) >= MAX_ITERATIONS:
            break
        alignment = problem.trend.move(alignment, beta)
    end = Outcome.CONVERGED if converged else Outcome.ITERATIONS
    return Fit(
        problem.kernel, problem.trend, alignment, still, problem.targets, problem.noise,
        errors, float(energy), float(shift), end, tuple(log),
    )  # fmt: skip


@compiled
def regression_step(
    problem: Problem, alignment: Alignment
) -> tuple[shooting.Trajectory, Errors, Scalar, Float[Array, " b"], Scalar]:
    """The flow at rest, its errors, the energy ½yᵀPy, and the change of the alignment with the largest shift, mm."""
    still = shooting.standstill(alignment(problem.moving))
    linear = path_space(problem.kernel, still, jnp.ones(1), problem.noise, problem.trend)
    errors = Errors(problem.targets - still.positions[0], jnp.zeros(len(problem.trend.generators)))
    beta, dual = linear.dual_change(errors)
    shift = jnp.max(jnp.abs(problem.trend.basis(still.positions[0]) @ beta), initial=0.0)
    return still, errors, 0.5 * jnp.sum(errors.gap * dual), beta, shift


def solve_observed(
    observed: LandmarkObservations,
    kernel: AbstractKernel,
    free: Trend,
    start: Alignment,
    model: str = "endpoint",
    momenta: np.ndarray | None = None,
    *,
    roughly: bool = False,
) -> tuple[Fit, bool]:
    """Solve; where the moving landmarks are uncertain too, refresh the noise that the map carries over, and repeat.

    Also says whether the noise settled. The small-deformation model carries it with the alignment alone, to its order.
    Where momenta are given, the search starts with them: from a fit of similar landmarks, say.
    """
    alignment = start
    noise = np.asarray(observed.noise(np.broadcast_to(start.matrix, observed.fixed_noise.shape)))
    for _ in range(REFRESH_ROUNDS):
        problem = Problem(kernel, observed.moving, observed.fixed, noise, free)
        small = model == "small"
        fit = solve_small(problem, alignment) if small else solve(problem, alignment, momenta, roughly=roughly)
        jacobians = np.asarray(fit.trajectory.jacobians[-1]) @ np.asarray(fit.alignment.matrix)
        carried = np.asarray(observed.noise(jacobians))
        change, size = (np.abs(part).max(axis=(1, 2)) for part in (carried - noise, noise))
        if np.all(change <= (1e-3 if roughly else 1e-6) * size):
            return fit, True
        noise, alignment, momenta = carried, fit.alignment, fit.trajectory.momenta[0]
    return fit, False
