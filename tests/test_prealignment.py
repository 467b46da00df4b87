"""Laws of the pre-alignment: known motions are found again, whatever the frames and the flaws."""

import functools
import warnings

import numpy as np
import pytest
import SimpleITK as sitk

from kunita.data.image import Image
from kunita.errors import ArgumentError, ImageError, KunitaWarning
from kunita.prealignment.align import prealign
from kunita.prealignment.overlap import overlap

RADIUS = 36.0
"""Of the generated object, mm."""


# ------------------------------------------------------------------------------ generated images


def motion(linear, shift):
    """(d + 1, d + 1) x ↦ linear · x + shift."""
    d = len(linear)
    matrix = np.eye(d + 1)
    matrix[:d, :d] = linear
    matrix[:d, d] = shift
    return matrix


def turn(degrees, d=2, plane=(0, 1)):
    a, b = plane
    angle = np.deg2rad(degrees)
    matrix = np.eye(d)
    matrix[[a, b], [a, b]] = np.cos(angle)
    matrix[a, b] = -np.sin(angle)
    matrix[b, a] = np.sin(angle)
    return matrix


def apply(matrix, points):
    return points @ matrix[:-1, :-1].T + matrix[:-1, -1]


def centred(shape, spacing, centre=0.0, axes=None):
    """The affine of a grid about a point."""
    d = len(shape)
    axes = np.eye(d) if axes is None else axes
    steps = axes * np.asarray(spacing)
    middle = (np.array(shape) - 1) / 2
    return motion(steps, centre - steps @ middle)


def object_at(points, seed=3, parts=30):
    """A round object with spots of several sizes inside, about the origin."""
    key = np.random.default_rng(seed)
    d = points.shape[-1]
    directions = key.normal(size=(parts, d))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    places = RADIUS * directions * key.uniform(0.1, 0.9, (parts, 1))
    sizes = RADIUS * key.uniform(0.08, 0.2, parts)
    values = np.exp(-(np.sum((points / RADIUS) ** 2, axis=-1) ** 3))
    for place, size, height in zip(places, sizes, key.uniform(0.3, 1.5, parts), strict=True):
        squared = np.sum((points - place) ** 2, axis=-1)
        values = values + height * np.exp(-squared / (2 * size**2))
    return values


def picture(shape, affine, to_object):
    """An image of the object, for a map from the image's world to the object's."""
    index = np.stack(np.indices(shape), axis=-1)
    return Image(object_at(apply(to_object @ affine, index)), affine)


TRUTH = {
    "translation": motion(np.eye(2), [9.0, -6.0]),
    "rigid": motion(turn(40), [9.0, -6.0]),
    "similarity": motion(0.93 * turn(25), [-4.0, 7.0]),
    "affine": motion(turn(-12) @ [[1.08, 0.05], [0.0, 0.95]], [5.0, 8.0]),
}
"""Motions in 2-D by the kind of alignment that they need, from moving to fixed world."""

TRUTH_3D = {
    "rigid": motion(turn(10, 3, (1, 2)), [9.0, -8.0, 9.0]),
    "affine": motion(1.08 * turn(10, 3, (0, 2)), [3.0, 6.0, -4.0]),
}
"""The same in 3-D: the shift of the first is of 15 mm."""


def pair(truth):
    """A moving and a fixed image; voxels of 1 mm in 2-D, and of 3 mm in 3-D."""
    if len(truth) == 3:
        fixed = picture((96, 88), centred((96, 88), 1.0), np.eye(3))
        moving = picture((92, 100), centred((92, 100), 1.0, [3.0, 2.0]), truth)
        return moving, fixed
    fixed = picture((30, 32, 28), centred((30, 32, 28), 3.0), np.eye(4))
    # Left-handed, as many files are, with voxels that are not cubes.
    axes = np.diag([-1.0, 1.0, 1.0])
    affine = centred((32, 30, 20), [3.0, 3.0, 4.5], 2.0, axes)
    moving = picture((32, 30, 20), affine, truth)
    return moving, fixed


@functools.cache
def aligned(kind, d):
    truth = (TRUTH if d == 2 else TRUTH_3D)[kind]
    return prealign(*pair(truth), kind)


def largest_error(found, truth, image):
    """Over the object that the image shows: its outermost points, which the box surrounds."""
    d = image.grid.dimension
    key = np.random.default_rng(0)
    directions = key.normal(size=(200, d))
    rim = RADIUS * directions / np.linalg.norm(directions, axis=1, keepdims=True)
    points = apply(np.linalg.inv(truth), rim)
    return np.linalg.norm(apply(found, points) - rim, axis=1).max()


def corner_error(found, truth, image):
    """At the corners of the image."""
    ends = np.array(image.grid.shape) - 1
    corners = np.stack(np.meshgrid(*[(0, end) for end in ends]), axis=-1)
    points = image.grid.world(corners.reshape(-1, len(ends)))
    return np.linalg.norm(apply(found, points) - apply(truth, points), axis=1).max()


# -------------------------------------------------------------------------------- known motions


@pytest.mark.parametrize("kind", TRUTH)
def test_a_known_motion_is_found_within_a_voxel_over_the_image(kind):
    moving, _ = pair(TRUTH[kind])
    assert corner_error(aligned(kind, 2).matrix, TRUTH[kind], moving) < 1.0


@pytest.mark.parametrize("kind", TRUTH_3D)
def test_a_known_motion_in_3d_is_found_within_half_a_voxel_over_the_object(kind):
    moving, _ = pair(TRUTH_3D[kind])
    assert largest_error(aligned(kind, 3).matrix, TRUTH_3D[kind], moving) < 1.5


@pytest.mark.parametrize("degrees", [60, -60, 100, 180])
def test_a_large_rotation_is_found(degrees):
    truth = motion(turn(degrees), [5.0, -3.0])
    moving, fixed = pair(truth)
    assert corner_error(prealign(moving, fixed, "rigid").matrix, truth, moving) < 1.0


def test_images_that_change_places_have_inverse_alignments():
    """And neither is magnified: found one way only, both determinants are too large."""
    moving, fixed = pair(TRUTH["affine"])
    back = prealign(fixed, moving, "affine").matrix
    assert corner_error(back, np.linalg.inv(aligned("affine", 2).matrix), fixed) < 0.2
    truth = np.linalg.det(TRUTH["affine"])
    assert np.linalg.det(aligned("affine", 2).matrix) == pytest.approx(truth, rel=0.005)


def test_a_rigid_alignment_is_rigid_and_a_similarity_keeps_angles():
    for d in (2, 3):
        linear = aligned("rigid", d).matrix[:d, :d]
        np.testing.assert_allclose(linear.T @ linear, np.eye(d), atol=1e-10)
        assert np.linalg.det(linear) > 0
    linear = aligned("similarity", 2).matrix[:2, :2]
    scale = np.sqrt(np.linalg.det(linear))
    np.testing.assert_allclose(linear.T @ linear, scale**2 * np.eye(2), atol=1e-10)


def test_no_alignment_is_the_identity_without_a_search():
    flat = Image(np.zeros((5, 6)), np.eye(3))
    found = prealign(flat, flat, "none")
    assert np.array_equal(found.matrix, np.eye(3))
    assert found.num_starts == 0
    assert np.isnan(found.mutual_information)


def test_mutual_information_is_more_after_than_before():
    """A search for a kind that holds another kind's maps explains at least as much."""
    moving, fixed = pair(TRUTH["rigid"])
    shifted = prealign(moving, fixed, "translation")
    assert 0 < shifted.mutual_information < aligned("rigid", 2).mutual_information


# ------------------------------------------------------------------------------------ invariance


def test_the_same_images_give_the_same_matrix_bit_for_bit():
    """On several threads the sums of the metric would depend on which is first."""
    again = prealign(*pair(TRUTH["affine"]), "affine")
    assert np.array_equal(again.matrix, aligned("affine", 2).matrix)
    assert again.mutual_information == aligned("affine", 2).mutual_information


def test_the_global_state_of_simpleitk_is_as_before():
    before = sitk.ProcessObject.GetGlobalDefaultNumberOfThreads()
    sitk.ProcessObject.SetGlobalDefaultNumberOfThreads(3)
    try:
        prealign(*pair(TRUTH["translation"]), "translation")
        assert sitk.ProcessObject.GetGlobalDefaultNumberOfThreads() == 3
    finally:
        sitk.ProcessObject.SetGlobalDefaultNumberOfThreads(before)


def test_a_moved_world_is_undone_by_the_alignment():
    """Seen from a world that R moves, the alignment is A R⁻¹; 0.2 voxel is left to the search."""
    moving, fixed = pair(TRUTH["rigid"])
    moved = motion(turn(-35), [400.0, -250.0])
    found = prealign(Image(moving.data, moved @ moving.affine), fixed, "rigid")
    expected = aligned("rigid", 2).matrix @ np.linalg.inv(moved)
    image = Image(moving.data, moved @ moving.affine)
    assert corner_error(found.matrix, expected, image) < 0.2


def test_the_unit_of_length_does_not_matter():
    moving, fixed = pair(TRUTH["rigid"])
    small = np.diag([1e-3, 1e-3, 1.0])
    scaled = [Image(image.data, small @ image.affine) for image in (moving, fixed)]
    found = prealign(*scaled, "rigid").matrix
    in_mm = np.linalg.inv(small) @ found @ small
    assert corner_error(in_mm, aligned("rigid", 2).matrix, moving) < 0.05


def test_gain_offset_and_inversion_of_intensities_do_not_matter():
    moving, fixed = pair(TRUTH["translation"])
    negative = Image(np.rint(1000 - 400 * moving.data).astype(np.int16), moving.affine)
    found = prealign(negative, fixed, "translation")
    assert corner_error(found.matrix, TRUTH["translation"], moving) < 1.0


def test_a_sheared_image_is_aligned_by_its_world():
    sheared = centred((96, 88), 1.0, 0.0, np.array([[1.0, 0.3], [0.0, 1.0]]))
    fixed = picture((96, 88), sheared, np.eye(3))
    moving, _ = pair(TRUTH["rigid"])
    found = prealign(moving, fixed, "rigid")
    assert corner_error(found.matrix, TRUTH["rigid"], moving) < 1.0


def test_channels_are_averaged():
    moving, fixed = pair(TRUTH["translation"])
    colour = Image(np.stack([moving.data] * 2, axis=-1), moving.affine, channels=True)
    found = prealign(colour, fixed, "translation")
    assert np.array_equal(found.matrix, aligned("translation", 2).matrix)


# -------------------------------------------------------------------------------------- flaws


def test_voxels_that_are_not_finite_do_not_disturb():
    moving, fixed = pair(TRUTH["rigid"])
    data = moving.data.copy()
    data[:6] = np.nan
    data[40, 40] = np.inf
    found = prealign(Image(data, moving.affine), fixed, "rigid")
    assert np.all(np.isfinite(found.matrix))
    assert corner_error(found.matrix, TRUTH["rigid"], moving) < 1.0


def test_images_that_cannot_be_aligned_are_refused():
    fixed = Image(np.random.default_rng(0).normal(size=(20, 20)), np.eye(3))
    flat = Image(np.full((20, 20), 7), np.eye(3))
    nothing = Image(np.full((20, 20), np.nan), np.eye(3))
    slice_ = Image(np.random.default_rng(0).normal(size=(20, 20, 1)), np.eye(4))
    with pytest.raises(ImageError, match="moving image: all its voxels have the same value"):
        prealign(flat, fixed, "rigid")
    with pytest.raises(ImageError, match="fixed image: expected finite voxels, found none"):
        prealign(fixed, nothing, "rigid")
    with pytest.raises(ImageError, match="at least 4 voxels along each axis.* found 20×20×1"):
        prealign(slice_, slice_, "rigid")
    with pytest.raises(ImageError, match="same dimension, found 3-D and 2-D"):
        prealign(slice_, fixed, "rigid")
    with pytest.raises(ArgumentError, match="align"):
        prealign(fixed, fixed, "rigd")


def test_few_voxels_are_enough():
    key = np.random.default_rng(1)
    for shape in ((4, 4), (4, 5, 6)):
        image = Image(key.normal(size=shape), np.eye(len(shape) + 1))
        assert np.all(np.isfinite(prealign(image, image, "affine").matrix))


def test_an_alignment_without_overlap_of_the_masks_warns():
    moving, fixed = pair(TRUTH["translation"])
    left = np.zeros(moving.data.shape)
    left[:10] = 1
    right = np.zeros(fixed.data.shape)
    right[-10:] = 1
    with pytest.warns(KunitaWarning, match="hardly overlap"):
        prealign(
            moving,
            fixed,
            "translation",
            moving_mask=Image(left, moving.affine),
            fixed_mask=Image(right, fixed.affine),
        )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prealign(moving, fixed, "translation")


# ------------------------------------------------------------------------------------- overlap


def test_the_overlap_of_shifted_images_is_what_geometry_says():
    square = Image(np.zeros((10, 20)), np.diag([2.0, 1.0, 1.0]))
    assert overlap(square, square, np.eye(3)) == 1.0
    # By three voxels along one axis and by five along the other.
    shifted = motion(np.eye(2), [6.0, -5.0])
    assert overlap(square, square, shifted) == pytest.approx(7 / 10 * 15 / 20)
    assert overlap(square, square, motion(np.eye(2), [100.0, 0.0])) == 0.0


def test_masks_restrict_the_overlap():
    square = Image(np.zeros((10, 20)), np.eye(3))
    data = np.zeros((10, 20))
    data[4:] = 1
    mask = Image(data, np.eye(3))
    shifted = motion(np.eye(2), [-3.0, 0.0])
    # Rows 4 to 9 arrive at 1 to 6.
    assert overlap(square, square, shifted, mask) == 1.0
    assert overlap(square, square, shifted, mask, mask) == pytest.approx(3 / 6)
    assert overlap(square, square, np.eye(3), None, mask) == pytest.approx(6 / 10)


def test_an_empty_mask_is_refused():
    square = Image(np.zeros((10, 20)), np.eye(3))
    with pytest.raises(ImageError, match="mask"):
        overlap(square, square, np.eye(3), square)


def test_the_overlap_of_large_images_is_measured_at_some_of_their_voxels():
    """With 200,000 samples its standard error is 0.001; four of these are allowed."""
    cube = Image(np.zeros((128, 128, 128), np.uint8), np.eye(4))
    shifted = motion(np.eye(3), [0.0, 32.0, 0.0])
    assert overlap(cube, cube, shifted) == pytest.approx(0.75, abs=0.004)
