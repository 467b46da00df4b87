"""Mean and covariance of the stochastic flow: the moment equations and their closures.

For points that move by dx = v_t(x)dt + dB_t(x), with v the mean velocity of a geodesic, the mean m
and the joint covariance Λ obey (`eq:phi-de-param-mean`, `eq:phi-de-param-2ndm` of [wassermann:14])

    ṁᵢ = E[v(xᵢ)],   Λ̇ = AΛ + ΛAᵀ + E[K(x)] ⊗ I_d,   A = blockdiag E[Dv(xᵢ)].

A closure approximates the expectations. Since v is a sum of kernels, it need only say what
E[k(δ + ξ)], ξ ~ N(0, P), is: for a point against the landmarks, whose positions are known, and for
a pair of points.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from kunita import numerics
from kunita.errors import ArgumentError
from kunita.flow import covariance, shooting, transport
from kunita.jaxrun.doors import Array, ArrayLike, Scalar, as_points, door
from kunita.kernels import AbstractKernel

MIN_STEPS = 40
"""Fewest time steps by default: the moments need more of them than the geodesic."""

Vector = Float[Array, " d"]
Square = Float[Array, "d d"]

State = tuple[Float[Array, "m d"], Float[Array, "m d m d"]]
"""Mean and joint covariance of points at one instant."""

PathState = tuple[Float[Array, "m d"], Float[Array, "m d m d"], Float[Array, "m d d"]]
"""Mean, joint covariance and propagator of points at one instant."""

JointState = tuple[shooting.Phase, Array, Array, Array]
"""The landmarks at one instant, and the three of `PathState`."""

ExpectedKernel = Callable[[AbstractKernel, Vector, Square], Scalar]
"""An approximation of E[k(δ + ξ)], ξ ~ N(0, P), as a function of k, δ and P."""

AddedDiffusion = Callable[[AbstractKernel, State], Float[Array, "..."]]
"""What a closure adds to the expected Gram matrix."""


class Moments(eqx.Module):
    """Mean and joint covariance of points carried by the flow.

    They are at time 1, or at each of the times asked for.
    """

    mean: Float[Array, "*t m d"]
    covariance: Float[Array, "..."]


# ------------------------------------------------------------------------- E[k(δ + ξ)], ξ ~ N(0, P)


def kernel_at_mean(kernel: AbstractKernel, difference: Vector, spread: Square) -> Scalar:
    """k(δ): the spread P is ignored (`frozen`)."""
    return kernel.value(jnp.sum(difference**2))


def kernel_second_order(kernel: AbstractKernel, difference: Vector, spread: Square) -> Scalar:
    """k(δ) + ½ tr(P ∇²k(δ)): Taylor's expansion to second order (`second`), for any kernel."""
    at_mean = kernel_at_mean(kernel, difference, spread)
    hessian = kernel.hessian(difference)
    trace = jnp.sum(spread * hessian)
    return at_mean + 0.5 * trace


def kernel_expected(kernel: AbstractKernel, difference: Vector, spread: Square) -> Scalar:
    """Σ w |I + P/v|^(−1/2) exp(−½ δᵀ(vI + P)⁻¹δ), the exact expectation (`gaussian`).

    The kernel is a mixture of Gaussians with weights w and variances v.
    """
    d = difference.shape[0]

    def expect_gaussian(weight: Scalar, variance: Scalar) -> Scalar:
        widened = variance * jnp.eye(d) + spread
        inverse = numerics.inverse_small(widened)
        determinant = jnp.linalg.det(inverse)
        shrinkage = jnp.sqrt(variance**d * determinant)
        exponent = -0.5 * difference @ inverse @ difference
        return weight * shrinkage * jnp.exp(exponent)

    weights, variances = kernel.scale_mixture()
    of_each = jax.vmap(expect_gaussian)(weights, variances)
    return jnp.sum(of_each)


# -------------------------------------------------------------------------------- the expectations


def expected_velocity(
    kernel: AbstractKernel,
    closure: ExpectedKernel,
    phase: shooting.Phase,
    mean: Vector,
    spread: Square,
) -> Vector:
    """E[v(x)] = Σⱼ E[k(x, qⱼ)] pⱼ for x ~ N(mean, spread)."""
    q, p = phase
    expect = jax.vmap(lambda qj: closure(kernel, mean - qj, spread))
    return expect(q) @ p


def expected_gram(
    kernel: AbstractKernel, closure: ExpectedKernel, state: State
) -> Float[Array, "m m"]:
    """E[k(xᵢ, xⱼ)], from the distribution of the difference xᵢ − xⱼ."""
    mean, cov = state
    differences = mean[:, None] - mean[None, :]
    spreads = difference_covariances(cov)

    def expect(difference: Vector, spread: Square) -> Scalar:
        return closure(kernel, difference, spread)

    return jax.vmap(jax.vmap(expect))(differences, spreads)


def difference_covariances(cov: Float[Array, "m d m d"]) -> Float[Array, "m m d d"]:
    """Pᵢⱼ = Λᵢᵢ + Λⱼⱼ − Λᵢⱼ − Λⱼᵢ, the covariance of xᵢ − xⱼ."""
    blocks = cov.transpose(0, 2, 1, 3)
    diagonal = jnp.einsum("iiab->iab", blocks)
    of_both = diagonal[:, None] + diagonal[None, :]
    swapped = blocks.transpose(1, 0, 2, 3)
    return of_both - blocks - swapped


def root_correction(kernel: AbstractKernel, state: State) -> Float[Array, "m m"]:
    """T = Σ_αβ Λ_αβ (∂_αR)(∂_βR)ᵀ over all nd coordinates: the paper's S-terms (`ll`).

    R is the symmetric root of K(m). E[R(x)R(x)ᵀ] with R linearised at the mean is K + T
    (`eq:phi-ll-2ndm` of [wassermann:14], whose Sⁱ are the ∂_αR; the printed S E[φφᵀ] Sᵀ must read
    Σ Sⁱ E[φᵢφⱼ] Sʲᵀ). *Defect*: it keeps first derivatives of the root and drops second ones, so it
    depends on which root is taken.
    """
    mean, cov = state
    n, d = mean.shape
    root = numerics.symmetric_root(kernel.gram(mean, mean))

    def differentiate(i: Int[Array, ""], axis: Int[Array, ""]) -> Float[Array, "n n"]:
        change = gram_derivative(kernel, mean, i, axis)
        return root_derivative(root, change)

    coordinates = jnp.arange(n * d)
    points, axes = jnp.divmod(coordinates, d)
    derivatives = jax.vmap(differentiate)(points, axes)
    joint = cov.reshape(n * d, n * d)
    weighted = jnp.tensordot(joint, derivatives, axes=1)
    return jnp.einsum("aij,akj->ik", derivatives, weighted)


def root_derivative(
    root: tuple[Float[Array, "n n"], Float[Array, " n"]], change: Float[Array, "n n"]
) -> Float[Array, "n n"]:
    """∂R = U[(Uᵀ ∂K U)ᵢⱼ / (√wᵢ + √wⱼ)]Uᵀ, which follows from R² = K.

    Args:
        root: U and √w, with K = U diag(w) Uᵀ.
        change: ∂K.
    """
    vectors, values = root
    rotated = vectors.T @ change @ vectors
    sums = values[:, None] + values
    return vectors @ (rotated / sums) @ vectors.T


def gram_derivative(
    kernel: AbstractKernel, points: Float[Array, "n d"], i: Int[Array, ""], axis: Int[Array, ""]
) -> Float[Array, "n n"]:
    """∂K/∂xᵢ along one axis; only row and column i change."""
    n = len(points)
    difference = points[i] - points
    squares = jnp.sum(difference**2, axis=1)
    row = kernel.slope(squares) * difference[:, axis]
    changed = jnp.zeros((n, n))
    changed = changed.at[i].add(row)
    return changed.at[:, i].add(row)


# ----------------------------------------------------------------------------- the moment equations


def no_diffusion(kernel: AbstractKernel, state: State) -> Float[Array, ""]:
    """Nothing is added to the expected Gram matrix."""
    return jnp.zeros(())


class Closure(NamedTuple):
    """An approximation of the expectations in the moment equations.

    Args:
        expected_kernel: what stands for E[k].
        added_diffusion: what is added to E[K].
    """

    expected_kernel: ExpectedKernel
    added_diffusion: AddedDiffusion = no_diffusion


CLOSURES = {
    "frozen": Closure(kernel_at_mean),
    "ll": Closure(kernel_at_mean, root_correction),
    "second": Closure(kernel_second_order),
    "gaussian": Closure(kernel_expected),
}


class MomentTerms(NamedTuple):
    """What a closure puts into the moment equations.

    Args:
        drift: ṁ.
        gradients: the blocks of A = ∂ṁ/∂m.
        gram: E[K].
    """

    drift: Float[Array, "m d"]
    gradients: Float[Array, "m d d"]
    gram: Float[Array, "m m"]


def moment_field(
    kernel: AbstractKernel, closure: str, phase: shooting.Phase, state: State
) -> MomentTerms:
    """Compute the terms of the moment equations at one instant.

    Args:
        kernel: the prior's covariance function.
        closure: one of `CLOSURES`.
        phase: positions and momenta of the landmarks.
        state: mean and covariance of the points.
    """
    mean, cov = state
    expected, added = CLOSURES[closure]
    drift = lambda m, s: expected_velocity(kernel, expected, phase, m, s)
    spread = jnp.einsum("iaib->iab", cov)
    return MomentTerms(
        gram=expected_gram(kernel, expected, state) + added(kernel, state),
        drift=jax.vmap(drift)(mean, spread),
        gradients=jax.vmap(jax.jacfwd(drift))(mean, spread),
    )


def on_every_axis(gram: Float[Array, "m m"], d: int) -> Float[Array, "m d m d"]:
    """K ⊗ I_d, in the layout of a joint covariance."""
    return jnp.einsum("ij,ab->iajb", gram, jnp.eye(d))


def covariance_rate(terms: MomentTerms, cov: Float[Array, "m d m d"]) -> Float[Array, "m d m d"]:
    """Λ̇ = AΛ + ΛAᵀ + E[K] ⊗ I_d."""
    a_cov = jnp.einsum("iab,ibjc->iajc", terms.gradients, cov)
    transposed = a_cov.transpose(2, 3, 0, 1)
    diffusion = on_every_axis(terms.gram, cov.shape[1])
    return a_cov + transposed + diffusion


def moment_path(
    kernel: AbstractKernel,
    closure: str,
    trajectory: shooting.Trajectory,
    points: Float[Array, "m d"],
) -> tuple[Float[Array, "t m d"], Float[Array, "t m d m d"], Float[Array, "t m d d"]]:
    """Integrate mean, covariance and propagator Ψ̇ = AΨ over the trajectory's grid of times.

    The landmarks are stepped along, so that the stages of a step meet them where they are.
    """
    rates = functools.partial(joint_rates, kernel, closure)

    def step(state: PathState, node: tuple[shooting.Phase, Scalar]) -> tuple[PathState, PathState]:
        phase, h = node
        _, *new = numerics.rk4_step(rates, (phase, *state), h)
        return tuple(new), tuple(new)

    start = (*certain(points), shooting.identities(points))
    nodes = (trajectory.starts, trajectory.step_lengths)
    _, later = jax.lax.scan(step, start, nodes)
    return shooting.prepend(start, later)


def joint_rates(kernel: AbstractKernel, closure: str, state: JointState) -> JointState:
    """The rates of change of landmarks, mean, covariance and propagator."""
    phase, mean, cov, psi = state
    terms = moment_field(kernel, closure, phase, (mean, cov))
    return (
        shooting.hamiltonian_field(kernel, phase),
        terms.drift,
        covariance_rate(terms, cov),
        terms.gradients @ psi,
    )


moment_path_jit = jax.jit(moment_path, static_argnums=1)


def certain(points: Float[Array, "m d"]) -> State:
    """The state in which points start: their positions are known."""
    m, d = points.shape
    return points, jnp.zeros((m, d, m, d))


def euler_moments(
    kernel: AbstractKernel,
    closure: str,
    trajectory: shooting.Trajectory,
    points: Float[Array, "m d"],
) -> State:
    """The same moments on the Euler–Maruyama scheme's own grid, for comparison with `simulate`.

    m ← m + h E[v],  Λ ← (I + hA)Λ(I + hA)ᵀ + h E[K] ⊗ I_d: exact for the discrete chain where the
    drift is linear.
    """

    def step(state: State, node: tuple[shooting.Phase, Scalar]) -> tuple[State, None]:
        phase, h = node
        terms = moment_field(kernel, closure, phase, state)
        return euler_step(terms, state, h), None

    nodes = (trajectory.starts, trajectory.step_lengths)
    return jax.lax.scan(step, certain(points), nodes)[0]


def euler_step(terms: MomentTerms, state: State, h: Scalar) -> State:
    """m + h E[v] and (I + hA)Λ(I + hA)ᵀ + h E[K] ⊗ I_d."""
    mean, cov = state
    d = mean.shape[1]
    b = jnp.eye(d) + h * terms.gradients
    carried = carried_covariance(b, cov)
    diffused = h * on_every_axis(terms.gram, d)
    return mean + h * terms.drift, carried + diffused


def carried_covariance(
    b: Float[Array, "m d d"], cov: Float[Array, "m d m d"]
) -> Float[Array, "m d m d"]:
    """BΛBᵀ, with B block-diagonal."""
    return jnp.einsum("iab,ibjc,jdc->iajd", b, cov, b)


# ----------------------------------------------------------------------------------------- the door


@door
def moments(
    kernel: Any,
    positions: ArrayLike,
    momenta: ArrayLike,
    points: ArrayLike | None = None,
    closure: str = "frozen",
    times: ArrayLike | None = None,
    *,
    num_steps: int | None = None,
) -> Moments:
    """Mean and joint covariance of points that move with the Brownian flow around a geodesic.

    Args:
        kernel: the prior's covariance function.
        positions, momenta: (n, d), the start of the geodesic whose velocity is the mean velocity.
        points: (m, d) points that move; by default the positions.
        closure: "frozen" (closed form, fast), "ll" (the paper's local linearisation, O(n⁴d²) a
            step), "second" (Taylor), or "gaussian" (exact expectations under the current Gaussian;
            the most accurate).
        times: times in [0, 1]; the result then has a leading time axis, and the covariance one for
            each of its sides, (t, m, d, t, m, d). By default the moments at time 1, (m, d) and
            (m, d, m, d).
        num_steps: steps of the time grid; by default at least 40, and enough for the energy not to
            drift.
    """
    check_closure(closure)
    settled = shooting.shoot(kernel, positions, momenta, num_steps)
    q, p = settled.at(0)
    starts = q if points is None else points
    x = as_points(starts, "points", q.shape[1])
    stops = shooting.stop_times(1.0 if times is None else times)

    if num_steps is None:
        num_steps = max(settled.num_steps, MIN_STEPS)
    grid = numerics.time_grid(num_steps, stops)
    trajectory = shooting.geodesic_jit(kernel, q, p, jnp.asarray(grid))

    if closure == "frozen":
        found = moments_in_closed_form(kernel, trajectory, x, stops)
    else:
        found = moments_by_integration(kernel, closure, trajectory, x, stops)
    if times is not None:
        return found
    return Moments(found.mean[0], found.covariance[0, :, :, 0])


def check_closure(closure: str) -> None:
    """Refuse a closure that does not exist."""
    if closure not in CLOSURES:
        names = ", ".join(CLOSURES)
        raise ArgumentError(f"closure: expected one of {names}, found {closure!r}")


def moments_in_closed_form(
    kernel: AbstractKernel,
    trajectory: shooting.Trajectory,
    points: Float[Array, "m d"],
    stops: np.ndarray,
) -> Moments:
    """The moments at some times under the closure `frozen`: see `covariance.py`."""
    times = np.asarray(trajectory.times)
    path = transport.carry_jit(kernel, trajectory, points)
    index = np.searchsorted(times, stops)
    joint = covariance.flow_covariance_in_time(kernel, times, stops, path)
    return Moments(path.positions[index], joint)


def moments_by_integration(
    kernel: AbstractKernel,
    closure: str,
    trajectory: shooting.Trajectory,
    points: Float[Array, "m d"],
    stops: np.ndarray,
) -> Moments:
    """The moments at some times under any other closure."""
    times = np.asarray(trajectory.times)
    index = np.searchsorted(times, stops)
    mean, cov, psi = moment_path_jit(kernel, closure, trajectory, points)
    joint = two_time_covariance(stops, cov[index], psi[index])
    return Moments(mean[index], joint)


def two_time_covariance(
    stops: np.ndarray, cov: Float[Array, "t n d n d"], psi: Float[Array, "t n d d"]
) -> Float[Array, "t n d t n d"]:
    """Λ_ts = Λ_tt Ψ(s, t)ᵀ for t ≤ s: the regression of the later on the earlier time.

    Ψ(s, t) = Ψ(s)Ψ(t)⁻¹ carries a displacement from time t to time s.
    """
    inverse = numerics.inverse_small(psi)
    onward = jnp.einsum("snab,tnbc->tsnac", psi, inverse)
    # Each of the two halves is right where its first time is the earlier one.
    forward = jnp.einsum("tiajb,tsjcb->tiasjc", cov, onward)
    backward = forward.transpose(3, 4, 5, 0, 1, 2)
    later = jnp.asarray(stops[:, None] <= stops)
    of_entries = later[:, None, None, :, None, None]
    return jnp.where(of_entries, forward, backward)
