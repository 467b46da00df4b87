"""Trust regions solve their subproblem, and all variants find the same minimum."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kunita.inference import newton, solve, trust_region
from kunita.inference import problem as problem_module
from problems import prepared


def test_the_bounded_minimum_solves_the_trust_region_problem():
    """Against brute force on the sphere; an indefinite Hessian included."""
    rng = np.random.default_rng(0)
    for seed in range(20):
        a = rng.normal(size=(3, 3))
        hessian, gradient, radius = (a + a.T) / 2 + (seed % 3) * np.eye(3), rng.normal(size=3), 0.7
        w, promised = trust_region.bounded_minimum(gradient, hessian, radius)
        directions = rng.normal(size=(40_000, 3))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        tries = np.concatenate([r * directions for r in np.linspace(0.05, radius, 12)])
        values = tries @ gradient + 0.5 * np.einsum("ia,ab,ib->i", tries, hessian, tries)
        assert np.linalg.norm(w) <= radius * (1 + 1e-9)
        assert -promised <= values.min() + 1e-3
        assert promised == pytest.approx(-(gradient @ w + 0.5 * w @ hessian @ w), rel=1e-9)


@pytest.mark.parametrize("exact", [False, True], ids=["gauss-newton", "exact"])
def test_trust_regions_reach_the_same_minimum_dense_and_by_products(exact, monkeypatch):
    problem, start = prepared()
    ends = []
    for limit in (problem_module.DENSE, 0):
        monkeypatch.setattr(problem_module, "DENSE", limit)
        near = [
            start,
            *itertools.islice(trust_region.trust_region(exact, problem, start, 1e-5), 40),
        ][-1]
        state = [near, *newton.exact_newton(problem, near, 1e-9)][-1]
        ends.append(state)
        assert state.misfit <= 1e-8
    assert float(ends[0].energy) == pytest.approx(float(ends[1].energy), rel=1e-9)
    reference = solve.solve(problem, start.alignment)
    assert float(ends[0].energy) == pytest.approx(reference.energy, rel=1e-6)


def test_hessian_products_are_derivatives_of_the_gradient():
    problem, state = prepared()
    here, gradient, hessian = trust_region.quadratic_model(True, problem, state)
    w = jnp.asarray(np.random.default_rng(0).normal(size=gradient.size))
    energy = jax.jit(lambda t: trust_region.energy_in_chart(problem, state, here, t * w))
    h = 1e-3
    assert float(gradient @ w) == pytest.approx(float((energy(h) - energy(-h)) / (2 * h)), rel=1e-5)
    assert float(w @ hessian @ w) == pytest.approx(
        float((energy(h) - 2 * energy(0.0) + energy(-h)) / h**2), rel=1e-4
    )
