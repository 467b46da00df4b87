"""What the machine can do: matrix products, exponentials and Cholesky factorisations per second.

The limits that the other benchmarks are held against. One thread is one processor (the process is
confined to it), all threads is all of those that it may use; the best of a few runs, on arrays
larger than the caches where it matters.

    python benchmarks/limits.py [--json FILE] [--sizes 37 300 1000 5000]
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

EDGE = 2000
"""Rows of the matrices multiplied."""

COUNT = 2**22
"""Exponentials taken at once."""

RUNS = 5
LONG_S = 5.0
"""What takes longer is run once."""


def main() -> None:
    """Print the limits as a table and as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write the table there too")
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=[37, 300, 1000], help="landmarks, for Cholesky"
    )
    parser.add_argument("--threads", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.threads:
        print(json.dumps(measured(arguments.sizes, arguments.threads)))
        return
    table = tabulated({threads: confined(threads, arguments.sizes) for threads in counts()})
    text = json.dumps(table, indent=1, ensure_ascii=False)
    print(text)
    if arguments.json:
        arguments.json.write_text(text + "\n")


def counts() -> list[int]:
    """One thread, and all."""
    return sorted({1, len(os.sched_getaffinity(0))})


def confined(threads: int, sizes: list[int]) -> dict[str, float]:
    """The measurements of a process of its own: libraries read the number of processors when they
    are loaded.
    """
    command = [sys.executable, __file__, "--threads", str(threads), "--sizes", *map(str, sizes)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def measured(sizes: list[int], threads: int) -> dict[str, float]:
    """Everything, in this process and on that many processors."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    rates = {}
    for bits in (64, 32):
        rates[f"matrix product, {bits} bits (Gflop/s)"] = product_rate(bits)
        rates[f"exp, NumPy, {bits} bits (million/s)"] = numpy_exp_rate(bits)
        rates[f"exp, JAX, {bits} bits (million/s)"] = jax_exp_rate(bits)
    return rates | {f"Cholesky of {3 * n} rows, 64 bits (s)": cholesky_seconds(n) for n in sizes}


def best(function: Callable[[], object]) -> float:
    """The shortest of a few runs, s."""
    shortest = float("inf")
    for _ in range(RUNS):
        began = time.perf_counter()
        function()
        shortest = min(shortest, time.perf_counter() - began)
        if shortest > LONG_S:
            break
    return shortest


def product_rate(bits: int) -> float:
    """Gflop/s of a product of square matrices through NumPy."""
    import numpy as np

    a = np.random.default_rng(0).normal(size=(EDGE, EDGE)).astype(f"float{bits}")
    return 2 * EDGE**3 / best(lambda: a @ a) / 1e9


def numpy_exp_rate(bits: int) -> float:
    """Exponentials per second through NumPy, in millions; NumPy has one thread."""
    import numpy as np

    x = -np.random.default_rng(0).uniform(0, 10, COUNT).astype(f"float{bits}")
    out = np.empty_like(x)
    return COUNT / best(lambda: np.exp(x, out=out)) / 1e6


def jax_exp_rate(bits: int) -> float:
    """Exponentials per second through a compiled JAX program, in millions.

    They are summed along rows of a hundred, as kernels are over landmarks: writing all of them
    would measure memory.
    """
    import jax
    import numpy as np

    with jax.enable_x64(True):
        rows = COUNT // 100
        x = jax.numpy.asarray(
            -np.random.default_rng(0).uniform(0, 10, (rows, 100)).astype(f"float{bits}")
        )
        program = jax.jit(lambda x: jax.numpy.exp(x).sum(axis=1))
        program(x).block_until_ready()
        return rows * 100 / best(lambda: program(x).block_until_ready()) / 1e6


def cholesky_seconds(n: int) -> float:
    """One factorisation of the covariance of n landmarks in 3-D, which a dense fit cannot do
    without, s.
    """
    import numpy as np
    import scipy.linalg

    x = np.random.default_rng(n).normal(size=(3 * n, 8))
    matrix = np.asfortranarray(x @ x.T + 3 * n * np.eye(3 * n))
    return best(lambda: scipy.linalg.cholesky(matrix, lower=True, check_finite=False))


def tabulated(limits: dict[int, dict[str, float]]) -> dict:
    """The form in which all parts of the benchmark give their tables, and the bare values by number
    of threads.
    """
    names = next(iter(limits.values()))
    rows = [[name, *(f"{found[name]:.3g}" for found in limits.values())] for name in names]
    columns = ["what", *(f"{threads} thread{'s' * (threads > 1)}" for threads in limits)]
    notes = [f"Best of {RUNS} runs; `python benchmarks/limits.py`."]
    return {
        "title": "Limits of the machine",
        "columns": columns,
        "rows": rows,
        "notes": notes,
        "values": limits,
    }


if __name__ == "__main__":
    main()
