"""`kunita loo`: leave-one-out over a cohort, compared with other methods; tables, figures, and what
they say.
"""

import dataclasses
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kunita import scores
from kunita.cohort.leave_one_out import LEAST_OTHERS
from kunita.cohort.prior import Lesson, learn_prior, learn_without_each
from kunita.cohort.study import PAPER, Trained, Tried, study, without_covariances
from kunita.cohort.study_findings import OWN, Learning, findings
from kunita.cohort.study_pictures import Pictured, pictured
from kunita.cohort.study_tables import (
    MethodRow,
    case_row,
    collected,
    difference_rows,
    landmark_rows,
    method_row,
)
from kunita.console import Console
from kunita.data.case import Case
from kunita.errors import ArgumentError, ExitStatus
from kunita.experiments.experiment import Experiment, Plate, Table, Tell
from kunita.experiments.files import file_names, write_experiment, written_before
from kunita.figures import calibration as figures
from kunita.inputs import keep_compiled
from kunita.io.case_table import read_cases
from kunita.io.prior_files import read_prior
from kunita.io.result_folder import REPORT, check_result, result_folder
from kunita.io.summary_files import plain
from kunita.io.writing import write_text
from kunita.prior import Prior

PLATES = ("calibration", "errors", "sparsification")
TABLES = ("methods", "differences", "regions", "cases", "landmarks")
FILES = (
    "loo.json",
    *(f"{name}.csv" for name in TABLES),
    *(f"{name}{suffix}" for name in PLATES for suffix in (".png", ".pdf")),
    REPORT,
)


@dataclasses.dataclass(frozen=True)
class Settings:
    """How the study is run; not with how many processes, which changes nothing.

    Args:
        cases: the table of the cohort.
        frame: of landmark files that state none.
        align, kernel, num_scales: the alignment, the kernel's family, and how many of them are
            summed.
        length_scales_mm: that are tried beside the learned one.
        prior: the file with the prior, if one was given.
        exact: whether landmarks were left out by refits; else in closed form.
        common_noise: whether covariances in the files were passed over.
        scale_noise: whether a factor on the noise that the files bring was learned.
        seed, resamples: of the bootstrap.
    """

    cases: str
    frame: str | None = None
    align: str = "rigid"
    kernel: str = "gaussian"
    length_scales_mm: tuple[float, ...] = ()
    prior: str | None = None
    exact: bool = True
    common_noise: bool = False
    scale_noise: bool = False
    seed: int = 0
    resamples: int = scores.RESAMPLES
    num_scales: int = 1


def loo(args: Namespace) -> int:
    """`kunita loo`: read, learn on the other cases, leave out, compare, write."""
    console = Console(quiet=args.quiet, as_json=args.json)
    settings = _settings(args)
    check_result(args.out, FILES, overwrite=args.overwrite)
    with console.warnings():
        given = read_prior(args.prior) if args.prior else None  # before anything is computed
        cases = read_cases(args.cases, frame=args.frame)
        known = sorted({case.name for case in cases} & set(given.cases if given else ()))
        if known:
            console.warn(
                f"{args.prior} was learned on {len(known)} of these cases, such as {known[0]}: too good a score"
            )
        if args.common_noise:
            cases = tuple(without_covariances(case) for case in cases)
        keep_compiled()
        with console.progress() as tell:
            methods = trained(cases, settings, given, tell)
            progress = tell("leaving out landmarks")
            found = study(
                cases, methods, exact=settings.exact, workers=args.workers, progress=progress
            )
        experiment = experiment_of(
            found, settings, learning(cases, given), report=not args.no_report
        )
        _write(experiment, found, learning(cases, given), args)
    report = None if args.no_report else str(args.out / REPORT)
    document = {"out": str(args.out), "report": report, **answer(experiment)}
    console.answer("\n".join(_lines(experiment, args.out)), document)
    return ExitStatus.NOT_CONVERGED if unconverged(experiment) else ExitStatus.DONE


def _write(
    experiment: Experiment, found: tuple[Tried, ...], how: Learning, args: Namespace
) -> None:
    """Write everything at once; what an earlier run wrote and this one does not goes."""
    stale = {path.name for path in written_before(experiment.name, args.out)} - set(
        file_names(experiment)
    )
    with result_folder(args.out, FILES, overwrite=args.overwrite) as staged:
        write_experiment(experiment, staged)
        if REPORT in experiment.beside:
            from kunita.report.cohort_files import cohort_origin
            from kunita.report.cohort_page import Studied, study_page

            origin = cohort_origin(args.cases, getattr(args, "typed", None), args.prior)
            write_text(staged / REPORT, study_page(Studied(experiment, found, how, origin)))
    for name in stale & set(FILES) - {f"{experiment.name}.json"}:
        (args.out / name).unlink(missing_ok=True)


def _settings(args: Namespace) -> Settings:
    learned = (
        ("--length-scales", args.length_scales),
        ("--align", args.align),
        ("--kernel", args.kernel),
        ("--scale-noise", args.scale_noise or None),
        ("--scales", args.scales),
    )
    for option, value in learned:
        if args.prior and value is not None:
            raise ArgumentError(
                f"{option}: the prior that is given has its own; give one or the other"
            )
    scales = np.atleast_1d([] if args.length_scales is None else args.length_scales)
    if len({f"{scale:g}" for scale in scales}) < len(scales):
        raise ArgumentError("--length-scales: expected each of them once")
    return Settings(
        str(args.cases),
        args.frame,
        args.align or "rigid",
        args.kernel or "gaussian",
        tuple(float(scale) for scale in scales),
        str(args.prior) if args.prior else None,
        not args.fast,
        args.common_noise,
        args.scale_noise,
        args.seed,
        num_scales=args.scales or 1,
    )


# ------------------------------------------------------------------------------------------ methods


def learning(cases: Sequence[Case], given: Prior | None) -> Learning:
    """Where the priors come from."""
    if given is not None:
        return Learning.GIVEN
    return Learning.OTHERS if len(cases) > LEAST_OTHERS else Learning.OWN


def trained(
    cases: Sequence[Case], settings: Settings, given: Prior | None, tell: Tell
) -> tuple[Trained, ...]:
    """The paper's setting, the small-deformation model, our own, and our own at given length
    scales.
    """
    paper = Trained("paper", (PAPER,) * len(cases), bare=True)
    if given is not None:
        small = dataclasses.replace(given, model="small")
        return paper, Trained("small", (small,) * len(cases)), Trained(OWN, (given,) * len(cases))
    scales = (None, *settings.length_scales_mm)
    progress = tell("learning priors")
    methods = [paper, Trained("small", _learned(cases, settings, model="small"))]
    for k, scale in enumerate(scales):
        progress((k + 1) / (len(scales) + 1))
        name = OWN if scale is None else f"{OWN} {scale:g} mm"
        methods.append(Trained(name, _learned(cases, settings, scale)))
    return tuple(methods)


def _learned(
    cases: Sequence[Case], settings: Settings, scale: float | None = None, model: str = "endpoint"
) -> tuple[Prior, ...]:
    """For each case the prior that the others teach; with too few others, its own."""
    num_scales = settings.num_scales if scale is None else 1
    lesson = Lesson(settings.kernel, num_scales, scale, settings.align, model, settings.scale_noise)
    if learning(cases, None) is Learning.OTHERS:
        return learn_without_each(cases, lesson)
    return tuple(learn_prior([case], lesson) for case in cases)


# ------------------------------------------------------------------------------ tables and pictures


def experiment_of(
    found: Sequence[Tried], settings: Settings, how: Learning, *, report: bool = False
) -> Experiment:
    """What was found as tables, figures and sentences; with a report, the page is named among the
    files.
    """
    single, regional = collected(found), collected(found, "region")
    draws = scores.case_draws(single[0].num_cases, settings.seed, settings.resamples)
    methods, regions = (
        tuple(method_row(one, draws) for one in each) for each in (single, regional)
    )
    differences = tuple(difference_rows(single, draws))
    cases = tuple(case_row(one) for one in found)
    marks = tuple(row for one in found for row in landmark_rows(one))
    tables = [
        Table(*each)
        for each in zip(TABLES, (methods, differences, regions, cases, marks), strict=True)
    ]
    said = findings(methods, regions, differences, cases, how, exact=settings.exact)
    plates = tuple(_plates(pictured(single, draws)))
    return Experiment(
        "loo", settings, tuple(tables), plates, tuple(said), (REPORT,) if report else ()
    )


def _plates(shown: Pictured) -> Iterator[Plate]:
    title = f"{OWN}: where landmarks fell"
    drawn = (
        figures.calibration(shown.honesty, shown.levels, shown.band, title),
        figures.errors(shown.errors, OWN),
        figures.sparsification(shown.sparsified, OWN),
    )
    yield from (Plate(*each) for each in zip(PLATES, drawn, strict=True))


# --------------------------------------------------------------------------------------- the answer


def unconverged(experiment: Experiment) -> int:
    """Predictions that come from fits that did not converge."""
    return sum(
        row.unconverged
        for table in experiment.tables[:3]
        for row in table.rows
        if isinstance(row, MethodRow)
    )


def answer(experiment: Experiment) -> dict[str, Any]:
    """The main numbers, for programs."""
    rows = {row.method: row for row in experiment.tables[0].rows}
    mine = rows.pop(OWN)
    return plain(
        {
            **_short(mine),
            "n_cases": mine.cases,
            "n_landmarks": mine.landmarks,
            "baselines": {name: _short(row) for name, row in rows.items()},
            "settings": dataclasses.asdict(experiment.settings),
            "unconverged": unconverged(experiment),
            "findings": list(experiment.findings),
        }
    )


def _short(row: MethodRow) -> dict[str, Any]:
    levels = [f"{100 * level:.0f}" for level in scores.LEVELS]
    return {
        "error_mm": row.error_mm,
        "coverage": {level: getattr(row, f"coverage_{level}") for level in levels},
        "nll": row.nll,
        "calibration_error": row.calibration_error,
        "sd_mm": row.sd_mm,
        "rank_correlation": row.rank_correlation,
        "sparsification_area": row.sparsification_area,
    }


def _lines(experiment: Experiment, out: Path) -> Iterator[str]:
    rows = experiment.tables[0].rows
    width = max(len(row.method) for row in rows)
    yield f"{'method':{width}}  error (mm)  95 % held    NLL  predicted sd (mm)"
    for row in rows:
        inside = f"{100 * row.coverage_95:.1f} %"
        yield f"{row.method:{width}}  {row.error_mm:10.3f}  {inside:>9}  {row.nll:5.2f}  {row.sd_mm:17.2f}"
    yield from (f"  - {finding}" for finding in experiment.findings)
    yield f"  numbers    {out}/loo.json, {', '.join(f'{name}.csv' for name in TABLES)}"
    yield f"  figures    {', '.join(f'{name}.png' for name in PLATES)} (and .pdf)"
    if REPORT in experiment.beside:
        yield f"  look at    {out}/{REPORT}"
