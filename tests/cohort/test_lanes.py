"""Refits in batches are refits: the same optimum, whoever is in the next lane, and few programs for
a cohort."""

import functools

import numpy as np
import pytest

import kunita
from kunita.cohort.lanes import BUCKETS, bucket, num_points, refit_batch
from kunita.cohort.leave_one_out import (
    Question,
    RepeatedRows,
    Starts,
    refit_alone,
    refits,
    refits_without,
    register_rows,
)
from kunita.data.landmarks import Landmarks
from kunita.inference.leave_out import Influence
from kunita.inference.problem import Problem, look, no_step
from kunita.inference.solve import THOROUGH
from problems import gp_displaced

N = 8
"""Landmarks. The 7 that are left are fitted in as many rows, the smallest bucket: the programs of the
door and of the whole search serve both."""

COHORTS = {
    "easy": (kunita.Gaussian(50.0, 5.0), 2.5, "endpoint"),
    "hard": (kunita.Gaussian(30.0, 15.0), 20.0, "endpoint"),
    "pathwise": (kunita.Gaussian(50.0, 5.0), 2.5, "pathwise"),
    "small": (kunita.Gaussian(50.0, 5.0), 5.0, "small"),
}
"""Kernel, displacement (RMS, mm) and model; noise on both sides, so that the map carries some of it
over."""


@functools.cache
def landmarks(rms: float, seed: int = 0, n: int = N, d: int = 2) -> tuple[Landmarks, Landmarks]:
    moving, fixed = gp_displaced(n, seed=seed, d=d, side=80.0, length_scale=30.0, rms=rms)
    draws = np.random.default_rng(seed).normal(size=(2, n, d, d))
    noise = np.eye(d) + 0.2 * draws @ draws.swapaxes(-1, -2)
    return Landmarks(moving, None, 0.3 * noise[0]), Landmarks(fixed, None, 0.5 * noise[1])


@functools.cache
def registered(cohort: str, seed: int = 0):
    kernel, rms, model = COHORTS[cohort]
    moving, fixed = landmarks(rms, seed)
    return register_rows(moving, fixed, N, kernel=kernel, model=model), moving, fixed


def elsewhere(moving):
    """A further point for each landmark: programs of lanes with two points each serve most tests."""
    return moving.points + 3.0


def alone(case, i):
    full, moving, fixed = case
    question = Question.of(moving, np.array([i]), None)
    return refit_alone(full, Starts.of(full, moving, fixed).lane(question, 1), question)


@pytest.mark.parametrize("cohort", COHORTS)
def test_a_batch_finds_what_the_whole_search_finds(cohort):
    """Both routes converge to 1e-6 of the noise, by different methods and from the noise of
    different maps."""
    for seed in (0,) if cohort == "hard" else (0, 1):  # whose search compiles many programs
        case = registered(cohort, seed)
        further = None if cohort == "hard" else elsewhere(case[1])
        for refit in list(refits(*case, further))[:: N - 1]:
            expected = alone(case, refit.landmark)
            assert refit.converged
            assert expected.converged
            np.testing.assert_allclose(refit.predicted.mean, expected.predicted.mean, atol=1e-5)
            np.testing.assert_allclose(
                refit.predicted.covariance, expected.predicted.covariance, rtol=1e-4, atol=1e-6
            )
            np.testing.assert_allclose(refit.jacobians, expected.jacobians, atol=1e-5)


@pytest.mark.parametrize("cohort", ["easy", "pathwise", "small"])
def test_what_a_lane_predicts_is_what_its_posterior_predicts(cohort):
    full, moving, fixed = registered(cohort)
    for refit in refits(full, moving, fixed, elsewhere(moving)):
        i = refit.landmark
        at = refit.posterior.predict(moving.points[[i]])
        assert not refit.alone
        np.testing.assert_allclose(refit.predicted.mean, at.mean, atol=1e-9)
        np.testing.assert_allclose(refit.predicted.covariance, at.covariance, rtol=1e-8)
        np.testing.assert_allclose(
            refit.elsewhere, refit.posterior.move(elsewhere(moving)[[i]]), atol=1e-9
        )


def test_what_a_lane_calls_converged_the_search_does_too():
    """With the noise that its own map carries over."""
    full, moving, fixed = registered("hard")
    for refit in [refit for refit in refits(full, moving, fixed) if not refit.alone]:
        found = refit.posterior
        rows = RepeatedRows.of(np.delete(np.arange(N), refit.landmark), N)
        observed = rows.observations(moving, fixed).about(found.origin)
        problem = Problem(full.kernel, observed, full.posterior.trend)
        state = look(
            problem,
            found.alignment,
            found.trajectory.momenta[0],
            no_step(problem),
            found.trajectory.times,
        )
        assert state.misfit <= THOROUGH.tolerance_mm(problem)
        # With D = CCᵀ the rows are C⁻¹, with the noise as the map carries it over
        copied = np.asarray(found.trajectory.jacobians[-1]) @ found.alignment.matrix
        carried = copied @ rows.covariances(moving) @ copied.swapaxes(1, 2)
        noise = rows.covariances(fixed) + carried
        blocks = np.asarray(found.rows.blocks)
        precision = blocks.swapaxes(1, 2) @ blocks
        np.testing.assert_allclose(precision @ noise, np.tile(np.eye(2), (N, 1, 1)), atol=1e-9)


def test_a_lane_does_not_depend_on_its_neighbours():
    """To the last digit: how a cohort is cut into batches, and among processes, changes nothing."""
    full, moving, fixed = registered("hard")
    together = list(refits(full, moving, fixed))
    for order in ([7, 3, 5], [3], [1, 0, 3, 7, 2, 6, 4, 5]):
        for refit in refits_without(full, moving, fixed, [(i,) for i in order]):
            np.testing.assert_array_equal(
                refit.predicted.mean, together[refit.landmark].predicted.mean
            )
            np.testing.assert_array_equal(
                refit.predicted.covariance, together[refit.landmark].predicted.covariance
            )


def test_what_lanes_cannot_fit_the_whole_search_fits():
    """A landmark of a gross error bends the fit of all of them so far that the refit without it
    starts elsewhere."""
    kernel, rms, _ = COHORTS["hard"]
    moving, fixed = landmarks(rms)
    gross = (np.arange(N) == 2)[:, None] * [-90.0, 0.0]
    wild = Landmarks(fixed.points + gross, None, fixed.covariances)
    full = register_rows(moving, wild, N, kernel=kernel)
    found = next(iter(refits_without(full, moving, wild, [(2,)])))
    right = next(iter(refits_without(*registered("hard"), [(2,)])))
    assert found.alone
    assert found.converged
    np.testing.assert_allclose(found.predicted.mean, right.predicted.mean, atol=1e-5)
    np.testing.assert_allclose(found.predicted.covariance, right.predicted.covariance, rtol=1e-4)


# ------------------------------------------------------------------------------------------- shapes


def refit_case(seed, n, length_scale):
    moving, fixed = landmarks(2.0, seed, n)
    kernel = kunita.Gaussian(length_scale, 3.0)
    full = register_rows(moving, fixed, bucket(n), kernel=kernel)
    assert not any(refit.alone for refit in refits(full, moving, fixed, elsewhere(moving)))


def test_a_cohort_compiles_one_program_for_each_bucket():
    """After a case in each of two buckets, others compile nothing: neither of other numbers of
    landmarks nor with another length scale."""
    cases = [(0, 8), (1, 12)]
    others = [(2, 7), (3, 9), (4, 15)]
    assert {bucket(n - 1) for _, n in cases} == {bucket(n - 1) for _, n in others}
    for seed, n in cases:
        refit_case(seed, n, 40.0)
    programs = refit_batch._cache_size()
    for seed, n in cases + others:
        refit_case(seed, n, 60.0)
    assert refit_batch._cache_size() == programs


@pytest.mark.parametrize("count", [1, 8, 9, 36, 64, 65, 97, 300])
def test_a_bucket_is_the_smallest_that_holds_the_landmarks(count):
    sizes = (*BUCKETS, *range(96, 400, 32))
    assert bucket(count) == min(size for size in sizes if size >= count)
    assert num_points(count, bucket(count)) >= count


# ------------------------------------------------------------------------------------------- starts


@pytest.mark.parametrize("left", [(0,), (2, 7)])
def test_a_refit_starts_where_the_linearised_model_without_the_landmarks_has_its_optimum(left):
    """By brute force: S and H of the others alone, with the observations y = Sλ that the full fit
    has explained."""
    full, _, _ = registered("easy")
    linear = full.posterior.linear
    rows = np.array(left)
    h = np.asarray(linear.design)
    s = np.linalg.inv(linear.explain(np.eye(2 * N)))
    lam = np.asarray(full.posterior.trajectory.momenta[-1])
    kept = np.setdiff1d(np.arange(2 * N), np.concatenate([2 * rows, 2 * rows + 1]))
    y, known = (s @ lam.ravel())[kept], np.linalg.inv(s[np.ix_(kept, kept)])
    beta = np.linalg.solve(h[kept].T @ known @ h[kept], h[kept].T @ known @ y)
    dual = np.zeros(2 * N)
    dual[kept] = known @ (y - h[kept] @ beta)
    step = Influence.of(linear, lam).without(rows)
    np.testing.assert_allclose(step.beta, beta, atol=1e-5)  # of a fit to 1e-6 mm
    change = (dual.reshape(N, 2) - lam)[:, None, :] @ np.asarray(linear.jacobians)
    np.testing.assert_allclose(step.momenta, change[:, 0], atol=1e-6)
