"""Memory that a process of our own keeps."""

import subprocess
import sys

import pytest

from kunita.jaxrun import memory

PROGRAM = """
import resource
import sys

import numpy as np

from kunita.jaxrun.memory import keep_freed_memory


def faults_of_large_arrays():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(40):
        np.empty(12_000_000, np.float32).fill(1.0)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


usual = faults_of_large_arrays()
is_kept = keep_freed_memory()
print(int(is_kept), usual, faults_of_large_arrays())
"""


def test_arrays_that_follow_each_other_share_their_pages():
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    is_kept, usual, kept = map(int, ended.stdout.split())
    if not is_kept:
        pytest.skip("the C library does not keep memory")
    assert kept < usual / 5


def test_elsewhere_nothing_happens(monkeypatch):
    monkeypatch.setattr(memory.sys, "platform", "darwin")
    assert memory.keep_freed_memory() is False
