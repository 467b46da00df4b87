"""The covariance function of the flow in closed form, with everything taken at the mean.

This is the closure `frozen` of the moment equations (`moments.py`).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from kunita import numerics
from kunita.flow.transport import Path, propagators
from kunita.jaxrun.doors import Array
from kunita.kernels import AbstractKernel


class Instant(NamedTuple):
    """Two sets of points at one instant, with its quadrature weight; or at all of them."""

    weight: Float[Array, "..."]
    x: Float[Array, "... m d"]
    psi_x: Float[Array, "... m d d"]
    y: Float[Array, "... k d"]
    psi_y: Float[Array, "... k d d"]


def flow_covariance(
    kernel: AbstractKernel, weights: Float[Array, " t"], x: Path, y: Path
) -> Float[Array, "m d k d"]:
    """Λ(x, y) = ∫₀¹ k(x_t, y_t) Ψ_x(t) Ψ_y(t)ᵀ dt, with Ψ(t) = J(1)J(t)⁻¹.

    It is the solution of `eq:phi-ll-2ndm` of [wassermann:14] with drift and diffusion taken at the
    mean. *Departure*: no differential equation is solved for Λ. Since the quadrature weights are
    positive, the matrix over any set of points is symmetric and positive semidefinite by
    construction.

    Args:
        kernel: the prior's covariance function.
        weights: positive quadrature weights on the grid of times.
        x, y: the two sets of points, carried along the mean flow.
    """

    def add(total: Array, instant: Instant) -> tuple[Array, None]:
        return total + covariance_at(kernel, instant), None

    instants = Instant(
        weight=weights,
        x=x.positions,
        psi_x=propagators(x),
        y=y.positions,
        psi_y=propagators(y),
    )
    _, m, d = x.positions.shape
    _, k, _ = y.positions.shape
    return jax.lax.scan(add, jnp.zeros((m, d, k, d)), instants)[0]


def covariance_at(kernel: AbstractKernel, instant: Instant) -> Float[Array, "m d k d"]:
    """w k(x_t, y_t) Ψ_x(t) Ψ_y(t)ᵀ, what one instant adds to the covariance."""
    gram = instant.weight * kernel.gram(instant.x, instant.y)
    products = jnp.einsum("iab,jcb->iajc", instant.psi_x, instant.psi_y)
    return gram[:, None, :, None] * products


def flow_variance(
    kernel: AbstractKernel, weights: Float[Array, " t"], x: Path
) -> Float[Array, "m d d"]:
    """The diagonal blocks Λ(x, x) = a² ∫₀¹ Ψ_x(t) Ψ_x(t)ᵀ dt."""
    psi = propagators(x)
    integral = jnp.einsum("t,tmab,tmcb->mac", weights, psi, psi)
    return kernel.variance * integral


def flow_covariance_in_time(
    kernel: AbstractKernel, times: np.ndarray, stops: np.ndarray, x: Path
) -> Float[Array, "k m d k m d"]:
    """The covariance between several times, jointly positive semidefinite.

    Λ_ts(x, y) = J_x(t) [∫₀^min(t,s) k(x_u, y_u) J_x(u)⁻¹ J_y(u)⁻ᵀ du] J_y(s)ᵀ.

    Args:
        kernel: the prior's covariance function.
        times: the grid of times.
        stops: the times asked for. They must end Simpson pairs of the grid, as those of
            `numerics.time_grid` do: then every pair of steps adds one positive semidefinite term
            to all stops after it.
        x: the points, carried along the mean flow.
    """
    index = np.searchsorted(times, stops)
    weights = jnp.asarray(_weights_until(times, index))
    inverse = numerics.inverse_small(x.jacobians)
    gram = jax.vmap(kernel.gram)(x.positions, x.positions)

    def integrate(w: Float[Array, " t"]) -> Float[Array, "m d m d"]:
        return jnp.einsum("t,tij,tiab,tjcb->iajc", w, gram, inverse, inverse)

    integrals = jax.lax.map(integrate, weights)
    until_both = integrals[_earlier(index)]
    ends = x.jacobians[index]
    return jnp.einsum("smab,stmbnc,tndc->smatnd", ends, until_both, ends)


def _weights_until(times: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Quadrature weights of the integrals from 0 to each of some times, one row for each."""
    weights = np.zeros((len(index), len(times)))
    for row, last in enumerate(index):
        end = last + 1
        weights[row, :end] = numerics.simpson_weights(times[:end])
    return weights


def _earlier(index: np.ndarray) -> np.ndarray:
    """For every pair of stops, which of them is the earlier."""
    stop = np.arange(len(index))
    first_is_earlier = index[:, None] <= index
    return np.where(first_is_earlier, stop[:, None], stop)
