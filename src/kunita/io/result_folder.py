"""The folder that a registration writes: all of its files appear at once, when all are complete, or
none does.
"""

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
REPORT = "report.html"
SHARED = ("dataset_description.json", ".bidsignore")
"""Files of a whole dataset: the first registration in it writes them, the others leave them."""

NEW, READY, COMPLETE, LOCK, TARGET = "new", "ready", "complete", "lock", "target"
"""In the temporary folder: files in the making, then under their final names, then complete."""

BELOW = ("xfm", "sub-*/xfm")
"""Where results under BIDS names are, below a subject's folder and below the root of a dataset."""

Rename = Callable[[str], str]
"""From a file's usual name to the path, relative to the folder, where it appears."""


class NoLocksError(OSError):
    """The system, or the file system, has no locks: then what a killed run left stays."""


@contextlib.contextmanager
def result_folder(
    path: str | os.PathLike,
    names: Sequence[str],
    *,
    overwrite: bool,
    rename: Rename = lambda name: name,
) -> Iterator[Path]:
    """A temporary folder inside the given one, whose files are moved to their places when the block
    is done.

    A run that is killed before that leaves an earlier result as it is, and the temporary folder,
    which the next run removes. Several files cannot be moved at once: so first one rename declares
    them complete, and if a run is killed while they are moved, whoever next reads the result or
    writes to it moves the rest (see `settle`). `names` are the files that may be written: without
    `overwrite` none of them may exist.
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
                check_result(
                    target, names, overwrite=overwrite, rename=rename
                )  # another run may have been faster
                _declare_complete(staging, target, rename)
                _move(staging, target)
    finally:
        for folder in made:  # a folder made for nothing goes as it came
            with contextlib.suppress(OSError):
                folder.rmdir()


def check_result(
    target: Path, names: Sequence[str], *, overwrite: bool, rename: Rename = lambda name: name
) -> None:
    """Refuse a folder that cannot be written to, or that has a result already, before anything is
    computed.
    """
    if target.exists() and not target.is_dir():
        raise FileError(f"{target}: expected a folder, found a file")
    nearest = next(folder for folder in (target, *target.absolute().parents) if folder.exists())
    if not nearest.is_dir():
        raise FileError(f"{target}: expected a folder, and {nearest} is a file")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise FileError(f"{target}: the folder {nearest} cannot be written to")
    found = [name for name in names if name not in SHARED and (target / rename(name)).exists()]
    if found and not overwrite:
        raise FileError(
            f"{target}: holds {rename(found[0])} already; give --overwrite to replace what is there"
        )


def results_in(folder: Path) -> list[Path]:
    """The records of registrations in a folder, and in the folders of BIDS below it; no other is
    entered.
    """
    found = (record for home in _homes(folder) for record in home.glob(f"*{RECORD}"))
    return sorted(record for record in found if not record.name.startswith(PARTIAL))


def find_record(path: str | os.PathLike) -> Path:
    """The record of the one registration in a folder, or the file itself; an interrupted change of
    it is finished.
    """
    given = Path(path)
    if given.exists():
        with refusals(given):
            for home in _homes(given) if given.is_dir() else (given.parent,):
                settle(home)
    if given.is_file():
        return given
    found = results_in(given) if given.is_dir() else []
    if len(found) == 1:
        return found[0]
    names = ", ".join(str(record.relative_to(given)) for record in found[:5])
    raise FileError(f"{given}: expected a folder with one {RECORD}, found {names or 'none'}")


def settle(home: Path) -> None:
    """Finish what runs that are no more left here: complete results are moved to their places, the
    rest is removed.
    """
    for staging in home.glob(f"{PARTIAL}-*/"):
        with _abandoned(staging) as abandoned:
            if abandoned:
                if _files(staging / COMPLETE):
                    _move(staging, home / (staging / TARGET).read_text(encoding="utf-8"))
                _clear(staging)
        if abandoned:
            _remove(staging)


def _homes(folder: Path) -> tuple[Path, ...]:
    """The folders that can hold a result, in a folder that the user gave: it could be a whole home."""
    return (
        folder,
        *(home for pattern in BELOW for home in sorted(folder.glob(pattern)) if home.is_dir()),
    )


@contextlib.contextmanager
def _staging(home: Path) -> Iterator[Path]:
    """A new temporary folder, locked as long as this process is at work on it, however that ends."""
    staging, lock = _claim(home)
    try:
        with lock:
            try:
                (staging / NEW).mkdir()
                yield staging
            finally:
                if not _files(staging / COMPLETE):  # else `settle` will move the rest
                    _clear(staging)
    finally:
        _remove(staging)


def _claim(home: Path) -> tuple[Path, contextlib.AbstractContextManager[object]]:
    """A new temporary folder, and its lock.

    Until it is locked, another run may take it for abandoned. Both then reach for the same lock,
    and only one gets it: if that is the other, which removes the folder, this one begins again.
    """
    while True:
        staging = Path(tempfile.mkdtemp(prefix=f"{PARTIAL}-", dir=home))
        try:
            return staging, _locked(staging)
        except (BlockingIOError, FileNotFoundError):
            continue
        except NoLocksError:
            return staging, contextlib.nullcontext()
        except OSError:
            _remove(staging)
            raise


@contextlib.contextmanager
def _abandoned(staging: Path) -> Iterator[bool]:
    """Whether nobody is at work on a temporary folder; held locked meanwhile, so that only one
    tidies it up.
    """
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(_locked(staging))
        except OSError:  # somebody is, or it has just gone, or is not ours, or there are no locks
            yield False
        else:
            yield True


def _locked(staging: Path) -> IO[str]:
    """The lock of a temporary folder, made if need be, and held until it is closed; refused at once
    if another has it.

    Who held it before may have removed it meanwhile: a lock on a file that is no longer there holds
    nothing.
    """
    path = staging / LOCK
    with contextlib.ExitStack() as stack:
        lock = stack.enter_context(path.open("a"))
        _lock(lock)
        if not os.path.samestat(os.fstat(lock.fileno()), path.stat()):
            raise FileNotFoundError(f"{path}: removed while it was locked")
        stack.pop_all()
    return lock


def _lock(file: IO[str]) -> None:
    """Lock a file until it is closed, or refuse at once."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except (ImportError, OSError) as error:
        raise NoLocksError("this system has no such locks") from error


def _clear(staging: Path) -> None:
    """Empty a temporary folder while its lock is held; that goes last, so that its next holder
    finds nothing to do.
    """
    for part in (COMPLETE, READY, NEW):
        shutil.rmtree(staging / part, ignore_errors=True)
    with contextlib.suppress(OSError):
        for name in (TARGET, LOCK):
            (staging / name).unlink(missing_ok=True)


def _remove(staging: Path) -> None:
    """Remove a temporary folder if it is empty, once its lock is closed: network drives keep open
    files till then.
    """
    with contextlib.suppress(OSError):
        staging.rmdir()


@contextlib.contextmanager
def _named(staging: Path, target: Path) -> Iterator[None]:
    """Let refusals speak of the folder that the user knows."""
    try:
        yield
    except FileError as error:
        raise FileError(str(error).replace(str(staging), str(target))) from error


def _declare_complete(staging: Path, target: Path, rename: Rename) -> None:
    """Put the files under their final names in a tree of their own; its last rename is the moment
    of the change.
    """
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
    for folder in (
        staging / TARGET,
        *(place for place in ready.rglob("*") if place.is_dir()),
        ready,
        staging,
    ):
        sync(folder)
    ready.rename(staging / COMPLETE)
    sync(staging)


def _move(staging: Path, target: Path) -> None:
    """Move complete files to their places, the summary last; after a kill it goes on where it
    ended.
    """
    complete = staging / COMPLETE
    files = _files(complete)
    for file in sorted(files, key=lambda file: file.name.endswith(SUMMARY)):
        place = target / file.relative_to(complete)
        if file.name.endswith(SUMMARY):
            for stale in _listed(place) - _listed(file, place.parent):
                stale.unlink(missing_ok=True)
        place.parent.mkdir(parents=True, exist_ok=True)
        file.replace(place)
    for folder in {(target / file.relative_to(complete)).parent for file in files}:
        sync(folder)


def _files(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*") if file.is_file()]


def _listed(summary: Path, folder: Path | None = None) -> set[Path]:
    """The files of a result, as its summary lists them."""
    with contextlib.suppress(ValueError, OSError, KeyError, TypeError):
        listed = json.loads(summary.read_text(encoding="utf-8"))["files"]
        return {(folder or summary.parent) / Path(name).name for name in listed}
    return set()
