"""A registration that an earlier version saved is read, and answers as it did.

`data/registration-v1.h5` was written by version 0.1.0 before the second edition of the core: 12
named landmarks in 3-D with covariances on both sides, a kernel chosen by the evidence, one gross
error. `data/registration-v1.json` holds what that version answered.
"""

import json
import pathlib

import numpy as np
import pytest

import kunita

DATA = pathlib.Path(__file__).parent / "data"
ANSWERS = json.loads((DATA / "registration-v1.json").read_text(encoding="utf-8"))
POINTS = np.array(ANSWERS["points"])


@pytest.fixture(scope="module")
def registration():
    return kunita.load(DATA / "registration-v1.h5")


def assert_same(found, name):
    """Same flow, same formula: what is left is rounding, 1e-9 of the largest entry."""
    expected = np.array(ANSWERS[name])
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9 * np.abs(expected).max())


def test_an_old_record_predicts_what_it_did(registration):
    predicted = registration.posterior.predict(POINTS)
    assert_same(predicted.mean, "predicted_mean")
    assert_same(predicted.covariance, "predicted_covariance")
    assert_same(registration.posterior.jacobian(POINTS), "jacobian")


def test_an_old_record_is_inverted_as_it_was(registration):
    origin = registration.posterior.inverse(POINTS)
    assert_same(origin.mean, "inverse_mean")
    assert_same(origin.covariance, "inverse_covariance")


def test_the_landmarks_of_an_old_record_are_left_out_as_they_were(registration):
    left_out = registration.posterior.leave_one_out()
    assert_same(left_out.mean, "loo_mean")
    assert_same(left_out.chi2, "loo_chi2")


def test_an_old_record_keeps_what_else_it_held(registration):
    assert registration.moving.names == registration.fixed.names == tuple(ANSWERS["names"])
    assert registration.moving.covariances.shape == registration.fixed.covariances.shape
    assert registration.kernel == kunita.Gaussian(ANSWERS["length_scale"], ANSWERS["amplitude"])
    assert (registration.energy, registration.evidence) == (ANSWERS["energy"], ANSWERS["evidence"])
    assert registration.converged == ANSWERS["converged"]
    assert registration.iterations == ANSWERS["iterations"]
    assert [[c.name, c.value, c.low, c.high] for c in registration.chosen] == ANSWERS["chosen"]
    suspects = np.flatnonzero(registration.suspicion.suspect)
    assert [registration.moving.labels[i] for i in suspects] == ANSWERS["suspects"]


def test_an_old_record_survives_being_saved_again(registration, tmp_path):
    kunita.save(registration, tmp_path / "again.h5")
    again = kunita.load(tmp_path / "again.h5")
    assert_same(again.posterior.predict(POINTS).mean, "predicted_mean")
    assert again.history == registration.history
