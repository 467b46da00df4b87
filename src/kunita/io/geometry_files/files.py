"""Meshes and streamlines from files and to files: the doors, and which format has which suffix."""

import os
from pathlib import Path
from typing import Any

from kunita.data.geometry import Mesh, Streamlines, VertexValues
from kunita.data.image import as_grid
from kunita.errors import FileError
from kunita.io.frames import Frame, as_frame
from kunita.io.geometry_files import (
    gifti_files,
    mrtrix_files,
    ply_files,
    stl_files,
    trk_files,
    vtk_files,
)
from kunita.io.geometry_files.mesh_frames import settle_frame

MESHES = {
    ".vtk": vtk_files,
    ".vtp": vtk_files,
    ".ply": ply_files,
    ".stl": stl_files,
    ".gii": gifti_files,
}
STREAMLINES = {".trk": trk_files, ".tck": mrtrix_files}
SUFFIXES = (*MESHES, *STREAMLINES)


def is_geometry(path: str | os.PathLike) -> bool:
    """Whether a file's suffix is that of a mesh or of streamlines."""
    return Path(path).suffix.lower() in SUFFIXES


def read_geometry(
    path: str | os.PathLike, *, frame: str | Frame | None = None
) -> Mesh | Streamlines:
    """Read a mesh (.vtk, .vtp, .ply, .stl, .gii) or streamlines (.trk, .tck).

    Args:
        path: the file; its suffix tells the format.
        frame: "RAS" or "LPS", for a mesh that does not state its frame. One that contradicts the
            file is refused.
    """
    file = Path(path)
    suffix = _known_suffix(file)
    if not file.is_file():
        raise FileError(f"{file}: {'a directory, not a file' if file.is_dir() else 'no such file'}")
    try:
        if file.stat().st_size == 0:
            raise FileError.at(file, None, f"a {suffix} file", "an empty one")
        return {**MESHES, **STREAMLINES}[suffix].read(file, as_frame(frame))
    except OSError as error:
        raise FileError(f"{file}: cannot be read: {error.strerror or error}") from error


def write_geometry(
    path: str | os.PathLike,
    geometry: Mesh | Streamlines,
    values: VertexValues | None = None,
    *,
    frame: str | Frame | None = None,
    reference: Any = None,
    overwrite: bool = False,
) -> tuple[Path, ...]:
    """Write a mesh or streamlines, with the uncertainty of their vertices; return the files
    written.

    .vtk, .vtp, .ply and .trk hold the uncertainty themselves; next to an .stl it is a table, next
    to a .gii two files of scalars, and next to a .tck two files of track scalars.

    Args:
        path: the file; its suffix tells the format.
        geometry: what to write, in RAS+ mm.
        values: how sure the place of each vertex is.
        frame: "RAS" or "LPS"; without it the frame of the file that a mesh came from. It is stated
            in the header. .gii, .trk and .tck are RAS by definition.
        reference: an Image or a Grid in the geometry's space, for the header of a .trk file;
            without it the one of the file that the streamlines came from.
        overwrite: whether to replace files that exist.
    """
    file = Path(path)
    suffix = _known_suffix(file)
    if values is not None and len(values) != len(geometry.points):
        raise FileError.at(
            file, None, f"values for each of {len(geometry.points)} vertices", len(values)
        )
    if isinstance(geometry, Mesh) and suffix in MESHES:
        settled = _frame_to_write(file, geometry, as_frame(frame))
        return MESHES[suffix].write(file, geometry, values, settled, overwrite=overwrite)
    if isinstance(geometry, Streamlines) and suffix in STREAMLINES:
        return _write_streamlines(
            file, geometry, values, as_frame(frame), reference, overwrite=overwrite
        )
    allowed = ", ".join(MESHES if isinstance(geometry, Mesh) else STREAMLINES)
    raise FileError.at(
        file, None, f"one of {allowed} for {type(geometry).__name__.lower()}", suffix
    )


def beside(path: Path) -> tuple[str, ...]:
    """The names of the files that hold the uncertainty where a format cannot: written next to a
    geometry file.
    """
    surface = path.stem.removesuffix(".surf")
    names = {
        ".stl": (f"{path.stem}.uncertainty.csv",),
        ".gii": (f"{surface}.std.shape.gii", f"{surface}.radius95.shape.gii"),
        ".tck": (f"{path.stem}_std.tsf", f"{path.stem}_radius95.tsf"),
    }
    return names.get(path.suffix.lower(), ())


def _write_streamlines(
    file: Path,
    streamlines: Streamlines,
    values: VertexValues | None,
    frame: Frame | None,
    reference: Any,
    *,
    overwrite: bool,
) -> tuple[Path, ...]:
    settle_frame(file, Frame.RAS, frame)
    if file.suffix.lower() == ".tck":
        return mrtrix_files.write(file, streamlines, values, overwrite=overwrite)
    grid = None if reference is None else as_grid(reference)
    return trk_files.write(file, streamlines, values, grid, overwrite=overwrite)


def _known_suffix(file: Path) -> str:
    suffix = file.suffix.lower()
    if suffix not in SUFFIXES:
        raise FileError.at(
            file, None, f"a mesh or streamlines by its suffix ({', '.join(SUFFIXES)})", suffix
        )
    return suffix


def _frame_to_write(file: Path, mesh: Mesh, given: Frame | None) -> Frame:
    """The frame that was asked for, else that of the mesh's own file; a surface in GIfTI is RAS
    whatever it was.
    """
    if file.suffix.lower() == ".gii":
        return settle_frame(file, Frame.RAS, given)
    return settle_frame(file, None, given or as_frame(mesh.frame) or Frame.RAS)
