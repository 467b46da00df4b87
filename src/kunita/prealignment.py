"""How two images lie to each other, from their intensities: an alignment to start a fit from.

SimpleITK maximises the mutual information of the intensities [Mattes et al. 2003] over
translations, rotations, similarities or affine maps. The search starts from many
rotations on coarse copies of the images, and refines the best on finer ones. It runs
on one thread with a fixed seed: the same images give the same matrix, bit for bit.

Points are in Kunita's world (RAS+ mm in 3-D; x right, y down in 2-D): the search does
not ask what the axes mean. As in any program that warps images, it is for the map of
points from fixed to moving space; its inverse is what is returned.
"""

import contextlib
import dataclasses
import functools
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import SimpleITK as sitk
from scipy import linalg, ndimage

from kunita.data.image import Grid, Image
from kunita.errors import FileError, ImageError, KunitaWarning
from kunita.inference.trend import ROTATING, check_kind

LEAST_VOXELS = 4
"""Along each axis; with fewer an image has no inside, and no gradient to follow."""

LEAST_SHRUNK = 8
"""No axis is shrunk to fewer voxels than this."""

LARGER = 8
"""How many times the voxels of a level the larger of two images may keep."""

MOST_SAMPLED = 200_000
"""Voxels at which an overlap is measured, at most."""

LITTLE_OVERLAP = 0.1
"""An alignment is doubtful if less than this share of each image lies inside the other."""

FAR_APART = 0.5
"""An alignment and the inverse of its inverse that differ by this much of the object's radius
disagree."""

LPS = np.diag([-1.0, -1.0, 1.0, 1.0])
"""From the world of ITK's files to Kunita's in 3-D, and back."""

TRANSFORMS: dict[tuple[str, int], Callable[[], Any]] = {
    ("translation", 2): lambda: sitk.TranslationTransform(2),
    ("translation", 3): lambda: sitk.TranslationTransform(3),
    ("rigid", 2): sitk.Euler2DTransform,
    ("rigid", 3): sitk.Euler3DTransform,
    ("similarity", 2): sitk.Similarity2DTransform,
    ("similarity", 3): sitk.Similarity3DTransform,
    ("affine", 2): lambda: sitk.AffineTransform(2),
    ("affine", 3): lambda: sitk.AffineTransform(3),
}
"""ITK's transforms by the kind of alignment and the dimension."""


# ----------------------------------------------------------------------------------------- options


@dataclasses.dataclass(frozen=True)
class Level:
    """One resolution of the search.

    Args:
        voxels: about so many are left of each image.
        smoothing: standard deviation of the Gaussian that smooths these, voxels.
        samples: at most so many take part in the mutual information.
        first_step: how far the search moves the voxels at first, voxels.
        last_step: the step at which it ends, voxels.
        iterations: at most.
    """

    voxels: int
    smoothing: float
    samples: int
    first_step: float
    last_step: float
    iterations: int


@dataclasses.dataclass(frozen=True)
class SearchOptions:
    """How an alignment is searched for.

    Args:
        coarse: the level at which all starts are compared.
        fine: the levels at which the best is refined, one after the other.
        angles: to start from, degrees; in 3-D about each axis.
        refined: how many of the starts are compared again at the first fine level.
        bins: of the histograms of the intensities.
        clipped: share of the voxels that is clipped at either end of the intensities.
        relaxation: of the step wherever the gradient turns round.
    """

    coarse: Level
    fine: tuple[Level, ...]
    angles: tuple[float, ...]
    refined: int = 3
    bins: int = 32
    clipped: float = 0.005
    relaxation: float = 0.7


# Tried on a chest CT and on twenty pairs of stained sections, with three seeds each. Neither
# steps nor samples nor bins matter much; unsmoothed fine levels cost 2 px of 13.
OPTIONS = {
    2: SearchOptions(
        coarse=Level(10_000, 1.0, 5_000, 2.0, 0.0125, 60),
        fine=(
            Level(10_000, 0.7, 10_000, 0.5, 0.02, 100),
            Level(40_000, 0.7, 30_000, 0.5, 0.02, 100),
        ),
        angles=(15.0, -15.0, 30.0, -30.0, 60.0, -60.0, 180.0),
    ),
    3: SearchOptions(
        coarse=Level(8_000, 1.0, 4_000, 2.0, 0.0125, 60),
        fine=(
            Level(40_000, 0.7, 16_000, 0.5, 0.02, 100),
            Level(250_000, 0.7, 60_000, 0.5, 0.02, 100),
        ),
        angles=(20.0, -20.0),
    ),
}
"""By dimension."""


# ---------------------------------------------------------------------------------------- the door


@dataclasses.dataclass(frozen=True, eq=False)
class Prealignment:
    """An alignment of two images.

    Args:
        matrix: (d + 1, d + 1) from moving world to fixed world.
        mutual_information: of the aligned intensities where the images overlap, nats;
            NaN if nothing was searched.
        num_starts: how many alignments the search started from.
        seconds: what it took.
    """

    matrix: np.ndarray
    mutual_information: float
    num_starts: int
    seconds: float


def prealign(
    moving: Image,
    fixed: Image,
    kind: str,
    *,
    moving_mask: Image | None = None,
    fixed_mask: Image | None = None,
    seed: int = 0,
    options: SearchOptions | None = None,
) -> Prealignment:
    """Align two images by the mutual information of their intensities.

    The masks take no part in the search, which they make worse (on a chest CT with masks
    of the lungs by 0.5 mm). They only say where the images should overlap.

    Args:
        moving, fixed: voxels that are not finite count as the median; channels are
            averaged.
        kind: of alignment: "none", "translation", "rigid", "similarity" or "affine".
        moving_mask, fixed_mask: not zero where there is something to align.
        seed: of the choice of voxels that take part in the mutual information.
        options: of the search. Default: those of the dimension.
    """
    began = time.perf_counter()
    check_kind(kind)
    d = _common_dimension(moving, fixed)
    if kind == "none":
        return Prealignment(np.eye(d + 1), np.nan, 0, time.perf_counter() - began)
    search = Search.between(moving, fixed, seed, options or OPTIONS[d])
    starts = search.starts(kind)
    with _one_thread():
        best = search.run(starts, kind)
    matrix = search.in_world(best.matrix)
    _warn_of_little_overlap(moving, fixed, matrix, moving_mask, fixed_mask)
    return Prealignment(
        matrix=matrix,
        mutual_information=best.mutual_information,
        num_starts=len(starts),
        seconds=time.perf_counter() - began,
    )


def _common_dimension(moving: Image, fixed: Image) -> int:
    """Of two images; different ones are refused."""
    d = fixed.grid.dimension
    if moving.grid.dimension != d:
        raise ImageError(
            "moving and fixed image: expected the same dimension, found "
            f"{moving.grid.dimension}-D and {d}-D"
        )
    return d


def _warn_of_little_overlap(
    moving: Image,
    fixed: Image,
    matrix: np.ndarray,
    moving_mask: Image | None,
    fixed_mask: Image | None,
) -> None:
    """Warn unless a good part of at least one image lies inside the other.

    Of at least one: an image of the whole head may be aligned with one of a part.
    """
    inverse = np.linalg.inv(matrix)
    of_moving = overlap(moving, fixed, matrix, moving_mask, fixed_mask)
    of_fixed = overlap(fixed, moving, inverse, fixed_mask, moving_mask)
    if max(of_moving, of_fixed) < LITTLE_OVERLAP:
        message = (
            f"the images hardly overlap after the pre-alignment ({100 * of_moving:.0f} % of the "
            "moving image lies inside the fixed one): check that both show the same object, or "
            "give an alignment to start from"
        )
        warnings.warn(message, KunitaWarning, stacklevel=3)


# -------------------------------------------------------------------------------------- the search


@dataclasses.dataclass(frozen=True, eq=False)
class Candidate:
    """A map of points from fixed to moving space, in the coordinates of the search.

    Args:
        matrix: (d + 1, d + 1).
        mutual_information: of the intensities where the images overlap, nats.
        share: of the fixed voxels that lie inside the moving image.
    """

    matrix: np.ndarray
    mutual_information: float
    share: float

    @property
    def evidence(self) -> float:
        """Mutual information per voxel of the fixed image: a small overlap explains little."""
        return self.mutual_information * self.share

    def inverse(self) -> "Candidate":
        """From moving to fixed space, with the same evidence."""
        return dataclasses.replace(self, matrix=np.linalg.inv(self.matrix))


@dataclasses.dataclass(frozen=True, eq=False)
class Search:
    """Two images, made ready, in coordinates that suit a search.

    Coordinates are relative to the centre of mass of each image, in units of the radius
    of gyration of the fixed one. So the identity matches the centres, and one unit of
    any parameter, a shift, an angle or an entry of a matrix, moves the object about
    equally far: ITK normalises its steps over all of them. (In mm, with ITK's scales
    from physical shifts, rotations ended 4 mm off, and affine searches were thrown
    away wherever the gradient of the shift vanished.)

    Args:
        moving, fixed: at the finest level, in the coordinates of the search.
        from_moving, from_fixed: (d + 1, d + 1) from world to these coordinates.
        seed: of the choice of voxels.
        options: of the search.
    """

    moving: Image
    fixed: Image
    from_moving: np.ndarray
    from_fixed: np.ndarray
    seed: int
    options: SearchOptions

    @classmethod
    def between(cls, moving: Image, fixed: Image, seed: int, options: SearchOptions) -> "Search":
        """Make two images ready; refuse those that cannot be aligned."""
        length = voxel_length(moving.grid, fixed.grid, options.fine[-1].voxels)
        ready_moving = _ready(moving, "moving", length, options)
        ready_fixed = _ready(fixed, "fixed", length, options)
        moving_centre, _ = centre_and_radius(ready_moving)
        fixed_centre, radius = centre_and_radius(ready_fixed)
        unit = max(radius, length)
        from_moving = _about(moving_centre, unit)
        from_fixed = _about(fixed_centre, unit)
        return cls(
            moving=Image(ready_moving.data, from_moving @ ready_moving.affine),
            fixed=Image(ready_fixed.data, from_fixed @ ready_fixed.affine),
            from_moving=from_moving,
            from_fixed=from_fixed,
            seed=seed,
            options=options,
        )

    def in_world(self, matrix: np.ndarray) -> np.ndarray:
        """From moving to fixed world, for a map from fixed to moving coordinates."""
        to_moving = np.linalg.inv(self.from_moving) @ matrix @ self.from_fixed
        return np.linalg.inv(to_moving)

    def starts(self, kind: str) -> list[np.ndarray]:
        """Where the search starts from.

        Centre of mass on centre of mass, turned by each angle; middle on middle; and as
        the images lie in the world, which a scanner or a navigation system may share.
        """
        d = self.fixed.grid.dimension
        middles = np.eye(d + 1)
        middles[:d, d] = _middle(self.moving.grid) - _middle(self.fixed.grid)
        as_they_lie = self.from_moving @ np.linalg.inv(self.from_fixed)
        found = [np.eye(d + 1), middles, as_they_lie]
        if kind in ROTATING:
            found += _rotations(self.options.angles, d)
        return found

    def run(self, starts: Sequence[np.ndarray], kind: str) -> Candidate:
        """The best alignment of a kind: rigid ones first, from all starts."""
        first_kind = "rigid" if kind in ROTATING else "translation"
        first, *finer = self.options.fine
        found = self.refined(starts, first_kind, self.options.coarse)
        kept = [candidate.matrix for candidate in found[: self.options.refined]]
        best = self.refined(kept, first_kind, first)[0]
        if kind == first_kind:
            return self.finished(best, kind, finer)
        there = self.finished(best, kind, self.options.fine)
        back = self.swapped().finished(best.inverse(), kind, self.options.fine)
        return halfway(there, back.inverse())

    def swapped(self) -> "Search":
        """The search for the inverse."""
        return dataclasses.replace(
            self,
            moving=self.fixed,
            fixed=self.moving,
            from_moving=self.from_fixed,
            from_fixed=self.from_moving,
        )

    def finished(self, start: Candidate, kind: str, levels: Sequence[Level]) -> Candidate:
        """What becomes of a candidate at one level after the other."""
        best = start
        for level in levels:
            best = self.refined([best.matrix], kind, level)[0]
        return best

    def refined(self, starts: Sequence[np.ndarray], kind: str, level: Level) -> list[Candidate]:
        """What becomes of each start at a level, best first; starts that fail are left out."""
        length = voxel_length(self.moving.grid, self.fixed.grid, level.voxels)
        moving = _at_level(self.moving, length, level)
        fixed = _at_level(self.fixed, length, level)
        method = _method(fixed.grid.size, length, level, self.seed, self.options)
        found = []
        for start in starts:
            candidate = _climb(method, moving, fixed, _as_transform(start, kind))
            if candidate is not None:
                found.append(candidate)
        if not found:
            raise ImageError(
                "moving and fixed image: no alignment by intensities was found, because the "
                "images do not overlap enough: give an alignment to start from, or landmarks"
            )
        return sorted(found, key=lambda candidate: candidate.evidence, reverse=True)


def halfway(there: Candidate, back: Candidate) -> Candidate:
    """Between an alignment A and the inverse B of one that was found the other way round.

    Mutual information grows as the warped image fills the other's background: each
    search magnifies the image that it warps, in generated images in 3-D by 3 to 6 %.
    Halfway, at A (A⁻¹B)^½, the two errors cancel (but for 1 to 2 %), and images that
    change places have inverse alignments. If the two are far apart, the better is taken.
    """
    between = np.linalg.inv(there.matrix) @ back.matrix
    distance = np.linalg.norm(between - np.eye(len(between)))
    if distance > FAR_APART:
        return max(there, back, key=lambda candidate: candidate.evidence)
    half = linalg.sqrtm(between).real
    information = (there.mutual_information + back.mutual_information) / 2
    return Candidate(there.matrix @ half, information, there.share)


def _climb(
    method: sitk.ImageRegistrationMethod,
    moving: Image,
    fixed: Image,
    transform: sitk.Transform,
) -> Candidate | None:
    """Maximise the mutual information from a start; None where nothing overlaps."""
    method.SetInitialTransform(transform, inPlace=True)
    try:
        method.Execute(_as_itk(fixed), _as_itk(moving))
    except RuntimeError:  # ITK: no sample lies inside the moving image
        return None
    matrix = matrix_of(transform)
    share = overlap(fixed, moving, matrix)
    return Candidate(matrix, -method.GetMetricValue(), share)


def _method(
    num_voxels: int, length: float, level: Level, seed: int, options: SearchOptions
) -> sitk.ImageRegistrationMethod:
    """ITK's search at a level.

    Args:
        num_voxels: of the fixed image.
        length: of a voxel, in the coordinates of the search.
        level: of the search.
        seed: of the choice of voxels.
        options: of the search.
    """
    share = min(1.0, level.samples / num_voxels)
    method = sitk.ImageRegistrationMethod()
    method.SetNumberOfThreads(1)
    method.SetMetricAsMattesMutualInformation(options.bins)
    method.SetMetricSamplingStrategy(method.RANDOM)
    # To SimpleITK the seed 0 is the wall clock.
    method.SetMetricSamplingPercentage(share, 1 + seed % (2**31 - 1))
    method.MetricUseFixedImageGradientFilterOff()
    method.MetricUseMovingImageGradientFilterOff()
    method.SetInterpolator(sitk.sitkLinear)
    method.SetOptimizerAsRegularStepGradientDescent(
        learningRate=level.first_step * length,
        minStep=level.last_step * length,
        numberOfIterations=level.iterations,
        relaxationFactor=options.relaxation,
        gradientMagnitudeTolerance=1e-9,
    )
    return method


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Let ITK work on one thread, without a word.

    The method's own number of threads is not enough: parts of the metric go by the
    global one, and their sums then depend on which thread is first.
    """
    threads = sitk.ProcessObject.GetGlobalDefaultNumberOfThreads()
    shown = sitk.ProcessObject.GetGlobalWarningDisplay()
    sitk.ProcessObject.SetGlobalDefaultNumberOfThreads(1)
    sitk.ProcessObject.SetGlobalWarningDisplay(False)
    try:
        yield
    finally:
        sitk.ProcessObject.SetGlobalDefaultNumberOfThreads(threads)
        sitk.ProcessObject.SetGlobalWarningDisplay(shown)


# ---------------------------------------------------------------------------------- where to start


def _about(centre: np.ndarray, unit: float) -> np.ndarray:
    """(d + 1, d + 1) x ↦ (x − centre)/unit."""
    d = len(centre)
    matrix = np.eye(d + 1)
    matrix[:d, :d] /= unit
    matrix[:d, d] = -centre / unit
    return matrix


def _middle(grid: Grid) -> np.ndarray:
    """Of the box of voxels."""
    last = np.array(grid.shape) - 1
    return grid.world(last / 2)


def centre_and_radius(image: Image) -> tuple[np.ndarray, float]:
    """Centre of mass in the world, and radius of gyration along a typical axis, mm.

    The mass is what stands out from the median of the border: so a bright background,
    as in microscopy, or the air around a body in CT, at −1000, weighs nothing.
    """
    mass = _mass(image.data)
    weights = mass.ravel() / mass.sum()
    index = np.indices(mass.shape).reshape(mass.ndim, -1).T
    points = image.grid.world(index)
    centre = weights @ points
    variances = weights @ (points - centre) ** 2
    return centre, float(np.sqrt(np.mean(variances)))


def _mass(data: np.ndarray) -> np.ndarray:
    """How far each value is from the median of the border; one everywhere, if none is."""
    on_border = np.ones(data.shape, dtype=bool)
    on_border[(slice(1, -1),) * data.ndim] = False
    mass = np.abs(data - np.median(data[on_border]))
    return mass if mass.any() else np.ones(data.shape)


def _rotations(angles: Sequence[float], d: int) -> list[np.ndarray]:
    """(d + 1, d + 1) rotations about the origin; in 3-D about each axis."""
    planes = [(0, 1)] if d == 2 else [(0, 1), (1, 2), (2, 0)]
    found = []
    for a, b in planes:
        for angle in np.deg2rad(angles):
            matrix = np.eye(d + 1)
            matrix[a, a] = np.cos(angle)
            matrix[b, b] = np.cos(angle)
            matrix[a, b] = -np.sin(angle)
            matrix[b, a] = np.sin(angle)
            found.append(matrix)
    return found


# ---------------------------------------------------------------------------------- images, shrunk


def voxel_length(moving: Grid, fixed: Grid, voxels: int) -> float:
    """The length of voxels of which the smaller image has so many; no shorter than its own."""
    lengths = []
    for grid in (moving, fixed):
        own = grid.voxel_volume
        wanted = own * grid.size / voxels
        lengths.append(max(own, wanted) ** (1 / grid.dimension))
    return min(lengths)


def _ready(image: Image, side: str, length: float, options: SearchOptions) -> Image:
    """An image at the finest level: one channel, finite, shrunk, clipped, between 0 and 1."""
    _check_voxels(image.grid, side)
    values = image.data.mean(axis=-1) if image.channels else image.data
    finite = _finite(values, side)
    shrunk = _shrunk(Image(finite, image.affine), length, options.fine[-1].voxels)
    low, high = _range(shrunk.data, options.clipped)
    if not high > low:
        raise ImageError(
            f"{side} image: all its voxels have the same value, so there is nothing to align"
        )
    relative = (shrunk.data - low) / (high - low)
    return Image(np.clip(relative, 0, 1), shrunk.affine)


def _check_voxels(grid: Grid, side: str) -> None:
    """Refuse an image that is too thin."""
    if min(grid.shape) < LEAST_VOXELS:
        size = "×".join(str(n) for n in grid.shape)
        raise ImageError(
            f"{side} image: expected at least {LEAST_VOXELS} voxels along each axis to align by, "
            f"found {size}; give a single slice as a 2-D image"
        )


def _finite(values: np.ndarray, side: str) -> np.ndarray:
    """Values with the median in place of those that are not finite."""
    is_finite = np.isfinite(values)
    if np.all(is_finite):
        return values
    if not np.any(is_finite):
        raise ImageError(f"{side} image: expected finite voxels, found none")
    median = np.median(values[is_finite])
    return np.where(is_finite, values, median)


def _range(values: np.ndarray, clipped: float) -> tuple[float, float]:
    """Between which values all but a share at either end lie; if nothing does, the whole range."""
    low, high = np.quantile(values, [clipped, 1 - clipped])
    if high > low:
        return float(low), float(high)
    return float(values.min()), float(values.max())


def _at_level(image: Image, length: float, level: Level) -> Image:
    """An image as it is compared at a level."""
    shrunk = _shrunk(image, length, level.voxels)
    smooth = ndimage.gaussian_filter(shrunk.data, level.smoothing, mode="nearest")
    return Image(smooth, shrunk.affine)


def _shrunk(image: Image, length: float, voxels: int) -> Image:
    """Means over blocks of voxels whose edges have about the same length.

    Args:
        image: of one channel.
        length: of the edges. They are longer if there would be very many blocks.
        voxels: how many blocks the smaller of two images has.
    """
    grid = image.grid
    volume = grid.voxel_volume * grid.size
    least = (volume / (LARGER * voxels)) ** (1 / grid.dimension)
    wanted = np.rint(max(length, least) / grid.spacing)
    most = np.array(grid.shape) // LEAST_SHRUNK
    factors = np.maximum(np.minimum(wanted, most), 1).astype(int)
    data = image.data
    for axis, factor in enumerate(factors.tolist()):
        data = _block_means(data, factor, axis)
    affine = image.affine @ np.diag(np.append(factors, 1.0))
    affine[:-1, -1] = grid.world((factors - 1) / 2)
    return Image(data, affine)


def _block_means(data: np.ndarray, factor: int, axis: int) -> np.ndarray:
    """Means of so many neighbours along an axis; what is left over at its end is dropped."""
    if factor == 1:
        return data
    lines = np.moveaxis(data, axis, 0)
    length = len(lines) // factor * factor
    total = np.zeros((length // factor, *lines.shape[1:]))
    for first in range(factor):
        total += lines[first:length:factor]
    return np.moveaxis(total / factor, 0, axis)


def _as_itk(image: Image) -> sitk.Image:
    """An image of ITK's; its world is ours."""
    affine = image.affine
    spacing = image.grid.spacing
    data = np.ascontiguousarray(image.data.T, dtype=np.float32)
    converted = sitk.GetImageFromArray(data)
    converted.SetOrigin(affine[:-1, -1].tolist())
    converted.SetSpacing(spacing.tolist())
    direction = affine[:-1, :-1] / spacing
    converted.SetDirection(direction.ravel().tolist())
    return converted


# ----------------------------------------------------------------------------------------- overlap


def overlap(
    moving: Image,
    fixed: Image,
    matrix: np.ndarray,
    moving_mask: Image | None = None,
    fixed_mask: Image | None = None,
) -> float:
    """The share of the moving voxels that lie inside the fixed image after an alignment.

    Args:
        moving, fixed: the images; only their grids count.
        matrix: (d + 1, d + 1) from moving world to fixed world.
        moving_mask: only its voxels that are not zero count. It need not be on the
            moving image's grid. Default: all voxels of the moving image.
        fixed_mask: voxels of the fixed image count where it is not zero. Default: all.
    """
    d = moving.grid.dimension
    points = _sampled_points(moving, moving_mask)
    arrived = points @ matrix[:d, :d].T + matrix[:d, d]
    is_inside = _lies_inside(fixed.grid, arrived)
    if fixed_mask is not None:
        is_inside &= _lies_in_mask(fixed_mask, arrived)
    return float(np.mean(is_inside))


def _sampled_points(image: Image, mask: Image | None) -> np.ndarray:
    """World coordinates of an image's voxels inside its mask, if any; a part of very many."""
    if mask is None:
        chosen = _sampled(np.arange(image.grid.size))
        return _voxel_centres(image.grid, chosen)
    is_masked = _as_mask(mask, image.grid.dimension)
    chosen = _sampled(np.flatnonzero(is_masked))
    points = _voxel_centres(mask.grid, chosen)
    inside = points[_lies_inside(image.grid, points)]
    if not len(inside):
        raise ImageError("mask: expected voxels that are not zero inside its image, found none")
    return inside


def _sampled(numbers: np.ndarray) -> np.ndarray:
    """All of them, or if they are very many, a random part."""
    if len(numbers) <= MOST_SAMPLED:
        return numbers
    key = np.random.default_rng(0)
    return numbers[key.integers(len(numbers), size=MOST_SAMPLED)]


def _voxel_centres(grid: Grid, numbers: np.ndarray) -> np.ndarray:
    """World coordinates of voxels by their numbers, the last axis varying fastest."""
    index = np.unravel_index(numbers, grid.shape)
    return grid.world(np.stack(index, axis=-1))


def _lies_inside(grid: Grid, points: np.ndarray) -> np.ndarray:
    """Whether each point lies in a voxel of the grid."""
    nearest = np.rint(grid.index(points))
    last = np.array(grid.shape) - 1
    return np.all((nearest >= 0) & (nearest <= last), axis=-1)


def _lies_in_mask(mask: Image, points: np.ndarray) -> np.ndarray:
    """Whether each point lies in a voxel of the mask that is not zero."""
    is_masked = _as_mask(mask, points.shape[1])
    found = _lies_inside(mask.grid, points)
    nearest = np.rint(mask.grid.index(points[found])).astype(int)
    found[found] = is_masked[tuple(nearest.T)]
    return found


def _as_mask(mask: Image, d: int) -> np.ndarray:
    """Where a mask is neither zero nor NaN."""
    if mask.channels or mask.grid.dimension != d:
        raise ImageError(f"mask: expected one channel in {d}-D, found shape {mask.data.shape}")
    return np.nan_to_num(mask.data) != 0


# ----------------------------------------------------------------------------------- ITK transforms


def linear_part(path: str | os.PathLike) -> np.ndarray:
    """(d + 1, d + 1) from moving to fixed world: the linear part of an ITK transform file.

    The file is one that warps moving images onto fixed, as `forward_xfm` does: a map of
    points from fixed to moving space, in LPS in 3-D. The linear transforms of a
    composite are multiplied; its displacement fields are left out.

    Args:
        path: .mat, .txt, .tfm, .h5, or any other that SimpleITK reads.
    """
    transform = _read_transform(path)
    matrices = []
    for part in _parts(transform):
        if part.IsLinear():
            matrices.append(matrix_of(part))
    if not matrices:
        raise FileError(
            f"{path}: expected a linear transform, or a composite that has one, "
            f"found {transform.GetName()}"
        )
    to_moving = functools.reduce(np.matmul, matrices)
    return _inverse_in_memory(path, to_moving)


def _read_transform(path: str | os.PathLike) -> sitk.Transform:
    if not os.path.isfile(path):
        raise FileError(f"{path}: no such file")
    try:
        return sitk.ReadTransform(os.fspath(path))
    except RuntimeError as error:  # ITK's word for anything that is wrong with a file
        raise FileError(f"{path}: not an ITK transform that can be read") from error


def _parts(transform: sitk.Transform) -> Iterator[sitk.Transform]:
    """The transform itself, or those of a composite, of which the last is applied first."""
    if transform.GetTransformEnum() != sitk.sitkComposite:
        yield transform
        return
    composite = sitk.CompositeTransform(transform)
    for number in range(composite.GetNumberOfTransforms()):
        yield from _parts(composite.GetNthTransform(number))


def _inverse_in_memory(path: str | os.PathLike, to_moving: np.ndarray) -> np.ndarray:
    """The inverse of a map between points of ITK's files, in memory's frame."""
    d = len(to_moving) - 1
    flip = LPS if d == 3 else np.eye(d + 1)
    condition = np.linalg.cond(to_moving[:d, :d])
    if not condition < 1e9:
        raise FileError(f"{path}: expected a transform that has an inverse, found a singular one")
    return flip @ np.linalg.inv(to_moving) @ flip


def matrix_of(transform: sitk.Transform) -> np.ndarray:
    """(d + 1, d + 1) of a linear transform: what it does to the origin and to the unit vectors."""
    d = transform.GetDimension()
    offset = np.array(transform.TransformPoint([0.0] * d))
    matrix = np.eye(d + 1)
    matrix[:d, d] = offset
    for axis, unit in enumerate(np.eye(d)):
        arrived = transform.TransformPoint(unit.tolist())
        matrix[:d, axis] = arrived - offset
    return matrix


def _as_transform(matrix: np.ndarray, kind: str) -> sitk.Transform:
    """A transform of a kind, about the origin, which starts as a matrix."""
    d = len(matrix) - 1
    transform = TRANSFORMS[kind, d]()
    offset = matrix[:d, d].tolist()
    if kind == "translation":
        transform.SetOffset(offset)
    else:
        transform.SetMatrix(matrix[:d, :d].ravel().tolist())
        transform.SetTranslation(offset)
    return transform
