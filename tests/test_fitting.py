"""From checked pairs to a posterior: what the door itself does not show."""

import dataclasses

import jax
import numpy as np
import pytest

import kunita
from kunita import checks, fitting
from kunita.data.landmarks import match
from kunita.facts import console_summary
from problems import gp_displaced, registered


def marked(moving, fixed):
    """Pairs whose noise is to be estimated."""
    pairs = match(checks.as_landmarks(moving), checks.as_landmarks(fixed))
    return checks.check_noise(pairs, None, scale_noise=False)


def test_hyperparameters_of_very_many_landmarks_are_estimated_on_some():
    moving, fixed = gp_displaced(60, seed=2, side=100.0, d=2)
    fixed = fixed + np.random.default_rng(3).normal(size=fixed.shape)
    few = checks.Setting(model="small", estimation=checks.EstimationOptions(most_landmarks=40))
    rows = fitting.draw_rows(np.ones(60, bool), 40)
    with jax.enable_x64(True):
        found = fitting.fit_pairs(marked(moving, fixed), few)
        alone = fitting.fit_pairs(marked(moving[rows], fixed[rows]), checks.Setting(model="small"))
    assert found.estimate.parameters == alone.estimate.parameters
    assert len(found.weights) == 60
    told = dataclasses.replace(
        registered().facts, parameters=found.estimate.parameters, num_estimating=10
    )
    assert "of 10 of the landmarks" in console_summary(told)


def test_a_list_with_a_rhythm_is_drawn_from_in_every_direction():
    square = np.stack(np.meshgrid(*2 * [np.arange(20.0)], indexing="ij"), axis=-1).reshape(-1, 2)
    some = square[fitting.draw_rows(np.ones(400, bool), 100)]
    assert abs(np.corrcoef(some.T)[0, 1]) < 0.3
    assert fitting.draw_rows(np.ones(100, bool), 100) is None


def with_free_directions():
    """Twelve landmarks, of which one is known on a line and one on a plane only."""
    moving, fixed = gp_displaced(12, seed=5, rms=8.0)
    free = {3: [[1.0, 0.0, 0.0]], 5: [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]}
    names = [f"L{i}" for i in range(12)]
    return kunita.Landmarks(moving, names), kunita.Landmarks(fixed, names, free=free)


KERNEL = kunita.Gaussian(50.0, 5.0)


@pytest.mark.parametrize("robust", [False, True])
def test_what_a_landmark_does_not_know_changes_nothing(robust):
    """It may be anywhere along its free directions, and have any noise along them."""
    moving, fixed = with_free_directions()
    elsewhere = fixed.points.copy()
    elsewhere[3] += [700.0, 0, 0]
    elsewhere[5] += [-300.0, 40.0, 0]
    shifted = dataclasses.replace(fixed, points=elsewhere)
    noise = np.tile(np.eye(3), (12, 1, 1))
    vague = noise.copy()
    vague[3, 0, 0] = 50.0
    said = "not known along every direction: L3, L5;"
    with pytest.warns(kunita.KunitaWarning, match=said):
        here = kunita.register(moving, fixed, kernel=KERNEL, noise=noise, robust=robust)
    with pytest.warns(kunita.KunitaWarning, match=said):
        there = kunita.register(moving, shifted, kernel=KERNEL, noise=vague, robust=robust)
    assert here.converged
    assert not here.suspicion.suspect.any()
    places = moving.points + 5.0
    one, other = here.posterior.predict(places), there.posterior.predict(places)
    np.testing.assert_allclose(one.mean, other.mean, atol=1e-5)
    np.testing.assert_allclose(one.covariance, other.covariance, atol=1e-5)
    assert here.noise_mm == pytest.approx(there.noise_mm)
    assert here.facts.after_mm == pytest.approx(there.facts.after_mm, abs=1e-5)
    np.testing.assert_allclose(here.loo.error, there.loo.error, atol=1e-4)
    np.testing.assert_allclose(here.loo.chi2, there.loo.chi2, rtol=1e-4)
    np.testing.assert_array_equal(here.loo.known, [3, 3, 3, 2, 3, 1, *6 * [3]])


def test_without_a_landmark_that_is_wholly_known_there_is_no_start():
    moving, fixed = with_free_directions()
    some = kunita.Landmarks(fixed.points[:2], free=2 * [[[1.0, 0.0, 0.0]]])
    with pytest.raises(kunita.KunitaError, match="known along every direction"):
        kunita.register(moving.points[:2], some)


def test_a_suspect_among_landmarks_with_free_directions_is_named():
    moving, fixed = with_free_directions()
    wrong = fixed.points.copy()
    wrong[8] += [60.0, 0.0, 0.0]
    pairs = match(moving, dataclasses.replace(fixed, points=wrong))
    used = checks.check_noise(pairs, 1.0, scale_noise=False)
    found = checks.look_for_suspects(used, checks.Setting())
    assert np.flatnonzero(found.suspect).tolist() == [8]
    assert any("suspect: L8" in remark for remark in checks.pairing_remarks(pairs, used, found))
