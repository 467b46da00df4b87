"""The convex hull of landmarks, whatever dimension they span."""

import numpy as np
import pytest
from scipy.optimize import nnls

from kunita.outputs.hull import hull_of


def spanning(rank, d, seed=0):
    """Twelve points that span so many dimensions, far from the origin."""
    rng = np.random.default_rng(seed)
    return 100 + rng.normal(size=(12, rank)) @ rng.normal(size=(rank, d)) * 20


def nearest_mixture(corners, point):
    """Distance to the nearest convex combination of the corners, by non-negative least squares."""
    heavy = 1e4
    system = np.vstack([corners.T - point[:, None], np.full(len(corners), heavy)])
    weights, _ = nnls(system, np.append(np.zeros(len(point)), heavy))
    return np.linalg.norm((corners - point).T @ weights / weights.sum())


@pytest.mark.parametrize(("rank", "d"), [(0, 2), (0, 3), (1, 2), (1, 3), (2, 2), (2, 3), (3, 3)])
def test_the_distance_outside_is_that_to_the_nearest_mixture_of_the_points(rank, d):
    corners = spanning(rank, d)
    hull = hull_of(corners)
    rng = np.random.default_rng(1)
    points = np.concatenate([corners.mean(axis=0) + 40 * rng.normal(size=(60, d)), corners])
    assert hull.rank == rank
    expected = [nearest_mixture(corners, point) for point in points]
    np.testing.assert_allclose(
        hull.outside(points), expected, atol=1e-3
    )  # the weights of `nnls` sum to 1 nearly


@pytest.mark.parametrize(("rank", "d"), [(1, 3), (2, 2), (2, 3), (3, 3)])
def test_mixtures_of_the_points_are_inside(rank, d):
    corners = spanning(rank, d)
    shares = np.random.default_rng(2).dirichlet(np.ones(12), 50)
    assert np.all(hull_of(corners).outside(shares @ corners) == 0)


@pytest.mark.parametrize(("rank", "d"), [(1, 3), (2, 2), (2, 3), (3, 3)])
def test_a_lattice_fills_the_hull_evenly_and_stays_inside(rank, d):
    corners = spanning(rank, d)
    hull = hull_of(corners)
    points, spacing = hull.lattice(400)
    assert 300 < len(points) <= 400
    assert np.all(hull.outside(points) == 0)
    mixtures = np.random.default_rng(3).dirichlet(np.ones(12), 200) @ corners
    distances = np.linalg.norm(mixtures[:, None] - points, axis=2).min(axis=1)
    assert (
        distances.max() < 1.5 * spacing * np.sqrt(rank) / 2 + spacing / 2
    )  # half a cell's diagonal, more at a border


def test_a_hull_that_is_nearly_flat_has_a_lattice_too():
    corners = spanning(2, 3)
    corners[0] += 0.01
    points, _ = hull_of(corners).lattice(400)
    assert hull_of(corners).rank == 3
    assert 200 < len(points) <= 400


def test_points_in_one_place_are_their_own_lattice():
    points, spacing = hull_of(spanning(0, 3)).lattice(400)
    np.testing.assert_allclose(points, [[100.0, 100.0, 100.0]])
    assert spacing == 0
