"""The machine's cores, where a library leaves the interpreter while it works: NumPy, XLA, zlib."""

import collections
import concurrent.futures
import os
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_order(function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Apply a function to items, a few at a time on the machine's cores; results in their order."""
    workers = _usable_cores()
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        waiting: collections.deque[concurrent.futures.Future[Result]] = collections.deque()
        for item in items:
            waiting.append(pool.submit(function, item))
            # No more than one result waits beside those that are being worked on: they are large.
            if len(waiting) > workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _usable_cores() -> int:
    """How many cores this process may use, which can be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
