"""The tables of a study: methods, differences between them, cases, landmarks. All intervals are by
case.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from kunita import scores
from kunita.cohort.study import Held, Tried
from kunita.kernels import AbstractProfile, describe_kernel
from kunita.scores import Interval

LEFT_OUT = ("alone", "region")
"""How a landmark can be left out: by itself, or with the others of a region; fields of `Tried`."""


@dataclasses.dataclass(frozen=True)
class MethodRow:
    """How well a method predicts landmarks that it has not seen.

    *error*: mean distance to the landmark over all landmarks, *case_error* the mean over cases of
    their means, *median* over all landmarks. *coverage_p*: share of landmarks inside their p %
    region. *calibration_error*: mean over the levels 5, 10 … 95 % of |coverage − level|. *nll*:
    mean negative log density of a landmark, nats. *sd*: mean predicted standard deviation along a
    typical axis, the noise of the landmark included; *map_sd*: not included (methods with one
    constant sd cannot tell). *rank_correlation*: Spearman's of predicted sd and error;
    *sparsification_area*: between the curve of the method and the oracle's, over the mean error;
    both only for methods whose sd differs from landmark to landmark. *low*, *high*: 95 % interval
    of a bootstrap over cases, none with fewer than three. *unconverged*: landmarks whose fit did
    not converge.
    """

    method: str
    cases: int
    landmarks: int
    error_mm: float
    error_low_mm: float | None
    error_high_mm: float | None
    case_error_mm: float
    error_median_mm: float
    coverage_50: float
    coverage_80: float
    coverage_90: float
    coverage_95: float
    coverage_95_low: float | None
    coverage_95_high: float | None
    coverage_99: float
    calibration_error: float
    nll: float
    nll_low: float | None
    nll_high: float | None
    sd_mm: float
    map_sd_mm: float | None
    rank_correlation: float | None
    sparsification_area: float | None
    unconverged: int


@dataclasses.dataclass(frozen=True)
class DifferenceRow:
    """A method less another, case by case: negative is better.

    *error*, *nll*: means over cases of the differences of the cases' means; *low*, *high*: 95 %
    interval of a bootstrap over cases. *better_cases*: cases in which the method has the smaller
    mean error.
    """

    method: str
    less: str
    cases: int
    better_cases: int
    error_mm: float
    error_low_mm: float | None
    error_high_mm: float | None
    nll: float
    nll_low: float | None
    nll_high: float | None

    @property
    def error(self) -> Interval:
        return Interval(self.error_mm, self.error_low_mm, self.error_high_mm)

    @property
    def log_score(self) -> Interval:
        return Interval(self.nll, self.nll_low, self.nll_high)


@dataclasses.dataclass(frozen=True)
class CaseRow:
    """A method tried on a case: its scores there, and what it had learned before.

    *learned_on*: the number of cases that the prior was learned on; *undecided*: parameters that
    these do not determine; *followed*: whether the evidence of the model itself could be followed.
    *constant_sd*: of the methods that have no other uncertainty. *region_error*: mean distance
    where the region was left out.
    """

    case: str
    method: str
    landmarks: int
    error_mm: float
    coverage_95: float
    nll: float
    region_error_mm: float
    constant_sd_mm: float | None
    kernel: str | None
    length_scale_mm: float | None
    amplitude_mm: float | None
    noise_mm: float | None
    noise_factor: float | None
    learned_on: int | None
    undecided: str | None
    followed: bool | None
    unconverged: int


@dataclasses.dataclass(frozen=True)
class LandmarkRow:
    """A landmark as a method predicts it that has not seen it.

    *left_out*: alone, or with its region. *pit*: probability of the smallest region that holds it,
    uniform if honest.
    """

    case: str
    landmark: str
    method: str
    left_out: str
    error_mm: float
    squared_error: float
    pit: float
    nll: float
    sd_mm: float
    map_sd_mm: float | None
    converged: bool


# ----------------------------------------------------------------------------- a method's landmarks


@dataclasses.dataclass(frozen=True, eq=False)
class Collected:
    """All landmarks that a method predicted, over all cases.

    Args:
        method: its name.
        owners: (n,) the case of each landmark, 0 … k − 1.
        errors, pits, log_scores, stds_mm: (n,) of each.
        map_stds_mm: (n,) without noise, if the method tells.
        converged: (n,) whether its fit did.
    """

    method: str
    owners: np.ndarray
    errors: np.ndarray
    pits: np.ndarray
    log_scores: np.ndarray
    stds_mm: np.ndarray
    map_stds_mm: np.ndarray | None
    converged: np.ndarray

    @property
    def num_cases(self) -> int:
        return int(self.owners[-1]) + 1

    @property
    def tells_apart(self) -> bool:
        """Whether the method is surer of one landmark than of another in the same case."""
        return self.map_stds_mm is not None

    def by_case(self, values: np.ndarray) -> np.ndarray:
        """(k,) means over the landmarks of each case."""
        return np.bincount(self.owners, values) / np.bincount(self.owners)

    @property
    def sparsification(self) -> scores.Sparsification:
        return scores.sparsification(self.errors, self.stds_mm)


def collected(found: Sequence[Tried], left_out: str = "alone") -> tuple[Collected, ...]:
    """One for each method, in their order, with what was left out in this way."""
    names = dict.fromkeys(one.method for one in found)
    return tuple(
        joined(name, [getattr(one, left_out) for one in found if one.method == name])
        for name in names
    )


def joined(name: str, held: Sequence[Held]) -> Collected:
    """What a method held out in every case, in their order."""
    join = lambda parts: np.concatenate(list(parts))
    stds = [one.map_stds_mm for one in held if one.map_stds_mm is not None]
    predictions = [one.predictions for one in held]
    return Collected(
        name,
        np.repeat(np.arange(len(held)), [len(one.rows) for one in held]),
        join(p.errors for p in predictions),
        join(p.pit for p in predictions),
        join(p.log_scores for p in predictions),
        join(p.stds for p in predictions),
        join(stds) if stds else None,
        join(one.converged for one in held),
    )


# --------------------------------------------------------------------------------------------- rows


def method_row(mine: Collected, draws: np.ndarray) -> MethodRow:
    """The scores of a method; `draws` are those of `scores.case_draws`."""
    error, ninety_five, nll = _intervals(mine, draws)
    honesty = scores.covered(mine.pits, scores.CALIBRATION_LEVELS).mean(axis=0)
    fifty, eighty, ninety, _, ninety_nine = scores.covered(mine.pits, scores.LEVELS).mean(axis=0)
    told = mine.tells_apart
    return MethodRow(
        method=mine.method,
        cases=mine.num_cases,
        landmarks=len(mine.errors),
        error_mm=error.value,
        error_low_mm=error.low,
        error_high_mm=error.high,
        case_error_mm=float(mine.by_case(mine.errors).mean()),
        error_median_mm=float(np.median(mine.errors)),
        coverage_50=float(fifty),
        coverage_80=float(eighty),
        coverage_90=float(ninety),
        coverage_95=ninety_five.value,
        coverage_95_low=ninety_five.low,
        coverage_95_high=ninety_five.high,
        coverage_99=float(ninety_nine),
        calibration_error=float(scores.calibration_error(honesty)),
        nll=nll.value,
        nll_low=nll.low,
        nll_high=nll.high,
        sd_mm=float(mine.stds_mm.mean()),
        map_sd_mm=None if mine.map_stds_mm is None else float(mine.map_stds_mm.mean()),
        rank_correlation=scores.rank_correlation(mine.stds_mm, mine.errors) if told else None,
        sparsification_area=mine.sparsification.area if told else None,
        unconverged=int(np.sum(~mine.converged)),
    )


def _intervals(mine: Collected, draws: np.ndarray) -> tuple[Interval, ...]:
    """Mean error, coverage at 95 % and log score, with their intervals."""
    values = np.column_stack([mine.errors, scores.covered(mine.pits, (0.95,)), mine.log_scores])
    means = np.concatenate(
        [values.mean(axis=0)[None], scores.pooled_means(values, mine.owners, draws)]
    )
    return tuple(scores.interval(column[0], column[1:], mine.num_cases) for column in means.T)


def coverage_band(mine: Collected, draws: np.ndarray) -> np.ndarray:
    """(3, 19) coverage at the levels of the calibration error, and the ends of its intervals
    (itself, if few cases).
    """
    inside = scores.covered(mine.pits, scores.CALIBRATION_LEVELS).astype(float)
    middle = inside.mean(axis=0)
    if mine.num_cases < scores.LEAST_CASES:
        return np.stack([middle] * 3)
    low, high = np.quantile(scores.pooled_means(inside, mine.owners, draws), (0.025, 0.975), axis=0)
    return np.stack([middle, low, high])


def difference_rows(found: Sequence[Collected], draws: np.ndarray) -> Iterator[DifferenceRow]:
    """Every method less each of those before it."""
    for k, mine in enumerate(found):
        for other in found[:k]:
            yield difference_row(mine, other, draws)


def difference_row(mine: Collected, other: Collected, draws: np.ndarray) -> DifferenceRow:
    """The paired differences of two methods."""
    error, nll = (
        mine.by_case(getattr(mine, name)) - other.by_case(getattr(other, name))
        for name in ("errors", "log_scores")
    )
    off, score = (
        scores.interval(each.mean(), each[draws].mean(axis=1), mine.num_cases)
        for each in (error, nll)
    )
    return DifferenceRow(
        mine.method,
        other.method,
        mine.num_cases,
        int(np.sum(error < 0)),
        off.value,
        off.low,
        off.high,
        score.value,
        score.low,
        score.high,
    )


def case_row(one: Tried) -> CaseRow:
    """The scores of a method on a case, and what it had learned."""
    held, prior = one.alone.predictions, one.prior
    kernel = prior.kernel if prior else None
    single = (
        kernel if isinstance(kernel, AbstractProfile) else None
    )  # a sum of kernels has no one length scale
    return CaseRow(
        case=one.case.name,
        method=one.method,
        landmarks=len(held),
        error_mm=float(held.errors.mean()),
        coverage_95=float(np.mean(held.pit <= 0.95)),
        nll=float(held.log_scores.mean()),
        region_error_mm=float(one.region.predictions.errors.mean()),
        constant_sd_mm=one.sd_mm,
        kernel=describe_kernel(kernel) if kernel is not None else None,
        length_scale_mm=float(single.length_scale) if single is not None else None,
        amplitude_mm=float(single.amplitude) if single is not None else None,
        noise_mm=prior.noise_mm if prior and not one.case.knows_noise else None,
        noise_factor=prior.noise_factor if prior and one.case.knows_noise else None,
        learned_on=len(prior.cases) if prior else None,
        undecided=", ".join(prior.unidentified) if prior else None,
        followed=prior.converged if prior else None,
        unconverged=sum(int(np.sum(~getattr(one, how).converged)) for how in LEFT_OUT),
    )


def landmark_rows(one: Tried) -> Iterator[LandmarkRow]:
    """Every landmark of a case that a method was tried on, left out alone and then with its region."""
    for how in LEFT_OUT:
        held: Held = getattr(one, how)
        found, maps = held.predictions, held.map_stds_mm
        errors, squared, pits, nll, sds = (
            found.errors,
            found.squared,
            found.pit,
            found.log_scores,
            found.stds,
        )
        for k, row in enumerate(held.rows):
            yield LandmarkRow(
                case=one.case.name,
                landmark=one.case.moving.labels[row],
                method=one.method,
                left_out=how,
                error_mm=float(errors[k]),
                squared_error=float(squared[k]),
                pit=float(pits[k]),
                nll=float(nll[k]),
                sd_mm=float(sds[k]),
                map_sd_mm=None if maps is None else float(maps[k]),
                converged=bool(held.converged[k]),
            )
