"""The problem of the fit, and a look at one point of the search for its answer.

The unknowns are the initial momenta p₀ and the alignment (through its change β). At the optimum

    gap = F − φ₁ − Dλ = 0,   pull = h(x̃)ᵀp₀ = 0,   λ = p(1).
"""

import dataclasses

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from kunita import numerics
from kunita.flow import shooting
from kunita.flow.control import Controls, carriers_of, guided_geodesic
from kunita.inference.trend import Alignment, Trend
from kunita.jaxrun.doors import Array, Scalar
from kunita.jaxrun.programs import compiled
from kunita.kernels import AbstractKernel
from kunita.observations import mahalanobis

DENSE = 420
"""Largest number of unknowns for which Jacobians and Hessians are formed."""

SEARCH_DRIFT = 1e-5
"""Relative energy drift that is good enough on the way; the answer itself has `shooting.MAX_DRIFT`.
"""


class Problem(eqx.Module):
    """Moving points, where they should go, how precisely, and which alignments are free.

    Where they are many, `controls` are those that carry the momentum of all, unless all are wanted
    (`whole`), and `few` of these are enough to come near the answer; the unknowns stay the same.
    """

    kernel: AbstractKernel
    moving: Float[Array, "n d"]
    targets: Float[Array, "n d"]
    noise: Float[Array, "n d d"]
    trend: Trend
    controls: Controls | None = None
    few: Int[Array, " k"] | None = None
    whole: bool = eqx.field(static=True, default=False)

    @property
    def noise_sd(self) -> float:
        """The typical noise, mm: that of the median landmark."""
        variance = np.trace(np.asarray(self.noise), axis1=1, axis2=2) / self.targets.shape[1]
        return float(np.sqrt(np.median(variance)))

    @property
    def num_unknowns(self) -> int:
        return self.targets.size + len(self.trend.generators)

    @property
    def simplified(self) -> "Problem":
        """The same with few control points, if there are any: what a search begins with, and steps
        are made with.
        """
        return self if self.few is None else dataclasses.replace(self, controls=self.few, few=None)

    @property
    def is_small(self) -> bool:
        """Whether matrices over all unknowns are formed; otherwise they are touched through
        products only.
        """
        return self.num_unknowns <= DENSE


class Errors(eqx.Module):
    """What the two equations of the optimum still lack: the gap (mm) and the pull on the alignment
    (1/mm).
    """

    gap: Float[Array, "n d"]
    pull: Float[Array, " b"]


class Step(eqx.Module):
    """A change of the alignment (β, mm) and of the initial momenta."""

    beta: Float[Array, " b"]
    momenta: Float[Array, "n d"]

    def __mul__(self, factor: float) -> "Step":
        return Step(factor * self.beta, factor * self.momenta)


class State(eqx.Module):
    """A point of the search, with everything that was computed there.

    `gap_mm` is the largest gap; `misfit_mm` is the larger of that (in proportion, along directions
    in which a landmark is vaguer than the typical one) and of the shift that the pull on the
    alignment stands for; `drift` is the measured error of the time stepping.
    """

    alignment: Alignment
    momenta: Float[Array, "n d"]
    trajectory: shooting.Trajectory
    energy: Scalar
    errors: Errors
    gap_mm: Scalar
    misfit_mm: Scalar
    drift: Scalar

    @property
    def misfit(self) -> float:
        """The test of convergence, mm; infinite where the shooting failed."""
        return float(self.misfit_mm) if np.isfinite(self.misfit_mm) else np.inf

    @property
    def trusted(self) -> bool:
        """Whether the energy means anything: finite, and the time steps not hopelessly coarse."""
        return bool(np.isfinite(self.energy)) and float(self.drift) < 1e-3


def departure(
    problem: Problem, alignment: Alignment, momenta: Float[Array, "n d"], step: Step
) -> tuple[Alignment, shooting.Phase]:
    """The alignment after a step, and the points and momenta that the flow then starts with."""
    alignment = problem.trend.move(alignment, step.beta)
    return alignment, (alignment(problem.moving), momenta + step.momenta)


def flow(problem: Problem, start: shooting.Phase, times: Float[Array, " t"]) -> shooting.Trajectory:
    """The trajectory of the landmarks."""
    if problem.controls is None:
        return shooting.geodesic(problem.kernel, *start, times)
    return guided_geodesic(problem.kernel, *start, problem.controls, times)


def carriers(problem: Problem, trajectory: shooting.Trajectory) -> shooting.Trajectory:
    """Of those that carry the momentum: the landmarks themselves, unless there are control points."""
    if problem.controls is None:
        return trajectory
    return carriers_of(problem.kernel, trajectory, problem.controls)


def arrival(problem: Problem, start: shooting.Phase, times: Float[Array, " t"]) -> shooting.Phase:
    """(φ₁, λ): the end of the flow alone, which is differentiated more cheaply."""
    if problem.controls is None:
        return shooting.endpoint(problem.kernel, *start, times)
    trajectory = flow(problem, start, times)
    return trajectory.positions[-1], trajectory.momenta[-1]


def errors_of(problem: Problem, start: shooting.Phase, end: shooting.Phase) -> Errors:
    """F − φ₁ − Dλ and h(x̃)ᵀp₀ of the flow from (x̃, p₀) to (φ₁, λ): zero at the optimum."""
    gap = problem.targets - end[0] - jnp.einsum("iab,ib->ia", problem.noise, end[1])
    return Errors(gap, jnp.einsum("iab,ia->b", problem.trend.basis(start[0]), start[1]))


def typical_variance(noise: Float[Array, "n d d"]) -> Scalar:
    """Of the median landmark, along a typical axis, mm²."""
    return jnp.median(jnp.trace(noise, axis1=1, axis2=2)) / noise.shape[1]


def misfit_mm(errors: Errors, noise: Float[Array, "n d d"], variance: Scalar) -> Scalar:
    """How far a point is from the optimum: the largest of all gaps, and of the shifts that the pull
    stands for.

    Where a landmark is vaguer than the typical one its gap may be wider, √(typical · gapᵀD⁻¹gap).
    That is at least what counting direction by direction would give.
    """
    typical = typical_variance(noise)
    lengths = jnp.minimum(jnp.sum(errors.gap**2, axis=1), typical * mahalanobis(errors.gap, noise))
    return jnp.max(jnp.abs(errors.pull) * (variance + typical), initial=jnp.sqrt(jnp.max(lengths)))


@compiled
def look(
    problem: Problem,
    alignment: Alignment,
    momenta: Float[Array, "n d"],
    step: Step,
    times: Float[Array, " t"],
) -> State:
    """Shoot from where a step leads, and evaluate the energy and both equations of the optimum
    there.
    """
    alignment, start = departure(problem, alignment, momenta, step)
    return judged(problem, alignment, flow(problem, start, times))


@compiled
def judged(problem: Problem, alignment: Alignment, trajectory: shooting.Trajectory) -> State:
    """Evaluate the energy and both equations of the optimum for a flow."""
    start, end = trajectory.at(0), trajectory.at(-1)
    errors = errors_of(problem, start, end)
    return State(
        alignment,
        start[1],
        trajectory,
        energy=trajectory.energies[0]
        + 0.5 * jnp.sum(mahalanobis(problem.targets - end[0], problem.noise)),
        errors=errors,
        gap_mm=jnp.max(jnp.abs(errors.gap)),
        misfit_mm=misfit_mm(errors, problem.noise, problem.kernel.variance),
        drift=jnp.asarray(trajectory.drift),
    )


def no_step(problem: Problem) -> Step:
    """The step that stays."""
    return Step(np.zeros(len(problem.trend.generators)), np.zeros(problem.targets.shape))


def look_again(problem: Problem, state: State, times: Float[Array, " t"] | None = None) -> State:
    """The same point, with other control points or another time grid."""
    times = state.trajectory.times if times is None else times
    return look(problem, state.alignment, state.momenta, no_step(problem), times)


def judge_again(problem: Problem, state: State) -> State:
    """The same flow, for another noise or other targets."""
    return judged(problem, state.alignment, state.trajectory)


def advance(problem: Problem, state: State, step: Step) -> State:
    """The state after a step, on the present time grid."""
    return look(problem, state.alignment, state.momenta, step, state.trajectory.times)


def settle(problem: Problem, state: State, limit: float = SEARCH_DRIFT) -> State:
    """The same point with as many time steps as its measured energy drift asks for."""
    for _ in range(4):
        present = state.trajectory.num_steps
        enough = shooting.enough_steps(present, float(state.drift), limit)
        if enough == present:
            break
        state = look_again(problem, state, numerics.time_grid(enough))
    return state
