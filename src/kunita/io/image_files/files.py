"""Images and their grids from files, and back: nibabel for NIfTI and MINC, SimpleITK for the rest.

In memory a 3-D image is in RAS+ mm and a 2-D image in the frame IMAGE, whatever the file was in.
The libraries are imported when a file of theirs is met.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from kunita.data.image import Grid, Image
from kunita.errors import ArgumentError, FileError
from kunita.io.image_files.nifti_slabs import slab_writer
from kunita.io.image_files.stored_images import StoredImage, is_dicom

__all__ = ["is_image", "read_grid", "read_image", "slab_writer", "write_image"]

NIFTI = (".nii", ".nii.gz", ".hdr", ".img")
MINC = (".mnc",)
NRRD = (".nrrd", ".nhdr")
META = (".mha", ".mhd")
PICTURES = (".jpg", ".jpeg", ".png", ".tif", ".tiff", ".bmp")
WRITTEN = (".nii", ".nii.gz", ".nrrd", ".mha", ".png", ".jpg", ".jpeg", ".tif", ".tiff")


def read_image(path: str | os.PathLike, *, spacing: Any = None) -> Image:
    """Read an image: NIfTI, MINC, NRRD, MetaImage, a folder (or one file) of a DICOM series, or a
    picture.

    Args:
        path: its suffix tells the format; a DICOM file may be called anything.
        spacing: of a 2-D image: the distance between pixels, or one along x and one along y. It
            replaces the file's geometry: pixel index × spacing. By default 1 for pictures, and what
            the file says for other formats.
    """
    stored = _open(Path(path))
    grid = _placed(stored.grid, spacing)
    return Image(stored.load(), grid.affine, stored.channels)


def read_grid(path: str | os.PathLike, *, spacing: Any = None) -> Grid:
    """Read where the voxels of an image file are, from its header alone; see `read_image`."""
    return _placed(_open(Path(path)).grid, spacing)


def write_image(path: str | os.PathLike, image: Any, *, overwrite: bool = False) -> None:
    """Write an image to a .nii, .nii.gz, .nrrd or .mha file, or a 2-D one to a .png, .jpg or .tif.

    Whole numbers of 64 bits, NumPy's usual ones, are written in 32 if they fit; truth values as 0
    and 1. Pictures hold whole numbers only (TIFF also float32) and do not hold the spacing.
    """
    if not isinstance(image, Image):
        raise ArgumentError(f"image: expected an Image, found {image!r:.80}")
    target, suffix = Path(path), _suffix(Path(path))
    if suffix not in WRITTEN:
        raise FileError.at(target, None, f"a name that ends in {', '.join(WRITTEN)}", target.name)
    _writer(suffix)(
        target,
        Image(_storable(target, image.data), image.affine, image.channels),
        overwrite=overwrite,
    )


def is_image(path: str | os.PathLike) -> bool:
    """Whether a path looks like an image: by its suffix; a folder, or a file that is marked as
    DICOM, is one too.
    """
    place = Path(path)
    if place.is_dir() or _suffix(place) in (*NIFTI, *MINC, *NRRD, *META, *PICTURES):
        return True
    return is_dicom(place)


def _open(path: Path) -> StoredImage:
    if not path.exists():
        raise FileError(f"{path}: no such file")
    if path.is_file() and path.stat().st_size == 0:
        raise FileError(f"{path}: the file is empty")
    if not os.access(path, os.R_OK):
        raise FileError(f"{path}: cannot be read: permission denied")
    return _opener(path)(path)


def _opener(path: Path) -> Callable[[Path], StoredImage]:
    """What reads a file's header, by the suffix; DICOM, whose files have any name, by its mark."""
    if _suffix(path) in NIFTI and path.is_file():
        from kunita.io.image_files.nifti_images import open_nifti as opener
    elif _suffix(path) in MINC and path.is_file():
        from kunita.io.image_files.minc_images import open_minc as opener
    elif _suffix(path) in NRRD and path.is_file():
        from kunita.io.image_files.itk_images import open_nrrd as opener
    elif _suffix(path) in META and path.is_file():
        from kunita.io.image_files.itk_images import open_meta as opener
    elif _suffix(path) in PICTURES and path.is_file():
        from kunita.io.image_files.pictures import open_picture as opener
    else:
        from kunita.io.image_files.dicom_series import open_series as opener

        if not (path.is_dir() or is_dicom(path)):
            known = ", ".join((*NIFTI, *MINC, *NRRD, *META, *PICTURES))
            raise FileError.at(path, None, f"an image file ({known}) or a DICOM folder", path.name)
    return opener


def _writer(suffix: str) -> Callable[..., None]:
    if suffix in NIFTI:
        from kunita.io.image_files.nifti_images import write_nifti as writer
    elif suffix in PICTURES:
        from kunita.io.image_files.pictures import write_picture as writer
    else:
        from kunita.io.image_files.itk_images import write_itk as writer
    return writer


def _suffix(path: Path) -> str:
    """The last suffix in lower case, or the last two where the last is .gz."""
    last = path.suffix.lower()
    return Path(path.stem).suffix.lower() + last if last == ".gz" else last


def _placed(grid: Grid, spacing: Any) -> Grid:
    """The grid, or if a spacing is given, its pixels at index × spacing."""
    if spacing is None:
        return grid
    if grid.dimension != 2:
        raise ArgumentError("spacing: only a 2-D image takes one; a 3-D file states its own")
    try:
        steps = np.broadcast_to(np.asarray(spacing, dtype=float), (2,))
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"spacing: expected one number or two, found {spacing!r:.80}"
        ) from error
    if not np.all((steps > 0) & np.isfinite(steps)):
        raise ArgumentError(f"spacing: expected positive numbers, found {spacing!r:.80}")
    return Grid(grid.shape, np.diag([*steps, 1.0]))


def _storable(path: Path, data: np.ndarray) -> np.ndarray:
    """The voxels in the machine's byte order and in a type that files hold, all values unchanged."""
    if data.dtype.kind in "iu" and data.dtype.itemsize > 4:
        low, high = (int(data.min()), int(data.max())) if data.size else (0, 0)
        if low < np.iinfo(np.int32).min or high > np.iinfo(np.int32).max:
            raise FileError.at(path, None, "whole numbers that fit in 32 bits", f"{low} to {high}")
        return data.astype(np.int32)
    if data.dtype.kind == "b":
        return data.astype(np.uint8)
    if data.dtype.kind == "f" and data.dtype.itemsize not in (4, 8):
        return data.astype(np.float32 if data.dtype.itemsize < 4 else np.float64)
    return data.astype(data.dtype.newbyteorder("="), copy=False)
