"""The figures of a registration's page: what is drawn is what was found, and nobody needs colours
to read it."""

from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex

from kunita.figures import registration as figures
from kunita.figures.themed import SVG, VARIABLES, WARN, svg, themed
from kunita.inference.solve import Progress
from kunita.scores import calibrated_coverage

RNG = np.random.default_rng(0)
METHODS = ("Gauss-Newton",) * 2 + ("velocity paths",) * 3 + ("exact Newton",)
HISTORY = tuple(
    Progress(method, 300.0 + k, 10.0 ** (1 - k), 10) for k, method in enumerate(METHODS)
)


def errors(n=5, **changed):
    arguments = {
        "names": [f"mark {k}" for k in range(n)], "before": RNG.uniform(3, 9, n), "after": RNG.uniform(0.5, 1, n),
        "left_out": RNG.uniform(1, 3, n), "suspect": np.zeros(n, bool),
    }  # fmt: skip
    return {**arguments, **changed}


def evidence(**changed):
    scales = np.geomspace(5, 200, 17)
    curve = {
        "scales_mm": scales,
        "log_evidence": -3 * np.log(scales / 40) ** 2 - 100.0,
        "chosen_mm": 40.0,
    }
    return figures.evidence_curve(**{**curve, "interval": (20.0, 80.0), "decided": True, **changed})


FIGURES = {
    "errors": lambda: figures.landmark_errors(**errors()),
    "long names": lambda: figures.landmark_errors(
        **errors(names=["W" * 80, "m" * 80, "a" * 80, "标" * 80, "1"], suspect=np.ones(5, bool))
    ),
    "nasty names": lambda: figures.landmark_errors(
        **errors(names=["<script>", "a$b$", "$", "half\ud800", "a\nb\0"])
    ),
    "far apart": lambda: figures.landmark_errors(
        **errors(before=np.full(5, 300.0), after=np.array([0, 0, 1e-9, 1, 1]))
    ),
    "nothing left out": lambda: figures.landmark_errors(
        **errors(left_out=np.full(5, np.nan), suspect=np.arange(5) < 1)
    ),
    "no error": lambda: figures.landmark_errors(
        **errors(before=np.zeros(5), after=np.zeros(5), left_out=np.zeros(5))
    ),
    "most names": lambda: figures.landmark_errors(**errors(60)),
    "thousands": lambda: figures.landmark_errors(**errors(5000, suspect=np.arange(5000) < 3)),
    "calibration": lambda: figures.calibration_curve(RNG.uniform(size=37)),
    "calibration of one": lambda: figures.calibration_curve(np.array([0.4])),
    "jacobian": lambda: figures.jacobian_histogram(RNG.normal(1, 0.05, (20, 20, 4))),
    "folding": lambda: figures.jacobian_histogram(RNG.normal(1, 0.6, 1000)),
    "large changes": lambda: figures.jacobian_histogram(np.exp(RNG.normal(0, 0.8, 1000)), 2),
    "rigid": lambda: figures.jacobian_histogram(np.ones(7)),
    "no determinant": lambda: figures.jacobian_histogram(np.full(3, np.nan)),
    "solver": lambda: figures.solver_history(HISTORY),
    "one iteration": lambda: figures.solver_history(HISTORY[-1:]),
    "no iteration": lambda: figures.solver_history(()),
    "hundreds": lambda: figures.solver_history(HISTORY[-1:] * 300),
    "not finite": lambda: figures.solver_history(
        [
            Progress("m", energy, gap, 10)
            for energy, gap in ((np.inf, 1.0), (np.nan, np.inf), (3.0, 0.0))
        ]
    ),
    "evidence": evidence,
    "undecided": lambda: evidence(interval=(0.0, np.inf), decided=False),
    "given": lambda: evidence(interval=None, decided=False, chosen_mm=3.0),
    "no evidence": lambda: evidence(log_evidence=np.full(17, np.nan)),
}


def line(axes, label):
    (found,) = [one for one in axes.get_lines() if one.get_label() == label]
    return found.get_data()


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_an_element_of_the_page_in_its_colours(name):
    text = svg(FIGURES[name](), name)
    assert ElementTree.fromstring(text).get("aria-label") == name
    assert not any(colour in text for colour in VARIABLES)


@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.filterwarnings("ignore:Glyph")
@themed
def test_nothing_is_cut_off(name):
    """In DejaVu Sans, which is wider than what pages use."""
    figure = FIGURES[name]()
    FigureCanvasAgg(figure).draw()
    drawn = figure.get_tightbbox()  # inches
    assert drawn.xmin >= 0
    assert drawn.ymin >= 0
    assert drawn.xmax <= figures.WIDTH
    assert drawn.ymax <= figure.get_figheight()


@pytest.mark.parametrize("name", FIGURES)
def test_what_has_another_colour_has_another_shape(name):
    """Two lines of one panel that only their colour tells apart would be one in grey."""
    for axes in FIGURES[name]().axes:
        named = [one for one in axes.get_lines() if not one.get_label().startswith("_")]
        looks = {(one.get_linestyle(), one.get_marker()) for one in named}
        assert len(looks) == len(named)


# ---------------------------------------------------------------------------------------- landmarks


def test_landmarks_come_in_the_order_of_the_left_out_error_with_their_own_numbers():
    given = errors(6)
    axes = figures.landmark_errors(**given).axes[0]
    order = np.argsort(-given["left_out"])
    assert [tick.get_text() for tick in axes.get_yticklabels()] == [
        given["names"][i] for i in order
    ]
    for label, key in (
        ("before", "before"),
        (figures.AFTER, "after"),
        (figures.LEFT_OUT, "left_out"),
    ):
        x, y = line(axes, label)
        np.testing.assert_array_equal(x, given[key][order])
        np.testing.assert_array_equal(y, np.arange(6))


def test_suspects_have_a_mark_of_their_own_and_their_name_stands_out():
    given = errors(5, suspect=np.array([0, 1, 0, 0, 1], bool))
    axes = figures.landmark_errors(**given).axes[0]
    x, _ = line(axes, "suspect")
    assert sorted(x) == sorted(given["left_out"][given["suspect"]])
    bold = {tick.get_text() for tick in axes.get_yticklabels() if tick.get_fontweight() == "bold"}
    assert bold == {"mark 1", "mark 4"}
    assert {
        tick.get_text() for tick in axes.get_yticklabels() if to_hex(tick.get_color()) == WARN
    } == bold


def test_a_landmark_that_could_not_be_left_out_is_drawn_without_it():
    given = errors(4, left_out=np.array([np.nan, 2.0, 1.0, np.nan]))
    x, _ = line(figures.landmark_errors(**given).axes[0], figures.LEFT_OUT)
    np.testing.assert_array_equal(np.sort(x), [1.0, 2.0, np.nan, np.nan])
    labels = line(
        figures.landmark_errors(**errors(4, left_out=np.full(4, np.nan))).axes[0], figures.AFTER
    )
    assert len(labels[0]) == 4


def test_curves_of_many_landmarks_are_the_quantiles_of_their_errors():
    given = errors(1001, suspect=np.arange(1001) == 7)
    axes = figures.landmark_errors(**given).axes[0]
    for label, key in (
        ("before", "before"),
        (figures.AFTER, "after"),
        (figures.LEFT_OUT, "left_out"),
    ):
        share, values = line(axes, label)
        np.testing.assert_allclose(values, np.quantile(given[key], share / 100))
    share, values = line(axes, "suspect")
    assert values == given["left_out"][7]
    assert share / 100 == pytest.approx(np.mean(given["left_out"] < values), abs=2e-3)


def test_distances_of_another_order_make_the_axis_logarithmic_and_zeros_stay_on_it():
    axes = FIGURES["far apart"]().axes[0]
    x, _ = line(axes, figures.AFTER)
    assert axes.get_xscale() == "log"
    assert np.all(x >= axes.get_xlim()[0])
    assert FIGURES["errors"]().axes[0].get_xscale() == "linear"


@pytest.mark.parametrize("name", ["x" * 100, "标" * 100, "WM" * 50])
def test_long_names_end_in_an_ellipsis(name):
    shown = [
        tick.get_text()
        for tick in figures.landmark_errors(**errors(1, names=[name])).axes[0].get_yticklabels()
    ]
    assert len(shown[0]) < 30
    assert shown[0].endswith("…")
    assert name.startswith(shown[0][:-1])


def test_names_are_text_in_the_page_too():
    root = ElementTree.fromstring(svg(FIGURES["nasty names"](), ""))
    shown = [element.text for element in root.iter(f"{{{SVG}}}text")]
    bad = "\N{REPLACEMENT CHARACTER}"
    assert {"<script>", "a$b$", "$", f"half{bad}", f"a b{bad}"} <= set(shown)


# -------------------------------------------------------------------------------------- calibration


def test_the_curve_is_the_share_of_landmarks_at_every_level():
    pits = RNG.uniform(size=23)
    x, y = line(figures.calibration_curve(pits).axes[0], "left-out landmarks")
    for level in (0.1, 0.5, 0.95):
        assert y[np.searchsorted(x, 100 * level, side="right") - 1] == pytest.approx(
            100 * np.mean(pits <= level)
        )


@pytest.mark.parametrize("n", [1, 5, 37, 400])
@pytest.mark.parametrize("band", [0.5, 0.95])
def test_the_band_holds_honest_predictions_as_often_as_it_says_and_is_no_wider_than_needed(n, band):
    levels = np.array([0.05, 0.3, 0.5, 0.8, 0.95])
    low, high = calibrated_coverage(n, levels, band)
    counts = np.random.default_rng(1).binomial(n, levels, size=(20_000, len(levels))) / n
    error = 4 * np.sqrt(band * (1 - band) / 20_000)
    assert np.all(np.mean((counts >= low - 1e-9) & (counts <= high + 1e-9), axis=0) > band - error)
    for side in (
        counts < low + 1 / n - 1e-9,
        counts > high - 1 / n + 1e-9,
    ):  # one count less would leave out too many
        assert np.all(np.mean(side, axis=0) > (1 - band) / 2 - error)


# ----------------------------------------------------------------------------------------- Jacobian


@pytest.mark.parametrize("name", ["jacobian", "folding", "large changes", "rigid"])
def test_the_histogram_counts_every_point_once(name):
    heights = FIGURES[name]().axes[0].patches[0].get_data().values
    assert heights.sum() == pytest.approx(100.0)


def test_the_least_determinant_and_no_change_are_marked_and_zero_only_where_space_folds():
    for values, folds in ((np.array([0.7, 0.9, 1.3]), False), (np.array([-0.2, 0.9, 1.3]), True)):
        axes = figures.jacobian_histogram(values).axes[0]
        assert line(axes, f"least, {values[0]:.3g}")[0] == [values[0]]
        assert list(line(axes, "no change of volume")[0]) == [1.0, 1.0]
        assert any("folds" in one.get_label() for one in axes.get_lines()) == folds
        assert axes.get_xlim()[0] < values[0]


def test_the_least_of_very_many_determinants_is_not_missed():
    values = np.linspace(0.9, 1.1, 101)
    values[51] = 0.5
    drawn = figures.jacobian_histogram(values, most_counted=10)
    assert line(drawn.axes[0], "least, 0.5")[0] == [0.5]


# ------------------------------------------------------------------------------------------- solver


def test_the_solvers_numbers_are_drawn_and_its_methods_named():
    above, below = figures.solver_history(HISTORY).axes
    np.testing.assert_array_equal(above.get_lines()[0].get_ydata(), [row.energy for row in HISTORY])
    np.testing.assert_array_equal(below.get_lines()[0].get_ydata(), [row.gap_mm for row in HISTORY])
    assert below.get_yscale() == "log"
    assert [text.get_text() for text in above.texts] == [
        "Gauss-Newton",
        "velocity paths",
        "exact Newton",
    ]
    assert [(band.get_x(), band.get_x() + band.get_width()) for band in above.patches] == [
        (2.5, 5.5)
    ]


def test_what_is_no_number_is_a_cross():
    above, below = FIGURES["not finite"]().axes
    crosses = [
        [int(one.get_xdata()[0]) for one in axes.get_lines() if one.get_marker() == "x"]
        for axes in (above, below)
    ]
    assert crosses == [[1, 2], [2]]


# ----------------------------------------------------------------------------------------- evidence


def test_the_evidence_is_drawn_relative_to_its_best_with_the_choice_and_its_interval():
    axes = evidence().axes[0]
    scales, values = line(axes, "log evidence")
    np.testing.assert_allclose(scales, np.geomspace(5, 200, 17))
    np.testing.assert_allclose(np.diff(values), np.diff(-3 * np.log(scales / 40) ** 2))
    assert values.max() == 0.0
    assert list(line(axes, "chosen: 40 mm")[0]) == [40.0, 40.0]
    (band,) = axes.patches
    assert (band.get_x(), band.get_x() + band.get_width()) == pytest.approx((20.0, 80.0))
    assert band.get_label() == "95 %: 20 to 80 mm"


def test_an_undecided_length_scale_is_hatched_and_a_given_one_has_no_interval():
    (band,) = FIGURES["undecided"]().axes[0].patches
    assert band.get_hatch()
    assert band.get_label() == "not determined by the landmarks"
    axes = FIGURES["given"]().axes[0]
    assert not axes.patches
    assert list(line(axes, "given: 3 mm")[0]) == [3.0, 3.0]
    assert axes.get_xlim()[0] < 3.0
