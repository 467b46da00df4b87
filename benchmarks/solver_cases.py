"""The problems that the solver is tried on, run on two versions of the package and compared.

Truths drawn from the prior itself, many landmarks, rough kernels, noise on both sides, exchanged
labels, landmarks that contradict each other, flowers and turns: 1,008 problems in 16 sets. All go
through `kunita.register` with a given kernel and noise. The problems are made with NumPy alone, so
that two versions are given the same numbers; a digest of them is recorded and compared.

`run` goes on where an earlier run of the same file stopped. It takes some 15 minutes of one core
once the programs are compiled. `compare` ends with status 1 if the first version solves a problem
that the second one does not. "Solved" means that the fit converged, to whichever minimum; energies
of problems that both solve are compared.

    python benchmarks/solver_cases.py run --out old.json --source OLD/src [--set draws-2d-0.3]
    python benchmarks/solver_cases.py run --out new.json --source NEW/src --workers 2
    python benchmarks/solver_cases.py compare old.json new.json
"""

import argparse
import concurrent.futures
import dataclasses
import functools
import hashlib
import json
import multiprocessing
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import kunita

BASE = 10_000
"""The first seed. Seeds below 1,000 were used while the solver was developed."""

EULER_STEPS = 200
"""Time steps of a truth drawn from the prior."""

SAME_ENERGY = 1e-6
"""Energies that differ by less are equal: nats, and relative to the energy where that is above 1."""

SAVE_EVERY_S = 20.0

MOST_REPEATED_S = 20.0
"""A fit that took longer is not repeated to time it without compilation."""

PER_PROCESS = 100
"""Problems that a process solves: one that compiles for a thousand runs out of memory maps."""

Record = dict[str, Any]


@dataclasses.dataclass(frozen=True, eq=False)
class Task:
    """One problem.

    Args:
        moving, fixed: (n, d) landmarks.
        kernel: of the prior.
        noise: standard deviation of the fixed landmarks.
        moving_noise: the same of the moving ones; 0 if they are exact.
        align, model: as `kunita.register` takes them.
    """

    moving: np.ndarray
    fixed: np.ndarray
    kernel: Any
    noise: float
    moving_noise: float = 0.0
    align: str = "none"
    model: str = "endpoint"

    @property
    def digest(self) -> str:
        """Tells problems apart: a hash of the landmarks, rounded to what no rounding error changes."""
        rounded = np.round(np.concatenate([self.moving, self.fixed]), 6) + 0.0
        return hashlib.sha256(rounded.tobytes()).hexdigest()[:16]

    def register(self) -> Any:
        """Solve it."""
        if not self.moving_noise:
            settings = {"kernel": self.kernel, "noise": self.noise}
            return self._register(self.moving, self.fixed, settings)
        moving = kunita.Landmarks(self.moving, None, self.moving_noise**2)
        fixed = kunita.Landmarks(self.fixed, None, self.noise**2)
        return self._register(moving, fixed, {"kernel": self.kernel})

    def _register(self, moving: Any, fixed: Any, settings: dict[str, Any]) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", kunita.KunitaWarning)
            return kunita.register(moving, fixed, align=self.align, model=self.model, **settings)


# ------------------------------------------------------------------------------------ the problems


def brownian_flow(x: np.ndarray, amplitude: float, rng: np.random.Generator) -> np.ndarray:
    """Where points go in a draw from the prior with a Gaussian kernel of length scale 1.

    Euler–Maruyama, as `kunita.simulate` has it, in NumPy.
    """
    step = 1 / EULER_STEPS
    for _ in range(EULER_STEPS):
        squares = np.sum((x[:, None] - x) ** 2, axis=2)
        gram = np.exp(-squares / 2) + 1e-10 * np.eye(len(x))
        root = amplitude * np.linalg.cholesky(gram)
        x = x + np.sqrt(step) * root @ rng.normal(size=x.shape)
    return x


def prior_draw(dimension: int, ratio: float, k: int, model: str = "endpoint") -> Task:
    """15 landmarks in a box of side 3σ and where a draw from the prior takes them; noise 0.1a."""
    rng = np.random.default_rng([BASE + k, dimension, round(1000 * ratio)])
    x = rng.uniform(0, 3, (15, dimension))
    noise = 0.1 * ratio
    truth = brownian_flow(x, ratio, rng)
    fixed = truth + noise * rng.normal(size=x.shape)
    return Task(x, fixed, kunita.Gaussian(1.0, ratio), noise, model=model)


def moving_noise_draw(k: int) -> Task:
    """A draw whose landmarks are noisy on both sides, 2-D; a/σ = 0.3 and 0.6 in turn."""
    ratio = (0.3, 0.6)[k % 2]
    made = prior_draw(2, ratio, 1000 + k)
    rng = np.random.default_rng([BASE + k, 77])
    noise = 0.1 * ratio
    moving = made.moving + noise * rng.normal(size=made.moving.shape)
    return dataclasses.replace(made, moving=moving, moving_noise=noise)


def pathwise_draw(k: int) -> Task:
    """A draw for the pathwise model, 2-D; a/σ = 0.3 and 0.6 in turn."""
    return prior_draw(2, (0.3, 0.6)[k % 2], 2000 + k, model="pathwise")


def displaced(n: int, rms: float, seed: list[int], side: float = 150.0) -> tuple[Any, Any]:
    """Landmarks in a cube, displaced by a smooth random field of this root mean square."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(0, side, (n, 3))
    squares = np.sum((x[:, None] - x) ** 2, axis=2)
    gram = np.exp(-squares / (2 * (side / 3) ** 2))
    u = np.linalg.cholesky(gram + 1e-9 * np.eye(n)) @ rng.normal(size=(n, 3))
    u *= rms / np.sqrt(np.mean(np.sum(u**2, axis=1)))
    return x, x + u + rng.normal(size=(n, 3))


def kernels(amplitude: float) -> list[Any]:
    """Smooth, rough and multi-scale kernels for landmarks in a cube of 150 mm."""
    wide = kunita.Gaussian(60.0, 0.9 * amplitude)
    narrow = kunita.Gaussian(20.0, 0.3 * amplitude)
    return [
        kunita.Gaussian(50.0, amplitude),
        kunita.Matern52(70.0, amplitude),
        wide + narrow,
        kunita.Matern32(100.0, amplitude),
    ]


def many(n: int, k: int) -> Task:
    """Many landmarks: moderate displacements (6 mm) with four kernels, then large ones (20 mm)."""
    rms, amplitude = ((6.0, 5.0), (20.0, 15.0))[k // 4]
    moving, fixed = displaced(n, rms, [BASE + k, n])
    return Task(moving, fixed, kernels(amplitude)[k % 4], 1.0, align="rigid")


def swapped(k: int) -> Task:
    """20 landmarks, two of them exchanged: any two, or neighbours; three kernels, five draws."""
    draw = k // 3
    moving, fixed = displaced(20, 4.0, [BASE + draw, 20], side=100.0)
    i = 0
    distances = np.linalg.norm(moving - moving[i], axis=1)
    j = int(np.argsort(distances)[1]) if draw % 2 else 10
    fixed[[i, j]] = fixed[[j, i]]
    made = (kunita.Gaussian(40.0, 5.0), kunita.Gaussian(40.0, 15.0), kunita.Matern32(40.0, 15.0))
    return Task(moving, fixed, made[k % 3], 1.0)


def contradicting(k: int) -> Task:
    """20 landmarks, two of them 0.9 mm apart and pulled 6 mm apart."""
    moving, fixed = displaced(20, 4.0, [BASE + k, 21], side=100.0)
    away = np.random.default_rng([BASE + k, 22]).normal(size=3)
    away /= np.linalg.norm(away)
    moving[1] = moving[0] + 0.9 * away
    middle = fixed[0].copy()
    fixed[0] = middle + 3 * away
    fixed[1] = middle - 3 * away
    return Task(moving, fixed, kunita.Gaussian(40.0, 5.0), 0.5, align="rigid")


FLOWERS = (
    # length scale, amplitude, noise, height of the petals, their number
    (2.0, 1.0, 0.1, 0.3, 5),
    (2.0, 5.0, 0.1, 0.3, 5),
    (5.0, 1.0, 0.1, 0.3, 5),
    (5.0, 5.0, 0.1, 0.3, 5),
    (5.0, 5.0, 0.5, 0.3, 5),
    (2.0, 5.0, 0.5, 0.6, 6),
    (5.0, 5.0, 0.1, 0.6, 6),
    (5.0, 5.0, 0.1, 0.75, 6),
)


def flower(k: int) -> Task:
    """A circle of 32 points that becomes a flower."""
    length_scale, amplitude, noise, height, petals = FLOWERS[k]
    angle = 2 * np.pi * np.arange(32) / 32
    circle = 10 * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    grown = circle * (1 + height * np.cos(petals * angle))[:, None]
    return Task(circle, grown, kunita.Gaussian(length_scale, amplitude), noise)


ANGLES = (120.0, 140.0, 150.0, 160.0, 166.0)


def turned(k: int) -> Task:
    """A bar, then a square of 16 points, turned by large angles without an alignment."""
    angle = np.deg2rad(ANGLES[k % len(ANGLES)])
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    bar = np.stack([np.linspace(-8, 8, 17), np.zeros(17)], axis=1)
    axis = np.linspace(-6, 6, 4)
    square = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    points, kernel = (
        (bar, kunita.Gaussian(5.0, 5.0)),
        (square, kunita.Gaussian(8.0, 5.0)),
    )[k // len(ANGLES)]
    return Task(points, points @ turn.T, kernel, 0.5)


def lungs(k: int) -> Task:
    """300 landmarks of a breathing lung, many of them close: rough kernels, affine alignment.

    100 bifurcations with two further landmarks within a few millimetres of each. The lung's base
    moves by 25 mm, its apex hardly; a finer field adds 2 mm, and marks err by 1 mm. Then the same
    with twice the displacement.
    """
    rng = np.random.default_rng([BASE + k, 300])
    strength = 1 + k // 4
    bifurcations = rng.uniform([0, 0, 0], [110, 150, 220], (100, 3))
    near = bifurcations.repeat(3, axis=0)
    moving = near + np.where(np.arange(300)[:, None] % 3, rng.normal(size=(300, 3)) * 3.0, 0.0)
    depth = np.clip(1 - moving[:, 2] / 220, 0, 1)
    breath = np.stack([3 * depth, -6 * depth**2, -25 * depth**1.5], axis=1)
    squares = np.sum((moving[:, None] - moving) ** 2, axis=2)
    gram = np.exp(-squares / (2 * 25.0**2)) + 1e-9 * np.eye(300)
    fine = 2 * np.linalg.cholesky(gram) @ rng.normal(size=(300, 3))
    fixed = moving + strength * (breath + fine) + rng.normal(size=(300, 3))
    made = (
        kunita.Matern32(60.0, 8.0),
        kunita.Matern52(40.0, 8.0),
        kunita.Gaussian(25.0, 5.0),
        kunita.Gaussian(60.0, 8.0) + kunita.Matern32(15.0, 2.0),
    )
    return Task(moving, fixed, made[k % 4], 1.0, align="affine")


def combined(k: int) -> Task:
    """What meets in one problem: control points, noise on both sides, the pathwise model."""
    rms = (6.0, 12.0)[k % 2]
    kernel = kernels((5.0, 8.0)[k % 2])[0]
    moving, fixed = displaced(300, rms, [BASE + k, 301])
    settings = (
        {"moving_noise": 1.0},
        {"model": "pathwise"},
        {"model": "pathwise", "moving_noise": 1.0},
    )[k // 2]
    return Task(moving, fixed, kernel, 1.0, align="rigid", **settings)


SETS: dict[str, tuple[int, Callable[[int], Task]]] = {
    "draws-2d-0.3": (200, functools.partial(prior_draw, 2, 0.3)),
    "draws-2d-0.6": (200, functools.partial(prior_draw, 2, 0.6)),
    "draws-2d-1.0": (200, functools.partial(prior_draw, 2, 1.0)),
    "draws-3d-0.3": (100, functools.partial(prior_draw, 3, 0.3)),
    "draws-3d-0.6": (100, functools.partial(prior_draw, 3, 0.6)),
    "draws-3d-1.0": (100, functools.partial(prior_draw, 3, 1.0)),
    "moving-noise": (20, moving_noise_draw),
    "pathwise": (20, pathwise_draw),
    "swapped": (15, swapped),
    "contradicting": (5, contradicting),
    "flowers": (len(FLOWERS), flower),
    "turned": (2 * len(ANGLES), turned),
    "300": (8, functools.partial(many, 300)),
    "lungs": (8, lungs),
    "combined": (6, combined),
    "1000": (8, functools.partial(many, 1000)),
}
"""By name: how many problems, and how each is made."""


# ----------------------------------------------------------------------------------------- solving


class Compilation:
    """Seconds that JAX has spent on making programs in this process."""

    seconds = 0.0

    @classmethod
    def listen(cls) -> None:
        import jax

        def add(event: str, seconds: float, **_: Any) -> None:
            if event.startswith("/jax/core/compile/"):
                cls.seconds += seconds

        jax.monitoring.register_event_duration_secs_listener(add)


def prepare(kept: str) -> None:
    """Keep the programs that this process compiles, and count the time that it takes."""
    try:
        from kunita.jaxrun import programs
    except ImportError:  # where it was before the second edition of the core
        from kunita import programs
    programs.keep(Path(kept))
    Compilation.listen()


def solved(name: str, k: int) -> Record:
    """Solve one problem; once more, to time it, where something was compiled for it."""
    task = SETS[name][1](k)
    before = Compilation.seconds
    found = timed(task)
    compiling = Compilation.seconds - before
    first = found.get("cpu_s", np.inf)
    if compiling > 0 and first < MOST_REPEATED_S:
        found = {**timed(task), "first_cpu_s": first}
    return {"digest": task.digest, "compiling_s": round(compiling, 3), **found}


def timed(task: Task) -> Record:
    """How the fit ended, and the CPU seconds that it took."""
    began = time.process_time()
    try:
        reg = task.register()
    except kunita.KunitaError as error:
        return {"refused": str(error), "converged": False}
    seconds = time.process_time() - began
    return {
        "converged": bool(reg.converged),
        "energy": float(reg.energy),
        "evidence": float(reg.evidence),
        "iterations": int(reg.iterations),
        "residual_mm": float(reg.gap_mm),
        "mirrored": bool(reg.suspicion.mirrored),
        "methods": counted([row.method for row in reg.history]),
        "cpu_s": round(seconds, 4),
    }


def counted(words: Sequence[str]) -> dict[str, int]:
    """How often each occurs."""
    return {word: words.count(word) for word in dict.fromkeys(words)}


# ----------------------------------------------------------------------------------------- running


class File:
    """The records of one version, by the problem's name; written every few seconds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records: dict[str, Record] = read(path) if path.exists() else {}
        self.written = time.monotonic()

    def add(self, name: str, record: Record) -> None:
        self.records[name] = record
        if time.monotonic() - self.written > SAVE_EVERY_S:
            self.write()

    def write(self) -> None:
        rows = [f"{json.dumps(name)}: {json.dumps(row)}" for name, row in self.records.items()]
        partial = self.path.with_suffix(".partial")
        partial.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")
        partial.replace(self.path)
        self.written = time.monotonic()


def read(path: Path) -> dict[str, Record]:
    """The records of a file."""
    return json.loads(path.read_text(encoding="utf-8"))


def label(name: str, k: int) -> str:
    """What a problem is called in the file."""
    return f"{name}/{k}"


def run(arguments: argparse.Namespace) -> int:
    """Solve what the file does not have yet."""
    file = File(arguments.out)
    wanted = [(name, k) for name in arguments.sets for k in range(SETS[name][0])]
    missing = [one for one in wanted if label(*one) not in file.records]
    print(f"{len(missing)} of {len(wanted)} problems to solve", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        kept = str(arguments.kept or temporary)
        for (name, k), record in in_processes(missing, kept, arguments.workers):
            file.add(label(name, k), record)
            if not record["converged"] or arguments.verbose:
                print(label(name, k), json.dumps(record), flush=True)
    file.write()
    return 0


def in_processes(
    tasks: Sequence[tuple[str, int]], kept: str, workers: int
) -> Iterator[tuple[tuple[str, int], Record]]:
    """The records of these problems, as they are ready, from one or more fresh processes."""
    with concurrent.futures.ProcessPoolExecutor(
        workers,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=prepare,
        initargs=(kept,),
        max_tasks_per_child=PER_PROCESS,
    ) as pool:
        waiting = {pool.submit(solved, *task): task for task in tasks}
        for ready in concurrent.futures.as_completed(waiting):
            yield waiting[ready], ready.result()


# --------------------------------------------------------------------------------------- comparing


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One set of problems, solved by both versions: pairs of records by name."""

    name: str
    pairs: dict[str, tuple[Record, Record]]

    def named(self, test: Callable[[Record, Record], bool]) -> list[str]:
        """The problems of which something is true."""
        return [name for name, pair in self.pairs.items() if test(*pair)]

    @property
    def lost(self) -> list[str]:
        """Those that only the old version solves."""
        return self.named(lambda old, new: old["converged"] and not new["converged"])

    @property
    def gained(self) -> list[str]:
        return self.named(lambda old, new: new["converged"] and not old["converged"])

    @property
    def lower(self) -> list[str]:
        """Those that both solve, the new version with a lower energy."""
        return self.named(lambda old, new: energy_change(old, new) < 0)

    @property
    def higher(self) -> list[str]:
        return self.named(lambda old, new: energy_change(old, new) > 0)

    def median_and_worst(self, field: str) -> str:
        """Of some field, old → new, over the problems that both solve."""
        both = [pair for pair in self.pairs.values() if all(one["converged"] for one in pair)]
        if not both:
            return "– | –"
        values = np.array([[one[field] for one in pair] for pair in both])
        middle = np.median(values, axis=0)
        worst = values.max(axis=0)
        return f"{middle[0]:.3g} → {middle[1]:.3g} | {worst[0]:.3g} → {worst[1]:.3g}"

    def row(self) -> str:
        """A line of the table."""
        old, new = (sum(pair[i]["converged"] for pair in self.pairs.values()) for i in (0, 1))
        counts = f"{len(self.pairs)} | {old} | {new} | {len(self.lost)} | {len(self.gained)}"
        energies = f"{len(self.lower)} | {len(self.higher)}"
        effort = " | ".join(map(self.median_and_worst, ("cpu_s", "iterations")))
        return f"| {self.name} | {counts} | {energies} | {effort} |"


def energy_change(old: Record, new: Record) -> float:
    """New energy less the old one where both are solved and they differ; 0 otherwise."""
    if not (old["converged"] and new["converged"]):
        return 0.0
    change = new["energy"] - old["energy"]
    return change if abs(change) > SAME_ENERGY * max(1.0, abs(old["energy"])) else 0.0


def compare(arguments: argparse.Namespace) -> int:
    """Print a table with one row per set, then every problem that differs."""
    old, new = read(arguments.old), read(arguments.new)
    refuse_other_problems(old, new)
    made = [compared(name, old, new) for name in SETS]
    found = [one for one in made if one.pairs]
    print(
        "| set | problems | solved by old | by new | by old only | by new only | energy lower | higher "
        "| CPU s, median | worst | iterations, median | worst |"
    )
    print("|---" * 12 + "|")
    for one in found:
        print(one.row())
    for one in found:
        list_differences(one)
    missing = len(set(old) ^ set(new))
    if missing:
        print(f"{missing} problems are in one of the files only")
    return int(any(one.lost for one in found))


def compared(name: str, old: dict[str, Record], new: dict[str, Record]) -> Comparison:
    """The problems of a set that both files have."""
    names = (label(name, k) for k in range(SETS[name][0]))
    return Comparison(
        name, {one: (old[one], new[one]) for one in names if one in old and one in new}
    )


def refuse_other_problems(old: dict[str, Record], new: dict[str, Record]) -> None:
    """Both versions must have been given the same numbers."""
    other = [name for name in old if name in new and old[name]["digest"] != new[name]["digest"]]
    if other:
        sys.exit(f"{other[0]}: the two files are of different problems; run both again")


def list_differences(one: Comparison) -> None:
    """Every problem of a set that is solved by one version only, or to another energy."""
    kinds = {
        "solved by the old version only": one.lost,
        "solved by the new version only": one.gained,
        "lower energy": one.lower,
        "higher energy": one.higher,
    }
    for kind, names in kinds.items():
        for name in names:
            old, new = one.pairs[name]
            energies = f"energy {old.get('energy')} → {new.get('energy')}"
            residuals = f"residual {old.get('residual_mm')} → {new.get('residual_mm')} mm"
            print(f"{name}: {kind}; {energies}, {residuals}")


# ------------------------------------------------------------------------------------- the program


def restart_with(source: Path) -> None:
    """Run this program again with the package of a folder in place of the installed one."""
    if not (source / "kunita" / "__init__.py").is_file():
        sys.exit(f"--source {source}: there is no package kunita in this folder")
    wanted = str(source.resolve())
    if os.environ.get("PYTHONPATH") != wanted:
        environment = {**os.environ, "PYTHONPATH": wanted}
        os.execve(sys.executable, [sys.executable, *sys.argv], environment)


def arguments_of_command_line() -> argparse.Namespace:
    """What was asked for."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="solve the problems")
    running.add_argument("--out", type=Path, required=True, metavar="FILE.json")
    running.add_argument("--source", type=Path, help="folder with the package kunita")
    running.add_argument(
        "--set", dest="sets", action="append", choices=SETS, help="default: all; may be repeated"
    )
    running.add_argument("--workers", type=int, default=1, help="processes")
    running.add_argument("--kept", type=Path, help="folder for compiled programs, of one version")
    running.add_argument("--verbose", action="store_true", help="print every record")
    comparing = commands.add_parser("compare", help="compare two files")
    comparing.add_argument("old", type=Path)
    comparing.add_argument("new", type=Path)
    return parser.parse_args()


def main() -> int:
    """Run or compare."""
    arguments = arguments_of_command_line()
    if arguments.command == "compare":
        return compare(arguments)
    if arguments.source is not None:
        restart_with(arguments.source)
    arguments.sets = arguments.sets or list(SETS)
    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
