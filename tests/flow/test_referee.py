"""The referee of the closures agrees with what can be known otherwise, and is sharper than a plain
simulation."""

import jax
import numpy as np

import kunita
from kunita.flow import moments, referee, shooting
from problems import random_phase

STEPS = 20


def refereed(kernel, positions, momenta, points=None, chunks=8, key=0):
    q, p = np.asarray(positions), np.asarray(momenta)
    trajectory = shooting.geodesic_jit(kernel, q, p, np.linspace(0, 1, STEPS + 1))
    x = q if points is None else points
    return trajectory, referee.referee(kernel, trajectory, x, chunks, jax.random.key(key))


def test_it_agrees_with_a_plain_simulation():
    """Strongly nonlinear (a/σ = 0.4, momenta that stretch); 5 standard errors of the plain
    simulation."""
    kernel = kunita.Gaussian(3.0, 1.2)
    q, p = random_phase(3, n=5, strength=1.5)
    _, (a, b) = refereed(kernel, q, p, chunks=24)
    paths = 20_000
    draws = kunita.simulate(kernel, q, p, num_paths=paths, num_steps=STEPS, key=5).reshape(
        paths, -1
    )
    mean, cov = ((x + y) / 2 for x, y in ((a.mean, b.mean), (a.covariance, b.covariance)))
    sd = draws.std(axis=0)
    assert np.all(np.abs(draws.mean(axis=0) - mean.ravel()) < 5 * sd / np.sqrt(paths))
    assert (
        np.abs(np.cov(draws.T) - cov.reshape(10, 10)).max() < 5 * np.sqrt(2 / paths) * sd.max() ** 2
    )
    frozen = kunita.moments(kernel, q, p)
    assert np.abs(frozen.mean - mean).max() > 10 * sd.max() / np.sqrt(
        paths
    )  # what it is to tell apart


def test_chance_is_several_times_smaller_than_in_a_plain_simulation_of_as_many_paths():
    kernel = kunita.Gaussian(5.0, 1.0)
    q, p = random_phase(4, n=5, size=20.0)
    chunks = 8
    _, (a, b) = refereed(kernel, q, p, chunks=chunks)
    each = 2 * chunks * referee.CHUNK
    one, two = (
        kunita.simulate(kernel, q, p, num_paths=each, num_steps=STEPS, key=k) for k in (1, 2)
    )
    plain = np.linalg.norm(one.mean(axis=0) - two.mean(axis=0))
    spread = [np.cov(draws.reshape(each, -1).T) for draws in (one, two)]
    assert np.linalg.norm(a.mean - b.mean) < plain / 5
    assert np.linalg.norm(a.covariance - b.covariance) < np.linalg.norm(spread[0] - spread[1]) / 3


def test_nothing_is_left_to_chance_where_the_flow_is_linear():
    """A kernel far wider than the points: the drift is linear, the noise alike everywhere, and
    `frozen` is exact."""
    kernel = kunita.Gaussian(1000.0, 0.5)
    q, p = np.array([[-100.0, 0.0], [100.0, 0.0]]), np.array([[-1e4, 0.0], [1e4, 0.0]])
    x = np.array([[3.0, 1.0], [-2.0, 4.0]])
    trajectory, halves = refereed(kernel, q, p, points=x, chunks=2)
    euler_moments = jax.jit(moments.euler_moments, static_argnums=1)
    mean, cov = euler_moments(kernel, "frozen", trajectory, x)
    assert float(cov[0, 0, 0, 0]) > 1.3 * float(cov[0, 1, 0, 1])  # the drift does stretch
    for half in halves:
        np.testing.assert_allclose(half.mean, mean, atol=1e-5)
        np.testing.assert_allclose(half.covariance, cov, atol=1e-5)
