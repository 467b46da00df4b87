"""The moments of the stochastic flow by simulation: the referee of the closures.

The moment equations are exact as long as their expectations are. Here the expectations are averages
over simulated paths, so the noise of a step, whose moments are known, adds nothing to the error:
what is left to chance is only how the velocity and the kernel vary over the spread of the points,
which is just what a closure approximates.

*Departure*: the usual control variate, the linearised path driven by the same noise, leaves ∫(R(x)
− R(m))dW to chance, where R is the root of the kernel's matrix. Here that is integrated out, which
makes chance several times smaller.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Key

from kunita import numerics
from kunita.errors import ArgumentError
from kunita.flow import shooting
from kunita.flow.moments import State, euler_moments
from kunita.jaxrun.doors import Array
from kunita.kernels import AbstractKernel

CHUNK = 32
"""Pairs of paths that are simulated at once."""


@dataclasses.dataclass(frozen=True, eq=False)
class Estimate:
    """Mean, (n, d), and joint covariance, (n, d, n, d), of where simulated paths end."""

    mean: np.ndarray
    covariance: np.ndarray


def simulated_moments(
    kernel: AbstractKernel,
    trajectory: shooting.Trajectory,
    points: Float[Array, "n d"],
    key: Key[jax.Array, ""],
) -> tuple[Float[Array, "n d"], Float[Array, "nd nd"]]:
    """How far the Euler–Maruyama chain's moments are from those of closure `frozen`: b = E[z], S −
    Λ = E[zzᵀ] − Λ.

    With z = x − m the distance from the mean path, B = I + hDv(m) and r = v(x) − v(m) − Dv(m)z,
    taking the expectation over each step's own noise first gives, exactly for the discrete chain,

        b ← Bb + hE[r],   S − Λ ← B(S − Λ)Bᵀ + h(E[Bz rᵀ] + E[r zᵀBᵀ]) + h²E[rrᵀ] + h(E[K(x)] −
        K(m)) ⊗ I_d,

    and E is the average over `CHUNK` pairs of paths with noise ξ and −ξ.
    """
    n, d = points.shape

    def step(state: tuple[Array, ...], node: tuple[Array, ...]) -> tuple[tuple[Array, ...], None]:
        m, x, b, excess = state
        q, p, h, key = node
        v, dv = shooting.velocities(kernel, q, p, m)
        v_x = jax.vmap(lambda x: shooting.velocities(kernel, q, p, x)[0])(x)
        gram_x = jax.vmap(lambda x: kernel.gram(x, x))(x)
        carry = jnp.eye(d) + h * dv
        z = x - m
        r = v_x - v - jnp.einsum("iab,sib->sia", dv, z)
        cross = h * _average(jnp.einsum("iab,sib->sia", carry, z), r)
        diffusion = h * jnp.kron(gram_x.mean(axis=0) - kernel.gram(m, m), jnp.eye(d))
        new = cross + cross.T + h**2 * _average(r, r) + diffusion
        excess = (
            jnp.einsum("iab,ibjc,jdc->iajd", carry, excess.reshape(n, d, n, d), carry).reshape(
                n * d, n * d
            )
            + new
        )
        b = jnp.einsum("iab,ib->ia", carry, b) + h * r.mean(axis=0)
        xi = jax.random.normal(key, (CHUNK, n, d))
        kick = jax.vmap(numerics.cholesky)(gram_x) @ jnp.concatenate([xi, -xi])
        return (m + h * v, x + h * v_x + jnp.sqrt(h) * kick, b, excess), None

    keys = jax.random.split(key, trajectory.num_steps)
    nodes = (trajectory.positions[:-1], trajectory.momenta[:-1], jnp.diff(trajectory.times), keys)
    start = (
        points,
        jnp.broadcast_to(points, (2 * CHUNK, n, d)),
        jnp.zeros((n, d)),
        jnp.zeros((n * d, n * d)),
    )
    _, _, b, excess = jax.lax.scan(step, start, nodes)[0]
    return b, excess


def _average(left: Float[Array, "s n d"], right: Float[Array, "s n d"]) -> Float[Array, "nd nd"]:
    """E[l rᵀ] of flattened vectors."""
    return left.reshape(len(left), -1).T @ right.reshape(len(right), -1) / len(left)


@jax.jit
def _chunks(
    kernel: AbstractKernel,
    trajectory: shooting.Trajectory,
    points: Float[Array, "n d"],
    keys: Key[jax.Array, " c"],
) -> tuple[State, Float[Array, "c n d"], Float[Array, "c nd nd"]]:
    chunk = lambda key: simulated_moments(kernel, trajectory, points, key)
    return euler_moments(kernel, "frozen", trajectory, points), *jax.lax.map(chunk, keys)


def referee(
    kernel: AbstractKernel,
    trajectory: shooting.Trajectory,
    points: Float[Array, "n d"],
    num_chunks: int,
    key: Key[jax.Array, ""],
) -> tuple[Estimate, Estimate]:
    """Two independent, unbiased estimates of the moments of the Euler–Maruyama chain on the
    trajectory's time grid.

    Each is from `num_chunks` (at least two) chunks of `CHUNK` pairs of paths.
    """
    if num_chunks < 2:
        raise ArgumentError(f"num_chunks: expected at least 2, found {num_chunks}")
    (mean, cov), shifts, excesses = _chunks(
        kernel, trajectory, points, jax.random.split(key, 2 * num_chunks)
    )
    (b1, b2), (e1, e2) = (np.split(np.asarray(part), 2) for part in (shifts, excesses))
    return _estimate(np.asarray(mean), np.asarray(cov), b1, e1), _estimate(
        np.asarray(mean), np.asarray(cov), b2, e2
    )


def _estimate(
    mean: np.ndarray, cov: np.ndarray, shifts: np.ndarray, excesses: np.ndarray
) -> Estimate:
    """E[x] = m + b, Cov[x] = S − bbᵀ; the square of the estimate of b is too large by its own
    variance, taken off.
    """
    b = shifts.mean(axis=0)
    flat = shifts.reshape(len(shifts), -1)
    square = np.outer(b, b) - np.cov(flat.T) / len(shifts)
    return Estimate(mean + b, cov + (excesses.mean(axis=0) - square).reshape(cov.shape))
