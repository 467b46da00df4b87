"""What the fit minimises: pure functions of the starting points and momenta."""

import jax.numpy as jnp
from jaxtyping import Float

from kunita import numerics
from kunita.flow import covariance, shooting, transport
from kunita.jaxrun.doors import Array, Scalar
from kunita.kernels import AbstractKernel
from kunita.observations import mahalanobis


def energy(
    kernel: AbstractKernel,
    positions: Float[Array, "n d"],
    momenta: Float[Array, "n d"],
    targets: Float[Array, "n d"],
    noise: Float[Array, "n d d"],
    times: Float[Array, " t"],
) -> Scalar:
    """E = H(x, p₀) + ½ Σ (φ₁(xᵢ) − fᵢ)ᵀ Dᵢ⁻¹ (φ₁(xᵢ) − fᵢ): the most probable velocity path
    minimises it.

    `eq:minimal-v` of [wassermann:14]; on a geodesic ½∫‖v‖² dt = H, which is also KL[q‖p] by
    Girsanov (the paper drops the ½ once, in `eq:disc-KL-approach`). Its gradient in p₀ is B_qᵀ(λ −
    D⁻¹(F − φ₁)), B_q = ∂q(1)/∂p₀, λ = p(1).
    """
    arrived, _ = shooting.endpoint(kernel, positions, momenta, times)
    return shooting.hamiltonian(kernel, positions, momenta) + 0.5 * jnp.sum(
        mahalanobis(targets - arrived, noise)
    )


def variational_objective(
    kernel: AbstractKernel,
    positions: Float[Array, "n d"],
    momenta: Float[Array, "n d"],
    targets: Float[Array, "n d"],
    noise: Float[Array, "n d d"],
    times: Float[Array, " t"],
    weights: Float[Array, " t"],
) -> Scalar:
    """KL[q‖p] + E_q[½|Φ₁ − F|²_D] = E + ½ tr(D⁻¹Λ_XX): the paper's variational objective.

    `eq:disc-KL-approach-momenta` with `eq:disc-KL-data` of [wassermann:14], for D = ½I up to
    constants. The expected data term adds ½ Σᵢ tr(Dᵢ⁻¹ Λ(xᵢ, xᵢ)) = ½a² Σᵢ ∫ tr(Dᵢ⁻¹ΨᵢΨᵢᵀ)dt to
    `energy`. With it the unrestricted optimum is no longer a geodesic: shooting searches a
    restricted family. *Departure*: the printed gradient has a wrong factor and sign and leaves out
    the flow; here it comes from automatic differentiation.
    """
    trajectory = shooting.geodesic(kernel, positions, momenta, times)
    arrived = trajectory.positions[-1]
    variance = covariance.flow_variance(kernel, weights, transport.landmark_path(trajectory))
    trace = jnp.sum(jnp.trace(numerics.solve_small(noise, variance), axis1=1, axis2=2))
    misfit = jnp.sum(mahalanobis(targets - arrived, noise))
    return shooting.hamiltonian(kernel, positions, momenta) + 0.5 * (misfit + trace)
