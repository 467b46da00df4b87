"""The paper's third experiment: leave-one-out over a cohort for a range of length scales, and a
case to look at.

`sec:real-data` of [wassermann:14], with its `fig:loo`, `fig:reg-us` and `fig:reg-us-un`. The paper
leaves out one landmark of a case, registers the others, and measures the distance to *the solution
that included it*. That is small wherever a landmark has little influence, on a prior that is too
stiff above all; so the distance to the landmark itself is measured too, and whether the predicted
uncertainty was true. Amplitude and unknown noise are chosen by the evidence on the *other* cases.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence

import numpy as np

from kunita import scores
from kunita.cohort.leave_one_out import (
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
)
from kunita.data.case import Case
from kunita.data.landmarks import Landmarks
from kunita.errors import ArgumentError
from kunita.experiments.clinical_findings import findings, panels_say
from kunita.experiments.clinical_pictures import Picture, box_plots, calibration, plates_of
from kunita.experiments.clinical_tables import (
    CaseRow,
    LandmarkRow,
    Outcome,
    PaperRow,
    Prior,
    best_row,
    column,
    outliers,
    prior_row,
    scored,
)
from kunita.experiments.experiment import (
    PAPER_AMPLITUDE_MM,
    PAPER_NOISE_MM,
    Experiment,
    Plate,
    Progress,
    Table,
    Tell,
    silent,
)
from kunita.kernels import Gaussian
from kunita.phantoms.cohorts import generated_cohort
from kunita.record import Registration


@dataclasses.dataclass(frozen=True)
class Generated:
    """A cohort that is generated, as many cases and landmarks as `sec:real-data` of [wassermann:14]
    has by default.

    Args:
        num_cases, seed: of the cohort.
        counts: its numbers of landmarks, least and largest.
        image_spacing_mm: of the MRI of the case that has images; without it none has.
    """

    num_cases: int = 12
    seed: int = 0
    counts: tuple[int, int] = (20, 37)
    image_spacing_mm: float | None = 1.0


@dataclasses.dataclass(frozen=True)
class Settings:
    """How the experiment is run.

    Args:
        length_scales_mm: of the priors that are compared, from rough to smooth.
        panels_mm: those whose maps are shown.
        align: the alignment, which is part of the model.
        generated: the cohort, if it is a generated one.
        table: the file that lists the cases, if they were read.
    """

    length_scales_mm: tuple[float, ...] = (5.0, 10.0, 25.0, 50.0, 100.0, 200.0)
    panels_mm: tuple[float, ...] = (10.0, 25.0, 50.0, 100.0, 200.0)
    align: str = "rigid"
    generated: Generated | None = None
    table: str | None = None


FULL = Settings(generated=Generated())

QUICK = Settings(
    (10.0, 50.0, 200.0),
    (10.0, 50.0, 200.0),
    generated=Generated(3, counts=(12, 16), image_spacing_mm=2.5),
)


def cases_of(generated: Generated) -> tuple[Case, ...]:
    """The cohort itself; the case with the largest shift has images."""
    spacing = generated.image_spacing_mm
    return generated_cohort(
        generated.num_cases, generated.seed, counts=generated.counts, image_spacing=spacing
    )


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
    outcomes = _leave_out(
        cases, priors, chosen, num_rows, settings, tell("leaving out one landmark at a time")
    )
    rows = tuple(prior_row(prior, outcomes) for prior in priors)
    paper = _paper_rows(cases, num_rows, settings, tell("the same with the paper's own parameters"))
    learned = tuple(_case_rows(cases, priors, chosen))
    tables = [
        Table("clinical", rows),
        Table("clinical_landmarks", tuple(outcome.row for outcome in outcomes)),
        Table("clinical_cases", learned),
        Table("clinical_paper_parameters", paper),
    ]
    plates = [
        Plate("clinical_leave_one_out", box_plots(rows, outcomes)),
        Plate("clinical_calibration", calibration(rows, outcomes)),
    ]
    said = [*findings(rows, paper, learned, cases)]
    pictured = next((k for k, case in enumerate(cases) if case.has_images), None)
    if pictured is None:
        said += ["No case has images: there is nothing to show warped."]
    else:
        used = {prior: found.used[pictured] for prior, found in zip(priors, chosen, strict=True)}
        picture = _picture(
            cases[pictured], used, Prior(best_row(rows, "nll").length_scale_mm), num_rows, settings
        )
        more, panels = plates_of(picture, tell("drawing a case"))
        plates, tables, said = (
            [*plates, *more],
            [*tables, Table("clinical_panels", panels)],
            [*said, *panels_say(panels, picture.case)],
        )
    return Experiment("clinical", settings, tuple(tables), tuple(plates), tuple(said))


def _picture(
    case: Case, used: dict[Prior, Parameters], best: Prior, num_rows: int, settings: Settings
) -> Picture:
    """How the case that is shown is registered, with either set of parameters."""
    again = functools.partial(_registered, case, num_rows=num_rows, align=settings.align)
    as_in_the_paper = functools.partial(
        _registered_as_in_the_paper, case, num_rows=num_rows, align=settings.align
    )
    return Picture(
        case, best, settings.panels_mm, lambda prior: again(prior, used[prior]), as_in_the_paper
    )


def _check(cases: Sequence[Case], settings: Settings) -> None:
    if not cases:
        raise ArgumentError("cases: expected at least one, found none")
    if len({case.dimension for case in cases}) > 1:
        raise ArgumentError("cases: expected all in 2-D or all in 3-D, found both")
    unknown = set(settings.panels_mm) - set(settings.length_scales_mm)
    if unknown:
        raise ArgumentError(
            f"panels_mm: expected some of the length scales, found {sorted(unknown)}"
        )


# --------------------------------------------------------------------------------------- parameters


@dataclasses.dataclass(frozen=True)
class Chosen:
    """The parameters of all cases under one prior: what each would choose, and what is used for it."""

    own: tuple[Parameters, ...]
    used: tuple[Parameters, ...]


def _choose(
    cases: Sequence[Case],
    priors: Sequence[Prior],
    num_rows: int,
    settings: Settings,
    progress: Progress,
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


def _case_rows(
    cases: Sequence[Case], priors: Sequence[Prior], chosen: Sequence[Chosen]
) -> Iterator[CaseRow]:
    for prior, found in zip(priors, chosen, strict=True):
        for case, own, used in zip(cases, found.own, found.used, strict=True):
            yield CaseRow(
                case.name,
                prior.label,
                prior.length_scale_mm,
                len(case),
                float(case.distances.mean()),
                own.amplitude_mm,
                own.noise_mm,
                used.amplitude_mm,
                _noise_mm(*known_noise(case, used)),
                own.undetermined,
                own.converged,
                "; ".join(own.remarks),
            )


def _noise_mm(moving: Landmarks, fixed: Landmarks) -> float:
    """Typical standard deviation of both sides together, mm."""
    known = [side.covariances for side in (moving, fixed) if side.covariances is not None]
    return float(
        np.sqrt(sum(np.mean(np.trace(c, axis1=1, axis2=2)) for c in known) / moving.dimension)
    )


# ------------------------------------------------------------------------------------ leave-one-out


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


def _leave_out_of(
    case: Case, prior: Prior, parameters: Parameters, num_rows: int, align: str
) -> Iterator[Outcome]:
    """One case under one prior."""
    moving, fixed = known_noise(case, parameters)
    full = _registered(case, prior, parameters, num_rows=num_rows, align=align)
    included, closed = full.posterior.predict(moving.points).mean, closed_form(full, moving, fixed)
    for refit in refits(full, moving, fixed, elsewhere=case.true_moving):
        i, left = refit.landmark, refit.left_out(moving, fixed)
        found = _outcome(case, prior, i, left, included[i])
        more = dataclasses.replace(
            found.row,
            truth_mm=_truth_mm(case, refit),
            converged=refit.converged and full.converged,
            closed_form_off_mm=float(np.linalg.norm(closed[i].mean - left.mean)),
        )
        yield dataclasses.replace(found, row=more)


def _registered(
    case: Case, prior: Prior, parameters: Parameters, *, num_rows: int, align: str
) -> Registration:
    """A case with all its landmarks, with parameters learned on the others."""
    kernel, landmarks = kernel_of(prior.length_scale_mm, parameters), known_noise(case, parameters)
    return register_rows(*landmarks, num_rows, kernel=kernel, align=align)


def _outcome(case: Case, prior: Prior, i: int, left: LeftOut, included: np.ndarray) -> Outcome:
    """A prediction of a landmark, and where the solution that included it has it."""
    observed = case.fixed.points[i]
    row = LandmarkRow(
        case=case.name,
        landmark=case.moving.labels[i],
        prior=prior.label,
        length_scale_mm=prior.length_scale_mm,
        before_mm=float(case.distances[i]),
        paper_mm=float(np.linalg.norm(left.mean - included)),
        honest_mm=float(np.linalg.norm(left.mean - observed)),
        squared_error=left.squared(observed),
        std_mm=float(np.sqrt(np.trace(left.covariance) / case.dimension)),
    )
    return Outcome(row, left.covariance + left.noise)


def _truth_mm(case: Case, refit: Refit) -> float | None:
    """How far the map misses the landmark's true place from its true place: no observer's noise is
    in it.
    """
    if refit.elsewhere is None or case.true_fixed is None:
        return None
    return float(np.linalg.norm(refit.elsewhere[0] - case.true_fixed[refit.landmark]))


# ----------------------------------------------------------------------- the paper's own parameters


def _paper_rows(
    cases: Sequence[Case], num_rows: int, settings: Settings, progress: Progress
) -> tuple[PaperRow, ...]:
    """Leave-one-out with amplitude and noise as in the paper, in closed form."""
    rows = []
    for k, scale in enumerate(settings.length_scales_mm):
        found = [
            one
            for case in cases
            for one in _with_paper_parameters(case, Prior(scale), num_rows, settings.align)
        ]
        paper, honest, std = (column(found, name) for name in ("paper_mm", "honest_mm", "std_mm"))
        inside = scored(found).coverage[scores.LEVELS.index(0.95)]
        medians = (
            float(np.median(paper)),
            outliers(paper),
            float(np.median(honest)),
            outliers(honest),
        )
        lost = {one.row.case for one in found if not one.row.converged}
        rows.append(PaperRow(scale, *medians, float(std.mean()), inside, len(lost)))
        progress((k + 1) / len(settings.length_scales_mm))
    return tuple(rows)


def _with_paper_parameters(
    case: Case, prior: Prior, num_rows: int, align: str
) -> Iterator[Outcome]:
    moving, fixed = _paper_landmarks(case)
    full = _registered_as_in_the_paper(case, prior, num_rows=num_rows, align=align)
    included = full.posterior.predict(moving.points).mean
    for i, left in enumerate(closed_form(full, moving, fixed)):
        found = _outcome(case, prior, i, left, included[i])
        yield dataclasses.replace(
            found, row=dataclasses.replace(found.row, converged=full.converged)
        )


def _registered_as_in_the_paper(
    case: Case, prior: Prior, *, num_rows: int, align: str
) -> Registration:
    assert prior.length_scale_mm is not None  # the paper has no prior without one
    kernel = Gaussian(prior.length_scale_mm, PAPER_AMPLITUDE_MM)
    return register_rows(*_paper_landmarks(case), num_rows, kernel=kernel, align=align)


def _paper_landmarks(case: Case) -> tuple[Landmarks, Landmarks]:
    """Exact moving landmarks, and fixed ones that all have the paper's noise."""
    return Landmarks(case.moving.points, case.moving.names), with_noise(case.fixed, PAPER_NOISE_MM)
