"""Gauss–Newton with a memory learns what its linear model leaves out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kunita.inference.gauss_newton import GaussNewton, GaussNewtonOptions, Memory, secant_step
from kunita.inference.path_space import PathSpace
from kunita.inference.problem import Residual, Step
from kunita.inference.search import run
from kunita.observations.base import Rows
from problems import prepared


def some_model(n, d, b):
    """A linear model with nothing right about it."""
    rng = np.random.default_rng(1)
    rows = Rows(
        site=np.repeat(np.arange(n), d),
        operator=np.tile(np.eye(d), (n, 1)),
        residual=np.zeros(n * d),
        log_det=np.zeros(()),
        group=np.repeat(np.arange(n), d),
        per_site=d,
    )
    return PathSpace(
        rows=rows,
        factor=np.eye(n * d),
        design=rng.normal(size=(n * d, b)),
        solved_design=rng.normal(size=(n * d, b)),
        trend_factor=np.eye(b),
        jacobians=np.ones((n, d, d)),
    )


def test_secants_that_span_the_space_solve_a_linear_problem_exactly():
    """Whatever the model that Gauss–Newton goes by: a residual e + As vanishes at s = −A⁻¹e."""
    n, d, b = 3, 2, 2
    size = n * d + b
    rng = np.random.default_rng(0)
    slope = rng.normal(size=(size, size))
    residual = rng.normal(size=size)
    steps = rng.normal(size=(size, size))
    changes = steps @ slope.T
    memory = Memory(as_step(steps, n, d, b), as_residual(changes, n, d, b))
    local = np.tile(2.0 * np.eye(d), (n, 1, 1))
    step = secant_step(
        some_model(n, d, b), as_residual(residual, n, d, b), memory, local, np.asarray(2.0)
    )
    exact = -np.linalg.solve(slope, residual)
    np.testing.assert_allclose(step.beta, exact[:b], rtol=1e-7)
    np.testing.assert_allclose(step.momenta.ravel(), exact[b:], rtol=1e-7)


def as_step(v, n, d, b):
    return Step(v[..., :b], v[..., b:].reshape(*v.shape[:-1], n, d))


def as_residual(v, n, d, b):
    return Residual(v[..., b:].reshape(*v.shape[:-1], n, d), v[..., :b])


@pytest.mark.parametrize("length", [1, 4])
def test_an_empty_memory_leaves_the_plain_gauss_newton_step(length):
    n, d, b = 3, 2, 2
    model = some_model(n, d, b)
    residual = as_residual(np.random.default_rng(0).normal(size=n * d + b), n, d, b)
    nothing = np.zeros((length, n * d + b))
    memory = Memory(as_step(nothing, n, d, b), as_residual(nothing, n, d, b))
    assert bool(memory.is_empty)
    local = np.tile(2.0 * np.eye(d), (n, 1, 1))
    step = secant_step(model, residual, memory, local, np.asarray(2.0))
    plain = jax.tree.map(jnp.asarray, model).step(residual)
    np.testing.assert_allclose(step.beta, plain.beta, rtol=1e-12)
    np.testing.assert_allclose(step.momenta, plain.momenta, rtol=1e-12)


def searched(memory):
    """The residuals on the way, mm, and where the search ends."""
    problem, start = prepared()
    search = GaussNewton(1e-8, GaussNewtonOptions(memory=memory, keep_below=0.0))
    log = []
    found = run(
        search,
        problem,
        search.init(problem, start),
        method="path-space Gauss-Newton",
        max_iterations=60,
        max_drift=1.0,
        log=log,
    )
    return found.state, [line.gap_mm for line in log]


def test_the_memory_saves_steps():
    """To the same optimum in at most two thirds of the steps, against remembering one of them."""
    with_memory, few = searched(16)
    hardly, many = searched(1)
    assert few[-1] <= 1e-8
    assert len(few) <= 2 / 3 * len(many)
    np.testing.assert_allclose(with_memory.momenta, hardly.momenta, atol=1e-5)


def test_the_energy_never_rises():
    problem, start = prepared()
    search = GaussNewton(1e-8)
    descent = search.init(problem, start)
    energies = [float(start.energy)]
    while not search.ended(descent):
        descent = search.step(problem, descent)
        energies.append(float(descent.state.energy))
    assert np.all(np.diff(energies) <= 1e-8 * abs(energies[0]))
