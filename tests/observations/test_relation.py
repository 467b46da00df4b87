"""Whether intensities are related: laws of the correlation of gradients."""

import numpy as np
import pytest
from scipy import special

from kunita.observations.image_pair import ImagePair, ImageSide
from kunita.observations.relation import LEAST_AFTER, LEAST_BEFORE, Arrivals, Relation, relation
from kunita.phantoms.textures import texture

SIZE = 48


def side(values, mask=None):
    counts = np.ones(values.shape, bool) if mask is None else mask
    return ImageSide(np.asarray(values, np.float32), np.eye(3), counts)


def related(moving, fixed, mask=None, metric="ssd", linear=None):
    """Without a flow: the nodes arrive where a linear map about the origin takes them."""
    pair = ImagePair(side(moving, mask), side(fixed), np.zeros(2), metric)
    lattice = pair.lattice(8.0)
    matrix = np.eye(2) if linear is None else linear
    arrived = lattice.nodes @ matrix.T
    jacobians = np.broadcast_to(matrix, (len(arrived), 2, 2))
    nodes = Arrivals(arrived, jacobians)
    return relation(pair, lattice, nodes, nodes)


def test_an_image_is_related_to_itself_and_inversely_to_its_negative():
    image = texture(2 * (SIZE,), 0)
    # To the rounding of single precision, and of splines that are read between mirrored borders.
    assert related(image, image).after == pytest.approx(1.0, abs=0.02)
    assert related(-image, image).after == pytest.approx(-1.0, abs=0.02)
    assert related(image, image).before == pytest.approx(1.0, abs=0.02)
    assert related(image, image).is_found
    assert not related(-image, image).is_found


def test_units_of_the_intensities_and_the_metric_do_not_matter():
    moving = texture(2 * (SIZE,), 0) + 0.2 * texture(2 * (SIZE,), 1)
    fixed = texture(2 * (SIZE,), 0)
    plain = related(moving, fixed)
    scaled = related(300 * moving + 1000, fixed, metric="lncc")
    assert scaled.before == pytest.approx(plain.before, abs=1e-3)
    assert scaled.after == pytest.approx(plain.after, abs=1e-3)


def test_gradients_are_carried_along_as_covectors():
    """An image that is stretched is related to the one it was made from, if the map says so."""
    x, y = np.indices((SIZE, SIZE))
    wave = lambda u, v: np.sin(0.5 * u) + np.cos(0.3 * v) + np.sin(0.2 * (u + v))
    fixed = wave(x, y)
    stretch = np.diag([0.6, 0.9])
    moving = wave(0.6 * x, 0.9 * y)
    assert related(moving, fixed, linear=stretch).after > 0.98
    assert related(moving, fixed).after < 0.5


def test_textures_with_nothing_in_common_are_not_related():
    """Of some 200 independent spots the correlation has a standard error of 0.07."""
    found = related(texture(2 * (SIZE,), 0), texture(2 * (SIZE,), 2))
    assert abs(found.after) < 0.3
    assert not found.is_found


def test_one_outline_with_nothing_in_common_inside_is_no_relation():
    """A bright disc: its outline is most of what the gradients of both images have."""
    size = 96
    away = np.linalg.norm(np.indices((size, size)) - (size - 1) / 2, axis=0)
    inside = special.expit(36 - away)
    disc = lambda content: inside * (6 + content)
    content = texture((size, size), 0)
    fixed = disc(content)
    for others in (-content, content[::-1], texture((size, size), 2)):
        found = related(disc(others), fixed)
        assert found.margin > 0
        assert found.within < 0.5
        assert not found.is_found
    same = related(disc(content), fixed)
    assert same.within > 0.9
    assert same.is_found


def test_only_what_counts_counts():
    """The half of an image that is inverted is masked."""
    image = texture(2 * (SIZE,), 0)
    half = np.indices(image.shape)[0] < SIZE // 2
    changed = np.where(half, image, -image)
    # Away from the border of the mask by the smoothing of the coarse images.
    mask = np.indices(image.shape)[0] < SIZE // 2 - 12
    assert abs(related(changed, image).after) < 0.3
    assert related(changed, image, mask).after > 0.97
    assert related(changed, image, mask).before > 0.9


def test_either_correlation_is_enough():
    assert Relation(LEAST_BEFORE, -1.0).is_found
    assert Relation(-1.0, LEAST_AFTER).is_found
    assert not Relation(LEAST_BEFORE - 0.01, LEAST_AFTER - 0.01).is_found


def test_what_may_be_chance_is_not_enough():
    assert not Relation(0.7, 0.0, chance=0.8).is_found
    assert Relation(0.9, 0.0, chance=0.8).is_found
    image = texture(2 * (SIZE,), 0)
    quarter = np.zeros(image.shape, bool)
    quarter[: SIZE // 2, : SIZE // 2] = True
    # Every fourth voxel is compared, the outermost are not: a quarter is nine of 121 or so.
    whole = related(image, image).chance
    assert related(image, image, quarter).chance == pytest.approx(2 * whole, rel=0.2)


def test_an_image_without_gradients_is_related_to_nothing():
    found = related(np.ones((SIZE, SIZE)), texture(2 * (SIZE,), 0))
    assert found.before == 0.0
    assert found.after == 0.0
