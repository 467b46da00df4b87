"""Marginal likelihood: how well a prior explains the landmarks, in three forms."""

import jax
import jax.numpy as jnp
from jaxtyping import Float

from kunita import numerics
from kunita.flow import shooting
from kunita.inference.path_space import AbstractPathSpace
from kunita.inference.solve import Fit
from kunita.jaxrun.doors import Array, Scalar
from kunita.jaxrun.programs import SMALL_MATRIX, compiled
from kunita.kernels import AbstractKernel


@compiled(hasty=SMALL_MATRIX)
def gauss_newton_evidence(linear: AbstractPathSpace, energy: Scalar) -> Scalar:
    """Log p(F) ≈ −E* − ½logdet S − ½logdet(HᵀS⁻¹H) − ½(nd − b)log 2π, around the fitted flow.

    Laplace's approximation over velocity paths; with a trend, under its flat prior (restricted
    likelihood).
    """
    log_det_a = 2 * jnp.sum(jnp.log(jnp.diag(linear.trend_factor)))
    freedom = len(linear.design) - len(linear.trend_factor)
    return -energy - 0.5 * (linear.log_det() + log_det_a + freedom * jnp.log(2 * jnp.pi))


def full_evidence(fit: Fit) -> Scalar:
    """Log p(F) ≈ −E* − ½logdet[2π(B_q + DB_p)Jᵀ]: Laplace with the second derivative of the flow,
    without a trend.
    """
    q0, p0, times = fit.trajectory.positions[0], fit.trajectory.momenta[0], fit.trajectory.times
    b_q, b_p = jax.jacfwd(lambda p: shooting.endpoint(fit.kernel, q0, p, times))(p0)
    full = b_q + jnp.einsum("iab,ibjc->iajc", fit.noise, b_p)
    full = jnp.einsum("iajb,jcb->iajc", full, fit.trajectory.jacobians[-1]).reshape(
        p0.size, p0.size
    )
    sign, log_det = jnp.linalg.slogdet(2 * jnp.pi * full)
    return jnp.where(sign > 0, -fit.energy - 0.5 * log_det, -jnp.inf)


def small_evidence(
    kernel: AbstractKernel,
    positions: Float[Array, "n d"],
    displacements: Float[Array, "n d"],
    basis: Float[Array, "n d b"],
    noise: Float[Array, "n ..."],
) -> Scalar:
    """The exact evidence of the small-deformation model, y ~ N(hβ, K⊗I + D) with β flat.

    Isotropic noise, (n,) variances, needs only an n×n factor; full noise, (n, d, d), an nd×nd one.
    """
    n, d = positions.shape
    gram = kernel.gram(positions, positions)
    if noise.ndim == 1:
        factor, copies = numerics.cholesky(gram + jnp.diag(noise), jitter=0.0), d
        whiten = lambda v: numerics.solve_lower(factor, v.reshape(n, -1)).reshape(n * d, -1)
    else:
        full = jnp.kron(gram, jnp.eye(d)) + numerics.block_diagonal(noise)
        factor, copies = numerics.cholesky(full, jitter=0.0), 1
        whiten = lambda v: numerics.solve_lower(factor, v.reshape(n * d, -1))
    y, h = whiten(displacements)[:, 0], whiten(basis)
    trend = numerics.cholesky(h.T @ h, jitter=0.0)
    misfit = y @ y - jnp.sum(numerics.solve_lower(trend, h.T @ y) ** 2)
    log_det = 2 * copies * jnp.sum(jnp.log(jnp.diag(factor))) + 2 * jnp.sum(
        jnp.log(jnp.diag(trend))
    )
    return -0.5 * (misfit + log_det + (n * d - h.shape[1]) * jnp.log(2 * jnp.pi))
