"""MINC 1 (netCDF) and MINC 2 (HDF5), read only. World coordinates are RAS already."""

import math
import os
from pathlib import Path
from typing import Any

import nibabel
import numpy as np

from kunita.errors import FileError
from kunita.io.image_files.stored_images import (
    LOOSE,
    SPARE,
    StoredImage,
    check_room,
    refusing,
    stored_grid,
)


def open_minc(path: Path) -> StoredImage:
    """Read the header. Axes keep the file's order, usually z, y, x; the affine says so."""
    _check_netcdf(path)
    with refusing(path, "MINC image"):
        image = nibabel.load(path)
    if not isinstance(image, nibabel.Minc1Image):
        raise FileError.at(path, None, "a MINC image", type(image).__name__)
    shape = tuple(int(n) for n in image.shape)
    if len(shape) < 3 or math.prod(shape[:-3]) != 1:
        raise FileError.at(
            path,
            None,
            "one volume (extract one, or average them)",
            f"the {len(shape)}-D shape {shape}",
        )
    check_room(
        path,
        math.prod(shape) * image.get_data_dtype().itemsize,
        os.path.getsize(path),
        LOOSE,
        SPARE,
    )
    return StoredImage(
        stored_grid(path, shape[-3:], image.affine), lambda: _voxels(path, image, shape[-3:])
    )


def _check_netcdf(path: Path) -> None:
    """Hold a MINC 1 header against the file: mapped into memory, a variable cannot be longer than
    its bytes.

    nibabel asks for as many bytes as the header declares before it looks at how many there are.
    """
    from scipy.io import netcdf_file

    with open(path, "rb") as file:
        if file.read(3) != b"CDF":
            return
    with refusing(path, "MINC image"), netcdf_file(path, mmap=True):
        pass


def _voxels(path: Path, image: Any, shape: tuple[int, ...]) -> np.ndarray:
    """The voxels, scaled to their real range, as MINC means them: always floats, double only if the
    file's type is.
    """
    with refusing(path, "MINC image"):
        scaled = np.asarray(image.dataobj)
    return scaled.astype(np.result_type(image.get_data_dtype(), np.float32), copy=False).reshape(
        shape
    )
