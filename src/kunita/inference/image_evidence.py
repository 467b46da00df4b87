"""The prior of images by the evidence, from one fit.

Around a fitted flow the images say exp(gᵀu − ½uᵀMu) of the displacement u of the sites, g = b +
Mη. With u = Hβ + ξ, a flat prior on β and ξ ~ N(0, Λ) of any kernel along the same trajectories,

    log evidence = ½gᵀΛl + ½(Hᵀl)ᵀA⁻¹(Hᵀl) − ½log|I + MΛ| − ½log|A| + const,
    l = (I + MΛ)⁻¹g,    A = HᵀQH.

So kernels are compared without a new fit, by the same voxels with the same noise.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from kunita.flow.grid_flow import CarriedPoints, FlowCovariance
from kunita.flow.velocity_grid import VelocityGrid
from kunita.inference.dense_solver import DenseSolver
from kunita.inference.image_fit import Scales
from kunita.inference.lattice_model import SiteInformation
from kunita.jaxrun.doors import Array


@dataclasses.dataclass(frozen=True, eq=False)
class LinearisedImages:
    """What the images say around a fitted flow.

    Args:
        grid: of the velocity.
        carried: the sites.
        design: (b, d, n) H.
        information: M.
        force: (d, n) g.
    """

    grid: VelocityGrid
    carried: CarriedPoints
    design: np.ndarray
    information: SiteInformation
    force: np.ndarray

    def log_evidence(self, scales: Scales) -> float:
        """Of a kernel, up to a constant that all kernels share; by dense matrices."""
        covariance = self._covariance(scales)
        solver = DenseSolver.of_matrices(covariance, self._information)
        dual = solver.solve(self.force[None])
        moved = covariance @ dual.ravel()
        explained = 0.5 * float(self.force.ravel() @ moved)
        return explained - 0.5 * solver.log_det + self._of_alignment(solver, dual[0])

    @functools.cached_property
    def _information(self) -> Float[Array, "k k"]:
        """M."""
        return self.information.matrix()

    @functools.cached_property
    def _flow(self) -> FlowCovariance:
        """Positions and Ψ of the sites at the instants of the quadrature."""
        return FlowCovariance.by_gauss(self.grid, self.carried)

    def _covariance(self, scales: Scales) -> Float[Array, "k k"]:
        """Λ of the exact kernel: a few hundred sites need no grid."""
        d, n = self.force.shape
        total = np.zeros((d, n, d, n))
        for weight, points, psi in zip(
            self._flow.weights, self._flow.positions, self._flow.psi, strict=True
        ):
            kernel = _gaussians(points, scales)
            total += weight * np.einsum("ij,abi,cbj->aicj", kernel, psi, psi, optimize=True)
        return total.reshape(d * n, d * n)

    def _of_alignment(self, solver: DenseSolver, dual: Float[Array, "d n"]) -> float:
        """½(Hᵀl)ᵀA⁻¹(Hᵀl) − ½log|A|."""
        if not len(self.design):
            return 0.0
        explained = solver.solve(self.information.product(self.design))
        information = np.einsum("bdn,cdn->bc", self.design, explained, dtype=np.float64)
        pulled = np.einsum("bdn,dn->b", self.design, dual, dtype=np.float64)
        fitted = pulled @ np.linalg.solve(information, pulled)
        _, log_det = np.linalg.slogdet(information)
        return 0.5 * float(fitted) - 0.5 * float(log_det)


@dataclasses.dataclass(frozen=True, eq=False)
class JointEvidence:
    """What several parts of an image pair say of a kernel together.

    Args:
        parts: each around the same flow.
    """

    parts: tuple[LinearisedImages, ...]

    def log_evidence(self, scales: Scales) -> float:
        """The sum over the parts."""
        return sum(part.log_evidence(scales) for part in self.parts)


APART = 1.5
"""The least ratio of two length scales where a search begins."""


@dataclasses.dataclass(frozen=True)
class EvidenceOptions:
    """How kernels are searched.

    Args:
        step: by which a hyper-parameter is multiplied or divided at first.
        last_step: at which the search ends.
        most: evaluations of the evidence.
        doubt: kernels whose log evidences differ by less are in doubt.
        shortening: the step by which a length scale in doubt becomes shorter.
    """

    step: float = 1.6
    last_step: float = 1.1
    most: int = 40
    doubt: float = 0.5
    shortening: float = 0.975


ROUNDED = 1 - 1e-9
"""Limits are met although logarithms are rounded."""


@dataclasses.dataclass(frozen=True)
class ScaleLimits:
    """Which scales may be chosen.

    Args:
        shortest: length scale, mm.
        longest: length scale, mm, of each scale, the longest first.
        least_steepness: of an amplitude over its length scale.
    """

    shortest: float
    longest: tuple[float, ...]
    least_steepness: float

    def clipped(self, start: Scales) -> Scales:
        """Scales within the limits, the longest first."""
        found = []
        for place, (amplitude, length) in enumerate(start):
            # A shorter scale must stay shorter, a longer one leave room for it.
            rank = len(start) - 1 - place
            least = self.shortest * APART**rank
            inside = max(min(length, self.longest[place]), least)
            steepness = max(amplitude / length, self.least_steepness)
            found.append((steepness * inside, inside))
        return tuple(found)

    def shortened(self, scales: Scales, factor: float) -> Scales:
        """Scales with their lengths times a factor, but for those that would then be too short."""
        found = []
        for place, (amplitude, length) in enumerate(scales):
            rank = len(scales) - 1 - place
            least = min(self.shortest * APART**rank, length)
            found.append((amplitude, max(factor * length, least)))
        return tuple(found)

    def allow(self, scales: Scales) -> bool:
        """Whether all scales are within the limits, and the longest comes first."""
        amplitudes, lengths = np.array(scales).T
        is_ordered = np.diff(lengths) < 0
        is_long = lengths >= ROUNDED * self.shortest
        is_short = ROUNDED * lengths <= np.array(self.longest[: len(lengths)])
        is_steep = amplitudes >= ROUNDED * self.least_steepness * lengths
        return bool(np.all(is_ordered) and np.all(is_long & is_short & is_steep))


LogEvidence = Callable[[Scales], float]
"""Of a kernel."""


def best_scales(
    log_evidence: LogEvidence,
    start: Scales,
    limits: ScaleLimits,
    options: EvidenceOptions,
) -> tuple[Scales, float]:
    """The kernel of largest evidence by a pattern search over the logarithms of its parameters.

    Args:
        log_evidence: what the images say.
        start: where the search begins; as many scales are searched.
        limits: of what may be chosen.
        options: of the search.
    """
    evidence = lambda point: log_evidence(_scales(point))
    is_allowed = lambda point: limits.allow(_scales(point))
    point = np.log(np.array(limits.clipped(start))).ravel()
    best = evidence(point)
    step = np.log(options.step)
    count = 1
    while step >= np.log(options.last_step) and count < options.most:
        before = point
        for axis, sign in itertools.product(range(len(point)), (1, -1)):
            trial = point + sign * step * np.eye(len(point))[axis]
            if not is_allowed(trial):
                continue
            found = evidence(trial)
            count += 1
            if found > best:
                best = found
                point = trial
        if point is before:
            step /= 2
    return _scales(point), best


def most_flexible(
    log_evidence: LogEvidence, best: Scales, limits: ScaleLimits, options: EvidenceOptions
) -> Scales:
    """The shortest length scales that are as good as the best, but for a doubt.

    Too long a scale ruins coverage, too short a one only widens the regions: on textures whose
    length scale is 25 px, regions with 25.6 px hold five points less than those with 25 px.

    Args:
        log_evidence: what the images say.
        best: the kernel of largest evidence.
        limits: of what may be chosen.
        options: of the search.
    """
    least = log_evidence(best) - options.doubt
    chosen = best
    for _ in range(options.most):
        shorter = limits.shortened(chosen, options.shortening)
        if shorter == chosen or log_evidence(shorter) < least:
            break
        chosen = shorter
    return chosen


def _gaussians(points: Float[Array, "n d"], scales: Scales) -> Float[Array, "n n"]:
    """Σ_s a_s² exp(−|x − y|²/2σ_s²)."""
    squared = np.sum((points[:, None] - points[None]) ** 2, axis=-1)
    total = np.zeros_like(squared)
    for amplitude, length in scales:
        total += amplitude**2 * np.exp(-squared / (2 * length**2))
    return total


def _scales(point: Float[Array, " p"]) -> Scales:
    pairs = np.exp(point).reshape(-1, 2)
    return tuple((float(amplitude), float(length)) for amplitude, length in pairs)
