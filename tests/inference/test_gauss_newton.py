"""Gauss–Newton with a memory learns what its linear model leaves out."""

import numpy as np

from kunita.inference import gauss_newton
from kunita.inference.path_space import PathSpace
from kunita.inference.problem import Errors, Step
from problems import prepared


def test_secants_that_span_the_space_solve_a_linear_problem_exactly():
    """Whatever the model S that Gauss–Newton goes by: errors e + As vanish at s = −A⁻¹e."""
    rng = np.random.default_rng(0)
    n, d, b = 3, 2, 2
    slope, error = rng.normal(size=(n * d + b, n * d + b)), rng.normal(size=n * d + b)
    model = PathSpace(
        np.eye(n * d),
        rng.normal(size=(n * d, b)),
        rng.normal(size=(n * d, b)),
        np.eye(b),
        np.ones((n, d, d)),
    )
    steps = rng.normal(size=(n * d + b, n * d + b))
    as_step = lambda v: Step(v[:b], v[b:].reshape(n, d))
    as_errors = lambda v: Errors(v[b:].reshape(n, d), v[:b])
    secants = tuple((as_step(s), as_errors(slope @ s)) for s in steps)
    step = gauss_newton.secant_step(model, as_errors(error), secants, variance=2.0)
    exact = -np.linalg.solve(slope, error)
    np.testing.assert_allclose(step.beta, exact[:b], rtol=1e-8)
    np.testing.assert_allclose(step.momenta.ravel(), exact[b:], rtol=1e-8)


def test_the_memory_saves_steps(monkeypatch):
    """To the same optimum in at most two thirds of the steps."""
    problem, start = prepared()
    with_memory = list(gauss_newton.gauss_newton(problem, start, 1e-8))
    monkeypatch.setattr(
        gauss_newton,
        "secant_step",
        lambda linear, errors, *_: gauss_newton.gauss_newton_step(linear, errors),
    )
    without = list(gauss_newton.gauss_newton(problem, start, 1e-8))
    assert with_memory[-1].misfit <= 1e-8
    assert len(with_memory) <= 2 / 3 * len(without)
    np.testing.assert_allclose(with_memory[-1].momenta, without[-1].momenta, atol=1e-5)
