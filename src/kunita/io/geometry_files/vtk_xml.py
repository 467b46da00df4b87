"""The XML format of VTK (.vtp): polygonal data in one piece.

Kunita reads it itself, as VTK allocates whatever a damaged file declares, and the process ends
there: text, base64 or raw; plain, zlib or LZMA. It writes what every version of VTK reads: base64
and zlib, with sizes of 32 bits. The frame is stated in a field called SPACE, as 3D Slicer does.
"""

import base64
import binascii
import lzma
import re
import warnings
import zlib
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree

import numpy as np

from kunita.data.geometry import Attribute, Cells, Mesh, Role
from kunita.errors import FileError, InputError, KunitaWarning
from kunita.io.frames import Frame
from kunita.io.geometry_files.mesh_frames import SYMMETRIC, stated_frame

TYPES = {
    **{f"Int{8 * size}": f"i{size}" for size in (1, 2, 4, 8)},
    **{f"UInt{8 * size}": f"u{size}" for size in (1, 2, 4, 8)},
    **{f"Float{8 * size}": f"f{size}" for size in (4, 8)},
    "String": "i1",
}
NAMES = {code: name for name, code in TYPES.items() if name != "String"}
ROLES = (
    ("Scalars", Role.SCALARS),
    ("Vectors", Role.VECTORS),
    ("Normals", Role.NORMALS),
    ("TCoords", Role.TEXTURE),
    ("Tensors", Role.TENSORS),
)
ROOT = {
    "type": "PolyData",
    "version": "0.1",
    "byte_order": "LittleEndian",
    "header_type": "UInt32",
    "compressor": "vtkZLibDataCompressor",
}
"""What a file that Kunita writes says about all its arrays."""

CELLS = ("Verts", "Lines", "Polys", "Strips")
BLOCK = 2**15
"""How many bytes are compressed at a time: VTK's own choice."""

NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Signs that an XML file cannot have, not even quoted."""

APPENDED = re.compile(rb"<AppendedData\b[^>]*\bencoding\s*=\s*[\"'](raw|base64)[\"'][^>]*>\s*_")


class Arrays:
    """The arrays of one file: what its root element says about all of them, and the data appended
    to it, if any.
    """

    def __init__(self, root: ElementTree.Element, appended: bytes, *, raw: bool) -> None:
        self.order: Literal["big", "little"] = (
            "big" if root.get("byte_order") == "BigEndian" else "little"
        )
        self.word = 8 if root.get("header_type") == "UInt64" else 4
        self.compressor = root.get("compressor", "")
        self.appended, self.raw = appended, raw

    def read(self, element: ElementTree.Element) -> np.ndarray:
        """The numbers of an array, (k,) or (k, c)."""
        kind, form = TYPES[element.get("type", "")], element.get("format")
        text = "".join([element.text or "", *(child.tail or "" for child in element)])
        if form == "ascii":
            wide = np.float64 if kind.startswith("f") else np.int64
            values = np.array(text.split(), dtype="S").astype(wide).astype(kind)
        else:
            data = (
                self._appended(int(element.get("offset", "")))
                if form == "appended"
                else self._base64(text.encode())
            )
            values = np.frombuffer(data, (">" if self.order == "big" else "<") + kind).astype(kind)
        width = int(element.get("NumberOfComponents", "1"))
        return values if width == 1 else values.reshape(-1, width)

    def _appended(self, offset: int) -> bytes:
        """The data that start so many bytes after the underscore."""
        if not 0 <= offset < len(self.appended):
            raise ValueError(f"an offset of {offset} bytes into {len(self.appended)}")
        return (
            self._unpacked(self.appended[offset:])
            if self.raw
            else self._base64(self.appended[offset:])
        )

    def _base64(self, text: bytes) -> bytes:
        """Text as bytes; it may be two texts, the first for the sizes of what comes in the second."""
        text = text.strip()
        start = binascii.a2b_base64(text[: 4 * self.word])
        sizes = self._size_bytes(start)
        length = -(-sizes // 3) * 4
        if b"=" not in text[:length]:
            return self._unpacked(binascii.a2b_base64(_one_text(text)))
        return self._unpacked(
            binascii.a2b_base64(text[:length]) + binascii.a2b_base64(_one_text(text[length:]))
        )

    def _integers(self, data: bytes) -> list[int]:
        return [
            int.from_bytes(data[i : i + self.word], self.order)
            for i in range(0, len(data), self.word)
        ]

    def _size_bytes(self, data: bytes) -> int:
        """How many bytes say how long the data are: one word, or three and one for each compressed
        block.
        """
        blocks = int.from_bytes(data[: self.word], self.order)
        return self.word * (3 + blocks) if self.compressor else self.word

    def _unpacked(self, data: bytes) -> bytes:
        """The data that follow their own sizes."""
        start = self._size_bytes(data)
        if start > len(data):
            raise ValueError(f"{start} bytes of sizes in {len(data)} bytes")
        sizes = self._integers(data[:start])
        if not self.compressor:
            return _piece(data, start, sizes[0])
        blocks, size, last = sizes[:3]
        places = start + np.cumsum([0, *sizes[3:]], dtype=object)
        parts = [
            self._inflated(_piece(data, int(p), n), size)
            for p, n in zip(places, sizes[3:], strict=False)
        ]
        if sum(map(len, parts)) != (size * blocks if not last else size * (blocks - 1) + last):
            raise ValueError("a compressed block that is too short")
        return b"".join(parts)

    def _inflated(self, block: bytes, size: int) -> bytes:
        """A compressed block, of which no more than its size is unpacked."""
        if self.compressor == "vtkZLibDataCompressor":
            return zlib.decompressobj().decompress(block, size + 1)
        if self.compressor == "vtkLZMADataCompressor":
            return lzma.LZMADecompressor().decompress(block, size + 1)
        raise ValueError(
            f"compressed with {self.compressor}, which is not read here: save it with zlib instead"
        )


def read_xml(path: Path) -> tuple[Mesh, Frame | None]:
    """The mesh in a file, in the file's frame; and that frame, if the file states it."""
    data = path.read_bytes()
    appended = APPENDED.search(data)
    text = data if appended is None else data[: appended.start()] + b"</VTKFile>"
    if b"<VTKFile" not in data[:2000] or b"<!ENTITY" in text:
        raise FileError.at(path, None, "a VTK XML file of type PolyData", data[:60])
    try:
        root = ElementTree.fromstring(text)
        raw = appended is not None and appended[1] == b"raw"
        arrays = Arrays(root, b"" if appended is None else data[appended.end() :], raw=raw)
        if root.get("type") != "PolyData":
            raise FileError.at(path, None, "a VTK XML file of type PolyData", root.get("type"))
        return _mesh(path, root, arrays), _space(root, arrays)
    except InputError:
        raise
    except (
        ElementTree.ParseError,
        ValueError,
        KeyError,
        OverflowError,
        zlib.error,
        lzma.LZMAError,
    ) as error:
        raise FileError(
            f"{path}: not a complete VTK XML file ({type(error).__name__}: {error!s:.120})"
        ) from error


def _one_text(text: bytes) -> bytes:
    """What belongs to one base64 text: everything up to its padding, or up to the end of the
    element.
    """
    found = re.match(rb"[A-Za-z0-9+/\s]*={0,2}", text)
    return found[0] if found else b""


def _piece(data: bytes, start: int, length: int) -> bytes:
    if start + length > len(data):
        raise ValueError(f"{length} bytes, of which {max(len(data) - start, 0)} are there")
    return data[start : start + length]


def _mesh(path: Path, root: ElementTree.Element, arrays: Arrays) -> Mesh:
    pieces = root.findall("PolyData/Piece")
    if len(pieces) != 1:
        raise FileError.at(path, None, "polygonal data in one piece", f"{len(pieces)} pieces")
    points = pieces[0].findall("Points/DataArray")
    mesh = Mesh(
        arrays.read(points[0]).reshape(-1, 3) if points else np.zeros((0, 3)),
        vertices=_cells(pieces[0], "Verts", arrays),
        lines=_cells(pieces[0], "Lines", arrays),
        faces=_cells(pieces[0], "Polys", arrays),
        strips=_cells(pieces[0], "Strips", arrays),
        point_data=_attributes(path, pieces[0].find("PointData"), arrays),
        cell_data=_attributes(path, pieces[0].find("CellData"), arrays),
    )
    for name, count in (
        ("Points", len(mesh.points)),
        ("Polys", len(mesh.faces)),
        ("Lines", len(mesh.lines)),
    ):
        if pieces[0].get(f"NumberOf{name}", str(count)).strip() != str(count):
            raise FileError.at(
                path, None, f"NumberOf{name}={pieces[0].get(f'NumberOf{name}')}", count
            )
    return mesh


def _cells(piece: ElementTree.Element, kind: str, arrays: Arrays) -> Cells:
    """Cells of one kind; the file has where each ends, but not the 0 where the first starts."""
    found = {element.get("Name"): element for element in piece.findall(f"{kind}/DataArray")}
    if not found or piece.get(f"NumberOf{kind}", "").strip() == "0":
        return Cells()
    ends, connectivity = (
        arrays.read(found[name]).reshape(-1).astype(np.int64)
        for name in ("offsets", "connectivity")
    )
    return Cells(np.concatenate([[0], ends]).astype(np.int64), connectivity)


def _attributes(
    path: Path, data: ElementTree.Element | None, arrays: Arrays
) -> tuple[Attribute, ...]:
    if data is None:
        return ()
    roles = {data.get(key): role for key, role in ROLES if data.get(key)}
    for element in data.findall("Array"):
        warnings.warn(
            f"{path}: the text in {element.get('Name')!r} is not kept", KunitaWarning, stacklevel=2
        )
    return tuple(_attribute(element, roles, arrays) for element in data.findall("DataArray"))


def _attribute(
    element: ElementTree.Element, roles: dict[str | None, Role], arrays: Arrays
) -> Attribute:
    name, values = element.get("Name", ""), arrays.read(element)
    role = roles.get(name, Role.PLAIN)
    if role is Role.TENSORS:
        full = values[:, SYMMETRIC] if values.shape[-1] == 6 else values.reshape(-1, 3, 3)
        return Attribute(name, full, role)
    if role in (Role.VECTORS, Role.NORMALS):
        return Attribute(name, values.reshape(-1, 3), role)
    return Attribute(name, values, role)


def _space(root: ElementTree.Element, arrays: Arrays) -> Frame | None:
    """The frame in the field SPACE, a text of numbers that ends with 0."""
    for element in root.findall("PolyData/FieldData/Array"):
        if element.get("Name") == "SPACE":
            letters = bytes(arrays.read(element).astype(np.uint8)).split(b"\0")[0]
            return stated_frame(f"SPACE={letters.decode('latin1').strip()}")
    return None


def encode_xml(mesh: Mesh, frame: Frame) -> bytes:
    """The file of a mesh whose numbers are along that frame's axes already."""
    root = _parent(
        "VTKFile",
        _parent("PolyData", _parent("FieldData", _space_element(frame)), _piece_element(mesh)),
    )
    root.attrib.update(ROOT)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)


def _parent(tag: str, *children: ElementTree.Element) -> ElementTree.Element:
    element = ElementTree.Element(tag)
    element.extend(children)
    return element


def _space_element(frame: Frame) -> ElementTree.Element:
    element = ElementTree.Element(
        "Array", type="String", Name="SPACE", NumberOfTuples="1", format="binary"
    )
    element.text = _packed(frame.value.encode() + b"\0")
    return element


def _piece_element(mesh: Mesh) -> ElementTree.Element:
    kinds = tuple(zip(CELLS, (mesh.vertices, mesh.lines, mesh.faces, mesh.strips), strict=True))
    piece = _parent(
        "Piece",
        _data_element("PointData", mesh.point_data),
        _data_element("CellData", mesh.cell_data),
        _parent("Points", _array_element("Points", mesh.points)),
        *(_cell_element(kind, cells) for kind, cells in kinds),
    )
    piece.set("NumberOfPoints", str(len(mesh.points)))
    for kind, cells in kinds:
        piece.set(f"NumberOf{kind}", str(len(cells)))
    return piece


def _cell_element(kind: str, cells: Cells) -> ElementTree.Element:
    """Cells of one kind, with where each ends but not the 0 where the first starts."""
    connectivity = _array_element("connectivity", cells.connectivity)
    return _parent(kind, connectivity, _array_element("offsets", cells.offsets[1:]))


def _data_element(tag: str, attributes: tuple[Attribute, ...]) -> ElementTree.Element:
    """The data of the points or of the cells, and which of them has which role."""
    element = _parent(
        tag, *(_array_element(attribute.name, attribute.columns) for attribute in attributes)
    )
    keys = {role: key for key, role in ROLES}
    for attribute in attributes:
        if attribute.role in keys:
            element.set(keys[attribute.role], _legal(attribute.name))
    return element


def _array_element(name: str, values: np.ndarray) -> ElementTree.Element:
    kind, width = NAMES[values.dtype.str[1:]], values.shape[1] if values.ndim == 2 else 1
    element = ElementTree.Element(
        "DataArray", type=kind, Name=_legal(name), NumberOfComponents=str(width)
    )
    element.set("format", "binary")
    element.text = _packed(values.astype(values.dtype.newbyteorder("<")).tobytes())
    return element


def _legal(name: str) -> str:
    return NOT_XML.sub("_", name)


def _packed(data: bytes) -> str:
    """Two texts of base64: sizes, then the compressed blocks.

    The sizes are the number of blocks, the bytes of each and of a shorter last one, and of each
    when compressed.
    """
    blocks = [zlib.compress(data[start : start + BLOCK]) for start in range(0, len(data), BLOCK)]
    sizes = np.array([len(blocks), BLOCK, len(data) % BLOCK, *map(len, blocks)], dtype="<u4")
    return (base64.b64encode(sizes.tobytes()) + base64.b64encode(b"".join(blocks))).decode()
