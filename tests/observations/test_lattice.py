"""A lattice that all voxels are read by: what it reproduces, adjoints, and pooled information."""

import numpy as np
import pytest

from kunita.observations.lattice import CellInformation, Lattice, LatticeAxis

AFFINE = {
    2: np.array([[0.8, 0.1, 3.0], [-0.1, 1.1, -2.0], [0.0, 0.0, 1.0]]),
    3: np.array([[0.8, 0.1, 0.0, 3.0], [-0.1, 1.1, 0, -2.0], [0, 0, 2.0, 1.0], [0, 0, 0, 1.0]]),
}
SHAPES = {2: (30, 24), 3: (16, 14, 12)}


def made_lattice(d, step=5.0, cells=3):
    axes = tuple(LatticeAxis.covering(0.0, n - 1.0, step, cells) for n in SHAPES[d])
    return Lattice(axes, AFFINE[d])


def voxel_view(lattice, d, stride=1):
    return lattice.at([np.arange(0, n, stride).astype(float) for n in SHAPES[d]])


@pytest.mark.parametrize("d", [2, 3])
def test_affine_maps_of_the_nodes_move_every_voxel_alike(d):
    lattice = made_lattice(d)
    view = voxel_view(lattice, d)
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(d, d))
    shift = rng.normal(size=d)
    moved = lattice.nodes @ matrix.T + shift
    voxels = lattice.world(list(view.places))
    expected = voxels @ matrix.T + shift
    np.testing.assert_allclose(view.spread(moved.T).T, expected, atol=1e-4)


@pytest.mark.parametrize("d", [2, 3])
def test_gather_is_the_adjoint_of_spread(d):
    lattice = made_lattice(d)
    view = voxel_view(lattice, d, stride=2)
    rng = np.random.default_rng(0)
    u = rng.normal(size=(2, lattice.num_nodes))
    f = rng.normal(size=(2, int(np.prod(view.shape))))
    there = np.sum(view.spread(u) * f)
    back = np.sum(u * view.gather(f))
    np.testing.assert_allclose(there, back, rtol=1e-4)


def smooth_fields(lattice, count, length, seed=0):
    """Displacements of the nodes that vary over a length, as the prior's do."""
    nodes = lattice.nodes
    squared = np.sum((nodes[:, None] - nodes[None]) ** 2, axis=-1)
    kernel = np.exp(-squared / (2 * length**2)) + 1e-8 * np.eye(len(nodes))
    root = np.linalg.cholesky(kernel)
    d = nodes.shape[1]
    white = np.random.default_rng(seed).normal(size=(count, d, len(nodes)))
    return (white @ root.T).astype(np.float32)


@pytest.mark.parametrize("d", [2, 3])
def test_pooled_information_agrees_with_the_sum_over_voxels(d):
    lattice = made_lattice(d, cells=3 if d == 2 else 2)
    view = voxel_view(lattice, d)
    rng = np.random.default_rng(1)
    count = int(np.prod(view.shape))
    slopes = rng.normal(size=(count, d)) * rng.uniform(0.1, 2, size=(count, 1))
    blocks = slopes[:, :, None] * slopes[:, None, :]
    pooled = view.pool(blocks.reshape(count, -1).T).reshape(d, d, -1).astype(np.float32)
    information = CellInformation(lattice, pooled)
    # Twice the distance of the nodes: the shortest length scale that a lattice is made for.
    fields = smooth_fields(lattice, 6, length=10.0)
    spread = view.spread(fields.reshape(6 * d, -1)).reshape(6, d, -1)
    along = np.einsum("cdk,kd->ck", spread, slopes)
    expected = np.sum(along**2, axis=1)
    found = np.sum(fields * information.product(fields), axis=(1, 2))
    # Pooling takes the square of a displacement for linear within a cell.
    np.testing.assert_allclose(found, expected, rtol=0.03)
    np.testing.assert_allclose(pooled.sum(axis=-1), blocks.sum(axis=0), rtol=1e-3, atol=1e-2)


def test_forces_are_drawn_with_the_information_as_covariance():
    lattice = made_lattice(2, step=12.0)
    cells = int(np.prod([len(axis.cells) for axis in lattice.axes]))
    rng = np.random.default_rng(0)
    slopes = rng.normal(size=(cells, 2))
    blocks = slopes[:, :, None] * slopes[:, None, :]
    pooled = np.ascontiguousarray(np.moveaxis(blocks, 0, -1), np.float32)
    information = CellInformation(lattice, pooled)
    size = 2 * lattice.num_nodes
    units = np.eye(size, dtype=np.float32).reshape(size, 2, -1)
    expected = information.product(units).reshape(size, size)
    drawn = information.draw(rng, 4000).reshape(4000, size)
    found = drawn.T @ drawn / len(drawn)
    error = np.sqrt(2 / len(drawn)) * np.abs(expected).max()
    assert np.abs(found - expected).max() < 4 * error


def test_coarse_nodes_lie_about_as_far_apart_as_asked():
    lattice = made_lattice(2, step=2.0)
    chosen = lattice.nodes[lattice.subset(8.0)]
    gaps = np.linalg.norm(chosen[:, None] - chosen[None], axis=-1)
    nearest = np.sort(gaps, axis=1)[:, 1]
    assert nearest.min() > 6.0
    assert nearest.max() < 10.0
