"""Time, memory and file size of the registration of two large volumes, whose truth is known.

    python benchmarks/image_size.py                     # 256³ voxels, about 20,000 nodes
    python benchmarks/image_size.py --size 128          # a quick run with as many voxels a node

The fixed image is a random texture. The moving image is the fixed one moved by a composition of
shears, each along one axis by a sum of waves of the other two coordinates: a diffeomorphism that is
known everywhere and costs a few sines a voxel. Displacements are in proportion to the size, 5
voxels in the mean at 256³. White noise is added to both images.

Nodes are 0.7 of the shortest length scale apart in 3-D; the length scale is chosen for the number
of nodes that was asked for. The images are made in a process of their own, so that the memory is
that of the registration. Results are added to `.bench/images/size.json`.
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

# One thread; to be said before NumPy is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from image_data import Timed, distances, summary
from image_tables import table
from scipy import ndimage

import kunita

PROJECT = Path(__file__).resolve().parents[1]

STANDARD_SIZE = 256
STANDARD_NODES = 20_000
SPACING = 0.7
"""Distance of the nodes over the shortest length scale, in 3-D."""

MARGIN_NODES = 3
"""Along each axis a lattice has so many nodes more than intervals fit into the image."""

LONG_OVER_SHORT = 3.0
AMPLITUDES = (6.0, 2.0)
"""Of the long and the short scale at the standard size, voxels."""

SHEARS = 6
WAVES = 3
SHEAR = 3.0
"""Standard deviation of one shear at the standard size, voxels."""

NOISE = 0.1
SEED = 1
POINTS = 2000
BORDER = 0.08
"""Of the size: points that are judged keep so far away from the border."""


@dataclasses.dataclass(frozen=True, eq=False)
class Shears:
    """A composition of shears: x_a ← x_a + Σ_w g_w sin(k_w·x + p_w), k_w without a part along a.

    Args:
        frequencies: (t, w, 3) k, in radians a voxel; shear t is along axis t mod 3.
        phases: (t, w) p.
        heights: (t, w) g, voxels.
    """

    frequencies: np.ndarray
    phases: np.ndarray
    heights: np.ndarray

    @classmethod
    def draw(cls, size: int, seed: int) -> "Shears":
        """Waves of half the size and longer."""
        rng = np.random.default_rng(seed)
        shape = (SHEARS, WAVES)
        frequencies = rng.uniform(-1, 1, size=(*shape, 3)) * 2 * np.pi / (0.5 * size)
        for step in range(SHEARS):
            frequencies[step, :, step % 3] = 0
        height = SHEAR * (size / STANDARD_SIZE) * np.sqrt(2 / WAVES)
        return cls(
            frequencies=frequencies,
            phases=rng.uniform(0, 2 * np.pi, size=shape),
            heights=height * rng.normal(size=shape),
        )

    def __call__(self, points: np.ndarray) -> np.ndarray:
        """Where (m, 3) moving points go in fixed space."""
        moved = np.array(points, dtype=np.float32)
        for step in range(SHEARS):
            angles = moved @ self.frequencies[step].T.astype(np.float32) + self.phases[step]
            moved[:, step % 3] += np.sin(angles) @ self.heights[step]
        return moved


def texture(size: int, rng: np.random.Generator) -> np.ndarray:
    """Clouds of three widths; the standard deviation is one."""
    values = np.zeros(3 * (size,), dtype=np.float32)
    for width, weight in ((1.5, 0.5), (3.0, 0.8), (6.0, 1.0)):
        white = rng.standard_normal(3 * (size,), dtype=np.float32)
        clouds = ndimage.gaussian_filter(white, width, mode="wrap")
        values += weight * clouds / clouds.std()
    return values / values.std()


def write_pair(size: int, path: Path) -> None:
    """Make both images: M(x) = F(φ(x)) + noise, a slab at a time."""
    rng = np.random.default_rng(SEED)
    whole = texture(size, rng)
    truth = Shears.draw(size, SEED)
    coefficients = ndimage.spline_filter(whole, order=3, output=np.float32, mode="mirror")
    moving = np.empty_like(whole)
    for index in range(size):
        places = np.moveaxis(np.indices((1, size, size)), 0, -1).reshape(-1, 3)
        arrived = truth(places + [index, 0, 0])
        seen = ndimage.map_coordinates(
            coefficients, arrived.T, order=3, mode="mirror", prefilter=False
        )
        moving[index] = seen.reshape(size, size)
    moving += NOISE * rng.standard_normal(moving.shape, dtype=np.float32)
    whole += NOISE * rng.standard_normal(whole.shape, dtype=np.float32)
    partial = path.with_suffix(".partial.npz")
    np.savez(partial, moving=moving, fixed=whole)
    partial.replace(path)


def read_pair(size: int, folder: Path) -> tuple[kunita.Image, kunita.Image]:
    """Moving and fixed; made in another process when they are not there."""
    path = folder / f"size-{size}.npz"
    if not path.exists():
        command = [sys.executable, __file__, "--size", str(size), "--make", str(path)]
        subprocess.run(command, check=True)
    with np.load(path) as known:
        return kunita.Image(known["moving"], np.eye(4)), kunita.Image(known["fixed"], np.eye(4))


def kernel_for(size: int, nodes: int) -> kunita.Sum:
    """Two scales, the short one such that the lattice has so many nodes."""
    intervals = round(nodes ** (1 / 3)) - MARGIN_NODES
    short = size / intervals / SPACING
    unit = size / STANDARD_SIZE
    long = kunita.Gaussian(length_scale=LONG_OVER_SHORT * short, amplitude=unit * AMPLITUDES[0])
    return long + kunita.Gaussian(length_scale=short, amplitude=unit * AMPLITUDES[1])


def measure(size: int, nodes: int, metric: str, folder: Path) -> dict:
    """Register, save, and compare with the truth at random points."""
    moving, fixed = read_pair(size, folder)
    with warnings.catch_warnings(), Timed() as timed:
        warnings.simplefilter("ignore", kunita.KunitaWarning)
        reg = kunita.register(
            moving_image=moving,
            fixed_image=fixed,
            kernel=kernel_for(size, nodes),
            metric=metric,
            init=np.eye(4),
        )
    with Timed() as draws:
        reg.posterior.with_draws(reg.images.num_draws, 0)
    path = folder / f"size-{size}.h5"
    kunita.save(reg, path, overwrite=True)
    rng = np.random.default_rng(SEED + 1)
    points = rng.uniform(BORDER * size, (1 - BORDER) * size, size=(POINTS, 3))
    truth = Shears.draw(size, SEED)(points)
    found = reg.posterior.predict(points)
    return {
        "size": size,
        "metric": metric,
        "nodes": int(reg.posterior.cells.lattice.num_nodes),
        "unknowns": 3 * int(reg.posterior.cells.lattice.num_nodes),
        **timed.cost,
        "draws_cpu_s": draws.cost["cpu_s"],
        "file_mb": path.stat().st_size / 2**20,
        "before": summary(distances(points, truth)),
        "error": summary(distances(np.asarray(found.mean), truth)),
        "mean_radius": float(found.radius(0.95).mean()),
        "converged": bool(reg.converged),
        "warnings": list(reg.warnings),
    }


def shown_table(records: dict[str, dict]) -> list[str]:
    """All that was measured."""
    head = ["voxels", "nodes", "CPU s", "of these draws", "wall s", "peak MB", "images MB"]
    head += ["registration.h5, MB", "before, voxels", "error: mean", "p95", "max"]
    rows = []
    for record in records.values():
        cost = [record[key] for key in ("cpu_s", "draws_cpu_s", "wall_s", "peak_mb", "start_mb")]
        errors = [record["error"][key] for key in ("mean", "p95", "max")]
        before = record["before"]["mean"]
        named = f"{record['size']}³, {record['metric']}"
        rows.append([named, record["nodes"], *cost, record["file_mb"], before, *errors])
    return table(head, rows)


def main() -> None:
    """Measure one size, and print all that were measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=int, default=STANDARD_SIZE, help="voxels along each axis")
    parser.add_argument("--nodes", type=int, help="default: in proportion to the voxels")
    parser.add_argument("--metric", choices=("lncc", "ssd", "both"), default="lncc")
    parser.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.make:
        write_pair(arguments.size, arguments.make)
        return
    folder = PROJECT / ".bench" / "images"
    folder.mkdir(parents=True, exist_ok=True)
    share = (arguments.size / STANDARD_SIZE) ** 3
    nodes = arguments.nodes or round(STANDARD_NODES * share)
    record = measure(arguments.size, nodes, arguments.metric, folder)
    path = folder / "size.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    known |= {f"{record['size']}-{record['nodes']}-{record['metric']}": record}
    path.write_text(json.dumps(known, indent=1))
    print("\n".join(shown_table(known)))


if __name__ == "__main__":
    main()
