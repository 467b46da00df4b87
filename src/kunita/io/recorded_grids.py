"""What a result remembers of the images it was made with: where their voxels are."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from kunita.data.image import Grid, is_pixel_grid
from kunita.io.image_files.files import read_grid
from kunita.io.result_folder import RECORD, SUMMARY, find_record


def recorded_grid(result: Path, side: str) -> Grid | None:
    """The grid of the moving or fixed image that was registered, if there was one."""
    return _recorded(result, "grids", side)


def recorded_slice(result: Path, side: str) -> Grid | None:
    """The grid of a volume of one slice that was registered as a plane, if it was one."""
    return _recorded(result, "slices", side)


def _recorded(result: Path, key: str, side: str) -> Grid | None:
    record = find_record(result)
    summary = record.with_name(record.name.replace(RECORD, SUMMARY))
    try:
        grid = json.loads(summary.read_text(encoding="utf-8"))[key][side]
        return Grid(grid["shape"], grid["affine"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def recorded_spacing(result: Path, given: Any, path: Path | None = None) -> Any:
    """The spacing of pixels: what is given, or what the pictures were registered with.

    None for volumes, and for planes whose files say where they lie: a spacing would replace that.

    Args:
        result: the folder.
        given: by the user, or None.
        path: the image that is to be read, if it is one.
    """
    if given is None and path is not None and _states_a_place(path):
        return None
    grids = (recorded_grid(result, side) for side in ("fixed", "moving"))
    flat = [grid for grid in grids if grid is not None and grid.dimension == 2]
    if given is not None or not flat or np.all(flat[0].spacing == 1):
        return given
    if not all(is_pixel_grid(grid) for grid in flat):
        return None
    return tuple(float(step) for step in flat[0].spacing)


def _states_a_place(path: Path) -> bool:
    """Whether an image says how large its pixels are or where they lie."""
    grid = read_grid(path)
    return not is_pixel_grid(grid) or bool(np.any(grid.spacing != 1))


def same_place(a: Grid | None, b: Grid | None) -> bool:
    """Whether two grids have the same voxels at the same places."""
    return (
        a is not None
        and b is not None
        and a.shape == b.shape
        and np.allclose(a.affine, b.affine, atol=1e-3)
    )
