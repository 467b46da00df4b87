"""Covariance functions of the velocity field: the prior of the model.

Every kernel is scalar and radial, k(x, y) = a² ρ(|x − y| / σ) with amplitude a (mm) and length
scale σ (mm); the covariance of the velocity is k(x, y)·I_d. A new kernel states its radial profile
ρ(u), the two derivative forms ρ'(u)/u and ρ''(u), and, if it is to serve the closure `gaussian`,
its scales.
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


class AbstractKernel(eqx.Module):
    """A radial covariance function, seen through the squared distance s = |x − y|² (mm²).

    In terms of s everything is smooth at s = 0, where automatic differentiation through |x − y| is
    not.
    """

    @abc.abstractmethod
    def value(self, s: Float[Array, "*p"]) -> Float[Array, "*p"]:
        """K as a function of s (mm²)."""

    @abc.abstractmethod
    def slope(self, s: Float[Array, "*p"]) -> Float[Array, "*p"]:
        """k'(r)/r at r = √s; the gradient of k in x is slope·(x − y)."""

    @abc.abstractmethod
    def bend(self, s: Float[Array, "*p"]) -> Float[Array, "*p"]:
        """(k''(r) − k'(r)/r)/r²; the Hessian of k in x is slope·I + bend·(x − y)(x − y)ᵀ."""

    @abc.abstractmethod
    def scale_mixture(self) -> tuple[Float[Array, " k"], Float[Array, " k"]]:
        """Weights w and variances v with k = Σ w exp(−s / 2v): a positive mixture of Gaussians."""

    def __call__(self, x: Vector, y: Vector) -> Scalar:
        """k(x, y)."""
        return self.value(jnp.sum((x - y) ** 2))

    @property
    def variance(self) -> Scalar:
        """k(x, x) = a², mm²."""
        return self.value(jnp.zeros(()))

    def gram(self, x: Float[Array, "n d"], y: Float[Array, "m d"]) -> Float[Array, "n m"]:
        """The matrix k(xᵢ, yⱼ)."""
        return self.value(squared_distances(x, y))

    def value_and_slope(
        self, s: Float[Array, "*p"]
    ) -> tuple[Float[Array, "*p"], Float[Array, "*p"]]:
        """Both at once, for kernels that save by it."""
        return self.value(s), self.slope(s)

    def sums(
        self,
        x: Float[Array, "m d"],
        y: Float[Array, "n d"],
        a: Float[Array, "n c"],
        b: Float[Array, "n e"],
    ) -> tuple[Float[Array, "m c"], Float[Array, "m e"]]:
        """Σⱼ k(xᵢ, yⱼ)aⱼ and Σⱼ slope(xᵢ, yⱼ)bⱼ: velocities and their gradients are made of these."""
        value, slope = self.pairs(x, y)
        return value @ a, slope @ b

    def pairs(
        self, x: Float[Array, "m d"], y: Float[Array, "n d"]
    ) -> tuple[Float[Array, "m n"], Float[Array, "m n"]]:
        """The matrices k(xᵢ, yⱼ) and slope(xᵢ, yⱼ)."""
        s = squared_distances(x, y)
        return self.value(s), self.slope(s)

    def hessian(self, difference: Vector) -> Float[Array, "d d"]:
        """Second derivatives of k in x, as a function of x − y."""
        s = jnp.sum(difference**2)
        return self.slope(s) * jnp.eye(difference.shape[0]) + self.bend(s) * jnp.outer(
            difference, difference
        )

    def __add__(self, other: Any) -> "Sum":
        check_kernel(other)
        return Sum((*_parts(self), *_parts(other)))

    def __radd__(self, other: Any) -> "AbstractKernel":
        """So that `sum` of some kernels, which starts at 0, is their sum."""
        if isinstance(other, int) and other == 0:
            return self
        check_kernel(other)
        return Sum((other, self))


def squared_distances(x: Float[Array, "n d"], y: Float[Array, "m d"]) -> Float[Array, "n m"]:
    """|xᵢ − yⱼ|² by differences, which keeps small distances exact far from the origin."""
    return sum(
        ((x[:, None, a] - y[None, :, a]) ** 2 for a in range(x.shape[1])), start=jnp.zeros(())
    )


def _parts(kernel: AbstractKernel) -> tuple[AbstractKernel, ...]:
    return kernel.kernels if isinstance(kernel, Sum) else (kernel,)


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
        return sum((kernel.variance for kernel in self.kernels), start=0.0)

    def value(self, s: Float[Array, "*p"]) -> Float[Array, "*p"]:
        return sum((kernel.value(s) for kernel in self.kernels), start=jnp.zeros(()))

    def slope(self, s: Float[Array, "*p"]) -> Float[Array, "*p"]:
        return sum((kernel.slope(s) for kernel in self.kernels), start=jnp.zeros(()))

    def bend(self, s: Float[Array, "*p"]) -> Float[Array, "*p"]:
        return sum((kernel.bend(s) for kernel in self.kernels), start=jnp.zeros(()))

    def sums(
        self,
        x: Float[Array, "m d"],
        y: Float[Array, "n d"],
        a: Float[Array, "n c"],
        b: Float[Array, "n e"],
    ) -> tuple[Float[Array, "m c"], Float[Array, "m e"]]:
        values, slopes = zip(*(kernel.sums(x, y, a, b) for kernel in self.kernels), strict=True)
        return sum(values[1:], start=values[0]), sum(slopes[1:], start=slopes[0])

    def scale_mixture(self) -> tuple[Float[Array, " k"], Float[Array, " k"]]:
        weights, variances = zip(*(kernel.scale_mixture() for kernel in self.kernels), strict=True)
        return jnp.concatenate(weights), jnp.concatenate(variances)


class AbstractProfile(AbstractKernel):
    """k = a² ρ(u), u = |x − y| / σ, from three forms of the dimensionless profile ρ.

    The forms may depend on static fields only (a Matérn order, say): derivatives in s, σ and a come
    from them.
    """

    length_scale: eqx.AbstractVar[Scalar]
    amplitude: eqx.AbstractVar[Scalar]

    @abc.abstractmethod
    def profile(self, u: Float[Array, "*p"]) -> Float[Array, "*p"]:
        """ρ(u), with ρ(0) = 1."""

    @abc.abstractmethod
    def profile_slope(self, u: Float[Array, "*p"]) -> Float[Array, "*p"]:
        """ρ'(u)/u, finite at 0."""

    @abc.abstractmethod
    def profile_curvature(self, u: Float[Array, "*p"]) -> Float[Array, "*p"]:
        """ρ''(u)."""

    def profile_scales(self) -> tuple[np.ndarray, np.ndarray]:
        """Weights w (of sum 1) and variances v with ρ(u) = Σ w exp(−u² / 2v), for kernels that are
        such mixtures.
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

    def value(self, s: Float[Array, "*p"]) -> Float[Array, "*p"]:
        return self.amplitude**2 * self._value(s / self.length_scale**2)

    def slope(self, s: Float[Array, "*p"]) -> Float[Array, "*p"]:
        return (self.amplitude / self.length_scale) ** 2 * self._slope(s / self.length_scale**2)

    def bend(self, s: Float[Array, "*p"]) -> Float[Array, "*p"]:
        return (self.amplitude / self.length_scale**2) ** 2 * self._bend(s / self.length_scale**2)

    def scale_mixture(self) -> tuple[Float[Array, " k"], Float[Array, " k"]]:
        weights, variances = self.profile_scales()
        return self.amplitude**2 * jnp.asarray(weights), self.length_scale**2 * jnp.asarray(
            variances
        )

    # ρ as a function of z = u², with its derivatives dρ/dz = ½ρ'/u and d(ρ'/u)/dz = ½(ρ'' −
    # ρ'/u)/u² supplied: differentiating through u = √z would give NaN at 0, and the usual
    # double-where a wrong Hessian.

    def _value(self, z: Float[Array, "*p"]) -> Float[Array, "*p"]:
        value = jax.custom_jvp(lambda z: self.profile(_safe_sqrt(z)))
        value.defjvp(lambda at, along: (value(at[0]), 0.5 * self._slope(at[0]) * along[0]))
        return value(z)

    def _slope(self, z: Float[Array, "*p"]) -> Float[Array, "*p"]:
        slope = jax.custom_jvp(lambda z: self.profile_slope(_safe_sqrt(z)))
        slope.defjvp(lambda at, along: (slope(at[0]), 0.5 * self._bend(at[0]) * along[0]))
        return slope(z)

    def _bend(self, z: Float[Array, "*p"]) -> Float[Array, "*p"]:
        """(ρ'' − ρ'/u)/u², with 0 at coincident points.

        There it is only ever multiplied by x − y = 0 (derivatives of k up to the third); a value
        would not help, since it is infinite for the Matérn 3/2.
        """
        apart = z > 0
        u = jnp.sqrt(jnp.where(apart, z, 1.0))
        return jnp.where(apart, (self.profile_curvature(u) - self.profile_slope(u)) / u**2, 0.0)


def _safe_sqrt(z: Float[Array, "*p"]) -> Float[Array, "*p"]:
    """√z whose derivative at 0 is 0: there it only ever meets coincident points, which do not move
    apart.
    """
    return jnp.where(z > 0, jnp.sqrt(jnp.where(z > 0, z, 1.0)), 0.0)


def check_kernel(kernel: object) -> None:
    """Refuse what is not a kernel, such as its name or its class."""
    if not isinstance(kernel, AbstractKernel):
        raise ArgumentError(
            f"kernel: expected a kernel such as Gaussian(length_scale, amplitude), found {kernel!r:.80}"
        )


def check_positive(name: str, number: Scalar) -> None:
    """Refuse a parameter that is not a positive finite number."""
    if isinstance(number, str) or np.ndim(number) != 0 or not (np.isfinite(number) and number > 0):
        raise ArgumentError(f"{name}: expected a positive finite number, found {number!r}")


class Gaussian(AbstractProfile):
    """ρ(u) = exp(−u²/2): the paper's kernel (`eq:cov-fun` of [wassermann:14], there with a = 1)."""

    length_scale: Scalar
    amplitude: Scalar

    def profile(self, u: Float[Array, "*p"]) -> Float[Array, "*p"]:
        return jnp.exp(-(u**2) / 2)

    def profile_slope(self, u: Float[Array, "*p"]) -> Float[Array, "*p"]:
        return -jnp.exp(-(u**2) / 2)

    def profile_curvature(self, u: Float[Array, "*p"]) -> Float[Array, "*p"]:
        return (u**2 - 1) * jnp.exp(-(u**2) / 2)

    def value_and_slope(
        self, s: Float[Array, "*p"]
    ) -> tuple[Float[Array, "*p"], Float[Array, "*p"]]:
        """With one exponential and no root, slope being −k/σ²."""
        value = self.amplitude**2 * jnp.exp(-0.5 / self.length_scale**2 * s)
        return value, -value / self.length_scale**2

    def sums(
        self,
        x: Float[Array, "m d"],
        y: Float[Array, "n d"],
        a: Float[Array, "n c"],
        b: Float[Array, "n e"],
    ) -> tuple[Float[Array, "m c"], Float[Array, "m e"]]:
        """The same in one matrix product, slope being −k/σ²."""
        total = self._gram(x, y) @ jnp.concatenate([a, b], axis=1)
        values, slopes = jnp.split(total, [a.shape[1]], axis=1)
        return values, -slopes / self.length_scale**2

    def pairs(
        self, x: Float[Array, "m d"], y: Float[Array, "n d"]
    ) -> tuple[Float[Array, "m n"], Float[Array, "m n"]]:
        gram = self._gram(x, y)
        return gram, -gram / self.length_scale**2

    def _gram(self, x: Float[Array, "m d"], y: Float[Array, "n d"]) -> Float[Array, "m n"]:
        """`gram` with one exponential per pair and a matrix product for its exponent x·y − ½|x|² −
        ½|y|².

        That is exact to the rounding of the squares: points should be centred.
        """
        x, y = x / self.length_scale, y / self.length_scale
        half = lambda points: 0.5 * jnp.sum(points**2, axis=1, keepdims=True)
        left = jnp.concatenate([x, -half(x), jnp.ones_like(half(x))], axis=1)
        right = jnp.concatenate([y, jnp.ones_like(half(y)), -half(y)], axis=1)
        return self.amplitude**2 * jnp.exp(left @ right.T)

    def profile_scales(self) -> tuple[np.ndarray, np.ndarray]:
        return np.ones(1), np.ones(1)


class Matern32(AbstractProfile):
    """ρ(u) = (1 + c)e⁻ᶜ, c = √3 u: Green's function of (Id − α∆)^s, ν = 3/2, the roughest that
    still flows.
    """

    length_scale: Scalar
    amplitude: Scalar

    def profile(self, u: Float[Array, "*p"]) -> Float[Array, "*p"]:
        c = jnp.sqrt(3.0) * u
        return (1 + c) * jnp.exp(-c)

    def profile_slope(self, u: Float[Array, "*p"]) -> Float[Array, "*p"]:
        return -3 * jnp.exp(-jnp.sqrt(3.0) * u)

    def profile_curvature(self, u: Float[Array, "*p"]) -> Float[Array, "*p"]:
        c = jnp.sqrt(3.0) * u
        return -3 * (1 - c) * jnp.exp(-c)

    def profile_scales(self) -> tuple[np.ndarray, np.ndarray]:
        return gamma_scales(1.5)


class Matern52(AbstractProfile):
    """ρ(u) = (1 + c + c²/3)e⁻ᶜ, c = √5 u: ν = 5/2."""

    length_scale: Scalar
    amplitude: Scalar

    def profile(self, u: Float[Array, "*p"]) -> Float[Array, "*p"]:
        c = jnp.sqrt(5.0) * u
        return (1 + c + c**2 / 3) * jnp.exp(-c)

    def profile_slope(self, u: Float[Array, "*p"]) -> Float[Array, "*p"]:
        c = jnp.sqrt(5.0) * u
        return -5 / 3 * (1 + c) * jnp.exp(-c)

    def profile_curvature(self, u: Float[Array, "*p"]) -> Float[Array, "*p"]:
        c = jnp.sqrt(5.0) * u
        return -5 / 3 * (1 + c - c**2) * jnp.exp(-c)

    def profile_scales(self) -> tuple[np.ndarray, np.ndarray]:
        return gamma_scales(2.5)


class Matern72(AbstractProfile):
    """ρ(u) = (1 + c + 2c²/5 + c³/15)e⁻ᶜ, c = √7 u: ν = 7/2."""

    length_scale: Scalar
    amplitude: Scalar

    def profile(self, u: Float[Array, "*p"]) -> Float[Array, "*p"]:
        c = jnp.sqrt(7.0) * u
        return (1 + c + 2 * c**2 / 5 + c**3 / 15) * jnp.exp(-c)

    def profile_slope(self, u: Float[Array, "*p"]) -> Float[Array, "*p"]:
        c = jnp.sqrt(7.0) * u
        return -7 / 15 * (3 + 3 * c + c**2) * jnp.exp(-c)

    def profile_curvature(self, u: Float[Array, "*p"]) -> Float[Array, "*p"]:
        c = jnp.sqrt(7.0) * u
        return -7 / 15 * (3 + 3 * c - c**3) * jnp.exp(-c)

    def profile_scales(self) -> tuple[np.ndarray, np.ndarray]:
        return gamma_scales(3.5)


class RationalQuadratic(AbstractProfile):
    """ρ(u) = (1 + u²/2α)^(−α): a Gaussian kernel whose length scale is itself uncertain."""

    length_scale: Scalar
    amplitude: Scalar
    alpha: float = eqx.field(static=True, default=1.0)

    def __check_init__(self) -> None:
        check_positive("alpha", self.alpha)

    def profile(self, u: Float[Array, "*p"]) -> Float[Array, "*p"]:
        return self._base(u) ** -self.alpha

    def profile_slope(self, u: Float[Array, "*p"]) -> Float[Array, "*p"]:
        return -(self._base(u) ** (-self.alpha - 1))

    def profile_curvature(self, u: Float[Array, "*p"]) -> Float[Array, "*p"]:
        alpha, base = self.alpha, self._base(u)
        return (alpha + 1) / alpha * u**2 * base ** (-alpha - 2) - base ** (-alpha - 1)

    def profile_scales(self) -> tuple[np.ndarray, np.ndarray]:
        weights, variances = gamma_scales(self.alpha)
        return weights, 1 / variances

    def _base(self, u: Float[Array, "*p"]) -> Float[Array, "*p"]:
        return 1 + u**2 / (2 * self.alpha)


def gamma_scales(shape: float) -> tuple[np.ndarray, np.ndarray]:
    """Quadrature of E[exp(−u²/2τ)], τ ~ Gamma(shape, rate=shape): the Matérn profile of order ν =
    shape.

    Trapezoidal rule in log τ, where the density is analytic and falls off at least exponentially:
    error below 1e-8 for every u, with about a hundred nodes. With 1/τ for τ it is the rational
    quadratic.
    """
    width = 1 / np.sqrt(shape)  # of log τ, where the shape is large
    low, high = -max(32 / shape, 8.5 * width) - 1, np.log1p(36 / shape + 8.5 * width)
    step = 0.3 * min(1.0, width)
    log_tau = np.arange(low, high + step, step)
    log_density = shape * (np.log(shape) + log_tau) - shape * np.exp(log_tau) - gammaln(shape)
    weights = step * np.exp(log_density)
    return weights / weights.sum(), np.exp(log_tau)


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
    """The length scales of a kernel and of the parts it is a sum of, mm."""
    if isinstance(kernel, AbstractProfile):
        return (float(kernel.length_scale),)
    return tuple(scale for part in getattr(kernel, "kernels", ()) for scale in length_scales(part))


def steepness(kernel: AbstractKernel) -> float:
    """Amplitude over length scale, the largest of its parts: how strongly the kernel's flows bend
    space.
    """
    if isinstance(kernel, AbstractProfile):
        return float(kernel.amplitude) / float(kernel.length_scale)
    return max((steepness(part) for part in getattr(kernel, "kernels", ())), default=0.0)


def describe_kernel(kernel: AbstractKernel) -> str:
    """A kernel in words: a family with its parameters, or a sum."""
    if isinstance(kernel, AbstractProfile):
        sizes = f"length scale {float(kernel.length_scale):.3g} mm, amplitude {float(kernel.amplitude):.3g} mm"
        return f"{type(kernel).__name__}, {sizes}"
    return " + ".join(describe_kernel(part) for part in getattr(kernel, "kernels", ())) or repr(
        kernel
    )
