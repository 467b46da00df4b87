"""Figures of a study, from values alone: what is drawn is what was found."""

import numpy as np
import pytest

from kunita.figures.calibration import (
    Errors,
    Honesty,
    Sparsified,
    calibration,
    errors,
    sparsification,
)

RNG = np.random.default_rng(0)
LEVELS = np.arange(1, 20) / 20
BAND = np.stack([LEVELS - 0.05, LEVELS + 0.05])


def honesty(label, own=False):
    return Honesty(label, RNG.uniform(size=40), own)


def lines(axes, label):
    return [line for line in axes.get_lines() if line.get_label() == label]


def test_the_coverage_curve_is_the_share_of_landmarks_at_every_level():
    mine = honesty("kunita", own=True)
    figure = calibration([honesty("rigid"), mine], LEVELS, BAND, "where landmarks fell")
    (line,) = lines(figure.axes[0], "kunita")
    x, y = line.get_data()
    for level in (0.1, 0.5, 0.95):
        drawn = y[np.searchsorted(x, 100 * level, side="right") - 1]
        assert drawn == pytest.approx(100 * np.mean(mine.pits <= level))


def test_the_histogram_is_of_the_own_method_and_has_area_one():
    mine = Honesty("kunita", np.full(30, 0.95), own=True)
    bars = calibration([honesty("rigid"), mine], LEVELS, BAND, "").axes[1].patches
    heights = [bar.get_height() for bar in bars if bar.get_width() == pytest.approx(0.1)]
    assert sum(heights) / 10 == pytest.approx(1.0)
    assert heights[-1] == max(heights)


def test_every_method_has_its_own_line_in_colour_or_dashes():
    labels = ["none", "rigid", "affine", "tps", "paper", "small", "kunita"]
    axes = calibration(
        [honesty(label, label == "kunita") for label in labels], LEVELS, BAND, ""
    ).axes[0]
    looks = {
        (line.get_color(), str(line.get_linestyle()))
        for label in labels
        for line in lines(axes, label)
    }
    assert len(looks) == len(labels)


def test_differences_are_drawn_by_case_with_their_interval_and_own_has_none():
    more, own = RNG.normal(size=6), RNG.uniform(1, 2, 6)
    figure = errors(
        [
            Errors("rigid", RNG.uniform(0, 3, 30), own + more, more, (-0.4, 0.9)),
            Errors("kunita", own, own),
        ],
        "kunita",
    )
    boxes, paired = figure.axes
    intervals = [line for line in paired.get_lines() if line.get_gid() == "interval"]
    assert [tuple(line.get_xdata()) for line in intervals] == [(-0.4, 0.9)]
    drawn = [line.get_xdata() for line in paired.get_lines() if len(line.get_xdata()) == 6]
    np.testing.assert_array_equal(drawn, [more])
    assert [tick.get_text() for tick in boxes.get_yticklabels()] == ["rigid", "kunita"]


def test_too_few_cases_have_no_interval_to_draw():
    one = Errors("rigid", np.ones(5), np.ones(1), np.zeros(1), None)
    axes = errors([one, Errors("kunita", np.ones(5), np.ones(1))], "kunita").axes[1]
    assert not [line for line in axes.get_lines() if line.get_gid() == "interval"]


def test_sparsification_has_a_panel_for_each_method_that_says_its_area():
    fractions = np.arange(10) / 10
    curves = [
        Sparsified(name, fractions, np.ones(10), 1 - fractions, area)
        for name, area in (("a", 0.41), ("b", 0.2))
    ]
    titles = [axes.get_title() for axes in sparsification(curves, "b").axes]
    assert titles == ["a: area 0.41", "b: area 0.20"]
