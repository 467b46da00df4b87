"""The folder that a registration writes: all of its files appear at once, when all are complete, or none does."""

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from kunita.errors import FileError
from kunita.io.writing import PARTIAL, refusals, sync

RECORD = "registration.h5"
SUMMARY = "summary.json"
SHARED = ("dataset_description.json", ".bidsignore")
"""Files of a whole dataset, which every registration in it may write again."""

Rename = Callable[[str], str]
"""From a file's usual name to the path, relative to the folder, where it appears."""


@contextlib.contextmanager
def result_folder(
    path: str | os.PathLike, names: Sequence[str], *, overwrite: bool, rename: Rename = lambda name: name
) -> Iterator[Path]:
    """A temporary folder inside the given one, whose files are moved to their places when the block is done.

    Until then an earlier result stays as it is; a run that is killed leaves nothing but the temporary folder, which
    the next run removes. The summary is moved last: it belongs to the files beside it. `names` are those that may be
    written: without `overwrite` none of them may exist.
    """
    target = Path(path)
    check_result(target, names, overwrite=overwrite, rename=rename)
    staging = target / f"{PARTIAL}-{os.getpid()}"
    with refusals(target):
        made = [folder for folder in (target, *target.parents) if not folder.exists()]
        staging.mkdir(parents=True)
    try:
        _clear_leftovers(target)
        with refusals(target):
            yield staging
            _publish(staging, target, rename)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        for folder in made:  # a folder made for nothing goes as it came
            with contextlib.suppress(OSError):
                folder.rmdir()


def check_result(target: Path, names: Sequence[str], *, overwrite: bool, rename: Rename = lambda name: name) -> None:
    """Refuse a folder that cannot be written to, or that has a result already, before anything is computed."""
    if target.exists() and not target.is_dir():
        raise FileError(f"{target}: expected a folder, found a file")
    nearest = next(folder for folder in (target, *target.absolute().parents) if folder.exists())
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise FileError(f"{target}: the folder {nearest} cannot be written to")
    found = [name for name in names if name not in SHARED and (target / rename(name)).exists()]
    if found and not overwrite:
        raise FileError(f"{target}: holds {rename(found[0])} already; give --overwrite to replace what is there")


def results_in(folder: Path) -> list[Path]:
    """The records of registrations in a folder; under BIDS names also deeper."""
    return sorted(path for path in folder.glob(f"**/*{RECORD}") if PARTIAL not in str(path.relative_to(folder)))


def find_record(path: str | os.PathLike) -> Path:
    """The record of the one registration in a folder, or the file itself."""
    given = Path(path)
    if given.is_file():
        return given
    found = results_in(given) if given.is_dir() else []
    if len(found) == 1:
        return found[0]
    names = ", ".join(str(record.relative_to(given)) for record in found[:5])
    raise FileError(f"{given}: expected a folder with one {RECORD}, found {names or 'none'}")


def _publish(staging: Path, target: Path, rename: Rename) -> None:
    files = sorted(staging.iterdir(), key=lambda file: file.name == SUMMARY)
    for file in files:
        sync(file)
    moves = [(file, target / rename(file.name)) for file in files]
    earlier = _earlier(target / rename(SUMMARY))
    for file, place in moves:
        place.parent.mkdir(parents=True, exist_ok=True)
        file.replace(place)
    for place in {place.parent for _, place in moves}:
        sync(place)
    for stale in earlier - {place for _, place in moves}:
        stale.unlink(missing_ok=True)


def _earlier(summary: Path) -> set[Path]:
    """The files of the result that is replaced, as its summary lists them."""
    with contextlib.suppress(ValueError, OSError, KeyError, TypeError):
        listed = json.loads(summary.read_text(encoding="utf-8"))["files"]
        return {summary.parent / Path(name).name for name in listed}
    return set()


def _clear_leftovers(target: Path) -> None:
    """Remove the temporary folders of runs that are no more."""
    for folder in target.glob(f"{PARTIAL}-*"):
        number = folder.name.rsplit("-", 1)[-1]
        if folder.is_dir() and number.isdigit() and not _alive(int(number)):
            shutil.rmtree(folder, ignore_errors=True)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
