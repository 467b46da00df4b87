"""A small version of benchmarks/calibration.py: the regions hold what they claim, where the model
is true."""

import argparse
import dataclasses
import importlib.util
import pathlib
import sys

import numpy as np
import pytest

from kunita.scores import LEVELS

PATH = pathlib.Path(__file__).parents[1] / "benchmarks" / "calibration.py"


@pytest.fixture(scope="module")
def calibration():
    """The benchmark as a module: it is a program, not a part of the package."""
    spec = importlib.util.spec_from_file_location("calibration", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules["calibration"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["calibration"]


def simulated(calibration, draws, cell, model):
    """Rows of one model on some draws of a cell."""
    places = ["landmark"] * cell.landmarks + ["query"] * calibration.QUERIES
    rows = []
    for simulation, made in enumerate(draws):
        _, squared, converged = calibration.fitted(cell, made, model)
        for place, square in zip(places, squared, strict=True):
            one = (cell.dimension, cell.landmarks, cell.ratio, simulation, model, place)
            rows.append(
                calibration.Row(*one, converged=bool(converged), error=0.0, squared=float(square))
            )
    return rows


@pytest.fixture(scope="module")
def large_draws(calibration):
    """Sixty draws of large deformations."""
    return [calibration.draw(calibration.Cell(2, 12, 0.6), k, steps=100) for k in range(60)]


def test_where_the_model_is_true_its_regions_hold_what_they_claim(calibration):
    cell = calibration.Cell(2, 12, 0.2)
    rows = simulated(
        calibration, [calibration.draw(cell, k, steps=100) for k in range(40)], cell, "endpoint"
    )
    levels = np.array(LEVELS)
    for place, num_points in (("landmark", 12), ("query", calibration.QUERIES)):
        found = calibration.coverage([row for row in rows if row.place == place])
        chance = 100 * np.sqrt(levels * (1 - levels) / (40 * num_points))
        assert found.lost == 0
        assert np.all(np.abs(found.deviation()) < 4 * np.maximum(found.error, chance)), place


def test_the_small_deformation_model_is_too_sure_of_large_deformations(calibration, large_draws):
    rows = simulated(calibration, large_draws, calibration.Cell(2, 12, 0.6), "small")
    found = calibration.coverage([row for row in rows if row.place == "query"])
    assert np.all((found.deviation() + 4 * found.error)[[1, 2, 3]] < 0)  # 80, 90 and 95 %


def test_a_truth_moves_each_point_by_the_amplitude_and_each_mark_by_the_noise(
    calibration, large_draws
):
    """A single point of the flow is a Brownian motion: its variance at time 1 is a², wherever the
    others go."""
    moved = np.array([made.truth - made.points for made in large_draws]) / 0.6
    noise = np.array([made.fixed - made.truth[:12] for made in large_draws]) / (
        calibration.NOISE * 0.6
    )
    each = np.mean(
        moved**2, axis=(1, 2)
    )  # points of one truth move together, so that the truths are what is counted
    assert abs(each.mean() - 1) < 4 * each.std() / np.sqrt(len(each))
    assert abs(np.mean(noise**2) - 1) < 4 * np.sqrt(2 / noise.size)


def test_points_of_one_simulation_count_once(calibration):
    """The same simulation told twice over says no more: its points are right or wrong together."""
    rng = np.random.default_rng(0)
    make = lambda k, square: calibration.Row(2, 5, 0.3, k, "endpoint", "query", True, 0.0, square)
    rows = [make(k, float(rng.chisquare(2))) for k in range(50) for _ in range(4)]
    once, twice = (
        calibration.coverage(rows),
        calibration.coverage([row for row in rows for _ in range(2)]),
    )
    assert np.allclose(once.error, twice.error)
    apart = [dataclasses.replace(row, simulation=i) for i, row in enumerate(rows * 2)]
    assert np.all(calibration.coverage(apart).error[:3] < 0.85 * once.error[:3])


def test_the_clustered_error_is_that_of_redrawn_simulations(calibration):
    rng = np.random.default_rng(1)
    size = rng.uniform(
        0.5, 1.5, 60
    )  # within a simulation the regions are all too small, or all too large
    squared = size[:, None] * rng.chisquare(3, (60, 10))
    make = lambda k, square: calibration.Row(
        3, 5, 0.3, k, "endpoint", "query", True, 0.0, float(square)
    )
    found = calibration.coverage([make(k, square) for k in range(60) for square in squared[k]])
    inside = squared[:, :, None] <= np.array(
        [2.365973884, 4.641627676, 6.251388631, 7.814727903, 11.34486673]
    )
    redrawn = [100 * inside[rng.integers(60, size=60)].mean(axis=(0, 1)) for _ in range(4000)]
    assert np.allclose(found.held, 100 * inside.mean(axis=(0, 1)))
    assert np.allclose(
        found.error, np.std(redrawn, axis=0), rtol=0.08
    )  # 1 % chance, 1/(2·60) from n − 1, and more


def test_a_fit_that_did_not_converge_is_counted_not_dropped(calibration):
    make = lambda k, square, ended: calibration.Row(
        2, 5, 0.3, k, "endpoint", "query", ended, 0.0, square
    )
    found = calibration.coverage([make(0, 0.1, True), make(1, 100.0, False)])
    assert (found.simulations, found.lost) == (2, 1)
    assert np.all(found.held == 50)
    assert np.all(found.held_converged == 100)


def test_a_run_that_was_cut_short_ends_as_one_that_was_not(calibration, tmp_path):
    cells = [calibration.Cell(2, 12, 0.2)]
    arguments = argparse.Namespace(simulations=3, minutes=np.inf, seed=0, steps=20)
    calibration.run(tmp_path / "whole.csv", cells, arguments)
    whole = (tmp_path / "whole.csv").read_bytes()
    (tmp_path / "cut.csv").write_bytes(whole[: len(whole) // 2])
    calibration.run(tmp_path / "cut.csv", cells, arguments)
    assert (tmp_path / "cut.csv").read_bytes() == whole
