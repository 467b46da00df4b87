"""The covariance of the score of images, as their residuals tell it."""

import numpy as np
import pytest
from scipy import ndimage

from kunita.observations.image_noise import ImageNoise
from kunita.observations.intensities import Comparison, FixedFeatures, Intensities, IntensityLevel
from kunita.observations.lattice import Lattice, LatticeAxis

SHAPE = (90, 78)
COUNT = SHAPE[0] * SHAPE[1]
FACTOR = 2.5


def smooth(rng, width):
    values = rng.normal(size=SHAPE)
    if width:
        values = ndimage.gaussian_filter(values, width, mode="wrap")
    return values / values.std()


def residuals(seed, width):
    """Two channels that share a part of their noise, of which one is shifted by two voxels."""
    rng = np.random.default_rng(seed)
    shared = smooth(rng, width)
    first = 0.8 * shared + 0.6 * smooth(rng, width)
    second = 0.8 * np.roll(shared, 2, axis=0) + 0.6 * smooth(rng, width)
    return np.stack([first.ravel(), second.ravel()], axis=1).astype(np.float32)


def gradients():
    """Of two channels, the second shifted as the noise is; half of the plane has weak ones."""
    image = smooth(np.random.default_rng(0), 2.0)
    image[:40] *= 0.3
    channels = [np.stack(np.gradient(one), axis=-1) for one in (image, np.roll(image, 2, axis=0))]
    return np.stack([one.reshape(-1, 2) for one in channels], axis=1).astype(np.float32)


@pytest.fixture(scope="module")
def observed():
    axes = tuple(LatticeAxis.covering(0.0, n - 1.0, 12.0, 3) for n in SHAPE)
    view = Lattice(axes, np.eye(3)).at([np.arange(n).astype(float) for n in SHAPE])
    level = IntensityLevel(
        voxel=1.0,
        view=view,
        values=np.zeros((COUNT, 2), np.float32),
        slopes=gradients(),
        counts=np.ones(COUNT, np.float32),
        fixed=FixedFeatures(np.zeros((2, *SHAPE), np.float32), np.eye(3), None),
        smoothing=1.0,
        spacing=np.ones(2),
    )
    ones = np.ones((COUNT, 2), np.float32)
    return Intensities(level, ImageNoise(4 * ones, ones, ones, FACTOR))


def compared(observed, residual):
    slopes = observed.level.slopes
    return Comparison(2 * residual, slopes, slopes, observed.level.counts)


def displacements(observed, count=8):
    """Smooth ones, as the prior has them."""
    nodes = observed.sites
    squared = np.sum((nodes[:, None] - nodes) ** 2, axis=-1)
    root = np.linalg.cholesky(np.exp(-squared / (2 * 24.0**2)) + 1e-6 * np.eye(len(nodes)))
    white = np.random.default_rng(1).normal(size=(count, 2, len(nodes)))
    return (white @ root.T).astype(np.float32)


def form(information, x):
    return np.sum(x * information.product(x), axis=(1, 2))


@pytest.mark.parametrize("width", [1.0, 1.5])
def test_the_covariance_of_the_score_is_what_simulated_residuals_have(observed, width):
    x = displacements(observed)
    scores = []
    for seed in range(400):
        force = observed.force(compared(observed, residuals(seed, width)))
        scores.append(np.einsum("cdn,dn->c", x, force))
    expected = np.var(scores, axis=0)
    found = np.mean(
        [
            form(observed.score_covariance(compared(observed, residuals(1000 + seed, width))), x)
            for seed in range(4)
        ],
        axis=0,
    )
    # A variance of 400 scores is good to 7 %, and the autocorrelation of four planes to as much.
    np.testing.assert_allclose(found, expected, rtol=0.3)
    assert np.mean(found / expected) == pytest.approx(1, abs=0.12)


def test_without_correlations_it_is_the_information_over_the_factor(observed):
    white = np.random.default_rng(5).normal(size=(COUNT, 2)).astype(np.float32)
    seen = compared(observed, white)
    x = displacements(observed)
    slopes = observed.level.slopes
    information = form(observed.condense(seen, slopes, slopes), x)
    found = form(observed.score_covariance(seen), x)
    np.testing.assert_allclose(found, information / FACTOR, rtol=0.15)
