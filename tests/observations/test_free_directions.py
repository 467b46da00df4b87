"""Along its free directions a landmark says nothing, and nothing depends on it there."""

import warnings

import numpy as np
import pytest

import kunita
from kunita.errors import KunitaWarning, LandmarkError
from kunita.fitting import draw_rows
from kunita.observations.landmarks import LandmarkObservations, rows_of_known_directions
from kunita.outputs.summary import landmark_rows, summary
from problems import gp_displaced

N = 12
ALONG_X = [[1.0, 0.0, 0.0]]


@pytest.fixture(autouse=True)
def remarks_are_expected():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KunitaWarning)
        yield


def pairs():
    moving, fixed = gp_displaced(N, seed=3, side=60.0, rms=4.0)
    return moving, fixed + 0.3 * np.random.default_rng(3).normal(size=fixed.shape)


def test_estimates_and_errors_do_not_depend_on_where_a_landmark_is_along_them():
    moving, fixed = pairs()
    slid = fixed.copy()
    slid[4, 0] += 500.0
    here, there = (
        kunita.register(moving, kunita.Landmarks(side, free={4: ALONG_X})) for side in (fixed, slid)
    )
    assert there.kernel.length_scale == pytest.approx(here.kernel.length_scale, rel=1e-9)
    assert there.noise_mm == pytest.approx(here.noise_mm, rel=1e-9)
    assert there.evidence == pytest.approx(here.evidence, abs=1e-8)
    rows = [landmark_rows(reg) for reg in (here, there)]
    for name in ("before", "residuals", "loo_errors"):
        np.testing.assert_allclose(getattr(rows[1], name), getattr(rows[0], name), atol=1e-6)
    numbers = [summary(reg, of) for reg, of in zip((here, there), rows, strict=True)]
    assert numbers[1].initial_error_mm == pytest.approx(numbers[0].initial_error_mm, abs=1e-6)
    assert numbers[0].initial_error_mm == pytest.approx(here.facts.before_mm, abs=1e-9)


def test_the_typical_noise_is_that_along_known_directions():
    moving, fixed = pairs()
    noise = np.tile(np.diag([1e4, 0.25, 0.25]), (N, 1, 1))
    basis = np.tile(np.eye(3)[[1, 2, 0]], (N, 1, 1))
    known = rows_of_known_directions(np.full(N, 2))
    observed = LandmarkObservations(moving, fixed, noise, directions=basis, known=known)
    assert float(observed.noise_sd) == pytest.approx(0.5)


def test_what_they_leave_open_of_the_alignment_is_not_fitted():
    """On a line, known only along it: nothing says how the line is turned."""
    moving = np.zeros((8, 3))
    moving[:, 0] = 10.0 * np.arange(8)
    fixed = moving + [1.0, 2.0, 3.0] + 0.1 * np.random.default_rng(0).normal(size=(8, 3))
    free = [None, *[np.eye(3)[1:]] * 7]
    reg = kunita.register(
        moving, kunita.Landmarks(fixed, free=free), kernel=kunita.Gaussian(30.0, 2.0), noise=0.3
    )
    assert reg.converged
    assert np.isfinite(reg.posterior.predict(moving).covariance).all()
    assert any("3 of the directions" in remark for remark in reg.warnings)


def test_landmarks_that_all_have_some_need_no_alignment_and_get_none():
    moving, fixed = pairs()
    marked = kunita.Landmarks(fixed, None, 0.25, free=[ALONG_X] * N)
    with pytest.raises(LandmarkError, match="align='none'"):
        kunita.register(moving, marked, kernel=kunita.Gaussian(30.0, 4.0))
    reg = kunita.register(moving, marked, kernel=kunita.Gaussian(30.0, 4.0), align="none")
    assert reg.converged
    assert not reg.suspicion.suspect.any()


def test_a_suspicious_list_says_nothing_of_them():
    moving, fixed = pairs()
    mirrored = kunita.Landmarks(fixed * [-1, 1, 1], free={4: ALONG_X})
    found = kunita.register(moving, mirrored, kernel=kunita.Gaussian(30.0, 4.0), noise=0.5)
    assert found.suspicion.mirrored
    assert found.suspicion.suspect.tolist() == [row != 4 for row in range(N)]


def test_a_draw_of_very_many_has_landmarks_to_align():
    whole = np.arange(1000) < 12
    drawn = draw_rows(whole, 400)
    assert len(drawn) == 400
    assert set(range(12)) <= set(drawn.tolist())
