"""A wrong frame shows where landmarks and image meet."""

import numpy as np
import pytest

import kunita
from kunita.errors import LandmarkError
from kunita.io.frame_check import check_inside
from kunita.io.frames import Frame, flip_points

GRID = kunita.Grid((20, 18, 16), np.array([[-3.0, 0, 0, 70], [0, 3, 0, 30], [0, 0, 3, -20], [0, 0, 0, 1.0]]))
INSIDE = GRID.world(np.random.default_rng(0).uniform(1, 14, (8, 3)))


def remark(points, frame=Frame.RAS, grid=GRID):
    return check_inside(kunita.Landmarks(points, [f"p{i}" for i in range(len(points))]), grid, "fixed", "us.nii", frame)


def test_landmarks_inside_are_no_cause_for_a_remark():
    assert remark(INSIDE) is None
    assert remark(GRID.world(np.array([[0.0, 0, 0], [19, 17, 15]]))) is None


def test_those_outside_are_named_with_their_distance():
    points = INSIDE.copy()
    points[2] = GRID.world(np.array([5.0, 6.0, 15.5])) + [0, 0, 7.25]
    assert remark(points) == "fixed: 1 of 8 landmarks lie outside us.nii: p2 by 7.2 mm"


def test_many_outside_are_counted_and_five_of_them_named():
    points = np.concatenate([INSIDE[:1], INSIDE + [0, 0, 500.0]])
    said = remark(points)
    assert "8 of 9" in said
    assert "and 3 more" in said
    assert said.count(" by ") == 5


@pytest.mark.parametrize(("read_as", "true"), [(Frame.RAS, "LPS"), (Frame.LPS, "RAS")])
def test_a_flip_that_would_bring_most_inside_is_told(read_as, true):
    with pytest.raises(LandmarkError, match=f"look like {true}.*--fixed-frame {true}"):
        remark(flip_points(INSIDE, Frame.LPS), read_as)


def test_a_few_outside_are_never_taken_for_a_flip():
    points = INSIDE.copy()
    points[:4] = flip_points(points[:4], Frame.LPS)
    assert "4 of 8" in remark(points)


def test_dimensions_must_agree():
    with pytest.raises(LandmarkError, match="landmarks are 2-D, the image us.nii is 3-D"):
        remark(INSIDE[:, :2])


def test_in_two_dimensions_nothing_is_flipped():
    picture = kunita.Grid((40, 30), np.eye(3))
    assert "3 of 3" in remark(-np.array([[5.0, 5], [9, 9], [20, 20]]), Frame.IMAGE, picture)
