"""The formulas of the small-deformation model on a grid hold by a second route."""

import functools
import itertools

import numpy as np
import pytest
from scipy.linalg import null_space
from scipy.stats import chi2, multivariate_normal, multivariate_t

import kunita
from kunita.suspects.grid import HyperparameterGrid, Noise
from kunita.suspects.model import build_model_at
from kunita.suspects.point_sets import PointSets
from problems import rotation
from suspects.planted import ones, pairs


@functools.cache
def model(known, alike):
    """A model of 8 landmarks on a small grid, its noise alike along every axis or not, and all that
    it is made of."""
    x, f = pairs(14, n=8)
    sets = PointSets(x, f @ rotation(3, 14) - 5, "rigid")
    noise = np.array(ones(x)) * np.linspace(0.5, 2, 8)[:, None, None]
    if not alike:
        noise[0, 0, 1] = noise[0, 1, 0] = 0.2
    grid = np.array([[20.0, 2.0, 0.5], [60.0, 1.0, 0.0], [40.0, 0.0, 0.0]])
    turn, level = sets.rotation(np.arange(8)), np.mean(np.trace(noise, axis1=1, axis2=2)) / 3
    squared = np.sum((x[:, None] - x) ** 2, axis=2)
    blocks = np.zeros((24, 24))
    for i in range(8):
        blocks[3 * i : 3 * i + 3, 3 * i : 3 * i + 3] = turn.T @ noise[i] @ turn / level
    matrices = [
        np.kron(a**2 * np.exp(-squared / (2 * s**2)) + w**2 * np.eye(8), np.eye(3)) + blocks
        for s, a, w in grid
    ]
    points = HyperparameterGrid(grid, np.ones(len(grid)))
    found = build_model_at(sets, Noise(noise, known), points)
    return found, sets, [matrix * (level if known else 1.0) for matrix in matrices]


def density(matrix, basis, y, floor):
    """Of what no alignment can change, Nᵀy, N ⊥ H: normal, or Cauchy with a scale that is inverse
    gamma."""
    across, shape = null_space(basis.T), np.linalg.slogdet(basis.T @ basis)[1]
    inside = across.T @ matrix @ across
    if floor is None:
        return multivariate_normal(np.zeros(len(inside)), inside).logpdf(across.T @ y) - shape / 2
    return (
        multivariate_t(np.zeros(len(inside)), floor * inside, df=1).logpdf(across.T @ y) - shape / 2
    )


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("alike", [False, True])
def test_the_density_is_that_of_what_no_alignment_can_change(known, alike):
    found, sets, matrices = model(known, alike)
    y = sets.displacements(np.arange(8))
    misfit = found.misfit(y)
    expected = [density(m, sets.basis, y.ravel(), found.floor) for m in matrices]
    np.testing.assert_allclose(found.log_density(misfit), expected, rtol=1e-8)
    assert found.log_evidence(y) == pytest.approx(np.log(np.mean(np.exp(expected))))


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("alike", [False, True])
def test_leaving_out_is_to_have_never_seen(known, alike):
    found, sets, matrices = model(known, alike)
    y, kept = sets.displacements(np.arange(8)), np.repeat(~np.isin(np.arange(8), (2, 5)), 3)
    rest = found.without(2).without(5)
    misfit = rest.misfit(y)
    expected = [
        density(m[kept][:, kept], sets.basis[kept], y.ravel()[kept], found.floor) for m in matrices
    ]
    np.testing.assert_allclose(rest.log_density(misfit), expected, rtol=1e-8)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("alike", [False, True])
def test_all_exchanges_at_once_are_each_of_them(known, alike):
    found, sets, _ = model(known, alike)
    places = sets.turned_back(np.arange(8))
    at_once = found.swapped_log_evidence(places - sets.moving, places)
    for i, j in itertools.combinations(range(8), 2):
        order = np.arange(8)
        order[[i, j]] = [j, i]
        one = found.log_evidence(places[order] - sets.moving)
        assert [at_once[i, j], at_once[j, i]] == pytest.approx([one, one])


def test_a_chance_is_the_share_of_draws_that_lie_farther_off():
    """By simulation: parameters from what the others say of them, then the landmark given the
    others, again and again.

    τ² given the others is inverse gamma, and the landmark normal around what they predict, by
    conditioning the matrix.
    """
    found, sets, matrices = model(False, alike=False)
    y, i = sets.displacements(np.arange(8)), 3
    mine = np.repeat(np.arange(8) == i, 3)
    rng, vague = np.random.default_rng(0), 1e8 * sets.basis @ sets.basis.T
    logs = np.array(
        [
            density(m[~mine][:, ~mine], sets.basis[~mine], y.ravel()[~mine], found.floor)
            for m in matrices
        ]
    )
    weights = np.exp(logs - logs.max()) / np.exp(logs - logs.max()).sum()
    share = 0.0
    for weight, matrix in zip(weights, matrices, strict=True):
        whole = matrix + vague  # a wide prior on the alignment, in place of the flat one
        gain = np.linalg.solve(whole[~mine][:, ~mine], whole[~mine][:, mine]).T
        spread = whole[mine][:, mine] - gain @ whole[~mine][:, mine]
        misfit = y.ravel()[~mine] @ np.linalg.solve(whole[~mine][:, ~mine], y.ravel()[~mine])
        miss = y.ravel()[mine] - gain @ y.ravel()[~mine]
        freedom = np.sum(~mine) - sets.basis.shape[1] + 1
        variance = (misfit + found.floor) / rng.chisquare(freedom, 100_000)
        share += weight * np.mean(
            variance * rng.chisquare(3, 100_000) > miss @ np.linalg.solve(spread, miss)
        )
    chance = found.leave_one_out(y).chances[i]
    assert chance == pytest.approx(share, abs=4 * np.sqrt(chance / 100_000) + 1e-4)


def test_at_one_parameter_it_is_the_leave_one_out_of_a_registration():
    x, f = pairs(15, sd=0.5)
    f = (
        x + (f - 5) @ rotation(3, 15) - x
    )  # turned back: what is left is small, and a translation linear
    reg = kunita.register(
        x, f, kernel=kunita.Gaussian(30.0, 2.0), noise=1.5, align="translation", model="small"
    )
    sets = PointSets(x, f, "translation")
    noise = Noise(1.5**2 * ones(x), known=True)
    one = HyperparameterGrid(np.array([[30.0, 2.0 / 1.5, 0.0]]), np.ones(1))
    found = build_model_at(sets, noise, one)
    left = found.leave_one_out(sets.displacements(np.arange(15)))
    np.testing.assert_allclose(left.misses_mm, reg.loo.error, rtol=1e-6)
    np.testing.assert_allclose(left.chances, chi2.sf(reg.loo.chi2, 3), rtol=1e-5)
