"""Marginal likelihood: how well a prior explains the landmarks, and the choice of its parameters."""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from jaxtyping import Bool, Float

from kunita import numerics
from kunita.flow import shooting
from kunita.inference.path_space import PathSpace
from kunita.inference.solve import Fit
from kunita.kernels import AbstractKernel, AbstractProfile
from kunita.precision import Array, Scalar


@jax.jit
def gauss_newton_evidence(linear: PathSpace, energy: Scalar) -> Scalar:
    """Log p(F) ≈ −E* − ½logdet S − ½logdet(HᵀS⁻¹H) − ½(nd − b)log 2π, around the fitted flow.

    Laplace's approximation over velocity paths; with a trend, under its flat prior (restricted likelihood).
    """
    log_det_s = 2 * jnp.sum(jnp.log(jnp.diag(linear.factor)))
    log_det_a = 2 * jnp.sum(jnp.log(jnp.diag(linear.trend_factor)))
    freedom = len(linear.factor) - len(linear.trend_factor)
    return -energy - 0.5 * (log_det_s + log_det_a + freedom * jnp.log(2 * jnp.pi))


def full_evidence(fit: Fit) -> Scalar:
    """Log p(F) ≈ −E* − ½logdet[2π(B_q + DB_p)Jᵀ]: Laplace with the second derivative of the flow, without a trend."""
    q0, p0, times = fit.trajectory.positions[0], fit.trajectory.momenta[0], fit.trajectory.times
    b_q, b_p = jax.jacfwd(lambda p: shooting.endpoint(fit.kernel, q0, p, times))(p0)
    full = b_q + jnp.einsum("iab,ibjc->iajc", fit.noise, b_p)
    full = jnp.einsum("iajb,jcb->iajc", full, fit.trajectory.jacobians[-1]).reshape(p0.size, p0.size)
    sign, log_det = jnp.linalg.slogdet(2 * jnp.pi * full)
    return jnp.where(sign > 0, -fit.energy - 0.5 * log_det, -jnp.inf)


def small_evidence(
    kernel: AbstractKernel,
    positions: Float[Array, "n d"],
    displacements: Float[Array, "n d"],
    basis: Float[Array, "n d b"],
    noise: Float[Array, "n ..."],
) -> Scalar:
    """The exact evidence of the small-deformation model, y ~ N(hβ, K⊗I + D) with β flat.

    Isotropic noise, (n,) variances, needs only an n×n factor; full noise, (n, d, d), an nd×nd one.
    """
    n, d = positions.shape
    gram = kernel.gram(positions, positions)
    if noise.ndim == 1:
        factor, copies = numerics.cholesky(gram + jnp.diag(noise), jitter=0.0), d
        whiten = lambda v: numerics.solve_lower(factor, v.reshape(n, -1)).reshape(n * d, -1)
    else:
        full = jnp.kron(gram, jnp.eye(d)) + numerics.block_diagonal(noise)
        factor, copies = numerics.cholesky(full, jitter=0.0), 1
        whiten = lambda v: numerics.solve_lower(factor, v.reshape(n * d, -1))
    y, h = whiten(displacements)[:, 0], whiten(basis)
    trend = numerics.cholesky(h.T @ h, jitter=0.0)
    misfit = y @ y - jnp.sum(numerics.solve_lower(trend, h.T @ y) ** 2)
    log_det = 2 * copies * jnp.sum(jnp.log(jnp.diag(factor))) + 2 * jnp.sum(jnp.log(jnp.diag(trend)))
    return -0.5 * (misfit + log_det + (n * d - h.shape[1]) * jnp.log(2 * jnp.pi))


@dataclasses.dataclass(frozen=True)
class Choice:
    """Kernel and noise that were chosen, and what could not be told from the data."""

    kernel: AbstractKernel
    noise: np.ndarray
    undecided: tuple[str, ...]


@functools.partial(jax.jit, static_argnums=0)
def _loss(
    family: type[AbstractProfile],
    given: AbstractKernel | None,
    theta: Float[Array, " p"],
    free: Bool[Array, "3"],
    noise: Float[Array, "n ..."],
    data: tuple[Array, Array, Array],
) -> tuple[Scalar, Float[Array, " p"]]:
    """−log evidence per coordinate and its gradient in (log σ, log a, log s)."""

    def negative(theta: Float[Array, " p"]) -> Scalar:
        kernel = family(jnp.exp(theta[0]), jnp.exp(theta[1])) if given is None else given
        scaled = jnp.where(free[2], jnp.exp(2 * theta[2]), 1.0) * noise
        return -small_evidence(kernel, *data, scaled) / data[1].size

    value, gradient = jax.value_and_grad(negative)(theta)
    return value, jnp.where(free, gradient, 0.0)


def choose_parameters(
    family: type[AbstractProfile],
    kernel: AbstractKernel | None,
    noise: np.ndarray | None,
    positions: np.ndarray,
    displacements: np.ndarray,
    basis: np.ndarray,
    reach: float,
    held: tuple[float | None, float | None] = (None, None),
) -> Choice:
    """Maximise the evidence of the small-deformation model over what is not given: σ and a, and the noise s.

    Args:
        family: the kernel's class, if no kernel is given.
        kernel: the kernel, or None to choose its length scale and amplitude.
        noise: (n, d, d) covariances, or None to choose one standard deviation.
        positions: (n, d) aligned moving points.
        displacements: (n, d) what is left to explain, F − x̃.
        basis: (n, d, b) the trend's basis at the positions.
        reach: size of the raw displacements, mm, to guess from where there is nothing to estimate with.
        held: a length scale and an amplitude, mm, to keep; None to choose.
    """
    n, d = positions.shape
    data = (jnp.asarray(positions), jnp.asarray(displacements), jnp.asarray(basis))
    unit = np.ones(n) if noise is None else _isotropic(noise)
    start, box = _search_box(positions, displacements)
    free = np.array([kernel is None and held[0] is None, kernel is None and held[1] is None, noise is None])
    kept = np.array([np.nan if value is None else np.log(value) for value in (*held, None)])
    start = np.where(np.isnan(kept), start, kept)
    names = np.array(["length scale", "amplitude", "noise"])
    best, decided = start, np.zeros(3, dtype=bool)
    if n * d - basis.shape[2] < 3:  # the alignment explains nearly everything: a guess, not a residual of zero
        size = float(np.ptp(positions, axis=0).max()) or reach or 1.0
        best = np.where(np.isnan(kept), np.log([size / 2, 0.05 * size, 0.02 * size]), kept)
    elif free.any():
        bounds = np.where(free[:, None], box, start[:, None])
        loss = lambda theta: tuple(np.asarray(part) for part in _loss(family, kernel, theta, free, unit, data))
        best = _minimise(loss, start, free, bounds)
        decided = np.abs(best[:, None] - bounds).min(axis=1) > 1e-3
    chosen = family(float(np.exp(best[0])), float(np.exp(best[1]))) if kernel is None else kernel
    spread = np.broadcast_to(np.exp(2 * best[2]) * np.eye(d), (n, d, d)) if noise is None else noise
    return Choice(chosen, np.array(spread), tuple(str(name) for name in names[free & ~decided]))


def _minimise(loss: Callable, start: np.ndarray, free: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """The best of a few local searches; the start itself if none of them ends in a finite number."""
    tries = [start + np.array(shift) * free for shift in ((0, 0, 0), (-1.2, 0, 0), (0.8, 0.7, -1), (0, -1, 1))]
    search = functools.partial(scipy.optimize.minimize, loss, jac=True, method="L-BFGS-B", bounds=bounds)
    found = [search(np.clip(theta, *bounds.T)) for theta in tries]
    finite = [f for f in found if np.isfinite(f.fun)]
    return min(finite, key=lambda f: f.fun).x if finite else start


def _isotropic(noise: np.ndarray) -> np.ndarray:
    """(n,) variances if every covariance is a multiple of the identity, else the covariances."""
    variance = np.trace(noise, axis1=1, axis2=2) / noise.shape[1]
    alike = np.abs(noise - variance[:, None, None] * np.eye(noise.shape[1])) <= 1e-9 * variance[:, None, None]
    return variance if alike.all() else noise


def _search_box(positions: np.ndarray, displacements: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where to start and how far to look, in log mm: between the landmarks' spacing and twice their extent."""
    distances = np.sqrt(np.sum((positions[:, None] - positions) ** 2, axis=2))
    size = float(np.sqrt(np.mean(displacements**2)))
    extent = float(distances.max()) or 10 * size or 1.0
    size = max(size, 1e-4 * extent)
    apart = np.where(distances > 1e-6 * extent, distances, np.inf).min(axis=1)
    spacing = float(np.median(apart[np.isfinite(apart)])) if np.isfinite(apart).any() else extent
    start = np.log([extent / 3, size, 0.3 * size])
    box = [(0.5 * spacing, 2 * extent), (0.03 * size, 30 * size), (0.003 * size, 3 * size)]
    return start, np.log(box)
