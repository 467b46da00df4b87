"""Maps show, at a fixed voxel, what the posterior says of the point that arrives there."""

import numpy as np
import pytest

import kunita
import problems
from kunita.errors import ArgumentError
from kunita.gaussians import GaussianPoints, ball_radius
from kunita.outputs import maps
from kunita.outputs.dense import slabs

pytestmark = pytest.mark.grids


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


@pytest.mark.parametrize("d", [2, 3])
def test_closed_form_eigenvalues_are_those_of_a_general_routine(d):
    rng = np.random.default_rng(0)
    roots = rng.normal(size=(500, d, d)) * 10.0 ** rng.uniform(-3, 1, (500, 1, d))
    covariances = np.concatenate([roots @ roots.swapaxes(1, 2), np.zeros((1, d, d)), np.eye(d)[None]])
    found = maps.principal_variances(maps.packed(covariances))
    exact = np.linalg.eigvalsh(covariances)
    assert np.allclose(found, exact, atol=1e-7 * exact.max(axis=1, keepdims=True))
    radius = maps.summarise("radius", maps.packed(covariances))
    assert np.allclose(radius, ball_radius(covariances, 0.95), rtol=1e-3)


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


def test_maps_that_could_not_be_made_exact_say_so(monkeypatch):
    monkeypatch.setattr("kunita.outputs.dense.MOST_NODES", 500)
    with pytest.warns(kunita.KunitaWarning, match="varies faster than could be computed"):
        kunita.uncertainty_map(problems.registered(3), problems.grid_around(np.eye(3)))


def test_a_map_that_does_not_exist_and_a_grid_of_another_dimension_are_refused():
    reg = problems.registered(3)
    with pytest.raises(ArgumentError, match="what: expected one of fc, std"):
        kunita.uncertainty_map(reg, problems.grid_around(np.eye(3)), "entropy")
    with pytest.raises(ArgumentError, match="expected a 3-D grid"):
        kunita.uncertainty_map(reg, problems.grid_around(np.eye(2)))
