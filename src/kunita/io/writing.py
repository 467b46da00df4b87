"""Files that appear under their final name only when they are complete."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from kunita.errors import FileError

PARTIAL = ".kunita-partial"


@contextlib.contextmanager
def complete(path: str | os.PathLike, *, overwrite: bool = False) -> Iterator[Path]:
    """A temporary path in the same folder, with the same suffixes: synced and renamed to `path`
    when the block is done.

    Whatever goes wrong, `path` keeps what it held before, and a refusal is one line.
    """
    target = Path(path)
    check_writable(target, overwrite=overwrite)
    partial = target.with_name(f"{PARTIAL}-{os.getpid()}-{target.name}")
    try:
        with refusals(target):
            yield partial
            sync(partial)
            partial.replace(target)
            sync(target.parent)
    finally:
        partial.unlink(missing_ok=True)


def write_text(path: str | os.PathLike, text: str, *, overwrite: bool = False) -> None:
    """Write a text as UTF-8; what is no letter (half of one, from a broken file) is marked."""
    with complete(path, overwrite=overwrite) as partial:
        partial.write_bytes(text.encode("utf-8", "replace"))


def check_writable(target: Path, *, overwrite: bool) -> None:
    """Refuse a place where nothing can be written, before anything is computed."""
    if target.exists() and not overwrite:
        raise FileError(
            f"{target}: the file exists; give --overwrite (overwrite=True) to replace it"
        )
    if target.is_dir():
        raise FileError(f"{target}: expected a file, found a directory")
    if not target.parent.is_dir():
        raise FileError(f"{target}: the folder {target.parent} does not exist")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise FileError(f"{target}: the folder {target.parent} cannot be written to")


@contextlib.contextmanager
def refusals(target: str | os.PathLike) -> Iterator[None]:
    """Turn what the operating system or a library says about a file into one line that names it."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        said = error.strerror or str(error).partition("\n")[0] or type(error).__name__
        reason = "the disk is full (nothing was changed)" if full else said
        raise FileError(f"{target}: cannot be written: {reason}") from error


def sync(path: Path) -> None:
    """Wait until a file, or (where there is such a thing) a folder's list of files, is on the disk."""
    if os.name == "nt" and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
