"""What a leave-one-out study says, in words: every sentence is made from the numbers and could say
the opposite.
"""

import enum
from collections.abc import Iterator, Sequence

from kunita.cohort.study_tables import CaseRow, DifferenceRow, MethodRow
from kunita.scores import LEAST_CASES, Interval

OWN = "kunita"
"""The method that the study is about."""


class Learning(enum.Enum):
    """Where the parameters of the probabilistic methods come from."""

    OTHERS = "kernel and noise were learned on the other cases (leave-one-patient-out)"
    OWN = (
        "kernel and noise were chosen on each case itself, left-out landmarks included, as there are fewer than three "
        "cases: the scores are somewhat too good"
    )
    GIVEN = "kernel and noise are those of the given prior for all cases: nothing was learned here"


def findings(
    methods: Sequence[MethodRow],
    regions: Sequence[MethodRow],
    differences: Sequence[DifferenceRow],
    cases: Sequence[CaseRow],
    learning: Learning,
    *,
    exact: bool,
) -> Iterator[str]:
    """What the tables say."""
    mine, others = _of(methods, OWN), [row for row in methods if row.method != OWN]
    how = "exact refits" if exact else "in closed form, to first order"
    yield f"{mine.cases} cases, {mine.landmarks} landmarks, each left out, {how}; {learning.value}."
    yield from _errors(mine, [row for row in differences if row.method == OWN])
    yield from _calibrated(mine)
    yield from _log_scores(mine, [row for row in differences if row.method == OWN])
    yield from _knows(mine)
    yield from _paper(_of(methods, "paper"))
    yield from _length_scales(mine, others)
    yield from _region(regions)
    yield from _ended(methods, regions, cases)


def _of(rows: Sequence[MethodRow], name: str) -> MethodRow:
    return next(row for row in rows if row.method == name)


def _errors(mine: MethodRow, differences: Sequence[DifferenceRow]) -> Iterator[str]:
    error = Interval(mine.error_mm, mine.error_low_mm, mine.error_high_mm)
    median = f"{mine.error_median_mm:.2f} mm in the median"
    yield f"A left-out landmark is missed by {_number(error, ' mm')} on average, {median}."
    words = [
        f"{_compared(row.error, ' mm', 'closer', 'farther off')} {row.less} ({row.better_cases} of {row.cases} closer)"
        for row in differences
    ]
    if words:
        yield f"Case by case that is {'; '.join(words)}."


def _log_scores(mine: MethodRow, differences: Sequence[DifferenceRow]) -> Iterator[str]:
    words = [f"{_compared(row.log_score, '', 'lower', 'higher')} {row.less}" for row in differences]
    nll = Interval(mine.nll, mine.nll_low, mine.nll_high)
    yield (
        f"The negative log density of a left-out landmark is {_number(nll, '')} on average (lower is better)."
        + (f" Case by case that is {'; '.join(words)}." if words else "")
    )


def _compared(difference: Interval, unit: str, better: str, worse: str) -> str:
    """A difference whose negative is better, as `0.033 mm (0.011 to 0.060) closer than`; no sign
    that is open.
    """
    value, low, high = difference.value, difference.low, difference.high
    if low is None or high is None:
        return f"{abs(value):.3f}{unit} {better if value < 0 else worse} than"
    low, high = (low, high) if value > 0 else (-high, -low)
    doubt = "; this could be chance" if difference.holds_zero else ""
    return f"{abs(value):.3f}{unit} ({low:.3f} to {high:.3f}{doubt}) {better if value < 0 else worse} than"


def _calibrated(mine: MethodRow) -> Iterator[str]:
    inside = Interval(
        100 * mine.coverage_95, *_percent(mine.coverage_95_low, mine.coverage_95_high)
    )
    shares = ", ".join(
        f"{level} %: {100 * getattr(mine, f'coverage_{level}'):.0f} %" for level in (50, 80, 90, 99)
    )
    verdict = ""
    if inside.low is not None and inside.high is not None and not inside.low <= 95 <= inside.high:
        verdict = ": too sure" if inside.value < 95 else ": not sure enough"
    yield (
        f"Its 95 % regions held {_number(inside, ' %', digits=0)} of them{verdict} ({shares}); over 19 levels coverage "
        f"is off by {100 * mine.calibration_error:.1f} points on average."
    )


def _percent(*values: float | None) -> tuple[float | None, ...]:
    return tuple(None if value is None else 100 * value for value in values)


def _knows(mine: MethodRow) -> Iterator[str]:
    if mine.rank_correlation is None or mine.sparsification_area is None or mine.map_sd_mm is None:
        return
    yield (
        f"The predicted standard deviation is {mine.sd_mm:.2f} mm on average ({mine.map_sd_mm:.2f} mm without the "
        f"noise of the landmark itself); its rank correlation with the error is {mine.rank_correlation:.2f}, the area "
        f"between its sparsification curve and the oracle's {mine.sparsification_area:.2f} of the mean error."
    )


def _paper(paper: MethodRow) -> Iterator[str]:
    yield (
        f"The paper's own setting (σ = 50 mm, amplitude 1 mm, noise √½ mm) misses by {paper.error_mm:.2f} mm; its 95 % "
        f"regions held {100 * paper.coverage_95:.0f} %, its negative log density is {paper.nll:.2f}."
    )


def _length_scales(mine: MethodRow, others: Sequence[MethodRow]) -> Iterator[str]:
    scales = [row for row in others if row.method.startswith(f"{OWN} ")]
    if not scales:
        return
    error, score = (min(scales, key=lambda row: getattr(row, name)) for name in ("error_mm", "nll"))
    yield (
        f"Of the given length scales {_scale(error)} has the least mean error ({error.error_mm:.2f} mm), "
        f"{_scale(score)} the best log score ({score.nll:.2f}); the learned one has {mine.error_mm:.2f} mm and "
        f"{mine.nll:.2f}."
    )


def _scale(row: MethodRow) -> str:
    return row.method.removeprefix(f"{OWN} ")


def _region(regions: Sequence[MethodRow]) -> Iterator[str]:
    mine, rest = (
        _of(regions, OWN),
        [row for row in regions if row.method in ("rigid", "tps", "small")],
    )
    others = ", ".join(f"{row.method} {row.error_mm:.2f} mm" for row in rest)
    inside = Interval(
        100 * mine.coverage_95, *_percent(mine.coverage_95_low, mine.coverage_95_high)
    )
    yield (
        f"Where a third of the landmarks, all on one side, is left out together ({mine.landmarks} in all), they are "
        f"missed by {mine.error_mm:.2f} mm ({others}); the 95 % regions held {_number(inside, ' %', digits=0)}."
    )


def _ended(
    methods: Sequence[MethodRow], regions: Sequence[MethodRow], cases: Sequence[CaseRow]
) -> Iterator[str]:
    lost = [(row.method, row.unconverged) for row in (*methods, *regions) if row.unconverged]
    if lost:
        names = ", ".join(dict.fromkeys(name for name, _ in lost))
        yield f"{sum(count for _, count in lost)} predictions come from fits that did not converge ({names})."
    flat = sum(bool(row.undecided) for row in cases if row.method == OWN)
    if flat:
        yield f"{flat} of the {OWN} priors leave a parameter undecided (see the table of cases)."
    if methods[0].cases < LEAST_CASES:
        yield "With so few cases there are no intervals: how far another patient would differ is not known."


def _number(value: Interval, unit: str, digits: int = 2) -> str:
    """`1.29 mm (1.10 to 1.48)`."""
    if value.low is None or value.high is None:
        return f"{value.value:.{digits}f}{unit}"
    return f"{value.value:.{digits}f}{unit} ({value.low:.{digits}f} to {value.high:.{digits}f})"
