"""Many landmarks through control points: the same registration, and the error of it known."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

import kunita
from kunita import numerics
from kunita.evaluation import prepare
from kunita.flow import control, covariance, transport
from kunita.inference import path_space, solve
from kunita.inference import problem as problem_module
from kunita.io.registration_files import load, save
from kunita.posterior import Posterior
from problems import gp_displaced

KERNEL = kunita.Gaussian(50.0, 5.0)
N = 240


@functools.cache
def problem():
    """More landmarks than are solved as they are, in a square of two length scales, marked with
    errors."""
    moving, fixed = gp_displaced(N, seed=2, side=100.0, d=2)
    return moving, fixed + np.random.default_rng(3).normal(size=fixed.shape)


@functools.cache
def registered(few, align="rigid"):
    """Through control points if they may be few."""
    before, solve.FEW = solve.FEW, few
    try:
        return kunita.register(*problem(), kernel=KERNEL, noise=1.0, align=align)
    finally:
        solve.FEW = before


@functools.cache
def spaces():
    """The linearised model of one flow with all landmarks, through few control points, and through
    half of them."""
    reg = registered(solve.FEW)
    with jax.enable_x64(True):
        path = transport.carry(
            KERNEL, reg.posterior.trajectory, reg.posterior.alignment(reg.moving.points)
        )
        times = np.asarray(reg.posterior.trajectory.times)
        flow = path_space.shooting.Trajectory(
            times, path.positions, path.positions, path.jacobians, times
        )
        rest = (numerics.simpson_weights(times), reg.posterior.noise, reg.posterior.trend)
        controls = next(
            control.choose_controls(KERNEL, np.asarray(path.positions[0]), np.ones(N), [0.1], N)
        )
        low = [
            path_space.low_rank_path_space_jit(KERNEL, flow, c, *rest)
            for c in (controls, np.arange(0, N, 2))
        ]
        return path_space.path_space_jit(KERNEL, flow, *rest), low, path, controls


def test_many_landmarks_are_solved_through_few():
    reg = registered(solve.FEW)
    assert reg.converged
    assert isinstance(reg.posterior.linear, path_space.LowRankPathSpace)
    assert len(reg.posterior.trajectory.positions[0]) < N / 2
    assert isinstance(registered(0.0).posterior.linear, path_space.PathSpace)
    assert registered(0.0).truncation is None
    assert reg.truncation.num_controls == len(reg.posterior.trajectory.positions[0])
    assert reg.truncation.mean_error_mm < 0.01
    assert reg.truncation.matrix_error < solve.MOST_REMAINDER
    assert f"{reg.truncation.num_controls} control points stand for all" in reg.summary()


@pytest.mark.parametrize("align", ["none", "rigid"])
def test_the_registration_is_the_same_as_through_all_landmarks(align):
    low, full = registered(solve.FEW, align), registered(0.0, align)
    places = np.random.default_rng(4).uniform(-10, 110, (50, 2))
    one, other = (reg.posterior.predict(places) for reg in (low, full))
    assert np.abs(one.mean - other.mean).max() < 0.01
    assert (np.abs(one.frobenius / other.frobenius - 1)).max() < 0.01
    np.testing.assert_allclose(low.loo.mean, full.loo.mean, atol=0.01)
    np.testing.assert_allclose(low.loo.covariance, full.loo.covariance, rtol=0.01, atol=1e-3)
    assert abs(low.evidence - full.evidence) < 0.1  # of the remainder, 0.1 in all
    np.testing.assert_allclose(low.energy, full.energy, rtol=1e-3)


def as_problem(noise=1.0, shift=0.0):
    """What `registered` solves, or with another noise and other targets."""
    posterior, (x, f) = registered(solve.FEW).posterior, problem()
    noises = np.broadcast_to(noise * np.eye(2), (N, 2, 2))
    return problem_module.Problem(
        KERNEL, x, f - np.asarray(posterior.origin) + shift, noises, posterior.trend
    )


def test_the_answer_does_not_depend_on_how_few_control_points_it_is_searched_with(monkeypatch):
    reg = registered(solve.FEW)
    monkeypatch.setattr(
        solve, "SEARCH_REMAINDER", 1.0
    )  # where the default leaves the answer's own 32
    with jax.enable_x64(True):
        form = next(solve.forms(as_problem(), reg.posterior.alignment))
    assert len(form.few) < len(form.controls)
    other = kunita.register(*problem(), kernel=KERNEL, noise=1.0)
    assert other.truncation.num_controls == reg.truncation.num_controls == len(form.controls)
    places = np.random.default_rng(4).uniform(-10, 110, (50, 2))
    one, two = (r.posterior.predict(places) for r in (reg, other))
    np.testing.assert_allclose(one.mean, two.mean, atol=1e-5)  # both converged to 1e-6
    np.testing.assert_allclose(one.covariance, two.covariance, atol=1e-5)


@pytest.mark.parametrize("guided", [False, True])
def test_a_flow_is_judged_as_if_it_were_shot_again(guided):
    controls = np.arange(0, N, 8) if guided else None
    first, changed = (
        dataclasses.replace(p, controls=controls)
        for p in (as_problem(), as_problem(noise=4.0, shift=1.0))
    )
    momenta = 1e-4 * np.random.default_rng(7).normal(size=(N, 2))
    at, times = registered(solve.FEW).posterior.alignment, numerics.time_grid(4)
    with jax.enable_x64(True):
        state = problem_module.look(first, at, momenta, problem_module.no_step(first), times)
        one, two = (
            problem_module.judge_again(changed, state),
            problem_module.look_again(changed, state),
        )
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def test_points_come_back_and_jacobians_are_derivatives():
    posterior = registered(solve.FEW).posterior
    places = np.random.default_rng(5).uniform(0, 100, (20, 2))
    there = posterior.predict(places)
    np.testing.assert_allclose(posterior.inverse(there.mean).mean, places, atol=1e-5)
    step = 1e-4
    for axis, unit in enumerate(np.eye(2)):
        along = (posterior.move(places + step * unit) - posterior.move(places - step * unit)) / (
            2 * step
        )
        np.testing.assert_allclose(posterior.jacobian(places)[:, :, axis], along, atol=1e-6)


def test_a_landmark_moves_to_where_the_fit_says():
    reg = registered(solve.FEW)
    arrived = reg.posterior.predict(reg.moving.points).mean
    misfit = (
        reg.fixed.points
        - arrived
        - np.einsum("iab,ib->ia", reg.posterior.noise, reg.posterior.dual)
    )
    assert np.abs(misfit).max() < 1e-4  # F − φ₁ − Dλ = 0, up to the time steps of a passenger


def test_the_low_rank_model_is_that_of_its_own_matrix():
    _, (low, _), path, controls = spaces()
    with jax.enable_x64(True):
        anchors = transport.Path(path.positions[:, controls], path.jacobians[:, controls])
        weights = numerics.simpson_weights(
            np.asarray(registered(solve.FEW).posterior.trajectory.times)
        )
        cross = np.asarray(covariance.flow_covariance(KERNEL, weights, path, anchors)).reshape(
            2 * N, -1
        )
        own = np.asarray(covariance.flow_covariance(KERNEL, weights, anchors, anchors)).reshape(
            cross.shape[1], -1
        )
        variance = np.asarray(covariance.flow_variance(KERNEL, weights, path))
        right = np.random.default_rng(6).normal(size=(2 * N, 3))
        solved, blocks, whitener = low.solve(right), low.precision(), low.whitener()
        anchored, log_det = low.to_anchors(right), float(low.log_det())
    known = cross @ np.linalg.solve(own, cross.T)
    s = known.copy()
    for i in range(N):
        block = slice(2 * i, 2 * i + 2)
        s[block, block] += (
            variance[i] - known[block, block] + registered(solve.FEW).posterior.noise[i]
        )
    np.testing.assert_allclose(solved, np.linalg.solve(s, right), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(log_det, np.linalg.slogdet(s)[1], rtol=1e-6)
    inverse = np.linalg.inv(s)
    np.testing.assert_allclose(
        blocks, [inverse[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] for i in range(N)], atol=1e-6
    )
    half = whitener @ own  # between the anchors themselves
    explained = cross[: 2 * N].T @ inverse @ cross
    np.testing.assert_allclose(half.T @ half, explained, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(own @ anchored, cross.T @ right, rtol=1e-4, atol=1e-4)


def test_its_remainder_bounds_how_wrong_the_matrix_is():
    full, (low, more), _, _ = spaces()
    factor = np.asarray(full.factor)
    for space in (low, more):
        with jax.enable_x64(True):
            ratio = np.asarray(factor.T @ space.solve(factor))  # Cᵀ S̃⁻¹ C = I where S̃ = S
        off = np.abs(np.linalg.eigvalsh(0.5 * (ratio + ratio.T)) - 1).max()
        assert off <= float(space.remainder) + 1e-6


def test_it_is_saved_and_loaded(tmp_path):
    reg = registered(solve.FEW)
    save(reg, tmp_path / "reg.h5")
    again, places = load(tmp_path / "reg.h5"), np.array([[10.0, 20.0], [50.0, 60.0]])
    assert isinstance(again.posterior, Posterior)
    assert again.truncation == reg.truncation
    np.testing.assert_array_equal(
        again.posterior.predict(places).covariance, reg.posterior.predict(places).covariance
    )


def test_a_rough_kernel_is_solved_as_it_is():
    moving, fixed = problem()
    reg = kunita.register(moving, fixed, kernel=kunita.Matern32(20.0, 5.0), noise=1.0)
    assert isinstance(reg.posterior.linear, path_space.PathSpace)
    assert reg.converged


def test_parameters_of_very_many_landmarks_are_chosen_on_some(monkeypatch):
    monkeypatch.setattr(kunita.registration, "MOST_TELLING", 100)
    reg = kunita.register(*problem())
    assert {one.name for one in reg.chosen} == {"length scale", "amplitude", "noise"}
    assert 0.7 < reg.noise_mm < 1.3
    assert "of 100 of the landmarks" in reg.summary()


def test_a_prior_that_allows_no_deformation_has_few_control_points_but_some():
    reg = kunita.register(*problem(), kernel=kunita.Gaussian(100.0, 1e-3), noise=1.0)
    assert reg.converged
    assert reg.truncation.num_controls == solve.ROUND


def test_the_pathwise_model_conditions_on_every_landmark():
    reg = kunita.register(*problem(), kernel=KERNEL, noise=1.0, model="pathwise")
    assert reg.truncation is None
    assert np.all(reg.posterior.predict(np.array([[20.0, 30.0]])).std < registered(0.0).noise_mm)


def test_the_fast_evaluation_follows_control_points_too():
    posterior, places = (
        registered(solve.FEW).posterior,
        np.random.default_rng(8).uniform(0, 100, (30, 2)),
    )
    fast, plain = prepare(posterior).predict(places), posterior.predict(places)
    np.testing.assert_allclose(fast.mean, plain.mean, atol=1e-9)
    np.testing.assert_allclose(fast.covariance, plain.covariance, atol=1e-7)
    back = prepare(posterior).preimage(plain.mean)
    np.testing.assert_allclose(back.points, posterior.preimage(plain.mean).points, atol=1e-9)
    np.testing.assert_allclose(
        back.covariance, plain.covariance, rtol=1e-4, atol=1e-6
    )  # two ways along the flow


def test_a_list_with_a_rhythm_still_tells_in_every_direction(monkeypatch):
    monkeypatch.setattr(kunita.registration, "MOST_TELLING", 100)
    square = np.stack(np.meshgrid(*2 * [np.arange(20.0)], indexing="ij"), axis=-1).reshape(-1, 2)
    some = square[kunita.registration._telling(400)]
    assert abs(np.corrcoef(some.T)[0, 1]) < 0.3
