"""The objective and its gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kunita
from kunita import numerics
from kunita.flow import covariance, shooting, transport
from kunita.inference import objective
from kunita.observations.landmarks import LandmarkObservations
from problems import KERNELS, random_phase

TIMES = jnp.asarray(numerics.time_grid(10))
WEIGHTS = jnp.asarray(numerics.simpson_weights(numerics.time_grid(10)))


def random_problem(seed):
    """Landmarks, their momenta, fixed points and full-matrix noise; one landmark and nearly
    coincident ones among them."""
    rng = np.random.default_rng(seed)
    n, d, name = (
        (4, 2, "gaussian"),
        (4, 3, "matern52"),
        (1, 2, "gaussian"),
        (4, 2, "gaussian"),
        (4, 3, "matern52"),
    )[seed % 5]
    q, p = random_phase(seed, n=n, d=d, strength=0.3)
    if seed % 5 == 3:
        q[1:] = q[0] + 1e-5 * rng.normal(size=(n - 1, d))
    root = rng.normal(size=(n, d, d))
    noise = root @ root.swapaxes(1, 2) + 0.3 * np.eye(d)
    return (KERNELS[name], *(jnp.asarray(a) for a in (q, p, q + rng.normal(size=q.shape), noise)))


def observe(q, f, noise):
    """Landmarks with noise on the fixed side."""
    return LandmarkObservations(q, f, noise, jnp.zeros_like(noise))


@pytest.mark.parametrize("trace", [False, True], ids=["energy", "variational"])
def test_gradients_agree_with_finite_differences_on_50_random_problems(trace):
    extra = (TIMES, WEIGHTS) if trace else (TIMES,)
    function = objective.variational_objective if trace else objective.shooting_energy

    @jax.jit
    def both(kernel, q, p, f, noise):
        observed = observe(q, f, noise)
        return jax.value_and_grad(lambda p: function(kernel, observed, q, p, *extra))(p)

    for seed in range(50):
        kernel, q, p, f, noise = random_problem(seed)
        value = lambda t, k=kernel, q=q, p=p, f=f, noise=noise: both(k, q, p + t, f, noise)[0]
        gradient = both(kernel, q, p, f, noise)[1]
        along = 1e-3 * jnp.asarray(np.random.default_rng(seed).normal(size=p.shape))
        differences = (
            8 * (value(along) - value(-along)) - (value(2 * along) - value(-2 * along))
        ) / 12
        # relative to the size of the gradient: along one direction the derivative itself may vanish
        size = jnp.linalg.norm(gradient) * jnp.linalg.norm(along)
        assert abs(jnp.sum(gradient * along) - differences) <= 1e-6 * size, seed


def test_the_gradient_is_the_pull_back_of_the_residual():
    """∇E = B_qᵀ(λ − D⁻¹(F − φ₁)), up to the time stepping."""
    kernel, q, p, f, noise = random_problem(5)
    times = jnp.asarray(numerics.time_grid(80))
    observed = observe(q, f, noise)
    gradient = jax.grad(lambda p: objective.shooting_energy(kernel, observed, q, p, times))(p)
    b_q = jax.jacfwd(lambda p: shooting.endpoint(kernel, q, p, times)[0])(p).reshape(p.size, p.size)
    arrived, final = shooting.endpoint(kernel, q, p, times)
    lacking = final - jnp.linalg.solve(noise, (f - arrived)[..., None])[..., 0]
    np.testing.assert_allclose(gradient.ravel(), b_q.T @ lacking.ravel(), atol=1e-7)


def test_the_trace_is_that_of_the_flow_covariance():
    kernel, q, p, f, noise = random_problem(8)
    observed = observe(q, f, noise)
    variational = objective.variational_objective(kernel, observed, q, p, TIMES, WEIGHTS)
    difference = variational - objective.shooting_energy(kernel, observed, q, p, TIMES)
    path = transport.landmark_path(shooting.geodesic(kernel, q, p, TIMES))
    full = covariance.flow_covariance(kernel, WEIGHTS, path, path)
    diagonal = jnp.einsum("iaib->iab", full)
    expected = 0.5 * jnp.sum(jnp.trace(jnp.linalg.solve(noise, diagonal), axis1=1, axis2=2))
    assert float(difference) == pytest.approx(float(expected), rel=1e-12)


def test_the_papers_setting_is_half_the_identity():
    """m = ‖·‖² is D = ½I: the data term is then the squared distance."""
    q, p = random_phase(0, n=4)
    f = jnp.asarray(q + 0.5)
    kernel = kunita.Gaussian(2.0, 1.0)
    half = jnp.broadcast_to(0.5 * jnp.eye(2), (4, 2, 2))
    observed = observe(jnp.asarray(q), f, half)
    value = objective.shooting_energy(kernel, observed, jnp.asarray(q), jnp.asarray(p), TIMES)
    arrived, _ = shooting.endpoint(kernel, jnp.asarray(q), jnp.asarray(p), TIMES)
    expected = shooting.hamiltonian(kernel, jnp.asarray(q), jnp.asarray(p)) + jnp.sum(
        (f - arrived) ** 2
    )
    assert float(value) == pytest.approx(float(expected), rel=1e-12)
