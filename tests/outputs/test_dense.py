"""Coarse nodes and splines give the function on the grid, to the error that was asked for and
measured."""

import numpy as np
import pytest

import problems
from kunita.data.image import Grid
from kunita.outputs.dense import MOST_NODES, SLAB_VOXELS, lattice_points, plane, slabs, smooth_field


def wave(points, progress=lambda fraction: None):
    return np.c_[
        np.sin(points[:, 0] / 20) * np.cos(points[:, -1] / 25),
        np.exp(-np.sum((points - 30) ** 2, 1) / 800),
    ]


def field_of(grid, tolerance, function=wave, spacing=15.0, most_nodes=MOST_NODES):
    allowed = lambda exact: np.full_like(exact, tolerance)
    around = np.full((1, grid.dimension), 30.0)
    return smooth_field(function, allowed, grid, spacing, around, most_nodes=most_nodes)


@pytest.mark.parametrize("direction", problems.ORIENTATIONS.values(), ids=problems.ORIENTATIONS)
def test_the_error_on_all_voxels_is_within_the_tolerance(direction):
    grid = problems.grid_around(direction)
    field = field_of(grid, 1e-3)
    assert field.good
    assert field.values.size < wave(np.zeros((1, 3))).size * grid.size / 10  # it was worth it
    for slab in slabs(grid):
        exact = wave(lattice_points(grid, slab).reshape(-1, 3)).reshape(*field.on(slab).shape)
        assert np.abs(field.on(slab) - exact).max() < 1e-3


def test_a_tighter_tolerance_takes_more_nodes():
    grid = problems.grid_around(np.eye(3))
    assert field_of(grid, 1e-5).values.size > field_of(grid, 1e-2).values.size


def test_a_function_too_rough_for_splines_is_exact_at_the_voxels():
    """Refinement ends at the voxels themselves, where the function is simply evaluated."""
    grid = Grid((9, 8, 7), np.diag([1.0, 1.0, 1.0, 1.0]))
    rough = lambda points, progress: np.sign(np.sin(7 * points[:, :1]))
    field = field_of(grid, 1e-6, rough)
    (slab,) = slabs(grid)
    exact = rough(lattice_points(grid, slab).reshape(-1, 3), None).reshape(9, 8, 7, 1)
    assert field.good
    assert np.array_equal(field.on(slab), exact)


def test_a_function_too_rough_for_the_nodes_that_are_allowed_is_said_not_to_be_good():
    field = field_of(problems.grid_around(np.eye(3)), 1e-9, most_nodes=1000)
    assert not field.good
    assert field.error.max() > 1e-9


def test_thick_slices_are_checked_where_they_are_and_need_few_nodes():
    """Along an axis of few voxels every voxel is a node; between them nothing is asked for."""
    grid = Grid((60, 60, 7), np.diag([1.0, 1.0, 10.0, 1.0]))
    rough = lambda points, progress: np.sin(points[:, 2:] / 2)
    field = field_of(grid, 1e-4, rough)
    assert field.good
    assert field.values.size < grid.size / 20


def test_the_first_nodes_are_not_more_than_allowed_either():
    field = field_of(problems.grid_around(np.eye(3)), 1e-3, spacing=0.1, most_nodes=3000)
    assert field.values[..., 0].size <= 3000
    assert field.values[..., 0].size > 1500  # and not many fewer than allowed


def test_slabs_cover_every_voxel_once_and_are_small():
    grid = Grid((300, 200, 150), np.eye(4))
    layers = np.concatenate([slab[-1] for slab in slabs(grid)])
    assert np.array_equal(layers, np.arange(150))
    assert max(slab[-1].size * 300 * 200 for slab in slabs(grid)) <= SLAB_VOXELS


@pytest.mark.parametrize("shape", [(5, 1, 4), (1, 1, 1), (2, 3, 1), (40, 1)])
def test_thin_grids_work(shape):
    grid = Grid(shape, np.eye(len(shape) + 1))
    field = field_of(grid, 1e-3)
    values = np.concatenate([field.on(slab) for slab in slabs(grid)], axis=len(shape) - 1)
    exact = wave(lattice_points(grid, tuple(np.arange(n) for n in shape)).reshape(-1, len(shape)))
    assert np.allclose(values.reshape(-1, 2), exact, atol=1e-3)


def test_a_plane_is_a_cut_through_the_slabs():
    grid = problems.grid_around(np.eye(3))
    field = field_of(grid, 1e-3)
    whole = np.concatenate([field.on(slab) for slab in slabs(grid)], axis=2)
    for axis in range(3):
        assert np.allclose(field.on(plane(grid, axis, 5.0)), np.take(whole, [5], axis), atol=1e-12)


def test_progress_ends_at_one():
    from kunita.outputs.maps import BATCH, in_batches

    told = []
    in_batches(lambda points: points)(np.zeros((2 * BATCH + 1, 3)), told.append)
    assert told[-1] == 1.0
    assert told == sorted(told)
    assert len(told) == 3
