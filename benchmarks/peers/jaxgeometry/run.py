"""Jax Geometry: the logarithm on its manifold of LDDMM landmarks, i.e. shooting with BFGS until the
landmarks meet.

Its loss is the misfit alone: the landmarks are matched exactly as far as a hundred iterations go,
so the noise cannot be given. Geodesics are integrated with its default of a hundred Euler steps; it
works in 64 bits as ours does.
"""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxgeometry.dynamics import Hamiltonian
from jaxgeometry.manifolds.landmarks import landmarks
from jaxgeometry.params import T, n_steps
from jaxgeometry.Riemannian import Log, metric
from jaxgeometry.utils import dts

sys.path.append(str(Path(__file__).resolve().parents[1]))

from trial import PointMap, Problem, in_chunks, main

CHUNK = 8000
"""Points carried at once."""

logarithms: list = []
"""The compiled logarithm with its manifold, made by the first call."""


def logarithm(problem: Problem) -> tuple:
    """The manifold and its compiled logarithm."""
    n, d = problem.moving.shape
    scale = (problem.length_scale * np.eye(d)).tolist()
    manifold = landmarks(n, d, k_alpha=problem.amplitude**2, k_sigma=scale)
    metric.initialize(manifold)
    Hamiltonian.initialize(manifold)
    Log.initialize(manifold, f=manifold.Exp_Hamiltonian)
    return manifold, jax.jit(lambda x, y: manifold.Log(x, y)[0])


def fit(problem: Problem) -> PointMap:
    """The momenta whose geodesic meets the fixed landmarks, and the map of its flow."""
    if not logarithms:
        logarithms.append(logarithm(problem))
    manifold, log = logarithms[0]
    start, end = ((jnp.array(x.ravel()), jnp.zeros(1)) for x in (problem.moving, problem.fixed))
    momenta = log(start, end).block_until_ready()
    return lambda points: carried(problem, path(manifold, start, momenta), points)


def path(manifold: landmarks, start: tuple, momenta: jax.Array) -> np.ndarray:
    """Landmarks and momenta at the beginning of each step, (t, 2, n, d)."""
    later = manifold.Hamiltonian_dynamics(start, momenta, dts(T, n_steps))[1][:-1]
    states = np.concatenate([np.stack([start[0], momenta])[None], np.asarray(later)])
    return states.reshape(len(states), 2, manifold.N, manifold.m)


def carried(problem: Problem, states: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Where other points go with the landmarks, by the same Euler steps."""

    def move(z: np.ndarray) -> np.ndarray:
        for q, p in states:
            square = np.sum(z**2, axis=1)[:, None] + np.sum(q**2, axis=1) - 2 * z @ q.T
            z = (
                z
                + problem.amplitude**2
                * np.exp(-square / (2 * problem.length_scale**2))
                @ p
                * T
                / n_steps
            )
        return z

    return in_chunks(move, points, CHUNK)


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    main({"logarithm": fit}, compiles=True)
