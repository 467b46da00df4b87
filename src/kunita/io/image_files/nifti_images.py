"""NIfTI-1 and NIfTI-2, in one file or two. On geometry nibabel is the authority: it keeps both
forms, and shear.
"""

import math
import os
import warnings
from pathlib import Path
from typing import Any

import nibabel
import numpy as np

from kunita.data.image import Image
from kunita.errors import FileError, KunitaWarning
from kunita.io.image_files.nifti_slabs import Intent, slab_writer
from kunita.io.image_files.stored_images import (
    DEFLATE,
    StoredImage,
    check_room,
    refusing,
    stored_grid,
)

MILLIMETRES = (1.0, 1e3, 1.0, 1e-3)
"""Per unit of length, by its code: not stated (taken for mm), metre, millimetre, micrometre."""

SINGLE_RANGE = (1e-30, 1e30)
"""Slopes and intercepts with which a product in single precision neither overflows nor loses
digits."""


def open_nifti(path: Path) -> StoredImage:
    """Read the header; 4-D images with one volume are 3-D, and X×Y×Z×1×C is an image with C
    channels.
    """
    with refusing(path, "NIfTI image"):
        image = nibabel.load(path, mmap=False)
    if not isinstance(image, nibabel.Nifti1Pair):
        raise FileError.at(
            path, None, "a NIfTI image (convert the file to one)", type(image).__name__
        )
    channels = _check_kind(path, image.get_data_dtype()) or _vector_length(path, image.shape)
    shape = tuple(int(n) for n in image.shape[:3])
    grid = stored_grid(path, shape, _affine(path, image, len(shape)))
    _check_data(path, image)
    return StoredImage(grid, lambda: _voxels(path, image, shape, channels), channels > 0)


def _check_kind(path: Path, dtype: np.dtype) -> int:
    """How many channels one voxel has by its type: those of a colour, else none; refuse what is not
    real.
    """
    if dtype.kind == "c":
        raise FileError.at(path, None, "real voxels (take the modulus or the phase)", str(dtype))
    return len(dtype.names or ())


def _vector_length(path: Path, shape: tuple[int, ...]) -> int:
    """How many channels the axes past the third hold; 0 for none. NIfTI's fourth axis is time, its
    fifth a vector.
    """
    past = shape[3:]
    if all(n == 1 for n in past):
        return 0
    if len(past) == 2 and past[0] == 1:
        return int(past[1])
    wanted = "one volume (extract one, or average them)"
    raise FileError.at(
        path, None, wanted, f"the {len(shape)}-D shape {'×'.join(str(n) for n in shape)}"
    )


def _affine(path: Path, image: Any, dimension: int) -> np.ndarray:
    """From voxel index to world, mm; where the header states no form, nibabel's in 3-D, index ×
    spacing in 2-D.
    """
    stated = image.header["sform_code"] > 0 or image.header["qform_code"] > 0
    affine = _millimetres(path, image.header) @ image.affine
    if dimension == 3:
        if not stated:
            message = f"{path}: the orientation is not stated (sform and qform codes are 0); left and right are a guess"
            warnings.warn(message, KunitaWarning, stacklevel=5)
        return affine
    if not stated:
        steps = [*image.header.get_zooms(), 1.0][:2]
        return _millimetres(path, image.header)[1:, 1:] @ np.diag([*steps, 1.0])
    return _flat(path, affine)


def _millimetres(path: Path, header: Any) -> np.ndarray:
    """The scaling of world coordinates from the header's unit of length to mm."""
    code = int(header["xyzt_units"]) % 8
    if code >= len(MILLIMETRES):
        raise FileError.at(
            path, None, "a unit of length: metre, millimetre or micrometre", f"code {code}"
        )
    return np.diag([MILLIMETRES[code]] * 3 + [1.0])


def _flat(path: Path, affine: np.ndarray) -> np.ndarray:
    """The part of an affine in the plane of x and y; refused where the plane is another one."""
    tilt = np.abs([*affine[2, :2], *affine[:2, 2]]).max()
    if tilt > 1e-4 * np.abs(affine[:2, :2]).max():  # quaternions are stored in single precision
        wanted = "a 2-D image in the plane of x and y (store a slice of a volume as X×Y×1)"
        raise FileError.at(path, None, wanted, affine[:3, :3].tolist())
    return affine[np.ix_([0, 1, 3], [0, 1, 3])]


def _check_data(path: Path, image: Any) -> None:
    """Refuse a header without its voxels, or one that declares more of them than the file can hold."""
    data = Path(image.file_map["image"].filename)
    if not data.is_file():
        raise FileError(f"{path}: its voxels should be in {data.name}, which does not exist")
    declared = image.get_data_dtype().itemsize * math.prod(int(n) for n in image.shape)
    if data.suffix.lower() == ".gz":
        check_room(path, declared, os.path.getsize(data), DEFLATE)
    else:
        check_room(path, declared, max(0, os.path.getsize(data) - int(image.dataobj.offset)))


def _voxels(path: Path, image: Any, shape: tuple[int, ...], channels: int) -> np.ndarray:
    """The voxels in the machine's byte order, scaled if the header says so; integers stay integers
    otherwise.
    """
    with refusing(path, "NIfTI image"):
        stored = image.dataobj.get_unscaled()
    if stored.dtype.names:
        return np.stack(
            [stored[name].reshape(shape, order="F") for name in stored.dtype.names], axis=-1
        )
    stored = stored.reshape((*shape, channels) if channels else shape, order="F")
    if (image.dataobj.slope, image.dataobj.inter) != (1.0, 0.0):
        return _scaled(stored, float(image.dataobj.slope), float(image.dataobj.inter))
    kept = np.dtype(float) if stored.dtype.itemsize > 8 else stored.dtype.newbyteorder("=")
    return stored.astype(kept, copy=False)


def _scaled(stored: np.ndarray, slope: float, intercept: float) -> np.ndarray:
    """Slope · stored + intercept, in single precision unless the stored type or the numbers need
    double.
    """
    low, high = SINGLE_RANGE
    calm = all(low < abs(number) < high or number == 0.0 for number in (slope, intercept))
    narrow = calm and np.result_type(stored.dtype, np.float32) == np.float32
    values = stored.astype(np.float32 if narrow else np.float64)
    np.multiply(values, slope, out=values)
    return np.add(values, intercept, out=values)


def write_nifti(path: Path, image: Image, *, overwrite: bool = False) -> None:
    """Write an image as NIfTI; the channels of a 3-D image become a vector per voxel."""
    if image.channels and image.grid.dimension == 2:
        wanted = "one channel, as 2-D NIfTI has no place for more (write .png, .tif or .nrrd)"
        raise FileError.at(path, None, wanted, f"{image.data.shape[-1]} channels")
    channels = image.data.shape[-1] if image.channels else None
    intent = Intent.VECTOR if image.channels else None
    with slab_writer(
        path, image.grid, image.data.dtype, channels=channels, intent=intent, overwrite=overwrite
    ) as write:
        for component in np.moveaxis(image.data, -1, 0) if image.channels else [image.data]:
            write(component)
