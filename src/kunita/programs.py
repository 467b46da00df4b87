"""Programs: functions that are compiled, and kept from one process to the next.

JAX keeps what it compiled, but finds it only after tracing and lowering the function, which is Python at work and takes
longer than all arithmetic of a small registration. So a program is kept here under what is known without that: the
function's name, the form of its arguments, the sources of this package, and the machine. Unless `keep` was called this
is `jax.jit` and no more.
"""

import contextlib
import functools
import hashlib
import os
import pickle
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import serialize_executable

from kunita.precision import to_numpy

HASTE = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
"""How XLA compiles five times as fast, programs that take ten times as long."""

SMALL = 20_000
"""Numbers in the largest argument of a program below which that does not matter, if it runs a few times."""

Leaves = list[np.ndarray | jax.Array]
Options = dict[str, Any]


class Shelf:
    """Where programs are kept: a folder for this version of the package on this machine, or nowhere."""

    folder: Path | None = None

    def place(self, form: str) -> Path:
        assert self.folder is not None
        return self.folder / hashlib.sha256(form.encode()).hexdigest()[:32]


_shelf = Shelf()


def keep(folder: Path) -> None:
    """From now on keep programs there, and take those from there that another process kept.

    Not together with JAX's own cache: a program that comes from there cannot be kept a second time.
    """
    _shelf.folder = folder / _version()


@functools.cache
def _version() -> str:
    """What a program depends on beside its function and arguments: sources, compiler, and processor."""
    found = hashlib.sha256(f"{jax.__version__} {jax.lib.__version__} {os.environ.get('XLA_FLAGS')}".encode())
    found.update(f"{platform.platform()} {os.cpu_count()} {_processor()}".encode())
    home = Path(__file__).parent
    for source in sorted(home.rglob("*.py")):
        found.update(str(source.relative_to(home)).encode() + source.read_bytes())
    return found.hexdigest()[:16]


def _processor() -> str:
    """Its model and the instructions that it knows."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return "".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))
    return platform.processor()


def compiled(
    function: Callable[..., Any] | None = None,
    *,
    static: int = 0,
    rarely: bool = False,
    options: Options | None = None,
) -> Any:
    """Compile a function of positional arguments, and hand its results back as NumPy.

    What the host then does with them compiles nothing more. Within another compiled function it is a plain one.

    Args:
        function: of trees of arrays.
        static: how many of the first arguments are no arrays; their `repr` tells them apart.
        rarely: whether a registration runs it a few times only: for small arguments it is then compiled in haste.
        options: of XLA.
    """
    if function is None:
        return functools.partial(compiled, static=static, rarely=rarely, options=options)
    plain, ready = function, {}
    jitted = jax.jit(plain, static_argnums=tuple(range(static)), compiler_options=options)

    @functools.wraps(plain)
    def on_host(*args: Any) -> Any:
        leaves, tree = jax.tree.flatten(args[static:])
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            return plain(*args)
        if _shelf.folder is None:
            return to_numpy(jitted(*args))
        leaves = [leaf if isinstance(leaf, jax.Array) else np.asarray(leaf) for leaf in leaves]
        form = args[:static], tree, tuple((leaf.shape, leaf.dtype.char) for leaf in leaves)
        if form not in ready:
            hasty = rarely and max((leaf.size for leaf in leaves), default=0) <= SMALL
            ready[form] = _Program(plain, args[:static], tree, leaves, HASTE if hasty else options)
        return ready[form](leaves)

    return on_host


class _Program:
    """A function of the leaves of its arguments: from the shelf, or made and put there."""

    def __init__(
        self, function: Any, fixed: tuple[Any, ...], tree: Any, leaves: Leaves, options: Options | None
    ) -> None:
        shapes = [(leaf.shape, leaf.dtype.str) for leaf in leaves]
        self.name = f"{function.__module__}.{function.__qualname__}"
        self.place = _shelf.place(f"{self.name} {fixed!r} {tree} {shapes} {options}")
        self.options, self.tree = options, tree
        self.function = functools.partial(function, *fixed)
        self.made = _taken(self.place)

    def __call__(self, leaves: Leaves) -> Any:
        if self.made is not None:
            with contextlib.suppress(jax.errors.JaxRuntimeError):  # one that cannot be run is made again
                return self._run(leaves)
        self.made = self._make(leaves)
        return self._run(leaves)

    def _run(self, leaves: Leaves) -> Any:
        program, structure = self.made
        return jax.tree.unflatten(structure, to_numpy(program(*leaves)))

    def _make(self, leaves: Leaves) -> Any:
        """Compile it; the structure of its results is known when it has been traced."""
        structure: list[Any] = []

        def flat(*parts: Any) -> Any:
            results, found = jax.tree.flatten(self.function(*jax.tree.unflatten(self.tree, parts)))
            structure[:] = [found]
            return results

        flat.__name__ = self.name
        program = jax.jit(flat, compiler_options=self.options).lower(*leaves).compile()
        _put(self.place, program, structure[0])
        return program, structure[0]


@functools.cache
def _know_lapack() -> None:
    """JAX looks up LAPACK's functions when it lowers a call of one of them, which a kept program calls without."""
    jax.jit(jax.lax.linalg.cholesky).lower(np.eye(2))


def _taken(place: Path) -> Any:
    """What is on the shelf; nothing, if it is not there or cannot be read."""
    if not place.exists():
        return None
    _know_lapack()
    try:
        kept, skeleton = pickle.loads(place.read_bytes())  # the user's own cache, as JAX's is
        return serialize_executable.deserialize_and_load(*kept), jax.tree.structure(skeleton)
    except Exception:  # whatever is wrong with a kept program, it can be made again
        return None


def _put(place: Path, program: Any, tree: Any) -> None:
    """Put a program on the shelf, whole or not at all."""
    skeleton = jax.tree.unflatten(tree, range(tree.num_leaves))
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        partial = place.with_name(f"{place.name}.{os.getpid()}")
        partial.write_bytes(pickle.dumps((serialize_executable.serialize(program), skeleton)))
        partial.replace(place)
