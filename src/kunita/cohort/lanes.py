"""Refits in batches: one compiled program fits landmarks without some of them, and predicts those.

A program is compiled for a shape, so there are few: rows are rounded up to a bucket, refits are run
in batches of a fixed size, each in a lane of its own. Every lane starts where the fit of all
landmarks says that it will end, to first order.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from kunita import numerics
from kunita.flow import covariance, transport
from kunita.inference.batch import Found, Start, fit, regress
from kunita.inference.problem import Step
from kunita.inference.trend import Alignment, Trend
from kunita.jaxrun.doors import Array, door
from kunita.kernels import AbstractKernel
from kunita.observations import LandmarkObservations
from kunita.posterior import Posterior, arrival, conditioned_variance, path_of, swing

BUCKETS = (8, 16, 24, 32, 40, 48, 64)
"""Numbers of rows that programs are compiled for; beyond them multiples of `WIDE`."""

WIDE = 32

LANES = 4
"""Refits of a batch: enough that calling it costs nothing, few enough that filling up the last one
does not either."""


def bucket(count: int) -> int:
    """The number of rows that so many landmarks are fitted in."""
    return next((size for size in BUCKETS if size >= count), -(-count // WIDE) * WIDE)


def num_points(count: int, num_rows: int) -> int:
    """The number of points that so many are predicted in: one or two, or a multiple of half the
    rows.
    """
    half = num_rows // 2
    return count if count <= 2 else -(-count // half) * half


class Common(eqx.Module):
    """What all refits of a case have in common: the prior, and the alignment of all landmarks."""

    kernel: AbstractKernel
    trend: Trend
    alignment: Alignment
    origin: Float[Array, " d"]


class Lane(eqx.Module):
    """One refit: what it sees, the momenta and the first step that it starts with, and points to
    predict.
    """

    observed: LandmarkObservations
    momenta: Float[Array, "n d"]
    step: Step
    points: Float[Array, "m d"]


class Refitted(eqx.Module):
    """A refit and what it says of its points: where they go, how surely, and the Jacobian of the
    whole map there.
    """

    posterior: Posterior
    mean: Float[Array, "m d"]
    covariance: Float[Array, "m d d"]
    jacobians: Float[Array, "m d d"]
    converged: Bool[Array, ""]


def refit(common: Common, lane: Lane, model: str, num_steps: int) -> Refitted:
    """Fit, linearise, predict: one lane."""
    start = Start(
        common.kernel, lane.observed, common.trend, common.alignment, lane.momenta, lane.step
    )
    found = regress(start) if model == "small" else fit(start, num_steps)
    posterior = posterior_of(start, found, common.origin, model)
    path = path_of(posterior, lane.points)
    jacobians = path.jacobians[-1] @ posterior.alignment.matrix
    return Refitted(
        posterior, arrival(posterior, path), variance(posterior, path), jacobians, found.converged
    )


def variance(posterior: Posterior, path: transport.Path) -> Float[Array, "m d d"]:
    """What `Posterior.predict` says of its uncertainty, the landmarks' part point by point.

    A lane has few points, and for a solve with many columns LAPACK would call threads that cost
    more than they bring.
    """
    half = swing(posterior, path)
    turned = jnp.einsum("mka,mkb->mab", half, half)
    if posterior.model == "pathwise":
        return conditioned_variance(posterior, path) + turned
    kernel, weights, landmarks = (
        posterior.kernel,
        posterior.weights,
        transport.landmark_path(posterior.trajectory),
    )
    cross = covariance.flow_covariance(kernel, weights, path, landmarks)
    known = lambda block: block @ posterior.linear.solve(block.T)
    explained = jax.lax.map(known, cross.reshape(*cross.shape[:2], -1))
    return covariance.flow_variance(kernel, weights, path) - explained + turned


def posterior_of(start: Start, found: Found, origin: Float[Array, " d"], model: str) -> Posterior:
    """`posterior_from_fit`, of a fit that converged."""
    linear = start.linearised(found.trajectory, found.noise)
    shift, correction = linear.dual_change(found.errors)
    corrected = model == "small"
    keep = 1.0 if corrected else 0.0
    return Posterior(
        model=model,
        corrected=corrected,
        kernel=start.kernel,
        trend=start.trend,
        alignment=found.alignment,
        origin=origin,
        trajectory=found.trajectory,
        weights=numerics.quadrature_weights(found.trajectory.num_steps),
        targets=start.observed.fixed,
        noise=found.noise,
        linear=linear,
        dual=found.trajectory.momenta[-1] + correction,
        correction=keep * correction,
        shift=keep * shift,
    )


@functools.partial(jax.jit, static_argnames=("model", "num_steps"))
def refit_batch(common: Common, lanes: Lane, model: str, num_steps: int) -> Refitted:
    """All lanes of a batch, one after the other; each ends on its own, and none depends on the
    others.

    Not by `jax.vmap`: two calls of LAPACK for many matrices each, at the same time, wait for each
    other's threads for ever where these are few; and lanes would all take as many steps as the
    slowest.
    """
    return jax.lax.map(lambda lane: refit(common, lane, model, num_steps), lanes)


run_batch = door(refit_batch)


def refit_lanes(
    common: Common, lanes: Sequence[Lane], model: str, num_steps: int
) -> Iterator[Refitted]:
    """Batch after batch, the last one filled up with copies of its last lane."""
    arrays = jax.tree.map(
        np.asarray, common
    )  # a number in place of an array would be another program
    for first in range(0, len(lanes), LANES):
        batch = lanes[first : first + LANES]
        filled = [*batch, *[batch[-1]] * (LANES - len(batch))]
        stacked = jax.tree.map(lambda *parts: np.stack(parts), *filled)
        found = run_batch(arrays, stacked, model, num_steps)
        for k in range(len(batch)):
            yield _of_one(found, k, common)


def _of_one(found: Refitted, k: int, common: Common) -> Refitted:
    """The refit of one lane; what all have in common is not copied."""
    one = jax.tree.map(lambda leaf: leaf[k], found)
    parts = lambda posterior: (posterior.kernel, posterior.trend, posterior.origin)
    shared = (common.kernel, common.trend, common.origin)
    return eqx.tree_at(lambda refitted: parts(refitted.posterior), one, shared)


# --------------------------------------------------------------------------------- where they start


@dataclasses.dataclass(frozen=True, eq=False)
class Influence:
    """How a fit would change with what was seen, to first order: what `Posterior.leave_one_out`
    follows from.

    Args:
        precision: (nd, nd) P = S⁻¹ − S⁻¹HA⁻¹HᵀS⁻¹, the change of λ with the observations.
        gain: (b, nd) A⁻¹HᵀS⁻¹, that of the alignment.
        dual: (n, d) λ.
        jacobians: (n, d, d) of the flow at the landmarks, which carry λ back to the initial
            momenta.
    """

    precision: np.ndarray
    gain: np.ndarray
    dual: np.ndarray
    jacobians: np.ndarray

    @classmethod
    @door
    def of(cls, posterior: Posterior) -> "Influence":
        """Of the rows of a posterior."""
        linear, last = posterior.linear, posterior.trajectory.momenta[-1]
        known = np.asarray(linear.solve(np.eye(last.size)))
        gain = np.asarray(numerics.solve_cholesky(linear.trend_factor, linear.solved_design.T))
        return cls(
            known - np.asarray(linear.solved_design) @ gain,
            gain,
            np.asarray(last),
            np.asarray(linear.jacobians),
        )

    def without(self, rows: np.ndarray) -> Step:
        """The step to the fit that does not see these rows: moved by Δ = −P⁻¹λ of these, they pull
        at nothing.
        """
        d = self.dual.shape[1]
        left = (rows[:, None] * d + np.arange(d)).ravel()
        moved = np.linalg.lstsq(
            self.precision[np.ix_(left, left)], -self.dual[rows].ravel(), rcond=None
        )[0]
        change = (self.precision[:, left] @ moved).reshape(self.dual.shape)
        return Step(self.gain[:, left] @ moved, np.einsum("iba,ib->ia", self.jacobians, change))
