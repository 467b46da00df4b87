"""The doors between the caller and JAX: 64-bit inside, NumPy outside, no global setting touched."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from threadpoolctl import ThreadpoolController

from kunita.errors import ArgumentError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    Array = Any  # to the static checker an array is an array; shapes and kinds are checked at run time, in the tests
else:
    ArrayLike = Any
    Array = jax.Array | np.ndarray
    """What the core computes with: JAX arrays, and NumPy's on their way in and out."""

Scalar = float | Float[Array, ""]
"""A number, or an array that is one."""

P = ParamSpec("P")
R = TypeVar("R")


def to_numpy(tree: R) -> R:
    """The same tree with NumPy arrays in place of JAX arrays; within a function that is being
    compiled as it is.
    """
    known = lambda leaf: isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer)
    return jax.tree.map(lambda leaf: np.asarray(leaf) if known(leaf) else leaf, tree)


def namespace(*arrays: Any) -> Any:
    """NumPy for NumPy's arrays, so that the host compiles nothing for a few numbers; else JAX's."""
    return np if all(isinstance(array, np.ndarray) for array in arrays) else jnp


@functools.cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()


def on_one_blas_thread(function: Callable[P, R]) -> Callable[P, R]:
    """Keep BLAS and LAPACK, NumPy's and SciPy's, to one thread: XLA has its own, and theirs would
    wait by spinning.
    """

    @functools.wraps(function)
    def alone(*args: P.args, **kwargs: P.kwargs) -> R:
        with _blas().limit(limits=1, user_api="blas"):
            return function(*args, **kwargs)

    return alone


def door(function: Callable[P, R]) -> Callable[P, R]:
    """Run a public function in double precision and hand its result back as NumPy."""

    @functools.wraps(function)
    def in_double_precision(*args: P.args, **kwargs: P.kwargs) -> R:
        with jax.enable_x64(True):
            return to_numpy(function(*args, **kwargs))

    return in_double_precision


def as_floats(value: ArrayLike, name: str) -> np.ndarray:
    """Numbers as a NumPy array, or a refusal that names the argument."""
    try:
        if np.iscomplexobj(value):
            raise TypeError("complex")
        return np.ma.filled(
            np.ma.asarray(value, dtype=float), np.nan
        )  # a masked number is not a number
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"{name}: expected real numbers in a regular array, found {value!r:.80}"
        ) from error


def as_count(number: int, name: str) -> int:
    """A positive integer, or a refusal that names the argument."""
    if not isinstance(number, int | np.integer) or number < 1:
        raise ArgumentError(f"{name}: expected a positive integer, found {number!r}")
    return int(number)


def as_points(points: ArrayLike, name: str, dimension: int | None = None) -> Float[Array, "n d"]:
    """Check a set of points at the border: (n, d) with d = 2 or 3, every number finite."""
    array = as_floats(points, name)
    expected = "2 or 3" if dimension is None else str(dimension)
    if array.ndim != 2 or array.shape[1] not in ((2, 3) if dimension is None else (dimension,)):
        hint = "; a single point is [point]" if array.ndim == 1 else ""
        raise ArgumentError(
            f"{name}: expected an (n, d) array with d = {expected}, found shape {array.shape}{hint}"
        )
    bad = np.flatnonzero(~np.isfinite(array).all(axis=1))
    if bad.size:
        raise ArgumentError(f"{name}: row {bad[0]} is not finite: {array[bad[0]].tolist()}")
    return array
