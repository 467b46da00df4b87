"""The evidence along the length scale: the curve that the estimation climbed, found again from the
record alone."""

import dataclasses
import functools
import warnings

import numpy as np
import pytest
import scipy.linalg
from scipy.spatial.distance import cdist

import kunita
import problems
from kunita.inference.hyperparameters import Hyperparameters, SmallEvidence, build_search_box
from kunita.inference.intervals import profile_length_scale
from kunita.inference.sample import aligned_sample
from kunita.jaxrun import programs, store
from kunita.observations.landmarks import LandmarkObservations


@functools.cache
def landmarks(d=3, n=16):
    x, y = problems.gp_displaced(n, seed=5, length_scale=40.0, side=100.0, rms=8.0, d=d)
    return x, y + 0.4 * np.random.default_rng(6).normal(size=y.shape)


WAYS = {
    "all chosen": {},
    "in the plane": {"d": 2},
    "noise given": {"noise": 0.4},
    "noise scaled": {"noise": np.linspace(0.2, 0.6, 16), "scale_noise": True},
    "amplitude held": {"amplitude": 5.0},
    "another family": {"kernel": "matern52", "align": "affine"},
    "noise along directions": {"noise": np.diag([0.2, 0.1, 0.3]) * np.ones((16, 1, 1))},
}


def register(*points, **options):
    """Whatever it has to say: sixteen landmarks do not tell everything."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", kunita.KunitaWarning)
        return kunita.register(*points, **options)


@functools.cache
def registered(way, model="small"):
    options = dict(WAYS[way])
    return register(*landmarks(options.pop("d", 3)), model=model, **options)


@pytest.mark.parametrize("way", WAYS)
def test_the_best_of_the_curve_is_the_estimate(way):
    found = registered(way).evidence_profile()
    best = int(np.argmax(found.log_evidence))
    near = found.scales_mm[max(best - 1, 0) : best + 2]
    assert near[0] <= registered(way).kernel.length_scale <= near[-1]
    assert found.log_evidence[found.scales_mm == found.chosen_mm] == pytest.approx(
        found.log_evidence.max(), abs=1e-3
    )


@pytest.mark.parametrize("way", WAYS)
def test_an_estimated_length_scale_comes_with_its_interval(way):
    reg = registered(way)
    found, estimated = reg.evidence_profile(), reg.chosen[0]
    assert (found.chosen_mm, found.low, found.high, found.identified) == (
        estimated.value,
        estimated.low,
        estimated.high,
        estimated.identified,
    )
    assert found.num_landmarks == 16
    assert np.all(np.diff(found.scales_mm) > 0)


def restricted_likelihood(reg, length_scale):
    """The log density of what the alignment does not explain: displacements projected off its
    basis."""
    noise = reg.noise
    observed = LandmarkObservations(reg.moving.points, reg.fixed.points, noise, 0 * noise)
    sample = aligned_sample(observed, reg.align, scaled=False).sample
    n, d = sample.positions.shape
    kernel = reg.kernel.amplitude**2 * np.exp(
        -0.5 * (cdist(*[sample.positions] * 2) / length_scale) ** 2
    )
    covariance = np.kron(kernel, np.eye(d)) + scipy.linalg.block_diag(*noise)
    basis = np.asarray(sample.basis).reshape(n * d, -1)
    off = scipy.linalg.null_space(basis.T)
    y, s = off.T @ np.asarray(sample.displacements).ravel(), off.T @ covariance @ off
    value = -0.5 * (y @ np.linalg.solve(s, y) + np.linalg.slogdet(2 * np.pi * s)[1])
    return value - 0.5 * np.linalg.slogdet(basis.T @ basis)[1]


@pytest.mark.parametrize("d", [2, 3])
def test_with_all_else_given_the_curve_is_the_likelihood_and_a_prior_about_a_third_of_the_extent(d):
    reg = problems.registered(d)
    found = reg.evidence_profile()
    positions = reg.moving.points
    center, scales = cdist(positions, positions).max() / 3, found.scales_mm
    prior = -0.5 * (np.log(scales / center) / np.log(3.0)) ** 2
    expected = [restricted_likelihood(reg, scale) for scale in scales] + prior
    np.testing.assert_allclose(found.log_evidence, expected, rtol=1e-6)
    assert found.chosen_mm == 25.0 in scales
    assert np.isnan([found.low, found.high]).all()
    assert not found.identified


def test_the_other_parameters_follow():
    """With amplitude and noise held at the estimate nothing is better than with those that follow,
    but there."""
    reg = registered("all chosen")
    free = reg.evidence_profile()
    held = dataclasses.replace(reg, chosen=reg.chosen[:1]).evidence_profile()
    same = np.isin(free.scales_mm, held.scales_mm)
    rise = (free.log_evidence - free.log_evidence.max())[same] - (
        held.log_evidence - held.log_evidence.max()
    )
    assert np.all(rise > -1e-3)
    assert rise.max() > 1.0


def test_the_order_of_the_length_scales_does_not_matter():
    moving, fixed = landmarks()
    noise = np.tile(np.eye(3), (16, 1, 1))
    observed = LandmarkObservations(moving, fixed, noise, 0 * noise)
    sample = aligned_sample(observed, "rigid", scaled=True).sample
    hyperparameters = Hyperparameters(kunita.Gaussian)
    box = build_search_box([sample], hyperparameters, weak_prior=True)
    small = SmallEvidence((sample,), hyperparameters, box)
    scales = np.geomspace(15, 200, 8)
    curve = functools.partial(profile_length_scale, small, box, box.start)
    mixed = np.random.default_rng(0).permutation(8)
    np.testing.assert_allclose(curve(scales[mixed]), curve(scales)[mixed], rtol=1e-12)


def test_a_record_from_a_file_has_the_same_curve(tmp_path):
    reg = registered("noise scaled", "endpoint")
    kunita.save(reg, tmp_path / "record.h5")
    again = kunita.load(tmp_path / "record.h5").evidence_profile()
    for name, value in dataclasses.asdict(reg.evidence_profile()).items():
        np.testing.assert_array_equal(getattr(again, name), value)


def test_landmarks_that_were_not_used_do_not_count():
    moving, fixed = landmarks()
    sds = np.full(17, 0.4)
    sds[3] = np.inf
    with_one = register(
        np.insert(moving, 3, 999.0, axis=0),
        np.insert(fixed, 3, 0.0, axis=0),
        noise=sds,
        model="small",
    )
    found, expected = (reg.evidence_profile() for reg in (with_one, registered("noise given")))
    assert found.num_landmarks == 16
    np.testing.assert_allclose(found.log_evidence, expected.log_evidence, atol=1e-4)


def test_very_many_landmarks_are_thinned_by_chance_that_is_always_the_same():
    one, other = (registered("noise given").evidence_profile(most_landmarks=12) for _ in range(2))
    assert one.num_landmarks == 12
    np.testing.assert_array_equal(one.log_evidence, other.log_evidence)


def test_no_program_is_made_for_it_that_the_registration_did_not_have(monkeypatch, tmp_path):
    moving, fixed = landmarks(n=11)
    monkeypatch.setattr(programs._Kept, "store", store.ProgramStore(tmp_path))
    reg = register(moving, fixed)
    made = sorted(tmp_path.iterdir())
    assert made
    reg.evidence_profile()
    assert sorted(tmp_path.iterdir()) == made


def test_there_is_no_curve_where_the_evidence_says_nothing():
    reg = problems.registered()
    for kernel in (
        reg.kernel + kunita.Matern52(10.0, 1.0),
        kunita.RationalQuadratic(25.0, 4.0, alpha=7.0),
    ):
        assert dataclasses.replace(reg, kernel=kernel).evidence_profile() is None
    assert dataclasses.replace(reg, robust=True).evidence_profile() is None
    few = dataclasses.replace(reg, used=np.arange(16) < 2)
    assert few.evidence_profile() is None
