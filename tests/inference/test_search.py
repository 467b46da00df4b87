"""One step, two drivers: on the host, or inside one compiled program."""

import dataclasses

import jax
import numpy as np
import pytest

from kunita.inference.gauss_newton import GaussNewton, GaussNewtonOptions
from kunita.inference.problem import look_again
from kunita.inference.search import run, run_compiled
from problems import prepared

ANY_DRIFT = 1.0
"""The time grid stays as it is, which a compiled program cannot change."""


def test_the_host_and_a_compiled_program_find_the_same():
    problem, start = prepared()
    search = GaussNewton(1e-9)
    log = []
    on_host = run(
        search,
        problem,
        search.init(problem, start),
        method="path-space Gauss-Newton",
        max_iterations=40,
        max_drift=ANY_DRIFT,
        log=log,
    )
    compiled = jax.jit(lambda problem, start: run_compiled(search, problem, start, 40))
    in_program, count = compiled(problem, start)
    assert on_host.state.residual_mm <= 1e-9
    assert in_program.state.residual_mm <= 1e-9
    assert int(count) == len(log)
    one = on_host.state
    two = in_program.state
    assert float(two.energy) == pytest.approx(float(one.energy), rel=1e-8)
    np.testing.assert_allclose(two.momenta, one.momenta, atol=1e-8)
    np.testing.assert_allclose(two.trajectory.positions, one.trajectory.positions, atol=1e-8)


def hopeless():
    """Landmarks asked to go so far that no step of any length can be trusted."""
    problem, state = prepared()
    observed = problem.observations
    far = dataclasses.replace(observed, fixed=1e4 * np.roll(observed.fixed, 1, axis=0))
    problem = dataclasses.replace(problem, observations=far)
    return problem, look_again(problem, state)


def test_a_refused_step_drops_the_memory_then_renews_the_model_then_halves_then_is_stuck():
    problem, state = hopeless()
    search = GaussNewton(1e-9, GaussNewtonOptions(memory=16, halvings=1))
    descent = search.resume(search.init(problem, state), state)
    past = jax.tree.map(lambda leaf: leaf + 1e-3, descent.memory)
    descent = dataclasses.replace(descent, memory=past)
    assert not descent.fresh
    tried = []
    while not search.ended(descent):
        descent = search.step(problem, descent)
        assert not descent.moved
        assert descent.state is state
        tried.append(
            (
                bool(descent.memory.is_empty),
                bool(descent.fresh),
                bool(descent.outdated),
                float(descent.length),
                bool(descent.stuck),
            )
        )
    assert tried == [
        (True, False, False, 1.0, False),  # without the memory
        (True, False, True, 1.0, False),  # with a new model, next time
        (True, True, False, 0.5, False),  # half as long
        (True, True, False, 0.5, True),
    ]


def test_a_compiled_search_gives_up_in_as_many_steps():
    problem, state = hopeless()
    search = GaussNewton(1e-9, GaussNewtonOptions(memory=16, halvings=1))
    compiled = jax.jit(lambda problem, start: run_compiled(search, problem, start, 40))
    descent, count = compiled(problem, state)
    assert bool(descent.stuck)
    assert int(count) == 2  # the model is new and the memory empty: the whole step, and half of it
    np.testing.assert_array_equal(descent.state.momenta, state.momenta)
