"""The text headers of NRRD and MetaImage: what ITK does not tell about them.

ITK reads the geometry; here it is where the voxels are and how they are packed, so that their
declared size can be held against it, and the unit of length, which ITK passes over in silence.
"""

import dataclasses
import re
from pathlib import Path

from kunita.errors import FileError
from kunita.io.image_files.stored_images import DEFLATE

LONGEST = 2**20
"""Bytes of a header that are looked at."""

TEXT = 8
"""By how much numbers written as text can grow: '0 ' may be a double, and a last one may lack its
blank."""

GROWTHS = {
    "raw": 1,
    "hex": 1,
    "txt": TEXT,
    "text": TEXT,
    "ascii": TEXT,
    "gz": DEFLATE,
    "gzip": DEFLATE,
}
"""Of NRRD's encodings. It also has bzip2, which ITK cannot read."""

MILLIMETRES = {
    "mm": 1.0,
    "millimeter": 1.0,
    "millimetre": 1.0,
    "": 1.0,
    "?": 1.0,
    "???": 1.0,
    "um": 1e-3,
    "µm": 1e-3,
    "μm": 1e-3,
    "micron": 1e-3,
    "microns": 1e-3,
    "micrometer": 1e-3,
    "micrometre": 1e-3,
    "nm": 1e-6,
    "cm": 10.0,
    "m": 1e3,
    "meter": 1e3,
    "metre": 1e3,
}
"""Per unit of length, by the names it has in files; one that is not stated is a millimetre."""


@dataclasses.dataclass(frozen=True)
class TextHeader:
    """Where the voxels of a file are, in which unit its geometry is, and whether it says how it
    lies in the patient.

    Args:
        held: bytes that hold the voxels.
        growth: by how much these can grow when they are unpacked.
        millimetres: per unit of length.
        oriented: whether a frame is stated, or given by the format.
    """

    held: int
    growth: int
    millimetres: float
    oriented: bool


def read_nrrd_header(path: Path) -> TextHeader:
    """The header of an NRRD file (.nrrd), or of one whose voxels are elsewhere (.nhdr)."""
    start = _start(path)
    if not start.startswith(b"NRRD"):
        raise FileError.at(path, 1, "NRRD and a version", start[:16])
    text, blank, _ = start.replace(b"\r\n", b"\n").partition(b"\n\n")
    fields = _fields(text, r"([\w ]+): (.*)")
    encoding = fields.get("encoding", "raw").lower()
    if encoding not in GROWTHS:
        raise FileError.at(path, None, f"one of the encodings {', '.join(GROWTHS)}", encoding)
    units = re.findall(r'"([^"]*)"', fields.get("space units", fields.get("units", "")))
    return TextHeader(
        _held(path, len(text) + len(blank), fields.get("data file", fields.get("datafile"))),
        GROWTHS[encoding],
        _millimetres(path, units),
        fields.get("space", "").lower() not in ("", "3d-right-handed", "3d-left-handed"),
    )


def read_meta_header(path: Path) -> TextHeader:
    """The header of a MetaImage: voxels in the same file (.mha) or elsewhere (.mhd); its frame is
    always LPS.
    """
    start = _start(path)
    found = re.search(rb"^ElementDataFile *= *(.*?)\r?(\n|\Z)", start, re.MULTILINE)
    if not found:
        raise FileError.at(
            path, None, "a MetaImage header, which ends in ElementDataFile =", start[:16]
        )
    fields = _fields(start[: found.end()], r"(\w+) *= *(.*)")
    packed = fields.get("compresseddata", "").lower() in ("true", "1")
    as_text = fields.get("binarydata", "true").lower() in ("false", "0")
    name = fields["elementdatafile"]
    return TextHeader(
        _held(path, found.end(), None if name.upper() == "LOCAL" else name),
        DEFLATE if packed else TEXT if as_text else 1,
        _millimetres(path, [fields.get("distanceunits", "")]),
        True,
    )


def _start(path: Path) -> bytes:
    with open(path, "rb") as file:
        return file.read(LONGEST)


def _fields(text: bytes, pattern: str) -> dict[str, str]:
    """The lines of a header by the names of their fields, in lower case."""
    lines = text.decode("utf-8", "replace").splitlines()
    matches = [re.fullmatch(pattern, line.strip()) for line in lines]
    return {match[1].strip().lower(): match[2].strip() for match in matches if match}


def _held(path: Path, header: int, name: str | None) -> int:
    """Bytes left for the voxels behind the header, or in the file of that name."""
    if name is None:
        return path.stat().st_size - header
    if name.upper().startswith("LIST") or "%" in name:
        raise FileError.at(
            path, None, "voxels in one file (save the image as one .nrrd or .mha)", name
        )
    data = path.parent / name
    if not data.is_file():
        raise FileError(f"{path}: its voxels should be in {name}, which does not exist")
    return data.stat().st_size


def _millimetres(path: Path, units: list[str]) -> float:
    """The one unit of length that a header names."""
    named = {unit.strip().lower() for unit in units} - {""} or {""}
    if len(named) > 1 or not named <= MILLIMETRES.keys():
        raise FileError.at(
            path, None, "one unit of length: mm, um, nm, cm or m", ", ".join(sorted(named))
        )
    return MILLIMETRES[named.pop()]
