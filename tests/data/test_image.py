"""Grids and images: indices to world and back, what is outside, and what cannot be."""

import numpy as np
import pytest

import problems
from kunita.data.image import Grid, Image, as_grid
from kunita.errors import ImageError

GRIDS = {name: problems.grid_around(direction) for name, direction in problems.ORIENTATIONS.items()}
GRIDS["2d"] = problems.grid_around(np.eye(2))


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
def test_index_undoes_world(grid):
    index = np.random.default_rng(0).uniform(-5, 50, (20, grid.dimension))
    assert np.allclose(grid.index(grid.world(index)), index)


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
def test_spacing_is_the_distance_of_neighbours_and_volume_that_of_a_voxel(grid):
    for axis, step in enumerate(np.eye(grid.dimension)):
        assert np.isclose(
            np.linalg.norm(grid.world(step) - grid.world(0 * step)), grid.spacing[axis]
        )
    assert np.isclose(grid.voxel_volume, np.prod(grid.spacing))


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
def test_distance_outside_is_zero_in_every_voxel_and_grows_by_millimetres_beyond(grid):
    last = np.array(grid.shape) - 1.0
    inside = np.random.default_rng(0).uniform(-0.5, last + 0.5, (50, grid.dimension))
    assert not grid.distance_outside(grid.world(inside)).any()
    beyond = last / 2
    beyond[0] = last[0] + 0.5 + 3 / grid.spacing[0]
    assert np.isclose(grid.distance_outside(grid.world(beyond[None]))[0], 3.0)


@pytest.mark.parametrize(
    ("shape", "affine", "message"),
    [
        ((4, 4, 4), np.zeros((4, 4)), "last row"),
        ((4, 4, 4), np.diag([1.0, 0.0, 1.0, 1.0]), "no volume"),
        ((4, 4, 4), np.diag([1.0, np.nan, 1.0, 1.0]), "NaN or infinity"),
        ((4, 4, 4), np.eye(3), "expected a 4×4 matrix"),
        ((4, 0, 4), np.eye(4), "positive numbers"),
        ((4, 4, 4, 4), np.eye(5), "two or three"),
    ],
)
def test_grids_that_cannot_be_are_refused(shape, affine, message):
    with pytest.raises(ImageError, match=message):
        Grid(shape, affine)


def test_tiny_and_huge_voxels_are_fine():
    for size in (1e-4, 1e4):
        assert Grid((3, 3, 3), np.diag([size, size, size, 1])).voxel_volume == pytest.approx(
            size**3
        )


def test_an_image_has_the_grid_of_its_data_with_or_without_channels():
    assert Image(np.zeros((2, 3, 4)), np.eye(4)).grid.shape == (2, 3, 4)
    assert Image(np.zeros((2, 3, 3)), np.eye(3), channels=True).grid.shape == (2, 3)
    assert as_grid(Image(np.zeros((2, 3)), np.eye(3))).shape == (2, 3)


def test_complex_voxels_and_wrong_affines_are_refused():
    with pytest.raises(ImageError, match="real numbers"):
        Image(np.zeros((2, 2), complex), np.eye(3))
    with pytest.raises(ImageError, match="expected a 3×3"):
        Image(np.zeros((2, 2)), np.eye(4))
    with pytest.raises(ImageError, match="expected an Image or a Grid"):
        as_grid("image.nii")
