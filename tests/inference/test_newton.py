"""Exact Newton finishes: it squares the gap."""

import itertools

from kunita.inference.gauss_newton import gauss_newton
from kunita.inference.newton import exact_newton
from problems import prepared


def test_exact_newton_ends_quadratically():
    """From near the optimum every step squares the gap: digits double until rounding."""
    problem, start = prepared()
    near = [start, *itertools.islice(gauss_newton(problem, start, 1e-3), 30)][-1]
    gaps = [near.misfit, *(state.misfit for state in exact_newton(problem, near, 1e-11))]
    assert gaps[-1] <= 1e-11
    for before, after in itertools.pairwise(gaps):
        assert after <= max(10 * before**2, 1e-11)
