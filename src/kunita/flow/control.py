"""Control points: a few landmarks that carry the momentum of all, where the kernel is smooth.

The Gram matrix of a smooth kernel has a low numerical rank. The velocity field of n momenta then
equals, up to a small and known remainder, the field of momenta at r < n of the landmarks, the
control points. Shooting costs n·r instead of n².
"""

import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from kunita import numerics
from kunita.flow.shooting import (
    Phase,
    Phases,
    Trajectory,
    integrate_flow,
    slope_loads,
    velocities_alone,
    velocity_gradients,
)
from kunita.jaxrun.doors import Array
from kunita.jaxrun.programs import FEW_LANDMARKS, compiled
from kunita.kernels import AbstractKernel

Controls = Int[Array, " r"]
"""Indices of the landmarks that are control points."""

EXPLAINED = 1e-14
"""Share of the prior's variance that is rounding: a landmark with less left is explained."""

gram_jit = compiled(AbstractKernel.gram, hasty=FEW_LANDMARKS)


# ------------------------------------------------------------------- which landmarks to choose


class PivotedCholesky:
    """The Cholesky factorisation of a Gram matrix, one pivot after the other.

    Given the velocities at the pivots, the velocity at landmark i has the variance
    eᵢ = k(xᵢ, xᵢ) − Σₖ Lₖᵢ², where L are the columns of the factor.

    Args:
        kernel: the prior's covariance function.
        points: (n, d) the landmarks.
        most: the largest number of pivots.
    """

    def __init__(self, kernel: AbstractKernel, points: np.ndarray, most: int) -> None:
        self.kernel = kernel
        self.points = points
        self.variance = float(kernel.variance)
        self.pivots: list[int] = []
        self.columns = np.zeros((most, len(points)))
        self.unexplained = np.full(len(points), self.variance)

    def explains(self, row: int) -> bool:
        """Whether the velocity at a landmark follows from the pivots, up to rounding."""
        return bool(self.unexplained[row] <= EXPLAINED * self.variance)

    def add(self, pivot: int) -> None:
        """Add the column of one more pivot."""
        count = len(self.pivots)
        known = self.columns[:count]
        column = self._gram_with(pivot) - known[:, pivot] @ known
        column /= np.sqrt(self.unexplained[pivot])
        left = self.unexplained - column**2
        left[pivot] = 0.0
        self.columns[count] = column
        self.unexplained = np.maximum(left, 0.0)
        self.pivots.append(pivot)

    def _gram_with(self, pivot: int) -> np.ndarray:
        """The covariance k(x_pivot, xᵢ) with every landmark."""
        here = self.points[pivot : pivot + 1]
        gram = np.asarray(gram_jit(self.kernel, here, self.points))
        return gram[0]


def choose_controls(
    kernel: AbstractKernel,
    points: np.ndarray,
    precisions: np.ndarray,
    remainders: Sequence[float],
    most: int,
    multiple: int = 1,
) -> Iterator[np.ndarray]:
    """Choose landmarks that explain the velocity at all others, greedily, up to a remainder.

    Given the velocities at the control points, the velocity at landmark i still has the variance
    eᵢ. Control points are added where eᵢ is largest relative to the noise variance Dᵢ, until
    Σ eᵢ/Dᵢ is below the remainder. One set is made for each remainder, and each set begins with
    the previous one.

    Args:
        kernel: the prior's covariance function.
        points: (n, d) the landmarks.
        precisions: (n,) 1/Dᵢ, mm⁻².
        remainders: upper bounds of Σ eᵢ/Dᵢ, in decreasing order.
        most: the largest number of control points that saves time. Where it does not suffice,
            there is no set.
        multiple: the number of control points is a multiple of this, so that similar problems
            share compiled programs.
    """
    factor = PivotedCholesky(kernel, points, most)
    for remainder in remainders:
        while True:
            count = len(factor.pivots)
            pivot = int(np.argmax(factor.unexplained * precisions))
            small = factor.unexplained @ precisions <= remainder
            enough = small and count % multiple == 0
            if count > 0 and (enough or factor.explains(pivot)):
                yield np.array(factor.pivots)
                break
            if count == most:
                return
            factor.add(pivot)


# ------------------------------------------------------------------------ the field that they make


class ControlledField(NamedTuple):
    """The velocity field of the control points, at one instant or at several.

    Args:
        velocities: v at all landmarks.
        gradients: Dv at all landmarks.
        momenta: the momenta of the control points that make the field.
    """

    velocities: Float[Array, "*t n d"]
    gradients: Float[Array, "*t n d d"]
    momenta: Float[Array, "*t r d"]


def project_momenta(
    gram: Float[Array, "n r"], momenta: Float[Array, "n d"], controls: Controls
) -> Float[Array, "r d"]:
    """Compute p_c = K_CC⁻¹ K_CX p, the momenta of the control points.

    Their velocity field agrees at the control points with the field of all momenta p.

    Args:
        gram: K_XC.
        momenta: p, of all landmarks.
        controls: which landmarks are control points.
    """
    factor = numerics.cholesky(gram[controls])
    velocity = gram.T @ momenta
    return numerics.solve_cholesky(factor, velocity)


def controlled_field(kernel: AbstractKernel, controls: Controls, phase: Phase) -> ControlledField:
    """Compute the velocity K_XC K_CC⁻¹ K_CX p at all landmarks, and its gradient."""
    positions, momenta = phase
    origin = jnp.mean(positions, axis=0)
    q = positions - origin
    q_c = q[controls]
    gram, slopes = kernel.pairs(q, q_c)
    p_c = project_momenta(gram, momenta, controls)
    loads = slope_loads(q_c, p_c)
    return ControlledField(
        velocities=gram @ p_c,
        gradients=velocity_gradients(slopes @ loads, q),
        momenta=p_c,
    )


# ------------------------------------------------------------------------------------ the geodesic


def guided_geodesic(
    kernel: AbstractKernel,
    positions: Float[Array, "n d"],
    momenta: Float[Array, "n d"],
    controls: Controls,
    times: Float[Array, " t"],
) -> Trajectory:
    """Shoot as `shooting.geodesic` does, with K_XC K_CC⁻¹ K_CX in place of K.

    Every landmark keeps its own momentum, ṗᵢ = −Dv(qᵢ)ᵀpᵢ, and the control points' momenta are
    computed anew from all of them at every instant. If the control points followed the geodesic
    equations by themselves, their momenta would soon no longer represent those of all landmarks.

    The energy is conserved only as far as the control points explain it. So the drift of such a
    trajectory is that of the invariant J(t)ᵀp(t) = p(0).
    """

    def velocity(q: Array, p: Array) -> tuple[Array, Array]:
        field = controlled_field(kernel, controls, (q, p))
        return field.velocities, field.gradients

    path = integrate_flow(velocity, positions, momenta, times)
    return Trajectory(times, *path, guided=True)


@compiled
def carriers_of(kernel: AbstractKernel, landmarks: Trajectory, controls: Controls) -> Trajectory:
    """The trajectory of the control points, with the momenta that represent all landmarks."""
    path = (landmarks.positions, landmarks.momenta)
    field_at = functools.partial(controlled_field, kernel, controls)
    field = jax.lax.map(field_at, path)
    middles = _interpolate_middles(kernel, controls, path, field, landmarks.step_lengths)
    return Trajectory(
        times=landmarks.times,
        positions=landmarks.positions[:, controls],
        momenta=field.momenta,
        jacobians=landmarks.jacobians[:, controls],
        energies=landmarks.energies,
        middles=middles,
    )


def _interpolate_middles(
    kernel: AbstractKernel,
    controls: Controls,
    path: Phases,
    field: ControlledField,
    steps: Float[Array, " s"],
) -> Phases:
    """Positions and momenta of the control points halfway through each step.

    All landmarks are interpolated by the cubic through the values and rates at both ends.
    """
    q, p = path
    rates = -jnp.einsum("tiab,tia->tib", field.gradients, p)
    lengths = steps[:, None, None]
    middle_q = numerics.hermite_middles(q, field.velocities, lengths)
    middle_p = numerics.hermite_middles(p, rates, lengths)

    def momenta_of_controls(phase: Phase) -> Float[Array, "r d"]:
        return controlled_field(kernel, controls, phase).momenta

    middle_p_c = jax.lax.map(momenta_of_controls, (middle_q, middle_p))
    return middle_q[:, controls], middle_p_c


# ------------------------------------------------------------------------------ what they leave out


@compiled
def displacement_by_truncation(
    kernel: AbstractKernel,
    weights: Float[Array, " t"],
    landmarks: Trajectory,
    carriers: Trajectory,
) -> Float[Array, "n d"]:
    """How far the landmarks would be moved by the velocity that the control points leave out, mm.

    ∫₀¹ Ψᵢ(t) [Σⱼ k(qᵢ, qⱼ)pⱼ − Σ_c k(qᵢ, q_c)p_c] dt, with the momenta of all landmarks in the
    first sum. It is of first order in the remainder; the field itself is held fixed.

    Args:
        kernel: the prior's covariance function.
        weights: quadrature weights on the grid of times.
        landmarks: the trajectory of all landmarks.
        carriers: the trajectory of the control points.
    """
    end = landmarks.jacobians[-1]

    def add(total: Array, node: tuple[Array, ...]) -> tuple[Array, None]:
        w, q, p, jacobian, q_c, p_c = node
        left_out = velocity_left_out(kernel, (q, p), (q_c, p_c))
        psi = end @ numerics.inverse_small(jacobian)
        carried = jnp.einsum("iab,ib->ia", psi, left_out)
        return total + w * carried, None

    nodes = (
        weights,
        landmarks.positions,
        landmarks.momenta,
        landmarks.jacobians,
        carriers.positions,
        carriers.momenta,
    )
    start = jnp.zeros_like(landmarks.positions[0])
    return jax.lax.scan(add, start, nodes)[0]


def velocity_left_out(
    kernel: AbstractKernel, landmarks: Phases, controls: Phases
) -> Float[Array, "n d"]:
    """Compute Σⱼ k(qᵢ, qⱼ)pⱼ − Σ_c k(qᵢ, q_c)p_c at every landmark."""
    q, p = landmarks
    q_c, p_c = controls
    origin = jnp.mean(q, axis=0)
    q = q - origin
    q_c = q_c - origin
    full = velocities_alone(kernel, q, p, q)
    kept = velocities_alone(kernel, q_c, p_c, q)
    return full - kept
