"""The posterior over deformations of a registration that images drive.

It answers the same questions as `kunita.posterior.Posterior`. The flow is a velocity path on a
grid, and what the images say is condensed on a lattice, so that no image is needed to ask it.

Means follow the flow. Covariances of a few points are found by solving linear systems where these
are small enough to be factored. All others come from draws that were made once: the relative
standard error of a radius from these is `monte_carlo_error`.
"""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Float

from kunita.errors import ArgumentError, LandmarkError
from kunita.evaluation import Preimage
from kunita.flow import grid_flow, simulate
from kunita.flow.grid_flow import CarriedPoints, FlowCovariance
from kunita.flow.velocity_grid import VelocityGrid
from kunita.gaussians import GaussianPoints
from kunita.inference.lattice_model import LatticeModel, SiteInformation
from kunita.inference.lattice_posterior import (
    Draws,
    LatticePosterior,
    PosteriorOptions,
    design_at,
)
from kunita.inference.leave_out import LeaveOneOut
from kunita.inference.trend import Alignment, Trend
from kunita.jaxrun.doors import Array, ArrayLike, as_count, as_points, door
from kunita.kernels import AbstractKernel
from kunita.observations.lattice import CellInformation

CHUNK = 4096
"""Points that are carried together."""

MOST_EXACT = 512
"""Points whose covariances are found by solves, where the systems are factored."""

MOST_JOINT = 200
"""Points in each set of a joint covariance; every direction of one takes a solve."""

NEWTON_STEPS = 2
"""Of a pre-image."""


INFORMED = 0.3
"""A node is informed if this share of the cells around it is, compared with an inner node."""


@dataclasses.dataclass(frozen=True, eq=False)
class ImagePosterior:
    """A Gaussian process over deformations, conditioned on images and landmarks.

    Args:
        kernel: the prior's covariance function.
        trend: the directions in which the alignment may move.
        alignment: of the moving points, before the flow.
        origin: of the fixed space in which the flow was computed.
        grid: that carries the velocity.
        fields: (t, d, *grid) the velocity at every instant.
        cells: what the images say.
        marks: (k, d) the landmarks beside the images, in moving space.
        precisions: (k, d, d) of them.
        draws: from the posterior.
        solves: whether covariances of a few points are found by solves, where these are small.
    """

    kernel: AbstractKernel
    trend: Trend
    alignment: Alignment
    origin: np.ndarray
    grid: VelocityGrid
    fields: np.ndarray
    cells: CellInformation
    marks: np.ndarray
    precisions: np.ndarray
    draws: Draws | None = None
    solves: bool = True

    @property
    def model(self) -> str:
        return "endpoint"

    @property
    def corrected(self) -> bool:
        """Whether the mean is more than the flow: never."""
        return False

    @property
    def dimension(self) -> int:
        return len(self.origin)

    @property
    def has_single_precision(self) -> bool:
        """Whether there is a faster form in single precision: this one is."""
        return False

    @property
    def num_steps(self) -> int:
        """Of the time grid."""
        return (len(self.fields) - 1) // 2

    @property
    def prepared(self) -> "ImagePosterior":
        """The form for very many points: by draws throughout, so that any two calls agree."""
        return dataclasses.replace(self, solves=False)

    @property
    def affine(self) -> np.ndarray:
        """The alignment alone as a matrix from moving to fixed space, (d + 1, d + 1)."""
        d = self.dimension
        matrix = np.asarray(self.alignment.matrix)
        center = np.asarray(self.alignment.center)
        whole = np.eye(d + 1)
        whole[:d, :d] = matrix
        whole[:d, d] = np.asarray(self.alignment.offset) + self.origin - matrix @ center
        return whole

    # ------------------------------------------------------------------------------------- means

    @door
    def move(self, points: ArrayLike) -> Float[Array, "m d"]:
        """Where moving points go: the mean of `predict`."""
        aligned = self._align(self._check(points))
        arrived = [self._arrive(chunk)[0] for chunk in _chunks(aligned)]
        return np.concatenate(arrived) + self.origin

    @door
    def jacobian(self, points: ArrayLike) -> Float[Array, "m d d"]:
        """Jacobian of the whole mean map (alignment and flow) at moving points, (m, d, d)."""
        aligned = self._align(self._check(points))
        flows = [self._arrive(chunk)[1] for chunk in _chunks(aligned)]
        return np.concatenate(flows) @ np.asarray(self.alignment.matrix)

    @door
    def move_back(self, points: ArrayLike) -> Float[Array, "m d"]:
        """Where fixed points come from: the mean of `inverse`."""
        fixed = self._check(points)
        parts = []
        for goal in _chunks(fixed - self.origin):
            x = self._started(goal)
            parts.append(_corrected(x, goal, *self._arrive(x)))
        return np.asarray(self.alignment.inverse(np.concatenate(parts)))

    def _arrive(self, aligned: Float[Array, "m d"]) -> grid_flow.State:
        """Where aligned points arrive, and the Jacobians of the flow."""
        return grid_flow.arrive(self.quick_grid, self.fields, aligned)

    def _started(self, goal: Float[Array, "m d"]) -> Float[Array, "m d"]:
        """Aligned points that arrive near a goal: the flow backwards, and Newton's steps but one.

        Runge and Kutta's steps back and forth differ by their error of fifth order.
        """
        x, _ = grid_flow.arrive(self.quick_grid, -self.fields[::-1], goal)
        for _ in range(NEWTON_STEPS - 1):
            x = _corrected(x, goal, *self._arrive(x))
        return x

    # ------------------------------------------------------------------------------- covariances

    @door
    def predict(self, points: ArrayLike) -> GaussianPoints:
        """Where moving points go in fixed space, (m, d), and the covariance of each."""
        x = self._check(points)
        return GaussianPoints(self.move(x), self._variances(x))

    @door
    def inverse(self, points: ArrayLike) -> GaussianPoints:
        """Where fixed points come from in moving space: the same map backwards.

        The covariance is (JA₀)⁻¹Λ(JA₀)⁻ᵀ, to first order.
        """
        preimage = self.preimage(points)
        return GaussianPoints(preimage.points, preimage.carried_back)

    @door
    def preimage(self, points: ArrayLike) -> Preimage:
        """Where fixed points come from, and how certain the registration is *at* them."""
        fixed = self._check(points)
        if not self._is_by_draws(len(fixed)):
            x = self.move_back(fixed)
            return Preimage(x, self.jacobian(x), self._variances(x))
        parts = [self._preimage_by_draws(goal) for goal in _chunks(fixed - self.origin)]
        x, flows, covariances = map(np.concatenate, zip(*parts, strict=True))
        jacobians = flows @ np.asarray(self.alignment.matrix)
        return Preimage(np.asarray(self.alignment.inverse(x)), jacobians, covariances)

    def _preimage_by_draws(
        self, goal: Float[Array, "m d"]
    ) -> tuple[Float[Array, "m d"], Float[Array, "m d d"], Float[Array, "m d d"]]:
        """Aligned points that arrive at a goal, with Jacobians of the flow and covariances.

        The points are carried once for all of these, before Newton's last step: that one is far
        shorter than what Jacobians and covariances vary over.
        """
        x = self._started(goal)
        carried = grid_flow.carry(self.quick_grid, self.fields, x)
        flows = carried.jacobians[-1]
        found = _corrected(x, goal, carried.arrived, flows)
        return found, flows, self._covariances(FlowCovariance.by_gauss(self.grid, carried))

    @door
    def covariance(self, x: ArrayLike, y: ArrayLike) -> Float[Array, "m d k d"]:
        """Posterior covariance between two sets of moving points as they arrive, (m, d, k, d)."""
        first = self._check(x)
        second = self._check(y)
        most = max(len(first), len(second))
        if most > MOST_JOINT:
            raise ArgumentError(
                f"points: the joint covariance of an image registration is found for at most "
                f"{MOST_JOINT} points at a time, found {most} (`predict` takes any number, and "
                "`sample` gives joint draws of them)"
            )
        return self.lattice.covariance(self._align(first), self._align(second))

    @door
    def sample(
        self, points: ArrayLike, num_samples: int, key: Any = 0, kind: str = "gaussian"
    ) -> Float[Array, "s m d"]:
        """Joint Gaussian draws of where moving points go, (s, m, d).

        The draws of a set of points are consistent with each other, but a Gaussian draw is not a
        diffeomorphism: of a dense set of points it may fold.
        """
        if kind != "gaussian":
            raise ArgumentError(f"kind: expected 'gaussian', found {kind!r}")
        count = as_count(num_samples, "num_samples")
        x = self._check(points)
        drawn = self.lattice.draws(count, simulate.as_seed(key))
        return np.concatenate(
            [at.carried.arrived + drawn.at(at) + self.origin for at in self._covaried(x)], axis=1
        )

    def leave_one_out(self) -> LeaveOneOut:
        """Refused: single voxels are not left out."""
        raise LandmarkError("leave-one-out: a registration that images drive has none")

    @functools.cached_property
    def quick_grid(self) -> VelocityGrid:
        """The grid for questions about points, whose answers may be rounded otherwise."""
        return dataclasses.replace(self.grid, is_quick=True)

    @functools.cached_property
    def lattice(self) -> LatticePosterior:
        """The linear model at the nodes of the lattice and the landmarks."""
        nodes = self.cells.lattice.nodes
        sites = np.asarray(self.alignment(np.concatenate([nodes, self.marks])))
        carried = grid_flow.carry(self.grid, self.fields, sites)
        design = design_at(self.trend, carried).transpose(2, 1, 0)
        model = LatticeModel(
            flow=FlowCovariance.by_gauss(self.grid, carried),
            design=np.ascontiguousarray(design, np.float32),
            information=SiteInformation(self.cells, self.precisions),
        )
        return LatticePosterior(model, self.trend, self.fields, PosteriorOptions())

    def with_draws(self, count: int, key: int) -> "ImagePosterior":
        """The same with draws."""
        return dataclasses.replace(self, draws=self.lattice.draws(count, key))

    @functools.cached_property
    def monte_carlo_error(self) -> float:
        """The relative standard error of a standard deviation from the draws.

        The mean over the nodes of the lattice. With the eigenvalues λ of a covariance from S draws
        it is √(Σλ²/2S)/Σλ.
        """
        if self.draws is None:
            return 0.0
        covariances = self._by_draws(self.cells.lattice.nodes)
        squares = np.einsum("mab,mab->m", covariances, covariances)
        traces = np.trace(covariances, axis1=1, axis2=2)
        errors = np.sqrt(squares / (2 * len(self.draws))) / traces
        return float(errors.mean())

    @property
    def informed_nodes(self) -> Float[Array, "k d"]:
        """The nodes of the lattice, in moving space, around which the images say something."""
        return self.cells.lattice.nodes[self.cells.informed(INFORMED)]

    # ------------------------------------------------------------------------------------ inside

    def _check(self, points: ArrayLike) -> Float[Array, "m d"]:
        return as_points(points, "points", self.dimension)

    def _align(self, points: Float[Array, "m d"]) -> Float[Array, "m d"]:
        return np.asarray(self.alignment(points))

    def _carried(self, points: Float[Array, "m d"]) -> Iterator[CarriedPoints]:
        """Points along the flow, some at a time."""
        for chunk in _chunks(self._align(points)):
            yield grid_flow.carry(self.quick_grid, self.fields, chunk)

    def _covaried(self, points: Float[Array, "m d"]) -> Iterator[FlowCovariance]:
        """The same, with what covariances need."""
        for carried in self._carried(points):
            yield FlowCovariance.by_gauss(self.grid, carried)

    def _variances(self, points: Float[Array, "m d"]) -> Float[Array, "m d d"]:
        """The covariance of each point, by solves or by draws."""
        if not len(points):
            return np.zeros((0, self.dimension, self.dimension))
        if self._is_by_draws(len(points)):
            return self._by_draws(points)
        return self.lattice.variances(self._align(points))

    def _is_by_draws(self, num_points: int) -> bool:
        """Whether covariances of so many points come from draws."""
        is_few = self.solves and num_points <= MOST_EXACT
        return self.draws is not None and not (is_few and self.lattice.is_dense)

    def _by_draws(self, points: Float[Array, "m d"]) -> Float[Array, "m d d"]:
        return np.concatenate([self._covariances(at) for at in self._covaried(points)])

    def _covariances(self, at: FlowCovariance) -> Float[Array, "m d d"]:
        """The covariance of each point that was carried, from the draws."""
        assert self.draws is not None
        deviations = np.moveaxis(self.draws.at(at), 0, -1)
        return deviations @ deviations.swapaxes(1, 2) / len(self.draws)


def _corrected(
    x: Float[Array, "m d"],
    goal: Float[Array, "m d"],
    arrived: Float[Array, "m d"],
    jacobians: Float[Array, "m d d"],
) -> Float[Array, "m d"]:
    """One step of Newton's method for φ₁(x) = y."""
    miss = arrived - goal
    return x - np.linalg.solve(jacobians, miss[..., None])[..., 0]


def _chunks(points: Float[Array, "m d"]) -> Iterator[Float[Array, "k d"]]:
    """Some points at a time; one chunk where there is none."""
    for first in range(0, max(len(points), 1), CHUNK):
        yield points[first : first + CHUNK]
