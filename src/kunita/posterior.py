"""The posterior over deformations: where any point goes, and how sure that is."""

import operator
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from kunita import notebook, numerics
from kunita.errors import ArgumentError, InverseError, LandmarkError
from kunita.flow import covariance, shooting, simulate, transport
from kunita.flow.transport import Path
from kunita.gaussians import GaussianPoints
from kunita.inference.path_space import AbstractPathSpace
from kunita.inference.solve import Fit
from kunita.inference.trend import Alignment, Trend
from kunita.jaxrun.doors import Array, ArrayLike, as_count, as_points, door, to_numpy
from kunita.jaxrun.programs import SMALL_MATRIX, compiled
from kunita.kernels import AbstractKernel, describe_kernel

MODELS = ("endpoint", "pathwise", "small")

CHUNKS = (16, 64, 256, 1024)
"""Points evaluated at a time."""

NEWTON_STEPS = 30
"""Enough for any pre-image that Newton's method finds at all."""


class LeaveOneOut(eqx.Module):
    """Each fixed landmark as predicted from all the others, with its error (mm) and squared
    standardised error.
    """

    mean: Float[Array, "n d"]
    covariance: Float[Array, "n d d"]
    error: Float[Array, " n"]
    chi2: Float[Array, " n"]


class Preimage(eqx.Module):
    """Where fixed points come from, the map's Jacobian there, and the covariance they arrive with,
    in fixed space.
    """

    points: Float[Array, "m d"]
    jacobians: Float[Array, "m d d"]
    covariance: Float[Array, "m d d"]

    @property
    def carried_back(self) -> Float[Array, "m d d"]:
        """(JA₀)⁻¹Λ(JA₀)⁻ᵀ: the covariance in moving space, to first order."""
        back = np.linalg.inv(self.jacobians)
        return back @ np.asarray(self.covariance) @ back.swapaxes(1, 2)


class Posterior(eqx.Module):
    """A Gaussian process over deformations, conditioned on landmarks; maps moving points to fixed
    space.

    Mean: m(z) = φ₁(z̃) + J_z h(z̃)β̂ + Λ(z, X)c, with z̃ the aligned point. For `endpoint` and
    `pathwise` φ₁ is the fitted flow and β̂ = 0, c = 0 (or, where the fit stopped early, the
    remaining Gauss–Newton step, c = λ_new − λ). For `small` φ₁ is the identity and c = λ: ordinary
    Gaussian-process regression of the displacement.

    Covariance: Λ_post(z, w) = conditioned(z, w) + G_z A⁻¹ G_wᵀ, the second term from the uncertain
    alignment, G_z = J_z h(z̃) − Λ(z, X)S⁻¹H. What is conditioned, and when, is the model: see
    `conditioned`. (`pathwise` takes the alignment's part, leave-one-out and the evidence from the
    endpoint's S and Λ.)
    """

    model: str = eqx.field(static=True)
    corrected: bool = eqx.field(static=True)
    kernel: AbstractKernel
    trend: Trend
    alignment: Alignment
    origin: Float[Array, " d"]
    trajectory: shooting.Trajectory
    weights: Float[Array, " t"]
    targets: Float[Array, "n d"]
    noise: Float[Array, "n d d"]
    linear: AbstractPathSpace
    dual: Float[Array, "n d"]
    correction: Float[Array, "c d"]
    shift: Float[Array, " b"]

    @door
    def predict(self, points: ArrayLike) -> GaussianPoints:
        """Where moving points go in fixed space, (m, d), and the covariance of each."""
        return GaussianPoints(*in_chunks(_predict, self, self._check(points)))

    @door
    def inverse(self, points: ArrayLike) -> GaussianPoints:
        """Where fixed points come from in moving space: the same map backwards.

        The covariance is (JA₀)⁻¹Λ(JA₀)⁻ᵀ, to first order.
        """
        preimage = self.preimage(points)
        return GaussianPoints(preimage.points, preimage.carried_back)

    @door
    def preimage(self, points: ArrayLike) -> Preimage:
        """Where fixed points come from, and how sure the registration is *at* them: all that a map
        on a grid shows.
        """
        y = self._check(points)
        x, jacobians, cov = in_chunks(_preimage, self, y)
        if self.corrected:
            self._check_inverse(y, x)
        return Preimage(x, jacobians, cov)

    @door
    def move(self, points: ArrayLike) -> Float[Array, "m d"]:
        """Where moving points go: the mean of `predict`, for very many points."""
        return in_chunks(_mean, self, self._check(points))

    @door
    def move_back(self, points: ArrayLike) -> Float[Array, "m d"]:
        """Where fixed points come from: the mean of `inverse`, for very many points."""
        y = self._check(points)
        x = in_chunks(_invert, self, y)
        if self.corrected:
            self._check_inverse(y, x)
        return x

    @door
    def covariance(self, x: ArrayLike, y: ArrayLike) -> Float[Array, "m d k d"]:
        """Posterior covariance between two sets of moving points as they arrive in fixed space, (m,
        d, k, d).
        """
        return _covariance(self, self._check(x), self._check(y))

    @door
    def jacobian(self, points: ArrayLike) -> Float[Array, "m d d"]:
        """Jacobian of the whole mean map (alignment and flow) at moving points, (m, d, d)."""
        return in_chunks(_jacobian, self, self._check(points))

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
        mean, _ = in_chunks(_predict, self, z)
        root = numerics.root(
            numerics.symmetric(_covariance(self, z, z).reshape(mean.size, mean.size))
        )
        draws = jax.random.normal(
            simulate.as_key(key), (as_count(num_samples, "num_samples"), mean.size)
        )
        return mean + (draws @ root.T).reshape(-1, *mean.shape)

    @door
    def leave_one_out(self) -> LeaveOneOut:
        """Every landmark predicted from the others, without refitting.

        With P = S⁻¹ − S⁻¹HA⁻¹HᵀS⁻¹ and λ of the joint fit, the prediction without landmark i misses
        it by Pᵢᵢ⁻¹λᵢ and has covariance Pᵢᵢ⁻¹, noise included: exact for a linear model, first
        order around the fit otherwise. One row per landmark that was used (not left out by infinite
        noise).
        """
        precision, known, loo = _leave_one_out(self)
        # what the others say of a landmark: nothing, where P vanishes against S⁻¹ (the alignment
        # needs all of them)
        if np.any(np.linalg.eigvalsh(precision)[:, 0] <= 1e-9 * np.trace(known, axis1=1, axis2=2)):
            n = len(self.targets)
            raise LandmarkError(
                f"leave-one-out: {n} landmarks are too few to fit this alignment without one of them"
            )
        return loo

    @property
    def affine(self) -> np.ndarray:
        """The alignment alone as a matrix from moving to fixed space, (d + 1, d + 1)."""
        d, align = len(self.origin), self.alignment
        whole = np.eye(d + 1)
        whole[:d, :d] = align.matrix
        whole[:d, d] = (
            np.asarray(align.offset) + self.origin - np.asarray(align.matrix) @ align.center
        )
        return whole

    @door
    def _repr_html_(self) -> str | None:
        """A card for notebooks; of the landmarks it knows the control points only, where these
        stand for all.
        """
        if np.ndim(self.targets) != 2:  # not a posterior but a tree of its shape
            return None
        aligned, fixed = (
            np.asarray(self.trajectory.positions[0]),
            np.asarray(self.targets + self.origin),
        )
        moving = np.asarray(self.alignment.inverse(aligned))
        arrived, whole = self.predict(moving), len(moving) == len(fixed)
        noise = float(np.sqrt(np.mean(np.trace(self.noise, axis1=1, axis2=2)) / fixed.shape[1]))
        align = notebook.alignment_words(np.asarray(self.trend.generators))
        facts = (
            notebook.Fact("Model", f"{self.model}, alignment {align}"),
            notebook.Fact("Kernel", describe_kernel(self.kernel)),
            notebook.Fact("Noise", f"{noise:.3g} mm"),
            notebook.sureness(arrived, "landmarks" if whole else "control points"),
        )
        # at a landmark f − m(x) = Dλ, unless the search stopped on the way
        expected = np.einsum("iab,ib->ia", self.noise, self.dual)
        missed = whole and np.abs(fixed - arrived.mean - expected).max() > 0.01 * noise
        early = missed or (self.corrected and self.model != "small")
        warnings = (
            ("NOT CONVERGED: the posterior is that of a search that stopped early",)
            if early
            else ()
        )
        start, origin = notebook.starts(moving, aligned + np.asarray(self.origin), fixed)
        scene = notebook.Scene(start, arrived, fixed, {}, origin, paired=whole)
        calls = (
            "predict(points)",
            "inverse(points)",
            "covariance(x, y)",
            "sample(points, 10)",
            "leave_one_out()",
        )
        return notebook.posterior_card(len(fixed), facts, warnings, scene, calls)

    def _check(self, points: ArrayLike) -> Float[Array, "m d"]:
        return as_points(points, "points", self.targets.shape[1])

    def _check_inverse(self, y: Float[Array, "m d"], x: Float[Array, "m d"]) -> None:
        check_arrival(self, y, in_chunks(_mean, self, x))


def check_arrival(
    posterior: Posterior, wanted: Float[Array, "m d"], found: Float[Array, "m d"]
) -> None:
    """Refuse pre-images that do not arrive where they should."""
    miss = np.abs(np.asarray(found) - np.asarray(wanted)).max(axis=1)
    lost = np.flatnonzero(~(miss < 1e-6 * float(posterior.trend.scale)))
    if lost.size:
        raise InverseError(
            f"{lost.size} of {len(miss)} points (the first is row {lost[0]}) have no pre-image that could be found: "
            "the corrected or small-deformation map folds; use model='endpoint' and let it converge"
        )


dual_change = compiled(AbstractPathSpace.dual_change, hasty=SMALL_MATRIX)


def posterior_from_fit(fit: Fit, origin: np.ndarray, model: str, *, near: bool = True) -> Posterior:
    """Linearise around the fitted flow and condition on the landmarks.

    A fit that stopped early is corrected by the step that remains, unless that would not lead
    anywhere `near`.
    """
    carriers, linear = fit.carriers, fit.linear
    weights = numerics.quadrature_weights(carriers.num_steps)
    shift, correction = dual_change(linear, fit.errors)
    dual = fit.trajectory.momenta[-1] + correction
    anchored = linear.to_anchors(correction.ravel()).reshape(-1, correction.shape[1])
    corrected = model == "small" or (near and not fit.converged)
    keep = 1.0 if corrected else 0.0
    return Posterior(
        model,
        corrected,
        fit.kernel,
        fit.trend,
        fit.alignment,
        origin,
        carriers,
        weights,
        fit.targets,
        fit.noise,
        linear,
        dual,
        keep * anchored,
        keep * shift,
    )


# ------------------------------------------------------------------ the formulas, on aligned points


def conditioned(posterior: Posterior, x: Path, y: Path) -> Float[Array, "m d k d"]:
    """The covariance given the landmarks, alignment known.

    *endpoint*, *small*: condition once, on what was observed: Λ(x, y) − Λ(x, X)S⁻¹Λ(X, y), S = Λ_XX
    + D.

    *pathwise*, the reading that agrees with the paper's `fig:synth`: condition the velocity at
    every instant, Σ_t(x, y) = k(x, y)I − k(x, Q)(K_QQ + D_t)⁻¹k(Q, y), with the noise carried back,
    D_t = Ψ(t)⁻¹DΨ(t)⁻ᵀ; then Λ_post = ∫ Ψ_x Σ_t Ψ_yᵀ dt.
    """
    if posterior.model == "pathwise":
        return _conditioned_pathwise(posterior, x, y)
    m, k, d = x.positions.shape[1], y.positions.shape[1], x.positions.shape[2]
    kernel, weights, landmarks = (
        posterior.kernel,
        posterior.weights,
        transport.landmark_path(posterior.trajectory),
    )
    half_x = posterior.linear.whiten(_cross(posterior, x, landmarks).T)
    half_y = posterior.linear.whiten(_cross(posterior, y, landmarks).T)
    return covariance.flow_covariance(kernel, weights, x, y) - (half_x.T @ half_y).reshape(
        m, d, k, d
    )


def conditioned_variance(posterior: Posterior, x: Path) -> Float[Array, "m d d"]:
    """The diagonal blocks of `conditioned`, for many points at once."""
    prior = covariance.flow_variance(posterior.kernel, posterior.weights, x)
    if posterior.model != "pathwise":
        cross = _cross(posterior, x, transport.landmark_path(posterior.trajectory))
        half = posterior.linear.whiten(cross.T).reshape(-1, *prior.shape[:2])
        return prior - jnp.einsum("kma,kmb->mab", half, half)

    def add(total: Array, node: tuple[Array, ...]) -> tuple[Array, None]:
        w, xt, psi, qt, psi_q = node
        half = _instant(posterior, qt, psi_q, xt).reshape(-1, *prior.shape[:2])
        known = jnp.einsum("kma,kmb->mab", half, half)
        return total - w * psi @ known @ psi.swapaxes(1, 2), None

    return jax.lax.scan(add, prior, _instants(posterior, x))[0]


def _conditioned_pathwise(posterior: Posterior, x: Path, y: Path) -> Float[Array, "m d k d"]:
    prior = covariance.flow_covariance(posterior.kernel, posterior.weights, x, y)

    def add(total: Array, node: tuple[tuple[Array, ...], tuple[Array, ...]]) -> tuple[Array, None]:
        (w, xt, psi_x, qt, psi_q), (_, yt, psi_y, _, _) = node
        known = _instant(posterior, qt, psi_q, xt).T @ _instant(posterior, qt, psi_q, yt)
        return total - w * jnp.einsum(
            "iab,ibjc,jdc->iajd", psi_x, known.reshape(prior.shape), psi_y
        ), None

    return jax.lax.scan(add, prior, (_instants(posterior, x), _instants(posterior, y)))[0]


def _instants(posterior: Posterior, x: Path) -> tuple[Array, ...]:
    """What one instant of the pathwise conditioning needs, along the time axis."""
    landmarks = transport.landmark_path(posterior.trajectory)
    psi_x, psi_q = transport.propagators(x), transport.propagators(landmarks)
    return posterior.weights, x.positions, psi_x, landmarks.positions, psi_q


def _instant(
    posterior: Posterior, q: Float[Array, "n d"], psi: Float[Array, "n d d"], x: Float[Array, "m d"]
) -> Float[Array, "nd md"]:
    """C⁻¹k(Q, x): half of what the landmarks tell about the velocity at x at one instant."""
    factor = instant_factor(posterior, q, psi)
    return numerics.solve_lower(factor, jnp.kron(posterior.kernel.gram(q, x), jnp.eye(q.shape[1])))


def instant_factor(
    posterior: Posterior, q: Float[Array, "n d"], psi: Float[Array, "n d d"]
) -> Float[Array, "nd nd"]:
    """C with CCᵀ = K_QQ + D_t at one instant, for landmarks at q with Ψ(t) = psi."""
    back, eye = numerics.inverse_small(psi), jnp.eye(q.shape[1])
    noise = jnp.einsum("iab,ibc,idc->iad", back, posterior.noise, back)
    gram = jnp.kron(posterior.kernel.gram(q, q), eye)
    return numerics.cholesky(gram + numerics.block_diagonal(noise), jitter=0.0)


def trend_loading(posterior: Posterior, x: Path) -> Float[Array, "m d b"]:
    """G_x = J_x h(x̃) − Λ(x, X)S⁻¹H: how the uncertain alignment moves a point, the landmarks held."""
    basis = x.jacobians[-1] @ posterior.trend.basis(x.positions[0])
    cross = _cross(posterior, x, transport.landmark_path(posterior.trajectory))
    return basis - (cross @ posterior.linear.loading).reshape(basis.shape)


def _cross(posterior: Posterior, x: Path, landmarks: Path) -> Float[Array, "md nd"]:
    """Λ(x, X) as a matrix."""
    block = covariance.flow_covariance(posterior.kernel, posterior.weights, x, landmarks)
    return block.reshape(block.shape[0] * block.shape[1], -1)


def swing(posterior: Posterior, x: Path) -> Float[Array, "m b d"]:
    """M⁻¹Gᵀ with MMᵀ = A, so that swingᵀ·swing is the alignment's part of the covariance."""
    loading = trend_loading(posterior, x)
    m, d, b = loading.shape
    return (
        numerics.solve_lower(posterior.linear.trend_factor, loading.reshape(m * d, b).T)
        .reshape(b, m, d)
        .swapaxes(0, 1)
    )


def path_of(posterior: Posterior, points: Float[Array, "m d"]) -> Path:
    """The way of moving points through the flow, aligned first."""
    aligned = posterior.alignment(points)
    return transport.carry(posterior.kernel, posterior.trajectory, aligned)


def arrival(posterior: Posterior, x: Path) -> Float[Array, "m d"]:
    """The mean map: φ₁ + J h β̂ + Λ(x, X)c, back in the fixed frame."""
    arrived = x.positions[-1] + posterior.origin
    if not posterior.corrected:
        return arrived
    moved = (
        _cross(posterior, x, transport.landmark_path(posterior.trajectory))
        @ posterior.correction.ravel()
    )
    turned = x.jacobians[-1] @ posterior.trend.basis(x.positions[0]) @ posterior.shift
    return arrived + turned + moved.reshape(arrived.shape)


@compiled
def _mean(posterior: Posterior, points: Float[Array, "m d"]) -> Float[Array, "m d"]:
    return arrival(posterior, path_of(posterior, points))


@compiled
def _predict(
    posterior: Posterior, points: Float[Array, "m d"]
) -> tuple[Float[Array, "m d"], Float[Array, "m d d"]]:
    """Mean and covariance of each point."""
    path = path_of(posterior, points)
    return arrival(posterior, path), _variance(posterior, path)


def _variance(posterior: Posterior, path: Path) -> Float[Array, "m d d"]:
    half = swing(posterior, path)
    return conditioned_variance(posterior, path) + jnp.einsum("mka,mkb->mab", half, half)


@compiled
def _preimage(
    posterior: Posterior, points: Float[Array, "m d"]
) -> tuple[Float[Array, "m d"], Float[Array, "m d d"], Float[Array, "m d d"]]:
    """The pre-image, and Jacobian and covariance there."""
    x = _invert(posterior, points)
    path = path_of(posterior, x)
    jacobians = (
        _jacobian(posterior, x)
        if posterior.corrected
        else path.jacobians[-1] @ posterior.alignment.matrix
    )
    return x, jacobians, _variance(posterior, path)


@compiled
def _covariance(
    posterior: Posterior, x: Float[Array, "m d"], y: Float[Array, "k d"]
) -> Float[Array, "m d k d"]:
    path_x, path_y = path_of(posterior, x), path_of(posterior, y)
    half_x, half_y = swing(posterior, path_x), swing(posterior, path_y)
    return conditioned(posterior, path_x, path_y) + jnp.einsum("mka,nkb->manb", half_x, half_y)


@compiled
def _jacobian(posterior: Posterior, points: Float[Array, "m d"]) -> Float[Array, "m d d"]:
    if posterior.corrected:
        return jax.vmap(jax.jacfwd(lambda z: _mean(posterior, z[None])[0]))(points)
    return path_of(posterior, points).jacobians[-1] @ posterior.alignment.matrix


@compiled
def _invert(posterior: Posterior, points: Float[Array, "m d"]) -> Float[Array, "m d"]:
    """Carry the points back along the flow and undo the alignment; Newton's method for what a
    correction adds.
    """
    backwards = shooting.backwards(posterior.trajectory)
    start = transport.carry(posterior.kernel, backwards, points - posterior.origin).positions[-1]
    start = posterior.alignment.inverse(start)

    def newton(x: Float[Array, "m d"], _: None) -> tuple[Float[Array, "m d"], None]:
        miss = _mean(posterior, x) - points
        return x - numerics.solve_small(_jacobian(posterior, x), miss[..., None])[..., 0], None

    return (
        jax.lax.scan(newton, start, None, length=NEWTON_STEPS)[0] if posterior.corrected else start
    )


@compiled(hasty=SMALL_MATRIX)
def _leave_one_out(
    posterior: Posterior,
) -> tuple[Float[Array, "n d d"], Float[Array, "n d d"], LeaveOneOut]:
    """The diagonal blocks of P = S⁻¹ − S⁻¹HA⁻¹HᵀS⁻¹ and of S⁻¹, and what follows from them."""
    (n, d), linear = posterior.targets.shape, posterior.linear
    swing = numerics.solve_lower(linear.trend_factor, linear.solved_design.T).reshape(-1, n, d)
    known = linear.precision()
    precision = known - jnp.einsum("kia,kib->iab", swing, swing)
    cov = numerics.inverse_small(precision)
    miss = jnp.einsum("iab,ib->ia", cov, posterior.dual)
    mean = posterior.targets + posterior.origin - miss
    loo = LeaveOneOut(
        mean, cov, jnp.linalg.norm(miss, axis=1), jnp.sum(miss * posterior.dual, axis=1)
    )
    return precision, known, loo


def in_chunks(
    function: Callable[[Posterior, Array], Any], posterior: Posterior, points: Float[Array, "m d"]
) -> Any:
    """Apply a function point-wise in chunks of a few fixed sizes, so that it compiles a few times
    at most.
    """
    pieces, rest = [], points
    for size in chunk_sizes(len(points)):
        chunk, rest = rest[:size], rest[size:]
        padded = np.concatenate(
            [
                chunk,
                np.broadcast_to(posterior.alignment.center, (size - len(chunk), chunk.shape[1])),
            ]
        )
        pieces.append(
            jax.tree.map(
                operator.itemgetter(slice(len(chunk))), to_numpy(function(posterior, padded))
            )
        )
    return jax.tree.map(lambda *parts: np.concatenate(parts), *pieces)


def chunk_sizes(count: int) -> Iterator[int]:
    """Chunks for so many points, the largest first, none of which (but of the smallest size) is
    less than half full.
    """
    left = max(count, 1)
    while left > 0:
        size = next((size for size in CHUNKS if left <= size <= 2 * left), None)
        size = size or max((size for size in CHUNKS if size <= left), default=CHUNKS[0])
        yield size
        left -= size
