"""The noise of intensities: its law, and where it is larger than that says."""

import numpy as np
import pytest

from kunita.observations import image_noise
from smooth_fields import SHAPE, gradients, smoothed


def variances(residual, slopes, counts=None, contrast=1.0):
    """Local variances on the grid, without a least offset of the voxels."""
    flat = residual.reshape(-1, 1)
    if counts is None:
        counts = np.ones(len(flat), np.float32)
    limits = image_noise.NoiseLimits(np.array([contrast]), offsets=(0.0, np.inf))
    expected = image_noise.expected_variance(flat, slopes, counts, limits)
    around = image_noise.Surroundings(SHAPE, window=np.array([4.0, 4.0]))
    excess = image_noise.local_excess(flat, expected, counts, around)
    return (expected * excess).reshape(SHAPE)


def test_variances_are_robust_and_follow_what_does_not_match():
    residual = 0.1 * smoothed(1, 0.0).reshape(SHAPE)
    residual[60:, :] *= 8
    on_grid = np.sqrt(variances(residual, gradients(0)))
    # A median of which three eighths are eight times as large is 1.6 times as large.
    assert on_grid[:40].max() < 0.2
    assert on_grid[75:].min() > 2 * on_grid[:40].max()
    assert on_grid.min() > 0.08


def test_an_empty_background_does_not_make_the_noise_of_the_rest_smaller():
    slopes = gradients(0)
    residual = 0.1 * smoothed(1, 0.0).reshape(SHAPE)
    everywhere = variances(residual, slopes)
    is_object = np.zeros(SHAPE, np.float32)
    is_object[:24] = 1  # a quarter
    cut = slopes * is_object.reshape(-1, 1, 1)
    counts = image_noise.is_steep(cut, np.ones(is_object.size, np.float32))
    # Not quite empty: images are interpolated.
    faint = np.where(is_object > 0, residual, 3e-3 * residual)
    alone = variances(faint, cut, counts)
    np.testing.assert_allclose(alone[:16], everywhere[:16], rtol=0.3)


def test_residuals_that_grow_with_the_gradient_are_found_out():
    slopes = gradients(0)
    steepness = np.sum(slopes[:, 0] ** 2, axis=1)
    beside = 0.3
    law = image_noise.NoiseLaw(base=0.02, per_steepness=beside**2)
    residual = np.sqrt(law.at(steepness)) * smoothed(1, 0.0).ravel()
    counts = np.ones(len(residual), np.float32)
    found = image_noise.noise_law(residual, steepness, counts, 1.0, (0.0, np.inf))
    # 9,216 residuals in eight classes: a variance from the median errs by 5 per cent each.
    assert found.base == pytest.approx(law.base, rel=0.3)
    assert found.per_steepness == pytest.approx(law.per_steepness, rel=0.15)


def test_voxels_are_beside_their_place_by_at_least_what_the_discretisation_errs():
    slopes = gradients(0)
    steepness = np.sum(slopes[:, 0] ** 2, axis=1)
    residual = 0.1 * smoothed(1, 0.0).ravel()
    counts = np.ones(len(residual), np.float32)
    found = image_noise.noise_law(residual, steepness, counts, 1.0, (0.5, np.inf))
    assert found.per_steepness == 0.25


def test_a_few_bright_pixels_do_not_decide():
    slopes = gradients(0)
    residual = 0.1 * smoothed(1, 0.0).ravel()
    slopes[:4] *= 300
    residual[:4] = 50.0
    steepness = np.sum(slopes[:, 0] ** 2, axis=1)
    counts = np.ones(len(residual), np.float32)
    found = image_noise.noise_law(residual, steepness, counts, 1.0, (0.0, np.inf))
    assert found.base == pytest.approx(0.01, rel=0.15)
    typical = found.per_steepness * np.median(steepness)
    assert typical < 0.1 * found.base


def test_what_is_farther_beside_its_place_is_not_taken_for_noise():
    """Then the typical residual tells the variance, as if no voxel were steeper than others."""
    slopes = gradients(0)
    steepness = np.sum(slopes[:, 0] ** 2, axis=1)
    law = image_noise.NoiseLaw(base=0.02, per_steepness=4.0)
    residual = np.sqrt(law.at(steepness)) * smoothed(1, 0.0).ravel()
    counts = np.ones(len(residual), np.float32)
    found = image_noise.noise_law(residual, steepness, counts, 1.0, (0.0, 0.3))
    assert found.per_steepness == pytest.approx(0.3**2)
    robust = (1.4826 * np.median(np.abs(residual))) ** 2
    [typical] = found.at(np.median(steepness, keepdims=True))
    assert typical == pytest.approx(robust, rel=0.01)


def test_hubers_weights_keep_the_pull_of_outliers_constant():
    residual = np.array([[0.5], [2.5], [25.0]], np.float32)
    weights = image_noise.huber_weights(residual, np.ones_like(residual))
    np.testing.assert_allclose(weights[:, 0], [1.0, 1.0, 0.1], rtol=1e-6)


def test_images_that_agree_to_rounding_still_have_some_noise():
    residual = np.full(SHAPE, 1e-12)
    variance = variances(residual, gradients(0), contrast=2.0)
    np.testing.assert_allclose(variance, (2.0 * image_noise.LEAST_NOISE) ** 2, rtol=1e-6)


def test_what_is_around_a_voxel_does_not_matter_where_it_does_not_count():
    around = image_noise.Surroundings(SHAPE, window=np.array([4.0, 4.0]))
    counts = np.zeros(SHAPE, np.float32)
    counts[:40] = 1
    values = np.where(counts > 0, 3.0, 1000.0)
    means = around.means(values.reshape(-1, 1), counts.ravel()).reshape(SHAPE)
    np.testing.assert_allclose(means[:45], 3.0, rtol=1e-5)
    assert np.all(means[60:] == 0)
