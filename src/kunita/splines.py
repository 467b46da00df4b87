"""Cubic splines on regular grids: sampling with gradients, stencils as sparse matrices, one axis.

A spline is f(x) = Σ_g c_g β(x − g), with x in units of the grid and β the cubic B-spline. In two
and three dimensions it is a tensor product. Beyond the outermost cells the value at the border
goes on.

In arrays the splines come first, and the grid or the points last: (q, *grid) coefficients, (q, k)
values. The loops over points are compiled by numba: XLA takes eleven times as long for them, and
compiles them again for every size of image.
"""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from jaxtyping import Float

from kunita.jaxrun.doors import Array

WIDTH = 4
"""Coefficients along an axis that a value depends on."""

CACHED = 500_000
"""Numbers that stay in the cache while a matrix is multiplied along each axis."""

MANY = 16
"""From so many splines on the inner loop runs over them: for 48 it takes a third of the time."""


def as_machine_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a loop, and keep it for the next process.

    What checks the types of arguments in tests wraps the function, and must be taken off first.
    """
    loop = inspect.unwrap(function)
    try:
        return numba.njit(cache=True, nogil=True, fastmath=True)(loop)
    except RuntimeError:  # numba's word where it may write neither here nor in the user's cache
        return numba.njit(nogil=True, fastmath=True)(loop)


def basis(distances: Float[Array, "..."]) -> Float[Array, "..."]:
    """β: the cubic B-spline at distances from its centre, in units of the grid."""
    t = np.abs(distances)
    inner = 2 / 3 - t**2 + t**3 / 2
    outer = (2 - t) ** 3 / 6
    return np.where(t < 1, inner, np.where(t < 2, outer, 0.0))


def gram(count: int) -> Float[Array, "n n"]:
    """β(g − h) for all nodes of an axis: from coefficients to values at the nodes."""
    nodes = np.arange(count)
    distances = np.subtract.outer(nodes, nodes)
    return basis(distances.astype(float))


def natural_matrix(places: Float[Array, " k"], count: int) -> Float[Array, "k n"]:
    """From values at the nodes 0 … n − 1 of an axis to the natural spline through them at places.

    One coefficient more stands at either side, c₋₁ = 2c₀ − c₁, so that constants and straight lines
    are met exactly up to the outermost nodes.
    """
    grid = np.arange(-1, count + 1)
    distances = np.subtract.outer(places, grid)
    all_coefficients = basis(distances)
    closed = all_coefficients[:, 1:-1].copy()
    at_nodes = gram(count)
    for end, neighbour, beyond in ((0, 1, 0), (count - 1, count - 2, -1)):
        closed[:, end] += 2 * all_coefficients[:, beyond]
        closed[:, neighbour] -= all_coefficients[:, beyond]
        # At an end, (c₋₁ + 4c₀ + c₁)/6 = c₀.
        at_nodes[end] = 0.0
        at_nodes[end, end] = 1.0
    return np.linalg.solve(at_nodes.T, closed.T).T


def slopes_at_nodes(values: Float[Array, "..."], axis: int) -> Float[Array, "..."]:
    """The derivative along an axis, at the nodes, of the natural spline through the values there.

    It errs by (wave number)⁴/180, where differences of neighbours err by (wave number)²/6: fine
    texture is steeper than these say. It solves s₋₁ + 4s₀ + s₁ = 3(f₁ − f₋₁), and at an end
    2s₀ + s₁ = 3(f₁ − f₀).
    """
    # The loop runs along rows in memory, of which the last axis has none.
    front = np.moveaxis(values, axis, 0)
    lines = np.ascontiguousarray(front).reshape(len(front), -1)
    slopes = np.empty_like(lines)
    _solve_slopes(lines, _eliminated(len(front)).astype(values.dtype), slopes)
    return np.moveaxis(slopes.reshape(front.shape), 0, axis)


def _eliminated(count: int) -> Float[Array, " n"]:
    """What multiplies each row of that system when the one before is subtracted from it."""
    diagonal = np.full(count, 4.0)
    diagonal[[0, -1]] = 2.0
    factors = 1 / diagonal
    for row in range(1, count):
        factors[row] = 1 / (diagonal[row] - factors[row - 1])
    return factors


@as_machine_code
def _solve_slopes(f, factors, slopes):  # type: ignore[no-untyped-def]
    """The loop of `slopes_at_nodes`: down the rows, and up again."""
    last = len(f) - 1
    for row in range(len(f)):
        before = max(row - 1, 0)
        behind = min(row + 1, last)
        _subtract(f[behind], f[before], 3.0 * factors[row], slopes[row])
    for row in range(1, len(f)):
        _take_off(slopes[row - 1], factors[row], slopes[row])
    for row in range(last - 1, -1, -1):
        _take_off(slopes[row + 1], factors[row], slopes[row])


@as_machine_code
def _subtract(first, second, factor, product):  # type: ignore[no-untyped-def]
    """(a − b) times a factor."""
    for k in range(product.shape[0]):
        product[k] = factor * (first[k] - second[k])


@as_machine_code
def _take_off(other, factor, values):  # type: ignore[no-untyped-def]
    """Another row times a factor, from a row."""
    for k in range(values.shape[0]):
        values[k] -= factor * other[k]


def separable(matrices: list[np.ndarray], values: Float[Array, "q ..."]) -> Float[Array, "q ..."]:
    """A matrix along each axis of space.

    Of many splines some are taken at a time, so that what lies between two axes stays in the cache.
    """
    shape = tuple(len(matrix) for matrix in matrices)
    largest = max(np.prod(values.shape[1:]), np.prod(shape))
    together = max(1, int(CACHED // largest))
    if len(values) <= together:
        return _multiply_along_all(matrices, values)
    products = np.empty((len(values), *shape), np.result_type(values, *matrices))
    for first in range(0, len(values), together):
        some = slice(first, first + together)
        products[some] = _multiply_along_all(matrices, values[some])
    return products


def _multiply_along_all(
    matrices: list[np.ndarray], values: Float[Array, "q ..."]
) -> Float[Array, "q ..."]:
    """A matrix along each axis of space, of all splines at once."""
    product = values
    for axis in reversed(range(len(matrices))):
        product = multiply_along(matrices[axis], product, axis + 1)
    return product


def multiply_along(
    matrix: Float[Array, "m n"], values: Float[Array, "..."], axis: int
) -> Float[Array, "..."]:
    """A matrix along one axis."""
    shape = values.shape
    if axis == len(shape) - 1:
        # One product of two matrices; NumPy would make many small ones of it.
        rows = values.reshape(-1, shape[-1]) @ matrix.T
        return rows.reshape(*shape[:-1], len(matrix))
    before = int(np.prod(shape[:axis]))
    behind = int(np.prod(shape[axis + 1 :]))
    moved = np.matmul(matrix, values.reshape(before, shape[axis], behind))
    return moved.reshape(*shape[:axis], len(matrix), *shape[axis + 1 :])


def blockwise(
    matrices: Float[Array, "a b n"], vectors: Float[Array, "c b n"]
) -> Float[Array, "c a n"]:
    """A matrix for each point times vectors there, the points last; in single precision."""
    product = np.empty((len(vectors), *matrices[:, 0].shape), np.float32)
    _multiply_blocks(matrices, vectors, product)
    return product


@as_machine_code
def _multiply_blocks(matrices, vectors, product):  # type: ignore[no-untyped-def]
    """The loop of `blockwise`."""
    for c in range(vectors.shape[0]):
        for a in range(matrices.shape[0]):
            total = product[c, a]
            for k in range(total.shape[0]):
                total[k] = matrices[a, 0, k] * vectors[c, 0, k]
            for b in range(1, matrices.shape[1]):
                for k in range(total.shape[0]):
                    total[k] += matrices[a, b, k] * vectors[c, b, k]


# ---------------------------------------------------------------------------------------- sampling


def sample(
    coefficients: Float[Array, "q ..."], places: Float[Array, "k d"]
) -> tuple[Float[Array, "k q"], Float[Array, "k q d"]]:
    """Values and gradients of splines at places, both in units of the grid; points first.

    Args:
        coefficients: of q splines on one grid.
        places: in units of the grid.
    """
    k, d = places.shape
    q = len(coefficients)
    values = np.empty((k, q), coefficients.dtype)
    slopes = np.empty((k, q, d), coefficients.dtype)
    _sample(as_volumes(coefficients), np.ascontiguousarray(places), values, slopes)
    return values, slopes


def as_volumes(coefficients: Float[Array, "q ..."]) -> Float[Array, "q n0 n1 n2"]:
    """Planes as volumes of one slice."""
    volumes = coefficients if coefficients.ndim == 4 else coefficients[..., None]
    return np.ascontiguousarray(volumes)


@as_machine_code
def _weights(u, values, slopes):  # type: ignore[no-untyped-def]
    """β and β′ of the four nodes around a place, u beyond the second of them."""
    v = 1.0 - u
    values[0] = v * v * v / 6
    values[1] = 2 / 3 - u * u + u * u * u / 2
    values[2] = 2 / 3 - v * v + v * v * v / 2
    values[3] = u * u * u / 6
    slopes[0] = -v * v / 2
    slopes[1] = -2 * u + 1.5 * u * u
    slopes[2] = 2 * v - 1.5 * v * v
    slopes[3] = u * u / 2


@as_machine_code
def _locate(x, count, weights, slopes):  # type: ignore[no-untyped-def]
    """The first of the four nodes around a place, with β and β′ of all of them."""
    last = count - 2.0
    clipped = min(max(x, 1.0), last)
    cell = min(int(clipped), count - 3)
    _weights(clipped - cell, weights, slopes)
    if clipped != x:
        slopes[:] = 0.0  # beyond the border the value is constant
    return cell - 1


@as_machine_code
def _sample(c, places, values, slopes):  # type: ignore[no-untyped-def]
    """The loop of `sample`: a plane has one slice, and a stencil of one there."""
    d = places.shape[1]
    weight = np.zeros((3, 4))
    slope = np.zeros((3, 4))
    first = np.zeros(3, np.int64)
    found = np.zeros(4)
    weight[2, 0] = 1.0
    depth = 4 if d == 3 else 1
    for k in range(places.shape[0]):
        for a in range(d):
            first[a] = _locate(places[k, a], c.shape[a + 1], weight[a], slope[a])
        for e in range(c.shape[0]):
            _combine(c[e], first, weight, slope, depth, found)
            values[k, e] = found[0]
            for a in range(d):
                slopes[k, e, a] = found[a + 1]


@as_machine_code
def _combine(c, first, weight, slope, depth, found):  # type: ignore[no-untyped-def]
    """The value and the derivatives of one spline at one place, into `found`."""
    value = 0.0
    along0 = 0.0
    along1 = 0.0
    along2 = 0.0
    for i in range(4):
        for j in range(4):
            line = 0.0
            line2 = 0.0
            for m in range(depth):
                coefficient = c[first[0] + i, first[1] + j, first[2] + m]
                line += weight[2, m] * coefficient
                line2 += slope[2, m] * coefficient
            both = weight[0, i] * weight[1, j]
            value += both * line
            along0 += slope[0, i] * weight[1, j] * line
            along1 += weight[0, i] * slope[1, j] * line
            along2 += both * line2
    found[0] = value
    found[1] = along0
    found[2] = along1
    found[3] = along2


# ------------------------------------------------------------------ the same places again and again


@dataclasses.dataclass(frozen=True, eq=False)
class Stencils:
    """β at fixed places: a linear map from coefficients to values, and its adjoint.

    Args:
        shape: of the grid.
        first: (k, 3) the first node of each stencil.
        weights: (k, 3, 4) of the nodes along each axis.
    """

    shape: tuple[int, ...]
    first: np.ndarray
    weights: np.ndarray

    @classmethod
    def at(cls, places: Float[Array, "k d"], shape: tuple[int, ...]) -> "Stencils":
        """Around places, in units of the grid."""
        k = len(places)
        first = np.zeros((k, 3), np.int64)
        weights = np.zeros((k, 3, WIDTH), np.float32)
        weights[:, :, 0] = 1.0
        for axis, count in enumerate(shape):
            x = np.clip(places[:, axis], 1, count - 2)
            cell = np.minimum(x.astype(np.int64), count - 3)
            first[:, axis] = cell - 1
            nodes = cell[:, None] + np.arange(-1, 3)
            weights[:, axis] = basis(x[:, None] - nodes)
        return cls(shape, first, weights)

    def take(self, some: slice | np.ndarray) -> "Stencils":
        """Those of some of the places."""
        return Stencils(self.shape, self.first[some], self.weights[some])

    def gather(self, coefficients: Float[Array, "q ..."]) -> Float[Array, "q k"]:
        """The values of q splines."""
        volumes = as_volumes(coefficients)
        q = len(volumes)
        k = len(self.first)
        if self._has_many(q):
            values = np.empty((k, q), np.float32)
            _gather_many(_splines_last(volumes), self.first, self.weights, values)
            return np.ascontiguousarray(values.T)
        values = np.empty((q, k), np.float32)
        loop = _gather_volume if len(self.shape) == 3 else _gather_plane
        loop(volumes, self.first, self.weights, values)
        return values

    def scatter(self, values: Float[Array, "q k"]) -> Float[Array, "q ..."]:
        """The adjoint of `gather`."""
        q = len(values)
        single = np.ascontiguousarray(values, np.float32)
        if self._has_many(q):
            last = np.zeros((*self.shape, q), np.float32)
            _scatter_many(np.ascontiguousarray(single.T), self.first, self.weights, last)
            return np.ascontiguousarray(np.moveaxis(last, -1, 0))
        coefficients = np.zeros((q, *self.shape), np.float32)
        volumes = as_volumes(coefficients)
        loop = _scatter_volume if len(self.shape) == 3 else _scatter_plane
        loop(single, self.first, self.weights, volumes)
        return volumes.reshape(q, *self.shape)

    def _has_many(self, count: int) -> bool:
        """Whether there are so many splines that a loop over them is the fastest inner one."""
        return len(self.shape) == 3 and count >= MANY


def _splines_last(volumes: Float[Array, "q ..."]) -> Float[Array, "... q"]:
    return np.ascontiguousarray(np.moveaxis(volumes, 0, -1))


@as_machine_code
def _gather_plane(c, first, weights, values):  # type: ignore[no-untyped-def]
    """The loop of `Stencils.gather` in 2-D."""
    for e in range(c.shape[0]):
        for k in range(first.shape[0]):
            x = first[k, 0]
            y = first[k, 1]
            s = np.float32(0.0)
            for i in range(4):
                row = np.float32(0.0)
                for j in range(4):
                    row += weights[k, 1, j] * c[e, x + i, y + j, 0]
                s += weights[k, 0, i] * row
            values[e, k] = s


@as_machine_code
def _scatter_plane(values, first, weights, c):  # type: ignore[no-untyped-def]
    """The loop of `Stencils.scatter` in 2-D."""
    for e in range(c.shape[0]):
        for k in range(first.shape[0]):
            x = first[k, 0]
            y = first[k, 1]
            for i in range(4):
                row = weights[k, 0, i] * values[e, k]
                for j in range(4):
                    c[e, x + i, y + j, 0] += weights[k, 1, j] * row


@as_machine_code
def _gather_volume(c, first, weights, values):  # type: ignore[no-untyped-def]
    """The loop of `Stencils.gather` in 3-D."""
    for e in range(c.shape[0]):
        volume = c[e]
        for k in range(first.shape[0]):
            x = first[k, 0]
            y = first[k, 1]
            z = first[k, 2]
            w = weights[k, 2]
            total = np.float32(0.0)
            for i in range(4):
                for j in range(4):
                    # Written out: four products at once are one instruction.
                    line = volume[x + i, y + j]
                    left = w[0] * line[z] + w[1] * line[z + 1]
                    right = w[2] * line[z + 2] + w[3] * line[z + 3]
                    total += weights[k, 0, i] * weights[k, 1, j] * (left + right)
            values[e, k] = total


@as_machine_code
def _scatter_volume(values, first, weights, c):  # type: ignore[no-untyped-def]
    """The loop of `Stencils.scatter` in 3-D."""
    for e in range(c.shape[0]):
        volume = c[e]
        for k in range(first.shape[0]):
            x = first[k, 0]
            y = first[k, 1]
            z = first[k, 2]
            w = weights[k, 2]
            for i in range(4):
                row = weights[k, 0, i] * values[e, k]
                for j in range(4):
                    share = weights[k, 1, j] * row
                    line = volume[x + i, y + j]
                    line[z] += w[0] * share
                    line[z + 1] += w[1] * share
                    line[z + 2] += w[2] * share
                    line[z + 3] += w[3] * share


@as_machine_code
def _gather_many(c, first, weights, values):  # type: ignore[no-untyped-def]
    """The loop of `Stencils.gather` in 3-D over many splines, which come last."""
    count = c.shape[3]
    for k in range(first.shape[0]):
        x = first[k, 0]
        y = first[k, 1]
        z = first[k, 2]
        values[k] = 0.0
        for i in range(4):
            for j in range(4):
                w = weights[k, 0, i] * weights[k, 1, j]
                for m in range(4):
                    share = w * weights[k, 2, m]
                    for e in range(count):
                        values[k, e] += share * c[x + i, y + j, z + m, e]


@as_machine_code
def _scatter_many(values, first, weights, c):  # type: ignore[no-untyped-def]
    """The loop of `Stencils.scatter` in 3-D over many splines, which come last."""
    count = c.shape[3]
    for k in range(first.shape[0]):
        x = first[k, 0]
        y = first[k, 1]
        z = first[k, 2]
        for i in range(4):
            for j in range(4):
                w = weights[k, 0, i] * weights[k, 1, j]
                for m in range(4):
                    share = w * weights[k, 2, m]
                    for e in range(count):
                        c[x + i, y + j, z + m, e] += share * values[k, e]
