"""The answer, at the top of a cohort's page: how good is it over cases, is its uncertainty true,
which cases to see.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from scipy.stats import binom

from kunita import scores
from kunita.cohort.study_findings import OWN, Learning
from kunita.cohort.study_tables import Collected, DifferenceRow, MethodRow, coverage_band
from kunita.prior import Prior
from kunita.report.answer import RARE, Answer, Badge, Remark, Tile, mm
from kunita.report.cohort_tables import Shown, best_and_worst, percent
from kunita.scores import Interval

HALF, MOST = (scores.CALIBRATION_LEVELS.index(level) for level in (0.5, 0.95))

TAUGHT = (
    "These are the cases that the prior was learned on, so the errors and the coverage here are slightly too good. "
    "The command kunita loo learns without each case in turn: its figures are the honest ones."
)


def interval_words(value: Interval, unit: str, factor: float = 1.0) -> str:
    """Its interval over cases, or that there is none."""
    if value.low is None or value.high is None:
        return "Too few cases for an interval."
    return f"{mm(factor * value.low)} to {mm(factor * value.high)}{unit} over cases, 95 %."


# -------------------------------------------------------------------------------------------- study


def study_answer(
    methods: Sequence[MethodRow],
    apart: DifferenceRow,
    mine: Collected,
    draws: np.ndarray,
    cases: Sequence[Shown],
) -> Answer:
    """From the rows of all methods, our own less rigid alignment, and our own's landmarks.

    Args:
        methods: as the study has them, left out alone and with a region.
        apart: our own less rigid, case by case.
        mine: what our own method predicted.
        draws: of the bootstrap.
        cases: on the page.
    """
    badges = (
        calibration_badge(mine, coverage_band(mine, draws)),
        _ended_badge(methods),
        _rigid_badge(apart),
    )
    return Answer(tuple(_study_tiles(methods, apart, cases)), badges, ())


def learning_remarks(learning: Learning) -> tuple[Remark, ...]:
    """What the reader must know of where kernel and noise come from."""
    return (Remark("warning", f"{learning.value}."),) if learning is Learning.OWN else ()


def _study_tiles(
    methods: Sequence[MethodRow], apart: DifferenceRow, cases: Sequence[Shown]
) -> Iterator[Tile]:
    rows = {
        row.method: row for row in methods[::-1]
    }  # the first of each name: landmarks left out alone
    mine, rigid, none = (rows[name] for name in (OWN, "rigid", "none"))
    yield from score_tiles(mine)
    yield Tile(
        "Log score",
        mm(mine.nll),
        f"Mean negative log density of a left-out landmark, nats; lower is better. Rigid alone: {mm(rigid.nll)}.",
    )
    yield Tile(
        "Rigid alone, left out",
        f"{mm(rigid.error_mm)} mm",
        f"Without deformation. {_apart_words(apart.error)}",
    )
    yield Tile(
        "Before",
        f"{mm(none.error_mm)} mm",
        "Mean distance of the landmarks before any registration.",
    )
    yield cohort_tile(cases)
    yield from case_tiles(cases)


def score_tiles(mine: MethodRow) -> Iterator[Tile]:
    """Error and coverage of our own method."""
    error = Interval(mine.error_mm, mine.error_low_mm, mine.error_high_mm)
    held = Interval(mine.coverage_95, mine.coverage_95_low, mine.coverage_95_high)
    yield Tile(
        "Left out",
        f"{mm(mine.error_mm)} mm",
        f"{interval_words(error, ' mm')} Mean error of a landmark that is predicted from the others of its case.",
    )
    yield Tile(
        "Inside the 95 % regions",
        percent(mine.coverage_95),
        f"{interval_words(held, ' %', 100.0)} Of the landmarks that were left out; 95 % is honest.",
    )


def cohort_tile(cases: Sequence[Shown]) -> Tile:
    """How many cases and landmarks there are."""
    counts = [len(one.case) for one in cases]
    each = (
        f"{counts[0]} in each"
        if min(counts) == max(counts)
        else f"{min(counts)} to {max(counts)} in each"
    )
    number = "1 case" if len(cases) == 1 else f"{len(cases)} cases"
    return Tile(
        "Cohort",
        number,
        f"{sum(counts)} pairs of landmarks in {cases[0].case.dimension}-D, {each}.",
    )


def case_tiles(cases: Sequence[Shown]) -> Iterator[Tile]:
    """The best and the worst case, with links."""
    from markupsafe import Markup

    for title, one in zip(("Best case", "Worst case"), best_and_worst(cases), strict=True):
        inside = f"{one.inside} of {len(one.case)} landmarks inside their 95 % region."
        yield Tile(title, f"{mm(one.mean_mm)} mm", Markup("{}: {}").format(one.link, inside))


def _apart_words(apart: Interval) -> str:
    """By how much our own is closer than rigid alignment."""
    way = "closer" if apart.value <= 0 else "farther off"
    said = f"Case by case {OWN} is {mm(abs(apart.value))} mm {way}"
    if apart.low is None or apart.high is None:
        return f"{said}."
    ends = sorted((-apart.low, -apart.high)) if apart.value <= 0 else (apart.low, apart.high)
    return f"{said} ({_signed(ends[0])} to {_signed(ends[1])})."


def _signed(number: float) -> str:
    """With a minus sign that is not a hyphen."""
    return mm(number).replace("-", "−")


def _rigid_badge(apart: DifferenceRow) -> Badge:
    """Whether the deformation is worth anything: for the places of landmarks, and where it is not,
    for their scores.
    """
    error, score = apart.error, apart.log_score
    words = _apart_words(error)
    if error.low is None:
        return Badge("unknown", "deformation untested", f"{words} Too few cases to say more.")
    if error.holds_zero:
        text = "That could be chance."
        if not score.holds_zero:
            text += f" Its log score is {'better' if score.value < 0 else 'worse'} by more than chance does."
        return Badge("doubt", "as close as rigid", f"{words} {text}")
    if error.value < 0:
        return Badge("good", "closer than rigid", f"{words} That is more than chance.")
    return Badge("bad", "farther off than rigid", f"{words} Use rigid alignment alone.")


def _ended_badge(rows: Sequence[MethodRow]) -> Badge:
    """Whether all fits of all methods ended as they should, ours above all."""
    lost = {
        row.method: sum(other.unconverged for other in rows if other.method == row.method)
        for row in rows
    }
    named = ", ".join(f"{name}: {count}" for name, count in lost.items() if count)
    if not named:
        return Badge("good", "converged", "Every fit of every method converged.")
    kind = "bad" if lost[OWN] else "doubt"
    return Badge(
        kind, "not all converged", f"Predictions from fits that did not converge: {named}."
    )


# -------------------------------------------------------------------------------------- calibration


def calibration_badge(mine: Collected, band: np.ndarray) -> Badge:
    """Whether regions hold as many landmarks as they promise, judged over cases.

    Against the regions counts what neither cases (the band of the bootstrap) nor landmarks (a
    binomial, as for one registration) explain: the first alone is too narrow for few cases, the
    second for landmarks that depend on each other.

    Args:
        mine: what was predicted.
        band: (3, 19) of `coverage_band`.
    """
    n, (share, low, high) = len(mine.pits), band
    text = f"{percent(share[MOST])} of {n} landmarks lie inside their 95 % region"
    if mine.num_cases < scores.LEAST_CASES:
        return Badge(
            "unknown",
            "calibration open",
            f"{text}; too few cases to say how that varies over patients.",
        )
    text += f" ({percent(low[MOST])} to {percent(high[MOST])} over cases)"
    half, most = (round(n * float(share[level])) for level in (HALF, MOST))
    few = {
        0.95: high[MOST] < 0.95 and binom.cdf(most, n, 0.95) < RARE,
        0.50: high[HALF] < 0.50 and binom.cdf(half, n, 0.50) < RARE,
    }
    inner = f"{percent(share[HALF])} inside their 50 % region"
    if any(few.values()):
        return Badge("bad", "too sure", f"{text}, {inner}: the uncertainty is too small.")
    if low[HALF] > 0.5 and binom.sf(half - 1, n, 0.5) < RARE:
        return Badge(
            "doubt",
            "cautious",
            f"{text}, {inner} already: the uncertainty is larger than it need be.",
        )
    return Badge("good", "calibrated", f"{text}, {inner}.")


# -------------------------------------------------------------------------------------------- prior


def prior_answer(
    prior: Prior, mine: MethodRow, predicted: Collected, draws: np.ndarray, cases: Sequence[Shown]
) -> Answer:
    """Of a prior that was learned on these cases.

    Args:
        prior: what was learned.
        mine: how well it predicts each landmark from the others.
        predicted: these predictions.
        draws: of the bootstrap.
        cases: on the page.
    """
    tiles = (*_parameter_tiles(prior), cohort_tile(cases), *score_tiles(mine), *case_tiles(cases))
    badges = (
        _told_badge(prior),
        _followed_badge(prior, mine),
        calibration_badge(predicted, coverage_band(predicted, draws)),
    )
    return Answer(tiles, badges, (Remark("note", TAUGHT),))


def _parameter_tiles(prior: Prior) -> Iterator[Tile]:
    meanings = {
        "length scale": "How far a displacement reaches.",
        "amplitude": "Standard deviation of a displacement, along an axis, after the alignment.",
        "noise": "Standard deviation of a landmark about its true place, along an axis.",
        "noise factor": "By which the noise that the files bring is multiplied.",
    }
    for one in prior.chosen:
        unit = "" if one.name == "noise factor" else " mm"
        told = (
            f"95 % from {one.low:.3g} to {one.high:.3g}{unit}."
            if one.identified
            else "The cases do not determine it."
        )
        meaning = meanings.get(one.name.rstrip(" 0123456789"), "")
        yield Tile(one.name.capitalize(), f"{one.value:.3g}{unit}", f"{told} {meaning}")


def _told_badge(prior: Prior) -> Badge:
    if prior.unidentified:
        text = f"The cases do not determine the {', '.join(prior.unidentified)}: the hyper-prior or a limit decided."
        return Badge("doubt", "not all determined", text)
    return Badge(
        "good", "determined", "The cases determine every parameter, each within its 95 % interval."
    )


def _followed_badge(prior: Prior, mine: MethodRow) -> Badge:
    if not prior.converged:
        text = "The evidence is that of the small-deformation model: some flow could not be fitted."
        return Badge("bad", "not converged", text)
    if mine.unconverged:
        text = f"{mine.unconverged} landmarks are in cases whose registration with this prior did not converge."
        return Badge("bad", "not all converged", text)
    return Badge(
        "good",
        "converged",
        "The evidence was followed to its maximum, and every case's registration converged.",
    )
