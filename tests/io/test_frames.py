"""Frames: the one place where an axis changes its sign."""

import numpy as np
import pytest

from kunita.errors import ArgumentError
from kunita.io.frames import Frame, as_frame, flip_affine, flip_covariances, flip_map, flip_points


def test_lps_changes_x_and_y_and_with_them_the_covariances_of_each_with_z():
    assert flip_points(np.array([1.0, 2.0, 3.0]), Frame.LPS).tolist() == [-1, -2, 3]
    symmetric = np.array([[1.0, 2.0, 3.0], [2.0, 4.0, 5.0], [3.0, 5.0, 6.0]])
    assert flip_covariances(symmetric, Frame.LPS).tolist() == [[1, 2, -3], [2, 4, -5], [-3, -5, 6]]


@pytest.mark.parametrize("frame", Frame)
def test_a_flip_is_its_own_inverse(frame):
    d, rng = frame.dimension, np.random.default_rng(0)
    for flip, value in (
        (flip_points, rng.normal(size=(5, d))),
        (flip_covariances, rng.normal(size=(5, d, d))),
        (flip_affine, rng.normal(size=(d + 1, d + 1))),
        (flip_map, rng.normal(size=(d + 1, d + 1))),
    ):
        assert np.array_equal(flip(flip(value, frame), frame), value)


def test_flipped_draws_have_the_flipped_covariance():
    root = np.random.default_rng(0).normal(size=(3, 3))
    draws = np.random.default_rng(1).normal(size=(1000, 3)) @ root.T
    assert np.allclose(
        np.cov(flip_points(draws, Frame.LPS).T), flip_covariances(np.cov(draws.T), Frame.LPS)
    )


def test_a_flipped_map_maps_flipped_points():
    affine, x = np.random.default_rng(0).normal(size=(4, 4)), np.array([1.0, -2.0, 0.5])
    affine[3] = [0, 0, 0, 1]
    there = affine[:3, :3] @ x + affine[:3, 3]
    flipped = flip_map(affine, Frame.LPS)
    assert np.allclose(
        flipped[:3, :3] @ flip_points(x, Frame.LPS) + flipped[:3, 3], flip_points(there, Frame.LPS)
    )


def test_names_of_frames_are_read_in_any_case_and_others_refused():
    assert as_frame("lps") is Frame.LPS
    assert as_frame(None) is None
    with pytest.raises(ArgumentError, match="RAS, LPS or IMAGE"):
        as_frame("RAI")
