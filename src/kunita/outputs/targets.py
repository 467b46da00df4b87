"""Targets: named points that somebody will act on, how sure each is, and how far it is from what
was marked.

In the vocabulary of [fitzpatrick:98]: FLE, the fiducial localisation error, is how far a mark is
from what was to be marked; FRE, the fiducial registration error, how far the landmarks are from
each other after the registration; TRE, the target registration error, how far anything else is from
its true place. The FRE is small wherever the map is flexible enough to follow the marks, errors
included: it is the fit's residual, not its accuracy. What is predicted here is the TRE.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
from scipy.spatial import KDTree

from kunita.data.landmarks import Landmarks, known_variances
from kunita.gaussians import GaussianPoints
from kunita.jaxrun.doors import ArrayLike
from kunita.kernels import AbstractKernel, AbstractProfile
from kunita.outputs.carry import LEVEL, carry_landmarks, carry_points
from kunita.outputs.hull import hull_of
from kunita.record import Registration

FAR = 1.0
"""Farther than this many length scales from every landmark none of them says much: less than e⁻¹ =
37 % of the prior's variance is explained by the nearest (Gaussian kernel)."""

BEYOND = 0.5
"""Outside the landmarks' hull by more than this many length scales, there are landmarks on one side
only."""

MOST_NAMED = 5


@dataclasses.dataclass(frozen=True, eq=False)
class Target:
    """Where a point of the moving space is in fixed space, and what that rests on.

    Args:
        name: as it is listed.
        position: (d,) in fixed space, mm.
        covariance: (d, d), mm²: the registration's, and the point's own, where it has one, carried
            over and added.
        std_mm: standard deviation along a typical axis, from the covariance.
        radius95_mm: radius of the ball that holds the true point with probability 95 %, from the
            covariance.
        tre_mm: predicted target registration error, the root mean square √(tr C) of the
            registration's covariance alone: how well the target itself was marked is not part of
            it.
        nearest: the landmark that is nearest to it in moving space.
        nearest_mm: how far that is (where the alignment scales: in the fixed space's millimetres).
        in_sigma: the same in length scales of the kernel (of a sum, that of its strongest part).
        outside_mm: how far it lies outside the convex hull of the landmarks; 0 inside.
        extrapolates: whether its prediction rests on the prior more than on the landmarks (see
            `FAR`, `BEYOND`).
    """

    name: str
    position: np.ndarray
    covariance: np.ndarray
    std_mm: float
    radius95_mm: float
    tre_mm: float
    nearest: str
    nearest_mm: float
    in_sigma: float
    outside_mm: float
    extrapolates: bool

    @property
    def inside_hull(self) -> bool:
        return self.outside_mm == 0


@dataclasses.dataclass(frozen=True, eq=False)
class Remoteness:
    """How far points are from what a fit rests on: the nearest of `reg.informing`, mm, length
    scales; outside their hull.

    Measured where the kernel is: in the moving space after the alignment, which alters distances
    only if it scales.
    """

    nearest: np.ndarray
    nearest_mm: np.ndarray
    in_sigma: np.ndarray
    outside_mm: np.ndarray
    extrapolates: np.ndarray


def describe_targets(reg: Registration, landmarks: Landmarks | ArrayLike) -> tuple[Target, ...]:
    """Predict named points of the moving space: position, uncertainty, predicted TRE, distance to
    the landmarks.
    """
    landmarks = landmarks if isinstance(landmarks, Landmarks) else Landmarks(landmarks)
    carried, alone = carry_landmarks(reg, landmarks), carry_points(reg, landmarks.points)
    arrived = GaussianPoints(carried.points, carried.covariances)
    tre = np.sqrt(np.trace(np.asarray(alone.covariance), axis1=1, axis2=2))
    far, labels = remoteness(reg, landmarks.points), reg.informing_labels
    std, radius = arrived.std, arrived.radius(LEVEL)
    return tuple(
        Target(
            name,
            carried.points[i],
            carried.covariances[i],
            float(std[i]),
            float(radius[i]),
            float(tre[i]),
            labels[far.nearest[i]],
            float(far.nearest_mm[i]),
            float(far.in_sigma[i]),
            float(far.outside_mm[i]),
            bool(far.extrapolates[i]),
        )
        for i, name in enumerate(carried.labels)
    )


def remoteness(reg: Registration, points: np.ndarray) -> Remoteness:
    """How far (m, d) points of the moving space are from the landmarks."""
    scale = main_scale(reg.kernel)
    turn = np.asarray(reg.posterior.alignment.matrix).T
    marked, aligned = reg.informing @ turn, points @ turn
    distances, rows = KDTree(marked).query(aligned)
    outside = hull_of(marked).outside(aligned)
    extrapolates = (distances > FAR * scale) | (outside > BEYOND * scale)
    return Remoteness(rows, distances, distances / scale, outside, extrapolates)


def main_scale(kernel: AbstractKernel) -> float:
    """The length scale of a kernel, mm; of a sum that of the part with the largest amplitude, which
    says the most.
    """
    parts = list(_profiles(kernel))
    return float(max(parts, key=lambda part: part.amplitude).length_scale) if parts else np.inf


def _profiles(kernel: AbstractKernel) -> Iterator[AbstractProfile]:
    if isinstance(kernel, AbstractProfile):
        yield kernel
    for part in getattr(kernel, "kernels", ()):
        yield from _profiles(part)


@dataclasses.dataclass(frozen=True)
class Source:
    """What a fit rests on, in words.

    Args:
        one: of the things that say something.
        region: that they span.
    """

    one: str
    region: str


LANDMARKS = Source("landmark", "the landmarks' hull")
IMAGES = Source("place that the images inform", "the region that the images inform")


def source_of(reg: Registration) -> Source:
    """Landmarks, or images with or without landmarks."""
    return LANDMARKS if reg.images is None else IMAGES


def extrapolation_remarks(targets: Sequence[Target], source: Source = LANDMARKS) -> Iterator[str]:
    """A warning for each target that the data do not reach, the first few of them."""
    far = [target for target in targets if target.extrapolates]
    for target in far[:MOST_NAMED]:
        where = "inside" if target.inside_hull else f"{target.outside_mm:.0f} mm outside"
        yield (
            f"target {target.name!r} is an extrapolation: {target.nearest_mm:.0f} mm ({target.in_sigma:.1f} length "
            f"scales) from the nearest {source.one}, {where} {source.region}; its uncertainty rests on the prior"
        )
    if len(far) > MOST_NAMED:
        yield f"{len(far) - MOST_NAMED} more targets are extrapolations (see targets.csv)"


def fle_mm(reg: Registration) -> float:
    """FLE, mm: the root mean square distance √(tr D) between a mark and what was to be marked, of a
    pair, along the directions that are known.
    """
    if not reg.used.any():
        return float("nan")
    variances = known_variances(reg.fixed, reg.noise)
    return float(np.sqrt(np.mean(variances[reg.used])))


def fre_mm(residuals: np.ndarray) -> float:
    """FRE, mm: the root mean square of (n,) distances between predicted and fixed landmarks."""
    return float(np.sqrt(np.mean(residuals**2))) if len(residuals) else float("nan")
