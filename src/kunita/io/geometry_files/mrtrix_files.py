"""MRtrix: streamlines (.tck) and track scalars (.tsf), two faces of one format.

Both are a text header and rows of numbers: three for each vertex, or one; a row of NaN ends a
streamline, a row of Inf the file. Coordinates are RAS+ mm. A scalar file belongs to the streamlines
with the same timestamp and count, so the two are written with one timestamp, a new one: older
scalars are not those of moved streamlines.
"""

import re
import time
from pathlib import Path

import numpy as np

from kunita.data.geometry import Streamlines, VertexValues
from kunita.errors import FileError
from kunita.io.frames import Frame
from kunita.io.geometry_files.mesh_frames import refused, settle_frame
from kunita.io.writing import complete

TRACKS, SCALARS = "mrtrix tracks", "mrtrix track scalars"
TYPES = {"Float32LE": "<f4", "Float32BE": ">f4", "Float64LE": "<f8", "Float64BE": ">f8"}
OWN = {"count", "datatype", "file", "timestamp"}
"""Keys that are about the file itself; all others are kept as notes."""


def read(path: Path, frame: Frame | None) -> Streamlines:
    """Read .tck."""
    settle_frame(path, Frame.RAS, frame)
    data = path.read_bytes()
    pairs = _read_header(path, data)
    rows = _read_rows(path, data, pairs)
    breaks = np.flatnonzero(np.isnan(rows).all(axis=1))
    if len(rows) and (not breaks.size or breaks[-1] != len(rows) - 1):
        raise FileError.at(path, None, "a row of NaN after the last streamline", rows[-1].tolist())
    lengths = np.diff(breaks, prepend=-1) - 1
    with refused(path):
        kept = tuple((key, value) for key, value in pairs if key not in OWN)
        return Streamlines(np.delete(rows, breaks, axis=0), lengths, notes=kept)


def write(
    path: Path, streamlines: Streamlines, values: VertexValues | None, *, overwrite: bool
) -> tuple[Path, ...]:
    """Write .tck, and the uncertainty, if any, as track scalars to NAME_std.tsf and
    NAME_radius95.tsf.
    """
    stamp = f"{time.time_ns() / 1e9:.10f}"
    scalars = () if values is None else (("std", values.std), ("radius95", values.radius))
    siblings = tuple(path.with_name(f"{path.stem}_{name}.tsf") for name, _ in scalars)
    with complete(path, overwrite=overwrite) as partial:
        partial.write_bytes(_file(TRACKS, stamp, streamlines, streamlines.points))
        for sibling, (_, column) in zip(siblings, scalars, strict=True):
            with complete(sibling, overwrite=overwrite) as other:
                other.write_bytes(_file(SCALARS, stamp, streamlines, column[:, None]))
    return (path, *siblings)


def _read_header(path: Path, data: bytes) -> list[tuple[str, str]]:
    """The (key, value) pairs of the header; a line without a key goes on with the one before."""
    end = re.search(rb"^END[ \t]*\r?\n", data, re.MULTILINE)
    if not data.startswith(TRACKS.encode()) or end is None:
        raise FileError.at(path, 1, f"{TRACKS!r} and a header that ends with END", data[:20])
    pairs: list[tuple[str, str]] = []
    for number, line in enumerate(
        data[: end.start()].decode(errors="replace").splitlines()[1:], start=2
    ):
        key, colon, value = line.partition(":")
        if colon:
            pairs.append((key.strip(), value.strip()))
        elif line.strip() and pairs:
            pairs.append((pairs[-1][0], line.strip()))
        elif line.strip():
            raise FileError.at(path, number, "'key: value'", line)
    return pairs


def _read_rows(path: Path, data: bytes, pairs: list[tuple[str, str]]) -> np.ndarray:
    """(r, 3) numbers up to the row of Inf, without which the file is not complete."""
    found = dict(pairs)
    kind = TYPES.get(found.get("datatype", ""))
    place = re.fullmatch(r"\.\s+(\d{1,18})", found.get("file", ""))
    if kind is None or place is None:
        expected = f"a datatype out of {', '.join(TYPES)} and 'file: . OFFSET'"
        raise FileError.at(path, None, expected, (found.get("datatype"), found.get("file")))
    body = data[int(place[1]) :]
    rows = np.frombuffer(body, kind, len(body) // np.dtype(kind).itemsize // 3 * 3).reshape(-1, 3)
    ends = np.flatnonzero(np.isinf(rows).all(axis=1))
    if not ends.size:
        raise FileError.at(
            path, None, "a row of Inf at the end; the file is not complete", f"{len(rows)} rows"
        )
    return rows[: ends[0]].astype(np.float64)


def _file(magic: str, stamp: str, streamlines: Streamlines, rows: np.ndarray) -> bytes:
    """A whole file: the header, which has to state its own length, and the rows with their breaks."""
    count = len(streamlines)
    pairs = [
        *streamlines.notes,
        ("timestamp", stamp),
        ("datatype", "Float32LE"),
        ("count", f"{count:010d}"),
    ]
    text = "\n".join([magic, *(f"{key}: {value}" for key, value in pairs), "file: . "])
    length = len(text.encode()) + len("00000000\nEND\n")
    broken = np.insert(rows, np.cumsum(streamlines.lengths), np.nan, axis=0)
    ended = np.append(broken, np.full((1, rows.shape[1]), np.inf), axis=0)
    return f"{text}{length:08d}\nEND\n".encode() + ended.astype("<f4").tobytes()
