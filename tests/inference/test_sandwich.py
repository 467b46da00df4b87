"""The sandwich: what an estimate errs by if its score has another covariance than it claims."""

import dataclasses

import numpy as np
import pytest

from kunita.flow import grid_flow
from kunita.flow.grid_flow import FlowCovariance
from kunita.flow.velocity_grid import grid_around
from kunita.inference import sandwich
from kunita.inference.conjugate import ConjugateOptions
from kunita.inference.lattice_model import LatticeModel, SiteInformation
from kunita.inference.lattice_posterior import LatticePosterior, PosteriorOptions, design_at
from kunita.inference.sandwich import SandwichRatio, sandwich_ratio, sandwich_ratios
from kunita.inference.trend import determined_trend
from kunita.observations.lattice import CellInformation, Lattice, LatticeAxis

SCALE = 8.0
TIGHT = ConjugateOptions(tolerance=1e-4, max_iterations=200)


def pooled(lattice, seed, wide=0.0):
    """Information of cells, rough and uneven."""
    rng = np.random.default_rng(seed)
    slopes = rng.normal(size=(lattice.num_cells, 2)) * rng.uniform(0.2, 3, (lattice.num_cells, 1))
    blocks = slopes[:, :, None] * slopes[:, None, :] + wide * np.eye(2)
    return CellInformation(lattice, np.ascontiguousarray(np.moveaxis(blocks, 0, -1), np.float32))


@pytest.fixture(scope="module", params=["none", "rigid"])
def made(request):
    """A posterior with two landmarks, with an alignment or without, and the score's covariance."""
    axes = tuple(LatticeAxis.covering(0.0, 71.0, SCALE / 2, 3) for _ in range(2))
    lattice = Lattice(axes, np.eye(3))
    grid = grid_around(lattice.nodes, np.eye(2), 2.5 * SCALE, 0.6 * SCALE, (2.0,), (SCALE,))
    fields = 0.3 * np.stack([grid.draw(np.random.default_rng(0), 2)] * 5)
    trend, _ = determined_trend(request.param, lattice.nodes)
    marks = np.array([[10.2, 11.7], [30.0, 40.0]])
    carried = grid_flow.carry(grid, fields, np.concatenate([lattice.nodes, marks]))
    model = LatticeModel(
        flow=FlowCovariance.by_gauss(grid, carried),
        design=design_at(trend, carried).transpose(2, 1, 0).astype(np.float32),
        information=SiteInformation(pooled(lattice, 1), np.stack([np.diag([4.0, 1.0])] * 2)),
    )
    options = PosteriorOptions(most_dense=10_000, conjugate=TIGHT)
    return LatticePosterior(model, trend, fields, options), pooled(lattice, 2, wide=2.0)


def errors_of_the_estimate(posterior, score):
    """The variance of each node's error, and the claimed one, by dense matrices.

    The estimate is the solution of (I + MΛ)l + MHβ = g, Hᵀl = 0, u = Λl + Hβ = Tg. With g = Mu + ν,
    ν ~ N(0, V), it errs by (I − TM)u − Tν. It does not see the alignment, as TMH = H.
    """
    model = posterior.model
    d, n = model.flow.psi.shape[2:]
    size = d * n
    units = np.eye(size, dtype=np.float32).reshape(size, d, n)
    covariance = model.flow.product(units).reshape(size, size).astype(float)
    claimed = model.information.product(units).reshape(size, size).astype(float)
    other = SiteInformation(score, model.information.marks)
    real = other.product(units).reshape(size, size).astype(float)
    design = model.design.reshape(len(model.design), size).T.astype(float)
    b = design.shape[1]
    whole = np.zeros((size + b, size + b))
    whole[:size, :size] = np.eye(size) + claimed @ covariance
    whole[:size, size:] = claimed @ design
    whole[size:, :size] = design.T
    solution = np.linalg.solve(whole, np.eye(size + b)[:, :size])
    response = covariance @ solution[:size] + design @ solution[size:]
    np.testing.assert_allclose(response @ claimed @ design, design, atol=1e-3)
    left = np.eye(size) - response @ claimed
    of_prior = np.diag(left @ covariance @ left.T)
    found = [of_prior + np.diag(response @ v @ response.T) for v in (real, claimed)]
    return [one.reshape(d, n).sum(axis=0) for one in found]


def test_ratios_are_those_of_the_errors_of_the_estimate(made):
    posterior, score = made
    real, claimed = errors_of_the_estimate(posterior, score)
    places = posterior.model.lattice.subset(3 * SCALE)
    expected = np.sqrt(real / claimed)[places]
    assert expected.min() > 1.1
    draws = posterior.draws(1000, key=0)
    everywhere = sandwich_ratios(posterior, draws, score, places, np.inf)
    near = sandwich_ratios(posterior, draws, score, places, sandwich.REACH * SCALE)
    # By chance: some 300 numbers are told, of which 1000 draws know √300/1000 of the excess.
    np.testing.assert_allclose(everywhere, expected, rtol=0.06)
    np.testing.assert_allclose(near, expected, rtol=0.06)
    assert np.median(near) == pytest.approx(np.median(expected), rel=0.03)


def test_a_score_as_claimed_has_the_ratio_one(made):
    posterior, _ = made
    claimed = posterior.model.information.cells
    draws = posterior.draws(16, key=0)
    assert sandwich_ratio(posterior, draws, claimed) == SandwichRatio(1.0, 1.0, 1.0)


def test_places_are_spread_over_what_is_informed(made):
    posterior, _ = made
    cells = posterior.model.information.cells
    half = np.array(cells.cells)
    half[..., : half.shape[-1] // 2] = 0
    places = sandwich._places(CellInformation(cells.lattice, half))
    chosen = cells.lattice.nodes[places]
    assert 20 <= len(places) <= 60
    assert chosen[:, 0].min() > 30
    assert np.ptp(chosen, axis=0).min() > 25


def test_where_images_say_nothing_there_is_no_ratio(made):
    posterior, score = made
    blank = CellInformation(score.lattice, np.zeros_like(score.cells))
    information = SiteInformation(blank, posterior.model.information.marks)
    model = dataclasses.replace(posterior.model, information=information)
    seen = dataclasses.replace(posterior, model=model)
    assert sandwich_ratio(seen, posterior.draws(16, key=0), blank) is None
