"""The page of a result's folder, made from its files: at the end of `kunita register`, or again by
`kunita report`.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kunita.data.image import Image, as_plane
from kunita.errors import FileError, InverseError
from kunita.io.image_files.files import read_image
from kunita.io.provenance import fingerprint, unchanged
from kunita.io.recorded_grids import recorded_grid, recorded_spacing, same_place
from kunita.io.registration_files import load
from kunita.io.result_folder import RECORD, SUMMARY, find_record
from kunita.io.summary_files import summary_document
from kunita.io.writing import write_text
from kunita.outputs.dense import Progress
from kunita.outputs.layers import Layers
from kunita.outputs.maps import maps
from kunita.outputs.summary import landmark_rows, summary
from kunita.record import Registration
from kunita.report.page import Subject, page

LAYERS = {"warped": "warped", "labels_probability": "probability", "mismatch": "mismatch"}
"""Files that the page shows, by the part before the suffix."""


def write_report(subject: Subject, path: Path, *, overwrite: bool = False) -> None:
    """Write the page, which appears under its name only when it is complete."""
    write_text(path, page(subject), overwrite=overwrite)


def read_layers(
    folder: Path,
    fixed: Image | None,
    names: Mapping[str, str] | None = None,
    moving: Image | None = None,
) -> Layers:
    """What a folder has to look at, under the usual names or others.

    Args:
        folder: of the result.
        fixed: the fixed image.
        names: in the folder, by usual name.
        moving: the moving image, where images drove the fit.
    """
    if fixed is None:
        return Layers()
    spacing = fixed.grid.spacing if fixed.grid.dimension == 2 else None  # a TIFF has none
    there = names or {file.name: file.name for file in folder.iterdir()}
    found = {
        LAYERS[usual.partition(".")[0]]: read_image(
            folder / name, spacing=spacing if name.endswith(".tif") else None
        )
        for usual, name in there.items()
        if usual.partition(".")[0] in LAYERS
        and not usual.endswith(".json")
        and (folder / name).is_file()
    }
    return Layers(fixed, moving=moving, **found)


def read_subject(
    result: Path, fixed_image: Path | None, progress: Progress
) -> tuple[Subject, tuple[str, ...]]:
    """A result as it was written; and remarks on what is no longer there."""
    record = find_record(result)
    reg, folder = load(record), record.parent
    rows = landmark_rows(reg)
    document = {**summary_document(summary(reg, rows)), **_document(record)}
    image, remarks = _fixed_image(result, document, fixed_image)
    moving, doubts = _moving_image(reg, result, document)
    remarks += doubts
    found = None
    if image is not None:
        try:
            found = maps(reg, image, progress)
        except InverseError as error:
            remarks += (f"no maps on the fixed grid: {error}",)
    document = {**document, "warnings": [*document["warnings"], *remarks]}
    names = _names(document) or {RECORD: record.name}
    layers = read_layers(folder, image, names, moving)
    return Subject(reg, rows, document, found, layers, tuple(names.items())), remarks


def _names(document: Any) -> dict[str, str]:
    """The files of a result, by their usual names."""
    names = [Path(name).name for name in document.get("files", ())]
    return document.get("file_names") or dict(zip(names, names, strict=True))


def _moving_image(
    reg: Registration, result: Path, document: Any
) -> tuple[Image | None, tuple[str, ...]]:
    """The moving image that drove a registration, if it is still what it was."""
    recorded = (document.get("inputs") or {}).get("moving_image")
    if reg.images is None or recorded is None:
        return None, ()
    if not unchanged(recorded):
        name = Path(recorded["path"]).name
        return None, (
            f"{name}, the moving image, is not where it was, or not what it was: no comparison of "
            "the images before and after",
        )
    return _read_again(result, "moving", Path(recorded["path"])), ()


def _read_again(result: Path, side: str, path: Path) -> Image:
    """An image as the registration understood it: pictures by their spacing of then, and a volume
    of one slice as a plane where planes were registered.
    """
    image = read_image(path)
    grid = recorded_grid(result, side)
    if grid is None or grid.dimension == 3:
        return image
    image = as_plane(image)
    if same_place(image.grid, grid) or image.grid.dimension == 3:
        return image
    return read_image(path, spacing=recorded_spacing(result, None, path))


def _document(record: Path) -> dict[str, Any]:
    """The summary beside a record, which may be of an earlier version and have less in it; empty if
    it is not there.
    """
    path = record.with_name(record.name.replace(RECORD, SUMMARY))
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise FileError(
            f"{path}: not a complete JSON document ({error}); register again, or remove it"
        ) from error
    if not isinstance(found, dict):
        raise FileError.at(path, None, "the summary of a registration", type(found).__name__)
    return found


def _fixed_image(
    result: Path, document: Any, given: Path | None
) -> tuple[Image | None, tuple[str, ...]]:
    """The image that was registered, if it is still what it was, or the one that is given."""
    recorded = (document.get("inputs") or {}).get("fixed_image")
    earlier = (document.get("images") or {}).get(
        "fixed"
    )  # summaries of earlier versions have no checksums
    known = recorded["path"] if recorded else earlier
    path = given or (Path(known) if known else None)
    if path is None:
        return None, ()
    if given is None and not (unchanged(recorded) if recorded else path.exists()):
        return None, (
            f"{path.name}, the fixed image, is not where it was, or not what it was: give it with --fixed-image",
        )
    image = _read_again(result, "fixed", path)
    grid = recorded_grid(result, "fixed")
    if grid is not None and not same_place(image.grid, grid):
        raise FileError(
            f"{path}: expected an image on the grid of the result's maps, found another"
        )
    if given is not None and recorded and fingerprint(given)["sha256"] != recorded["sha256"]:
        return image, (
            f"{given.name} is not the fixed image that was registered: its content is another",
        )
    return image, ()
