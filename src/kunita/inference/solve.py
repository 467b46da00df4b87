"""Find the most probable flow: continuation in the noise, and four methods from cheap to robust.

A level of the continuation multiplies the noise D by c ≥ 1. Within a level the cheapest method goes
first, and the next one when it stalls:

1. path-space Gauss–Newton (`gauss_newton`): needs only the covariance Λ_XX of the flow;
2. exact Newton (`newton`), damped: follows the path of optima, and finishes;
3. Levenberg–Marquardt in the initial momenta (`trust_region`): a trust region on the Gauss–Newton
Hessian;
4. a trust region on the exact Hessian, for the largest deformations.

Each is compiled when it is first needed. Many landmarks are solved through control points
(`flow.control`), if the kernel is smooth enough for that, few of them to begin with; what they
leave out is measured, and where it is too much, or the search fails, all landmarks carry their own
momentum as usual.
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
from kunita.flow.control import Controls, choose_controls, displacement_by_truncation
from kunita.inference.gauss_newton import Memory, gauss_newton
from kunita.inference.newton import exact_newton
from kunita.inference.path_space import AbstractPathSpace, LowRankPathSpace, linearise, path_space
from kunita.inference.problem import (
    SEARCH_DRIFT,
    Errors,
    Problem,
    State,
    carriers,
    judge_again,
    look,
    look_again,
    no_step,
    settle,
)
from kunita.inference.trend import Alignment, Trend
from kunita.inference.trust_region import trust_region
from kunita.jaxrun.doors import Array, Scalar
from kunita.jaxrun.programs import compiled
from kunita.kernels import AbstractKernel
from kunita.observations import LandmarkObservations

TOLERANCE = 1e-6
"""Converged when no landmark's gap exceeds this fraction of the typical noise, nor this many mm (in
proportion, along directions in which a landmark is vaguer than the typical one)."""

ROUNDING = 1e-13
"""Of the landmarks' extent: no gap can be closed beyond it."""

ROUGH = 0.03
"""A search with few control points ends at this fraction of the typical noise, and goes on with all
of them."""

NEAR = 1e-3
"""The search ends at this fraction of the typical noise; the rest is done with the final, finer
time steps."""

CORRECTIONS = 3
"""Of the coarse time grid by the finest one."""

FIRST_STEPS = 4
"""Time steps that a search with many landmarks begins with; with few it saves more to compile one
program only."""

REMAINDERS = (0.03, 3e-4)
"""What control points may leave of the landmarks' variance, over the noise, in all: tr(D⁻¹E). Tried
in turn."""

SEARCH_REMAINDER = 0.02
"""What few control points may leave, which a search begins with: so much of tr(D⁻¹E) for each
landmark."""

MOST_REMAINDER = 0.1
"""The same around the fitted flow, where it may have grown."""

TRUNCATION = 0.01
"""How far the rest may carry a landmark, as a fraction of the least noise of any."""

FEW = 0.5
"""Control points pay while they are fewer than this fraction of the landmarks."""

ROUND = 16
"""Control points are made a multiple of this, so that similar problems share a program."""

LEVELS = (1e4, 1e3, 1e2, 30.0, 10.0, 3.0, 1.0)
"""Factors on the noise, where continuation is needed."""

MAX_ITERATIONS = 60
"""Of one method at one level."""

MAX_TOTAL, MAX_ROUGHLY = 400, 100
"""Of all together: then no further level is tried. A rough fit that takes longer is of landmarks
that contradict."""

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
class Truncation:
    """What control points leave out of a fit with many landmarks.

    Args:
        num_controls: how many landmarks carry the momentum of all.
        mean_error_mm: how far what they leave of the velocity would carry a landmark, at most, to
            first order.
        matrix_error: tr(D⁻¹E), a bound on the relative error of S in any direction; that of
            covariances is far smaller.
    """

    num_controls: int
    mean_error_mm: float
    matrix_error: float


@dataclasses.dataclass(frozen=True)
class Fit:
    """The fitted flow and how the solve ended.

    `trajectory` is of the landmarks, `carriers` of those that carry the momentum (the same, without
    `controls`); `truncation_mm` is how far what the control points leave out would carry a landmark
    at most.
    """

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
    carriers: shooting.Trajectory
    controls: Controls | None = None
    truncation_mm: float = 0.0

    @property
    def converged(self) -> bool:
        return self.outcome.converged

    @functools.cached_property
    def linear(self) -> AbstractPathSpace:
        """The linearised model around the fitted flow."""
        return linearise(self.kernel, self.trajectory, self.noise, self.trend, self.controls)

    @property
    def truncation(self) -> Truncation | None:
        """What the control points leave out, if there are any, of the fit and of its linearised
        model.
        """
        if self.controls is None:
            return None
        assert isinstance(self.linear, LowRankPathSpace)
        return Truncation(
            len(self.carriers.positions[0]), self.truncation_mm, float(self.linear.remainder)
        )

    @property
    def iterations(self) -> int:
        return len(self.history)


def solve(
    problem: Problem,
    alignment: Alignment,
    momenta: Float[Array, "n d"] | None = None,
    *,
    roughly: bool = False,
    patient: bool = True,
) -> Fit:
    """The most probable flow, from a first alignment and zero momenta (or those of a similar
    problem).

    If full Gauss–Newton steps from there converge, the problem is nearly linear and that is the
    answer. Otherwise the noise is raised and lowered again level by level, each level starting
    where the last one ended, if there is reason to be `patient`. `roughly` ends where the search
    does: good enough for the energy, which is flat there, not for an answer.
    """
    for form in forms(problem, alignment):
        fit = _search(form, alignment, momenta, roughly, patient)
        if form.controls is None or (_is_complete(fit) if fit.converged else not patient):
            break
        if fit.converged:
            alignment, momenta = fit.alignment, fit.trajectory.momenta[0]
    return fit


def forms(problem: Problem, alignment: Alignment) -> Iterator[Problem]:
    """The problem with control points, some and then more, as long as they pay; at last with all
    landmarks.
    """
    if problem.is_small or problem.whole:
        yield problem
        return
    points = np.asarray(alignment(problem.moving))
    precisions = np.trace(np.linalg.inv(np.asarray(problem.noise)), axis1=1, axis2=2)
    most = int(FEW * len(points)) // ROUND * ROUND
    remainders = (SEARCH_REMAINDER * len(points), *REMAINDERS)
    sets = choose_controls(problem.kernel, points, precisions, remainders, most, ROUND)
    few, tried = next(sets, np.arange(0)), 0
    for rows in sets:
        if len(rows) > tried:
            yield dataclasses.replace(
                problem, controls=rows, few=few if len(few) < len(rows) else None
            )
        tried = len(rows)
    yield problem


def _is_complete(fit: Fit) -> bool:
    """Whether control points left out little enough of the flow, and of its linearised model, for
    every landmark.
    """
    assert fit.truncation is not None
    least = np.sqrt(np.linalg.eigvalsh(np.asarray(fit.noise))[:, 0])
    return bool(
        np.all(fit.truncation_mm <= TRUNCATION * least)
        and fit.truncation.matrix_error <= MOST_REMAINDER
    )


def _search(
    problem: Problem,
    alignment: Alignment,
    momenta: Float[Array, "n d"] | None,
    roughly: bool,
    patient: bool,
) -> Fit:
    """`solve`, with control points or without, as the problem says."""
    times = numerics.time_grid(shooting.DEFAULT_STEPS if problem.is_small else FIRST_STEPS)
    momenta = np.zeros(problem.targets.shape) if momenta is None else momenta
    start = look(problem.simplified, alignment, momenta, no_step(problem), times)
    sd, log, memory = problem.noise_sd, Log(), Memory()
    rounding = ROUNDING * float(np.ptp(np.asarray(problem.targets), axis=0).max())
    near = NEAR * sd + rounding
    tolerance = near if roughly else TOLERANCE * min(1.0, sd) + rounding
    if problem.few is None:
        state = directly(problem, start, near, SEARCH_DRIFT, log, memory)
    else:
        state = directly(
            problem.simplified, start, ROUGH * sd + rounding, SEARCH_DRIFT, log, memory
        )
        state = directly(problem, look_again(problem, state), near, SEARCH_DRIFT, log, memory)
    if state.misfit > near and patient:
        most, start = MAX_ROUGHLY if roughly else MAX_TOTAL, look_again(problem, start)
        state, memory = continuation(problem, start, near, log, most), Memory()
    if not roughly:
        worth = state.misfit <= near or patient
        state = (
            finely(problem, state, tolerance, log, memory) if worth else look_again(problem, start)
        )
    failure = Outcome.ITERATIONS if log.exhausted or len(log) >= MAX_TOTAL else Outcome.STALLED
    outcome = Outcome.CONVERGED if state.misfit <= tolerance else failure
    carrying = carriers(problem, state.trajectory)
    return Fit(
        problem.kernel,
        problem.trend,
        state.alignment,
        state.trajectory,
        problem.targets,
        problem.noise,
        state.errors,
        float(state.energy),
        float(state.gap_mm),
        outcome,
        tuple(log),
        carrying,
        problem.controls,
        _truncation(problem, state.trajectory, carrying),
    )


def finely(problem: Problem, state: State, tolerance: float, log: Log, memory: Memory) -> State:
    """The optimum with the finest time steps, from one that is near it with coarse ones.

    Where a shot is expensive most of the work stays on the coarse grid: what the gap is wrong by
    there hardly depends on the momenta, so the targets are shifted by as much, and the coarse
    optimum is the fine one (deferred correction).
    """
    fine = settle(problem, state, shooting.MAX_DRIFT)
    grids = state.trajectory.times, fine.trajectory.times
    if problem.is_small or len(grids[0]) == len(grids[1]):
        return directly(problem, fine, tolerance, shooting.MAX_DRIFT, log, memory)
    shifted = problem
    for _ in range(CORRECTIONS):
        if fine.misfit <= tolerance:
            break
        moved = np.asarray(shifted.targets) + fine.errors.gap - state.errors.gap
        shifted = eqx.tree_at(lambda p: p.targets, problem, moved)
        state = directly(
            shifted, judge_again(shifted, state), 0.5 * tolerance, SEARCH_DRIFT, log, memory
        )
        fine = look_again(problem, state, grids[1])
    return directly(problem, fine, tolerance, shooting.MAX_DRIFT, log, memory)


def _truncation(
    problem: Problem, trajectory: shooting.Trajectory, carrying: shooting.Trajectory
) -> float:
    """How far a landmark would be carried by what the control points leave of the velocity, at
    most, mm.
    """
    if problem.controls is None:
        return 0.0
    weights = numerics.simpson_weights(np.asarray(trajectory.times))
    shift = displacement_by_truncation(problem.kernel, weights, trajectory, carrying)
    return float(jnp.max(jnp.linalg.norm(shift, axis=1)))


def directly(
    problem: Problem, state: State, tolerance: float, max_drift: float, log: Log, memory: Memory
) -> State:
    """Full Gauss–Newton steps, and exact Newton where they end near the optimum but are slow.

    With many landmarks a step may be halved, too: continuation, which is safer, would take far
    longer.
    """
    state = settle(problem, state, max_drift)
    halvings = 0 if problem.is_small else 2
    steps = functools.partial(gauss_newton, halvings=halvings, max_drift=max_drift, memory=memory)
    state = follow("path-space Gauss-Newton", steps, problem, state, tolerance, 1.0, log)
    if tolerance < state.misfit < 0.3 * problem.noise_sd:
        newton = functools.partial(exact_newton, max_drift=max_drift)
        state = follow("exact Newton", newton, problem, state, tolerance, 1.0, log)
    return state


def continuation(
    problem: Problem, state: State, near: float, log: Log, most: int = MAX_TOTAL
) -> State:
    """Lower the noise from 10⁴·D to D, level by level; where a level is too far from the last one,
    halve the way.

    Gauss–Newton and exact Newton follow the path of optima; when it cannot be followed in steps of
    5 % or more, the trust regions take the level over; when they fail too, one last try is made at
    the noise itself.
    """
    reached, ahead, lost = np.inf, list(LEVELS), False
    while ahead and len(log) < most:
        factor = ahead[0]
        level = eqx.tree_at(lambda p: p.noise, problem, factor * problem.noise)
        goal = near if factor == 1.0 else 10 * near * factor**0.5
        start = settle(level, judge_again(level, state))
        close = lost or (np.isfinite(reached) and factor > 0.95 * reached)
        for name, method in METHODS if close and problem.controls is None else METHODS[:2]:
            trial = follow(name, method, level, start, goal, factor, log)
            if trial.misfit <= goal:
                break
            start = trial if close else start
        if trial.misfit <= goal or close or not np.isfinite(reached):
            lost = trial.misfit > goal and close
            reached, state, ahead = factor, trial, ahead[-1:] if lost and factor > 1 else ahead[1:]
        else:
            ahead.insert(
                0, float(np.sqrt(reached * factor)) if factor < 0.9 * reached else 0.96 * reached
            )
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
        log.append(
            Progress(
                name, factor, float(state.energy), float(state.gap_mm), state.trajectory.num_steps
            )
        )
    log.exhausted = len(log) - began == MAX_ITERATIONS or (log.exhausted and len(log) == began)
    return state


# ---------------------------------------------------------------------- the small-deformation model


def solve_small(problem: Problem, alignment: Alignment) -> Fit:
    """The small-deformation model: regression of the displacement, the alignment refined until it
    stands still.

    A Gauss–Newton step around the flow that does not move; linear but for the rotation, so a few
    rounds suffice.
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
        problem.kernel,
        problem.trend,
        alignment,
        still,
        problem.targets,
        problem.noise,
        errors,
        float(energy),
        float(shift),
        end,
        tuple(log),
        still,
    )


@compiled
def regression_step(
    problem: Problem, alignment: Alignment
) -> tuple[shooting.Trajectory, Errors, Scalar, Float[Array, " b"], Scalar]:
    """The flow at rest, its errors, the energy ½yᵀPy, and the change of the alignment with the
    largest shift, mm.
    """
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
    patient: bool = True,
) -> tuple[Fit, bool]:
    """Solve; where the moving landmarks are uncertain too, refresh the noise that the map carries
    over, and repeat.

    Also says whether the noise settled. The small-deformation model carries it with the alignment
    alone, to its order. Where momenta are given, the search starts with them: from a fit of similar
    landmarks, say.
    """
    alignment = start
    noise = np.asarray(observed.noise(np.broadcast_to(start.matrix, observed.fixed_noise.shape)))
    for _ in range(REFRESH_ROUNDS):
        problem = Problem(
            kernel, observed.moving, observed.fixed, noise, free, whole=model == "pathwise"
        )
        if model == "small":
            fit = solve_small(problem, alignment)
        else:
            fit = solve(problem, alignment, momenta, roughly=roughly, patient=patient)
        jacobians = np.asarray(fit.trajectory.jacobians[-1]) @ np.asarray(fit.alignment.matrix)
        carried = np.asarray(observed.noise(jacobians))
        change, size = (np.abs(part).max(axis=(1, 2)) for part in (carried - noise, noise))
        if np.all(change <= (1e-3 if roughly else 1e-6) * size):
            return fit, True
        noise, alignment, momenta = carried, fit.alignment, fit.trajectory.momenta[0]
    return fit, False
