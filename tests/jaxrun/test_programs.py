"""Programs are kept from one process to the next, give the same there, and are made again when they
cannot be used."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from kunita.jaxrun import programs

CODE = """
import json, sys
from pathlib import Path
import jax, numpy as np
from kunita.jaxrun import programs

traced = []

def solved(power, problem, right):
    traced.append(power)
    factor = jax.lax.linalg.cholesky(problem["matrix"])
    return {"x": jax.scipy.linalg.cho_solve((factor, True), right) ** power, "sum": right.sum()}

usual, hasty = programs.compiled(solved, static=1), programs.compiled(solved, static=1, hasty=100)
if len(sys.argv) > 1:
    programs.keep(Path(sys.argv[1]))
matrix = np.eye(6) + 0.1 * np.ones((6, 6))
found = []
with jax.enable_x64(True):
    for program in (usual, hasty):
        for power in (1, 2):
            for right in (np.arange(6.0), np.arange(6.0) + 1):
                result = program(power, {"matrix": matrix}, right)
                assert type(result["x"]) is np.ndarray
                found.append([*result["x"].tolist(), float(result["sum"])])
print(json.dumps({"traced": len(traced), "found": found}))
"""
"""Two functions, two constant arguments, two arrays of the same shape: four programs."""


def run(*folder):
    alone = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    return json.loads(
        subprocess.check_output(
            [sys.executable, "-c", CODE, *map(str, folder)], text=True, env=alone
        )
    )


@pytest.fixture(scope="module")
def expected():
    """What it is without a shelf."""
    return run()["found"]


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """The folder that a first process left its programs in, and what it found."""
    folder = tmp_path_factory.mktemp("programs")
    return folder, run(folder)


def test_a_second_process_computes_the_same_and_traces_nothing(expected, first):
    folder, first = first
    second = run(folder)
    assert (first["traced"], second["traced"]) == (4, 0)
    np.testing.assert_allclose(first["found"], expected, rtol=1e-13)
    assert second["found"] == first["found"]


def cut(content):
    return content[:1000]


def one_bit(content):
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def test_what_cannot_be_read_or_written_is_made_again(expected, first, tmp_path):
    folder = tmp_path / "spoiled"
    shutil.copytree(first[0], folder)
    kept = [path for path in folder.rglob("*") if path.is_file()]
    assert len(kept) == 4
    for path, spoil in zip(kept, (cut, one_bit, one_bit, cut), strict=True):
        path.write_bytes(spoil(path.read_bytes()))
    again = run(folder)
    assert again["traced"] == 4
    np.testing.assert_allclose(again["found"], expected, rtol=1e-13)
    assert run(folder)["traced"] == 0
    nowhere = tmp_path / "file"
    nowhere.write_text("not a folder", encoding="utf-8")
    assert run(nowhere)["found"] == again["found"]


def test_a_function_without_a_name_of_its_own_is_refused():
    with pytest.raises(TypeError, match="must have one"):
        programs.compiled(lambda x: 2 * x)
