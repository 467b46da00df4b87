"""Refits in batches: one compiled program fits landmarks without some of them, and predicts those.

A program is compiled for a shape, so there are few: rows are rounded up to a bucket, refits are run
in batches of a fixed size, each in a lane of its own. Every lane starts where the fit of all
landmarks says that it will end, to first order.
"""

import functools
from collections.abc import Iterator, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from kunita import numerics
from kunita.flow import shooting, transport
from kunita.inference.gauss_newton import GaussNewton, GaussNewtonOptions
from kunita.inference.path_space import linear_model
from kunita.inference.problem import Problem, State, Step, look
from kunita.inference.search import run_compiled
from kunita.inference.small import AlignmentSearch, Regression
from kunita.inference.solve import THOROUGH
from kunita.inference.trend import Alignment, Trend
from kunita.jaxrun.doors import Array, door
from kunita.kernels import AbstractKernel
from kunita.observations.landmarks import LandmarkObservations
from kunita.posterior import Posterior, arrival, condition, path_of, pointwise_covariance

BUCKETS = (8, 16, 24, 32, 40, 48, 64)
"""Numbers of rows that programs are compiled for; beyond them multiples of `WIDE`."""

WIDE = 32

LANES = 4
"""Refits of a batch: enough that calling it costs nothing, few enough that filling up the last one
does not either."""


MOST_STEPS = 30
"""Of one refit: one that starts near its end takes four to ten."""

REFITS = GaussNewtonOptions(memory=8, keep_below=np.inf)
"""A short memory holds about all of such a search, and the first linear model serves to its end."""


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
    problem = Problem(common.kernel, lane.observed, common.trend)
    fitted: State | Regression
    if model == "small":
        fitted, converged = _regressed(problem, common, lane)
    else:
        fitted, converged = _fitted(problem, common, lane, num_steps)
    path = transport.landmark_path(fitted.trajectory)
    weights = numerics.quadrature_weights(fitted.trajectory.num_steps)
    posterior = condition(
        problem,
        linear_model(problem, path, fitted.jacobians, weights),
        fitted,
        carriers=fitted.trajectory,
        origin=common.origin,
        model=model,
        corrected=model == "small",
    )
    along = path_of(posterior, lane.points)
    return Refitted(
        posterior=posterior,
        mean=arrival(posterior, along),
        covariance=point_by_point(posterior, along),
        jacobians=along.jacobians[-1] @ posterior.alignment.matrix,
        converged=converged,
    )


def _fitted(
    problem: Problem, common: Common, lane: Lane, num_steps: int
) -> tuple[State, Bool[Array, ""]]:
    """The most probable flow, from a start that is near it, and whether it was found.

    The model is linearised once, where the search starts: past steps correct it better than a new
    one would, which costs as much as the shooting.
    """
    times = jnp.asarray(numerics.time_grid(num_steps))
    start = look(problem, common.alignment, lane.momenta, lane.step, times)
    search = GaussNewton(THOROUGH.tolerance_mm(problem), REFITS)
    descent, _ = run_compiled(search, problem, start, MOST_STEPS)
    state = descent.state
    closed = state.residual_mm <= search.tolerance
    return state, closed & (state.drift <= shooting.MAX_DRIFT)


def _regressed(problem: Problem, common: Common, lane: Lane) -> tuple[Regression, Bool[Array, ""]]:
    """The small-deformation model, and whether its alignment stands still."""
    search = AlignmentSearch(THOROUGH.tolerance_mm(problem))
    start = common.trend.move(common.alignment, lane.step.beta)
    found, _ = run_compiled(search, problem, start, MOST_STEPS)
    return found, search.ended(found)


def point_by_point(posterior: Posterior, path: transport.Path) -> Float[Array, "m d d"]:
    """`pointwise_covariance`, one point after the other.

    A lane has few points, and for a solve with many columns LAPACK would call threads that cost
    more than they bring. The pathwise model factors a matrix for every instant, which is the same
    for all points.
    """
    if posterior.model == "pathwise":
        return pointwise_covariance(posterior, path)

    def of_one(point: transport.Path) -> Float[Array, "d d"]:
        alone = jax.tree.map(lambda leaf: leaf[:, None], point)
        return pointwise_covariance(posterior, alone)[0]

    by_point = jax.tree.map(lambda leaf: leaf.swapaxes(0, 1), path)
    return jax.lax.map(of_one, by_point)


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
