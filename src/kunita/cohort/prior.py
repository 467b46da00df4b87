"""A prior learned on many cases: one kernel and one noise that maximise the sum of their evidences (empirical Bayes).

What one patient's landmarks cannot tell, others' can: learn on them, apply to this one. Parameters have weakly
informative priors (log-normal, by a factor of three to five), so that a few cases cannot run away with them.
"""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np

from kunita.cohort.leave_one_out import LEAST_OTHERS, Rows
from kunita.data.cohort import Case
from kunita.errors import ArgumentError, LandmarkError
from kunita.inference.choice import Choice, Dials, Held, Search, choose, choose_without_each, search_for
from kunita.inference.sample import Sample, aligned_sample
from kunita.inference.trend import check_kind
from kunita.kernels import FAMILIES
from kunita.posterior import MODELS
from kunita.prior import Prior


def learn_prior(
    cases: Sequence[Case],
    *,
    family: str = "gaussian",
    num_scales: int = 1,
    length_scale: float | None = None,
    align: str = "rigid",
    model: str = "endpoint",
    scale_noise: bool = False,
) -> Prior:
    """Learn one prior on all cases.

    Args:
        cases: of one dimension.
        family: of the kernel, or "best" for the one with the largest evidence.
        num_scales: how many kernels of that family are summed, each with a length scale and an amplitude of its own.
        length_scale: to keep, mm; default: learned.
        align, model: what the cases are registered with.
        scale_noise: whether one factor on the noise that the files bring is learned too. A noise of its own is learned
            for cases that bring none.
    """
    question = _Question(tuple(cases), num_scales, length_scale, align, model, scale_noise)
    with jax.enable_x64(True):
        priors = [question.learn(name) for name in question.families(family)]
    return max(priors, key=lambda prior: prior.evidence)


def learn_without_each(
    cases: Sequence[Case],
    *,
    family: str = "gaussian",
    num_scales: int = 1,
    length_scale: float | None = None,
    align: str = "rigid",
    model: str = "endpoint",
    scale_noise: bool = False,
) -> tuple[Prior, ...]:
    """For each case a prior that was learned on all *others*: nothing about a patient is chosen on this patient."""
    if len(cases) <= LEAST_OTHERS:
        raise ArgumentError(f"cases: expected at least {LEAST_OTHERS + 1} to learn without each, found {len(cases)}")
    question = _Question(tuple(cases), num_scales, length_scale, align, model, scale_noise)
    with jax.enable_x64(True):
        learned = [question.learn_without_each(name) for name in question.families(family)]
    return tuple(max(priors, key=lambda prior: prior.evidence) for priors in zip(*learned, strict=True))


@dataclasses.dataclass(frozen=True)
class _Question:
    """What is to be learned, on which cases."""

    cases: tuple[Case, ...]
    num_scales: int
    length_scale: float | None
    align: str
    model: str
    factor: bool

    def __post_init__(self) -> None:
        _check(self.cases, self.num_scales, self.length_scale, self.align, self.model)
        bare = [case.name for case in self.cases if not case.knows_noise]
        if self.factor and bare:
            raise ArgumentError(f"scale_noise: expected cases that all bring their noise, found none in {bare[0]!r}")

    def families(self, family: str) -> tuple[str, ...]:
        if family != "best" and family not in FAMILIES:
            raise ArgumentError(f"family: expected one of {', '.join(FAMILIES)}, best; found {family!r}")
        return tuple(FAMILIES) if family == "best" else (family,)

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
        scaled = self.factor or not case.knows_noise
        return aligned_sample(*points, noises, self.align, scaled=scaled, copies=rows.copies.astype(float)).sample

    def learn(self, family: str) -> Prior:
        samples, dials = self.samples(), self._dials(family)
        return self._prior(choose(samples, dials, self._search(samples, dials), self.model), self.cases)

    def learn_without_each(self, family: str) -> tuple[Prior, ...]:
        samples, dials = self.samples(), self._dials(family)
        self._refuse_lonely()
        others = [[*self.cases[:i], *self.cases[i + 1 :]] for i in range(len(samples))]
        searches = [self._search([*samples[:i], *samples[i + 1 :]], dials) for i in range(len(samples))]
        choices = choose_without_each(samples, dials, searches, self.model)
        return tuple(self._prior(choice, known) for choice, known in zip(choices, others, strict=True))

    def _refuse_lonely(self) -> None:
        """A case without a noise, all others having theirs, has nobody to learn one from."""
        bare = [case.name for case in self.cases if not case.knows_noise]
        if len(bare) == 1:
            raise LandmarkError(
                f"case {bare[0]!r} is the only one without covariances: no other case tells its noise; give it some, "
                "or pass over those of the others (--common-noise)"
            )

    def _dials(self, family: str) -> Dials:
        return Dials(FAMILIES[family], self.num_scales, noise="noise factor" if self.factor else "noise")

    def _search(self, samples: Sequence[Sample], dials: Dials) -> Search:
        return search_for(samples, dials, Held(self.length_scale), given_noise=self.factor, hyperprior=True)

    def _prior(self, choice: Choice, cases: Sequence[Case]) -> Prior:
        unknown = any(not case.knows_noise for case in cases)
        return Prior(
            choice.kernel, choice.noise_scale if unknown else None, choice.noise_scale if self.factor else 1.0,
            self.align, self.model, tuple(case.name for case in cases), sum(len(case) for case in cases),
            choice.evidence, choice.chosen, choice.followed,
        )  # fmt: skip


def _check(cases: Sequence[Case], num_scales: int, length_scale: float | None, align: str, model: str) -> None:
    if not cases:
        raise ArgumentError("cases: expected at least one, found none")
    if len({case.dimension for case in cases}) > 1:
        raise ArgumentError("cases: expected all in 2-D or all in 3-D, found both")
    if num_scales < 1 or (num_scales > 1 and length_scale is not None):
        raise ArgumentError(
            f"num_scales: expected one or more, and one where a length scale is kept; found {num_scales}"
        )
    check_kind(align)
    if model not in MODELS:
        raise ArgumentError(f"model: expected one of {', '.join(MODELS)}, found {model!r}")
