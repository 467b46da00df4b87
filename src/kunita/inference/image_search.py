"""Gauss–Newton over velocity paths for images, from coarse to fine.

The state is a velocity path and an alignment. A step linearises the images where the voxels have
arrived, finds the best path of the linear problem (`kunita.inference.lattice_model`), and goes a
share α of the way. The noise model is frozen within a step, so that the energy

    E = ½∫‖v‖² dt + ½Σ w r² + ½Σ (y − φ₁(x))ᵀD⁻¹(y − φ₁(x))

usually falls for small α, over the voxels that are seen before and after; α is halved until it
does. (`Intensities` departs from the gradient of E.) Between steps the noise is found
anew, and E may rise.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from kunita.flow import grid_flow
from kunita.flow.grid_flow import CarriedPoints, FlowCovariance, VelocityPath
from kunita.inference import conjugate
from kunita.inference.conjugate import ConjugateOptions
from kunita.inference.deflation import Deflation
from kunita.inference.dense_solver import DenseSolver
from kunita.inference.lattice_model import (
    LatticeModel,
    LatticeSystem,
    ProfiledInformation,
    SiteInformation,
    Solver,
    best_path,
)
from kunita.inference.trend import Alignment, Trend
from kunita.jaxrun.doors import Array, to_numpy
from kunita.observations import image_noise
from kunita.observations.decimation import decimation_factor
from kunita.observations.image_noise import ImageNoise, NoiseLimits, Surroundings
from kunita.observations.intensities import Comparison, Intensities, IntensityLevel

TINY = float(np.finfo(np.float64).tiny)
"""What a division by zero divides by instead."""

ROUGHLY = ConjugateOptions(tolerance=0.1, max_iterations=60)
"""Enough for a step of Gauss and Newton, beside a coarse space. Without one, hundreds of steps are
needed: on lung CT 43 of them reached a quarter of the fall in energy that 300 did."""


@dataclasses.dataclass(frozen=True)
class SearchOptions:
    """How a fit to images is searched for.

    Args:
        conjugate: when conjugate gradients end.
        settled: a level ends when the visible move is less than this share of τ.
        halvings: of a step at most.
        trust: the longest first trial, in units of τ.
        noise_window: width of the surroundings for the local variance, over the shortest scale.
        most_dense: up to so many unknowns matrices are factored.
        coarse: distance of the nodes in the coarse space, over the shortest scale in force.
    """

    conjugate: ConjugateOptions = ROUGHLY
    settled: float = 0.005
    halvings: int = 5
    trust: float = 1.0
    noise_window: float = 1.0
    most_dense: int = 900
    coarse: float = 2.8


DEFAULT_SEARCH = SearchOptions()


@dataclasses.dataclass(frozen=True, eq=False)
class Marks:
    """Landmarks beside the images, in the space of the flow.

    They say what `LandmarkObservations` with fixed covariances say, and are added to the images as
    `Together` adds kinds of observation. They are a class of their own because all else in this
    search is NumPy in single precision with the points last: the rows and sums of the other class
    are JAX's, and to compile them takes longer than a step. The precisions are found once, with the
    alignment that the search starts from, so that the energy of the landmarks does not change with
    the noise that the map carries over.

    Args:
        moving: (k, d) before the alignment.
        goals: (k, d) where they are to arrive.
        precisions: (k, d, d) D⁻¹.
    """

    moving: np.ndarray
    goals: np.ndarray
    precisions: np.ndarray

    @property
    def none(self) -> "Marks":
        """No landmarks, in the same dimension."""
        return Marks(self.moving[:0], self.goals[:0], self.precisions[:0])

    def energy(self, arrived: Float[Array, "k d"]) -> float:
        """½Σ (y − φ₁)ᵀD⁻¹(y − φ₁)."""
        miss = self.goals - arrived
        return 0.5 * float(np.einsum("ia,iab,ib->", miss, self.precisions, miss))

    def force(self, arrived: Float[Array, "k d"]) -> Float[Array, "k d"]:
        """D⁻¹(y − φ₁)."""
        miss = self.goals - arrived
        return np.einsum("iab,ib->ia", self.precisions, miss)


@dataclasses.dataclass(frozen=True, eq=False)
class ImageProblem:
    """What is given: nodes, landmarks, and the alignments that are possible.

    Args:
        nodes: (n, d) of the lattice, in moving space.
        marks: landmarks, or none.
        trend: the directions of the alignment.
    """

    nodes: np.ndarray
    marks: Marks
    trend: Trend

    @property
    def sites(self) -> Float[Array, "n d"]:
        return np.concatenate([self.nodes, self.marks.moving])


@dataclasses.dataclass(frozen=True, eq=False)
class ImageState:
    """A velocity path with its alignment, and what it does to images and landmarks.

    Args:
        path: the velocity.
        alignment: before the flow.
        carried: the sites.
        compared: the images where the voxels arrive.
        mark_energy: of the landmarks.
        dual: (d, n) l of the linear problems that led here, where the next one begins; None at
            first.
    """

    path: VelocityPath
    alignment: Alignment
    carried: CarriedPoints
    compared: Comparison
    mark_energy: float
    dual: np.ndarray | None = None

    def energy(
        self, noise: ImageNoise, norm2: float, counts: Float[Array, " k"] | None = None
    ) -> float:
        """E with a frozen noise model.

        Args:
            noise: of the images.
            norm2: ∫‖v‖² dt.
            counts: the voxels that are compared; None for all that can be.
        """
        images = self.compared.energy(noise, counts)
        return 0.5 * norm2 + images + self.mark_energy


@dataclasses.dataclass(frozen=True)
class LevelPlan:
    """One level of the pyramid.

    Args:
        iterations: at most.
        scales: which of the prior's scales are in force.
        least_decimation: what f is at least.
    """

    iterations: int
    scales: tuple[int, ...]
    least_decimation: float = 0.0


@dataclasses.dataclass(frozen=True)
class ImageProgress:
    """One line of the log of a search over images.

    Args:
        energy: before the step.
        noise_sd: the smallest s.
        decimation: f.
        move_mm: the visible move; if no step was accepted, that of the whole step.
        share: α; 0 if no step was accepted.
        num_conjugate: steps of conjugate gradients.
        level: counted from 0.
        iteration: counted from 0.
    """

    energy: float
    noise_sd: float
    decimation: float
    move_mm: float
    share: float
    num_conjugate: int
    level: int = 0
    iteration: int = 0

    @property
    def proposed_mm(self) -> float:
        """The visible move of the whole step."""
        return self.move_mm / (self.share or 1.0)


Listener = Callable[[ImageProgress], None]


class LevelSearch:
    """The search on one level, one step at a time.

    Args:
        problem: nodes, landmarks and alignments.
        level: the images at this smoothing.
        plan: what is done on this level.
        options: of the search.
        shortest: length scale of the prior, mm.
    """

    def __init__(
        self,
        problem: ImageProblem,
        level: IntensityLevel,
        plan: LevelPlan,
        options: SearchOptions,
        shortest: float,
    ) -> None:
        self.problem = problem
        self.level = level
        self.plan = plan
        self.options = options
        self.shortest = shortest
        self.window = options.noise_window * shortest / level.spacing

    def on(self, level: IntensityLevel) -> "LevelSearch":
        """The same search on other features."""
        return LevelSearch(self.problem, level, self.plan, self.options, self.shortest)

    @property
    def smallest_length(self) -> float:
        """What moves are measured in: τ, or the distance of the voxels that are compared, mm."""
        return max(self.level.smoothing, float(np.min(self.level.spacing)))

    def evaluate(
        self, path: VelocityPath, alignment: Alignment, dual: np.ndarray | None = None
    ) -> ImageState:
        """Follow a path to the images."""
        sites = np.asarray(alignment(self.problem.sites))
        carried = grid_flow.carry(path.grid, path.fields, sites)
        num_nodes = len(self.problem.nodes)
        whole = carried.jacobians[-1][:num_nodes] @ np.asarray(alignment.matrix)
        compared = self.level.compare(carried.arrived[:num_nodes], whole)
        mark_energy = self.problem.marks.energy(carried.arrived[num_nodes:])
        return ImageState(path, alignment, carried, compared, mark_energy, dual)

    def take_over(self, state: ImageState) -> ImageState:
        """Where a search on other features has ended, as this one sees it."""
        return self.evaluate(state.path, state.alignment, state.dual)

    def noise_model(self, compared: Comparison, decimation: float | None = None) -> ImageNoise:
        """The noise model where the voxels have arrived; f is found anew unless it is given."""
        slopes = compared.mean_slopes
        expected = image_noise.expected_variance(
            compared.residual, slopes, compared.informing, self._noise_limits
        )
        excess = image_noise.local_excess(
            compared.residual, expected, compared.informing, self._surroundings
        )
        variance = expected * excess
        tails = image_noise.huber_weights(compared.residual, variance)
        if decimation is None:
            decimation = max(self.decimation(compared, variance), self.plan.least_decimation)
        return ImageNoise(variance, excess, tails, decimation)

    @property
    def _surroundings(self) -> Surroundings:
        return Surroundings(self.level.view.shape, self.window)

    def share_informing(self, compared: Comparison) -> Float[Array, " k"]:
        """How much of what is around each voxel has a gradient."""
        return self._surroundings.share(compared.informing)

    @property
    def _noise_limits(self) -> NoiseLimits:
        """Where images are smoothed by more than a voxel, outlines lie beside their place by less.

        Offsets of neighbours are averaged: along an outline in planes by √(voxel/τ), over a surface
        in volumes by voxel/τ. The latter is taken for both; it matters on the finest level alone.
        """
        voxel = self.level.voxel
        unit = voxel * voxel / max(voxel, self.level.smoothing)
        return NoiseLimits(
            contrast=self.level.contrast,
            offsets=(image_noise.LEAST_OFFSET * unit, image_noise.MOST_OFFSET * unit),
        )

    def decimation(self, compared: Comparison, variance: Float[Array, "k c"]) -> float:
        """The decimation factor f of the residuals."""
        scale = compared.informing[:, None] / np.sqrt(variance)
        return decimation_factor(
            scale * compared.residual,
            scale[:, :, None] * compared.mean_slopes,
            self.level.view.shape,
            self.level.spacing,
            self.level.smoothing,
        )

    def linearise(self, state: ImageState, noise: ImageNoise) -> tuple[LatticeModel, np.ndarray]:
        """The linear model around a state, and the force b on the sites."""
        num_nodes = len(self.problem.nodes)
        images = Intensities(self.level, noise)
        slopes = state.compared.mean_slopes
        cells = images.condense(state.compared, slopes, slopes)
        marks = self.problem.marks
        of_nodes = images.force(state.compared)
        of_marks = marks.force(state.carried.arrived[num_nodes:])
        force = np.concatenate([of_nodes, of_marks.T.astype(np.float32)], axis=1)
        return self.model(state, SiteInformation(cells, marks.precisions)), force

    def model(self, state: ImageState, information: SiteInformation) -> LatticeModel:
        """The linear model with an information."""
        aligned = state.carried.positions[0]
        basis = np.asarray(self.problem.trend.basis(aligned))
        design = state.carried.jacobians[-1] @ basis
        flow = FlowCovariance.by_simpson(self.active(state.path.grid), state.carried)
        points_last = np.ascontiguousarray(design.transpose(2, 1, 0), np.float32)
        return LatticeModel(flow, points_last, information)

    def solver(self, system: LatticeSystem, start: np.ndarray | None = None) -> Solver:
        """How a linear problem is solved: a small one by matrices, a large one by products.

        A start is nearly the solution, such as that of the step before.

        Some nodes of the lattice make the coarse space, as far apart as the shortest scale in force
        asks for.
        """
        d, n = system.shape
        if d * n <= self.options.most_dense:
            dense = DenseSolver.of(system)
            return lambda force: dense.solved(system, force)
        distance = self.options.coarse * system.flow.grid.shortest
        coarse = Deflation.at_informed(system, distance)
        options = self.options.conjugate
        return lambda force: conjugate.solve(system, force, options, coarse, start)

    def active(self, grid: grid_flow.VelocityGrid) -> grid_flow.VelocityGrid:
        """The grid with the scales that are in force."""
        return grid.with_scales(self.plan.scales)

    def path_of(self, state: ImageState, dual: Float[Array, "d n"]) -> VelocityPath:
        """The path of a dual: the momenta Ψᵀl at the sites, the same for every scale in force."""
        like = state.path
        flow = FlowCovariance.by_simpson(self.active(like.grid), state.carried)
        duals = np.zeros_like(like.duals)
        coefficients = np.zeros_like(like.duals)
        for instant in range(duals.shape[1]):
            field = flow.pull_back(dual[None], instant)
            for scale in self.plan.scales:
                duals[scale, instant] = field
                coefficients[scale, instant] = like.grid.smooth(field, scale)
        return VelocityPath(like.grid, duals, coefficients)

    def visible_move(
        self, compared: Comparison, noise: ImageNoise, change: Float[Array, "d n"]
    ) -> float:
        """The root mean square of a displacement as far as the images see it, mm.

        d·Σ w(h·δ)²/Σ w|h|². The largest move of a node is a bad measure: nodes in blank areas move
        far.
        """
        slopes = compared.mean_slopes
        spread = self.level.view.spread(change)
        weights = noise.weights * compared.counts[:, None]
        along = np.einsum("kcd,dk->kc", slopes, spread)
        total = np.sum(weights * np.sum(slopes**2, axis=2), dtype=np.float64)
        seen = np.sum(weights * along**2, dtype=np.float64)
        d = len(change)
        return float(np.sqrt(d * seen / max(total, TINY)))


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """A step of Gauss and Newton.

    Args:
        state: after it.
        progress: for the log.
        has_settled: whether it is the last that this level needs.
    """

    state: ImageState
    progress: ImageProgress
    has_settled: bool


def search_level(
    search: LevelSearch, start: ImageState, number: int, listener: Listener
) -> ImageState:
    """All steps of one level.

    Args:
        search: the level.
        start: where it begins.
        number: of the level.
        listener: is told of every step.
    """
    state = start
    for iteration in range(search.plan.iterations):
        step = take_step(search, state)
        state = step.state
        listener(dataclasses.replace(step.progress, level=number, iteration=iteration))
        if step.has_settled:
            break
    return state


def take_step(search: LevelSearch, state: ImageState) -> Step:
    """Linearise, solve, and go as far as the energy falls."""
    noise = search.noise_model(state.compared)
    proposal = _propose(search, state, noise)
    longest = search.options.trust * search.smallest_length
    share = min(1.0, longest / max(proposal.move, TINY))
    new, share = _shorten(search, state, noise, proposal, share)
    progress = ImageProgress(
        energy=state.energy(noise, state.path.inner(state.path)),
        noise_sd=float(np.sqrt(noise.variance.min())),
        decimation=noise.decimation,
        move_mm=proposal.move * (share or 1.0),
        share=share,
        num_conjugate=proposal.num_conjugate,
    )
    is_still = share == 1 and proposal.move < search.options.settled * search.smallest_length
    return Step(new, progress, has_settled=is_still or share == 0)


@dataclasses.dataclass(frozen=True, eq=False)
class Proposal:
    """Where the linear problem leads.

    Args:
        goal: the best path.
        dual: (d, n) l, of which it is made.
        shift: (b,) the change of the alignment.
        move: how far the images see it, mm.
        num_conjugate: steps of conjugate gradients.
    """

    goal: VelocityPath
    dual: np.ndarray
    shift: np.ndarray
    move: float
    num_conjugate: int


def _propose(search: LevelSearch, state: ImageState, noise: ImageNoise) -> Proposal:
    """Linearise and solve."""
    model, force = search.linearise(state, noise)
    contribution = state.carried.contribution.T.astype(np.float32)
    whole = force + model.information.product(contribution[None])[0]
    profiled = ProfiledInformation.of(model.information, model.design)
    solver = search.solver(LatticeSystem(model.flow, profiled), state.dual)
    best = best_path(profiled, whole, solver)
    num_nodes = len(search.problem.nodes)
    change = best.moved - contribution
    return Proposal(
        goal=search.path_of(state, best.dual),
        dual=best.dual,
        shift=best.shift,
        move=search.visible_move(state.compared, noise, change[:, :num_nodes]),
        num_conjugate=best.num_iterations,
    )


def _shorten(
    search: LevelSearch,
    state: ImageState,
    noise: ImageNoise,
    proposal: Proposal,
    share: float,
) -> tuple[ImageState, float]:
    """The first of shorter and shorter steps that lowers the energy, and its share; 0 if none."""
    goal = proposal.goal
    own = state.path.inner(state.path)
    cross = state.path.inner(goal)
    theirs = goal.inner(goal)
    for _ in range(search.options.halvings):
        path = state.path.towards(goal, share)
        alignment = to_numpy(search.problem.trend.move(state.alignment, share * proposal.shift))
        new = search.evaluate(path, alignment, _towards(state.dual, proposal.dual, share))
        rest = 1 - share
        norm2 = rest**2 * own + 2 * share * rest * cross + share**2 * theirs
        # Voxels enter and leave the fixed image and its mask. Both energies are of those that are
        # inside before and after, so that neither leaving nor entering pays. (On a whitened level
        # one that leaves still changes its neighbours' filtered residuals a little.)
        common = state.compared.counts * new.compared.counts
        before = state.energy(noise, own, common)
        if common.any() and new.energy(noise, norm2, common) < before:
            return new, share
        share /= 2
    return state, 0.0


def _towards(
    dual: Float[Array, "d n"] | None, goal: Float[Array, "d n"], share: float
) -> Float[Array, "d n"]:
    """A share of the way to a dual, from zero if there is none yet."""
    return share * goal if dual is None else dual + share * (goal - dual)
