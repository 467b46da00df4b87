"""What the third experiment says, in words: where the observations of `sec:real-data` of
[wassermann:14] hold.
"""

import itertools
from collections.abc import Iterator, Sequence

from kunita.cohort.leave_one_out import LEAST_OTHERS
from kunita.data.case import Case
from kunita.experiments.clinical_tables import CaseRow, PanelRow, PaperRow, PriorRow, best_row

PAPER_BEST_MM = 50.0
"""The length scale that the paper found best."""

NOTICEABLE = 0.02
"""A prior that predicts landmarks better than the alignment alone by less than this shows nothing.
"""

SURE = 2.0
"""Standard errors that a difference must be larger than to be told from none."""


def findings(
    rows: Sequence[PriorRow],
    paper: Sequence[PaperRow],
    learned: Sequence[CaseRow],
    cases: Sequence[Case],
) -> Iterator[str]:
    """What the numbers say; every sentence could have come out the other way."""
    rigid, scales = rows[0], rows[1:]
    yield from _how(rows, cases)
    yield from _how_it_ended(rows, paper, learned)
    yield from _which_is_best(rigid, scales)
    yield from _small_scales(rigid, scales)
    yield from _variation(scales)
    yield from _large_scales(scales, paper)
    yield from _uncertainty(scales, paper)
    yield from _calibrated(rigid, scales)


def _how(rows: Sequence[PriorRow], cases: Sequence[Case]) -> Iterator[str]:
    n, refitted = rows[0].landmarks, sum(row.landmarks for row in rows)
    learned = (
        "on the other cases"
        if len(cases) > LEAST_OTHERS
        else "on the case itself, the cases being too few"
    )
    yield (
        f"{len(cases)} cases, {n} landmarks, {refitted} exact refits; parameters by the evidence {learned}; "
        f"{_whose_noise(cases)}. Before registration landmarks are {rows[0].before_mean_mm:.2f} mm apart on average."
    )


def _whose_noise(cases: Sequence[Case]) -> str:
    unknown = [case.name for case in cases if not case.knows_noise]
    if not unknown:
        return "the noise is the files' own"
    if len(unknown) == len(cases):
        return "amplitude and noise are estimated"
    words = f"the noise is the files' own in {len(cases) - len(unknown)} cases, else estimated"
    if len(unknown) > 1 or len(cases) <= LEAST_OTHERS:
        return words
    return f"{words} – for {unknown[0]} on the case itself, as no other case lacks a noise"


def _how_it_ended(
    rows: Sequence[PriorRow], paper: Sequence[PaperRow], learned: Sequence[CaseRow]
) -> Iterator[str]:
    """What went wrong in any of the fits, and how often."""
    refitted = sum(row.landmarks for row in rows)
    lost = sum(row.unconverged for row in rows)
    worst = max(rows, key=lambda row: row.closed_form_off_mm)
    yield (
        f"{'Every refit converged' if not lost else f'{lost} of {refitted} refits did not converge'}; the closed form "
        f"of leave-one-out is within {worst.closed_form_off_mm:.3f} mm of the refits (worst for {_name(worst)})."
    )
    fits = [row for row in learned if row.was_fitted]
    flat, stuck = sum(row.undetermined for row in fits), sum(not row.converged for row in fits)
    remarked = sum(bool(row.remarks) for row in fits)
    yield (
        f"Of {len(fits)} fits of a case under a prior whose parameters the evidence chose, {flat} could not determine "
        f"amplitude or noise, {stuck} did not converge, {remarked} have remarks (in the table of cases). With the "
        f"paper's parameters {sum(row.unconverged for row in paper)} fits did not converge."
    )


def _which_is_best(rigid: PriorRow, scales: Sequence[PriorRow]) -> Iterator[str]:
    paper, honest = best_row(scales, "paper_median_mm"), best_row(scales, "honest_median_mm")
    mean, score = best_row(scales, "honest_mean_mm"), best_row(scales, "nll")
    agree = "agrees with" if paper.length_scale_mm == PAPER_BEST_MM else "is not"
    yield (
        f"By the paper's measure, the distance to the solution that included the landmark, {_name(paper)} is best "
        f"(median {paper.paper_median_mm:.2f} mm); this {agree} the paper's σ = {PAPER_BEST_MM:g} mm."
    )
    trust = (
        "prefers no deformation at all"
        if rigid.paper_median_mm < paper.paper_median_mm
        else "prefers deformation"
    )
    yield (
        f"The same measure {trust}: it gives the alignment alone {rigid.paper_median_mm:.2f} mm. "
        "It tells how little a landmark matters, not how well it is predicted."
    )
    yield (
        f"By the mean distance to the landmark itself {_name(mean)} is best ({mean.honest_mean_mm:.2f} mm); "
        f"{_rivals(scales, 'behind_best')}. It is {_name(honest)} by the median ({honest.honest_median_mm:.2f} mm), "
        f"{_name(score)} by the log score ({score.nll:.2f})."
    )
    if rigid.truth_mean_mm is not None:
        true = best_row(scales, "truth_mean_mm")
        yield (
            f"Against the truth, which no noise blurs, {_name(true)} is best: {true.truth_mean_mm:.2f} mm on average, "
            f"the alignment alone {rigid.truth_mean_mm:.2f} mm; {_rivals(scales, 'truth_behind_best')}."
        )


def _rivals(scales: Sequence[PriorRow], name: str) -> str:
    """The length scales that cannot be told from the best one."""
    behind = [(row, getattr(row, f"{name}_mm"), getattr(row, f"{name}_se_mm")) for row in scales]
    if any(error is None for _, _, error in behind):
        return "one case has no standard error that would tell the others from it"
    near = [_name(row) for row, mean, error in behind if 0 < mean <= SURE * error]
    if not near:
        return f"no other is within {SURE:g} standard errors of it"
    return f"not to be told from it, within {SURE:g} standard errors, {'is' if len(near) == 1 else 'are'} {_list(near)}"


def _small_scales(rigid: PriorRow, scales: Sequence[PriorRow]) -> Iterator[str]:
    """Whether priors below the paper's best leave the landmark about where the alignment alone has
    it.
    """
    best, small = best_row(scales, "honest_mean_mm"), [row for row in scales if _is_small(row)]
    if not small:
        return
    if best.gain_mm < NOTICEABLE * rigid.honest_mean_mm or best.gain_mm <= SURE * (
        best.gain_se_mm or 0.0
    ):
        verdict = (
            f"undecided: no prior predicts it better than the alignment alone by {100 * NOTICEABLE:.0f} % and by "
            f"{SURE:g} standard errors"
        )
    else:
        verdict = (
            _verdict(small, [row.gain_mm < 0.5 * best.gain_mm for row in small]) + ": they bring "
        )
        verdict += _list(
            [f"{100 * row.gain_mm / best.gain_mm:.0f} % ({_name(row)})" for row in small]
        )
        verdict += f" of what {_name(best)} brings over the alignment, {_with_error(best.gain_mm, best.gain_se_mm)}"
    distances = _list(
        [
            f"{_name(row)} {row.honest_mean_mm:.2f} mm"
            for row in dict.fromkeys((rigid, *small, best))
        ]
    )
    yield f"“A small σ cannot move the left-out landmark” – {verdict}. Mean distances: {distances}."


def _variation(scales: Sequence[PriorRow]) -> Iterator[str]:
    """Whether distances vary more below the paper's best length scale than there."""
    at = _at_paper_best(scales)
    small = [row for row in scales if _is_small(row) and row is not at]
    if not small:
        return
    said = []
    for what, name in (
        ("by the paper's measure", "paper_sd_mm"),
        ("to the landmark", "honest_sd_mm"),
    ):
        sds = _list([f"{getattr(row, name):.2f} mm" for row in small])
        verdict = _verdict(small, [getattr(row, name) > getattr(at, name) for row in small])
        said.append(
            f"{what} it {verdict} (standard deviations {sds}, against {getattr(at, name):.2f} mm)"
        )
    yield f"“A small σ varies more”, compared with {_name(at)} – {'; '.join(said)}."


def _verdict(rows: Sequence[PriorRow], holds: Sequence[bool]) -> str:
    """Where a claim holds, and where not."""
    where, elsewhere = (
        [_name(row) for row, yes in zip(rows, holds, strict=True) if yes is it]
        for it in (True, False)
    )
    words = [f"holds at {_list(where)}"] if where else []
    return ", ".join([*words, *([f"does not hold at {_list(elsewhere)}"] if elsewhere else [])])


def _is_small(row: PriorRow) -> bool:
    return row.length_scale_mm is not None and row.length_scale_mm < PAPER_BEST_MM


def _at_paper_best(scales: Sequence[PriorRow]) -> PriorRow:
    """The length scale that is nearest to the one that the paper found best."""
    return min(scales, key=lambda row: abs((row.length_scale_mm or 0) - PAPER_BEST_MM))


def _with_error(mean: float, error: float | None) -> str:
    return f"{mean:.2f} mm" if error is None else f"{mean:.2f} ± {error:.2f} mm"


def _list(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _large_scales(scales: Sequence[PriorRow], paper: Sequence[PaperRow]) -> Iterator[str]:
    last, at = scales[-1], _at_paper_best(scales)
    then, now = (
        next(row for row in paper if row.length_scale_mm == one.length_scale_mm)
        for one in (at, last)
    )
    counts = (
        ("the paper's measure", at.paper_outliers, last.paper_outliers),
        ("the distance to the landmark", at.honest_outliers, last.honest_outliers),
        ("the paper's measure and parameters", then.paper_outliers, now.paper_outliers),
    )
    words = "; ".join(f"by {what} {a} → {b} ({_change(a, b)})" for what, a, b in counts)
    yield f"“A large σ has more outliers” – from {_name(at)} to {_name(last)}: {words}, of {at.landmarks} landmarks."


def _change(before: int, after: int) -> str:
    """Counts of rare things vary by chance by about their root."""
    if abs(after - before) <= SURE * (before + after) ** 0.5:
        return "no more than chance"
    return "holds" if after > before else "does not hold"


def _uncertainty(scales: Sequence[PriorRow], paper: Sequence[PaperRow]) -> Iterator[str]:
    series = (
        ("with the paper's amplitude and noise", [row.std_mean_mm for row in paper]),
        ("with those that the evidence chooses", [row.std_mean_mm for row in scales]),
    )
    for how, stds in series:
        falls = all(b < a for a, b in itertools.pairwise(stds))
        verdict = (
            "holds at every step"
            if falls
            else "holds from end to end"
            if stds[-1] < stds[0]
            else "does not hold"
        )
        numbers = ", ".join(f"{std:.2f}" for std in stds)
        yield (
            f"“Uncertainty falls as smoothness rises” – {how}: {verdict} (mean standard deviation of a left-out "
            f"landmark at σ = {', '.join(f'{row.length_scale_mm:g}' for row in paper)} mm: {numbers} mm)."
        )


def _calibrated(rigid: PriorRow, scales: Sequence[PriorRow]) -> Iterator[str]:
    score = best_row(scales, "nll")
    shown = dict.fromkeys((scales[0], score, scales[-1]))
    inside = ", ".join(f"{100 * row.coverage_95:.0f} % at {_name(row)}" for row in shown)
    better = "better" if score.nll < rigid.nll - 0.005 else "no better"
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
            f"σ = {last.length_scale_mm:g} mm{_unconverged(mine)}."
        )


def _unconverged(panels: Sequence[PanelRow]) -> str:
    lost = [f"σ = {row.length_scale_mm:g} mm" for row in panels if not row.converged]
    return f"; the fit did not converge at {_list(lost)}" if lost else ""


def _name(row: PriorRow) -> str:
    return (
        "the alignment alone" if row.length_scale_mm is None else f"σ = {row.length_scale_mm:g} mm"
    )
