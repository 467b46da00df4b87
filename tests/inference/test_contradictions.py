"""Landmarks beside images: how likely they are to be so far off."""

import numpy as np

from kunita.inference.contradictions import chances


def test_it_is_the_distance_from_where_all_else_puts_a_landmark():
    """A landmark y = f + ε of two, by conditioning on the other one without it."""
    prior = np.array([[4.0, 2.4], [2.4, 4.0]])
    noise = np.array([0.5, 0.3])
    y = np.array([1.0, -2.0])
    gain = prior @ np.linalg.inv(prior + np.diag(noise))
    mean = gain @ y
    posterior = prior - gain @ prior
    given = prior[1, 0] / (prior[0, 0] + noise[0])
    expected_miss = y[1] - given * y[0]
    expected_variance = prior[1, 1] - given * prior[0, 1] + noise[1]
    found = chances((y - mean)[1:, None], 1 / noise[1:, None, None], posterior[1:, 1:, None])
    squared = expected_miss**2 / expected_variance
    # Of one degree of freedom: χ² beyond z².
    rng = np.random.default_rng(0)
    beyond = np.mean(rng.normal(size=400_000) ** 2 > squared)
    assert abs(found[0] - beyond) < 0.003


def test_directions_that_are_not_known_do_not_count():
    precision = np.diag([4.0, 0.0])
    covariance = 0.01 * np.eye(2)
    near = chances(np.array([[0.1, 50.0]]), precision[None], covariance[None])
    far = chances(np.array([[5.0, 0.0]]), precision[None], covariance[None])
    assert near[0] > 0.5
    assert far[0] < 1e-6
    assert chances(np.array([[5.0, 0.0]]), np.zeros((1, 2, 2)), covariance[None])[0] == 1.0


def test_covariances_from_too_few_draws_do_no_harm():
    """They may say that more is unknown than the landmark itself leaves."""
    found = chances(np.array([[0.1]]), np.array([[[1.0]]]), np.array([[[1.3]]]))
    assert 0.5 < found[0] < 1
