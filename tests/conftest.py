"""How the suite runs: in double precision, with Kunita's warnings as errors, and in little time.

Core functions are tested in double precision; the public doors set it themselves (see
test_doors.py). Kunita's own warnings are errors, unless a test expects them.

Most of the suite's time is compilation. So programs are compiled as fast as XLA can: without
optimisation, unless a test computes for so long that it pays, and is marked slow. What is compiled
is kept in pytest's cache, which the workers share, and the processes that tests start; the next run
starts from it. The most common registration has 16 landmarks: a test that can should use it, so that
one compilation serves many tests.
"""

import gc
import os
import pathlib
import warnings

HASTE = {
    # XLA reads these once, when it is first used. Its emitters of fused loops make faster programs,
    # but compile half as fast. With every core busy a second thread to compile on is none.
    "XLA_FLAGS": "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1",
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    # The workers keep every core busy; further threads of BLAS would only wait for each other.
    "OPENBLAS_NUM_THREADS": "1",
    # To keep a program that compiles faster than this takes longer than to compile it again.
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
}
"""In the environment, so that the processes which tests start have them as well."""

os.environ.update(HASTE)

import jax  # noqa: E402
import pytest  # noqa: E402


def pytest_configure(config):
    cache = str(config.cache.mkdir("jax"))
    os.environ["JAX_COMPILATION_CACHE_DIR"] = cache
    jax.config.update("jax_compilation_cache_dir", cache)


def pytest_collection_finish():
    """Leave what was imported out of every garbage collection, and collect less often.

    Tracing makes very many objects, few of them garbage: the collector took a fifth of the time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)


@pytest.fixture(autouse=True)
def optimise_only_what_runs_long(request):
    long = request.node.get_closest_marker("slow") is not None
    jax.config.update("jax_disable_most_optimizations", not long)


MOST_MAPS = 40_000
"""Linux allows a process some 65,000 memory maps, of which every compiled program takes a few: then
it is ended."""


@pytest.fixture(autouse=True, scope="module")
def a_bounded_number_of_compiled_programs():
    """Looked at after every file, which adds some thousands: to list the maps takes longer than
    most tests."""
    yield
    maps = pathlib.Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > MOST_MAPS:
        jax.clear_caches()


@pytest.fixture(autouse=True)
def strict_double_precision():
    from kunita.errors import KunitaWarning

    with jax.enable_x64(True), warnings.catch_warnings():
        warnings.simplefilter("error", KunitaWarning)
        warnings.filterwarnings(
            "ignore", "the prior's amplitude is", KunitaWarning
        )  # test problems are violent
        warnings.filterwarnings("ignore", "suspect:", KunitaWarning)  # and full of planted errors
        yield
