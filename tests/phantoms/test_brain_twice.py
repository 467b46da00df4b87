"""Two MRIs of one head: the truth takes the one to the other, and nothing else is common to them."""

import functools

import numpy as np
import pytest
from scipy import ndimage

from kunita.data.image import Grid
from kunita.errors import ArgumentError
from kunita.phantoms import brain
from kunita.phantoms.brain_shift import Deformation
from kunita.phantoms.brain_twice import BrainTwice, brain_twice, second_mri

SHIFTED = np.zeros((4, 4))
SHIFTED[:3, 3] = (-80.0, -110.0, -75.0)


@functools.cache
def case() -> BrainTwice:
    return brain_twice(0, spacing=4.0)


def seen_at(image, points):
    """The intensities of an image at world points."""
    index = image.grid.index(points).T
    return ndimage.map_coordinates(image.data.astype(float), index, order=1, mode="nearest")


def inside_the_skull():
    return brain.nodes(brain.LATTICE)[case().head.dura > 3][::7]


def local_contrast(values, points):
    """Intensities without what changes slowly in space, as the bias field does."""
    basis = np.column_stack([np.ones(len(points)), points / 100, (points / 100) ** 2])
    logarithms = np.log(np.maximum(values, 1))
    return logarithms - basis @ np.linalg.lstsq(basis, logarithms, rcond=None)[0]


def likeness(moving_points, fixed_points):
    """How alike both images are at corresponding points, whatever coils and scanners do."""
    first = local_contrast(seen_at(case().moving_image, moving_points), moving_points)
    second = local_contrast(seen_at(case().fixed_image, fixed_points), moving_points)
    return np.corrcoef(first, second)[0, 1]


def test_the_truth_aligns_the_two_images_and_a_miss_of_a_voxel_does_not():
    points = inside_the_skull()
    true = likeness(points, case().truth.forward(points))
    assert true > 0.85  # voxels of 4 mm are larger than gyri
    for axis in np.eye(3):
        assert likeness(points, case().truth.forward(points) + 4 * axis) < true - 0.1
    assert likeness(points, points) < true - 0.1


def test_the_deformation_is_a_few_millimetres_and_up_to_eight_around_the_tumour():
    points = inside_the_skull()
    flown = np.linalg.norm(case().truth.flow(points) - points, axis=1)
    assert 1.0 < flown.mean() < 5.0
    assert 6.0 < flown.max() < 10.0


def test_without_motion_the_second_scanner_differs_by_scale_bias_and_noise_only():
    """A field of low order in space takes the one to the other but for the noise."""

    none = np.zeros((0, 3))
    at_rest = Deformation(np.zeros(3), none, none, np.zeros(0), np.eye(3), np.zeros(3))
    still = second_mri(case().head, at_rest, case().moving_image.grid, 0)
    points = inside_the_skull()
    first = seen_at(case().moving_image, points)
    ratio = np.log(seen_at(still, points) / first)[first > 300]
    basis = np.column_stack([np.ones(len(points)), points / 100, (points / 100) ** 2])
    smooth = basis[first > 300] @ np.linalg.lstsq(basis[first > 300], ratio, rcond=None)[0]
    assert np.std(smooth) > 0.05  # so that intensities are not comparable as they are
    assert np.std(ratio - smooth) < 0.06  # noise of 3 % and 1.8 %


def test_the_same_key_gives_the_same_image_and_another_one_another():
    coarse = Grid((16, 20, 16), np.diag([10.0, 10.0, 10.0, 1.0]) + SHIFTED)
    made = [second_mri(case().head, case().truth, coarse, key).data for key in (0, 0, 1)]
    np.testing.assert_array_equal(made[0], made[1])
    assert not np.array_equal(made[0], made[2])


@pytest.mark.parametrize("arguments", [{"spacing": 0.1}, {"key": -1}])
def test_what_cannot_be_made_is_refused(arguments):
    with pytest.raises(ArgumentError, match=next(iter(arguments))):
        brain_twice(**arguments)
