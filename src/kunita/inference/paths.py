"""Gauss–Newton over velocity paths: it comes near the answer where shooting loses its way.

The unknown is not the start of a geodesic but the whole path of velocity fields. Around a path v
the arrival of the sites is linear in a change of it, δφ₁ = ∫ Ψ(t) δv_t dt, so that the best path is
again given by one dual vector λ at the sites:

    η = ∫ Ψ v dt,   λ = HᵀS⁻¹(r + Hη − HJhβ̂),   v'_t(x) = Σⱼ k(x, qⱼ(t)) Ψⱼ(t)ᵀλⱼ,

with the sites' present trajectories q(t) for centres. Each step goes a share a of the way from v to
v', as far as the energy falls. At the answer v' = v is a geodesic. A path on few instants is only
near it: it is never handed out, but shot again from p₀ = J(1)ᵀλ and finished there.

Where observations have rows, matrices stand in two places: in the linear model (`path_space`), and
in the field of least norm that a shortened step needs. Observations without rows, of which there
may be very many, are searched with by products and integrals alone (`matrix_free`).
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Float

from kunita import numerics
from kunita.flow import transport
from kunita.flow.fields import PathField, travel
from kunita.inference.matrix_free import matrix_free_model
from kunita.inference.objective import energy
from kunita.inference.path_space import AbstractLinearModel, linear_model
from kunita.inference.problem import (
    Problem,
    Residual,
    in_mm,
    largest,
    local_variance,
    observed,
    unit_variance,
)
from kunita.inference.search import AbstractSearch, Truth, run_compiled
from kunita.inference.trend import Alignment
from kunita.jaxrun.doors import Array, Scalar, namespace
from kunita.jaxrun.programs import compiled
from kunita.observations.base import Information

SHORTEST = 1e-4
"""Steps shorter than this share of the way lead nowhere."""


class VelocityPath(eqx.Module):
    """A path of velocity fields, seen at the sites: an instant at both ends and the middle of a
    step.

    Args:
        alignment: of the moving points, before the flow.
        positions: of the sites at 2T + 1 instants.
        jacobians: of the flow at the sites.
        velocities: v_t there.
        energy: ½∫‖v_t‖² dt and the data term.
        compared_energy: with the noise of the path before, which both ends of a step are judged by.
    """

    alignment: Alignment
    positions: Float[Array, "t n d"]
    jacobians: Float[Array, "t n d d"]
    velocities: Float[Array, "t n d"]
    energy: Scalar
    compared_energy: Scalar

    @property
    def map_jacobians(self) -> Float[Array, "n d d"]:
        """Of alignment and flow at the sites."""
        of_flow = self.jacobians[-1]
        return of_flow @ self.alignment.matrix


def path_at_rest(num_steps: int, problem: Problem, alignment: Alignment) -> VelocityPath:
    """The path that moves nothing."""
    start = alignment(problem.observations.sites)
    n, d = start.shape
    instants = 2 * num_steps + 1
    jacobians = jnp.broadcast_to(jnp.eye(d), (instants, n, d, d))
    here = observed(problem, start, jacobians[-1] @ alignment.matrix)
    resting = energy(jnp.zeros(()), here)
    return VelocityPath(
        alignment=alignment,
        positions=jnp.broadcast_to(start, (instants, n, d)),
        jacobians=jacobians,
        velocities=jnp.zeros((instants, n, d)),
        energy=resting,
        compared_energy=resting,
    )


# ----------------------------------------------------------------------------------- the search


class PathPoint(eqx.Module):
    """Where the search is.

    Args:
        path: the best path so far.
        dual: λ of the best path of the linear model around the one before.
        jacobian: J(1) of the path that λ belongs to.
        alignment: of that path.
        length: the share of the way that the next step goes.
        residual_mm: how far λ is from the optimality condition.
        stuck: whether no step leads further.
    """

    path: VelocityPath
    dual: Float[Array, "n d"]
    jacobian: Float[Array, "n d d"]
    alignment: Alignment
    length: Scalar
    residual_mm: Scalar
    stuck: Truth


class PathGaussNewton(AbstractSearch[PathPoint]):
    """Gauss–Newton over velocity paths.

    Args:
        tolerance: where it ends, mm.
    """

    tolerance: Scalar

    def init(self, problem: Problem, start: VelocityPath) -> PathPoint:
        return PathPoint(
            path=start,
            dual=jnp.zeros_like(start.positions[0]),
            jacobian=start.jacobians[-1],
            alignment=start.alignment,
            length=jnp.ones(()),
            residual_mm=jnp.full((), jnp.inf),
            stuck=jnp.zeros((), bool),
        )

    def ended(self, point: PathPoint) -> Truth:
        converged = point.residual_mm <= self.tolerance
        return converged | point.stuck

    def step(self, problem: Problem, point: PathPoint) -> PathPoint:
        path = point.path
        around = linearised(problem, path)
        beta, dual = around.minimiser()
        moved = point.length * beta
        field = blend(problem, around, dual, point.length)
        trial = follow(problem, path, field, moved)
        # Take it if the energy falls and nothing folds.
        unfolded = jnp.all(jnp.linalg.det(trial.jacobians) > 0)
        taken = unfolded & (trial.compared_energy < path.energy)
        promised = path.energy - promised_energy(problem, around, field, moved)
        gained = path.energy - trial.compared_energy
        gain = jnp.where(unfolded, gained / promised, jnp.nan)
        length = next_length(point.length, gain)
        return PathPoint(
            path=jax.tree.map(lambda new, old: jnp.where(taken, new, old), trial, path),
            dual=dual,
            jacobian=path.jacobians[-1],
            alignment=path.alignment,
            length=length,
            residual_mm=lacking_mm(problem, around, dual),
            stuck=length < SHORTEST,
        )


class LinearisedPath(eqx.Module):
    """The linear model around a path.

    Args:
        path: where.
        weights: of the quadrature over its instants.
        psi: Ψ(t) of the sites.
        linear: I + MΛ and what follows from it, or its products alone.
        observed: the observations at the path's arrival.
    """

    path: VelocityPath
    weights: Float[Array, " t"]
    psi: Float[Array, "t n d d"]
    linear: AbstractLinearModel
    observed: Information

    def displace(self, velocities: Float[Array, "t n d"]) -> Float[Array, "n d"]:
        """∫ Ψ v dt: how far velocities at the sites carry them, to first order."""
        return transport.displacements(self.weights, self.psi, velocities)

    def minimiser(self) -> tuple[Float[Array, " b"], Float[Array, "n d"]]:
        """β̂ and λ of the best path."""
        force = self.observed.force
        displaced = self.displace(self.path.velocities)
        return self.linear.minimiser(force, displaced)


def linearised(problem: Problem, path: VelocityPath) -> LinearisedPath:
    """Linearise around a path."""
    weights = numerics.quadrature_weights(len(path.positions) - 1)
    around = transport.Path(path.positions, path.jacobians)
    here = observed(problem, path.positions[-1], path.map_jacobians)
    linear: AbstractLinearModel
    if problem.observations.has_rows:
        linear = linear_model(problem, around, path.map_jacobians, weights)
    else:
        linear = matrix_free_model(problem, around, weights, here)
    return LinearisedPath(
        path=path,
        weights=jnp.asarray(weights),
        psi=transport.propagators(around),
        linear=linear,
        observed=here,
    )


def blend(
    problem: Problem, around: LinearisedPath, dual: Float[Array, "n d"], length: Scalar
) -> PathField:
    """(1 − a)v + av', with the field of least norm for v, centred on the anchors."""
    path = around.path
    centres = at_anchors(problem, path.positions)
    best = _best_momenta(problem, around, dual)

    def shorter() -> Float[Array, "t c d"]:
        velocities = at_anchors(problem, path.velocities)
        present = around.linear.least_field(problem.kernel, centres, velocities)
        return (1 - length) * present.momenta + length * best

    # A whole step does not need the present field: it takes long, and rounding can spoil it.
    momenta = jax.lax.cond(length < 1, shorter, lambda: best)
    return PathField(centres, momenta)


def _best_momenta(
    problem: Problem, around: LinearisedPath, dual: Float[Array, "n d"]
) -> Float[Array, "t c d"]:
    """Ψ(t)ᵀλ at the anchors, the momenta of v'."""
    d = dual.shape[1]
    anchored = around.linear.to_anchors(dual.ravel())
    psi = at_anchors(problem, around.psi)
    by_anchor = anchored.reshape(-1, d)
    return jnp.einsum("tcba,cb->tca", psi, by_anchor)


def promised_energy(
    problem: Problem, around: LinearisedPath, field: PathField, beta: Float[Array, " b"]
) -> Scalar:
    """The energy along another field, according to the linear model."""
    path = around.path
    kernel = problem.kernel
    change = field.velocities(kernel, path.positions) - path.velocities
    displaced = around.displace(change)
    basis = problem.trend.basis(path.positions[0])
    aligned = path.jacobians[-1] @ basis @ beta
    arrived = path.positions[-1] + displaced + aligned
    square_norm = field.square_norm(kernel, around.weights)
    half_norm = 0.5 * square_norm
    there = observed(problem, arrived, path.map_jacobians)
    return energy(half_norm, there)


def lacking_mm(problem: Problem, around: LinearisedPath, dual: Float[Array, "n d"]) -> Scalar:
    """How far λ is from the optimality condition Hᵀr = λ, mm."""
    here = around.observed
    lacking = Residual(here.force - dual, jnp.zeros(0))
    unit = unit_variance(problem)
    local = local_variance(here.local, unit)
    scaled = in_mm(lacking, local, unit)
    return largest(scaled)


def at_anchors(problem: Problem, values: Float[Array, "t n *p"]) -> Float[Array, "t c *p"]:
    """What belongs to those that carry the momentum: the control points, or all sites."""
    if problem.controls is None:
        return values
    return values[:, problem.controls]


def follow(
    problem: Problem, path: VelocityPath, field: PathField, beta: Float[Array, " b"]
) -> VelocityPath:
    """The path along another field, from an alignment that is moved by β."""
    alignment = problem.trend.move(path.alignment, beta)
    start = alignment(problem.observations.sites)
    positions, jacobians, velocities = travel(problem.kernel, field, start)
    weights = numerics.quadrature_weights(len(positions) - 1)
    half_norm = 0.5 * field.square_norm(problem.kernel, weights)
    now = observed(problem, positions[-1], jacobians[-1] @ alignment.matrix)
    as_before = observed(problem, positions[-1], path.map_jacobians)
    return VelocityPath(
        alignment=alignment,
        positions=positions,
        jacobians=jacobians,
        velocities=velocities,
        energy=energy(half_norm, now),
        compared_energy=energy(half_norm, as_before),
    )


def next_length(length: Scalar, gain: Scalar) -> Scalar:
    """The share of the way for the next step, from what the last one gained of what was promised.

    Where the linear model is good, twice as far. Otherwise to the minimum of the parabola through
    the start, its slope and the trial; a quarter where the trial is no number or folds.
    """
    minimum = 1 / (2 - gain)
    parabola = jnp.clip(minimum, 0.2, 1.0)
    factor = jnp.where(gain > 0.75, 2.0, parabola)
    is_number = jnp.isfinite(gain)
    factor = jnp.where(is_number, factor, 0.25)
    return jnp.minimum(1.0, length * factor)


@compiled(static=1)
def search_paths(
    max_steps: int, problem: Problem, start: VelocityPath, tolerance: Scalar
) -> tuple[PathPoint, Array]:
    """The whole search as one program; also says how many steps it made."""
    search = PathGaussNewton(tolerance)
    return run_compiled(search, problem, start, max_steps)


at_rest = compiled(path_at_rest, static=1)


def momenta_of(point: PathPoint) -> Float[Array, "n d"]:
    """p₀ = J(1)ᵀλ: where to shoot from."""
    jacobian = point.jacobian
    xp = namespace(jacobian, point.dual)
    return xp.einsum("iba,ib->ia", jacobian, point.dual)
