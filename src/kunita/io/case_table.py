"""CASES.tsv: one case of a cohort per row, as files.

Columns `case`, `moving` and `fixed`, optional `moving_image`, `fixed_image` and `labels`; others
are passed over, unless one looks like one of these misspelt. Paths are relative to the table. An
empty `fixed`, or the same as `moving`, says that `moving` holds both sides, as a two-volume tag
does. Several raters' files of one side are separated by semicolons, and pooled.
"""

import dataclasses
import difflib
import os
import warnings
from pathlib import Path

from kunita.data.case import Case
from kunita.data.landmarks import Landmarks, Pairs, match
from kunita.data.raters import doubts, far_marks, pool_raters
from kunita.errors import FileError, ImageError, KunitaWarning, LandmarkError
from kunita.io.frame_check import check_inside
from kunita.io.frames import Frame, as_frame
from kunita.io.image_files.files import read_grid, read_image
from kunita.io.landmark_files.delimited import Delimited, delimited
from kunita.io.landmark_files.files import read_tables
from kunita.io.landmark_files.table import LandmarkTable
from kunita.io.landmark_files.text import Line, read_text

NEEDED = ("case", "moving", "fixed")
IMAGES = ("moving_image", "fixed_image", "labels")

MISSPELT = 0.85
"""Names of columns that are as alike as this, from 0 to 1, are taken for the same one; `moving` and
`fixed` are not."""


@dataclasses.dataclass(frozen=True)
class CaseFiles:
    """A row of the table: the files of a case, all of which exist.

    Args:
        name: of the case.
        table, line: where it is listed, for refusals.
        moving, fixed: one file per rater; no `fixed` where each `moving` file holds both sides.
        moving_image, fixed_image: where there are any.
        labels: structures in the moving space, where there are any; named here for others to read.
    """

    name: str
    table: Path
    line: int
    moving: tuple[Path, ...]
    fixed: tuple[Path, ...]
    moving_image: Path | None = None
    fixed_image: Path | None = None
    labels: Path | None = None

    @property
    def has_images(self) -> bool:
        return self.moving_image is not None and self.fixed_image is not None


def read_cases(path: str | os.PathLike, *, frame: str | Frame | None = None) -> tuple[Case, ...]:
    """Read a cohort: the landmarks of every case, and the images of the first that has both.

    One case is looked at, all are computed with: the images of the others stay on the disk.

    Args:
        path: a table as above.
        frame: RAS, LPS or IMAGE, for landmark files that state none.
    """
    listed = read_case_table(path)
    pictured = next((files for files in listed if files.has_images), None)
    cases = tuple(read_case(files, frame=frame, images=files is pictured) for files in listed)
    for files, case in zip(listed, cases, strict=True):
        if case.dimension != cases[0].dimension:
            expected = f"{cases[0].dimension}-D landmarks, as in case {cases[0].name!r}"
            raise FileError.at(files.table, files.line, expected, f"{case.dimension}-D")
    return cases


def read_case_table(path: str | os.PathLike) -> tuple[CaseFiles, ...]:
    """Read which files a cohort consists of; refuse a table that names any that is not there."""
    place = Path(path)
    try:
        text = read_text(place)
    except FileError as error:
        raise FileError(
            str(error).replace("expected landmarks", "expected a table of cases")
        ) from error
    table = delimited(text)
    _refuse_misspelt(table)
    table.places(*NEEDED)
    if not table.rows:
        raise text.refusal(
            table.header_line, "at least one case below the header", "the end of the file"
        )
    listed = tuple(_files(table, place, k) for k in range(len(table.rows)))
    seen: set[str] = set()
    for (line, _), files in zip(table.rows, listed, strict=True):
        if files.name in seen:
            raise text.refusal(line, "a case that is not listed above", files.name)
        seen.add(files.name)
    return listed


def read_case(files: CaseFiles, *, frame: str | Frame | None = None, images: bool = False) -> Case:
    """Read the landmarks of a case, pooled over raters and paired; and its two images, if asked to."""
    try:
        pairs = _paired(files, as_frame(frame))
        if pairs.unmatched:
            some = ", ".join(pairs.unmatched[:5])
            remark = f"{files.name}: {len(pairs.unmatched)} landmarks have no partner and are not used: {some}"
            warnings.warn(remark, KunitaWarning, stacklevel=2)
        case = Case(files.name, pairs.moving, pairs.fixed)
        return _with_images(case, files) if images else case
    except (LandmarkError, ImageError) as error:
        raise FileError(f"{files.table}:{files.line}: {error}") from error


# -------------------------------------------------------------------------------------------- a row


def _refuse_misspelt(table: Delimited) -> None:
    """Refuse a column that is almost a known one which is absent: what it holds would be passed
    over in silence.
    """
    known = (*NEEDED, *IMAGES)
    absent = [name for name in known if name not in table.header]
    for name in table.header:
        meant = (
            difflib.get_close_matches(name, absent, n=1, cutoff=MISSPELT)
            if name not in known
            else []
        )
        if meant:
            raise table.text.refusal(
                table.header_line, f"a column {meant[0]!r} (did you mean that?)", name
            )


def _files(table: Delimited, place: Path, k: int) -> CaseFiles:
    """The files of a row, each of which must be there."""
    line = table.rows[k][0]
    name, moving_cell, fixed_cell = (table.column(column)[k] for column in NEEDED)
    if not name:
        raise table.text.refusal(line, "the name of a case", line.text)
    moving, fixed = (_paths(table, line, place, cell) for cell in (moving_cell, fixed_cell))
    if not moving:
        raise table.text.refusal(line, "a file of moving landmarks", line.text)
    images = [_paths(table, line, place, table.column(column)[k]) for column in IMAGES]
    for column, paths in zip(IMAGES, images, strict=True):
        if len(paths) > 1:
            raise table.text.refusal(
                line, f"one file in the column {column!r}", table.column(column)[k]
            )
    if bool(images[0]) != bool(images[1]):
        raise table.text.refusal(
            line, f"both a {IMAGES[0]} and a {IMAGES[1]}, or neither", "one of them"
        )
    only = [paths[0] if paths else None for paths in images]
    return CaseFiles(name, place, line.number, moving, () if fixed == moving else fixed, *only)


def _paths(table: Delimited, line: Line, place: Path, cell: str) -> tuple[Path, ...]:
    """The files of a cell, from the table's own folder."""
    paths = tuple(place.parent / name.strip() for name in cell.split(";") if name.strip())
    for path in paths:
        if not path.exists():
            raise table.text.refusal(line, "a file that exists (relative to the table)", str(path))
    return paths


# ---------------------------------------------------------------------------------------- landmarks


def _paired(files: CaseFiles, frame: Frame | None) -> Pairs:
    if files.fixed:
        tables = [[_only(path, frame) for path in side] for side in (files.moving, files.fixed)]
    else:
        both = [_two_volumes(path, frame) for path in files.moving]
        tables = [[volumes[k] for volumes in both] for k in (0, 1)]
    paths = (files.moving, files.fixed or files.moving)
    for side, image, found in zip(
        ("moving", "fixed"), (files.moving_image, files.fixed_image), tables, strict=True
    ):
        if image is not None:
            _check_image(files, side, image, found)
    moving, fixed = (_pooled(found, names) for found, names in zip(tables, paths, strict=True))
    return match(moving, fixed)


def _only(path: Path, frame: Frame | None) -> LandmarkTable:
    """The one set of landmarks in a file."""
    tables = [table for table in read_tables(path, frame=frame) if len(table)]
    if len(tables) != 1:
        hint = "where one file holds both sides, leave the column 'fixed' empty"
        raise FileError(f"{path}: expected one set of landmarks, found {len(tables)}; {hint}")
    return tables[0]


def _two_volumes(path: Path, frame: Frame | None) -> tuple[LandmarkTable, LandmarkTable]:
    """Both sides from one file: volume 1 is moving."""
    tables = read_tables(path, frame=frame)
    if len(tables) != 2:
        hint = "name the file of fixed landmarks in the column 'fixed'"
        raise FileError(f"{path}: expected two volumes, found {len(tables)}; {hint}")
    return tables[0], tables[1]


def _pooled(tables: list[LandmarkTable], paths: tuple[Path, ...]) -> Landmarks:
    """One rater's landmarks, or those of several with the covariances that their spread tells."""
    raters = [table.landmarks() for table in tables]
    if len(raters) == 1:
        return raters[0]
    for doubt in doubts(raters, [path.name for path in paths]):
        warnings.warn(doubt, KunitaWarning, stacklevel=2)
    far = far_marks(raters)
    if far:
        name, rater, distance = max(far, key=lambda mark: mark[2])
        worst = f"{name!r} in {paths[rater].name}, {distance:.1f} mm"
        warnings.warn(
            f"{len(far)} mark(s) far from the other raters', such as {worst}",
            KunitaWarning,
            stacklevel=2,
        )
    return pool_raters(raters)


# ------------------------------------------------------------------------------------------- images


def _check_image(files: CaseFiles, side: str, image: Path, tables: list[LandmarkTable]) -> None:
    """Refuse landmarks in a frame in which they cannot belong to their image; remark on those
    outside of it.
    """
    for table in tables:
        where = read_grid(image), side, image.name, table.frame
        remark = check_inside(table.landmarks(), *where, stated=table.stated)
        if remark:
            warnings.warn(f"{files.name}: {remark}", KunitaWarning, stacklevel=2)


def _with_images(case: Case, files: CaseFiles) -> Case:
    """The case with its images if it has both, called as their files are, or as what they are if
    that is the same.
    """
    if files.moving_image is None or files.fixed_image is None:
        return case
    names = (_stem(files.moving_image), _stem(files.fixed_image))
    return dataclasses.replace(
        case,
        moving_image=read_image(files.moving_image),
        fixed_image=read_image(files.fixed_image),
        image_names=case.image_names if names[0] == names[1] else names,
    )


def _stem(path: Path) -> str:
    """A file's name without its suffix, or without both where it is compressed; a folder's name as
    it is.
    """
    if path.is_dir():
        return path.name
    return Path(path.stem).stem if path.suffix.lower() == ".gz" else path.stem
