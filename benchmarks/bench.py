"""Everything that is timed, ours and the peers', in one run on one machine.

Makes an environment per peer in `.bench`, gives all the same problems, and writes the tables of
ratios to `benchmarks/RESULTS.md`. A run can be stopped and goes on with --resume.

    make bench
    python benchmarks/bench.py --sections fit --only kunita torch --sizes 37 --out small.md
"""

import argparse
import datetime
import json
import os
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from peers import problems
from peers.catalogue import EVALUATIONS, FITS, FITTED, SETTINGS, Contestant
from peers.environments import (
    TOO_LONG,
    Environment,
    cores,
    environment,
    processor,
    reason,
    run,
    tried,
)
from peers.tables import Results, Table, dense_table, fit_table, ratio_table, read_table, seconds
from peers.trial import UNFINISHED, Result, read_result

from kunita.io.writing import complete

HERE = Path(__file__).resolve().parent
SECTIONS = ("fit", "dense", "loo", "startup")
PROGRAM_LIMIT_S = 900
"""For the programs of the other sections, which run several trials each."""

COMPARABLE = """\
**How comparable this is.** PyTorch shooting and scikit-shapes minimise the energy that ours minimises (same kernel \
and noise; ten Euler steps in PyTorch, ten Runge–Kutta steps in 32 bits in scikit-shapes). They stop after at most a \
hundred iterations, PyTorch earlier when five shootings gain no more than a thousandth of a nat; ours stops when the \
optimality conditions hold to a millionth of a millimetre. Jax Geometry has the same kernel but no noise: it matches \
landmarks exactly as far as its hundred BFGS iterations go. ANTs and elastix have neither kernel nor noise, are run \
with their defaults on a domain a little larger than the judged box (96³ voxels for ANTs, B-spline knots a sixth of \
the box apart for elastix), and could be made faster or more exact by other settings; their fields live on a grid, \
so their time depends on its size more than on the landmarks, and a smaller residual than ours is no merit where \
landmarks are noisy. Only ours and scikit-learn's Gaussian process give an uncertainty, whose cost is in their \
times. The 3-D displacements are draws of a Gaussian process, not of a flow, so Gaussian process regression with the \
true kernel is the best there is for the held-out error, and a diffeomorphism has no advantage. SciPy and \
scikit-learn solve one linear system, which no diffeomorphic method can match; they are there for orientation. Times \
are wall-clock, the best of as many calls in one process as ten seconds have room for (two at least, fifty at most), \
of a single one where that takes more than half a minute; compiled methods are compared from the second call on, and \
their first is shown apart (KeOps, below scikit-shapes, keeps what it once compiled). Memory is the peak of the \
process, imports included. Folds are sought by finite differences on a 40³ (64²) grid. An empty cell was not tried: \
there a peer would run into the limit, by how it grows or for its memory."""


def main() -> None:
    """Run what was asked for and write the tables."""
    arguments = parsed()
    began = f"{datetime.date.today():%d %B %Y}, load {os.getloadavg()[0]:.1f} before the run"
    timed = {"fit", "dense"} & set(arguments.sections)
    landmarks = [name for name in arguments.sizes if name != problems.FLOWER]
    limits = [program("limits.py", arguments, ["--sizes", *(landmarks or ["37"])])] if timed else []
    blocks, environments = limits, dict[str, Environment]()
    for section in arguments.sections:
        blocks += tables_of(section, arguments, environments)
        write(arguments.out, began, arguments, blocks, environments.values())
    print(arguments.out.read_text())


def parsed() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    peers = sorted({contestant.peer for contestant in (*FITS, *EVALUATIONS)})
    parser.add_argument(
        "--only", nargs="+", choices=peers, default=peers, metavar="NAME", help=" ".join(peers)
    )
    parser.add_argument(
        "--sizes", nargs="+", choices=FITTED, default=FITTED, metavar="N", help=" ".join(FITTED)
    )
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=SECTIONS)
    parser.add_argument(
        "--limit", type=float, default=300.0, metavar="S", help="for each peer and problem (300)"
    )
    parser.add_argument("--resume", action="store_true", help="keep the results of an earlier run")
    parser.add_argument(
        "--out", type=Path, default=HERE / "RESULTS.md", help="benchmarks/RESULTS.md"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=HERE.parent / ".bench",
        help="environments and results (.bench)",
    )
    return parser.parse_args()


def tables_of(
    section: str, arguments: argparse.Namespace, environments: dict[str, Environment]
) -> list[Table]:
    """The tables of one section."""
    if section == "loo":
        return [program("leave_one_out.py", arguments)]
    if section == "startup":
        return [program("startup.py", arguments)]
    values = limit_values(arguments.folder)
    if section == "dense":
        results = all_tried(EVALUATIONS, dense_names(arguments.sizes), arguments, environments)
        return [dense_table(results, values), program("dense.py", arguments)]
    results = all_tried(FITS, arguments.sizes, arguments, environments)
    shown = [name for name in FITTED if any(name == found for _, found in results)]
    return [ratio_table(results, values), *(fit_table(results, name) for name in shown)]


def dense_names(sizes: Sequence[str]) -> list[str]:
    """The problems of dense evaluation among the sizes asked for."""
    return [f"{problems.DENSE}{n}" for n in problems.DENSE_SIZES if str(n) in sizes]


def all_tried(
    contestants: Iterable[Contestant],
    names: Sequence[str],
    arguments: argparse.Namespace,
    environments: dict[str, Environment],
) -> Results:
    """Every contestant on every problem that it is given, one after the other."""
    results = {}
    for contestant in contestants:
        for name in names:
            if contestant.peer in arguments.only and name in contestant.problems:
                results[contestant, name] = trial(contestant, name, arguments, environments)
    return results


def trial(
    contestant: Contestant,
    name: str,
    arguments: argparse.Namespace,
    environments: dict[str, Environment],
) -> Result:
    """One trial, or its stored result; a line says how it went."""
    folder, peer = arguments.folder, contestant.peer
    path = folder / "results" / contestant.result(name)
    if peer not in environments:
        say(f"environment of {peer}")
        environments[peer] = environment(peer, folder)
    if arguments.resume and path.exists() and (known := read_result(path)).status != UNFINISHED:
        return known
    began = time.perf_counter()
    path.parent.mkdir(parents=True, exist_ok=True)
    stored = problems.stored(name, folder / "problems")
    where, settings = environments[peer], SETTINGS.get(peer, {})
    result = tried(
        where, stored, path, contestant.method, arguments.limit, folder / "logs", settings
    )
    say(
        f"{name}: {contestant.label}: {seconds(result)} ({time.perf_counter() - began:.0f} s in all)"
    )
    return result


def program(name: str, arguments: argparse.Namespace, options: Sequence[str] = ()) -> Table:
    """The table that another program of this folder makes; where there is none, that is said in its
    place.
    """
    path, written = HERE / name, arguments.folder / "results" / f"{Path(name).stem}.json"
    if not path.exists():
        return Table(f"benchmarks/{name}", [], [], ["Not run: there is no such program."])
    if arguments.resume and written.exists():
        return read_table(written)
    written.unlink(missing_ok=True)
    written.parent.mkdir(parents=True, exist_ok=True)
    say(f"benchmarks/{name}")
    log = arguments.folder / "logs" / f"{path.stem}.log"
    status = run([sys.executable, path, "--json", written, *options], log, PROGRAM_LIMIT_S)
    if status == 0 and written.exists():
        return read_table(written)
    why = f"> {PROGRAM_LIMIT_S} s" if status == TOO_LONG else f"Not run: {reason(log)}"
    return Table(f"benchmarks/{name}", [], [], [why])


def limit_values(folder: Path) -> dict[str, float]:
    """The machine's limits with all its threads, where they were found."""
    path = folder / "results" / "limits.json"
    return list(json.loads(path.read_text())["values"].values())[-1] if path.exists() else {}


def say(line: str) -> None:
    """A line of progress."""
    print(f"{datetime.datetime.now():%H:%M:%S} {line}", file=sys.stderr, flush=True)


def write(
    path: Path,
    began: str,
    arguments: argparse.Namespace,
    blocks: list[Table],
    environments: Iterable[Environment],
) -> None:
    """The page with all tables so far."""
    head = f"""\
# Benchmark

{began}; {processor()}, {cores()} cores, Python {sys.version.split()[0]}. Made by `make bench`: \
`python benchmarks/bench.py`, limit {arguments.limit:g} s for each method and problem. Less than 1 in “ours ÷” means \
that ours is faster.

Problems: 3-D, a draw of a Gaussian process with σ = 50 mm, scaled to 6 mm RMS, at landmarks uniform in a 150 mm cube \
(seed = their number), fitted with σ = 50 mm, amplitude 5 mm, noise 1 mm; 500 held-out points of the same draw. 2-D, \
the paper's circle and flower with its parameters; other points of the circle are held out. “Kunita, with covariance” \
is fitted without alignment, which no peer has; the default is to fit a rigid alignment too, shown apart.
"""
    sections = [
        head,
        *(block.markdown() for block in blocks),
        COMPARABLE,
        "",
        versions(environments),
    ]
    with complete(path, overwrite=True) as partial:
        partial.write_text("\n".join(sections) + "\n")


def versions(environments: Iterable[Environment]) -> str:
    """What was installed where."""
    lines = [
        f"- {each.peer}: {', '.join(each.packages()) if not each.fault else each.fault}"
        for each in environments
    ]
    return "\n".join(
        ["<details><summary>Versions of all packages</summary>", "", *lines, "", "</details>"]
    )


if __name__ == "__main__":
    main()
