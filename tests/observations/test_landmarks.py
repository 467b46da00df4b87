"""Rows of landmarks: whitened by their noise, and as many as directions are known."""

import dataclasses

import jax
import numpy as np
import pytest

import kunita
from kunita.inference import solve
from kunita.inference.evidence import evidence_of
from kunita.inference.problem import Problem
from kunita.inference.sample import aligned_sample
from kunita.observations.landmarks import LandmarkObservations, rows_of_known_directions
from kunita.posterior import posterior_from_fit
from problems import gp_displaced, noisy_landmarks, rotation

N = 12
D = 3
KERNEL = kunita.Gaussian(50.0, 8.0)


def jacobians():
    """Of a map that is not a rotation."""
    return np.eye(D) + 0.2 * np.random.default_rng(1).normal(size=(N, D, D))


def dense_operator(rows, num_sites=N):
    """H as a matrix on all coordinates."""
    k, d = rows.operator.shape
    matrix = np.zeros((k, num_sites, d))
    matrix[np.arange(k), np.asarray(rows.site)] = rows.operator
    return matrix.reshape(k, num_sites * d)


def block_diagonal(blocks):
    n, d, _ = blocks.shape
    whole = np.zeros((n, d, n, d))
    whole[np.arange(n), :, np.arange(n)] = blocks
    return whole.reshape(n * d, n * d)


def noise_of(observed, jac):
    carried = np.einsum("iab,ibc,idc->iad", jac, observed.moving_noise, jac)
    return observed.fixed_noise + carried


def with_directions(observed, counts, seed=2):
    """The same landmarks, each known along so many directions of a frame of its own."""
    frames = np.stack([rotation(D, seed=seed + i) for i in range(N)])
    known = rows_of_known_directions(np.asarray(counts))
    return dataclasses.replace(observed, directions=frames, known=known)


COUNTS = (3, 3, 1, 3, 2, 3, 3, 1, 3, 3, 2, 3)


# --------------------------------------------------------------------------------- whole landmarks


def test_rows_are_whitened_by_the_noise_of_both_sides():
    """H D Hᵀ = I with D = C_f + J C_m Jᵀ."""
    observed = noisy_landmarks()
    jac = jacobians()
    rows = observed.rows(observed.sites, jac)
    h = dense_operator(rows)
    noise = block_diagonal(noise_of(observed, jac))
    np.testing.assert_allclose(h @ noise @ h.T, np.eye(N * D), atol=1e-12)
    assert float(rows.log_det) == pytest.approx(np.linalg.slogdet(noise)[1], rel=1e-12)


def test_the_force_is_the_miss_divided_by_the_noise():
    """Hᵀr = D⁻¹(F − φ₁), ½|r|² = ½(F − φ₁)ᵀD⁻¹(F − φ₁)."""
    observed = noisy_landmarks()
    jac = jacobians()
    arrived = observed.sites + 1.0
    rows = observed.rows(arrived, jac)
    miss = observed.fixed - arrived
    force = np.linalg.solve(noise_of(observed, jac), miss[..., None])[..., 0]
    np.testing.assert_allclose(rows.pull_back(rows.residual, N), force, rtol=1e-10)
    np.testing.assert_allclose(float(rows.energy), 0.5 * np.sum(force * miss), rtol=1e-12)


def test_a_landmark_is_a_group_and_has_as_many_rows_as_dimensions():
    observed = noisy_landmarks()
    rows = observed.rows(observed.sites, jacobians())
    assert rows.per_site == D
    assert observed.num_groups == N
    np.testing.assert_array_equal(rows.group, np.repeat(np.arange(N), D))
    np.testing.assert_array_equal(rows.group, rows.site)


@pytest.mark.parametrize("counts", [None, COUNTS], ids=["whole", "directions"])
def test_information_is_what_the_rows_add_up_to(counts):
    observed = noisy_landmarks()
    if counts is not None:
        observed = with_directions(observed, counts)
    jac = jacobians()
    arrived = observed.sites + 1.0
    rows = observed.rows(arrived, jac)
    found = observed.information(arrived, jac)
    h = dense_operator(rows)
    squared = h.T @ h
    x = np.random.default_rng(3).normal(size=(N, D, 4))
    product = (squared @ x.reshape(N * D, 4)).reshape(x.shape)
    local = squared.reshape(N, D, N, D)[np.arange(N), :, np.arange(N)]
    np.testing.assert_allclose(found.product(x), product, atol=1e-12)
    np.testing.assert_allclose(found.local, local, atol=1e-12)
    np.testing.assert_allclose(found.force.ravel(), h.T @ rows.residual, atol=1e-12)
    assert float(found.energy) == pytest.approx(float(0.5 * np.sum(rows.residual**2)))
    assert float(found.log_det) == float(rows.log_det)
    assert found.num_rows == len(rows.residual)


@pytest.mark.parametrize("counts", [None, COUNTS])
def test_landmarks_listed_several_times_have_the_normalising_constant_of_one(counts):
    """−½log|R| − ½k log 2π; energy and information are the same anyway."""
    once = noisy_landmarks()
    if counts is not None:
        once = with_directions(once, counts)
    copies = 1.0 + np.arange(N) % 3
    each = np.repeat(np.arange(N), copies.astype(int))
    listed = dataclasses.replace(
        once,
        sites=once.sites[each],
        fixed=once.fixed[each],
        fixed_noise=(copies[:, None, None] * once.fixed_noise)[each],
        moving_noise=(copies[:, None, None] * once.moving_noise)[each],
        copies=copies[each],
        directions=None if counts is None else once.directions[each],
        known=None if counts is None else rows_of_known_directions(np.array(counts)[each]),
    )

    def constant_and_energy(observed, jac):
        rows = observed.rows(observed.sites + 1.0, jac)
        constant = rows.log_det + len(rows.residual) * np.log(2 * np.pi)
        return float(constant), float(rows.energy)

    expected = constant_and_energy(once, jacobians())
    assert constant_and_energy(listed, jacobians()[each]) == pytest.approx(expected, rel=1e-12)


def test_what_rows_want_is_the_displacement_along_what_is_known():
    observed = with_directions(noisy_landmarks(), COUNTS)
    rows = observed.rows(observed.sites, jacobians())
    known = observed.known_directions
    whole = observed.fixed - observed.sites
    # Where a landmark is known along some directions, its noise is that of those alone.
    along = np.einsum("iab,iac,ic->ib", known, known, whole)
    found = rows.missing_displacements(np.zeros((N, D)))
    np.testing.assert_allclose(found, along, atol=1e-9)


def test_an_alignment_starts_from_landmarks_that_are_known_completely():
    observed = with_directions(noisy_landmarks(), COUNTS)
    whole = np.array(COUNTS) == D
    found = observed.correspondences()
    np.testing.assert_array_equal(found.moving, observed.sites[whole])
    np.testing.assert_array_equal(found.fixed, observed.fixed[whole])
    total = np.trace(observed.fixed_noise + observed.moving_noise, axis1=1, axis2=2)
    np.testing.assert_allclose(found.weights, 1 / total[whole])


@pytest.mark.parametrize("copies", [None, 1.0 + np.arange(N) % 3])
@pytest.mark.parametrize("counts", [None, COUNTS])
def test_rows_of_scaled_noise_are_scaled_rows(counts, copies):
    observed = dataclasses.replace(noisy_landmarks(), copies=copies)
    if counts is not None:
        observed = with_directions(observed, counts)
    found = observed.rows(observed.sites + 1.0, jacobians()).rescaled(1.7, observed.num_different)
    expected = observed.scaled(1.7**2).rows(observed.sites + 1.0, jacobians())
    for name in ("operator", "residual", "log_det"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-12)


def test_rows_are_isotropic_where_every_axis_has_the_same_noise():
    frames = np.stack([rotation(D, seed=i) for i in range(N)])
    variances = np.linspace(1, 2, N)[:, None, None] * np.eye(D)
    plain = LandmarkObservations(
        noisy_landmarks().sites, noisy_landmarks().fixed, variances, variances
    )
    assert plain.rows(plain.sites, frames).is_isotropic()
    assert not plain.rows(plain.sites, jacobians()).is_isotropic()
    assert not noisy_landmarks().rows(plain.sites, frames).is_isotropic()
    assert not with_directions(plain, COUNTS).rows(plain.sites, frames).is_isotropic()


def test_products_block_by_block_are_those_row_by_row():
    observed = noisy_landmarks()
    blocks = observed.rows(observed.sites, jacobians())
    single = dataclasses.replace(blocks, per_site=0)
    x = np.random.default_rng(3).normal(size=(N, D, 2))
    w = np.random.default_rng(4).normal(size=(N * D, 2))
    np.testing.assert_allclose(blocks.apply(x), single.apply(x), atol=1e-12)
    np.testing.assert_allclose(blocks.pull_back(w, N), single.pull_back(w, N), atol=1e-12)
    np.testing.assert_allclose(blocks.local_information(N), single.local_information(N), atol=1e-12)


# -------------------------------------------------------------------------------------- directions


def test_a_landmark_has_one_row_for_each_known_direction():
    """H = C⁻¹B, CCᵀ = BDBᵀ: the rows see the known directions alone, and are white."""
    observed = with_directions(noisy_landmarks(), COUNTS)
    jac = jacobians()
    rows = observed.rows(observed.sites, jac)
    assert rows.per_site == 0
    np.testing.assert_array_equal(np.bincount(rows.site), COUNTS)
    np.testing.assert_array_equal(observed.known_completely, np.array(COUNTS) == D)
    h = dense_operator(rows)
    noise = noise_of(observed, jac)
    np.testing.assert_allclose(h @ block_diagonal(noise) @ h.T, np.eye(sum(COUNTS)), atol=1e-12)
    log_det = 0.0
    for i, count in enumerate(COUNTS):
        known = observed.directions[i, :count]
        free = observed.directions[i, count:]
        own = np.asarray(rows.operator)[np.asarray(rows.site) == i]
        np.testing.assert_allclose(own @ free.T, 0.0, atol=1e-12)
        log_det += np.linalg.slogdet(known @ noise[i] @ known.T)[1]
    assert float(rows.log_det) == pytest.approx(log_det)


def fitted(observed, model="endpoint"):
    """The fit and its posterior, aligned rigidly."""
    aligned = aligned_sample(observed, "rigid", scaled=False)
    sample = aligned.sample
    problem = Problem(KERNEL, sample.observed, sample.trend)
    fit = solve.solve_model(problem, sample.start, model=model)
    return fit, posterior_from_fit(fit, aligned.origin, model)


def noise_along(frames, counts, free_sd):
    """Unit noise along the first directions of each frame, and this much along the others."""
    known = np.arange(D) < np.asarray(counts)[:, None]
    variances = np.where(known, 1.0, free_sd**2)
    return np.einsum("ika,ik,ikb->iab", frames, variances, frames)


def test_an_unknown_direction_is_the_limit_of_a_large_noise_along_it():
    """The error falls as the inverse of the variance, by 10⁴ for a hundred times the noise."""
    moving, fixed = gp_displaced(N, seed=4, rms=8.0)
    places = moving[:5] + 7.0
    plain = LandmarkObservations(moving, fixed, np.tile(np.eye(D), (N, 1, 1)), np.zeros((N, D, D)))
    limit = with_directions(plain, COUNTS)
    fit, posterior = fitted(limit)
    expected = posterior.predict(places)
    assert fit.converged
    assert fit.num_rows == sum(COUNTS)
    errors = []
    for free_sd in (1e3, 1e5):
        noise = noise_along(limit.directions, COUNTS, free_sd)
        # All start from the alignment of the landmarks that are known completely.
        vague = dataclasses.replace(fit.problem.observations, fixed_noise=noise)
        vague = dataclasses.replace(vague, directions=None, known=None)
        problem = dataclasses.replace(fit.problem, observations=vague)
        near = solve.solve(problem, fit.alignment, fit.trajectory.momenta[0])
        found = posterior_from_fit(near, posterior.origin, "endpoint").predict(places)
        mean = np.abs(found.mean - expected.mean).max()
        covariance = np.abs(found.covariance - expected.covariance).max()
        errors.append((mean, covariance, abs(near.energy - fit.energy)))
    first, second = np.array(errors)
    assert np.all(first < 1e-2)
    assert np.all(second < np.maximum(1e-3 * first, 1e-5))


@pytest.mark.parametrize("model", ["endpoint", "small", "pathwise"])
def test_nothing_is_infinite_where_directions_are_unknown(model):
    fit, posterior = fitted(with_directions(noisy_landmarks(), COUNTS), model)
    assert fit.converged
    left_out = posterior.leave_one_out()
    everything = (fit.trajectory, fit.linear, fit.residual, posterior, left_out)
    everything = (*everything, posterior.predict(noisy_landmarks().sites), evidence_of(fit))
    for leaf in jax.tree.leaves(everything):
        assert np.all(np.isfinite(np.asarray(leaf)))
    np.testing.assert_array_equal(left_out.known, COUNTS)
