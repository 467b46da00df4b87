"""The paper's third experiment: leave-one-out over a cohort for a range of length scales, and a case to look at.

The paper leaves out one landmark of a case, registers the others, and measures the distance to *the solution that
included it*. That is small wherever a landmark has little influence, on a prior that is too stiff above all; so the
distance to the landmark itself is measured too, and whether the predicted uncertainty was true. Amplitude and unknown
noise are chosen by the evidence on the *other* cases.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.figure import Figure

from kunita import scores
from kunita.cohort.leave_one_out import (
    LEAST_OTHERS,
    LeftOut,
    Parameters,
    Refit,
    closed_form,
    kernel_of,
    known_noise,
    leave_one_patient_out,
    own_parameters,
    refits,
    register_rows,
    with_noise,
)  # fmt: skip
from kunita.data.cohort import Case, generated_cohort
from kunita.data.landmarks import Landmarks
from kunita.errors import ArgumentError
from kunita.experiments.experiment import Experiment, Plate, Progress, Table, Tell, silent
from kunita.figures import clinical as figures
from kunita.kernels import Gaussian
from kunita.registration import Registration

PAPER_BEST_MM = 50.0
"""The length scale that the paper found best."""

PAPER_AMPLITUDE_MM, PAPER_NOISE_MM = 1.0, 0.5**0.5
"""The paper's kernel has amplitude 1, and its data term ‖·‖² is the noise D = ½I."""


NOTICEABLE = 0.02
"""A prior that predicts landmarks better than the alignment alone by less than this shows nothing."""

RIM = 0.15
"""A landmark in this part of the fixed image, at its rim, is not what a figure is about."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """How the experiment is run.

    Args:
        length_scales_mm: of the priors that are compared, from rough to smooth.
        panels_mm: those whose maps are shown.
        align: the alignment, which is part of the model.
        table: the file that lists the cases; without one they are generated.
        num_cases, seed, counts: of the generated cohort; its numbers of landmarks, least and largest.
        image_spacing_mm: of the generated MRI.
    """

    length_scales_mm: tuple[float, ...] = (5.0, 10.0, 25.0, 50.0, 100.0, 200.0)
    panels_mm: tuple[float, ...] = (10.0, 25.0, 50.0, 100.0, 200.0)
    align: str = "rigid"
    table: str | None = None
    num_cases: int = 12
    seed: int = 0
    counts: tuple[int, int] = (20, 37)
    image_spacing_mm: float = 1.0


FULL = Settings()

QUICK = Settings((10.0, 50.0, 200.0), (10.0, 50.0, 200.0), num_cases=3, counts=(12, 16), image_spacing_mm=2.5)


@dataclasses.dataclass(frozen=True)
class PriorRow:
    """What leave-one-out says of one prior, over all landmarks of all cases; outliers are those of a box plot.

    *paper*: distance to the solution that included the landmark; *honest*: to the landmark; *truth*: to where it really
    is, for generated cohorts. *std*: predicted, along a typical axis, the landmark's own noise not included.
    """

    prior: str
    length_scale_mm: float | None
    landmarks: int
    before_mean_mm: float
    paper_median_mm: float
    paper_mean_mm: float
    paper_outliers: int
    honest_median_mm: float
    honest_mean_mm: float
    honest_outliers: int
    truth_median_mm: float | None
    truth_mean_mm: float | None
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
    """The parameters of a case under one prior: what its own evidence chooses, and what was used instead."""

    case: str
    prior: str
    length_scale_mm: float | None
    landmarks: int
    before_mean_mm: float
    own_amplitude_mm: float
    own_noise_mm: float | None
    amplitude_mm: float
    noise_mm: float


@dataclasses.dataclass(frozen=True)
class PaperRow:
    """Leave-one-out in closed form with the paper's own parameters: amplitude 1 mm, noise √½ mm, whatever σ."""

    length_scale_mm: float
    paper_median_mm: float
    paper_outliers: int
    honest_median_mm: float
    honest_outliers: int
    std_mean_mm: float
    coverage_95: float


@dataclasses.dataclass(frozen=True)
class PanelRow:
    """How sure the registration of the illustrated case is on the plane that is shown."""

    parameters: str
    length_scale_mm: float
    amplitude_mm: float
    radius95_mean_mm: float
    radius95_max_mm: float


@dataclasses.dataclass(frozen=True)
class Prior:
    """One of the priors that are compared: a length scale, or none for the alignment alone."""

    length_scale_mm: float | None

    @property
    def label(self) -> str:
        return "rigid" if self.length_scale_mm is None else f"{self.length_scale_mm:g}"


@dataclasses.dataclass(frozen=True, eq=False)
class Outcome:
    """A landmark that was left out: its row, and the covariance that was predicted for it, noise included."""

    row: LandmarkRow
    covariance: np.ndarray


def cases_of(settings: Settings = FULL) -> tuple[Case, ...]:
    """The generated cohort that the settings speak of; the case with the largest shift has images."""
    spacing = settings.image_spacing_mm
    return generated_cohort(settings.num_cases, settings.seed, counts=settings.counts, image_spacing=spacing)


def clinical(cases: Sequence[Case], settings: Settings = FULL, tell: Tell = silent) -> Experiment:
    """Leave out every landmark of every case under every prior, and show one case.

    Args:
        cases: of one dimension; see `cases_of` and `kunita.io.case_table.read_cases`.
        settings: how.
        tell: told what begins and how far it is.
    """
    _check(cases, settings)
    priors = (Prior(None), *(Prior(scale) for scale in settings.length_scales_mm))
    num_rows = max(len(case) for case in cases)
    chosen = _choose(cases, priors, num_rows, settings, tell("choosing parameters by the evidence"))
    outcomes = _leave_out(cases, priors, chosen, num_rows, settings, tell("leaving out one landmark at a time"))
    rows = tuple(_prior_row(prior, outcomes) for prior in priors)
    paper = _paper_rows(cases, num_rows, settings, tell("the same with the paper's own parameters"))
    tables = [
        Table("clinical", rows),
        Table("clinical_landmarks", tuple(outcome.row for outcome in outcomes)),
        Table("clinical_cases", tuple(_case_rows(cases, priors, chosen))),
        Table("clinical_paper_parameters", paper),
    ]
    plates = [
        Plate("clinical_leave_one_out", _box_plots(rows, outcomes)),
        Plate("clinical_calibration", _calibration(rows, outcomes)),
    ]
    pictured = next((k for k, case in enumerate(cases) if case.has_images), None)
    said: tuple[str, ...] = ("No case has images: there is nothing to show warped.",)
    if pictured is not None:
        used = tuple((prior, found.used[pictured]) for prior, found in zip(priors, chosen, strict=True))
        best = Prior(best_row(rows, "nll").length_scale_mm)
        picture = Picture(cases[pictured], used, best, num_rows, settings)
        more, panels = _plates(picture, tell("drawing a case"))
        plates, tables, said = (
            [*plates, *more],
            [*tables, Table("clinical_panels", panels)],
            (*_panels_say(panels, picture.case),),
        )
    findings = (*_findings(rows, paper, cases), *said)
    return Experiment("clinical", settings, tuple(tables), tuple(plates), findings)


def _check(cases: Sequence[Case], settings: Settings) -> None:
    if not cases:
        raise ArgumentError("cases: expected at least one, found none")
    if len({case.dimension for case in cases}) > 1:
        raise ArgumentError("cases: expected all in 2-D or all in 3-D, found both")
    unknown = set(settings.panels_mm) - set(settings.length_scales_mm)
    if unknown:
        raise ArgumentError(f"panels_mm: expected some of the length scales, found {sorted(unknown)}")


# ---------------------------------------------------------------------------------------------------------- parameters


@dataclasses.dataclass(frozen=True)
class Chosen:
    """The parameters of all cases under one prior: what each would choose, and what is used for it."""

    own: tuple[Parameters, ...]
    used: tuple[Parameters, ...]


def _choose(
    cases: Sequence[Case], priors: Sequence[Prior], num_rows: int, settings: Settings, progress: Progress
) -> tuple[Chosen, ...]:
    """For each prior, parameters by the evidence, learned on the other cases."""
    chosen = []
    for k, prior in enumerate(priors):
        own = []
        for i, case in enumerate(cases):
            own.append(own_parameters(case, prior.length_scale_mm, num_rows, settings.align))
            progress((k + (i + 1) / len(cases)) / len(priors))
        chosen.append(Chosen(tuple(own), leave_one_patient_out(own)))
    return tuple(chosen)


def _case_rows(cases: Sequence[Case], priors: Sequence[Prior], chosen: Sequence[Chosen]) -> Iterator[CaseRow]:
    for prior, found in zip(priors, chosen, strict=True):
        for case, own, used in zip(cases, found.own, found.used, strict=True):
            yield CaseRow(
                case.name, prior.label, prior.length_scale_mm, len(case), float(case.distances.mean()),
                own.amplitude_mm, own.noise_mm, used.amplitude_mm, _noise_mm(*known_noise(case, used)),
            )  # fmt: skip


def _noise_mm(moving: Landmarks, fixed: Landmarks) -> float:
    """Typical standard deviation of both sides together, mm."""
    known = [side.covariances for side in (moving, fixed) if side.covariances is not None]
    return float(np.sqrt(sum(np.mean(np.trace(c, axis1=1, axis2=2)) for c in known) / moving.dimension))


# ------------------------------------------------------------------------------------------------------- leave-one-out


def _leave_out(
    cases: Sequence[Case],
    priors: Sequence[Prior],
    chosen: Sequence[Chosen],
    num_rows: int,
    settings: Settings,
    progress: Progress,
) -> list[Outcome]:
    """Every landmark of every case under every prior, by exact refits."""
    total, outcomes = len(priors) * sum(len(case) for case in cases), []
    for prior, found in zip(priors, chosen, strict=True):
        for case, parameters in zip(cases, found.used, strict=True):
            for outcome in _leave_out_of(case, prior, parameters, num_rows, settings.align):
                outcomes.append(outcome)
                progress(len(outcomes) / total)
    return outcomes


def _leave_out_of(case: Case, prior: Prior, parameters: Parameters, num_rows: int, align: str) -> Iterator[Outcome]:
    """One case under one prior."""
    moving, fixed = known_noise(case, parameters)
    full = register_rows(moving, fixed, num_rows, kernel=kernel_of(prior.length_scale_mm, parameters), align=align)
    included, closed = full.posterior.predict(moving.points).mean, closed_form(full, moving, fixed)
    for refit in refits(full, moving, fixed):
        i, left = refit.landmark, refit.left_out(moving, fixed)
        found = _outcome(case, prior, i, left, included[i])
        more = dataclasses.replace(
            found.row, truth_mm=_truth_mm(case, refit), converged=refit.converged and full.converged,
            closed_form_off_mm=float(np.linalg.norm(closed[i].mean - left.mean)),
        )  # fmt: skip
        yield dataclasses.replace(found, row=more)


def _outcome(case: Case, prior: Prior, i: int, left: LeftOut, included: np.ndarray) -> Outcome:
    """A prediction of a landmark, and where the solution that included it has it."""
    observed = case.fixed.points[i]
    row = LandmarkRow(
        case=case.name, landmark=case.moving.labels[i], prior=prior.label, length_scale_mm=prior.length_scale_mm,
        before_mm=float(case.distances[i]), paper_mm=float(np.linalg.norm(left.mean - included)),
        honest_mm=float(np.linalg.norm(left.mean - observed)), squared_error=left.squared(observed),
        std_mm=float(np.sqrt(np.trace(left.covariance) / case.dimension)),
    )  # fmt: skip
    return Outcome(row, left.covariance + left.noise)


def _truth_mm(case: Case, refit: Refit) -> float | None:
    """How far the map misses the landmark's true place from its true place: no observer's noise is in it."""
    if case.true_moving is None or case.true_fixed is None:
        return None
    i = refit.landmark
    return float(np.linalg.norm(refit.posterior.predict(case.true_moving[[i]]).mean[0] - case.true_fixed[i]))


def _prior_row(prior: Prior, outcomes: Sequence[Outcome]) -> PriorRow:
    """All landmarks under one prior."""
    mine = [outcome for outcome in outcomes if outcome.row.prior == prior.label]
    paper, honest, truth = (_column(mine, name) for name in ("paper_mm", "honest_mm", "truth_mm"))
    scored, known = _scores(mine), not np.isnan(truth).any()
    fifty, eighty, ninety, ninety_five, ninety_nine = scored.coverage
    return PriorRow(
        prior=prior.label, length_scale_mm=prior.length_scale_mm, landmarks=len(mine),
        before_mean_mm=float(_column(mine, "before_mm").mean()),
        paper_median_mm=float(np.median(paper)), paper_mean_mm=float(paper.mean()), paper_outliers=outliers(paper),
        honest_median_mm=float(np.median(honest)), honest_mean_mm=float(honest.mean()),
        honest_outliers=outliers(honest), truth_median_mm=float(np.median(truth)) if known else None,
        truth_mean_mm=float(truth.mean()) if known else None, std_mean_mm=float(_column(mine, "std_mm").mean()),
        coverage_50=fifty, coverage_80=eighty, coverage_90=ninety, coverage_95=ninety_five, coverage_99=ninety_nine,
        nll=scored.nll, unconverged=sum(not outcome.row.converged for outcome in mine),
        closed_form_off_mm=float(_column(mine, "closed_form_off_mm").max()),
    )  # fmt: skip


def _scores(outcomes: Sequence[Outcome]) -> scores.Scores:
    covariances = np.stack([outcome.covariance for outcome in outcomes])
    return scores.scores(_column(outcomes, "honest_mm"), _column(outcomes, "squared_error"), covariances)


def _column(outcomes: Sequence[Outcome], name: str) -> np.ndarray:
    """One field of the rows; NaN where there is none."""
    return np.array([getattr(outcome.row, name) for outcome in outcomes], dtype=float)


def outliers(values: np.ndarray) -> int:
    """How many values a box plot draws as dots: beyond 1.5 interquartile ranges from the quartiles."""
    low, high = np.percentile(values, [25, 75])
    reach = 1.5 * (high - low)
    return int(np.sum((values < low - reach) | (values > high + reach)))


# ------------------------------------------------------------------------------------------- the paper's own parameters


def _paper_rows(cases: Sequence[Case], num_rows: int, settings: Settings, progress: Progress) -> tuple[PaperRow, ...]:
    """Leave-one-out with amplitude and noise as in the paper, in closed form."""
    rows = []
    for k, scale in enumerate(settings.length_scales_mm):
        found = [one for case in cases for one in _with_paper_parameters(case, scale, num_rows, settings.align)]
        paper, honest, std = (_column(found, name) for name in ("paper_mm", "honest_mm", "std_mm"))
        inside = _scores(found).coverage[scores.LEVELS.index(0.95)]
        medians = (float(np.median(paper)), outliers(paper), float(np.median(honest)), outliers(honest))
        rows.append(PaperRow(scale, *medians, float(std.mean()), inside))
        progress((k + 1) / len(settings.length_scales_mm))
    return tuple(rows)


def _with_paper_parameters(case: Case, scale: float, num_rows: int, align: str) -> Iterator[Outcome]:
    moving, fixed = _paper_landmarks(case)
    kernel = Gaussian(scale, PAPER_AMPLITUDE_MM)
    full = register_rows(moving, fixed, num_rows, kernel=kernel, align=align)
    included = full.posterior.predict(moving.points).mean
    for i, left in enumerate(closed_form(full, moving, fixed)):
        yield _outcome(case, Prior(scale), i, left, included[i])


def _paper_landmarks(case: Case) -> tuple[Landmarks, Landmarks]:
    """Exact moving landmarks, and fixed ones that all have the paper's noise."""
    return Landmarks(case.moving.points, case.moving.names), with_noise(case.fixed, PAPER_NOISE_MM)


# ------------------------------------------------------------------------------------------------------------- figures


def _groups(outcomes: Sequence[Outcome], rows: Sequence[PriorRow], name: str) -> tuple[np.ndarray, ...]:
    values, priors = _column(outcomes, name), np.array([outcome.row.prior for outcome in outcomes])
    return tuple(values[priors == row.prior] for row in rows)


def _box_plots(rows: Sequence[PriorRow], outcomes: Sequence[Outcome]) -> Figure:
    senses = (
        ("paper_mm", "paper_median_mm", "to the solution that had it (the paper)"),
        ("honest_mm", "honest_median_mm", "to the landmark itself (honest)"),
    )
    panels = [
        figures.Distances(title, _groups(outcomes, rows, name), rows.index(best_row(rows, median)))
        for name, median, title in senses
    ]
    return figures.box_plots([row.prior for row in rows], panels, rows[0].before_mean_mm)


def _calibration(rows: Sequence[PriorRow], outcomes: Sequence[Outcome]) -> Figure:
    predicted = []
    for row in rows:
        spreads = [np.trace(outcome.covariance) for outcome in outcomes if outcome.row.prior == row.prior]
        predicted.append(np.sqrt(np.mean(spreads)))
    observed = [np.sqrt(np.mean(group**2)) for group in _groups(outcomes, rows, "honest_mm")]
    coverage = [[getattr(row, f"coverage_{100 * level:.0f}") for level in scores.LEVELS] for row in rows]
    found = figures.Calibration(
        tuple(row.prior for row in rows), np.array(scores.LEVELS), np.array(coverage),
        np.array([row.nll for row in rows]), np.array(predicted), np.array(observed),
    )  # fmt: skip
    return figures.calibration(found)


@dataclasses.dataclass(frozen=True, eq=False)
class Picture:
    """What is needed to show a case.

    Args:
        case: one with images.
        parameters: what it is fitted with at each length scale (None: without deformation).
        best: the prior that the warped image is shown under.
        num_rows: of a fit.
        settings: of the experiment.
    """

    case: Case
    parameters: tuple[tuple[Prior, Parameters], ...]
    best: Prior
    num_rows: int
    settings: Settings

    def register(self, prior: Prior) -> Registration:
        """The case with all its landmarks, with the parameters learned on the others."""
        parameters = next(found for one, found in self.parameters if one == prior)
        kernel, landmarks = kernel_of(prior.length_scale_mm, parameters), known_noise(self.case, parameters)
        return register_rows(*landmarks, self.num_rows, kernel=kernel, align=self.settings.align)

    def register_as_in_the_paper(self, prior: Prior) -> Registration:
        """The same with the paper's amplitude and noise."""
        assert prior.length_scale_mm is not None
        kernel, landmarks = Gaussian(prior.length_scale_mm, PAPER_AMPLITUDE_MM), _paper_landmarks(self.case)
        return register_rows(*landmarks, self.num_rows, kernel=kernel, align=self.settings.align)


def _plates(picture: Picture, progress: Progress) -> tuple[tuple[Plate, ...], tuple[PanelRow, ...]]:
    """The images before and after, and the smoothing comparison."""
    moving, fixed = picture.case.moving_image, picture.case.fixed_image
    assert moving is not None  # a picture is of a case
    assert fixed is not None  # with both images
    rigid, full = picture.register(Prior(None)), picture.register(picture.best)
    cut = _cut(picture.case, rigid, full)
    beside = figures.before_and_after(cut, rigid, full, moving, fixed, picture.case.image_names)
    makers = (("as in the paper", picture.register_as_in_the_paper), ("by the evidence", picture.register))
    shown, rows, panels_mm = [], [], picture.settings.panels_mm
    for title, maker in makers:
        panels = []
        for scale in panels_mm:
            reg = maker(Prior(scale))
            assert isinstance(reg.kernel, Gaussian)
            amplitude = float(reg.kernel.amplitude)
            panels.append(figures.panel(f"σ = {scale:g} mm\namplitude {amplitude:.2g} mm", reg, moving, cut))
            radius = panels[-1].radius
            rows.append(PanelRow(title, scale, amplitude, float(radius.mean()), float(radius.max())))
            progress(len(rows) / (len(makers) * len(panels_mm)))
        shown.append((f"amplitude and noise\n{title}", panels))
    smoothing = figures.smoothing(shown, cut, picture.case.fixed.points)
    return (Plate("clinical_before_and_after", beside), Plate("clinical_smoothing", smoothing)), tuple(rows)


def _cut(case: Case, rigid: Registration, full: Registration) -> figures.Slice:
    """The plane through the landmark, well inside the fixed image, that the deformation does most for."""
    before, after = (np.asarray(reg.posterior.predict(case.moving.points).mean) for reg in (rigid, full))
    gain = np.linalg.norm(before - case.fixed.points, axis=1) - np.linalg.norm(after - case.fixed.points, axis=1)
    assert case.fixed_image is not None
    grid = case.fixed_image.grid
    place = grid.index(case.fixed.points) / np.array(grid.shape)
    inside = np.all((place > RIM) & (place < 1 - RIM), axis=1)
    best = int(np.argmax(np.where(inside | ~inside.any(), gain, -np.inf)))
    return figures.slice_through(grid, case.fixed.points[best], after[best] - before[best])


# ------------------------------------------------------------------------------------------------------------ findings


def best_row(rows: Sequence[PriorRow], name: str) -> PriorRow:
    """The prior with a length scale that has least of something."""
    return min((row for row in rows if row.length_scale_mm is not None), key=lambda row: getattr(row, name))


def _findings(rows: Sequence[PriorRow], paper: Sequence[PaperRow], cases: Sequence[Case]) -> Iterator[str]:
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


def _panels_say(panels: Sequence[PanelRow], case: Case) -> Iterator[str]:
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
