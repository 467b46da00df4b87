"""One trial of one peer: the problem it is given, what is timed, and how its answer is judged.

Every peer runs in an environment of its own and shares only this file with the others, so it needs
nothing but NumPy. A peer is a `run.py` that hands its ways of fitting to `main`; all are judged by
the same code.
"""

import argparse
import dataclasses
import json
import os
import resource
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import numpy as np

PointMap = Callable[[np.ndarray], np.ndarray]
"""Where moving points go, (m, d) mm."""

Method = TypeVar("Method")

SPENT_S = 10.0
"""A call is repeated while the repetitions stay within this time: the least is the least disturbed
one."""

ONCE_S = 30.0
"""A call that takes longer is not repeated, unless it compiled."""

MOST_CALLS = 50

UNFINISHED = "first call only"
"""Status of what is stored before the calls that are compared."""


@dataclasses.dataclass(frozen=True)
class Problem:
    """Landmarks to fit, and held-out points with their true places.

    Args:
        moving, fixed: (n, d) landmarks, mm.
        held, truth: (m, d) points that the fit does not see, and where they really go.
        low, high: (d,) corners of the box in which the map is judged.
        side: points along each side of the grid on which folds are sought, or, where `dense`, which
            is evaluated.
        length_scale, amplitude, noise: of the Gaussian kernel and of the landmarks, mm.
        dense: time the evaluation on the grid in place of the fit.
    """

    moving: np.ndarray
    fixed: np.ndarray
    held: np.ndarray
    truth: np.ndarray
    low: np.ndarray
    high: np.ndarray
    side: int
    length_scale: float
    amplitude: float
    noise: float
    dense: bool = False

    @property
    def dimension(self) -> int:
        return self.moving.shape[1]

    @property
    def spacing(self) -> np.ndarray:
        """Distance of neighbouring points of the grid along each axis, mm."""
        return (self.high - self.low) / (self.side - 1)

    @property
    def grid(self) -> np.ndarray:
        """The grid's points, (side^d, d) mm, the last axis fastest."""
        axes = [np.linspace(a, b, self.side) for a, b in zip(self.low, self.high, strict=True)]
        return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, self.dimension)


@dataclasses.dataclass(frozen=True)
class Result:
    """What a trial showed; `status` says why there is nothing to show, or that only the first call
    was finished.

    Args:
        first_s: the first call, compilation included.
        seconds, cpu_s: the best of the calls that are compared, and the processor time of all
            threads in it.
        residual_mm, held_out_mm: mean distance to the fixed landmarks, and to the truth at held-out
            points.
        min_jacobian: smallest determinant of the finite-difference Jacobian on the grid; ≤ 0 where
            the map folds.
        memory_gb: peak of the process, imports included.
        points: how many were evaluated, of a dense trial.
        note: what the peer says of its settings or of how it ended.
    """

    status: str = "done"
    first_s: float | None = None
    seconds: float | None = None
    cpu_s: float | None = None
    residual_mm: float | None = None
    held_out_mm: float | None = None
    min_jacobian: float | None = None
    memory_gb: float | None = None
    points: int | None = None
    note: str = ""


def write_problem(path: Path, problem: Problem) -> None:
    """Store a problem for the peers."""
    np.savez(path, **vars(problem))


def read_problem(path: Path) -> Problem:
    """A stored problem."""
    with np.load(path) as stored:
        whole = {name: stored[name] for name in stored.files}
    return Problem(
        **{name: value.item() if value.ndim == 0 else value for name, value in whole.items()}
    )


def write_result(path: Path, result: Result) -> None:
    """Store a result, so that a reader never sees half of it."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(dataclasses.asdict(result), indent=1) + "\n")
    os.replace(partial, path)


def read_result(path: Path) -> Result:
    """A stored result."""
    return Result(**json.loads(path.read_text()))


def main(
    fits: Mapping[str, Callable[[Problem], PointMap]],
    evaluations: Mapping[str, Callable[[Problem, np.ndarray], Callable[[], object]]] | None = None,
    compiles: bool = False,
    note: Callable[[], str] = str,
) -> None:
    """`run.py PROBLEM.npz RESULT.json [--method NAME]`: the first method unless one is named.

    Args:
        fits: ways to fit a problem.
        evaluations: ways to evaluate a fitted map on many points, each made ready first (not timed)
            and then called.
        compiles: the first call is not to be compared, since it compiles.
        note: asked for after the first call.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("problem", type=Path)
    parser.add_argument("result", type=Path)
    parser.add_argument("--method")
    arguments = parser.parse_args()
    problem = read_problem(arguments.problem)
    if problem.dense:
        try_evaluation(
            problem, chosen(evaluations or {}, arguments.method), compiles, note, arguments.result
        )
    else:
        try_fit(problem, chosen(fits, arguments.method), compiles, note, arguments.result)


def chosen(methods: Mapping[str, Method], name: str | None) -> Method:
    """The method of a name, or the first."""
    return methods[name or next(iter(methods))]


def try_fit(
    problem: Problem,
    fit: Callable[[Problem], PointMap],
    compiles: bool,
    note: Callable[[], str],
    path: Path,
) -> None:
    """Fit, judge and store; then fit again for the time, which may not come to an end within the
    limit.
    """
    move, first_s, cpu_s = timed(lambda: fit(problem))
    result = judged(problem, move, Result(memory_gb=peak_gb(), first_s=first_s, note=note()))
    write_result(path, dataclasses.replace(result, status=UNFINISHED) if compiles else result)
    seconds, cpu_s = best(lambda: fit(problem), [] if compiles else [(first_s, cpu_s)])
    write_result(path, dataclasses.replace(result, seconds=seconds, cpu_s=cpu_s))


def try_evaluation(
    problem: Problem,
    prepare: Callable[[Problem, np.ndarray], Callable[[], object]],
    compiles: bool,
    note: Callable[[], str],
    path: Path,
) -> None:
    """Evaluate a fitted map on the grid, and store how long it took."""
    points = problem.grid
    evaluate = prepare(problem, points)
    _, first_s, cpu_s = timed(evaluate)
    result = Result(first_s=first_s, points=len(points), memory_gb=peak_gb(), note=note())
    write_result(path, dataclasses.replace(result, status=UNFINISHED) if compiles else result)
    seconds, cpu_s = best(evaluate, [] if compiles else [(first_s, cpu_s)])
    write_result(path, dataclasses.replace(result, seconds=seconds, cpu_s=cpu_s))


def timed(function: Callable[[], object]) -> tuple:
    """What a function returns, its duration and its processor time, s."""
    began, cpu = time.perf_counter(), time.process_time()
    value = function()
    return value, time.perf_counter() - began, time.process_time() - cpu


def best(function: Callable[[], object], times: list[tuple[float, float]]) -> tuple[float, float]:
    """The shortest call and its processor time, s, of those made already and as many more as are
    cheap.
    """
    while not times or another(*(seconds for seconds, _ in times)):
        times = [*times, timed(function)[1:]]
    return min(times)


def another(*times: float) -> bool:
    """Whether one more call is cheap, or worth its time since the first one alone may have started
    libraries.
    """
    cheap = len(times) < MOST_CALLS and sum(times) + times[-1] < SPENT_S
    return cheap or (len(times) == 1 and times[0] < ONCE_S)


def judged(problem: Problem, move: PointMap, result: Result) -> Result:
    """The result with the map's errors and folds."""
    distance = lambda x, y: float(np.mean(np.linalg.norm(move(x) - y, axis=1)))
    return dataclasses.replace(
        result,
        residual_mm=distance(problem.moving, problem.fixed),
        held_out_mm=distance(problem.held, problem.truth),
        min_jacobian=smallest_jacobian(problem, move(problem.grid)),
    )


def smallest_jacobian(problem: Problem, moved: np.ndarray) -> float:
    """Smallest determinant of a cell's edges at one corner, relative to the cell before it was
    moved.
    """
    d, h = problem.dimension, problem.spacing
    field = moved.reshape(*[problem.side] * d, d)
    corners = (slice(problem.side - 1),) * d
    edges = np.stack([np.diff(field, axis=k)[corners] / h[k] for k in range(d)], axis=-1)
    return float(np.linalg.det(edges).min())


def peak_gb() -> float:
    """Peak memory of this process, GB.

    Linux counts in `ru_maxrss` what the parent held when it started the process; the high-water
    mark does not.
    """
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return float(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1e6
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def in_chunks(move: PointMap, points: np.ndarray, size: int) -> np.ndarray:
    """Apply a map that holds (points × landmarks) arrays to many points."""
    return np.concatenate(
        [move(points[start : start + size]) for start in range(0, len(points), size)]
    )
