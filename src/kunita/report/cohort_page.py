"""One self-contained page about a cohort: a leave-one-out study of it, or a prior that was learned
on it.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

import numpy as np

import kunita
from kunita import scores
from kunita.cohort.prior import Lesson
from kunita.cohort.study import Held, Tried
from kunita.cohort.study_findings import OWN, Learning
from kunita.cohort.study_pictures import pictured
from kunita.cohort.study_tables import Collected, collected, coverage_band, joined, method_row
from kunita.data.case import Case
from kunita.experiments.experiment import Experiment
from kunita.inference.intervals import EvidenceProfile
from kunita.prior import Prior
from kunita.report.answer import Answer
from kunita.report.cohort_answer import learning_remarks, prior_answer, study_answer
from kunita.report.cohort_drawings import (
    case_drawings,
    own_calibration,
    profile_drawing,
    study_drawings,
)
from kunita.report.cohort_methods import prior_methods, study_methods
from kunita.report.cohort_tables import Shown, by_error, case_table, landmark_table, method_table
from kunita.report.drawings import Drawing
from kunita.report.methods import citations
from kunita.report.page import origin_facts, rendered
from kunita.report.tables import MOST_ROWS, Table, input_table

SECTIONS = (
    ("answer", "Answer"),
    ("cases", "Cases"),
    ("figures", "Figures"),
    ("comparison", "Methods compared"),
    ("landmarks", "Landmarks"),
    ("provenance", "Provenance"),
    ("methods", "Methods"),
)

PATHS = ("cases", "prior")
"""Settings that are files: only their names are shown."""


@dataclasses.dataclass(frozen=True, eq=False)
class Studied:
    """A leave-one-out study, to be shown.

    Args:
        experiment: its tables, findings and settings.
        tried: every method on every case.
        learning: where kernel and noise come from.
        origin: as `io.provenance.provenance` has it.
    """

    experiment: Experiment
    tried: tuple[Tried, ...]
    learning: Learning
    origin: Any


@dataclasses.dataclass(frozen=True, eq=False)
class Learned:
    """A prior and the cases that it was learned on, to be shown.

    Args:
        name: of the table of cases.
        prior, lesson: what was learned, and how.
        cases: of the lesson.
        held: for each of them its landmarks, predicted from the others with this prior.
        rigid_mm: for each of them the errors of rigid alignment to the others.
        profile: the evidence of all against the length scale, if there is one.
        origin: as `io.provenance.provenance` has it.
    """

    name: str
    prior: Prior
    lesson: Lesson
    cases: tuple[Case, ...]
    held: tuple[Held, ...]
    rigid_mm: tuple[np.ndarray, ...]
    profile: EvidenceProfile | None
    origin: Any


def study_page(subject: Studied) -> str:
    """The page of `kunita loo` as HTML."""
    experiment, settings = subject.experiment, subject.experiment.settings
    tables = {table.name: table.rows for table in experiment.tables}
    single, cases = collected(subject.tried), _studied_cases(subject.tried)
    draws = scores.case_draws(len(cases), settings.seed, settings.resamples)
    mine = next(one for one in single if one.method == OWN)
    rows = {row.method: row for row in tables["methods"]}
    apart = next(row for row in tables["differences"] if (row.method, row.less) == (OWN, "rigid"))
    answer = study_answer((*tables["methods"], *tables["regions"]), apart, mine, draws, cases)
    words = study_methods(
        settings,
        subject.learning,
        rows[OWN],
        rows["rigid"],
        cases[0].prior,
        cases[0].case.dimension,
    )
    how = "by exact refits" if settings.exact else "in closed form, to first order"
    return _cohort_page(
        "leave-one-out of a cohort",
        PurePath(settings.cases).name,
        f"Every landmark left out, {how}; {subject.learning.value}.",
        dataclasses.replace(answer, remarks=learning_remarks(subject.learning)),
        cases,
        subject.origin,
        figures=tuple(study_drawings(pictured(single, draws))),
        findings=experiment.findings,
        comparison=method_table(tables["methods"], tables["regions"]),
        words=words,
        facts=tuple(_settings(dataclasses.asdict(settings))),
        chance=f"bootstrap over cases, seed {settings.seed}, {settings.resamples} resamples; none elsewhere",
    )


def prior_page(subject: Learned) -> str:
    """The page of `kunita tune` as HTML."""
    cases = tuple(
        Shown(f"case-{k + 1}", case, held, rigid, subject.prior)
        for k, (case, held, rigid) in enumerate(
            zip(subject.cases, subject.held, subject.rigid_mm, strict=True)
        )
    )
    predicted, draws = joined(OWN, subject.held), scores.case_draws(len(cases), 0)
    answer = prior_answer(subject.prior, method_row(predicted, draws), predicted, draws, cases)
    return _cohort_page(
        "prior of a cohort",
        subject.name,
        "Kernel and noise that maximise the summed evidence of all cases",
        answer,
        cases,
        subject.origin,
        figures=tuple(_prior_drawings(subject.profile, predicted, draws)),
        words=prior_methods(subject.prior),
        facts=tuple(_settings(dataclasses.asdict(subject.lesson))),
        chance=f"bootstrap over cases, seed 0, {len(draws)} resamples; none elsewhere",
    )


def _prior_drawings(
    profile: EvidenceProfile | None, predicted: Collected, draws: np.ndarray
) -> Iterator[Drawing]:
    if profile is not None:
        yield profile_drawing(profile)
    levels, band = np.array(scores.CALIBRATION_LEVELS), coverage_band(predicted, draws)[1:]
    yield own_calibration(predicted.pits, levels, band)


def _studied_cases(tried: Sequence[Tried]) -> tuple[Shown, ...]:
    """Our own method on every case, and rigid alignment beside it."""
    mine, rigid = ([one for one in tried if one.method == name] for name in (OWN, "rigid"))
    return tuple(
        Shown(
            f"case-{k + 1}",
            one.case,
            one.alone,
            other.alone.predictions.errors,
            one.prior,
            float(one.region.predictions.errors.mean()),
        )
        for k, (one, other) in enumerate(zip(mine, rigid, strict=True))
        if one.prior is not None
    )


def _cohort_page(
    kind: str,
    title: str,
    subtitle: str,
    answer: Answer,
    cases: Sequence[Shown],
    origin: Any,
    *,
    words: str,
    facts: tuple[tuple[str, str], ...],
    chance: str,
    figures: tuple[Drawing, ...],
    comparison: Table | None = None,
    findings: Sequence[str] = (),
) -> str:
    """What both pages have: the answer, the cases, figures, landmarks, provenance and methods."""
    there = {"figures": bool(figures), "comparison": comparison is not None}
    shown = by_error(cases)[:MOST_ROWS]
    return rendered(
        "cohort.html",
        kind,
        title,
        subtitle,
        [(anchor, name) for anchor, name in SECTIONS if there.get(anchor, True)],
        answer=answer,
        findings=findings,
        case_figures=tuple(case_drawings(cases)),
        case_table=case_table(cases),
        figures=figures,
        comparison=comparison,
        details=[(one, landmark_table(one)) for one in shown],
        provenance=tuple(_provenance(origin, facts, chance)),
        inputs=input_table(origin["inputs"]),
        methods=words,
        citations=citations({"version": kunita.__version__}),
        created=origin.get("created"),
        notices="",
        scripts=("page.js", "cohort.js"),
    )


def _settings(given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Settings as words; what was not given is left out."""
    for name, value in given.items():
        if value in (None, ()):
            continue
        words = PurePath(value).name if name in PATHS else _said(value)
        yield name.removesuffix("_mm").replace("_", " "), words


def _said(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(f"{one:g} mm" for one in value) if isinstance(value, tuple) else str(value)


def _provenance(
    origin: Any, facts: Sequence[tuple[str, str]], chance: str
) -> Iterator[tuple[str, str]]:
    yield from origin_facts(origin)
    yield "random numbers", chance
    yield "settings", "; ".join(f"{name}: {value}" for name, value in facts)
