"""VTK polygonal data: the legacy format (.vtk, text or binary) and the XML format (.vtp).

Both are read and written without VTK, in `vtk_legacy` and `vtk_xml`. A legacy file states its frame
in its title line, an XML file in a field called SPACE; both as 3D Slicer does. Numbers are kept
whatever their type; arrays of text and fields of the whole mesh are not.
"""

import dataclasses
from pathlib import Path

from kunita.data.geometry import Attribute, Mesh, Role, VertexValues
from kunita.errors import ArgumentError
from kunita.io.frames import Frame
from kunita.io.geometry_files.mesh_frames import flip_mesh, refused, settle_frame, with_uncertainty
from kunita.io.geometry_files.vtk_legacy import WORDS, encode_legacy, read_legacy
from kunita.io.geometry_files.vtk_xml import encode_xml, read_xml
from kunita.io.writing import complete


def read(path: Path, frame: Frame | None) -> Mesh:
    """Read .vtk or .vtp."""
    with refused(path):
        mesh, stated = read_xml(path) if path.suffix.lower() == ".vtp" else read_legacy(path)
        return flip_mesh(mesh, settle_frame(path, stated, frame))


def write(
    path: Path, mesh: Mesh, values: VertexValues | None, frame: Frame, *, overwrite: bool
) -> tuple[Path, ...]:
    """Write .vtk or .vtp, with the uncertainty as point data: two scalars in mm and a tensor in
    mm².
    """
    encode = encode_xml if path.suffix.lower() == ".vtp" else encode_legacy
    with refused(path), complete(path, overwrite=overwrite) as partial:
        stored = _as_vtk_has_it(flip_mesh(with_uncertainty(mesh, values), frame))
        partial.write_bytes(encode(stored, frame))
    return (path,)


def _as_vtk_has_it(mesh: Mesh) -> Mesh:
    return dataclasses.replace(
        mesh, point_data=_settled(mesh.point_data), cell_data=_settled(mesh.cell_data)
    )


def _settled(attributes: tuple[Attribute, ...]) -> tuple[Attribute, ...]:
    """One array of each name and one of each role, the last that there is, as in VTK; others of a
    role become plain.
    """
    for attribute in attributes:
        if attribute.values.dtype.str[1:] not in WORDS:
            raise ArgumentError(
                f"{attribute.name!r}: expected numbers that VTK has, found {attribute.values.dtype}"
            )
    named = {attribute.name: attribute for attribute in attributes}
    holders = {attribute.role: attribute.name for attribute in named.values()}
    return tuple(
        a if holders[a.role] == a.name else dataclasses.replace(a, role=Role.PLAIN)
        for a in named.values()
    )
