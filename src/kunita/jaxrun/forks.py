"""Refuse to compute in a process that was forked after its parent had used JAX.

A fork copies the memory of a process, but of its threads only the one that forks. XLA's own threads
are missing in the child, and whatever lock one of them held stays locked: the first program that
the child runs waits for ever. A child that was forked before JAX was used may use it.
"""

import os

from kunita.errors import KunitaError

CURE = (
    "this process was forked from one that had already computed with JAX, whose threads do not "
    "survive a fork; start the processes with multiprocessing.get_context('spawn'), "
    "or with joblib's default backend, loky"
)


class _Lineage:
    """What is known about this process and the one that it was forked from."""

    used_here = False
    used_before_fork = False


def refuse_after_fork() -> None:
    """Raise `KunitaError` in a child whose parent had used JAX; every door asks this first."""
    if _Lineage.used_before_fork:
        raise KunitaError(CURE)
    _Lineage.used_here = True


def _note_use() -> None:
    """In the parent, before it forks: the caller may have used JAX without any of our doors."""
    _Lineage.used_here = _Lineage.used_here or _jax_has_started()


def _look_back() -> None:
    """In the child, after the fork."""
    _Lineage.used_before_fork = _Lineage.used_before_fork or _Lineage.used_here


def _jax_has_started() -> bool:
    """Whether JAX has a backend; it has no public function that says so and does not start one."""
    try:
        from jax._src import xla_bridge

        return xla_bridge.backends_are_initialized()
    except (ImportError, AttributeError):
        return False


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(before=_note_use, after_in_child=_look_back)
