"""What was seen: points, residuals and noise. Everything else in the inference uses the data
through these only.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Float

from kunita import numerics
from kunita.jaxrun.doors import Array, namespace


class LandmarkObservations(eqx.Module):
    """Homologous landmarks: fᵢ = φ₁(xᵢ) + εᵢ, εᵢ ~ N(0, Dᵢ), heteroscedastic and anisotropic.

    The noise may sit on both sides: `fixed_noise` is the covariance of the fixed point,
    `moving_noise` that of the moving one in its own space, which the map carries over.
    """

    moving: Float[Array, "n d"]
    fixed: Float[Array, "n d"]
    fixed_noise: Float[Array, "n d d"]
    moving_noise: Float[Array, "n d d"]

    def noise(self, jacobians: Float[Array, "n d d"]) -> Float[Array, "n d d"]:
        """Dᵢ = C_f,i + Jᵢ C_m,i Jᵢᵀ, with J the Jacobian of the whole map (flow and alignment) at
        the landmark.
        """
        xp = namespace(jacobians, self.moving_noise)
        return self.fixed_noise + xp.einsum(
            "iab,ibc,idc->iad", jacobians, self.moving_noise, jacobians
        )


def mahalanobis(
    vectors: Float[Array, "n d"], covariances: Float[Array, "n d d"]
) -> Float[Array, " n"]:
    """rᵢᵀ Dᵢ⁻¹ rᵢ, one number per landmark."""
    return jnp.sum(vectors * numerics.solve_small(covariances, vectors[..., None])[..., 0], axis=-1)
