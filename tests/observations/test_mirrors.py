"""Images that are mirrored or upside down: the gradients tell which axes to reverse."""

import numpy as np
import pytest

from kunita.observations.image_pair import ImagePair, ImageSide, Smoothing
from kunita.observations.mirrors import best_reversal
from kunita.phantoms.textures import texture

SIZE = 64


def side(values, affine):
    return ImageSide(np.asarray(values, np.float32), affine, np.ones(values.shape, bool))


def reversal(moving, fixed, affine=None):
    """Where both lie alike."""
    placed = np.eye(3) if affine is None else affine
    pair = ImagePair(side(moving, placed), side(fixed, placed), np.zeros(2), "ssd")
    lattice = pair.lattice(8.0)
    level = pair.level(lattice, Smoothing(2.0, 0.5))
    still = np.broadcast_to(np.eye(2), (lattice.num_nodes, 2, 2))
    return best_reversal(level, level.compare(lattice.nodes, still))


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
def test_the_axes_that_were_reversed_are_found(axes):
    image = texture(SIZE, 0)
    found = reversal(np.flip(image, axes), image)
    assert found.axes == axes
    assert found.after > 0.9
    assert found.is_far_better


def test_an_image_that_is_not_is_left_in_peace():
    image = texture(SIZE, 0)
    found = reversal(image + 0.1 * texture(SIZE, 1), image)
    assert found.before > 0.9
    assert not found.is_far_better


def test_a_symmetric_image_is_as_good_either_way():
    image = texture(SIZE, 0)
    symmetric = image + image[::-1]
    found = reversal(symmetric, symmetric)
    assert found.after == pytest.approx(found.before, abs=0.02)
    assert not found.is_far_better


def test_a_mirrored_image_may_be_shifted_too():
    image = texture(SIZE + 12, 0)
    fixed = image[:SIZE, :SIZE]
    moving = image[:SIZE, 12:][:, ::-1]
    found = reversal(moving, fixed)
    assert found.axes == (1,)
    assert found.is_far_better


def test_axes_are_those_of_the_voxels_however_these_lie_in_the_world():
    turned = np.array([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    image = texture(SIZE, 0)
    found = reversal(image[::-1], image, turned)
    assert found.axes == (0,)
    assert found.is_far_better
