"""Volumes that a page carries: at the right place, of a bounded size, with outlines where the
borders are."""

import gzip

import nibabel
import numpy as np
import pytest

from kunita.data.image import Grid, Image
from kunita.outputs.layers import Layers
from kunita.outputs.maps import maps, summarise
from kunita.report.volumes import (
    BORDERS,
    coarse,
    grey_window,
    outlined,
    scale_top,
    spanning,
    volumes,
)
from problems import grid_around, registered


def opened(volume):
    return nibabel.Nifti1Image.from_bytes(gzip.decompress(volume.data))


@pytest.mark.parametrize("shape", [(64, 64, 64), (200, 10, 90), (7, 5, 3)])
def test_blocks_are_few_enough_and_their_middles_are_where_the_affine_says(shape):
    grid = Grid(shape, np.diag([-0.5, 0.7, 2.0, 1.0]))
    blocks = coarse(grid, 20_000)
    counts = [len(axis) for axis in blocks.lattice]
    assert np.prod(counts) <= 20_000
    assert blocks.whole == (np.prod(shape) <= 20_000)
    last = np.array(counts) - 1
    ends = np.array([[axis[0] for axis in blocks.lattice], [axis[-1] for axis in blocks.lattice]])
    affine = blocks.affine
    for index, end in ((np.zeros(3), ends[0]), (last, ends[1])):
        np.testing.assert_allclose(affine[:3, :3] @ index + affine[:3, 3], grid.world(end))


def test_a_linear_image_stays_the_same_linear_image():
    """Averaging moves nothing: a coarse voxel holds the value of the place where it is."""
    grid = Grid(
        (31, 26, 18),
        np.array([[0.9, 0.1, 0, 4], [-0.1, 1.1, 0, -3], [0, 0, 2.0, 7], [0, 0, 0, 1.0]]),
    )
    index = np.stack(np.meshgrid(*map(np.arange, grid.shape), indexing="ij"), axis=-1)
    slope = np.array([1.0, -2.0, 0.5])
    blocks = coarse(grid, 1500)
    averaged = blocks.averaged(grid.world(index) @ slope)
    small = np.stack(np.meshgrid(*map(np.arange, averaged.shape), indexing="ij"), axis=-1)
    there = Grid(averaged.shape, blocks.affine).world(small)
    np.testing.assert_allclose(averaged, there @ slope, rtol=1e-5)


def test_colours_are_averaged_each_by_itself():
    data = np.random.default_rng(0).uniform(size=(8, 6, 3))
    blocks = coarse(Grid((8, 6), np.eye(3)), 12)
    for c in range(3):
        np.testing.assert_allclose(blocks.averaged(data)[..., c], blocks.averaged(data[..., c]))


@pytest.mark.parametrize("shape", [(64, 64, 64), (300, 10, 90), (1, 40, 40), (2, 3, 4)])
def test_a_spanning_lattice_goes_from_the_first_voxel_to_the_last(shape):
    grid = Grid(shape, np.diag([-0.5, 0.7, 2.0, 1.0]))
    lattice, affine = spanning(grid, 5000)
    assert np.prod([len(axis) for axis in lattice]) <= 5000
    last = np.array([len(axis) - 1 for axis in lattice])
    np.testing.assert_allclose(
        affine[:3, :3] @ last + affine[:3, 3], grid.world(np.array(shape) - 1.0)
    )


def test_the_volumes_are_nifti_on_the_fixed_grid_with_the_values_they_show():
    reg, grid = registered(3), grid_around(np.eye(3))
    data = np.random.default_rng(0).uniform(10, 500, grid.shape)
    found = maps(reg, grid)
    layers = Layers(
        Image(data, grid.affine), Image(data[::-1], grid.affine), Image(data / 500, grid.affine)
    )
    made = {volume.name: volume for volume in volumes(found, layers)}
    assert list(made) == ["fixed", "warped", "radius", "label"]
    for volume in made.values():
        assert opened(volume).get_data_dtype() == np.uint8
    np.testing.assert_allclose(opened(made["fixed"]).affine, grid.affine, atol=1e-5)
    low, high = grey_window(data)
    step = (high - low) / 255
    np.testing.assert_allclose(
        opened(made["fixed"]).get_fdata(), np.clip(data, low, high), atol=step
    )
    radius, top = opened(made["radius"]), made["radius"].top
    index = np.stack(np.meshgrid(*map(np.arange, radius.shape), indexing="ij"), axis=-1).reshape(
        -1, 3
    )
    places = grid.index(Grid(radius.shape, radius.affine).world(index))
    assert places.min() > -1e-3
    assert np.all(
        places.max(axis=0) > np.array(grid.shape) - 1.001
    )  # from the first voxels to the last
    exact = summarise("radius", found.field.at(places)[:, 3:9]).reshape(radius.shape)
    np.testing.assert_allclose(radius.get_fdata(), np.clip(exact, 0, top), atol=top / 255)


def test_outlines_are_just_inside_each_border_and_say_which():
    """In one dimension of a ramp: the first voxel above each border."""
    ramp = np.broadcast_to(np.linspace(0, 1, 41), (5, 5, 41))
    found = outlined(ramp)[2, 2]
    levels = np.digitize(np.linspace(0, 1, 41), BORDERS)
    at = [int(np.argmax(levels == k)) for k in (1, 2, 3)]
    assert sorted(np.flatnonzero(found > 3)) == at
    assert [int(found[place]) - 3 for place in at] == [1, 2, 3]
    inner = found <= 3
    np.testing.assert_array_equal(found[inner], levels[inner])


def test_a_scale_ends_at_a_round_number_above_most_values():
    rng = np.random.default_rng(0)
    for size in (1e-4, 0.3, 7.0, 2000.0):
        values = rng.gamma(2, size, 5000)
        top = scale_top(values)
        assert 0.97 <= np.mean(values <= top) <= 1
        assert top < 2.5 * np.quantile(values, 0.98)
    assert scale_top(np.zeros(5)) > 0


def test_a_flat_image_has_a_window():
    for value in (0.0, 5.0, -5.0):
        low, high = grey_window(np.full((4, 4, 4), value))
        assert low < high
