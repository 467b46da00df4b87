"""Memory and time of `kunita register` with all maps on a 512×512×300 image and 40 landmarks.

Prints the peak memory against the limit of 3 GB, and the time of the whole command against that of
writing one map of the same size with nibabel, which is what no program that writes six of them can
avoid.

    python benchmarks/large_image.py [--shape 512 512 300]
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nibabel
import numpy as np

import kunita
from kunita.io.image_files.files import slab_writer

LIMIT_GB = 3.0


def landmarks(grid, folder, seed=0):
    """40 landmarks in the middle of the image, displaced smoothly by some 5 mm."""
    rng = np.random.default_rng(seed)
    middle = grid.world((np.array(grid.shape) - 1) / 2)
    x = middle + rng.uniform(-80, 80, (40, 3))
    y = x + 5 * np.sin(x[:, [1, 2, 0]] / 40) + 0.5 * rng.normal(size=x.shape)
    for name, points in (("moving", x), ("fixed", y)):
        kunita.write_landmarks(
            folder / f"{name}.csv", kunita.Landmarks(points, [f"L{i}" for i in range(40)])
        )


def image(path, grid, dtype, value):
    """A volume made and written slab by slab."""
    i, j = np.meshgrid(*(np.arange(n) for n in grid.shape[:2]), indexing="ij")
    with slab_writer(path, grid, dtype) as write:
        for k in range(grid.shape[2]):
            write(value(i, j, k).astype(dtype)[..., None])


def main():
    """Make the files, run the command, print what it took."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", type=int, nargs=3, default=(512, 512, 300))
    shape = tuple(parser.parse_args().shape)
    grid = kunita.Grid(shape, np.diag([0.6, 0.6, 0.8, 1.0]))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        landmarks(grid, folder)
        waves = lambda i, j, k: 500 + 300 * np.sin(i / 9) * np.cos(j / 11 + k / 13)
        centre = np.array(shape) / 2
        ball = lambda i, j, k: (
            (i - centre[0]) ** 2 + (j - centre[1]) ** 2 + (k - centre[2]) ** 2 < 30**2
        )
        for file in ("moving.nii.gz", "fixed.nii.gz"):
            image(folder / file, grid, np.int16, waves)
        image(folder / "labels.nii.gz", grid, np.uint8, ball)
        command = [sys.executable, "-m", "kunita.cli", "register", "moving.csv", "fixed.csv", "--out", "out", "--json",
                   "--moving-image", "moving.nii.gz", "--fixed-image", "fixed.nii.gz", "--labels", "labels.nii.gz",
                   "--cov", "--nifti-xfm", "--nrrd"]  # fmt: skip
        began = time.perf_counter()
        done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
        seconds = time.perf_counter() - began
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6
        began = time.perf_counter()
        nibabel.save(
            nibabel.Nifti1Image(np.random.default_rng(0).random(shape, np.float32), grid.affine),
            folder / "x.nii.gz",
        )
        one = time.perf_counter() - began
        files = json.loads(done.stdout)["files"]
        size = sum((folder / "out" / file).stat().st_size for file in files) / 1e6
    print(f"{'×'.join(map(str, shape))} voxels, 40 landmarks, {len(files)} files, {size:.0f} MB")
    print(f"peak memory {peak:.2f} GB, {peak / LIMIT_GB:.2f} of the limit of {LIMIT_GB} GB")
    print(
        f"{seconds:.0f} s, {seconds / one:.1f} times nibabel's {one:.0f} s for one map of that size"
    )


if __name__ == "__main__":
    main()
