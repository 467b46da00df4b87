"""Memory that is asked for again and again: kept by the process, not given back in between.

A large array comes from the system page by page, each page by a fault, and goes back when it is
freed. Loops over large temporary arrays pay for that in every turn: on lung CT 17 of 80 CPU
seconds.
"""

import contextlib
import ctypes
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

TRIM_THRESHOLD = -1
MMAP_THRESHOLD = -3
"""Numbers of the parameters of glibc's `mallopt`."""

KEPT_BYTES = 2**29
"""Freed memory that is kept while a function runs."""

LARGEST_BYTES = 2**30
"""Arrays up to this size come from what was kept."""

USUAL_BYTES = 2**25
"""The most that glibc's own rules arrive at: larger arrays go back at once."""

P = ParamSpec("P")
R = TypeVar("R")


def keeping_freed_memory(function: Callable[P, R]) -> Callable[P, R]:
    """Let freed memory be used again while a function runs; elsewhere than in glibc as always."""

    @functools.wraps(function)
    def keeping(*args: P.args, **kwargs: P.kwargs) -> R:
        with _kept():
            return function(*args, **kwargs)

    return keeping


@contextlib.contextmanager
def _kept() -> Iterator[None]:
    """Keep freed memory, and give it back at the end."""
    library = _glibc()
    if library is None:
        yield
        return
    library.mallopt(MMAP_THRESHOLD, LARGEST_BYTES)
    library.mallopt(TRIM_THRESHOLD, KEPT_BYTES)
    try:
        yield
    finally:
        library.mallopt(MMAP_THRESHOLD, USUAL_BYTES)
        library.mallopt(TRIM_THRESHOLD, 2 * USUAL_BYTES)
        library.malloc_trim(0)


@functools.cache
def _glibc() -> Any:
    """The C library of this process, if it is glibc."""
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)
    has_both = hasattr(library, "mallopt") and hasattr(library, "malloc_trim")
    return library if has_both else None
