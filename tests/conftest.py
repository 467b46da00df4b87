"""Core functions are tested in double precision; the public doors set it themselves (see
test_doors.py).

Kunita's own warnings are errors, unless a test expects them. Most of the suite's time is
compilation: what is compiled is kept in pytest's cache, which the workers share and from which the
next run starts, and it is optimised only where a test computes for long: where it is marked slow,
or grids, which the command line computes on too: all of them register 16 landmarks, so that one
compilation serves them. (test_doors.py runs in a fresh process as users do.)
"""

import pathlib
import warnings

import jax
import pytest


def pytest_configure(config):
    jax.config.update("jax_compilation_cache_dir", str(config.cache.mkdir("jax")))
    jax.config.update(
        "jax_persistent_cache_min_compile_time_secs", 0.02
    )  # small ones too: they are thousands


@pytest.fixture(autouse=True)
def optimise_only_what_runs_long(request):
    long = any(request.node.get_closest_marker(mark) for mark in ("slow", "grids"))
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
