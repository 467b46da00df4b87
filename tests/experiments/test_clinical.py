"""The clinical experiment in small: a cohort whose truth has a length scale, and what is said of it."""

import dataclasses
import functools

import numpy as np
import pytest

from kunita.data.cohort import Case
from kunita.data.image import Image
from kunita.data.landmarks import Landmarks
from kunita.errors import ArgumentError
from kunita.experiments.clinical import FULL, QUICK, Settings, clinical
from kunita.experiments.clinical_findings import _change, _small_scales
from kunita.experiments.clinical_tables import PriorRow, best_row, outliers
from kunita.experiments.experiment import Experiment
from problems import gp_displaced, rotation

TRUTH_MM, NOISE_MM, SEEDS = 40.0, 0.3, 4
SMALL = Settings(length_scales_mm=(8.0, TRUTH_MM, 160.0), panels_mm=(TRUTH_MM,))


def case(seed: int, *, images: bool = False, known: bool = True) -> Case:
    """A 2-D case displaced by a smooth field of a known length scale, then turned, then marked with noise."""
    n = 11 - seed % 2
    moving, fixed = gp_displaced(n, seed, length_scale=TRUTH_MM, side=100.0, rms=2.0, d=2)
    rng = np.random.default_rng(seed)
    turned = fixed @ rotation(2, seed=7).T + 3.0
    marked = Landmarks(turned + NOISE_MM * rng.normal(size=(n, 2)), None, NOISE_MM**2 if known else None)
    image = Image(np.add.outer(np.arange(12.0), np.arange(12.0)), np.diag([15.0, 15, 1])) if images else None
    return Case(f"case {seed}", Landmarks(moving), marked, image, image, true_moving=moving, true_fixed=turned)


@functools.cache
def experiment() -> Experiment:
    return clinical([case(seed, images=seed == 2) for seed in range(SEEDS)], SMALL)


def rows(name: str = "clinical"):
    return next(table.rows for table in experiment().tables if table.name == name)


def test_the_length_scale_of_the_truth_is_found_by_every_honest_measure():
    for measure in ("honest_median_mm", "honest_mean_mm", "truth_mean_mm", "nll"):
        assert best_row(rows(), measure).length_scale_mm == TRUTH_MM, measure


def test_a_small_scale_cannot_move_a_left_out_landmark():
    rigid, small, best, _ = rows()
    gain, most = (rigid.honest_mean_mm - row.honest_mean_mm for row in (small, best))
    assert gain < 0.4 * most
    assert most > 0.3 * rigid.honest_mean_mm


def test_the_measure_of_the_paper_prefers_a_prior_that_does_nothing():
    rigid, *scales = rows()
    assert rigid.paper_median_mm < min(row.paper_median_mm for row in scales)
    assert rigid.honest_median_mm > min(row.honest_median_mm for row in scales)


def test_uncertainty_falls_as_smoothness_rises_where_amplitude_and_noise_are_held():
    stds = [row.std_mean_mm for row in rows("clinical_paper_parameters")]
    assert stds == sorted(stds, reverse=True)


def test_regions_are_about_as_full_as_they_say_under_the_prior_of_the_truth():
    best = best_row(rows(), "nll")
    for level in (50, 80, 90, 95):
        share = level / 100
        error = np.sqrt(share * (1 - share) / best.landmarks)
        assert abs(getattr(best, f"coverage_{level}") - share) < 4 * error + 0.05  # 0.05: parameters are estimated


def test_the_alignment_alone_is_too_sure_of_itself():
    assert rows()[0].coverage_95 < 0.8


def test_every_landmark_of_every_case_is_left_out_once_under_every_prior():
    seen = [(row.case, row.landmark, row.prior) for row in rows("clinical_landmarks")]
    expected = sum(len(case(seed)) for seed in range(SEEDS)) * 4
    assert len(seen) == len(set(seen)) == expected == sum(row.landmarks for row in rows())
    assert all(row.converged for row in rows("clinical_landmarks"))


def test_amplitudes_are_learned_on_the_other_cases():
    for scale in SMALL.length_scales_mm:
        mine = [row for row in rows("clinical_cases") if row.length_scale_mm == scale]
        for row in mine:
            others = [other.own_amplitude_mm for other in mine if other.case != row.case]
            assert row.amplitude_mm == pytest.approx(np.median(others))


def test_a_case_with_images_is_shown_and_its_numbers_are_in_a_table():
    assert [plate.name for plate in experiment().plates] == [
        "clinical_leave_one_out", "clinical_calibration", "clinical_before_and_after", "clinical_smoothing",
    ]  # fmt: skip
    assert len(rows("clinical_panels")) == 2 * len(SMALL.panels_mm)
    assert all(row.radius95_mean_mm <= row.radius95_max_mm for row in rows("clinical_panels"))


def test_findings_give_the_numbers_of_the_tables():
    said = " ".join(experiment().findings)
    assert f"σ = {TRUTH_MM:g} mm by the log score ({best_row(rows(), 'nll').nll:.2f})" in said
    assert "prefers no deformation at all" in said
    assert "Every refit converged" in said


def test_without_images_and_with_few_cases_both_are_said():
    alone = clinical([case(0, known=False)], Settings(length_scales_mm=(TRUTH_MM,), panels_mm=()))
    said = " ".join(alone.findings)
    assert [plate.name for plate in alone.plates] == ["clinical_leave_one_out", "clinical_calibration"]
    assert "No case has images" in said
    assert "on the case itself" in said
    used = alone.tables[2].rows[-1]
    assert used.noise_mm == used.own_noise_mm
    assert 0.3 * NOISE_MM < used.noise_mm < 4 * NOISE_MM


def test_words_follow_the_numbers():
    assert [_change(1, 2), _change(2, 1), _change(2, 2)] == ["holds", "does not hold", "no difference"]
    rigid, small, best, _ = rows()
    eager = dataclasses.replace(small, honest_mean_mm=best.honest_mean_mm + 0.01)
    assert "– holds" in next(_small_scales(rigid, [small, best]))
    assert "– does not hold" in next(_small_scales(rigid, [eager, best]))
    useless = dataclasses.replace(best, honest_mean_mm=rigid.honest_mean_mm)
    assert "– undecided" in next(_small_scales(rigid, [useless, useless]))


def test_outliers_are_the_dots_of_a_box_plot():
    from matplotlib.cbook import boxplot_stats

    values = np.random.default_rng(0).standard_t(2, size=200)
    assert outliers(values) == len(boxplot_stats(values)[0]["fliers"]) > 0


def test_settings_cover_what_the_paper_covers():
    assert {5.0, 10.0, 25.0, 50.0, 100.0, 200.0} <= set(FULL.length_scales_mm)
    assert len(FULL.panels_mm) == 5
    assert FULL.num_cases == 12
    assert set(QUICK.panels_mm) <= set(QUICK.length_scales_mm)


@pytest.mark.parametrize(
    ("cases", "settings", "said"),
    [
        ([], SMALL, "at least one"),
        ([case(0)], Settings(panels_mm=(7.0,)), "some of the length scales"),
    ],
)
def test_what_cannot_be_run_is_refused(cases, settings, said):
    with pytest.raises(ArgumentError, match=said):
        clinical(cases, settings)


def test_columns_name_their_units():
    columns = [field.name for field in dataclasses.fields(PriorRow)]
    lengths = [name for name in columns if any(word in name for word in ("median", "mean", "scale", "off"))]
    assert all(name.endswith("_mm") for name in lengths)
