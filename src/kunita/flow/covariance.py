"""The covariance function of the flow, in closed form: everything at the mean (closure `frozen`)."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from kunita import numerics
from kunita.flow.transport import Path, propagators
from kunita.jaxrun.doors import Array
from kunita.kernels import AbstractKernel


def flow_covariance(
    kernel: AbstractKernel, weights: Float[Array, " t"], x: Path, y: Path
) -> Float[Array, "m d k d"]:
    """Λ(x, y) = ∫₀¹ k(x_t, y_t) Ψ_x(t) Ψ_y(t)ᵀ dt, with Ψ(t) = J(1)J(t)⁻¹.

    The solution of `eq:phi-ll-2ndm` of [wassermann:14] with drift and diffusion taken at the mean.
    *Departure*: no differential equation for Λ; since the quadrature weights are positive, the
    matrix over any set of points is symmetric and positive semidefinite by construction.

    Args:
        kernel: the prior's covariance function.
        weights: positive quadrature weights on the grid of times.
        x, y: the two sets of points, carried along the mean flow.
    """

    def add(total: Array, node: tuple[Array, ...]) -> tuple[Array, None]:
        w, xt, psi_x, yt, psi_y = node
        k = w * kernel.gram(xt, yt)
        return total + k[:, None, :, None] * jnp.einsum("iab,jcb->iajc", psi_x, psi_y), None

    m, k, d = x.positions.shape[1], y.positions.shape[1], x.positions.shape[2]
    nodes = (weights, x.positions, propagators(x), y.positions, propagators(y))
    return jax.lax.scan(add, jnp.zeros((m, d, k, d)), nodes)[0]


def flow_variance(
    kernel: AbstractKernel, weights: Float[Array, " t"], x: Path
) -> Float[Array, "m d d"]:
    """The diagonal blocks, Λ(x, x) = a² ∫₀¹ Ψ_x(t) Ψ_x(t)ᵀ dt."""
    psi = propagators(x)
    return kernel.variance * jnp.einsum("t,tmab,tmcb->mac", weights, psi, psi)


def flow_covariance_in_time(
    kernel: AbstractKernel, times: np.ndarray, stops: np.ndarray, x: Path
) -> Float[Array, "k m d k m d"]:
    """Λ_ts(x, y) = J_x(t) [∫₀^min(t,s) k J_x⁻¹ J_y⁻ᵀ] J_y(s)ᵀ at several times, jointly positive
    semidefinite.

    The stops must end Simpson pairs of the grid (`numerics.time_grid` sees to it): then every pair
    of steps adds one positive semidefinite term to all stops after it.
    """
    index = np.searchsorted(times, stops)
    weights = np.zeros((len(stops), len(times)))
    for row, i in zip(weights, index, strict=True):
        row[: i + 1] = numerics.simpson_weights(times[: i + 1])
    inverse = numerics.inverse_small(x.jacobians)
    gram = jax.vmap(kernel.gram)(x.positions, x.positions)
    integrals = jax.lax.map(
        lambda w: jnp.einsum("t,tij,tiab,tjcb->iajc", w, gram, inverse, inverse),
        jnp.asarray(weights),
    )
    stop = np.arange(len(stops))
    earlier = np.where(index[:, None] <= index, stop[:, None], stop)
    ends = x.jacobians[index]
    return jnp.einsum("smab,stmbnc,tndc->smatnd", ends, integrals[earlier], ends)
