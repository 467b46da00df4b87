"""`kunita tune`: learn one prior on many cases, for others."""

from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from kunita.cohort.baselines import rigid, without_each
from kunita.cohort.prior import Lesson, cohort_profile, learn_prior
from kunita.cohort.study import held_by_prior
from kunita.console import Console
from kunita.data.case import Case
from kunita.errors import ArgumentError, ExitStatus
from kunita.experiments.experiment import Progress
from kunita.inputs import keep_compiled
from kunita.io.case_table import read_cases
from kunita.io.prior_files import prior_document, write_prior
from kunita.io.summary_files import plain
from kunita.io.writing import check_writable, write_text
from kunita.kernels import describe_kernel
from kunita.prior import Prior


def tune(args: Namespace) -> int:
    """`kunita tune`: read the cases, maximise their summed evidence, write prior.json and the page
    about it.
    """
    console = Console(quiet=args.quiet, as_json=args.json)
    lesson = Lesson(args.kernel, args.scales, None, args.align, args.model, args.scale_noise)
    page = None if args.no_report else _page_path(args.out)
    for path in (args.out, page):
        if path is not None:
            check_writable(path, overwrite=args.overwrite)
    with console.warnings():
        cases = read_cases(args.cases, frame=args.frame)
        keep_compiled()
        with console.progress() as tell:
            tell(f"learning on {len(cases)} cases (and compiling, the first time)")
            prior = learn_prior(cases, lesson)
            for remark in _doubts(prior):
                console.warn(remark)
            write_prior(args.out, prior, overwrite=args.overwrite)
            if page is not None:
                _write_page(
                    page,
                    prior,
                    lesson,
                    cases,
                    args,
                    tell("registering the cases with it, for the page"),
                )
    document = plain({**prior_document(prior), "out": str(args.out), "report": page and str(page)})
    console.answer("\n".join(_lines(prior, args, page)), document)
    return ExitStatus.DONE if prior.converged else ExitStatus.NOT_CONVERGED


def _page_path(out: Path) -> Path:
    """Beside the prior, under the same name."""
    if out.suffix.lower() == ".html":
        raise ArgumentError(
            f"--out: expected a prior, such as prior.json, found {out.name}; the page about it is .html"
        )
    return out.with_suffix(".html")


def _write_page(
    page: Path,
    prior: Prior,
    lesson: Lesson,
    cases: tuple[Case, ...],
    args: Namespace,
    progress: Progress,
) -> None:
    """Register all cases with the prior, in as many rows as the largest has, and write the page
    about them.
    """
    from kunita.report.cohort_files import cohort_origin
    from kunita.report.cohort_page import Learned, prior_page

    held, num_rows = [], max(len(case) for case in cases)
    for k, case in enumerate(cases):
        held.append(held_by_prior(case, prior, num_rows))
        progress((k + 1) / len(cases))
    aligned = tuple(_rigid_errors(case) for case in cases)
    profile = cohort_profile(cases, prior, lesson)
    origin = cohort_origin(args.cases, getattr(args, "typed", None))
    subject = Learned(args.cases.name, prior, lesson, cases, tuple(held), aligned, profile, origin)
    write_text(page, prior_page(subject), overwrite=args.overwrite)


def _rigid_errors(case: Case) -> np.ndarray:
    """(n,) of every landmark as rigid alignment to the others predicts it, mm."""
    means = without_each(rigid, case.moving.points, case.fixed.points)
    return np.linalg.norm(case.fixed.points - means, axis=1)


def _doubts(prior: Prior) -> Iterator[str]:
    if prior.unidentified:
        yield f"the cases do not determine the {', '.join(prior.unidentified)}: the hyper-prior or a limit decided"
    if not prior.converged:
        yield "the evidence is that of the small-deformation model: some flow could not be fitted"


def _lines(prior: Prior, args: Namespace, page: Path | None) -> Iterator[str]:
    cases = "1 case" if len(prior.cases) == 1 else f"{len(prior.cases)} cases"
    yield f"Prior of {cases} with {prior.num_landmarks} landmarks, alignment {prior.align}"
    yield f"  kernel     {describe_kernel(prior.kernel)}"
    if prior.noise_mm is not None:
        yield f"  noise      {prior.noise_mm:.3g} mm where files bring none"
    if args.scale_noise:
        yield f"  noise      {prior.noise_factor:.3g} times what the files say"
    for one in prior.chosen:
        open_ = "" if one.identified else " (not determined)"
        yield f"  about      {one.name}: {one.value:.3g}, 95 % from {one.low:.3g} to {one.high:.3g}{open_}"
    yield f"  evidence   {prior.evidence:.2f} (log, all cases)"
    yield f"  written    {args.out}; use it with `kunita register … --prior {args.out}`"
    if page is not None:
        yield f"  look at    {page}"
