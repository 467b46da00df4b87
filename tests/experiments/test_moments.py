"""The first experiment's conclusion, on a small version of it."""

import dataclasses

import numpy as np
import pytest

from kunita.experiments import moments
from kunita.experiments.moments import MEASURES, Difference, closure_row
from kunita.flow.referee import Estimate

SMALL = dataclasses.replace(
    moments.QUICK,
    length_scales_mm=(2.0,),
    num_landmarks=16,
    num_experiments=3,
    num_paths=512,
    num_curve_paths=512,
)


@pytest.mark.slow
def test_the_gaussian_closure_is_five_times_closer_than_the_papers_and_the_paper_figure_needs_few_paths():
    found = moments.moments(SMALL)
    rows = {(row.shape, row.closure, row.measure): row for row in found.tables[0].rows}
    for shape in moments.SHAPES:
        ll, gaussian = (rows[shape, closure, "arrival"] for closure in ("ll", "gaussian"))
        assert ll.error > 5 * gaussian.error
        assert not ll.below_resolution
        assert gaussian.times_smaller >= 5
        assert rows[shape, "gaussian", "point covariance"].times_smaller >= 5
        assert (
            rows[shape, "ll", "point covariance"].resolved
            > rows[shape, "gaussian", "point covariance"].resolved
        )
    curve = [
        row for row in found.tables[1].rows if (row.shape, row.measure) == ("circle", "arrival")
    ]
    assert curve[0].from_truth == pytest.approx(
        8 * curve[-1].from_truth, rel=0.5
    )  # chance: 64 times the paths
    assert curve[-1].from_ll > 1.5 * curve[-1].from_truth  # a bias that no number of paths removes
    assert [plate.name for plate in found.plates] == [
        "moments_errors",
        "moments_paths",
        "moments_arrivals",
    ]
    assert any("at least five times closer" in finding for finding in found.findings)


def test_the_velocity_at_the_landmarks_has_the_kernels_covariance():
    """v = Kp = Lξ; 5 standard errors over 400 fields."""
    settings = dataclasses.replace(moments.QUICK, num_landmarks=4, num_steps=1)
    draws = [moments.draw(settings, "circle", 5.0, number) for number in range(400)]
    gram = np.asarray(draws[0].kernel.gram(draws[0].points, draws[0].points))
    fields = np.concatenate([(gram @ draw.momenta).T for draw in draws])
    assert np.abs(fields.T @ fields / len(fields) - gram).max() < 5 * np.sqrt(2 / len(fields))


@pytest.mark.parametrize("measure", MEASURES, ids=lambda measure: measure.name)
def test_a_closure_that_is_right_is_below_resolution_and_one_that_is_wrong_is_not(measure):
    """Synthetic estimates: truth plus independent noise. The square is unbiased, so it is told from
    chance."""
    rng = np.random.default_rng(0)
    truth = Estimate(rng.normal(size=(4, 2)), np.eye(8).reshape(4, 2, 4, 2))
    wrong = Estimate(truth.mean + 0.05, 1.1 * truth.covariance)
    noisy = lambda: Estimate(truth.mean + 0.05 * rng.normal(size=(4, 2)),
                             truth.covariance + 0.05 * rng.normal(size=(4, 2, 4, 2)))  # fmt: skip
    pairs = [(noisy(), noisy()) for _ in range(200)]
    right, off = (
        closure_row(
            "circle",
            2.0,
            measure,
            [moments.difference("gaussian", measure, guess, pair) for pair in pairs],
        )
        for guess in (truth, wrong)
    )
    assert right.below_resolution
    assert right.error == pytest.approx(right.simulation_error, rel=0.15)
    assert not off.below_resolution
    exact = (
        measure.distance(wrong, truth) if measure.name != "point covariance" else 0.1 * np.sqrt(2)
    )
    assert off.resolved_low < exact * 1.05
    assert off.resolved_high > exact * 0.95


def test_rows_average_over_experiments():
    found = [Difference("ll", "arrival", error, 0.1, error**2) for error in (1.0, 3.0)]
    row = closure_row("circle", 0.1, MEASURES[0], found)
    assert (row.error, row.standard_error, row.median_error) == (2.0, 1.0, 2.0)
    assert row.times_smaller == 0.5 / 2.0
