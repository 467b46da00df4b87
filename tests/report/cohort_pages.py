"""Pages of a cohort under names that no page should believe, made once in a process."""

import dataclasses
import functools

import numpy as np

import kunita
from cohorts import NUM_LANDMARKS, three_cases
from kunita.cohort.baselines import rigid, without_each
from kunita.cohort.prior import Lesson, cohort_profile
from kunita.cohort.study import PAPER, Trained, held_by_prior, study, without_covariances
from kunita.cohort.study_findings import OWN, Learning
from kunita.data.landmarks import Landmarks
from kunita.inference.intervals import EstimatedParameter
from kunita.loo import Settings, experiment_of
from kunita.prior import Prior
from kunita.report.cohort_page import Learned, Studied, prior_page, study_page

HOSTILE = (
    "<script>alert(1)</script>",
    'case-2" onclick="alert(2)',
    "#case-1 & {{ 7 * 7 }} </title>",
)
CHOSEN = (
    EstimatedParameter("length scale", 40.0, 25.0, 61.0, True),
    EstimatedParameter("amplitude", 2.0, 1.0, 4.0, True),
)
PRIOR = Prior(
    kunita.Gaussian(40.0, 2.0), 0.7, cases=HOSTILE, num_landmarks=3 * NUM_LANDMARKS, chosen=CHOSEN
)
ORIGIN = {
    "created": "2020-01-01T00:00:00+00:00", "command": "kunita loo '<b>.tsv'", "software": {"kunita": "0"},
    "inputs": {"<i>case</i>: moving": {"path": "/a/<u>.csv", "bytes": 3, "sha256": "0" * 64}},
}  # fmt: skip


@functools.cache
def cohort():
    """Cases, and landmarks, under names that no page should believe."""
    named = lambda side: Landmarks(
        side.points, tuple(f"<img src=x onerror={i}>" for i in range(NUM_LANDMARKS))
    )
    return tuple(
        dataclasses.replace(
            without_covariances(case), name=name, moving=named(case.moving), fixed=named(case.fixed)
        )
        for case, name in zip(three_cases(), HOSTILE, strict=True)
    )


@functools.cache
def studied():
    small = dataclasses.replace(PRIOR, model="small")
    methods = (("paper", PAPER, True), ("small", small, False), (OWN, PRIOR, False))
    found = study(
        cohort(), [Trained(name, (prior,) * 3, bare) for name, prior, bare in methods], exact=False
    )
    return Studied(
        experiment_of(found, Settings("<b>.tsv", exact=False), Learning.GIVEN),
        found,
        Learning.GIVEN,
        ORIGIN,
    )


@functools.cache
def learned():
    held = tuple(held_by_prior(case, PRIOR, NUM_LANDMARKS) for case in cohort())
    pairs = [(case.moving.points, case.fixed.points) for case in cohort()]
    aligned = tuple(np.linalg.norm(f - without_each(rigid, m, f), axis=1) for m, f in pairs)
    profile = cohort_profile(cohort(), PRIOR)
    return Learned("<b>.tsv", PRIOR, Lesson(), cohort(), held, aligned, profile, ORIGIN)


@functools.cache
def made(kind):
    return study_page(studied()) if kind == "study" else prior_page(learned())
