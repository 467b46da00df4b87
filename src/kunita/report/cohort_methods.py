"""The methods paragraphs of a cohort's pages, ready to paste."""

from collections.abc import Iterator
from typing import Any

import kunita
from kunita.cohort.study_findings import Learning
from kunita.cohort.study_tables import MethodRow
from kunita.kernels import describe_kernel
from kunita.prior import Prior
from kunita.report.cohort_tables import between, percent
from kunita.report.methods import program

WEAKLY = ", with weakly informative log-normal priors on the parameters"

HOW_LEARNED = {
    Learning.OTHERS: "maximised the summed marginal likelihood of the other cases (leave-one-patient-out)",
    Learning.OWN: "maximised the marginal likelihood of each case itself, the left-out landmark included",
    Learning.GIVEN: "were those of a prior that was learned before, the same for all cases",
}


def study_methods(
    settings: Any, learning: Learning, mine: MethodRow, rigid: MethodRow, prior: Prior, d: int
) -> str:
    """What was done in a leave-one-out study, and what came out.

    Args:
        settings: of the study.
        learning: where kernel and noise come from.
        mine, rigid: the rows of our own method and of rigid alignment.
        prior: one of those that were used.
        d: the dimension of space.
    """
    how = (
        "the others were registered again"
        if settings.exact
        else "it was taken out in closed form, to first order"
    )
    covered = between(
        *map(percent, (mine.coverage_95, mine.coverage_95_low, mine.coverage_95_high))
    )
    return " ".join(
        (
            f"{mine.landmarks} pairs of homologous landmarks of {mine.cases} cases in {d}-D were registered with "
            f"{program(kunita.__version__, prior.model, prior.align)}",
            f"Each landmark was left out in turn: {how}, and it was predicted with its uncertainty.",
            f"Kernel and noise {HOW_LEARNED[learning]}{'' if learning is Learning.GIVEN else WEAKLY}.",
            f"The mean error of left-out landmarks was {_millimetres(mine)}, with rigid alignment alone",
            f"{_millimetres(rigid)};",
            f"{covered} of them fell inside their 95 % regions, and the mean negative log density was {mine.nll:.2f} nats "
            f"(rigid alignment with a constant standard deviation: {rigid.nll:.2f}).",
            *_intervals(mine, settings),
        )
    )


def prior_methods(prior: Prior) -> str:
    """How a prior was learned."""
    return " ".join(
        (
            f"{prior.num_landmarks} pairs of homologous landmarks of {len(prior.cases)} cases were modelled with "
            f"{program(kunita.__version__, prior.model, prior.align)}",
            "Kernel and noise maximised the summed marginal likelihood of all cases, with weakly informative log-normal "
            f"priors on the parameters: {describe_kernel(prior.kernel)}{_noise(prior)}.",
            *(
                f"The {one.name} was {one.value:.3g} (95 % from {one.low:.3g} to {one.high:.3g})."
                for one in prior.chosen
                if one.identified
            ),
            *(f"The cases did not determine the {name}." for name in prior.unidentified),
        )
    )


def _noise(prior: Prior) -> str:
    known = "" if prior.noise_mm is None else f", noise {prior.noise_mm:.3g} mm per axis"
    return known + (
        ""
        if prior.noise_factor == 1.0
        else f", noise {prior.noise_factor:.3g} times what the files say"
    )


def _millimetres(row: MethodRow) -> str:
    ends = [
        f"{end:.2f}" if end is not None else "–" for end in (row.error_low_mm, row.error_high_mm)
    ]
    return between(f"{row.error_mm:.2f} mm", *ends)


def _intervals(mine: MethodRow, settings: Any) -> Iterator[str]:
    if mine.error_low_mm is not None:
        yield f"Intervals are 95 %, from a bootstrap over cases with {settings.resamples:,} resamples."
