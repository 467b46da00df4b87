"""The linear model at the nodes of a lattice: conjugate gradients, deflation, and the alignment."""

import dataclasses

import numpy as np
import pytest
import scipy.linalg

from kunita.flow import grid_flow
from kunita.flow.grid_flow import FlowCovariance
from kunita.flow.velocity_grid import grid_around
from kunita.inference import dense_solver, lattice_model
from kunita.inference.conjugate import ConjugateOptions, solve, solve_together
from kunita.inference.deflation import Deflation
from kunita.inference.dense_solver import DenseSolver
from kunita.inference.image_evidence import LinearisedImages
from kunita.inference.lattice_model import (
    LatticeModel,
    LatticeSystem,
    ProfiledInformation,
    SiteInformation,
)
from kunita.inference.lattice_posterior import LatticePosterior, PosteriorOptions, design_at
from kunita.inference.trend import determined_trend
from kunita.observations.lattice import CellInformation, Lattice, LatticeAxis

TIGHT = ConjugateOptions(tolerance=1e-6, max_iterations=400)


@dataclasses.dataclass
class Made:
    model: LatticeModel
    trend: object
    fields: np.ndarray

    @property
    def shape(self):
        return self.model.flow.psi.shape[2:]

    def matrices(self):
        """Λ, M and H as dense matrices."""
        d, n = self.shape
        units = np.eye(d * n, dtype=np.float32).reshape(d * n, d, n)
        covariance = self.model.flow.product(units).reshape(d * n, -1).astype(float)
        information = self.model.information.product(units).reshape(d * n, -1).astype(float)
        design = self.model.design.reshape(len(self.model.design), -1).T.astype(float)
        return covariance, information, design


@pytest.fixture(scope="module")
def made():
    axes = tuple(LatticeAxis.covering(0.0, 47.0, 8.0, 3) for _ in range(2))
    lattice = Lattice(axes, np.eye(3))
    grid = grid_around(lattice.nodes, np.eye(2), 40.0, 9.6, (3.0,), (16.0,))
    rng = np.random.default_rng(0)
    fields = 0.3 * np.stack([grid.draw(rng, 2)] * 5)
    trend, _ = determined_trend("rigid", lattice.nodes)
    marks = np.array([[10.2, 11.7], [30.0, 40.0]])
    sites = np.concatenate([lattice.nodes, marks])
    carried = grid_flow.carry(grid, fields, sites)
    cells = int(np.prod([len(axis.cells) for axis in axes]))
    slopes = rng.normal(size=(cells, 2)) * rng.uniform(0, 3, size=(cells, 1))
    blocks = slopes[:, :, None] * slopes[:, None, :]
    pooled = np.ascontiguousarray(np.moveaxis(blocks, 0, -1), np.float32)
    precisions = np.stack([np.diag([4.0, 1.0])] * 2)
    model = LatticeModel(
        flow=FlowCovariance.by_gauss(grid, carried),
        design=design_at(trend, carried).transpose(2, 1, 0).astype(np.float32),
        information=SiteInformation(CellInformation(lattice, pooled), precisions),
    )
    return Made(model, trend, fields)


def forces(made, count=3, seed=1):
    return np.random.default_rng(seed).normal(size=(count, *made.shape)).astype(np.float32)


def dense_solution(made, force):
    covariance, information, _ = made.matrices()
    size = len(covariance)
    flat = force.reshape(len(force), -1).T
    return np.linalg.solve(np.eye(size) + information @ covariance, flat).T.reshape(force.shape)


def test_conjugate_gradients_solve_the_system(made):
    force = forces(made)
    solved = solve(made.model.system, force, TIGHT)
    expected = made.model.flow.product(dense_solution(made, force).astype(np.float32))
    np.testing.assert_allclose(solved.moved, expected, atol=2e-3 * np.abs(expected).max())
    np.testing.assert_allclose(solved.moved, made.model.flow.product(solved.dual), atol=1e-2)


def test_columns_of_the_covariance_are_products_with_unit_forces(made):
    covariance, _, _ = made.matrices()
    d, n = made.shape
    chosen = np.array([3, 7, 20])
    columns = made.model.flow.columns(chosen).reshape(-1, d * n)
    expected = covariance.reshape(d, n, -1)[:, chosen].reshape(-1, d * n)
    np.testing.assert_allclose(columns, expected, atol=1e-5 * np.abs(expected).max())


def test_deflation_gives_the_same_answer_in_fewer_steps(made):
    force = forces(made)
    lattice = made.model.information.cells.lattice
    coarse = Deflation.of(made.model.system, lattice.subset(32.0))
    plain = solve(made.model.system, force, TIGHT)
    options = TIGHT
    deflated = solve(made.model.system, force, options, coarse)
    np.testing.assert_allclose(deflated.moved, plain.moved, atol=5e-3 * np.abs(plain.moved).max())
    assert deflated.num_iterations < plain.num_iterations


@pytest.mark.parametrize("distance", [None, 32.0], ids=["alone", "with a coarse space"])
def test_a_start_that_is_nearly_right_saves_steps_and_changes_nothing(made, distance):
    system = made.model.system
    force = forces(made, count=1)
    coarse = Deflation.of(system, made.model.lattice.subset(distance)) if distance else None
    options = ConjugateOptions(tolerance=1e-3, max_iterations=400)
    cold = solve(system, force, options, coarse)
    exact = dense_solution(made, force)
    nearby = (exact + 1e-2 * dense_solution(made, forces(made, 1, seed=2)))[0]
    relative = ConjugateOptions(tolerance=1e-1, max_iterations=400)
    warm = solve(system, force, relative, coarse, nearby.astype(np.float32))
    assert warm.num_iterations < cold.num_iterations
    expected = made.model.flow.product(exact.astype(np.float32))
    np.testing.assert_allclose(warm.moved, expected, atol=5e-3 * np.abs(expected).max())


def test_the_coarse_space_has_only_nodes_that_images_inform(made):
    lattice = made.model.information.cells.lattice
    everywhere = Deflation.at_informed(made.model.system, 32.0)
    marks = np.arange(lattice.num_nodes, made.model.system.shape[1])
    np.testing.assert_array_equal(everywhere.sites, [*lattice.subset(32.0), *marks])
    cells = np.array(made.model.information.cells.cells)
    half = cells.reshape(2, 2, *(len(axis.cells) for axis in lattice.axes))
    half[:, :, : half.shape[2] // 2] = 0
    seen = SiteInformation(CellInformation(lattice, cells), made.model.information.marks)
    some = Deflation.at_informed(LatticeSystem(made.model.flow, seen), 32.0)
    assert 0 < len(some.sites) < len(everywhere.sites)
    of_nodes = some.sites[some.sites < lattice.num_nodes]
    assert lattice.nodes[of_nodes, 0].min() > 10
    blank = SiteInformation(CellInformation(lattice, 0 * cells), made.model.information.marks)
    alone = Deflation.at_informed(LatticeSystem(made.model.flow, blank), 32.0)
    np.testing.assert_array_equal(alone.sites, marks)


def test_a_coarse_space_does_not_grow_without_end(made):
    usual = Deflation.at_informed(made.model.system, 16.0)
    limit = len(usual.sites)  # half of its unknowns
    smaller = Deflation.at_informed(made.model.system, 16.0, most=limit)
    assert 0 < 2 * len(smaller.sites) <= limit


def test_a_matrix_that_rounding_made_indefinite_is_still_factored():
    rng = np.random.default_rng(0)
    turn, _ = np.linalg.qr(rng.normal(size=(6, 6)))
    spoiled = turn @ np.diag([1e8, 1e3, 1.0, 1.0, -0.5, 0.2]) @ turn.T
    factor = dense_solver._factor_above_one(spoiled)
    found = scipy.linalg.cho_solve(factor, np.eye(6))
    expected = turn @ np.diag([1e-8, 1e-3, 1.0, 1.0, 1.0, 1.0]) @ turn.T
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_block_solves_every_system_in_fewer_steps(made):
    force = forces(made, count=12)
    system = made.model.system
    one_by_one = solve(system, force, TIGHT)
    block = solve_together(system, force, TIGHT)
    expected = made.model.flow.product(dense_solution(made, force).astype(np.float32))
    np.testing.assert_allclose(block.moved, expected, atol=2e-3 * np.abs(expected).max())
    assert block.num_iterations < one_by_one.num_iterations / 2


def test_a_block_with_a_coarse_space_gives_the_same_answer(made):
    force = forces(made, count=12)
    system = made.model.system
    coarse = Deflation.of(system, made.model.lattice.subset(32.0))
    plain = solve_together(system, force, TIGHT)
    deflated = solve_together(system, force, TIGHT, coarse)
    np.testing.assert_allclose(deflated.moved, plain.moved, atol=5e-3 * np.abs(plain.moved).max())


def test_a_block_may_hold_the_same_system_twice(made):
    """The residuals are then dependent, which plain block conjugate gradients cannot have."""
    force = forces(made, count=4)
    twice = np.concatenate([force, force])
    expected = made.model.flow.product(dense_solution(made, twice).astype(np.float32))
    block = solve_together(made.model.system, twice, TIGHT)
    np.testing.assert_allclose(block.moved, expected, atol=2e-3 * np.abs(expected).max())


def information_on(made, displacement):
    return made.model.information.product(displacement[None])[0]


def solve_profiled(made, force):
    profiled = ProfiledInformation.of(made.model.information, made.model.design)
    system = LatticeSystem(made.model.flow, profiled)
    return lattice_model.best_path(profiled, force, lambda pulling: solve(system, pulling, TIGHT))


def test_a_profiled_force_does_not_pull_at_the_alignment(made):
    """Hᵀl = 0 for the dual of the best path."""
    best = solve_profiled(made, forces(made, 1)[0])
    pulled = np.einsum("bdn,dn->b", made.model.design, best.dual, dtype=float)
    lengths = np.einsum("bdn,dn->b", np.abs(made.model.design), np.abs(best.dual), dtype=float)
    assert np.all(np.abs(pulled) < 2e-3 * lengths)


def test_matrices_and_products_solve_a_profiled_system_alike(made):
    force = forces(made, 1)[0]
    profiled = ProfiledInformation.of(made.model.information, made.model.design)
    system = LatticeSystem(made.model.flow, profiled)
    dense = DenseSolver.of(system)
    by_matrices = lattice_model.best_path(
        profiled, force, lambda pulling: dense.solved(system, pulling)
    )
    by_products = solve_profiled(made, force)
    largest = np.abs(by_products.moved).max()
    np.testing.assert_allclose(by_matrices.moved, by_products.moved, atol=1e-2 * largest)


def test_path_and_alignment_solve_the_joint_problem(made):
    """Against the saddle point (I + MΛ)l + MHβ = b + Mη, Hᵀl = 0."""
    covariance, information, design = made.matrices()
    force = forces(made, 1)[0]
    contribution = 0.1 * forces(made, 1, seed=2)[0]
    best = solve_profiled(made, force + information_on(made, contribution))
    size, b = design.shape
    whole = np.zeros((size + b, size + b))
    whole[:size, :size] = np.eye(size) + information @ covariance
    whole[:size, size:] = information @ design
    whole[size:, :size] = design.T
    right = np.concatenate([force.ravel() + information @ contribution.ravel(), np.zeros(b)])
    solution = np.linalg.solve(whole, right)
    moved = covariance @ solution[:size] + design @ solution[size:]
    np.testing.assert_allclose(best.shift, solution[size:], atol=5e-3 * np.abs(moved).max())
    np.testing.assert_allclose(best.moved.ravel(), moved, atol=1e-2 * np.abs(moved).max())


def posterior_of(made, most_dense):
    options = PosteriorOptions(most_dense=most_dense, conjugate=TIGHT, coarse=2.0)
    return LatticePosterior(made.model, made.trend, made.fields, options)


def test_covariances_are_those_of_conditioning_by_matrices(made):
    """Against Λ − ΛQΛ + GA⁻¹Gᵀ at the sites themselves."""
    covariance, information, design = made.matrices()
    size = len(covariance)
    q = np.linalg.solve(np.eye(size) + information @ covariance, information)
    loading = design - covariance @ q @ design
    aligned = loading @ np.linalg.solve(design.T @ q @ design, loading.T)
    expected = covariance - covariance @ q @ covariance + aligned
    posterior = posterior_of(made, most_dense=10_000)
    sites = made.model.flow.carried.positions[0]
    chosen = [3, 17, 40, len(sites) - 1]
    found = posterior.covariance(sites[chosen], sites[chosen])
    d, n = made.shape
    by_site = expected.reshape(d, n, d, n).transpose(1, 0, 3, 2)
    np.testing.assert_allclose(found, by_site[np.ix_(chosen, range(d), chosen)], atol=2e-3)


def test_solves_without_matrices_give_the_same_covariances(made):
    points = np.random.default_rng(3).uniform(0, 47, size=(6, 2))
    dense = posterior_of(made, most_dense=10_000).variances(points)
    free = posterior_of(made, most_dense=0).variances(points)
    np.testing.assert_allclose(free, dense, atol=0.02 * dense.max())
    joint = posterior_of(made, most_dense=10_000).covariance(points, points)
    np.testing.assert_allclose(np.einsum("iaib->iab", joint), dense, atol=1e-4)


@pytest.mark.parametrize("most_dense", [0, 10_000])
def test_draws_have_the_covariance_between_nodes_too(made, most_dense):
    points = np.random.default_rng(3).uniform(0, 47, size=(6, 2))
    exact = posterior_of(made, most_dense=10_000).variances(points)
    # A block of many systems would nearly fill the small space of this problem.
    few = ConjugateOptions(1e-4, max_iterations=100)
    options = PosteriorOptions(most_dense, conjugate=few, batch=8)
    posterior = dataclasses.replace(posterior_of(made, most_dense), options=options)
    count = 400
    deviations = posterior.draws(count, key=0).at(posterior.carry(points))
    found = np.einsum("sma,smb->mab", deviations, deviations) / count
    # Four standard errors of a covariance, and one per cent for the solves.
    scale = np.sqrt(np.einsum("ma,mb->mab", *2 * (np.einsum("maa->ma", exact),)))
    assert np.all(np.abs(found - exact) < (4 * np.sqrt(2 / count) + 0.01) * scale)


def test_draws_know_how_exactly_their_systems_were_solved(made):
    assert posterior_of(made, most_dense=10_000).draws(4, key=0).residual == 0
    by_products = posterior_of(made, most_dense=0)
    residual = by_products.draws(4, key=0).residual
    assert 0 < residual < 1e-4  # where single numbers end


def test_the_evidence_is_that_of_a_gaussian_model(made):
    """Against log N of pseudo-data with the covariance Λ + M⁻¹, differences between two kernels.

    Where M is invertible, exp(gᵀu − ½uᵀMu) is the density of data M⁻¹g with the covariance M⁻¹. A
    flat prior of the alignment is a Gaussian of very large variance.
    """
    covariance, information, design = made.matrices()
    size = len(covariance)
    lift = 0.5 * np.eye(size)
    force = forces(made, 1)[0]

    @dataclasses.dataclass(frozen=True)
    class Lifted(SiteInformation):
        def product(self, x):
            return made.model.information.product(x) + 0.5 * x

    old = made.model.information
    linearised = LinearisedImages(
        grid=made.model.flow.grid,
        carried=made.model.flow.carried,
        design=made.model.design,
        information=Lifted(old.cells, old.marks),
        force=force,
    )
    found = linearised.log_evidence(((3.0, 16.0),)) - linearised.log_evidence(((1.5, 16.0),))
    inverse = np.linalg.inv((information + information.T) / 2 + lift)
    data = inverse @ force.ravel()
    wide = 1e6 * design @ design.T

    def log_density(kernel):
        total = kernel + inverse + wide
        _, log_det = np.linalg.slogdet(total)
        return -0.5 * data @ np.linalg.solve(total, data) - 0.5 * log_det

    expected = log_density(covariance) - log_density(covariance / 4)
    # The matrices of the test are those of the grid, whose kernel differs by half a per cent.
    assert found == pytest.approx(expected, abs=0.1 + 0.01 * abs(expected))
