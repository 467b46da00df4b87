"""What to expect between landmarks: the posterior's own radii, over regions that are where they
should be."""

import numpy as np
import pytest

import kunita
from kunita.outputs.expected import expected_in_hull, expected_in_labels
from kunita.outputs.hull import hull_of
from problems import registered


@pytest.mark.parametrize("d", [2, 3])
def test_median_and_worst_are_those_of_random_points_of_the_hull(d):
    reg = registered(d)
    found = expected_in_hull(reg)
    rng = np.random.default_rng(0)
    marked = reg.moving.points[reg.used]
    box = rng.uniform(marked.min(axis=0), marked.max(axis=0), (6000, d))
    inside = box[hull_of(marked).outside(box) == 0]
    radius = reg.posterior.predict(inside).radius(0.95)
    assert found.median_radius95_mm == pytest.approx(np.median(radius), rel=0.05)
    assert found.worst_radius95_mm >= 0.95 * radius.max()
    assert found.worst_radius95_mm >= reg.posterior.predict(marked).radius(0.95).max() * 0.999


def test_a_label_far_away_is_worse_than_the_hull_and_an_extrapolation():
    reg = registered(3)
    far = reg.moving.points.max(axis=0) + 200
    affine = np.eye(4)
    affine[:3, 3] = far
    labels = kunita.Image(np.ones((4, 4, 4), np.uint8), affine)
    found = expected_in_labels(reg, labels)
    assert found.extrapolating == 1
    assert found.places == 64 + 56  # anywhere, and on the border
    assert found.median_radius95_mm > expected_in_hull(reg).median_radius95_mm


def test_a_label_of_one_voxel_is_that_point():
    reg = registered(3)
    data = np.zeros((5, 5, 5), np.uint8)
    data[2, 3, 1] = 7
    affine = np.diag([2.0, 2.0, 2.0, 1.0])
    affine[:3, 3] = reg.moving.points.mean(axis=0)
    labels = kunita.Image(data, affine)
    found = expected_in_labels(reg, labels)
    radius = reg.posterior.predict(labels.grid.world(np.array([[2.0, 3.0, 1.0]]))).radius(0.95)[0]
    assert found.median_radius95_mm == found.worst_radius95_mm == pytest.approx(radius, rel=1e-6)


def test_the_worst_place_of_a_large_label_is_on_its_border():
    """Far from the landmarks in one corner: hardly any of the voxels that are drawn at random is
    there."""
    reg = registered(3)
    affine = np.eye(4)
    affine[:3, 3] = reg.moving.points.mean(axis=0)
    labels = kunita.Image(np.ones((40, 40, 40), np.uint8), affine)
    corners = labels.grid.world(np.argwhere(np.ones((2, 2, 2))) * 39.0)
    worst = reg.posterior.predict(corners).radius(0.95).max()
    assert expected_in_labels(reg, labels).worst_radius95_mm > 0.93 * worst


def test_no_label_is_nothing_to_expect():
    assert (
        expected_in_labels(registered(3), kunita.Image(np.zeros((3, 3, 3), np.uint8), np.eye(4)))
        is None
    )
