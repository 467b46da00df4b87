"""Meshes and streamlines: points in space, how they are joined, and attributes of each."""

import dataclasses
import enum
from typing import Any

import numpy as np

from kunita.data.image import Grid
from kunita.errors import ArgumentError


class Role(enum.Enum):
    """What an attribute means to a viewer.

    Vectors and tensors turn when the axes do, and normals when the surface does.
    """

    PLAIN = "plain"
    SCALARS = "scalars"
    VECTORS = "vectors"
    NORMALS = "normals"
    TEXTURE = "texture coordinates"
    TENSORS = "tensors"


@dataclasses.dataclass(frozen=True, eq=False)
class Attribute:
    """One named array with a row per point, cell or streamline.

    Args:
        name: what the file calls it.
        values: (k,), (k, c), or (k, 3, 3) for tensors; of whatever type the file
            has.
        role: what it means.
    """

    name: str
    values: np.ndarray
    role: Role = Role.PLAIN

    @property
    def columns(self) -> np.ndarray:
        """The values as (k, c)."""
        rows, *rest = self.values.shape
        # Counted and not -1, which NumPy cannot infer where there are no rows.
        count = int(np.prod(rest, dtype=int))
        return self.values.reshape(rows, count)


@dataclasses.dataclass(frozen=True, eq=False)
class Cells:
    """Cells of one kind: cell i joins the points connectivity[offsets[i] : offsets[i + 1]]."""

    offsets: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(1, dtype=np.int64))
    connectivity: np.ndarray = dataclasses.field(
        default_factory=lambda: np.zeros(0, dtype=np.int64)
    )

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> np.ndarray:
        """(k,) the number of points that each cell joins."""
        return np.diff(self.offsets)

    @property
    def triangle_counts(self) -> np.ndarray:
        """(k,) the number of triangles that each cell is made of, as a fan or as a strip."""
        return np.maximum(self.sizes - 2, 0)

    def fans(self) -> np.ndarray:
        """(k, 3) triangles that share their polygon's first point.

        Together they are the polygon itself, where it is convex.
        """
        counts = self.triangle_counts
        first = np.repeat(self.offsets[:-1], counts)
        second = first + 1 + _count_up(counts)
        corners = np.stack([first, second, second + 1], axis=1)
        return self.connectivity[corners]

    def strip_triangles(self) -> np.ndarray:
        """(k, 3) triangles of strips.

        Every other one is turned round, so that all face the same side.
        """
        counts = self.triangle_counts
        place = _count_up(counts)
        odd = place % 2
        first = np.repeat(self.offsets[:-1], counts) + place
        corners = np.stack([first, first + 1 + odd, first + 2 - odd], axis=1)
        return self.connectivity[corners]


def cells_of(rows: np.ndarray) -> Cells:
    """Cells that all join the same number of points, one per row of a (k, c) array."""
    count, size = rows.shape
    offsets = np.arange(count + 1, dtype=np.int64) * size
    connectivity = rows.reshape(-1).astype(np.int64)
    return Cells(offsets, connectivity)


@dataclasses.dataclass(frozen=True, eq=False)
class Mesh:
    """Vertices and the cells that join them.

    It holds all that is needed to write the same mesh again with other points.

    Args:
        points: (n, 3), RAS+ mm. Kept as float64.
        vertices: cells of single points.
        lines: polylines.
        faces: polygons.
        strips: strips of triangles.
        point_data: one row per point.
        cell_data: one row per cell, in the order vertices, lines, faces, strips.
        frame: the frame of the file that it came from, "RAS" or "LPS"; a copy is
            written in the same. None: no file.
        notes: what else the file says of the surface, as (key, value).
    """

    points: Any
    vertices: Cells = dataclasses.field(default_factory=Cells)
    lines: Cells = dataclasses.field(default_factory=Cells)
    faces: Cells = dataclasses.field(default_factory=Cells)
    strips: Cells = dataclasses.field(default_factory=Cells)
    point_data: tuple[Attribute, ...] = ()
    cell_data: tuple[Attribute, ...] = ()
    frame: str | None = None
    notes: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "points", _checked_points(self.points))
        num_cells = 0
        for kind in ("vertices", "lines", "faces", "strips"):
            cells = getattr(self, kind)
            _check_cells(cells, len(self.points), kind)
            num_cells += len(cells)
        _check_rows(self.point_data, len(self.points), "points")
        _check_rows(self.cell_data, num_cells, "cells")

    @property
    def triangles(self) -> np.ndarray:
        """(k, 3) triangles of the faces, then of the strips."""
        fans = self.faces.fans()
        strips = self.strips.strip_triangles()
        return np.concatenate([fans, strips])

    def with_points(self, points: np.ndarray) -> "Mesh":
        """The same mesh elsewhere, without its normals, which were those of the old points."""
        _check_count(points, self.points)
        return dataclasses.replace(
            self,
            points=points,
            point_data=_without_normals(self.point_data),
            cell_data=_without_normals(self.cell_data),
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Streamlines:
    """The vertices of all streamlines, one streamline after the other.

    Args:
        points: (n, 3), RAS+ mm. Kept as float64.
        lengths: (k,) vertices of each streamline; a streamline may have one vertex,
            or none.
        point_data: one row per vertex.
        line_data: one row per streamline.
        grid: voxels of the image that they were tracked in, where the file says so.
        notes: what else the file says, as (key, value).
    """

    points: Any
    lengths: Any
    point_data: tuple[Attribute, ...] = ()
    line_data: tuple[Attribute, ...] = ()
    grid: Grid | None = None
    notes: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        lengths = np.array(self.lengths, dtype=np.int64)
        object.__setattr__(self, "points", _checked_points(self.points))
        object.__setattr__(self, "lengths", lengths)
        _check_lengths(lengths, len(self.points))
        _check_rows(self.point_data, len(self.points), "vertices")
        _check_rows(self.line_data, len(lengths), "streamlines")

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def ends(self) -> np.ndarray:
        """Where each streamline but the last ends: what `np.split` takes."""
        return np.cumsum(self.lengths)[:-1]

    def with_points(self, points: np.ndarray) -> "Streamlines":
        """The same streamlines elsewhere."""
        _check_count(points, self.points)
        return dataclasses.replace(self, points=points)


@dataclasses.dataclass(frozen=True, eq=False)
class VertexValues:
    """The uncertainty of the position of each vertex.

    Args:
        std: (n,) standard deviation along a typical axis, √(tr Λ/3), mm.
        radius: (n,) radius of the ball that holds the vertex with probability 0.95,
            mm.
        covariance: (n, 3, 3), mm², along the RAS+ axes.
    """

    std: Any
    radius: Any
    covariance: Any

    def __post_init__(self) -> None:
        self._keep_checked("std", (len(self),))
        self._keep_checked("radius", (len(self),))
        self._keep_checked("covariance", (len(self), 3, 3))

    def _keep_checked(self, name: str, expected: tuple[int, ...]) -> None:
        values = np.array(getattr(self, name), dtype=float)
        if values.shape != expected:
            raise ArgumentError(f"{name}: expected shape {expected}, found {values.shape}")
        object.__setattr__(self, name, values)

    def __len__(self) -> int:
        return len(self.std)


def _count_up(counts: np.ndarray) -> np.ndarray:
    """0 … c - 1 for each count c, one after the other."""
    starts = np.cumsum(counts) - counts
    return np.arange(counts.sum()) - np.repeat(starts, counts)


def _without_normals(attributes: tuple[Attribute, ...]) -> tuple[Attribute, ...]:
    return tuple(one for one in attributes if one.role is not Role.NORMALS)


def _checked_points(points: Any) -> np.ndarray:
    """The points as an array of doubles, (n, 3), finite, n > 0."""
    array = np.array(points, dtype=np.float64)
    if array.size == 0:
        raise ArgumentError("no vertices: at least one is needed")
    if array.ndim != 2 or array.shape[1] != 3:
        raise ArgumentError(f"points: expected an (n, 3) array, found shape {array.shape}")
    bad = np.flatnonzero(~np.isfinite(array).all(axis=1))
    if bad.size:
        first = bad[0]
        raise ArgumentError(f"vertex {first} (from 0) is not finite: {array[first].tolist()}")
    return array


def _check_count(points: np.ndarray, old: np.ndarray) -> None:
    if np.shape(points) != old.shape:
        raise ArgumentError(
            f"points: expected shape {old.shape}, as before, found {np.shape(points)}"
        )


def _check_lengths(lengths: np.ndarray, n: int) -> None:
    """Refuse lengths of streamlines that do not share out n vertices."""
    if lengths.ndim != 1 or np.any(lengths < 0) or lengths.sum() != n:
        raise ArgumentError(f"lengths: expected counts that sum to {n}, found {lengths!r:.80}")


def _check_cells(cells: Cells, n: int, kind: str) -> None:
    """Refuse cells that are not well formed, or join points that there are not among n."""
    last = len(cells.connectivity)
    if not _rise_from_zero(cells.offsets, last):
        raise ArgumentError(
            f"{kind}: expected offsets that rise from 0 to {last}, found {cells.offsets!r:.80}"
        )
    outside = (cells.connectivity < 0) | (cells.connectivity >= n)
    if np.any(outside):
        found = cells.connectivity[outside][0]
        raise ArgumentError(f"{kind}: expected point numbers from 0 to {n - 1}, found {found}")


def _rise_from_zero(offsets: np.ndarray, last: int) -> bool:
    if offsets.size == 0:
        return False
    if offsets[0] != 0 or offsets[-1] != last:
        return False
    return bool(np.all(np.diff(offsets) >= 0))


def _check_rows(attributes: tuple[Attribute, ...], rows: int, what: str) -> None:
    """Refuse attributes that do not have one row for each point, cell or streamline."""
    for attribute in attributes:
        found = len(attribute.values)
        if found != rows:
            raise ArgumentError(
                f"{attribute.name!r}: expected {rows} rows, one for each of the {what}, "
                f"found {found}"
            )
