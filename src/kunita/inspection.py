"""What a file is: landmarks, image, mesh, streamlines, transform or registration."""

from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np

from kunita.data.image import Grid
from kunita.data.slices import axis_codes
from kunita.errors import FileError
from kunita.inputs import grid_of, load_result, tables
from kunita.io.frames import flip_points
from kunita.io.geometry_files.files import is_geometry, read_geometry
from kunita.io.image_files.files import is_image
from kunita.io.landmark_files.table import LandmarkTable
from kunita.io.result_folder import find_record, results_in

TRANSFORMS = (".h5", ".hdf5", ".tfm", ".mat")
"""Suffixes of ITK's transforms that other files do not have."""

FIRST_WORDS = b"#Insight Transform File"
"""Of a transform in text, which may be called .txt."""


def describe(args: Namespace) -> dict[str, Any]:
    """What is known of a file without computing, as `kunita info --json` prints it."""
    path = args.file
    if not path.exists():
        raise FileError(f"{path}: no such file")
    if path.name.endswith("registration.h5") or (path.is_dir() and results_in(path)):
        return _describe_registration(path)
    if _is_transform(path):
        return _describe_transform(path)
    if is_geometry(path):
        geometry = read_geometry(path, frame=args.frame)
        low, high = geometry.points.min(axis=0), geometry.points.max(axis=0)
        return {
            "file": str(path),
            "kind": type(geometry).__name__.lower(),
            "n_points": len(geometry.points),
            "from_mm": low.tolist(),
            "to_mm": high.tolist(),
        }
    return _describe_image(path, args) if is_image(path) else _describe_landmarks(path, args)


def _describe_registration(path: Path) -> dict[str, Any]:
    reg = load_result(path)
    return {
        "file": str(find_record(path)),
        "kind": "registration",
        "summary": reg.summary().splitlines(),
    }


def _is_transform(path: Path) -> bool:
    """Whether a file looks like a transform of ITK's: by its suffix, or by its first words."""
    if path.suffix.lower() in TRANSFORMS:
        return True
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        return file.read(len(FIRST_WORDS)) == FIRST_WORDS


def _describe_transform(path: Path) -> dict[str, Any]:
    from kunita.io.linear_transforms import read_transform, stored_linear_part  # loads ITK

    transform = read_transform(path)
    frame = "LPS" if transform.GetDimension() == 3 else "IMAGE"
    matrix = stored_linear_part(transform)
    name = "matrix" if transform.IsLinear() else "matrix_of_linear_part"
    return {
        "file": str(path),
        "kind": "ITK transform",
        "type": transform.GetName(),
        "dimension": transform.GetDimension(),
        "frame": frame,
        "maps": (
            "points; one that warps moving images onto fixed ones, as --init expects, maps points "
            "from fixed to moving"
        ),
        **({} if matrix is None else {name: matrix.tolist()}),
    }


def _describe_image(path: Path, args: Namespace) -> dict[str, Any]:
    grid = grid_of(path, args.spacing)
    centre = grid.world((np.array(grid.shape) - 1) / 2)
    return {
        "file": str(path),
        "kind": "image",
        "shape": list(grid.shape),
        "spacing_mm": grid.spacing.tolist(),
        "axes": _axes(grid),
        "frame": "RAS" if grid.dimension == 3 else "IMAGE",
        "centre_mm": centre.tolist(),
        "affine": grid.affine.tolist(),
    }


def _describe_landmarks(path: Path, args: Namespace) -> dict[str, Any]:
    volumes = [_describe_table(table) for table in tables(path, args)]
    return {"file": str(path), "kind": "landmarks", "volumes": volumes}


def _describe_table(table: LandmarkTable) -> dict[str, Any]:
    points = flip_points(table.points[table.defined], table.frame)  # the numbers that the file has
    return {
        "n": len(table),
        "undefined": int((~table.defined).sum()),
        "dimension": table.dimension,
        "frame": f"{table.frame.value} ({table.stated})",
        "pairing": f"by order: {table.names_problem}" if table.names_problem else "by name",
        "covariances": table.covariances is not None,
        "from_mm": points.min(axis=0).tolist(),
        "to_mm": points.max(axis=0).tolist(),
    }


def _axes(grid: Grid) -> str:
    """Where each axis of the voxels mostly points, such as RAS or LPS."""
    return "x right, y down" if grid.dimension == 2 else axis_codes(grid)


def readable(value: Any) -> str:
    """A value of such a description, for people: few digits, and a line for each item that is more
    than a number.
    """
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return "; ".join(f"{key} {readable(item)}" for key, item in value.items())
    if isinstance(value, list) and value and isinstance(value[0], dict | list | str):
        return "\n" + "\n".join(f"    {readable(item)}" for item in value)
    if isinstance(value, list):
        return " ".join(readable(item) for item in value)
    return str(value)
