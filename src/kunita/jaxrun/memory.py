"""Memory that is asked for again and again: kept by the process, not given back in between.

A large array comes from the system page by page, each page by a fault, and goes back when it is
freed. Loops over large temporary arrays pay for that in every turn: on lung CT about a fifth of the
CPU seconds of a registration.
"""

import ctypes
import sys

TRIM_THRESHOLD = -1
MMAP_THRESHOLD = -3
"""Numbers of the parameters of glibc's `mallopt`."""

KEPT_BYTES = 2**29
"""Freed memory that is kept."""

LARGEST_BYTES = 2**30
"""Arrays up to this size come from what was kept."""


def keep_freed_memory() -> bool:
    """Let freed memory be used again; whether the C library does so.

    It is for a process of our own, such as a command: it stays so until the process ends. Without
    glibc, and with versions of it that refuse, nothing changes.
    """
    if not sys.platform.startswith("linux"):
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        return False
    has_both = library.mallopt(MMAP_THRESHOLD, LARGEST_BYTES)
    has_both &= library.mallopt(TRIM_THRESHOLD, KEPT_BYTES)
    return bool(has_both)
