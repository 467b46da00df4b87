"""Whether the intensities of two images are related, judged by a finished fit.

Both metrics assume that what is brighter than its surroundings in one image is brighter in the
other. Where that does not hold (MRI and ultrasound, inverted contrast, different objects) a
flexible flow still finds something to match, and its residuals look ordinary. The gradients tell:
with the gradients f = ∇F(φ₁(x)) of the fixed image and m = J⁻ᵀ∇M(x) of the moving one, carried
along, the correlation

    Σ f·m / √(Σ|f|² Σ|m|²)

is one where every edge has its counterpart with the same sign, and minus one where all contrasts
are inverted. It does not depend on the units of either image, nor on what the metric compares.

A flow with a short length scale brings it to 0.7 between images that have nothing in common. So it
is asked twice: of coarse images before the flow, where nothing but the alignment was fitted, and of
fine ones after it. Images are related if either says so: people who lie alike agree before, images
with much detail that moved far agree after.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from kunita.jaxrun.doors import Array
from kunita.observations.image_pair import ImagePair, Smoothing
from kunita.observations.intensities import Comparison, IntensityLevel
from kunita.observations.lattice import Lattice
from kunita.observations.mirrors import Reversal, best_reversal, evened, is_far_better

COARSE = Smoothing(4.0, 1.0)
FINE = Smoothing(1.5, 1.0)
"""Of the images whose gradients are compared before and after the flow."""

LEAST_BEFORE = 0.53
LEAST_AFTER = 0.75
"""Images whose gradients are correlated by less, both before and after the flow, are unrelated.

Chosen by `benchmarks/image_relation.py develop`, with "lncc" and "ssd" and a prior flexible enough
to match almost anything: ten pairs of people and two scans of a lung are correlated by 0.63 and
more before the flow. Others are by 0.44 and less (contrast that is inverted, a head upside down or
turned by 90 degrees, a brain and a lung, two textures), but for a chest upside down (0.58, and up
to 0.92 after the flow), which `kunita.observations.mirrors` finds. All 58 of these are warned of,
and 3 of 44 related pairs: textures that moved by several of their own lengths, fitted by a prior
that is not theirs.
"""


CHANCE_IF_GIVEN = 3.0
CHANCE_IF_SEARCHED = 7.0
"""Correlations before the flow below so many standard deviations of chance say nothing. A search
for the alignment finds what is large by chance: of six mirrored textures of 48 pixels, and of six
of 96, up to 5.3 and 6.5 standard deviations."""


PART = 12.0
"""The edge of the parts of an image whose gradients are compared apart, in voxels."""

QUARTER = 0.25
"""So many of the parts may agree worse."""

LEAST_WITHIN = 0.65
"""Images are unrelated, too, if a quarter of their parts agree worse than this after the flow.

The outlines of two objects may agree although nothing inside does: of an ellipsoid that was
inverted inside, gradients are correlated by 0.80 before the flow and 0.68 after it, but by less
than 0.15 in a quarter of the parts. The limit lies between related pairs (ten pairs of people have
0.69 to 0.82, textures 0.9 and more) and objects of one outline (conditions E and F of
benchmarks/image_truth.py: inverted inside at most 0.57, with another texture inside 0.59, mirrored
0.53 to 0.68).
"""

LEAST_SHARE = 0.2
"""Of the moving image inside the fixed one, below which an inverse alignment is not tried."""


@dataclasses.dataclass(frozen=True)
class Inversion:
    """What the inverse of an alignment that was given would change.

    Args:
        before: the correlation of gradients with the alignment.
        after: with its inverse.
        chance: the standard deviation of such a correlation of images with nothing in common.
    """

    before: float
    after: float
    chance: float

    @property
    def is_far_better(self) -> bool:
        return is_far_better(self.before, self.after, self.chance)


@dataclasses.dataclass(frozen=True)
class Relation:
    """How the gradients of two images are correlated.

    Args:
        before: of coarse images, aligned but not deformed.
        after: of fine images, where the flow carries them.
        chance: what the first may be by chance; above one in images too small to tell.
        reversal: what reversing axes of the moving image would change; None if that was not asked.
        inversion: what the inverse of an alignment that was given would change; None if none was,
            or if the images are related.
        within: the correlation that three quarters of the parts of the fine images exceed after the
            flow.
    """

    before: float
    after: float
    chance: float = 0.0
    reversal: Reversal | None = None
    inversion: Inversion | None = None
    within: float = 1.0

    @property
    def margin(self) -> float:
        """By how much the larger excess is above what related images have; negative if below."""
        least_before = max(LEAST_BEFORE, self.chance)
        return max(self.before - least_before, self.after - LEAST_AFTER)

    @property
    def is_mirrored(self) -> bool:
        """Whether one image seems to be mirrored or upside down."""
        return self.reversal is not None and self.reversal.is_far_better

    @property
    def is_inverted(self) -> bool:
        """Whether the inverse of the alignment that was given fits far better."""
        return self.inversion is not None and self.inversion.is_far_better

    @property
    def is_found(self) -> bool:
        """Whether the intensities are related, as the images lie."""
        agrees_within = self.within >= LEAST_WITHIN
        return self.margin >= 0 and agrees_within and not self.is_mirrored


@dataclasses.dataclass(frozen=True, eq=False)
class Arrivals:
    """Where the nodes of a lattice are.

    Args:
        positions: (n, d) in the space of the flow.
        jacobians: (n, d, d) of the whole map from moving space.
    """

    positions: np.ndarray
    jacobians: np.ndarray

    @classmethod
    def not_turned(cls, lattice: Lattice) -> "Arrivals":
        """The middle of the nodes in the middle of the fixed image, and no rotation."""
        nodes = lattice.nodes
        middle = (nodes.min(axis=0) + nodes.max(axis=0)) / 2
        d = nodes.shape[1]
        return cls(nodes - middle, np.broadcast_to(np.eye(d), (len(nodes), d, d)))


def relation(
    pair: ImagePair,
    lattice: Lattice,
    aligned: Arrivals,
    arrived: Arrivals,
    *,
    is_searched: bool = False,
    inverted: Arrivals | None = None,
) -> Relation:
    """How two images are related.

    Args:
        pair: the images.
        lattice: the nodes that carry the voxels.
        aligned: the nodes before the flow.
        arrived: the nodes after it.
        is_searched: whether the alignment was found from the same images.
        inverted: the nodes with the inverse of an alignment that was given.
    """
    deviations = CHANCE_IF_SEARCHED if is_searched else CHANCE_IF_GIVEN
    intensities = dataclasses.replace(pair, metric="ssd")
    coarse = intensities.level(lattice, COARSE)
    fine = intensities.level(lattice, FINE)
    before = coarse.compare(aligned.positions, aligned.jacobians)
    after = fine.compare(arrived.positions, arrived.jacobians)
    chance = _chance(pair, float(before.counts.sum() * np.prod(coarse.spacing)))
    found = Relation(
        before=correlation_of_slopes(before),
        after=correlation_of_slopes(after),
        chance=deviations * chance,
        reversal=_reversal(coarse, (before, aligned), lattice, chance),
        within=agreement_of_parts(after, fine),
    )
    if inverted is None or found.is_found:
        return found
    inversion = _inversion((coarse, fine), aligned, inverted, chance)
    return dataclasses.replace(found, inversion=inversion)


def agreement_of_parts(compared: Comparison, level: IntensityLevel) -> float:
    """The correlation that three quarters of the parts of an image exceed.

    Gradients are evened, so that an outline counts no more than what is inside. Parts that have
    less structure than half of the fullest do not count; zero where there is none.
    """
    fixed = evened(compared.fixed_slopes, compared.counts)
    moving = evened(compared.moving_slopes, compared.counts)
    of_voxels = [
        np.sum(fixed * moving, axis=(1, 2)),
        np.sum(fixed**2, axis=(1, 2)),
        np.sum(moving**2, axis=(1, 2)),
        compared.informing,
    ]
    shared, of_fixed, of_moving, informing = (_sums_of_parts(one, level) for one in of_voxels)
    sizes = np.sqrt(of_fixed * of_moving)
    has_structure = (informing > informing.max() / 2) & (sizes > 0)
    if not has_structure.any():
        return 0.0
    return float(np.quantile(shared[has_structure] / sizes[has_structure], QUARTER))


def _sums_of_parts(values: Float[Array, " k"], level: IntensityLevel) -> Float[Array, " p"]:
    """Over boxes of about the same size."""
    sums = values.reshape(level.view.shape).astype(np.float64)
    edges = PART * level.voxel / level.spacing
    for axis, (count, edge) in enumerate(zip(level.view.shape, edges, strict=True)):
        num_parts = max(1, round(count / edge))
        starts = np.linspace(0, count, num_parts, endpoint=False).astype(int)
        sums = np.add.reduceat(sums, starts, axis=axis)
    return sums.ravel()


def _inversion(
    levels: tuple[IntensityLevel, IntensityLevel],
    aligned: Arrivals,
    inverted: Arrivals,
    chance: float,
) -> Inversion:
    """What the inverse of an alignment would change: of coarse images, or of parts of fine ones.

    Coarse images find each other from farther away, and parts tell where outlines do not.
    """
    coarse, fine = levels
    whole = Inversion(
        before=correlation_of_slopes(_compared(coarse, aligned)),
        after=_tried(coarse, inverted, correlation_of_slopes),
        chance=chance,
    )
    by_parts = lambda compared: agreement_of_parts(compared, fine)
    parts = Inversion(
        before=by_parts(_compared(fine, aligned)),
        after=_tried(fine, inverted, by_parts),
        chance=chance,
    )
    return parts if parts.is_far_better else whole


def _compared(level: IntensityLevel, arrivals: Arrivals) -> Comparison:
    return level.compare(arrivals.positions, arrivals.jacobians)


def _tried(
    level: IntensityLevel, arrivals: Arrivals, measure: Callable[[Comparison], float]
) -> float:
    """A measure of agreement where the nodes are; zero where too little is compared."""
    compared = _compared(level, arrivals)
    whole = max(level.counts.sum(), 1)
    share = compared.counts.sum() / whole
    if share < LEAST_SHARE:
        return 0.0
    return measure(compared)


def _reversal(
    level: IntensityLevel, aligned: tuple[Comparison, Arrivals], lattice: Lattice, chance: float
) -> Reversal:
    """What reversing axes would change, with the alignment and without any rotation.

    The alignment of an image that is mirrored may have turned it, which hides the mirror.

    Args:
        level: of coarse images.
        aligned: these with the alignment, and where it takes the nodes.
        lattice: the nodes.
        chance: the standard deviation of a correlation by chance.
    """
    not_turned = Arrivals.not_turned(lattice)
    plain = level.compare(not_turned.positions, not_turned.jacobians)
    found = [
        best_reversal(level, compared, arrivals.jacobians[0])
        for compared, arrivals in (aligned, (plain, not_turned))
    ]
    best = max(found, key=lambda one: one.after)
    before = max(one.before for one in found)
    return dataclasses.replace(best, before=before, chance=chance)


def _chance(pair: ImagePair, volume: float) -> float:
    """The standard deviation of the correlation of coarse images with nothing in common."""
    return 1 / float(np.sqrt(max(_num_spots(pair, volume), 1.0)))


def _num_spots(pair: ImagePair, volume: float) -> float:
    """How many independent gradients coarse images have in a volume, if correlations are short.

    White noise that is smoothed by τ has the autocorrelation ρ = exp(−r²/4τ²), and correlations of
    two such images vary as if there were one value in every ∫ρ² = (2πτ²)^(d/2). Their gradients
    have 4d/(d + 2) independent values there: ∫ Σ(∂∂ρ)² over the square of Σ∂∂ρ(0).
    """
    d = pair.moving.dimension
    width = COARSE.width * pair.voxel
    per_spot = 4 * d / (d + 2)
    return float(per_spot * volume / (2 * np.pi * width**2) ** (d / 2))


def correlation_of_slopes(compared: Comparison) -> float:
    """Σ f·m/√(Σ|f|² Σ|m|²) over what counts; zero where an image has no gradients there."""
    counts = compared.counts > 0
    fixed: Float[Array, "k c d"] = compared.fixed_slopes[counts].astype(np.float64)
    moving: Float[Array, "k c d"] = compared.moving_slopes[counts].astype(np.float64)
    size = np.linalg.norm(fixed) * np.linalg.norm(moving)
    return float(np.vdot(fixed, moving) / size) if size > 0 else 0.0
