"""The small-deformation model: Gaussian-process regression of the displacement.

The flow does not move, v ~ GP(0, k) is the displacement itself, and the sites arrive at x̃ + v(x̃).
With linear observations everything is closed but for the alignment, whose rotation is not linear: a
few rounds of the linear model around the flow at rest find it.
"""

import functools
from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Float

from kunita import numerics
from kunita.flow import shooting, transport
from kunita.inference.objective import energy
from kunita.inference.path_space import (
    AbstractPathSpace,
    covariance_at_rest,
    linear_model,
)
from kunita.inference.problem import Problem, Residual
from kunita.inference.search import AbstractSearch, Truth
from kunita.inference.trend import Alignment
from kunita.jaxrun.doors import Array, Scalar
from kunita.jaxrun.programs import compiled
from kunita.kernels import AbstractKernel
from kunita.observations.base import Rows


class Regression(eqx.Module):
    """The regression at one alignment.

    Args:
        alignment: of the moving points.
        trajectory: the flow at rest.
        jacobians: of the whole map, which is the alignment.
        residual: of the optimality conditions at rest, Hᵀr: all that is to be explained.
        energy: of the regression, ½λᵀKλ and the data term.
        noise_log_det: log|R| of the observations' noise.
        num_rows: how many numbers were observed.
        beta: by how much the alignment should move.
        shift_mm: by how much that would move a site at most.
    """

    alignment: Alignment
    trajectory: shooting.Trajectory
    jacobians: Float[Array, "n d d"]
    residual: Residual
    energy: Scalar
    noise_log_det: Scalar
    num_rows: int = eqx.field(static=True)
    beta: Float[Array, " b"]
    shift_mm: Scalar


@compiled
def regress(problem: Problem, alignment: Alignment) -> Regression:
    """Solve the linear model around the flow at rest."""
    start = alignment(problem.observations.sites)
    still = shooting.standstill(start)
    jacobians = alignment.jacobians(len(start))
    linear = _linear_model_at_rest(problem, still, jacobians)
    here = problem.observations.information(start, jacobians)
    residual = Residual(here.force, jnp.zeros(len(problem.trend.generators)))
    beta, dual = linear.dual_change(residual)
    moved = problem.kernel.gram(start, start) @ dual
    aligned = problem.trend.basis(start) @ beta
    arrived = start + moved + aligned
    there = problem.observations.information(arrived, jacobians)
    return Regression(
        alignment=alignment,
        trajectory=still,
        jacobians=jacobians,
        residual=residual,
        energy=energy(0.5 * jnp.sum(dual * moved), there),
        noise_log_det=jnp.asarray(there.log_det),
        num_rows=there.num_rows,
        beta=beta,
        shift_mm=jnp.max(jnp.abs(aligned), initial=0.0),
    )


def _linear_model_at_rest(
    problem: Problem, still: shooting.Trajectory, jacobians: Float[Array, "n d d"]
) -> AbstractPathSpace:
    """The linear model around a flow that does not move, which has one instant."""
    path = transport.landmark_path(still)
    return linear_model(
        problem,
        path,
        jacobians,
        jnp.ones(1),
    )


class AlignmentSearch(AbstractSearch[Regression]):
    """Regression, the alignment moved until it stands still.

    Args:
        tolerance: where it has converged, mm.
    """

    tolerance: Scalar

    def init(self, problem: Problem, start: Alignment) -> Regression:
        return regress(problem, start)

    def ended(self, regression: Regression) -> Truth:
        return regression.shift_mm <= self.tolerance

    def step(self, problem: Problem, regression: Regression) -> Regression:
        before = regression.alignment
        moved = problem.trend.move(before, regression.beta)
        return regress(problem, moved)


def small_evidence(
    kernel: AbstractKernel,
    positions: Float[Array, "n d"],
    basis: Float[Array, "n d b"],
    rows: Rows,
    *,
    isotropic: bool,
) -> Scalar:
    """The exact log evidence of rows at rest, r ~ N(Hhβ, H(K ⊗ I)Hᵀ + I), β flat.

    Args:
        kernel: K is its matrix at the positions.
        positions, basis: x̃ and h(x̃).
        rows: r and H.
        isotropic: whether `rows.is_isotropic()`. Then the axes part, and a factor of an n×n
            matrix is enough.
    """
    gram = kernel.gram(positions, positions)
    build = _whitener_by_axis if isotropic else _whitener
    whiten, log_det = build(gram, rows)
    y = whiten(rows.residual)
    h = whiten(rows.apply(basis))
    return restricted_likelihood(y, h, rows.log_det + log_det)


Whitener = Callable[[Float[Array, "k ..."]], Float[Array, "k ..."]]
"""y ↦ C⁻¹y with CCᵀ = S."""


def _whitener(gram: Float[Array, "n n"], rows: Rows) -> tuple[Whitener, Scalar]:
    """Of S = H(K ⊗ I)Hᵀ + I, and log|S|."""
    explained = covariance_at_rest(gram, rows.site, rows.operator)
    identity = jnp.eye(len(explained))
    factor = numerics.cholesky(explained + identity, jitter=0.0)
    log_det = numerics.log_det_of_factor(factor)
    return functools.partial(numerics.solve_lower, factor), log_det


def _whitener_by_axis(gram: Float[Array, "n n"], rows: Rows) -> tuple[Whitener, Scalar]:
    """The same where H is a number times the identity at every site: S = (wKw + I) ⊗ I."""
    n = len(gram)
    d = rows.per_site
    w = rows.blocks[:, 0, 0]
    explained = w[:, None] * gram * w
    factor = numerics.cholesky(explained + jnp.eye(n), jitter=0.0)
    log_det = d * numerics.log_det_of_factor(factor)

    def whiten(values: Float[Array, "k ..."]) -> Float[Array, "k ..."]:
        by_site = values.reshape(n, -1)
        whitened = numerics.solve_lower(factor, by_site)
        return whitened.reshape(values.shape)

    return whiten, log_det


def restricted_likelihood(y: Float[Array, " k"], h: Float[Array, "k b"], log_det: Scalar) -> Scalar:
    """log ∫ N(y; hβ, I) dβ − ½log|S|, for data y and a basis h that are whitened by S.

    Also −½(yᵀPy + log|S| + log|A| + (k − b)log 2π), with A = hᵀh and yᵀPy what no β explains.
    """
    trend = numerics.cholesky(h.T @ h, jitter=0.0)
    whitened = numerics.solve_lower(trend, h.T @ y)
    explained = jnp.sum(whitened**2)
    misfit = y @ y - explained
    log_det_a = numerics.log_det_of_factor(trend)
    k, b = h.shape
    constant = (k - b) * jnp.log(2 * jnp.pi)
    total = misfit + log_det + log_det_a + constant
    return -0.5 * total
