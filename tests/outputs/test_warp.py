"""What does not move stays bit for bit, what moves by whole voxels moves by whole voxels, labels
stay labels."""

import numpy as np
import pytest
import SimpleITK as sitk

import kunita
import problems
from kunita.errors import ArgumentError, ImageError
from kunita.outputs.warp import INTERPOLATIONS, as_type

TYPES = (np.uint8, np.int16, np.float32, np.float64)


def noise_image(grid, dtype, channels=None, seed=0):
    shape = (*grid.shape, channels) if channels else grid.shape
    data = 100 * np.random.default_rng(seed).normal(size=shape)
    return kunita.Image(as_type(data, np.dtype(dtype)), grid.affine, channels is not None)


def moved_by(shift, d=3):
    """A registration that is a translation: the landmarks say so exactly."""
    x = np.random.default_rng(5).uniform(0, 60, (16, d))
    return kunita.register(
        x, x + shift, kernel=kunita.Gaussian(25.0, 4.0), noise=0.7, align="translation"
    )


@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
@pytest.mark.parametrize("dtype", TYPES)
def test_an_identity_registration_returns_the_image_bit_for_bit(interpolation, dtype):
    grid = problems.grid_around(problems.ORIENTATIONS["oblique"])
    image = noise_image(grid, dtype)
    warped = kunita.warp_image(moved_by(np.zeros(3)), image, image, interpolation=interpolation)
    assert warped.data.dtype == dtype
    assert np.array_equal(warped.data, image.data)
    assert np.array_equal(warped.affine, image.affine)


@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
def test_a_translation_by_whole_voxels_moves_the_image_by_that_many(interpolation):
    grid = problems.grid_around(np.eye(3))
    image = noise_image(grid, np.int16)
    warped = kunita.warp_image(
        moved_by(np.array([2, -3, 1]) * grid.spacing), image, image, interpolation=interpolation
    )
    assert np.array_equal(warped.data[2:, :-3, 1:], image.data[:-2, 3:, :-1])
    assert not warped.data[:2].any()  # nothing was there before
    back = kunita.warp_image(
        moved_by(np.array([2, -3, 1]) * grid.spacing),
        image,
        image,
        interpolation=interpolation,
        inverse=True,
    )
    assert np.array_equal(back.data[:-2, 3:, :-1], image.data[2:, :-3, 1:])


def test_labels_warped_to_the_nearest_voxel_stay_labels():
    reg, grid = problems.registered(3), problems.grid_around(problems.ORIENTATIONS["LAS"])
    labels = kunita.Image(
        np.random.default_rng(0).choice([0, 3, 7, 900], grid.shape).astype(np.int16), grid.affine
    )
    warped = kunita.warp_image(reg, labels, grid, interpolation="nearest")
    assert set(np.unique(warped.data)) == {0, 3, 7, 900}


def test_no_label_is_skipped_by_a_shift_of_half_a_voxel_or_on_a_finer_grid():
    grid = problems.grid_around(np.eye(3))
    stripes = np.broadcast_to(np.arange(grid.shape[0])[:, None, None] + 1, grid.shape).astype(
        np.int16
    )
    labels = kunita.Image(stripes, grid.affine)
    shifted = kunita.warp_image(moved_by(0.5 * grid.spacing), labels, grid, interpolation="nearest")
    inner = shifted.data[1:, 2, 2]
    assert set(inner) == set(range(inner.min(), inner.max() + 1))
    assert len(inner) - len(set(inner)) <= 1
    finer = kunita.Grid(2 * np.array(grid.shape), grid.affine @ np.diag([0.5, 0.5, 0.5, 1.0]))
    doubled = kunita.warp_image(moved_by(np.zeros(3)), labels, finer, interpolation="nearest").data[
        :, 2, 2
    ]
    assert np.all(np.bincount(doubled)[2 : grid.shape[0]] == 2)


@pytest.mark.parametrize("d", [2, 3])
def test_the_warped_image_is_the_moving_image_at_the_pre_image(d):
    """A linear ramp is interpolated exactly, so its value *is* the position."""
    reg, grid = (
        problems.registered(d),
        problems.grid_around(problems.rotation(d, seed=3), side=40.0),
    )
    ramp_grid = problems.grid_around(np.eye(d), side=120.0)
    index = np.stack(np.meshgrid(*map(np.arange, ramp_grid.shape), indexing="ij"), axis=-1)
    ramp = kunita.Image(ramp_grid.world(index), ramp_grid.affine, channels=True)
    warped = kunita.warp_image(reg, ramp, grid)
    voxels = np.random.default_rng(0).integers(0, grid.shape, (30, d))
    assert np.allclose(
        warped.data[tuple(voxels.T)], reg.posterior.inverse(grid.world(voxels)).mean, atol=2e-3
    )


def test_simpleitk_resamples_to_the_same_image():
    """An independent route: our point map as ITK's displacement field at every voxel, and ITK's own
    interpolation."""
    reg, grid = problems.registered(3), problems.grid_around(np.eye(3))
    smooth = np.cos(np.indices(grid.shape).sum(axis=0) / 5.0)
    image = kunita.Image(smooth.astype(np.float32), grid.affine)
    warped = kunita.warp_image(reg, image, grid)
    points = grid.world(np.stack(np.indices(grid.shape), axis=-1)).reshape(-1, 3)
    vectors = ((reg.posterior.move_back(points) - points) * [-1, -1, 1]).reshape(*grid.shape, 3)
    itk_grid = lambda array, vector: _itk(array, grid, vector)
    field = sitk.DisplacementFieldTransform(itk_grid(vectors.astype(np.float64), True))
    resampled = sitk.Resample(itk_grid(image.data, False), field, sitk.sitkLinear, 0.0)
    found = np.swapaxes(sitk.GetArrayFromImage(resampled), 0, 2)
    inner = (slice(5, -5),) * 3
    assert np.abs(found[inner] - warped.data[inner]).max() < 2e-3


def _itk(array, grid, vector):
    image = sitk.GetImageFromArray(np.ascontiguousarray(np.swapaxes(array, 0, 2)), isVector=vector)
    flip = np.diag([-1.0, -1.0, 1.0])
    image.SetSpacing(grid.spacing.tolist())
    image.SetOrigin((flip @ grid.affine[:3, 3]).tolist())
    image.SetDirection((flip @ grid.affine[:3, :3] / grid.spacing).ravel().tolist())
    return image


def test_the_outer_half_of_the_outer_voxels_belongs_to_the_image():
    """As in ITK: a shift of less than half a voxel leaves no black rim."""
    grid = problems.grid_around(np.eye(3))
    image = kunita.Image(np.full(grid.shape, 7, np.int16), grid.affine)
    for share, rim in ((0.4, 7), (0.6, 0)):
        warped = kunita.warp_image(moved_by(np.array([share, 0, 0]) * grid.spacing), image, grid)
        assert np.all(warped.data[0] == rim)
        assert np.all(warped.data[1:] == 7)


def test_a_narrow_type_is_rounded_and_kept_in_range_never_wrapped_around():
    assert as_type(np.array([-3.0, 1.5, 300.2]), np.dtype(np.uint8)).tolist() == [0, 2, 255]
    assert as_type(np.array([-4e4, 4e4]), np.dtype(np.int16)).tolist() == [-32768, 32767]
    assert as_type(np.array([0.2, 0.7]), np.dtype(bool)).tolist() == [False, True]


def test_what_is_not_an_image_and_unknown_interpolations_are_refused():
    reg, grid = problems.registered(3), problems.grid_around(np.eye(3))
    with pytest.raises(ImageError, match="expected an Image"):
        kunita.warp_image(reg, np.zeros((3, 3, 3)), grid)
    with pytest.raises(ArgumentError, match="nearest, linear, cubic"):
        kunita.warp_image(reg, noise_image(grid, np.int16), grid, interpolation="sinc")
    with pytest.raises(ImageError, match="reference: expected an Image or a Grid"):
        kunita.warp_image(reg, noise_image(grid, np.int16), np.eye(4))
    with pytest.raises(ImageError, match="image: expected 3-D, found 2-D"):
        kunita.warp_image(reg, noise_image(problems.grid_around(np.eye(2)), np.int16), grid)
