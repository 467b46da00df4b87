"""The images that registrations are compared on, with their landmarks and labels, and the scores.

Kunita's side and the peers' side both read this file, so that they are given the same data and
judged by the same code. It needs NumPy, SimpleITK and nibabel only. Arrays are indexed as x, y(, z)
and points are in the world of their image: mm (LPS) for the lung, full-size pixels for histology,
voxels for OASIS.
"""

import dataclasses
import os
import resource
import time
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import SimpleITK as sitk

CLAMP_HU = (-1100.0, 400.0)
MASK_MARGIN_VOXELS = 2
MISPLACED_LANDMARK = 20
"""Counted from 0: the landmark of the lung that every method leaves 14 to 15 mm off."""

TUNING_PAIRS = tuple((i, i + 1) for i in range(0, 20, 2))
JUDGING_PAIRS = tuple((i, i + 1) for i in range(20, 40, 2))
"""Subjects of OASIS in sorted order, the fixed one first; each pair is also run the other way."""

SHRINK = 4
SMOOTHING_VARIANCE = 4.0
"""Before histology is shrunk, in full-size pixels squared."""


@dataclasses.dataclass(frozen=True, eq=False)
class Volume:
    """An image, 2-D or 3-D, whose axes are those of the world."""

    values: np.ndarray
    spacing: np.ndarray
    origin: np.ndarray

    def index(self, points: np.ndarray) -> np.ndarray:
        """World positions as voxel indices."""
        return (points - self.origin) / self.spacing

    def world(self, indices: np.ndarray) -> np.ndarray:
        """Voxel indices as world positions."""
        return self.origin + indices * self.spacing

    def voxels(self) -> np.ndarray:
        """World positions of all voxels, (*shape, d)."""
        indices = np.moveaxis(np.indices(self.values.shape), 0, -1)
        return self.world(indices)


@dataclasses.dataclass(frozen=True, eq=False)
class Affine:
    """x ↦ matrix · x + offset, from fixed to moving space."""

    matrix: np.ndarray
    offset: np.ndarray

    def __call__(self, points: np.ndarray) -> np.ndarray:
        return points @ self.matrix.T + self.offset


@dataclasses.dataclass(frozen=True, eq=False)
class Lung:
    """One person's chest CT: fixed = baseline, moving = follow-up, both clamped.

    Args:
        mask: where the fixed image shows lung, dilated.
        fixed_points, moving_points: (51, 3) landmark pairs.
        affine: the start of every method, fixed → moving.
        affine_file: the same as an ITK file.
    """

    fixed: Volume
    moving: Volume
    mask: np.ndarray
    fixed_points: np.ndarray
    moving_points: np.ndarray
    affine: Affine
    affine_file: Path


@dataclasses.dataclass(frozen=True, eq=False)
class Subject:
    """A brain slice of OASIS and its labels, 0 for none, both (160, 192)."""

    name: str
    values: np.ndarray
    labels: np.ndarray

    def volume(self) -> Volume:
        """The slice as an image of unit spacing."""
        return Volume(self.values, spacing=np.ones(2), origin=np.zeros(2))


@dataclasses.dataclass(frozen=True, eq=False)
class Section:
    """A stain at quarter size, and its (78, 2) landmarks in full-size pixels."""

    stain: str
    image: Volume
    points: np.ndarray


def data_folder(given: str | Path | None) -> Path:
    """The folder that was given, else what KUNITA_DATA names."""
    named = given or os.environ.get("KUNITA_DATA")
    if not named:
        raise SystemExit("where are the images? Give --data, or set KUNITA_DATA")
    folder = Path(named)
    if not folder.is_dir():
        raise SystemExit(f"there is no folder {folder}")
    return folder


def lung(data: Path) -> Lung:
    """The pair of chest CTs."""
    folder = data / "lung_ct"
    affine_file = folder / "affine_baseline_to_followup.mat"
    return Lung(
        fixed=clamped(folder / "3DCT_lung_baseline.mha"),
        moving=clamped(folder / "3DCT_lung_followup.mha"),
        mask=dilated(folder / "3DCT_lung_baseline_mask.mha"),
        fixed_points=elastix_points(folder / "CT_3D_lung_fixed_point_set_corrected.txt"),
        moving_points=elastix_points(folder / "CT_3D_lung_moving_point_set_corrected.txt"),
        affine=affine_of(sitk.ReadTransform(str(affine_file))),
        affine_file=affine_file,
    )


def oasis_subjects(data: Path) -> list[Subject]:
    """All brain slices in the order of their names."""
    folders = sorted(path for path in (data / "oasis_2d").iterdir() if path.is_dir())
    return [subject(folder) for folder in folders]


def histology(data: Path) -> list[Section]:
    """The five stains in the order of their file names."""
    paths = sorted((data / "histology_lesion1").glob("*.jpg"))
    return [section(path) for path in paths]


def clamped(path: Path) -> Volume:
    """A CT with its intensities cut to the range of interest."""
    image = sitk.ReadImage(str(path), sitk.sitkFloat32)
    low, high = CLAMP_HU
    return volume_of(sitk.Clamp(image, lowerBound=low, upperBound=high))


def dilated(path: Path) -> np.ndarray:
    """A mask with a margin, grown one voxel at a time along the axes."""
    mask = sitk.ReadImage(str(path), sitk.sitkUInt8)
    for _ in range(MASK_MARGIN_VOXELS):
        mask = sitk.BinaryDilate(mask, (1, 1, 1), sitk.sitkCross)
    return volume_of(mask).values > 0


def elastix_points(path: Path) -> np.ndarray:
    """A point file of elastix: two lines of head, then a point a line."""
    return np.loadtxt(path, skiprows=2)


def subject(folder: Path) -> Subject:
    """The slice in one person's folder."""
    values = nibabel.load(folder / "slice_norm.nii.gz").get_fdata()
    labels = nibabel.load(folder / "slice_seg24.nii.gz").get_fdata()
    return Subject(
        name=folder.name,
        values=values[..., 0].astype(np.float32),
        labels=labels[..., 0].astype(int),
    )


def section(path: Path) -> Section:
    """One stain: dark tissue made bright, smoothed, and shrunk by averaging.

    The spacing that SimpleITK reads from the JPEG (dots per inch) is dropped, so that the world is
    full-size pixels, in which the landmarks are.
    """
    colours = sitk.GetArrayFromImage(sitk.ReadImage(str(path))).astype(np.float32)
    grey = sitk.GetImageFromArray(255 - colours.mean(axis=-1))
    smooth = sitk.DiscreteGaussian(grey, SMOOTHING_VARIANCE)
    small = sitk.BinShrink(smooth, (SHRINK, SHRINK))
    table = np.loadtxt(path.with_suffix(".csv"), delimiter=",", skiprows=1)
    return Section(stain_of(path), volume_of(small), points=table[:, 1:])


def stain_of(path: Path) -> str:
    """Ki67 of `29-041-Izd2-w35-Ki67-7-les1.jpg`."""
    return path.stem.split("-")[4]


def volume_of(image: sitk.Image) -> Volume:
    """An image of SimpleITK, whose arrays are indexed backwards."""
    return Volume(
        values=sitk.GetArrayFromImage(image).T,
        spacing=np.array(image.GetSpacing()),
        origin=np.array(image.GetOrigin()),
    )


def sitk_image(volume: Volume) -> sitk.Image:
    """The same as an image of SimpleITK."""
    image = sitk.GetImageFromArray(np.ascontiguousarray(volume.values.T))
    image.SetSpacing(volume.spacing.tolist())
    image.SetOrigin(volume.origin.tolist())
    return image


def affine_of(transform: sitk.Transform) -> Affine:
    """A linear transform of SimpleITK: where it takes the origin and the unit vectors."""
    d = transform.GetDimension()
    offset = np.array(transform.TransformPoint([0.0] * d))
    columns = [np.array(transform.TransformPoint(unit.tolist())) - offset for unit in np.eye(d)]
    return Affine(np.stack(columns, axis=1), offset)


def sitk_affine(affine: Affine) -> sitk.AffineTransform:
    """The same as a transform of SimpleITK."""
    d = len(affine.offset)
    return sitk.AffineTransform(affine.matrix.ravel().tolist(), affine.offset.tolist(), [0.0] * d)


def labels_at(labels: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Nearest label at positions in voxels, (…, d); the edge's beyond the image."""
    last = np.array(labels.shape) - 1
    nearest = np.clip(np.rint(positions).astype(int), 0, last)
    return labels[tuple(np.moveaxis(nearest, -1, 0))]


def mean_dice(fixed: np.ndarray, moving: np.ndarray, warped: np.ndarray) -> float:
    """Dice of the fixed and the warped labels, mean over those in both the fixed and the moving
    image.
    """
    shared = np.intersect1d(fixed, moving)
    scores = [dice(fixed == label, warped == label) for label in shared if label != 0]
    return float(np.mean(scores))


def dice(one: np.ndarray, other: np.ndarray) -> float:
    """Overlap of two regions."""
    together = np.count_nonzero(one & other)
    return 2 * together / (np.count_nonzero(one) + np.count_nonzero(other))


def determinants(positions: np.ndarray, spacing: np.ndarray) -> np.ndarray:
    """Jacobian determinant of a map that is known at all voxels, by central differences.

    One-sided at the edge of the image.
    """
    d = len(spacing)
    columns = np.gradient(positions, *spacing, axis=tuple(range(d)))
    return np.linalg.det(np.stack(columns, axis=-1))


def distances(points: np.ndarray, true: np.ndarray) -> np.ndarray:
    """Between corresponding points."""
    return np.linalg.norm(points - true, axis=1)


def summary(errors: np.ndarray) -> dict[str, float]:
    """Of errors at landmarks."""
    return {
        "mean": float(errors.mean()),
        "median": float(np.median(errors)),
        "p95": float(np.percentile(errors, 95)),
        "max": float(errors.max()),
    }


def folding(determinants: np.ndarray, affine: Affine | None = None) -> dict[str, Any]:
    """Folds and the smallest determinant; also relative to the affine start, where there is one."""
    smallest = float(determinants.min())
    found = {"folds": int(np.count_nonzero(determinants <= 0)), "min_det": smallest}
    if affine is not None:
        found["min_det_after_affine"] = smallest / float(np.linalg.det(affine.matrix))
    return found


class Timed:
    """CPU and wall-clock seconds of a block, and the peak memory of the process before and after
    it.
    """

    def __enter__(self) -> "Timed":
        self.start_mb = peak_mb()
        self.began_wall = time.perf_counter()
        self.began_cpu = time.process_time()
        return self

    def __exit__(self, *error: object) -> None:
        cpu_s = time.process_time() - self.began_cpu
        wall_s = time.perf_counter() - self.began_wall
        self.cost = {
            "cpu_s": cpu_s,
            "wall_s": wall_s,
            "start_mb": self.start_mb,
            "peak_mb": peak_mb(),
        }


def peak_mb() -> float:
    """Largest resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
