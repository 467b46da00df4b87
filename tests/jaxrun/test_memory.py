"""Memory that is kept while a function runs."""

import resource

import numpy as np
import pytest

from kunita.jaxrun import memory


def faults_of_large_arrays():
    """Page faults of forty arrays of 48 MB, one after another."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(40):
        np.empty(12_000_000, np.float32).fill(1.0)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_a_function_gives_what_it_gives_without():
    assert memory.keeping_freed_memory(lambda x, *, y: x + y)(1, y=2) == 3


@pytest.mark.skipif(memory._glibc() is None, reason="needs glibc")
def test_arrays_that_follow_each_other_share_their_pages():
    usual = faults_of_large_arrays()
    kept = memory.keeping_freed_memory(faults_of_large_arrays)()
    assert kept < usual / 5


def test_errors_pass_through():
    @memory.keeping_freed_memory
    def fail():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fail()
