"""Where images do not match: in the record, in the file, on the fixed grid."""

import dataclasses

import numpy as np
import pytest

import kunita
from kunita.outputs.maps import maps
from kunita.outputs.mismatch import mismatch_interpolator, mismatch_slabs
from kunita.phantoms.textures import TextureOptions, texture_pair

KERNEL = kunita.Gaussian(length_scale=10.0, amplitude=2.0)
SQUARE = (slice(36, 56), slice(30, 50))
"""Of the moving image: what the fixed one lacks."""


def registered(pair, **options):
    chosen = {"kernel": KERNEL, "metric": "ssd", "init": np.eye(3), **options}
    return kunita.register(moving_image=pair.moving, fixed_image=pair.fixed, **chosen)


@pytest.fixture(scope="module")
def pair():
    return texture_pair(TextureOptions(size=80, amplitude=2.0, length_scale=10.0), seed=8)


@pytest.fixture(scope="module")
def planted(pair):
    """A registration whose moving image has a bright square of its own."""
    data = np.array(pair.moving.data)
    data[SQUARE] += 3.0
    with pytest.warns(kunita.KunitaWarning, match="do not match"):
        return registered(dataclasses.replace(pair, moving=kunita.Image(data, np.eye(3))))


def test_images_that_differ_by_noise_alone_match_everywhere(pair):
    """A window holds some hundred independent pixels: its noise varies by a few per cent."""
    mismatch = registered(pair).images.mismatch_map.data
    known = mismatch[np.isfinite(mismatch)]
    assert known.min() == 1.0
    assert np.median(known) < 1.1
    assert known.max() < 1.5


def test_a_square_that_one_image_lacks_does_not_match_and_the_rest_does(planted):
    mismatch = planted.images.mismatch_map.data
    assert np.nanmin(mismatch[SQUARE]) > 2.0
    assert np.nanmax(mismatch[:, 72:]) < 1.5


def test_the_share_of_mismatch_is_that_of_the_map_above_two(planted):
    mismatch = planted.images.mismatch_map.data
    known = mismatch[np.isfinite(mismatch)]
    assert planted.images.mismatch == pytest.approx(np.mean(known > 2.0), abs=1e-9)


def test_the_map_lies_where_the_moving_voxels_are(pair):
    """A shifted mask of half the image: voxels outside of it are not compared, those inside are."""
    mask = np.zeros((80, 80), np.uint8)
    mask[10:70, 21:60] = 1
    reg = registered(pair, moving_mask=kunita.Image(mask, np.eye(3)))
    mismatch = reg.images.mismatch_map
    places = mismatch.grid.world(np.argwhere(np.isfinite(mismatch.data)))
    np.testing.assert_array_equal(places.min(axis=0), [10, 21])
    np.testing.assert_array_equal(places.max(axis=0), [69, 59])


def test_a_record_keeps_the_map(planted, tmp_path):
    kunita.save(planted, tmp_path / "registration.h5")
    again = kunita.load(tmp_path / "registration.h5").images.mismatch_map
    np.testing.assert_array_equal(again.data, planted.images.mismatch_map.data)
    np.testing.assert_array_equal(again.affine, planted.images.mismatch_map.affine)
    assert again.data.dtype == np.float32


def test_on_the_fixed_grid_it_is_what_it_was_where_a_voxel_comes_from(planted, pair):
    found = maps(planted, pair.fixed)
    carried = np.concatenate(list(mismatch_slabs(found.pull_back, planted.images.mismatch_map)), 1)
    assert carried.shape == pair.fixed.data.shape
    inner = np.stack(np.meshgrid(*2 * (np.arange(20, 60),), indexing="ij"), -1).reshape(-1, 2)
    origins = planted.posterior.move_back(inner)
    nearest = np.rint(origins).astype(int)
    expected = planted.images.mismatch_map.data[tuple(nearest.T)]
    # It changes by a few per cent from pixel to pixel.
    np.testing.assert_allclose(carried[tuple(inner.T)], expected, rtol=0.1)


def test_what_was_not_compared_is_zero_and_spoils_no_neighbour():
    data = np.full((6, 6), 3.0, np.float32)
    data[:, 3:] = np.nan
    look_up = mismatch_interpolator(kunita.Image(data, np.eye(3)))
    known = look_up(np.array([[2.0, 0.0], [2.0, 2.0], [2.0, 2.4]]))
    np.testing.assert_allclose(known, 3.0, rtol=1e-6)
    unknown = look_up(np.array([[2.0, 2.6], [2.0, 5.0], [2.0, -1.0], [9.0, 1.0]]))
    np.testing.assert_array_equal(unknown, 0.0)
