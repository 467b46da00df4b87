"""Core functions are tested in double precision; the public doors set it themselves (see test_doors.py).

Kunita's own warnings are errors, unless a test expects them. What is compiled is kept in pytest's cache: most of the
suite's time is compilation, the workers share it, and the next run starts warm.
"""

import warnings

import jax
import pytest


def pytest_configure(config):
    jax.config.update("jax_compilation_cache_dir", str(config.cache.mkdir("jax")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


@pytest.fixture(autouse=True)
def strict_double_precision():
    from kunita.errors import KunitaWarning

    with jax.enable_x64(True), warnings.catch_warnings():
        warnings.simplefilter("error", KunitaWarning)
        yield
