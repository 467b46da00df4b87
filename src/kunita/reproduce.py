"""`kunita reproduce`: the paper's experiments, run and written to files."""

import dataclasses
import os
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kunita.console import Console
from kunita.data.case import Case
from kunita.errors import ArgumentError, ExitStatus, FileError
from kunita.experiments.experiment import Experiment, Tell
from kunita.experiments.files import summary, write_experiment, written_before
from kunita.inputs import keep_compiled
from kunita.io.case_table import read_cases
from kunita.io.result_folder import check_result, result_folder

Cases = tuple[Case, ...] | None
Run = Callable[[Namespace, Cases, Tell], Experiment]


def reproduce(args: Namespace) -> int:
    """`kunita reproduce`: run one of the paper's experiments, or all."""
    return run_experiments(args, EXPERIMENTS)


def run_experiments(args: Namespace, experiments: dict[str, Run]) -> int:
    """Run one experiment or all; each is written as soon as it is complete."""
    console = Console(quiet=args.quiet, as_json=args.json)
    names = tuple(experiments) if args.experiment == "all" else (args.experiment,)
    if args.cases and "clinical" not in names:
        raise ArgumentError(
            f"--cases: {args.experiment} is run on generated landmarks; give it with clinical or all"
        )
    done = []
    with console.warnings():
        cases = (
            read_cases(args.cases, frame=args.frame) if args.cases else None
        )  # before anything is computed
        for name in names:
            _refuse_to_replace(name, args.out, overwrite=args.overwrite)
        keep_compiled()
        for name in names:
            with console.progress() as tell:
                experiment = experiments[name](args, cases, tell)
            _write(experiment, args.out, overwrite=args.overwrite)
            done.append(experiment)
            if not args.json and not args.quiet:
                console.answer("\n".join(_lines(experiment, args)), None)
    if args.json:
        console.answer(
            "",
            {"out": str(args.out), **{experiment.name: summary(experiment) for experiment in done}},
        )
    return ExitStatus.DONE


def _moments(args: Namespace, _cases: Cases, tell: Tell) -> Experiment:
    from kunita.experiments import moments

    settings = dataclasses.replace(moments.QUICK if args.quick else moments.FULL, seed=args.seed)
    return moments.moments(settings, tell, processes=1 if args.quick else _cores())


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _synthetic(args: Namespace, _cases: Cases, tell: Tell) -> Experiment:
    from kunita.experiments import synthetic

    return synthetic.synthetic(synthetic.QUICK if args.quick else synthetic.FULL, tell)


def _clinical(args: Namespace, cases: Cases, tell: Tell) -> Experiment:
    from kunita.experiments import clinical

    chosen = clinical.QUICK if args.quick else clinical.FULL
    return run_clinical(args, cases, tell, chosen)


def run_clinical(args: Namespace, cases: Cases, tell: Tell, chosen: Any) -> Experiment:
    """The clinical experiment with these settings, on cases of one's own or on generated ones."""
    from kunita.experiments import clinical

    if cases is not None:
        return clinical.clinical(
            cases, dataclasses.replace(chosen, generated=None, table=str(args.cases)), tell
        )
    generated = dataclasses.replace(chosen.generated or clinical.Generated(), seed=args.seed)
    return clinical.clinical(
        clinical.cases_of(generated), dataclasses.replace(chosen, generated=generated), tell
    )


EXPERIMENTS: dict[str, Run] = {"moments": _moments, "synthetic": _synthetic, "clinical": _clinical}
"""In the order of the paper."""


def _refuse_to_replace(name: str, folder: Path, *, overwrite: bool) -> None:
    check_result(folder, (), overwrite=overwrite)
    found = [path.name for path in (*folder.glob(f"{name}.*"), *folder.glob(f"{name}_*"))]
    if found and not overwrite:
        raise FileError(
            f"{folder}: holds {min(found)} already; give --overwrite to replace what is there"
        )


def _write(experiment: Experiment, folder: Path, *, overwrite: bool) -> None:
    """All files appear at once; those that an earlier run listed and this one does not have go."""
    before = written_before(experiment.name, folder)
    with result_folder(folder, (), overwrite=overwrite) as staged:
        write_experiment(experiment, staged)
        new = {path.name for path in staged.iterdir()}
    for path in before:
        if path.name not in new:
            path.unlink(missing_ok=True)


def _lines(experiment: Experiment, args: Namespace) -> Iterator[str]:
    yield f"{experiment.name}{' (quick: a small version, whose numbers are rough)' if args.quick else ''}"
    yield from (f"  - {finding}" for finding in experiment.findings)
    tables = ", ".join(f"{table.name}.csv" for table in experiment.tables)
    yield f"  numbers    {args.out}/{experiment.name}.json, {tables}"
    yield f"  figures    {', '.join(f'{plate.name}.png' for plate in experiment.plates)} (and .pdf)"
