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
from kunita.inference.evidence import evidence_of
from kunita.inference.problem import Problem
from kunita.inference.sample import aligned_sample
from kunita.io.registration_files import load, save
from kunita.observations.base import Rows
from kunita.posterior import Posterior, posterior_from_fit
from problems import gp_displaced, landmarks

KERNEL = kunita.Gaussian(50.0, 5.0)
N = 240


@functools.cache
def problem():
    """More landmarks than are solved as they are, in a square of two length scales, marked with
    errors."""
    moving, fixed = gp_displaced(N, seed=2, side=100.0, d=2)
    return moving, fixed + np.random.default_rng(3).normal(size=fixed.shape)


@functools.cache
def registered(align="rigid"):
    """As the door registers them: through control points."""
    return kunita.register(*problem(), kernel=KERNEL, noise=1.0, align=align)


@functools.cache
def aligned(align="rigid"):
    """What `registered` starts from."""
    moving, fixed = problem()
    return aligned_sample(landmarks(moving, fixed, unit_noise()), align, scaled=False)


def unit_noise():
    return np.tile(np.eye(2), (N, 1, 1))


def fitted(align="rigid", **options):
    """The fit and its posterior, with other control points."""
    start = aligned(align)
    task = Problem(KERNEL, start.sample.observed, start.sample.trend)
    how = solve.SolverOptions(controls=solve.ControlOptions(**options))
    with jax.enable_x64(True):
        fit = solve.solve(task, start.sample.start, options=how)
        return fit, posterior_from_fit(fit, start.origin, "endpoint")


@functools.cache
def through_all(align="rigid"):
    """The same, every landmark with its own momentum: no number of control points pays."""
    return fitted(align, most=0.0)


@functools.cache
def spaces():
    """The linear model of one flow with all landmarks, through few control points, and through
    half of them."""
    posterior = registered().posterior
    with jax.enable_x64(True):
        moving, _ = problem()
        path = transport.carry_jit(KERNEL, posterior.trajectory, posterior.alignment(moving))
        weights = numerics.quadrature_weights(posterior.trajectory.num_steps)
        controls = next(
            control.choose_controls(KERNEL, np.asarray(path.positions[0]), np.ones(N), [0.1], N)
        )
        models = []
        for chosen in (None, controls, np.arange(0, N, 2)):
            task = Problem(KERNEL, aligned().sample.observed, posterior.trend, chosen)
            jacobians = path.jacobians[-1] @ posterior.alignment.matrix
            models.append(path_space.linear_model_of_few(task, path, jacobians, weights))
        return models[0], models[1:], path, controls


def test_many_landmarks_are_solved_through_few():
    reg = registered()
    assert reg.converged
    assert isinstance(reg.posterior.linear, path_space.LowRankPathSpace)
    assert len(reg.posterior.trajectory.positions[0]) < N / 2
    assert reg.truncation.num_controls == len(reg.posterior.trajectory.positions[0])
    assert reg.truncation.mean_error_mm < 0.01
    assert reg.truncation.matrix_error < solve.THOROUGH.controls.most_remainder
    assert f"{reg.truncation.num_controls} control points stand for all" in reg.summary()


def test_where_control_points_do_not_pay_all_landmarks_carry_their_own_momentum():
    fit, posterior = through_all()
    assert fit.converged
    assert fit.truncation is None
    assert isinstance(posterior.linear, path_space.PathSpace)


@pytest.mark.parametrize("align", ["rigid", pytest.param("none", marks=pytest.mark.soak)])
def test_the_registration_is_the_same_as_through_all_landmarks(align):
    low = registered(align)
    fit, full = through_all(align)
    places = np.random.default_rng(4).uniform(-10, 110, (50, 2))
    one = low.posterior.predict(places)
    other = full.predict(places)
    assert np.abs(one.mean - other.mean).max() < 0.01
    assert (np.abs(one.frobenius / other.frobenius - 1)).max() < 0.01
    left_out = full.leave_one_out()
    np.testing.assert_allclose(low.loo.mean, left_out.mean, atol=0.01)
    np.testing.assert_allclose(low.loo.covariance, left_out.covariance, rtol=0.01, atol=1e-3)
    assert abs(low.evidence - evidence_of(fit)) < 0.1  # of the remainder, 0.1 in all
    np.testing.assert_allclose(low.energy, fit.energy, rtol=1e-3)


def test_the_answer_does_not_depend_on_how_few_control_points_it_is_searched_with():
    reg = registered()
    fit, posterior = fitted(search_remainder=1.0)  # where the default leaves the answer's own 32
    assert len(fit.problem.few) < len(fit.problem.controls)
    assert fit.truncation.num_controls == reg.truncation.num_controls == len(fit.problem.controls)
    places = np.random.default_rng(4).uniform(-10, 110, (50, 2))
    one = reg.posterior.predict(places)
    two = posterior.predict(places)
    np.testing.assert_allclose(one.mean, two.mean, atol=1e-5)  # both converged to 1e-6
    np.testing.assert_allclose(one.covariance, two.covariance, atol=1e-5)


@pytest.mark.parametrize("guided", [False, True])
def test_a_flow_is_judged_as_if_it_were_shot_again(guided):
    """With a tilt, which changes the energy and the residual but not the flow."""
    controls = np.arange(0, N, 8) if guided else None
    sample = aligned().sample
    first = Problem(KERNEL, sample.observed, sample.trend, controls)
    rng = np.random.default_rng(7)
    tilted = dataclasses.replace(first, tilt=0.1 * rng.normal(size=(N, 2)))
    momenta = 1e-4 * rng.normal(size=(N, 2))
    times = numerics.time_grid(4)
    state = problem_module.look(first, sample.start, momenta, problem_module.no_step(first), times)
    one = problem_module.judge_again(tilted, state)
    two = problem_module.look_again(tilted, state)
    assert abs(float(one.energy - state.energy)) > 1e-3
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def test_points_come_back_and_jacobians_are_derivatives():
    posterior = registered().posterior
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
    """F − φ₁ − Dλ = 0, D the identity, up to the time steps of a passenger."""
    reg = registered()
    arrived = reg.posterior.predict(reg.moving.points).mean
    misfit = reg.fixed.points - arrived - reg.posterior.dual
    assert np.abs(misfit).max() < 1e-4


def test_the_low_rank_model_is_that_of_its_own_matrix():
    """Λ ≈ UᵀU + E, noise of one: S = UᵀU + E + I, and H the identity up to the map's rotation."""
    _, (low, _), path, controls = spaces()
    anchors = transport.Path(path.positions[:, controls], path.jacobians[:, controls])
    weights = numerics.quadrature_weights(registered().posterior.trajectory.num_steps)
    flow_covariance = jax.jit(covariance.flow_covariance)
    flow = lambda x, y: np.asarray(flow_covariance(KERNEL, weights, x, y))
    cross = flow(path, anchors).reshape(2 * N, -1)
    own = flow(anchors, anchors).reshape(cross.shape[1], -1)
    variance = np.asarray(jax.jit(covariance.flow_variance)(KERNEL, weights, path))
    known = cross @ np.linalg.solve(own, cross.T)
    s = known + np.eye(2 * N)
    for i in range(N):
        block = slice(2 * i, 2 * i + 2)
        s[block, block] += variance[i] - known[block, block]
    inverse = np.linalg.inv(s)
    right = np.random.default_rng(6).normal(size=(2 * N, 3))
    force = right[:, 0].reshape(N, 2)
    groups = np.arange(2 * N).reshape(N, 2)

    @jax.jit
    def views(low):
        products = low.explain(right), low.solve_rows(right), low.respond(force)
        return products, low.log_det(), low.row_precision(groups), low.whitener()

    (explained, solved, response), log_det, precision, whitener = views(low)
    np.testing.assert_allclose(explained, inverse @ right, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(solved, inverse @ right, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(response.ravel(), inverse @ force.ravel(), atol=1e-6)
    np.testing.assert_allclose(float(log_det), np.linalg.slogdet(s)[1], rtol=1e-6)
    blocks = [inverse[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] for i in range(N)]
    np.testing.assert_allclose(precision, blocks, atol=1e-6)
    half = np.asarray(whitener) @ own  # between the anchors themselves
    explained = cross.T @ inverse @ cross
    np.testing.assert_allclose(half.T @ half, explained, rtol=1e-4, atol=1e-4)
    anchored = np.asarray(low.to_anchors(right))
    np.testing.assert_allclose(own @ anchored, cross.T @ right, rtol=1e-4, atol=1e-4)


def test_sites_seen_along_one_direction_have_a_semidefinite_root():
    """RᵀR = M where a site has fewer rows than dimensions, or none at all."""
    rng = np.random.default_rng(9)
    site = np.array([0, 1, 1, 3, 3, 3])
    rows = Rows(
        site=site,
        operator=rng.normal(size=(6, 2)),
        residual=np.zeros(6),
        log_det=np.zeros(()),
        group=site,
    )
    root = np.asarray(path_space.root_of_information(rows, 4))
    expected = np.zeros((4, 2, 2))
    for i, h in zip(site, rows.operator, strict=True):
        expected[i] += np.outer(h, h)
    np.testing.assert_allclose(root.swapaxes(1, 2) @ root, expected, atol=1e-12)


def test_its_remainder_bounds_how_wrong_the_matrix_is():
    full, (low, more), _, _ = spaces()
    factor = np.asarray(full.factor)
    for space in (low, more):
        ratio = np.asarray(factor.T @ space.explain(factor))  # Cᵀ S̃⁻¹ C = I where S̃ = S
        off = np.abs(np.linalg.eigvalsh(0.5 * (ratio + ratio.T)) - 1).max()
        assert off <= float(space.remainder) + 1e-6


def test_it_is_saved_and_loaded(tmp_path):
    reg = registered()
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


def test_a_prior_that_allows_no_deformation_has_few_control_points_but_some():
    reg = kunita.register(*problem(), kernel=kunita.Gaussian(100.0, 1e-3), noise=1.0)
    assert reg.converged
    assert reg.truncation.num_controls == solve.THOROUGH.controls.multiple


def test_the_pathwise_model_conditions_on_every_landmark():
    reg = kunita.register(*problem(), kernel=KERNEL, noise=1.0, model="pathwise")
    assert reg.truncation is None
    assert np.all(reg.posterior.predict(np.array([[20.0, 30.0]])).std < registered().noise_mm)


def test_the_fast_evaluation_follows_control_points_too():
    posterior, places = (
        registered().posterior,
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
