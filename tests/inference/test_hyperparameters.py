"""The estimate of kernel and noise by the evidence: of the small-deformation model, of the flow, of
one case and of many."""

import numpy as np
import pytest

import kunita
from kunita.inference import small as small_model
from kunita.inference.estimation import ENOUGH, estimate, estimate_without_each, flow_evidence
from kunita.inference.hyperparameters import (
    GivenParameters,
    Hyperparameters,
    build_search_box,
    small_log_evidence,
)
from kunita.inference.intervals import DROP
from kunita.inference.sample import aligned_sample
from kunita.observations.landmarks import LandmarkObservations
from kunita.registration import register
from problems import gp_displaced


def sample_of(x, f, align="none", copies=None, moving_noise=0.0):
    """Landmarks of unknown noise, on the moving side this much of it; those with copies are listed
    so often."""
    rows = np.arange(len(x)) if copies is None else np.repeat(np.arange(len(x)), copies)
    often = None if copies is None else np.repeat(copies, copies).astype(float)
    unit = (np.ones(len(rows)) if often is None else often)[:, None, None] * np.eye(x.shape[1])
    observed = LandmarkObservations(x[rows], f[rows], unit, moving_noise * unit, copies=often)
    return aligned_sample(observed, align, scaled=True).sample


GAUSSIAN = Hyperparameters(kunita.Gaussian)


def estimated(samples, hyperparameters=GAUSSIAN, model="endpoint"):
    box = build_search_box(samples, hyperparameters)
    return estimate(samples, hyperparameters, box, model)


def with_kernel(kernel):
    return Hyperparameters(kunita.Gaussian, given=GivenParameters(kernel))


def flow(sample, theta):
    return flow_evidence(sample, GAUSSIAN, np.asarray(theta))[0]


def small(sample, kernel, sd):
    """Of landmarks as they are listed, each with this standard deviation."""
    noise = np.tile(sd**2 * np.eye(sample.positions.shape[1]), (len(sample.positions), 1, 1))
    observed = LandmarkObservations(sample.positions, sample.observed.fixed, noise)
    rows = observed.rows(sample.positions, noise)
    basis = sample.basis
    return float(small_model.small_evidence(kernel, sample.positions, basis, rows, isotropic=True))


def test_the_small_estimate_maximises_the_evidence_and_finds_the_truth():
    """60 landmarks from σ = 40, a = 6, noise 1: the maximum beats the truth, is near it, and knows
    how near."""
    rng = np.random.default_rng(3)
    x = rng.uniform(0, 150, (60, 3))
    true = kunita.Gaussian(40.0, 6.0)
    root = np.linalg.cholesky(np.asarray(true.gram(x, x)) + 1e-9 * np.eye(60))
    sample = sample_of(x, x + root @ rng.normal(size=(60, 3)) + rng.normal(size=(60, 3)))
    found = estimated([sample], model="small")
    value = lambda kernel, sd: small(sample, kernel, sd)
    best, scale, amplitude = (
        value(found.kernel, found.noise_scale), float(found.kernel.length_scale), float(found.kernel.amplitude),
    )  # fmt: skip
    assert best >= value(true, 1.0)
    for factor in (0.9, 1.1):
        assert best >= value(kunita.Gaussian(scale * factor, amplitude), found.noise_scale)
        assert best >= value(kunita.Gaussian(scale, amplitude * factor), found.noise_scale)
        assert best >= value(found.kernel, found.noise_scale * factor)
    assert not found.unidentified
    for one, truth in zip(found.parameters, (40.0, 6.0, 1.0), strict=True):
        assert one.low < truth < one.high, one


def test_the_intervals_are_those_of_the_curvature():
    """By finite differences of the evidence itself: sd of log s, the kernel given, is 1/√(−d²/d(log
    s)²)."""
    x, f = gp_displaced(15, seed=2)
    kernel = kunita.Gaussian(50.0, 4.0)
    sample = sample_of(x, f + np.random.default_rng(0).normal(size=f.shape))
    found = estimated([sample], with_kernel(kernel), model="small")
    log_s, h = np.log(found.noise_scale), 1e-3
    value = [small(sample, kernel, np.exp(log_s + step)) for step in (-h, 0, h)]
    sd = 1 / np.sqrt((2 * value[1] - value[0] - value[2]) / h**2)
    (noise,) = found.parameters
    assert np.log(noise.high / noise.value) == pytest.approx(
        1.96 * sd, rel=0.03
    )  # their step is 0.05, ours 0.001


@pytest.mark.parametrize("align", ["none", "rigid"])
def test_listing_landmarks_more_than_once_changes_no_evidence(align):
    """Of the small model and of the flow; twelve landmarks in 2-D, noisy on both sides, some listed
    several times."""
    x, f = gp_displaced(12, seed=1, d=2)
    copies = np.array([1, 2, 3, 1, 1, 2, 1, 1, 1, 1, 1, 1])
    once, often = (sample_of(x, f, align, k, moving_noise=0.7) for k in (None, copies))
    for theta in ([4.0, 1.5, -0.5], [3.5, 1.0, 0.5]):
        one, two = (
            float(small_log_evidence(GAUSSIAN, None, np.array(theta), s.at_start)[0])
            for s in (once, often)
        )
        assert one == pytest.approx(two, abs=1e-7)
        assert flow(once, theta) == pytest.approx(flow(often, theta), abs=1e-3)  # rough fits


def test_the_estimate_maximises_the_evidence_of_the_flow():
    """Large deformations, where the small model's optimum is another: no step around the estimate
    gains anything."""
    x, f = gp_displaced(15, seed=5, length_scale=40.0, rms=18.0)
    sample = sample_of(x, f + np.random.default_rng(1).normal(size=f.shape), "rigid")
    found = estimated([sample])
    best = flow(sample, found.theta)
    assert found.at_maximum
    assert best >= flow(sample, estimated([sample], model="small").theta) + ENOUGH
    assert found.evidence == pytest.approx(best, abs=ENOUGH)
    for step in 0.15 * np.vstack([np.eye(3), -np.eye(3)]):
        assert best >= flow(sample, found.theta + step) - ENOUGH


@pytest.mark.parametrize("left_out", [(0, 3), pytest.param((1, 2), marks=pytest.mark.soak)])
def test_the_estimate_without_a_sample_is_the_estimate_on_the_others(left_out):
    """Without the last one it is near enough for the correction on all to be used, without any
    other not."""
    samples = [sample_of(*gp_displaced(12, seed=k, d=2), "rigid") for k in range(4)]
    others = [[*samples[:i], *samples[i + 1 :]] for i in range(4)]
    boxes = [build_search_box(left, GAUSSIAN, weak_prior=True) for left in others]
    shared = estimate_without_each(samples, GAUSSIAN, boxes)
    for i in left_out:
        alone = estimate(others[i], GAUSSIAN, boxes[i])
        # a linear model of the correction, shared
        assert shared[i].theta == pytest.approx(alone.theta, abs=0.05)


def test_what_is_not_identified_is_said():
    """Landmarks that only turned: no deformation, so no length scale and no amplitude to identify."""
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 100, (12, 2))
    turn = np.array([[np.cos(0.3), -np.sin(0.3)], [np.sin(0.3), np.cos(0.3)]])
    fixed = x @ turn.T + 0.5 * rng.normal(size=x.shape)
    with pytest.warns(kunita.KunitaWarning, match="do not determine the"):
        reg = register(x, fixed)
    scale = reg.chosen[0]
    assert (scale.name, scale.identified) == ("length scale", False)
    for end in (
        scale.low,
        scale.high,
    ):  # with this one given and the others estimated again, hardly anything is lost
        with pytest.warns(kunita.KunitaWarning, match="do not determine the"):
            held = register(x, fixed, length_scale=end)
        assert (
            held.evidence > reg.evidence - DROP - 0.1
        )  # bisected, and the flow's is taken as linear


def test_one_factor_on_given_noise_is_estimated_on_request():
    """Covariances that are nine times too small, and very different from landmark to landmark: the
    factor is three."""
    rng = np.random.default_rng(4)
    x, f = gp_displaced(15, seed=6)
    sds = np.repeat([0.2, 0.6, 1.0], 5)
    fixed = kunita.Landmarks(f + 3 * sds[:, None] * rng.normal(size=f.shape), None, sds**2)
    kernel = kunita.Gaussian(50.0, 3.5)
    reg = register(x, fixed, kernel=kernel, scale_noise=True)
    (factor,) = reg.chosen
    assert factor.name == "noise factor"
    assert factor.low < 3 < factor.high
    ratio = np.trace(reg.noise, axis1=1, axis2=2) / (3 * sds**2)
    assert ratio == pytest.approx(np.full(15, factor.value**2))
    with pytest.raises(kunita.KunitaError, match="scale_noise"):
        register(x, f, scale_noise=True)


def test_the_best_family_is_the_one_with_the_largest_evidence():
    x, f = gp_displaced(12, seed=3, d=2)
    f = f + 0.5 * np.random.default_rng(0).normal(size=f.shape)
    best = register(x, f, kernel="best", model="small", noise=0.5)
    each = [
        register(x, f, kernel=family, model="small", noise=0.5).evidence
        for family in ("gaussian", "matern72", "rational")
    ]
    assert best.evidence >= max(each) - 1e-6


def test_what_is_given_is_kept():
    x, f = gp_displaced(15, seed=4)
    kernel = kunita.Matern52(30.0, 4.0)
    assert register(x, f, kernel=kernel, noise=0.5).kernel == kernel
    chosen = register(x, f, kernel="matern52", noise=0.5)
    assert isinstance(chosen.kernel, kunita.Matern52)
    assert chosen.noise_mm == pytest.approx(0.5)


def test_the_noise_is_estimated_under_the_kernel_that_is_given():
    """A sum of kernels, and a rational quadratic of its own α: the estimated noise maximises their own
    evidence."""
    rng = np.random.default_rng(5)
    x = rng.uniform(0, 100, (12, 2))
    sample = sample_of(x, x + 3 * np.sin(x / 20) + rng.normal(size=x.shape))
    for kernel in (
        kunita.Gaussian(30.0, 3.0) + kunita.Matern52(10.0, 0.5),
        kunita.RationalQuadratic(30.0, 3.0, alpha=3.0),
    ):
        found = estimated([sample], with_kernel(kernel), model="small")
        value = lambda s, k=kernel: small(sample, k, s)
        assert value(found.noise_scale) >= max(
            value(0.97 * found.noise_scale), value(1.03 * found.noise_scale)
        )
        assert found.kernel == kernel


def test_where_nothing_can_be_estimated_the_guess_is_of_the_right_kind():
    """Two landmarks: a factor on given noise is one, and one landmark's scales come from how far it
    moved."""
    x = np.array([[0.0, 0.0, 0.0], [100.0, 0.0, 0.0]])
    with pytest.warns(kunita.KunitaWarning):
        two = register(x, x + 1.0, noise=1.0, scale_noise=True)
    assert next(one for one in two.chosen if one.name == "noise factor").value == 1.0
    with pytest.warns(kunita.KunitaWarning, match="translation only"):
        single = register(x[:1], x[:1] + 30.0)
    assert float(single.kernel.length_scale) == pytest.approx(15.0)
