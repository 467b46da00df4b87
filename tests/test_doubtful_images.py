"""Pairs of images that must not be registered confidently: a warning, or one line that refuses."""

import dataclasses
import re
import warnings

import numpy as np
import pytest
from scipy import ndimage

import kunita
from kunita.errors import ArgumentError, ImageError, KunitaWarning
from kunita.outputs.summary import image_numbers
from kunita.phantoms.textures import TextureOptions, texture_pair

SIZE = 48
OPTIONS = TextureOptions(size=SIZE, amplitude=2.0, length_scale=14.0)
KERNEL = kunita.Gaussian(length_scale=14.0, amplitude=2.0)
X, Y = np.indices((SIZE, SIZE))


def plane(values):
    return kunita.Image(np.ascontiguousarray(values, dtype=float), np.eye(3))


@pytest.fixture(scope="module")
def pair():
    return texture_pair(OPTIONS, seed=4)


def registered(moving, fixed, **options):
    """With remarks in the record alone."""
    chosen = {"kernel": KERNEL, "init": np.eye(3), **options}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KunitaWarning)
        return kunita.register(moving_image=moving, fixed_image=fixed, **chosen)


def is_warned_of(reg):
    return any("register with landmarks instead" in remark for remark in reg.warnings)


# ------------------------------------------------------------------------------------- related?


@pytest.mark.parametrize("metric", ["ssd", "lncc", "both"])
def test_related_images_are_not_warned_of_whatever_the_metric(pair, metric):
    reg = registered(pair.moving, pair.fixed, metric=metric)
    assert not is_warned_of(reg)
    assert reg.images.relation.after > 0.9


@pytest.mark.parametrize("metric", ["ssd", "lncc"])
def test_inverted_contrast_is_warned_of(pair, metric):
    negative = plane(-np.asarray(pair.moving.data))
    assert is_warned_of(registered(negative, pair.fixed, metric=metric))


def test_a_mirrored_image_is_warned_of_even_where_the_alignment_is_searched(pair):
    """In images of 48 pixels a mirror may be chance; that they are not related is still said."""
    small = plane(np.asarray(pair.moving.data)[::-1])
    assert is_warned_of(registered(small, pair.fixed, init=None))
    larger = texture_pair(dataclasses.replace(OPTIONS, size=64), seed=4)
    mirrored = plane(np.asarray(larger.moving.data)[::-1])
    reg = registered(mirrored, larger.fixed, init=None)
    assert not reg.images.relation.is_found
    [remark] = [remark for remark in reg.warnings if "mirrored" in remark]
    assert "the first axis of the moving image reversed" in remark


def test_another_object_is_warned_of_within_a_small_mask_too(pair):
    other = texture_pair(OPTIONS, seed=8).moving
    mask = np.zeros((SIZE, SIZE))
    mask[12:36, 12:36] = 1
    assert is_warned_of(registered(other, pair.fixed, moving_mask=plane(mask)))
    assert not is_warned_of(registered(pair.moving, pair.fixed, moving_mask=plane(mask)))


def test_the_relation_is_saved_and_told(pair, tmp_path):
    reg = registered(plane(-np.asarray(pair.moving.data)), pair.fixed)
    path = tmp_path / "registration.h5"
    kunita.save(reg, path)
    loaded = kunita.load(path)
    assert loaded.images.relation == reg.images.relation
    assert is_warned_of(loaded)
    assert "register with landmarks instead" in reg.summary()
    told = image_numbers(reg)["relation"]
    assert told["found"] is False
    assert told["after"] == reg.images.relation.after


def turned_by(angle, shift):
    matrix = np.eye(3)
    matrix[:2, :2] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    middle = np.full(2, (SIZE - 1) / 2)
    matrix[:2, 2] = middle - matrix[:2, :2] @ middle + shift
    return matrix


def as_seen_from(image, matrix):
    """The moving image that a linear map from moving to fixed points takes to this one."""
    data = np.asarray(image.data)
    offset = matrix[:2, 2]
    return plane(ndimage.affine_transform(data, matrix[:2, :2], offset, order=3, mode="mirror"))


def test_an_init_that_points_the_wrong_way_is_named(pair):
    matrix = turned_by(np.deg2rad(12), np.array([5.0, -4.0]))
    moving = as_seen_from(pair.moving, matrix)
    right = registered(moving, pair.fixed, init=matrix)
    assert not any("init" in remark for remark in right.warnings)
    assert image_numbers(right)["relation"]["init_inverted"] is False
    wrong = registered(moving, pair.fixed, init=np.linalg.inv(matrix))
    [remark] = [remark for remark in wrong.warnings if "point the wrong way" in remark]
    assert image_numbers(wrong)["relation"]["init_inverted"] is True
    assert "with its inverse" in remark


def test_an_init_that_leads_away_while_its_inverse_does_not_is_refused_as_that(pair):
    shift = np.eye(3)
    shift[:2, 2] = 45.0
    away = kunita.Image(np.asarray(pair.moving.data), shift)
    with pytest.raises(ImageError, match="with the inverse of init 100 % do"):
        registered(away, pair.fixed, init=shift)
    registered(away, pair.fixed, init=np.linalg.inv(shift))


# ------------------------------------------------------------------------------- what is not seen


def test_along_stripes_nothing_moves_and_the_uncertainty_is_the_prior():
    waves = lambda x: np.sin(0.5 * x) + 0.7 * np.sin(0.9 * x) + np.sin(0.2 * x)
    reg = registered(plane(waves(X + 1.0)), plane(waves(X)), metric="ssd")
    found = reg.posterior.predict([[24.0, 24.0]])
    assert any("do not determine 1 of the 3 directions" in remark for remark in reg.warnings)
    np.testing.assert_allclose(found.mean, [[25.0, 24.0]], atol=0.1)
    sd = np.sqrt(np.diag(found.covariance[0]))
    assert sd[0] < 0.2
    assert sd[1] == pytest.approx(2.0, rel=0.1)


# -------------------------------------------------------------------------------------- refusals


def test_the_overlap_counts_the_masks_of_both_sides(pair):
    strip = np.zeros((SIZE, SIZE))
    strip[:8] = 1
    with pytest.raises(ImageError, match="only 17 % of the moving image"):
        registered(pair.moving, pair.fixed, fixed_mask=plane(strip))
    # All of what counts of the moving image lies in the strip.
    reg = registered(
        pair.moving, pair.fixed, moving_mask=plane(strip), fixed_mask=plane(np.roll(strip, 2, 0))
    )
    assert 0.7 < reg.images.overlap < 0.8


def test_structure_outside_the_mask_does_not_count(pair):
    half = np.where(X < SIZE // 2, np.asarray(pair.moving.data), 0.0)
    with pytest.raises(ImageError, match="moving image: all its voxels have the same value"):
        registered(plane(half), pair.fixed, moving_mask=plane(X > SIZE // 2 + 4))


def test_too_few_control_points_that_see_something_are_refused(pair):
    """Two pixels that do not match in any direction: no product of gradients is left."""
    mask = np.zeros((SIZE, SIZE))
    mask[20, 20] = 1
    mask[20, 21] = 1
    blank = np.zeros((SIZE, SIZE))
    blank[40:44, 40:44] = np.arange(16).reshape(4, 4)
    with pytest.raises(ImageError, match="of the control points see structure in both images"):
        registered(pair.moving, plane(blank), moving_mask=plane(mask), metric="ssd")


@pytest.mark.parametrize("count", [2, 5])
def test_volumes_of_a_few_slices_are_refused_in_one_line(count):
    thin = kunita.Image(np.random.default_rng(0).normal(size=(20, 20, count)), np.eye(4))
    with pytest.raises(ImageError, match=f"at least 8 voxels.* found 20×20×{count}"):
        kunita.register(moving_image=thin, fixed_image=thin)


# ---------------------------------------------------------------------------------- wrong minima


def test_a_wrong_minimum_is_warned_of_with_the_place_where_it_is():
    """Large displacements: a part of the image ends on the wrong blobs, and looks ordinary."""
    options = TextureOptions(amplitude=9.0, length_scale=30.0)
    large = texture_pair(options, seed=139)
    kernel = kunita.Gaussian(length_scale=30.0, amplitude=9.0)
    reg = registered(large.moving, large.fixed, kernel=kernel, metric="ssd")
    remark = next(one for one in reg.warnings if "do not match" in one)
    said = np.array([float(along) for along in re.search(r"\((.*?)\)", remark)[1].split(",")])
    around = said + np.random.default_rng(0).normal(scale=4.0, size=(50, 2))
    inside = np.clip(around, 0, 127)
    errors = np.linalg.norm(reg.posterior.move(inside) - large.truth(inside), axis=1)
    elsewhere = np.random.default_rng(1).uniform(8, 120, size=(200, 2))
    usual = np.linalg.norm(reg.posterior.move(elsewhere) - large.truth(elsewhere), axis=1)
    assert np.median(usual) < 0.3
    assert np.median(errors) > 2


# ---------------------------------------------------------------------------------- background


def test_an_empty_background_is_counted_and_warned_of_neither_with_a_mask_nor_without(pair):
    """Regions are alike: without a mask both sides of the outline tell a little more."""
    inside = np.hypot(X - 23.5, Y - 23.5) < 14
    moving = plane(np.where(inside, pair.moving.data, 5.0))
    fixed = plane(np.where(inside, pair.fixed.data, 5.0))
    reg = registered(moving, fixed, metric="ssd")
    assert reg.images.background > 0.4
    masked = registered(moving, fixed, metric="ssd", moving_mask=plane(inside))
    assert masked.images.background < 0.05
    assert reg.warnings == masked.warnings == ()
    points = 23.5 + np.random.default_rng(0).uniform(-8, 8, size=(40, 2))
    radius = reg.posterior.predict(points).radius(0.95)
    of_masked = masked.posterior.predict(points).radius(0.95)
    assert 0.5 < np.median(radius / of_masked) < 1.1


def test_textures_have_no_background(pair):
    assert registered(pair.moving, pair.fixed).images.background < 0.01


def test_images_in_the_place_of_landmarks_are_told_where_to_go(pair):
    with pytest.raises(ArgumentError, match="register\\(moving_image=…, fixed_image=…\\)"):
        kunita.register(pair.moving, pair.fixed)
