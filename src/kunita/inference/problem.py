"""The problem of the fit, and what is known at one point of the search for its answer.

The unknowns are the initial momenta p₀ and the alignment (through its change β). Both optimality
conditions are met at the answer:

    Hᵀr − λ = 0,   h(x̃)ᵀp₀ = 0,   λ = p(1),

with r and H the whitened rows of the observations at the arrival φ₁ of the sites. (For landmarks
Hᵀr = D⁻¹(F − φ₁).)
"""

import dataclasses
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from kunita import numerics
from kunita.flow import shooting
from kunita.flow.control import Controls, carriers_of, guided_geodesic
from kunita.inference.objective import energy
from kunita.inference.trend import Alignment, Trend
from kunita.jaxrun.doors import Array, Scalar, namespace
from kunita.jaxrun.programs import compiled
from kunita.kernels import AbstractKernel
from kunita.observations.base import AbstractObservations, Information

MOST_DENSE = 420
"""Largest number of unknowns for which Jacobians and Hessians are formed."""

UNTRUSTED_DRIFT = 1e-3
"""Relative energy drift beyond which the time steps are hopelessly coarse: energies mean nothing.
"""


class Problem(eqx.Module):
    """What was observed, the prior of the deformation, and the alignments that are free.

    Where sites are many, `controls` are those that carry the momentum of all, unless all are wanted
    (`whole`). The first search is made with the `few` of them that come near the answer. The
    unknowns stay the same.

    Args:
        kernel: the covariance function of the velocity.
        observations: what was observed.
        trend: the directions in which the alignment may move.
        controls: rows of the sites that carry momentum; None if all do.
        few: fewer of them, to begin with.
        tilt: a constant force that is added to the observations', 1/mm. It corrects the optimality
            condition on a coarse time grid by what a fine one says (deferred correction).
        whole: whether all sites must carry their own momentum.
    """

    kernel: AbstractKernel
    observations: AbstractObservations
    trend: Trend
    controls: Controls | None = None
    few: Int[Array, " k"] | None = None
    tilt: Float[Array, "n d"] | None = None
    whole: bool = eqx.field(static=True, default=False)

    @property
    def noise_sd(self) -> float:
        """The typical noise, mm."""
        return float(self.observations.noise_sd)

    @property
    def num_unknowns(self) -> int:
        num_momenta = self.observations.sites.size
        return num_momenta + len(self.trend.generators)

    @property
    def simplified(self) -> "Problem":
        """The same with few control points, if there are any: what a search begins with."""
        if self.few is None:
            return self
        return dataclasses.replace(self, controls=self.few, few=None)

    @property
    def is_small(self) -> bool:
        """Whether matrices over all unknowns are formed, or only products with them."""
        return self.num_unknowns <= MOST_DENSE


# Named tuples and not modules: a search makes some of them in every step on the host, and Equinox
# takes longer to make a module than the step takes to use it.


class Residual(NamedTuple):
    """What the two optimality conditions lack, 1/mm; or several of them.

    Args:
        force: Hᵀr − λ at the sites.
        trend: h(x̃)ᵀp₀.

    A search keeps several of them, one after the other along a first axis.
    """

    force: Float[Array, "*m n d"]
    trend: Float[Array, "*m b"]


class Step(NamedTuple):
    """A change of the alignment (β, mm) and of the initial momenta (1/mm); or several of them."""

    beta: Float[Array, "*m b"]
    momenta: Float[Array, "*m n d"]

    def scaled(self, factor: Scalar) -> "Step":
        """The same way, this many times as far."""
        return Step(
            factor * self.beta,
            factor * self.momenta,
        )


class State(eqx.Module):
    """A point of the search, with everything that was computed there.

    Args:
        alignment: of the moving points, before the flow.
        momenta: p₀.
        trajectory: of the sites.
        jacobians: of the whole map, alignment and flow, at the sites.
        energy: with the noise as the map carries it over here.
        compared_energy: with the noise of the state before, which both ends of a step are
            judged by. The same, unless moving points are uncertain.
        noise_log_det: log|R| of the observations' noise.
        num_rows: how many numbers were observed.
        residual: of the optimality conditions.
        local_variance, unit_variance: what turns the residual into mm (see the functions of these
            names).
        residual_mm: the largest of all, in mm: the test of convergence.
        drift: the measured error of the time stepping.
    """

    alignment: Alignment
    momenta: Float[Array, "n d"]
    trajectory: shooting.Trajectory
    jacobians: Float[Array, "n d d"]
    energy: Scalar
    compared_energy: Scalar
    noise_log_det: Scalar
    num_rows: int = eqx.field(static=True)
    residual: Residual
    local_variance: Float[Array, "n d d"]
    unit_variance: Scalar
    residual_mm: Scalar
    drift: Scalar

    @property
    def misfit(self) -> float:
        """The test of convergence, mm; infinite where the shooting failed."""
        found = float(self.residual_mm)
        if not np.isfinite(found):
            return np.inf
        return found

    @property
    def is_trusted(self) -> bool | np.bool_ | Bool[Array, ""]:
        """Whether the energy is a number, of a flow whose time steps are not hopelessly coarse."""
        xp = namespace(self.energy)
        finite = xp.isfinite(self.energy)
        return finite & (self.drift < UNTRUSTED_DRIFT)


# ---------------------------------------------------------------------------- the flow of a problem


def departure(
    problem: Problem, alignment: Alignment, momenta: Float[Array, "n d"], step: Step
) -> tuple[Alignment, shooting.Phase]:
    """The alignment after a step, and the points and momenta that the flow then starts with."""
    moved = problem.trend.move(alignment, step.beta)
    positions = moved(problem.observations.sites)
    start = (positions, momenta + step.momenta)
    return moved, start


def flow(problem: Problem, start: shooting.Phase, times: Float[Array, " t"]) -> shooting.Trajectory:
    """The trajectory of the sites."""
    if problem.controls is None:
        return shooting.geodesic(problem.kernel, *start, times)
    return guided_geodesic(
        problem.kernel,
        *start,
        problem.controls,
        times,
    )


def carriers(problem: Problem, trajectory: shooting.Trajectory) -> shooting.Trajectory:
    """The trajectory of those that carry the momentum: all sites, or the control points."""
    if problem.controls is None:
        return trajectory
    return carriers_of(problem.kernel, trajectory, problem.controls)


def arrival(problem: Problem, start: shooting.Phase, times: Float[Array, " t"]) -> shooting.Phase:
    """(φ₁, λ): the end of the flow alone, which is differentiated more cheaply."""
    if problem.controls is None:
        return shooting.endpoint(problem.kernel, *start, times)
    trajectory = flow(problem, start, times)
    return trajectory.at(-1)


# -------------------------------------------------------------------------------- a state is judged


def observed(
    problem: Problem, arrived: Float[Array, "n d"], jacobians: Float[Array, "n d d"]
) -> Information:
    """What the observations say at an arrival, with the tilt of the problem if it has one.

    A tilt τ adds the linear term −τ·φ₁ to the energy, and so τ to the force.
    """
    found = problem.observations.information(arrived, jacobians)
    if problem.tilt is None:
        return found
    force = found.force + problem.tilt
    lowered = jnp.sum(problem.tilt * arrived)
    return dataclasses.replace(
        found,
        force=force,
        energy=found.energy - lowered,
    )


def residual_of(
    problem: Problem, start: shooting.Phase, end: shooting.Phase, force: Array
) -> Residual:
    """Hᵀr − λ and h(x̃)ᵀp₀ of the flow from (x̃, p₀) to (φ₁, λ): zero at the answer."""
    x, p0 = start
    _, dual = end
    basis = problem.trend.basis(x)
    trend = jnp.einsum("iab,ia->b", basis, p0)
    return Residual(force - dual, trend)


def unit_variance(problem: Problem) -> Scalar:
    """Prior variance plus typical noise, mm²: it turns a force that nothing resists into mm."""
    noise_sd = problem.observations.noise_sd
    return problem.kernel.variance + noise_sd**2


def local_variance(information: Float[Array, "n d d"], unit: Scalar) -> Float[Array, "n d d"]:
    """(Mᵢ + I/u)⁻¹ with M = HᵀH and u the `unit_variance`: it turns forces at the sites into mm.

    Where a landmark is precise this is its noise D, and D(Hᵀr − λ) = F − φ₁ − Dλ. Along directions
    that are hardly or not observed it is u.
    """
    d = information.shape[-1]
    unresisted = jnp.eye(d) / unit
    total = information + unresisted
    return numerics.solve_identity_small(total)


def in_mm(residual: Residual, local: Float[Array, "n d d"], unit: Scalar) -> Residual:
    """A residual of the optimality conditions in mm, from `local_variance` and `unit_variance`."""
    force = jnp.einsum("iab,...ib->...ia", local, residual.force)
    trend = unit * residual.trend
    return Residual(force, trend)


def largest(residual: Residual) -> Scalar:
    """The longest of the vectors at the sites, or the largest of the numbers of the alignment."""
    squares = jnp.sum(residual.force**2, axis=-1)
    lengths = jnp.sqrt(squares)
    longest = jnp.max(lengths)
    sizes = jnp.abs(residual.trend)
    return jnp.max(sizes, initial=longest)


@compiled
def look(
    problem: Problem,
    alignment: Alignment,
    momenta: Float[Array, "n d"],
    step: Step,
    times: Float[Array, " t"],
    jacobians_before: Float[Array, "n d d"] | None = None,
) -> State:
    """Shoot from where a step leads, and judge the flow."""
    moved, start = departure(problem, alignment, momenta, step)
    trajectory = flow(problem, start, times)
    return judged(
        problem,
        moved,
        trajectory,
        jacobians_before,
    )


@compiled
def judged(
    problem: Problem,
    alignment: Alignment,
    trajectory: shooting.Trajectory,
    jacobians_before: Float[Array, "n d d"] | None = None,
) -> State:
    """Evaluate the energy and both optimality conditions for a flow."""
    start = trajectory.at(0)
    end = trajectory.at(-1)
    jacobians = trajectory.jacobians[-1] @ alignment.matrix
    here = observed(problem, end[0], jacobians)
    now = energy(trajectory.energies[0], here)
    compared = now
    if jacobians_before is not None:
        as_before = observed(problem, end[0], jacobians_before)
        compared = energy(trajectory.energies[0], as_before)
    residual = residual_of(problem, start, end, here.force)
    unit = unit_variance(problem)
    variance = local_variance(here.local, unit)
    return State(
        alignment=alignment,
        momenta=start[1],
        trajectory=trajectory,
        jacobians=jacobians,
        energy=now,
        compared_energy=compared,
        noise_log_det=jnp.asarray(here.log_det),
        num_rows=here.num_rows,
        residual=residual,
        local_variance=variance,
        unit_variance=jnp.asarray(unit),
        residual_mm=largest(in_mm(residual, variance, unit)),
        drift=jnp.asarray(trajectory.drift),
    )


# ---------------------------------------------------------------------------- from state to state


def no_step(problem: Problem) -> Step:
    """The step that stays."""
    num_generators = len(problem.trend.generators)
    shape = problem.observations.sites.shape
    return Step(np.zeros(num_generators), np.zeros(shape))


def look_first(
    problem: Problem, alignment: Alignment, momenta: Float[Array, "n d"], times: Float[Array, " t"]
) -> State:
    """The state where a search begins.

    A look compares energies with the noise of the state before. Here there is none, and the
    alignment takes its place, so that one program serves the first look and all others.
    """
    jacobians = alignment.jacobians(len(problem.observations.sites))
    staying = no_step(problem)
    return look(
        problem,
        alignment,
        momenta,
        staying,
        times,
        jacobians,
    )


def look_again(problem: Problem, state: State, times: Float[Array, " t"] | None = None) -> State:
    """The same point, with other control points or another time grid."""
    grid = state.trajectory.times if times is None else times
    staying = no_step(problem)
    return look(
        problem,
        state.alignment,
        state.momenta,
        staying,
        grid,
        state.jacobians,
    )


def judge_again(problem: Problem, state: State) -> State:
    """The same flow, for another tilt."""
    return judged(problem, state.alignment, state.trajectory)


def advance(problem: Problem, state: State, step: Step) -> State:
    """The state after a step, on the present time grid."""
    times = state.trajectory.times
    return look(
        problem,
        state.alignment,
        state.momenta,
        step,
        times,
        state.jacobians,
    )


def settle(problem: Problem, state: State, max_drift: float) -> State:
    """The same point with as many time steps as its measured energy drift asks for."""
    for _ in range(4):
        present = state.trajectory.num_steps
        enough = shooting.enough_steps(present, float(state.drift), max_drift)
        if enough == present:
            break
        state = look_again(problem, state, numerics.time_grid(enough))
    return state
