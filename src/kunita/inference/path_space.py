"""The linearised model over all velocity paths around a flow: one factored matrix, for fit, posterior and evidence."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Float

from kunita import numerics
from kunita.flow import covariance, shooting, transport
from kunita.inference.problem import Errors, Step
from kunita.inference.trend import Trend
from kunita.kernels import AbstractKernel
from kunita.precision import Array


class PathSpace(eqx.Module):
    """S = Λ_XX + D = CCᵀ, H = J h(x̃), A = HᵀS⁻¹H = MMᵀ; the flow's Jacobians J at the landmarks."""

    factor: Float[Array, "nd nd"]
    design: Float[Array, "nd b"]
    solved_design: Float[Array, "nd b"]
    trend_factor: Float[Array, "b b"]
    jacobians: Float[Array, "n d d"]

    def dual_change(self, errors: Errors) -> tuple[Float[Array, " b"], Float[Array, "n d"]]:
        """β̂ = A⁻¹HᵀS⁻¹y and λ_new − λ, λ_new = S⁻¹(y − Hβ̂), for y = F − φ₁ + Λλ.

        Written with the errors of the two equations: S⁻¹y = λ + S⁻¹gap and Hᵀλ = h(x̃)ᵀp₀ = pull.
        """
        change = numerics.solve_cholesky(self.factor, errors.gap.ravel())
        beta = numerics.solve_cholesky(self.trend_factor, self.design.T @ change + errors.pull)
        return beta, (change - self.solved_design @ beta).reshape(errors.gap.shape)

    def step(self, errors: Errors) -> Step:
        """The Gauss–Newton step: the alignment moves by β̂ and p₀ by Jᵀ(λ_new − λ)."""
        beta, change = self.dual_change(errors)
        return Step(beta, jnp.einsum("iba,ib->ia", self.jacobians, change))


def path_space(
    kernel: AbstractKernel,
    trajectory: shooting.Trajectory,
    weights: Float[Array, " t"],
    noise: Float[Array, "n d d"],
    trend: Trend,
) -> PathSpace:
    """Linearise around a geodesic: propagate the covariance of the flow and factor it."""
    path = transport.landmark_path(trajectory)
    flow = covariance.flow_covariance(kernel, weights, path, path)
    size = noise.shape[0] * noise.shape[1]
    factor = numerics.cholesky(flow.reshape(size, size) + numerics.block_diagonal(noise), jitter=0.0)
    jacobians = trajectory.jacobians[-1]
    design = (jacobians @ trend.basis(trajectory.positions[0])).reshape(size, -1)
    solved = numerics.solve_cholesky(factor, design)
    return PathSpace(factor, design, solved, numerics.cholesky(design.T @ solved, jitter=0.0), jacobians)


path_space_jit = jax.jit(path_space)
