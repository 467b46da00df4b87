"""Volumes of one slice: which way they are stored is seen before they become planes."""

import itertools

import numpy as np
import pytest
import SimpleITK as sitk

import kunita
from kunita.data.image import Image, as_plane
from kunita.data.slices import axis_codes, on_slice, refuse_displaced, refuse_turned
from kunita.errors import ImageError
from kunita.io.image_files.itk_images import affine_of, as_array, as_itk

DATA = np.random.default_rng(0).normal(size=(12, 10, 1)).astype(np.float32)
CODES = {
    "".join(signed)
    for order in itertools.permutations(("RL", "AP", "SI"))
    for signed in itertools.product(*order)
}


def stored(codes, tilt=0.0):
    """A slice whose voxel axes point along letters, turned by an angle in its plane."""
    axes = np.zeros((3, 3))
    for axis, code in enumerate(codes):
        world = next(k for k, pair in enumerate(("RL", "AP", "SI")) if code in pair)
        axes[world, axis] = 1.0 if code in "RAS" else -1.0
    turn = np.array(
        [[np.cos(tilt), -np.sin(tilt), 0], [np.sin(tilt), np.cos(tilt), 0], [0, 0, 1.0]]
    )
    affine = np.eye(4)
    affine[:3, :3] = axes @ turn @ np.diag([1.5, 0.5, 4.0])
    affine[:3, 3] = (20.0, -30.0, 10.0)
    return Image(DATA, affine)


def passes(image, other):
    try:
        refuse_turned(image, other, "moving image", "fixed image")
    except ImageError:
        return False
    return True


def refused(image, other):
    with pytest.raises(ImageError) as refusal:
        refuse_turned(image, other, "moving image", "fixed image")
    assert "\n" not in str(refusal.value)
    return str(refusal.value)


@pytest.mark.parametrize("codes", sorted(CODES))
def test_the_codes_are_those_that_the_axes_point_along(codes):
    assert axis_codes(stored(codes).grid) == codes


def test_slices_pass_if_and_only_if_their_own_axes_point_the_same_way():
    """The way to the next slice is no part of a plane."""
    for first, second in itertools.product(CODES, CODES):
        assert passes(stored(first), stored(second)) == (first[:2] == second[:2])


def test_the_cure_makes_slices_alike():
    """What a refusal names is done, and then the two pass; a mirrored image is what it was."""
    fixed = stored("LIA")
    moving = stored("RSA")
    message = refused(moving, fixed)
    assert "the left and the feet (LI)" in message
    assert "the right and the head (RS)" in message
    assert "SimpleITK.DICOMOrient(image, 'LIA')" in message
    turned = sitk.DICOMOrient(as_itk(moving), "LIA")
    cured = Image(as_array(turned), affine_of(turned))
    assert passes(cured, fixed)
    np.testing.assert_array_equal(as_plane(cured).data, DATA[::-1, ::-1, 0])


def test_slices_of_different_planes_have_another_cure():
    assert "give two slices of the same plane" in refused(stored("RAS"), stored("RSA"))


def test_a_tilted_slice_passes():
    assert passes(stored("LPS", tilt=0.6), stored("LPS"))
    assert passes(stored("LPS", tilt=0.4), stored("LPS", tilt=-0.5))


def test_a_slice_that_begins_elsewhere_in_the_plane_is_refused():
    """By a voxel or more along an axis of its own; another slice thickness is no matter."""
    image = stored("LIA")

    def beside(along, voxels):
        affine = image.affine.copy()
        affine[:3, 3] += voxels * affine[:3, along]
        return Image(DATA, affine)

    for along in (0, 1):
        refuse_displaced(beside(along, 0.5), image, "labels", "moving image")
        with pytest.raises(ImageError, match="labels: expected a slice that begins where"):
            refuse_displaced(beside(along, -3.0), image, "labels", "moving image")
    refuse_displaced(beside(2, 1.0), image, "labels", "moving image")
    refuse_displaced(Image(DATA[:, :, 0], np.eye(3)), image, "labels", "moving image")


def test_what_states_no_orientation_passes():
    plane = Image(DATA[:, :, 0], np.eye(3))
    volume = Image(np.repeat(DATA, 2, axis=2), np.diag([-1.0, 1.0, 1.0, 1.0]))
    bare = Image(DATA, np.eye(4))
    for first, second in ((plane, stored("LAS")), (bare, bare), (volume, bare)):
        assert passes(first, second)


def test_mirrored_slices_are_refused_before_they_are_registered():
    with pytest.raises(ImageError, match="moving image: expected a slice that is stored as"):
        kunita.register(moving_image=stored("RAS"), fixed_image=stored("LAS"))


def test_a_coloured_slice_is_a_coloured_plane():
    colours = Image(np.repeat(DATA[..., None], 3, axis=-1), np.eye(4), channels=True)
    assert as_plane(colours).data.shape == (12, 10, 3)
    assert as_plane(colours).channels


def test_an_oblique_slice_that_is_mirrored_is_refused():
    """Of some orientations two axes have the same letter, so that letters cannot tell."""
    rng = np.random.default_rng(5)
    for _ in range(200):
        turn = np.linalg.qr(rng.normal(size=(3, 3)))[0]
        straight = np.eye(4)
        straight[:3, :3] = turn
        assert passes(Image(DATA, straight), Image(DATA, straight))
        for change in ([1, 0, 2], None):
            mirrored = straight.copy()
            mirrored[:3, :3] = turn[:, change] if change else turn @ np.diag([-1.0, 1.0, 1.0])
            assert not passes(Image(DATA, mirrored), Image(DATA, straight))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_volume_of_one_slice_is_a_plane_along_whichever_axis(axis):
    values = np.arange(20.0).reshape(4, 5)
    spacing = np.array([2.0, 3.0, 4.0])
    volume = kunita.Image(np.expand_dims(values, axis), np.diag([*spacing, 1.0]))
    plane = as_plane(volume)
    np.testing.assert_array_equal(plane.data, values)
    np.testing.assert_array_equal(plane.grid.spacing, np.delete(spacing, axis))
    again = on_slice(plane, volume.grid)
    np.testing.assert_array_equal(again.data, volume.data)
    refuse_turned(volume, volume, "moving image", "fixed image")
    turned = kunita.Image(np.flip(volume.data, (axis + 1) % 3), reversed_along(volume, axis))
    with pytest.raises(ImageError, match="mirrored or turned"):
        refuse_turned(turned, volume, "moving image", "fixed image")


def reversed_along(volume, axis):
    """The affine of the volume stored the other way round along the next axis."""
    other = (axis + 1) % 3
    affine = volume.affine.copy()
    affine[:3, 3] += affine[:3, other] * (volume.grid.shape[other] - 1)
    affine[:3, other] *= -1
    return affine
