"""Carry any points along a geodesic, with their flow Jacobians."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Float

from kunita import numerics
from kunita.flow.shooting import Phase, Trajectory, check_trajectory, stages, velocities
from kunita.jaxrun.doors import Array, ArrayLike, as_points, door
from kunita.kernels import AbstractKernel


class Path(eqx.Module):
    """Points carried by a flow: their positions and flow Jacobians on the trajectory's grid of
    times.
    """

    positions: Float[Array, "t m d"]
    jacobians: Float[Array, "t m d d"]


def propagators(path: Path) -> Float[Array, "t m d d"]:
    """Ψ(t) = J(1) J(t)⁻¹, which carries a displacement at time t to time 1."""
    return path.jacobians[-1] @ numerics.inverse_small(path.jacobians)


def carry(kernel: AbstractKernel, trajectory: Trajectory, points: Float[Array, "m d"]) -> Path:
    """ż = v(z), J̇ = Dv(z)J: passengers, i.e. landmarks of momentum zero, stepped together with the
    landmarks.

    So a passenger that starts at a landmark follows it to the last digit.
    """
    m, d = points.shape

    def field(state: tuple[Array, Array], met: Phase) -> tuple[Array, Array]:
        z, jacobian = state
        v, dv = velocities(kernel, *met, z)
        return v, dv @ jacobian

    def step(
        state: tuple[Array, Array], node: tuple[tuple[Array, Array], Array]
    ) -> tuple[tuple, tuple]:
        new = numerics.staged_rk4_step(field, state, *node)
        return new, new

    start = (points, jnp.broadcast_to(jnp.eye(d), (m, d, d)))
    _, path = jax.lax.scan(step, start, (stages(kernel, trajectory), jnp.diff(trajectory.times)))
    return Path(
        *jax.tree.map(lambda first, rest: jnp.concatenate([first[None], rest]), start, path)
    )


carry_jit = jax.jit(carry)


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
    return carry_jit(
        kernel, trajectory, as_points(points, "points", trajectory.positions.shape[-1])
    )
