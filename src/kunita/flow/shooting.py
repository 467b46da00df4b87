"""Geodesic shooting: the mean flow and its Jacobians, from initial positions and momenta."""

import functools
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

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
"""Runge–Kutta steps beyond which no more are tried."""

TINY = np.finfo(float).tiny
"""Added to a denominator that is zero where nothing moves."""

Phase = tuple[Float[Array, "n d"], Float[Array, "n d"]]
"""Positions and momenta at one instant."""

Phases = tuple[Float[Array, "... d"], Float[Array, "... d"]]
"""Positions and momenta at several instants, and at the stages between them."""

FlowState = tuple[Float[Array, "n d"], Float[Array, "n d"], Float[Array, "n d d"]]
"""Positions, momenta and flow Jacobians at one instant."""

Velocity = Callable[[Array, Array], tuple[Array, Array]]
"""A function of positions and momenta: the velocity v at the positions, and its gradient Dv."""


class Trajectory(eqx.Module):
    """A geodesic on a grid of times over [0, 1].

    Args:
        times: the grid.
        positions: q(t), of the landmarks.
        momenta: p(t).
        jacobians: J(t), of the flow at the landmarks.
        energies: H(t).
        middles: positions and momenta halfway through each step. They are needed where the momenta
            do not obey the geodesic equations, as those of control points do not.
        guided: whether the velocity comes from control points, which conserve no energy.
    """

    times: Float[Array, " t"]
    positions: Float[Array, "t n d"]
    momenta: Float[Array, "t n d"]
    jacobians: Float[Array, "t n d d"]
    energies: Float[Array, " t"]
    middles: tuple[Float[Array, "s n d"], Float[Array, "s n d"]] | None = None
    guided: bool = eqx.field(static=True, default=False)

    @property
    def drift(self) -> Scalar:
        """The measured error of the time steps: by how much an invariant changes, relatively."""
        if self.guided:
            return momentum_drift(self.jacobians, self.momenta)
        return energy_drift(self.energies)

    @property
    def num_steps(self) -> int:
        """Number of time steps."""
        return len(self.times) - 1

    @property
    def step_lengths(self) -> Float[Array, " s"]:
        """Length of every time step."""
        return jnp.diff(self.times)

    @property
    def starts(self) -> Phases:
        """Positions and momenta at the start of every step."""
        return self.positions[:-1], self.momenta[:-1]

    @property
    def ends(self) -> Phases:
        """Positions and momenta at the end of every step."""
        return self.positions[1:], self.momenta[1:]

    def at(self, node: int) -> Phase:
        """Positions and momenta at one of the times."""
        return self.positions[node], self.momenta[node]


def energy_drift(energies: Float[Array, " t"]) -> Scalar:
    """max|H(t) − H(0)| / H(0)."""
    start = energies[0]
    change = abs(energies - start).max()
    return change / (abs(start) + TINY)


def momentum_drift(jacobians: Float[Array, "t n d d"], momenta: Float[Array, "t n d"]) -> Scalar:
    """Largest error of the invariant J(t)ᵀp(t) = p(0), relative to the largest momentum."""
    start = momenta[0]
    pulled_back = jnp.einsum("tiba,tib->tia", jacobians, momenta)
    error = abs(pulled_back - start).max()
    largest = abs(start).max()
    return error / (largest + TINY)


# ------------------------------------------------------------------------------------ the velocity


def velocities(
    kernel: AbstractKernel,
    positions: Float[Array, "n d"],
    momenta: Float[Array, "n d"],
    points: Float[Array, "m d"],
) -> tuple[Float[Array, "m d"], Float[Array, "m d d"]]:
    """Evaluate the velocity field of a set of landmarks, and its gradient.

    v(x) = Σⱼ k(x, qⱼ)pⱼ and Dv(x) = Σⱼ gⱼ pⱼ(x − qⱼ)ᵀ, with g = k'(r)/r.

    Args:
        kernel: the prior's covariance function.
        positions: qⱼ.
        momenta: pⱼ.
        points: where the field is evaluated.
    """
    # Dv is a difference of two large terms (see `velocity_gradients`): with the origin at the
    # landmarks' mean nothing is lost in it.
    origin = jnp.mean(positions, axis=0)
    q = positions - origin
    x = points - origin
    loads = slope_loads(q, momenta)
    v, sums = kernel.sums(x, q, momenta, loads)
    return v, velocity_gradients(sums, x)


def slope_loads(
    positions: Float[Array, "*b n d"], momenta: Float[Array, "*b n d"]
) -> Float[Array, "*b n e"]:
    """Put pⱼ and pⱼqⱼᵀ side by side: the rows that Dv sums, each times the kernel's slope."""
    *others, d = momenta.shape
    outer = momenta[..., :, None] * positions[..., None, :]
    # The last axis is written out: a trajectory without steps has no elements to infer it from.
    flat = outer.reshape(*others, d**2)
    return jnp.concatenate([momenta, flat], axis=-1)


def velocity_gradients(
    sums: Float[Array, "m e"], points: Float[Array, "m d"]
) -> Float[Array, "m d d"]:
    """Compute Dv(x) = (Σⱼ gⱼpⱼ)xᵀ − Σⱼ gⱼpⱼqⱼᵀ from the sums of `slope_loads`."""
    d = points.shape[1]
    gp, gpq = jnp.split(sums, [d], axis=1)
    gpx = gp[:, :, None] * points[:, None, :]
    return gpx - gpq.reshape(gpx.shape)


def velocities_alone(
    kernel: AbstractKernel,
    positions: Float[Array, "n d"],
    momenta: Float[Array, "n d"],
    points: Float[Array, "m d"],
) -> Float[Array, "m d"]:
    """Evaluate v(x) = Σⱼ k(x, qⱼ)pⱼ without its gradient."""
    nothing = momenta[:, :0]
    v, _ = kernel.sums(points, positions, momenta, nothing)
    return v


def hamiltonian(
    kernel: AbstractKernel, positions: Float[Array, "n d"], momenta: Float[Array, "n d"]
) -> Scalar:
    """The energy H = ½ Σᵢⱼ k(qᵢ, qⱼ) pᵢ·pⱼ, constant along a geodesic."""
    q = positions - jnp.mean(positions, axis=0)
    v = velocities_alone(kernel, q, momenta, q)
    power = jnp.sum(momenta * v)
    return 0.5 * power


def hamiltonian_field(kernel: AbstractKernel, phase: Phase) -> Phase:
    """The geodesic equations q̇ᵢ = v(qᵢ), ṗᵢ = −Dv(qᵢ)ᵀpᵢ."""
    q, p = phase
    v, dv = velocities(kernel, q, p, q)
    return v, momentum_rates(dv, p)


def momentum_rates(
    gradients: Float[Array, "n d d"], momenta: Float[Array, "n d"]
) -> Float[Array, "n d"]:
    """Compute ṗᵢ = −Dv(qᵢ)ᵀpᵢ."""
    return -jnp.einsum("iab,ia->ib", gradients, momenta)


# ------------------------------------------------------------------------------------ the geodesic


class FlowPath(NamedTuple):
    """What `integrate_flow` finds at every instant; see `Trajectory`."""

    positions: Float[Array, "t n d"]
    momenta: Float[Array, "t n d"]
    jacobians: Float[Array, "t n d d"]
    energies: Float[Array, " t"]


def integrate_flow(
    velocity: Velocity,
    positions: Float[Array, "n d"],
    momenta: Float[Array, "n d"],
    times: Float[Array, " t"],
) -> FlowPath:
    """Integrate q̇ = v, ṗ = −Dvᵀp and J̇ = DvJ over a grid of times.

    The energies H = ½ Σᵢ pᵢ·vᵢ come with it, since every step knows the velocity where it begins.
    """
    rates = functools.partial(flow_rates, velocity)

    def step(state: FlowState, h: Scalar) -> tuple[FlowState, tuple[FlowState, Array]]:
        slope = rates(state)
        new = numerics.rk4_step(rates, state, h, slope)
        return new, (new, slope[0])

    start = (positions, momenta, identities(positions))
    end, (later, v) = jax.lax.scan(step, start, jnp.diff(times))
    q, p, jacobians = prepend(start, later)

    end_v, _ = velocity(end[0], end[1])
    v = jnp.concatenate([v, end_v[None]])
    return FlowPath(
        positions=q,
        momenta=p,
        jacobians=jacobians,
        energies=0.5 * jnp.sum(p * v, axis=(1, 2)),
    )


def identities(points: Float[Array, "m d"]) -> Float[Array, "m d d"]:
    """The Jacobians at the start of a flow: the identity for every point."""
    m, d = points.shape
    return jnp.broadcast_to(jnp.eye(d), (m, d, d))


def flow_rates(velocity: Velocity, state: FlowState) -> FlowState:
    """Compute q̇ = v, ṗ = −Dvᵀp and J̇ = DvJ."""
    q, p, jacobian = state
    v, dv = velocity(q, p)
    return v, momentum_rates(dv, p), dv @ jacobian


def prepend(first: Any, rest: Any) -> Any:
    """Put the first state before the later ones that a scan has stacked."""

    def join(one: Array, others: Array) -> Array:
        return jnp.concatenate([one[None], others])

    return jax.tree.map(join, first, rest)


def geodesic(
    kernel: AbstractKernel,
    positions: Float[Array, "n d"],
    momenta: Float[Array, "n d"],
    times: Float[Array, " t"],
) -> Trajectory:
    """Shoot along a given grid of times, carrying the flow Jacobians J̇ᵢ = Dv(qᵢ)Jᵢ along."""

    def velocity(q: Array, p: Array) -> tuple[Array, Array]:
        return velocities(kernel, q, p, q)

    return Trajectory(times, *integrate_flow(velocity, positions, momenta, times))


geodesic_jit = jax.jit(geodesic)


def endpoint(
    kernel: AbstractKernel,
    positions: Float[Array, "n d"],
    momenta: Float[Array, "n d"],
    times: Float[Array, " t"],
) -> Phase:
    """(q(1), p(1)), for the derivatives of the objective.

    Reverse mode recomputes the steps instead of storing them.
    """

    def field(phase: Phase) -> Phase:
        return hamiltonian_field(kernel, phase)

    @jax.checkpoint
    def step(phase: Phase, h: Scalar) -> tuple[Phase, None]:
        return numerics.compact_rk4_step(field, phase, h), None

    start = (positions, momenta)
    return jax.lax.scan(step, start, jnp.diff(times))[0]


# ---------------------------------------------------------------- what others meet, there and back


def stages(
    kernel: AbstractKernel, trajectory: Trajectory
) -> tuple[Float[Array, "s 4 n d"], Float[Array, "s 4 n d"]]:
    """Positions and momenta of the landmarks at the four stages of every Runge–Kutta step.

    Other points that the flow carries meet the landmarks there.
    """
    if trajectory.middles is not None:
        middles = trajectory.middles
        four = [trajectory.starts, middles, middles, trajectory.ends]
        return _stack_phases(four, axis=1)
    of_step = functools.partial(_stages_of_step, kernel)
    return jax.lax.map(of_step, (trajectory.starts, trajectory.step_lengths))


def _stages_of_step(kernel: AbstractKernel, step: tuple[Phase, Scalar]) -> Phases:
    """Where the classical Runge–Kutta method evaluates the geodesic equations in one step."""
    start, h = step
    four = [start]
    for share in (0.5, 0.5, 1.0):
        slope = hamiltonian_field(kernel, four[-1])
        four.append(_shift_phase(start, share * h, slope))
    return _stack_phases(four, axis=0)


def _shift_phase(phase: Phase, h: Scalar, slope: Phase) -> Phase:
    """Take a step of length h along a slope."""
    q, p = phase
    q_rate, p_rate = slope
    return q + h * q_rate, p + h * p_rate


def _stack_phases(phases: list[Phases], axis: int) -> Phases:
    """Make one array of all positions, and one of all momenta."""
    positions, momenta = zip(*phases, strict=True)
    return jnp.stack(positions, axis=axis), jnp.stack(momenta, axis=axis)


def backwards(trajectory: Trajectory) -> Trajectory:
    """The same trajectory walked from its end, node by node, with nothing integrated again.

    Points that are carried along it take the inverse of the flow. The momenta change sign, and the
    Jacobians are those of the inverse flow, J(t)J(1)⁻¹.
    """
    middles = None
    if trajectory.middles is not None:
        positions, momenta = trajectory.middles
        middles = (positions[::-1], -momenta[::-1])
    inverse = numerics.inverse_small(trajectory.jacobians[-1])
    return Trajectory(
        times=1 - trajectory.times[::-1],
        positions=trajectory.positions[::-1],
        momenta=-trajectory.momenta[::-1],
        jacobians=trajectory.jacobians[::-1] @ inverse,
        energies=trajectory.energies[::-1],
        middles=middles,
    )


def standstill(positions: Float[Array, "n d"]) -> Trajectory:
    """The flow that does not move, at a single instant.

    The small-deformation model is linearised around it.
    """
    return Trajectory(
        times=jnp.ones(1),
        positions=positions[None],
        momenta=jnp.zeros((1, *positions.shape)),
        jacobians=identities(positions)[None],
        energies=jnp.zeros(1),
    )


# ----------------------------------------------------------------------- the number of time steps


def enough_steps(num_steps: int, drift: float, limit: float = MAX_DRIFT) -> int:
    """How many steps bring the energy drift below a limit, given the drift of `num_steps`.

    The number is `num_steps` doubled as often as necessary, at most `MAX_STEPS`. The method is of
    order four. Fewer steps are proposed only where they are certain to suffice.
    """
    if drift <= limit:
        # Half of the steps make the drift 16 times larger; 32 is on the safe side.
        while num_steps > DEFAULT_STEPS and drift < limit / 100:
            num_steps //= 2
            drift *= 32
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
    """Shoot with as many steps as keep the energy drift below `MAX_DRIFT`, up to `MAX_STEPS`."""
    while True:
        times = jnp.asarray(numerics.time_grid(num_steps))
        trajectory = geodesic_jit(kernel, positions, momenta, times)
        enough = enough_steps(num_steps, float(trajectory.drift))
        if enough <= num_steps:
            return trajectory
        num_steps = enough


# --------------------------------------------------------------------------------------- the doors


@door
def shoot(
    kernel: Any, positions: ArrayLike, momenta: ArrayLike, num_steps: int | None = None
) -> Trajectory:
    """Follow the geodesic that starts at `positions` with `momenta` over t ∈ [0, 1].

    It is the mean of the flow under the model (`eq:long-diff` of [wassermann:14] with the shooting
    of its section on registration): q̇ᵢ = v(qᵢ), ṗᵢ = −Dv(qᵢ)ᵀpᵢ, J̇ᵢ = Dv(qᵢ)Jᵢ,
    v(x) = Σⱼ k(x, qⱼ)pⱼ.

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
        times = numerics.time_grid(as_count(num_steps, "num_steps"))
        trajectory = geodesic_jit(kernel, q, p, jnp.asarray(times))
    if not np.isfinite(trajectory.energies).all():
        raise ArgumentError(
            "momenta: the flow runs out of the range of numbers; "
            "they are too large, or the steps too few"
        )
    if num_steps is None and trajectory.drift > MAX_DRIFT:
        drift = float(trajectory.drift)
        message = f"the energy drifts by {drift:.0e} even with {trajectory.num_steps} time steps"
        warnings.warn(message, KunitaWarning, stacklevel=3)
    return trajectory


@door
def reverse(kernel: Any, trajectory: Any) -> Trajectory:
    """The same geodesic walked backwards, from q(1) with momenta −p(1): it has the inverse flow."""
    check_trajectory(kernel, trajectory)
    if trajectory.middles is not None:
        return backwards(trajectory)
    end = trajectory.positions[-1]
    times = 1 - trajectory.times[::-1]
    return geodesic_jit(kernel, end, -trajectory.momenta[-1], times)


def check_trajectory(kernel: object, trajectory: object) -> None:
    """Refuse what is not a kernel and a trajectory, in this order."""
    check_kernel(kernel)
    if not isinstance(trajectory, Trajectory):
        raise ArgumentError(f"trajectory: expected what shoot returns, found {trajectory!r:.80}")


def check_phase(kernel: object, positions: ArrayLike, momenta: ArrayLike) -> Phase:
    """Refuse a kernel, positions and momenta that do not fit together."""
    check_kernel(kernel)
    q = as_points(positions, "positions")
    p = as_points(momenta, "momenta")
    if q.shape != p.shape:
        raise ArgumentError(f"momenta: expected the shape of positions {q.shape}, found {p.shape}")
    return q, p


def stop_times(times: ArrayLike) -> np.ndarray:
    """Check requested times: all must be within [0, 1]."""
    array = np.atleast_1d(as_floats(times, "times"))
    inside = (array >= 0) & (array <= 1)
    if array.ndim != 1 or not np.all(inside):
        raise ArgumentError(f"times: expected numbers in [0, 1], found {array.tolist()}")
    return array
