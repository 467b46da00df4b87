"""Very many points: the posterior's formulas, arranged so that a point costs exponentials and
matrix products only.

What does not depend on the point is computed once: where the anchors (the landmarks, or the control
points that stand for them) are at every stage of every time step, their Ψ(t), and the whitener W,
with which what the landmarks explain is a square. A point is followed along a *route*, forwards
from moving space or backwards from fixed space, and with B_t = J_t⁻¹, the inverse of the Jacobian
from the route's start to time t, everything is gathered where it starts:

    Γ(x) = ∫ k(x_t, q_t) B_t Ψ_q(t)ᵀ dt,   M(x) = ∫ k(x_t, x_t) B_t B_tᵀ dt − (WΓᵀ)ᵀ(WΓᵀ).

Backwards B_t = Ψ_x(t), so that Λ(x, X) = Γ and Λ_post = M: one way back gives the pre-image, the
Jacobian and the covariance. Forwards Λ(x, X) = J₁Γ and Λ_post = J₁MJ₁ᵀ. `posterior.py` has the same
formulas in their plain form.

Arrays hold the points last, where one instruction takes several of them.
"""

import dataclasses
import functools
import itertools
import operator
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from kunita import numerics
from kunita.errors import ArgumentError
from kunita.flow import shooting, transport
from kunita.gaussians import GaussianPoints
from kunita.inference.trend import Trend
from kunita.jaxrun.doors import Array, ArrayLike, Scalar, as_points
from kunita.jaxrun.programs import SMALL_MATRIX, compiled
from kunita.jaxrun.threads import in_order
from kunita.kernels import AbstractKernel
from kunita.posterior import NEWTON_STEPS, Posterior, Preimage, check_arrival, instant_factor

PRECISIONS = ("float32", "float64")

CHUNK = {"float32": 1024, "float64": 512}
"""Points evaluated at a time, on each of the machine's cores: always as many, so that a program is
compiled once."""

PAIRS = 2**13
"""Points times anchors whose products are formed at a time: what the caches hold."""

OTHER_LOOPS = {"xla_cpu_use_fusion_emitters": False}
"""XLA's own choice of loops takes twice as long where a point is only moved."""

Points = Float[Array, "d m"]
Matrices = Float[Array, "d d m"]


class Route(eqx.Module):
    """The anchors as a passing point meets them, from one end of the flow to the other.

    Args:
        positions: of the anchors at the four stages of each time step.
        loads: at the same stages, the rows hp and hpqᵀ whose products with kernel values and slopes
            are hv and hDv, h being the length of the step: inside the loop it would be looked up
            for every pair of point and anchor.
        end: positions at the end of the last step.
        weights: of the quadrature at the ends of the steps.
        carriers: for each anchor the matrices wΨ(t) side by side.
        pull: wΨ(t)ᵀc, which with kernel values is what a correction c adds to the mean.
    """

    positions: Float[Array, "s 4 n d"]
    loads: Float[Array, "s 4 r n"]
    end: Float[Array, "n d"]
    weights: Float[Array, " t"]
    carriers: Float[Array, "n d td"]
    pull: Float[Array, "t d n"]


class Journey(eqx.Module):
    """What a route does to points: where it ends, and kernel values to the anchors and Jacobians on
    the way.
    """

    end: Points
    jacobian: Matrices
    values: Float[Array, "t n m"]
    back: Float[Array, "t d d m"]


class Tables(eqx.Module):
    """What a posterior looks like to a point, in the precision that is computed with.

    Args:
        model: the posterior's.
        corrected: whether its mean is more than the flow.
        kernel: the prior's.
        forward: from moving space.
        backward: from fixed space.
        whitener: W; of the model `pathwise` one for each instant, its columns split by axis.
        loading: M⁻¹(S⁻¹H)ᵀ.
        sway: M⁻¹h(z) as an affine function of z.
        drift: h(z)β̂ as an affine function of z.
        still: a step of Newton's method that is none, mm.
    """

    model: str = eqx.field(static=True)
    corrected: bool = eqx.field(static=True)
    kernel: AbstractKernel
    forward: Route
    backward: Route
    whitener: Float[Array, "*i k e"]
    loading: Float[Array, "b c"]
    sway: Float[Array, "b d d1"]
    drift: Float[Array, "d d1"]
    still: Scalar


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """A posterior prepared for very many points; its methods mean what the posterior's of the same
    names do.

    Args:
        posterior: what is evaluated.
        precision: of the numbers inside, "float32" or "float64".
        centre: what is subtracted from points of the flow, so that few digits are enough.
        tables: all that does not depend on the points.
    """

    posterior: Posterior
    precision: str
    centre: np.ndarray
    tables: Tables

    def __repr__(self) -> str:
        count = len(self.tables.forward.end)
        return f"<Evaluation of {self.posterior.model!r} with {count} anchors in {self.precision}>"

    def predict(self, points: ArrayLike) -> GaussianPoints:
        """Where moving points go in fixed space, (m, d) mm, and the covariance of each, (m, d, d)
        mm².
        """
        x = self._aligned(self._check(points))
        moved, cov = self._in_chunks(lambda some: _predict(self.tables, some)[::2], x)
        return GaussianPoints(x + self.centre + self.posterior.origin + moved, cov)

    def inverse(self, points: ArrayLike) -> GaussianPoints:
        """Where fixed points come from, and the covariance of each in moving space."""
        preimage = self.preimage(points)
        return GaussianPoints(preimage.points, preimage.carried_back)

    def jacobian(self, points: ArrayLike) -> Float[Array, "m d d"]:
        """Jacobian of the whole mean map at moving points."""
        x = self._aligned(self._check(points))
        jacobians = self._in_chunks(lambda some: _predict(self.tables, some)[1], x)
        return jacobians @ np.asarray(self.posterior.alignment.matrix)

    def move(self, points: ArrayLike) -> Float[Array, "m d"]:
        """Where moving points go."""
        x = self._aligned(self._check(points))
        return x + self.centre + self.posterior.origin + self._in_chunks(self._there, x)

    def preimage(self, points: ArrayLike) -> Preimage:
        """Where fixed points come from, the map's Jacobian there, and the covariance they arrive
        with.
        """
        y = self._check(points)
        moved, jacobians, cov = self._in_chunks(
            functools.partial(_preimage, self.tables), self._centred(y)
        )
        return Preimage(
            self._native(y, moved), jacobians @ np.asarray(self.posterior.alignment.matrix), cov
        )

    def move_back(self, points: ArrayLike) -> Float[Array, "m d"]:
        """Where fixed points come from."""
        y = self._check(points)
        return self._native(y, self._in_chunks(self._back, self._centred(y)))

    def _there(self, points: np.ndarray) -> np.ndarray:
        """Displacements of points of the flow from moving space."""
        tables = self.tables
        return (
            _corrected(tables, points)
            if tables.corrected
            else _carried(tables.kernel, tables.forward, points)
        )

    def _back(self, points: np.ndarray) -> np.ndarray:
        """Displacements of points of the flow from fixed space."""
        tables = self.tables
        return (
            _corrected_back(tables, points)
            if tables.corrected
            else _carried(tables.kernel, tables.backward, points)
        )

    def _check(self, points: ArrayLike) -> np.ndarray:
        with jax.enable_x64(True):
            return np.asarray(as_points(points, "points", len(self.centre)))

    def _centred(self, fixed: np.ndarray) -> np.ndarray:
        """Fixed points as the flow sees them."""
        return fixed - (self.posterior.origin + self.centre)

    def _aligned(self, moving: np.ndarray) -> np.ndarray:
        """Moving points as the flow sees them."""
        align = self.posterior.alignment
        return (moving - align.center) @ np.asarray(align.matrix).T + (align.offset - self.centre)

    def _native(self, fixed: np.ndarray, moved: np.ndarray) -> np.ndarray:
        """Moving points that the flow and then a further step took to fixed ones; none may have
        been lost.
        """
        align = self.posterior.alignment
        there = self._centred(fixed) + moved + (self.centre - align.offset)
        moving = np.linalg.solve(np.asarray(align.matrix), there.T).T + align.center
        if self.posterior.corrected:
            check_arrival(self.posterior, fixed, self.move(moving))
        return moving

    def _in_chunks(self, function: Callable[[np.ndarray], Any], points: np.ndarray) -> Any:
        """Apply a function to points of the flow, the points last, some at a time; points first in
        what it gives.
        """
        size = CHUNK[self.precision]

        def apply(start: int) -> Any:
            chunk = points[start : start + size]
            padded = np.zeros((points.shape[1], size), self.precision)
            padded[:, : len(chunk)] = chunk.T
            with jax.enable_x64(self.precision == "float64"):
                return _points_first(function(padded), len(chunk))

        starts = range(0, max(len(points), 1), size)
        first = apply(0)  # by itself, so that one thread compiles
        found = jax.tree.map(lambda part: np.empty((len(points), *part.shape[1:])), first)
        for start, pieces in zip(
            starts, itertools.chain([first], in_order(apply, starts[1:])), strict=True
        ):
            for whole, piece in zip(jax.tree.leaves(found), jax.tree.leaves(pieces), strict=True):
                whole[start : start + len(piece)] = piece
        return found


def _points_first(tree: Any, count: int) -> Any:
    """The same for the points that were asked for, in double precision, the points first."""
    return jax.tree.map(
        lambda a: np.ascontiguousarray(np.moveaxis(a[..., :count], -1, 0), dtype=np.float64), tree
    )


def prepare(posterior: Posterior, precision: str = "float64") -> Evaluation:
    """Compute all that does not depend on the points.

    A corrected posterior is inverted by a search, which needs all digits: it is evaluated in
    float64 whatever is asked.
    """
    if precision not in PRECISIONS:
        raise ArgumentError(
            f"precision: expected one of {', '.join(PRECISIONS)}, found {precision!r}"
        )
    precision = "float64" if posterior.corrected else precision
    with jax.enable_x64(True):
        centre, tables = _prepared(posterior)
        tables = jax.tree.map(lambda leaf: jax.device_put(np.asarray(leaf, precision)), tables)
    return Evaluation(posterior, precision, centre, tables)


@compiled(hasty=SMALL_MATRIX)
def _prepared(posterior: Posterior) -> tuple[Float[Array, " d"], Tables]:
    """The centre, and the tables in double precision."""
    linear, there, weights = posterior.linear, posterior.trajectory, posterior.weights
    centre = jnp.mean(there.positions, axis=(0, 1))
    psi = transport.propagators(transport.landmark_path(there))
    ways = (there, psi, weights), (shooting.backwards(there), psi[::-1], weights[::-1])
    both = jax.tree.map(lambda *parts: jnp.stack(parts), *ways)
    routes = jax.lax.map(
        lambda way: _route(posterior.kernel, posterior.correction, centre, *way), both
    )
    forward, backward = (jax.tree.map(operator.itemgetter(k), routes) for k in (0, 1))
    whitener = (
        _instant_whiteners(posterior, psi) if posterior.model == "pathwise" else linear.whitener()
    )
    root = numerics.solve_lower(linear.trend_factor, jnp.eye(len(linear.trend_factor)))
    return centre, Tables(
        posterior.model,
        posterior.corrected,
        posterior.kernel,
        forward,
        backward,
        whitener,
        root @ linear.loading.T,
        _trend_map(posterior.trend, root, centre),
        _trend_map(posterior.trend, posterior.shift, centre),
        1e-9 * jnp.asarray(posterior.trend.scale),
    )


def _trend_map(
    trend: Trend, combine: Float[Array, "*k b"], centre: Float[Array, " d"]
) -> Float[Array, "*k d d1"]:
    """Combinations of h as affine functions of a point less the centre: a matrix and a shift side
    by side.
    """
    maps = jnp.tensordot(combine, trend.generators, axes=1)
    turn = maps[..., :-1] / trend.scale
    return jnp.concatenate([turn, maps[..., -1:] + (turn @ centre)[..., None]], axis=-1)


def _route(
    kernel: AbstractKernel,
    correction: Float[Array, "n d"],
    centre: Float[Array, " d"],
    trajectory: shooting.Trajectory,
    psi: Float[Array, "t n d d"],
    weights: Float[Array, " t"],
) -> Route:
    q, p = shooting.stages(kernel, trajectory)
    q, steps = q - centre, jnp.diff(trajectory.times)
    pq = (p[..., :, None] * q[..., None, :]).reshape(*p.shape[:-1], p.shape[-1] ** 2)
    loads = steps[:, None, None, None] * jnp.concatenate([p, pq], axis=-1).swapaxes(-1, -2)
    carriers = (weights[:, None, None, None] * psi).transpose(1, 2, 0, 3)
    pull = jnp.einsum("t,tiab,ia->tbi", weights, psi, correction)
    n, d = trajectory.positions.shape[1:]
    return Route(
        q, loads, trajectory.positions[-1] - centre, weights, carriers.reshape(n, d, -1), pull
    )


def _instant_whiteners(
    posterior: Posterior, psi: Float[Array, "t n d d"]
) -> Float[Array, "t rows n"]:
    """Of `pathwise`: C⁻¹ at each instant, its columns split by axis so that it meets plain kernel
    values.
    """
    n, d = posterior.trajectory.positions.shape[1:]
    inverse = lambda node: numerics.solve_lower(instant_factor(posterior, *node), jnp.eye(n * d))
    whole = jax.lax.map(inverse, (posterior.trajectory.positions, psi))
    return whole.reshape(len(psi), n * d, n, d).swapaxes(2, 3).reshape(len(psi), n * d * d, n)


# ----------------------------------------------------------------------------- the points come last


def _product(a: Matrices, b: Float[Array, "d k m"]) -> Float[Array, "d k m"]:
    """Matrix times matrix, point by point."""
    return sum(
        (a[:, k, None] * b[None, k] for k in range(1, len(b))), start=a[:, 0, None] * b[None, 0]
    )


def _applied(a: Matrices, x: Points) -> Points:
    """Matrix times vector, point by point."""
    return _product(a, x[:, None])[:, 0]


def _turned(a: Matrices, middle: Matrices) -> Matrices:
    """A M Aᵀ, point by point."""
    return _product(_product(a, middle), a.swapaxes(0, 1))


def _square(half: Float[Array, "k d m"]) -> Matrices:
    """HᵀH, point by point."""
    d = half.shape[1]
    rows = [[jnp.sum(half[:, a] * half[:, b], axis=0) for b in range(a + 1)] for a in range(d)]
    return jnp.stack([jnp.stack([rows[max(a, b)][min(a, b)] for b in range(d)]) for a in range(d)])


def _inverse(matrices: Float[Array, "*t d d m"]) -> Float[Array, "*t d d m"]:
    return jnp.moveaxis(numerics.inverse_small(jnp.moveaxis(matrices, -1, -3)), -3, -1)


def _affine(map_: Float[Array, "*b d d1"], x: Points) -> Float[Array, "*b d m"]:
    return jnp.tensordot(map_[..., :-1], x, axes=1) + map_[..., -1:]


def _squared_distances(x: Points, q: Float[Array, "n d"]) -> Float[Array, "n m"]:
    first, *others = ((x[a] - q[:, a, None]) ** 2 for a in range(len(x)))
    return sum(others, start=first)


def _stepped(field: Callable[..., Any], state: Any, nodes: Any) -> Any:
    """A Runge–Kutta step, field(y, node) being hẏ at a stage's node; and what the first stage
    noted.
    """
    shifted = lambda share, slope: jax.tree.map(lambda y, k: y + share * k, state, slope)
    stage = lambda i: jax.tree.map(lambda node: node[i], nodes)
    k1, noted = field(state, stage(0))
    k2, _ = field(shifted(0.5, k1), stage(1))
    k3, _ = field(shifted(0.5, k2), stage(2))
    k4, _ = field(shifted(1.0, k3), stage(3))
    mean = jax.tree.map(lambda a, b, c, e: (a + 2 * b + 2 * c + e) / 6, k1, k2, k3, k4)
    return shifted(1.0, mean), noted


def _travelled(kernel: AbstractKernel, route: Route, start: Points) -> Points:
    """Where a route takes points, no more: ẋ = v(x)."""
    d = len(start)

    def field(x: Points, node: tuple[Array, Array]) -> tuple[Points, None]:
        q, load = node
        return load[:d] @ kernel.value_and_slope(_squared_distances(x, q))[0], None

    return jax.lax.scan(functools.partial(_stepped, field), start, (route.positions, route.loads))[
        0
    ]


def _journey(kernel: AbstractKernel, route: Route, start: Points) -> Journey:
    """Follow points with their Jacobians: ẋ = v(x), J̇ = Dv(x)J, Dv = (Σ g p)xᵀ − Σ g pqᵀ, g =
    k'/r.
    """
    d, m = start.shape

    def field(
        state: tuple[Points, Matrices], node: tuple[Array, Array]
    ) -> tuple[tuple[Points, Matrices], Array]:
        (x, jacobian), (q, load) = state, node
        s = _squared_distances(x, q)
        values, slopes = kernel.value_and_slope(s)
        sums = load @ slopes
        gradient = sums[:d, None] * x[None] - sums[d:].reshape(d, d, m)
        return (load[:d] @ values, _product(gradient, jacobian)), values

    def step(state: tuple[Points, Matrices], node: tuple[Array, ...]) -> tuple[tuple, tuple]:
        after, values = _stepped(field, state, node)
        return after, (values, state[1])

    eye = jnp.broadcast_to(jnp.eye(d, dtype=start.dtype)[..., None], (d, d, m))
    (end, jacobian), (values, way) = jax.lax.scan(
        step, (start, eye), (route.positions, route.loads)
    )
    last, _ = kernel.value_and_slope(_squared_distances(end, route.end))
    back = _inverse(jnp.concatenate([way, jacobian[None]]))
    return Journey(end, jacobian, jnp.concatenate([values, last[None]]), back)


def _spread(
    tables: Tables,
    route: Route,
    whitener: Float[Array, "*i k c"],
    way: Journey,
    basis: Float[Array, "b d m"],
) -> Matrices:
    """Λ_post where the route starts, a block of points after the other; the whitener in the order
    of the route.
    """
    block = _block_size(way.values.shape[1], way.end.shape[1])
    apart = lambda a: jnp.moveaxis(a.reshape(*a.shape[:-1], a.shape[-1] // block, block), -2, 0)
    blocks = jax.tree.map(apart, (way.values, way.back, basis))
    parts = jax.lax.map(lambda part: _told(tables, route, whitener, *part), blocks)
    return jnp.moveaxis(parts, 0, -2).reshape(way.jacobian.shape)


def _told(
    tables: Tables, route: Route, whitener: Array, values: Array, back: Array, basis: Array
) -> Matrices:
    """Prior − what the landmarks explain + the uncertain alignment's part, for a block of points."""
    roots = jnp.sqrt(route.weights)[:, None, None, None] * back.swapaxes(1, 2)
    gathered = _gathered(
        route, values, back
    )  # of `pathwise` without an alignment it is not used, and not computed
    prior = tables.kernel.variance * _square(roots.reshape(-1, *roots.shape[2:]))
    known = prior + _square(basis - _rows(tables.loading, gathered))
    if tables.model == "pathwise":
        return known - _explained_pathwise(whitener, route.weights, values, back)
    return known - _square(_rows(whitener, gathered))


def _gathered(
    route: Route, values: Float[Array, "t n m"], back: Float[Array, "t d d m"]
) -> Float[Array, "n d d m"]:
    """Γᵀ, anchor by anchor: for each the product of its wΨ(t) side by side with the kB_tᵀ one below
    the other.
    """
    n, d, m = route.end.shape[0], back.shape[1], values.shape[-1]
    stacked = values.swapaxes(0, 1)[:, :, None, None] * back.swapaxes(1, 2)[None]
    return (route.carriers @ stacked.reshape(n, -1, d * m)).reshape(n, d, d, m)


def _rows(matrix: Float[Array, "k c"], gathered: Float[Array, "n d d m"]) -> Float[Array, "k d m"]:
    n, d, _, m = gathered.shape
    return (matrix @ gathered.reshape(n * d, d * m)).reshape(len(matrix), d, m)


def _explained_pathwise(whiteners: Array, weights: Array, values: Array, back: Array) -> Matrices:
    """Σ w B_t (C⁻¹k)ᵀ(C⁻¹k) B_tᵀ: the velocity conditioned at every instant."""
    d, m = back.shape[1], values.shape[-1]

    def add(total: Matrices, node: tuple[Array, ...]) -> tuple[Matrices, None]:
        w, whitener, k, b = node
        return total + w * _turned(b, _square((whitener @ k).reshape(-1, d, m))), None

    return jax.lax.scan(
        add, jnp.zeros((d, d, m), values.dtype), (weights, whiteners, values, back)
    )[0]


def _block_size(anchors: int, points: int) -> int:
    size = points
    while size > 64 and size * anchors > PAIRS + PAIRS // 4:
        size //= 2
    return size


def _correction(tables: Tables, start: Points, way: Journey) -> Points:
    """J₁(hβ̂ + Γc): what is added to the flow's end where the fit stopped early, or is
    small-deformation.
    """
    pulls = (
        _applied(b, pull @ k)
        for b, pull, k in zip(way.back, tables.forward.pull, way.values, strict=True)
    )
    return _applied(way.jacobian, sum(pulls, start=_affine(tables.drift, start)))


@compiled(options=OTHER_LOOPS)
def _carried(kernel: AbstractKernel, route: Route, start: Points) -> Points:
    """The displacement of points by the flow alone, there or back."""
    return _travelled(kernel, route, start) - start


@compiled
def _corrected(tables: Tables, start: Points) -> Points:
    """The displacement of points of moving space by more than the flow."""
    way = _journey(tables.kernel, tables.forward, start)
    return way.end - start + _correction(tables, start, way)


@compiled
def _predict(tables: Tables, start: Points) -> tuple[Points, Matrices, Matrices]:
    """Displacement, Jacobian and covariance of points of moving space."""
    way = _journey(tables.kernel, tables.forward, start)
    moved, jacobian = way.end - start, way.jacobian
    if tables.corrected:
        moved, jacobian = moved + _correction(tables, start, way), _slope(tables, start)
    known = _spread(tables, tables.forward, tables.whitener, way, _affine(tables.sway, start))
    return moved, jacobian, _turned(way.jacobian, known)


@compiled
def _preimage(tables: Tables, end: Points) -> tuple[Points, Matrices, Matrices]:
    """The displacement that takes points of fixed space to where they come from, the Jacobian
    there, the covariance.
    """
    if tables.corrected:
        back = _corrected_back(tables, end)
        _, jacobian, cov = _predict(tables, end + back)
        return back, jacobian, cov
    way = _journey(tables.kernel, tables.backward, end)
    jacobian = way.back[-1]
    basis = jax.vmap(lambda h: _applied(jacobian, h))(_affine(tables.sway, way.end))
    whitener = tables.whitener[::-1] if tables.model == "pathwise" else tables.whitener
    return way.end - end, jacobian, _spread(tables, tables.backward, whitener, way, basis)


def _slope(tables: Tables, start: Points) -> Matrices:
    """The Jacobian of the whole corrected map, by forward differentiation along each axis."""
    d = len(start)
    along = jnp.broadcast_to(jnp.eye(d, dtype=start.dtype)[..., None], (d, *start.shape))
    arrive = lambda x: x + _corrected(tables, x)
    return jax.vmap(lambda tangent: jax.jvp(arrive, (start,), (tangent,))[1], out_axes=1)(along)


@compiled
def _corrected_back(tables: Tables, end: Points) -> Points:
    """The displacement to points that arrive at `end`: Newton's method from the flow's, until none
    moves any more.
    """

    def search(state: tuple[Points, Any, Any]) -> tuple[Points, Any, Any]:
        x, _, count = state
        step = _applied(_inverse(_slope(tables, x)), x + _corrected(tables, x) - end)
        return x - step, jnp.max(jnp.where(jnp.isfinite(step), jnp.abs(step), 0.0)), count + 1

    goes_on = lambda state: (state[1] > tables.still) & (state[2] < NEWTON_STEPS)
    start = _travelled(tables.kernel, tables.backward, end)
    return jax.lax.while_loop(goes_on, search, (start, jnp.asarray(jnp.inf, end.dtype), 0))[0] - end
