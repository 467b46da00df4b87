"""Find the most probable flow: continuation in the noise, and four methods from cheap to robust.

The unknowns are the initial momenta p₀ and the alignment (through its change β). At the optimum (`gap` is the test, mm)

    gap = F − φ₁ − Dλ = 0,   h(x̃)ᵀp₀ = 0,   λ = p(1).

A level of the continuation multiplies the noise D by c ≥ 1. Within a level the cheapest method goes first; when it
stalls, the next one takes over from where it stood, and stays in charge:

1. path-space Gauss–Newton: needs only the covariance Λ_XX of the flow; for small and moderate deformations;
2. Levenberg–Marquardt in the initial momenta: a trust region on the Gauss–Newton Hessian;
3. a trust region on the exact Hessian, for the largest deformations;
and, whenever one of them is close, exact Newton on the two equations above finishes.

Matrices are formed when they are small (`DENSE`), and touched through products otherwise. Each method is compiled when
it is first needed.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from kunita import numerics
from kunita.errors import Outcome
from kunita.flow import covariance, shooting, transport
from kunita.inference import objective
from kunita.inference.trend import Alignment, Trend
from kunita.kernels import AbstractKernel
from kunita.observations import mahalanobis
from kunita.precision import Array, Scalar

TOLERANCE = 1e-6
"""Converged when no landmark's gap exceeds this fraction of its typical noise (never more than this many mm)."""

DENSE = 420
"""Largest number of unknowns for which Jacobians and Hessians are formed."""

SEARCH_DRIFT = 1e-5
"""Relative energy drift that is good enough on the way; the answer itself has `shooting.MAX_DRIFT`."""

LEVELS = (1e4, 1e3, 1e2, 30.0, 10.0, 3.0, 1.0)
"""Factors on the noise, where continuation is needed."""


class Problem(eqx.Module):
    """Moving points, where they should go, how precisely, and which alignments are free."""

    kernel: AbstractKernel
    moving: Float[Array, "n d"]
    targets: Float[Array, "n d"]
    noise: Float[Array, "n d d"]
    trend: Trend


class State(eqx.Module):
    """A point of the search, with everything that was computed there.

    `gap` and `pull` are the errors of the two equations of the optimum; `gap_mm` is the largest gap; `misfit_mm` is the
    larger of that (in proportion, for a vague landmark) and of the shift that the pull on the alignment stands for.
    """

    alignment: Alignment
    momenta: Float[Array, "n d"]
    trajectory: shooting.Trajectory
    energy: Scalar
    gap: Float[Array, "n d"]
    pull: Float[Array, " b"]
    gap_mm: Scalar
    misfit_mm: Scalar
    drift: Scalar

    @property
    def num_steps(self) -> int:
        return len(self.trajectory.times) - 1

    @property
    def misfit(self) -> float:
        """The test of convergence, mm; infinite where the shooting failed."""
        return float(self.misfit_mm) if np.isfinite(self.misfit_mm) else np.inf

    @property
    def trusted(self) -> bool:
        """Whether the energy means anything: finite, and the time steps not hopelessly coarse."""
        return bool(np.isfinite(self.energy)) and float(self.drift) < 1e-3


class Step(eqx.Module):
    """A change of the alignment (β, mm) and of the initial momenta."""

    beta: Float[Array, " b"]
    momenta: Float[Array, "n d"]


@dataclasses.dataclass(frozen=True)
class Progress:
    """One line of the solver's log."""

    method: str
    noise_factor: float
    energy: float
    gap_mm: float
    num_steps: int


@dataclasses.dataclass(frozen=True)
class Fit:
    """The fitted flow and how the solve ended."""

    kernel: AbstractKernel
    trend: Trend
    alignment: Alignment
    trajectory: shooting.Trajectory
    targets: Float[Array, "n d"]
    noise: Float[Array, "n d d"]
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


# ------------------------------------------------------------------------------------------------- looking at one point


@jax.jit
def look(
    problem: Problem,
    alignment: Alignment,
    momenta: Float[Array, "n d"],
    step: Step,
    length: Scalar,
    times: Float[Array, " t"],
) -> State:
    """Shoot from a fraction of a step away, and evaluate the energy and both equations of the optimum there."""
    alignment = problem.trend.move(alignment, length * step.beta)
    momenta = momenta + length * step.momenta
    start = alignment(problem.moving)
    basis = problem.trend.basis(start)
    trajectory = shooting.geodesic(problem.kernel, start, momenta, times)
    missing = problem.targets - trajectory.positions[-1]
    gap = missing - jnp.einsum("iab,ib->ia", problem.noise, trajectory.momenta[-1])
    pull = jnp.einsum("iab,ia->b", basis, momenta)
    variance = jnp.einsum("iaa->i", problem.noise) / problem.noise.shape[1]
    shift = pull * (problem.kernel.variance + jnp.median(variance))
    fair = gap * jnp.minimum(1.0, jnp.sqrt(jnp.median(variance) / variance))[:, None]  # a vague landmark may err more
    return State(
        alignment, momenta, trajectory,
        energy=trajectory.energies[0] + 0.5 * jnp.sum(mahalanobis(missing, problem.noise)),
        gap=gap, pull=pull, gap_mm=jnp.max(jnp.abs(gap)),
        misfit_mm=jnp.max(jnp.abs(shift), initial=jnp.max(jnp.abs(fair))), drift=trajectory.drift,
    )  # fmt: skip


def look_again(problem: Problem, state: State, times: Float[Array, " t"] | None = None) -> State:
    """The same point, for another noise or another time grid."""
    times = state.trajectory.times if times is None else times
    return look(problem, state.alignment, state.momenta, no_step(problem), 0.0, times)


def no_step(problem: Problem) -> Step:
    """The step that stays."""
    return Step(np.zeros(len(problem.trend.generators)), np.zeros(problem.targets.shape))


def settle(problem: Problem, state: State, limit: float = SEARCH_DRIFT) -> State:
    """The same point with as many time steps as its measured energy drift asks for."""
    for _ in range(4):
        enough = shooting.enough_steps(state.num_steps, float(state.drift), limit)
        if enough == state.num_steps:
            break
        state = look_again(problem, state, numerics.time_grid(enough))
    return state


def advance(problem: Problem, state: State, step: Step, length: float = 1.0) -> State:
    """The state after a step, on the present time grid."""
    return look(problem, state.alignment, state.momenta, step, length, state.trajectory.times)


# ------------------------------------------------------------------------------------------- 1. path-space Gauss–Newton


class PathSpace(eqx.Module):
    """The linearised model over all velocity paths: S = Λ_XX + D = CCᵀ, H = J h(x̃), A = HᵀS⁻¹H = MMᵀ."""

    factor: Float[Array, "nd nd"]
    design: Float[Array, "nd b"]
    solved_design: Float[Array, "nd b"]
    trend_factor: Float[Array, "b b"]
    jacobians: Float[Array, "n d d"]

    def dual_change(
        self, gap: Float[Array, "n d"], pull: Float[Array, " b"]
    ) -> tuple[Float[Array, " b"], Float[Array, "n d"]]:
        """β̂ = A⁻¹HᵀS⁻¹y and λ_new − λ, λ_new = S⁻¹(y − Hβ̂), for y = F − φ₁ + Λλ.

        Written with the errors of the two equations: S⁻¹y = λ + S⁻¹gap and Hᵀλ = h(x̃)ᵀp₀ = pull.
        """
        change = numerics.solve_cholesky(self.factor, gap.ravel())
        beta = numerics.solve_cholesky(self.trend_factor, self.design.T @ change + pull)
        return beta, (change - self.solved_design @ beta).reshape(gap.shape)

    def step(self, gap: Float[Array, "n d"], pull: Float[Array, " b"]) -> Step:
        """The Gauss–Newton step: the alignment moves by β̂ and p₀ by Jᵀ(λ_new − λ)."""
        beta, change = self.dual_change(gap, pull)
        return Step(beta, jnp.einsum("iba,ib->ia", self.jacobians, change))


def path_space(
    kernel: AbstractKernel,
    trajectory: shooting.Trajectory,
    weights: Float[Array, " t"],
    noise: Float[Array, "n d d"],
    trend: Trend,
) -> PathSpace:
    """Linearise around a geodesic: propagate the covariance of the flow and factor it."""
    path = transport.landmark_path(trajectory)
    flow = covariance.flow_covariance(kernel, weights, path, path)
    size = noise.shape[0] * noise.shape[1]
    factor = numerics.cholesky(flow.reshape(size, size) + numerics.block_diagonal(noise), jitter=0.0)
    jacobians = trajectory.jacobians[-1]
    design = (jacobians @ trend.basis(trajectory.positions[0])).reshape(size, -1)
    solved = numerics.solve_cholesky(factor, design)
    return PathSpace(factor, design, solved, numerics.cholesky(design.T @ solved, jitter=0.0), jacobians)


path_space_jit = jax.jit(path_space)
gauss_newton_step = jax.jit(PathSpace.step)


def path_space_at(problem: Problem, state: State) -> PathSpace:
    """`path_space` at a point of the search."""
    weights = numerics.simpson_weights(np.asarray(state.trajectory.times))
    return path_space_jit(problem.kernel, state.trajectory, weights, problem.noise, problem.trend)


def path_space_gauss_newton(problem: Problem, state: State, tolerance: float, halvings: int = 4) -> Iterator[State]:
    """Gauss–Newton steps, halved while the energy does not fall; ends when converged or too slow to go on."""
    misfits = [state.misfit]
    while misfits[-1] > tolerance and not misfits[-1] > 0.5 * min(misfits[:-5], default=np.inf):
        step = gauss_newton_step(path_space_at(problem, state), state.gap, state.pull)
        trials = (advance(problem, state, step, 0.5**k) for k in range(halvings + 1))
        trial = next((t for t in trials if t.trusted and t.energy <= state.energy * (1 + 1e-12)), None)
        if trial is None:
            return
        state = settle(problem, trial)
        misfits.append(state.misfit)
        yield state


# ----------------------------------------------------------------------------------- 2, 3. trust regions in the momenta


class Chart(eqx.Module):
    """Whitened coordinates around a state: p₀ = p̂₀ + L⁻ᵀw with LLᵀ = K(x̃), β = M⁻ᵀu with MMᵀ = HᵀD⁻¹H.

    In them the Hessian of the energy is about the identity plus what the data say.
    """

    momenta_factor: Float[Array, "n n"]
    trend_factor: Float[Array, "b b"]

    def step(self, coordinates: Float[Array, " c"]) -> Step:
        n, b = len(self.momenta_factor), len(self.trend_factor)
        beta = jax.scipy.linalg.solve_triangular(self.trend_factor.T, coordinates[:b])
        momenta = jax.scipy.linalg.solve_triangular(self.momenta_factor.T, coordinates[b:].reshape(n, -1))
        return Step(beta, momenta)


def chart(problem: Problem, state: State) -> Chart:
    """The chart at a state. The jitter only shapes the coordinates, not the energy."""
    start = state.trajectory.positions[0]
    basis = problem.trend.basis(start)
    information = jnp.einsum("iab,iac->bc", basis, jnp.linalg.solve(problem.noise, basis))
    return Chart(
        numerics.cholesky(problem.kernel.gram(start, start), jitter=1e-9),
        jnp.linalg.cholesky(information) if len(information) else information,
    )


def energy_in_chart(problem: Problem, state: State, chart: Chart, coordinates: Float[Array, " c"]) -> Scalar:
    """The energy as a function of the chart's coordinates."""
    step = chart.step(coordinates)
    start = problem.trend.move(state.alignment, step.beta)(problem.moving)
    times = state.trajectory.times
    momenta = state.momenta + step.momenta
    return objective.energy(problem.kernel, start, momenta, problem.targets, problem.noise, times)


def arrival_in_chart(
    problem: Problem, state: State, chart: Chart, coordinates: Float[Array, " c"]
) -> Float[Array, "n d"]:
    """φ₁(X) as a function of the chart's coordinates."""
    step = chart.step(coordinates)
    start = problem.trend.move(state.alignment, step.beta)(problem.moving)
    return shooting.endpoint(problem.kernel, start, state.momenta + step.momenta, state.trajectory.times)[0]


def hessian_product(
    exact: bool, problem: Problem, state: State, chart: Chart, vector: Float[Array, " c"]
) -> Float[Array, " c"]:
    """Hv for the exact Hessian, or for Gauss–Newton's I + BᵀD⁻¹B with B = ∂φ₁/∂w."""
    origin = jnp.zeros_like(vector)
    if exact:
        gradient = jax.grad(lambda w: energy_in_chart(problem, state, chart, w))
        return jax.jvp(gradient, (origin,), (vector,))[1]
    arrival = lambda w: arrival_in_chart(problem, state, chart, w)
    moved = jax.jvp(arrival, (origin,), (vector,))[1]
    weighted = jnp.linalg.solve(problem.noise, moved[..., None])[..., 0]
    prior = vector.at[: len(chart.trend_factor)].set(0.0)
    return prior + jax.vjp(arrival, origin)[1](weighted)[0]


@eqx.filter_jit
def quadratic_model(
    exact: bool, problem: Problem, state: State
) -> tuple[Chart, Float[Array, " c"], Float[Array, "c c"]]:
    """Chart, gradient and Hessian, formed column by column in batches."""
    here = chart(problem, state)
    size = state.momenta.size + state.pull.size
    gradient = jax.grad(lambda w: energy_in_chart(problem, state, here, w))(jnp.zeros(size))
    column = lambda v: hessian_product(exact, problem, state, here, v)
    hessian = jax.lax.map(column, jnp.eye(size), batch_size=32)
    return here, gradient, numerics.symmetric(hessian)


def bounded_minimum(gradient: np.ndarray, hessian: np.ndarray, radius: float) -> tuple[np.ndarray, float]:
    """Argmin of gᵀw + ½wᵀHw within |w| ≤ radius, by the eigenvalues of H, and the decrease it promises."""
    eigenvalues, vectors = np.linalg.eigh(hessian)
    g = vectors.T @ gradient
    low = max(0.0, -eigenvalues[0] * (1 + 1e-10) + 1e-12)
    solve = lambda mu: -g / np.maximum(eigenvalues + mu, 1e-12)
    if eigenvalues[0] > 0 and np.linalg.norm(solve(0.0)) <= radius:
        w = solve(0.0)
    else:
        high = low + np.linalg.norm(g) / radius + 1.0
        for _ in range(80):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if np.linalg.norm(solve(middle)) > radius else (low, middle)
        w = solve(high)
        if eigenvalues[0] < 0:  # the hard case: where the gradient does not tell, go down the lowest valley
            w[0] = np.copysign(np.sqrt(max(radius**2 - w[1:] @ w[1:], 0.0)), w[0])
    return vectors @ w, float(-(g @ w + 0.5 * w @ (eigenvalues * w)))


@eqx.filter_jit
def bounded_minimum_by_products(
    exact: bool, problem: Problem, state: State, radius: Scalar
) -> tuple[Step, Scalar, Scalar]:
    """The same by truncated conjugate gradients (Steihaug), from products with the Hessian only."""
    here = chart(problem, state)
    size = state.momenta.size + state.pull.size
    gradient = jax.grad(lambda w: energy_in_chart(problem, state, here, w))(jnp.zeros(size))
    product = lambda v: hessian_product(exact, problem, state, here, v)

    def to_boundary(w: Array, v: Array) -> Array:
        a, b, c = v @ v, w @ v, w @ w - radius**2
        return w + v * (-b + jnp.sqrt(jnp.maximum(b * b - a * c, 0.0))) / jnp.maximum(a, 1e-300)

    def body(carry: tuple) -> tuple:
        w, r, v, _, count = carry
        hv = product(v)
        curvature = v @ hv
        alpha = (r @ r) / jnp.where(curvature > 0, curvature, 1.0)
        inside = (curvature > 0) & (jnp.linalg.norm(w + alpha * v) < radius)
        w_new = jnp.where(inside, w + alpha * v, to_boundary(w, v))
        r_new = r - alpha * hv
        done = ~inside | (jnp.linalg.norm(r_new) < 1e-3 * jnp.linalg.norm(gradient))
        return w_new, r_new, r_new + v * (r_new @ r_new) / (r @ r), done, count + 1

    start = (jnp.zeros(size), -gradient, -gradient, jnp.linalg.norm(gradient) == 0, 0)
    w = jax.lax.while_loop(lambda c: ~c[3] & (c[4] < 100), body, start)[0]
    return here.step(w), -(gradient @ w + 0.5 * w @ product(w)), jnp.linalg.norm(w)


def best_step(exact: bool, problem: Problem, state: State, radius: float) -> tuple[Step, float, float]:
    """The step to the bounded minimum of the quadratic model, the decrease it promises, and its length."""
    if state.momenta.size + state.pull.size > DENSE:
        step, promised, length = bounded_minimum_by_products(exact, problem, state, radius)
        return step, float(promised), float(length)
    here, gradient, hessian = quadratic_model(exact, problem, state)
    w, promised = bounded_minimum(np.asarray(gradient), np.asarray(hessian), radius)
    return here.step(jnp.asarray(w)), promised, float(np.linalg.norm(w))


def trust_region(exact: bool, problem: Problem, state: State, tolerance: float) -> Iterator[State]:
    """Minimise a quadratic model within a radius that follows how well the model predicts the energy."""
    radius = 2 * float(np.sqrt(state.momenta.size))
    while state.misfit > tolerance:
        step, promised, length = best_step(exact, problem, state, radius)
        trial = advance(problem, state, step)
        gained = float(state.energy - trial.energy) if trial.trusted else -np.inf
        if promised <= 1e-13 * abs(float(state.energy)) or length < 1e-9:
            return
        if gained > 0.1 * promised:
            state = settle(problem, trial)
            radius = 2 * radius if gained > 0.75 * promised and length > 0.9 * radius else radius
        else:
            radius = length / 4
        yield state


# ---------------------------------------------------------------------------------------------- the exact Newton finish


def equations(problem: Problem, state: State, step: Step) -> tuple[Float[Array, "n d"], Float[Array, " b"]]:
    """(φ₁ + Dλ − F, h(x̃)ᵀp₀) after a step: zero at the optimum."""
    start = problem.trend.move(state.alignment, step.beta)(problem.moving)
    momenta = state.momenta + step.momenta
    arrived, final = shooting.endpoint(problem.kernel, start, momenta, state.trajectory.times)
    gap = arrived + jnp.einsum("iab,ib->ia", problem.noise, final) - problem.targets
    return gap, jnp.einsum("iab,ia->b", problem.trend.basis(start), momenta)


@jax.jit
def newton_step(problem: Problem, state: State) -> Step:
    """(B_q + DB_p)δp₀ + (…)β = F − φ₁ − Dλ together with the trend's equation, by forward differentiation."""
    b, (n, d) = state.pull.size, state.momenta.shape
    unpack = lambda w: Step(w[:b], w[b:].reshape(n, d))
    flat = lambda w: jnp.concatenate([part.ravel() for part in equations(problem, state, unpack(w))])
    origin = jnp.zeros(b + n * d)
    columns = jax.lax.map(lambda v: jax.jvp(flat, (origin,), (v,))[1], jnp.eye(b + n * d), batch_size=64)
    return unpack(jnp.linalg.solve(columns.T, -flat(origin)))


@jax.jit
def newton_step_by_products(problem: Problem, state: State, linear: PathSpace) -> Step:
    """The same by GMRES, preconditioned with the path-space Gauss–Newton step, which is this one with Λ for B_qJᵀ."""
    b, (n, d) = state.pull.size, state.momenta.shape
    none = Step(jnp.zeros(b), jnp.zeros((n, d)))

    def product(error: tuple[Array, Array]) -> tuple[Array, Array]:
        return jax.jvp(lambda s: equations(problem, state, s), (none,), (linear.step(error[0], -error[1]),))[1]

    gap, pull = equations(problem, state, none)
    error, _ = jax.scipy.sparse.linalg.gmres(
        product, (-gap, -pull), tol=1e-3, restart=20, maxiter=1, solve_method="incremental"
    )
    return linear.step(error[0], -error[1])


def exact_newton(problem: Problem, state: State, tolerance: float) -> Iterator[State]:
    """Exact Newton steps, shortened until the gap closes and the energy does not rise."""
    small = state.momenta.size + state.pull.size <= DENSE
    while state.misfit > tolerance:
        step = (
            newton_step(problem, state)
            if small
            else newton_step_by_products(problem, state, path_space_at(problem, state))
        )
        trials = ((t, advance(problem, state, step, t)) for t in (1.0, 0.5, 0.25, 0.125))
        trial = next((new for t, new in trials if closes_gap(state, new, 0.5 * t)), None)
        if trial is None:
            return
        state = trial
        yield state


def closes_gap(old: State, new: State, share: float) -> bool:
    """Whether a trial closes this share of the gap without raising the energy (beyond rounding)."""
    limit = float(old.energy) + 1e-9 * abs(float(old.energy)) + 1e-12
    return new.trusted and float(new.energy) <= limit and new.misfit <= (1 - share) * old.misfit


# ------------------------------------------------------------------------------------------------------ the whole solve


METHODS: tuple[tuple[str, Callable[[Problem, State, float], Iterator[State]]], ...] = (
    ("path-space Gauss-Newton", path_space_gauss_newton),
    ("exact Newton", exact_newton),
    ("Levenberg-Marquardt", functools.partial(trust_region, False)),
    ("exact Newton", exact_newton),
    ("exact trust region", functools.partial(trust_region, True)),
    ("exact Newton", exact_newton),
)

MAX_ITERATIONS = 60
"""Of one method at one level."""

MAX_TOTAL = 400
"""Of all together: then no further level is tried."""


def solve(problem: Problem, alignment: Alignment, momenta: Float[Array, "n d"] | None = None) -> Fit:
    """The most probable flow, from a first alignment and zero momenta (or those of a similar problem).

    If full Gauss–Newton steps from there converge, the problem is nearly linear and that is the answer. Otherwise the
    noise is raised and lowered again level by level, each level starting where the last one ended.
    """
    times = numerics.time_grid(shooting.DEFAULT_STEPS)
    momenta = np.zeros(problem.targets.shape) if momenta is None else momenta
    start = look(problem, alignment, momenta, no_step(problem), 0.0, times)
    sd = noise_sd(problem)
    tolerance = TOLERANCE * min(1.0, sd)
    log = Log()
    direct = functools.partial(path_space_gauss_newton, halvings=0)
    state = follow("path-space Gauss-Newton", direct, problem, start, tolerance, 1.0, log)
    if tolerance < state.misfit < 0.3 * sd:
        state = follow("exact Newton", exact_newton, problem, state, tolerance, 1.0, log)
    if state.misfit > tolerance:
        state = continuation(problem, start, tolerance, sd, log)
    state = settle(problem, state, shooting.MAX_DRIFT)
    state = follow("exact Newton", exact_newton, problem, state, tolerance, 1.0, log)
    failure = Outcome.ITERATIONS if log.exhausted or len(log) >= MAX_TOTAL else Outcome.STALLED
    outcome = Outcome.CONVERGED if state.misfit <= tolerance else failure
    return Fit(
        problem.kernel, problem.trend, state.alignment, state.trajectory, problem.targets, problem.noise,
        float(state.energy), float(state.gap_mm), outcome, tuple(log),
    )  # fmt: skip


class Log(list[Progress]):
    """The rows so far, and whether the last method used up its iterations."""

    exhausted: bool = False


def solve_small(problem: Problem, alignment: Alignment) -> Fit:
    """The small-deformation model: regression of the displacement, the alignment refined until it stands still.

    A Gauss–Newton step around the flow that does not move; linear but for the rotation, so a few rounds suffice.
    """
    log = Log()
    while True:
        still, energy, beta, shift = regression_step(problem, alignment)
        log.append(Progress("regression", 1.0, float(energy), float(shift), 0))
        converged = shift <= TOLERANCE * min(1.0, noise_sd(problem))
        if converged or len(log) >= MAX_ITERATIONS:
            break
        alignment = problem.trend.move(alignment, beta)
    end = Outcome.CONVERGED if converged else Outcome.ITERATIONS
    return Fit(
        problem.kernel, problem.trend, alignment, still, problem.targets, problem.noise,
        float(energy), float(shift), end, tuple(log),
    )  # fmt: skip


@jax.jit
def regression_step(
    problem: Problem, alignment: Alignment
) -> tuple[shooting.Trajectory, Scalar, Float[Array, " b"], Scalar]:
    """The flow at rest, the energy ½yᵀPy, and the change of the alignment with the largest shift it makes, mm."""
    still = shooting.standstill(alignment(problem.moving))
    linear = path_space(problem.kernel, still, jnp.ones(1), problem.noise, problem.trend)
    missing = problem.targets - still.positions[0]
    beta, dual = linear.dual_change(missing, jnp.zeros(len(problem.trend.generators)))
    shift = jnp.max(jnp.abs(problem.trend.basis(still.positions[0]) @ beta), initial=0.0)
    return still, 0.5 * jnp.sum(missing * dual), beta, shift


def noise_sd(problem: Problem) -> float:
    """The typical noise, mm: that of the median landmark."""
    return float(np.sqrt(np.median(np.trace(np.asarray(problem.noise), axis1=1, axis2=2)) / problem.targets.shape[1]))


def continuation(problem: Problem, state: State, tolerance: float, sd: float, log: Log) -> State:
    """Lower the noise from 10⁴·D to D, level by level; where a level is too far from the last one, halve the way.

    Gauss–Newton and exact Newton follow the path of optima; when it cannot be followed in steps of 5 % or more, the
    trust regions take the level over; when they fail too, one last try is made at the noise itself.
    """
    reached, ahead = np.inf, list(LEVELS)
    while ahead and len(log) < MAX_TOTAL:
        factor = ahead[0]
        level = eqx.tree_at(lambda p: p.noise, problem, factor * problem.noise)
        goal = tolerance if factor == 1.0 else 0.01 * sd * factor**0.5
        start = settle(level, look_again(level, state))
        near = np.isfinite(reached) and factor > 0.95 * reached
        for name, method in METHODS if near else METHODS[:2]:
            trial = follow(name, method, level, start, goal, factor, log)
            if trial.misfit <= goal:
                break
            start = trial if near else start
        if trial.misfit <= goal or near or not np.isfinite(reached):
            lost = trial.misfit > goal and near
            reached, state, ahead = factor, trial, ahead[-1:] if lost and factor > 1 else ahead[1:]
        else:
            ahead.insert(0, float(np.sqrt(reached * factor)) if factor < 0.9 * reached else 0.96 * reached)
    return state


def follow(
    name: str,
    method: Callable[[Problem, State, float], Iterator[State]],
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
        log.append(Progress(name, factor, float(state.energy), float(state.gap_mm), state.num_steps))
    log.exhausted = len(log) - began == MAX_ITERATIONS or (log.exhausted and len(log) == began)
    return state
