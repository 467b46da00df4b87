"""Small numerical tools: the only Cholesky with jitter, quadrature, small inverses, Runge–Kutta."""

import itertools
from collections.abc import Callable, Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from kunita.jaxrun.doors import Array, Scalar, namespace

State = TypeVar("State")
Node = TypeVar("Node")

JITTER = 1e-12
"""Relative to the mean diagonal; the smallest that lets a smooth kernel's Gram matrix be factored.
"""


SHAPING_JITTER = 1e-9
"""Where a factor only shapes the coordinates of a search, and the answer does not depend on it."""


def cholesky(matrix: Float[Array, "n n"], *, jitter: float = JITTER) -> Float[Array, "n n"]:
    """Lower Cholesky factor of a symmetric positive semidefinite matrix, jitter added: the only
    place where it is.
    """
    shift = jitter * jnp.trace(matrix) / max(matrix.shape[0], 1)
    return jnp.linalg.cholesky(matrix + shift * jnp.eye(matrix.shape[0]))


def solve_lower(factor: Float[Array, "n n"], right: Float[Array, "n ..."]) -> Float[Array, "n ..."]:
    """L⁻¹ B."""
    return jax.scipy.linalg.solve_triangular(factor, right, lower=True)


def solve_cholesky(
    factor: Float[Array, "n n"], right: Float[Array, "n ..."]
) -> Float[Array, "n ..."]:
    """(L Lᵀ)⁻¹ B."""
    return jax.scipy.linalg.cho_solve((factor, True), right)


def symmetric_root(matrix: Float[Array, "n n"]) -> tuple[Float[Array, "n n"], Float[Array, " n"]]:
    """U and √w with matrix = U diag(w) Uᵀ; eigenvalues below the jitter, which are rounding, are
    raised to it.
    """
    eigenvalues, vectors = jnp.linalg.eigh(matrix)
    return vectors, jnp.sqrt(jnp.maximum(eigenvalues, JITTER * eigenvalues[-1]))


def root(matrix: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """R with RRᵀ = matrix, for any positive semidefinite matrix; eigenvalues below 0 are rounding
    and count as 0.
    """
    eigenvalues, vectors = jnp.linalg.eigh(matrix)
    return vectors * jnp.sqrt(jnp.maximum(eigenvalues, 0.0))


def symmetric(matrix: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """The symmetric part."""
    return 0.5 * (matrix + matrix.T)


def inverse_small(matrix: Float[Array, "*b d d"]) -> Float[Array, "*b d d"]:
    """Inverse of 2×2 or 3×3 matrices by cofactors: faster and more accurate than LU at this size."""
    cofactors, determinant = cofactors_small(matrix)
    return cofactors / determinant[..., None, None]


def cofactors_small(
    matrix: Float[Array, "*b d d"],
) -> tuple[Float[Array, "*b d d"], Float[Array, "*b"]]:
    """C and |A| with A⁻¹ = C/|A|, of 2×2 or 3×3 matrices; by NumPy for NumPy's."""
    xp = namespace(matrix)
    if matrix.shape[-1] == 2:
        (a, b), (c, d) = (tuple(matrix[..., i, j] for j in range(2)) for i in range(2))
        return xp.stack([xp.stack([d, -b], -1), xp.stack([-c, a], -1)], -2), a * d - b * c
    u, v, w = (matrix[..., i, :] for i in range(3))
    vw, wu, uv = xp.cross(v, w), xp.cross(w, u), xp.cross(u, v)
    return xp.stack([vw, wu, uv], -1), xp.sum(u * vw, -1)


def solve_small(
    matrix: Float[Array, "*b d d"], right: Float[Array, "*b d e"]
) -> Float[Array, "*b d e"]:
    """A⁻¹B of 2×2 or 3×3 matrices, by cofactors.

    Not by LAPACK: its calls for many matrices spread over XLA's threads and wait for them, and two
    of them at a time wait for each other for ever where threads are few (seen with jaxlib 0.10).
    """
    size = jnp.max(
        jnp.abs(matrix), axis=(-2, -1), keepdims=True
    )  # determinants of small numbers are smaller than any
    return inverse_small(matrix / size) @ right / size


def cholesky_small(matrix: Float[Array, "*b d d"]) -> Float[Array, "*b d d"]:
    """Lower Cholesky factors of 2×2 or 3×3 matrices, written out."""
    d = matrix.shape[-1]
    rows: list[list[Array]] = []
    for i in range(d):
        rows.append([])
        for j in range(i + 1):
            left = matrix[..., i, j] - sum(
                (rows[i][k] * rows[j][k] for k in range(j)), start=jnp.zeros(())
            )
            rows[i].append(jnp.sqrt(left) if i == j else left / rows[j][j])
        rows[i] += [jnp.zeros_like(matrix[..., 0, 0])] * (d - 1 - i)
    return jnp.stack([jnp.stack(row, axis=-1) for row in rows], axis=-2)


def log_det_small(matrix: Float[Array, "*b d d"]) -> Float[Array, "*b"]:
    """Log |A| of positive definite 2×2 or 3×3 matrices."""
    return 2 * jnp.sum(jnp.log(jnp.diagonal(cholesky_small(matrix), axis1=-2, axis2=-1)), axis=-1)


def exponential(matrix: Float[Array, "k k"]) -> Float[Array, "k k"]:
    """Matrix exponential of a small matrix by a Taylor series with fixed scaling and squaring.

    To rounding for norms up to about 8; unlike the library's, it has derivatives of every order at
    zero.
    """
    scaled, total = matrix / 2**6, jnp.eye(matrix.shape[0])
    for k in range(12, 0, -1):
        total = jnp.eye(matrix.shape[0]) + scaled @ total / k
    for _ in range(6):
        total = total @ total
    return total


def matrix_of(product: Callable[[Array], Array], size: int, batch: int = 32) -> Float[Array, "m n"]:
    """The matrix of a linear map, column by column in equal batches, so that its program is
    compiled once.
    """
    batch = min(batch, size)
    count = -(-size // batch)
    directions = jnp.eye(count * batch, size).reshape(count, batch, size)
    columns = jax.lax.map(jax.vmap(product), directions)
    return columns.reshape(count * batch, -1)[:size].T


def block_diagonal(blocks: Float[Array, "n d e"]) -> Float[Array, "nd ne"]:
    """The matrix with these blocks on its diagonal."""
    n, d, e = blocks.shape
    return jnp.einsum("ij,iab->iajb", jnp.eye(n), blocks).reshape(n * d, n * e)


def simpson_weights(times: np.ndarray) -> np.ndarray:
    """Simpson weights, all positive, on pairs of equal steps (the pairs may differ)."""
    weights = np.zeros(len(times))
    half = (times[2::2] - times[:-2:2]) / 6
    weights[:-2:2] += half
    weights[1::2] += 4 * half
    weights[2::2] += half
    return weights


def time_grid(num_steps: int, stops: Sequence[float] | np.ndarray = ()) -> np.ndarray:
    """About `num_steps` steps over [0, 1], in Simpson pairs of equal steps that end at every stop."""
    ends = np.unique(np.concatenate([[0.0, 1.0], np.asarray(stops, float)]))
    pieces = [
        np.linspace(a, b, 2 * max(1, int(np.ceil((b - a) * num_steps / 2 - 1e-9))) + 1)[:-1]
        for a, b in itertools.pairwise(ends)
    ]
    return np.concatenate([*pieces, [1.0]])


def quadrature_weights(num_steps: int) -> np.ndarray:
    """Of the instants of a flow with so many equal steps; the flow that does not move has one."""
    return simpson_weights(time_grid(num_steps)) if num_steps else np.ones(1)


def rk4_step(
    field: Callable[[State], State], state: State, step: Scalar, slope: State | None = None
) -> State:
    """One step of the classical Runge–Kutta method for ẏ = field(y), of order 4; `slope` is
    field(state) if known.
    """

    def shifted(h: Scalar, slope: State) -> State:
        return jax.tree.map(lambda y, k: y + h * k, state, slope)

    k1 = field(state) if slope is None else slope
    k2 = field(shifted(step / 2, k1))
    k3 = field(shifted(step / 2, k2))
    k4 = field(shifted(step, k3))
    mean = jax.tree.map(lambda a, b, c, d: (a + 2 * b + 2 * c + d) / 6, k1, k2, k3, k4)
    return shifted(step, mean)


def staged_rk4_step(
    field: Callable[[State, Node], State], state: State, nodes: Node, step: Scalar
) -> State:
    """`rk4_step` for ẏ = field(y, node), the node of each of the four stages being known: the first
    axis of `nodes`.
    """
    stage = lambda i: jax.tree.map(lambda node: node[i], nodes)
    shifted = lambda h, slope: jax.tree.map(lambda y, k: y + h * k, state, slope)
    k1 = field(state, stage(0))
    k2 = field(shifted(step / 2, k1), stage(1))
    k3 = field(shifted(step / 2, k2), stage(2))
    k4 = field(shifted(step, k3), stage(3))
    return shifted(
        step, jax.tree.map(lambda a, b, c, d: (a + 2 * b + 2 * c + d) / 6, k1, k2, k3, k4)
    )


def compact_rk4_step(field: Callable[[State], State], state: State, step: Scalar) -> State:
    """`rk4_step` with its four stages as a loop: a third slower, but a quarter of the program to
    differentiate.
    """
    along = lambda y, h, slope: jax.tree.map(lambda a, b: a + h * b, y, slope)

    def stage(
        carry: tuple[State, State], node: Float[Array, "2"]
    ) -> tuple[tuple[State, State], None]:
        slope, total = carry
        slope = field(along(state, node[0] * step, slope))
        return (slope, along(total, node[1] * step, slope)), None

    nodes = jnp.array([[0, 1 / 6], [1 / 2, 1 / 3], [1 / 2, 1 / 3], [1, 1 / 6]])
    (_, end), _ = jax.lax.scan(stage, (jax.tree.map(jnp.zeros_like, state), state), nodes)
    return end
