"""Transforms as the files that ITK, ANTs, Slicer and nitransforms read; LPS inside, as they want.

`.h5`      an ITK composite, affine ∘ displacement field, both always there: some readers fail on a
lone field. `.nii.gz`  one displacement field, 5-D (x, y, z, 1, vector), intent 1007: the whole map,
alignment included. `.nrrd`    the same for Slicer, with its `displacement field type` stated.
"""

import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from kunita.data.image import Grid
from kunita.errors import FileError
from kunita.io import frames
from kunita.io.frames import Frame
from kunita.io.writing import complete
from kunita.outputs.transforms import CompositeTransform

VECTOR = 1007


def write_transform(
    path: str | os.PathLike, transform: CompositeTransform, *, overwrite: bool = False
) -> None:
    """Write a transform in the format of the file's suffix: .h5 (or .hdf5), .nii, .nii.gz or .nrrd."""
    name = Path(path).name.lower()
    writers = {
        ".h5": _write_itk,
        ".hdf5": _write_itk,
        ".nii": _write_nifti,
        ".nii.gz": _write_nifti,
        ".nrrd": _write_nrrd,
    }
    suffix = next((suffix for suffix in writers if name.endswith(suffix)), None)
    if suffix is None:
        raise FileError(
            f"{path}: expected a transform file ({', '.join(writers)}), found the suffix {Path(path).suffix!r}"
        )
    with complete(path, overwrite=overwrite) as partial:
        try:
            writers[suffix](partial, transform)
        except RuntimeError as error:  # ITK's word for anything that the disk refuses
            raise FileError(
                f"{path}: cannot be written: {str(error).splitlines()[-1].strip()}"
            ) from error


def _write_itk(path: Path, transform: CompositeTransform) -> None:
    """ITK's HDF5 layout: numbered transforms, the last of which is applied first.

    Through a file of Python's, by h5py: ITK's own writer prints pages, and may end the process,
    when the disk is full. The vectors are in single precision, good to 1e-5 mm: half of the file,
    and readers convert them.
    """
    d, frame = transform.grid.dimension, _frame(transform.grid)
    affine = frames.flip_map(transform.affine, frame)
    grid = frames.flip_affine(transform.grid.affine, frame)
    spacing = transform.grid.spacing
    vectors = _x_fastest(transform.displacement, frame)
    geometry = [transform.grid.shape, grid[:d, d], spacing, (grid[:d, :d] / spacing).ravel()]
    with open(path, "w+b") as raw, h5py.File(raw, "w") as file:
        for name, text in (
            ("ITKVersion", "5.4.0"),
            ("HDFVersion", h5py.version.hdf5_version),
            ("OSName", "any"),
        ):
            _write_text(file, name, text)
        _write_text(file, "TransformGroup/0/TransformType", f"CompositeTransform_double_{d}_{d}")
        _write_part(
            file,
            1,
            f"AffineTransform_double_{d}_{d}",
            np.append(affine[:d, :d].ravel(), affine[:d, d]),
            np.zeros(d),
        )
        _write_part(
            file,
            2,
            f"DisplacementFieldTransform_double_{d}_{d}",
            vectors.ravel(),
            np.concatenate(geometry),
        )


def _write_part(
    file: h5py.File, number: int, kind: str, parameters: np.ndarray, fixed: np.ndarray
) -> None:
    group = f"TransformGroup/{number}"
    _write_text(file, f"{group}/TransformType", kind)
    file[f"{group}/TransformParameters"] = parameters
    file[f"{group}/TransformFixedParameters"] = np.asarray(fixed, dtype=np.float64)


def _write_text(file: h5py.File, name: str, text: str) -> None:
    file.create_dataset(name, data=np.array([text], dtype=object), dtype=h5py.string_dtype("ascii"))


def _write_nrrd(path: Path, transform: CompositeTransform) -> None:
    import SimpleITK as sitk

    image = _field_image(transform.grid, transform.total_displacement())
    image.SetMetaData("displacement field type", "resampling")
    sitk.WriteImage(image, str(path), useCompression=True)


def _write_nifti(path: Path, transform: CompositeTransform) -> None:
    import nibabel

    d, frame = transform.grid.dimension, _frame(transform.grid)
    vectors = frames.flip_points(transform.total_displacement(), frame).astype(np.float32)
    shape = (*transform.grid.shape, *(1,) * (4 - d), d)
    affine = np.eye(4)
    affine[:d, :d], affine[:d, 3] = transform.grid.affine[:d, :d], transform.grid.affine[:d, d]
    if d == 2:  # ITK reads the axes of a 2-D NIfTI as RAS and flips both
        affine[:2] *= -1
    image = nibabel.Nifti1Image(vectors.reshape(shape), affine)
    image.header.set_intent(VECTOR)
    image.header.set_xyzt_units("mm")
    image.set_sform(affine, 1)
    image.set_qform(affine, 1, strip_shears=True)
    nibabel.save(image, path)


def _field_image(grid: Grid, displacement: np.ndarray) -> Any:
    """A displacement field as ITK holds it."""
    import SimpleITK as sitk

    d, frame = grid.dimension, _frame(grid)
    image = sitk.GetImageFromArray(_x_fastest(displacement, frame), isVector=True)
    affine = frames.flip_affine(grid.affine, frame)
    image.SetOrigin(affine[:d, d].tolist())
    image.SetSpacing(grid.spacing.tolist())
    image.SetDirection((affine[:d, :d] / grid.spacing).ravel().tolist())
    return image


def _x_fastest(vectors: np.ndarray, frame: Frame) -> np.ndarray:
    """(…, d) vectors in a file's frame with the axes of space in ITK's order, x varying fastest;
    single numbers.

    `frames.flip_points`, one component after the other: of very many vectors, several times as
    fast.
    """
    *shape, d = vectors.shape
    found = np.empty((*reversed(shape), d), np.float32)
    for a, sign in enumerate(frame.signs):
        found[..., a] = sign * vectors[..., a].T
    return found


def _frame(grid: Grid) -> Frame:
    return Frame.IMAGE if grid.dimension == 2 else Frame.LPS
