"""`kunita tune`: learn one prior on many cases, for others."""

from argparse import Namespace
from collections.abc import Iterator

from kunita.cohort.prior import Lesson, learn_prior
from kunita.console import Console
from kunita.errors import ExitStatus
from kunita.inputs import keep_compiled
from kunita.io.case_table import read_cases
from kunita.io.prior_files import prior_document, write_prior
from kunita.io.summary_files import plain
from kunita.io.writing import check_writable
from kunita.prior import Prior
from kunita.registration import describe_kernel


def tune(args: Namespace) -> int:
    """`kunita tune`: read the cases, maximise their summed evidence, write prior.json."""
    console = Console(quiet=args.quiet, as_json=args.json)
    lesson = Lesson(args.kernel, args.scales, None, args.align, args.model, args.scale_noise)
    check_writable(args.out, overwrite=args.overwrite)
    with console.warnings():
        cases = read_cases(args.cases, frame=args.frame)
        keep_compiled()
        with console.progress() as tell:
            tell(f"learning on {len(cases)} cases (and compiling, the first time)")
            prior = learn_prior(cases, lesson)
        for remark in _doubts(prior):
            console.warn(remark)
        write_prior(args.out, prior, overwrite=args.overwrite)
    console.answer("\n".join(_lines(prior, args)), plain({**prior_document(prior), "out": str(args.out)}))
    return ExitStatus.DONE if prior.converged else ExitStatus.NOT_CONVERGED


def _doubts(prior: Prior) -> Iterator[str]:
    if prior.undecided:
        yield f"the cases do not determine the {', '.join(prior.undecided)}: the hyper-prior or a limit decided"
    if not prior.converged:
        yield "the evidence is that of the small-deformation model: some flow could not be fitted"


def _lines(prior: Prior, args: Namespace) -> Iterator[str]:
    cases = "1 case" if len(prior.cases) == 1 else f"{len(prior.cases)} cases"
    yield f"Prior of {cases} with {prior.num_landmarks} landmarks, alignment {prior.align}"
    yield f"  kernel     {describe_kernel(prior.kernel)}"
    if prior.noise_mm is not None:
        yield f"  noise      {prior.noise_mm:.3g} mm where files bring none"
    if args.scale_noise:
        yield f"  noise      {prior.noise_factor:.3g} times what the files say"
    for one in prior.chosen:
        open_ = "" if one.decided else " (not determined)"
        yield f"  about      {one.name}: {one.value:.3g}, 95 % from {one.low:.3g} to {one.high:.3g}{open_}"
    yield f"  evidence   {prior.evidence:.2f} (log, all cases)"
    yield f"  written    {args.out}; use it with `kunita register … --prior {args.out}`"
