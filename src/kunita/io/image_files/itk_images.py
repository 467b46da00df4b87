"""NRRD and MetaImage through SimpleITK, and the one converter between its images and ours.

ITK counts world coordinates in LPS, and hands arrays over with the slowest axis first: here both
are turned round.
"""

import contextlib
import math
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import SimpleITK as sitk

from kunita.data.image import Image
from kunita.errors import FileError, KunitaWarning
from kunita.io.frames import Frame, flip_affine
from kunita.io.image_files.stored_images import (
    StoredImage,
    check_room,
    is_sheared,
    reason,
    refusing,
    stored_grid,
)
from kunita.io.image_files.text_headers import read_meta_header, read_nrrd_header
from kunita.io.writing import complete

FRAMES = {2: Frame.IMAGE, 3: Frame.LPS}
"""The frame of ITK's world coordinates, by their dimension."""


def open_nrrd(path: Path) -> StoredImage:
    """Read the header of an NRRD file; in space "3D-right-handed", or in none, its orientation is
    not stated.
    """
    return _open(path, "NrrdImageIO", "NRRD image")


def open_meta(path: Path) -> StoredImage:
    """Read the header of a MetaImage file."""
    return _open(path, "MetaImageIO", "MetaImage")


def _open(path: Path, reader_name: str, kind: str) -> StoredImage:
    text = (read_nrrd_header if reader_name == "NrrdImageIO" else read_meta_header)(path)
    header = read_header(path, reader_name, kind)
    check_room(path, declared_bytes(header), text.held, text.growth)
    d = header.GetDimension()
    if d == 3 and not text.oriented:
        message = (
            f"{path}: the orientation is not stated (no anatomical space); it was taken for LPS"
        )
        warnings.warn(message, KunitaWarning, stacklevel=5)
    affine = np.diag([text.millimetres] * d + [1.0]) @ affine_of(header)
    grid = stored_grid(path, header.GetSize(), affine)
    return StoredImage(grid, lambda: load(path, header, kind), header.GetNumberOfComponents() > 1)


def read_header(path: Path, reader_name: str, kind: str) -> sitk.ImageFileReader:
    """A reader that has read the header; real voxels in 2-D or 3-D are accepted.

    The reader is named, because ITK would otherwise try every format it knows on the file, whatever
    its name.
    """
    reader = sitk.ImageFileReader()
    with quiet(), refusing(path, kind):
        reader.SetImageIO(reader_name)
        reader.SetFileName(str(path))
        reader.ReadImageInformation()
    if reader.GetDimension() not in FRAMES:
        size = "×".join(str(n) for n in reader.GetSize())
        raise FileError.at(
            path, None, "one volume (extract one, or average them)", f"the shape {size}"
        )
    if "complex" in sitk.GetPixelIDValueAsString(reader.GetPixelID()):
        raise FileError.at(
            path, None, "real voxels (take the modulus or the phase)", "complex ones"
        )
    return reader


def load(
    path: Path, reader: sitk.ImageFileReader | sitk.ImageSeriesReader, kind: str
) -> np.ndarray:
    """The voxels that a reader is set to read."""
    with quiet(), refusing(path, kind):
        return as_array(reader.Execute())


def declared_bytes(header: sitk.ImageFileReader) -> int:
    """How many bytes of voxels a header declares."""
    return (
        math.prod(header.GetSize()) * header.GetNumberOfComponents() * voxel_type(header).itemsize
    )


def voxel_type(header: sitk.ImageFileReader) -> np.dtype:
    """NumPy's name for the type of voxel that a header declares."""
    return sitk.GetArrayViewFromImage(
        sitk.Image([1] * header.GetDimension(), header.GetPixelID())
    ).dtype


def affine_of(header: sitk.ImageFileReader | sitk.Image) -> np.ndarray:
    """From voxel index to world in memory's frame, (d + 1, d + 1): direction · diag(spacing), then
    the origin.
    """
    d = header.GetDimension()
    affine = np.eye(d + 1)
    affine[:d, :d] = np.reshape(header.GetDirection(), (d, d)) * header.GetSpacing()
    affine[:d, d] = header.GetOrigin()
    return flip_affine(affine, FRAMES[d])


def as_array(image: sitk.Image) -> np.ndarray:
    """The voxels in the order x, y(, z)(, channel)."""
    array = sitk.GetArrayFromImage(image)
    d = image.GetDimension()
    return array.transpose(*reversed(range(d)), *range(d, array.ndim))


def as_itk(image: Image) -> sitk.Image:
    """An image of ours as one of ITK's."""
    d = image.grid.dimension
    order = (*reversed(range(d)), *range(d, image.data.ndim))
    converted = sitk.GetImageFromArray(
        np.ascontiguousarray(image.data.transpose(order)), isVector=image.channels
    )
    affine = flip_affine(image.affine, FRAMES[d])
    converted.SetOrigin(affine[:d, d].tolist())
    converted.SetSpacing(image.grid.spacing.tolist())
    converted.SetDirection((affine[:d, :d] / image.grid.spacing).ravel().tolist())
    return converted


def write_itk(path: Path, image: Image, *, overwrite: bool = False) -> None:
    """Write .nrrd or .mha, packed."""
    if path.suffix.lower() == ".mha" and is_sheared(image.grid):
        raise FileError.at(
            path, None, "axes at right angles (write .nii.gz or .nrrd)", "a sheared image"
        )
    save(path, as_itk(image), overwrite=overwrite)


def save(path: Path, image: sitk.Image, *, overwrite: bool) -> None:
    """Let SimpleITK write a file by its suffix; the file appears when it is complete."""
    with complete(path, overwrite=overwrite) as partial, quiet():
        try:
            sitk.WriteImage(image, str(partial), useCompression=True)
        except RuntimeError as error:
            raise FileError(f"{path}: cannot be written: {reason(error)}") from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep ITK from printing warnings while it works; what it raises says enough."""
    shown = sitk.ProcessObject.GetGlobalWarningDisplay()
    sitk.ProcessObject.SetGlobalWarningDisplay(False)
    try:
        yield
    finally:
        sitk.ProcessObject.SetGlobalWarningDisplay(shown)
