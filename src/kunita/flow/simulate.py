"""Random paths of the flow itself: Euler–Maruyama with jointly correlated noise."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Key

from kunita import numerics
from kunita.errors import ArgumentError
from kunita.flow import shooting
from kunita.jaxrun.doors import Array, ArrayLike, as_count, as_points, door
from kunita.kernels import AbstractKernel


def as_key(key: Any) -> Key[jax.Array, ""]:
    """A random key from a key or from a seed."""
    if isinstance(key, int | np.integer):
        return jax.random.key(int(key))
    if not isinstance(key, jax.Array) or not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        raise ArgumentError(
            f"key: expected an integer seed or a key of jax.random.key, found {key!r:.80}"
        )
    return key


def euler_maruyama(
    kernel: AbstractKernel,
    trajectory: shooting.Trajectory,
    points: Float[Array, "m d"],
    noise: Float[Array, "t m d"],
) -> Float[Array, "m d"]:
    """One path of dx = v_t(x)dt + dB_t(x) from standard normal noise, on the trajectory's time
    grid.

    x ← x + h v(x) + √h (R(x) ⊗ I_d) ξ with R Rᵀ the Gram matrix at the *current* positions: the
    joint noise of `eq:prop-sde` of [wassermann:14], in the reading that agrees with its
    `eq:phi-de-param-2ndm`. Itô and Stratonovich coincide for the flow but not for its root R, so no
    other scheme (Heun, say) may be put in its place.
    """

    def step(x: Array, node: tuple[Array, ...]) -> tuple[Array, None]:
        q, p, h, xi = node
        v, _ = shooting.velocities(kernel, q, p, x)
        return x + h * v + jnp.sqrt(h) * numerics.cholesky(kernel.gram(x, x)) @ xi, None

    nodes = (trajectory.positions[:-1], trajectory.momenta[:-1], jnp.diff(trajectory.times), noise)
    return jax.lax.scan(step, points, nodes)[0]


@jax.jit
def _paths(
    kernel: AbstractKernel,
    trajectory: shooting.Trajectory,
    points: Float[Array, "m d"],
    keys: Key[jax.Array, " s"],
) -> Float[Array, "s m d"]:
    shape = (trajectory.num_steps, *points.shape)
    path = lambda key: euler_maruyama(kernel, trajectory, points, jax.random.normal(key, shape))
    return jax.lax.map(path, keys, batch_size=64)


@door
def simulate(
    kernel: Any,
    positions: ArrayLike,
    momenta: ArrayLike,
    points: ArrayLike | None = None,
    num_paths: int = 1000,
    num_steps: int = 100,
    key: Any = 0,
) -> Float[Array, "s m d"]:
    """Endpoints of random paths of the flow around a geodesic, by Euler–Maruyama, (num_paths, m,
    d).

    The same key gives the same paths. Zero momenta give draws from the prior.

    Args:
        kernel: the prior's covariance function.
        positions, momenta: (n, d), the start of the geodesic whose velocity is the mean velocity.
        points: (m, d) points that move jointly; by default the positions.
        num_paths: number of paths.
        num_steps: Euler steps; the Euler step folds space where a√h/σ is not small.
        key: a seed or a JAX random key.
    """
    grid = np.linspace(0, 1, as_count(num_steps, "num_steps") + 1)
    q, p = shooting.check_phase(kernel, positions, momenta)
    x = as_points(q if points is None else points, "points", q.shape[1])
    trajectory = shooting.geodesic_jit(kernel, q, p, jnp.asarray(grid))
    return _paths(
        kernel, trajectory, x, jax.random.split(as_key(key), as_count(num_paths, "num_paths"))
    )
