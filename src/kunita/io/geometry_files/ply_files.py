"""PLY, the polygon format of Stanford: text or binary, with as many properties per vertex and per
face as one likes.

Kunita reads and writes it itself, as VTK's reader knows neither double precision nor any property
that it does not expect. The frame is stated in a comment, as 3D Slicer does. Numbers along several
columns become properties with a number: `field_0`, `field_1`, …; normals, colours and covariances
have the names that other programs give them.
"""

import dataclasses
import re
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from kunita.data.geometry import Attribute, Cells, Mesh, Role, VertexValues
from kunita.errors import FileError, KunitaWarning
from kunita.io.frames import Frame
from kunita.io.geometry_files.mesh_frames import (
    COVARIANCE,
    flip_mesh,
    refused,
    settle_frame,
    stated_frame,
    statement,
    with_uncertainty,
)
from kunita.io.writing import complete

TYPES = {
    **dict.fromkeys(("char", "int8"), "i1"),
    **dict.fromkeys(("uchar", "uint8"), "u1"),
    **dict.fromkeys(("short", "int16"), "i2"),
    **dict.fromkeys(("ushort", "uint16"), "u2"),
    **dict.fromkeys(("int", "int32"), "i4"),
    **dict.fromkeys(("uint", "uint32"), "u4"),
    **dict.fromkeys(("float", "float32"), "f4"),
    **dict.fromkeys(("double", "float64"), "f8"),
}
NAMES = {
    "i1": "char",
    "u1": "uchar",
    "i2": "short",
    "u2": "ushort",
    "i4": "int",
    "u4": "uint",
    "f4": "float",
}
BYTE_ORDERS = {"ascii": "=", "binary_little_endian": "<", "binary_big_endian": ">"}
INDICES = ("vertex_indices", "vertex_index")
POSITION, NORMAL, COLOUR = ("x", "y", "z"), ("nx", "ny", "nz"), ("red", "green", "blue", "alpha")
ENTRIES = ("cov_xx", "cov_xy", "cov_xz", "cov_yy", "cov_yz", "cov_zz")
UPPER = np.array([0, 1, 2, 4, 5, 8])
"""Where these six entries are in a 3 × 3 matrix, row by row."""

MOST_CORNERS = 255
"""A face's number of points is one byte, which is what most readers expect."""

FULL = np.array([[0, 1, 2], [1, 3, 4], [2, 4, 5]])
"""Where the entries of the full matrix are among these six."""


Columns = tuple[tuple[str, np.ndarray], ...]


@dataclasses.dataclass(frozen=True)
class Property:
    """A number, or a list of numbers, that every record of an element has; `counts` is the type of
    a list's length.
    """

    name: str
    values: str
    counts: str | None = None


@dataclasses.dataclass(frozen=True)
class Element:
    """A table of the file: its name, its number of records, and their properties."""

    name: str
    count: int
    properties: tuple[Property, ...]

    @property
    def lists(self) -> tuple[str, ...]:
        return tuple(prop.name for prop in self.properties if prop.counts is not None)


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
    """The records of an element: numbers by column; a list is its lengths and its entries, one
    after the other.
    """

    names: tuple[str, ...]
    columns: tuple[np.ndarray, ...]
    lists: tuple[tuple[str, Cells], ...] = ()

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def __getitem__(self, name: str) -> np.ndarray:
        return self.columns[self.names.index(name)]

    def stack(self, names: tuple[str, ...]) -> np.ndarray:
        return np.stack([self[name] for name in names], axis=1)


def read(path: Path, frame: Frame | None) -> Mesh:
    """Read .ply, text or binary of either byte order."""
    header, body = _split(path)
    order, declared = _parse_header(path, header)
    settled = settle_frame(
        path, stated_frame("\n".join(line for line in header if line.startswith("comment"))), frame
    )
    elements = declared
    if order == "=":
        body, elements = _as_binary(path, body, declared, first_line=len(header) + 1)
    tables = _read_tables(path, body, order, elements)
    if order == "=":
        tables = {
            element.name: _typed(tables[element.name], element)
            for element in declared
            if element.name in tables
        }
    with refused(path):
        return flip_mesh(_mesh(path, tables), settled)


def write(
    path: Path, mesh: Mesh, values: VertexValues | None, frame: Frame, *, overwrite: bool
) -> tuple[Path, ...]:
    """Write .ply, binary, with the uncertainty as properties of the vertices."""
    if len(mesh.lines):
        raise FileError.at(
            path, None, "a mesh without lines, which .ply cannot hold", f"{len(mesh.lines)} lines"
        )
    stored = flip_mesh(with_uncertainty(mesh, values), frame)
    positions = tuple(zip(POSITION, stored.points.T, strict=True))
    vertices = _records(_columns(stored.point_data, positions), len(stored.points))
    faces, owners = _faces(stored)
    extras = _records(
        [(name, column[owners]) for name, column in _columns(stored.cell_data)], len(faces)
    )
    if np.any(faces.sizes > MOST_CORNERS):
        raise FileError.at(path, None, f"faces of at most {MOST_CORNERS} points", faces.sizes.max())
    lines = ["ply", "format binary_little_endian 1.0", f"comment {statement(frame)}"]
    lines += [f"element vertex {len(vertices)}", *_declarations(vertices)]
    lines += [
        f"element face {len(faces)}",
        "property list uchar int vertex_indices",
        *_declarations(extras),
    ]
    with complete(path, overwrite=overwrite) as partial, partial.open("wb") as file:
        file.write("\n".join([*lines, "end_header", ""]).encode(errors="surrogateescape"))
        file.write(vertices.tobytes())
        file.write(_listed(faces, extras).tobytes())
    return (path,)


def _split(path: Path) -> tuple[list[str], bytes]:
    """The lines of the header, and what follows it."""
    data = path.read_bytes()
    if not re.match(rb"ply\s", data):
        raise FileError.at(path, 1, "'ply'", data[:20])
    end = re.search(rb"^end_header[ \t]*(\r\n|\n|\r)", data, re.MULTILINE)
    if end is None:
        raise FileError.at(path, None, "a header that ends with 'end_header'", data[-20:])
    return data[: end.end()].decode(errors="surrogateescape").splitlines(), data[end.end() :]


def _parse_header(path: Path, header: list[str]) -> tuple[str, tuple[Element, ...]]:
    """The byte order and the elements that a header declares."""
    order, elements = None, []
    for number, line in enumerate(header, start=1):
        match line.split():
            case ["format", kind, _] if kind in BYTE_ORDERS:
                order = BYTE_ORDERS[kind]
            case ["element", name, count] if re.fullmatch(r"[0-9]{1,18}", count):
                elements.append(Element(name, int(count), ()))
            case ["property", "list", counts, values, name] if (
                elements and counts in TYPES and values in TYPES
            ):
                elements[-1] = _extended(elements[-1], Property(name, TYPES[values], TYPES[counts]))
            case ["property", values, name] if elements and values in TYPES:
                elements[-1] = _extended(elements[-1], Property(name, TYPES[values]))
            case [] | ["ply" | "comment" | "obj_info" | "end_header", *_]:
                pass
            case _:
                raise FileError.at(
                    path, number, "a format, element, property or comment of PLY", line
                )
    if order is None:
        raise FileError.at(
            path, None, "a line 'format ascii|binary_little_endian|binary_big_endian 1.0'", "none"
        )
    return order, tuple(elements)


def _extended(element: Element, prop: Property) -> Element:
    return dataclasses.replace(element, properties=(*element.properties, prop))


def _as_binary(
    path: Path, body: bytes, elements: tuple[Element, ...], first_line: int
) -> tuple[bytes, tuple[Element, ...]]:
    """A text body as doubles, so that text is read like binary, with one type for everything."""
    try:
        numbers = np.array(body.split(), dtype=np.float64)
    except ValueError as error:
        raise FileError.at(path, first_line, "numbers from here on", str(error)) from error
    doubles = tuple(
        dataclasses.replace(
            element,
            properties=tuple(
                Property(prop.name, "f8", prop.counts and "f8") for prop in element.properties
            ),
        )
        for element in elements
    )
    return numbers.tobytes(), doubles


def _typed(table: Table, element: Element) -> Table:
    """The table of a text file, with the types that its header declares."""
    kinds = [prop.values for prop in element.properties if prop.counts is None]
    columns = tuple(column.astype(kind) for column, kind in zip(table.columns, kinds, strict=True))
    return dataclasses.replace(table, columns=columns)


def _read_tables(
    path: Path, body: bytes, order: str, elements: tuple[Element, ...]
) -> dict[str, Table]:
    """The tables of a binary body by name; what follows the vertices and faces is not looked at."""
    tables: dict[str, Table] = {}
    start = 0
    for element in elements:
        if {"vertex", "face"} <= tables.keys():
            break
        try:
            tables[element.name], start = _read_table(body, start, order, element)
        except (ValueError, OverflowError) as error:
            expected = f"{element.count} records of the element {element.name!r}"
            raise FileError.at(
                path, None, expected, f"{len(body) - start} bytes that do not hold them"
            ) from error
    for element in elements:
        if element.name not in ("vertex", "face"):
            warnings.warn(
                f"{path}: the element {element.name!r} is not kept", KunitaWarning, stacklevel=4
            )
    return tables


def _read_table(body: bytes, start: int, order: str, element: Element) -> tuple[Table, int]:
    """One element's table, and where the next one starts."""
    if element.count * max(len(element.properties), 1) > len(body) - start:
        raise ValueError("a record has at least one byte for each property")
    sizes = _first_sizes(body, start, order, element)
    kind = _record_type(order, element, sizes)
    if kind.itemsize * element.count <= len(body) - start:
        records = np.frombuffer(body, kind, element.count, start)
        if all(
            np.all(records[f"{name} length"] == sizes[i]) for i, name in enumerate(element.lists)
        ):
            return _regular_table(records, element), start + records.nbytes
    return _irregular_table(body, start, order, element)


def _first_sizes(body: bytes, start: int, order: str, element: Element) -> tuple[int, ...]:
    """How long the lists of the first record are."""
    sizes: list[int] = []
    for prop in element.properties if element.count else ():
        if prop.counts is not None:
            sizes.append(_size(body, start, order, prop.counts))
            start += np.dtype(prop.counts).itemsize
        start += np.dtype(prop.values).itemsize * (1 if prop.counts is None else sizes[-1])
    return tuple(sizes) if element.count else (0,) * len(element.lists)


def _size(body: bytes, start: int, order: str, kind: str) -> int:
    """The length of a list, which cannot be longer than what is left of the file."""
    size = int(np.frombuffer(body, order + kind, 1, start)[0])
    if not 0 <= size <= len(body) - start:
        raise ValueError(f"a list of {size} entries")
    return size


def _record_type(order: str, element: Element, sizes: tuple[int, ...]) -> np.dtype:
    """The record of an element whose lists have these lengths."""
    remaining = list(sizes)
    fields: list[tuple] = []
    for prop in element.properties:
        if prop.counts is None:
            fields.append((prop.name, order + prop.values))
        else:
            fields.append((f"{prop.name} length", order + prop.counts))
            fields.append((prop.name, order + prop.values, (remaining.pop(0),)))
    return np.dtype(fields)


def _regular_table(records: np.ndarray, element: Element) -> Table:
    """The table of records that are all equally long."""
    names = tuple(prop.name for prop in element.properties if prop.counts is None)
    lists = tuple((name, _regular_cells(records[name])) for name in element.lists)
    return Table(names, tuple(records[name] for name in names), lists)


def _regular_cells(rows: np.ndarray) -> Cells:
    return Cells(
        np.arange(len(rows) + 1, dtype=np.int64) * rows.shape[1], rows.reshape(-1).astype(np.int64)
    )


def _irregular_table(body: bytes, start: int, order: str, element: Element) -> tuple[Table, int]:
    """The table of records of several lengths, which have to be walked through one by one."""
    rows: list[list] = [[] for _ in element.properties]
    for _ in range(element.count):
        for row, prop in zip(rows, element.properties, strict=True):
            size = 1
            if prop.counts is not None:
                size = _size(body, start, order, prop.counts)
                start += np.dtype(prop.counts).itemsize
            row.append(np.frombuffer(body, order + prop.values, size, start))
            start += row[-1].nbytes
    both = list(zip(element.properties, rows, strict=True))
    plain = [(prop.name, np.concatenate(row)) for prop, row in both if prop.counts is None]
    lists = tuple((prop.name, _cells(row)) for prop, row in both if prop.counts is not None)
    return Table(
        tuple(name for name, _ in plain), tuple(column for _, column in plain), lists
    ), start


def _cells(rows: list[np.ndarray]) -> Cells:
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    return Cells(offsets.astype(np.int64), np.concatenate(rows).astype(np.int64))


def _mesh(path: Path, tables: dict[str, Table]) -> Mesh:
    if "vertex" not in tables or any(name not in tables["vertex"] for name in POSITION):
        raise FileError.at(
            path, None, "an element 'vertex' with the properties x, y and z", sorted(tables)
        )
    vertices, faces = tables["vertex"], tables.get("face", Table((), ()))
    indices = [cells for name, cells in faces.lists if name in INDICES]
    return Mesh(
        vertices.stack(POSITION),
        faces=indices[0] if indices else Cells(),
        point_data=_attributes(vertices),
        cell_data=_attributes(faces) if indices else (),
    )


def _attributes(table: Table) -> tuple[Attribute, ...]:
    """The columns other than positions; those that belong together by their names, together."""
    found: list[Attribute] = []
    taken = set(POSITION)
    colour = tuple(name for name in COLOUR if name in table)
    for name, parts, role in (
        ("Normals", NORMAL, Role.NORMALS),
        ("RGB" if len(colour) == 3 else "RGBA", colour, Role.SCALARS),
        (COVARIANCE, ENTRIES, Role.TENSORS),
    ):
        if len(parts) >= 3 and all(part in table for part in parts):
            values = table.stack(parts)
            found.append(Attribute(name, values[:, FULL] if role is Role.TENSORS else values, role))
            taken.update(parts)
    plain = (Attribute(name, _native(table[name])) for name in table.names if name not in taken)
    return (*found, *plain)


def _native(column: np.ndarray) -> np.ndarray:
    return column.astype(column.dtype.newbyteorder("="))


def _columns(attributes: tuple[Attribute, ...], before: Columns = ()) -> Columns:
    """The columns of a table that holds these attributes, after others; a name that is taken grows
    a tail.
    """
    columns = list(before)
    for attribute in attributes:
        values = attribute.columns[:, UPPER] if attribute.name == COVARIANCE else attribute.columns
        for name, column in zip(_names(attribute), values.T, strict=True):
            tail = "_" * sum(name == other.rstrip("_") for other, _ in columns)
            columns.append((name + tail, column))
    return tuple(columns)


def _names(attribute: Attribute) -> list[str]:
    width = attribute.columns.shape[1]
    if attribute.role is Role.NORMALS:
        return list(NORMAL)
    if attribute.name == COVARIANCE:
        return list(ENTRIES)
    if attribute.role is Role.SCALARS and attribute.values.dtype == np.uint8 and width in (3, 4):
        return list(COLOUR[:width])
    name = re.sub(r"\s+", "_", attribute.name)
    return [name] if attribute.values.ndim == 1 else [f"{name}_{i}" for i in range(width)]


def _records(columns: Sequence[tuple[str, np.ndarray]], count: int) -> np.ndarray:
    """The columns as records; a type that PLY lacks becomes a double."""
    codes = [column.dtype.newbyteorder("=").str[1:] for _, column in columns]
    kinds = ["<" + (code if code in NAMES else "f8") for code in codes]
    names = [name for name, _ in columns]
    records = np.empty(count, np.dtype(list(zip(names, kinds, strict=True))))
    for name, column in columns:
        records[name] = column
    return records


def _declarations(records: np.ndarray) -> list[str]:
    kinds = [(name, records.dtype[name].str[1:]) for name in records.dtype.names or ()]
    return [f"property {NAMES.get(kind, 'double')} {name}" for name, kind in kinds]


def _faces(mesh: Mesh) -> tuple[Cells, np.ndarray]:
    """The faces of a mesh and the triangles of its strips; and the cell that each was."""
    strips = _regular_cells(mesh.strips.strip_triangles())
    offsets = np.concatenate([mesh.faces.offsets, strips.offsets[1:] + mesh.faces.offsets[-1]])
    repeats = np.concatenate(
        [np.ones(len(mesh.faces), dtype=np.int64), np.maximum(mesh.strips.sizes - 2, 0)]
    )
    owners = len(mesh.vertices) + np.repeat(np.arange(len(repeats)), repeats)
    return Cells(offsets, np.concatenate([mesh.faces.connectivity, strips.connectivity])), owners


def _listed(faces: Cells, extras: np.ndarray) -> np.ndarray:
    """The bytes of the faces: of each its number of points, its points, and what else it has."""
    tails = np.frombuffer(extras.tobytes(), np.uint8).reshape(len(faces), extras.itemsize)
    heads = faces.sizes[:, None].astype(np.uint8)
    starts, ends = faces.offsets[:-1, None], faces.offsets[1:, None]
    places = 4 * np.concatenate([starts, np.repeat(ends, tails.shape[1], axis=1)], axis=1)
    points = np.frombuffer(faces.connectivity.astype("<i4").tobytes(), np.uint8)
    return np.insert(points, places.reshape(-1), np.concatenate([heads, tails], axis=1).reshape(-1))
