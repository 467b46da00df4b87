"""Exact Newton finishes: it squares the residual of the optimality conditions."""

import itertools

import numpy as np

from kunita.inference.gauss_newton import GaussNewton
from kunita.inference.newton import ExactNewton, newton_step, newton_step_by_products
from kunita.inference.path_space import linearise
from kunita.inference.search import run
from problems import prepared


def searched(search, problem, state):
    """The state that a search ends at, and the residuals on the way, mm."""
    log = []
    begin = search.init(problem, state)
    found = run(search, problem, begin, method="a test", max_iterations=30, max_drift=1.0, log=log)
    return found.state, [state.misfit, *(line.gap_mm for line in log)]


def test_exact_newton_ends_quadratically():
    """From near the optimum every step squares the residual: digits double until rounding."""
    problem, start = prepared()
    near, _ = searched(GaussNewton(1e-3), problem, start)
    _, residuals = searched(ExactNewton(1e-11), problem, near)
    assert residuals[-1] <= 1e-11
    for before, after in itertools.pairwise(residuals):
        assert after <= max(10 * before**2, 1e-11)


def test_products_alone_give_the_same_step():
    """GMRES, preconditioned with Gauss–Newton, to the thousandth of the residual that it is asked
    for."""
    problem, start = prepared()
    near, _ = searched(GaussNewton(1e-2), problem, start)
    exact = newton_step(problem, near)
    found = newton_step_by_products(problem, near, linearise(problem, near))
    size = np.linalg.norm(exact.momenta)
    assert np.linalg.norm(np.asarray(found.momenta) - exact.momenta) < 0.01 * size
