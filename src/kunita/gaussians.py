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
        covariance = np.asarray(self.covariance)
        return np.linalg.norm(covariance, axis=(1, 2))

    @property
    def std(self) -> np.ndarray:
        """Standard deviation along a typical axis, √(tr Λ / d), mm."""
        covariance = np.asarray(self.covariance)
        dimension = covariance.shape[1]
        trace = np.trace(covariance, axis1=1, axis2=2)
        variance = np.maximum(trace, 0) / dimension
        return np.sqrt(variance)

    def radius(self, level: float = 0.95) -> np.ndarray:
        """The distance from the mean within which the true point is, with this probability, mm."""
        covariance = np.asarray(self.covariance)
        return ball_radius(covariance, level)


def ball_radius(covariances: np.ndarray, level: float) -> np.ndarray:
    """r with P(|e| ≤ r) = level for e ~ N(0, Λ).

    It is the radius of the ball around the mean, not the longest half-axis of an ellipsoid.
    """
    variances = np.linalg.eigvalsh(covariances)
    return ball_radius_of_variances(variances, level)


def ball_radius_of_variances(variances: np.ndarray, level: float) -> np.ndarray:
    """`ball_radius` from the variances along the principal axes, (…, d) in increasing order.

    Divided by the largest standard deviation, the radius depends only on the ratios of the
    others to it. It is tabulated once for each level, to a relative error of about 1e-4.
    """
    if not isinstance(level, int | float | np.number) or not 0 < level < 1:
        raise ArgumentError(f"level: expected a probability between 0 and 1, found {level!r}")
    largest, middle, smallest = _standard_deviations(variances)
    divisor = np.where(largest > 0, largest, 1.0)
    table = _radius_table(float(level))
    quantile = table.ev(middle / divisor, smallest / divisor)
    return largest * quantile


def _standard_deviations(variances: np.ndarray) -> list[np.ndarray]:
    """Three arrays (…), the largest first; those of missing axes are 0."""
    positive = np.maximum(variances, 0)
    sds = np.sqrt(positive)
    dimension = sds.shape[-1]
    axes = [sds[..., axis] for axis in range(dimension)]
    while len(axes) < 3:
        missing = np.zeros_like(axes[-1])
        axes.insert(0, missing)
    return axes[::-1]


def ball_radius_of_invariants(
    trace: np.ndarray, square: np.ndarray, determinant: np.ndarray | float, level: float
) -> np.ndarray:
    """`ball_radius` from tr Λ, ‖Λ‖² and, in 3-D, det Λ, without principal axes.

    It is made for millions of voxels. r is a smooth function of Λ that no rotation changes
    and that grows as the square root of its scale. So r/√tr Λ is a function of the two
    numbers a = (3‖Λ‖²/tr²Λ − 1)/2 and b = 27 det Λ/tr³Λ, which both go from 0 to 1. It is
    computed as a polynomial, to a relative error of 1e-4.
    """
    size = np.where(trace > 0, trace, 1)
    a = 1.5 * square / size**2 - 0.5
    b = 27 * determinant / size**3
    total = np.zeros_like(size)
    inner = np.empty_like(size)
    # Horner's rule in a, and inside it in b; in place, which is faster.
    for row in radius_polynomial(float(level))[::-1]:
        inner.fill(row[-1])
        for coefficient in row[-2::-1]:
            inner *= b
            inner += coefficient
        total *= a
        total += inner
    return total * np.sqrt(np.maximum(trace, 0))


# ----------------------------------------------------------------------------------- the polynomial

RADIUS_DEGREE = 5
"""Of the polynomial in a and b, together."""


@functools.lru_cache(maxsize=16)
def radius_polynomial(level: float) -> tuple[tuple[float, ...], ...]:
    """Coefficients of r/√tr Λ: for each power of a those of the powers of b.

    They are fitted over all shapes of an ellipsoid, by least squares of the relative error.
    """
    variances = _ellipsoids()
    radius = ball_radius_of_variances(variances, level)
    unit = variances / variances.sum(axis=1, keepdims=True)
    # The largest variance was 1 before the division by the trace.
    root_trace = np.sqrt(1 / unit.max(axis=1))
    scaled = radius / root_trace
    design = _monomials(unit) / scaled[:, None]
    ones = np.ones(len(design))
    coefficients, *_ = np.linalg.lstsq(design, ones, rcond=None)
    return _by_power_of_a(coefficients.tolist())


def _by_power_of_a(coefficients: list[float]) -> tuple[tuple[float, ...], ...]:
    """The coefficients of `_monomials` in rows, one for each power of a."""
    rows: list[tuple[float, ...]] = []
    remaining = coefficients
    for i in range(RADIUS_DEGREE + 1):
        length = RADIUS_DEGREE + 1 - i
        row = remaining[:length]
        rows.append(tuple(row))
        remaining = remaining[length:]
    return tuple(rows)


def _monomials(variances: np.ndarray) -> np.ndarray:
    """(n, k) aⁱbʲ, i + j ≤ `RADIUS_DEGREE`, of ellipsoids with the trace 1."""
    square = np.sum(variances**2, axis=1)
    determinant = np.prod(variances, axis=1)
    a = 1.5 * square - 0.5
    b = 27 * determinant
    columns = []
    for i in range(RADIUS_DEGREE + 1):
        for j in range(RADIUS_DEGREE + 1 - i):
            columns.append(a**i * b**j)
    return np.stack(columns, axis=-1)


def _ellipsoids() -> np.ndarray:
    """(n, 3) variances of ellipsoids of every shape, in increasing order, the largest being 1."""
    ratio = np.linspace(0, 1, 41)
    middle, smallest = np.meshgrid(ratio, ratio, indexing="ij")
    largest = np.ones_like(middle)
    sds = np.stack([smallest, middle, largest], axis=-1)
    ordered = smallest <= middle
    return sds[ordered] ** 2


# ---------------------------------------------------------------------------------------- the table


@functools.lru_cache(maxsize=16)
def _radius_table(level: float) -> RectBivariateSpline:
    """Quantiles of √(z₁² + t₂²z₂² + t₃²z₃²), z standard normal, over t₂, t₃ in [0, 1]."""
    ratio = np.linspace(0, 1, 15)
    t2, t3 = np.meshgrid(ratio, ratio, indexing="ij")
    low = np.zeros_like(t2)
    high = np.full_like(t2, 40.0)
    for _ in range(45):  # bisection, to 40/2⁴⁵
        middle = 0.5 * (low + high)
        below = _ball_probability(middle, t2, t3) < level
        low = np.where(below, middle, low)
        high = np.where(below, high, middle)
    return RectBivariateSpline(ratio, ratio, high)


def _ball_probability(q: np.ndarray, t2: np.ndarray, t3: np.ndarray) -> np.ndarray:
    """P(z₁² + t₂²z₂² + t₃²z₃² ≤ q²), z standard normal.

    z₁ is integrated in closed form, z₂ and z₃ by Gauss–Legendre quadrature in the angle
    whose sine is z divided by its largest value. The last two axes are the nodes of z₂, z₃.
    """
    sine, cosine, weights = _angles()
    q = q[..., None, None]
    t2 = t2[..., None, None]
    t3 = t3[..., None, None]

    reach2 = _reach(q, t2)
    z2 = reach2 * sine[:, None]
    left = np.sqrt(_squared_rest(q, t2 * z2))
    outer = _normal_density(z2) * reach2 * cosine[:, None]

    reach3 = _reach(left, t3)
    z3 = reach3 * sine
    below = erf(np.sqrt(_squared_rest(left, t3 * z3) / 2))
    inner = _normal_density(z3) * below * reach3 * cosine

    integrand = outer * inner * weights * weights[:, None]
    return np.sum(integrand, axis=(-1, -2))


def _angles() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of 32 nodes between −π/2 and π/2: sines, cosines times π/2, and weights on [−1, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(32)
    angles = np.pi / 2 * nodes
    sine = np.sin(angles)
    cosine = np.pi / 2 * np.cos(angles)
    return sine, cosine, weights


def _reach(q: np.ndarray, t: np.ndarray) -> np.ndarray:
    """The largest |z| with t|z| ≤ q, at most 8: beyond that z has a probability of 1e-15."""
    largest = q / np.maximum(t, 1e-12)
    return np.minimum(largest, 8.0)


def _squared_rest(q: np.ndarray, part: np.ndarray) -> np.ndarray:
    """q² − part², and 0 where rounding makes it negative."""
    rest = q**2 - part**2
    return np.maximum(rest, 0)


def _normal_density(z: np.ndarray) -> np.ndarray:
    exponent = -(z**2) / 2
    unscaled = np.exp(exponent)
    return unscaled / np.sqrt(2 * np.pi)
