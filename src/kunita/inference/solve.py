"""Find the most probable flow: cheap steps first, a robust search where these lose their way.

1. Path-space Gauss–Newton by shooting (`gauss_newton`) needs only the covariance Λ of the flow.
   Most problems end there.
2. Where it does not converge, Gauss–Newton over velocity paths (`paths`) comes near the answer from
   rest, and exact Newton (`newton`) finishes.

Each is compiled when it is first needed. Many sites are solved through control points
(`flow.control`), if the kernel is smooth enough for that, few of them to begin with. What they
leave out is measured. Where it is too much, or the search fails, all sites carry their own
momentum.
"""

import dataclasses
import functools
from collections.abc import Iterator

import jax
import numpy as np
from jaxtyping import Float

from kunita import numerics
from kunita.errors import Outcome
from kunita.flow import shooting
from kunita.flow.control import Controls, choose_controls, displacement_by_truncation
from kunita.flow.transport import landmark_path
from kunita.inference import paths
from kunita.inference.gauss_newton import Descent, GaussNewton, GaussNewtonOptions
from kunita.inference.newton import ExactNewton
from kunita.inference.path_space import (
    AbstractPathSpace,
    LowRankPathSpace,
    linear_model_of_few,
)
from kunita.inference.problem import (
    Problem,
    Residual,
    State,
    carriers,
    judge_again,
    look_again,
    look_first,
    settle,
)
from kunita.inference.search import Progress, run
from kunita.inference.small import AlignmentSearch
from kunita.inference.trend import Alignment, Trend
from kunita.jaxrun.doors import Array, Scalar, namespace
from kunita.jaxrun.programs import compiled
from kunita.kernels import AbstractKernel


@dataclasses.dataclass(frozen=True)
class ControlOptions:
    """How many sites carry the momentum of all.

    Args:
        remainders: what control points may leave of the sites' variance, over the noise, in all:
            tr(ME). Tried in turn.
        search_remainder: what the few that a search begins with may leave for each site.
        most_remainder: the same as `remainders` around the fitted flow, where it may have grown.
        truncation: how far the rest may carry a site, as a fraction of the least noise of any.
        most: control points pay while they are fewer than this fraction of the sites.
        multiple: their number is a multiple of this, so that similar problems share a program.
    """

    remainders: tuple[float, ...] = (0.03, 3e-4)
    search_remainder: float = 0.02
    most_remainder: float = 0.1
    truncation: float = 0.01
    most: float = 0.5
    multiple: int = 16


@dataclasses.dataclass(frozen=True)
class SolverOptions:
    """How a fit is searched for. Distances are relative to the typical noise unless said otherwise.

    Args:
        tolerance: converged when no residual of the optimality conditions, in mm, exceeds this
            fraction of the typical noise, nor this many mm.
        rounding: no residual can be closed beyond this fraction of the sites' extent.
        near: where the search on coarse time steps ends; the rest is done with fine ones.
        few_near: where a search with few control points ends, and goes on with all of them.
        newton_below: from here on exact Newton takes over where Gauss–Newton is slow.
        search_drift: relative energy drift that is good enough on the way.
        first_steps: time steps that a search with many sites begins with. With few sites it saves
            more to compile one program only.
        corrections: of a coarse time grid by the finest one.
        max_iterations: of one method.
        path_steps: time steps of velocity paths. More of them are tried where fewer find no way.
        path_rounds: how near velocity paths come before exact Newton is tried.
        max_path_iterations: of one round.
        memory: past steps that Gauss–Newton remembers.
        roughly: whether to end where the coarse search does: good enough for the energy, which is
            flat there, not for an answer.
        patient: whether velocity paths are tried at all.
        controls: for many sites.
    """

    tolerance: float = 1e-6
    rounding: float = 1e-13
    near: float = 1e-3
    few_near: float = 0.03
    newton_below: float = 0.3
    search_drift: float = 1e-5
    first_steps: int = 4
    corrections: int = 3
    max_iterations: int = 60
    path_steps: tuple[int, ...] = (8, 16, 32)
    path_rounds: tuple[float, ...] = (0.1, 0.01, 0.001)
    max_path_iterations: int = 150
    memory: int = 16
    roughly: bool = False
    patient: bool = True
    controls: ControlOptions = ControlOptions()

    def rounding_mm(self, problem: Problem) -> Scalar:
        """What rounding alone may leave."""
        extent = numerics.largest_side(problem.observations.sites)
        return self.rounding * extent

    def near_mm(self, problem: Problem) -> Scalar:
        """Where the search on coarse time steps ends."""
        noise_sd = problem.observations.noise_sd
        rounding = self.rounding_mm(problem)
        return self.near * noise_sd + rounding

    def tolerance_mm(self, problem: Problem) -> Scalar:
        """Where a fit has converged."""
        if self.roughly:
            return self.near_mm(problem)
        sd = problem.observations.noise_sd
        xp = namespace(sd)
        return self.tolerance * xp.minimum(1.0, sd) + self.rounding_mm(problem)


THOROUGH = SolverOptions()
ROUGH = SolverOptions(roughly=True, path_rounds=(0.1, 0.01))


@dataclasses.dataclass(frozen=True)
class Truncation:
    """What control points leave out of a fit with many landmarks.

    Args:
        num_controls: how many landmarks carry the momentum of all.
        mean_error_mm: how far what they leave of the velocity would carry a landmark, at most, to
            first order.
        matrix_error: tr(ME), a bound on the relative error of S in any direction. That of
            covariances is far smaller.
    """

    num_controls: int
    mean_error_mm: float
    matrix_error: float


@dataclasses.dataclass(frozen=True, eq=False)
class Fit:
    """The fitted flow and how the search for it ended.

    Args:
        problem: what was solved, with its control points if there are any.
        alignment: of the moving points, before the flow.
        trajectory: of the sites.
        jacobians: of the whole map, alignment and flow, at the sites.
        residual: of the optimality conditions.
        energy: at the fit.
        noise_log_det: log|R| of the observations' noise.
        num_rows: how many numbers were observed.
        gap_mm: the largest residual, mm.
        outcome: how the search ended.
        history: its log.
        carriers: the trajectory of those that carry the momentum: the sites, or control points.
        truncation_mm: how far what control points leave out would carry a site at most.
    """

    problem: Problem
    alignment: Alignment
    trajectory: shooting.Trajectory
    jacobians: Float[Array, "n d d"]
    residual: Residual
    energy: float
    noise_log_det: float
    num_rows: int
    gap_mm: float
    outcome: Outcome
    history: tuple[Progress, ...]
    carriers: shooting.Trajectory
    truncation_mm: float = 0.0

    @property
    def kernel(self) -> AbstractKernel:
        return self.problem.kernel

    @property
    def trend(self) -> Trend:
        return self.problem.trend

    @property
    def controls(self) -> Controls | None:
        return self.problem.controls

    @property
    def converged(self) -> bool:
        return self.outcome.converged

    @property
    def iterations(self) -> int:
        return sum(line.num_iterations for line in self.history)

    @functools.cached_property
    def linear(self) -> AbstractPathSpace:
        """The linear model around the fitted flow."""
        trajectory = self.trajectory
        path = landmark_path(trajectory)
        weights = numerics.quadrature_weights(trajectory.num_steps)
        return linear_model_of_few(self.problem, path, self.jacobians, weights)

    @property
    def truncation(self) -> Truncation | None:
        """What the control points, if there are any, leave out of the fit and its linear model."""
        if self.controls is None:
            return None
        assert isinstance(self.linear, LowRankPathSpace)
        return Truncation(
            num_controls=len(self.carriers.positions[0]),
            mean_error_mm=self.truncation_mm,
            matrix_error=float(self.linear.remainder),
        )


@compiled
def local_information(
    problem: Problem, arrived: Float[Array, "n d"], jacobians: Float[Array, "n d d"]
) -> Float[Array, "n d d"]:
    """The diagonal blocks of HᵀH at an arrival."""
    found = problem.observations.information(arrived, jacobians)
    return found.local


def solve(
    problem: Problem,
    alignment: Alignment,
    momenta: Float[Array, "n d"] | None = None,
    options: SolverOptions = THOROUGH,
) -> Fit:
    """The most probable flow, from a first alignment and zero momenta (or those of a similar
    problem).

    Where the moving landmarks are uncertain too, every point of the search has the noise that its
    own map carries over, so that at the answer noise and map go together.
    """
    for form in forms(problem, alignment, options.controls):
        fit = _solve_form(form, alignment, momenta, options)
        if form.controls is None:
            break
        if fit.converged:
            if _is_complete(fit, options.controls):
                break
            alignment = fit.alignment
            momenta = fit.trajectory.momenta[0]
        elif not options.patient:
            break
    return fit


def forms(problem: Problem, alignment: Alignment, options: ControlOptions) -> Iterator[Problem]:
    """The problem with some control points, then more while they pay, at last with all."""
    if problem.is_small or problem.whole or not problem.observations.has_rows:
        yield problem
        return
    sets = _control_sets(problem, alignment, options)
    few = next(sets, np.arange(0))
    tried = 0
    for rows in sets:
        if len(rows) > tried:
            fewer = few if len(few) < len(rows) else None
            yield dataclasses.replace(problem, controls=rows, few=fewer)
        tried = len(rows)
    yield problem


def _control_sets(
    problem: Problem, alignment: Alignment, options: ControlOptions
) -> Iterator[np.ndarray]:
    """Sets of control points: few to begin with, then more and more; none that would not pay."""
    points = np.asarray(alignment(problem.observations.sites))
    jacobians = alignment.jacobians(len(points))
    local = np.asarray(local_information(problem, points, jacobians))
    first_remainder = options.search_remainder * len(points)
    most = int(options.most * len(points))
    return choose_controls(
        problem.kernel,
        points,
        precisions=np.trace(local, axis1=1, axis2=2),
        remainders=(first_remainder, *options.remainders),
        most=most // options.multiple * options.multiple,
        multiple=options.multiple,
    )


def _is_complete(fit: Fit, options: ControlOptions) -> bool:
    """Whether control points left out little enough of the flow, and of its linear model."""
    assert fit.truncation is not None
    limit_mm = options.truncation * _least_noise(fit)
    near_enough = fit.truncation_mm <= limit_mm
    matrix_error = fit.truncation.matrix_error
    return bool(near_enough and matrix_error <= options.most_remainder)


def _least_noise(fit: Fit) -> float:
    """The least standard deviation of the noise at any site along any direction, mm."""
    arrived = fit.trajectory.positions[-1]
    information = local_information(fit.problem, arrived, fit.jacobians)
    local = np.asarray(information)
    eigenvalues = np.linalg.eigvalsh(local)
    strongest = eigenvalues[:, -1].max()
    return 1 / np.sqrt(strongest)


# ------------------------------------------------------------------------------------- the search


@dataclasses.dataclass
class SolverRun:
    """One problem on its way: what is asked for, the log, and what Gauss–Newton remembers.

    `exhausted` says whether the last method used up its iterations.
    """

    problem: Problem
    options: SolverOptions
    log: list[Progress] = dataclasses.field(default_factory=list)
    descent: Descent | None = None
    exhausted: bool = False

    def gauss_newton(
        self, problem: Problem, state: State, tolerance: float, max_drift: float
    ) -> State:
        """Full Gauss–Newton steps, with what is remembered from earlier ones.

        With many sites a step may be halved: velocity paths, which are safer, take far longer.
        """
        if state.residual_mm <= tolerance:
            return state
        halvings = 0 if problem.is_small else 2
        search = GaussNewton(tolerance, GaussNewtonOptions(self.options.memory, halvings))
        if self.descent is None:
            start = search.init(problem, state)
        else:
            start = search.resume(self.descent, state)
        self.descent = self._run("path-space Gauss-Newton", search, problem, start, max_drift)
        return self.descent.state

    def newton(self, problem: Problem, state: State, tolerance: float, max_drift: float) -> State:
        """Exact Newton steps."""
        search = ExactNewton(tolerance)
        start = search.init(problem, state)
        found = self._run("exact Newton", search, problem, start, max_drift)
        return found.state

    def directly(self, problem: Problem, state: State, tolerance: float, max_drift: float) -> State:
        """Gauss–Newton, and exact Newton where it ends near the answer but is slow."""
        state = settle(problem, state, max_drift)
        state = self.gauss_newton(problem, state, tolerance, max_drift)
        near = self.options.newton_below * problem.noise_sd
        if tolerance < state.misfit < near:
            state = self.newton(problem, state, tolerance, max_drift)
        return state

    def _run(self, method, search, problem, start, max_drift):  # type: ignore[no-untyped-def]
        began = len(self.log)
        limit = self.options.max_iterations
        found = run(
            search,
            problem,
            start,
            method=method,
            max_iterations=limit,
            max_drift=max_drift,
            log=self.log,
        )
        made = len(self.log) - began
        self.exhausted = made == limit or (self.exhausted and made == 0)
        return found


def _solve_form(
    problem: Problem,
    alignment: Alignment,
    momenta: Float[Array, "n d"] | None,
    options: SolverOptions,
) -> Fit:
    """`solve`, with control points or without, as the problem says."""
    going = SolverRun(problem, options)
    if momenta is None:
        momenta = np.zeros(problem.observations.sites.shape)
    first_steps = shooting.DEFAULT_STEPS if problem.is_small else options.first_steps
    times = numerics.time_grid(first_steps)
    start = look_first(problem.simplified, alignment, momenta, times)
    near = float(options.near_mm(problem))
    state = _search_directly(going, start, near)
    if state.misfit > near and options.patient:
        going.descent = None
        state = search_by_paths(going, alignment, state, near)
    worth_finishing = state.misfit <= near or options.patient
    if not options.roughly and worth_finishing:
        state = finely(going, state)
    elif not options.roughly:
        state = look_again(problem, start)
    return _fit(going, state)


def _search_directly(going: SolverRun, start: State, near: float) -> State:
    """Gauss–Newton on coarse time steps, with few control points first where there are any."""
    problem = going.problem
    options = going.options
    drift = options.search_drift
    if problem.few is None:
        return going.directly(problem, start, near, drift)
    rounding = float(options.rounding_mm(problem))
    rough = options.few_near * problem.noise_sd + rounding
    state = going.directly(problem.simplified, start, rough, drift)
    state = look_again(problem, state)
    return going.directly(problem, state, near, drift)


def search_by_paths(going: SolverRun, alignment: Alignment, best: State, near: float) -> State:
    """Velocity paths from rest, nearer and nearer, until exact Newton can finish.

    Where a path finds no way, or folds, one with twice the time steps is tried. Returns the state
    with the least residual if none leads near the answer.
    """
    problem = going.problem
    options = going.options
    for num_steps in options.path_steps:
        path = paths.at_rest(num_steps, problem, alignment)
        for share in options.path_rounds:
            tolerance = share * problem.noise_sd
            point, count = paths.search_paths(options.max_path_iterations, problem, path, tolerance)
            path = point.path
            state = _shot(going, point, int(count))
            state = going.newton(problem, state, near, options.search_drift)
            if state.misfit <= near:
                return state
            best = state if state.misfit < best.misfit else best
            if not point.residual_mm <= tolerance:
                break
    return best


def _shot(going: SolverRun, point: paths.PathPoint, count: int) -> State:
    """The geodesic that a velocity path stands for, and one line for its steps in the log."""
    problem = going.problem
    times = numerics.time_grid(shooting.DEFAULT_STEPS)
    momenta = paths.momenta_of(point)
    state = look_first(problem, point.alignment, momenta, times)
    state = settle(problem, state, going.options.search_drift)
    num_steps = (len(point.path.positions) - 1) // 2
    line = Progress(
        method="velocity paths",
        energy=float(point.path.energy),
        gap_mm=float(point.residual_mm),
        num_steps=num_steps,
        num_iterations=count,
    )
    going.log.append(line)
    going.exhausted = count == going.options.max_path_iterations
    return state


def finely(going: SolverRun, state: State) -> State:
    """The answer with the finest time steps, from one that is near it with coarse ones.

    Where a shot is expensive most of the work stays on the coarse grid. What the optimality
    condition is wrong by there hardly depends on the momenta, so the problem is tilted by as much,
    and the coarse answer is the fine one (deferred correction).
    """
    problem = going.problem
    options = going.options
    tolerance = float(options.tolerance_mm(problem))
    fine = settle(problem, state, shooting.MAX_DRIFT)
    times = fine.trajectory.times
    if problem.is_small or len(times) == len(state.trajectory.times):
        return going.directly(problem, fine, tolerance, shooting.MAX_DRIFT)
    tilt = np.zeros(problem.observations.sites.shape)
    for _ in range(options.corrections):
        if fine.misfit <= tolerance:
            break
        fine_force = np.asarray(fine.residual.force)
        coarse_force = np.asarray(state.residual.force)
        tilt = tilt + fine_force - coarse_force
        tilted = dataclasses.replace(problem, tilt=tilt)
        begin = judge_again(tilted, state)
        state = going.directly(
            tilted,
            begin,
            0.5 * tolerance,
            options.search_drift,
        )
        fine = look_again(problem, state, times)
    return going.directly(problem, fine, tolerance, shooting.MAX_DRIFT)


def _fit(going: SolverRun, state: State) -> Fit:
    """The fit that a search ended at."""
    problem = going.problem
    failure = Outcome.ITERATIONS if going.exhausted else Outcome.STALLED
    converged = state.misfit <= float(going.options.tolerance_mm(problem))
    carrying = carriers(problem, state.trajectory)
    return Fit(
        problem=problem,
        alignment=state.alignment,
        trajectory=state.trajectory,
        jacobians=state.jacobians,
        residual=state.residual,
        energy=float(state.energy),
        noise_log_det=float(state.noise_log_det),
        num_rows=state.num_rows,
        gap_mm=float(state.residual_mm),
        outcome=Outcome.CONVERGED if converged else failure,
        history=tuple(going.log),
        carriers=carrying,
        truncation_mm=_truncation_mm(problem, state.trajectory, carrying),
    )


def _truncation_mm(
    problem: Problem, trajectory: shooting.Trajectory, carrying: shooting.Trajectory
) -> float:
    """How far a site would be carried by what the control points leave of the velocity, at most."""
    if problem.controls is None:
        return 0.0
    weights = numerics.simpson_weights(np.asarray(trajectory.times))
    shift = displacement_by_truncation(
        problem.kernel,
        weights,
        trajectory,
        carrying,
    )
    distances = np.linalg.norm(np.asarray(shift), axis=1)
    return float(np.max(distances))


# ---------------------------------------------------------------------- the small-deformation model


def solve_small_deformation(
    problem: Problem, alignment: Alignment, options: SolverOptions = THOROUGH
) -> Fit:
    """The small-deformation model: regression, the alignment refined until it stands still.

    Linear but for the rotation, so a few rounds suffice.
    """
    tolerance = options.tolerance * min(1.0, problem.noise_sd)
    search = AlignmentSearch(tolerance)
    found = search.init(problem, alignment)
    log = []
    while True:
        line = Progress("regression", float(found.energy), float(found.shift_mm), 0)
        log.append(line)
        if search.ended(found) or len(log) >= options.max_iterations:
            break
        found = jax.tree.map(np.asarray, search.step(problem, found))
    return Fit(
        problem=problem,
        alignment=found.alignment,
        trajectory=found.trajectory,
        jacobians=found.jacobians,
        residual=found.residual,
        energy=float(found.energy),
        noise_log_det=float(found.noise_log_det),
        num_rows=found.num_rows,
        gap_mm=float(found.shift_mm),
        outcome=Outcome.CONVERGED if search.ended(found) else Outcome.ITERATIONS,
        history=tuple(log),
        carriers=found.trajectory,
    )


def solve_model(
    problem: Problem,
    alignment: Alignment,
    momenta: Float[Array, "n d"] | None = None,
    *,
    model: str,
    options: SolverOptions = THOROUGH,
) -> Fit:
    """The fit of a model: of the small-deformation model, or of a flow."""
    if model == "small":
        return solve_small_deformation(problem, alignment, options)
    whole = dataclasses.replace(problem, whole=model == "pathwise")
    return solve(whole, alignment, momenta, options)
