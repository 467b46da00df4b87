"""What the third experiment says, in words: where the paper's observations hold, and where they do not."""

import itertools
from collections.abc import Iterator, Sequence

from kunita.cohort.leave_one_out import LEAST_OTHERS
from kunita.data.cohort import Case
from kunita.experiments.clinical_tables import PanelRow, PaperRow, PriorRow, best_row

PAPER_BEST_MM = 50.0
"""The length scale that the paper found best."""

NOTICEABLE = 0.02
"""A prior that predicts landmarks better than the alignment alone by less than this shows nothing."""


def findings(rows: Sequence[PriorRow], paper: Sequence[PaperRow], cases: Sequence[Case]) -> Iterator[str]:
    """What the numbers say; every sentence could have come out the other way."""
    rigid, scales = rows[0], rows[1:]
    yield from _how(rows, cases)
    yield from _which_is_best(rigid, scales)
    yield from _small_scales(rigid, scales)
    yield from _large_scales(scales, paper)
    yield from _uncertainty(scales, paper)
    yield from _calibrated(rigid, scales)


def _how(rows: Sequence[PriorRow], cases: Sequence[Case]) -> Iterator[str]:
    n, refitted = rows[0].landmarks, sum(row.landmarks for row in rows)
    learned = "on the other cases" if len(cases) > LEAST_OTHERS else "on the case itself, the cases being too few"
    known = sum(case.knows_noise for case in cases)
    noise = "the noise is the files' own" if known == len(cases) else "amplitude and noise are estimated"
    noise = noise if known in (0, len(cases)) else f"the noise is the files' own in {known} cases, else estimated"
    yield (
        f"{len(cases)} cases, {n} landmarks, {refitted} exact refits; parameters by the evidence {learned}; {noise}. "
        f"Before registration landmarks are {rows[0].before_mean_mm:.2f} mm apart on average."
    )
    lost = sum(row.unconverged for row in rows)
    worst = max(rows, key=lambda row: row.closed_form_off_mm)
    yield (
        f"{'Every refit converged' if not lost else f'{lost} of {refitted} refits did not converge'}; the closed form "
        f"of leave-one-out is within {worst.closed_form_off_mm:.3f} mm of the refits (worst for {_name(worst)})."
    )


def _which_is_best(rigid: PriorRow, scales: Sequence[PriorRow]) -> Iterator[str]:
    paper, honest = best_row(scales, "paper_median_mm"), best_row(scales, "honest_median_mm")
    mean, score = best_row(scales, "honest_mean_mm"), best_row(scales, "nll")
    agree = "agrees with" if paper.length_scale_mm == PAPER_BEST_MM else "is not"
    yield (
        f"By the paper's measure, the distance to the solution that included the landmark, {_name(paper)} is best "
        f"(median {paper.paper_median_mm:.2f} mm); this {agree} the paper's σ = {PAPER_BEST_MM:g} mm."
    )
    trust = "prefers no deformation at all" if rigid.paper_median_mm < paper.paper_median_mm else "prefers deformation"
    yield (
        f"The same measure {trust}: it gives the alignment alone {rigid.paper_median_mm:.2f} mm. "
        "It tells how little a landmark matters, not how well it is predicted."
    )
    same = "the same" if paper.length_scale_mm == honest.length_scale_mm else "another one"
    yield (
        f"By the distance to the landmark itself the best is {same}: {_name(honest)} by the median "
        f"({honest.honest_median_mm:.2f} mm), {_name(mean)} by the mean ({mean.honest_mean_mm:.2f} mm), "
        f"{_name(score)} by the log score ({score.nll:.2f})."
    )
    if rigid.truth_mean_mm is not None:
        true = best_row(scales, "truth_mean_mm")
        yield (
            f"Against the truth, which no noise blurs, {_name(true)} is best: {true.truth_mean_mm:.2f} mm on average, "
            f"the alignment alone {rigid.truth_mean_mm:.2f} mm."
        )


def _small_scales(rigid: PriorRow, scales: Sequence[PriorRow]) -> Iterator[str]:
    least, best = scales[0], best_row(scales, "honest_mean_mm")
    gained = (rigid.honest_mean_mm - least.honest_mean_mm) / max(rigid.honest_mean_mm - best.honest_mean_mm, 1e-9)
    if best.honest_mean_mm > (1 - NOTICEABLE) * rigid.honest_mean_mm:
        verdict = f"undecided: no prior predicts it better than the alignment alone by {100 * NOTICEABLE:.0f} % or more"
    elif gained < 0.5:
        verdict = f"holds: it brings {100 * max(gained, 0):.0f} % of what the best prior brings over the alignment"
    else:
        verdict = f"does not hold: it brings {100 * gained:.0f} % of what the best prior brings over the alignment"
    yield (
        f"“A small σ cannot move the left-out landmark” – {verdict}. Mean distances: alignment alone "
        f"{rigid.honest_mean_mm:.2f} mm, {_name(least)} {least.honest_mean_mm:.2f} mm, {_name(best)} "
        f"{best.honest_mean_mm:.2f} mm."
    )


def _large_scales(scales: Sequence[PriorRow], paper: Sequence[PaperRow]) -> Iterator[str]:
    last, at = scales[-1], min(scales, key=lambda row: abs((row.length_scale_mm or 0) - PAPER_BEST_MM))
    then, now = (next(row for row in paper if row.length_scale_mm == one.length_scale_mm) for one in (at, last))
    counts = (
        ("the paper's measure", at.paper_outliers, last.paper_outliers),
        ("the distance to the landmark", at.honest_outliers, last.honest_outliers),
        ("the paper's measure and parameters", then.paper_outliers, now.paper_outliers),
    )
    words = "; ".join(f"by {what} {a} → {b} ({_change(a, b)})" for what, a, b in counts)
    yield f"“A large σ has more outliers” – from {_name(at)} to {_name(last)}: {words}, of {at.landmarks} landmarks."


def _change(before: int, after: int) -> str:
    return "holds" if after > before else "does not hold" if after < before else "no difference"


def _uncertainty(scales: Sequence[PriorRow], paper: Sequence[PaperRow]) -> Iterator[str]:
    series = (
        ("with the paper's amplitude and noise", [row.std_mean_mm for row in paper]),
        ("with those that the evidence chooses", [row.std_mean_mm for row in scales]),
    )
    for how, stds in series:
        falls = all(b < a for a, b in itertools.pairwise(stds))
        verdict = "holds at every step" if falls else "holds from end to end" if stds[-1] < stds[0] else "does not hold"
        numbers = ", ".join(f"{std:.2f}" for std in stds)
        yield (
            f"“Uncertainty falls as smoothness rises” – {how}: {verdict} (mean standard deviation of a left-out "
            f"landmark at σ = {', '.join(f'{row.length_scale_mm:g}' for row in paper)} mm: {numbers} mm)."
        )


def _calibrated(rigid: PriorRow, scales: Sequence[PriorRow]) -> Iterator[str]:
    score = best_row(scales, "nll")
    inside = ", ".join(f"{100 * row.coverage_95:.0f} % at {_name(row)}" for row in (scales[0], score, scales[-1]))
    better = "better" if score.nll < rigid.nll else "no better"
    yield (
        f"95 % regions hold {inside}, and {100 * rigid.coverage_95:.0f} % for the alignment alone; the best log score, "
        f"{score.nll:.2f} at {_name(score)}, is {better} than {rigid.nll:.2f} without deformation."
    )


def panels_say(panels: Sequence[PanelRow], case: Case) -> Iterator[str]:
    """What the panels of the smoothing comparison show, in words."""
    for parameters in dict.fromkeys(row.parameters for row in panels):
        mine = [row for row in panels if row.parameters == parameters]
        first, last = mine[0], mine[-1]
        if len(mine) < 2:
            continue
        verb = "falls" if last.radius95_mean_mm < first.radius95_mean_mm else "rises"
        yield (
            f"On the plane shown of {case.name}, amplitude and noise {parameters}, the mean 95 % radius {verb} from "
            f"{first.radius95_mean_mm:.2f} mm at σ = {first.length_scale_mm:g} mm to {last.radius95_mean_mm:.2f} mm at "
            f"σ = {last.length_scale_mm:g} mm."
        )


def _name(row: PriorRow) -> str:
    return "the alignment alone" if row.length_scale_mm is None else f"σ = {row.length_scale_mm:g} mm"
