"""A full exact leave-one-out: 12 cases of 20 to 37 landmarks, 6 length scales, every landmark left
out and refitted.

Landmarks in a 150 mm cube, displaced by a draw from the Gaussian process with σ = 50 mm scaled to 6
mm RMS (seed = the case), with 1 mm of noise on the fixed side and 0.5 mm on the moving one, which
the map carries over; a = σ/5, at most 5 mm; rigid alignment. Refits run in batches
(`kunita.cohort.lanes`), one program for each shape; those that do not converge there go through the
whole search one by one. The fits of all landmarks, where refits start, are timed apart. A sample of
the same refits by the whole search gives the ratio, and the largest differences of the predictions.

    python benchmarks/leave_one_out.py [--cases 12] [--sample 24] [--json FILE]
"""

import argparse
import dataclasses
import itertools
import json
import pathlib
import time

import equinox as eqx
import numpy as np

import kunita
from kunita.cohort import lanes, leave_one_out
from kunita.data.landmarks import Landmarks
from kunita.record import Registration

SCALES_MM = (5.0, 10.0, 25.0, 50.0, 100.0, 200.0)
COUNTS = (20, 37)
LIMIT_S = 60.0


@dataclasses.dataclass(frozen=True, eq=False)
class Task:
    """A case with a prior, fitted with all its landmarks."""

    moving: Landmarks
    fixed: Landmarks
    full: Registration

    def refits(self) -> list[leave_one_out.Refit]:
        """Without each landmark."""
        return list(leave_one_out.refits(self.full, self.moving, self.fixed))


def landmarks(case: int) -> tuple[Landmarks, Landmarks]:
    """Both sides of a case."""
    rng = np.random.default_rng(case)
    n = int(rng.integers(COUNTS[0], COUNTS[1] + 1))
    x = rng.uniform(0, 150, (n, 3))
    gram = np.exp(-np.sum((x[:, None] - x) ** 2, axis=2) / (2 * 50.0**2))
    u = np.linalg.cholesky(gram + 1e-9 * np.eye(n)) @ rng.normal(size=(n, 3))
    moved = x + u * 6 / np.sqrt(np.mean(np.sum(u**2, axis=1))) + rng.normal(size=(n, 3))
    return Landmarks(x + 0.5 * rng.normal(size=(n, 3)), None, 0.25), Landmarks(moved, None, 1.0)


def fitted(cases: int) -> list[Task]:
    """All cases with all priors."""
    pairs = [landmarks(case) for case in range(cases)]
    rows = max(len(moving) for moving, _ in pairs)
    register = lambda pair, scale: leave_one_out.register_rows(
        *pair, rows, kernel=kunita.Gaussian(scale, min(5.0, scale / 5))
    )
    return [
        Task(*pair, register(pair, scale)) for pair, scale in itertools.product(pairs, SCALES_MM)
    ]


@dataclasses.dataclass(frozen=True)
class Clock:
    """When something began."""

    wall: float = dataclasses.field(default_factory=time.perf_counter)
    cpu: float = dataclasses.field(default_factory=time.process_time)

    @property
    def seconds(self) -> tuple[float, float]:
        """Since then, on the wall and of the processors."""
        return time.perf_counter() - self.wall, time.process_time() - self.cpu


def one_by_one(tasks: list[Task], sample: int) -> tuple[float, float, float]:
    """CPU seconds of a refit by the whole search; largest differences: of a mean, mm, and relative
    of a covariance.
    """
    chosen = np.random.default_rng(0).integers([(len(tasks), 10**6)] * sample)
    alone = [_alone(tasks[k], int(i) % len(tasks[k].moving)) for k, i in chosen]  # compiles
    clock = Clock()
    for k, i in chosen:
        _alone(tasks[k], int(i) % len(tasks[k].moving))
    seconds = clock.seconds[1] / sample
    means, covs = [], []
    for (k, i), slow in zip(chosen, alone, strict=True):
        task = tasks[k]
        fast = leave_one_out.refit_without(
            task.full, task.moving, task.fixed, int(i) % len(task.moving)
        )
        means.append(np.abs(fast.predicted.mean - slow.predicted.mean).max())
        a, b = fast.predicted.covariance, slow.predicted.covariance
        covs.append(np.linalg.norm(a - b) / np.linalg.norm(b))
    return seconds, max(means), max(covs)


def _alone(task: Task, i: int) -> leave_one_out.Refit:
    """By the whole search, from the momenta of the full fit as they are: how every refit was made
    before.
    """
    n, full = len(task.moving), task.full
    question = leave_one_out.Question.of(task.moving, np.array([i]), None)
    lane = leave_one_out.Starts(full, task.moving, task.fixed, None).lane(question, 1)
    listed = leave_one_out.Rows.of(np.arange(n), len(full.moving))
    rows = leave_one_out.Rows.of(question.kept(n), len(lane.momenta))
    momenta = rows.split(listed.collected(np.asarray(full.posterior.trajectory.momenta[0]), n))
    return leave_one_out.refit_alone(
        full, eqx.tree_at(lambda lane: lane.momenta, lane, momenta), question
    )


def measured(cases: int, sample: int) -> tuple[list[str], list[list[str]], list[str]]:
    """The table, and what to know about it."""
    began = Clock()
    tasks = fitted(cases)
    full_s = began.seconds[0]
    clock = Clock()
    first = [task.refits() for task in tasks]
    first_s = clock.seconds[0]
    programs = lanes.refit_batch._cache_size()
    clock = Clock()
    again = [task.refits() for task in tasks]
    seconds, cpu = clock.seconds
    count = sum(len(task.moving) for task in tasks)
    alone_s, mean_mm, cov = one_by_one(tasks, sample)
    fallen = sum(refit.alone for refits in again for refit in refits)
    lost = sum(not refit.converged for refits in first for refit in refits)
    columns = ["", "value"]
    rows = [
        ["refits", f"{count}"],
        ["seconds, compiled (limit 60)", f"{seconds:.1f}"],
        ["ours ÷ limit", f"{seconds / LIMIT_S:.2f}"],
        ["CPU seconds, compiled", f"{cpu:.1f}"],
        ["refits a second", f"{count / seconds:.0f}"],
        ["seconds of the first time, compilation included", f"{first_s:.1f}"],
        ["programs compiled (shapes)", f"{programs}"],
        ["one by one, CPU seconds a refit (before)", f"{alone_s:.3f}"],
        ["in batches, CPU seconds a refit", f"{cpu / count:.4f}"],
        ["one by one ÷ in batches", f"{alone_s / (cpu / count):.1f}"],
        ["refits that fell back to the whole search", f"{fallen} ({100 * fallen / count:.1f} %)"],
        ["refits that did not converge", f"{lost}"],
        ["largest difference of a prediction, mm", f"{mean_mm:.0e}"],
        ["largest relative difference of a covariance", f"{cov:.0e}"],
        ["the fits of all landmarks, s (compilation included)", f"{full_s:.1f}"],
    ]
    notes = [
        f"{cases} cases, σ = {', '.join(f'{s:g}' for s in SCALES_MM)} mm; one process; sample of {sample} refits."
    ]
    return columns, rows, notes


def main() -> None:
    """Print the table, and write it where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=12)
    parser.add_argument(
        "--sample", type=int, default=24, help="refits that are repeated one by one"
    )
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    columns, rows, notes = measured(args.cases, args.sample)
    print(f"| {' | '.join(columns)} |\n|---|---|")
    print("\n".join(f"| {' | '.join(row)} |" for row in rows))
    print("\n".join(notes))
    if args.json:
        title = "Leave-one-out"
        args.json.write_text(
            json.dumps({"title": title, "columns": columns, "rows": rows, "notes": notes}, indent=1)
        )


if __name__ == "__main__":
    main()
