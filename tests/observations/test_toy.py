"""A new kind of observation is a class of its own: nothing else has to know it.

The toy: points that are known to arrive on a sphere, up to some noise along its normal. One row per
site, H = nᵀ/s, which turns with where the point arrives.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kunita
from kunita.inference import solve
from kunita.inference.evidence import evidence_of
from kunita.inference.problem import Problem
from kunita.inference.trend import Alignment, determined_trend
from kunita.observations.base import AbstractObservations, Rows, information_of
from kunita.observations.together import Together
from kunita.posterior import posterior_from_fit
from problems import gp_displaced, landmarks

N = 12
RADIUS = 66.0
NOISE = 0.5
STAY = Alignment(np.zeros(3), np.eye(3), np.zeros(3))


class OnSphere(AbstractObservations):
    """Points that arrive on a sphere around a centre."""

    sites: jax.Array
    centre: jax.Array

    @property
    def noise_sd(self):
        return jnp.asarray(NOISE)

    def rows(self, arrived, jacobians):
        out = arrived - self.centre
        distance = jnp.linalg.norm(out, axis=1)
        each = jnp.arange(len(arrived))
        return Rows(
            site=each,
            operator=out / distance[:, None] / NOISE,
            residual=(RADIUS - distance) / NOISE,
            log_det=jnp.asarray(2 * len(arrived) * jnp.log(NOISE)),
            group=each,
            per_site=1,
        )


class OnSphereInSum(OnSphere):
    """The same without rows: what they add up to alone."""

    has_rows = False

    def information(self, arrived, jacobians):
        return information_of(OnSphere.rows(self, arrived, jacobians), len(arrived))


def icosahedron():
    """Twelve directions, far from each other."""
    golden = (1 + np.sqrt(5)) / 2
    corners = []
    for a in (-1.0, 1.0):
        for b in (-golden, golden):
            corners += [(0.0, a, b), (a, b, 0.0), (b, 0.0, a)]
    return np.array(corners) / np.sqrt(1 + golden**2)


def scattered():
    """Sites at different distances from the centre of the sphere, which is not at the origin."""
    rng = np.random.default_rng(0)
    centre = np.full(3, 75.0)
    return centre + rng.uniform(60.0, 70.0, (N, 1)) * icosahedron(), centre


def toy(view=OnSphere):
    sites, centre = scattered()
    return view(sites, centre)


def marked():
    """Landmarks in the same place."""
    moving, fixed = gp_displaced(N, seed=4, rms=3.0)
    return landmarks(moving, fixed, np.tile(np.eye(3), (N, 1, 1)))


KINDS = {
    "alone": toy,
    "alone, in sum": lambda: toy(OnSphereInSum),
    "with landmarks": lambda: Together((toy(), marked())),
    "with landmarks, in sum": lambda: Together((toy(OnSphereInSum), marked())),
}

EXACT = solve.SolverOptions(tolerance=1e-10)


def solved(observed, kernel):
    none, _ = determined_trend("none", np.asarray(observed.sites))
    return solve.solve(Problem(kernel, observed, none), STAY, options=EXACT)


@functools.cache
def fitted(name):
    fit = solved(KINDS[name](), kunita.Gaussian(50.0, 8.0))
    return fit, posterior_from_fit(fit, np.zeros(3), "endpoint")


@pytest.mark.parametrize("name", ["alone", "with landmarks"])
def test_the_flow_meets_the_optimality_condition(name):
    """λ = Hᵀr: along the normal of the sphere, as strong as the distance from it."""
    fit, _ = fitted(name)
    assert fit.converged
    arrived = np.asarray(fit.trajectory.positions[-1])[:N]
    out = arrived - scattered()[1]
    distance = np.linalg.norm(out, axis=1, keepdims=True)
    force = (RADIUS - distance) / NOISE**2 * out / distance
    np.testing.assert_allclose(fit.trajectory.momenta[-1][:N], force, atol=1e-8)
    assert np.abs(distance - RADIUS).max() < 3 * NOISE


@pytest.mark.parametrize("name", ["alone", "with landmarks"])
def test_both_views_agree(name):
    by_rows, posterior = fitted(name)
    by_information, other = fitted(f"{name}, in sum")
    assert by_information.energy == pytest.approx(by_rows.energy, rel=1e-9)
    assert evidence_of(by_information) == pytest.approx(evidence_of(by_rows), rel=1e-9)
    places = np.asarray(marked().sites)
    expected = posterior.predict(places)
    found = other.predict(places)
    np.testing.assert_allclose(found.mean, expected.mean, atol=1e-8)
    np.testing.assert_allclose(found.covariance, expected.covariance, atol=1e-8)


def prior_covariance(kernel, trajectory):
    """∫ Ψᵢ(t) k(qᵢ, qⱼ) Ψⱼ(t)ᵀ dt along the fitted flow, by Simpson's rule."""
    jacobians = np.asarray(trajectory.jacobians)
    psi = jacobians[-1] @ np.linalg.inv(jacobians)
    steps = len(jacobians) - 1
    weights = np.ones(steps + 1)
    weights[1:-1:2] = 4
    weights[2:-1:2] = 2
    weights /= weights.sum()
    whole = 0.0
    for weight, q, now in zip(weights, np.asarray(trajectory.positions), psi, strict=True):
        squares = np.sum((q[:, None] - q) ** 2, axis=2)
        gram = kernel.amplitude**2 * np.exp(-squares / (2 * kernel.length_scale**2))
        whole = whole + weight * np.einsum("iab,ij,jcb->iajc", now, gram, now)
    size = whole.shape[0] * whole.shape[1]
    return whole.reshape(size, size)


@pytest.mark.parametrize("name", ["alone", "with landmarks"])
def test_the_posterior_is_gaussian_conditioning_around_the_fitted_flow(name):
    """Λ − ΛHᵀ(HΛHᵀ + I)⁻¹HΛ in dense NumPy, and the evidence from |HΛHᵀ + I|."""
    fit, posterior = fitted(name)
    arrived = np.asarray(fit.trajectory.positions[-1])
    out = arrived[:N] - scattered()[1]
    normals = out / np.linalg.norm(out, axis=1, keepdims=True)
    num_sites = len(arrived)
    h = np.zeros((N, num_sites, 3))
    h[np.arange(N), np.arange(N)] = normals / NOISE
    h = h.reshape(N, -1)
    h = np.concatenate([h, np.eye(3 * num_sites)[3 * N :]])
    prior = prior_covariance(fit.kernel, fit.trajectory)
    s = h @ prior @ h.T + np.eye(len(h))
    expected = prior - prior @ h.T @ np.linalg.solve(s, h @ prior)
    sites = np.asarray(fit.problem.observations.sites)
    found = posterior.covariance(sites, sites).reshape(expected.shape)
    np.testing.assert_allclose(found, expected, atol=1e-6)  # two ways along the flow
    log_det = np.linalg.slogdet(s)[1] + 2 * N * np.log(NOISE)
    value = -fit.energy - 0.5 * (log_det + len(h) * np.log(2 * np.pi))
    assert evidence_of(fit) == pytest.approx(value, abs=1e-6)


def test_uncertainty_shrinks_along_what_was_observed_and_nowhere_else():
    """Sites out of each other's reach: in closed form, along the ray from the centre."""
    kernel = kunita.Gaussian(8.0, 3.0)
    fit = solved(toy(), kernel)
    sites, centre = scattered()
    out = sites - centre
    distance = np.linalg.norm(out, axis=1, keepdims=True)
    normals = out / distance
    share = 3.0**2 / (3.0**2 + NOISE**2)
    arrived = sites + share * (RADIUS - distance) * normals
    found = posterior_from_fit(fit, np.zeros(3), "endpoint").predict(sites)
    np.testing.assert_allclose(found.mean, arrived, atol=1e-6)
    outer = normals[:, :, None] * normals[:, None, :]
    expected = 3.0**2 * (np.eye(3) - share * outer)
    np.testing.assert_allclose(found.covariance, expected, atol=1e-5)


def test_each_reading_is_left_out_by_itself():
    """Their numbers and degrees of freedom: one for a reading, three for a landmark."""
    _, posterior = fitted("with landmarks")
    left_out = posterior.leave_one_out()
    np.testing.assert_array_equal(left_out.known, [1] * N + [3] * N)
    assert np.all(np.isfinite(left_out.covariance))
    assert np.all(left_out.chi2 > 0)
