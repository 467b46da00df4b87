"""Carry any points along a geodesic, with their flow Jacobians."""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Float

from kunita import numerics
from kunita.flow.shooting import (
    Phase,
    Phases,
    Trajectory,
    check_trajectory,
    identities,
    prepend,
    stages,
    velocities,
)
from kunita.jaxrun.doors import Array, ArrayLike, Scalar, as_points, door
from kunita.kernels import AbstractKernel

State = tuple[Float[Array, "m d"], Float[Array, "m d d"]]
"""Positions and flow Jacobians of carried points at one instant."""


class Path(eqx.Module):
    """Points carried by a flow, at every time of a trajectory's grid.

    Args:
        positions: z(t).
        jacobians: J(t), of the flow from time 0 to time t.
    """

    positions: Float[Array, "t m d"]
    jacobians: Float[Array, "t m d d"]


def propagators(path: Path) -> Float[Array, "t m d d"]:
    """Ψ(t) = J(1) J(t)⁻¹, which carries a displacement at time t to time 1."""
    return path.jacobians[-1] @ numerics.inverse_small(path.jacobians)


def displacements(
    weights: Float[Array, " t"], psi: Float[Array, "t n d d"], velocities: Float[Array, "t n d"]
) -> Float[Array, "n d"]:
    """∫ Ψ v dt: how far velocities along a path carry its points, to first order."""
    return jnp.einsum("t,tiab,tib->ia", weights, psi, velocities)


def carry(kernel: AbstractKernel, trajectory: Trajectory, points: Float[Array, "m d"]) -> Path:
    """Integrate ż = v(z) and J̇ = Dv(z)J for points that the landmarks' flow carries.

    The points are stepped at the same stages as the landmarks. So a point that starts at a
    landmark follows it to the last digit.
    """
    rates = functools.partial(carried_rates, kernel)

    def step(state: State, node: tuple[Phases, Scalar]) -> tuple[State, State]:
        landmarks, h = node
        new = numerics.staged_rk4_step(rates, state, landmarks, h)
        return new, new

    start = (points, identities(points))
    nodes = (stages(kernel, trajectory), trajectory.step_lengths)
    _, later = jax.lax.scan(step, start, nodes)
    positions, jacobians = prepend(start, later)
    return Path(positions, jacobians)


carry_jit = jax.jit(carry)


def carried_rates(kernel: AbstractKernel, state: State, landmarks: Phase) -> State:
    """Compute ż = v(z) and J̇ = Dv(z)J."""
    z, jacobian = state
    q, p = landmarks
    v, dv = velocities(kernel, q, p, z)
    return v, dv @ jacobian


def landmark_path(trajectory: Trajectory) -> Path:
    """The landmarks themselves as carried points."""
    return Path(trajectory.positions, trajectory.jacobians)


@door
def transport(kernel: Any, trajectory: Any, points: ArrayLike) -> Path:
    """Carry points along a trajectory; along `reverse(kernel, trajectory)` for the inverse map.

    Args:
        kernel: the kernel that the trajectory was shot with.
        trajectory: from `shoot` or `reverse`.
        points: (m, d), mm.
    """
    check_trajectory(kernel, trajectory)
    dimension = trajectory.positions.shape[-1]
    checked = as_points(points, "points", dimension)
    return carry_jit(kernel, trajectory, checked)
