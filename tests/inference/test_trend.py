"""Alignments."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from kunita.inference import trend
from problems import rotation

RNG = np.random.default_rng(0)
KINDS = ("translation", "rigid", "similarity", "affine")


@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_procrustes_recovers_an_exact_alignment(kind, d):
    x = RNG.normal(size=(8, d)) * 20 + 100
    matrix = {
        "translation": np.eye(d),
        "rigid": rotation(d),
        "similarity": 1.3 * rotation(d),
        "affine": rotation(d) @ np.diag([1.2, 0.8, 1.1][:d]),
    }[kind]
    y = x @ matrix.T + np.arange(d)
    found = trend.procrustes(kind, x, y, np.ones(8))
    np.testing.assert_allclose(
        found(x), y, atol=1e-3
    )  # the tie-break of undetermined rotations costs 1e-6 rad
    np.testing.assert_allclose(found.inverse(jnp.asarray(y)), x, atol=1e-3)


def test_rigid_procrustes_agrees_with_scipy():
    x, y = RNG.normal(size=(6, 3)), RNG.normal(size=(6, 3))
    weights = RNG.uniform(0.5, 2, 6)
    found = trend.procrustes("rigid", x, y, weights)
    w = weights / weights.sum()
    expected, _ = Rotation.align_vectors(y - w @ y, x - w @ x, weights=w)
    np.testing.assert_allclose(found.matrix, expected.as_matrix(), atol=1e-5)


@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_the_basis_is_the_derivative_of_the_move(kind, d):
    x = RNG.normal(size=(7, d)) * 5
    free, open_directions = trend.determined_trend(kind, x)
    assert open_directions == 0
    start = trend.Alignment(np.zeros(d), np.eye(d), np.zeros(d))
    h = 1e-4
    for b, column in enumerate(np.moveaxis(np.asarray(free.basis(x)), 2, 0)):
        beta = h * np.eye(len(free.generators))[b]
        moved = (free.move(start, beta)(x) - free.move(start, -beta)(x)) / (2 * h)
        np.testing.assert_allclose(moved, column, atol=1e-6)


def test_finite_moves_of_a_rigid_trend_are_rotations():
    free, _ = trend.determined_trend("rigid", RNG.normal(size=(7, 3)))
    moved = free.move(trend.Alignment(np.zeros(3), np.eye(3), np.zeros(3)), RNG.normal(size=6))
    np.testing.assert_allclose(moved.matrix @ moved.matrix.T, np.eye(3), atol=1e-12)
    assert np.linalg.det(moved.matrix) == pytest.approx(1)


@pytest.mark.parametrize(
    ("kind", "points", "expected"),
    [
        ("rigid", np.outer(np.arange(5.0) - 2, [1, 2, 3]), 1),  # collinear: the turn about the line
        ("rigid", np.zeros((1, 3)), 3),  # one point: every turn
        ("rigid", np.zeros((1, 2)), 1),
        (
            "affine",
            np.c_[RNG.normal(size=(6, 2)), np.zeros(6)],
            3,
        ),  # coplanar: what leaves the plane
        ("similarity", np.zeros((1, 2)), 2),
        (
            "rigid",
            np.c_[RNG.normal(size=(6, 2)), np.zeros(6)],
            0,
        ),  # coplanar points do fix a rotation
    ],
)
def test_directions_that_the_points_leave_open_are_not_fitted(kind, points, expected):
    free, open_directions = trend.determined_trend(kind, points)
    assert open_directions == expected
    basis = np.asarray(free.basis(points)).reshape(points.size, -1)
    assert np.linalg.matrix_rank(basis) == basis.shape[1]


@pytest.mark.parametrize("d", [2, 3])
def test_a_mirrored_set_is_seen_and_a_turned_or_noisy_flat_one_is_not(d):
    x = RNG.normal(size=(10, d)) * 20
    turned = x @ rotation(d, seed=1).T + RNG.normal(size=x.shape)
    for scale in (0.01, 0.2, 1.0, 4.0, 100.0):
        assert trend.looks_mirrored(x, scale * turned * np.r_[-1, np.ones(d - 1)])
        assert not trend.looks_mirrored(x, scale * turned)
    flat = x * np.r_[np.ones(d - 1), 0]
    assert not trend.looks_mirrored(flat, flat + RNG.normal(size=x.shape))
