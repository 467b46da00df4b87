"""Points with Gaussian uncertainty, and the plain numbers that summarise it."""

import functools

import equinox as eqx
import numpy as np
from jaxtyping import Float
from scipy.interpolate import RectBivariateSpline
from scipy.special import erf

from kunita.errors import ArgumentError
from kunita.jaxrun.doors import Array


class GaussianPoints(eqx.Module):
    """Points known up to a Gaussian error: a mean and a covariance each, as NumPy arrays."""

    mean: Float[Array, "m d"]
    covariance: Float[Array, "m d d"]

    @property
    def frobenius(self) -> np.ndarray:
        """FC = ‖Λ‖_F, mm²: the paper's measure of uncertainty."""
        return np.linalg.norm(np.asarray(self.covariance), axis=(1, 2))

    @property
    def std(self) -> np.ndarray:
        """Standard deviation along a typical axis, √(tr Λ / d), mm."""
        covariance = np.asarray(self.covariance)
        return np.sqrt(np.maximum(np.trace(covariance, axis1=1, axis2=2), 0) / covariance.shape[1])

    def radius(self, level: float = 0.95) -> np.ndarray:
        """The distance from the mean that the true point stays within, with this probability, mm."""
        return ball_radius(np.asarray(self.covariance), level)


def ball_radius(covariances: np.ndarray, level: float) -> np.ndarray:
    """R with P(|e| ≤ r) = level for e ~ N(0, Λ): the ball around the mean, not the longest
    half-axis of a region.
    """
    return ball_radius_of_variances(np.linalg.eigvalsh(covariances), level)


def ball_radius_of_variances(variances: np.ndarray, level: float) -> np.ndarray:
    """The same from the variances along the principal axes, (…, d) in increasing order.

    Depends on the ratios of the standard deviations only: tabulated once per level, to a relative
    error of about 1e-4.
    """
    if not isinstance(level, int | float | np.number) or not 0 < level < 1:
        raise ArgumentError(f"level: expected a probability between 0 and 1, found {level!r}")
    sds = np.sqrt(np.maximum(variances[..., ::-1], 0))
    sds = np.concatenate([sds, np.zeros((*sds.shape[:-1], 3 - sds.shape[-1]))], axis=-1)
    largest = np.where(sds[..., 0] > 0, sds[..., 0], 1.0)
    quantile = _radius_table(float(level)).ev(sds[..., 1] / largest, sds[..., 2] / largest)
    return sds[..., 0] * quantile


def ball_radius_of_invariants(
    trace: np.ndarray, square: np.ndarray, determinant: np.ndarray | float, level: float
) -> np.ndarray:
    """The same from tr Λ, ‖Λ‖² and, in 3-D, det Λ, without principal axes: made for millions of
    voxels.

    R is a smooth function of Λ that no rotation changes and that grows as the square root of its
    scale; so R/√tr Λ is one of a = (3‖Λ‖²/tr²Λ − 1)/2 and b = 27 det Λ/tr³Λ, which both go from 0
    to 1: a polynomial, to a relative error of 1e-4.
    """
    size = np.where(trace > 0, trace, 1)
    shape_a, shape_b = 1.5 * square / size**2 - 0.5, 27 * determinant / size**3
    total, inner = np.zeros_like(size), np.empty_like(size)
    for row in radius_polynomial(float(level))[
        ::-1
    ]:  # Horner's rule in a, and inside in b; in place, which is faster
        inner.fill(row[-1])
        for coefficient in row[-2::-1]:
            inner *= shape_b
            inner += coefficient
        total *= shape_a
        total += inner
    return total * np.sqrt(np.maximum(trace, 0))


RADIUS_DEGREE = 5


@functools.lru_cache(maxsize=16)
def radius_polynomial(level: float) -> tuple[tuple[float, ...], ...]:
    """Coefficients of R/√tr Λ: for each power of a those of the powers of b, fitted over all shapes
    of an ellipsoid.
    """
    ratio = np.linspace(0, 1, 41)
    t2, t3 = (t.ravel() for t in np.meshgrid(ratio, ratio, indexing="ij"))
    variances = np.stack([t3, t2, np.ones_like(t2)], axis=-1)[t3 <= t2] ** 2
    radius = ball_radius_of_variances(variances, level)
    variances = variances / variances.sum(axis=1, keepdims=True)
    root, a = np.sqrt(1 / variances.max(axis=1)), 1.5 * np.sum(variances**2, axis=1) - 0.5
    b, powers = (
        27 * np.prod(variances, axis=1),
        [(i, j) for i in range(RADIUS_DEGREE + 1) for j in range(RADIUS_DEGREE + 1 - i)],
    )
    design = np.stack([a**i * b**j for i, j in powers], axis=-1) / (radius / root)[:, None]
    found = iter(np.linalg.lstsq(design, np.ones(len(design)), rcond=None)[0])
    return tuple(
        tuple(float(next(found)) for _ in range(RADIUS_DEGREE + 1 - i))
        for i in range(RADIUS_DEGREE + 1)
    )


@functools.lru_cache(maxsize=16)
def _radius_table(level: float) -> RectBivariateSpline:
    """Quantiles of √(z₁² + t₂²z₂² + t₃²z₃²), z standard normal, over t₂, t₃ in [0, 1]."""
    ratio = np.linspace(0, 1, 15)
    t2, t3 = np.meshgrid(ratio, ratio, indexing="ij")
    low, high = np.zeros_like(t2), np.full_like(t2, 40.0)
    for _ in range(45):
        middle = 0.5 * (low + high)
        below = _ball_probability(middle, t2, t3) < level
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return RectBivariateSpline(ratio, ratio, high)


def _ball_probability(q: np.ndarray, t2: np.ndarray, t3: np.ndarray) -> np.ndarray:
    """P(z₁² + t₂²z₂² + t₃²z₃² ≤ q²): z₁ in closed form, z₂ and z₃ by Gauss–Legendre in the angle."""
    nodes, weights = np.polynomial.legendre.leggauss(32)
    sine, cosine = np.sin(np.pi / 2 * nodes), np.pi / 2 * np.cos(np.pi / 2 * nodes)
    normal = lambda z: np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    q, t2, t3 = q[..., None, None], t2[..., None, None], t3[..., None, None]
    reach2 = np.minimum(q / np.maximum(t2, 1e-12), 8.0)
    z2 = reach2 * sine[:, None]
    left = np.sqrt(np.maximum(q**2 - (t2 * z2) ** 2, 0))
    reach3 = np.minimum(left / np.maximum(t3, 1e-12), 8.0)
    z3 = reach3 * sine
    inner = normal(z3) * erf(np.sqrt(np.maximum(left**2 - (t3 * z3) ** 2, 0) / 2)) * reach3 * cosine
    return np.sum(
        normal(z2) * reach2 * cosine[:, None] * inner * weights * weights[:, None], axis=(-1, -2)
    )
