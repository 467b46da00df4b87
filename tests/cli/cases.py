"""A small case in the files that a user has, and a way to run `kunita` on them."""

import contextlib
import dataclasses
import functools
import io
import pathlib

import numpy as np

import kunita
from kunita.cli import main
from kunita.data.geometry import Mesh, Streamlines, cells_of
from kunita.io.geometry_files.files import write_geometry
from kunita.io.landmark_files.files import write_landmarks

SHAPE = (20, 18, 16)
AFFINE = np.array(
    [[-3.0, 0.0, 0.0, 25.0], [0.0, 3.2, 0.0, 40.0], [0.0, 0.0, 3.5, -20.0], [0.0, 0.0, 0.0, 1.0]]
)
GRID = kunita.Grid(SHAPE, AFFINE)
NAMES = tuple(f"mark {i}, µ" for i in range(16))
KERNEL = ("--length-scale", "25", "--amplitude", "4", "--noise", "0.7")
"""Given everywhere, so that one compilation serves all tests."""


@dataclasses.dataclass(frozen=True)
class Ended:
    """What a command left behind: its exit status and what it printed."""

    status: int
    out: str
    err: str


def kunita_command(*words) -> Ended:
    """Run a command in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = main([str(word) for word in words])
        except SystemExit as stopped:
            status = stopped.code
    return Ended(int(status), out.getvalue(), err.getvalue())


@functools.cache
def landmarks():
    """Moving and fixed landmarks inside the images, in RAS."""
    rng = np.random.default_rng(0)
    moving = GRID.world(rng.uniform(0.2, 0.8, (16, 3)) * (np.array(SHAPE) - 1))
    fixed = moving + 3 * np.sin(moving[:, [1, 2, 0]] / 30) + rng.normal(0, 0.5, moving.shape)
    return kunita.Landmarks(moving, NAMES), kunita.Landmarks(fixed, NAMES)


def write_case(folder: pathlib.Path) -> None:
    """Landmarks in several formats, two images, labels, targets, a mesh and streamlines."""
    moving, fixed = landmarks()
    for side, points in (("moving", moving), ("fixed", fixed)):
        for suffix in (".mrk.json", ".csv", ".tag"):
            write_landmarks(folder / f"{side}{suffix}", points)
    write_landmarks(folder / "both.tag", (moving, fixed))
    write_landmarks(
        folder / "targets.csv", kunita.Landmarks(moving.points[:3] + 2.0, ["a", "b", "c"])
    )
    rng = np.random.default_rng(1)
    for name in ("moving", "fixed"):
        kunita.write_image(
            folder / f"{name}.nii.gz", kunita.Image(rng.integers(1, 999, SHAPE, np.int16), AFFINE)
        )
    marked = np.zeros(SHAPE, np.uint8)
    marked[6:12, 6:12, 5:10] = 3
    kunita.write_image(folder / "labels.nii.gz", kunita.Image(marked, AFFINE))
    write_geometry(
        folder / "mesh.vtk",
        Mesh(moving.points[:4], faces=cells_of(np.array([[0, 1, 2], [1, 2, 3]]))),
    )
    write_geometry(folder / "lines.trk", Streamlines(moving.points[:9], [4, 5]), reference=GRID)


def write_flat_case(folder: pathlib.Path) -> None:
    """Two colour pictures of different sizes and landmarks in pixels, as BIRL has them."""
    rng = np.random.default_rng(2)
    moving = rng.uniform(5, 33, (16, 2))
    fixed = moving + 2 * np.sin(moving[:, ::-1] / 15)
    for name, points, shape in (("moving", moving, (40, 38, 3)), ("fixed", fixed, (42, 39, 3))):
        rows = "".join(f"{i},{x:.4f},{y:.4f}\n" for i, (x, y) in enumerate(points))
        (folder / f"{name}.csv").write_text(f",X,Y\n{rows}")
        picture = kunita.Image(rng.integers(1, 255, shape, np.uint8), np.eye(3), channels=True)
        kunita.write_image(folder / f"{name}.png", picture)
    marked = np.zeros((40, 38), np.uint8)
    marked[10:25, 12:24] = 1
    kunita.write_image(folder / "labels.png", kunita.Image(marked, np.eye(3)))


def images(case: pathlib.Path) -> tuple:
    """Options for both images: on their grids the transforms are small, and nothing else is drawn."""
    return (
        "--moving-image",
        case / "moving.nii.gz",
        "--fixed-image",
        case / "fixed.nii.gz",
        "--no-report",
    )


def contents(folder: pathlib.Path) -> dict[str, bytes]:
    """Everything below a folder, hidden files included."""
    return {
        str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()
    }
