"""A child that was forked after JAX was used is refused at every door, instead of waiting for
ever."""

import functools
import os
import subprocess
import sys

import pytest

import kunita
import problems
from kunita.jaxrun import forks

CODE = """
import os, signal, warnings
import jax, numpy as np
import kunita
from kunita.jaxrun import programs

warnings.simplefilter("ignore", RuntimeWarning)  # JAX's own about fork
x = np.random.default_rng(0).uniform(0, 150, (5, 2))
kernel = kunita.Gaussian(50.0, 5.0)

def in_child(function):
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    signal.alarm(60)  # ends it, should it wait
    try:
        function()
        os._exit(0)
    except kunita.KunitaError as error:
        os._exit(7 if "spawn" in str(error) else 8)

def doubled(x):
    return 2 * x

program = programs.compiled(doubled)
shoot = lambda: kunita.shoot(kernel, x, np.zeros_like(x))
assert in_child(shoot) == 0, "before it was used"
assert in_child(lambda: os._exit(in_child(shoot))) == 0, "before it was used, a child's child"
jax.numpy.ones(3) + 1  # used, though not through a door
assert in_child(shoot) == 7, "after it was used"
assert in_child(lambda: program(x)) == 7, "compiled"
assert in_child(lambda: kunita.register(x, x + 1, kernel=kernel, noise=1.0)) == 7, "register"
assert in_child(lambda: os._exit(in_child(shoot))) == 7, "a child's child"
shoot()
print("good")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_child_forked_after_use_is_refused_and_one_forked_before_computes():
    quick = {**os.environ, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", CODE], text=True, env=quick, capture_output=True, check=False
    )
    assert done.stdout.strip() == "good", done.stderr


def test_every_door_refuses(monkeypatch):
    reg = problems.registered()
    kernel, posterior, evaluation = reg.kernel, reg.posterior, reg.evaluation
    x = reg.moving.points
    trajectory = kunita.shoot(kernel, x, 0 * x)
    doors = [
        lambda: kunita.register(reg.moving, reg.fixed),
        lambda: kunita.shoot(kernel, x, 0 * x),
        lambda: kunita.reverse(kernel, trajectory),
        lambda: kunita.transport(kernel, trajectory, x),
        lambda: kunita.moments(kernel, x, 0 * x),
        lambda: kunita.simulate(kernel, x, 0 * x, num_paths=2, num_steps=4),
        lambda: posterior.covariance(x, x),
        lambda: posterior.sample(x, 2),
        lambda: posterior.leave_one_out(),
        *(
            functools.partial(getattr(answers, name), x)
            for answers in (posterior, evaluation)
            for name in ("predict", "inverse", "preimage", "move", "move_back", "jacobian")
        ),
    ]
    monkeypatch.setattr(forks._Lineage, "used_before_fork", True)
    for call in doors:
        with pytest.raises(kunita.KunitaError, match="forked .*spawn"):
            call()
