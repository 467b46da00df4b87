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

from kunita.cohort.leave_one_out import LEAST_OTHERS, RepeatedRows
from kunita.data.case import Case
from kunita.errors import ArgumentError, LandmarkError
from kunita.inference.estimation import (
    Estimate,
    estimate,
    estimate_without_each,
)
from kunita.inference.hyperparameters import (
    LEAST_FREEDOM,
    GivenParameters,
    Hyperparameters,
    SearchBox,
    SmallEvidence,
    build_search_box,
)
from kunita.inference.intervals import EvidenceProfile, find_parameter, profile_around
from kunita.inference.sample import Sample, aligned_sample
from kunita.inference.trend import check_kind
from kunita.kernels import BEST, FAMILIES, AbstractProfile
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
    def hyperparameters(self) -> tuple[Hyperparameters, ...]:
        """One set for each family that is tried."""
        families = FAMILIES.values() if self.family == BEST else (FAMILIES[self.family],)
        return tuple(self.hyperparameters_of(family) for family in families)

    def hyperparameters_of(self, family: type[AbstractProfile]) -> Hyperparameters:
        """What is learned with a family of kernels."""
        return Hyperparameters(
            family,
            self.num_scales,
            GivenParameters(length_scale=self.length_scale),
            noise_is_factor=self.scale_noise,
        )


USUAL = Lesson()


def learn_prior(cases: Sequence[Case], lesson: Lesson = USUAL) -> Prior:
    """Learn one prior on all cases, which are of one dimension."""
    cohort = _Cohort(tuple(cases), lesson)
    with jax.enable_x64(True):
        priors = [cohort.learn(one) for one in lesson.hyperparameters]
    return max(priors, key=lambda prior: prior.evidence)


def learn_without_each(cases: Sequence[Case], lesson: Lesson = USUAL) -> tuple[Prior, ...]:
    """For each case a prior that was learned on all *others*: nothing about a patient is chosen on
    this patient.

    To first order: see `estimate_without_each`.
    """
    if len(cases) <= LEAST_OTHERS:
        raise ArgumentError(
            f"cases: expected at least {LEAST_OTHERS + 1} to learn without each, found {len(cases)}"
        )
    cohort = _Cohort(tuple(cases), lesson)
    with jax.enable_x64(True):
        learned = [cohort.learn_without_each(one) for one in lesson.hyperparameters]
    return tuple(
        max(priors, key=lambda prior: prior.evidence) for priors in zip(*learned, strict=True)
    )


def cohort_profile(
    cases: Sequence[Case], prior: Prior, lesson: Lesson = USUAL
) -> EvidenceProfile | None:
    """How well the cases together tell the length scale that was learned on them; None where there
    is no one to tell.

    The summed log evidence of the small-deformation model, with the hyper-priors, the other
    parameters following.
    """
    used = find_parameter(prior.chosen, "length scale")
    if used is None or not isinstance(prior.kernel, AbstractProfile):
        return None
    cohort = _Cohort(tuple(cases), lesson)
    hyperparameters = lesson.hyperparameters_of(type(prior.kernel))
    with jax.enable_x64(True):
        samples = cohort.samples()
        if sum(sample.freedom for sample in samples) < LEAST_FREEDOM:
            return None
        box = cohort._box(samples, hyperparameters)
        noise = prior.noise_factor if lesson.scale_noise else prior.noise_mm or 1.0
        theta = np.log([prior.kernel.length_scale, prior.kernel.amplitude, noise])
        small = SmallEvidence(tuple(samples), hyperparameters, box)
        return profile_around(small, theta, used, prior.num_landmarks)


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
        rows = RepeatedRows.of(np.arange(len(case)), num_rows)
        observed = rows.observations(case.moving, case.fixed, unit_noise=not case.knows_noise)
        aligned = aligned_sample(
            observed,
            self.lesson.align,
            scaled=self.lesson.scale_noise or not case.knows_noise,
        )
        return aligned.sample

    def learn(self, hyperparameters: Hyperparameters) -> Prior:
        samples = self.samples()
        box = self._box(samples, hyperparameters)
        return self._prior(estimate(samples, hyperparameters, box, self.lesson.model), self.cases)

    def learn_without_each(self, hyperparameters: Hyperparameters) -> tuple[Prior, ...]:
        self._refuse_lonely()
        samples = self.samples()
        others = [[*self.cases[:i], *self.cases[i + 1 :]] for i in range(len(samples))]
        boxes = [
            self._box([*samples[:i], *samples[i + 1 :]], hyperparameters)
            for i in range(len(samples))
        ]
        estimates = estimate_without_each(samples, hyperparameters, boxes, self.lesson.model)
        return tuple(
            self._prior(found, known) for found, known in zip(estimates, others, strict=True)
        )

    def _refuse_lonely(self) -> None:
        """A case without a noise, all others having theirs, has nobody to learn one from."""
        bare = self.without_noise
        if len(bare) == 1:
            raise LandmarkError(
                f"case {bare[0]!r} is the only one without covariances: no other case tells its noise; give it some, "
                "or pass over those of the others (--common-noise)"
            )

    def _box(self, samples: Sequence[Sample], hyperparameters: Hyperparameters) -> SearchBox:
        return build_search_box(samples, hyperparameters, weak_prior=True)

    def _prior(self, found: Estimate, cases: Sequence[Case]) -> Prior:
        unknown, lesson = any(not case.knows_noise for case in cases), self.lesson
        return Prior(
            found.kernel,
            found.noise_scale if unknown else None,
            found.noise_scale if lesson.scale_noise else 1.0,
            lesson.align,
            lesson.model,
            tuple(case.name for case in cases),
            sum(len(case) for case in cases),
            found.evidence,
            found.parameters,
            found.at_maximum,
        )
