"""The legacy VTK format (.vtk), polygonal data only: read as text or binary, versions 1 to 5.1;
written as binary, 4.2.

Kunita reads it itself, as VTK takes a file that ends too early for a whole one and fills in
whatever is in memory, and follows a damaged list of cells out of it. It writes version 4.2, the
last that programs built on VTK 8 and earlier can read. The title, the second line, is where 3D
Slicer states the frame.
"""

import dataclasses
import re
import urllib.parse
import warnings
from pathlib import Path

import numpy as np

from kunita.data.geometry import Attribute, Cells, Mesh, Role, cells_of
from kunita.errors import FileError, KunitaWarning
from kunita.io.frames import Frame
from kunita.io.geometry_files.mesh_frames import SYMMETRIC, stated_frame, statement

TYPES = {
    "bit": "u1",
    "char": "i1",
    "signed_char": "i1",
    "unsigned_char": "u1",
    "short": "i2",
    "unsigned_short": "u2",
    "int": "i4",
    "unsigned_int": "u4",
    "vtkidtype": "i4",
    "long": "i8",
    "unsigned_long": "u8",
    "vtktypeint64": "i8",
    "vtktypeuint64": "u8",
    "float": "f4",
    "double": "f8",
}
WORDS = {
    "i1": "char",
    "u1": "unsigned_char",
    "i2": "short",
    "u2": "unsigned_short",
    "i4": "int",
    "u4": "unsigned_int",
    "i8": "vtktypeint64",
    "u8": "vtktypeuint64",
    "f4": "float",
    "f8": "double",
}
"""The word to write for each type of number; a long has eight bytes or four, as the reader's
machine has it."""

CELLS = ("VERTICES", "LINES", "POLYGONS", "TRIANGLE_STRIPS")
FIXED = {
    "VECTORS": (3, Role.VECTORS),
    "NORMALS": (3, Role.NORMALS),
    "TENSORS": (9, Role.TENSORS),
    "TENSORS6": (6, Role.TENSORS),
    "GLOBAL_IDS": (1, Role.PLAIN),
    "PEDIGREE_IDS": (1, Role.PLAIN),
    "EDGE_FLAGS": (1, Role.PLAIN),
}
"""Attributes with a fixed number of columns."""

HEADINGS = {
    Role.SCALARS: "SCALARS {name} {word} {width}\nLOOKUP_TABLE default",
    Role.VECTORS: "VECTORS {name} {word}",
    Role.NORMALS: "NORMALS {name} {word}",
    Role.TEXTURE: "TEXTURE_COORDINATES {name} {width} {word}",
    Role.TENSORS: "TENSORS {name} {word}",
    Role.PLAIN: "{name} {width} {rows} {word}",
}
"""What comes before the numbers of an attribute; plain ones are gathered in a field."""

UNQUOTED = "!#$&'()*+,/:;<=>?@[\\]^`{|}"
"""Signs that a name has as they are: all that can be printed but the quotation mark and the one
that quotes."""

OPENING = re.compile(
    rb"# vtk DataFile Version (\d+)\.\d+[^\n]*\n([^\n]*)\n\s*(ASCII|BINARY)\s+DATASET\s+(\w+)", re.I
)
LENGTH_BYTES = (8, 4, 2, 1)
"""How long the length of a binary string is, by its two first bits."""


class Cursor:
    """A place in a file, which moves on as words and numbers are read from there."""

    def __init__(self, path: Path, data: bytes, place: int, *, binary: bool) -> None:
        self.path, self.data, self.place, self.binary = path, data, place, binary

    @property
    def line(self) -> int | None:
        return None if self.binary else self.data.count(b"\n", 0, self.place) + 1

    def refusal(self, expected: str, found: object) -> FileError:
        return FileError.at(self.path, self.line, expected, found)

    def word(self) -> str:
        """The next word; an empty one at the end of the file."""
        found = re.compile(rb"\s*(\S*)").match(self.data, self.place)
        self.place = found.end() if found else len(self.data)
        return found[1].decode(errors="replace") if found else ""

    def name(self) -> str:
        return urllib.parse.unquote(self.word())

    def count(self) -> int:
        """The next word as a count, which cannot be larger than the file."""
        word = self.word()
        if not re.fullmatch(r"[0-9]{1,18}", word) or int(word) > len(self.data):
            raise self.refusal(f"a count that fits into a file of {len(self.data)} bytes", word)
        return int(word)

    def kind(self) -> str:
        word = self.word()
        if word.lower() not in (*TYPES, "string"):
            raise self.refusal("a type of number", word)
        return word.lower()

    def rest_of_line(self) -> str:
        end = self.data.find(b"\n", self.place)
        start, self.place = self.place, len(self.data) if end < 0 else end
        return self.data[start : self.place].decode(errors="replace")

    def numbers(self, count: int, kind: str) -> np.ndarray:
        """The next numbers: all of them, or none."""
        return self._binary_numbers(count, kind) if self.binary else self._text_numbers(count, kind)

    def _binary_numbers(self, count: int, kind: str) -> np.ndarray:
        self.rest_of_line()
        start, size = self.place + 1, np.dtype(TYPES[kind]).itemsize
        length = (count + 7) // 8 if kind == "bit" else count * size
        if start + length > len(self.data):
            raise self.refusal(
                f"{length} bytes of {count} numbers", f"{max(len(self.data) - start, 0)} bytes"
            )
        self.place = start + length
        if kind == "bit":
            return np.unpackbits(np.frombuffer(self.data, np.uint8, length, start), count=count)
        return np.frombuffer(self.data, f">{TYPES[kind]}", count, start).astype(TYPES[kind])

    def _text_numbers(self, count: int, kind: str) -> np.ndarray:
        pieces = self.data[self.place :].split(None, count)
        if len(pieces) < count:
            raise self.refusal(f"{count} numbers", f"{len(pieces)}, and the end of the file")
        self.place = len(self.data) - (len(pieces[count]) if len(pieces) > count else 0)
        try:
            wide = np.float64 if TYPES[kind].startswith("f") else np.int64
            return np.array(pieces[:count], dtype="S").astype(wide).astype(TYPES[kind])
        except (ValueError, OverflowError) as error:
            raise self.refusal(f"{count} numbers of type {kind}", str(error)) from error

    def strings(self, count: int) -> list[str]:
        """The next strings: lines of a text file; in a binary one, bytes after their number."""
        self.rest_of_line()
        self.place += 1
        return [self._binary_string() if self.binary else self._text_string() for _ in range(count)]

    def _text_string(self) -> str:
        text = self.rest_of_line()
        self.place += 1
        return urllib.parse.unquote(text.strip())

    def _binary_string(self) -> str:
        width = LENGTH_BYTES[self.data[self.place] >> 6] if self.place < len(self.data) else 1
        length = int.from_bytes(self.data[self.place : self.place + width], "big") % (
            1 << (8 * width - 2)
        )
        start, self.place = self.place + width, self.place + width + length
        if self.place > len(self.data):
            raise self.refusal(f"a text of {length} bytes", "the end of the file")
        return self.data[start : self.place].decode(errors="replace")

    def skip_metadata(self) -> None:
        """Metadata end with an empty line."""
        found = re.compile(rb"\n[ \t\r]*\n").search(self.data, self.place)
        self.place = found.end() if found else len(self.data)


@dataclasses.dataclass
class Contents:
    """What has been read so far."""

    points: np.ndarray | None = None
    cells: dict[str, Cells] = dataclasses.field(default_factory=dict)
    point_data: list[Attribute] = dataclasses.field(default_factory=list)
    cell_data: list[Attribute] = dataclasses.field(default_factory=list)
    space: str = ""


def read_legacy(path: Path) -> tuple[Mesh, Frame | None]:
    """The mesh in a file, in the file's frame; and that frame, if the title (or a field SPACE)
    states it.
    """
    data = path.read_bytes()
    opening = OPENING.match(data)
    if opening is None or opening[4].upper() != b"POLYDATA":
        raise FileError.at(path, None, "a VTK file with DATASET POLYDATA", data[:80])
    cursor = Cursor(path, data, opening.end(), binary=opening[3].upper() == b"BINARY")
    contents = Contents()
    while (keyword := cursor.word().upper()) not in ("POINT_DATA", "CELL_DATA", ""):
        _read_section(cursor, keyword, contents, int(opening[1]))
    while keyword:
        keyword = _read_attributes(cursor, keyword, contents)
    mesh = Mesh(
        np.zeros((0, 3)) if contents.points is None else contents.points,
        vertices=contents.cells.get("VERTICES", Cells()),
        lines=contents.cells.get("LINES", Cells()),
        faces=contents.cells.get("POLYGONS", Cells()),
        strips=contents.cells.get("TRIANGLE_STRIPS", Cells()),
        point_data=tuple(contents.point_data),
        cell_data=tuple(contents.cell_data),
    )
    return mesh, stated_frame(opening[2].decode("latin1")) or stated_frame(
        f"SPACE={contents.space}"
    )


def _read_section(cursor: Cursor, keyword: str, contents: Contents, version: int) -> None:
    """Points, cells of one kind, or numbers of the whole mesh, which are not kept."""
    if keyword == "POINTS":
        count = cursor.count()
        contents.points = cursor.numbers(3 * count, _numeric(cursor)).reshape(count, 3)
    elif keyword in CELLS:
        contents.cells[keyword] = _read_cells(cursor, version)
    elif keyword == "METADATA":
        cursor.skip_metadata()
    elif keyword == "FIELD":
        _read_field(cursor, contents)
    else:
        raise cursor.refusal("points, cells or data of VTK", keyword)


def _numeric(cursor: Cursor) -> str:
    kind = cursor.kind()
    if kind == "string":
        raise cursor.refusal("a type of number", kind)
    return kind


def _read_cells(cursor: Cursor, version: int) -> Cells:
    """Cells as offsets and point numbers (version 5), or as one list of lengths and point numbers
    (before).
    """
    count, size = cursor.count(), cursor.count()
    if version < 5:
        return _listed_cells(cursor, cursor.numbers(size, "int"), count)
    arrays = []
    for keyword, length in (("OFFSETS", count), ("CONNECTIVITY", size)):
        found = cursor.word().upper()
        if found != keyword:
            raise cursor.refusal(keyword, found)
        arrays.append(cursor.numbers(length, _numeric(cursor)).astype(np.int64))
    return Cells(*arrays) if count else Cells()


def _listed_cells(cursor: Cursor, entries: np.ndarray, count: int) -> Cells:
    size = len(entries)
    if (
        0 < count <= size
        and size % count == 0
        and np.all(entries[:: size // count] == size // count - 1)
    ):
        return cells_of(entries.reshape(count, -1)[:, 1:])
    heads, place = [], 0
    for _ in range(count):
        heads.append(place)
        if place >= size or entries[place] < 0:
            break
        place += 1 + int(entries[place])
    if place != size or len(heads) != count:
        raise cursor.refusal(
            f"a list of {count} cells in {size} numbers", "one that does not add up"
        )
    offsets = np.cumsum([0, *entries[heads]]).astype(np.int64)
    return Cells(offsets, np.delete(entries, heads).astype(np.int64))


def _read_attributes(cursor: Cursor, keyword: str, contents: Contents) -> str:
    """The data of the points or of the cells; return the keyword that comes after."""
    count = cursor.count()
    found = contents.point_data if keyword == "POINT_DATA" else contents.cell_data
    while (keyword := cursor.word().upper()) not in ("POINT_DATA", "CELL_DATA", ""):
        if keyword == "METADATA":
            cursor.skip_metadata()
        elif keyword == "FIELD":
            found.extend(_read_field(cursor, contents))
        elif keyword == "LOOKUP_TABLE":
            cursor.word()
            cursor.numbers(4 * cursor.count(), "unsigned_char" if cursor.binary else "float")
        else:
            found.append(_read_attribute(cursor, keyword, count))
    return keyword


def _read_attribute(cursor: Cursor, keyword: str, count: int) -> Attribute:
    name = cursor.name()
    if keyword == "SCALARS":
        return _read_scalars(cursor, name, count)
    if keyword == "COLOR_SCALARS":
        width = cursor.count()
        values = cursor.numbers(count * width, "unsigned_char" if cursor.binary else "float")
        colours = (
            values if cursor.binary else np.round(255 * np.clip(values, 0, 1)).astype(np.uint8)
        )
        return Attribute(name, colours.reshape(count, width), Role.SCALARS)
    if keyword == "TEXTURE_COORDINATES":
        width = cursor.count()
        return Attribute(
            name,
            cursor.numbers(count * width, _numeric(cursor)).reshape(count, width),
            Role.TEXTURE,
        )
    if keyword not in FIXED:
        raise cursor.refusal("an attribute of VTK", keyword)
    width, role = FIXED[keyword]
    values = cursor.numbers(count * width, _numeric(cursor)).reshape(count, width)
    if role is Role.TENSORS:
        return Attribute(
            name, values[:, SYMMETRIC] if width == 6 else values.reshape(count, 3, 3), role
        )
    return Attribute(name, values[:, 0] if width == 1 else values, role)


def _read_scalars(cursor: Cursor, name: str, count: int) -> Attribute:
    """Scalars have one column unless they say otherwise, and name a table of colours."""
    kind = _numeric(cursor)
    width = cursor.rest_of_line().strip() or "1"
    table = cursor.word().upper()
    if not re.fullmatch(r"[1-9][0-9]{0,2}", width) or table != "LOOKUP_TABLE":
        raise cursor.refusal("a number of columns and a LOOKUP_TABLE", f"{width} {table}")
    cursor.word()
    values = cursor.numbers(count * int(width), kind)
    return Attribute(
        name, values if width == "1" else values.reshape(count, int(width)), Role.SCALARS
    )


def _read_field(cursor: Cursor, contents: Contents) -> list[Attribute]:
    """Arrays one after the other, each with its own name, size and type."""
    cursor.word()
    found = []
    for _ in range(cursor.count()):
        name = cursor.name()
        if name.upper() == "METADATA":
            cursor.skip_metadata()
            name = cursor.name()
        width, rows, kind = cursor.count(), cursor.count(), cursor.kind()
        if kind != "string":
            values = cursor.numbers(width * rows, kind)
            found.append(Attribute(name, values if width == 1 else values.reshape(rows, width)))
            continue
        texts = cursor.strings(width * rows)
        if name == "SPACE" and texts:
            contents.space = texts[0]
        else:
            warnings.warn(
                f"{cursor.path}: the text in {name!r} is not kept", KunitaWarning, stacklevel=2
            )
    return found


def encode_legacy(mesh: Mesh, frame: Frame) -> bytes:
    """The file of a mesh whose numbers are along that frame's axes already."""
    kinds = (mesh.vertices, mesh.lines, mesh.faces, mesh.strips)
    opening = f"# vtk DataFile Version 4.2\n{statement(frame)}\nBINARY\nDATASET POLYDATA\n"
    return b"".join(
        [
            opening.encode(),
            _section(f"POINTS {len(mesh.points)} double", mesh.points),
            *(
                _cell_section(keyword, cells)
                for keyword, cells in zip(CELLS, kinds, strict=True)
                if len(cells)
            ),
            *_data_sections("CELL_DATA", sum(map(len, kinds)), mesh.cell_data),
            *_data_sections("POINT_DATA", len(mesh.points), mesh.point_data),
        ]
    )


def _section(heading: str, values: np.ndarray) -> bytes:
    return (
        heading.encode() + b"\n" + values.astype(values.dtype.newbyteorder(">")).tobytes() + b"\n"
    )


def _cell_section(keyword: str, cells: Cells) -> bytes:
    """Cells in one list: how many points each joins, then their numbers."""
    entries = np.insert(cells.connectivity, cells.offsets[:-1], cells.sizes)
    return _section(f"{keyword} {len(cells)} {len(entries)}", entries.astype(np.int32))


def _data_sections(keyword: str, rows: int, attributes: tuple[Attribute, ...]) -> list[bytes]:
    """The data of the points or of the cells: attributes that have a role, then a field of those
    that have none.
    """
    if not attributes:
        return []
    plain = [
        _attribute_section(attribute) for attribute in attributes if attribute.role is Role.PLAIN
    ]
    active = [
        _attribute_section(attribute)
        for attribute in attributes
        if attribute.role is not Role.PLAIN
    ]
    field = [f"FIELD FieldData {len(plain)}\n".encode(), *plain] if plain else []
    return [f"{keyword} {rows}\n".encode(), *active, *field]


def _attribute_section(attribute: Attribute) -> bytes:
    rows, width = attribute.columns.shape
    name = urllib.parse.quote(attribute.name, UNQUOTED, errors="surrogateescape") or "unknown"
    word = WORDS[attribute.values.dtype.str[1:]]
    return _section(
        HEADINGS[attribute.role].format(name=name, word=word, width=width, rows=rows),
        attribute.columns,
    )
