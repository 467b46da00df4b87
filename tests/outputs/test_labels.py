"""The probability that a voxel belongs to a label, integrated over the posterior."""

import functools

import numpy as np
import pytest
from scipy.stats import norm

import kunita
import problems
from kunita.data.image import Image
from kunita.errors import ImageError
from kunita.outputs.labels import label_values
from kunita.outputs.warp import nearest

COARSE_MM = (2.5, 3.0, 3.5)


def coarse_grid(orientation="RAS"):
    return problems.grid_around(problems.ORIENTATIONS[orientation], spacing=COARSE_MM)


@functools.cache
def probability_of_the_ball():
    """Of a ball in the middle, on the coarse grid."""
    return kunita.label_probability(problems.registered(3), ball(coarse_grid()), coarse_grid())


def ball(grid, radius=9.0, centre=30.0):
    index = np.stack(np.indices(grid.shape), axis=-1)
    inside = np.linalg.norm(grid.world(index) - centre, axis=-1) < radius
    return Image(inside.astype(np.uint8), grid.affine)


def test_the_total_mass_is_that_of_posterior_samples_pushed_through():
    """2,000 joint draws of where the label's own voxels go, each with the volume that its Jacobian
    gives it.

    An independent route, forwards instead of backwards: E Σᵢ v·det Dφ(xᵢ) = Σ_y v·P(y ∈ φ(A)).
    """
    reg, grid = (
        problems.registered(3),
        problems.grid_around(np.eye(3), spacing=(1.6, 1.6, 1.6), side=40.0),
    )
    labels = ball(grid)
    mass = kunita.label_probability(reg, labels, grid).data.sum()
    middle = grid.world(np.argwhere(labels.data))[::24]  # some voxels stand for all
    step = 0.5 * np.eye(3)
    stencil = np.concatenate([middle + s * e for e in step for s in (1, -1)])
    draws = reg.posterior.sample(stencil, 2000, key=1).reshape(2000, 3, 2, len(middle), 3)
    jacobians = np.moveaxis(draws[:, :, 0] - draws[:, :, 1], 1, -1)  # differences over 2 × 0.5 mm
    sampled = np.linalg.det(jacobians).mean() * labels.data.sum()
    assert abs(mass - sampled) < 0.02 * sampled


def test_the_mass_is_that_of_draws_of_the_pre_image_voxel_by_voxel():
    reg, grid = problems.registered(3), coarse_grid("LPS")
    labels = ball(grid)
    found = kunita.label_probability(reg, labels, grid).data
    voxels = np.argwhere(found >= 0)
    inverse = reg.posterior.inverse(grid.world(voxels))
    rng, total = np.random.default_rng(0), 0
    roots = np.linalg.cholesky(inverse.covariance)
    for _ in range(100):
        draw = inverse.mean + np.einsum("mab,mb->ma", roots, rng.normal(size=inverse.mean.shape))
        total += nearest(labels, labels.grid.index(draw)).sum()
    assert abs(found.sum() - total / 100) < 0.01 * total / 100


@pytest.mark.parametrize("d", [2, 3])
def test_a_half_space_has_the_probability_of_a_normal_distribution(d):
    """A straight border: P = Φ(distance / standard deviation across it), in closed form."""
    reg, grid = (
        problems.registered(d),
        problems.grid_around(np.eye(d), side=44.0, spacing=(0.5, 2.0, 2.5)),
    )
    labels = Image((np.indices(grid.shape)[0] < grid.shape[0] // 2).astype(np.uint8), grid.affine)
    border = grid.world(np.array([grid.shape[0] // 2 - 0.5] + [0] * (d - 1)))[0]
    found = kunita.label_probability(reg, labels, grid)
    voxels = np.random.default_rng(0).integers(
        np.array(grid.shape) // 3, 2 * np.array(grid.shape) // 3, (2000, d)
    )
    inverse = reg.posterior.inverse(grid.world(voxels))
    exact = norm.cdf((border - inverse.mean[:, 0]) / np.sqrt(inverse.covariance[:, 0, 0]))
    assert np.sum((exact > 0.05) & (exact < 0.95)) > 50  # the law is tested where it says something
    assert (
        np.abs(found.data[tuple(voxels.T)] - exact).max() < 0.06
    )  # voxels of 0.5 mm and 256 points
    assert abs(np.mean(found.data[tuple(voxels.T)] - exact)) < 0.005


def test_far_from_every_border_a_label_is_certain():
    reg, grid = problems.registered(3), coarse_grid()
    found = kunita.label_probability(reg, ball(grid, radius=22.0), grid).data
    middle = tuple(np.rint(grid.index(reg.posterior.move(np.full((1, 3), 30.0)))[0]).astype(int))
    assert found[middle] == 1.0
    assert found[0, 0, 0] == 0.0
    assert 0 <= found.min() <= found.max() <= 1


def test_several_labels_share_each_voxel():
    reg, grid = problems.registered(3), coarse_grid()
    labels = Image(ball(grid).data + 4 * (ball(grid, 20.0).data - ball(grid).data), grid.affine)
    found = kunita.label_probability(reg, labels, grid)
    assert label_values(labels).tolist() == [1, 4]
    assert found.channels
    assert found.data.sum(axis=-1).max() <= 1 + 1e-6
    alone = probability_of_the_ball()
    assert np.allclose(found.data[..., 0], alone.data, atol=1e-6)


def test_fractions_colours_and_empty_labels_are_refused():
    grid = coarse_grid()
    with pytest.raises(ImageError, match="expected 1 to 64 values other than 0, found 0"):
        label_values(Image(np.zeros(grid.shape, np.uint8), grid.affine))
    with pytest.raises(ImageError, match="whole number"):
        label_values(Image(np.full(grid.shape, 0.5), grid.affine))


def test_background_that_is_cut_away_changes_nothing():
    """The outside of a label image is background, also for points that lie outside and may well be
    inside."""
    reg, grid = problems.registered(3), coarse_grid()
    labels = ball(grid)
    low, high = (edge(np.argwhere(labels.data), axis=0) for edge in (np.min, np.max))
    affine = grid.affine.copy()
    affine[:3, 3] = grid.world(low)
    cut = Image(labels.data[tuple(slice(a, b + 1) for a, b in zip(low, high, strict=True))], affine)
    whole = probability_of_the_ball().data
    small = kunita.label_probability(reg, cut, grid).data
    assert np.array_equal(whole, small)
    assert small[small > 0].size > labels.data.sum()
