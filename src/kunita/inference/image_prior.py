"""The prior of an image pair, chosen by the evidence around one flexible fit.

Too stiff a prior ruins coverage, too flexible a one only widens it. So the fit that priors are
compared around is flexible, on a lattice that is fine enough for the shortest scale that may be
chosen.

Evidences are found by matrices, on blocks of that lattice which are small enough for them. The
blocks that see most of the images are taken, and their log evidences are added, each with an
alignment of its own: what is left of the others' flow in a block is mostly that. Blocks of one
pair are compared by the same voxels and the same noise whatever the prior.
"""

import dataclasses
import itertools

import numpy as np
from jaxtyping import Float

from kunita.inference.image_evidence import (
    APART,
    EvidenceOptions,
    JointEvidence,
    LinearisedImages,
    ScaleLimits,
    best_scales,
    most_flexible,
)
from kunita.inference.image_fit import (
    ImageFit,
    ImageFitOptions,
    ImageTask,
    PyramidLevel,
    Scales,
    fit_images,
    whitened,
)
from kunita.inference.image_search import ImageProblem, LevelSearch, Listener
from kunita.jaxrun.doors import Array
from kunita.observations.image_pair import ImagePair
from kunita.observations.intensities import IntensityLevel
from kunita.observations.lattice import Lattice

LONG = 0.2
SHORT = {2: 0.05, 3: 0.08}
"""Length scales of the flexible fit, over the extent of the image; the short one by dimension."""

STEEP = 0.2
"""Amplitude over length scale of the flexible fit."""

SHORTEST_VOXELS = 5.0
"""The shortest length scale that may be chosen, in voxels."""

MOST_NODES = {2: 6000, 3: 20_000}
"""Nodes of the lattice that the shortest scale may ask for, by dimension."""

BLOCK_NODES = {2: 16, 3: 7}
"""Nodes of a block along each axis, by dimension."""

BLOCKS = {2: 4, 3: 2}
"""So many blocks are compared, by dimension."""

LONGEST = (0.25, 0.1)
LEAST_STEEPNESS = 0.1
"""The longest length scales over the extent of the image, and the least amplitude over its length
scale, that may be chosen. Anatomy does not deform alike everywhere. Most of a brain that sinks
moves smoothly, and the evidence would ask for one scale of 84 mm or more; the 95 % regions around
the tumour then hold none of the true places, and 99 % of them with these limits (`kunita demo
--images`). They were set on that pair and on one of lung CT, whose mean error fell from 1.57 to
1.46 mm."""

WORTH_A_SCALE = 5.0
"""The gain in log evidence from which on a second scale is taken in planes. Volumes always have
one."""


def default_scales(pair: ImagePair) -> Scales:
    """A flexible prior for images of this size, the longest scale first."""
    extent = pair.extent
    long = LONG * extent
    short = max(SHORT[pair.moving.dimension] * extent, SHORTEST_VOXELS * pair.voxel)
    return ((STEEP * long, long), (STEEP * short, short))


def rough_options(options: ImageFitOptions) -> ImageFitOptions:
    """How the flexible fit is made: without the finest level."""
    return dataclasses.replace(options, levels=_rough_levels(options.levels))


def choose_scales(task: ImageTask, rough: ImageFitOptions, listener: Listener) -> Scales:
    """Two scales, or in planes one if a second does not add enough to the evidence.

    Args:
        task: the images.
        rough: how the flexible fit is made.
        listener: is told of every step of it.
    """
    pair = task.pair
    scales = default_scales(pair)
    fit = _whitened(fit_images(task, scales, rough, listener))
    spacing = rough.node_spacing * scales[-1][1]
    joint = JointEvidence(tuple(_blocks(task, fit, rough.levels[-1], spacing))).log_evidence
    limits = _limits(pair, rough.node_spacing)
    search = EvidenceOptions()
    best, of_best = best_scales(joint, scales, limits, search)
    if pair.moving.dimension == 2:
        single, of_single = best_scales(joint, scales[:1], limits, search)
        best = best if of_best > of_single + WORTH_A_SCALE else single
    return most_flexible(joint, best, limits, search)


def _rough_levels(levels: tuple[PyramidLevel, ...]) -> tuple[PyramidLevel, ...]:
    """All but the finest, or the only one; none whitens before the fit has ended."""
    return tuple(dataclasses.replace(level, whitens=False) for level in levels[:-1] or levels)


def _whitened(fit: ImageFit) -> ImageFit:
    """The fit with noise that is correlated by itself divided out, if it is.

    Else that noise passes for displacements on a short scale.
    """
    search, state = whitened(fit.search, fit.state)
    return dataclasses.replace(fit, search=search, state=state)


def _limits(pair: ImagePair, node_spacing: float) -> ScaleLimits:
    """What may be chosen for a pair."""
    shortest = _shortest_scale(pair, node_spacing)
    shares = np.array(LONGEST) * pair.extent
    # In small images the shortest scale must still fit, and a longer one beside it.
    needed = shortest * APART ** np.arange(len(LONGEST))[::-1]
    longest = tuple(np.maximum(shares, needed).tolist())
    return ScaleLimits(shortest, longest, LEAST_STEEPNESS)


def _shortest_scale(pair: ImagePair, node_spacing: float) -> float:
    """The shortest length scale that a lattice of reasonable size can carry, mm."""
    d = pair.moving.dimension
    volume = float(np.prod(pair.edges))
    by_nodes = (volume / MOST_NODES[d]) ** (1 / d) / node_spacing
    return max(SHORTEST_VOXELS * pair.voxel, by_nodes)


def _blocks(
    task: ImageTask, fit: ImageFit, level: PyramidLevel, spacing: float
) -> list[LinearisedImages]:
    """What the images say around a fit, in the blocks that see most of the moving image."""
    pair = task.pair
    decimation = fit.search.noise_model(fit.state.compared).decimation
    edge = (BLOCK_NODES[pair.moving.dimension] - 3) * spacing
    found = []
    for box in _fullest(fit, _boxes(pair, edge)):
        part = _part(pair, box)
        lattice = part.lattice(spacing)
        features = _as_whitened(part.level(lattice, level.smoothing), fit.search.level)
        found.append(_linearised(task, fit, lattice, features, decimation))
    return found


def _as_whitened(features: IntensityLevel, whole: IntensityLevel) -> IntensityLevel:
    """A part of the images with the filter of the whole, if that has one."""
    if whole.whitening is None:
        return features
    own = dataclasses.replace(whole.whitening, shape=features.view.shape)
    return dataclasses.replace(features, whitening=own)


Box = tuple[slice, ...]
"""Of voxels."""


def _part(pair: ImagePair, box: Box) -> ImagePair:
    """A pair of which only a box of the moving image counts."""
    moving = pair.moving
    mask = np.zeros_like(moving.mask)
    mask[box] = moving.mask[box]
    return dataclasses.replace(pair, moving=dataclasses.replace(moving, mask=mask))


def _boxes(pair: ImagePair, edge: float) -> list[Box]:
    """Boxes of about this edge, mm, that cover the box of what counts of the moving image."""
    low, high = pair.moving.box()
    axes = zip(low, high, pair.moving.spacing, strict=True)
    cuts = [_cuts(int(first), int(last) + 1, edge / step) for first, last, step in axes]
    return list(itertools.product(*cuts))


def _cuts(first: int, end: int, width: float) -> list[slice]:
    """Parts of one size, in voxels, that cover an axis; they overlap evenly."""
    whole = min(int(np.ceil(width)), end - first)
    count = int(np.ceil((end - first) / whole))
    starts = np.linspace(first, end - whole, count).astype(int)
    return [slice(start, start + whole) for start in starts]


def _fullest(fit: ImageFit, boxes: list[Box]) -> list[Box]:
    """Some boxes in which many voxels are compared with the fixed image, far from each other."""
    numbers = np.array([_num_compared(fit, box) for box in boxes])
    middles = np.array([_middle(box) for box in boxes])
    chosen = [int(np.argmax(numbers))]
    for _ in range(BLOCKS[len(boxes[0])] - 1):
        scores = numbers * _least_distances(middles, middles[chosen])
        if scores.max() > 0:
            chosen.append(int(np.argmax(scores)))
    return [boxes[i] for i in chosen]


def _middle(box: Box) -> list[float]:
    return [(along.start + along.stop) / 2 for along in box]


def _least_distances(
    points: Float[Array, "n d"], others: Float[Array, "k d"]
) -> Float[Array, " n"]:
    """From each point to the nearest of some others."""
    distances = np.linalg.norm(points[:, None] - others, axis=2)
    return distances.min(axis=1)


def _num_compared(fit: ImageFit, box: Box) -> float:
    """How many voxels of a box are compared."""
    view = fit.search.level.view
    inside = fit.state.compared.counts.reshape(view.shape)
    for axis, (along, places) in enumerate(zip(box, view.places, strict=True)):
        chosen = (places >= along.start) & (places < along.stop)
        inside = np.compress(chosen, inside, axis=axis)
    return float(inside.sum())


def _linearised(
    task: ImageTask,
    fit: ImageFit,
    lattice: Lattice,
    features: IntensityLevel,
    decimation: float,
) -> LinearisedImages:
    """What a part of the images says around a fit, with the decimation factor of the whole."""
    problem = ImageProblem(lattice.nodes, task.marks.none, task.trend)
    search = LevelSearch(problem, features, fit.search.plan, fit.search.options, fit.grid.shortest)
    state = search.evaluate(fit.state.path, fit.state.alignment)
    noise = search.noise_model(state.compared, decimation)
    model, force = search.linearise(state, noise)
    contribution = state.carried.contribution.T.astype(np.float32)
    whole = force + model.information.product(contribution[None])[0]
    return LinearisedImages(fit.grid, state.carried, model.design, model.information, whole)
