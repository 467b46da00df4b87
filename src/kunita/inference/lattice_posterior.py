"""Covariances and draws of any points around a flow on a grid, given observations at its sites.

With Q = (I + MΛ)⁻¹M, conditioning on what the observations say of the sites C gives

    Λ_post(z, w) = Λ(z, w) − Λ(z, C) Q Λ(C, w) + G_z A⁻¹ G_wᵀ,
    G_z = J_z h(z̃) − Λ(z, C) Q H,    A = Hᵀ Q H.

The points z travel along their own trajectories, with the same kernel as the sites. So what the
sites do not tell of the points between them stays in the covariance.

Draws follow Matheron's rule. With ξ from the prior of the flow and ν ~ N(0, M),

    l = (I + MΛ)⁻¹(ν − Mξ),    β = A⁻¹Hᵀl,
    u(z) = ξ(z) + Λ(z, C)(l − QHβ) + J_z h(z̃)β.

As ξ and Λ(z, C)l are integrals of velocities on the grid, a draw is a velocity at every instant,
and can be asked at any point.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from kunita.flow import grid_flow
from kunita.flow.grid_flow import CarriedPoints, FlowCovariance
from kunita.inference import conjugate
from kunita.inference.conjugate import ConjugateOptions
from kunita.inference.deflation import Deflation
from kunita.inference.dense_solver import DenseSolver
from kunita.inference.lattice_model import Duals, LatticeModel, Solved
from kunita.inference.trend import Trend
from kunita.jaxrun.doors import Array

FOR_DRAWS = ConjugateOptions(tolerance=0.01, max_iterations=60)
"""Fewer steps leave standard deviations too large, never too small. On lung CT they are so by some
two per cent, where the draws have a Monte Carlo error of five."""


@dataclasses.dataclass(frozen=True)
class PosteriorOptions:
    """How systems are solved.

    Args:
        most_dense: up to so many unknowns matrices are factored; beyond, conjugate gradients.
        conjugate: when conjugate gradients end.
        coarse: distance of the coarse nodes of the deflation, over the shortest length scale. Much
            closer nodes make its matrix singular in single precision.
        batch: so many draws are made together. More of them need fewer steps, and more memory.
    """

    most_dense: int = 2000
    conjugate: ConjugateOptions = FOR_DRAWS
    coarse: float = 2.1
    batch: int = 96


USUAL_SOLVES = PosteriorOptions()


@dataclasses.dataclass(frozen=True, eq=False)
class LatticePosterior:
    """The Gaussian posterior around a fitted flow.

    Args:
        model: Λ, H and M of the sites.
        trend: the directions of the alignment, with a flat prior.
        fields: (t, d, *grid) the velocity of the flow.
        options: of the solves.
    """

    model: LatticeModel
    trend: Trend
    fields: np.ndarray
    options: PosteriorOptions = USUAL_SOLVES

    @property
    def num_unknowns(self) -> int:
        d, n = self.model.flow.psi.shape[2:]
        return d * n

    @property
    def is_dense(self) -> bool:
        """Whether the systems are small enough to be factored."""
        return self.num_unknowns <= self.options.most_dense

    @functools.cached_property
    def dense(self) -> DenseSolver | None:
        """The factored matrices, unless they are too large."""
        return DenseSolver.of(self.model.system) if self.is_dense else None

    def carry(self, points: Float[Array, "m d"]) -> FlowCovariance:
        """Aligned points along the flow."""
        grid = self.model.flow.grid
        return FlowCovariance.by_gauss(grid, grid_flow.carry(grid, self.fields, points))

    def solve(self, forces: Duals) -> Duals:
        """(I + MΛ)⁻¹g, one system by itself."""
        return self._solve(forces, conjugate.solve).duals

    def solve_together(self, forces: Duals) -> "Answers":
        """The same in a block: for systems that do not nearly depend on each other, as draws."""
        return self._solve(forces, conjugate.solve_together)

    def _solve(self, forces: Duals, method: Callable[..., Solved]) -> "Answers":
        if self.dense is not None:
            return Answers(self.dense.solve(forces), residual=0.0)
        found = method(self.model.system, forces, self.options.conjugate, self.deflation)
        return Answers(found.dual, found.residual)

    @functools.cached_property
    def deflation(self) -> Deflation | None:
        """The coarse nodes of the lattice that the images say something of, if there are any."""
        distance = self.options.coarse * self.model.flow.grid.shortest
        return Deflation.at_informed(self.model.system, distance)

    @functools.cached_property
    def explained_design(self) -> Float[Array, "b d n"]:
        """QH."""
        if not len(self.model.design):
            return self.model.design
        return self.solve_together(self.model.information.product(self.model.design)).duals

    @functools.cached_property
    def alignment_covariance(self) -> Float[Array, "b b"]:
        """A⁻¹ = (HᵀQH)⁻¹, mm²."""
        return self._alignment_covariance(self.explained_design)

    def _alignment_covariance(self, explained: Float[Array, "b d n"]) -> Float[Array, "b b"]:
        information = np.einsum("bdn,cdn->bc", self.model.design, explained, dtype=np.float64)
        return np.linalg.inv((information + information.T) / 2)

    # ------------------------------------------------------------------------------ by solves

    def covariance(self, x: Float[Array, "m d"], y: Float[Array, "k d"]) -> Float[Array, "m d k d"]:
        """The covariance of aligned points as they arrive, by one solve for each direction of y."""
        at_x = self.carry(x)
        at_y = self.carry(y)
        cross_x = self._cross(at_x)
        cross_y = self._cross(at_y)
        solved = self.solve(self.model.information.product(cross_y))
        explained = np.einsum("xdn,ydn->xy", cross_x, solved, dtype=np.float64)
        m, d = x.shape
        known = between(at_x, at_y) - explained.reshape(m, d, len(y), d)
        loading_x = self._loading(at_x, cross_x)
        loading_y = self._loading(at_y, cross_y)
        aligned = np.einsum("mab,bc,kdc->makd", loading_x, self.alignment_covariance, loading_y)
        return known + aligned

    def variances(self, points: Float[Array, "m d"]) -> Float[Array, "m d d"]:
        """The covariance of each aligned point as it arrives, by one solve for each direction."""
        at = self.carry(points)
        m, d = points.shape
        cross = self._cross(at)
        solved = self.solve(self.model.information.product(cross))
        by_point = (m, d, *cross.shape[1:])
        explained = np.einsum(
            "madn,mbdn->mab", cross.reshape(by_point), solved.reshape(by_point), dtype=np.float64
        )
        known = at.variances() - (explained + explained.swapaxes(1, 2)) / 2
        loading = self._loading(at, cross)
        aligned = np.einsum("mab,bc,mdc->mad", loading, self.alignment_covariance, loading)
        return known + aligned

    def _cross(self, at: FlowCovariance) -> Float[Array, "md d n"]:
        """Λ(z, C), a row for each direction of each point."""
        sites = self.model.flow
        d, m = at.psi.shape[2:]
        units = np.eye(m * d, dtype=np.float32).reshape(m, d, m, d)
        forces = np.ascontiguousarray(units.reshape(m * d, m, d).swapaxes(1, 2))
        total = np.zeros((m * d, d, sites.psi.shape[-1]), np.float32)
        for instant, weight in enumerate(sites.weights):
            fields = sites.grid.smooth_all(at.pull_back(forces, instant))
            total += weight * sites.push_forward(fields, instant)
        return total

    def _loading(self, at: FlowCovariance, cross: Float[Array, "md d n"]) -> Float[Array, "m d b"]:
        """G_z."""
        d, m = at.psi.shape[2:]
        own = design_at(self.trend, at.carried)
        explained = np.einsum("xdn,bdn->xb", cross, self.explained_design, dtype=np.float64)
        return own - explained.reshape(m, d, -1)

    # ------------------------------------------------------------------------------- by draws

    def draws(self, count: int, key: int) -> "Draws":
        """So many draws from the posterior.

        Args:
            count: of draws.
            key: of the random numbers.
        """
        generator = np.random.default_rng(key)
        sizes = [
            min(self.options.batch, count - first) for first in range(0, count, self.options.batch)
        ]
        return Draws.together([self._draw(generator, size) for size in sizes])

    def _draw(self, generator: np.random.Generator, count: int) -> "Draws":
        """A few draws: velocities at every instant, and changes of the alignment."""
        flow = self.model.flow
        d, n = flow.psi.shape[2:]
        fields = []
        moved = np.zeros((count, d, n), np.float32)
        for instant, weight in enumerate(flow.weights):
            drawn = np.sqrt(weight) * flow.grid.draw(generator, count * d)
            moved += flow.push_forward(drawn, instant)
            fields.append(drawn)
        noise = self.model.information.draw(generator, count)
        response = self._respond(noise - self.model.information.product(moved))
        self._add_answers(fields, response.duals)
        whole = np.stack(fields).reshape(len(fields), count, d, *flow.grid.shape)
        return Draws(self.trend, whole, response.shifts, response.residual)

    def _add_answers(self, fields: list[np.ndarray], duals: Duals) -> None:
        """Add the velocities of Λ(z, C)l to those of draws from the prior, in place."""
        flow = self.model.flow
        for instant, weight in enumerate(flow.weights):
            fields[instant] += weight * flow.velocities(duals, instant)

    def _respond(self, forces: Duals) -> "Response":
        """What draws respond with.

        QH is found in the same block as l, which is cheaper than two.
        """
        design = self.model.design
        of_design = self.model.information.product(design) if len(design) else design
        solved = self.solve_together(np.concatenate([forces, of_design]))
        dual = solved.duals[: len(forces)]
        explained = solved.duals[len(forces) :]
        pulled = np.einsum("bdn,cdn->cb", design, dual, dtype=np.float64)
        shifts = pulled @ self._alignment_covariance(explained)
        held = np.tensordot(shifts.astype(np.float32), explained, axes=1)
        return Response(dual - held, shifts, solved.residual)


class Answers(NamedTuple):
    """Solutions of linear systems, and the largest relative residual among them."""

    duals: np.ndarray
    residual: float


class Response(NamedTuple):
    """What draws respond with: l − QHβ and β, and the largest relative residual of a system."""

    duals: np.ndarray
    shifts: np.ndarray
    residual: float


@dataclasses.dataclass(frozen=True, eq=False)
class Draws:
    """Draws of the deformation, as deviations from the mean.

    Args:
        trend: the directions of the alignment.
        fields: (t, s, d, *grid) velocities at every instant, quadrature weights included.
        shifts: (s, b) changes of the alignment.
        residual: the largest relative residual of the linear systems behind them; 0 where these
            were factored.
    """

    trend: Trend
    fields: np.ndarray
    shifts: np.ndarray
    residual: float = 0.0

    @classmethod
    def together(cls, parts: Sequence["Draws"]) -> "Draws":
        """All draws of some."""
        return cls(
            parts[0].trend,
            np.concatenate([part.fields for part in parts], axis=1),
            np.concatenate([part.shifts for part in parts]),
            max(part.residual for part in parts),
        )

    def __len__(self) -> int:
        return len(self.shifts)

    def at(self, points: FlowCovariance) -> Float[Array, "s m d"]:
        """How far each draw moves points from where they arrive, mm."""
        count, d = self.fields.shape[1:3]
        m = points.psi.shape[-1]
        total = np.zeros((count, d, m), np.float32)
        for instant, fields in enumerate(self.fields):
            planes = fields.reshape(count * d, *fields.shape[2:])
            total += points.push_forward(planes, instant)
        basis = design_at(self.trend, points.carried)
        turned = np.einsum("mdb,sb->sdm", basis, self.shifts)
        return (total + turned).swapaxes(1, 2)


def design_at(trend: Trend, carried: CarriedPoints) -> Float[Array, "m d b"]:
    """J h(x̃)."""
    basis = np.asarray(trend.basis(carried.positions[0]))
    return carried.jacobians[-1] @ basis


def between(x: FlowCovariance, y: FlowCovariance) -> Float[Array, "m d k d"]:
    """Λ(x, y)."""
    d, k = y.psi.shape[2:]
    m = x.psi.shape[-1]
    total = np.zeros((m, d, k, d))
    units = np.eye(k, dtype=np.float32)
    for instant, weight in enumerate(x.weights):
        fields = x.grid.smooth_all(y.stencils[instant].scatter(units))
        kernel = x.stencils[instant].gather(fields)
        psi_x = x.psi[instant]
        psi_y = y.psi[instant]
        total += weight * np.einsum("km,abm,cbk->makc", kernel, psi_x, psi_y, optimize=True)
    return total
