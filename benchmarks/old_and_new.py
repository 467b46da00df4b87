"""Speed of two versions of the package in one sitting: old ÷ new, the two in turns.

Every trial is a process of its own, old and new alternating, so that a busy moment of the machine
meets both. A process solves each task once to load or compile its programs, which are kept in a
temporary folder from one trial to the next, and then times it several times. The ratio is that of
the least times of all trials: wall time, and CPU time beside it, which other work on the machine
disturbs less. A ratio above 1 says that the new version is faster; none should be below 0.9. The
program ends with status 1 where both are: a version that has become slower shows it in both.

Landmarks in a cube of 150 mm, displaced by a smooth random field of 6 mm RMS; Gaussian kernel with
σ = 50 mm and a = 5 mm, noise 1 mm, rigid alignment, unless the task says otherwise.

    python benchmarks/old_and_new.py --old OLD/src --new NEW/src [--trials 5] [--task fit-37 …]
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import kunita

AIM = 0.9
"""The least ratio that is acceptable."""

LEAST_S = 1.0
"""A task is timed again and again within a trial until this time has passed, at least twice."""

Times = dict[str, list[float]]
"""Least wall and CPU seconds of each task."""


def displaced(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Landmarks and their displaced partners, as `fit_speed.py` has them."""
    rng = np.random.default_rng(n)
    x = rng.uniform(0, 150, (n, 3))
    gram = np.exp(-np.sum((x[:, None] - x) ** 2, axis=2) / (2 * 50.0**2))
    u = np.linalg.cholesky(gram + 1e-9 * np.eye(n)) @ rng.normal(size=(n, 3))
    return x, x + u * 6 / np.sqrt(np.mean(np.sum(u**2, axis=1)))


def fit(n: int) -> Callable[[], Any]:
    """A registration with given hyper-parameters."""
    moving, fixed = displaced(n)
    kernel = kunita.Gaussian(50.0, 5.0)
    return lambda: kunita.register(moving, fixed, kernel=kernel, noise=1.0)


def chosen_fit() -> Callable[[], Any]:
    """A whole registration: kernel and noise are chosen by the evidence."""
    moving, fixed = displaced(37)
    noisy = fixed + np.random.default_rng(1).normal(size=fixed.shape)
    return lambda: kunita.register(moving, noisy)


def refits() -> Callable[[], Any]:
    """Leave-one-out by refits of 37 landmarks with noise on both sides, as `leave_one_out.py` has it."""
    from kunita.cohort import leave_one_out

    x, f = displaced(37)
    rng = np.random.default_rng(2)
    moving = kunita.Landmarks(x + 0.5 * rng.normal(size=x.shape), None, 0.25)
    fixed = kunita.Landmarks(f + rng.normal(size=f.shape), None, 1.0)
    full = leave_one_out.register_rows(moving, fixed, 37, kernel=kunita.Gaussian(50.0, 5.0))
    return lambda: list(leave_one_out.refits(full, moving, fixed))


def prediction() -> Callable[[], Any]:
    """Mean and covariance at 10,000 points."""
    posterior = fit(37)().posterior
    points = np.random.default_rng(3).uniform(0, 150, (10_000, 3))
    return lambda: posterior.predict(points)


TASKS: dict[str, tuple[str, Callable[[], Callable[[], Any]]]] = {
    "fit-37": ("register, 37 landmarks", lambda: fit(37)),
    "fit-300": ("register, 300 landmarks", lambda: fit(300)),
    "fit-1000": ("register, 1,000 landmarks", lambda: fit(1000)),
    "chosen-37": ("register, 37 landmarks, hyper-parameters chosen", chosen_fit),
    "refits-37": ("leave-one-out by refits, 37 landmarks", refits),
    "predict": ("predict 10,000 points, 37 landmarks", prediction),
}
"""By name: what it is, and a function that prepares it and gives back what is timed."""


# ---------------------------------------------------------------------------- one trial, in a process


def trial(names: list[str], kept: Path) -> Times:
    """Least times of some tasks in this process."""
    try:
        from kunita.jaxrun import programs
    except ImportError:  # where it was before the second edition of the core
        from kunita import programs
    programs.keep(kept)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", kunita.KunitaWarning)
        return {name: least_times(TASKS[name][1]()) for name in names}


def least_times(task: Callable[[], Any]) -> list[float]:
    """Least wall and CPU seconds of a task that has run before."""
    task()
    found = [clocked(task), clocked(task)]
    while sum(wall for wall, _ in found) < LEAST_S:
        found.append(clocked(task))
    return np.min(found, axis=0).tolist()


def clocked(task: Callable[[], Any]) -> tuple[float, float]:
    """Wall and CPU seconds of one call."""
    wall = time.perf_counter()
    cpu = time.process_time()
    task()
    return time.perf_counter() - wall, time.process_time() - cpu


# ------------------------------------------------------------------------------- versions in turns


@dataclasses.dataclass(frozen=True)
class Version:
    """One version of the package, and where its programs are kept."""

    source: Path
    kept: Path

    def trial(self, names: list[str]) -> Times:
        """The tasks in a process that uses this version."""
        command = [sys.executable, __file__, "--trial", str(self.kept), "--task", *names]
        environment = {**os.environ, "PYTHONPATH": str(self.source.resolve())}
        done = subprocess.run(
            command, env=environment, check=True, stdout=subprocess.PIPE, text=True
        )
        return json.loads(done.stdout)


def in_turns(old: Version, new: Version, names: list[str], trials: int) -> tuple[Times, Times]:
    """The least times of both versions over all trials; who begins alternates too."""
    found: dict[Version, list[Times]] = {old: [], new: []}
    for k in range(trials):
        for version in (old, new) if k % 2 == 0 else (new, old):
            found[version].append(version.trial(names))
        print(f"trial {k + 1} of {trials} is done", file=sys.stderr, flush=True)
    return least_of(found[old]), least_of(found[new])


def least_of(trials: list[Times]) -> Times:
    """Task by task, over some trials."""
    return {name: np.min([one[name] for one in trials], axis=0).tolist() for name in trials[0]}


def print_table(old: Times, new: Times) -> bool:
    """One row per task; whether no task has become slower."""
    print("| task | old, s | new, s | old ÷ new | of CPU time |")
    print("|---|---|---|---|---|")
    good = True
    for name, (wall, cpu) in old.items():
        new_wall, new_cpu = new[name]
        ratios = wall / new_wall, cpu / new_cpu
        good = good and max(ratios) >= AIM
        sizes = f"{wall:.3g} | {new_wall:.3g} | {ratios[0]:.2f} | {ratios[1]:.2f}"
        print(f"| {TASKS[name][0]} | {sizes} |")
    return good


def compare(arguments: argparse.Namespace) -> int:
    """Time both versions; status 1 if the new one is slower than it may be."""
    for source in (arguments.old, arguments.new):
        if source is None or not (source / "kunita" / "__init__.py").is_file():
            sys.exit(f"--old and --new: expected folders with the package kunita, found {source}")
    with tempfile.TemporaryDirectory() as folder:
        old = Version(arguments.old, Path(folder) / "old")
        new = Version(arguments.new, Path(folder) / "new")
        found = in_turns(old, new, arguments.task, arguments.trials)
    return 0 if print_table(*found) else 1


def main() -> int:
    """Compare two versions; or, as a process of that, time one of them."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--old", type=Path, help="folder with the package kunita")
    parser.add_argument("--new", type=Path, help="another one")
    parser.add_argument("--trials", type=int, default=5, help="of each version")
    parser.add_argument("--task", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--trial", type=Path, metavar="FOLDER", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.trial is None:
        return compare(arguments)
    print(json.dumps(trial(arguments.task, arguments.trial)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
