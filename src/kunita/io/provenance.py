"""Where a result comes from: the files that went in, with their checksums, and the programs that
were at work.
"""

import datetime
import hashlib
import importlib.metadata
import os
import platform
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import kunita

BESIDE = {
    ".mhd": (".raw", ".zraw"),
    ".nhdr": (".raw", ".raw.gz", ".gz"),
    ".hdr": (".img", ".img.gz"),
    ".img": (".hdr",),
}
"""Images in two files: by the suffix of the one that is named, those of the other."""

LIBRARIES = ("jax", "jaxlib", "numpy", "scipy", "nibabel", "SimpleITK")


def provenance(inputs: Mapping[str, Path | None], command: str | None) -> dict[str, Any]:
    """What a summary says of its origin."""
    return {
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": command and _readable(command),
        "inputs": {role: fingerprint(path) for role, path in inputs.items() if path is not None},
        "software": software(),
    }


def software() -> dict[str, str]:
    """The versions of everything that computes."""
    found = {"kunita": kunita.__version__, "python": platform.python_version()}
    return {**found, **{name: importlib.metadata.version(name) for name in LIBRARIES}}


def fingerprint(path: Path) -> dict[str, Any]:
    """A file's place, size and SHA-256; of a folder (a DICOM series) that of its files' names and
    contents in turn.

    Of an image in two files that of both contents, the named file's first.
    """
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.is_file())
    else:
        others = (path.with_suffix(suffix) for suffix in BESIDE.get(path.suffix.lower(), ()))
        files = [path, *(other for other in others if other.is_file())]
    return {
        "path": _readable(str(path.absolute())),
        "bytes": sum(file.stat().st_size for file in files),
        "sha256": _digest(files, with_names=path.is_dir()),
    }


def _readable(text: str) -> str:
    """A text that every file can hold: the bytes of a name that is no text are marked."""
    return os.fsencode(text).decode("utf-8", "replace")


def unchanged(recorded: Mapping[str, Any]) -> bool:
    """Whether a file is still what it was."""
    path = Path(recorded["path"])
    return path.exists() and fingerprint(path)["sha256"] == recorded["sha256"]


def _digest(files: Iterable[Path], *, with_names: bool) -> str:
    digest = hashlib.sha256()
    for file in files:
        if with_names:
            digest.update(os.fsencode(file.name) + b"\0")
        with file.open("rb") as content:
            while piece := content.read(1 << 20):
                digest.update(piece)
    return digest.hexdigest()
