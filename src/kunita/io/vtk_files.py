"""VTK polygonal data: the legacy format (.vtk, text or binary) and the XML format (.vtp).

A legacy file states its frame in its title line, an XML file in a field called SPACE; both as 3D Slicer does.
Numbers are kept whatever their type; arrays of text and fields of the whole mesh are not.
"""

import binascii
import contextlib
import math
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np

from kunita.data.geometry import Attribute, Cells, Mesh, Role, VertexValues
from kunita.errors import FileError, KunitaWarning
from kunita.io.frames import Frame
from kunita.io.mesh_frames import flip_mesh, refused, settle_frame, stated_frame, statement, with_uncertainty
from kunita.io.writing import complete

LEGACY_VERSION = 42
"""Version 4.2 of the legacy format: the last one that programs built on VTK 8 and earlier can read."""

LEGACY_TYPES = (
    rb"(?:bit|float|double|vtkIdType|(?:signed_|unsigned_)?(?:char|short|int|long|long_long)|vtktypeu?int\d+)"
)
LEGACY_COUNTS = re.compile(
    rb"(?<![!-~])(?:"
    rb"(?:POINTS|VERTICES|LINES|POLYGONS|TRIANGLE_STRIPS|POINT_DATA|CELL_DATA|(?:FIELD|LOOKUP_TABLE)\s+\S+)"
    rb"\s+(-?\d+)(?:\s+(-?\d+))?"
    rb"|\S+\s+(-?\d+)\s+(?P<rows>-?\d+)\s+" + LEGACY_TYPES + rb"(?!\S))",
    re.IGNORECASE,
)
LEGACY_CELLS = re.compile(
    rb"(?<![!-~])(?:VERTICES|LINES|POLYGONS|TRIANGLE_STRIPS)\s+(\d+)\s+(\d+)[ \t]*(\r?\n)?", re.IGNORECASE
)
XML_COUNTS = re.compile(rb"\bNumberOf(?:Points|Verts|Lines|Polys|Strips|Tuples)\s*=\s*[\"']\s*(-?\d+)")
XML_COMPONENTS = re.compile(rb"\bNumberOfComponents\s*=\s*[\"']\s*(-?\d+)")
MOST_INFLATION = 1032
"""Deflate makes at most this many bytes out of one."""

ROLES = (Role.SCALARS, Role.VECTORS, Role.NORMALS, Role.TEXTURE, Role.TENSORS)
"""VTK's types of attribute, in the order of its numbers for them."""

SYMMETRIC = np.array([[0, 3, 5], [3, 1, 4], [5, 4, 2]])
"""Where the entries of a tensor are among VTK's six: xx, yy, zz, xy, yz, xz."""


def read(path: Path, frame: Frame | None) -> Mesh:
    """Read .vtk or .vtp."""
    with refused(path):
        data, stated = _read_xml(path) if path.suffix.lower() == ".vtp" else _read_legacy(path)
        settled = settle_frame(path, stated, frame)
        return flip_mesh(_mesh(data), settled)


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


def _check_legacy(path: Path, data: bytes) -> None:
    """Refuse a file that declares more than it can hold: VTK would allocate it, and the process would end there."""
    for found in LEGACY_COUNTS.finditer(data):
        if any(not 0 <= count <= len(data) for count in _counts(found)):
            expected = f"counts that fit into a file of {len(data)} bytes"
            raise FileError.at(path, _line(data, found), expected, found[0].decode("latin1"))
    _check_cell_lists(path, data)


def _line(data: bytes, found: re.Match[bytes]) -> int:
    return data.count(b"\n", 0, found.start()) + 1


def _counts(found: re.Match[bytes]) -> list[int]:
    """The numbers that a line declares; an array's components and rows count together."""
    numbers = [int(number) for number in found.groups() if number is not None]
    return [*numbers, math.prod(numbers)] if found.lastgroup == "rows" else numbers


def _check_cell_lists(path: Path, data: bytes) -> None:
    """Refuse lists of cells that do not add up, which VTK would follow out of its memory (formats before 5.0)."""
    opening = re.match(rb"# vtk DataFile Version (\d+)[^\n]*\n[^\n]*\n\s*(\w+)", data)
    for found in LEGACY_CELLS.finditer(data) if opening and int(opening[1]) < 5 else ():
        count, size = int(found[1]), int(found[2])
        if opening and opening[2].upper() == b"BINARY":
            entries = np.frombuffer(data, ">i4", min(size, (len(data) - found.end()) // 4), found.end())
        else:
            entries = _text_integers(data[found.end() :], size)
        if found[3] is None or len(entries) < size or not _adds_up(entries, count):
            raise FileError.at(
                path, _line(data, found), f"a list of {count} cells in {size} numbers", "one that does not add up"
            )


def _text_integers(text: bytes, size: int) -> np.ndarray:
    """The first `size` integers of a text, or as many as there are."""
    found = re.match(rb"(?:\s*-?\d{1,18}(?!\S))*", text)
    return np.array(found[0].split()[:size] if found else [], dtype=np.int64)


def _adds_up(entries: np.ndarray, count: int) -> bool:
    """Whether a list of cells, each a number of points and then those points, has this many cells."""
    size = len(entries)
    if 0 < count <= size and size % count == 0 and np.all(entries[:: size // count] == size // count - 1):
        return True
    place = 0
    for _ in range(count):
        if place >= size or entries[place] < 0:
            return False
        place += 1 + int(entries[place])
    return place == size


def _check_xml(path: Path, data: bytes) -> None:
    """Refuse a file that declares more than it can hold, even compressed; as `_check_legacy`."""
    most = MOST_INFLATION * len(data)
    widest = max((int(found[1]) for found in XML_COMPONENTS.finditer(data)), default=1)
    for found in XML_COUNTS.finditer(data):
        if not 0 <= int(found[1]) * max(widest, 1) <= most:
            expected = f"counts that fit into a file of {len(data)} bytes"
            raise FileError.at(path, _line(data, found), expected, found[0].decode("latin1"))
    for place in _blocks(data):
        count, size = _block_size(data, place)
        if count * size > most or count > len(data):
            raise FileError.at(path, None, f"blocks that fit into a file of {len(data)} bytes", count * size)


def _blocks(data: bytes) -> Iterator[int]:
    """Where the binary arrays of an XML file start: in place, or at their offsets from the underscore."""
    for found in re.finditer(rb"<DataArray\b[^>]*\bformat\s*=\s*[\"']binary[\"'][^>]*>\s*", data):
        yield found.end()
    appended = re.search(rb"<AppendedData\b[^>]*>\s*_", data)
    for found in re.finditer(rb"\boffset\s*=\s*[\"'](\d{1,18})", data[: appended.start()] if appended else b""):
        yield appended.end() + int(found[1]) if appended else 0


def _block_size(data: bytes, place: int) -> tuple[int, int]:
    """What an array says at its start: how many blocks of how many bytes, or one of so many if not compressed."""
    opening = data[: data.find(b">", data.find(b"<VTKFile")) + 1]
    word = 8 if b"UInt64" in opening else 4
    order: Literal["big", "little"] = "big" if b"BigEndian" in opening else "little"
    start = data[place : place + 2 * word]
    if not re.search(rb"<AppendedData\b[^>]*raw", data):
        start = binascii.a2b_base64(re.sub(rb"[^A-Za-z0-9+/]", b"A", data[place : place + 24]).ljust(24, b"A"))
    first, second = (int.from_bytes(start[i * word : (i + 1) * word], order) for i in (0, 1))
    return (first, second) if b"compressor" in opening else (1, first)


def _read_legacy(path: Path) -> tuple[Any, Frame | None]:
    from vtkmodules.vtkIOLegacy import vtkPolyDataReader

    reader = vtkPolyDataReader()
    for kind in ("Scalars", "Vectors", "Normals", "Tensors", "ColorScalars", "TCoords", "Fields"):
        getattr(reader, f"ReadAll{kind}On")()
    reader.SetFileName(str(path))
    _check_legacy(path, path.read_bytes())
    with _messages() as messages:
        is_polydata = bool(reader.IsFilePolyData())
        if is_polydata:
            reader.Update()
    if not is_polydata:
        raise FileError.at(path, None, "a VTK file with DATASET POLYDATA", _opening(path))
    _refuse_errors(path, messages)
    return reader.GetOutput(), stated_frame(_title(path)) or _field_frame(reader.GetOutput())


def _read_xml(path: Path) -> tuple[Any, Frame | None]:
    from vtkmodules.vtkIOXML import vtkXMLPolyDataReader

    reader = vtkXMLPolyDataReader()
    reader.SetFileName(str(path))
    _check_xml(path, path.read_bytes())
    with _messages() as messages:
        is_polydata = bool(reader.CanReadFile(str(path)))
        if is_polydata:
            reader.Update()
    if not is_polydata:
        raise FileError.at(path, None, "a VTK XML file of type PolyData", _opening(path))
    _refuse_errors(path, messages)
    return reader.GetOutput(), _field_frame(reader.GetOutput())


def _title(path: Path) -> str:
    """The second line of a legacy file, which is free text."""
    with path.open("rb") as file:
        return file.read(1024).partition(b"\n")[2].partition(b"\n")[0].decode("latin1")


def _opening(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(60).decode("latin1")


def _field_frame(data: Any) -> Frame | None:
    """The frame in the field SPACE, where there is one."""
    field = data.GetFieldData().GetAbstractArray("SPACE")
    if field is None or field.GetNumberOfValues() < 1:
        return None
    return stated_frame(f"SPACE={str(field.GetVariantValue(0).ToString()).strip()}")


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


def _refuse_errors(path: Path, messages: Any) -> None:
    error = _first_error(messages)
    if error:
        raise FileError(f"{path}: not a complete VTK polygonal data file ({error:.160})")


def _mesh(data: Any) -> Mesh:
    """NumPy copies of all that a vtkPolyData holds, in the file's frame."""
    from vtkmodules.util.numpy_support import vtk_to_numpy

    points = data.GetPoints()
    return Mesh(
        np.zeros((0, 3)) if points is None else np.array(vtk_to_numpy(points.GetData())),
        vertices=_cells(data.GetVerts()),
        lines=_cells(data.GetLines()),
        faces=_cells(data.GetPolys()),
        strips=_cells(data.GetStrips()),
        point_data=_attributes(data.GetPointData()),
        cell_data=_attributes(data.GetCellData()),
    )


def _cells(cells: Any) -> Cells:
    from vtkmodules.util.numpy_support import vtk_to_numpy

    if cells.GetNumberOfCells() == 0:
        return Cells()
    arrays = (cells.GetOffsetsArray(), cells.GetConnectivityArray())
    return Cells(*(np.array(vtk_to_numpy(array), dtype=np.int64) for array in arrays))


def _attributes(data: Any) -> tuple[Attribute, ...]:
    numeric = [i for i in range(data.GetNumberOfArrays()) if _is_numeric(data.GetAbstractArray(i))]
    return tuple(_attribute(data.GetArray(i), _role(data.IsArrayAnAttribute(i))) for i in numeric)


def _role(number: int) -> Role:
    return ROLES[number] if 0 <= number < len(ROLES) else Role.PLAIN


def _is_numeric(array: Any) -> bool:
    numeric = bool(array.IsNumeric())
    if not numeric:
        warnings.warn(f"the text in the array {array.GetName()!r} is not kept", KunitaWarning, stacklevel=2)
    return numeric


def _attribute(array: Any, role: Role) -> Attribute:
    from vtkmodules.util.numpy_support import vtk_to_numpy

    values = np.array(vtk_to_numpy(array))
    if role is Role.TENSORS:
        full = values[:, SYMMETRIC] if values.shape[1] == 6 else values.reshape(-1, 3, 3)
        return Attribute(array.GetName() or role.value, full, role)
    return Attribute(array.GetName() or role.value, values, role)


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
