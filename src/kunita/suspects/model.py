"""The small-deformation model of landmark pairs, on a grid of hyper-parameters.

Displacements are y ~ N(Hβ, τ²M(θ)), where y = Rᵀ(f − f̄) − (x − x̄) are the
displacements turned back to the moving side, M = (a/s)²K_σ + D/s² with a Gaussian
kernel, θ = (σ, a/s) lies on a grid, and H is the basis of the alignment. With M and
H, P = M⁻¹ − M⁻¹H(HᵀM⁻¹H)⁻¹HᵀM⁻¹, and the density of what no alignment can change
depends on y by yᵀPy alone. P does not depend on the pairing.
"""

import dataclasses
import functools
from collections.abc import Iterable

import numpy as np
from scipy.special import fdtrc, gammaincc, gammaln

from kunita import numerics
from kunita.inference.leave_out import miss_and_chi2
from kunita.inference.path_space import covariance_at_rest
from kunita.suspects.grid import HyperparameterGrid, Noise, full_grid
from kunita.suspects.point_sets import PointSets, squared_distances

EXACT = 1e-3
"""Nobody places landmarks more precisely than this fraction of their extent:
identical sets have no outliers."""

MOST_NUMBERS = 2_000_000
"""The most entries that the matrices of a grid have together. With many landmarks
the grid is cut down to its likeliest points."""

SAMPLE = 60
"""Landmarks by which these points are found."""

DETERMINED = 1e-9
"""A landmark is not judged if the others determine it less than this, relative to
the best determined."""

NEGLIGIBLE = 1e-9
"""Hyper-parameters of a lower weight than this are left out of an average of tail probabilities."""


# ------------------------------------------------------------------------------------ the model


@dataclasses.dataclass(frozen=True, eq=False)
class LeftOut:
    """Each landmark against the others: the probability of one so far off, and its distance, mm."""

    chances: np.ndarray
    misses_mm: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class GridModel:
    """The small-deformation model of n landmarks at the g points of a grid.

    P = M⁻¹ − VVᵀ is never formed. V has a column for everything that is given away:
    the parameters of the alignment, and the coordinates of landmarks that were left
    out. Nor is M⁻¹ = G⊗I formed, where the noise is the same along every axis.

    Args:
        inverse: (g, n, e, n, e) M⁻¹, or with e = 1 the G of M⁻¹ = G⊗I.
        given_away: (g, n, d, k) V.
        base: (g,) −½log|M| − ½log|HᵀM⁻¹H|.
        shares: (g,) prior probabilities of the points of the grid.
        freedom: the number of coordinates less that of the parameters of the
            alignment.
        floor: s₀², mm²: the prior of τ² is inverse gamma of one degree of freedom
            around it; None if τ = 1 is known.
        kept: (n,) landmarks that were not left out.
    """

    inverse: np.ndarray
    given_away: np.ndarray
    base: np.ndarray
    shares: np.ndarray
    freedom: int
    floor: float | None
    kept: np.ndarray

    @property
    def dimension(self) -> int:
        return self.given_away.shape[2]

    @property
    def axes(self) -> np.ndarray:
        """(d, d) the factor that makes an (e, e) block of `inverse` one of M⁻¹: I where e = 1."""
        d = self.dimension
        if self.inverse.shape[2] == 1:
            return np.eye(d)
        return np.ones((d, d))

    @property
    def log_prior(self) -> np.ndarray:
        """(g,) log p(θ)."""
        return np.log(self.shares)

    def column(self, i: int) -> np.ndarray:
        """(g, n, d, d) P between all landmarks and one."""
        v = self.given_away
        own = v[:, None, i]
        given = v @ own.swapaxes(2, 3)
        inverse = self.inverse[:, :, :, i, :]
        return self.axes * inverse - given

    @functools.cached_property
    def blocks(self) -> np.ndarray:
        """(g, n, d, d) P of each landmark with itself."""
        v = self.given_away
        given = v @ v.swapaxes(2, 3)
        own = np.einsum("giaib->giab", self.inverse)
        return self.axes * own - given

    @functools.cached_property
    def judged(self) -> np.ndarray:
        """(n,) landmarks that the others determine in every direction.

        The alignment may need a landmark for itself.
        """
        blocks = self.blocks[0]
        least = np.linalg.eigvalsh(blocks)[:, 0]
        threshold = DETERMINED * np.abs(blocks).max()
        return self.kept & (least > threshold)

    # ------------------------------------------------------------------ densities

    def duals(self, y: np.ndarray) -> np.ndarray:
        """(g, n, d) λ = Py."""
        flat = y.ravel()
        duals = _times(self.inverse, flat) - self._given_away_of(flat)
        return duals.reshape(-1, *y.shape)

    def _given_away_of(self, flat: np.ndarray) -> np.ndarray:
        """(g, n·d) VVᵀy of (n·d,) y."""
        g, n, d, k = self.given_away.shape
        v = self.given_away.reshape(g, n * d, k)
        along = flat @ v
        product = v @ along[..., None]
        return product[..., 0]

    def misfit(self, y: np.ndarray) -> np.ndarray:
        """(g,) yᵀPy."""
        return _products(self.duals(y), y)

    def log_density(self, misfit: np.ndarray) -> np.ndarray:
        """log p(y | θ) from yᵀPy, with τ integrated out; (g, …) for (g, …)."""
        further_axes = [1] * (misfit.ndim - 1)
        base = self.base.reshape(-1, *further_axes)
        return base + _log_radial(misfit, self.freedom, self.floor)

    def log_evidence(self, y: np.ndarray) -> float:
        """log p(y), with θ averaged over."""
        misfit = self.misfit(y)
        log_joint = self.log_density(misfit) + self.log_prior
        return float(np.logaddexp.reduce(log_joint))

    def swapped_log_evidence(self, y: np.ndarray, places: np.ndarray) -> np.ndarray:
        """(n, n) log p(y) after each exchange of two fixed landmarks.

        The exchange of i and j changes yᵢ by e = fⱼ − fᵢ and yⱼ by −e. The misfit
        changes by 2e·(λᵢ − λⱼ) + eᵀ(Pᵢᵢ + Pⱼⱼ − Pᵢⱼ − Pⱼᵢ)e, λ = Py. Half of that
        is summed, and then the half that has i and j exchanged is added.
        """
        duals = self.duals(y)
        misfit = 2 * _along_exchanges(duals, places)
        self._add_inverse_halves(misfit, places)
        self._subtract_given_away_halves(misfit, places)
        before = _products(duals, y)
        misfit += misfit.swapaxes(1, 2) + before[:, None, None]
        log_joint = self.log_density(misfit) + self.log_prior[:, None, None]
        return np.logaddexp.reduce(log_joint, axis=0)

    def _add_inverse_halves(self, misfit: np.ndarray, places: np.ndarray) -> None:
        """Add half of eᵀ(Aᵢᵢ + Aⱼⱼ − Aᵢⱼ − Aⱼᵢ)e to (g, n, n) misfits, A = M⁻¹, axes by axes."""
        # These arrays are the largest of all. Terms without a name of their own are computed in
        # place by NumPy, which saves a sixth of the time of the whole search.
        change = places[None] - places[:, None]
        # Axes a < b are met once, but count for (a, b) and (b, a).
        pairs_of_axes = np.argwhere(np.triu(self.axes)).tolist()
        for a, b in pairs_of_axes:
            times = 1 if a == b else 2
            products = times * change[..., a] * change[..., b]
            block = self._inverse_between(a, b)
            own = 0.5 * np.einsum("gii->gi", block)
            misfit += products * (own[:, :, None] + own[:, None] - block)

    def _inverse_between(self, a: int, b: int) -> np.ndarray:
        """(g, n, n) M⁻¹ between two axes; all are alike where e = 1."""
        e = self.inverse.shape[2]
        return self.inverse[:, :, a % e, :, b % e]

    def _subtract_given_away_halves(self, misfit: np.ndarray, places: np.ndarray) -> None:
        """Subtract half the square of (Vᵢ − Vⱼ)ᵀe from (g, n, n) misfits, column by column."""
        for column in np.moveaxis(self.given_away, -1, 0):
            along = _along_exchanges(column, places)
            misfit -= 0.5 * (along + along.swapaxes(1, 2)) ** 2

    # --------------------------------------------------------------- leaving out

    def leave_one_out(self, y: np.ndarray) -> LeftOut:
        """Judge each landmark by the others, under hyper-parameters that the others make likely.

        Given θ it misses by Pᵢᵢ⁻¹λᵢ, and λᵢᵀPᵢᵢ⁻¹λᵢ, relative to the misfit of the
        others, is Fisher's F (χ² where τ is known). The tail probabilities are
        averaged with the weights p(θ | the others), which are proportional to p(y |
        θ) without the landmark.
        """
        duals = self.duals(y)
        cofactors, determinants = numerics.cofactors_small(self._invertible_blocks)
        covariances = cofactors / determinants[..., None, None]
        misses, own = miss_and_chi2(covariances, duals)
        total = _products(duals, y)
        others = np.maximum(total[:, None] - own, 0)
        weights = self._weights_by_others(others, determinants)

        tails = self._tails(own, others, weights > NEGLIGIBLE)
        chances = np.sum(weights * tails, axis=0)
        average_miss = np.einsum("gi,gia->ia", weights, misses)
        return LeftOut(
            chances=np.where(self.judged, chances, 1.0),
            misses_mm=np.linalg.norm(average_miss, axis=1),
        )

    @property
    def _invertible_blocks(self) -> np.ndarray:
        """(g, n, d, d) Pᵢᵢ; for a landmark that is not judged any block will do."""
        identity = np.eye(self.dimension)
        return np.where(self.judged[:, None, None], self.blocks, identity)

    def _weights_by_others(self, misfits: np.ndarray, determinants: np.ndarray) -> np.ndarray:
        """(g, n) p(θ | all landmarks but one), from the misfits of the others and |Pᵢᵢ|."""
        with_all = self.base + self.log_prior
        log_det = np.log(np.abs(determinants))
        log_weights = with_all[:, None] - 0.5 * log_det
        log_weights += _log_radial(misfits, self.freedom - self.dimension, self.floor)
        log_total = np.logaddexp.reduce(log_weights, axis=0)
        return np.exp(log_weights - log_total)

    def _tails(self, own: np.ndarray, others: np.ndarray, count: np.ndarray) -> np.ndarray:
        """(g, n) probabilities that a landmark is farther off given θ; 1 where they do not count.

        Args:
            own: (g, n) squared distances λᵢᵀPᵢᵢ⁻¹λᵢ.
            others: (g, n) misfits of the others.
            count: (g, n) where they count.
        """
        d = self.dimension
        tails = np.ones_like(own)
        if self.floor is None:
            tails[count] = gammaincc(d / 2, own[count] / 2)  # χ²
            return tails
        # One degree of freedom more is the prior's.
        freedom = self.freedom - d + 1
        ratios = own / d * freedom / (others + self.floor)
        tails[count] = fdtrc(d, freedom, ratios[count])
        return tails

    def without(self, i: int) -> "GridModel":
        """The model of the other landmarks.

        It has P − P·ᵢPᵢᵢ⁻¹Pᵢ· in place of P: with Pᵢᵢ⁻¹ = RRᵀ, V gets the columns
        P·ᵢR.
        """
        column = self.column(i)
        root, log_det = inverse_root(column[:, i])
        others = np.arange(len(self.kept)) != i
        return dataclasses.replace(
            self,
            given_away=np.concatenate([self.given_away, column @ root[:, None]], axis=-1),
            base=self.base - 0.5 * log_det,
            freedom=self.freedom - self.dimension,
            kept=self.kept & others,
        )

    def without_all(self, rows: Iterable[int]) -> "GridModel | None":
        """The same for several landmarks; None where the others do not determine one of them."""
        model = self
        for i in rows:
            if not model.judged[i]:
                return None
            model = model.without(i)
        return model


# --------------------------------------------------------------------------- building the model


def build_model(
    sets: PointSets, noise: Noise, most_numbers: int = MOST_NUMBERS
) -> GridModel | None:
    """The model on the whole grid, or on its likeliest points if it would have too many numbers.

    None where the landmarks are too few for some of them to say anything of
    another.
    """
    n, d = sets.moving.shape
    if _freedom(sets) < 2 * d:
        return None
    grid = full_grid(sets, noise)
    most = max(1, most_numbers // (n * d) ** 2)
    if len(grid) > most:
        grid = _likeliest(grid, most, sets, noise)
    return build_model_at(sets, noise, grid)


def build_model_at(sets: PointSets, noise: Noise, grid: HyperparameterGrid) -> GridModel:
    """The model at the points of a grid."""
    rotation = sets.rotation(sets.given_order)
    turned_noise = rotation.T @ noise.covariances @ rotation / noise.level
    inverse, log_det = _invert(sets.moving, turned_noise, grid)
    given_away, log_inner = _give_away_alignment(inverse, sets)

    # With a known noise M is in mm². Otherwise τ² carries the unit, and M has none.
    unit = noise.level if noise.known else 1.0
    floor = None if noise.known else (EXACT * sets.rms_diameter) ** 2
    freedom = _freedom(sets)
    return GridModel(
        inverse=inverse / unit,
        given_away=given_away / np.sqrt(unit),
        base=-0.5 * (log_det + log_inner + freedom * np.log(unit)),
        shares=grid.shares / grid.shares.sum(),
        freedom=freedom,
        floor=floor,
        kept=np.ones(len(sets), dtype=bool),
    )


def _give_away_alignment(inverse: np.ndarray, sets: PointSets) -> tuple[np.ndarray, np.ndarray]:
    """(g, n, d, b) V = M⁻¹HR with RRᵀ = (HᵀM⁻¹H)⁻¹, and (g,) log|HᵀM⁻¹H|."""
    basis = sets.basis
    solved = _times(inverse, basis)
    root, log_inner = inverse_root(basis.T @ solved)
    given_away = solved @ root
    return given_away.reshape(len(inverse), *sets.moving.shape, basis.shape[1]), log_inner


def sample_rows(n: int) -> np.ndarray:
    """Some of n landmarks, in their order. They are drawn at random: a list may have a rhythm."""
    shuffled = np.random.default_rng(0).permutation(n)
    return np.sort(shuffled[:SAMPLE])


def _freedom(sets: PointSets) -> int:
    """Coordinates less parameters of the alignment."""
    coordinates, parameters = sets.basis.shape
    return coordinates - parameters


def _likeliest(
    grid: HyperparameterGrid, most: int, sets: PointSets, noise: Noise
) -> HyperparameterGrid:
    """The points of a grid that a sample of the landmarks makes likeliest."""
    few = sample_rows(len(sets))
    model = build_model_at(sets.take(few), noise.take(few), grid)
    # Turned back as all of them suggest, and not the sample alone.
    y = sets.displacements(sets.given_order)
    misfit = model.misfit(y[few])
    log_joint = model.log_density(misfit) + np.log(grid.shares)
    ascending = np.argsort(log_joint)
    return grid.take(ascending[-most:])


# -------------------------------------------------------------------------------- linear algebra


@dataclasses.dataclass(frozen=True, eq=False)
class _WhitenedKernel:
    """K relative to the noise, for all amplitudes of a length scale.

    With the noise D⁻¹ = RRᵀ and RᵀKR = QΛQᵀ, M = a²K + D has M⁻¹ = RQ(1 +
    a²Λ)⁻¹QᵀRᵀ.

    Args:
        half: (N, N) RQ.
        eigenvalues: (N,) Λ.
        log_noise: log|D|.
    """

    half: np.ndarray
    eigenvalues: np.ndarray
    log_noise: float

    @classmethod
    def of(cls, kernel: np.ndarray, noise: np.ndarray) -> "_WhitenedKernel":
        """From an (n, n) kernel, the same along every axis, and (n, e, e) noise."""
        n, e = noise.shape[:2]
        size = n * e
        root, log_noise = inverse_root(noise)

        # R is block diagonal, as the operators of whitened rows are: RᵀKR = H(K ⊗ I)Hᵀ.
        operator = root.swapaxes(1, 2).reshape(size, e)
        site = np.repeat(np.arange(n), e)
        whitened = covariance_at_rest(kernel, site, operator)
        eigenvalues, vectors = np.linalg.eigh(whitened)

        half = root @ vectors.reshape(n, e, size)
        return cls(
            half=half.reshape(size, size),
            eigenvalues=np.maximum(eigenvalues, 0),
            log_noise=log_noise.sum(),
        )

    def inverses(self, amplitudes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(k, N, N) M⁻¹ and (k,) log|M| for k amplitudes."""
        sizes = 1 + amplitudes[:, None] ** 2 * self.eigenvalues
        divided = self.half / sizes[:, None]
        inverses = divided @ self.half.T
        log_sizes = np.sum(np.log(sizes), axis=1)
        return inverses, self.log_noise + log_sizes


def _invert(
    points: np.ndarray, noise: np.ndarray, grid: HyperparameterGrid
) -> tuple[np.ndarray, np.ndarray]:
    """(g, n, e, n, e) M⁻¹ and (g,) log|M| of M = a²K⊗I + D + w²I.

    Where the noise is the same along every axis, e = 1 and M⁻¹ is that block times
    I.
    """
    n, d = points.shape
    e = 1 if numerics.are_isotropic(noise) else d
    noise = noise[:, :e, :e]
    squared = squared_distances(points, points)

    inverse = np.empty((len(grid), n * e, n * e))
    log_det = np.empty(len(grid))
    for scale, white, rows in grid.scales_and_whites():
        kernel = np.exp(-0.5 / scale**2 * squared)
        with_white = noise + white**2 * np.eye(e)
        whitened = _WhitenedKernel.of(kernel, with_white)
        inverse[rows], log_block = whitened.inverses(grid.amplitudes[rows])
        # An isotropic block stands for d axes.
        log_det[rows] = d / e * log_block
    return inverse.reshape(-1, n, e, n, e), log_det


def inverse_root(matrices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """R with RRᵀ = A⁻¹, and log|A|, of positive definite matrices A.

    Eigenvalues that are not positive, to rounding, count as if they were as small
    as rounding is.
    """
    values, vectors = np.linalg.eigh(matrices)
    if values.shape[-1]:  # an alignment of kind "none" has 0×0 matrices
        least = np.finfo(float).eps * values[..., -1:]
        values = np.maximum(values, least)
    lengths = np.sqrt(values)
    root = vectors / lengths[..., None, :]
    log_det = np.sum(np.log(values), axis=-1)
    return root, log_det


def _times(inverse: np.ndarray, right: np.ndarray) -> np.ndarray:
    """(g, n·d, …) M⁻¹B of (n·d, …) B: a product with G for each axis, where M⁻¹ = G⊗I."""
    count, n, e = inverse.shape[:3]
    size = n * e
    matrices = inverse.reshape(count, size, size)
    columns = right.reshape(size, right.size // size)
    product = matrices @ columns
    return product.reshape(count, *right.shape)


def _products(duals: np.ndarray, y: np.ndarray) -> np.ndarray:
    """(g,) λ·y of (g, n, d) λ."""
    return np.einsum("gia,ia->g", duals, y)


def _along_exchanges(vectors: np.ndarray, places: np.ndarray) -> np.ndarray:
    """(g, n, n) vᵢ·(fⱼ − fᵢ) of (g, n, d) v."""
    ahead = vectors @ places.T
    own = np.einsum("gii->gi", ahead)
    return ahead - own[:, :, None]


def _log_radial(misfit: np.ndarray, freedom: int, floor: float | None) -> np.ndarray:
    """What the log density of so many coordinates owes to their misfit.

    It is normal where τ is known; with τ integrated out it is Student's, of one
    degree of freedom.
    """
    if floor is None:
        return -0.5 * misfit - 0.5 * freedom * np.log(2 * np.pi)
    front = _log_student_front(freedom, floor)
    return front - 0.5 * (freedom + 1) * np.log(floor + np.maximum(misfit, 0))


def _log_student_front(freedom: int, floor: float) -> float:
    """log of the factor of Student's density that does not depend on the misfit."""
    return (
        gammaln((freedom + 1) / 2)
        - gammaln(0.5)
        - 0.5 * freedom * np.log(np.pi)
        + 0.5 * np.log(floor)
    )
