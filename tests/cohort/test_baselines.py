"""The registrations to compare with: their laws, and other people's code."""

import numpy as np
import pytest
from scipy.interpolate import RBFInterpolator

from kunita.cohort.baselines import (
    BASELINES,
    affine,
    constant_sds,
    equally_sure,
    rigid,
    thin_plate_spline,
    without,
    without_each,
)
from problems import gp_displaced, rotation

KERNELS = {2: "thin_plate_spline", 3: "linear"}
"""What SciPy calls r² log r and −r."""


def problem(d, n=12):
    return gp_displaced(n, seed=d, d=d)


@pytest.mark.parametrize("d", [2, 3])
def test_the_thin_plate_spline_is_that_of_scipy(d):
    moving, fixed = problem(d)
    elsewhere = np.random.default_rng(0).uniform(-20, 170, (40, d))
    other = RBFInterpolator(moving, fixed, kernel=KERNELS[d], degree=1)
    np.testing.assert_allclose(
        thin_plate_spline(moving, fixed)(elsewhere), other(elsewhere), atol=1e-7
    )


@pytest.mark.parametrize("d", [2, 3])
def test_the_thin_plate_spline_goes_through_every_landmark(d):
    moving, fixed = problem(d)
    np.testing.assert_allclose(thin_plate_spline(moving, fixed)(moving), fixed, atol=1e-8)


@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize("name", ["affine", "tps"])
def test_affine_maps_are_found_exactly(d, name):
    moving, _ = problem(d)
    matrix = rotation(d) @ np.diag(np.linspace(0.8, 1.3, d))
    elsewhere = np.random.default_rng(0).uniform(-20, 170, (9, d))
    found = BASELINES[name](moving, moving @ matrix.T + 3.0)
    np.testing.assert_allclose(found(elsewhere), elsewhere @ matrix.T + 3.0, atol=1e-7)


@pytest.mark.parametrize("d", [2, 3])
def test_a_rigid_map_is_found_exactly_and_keeps_distances(d):
    moving, fixed = problem(d)
    turned = moving @ rotation(d).T - 7.0
    np.testing.assert_allclose(
        rigid(moving, turned)(moving), turned, atol=1e-4
    )  # a rotation is pulled to none by 1e-6
    mapped = rigid(moving, fixed)(moving)
    distances = lambda points: np.linalg.norm(points[:, None] - points, axis=2)
    np.testing.assert_allclose(distances(mapped), distances(moving), atol=1e-9)


def test_the_affine_map_is_that_of_least_squares():
    moving, fixed = problem(3)
    extended = np.c_[moving, np.ones(len(moving))]
    best = extended @ np.linalg.lstsq(extended, fixed, rcond=None)[0]
    np.testing.assert_allclose(affine(moving, fixed)(moving), best, atol=1e-8)


@pytest.mark.parametrize("few", [3, 4])
def test_landmarks_that_leave_the_affine_part_open_still_have_a_spline(few):
    """Three points in space, or points in one plane: through all of them, and nothing wild beside
    them."""
    moving, fixed = problem(3, n=8)
    moving, fixed = moving[:few], fixed[:few]
    moving[:, 2] = 5.0
    found = thin_plate_spline(moving, fixed)
    np.testing.assert_allclose(found(moving), fixed, atol=1e-8)
    beside = moving.mean(axis=0) + np.array([0.0, 0.0, 20.0])
    assert (
        np.linalg.norm(found(beside[None]) - beside)
        < 3 * np.linalg.norm(fixed - moving, axis=1).max()
    )


def test_coinciding_landmarks_of_a_spline_meet_half_way():
    moving, fixed = problem(2)
    moving[1] = moving[0]
    found = thin_plate_spline(moving, fixed)
    np.testing.assert_allclose(found(moving[:1])[0], fixed[:2].mean(axis=0), atol=1e-6)


@pytest.mark.parametrize("name", BASELINES)
def test_a_left_out_landmark_has_no_say(name):
    moving, fixed = problem(3)
    wild = fixed + 50.0 * (np.arange(12) == 4)[:, None]
    here, there = (without_each(BASELINES[name], moving, side) for side in (fixed, wild))
    np.testing.assert_allclose(here[4], there[4], atol=1e-9)
    assert np.allclose(here[5], there[5]) is (name == "none")
    np.testing.assert_allclose(
        without(BASELINES[name], moving, fixed, np.array([4])), here[[4]], atol=1e-9
    )


# -------------------------------------------------------------------------------------- constant sd


def test_the_constant_sd_of_a_case_comes_from_the_others_only():
    rng = np.random.default_rng(0)
    residuals = [rng.normal(0, size, (n, 3)) for size, n in ((1.0, 5), (2.0, 9), (4.0, 6))]
    found = constant_sds(residuals, 2)
    others = np.concatenate([residuals[1].ravel(), residuals[2].ravel()])
    assert found[0] == pytest.approx(np.sqrt(np.mean(others**2)))
    assert constant_sds([100 * residuals[0], *residuals[1:]], 2)[0] == pytest.approx(found[0])
    assert constant_sds(residuals[:2], 2)[0] == pytest.approx(np.sqrt(np.mean(residuals[0] ** 2)))


def test_of_all_constant_sds_the_root_mean_square_has_the_best_log_score():
    """Why it is the one to compare with: on the same residuals no other constant does better."""
    residual = np.random.default_rng(1).normal(0, 1.7, (30, 3))
    (sd,) = constant_sds([residual], 2)
    scores = [
        equally_sure(0 * residual, residual, factor * sd).log_scores.mean()
        for factor in (0.97, 1.0, 1.03)
    ]
    assert scores[1] == min(scores)
