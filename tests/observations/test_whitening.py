"""Noise that is correlated by itself: it is found, divided out, and registrations gain by it."""

import dataclasses
import warnings

import numpy as np
import pytest
from scipy import ndimage

import kunita
from kunita.inference import image_fit
from kunita.observations.whitening import Whitening, excess_widths, whitening_of
from kunita.phantoms.textures import TextureOptions, texture_pair

SHAPE = (96, 80)
TAU = np.array([0.7, 0.7])
LONG = np.array([40.0, 40.0])


def noise(widths, seed=0, shape=SHAPE):
    """White noise smoothed by τ, after a correlation of its own."""
    rng = np.random.default_rng(seed)
    own = ndimage.gaussian_filter(rng.normal(size=shape), widths, mode="wrap")
    level = ndimage.gaussian_filter(own, TAU[0], mode="wrap")
    return (level / level.std()).astype(np.float32)


def everywhere(values):
    return values.reshape(-1, 1), np.ones(values.size, np.float32)


@pytest.mark.parametrize("widths", [(1.5, 1.5), (1.0, 2.0)])
def test_the_width_of_the_noise_is_found(widths):
    residual, counts = everywhere(noise(widths))
    found = excess_widths(residual, counts, SHAPE, TAU)
    assert found == pytest.approx(widths, rel=0.12)


def test_white_noise_is_left_alone():
    residual, counts = everywhere(noise((0, 0)))
    assert whitening_of(residual, counts, SHAPE, TAU, LONG) is None


def test_what_does_not_count_says_nothing_of_the_width():
    values = noise((0, 0))
    counts = np.ones(SHAPE, np.float32)
    values[:, 40:] = ndimage.gaussian_filter(values[:, 40:], 3)
    counts[:, 40:] = 0
    assert whitening_of(values.reshape(-1, 1), counts.ravel(), SHAPE, TAU, LONG) is None


def test_after_the_filter_little_of_the_width_is_left():
    """What is left is that of the frequencies which ε keeps from being amplified."""
    residual, counts = everywhere(noise((1.2, 1.2)))
    filtered = whitening_of(residual, counts, SHAPE, TAU, LONG)(residual)
    left = excess_widths(filtered, counts, SHAPE, TAU)
    assert np.all(left < 0.55 * 1.2)


def test_a_width_of_nothing_changes_nothing():
    residual, _ = everywhere(noise((1, 1)))
    same = Whitening(np.zeros(2), SHAPE)(residual)
    assert same == pytest.approx(residual, abs=1e-5)


def test_a_constant_stays_away_from_the_border():
    values = np.ones((*SHAPE, 2), np.float32).reshape(-1, 2)
    filtered = Whitening(np.array([1.0, 1.0]), SHAPE)(values).reshape(*SHAPE, 2)
    assert filtered[20:-20, 20:-20] == pytest.approx(1, abs=1e-3)


def test_a_smooth_displacement_passes_through_the_filter():
    """W(h·u) ≈ (Wh)·u where u changes little over the width."""
    slopes = noise((1.5, 1.5))
    x = np.arange(SHAPE[0])[:, None] / SHAPE[0]
    smooth = (1 + np.sin(2 * np.pi * x)) * np.ones(SHAPE)
    whiten = Whitening(np.array([1.5, 1.5]), SHAPE)
    together = whiten((slopes * smooth).reshape(-1, 1))
    apart = whiten(slopes.reshape(-1, 1)) * smooth.reshape(-1, 1)
    inner = np.zeros(SHAPE, bool)
    inner[16:-16, 16:-16] = True
    differences = (together - apart)[inner.ravel()]
    assert np.std(differences) < 0.06 * np.std(apart[inner.ravel()])


def test_what_is_correlated_over_much_of_a_length_scale_is_not_taken_for_noise():
    """A bias field, or a misfit: displacements would not pass through a filter as wide."""
    smooth = ndimage.gaussian_filter(np.random.default_rng(3).normal(size=SHAPE), 8, mode="wrap")
    residual, counts = everywhere(noise((0, 0)) + (3 * smooth / smooth.std()).astype(np.float32))
    shortest = np.array([12.0, 9.0])
    assert excess_widths(residual, counts, SHAPE, TAU).min() > 2
    assert whitening_of(residual, counts, SHAPE, TAU, shortest).widths == pytest.approx([2, 1.5])


def mean_error(pair):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", kunita.KunitaWarning)
        reg = kunita.register(
            moving_image=pair.moving,
            fixed_image=pair.fixed,
            metric="ssd",
            kernel=kunita.Gaussian(length_scale=20.0, amplitude=3.0),
            init=np.eye(3),
        )
    points = np.random.default_rng(0).uniform(16, 48, size=(100, 2))
    miss = reg.posterior.move(points) - pair.truth(points)
    return float(np.linalg.norm(miss, axis=1).mean())


def test_registrations_gain_where_noise_is_correlated(monkeypatch):
    options = TextureOptions(
        size=64, amplitude=3.0, length_scale=20.0, noise_of_moving=0.2, correlation=1.5
    )
    pair = texture_pair(options, 2)
    whitened = mean_error(pair)
    usual = image_fit.standard_levels
    monkeypatch.setattr(
        image_fit,
        "standard_levels",
        lambda *size: tuple(dataclasses.replace(one, whitens=False) for one in usual(*size)),
    )
    assert whitened < 0.85 * mean_error(pair)


def test_noise_that_is_correlated_does_not_pass_for_a_short_scale_of_the_prior():
    """Without whitening the evidence takes a second scale of six pixels here."""
    options = TextureOptions(correlation=1.5)
    pair = texture_pair(options, 7034)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", kunita.KunitaWarning)
        reg = kunita.register(
            moving_image=pair.moving, fixed_image=pair.fixed, metric="ssd", init=np.eye(3)
        )
    lengths = [float(one.length_scale) for one in getattr(reg.kernel, "kernels", (reg.kernel,))]
    assert max(lengths) == pytest.approx(options.length_scale, rel=0.2)
    assert len(lengths) == 1
