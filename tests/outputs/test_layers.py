"""What there is to look at: the middle of a label is where it is."""

import numpy as np

from kunita.data.image import Image
from kunita.outputs.layers import Layers

AFFINE = np.array(
    [[0.0, 2.0, 0.0, 5.0], [-1.5, 0.0, 0.0, -7.0], [0.0, 0.0, 3.0, 1.0], [0.0, 0.0, 0.0, 1.0]]
)


def test_the_middle_of_a_label_is_the_mean_of_its_voxels_in_the_world():
    rng = np.random.default_rng(0)
    probability = Image(rng.uniform(size=(6, 7, 8)), AFFINE)
    there = np.argwhere(probability.data >= 0.5)
    np.testing.assert_allclose(
        Layers(probability=probability).inside, probability.grid.world(there.mean(axis=0))
    )


def test_several_labels_are_one_region():
    data = np.zeros((4, 4, 4, 2))
    data[1, 1, 1, 0] = data[3, 1, 1, 1] = 0.9
    layers = Layers(probability=Image(data, AFFINE, channels=True))
    assert layers.any_label.shape == (4, 4, 4)
    np.testing.assert_allclose(
        layers.inside, layers.probability.grid.world(np.array([2.0, 1.0, 1.0]))
    )


def test_no_label_is_nowhere():
    assert Layers().inside is None
    assert Layers(probability=Image(np.full((3, 3, 3), 0.2), AFFINE)).inside is None
