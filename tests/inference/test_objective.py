"""The objective and its gradient."""

import jax
import numpy as np
import pytest

import kunita
from kunita import numerics
from kunita.flow import covariance, shooting, transport
from kunita.inference import objective
from kunita.observations.landmarks import LandmarkObservations
from problems import KERNELS, random_phase

TIMES = numerics.time_grid(10)
WEIGHTS = numerics.simpson_weights(TIMES)

endpoint = jax.jit(shooting.endpoint)
shooting_energy = jax.jit(objective.shooting_energy)


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
    return KERNELS[name], q, p, q + rng.normal(size=q.shape), noise


def observe(q, f, noise):
    """Landmarks with noise on the fixed side."""
    return LandmarkObservations(q, f, noise, np.zeros(noise.shape))


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
        value = lambda t, k=kernel, q=q, p=p, f=f, noise=noise: float(
            both(k, q, p + t, f, noise)[0]
        )
        gradient = both(kernel, q, p, f, noise)[1]
        gradient = np.asarray(gradient)
        along = 1e-3 * np.random.default_rng(seed).normal(size=p.shape)
        differences = (
            8 * (value(along) - value(-along)) - (value(2 * along) - value(-2 * along))
        ) / 12
        # relative to the size of the gradient: along one direction the derivative itself may vanish
        size = np.linalg.norm(gradient) * np.linalg.norm(along)
        assert abs(np.sum(gradient * along) - differences) <= 1e-6 * size, seed


def test_the_gradient_is_the_pull_back_of_the_residual():
    """∇E = B_qᵀ(λ − D⁻¹(F − φ₁)), up to the time stepping."""
    kernel, q, p, f, noise = random_problem(5)
    times = numerics.time_grid(80)
    energy_gradient = jax.jit(jax.grad(objective.shooting_energy, argnums=3))
    endpoint_jacobians = jax.jit(jax.jacfwd(shooting.endpoint, argnums=2))
    gradient = np.asarray(energy_gradient(kernel, observe(q, f, noise), q, p, times))
    b_q = np.asarray(endpoint_jacobians(kernel, q, p, times)[0]).reshape(p.size, p.size)
    arrived, final = (np.asarray(part) for part in endpoint(kernel, q, p, times))
    lacking = final - np.linalg.solve(noise, (f - arrived)[..., None])[..., 0]
    np.testing.assert_allclose(gradient.ravel(), b_q.T @ lacking.ravel(), atol=1e-7)


def test_the_trace_is_that_of_the_flow_covariance():
    kernel, q, p, f, noise = random_problem(8)
    observed = observe(q, f, noise)
    variational_objective = jax.jit(objective.variational_objective)
    variational = variational_objective(kernel, observed, q, p, TIMES, WEIGHTS)
    difference = variational - shooting_energy(kernel, observed, q, p, TIMES)
    path = transport.landmark_path(shooting.geodesic_jit(kernel, q, p, TIMES))
    full = jax.jit(covariance.flow_covariance)(kernel, WEIGHTS, path, path)
    diagonal = np.einsum("iaib->iab", np.asarray(full))
    expected = 0.5 * np.sum(np.trace(np.linalg.solve(noise, diagonal), axis1=1, axis2=2))
    assert float(difference) == pytest.approx(float(expected), rel=1e-12)


def test_the_papers_setting_is_half_the_identity():
    """m = ‖·‖² is D = ½I: the data term is then the squared distance."""
    q, p = random_phase(0, n=4)
    f = q + 0.5
    kernel = kunita.Gaussian(2.0, 1.0)
    half = np.tile(0.5 * np.eye(2), (4, 1, 1))
    value = shooting_energy(kernel, observe(q, f, half), q, p, TIMES)
    arrived, _ = endpoint(kernel, q, p, TIMES)
    hamiltonian = jax.jit(shooting.hamiltonian)(kernel, q, p)
    expected = float(hamiltonian) + np.sum((f - np.asarray(arrived)) ** 2)
    assert float(value) == pytest.approx(float(expected), rel=1e-12)
