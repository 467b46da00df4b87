"""The most probable flow between two images, from coarse to fine."""

import dataclasses
from collections.abc import Iterator

import numpy as np
from jaxtyping import Float

from kunita.flow.grid_flow import VelocityPath
from kunita.flow.velocity_grid import VelocityGrid, grid_around
from kunita.inference.conjugate import ConjugateOptions
from kunita.inference.image_search import (
    DEFAULT_SEARCH,
    ImageProblem,
    ImageProgress,
    ImageState,
    LevelPlan,
    LevelSearch,
    Listener,
    Marks,
    SearchOptions,
    search_level,
)
from kunita.inference.trend import Alignment, Trend
from kunita.jaxrun.doors import Array
from kunita.observations.image_pair import ImagePair, Smoothing
from kunita.observations.lattice import Lattice

Scales = tuple[tuple[float, float], ...]
"""(amplitude, length scale) of the prior's Gaussians, mm, the longest first."""


@dataclasses.dataclass(frozen=True)
class PyramidLevel:
    """One level: its smoothing, and how much is done.

    Args:
        smoothing: of the images.
        iterations: at most.
        whitens: whether noise that is correlated by itself is divided out.
        search: the steps.
    """

    smoothing: Smoothing
    iterations: int
    whitens: bool = False
    search: SearchOptions = DEFAULT_SEARCH


@dataclasses.dataclass(frozen=True)
class ImageFitOptions:
    """How a flow between images is discretised and searched for.

    Args:
        levels: from coarse to fine.
        node_spacing: of the lattice, over the shortest length scale.
        grid_spacing: of the velocity grid, over the shortest length scale.
        num_steps: of Runge and Kutta.
        onset: a scale is in force from the first level whose τ (in mm) is at most this share of it.
    """

    levels: tuple[PyramidLevel, ...]
    node_spacing: float = 0.5
    grid_spacing: float = 0.6
    num_steps: int = 2
    onset: float = 0.5


@dataclasses.dataclass(frozen=True, eq=False)
class ImageFit:
    """A fitted flow.

    Args:
        lattice: the nodes.
        problem: nodes, landmarks and alignments.
        grid: of the velocity.
        search: the last level.
        state: where the search ended.
        history: its log.
    """

    lattice: Lattice
    problem: ImageProblem
    grid: VelocityGrid
    search: LevelSearch
    state: ImageState
    history: tuple[ImageProgress, ...]


def standard_levels(dimension: int, num_voxels: int) -> tuple[PyramidLevel, ...]:
    """Levels for an image with so many voxels along its shortest axis.

    Planes have one more, sharper than a voxel. Between 0.5 and 1 voxel, 0.7 had the regions nearest
    to what they say on textures with known truth, and labels of brains agreed better (Dice .733
    against .723 on six tuning pairs).
    """
    widths = [1.0]
    while num_voxels / (2 * widths[0]) >= 14:
        widths.insert(0, 2 * widths[0])
    return _levels_of_planes(widths) if dimension == 2 else _levels_of_volumes(widths)


def first_look(levels: tuple[PyramidLevel, ...]) -> tuple[PyramidLevel, ...]:
    """All levels but the finest. The last of them is searched to its end, as no other continues."""
    *coarser, last = levels[:-1]
    to_its_end = dataclasses.replace(last, iterations=QUICK_ITERATIONS, search=NEARLY_EXACT)
    return (*coarser, to_its_end)


def _levels_of_planes(widths: list[float]) -> tuple[PyramidLevel, ...]:
    smooth = [
        PyramidLevel(Smoothing(width, 0.5), iterations=4, search=NEARLY_EXACT) for width in widths
    ]
    sharpest = Smoothing(SHARPEST, 1.0)
    last = PyramidLevel(sharpest, iterations=10, whitens=True, search=NEARLY_EXACT)
    return (*smooth, last)


def _levels_of_volumes(widths: list[float]) -> tuple[PyramidLevel, ...]:
    coarse = [PyramidLevel(Smoothing(width, 1.5), iterations=3) for width in widths[:-1]]
    finest = Smoothing(widths[-1], 1.5)
    last = PyramidLevel(finest, iterations=6, whitens=True, search=AT_LAST)
    return (*coarse, last)


SHARPEST = 0.7
"""The least smoothing of planes, in voxels."""

QUICK_ITERATIONS = 12
"""On the last level of a first look."""

KEPT_DECIMATION = 0.25
"""On levels sharper than a voxel the decimation factor is at least this share of what it is on the
level of one voxel. On one of fourteen pairs of brains it collapsed to one there."""

NEARLY_EXACT = SearchOptions(
    conjugate=ConjugateOptions(tolerance=0.01, max_iterations=80), coarse=2.1
)
"""Planes can afford more exact steps (Dice .730 against .726 on six tuning pairs)."""

AT_LAST = SearchOptions(conjugate=ConjugateOptions(tolerance=0.02, max_iterations=150), coarse=2.1)
"""In volumes the steps of the last level are more exact than those before, or the fit ends beside
its mode and regions hold too little. Each step goes on where the one before has ended, so that six
of them are enough: on six volumes with known truth (condition V, seeds 0 to 5) regions of 50, 80
and 95 % hold 49, 78 and 93 %, and 37, 64 and 84 % with a tolerance of 0.1. On lung CT, which was
looked at with some forty settings of the search, the mean error is 1.45 to 1.57 mm with all of
them."""


def standard_options(dimension: int, levels: tuple[PyramidLevel, ...]) -> ImageFitOptions:
    """How images are fitted with a prior of two scales.

    In 3-D nodes are farther apart and time steps longer, which takes a fraction of the time.
    """
    if dimension == 2:
        return ImageFitOptions(levels, node_spacing=0.5, grid_spacing=0.6, num_steps=4)
    return ImageFitOptions(levels, node_spacing=0.7, grid_spacing=0.8, num_steps=2)


def options_for(
    dimension: int, levels: tuple[PyramidLevel, ...], scales: Scales
) -> ImageFitOptions:
    """How images are fitted with a prior: with one scale patiently, on closer nodes."""
    options = standard_options(dimension, levels)
    if len(scales) > 1:
        return options
    *coarser, last = levels
    end = last if dimension == 2 else _to_the_mode(last)
    patient = (*map(_patient, coarser), end)
    return dataclasses.replace(options, levels=patient, node_spacing=CLOSE[dimension])


CLOSE = {2: 0.4, 3: 0.5}
"""The distance of the nodes over the length scale where the prior has one scale only, by dimension.
What the lattice misreads of a flow, 0.05·a·exp(6a/σ)·(h/σ)⁴ with nodes h apart (fitted to draws
from the prior), passes for noise. On textures that move by ten pixels (condition B of
benchmarks/image_truth.py, seeds 0 to 11) errors were 0.12 px with nodes half a length scale apart
and are 0.08, and regions that should hold 50, 80 and 95 % held 43, 69 and 87 % and hold 51, 80 and
94. Where there is a second scale, it takes up what the longer one leaves, and closer nodes take
half as long again for nothing (Dice lower by 0.002 on five tuning pairs)."""

PATIENCE = 2
"""With a prior of one scale the coarse levels take so many times the steps."""

NARROW = 1 / 3
"""There, the local variance of the noise is that of surroundings so many times as wide: a part that
is still far off weighs little, and its neighbours all that they can. Of nine textures that moved by
ten pixels and had failed, two still did. A prior of two scales is better stopped early, as what its
longer one leaves is for the shorter one: with twice the steps labels of brains agree worse (Dice
lower by 0.004 ± 0.001 on ten tuning pairs)."""


def beside_marks(options: ImageFitOptions) -> ImageFitOptions:
    """The options with a last level that is searched more exactly, for images with landmarks.

    The forces of exact landmarks are large, and a share of their residual hides what the images
    still ask for.
    """
    *coarser, last = options.levels
    return dataclasses.replace(options, levels=(*coarser, _to_the_mode(last)))


def _to_the_mode(level: PyramidLevel) -> PyramidLevel:
    """The last level, searched more exactly: in volumes images tell a smooth flow better.

    Of condition V (seeds 0 to 5) errors are 0.14 voxels then, and 0.17 with the other steps, where
    regions of 50, 80 and 95 % held 35, 61 and 83 %.
    """
    conjugate = ConjugateOptions(tolerance=0.002, max_iterations=150)
    search = dataclasses.replace(level.search, conjugate=conjugate)
    return dataclasses.replace(level, iterations=10, search=search)


def _patient(level: PyramidLevel) -> PyramidLevel:
    """A coarse level that is searched for longer, with narrower surroundings."""
    search = dataclasses.replace(level.search, noise_window=NARROW * level.search.noise_window)
    return dataclasses.replace(level, iterations=PATIENCE * level.iterations, search=search)


@dataclasses.dataclass(frozen=True, eq=False)
class ImageTask:
    """A pair of images that is to be fitted, with any prior.

    Args:
        pair: the images.
        alignment: from moving space to that of the flow, where the search starts.
        trend: the directions of the alignment.
        marks: landmarks.
    """

    pair: ImagePair
    alignment: Alignment
    trend: Trend
    marks: Marks


def fit_images(
    task: ImageTask, scales: Scales, options: ImageFitOptions, listener: Listener
) -> ImageFit:
    """Fit a flow.

    Args:
        task: the images.
        scales: of the prior.
        options: of the fit.
        listener: is told of every step.
    """
    lattice = task.pair.lattice(options.node_spacing * _shortest(scales))
    problem = ImageProblem(lattice.nodes, task.marks, task.trend)
    grid = _velocity_grid(task, problem, scales, options)
    history: list[ImageProgress] = []
    note = _noting(history, listener)
    state = None
    at_rest = VelocityPath.at_rest(grid, options.num_steps)
    for number, level in enumerate(options.levels):
        plan = _plan(task.pair, scales, level, options, history)
        features = task.pair.level(lattice, level.smoothing)
        search = LevelSearch(problem, features, plan, level.search, _shortest(scales))
        start = search.take_over(state) if state else search.evaluate(at_rest, task.alignment)
        search, start = whitened(search, start) if level.whitens else (search, start)
        state = search_level(search, start, number, note)
    assert state is not None
    return ImageFit(lattice, problem, grid, search, state, tuple(history))


def _noting(history: list[ImageProgress], listener: Listener) -> Listener:
    """A listener that keeps every line, and passes it on."""

    def note(line: ImageProgress) -> None:
        history.append(line)
        listener(line)

    return note


def whitened(search: LevelSearch, state: ImageState) -> tuple[LevelSearch, ImageState]:
    """The same level and state with noise that is correlated by itself divided out, if it is."""
    features = search.level.whitened(state.compared, search.shortest)
    if features.whitening is None:
        return search, state
    filtered = search.on(features)
    return filtered, filtered.take_over(state)


def _least_decimation(level: PyramidLevel, history: list[ImageProgress]) -> float:
    """What f is at least on a level, given the log of the levels before."""
    is_sharp = level.smoothing.width < 1
    return KEPT_DECIMATION * history[-1].decimation if is_sharp and history else 0.0


def _shortest(scales: Scales) -> float:
    return min(length for _, length in scales)


def _velocity_grid(
    task: ImageTask, problem: ImageProblem, scales: Scales, options: ImageFitOptions
) -> VelocityGrid:
    """A grid around the aligned sites."""
    shortest = _shortest(scales)
    return grid_around(
        np.asarray(task.alignment(problem.sites)),
        _frame(task.pair, task.alignment),
        reach=(1.5 + 3 * options.grid_spacing) * shortest,
        spacing=options.grid_spacing * shortest,
        amplitudes=tuple(amplitude for amplitude, _ in scales),
        length_scales=tuple(length for _, length in scales),
    )


def _plan(
    pair: ImagePair,
    scales: Scales,
    level: PyramidLevel,
    options: ImageFitOptions,
    history: list[ImageProgress],
) -> LevelPlan:
    """What is done on a level, given the log of the levels before."""
    lengths = tuple(length for _, length in scales)
    return LevelPlan(
        iterations=level.iterations,
        scales=tuple(_in_force(pair, lengths, level, options)),
        least_decimation=_least_decimation(level, history),
    )


def _in_force(
    pair: ImagePair, lengths: tuple[float, ...], level: PyramidLevel, options: ImageFitOptions
) -> Iterator[int]:
    """The scales that are long enough for the smoothing of a level; the longest always is."""
    smoothing = level.smoothing.width * pair.voxel
    is_last = level is options.levels[-1]
    for number, length in enumerate(lengths):
        if number == 0 or is_last or smoothing <= options.onset * length:
            yield number


def _frame(pair: ImagePair, alignment: Alignment) -> Float[Array, "d d"]:
    """The moving image's axes as the alignment turns them, made orthonormal, in rows."""
    d = pair.moving.dimension
    axes = np.asarray(alignment.matrix) @ pair.moving.affine[:d, :d]
    u, _, vt = np.linalg.svd(axes / pair.moving.spacing)
    return (u @ vt).T
