"""One prior from many cases: it finds the truth, forgets nobody, and is used as it was learned."""

import dataclasses

import numpy as np
import pytest

import kunita
from kunita.cohort.prior import Lesson, learn_prior, learn_without_each
from kunita.data.case import Case
from kunita.errors import ArgumentError, FileError, LandmarkError
from kunita.io.prior_files import read_prior, write_prior

TRUE, NOISE = kunita.Gaussian(30.0, 2.0), 0.5


def cohort(num_cases, seed=0, counts=(10, 12), sds=None):
    """Small displacements drawn from the prior itself, in the plane; with sds, marks that bring a
    noise."""
    rng = np.random.default_rng(seed)
    cases = []
    for k in range(num_cases):
        n = int(rng.integers(counts[0], counts[1] + 1))
        x = rng.uniform(0, 100, (n, 2))
        u = np.linalg.cholesky(np.asarray(TRUE.gram(x, x)) + 1e-9 * np.eye(n)) @ rng.normal(
            size=(n, 2)
        )
        spread = np.full(n, NOISE) if sds is None else rng.choice(sds, n)
        f = x + u + spread[:, None] * rng.normal(size=(n, 2))
        own = None if sds is None else (spread / 2) ** 2  # half of what it should be
        cases.append(Case(f"case-{k}", kunita.Landmarks(x), kunita.Landmarks(f, None, own)))
    return tuple(cases)


def test_a_cohort_teaches_the_prior_that_made_it():
    cases = cohort(16, seed=2)
    prior = learn_prior(cases, Lesson(align="none", model="small"))
    for one, truth in zip(prior.chosen, (30.0, 2.0, NOISE), strict=True):
        assert one.low < truth < one.high, one
        assert (
            one.high < 2.5 * one.low
        )  # and closely, which no single case of twelve landmarks does
    assert prior.unidentified == ()
    assert prior.num_landmarks == sum(len(case) for case in cases)


def test_the_flows_evidence_leads_where_deformations_are_large():
    """The sum over cases of what registering each with the prior says is what the prior's evidence
    is."""
    cases = cohort(3, counts=(12, 12))  # of one shape, for one compilation
    prior = learn_prior(cases)
    assert prior.converged
    each = [kunita.register(case.moving, case.fixed, prior=prior).evidence for case in cases]
    assert prior.evidence == pytest.approx(sum(each), abs=0.02)


@pytest.mark.parametrize(("model", "tolerance"), [("small", 1e-3), ("endpoint", 0.03)])
def test_nothing_of_a_patient_is_in_the_prior_learned_without_it(model, tolerance):
    """For the flow to first order: what the small model misses of the *others* is measured near the
    choice on all."""
    cases = cohort(3, counts=(12, 12))
    spoilt = list(cases)
    rough = cases[2].fixed.points + 1.5 * np.random.default_rng(9).normal(
        size=cases[2].fixed.points.shape
    )
    spoilt[2] = Case("case-2", cases[2].moving, kunita.Landmarks(rough))
    before, after = (learn_without_each(some, Lesson(model=model))[2] for some in (cases, spoilt))
    assert before.cases == ("case-0", "case-1")
    assert before.kernel.length_scale == pytest.approx(after.kernel.length_scale, rel=tolerance)
    assert before.noise_mm == pytest.approx(after.noise_mm, rel=tolerance)


def test_the_only_case_without_a_noise_is_named():
    known = [
        dataclasses.replace(case, fixed=kunita.Landmarks(case.fixed.points, None, 0.25))
        for case in cohort(3)
    ]
    with pytest.raises(LandmarkError, match="'case-0' is the only one without"):
        learn_without_each([cohort(1)[0], *known[1:]])


def test_several_scales_explain_at_least_as_well():
    cases = cohort(3, counts=(12, 12))
    one, two = (
        learn_prior(cases, Lesson(num_scales=k, model="small", align="none")) for k in (1, 2)
    )
    assert len(two.kernel.kernels) == 2
    assert two.evidence >= one.evidence - 0.5  # their hyper-priors differ


def test_a_factor_on_the_noise_of_the_files_is_learned():
    prior = learn_prior(
        cohort(10, sds=(0.3, 1.5)), Lesson(scale_noise=True, align="none", model="small")
    )
    assert prior.noise_mm is None
    factor = prior.chosen[-1]
    assert factor.name == "noise factor"
    assert factor.low < 2 < factor.high


def test_register_with_a_prior_is_register_with_its_kernel_and_noise():
    case, prior = cohort(1)[0], kunita.Prior(TRUE, 0.7, align="affine")
    with_prior = kunita.register(case.moving, case.fixed, prior=prior)
    by_hand = kunita.register(case.moving, case.fixed, kernel=TRUE, noise=0.7, align="affine")
    points = np.array([[20.0, 30.0], [60.0, 50.0]])
    a, b = (reg.posterior.predict(points) for reg in (with_prior, by_hand))
    assert a.mean == pytest.approx(b.mean, abs=1e-9)
    assert a.covariance == pytest.approx(b.covariance, abs=1e-9)
    assert with_prior.chosen == ()
    assert (with_prior.align, by_hand.align) == ("affine", "affine")
    for name, value in (("kernel", "matern52"), ("length_scale", 3.0), ("amplitude", 3.0)):
        with pytest.raises(ArgumentError, match=name):
            kunita.register(case.moving, case.fixed, prior=prior, **{name: value})


def test_a_prior_without_a_noise_cannot_serve_landmarks_without_one():
    case = cohort(1)[0]
    with pytest.raises(LandmarkError, match="give a noise"):
        kunita.register(case.moving, case.fixed, prior=kunita.Prior(TRUE, None))
    kunita.register(case.moving, case.fixed, prior=kunita.Prior(TRUE, None), noise=0.7)


@pytest.mark.parametrize(
    "kernel",
    [
        TRUE,
        kunita.RationalQuadratic(10.0, 2.0, alpha=2.0),
        kunita.Gaussian(20.0, 1.0) + kunita.Matern52(5.0, 0.5),
    ],
)
def test_a_prior_survives_its_file(tmp_path, kernel):
    prior = kunita.Prior(kernel, 0.5, cases=("a", "b"), num_landmarks=30, evidence=-3.5)
    write_prior(tmp_path / "prior.json", prior)
    again = read_prior(tmp_path / "prior.json")
    assert again.kernel == prior.kernel
    assert (again.noise_mm, again.cases, again.num_landmarks, again.evidence) == (
        0.5,
        ("a", "b"),
        30,
        -3.5,
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not a prior"),
        ("[]", "an object with a 'kernel'"),
        ('{"kernel": {"family": "cubic"}}', "expected one of"),
        ('{"kernel": {"family": "gaussian", "length_scale_mm": 3}}', "amplitude_mm"),
        (
            '{"kernel": {"family": "gaussian", "length_scale_mm": -3, "amplitude_mm": 1}}',
            "length_scale",
        ),
        (
            '{"kernel": {"family": "gaussian", "length_scale_mm": 3, "amplitude_mm": 1}, "noise_mm": 0}',
            "noise_mm",
        ),
        (
            '{"kernel": {"family": "gaussian", "length_scale_mm": 3, "amplitude_mm": 1}, "align": "bent"}',
            "align",
        ),
    ],
)
def test_what_is_no_prior_is_refused_in_one_line(tmp_path, text, words):
    path = tmp_path / "prior.json"
    path.write_text(text)
    with pytest.raises(FileError, match=words) as refusal:
        read_prior(path)
    assert str(path) in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_what_makes_no_sense_is_refused():
    cases = cohort(2)
    for wrong in (
        {"family": "cubic"},
        {"num_scales": 0},
        {"align": "bent"},
        {"model": "big"},
        {"scale_noise": True},
    ):
        with pytest.raises(ArgumentError, match=next(iter(wrong))):
            learn_prior(cases, Lesson(**wrong))
    with pytest.raises(ArgumentError, match="at least 3"):
        learn_without_each(cases)
    with pytest.raises(ArgumentError, match="none"):
        learn_prior([])
