"""Rows, or what they add up to: the same registration from either."""

import functools

import numpy as np
import pytest

import kunita
from kunita.errors import LandmarkError
from kunita.inference import solve
from kunita.inference.evidence import evidence_of, full_evidence
from kunita.inference.problem import Problem
from kunita.inference.sample import aligned_sample
from kunita.posterior import posterior_from_fit
from problems import InformationAlone, noisy_landmarks

KERNEL = kunita.Gaussian(50.0, 8.0)

EXACT = solve.SolverOptions(tolerance=1e-10)
"""So that what differs between two fits is rounding, and not where their searches end."""


@functools.cache
def fitted(view, model):
    """The fit and its posterior, from rows or from information alone."""
    aligned = aligned_sample(noisy_landmarks(), "rigid", scaled=False)
    sample = aligned.sample
    observed = sample.observed
    if view == "information":
        observed = InformationAlone(observed, observed.sites)
    problem = Problem(KERNEL, observed, sample.trend)
    fit = solve.solve_model(problem, sample.start, model=model, options=EXACT)
    return fit, posterior_from_fit(fit, aligned.origin, model)


@pytest.mark.parametrize("model", ["endpoint", "small"])
def test_both_views_are_the_same_registration(model):
    by_rows, posterior = fitted("rows", model)
    by_information, other = fitted("information", model)
    assert by_rows.converged
    assert by_information.converged
    assert by_information.num_rows == by_rows.num_rows == 36
    assert by_information.energy == pytest.approx(by_rows.energy, rel=1e-9)
    assert evidence_of(by_information) == pytest.approx(evidence_of(by_rows), rel=1e-9)
    one = by_rows.trajectory
    two = by_information.trajectory
    np.testing.assert_allclose(two.positions, one.positions, atol=1e-9)
    np.testing.assert_allclose(two.momenta, one.momenta, atol=1e-9)
    places = noisy_landmarks().sites + 7.0
    expected = posterior.predict(places)
    found = other.predict(places)
    np.testing.assert_allclose(found.mean, expected.mean, atol=1e-9)
    np.testing.assert_allclose(found.covariance, expected.covariance, atol=1e-9)


def test_the_full_evidence_needs_no_rows():
    one = float(full_evidence(fitted("rows", "endpoint")[0]))
    two = float(full_evidence(fitted("information", "endpoint")[0]))
    assert two == pytest.approx(one, rel=1e-9)


def test_without_rows_nothing_is_left_out():
    _, posterior = fitted("information", "endpoint")
    with pytest.raises(LandmarkError, match="no single rows"):
        posterior.leave_one_out()
