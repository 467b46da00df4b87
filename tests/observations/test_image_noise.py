"""The noise of intensities: robust and local variances, and how many voxels count as one."""

import numpy as np
import pytest
from scipy import ndimage

from kunita.observations import image_noise

SHAPE = (96, 80)
SPACING = np.array([1.0, 1.0])


def smoothed(seed, width):
    values = np.random.default_rng(seed).normal(size=SHAPE)
    if width:
        values = ndimage.gaussian_filter(values, width, mode="wrap")
    return (values / values.std()).astype(np.float32)


def gradients(seed, width=3.0):
    image = smoothed(seed, width)
    both = np.stack(np.gradient(image), axis=-1)
    return both.reshape(-1, 1, 2).astype(np.float32)


def measured_inflation(width, slopes, count=300):
    """By how much the score Σ h r of correlated residuals varies more than that of white ones."""
    scores = []
    for seed in range(count):
        residual = smoothed(1000 + seed, width).ravel()
        scores.append(np.einsum("k,kcd->d", residual, slopes))
    found = np.sum(np.var(scores, axis=0))
    return found / np.sum(slopes**2)


@pytest.mark.parametrize("width", [0.0, 1.0, 2.0])
def test_the_decimation_factor_is_the_inflation_of_the_score(width):
    slopes = gradients(0)
    found = [
        image_noise.decimation(smoothed(seed, width).reshape(-1, 1), slopes, SHAPE, SPACING, 0.0)
        for seed in range(4)
    ]
    expected = measured_inflation(width, slopes)
    # The variance of 300 scores in two directions is good to 6 %, the autocorrelation to as much.
    assert np.mean(found) == pytest.approx(expected, rel=0.2)


def test_smoothing_sets_the_least_factor():
    """White residuals after smoothing by τ cannot be: what is smooth must be correlated."""
    slopes = gradients(0)
    white = smoothed(5, 0.0).reshape(-1, 1)
    assert image_noise.decimation(white, slopes, SHAPE, SPACING, 0.0) == pytest.approx(1, abs=0.3)
    least = image_noise.decimation(white, slopes, SHAPE, SPACING, 1.0)
    assert least == pytest.approx(measured_inflation(1.0, slopes), rel=0.2)


def test_the_same_channel_twice_counts_once():
    slopes = gradients(0)
    residual = smoothed(5, 1.0).reshape(-1, 1)
    once = image_noise.decimation(residual, slopes, SHAPE, SPACING, 1.0)
    twice = image_noise.decimation(
        np.repeat(residual, 2, axis=1), np.repeat(slopes, 2, axis=1), SHAPE, SPACING, 1.0
    )
    assert twice == pytest.approx(2 * once, rel=0.1)


def test_units_of_length_do_not_matter():
    slopes = gradients(0)
    residual = smoothed(5, 1.5).reshape(-1, 1)
    mm = image_noise.decimation(residual, slopes, SHAPE, SPACING, 1.0)
    um = image_noise.decimation(residual, slopes, SHAPE, 1000 * SPACING, 1000.0)
    assert um == pytest.approx(mm, rel=1e-3)


def test_variances_are_robust_and_follow_what_does_not_match():
    residual = 0.1 * smoothed(1, 0.0).reshape(-1, 1)
    residual = residual.reshape(SHAPE)
    residual[60:, :] *= 8
    counts = np.ones(residual.size, np.float32)
    flat = residual.reshape(-1, 1)
    variance = image_noise.local_variance(
        flat, counts, SHAPE, np.array([4.0, 4.0]), np.array([1.0])
    )
    on_grid = np.sqrt(variance.reshape(SHAPE))
    common = np.sqrt(image_noise.robust_variance(flat[:, 0], counts))
    assert on_grid[:40].max() < 1.3 * common
    assert on_grid[75:].min() > 2 * common
    assert np.all(on_grid >= common * (1 - 1e-6))


def test_hubers_weights_keep_the_pull_of_outliers_constant():
    residual = np.array([[0.5], [2.5], [25.0]], np.float32)
    weights = image_noise.huber_weights(residual, np.ones_like(residual))
    np.testing.assert_allclose(weights[:, 0], [1.0, 1.0, 0.1], rtol=1e-6)


def test_images_that_agree_to_rounding_still_have_some_noise():
    residual = np.full((SHAPE[0] * SHAPE[1], 1), 1e-12)
    counts = np.ones(len(residual))
    window = np.array([4.0, 4.0])
    variance = image_noise.local_variance(residual, counts, SHAPE, window, np.array([2.0]))
    np.testing.assert_allclose(variance, (2.0 * image_noise.LEAST_NOISE) ** 2, rtol=1e-6)


def test_a_channel_that_is_another_one_moved_counts_once_too():
    """The correlation between these two is largest at a lag, and the lag has a sign."""
    moved = lambda values: np.roll(values.reshape(*SHAPE, -1), 3, axis=0).reshape(values.shape)
    residual = smoothed(5, 1.0).reshape(-1, 1)
    slopes = gradients(0)
    same = image_noise.decimation(
        np.repeat(residual, 2, axis=1), np.repeat(slopes, 2, axis=1), SHAPE, SPACING, 1.0
    )
    apart = image_noise.decimation(
        np.concatenate([residual, moved(residual)], axis=1),
        np.concatenate([slopes, moved(slopes)], axis=1),
        SHAPE,
        SPACING,
        1.0,
    )
    assert apart == pytest.approx(same, rel=0.15)
