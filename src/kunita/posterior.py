"""The posterior over deformations: where any point goes, and how certain that is."""

import operator
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from kunita import evaluation, numerics
from kunita.errors import ArgumentError, LandmarkError
from kunita.evaluation import NEWTON_STEPS, Preimage, check_arrival
from kunita.flow import covariance, shooting, simulate, transport
from kunita.flow.transport import Path
from kunita.gaussians import GaussianPoints
from kunita.inference.leave_out import (
    Groups,
    LeaveOneOut,
    is_determined,
    leave_out,
    row_weights,
)
from kunita.inference.path_space import AbstractPathSpace, AbstractRowSpace
from kunita.inference.pathwise import instant_half
from kunita.inference.problem import Problem, State
from kunita.inference.small import Regression
from kunita.inference.solve import Fit
from kunita.inference.trend import Alignment, Trend
from kunita.jaxrun.doors import Array, ArrayLike, as_count, as_points, door, to_numpy
from kunita.jaxrun.programs import SMALL_MATRIX, compiled
from kunita.kernels import AbstractKernel
from kunita.observations.base import Rows

MODELS = ("endpoint", "pathwise", "small")

CHUNKS = (16, 64, 256, 1024)
"""Points evaluated at a time. More than the last go to `evaluation`."""

MOST_GIGABYTES = 4.0
"""The largest joint covariance that is computed; its root takes several times as much."""


class Posterior(eqx.Module):
    """A Gaussian process over deformations, conditioned on observations.

    It maps moving points to fixed space. The mean is m(z) = φ₁(z̃) + J_z h(z̃)β̂ + Λ(z, X)c, with
    z̃ the aligned point. For `endpoint` and `pathwise` φ₁ is the fitted flow and β̂ = 0, c = 0 (or,
    where the fit stopped early, the remaining Gauss–Newton step, c = λ_new − λ). For `small` φ₁ is
    the identity and c = λ: ordinary Gaussian-process regression of the displacement.

    The covariance is Λ_post(z, w) = conditioned(z, w) + G_z A⁻¹ G_wᵀ. The second term comes from
    the uncertain alignment, G_z = J_z h(z̃) − Λ(z, X)QJh(x̃). What is conditioned, and when, is the
    model: see `conditioned`. (`pathwise` takes the alignment's part, leave-one-out and the evidence
    from the endpoint's linear model.)

    Args:
        model: "endpoint", "pathwise" or "small".
        corrected: whether the mean is more than the flow.
        kernel: the prior's covariance function.
        trend: the directions in which the alignment may move.
        alignment: of the moving points, before the flow.
        origin: of the fixed space in which the flow was computed.
        trajectory: of the anchors, which carry the momentum.
        weights: of the quadrature over its instants.
        arrived: φ₁ of the sites of the observations, less the origin.
        linear: the linear model around the flow.
        dual: λ at the sites.
        correction: c in terms of the anchors.
        shift: β̂.
    """

    model: str = eqx.field(static=True)
    corrected: bool = eqx.field(static=True)
    kernel: AbstractKernel
    trend: Trend
    alignment: Alignment
    origin: Float[Array, " d"]
    trajectory: shooting.Trajectory
    weights: Float[Array, " t"]
    arrived: Float[Array, "n d"]
    linear: AbstractPathSpace
    dual: Float[Array, "n d"]
    correction: Float[Array, "c d"]
    shift: Float[Array, " b"]

    @door
    def predict(self, points: ArrayLike) -> GaussianPoints:
        """Where moving points go in fixed space, (m, d), and the covariance of each."""
        x = self._check(points)
        if are_many(x):
            return self.prepared.predict(x)
        return GaussianPoints(*in_chunks(_predict, self, x))

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
        y = self._check(points)
        if are_many(y):
            return self.prepared.preimage(y)
        x, jacobians, cov = in_chunks(_preimage, self, y)
        self._check_inverse(y, x)
        return Preimage(x, jacobians, cov)

    @door
    def move(self, points: ArrayLike) -> Float[Array, "m d"]:
        """Where moving points go: the mean of `predict`."""
        x = self._check(points)
        if are_many(x):
            return self.prepared.move(x)
        return in_chunks(_mean, self, x)

    @door
    def move_back(self, points: ArrayLike) -> Float[Array, "m d"]:
        """Where fixed points come from: the mean of `inverse`."""
        y = self._check(points)
        if are_many(y):
            return self.prepared.move_back(y)
        x = in_chunks(_invert, self, y)
        self._check_inverse(y, x)
        return x

    @door
    def covariance(self, x: ArrayLike, y: ArrayLike) -> Float[Array, "m d k d"]:
        """Posterior covariance between two sets of moving points as they arrive, (m, d, k, d)."""
        first = self._check(x)
        second = self._check(y)
        _refuse_many(first, second)
        return _covariance(self, first, second)

    @door
    def jacobian(self, points: ArrayLike) -> Float[Array, "m d d"]:
        """Jacobian of the whole mean map (alignment and flow) at moving points, (m, d, d)."""
        x = self._check(points)
        if are_many(x):
            return self.prepared.jacobian(x)
        return in_chunks(_jacobian, self, x)

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
        z = self._check(points)
        _refuse_many(z, z)
        mean, _ = in_chunks(_predict, self, z)
        size = mean.size
        joint = _covariance(self, z, z).reshape(size, size)
        root = numerics.root(numerics.symmetric(joint))
        count = as_count(num_samples, "num_samples")
        random_key = simulate.as_key(key)
        draws = jax.random.normal(random_key, (count, size))
        deviations = draws @ root.T
        return mean + deviations.reshape(-1, *mean.shape)

    @door
    def leave_one_out(self) -> LeaveOneOut:
        """Every landmark predicted from the others, without refitting.

        There is one row for each landmark that was used (not left out by infinite noise). Exact for
        a linear model, first order around the fit otherwise: see `kunita.inference.leave_out`.
        """
        if not isinstance(self.linear, AbstractRowSpace):
            raise LandmarkError(
                "leave-one-out: these observations have no single rows to leave out"
            )
        groups = Groups.of(self.linear.rows)
        weights = row_weights(self.linear.rows, self.dual)
        arrived = np.asarray(self.arrived) + np.asarray(self.origin)
        precision, inverses, found = leave_out(self.linear, weights, arrived, groups)
        if not is_determined(np.asarray(precision), np.asarray(inverses)):
            n = len(groups.rows)
            raise LandmarkError(
                f"leave-one-out: {n} landmarks are too few to fit this alignment "
                "without one of them"
            )
        return found

    @property
    def rows(self) -> Rows:
        """The whitened rows of the observations at the fitted flow."""
        if not isinstance(self.linear, AbstractRowSpace):
            raise LandmarkError("these observations have no single rows")
        return self.linear.rows

    @property
    def affine(self) -> np.ndarray:
        """The alignment alone as a matrix from moving to fixed space, (d + 1, d + 1)."""
        d = len(self.origin)
        alignment = to_numpy(self.alignment)
        offset = alignment.offset + np.asarray(self.origin)
        turned_center = alignment.matrix @ alignment.center
        whole = np.eye(d + 1)
        whole[:d, :d] = alignment.matrix
        whole[:d, d] = offset - turned_center
        return whole

    @property
    def informed_nodes(self) -> np.ndarray:
        """Points beside the landmarks around which something is known: none."""
        return np.zeros((0, self.arrived.shape[1]))

    @property
    def has_single_precision(self) -> bool:
        """Whether very many points can be asked in single precision."""
        return not self.corrected

    @property
    def num_steps(self) -> int:
        """Of the time grid."""
        return self.trajectory.num_steps

    @property
    def prepared(self) -> evaluation.Evaluation:
        """The same formulas, arranged for very many points; prepared once."""
        kept = self.__dict__.get("_prepared")
        if kept is None:
            kept = evaluation.prepare(self)
            self.__dict__["_prepared"] = kept
        return kept

    def _check(self, points: ArrayLike) -> Float[Array, "m d"]:
        dimension = self.arrived.shape[1]
        return as_points(points, "points", dimension)

    def _check_inverse(self, y: Float[Array, "m d"], x: Float[Array, "m d"]) -> None:
        """Refuse pre-images that do not arrive where they should: a corrected map may fold."""
        if self.corrected:
            check_arrival(self, y, in_chunks(_mean, self, x))


def _refuse_many(x: Float[Array, "m d"], y: Float[Array, "k d"]) -> None:
    """Refuse points whose joint covariance would not fit into memory."""
    gigabytes = x.size * y.size * 8 / 1e9
    if gigabytes > MOST_GIGABYTES:
        raise ArgumentError(
            f"points: the joint covariance of {len(x)} and {len(y)} points would take "
            f"{gigabytes:.0f} GB; take fewer points at a time (`predict` takes any number)"
        )


dual_change = compiled(AbstractPathSpace.dual_change, hasty=SMALL_MATRIX)


FittedFlow = Fit | State | Regression
"""Where a search has ended: its alignment, trajectory and residual."""


def posterior_from_fit(fit: Fit, origin: np.ndarray, model: str, *, near: bool = True) -> Posterior:
    """Linearise around the fitted flow and condition on the observations.

    A fit that stopped early is corrected by the step that remains, unless that would not lead
    anywhere `near`.
    """
    if model == "pathwise" and not fit.problem.observations.has_rows:
        raise ArgumentError("model: 'pathwise' needs observations that have single rows")
    corrected = model == "small" or (near and not fit.converged)
    return condition(
        fit.problem,
        fit.linear,
        fit,
        carriers=fit.carriers,
        origin=origin,
        model=model,
        corrected=corrected,
    )


def condition(
    problem: Problem,
    linear: AbstractPathSpace,
    fitted: FittedFlow,
    *,
    carriers: shooting.Trajectory,
    origin: Float[Array, " d"],
    model: str,
    corrected: bool,
) -> Posterior:
    """The posterior around a fitted flow; also inside a compiled program.

    Args:
        problem: what was solved.
        linear: the linear model around the flow.
        fitted: the flow.
        carriers: the trajectory of those that carry the momentum.
        origin: of the fixed space in which the flow was computed.
        model: "endpoint", "pathwise" or "small".
        corrected: whether the remaining Gauss–Newton step belongs to the mean.
    """
    shift, change = dual_change(linear, fitted.residual)
    anchored = linear.to_anchors(change.ravel()).reshape(-1, change.shape[1])
    keep = 1.0 if corrected else 0.0
    return Posterior(
        model=model,
        corrected=corrected,
        kernel=problem.kernel,
        trend=problem.trend,
        alignment=fitted.alignment,
        origin=origin,
        trajectory=carriers,
        weights=numerics.quadrature_weights(carriers.num_steps),
        arrived=fitted.trajectory.positions[-1],
        linear=linear,
        dual=fitted.trajectory.momenta[-1] + change,
        correction=keep * anchored,
        shift=keep * shift,
    )


# ----------------------------------------------------------------- the formulas, on aligned points


def conditioned(posterior: Posterior, x: Path, y: Path) -> Float[Array, "m d k d"]:
    """The covariance given the observations, alignment known.

    *endpoint*, *small*: condition once, on what was observed, Λ(x, y) − Λ(x, X)QΛ(X, y).

    *pathwise*: condition the velocity at every instant (`kunita.inference.pathwise`), and propagate
    what is left, Λ_post = ∫ Ψ_x Σ_t Ψ_yᵀ dt.
    """
    prior = covariance.flow_covariance(posterior.kernel, posterior.weights, x, y)
    if posterior.model == "pathwise":
        return prior - _explained_pathwise(posterior, x, y)
    half_x = _whitened(posterior, x)
    half_y = _whitened(posterior, y)
    explained = half_x.T @ half_y
    return prior - explained.reshape(prior.shape)


def conditioned_variance(posterior: Posterior, x: Path) -> Float[Array, "m d d"]:
    """The diagonal blocks of `conditioned`, for many points at once."""
    prior = covariance.flow_variance(posterior.kernel, posterior.weights, x)
    if posterior.model == "pathwise":
        return prior - _explained_variance_pathwise(posterior, x)
    m, d = prior.shape[:2]
    half = _whitened(posterior, x).reshape(-1, m, d)
    explained = numerics.block_squares(half)
    return prior - explained


def _explained_pathwise(posterior: Posterior, x: Path, y: Path) -> Float[Array, "m d k d"]:
    """∫ Ψ_x k(x, Q)H_tᵀS_t⁻¹H_tk(Q, y) Ψ_yᵀ dt."""
    m, d = x.positions.shape[1:]
    k = y.positions.shape[1]
    kernel = posterior.kernel
    rows = posterior.rows

    def add(total: Array, instant: tuple[Array, ...]) -> tuple[Array, None]:
        weight, q, psi_q, xt, psi_x, yt, psi_y = instant
        half_x = instant_half(kernel, rows, q, psi_q, xt)
        half_y = instant_half(kernel, rows, q, psi_q, yt)
        blocks = (half_x.T @ half_y).reshape(m, d, k, d)
        carried = jnp.einsum("iab,ibjc,jdc->iajd", psi_x, blocks, psi_y)
        total = total + weight * carried
        return total, None

    instants = (
        *_instants_of_sites(posterior),
        x.positions,
        transport.propagators(x),
        y.positions,
        transport.propagators(y),
    )
    start = jnp.zeros((m, d, k, d))
    explained, _ = jax.lax.scan(add, start, instants)
    return explained


def _explained_variance_pathwise(posterior: Posterior, x: Path) -> Float[Array, "m d d"]:
    """The diagonal blocks of the same."""
    m, d = x.positions.shape[1:]
    kernel = posterior.kernel
    rows = posterior.rows

    def add(total: Array, instant: tuple[Array, ...]) -> tuple[Array, None]:
        weight, q, psi_q, xt, psi_x = instant
        half = instant_half(kernel, rows, q, psi_q, xt)
        half = half.reshape(-1, m, d)
        blocks = numerics.block_squares(half)
        transposed = psi_x.swapaxes(1, 2)
        total = total + weight * psi_x @ blocks @ transposed
        return total, None

    instants = (
        *_instants_of_sites(posterior),
        x.positions,
        transport.propagators(x),
    )
    start = jnp.zeros((m, d, d))
    explained, _ = jax.lax.scan(add, start, instants)
    return explained


def _instants_of_sites(posterior: Posterior) -> tuple[Array, Array, Array]:
    """Weight, positions and Ψ of the sites at every instant."""
    sites = transport.landmark_path(posterior.trajectory)
    psi = transport.propagators(sites)
    return posterior.weights, sites.positions, psi


def trend_loading(posterior: Posterior, x: Path) -> Float[Array, "m d b"]:
    """G_x = J_x h(x̃) − Λ(x, X)QJh(x̃): how the uncertain alignment moves a point, the data held."""
    basis = _carried_basis(posterior, x)
    cross = _cross(posterior, x)
    explained = cross @ posterior.linear.loading
    return basis - explained.reshape(basis.shape)


def _carried_basis(posterior: Posterior, x: Path) -> Float[Array, "m d b"]:
    """J_x h(x̃)."""
    basis = posterior.trend.basis(x.positions[0])
    return x.jacobians[-1] @ basis


def _whitened(posterior: Posterior, x: Path) -> Float[Array, "k md"]:
    """WΛ(anchors, x), whose square is what the observations explain."""
    cross = _cross(posterior, x)
    return posterior.linear.whiten(cross.T)


def _cross(posterior: Posterior, x: Path) -> Float[Array, "md c"]:
    """Λ(x, anchors) as a matrix."""
    anchors = transport.landmark_path(posterior.trajectory)
    block = covariance.flow_covariance(posterior.kernel, posterior.weights, x, anchors)
    m, d = block.shape[:2]
    return block.reshape(m * d, -1)


def swing(posterior: Posterior, x: Path) -> Float[Array, "m b d"]:
    """N⁻¹Gᵀ with NNᵀ = A, so that swingᵀ·swing is the alignment's part of the covariance."""
    loading = trend_loading(posterior, x)
    m, d, b = loading.shape
    matrix = loading.reshape(m * d, b)
    factor = posterior.linear.trend_factor
    solved = numerics.solve_lower(factor, matrix.T)
    by_point = solved.reshape(b, m, d)
    return by_point.swapaxes(0, 1)


def pointwise_covariance(posterior: Posterior, x: Path) -> Float[Array, "m d d"]:
    """The covariance of each point: given the data, and from the uncertain alignment."""
    half = swing(posterior, x)
    aligned = jnp.einsum("mka,mkb->mab", half, half)
    return conditioned_variance(posterior, x) + aligned


def path_of(posterior: Posterior, points: Float[Array, "m d"]) -> Path:
    """The way of moving points through the flow, aligned first."""
    aligned = posterior.alignment(points)
    trajectory = posterior.trajectory
    return transport.carry(posterior.kernel, trajectory, aligned)


def arrival(posterior: Posterior, x: Path) -> Float[Array, "m d"]:
    """The mean map: φ₁ + J h β̂ + Λ(x, X)c, back in the fixed frame."""
    arrived = x.positions[-1] + posterior.origin
    if not posterior.corrected:
        return arrived
    correction = posterior.correction.ravel()
    moved = _cross(posterior, x) @ correction
    moved = moved.reshape(arrived.shape)
    turned = _carried_basis(posterior, x) @ posterior.shift
    return arrived + turned + moved


@compiled
def _mean(posterior: Posterior, points: Float[Array, "m d"]) -> Float[Array, "m d"]:
    path = path_of(posterior, points)
    return arrival(posterior, path)


@compiled
def _predict(
    posterior: Posterior, points: Float[Array, "m d"]
) -> tuple[Float[Array, "m d"], Float[Array, "m d d"]]:
    """Mean and covariance of each point."""
    path = path_of(posterior, points)
    mean = arrival(posterior, path)
    return mean, pointwise_covariance(posterior, path)


@compiled
def _preimage(
    posterior: Posterior, points: Float[Array, "m d"]
) -> tuple[Float[Array, "m d"], Float[Array, "m d d"], Float[Array, "m d d"]]:
    """The pre-image, and Jacobian and covariance there."""
    x = _invert(posterior, points)
    path = path_of(posterior, x)
    if posterior.corrected:
        jacobians = _jacobian(posterior, x)
    else:
        jacobians = path.jacobians[-1] @ posterior.alignment.matrix
    return x, jacobians, pointwise_covariance(posterior, path)


@compiled
def _covariance(
    posterior: Posterior, x: Float[Array, "m d"], y: Float[Array, "k d"]
) -> Float[Array, "m d k d"]:
    path_x = path_of(posterior, x)
    path_y = path_of(posterior, y)
    half_x = swing(posterior, path_x)
    half_y = swing(posterior, path_y)
    aligned = jnp.einsum("mka,nkb->manb", half_x, half_y)
    return conditioned(posterior, path_x, path_y) + aligned


@compiled
def _jacobian(posterior: Posterior, points: Float[Array, "m d"]) -> Float[Array, "m d d"]:
    if posterior.corrected:
        mean = lambda z: _mean(posterior, z[None])[0]
        slope = jax.jacfwd(mean)
        return jax.vmap(slope)(points)
    path = path_of(posterior, points)
    of_flow = path.jacobians[-1]
    return of_flow @ posterior.alignment.matrix


@compiled
def _invert(posterior: Posterior, points: Float[Array, "m d"]) -> Float[Array, "m d"]:
    """Carry the points back along the flow and undo the alignment.

    What a correction adds is undone by Newton's method.
    """
    backwards = shooting.backwards(posterior.trajectory)
    centred = points - posterior.origin
    path = transport.carry(posterior.kernel, backwards, centred)
    carried = path.positions[-1]
    start = posterior.alignment.inverse(carried)
    if not posterior.corrected:
        return start

    def newton(x: Float[Array, "m d"], _: None) -> tuple[Float[Array, "m d"], None]:
        miss = _mean(posterior, x) - points
        slope = _jacobian(posterior, x)
        column = miss[..., None]
        steps = numerics.solve_small(slope, column)
        return x - steps[..., 0], None

    found, _ = jax.lax.scan(newton, start, None, length=NEWTON_STEPS)
    return found


# ------------------------------------------------------------------------------ a few at a time


def are_many(points: Float[Array, "m d"]) -> bool:
    """Whether points are so many that preparing for them pays."""
    largest = CHUNKS[-1]
    return len(points) > largest


def in_chunks(
    function: Callable[[Posterior, Array], Any], posterior: Posterior, points: Float[Array, "m d"]
) -> Any:
    """Apply a function point by point in chunks of a few fixed sizes.

    So it is compiled a few times at most.
    """
    center = posterior.alignment.center
    pieces = []
    rest = points
    for size in chunk_sizes(len(points)):
        chunk = rest[:size]
        rest = rest[size:]
        filled = _filled_up(chunk, size, center)
        found = to_numpy(function(posterior, filled))
        meant = operator.itemgetter(slice(len(chunk)))
        pieces.append(jax.tree.map(meant, found))
    return jax.tree.map(lambda *parts: np.concatenate(parts), *pieces)


def _filled_up(
    chunk: Float[Array, "k d"], size: int, point: Float[Array, " d"]
) -> Float[Array, "m d"]:
    """A chunk with one point repeated until it has its size."""
    missing = size - len(chunk)
    filling = np.broadcast_to(point, (missing, len(point)))
    return np.concatenate([chunk, filling])


def chunk_sizes(count: int) -> Iterator[int]:
    """Chunks for so many points, the largest first.

    None of them is less than half full, but for those of the smallest size.
    """
    left = max(count, 1)
    while left > 0:
        snug = [size for size in CHUNKS if left <= size <= 2 * left]
        smaller = [size for size in CHUNKS if size <= left]
        largest_below = max(smaller, default=CHUNKS[0])
        size = min(snug) if snug else largest_below
        yield size
        left -= size
