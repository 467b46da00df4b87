"""The fit converges where it must, without folding, to what the equations say."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kunita
from kunita import numerics
from kunita.errors import Outcome
from kunita.flow import shooting, transport
from kunita.inference import solve
from kunita.inference.problem import Problem
from kunita.inference.sample import aligned_sample
from kunita.phantoms.shapes import circle, flower
from problems import THREE, fit, gp_displaced, grid, noisy_landmarks, prepared

MANY = [pytest.mark.slow, pytest.mark.soak]

PIECE = 1024
"""Points that are carried at a time, or four times the landmarks that each piece takes along, if
these are many: one shape for every grid, so that one compilation serves them all."""


@jax.jit
def least(kernel, trajectory, points):
    return jnp.linalg.det(transport.carry(kernel, trajectory, points).jacobians[-1]).min()


def smallest_determinant(result, spacing=0.25, margin=3.0):
    """min det J of the flow on a dense grid around the landmarks."""
    landmarks = np.asarray(result.trajectory.positions[0])
    points, piece = grid(landmarks, margin, spacing), max(PIECE, 4 * len(landmarks))
    full = (
        -(-len(points) // piece),
        piece,
        points.shape[1],
    )  # the last piece is filled up with the first points
    return min(
        float(least(result.kernel, result.trajectory, some)) for some in np.resize(points, full)
    )


def assert_solved(result):
    assert result.converged
    assert result.gap_mm <= 1e-6
    assert result.trajectory.drift <= 1e-8


FLOWERS = {
    (5.0, 5.0, 0.1): "velocity paths",  # the wildest: det J comes down to 0.08
    (2.0, 1.0, 0.1): "path-space Gauss-Newton",
}
"""Length scale, amplitude and noise of a flower for each way to its answer."""

MORE_FLOWERS = [
    cell for cell in itertools.product((2.0, 5.0), (1.0, 5.0), (0.1, 0.5)) if cell not in FLOWERS
]


def assert_a_circle_becomes_a_flower(length_scale, amplitude, noise):
    result = fit(kunita.Gaussian(length_scale, amplitude), circle(), flower(), noise)
    assert_solved(result)
    assert smallest_determinant(result) > 0
    return result


@pytest.mark.parametrize(("cell", "method"), FLOWERS.items())
def test_circle_to_flower_converges_without_folding(cell, method):
    result = assert_a_circle_becomes_a_flower(*cell)
    assert result.history[0].method == method


@pytest.mark.soak
@pytest.mark.parametrize("cell", MORE_FLOWERS)
def test_circle_to_flower_converges_without_folding_whatever_the_prior_and_the_noise(cell):
    assert_a_circle_becomes_a_flower(*cell)


@pytest.mark.parametrize("n", [37, 300, pytest.param(1000, marks=MANY)])
def test_landmarks_displaced_by_a_gaussian_process_converge_without_folding(n):
    moving, fixed = gp_displaced(n, seed=n)
    result = fit(kunita.Gaussian(50.0, 5.0), moving, fixed, 1.0)
    assert_solved(result)
    assert smallest_determinant(result, spacing=10.0, margin=20.0) > 0


def test_a_bar_turned_by_140_degrees_converges_without_folding():
    bar = np.stack([np.linspace(-8, 8, 17), np.zeros(17)], axis=1)
    angle = np.deg2rad(140)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    result = fit(kunita.Gaussian(5.0, 5.0), bar, bar @ turn.T, 0.5)
    assert_solved(result)
    assert smallest_determinant(result) > 0


def fit_a_draw_from_the_prior(ratio, seed):
    """One of the draws of benchmarks/prior_draws.py."""
    kernel = kunita.Gaussian(1.0, ratio)
    rng = np.random.default_rng(seed)
    x = rng.uniform(0, 3, (15, 2))
    truth = kunita.simulate(kernel, x, np.zeros_like(x), num_paths=1, num_steps=200, key=seed)[0]
    noise = 0.1 * ratio
    return fit(kernel, x, truth + noise * rng.normal(size=x.shape), noise)


@pytest.mark.parametrize("ratio", [0.3, 0.6])
def test_truths_drawn_from_the_prior_converge(ratio):
    """Some by shooting, some by velocity paths; none folds."""
    methods = set()
    for seed in range(6):
        result = fit_a_draw_from_the_prior(ratio, seed)
        assert_solved(result)
        assert smallest_determinant(result, spacing=0.1, margin=1.0) > 0
        methods.update(line.method for line in result.history)
    assert {"path-space Gauss-Newton", "velocity paths"} <= methods


@pytest.mark.soak
@pytest.mark.parametrize(("ratio", "share"), [(0.3, 0.98), (0.6, 0.95)])
def test_nearly_all_truths_drawn_from_the_prior_converge(ratio, share):
    converged = 0
    for seed in range(30):
        result = fit_a_draw_from_the_prior(ratio, seed)
        converged += result.converged
        assert smallest_determinant(result, spacing=0.1, margin=1.0) > 0
    assert converged >= share * 30


@pytest.mark.parametrize("align", ["translation", "rigid", "similarity", "affine"])
def test_the_joint_fit_ends_where_its_equations_say(align):
    """β̂ = 0, h(x̃)ᵀp₀ = 0, λ = HᵀPy, E* = ½yᵀPy."""
    moving, fixed = gp_displaced(12, seed=3, rms=12.0)
    result = fit(kunita.Gaussian(50.0, 8.0), moving, fixed, 1.0, align)
    assert_solved(result)
    linear = result.linear
    rows = linear.rows
    design = np.asarray(linear.design)
    final = np.asarray(result.trajectory.momenta[-1])
    basis = np.asarray(result.trend.basis(result.trajectory.positions[0]))
    p0 = np.asarray(result.trajectory.momenta[0])
    assert np.abs(np.einsum("iab,ia->b", basis, p0)).max() < 1e-6
    # the same regression from its matrices: S, H and what the rows say of the velocity path
    h = numerics.block_diagonal(rows.blocks)
    s = np.asarray(linear.factor) @ np.asarray(linear.factor).T
    explained = (s - np.eye(len(s))) @ np.linalg.solve(h.T, final.ravel())
    y = np.asarray(rows.residual) + explained
    through = h @ design
    known = np.linalg.solve(s, through)
    beta = np.linalg.solve(through.T @ known, known.T @ y)
    assert np.abs(beta).max() < 1e-5
    weights = np.linalg.solve(s, y - through @ beta)
    np.testing.assert_allclose(h.T @ weights, final.ravel(), atol=1e-6)
    # ½yᵀPy is the energy up to the quadrature of the covariance
    assert float(0.5 * y @ weights) == pytest.approx(result.energy, rel=1e-4)


def test_time_steps_follow_the_measured_energy_drift():
    quiet = fit(kunita.Gaussian(50.0, 5.0), *gp_displaced(12, seed=0, rms=1.0), 1.0)
    wild = fit(
        THREE["kernel"],
        THREE["moving"],
        THREE["moving"] + 4 * (THREE["fixed"] - THREE["moving"]),
        0.2,
    )
    assert len(quiet.trajectory.times) - 1 == shooting.DEFAULT_STEPS
    assert len(wild.trajectory.times) - 1 > shooting.DEFAULT_STEPS
    assert quiet.trajectory.drift <= 1e-8
    assert wild.trajectory.drift <= 1e-8


# ---------------------------------------------------------------------------------------- options


def test_a_failure_to_converge_is_said():
    """One step of each method is not enough, and no velocity path may help."""
    problem, start = prepared()
    hasty = solve.SolverOptions(max_iterations=1, path_steps=())
    result = solve.solve(problem, start.alignment, options=hasty)
    assert result.outcome is Outcome.ITERATIONS
    assert result.gap_mm > hasty.tolerance_mm(problem)


def test_a_search_without_patience_ends_at_rest():
    """Where shooting alone does not come near, its last point means nothing."""
    problem, start = prepared()
    hasty = solve.SolverOptions(max_iterations=1, patient=False)
    result = solve.solve(problem, start.alignment, options=hasty)
    assert not result.converged
    assert result.iterations <= 2  # one step by Gauss–Newton, and one by exact Newton
    np.testing.assert_array_equal(result.trajectory.momenta, 0.0)


def test_a_rough_search_knows_the_energy():
    """Which is flat at the optimum: a residual of 10⁻³ of the noise costs 10⁻⁶."""
    problem, start = prepared()
    rough = solve.solve(problem, start.alignment, options=solve.ROUGH)
    thorough = solve.solve(problem, start.alignment)
    assert rough.converged
    assert rough.iterations <= thorough.iterations
    assert rough.energy == pytest.approx(thorough.energy, rel=1e-4)


def test_the_answer_is_where_a_search_from_it_ends_at_once():
    problem, start = prepared()
    first = solve.solve(problem, start.alignment)
    again = solve.solve(problem, first.alignment, first.trajectory.momenta[0])
    assert again.converged
    assert again.iterations <= 1
    assert again.energy == pytest.approx(first.energy, rel=1e-10)


def test_uncertain_moving_landmarks_have_the_noise_that_the_fitted_map_carries_over():
    """D = C_f + J C_m Jᵀ at the answer, J of alignment and flow."""
    observed = noisy_landmarks()
    aligned = aligned_sample(observed, "rigid", scaled=False).sample
    problem = Problem(kunita.Gaussian(50.0, 8.0), aligned.observed, aligned.trend)
    result = solve.solve(problem, aligned.start)
    assert_solved(result)
    jacobians = np.asarray(result.trajectory.jacobians[-1]) @ result.alignment.matrix
    carried = jacobians @ observed.moving_noise @ jacobians.swapaxes(1, 2)
    noise = observed.fixed_noise + carried
    miss = aligned.observed.fixed - np.asarray(result.trajectory.positions[-1])
    force = np.linalg.solve(noise, miss[..., None])[..., 0]
    np.testing.assert_allclose(result.trajectory.momenta[-1], force, atol=1e-5)
    assert result.noise_log_det == pytest.approx(np.linalg.slogdet(noise)[1].sum(), rel=1e-9)


# ------------------------------------------------------------------------------------------- noise


def test_one_vague_landmark_does_not_hold_up_the_others():
    moving, fixed = gp_displaced(12, seed=2, rms=8.0)
    noise = np.full(12, 0.2)
    noise[3] = 1e6
    reg = kunita.register(moving, fixed, kernel=kunita.Gaussian(50.0, 5.0), noise=noise)
    assert reg.converged
    with pytest.warns(kunita.KunitaWarning, match="left out"):
        without = kunita.register(
            moving, fixed, kernel=reg.kernel, noise=np.where(noise > 1, np.inf, noise)
        )
    np.testing.assert_allclose(
        reg.posterior.predict(moving).mean, without.posterior.predict(moving).mean, atol=1e-4
    )


def test_a_landmark_that_is_vague_along_some_directions_only_does_not_hold_up_the_others():
    moving, fixed = gp_displaced(12, seed=2, rms=8.0)
    noise = np.tile(np.eye(3), (12, 1, 1))
    noise[3] = np.diag([0.01, 1e8, 1e8])
    reg = kunita.register(moving, fixed, kernel=kunita.Gaussian(50.0, 5.0), noise=noise)
    assert reg.converged
    assert abs(reg.posterior.predict(moving[3:4]).mean - fixed[3])[0, 0] < 0.1


def test_nearly_exact_landmarks_are_met_to_rounding():
    moving, fixed = gp_displaced(12, seed=2, rms=8.0)
    reg = kunita.register(moving, fixed, kernel=kunita.Gaussian(50.0, 5.0), noise=1e-8)
    assert reg.converged
    np.testing.assert_allclose(reg.posterior.predict(moving).mean, fixed, atol=1e-9)
