"""The prior of the velocity on a regular grid: a Kronecker product for each Gaussian scale.

At the points of the grid the velocity is the Gaussian process of the model. Between them it is the
cubic spline. So the covariance function is

    k(x, y) = β(x)ᵀ (Σ_s K_s) β(y),    K_s = ⊗_i F_i k_s,i F_iᵀ,

with β(x) the spline weights around x, k_s,i the Gram matrix of scale s along axis i, and F_i from
values to spline coefficients. It agrees with Σ_s a_s² exp(−|x − y|²/2σ_s²) at the grid. Between
its points the variance is too small by up to 1 % where these are 0.6 σ apart, as in planes, and by
up to 3 % where they are 0.8 σ apart, as in volumes. A product with K_s costs one small matrix
product per axis, and K_s has a root of the same form.
"""

import dataclasses
import functools

import numpy as np
from jaxtyping import Float

from kunita import splines
from kunita.jaxrun.doors import Array

RANK_TOLERANCE = 1e-9
"""Eigenvalues of a Gram matrix below this, relative to the largest, are left out of its root."""

Fields = Float[Array, "q ..."]
"""Spline coefficients of q scalar fields."""


@dataclasses.dataclass(frozen=True, eq=False)
class VelocityGrid:
    """A regular grid that carries the velocity, and the prior on it.

    Args:
        origin: of the grid's first point, mm.
        frame: its axes as unit vectors, in rows.
        spacing: between its points along each axis, mm.
        shape: how many points it has along each axis.
        amplitudes, length_scales: of the Gaussian scales, mm.
        is_quick: whether small matrices are multiplied in a loop of ours. It rounds otherwise than
            NumPy, so that a search may take other steps with it.
    """

    origin: np.ndarray
    frame: np.ndarray
    spacing: np.ndarray
    shape: tuple[int, ...]
    amplitudes: tuple[float, ...]
    length_scales: tuple[float, ...]
    is_quick: bool = False

    @property
    def dimension(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    @functools.cached_property
    def to_index(self) -> Float[Array, "d d"]:
        """From a displacement in mm to one in units of the grid."""
        return self.frame / self.spacing[:, None]

    @property
    def shortest(self) -> float:
        """The shortest length scale, mm."""
        return min(self.length_scales)

    @property
    def variance(self) -> float:
        """Of the velocity along an axis, mm²."""
        return sum(amplitude**2 for amplitude in self.amplitudes)

    def with_scales(self, chosen: tuple[int, ...]) -> "VelocityGrid":
        """The same grid with some of the prior's scales."""
        amplitudes = tuple(self.amplitudes[s] for s in chosen)
        length_scales = tuple(self.length_scales[s] for s in chosen)
        return dataclasses.replace(self, amplitudes=amplitudes, length_scales=length_scales)

    def index(self, points: Float[Array, "n d"]) -> Float[Array, "n d"]:
        """Points in units of the grid."""
        return (points - self.origin) @ self.to_index.T

    def stencils(self, points: Float[Array, "n d"]) -> splines.Stencils:
        """β at points."""
        return splines.Stencils.at(self.index(points), self.shape)

    def velocity(
        self, field: Fields, points: Float[Array, "n d"]
    ) -> tuple[Float[Array, "n q"], Float[Array, "n q d"]]:
        """A field and its derivative at points."""
        values, slopes = splines.sample(field, self.index(points))
        return values, slopes @ self.to_index

    def rates(
        self, field: Fields, points: Float[Array, "n d"], jacobians: Float[Array, "n d d"]
    ) -> tuple[Float[Array, "n d"], Float[Array, "n d d"]]:
        """v and Dv J at points."""
        if not self.is_quick:
            values, slopes = self.velocity(field, points)
            return values, slopes @ jacobians
        values, slopes = splines.sample(field, self.index(points))
        return values, slopes_along(slopes, self.to_index, jacobians)

    @functools.cached_property
    def _factors(self) -> list[list[np.ndarray]]:
        """F k Fᵀ of every scale and axis."""
        factors = []
        for amplitude, length in zip(self.amplitudes, self.length_scales, strict=True):
            by_axis = [self._root(amplitude, length, axis) for axis in range(self.dimension)]
            factors.append([(root @ root.T).astype(np.float32) for root in by_axis])
        return factors

    @functools.cached_property
    def _roots(self) -> list[list[np.ndarray]]:
        """R with RRᵀ = F k Fᵀ, of every scale and axis."""
        roots = []
        for amplitude, length in zip(self.amplitudes, self.length_scales, strict=True):
            by_axis = [self._root(amplitude, length, axis) for axis in range(self.dimension)]
            roots.append([root.astype(np.float32) for root in by_axis])
        return roots

    def _root(self, amplitude: float, length: float, axis: int) -> np.ndarray:
        count = self.shape[axis]
        places = self.spacing[axis] * np.arange(count)
        squared = np.subtract.outer(places, places) ** 2
        values, vectors = np.linalg.eigh(np.exp(-squared / (2 * length**2)))
        kept = values > RANK_TOLERANCE * values[-1]
        root = vectors[:, kept] * np.sqrt(values[kept])
        share = amplitude ** (1 / self.dimension)
        return share * np.linalg.solve(splines.gram(count), root)

    def smooth(self, duals: Fields, scale: int) -> Fields:
        """K_s G."""
        return splines.separable(self._factors[scale], duals)

    def smooth_all(self, duals: Fields) -> Fields:
        """Σ_s K_s G, the same G for every scale."""
        total = self.smooth(duals, 0)
        for scale in range(1, len(self.amplitudes)):
            total += self.smooth(duals, scale)
        return total

    def draw(self, generator: np.random.Generator, count: int) -> Fields:
        """So many independent scalar fields from the prior."""
        total = np.zeros((count, *self.shape), np.float32)
        for roots in self._roots:
            ranks = [root.shape[1] for root in roots]
            white = generator.standard_normal((count, *ranks), np.float32)
            total += splines.separable(roots, white)
        return total


def slopes_along(
    slopes: Float[Array, "n d d"], turn: Float[Array, "d d"], jacobians: Float[Array, "n d d"]
) -> Float[Array, "n d d"]:
    """S R J of every point: NumPy takes three times as long for such small matrices."""
    product = np.empty(jacobians.shape)
    _multiply(slopes, turn, np.ascontiguousarray(jacobians), product)
    return product


@splines.as_machine_code
def _multiply(slopes, turn, jacobians, product):  # type: ignore[no-untyped-def]
    """The loop of `slopes_along`."""
    d = turn.shape[0]
    for k in range(slopes.shape[0]):
        for a in range(d):
            for b in range(d):
                total = 0.0
                for e in range(d):
                    turned = 0.0
                    for f in range(d):
                        turned += turn[e, f] * jacobians[k, f, b]
                    total += slopes[k, a, e] * turned
                product[k, a, b] = total


def grid_around(
    points: Float[Array, "n d"],
    frame: Float[Array, "d d"],
    reach: float,
    spacing: float,
    amplitudes: tuple[float, ...],
    length_scales: tuple[float, ...],
) -> VelocityGrid:
    """A velocity grid that covers points and what lies around them.

    Args:
        points: mm.
        frame: the axes of the grid, in rows.
        reach: how far it goes beyond the points, mm.
        spacing: at most, mm.
        amplitudes, length_scales: of the prior's Gaussian scales, mm.
    """
    along_axes = points @ frame.T
    low = along_axes.min(0) - reach
    high = along_axes.max(0) + reach
    counts = np.ceil((high - low) / spacing).astype(int) + 1
    counts = np.maximum(counts, splines.WIDTH + 1)
    return VelocityGrid(
        origin=low @ frame,
        frame=frame,
        spacing=(high - low) / (counts - 1),
        shape=tuple(counts.tolist()),
        amplitudes=amplitudes,
        length_scales=length_scales,
    )
