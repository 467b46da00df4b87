"""A cohort is made of cases that can be left out of, and a generated one tells the truth about
itself."""

import functools

import numpy as np
import pytest
from scipy.stats import chi2

from kunita.data.case import LEAST_LANDMARKS, Case
from kunita.data.landmarks import Landmarks
from kunita.errors import ArgumentError, LandmarkError
from kunita.phantoms.cohorts import COUNTS, generated_cohort

SEED = 3
"""A seed whose first case has the larger shift of the first two, and so the images."""


@functools.cache
def cohort() -> tuple[Case, ...]:
    return generated_cohort(2, seed=SEED, image_spacing=8.0)


@functools.cache
def alone() -> Case:
    return generated_cohort(1, seed=SEED)[0]


@pytest.mark.parametrize("side", ["moving", "fixed"])
def test_a_case_is_the_same_however_many_there_are_and_with_or_without_images(side):
    one, other = getattr(alone(), side), getattr(cohort()[0], side)
    assert one.names == other.names
    np.testing.assert_array_equal(one.points, other.points)
    np.testing.assert_array_equal(one.covariances, other.covariances)
    np.testing.assert_array_equal(
        getattr(alone(), f"true_{side}"), getattr(cohort()[0], f"true_{side}")
    )


def test_cases_differ_in_heads_counts_and_shifts():
    a, b = cohort()
    assert all(COUNTS[0] <= len(case) <= COUNTS[1] for case in (a, b))
    assert a.name != b.name
    assert abs(a.distances.mean() - b.distances.mean()) > 0.01
    assert not np.allclose(a.moving.points.mean(axis=0), b.moving.points.mean(axis=0), atol=0.1)


def test_exactly_one_case_has_images_if_any():
    assert [case.has_images for case in cohort()] == [True, False]
    assert not alone().has_images


@pytest.mark.parametrize("side", ["moving", "fixed"])
def test_observed_landmarks_miss_the_truth_by_what_their_covariances_say(side):
    squared, n = 0.0, 0
    for case in cohort():
        landmarks, truth = getattr(case, side), getattr(case, f"true_{side}")
        miss = landmarks.points - truth
        squared += np.sum(miss * np.linalg.solve(landmarks.covariances, miss[..., None])[..., 0])
        n += miss.size
    assert chi2.ppf(1e-4, n) < squared < chi2.ppf(1 - 1e-4, n)


def test_too_few_landmarks_are_refused():
    points = np.random.default_rng(0).normal(size=(LEAST_LANDMARKS, 2))
    assert len(Case("enough", Landmarks(points), Landmarks(points))) == LEAST_LANDMARKS
    with pytest.raises(LandmarkError, match="case 'few'.*at least 5.*found 4"):
        Case("few", Landmarks(points[1:]), Landmarks(points[1:]))


def test_sides_that_do_not_correspond_are_refused():
    points = np.random.default_rng(0).normal(size=(8, 3))
    with pytest.raises(LandmarkError, match="row by row"):
        Case("odd", Landmarks(points), Landmarks(points[1:]))


@pytest.mark.parametrize(
    "wrong", [{"num_cases": 0}, {"counts": (9, 8)}, {"num_cases": 1, "image_spacing": 0.0}]
)
def test_cohorts_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ArgumentError, match=[*wrong][-1].removeprefix("image_")):
        generated_cohort(**wrong)
