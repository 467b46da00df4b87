"""The linear model around a velocity path by products alone, for observations without rows.

The covariance of the flow and the information of the observations are products,

    Λx = ∫ Ψ K(q) Ψᵀx dt,    Mx = HᵀHx,

and (I + MΛ)⁻¹ is found by conjugate gradients: I + MΛ is self-adjoint and positive definite in the
inner product ⟨x, y⟩ = xᵀΛy. A step of them costs one product with either, and neither Λ nor M is
ever a matrix. What needs a determinant or a root (evidence, covariances) is left to
`kunita.inference.path_space`.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Float

from kunita import numerics
from kunita.flow import transport
from kunita.flow.fields import PathField
from kunita.inference.path_space import design_of
from kunita.inference.problem import Problem
from kunita.jaxrun.doors import Array
from kunita.kernels import AbstractKernel
from kunita.observations.base import Information


class MatrixFreeModel(eqx.Module):
    """Products with Λ and M at the sites, and solutions with I + MΛ.

    Args:
        kernel: of the prior.
        weights: of the quadrature over the instants of the path.
        positions: of the sites along it.
        psi: Ψ(t) of the sites.
        observed: what the observations add up to, M among it.
        design: Jh(x̃), the displacement of the sites per unit of β.
    """

    kernel: AbstractKernel
    weights: Float[Array, " t"]
    positions: Float[Array, "t n d"]
    psi: Float[Array, "t n d d"]
    observed: Information
    design: Float[Array, "n d b"]

    def covariance(self, dual: Float[Array, "n d"]) -> Float[Array, "n d"]:
        """Λx: how far the field with the momenta Ψᵀx carries the sites."""
        momenta = jnp.einsum("tiba,ib->tia", self.psi, dual)
        field = PathField(self.positions, momenta)
        velocities = field.velocities(self.kernel, self.positions)
        return jnp.einsum("t,tiab,tib->ia", self.weights, self.psi, velocities)

    def respond(self, force: Float[Array, "n d"]) -> Float[Array, "n d"]:
        """(I + MΛ)⁻¹e."""

        def product(x: Array, covaried: Array) -> Array:
            return x + self.observed.product(covaried)

        return numerics.conjugate_gradients(product, self.covariance, force)

    def minimiser(
        self, force: Float[Array, "n d"], displacements: Float[Array, "n d"]
    ) -> tuple[Float[Array, " b"], Float[Array, "n d"]]:
        """β̂ and λ of the best velocity path, where the present one displaces the sites by η.

        λ = (I + MΛ)⁻¹(Hᵀr + Mη − MJhβ̂), and β̂ = A⁻¹(Jh)ᵀ(I + MΛ)⁻¹(Hᵀr + Mη) makes (Jh)ᵀλ = 0.
        """
        pulled = force + self.observed.product(displacements)
        by_trend = self.observed.product(self.design)
        columns = jnp.concatenate([pulled[..., None], by_trend], axis=2)
        solved = jax.vmap(self.respond, in_axes=2, out_axes=2)(columns)
        dual = solved[..., 0]
        solved_design = solved[..., 1:]
        information = jnp.einsum("iab,iac->bc", self.design, solved_design)
        factor = numerics.cholesky(numerics.symmetric(information), jitter=0.0)
        slope = jnp.einsum("iab,ia->b", self.design, dual)
        beta = numerics.solve_cholesky(factor, slope)
        return beta, dual - solved_design @ beta

    def to_anchors(self, dual: Float[Array, "nd ..."]) -> Float[Array, "nd ..."]:
        """The same: the sites themselves carry the momentum."""
        return dual


def matrix_free_model(
    problem: Problem, path: transport.Path, weights: Float[Array, " t"], observed: Information
) -> MatrixFreeModel:
    """Linearise around a path.

    Args:
        problem: the prior and the alignments.
        path: the sites along the flow.
        weights: of the quadrature over the instants of the path.
        observed: the observations where the path arrives.
    """
    n, d = path.positions.shape[1:]
    return MatrixFreeModel(
        kernel=problem.kernel,
        weights=jnp.asarray(weights),
        positions=path.positions,
        psi=transport.propagators(path),
        observed=observed,
        design=design_of(path, problem.trend).reshape(n, d, -1),
    )
