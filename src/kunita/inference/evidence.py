"""Marginal likelihood: how well a prior explains the observations."""

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int

from kunita import numerics
from kunita.flow import shooting
from kunita.inference.path_space import AbstractPathSpace
from kunita.inference.solve import Fit
from kunita.jaxrun.doors import Array, Scalar
from kunita.jaxrun.programs import SMALL_MATRIX, compiled
from kunita.kernels import AbstractKernel
from kunita.observations.base import Information

Count = int | Int[Array, ""]


def evidence_of(fit: Fit) -> float:
    """The log evidence around a fitted flow."""
    noise = fit.noise_log_det
    return float(gauss_newton_evidence(fit.linear, fit.energy, noise, fit.num_rows))


@compiled(hasty=SMALL_MATRIX)
def gauss_newton_evidence(
    linear: AbstractPathSpace, energy: Scalar, noise_log_det: Scalar, num_rows: Count
) -> Scalar:
    """log p ≈ −E* − ½log|S| − ½log|R| − ½log|A| − ½(k − b)log 2π, around the fitted flow.

    Laplace's approximation over velocity paths for k observed numbers, R their noise before
    whitening; with a trend of b parameters under its flat prior (restricted likelihood), A =
    (Jh)ᵀQ(Jh). For landmarks |S||R| = |Λ_XX + D|.
    """
    trend_factor = linear.trend_factor
    log_det_a = numerics.log_det_of_factor(trend_factor)
    log_dets = linear.log_det() + noise_log_det + log_det_a
    freedom = num_rows - len(trend_factor)
    constant = freedom * jnp.log(2 * jnp.pi)
    half = 0.5 * (log_dets + constant)
    return -energy - half


def full_evidence(fit: Fit) -> Scalar:
    """log p ≈ −E* − ½log|(B_p + MB_q)Jᵀ| − ½log|R| − ½k log 2π, without a trend.

    Laplace's approximation with the second derivative of the flow. For landmarks |R||B_p + MB_q| is
    |B_q + DB_p|.
    """
    trajectory = fit.trajectory
    observations = fit.problem.observations
    arrived = trajectory.positions[-1]
    information = observations.information(arrived, fit.jacobians)
    matrix = second_variation(fit.kernel, trajectory, information)
    sign, log_det = jnp.linalg.slogdet(matrix)
    constant = information.num_rows * jnp.log(2 * jnp.pi)
    log_dets = log_det + information.log_det
    half = 0.5 * (log_dets + constant)
    value = -fit.energy - half
    return jnp.where(sign > 0, value, -jnp.inf)


def second_variation(
    kernel: AbstractKernel, trajectory: shooting.Trajectory, information: Information
) -> Float[Array, "nd nd"]:
    """(B_p + MB_q)Jᵀ, with B_q and B_p the derivatives of q(1) and p(1) in p₀."""
    q0, p0 = trajectory.at(0)
    size = p0.size

    def endpoint(momenta: Float[Array, "n d"]) -> shooting.Phase:
        return shooting.endpoint(kernel, q0, momenta, trajectory.times)

    b_q, b_p = jax.jacfwd(endpoint)(p0)
    by_site = b_q.reshape(*q0.shape, size)
    product = information.product(by_site)
    full = product.reshape(b_p.shape) + b_p
    jacobians = trajectory.jacobians[-1]
    carried = jnp.einsum("iajb,jcb->iajc", full, jacobians)
    return carried.reshape(size, size)
