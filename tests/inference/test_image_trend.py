"""Directions of the alignment that images determine."""

import numpy as np
import pytest

from kunita.errors import ImageError
from kunita.inference.image_search import Marks
from kunita.inference.image_trend import seen_trend
from kunita.inference.trend import Alignment, generators
from kunita.observations.image_pair import ImagePair, ImageSide
from kunita.phantoms.textures import texture

SIZE = 48
MIDDLE = np.full(2, (SIZE - 1) / 2)
X, Y = np.indices((SIZE, SIZE))


def no_marks():
    none = np.zeros((0, 2))
    return Marks(none, none, np.zeros((0, 2, 2)))


def one_mark(precision):
    """A landmark away from the middle, known as its precision says."""
    return Marks(np.array([[10.0, 14.0]]), np.zeros((1, 2)), np.array([precision]))


def stripes(degrees, noise=0.0, phase=0.0):
    along = np.cos(np.deg2rad(degrees)) * X + np.sin(np.deg2rad(degrees)) * Y + phase
    waves = np.sin(0.5 * along) + 0.7 * np.sin(0.9 * along + 1) + np.sin(0.2 * along)
    return waves + noise * np.random.default_rng(int(phase)).normal(size=X.shape)


def disc():
    distance = np.hypot(X - MIDDLE[0], Y - MIDDLE[1])
    return 1 / (1 + np.exp(distance - 15))


def seen(moving, fixed, kind, metric="lncc", marks=None):
    whole = np.ones(moving.shape, bool)
    sides = [ImageSide(np.asarray(one, np.float32), np.eye(3), whole) for one in (moving, fixed)]
    pair = ImagePair(*sides, MIDDLE, metric)
    alignment = Alignment(MIDDLE, np.eye(2), np.zeros(2))
    return seen_trend(pair, alignment, kind, marks or no_marks())


@pytest.mark.parametrize("kind", ["none", "translation", "rigid", "similarity", "affine"])
def test_textures_determine_every_direction(kind):
    found = seen(texture(2 * (SIZE,), 0), texture(2 * (SIZE,), 1), kind)
    assert len(found.generators) == len(generators(kind, 2))


@pytest.mark.parametrize("metric", ["ssd", "lncc", "both"])
@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize("degrees", [0, 30])
def test_stripes_leave_the_shift_along_them_open(degrees, noise, metric):
    moving = stripes(degrees, noise)
    fixed = stripes(degrees, noise, phase=1.0)
    found = seen(moving, fixed, "translation", metric)
    assert len(found.generators) == 1
    across = np.array([np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))])
    assert abs(found.generators[0, :, 2] @ across) == pytest.approx(1.0, abs=0.02)
    assert len(seen(moving, fixed, "rigid", metric).generators) == 2


def test_a_disc_leaves_its_rotation_open():
    found = seen(disc(), disc(), "rigid")
    assert len(found.generators) == 2
    assert np.abs(found.generators[:, :, :2]).max() < 0.01


def test_one_image_is_enough_to_leave_a_direction_open():
    striped = stripes(0)
    for moving, fixed in ((texture(2 * (SIZE,), 0), striped), (striped, texture(2 * (SIZE,), 0))):
        assert len(seen(moving, fixed, "translation").generators) == 1


def test_a_landmark_determines_what_images_do_not():
    striped = stripes(0)
    along = np.diag([0.0, 1.0])
    across = np.diag([1.0, 0.0])
    counts = {}
    for name, precision in (("along", along), ("across", across)):
        found = seen(striped, striped, "translation", marks=one_mark(precision))
        counts[name] = len(found.generators)
    assert counts == {"along": 2, "across": 1}


@pytest.mark.parametrize("kind", ["none", "rigid"])
def test_an_image_without_structure_where_it_counts_is_refused(kind):
    flat = np.ones((SIZE, SIZE))
    with pytest.raises(ImageError, match="fixed image: it has no structure"):
        seen(texture(2 * (SIZE,), 0), flat, kind, "ssd")
