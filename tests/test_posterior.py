"""Laws of the posterior."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk

import kunita
from kunita import posterior as posterior_module
from kunita.errors import ArgumentError, InverseError, LandmarkError, Outcome
from kunita.inference import solve
from kunita.inference.problem import Problem
from kunita.inference.sample import aligned_sample
from kunita.observations.landmarks import LandmarkObservations
from kunita.phantoms.shapes import circle, flower
from problems import THREE, gp_displaced, grid, rotation

KERNEL = kunita.Gaussian(50.0, 5.0)
MOVING, FIXED = gp_displaced(12, seed=5, rms=8.0)
QUERIES = np.random.default_rng(0).uniform(0, 150, (8, 3))


def registered(
    model="endpoint", align="rigid", noise=1.0, moving=MOVING, fixed=FIXED, kernel=KERNEL
):
    return kunita.register(moving, fixed, kernel=kernel, noise=noise, align=align, model=model)


def three(model):
    return kunita.register(
        THREE["moving"],
        THREE["fixed"],
        kernel=THREE["kernel"],
        noise=THREE["noise"],
        align="none",
        model=model,
    )


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("endpoint", [0.161, 0.160, 0.176, 0.222, 0.884, 1.499]),
        ("pathwise", [0.160, 0.158, 0.175, 0.212, 0.868, 1.497]),
    ],
)
def test_three_landmark_example_reproduces_the_covariances(model, expected):
    """‖cov‖_F at the landmarks and at three other points, as found with a prototype, to its three
    digits."""
    points = np.r_[THREE["moving"], THREE["queries"]]
    np.testing.assert_allclose(
        three(model).posterior.predict(points).frobenius, expected, atol=6e-4
    )


def test_small_model_is_gaussian_process_regression():
    """Mean and covariance of `small` without alignment against scikit-learn, exactly."""
    reg = registered("small", "none")
    ours = reg.posterior.predict(QUERIES)
    theirs = GaussianProcessRegressor(25.0 * sk.RBF(50.0), alpha=1.0, optimizer=None).fit(
        MOVING, FIXED - MOVING
    )
    mean, std = theirs.predict(QUERIES, return_std=True)
    np.testing.assert_allclose(ours.mean, QUERIES + mean, atol=1e-9)
    np.testing.assert_allclose(ours.covariance, std[:, 0, None, None] ** 2 * np.eye(3), atol=1e-8)


@pytest.mark.parametrize("model", ["endpoint", "pathwise"])
def test_small_displacements_tend_to_gaussian_process_regression(model):
    """Order 2 in the mean and 1 in the covariance, as the displacement ε → 0."""
    theirs = GaussianProcessRegressor(25.0 * sk.RBF(50.0), alpha=1.0, optimizer=None).fit(
        MOVING, FIXED - MOVING
    )
    mean, cov = theirs.predict(QUERIES), theirs.predict(QUERIES, return_cov=True)[1]
    cov = np.einsum("ii->i", cov[..., 0])[:, None, None] * np.eye(3)
    sizes, means, covs = np.array([0.4, 0.2, 0.1, 0.05]), [], []
    for size in sizes:
        reg = registered(model, "none", fixed=MOVING + size * (FIXED - MOVING))
        got = reg.posterior.predict(QUERIES)
        means.append(np.abs(got.mean - QUERIES - size * mean).max())
        covs.append(np.abs(got.covariance - cov).max())
    assert np.polyfit(np.log(sizes), np.log(means), 1)[0] == pytest.approx(2, abs=0.3)
    assert np.polyfit(np.log(sizes), np.log(covs), 1)[0] == pytest.approx(1, abs=0.2)


@pytest.mark.parametrize(
    ("model", "align"),
    [
        ("endpoint", "none"),
        ("endpoint", "rigid"),
        ("pathwise", "rigid"),
        ("small", "rigid"),
        pytest.param("endpoint", "affine", marks=pytest.mark.soak),
    ],
)
def test_all_views_of_the_covariance_agree(model, align):
    posterior = registered(model, align).posterior
    each = posterior.predict(QUERIES).covariance
    joint = posterior.covariance(QUERIES, QUERIES)
    assert joint.shape == (8, 3, 8, 3)
    np.testing.assert_allclose(np.einsum("iaib->iab", joint), each, atol=1e-9)
    matrix = joint.reshape(24, 24)
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-9)
    assert np.linalg.eigvalsh(matrix)[0] > -1e-9 * np.trace(matrix)
    np.testing.assert_allclose(posterior.covariance(QUERIES[:2], QUERIES), joint[:2], atol=1e-9)


@pytest.mark.parametrize("model", ["endpoint", "pathwise", "small"])
def test_jacobian_is_the_derivative_of_predict_and_inverse_undoes_it(model):
    posterior = registered(model).posterior
    h = 1e-4
    jacobian = posterior.jacobian(QUERIES)
    for axis in range(3):
        e = h * np.eye(3)[axis]
        slope = (posterior.predict(QUERIES + e).mean - posterior.predict(QUERIES - e).mean) / (
            2 * h
        )
        np.testing.assert_allclose(jacobian[:, :, axis], slope, atol=1e-7)
    there = posterior.predict(QUERIES)
    back = posterior.inverse(there.mean)
    np.testing.assert_allclose(back.mean, QUERIES, atol=1e-6)
    inverse = np.linalg.inv(jacobian)
    expected = np.einsum("mab,mbc,mdc->mad", inverse, there.covariance, inverse)
    np.testing.assert_allclose(back.covariance, expected, atol=1e-6)


def test_samples_have_the_posterior_mean_and_joint_covariance():
    posterior = registered().posterior
    points, count = QUERIES[:3], 20_000
    draws = posterior.sample(points, count, key=3)
    assert draws.shape == (count, 3, 3)
    flat, cov = draws.reshape(count, 9), posterior.covariance(points, points).reshape(9, 9)
    deviations = np.sqrt(np.diag(cov))
    assert np.all(
        np.abs(flat.mean(0) - posterior.predict(points).mean.ravel())
        < 5 * deviations / np.sqrt(count)
    )
    assert np.all(
        np.abs(np.cov(flat.T) - cov) < 6 * np.outer(deviations, deviations) * np.sqrt(2 / count)
    )
    np.testing.assert_array_equal(
        posterior.sample(points, 2, key=7), posterior.sample(points, 2, key=7)
    )


@pytest.mark.parametrize("align", ["translation", pytest.param("none", marks=pytest.mark.soak)])
def test_leave_one_out_equals_explicit_deletion_in_the_linear_case(align):
    """The small-deformation model, with an alignment that leaves the kernel's distances alone."""
    full = registered("small", align)
    shortcut = full.posterior.leave_one_out()
    for i in (0, 5, 11):
        keep = np.arange(12) != i
        without = registered("small", align, moving=MOVING[keep], fixed=FIXED[keep])
        got = without.posterior.predict(MOVING[i : i + 1])
        np.testing.assert_allclose(shortcut.mean[i], got.mean[0], atol=1e-7)
        np.testing.assert_allclose(shortcut.covariance[i], got.covariance[0] + np.eye(3), atol=1e-7)
    np.testing.assert_allclose(
        shortcut.error, np.linalg.norm(shortcut.mean - FIXED, axis=1), rtol=1e-9
    )
    chi2 = [
        e @ np.linalg.solve(c, e)
        for e, c in zip(shortcut.mean - FIXED, shortcut.covariance, strict=True)
    ]
    np.testing.assert_allclose(shortcut.chi2, chi2, rtol=1e-7)


def test_leave_one_out_is_close_to_real_refits():
    """Displacements of 8 mm on a length scale of 50: within a fifth of the predicted standard
    deviation on average."""
    shortcut = registered().posterior.leave_one_out()
    miss, ratio = [], []
    for i in range(12):
        got = registered(
            moving=np.delete(MOVING, i, 0), fixed=np.delete(FIXED, i, 0)
        ).posterior.predict(MOVING[i : i + 1])
        sd = np.sqrt(np.trace(shortcut.covariance[i]) / 3)
        miss.append(np.linalg.norm(got.mean[0] - shortcut.mean[i]) / sd)
        ratio.append(np.sqrt(np.trace(got.covariance[0] + np.eye(3)) / 3) / sd)
    assert np.mean(miss) < 0.2
    assert np.mean(ratio) == pytest.approx(1, abs=0.1)


def test_leave_one_out_is_refused_where_the_alignment_needs_every_landmark():
    square = np.array([[0.0, 0], [10, 0], [0, 10]])
    reg = registered(
        align="affine",
        moving=square,
        fixed=square + [[1.0, 0], [0, 1], [0, 0]],
        kernel=kunita.Gaussian(10.0, 1.0),
    )
    with pytest.raises(LandmarkError, match="too few"):
        reg.posterior.leave_one_out()
    assert reg.loo is None
    assert "not available" in reg.summary()


def test_leave_one_out_is_refused_for_two_landmarks_and_a_similarity():
    """P is pure rounding there, and must not pass for an answer."""
    moving = np.array([[0.0, 0.0], [10.0, 3.0]])
    fixed = moving + np.array([[1.0, 0.0], [0.0, 1.5]])
    reg = registered(
        align="similarity", moving=moving, fixed=fixed, kernel=kunita.Gaussian(10.0, 1.0)
    )
    with pytest.raises(LandmarkError, match="too few"):
        reg.posterior.leave_one_out()


def test_samples_of_crowded_points_are_finite():
    posterior = registered(
        "small", "none", 1e-3, MOVING[:, :2], FIXED[:, :2], kunita.Gaussian(20.0, 10.0)
    ).posterior
    crowd = 50 + np.random.default_rng(0).uniform(0, 1, (60, 2))
    assert np.all(np.isfinite(posterior.sample(crowd, 5)))


def test_diffeomorphic_where_the_small_deformation_model_folds():
    points = grid(circle(12), 2.0, 0.4)
    kernel = kunita.Gaussian(2.0, 5.0)
    moving, fixed = circle(12), flower(12, amplitude=0.45)
    dets = {
        model: np.linalg.det(
            registered(model, "none", 0.1, moving, fixed, kernel).posterior.jacobian(points)
        )
        for model in ("small", "endpoint")
    }
    assert dets["small"].min() < 0
    assert dets["endpoint"].min() > 0


def test_a_point_with_no_pre_image_in_a_folded_map_is_refused():
    moving = np.array([[0.0, 0.0], [1.0, 0.0]])
    reg = registered("small", "none", 0.05, moving, moving[::-1].copy(), kunita.Gaussian(0.8, 2.0))
    assert np.linalg.det(reg.posterior.jacobian(np.array([[0.5, 0.0]])))[0] < 0
    with pytest.raises(InverseError, match="endpoint"):
        reg.posterior.inverse(grid(moving, 0.5, 0.05))


@pytest.mark.parametrize("align", ["translation", "rigid", "similarity", "affine"])
def test_the_alignments_uncertainty_is_that_of_a_regression_on_its_basis(align):
    """`small` against brute force: y ~ N(0, K⊗I + τ²hhᵀ + D) with τ → ∞, at the aligned points."""
    posterior = registered("small", align).posterior
    aligned, queries = (np.asarray(posterior.alignment(z)) for z in (MOVING, QUERIES))
    both = np.r_[aligned, queries]
    basis = np.asarray(posterior.trend.basis(both)).reshape(both.size, -1)
    prior = np.kron(np.asarray(KERNEL.gram(both, both)), np.eye(3)) + 1e8 * basis @ basis.T
    seen, new = slice(0, aligned.size), slice(aligned.size, None)
    gain = np.linalg.solve(prior[seen, seen] + np.eye(aligned.size), prior[seen, new])
    expected = prior[new, new] - prior[new, seen] @ gain
    got = posterior.covariance(QUERIES, QUERIES).reshape(queries.size, -1)
    np.testing.assert_allclose(got, expected, atol=1e-4)


def test_after_a_fit_everything_turns_shifts_permutes_and_rescales_with_the_problem():
    """Within the fit's tolerance (1e-6 mm)."""
    here = registered().posterior.predict(QUERIES)
    r, shift, order = (
        rotation(3, seed=2),
        np.array([10.0, -20.0, 5.0]),
        np.random.default_rng(1).permutation(12),
    )
    turned = registered(
        moving=MOVING[order] @ r.T + shift, fixed=FIXED[order] @ r.T + shift
    ).posterior
    got = turned.predict(QUERIES @ r.T + shift)
    np.testing.assert_allclose(got.mean, here.mean @ r.T + shift, atol=1e-6)
    np.testing.assert_allclose(
        got.covariance, np.einsum("ab,mbc,dc->mad", r, here.covariance, r), atol=1e-6
    )
    metres = registered(
        moving=MOVING / 1000, fixed=FIXED / 1000, kernel=kunita.Gaussian(0.05, 0.005), noise=0.001
    ).posterior.predict(QUERIES / 1000)
    np.testing.assert_allclose(metres.mean * 1000, here.mean, atol=1e-6)
    np.testing.assert_allclose(metres.covariance * 1e6, here.covariance, atol=1e-6)


def test_raising_one_landmarks_noise_raises_the_variance_there_and_frees_the_mean():
    noise = np.ones(12)
    tight = registered(noise=noise).posterior
    noise[4] = 10.0
    loose = registered(noise=noise).posterior
    at = MOVING[4:5]
    assert loose.predict(at).std[0] > tight.predict(at).std[0]
    gap = [np.linalg.norm(p.predict(at).mean[0] - FIXED[4]) for p in (tight, loose)]
    assert gap[1] > gap[0]


def test_infinite_noise_equals_leaving_the_landmark_out():
    noise = np.ones(12)
    noise[4] = np.inf
    with pytest.warns(kunita.KunitaWarning, match="left out"):
        reg = registered(noise=noise)
    got = reg.posterior.predict(QUERIES)
    without = registered(
        moving=np.delete(MOVING, 4, 0), fixed=np.delete(FIXED, 4, 0)
    ).posterior.predict(QUERIES)
    np.testing.assert_allclose(got.mean, without.mean, atol=1e-6)
    np.testing.assert_allclose(got.covariance, without.covariance, atol=1e-6)
    noise[4] = 1e5
    almost = registered(noise=noise).posterior.predict(QUERIES)
    np.testing.assert_allclose(got.mean, almost.mean, atol=1e-4)


def test_noise_on_the_moving_side_is_carried_over_by_the_map():
    """D = JA₀C_mA₀ᵀJᵀ at the end, with J the fitted Jacobian: a fixed point of the refresh."""
    root = np.random.default_rng(4).normal(size=(12, 3, 3))
    covariances = 0.2 * root @ root.swapaxes(1, 2) + 0.5 * np.eye(3)
    turn = rotation(3, seed=9)
    moving = kunita.Landmarks(MOVING @ turn.T, covariances=covariances)
    vague = np.r_[np.full(11, 1e-4), 1e4]  # one landmark whose noise dwarfs the others'
    for fixed in (kunita.Landmarks(FIXED), kunita.Landmarks(FIXED, covariances=vague)):
        reg = kunita.register(moving, fixed, kernel=KERNEL)
        jacobian = reg.posterior.jacobian(moving.points)
        expected = np.einsum("iab,ibc,idc->iad", jacobian, covariances, jacobian)
        expected += 0 if fixed.covariances is None else fixed.covariances
        np.testing.assert_allclose(reg.noise, expected, rtol=1e-5, atol=1e-5)
        assert reg.converged


@pytest.mark.parametrize("align", ["rigid", pytest.param("none", marks=pytest.mark.soak)])
def test_an_early_stop_is_corrected_by_the_remaining_gauss_newton_step(align):
    """Stopped after a step of each method, the corrected mean is much nearer to the converged one
    than the flow is."""
    there = registered("endpoint", align).posterior.predict(QUERIES).mean
    unit = np.tile(np.eye(3), (12, 1, 1))
    aligned = aligned_sample(
        LandmarkObservations(MOVING, FIXED, unit, 0 * unit), align, scaled=False
    )
    problem = Problem(KERNEL, aligned.sample.observed, aligned.sample.trend)
    hasty = solve.SolverOptions(max_iterations=1, path_steps=())
    fit = solve.solve(problem, aligned.sample.start, options=hasty)
    assert fit.outcome is Outcome.ITERATIONS
    early = posterior_module.posterior_from_fit(fit, aligned.origin, "endpoint")
    bare = dataclasses.replace(early, corrected=False)
    errors = [np.abs(p.predict(QUERIES).mean - there).max() for p in (early, bare)]
    assert errors[0] < 0.3 * errors[1]
    np.testing.assert_allclose(early.inverse(early.predict(QUERIES).mean).mean, QUERIES, atol=1e-6)


def test_points_are_evaluated_alike_in_any_chunk():
    """Forty in one chunk of 64, and ten at a time, each time in a chunk of 16."""
    posterior = registered().posterior
    points = np.random.default_rng(3).uniform(0, 150, (40, 3))
    assert list(posterior_module.chunk_sizes(40)) == [64]
    assert list(posterior_module.chunk_sizes(10)) == [16]
    whole = posterior.predict(points)
    parts = [posterior.predict(some) for some in np.split(points, 4)]
    means = np.concatenate([part.mean for part in parts])
    covariances = np.concatenate([part.covariance for part in parts])
    np.testing.assert_allclose(means, whole.mean, atol=1e-11)
    np.testing.assert_allclose(covariances, whole.covariance, atol=1e-11)
    assert posterior.predict(np.zeros((0, 3))).mean.shape == (0, 3)


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 37, 300, 1000, 5000])
def test_chunks_hold_all_points_and_are_not_mostly_empty(count):
    sizes = list(posterior_module.chunk_sizes(count))
    assert 0 <= sum(sizes) - count < sizes[-1] or count == 0  # the last one alone is filled up
    assert sizes[-1] == posterior_module.CHUNKS[0] or sizes[-1] <= 2 * (count - sum(sizes[:-1]))


def test_bad_points_are_refused():
    posterior = registered().posterior
    with pytest.raises(ArgumentError, match="points"):
        posterior.predict(np.zeros((3, 2)))
    with pytest.raises(ArgumentError, match="row 1 is not finite"):
        posterior.predict(np.array([[0.0, 0, 0], [np.nan, 0, 0]]))
    with pytest.raises(ArgumentError, match="num_samples"):
        posterior.sample(QUERIES, 0)


def test_the_posterior_takes_jax_arrays_and_returns_numpy_double_precision():
    got = registered().posterior.predict(jnp.asarray(QUERIES))
    assert isinstance(got.mean, np.ndarray)
    assert got.mean.dtype == np.float64


@pytest.mark.parametrize("call", ["sample", "covariance"])
def test_a_joint_covariance_that_fits_into_no_memory_is_refused(call):
    posterior = registered().posterior
    points = np.zeros((50_000, 3))
    with pytest.raises(ArgumentError, match="180 GB"):
        posterior.sample(points, 2) if call == "sample" else posterior.covariance(points, points)
