"""What the fit minimises."""

import jax.numpy as jnp
from jaxtyping import Float

from kunita.flow import covariance, shooting, transport
from kunita.jaxrun.doors import Array, Scalar
from kunita.kernels import AbstractKernel
from kunita.observations.base import AbstractObservations, Information


def energy(path_energy: Scalar, observed: Information) -> Scalar:
    """E = ½∫‖v_t‖² dt + ½|r|²: the most probable velocity path minimises it.

    `eq:minimal-v` of [wassermann:14]. On a geodesic the first term is the Hamiltonian H(x, p₀),
    which is also KL[q‖p] by Girsanov's theorem (the paper drops the ½ once, in
    `eq:disc-KL-approach`). For landmarks ½|r|² = ½ Σ (φ₁(xᵢ) − fᵢ)ᵀ Dᵢ⁻¹ (φ₁(xᵢ) − fᵢ).
    """
    return path_energy + observed.energy


def shooting_energy(
    kernel: AbstractKernel,
    observations: AbstractObservations,
    positions: Float[Array, "n d"],
    momenta: Float[Array, "n d"],
    times: Float[Array, " t"],
) -> Scalar:
    """The energy as a function of where the geodesic starts.

    Noise of the moving points counts as if the map did not turn or stretch it.

    Its gradient in p₀ is B_qᵀ(λ − Hᵀr), with B_q = ∂q(1)/∂p₀ and λ = p(1).
    """
    at_rest = shooting.identities(positions)
    arrived, _ = shooting.endpoint(kernel, positions, momenta, times)
    observed = observations.information(arrived, at_rest)
    hamiltonian = shooting.hamiltonian(kernel, positions, momenta)
    return energy(hamiltonian, observed)


def variational_objective(
    kernel: AbstractKernel,
    observations: AbstractObservations,
    positions: Float[Array, "n d"],
    momenta: Float[Array, "n d"],
    times: Float[Array, " t"],
    weights: Float[Array, " t"],
) -> Scalar:
    """KL[q‖p] + E_q[½|r|²] = E + ½ tr(HΛ_XXHᵀ): the paper's variational objective.

    `eq:disc-KL-approach-momenta` with `eq:disc-KL-data` of [wassermann:14], for D = ½I up to
    constants. The expected data term adds ½ Σᵢ tr(Mᵢ Λ(xᵢ, xᵢ)), M = HᵀH, to the energy. With it
    the unrestricted optimum is no longer a geodesic: shooting searches a restricted family.
    *Departure*: the printed gradient has a wrong factor and sign and leaves out the flow; here it
    comes from automatic differentiation.
    """
    at_rest = shooting.identities(positions)
    trajectory = shooting.geodesic(kernel, positions, momenta, times)
    arrived = trajectory.positions[-1]
    observed = observations.information(arrived, at_rest)
    path = transport.landmark_path(trajectory)
    variance = covariance.flow_variance(kernel, weights, path)
    trace = jnp.sum(observed.local * variance)
    hamiltonian = shooting.hamiltonian(kernel, positions, momenta)
    fitted = energy(hamiltonian, observed)
    return fitted + 0.5 * trace
