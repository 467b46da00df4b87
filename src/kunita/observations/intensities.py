"""Intensities of a moving image, observed where its voxels arrive in the fixed image.

A voxel x_k with the features M_c(x_k) says

    r_kc = M_c(x_k) − F_c(φ₁(x_k)) ≈ h_kcᵀ δφ₁(x_k) + noise,    h = ∇F_c(φ₁(x_k)),

with the weight w_kc = m_k ρ_kc/(s_kc² f): m is zero outside the masks and where φ₁(x_k) leaves the
fixed image, ρ are Huber's weights, s² is the local variance of the noise, and f the decimation
factor (`kunita.observations.image_noise`).
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, TypeVar

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float
from scipy import ndimage

from kunita import splines
from kunita.jaxrun.doors import Array, Scalar
from kunita.observations import image_noise
from kunita.observations.base import AbstractObservations, Information, Sites
from kunita.observations.decimation import correlated
from kunita.observations.image_noise import TINY, ImageNoise
from kunita.observations.lattice import CellInformation, Lattice, LatticeView
from kunita.observations.whitening import Whitening, whitening_of

R = TypeVar("R")

MARGIN = 1.0
"""How far inside the outermost voxels a place must be to be compared, in voxels. Closer than this a
spline would need a coefficient outside the image; what is sampled there is its value at this
distance."""

MOST_INFLATED = 4.0
"""Where gradients agree so badly that noise alone would have to make three quarters of them, it is
no noise."""


@dataclasses.dataclass(frozen=True, eq=False)
class FixedFeatures:
    """The features of the fixed image as splines, and where they count.

    Args:
        coefficients: (c, *grid) of the splines.
        to_index: (d + 1, d + 1) from the space of the flow to voxels.
        mask: (*grid) where the image counts; None for everywhere.
    """

    coefficients: np.ndarray
    to_index: np.ndarray
    mask: np.ndarray | None

    @classmethod
    def of(
        cls, values: Float[Array, "*grid c"], to_index: np.ndarray, mask: np.ndarray | None
    ) -> "FixedFeatures":
        """From the features at the voxels."""
        filtered = [_spline_coefficients(one) for one in np.moveaxis(values, -1, 0)]
        return cls(np.stack(filtered), to_index, mask)

    def sample(
        self, points: Float[Array, "k d"]
    ) -> tuple[Float[Array, "k c"], Float[Array, "k c d"], Float[Array, " k"]]:
        """Features, their gradients per mm, and whether they count."""
        d = points.shape[1]
        matrix = self.to_index[:d, :d]
        index = points @ matrix.T + self.to_index[:d, d]
        values, slopes = splines.sample(self.coefficients, index)
        gradients = slopes @ matrix.astype(np.float32)
        return values, gradients, self._counts(index)

    def _counts(self, index: Float[Array, "k d"]) -> Float[Array, " k"]:
        shape = np.array(self.coefficients.shape[1:])
        inside = (index > MARGIN) & (index < shape - 1 - MARGIN)
        counts = inside.all(axis=1)
        if self.mask is not None:
            nearest = np.clip(np.rint(index).astype(int), 0, shape - 1)
            counts &= self.mask[tuple(nearest.T)]
        return counts.astype(np.float32)


def _spline_coefficients(channel: Float[Array, "*grid"]) -> Float[Array, "*grid"]:
    return ndimage.spline_filter(channel, 3, np.float32, mode="mirror")


@dataclasses.dataclass(frozen=True, eq=False)
class Comparison:
    """Moving and fixed features where the voxels arrive.

    Slopes are gradients after the filter of the level, if it has one. They are found when they are
    asked for: a trial that is not accepted needs none.

    Args:
        residual: (k, c) r, after the filter.
        fixed_gradients: (k, c, d) ∇F at the arrival, per mm.
        moving_gradients: (k, c, d) ∇M carried there, per mm.
        counts: (k,) m.
        whitening: the filter; what does not count is zero before it.
    """

    residual: np.ndarray
    fixed_gradients: np.ndarray
    moving_gradients: np.ndarray
    counts: np.ndarray
    whitening: Whitening | None = None

    @functools.cached_property
    def fixed_slopes(self) -> Float[Array, "k c d"]:
        return self._filtered(self.fixed_gradients)

    @functools.cached_property
    def moving_slopes(self) -> Float[Array, "k c d"]:
        return self._filtered(self.moving_gradients)

    @functools.cached_property
    def mean_slopes(self) -> Float[Array, "k c d"]:
        return self._filtered((self.fixed_gradients + self.moving_gradients) / 2)

    def _filtered(self, gradients: Float[Array, "k c d"]) -> Float[Array, "k c d"]:
        if self.whitening is None:
            return gradients
        return self.whitening(gradients * self.counts[:, None, None])

    @functools.cached_property
    def informing(self) -> Float[Array, " k"]:
        """One where a voxel counts and has a gradient, else zero.

        The others say nothing of displacements. Where they are an empty background they have no
        noise, and must not take part in finding that of the rest.
        """
        return self.counts * image_noise.is_steep(self.mean_slopes, self.counts)

    def energy(self, noise: ImageNoise, counts: Float[Array, " k"] | None = None) -> float:
        """½Σ w r² over the voxels that count, or over others."""
        terms = noise.weights * self.residual**2
        by_voxel = terms.sum(axis=1) * (self.counts if counts is None else counts)
        return 0.5 * float(by_voxel.sum(dtype=np.float64))


@dataclasses.dataclass(frozen=True, eq=False)
class IntensityLevel:
    """An image pair on one level of smoothing.

    Args:
        view: the voxels that are compared, and the lattice that moves them.
        values: (k, c) features of the moving image.
        slopes: (k, c, d) their gradients in moving space, per mm.
        counts: (k,) one inside the moving mask, else zero.
        fixed: the features of the fixed image.
        smoothing: τ, mm.
        spacing: between the voxels that are compared along each axis, mm.
        voxel: the finest spacing of the coarser image, mm.
        whitening: of noise that is correlated by itself; None where it is not.
    """

    view: LatticeView
    values: np.ndarray
    slopes: np.ndarray
    counts: np.ndarray
    fixed: FixedFeatures
    smoothing: float
    spacing: np.ndarray
    voxel: float
    whitening: Whitening | None = None

    @functools.cached_property
    def contrast(self) -> Float[Array, " c"]:
        """The standard deviation of each channel over the moving image."""
        seen = self.values[self.counts > 0]
        return seen.std(axis=0, dtype=np.float64) if len(seen) else np.zeros(self.values.shape[1])

    def compare(self, arrived: Float[Array, "n d"], jacobians: Float[Array, "n d d"]) -> Comparison:
        """Compare where the nodes have arrived.

        Args:
            arrived: φ₁ of the nodes.
            jacobians: of the whole map, alignment and flow, at the nodes.
        """
        n, d = arrived.shape
        places = self.view.spread(arrived.T).T
        values, fixed_gradients, inside = self.fixed.sample(places)
        # Gradients are covectors: those of the moving image arrive as J⁻ᵀ∇M.
        transposed = np.linalg.inv(jacobians).swapaxes(1, 2)
        carriers = self.view.spread(transposed.reshape(n, d * d).T).reshape(d, d, -1)
        counts = self.counts * inside
        residual = self.values - values
        if self.whitening is not None:
            residual = self.whitening(residual * counts[:, None])
        return Comparison(
            residual=residual,
            fixed_gradients=fixed_gradients,
            moving_gradients=np.einsum("abk,kcb->kca", carriers, self.slopes),
            counts=counts,
            whitening=self.whitening,
        )

    def whitened(self, compared: Comparison, shortest: float) -> "IntensityLevel":
        """The level with the filter that its residuals ask for.

        Args:
            compared: its residuals.
            shortest: length scale of the displacements, mm.
        """
        found = whitening_of(
            compared.residual,
            compared.informing,
            self.view.shape,
            self.smoothing / self.spacing,
            shortest / self.spacing,
        )
        return dataclasses.replace(self, whitening=found)


class CellProduct(eqx.Module):
    """x ↦ Mx of what images say, with the sites first; NumPy's products, also inside JAX.

    Args:
        lattice: whose nodes are the sites.
        cells: W.
    """

    lattice: Lattice = eqx.field(static=True)
    cells: Float[Array, "d d c"]

    def __call__(self, x: Sites) -> Sites:
        return _on_host(self._product, _like(*x.shape), x, self.cells)

    def _product(self, x: Sites, cells: Float[Array, "d d c"]) -> Sites:
        n, d = x.shape[:2]
        points_last = x.reshape(n, d, -1).transpose(2, 1, 0)
        product = CellInformation(self.lattice, cells).product(points_last)
        return product.transpose(2, 1, 0).reshape(x.shape)


class Sums(NamedTuple):
    """What voxels add up to; see `kunita.observations.base.Information`.

    Args:
        force: b.
        cells: W.
        local: the diagonal blocks of M.
        energy: ½Σ w r².
        log_det: of the noise.
    """

    force: Float[Array, "n d"]
    cells: Float[Array, "d d c"]
    local: Float[Array, "n d d"]
    energy: Scalar
    log_det: Scalar


class Intensities(AbstractObservations):
    """An image pair with a frozen noise model, observed at the nodes of the lattice.

    There are very many rows, so only what they add up to is given,

        b = Hᵀr = Σ N_kᵀ h w r,    M = HᵀH = Σ N_kᵀ h w hᵀ N_k.

    The search over images asks for `force` and `condense`, in NumPy and in single precision. Any
    other search asks for `information`. It may do so inside a compiled program, which then calls
    back to the same sums. Each noise model is compiled anew, so that way is for small problems and
    for tests.

    *Departure*: force and information have the mean of both images' gradients (efficient
    second-order minimisation), where the gradient of the energy has that of the fixed image. Slices
    of brains then agree better (Dice .720 against .714 on six tuning pairs), and more fits settle.

    Args:
        level: the images at one smoothing. It is no JAX array: an image would be copied into each
            program.
        noise: its weights count for all arrivals.
    """

    level: IntensityLevel = eqx.field(static=True)
    noise: ImageNoise = eqx.field(static=True)
    sites: Float[Array, "n d"]

    has_rows: ClassVar[bool] = False

    def __init__(self, level: IntensityLevel, noise: ImageNoise) -> None:
        self.level = level
        self.noise = noise
        self.sites = level.view.lattice.nodes

    @property
    def noise_sd(self) -> Scalar:
        """(Σ w|∇M|²/nd)^(−½), mm: of a node along a typical direction, all informed alike."""
        squares = np.sum(self.level.slopes**2, axis=2)
        weights = self.noise.weights * self.level.counts[:, None]
        total = np.sum(weights * squares, dtype=np.float64)
        return np.sqrt(self.sites.size / np.maximum(total, TINY))

    def information(
        self, arrived: Float[Array, "n d"], jacobians: Float[Array, "n d d"]
    ) -> Information:
        sums = _on_host(self._sums, self._like_sums(), arrived, jacobians)
        return Information(
            force=sums.force,
            product=CellProduct(self.level.view.lattice, sums.cells),
            local=sums.local,
            energy=sums.energy,
            log_det=sums.log_det,
            num_rows=self.level.values.size,
        )

    def force(self, compared: Comparison) -> Float[Array, "d n"]:
        """b = Σ N_kᵀ h w r."""
        pulling = self.noise.weights * compared.residual
        pulls = np.einsum("kc,kcd->kd", pulling, compared.mean_slopes)
        counted = pulls * compared.counts[:, None]
        return self.level.view.gather(counted.T)

    def condense(
        self,
        compared: Comparison,
        first: Float[Array, "k c d"],
        second: Float[Array, "k c d"],
    ) -> CellInformation:
        """M = Σ N_kᵀ h w hᵀ N_k by cells, with hhᵀ the symmetric product of two gradients."""
        weights = self.noise.weights * compared.counts[:, None]
        blocks = np.einsum("kc,kca,kcb->kab", weights, first, second, optimize=True)
        view = self.level.view
        pooled = _pooled(view, np.moveaxis(blocks, 0, -1))
        return CellInformation(view.lattice, _positive(pooled))

    def inflation(self, compared: Comparison) -> float:
        """By how much noise in the gradients inflates the variance of b: Σ w h·h / Σ w ∇F·∇M.

        b = Σ h w r varies by Σ w h·h f with the mean gradients h, noise and all. What it tells of a
        displacement is Σ w ∇F·∇M, from which independent noise drops out.
        """
        weights = self.noise.weights * compared.informing[:, None]
        noisy = np.einsum("kc,kca,kca->", weights, compared.mean_slopes, compared.mean_slopes)
        shared = np.einsum("kc,kca,kca->", weights, compared.fixed_slopes, compared.moving_slopes)
        return float(np.clip(noisy / max(shared, image_noise.TINY), 1.0, MOST_INFLATED))

    def score_covariance(self, compared: Comparison) -> CellInformation:
        """V = Σ N_kᵀ sym[h̃_k (ρ ∗ h̃)_kᵀ] N_k/f² by cells: the covariance of b by the residuals.

        With h̃ = √(wf) h, and ρ the autocorrelation of √(wf) r. Their variance is taken as claimed:
        it is their correlation that is checked. For white residuals and f = 1 it is M of the mean
        gradients. Voxels whose residuals are correlated are taken for moved alike.
        """
        factor = self.noise.decimation
        roots = np.sqrt(factor * self.noise.weights * compared.informing[:, None])
        slopes = roots[:, :, None] * compared.mean_slopes
        view = self.level.view
        averaged = correlated(roots * compared.residual, slopes, view.shape, self.level.spacing)
        blocks = np.einsum("kca,kcb->abk", slopes, averaged) / factor**2
        symmetric = _symmetric(_pooled(view, blocks))
        return CellInformation(view.lattice, symmetric)

    def log_det(self, compared: Comparison) -> float:
        """log|R| such that −½log|R| − ½k log 2π is the noise term −½Σ m log(2πs²)/f.

        Here k is the number of all voxels and channels, whether they count or not. On a whitened
        level the determinant of the filter is left out, as no prior changes it.
        """
        logarithms = np.log(2 * np.pi * self.noise.variance.astype(np.float64))
        counted = np.sum(compared.counts[:, None] * logarithms)
        return float(counted / self.noise.decimation - logarithms.size * np.log(2 * np.pi))

    def _sums(self, arrived: Float[Array, "n d"], jacobians: Float[Array, "n d d"]) -> Sums:
        compared = self.level.compare(arrived, jacobians)
        slopes = compared.mean_slopes
        condensed = self.condense(compared, slopes, slopes)
        return Sums(
            force=self.force(compared).T,
            cells=condensed.cells,
            local=condensed.local(),
            energy=np.asarray(compared.energy(self.noise)),
            log_det=np.asarray(self.log_det(compared)),
        )

    def _like_sums(self) -> Sums:
        """Their shapes, for a program that calls back."""
        n, d = self.sites.shape
        num_cells = self.level.view.lattice.num_cells
        return Sums(
            force=_like(n, d),
            cells=_like(d, d, num_cells),
            local=_like(n, d, d),
            energy=_like(),
            log_det=_like(),
        )


def _pooled(view: LatticeView, blocks: Float[Array, "d d k"]) -> Float[Array, "d d c"]:
    """What the blocks of the voxels in each cell add up to."""
    d = len(blocks)
    return view.pool(blocks.reshape(d * d, -1)).reshape(d, d, -1)


def _symmetric(blocks: Float[Array, "d d c"]) -> Float[Array, "d d c"]:
    """The symmetric parts."""
    both = blocks + blocks.swapaxes(0, 1)
    return (both / 2).astype(np.float32)


def _on_host(function: Callable[..., R], like: R, *arguments: Array) -> R:
    """Call a function of NumPy arrays: at once, or back from a program that JAX compiles.

    A program calls back from another thread, whose precision is single. So only numbers of single
    precision pass, both ways.

    Args:
        function: to call.
        like: shapes of what it returns.
        arguments: its arrays; what is returned has the precision of the first.
    """

    def called(*arrays: Array) -> R:
        return _as_kind(np.float32, function(*map(np.asarray, arrays)))

    kind = arguments[0].dtype
    if all(isinstance(one, np.ndarray) for one in arguments):
        return _as_kind(kind, function(*arguments))
    passed = _as_kind(np.float32, arguments)
    return _as_kind(kind, jax.pure_callback(called, like, *passed, vmap_method="sequential"))


def _as_kind(kind: Any, tree: R) -> R:
    """Arrays of another precision."""
    return jax.tree.map(lambda one: one.astype(kind), tree)


def _like(*shape: int) -> Any:
    """The shape of an array in single precision."""
    return jax.ShapeDtypeStruct(shape, np.float32)


def _positive(blocks: Float[Array, "d d c"]) -> Float[Array, "d d c"]:
    """The symmetric parts without their negative eigenvalues."""
    first = np.moveaxis(blocks, -1, 0)
    symmetric = (first + first.swapaxes(1, 2)) / 2
    values, vectors = np.linalg.eigh(symmetric)
    kept = vectors * np.maximum(values, 0)[:, None, :]
    positive = kept @ vectors.swapaxes(1, 2)
    return np.ascontiguousarray(np.moveaxis(positive, 0, -1), np.float32)
