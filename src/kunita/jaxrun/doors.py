"""The doors between the caller and JAX: double precision inside, NumPy outside.

A door sets the precision for its own duration and leaves every global setting of JAX alone. What
the caller passes is checked here, at the border.
"""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from threadpoolctl import ThreadpoolController

from kunita.errors import ArgumentError
from kunita.jaxrun.forks import refuse_after_fork

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    # To the static checker an array is an array; the tests check shapes and kinds at run time.
    Array = Any
else:
    ArrayLike = Any
    Array = jax.Array | np.ndarray
    """What the core computes with: JAX arrays, and NumPy's on their way in and out."""

Scalar = float | Float[Array, ""]
"""A number, or an array that is one."""

P = ParamSpec("P")
R = TypeVar("R")


def door(function: Callable[P, R]) -> Callable[P, R]:
    """Run a public function in double precision and hand its result back as NumPy."""

    @functools.wraps(function)
    def in_double_precision(*args: P.args, **kwargs: P.kwargs) -> R:
        refuse_after_fork()
        with jax.enable_x64(True):
            return to_numpy(function(*args, **kwargs))

    return in_double_precision


def on_one_blas_thread(function: Callable[P, R]) -> Callable[P, R]:
    """Keep NumPy's and SciPy's BLAS and LAPACK to one thread while a function runs.

    XLA has threads of its own. Those of BLAS wait by spinning, and take from XLA's what they do not
    use.
    """

    @functools.wraps(function)
    def alone(*args: P.args, **kwargs: P.kwargs) -> R:
        refuse_after_fork()
        with _blas().limit(limits=1, user_api="blas"):
            return function(*args, **kwargs)

    return alone


@functools.cache
def _blas() -> ThreadpoolController:
    """The BLAS libraries of this process; to find them takes a moment."""
    return ThreadpoolController()


def to_numpy(tree: R) -> R:
    """The same tree with NumPy arrays in place of JAX arrays.

    Inside a function that is being compiled there is no number yet, and the tree stays as it is.
    """
    return jax.tree.map(_leaf_to_numpy, tree)


def _leaf_to_numpy(leaf: Any) -> Any:
    if isinstance(leaf, jax.core.Tracer):
        return leaf
    if isinstance(leaf, jax.Array):
        return np.asarray(leaf)
    return leaf


def namespace(*arrays: Any) -> Any:
    """NumPy if all the arrays are NumPy's, else `jax.numpy`.

    With it, the host compiles nothing to compute with a few numbers.
    """
    on_host = all(isinstance(array, np.ndarray) for array in arrays)
    return np if on_host else jnp


def as_floats(value: ArrayLike, name: str) -> np.ndarray:
    """Numbers as a NumPy array; what is masked becomes NaN, and what is not real is refused."""
    try:
        if np.iscomplexobj(value):
            raise TypeError("complex")
        numbers: np.ma.MaskedArray = np.ma.asarray(value, dtype=float)
        return numbers.filled(np.nan)
    except (TypeError, ValueError) as error:
        message = f"{name}: expected real numbers in a regular array, found {value!r:.80}"
        raise ArgumentError(message) from error


def as_count(number: int, name: str) -> int:
    """A positive integer, or a refusal that names the argument."""
    if not isinstance(number, int | np.integer) or number < 1:
        raise ArgumentError(f"{name}: expected a positive integer, found {number!r}")
    return int(number)


def as_points(points: ArrayLike, name: str, dimension: int | None = None) -> Float[Array, "n d"]:
    """Check a set of points at the border: (n, d) with d = 2 or 3, every number finite."""
    array = as_floats(points, name)
    dimensions = (2, 3) if dimension is None else (dimension,)
    if array.ndim != 2 or array.shape[1] not in dimensions:
        expected = " or ".join(map(str, dimensions))
        hint = "; a single point is [point]" if array.ndim == 1 else ""
        raise ArgumentError(
            f"{name}: expected an (n, d) array with d = {expected}, found shape {array.shape}{hint}"
        )
    finite = np.isfinite(array).all(axis=1)
    if not finite.all():
        row = int(np.argmin(finite))
        raise ArgumentError(f"{name}: row {row} is not finite: {array[row].tolist()}")
    return array
