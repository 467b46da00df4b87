"""Maps show, at a fixed voxel, what the posterior says of the point that arrives there."""

import numpy as np
import pytest

import kunita
import problems
from kunita.errors import ArgumentError
from kunita.gaussians import GaussianPoints, ball_radius
from kunita.outputs import maps
from kunita.outputs.dense import slabs


def at_random_voxels(grid, image, seed=0, count=40):
    index = np.random.default_rng(seed).integers(0, grid.shape, (count, grid.dimension))
    return grid.world(index), image.data[tuple(index.T)]


@pytest.mark.parametrize("what", ["fc", "std", "radius", "jacobian", "cov"])
@pytest.mark.parametrize("d", [2, 3])
def test_a_map_is_the_posterior_at_the_pre_image(what, d):
    reg = problems.registered(d)
    grid = problems.grid_around(problems.rotation(d, seed=3))
    points, shown = at_random_voxels(grid, kunita.uncertainty_map(reg, grid, what))
    pre = reg.posterior.preimage(points)
    arriving = GaussianPoints(pre.points, pre.covariance)
    exact = {
        "fc": lambda: arriving.frobenius, "std": lambda: arriving.std, "radius": lambda: arriving.radius(0.95),
        "jacobian": lambda: np.linalg.det(pre.jacobians), "cov": lambda: maps.packed(np.asarray(pre.covariance)),
    }[what]()  # fmt: skip
    tolerance = {
        "std": maps.STD_TOLERANCE, "radius": 3 * maps.STD_TOLERANCE, "jacobian": maps.DETERMINANT_TOLERANCE,
        "fc": 2 * maps.STD_TOLERANCE * arriving.std.max(), "cov": 2 * maps.STD_TOLERANCE * arriving.std.max(),
    }[what]  # fmt: skip
    assert np.abs(shown - exact).max() < tolerance


def test_the_pre_image_arrives_where_it_should_with_that_covariance():
    """Two routes: back and then forward through `predict`."""
    reg = problems.registered(3)
    points = np.random.default_rng(1).uniform(0, 60, (20, 3))
    pre = reg.posterior.preimage(points)
    forward = reg.posterior.predict(pre.points)
    assert np.allclose(forward.mean, points, atol=1e-5)
    assert np.allclose(forward.covariance, pre.covariance, atol=1e-9)
    assert np.allclose(reg.posterior.jacobian(pre.points), pre.jacobians, atol=1e-9)
    assert np.allclose(reg.posterior.inverse(points).covariance, pre.carried_back, atol=1e-9)
    assert np.allclose(reg.posterior.move(pre.points), forward.mean, atol=1e-12)
    assert np.allclose(reg.posterior.move_back(points), pre.points, atol=1e-12)


def test_the_affine_part_alone_is_the_alignment():
    reg = problems.registered(3)
    points = np.random.default_rng(2).uniform(0, 60, (5, 3))
    aligned = np.asarray(reg.posterior.alignment(points)) + reg.posterior.origin
    affine = reg.posterior.affine
    assert np.allclose(points @ affine[:3, :3].T + affine[:3, 3], aligned, atol=1e-10)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("d", [2, 3])
def test_the_radius_from_invariants_is_that_from_the_principal_axes(d, dtype):
    """Any shape of an ellipsoid, needles and discs included, and no uncertainty at all."""
    rng = np.random.default_rng(0)
    roots = rng.normal(size=(500, d, d)) * 10.0 ** rng.uniform(-3, 1, (500, 1, d))
    covariances = np.concatenate(
        [roots @ roots.swapaxes(1, 2), np.zeros((1, d, d)), np.eye(d)[None]]
    )
    radius = maps.summarise("radius", maps.packed(covariances).astype(dtype))
    assert radius.dtype == dtype
    assert np.allclose(radius, ball_radius(covariances, 0.95), rtol=2e-4)


def test_packing_is_undone_by_unpacking_and_follows_the_order_of_nifti():
    symmetric = np.array([[1.0, 2.0, 4.0], [2.0, 3.0, 5.0], [4.0, 5.0, 6.0]])
    assert maps.packed(symmetric).tolist() == [1, 2, 3, 4, 5, 6]  # xx, yx, yy, zx, zy, zz
    assert np.array_equal(maps.unpacked(maps.packed(symmetric)), symmetric)


def test_the_field_is_computed_once_for_all_maps():
    reg = problems.registered(3)
    found = maps.maps(reg, problems.grid_around(np.eye(3)))
    assert found.field.good
    assert found.least_jacobian > 0
    (slab, *_) = slabs(found.grid)
    components = [found.component(slab, k) for k in range(6)]
    assert np.allclose(np.stack(components, axis=-1), found.on(slab, "cov"))


@pytest.mark.parametrize("d", [2, 3])
def test_the_accuracy_that_is_reported_is_true_at_other_voxels(d):
    """Direct evaluation in double precision, at voxels that the maps never saw, landmarks' own
    included."""
    reg, grid = problems.registered(d), problems.grid_around(problems.rotation(d, seed=3))
    found = maps.maps(reg, grid)
    index = np.random.default_rng(9).integers(0, grid.shape, (300, d))
    landmarks = np.rint(grid.index(reg.fixed.points)).astype(int)
    index = np.concatenate([index, np.clip(landmarks, 0, np.array(grid.shape) - 1)])
    lattice = tuple(np.arange(n, dtype=float) for n in grid.shape)
    pre = reg.posterior.preimage(grid.world(index))
    missed = np.linalg.norm(found.pull_back.origins(lattice)[tuple(index.T)] - pre.points, axis=1)
    fc = GaussianPoints(pre.points, pre.covariance).frobenius
    relative = np.abs(found.on(lattice, "fc")[tuple(index.T)] / fc - 1)
    assert found.accuracy.kept
    assert missed.max() < min(
        maps.PROMISED_MEAN, 3 * found.accuracy.mean_error_mm
    )  # other voxels: not the same maximum
    assert relative.max() < min(maps.PROMISED_FC, 3 * found.accuracy.fc_relative_error)


def test_single_precision_is_used_where_it_is_good_enough_and_only_there():
    reg, grid = problems.registered(2), problems.grid_around(np.eye(2))
    assert (
        maps.maps(reg, grid).accuracy.precision == "float64"
    )  # a few nodes: not worth another program
    always = maps.MapOptions(worth_single=0)
    assert maps.maps(reg, grid, options=always).accuracy.precision == "float32"
    strict = maps.MapOptions(worth_single=0, single_share=1e-5)
    precise = maps.maps(reg, grid, options=strict)
    assert precise.accuracy.precision == "float64"
    assert precise.field.values.dtype == np.float64


def test_maps_that_could_not_be_made_exact_say_so():
    few = maps.MapOptions(most_nodes=500)
    grid = problems.grid_around(np.eye(3))
    with pytest.warns(kunita.KunitaWarning, match="varies faster than could be computed"):
        kunita.uncertainty_map(problems.registered(3), grid, options=few)


def test_a_map_that_does_not_exist_and_a_grid_of_another_dimension_are_refused():
    reg = problems.registered(3)
    with pytest.raises(ArgumentError, match="what: expected one of fc, std"):
        kunita.uncertainty_map(reg, problems.grid_around(np.eye(3)), "entropy")
    with pytest.raises(ArgumentError, match="expected a 3-D grid"):
        kunita.uncertainty_map(reg, problems.grid_around(np.eye(2)))
