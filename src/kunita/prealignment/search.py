"""The search for an alignment: many starts on coarse images, the best refined on finer ones."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from scipy import linalg

from kunita.data.image import Grid, Image
from kunita.errors import ImageError
from kunita.inference.trend import ROTATING
from kunita.prealignment import itk, shrinking
from kunita.prealignment.options import Level, SearchOptions
from kunita.prealignment.overlap import overlap
from kunita.prealignment.shrinking import voxel_length

FAR_APART = 0.5
"""An alignment and the inverse of its inverse that differ by this much of the object's radius
disagree."""


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
        ready_moving = shrinking.ready(moving, "moving", length, options)
        ready_fixed = shrinking.ready(fixed, "fixed", length, options)
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
        moving = shrinking.at_level(self.moving, length, level)
        fixed = shrinking.at_level(self.fixed, length, level)
        method = itk.method_at(fixed.grid.size, length, level, self.seed, self.options)
        found = []
        for start in starts:
            candidate = _climb(method, moving, fixed, start, kind)
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
    method: itk.Method,
    moving: Image,
    fixed: Image,
    start: np.ndarray,
    kind: str,
) -> Candidate | None:
    """Maximise the mutual information from a start; None where nothing overlaps."""
    found = itk.climb(method, moving, fixed, start, kind)
    if found is None:
        return None
    matrix, mutual_information = found
    return Candidate(matrix, mutual_information, overlap(fixed, moving, matrix))


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
