"""The folder that a registration writes: all of its files appear at once, when all are complete, or none does."""

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

from kunita.errors import FileError
from kunita.io.writing import PARTIAL, refusals, sync

RECORD = "registration.h5"
SUMMARY = "summary.json"
SHARED = ("dataset_description.json", ".bidsignore")
"""Files of a whole dataset: the first registration in it writes them, the others leave them."""

NEW, READY, COMPLETE, LOCK, TARGET = "new", "ready", "complete", "lock", "target"
"""In the temporary folder: files in the making, then under their final names, then complete."""

Rename = Callable[[str], str]
"""From a file's usual name to the path, relative to the folder, where it appears."""


@contextlib.contextmanager
def result_folder(
    path: str | os.PathLike, names: Sequence[str], *, overwrite: bool, rename: Rename = lambda name: name
) -> Iterator[Path]:
    """A temporary folder inside the given one, whose files are moved to their places when the block is done.

    A run that is killed before that leaves an earlier result as it is, and the temporary folder, which the next run
    removes. Several files cannot be moved at once: so first one rename declares them complete, and if a run is killed
    while they are moved, whoever next reads the result or writes to it moves the rest (see `settle`). `names` are the
    files that may be written: without `overwrite` none of them may exist.
    """
    target = Path(path)
    check_result(target, names, overwrite=overwrite, rename=rename)
    home = (target / rename(RECORD)).parent
    made = [folder for folder in (home, *home.parents) if not folder.exists()]
    try:
        with refusals(target):
            home.mkdir(parents=True, exist_ok=True)
            settle(home)
            with _staging(home) as staging, _named(staging / NEW, target):
                yield staging / NEW
                _declare_complete(staging, target, rename)
                _move(staging, target)
    finally:
        for folder in made:  # a folder made for nothing goes as it came
            with contextlib.suppress(OSError):
                folder.rmdir()


def check_result(target: Path, names: Sequence[str], *, overwrite: bool, rename: Rename = lambda name: name) -> None:
    """Refuse a folder that cannot be written to, or that has a result already, before anything is computed."""
    if target.exists() and not target.is_dir():
        raise FileError(f"{target}: expected a folder, found a file")
    nearest = next(folder for folder in (target, *target.absolute().parents) if folder.exists())
    if not nearest.is_dir():
        raise FileError(f"{target}: expected a folder, and {nearest} is a file")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise FileError(f"{target}: the folder {nearest} cannot be written to")
    found = [name for name in names if name not in SHARED and (target / rename(name)).exists()]
    if found and not overwrite:
        raise FileError(f"{target}: holds {rename(found[0])} already; give --overwrite to replace what is there")


def results_in(folder: Path) -> list[Path]:
    """The records of registrations in a folder; under BIDS names also deeper."""
    return sorted(path for path in folder.glob(f"**/*{RECORD}") if PARTIAL not in str(path.relative_to(folder)))


def find_record(path: str | os.PathLike) -> Path:
    """The record of the one registration in a folder, or the file itself; an interrupted change of it is finished."""
    given = Path(path)
    if given.exists():
        with refusals(given):
            settle(given if given.is_dir() else given.parent)
    if given.is_file():
        return given
    found = results_in(given) if given.is_dir() else []
    if len(found) == 1:
        return found[0]
    names = ", ".join(str(record.relative_to(given)) for record in found[:5])
    raise FileError(f"{given}: expected a folder with one {RECORD}, found {names or 'none'}")


def settle(folder: Path) -> None:
    """Finish what runs that are no more left here: complete results are moved to their places, the rest is removed."""
    for staging in folder.glob(f"**/{PARTIAL}-*/"):
        with _abandoned(staging) as abandoned:
            if abandoned:
                where = staging / TARGET
                if (staging / COMPLETE).is_dir():
                    _move(staging, staging.parent / where.read_text(encoding="utf-8"))
                shutil.rmtree(staging, ignore_errors=True)


@contextlib.contextmanager
def _staging(home: Path) -> Iterator[Path]:
    """A new temporary folder, locked as long as this process is at work on it, however that ends."""
    staging = Path(tempfile.mkdtemp(prefix=f"{PARTIAL}-", dir=home))
    try:
        with (staging / LOCK).open("w") as lock:
            with contextlib.suppress(OSError):  # a system without locks: then leftovers stay
                _lock(lock)
            (staging / NEW).mkdir()
            yield staging
    finally:
        if not any((staging / COMPLETE).rglob("*.*")):  # complete but not yet all moved: `settle` will
            shutil.rmtree(staging, ignore_errors=True)


@contextlib.contextmanager
def _abandoned(staging: Path) -> Iterator[bool]:
    """Whether nobody is at work on a temporary folder; held locked meanwhile, so that only one tidies it up."""
    with contextlib.ExitStack() as stack:
        try:
            lock = stack.enter_context((staging / LOCK).open("r+"))
            _lock(lock)
        except FileNotFoundError:  # killed before it had a lock, or done this moment
            yield True
        except OSError:
            yield False
        else:
            yield True


def _lock(file: IO[str]) -> None:
    """Lock a file until it is closed, or refuse at once."""
    try:
        import fcntl
    except ImportError as error:
        raise OSError("this system has no such locks") from error
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextlib.contextmanager
def _named(staging: Path, target: Path) -> Iterator[None]:
    """Let refusals speak of the folder that the user knows."""
    try:
        yield
    except FileError as error:
        raise FileError(str(error).replace(str(staging), str(target))) from error


def _declare_complete(staging: Path, target: Path, rename: Rename) -> None:
    """Put the files under their final names in a tree of their own; its last rename is the moment of the change."""
    ready = staging / READY
    ready.mkdir()
    for file in (staging / NEW).iterdir():
        if file.name in SHARED and (target / file.name).exists():
            continue
        place = ready / rename(file.name)
        place.parent.mkdir(parents=True, exist_ok=True)
        sync(file)
        file.replace(place)
    (staging / TARGET).write_text(os.path.relpath(target, staging.parent), encoding="utf-8")
    for folder in (staging / TARGET, *(place for place in ready.rglob("*") if place.is_dir()), ready, staging):
        sync(folder)
    ready.rename(staging / COMPLETE)
    sync(staging)


def _move(staging: Path, target: Path) -> None:
    """Move complete files to their places, the summary last; after a kill it goes on where it ended."""
    complete = staging / COMPLETE
    files = [file for file in complete.rglob("*") if file.is_file()]
    for file in sorted(files, key=lambda file: file.name.endswith(SUMMARY)):
        place = target / file.relative_to(complete)
        if file.name.endswith(SUMMARY):
            for stale in _listed(place) - _listed(file, place.parent):
                stale.unlink(missing_ok=True)
        place.parent.mkdir(parents=True, exist_ok=True)
        file.replace(place)
    for folder in {(target / file.relative_to(complete)).parent for file in files}:
        sync(folder)


def _listed(summary: Path, folder: Path | None = None) -> set[Path]:
    """The files of a result, as its summary lists them."""
    with contextlib.suppress(ValueError, OSError, KeyError, TypeError):
        listed = json.loads(summary.read_text(encoding="utf-8"))["files"]
        return {(folder or summary.parent) / Path(name).name for name in listed}
    return set()
