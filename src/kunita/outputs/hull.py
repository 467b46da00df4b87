"""The convex hull of landmarks: where a registration interpolates, and how far outside of it a
point is.
"""

import dataclasses
import itertools

import numpy as np
from scipy.spatial import ConvexHull

FLAT = 1e-6
"""Points whose extent across a line or plane is less than this fraction of that along it lie on it.
"""

TOUCHING = 1e-9
"""A point outside by less than this fraction of the hull's size is on its surface."""

BATCH = 2048


@dataclasses.dataclass(frozen=True, eq=False)
class Hull:
    """The convex hull of points, which may also lie in a plane, on a line or in one place.

    Args:
        middle: (d,) mean of the points.
        axes: (d, r) orthonormal: the directions in which the points differ.
        corners: (n, r) the points, along the axes and from the middle.
        sides: (k, r + 1) inside is where sides · (y, 1) ≤ 0.
        facets: (k, r) the corners that each side joins.
    """

    middle: np.ndarray
    axes: np.ndarray
    corners: np.ndarray
    sides: np.ndarray
    facets: np.ndarray

    @property
    def rank(self) -> int:
        """The number of dimensions it has: 0 where all points coincide."""
        return self.axes.shape[1]

    @property
    def size(self) -> float:
        """Its largest extent along an axis, mm."""
        return float(np.ptp(self.corners, axis=0).max(initial=0.0))

    def outside(self, points: np.ndarray) -> np.ndarray:
        """How far (m, d) points lie outside, mm; 0 inside."""
        parts = [self._outside(points[k : k + BATCH]) for k in range(0, max(len(points), 1), BATCH)]
        return np.concatenate(parts)

    def _outside(self, points: np.ndarray) -> np.ndarray:
        along = (points - self.middle) @ self.axes
        across = np.linalg.norm(points - self.middle - along @ self.axes.T, axis=1)
        across[across <= TOUCHING * self.size] = (
            0.0  # rounding, all of it where the hull has every dimension
        )
        within = np.zeros(len(points))
        far = ~self._holds(along)
        within[far] = self._to_surface(along[far])
        return np.hypot(across, within)

    def _holds(self, along: np.ndarray) -> np.ndarray:
        heights = along @ self.sides[:, :-1].T + self.sides[:, -1]
        return np.all(heights <= TOUCHING * self.size, axis=1)

    def _to_surface(self, along: np.ndarray) -> np.ndarray:
        """Distance to the nearest of all faces: that of the projection to its flat, where that
        falls within it.
        """
        nearest = np.full(len(along), np.inf)
        for count in range(1, self.rank + 1):
            faces = {
                tuple(sorted(face))
                for facet in self.facets
                for face in itertools.combinations(facet, count)
            }
            for face in faces:
                nearest = np.minimum(nearest, _to_face(along, self.corners[list(face)]))
        return nearest

    def lattice(self, most: int) -> tuple[np.ndarray, float]:
        """The points inside of about the finest cubic lattice that has no more of them, and its
        spacing, mm.
        """
        spacing = 2 * self.size
        inside = np.zeros((1, self.rank))
        while spacing > 0:
            finer = self._inside(0.95 * spacing)
            if len(finer) > most:
                break
            spacing, inside = 0.95 * spacing, finer
        return self.middle + inside @ self.axes.T, spacing

    def _inside(self, spacing: float) -> np.ndarray:
        """A lattice that has the middle among its points: of a hull that is thin it has points,
        too.
        """
        low, high = (
            np.ceil(self.corners.min(axis=0) / spacing),
            np.floor(self.corners.max(axis=0) / spacing),
        )
        steps = [np.arange(a, b + 1) for a, b in zip(low, high, strict=True)]
        points = spacing * np.stack(np.meshgrid(*steps, indexing="ij"), axis=-1).reshape(
            -1, self.rank
        )
        return points[self._holds(points)]


def hull_of(points: np.ndarray) -> Hull:
    """The convex hull of (n, d) points, in the dimensions that they span."""
    middle = points.mean(axis=0)
    _, extents, directions = np.linalg.svd(points - middle, full_matrices=False)
    spanned = extents > max(FLAT * extents[0], 1e-12 * np.abs(points).max())
    axes = directions[spanned].T
    corners = (points - middle) @ axes
    sides, facets = _surface(corners)
    return Hull(middle, axes, corners, sides, facets)


def _surface(corners: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sides and facets; Qhull begins with the plane."""
    rank = corners.shape[1]
    if rank == 0:
        return np.zeros((0, 1)), np.zeros((0, 0), dtype=int)
    if rank == 1:
        ends = np.array([corners[:, 0].argmin(), corners[:, 0].argmax()])
        return np.array([[-1.0, corners[ends[0], 0]], [1.0, -corners[ends[1], 0]]]), ends[:, None]
    found = ConvexHull(corners)
    return found.equations, found.simplices


def _to_face(points: np.ndarray, face: np.ndarray) -> np.ndarray:
    """Distance of points to a simplex along its normal; infinite where their projection falls
    outside of it.
    """
    edges, offsets = face[1:] - face[0], points - face[0]
    shares = offsets @ np.linalg.pinv(edges) if len(edges) else np.zeros((len(points), 0))
    inside = np.all(shares >= 0, axis=1) & (shares.sum(axis=1) <= 1)
    return np.where(inside, np.linalg.norm(offsets - shares @ edges, axis=1), np.inf)
