"""The tables of the third experiment: what was left out, under which prior, and how well it was
predicted.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from kunita import scores


@dataclasses.dataclass(frozen=True)
class PriorRow:
    """What leave-one-out says of one prior, over all landmarks of all cases; outliers are those of
    a box plot.

    *paper*: distance to the solution that included the landmark (`fig:loo` of [wassermann:14]);
    *honest*: to the landmark; *truth*: to where it really is, for generated cohorts; *sd*: how much
    such distances vary. *behind_best*: the honest distance less that under the σ with the least
    mean, landmark by landmark; *gain*: that of the alignment alone less this one. *se*: standard
    errors of these over cases, none with one case. *std*: predicted, along a typical axis, the
    landmark's own noise not included. *unconverged*: refits.
    """

    prior: str
    length_scale_mm: float | None
    landmarks: int
    before_mean_mm: float
    paper_median_mm: float
    paper_mean_mm: float
    paper_sd_mm: float
    paper_outliers: int
    honest_median_mm: float
    honest_mean_mm: float
    honest_sd_mm: float
    honest_outliers: int
    behind_best_mm: float
    behind_best_se_mm: float | None
    gain_mm: float
    gain_se_mm: float | None
    truth_median_mm: float | None
    truth_mean_mm: float | None
    truth_behind_best_mm: float | None
    truth_behind_best_se_mm: float | None
    std_mean_mm: float
    coverage_50: float
    coverage_80: float
    coverage_90: float
    coverage_95: float
    coverage_99: float
    nll: float
    unconverged: int
    closed_form_off_mm: float


@dataclasses.dataclass(frozen=True)
class LandmarkRow:
    """A landmark that was left out, under one prior."""

    case: str
    landmark: str
    prior: str
    length_scale_mm: float | None
    before_mm: float
    paper_mm: float
    honest_mm: float
    squared_error: float
    std_mm: float
    truth_mm: float | None = None
    closed_form_off_mm: float = 0.0
    converged: bool = True


@dataclasses.dataclass(frozen=True)
class CaseRow:
    """The parameters of a case under one prior: what its own evidence chooses, and what was used
    instead.

    *undetermined*: its own evidence could not tell amplitude or noise; *converged*: the
    registration that chose them; *remarks*: all that this one warned of.
    """

    case: str
    prior: str
    length_scale_mm: float | None
    landmarks: int
    before_mean_mm: float
    own_amplitude_mm: float
    own_noise_mm: float | None
    amplitude_mm: float
    noise_mm: float
    undetermined: bool
    converged: bool
    remarks: str

    @property
    def was_fitted(self) -> bool:
        """Whether there was anything to choose: the alignment alone has no amplitude, and its noise
        may be known.
        """
        return self.length_scale_mm is not None or self.own_noise_mm is not None


@dataclasses.dataclass(frozen=True)
class PaperRow:
    """Leave-one-out in closed form with the paper's own parameters: amplitude 1 mm, noise √½ mm,
    whatever σ.

    *unconverged*: registrations, one per case.
    """

    length_scale_mm: float
    paper_median_mm: float
    paper_outliers: int
    honest_median_mm: float
    honest_outliers: int
    std_mean_mm: float
    coverage_95: float
    unconverged: int


@dataclasses.dataclass(frozen=True)
class PanelRow:
    """How sure the registration of the illustrated case is on the plane that is shown
    (`fig:reg-us-un`).
    """

    parameters: str
    length_scale_mm: float
    amplitude_mm: float
    radius95_mean_mm: float
    radius95_max_mm: float
    converged: bool


@dataclasses.dataclass(frozen=True)
class Prior:
    """One of the priors that are compared: a length scale, or none for the alignment alone."""

    length_scale_mm: float | None

    @property
    def label(self) -> str:
        return "rigid" if self.length_scale_mm is None else f"{self.length_scale_mm:g}"


@dataclasses.dataclass(frozen=True, eq=False)
class Outcome:
    """A landmark that was left out: its row, and the covariance that was predicted for it, noise
    included.
    """

    row: LandmarkRow
    covariance: np.ndarray


def prior_row(prior: Prior, outcomes: Sequence[Outcome]) -> PriorRow:
    """All landmarks under one prior, among what was found under all priors."""
    mine, rigid = _under(prior.label, outcomes), _under(Prior(None).label, outcomes)
    behind, gain = (
        paired(mine, _best(outcomes, "honest_mm"), "honest_mm"),
        paired(rigid, mine, "honest_mm"),
    )
    paper, honest, truth = (column(mine, name) for name in ("paper_mm", "honest_mm", "truth_mm"))
    result, known = scored(mine), not np.isnan(truth).any()
    astray = paired(mine, _best(outcomes, "truth_mm"), "truth_mm")
    fifty, eighty, ninety, ninety_five, ninety_nine = result.coverage
    return PriorRow(
        prior=prior.label,
        length_scale_mm=prior.length_scale_mm,
        landmarks=len(mine),
        before_mean_mm=float(column(mine, "before_mm").mean()),
        paper_median_mm=float(np.median(paper)),
        paper_mean_mm=float(paper.mean()),
        paper_sd_mm=float(paper.std(ddof=1)),
        paper_outliers=outliers(paper),
        honest_median_mm=float(np.median(honest)),
        honest_mean_mm=float(honest.mean()),
        honest_sd_mm=float(honest.std(ddof=1)),
        honest_outliers=outliers(honest),
        behind_best_mm=behind.mean_mm,
        behind_best_se_mm=behind.se_mm,
        gain_mm=gain.mean_mm,
        gain_se_mm=gain.se_mm,
        truth_median_mm=float(np.median(truth)) if known else None,
        truth_mean_mm=float(truth.mean()) if known else None,
        truth_behind_best_mm=astray.mean_mm if known else None,
        truth_behind_best_se_mm=astray.se_mm if known else None,
        std_mean_mm=float(column(mine, "std_mm").mean()),
        coverage_50=fifty,
        coverage_80=eighty,
        coverage_90=ninety,
        coverage_95=ninety_five,
        coverage_99=ninety_nine,
        nll=result.nll,
        unconverged=sum(not outcome.row.converged for outcome in mine),
        closed_form_off_mm=float(column(mine, "closed_form_off_mm").max()),
    )


def _under(label: str, outcomes: Sequence[Outcome]) -> list[Outcome]:
    return [outcome for outcome in outcomes if outcome.row.prior == label]


def _best(outcomes: Sequence[Outcome], name: str) -> list[Outcome]:
    """The outcomes under the length scale with the least mean."""
    labels = dict.fromkeys(
        outcome.row.prior for outcome in outcomes if outcome.row.length_scale_mm is not None
    )
    return min(
        (_under(label, outcomes) for label in labels), key=lambda found: column(found, name).mean()
    )


@dataclasses.dataclass(frozen=True)
class Difference:
    """Between two priors: the mean over landmarks, and its standard error over cases, if there are
    several.
    """

    mean_mm: float
    se_mm: float | None


def paired(these: Sequence[Outcome], those: Sequence[Outcome], name: str) -> Difference:
    """These less those, landmark by landmark.

    Landmarks of one case are not independent: they share a registration and a patient. So cases are
    what is counted.
    """
    place = {(outcome.row.case, outcome.row.landmark): k for k, outcome in enumerate(those)}
    order = [place[outcome.row.case, outcome.row.landmark] for outcome in these]
    differences = column(these, name) - column(those, name)[order]
    owners = np.array([outcome.row.case for outcome in these])
    means = [differences[owners == case].mean() for case in dict.fromkeys(owners)]
    error = float(np.std(means, ddof=1) / np.sqrt(len(means))) if len(means) > 1 else None
    return Difference(float(differences.mean()), error)


def scored(outcomes: Sequence[Outcome]) -> scores.Scores:
    """Errors, coverage and log score of some predictions."""
    covariances = np.stack([outcome.covariance for outcome in outcomes])
    return scores.scores(
        column(outcomes, "honest_mm"), column(outcomes, "squared_error"), covariances
    )


def column(outcomes: Sequence[Outcome], name: str) -> np.ndarray:
    """One field of the rows; NaN where there is none."""
    return np.array([getattr(outcome.row, name) for outcome in outcomes], dtype=float)


def outliers(values: np.ndarray) -> int:
    """How many values a box plot draws as dots: beyond 1.5 interquartile ranges from the quartiles."""
    low, high = np.percentile(values, [25, 75])
    reach = 1.5 * (high - low)
    return int(np.sum((values < low - reach) | (values > high + reach)))


def best_row(rows: Sequence[PriorRow], name: str) -> PriorRow:
    """The prior with a length scale that has least of something."""
    return min(
        (row for row in rows if row.length_scale_mm is not None), key=lambda row: getattr(row, name)
    )
