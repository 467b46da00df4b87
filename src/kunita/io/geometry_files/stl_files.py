"""STL: triangles without shared vertices, in single precision; text or binary.

Vertices with the same coordinates are one vertex in memory. There is no room for anything else, so
the uncertainty is written to a table next to the mesh. The frame is stated in the header, as 3D
Slicer does.
"""

import re
from pathlib import Path

import numpy as np

from kunita.data.geometry import Mesh, VertexValues, cells_of
from kunita.errors import FileError
from kunita.io.frames import Frame, flip_covariances, flip_points
from kunita.io.geometry_files.mesh_frames import (
    RADIUS,
    STD,
    flip_mesh,
    refused,
    settle_frame,
    stated_frame,
    statement,
)
from kunita.io.writing import complete

HEADER = 80
FACET = np.dtype([("normal", "<f4", 3), ("corners", "<f4", (3, 3)), ("attribute", "<u2")])
COLUMNS = ("x", "y", "z", STD, RADIUS, "cov_xx", "cov_xy", "cov_xz", "cov_yy", "cov_yz", "cov_zz")
UPPER = np.triu_indices(3)


def read(path: Path, frame: Frame | None) -> Mesh:
    """Read .stl, text or binary."""
    data = path.read_bytes()
    count = int.from_bytes(data[HEADER : HEADER + 4], "little")
    exact = len(data) == HEADER + 4 + FACET.itemsize * count
    if (
        data.lstrip().startswith(b"solid") and not exact
    ):  # some binary files start with the word too
        header, corners = data.split(b"\n", 1)[0], _text_corners(path, data)
    else:
        header, corners = data[:HEADER], _binary_corners(path, data, count)
    settled = settle_frame(path, stated_frame(header.decode("latin1")), frame)
    points, triangles = _merged(corners)
    with refused(path):
        return flip_mesh(Mesh(points, faces=cells_of(triangles)), settled)


def write(
    path: Path, mesh: Mesh, values: VertexValues | None, frame: Frame, *, overwrite: bool
) -> tuple[Path, ...]:
    """Write .stl, binary; and the uncertainty of its vertices, if any, to NAME.uncertainty.csv."""
    facets = _facets(path, mesh, frame)
    table = path.with_name(f"{path.stem}.uncertainty.csv")
    with complete(path, overwrite=overwrite) as partial:
        with partial.open("wb") as file:
            file.write(statement(frame).encode().ljust(HEADER))
            file.write(len(facets).to_bytes(4, "little"))
            file.write(facets.tobytes())
        if values is not None:
            _write_table(table, mesh.points, values, frame, overwrite=overwrite)
    return (path,) if values is None else (path, table)


def _binary_corners(path: Path, data: bytes, count: int) -> np.ndarray:
    """(k, 3, 3) corners of a binary file, whose size follows from its count."""
    if len(data) < HEADER + 4 + FACET.itemsize * max(count, 1):
        expected = f"an STL file: 'solid', or {HEADER} bytes, a count and {FACET.itemsize} bytes for each triangle"
        raise FileError.at(path, None, expected, f"{len(data)} bytes and a count of {count}")
    return np.frombuffer(data, FACET, count, HEADER + 4)["corners"]


def _text_corners(path: Path, data: bytes) -> np.ndarray:
    """(k, 3, 3) corners of a text file, which ends with `endsolid`."""
    corners = re.findall(rb"\bvertex\s+(\S+)\s+(\S+)\s+(\S+)", data)
    facets = len(re.findall(rb"\bendfacet\b", data))
    if not corners or len(corners) != 3 * facets or b"endsolid" not in data:
        expected = "an STL file in text: three vertices for each facet, and 'endsolid'"
        raise FileError.at(
            path, None, expected, f"{len(corners)} vertices of {facets} facets in {len(data)} bytes"
        )
    try:
        return np.array(corners, dtype=np.float64).astype(np.float32).reshape(-1, 3, 3)
    except ValueError as error:
        raise FileError.at(path, None, "numbers after 'vertex'", str(error)) from error


def _merged(corners: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distinct points in the order of their first use, and (k, 3) triangles between them."""
    rows = np.ascontiguousarray(corners.reshape(-1, 3)) + np.float32(
        0
    )  # -0 and 0 are the same place
    keys = rows.view(np.dtype((np.void, rows.itemsize * 3)))[:, 0]
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return rows[first[order]].astype(np.float64), rank[inverse].reshape(-1, 3)


def _facets(path: Path, mesh: Mesh, frame: Frame) -> np.ndarray:
    """The records of a mesh's triangles, each with its normal."""
    triangles = mesh.triangles
    if len(mesh.lines) or not len(triangles):
        found = f"{len(mesh.lines)} lines and {len(triangles)} triangles"
        raise FileError.at(path, None, "a mesh of triangles only, as .stl has nothing else", found)
    corners = flip_points(mesh.points, frame)[triangles]
    normals = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    facets = np.zeros(len(triangles), FACET)
    facets["corners"] = corners
    facets["normal"] = normals / np.maximum(
        np.linalg.norm(normals, axis=1, keepdims=True), np.finfo(float).tiny
    )
    return facets


def _write_table(
    path: Path, points: np.ndarray, values: VertexValues, frame: Frame, *, overwrite: bool
) -> None:
    """One row per vertex: its place, its uncertainty in mm, and its covariance in mm², in the frame
    of the mesh.
    """
    covariances = flip_covariances(values.covariance, frame)[:, *UPPER]
    rows = np.column_stack([flip_points(points, frame), values.std, values.radius, covariances])
    header = f"# CoordinateSystem = {frame.value}\n{','.join(COLUMNS)}"
    with complete(path, overwrite=overwrite) as partial:
        np.savetxt(
            partial, rows, fmt="%.17g", delimiter=",", header=header, comments="", encoding="utf-8"
        )
