"""The numbers that summarise an uncertain point."""

import numpy as np
import pytest

from kunita.errors import ArgumentError
from kunita.gaussians import GaussianPoints


@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize("level", [0.5, 0.95, 0.99])
def test_the_ball_holds_its_probability(d, level):
    """Monte Carlo, 5 standard errors; isotropic, elongated and flat covariances."""
    rng = np.random.default_rng(0)
    for axes in ([1.0, 1.0, 1.0], [3.0, 0.5, 0.2], [2.0, 2.0, 0.0], [1.0, 0.0, 0.0]):
        root = np.linalg.qr(rng.normal(size=(d, d)))[0] * axes[:d]
        radius = GaussianPoints(np.zeros((1, d)), (root @ root.T)[None]).radius(level)[0]
        draws = np.linalg.norm(rng.normal(size=(200_000, d)) @ root.T, axis=1)
        assert np.mean(draws <= radius) == pytest.approx(
            level, abs=5 * np.sqrt(level * (1 - level) / 200_000)
        )


def test_summaries_of_an_isotropic_point():
    point = GaussianPoints(np.zeros((1, 3)), 4 * np.eye(3)[None])
    assert point.std[0] == pytest.approx(2)
    assert point.frobenius[0] == pytest.approx(4 * np.sqrt(3))
    assert point.radius(0.95)[0] == pytest.approx(2 * np.sqrt(7.814728), rel=1e-4)  # χ²₃ at 0.95


def test_a_certain_point_has_radius_zero_and_bad_levels_are_refused():
    sure = GaussianPoints(np.zeros((1, 2)), np.zeros((1, 2, 2)))
    assert sure.radius()[0] == 0
    with pytest.raises(ArgumentError, match="level"):
        sure.radius(1.0)
