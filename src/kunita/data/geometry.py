"""Meshes and streamlines: points in space, how they hang together, and what is known of each."""

import dataclasses
import enum
from typing import Any

import numpy as np

from kunita.data.image import Grid
from kunita.errors import ArgumentError


class Role(enum.Enum):
    """What an attribute means to a viewer; directions and tensors turn with the axes, and normals
    with the surface.
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
        values: (k,), (k, c), or (k, 3, 3) for tensors; of whatever type the file has.
        role: what it means.
    """

    name: str
    values: np.ndarray
    role: Role = Role.PLAIN

    @property
    def columns(self) -> np.ndarray:
        """The values as (k, c)."""
        return self.values.reshape(len(self.values), int(np.prod(self.values.shape[1:], dtype=int)))


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
        """How many points each cell joins."""
        return np.diff(self.offsets)

    def fans(self) -> np.ndarray:
        """(k, 3) triangles that share their polygon's first point: the polygon itself, where it is
        convex.
        """
        inner = np.maximum(self.sizes - 2, 0)
        first = np.repeat(self.offsets[:-1], inner)
        second = first + 1 + _places(inner)
        return self.connectivity[np.stack([first, second, second + 1], axis=1)]

    def strip_triangles(self) -> np.ndarray:
        """(k, 3) triangles of strips; every other one is turned round, so that all face the same
        side.
        """
        inner = np.maximum(self.sizes - 2, 0)
        place = _places(inner)
        first = np.repeat(self.offsets[:-1], inner) + place
        odd = place % 2
        return self.connectivity[np.stack([first, first + 1 + odd, first + 2 - odd], axis=1)]


def cells_of(rows: np.ndarray) -> Cells:
    """Cells that all join the same number of points, one per row of a (k, c) array."""
    count, size = rows.shape
    return Cells(np.arange(count + 1, dtype=np.int64) * size, rows.reshape(-1).astype(np.int64))


@dataclasses.dataclass(frozen=True, eq=False)
class Mesh:
    """Vertices and the cells that join them, with all that is needed to write the same mesh with
    other points.

    Args:
        points: (n, 3), RAS+ mm. Kept as float64.
        vertices: cells of single points.
        lines: polylines.
        faces: polygons.
        strips: strips of triangles.
        point_data: one row per point.
        cell_data: one row per cell, in the order vertices, lines, faces, strips.
        frame: the frame of the file that it came from, "RAS" or "LPS"; a copy is written in the
            same. None: no file.
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
        for kind in ("vertices", "lines", "faces", "strips"):
            _check_cells(getattr(self, kind), len(self.points), kind)
        cells = sum(len(kind) for kind in (self.vertices, self.lines, self.faces, self.strips))
        _check_rows(self.point_data, len(self.points), "points")
        _check_rows(self.cell_data, cells, "cells")

    @property
    def triangles(self) -> np.ndarray:
        """(k, 3) triangles of the faces, then of the strips."""
        return np.concatenate([self.faces.fans(), self.strips.strip_triangles()])

    def with_points(self, points: np.ndarray) -> "Mesh":
        """The same mesh elsewhere; its normals are left behind, as they were those of the old
        points.
        """
        _check_count(points, self.points)
        point_data, cell_data = (
            tuple(attribute for attribute in data if attribute.role is not Role.NORMALS)
            for data in (self.point_data, self.cell_data)
        )
        return dataclasses.replace(self, points=points, point_data=point_data, cell_data=cell_data)


@dataclasses.dataclass(frozen=True, eq=False)
class Streamlines:
    """The vertices of all streamlines, one streamline after the other.

    Args:
        points: (n, 3), RAS+ mm. Kept as float64.
        lengths: (k,) vertices of each streamline; a streamline may have one vertex, or none.
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
        if lengths.ndim != 1 or np.any(lengths < 0) or lengths.sum() != len(self.points):
            raise ArgumentError(
                f"lengths: expected counts that sum to {len(self.points)}, found {lengths!r:.80}"
            )
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
    """How sure the place of each vertex is.

    Args:
        std: (n,) standard deviation along a typical axis, √(tr Λ/3), mm.
        radius: (n,) radius of the ball that holds the vertex with probability 0.95, mm.
        covariance: (n, 3, 3), mm², along the RAS+ axes.
    """

    std: Any
    radius: Any
    covariance: Any

    def __post_init__(self) -> None:
        for name, tail in (("std", ()), ("radius", ()), ("covariance", (3, 3))):
            values = np.array(getattr(self, name), dtype=float)
            object.__setattr__(self, name, values)
            if values.shape != (len(self), *tail):
                raise ArgumentError(
                    f"{name}: expected shape {(len(self), *tail)}, found {values.shape}"
                )

    def __len__(self) -> int:
        return len(self.std)


def _places(counts: np.ndarray) -> np.ndarray:
    """0 … c - 1 for each count c, one after the other."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


def _checked_points(points: Any) -> np.ndarray:
    array = np.array(points, dtype=np.float64)
    if array.size == 0:
        raise ArgumentError("no vertices: at least one is needed")
    if array.ndim != 2 or array.shape[1] != 3:
        raise ArgumentError(f"points: expected an (n, 3) array, found shape {array.shape}")
    bad = np.flatnonzero(~np.isfinite(array).all(axis=1))
    if bad.size:
        raise ArgumentError(f"vertex {bad[0]} (from 0) is not finite: {array[bad[0]].tolist()}")
    return array


def _check_count(points: np.ndarray, old: np.ndarray) -> None:
    if np.shape(points) != old.shape:
        raise ArgumentError(
            f"points: expected shape {old.shape}, as before, found {np.shape(points)}"
        )


def _check_cells(cells: Cells, n: int, kind: str) -> None:
    offsets, connectivity = cells.offsets, cells.connectivity
    if (
        offsets.size == 0
        or offsets[0] != 0
        or offsets[-1] != len(connectivity)
        or np.any(np.diff(offsets) < 0)
    ):
        raise ArgumentError(
            f"{kind}: expected offsets that rise from 0 to {len(connectivity)}, found {offsets!r:.80}"
        )
    outside = connectivity[(connectivity < 0) | (connectivity >= n)]
    if outside.size:
        raise ArgumentError(f"{kind}: expected point numbers from 0 to {n - 1}, found {outside[0]}")


def _check_rows(attributes: tuple[Attribute, ...], rows: int, what: str) -> None:
    for attribute in attributes:
        if len(attribute.values) != rows:
            raise ArgumentError(
                f"{attribute.name!r}: expected {rows} rows, one for each of the {what}, found {len(attribute.values)}"
            )
