"""VTK polygonal data: the legacy format (.vtk, text or binary) and the XML format (.vtp).

VTK itself writes both; they are read in `vtk_legacy` and `vtk_xml`. A legacy file states its frame in its title line,
an XML file in a field called SPACE; both as 3D Slicer does. Numbers are kept whatever their type; arrays of text and
fields of the whole mesh are not.
"""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from kunita.data.geometry import Attribute, Cells, Mesh, Role, VertexValues
from kunita.io.frames import Frame
from kunita.io.geometry_files.mesh_frames import flip_mesh, refused, settle_frame, statement, with_uncertainty
from kunita.io.geometry_files.vtk_legacy import read_legacy
from kunita.io.geometry_files.vtk_xml import read_xml
from kunita.io.writing import complete

LEGACY_VERSION = 42
"""Version 4.2 of the legacy format: the last one that programs built on VTK 8 and earlier can read."""

ROLES = (Role.SCALARS, Role.VECTORS, Role.NORMALS, Role.TEXTURE, Role.TENSORS)
"""VTK's types of attribute, in the order of its numbers for them."""


def read(path: Path, frame: Frame | None) -> Mesh:
    """Read .vtk or .vtp."""
    with refused(path):
        mesh, stated = read_xml(path) if path.suffix.lower() == ".vtp" else read_legacy(path)
        return flip_mesh(mesh, settle_frame(path, stated, frame))


def write(path: Path, mesh: Mesh, values: VertexValues | None, frame: Frame, *, overwrite: bool) -> tuple[Path, ...]:
    """Write .vtk or .vtp, with the uncertainty as point data: two scalars in mm and a tensor in mm²."""
    data = _polydata(flip_mesh(with_uncertainty(mesh, values), frame))
    with complete(path, overwrite=overwrite) as partial:
        writer = _xml_writer(data, frame) if path.suffix.lower() == ".vtp" else _legacy_writer(frame)
        writer.SetInputData(data)
        writer.SetFileName(str(partial))
        with _messages() as messages:
            done = writer.Write()
        if not done or _first_error(messages):
            raise OSError(_first_error(messages) or "VTK could not write the file")
    return (path,)


@contextlib.contextmanager
def _messages() -> Iterator[Any]:
    """Collect what VTK says in the block, which it would otherwise print."""
    from vtkmodules.vtkCommonCore import vtkLogger, vtkOutputWindow, vtkStringOutputWindow

    window, collected = vtkOutputWindow.GetInstance(), vtkStringOutputWindow()
    verbosity = vtkLogger.GetCurrentVerbosityCutoff()
    vtkOutputWindow.SetInstance(collected)
    vtkLogger.SetStderrVerbosity(vtkLogger.VERBOSITY_OFF)
    try:
        yield collected
    finally:
        vtkLogger.SetStderrVerbosity(verbosity)
        vtkOutputWindow.SetInstance(window)


def _first_error(messages: Any) -> str | None:
    """The first error among VTK's messages, without the address of the object that it is from."""
    found = re.search(r"ERROR: In [^\n]*\n(?:\w+ \(0x[0-9a-f]+\): )?(.+)", str(messages.GetOutput() or ""))
    return found[1].strip() if found else None


def _polydata(mesh: Mesh) -> Any:
    from vtkmodules.util.numpy_support import numpy_to_vtk
    from vtkmodules.vtkCommonCore import vtkPoints
    from vtkmodules.vtkCommonDataModel import vtkPolyData

    data, points = vtkPolyData(), vtkPoints()
    points.SetData(numpy_to_vtk(mesh.points, deep=True))
    data.SetPoints(points)
    data.SetVerts(_cell_array(mesh.vertices))
    data.SetLines(_cell_array(mesh.lines))
    data.SetPolys(_cell_array(mesh.faces))
    data.SetStrips(_cell_array(mesh.strips))
    _add_attributes(data.GetPointData(), mesh.point_data)
    _add_attributes(data.GetCellData(), mesh.cell_data)
    return data


def _cell_array(cells: Cells) -> Any:
    from vtkmodules.util.numpy_support import numpy_to_vtkIdTypeArray
    from vtkmodules.vtkCommonDataModel import vtkCellArray

    array = vtkCellArray()
    if len(cells):
        array.SetData(*(numpy_to_vtkIdTypeArray(ids, deep=True) for ids in (cells.offsets, cells.connectivity)))
    return array


def _add_attributes(data: Any, attributes: tuple[Attribute, ...]) -> None:
    from vtkmodules.util.numpy_support import numpy_to_vtk

    for attribute in attributes:
        array = numpy_to_vtk(np.ascontiguousarray(attribute.columns), deep=True)
        array.SetName(attribute.name)
        data.AddArray(array)
        if attribute.role in ROLES:
            data.SetActiveAttribute(attribute.name, ROLES.index(attribute.role))


def _legacy_writer(frame: Frame) -> Any:
    from vtkmodules.vtkIOLegacy import vtkPolyDataWriter

    writer = vtkPolyDataWriter()
    writer.SetFileVersion(LEGACY_VERSION)
    writer.SetFileTypeToBinary()
    writer.SetHeader(statement(frame))
    return writer


def _xml_writer(data: Any, frame: Frame) -> Any:
    from vtkmodules.vtkCommonCore import vtkStringArray
    from vtkmodules.vtkIOXML import vtkXMLPolyDataWriter

    space = vtkStringArray()
    space.SetName("SPACE")
    space.InsertNextValue(frame.value)
    data.GetFieldData().AddArray(space)
    writer = vtkXMLPolyDataWriter()
    writer.SetDataModeToAppended()
    writer.SetCompressorTypeToZLib()
    return writer
