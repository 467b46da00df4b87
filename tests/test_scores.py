"""Scores of predictions that say how sure they are."""

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from kunita.scores import LEVELS, scores, suspects


def draws(n=4000, d=3, seed=0):
    rng = np.random.default_rng(seed)
    roots = rng.normal(size=(n, d, d)) + 2 * np.eye(d)
    covariances = roots @ roots.swapaxes(1, 2)
    errors = np.einsum("nab,nb->na", roots, rng.normal(size=(n, d)))
    squared = np.einsum("na,nab,nb->n", errors, np.linalg.inv(covariances), errors)
    return errors, squared, covariances


@pytest.mark.parametrize("d", [2, 3])
def test_calibrated_predictions_cover_what_they_say(d):
    errors, squared, covariances = draws(d=d)
    found = scores(np.linalg.norm(errors, axis=1), squared, covariances)
    for level, share in zip(LEVELS, found.coverage, strict=True):
        assert abs(share - level) < 4 * np.sqrt(level * (1 - level) / len(squared))


def test_the_log_score_is_that_of_the_normal_density():
    errors, squared, covariances = draws(n=20)
    exact = -np.mean([multivariate_normal(np.zeros(3), c).logpdf(e) for e, c in zip(errors, covariances, strict=True)])
    assert np.isclose(scores(np.linalg.norm(errors, axis=1), squared, covariances).nll, exact)


def test_of_honest_registrations_one_in_a_hundred_has_a_suspect():
    rng = np.random.default_rng(0)
    accused = [suspects(rng.chisquare(3, 30), 3).any() for _ in range(3000)]
    assert abs(np.mean(accused) - 0.01) < 4 * np.sqrt(0.01 / 3000)


def test_a_landmark_far_off_is_suspect_and_alone():
    squared = np.full(30, 3.0)
    squared[4] = 60.0
    assert np.flatnonzero(suspects(squared, 3)).tolist() == [4]
