"""A suspicion in sentences, and among landmarks that were not all looked at."""

import h5py
import numpy as np
import pytest

from kunita.io.registration_files import _read, _write
from kunita.suspects.report import Suspicion
from suspects.planted import LABELS, look, pairs


def test_words_say_what_each_landmark_is_suspected_of():
    found = Suspicion(np.array([0, 2, 3, 1, 4]), (4,), (12.34,), False)
    assert found.reasons(LABELS[:5]) == (
        "", "pairs with the fixed landmark p3?", "pairs with the fixed landmark p4?",
        "pairs with the fixed landmark p2?", "12.3 mm from where the others say",
    )  # fmt: skip


@pytest.mark.parametrize(
    "error", ["none", "swap", "cycle", "far", "reversed", "shifted", "mirrored"]
)
def test_a_suspicion_of_some_rows_says_the_same_among_all_rows(error):
    """Words, outliers and swaps follow the rows, whichever landmarks were not looked at."""
    n, rows = 15, np.array([1, 2, 3, 5, 6, 8, 9, 10, 11, 13, 14])
    x, f = pairs(2)
    f[rows] = planted(f[rows], error)
    part = look(x[rows], f[rows])
    whole = part.spread(rows, n)
    labels = LABELS[:n]
    some = [labels[row] for row in rows]
    others = np.setdiff1d(np.arange(n), rows)

    assert list(whole.lines(labels)) == list(part.lines(some))
    assert np.array(whole.reasons(labels))[rows].tolist() == list(part.reasons(some))
    assert whole.permuted == part.permuted
    assert whole.swaps == tuple((rows[i], rows[j]) for i, j in part.swaps)
    assert (whole.misses_mm, whole.mirrored) == (part.misses_mm, part.mirrored)
    np.testing.assert_array_equal(whole.suspect[rows], part.suspect)
    assert not whole.suspect[others].any()
    assert not any(whole.reasons(labels)[row] for row in others)
    assert part.suspect.any() == (error != "none")


def planted(fixed, error):
    fixed = fixed.copy()
    if error == "swap":
        fixed[[2, 7]] = fixed[[7, 2]]
    if error == "cycle":
        fixed[[1, 4, 8]] = fixed[[4, 8, 1]]
    if error == "far":
        fixed[3] += 12
    if error == "reversed":
        fixed = fixed[::-1]
    if error == "shifted":
        fixed = np.roll(fixed, 1, axis=0)
    if error == "mirrored":
        fixed[:, 0] *= -1
    return fixed


def test_a_suspicion_may_be_spread_twice():
    part = Suspicion(np.array([0, 2, 1]), (0,), (5.0,), False)
    first, second = np.array([0, 2, 3]), np.array([1, 2, 4, 6])
    twice = part.spread(first, 4).spread(second, 7)
    once = part.spread(second[first], 7)
    np.testing.assert_array_equal(twice.order, once.order)
    np.testing.assert_array_equal(twice.examined, once.examined)
    assert (twice.outliers, once.outliers) == ((1,), (1,))
    assert twice.swaps == once.swaps == ((4, 6),)


def test_a_spread_suspicion_survives_its_file(tmp_path):
    found = Suspicion(np.array([0, 2, 1]), (0,), (5.0,), False).spread(np.array([0, 2, 3]), 4)
    with h5py.File(tmp_path / "suspicion.h5", "w") as file:
        _write(file, "suspicion", found)
        loaded = _read(file["suspicion"])
    np.testing.assert_array_equal(loaded.examined, found.examined)
    assert loaded.reasons(LABELS[:4]) == found.reasons(LABELS[:4])
