"""Let go of compiled programs before a process has more of them than Linux allows.

Every program that XLA compiles takes some memory maps, and Linux allows a process some 65,000 of
them. A process that registers landmarks of a hundred different numbers, say, would run out of
them, and XLA would fail with "Cannot allocate memory". Programs that are let go are compiled or
loaded again when they are needed.
"""

from collections.abc import Callable
from pathlib import Path

import jax

MOST_MAPS = 45_000
"""A whole registration of a new number of landmarks takes some 1,200."""

EVERY = 100
"""Compilations from one look at the maps to the next: to list many of them takes milliseconds."""

MAPS = Path("/proc/self/maps")


class _Since:
    """What happened since the last look."""

    compilations = 0


_forgetting: list[Callable[[], None]] = []
"""What lets go of programs that JAX does not know of."""


def forget_with(function: Callable[[], None]) -> None:
    """Call this function, too, when programs are let go."""
    _forgetting.append(function)


def make_room(most_maps: int = MOST_MAPS) -> bool:
    """Let go of all programs if there may be too many; says whether they were. Doors ask this."""
    if _Since.compilations < EVERY:
        return False
    _Since.compilations = 0
    if count_maps() <= most_maps:
        return False
    jax.clear_caches()
    for forget in _forgetting:
        forget()
    return True


def count_maps() -> int:
    """How many memory maps this process has; 0 where the system does not say."""
    try:
        return MAPS.read_bytes().count(b"\n")
    except OSError:
        return 0


def _note(event: str, duration_secs: float, **kwargs: str | int) -> None:
    if event == "/jax/core/compile/backend_compile_duration":
        _Since.compilations += 1


def note_load() -> None:
    """A program that was loaded takes as much room as one that was compiled."""
    _Since.compilations += 1


jax.monitoring.register_event_duration_secs_listener(_note)
