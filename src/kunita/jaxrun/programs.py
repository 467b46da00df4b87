"""Programs: functions that are compiled, and kept from one process to the next.

JAX keeps what it compiled, but finds it only after tracing and lowering the function, which is
Python at work and takes longer than all arithmetic of a small registration. So a program is kept
here under what is known without that: the function's name, the form of its arguments, the sources
of this package, and the machine. Unless `keep` was called this is `jax.jit` and no more.

A kept program is machine code: its file holds a digest of itself, and one that is damaged is not
loaded.
"""

import contextlib
import functools
import hashlib
import os
import pickle
import platform
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax.experimental import serialize_executable

from kunita.jaxrun.doors import to_numpy

HASTE = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
"""How XLA compiles five times as fast, programs that take two or three times as long."""

FORGOTTEN_DAYS = 60
"""Programs of other versions are removed when none of them was used for so long."""

SMALL_MATRIX, FEW_LANDMARKS, TRAJECTORY_OF_FEW = 20_000, 600, 6_000
"""Numbers below which an argument is small: a matrix S, landmarks with their covariances, their
Jacobians in time."""

DIGEST_BYTES = 32

Leaves = list[np.ndarray | jax.Array]
Options = dict[str, Any]


class Shelf:
    """Where programs are kept: a folder for this version of the package on this machine, or
    nowhere.
    """

    folder: Path | None = None

    def place(self, form: str) -> Path:
        assert self.folder is not None
        return self.folder / hashlib.sha256(form.encode()).hexdigest()[:32]


_shelf = Shelf()


def keep(folder: Path) -> None:
    """From now on keep programs there, and take those from there that another process kept.

    Not together with JAX's own cache: a program that comes from there cannot be kept a second time.
    Nor with kernels of one's own: what they compute is not part of what a program is known by.
    """
    _shelf.folder = folder / _version()
    with contextlib.suppress(OSError):
        _shelf.folder.mkdir(parents=True, exist_ok=True)
        os.utime(_shelf.folder)
        for other in folder.iterdir():
            if time.time() - other.stat().st_mtime > FORGOTTEN_DAYS * 86_400:
                shutil.rmtree(other, ignore_errors=True)


@functools.cache
def _version() -> str:
    """What a program depends on beside its function and arguments: sources, compiler, and
    processor.
    """
    versions = jax.__version__, jax.lib.__version__, eqx.__version__, platform.python_version()
    settings = sorted(
        f"{name}={value}" for name, value in os.environ.items() if name.startswith(("JAX_", "XLA_"))
    )
    machine = platform.system(), platform.machine(), os.cpu_count(), _processor()
    found = hashlib.sha256(f"{versions} {settings} {machine}".encode())
    home = Path(__file__).parent.parent
    for source in sorted(home.rglob("*.py")):
        found.update(str(source.relative_to(home)).encode() + source.read_bytes())
    return found.hexdigest()[:16]


def _processor() -> str:
    """Its model and the instructions that it knows."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return "".join(
            sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))})
        )
    return platform.processor()


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
            is done in haste.
        options: of XLA.
    """
    if function is None:
        return functools.partial(compiled, static=static, hasty=hasty, options=options)
    if "<" in function.__qualname__:
        raise TypeError(
            f"{function.__qualname__}: a program is known by the name of its function, which must have one"
        )
    plain, ready = function, {}
    jitted = jax.jit(plain, static_argnums=tuple(range(static)), compiler_options=options)

    @functools.wraps(plain)
    def on_host(*args: Any) -> Any:
        if _shelf.folder is None:
            return to_numpy(jitted(*args))
        leaves, tree = jax.tree.flatten(args[static:])
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            return plain(*args)
        leaves = [leaf if isinstance(leaf, jax.Array) else np.asarray(leaf) for leaf in leaves]
        x64 = jax.config.jax_enable_x64  # type: ignore[attr-defined]
        form = args[:static], x64, tree, tuple((leaf.shape, leaf.dtype.char) for leaf in leaves)
        if form not in ready:
            small = max((leaf.size for leaf in leaves), default=0) <= hasty
            ready[form] = _Program(plain, args[:static], tree, leaves, HASTE if small else options)
        return ready[form](leaves)

    return on_host


class _Program:
    """A function of the leaves of its arguments: from the shelf, or made and put there."""

    def __init__(
        self,
        function: Any,
        fixed: tuple[Any, ...],
        tree: Any,
        leaves: Leaves,
        options: Options | None,
    ) -> None:
        shapes = [(leaf.shape, leaf.dtype.str) for leaf in leaves]
        self.name = f"{function.__module__}.{function.__qualname__}"
        x64 = jax.config.jax_enable_x64  # type: ignore[attr-defined]
        self.place = _shelf.place(f"{self.name} {fixed!r} {x64} {tree} {shapes} {options}")
        self.options, self.tree = options, tree
        self.function = functools.partial(function, *fixed)
        self.made = _taken(self.place)

    def __call__(self, leaves: Leaves) -> Any:
        if self.made is not None:
            with contextlib.suppress(
                jax.errors.JaxRuntimeError
            ):  # one that cannot be run is made again
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
    """JAX looks up LAPACK's functions when it lowers a call of one of them, which a kept program
    calls without.
    """
    jax.jit(jax.lax.linalg.cholesky).lower(np.eye(2))


def _taken(place: Path) -> Any:
    """What is on the shelf; nothing, if it is not there, is damaged, or cannot be read."""
    try:
        whole = place.read_bytes()
        digest, payload = whole[:DIGEST_BYTES], whole[DIGEST_BYTES:]
        if hashlib.sha256(payload).digest() != digest:
            return None
        _know_lapack()
        kept, skeleton = pickle.loads(payload)  # the user's own cache, as JAX's is
        return serialize_executable.deserialize_and_load(*kept), jax.tree.structure(skeleton)
    except Exception:  # whatever is wrong with a kept program, it can be made again
        return None


def _put(place: Path, program: Any, tree: Any) -> None:
    """Put a program on the shelf, whole or not at all; one that cannot be kept is used all the
    same.
    """
    skeleton = jax.tree.unflatten(tree, range(tree.num_leaves))
    try:
        payload = pickle.dumps((serialize_executable.serialize(program), skeleton))
        with tempfile.NamedTemporaryFile(dir=place.parent, prefix="new-", delete=False) as partial:
            partial.write(hashlib.sha256(payload).digest() + payload)
        Path(partial.name).replace(place)
    except (
        Exception
    ):  # a full disk, a folder that cannot be written, a program that cannot be serialised
        with contextlib.suppress(OSError, NameError):
            Path(partial.name).unlink(missing_ok=True)
