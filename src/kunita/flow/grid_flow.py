"""The flow of a velocity path on a grid, and the covariance of the flow around it.

The path is v_t = Σ_s K_s G_s,t at 2T + 1 instants, one dual field G for each scale and instant. Its
squared norm is ∫ Σ_s ⟨G_s,t, K_s G_s,t⟩ dt. A step of Runge and Kutta meets three of the instants.
Integrals over time are by Simpson's rule on all of them.
"""

import dataclasses
import functools

import numpy as np
from jaxtyping import Float, Int
from scipy import interpolate

from kunita import splines
from kunita.flow.velocity_grid import Fields, VelocityGrid
from kunita.jaxrun.doors import Array

POINTS_AT_ONCE = 64
"""Points whose kernel is evaluated together: each takes a field on the whole grid."""


def simpson_weights(num_steps: int) -> Float[Array, " t"]:
    """Of the 2T + 1 instants of T steps."""
    weights = np.ones(2 * num_steps + 1)
    weights[1::2] = 4
    weights[2:-1:2] = 2
    return weights / (6 * num_steps)


@dataclasses.dataclass(frozen=True, eq=False)
class VelocityPath:
    """Duals and coefficients of a velocity path, by scale and instant.

    Args:
        grid: that carries the velocity.
        duals: G, (s, 2T + 1, d, *grid).
        coefficients: K_s G, of the same shape.
    """

    grid: VelocityGrid
    duals: np.ndarray
    coefficients: np.ndarray

    @classmethod
    def at_rest(cls, grid: VelocityGrid, num_steps: int) -> "VelocityPath":
        """No motion."""
        num_scales = len(grid.amplitudes)
        shape = (num_scales, 2 * num_steps + 1, grid.dimension, *grid.shape)
        return cls(grid, np.zeros(shape, np.float32), np.zeros(shape, np.float32))

    @classmethod
    def of_duals(cls, grid: VelocityGrid, duals: np.ndarray) -> "VelocityPath":
        """The path with given duals."""
        coefficients = np.empty_like(duals)
        for scale, of_scale in enumerate(duals):
            for instant, field in enumerate(of_scale):
                coefficients[scale, instant] = grid.smooth(field, scale)
        return cls(grid, duals, coefficients)

    @property
    def num_steps(self) -> int:
        return (self.duals.shape[1] - 1) // 2

    @functools.cached_property
    def fields(self) -> Float[Array, "t d ..."]:
        """The velocity at every instant."""
        return self.coefficients.sum(0)

    def inner(self, other: "VelocityPath") -> float:
        """∫⟨v, w⟩ dt."""
        products = self.duals * other.coefficients
        axes = (0, *range(2, products.ndim))
        by_instant = products.sum(axis=axes, dtype=np.float64)
        return float(simpson_weights(self.num_steps) @ by_instant)

    def towards(self, other: "VelocityPath", share: float) -> "VelocityPath":
        """(1 − α)v + αw."""
        duals = (1 - share) * self.duals + share * other.duals
        coefficients = (1 - share) * self.coefficients + share * other.coefficients
        return VelocityPath(self.grid, duals, coefficients)


@dataclasses.dataclass(frozen=True, eq=False)
class CarriedPoints:
    """Points along a flow, at every instant of its path.

    Args:
        positions: (t, n, d), mm.
        jacobians: (t, n, d, d) of the flow from the start to each instant.
        velocities: (t, n, d).
    """

    positions: np.ndarray
    jacobians: np.ndarray
    velocities: np.ndarray

    @property
    def arrived(self) -> Float[Array, "n d"]:
        return self.positions[-1]

    @functools.cached_property
    def propagators(self) -> Float[Array, "t n d d"]:
        """Ψ(t) = J(1)J(t)⁻¹."""
        return self.jacobians[-1] @ np.linalg.inv(self.jacobians)

    @property
    def contribution(self) -> Float[Array, "n d"]:
        """η = ∫Ψv dt: what the path contributes to the displacements, to first order."""
        weights = simpson_weights((len(self.positions) - 1) // 2)
        return np.einsum("t,tiab,tib->ia", weights, self.propagators, self.velocities)


def carry(
    grid: VelocityGrid, fields: Float[Array, "t d ..."], points: Float[Array, "n d"]
) -> CarriedPoints:
    """Carry points along the velocity with classical Runge–Kutta steps.

    Half-way through a step, where the path has an instant too, positions and Jacobians are
    Hermite's interpolation of both ends. Along `-fields[::-1]` points are carried back.
    """
    num_steps = (len(fields) - 1) // 2
    states = [_at_rest(points)]
    rates = [_rates(grid, fields[0], *states[0])]
    for step in range(num_steps):
        within = fields[2 * step + 1 : 2 * step + 3]
        states.append(_stepped(grid, within, states[-1], rates[-1], 1.0 / num_steps))
        rates.append(_rates(grid, within[-1], *states[-1]))
    return _with_middles(grid, fields, states, rates)


def arrive(
    grid: VelocityGrid, fields: Float[Array, "t d ..."], points: Float[Array, "n d"]
) -> "State":
    """Where `carry` takes points, and the Jacobians there, without what lies between."""
    num_steps = (len(fields) - 1) // 2
    state = _at_rest(points)
    for step in range(num_steps):
        rate = _rates(grid, fields[2 * step], *state)
        within = fields[2 * step + 1 : 2 * step + 3]
        state = _stepped(grid, within, state, rate, 1.0 / num_steps)
    return state


State = tuple[Float[Array, "n d"], Float[Array, "n d d"]]
"""Positions and Jacobians of points at one instant, or their rates of change."""


def _at_rest(points: Float[Array, "n d"]) -> State:
    """Points where they start."""
    n, d = points.shape
    still = np.broadcast_to(np.eye(d), (n, d, d))
    return np.asarray(points, np.float64), still


def _stepped(
    grid: VelocityGrid, within: Float[Array, "2 d ..."], state: State, rate: State, h: float
) -> State:
    """One step of Runge and Kutta; `within` are the fields half-way through it and at its end."""
    middle, last = within
    half = _rates(grid, middle, *_along(state, rate, h / 2))
    again = _rates(grid, middle, *_along(state, half, h / 2))
    end = _rates(grid, last, *_along(state, again, h))
    new = _along(state, rate, h / 6)
    new = _along(new, half, h / 3)
    new = _along(new, again, h / 3)
    return _along(new, end, h / 6)


def _along(state: State, rate: State, h: float) -> State:
    positions, jacobians = state
    velocities, growth = rate
    return positions + h * velocities, jacobians + h * growth


def _rates(
    grid: VelocityGrid,
    field: Fields,
    positions: Float[Array, "n d"],
    jacobians: Float[Array, "n d d"],
) -> tuple[Float[Array, "n d"], Float[Array, "n d d"]]:
    """q̇ = v(q) and J̇ = Dv(q)J."""
    return grid.rates(field, positions, jacobians)


def _with_middles(
    grid: VelocityGrid,
    fields: Float[Array, "t d ..."],
    states: list[State],
    rates: list[State],
) -> CarriedPoints:
    """The states at the ends of the steps, and half-way between them."""
    positions = _interleaved([q for q, _ in states], [v for v, _ in rates])
    jacobians = _interleaved([j for _, j in states], [w for _, w in rates])
    velocities = np.empty_like(positions)
    for instant, field in enumerate(fields):
        if instant % 2 == 0:
            velocities[instant] = rates[instant // 2][0]
        else:
            velocities[instant], _ = grid.velocity(field, positions[instant])
    return CarriedPoints(positions, jacobians, velocities)


def _interleaved(values: list[np.ndarray], rates: list[np.ndarray]) -> np.ndarray:
    """Values at the ends of equal steps, with Hermite's interpolation half-way."""
    num_steps = len(values) - 1
    found = [values[0]]
    for step in range(num_steps):
        mean = (values[step] + values[step + 1]) / 2
        bend = (rates[step] - rates[step + 1]) / (8 * num_steps)
        found.append(mean + bend)
        found.append(values[step + 1])
    return np.stack(found)


# -------------------------------------------------------------------------------- the covariance


@dataclasses.dataclass(frozen=True, eq=False)
class FlowCovariance:
    """Λ of points carried by a flow, by products: Λx = ∫ Ψ K(q) Ψᵀx dt.

    Args:
        grid: with the prior of the velocity.
        carried: the points.
        weights: (t,) of the quadrature.
        positions: (t, n, d) of the points at its instants.
        psi: (t, d, d, n) Ψ there, the points last.
    """

    grid: VelocityGrid
    carried: CarriedPoints
    weights: np.ndarray
    positions: np.ndarray
    psi: np.ndarray

    @classmethod
    def by_simpson(cls, grid: VelocityGrid, carried: CarriedPoints) -> "FlowCovariance":
        """At the instants of the path: what the search needs, whose paths have no others."""
        num_steps = (len(carried.positions) - 1) // 2
        weights = simpson_weights(num_steps).astype(np.float32)
        psi = _points_last(carried.propagators)
        return cls(grid, carried, weights, carried.positions, psi)

    @classmethod
    def by_gauss(cls, grid: VelocityGrid, carried: CarriedPoints) -> "FlowCovariance":
        """At the two instants of Gauss and Legendre, which are as exact as three of Simpson.

        A product takes less than half of the time. Against twelve instants, variances of the flow
        of textures that move by 6 pixels differ by 1 % at most; of two that move by 10 (condition B
        of benchmarks/image_truth.py) by 0.5 % in the median, and by up to 4.
        """
        instants = np.linspace(0.0, 1.0, len(carried.positions))
        inner = 0.5 + np.array([-0.5, 0.5]) / np.sqrt(3)
        path = interpolate.CubicHermiteSpline(instants, carried.positions, carried.velocities)
        jacobians = interpolate.CubicSpline(instants, carried.jacobians)(inner)
        psi = carried.jacobians[-1] @ np.linalg.inv(jacobians)
        weights = np.full(2, 0.5, np.float32)
        return cls(grid, carried, weights, path(inner), _points_last(psi))

    @functools.cached_property
    def stencils(self) -> list[splines.Stencils]:
        """From the grid to the points, at every instant."""
        return [self.grid.stencils(positions) for positions in self.positions]

    def pull_back(self, dual: Float[Array, "c d n"], instant: int) -> Fields:
        """βᵀΨᵀx: the dual fields of forces on the points at one instant, (c·d, *grid)."""
        momenta = splines.blockwise(self.psi[instant].swapaxes(0, 1), dual)
        n = dual.shape[-1]
        count = len(dual) * dual.shape[1]
        return self.stencils[instant].scatter(momenta.reshape(count, n))

    def push_forward(self, fields: Fields, instant: int) -> Float[Array, "c d n"]:
        """Ψβv: what velocities at one instant contribute to the displacements."""
        d, n = self.psi.shape[2:]
        values = self.stencils[instant].gather(fields)
        count = len(fields) // d
        return splines.blockwise(self.psi[instant], values.reshape(count, d, n))

    def product(self, dual: Float[Array, "c d n"]) -> Float[Array, "c d n"]:
        """Λx."""
        total = np.zeros_like(dual)
        for instant, weight in enumerate(self.weights):
            total += weight * self.push_forward(self.velocities(dual, instant), instant)
        return total

    def velocities(self, dual: Float[Array, "c d n"], instant: int) -> Fields:
        """kβᵀΨᵀx: the velocities that forces on the points make at one instant."""
        return self.grid.smooth_all(self.pull_back(dual, instant))

    def columns(self, chosen: Int[Array, " k"]) -> Float[Array, "kd d n"]:
        """Λ(x, c) of some of the points c, the axes of c before the points."""
        d, n = self.psi.shape[2:]
        total = np.zeros((d, len(chosen), d, n), np.float32)
        for instant, weight in enumerate(self.weights):
            kernel = weight * self._kernel_from(chosen, instant)
            psi = self.psi[instant]
            for a, b in np.ndindex(d, d):
                total[b, :, a] += kernel * (psi[b, :, chosen] @ psi[a])
        return total.reshape(d * len(chosen), d, n)

    def _kernel_from(self, chosen: Int[Array, " k"], instant: int) -> Float[Array, "k n"]:
        """k(c, x): one scalar field for each point serves all its axes."""
        here = self.stencils[instant]
        units = np.eye(len(chosen), dtype=np.float32)
        fields = self.grid.smooth_all(here.take(chosen).scatter(units))
        return here.gather(fields)

    def variances(self) -> Float[Array, "n d d"]:
        """Λ(x, x) of each point."""
        d, n = self.psi.shape[2:]
        total = np.zeros((n, d, d))
        for instant, weight in enumerate(self.weights):
            psi = np.moveaxis(self.psi[instant], -1, 0).astype(np.float64)
            own = self._kernel_at(instant)
            total += weight * own[:, None, None] * (psi @ psi.swapaxes(1, 2))
        return total

    def _kernel_at(self, instant: int) -> Float[Array, " n"]:
        """k(x, x) of each point: βᵀKβ."""
        stencil = self.stencils[instant]
        n = self.psi.shape[-1]
        values = np.empty(n)
        for first in range(0, n, POINTS_AT_ONCE):
            some = slice(first, first + POINTS_AT_ONCE)
            part = stencil.take(some)
            units = np.eye(len(part.first), dtype=np.float32)
            fields = self.grid.smooth_all(part.scatter(units))
            values[some] = np.diag(part.gather(fields))
        return values


def _points_last(matrices: Float[Array, "t n d d"]) -> Float[Array, "t d d n"]:
    last = np.moveaxis(matrices, 1, -1)
    return np.ascontiguousarray(last, np.float32)
