"""Functions that are compiled, and programs that are kept from one process to the next.

JAX can keep what it compiled, but finds it only after tracing and lowering the function. That is
Python at work, and takes longer than all the arithmetic of a small registration. So a program is
kept here under what is known without tracing: the function's name, the form of its arguments, the
sources of this package, and the machine. Unless `keep` was called, `compiled` is `jax.jit` with
results in NumPy.

`store` says who can write the files in which programs are kept, and what is checked at load.
"""

import contextlib
import functools
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import serialize_executable

from kunita.jaxrun.doors import to_numpy
from kunita.jaxrun.forks import refuse_after_fork
from kunita.jaxrun.room import forget_with, make_room, note_load
from kunita.jaxrun.store import ProgramStore, open_store

HASTE = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
"""How XLA compiles five times as fast, programs that take two or three times as long."""

SMALL_MATRIX = 20_000
"""Numbers in a matrix S below which it is small, and a program for it compiled in haste."""

FEW_LANDMARKS = 600
"""Numbers in landmarks with their covariances below which they are few."""

TRAJECTORY_OF_FEW = 6_000
"""Numbers in the Jacobians of few landmarks over time."""

Leaves = list[np.ndarray | jax.Array]
Options = dict[str, Any]
Runnable = tuple[jax.stages.Compiled, Any]
"""A program of the leaves of its arguments, and the tree of its results."""


class _Kept:
    """Where this process keeps programs, if it does."""

    store: ProgramStore | None = None


def keep(folder: Path) -> None:
    """From now on keep programs in a folder, and take those that another process kept there.

    Not together with JAX's own cache: a program that comes from there cannot be kept a second time.
    Nor with kernels of one's own: what they compute is not part of what a program is known by.
    """
    _Kept.store = open_store(folder)


def compiled(
    function: Callable[..., Any] | None = None,
    *,
    static: int = 0,
    hasty: int = 0,
    options: Options | None = None,
) -> Any:
    """Compile a function of positional arguments, and hand its results back as NumPy.

    What the host then does with them compiles nothing more. Within another compiled function it is
    a plain one.

    Args:
        function: of trees of arrays.
        static: how many of the first arguments are no arrays; their `repr` tells them apart.
        hasty: if no argument has more numbers than this, compiling takes longer than running, and
            a program that is kept is compiled in haste.
        options: of XLA.
    """
    if function is None:
        return functools.partial(compiled, static=static, hasty=hasty, options=options)
    if "<" in function.__qualname__:
        raise TypeError(
            f"{function.__qualname__}: a program is known by the name of its function, "
            "which must have one"
        )
    plain = function
    jitted = jax.jit(plain, static_argnums=tuple(range(static)), compiler_options=options)
    programs = _Programs(plain, hasty, options)
    forget_with(programs.by_form.clear)

    @functools.wraps(plain)
    def on_host(*args: Any) -> Any:
        refuse_after_fork()
        make_room()
        if _Kept.store is None:
            return to_numpy(jitted(*args))
        leaves, tree = jax.tree.flatten(args[static:])
        if _being_traced(leaves):
            return plain(*args)
        leaves = [_as_array(leaf) for leaf in leaves]
        form = _Form(args[:static], tree, _shapes(leaves), _jax_settings())
        program = programs.find(form)
        return program(_Kept.store, leaves)

    return on_host


class _Form(NamedTuple):
    """What a program of a function depends on: all but the numbers in its arguments."""

    fixed: tuple[Any, ...]
    tree: Any
    shapes: tuple[tuple[tuple[int, ...], str], ...]
    settings: tuple[Any, ...]

    def largest_argument(self) -> int:
        """How many numbers the largest of the arrays has."""
        return max((int(np.prod(shape)) for shape, _ in self.shapes), default=0)


class _Program:
    """A function for arguments of one form, which is compiled when it is first called."""

    def __init__(self, function: Callable[..., Any], form: _Form, options: Options | None) -> None:
        self.function = function
        self.form = form
        self.options = options
        self.name = f"{function.__module__}.{function.__qualname__}"
        self.runnable: Runnable | None = None

    def __call__(self, store: ProgramStore, leaves: Leaves) -> Any:
        if self.runnable is not None:
            return _run(self.runnable, leaves)
        self.runnable = self._load(store)
        if self.runnable is not None:
            # A kept program that cannot be run is compiled again.
            with contextlib.suppress(jax.errors.JaxRuntimeError):
                return _run(self.runnable, leaves)
        self.runnable = self._compile(leaves)
        self._save(store, self.runnable)
        return _run(self.runnable, leaves)

    @functools.cached_property
    def kept_as(self) -> str:
        """The name under which it is kept, the same in every process."""
        fixed, tree, shapes, settings = self.form
        return f"{self.name} {fixed!r} {tree} {shapes} {settings} {self.options}"

    def _compile(self, leaves: Leaves) -> Runnable:
        """Compile it; the tree of its results is known when it has been traced."""
        trees: list[Any] = []

        def of_leaves(*parts: Any) -> list[Any]:
            arguments = jax.tree.unflatten(self.form.tree, parts)
            results, tree = jax.tree.flatten(self.function(*self.form.fixed, *arguments))
            trees.append(tree)
            return results

        of_leaves.__name__ = self.name
        traced = jax.jit(of_leaves, compiler_options=self.options).lower(*leaves)
        return traced.compile(), trees[-1]

    def _load(self, store: ProgramStore) -> Runnable | None:
        """The program as it was kept; None if it was not, or cannot be used."""
        payload = store.load(self.kept_as)
        if payload is None:
            return None
        try:
            _know_lapack()
            kept, skeleton = pickle.loads(payload)  # of the user's own making: see `store`
            program = serialize_executable.deserialize_and_load(*kept)
            note_load()
        except Exception:  # whatever is wrong with a kept program, it can be compiled again
            return None
        return program, jax.tree.structure(skeleton)

    def _save(self, store: ProgramStore, runnable: Runnable) -> None:
        """Keep a program; one that cannot be kept is used all the same."""
        program, tree = runnable
        skeleton = jax.tree.unflatten(tree, range(tree.num_leaves))
        # A full disk, a folder that is gone, a program that cannot be serialised: all the same.
        with contextlib.suppress(Exception):
            kept = serialize_executable.serialize(program)
            store.save(self.kept_as, pickle.dumps((kept, skeleton)))


class _Programs:
    """The programs of one function, by the form of its arguments."""

    def __init__(self, function: Callable[..., Any], hasty: int, options: Options | None) -> None:
        self.function = function
        self.hasty = hasty
        self.options = options
        self.by_form: dict[_Form, _Program] = {}

    def find(self, form: _Form) -> _Program:
        """The program for arguments of this form, compiled or not."""
        program = self.by_form.get(form)  # one look: another thread may be making room
        if program is None:
            is_small = form.largest_argument() <= self.hasty
            program = _Program(self.function, form, HASTE if is_small else self.options)
            self.by_form[form] = program
        return program


def _run(runnable: Runnable, leaves: Leaves) -> Any:
    program, tree = runnable
    return jax.tree.unflatten(tree, to_numpy(program(*leaves)))


# In both, NumPy's own arrays are told by their type first: to ask JAX takes ten times as long, and
# a fit calls hundreds of programs with a dozen arrays each.


def _being_traced(leaves: list[Any]) -> bool:
    others = [leaf for leaf in leaves if type(leaf) is not np.ndarray]
    return any(isinstance(leaf, jax.core.Tracer) for leaf in others)


def _as_array(leaf: Any) -> np.ndarray | jax.Array:
    if type(leaf) is np.ndarray or isinstance(leaf, jax.Array):
        return leaf
    return np.asarray(leaf)


def _shapes(leaves: Leaves) -> tuple[tuple[tuple[int, ...], str], ...]:
    return tuple((leaf.shape, leaf.dtype.char) for leaf in leaves)


def _jax_settings() -> tuple[Any, ...]:
    """Those of JAX's settings that change a program and may change while a process runs."""
    config: Any = jax.config
    optimised = not config.read("jax_disable_most_optimizations")
    return (config.jax_enable_x64, optimised, config.jax_default_matmul_precision)


@functools.cache
def _know_lapack() -> None:
    """Look up LAPACK's functions, as JAX does when it lowers a call of one of them.

    A kept program calls them without having been lowered in this process.
    """
    jax.jit(jax.lax.linalg.cholesky).lower(np.eye(2))
