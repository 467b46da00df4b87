"""The files in which compiled programs are kept, and what is checked before one is loaded.

A kept program is machine code inside a pickle: whoever can write its file can run code in the name
of the user who loads it. So a program is loaded only if nobody but the user can write to its folder
and its file, if the same versions of JAX wrote it, and if it is undamaged. Otherwise it is compiled
again.
"""

import contextlib
import functools
import hashlib
import json
import os
import platform
import shutil
import stat
import tempfile
import time
import warnings
from pathlib import Path

import equinox as eqx
import jax

from kunita.errors import KunitaWarning

FORGOTTEN_DAYS = 60
"""Programs of other versions are removed when none of them was used for so long."""

OFF = "KUNITA_KEEP_PROGRAMS"
"""The environment variable that, set to 0, keeps programs from being kept."""

OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH

NO_LINKS = getattr(os, "O_NOFOLLOW", 0)
"""Refuses to open a symbolic link; Windows has no such flag, and lets few users make links."""

BINARY = getattr(os, "O_BINARY", 0)
"""Leaves the ends of lines alone; only Windows needs it."""


class ProgramStore:
    """A folder with one file for each program of this version of the package on this machine.

    A file has one line of JSON, the header, with the versions that wrote it and the SHA-256 of what
    follows: the program.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, form: str) -> bytes | None:
        """The program that was kept under this name; None if there is none that can be trusted."""
        try:
            whole = _read_own_file(self._path(form))
        except OSError:
            return None
        header, _, payload = whole.partition(b"\n")
        return payload if header == _header(payload) else None

    def save(self, form: str, payload: bytes) -> None:
        """Keep a program, whole or not at all: another process may be reading or writing it."""
        # A temporary file has mode 0600. A link that has the name is replaced, not followed.
        with tempfile.NamedTemporaryFile(dir=self.folder, prefix="new-", delete=False) as partial:
            try:
                partial.write(_header(payload) + b"\n" + payload)
                partial.close()  # Windows renames no open file
                Path(partial.name).replace(self._path(form))
            except OSError:
                Path(partial.name).unlink(missing_ok=True)
                raise

    def _path(self, form: str) -> Path:
        return self.folder / hashlib.sha256(form.encode()).hexdigest()[:32]


def open_store(folder: Path) -> ProgramStore | None:
    """The programs of this version in a folder, which is made if need be, for the user alone.

    None if programs are not to be kept, or the folder cannot be made; and, with a warning, if
    anybody else can write to it.
    """
    if os.environ.get(OFF) == "0":
        return None
    version = folder / _fingerprint()
    try:
        for path in (folder, version):
            _make_private(path)
            complaint = complaint_about(path)
            if complaint is not None:
                _warn_once(complaint)
                return None
        os.utime(version)
    except OSError:
        return None
    _remove_forgotten(folder)
    return ProgramStore(version.resolve())


def complaint_about(folder: Path) -> str | None:
    """Why programs of this folder cannot be trusted, and what to do; None if they can."""
    complaint = _posix_complaint(folder) if hasattr(os, "geteuid") else _windows_complaint(folder)
    if complaint is None:
        return None
    return f"compiled programs are not kept in {folder}: {complaint}"


def _posix_complaint(folder: Path) -> str | None:
    """The folder must be the user's, and writable for nobody else.

    A folder above it must not be writable for everyone, or its entries could be exchanged, unless
    it is sticky as /tmp is. A group may write there, as is common: its members can put a folder of
    their own in place of the user's, but that one has another owner and is refused.
    """
    status = folder.stat()
    if not _is_mine(status):
        return f"it belongs to another user; delete it, or set {OFF}=0"
    if status.st_mode & OTHERS_MAY_WRITE:
        return "other users can write to it; delete it, and it is made again for you alone"
    for above in [*folder.absolute().parents, *folder.resolve().parents]:
        mode = above.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            return f"anybody can write to {above}; run chmod o-w {above}, or set {OFF}=0"
    return None


def _windows_complaint(folder: Path) -> str | None:
    """The folder must be in the user's profile, which other users cannot write to.

    Python cannot read owners and access rights there.
    """
    profile = Path.home().resolve()
    if folder.resolve().is_relative_to(profile):
        return None
    return f"it is outside your profile, {profile}; set {OFF}=0"


def _is_mine(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid()


@functools.cache
def _warn_once(message: str) -> None:
    """Warn of the same thing once in a process, whatever the caller's filters repeat."""
    warnings.warn(message, KunitaWarning, stacklevel=4)


def _make_private(folder: Path) -> None:
    """Make a folder, and those above it that are missing, for the user alone."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)


def _remove_forgotten(folder: Path) -> None:
    """Remove the programs of versions that were not used for long."""
    oldest = time.time() - FORGOTTEN_DAYS * 86_400
    with contextlib.suppress(OSError):
        for other in folder.iterdir():
            if other.stat().st_mtime < oldest:
                shutil.rmtree(other, ignore_errors=True)


def _read_own_file(path: Path) -> bytes:
    """The content of a plain file of the user's own that nobody else can write to, or `OSError`.

    What is looked at is the file that was opened, not the one that has its name a moment later.
    """
    with open(os.open(path, os.O_RDONLY | NO_LINKS | BINARY), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise PermissionError(f"{path}: not a plain file")
        if hasattr(os, "geteuid"):
            shared = status.st_mode & OTHERS_MAY_WRITE
            if shared or not _is_mine(status):
                _warn_once(
                    f"{path.parent}: other users can write to some of the compiled programs "
                    "there; they are compiled again"
                )
                raise PermissionError(f"{path}: others can write to it")
        return file.read()


def _header(payload: bytes) -> bytes:
    """The header that this process writes, and that a file must have for it to be loaded."""
    header = {**_versions(), "sha256": hashlib.sha256(payload).hexdigest()}
    return json.dumps(header).encode()


def _versions() -> dict[str, str]:
    """The versions of what a program was made by, and is run by."""
    return {
        "jax": jax.__version__,
        "jaxlib": jax.lib.__version__,
        "equinox": eqx.__version__,
        "python": platform.python_version(),
    }


@functools.cache
def _fingerprint() -> str:
    """What a program depends on besides its function and arguments: versions, settings, sources.

    The processor is part of it: a program may use instructions that another one does not have.
    """
    settings = [item for item in os.environ.items() if item[0].startswith(("JAX_", "XLA_"))]
    machine = (platform.system(), platform.machine(), os.cpu_count(), _processor())
    found = hashlib.sha256(f"{_versions()} {sorted(settings)} {machine}".encode())
    home = Path(__file__).parent.parent
    for source in sorted(home.rglob("*.py")):
        found.update(str(source.relative_to(home)).encode())
        found.update(source.read_bytes())
    return found.hexdigest()[:16]


def _processor() -> str:
    """Its model and the instructions that it knows."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    telling = {line for line in lines if line.startswith(("model name", "flags", "Features"))}
    return "".join(sorted(telling))
