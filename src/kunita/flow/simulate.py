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

BATCH = 64
"""Paths that are simulated side by side."""


def as_key(key: Any) -> Key[jax.Array, ""]:
    """Make a random key of a key or of a seed."""
    if isinstance(key, int | np.integer):
        return jax.random.key(int(key))
    if is_key(key):
        return key
    raise ArgumentError(
        f"key: expected an integer seed or a key of jax.random.key, found {key!r:.80}"
    )


def as_seed(key: Any) -> int:
    """Make a seed of NumPy's of a seed or of a random key of JAX."""
    if isinstance(key, int | np.integer) and key >= 0:
        return int(key)
    words = np.asarray(jax.random.key_data(as_key(key)))
    return int.from_bytes(words.tobytes(), "little")


def is_key(value: Any) -> bool:
    """Whether this is a typed random key of JAX."""
    if not isinstance(value, jax.Array):
        return False
    return bool(jnp.issubdtype(value.dtype, jax.dtypes.prng_key))


def euler_maruyama(
    kernel: AbstractKernel,
    trajectory: shooting.Trajectory,
    points: Float[Array, "m d"],
    noise: Float[Array, "t m d"],
) -> Float[Array, "m d"]:
    """One path of dx = v_t(x)dt + dB_t(x), on the trajectory's time grid.

    x ← x + h v(x) + √h (R(x) ⊗ I_d) ξ, with R Rᵀ the Gram matrix at the *current* positions: the
    joint noise of `eq:prop-sde` of [wassermann:14], in the reading that agrees with its
    `eq:phi-de-param-2ndm`. Itô and Stratonovich integrals coincide for the flow but not for its
    root R, so no other scheme (Heun, say) may take its place.

    Args:
        kernel: the prior's covariance function.
        trajectory: the geodesic whose velocity is v.
        points: where the path starts.
        noise: ξ, standard normal.
    """

    def step(x: Array, node: tuple[Array, ...]) -> tuple[Array, None]:
        q, p, h, xi = node
        v, _ = shooting.velocities(kernel, q, p, x)
        gram = kernel.gram(x, x)
        root = numerics.cholesky(gram)
        moved = x + h * v
        return moved + jnp.sqrt(h) * root @ xi, None

    nodes = (*trajectory.starts, trajectory.step_lengths, noise)
    return jax.lax.scan(step, points, nodes)[0]


@jax.jit
def _simulate_paths(
    kernel: AbstractKernel,
    trajectory: shooting.Trajectory,
    points: Float[Array, "m d"],
    keys: Key[jax.Array, " s"],
) -> Float[Array, "s m d"]:
    """The end of one path for each key."""
    shape = (trajectory.num_steps, *points.shape)

    def simulate_path(key: Key[jax.Array, ""]) -> Float[Array, "m d"]:
        noise = jax.random.normal(key, shape)
        return euler_maruyama(kernel, trajectory, points, noise)

    return jax.lax.map(simulate_path, keys, batch_size=BATCH)


@door
def simulate(
    kernel: Any,
    positions: ArrayLike,
    momenta: ArrayLike,
    points: ArrayLike | None = None,
    num_paths: int = 1000,
    num_steps: int = 100,
    *,
    key: Any = 0,
) -> Float[Array, "s m d"]:
    """Ends of random paths of the flow around a geodesic, (num_paths, m, d).

    The paths are those of the Euler–Maruyama scheme. The same key gives the same paths. Zero
    momenta give draws from the prior.

    Args:
        kernel: the prior's covariance function.
        positions, momenta: (n, d), the start of the geodesic whose velocity is the mean velocity.
        points: (m, d) points that move jointly; by default the positions.
        num_paths: number of paths.
        num_steps: Euler steps; the Euler step folds space where a√h/σ is not small.
        key: a seed or a JAX random key.
    """
    steps = as_count(num_steps, "num_steps")
    paths = as_count(num_paths, "num_paths")
    q, p = shooting.check_phase(kernel, positions, momenta)
    starts = q if points is None else points
    x = as_points(starts, "points", q.shape[1])
    grid = np.linspace(0, 1, steps + 1)
    trajectory = shooting.geodesic_jit(kernel, q, p, jnp.asarray(grid))
    keys = jax.random.split(as_key(key), paths)
    return _simulate_paths(kernel, trajectory, x, keys)
