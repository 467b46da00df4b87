"""`kunita reproduce`: the paper's experiments, run and written to files."""

import dataclasses
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path

from kunita.console import Console
from kunita.data.cohort import Case
from kunita.errors import ArgumentError, ExitStatus, FileError
from kunita.experiments.experiment import Experiment, Tell
from kunita.experiments.files import document, write_experiment, written_before
from kunita.inputs import keep_compiled
from kunita.io.case_table import read_cases
from kunita.io.result_folder import check_result, result_folder

Cases = tuple[Case, ...] | None
Run = Callable[[Namespace, Cases, Tell], Experiment]


def reproduce(args: Namespace) -> int:
    """`kunita reproduce`: run one experiment or all; each is written as soon as it is complete."""
    console = Console(quiet=args.quiet, as_json=args.json)
    names = tuple(EXPERIMENTS) if args.experiment == "all" else (args.experiment,)
    if args.cases and "clinical" not in names:
        raise ArgumentError(f"--cases: {args.experiment} is run on generated landmarks; give it with clinical or all")
    for name in names:
        _refuse_to_replace(name, args.out, overwrite=args.overwrite)
    done = []
    with console.warnings():
        cases = read_cases(args.cases, frame=args.frame) if args.cases else None  # before anything is computed
        keep_compiled()
        for name in names:
            with console.progress() as tell:
                experiment = EXPERIMENTS[name](args, cases, tell)
            _write(experiment, args.out, overwrite=args.overwrite)
            done.append(experiment)
            if not args.json and not args.quiet:
                console.answer("\n".join(_lines(experiment, args.out)), None)
    if args.json:
        console.answer("", {experiment.name: document(experiment) for experiment in done})
    return ExitStatus.DONE


def _moments(args: Namespace, _cases: Cases, tell: Tell) -> Experiment:
    from kunita.experiments import moments

    return moments.moments(dataclasses.replace(moments.QUICK if args.quick else moments.FULL, seed=args.seed), tell)


def _synthetic(args: Namespace, _cases: Cases, tell: Tell) -> Experiment:
    from kunita.experiments import synthetic

    return synthetic.synthetic(synthetic.QUICK if args.quick else synthetic.FULL, tell)


def _clinical(args: Namespace, cases: Cases, tell: Tell) -> Experiment:
    from kunita.experiments import clinical

    chosen, table = clinical.QUICK if args.quick else clinical.FULL, str(args.cases) if args.cases else None
    settings = dataclasses.replace(chosen, seed=args.seed, table=table)
    return clinical.clinical(cases or clinical.cases_of(settings), settings, tell)


EXPERIMENTS: dict[str, Run] = {"moments": _moments, "synthetic": _synthetic, "clinical": _clinical}
"""In the order of the paper."""


def _refuse_to_replace(name: str, folder: Path, *, overwrite: bool) -> None:
    check_result(folder, (), overwrite=overwrite)
    found = written_before(name, folder)
    if found and not overwrite:
        raise FileError(f"{folder}: holds {found[0].name} already; give --overwrite to replace what is there")


def _write(experiment: Experiment, folder: Path, *, overwrite: bool) -> None:
    """All files appear at once; those of an earlier run that this one does not have go."""
    before = written_before(experiment.name, folder)
    with result_folder(folder, (), overwrite=overwrite) as staged:
        write_experiment(experiment, staged)
        new = {path.name for path in staged.iterdir()}
    for path in before:
        if path.name not in new:
            path.unlink(missing_ok=True)


def _lines(experiment: Experiment, folder: Path) -> Iterator[str]:
    yield f"{experiment.name}"
    yield from (f"  - {finding}" for finding in experiment.findings)
    tables = ", ".join(f"{table.name}.csv" for table in experiment.tables)
    yield f"  numbers    {folder}/{experiment.name}.json, {tables}"
    yield f"  figures    {', '.join(f'{plate.name}.png' for plate in experiment.plates)} (and .pdf)"
