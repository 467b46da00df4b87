"""The posterior for very many points: a point costs exponentials and matrix products only.

`posterior.py` has the same formulas in their plain form. Here everything that does not depend on
the points is computed once: the anchors (the landmarks, or the control points that stand for them)
at every stage of every time step, their propagators Ψ(t), and the whitener W, for which the part of
the covariance that the observations explain is a square.

A point is carried along the anchors' path, forwards from moving space or backwards from fixed
space. Let J_t be the Jacobian from the start of the path to time t, and B_t = J_t⁻¹. Everything is
gathered where the path starts:

    Γ(x) = ∫ k(x_t, q_t) B_t Ψ_q(t)ᵀ dt,   M(x) = ∫ k(x_t, x_t) B_t B_tᵀ dt − (WΓᵀ)ᵀ(WΓᵀ).

Backwards B_t = Ψ_x(t), so that Λ(x, X) = Γ and Λ_post = M: carrying a point back gives its
pre-image, the Jacobian and the covariance. Forwards Λ(x, X) = J₁Γ and Λ_post = J₁MJ₁ᵀ.

The last axis of an array is that of the points, so that one instruction handles several of them.
"""

import dataclasses
import functools
import itertools
import operator
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from kunita import numerics
from kunita.errors import ArgumentError, InverseError
from kunita.flow import shooting, transport
from kunita.gaussians import GaussianPoints
from kunita.inference.pathwise import instant_whitener
from kunita.inference.trend import Trend
from kunita.jaxrun.doors import Array, ArrayLike, Scalar, as_points
from kunita.jaxrun.programs import SMALL_MATRIX, compiled
from kunita.jaxrun.threads import in_order
from kunita.kernels import AbstractKernel

if TYPE_CHECKING:
    from kunita.posterior import Posterior
else:
    Posterior = Any

PRECISIONS = ("float32", "float64")
"""Of the numbers inside."""

NEWTON_STEPS = 30
"""Enough for any pre-image that Newton's method finds at all."""

STILL = 1e-9
"""A Newton step that is shorter than this, relative to the landmarks' spread, is none."""

LOST = 1e-6
"""A pre-image that arrives farther off than this, relative to the landmarks' spread, is refused."""

SMALLEST_BLOCK = 64
"""Points in a block below which no smaller block pays."""

OTHER_LOOPS = {"xla_cpu_use_fusion_emitters": False}
"""XLA's own choice of loops takes twice as long where a point is only moved."""

Points = Float[Array, "d m"]
Matrices = Float[Array, "d d m"]


@dataclasses.dataclass(frozen=True)
class EvaluationOptions:
    """How many points are evaluated together.

    Args:
        single_chunk: points evaluated at a time by each of the machine's cores, in float32. Every
            chunk has as many, so that a program is compiled once.
        double_chunk: the same in float64.
        pairs: points times anchors whose products are formed at a time: what the caches hold.
    """

    single_chunk: int = 1024
    double_chunk: int = 512
    pairs: int = 2**13

    def chunk(self, precision: str) -> int:
        """Points evaluated at a time in a precision."""
        return self.single_chunk if precision == "float32" else self.double_chunk


DEFAULT_OPTIONS = EvaluationOptions()


class Preimage(eqx.Module):
    """Where fixed points come from.

    Args:
        points: the pre-images, in moving space.
        jacobians: of the map from moving to fixed space, there.
        covariance: with which they arrive, in fixed space.
    """

    points: Float[Array, "m d"]
    jacobians: Float[Array, "m d d"]
    covariance: Float[Array, "m d d"]

    @property
    def carried_back(self) -> Float[Array, "m d d"]:
        """(JA₀)⁻¹Λ(JA₀)⁻ᵀ: the covariance in moving space, to first order."""
        back = np.linalg.inv(self.jacobians)
        cov = np.asarray(self.covariance)
        return back @ cov @ back.swapaxes(1, 2)


# ------------------------------------------------------------------- what does not depend on points


class AnchorPath(eqx.Module):
    """The anchors as a carried point meets them, from one end of the flow to the other.

    Args:
        positions: q, at the four stages of each time step.
        loads: at the same stages, the rows hp and hpqᵀ, whose products with kernel values and
            slopes are hv and hDv. The length h of the step is included: inside the loop it would
            be looked up for every pair of point and anchor.
        end: positions at the end of the last step.
        weights: w, of the quadrature at the ends of the steps.
        propagators: for each anchor the matrices wΨ(t) side by side.
        corrections: wΨ(t)ᵀc, which with kernel values is what a correction c adds to the mean.
    """

    positions: Float[Array, "s 4 n d"]
    loads: Float[Array, "s 4 r n"]
    end: Float[Array, "n d"]
    weights: Float[Array, " t"]
    propagators: Float[Array, "n d td"]
    corrections: Float[Array, "t d n"]


class PreparedPosterior(eqx.Module):
    """All of a posterior that points need, in the precision that is computed with.

    Affine functions of a point z are [A | b] for Az + b, z relative to the centre.

    Args:
        model: the posterior's.
        corrected: whether the mean is more than the flow.
        pairs: see `EvaluationOptions`.
        kernel: the prior's covariance function.
        forward: the anchors' path from moving space.
        backward: the same from fixed space.
        whitener: W. For the model `pathwise` one for each instant, its columns split by axis.
        trend_loading: N⁻¹(QJh)ᵀ in terms of the anchors, with NNᵀ = A.
        trend_basis: N⁻¹h(z) as an affine function of z.
        trend_shift: h(z)β̂ as an affine function of z.
        still: a Newton step that is none, mm.
    """

    model: str = eqx.field(static=True)
    corrected: bool = eqx.field(static=True)
    pairs: int = eqx.field(static=True)
    kernel: AbstractKernel
    forward: AnchorPath
    backward: AnchorPath
    whitener: Float[Array, "*i k e"]
    trend_loading: Float[Array, "b c"]
    trend_basis: Float[Array, "b d d1"]
    trend_shift: Float[Array, "d d1"]
    still: Scalar


PointFunction = Callable[[PreparedPosterior, Points], Any]
"""What is applied to a chunk of points. What it returns has the points last."""


@dataclasses.dataclass(frozen=True, eq=False)
class Spaces:
    """Moving and fixed space, and the coordinates in which the flow is evaluated.

    These are aligned with fixed space and relative to the centre of the flow, so that few digits
    are enough.

    Args:
        centre: of the flow, in its own coordinates.
        origin: of these coordinates, in fixed space.
        matrix, pivot, offset: A, c and b of the alignment x̃ = A(x − c) + b.
    """

    centre: np.ndarray
    origin: np.ndarray
    matrix: np.ndarray
    pivot: np.ndarray
    offset: np.ndarray

    def from_moving(self, moving: np.ndarray) -> np.ndarray:
        """Moving points as the flow sees them."""
        turned = (moving - self.pivot) @ self.matrix.T
        return turned + (self.offset - self.centre)

    def to_moving(self, points: np.ndarray) -> np.ndarray:
        """Undo `from_moving`."""
        turned = points + (self.centre - self.offset)
        moving = np.linalg.solve(self.matrix, turned.T)
        return moving.T + self.pivot

    def from_fixed(self, fixed: np.ndarray) -> np.ndarray:
        """Fixed points as the flow sees them."""
        return fixed - (self.origin + self.centre)

    def to_fixed(self, points: np.ndarray) -> np.ndarray:
        """Undo `from_fixed`."""
        return points + self.centre + self.origin


def read_spaces(posterior: Posterior, centre: np.ndarray) -> Spaces:
    """The coordinates of a posterior."""
    alignment = posterior.alignment
    return Spaces(
        centre=np.asarray(centre),
        origin=np.asarray(posterior.origin),
        matrix=np.asarray(alignment.matrix),
        pivot=np.asarray(alignment.center),
        offset=np.asarray(alignment.offset),
    )


@compiled(static=1, hasty=SMALL_MATRIX)
def read_posterior(
    pairs: int, posterior: Posterior
) -> tuple[Float[Array, " d"], PreparedPosterior]:
    """The centre of the flow, and all that points need, in double precision."""
    trajectory = posterior.trajectory
    linear = posterior.linear
    trend = posterior.trend
    centre = jnp.mean(trajectory.positions, axis=(0, 1))
    psi = transport.propagators(transport.landmark_path(trajectory))
    forward, backward = _anchor_paths(posterior, centre, psi)
    if posterior.model == "pathwise":
        whitener = _instant_whiteners(posterior, psi)
    else:
        whitener = linear.whitener()
    factor = linear.trend_factor
    inverse = numerics.solve_lower(factor, jnp.eye(len(factor)))
    return centre, PreparedPosterior(
        model=posterior.model,
        corrected=posterior.corrected,
        pairs=pairs,
        kernel=posterior.kernel,
        forward=forward,
        backward=backward,
        whitener=whitener,
        trend_loading=inverse @ linear.loading.T,
        trend_basis=_affine_trend(trend, inverse, centre),
        trend_shift=_affine_trend(trend, posterior.shift, centre),
        still=STILL * jnp.asarray(trend.scale),
    )


class Way(NamedTuple):
    """A trajectory of the anchors, their propagators Ψ(t) and quadrature weights, in its order."""

    trajectory: shooting.Trajectory
    psi: Float[Array, "... n d d"]
    weights: Float[Array, "..."]


def _anchor_paths(
    posterior: Posterior, centre: Float[Array, " d"], psi: Float[Array, "t n d d"]
) -> tuple[AnchorPath, AnchorPath]:
    """The anchors' path from moving space, and from fixed space."""
    there = posterior.trajectory
    weights = posterior.weights
    forward = Way(there, psi, weights)
    backward = Way(shooting.backwards(there), psi[::-1], weights[::-1])

    def follow(way: Way) -> AnchorPath:
        return _anchor_path(posterior.kernel, posterior.correction, centre, way)

    # One loop over both ways, so that the program has the stages of a step only once.
    both = jax.tree.map(lambda *parts: jnp.stack(parts), forward, backward)
    paths = jax.lax.map(follow, both)
    first = jax.tree.map(operator.itemgetter(0), paths)
    second = jax.tree.map(operator.itemgetter(1), paths)
    return first, second


def _anchor_path(
    kernel: AbstractKernel,
    correction: Float[Array, "n d"],
    centre: Float[Array, " d"],
    way: Way,
) -> AnchorPath:
    """The anchors along one way through the flow."""
    trajectory, psi, weights = way
    q, p = shooting.stages(kernel, trajectory)
    q = q - centre
    steps = trajectory.step_lengths[:, None, None, None]
    rows = shooting.slope_loads(q, p).swapaxes(-1, -2)
    weighted = weights[:, None, None, None] * psi
    n, d = trajectory.positions.shape[1:]
    return AnchorPath(
        positions=q,
        loads=steps * rows,
        end=trajectory.positions[-1] - centre,
        weights=weights,
        propagators=weighted.transpose(1, 2, 0, 3).reshape(n, d, -1),
        corrections=jnp.einsum("t,tiab,ia->tbi", weights, psi, correction),
    )


def _affine_trend(
    trend: Trend, combine: Float[Array, "*k b"], centre: Float[Array, " d"]
) -> Float[Array, "*k d d1"]:
    """Combinations of h as affine functions of a point relative to the centre."""
    maps = jnp.tensordot(combine, trend.generators, axes=1)
    linear = maps[..., :-1] / trend.scale
    at_centre = linear @ centre
    constant = maps[..., -1:] + at_centre[..., None]
    return jnp.concatenate([linear, constant], axis=-1)


def _instant_whiteners(
    posterior: Posterior, psi: Float[Array, "t n d d"]
) -> Float[Array, "t rows n"]:
    """For `pathwise`: C⁻¹H_t at each instant, its columns split by axis for plain kernel values."""
    positions = posterior.trajectory.positions
    t, n, d = positions.shape

    def whitener_at(instant: tuple[Array, Array]) -> Float[Array, "k nd"]:
        return instant_whitener(posterior.kernel, posterior.rows, *instant)

    whole = jax.lax.map(whitener_at, (positions, psi))
    k = whole.shape[1]
    split = whole.reshape(t, k, n, d).swapaxes(2, 3)
    return split.reshape(t, k * d, n)


# ----------------------------------------------------------------------------------- the evaluation


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """A posterior prepared for very many points.

    Its methods mean what the posterior's methods of the same names do.

    Args:
        posterior: what is evaluated.
        precision: of the numbers inside, "float32" or "float64".
        spaces: moving and fixed space.
        prepared: all that does not depend on the points.
        chunk: points evaluated at a time.
    """

    posterior: Posterior
    precision: str
    spaces: Spaces
    prepared: PreparedPosterior
    chunk: int

    def __repr__(self) -> str:
        count = len(self.prepared.forward.end)
        model = self.prepared.model
        return f"<Evaluation of {model!r} with {count} anchors in {self.precision}>"

    def predict(self, points: ArrayLike) -> GaussianPoints:
        """Where moving points go in fixed space, (m, d) mm, and the covariance of each, mm²."""
        x = self._aligned(points)
        moved, cov = self._in_chunks(_move_with_covariance, x)
        mean = self.spaces.to_fixed(x) + moved
        return GaussianPoints(mean, cov)

    def inverse(self, points: ArrayLike) -> GaussianPoints:
        """Where fixed points come from, and the covariance of each in moving space."""
        preimage = self.preimage(points)
        return GaussianPoints(preimage.points, preimage.carried_back)

    def jacobian(self, points: ArrayLike) -> Float[Array, "m d d"]:
        """Jacobian of the whole mean map at moving points."""
        x = self._aligned(points)
        jacobians = self._in_chunks(_differentiate, x)
        return jacobians @ self.spaces.matrix

    def move(self, points: ArrayLike) -> Float[Array, "m d"]:
        """Where moving points go."""
        x = self._aligned(points)
        moved = self._in_chunks(_move, x)
        return self.spaces.to_fixed(x) + moved

    def preimage(self, points: ArrayLike) -> Preimage:
        """Where fixed points come from, the Jacobian there, and the covariance they arrive with."""
        y = self._check(points)
        moved, jacobians, cov = self._in_chunks(_preimage, self.spaces.from_fixed(y))
        return Preimage(
            points=self._origins(y, moved),
            jacobians=jacobians @ self.spaces.matrix,
            covariance=cov,
        )

    def move_back(self, points: ArrayLike) -> Float[Array, "m d"]:
        """Where fixed points come from."""
        y = self._check(points)
        moved = self._in_chunks(_move_back, self.spaces.from_fixed(y))
        return self._origins(y, moved)

    def _check(self, points: ArrayLike) -> np.ndarray:
        dimension = len(self.spaces.centre)
        with jax.enable_x64(True):
            return np.asarray(as_points(points, "points", dimension))

    def _aligned(self, moving: ArrayLike) -> np.ndarray:
        """Moving points, checked, as the flow sees them."""
        checked = self._check(moving)
        return self.spaces.from_moving(checked)

    def _origins(self, fixed: np.ndarray, moved: np.ndarray) -> np.ndarray:
        """The moving points that fixed ones were moved back to; none may have been lost."""
        start = self.spaces.from_fixed(fixed) + moved
        moving = self.spaces.to_moving(start)
        if self.prepared.corrected:
            check_arrival(self.posterior, fixed, self.move(moving))
        return moving

    def _in_chunks(self, function: PointFunction, points: np.ndarray) -> Any:
        """Apply a function to points of the flow, some at a time.

        The function has the points last; here they come first, in what goes in and in what is
        returned.
        """
        count = len(points)
        starts = range(0, max(count, 1), self.chunk)

        def evaluate(start: int) -> Any:
            chunk = points[start : start + self.chunk]
            return self._evaluate(function, chunk)

        first = evaluate(0)  # by itself, so that one thread compiles
        others = in_order(evaluate, starts[1:])
        return _join(itertools.chain([first], others), first, count)

    def _evaluate(self, function: PointFunction, points: np.ndarray) -> Any:
        """Apply a function to at most a chunk of points."""
        count, d = points.shape
        padded = np.zeros((d, self.chunk), self.precision)
        padded[:, :count] = points.T
        with jax.enable_x64(self.precision == "float64"):
            found = function(self.prepared, padded)
        return jax.tree.map(lambda array: _points_first(array, count), found)


def _points_first(array: Array, count: int) -> np.ndarray:
    """The first points of an array in double precision, the points first."""
    meant = array[..., :count]
    turned = np.moveaxis(meant, -1, 0)
    return np.ascontiguousarray(turned, dtype=np.float64)


def _join(pieces: Iterable[Any], first: Any, count: int) -> Any:
    """Write pieces one after the other into arrays that are made once; the first says how large."""
    whole = jax.tree.map(lambda part: np.empty((count, *part.shape[1:])), first)
    start = 0
    for piece in pieces:
        parts = jax.tree.leaves(piece)
        end = start + len(parts[0])
        for target, part in zip(jax.tree.leaves(whole), parts, strict=True):
            target[start:end] = part
        start = end
    return whole


def prepare(
    posterior: Posterior,
    precision: str = "float64",
    options: EvaluationOptions = DEFAULT_OPTIONS,
) -> Evaluation:
    """Compute all that does not depend on the points.

    A corrected posterior is inverted by a search, which needs all digits. It is evaluated in
    float64 whatever precision is asked for.
    """
    if precision not in PRECISIONS:
        names = ", ".join(PRECISIONS)
        raise ArgumentError(f"precision: expected one of {names}, found {precision!r}")
    if posterior.corrected:
        precision = "float64"
    with jax.enable_x64(True):
        centre, prepared = read_posterior(options.pairs, posterior)
        prepared = jax.tree.map(lambda leaf: _on_device(leaf, precision), prepared)
    return Evaluation(
        posterior=posterior,
        precision=precision,
        spaces=read_spaces(posterior, centre),
        prepared=prepared,
        chunk=options.chunk(precision),
    )


def _on_device(leaf: Array, precision: str) -> jax.Array:
    return jax.device_put(np.asarray(leaf, precision))


def check_arrival(
    posterior: Posterior, wanted: Float[Array, "m d"], found: Float[Array, "m d"]
) -> None:
    """Refuse pre-images that do not arrive where they should."""
    allowed = LOST * float(posterior.trend.scale)
    misses = np.abs(np.asarray(found) - np.asarray(wanted)).max(axis=1)
    # Not `misses >= allowed`: what is not a number is lost, too.
    lost = np.flatnonzero(~(misses < allowed))
    if lost.size:
        raise InverseError(
            f"{lost.size} of {len(misses)} points (the first is row {lost[0]}) have no pre-image "
            "that could be found: the corrected or small-deformation map folds; use "
            "model='endpoint' and let it converge"
        )


# --------------------------------------------------------------------- algebra with the points last


def _multiply(a: Matrices, b: Float[Array, "d k m"]) -> Float[Array, "d k m"]:
    """Matrix times matrix, point by point."""
    total = a[:, 0, None] * b[None, 0]
    for k in range(1, len(b)):
        product = a[:, k, None] * b[None, k]
        total = total + product
    return total


def _apply(a: Matrices, x: Points) -> Points:
    """Matrix times vector, point by point."""
    column = x[:, None]
    return _multiply(a, column)[:, 0]


def _transform(a: Matrices, cov: Matrices) -> Matrices:
    """AΛAᵀ, point by point."""
    left = _multiply(a, cov)
    return _multiply(left, a.swapaxes(0, 1))


def _square(half: Float[Array, "k d m"]) -> Matrices:
    """HᵀH, point by point; an entry and its mirror image are computed once."""
    d = half.shape[1]
    entries = {}
    for a in range(d):
        for b in range(a + 1):
            entries[a, b] = jnp.sum(half[:, a] * half[:, b], axis=0)
            entries[b, a] = entries[a, b]
    rows = []
    for a in range(d):
        row = [entries[a, b] for b in range(d)]
        rows.append(jnp.stack(row))
    return jnp.stack(rows)


def _invert(matrices: Float[Array, "*t d d m"]) -> Float[Array, "*t d d m"]:
    """The inverse, point by point."""
    points_first = jnp.moveaxis(matrices, -1, -3)
    inverse = numerics.inverse_small(points_first)
    return jnp.moveaxis(inverse, -3, -1)


def _apply_affine(map_: Float[Array, "*b d d1"], x: Points) -> Float[Array, "*b d m"]:
    """Ax + b for [A | b]."""
    linear = map_[..., :-1]
    constant = map_[..., -1:]
    return jnp.tensordot(linear, x, axes=1) + constant


def _identities(points: Points) -> Matrices:
    """The identity for every point."""
    d, m = points.shape
    eye = jnp.eye(d, dtype=points.dtype)
    return jnp.broadcast_to(eye[..., None], (d, d, m))


def _squared_distances(x: Points, q: Float[Array, "n d"]) -> Float[Array, "n m"]:
    """|x − q|², axis by axis."""
    squares = []
    for axis in range(len(x)):
        differences = x[axis] - q[:, axis, None]
        squares.append(differences**2)
    first, *others = squares
    return sum(others, start=first)


# ------------------------------------------------------------------------- points along the anchors


Stage = tuple[Float[Array, "n d"], Float[Array, "r n"]]
"""Positions and loads of the anchors at one stage of a step."""

Stages = tuple[Float[Array, "4 n d"], Float[Array, "4 r n"]]
"""The same at the four stages."""

State = tuple[Points, Matrices]
"""Points with their Jacobians."""

NewtonState = tuple[Points, Any, Any]
"""Points, the longest step that one of them has just made, and the number of steps."""


class CarriedPoints(eqx.Module):
    """Points that were carried from one end of the flow to the other.

    Args:
        end: where they arrive.
        jacobian: J₁, from the start of the path to its end.
        kernel_values: k(x_t, q_t), with all anchors at each instant.
        inverse_jacobians: B_t, at each instant.
    """

    end: Points
    jacobian: Matrices
    kernel_values: Float[Array, "t n m"]
    inverse_jacobians: Float[Array, "t d d m"]


def _rk4_step(rates: Callable[..., Any], state: Any, stages: Any) -> tuple[Any, Any]:
    """A classical Runge–Kutta step, and what was noted at its first stage.

    Args:
        rates: a function of the state and a stage: hẏ, and what to note.
        state: y.
        stages: of the anchors, at the four stages of the step.
    """
    k1, noted = rates(state, _stage(stages, 0))
    shifted = _shift(state, 0.5, k1)
    k2, _ = rates(shifted, _stage(stages, 1))
    shifted = _shift(state, 0.5, k2)
    k3, _ = rates(shifted, _stage(stages, 2))
    shifted = _shift(state, 1.0, k3)
    k4, _ = rates(shifted, _stage(stages, 3))
    mean = jax.tree.map(_rk4_mean, k1, k2, k3, k4)
    return _shift(state, 1.0, mean), noted


def _stage(stages: Any, index: int) -> Any:
    return jax.tree.map(operator.itemgetter(index), stages)


def _shift(state: Any, share: float, slope: Any) -> Any:
    return jax.tree.map(lambda y, k: y + share * k, state, slope)


def _rk4_mean(k1: Array, k2: Array, k3: Array, k4: Array) -> Array:
    return (k1 + 2 * k2 + 2 * k3 + k4) / 6


def _velocity(kernel: AbstractKernel, x: Points, stage: Stage) -> tuple[Points, None]:
    """hv(x); nothing is noted."""
    q, loads = stage
    squares = _squared_distances(x, q)
    values, _ = kernel.value_and_slope(squares)
    return loads[: len(x)] @ values, None


def _carry(kernel: AbstractKernel, anchors: AnchorPath, start: Points) -> Points:
    """Where points arrive, and no more: ẋ = v(x)."""
    velocity = functools.partial(_velocity, kernel)
    step = functools.partial(_rk4_step, velocity)
    end, _ = jax.lax.scan(step, start, (anchors.positions, anchors.loads))
    return end


def _rates(kernel: AbstractKernel, state: State, stage: Stage) -> tuple[State, Array]:
    """hv(x) and hDv(x)J, with Dv = (Σ g p)xᵀ − Σ g pqᵀ, g = k'/r; the kernel values are noted."""
    x, jacobian = state
    q, loads = stage
    d, m = x.shape
    squares = _squared_distances(x, q)
    values, slopes = kernel.value_and_slope(squares)
    sums = loads @ slopes
    gp = sums[:d]
    gpq = sums[d:].reshape(d, d, m)
    gradient = gp[:, None] * x[None] - gpq
    velocity = loads[:d] @ values
    return (velocity, _multiply(gradient, jacobian)), values


def _carry_with_jacobians(
    kernel: AbstractKernel, anchors: AnchorPath, start: Points
) -> CarriedPoints:
    """Carry points and their Jacobians: ẋ = v(x), J̇ = Dv(x)J."""
    rates = functools.partial(_rates, kernel)

    def step(state: State, stages: Stages) -> tuple[State, tuple[Array, Array]]:
        after, values = _rk4_step(rates, state, stages)
        _, jacobian = state
        return after, (values, jacobian)

    nodes = (anchors.positions, anchors.loads)
    (end, jacobian), (values, jacobians) = jax.lax.scan(step, (start, _identities(start)), nodes)
    last_values, _ = kernel.value_and_slope(_squared_distances(end, anchors.end))
    return CarriedPoints(
        end=end,
        jacobian=jacobian,
        inverse_jacobians=_invert(jnp.concatenate([jacobians, jacobian[None]])),
        kernel_values=jnp.concatenate([values, last_values[None]]),
    )


# ------------------------------------------------------------------------- the covariance of points


class PointBlock(NamedTuple):
    """What the covariance of some points is made of.

    Args:
        kernel_values: k(x_t, q_t).
        inverse_jacobians: B_t.
        trend_basis: N⁻¹h, where the path starts.
    """

    kernel_values: Float[Array, "... m"]
    inverse_jacobians: Float[Array, "... m"]
    trend_basis: Float[Array, "... m"]


def _posterior_covariance(
    prepared: PreparedPosterior,
    anchors: AnchorPath,
    whitener: Float[Array, "*i k c"],
    carried: CarriedPoints,
    basis: Float[Array, "b d m"],
) -> Matrices:
    """Λ_post where the path starts, one block of points after the other.

    Args:
        prepared: the posterior.
        anchors: the path along which the points were carried.
        whitener: W, its instants in the order of the path.
        carried: the points.
        basis: N⁻¹h, where the path starts.
    """
    _, num_anchors, num_points = carried.kernel_values.shape
    size = _block_size(num_anchors, num_points, prepared.pairs)
    points = PointBlock(carried.kernel_values, carried.inverse_jacobians, basis)
    blocks = jax.tree.map(lambda array: _split_points(array, size), points)

    def condition(block: PointBlock) -> Matrices:
        return _covariance_of_block(prepared, anchors, whitener, block)

    parts = jax.lax.map(condition, blocks)
    return jnp.moveaxis(parts, 0, -2).reshape(carried.jacobian.shape)


def _block_size(num_anchors: int, num_points: int, pairs: int) -> int:
    """Points in a block: halved until their products with the anchors fit into the caches."""
    size = num_points
    limit = pairs + pairs // 4
    while size > SMALLEST_BLOCK and size * num_anchors > limit:
        size //= 2
    return size


def _split_points(array: Float[Array, "... m"], size: int) -> Float[Array, "b ..."]:
    """Blocks of so many points, along a new first axis."""
    *others, m = array.shape
    blocks = array.reshape(*others, m // size, size)
    return jnp.moveaxis(blocks, -2, 0)


def _covariance_of_block(
    prepared: PreparedPosterior, anchors: AnchorPath, whitener: Array, block: PointBlock
) -> Matrices:
    """Prior − what the observations explain + the part of the uncertain alignment."""
    values = block.kernel_values
    inverses = block.inverse_jacobians
    # For `pathwise` without an alignment the cross-covariance is not used, and not computed.
    cross = _cross_covariance(anchors, values, inverses)
    prior = prepared.kernel.variance * _integrate_squares(anchors.weights, inverses)
    swing = block.trend_basis - _multiply_cross(prepared.trend_loading, cross)
    aligned = prior + _square(swing)
    if prepared.model == "pathwise":
        return aligned - _explained_pathwise(whitener, anchors.weights, values, inverses)
    whitened = _multiply_cross(whitener, cross)
    return aligned - _square(whitened)


def _integrate_squares(weights: Float[Array, " t"], inverses: Float[Array, "t d d m"]) -> Matrices:
    """∫ B_t B_tᵀ dt, as the square of all √w B_tᵀ one below the other."""
    roots = jnp.sqrt(weights)[:, None, None, None]
    stacked = roots * inverses.swapaxes(1, 2)
    d, m = stacked.shape[2:]
    return _square(stacked.reshape(-1, d, m))


def _cross_covariance(
    anchors: AnchorPath, values: Float[Array, "t n m"], inverses: Float[Array, "t d d m"]
) -> Float[Array, "n d d m"]:
    """Γᵀ, anchor by anchor.

    For each it is the product of its wΨ(t) side by side with the kB_tᵀ one below the other.
    """
    _, n, m = values.shape
    d = inverses.shape[1]
    k = values.swapaxes(0, 1)[:, :, None, None]
    transposed = inverses.swapaxes(1, 2)
    stacked = k * transposed[None]
    product = anchors.propagators @ stacked.reshape(n, -1, d * m)
    return product.reshape(n, d, d, m)


def _multiply_cross(
    matrix: Float[Array, "k c"], cross: Float[Array, "n d d m"]
) -> Float[Array, "k d m"]:
    """A matrix times Γᵀ."""
    n, d, _, m = cross.shape
    flat = cross.reshape(n * d, d * m)
    product = matrix @ flat
    return product.reshape(len(matrix), d, m)


def _explained_pathwise(
    whiteners: Array, weights: Array, values: Array, inverses: Array
) -> Matrices:
    """Σ w B_t (C⁻¹H_tk)ᵀ(C⁻¹H_tk) B_tᵀ: the velocity conditioned at every instant."""
    d = inverses.shape[1]
    m = values.shape[-1]

    def add(total: Matrices, instant: tuple[Array, ...]) -> tuple[Matrices, None]:
        weight, whitener, k, inverse = instant
        half = (whitener @ k).reshape(-1, d, m)
        explained = _transform(inverse, _square(half))
        return total + weight * explained, None

    start = jnp.zeros((d, d, m), values.dtype)
    return jax.lax.scan(add, start, (weights, whiteners, values, inverses))[0]


# ----------------------------------------------------------- programs, for one chunk of points each


def _move(prepared: PreparedPosterior, start: Points) -> Points:
    """The displacement of points of moving space."""
    if prepared.corrected:
        return _corrected_displacement(prepared, start)
    return _displacement(prepared.kernel, prepared.forward, start)


def _move_back(prepared: PreparedPosterior, end: Points) -> Points:
    """The displacement that takes points of fixed space to where they come from."""
    if prepared.corrected:
        return _corrected_displacement_back(prepared, end)
    return _displacement(prepared.kernel, prepared.backward, end)


def _move_with_covariance(prepared: PreparedPosterior, start: Points) -> tuple[Points, Matrices]:
    """The displacement of points of moving space, and their covariance."""
    moved, _, cov = _predict(prepared, start)
    return moved, cov


def _differentiate(prepared: PreparedPosterior, start: Points) -> Matrices:
    """The Jacobian at points of moving space."""
    _, jacobian, _ = _predict(prepared, start)
    return jacobian


@compiled(options=OTHER_LOOPS)
def _displacement(kernel: AbstractKernel, anchors: AnchorPath, start: Points) -> Points:
    """The displacement of points by the flow alone, there or back."""
    return _carry(kernel, anchors, start) - start


@compiled
def _predict(prepared: PreparedPosterior, start: Points) -> tuple[Points, Matrices, Matrices]:
    """Displacement, Jacobian and covariance of points of moving space."""
    anchors = prepared.forward
    carried = _carry_with_jacobians(prepared.kernel, anchors, start)
    moved = carried.end - start
    jacobian = carried.jacobian
    if prepared.corrected:
        moved = moved + _correction(prepared, start, carried)
        jacobian = _corrected_jacobian(prepared, start)
    basis = _apply_affine(prepared.trend_basis, start)
    at_start = _posterior_covariance(prepared, anchors, prepared.whitener, carried, basis)
    return moved, jacobian, _transform(carried.jacobian, at_start)


@compiled
def _preimage(prepared: PreparedPosterior, end: Points) -> tuple[Points, Matrices, Matrices]:
    """The displacement of fixed points to where they come from, Jacobian there, and covariance."""
    if prepared.corrected:
        moved = _corrected_displacement_back(prepared, end)
        _, jacobian, cov = _predict(prepared, end + moved)
        return moved, jacobian, cov
    anchors = prepared.backward
    carried = _carry_with_jacobians(prepared.kernel, anchors, end)
    jacobian = carried.inverse_jacobians[-1]
    basis = _apply_affine(prepared.trend_basis, carried.end)
    basis = jax.vmap(lambda h: _apply(jacobian, h))(basis)
    whitener = prepared.whitener
    if prepared.model == "pathwise":
        whitener = whitener[::-1]
    cov = _posterior_covariance(prepared, anchors, whitener, carried, basis)
    return carried.end - end, jacobian, cov


# ---------------------------------------------------------------- means that are more than the flow


def _correction(prepared: PreparedPosterior, start: Points, carried: CarriedPoints) -> Points:
    """J₁(hβ̂ + Γc): what is added to the flow where a fit stopped early, or is small-deformation."""
    total = _apply_affine(prepared.trend_shift, start)
    instants = zip(
        carried.inverse_jacobians,
        prepared.forward.corrections,
        carried.kernel_values,
        strict=True,
    )
    for inverse, correction, values in instants:
        total = total + _apply(inverse, correction @ values)
    return _apply(carried.jacobian, total)


@compiled
def _corrected_displacement(prepared: PreparedPosterior, start: Points) -> Points:
    """The displacement of points of moving space by the flow and the correction."""
    carried = _carry_with_jacobians(prepared.kernel, prepared.forward, start)
    moved = carried.end - start
    return moved + _correction(prepared, start, carried)


def _corrected_jacobian(prepared: PreparedPosterior, start: Points) -> Matrices:
    """The Jacobian of the whole corrected map, by forward differentiation along each axis."""

    def arrive(x: Points) -> Points:
        return x + _corrected_displacement(prepared, x)

    def differentiate(tangent: Points) -> Points:
        _, derivative = jax.jvp(arrive, (start,), (tangent,))
        return derivative

    axes = _identities(start)
    return jax.vmap(differentiate, out_axes=1)(axes)


@compiled
def _corrected_displacement_back(prepared: PreparedPosterior, end: Points) -> Points:
    """The displacement to points that arrive at `end`.

    Newton's method starts where the flow alone comes from, and ends when no point moves any more.
    """

    def improve(search: NewtonState) -> NewtonState:
        x, _, count = search
        inverse = _invert(_corrected_jacobian(prepared, x))
        miss = x + _corrected_displacement(prepared, x) - end
        step = _apply(inverse, miss)
        # A point that is lost is not waited for.
        lengths = jnp.where(jnp.isfinite(step), jnp.abs(step), 0.0)
        return x - step, jnp.max(lengths), count + 1

    def is_moving(search: NewtonState) -> Any:
        _, longest, count = search
        return (longest > prepared.still) & (count < NEWTON_STEPS)

    start = _carry(prepared.kernel, prepared.backward, end)
    unknown = jnp.asarray(jnp.inf, end.dtype)
    found, _, _ = jax.lax.while_loop(is_moving, improve, (start, unknown, 0))
    return found - end
