"""Many small fits in one compiled program: path-space Gauss–Newton with a memory, without a
decision of the host.

A refit of most of the landmarks that were fitted before starts near its answer. Then hardly any of
the search of `solve` is needed; what is needed is a loop that the compiler can have as a whole. A
search that does not end well says so, and is left to `solve`.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from kunita import numerics
from kunita.flow import shooting
from kunita.inference.path_space import PathSpace, path_space
from kunita.inference.problem import (
    Errors,
    Problem,
    Step,
    departure,
    errors_of,
    misfit_mm,
    typical_variance,
)
from kunita.inference.solve import ROUNDING, TOLERANCE
from kunita.inference.trend import Alignment, Trend
from kunita.jaxrun.doors import Array, Scalar
from kunita.kernels import AbstractKernel
from kunita.observations import LandmarkObservations, mahalanobis

MOST = 30
"""Steps of one search: one that starts near its end takes four to ten."""

MEMORY = 8
"""How many past steps are remembered: about all of such a search."""

SLACK = 1e-9
"""Of the energy: by so much it may rise in a step, which is rounding where the search ends."""

LEAST_TRUSTED = 1e-3
"""Relative energy drift beyond which time steps are hopelessly coarse, and an energy means nothing.
"""

RIDGE = 1e-14
"""On the squares of past changes, each of unit length: what they do not tell apart is left to the
next step."""


class Start(eqx.Module):
    """What was seen, the prior, and where a search begins: a step away from the fit of similar
    landmarks.
    """

    kernel: AbstractKernel
    observed: LandmarkObservations
    trend: Trend
    alignment: Alignment
    momenta: Float[Array, "n d"]
    step: Step

    def problem(self, noise: Float[Array, "n d d"]) -> Problem:
        """The problem of the fit, with the noise as a map carries it over."""
        return Problem(self.kernel, self.observed.moving, self.observed.fixed, noise, self.trend)

    def linearised(
        self, trajectory: shooting.Trajectory, noise: Float[Array, "n d d"]
    ) -> PathSpace:
        """The linearised model around a flow."""
        return path_space(
            self.kernel,
            trajectory,
            numerics.quadrature_weights(trajectory.num_steps),
            noise,
            self.trend,
        )

    def tolerance_mm(self, typical: Scalar) -> Scalar:
        """What `solve` calls converged, for a typical variance of the noise."""
        rounding = ROUNDING * jnp.max(jnp.ptp(self.observed.fixed, axis=0))
        return TOLERANCE * jnp.minimum(1.0, jnp.sqrt(typical)) + rounding


class Found(eqx.Module):
    """A flow, the noise that it carries over, what the equations of the optimum lack, and whether
    that is nothing.
    """

    alignment: Alignment
    trajectory: shooting.Trajectory
    noise: Float[Array, "n d d"]
    errors: Errors
    converged: Bool[Array, ""]


class Point(eqx.Module):
    """A point of the search, its energy, and whether both equations of the optimum hold there."""

    alignment: Alignment
    momenta: Float[Array, "n d"]
    trajectory: shooting.Trajectory
    noise: Float[Array, "n d d"]
    errors: Errors
    energy: Scalar
    closed: Bool[Array, ""]


class Memory(eqx.Module):
    """Past steps, the latest first, and by how much each changed the errors; zeros where there are
    none.
    """

    steps: Step
    changes: Errors

    @classmethod
    def of_nothing(cls, step: Step) -> "Memory":
        """Before any step of this shape."""
        blank = lambda one: jax.tree.map(lambda part: jnp.zeros((MEMORY, *part.shape)), one)
        return cls(blank(step), blank(Errors(step.momenta, step.beta)))

    def after(self, step: Step, change: Errors) -> "Memory":
        """With one more step."""
        push = lambda old, new: jnp.concatenate([new[None], old[:-1]])
        return Memory(
            jax.tree.map(push, self.steps, step), jax.tree.map(push, self.changes, change)
        )

    @property
    def is_empty(self) -> Bool[Array, ""]:
        return jnp.all(self.changes.gap[0] == 0)


class Search(eqx.Module):
    """Where a search is, what it remembers, how many steps it has tried, and whether none leads
    further.
    """

    point: Point
    memory: Memory
    count: Int[Array, ""]
    stuck: Bool[Array, ""]


def fit(start: Start, num_steps: int) -> Found:
    """The most probable flow of one problem, from a start that is near it.

    The model is linearised once, where the search starts: past steps correct it better than a new
    one would, which costs as much as the shooting. The noise that the map carries over from moving
    landmarks is that of the point where the search is, so it has settled where the search ends.
    Converged means what it does in `solve`.
    """
    times = jnp.asarray(numerics.time_grid(num_steps))
    point = look(start, start.alignment, start.momenta, start.step, times)
    linear = start.linearised(point.trajectory, point.noise)
    going = lambda search: ~search.point.closed & ~search.stuck & (search.count < MOST)
    search = Search(point, Memory.of_nothing(start.step), jnp.zeros((), int), jnp.zeros((), bool))
    point = jax.lax.while_loop(going, lambda search: advance(start, linear, search), search).point
    converged = point.closed & (point.trajectory.drift <= shooting.MAX_DRIFT)
    return Found(point.alignment, point.trajectory, point.noise, point.errors, converged)


def advance(start: Start, linear: PathSpace, search: Search) -> Search:
    """Try a step and take it if the energy does not rise; a memory that misleads is dropped, and a
    plain step tried.
    """
    point, memory = search.point, search.memory
    step = next_step(linear, point.errors, memory, start.kernel.variance)
    trial = look(start, point.alignment, point.momenta, step, point.trajectory.times)
    limit = point.energy + SLACK * jnp.abs(point.energy)
    taken = (energy(start, trial.trajectory, point.noise) <= limit) & (
        trial.trajectory.drift < LEAST_TRUSTED
    )
    change = jax.tree.map(jnp.subtract, trial.errors, point.errors)
    either = lambda yes, no: jax.tree.map(lambda a, b: jnp.where(taken, a, b), yes, no)
    remembered = either(memory.after(step, change), jax.tree.map(jnp.zeros_like, memory))
    return Search(either(trial, point), remembered, search.count + 1, ~taken & memory.is_empty)


def look(
    start: Start,
    alignment: Alignment,
    momenta: Float[Array, "n d"],
    step: Step,
    times: Float[Array, " t"],
) -> Point:
    """Shoot from where a step leads, carry the noise over, and evaluate both equations of the
    optimum there.
    """
    alignment, departed = departure(
        start.problem(start.observed.fixed_noise), alignment, momenta, step
    )
    trajectory = shooting.geodesic(start.kernel, *departed, times)
    noise = start.observed.noise(trajectory.jacobians[-1] @ alignment.matrix)
    errors = errors_of(
        start.problem(noise), departed, (trajectory.positions[-1], trajectory.momenta[-1])
    )
    closed = misfit_mm(errors, noise, start.kernel.variance) <= start.tolerance_mm(
        typical_variance(noise)
    )
    return Point(
        alignment, departed[1], trajectory, noise, errors, energy(start, trajectory, noise), closed
    )


def energy(start: Start, trajectory: shooting.Trajectory, noise: Float[Array, "n d d"]) -> Scalar:
    """½∫‖v‖² + ½Σ(φ₁ − f)ᵀD⁻¹(φ₁ − f); both ends of a step are judged by the noise of its
    beginning.
    """
    return trajectory.energies[0] + 0.5 * jnp.sum(
        mahalanobis(start.observed.fixed - trajectory.positions[-1], noise)
    )


def next_step(linear: PathSpace, errors: Errors, memory: Memory, variance: Scalar) -> Step:
    """Undo what past steps did, and leave the rest to Gauss–Newton: `gauss_newton.secant_step` with
    a fixed memory.

    γ = argmin |e − ΔEγ| from the normal equations, every change brought to unit length (and where
    there is none, to 0).
    """
    e, changes = in_mm(errors, variance), in_mm(memory.changes, variance)
    lengths = jnp.sqrt(jnp.sum(changes**2, axis=1))
    units = changes / jnp.where(lengths > 0, lengths, 1.0)[:, None]
    factor = numerics.cholesky(units @ units.T + RIDGE * jnp.eye(MEMORY), jitter=0.0)
    share = numerics.solve_cholesky(factor, units @ e) / jnp.where(lengths > 0, lengths, 1.0)
    rest = jax.tree.map(
        lambda now, past: now - jnp.tensordot(share, past, 1), errors, memory.changes
    )
    return jax.tree.map(
        lambda new, past: new - jnp.tensordot(share, past, 1), linear.step(rest), memory.steps
    )


def in_mm(errors: Errors, variance: Scalar) -> Float[Array, "*m e"]:
    """Gaps and pulls as vectors; the kernel's variance makes a pull (1/mm) comparable to a gap
    (mm).
    """
    gaps = errors.gap.reshape(*errors.gap.shape[:-2], -1)
    return jnp.concatenate([gaps, variance * errors.pull], axis=-1)


# ---------------------------------------------------------------------- the small-deformation model


def regress(start: Start) -> Found:
    """The small-deformation model of one problem, `solve.solve_small`: the alignment refined until
    it stands still.

    The noise is carried over with the alignment alone, as the start of every round has it.
    """

    def round_of(state: tuple[Alignment, Array, Array]) -> tuple[Alignment, Array, Array]:
        alignment, beta, count = state
        alignment = start.trend.move(alignment, beta)
        return alignment, regression(start, alignment)[0], count + 1

    def going(state: tuple[Alignment, Array, Array]) -> Bool[Array, ""]:
        return ~stands_still(start, *state[:2]) & (state[2] < MOST)

    first = (start.alignment, regression(start, start.alignment)[0], jnp.zeros((), int))
    alignment, beta, _ = jax.lax.while_loop(going, round_of, first)
    _, still, noise, errors = regression(start, alignment)
    return Found(alignment, still, noise, errors, stands_still(start, alignment, beta))


def regression(
    start: Start, alignment: Alignment
) -> tuple[Float[Array, " b"], shooting.Trajectory, Float[Array, "n d d"], Errors]:
    """By how much the alignment should move; and the flow at rest, its noise and its errors."""
    still = shooting.standstill(alignment(start.observed.moving))
    noise = start.observed.noise(
        jnp.broadcast_to(alignment.matrix, start.observed.fixed_noise.shape)
    )
    errors = Errors(
        start.observed.fixed - still.positions[0], jnp.zeros(len(start.trend.generators))
    )
    beta, _ = start.linearised(still, noise).dual_change(errors)
    return beta, still, noise, errors


def stands_still(start: Start, alignment: Alignment, beta: Float[Array, " b"]) -> Bool[Array, ""]:
    """Whether a change of the alignment moves no landmark by more than the tolerance."""
    aligned = alignment(start.observed.moving)
    typical = typical_variance(
        start.observed.noise(jnp.broadcast_to(alignment.matrix, start.observed.fixed_noise.shape))
    )
    return jnp.max(jnp.abs(start.trend.basis(aligned) @ beta), initial=0.0) <= start.tolerance_mm(
        typical
    )
