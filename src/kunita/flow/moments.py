"""Mean and covariance of the stochastic flow: the moment equations and their closures.

For points that move by dx = v_t(x)dt + dB_t(x), with v the mean velocity of a geodesic, the mean m
and the joint covariance Λ obey (`eq:phi-de-param-mean`, `eq:phi-de-param-2ndm` of [wassermann:14])

    ṁᵢ = E[v(xᵢ)],   Λ̇ = AΛ + ΛAᵀ + E[K(x)] ⊗ I_d,   A = blockdiag E[Dv(xᵢ)].

A closure says what is put for the expectations. Since v is a sum of kernels, it need only say what
E[k(δ + ξ)], ξ ~ N(0, P), is: for a point against the (sure) landmarks, and for a pair of points.
"""

from collections.abc import Callable
from typing import Any

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

Vector = Float[Array, " d"]
Square = Float[Array, "d d"]
ExpectedKernel = Callable[[AbstractKernel, Vector, Square], Scalar]
State = tuple[Float[Array, "m d"], Float[Array, "m d m d"]]


class Moments(eqx.Module):
    """Mean and joint covariance of points carried by the flow: at time 1, or at each of the times
    asked for.
    """

    mean: Float[Array, "*t m d"]
    covariance: Float[Array, "..."]


# ------------------------------------------------------------------------- E[k(δ + ξ)], ξ ~ N(0, P)


def kernel_at_mean(kernel: AbstractKernel, difference: Vector, spread: Square) -> Scalar:
    """k(δ): the spread is ignored (`frozen`)."""
    return kernel.value(jnp.sum(difference**2))


def kernel_second_order(kernel: AbstractKernel, difference: Vector, spread: Square) -> Scalar:
    """k(δ) + ½ tr(P ∇²k(δ)): Taylor to second order (`second`), for any kernel."""
    return kernel.value(jnp.sum(difference**2)) + 0.5 * jnp.sum(spread * kernel.hessian(difference))


def kernel_expected(kernel: AbstractKernel, difference: Vector, spread: Square) -> Scalar:
    """Σ w |I + P/v|^(−1/2) exp(−½ δᵀ(vI + P)⁻¹δ): exact for a mixture of Gaussians exp(−|δ|²/2v)
    (`gaussian`).
    """

    def one_scale(weight: Scalar, variance: Scalar) -> Scalar:
        wide = variance * jnp.eye(difference.shape[0]) + spread
        inverse = numerics.inverse_small(wide)
        shrink = jnp.sqrt(variance ** difference.shape[0] * jnp.linalg.det(inverse))
        return weight * shrink * jnp.exp(-0.5 * difference @ inverse @ difference)

    return jnp.sum(jax.vmap(one_scale)(*kernel.scale_mixture()))


# ----------------------------------------------------------------------------- the moment equations


def expected_velocity(
    kernel: AbstractKernel,
    closure: ExpectedKernel,
    phase: shooting.Phase,
    mean: Vector,
    spread: Square,
) -> Vector:
    """E[v(x)] = Σⱼ E[k(x, qⱼ)] pⱼ for x ~ N(mean, spread)."""
    q, p = phase
    return jax.vmap(lambda qj: closure(kernel, mean - qj, spread))(q) @ p


def expected_gram(
    kernel: AbstractKernel, closure: ExpectedKernel, state: State
) -> Float[Array, "m m"]:
    """E[k(xᵢ, xⱼ)]: the difference xᵢ − xⱼ has covariance Pᵢⱼ = Λᵢᵢ + Λⱼⱼ − Λᵢⱼ − Λⱼᵢ."""
    mean, cov = state
    blocks = cov.transpose(0, 2, 1, 3)
    diagonal = jnp.einsum("iiab->iab", blocks)
    spread = diagonal[:, None] + diagonal[None, :] - blocks - blocks.transpose(1, 0, 2, 3)
    pair = jax.vmap(jax.vmap(lambda delta, cov: closure(kernel, delta, cov)))
    return pair(mean[:, None] - mean[None, :], spread)


def root_correction(kernel: AbstractKernel, state: State) -> Float[Array, "m m"]:
    """T = Σ_αβ Λ_αβ (∂_αR)(∂_βR)ᵀ over all nd coordinates, with R the symmetric root of K(m): the
    paper's S-terms.

    E[R(x)R(x)ᵀ] with R linearised at the mean is K + T (`eq:phi-ll-2ndm` of [wassermann:14], whose
    Sⁱ are the ∂_αR; the printed S E[φφᵀ] Sᵀ must read Σ Sⁱ E[φᵢφⱼ] Sʲᵀ). From R² = K: ∂R = U[(Uᵀ ∂K
    U)ᵢⱼ/(√wᵢ + √wⱼ)]Uᵀ. *Defect*: it keeps first derivatives of the root and drops second ones, so
    it depends on which root is taken.
    """
    mean, cov = state
    n, d = mean.shape
    u, root = numerics.symmetric_root(kernel.gram(mean, mean))

    def root_derivative(i: Int[Array, ""], axis: Int[Array, ""]) -> Float[Array, "n n"]:
        delta = mean[i] - mean
        row = kernel.slope(jnp.sum(delta**2, axis=1)) * delta[:, axis]  # ∂k(xᵢ, xⱼ)/∂xᵢ
        change = jnp.zeros((n, n)).at[i].add(row).at[:, i].add(row)
        return u @ ((u.T @ change @ u) / (root[:, None] + root)) @ u.T

    index, axis = jnp.divmod(jnp.arange(n * d), d)
    derivatives = jax.vmap(root_derivative)(index, axis)
    weighted = jnp.tensordot(cov.reshape(n * d, n * d), derivatives, axes=1)
    return jnp.einsum("aij,akj->ik", derivatives, weighted)


def moment_field(
    kernel: AbstractKernel, closure: str, phase: shooting.Phase, state: State
) -> tuple[Float[Array, "m d"], Float[Array, "m d d"], Float[Array, "m m"]]:
    """ṁ, the blocks of A = ∂ṁ/∂m, and E[K]: what the closure puts into the moment equations."""
    mean, cov = state
    expected, extra = CLOSURES[closure]
    drift = lambda m, s: expected_velocity(kernel, expected, phase, m, s)
    spread = jnp.einsum("iaib->iab", cov)
    gram = expected_gram(kernel, expected, state) + extra(kernel, state)
    return jax.vmap(drift)(mean, spread), jax.vmap(jax.jacfwd(drift))(mean, spread), gram


CLOSURES: dict[str, tuple[ExpectedKernel, Callable[[AbstractKernel, State], Array]]] = {
    "frozen": (kernel_at_mean, lambda kernel, state: jnp.zeros(())),
    "ll": (kernel_at_mean, root_correction),
    "second": (kernel_second_order, lambda kernel, state: jnp.zeros(())),
    "gaussian": (kernel_expected, lambda kernel, state: jnp.zeros(())),
}
"""What stands for E[k], and what is added to E[K]."""


def moment_path(
    kernel: AbstractKernel,
    closure: str,
    trajectory: shooting.Trajectory,
    points: Float[Array, "m d"],
) -> tuple[Float[Array, "t m d"], Float[Array, "t m d m d"], Float[Array, "t m d d"]]:
    """Mean, covariance and propagator Ψ̇ = AΨ on the trajectory's grid, the landmarks stepped
    along.
    """
    n, d = points.shape

    def field(
        state: tuple[shooting.Phase, Array, Array, Array],
    ) -> tuple[shooting.Phase, Array, Array, Array]:
        phase, mean, cov, psi = state
        drift, a, gram = moment_field(kernel, closure, phase, (mean, cov))
        a_cov = jnp.einsum("iab,ibjc->iajc", a, cov)
        diffusion = jnp.einsum("ij,ab->iajb", gram, jnp.eye(d))
        return (
            shooting.hamiltonian_field(kernel, phase),
            drift,
            a_cov + a_cov.transpose(2, 3, 0, 1) + diffusion,
            a @ psi,
        )

    def step(
        state: tuple[Array, Array, Array], node: tuple[Array, Array, Array]
    ) -> tuple[tuple, tuple]:
        q, p, h = node
        _, *new = numerics.rk4_step(field, ((q, p), *state), h)
        return tuple(new), tuple(new)

    start = (points, jnp.zeros((n, d, n, d)), jnp.broadcast_to(jnp.eye(d), (n, d, d)))
    nodes = (trajectory.positions[:-1], trajectory.momenta[:-1], jnp.diff(trajectory.times))
    _, path = jax.lax.scan(step, start, nodes)
    return jax.tree.map(lambda first, rest: jnp.concatenate([first[None], rest]), start, path)


moment_path_jit = jax.jit(moment_path, static_argnums=1)


def euler_moments(
    kernel: AbstractKernel,
    closure: str,
    trajectory: shooting.Trajectory,
    points: Float[Array, "m d"],
) -> State:
    """The same moments on the Euler–Maruyama scheme's own time grid, for comparison with
    `simulate`.

    m ← m + h E[v],  Λ ← (I + hA)Λ(I + hA)ᵀ + h E[K]⊗I_d: exact for the discrete chain when the
    drift is linear.
    """
    n, d = points.shape

    def step(state: State, node: tuple[Array, Array, Array]) -> tuple[State, None]:
        q, p, h = node
        drift, a, gram = moment_field(kernel, closure, (q, p), state)
        b = jnp.eye(d) + h * a
        cov = jnp.einsum("iab,ibjc,jdc->iajd", b, state[1], b) + h * jnp.einsum(
            "ij,ab->iajb", gram, jnp.eye(d)
        )
        return (state[0] + h * drift, cov), None

    nodes = (trajectory.positions[:-1], trajectory.momenta[:-1], jnp.diff(trajectory.times))
    return jax.lax.scan(step, (points, jnp.zeros((n, d, n, d))), nodes)[0]


# ----------------------------------------------------------------------------------------- the door


@door
def moments(
    kernel: Any,
    positions: ArrayLike,
    momenta: ArrayLike,
    points: ArrayLike | None = None,
    closure: str = "frozen",
    times: ArrayLike | None = None,
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
            each of its sides, (t, m, d, t, m, d). By default the moments at time 1, (m, d) and (m,
            d, m, d).
        num_steps: steps of the time grid; by default at least 40, and enough for the energy not to
            drift.
    """
    if closure not in CLOSURES:
        raise ArgumentError(f"closure: expected one of {', '.join(CLOSURES)}, found {closure!r}")
    settled = shooting.shoot(kernel, positions, momenta, num_steps)
    q, p = settled.positions[0], settled.momenta[0]
    x = as_points(q if points is None else points, "points", q.shape[1])
    stops = shooting.stop_times(1.0 if times is None else times)
    grid = numerics.time_grid(max(settled.num_steps, 40) if num_steps is None else num_steps, stops)
    trajectory = shooting.geodesic_jit(kernel, q, p, jnp.asarray(grid))
    index = np.searchsorted(grid, stops)
    if closure == "frozen":
        path = transport.carry_jit(kernel, trajectory, x)
        mean, joint = (
            path.positions[index],
            covariance.flow_covariance_in_time(kernel, grid, stops, path),
        )
    else:
        mean, cov, psi = (array[index] for array in moment_path_jit(kernel, closure, trajectory, x))
        joint = two_time_covariance(stops, cov, psi)
    return Moments(mean, joint) if times is not None else Moments(mean[0], joint[0, :, :, 0])


def two_time_covariance(
    stops: np.ndarray, cov: Float[Array, "t n d n d"], psi: Float[Array, "t n d d"]
) -> Float[Array, "t n d t n d"]:
    """Λ_ts = Λ_tt Ψ(s, t)ᵀ for t ≤ s, with Ψ(s, t) = Ψ(s)Ψ(t)⁻¹: the regression of the later on the
    earlier time.
    """
    onward = jnp.einsum(
        "snab,tnbc->tsnac", psi, numerics.inverse_small(psi)
    )  # Ψ(s, t), point by point
    forward = jnp.einsum("tiajb,tsjcb->tiasjc", cov, onward)  # right where t ≤ s
    later = jnp.asarray(stops[:, None] <= stops)[:, None, None, :, None, None]
    return jnp.where(later, forward, forward.transpose(3, 4, 5, 0, 1, 2))
