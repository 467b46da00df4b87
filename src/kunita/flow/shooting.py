"""Geodesic shooting: the mean flow and its Jacobians, from initial positions and momenta."""

import warnings
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from kunita import numerics
from kunita.errors import ArgumentError, KunitaWarning
from kunita.jaxrun.doors import Array, ArrayLike, Scalar, as_count, as_floats, as_points, door
from kunita.kernels import AbstractKernel, check_kernel

DEFAULT_STEPS = 10
"""Runge–Kutta steps to start with; doubled while the energy drifts more than `MAX_DRIFT`."""

MAX_DRIFT = 1e-8
"""Largest accepted max|H(t) − H(0)| / H(0)."""

MAX_STEPS = 320

Phase = tuple[Float[Array, "n d"], Float[Array, "n d"]]


class Trajectory(eqx.Module):
    """A geodesic: where the landmarks are, their momenta and flow Jacobians, on a grid of times
    over [0, 1].

    Where the momenta do not follow from those before (control points take over the momentum of
    others), `middles` are positions and momenta halfway through each step.
    """

    times: Float[Array, " t"]
    positions: Float[Array, "t n d"]
    momenta: Float[Array, "t n d"]
    jacobians: Float[Array, "t n d d"]
    energies: Float[Array, " t"]
    middles: tuple[Float[Array, "s n d"], Float[Array, "s n d"]] | None = None

    @property
    def drift(self) -> Scalar:
        """Relative energy drift, max|H(t) − H(0)| / H(0): the measured error of the time stepping."""
        start = self.energies[0]
        return abs(self.energies - start).max() / (abs(start) + np.finfo(float).tiny)

    @property
    def num_steps(self) -> int:
        return len(self.times) - 1

    def at(self, node: int) -> Phase:
        """Positions and momenta at one of the times."""
        return self.positions[node], self.momenta[node]


def velocities(
    kernel: AbstractKernel,
    positions: Float[Array, "n d"],
    momenta: Float[Array, "n d"],
    points: Float[Array, "m d"],
) -> tuple[Float[Array, "m d"], Float[Array, "m d d"]]:
    """The velocity field v(x) = Σⱼ k(x, qⱼ)pⱼ at some points, and its Jacobian Dv(x) = Σⱼ gⱼ pⱼ(x −
    qⱼ)ᵀ, g = k'/r.

    The sum is split into (Σⱼ gⱼpⱼ)xᵀ − Σⱼ gⱼpⱼqⱼᵀ, one matrix product, with the origin moved to the
    landmarks' mean so that nothing is lost in the difference.
    """
    origin = jnp.mean(positions, axis=0)
    q, p, x = positions - origin, momenta, points - origin
    pq = (p[:, :, None] * q[:, None, :]).reshape(len(q), -1)
    v, g = kernel.sums(x, q, p, jnp.concatenate([p, pq], axis=1))
    gp, gpq = jnp.split(g, [p.shape[1]], axis=1)
    return v, gp[:, :, None] * x[:, None, :] - gpq.reshape(*x.shape, -1)


def hamiltonian(
    kernel: AbstractKernel, positions: Float[Array, "n d"], momenta: Float[Array, "n d"]
) -> Scalar:
    """The energy H = ½ Σᵢⱼ k(qᵢ, qⱼ) pᵢ·pⱼ, constant along a geodesic."""
    q = positions - jnp.mean(positions, axis=0)
    return 0.5 * jnp.sum(momenta * kernel.sums(q, q, momenta, momenta[:, :0])[0])


def hamiltonian_field(kernel: AbstractKernel, phase: Phase) -> Phase:
    """q̇ᵢ = v(qᵢ), ṗᵢ = −Dv(qᵢ)ᵀ pᵢ: the geodesic equations."""
    q, p = phase
    v, dv = velocities(kernel, q, p, q)
    return v, -jnp.einsum("iab,ia->ib", dv, p)


def stages(
    kernel: AbstractKernel, trajectory: Trajectory
) -> tuple[Float[Array, "s 4 n d"], Float[Array, "s 4 n d"]]:
    """Positions and momenta at the four stages of every Runge–Kutta step: what others that are
    carried along meet.
    """
    phase = trajectory.positions[:-1], trajectory.momenta[:-1]
    if trajectory.middles is not None:
        after = trajectory.positions[1:], trajectory.momenta[1:]
        met = phase, trajectory.middles, trajectory.middles, after
        return jnp.stack([q for q, _ in met], axis=1), jnp.stack([p for _, p in met], axis=1)

    def step(phase: Phase, h: Scalar) -> tuple[Float[Array, "4 n d"], Float[Array, "4 n d"]]:
        met = [phase]
        for share in (0.5, 0.5, 1.0):
            slope = hamiltonian_field(kernel, met[-1])
            met.append(jax.tree.map(lambda y, k, c=share: y + c * h * k, phase, slope))
        return jnp.stack([q for q, _ in met]), jnp.stack([p for _, p in met])

    return jax.lax.map(lambda node: step(*node), (phase, jnp.diff(trajectory.times)))


def endpoint(
    kernel: AbstractKernel,
    positions: Float[Array, "n d"],
    momenta: Float[Array, "n d"],
    times: Float[Array, " t"],
) -> Phase:
    """(q(1), p(1)): what the derivatives of the objective need, with the steps recomputed in
    reverse mode.
    """

    @jax.checkpoint
    def step(phase: Phase, h: Scalar) -> tuple[Phase, None]:
        return numerics.compact_rk4_step(lambda y: hamiltonian_field(kernel, y), phase, h), None

    return jax.lax.scan(step, (positions, momenta), jnp.diff(times))[0]


def geodesic(
    kernel: AbstractKernel,
    positions: Float[Array, "n d"],
    momenta: Float[Array, "n d"],
    times: Float[Array, " t"],
) -> Trajectory:
    """Shoot along a given grid of times, carrying the flow Jacobians J̇ᵢ = Dv(qᵢ)Jᵢ along."""
    return Trajectory(
        times, *followed(lambda q, p: velocities(kernel, q, p, q), positions, momenta, times)
    )


def followed(
    velocity: Callable[[Array, Array], tuple[Array, Array]],
    positions: Float[Array, "n d"],
    momenta: Float[Array, "n d"],
    times: Float[Array, " t"],
) -> tuple[
    Float[Array, "t n d"], Float[Array, "t n d"], Float[Array, "t n d d"], Float[Array, " t"]
]:
    """q̇ = v, ṗ = −Dvᵀp and J̇ = DvJ along a grid of times, for a velocity (v, Dv) of positions and
    momenta.

    With the energies H = ½ Σ pᵢ·vᵢ at the same times: a step knows the velocity where it begins.
    """

    def field(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        q, p, jacobian = state
        v, dv = velocity(q, p)
        return v, -jnp.einsum("iab,ia->ib", dv, p), dv @ jacobian

    def step(state: tuple[Array, Array, Array], h: Scalar) -> tuple[tuple, tuple]:
        slope = field(state)
        new = numerics.rk4_step(field, state, h, slope)
        return new, (new, slope[0])

    n, d = positions.shape
    start = (positions, momenta, jnp.broadcast_to(jnp.eye(d), (n, d, d)))
    end, (path, v) = jax.lax.scan(step, start, jnp.diff(times))
    q, p, jacobian = jax.tree.map(
        lambda first, rest: jnp.concatenate([first[None], rest]), start, path
    )
    v = jnp.concatenate([v, velocity(*end[:2])[0][None]])
    return q, p, jacobian, 0.5 * jnp.sum(p * v, axis=(1, 2))


geodesic_jit = jax.jit(geodesic)


def enough_steps(num_steps: int, drift: float, limit: float = MAX_DRIFT) -> int:
    """How many steps (doubled, and at most `MAX_STEPS`) bring the measured drift below a limit; the
    order is 4.

    Fewer are proposed only where they will surely do.
    """
    if drift <= limit:
        while num_steps > DEFAULT_STEPS and drift < limit / 100:
            num_steps, drift = num_steps // 2, 32 * drift
        return num_steps
    wanted = num_steps * (drift / limit) ** 0.25 if np.isfinite(drift) else np.inf
    while num_steps < min(wanted, MAX_STEPS):
        num_steps *= 2
    return min(num_steps, MAX_STEPS)


def settle_steps(
    kernel: AbstractKernel,
    positions: Float[Array, "n d"],
    momenta: Float[Array, "n d"],
    num_steps: int = DEFAULT_STEPS,
) -> Trajectory:
    """Shoot, raising the steps until the measured energy drift is below `MAX_DRIFT` (or they are
    `MAX_STEPS`).
    """
    while True:
        trajectory = geodesic_jit(
            kernel, positions, momenta, jnp.asarray(numerics.time_grid(num_steps))
        )
        enough = enough_steps(num_steps, float(trajectory.drift))
        if enough <= num_steps:
            return trajectory
        num_steps = enough


@door
def shoot(
    kernel: Any, positions: ArrayLike, momenta: ArrayLike, num_steps: int | None = None
) -> Trajectory:
    """Follow the geodesic that starts at `positions` with `momenta` over t ∈ [0, 1].

    The mean of the flow under the model (`eq:long-diff` of [wassermann:14] with the shooting of its
    section on registration): q̇ᵢ = v(qᵢ), ṗᵢ = −Dv(qᵢ)ᵀpᵢ, J̇ᵢ = Dv(qᵢ)Jᵢ, v(x) = Σⱼ k(x, qⱼ)pⱼ.

    Args:
        kernel: the prior's covariance function.
        positions: (n, d) starting points, mm.
        momenta: (n, d) initial momenta, 1/mm.
        num_steps: Runge–Kutta steps; by default as many as keep the relative energy drift below
            1e-8.
    """
    q, p = check_phase(kernel, positions, momenta)
    if num_steps is None:
        trajectory = settle_steps(kernel, q, p)
    else:
        trajectory = geodesic_jit(
            kernel, q, p, jnp.asarray(numerics.time_grid(as_count(num_steps, "num_steps")))
        )
    if not np.isfinite(trajectory.energies).all():
        raise ArgumentError(
            "momenta: the flow runs out of the range of numbers; they are too large, or the steps too few"
        )
    if num_steps is None and trajectory.drift > MAX_DRIFT:
        message = f"the energy drifts by {float(trajectory.drift):.0e} even with {trajectory.num_steps} time steps"
        warnings.warn(message, KunitaWarning, stacklevel=3)
    return trajectory


def standstill(positions: Float[Array, "n d"]) -> Trajectory:
    """The flow that does not move, at a single instant: the small-deformation model linearises
    around it.
    """
    n, d = positions.shape
    still = jnp.zeros((1, n, d))
    eye = jnp.broadcast_to(jnp.eye(d), (1, n, d, d))
    return Trajectory(jnp.ones(1), positions[None], still, eye, jnp.zeros(1))


@door
def reverse(kernel: Any, trajectory: Any) -> Trajectory:
    """The same geodesic walked backwards: from q(1) with momenta −p(1). Its flow is the inverse
    flow.
    """
    check_trajectory(kernel, trajectory)
    if trajectory.middles is not None:
        return backwards(trajectory)
    return geodesic_jit(
        kernel, trajectory.positions[-1], -trajectory.momenta[-1], 1 - trajectory.times[::-1]
    )


def backwards(trajectory: Trajectory) -> Trajectory:
    """`reverse` for those who are carried along: the anchors are where they were on the way there,
    node by node.
    """
    middles = trajectory.middles and (trajectory.middles[0][::-1], -trajectory.middles[1][::-1])
    jacobians = trajectory.jacobians[::-1] @ numerics.inverse_small(trajectory.jacobians[-1])
    return Trajectory(
        1 - trajectory.times[::-1],
        trajectory.positions[::-1],
        -trajectory.momenta[::-1],
        jacobians,
        trajectory.energies[::-1],
        middles,
    )


def check_trajectory(kernel: object, trajectory: object) -> None:
    """Refuse what is not a kernel with a trajectory, in this order."""
    check_kernel(kernel)
    if not isinstance(trajectory, Trajectory):
        raise ArgumentError(f"trajectory: expected what shoot returns, found {trajectory!r:.80}")


def check_phase(kernel: object, positions: ArrayLike, momenta: ArrayLike) -> Phase:
    """Refuse a kernel, positions and momenta that do not fit together."""
    check_kernel(kernel)
    q, p = as_points(positions, "positions"), as_points(momenta, "momenta")
    if q.shape != p.shape:
        raise ArgumentError(f"momenta: expected the shape of positions {q.shape}, found {p.shape}")
    return q, p


def stop_times(times: ArrayLike) -> np.ndarray:
    """Check requested times: within [0, 1]."""
    array = np.atleast_1d(as_floats(times, "times"))
    if array.ndim != 1 or not np.all((array >= 0) & (array <= 1)):
        raise ArgumentError(f"times: expected numbers in [0, 1], found {array.tolist()}")
    return array
