"""Small numerical tools.

The only Cholesky with jitter, small inverses, conjugate gradients, sizes of point sets, quadrature,
Runge–Kutta.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float
from scipy.spatial.distance import cdist

from kunita.jaxrun.doors import Array, Scalar, namespace

State = TypeVar("State")
Node = TypeVar("Node")

JITTER = 1e-12
"""Relative to the mean of the diagonal.

It is the smallest that lets the Gram matrix of a smooth kernel be factored.
"""

ISOTROPIC = 1e-9
"""A matrix is isotropic if no entry is off by more than this fraction of its first one."""

COINCIDENT = 1e-6
"""Relative to the extent of a set of points: nearer ones count as the same point."""


# ----------------------------------------------------------------------------------- factorisations


def cholesky(matrix: Float[Array, "n n"], *, jitter: float = JITTER) -> Float[Array, "n n"]:
    """Lower Cholesky factor of a symmetric positive semidefinite matrix.

    This is the only place where jitter is added to a diagonal.
    """
    size = matrix.shape[0]
    total = jitter * jnp.trace(matrix)
    shift = total / max(size, 1)
    identity = jnp.eye(size)
    raised = matrix + shift * identity
    return jnp.linalg.cholesky(raised)


def solve_lower(factor: Float[Array, "n n"], right: Float[Array, "n ..."]) -> Float[Array, "n ..."]:
    """L⁻¹ B."""
    return jax.scipy.linalg.solve_triangular(factor, right, lower=True)


def solve_cholesky(
    factor: Float[Array, "n n"], right: Float[Array, "n ..."]
) -> Float[Array, "n ..."]:
    """(L Lᵀ)⁻¹ B."""
    lower = True
    return jax.scipy.linalg.cho_solve((factor, lower), right)


def log_det_of_factor(factor: Float[Array, "n n"]) -> Scalar:
    """log |LLᵀ|."""
    diagonal = jnp.diag(factor)
    half = jnp.sum(jnp.log(diagonal))
    return 2 * half


def symmetric_root(matrix: Float[Array, "n n"]) -> tuple[Float[Array, "n n"], Float[Array, " n"]]:
    """U and √w with matrix = U diag(w) Uᵀ.

    Eigenvalues below the jitter are rounding, and are raised to it.
    """
    eigenvalues, vectors = jnp.linalg.eigh(matrix)
    smallest = JITTER * eigenvalues[-1]
    raised = jnp.maximum(eigenvalues, smallest)
    roots = jnp.sqrt(raised)
    return vectors, roots


def root(matrix: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """R with RRᵀ = matrix, for any positive semidefinite matrix.

    Eigenvalues below 0 are rounding, and count as 0.
    """
    eigenvalues, vectors = jnp.linalg.eigh(matrix)
    variances = jnp.maximum(eigenvalues, 0.0)
    sds = jnp.sqrt(variances)
    return vectors * sds


def symmetric(matrix: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """The symmetric part."""
    return 0.5 * (matrix + matrix.T)


# ----------------------------------------------------------------------------- 2×2 and 3×3 matrices


def inverse_small(matrix: Float[Array, "*b d d"]) -> Float[Array, "*b d d"]:
    """Inverse of 2×2 or 3×3 matrices by cofactors.

    At this size it is faster and more accurate than by an LU factorisation.
    """
    cofactors, determinant = cofactors_small(matrix)
    divisor = determinant[..., None, None]
    return cofactors / divisor


def cofactors_small(
    matrix: Float[Array, "*b d d"],
) -> tuple[Float[Array, "*b d d"], Float[Array, "*b"]]:
    """C and |A| with A⁻¹ = C/|A|, of 2×2 or 3×3 matrices.

    NumPy's arrays are computed with by NumPy.
    """
    xp = namespace(matrix)
    if matrix.shape[-1] == 2:
        return _cofactors_2x2(matrix, xp)
    return _cofactors_3x3(matrix, xp)


def _cofactors_2x2(
    matrix: Float[Array, "*b 2 2"], xp: Any
) -> tuple[Float[Array, "*b 2 2"], Float[Array, "*b"]]:
    a = matrix[..., 0, 0]
    b = matrix[..., 0, 1]
    c = matrix[..., 1, 0]
    d = matrix[..., 1, 1]
    first_row = xp.stack([d, -b], -1)
    second_row = xp.stack([-c, a], -1)
    cofactors = xp.stack([first_row, second_row], -2)
    main_diagonal = a * d
    other_diagonal = b * c
    determinant = main_diagonal - other_diagonal
    return cofactors, determinant


def _cofactors_3x3(
    matrix: Float[Array, "*b 3 3"], xp: Any
) -> tuple[Float[Array, "*b 3 3"], Float[Array, "*b"]]:
    """By the rows u, v, w: the columns of C are v×w, w×u and u×v, and |A| = u·(v×w)."""
    u = matrix[..., 0, :]
    v = matrix[..., 1, :]
    w = matrix[..., 2, :]
    vw = xp.cross(v, w)
    wu = xp.cross(w, u)
    uv = xp.cross(u, v)
    cofactors = xp.stack([vw, wu, uv], -1)
    products = u * vw
    determinant = xp.sum(products, -1)
    return cofactors, determinant


def solve_small(
    matrix: Float[Array, "*b d d"], right: Float[Array, "*b d e"]
) -> Float[Array, "*b d e"]:
    """A⁻¹B of 2×2 or 3×3 matrices, by cofactors.

    Not by LAPACK: its calls for many matrices spread over XLA's threads and wait for them, and
    where threads are few two such calls wait for each other for ever (seen with jaxlib 0.10).
    """
    # Scaled to entries of size 1, since the determinant of very small entries would underflow.
    entries = jnp.abs(matrix)
    size = jnp.max(entries, axis=(-2, -1), keepdims=True)
    scaled = matrix / size
    inverse = inverse_small(scaled)
    solved = inverse @ right
    return solved / size


def solve_identity_small(matrix: Float[Array, "*b d d"]) -> Float[Array, "*b d d"]:
    """A⁻¹ by `solve_small`, for entries of any size."""
    d = matrix.shape[-1]
    eye = jnp.broadcast_to(jnp.eye(d), matrix.shape)
    return solve_small(matrix, eye)


def cholesky_small(matrix: Float[Array, "*b d d"]) -> Float[Array, "*b d d"]:
    """Lower Cholesky factors of 2×2 or 3×3 matrices, written out.

    NumPy's arrays are computed with by NumPy.
    """
    d = matrix.shape[-1]
    xp = namespace(matrix)
    zero = xp.zeros_like(matrix[..., 0, 0])
    rows: list[list[Array]] = []
    for i in range(d):
        entries = matrix[..., i, :]
        row = _factor_row(entries, rows)
        above_diagonal = [zero] * (d - 1 - i)
        rows.append(row + above_diagonal)
    stacked = [xp.stack(row, axis=-1) for row in rows]
    return xp.stack(stacked, axis=-2)


def _factor_row(entries: Float[Array, "*b d"], rows: Sequence[Sequence[Array]]) -> list[Array]:
    """The next row of the factor up to its diagonal, from those before it."""
    row: list[Array] = []
    for j, other in enumerate(rows):
        left = _less_products(entries[..., j], row, other[:j])
        row.append(left / other[j])
    i = len(rows)
    left = _less_products(entries[..., i], row, row)
    xp = namespace(left)
    row.append(xp.sqrt(left))
    return row


def _less_products(
    entry: Float[Array, "*b"], left: Sequence[Array], right: Sequence[Array]
) -> Float[Array, "*b"]:
    """An entry less the products of two rows of the factor that are known so far."""
    total = namespace(entry).zeros(())
    for a, b in zip(left, right, strict=True):
        total = total + a * b
    return entry - total


# ----------------------------------------------------------------------------------- other matrices


def exponential(matrix: Float[Array, "k k"]) -> Float[Array, "k k"]:
    """Matrix exponential of a small matrix by a Taylor series with fixed scaling and squaring.

    It is exact to rounding for norms up to about 8. Unlike the library's, it has derivatives of
    every order at zero.
    """
    identity = jnp.eye(matrix.shape[0])
    scaled = matrix / 2**6
    total = identity
    for k in range(12, 0, -1):  # Horner's rule for Σ scaledᵏ/k!
        total = identity + scaled @ total / k
    for _ in range(6):
        total = total @ total
    return total


def matrix_of(product: Callable[[Array], Array], size: int, batch: int = 32) -> Float[Array, "m n"]:
    """The matrix of a linear map.

    Columns are computed in equal batches, so that the program of one batch is compiled once.
    """
    batch = min(batch, size)
    count = -(-size // batch)  # the quotient, rounded up
    padded = count * batch
    identity = jnp.eye(padded, size)
    directions = identity.reshape(count, batch, size)
    products = jax.vmap(product)
    columns = jax.lax.map(products, directions)
    flat = columns.reshape(padded, -1)
    return flat[:size].T


def block_squares(half: Float[Array, "k n d"]) -> Float[Array, "n d d"]:
    """The diagonal blocks of BᵀB, for B whose columns come in n blocks of d."""
    return jnp.einsum("kia,kib->iab", half, half)


def are_isotropic(blocks: np.ndarray) -> bool:
    """Whether (n, d, d) matrices are numbers times the identity, to a fraction of `ISOTROPIC`."""
    d = blocks.shape[-1]
    sizes = blocks[:, :1, :1]
    off = np.abs(blocks - sizes * np.eye(d))
    return bool(np.all(off <= ISOTROPIC * np.abs(sizes)))


def block_diagonal(blocks: Float[Array, "n d e"]) -> Float[Array, "nd ne"]:
    """The matrix with these blocks on its diagonal."""
    n, d, e = blocks.shape
    identity = jnp.eye(n)
    spread = jnp.einsum("ij,iab->iajb", identity, blocks)
    num_rows = n * d
    num_columns = n * e
    return spread.reshape(num_rows, num_columns)


class Iterate(NamedTuple):
    """Where conjugate gradients are.

    Args:
        x: the solution so far.
        residual: r = b − Bx.
        direction, measured: p, in which the next step goes, and Gp.
        square: ⟨r, r⟩.
        gain, norm: what the last step added to ⟨x, Bx⟩, and that itself.
        num_steps: how many steps were made.
    """

    x: Array
    residual: Array
    direction: Array
    measured: Array
    square: Scalar
    gain: Scalar
    norm: Scalar
    num_steps: Scalar


def conjugate_gradients(
    product: Callable[[Array, Array], Array],
    metric: Callable[[Array], Array],
    right: Array,
    *,
    tolerance: float = 1e-9,
    least_gain: float = 0.0,
    max_steps: int = 1000,
) -> Iterate:
    """Solve Bx = b, for B that is self-adjoint and positive in the inner product ⟨x, y⟩ = xᵀGy.

    Every step brings x nearer in the norm √⟨x, Bx⟩. Where they end is for the caller to judge: by
    the residual, or by what follows from x.

    Args:
        product: Bx, from x and Gx.
        metric: Gx. G may be semidefinite; what it does not see stays in the residual.
        right: b, of any shape.
        tolerance: end where √⟨r, r⟩ is this small, relative to that of b.
        least_gain: end where a step adds less than this share to ⟨x, Bx⟩.
        max_steps: the most steps.
    """
    measured = metric(right)
    square = jnp.vdot(right, measured)
    zero = jnp.zeros_like(square)
    begin = Iterate(
        x=jnp.zeros_like(right),
        residual=right,
        direction=right,
        measured=measured,
        square=square,
        gain=zero,
        norm=zero,
        num_steps=jnp.zeros((), int),
    )
    enough = tolerance**2 * square

    def goes_on(here: Iterate) -> Bool[Array, ""]:
        gains = (here.gain > least_gain * here.norm) | (here.num_steps == 0)
        return (here.square > enough) & gains & (here.num_steps < max_steps)

    step = functools.partial(_conjugate_step, product, metric)
    return jax.lax.while_loop(goes_on, step, begin)


def _conjugate_step(
    product: Callable[[Array, Array], Array], metric: Callable[[Array], Array], here: Iterate
) -> Iterate:
    """To the minimum along the direction, and the next direction, B-orthogonal to it."""
    image = product(here.direction, here.measured)
    length = here.square / jnp.vdot(here.measured, image)
    gain = length * here.square
    residual = here.residual - length * image
    measured = metric(residual)
    square = jnp.vdot(residual, measured)
    ratio = square / here.square
    return Iterate(
        x=here.x + length * here.direction,
        residual=residual,
        direction=residual + ratio * here.direction,
        measured=measured + ratio * here.measured,
        square=square,
        gain=gain,
        norm=here.norm + gain,
        num_steps=here.num_steps + 1,
    )


# --------------------------------------------------------------------------------------- point sets


def largest_side(points: Float[Array, "n d"]) -> Scalar:
    """The longest side of the box around the points, along the axes."""
    xp = namespace(points)
    return xp.max(xp.ptp(points, axis=0))


def extent_and_spacing(points: np.ndarray, otherwise: float) -> tuple[float, float]:
    """The largest distance between two points, and the median distance to the nearest other one.

    Points within `COINCIDENT` of the extent are the same point, and no neighbours.

    Args:
        points: (n, d).
        otherwise: both numbers, if all points coincide.
    """
    distances = cdist(points, points)
    extent = float(distances.max())
    if not extent:
        return otherwise, otherwise
    apart = np.where(distances > COINCIDENT * extent, distances, np.inf)
    nearest = apart.min(axis=1)
    has_neighbour = np.isfinite(nearest)
    spacing = np.median(nearest[has_neighbour])
    return extent, float(spacing)


# -------------------------------------------------------------------------- quadrature, midpoints


def hermite_middles(
    values: Float[Array, "t ..."], rates: Float[Array, "t ..."], lengths: Array | float
) -> Float[Array, "s ..."]:
    """(y₀ + y₁)/2 + h(ẏ₀ − ẏ₁)/8 for every step: its cubic Hermite interpolant, halfway.

    Args:
        values, rates: y and ẏ at the ends of the steps.
        lengths: h, of all steps or of each (to be broadcast against the values).
    """
    mean = (values[:-1] + values[1:]) / 2
    bend = rates[:-1] - rates[1:]
    return mean + lengths / 8 * bend


def simpson_weights(times: np.ndarray) -> np.ndarray:
    """Simpson weights, all positive, on pairs of equal steps (the pairs may differ)."""
    weights = np.zeros(len(times))
    lengths = times[2::2] - times[:-2:2]
    sixth = lengths / 6
    weights[:-2:2] += sixth
    weights[1::2] += 4 * sixth
    weights[2::2] += sixth
    return weights


def time_grid(num_steps: int, stops: Sequence[float] | np.ndarray = ()) -> np.ndarray:
    """About `num_steps` steps over [0, 1], in Simpson pairs that end at every stop.

    The two steps of a pair are equal.
    """
    inner = np.asarray(stops, float)
    ends = np.unique(np.concatenate([[0.0, 1.0], inner]))
    pieces = []
    for start, stop in itertools.pairwise(ends):
        pairs = _pairs_of_steps(stop - start, num_steps)
        instants = np.linspace(start, stop, 2 * pairs + 1)
        pieces.append(instants[:-1])
    return np.concatenate([*pieces, [1.0]])


def _pairs_of_steps(length: float, num_steps: int) -> int:
    """How many pairs of steps a part of [0, 1] gets, at least one."""
    # Less 1e-9, so that rounding of the length does not add a pair.
    wanted = length * num_steps / 2 - 1e-9
    rounded = int(np.ceil(wanted))
    return max(1, rounded)


def quadrature_weights(num_steps: int) -> np.ndarray:
    """Weights of the instants of a flow with so many equal steps.

    A flow that does not move has no steps and one instant.
    """
    if num_steps == 0:
        return np.ones(1)
    return simpson_weights(time_grid(num_steps))


# -------------------------------------------------------------------------------------- Runge–Kutta


def rk4_step(
    field: Callable[[State], State], state: State, step: Scalar, slope: State | None = None
) -> State:
    """One step of the classical Runge–Kutta method for ẏ = field(y), of order 4.

    Args:
        field: ẏ at a state.
        state: y at the start of the step.
        step: its length.
        slope: field(state), if it is known.
    """
    half = step / 2
    k1 = field(state) if slope is None else slope
    k2 = field(_along(state, half, k1))
    k3 = field(_along(state, half, k2))
    k4 = field(_along(state, step, k3))
    mean = _rk4_mean(k1, k2, k3, k4)
    return _along(state, step, mean)


def staged_rk4_step(
    field: Callable[[State, Node], State], state: State, nodes: Node, step: Scalar
) -> State:
    """`rk4_step` for ẏ = field(y, node), where the node of each of the four stages is known.

    The stages are the first axis of `nodes`.
    """
    half = step / 2
    k1 = field(state, _at(nodes, 0))
    second = _along(state, half, k1)
    k2 = field(second, _at(nodes, 1))
    third = _along(state, half, k2)
    k3 = field(third, _at(nodes, 2))
    fourth = _along(state, step, k3)
    k4 = field(fourth, _at(nodes, 3))
    mean = _rk4_mean(k1, k2, k3, k4)
    return _along(state, step, mean)


def compact_rk4_step(field: Callable[[State], State], state: State, step: Scalar) -> State:
    """`rk4_step` with its four stages as a loop.

    It is a third slower, but its program is a quarter of the size to differentiate.
    """

    def stage(
        carry: tuple[State, State], node: Float[Array, "2"]
    ) -> tuple[tuple[State, State], None]:
        slope, total = carry
        reach = node[0] * step
        weight = node[1] * step
        slope = field(_along(state, reach, slope))
        total = _along(total, weight, slope)
        return (slope, total), None

    # Of each stage, how far it goes along the slope before it, and its weight in the mean.
    nodes = jnp.array([[0, 1 / 6], [1 / 2, 1 / 3], [1 / 2, 1 / 3], [1, 1 / 6]])
    at_rest = jax.tree.map(jnp.zeros_like, state)
    (_, end), _ = jax.lax.scan(stage, (at_rest, state), nodes)
    return end


def _along(state: State, step: Scalar, slope: State) -> State:
    """y + h·k."""

    def moved(y: Any, k: Any) -> Any:
        change = step * k
        return y + change

    return jax.tree.map(moved, state, slope)


def _rk4_mean(k1: State, k2: State, k3: State, k4: State) -> State:
    """The slope of the whole step from those of its stages."""

    def mean(a: Any, b: Any, c: Any, d: Any) -> Any:
        in_the_middle = a + 2 * b + 2 * c
        total = in_the_middle + d
        return total / 6

    return jax.tree.map(mean, k1, k2, k3, k4)


def _at(nodes: Node, stage: int) -> Node:
    """The node of one stage."""
    at_stage = lambda node: node[stage]
    return jax.tree.map(at_stage, nodes)


def root_small(matrices: Float[Array, "n d d"]) -> Float[Array, "n d d"]:
    """R with RRᵀ = A for positive semidefinite matrices; in NumPy."""
    values, vectors = np.linalg.eigh(matrices)
    return vectors * np.sqrt(np.maximum(values, 0))[:, None, :]


def factor_semidefinite(matrix: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """R with RRᵀ = A, for A that is positive semidefinite up to rounding in single precision.

    In NumPy: the Cholesky factor of A and a little of the identity, or, where rounding is more than
    that, a root without the negative eigenvalues.
    """
    symmetric = (matrix + matrix.T) / 2
    tiny = 1e-6 * np.trace(symmetric) / len(symmetric)
    lifted = symmetric + tiny * np.eye(len(symmetric))
    try:
        return np.linalg.cholesky(lifted)
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(symmetric)
        return vectors * np.sqrt(np.maximum(values, 0))
