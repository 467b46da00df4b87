"""The doors: read and write landmark files of every format, told apart by their names and then by
their content.
"""

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kunita.data.landmarks import Landmarks
from kunita.errors import ArgumentError, FileError, KunitaWarning, LandmarkError
from kunita.io.frames import Frame, as_frame
from kunita.io.landmark_files.ants_csv import ANTS
from kunita.io.landmark_files.bigwarp import BIGWARP
from kunita.io.landmark_files.birl import BIRL
from kunita.io.landmark_files.elastix import ELASTIX, TRANSFORMIX
from kunita.io.landmark_files.fcsv import FCSV
from kunita.io.landmark_files.format import Format
from kunita.io.landmark_files.index_text import INDEX_TEXT
from kunita.io.landmark_files.mni_tag import MNI_TAG
from kunita.io.landmark_files.mrk_json import MRK_JSON
from kunita.io.landmark_files.reading import Reading
from kunita.io.landmark_files.slicer_csv import SLICER_CSV
from kunita.io.landmark_files.table import LandmarkTable
from kunita.io.landmark_files.table_csv import CSV, TSV
from kunita.io.landmark_files.text import Text, read_text
from kunita.io.landmark_files.tps import TPS
from kunita.io.writing import complete

KNOWN = (
    MRK_JSON,
    FCSV,
    MNI_TAG,
    ANTS,
    SLICER_CSV,
    BIRL,
    BIGWARP,
    CSV,
    TSV,
    TPS,
    TRANSFORMIX,
    ELASTIX,
    INDEX_TEXT,
)
"""Every format, the more particular before the more general: the first that recognises a text reads
it."""

FORMATS = tuple(kind.name for kind in KNOWN)
"""The names that `format=` takes."""


def read_landmarks(
    path: str | os.PathLike,
    *,
    frame: str | Frame | None = None,
    volume: int | None = None,
    format: str | None = None,
    spacing: Any = None,
    image: Any = None,
    index_base: int | None = None,
    axis_order: str = "xyz",
    flip: str = "",
) -> Landmarks:
    """Read one set of landmarks.

    Args:
        path: a file in one of the `FORMATS`.
        frame: RAS, LPS or IMAGE, for a file that states none; it replaces a format's default, never
            a statement.
        volume: which of several sets in the file, from 1.
        format: one of `FORMATS`; default by the name and the content.
        spacing: mm per pixel or voxel, one number or one per axis, for pixels and voxel indices;
            not used where a 2-D file says that its numbers are lengths already.
        image: an Image or a Grid that voxel indices refer to.
        index_base: the index of the first voxel; default 1 in plain text, 0 in elastix files.
        axis_order: the axes of the columns of an index file.
        flip: the axes along which indices count from the far end of the image.
    """
    tables = _read(
        path, format, Reading(frame, spacing, image, index_base, axis_order, flip), volume
    )
    filled = [table for table in tables if len(table)]
    if len(filled) > 1:
        raise FileError(
            f"{path}: the file has {len(tables)} sets of landmarks; say which with volume= (from 1)"
        )
    try:
        return filled[0].landmarks()
    except LandmarkError as error:
        raise FileError(f"{path}: {error}") from error


def read_tables(
    path: str | os.PathLike,
    *,
    frame: str | Frame | None = None,
    volume: int | None = None,
    format: str | None = None,
    spacing: Any = None,
    image: Any = None,
    index_base: int | None = None,
    axis_order: str = "xyz",
    flip: str = "",
) -> tuple[LandmarkTable, ...]:
    """Read every set of landmarks in a file: one per volume, markup or specimen; arguments as for
    `read_landmarks`.
    """
    return _read(path, format, Reading(frame, spacing, image, index_base, axis_order, flip), volume)


def write_landmarks(
    path: str | os.PathLike,
    landmarks: Landmarks | LandmarkTable | Sequence[Landmarks | LandmarkTable],
    *,
    frame: str | Frame | None = None,
    format: str | None = None,
    overwrite: bool = False,
) -> None:
    """Write landmarks to a file, which appears under its name only when it is complete.

    Args:
        path: the name, whose end gives the format if `format` does not.
        landmarks: one set, or two for a `.tag` of two volumes. A LandmarkTable keeps its
            descriptions.
        frame: RAS, LPS or IMAGE; default the usual one of the format.
        format: one of `FORMATS` that is written: mrk.json, fcsv, tag, csv, tsv, ants, birl,
            elastix.
        overwrite: whether to replace a file that exists.
    """
    place = Path(path)
    sets = (landmarks,) if isinstance(landmarks, Landmarks | LandmarkTable) else tuple(landmarks)
    tables = tuple(LandmarkTable.of(item) if isinstance(item, Landmarks) else item for item in sets)
    kind = _writable(place, format)
    _check_held(place, kind, tables)
    assert kind.render is not None  # that is what writable means
    content = kind.render(place, tables, _frame_to_write(place, kind, tables, as_frame(frame)))
    with complete(place, overwrite=overwrite) as partial:
        partial.write_text(content, encoding="utf-8", newline="\n")


def _read(
    path: str | os.PathLike, format: str | None, reading: Reading, volume: int | None
) -> tuple[LandmarkTable, ...]:
    chosen = None if format is None else _named(format)
    text = read_text(path)
    try:
        tables = (chosen or _recognised(text)).read(text, reading)
    except (
        LandmarkError
    ) as error:  # a number that was finite in the file, but no more after its spacing
        raise FileError(f"{path}: {error}") from error
    if volume is not None and not 1 <= volume <= len(tables):
        raise FileError.at(path, None, f"a volume from 1 to {len(tables)}", volume)
    tables = tables if volume is None else (tables[volume - 1],)
    if not any(table.defined.any() for table in tables):
        raise FileError.at(
            path, None, "at least one landmark", f"{sum(map(len, tables))} undefined points"
        )
    return tables


def _named(name: str) -> Format:
    for kind in KNOWN:
        if kind.name == name:
            return kind
    raise ArgumentError(f"format: expected one of {', '.join(FORMATS)}, found {name!r}")


def _by_suffix(path: Path) -> Format | None:
    name = path.name.lower()
    return next((kind for kind in KNOWN if name.endswith(kind.own_suffixes)), None)


def _recognised(text: Text) -> Format:
    found = _by_suffix(text.path) or next((kind for kind in KNOWN if kind.recognises(text)), None)
    if found is None:
        line = text.lines[0]
        hint = "a CSV begins with a line such as name,x,y,z; or say which (--format, format=)"
        known = f"landmarks in a known format ({', '.join(FORMATS)}): {hint}"
        raise text.refusal(line, known, line.text)
    return found


def _writable(path: Path, name: str | None) -> Format:
    """The format to write: the one named, or the one that the name of the file stands for."""
    written = [kind for kind in KNOWN if kind.render is not None]
    usual = {".csv": CSV, ".tsv": TSV, ".pts": ELASTIX}.get(path.suffix.lower())
    kind = (_by_suffix(path) or usual) if name is None else _named(name)
    if kind not in written:
        names = ", ".join(other.name for other in written)
        raise FileError.at(
            path, None, f"a format that Kunita writes ({names}; format=)", name or path.suffix
        )
    ends = (*kind.own_suffixes, *kind.shared_suffixes)
    if not path.name.lower().endswith(ends):
        raise FileError.at(path, None, f"a file name ending in {' or '.join(ends)}", path.name)
    return kind


def _check_held(path: Path, kind: Format, tables: tuple[LandmarkTable, ...]) -> None:
    """Refuse what would change the meaning of a file in this format; warn of what it only leaves
    out.
    """
    if not 1 <= len(tables) <= kind.volumes:
        raise FileError.at(
            path,
            None,
            f"at most {kind.volumes} set(s) of landmarks in a {kind.name} file",
            len(tables),
        )
    if len({table.dimension for table in tables}) > 1:
        raise FileError.at(
            path, None, "sets of one dimension", [table.dimension for table in tables]
        )
    if "undefined" not in kind.keeps and not all(table.defined.all() for table in tables):
        raise FileError(
            f"{path}: {kind.name} has no undefined points: write mrk.json or csv, or leave them out"
        )
    held = {field for table in tables for field in _fields_in_use(table)}
    lost = [
        field for field in ("names", "covariances", "descriptions") if field in held - kind.keeps
    ]
    if lost:
        warnings.warn(
            f"{path}: {kind.name} files hold no {' and no '.join(lost)}",
            KunitaWarning,
            stacklevel=3,
        )


def _fields_in_use(table: LandmarkTable) -> set[str]:
    used = {"names": any(table.names), "covariances": table.covariances is not None}
    return {
        field for field, here in {**used, "descriptions": any(table.descriptions)}.items() if here
    }


def _frame_to_write(
    path: Path, kind: Format, tables: tuple[LandmarkTable, ...], asked: Frame | None
) -> Frame:
    d = tables[0].dimension
    possible = [frame for frame in kind.frames if frame.dimension == d]
    if not possible:
        others = [
            k.name
            for k in KNOWN
            if k.render is not None and any(frame.dimension == d for frame in k.frames)
        ]
        raise FileError(
            f"{path}: {kind.name} does not hold {d}-D points; write {', '.join(others)}"
        )
    if asked is not None and asked not in possible:
        names = " or ".join(frame.value for frame in possible)
        raise FileError.at(
            path, None, f"the frame {names} for {d}-D points in a {kind.name} file", asked.value
        )
    return asked or possible[0]
