"""What stands at the top: judgements that follow from the numbers, in words."""

import dataclasses
import re

import numpy as np
import pytest
from scipy.stats import chi2

from kunita.outputs.summary import LandmarkRows
from kunita.report.answer import (
    answer,
    calibration_badge,
    mean_distance,
    mm,
    solver_badge,
    suspects_badge,
)


def rows(squared, suspects=()):
    n = len(squared)
    zeros, names = np.zeros((n, 3)), tuple(f"p{i}" for i in range(n))
    suspect = np.isin(names, suspects)
    why = tuple("exchanged with q" if bad else "" for bad in suspect)
    return LandmarkRows(
        names, zeros, zeros, zeros, np.tile(np.eye(3), (n, 1, 1)), np.zeros(n), np.zeros(n), np.zeros(n),
        np.asarray(squared, dtype=float), np.ones(n), suspect, why, np.full(n, 3),
    )  # fmt: skip


def document(**changed):
    usual = {
        "initial_error_mm": 5.0, "residual_mm": 1.0, "noise_mm": 0.5, "n_landmarks": 30, "converged": True,
        "min_jacobian": 0.8, "suspects": [], "warnings": [],
        "loo": {"error_mm": 1.5, "coverage": {"50": 0.5, "95": 0.95}},
        "expected": {"hull": {"median_radius95_mm": 1.2, "worst_radius95_mm": 3.4, "extrapolating": 0}, "label": None},
    }  # fmt: skip
    return {**usual, **changed}


def drawn(n, factor, seed=0):
    """Squared standardised errors where the true covariance is so many times the predicted one."""
    return factor * chi2(3).rvs(n, random_state=seed)


@pytest.mark.parametrize("seed", range(5))
def test_honest_errors_are_called_calibrated(seed):
    assert calibration_badge(rows(drawn(60, 1.0, seed))).word == "calibrated"


def test_honest_errors_are_called_otherwise_about_as_rarely_as_chance_allows():
    """Three tests at 1 % each: at most 3 % of honest sets, 12 of 400, and twice their deviation (2
    × 3.4) more."""
    words = [calibration_badge(rows(drawn(37, 1.0, seed))).word for seed in range(400)]
    assert sum(word != "calibrated" for word in words) <= 19


def test_errors_twice_as_large_as_promised_are_called_too_sure_and_half_as_large_cautious():
    sure, cautious = (
        calibration_badge(rows(drawn(60, 4.0))),
        calibration_badge(rows(drawn(60, 0.25))),
    )
    assert (sure.word, sure.kind) == ("too sure", "bad")
    assert (cautious.word, cautious.kind) == ("cautious", "doubt")


def test_few_landmarks_tell_nothing_whatever_they_are():
    for factor in (0.01, 1.0, 100.0):
        assert calibration_badge(rows(drawn(5, factor))).kind == "unknown"
    assert calibration_badge(rows([np.nan] * 20)).kind == "unknown"


def test_with_suspects_the_uncertainty_is_not_judged():
    badge = calibration_badge(rows(drawn(60, 4.0), ("p3",)))
    assert (badge.kind, badge.word) == ("unknown", "calibration not judged")


def test_very_few_landmarks_are_neither_cleared_nor_said_to_enclose_anything():
    assert suspects_badge(document(n_landmarks=3)).kind == "unknown"
    titles = [tile.title for tile in answer(document(n_landmarks=3), rows(drawn(3, 1.0))).tiles]
    assert "To expect between the landmarks" not in titles


def test_the_count_in_the_sentence_is_the_count_inside():
    squared = np.where(np.arange(20) < 18, 1.0, 100.0)
    assert calibration_badge(rows(squared)).text.startswith("18 of 20 landmarks")


def test_a_solver_that_failed_and_a_map_that_folds_are_bad_news():
    assert solver_badge(document()).kind == "good"
    assert "not converged" in solver_badge(document(converged=False)).word
    assert solver_badge(document(min_jacobian=-0.1)).word == "folds"


def test_suspects_are_named_once_with_their_reason():
    told = answer(
        document(
            suspects=["p3"], warnings=["suspect: p3: exchanged?", "the length scale is a guess"]
        ),
        rows(drawn(30, 1.0), ("p3",)),
        {"suspect: p3: exchanged?"},
    )
    assert suspects_badge(document(suspects=["p3"])).text == "Check first: p3."
    texts = [(remark.kind, remark.text) for remark in told.remarks]
    assert texts == [
        ("suspect", "p3: exchanged with q"),
        ("warning", "The length scale is a guess"),
    ]


def test_a_warning_that_only_holds_a_suspect_s_name_is_kept():
    """A landmark may be called p; no remark on mirrors may get lost for that."""
    mirror = "suspect: the fixed landmarks look like a mirror image"
    told = answer(
        document(suspects=["p3"], warnings=[mirror]),
        rows(drawn(30, 1.0), ("p3",)),
        {"suspect: p: …"},
    )
    assert [remark.text for remark in told.remarks][
        -1
    ] == "The fixed landmarks look like a mirror image"


@pytest.mark.parametrize("n", range(8, 60))
def test_the_badge_never_contradicts_its_sentence(n):
    """What is said to be too few for chance is called too sure, and nothing else is for that
    reason."""
    for outside in range(min(n, 12)):
        # half of those inside are within their 50 % region, so that only the 95 % regions speak
        squared = np.r_[np.full(outside, 100.0), np.tile([1.0, 4.0], n)[: n - outside]]
        badge = calibration_badge(rows(squared))
        least = int(re.search(r"fewer than (\d+)", badge.text)[1])
        assert (badge.word == "too sure") == (n - outside < least), (n, outside)


@pytest.mark.parametrize("d", [2, 3])
def test_the_mean_distance_of_an_error_is_that_of_many(d):
    draws = np.linalg.norm(np.random.default_rng(0).normal(0, 1.7, (200_000, d)), axis=1)
    assert mean_distance(1.7, d) == pytest.approx(draws.mean(), rel=0.005)


def test_numbers_that_are_not_are_no_crash():
    told = answer(
        document(min_jacobian=None, residual_mm=None, noise_mm=None, expected=None),
        rows(drawn(30, 1.0)),
    )
    assert told.badges[0].kind == "doubt"


def test_many_suspects_of_one_kind_are_one_sentence():
    names = [f"p{i}" for i in range(30)]
    told = answer(document(suspects=names), rows(drawn(30, 1.0), names))
    (remark,) = told.remarks
    assert remark.text == "p0, p1, p2, p3, p4 and 25 more: exchanged with q"


def test_extrapolation_is_said_where_it_happens():
    far = {"median_radius95_mm": 1.0, "worst_radius95_mm": 9.0, "extrapolating": 0.31}
    told = answer(
        document(expected={"hull": {**far, "extrapolating": 0.0}, "label": far}),
        rows(drawn(30, 1.0)),
    )
    (remark,) = told.remarks
    assert remark.text.startswith("31 % of the label")
    assert any("inside the label" in tile.title and tile.number == "1.00 mm" for tile in told.tiles)


def test_tiles_have_the_numbers_of_the_summary():
    numbers = {tile.number for tile in answer(document(), rows(drawn(30, 1.0))).tiles}
    assert numbers == {"5.00 → 1.00 mm", "1.50 mm", "1.20 mm"}


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.1234, "0.12"),
        (0.001234, "0.0012"),
        (0.0, "0.00"),
        (12.34, "12.3"),
        (1234.5, "1234"),
        (None, "–"),
    ],
)
def test_lengths_have_no_more_digits_than_anybody_needs(number, text):
    assert mm(number) == text


def test_an_answer_is_frozen():
    told = answer(document(), rows(drawn(30, 1.0)))
    with pytest.raises(dataclasses.FrozenInstanceError):
        told.tiles = ()
