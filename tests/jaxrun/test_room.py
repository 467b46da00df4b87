"""Programs are let go before a process has more memory maps than Linux allows."""

import json
import subprocess
import sys

import pytest

CODE = """
import json, sys
from pathlib import Path
import jax, numpy as np
from kunita.jaxrun import programs, room

traced = []

def doubled(x):
    traced.append(x)
    return 2 * x

program = programs.compiled(doubled)
if len(sys.argv) > 1:
    programs.keep(Path(sys.argv[1]))
x = np.arange(3.0)
first = program(x)
early = room.make_room(most_maps=0)
for number in range(room.EVERY):
    jax.jit(lambda x, number=number: x + number)(x)
enough = room.make_room()
others = [jax.jit(lambda x, number=number: x - number) for number in range(room.EVERY)]
for other in others:
    other(x)
before = room.count_maps()
full = room.make_room(most_maps=before - 1)
after = room.count_maps()
again = program(x)
print(json.dumps({
    "asked": [early, enough, full], "maps": [before, after], "traced": len(traced),
    "same": bool(np.all(first == again)),
}))
"""
"""In a process of its own: to let go of the programs of the suite would cost minutes."""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts memory maps")
@pytest.mark.parametrize("kept", [False, True])
def test_programs_are_let_go_when_there_are_too_many_and_made_again(kept, tmp_path):
    folder = [str(tmp_path)] if kept else []
    found = json.loads(subprocess.check_output([sys.executable, "-c", CODE, *folder], text=True))
    assert found["asked"] == [False, False, True]  # too early to look, few enough, too many
    before, after = found["maps"]
    assert after < before - 100
    assert found["same"]
    assert found["traced"] == (1 if kept else 2)  # a kept program is loaded
