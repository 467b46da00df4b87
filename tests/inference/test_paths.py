"""Gauss–Newton over velocity paths: slower, but it finds a way where shooting loses it."""

import dataclasses

import jax
import numpy as np
import pytest

import kunita
from kunita import numerics
from kunita.flow import fields
from kunita.flow.control import choose_controls
from kunita.inference import paths, solve
from kunita.inference.newton import ExactNewton
from kunita.inference.problem import Problem, look, no_step
from kunita.inference.search import run
from kunita.inference.trend import Alignment, determined_trend
from problems import gp_displaced, grid, landmarks, prepared

STEPS = 8
STAY = Alignment(np.zeros(2), np.eye(2), np.zeros(2))

DIRECTLY = dataclasses.replace(solve.THOROUGH, patient=False)
"""Shooting alone."""


def problem_in_the_plane(kernel, moving, fixed, noise):
    """Without alignment."""
    covariances = np.tile(noise**2 * np.eye(2), (len(moving), 1, 1))
    none, _ = determined_trend("none", moving)
    return Problem(kernel, landmarks(moving, fixed, covariances), none)


def swapped():
    """Twelve landmarks, two of which change places a length scale apart."""
    moving, _ = gp_displaced(12, seed=1, side=6.0, length_scale=2.0, d=2)
    moving[0] = (3.0, 3.0)
    moving[1] = (4.0, 3.0)
    fixed = moving.copy()
    fixed[[0, 1]] = moving[[1, 0]]
    return problem_in_the_plane(kunita.Gaussian(1.0, 1.0), moving, fixed, 0.1)


def drawn(seed):
    """A truth from a prior as wide as its length scale, a/σ = 1."""
    rng = np.random.default_rng(seed)
    kernel = kunita.Gaussian(1.0, 1.0)
    x = rng.uniform(0, 3, (12, 2))
    still = np.zeros_like(x)
    truth = kunita.simulate(kernel, x, still, num_paths=1, num_steps=200, key=seed)[0]
    return problem_in_the_plane(kernel, x, truth + 0.1 * rng.normal(size=x.shape), 0.1)


def searched(problem, alignment, tolerance):
    """Where the search over paths ends, as the solver runs it."""
    start = paths.at_rest(STEPS, problem, alignment)
    point, _ = paths.search_paths(100, problem, start, tolerance)
    return point


def test_the_energy_falls_in_every_step():
    problem = swapped()
    search = paths.PathGaussNewton(1e-3)
    step = jax.jit(search.step)
    point = search.init(problem, paths.at_rest(STEPS, problem, STAY))
    energies = [float(point.path.energy)]
    for _ in range(15):
        point = step(problem, point)
        energies.append(float(point.path.energy))
    assert np.all(np.diff(energies) <= 0)
    assert energies[-1] < 0.5 * energies[0]


def test_paths_and_newton_end_where_shooting_does():
    problem, start = prepared()
    directly = solve.solve(problem, start.alignment, options=DIRECTLY)
    assert directly.converged
    point = searched(problem, start.alignment, np.asarray(0.01))
    times = numerics.time_grid(20)
    shot = look(problem, point.alignment, paths.momenta_of(point), no_step(problem), times)
    search = ExactNewton(1e-9)
    found = run(
        search,
        problem,
        search.init(problem, shot),
        method="exact Newton",
        max_iterations=10,
        max_drift=1e-8,
        log=[],
    ).state
    assert found.misfit <= 1e-9
    assert float(found.energy) == pytest.approx(directly.energy, rel=1e-8)


@pytest.mark.parametrize("name", ["swapped", "drawn"])
def test_what_shooting_does_not_solve_paths_do(name):
    problem = swapped() if name == "swapped" else drawn(0)
    assert not solve.solve(problem, STAY, options=DIRECTLY).converged
    fit = solve.solve(problem, STAY)
    assert fit.converged
    assert "velocity paths" in {line.method for line in fit.history}


def test_a_path_is_a_diffeomorphism():
    """det J > 0 at the sites at every instant, and on a grid around them at the end."""
    problem = swapped()
    point = searched(problem, STAY, np.asarray(0.01))
    path = point.path
    assert np.linalg.det(path.jacobians).min() > 0
    field = jax.jit(fields.least_field)(problem.kernel, path.positions, path.velocities)
    places = grid(np.asarray(problem.observations.sites), 1.0, 0.2)
    _, jacobians, _ = jax.jit(fields.travel)(problem.kernel, field, places)
    assert np.linalg.det(jacobians).min() > 0


def test_control_points_lead_along_the_same_path():
    """Up to what they leave out of the sites' variance, which is 10⁻⁴ of the noise here."""
    moving, fixed = gp_displaced(24, seed=3, side=60.0, rms=8.0, d=2)
    kernel = kunita.Gaussian(50.0, 8.0)
    problem = problem_in_the_plane(kernel, moving, fixed, 1.0)
    controls = next(choose_controls(kernel, moving, np.ones(24), [1e-4], 24))
    assert len(controls) < 24
    few = dataclasses.replace(problem, controls=controls)
    one = searched(problem, STAY, np.asarray(0.001)).path
    two = searched(few, STAY, np.asarray(0.001)).path
    assert float(two.energy) == pytest.approx(float(one.energy), rel=1e-3)
    np.testing.assert_allclose(two.positions, one.positions, atol=0.02)
