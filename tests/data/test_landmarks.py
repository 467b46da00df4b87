"""Landmarks, and the matching of two sets."""

import dataclasses

import numpy as np
import pytest

from kunita.data.landmarks import Landmarks, match
from kunita.errors import LandmarkError

POINTS = np.arange(6.0).reshape(3, 2)


def test_names_pair_by_name_whatever_the_order():
    pairs = match(Landmarks(POINTS, ("a", "b", "c")), Landmarks(POINTS[::-1], ("c", "b", "a")))
    np.testing.assert_array_equal(pairs.moving.points, pairs.fixed.points)
    assert pairs.pairing == "name"
    assert pairs.labels == ("a", "b", "c")


def test_landmarks_without_a_partner_are_left_and_named():
    pairs = match(Landmarks(POINTS, ("a", "b", "c")), Landmarks(POINTS, ("b", "c", "d")))
    assert pairs.labels == ("b", "c")
    assert pairs.unmatched == ("a", "d")


def test_without_names_pairs_are_by_order_and_numbered():
    pairs = match(Landmarks(POINTS), Landmarks(POINTS, ("x", "y", "z")))
    assert pairs.pairing == "order"
    assert pairs.labels == ("1", "2", "3")


def test_covariances_travel_with_their_points():
    covariances = np.array([k * np.eye(2) for k in (1, 2, 3)])
    pairs = match(
        Landmarks(POINTS, ("a", "b", "c"), covariances), Landmarks(POINTS[:2], ("c", "a"))
    )
    np.testing.assert_array_equal(pairs.moving.covariances, covariances[[0, 2]])


@pytest.mark.parametrize("variances", [2.0, [2.0, 2.0, 2.0]])
def test_variances_stand_for_isotropic_covariances(variances):
    np.testing.assert_array_equal(
        Landmarks(POINTS, None, variances).covariances, 2 * np.tile(np.eye(2), (3, 1, 1))
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"points": np.zeros((0, 3))}, "no landmarks"),
        ({"points": np.zeros((3, 4))}, "expected an"),
        ({"points": np.zeros(3)}, "expected an"),
        ({"points": np.array([[0, 1], [np.nan, 2]]), "names": ("a", "tip")}, "'tip'.*not finite"),
        ({"points": np.array([[0, 1], [np.inf, 2]])}, "'2'.*not finite"),
        ({"points": POINTS, "names": ("a", "b")}, "names: expected 3"),
        ({"points": POINTS, "names": ("a", "b", "a")}, "'a' is used more than once"),
        ({"points": POINTS, "names": ("a", " ", "c")}, "row 1 is empty"),
        ({"points": POINTS, "names": ("a", "a\u2028", "c")}, "'a' is used more than once"),
        (
            {"points": POINTS, "undefined": [7]},
            "undefined: expected places from 0 to 3, 4 being listed, found 7",
        ),
        ({"points": POINTS, "undefined": [-1]}, "undefined: .* found -1"),
        (
            {"points": POINTS, "undefined": [1, 1]},
            "undefined: expected distinct places, found 1 2 times",
        ),
        (
            {"points": POINTS, "undefined": [1.5]},
            r"undefined: expected whole numbers, found \[1.5\]",
        ),
        (
            {"points": POINTS, "undefined": np.array([False, True])},
            "undefined: expected whole numbers",
        ),
        ({"points": POINTS, "covariances": np.eye(2)}, "expected shape"),
        (
            {
                "points": POINTS,
                "names": ("a", "b", "c"),
                "covariances": np.array([np.eye(2), -np.eye(2), np.eye(2)]),
            },
            "'b'.*positive",
        ),
        (
            {"points": POINTS, "covariances": np.array([np.eye(2), np.zeros((2, 2)), np.eye(2)])},
            "positive definite",
        ),
        (
            {"points": POINTS, "covariances": np.array([np.eye(2), [[1, 0.5], [0, 1]], np.eye(2)])},
            "symmetric",
        ),
        ({"points": POINTS, "covariances": np.full((3, 2, 2), np.nan)}, "'1'.*not finite"),
        (
            {"points": POINTS, "covariances": np.tile(np.diag([1e-3, 1e12]), (3, 1, 1))},
            "'1'.*too flat",
        ),
        ({"points": POINTS, "covariances": [1.0, -1.0, 1.0]}, "'2'.*not positive definite"),
    ],
)
def test_bad_landmarks_are_refused_by_name(arguments, message):
    with pytest.raises(LandmarkError, match=message):
        Landmarks(**arguments)


@pytest.mark.parametrize("blank", [" ", "\t", "\n", "\u00a0", "\u2028", "\u3000"])
def test_blanks_around_names_are_no_part_of_them(blank):
    pairs = match(
        Landmarks(POINTS, (f"{blank}a", "b", f"c{blank}d{blank}")),
        Landmarks(POINTS, ("b", f"c{blank}d", "a")),
    )
    assert pairs.labels == ("a", "b", f"c{blank}d")


@pytest.mark.parametrize("undefined", [(), [0], [3], [4, 0, 2], np.array([1])])
def test_there_are_as_many_labels_as_points_whatever_is_undefined(undefined):
    landmarks = Landmarks(POINTS, undefined=undefined)
    assert len(landmarks.labels) == len(landmarks) == 3
    assert sorted({*landmarks.places, *landmarks.undefined}) == list(range(landmarks.listed))


@pytest.mark.parametrize(
    ("fixed", "message"),
    [
        (Landmarks(POINTS[:2]), "unequal counts: 3 moving and 2 fixed"),
        (Landmarks(np.zeros((3, 3)), ("a", "b", "c")), "mixed dimensions"),
        (Landmarks(POINTS, ("x", "y", "z")), "no common names"),
    ],
)
def test_sets_that_cannot_be_paired_are_refused(fixed, message):
    with pytest.raises(LandmarkError, match=message):
        match(Landmarks(POINTS, ("a", "b", "c")), fixed)


def test_undefined_landmarks_keep_the_places_of_the_others():
    """Of ten listed landmarks the moving side lacks the third, the fixed side the seventh: eight
    pairs remain."""
    points = np.random.default_rng(0).normal(size=(10, 3))
    moving = Landmarks(np.delete(points, 2, axis=0), undefined=(2,))
    fixed = Landmarks(np.delete(points, 6, axis=0), undefined=(6,))
    pairs = match(moving, fixed)
    assert np.array_equal(pairs.moving.points, pairs.fixed.points)
    assert pairs.labels == ("1", "2", "4", "5", "6", "8", "9", "10")
    assert pairs.unmatched == ("3", "7")
    assert pairs.pairing == "order"


def test_undefined_landmarks_count_when_counts_are_compared():
    points = np.random.default_rng(0).normal(size=(4, 3))
    with pytest.raises(LandmarkError, match="unequal counts: 5 moving and 4 fixed"):
        match(Landmarks(points, undefined=(1,)), Landmarks(points))
    with pytest.raises(LandmarkError, match="no pair"):
        match(Landmarks(points[:1], undefined=(0,)), Landmarks(points[:1], undefined=(1,)))


def test_numbers_opposite_no_names_are_places():
    """A shuffled or shortened list of numbered landmarks opposite a plain one is not paired row by
    row."""
    points = np.random.default_rng(0).normal(size=(6, 2))
    plain, order = Landmarks(points), [4, 2, 0, 5, 1]
    numbered = Landmarks(points[order], [str(i + 1) for i in order])
    for pairs in (match(numbered, plain), match(plain, numbered)):
        assert np.array_equal(pairs.moving.points, pairs.fixed.points)
        assert pairs.pairing == "name"
        assert pairs.unmatched == ("4",)
    named = Landmarks(points, list("abcdef"))
    assert match(named, plain).pairing == "order"


# --------------------------------------------------------------------------------- free directions

X, Y, Z = np.eye(3)
SPACE = np.random.default_rng(1).normal(size=(4, 3))
FREE = (None, [X + Y], [X, X + Y], np.empty((0, 3)))
"""Directions of four landmarks: fully known, on a line, on a surface, fully known."""


def spans(directions):
    """The projection on a span: equal for two sets of directions if and only if their spans are."""
    q, _ = np.linalg.qr(np.transpose(directions))
    return q @ q.T


def test_free_directions_are_kept_orthonormal_with_the_span_they_were_given():
    landmarks = Landmarks(SPACE, free=FREE)
    assert landmarks.known.tolist() == [3, 2, 1, 3]
    assert [len(directions) for directions in landmarks.free] == [0, 1, 2, 0]
    for kept, given in zip(landmarks.free[1:3], FREE[1:3], strict=True):
        np.testing.assert_allclose(kept @ kept.T, np.eye(len(kept)), atol=1e-15)
        np.testing.assert_allclose(spans(kept), spans(given), atol=1e-15)
        np.testing.assert_allclose(kept[0], given[0] / np.linalg.norm(given[0]), atol=1e-15)


@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e200])
def test_known_and_free_directions_are_one_basis_of_the_space(d, scale):
    rng = np.random.default_rng(2)
    for k in range(d):
        for _ in range(20):
            free = scale * rng.normal(size=(1, k, d))
            landmarks = Landmarks(rng.normal(size=(1, d)), free=free)
            own = landmarks.free[0] if k else np.empty((0, d))
            basis = np.concatenate([own, landmarks.known_directions(0)])
            np.testing.assert_allclose(basis @ basis.T, np.eye(d), atol=1e-14)


def test_the_known_directions_of_a_full_or_axial_landmark_are_the_axes_themselves():
    landmarks = Landmarks(SPACE, free=[None, Y, [Z, X], []])
    for row, axes in enumerate([[X, Y, Z], [X, Z], [Y], [X, Y, Z]]):
        assert np.array_equal(landmarks.known_directions(row), axes)
    assert np.array_equal(Landmarks(SPACE).known_directions(2), np.eye(3))


def test_the_known_directions_are_those_that_are_left_along_the_first_axes():
    """Where all axes are alike, rounding does not choose between them."""
    landmarks = Landmarks(SPACE[:1], free=[[1.0, 1.0, 1.0]])
    expected = np.array([[2.0, -1.0, -1.0], [0.0, 1.0, -1.0]])
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(landmarks.known_directions(0), expected, atol=1e-15)


def test_free_directions_may_be_given_by_row_or_by_name():
    listed = Landmarks(SPACE, ("a", "b", "c", "d"), free=FREE)
    for free in ({1: X + Y, 2: [X, X + Y]}, {"b": [X + Y], "c": [X, X + Y], "d": None}):
        mapped = Landmarks(SPACE, ("a", "b", "c", "d"), free=free)
        for here, there in zip(mapped.free, listed.free, strict=True):
            assert np.array_equal(here, there)
    nameless = Landmarks(SPACE[:3], undefined=[0], free={"3": Z})
    assert nameless.known.tolist() == [3, 2, 3]


@pytest.mark.parametrize("free", [None, {}, [None] * 4, [[]] * 4, np.empty((4, 0, 3))])
def test_landmarks_without_any_free_direction_have_none(free):
    landmarks = Landmarks(SPACE, free=free)
    assert landmarks.free is None
    assert landmarks.known.tolist() == [3, 3, 3, 3]


def test_free_directions_cannot_be_overwritten_and_do_not_follow_their_source():
    source = np.array([[0.0, 0.0, 1.0]])
    landmarks = Landmarks(SPACE, free=[source, None, None, None])
    source[0] = X
    assert np.array_equal(landmarks.free[0], [Z])
    with pytest.raises(ValueError, match="read-only"):
        landmarks.free[0][0, 0] = 1.0


def test_free_directions_travel_with_their_points_to_the_last_bit():
    rng = np.random.default_rng(3)
    names = ("a", "b", "c", "d")
    free = [rng.normal(size=(k, 3)) for k in (0, 1, 2, 1)]
    fixed = Landmarks(SPACE, names, free=free)
    expected = (fixed.free[2], fixed.free[0], fixed.free[1])
    taken = fixed.take([2, 0, 1])
    renamed = dataclasses.replace(taken, names=("p", "q", "r"))
    by_name = match(Landmarks(SPACE[:3], ("c", "a", "b")), fixed).fixed
    by_order = match(Landmarks(SPACE[:3]), taken).fixed
    for found in (taken, renamed, by_name, by_order):
        for here, there in zip(found.free, expected, strict=True):
            assert np.array_equal(here, there)
    assert fixed.take([0]).free is None


def test_free_directions_follow_the_places_of_numbered_and_incomplete_lists():
    plain = Landmarks(SPACE, free={2: Z})
    numbered = match(Landmarks(SPACE[:3], ("4", "3", "1")), plain)
    assert numbered.pairing == "name"
    assert numbered.fixed.known.tolist() == [3, 2, 3]
    incomplete = match(Landmarks(SPACE[1:], undefined=[0]), plain)
    assert incomplete.labels == ("2", "3", "4")
    assert incomplete.fixed.known.tolist() == [3, 2, 3]


def test_free_directions_on_the_moving_side_are_refused():
    moving = Landmarks(SPACE, ("a", "b", "c", "d"), free={"b": Z})
    with pytest.raises(
        LandmarkError, match="free: landmark 'b' of the moving set is known along 2"
    ):
        match(moving, Landmarks(SPACE))


@pytest.mark.parametrize(
    ("free", "message"),
    [
        ([X, None], "free: expected 4, one per point, found 2"),
        (3.0, "free: expected directions for each landmark, found 3.0"),
        ([X[:2], None, None, None], r"'a': expected a \(k, 3\) array, found shape \(1, 2\)"),
        ({"a": [[X]]}, r"'a': expected a \(k, 3\) array, found shape \(1, 1, 3\)"),
        ({"b": np.eye(3)}, "'b': expected fewer than 3 directions, found 3; .* left out"),
        ({"b": [X, X, X, X]}, "'b': expected fewer than 3 directions, found 4"),
        ({"b": [X, 0 * X]}, "'b' has directions that are zero"),
        ({"b": [X, 1e9 * X + Y]}, "'b' has directions that are linearly dependent"),
        ({"b": [X, [np.nan, 0, 1]]}, "'b' has directions that are not finite"),
        ({"b": [0, np.inf, 1]}, "'b' has directions that are not finite"),
        ({"b": "xyz"}, "'b': expected real numbers"),
        ({"b": 1j * X}, "'b': expected real numbers"),
        ({"tip": Z}, "free: expected names of landmarks or rows from 0 to 3, found 'tip'"),
        ({4: Z}, "free: expected names of landmarks or rows from 0 to 3, found 4"),
        ({-1: Z}, "free: .* found -1"),
        ({1.5: Z}, "free: .* found 1.5"),
        ({"b": Z, 1: Z}, "free: landmark 'b' is there twice"),
    ],
)
def test_bad_free_directions_are_refused_by_name(free, message):
    with pytest.raises(LandmarkError, match=message):
        Landmarks(SPACE, ("a", "b", "c", "d"), free=free)
