"""Targets: predicted with their uncertainty, and told apart by how far they are from the landmarks."""

import dataclasses

import numpy as np
import pytest

import kunita
import problems
from kunita.io.target_files import write_targets
from kunita.outputs.targets import (
    describe_targets,
    extrapolation_remarks,
    fle_mm,
    main_scale,
    remoteness,
)

SCALE = 25.0


def targets(d, covariances=None):
    """One in the middle, one at a landmark, one far away."""
    points = [np.full(d, 30.0), problems.registered(d).moving.points[2], np.full(d, 150.0)]
    return kunita.Landmarks(points, ["middle, of all", "third", "far"], covariances)


@pytest.mark.parametrize("d", [2, 3])
def test_the_predicted_tre_is_the_root_mean_square_distance_of_draws(d):
    reg = problems.registered(d)
    found = describe_targets(reg, targets(d))
    draws = reg.posterior.sample(targets(d).points, 4000, key=0)
    squared = np.sum((draws - np.array([target.position for target in found])) ** 2, axis=2)
    expected, error = squared.mean(axis=0), squared.std(axis=0) / np.sqrt(4000)
    assert np.all(np.abs([target.tre_mm**2 for target in found] - expected) < 4 * error)
    inside = np.mean(np.sqrt(squared) < [target.radius95_mm for target in found], axis=0)
    assert np.all(np.abs(inside - 0.95) < 4 * np.sqrt(0.95 * 0.05 / 4000))


@pytest.mark.parametrize("d", [2, 3])
def test_how_well_a_target_was_marked_is_in_its_radius_and_not_in_its_tre(d):
    reg = problems.registered(d)
    plain, marked = describe_targets(reg, targets(d)), describe_targets(reg, targets(d, 4.0))
    jacobians = reg.posterior.jacobian(targets(d).points)
    for exact, noisy, jacobian in zip(plain, marked, jacobians, strict=True):
        assert exact.tre_mm == noisy.tre_mm == pytest.approx(np.sqrt(d) * exact.std_mm)
        np.testing.assert_allclose(noisy.covariance, exact.covariance + 4 * jacobian @ jacobian.T)
        assert noisy.radius95_mm > exact.radius95_mm


@pytest.mark.parametrize("d", [2, 3])
def test_distances_are_to_the_nearest_landmark_that_was_used(d):
    reg = problems.registered(d)
    middle, third, far = describe_targets(reg, targets(d))
    assert (third.nearest, third.nearest_mm, third.extrapolates) == (
        "3",
        pytest.approx(0.0, abs=1e-9),
        False,
    )
    to = np.linalg.norm(reg.moving.points - 30.0, axis=1)
    assert (middle.nearest_mm, middle.in_sigma) == (
        pytest.approx(to.min()),
        pytest.approx(to.min() / SCALE),
    )
    assert middle.inside_hull
    assert far.extrapolates
    assert far.tre_mm > max(middle.tre_mm, third.tre_mm)
    without = dataclasses.replace(reg, used=np.arange(16) != 2)
    assert describe_targets(without, targets(d))[1].nearest_mm > 1


def test_a_point_extrapolates_one_length_scale_from_all_landmarks_or_half_of_one_outside_their_hull():
    reg = problems.registered(2)
    marked = reg.moving.points
    top = marked[marked[:, 1].argmax()]
    up = np.array([0.0, 1.0])
    for steps, expected in ((0.45, False), (0.55, True), (1.1, True)):
        assert bool(remoteness(reg, (top + steps * SCALE * up)[None]).extrapolates[0]) is expected
    centre = marked.mean(axis=0)
    hollow = dataclasses.replace(reg, used=np.linalg.norm(marked - centre, axis=1) > SCALE)
    found = remoteness(hollow, centre[None])
    assert found.outside_mm[0] == 0
    assert bool(found.extrapolates[0])


def test_the_length_scale_of_a_sum_is_its_smallest():
    assert main_scale(problems.KERNELS["sum"]) == 5.0
    assert main_scale(problems.KERNELS["matern52"] + problems.KERNELS["sum"]) == 3.0


def test_the_localisation_error_is_that_of_draws_of_the_noise():
    reg = problems.registered(3)
    draws = np.random.default_rng(0).normal(0, 0.7, (20000, 3))
    assert fle_mm(reg) == pytest.approx(np.sqrt(np.mean(np.sum(draws**2, axis=1))), rel=0.02)


def test_only_targets_that_the_landmarks_do_not_reach_are_warned_of():
    (remark,) = extrapolation_remarks(describe_targets(problems.registered(3), targets(3)))
    assert remark.startswith("target 'far' is an extrapolation: ")
    assert "outside the landmarks' hull" in remark


@pytest.mark.parametrize("d", [2, 3])
def test_the_table_reads_back_as_landmarks_with_the_same_numbers(d, tmp_path):
    found = describe_targets(problems.registered(d), targets(d))
    write_targets(tmp_path / "targets.csv", found)
    again = kunita.read_landmarks(tmp_path / "targets.csv")
    assert again.names == targets(d).names
    np.testing.assert_array_equal(again.points, [target.position for target in found])
    np.testing.assert_allclose(
        again.covariances, [target.covariance for target in found], rtol=1e-12, atol=1e-12
    )
