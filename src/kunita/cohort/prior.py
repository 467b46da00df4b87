"""A prior learned on many cases: one kernel and one noise that maximise the sum of their evidences
(empirical Bayes).

What one patient's landmarks cannot tell, others' can: learn on them, apply to this one. Parameters
have weakly informative priors (log-normal, by a factor of three to five), so that a few cases
cannot run away with them.
"""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np

from kunita.cohort.leave_one_out import LEAST_OTHERS, Rows
from kunita.data.case import Case
from kunita.errors import ArgumentError, LandmarkError
from kunita.inference.choice import (
    LEAST_FREEDOM,
    Choice,
    Dials,
    Held,
    Search,
    choose,
    choose_without_each,
    length_scale_profile,
    search_for,
)
from kunita.inference.sample import Sample, aligned_sample
from kunita.inference.trend import check_kind
from kunita.kernels import BEST, FAMILIES, AbstractProfile
from kunita.outputs.profile import EvidenceProfile
from kunita.posterior import MODELS
from kunita.prior import Prior


@dataclasses.dataclass(frozen=True)
class Lesson:
    """What is to be learned, and with what.

    Args:
        family: of the kernel, or "best" for the one with the largest evidence.
        num_scales: how many kernels of that family are summed, each with a length scale and an
            amplitude of its own.
        length_scale: to keep, mm; default: learned.
        align, model: what the cases are registered with.
        scale_noise: whether one factor on the noise that the files bring is learned too. A noise of
            its own is learned for cases that bring none.
    """

    family: str = "gaussian"
    num_scales: int = 1
    length_scale: float | None = None
    align: str = "rigid"
    model: str = "endpoint"
    scale_noise: bool = False

    def __post_init__(self) -> None:
        if self.family != BEST and self.family not in FAMILIES:
            raise ArgumentError(
                f"family: expected one of {', '.join(FAMILIES)}, {BEST}; found {self.family!r}"
            )
        if self.num_scales < 1 or (self.num_scales > 1 and self.length_scale is not None):
            expected = "one or more, and one where a length scale is kept"
            raise ArgumentError(f"num_scales: expected {expected}; found {self.num_scales}")
        check_kind(self.align)
        if self.model not in MODELS:
            raise ArgumentError(f"model: expected one of {', '.join(MODELS)}, found {self.model!r}")

    @property
    def dials(self) -> tuple[Dials, ...]:
        """One set for each family that is tried."""
        families = FAMILIES.values() if self.family == BEST else (FAMILIES[self.family],)
        noise = "noise factor" if self.scale_noise else "noise"
        return tuple(Dials(family, self.num_scales, noise=noise) for family in families)


USUAL = Lesson()


def learn_prior(cases: Sequence[Case], lesson: Lesson = USUAL) -> Prior:
    """Learn one prior on all cases, which are of one dimension."""
    cohort = _Cohort(tuple(cases), lesson)
    with jax.enable_x64(True):
        priors = [cohort.learn(dials) for dials in lesson.dials]
    return max(priors, key=lambda prior: prior.evidence)


def learn_without_each(cases: Sequence[Case], lesson: Lesson = USUAL) -> tuple[Prior, ...]:
    """For each case a prior that was learned on all *others*: nothing about a patient is chosen on
    this patient.

    To first order: see `choose_without_each`.
    """
    if len(cases) <= LEAST_OTHERS:
        raise ArgumentError(
            f"cases: expected at least {LEAST_OTHERS + 1} to learn without each, found {len(cases)}"
        )
    cohort = _Cohort(tuple(cases), lesson)
    with jax.enable_x64(True):
        learned = [cohort.learn_without_each(dials) for dials in lesson.dials]
    return tuple(
        max(priors, key=lambda prior: prior.evidence) for priors in zip(*learned, strict=True)
    )


NUM_SCALES = 9
"""Length scales of a profile, in the whole search and again around what was learned."""


def cohort_profile(
    cases: Sequence[Case], prior: Prior, lesson: Lesson = USUAL
) -> EvidenceProfile | None:
    """How well the cases together tell the length scale that was learned on them; None where there
    is no one to tell.

    The summed log evidence of the small-deformation model, with the hyper-priors, the other
    parameters following.
    """
    used = next((one for one in prior.chosen if one.name == "length scale"), None)
    if used is None or not isinstance(prior.kernel, AbstractProfile):
        return None
    cohort, dials = _Cohort(tuple(cases), lesson), Dials(type(prior.kernel))
    with jax.enable_x64(True):
        samples = cohort.samples()
        if sum(sample.freedom for sample in samples) < LEAST_FREEDOM:
            return None
        search = cohort._search(samples, dials)
        noise = prior.noise_factor if lesson.scale_noise else prior.noise_mm or 1.0
        theta = np.log([prior.kernel.length_scale, prior.kernel.amplitude, noise])
        low, high = np.exp(search.box[0])
        near = np.geomspace(max(low, used.low), min(high, used.high), NUM_SCALES)
        scales = np.unique([*np.geomspace(low, high, NUM_SCALES), *near, used.value])
        values = length_scale_profile(samples, dials, search, theta, scales)
    return EvidenceProfile(
        scales, values, used.value, used.low, used.high, used.decided, prior.num_landmarks
    )


@dataclasses.dataclass(frozen=True)
class _Cohort:
    """The cases of a lesson."""

    cases: tuple[Case, ...]
    lesson: Lesson

    def __post_init__(self) -> None:
        if not self.cases:
            raise ArgumentError("cases: expected at least one, found none")
        if len({case.dimension for case in self.cases}) > 1:
            raise ArgumentError("cases: expected all in 2-D or all in 3-D, found both")
        bare = self.without_noise
        if self.lesson.scale_noise and bare:
            raise ArgumentError(
                f"scale_noise: expected cases that all bring their noise, found none in {bare[0]!r}"
            )

    @property
    def without_noise(self) -> list[str]:
        """The cases that bring none."""
        return [case.name for case in self.cases if not case.knows_noise]

    def samples(self) -> list[Sample]:
        """All cases in as many rows as the largest has: one program serves them."""
        num_rows = max(len(case) for case in self.cases)
        return [self._sample(case, num_rows) for case in self.cases]

    def _sample(self, case: Case, num_rows: int) -> Sample:
        rows = Rows.of(np.arange(len(case)), num_rows)
        noises = rows.covariances(case.fixed), rows.covariances(case.moving)
        if not case.knows_noise:
            noises = rows.copies[:, None, None] * np.eye(case.dimension), noises[1]
        points = case.moving.points[rows.which], case.fixed.points[rows.which]
        scaled = self.lesson.scale_noise or not case.knows_noise
        return aligned_sample(
            *points, noises, self.lesson.align, scaled=scaled, copies=rows.copies.astype(float)
        ).sample

    def learn(self, dials: Dials) -> Prior:
        samples = self.samples()
        return self._prior(
            choose(samples, dials, self._search(samples, dials), self.lesson.model), self.cases
        )

    def learn_without_each(self, dials: Dials) -> tuple[Prior, ...]:
        self._refuse_lonely()
        samples = self.samples()
        others = [[*self.cases[:i], *self.cases[i + 1 :]] for i in range(len(samples))]
        searches = [
            self._search([*samples[:i], *samples[i + 1 :]], dials) for i in range(len(samples))
        ]
        choices = choose_without_each(samples, dials, searches, self.lesson.model)
        return tuple(
            self._prior(choice, known) for choice, known in zip(choices, others, strict=True)
        )

    def _refuse_lonely(self) -> None:
        """A case without a noise, all others having theirs, has nobody to learn one from."""
        bare = self.without_noise
        if len(bare) == 1:
            raise LandmarkError(
                f"case {bare[0]!r} is the only one without covariances: no other case tells its noise; give it some, "
                "or pass over those of the others (--common-noise)"
            )

    def _search(self, samples: Sequence[Sample], dials: Dials) -> Search:
        held, factor = Held(self.lesson.length_scale), self.lesson.scale_noise
        return search_for(samples, dials, held, given_noise=factor, hyperprior=True)

    def _prior(self, choice: Choice, cases: Sequence[Case]) -> Prior:
        unknown, lesson = any(not case.knows_noise for case in cases), self.lesson
        return Prior(
            choice.kernel,
            choice.noise_scale if unknown else None,
            choice.noise_scale if lesson.scale_noise else 1.0,
            lesson.align,
            lesson.model,
            tuple(case.name for case in cases),
            sum(len(case) for case in cases),
            choice.evidence,
            choice.chosen,
            choice.followed,
        )
