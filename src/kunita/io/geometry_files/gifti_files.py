"""GIfTI surfaces (.surf.gii): vertices in RAS+ mm, single precision, and triangles.

The format's coordinates are along RAS+ axes. Of a file's transforms, the one from a space that it
calls unknown to that of the scanner is applied, as it leads to where the image is; one that leads
on from there (to Talairach, say) is not. Scalars are files of their own in this world, so the
uncertainty is written to NAME.std.shape.gii and NAME.radius95.shape.gii, as Workbench and FreeView
expect.
"""

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from kunita.data.geometry import Cells, Mesh, VertexValues, cells_of
from kunita.errors import FileError, KunitaWarning
from kunita.io.frames import Frame
from kunita.io.geometry_files.mesh_frames import refused, settle_frame
from kunita.io.writing import complete

UNKNOWN, SCANNER, ALIGNED = 0, 1, 2
"""NIfTI's codes of spaces: unknown, the scanner's, and that of another image to which this was
aligned."""

NOT_KEPT = re.compile(r"VolGeom|UniqueID")
"""Notes that are not true of a surface that was moved: FreeSurfer's volume, and the surface's own
identity."""


def read(path: Path, frame: Frame | None) -> Mesh:
    """Read the surface in a .gii file."""
    settle_frame(path, Frame.RAS, frame)
    image = _load(path)
    points, triangles = (
        _only(path, image, intent) for intent in ("NIFTI_INTENT_POINTSET", "NIFTI_INTENT_TRIANGLE")
    )
    if len(image.darrays) > 2:
        warnings.warn(
            f"{path}: only its points and triangles are kept", KunitaWarning, stacklevel=3
        )
    if points is None:
        raise FileError.at(
            path, None, "a surface: an array of intent NIFTI_INTENT_POINTSET", "none"
        )
    notes = tuple((str(k), str(v)) for k, v in points.meta.items() if not NOT_KEPT.match(str(k)))
    with refused(path):
        faces = Cells() if triangles is None else cells_of(_rows(path, triangles))
        return Mesh(_scanner(path, points), faces=faces, frame=Frame.RAS.value, notes=notes)


def write(
    path: Path, mesh: Mesh, values: VertexValues | None, frame: Frame, *, overwrite: bool
) -> tuple[Path, ...]:
    """Write a surface, and its uncertainty, if any, to two files next to it."""
    settle_frame(path, Frame.RAS, frame)
    if len(mesh.lines):
        raise FileError.at(
            path, None, "a mesh without lines, which .gii cannot hold", f"{len(mesh.lines)} lines"
        )
    stem = re.sub(r"(\.surf)?\.gii$", "", path.name, flags=re.IGNORECASE)
    scalars = () if values is None else (("std", values.std), ("radius95", values.radius))
    siblings = tuple(path.with_name(f"{stem}.{name}.shape.gii") for name, _ in scalars)
    with complete(path, overwrite=overwrite) as partial:
        _surface(mesh).to_filename(str(partial))
        for sibling, (name, column) in zip(siblings, scalars, strict=True):
            with complete(sibling, overwrite=overwrite) as other:
                _shape(mesh, f"{name}_mm", column).to_filename(str(other))
    return (path, *siblings)


def _load(path: Path) -> Any:
    """The file as nibabel reads it; a damaged one may fail anywhere in there, so that any failure
    is the file's.
    """
    import nibabel

    try:
        return nibabel.GiftiImage.from_filename(str(path))
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise FileError(f"{path}: not a complete GIfTI file ({reason:.160})") from error


def _only(path: Path, image: Any, intent: str) -> Any:
    """The one array of this intent, or None."""
    found = image.get_arrays_from_intent(intent)
    if len(found) > 1:
        raise FileError.at(path, None, f"one array of intent {intent}", len(found))
    return found[0] if found else None


def _rows(path: Path, array: Any) -> np.ndarray:
    """The (k, 3) numbers of an array."""
    data = np.asarray(array.data)
    if data.ndim != 2 or data.shape[1] != 3:
        raise FileError.at(
            path, None, "three numbers for each point and triangle", f"shape {data.shape}"
        )
    return data


def _scanner(path: Path, array: Any) -> np.ndarray:
    """The points in RAS+ mm of the scanner, where the file says how to get there."""
    points = _rows(path, array).astype(np.float64)
    system = array.coordsys
    if system is None or int(system.dataspace) != UNKNOWN:
        return points
    if int(system.xformspace) == SCANNER:
        affine = np.array(system.xform, dtype=float).reshape(4, 4)
        return points @ affine[:3, :3].T + affine[:3, 3]
    centre = [float(array.meta.get(f"VolGeomC_{axis}", 0)) for axis in "RAS"]
    if any(centre):
        warnings.warn(
            f"{path}: FreeSurfer's own coordinates, probably {centre} mm away from the scanner's; "
            "convert the surface with mris_convert --to-scanner if they are",
            KunitaWarning,
            stacklevel=4,
        )
    return points


def _surface(mesh: Mesh) -> Any:
    from nibabel import gifti

    system = gifti.GiftiCoordSystem(ALIGNED, ALIGNED, np.eye(4))
    points = gifti.GiftiDataArray(
        mesh.points.astype(np.float32),
        intent="NIFTI_INTENT_POINTSET",
        datatype="NIFTI_TYPE_FLOAT32",
        coordsys=system,
        meta=gifti.GiftiMetaData(mesh.notes),
    )
    triangles = gifti.GiftiDataArray(
        mesh.triangles.astype(np.int32), intent="NIFTI_INTENT_TRIANGLE", datatype="NIFTI_TYPE_INT32"
    )
    return gifti.GiftiImage(darrays=[points, triangles])


def _shape(mesh: Mesh, name: str, column: np.ndarray) -> Any:
    """A scalar per vertex; it names the same anatomical structure as its surface, by which
    Workbench joins the two.
    """
    from nibabel import gifti

    array = gifti.GiftiDataArray(
        column.astype(np.float32),
        intent="NIFTI_INTENT_SHAPE",
        datatype="NIFTI_TYPE_FLOAT32",
        meta=gifti.GiftiMetaData(Name=name),
    )
    structure = [(key, value) for key, value in mesh.notes if key.startswith("AnatomicalStructure")]
    return gifti.GiftiImage(meta=gifti.GiftiMetaData(structure), darrays=[array])
