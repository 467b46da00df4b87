"""The model `pathwise`: the velocity conditioned on the observations at every instant.

The reading that agrees with the paper's figure `fig:synth`. At time t the sites are at Q, and their
rows, carried back, look at the velocity there through H_t = HΨ(t):

    Σ_t(x, y) = k(x, y)I − k(x, Q)H_tᵀS_t⁻¹H_tk(Q, y),   S_t = H_t(K_QQ ⊗ I)H_tᵀ + I.

(For landmarks H_tᵀS_t⁻¹H_t = (K_QQ ⊗ I + D_t)⁻¹ with D_t = Ψ(t)⁻¹DΨ(t)⁻ᵀ.)
"""

import jax.numpy as jnp
from jaxtyping import Float

from kunita import numerics
from kunita.inference.path_space import covariance_at_rest
from kunita.jaxrun.doors import Array
from kunita.kernels import AbstractKernel
from kunita.observations.base import Rows


def carried_operator(rows: Rows, psi: Float[Array, "n d d"]) -> Float[Array, "k d"]:
    """H_t = HΨ(t), row by row."""
    by_row = psi[rows.site]
    return jnp.einsum("ka,kab->kb", rows.operator, by_row)


def instant_factor(
    kernel: AbstractKernel, rows: Rows, q: Float[Array, "n d"], psi: Float[Array, "n d d"]
) -> Float[Array, "k k"]:
    """C with CCᵀ = S_t, for sites at q with Ψ(t) = psi."""
    operator = carried_operator(rows, psi)
    gram = kernel.gram(q, q)
    explained = covariance_at_rest(gram, rows.site, operator)
    noise = jnp.eye(len(operator))
    return numerics.cholesky(explained + noise, jitter=0.0)


def instant_half(
    kernel: AbstractKernel,
    rows: Rows,
    q: Float[Array, "n d"],
    psi: Float[Array, "n d d"],
    x: Float[Array, "m d"],
) -> Float[Array, "k md"]:
    """C⁻¹H_tk(Q, x): half of what the observations tell about the velocity at x at one instant."""
    factor = instant_factor(kernel, rows, q, psi)
    operator = carried_operator(rows, psi)
    cross = kernel.gram(q, x)[rows.site]
    velocities = cross[:, :, None]
    along_rows = operator[:, None, :]
    seen = velocities * along_rows
    columns = seen.reshape(len(operator), -1)
    return numerics.solve_lower(factor, columns)


def instant_whitener(
    kernel: AbstractKernel, rows: Rows, q: Float[Array, "n d"], psi: Float[Array, "n d d"]
) -> Float[Array, "k nd"]:
    """C⁻¹H_t as a matrix on all coordinates of the sites."""
    n, d = q.shape
    factor = instant_factor(kernel, rows, q, psi)
    carried = carried_operator(rows, psi)
    k = len(carried)
    every_row = jnp.arange(k)
    blocks = jnp.zeros((k, n, d))
    blocks = blocks.at[every_row, rows.site].set(carried)
    matrix = blocks.reshape(k, n * d)
    return numerics.solve_lower(factor, matrix)
