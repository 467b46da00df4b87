"""DICOM: a folder that holds one series, or one file of it. Anything harder is for a converter such
as dcm2niix.

ITK stacks slices at the spacing of the first two, along their normal. Here the slices' own
positions place the volume, and a series that is not a regular stack is refused.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import SimpleITK as sitk

from kunita.errors import FileError
from kunita.io.image_files.itk_images import (
    affine_of,
    declared_bytes,
    load,
    quiet,
    read_header,
    voxel_type,
)
from kunita.io.image_files.stored_images import (
    LOOSE,
    SPARE,
    StoredImage,
    check_room,
    is_dicom,
    refusing,
    stored_grid,
)

KIND = "DICOM image"
SERIES, POSITION, ORIENTATION, PIXEL_SPACING = "0020|000e", "0020|0032", "0020|0037", "0028|0030"

ROWS = b"\x28\x00\x10\x00"
"""The tag (0028,0010) as it is stored, in all but the rare files with the other byte order."""

IRREGULAR = 0.01
"""Of the distance between slices: positions are rounded when they are written, but not by this
much."""


@dataclasses.dataclass(frozen=True, eq=False)
class Slice:
    """One file of a series: where its voxels lie, and what they are."""

    path: Path
    shape: tuple[int, ...]
    affine: np.ndarray
    dtype: np.dtype
    channels: int
    declared: int

    @property
    def position(self) -> np.ndarray:
        return self.affine[:3, 3]


def open_series(path: Path) -> StoredImage:
    """Read the headers of all slices of the series in a folder, or of the series that a file
    belongs to.
    """
    files = _files_of_folder(path) if path.is_dir() else _files_of_series(path)
    slices = _stacked(path, [_read_slice(file) for file in files])
    first = slices[0]
    affine = first.affine.copy()
    if len(slices) > 1:
        affine[:3, 2] = (slices[-1].position - first.position) / (len(slices) - 1)
    held = sum(one.path.stat().st_size for one in slices)
    check_room(path, sum(one.declared for one in slices), held, LOOSE, SPARE)
    grid = stored_grid(path, (*first.shape[:2], len(slices)), affine)
    return StoredImage(grid, lambda: load(path, _reader(slices), KIND), first.channels > 1)


def _files_of_folder(folder: Path) -> tuple[str, ...]:
    """The files of the only series in a folder."""
    series = _series(folder)
    if not series:
        raise FileError(f"{folder}: no DICOM series in this folder")
    if len(series) > 1:
        found = ", ".join(f"{uid} ({len(files)} files)" for uid, files in series[:5]) + (
            ", …" if series[5:] else ""
        )
        raise FileError(
            f"{folder}: expected one DICOM series, found {len(series)}: {found}; "
            "give one file of the wanted series, or a sub-folder with nothing else in it"
        )
    return series[0][1]


def _files_of_series(file: Path) -> tuple[str, ...]:
    """The files of the series that a file belongs to, which lie beside it."""
    header = read_header(file, "GDCMImageIO", KIND)
    uid = header.GetMetaData(SERIES).strip(" \0") if header.HasMetaDataKey(SERIES) else ""
    files = dict(_series(file.parent)).get(uid, ())
    if file.name not in [Path(name).name for name in files]:
        raise FileError.at(file, None, "a slice of a DICOM series", f"series {uid!r}")
    return files


def _series(folder: Path) -> list[tuple[str, tuple[str, ...]]]:
    """The series in a folder, and the files of each; refused if a slice is broken, which GDCM would
    leave out.
    """
    with quiet(), refusing(folder, "DICOM series"):
        names = sitk.ImageSeriesReader.GetGDCMSeriesFileNames
        series = [
            (uid, names(str(folder), uid))
            for uid in sitk.ImageSeriesReader.GetGDCMSeriesIDs(str(folder))
        ]
    read = {Path(name).name for _, files in series for name in files}
    for file in sorted(folder.iterdir()):
        if file.name not in read and is_dicom(file) and _has_rows(file):
            raise FileError(
                f"{file}: a truncated DICOM image, which its series would miss; repair or remove it"
            )
    return series


def _has_rows(path: Path) -> bool:
    """Whether a header says how many rows its image has: a report or an index of the folder has
    none.
    """
    with open(path, "rb") as file:
        return ROWS in file.read(2**20)


def _read_slice(name: str) -> Slice:
    path = Path(name)
    header = read_header(path, "GDCMImageIO", KIND)
    frames = header.GetSize()[2:]
    if frames != (1,):
        raise FileError.at(
            path, None, "one slice per file (convert it with dcm2niix)", f"{frames} frames"
        )
    missing = [
        tag for tag in (POSITION, ORIENTATION, PIXEL_SPACING) if not header.HasMetaDataKey(tag)
    ]
    if missing:
        raise FileError.at(
            path, None, "a slice that states where it lies", f"no {', '.join(missing)}"
        )
    channels = header.GetNumberOfComponents()
    return Slice(
        path,
        header.GetSize(),
        affine_of(header),
        voxel_type(header),
        channels,
        declared_bytes(header),
    )


def _stacked(path: Path, slices: Sequence[Slice]) -> list[Slice]:
    """The slices in order along their normal; refused unless they are alike and evenly spaced."""
    first = slices[0]
    for one in slices:
        alike = np.allclose(one.affine[:3, :2], first.affine[:3, :2], atol=1e-4)
        if not alike or (one.shape, one.channels) != (first.shape, first.channels):
            raise FileError.at(
                path,
                None,
                f"slices as in {first.path.name}",
                f"another size or angle: {one.path.name}",
            )
    normal = np.cross(first.affine[:3, 0], first.affine[:3, 1])
    ordered = sorted(slices, key=lambda one: float(one.position @ normal))
    _check_steps(path, ordered)
    return ordered


def _check_steps(path: Path, slices: Sequence[Slice]) -> None:
    if len(slices) < 2:
        return
    steps = np.diff([one.position for one in slices], axis=0)
    lengths = np.linalg.norm(steps, axis=1)
    typical = np.median(steps, axis=0)
    length = float(np.linalg.norm(typical))
    worst = int(np.argmax(np.linalg.norm(steps - typical, axis=1)))
    between = f"between {slices[worst].path.name} and {slices[worst + 1].path.name}"
    if lengths.min() < 1e-3:
        twin = int(lengths.argmin())
        names = f"{slices[twin].path.name} and {slices[twin + 1].path.name}"
        raise FileError.at(
            path,
            None,
            "one slice at each place (one volume of a time series)",
            f"{names} at the same",
        )
    if np.linalg.norm(steps[worst] - typical) > IRREGULAR * length:
        wanted = f"slices {length:.4g} mm apart (is one missing?)"
        raise FileError.at(path, None, wanted, f"{lengths[worst]:.4g} mm {between}")


def _reader(slices: Sequence[Slice]) -> sitk.ImageSeriesReader:
    """A reader of all slices, in a type that holds each of them: they may have slopes of their own."""
    reader = sitk.ImageSeriesReader()
    reader.SetImageIO("GDCMImageIO")
    reader.SetFileNames([str(one.path) for one in slices])
    common = np.result_type(*(one.dtype for one in slices))
    kept = np.dtype(np.float32) if common.kind == "f" else common
    alike = sitk.GetImageFromArray(
        np.zeros((1, 1, 1, slices[0].channels), kept), isVector=slices[0].channels > 1
    )
    reader.SetOutputPixelType(alike.GetPixelID())
    return reader
