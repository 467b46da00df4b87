"""A study leaves out what it says and learns nothing from it; its tables and words say what was
found."""

import dataclasses
import functools
import re

import numpy as np
import pytest

import kunita
from cohorts import NUM_LANDMARKS as N
from cohorts import three_cases as cohort
from kunita.cohort.leave_one_out import refit_without_all, register_rows
from kunita.cohort.study import PAPER, Trained, region_of, study, without_covariances
from kunita.cohort.study_findings import OWN, Learning, findings
from kunita.cohort.study_tables import (
    case_row,
    collected,
    coverage_band,
    difference_row,
    difference_rows,
    landmark_rows,
    method_row,
)
from kunita.data.case import Case
from kunita.data.landmarks import Landmarks
from kunita.errors import LandmarkError
from kunita.prior import Prior
from kunita.scores import case_draws

PRIOR = Prior(kernel=kunita.Gaussian(40.0, 2.0), noise_mm=0.7, cases=("a", "b"))
METHODS = ("none", "rigid", "affine", "tps", "paper", "small", OWN)
DRAWS = case_draws(3, 0)


@functools.cache
def bare_cohort():
    return tuple(without_covariances(case) for case in cohort())


def trained(cases):
    small = dataclasses.replace(PRIOR, model="small")
    priors = (("paper", PAPER, True), ("small", small, False), (OWN, PRIOR, False))
    return tuple(Trained(name, (prior,) * len(cases), bare) for name, prior, bare in priors)


@functools.cache
def tried():
    return study(bare_cohort(), trained(cohort()), exact=False)


def one(method, case=0, found=None):
    return [each for each in (found or tried()) if each.method == method][case]


# --------------------------------------------------------------------------------- what is left out


def test_every_method_is_tried_on_every_landmark_of_every_case():
    assert [(each.method, each.case.name) for each in tried()] == [
        (m, c.name) for m in METHODS for c in cohort()
    ]
    for each in tried():
        assert each.alone.rows.tolist() == list(range(N))
        assert each.region.rows.tolist() == region_of(each.case.moving.points).tolist()
        np.testing.assert_array_equal(each.alone.predictions.observed, each.case.fixed.points)
        np.testing.assert_array_equal(
            each.region.predictions.observed, each.case.fixed.points[each.region.rows]
        )


@pytest.mark.parametrize("n", [5, 6, 12, 16])
def test_the_region_is_a_third_that_a_plane_or_ball_cuts_off(n):
    points = np.random.default_rng(n).normal(size=(n, 3))
    left = region_of(points)
    assert len(left) == n // 3
    far = np.argmax(np.linalg.norm(points - points.mean(axis=0), axis=1))
    distances = np.linalg.norm(points - points[far], axis=1)
    assert far in left
    assert distances[left].max() < np.delete(distances, left).min()


def test_the_region_does_not_depend_on_the_frame_or_the_order():
    points = np.random.default_rng(0).normal(size=(N, 3))
    order = np.random.default_rng(1).permutation(N)
    assert region_of(points * [-1, -1, 1] + 40).tolist() == region_of(points).tolist()
    assert {int(order[i]) for i in region_of(points[order])} == set(region_of(points).tolist())


def test_a_region_is_predicted_by_a_registration_of_the_others():
    case, left = bare_cohort()[0], region_of(bare_cohort()[0].moving.points)
    moving, fixed = PRIOR.landmarks(case)
    kept = np.setdiff1d(np.arange(N), left)
    others = register_rows(moving.take(kept), fixed.take(kept), N, kernel=PRIOR.kernel)
    alone = others.posterior.predict(moving.points)
    held = one(OWN).region
    np.testing.assert_allclose(
        held.predictions.means, alone.mean[left], atol=1e-5
    )  # both converge to 1e-6 mm
    expected = alone.covariance[left] + 0.7**2 * np.eye(3)
    np.testing.assert_allclose(held.predictions.covariances, expected, rtol=1e-5)
    np.testing.assert_allclose(held.map_stds_mm, alone.std[left], rtol=1e-5)


def test_refits_and_the_closed_form_agree_to_first_order():
    """And exactly in the small-deformation model, but for the rotation."""
    few = bare_cohort()[:1]
    exact = study(few, trained(few), exact=True)
    for method, close in (("small", 0.02), (OWN, 0.1)):
        a, b = one(method, 0, exact).alone, one(method).alone
        np.testing.assert_allclose(a.predictions.means, b.predictions.means, atol=close)
        np.testing.assert_allclose(a.predictions.stds, b.predictions.stds, rtol=close)
        assert a.converged.all()


def test_the_papers_setting_passes_over_what_files_say_of_the_noise():
    noisy = tuple(
        dataclasses.replace(case, fixed=Landmarks(case.fixed.points, None, np.linspace(0.1, 4, N)))
        for case in cohort()
    )
    found = study(noisy[:1], trained(noisy[:1])[:1], exact=False)
    np.testing.assert_array_equal(
        one("paper", 0, found).alone.predictions.means, one("paper").alone.predictions.means
    )


def test_landmarks_that_the_others_cannot_align_are_refused_by_name():
    """All but one on a line: without that one nothing tells the rotation about it."""
    points = np.outer(np.arange(N), [5.0, 1.0, 2.0])
    points[3] += [0.0, 20.0, 0.0]
    moving = Landmarks(points, [f"p{i}" for i in range(N)])
    fixed = Landmarks(points + 1.0, moving.names, 1.0)
    full = register_rows(moving, fixed, N, kernel=PRIOR.kernel)
    with pytest.raises(
        LandmarkError,
        match="without p3 the 11 other landmarks do not determine the rigid alignment",
    ):
        refit_without_all(full, moving, fixed, (3,))


# ----------------------------------------------------------------------------------------- learning


def test_a_case_has_no_say_in_what_baselines_learn_for_it():
    first, *others = bare_cohort()
    wild = dataclasses.replace(first, fixed=Landmarks(first.fixed.points[::-1]))
    here, there = study(bare_cohort(), ()), study((wild, *others), ())
    for method in METHODS[:4]:
        assert one(method, 0, here).sd_mm == one(method, 0, there).sd_mm
        assert one(method, 1, here).sd_mm != one(method, 1, there).sd_mm


# ------------------------------------------------------------------------------------------- tables


@pytest.mark.parametrize("left_out", ["alone", "region"])
def test_the_row_of_a_method_says_what_its_landmarks_say(left_out):
    marks = [row for each in tried() for row in landmark_rows(each) if row.left_out == left_out]
    for mine in collected(tried(), left_out):
        row, own = method_row(mine, DRAWS), [mark for mark in marks if mark.method == mine.method]
        assert (row.cases, row.landmarks) == (3, len(own))
        assert row.error_mm == pytest.approx(np.mean([mark.error_mm for mark in own]))
        assert row.nll == pytest.approx(np.mean([mark.nll for mark in own]))
        assert row.coverage_80 == pytest.approx(np.mean([mark.pit <= 0.8 for mark in own]))
        assert row.sd_mm == pytest.approx(np.mean([mark.sd_mm for mark in own]))
        assert row.error_low_mm <= row.error_mm <= row.error_high_mm


def test_the_map_alone_is_surer_than_map_and_noise_by_the_noise():
    row = next(row for row in landmark_rows(one(OWN)))
    assert row.sd_mm**2 - row.map_sd_mm**2 == pytest.approx(0.7**2)


def test_only_methods_that_tell_landmarks_apart_have_a_rank_correlation():
    told = {
        row.method
        for row in (method_row(each, DRAWS) for each in collected(tried()))
        if row.rank_correlation
    }
    assert told == {"paper", "small", OWN}


def test_differences_are_paired_and_change_sign_with_their_order():
    rigid, own = (each for each in collected(tried()) if each.method in ("rigid", OWN))
    there, back = difference_row(own, rigid, DRAWS), difference_row(rigid, own, DRAWS)
    cases = [case_row(each) for each in tried()]
    by_case = [[row.error_mm for row in cases if row.method == name] for name in (OWN, "rigid")]
    assert there.error_mm == pytest.approx(np.mean(np.subtract(*by_case)))
    assert (there.error_low_mm, there.error_high_mm) == pytest.approx(
        (-back.error_high_mm, -back.error_low_mm)
    )
    assert there.better_cases + back.better_cases == 3


def test_the_difference_of_a_method_and_itself_is_nothing():
    (own,) = (each for each in collected(tried()) if each.method == OWN)
    row = difference_row(own, own, DRAWS)
    assert (row.error_mm, row.error_low_mm, row.error_high_mm, row.nll) == (0, 0, 0, 0)
    assert row.error.holds_zero


def test_the_table_of_cases_says_what_was_learned():
    rows = {row.method: row for row in map(case_row, tried()) if row.case == cohort()[0].name}
    own, rigid = rows[OWN], rows["rigid"]
    assert (own.length_scale_mm, own.amplitude_mm, own.noise_mm, own.learned_on) == (
        40.0,
        2.0,
        0.7,
        2,
    )
    assert rigid.constant_sd_mm == one("rigid").sd_mm
    assert (rigid.kernel, rigid.learned_on) == (None, None)
    summed = dataclasses.replace(
        one(OWN), prior=dataclasses.replace(PRIOR, kernel=PRIOR.kernel + PRIOR.kernel)
    )
    assert case_row(summed).length_scale_mm is None
    assert case_row(summed).kernel.count("40") == 2


def test_the_band_of_coverage_is_around_the_coverage():
    (own,) = (each for each in collected(tried()) if each.method == OWN)
    middle, low, high = coverage_band(own, DRAWS)
    assert np.all((low <= middle) & (middle <= high))
    np.testing.assert_allclose(middle, [np.mean(own.pits <= k / 20) for k in range(1, 20)])


# ----------------------------------------------------------------------------------------- findings


def said(found, learning=Learning.OTHERS):
    single, regional = collected(found), collected(found, "region")
    draws = case_draws(single[0].num_cases, 0)
    methods, regions = (
        tuple(method_row(each, draws) for each in part) for part in (single, regional)
    )
    rows = tuple(difference_rows(single, draws))
    return "\n".join(
        findings(methods, regions, rows, tuple(map(case_row, found)), learning, exact=False)
    )


def shifted(found, method, by):
    """The same, with the predictions of one method off by more, in some cases only."""
    for each in found:
        if each.method != method:
            yield each
            continue
        held = each.alone.predictions
        moved = held.means + (held.means - held.observed) * by(each.case.name)
        alone = dataclasses.replace(each.alone, predictions=dataclasses.replace(held, means=moved))
        yield dataclasses.replace(each, alone=alone)


def test_what_the_interval_leaves_open_is_said_to_be_chance():
    clear = said([*shifted(tried(), "rigid", lambda case: 20.0)])
    assert "closer than rigid (3 of 3 closer)" in clear
    names = [case.name for case in cohort()]
    rigid, own = ([each for each in tried() if each.method == name] for name in ("rigid", OWN))
    ratio = {
        a.case.name: b.alone.predictions.errors.mean() / a.alone.predictions.errors.mean()
        for a, b in zip(rigid, own, strict=True)
    }
    open_sign = said(
        [
            *shifted(
                tried(), "rigid", lambda case: ratio[case] * (1 + 0.1 * (names.index(case) - 1)) - 1
            )
        ]
    )
    assert re.search(r"could be chance\) (closer|farther off) than rigid", open_sign)


def test_the_words_say_where_the_parameters_come_from_and_what_did_not_converge():
    assert "on the other cases" in said(tried())
    assert "nothing was learned here" in said(tried(), Learning.GIVEN)
    assert "converge" not in said(tried())
    lost = dataclasses.replace(one(OWN).alone, converged=np.arange(N) > 1)
    some = [dataclasses.replace(each, alone=lost) if each is one(OWN) else each for each in tried()]
    assert "2 predictions come from fits that did not converge (kunita)" in said(some)


def test_one_case_has_no_intervals_and_the_words_say_so():
    text = said(
        [
            each
            for each in tried()
            if each.case is tried()[0].case or each.case.name == cohort()[0].name
        ]
    )
    assert "no intervals" in text
    assert " to " not in text.splitlines()[1]


def test_cases_of_five_landmarks_are_enough_and_may_be_beside_larger_ones():
    rng = np.random.default_rng(0)
    points = rng.uniform(0, 60, (5, 3))
    small = Case("small", Landmarks(points), Landmarks(points + rng.normal(0, 1, (5, 3))))
    found = study((small, bare_cohort()[0]), [Trained(OWN, (PRIOR, PRIOR))], exact=False)
    assert all(np.isfinite(each.alone.predictions.log_scores).all() for each in found)
    assert [len(each.region.rows) for each in found if each.case is small] == [1] * 5
    np.testing.assert_array_equal(
        one(OWN, 1, found).alone.predictions.means, one(OWN).alone.predictions.means
    )
