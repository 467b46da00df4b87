"""Several raters become one point with a covariance: robust, never singular, and honest about its
size."""

import os
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import chi2, invwishart

import kunita
from kunita.data.raters import _chance, _CovariancePrior, far_marks
from kunita.errors import ArgumentError, LandmarkError


def raters(truth, roots, count, seed, names=None):
    rng = np.random.default_rng(seed)
    marks = truth + np.einsum("nab,rnb->rna", roots, rng.normal(size=(count, *truth.shape)))
    return [kunita.Landmarks(points, names) for points in marks]


def problem(seed, n=32, d=3):
    """Landmarks whose marks err by 0.4 to 1.6 mm along axes of their own."""
    rng = np.random.default_rng(seed)
    axes = np.linalg.qr(rng.normal(size=(n, d, d)))[0]
    return rng.uniform(0, 100, (n, d)), axes * rng.uniform(0.4, 1.6, (n, 1, d))


@pytest.mark.parametrize("d", [2, 3])
def test_the_covariance_of_the_pooled_point_holds_the_truth_as_often_as_it_says(d):
    squared = []
    for seed in range(20):
        truth, roots = problem(seed, d=d)
        pooled = kunita.pool_raters(raters(truth, roots, 5, seed + 100))
        error = pooled.points - truth
        squared += list(np.einsum("na,nab,nb->n", error, np.linalg.inv(pooled.covariances), error))
    for level in (
        0.5,
        0.8,
        0.95,
    ):  # a covariance estimated from five marks has heavier tails than a known one
        assert abs(np.mean(np.array(squared) <= chi2.ppf(level, d)) - level) < 0.06


def test_many_raters_give_the_mean_and_the_sample_covariance():
    truth, roots = problem(0, n=4)
    sets = raters(truth, roots, 4000, 1)
    marks = np.array([s.points for s in sets])
    pooled, single = kunita.pool_raters(sets), kunita.pool_raters(sets, spread="rater")
    sample = np.array([np.cov(marks[:, i].T) for i in range(4)])
    assert np.allclose(pooled.points, marks.mean(axis=0), atol=0.02)
    assert np.allclose(
        single.covariances, sample, atol=0.06 * sample.max()
    )  # one mark in a hundred weighs less
    assert np.allclose(single.covariances, 4000 * pooled.covariances, rtol=1e-2)


def test_a_wild_mark_hardly_moves_the_pooled_point():
    truth, roots = problem(2)
    sets = raters(truth, 0.3 * roots, 5, 3)
    wild = sets[4].points.copy()
    wild[7] += 40.0
    with_wild = [*sets[:4], kunita.Landmarks(wild)]
    moved = np.linalg.norm(
        kunita.pool_raters(with_wild).points[7] - kunita.pool_raters(sets[:4]).points[7]
    )
    assert moved < 2.0  # a plain mean would move by 40·√3/5 = 13.9 mm
    name, rater, distance = max(far_marks(with_wild), key=lambda mark: mark[2])
    assert (name, rater) == ("8", 4)
    assert distance > 50


def spread_out(seed, n=32, count=5, d=3):
    """Marks of landmarks whose covariances are themselves drawn, around 1 mm², as the pooling
    believes."""
    rng = np.random.default_rng(seed)
    roots = np.linalg.cholesky(invwishart(d + 4, 3 * np.eye(d)).rvs(n, random_state=rng))
    return raters(rng.uniform(0, 100, (n, d)), roots, count, seed + 1)


@pytest.mark.parametrize(("count", "most"), [(2, 0.05), (3, 0.02), (5, 0.02)])
def test_few_of_honest_marks_are_called_far(count, most):
    """A share of 0.005, and what it costs to learn how unlike landmarks are, which two raters can
    hardly tell."""
    called = sum(len(far_marks(spread_out(seed, count=count))) for seed in range(8))
    assert called / (8 * 32 * count) < most


def test_a_mark_ten_spreads_off_is_called_far_and_hardly_any_other():
    found, others = 0, 0
    for seed in range(10):
        sets = spread_out(seed)
        points = sets[seed % 5].points.copy()
        points[seed] += 10 * np.array([0.6, 0.0, 0.8])
        sets[seed % 5] = kunita.Landmarks(points)
        called = [(name, rater) for name, rater, _ in far_marks(sets)]
        found += (str(seed + 1), seed % 5) in called
        others += len(called)
    assert found >= 9
    assert others - found < 0.02 * 10 * 159


def test_two_raters_who_disagree_are_both_far():
    """Of two, nobody can tell who is wrong."""
    a, b = spread_out(3, count=2)
    wild = b.points.copy()
    wild[7] += 40
    assert {("8", 0), ("8", 1)} <= {
        (name, rater) for name, rater, _ in far_marks([a, kunita.Landmarks(wild)])
    }


def test_the_chance_of_a_mark_is_the_share_of_draws_that_lie_farther_off():
    """By simulation: covariances given the others' scatter, then a mark and the others' mean given
    the covariance."""
    rng = np.random.default_rng(0)
    others, mark, prior = (
        rng.normal(size=(4, 3)),
        np.array([2.0, -1.5, 1.0]),
        _CovariancePrior(np.diag([1.0, 0.5, 2.0]), 2.5),
    )
    centred = others - others.mean(axis=0)
    spread = 2.5 * prior.common + centred.T @ centred
    drawn = invwishart(2.5 + 3 + 1 + 3, spread).rvs(200_000, random_state=rng)
    misses = np.einsum(
        "sab,sb->sa", np.linalg.cholesky(drawn), rng.normal(size=(200_000, 3))
    ) * np.sqrt(1 + 1 / 4)
    size = lambda miss: np.einsum("...a,ab,...b", miss, np.linalg.inv(spread), miss)
    share = np.mean(size(misses) > size(mark - others.mean(axis=0)))
    assert _chance(mark, others, prior) == pytest.approx(share, abs=4 * np.sqrt(share / 200_000))


def test_two_raters_and_even_coplanar_marks_give_a_positive_definite_covariance():
    truth, roots = problem(4, n=6)
    flat = roots.copy()
    flat[:, 2] = 0  # nobody ever errs along z
    for sets in (raters(truth, roots, 2, 5), raters(truth, flat, 3, 5)):
        assert np.linalg.eigvalsh(kunita.pool_raters(sets).covariances).min() > 0


def test_equal_landmarks_are_shrunk_to_their_common_covariance_and_unequal_ones_are_not():
    truth, _ = problem(6)
    same = raters(truth, np.broadcast_to(np.eye(3), (32, 3, 3)), 5, 7)
    sizes = np.where(np.arange(32) % 2, 0.2, 3.0)
    mixed = raters(truth, sizes[:, None, None] * np.eye(3), 5, 7)
    spread = lambda sets: np.trace(kunita.pool_raters(sets).covariances, axis1=1, axis2=2)
    assert spread(same).max() / spread(same).min() < 1.5
    assert np.median(spread(mixed)[::2]) > 20 * np.median(spread(mixed)[1::2])


def test_landmarks_are_matched_by_name_and_may_be_missing_in_some_files():
    truth, roots = problem(8, n=5)
    names = list("abcde")
    a, b, c = raters(truth, roots, 3, 9, names)
    shuffled = b.take([4, 2, 0, 1])  # without d
    pooled = kunita.pool_raters([a, shuffled, c])
    assert pooled.names == tuple(names)
    assert np.linalg.norm(pooled.points - truth, axis=1).max() < 3
    assert np.allclose(pooled.points[3], (a.points[3] + c.points[3]) / 2, atol=0.5)


def test_landmarks_without_names_keep_their_places_whoever_lacks_one():
    truth, roots = problem(12, n=6)
    a, b, c = (rater.points for rater in raters(truth, 0.1 * roots, 3, 13))
    without = lambda points, *places: kunita.Landmarks(
        np.delete(points, places, axis=0), undefined=places
    )
    pooled = kunita.pool_raters([without(a, 1), kunita.Landmarks(b), kunita.Landmarks(c)])
    assert np.abs(pooled.points - truth).max() < 1
    nobody = kunita.pool_raters([without(a, 2), without(b, 2), without(c, 2, 4)])
    assert nobody.undefined == (2,)
    assert nobody.labels == ("1", "2", "4", "5", "6")
    assert np.abs(nobody.points - np.delete(truth, 2, axis=0)).max() < 1


def test_two_raters_who_agree_exactly_and_a_third_who_does_not_can_be_pooled():
    """Marks on whole voxels coincide easily: their median distance is zero, and still there is a
    spread."""
    truth, _ = problem(14, n=8)
    off = truth + np.random.default_rng(15).normal(size=truth.shape)
    pooled = kunita.pool_raters([kunita.Landmarks(x) for x in (truth, truth, off)])
    assert np.linalg.norm(pooled.points - truth, axis=1).max() < 1
    assert np.linalg.eigvalsh(pooled.covariances).min() > 0


def test_sets_that_cannot_be_pooled_are_refused():
    truth, roots = problem(10, n=5)
    a, b = raters(truth, roots, 2, 11)
    with pytest.raises(LandmarkError, match="at least two raters, found 1"):
        kunita.pool_raters([a])
    with pytest.raises(LandmarkError, match="cannot be matched by order"):
        kunita.pool_raters([a, b.take([0, 1])])
    with pytest.raises(LandmarkError, match="agree exactly"):
        kunita.pool_raters([a, a])
    with pytest.raises(LandmarkError, match="no landmark was marked by two"):
        kunita.pool_raters(
            [kunita.Landmarks(truth, list("abcde")), kunita.Landmarks(truth, list("fghij"))]
        )
    with pytest.raises(LandmarkError, match="mixed dimensions"):
        kunita.pool_raters([a, kunita.Landmarks(truth[:, :2])])
    with pytest.raises(ArgumentError, match="spread"):
        kunita.pool_raters([a, b], spread="both")
    with pytest.raises(LandmarkError, match="'2' of rater 2 is known along 1 of 3 directions only"):
        kunita.pool_raters([a, kunita.Landmarks(b.points, free={1: np.eye(3)[:2]})])


@pytest.mark.skipif("KUNITA_DATA" not in os.environ, reason="KUNITA_DATA is not set: no real data")
def test_five_raters_of_real_brains_agree_to_about_a_millimetre():
    folder = Path(os.environ["KUNITA_DATA"]) / "afids_dbs"
    spreads = []
    for subject in sorted(folder.glob("sub-*")):
        sets = [kunita.read_landmarks(path) for path in sorted(subject.glob("*.fcsv"))]
        pooled = kunita.pool_raters(sets, spread="rater")
        assert len(pooled) == 32
        spreads.append(np.sqrt(np.trace(pooled.covariances, axis1=1, axis2=2) / 3))
    assert len(spreads) == 20
    assert 0.3 < np.median(spreads) < 1.5
