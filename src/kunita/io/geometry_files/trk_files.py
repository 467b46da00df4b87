"""TrackVis streamlines (.trk), in single precision, with numbers per vertex and per streamline.

A file's points are millimetres along the voxel axes of an image, so its header holds that image's
grid; a file of the first version has no matrix from there to the world, and is refused. nibabel
knows the way through TrackVis's half-voxel shift and voxel order; the records are handled here, as
nibabel forgets streamlines without a vertex.
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from kunita.data.geometry import Attribute, Streamlines, VertexValues
from kunita.data.image import Grid
from kunita.errors import FileError
from kunita.io.frames import Frame
from kunita.io.geometry_files.mesh_frames import RADIUS, STD, refused, settle_frame
from kunita.io.writing import complete

HEADER = 1000
MOST_VOXELS = 32767
"""Along one axis: the header has 16 bits for it."""

MOST_NAMES = 10


def read(path: Path, frame: Frame | None) -> Streamlines:
    """Read .trk."""
    settle_frame(path, Frame.RAS, frame)
    data = path.read_bytes()
    header = _read_header(path, data)
    table, properties, lengths = _read_records(path, data, header)
    with refused(path):
        grid = Grid(np.maximum(header["dimensions"], 1), header["voxel_to_rasmm"])
        affine = _to_world(path, header)
        return Streamlines(
            table[:, :3] @ affine[:3, :3].T + affine[:3, 3],
            lengths,
            _named(path, header["scalar_name"], table[:, 3:], "scalars"),
            _named(path, header["property_name"], properties, "properties"),
            grid,
        )


def write(
    path: Path,
    streamlines: Streamlines,
    values: VertexValues | None,
    grid: Grid | None,
    *,
    overwrite: bool,
) -> tuple[Path, ...]:
    """Write .trk on the grid of an image in the streamlines' space, with the uncertainty as scalars
    of the vertices.
    """
    whole = _with_uncertainty(streamlines, values)
    header = _header(path, whole, grid or whole.grid)
    to_world = _to_world(path, header)
    local = np.linalg.solve(to_world[:3, :3], (whole.points - to_world[:3, 3]).T).T
    table = np.column_stack([local, *(attribute.columns for attribute in whole.point_data)])
    with complete(path, overwrite=overwrite) as partial:
        partial.write_bytes(header.tobytes() + _records(whole, table).tobytes())
    return (path,)


def _read_header(path: Path, data: bytes) -> Any:
    """The header as a record, once it is known to be one."""
    from nibabel.streamlines.trk import header_2_dtype

    if not data.startswith(b"TRACK") or len(data) < HEADER:
        raise FileError.at(path, None, f"'TRACK' and a header of {HEADER} bytes", data[:20])
    kinds = (header_2_dtype.newbyteorder("<"), header_2_dtype.newbyteorder(">"))
    records = [np.frombuffer(data, kind, 1)[0] for kind in kinds]
    fitting = [record for record in records if record["hdr_size"] == HEADER]
    if not fitting:
        raise FileError.at(
            path,
            None,
            f"a header that says that it has {HEADER} bytes",
            int(records[0]["hdr_size"]),
        )
    header = fitting[0]
    if header["version"] not in (2, 3) or header["voxel_to_rasmm"][3, 3] == 0:
        expected = "a TrackVis file of version 2 with its matrix vox_to_ras, without which its space is unknown"
        raise FileError.at(path, None, expected, f"version {header['version']}")
    return header


def _to_world(path: Path, header: Any) -> np.ndarray:
    """(4, 4) from TrackVis's millimetres to RAS+; a file that names no voxel order has TrackVis's
    default, LPS.
    """
    from nibabel.streamlines.trk import get_affine_trackvis_to_rasmm

    named = {name: header[name] for name in ("voxel_sizes", "voxel_to_rasmm", "dimensions")}
    order = bytes(header["voxel_order"]) or b"LPS"
    if not np.all(np.asarray(header["voxel_sizes"]) > 0):
        raise FileError.at(path, None, "positive voxel sizes", header["voxel_sizes"].tolist())
    try:
        return np.asarray(
            get_affine_trackvis_to_rasmm({**named, "voxel_order": order}), dtype=np.float64
        )
    except ValueError as error:
        raise FileError.at(path, None, "a voxel order such as LPS", order) from error


def _read_records(
    path: Path, data: bytes, header: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(n, 3 + s) numbers of the vertices, (k, p) properties, and (k,) lengths.

    Everything is four bytes wide: a length, the vertices with their scalars, the properties; and so
    on.
    """
    order = header.dtype["hdr_size"].str[0]
    words = np.frombuffer(data, f"{order}i4", (len(data) - HEADER) // 4, HEADER)
    width, extra = (
        3 + int(header["nb_scalars_per_point"]),
        int(header["nb_properties_per_streamline"]),
    )
    starts, lengths = _walk(path, words, width, extra, int(header["nb_streamlines"]))
    sizes = lengths * width
    places = np.arange(sizes.sum()) + np.repeat(starts + 1 - (np.cumsum(sizes) - sizes), sizes)
    numbers = words.view(f"{order}f4")
    properties = numbers[(starts + 1 + sizes)[:, None] + np.arange(extra)]
    return numbers[places].reshape(-1, width).astype(np.float64), properties, lengths


def _walk(
    path: Path, words: np.ndarray, width: int, extra: int, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Where each streamline starts and how many vertices it has; a count of 0 means that nobody
    counted.
    """
    if min(width - 3, extra, count) < 0:
        raise FileError.at(
            path, None, "numbers of scalars, properties and streamlines", (width - 3, extra, count)
        )
    starts: list[int] = []
    place = 0
    while place < len(words) and (count == 0 or len(starts) < count):
        length = int(words[place])
        after = place + 1 + length * width + extra
        if length < 0 or after > len(words):
            found = f"{length} vertices and {len(words) - place - 1} numbers"
            raise FileError.at(
                path, None, f"a complete streamline in place {len(starts) + 1}", found
            )
        starts.append(place)
        place = after
    if len(starts) < count:
        raise FileError.at(path, None, f"{count} streamlines", len(starts))
    return np.array(starts, dtype=np.int64), words[starts].astype(np.int64)


def _named(path: Path, names: np.ndarray, columns: np.ndarray, rest: str) -> tuple[Attribute, ...]:
    """Columns by their names, each of which may stand for several; what has no name is the rest."""
    found, start = [], 0
    for name, width in (_decoded(path, bytes(name)) for name in names):
        if 0 < width <= columns.shape[1] - start:
            found.append(Attribute(name, columns[:, start : start + width].astype(np.float32)))
            start += width
    unnamed = columns[:, start:].astype(np.float32)
    return (*found, *([Attribute(rest, unnamed)] if unnamed.shape[1] else []))


def _decoded(path: Path, name: bytes) -> tuple[str, int]:
    """A name, and how many columns it stands for."""
    from nibabel.streamlines.tractogram_file import HeaderError
    from nibabel.streamlines.trk import decode_value_from_name

    try:
        return decode_value_from_name(name)
    except (HeaderError, ValueError) as error:
        raise FileError.at(path, None, "the name of a scalar or property", name) from error


def _header(path: Path, streamlines: Streamlines, grid: Grid | None) -> Any:
    """The header: where the voxels of the grid are, and what each vertex and each streamline has."""
    from nibabel.orientations import aff2axcodes
    from nibabel.streamlines.trk import header_2_dtype

    if grid is None:
        raise FileError.at(
            path, None, "the grid of an image in the streamlines' space (--reference)", "none"
        )
    if grid.dimension != 3 or max(grid.shape) > MOST_VOXELS:
        raise FileError.at(
            path, None, f"a 3-D grid of at most {MOST_VOXELS} voxels along an axis", grid.shape
        )
    header = np.zeros((), header_2_dtype.newbyteorder("<"))
    header["magic_number"], header["version"], header["hdr_size"] = b"TRACK", 2, HEADER
    header["dimensions"], header["voxel_sizes"], header["voxel_to_rasmm"] = (
        grid.shape,
        grid.spacing,
        grid.affine,
    )
    header["voxel_order"] = "".join(aff2axcodes(grid.affine)).encode()
    header["scalar_name"], header["nb_scalars_per_point"] = _names(path, streamlines.point_data)
    header["property_name"], header["nb_properties_per_streamline"] = _names(
        path, streamlines.line_data
    )
    header["nb_streamlines"] = len(streamlines)
    return header[()]


def _names(path: Path, attributes: tuple[Attribute, ...]) -> tuple[list[bytes], int]:
    """Ten names, each with its number of columns where it stands for several; and how many columns
    there are.
    """
    from nibabel.streamlines.trk import encode_value_in_name

    widths = [attribute.columns.shape[1] for attribute in attributes]
    if len(attributes) > MOST_NAMES:
        raise FileError.at(
            path, None, f"at most {MOST_NAMES} arrays, as .trk has no more names", len(attributes)
        )
    try:
        names = [
            encode_value_in_name(w, attribute.name)
            for w, attribute in zip(widths, attributes, strict=True)
        ]
    except ValueError as error:
        raise FileError(f"{path}: {error}") from error
    return names + [b""] * (MOST_NAMES - len(names)), sum(widths)


def _records(streamlines: Streamlines, table: np.ndarray) -> np.ndarray:
    """Each streamline's length, its rows of the table, and its properties, as words of four bytes."""
    lengths = streamlines.lengths
    heads = lengths[:, None].astype("<i4")
    tails = np.column_stack(
        [np.zeros((len(lengths), 0)), *(a.columns for a in streamlines.line_data)]
    )
    ends = np.cumsum(lengths)[:, None] * table.shape[1]
    places = np.concatenate(
        [ends - lengths[:, None] * table.shape[1], np.repeat(ends, tails.shape[1], axis=1)], axis=1
    )
    extras = np.concatenate([heads, tails.astype("<f4").view("<i4")], axis=1)
    return np.insert(
        table.astype("<f4").reshape(-1).view("<i4"), places.reshape(-1), extras.reshape(-1)
    )


def _with_uncertainty(streamlines: Streamlines, values: VertexValues | None) -> Streamlines:
    if values is None:
        return streamlines
    kept = tuple(
        attribute for attribute in streamlines.point_data if attribute.name not in (STD, RADIUS)
    )
    new = (Attribute(STD, values.std), Attribute(RADIUS, values.radius))
    return dataclasses.replace(streamlines, point_data=kept + new)
