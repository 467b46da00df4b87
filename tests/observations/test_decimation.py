"""How many voxels count as one, where neighbouring residuals are correlated."""

import numpy as np
import pytest
from scipy import ndimage

from kunita.observations.decimation import decimation_factor
from smooth_fields import SHAPE, gradients, smoothed

SPACING = np.array([1.0, 1.0])


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
        decimation_factor(smoothed(seed, width).reshape(-1, 1), slopes, SHAPE, SPACING, 0.0)
        for seed in range(4)
    ]
    expected = measured_inflation(width, slopes)
    # The variance of 300 scores in two directions is good to 6 %, the autocorrelation to as much.
    assert np.mean(found) == pytest.approx(expected, rel=0.2)


def test_smoothing_sets_the_least_factor():
    """White residuals after smoothing by τ cannot be: what is smooth must be correlated."""
    slopes = gradients(0)
    white = smoothed(5, 0.0).reshape(-1, 1)
    assert decimation_factor(white, slopes, SHAPE, SPACING, 0.0) == pytest.approx(1, abs=0.3)
    least = decimation_factor(white, slopes, SHAPE, SPACING, 1.0)
    assert least == pytest.approx(measured_inflation(1.0, slopes), rel=0.2)


def test_the_same_channel_twice_counts_once():
    slopes = gradients(0)
    residual = smoothed(5, 1.0).reshape(-1, 1)
    once = decimation_factor(residual, slopes, SHAPE, SPACING, 1.0)
    twice = decimation_factor(
        np.repeat(residual, 2, axis=1), np.repeat(slopes, 2, axis=1), SHAPE, SPACING, 1.0
    )
    assert twice == pytest.approx(2 * once, rel=0.1)


def test_units_of_length_do_not_matter():
    slopes = gradients(0)
    residual = smoothed(5, 1.5).reshape(-1, 1)
    mm = decimation_factor(residual, slopes, SHAPE, SPACING, 1.0)
    um = decimation_factor(residual, slopes, SHAPE, 1000 * SPACING, 1000.0)
    assert um == pytest.approx(mm, rel=1e-3)


def test_thick_slices_do_not_cut_the_autocorrelation_short():
    """Noise that is correlated over two voxels counts as much beside an axis of few thick ones."""
    rng = np.random.default_rng(0)
    residual = ndimage.gaussian_filter(rng.normal(size=(64, 64, 12)), (4, 4, 0))
    slopes = ndimage.gaussian_filter(rng.normal(size=(64, 64, 12)), (6, 6, 0))
    slopes = np.repeat((slopes / slopes.std()).reshape(-1, 1, 1), 3, axis=2)
    thick = np.array([0.5, 0.5, 5.0])
    scaled = (residual / residual.std()).reshape(-1, 1)
    found = decimation_factor(scaled, slopes, (64, 64, 12), thick, 0.0)
    # Of a Gaussian of width 4 the whole autocorrelation adds up to 4π·4², of slopes nearly as wide
    # a good half of it counts.
    assert 80 < found < 220


def test_a_channel_that_is_another_one_moved_counts_once_too():
    """The correlation between these two is largest at a lag, and the lag has a sign."""
    moved = lambda values: np.roll(values.reshape(*SHAPE, -1), 3, axis=0).reshape(values.shape)
    residual = smoothed(5, 1.0).reshape(-1, 1)
    slopes = gradients(0)
    same = decimation_factor(
        np.repeat(residual, 2, axis=1), np.repeat(slopes, 2, axis=1), SHAPE, SPACING, 1.0
    )
    apart = decimation_factor(
        np.concatenate([residual, moved(residual)], axis=1),
        np.concatenate([slopes, moved(slopes)], axis=1),
        SHAPE,
        SPACING,
        1.0,
    )
    assert apart == pytest.approx(same, rel=0.15)


def test_without_gradients_each_voxel_counts_as_one():
    nothing = np.zeros_like(gradients(0))
    assert decimation_factor(smoothed(0, 0.0).reshape(-1, 1), nothing, SHAPE, SPACING, 1.0) == 1.0
