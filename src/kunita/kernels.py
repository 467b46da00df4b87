"""Covariance functions of the velocity field: the prior of the model.

Every kernel is scalar and radial, k(x, y) = a² ρ(|x − y| / σ), with amplitude a (mm) and
length scale σ (mm). The covariance of the velocity is k(x, y)·I_d. A new kernel states its
radial profile ρ(u), the two derivative forms ρ'(u)/u and ρ''(u), and its scales, if it is to
serve the closure `gaussian`.
"""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from scipy.special import gammaln

from kunita.errors import ArgumentError
from kunita.jaxrun.doors import Array, Scalar

Vector = Float[Array, " d"]

Numbers = Float[Array, "*p"]
"""One number for each pair of points, in any layout."""

PairMatrix = Float[Array, "m n"]
"""One number for each pair of a point x and a point y."""


class AbstractKernel(eqx.Module):
    """A radial covariance function, seen through the squared distance s = |x − y|² (mm²).

    As a function of s a kernel is smooth at s = 0. As a function of |x − y| it is not, and
    automatic differentiation would fail there.
    """

    @abc.abstractmethod
    def value(self, s: Numbers) -> Numbers:
        """k as a function of s (mm²)."""

    @abc.abstractmethod
    def slope(self, s: Numbers) -> Numbers:
        """k'(r)/r at r = √s; the gradient of k in x is slope·(x − y)."""

    @abc.abstractmethod
    def bend(self, s: Numbers) -> Numbers:
        """(k''(r) − k'(r)/r)/r²; the Hessian of k in x is slope·I + bend·(x − y)(x − y)ᵀ."""

    @abc.abstractmethod
    def scale_mixture(self) -> tuple[Float[Array, " k"], Float[Array, " k"]]:
        """Weights w and variances v with k = Σ w exp(−s / 2v): a positive mixture of Gaussians."""

    def __call__(self, x: Vector, y: Vector) -> Scalar:
        """k(x, y)."""
        difference = x - y
        return self.value(jnp.sum(difference**2))

    @property
    def variance(self) -> Scalar:
        """k(x, x) = a², mm²."""
        return self.value(jnp.zeros(()))

    def gram(self, x: Float[Array, "n d"], y: Float[Array, "m d"]) -> Float[Array, "n m"]:
        """The matrix k(xᵢ, yⱼ)."""
        return self.value(squared_distances(x, y))

    def value_and_slope(self, s: Numbers) -> tuple[Numbers, Numbers]:
        """Both at once, for kernels whose value and slope share their costly part."""
        value = self.value(s)
        slope = self.slope(s)
        return value, slope

    def sums(
        self,
        x: Float[Array, "m d"],
        y: Float[Array, "n d"],
        a: Float[Array, "n c"],
        b: Float[Array, "n e"],
    ) -> tuple[Float[Array, "m c"], Float[Array, "m e"]]:
        """Σⱼ k(xᵢ, yⱼ)aⱼ and Σⱼ slope(xᵢ, yⱼ)bⱼ.

        Velocities and their gradients are made of these sums.
        """
        values, slopes = self.pairs(x, y)
        return values @ a, slopes @ b

    def pairs(
        self, x: Float[Array, "m d"], y: Float[Array, "n d"]
    ) -> tuple[PairMatrix, PairMatrix]:
        """The matrices k(xᵢ, yⱼ) and slope(xᵢ, yⱼ)."""
        s = squared_distances(x, y)
        values = self.value(s)
        slopes = self.slope(s)
        return values, slopes

    def hessian(self, difference: Vector) -> Float[Array, "d d"]:
        """Second derivatives of k in x, as a function of x − y."""
        s = jnp.sum(difference**2)
        identity = jnp.eye(difference.shape[0])
        outer = jnp.outer(difference, difference)
        isotropic = self.slope(s) * identity
        along = self.bend(s) * outer
        return isotropic + along

    def __add__(self, other: Any) -> "Sum":
        check_kernel(other)
        return Sum((*_parts(self), *_parts(other)))

    def __radd__(self, other: Any) -> "AbstractKernel":
        """Let the built-in `sum`, which starts at 0, add kernels."""
        if isinstance(other, int) and other == 0:
            return self
        check_kernel(other)
        return Sum((other, self))


def squared_distances(x: Float[Array, "n d"], y: Float[Array, "m d"]) -> Float[Array, "n m"]:
    """|xᵢ − yⱼ|² by differences, which keeps small distances exact far from the origin."""
    total = jnp.zeros(())
    # One axis at a time: an (n, m, d) array of differences would be d times as large.
    for axis in range(x.shape[1]):
        difference = x[:, None, axis] - y[None, :, axis]
        total = total + difference**2
    return total


def _parts(kernel: AbstractKernel) -> tuple[AbstractKernel, ...]:
    """The kernels that a sum adds, or the kernel alone."""
    if isinstance(kernel, Sum):
        return kernel.kernels
    return (kernel,)


class Sum(AbstractKernel):
    """k = Σ kᵢ: independent velocities at several scales."""

    kernels: tuple[AbstractKernel, ...]

    def __check_init__(self) -> None:
        if not self.kernels:
            raise ArgumentError("kernel: a sum needs at least one kernel")
        for kernel in self.kernels:
            check_kernel(kernel)

    @property
    def variance(self) -> Scalar:
        variances = [kernel.variance for kernel in self.kernels]
        return sum(variances, start=0.0)

    def value(self, s: Numbers) -> Numbers:
        total = jnp.zeros(())
        for kernel in self.kernels:
            total = total + kernel.value(s)
        return total

    def slope(self, s: Numbers) -> Numbers:
        total = jnp.zeros(())
        for kernel in self.kernels:
            total = total + kernel.slope(s)
        return total

    def bend(self, s: Numbers) -> Numbers:
        total = jnp.zeros(())
        for kernel in self.kernels:
            total = total + kernel.bend(s)
        return total

    def sums(
        self,
        x: Float[Array, "m d"],
        y: Float[Array, "n d"],
        a: Float[Array, "n c"],
        b: Float[Array, "n e"],
    ) -> tuple[Float[Array, "m c"], Float[Array, "m e"]]:
        """The same, kernel by kernel, so that each may take its own fast form."""
        first, *others = self.kernels
        values, slopes = first.sums(x, y, a, b)
        for kernel in others:
            more_values, more_slopes = kernel.sums(x, y, a, b)
            values = values + more_values
            slopes = slopes + more_slopes
        return values, slopes

    def scale_mixture(self) -> tuple[Float[Array, " k"], Float[Array, " k"]]:
        weights = []
        variances = []
        for kernel in self.kernels:
            w, v = kernel.scale_mixture()
            weights.append(w)
            variances.append(v)
        return jnp.concatenate(weights), jnp.concatenate(variances)


class AbstractProfile(AbstractKernel):
    """k = a² ρ(u), u = |x − y| / σ, from three forms of the dimensionless profile ρ.

    The forms may depend on static fields only (a Matérn order, say). Derivatives in s, σ and a
    are made from them.
    """

    length_scale: eqx.AbstractVar[Scalar]
    amplitude: eqx.AbstractVar[Scalar]

    @abc.abstractmethod
    def profile(self, u: Numbers) -> Numbers:
        """ρ(u), with ρ(0) = 1."""

    @abc.abstractmethod
    def profile_slope(self, u: Numbers) -> Numbers:
        """ρ'(u)/u, finite at 0."""

    @abc.abstractmethod
    def profile_curvature(self, u: Numbers) -> Numbers:
        """ρ''(u)."""

    def profile_scales(self) -> tuple[np.ndarray, np.ndarray]:
        """Weights w (of sum 1) and variances v with ρ(u) = Σ w exp(−u² / 2v).

        Only kernels that are such mixtures state them.
        """
        raise ArgumentError(
            f"closure 'gaussian': {type(self).__name__} does not state its scales (profile_scales)"
        )

    def __check_init__(self) -> None:
        for name in ("length_scale", "amplitude"):
            number = getattr(self, name)
            if not isinstance(number, jax.core.Tracer):
                check_positive(name, number)

    @property
    def variance(self) -> Scalar:
        return self.amplitude**2

    def value(self, s: Numbers) -> Numbers:
        z = self._scaled(s)
        return self.amplitude**2 * self._value(z)

    def slope(self, s: Numbers) -> Numbers:
        z = self._scaled(s)
        factor = (self.amplitude / self.length_scale) ** 2
        return factor * self._slope(z)

    def bend(self, s: Numbers) -> Numbers:
        z = self._scaled(s)
        factor = (self.amplitude / self.length_scale**2) ** 2
        return factor * self._bend(z)

    def scale_mixture(self) -> tuple[Float[Array, " k"], Float[Array, " k"]]:
        weights, variances = self.profile_scales()
        w = self.amplitude**2 * jnp.asarray(weights)
        v = self.length_scale**2 * jnp.asarray(variances)
        return w, v

    def _scaled(self, s: Numbers) -> Numbers:
        """z = u² = s/σ²."""
        return s / self.length_scale**2

    # ρ and ρ'/u as functions of z = u². Their derivatives are supplied: dρ/dz = ½ρ'/u and
    # d(ρ'/u)/dz = ½(ρ'' − ρ'/u)/u². Differentiation through u = √z would give NaN at 0, and
    # the usual double `where` a wrong Hessian.

    def _value(self, z: Numbers) -> Numbers:
        """ρ(√z)."""

        @jax.custom_jvp
        def value(z: Numbers) -> Numbers:
            return self.profile(_safe_sqrt(z))

        @value.defjvp
        def derivative(at: tuple[Numbers], along: tuple[Numbers]) -> tuple[Numbers, Numbers]:
            (z,) = at
            (dz,) = along
            return value(z), 0.5 * self._slope(z) * dz

        return value(z)

    def _slope(self, z: Numbers) -> Numbers:
        """ρ'(u)/u at u = √z."""

        @jax.custom_jvp
        def slope(z: Numbers) -> Numbers:
            return self.profile_slope(_safe_sqrt(z))

        @slope.defjvp
        def derivative(at: tuple[Numbers], along: tuple[Numbers]) -> tuple[Numbers, Numbers]:
            (z,) = at
            (dz,) = along
            return slope(z), 0.5 * self._bend(z) * dz

        return slope(z)

    def _bend(self, z: Numbers) -> Numbers:
        """(ρ'' − ρ'/u)/u² at u = √z, with 0 at coincident points.

        There it is only ever multiplied by x − y = 0 (derivatives of k up to the third). The
        true value would not help, since it is infinite for the Matérn 3/2.
        """
        apart = z > 0
        u = jnp.sqrt(jnp.where(apart, z, 1.0))
        difference = self.profile_curvature(u) - self.profile_slope(u)
        bend = difference / u**2
        return jnp.where(apart, bend, 0.0)


def _safe_sqrt(z: Numbers) -> Numbers:
    """√z whose derivative at 0 is 0.

    Only coincident points meet that derivative, and they do not move apart.
    """
    apart = z > 0
    root = jnp.sqrt(jnp.where(apart, z, 1.0))
    return jnp.where(apart, root, 0.0)


def check_kernel(kernel: object) -> None:
    """Refuse what is not a kernel, such as its name or its class."""
    if not isinstance(kernel, AbstractKernel):
        raise ArgumentError(
            "kernel: expected a kernel such as Gaussian(length_scale, amplitude), "
            f"found {kernel!r:.80}"
        )


def check_positive(name: str, number: Scalar) -> None:
    """Refuse a parameter that is not a positive finite number."""
    is_number = not isinstance(number, str) and np.ndim(number) == 0
    is_positive = is_number and np.isfinite(number) and number > 0
    if not is_positive:
        raise ArgumentError(f"{name}: expected a positive finite number, found {number!r}")


class Gaussian(AbstractProfile):
    """ρ(u) = exp(−u²/2): the paper's kernel (`eq:cov-fun` of [wassermann:14], there with a = 1)."""

    length_scale: Scalar
    amplitude: Scalar

    def profile(self, u: Numbers) -> Numbers:
        return jnp.exp(-(u**2) / 2)

    def profile_slope(self, u: Numbers) -> Numbers:
        return -self.profile(u)

    def profile_curvature(self, u: Numbers) -> Numbers:
        polynomial = u**2 - 1
        return polynomial * self.profile(u)

    def value_and_slope(self, s: Numbers) -> tuple[Numbers, Numbers]:
        """The same with one exponential and no root, since the slope is −k/σ²."""
        exponent = -0.5 / self.length_scale**2 * s
        value = self.amplitude**2 * jnp.exp(exponent)
        slope = -value / self.length_scale**2
        return value, slope

    def sums(
        self,
        x: Float[Array, "m d"],
        y: Float[Array, "n d"],
        a: Float[Array, "n c"],
        b: Float[Array, "n e"],
    ) -> tuple[Float[Array, "m c"], Float[Array, "m e"]]:
        """The same in one matrix product, since the slope is −k/σ²."""
        both = jnp.concatenate([a, b], axis=1)
        total = self._gram(x, y) @ both
        width = a.shape[1]
        values, scaled_slopes = jnp.split(total, [width], axis=1)
        slopes = -scaled_slopes / self.length_scale**2
        return values, slopes

    def pairs(
        self, x: Float[Array, "m d"], y: Float[Array, "n d"]
    ) -> tuple[PairMatrix, PairMatrix]:
        """The same from one Gram matrix, since the slope is −k/σ²."""
        values = self._gram(x, y)
        slopes = -values / self.length_scale**2
        return values, slopes

    def _gram(self, x: Float[Array, "m d"], y: Float[Array, "n d"]) -> PairMatrix:
        """`gram` with one exponential per pair and a matrix product for its exponent.

        With x and y divided by σ, the exponent −½|x − y|² is x·y − ½|x|² − ½|y|². That is
        exact to the rounding of the squares: points should be centred.
        """
        x = x / self.length_scale
        y = y / self.length_scale
        half_x = 0.5 * jnp.sum(x**2, axis=1, keepdims=True)
        half_y = 0.5 * jnp.sum(y**2, axis=1, keepdims=True)
        # The two further columns bring the halved squares into the same product.
        ones_x = jnp.ones_like(half_x)
        ones_y = jnp.ones_like(half_y)
        left = jnp.concatenate([x, -half_x, ones_x], axis=1)
        right = jnp.concatenate([y, ones_y, -half_y], axis=1)
        exponents = left @ right.T
        return self.amplitude**2 * jnp.exp(exponents)

    def profile_scales(self) -> tuple[np.ndarray, np.ndarray]:
        return np.ones(1), np.ones(1)


class Matern32(AbstractProfile):
    """ρ(u) = (1 + c)e⁻ᶜ, c = √3 u: the Matérn profile of order ν = 3/2.

    It is Green's function of (Id − α∆)^s, and the roughest kernel whose velocities still
    have a flow.
    """

    length_scale: Scalar
    amplitude: Scalar

    def profile(self, u: Numbers) -> Numbers:
        c = jnp.sqrt(3.0) * u
        polynomial = 1 + c
        decay = jnp.exp(-c)
        return polynomial * decay

    def profile_slope(self, u: Numbers) -> Numbers:
        c = jnp.sqrt(3.0) * u
        decay = jnp.exp(-c)
        return -3 * decay

    def profile_curvature(self, u: Numbers) -> Numbers:
        c = jnp.sqrt(3.0) * u
        polynomial = 1 - c
        decay = jnp.exp(-c)
        return -3 * polynomial * decay

    def profile_scales(self) -> tuple[np.ndarray, np.ndarray]:
        return gamma_scales(1.5)


class Matern52(AbstractProfile):
    """ρ(u) = (1 + c + c²/3)e⁻ᶜ, c = √5 u: the Matérn profile of order ν = 5/2."""

    length_scale: Scalar
    amplitude: Scalar

    def profile(self, u: Numbers) -> Numbers:
        c = jnp.sqrt(5.0) * u
        polynomial = 1 + c + c**2 / 3
        decay = jnp.exp(-c)
        return polynomial * decay

    def profile_slope(self, u: Numbers) -> Numbers:
        c = jnp.sqrt(5.0) * u
        polynomial = 1 + c
        decay = jnp.exp(-c)
        return -5 / 3 * polynomial * decay

    def profile_curvature(self, u: Numbers) -> Numbers:
        c = jnp.sqrt(5.0) * u
        polynomial = 1 + c - c**2
        decay = jnp.exp(-c)
        return -5 / 3 * polynomial * decay

    def profile_scales(self) -> tuple[np.ndarray, np.ndarray]:
        return gamma_scales(2.5)


class Matern72(AbstractProfile):
    """ρ(u) = (1 + c + 2c²/5 + c³/15)e⁻ᶜ, c = √7 u: the Matérn profile of order ν = 7/2."""

    length_scale: Scalar
    amplitude: Scalar

    def profile(self, u: Numbers) -> Numbers:
        c = jnp.sqrt(7.0) * u
        polynomial = 1 + c + 2 * c**2 / 5 + c**3 / 15
        decay = jnp.exp(-c)
        return polynomial * decay

    def profile_slope(self, u: Numbers) -> Numbers:
        c = jnp.sqrt(7.0) * u
        polynomial = 3 + 3 * c + c**2
        decay = jnp.exp(-c)
        return -7 / 15 * polynomial * decay

    def profile_curvature(self, u: Numbers) -> Numbers:
        c = jnp.sqrt(7.0) * u
        polynomial = 3 + 3 * c - c**3
        decay = jnp.exp(-c)
        return -7 / 15 * polynomial * decay

    def profile_scales(self) -> tuple[np.ndarray, np.ndarray]:
        return gamma_scales(3.5)


class RationalQuadratic(AbstractProfile):
    """ρ(u) = (1 + u²/2α)^(−α): a Gaussian kernel whose length scale is itself uncertain."""

    length_scale: Scalar
    amplitude: Scalar
    alpha: float = eqx.field(static=True, default=1.0)

    def __check_init__(self) -> None:
        check_positive("alpha", self.alpha)

    def profile(self, u: Numbers) -> Numbers:
        return self._base(u) ** -self.alpha

    def profile_slope(self, u: Numbers) -> Numbers:
        power = -self.alpha - 1
        return -(self._base(u) ** power)

    def profile_curvature(self, u: Numbers) -> Numbers:
        alpha = self.alpha
        base = self._base(u)
        growing = (alpha + 1) / alpha * u**2 * base ** (-alpha - 2)
        falling = base ** (-alpha - 1)
        return growing - falling

    def profile_scales(self) -> tuple[np.ndarray, np.ndarray]:
        weights, variances = gamma_scales(self.alpha)
        return weights, 1 / variances

    def _base(self, u: Numbers) -> Numbers:
        """1 + u²/2α."""
        return 1 + u**2 / (2 * self.alpha)


def gamma_scales(shape: float) -> tuple[np.ndarray, np.ndarray]:
    """Weights and nodes of a quadrature of E[exp(−u²/2τ)], τ ~ Gamma(shape, rate=shape).

    The expectation is the Matérn profile of order ν = shape. With 1/τ in place of τ it is the
    rational quadratic of α = shape.

    The rule is trapezoidal in log τ, where the density is analytic and falls off at least
    exponentially: the error is below 1e-8 for every u, with about a hundred nodes.
    """
    width = 1 / np.sqrt(shape)  # the standard deviation of log τ where the shape is large
    # Beyond these ends the density is below rounding: it falls off as exp(shape·log τ) to the
    # left and as exp(−shape·τ) to the right; for large shapes both are those of a Gaussian.
    low = -max(32 / shape, 8.5 * width) - 1
    high = np.log1p(36 / shape + 8.5 * width)
    step = 0.3 * min(1.0, width)
    log_tau = np.arange(low, high + step, step)
    tau = np.exp(log_tau)
    log_density = shape * (np.log(shape) + log_tau) - shape * tau - gammaln(shape)
    weights = step * np.exp(log_density)
    return weights / weights.sum(), tau


FAMILIES: dict[str, type[AbstractProfile]] = {
    "gaussian": Gaussian,
    "matern32": Matern32,
    "matern52": Matern52,
    "matern72": Matern72,
    "rational": RationalQuadratic,
}
"""The kernels by the names that the command line and the files use."""

BEST = "best"
"""In place of a family's name: the one with the largest evidence."""


def length_scales(kernel: AbstractKernel) -> tuple[float, ...]:
    """The length scales of a kernel and of the parts that it is a sum of, mm."""
    if isinstance(kernel, AbstractProfile):
        return (float(kernel.length_scale),)
    scales: list[float] = []
    for part in getattr(kernel, "kernels", ()):
        scales.extend(length_scales(part))
    return tuple(scales)


def steepness(kernel: AbstractKernel) -> float:
    """Amplitude over length scale: how strongly the kernel's flows bend space.

    Of a sum it is the largest of its parts.
    """
    if isinstance(kernel, AbstractProfile):
        return float(kernel.amplitude) / float(kernel.length_scale)
    parts = getattr(kernel, "kernels", ())
    return max((steepness(part) for part in parts), default=0.0)


def describe_kernel(kernel: AbstractKernel) -> str:
    """A kernel in words: a family with its parameters, or a sum."""
    if isinstance(kernel, AbstractProfile):
        family = type(kernel).__name__
        length_scale = f"length scale {float(kernel.length_scale):.3g} mm"
        amplitude = f"amplitude {float(kernel.amplitude):.3g} mm"
        return f"{family}, {length_scale}, {amplitude}"
    parts = [describe_kernel(part) for part in getattr(kernel, "kernels", ())]
    return " + ".join(parts) or repr(kernel)
