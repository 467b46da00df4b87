"""How long a command takes, from nothing to its answer, and what takes the time.

Whole processes: `kunita --help`; `kunita register` of 30 landmarks without images the first time on
a machine (an empty cache of compiled programs), and afterwards; with a report. Then one run in
which the time is told apart: imports, tracing and lowering (JAX, in Python), compilation or its
reading from the cache, what `register` itself takes (the evidence, the fit, the search for
suspects), and the rest: leave-one-out, transforms and files.

    python benchmarks/startup.py [--json FILE] [--repeats 3]
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

LIMITS = {"help": 0.3, "first": 10.0, "later": 3.0, "report": 2.0}
"""Seconds that are allowed; for the report, on top of a later run."""

TOLD_APART = """
import json, sys, time
began = time.perf_counter()
import jax
import kunita.commands, kunita.io.registration_files, kunita.results
imported = time.perf_counter() - began
events = {}
jax.monitoring.register_event_duration_secs_listener(
    lambda name, seconds, **more: events.__setitem__(name, events.get(name, 0.0) + seconds)
)
from kunita.cli import main
code = main(sys.argv[1:])
print(json.dumps({"imports": imported, "all": time.perf_counter() - began, "events": events}))
sys.exit(code)
"""

EVENTS = {
    "tracing": "/jax/core/compile/jaxpr_trace_duration",
    "lowering": "/jax/core/compile/jaxpr_to_mlir_module_duration",
    "compiling, or reading what was compiled": "/jax/core/compile/backend_compile_duration",
}


@dataclasses.dataclass(frozen=True)
class Row:
    """What was timed, how long it took, and how long it may take, s."""

    what: str
    seconds: float
    limit: float | None = None

    def cells(self) -> list[str]:
        limit = "–" if self.limit is None else f"{self.limit:g}"
        ratio = "–" if self.limit is None else f"{self.seconds / self.limit:.2f}"
        return [self.what, f"{self.seconds:.2f}", limit, ratio]


def write_landmarks(folder: Path) -> tuple[Path, Path]:
    """Thirty landmarks in a cube of 150 mm, displaced by 6 mm RMS over 50 mm, marked with errors of
    0.5 mm; seed 30.
    """
    rng = np.random.default_rng(30)
    x = rng.uniform(0, 150, (30, 3))
    gram = np.exp(-np.sum((x[:, None] - x) ** 2, axis=2) / (2 * 50.0**2))
    u = np.linalg.cholesky(gram + 1e-9 * np.eye(30)) @ rng.normal(size=(30, 3))
    f = x + u * 6 / np.sqrt(np.mean(np.sum(u**2, axis=1))) + 0.5 * rng.normal(size=x.shape)
    paths = folder / "moving.csv", folder / "fixed.csv"
    for path, points in zip(paths, (x, f), strict=True):
        rows = (f"L{i},{a:.4f},{b:.4f},{c:.4f}" for i, (a, b, c) in enumerate(points))
        path.write_text("\n".join(["name,x,y,z", *rows, ""]), encoding="utf-8")
    return paths


def seconds(command: list[str], cache: Path) -> float:
    """Of a whole process, with its compiled programs in this cache."""
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env=environment(cache))
    return time.perf_counter() - began


def environment(cache: Path) -> dict[str, str]:
    """As it is, with another cache and none of JAX's settings; Python keeps its bytecode, as it
    does by itself.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("JAX_", "PYTHONDONTWRITE"))
    }
    return {**kept, "XDG_CACHE_HOME": str(cache)}


def told_apart(arguments: list[str], cache: Path) -> list[Row]:
    """Where the time of one run goes."""
    ran = subprocess.run(
        [sys.executable, "-c", TOLD_APART, *arguments], check=True, capture_output=True, text=True,
        env=environment(cache),
    )  # fmt: skip
    found = json.loads(ran.stdout.splitlines()[-1])
    parts = [
        ("importing", found["imports"]),
        *((what, found["events"].get(name, 0.0)) for what, name in EVENTS.items()),
    ]
    compiling = sum(part for _, part in parts[1:])
    out = Path(arguments[arguments.index("--out") + 1])
    registering = (
        json.loads((out / "summary.json").read_text(encoding="utf-8"))["seconds"] - compiling
    )
    rest = found["all"] - found["imports"] - compiling - registering
    parts += [("registering", registering), ("everything else", rest)]
    return [Row(f"of a later run: {what}", part) for what, part in parts]


def measured(folder: Path, repeats: int) -> list[Row]:
    """All rows; of what is repeated, the fastest."""
    kunita, cache = str(Path(sys.executable).with_name("kunita")), folder / "cache"
    moving, fixed = write_landmarks(folder)
    plain = [
        "register",
        str(moving),
        str(fixed),
        "--frame",
        "RAS",
        "--out",
        str(folder / "out"),
        "--overwrite",
    ]
    quick = [*plain, "--no-report", "--quiet"]
    best = lambda *commands: np.min(
        [[seconds(c, cache) for c in commands] for _ in range(repeats)], axis=0
    ).tolist()
    rows = [Row("python -c pass", *best([sys.executable, "-c", "pass"]))]
    rows.append(Row("kunita --help", *best([kunita, "--help"]), LIMITS["help"]))
    rows.append(
        Row(
            "kunita register --no-report, first time",
            seconds([kunita, *quick], cache),
            LIMITS["first"],
        )
    )
    seconds([kunita, *plain, "--quiet"], cache)
    later, report = best(
        [kunita, *quick], [kunita, *plain, "--quiet"]
    )  # in turn: a machine is not always as fast
    rows.append(Row("kunita register --no-report, afterwards", later, LIMITS["later"]))
    rows.append(Row("the report, in addition", report - later, LIMITS["report"]))
    return [*rows, *told_apart(quick, cache)]


def main() -> None:
    """Print the table, or write it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = [row.cells() for row in measured(Path(folder), given.repeats)]
    columns = ["what", "seconds", "limit", "ratio"]
    for row in (columns, ["---"] * 4, *rows):
        print("| " + " | ".join(row) + " |")
    if given.json:
        notes = [
            f"30 landmarks in 3-D, no images, everything chosen by the evidence; the fastest of {given.repeats}."
        ]
        document = {
            "title": "Start-up: whole processes",
            "columns": columns,
            "rows": rows,
            "notes": notes,
        }
        given.json.write_text(json.dumps(document, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
