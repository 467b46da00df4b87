"""Leave-one-out in rows is leave-one-out: nothing is approximated, and no case chooses its own
parameters."""

import functools

import numpy as np
import pytest

import kunita
from kunita.cohort.leave_one_out import (
    Parameters,
    RepeatedRows,
    closed_form,
    known_noise,
    leave_one_patient_out,
    own_parameters,
    refit_without,
    refits,
    register_rows,
    with_noise,
)
from kunita.data.case import Case
from kunita.data.landmarks import Landmarks
from problems import gp_displaced

N, ROWS = 9, 11
"""Landmarks, and the rows that fits have: with those of N − 1 landmarks alone, two programs serve
all tests."""


def covariances(seed, d, size):
    draws = np.random.default_rng(seed).normal(size=(N, d, d))
    return size**2 * (np.eye(d) + 0.2 * draws @ draws.swapaxes(1, 2))


@functools.cache
def problem(d: int, both: bool, rms: float = 5.0) -> tuple[Landmarks, Landmarks, kunita.Gaussian]:
    """Landmarks with a noise of their own, on one side or on both."""
    moving, fixed = gp_displaced(N, seed=d, d=d, side=80.0, rms=rms)
    noise = covariances(1, d, 0.7) if both else None
    return (
        Landmarks(moving, None, noise),
        Landmarks(fixed, None, covariances(2, d, 1.0)),
        kunita.Gaussian(50.0, 5.0),
    )


@pytest.mark.parametrize(("d", "both"), [(2, False), (2, True), (3, True)])
def test_a_refit_in_rows_is_a_registration_of_the_others(d, both):
    moving, fixed, kernel = problem(d, both)
    full = register_rows(moving, fixed, ROWS, kernel=kernel)
    for i in (0, N - 1):
        others = np.delete(np.arange(N), i)
        alone = kunita.register(moving.take(others), fixed.take(others), kernel=kernel)
        expected, refit = (
            alone.posterior.predict(moving.points),
            refit_without(full, moving, fixed, i),
        )
        found = refit.posterior.predict(moving.points)
        assert refit.converged
        np.testing.assert_allclose(found.mean, expected.mean, atol=1e-5)  # both converge to 1e-6 mm
        np.testing.assert_allclose(
            found.covariance, expected.covariance, rtol=1e-5, atol=1e-6
        )  # of some 5 mm²


@pytest.mark.parametrize("both", [False, True])
def test_more_rows_say_no_more(both):
    moving, fixed, kernel = problem(2, both)
    moving, fixed = moving.take(range(N - 1)), fixed.take(range(N - 1))
    once = kunita.register(moving, fixed, kernel=kernel).posterior.predict(moving.points + 5)
    more = register_rows(moving, fixed, ROWS, kernel=kernel).posterior.predict(moving.points + 5)
    np.testing.assert_allclose(more.mean, once.mean, atol=1e-5)
    np.testing.assert_allclose(more.covariance, once.covariance, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("model", ["endpoint", "small"])
@pytest.mark.parametrize("rows", [N - 1, ROWS])
def test_the_closed_form_is_that_of_the_posterior_whatever_the_rows(rows, model):
    moving, fixed, kernel = problem(2, True)
    moving, fixed = moving.take(range(N - 1)), fixed.take(range(N - 1))
    expected = kunita.register(moving, fixed, kernel=kernel, model=model).posterior.leave_one_out()
    found = closed_form(
        register_rows(moving, fixed, rows, kernel=kernel, model=model), moving, fixed
    )
    for i, left in enumerate(found):
        np.testing.assert_allclose(left.mean, expected.mean[i], atol=1e-5)
        np.testing.assert_allclose(
            left.covariance + left.noise, expected.covariance[i], rtol=1e-5, atol=1e-7
        )
        assert left.squared(fixed.points[i]) == pytest.approx(expected.chi2[i], rel=1e-5)


def test_the_closed_form_of_moving_landmarks_that_are_nearly_exact_has_covariances():
    """Where the posterior is as sure as the noise, another noise than that of the fit would leave
    less than nothing."""
    moving, fixed, kernel = problem(2, True)
    sharp = Landmarks(moving.points, None, 1e-4 * moving.covariances)
    for model in ("endpoint", "small"):
        full = register_rows(sharp, Landmarks(fixed.points), ROWS, kernel=kernel, model=model)
        assert all(
            np.linalg.eigvalsh(left.covariance)[0] > 0 for left in closed_form(full, sharp, fixed)
        )


def test_without_nonlinearity_refits_say_what_the_closed_form_says():
    moving, fixed, kernel = problem(2, False)
    full = register_rows(moving, fixed, ROWS, kernel=kernel, align="translation", model="small")
    for refit, left in zip(
        refits(full, moving, fixed), closed_form(full, moving, fixed), strict=True
    ):
        found = refit.left_out(moving, fixed)
        np.testing.assert_allclose(found.mean, left.mean, atol=1e-7)
        np.testing.assert_allclose(found.covariance, left.covariance, rtol=1e-6, atol=1e-8)


def test_a_left_out_landmark_has_no_say():
    """Wherever it is said to be, even far away: the start of the refit knew it, its end does not."""
    moving, fixed, kernel = problem(2, True)
    wild = Landmarks(fixed.points + 9.0 * (np.arange(N) == 4)[:, None], None, fixed.covariances)
    here, there = (
        refit_without(register_rows(moving, side, ROWS, kernel=kernel), moving, side, 4).left_out(
            moving, side
        )
        for side in (fixed, wild)
    )
    np.testing.assert_allclose(here.mean, there.mean, atol=1e-5)
    np.testing.assert_allclose(here.covariance, there.covariance, rtol=1e-5, atol=1e-7)


def test_the_noise_of_a_moving_landmark_is_carried_over_to_fixed_space():
    moving, fixed, kernel = problem(2, True)
    refit = refit_without(register_rows(moving, fixed, ROWS, kernel=kernel), moving, fixed, 2)
    jacobian = refit.posterior.jacobian(moving.points[[2]])[0]
    expected = fixed.covariances[2] + jacobian @ moving.covariances[2] @ jacobian.T
    np.testing.assert_allclose(refit.left_out(moving, fixed).noise, expected, rtol=1e-12)


@pytest.mark.parametrize("rows", [5, 7, 12])
def test_rows_keep_the_information_and_the_momentum(rows):
    kept = np.array([0, 2, 3, 5, 6])
    listed, rng = RepeatedRows.of(kept, rows), np.random.default_rng(0)
    landmarks = Landmarks(rng.normal(size=(7, 3)), None, rng.uniform(1, 2, 7))
    information = np.zeros(7)
    np.add.at(information, listed.which, 1 / listed.covariances(landmarks)[:, 0, 0])
    np.testing.assert_allclose(information[kept], 1 / landmarks.covariances[kept, 0, 0])
    assert not information[[1, 4]].any()
    momenta = rng.normal(size=(7, 3))
    np.testing.assert_allclose(listed.collected(listed.split(momenta), 7)[kept], momenta[kept])


# --------------------------------------------------------------------------------------- parameters


def test_parameters_of_a_case_come_from_the_others_only():
    own = [Parameters(float(a), float(a) / 10) for a in (1, 2, 4, 9)]
    used = leave_one_patient_out(own)
    assert used[0] == Parameters(4.0, 0.4)
    changed = leave_one_patient_out([Parameters(1000.0, 77.0), *own[1:]])
    assert changed[0] == used[0]
    assert changed[1] != used[1]


def test_two_cases_are_too_few_to_learn_from():
    own = [Parameters(1.0, None), Parameters(2.0, 0.5)]
    assert leave_one_patient_out(own) == tuple(own)


def test_a_noise_that_no_other_case_lacks_stays_its_own_estimate():
    used = leave_one_patient_out(
        [Parameters(1.0, None), Parameters(2.0, 0.5), Parameters(3.0, None)]
    )
    assert used[1] == Parameters(2.0, 0.5)


def test_noise_that_files_bring_is_left_alone():
    used = leave_one_patient_out(
        [Parameters(1.0, None), Parameters(2.0, 0.5), Parameters(3.0, 0.7)]
    )
    assert used[0].noise_mm is None
    assert used[1].noise_mm == 0.7


def test_parameters_do_not_depend_on_the_rows():
    moving, fixed, _ = problem(2, True)
    eight = Case("a", moving.take(range(N - 1)), fixed.take(range(N - 1)))
    few, many = (own_parameters(eight, 40.0, rows) for rows in (N - 1, ROWS))
    assert few.amplitude_mm == pytest.approx(
        many.amplitude_mm, rel=5e-3
    )  # the weak prior is about the rows' own mean
    assert few.noise_mm is many.noise_mm is None


def test_what_the_evidence_cannot_determine_is_remembered_but_is_no_number():
    """Displacements smaller than the known noise leave nothing to a deformation."""
    moving, _, _ = problem(2, False)
    jitter = 0.5 * np.random.default_rng(0).normal(size=moving.points.shape)
    case = Case(
        "a",
        moving.take(range(N - 1)),
        Landmarks(moving.points + jitter, None, 1.0).take(range(N - 1)),
    )
    found = own_parameters(case, 40.0, ROWS)
    assert found.undetermined
    assert any("amplitude" in remark for remark in found.remarks)
    assert found == Parameters(found.amplitude_mm, found.noise_mm)


def test_what_the_evidence_determines_has_no_such_remark():
    moving, fixed, _ = problem(2, True)
    found = own_parameters(
        Case("a", moving.take(range(N - 1)), fixed.take(range(N - 1))), 40.0, ROWS
    )
    assert found.converged
    assert not found.undetermined


def test_unknown_noise_is_estimated_and_then_known():
    moving, fixed, _ = problem(2, False)
    case = Case("a", moving.take(range(N - 1)), Landmarks(fixed.points[: N - 1]))
    rigid, smooth = own_parameters(case, None, ROWS), own_parameters(case, 50.0, ROWS)
    assert rigid.noise_mm > smooth.noise_mm > 0  # what nothing explains is noise
    known = known_noise(case, smooth)[1]
    np.testing.assert_allclose(
        known.covariances, with_noise(case.fixed, smooth.noise_mm).covariances
    )
