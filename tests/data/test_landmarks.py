"""Landmarks, and the matching of two sets."""

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
