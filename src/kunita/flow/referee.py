"""The moments of the stochastic flow by simulation: the reference that closures are judged by.

The moment equations are exact as long as their expectations are. Here the expectations are averages
over simulated paths. The noise of a step, whose moments are known, adds nothing to the Monte Carlo
error. That error comes only from how the velocity and the kernel vary over the spread of the
points, which is just what a closure approximates.

*Departure*: the usual control variate, the linearised path driven by the same noise, leaves
∫(R(x) − R(m))dW in the Monte Carlo error, where R is the root of the kernel's matrix. Here that is
integrated out, which makes the error several times smaller.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Key

from kunita import numerics
from kunita.errors import ArgumentError
from kunita.flow import shooting
from kunita.flow.moments import State, carried_covariance, euler_moments
from kunita.jaxrun.doors import Array, Scalar
from kunita.kernels import AbstractKernel

CHUNK = 32
"""Pairs of paths that are simulated at once."""


@dataclasses.dataclass(frozen=True, eq=False)
class Estimate:
    """Mean, (n, d), and joint covariance, (n, d, n, d), of where simulated paths end."""

    mean: np.ndarray
    covariance: np.ndarray


# ------------------------------------------------------------------------------- the discrete chain


class Chain(NamedTuple):
    """A chunk of Euler–Maruyama paths at one instant, and their moments so far.

    Args:
        mean: m, the path of the points without noise.
        paths: x, in pairs with opposite noise.
        shift: b = E[x] − m.
        excess: S − Λ, with S = E[(x − m)(x − m)ᵀ] and Λ the covariance of the closure `frozen`.
    """

    mean: Float[Array, "n d"]
    paths: Float[Array, "s n d"]
    shift: Float[Array, "n d"]
    excess: Float[Array, "n d n d"]

    @property
    def deviations(self) -> Float[Array, "s n d"]:
        """z = x − m."""
        return self.paths - self.mean


class Step(NamedTuple):
    """What one step needs to know: the landmarks, its length, and a random key."""

    positions: Float[Array, "n d"]
    momenta: Float[Array, "n d"]
    length: Scalar
    key: Key[jax.Array, ""]


class Drift(NamedTuple):
    """Velocities in one step, and what is not linear in them.

    Args:
        at_mean: v(m).
        at_paths: v(x).
        propagator: B = I + hDv(m).
        remainder: r = v(x) − v(m) − Dv(m)(x − m).
    """

    at_mean: Float[Array, "n d"]
    at_paths: Float[Array, "s n d"]
    propagator: Float[Array, "n d d"]
    remainder: Float[Array, "s n d"]


def simulated_moments(
    kernel: AbstractKernel,
    trajectory: shooting.Trajectory,
    points: Float[Array, "n d"],
    key: Key[jax.Array, ""],
) -> tuple[Float[Array, "n d"], Float[Array, "n d n d"]]:
    """How far the Euler–Maruyama chain's moments are from those of the closure `frozen`.

    These are b = E[z] and S − Λ = E[zzᵀ] − Λ, with z = x − m the distance from the mean path. With
    B = I + hDv(m) and r = v(x) − v(m) − Dv(m)z, taking the expectation over each step's own noise
    first gives, exactly for the discrete chain,

        b ← Bb + hE[r],
        S − Λ ← B(S − Λ)Bᵀ + h(E[Bz rᵀ] + E[r zᵀBᵀ]) + h²E[rrᵀ] + h(E[K(x)] − K(m)) ⊗ I_d,

    and E is the average over `CHUNK` pairs of paths with noise ξ and −ξ.
    """
    n, d = points.shape
    start = Chain(
        mean=points,
        paths=jnp.broadcast_to(points, (2 * CHUNK, n, d)),
        shift=jnp.zeros((n, d)),
        excess=jnp.zeros((n, d, n, d)),
    )

    def advance_by(chain: Chain, step: Step) -> tuple[Chain, None]:
        return advance(kernel, chain, step), None

    keys = jax.random.split(key, trajectory.num_steps)
    steps = Step(*trajectory.starts, trajectory.step_lengths, keys)
    end, _ = jax.lax.scan(advance_by, start, steps)
    return end.shift, end.excess


def advance(kernel: AbstractKernel, chain: Chain, step: Step) -> Chain:
    """Take one step with all paths and their moments."""
    h = step.length
    drift = drift_of(kernel, chain, step)
    grams = jax.vmap(lambda x: kernel.gram(x, x))(chain.paths)
    added_gram = grams.mean(axis=0) - kernel.gram(chain.mean, chain.mean)
    moved = chain.paths + h * drift.at_paths
    return Chain(
        mean=chain.mean + h * drift.at_mean,
        paths=moved + draw_kicks(grams, chain.mean.shape, step),
        shift=advance_shift(chain, drift, h),
        excess=advance_excess(chain, drift, added_gram, h),
    )


def drift_of(kernel: AbstractKernel, chain: Chain, step: Step) -> Drift:
    """Compute the velocities at the mean and at the paths."""

    def velocities(x: Float[Array, "n d"]) -> tuple[Array, Array]:
        return shooting.velocities(kernel, step.positions, step.momenta, x)

    v, dv = velocities(chain.mean)
    v_x = jax.vmap(lambda x: velocities(x)[0])(chain.paths)
    linear = jnp.einsum("iab,sib->sia", dv, chain.deviations)
    d = v.shape[1]
    return Drift(
        at_mean=v,
        at_paths=v_x,
        propagator=jnp.eye(d) + step.length * dv,
        remainder=v_x - v - linear,
    )


def advance_shift(chain: Chain, drift: Drift, h: Scalar) -> Float[Array, "n d"]:
    """b ← Bb + hE[r]."""
    carried = jnp.einsum("iab,ib->ia", drift.propagator, chain.shift)
    return carried + h * drift.remainder.mean(axis=0)


def advance_excess(
    chain: Chain, drift: Drift, added_gram: Float[Array, "n n"], h: Scalar
) -> Float[Array, "n d n d"]:
    """S − Λ ← B(S − Λ)Bᵀ + h(E[Bz rᵀ] + E[r zᵀBᵀ]) + h²E[rrᵀ] + h(E[K(x)] − K(m)) ⊗ I_d."""
    b = drift.propagator
    r = drift.remainder
    bz = jnp.einsum("iab,sib->sia", b, chain.deviations)
    cross = h * average_product(bz, r)
    curved = h**2 * average_product(r, r)

    d = r.shape[-1]
    diffusion = h * jnp.kron(added_gram, jnp.eye(d))
    new = cross + cross.T + curved + diffusion
    return carried_covariance(b, chain.excess) + new.reshape(chain.excess.shape)


def draw_kicks(
    grams: Float[Array, "s n n"], shape: tuple[int, int], step: Step
) -> Float[Array, "s n d"]:
    """√h R(x)ξ with R Rᵀ = K(x), for ξ and −ξ."""
    xi = jax.random.normal(step.key, (CHUNK, *shape))
    pairs = jnp.concatenate([xi, -xi])
    roots = jax.vmap(numerics.cholesky)(grams)
    kicks = roots @ pairs
    return jnp.sqrt(step.length) * kicks


def average_product(
    left: Float[Array, "s n d"], right: Float[Array, "s n d"]
) -> Float[Array, "nd nd"]:
    """E[l rᵀ] of vectors over all points and axes."""
    count = len(left)
    rows = left.reshape(count, -1)
    columns = right.reshape(count, -1)
    return rows.T @ columns / count


# ----------------------------------------------------------------------------------- the estimates


@jax.jit
def _simulate_chunks(
    kernel: AbstractKernel,
    trajectory: shooting.Trajectory,
    points: Float[Array, "n d"],
    keys: Key[jax.Array, " c"],
) -> tuple[State, Float[Array, "c n d"], Float[Array, "c n d n d"]]:
    """The moments of the closure `frozen`, and for each key how far the chain's are from them."""

    def simulate_chunk(key: Key[jax.Array, ""]) -> tuple[Array, Array]:
        return simulated_moments(kernel, trajectory, points, key)

    frozen = euler_moments(kernel, "frozen", trajectory, points)
    shifts, excesses = jax.lax.map(simulate_chunk, keys)
    return frozen, shifts, excesses


def referee(
    kernel: AbstractKernel,
    trajectory: shooting.Trajectory,
    points: Float[Array, "n d"],
    num_chunks: int,
    key: Key[jax.Array, ""],
) -> tuple[Estimate, Estimate]:
    """Make two independent, unbiased estimates of the moments of the Euler–Maruyama chain.

    Args:
        kernel: the prior's covariance function.
        trajectory: the geodesic whose velocity is the mean velocity; the chain has its time grid.
        points: where the paths start.
        num_chunks: chunks of `CHUNK` pairs of paths for each estimate, at least two.
        key: a random key.
    """
    if num_chunks < 2:
        raise ArgumentError(f"num_chunks: expected at least 2, found {num_chunks}")
    keys = jax.random.split(key, 2 * num_chunks)
    frozen, shifts, excesses = _simulate_chunks(kernel, trajectory, points, keys)
    first = slice(None, num_chunks)
    second = slice(num_chunks, None)
    return (
        _estimate(frozen, shifts[first], excesses[first]),
        _estimate(frozen, shifts[second], excesses[second]),
    )


def _estimate(
    frozen: State, shifts: Float[Array, "c n d"], excesses: Float[Array, "c n d n d"]
) -> Estimate:
    """E[x] = m + b and Cov[x] = S − bbᵀ, from the averages of some chunks."""
    mean, cov = (np.asarray(part) for part in frozen)
    shift = np.asarray(shifts).mean(axis=0)
    excess = np.asarray(excesses).mean(axis=0)
    square = _unbiased_square(np.asarray(shifts)).reshape(cov.shape)
    return Estimate(mean + shift, cov + (excess - square))


def _unbiased_square(shifts: np.ndarray) -> np.ndarray:
    """bbᵀ, from estimates of b.

    The square of their average is too large by its own variance, which is subtracted.
    """
    count = len(shifts)
    flat = shifts.reshape(count, -1)
    b = flat.mean(axis=0)
    variance = np.cov(flat.T) / count
    return np.outer(b, b) - variance
