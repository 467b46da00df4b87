"""Core functions are tested in double precision; the public doors set it themselves (see test_doors.py).

Kunita's own warnings are errors, unless a test expects them.
"""

import warnings

import jax
import pytest


@pytest.fixture(autouse=True)
def strict_double_precision():
    from kunita.errors import KunitaWarning

    with jax.enable_x64(True), warnings.catch_warnings():
        warnings.simplefilter("error", KunitaWarning)
        yield
