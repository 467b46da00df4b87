"""Dense evaluation: points per second against the machine's own matrix product, and all maps of a
whole image.

Landmarks as in `fit_speed.py` (a draw from the Gaussian process, σ = 50 mm, 6 mm RMS, seed = their
number), fitted with σ = 50, a = 5, noise 1, rigid alignment; ten time steps. `of GEMM` is points/s
× 330 kflop (what the plain algorithm costs per point at 37 landmarks, so it is shown for 37 only)
over the rate of a 2048² matrix product in the same precision, measured in the same run; `of exp` is
n exponentials at each of the four stages of ten steps, per point, over the rate of exponentials,
which is what a point that is only moved costs. The maps (where every voxel comes from, FC, standard
deviation, 95 % radius, Jacobian determinant and the covariance) cover a cube of 256 mm; computing
ends with float32 numbers for every voxel. Writing and compression are apart: of the four scalar
maps as `.nii.gz`, less the time to compute these. Compiled programs are warm: every time is the
best of several.

    python benchmarks/dense.py [--json FILE] [--landmarks 37 300] [--voxels 128 256]
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from fit_speed import displaced
from peers.trial import peak_gb

import kunita
from kunita.evaluation import PRECISIONS, prepare
from kunita.io.map_files import write_all_maps
from kunita.jaxrun.threads import in_order
from kunita.outputs.dense import slabs
from kunita.outputs.maps import Maps, maps

PLAIN_FLOP = 330e3
SIDE = 256.0
STAGES = 40
"""Evaluations of the velocity on a point's way: four in each of ten steps."""

COLUMNS = ("what", "landmarks", "precision", "result", "of GEMM", "of exp", "cores used")
MAPS = ("fc", "std", "radius", "jacobian")


def best(function: Callable[[], Any], repeats: int = 5) -> tuple[float, float]:
    """Wall-clock seconds of the best of a few runs, and the largest ratio of processor to
    wall-clock time.
    """
    function()
    walls, ratios = [], []
    for _ in range(repeats):
        wall, processor = time.perf_counter(), time.process_time()
        function()
        walls.append(time.perf_counter() - wall)
        ratios.append((time.process_time() - processor) / walls[-1])
    return min(walls), max(ratios)


def limits(precision: str) -> tuple[float, float, float]:
    """Rates of the matrix product (flop/s) and of the exponential (1/s), and the cores that the
    first uses.
    """
    with jax.enable_x64(True):
        square = jnp.asarray(np.random.default_rng(0).random((2048, 2048)), precision)
        # summed at once, as they are where they are used: to write them would take longer than to
        # compute them
        product, exponential = jax.jit(lambda a: a @ a), jax.jit(lambda a: jnp.exp(-a).sum(axis=1))
        seconds, cores = best(lambda: product(square).block_until_ready())
        return (
            2 * 2048**3 / seconds,
            square.size / best(lambda: exponential(square).block_until_ready())[0],
            cores,
        )


def direct(reg: Any, n: int, precision: str, gemm: float, exponentials: float) -> list[tuple]:
    """Points per second, evaluated one by one, no interpolation."""
    evaluation = prepare(reg.posterior, precision)
    points = np.random.default_rng(1).uniform(0, 150, (32768 if n < 100 else 4096, 3))
    kinds = {
        "mean": evaluation.move,
        "mean and covariance": evaluation.predict,
        "inverse": evaluation.move_back,
        "inverse, Jacobian and covariance": evaluation.preimage,
    }
    rows = []
    for name, function in kinds.items():
        seconds, cores = best(lambda f=function: f(points))
        rate = len(points) / seconds
        share = f"{rate * PLAIN_FLOP / gemm:.2f}" if n == 37 and "covariance" in name else ""
        of_exp = f"{rate * n * STAGES / exponentials:.2f}"
        rows.append(
            (f"{name}, points/s", n, precision, f"{rate:,.0f}", share, of_exp, f"{cores:.1f}")
        )
    return rows


def everything(found: Maps) -> Callable[[Any], list[np.ndarray]]:
    """All maps of one slab, as float32."""

    def compute(slab: Any) -> list[np.ndarray]:
        covariance = found.on(slab, "cov").astype(np.float32)
        scalars = [data.astype(np.float32) for _, data in found.several(slab, MAPS)]
        return [found.pull_back.origins(slab).astype(np.float32), covariance, *scalars]

    return compute


def whole_image(reg: Any, n: int, size: int) -> list[tuple]:
    """Seconds of all maps of a cube of so many voxels along each edge, and of writing the scalar
    ones.
    """
    affine = np.diag([SIDE / size] * 3 + [1.0])
    affine[:3, 3] = 75 - SIDE / 2
    grid = kunita.Grid((size,) * 3, affine)
    found = maps(reg, grid)

    def compute() -> None:
        for _ in in_order(everything(maps(reg, grid)), slabs(grid)):
            pass

    def compute_scalars() -> None:
        for _ in in_order(lambda slab: list(found.several(slab, MAPS)), slabs(grid)):
            pass

    seconds, cores = best(compute, 2)
    peak = peak_gb()
    scalars, _ = best(compute_scalars, 2)
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        write_all_maps(Path(folder), found, MAPS, None, lambda fraction: None)
        writing = time.perf_counter() - began - scalars
    accuracy = found.accuracy
    good = f"mean ±{accuracy.mean_error_mm:.1g} mm, FC ±{100 * accuracy.fc_relative_error:.1g} %"
    name, precision = f"all maps, {size}³", accuracy.precision
    return [
        (f"{name}, s", n, precision, f"{seconds:.1f}", "", "", f"{cores:.1f}"),
        (f"{name}, peak memory so far, GB", n, precision, f"{peak:.2f}", "", "", ""),
        (f"{name}, error at {accuracy.checked} voxels", n, precision, good, "", "", ""),
        (
            f"{size}³: four maps compressed and written, s",
            n,
            precision,
            f"{writing:.1f}",
            "",
            "",
            "",
        ),
    ]


def table(landmarks: list[int], voxels: list[int]) -> list[tuple]:
    """All rows."""
    rates, rows = {precision: limits(precision) for precision in PRECISIONS}, []
    for precision, (gemm, exponentials, cores) in rates.items():
        rows.append(
            (
                "limit: matrix product, Gflop/s",
                "",
                precision,
                f"{gemm / 1e9:.0f}",
                "1.00",
                "",
                f"{cores:.1f}",
            )
        )
        rows.append(
            (
                "limit: exponentials, 10⁹/s",
                "",
                precision,
                f"{exponentials / 1e9:.2f}",
                "",
                "1.00",
                "",
            )
        )
    for n in landmarks:
        reg = kunita.register(*displaced(n), kernel=kunita.Gaussian(50.0, 5.0), noise=1.0)
        for precision in PRECISIONS:
            rows += direct(reg, n, precision, *rates[precision][:2])
        for size in voxels:
            rows += whole_image(reg, n, size)
    return rows


def main() -> None:
    """Print the table, and write it if asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--landmarks", type=int, nargs="*", default=[37, 300])
    parser.add_argument("--voxels", type=int, nargs="*", default=[128, 256])
    args = parser.parse_args()
    rows = table(args.landmarks, args.voxels)
    for row in (COLUMNS, ["---"] * len(COLUMNS), *rows):
        print("| " + " | ".join(str(cell) for cell in row) + " |")
    if args.json:
        notes = [" ".join((__doc__ or "").split("\n\n")[1].split())]
        document = {"title": "Dense evaluation", "columns": COLUMNS, "rows": rows, "notes": notes}
        args.json.write_text(
            json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
