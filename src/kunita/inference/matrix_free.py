"""The linear model around a velocity path by products alone, for observations without rows.

The covariance of the flow and the information of the observations are products,

    Λx = ∫ Ψ K(q) Ψᵀx dt,    Mx = HᵀHx,

and (I + MΛ)⁻¹ is found by conjugate gradients: I + MΛ is self-adjoint and positive in the inner
product ⟨x, y⟩ = xᵀΛy. A step costs one product with either. Nothing is factored, and of Λ no more
is looked at than K at one instant. What needs a determinant or a root (evidence, covariances) is
left to `kunita.inference.path_space`.

Conjugate gradients that run out of steps leave a λ that is not the best. That is not hidden: the
search judges every λ by the optimality conditions.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Float

from kunita import numerics
from kunita.flow import fields, transport
from kunita.flow.fields import PathField
from kunita.inference.path_space import AbstractLinearModel, design_of
from kunita.inference.problem import Problem
from kunita.jaxrun.doors import Array
from kunita.kernels import AbstractKernel
from kunita.observations.base import Information

TOLERANCE = 1e-9
"""Of the residual of conjugate gradients, relative: a search ends some four digits earlier."""


class FlowProducts(eqx.Module):
    """Products with Λ along a path, and with M where it arrives.

    Args:
        kernel: of the prior.
        weights: of the quadrature over the instants of the path.
        positions: of the sites along it.
        psi: Ψ(t) of the sites.
        observed: what the observations add up to, M among it.
    """

    kernel: AbstractKernel
    weights: Float[Array, " t"]
    positions: Float[Array, "t n d"]
    psi: Float[Array, "t n d d"]
    observed: Information

    def covariance(self, dual: Float[Array, "n d"]) -> Float[Array, "n d"]:
        """Λx: how far the field with the momenta Ψᵀx carries the sites."""
        momenta = jnp.einsum("tiba,ib->tia", self.psi, dual)
        field = PathField(self.positions, momenta)
        velocities = field.velocities(self.kernel, self.positions)
        return transport.displacements(self.weights, self.psi, velocities)

    def respond(self, force: Float[Array, "n d"], tolerance: float) -> Float[Array, "n d"]:
        """(I + MΛ)⁻¹e.

        What Λ does not see, conjugate gradients do not either: two sites at one place, say, that
        are pulled apart. There I + MΛ is the identity, and the residual is the answer.
        """

        def product(x: Array, covaried: Array) -> Array:
            return x + self.observed.product(covaried)

        found = numerics.conjugate_gradients(product, self.covariance, force, tolerance=tolerance)
        return found.x + found.residual


class MatrixFreeModel(AbstractLinearModel):
    """I + MΛ by its products; the anchors are the sites.

    Args:
        products: with Λ and M.
        tolerance: of the residual of conjugate gradients, relative.
        design, solved_design, trend_factor: as in `AbstractLinearModel`.
    """

    products: FlowProducts
    tolerance: float = eqx.field(static=True)
    design: Float[Array, "nd b"]
    solved_design: Float[Array, "nd b"]
    trend_factor: Float[Array, "b b"]

    def respond(self, force: Float[Array, "n d"]) -> Float[Array, "n d"]:
        return self.products.respond(force, self.tolerance)

    def explain(self, displacements: Float[Array, "nd m"]) -> Float[Array, "nd m"]:
        return explain_by_products(self.products, displacements, self.tolerance)

    def to_anchors(self, dual: Float[Array, "nd ..."]) -> Float[Array, "nd ..."]:
        return dual

    def least_field(
        self,
        kernel: AbstractKernel,
        centres: Float[Array, "t c d"],
        velocities: Float[Array, "t c d"],
    ) -> PathField:
        return fields.least_field_by_products(kernel, centres, velocities)


def explain_by_products(
    products: FlowProducts, displacements: Float[Array, "nd m"], tolerance: float
) -> Float[Array, "nd m"]:
    """QX = (I + MΛ)⁻¹MX, all columns at once."""
    n, d = products.positions.shape[1:]
    by_site = displacements.reshape(n, d, -1)
    forces = products.observed.product(by_site)
    respond = lambda force: products.respond(force, tolerance)
    solved = jax.vmap(respond, in_axes=2, out_axes=2)(forces)
    return solved.reshape(displacements.shape)


def matrix_free_model(
    problem: Problem,
    path: transport.Path,
    weights: Float[Array, " t"],
    observed: Information,
    tolerance: float = TOLERANCE,
) -> MatrixFreeModel:
    """Linearise around a path.

    Args:
        problem: the prior and the alignments.
        path: the sites along the flow.
        weights: of the quadrature over the instants of the path.
        observed: the observations where the path arrives.
        tolerance: of the residual of conjugate gradients, relative.
    """
    products = FlowProducts(
        kernel=problem.kernel,
        weights=jnp.asarray(weights),
        positions=path.positions,
        psi=transport.propagators(path),
        observed=observed,
    )
    design = design_of(path, problem.trend)
    solved_design = explain_by_products(products, design, tolerance)
    information = numerics.symmetric(design.T @ solved_design)
    return MatrixFreeModel(
        products=products,
        tolerance=tolerance,
        design=design,
        solved_design=solved_design,
        trend_factor=numerics.cholesky(information, jitter=0.0),
    )
