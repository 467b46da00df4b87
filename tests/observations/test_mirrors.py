"""Images that are mirrored or upside down: the gradients tell which axes to reverse."""

import numpy as np
import pytest

from kunita.observations.image_pair import ImagePair, ImageSide, Smoothing
from kunita.observations.mirrors import Reversal, best_reversal
from kunita.phantoms.textures import texture

SIZE = 64

FINER = Smoothing(2.0, 0.5)
"""Textures change within fewer pixels than the images that `relation` compares."""


def side(values, affine):
    return ImageSide(np.asarray(values, np.float32), affine, np.ones(values.shape, bool))


def reversal(moving, fixed, affine=None, linear=None, fixed_affine=None):
    """Where a linear map takes the moving image; by default both lie alike."""
    placed = np.eye(3) if affine is None else affine
    of_fixed = placed if fixed_affine is None else fixed_affine
    matrix = np.eye(2) if linear is None else linear
    pair = ImagePair(side(moving, placed), side(fixed, of_fixed), np.zeros(2), "ssd")
    lattice = pair.lattice(8.0)
    level = pair.level(lattice, FINER)
    jacobians = np.broadcast_to(matrix, (lattice.num_nodes, 2, 2))
    return best_reversal(level, level.compare(lattice.nodes @ matrix.T, jacobians), matrix)


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
def test_the_axes_that_were_reversed_are_found(axes):
    image = texture(2 * (SIZE,), 0)
    found = reversal(np.flip(image, axes), image)
    assert found.axes == axes
    assert found.after > 0.9
    assert found.is_far_better


def test_an_image_that_is_not_is_left_in_peace():
    image = texture(2 * (SIZE,), 0)
    found = reversal(image + 0.1 * texture(2 * (SIZE,), 1), image)
    assert found.before > 0.9
    assert not found.is_far_better


def test_a_symmetric_image_is_as_good_either_way():
    image = texture(2 * (SIZE,), 0)
    symmetric = image + image[::-1]
    found = reversal(symmetric, symmetric)
    assert found.after == pytest.approx(found.before, abs=0.02)
    assert not found.is_far_better


def test_a_mirrored_image_may_be_shifted_too():
    image = texture(2 * (SIZE + 12,), 0)
    fixed = image[:SIZE, :SIZE]
    moving = image[:SIZE, 12:][:, ::-1]
    found = reversal(moving, fixed)
    assert found.axes == (1,)
    assert found.is_far_better


TURNED = np.array([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
SHEARED = np.array([[1.0, 0.5, 0.0], [0.0, 1.2, 0.0], [0.0, 0.0, 1.0]])


@pytest.mark.parametrize("affine", [TURNED, SHEARED])
def test_axes_are_those_of_the_voxels_however_these_lie_in_the_world(affine):
    image = texture(2 * (SIZE,), 0)
    found = reversal(image[::-1], image, affine)
    assert found.axes == (0,)
    assert found.after > 0.95


def test_an_alignment_that_turns_the_image_does_not_hide_the_mirror():
    """The moving image lies on its side in the world, and the alignment sets it upright."""
    image = texture(2 * (SIZE,), 0)
    found = reversal(image[::-1], image, TURNED, TURNED[:2, :2].T, np.eye(3))
    assert found.axes == (0,)
    assert found.after > 0.95


def test_what_small_images_have_by_chance_is_not_enough():
    assert Reversal((0,), before=0.2, after=0.6).is_far_better
    assert not Reversal((0,), before=0.2, after=0.6, chance=0.15).is_far_better
    assert Reversal((0,), before=0.2, after=0.8, chance=0.15).is_far_better
