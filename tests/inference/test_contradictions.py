"""Landmarks beside images: how likely they are to be so far off."""

import math

import numpy as np
import pytest

from kunita.inference.contradictions import left_out_marks


def test_it_is_the_distance_from_where_all_else_puts_a_landmark():
    """A landmark y = f + ε of two, by conditioning on the other one without it."""
    prior = np.array([[4.0, 2.4], [2.4, 4.0]])
    noise = np.array([0.5, 3.0])
    y = np.array([1.0, -2.0])
    gain = prior @ np.linalg.inv(prior + np.diag(noise))
    mean = gain @ y
    posterior = prior - gain @ prior
    given = prior[1, 0] / (prior[0, 0] + noise[0])
    expected_miss = y[1] - given * y[0]
    expected_variance = prior[1, 1] - given * prior[0, 1] + noise[1]
    away, found = left_out_marks(
        (y - mean)[1:, None], 1 / noise[1:, None, None], posterior[1:, 1:, None]
    )
    squared = expected_miss**2 / expected_variance
    assert away[0] == pytest.approx(abs(expected_miss))
    # Both tails of a normal distribution.
    assert found[0] == pytest.approx(math.erfc(math.sqrt(squared / 2)), rel=1e-9)


def test_directions_that_are_not_known_do_not_count():
    precision = np.diag([4.0, 0.0])
    covariance = 0.01 * np.eye(2)
    near = left_out_marks(np.array([[0.1, 50.0]]), precision[None], covariance[None])
    far = left_out_marks(np.array([[5.0, 0.0]]), precision[None], covariance[None])
    assert near.chances[0] > 0.5
    assert near.distances[0] < 0.11
    assert far.chances[0] < 1e-6
    nothing = left_out_marks(np.array([[5.0, 0.0]]), np.zeros((1, 2, 2)), covariance[None])
    assert nothing.chances[0] == 1.0


def test_covariances_from_too_few_draws_do_no_harm():
    """They may say that more is unknown than the landmark itself leaves."""
    found = left_out_marks(np.array([[0.1]]), np.array([[[1.0]]]), np.array([[[1.3]]]))
    assert 0.5 < found.chances[0] < 1


def test_no_landmarks_are_no_error():
    nothing = np.zeros((0, 2, 2))
    assert len(left_out_marks(np.zeros((0, 2)), nothing, nothing).chances) == 0
