"""Scores of predictions that say how sure they are."""

import numpy as np
import pytest
from scipy.stats import bootstrap, kstest, multivariate_normal, rankdata

from kunita.scores import (
    CALIBRATION_LEVELS,
    LEVELS,
    Interval,
    Predictions,
    calibration_error,
    case_draws,
    covered,
    interval,
    pit,
    pooled_means,
    rank_correlation,
    scores,
    sparsification,
)


def draws(n=4000, d=3, seed=0):
    rng = np.random.default_rng(seed)
    roots = rng.normal(size=(n, d, d)) + 2 * np.eye(d)
    covariances = roots @ roots.swapaxes(1, 2)
    errors = np.einsum("nab,nb->na", roots, rng.normal(size=(n, d)))
    squared = np.einsum("na,nab,nb->n", errors, np.linalg.inv(covariances), errors)
    return errors, squared, covariances


def honest(n=4000, d=3, seed=0):
    """Predictions whose covariances are true."""
    errors, _, covariances = draws(n, d, seed)
    places = np.random.default_rng(seed + 1).normal(size=(n, d))
    return Predictions(places, covariances, places + errors)


@pytest.mark.parametrize("d", [2, 3])
def test_calibrated_predictions_cover_what_they_say(d):
    errors, squared, covariances = draws(d=d)
    found = scores(np.linalg.norm(errors, axis=1), squared, covariances)
    for level, share in zip(LEVELS, found.coverage, strict=True):
        assert abs(share - level) < 4 * np.sqrt(level * (1 - level) / len(squared))


def test_the_log_score_is_that_of_the_normal_density():
    errors, squared, covariances = draws(n=20)
    exact = -np.mean(
        [
            multivariate_normal(np.zeros(3), c).logpdf(e)
            for e, c in zip(errors, covariances, strict=True)
        ]
    )
    assert np.isclose(scores(np.linalg.norm(errors, axis=1), squared, covariances).nll, exact)


def test_predictions_have_the_scores_of_their_errors():
    errors, squared, covariances = draws(n=50, d=2)
    found = Predictions(np.zeros((50, 2)), covariances, errors)
    expected = scores(np.linalg.norm(errors, axis=1), squared, covariances)
    np.testing.assert_allclose(found.squared, squared, rtol=1e-9)
    assert found.errors.mean() == pytest.approx(expected.error_mm)
    assert found.log_scores.mean() == pytest.approx(expected.nll)
    np.testing.assert_allclose(covered(found.pit, LEVELS).mean(axis=0), expected.coverage)
    np.testing.assert_allclose(found.stds**2, [np.trace(c) / 2 for c in covariances])


# -------------------------------------------------------------------------------------- calibration


@pytest.mark.parametrize("d", [2, 3])
def test_the_probability_integral_transform_of_honest_predictions_is_uniform(d):
    assert kstest(honest(d=d).pit, "uniform").pvalue > 1e-3


@pytest.mark.parametrize("d", [2, 3])
def test_the_probability_integral_transform_is_the_share_of_draws_that_are_nearer(d):
    """Monte Carlo, by the definition: the region that just holds the point holds this share of the
    distribution."""
    mine = honest(n=5, d=d)
    rng = np.random.default_rng(3)
    for squared, covariance, share in zip(mine.squared, mine.covariances, mine.pit, strict=True):
        e = rng.multivariate_normal(np.zeros(d), covariance, 20_000)
        nearer = np.einsum("na,ab,nb->n", e, np.linalg.inv(covariance), e) <= squared
        assert abs(nearer.mean() - share) < 4 * np.sqrt(0.25 / 20_000)


@pytest.mark.parametrize(("factor", "sure"), [(0.5, "too sure"), (2.0, "not sure enough")])
def test_wrong_sizes_of_uncertainty_cost_calibration_and_log_score_either_way(factor, sure):
    mine = honest()
    wrong = Predictions(mine.means, factor**2 * mine.covariances, mine.observed)
    error = lambda one: calibration_error(covered(one.pit, CALIBRATION_LEVELS).mean(axis=0))
    assert error(mine) < 0.02  # Monte Carlo: each of 19 shares has a standard error below 0.008
    assert error(wrong) > 0.2, sure
    assert wrong.log_scores.mean() > mine.log_scores.mean() + 0.2


def test_the_calibration_error_is_the_mean_over_nineteen_levels():
    shares = pit(np.random.default_rng(0).chisquare(3, 40) * 2, 3)
    by_hand = [abs(sum(share <= k / 20 for share in shares) / 40 - k / 20) for k in range(1, 20)]
    found = calibration_error(covered(shares, CALIBRATION_LEVELS).mean(axis=0))
    assert len(CALIBRATION_LEVELS) == 19
    assert found == pytest.approx(np.mean(by_hand))


# ----------------------------------------------------------------------------- knowing which is bad


def test_the_rank_correlation_is_that_of_the_ranks():
    rng = np.random.default_rng(0)
    stds, errors = rng.uniform(size=(2, 30))
    assert rank_correlation(stds, errors) == pytest.approx(
        np.corrcoef(rankdata(stds), rankdata(errors))[0, 1]
    )
    assert rank_correlation(errors**3, errors) == pytest.approx(1.0)
    assert rank_correlation(np.full(30, 0.7), errors) is None


def test_sparsification_is_the_mean_error_of_what_is_left():
    rng = np.random.default_rng(1)
    errors, stds = rng.uniform(size=(2, 25))
    found = sparsification(errors, stds)
    for k, fraction in enumerate(found.fractions):
        kept, best = np.argsort(stds)[: 25 - k], np.sort(errors)[: 25 - k]
        assert fraction == pytest.approx(k / 25)
        assert found.remaining_mm[k] == pytest.approx(errors[kept].mean())
        assert found.oracle_mm[k] == pytest.approx(best.mean())


def test_the_area_of_sparsification_is_nothing_for_the_true_order_and_largest_for_the_opposite():
    errors = np.random.default_rng(2).exponential(size=200)
    areas = [sparsification(errors, stds).area for stds in (errors, np.ones(200), -errors)]
    assert areas[0] == pytest.approx(0.0, abs=1e-12)
    assert areas[0] < areas[1] < areas[2]


def test_an_order_that_says_nothing_removes_at_random():
    errors = np.random.default_rng(2).exponential(size=30)
    np.testing.assert_allclose(sparsification(errors, np.ones(30)).remaining_mm, errors.mean())


def test_ties_are_left_to_chance():
    """The mean over all orders of two tied predictions."""
    errors, stds = np.array([1.0, 2.0, 5.0]), np.array([1.0, 3.0, 3.0])
    orders = (np.array([1.0, 3.0, 3.1]), np.array([1.0, 3.1, 3.0]))
    both = np.mean([sparsification(errors, order).remaining_mm for order in orders], axis=0)
    np.testing.assert_allclose(sparsification(errors, stds).remaining_mm, both)


def test_the_area_does_not_depend_on_the_unit():
    errors, stds = np.random.default_rng(3).uniform(size=(2, 40))
    assert sparsification(10 * errors, stds).area == pytest.approx(
        sparsification(errors, stds).area
    )


# ---------------------------------------------------------------------------------------- intervals


def test_the_interval_of_a_mean_over_cases_is_that_of_another_bootstrap():
    values = np.random.default_rng(0).normal(1.0, 2.0, 12)
    found = interval(values.mean(), values[case_draws(12, 0, 20_000)].mean(axis=1), 12)
    other = bootstrap(
        (values,), np.mean, n_resamples=20_000, method="percentile", rng=np.random.default_rng(1)
    )
    assert found.value == pytest.approx(values.mean())
    np.testing.assert_allclose(
        (found.low, found.high), other.confidence_interval, atol=0.05
    )  # Monte Carlo


def test_whole_cases_are_drawn():
    """Every resampled mean is that of the landmarks of the drawn cases, put together."""
    rng, owners = np.random.default_rng(0), np.repeat([0, 1, 2], [3, 5, 2])
    values, drawn = rng.normal(size=(10, 2)), case_draws(3, 7, 20)
    for k, cases in enumerate(drawn):
        by_hand = np.concatenate([values[owners == case] for case in cases]).mean(axis=0)
        np.testing.assert_allclose(pooled_means(values, owners, drawn)[k], by_hand)


def test_landmarks_that_go_together_widen_the_interval():
    rng, owners = np.random.default_rng(0), np.repeat(np.arange(10), 15)
    together = rng.normal(size=10)[owners][:, None] + 0.1 * rng.normal(size=(150, 1))
    apart, drawn = rng.permutation(together), case_draws(10, 0)
    wide, narrow = (np.std(pooled_means(values, owners, drawn)) for values in (together, apart))
    assert wide > 2 * narrow


def test_the_same_seed_draws_the_same_cases_and_another_does_not():
    assert np.array_equal(case_draws(10, 3), case_draws(10, 3))
    assert not np.array_equal(case_draws(10, 3), case_draws(10, 4))


@pytest.mark.parametrize("cases", [1, 2])
def test_too_few_cases_have_no_interval(cases):
    assert interval(1.5, np.ones(9), cases) == Interval(1.5, None, None)


@pytest.mark.parametrize(
    ("low", "high", "open_sign"),
    [(-0.1, 0.2, True), (0.1, 0.2, False), (-0.2, -0.1, False), (None, None, True)],
)
def test_a_sign_is_told_only_by_an_interval_without_zero(low, high, open_sign):
    assert Interval(0.1, low, high).holds_zero is open_sign
