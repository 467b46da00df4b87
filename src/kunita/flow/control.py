"""Control points: where landmarks are many and the kernel is smooth, a few of them carry the
momentum of all.

The Gram matrix of a smooth kernel is numerically of low rank: the velocity field of n momenta is,
up to a small and known remainder, that of r < n of the landmarks. The others lend them their
momentum, and a shot costs n·r instead of n².
"""

from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from kunita import numerics
from kunita.flow.shooting import Phase, Trajectory, followed
from kunita.jaxrun.doors import Array, Scalar
from kunita.jaxrun.programs import FEW_LANDMARKS, compiled
from kunita.kernels import AbstractKernel

Controls = Int[Array, " r"]
"""Rows of the landmarks that carry momentum."""


gram_jit = compiled(AbstractKernel.gram, hasty=FEW_LANDMARKS)


def choose_controls(
    kernel: AbstractKernel,
    points: np.ndarray,
    precisions: np.ndarray,
    remainders: Sequence[float],
    most: int,
    multiple: int = 1,
) -> Iterator[np.ndarray]:
    """The landmarks that explain the velocity at all others up to a remainder: Cholesky with
    pivots, greedily.

    Given the velocities at the control points, the one at xᵢ still has the variance eᵢ. They are
    added where eᵢ is largest against the noise, until Σ eᵢ/Dᵢ is below one remainder after the
    other: each set begins with the last one.

    Args:
        kernel: the prior's covariance function.
        points: (n, d) the landmarks.
        precisions: (n,) 1/Dᵢ, mm⁻².
        remainders: what Σ eᵢ/Dᵢ may be, falling.
        most: as many control points still pay; where they do not suffice there is no set.
        multiple: their number is a multiple of this, so that similar problems have the same.
    """
    variance = float(kernel.variance)
    left = np.full(len(points), variance)
    rows: list[int] = []
    columns = np.zeros((most, len(points)))
    for remainder in remainders:
        while True:
            pivot = int(np.argmax(left * precisions))
            exhausted = left[pivot] <= 1e-14 * variance  # to rounding, the others explain it
            if rows and (
                exhausted or (len(rows) % multiple == 0 and left @ precisions <= remainder)
            ):
                yield np.array(rows)
                break
            if len(rows) == most:
                return
            k = len(rows)
            gram = np.asarray(gram_jit(kernel, points[pivot : pivot + 1], points))[0]
            columns[k] = (gram - columns[:k, pivot] @ columns[:k]) / np.sqrt(left[pivot])
            left = np.maximum(left - columns[k] ** 2, 0.0)
            left[pivot] = 0.0
            rows.append(pivot)


class Guided(Trajectory):
    """A trajectory of landmarks whose velocity comes from control points.

    Its energy is conserved only as far as these explain it. So the time stepping is measured by how
    well the momenta go with the flow, J(t)ᵀp(t) = p(0).
    """

    @property
    def drift(self) -> Scalar:
        carried = jnp.einsum("tiba,tib->tia", self.jacobians, self.momenta)
        return abs(carried - self.momenta[0]).max() / (
            abs(self.momenta[0]).max() + np.finfo(float).tiny
        )


def carried_by_controls(
    values: Float[Array, "n r"], momenta: Float[Array, "n d"], controls: Controls
) -> Float[Array, "r d"]:
    """K_CC⁻¹K_CX p: momenta at the control points whose velocity field agrees with that of all
    momenta there.
    """
    return numerics.solve_cholesky(numerics.cholesky(values[controls]), values.T @ momenta)


def guided_field(
    kernel: AbstractKernel, controls: Controls, phase: Phase
) -> tuple[Float[Array, "n d"], Float[Array, "n d d"], Float[Array, "r d"]]:
    """The velocity K_XC K_CC⁻¹K_CX p at all landmarks, its Jacobian there, and the momenta p_c that
    make this field.
    """
    origin = jnp.mean(phase[0], axis=0)
    q, p = phase[0] - origin, phase[1]
    values, slopes = kernel.pairs(q, q[controls])
    p_c = carried_by_controls(values, p, controls)
    pq = (p_c[:, :, None] * q[controls][:, None, :]).reshape(len(p_c), -1)
    gp, gpq = jnp.split(slopes @ jnp.concatenate([p_c, pq], axis=1), [p.shape[1]], axis=1)
    return values @ p_c, gp[:, :, None] * q[:, None, :] - gpq.reshape(*q.shape, -1), p_c


def guided_geodesic(
    kernel: AbstractKernel,
    positions: Float[Array, "n d"],
    momenta: Float[Array, "n d"],
    controls: Controls,
    times: Float[Array, " t"],
) -> Guided:
    """`shooting.geodesic` with K_XC K_CC⁻¹K_CX for K: the trajectory of all landmarks.

    Every landmark keeps its momentum, ṗᵢ = −Dv(qᵢ)ᵀpᵢ, and lends it to the control points anew at
    every instant; left to themselves, theirs would after a while no longer stand for it.
    """
    velocity = lambda q, p: guided_field(kernel, controls, (q, p))[:2]
    return Guided(times, *followed(velocity, positions, momenta, times))


@compiled
def carriers_of(kernel: AbstractKernel, landmarks: Guided, controls: Controls) -> Trajectory:
    """The trajectory of the control points, with the momenta that they carry for all landmarks."""
    path = landmarks.positions, landmarks.momenta
    v, dv, carried = jax.lax.map(lambda phase: guided_field(kernel, controls, phase), path)
    middles = _middles(kernel, controls, path, (v, dv), jnp.diff(landmarks.times))
    q, jacobians = landmarks.positions[:, controls], landmarks.jacobians[:, controls]
    return Trajectory(landmarks.times, q, carried, jacobians, landmarks.energies, middles)


def _middles(
    kernel: AbstractKernel,
    controls: Controls,
    path: tuple[Float[Array, "t n d"], Float[Array, "t n d"]],
    slopes: tuple[Float[Array, "t n d"], Float[Array, "t n d d"]],
    steps: Float[Array, " s"],
) -> tuple[Float[Array, "s r d"], Float[Array, "s r d"]]:
    """The control points halfway through each step: from the cubic through both ends of what is
    known there.
    """
    v, dv = slopes
    along = (v, -jnp.einsum("tiab,tia->tib", dv, path[1]))
    h = steps[:, None, None]
    q, p = (
        (y[:-1] + y[1:]) / 2 + h / 8 * (k[:-1] - k[1:]) for y, k in zip(path, along, strict=True)
    )
    return q[:, controls], jax.lax.map(
        lambda phase: guided_field(kernel, controls, phase)[2], (q, p)
    )


@compiled
def displacement_by_truncation(
    kernel: AbstractKernel, weights: Float[Array, " t"], landmarks: Trajectory, carriers: Trajectory
) -> Float[Array, "n d"]:
    """How far the landmarks would be carried by what the control points leave of the velocity, mm.

    ∫₀¹ Ψᵢ(t) [Σⱼ k(qᵢ, qⱼ)pⱼ − Σ_c k(qᵢ, q_c)p_c] dt, with all momenta in the first sum: first
    order in the remainder, the field itself held fixed.
    """

    def add(total: Array, node: tuple[Array, ...]) -> tuple[Array, None]:
        w, q, p, jacobian, q_c, p_c = node
        mean = jnp.mean(q, axis=0)
        full, _ = kernel.sums(q - mean, q - mean, p, p[:, :0])
        ours, _ = kernel.sums(q - mean, q_c - mean, p_c, p_c[:, :0])
        psi = landmarks.jacobians[-1] @ numerics.inverse_small(jacobian)
        return total + w * jnp.einsum("iab,ib->ia", psi, full - ours), None

    nodes = (
        weights,
        landmarks.positions,
        landmarks.momenta,
        landmarks.jacobians,
        carriers.positions,
        carriers.momenta,
    )
    return jax.lax.scan(add, jnp.zeros_like(landmarks.positions[0]), nodes)[0]
