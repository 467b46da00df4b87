"""Which landmarks cannot be right: gross errors, exchanged labels, lists in another order, mirrored
sets.

A gross error spoils the parameters that are to convict it: with it among the data the noise grows,
or a short length scale with a large amplitude explains it away, and leave-one-out finds nothing. So
the parameters are not chosen here but averaged over, and each landmark is judged under those that
*the others* think likely. That takes a closed form, which the small-deformation model has: y ~
N(Hβ, τ²M(θ)), y = Rᵀ(f − f̄) − (x − x̄) the displacements turned back to the moving side, M =
(a/s)²K_σ + D/s², θ = (σ, a/s) on a grid, H the alignment's basis, and, with M and H, P = M⁻¹ −
M⁻¹H(HᵀM⁻¹H)⁻¹HᵀM⁻¹. Only y depends on who belongs to whom: P is found once, in factors, and every
pairing and every choice of landmarks to leave out costs products with them. Nor does anything
depend on the fit of a flow, which landmarks that contradict each other can make slow or keep from
converging. To tell gross errors, first order is enough.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist
from scipy.special import fdtrc, gammaincc, gammaln

from kunita import numerics
from kunita.inference import trend

SUSPICION = 0.01
"""A landmark is suspect if one so far off is expected in fewer than this fraction of registrations
of this size."""

LENGTHS = 6
"""Length scales of the grid, from half the landmarks' spacing to twice their extent."""

RATIOS = np.array([0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 64.0])
"""Amplitudes of the grid, as multiples of the noise; zero is the alignment alone."""

KNOWN_SIZES = 4
"""As many amplitudes where the noise is known, and one white standard deviation less."""

EXACT = 1e-3
"""Nobody places landmarks more precisely than this fraction of their extent: identical sets have no
outliers."""

MOST_OUTLIERS = 0.3
"""At most this share of the landmarks can be told to be outliers of the rest."""

HIDDEN = 3
"""An outlier is looked for behind so many others that do not stand out by themselves."""

MOST_NUMBERS = 2_000_000
"""The grid's matrices have so many entries at most; of many landmarks there are fewer on it, the
likeliest."""

SAMPLE = 60
"""Landmarks that choose those."""

MOST_TOGETHER, GROUP = 200, 100
"""More landmarks than that are judged in groups of neighbours of this size: those far away tell
little of one."""

NEAR_SHIFTS = 3
"""How far a list longer than that may have slipped."""

DETERMINED = 1e-9
"""A landmark of which the others tell less than this, relative to what is told of any, is not
judged."""

NEGLIGIBLE = 1e-9
"""Parameters that the others think less likely than that say nothing against a landmark."""

ROUNDS = 12


@dataclasses.dataclass(frozen=True, eq=False)
class Suspicion:
    """What is wrong with a set of landmark pairs, as far as they can tell; nothing is changed or
    dropped for it.

    Args:
        order: (n,) the fixed row that seems to belong to each moving row; 0…n−1 if the pairs are
            right.
        outliers: rows too far from where the others say, worst first; judged in that order of the
            fixed rows.
        misses_mm: how far each outlier is from where the landmarks that are none say.
        mirrored: whether a mirror image of the fixed landmarks fits the moving ones much better.
    """

    order: np.ndarray
    outliers: tuple[int, ...]
    misses_mm: tuple[float, ...]
    mirrored: bool

    @property
    def suspect(self) -> np.ndarray:
        """(n,) which landmarks are in doubt, for whatever reason."""
        moved = self.order != np.arange(len(self.order))
        return moved | np.isin(np.arange(len(moved)), self.outliers) | self.mirrored

    @property
    def permuted(self) -> str:
        """How the list as a whole is out of order, in words; empty if it is not."""
        n, moved = len(self.order), int(np.sum(self.order != np.arange(len(self.order))))
        other = f"in another order ({moved} of {n} change)" if moved > max(n / 2, 2) else ""
        return _listed_otherwise(self.order) or other

    @property
    def swaps(self) -> tuple[tuple[int, int], ...]:
        """Pairs of rows whose fixed landmarks are exchanged, in a list that is otherwise in order."""
        if self.permuted:
            return ()
        return tuple((i, int(j)) for i, j in enumerate(self.order) if i < j and self.order[j] == i)

    def reasons(self, labels: Sequence[str]) -> tuple[str, ...]:
        """Why each landmark is in doubt; empty where it is not."""
        return tuple("; ".join(self._reasons(i, labels)) for i in range(len(self.order)))

    def _reasons(self, i: int, labels: Sequence[str]) -> Iterator[str]:
        if self.mirrored:
            yield "the whole set looks mirrored"
        swapped = {a: b for pair in self.swaps for a, b in (pair, pair[::-1])}
        if i in swapped:
            yield f"swapped with {labels[swapped[i]]}?"
        elif self.order[i] != i:
            yield f"pairs with the fixed landmark {labels[self.order[i]]}?"
        if i in self.outliers:
            yield f"{self.misses_mm[self.outliers.index(i)]:.3g} mm from where the others say"

    def lines(self, labels: Sequence[str]) -> Iterator[str]:
        """The same for a summary: one line for each thing that is wrong."""
        if self.mirrored:
            yield "all: the fixed landmarks look like a mirror image of the moving ones; check left and right"
        if self.permuted:
            yield f"all: the fixed landmarks seem to be listed {self.permuted}; check the pairing"
        for i, j in self.swaps:
            yield f"{labels[i]} and {labels[j]}: swapped with each other?"
        if not self.permuted:
            cycled = [i for i, j in enumerate(self.order) if i not in (j, self.order[j])]
            if cycled:
                yield f"{', '.join(labels[i] for i in cycled)}: exchanged among each other?"
        for i, miss in zip(self.outliers, self.misses_mm, strict=True):
            yield f"{labels[i]}: {miss:.3g} mm from where the others say; misplaced or mislabelled?"


def suspicion(
    moving: np.ndarray, fixed: np.ndarray, noise: np.ndarray, align: str, *, known: bool
) -> Suspicion:
    """Look for landmark pairs that cannot be right.

    Outliers by Rosner's generalised test: take out the worst landmark again and again; the last one
    that is worse than chance allows (the worst of those left, Šidák) and all that went before it
    are outliers, so that none hides behind another. Another pairing by its Bayes factor against the
    given one, each averaged over its own likely parameters: as its mean is 1 if the given pairing
    is right, it exceeds 1/α with a probability of at most α.

    Args:
        moving, fixed: (n, d) pairs, mm.
        noise: (n, d, d) localisation covariances, mm², in fixed space.
        align: what the alignment may be.
        known: whether the noise is known (from files, say) or only its relative sizes are, and its
            level is estimated.
    """
    n, d = moving.shape
    mirrored = bool(n > d and trend.looks_mirrored(moving, fixed))
    if mirrored:
        return Suspicion(np.arange(n), (), (), mirrored)
    if n <= MOST_TOGETHER:
        return _suspicion_together(_Setting(moving, fixed, align), noise, known)
    order = _listed_order(_Setting(moving, fixed, align), noise, known)
    if np.any(order != np.arange(n)):
        return Suspicion(order, (), (), False)
    return _suspicion_in_groups(_Setting(moving, fixed, align), noise, known)


def _suspicion_together(
    setting: "_Setting",
    noise: np.ndarray,
    known: bool,
    level: float = SUSPICION,
    *,
    whole: bool = True,
) -> Suspicion:
    """Every landmark judged by all others."""
    order = np.arange(len(setting.moving))
    model = _model(setting, noise, known, MOST_NUMBERS if whole else MOST_NUMBERS // 3)
    if model is None:
        return Suspicion(order, (), (), False)
    order = _better_order(setting, model, level, whole)
    y = setting.displacements(order)
    outliers = _outliers(model, y, level)
    return Suspicion(order, outliers, tuple(_misses(model, y, outliers)), False)


def _suspicion_in_groups(setting: "_Setting", noise: np.ndarray, known: bool) -> Suspicion:
    """The same among neighbours: labels that were exchanged over a long way are outliers here, one
    by one.
    """
    groups = list(_groups(setting.moving))
    order = np.arange(len(noise))
    found: list[tuple[int, float]] = []
    for rows in groups:
        part = _suspicion_together(
            setting.take(rows), noise[rows], known, SUSPICION / len(groups), whole=False
        )
        order[rows] = rows[part.order]
        found += zip((int(rows[i]) for i in part.outliers), part.misses_mm, strict=True)
    found.sort(key=lambda outlier: -outlier[1])
    return Suspicion(order, tuple(row for row, _ in found), tuple(miss for _, miss in found), False)


def _groups(points: np.ndarray) -> Iterator[np.ndarray]:
    """Neighbours in groups of about equal size: halved across the longest side until they are few
    enough.
    """
    waiting = [np.arange(len(points))]
    while waiting:
        rows = waiting.pop()
        if len(rows) <= GROUP:
            yield np.sort(rows)
            continue
        along = rows[np.argsort(points[rows, np.argmax(np.ptp(points[rows], axis=0))])]
        waiting += [along[: len(rows) // 2], along[len(rows) // 2 :]]


def _listed_order(setting: "_Setting", noise: np.ndarray, known: bool) -> np.ndarray:
    """Whether a long list as a whole is reversed or has slipped: some of its landmarks tell."""
    n = len(setting.moving)
    rows = np.arange(n)
    few = _some(n)
    model = _model(setting.take(few), noise[few], known)
    if model is None:
        return rows
    shifts = (*range(1, NEAR_SHIFTS + 1), *range(-NEAR_SHIFTS, 0))
    orders = (rows, rows[::-1], *(np.roll(rows, -shift) for shift in shifts))
    worth = [
        model.log_evidence(setting.displacements(order)[few]) - np.log(2 * n) * (k > 0)
        for k, order in enumerate(orders)
    ]
    best = int(np.argmax(worth))
    return orders[best] if worth[best] > worth[0] - np.log(SUSPICION) else rows


@dataclasses.dataclass(frozen=True, eq=False)
class _Setting:
    """The two sets of points and what the alignment may be; the pairs are open."""

    moving: np.ndarray
    fixed: np.ndarray
    align: str

    @property
    def turns(self) -> bool:
        return self.align not in ("none", "translation")

    @property
    def grows(self) -> bool:
        return self.align in ("similarity", "affine")

    def rotation(self, order: np.ndarray) -> np.ndarray:
        """R, from moving to fixed, the fixed landmarks in this order: the model is linear around
        it.

        Landmarks that are far off pull less: a gross error should not turn the others away.
        """
        x, f = self.moving, self.fixed[order]
        turn, weights = np.eye(x.shape[1]), np.ones(len(x))
        for _ in range(ROUNDS if self.turns else 0):
            x, f = x - weights @ x / weights.sum(), f - weights @ f / weights.sum()
            turn = trend.best_rotation((weights[:, None] * f).T @ x)
            distances = np.linalg.norm(x @ turn.T - f, axis=1)
            weights = 1 / np.maximum(
                distances, max(float(np.median(distances)), 1e-9 * self.extent)
            )
        return turn

    def turned_back(self, order: np.ndarray) -> np.ndarray:
        """(n, d) the fixed points in this order, turned and shifted onto the moving ones where the
        alignment may be.
        """
        found, key = self._turned_back, order.tobytes()
        if key not in found:
            f = self.fixed[order] @ self.rotation(order)
            found[key] = f + np.median(self.moving - f, axis=0) if self.turns else f
        return found[key]

    @functools.cached_property
    def _turned_back(self) -> dict[bytes, np.ndarray]:
        """By order: the search comes back to the given one again and again."""
        return {}

    def remainders(self, orders: np.ndarray) -> np.ndarray:
        """(k,) what the best shift, and where the alignment turns the best rotation, leave of the
        squared distances.

        Up to what is the same for all (k, n) orders: the largest tr(RᵀC), C = Σ fxᵀ, is the sum of
        C's singular values, less twice the least where C turns a mirror image.
        """
        x, f = self.moving, self.fixed
        if self.align != "none":
            x, f = x - x.mean(axis=0), f - f.mean(axis=0)
        cross = f[orders].swapaxes(1, 2) @ x
        if not self.turns:
            return -np.trace(cross, axis1=1, axis2=2)
        strengths = np.linalg.svd(cross, compute_uv=False)
        return -(strengths.sum(axis=1) - 2 * strengths[:, -1] * (np.linalg.det(cross) < 0))

    def displacements(self, order: np.ndarray) -> np.ndarray:
        """(n, d) what the model has to explain."""
        return self.turned_back(order) - self.moving

    def take(self, rows: np.ndarray) -> "_Setting":
        return _Setting(self.moving[rows], self.fixed[rows], self.align)

    @functools.cached_property
    def extent(self) -> float:
        """How wide the moving landmarks lie, mm."""
        return (
            2
            * float(np.sqrt(np.mean(np.sum((self.moving - self.moving.mean(axis=0)) ** 2, axis=1))))
            or 1.0
        )

    @functools.cached_property
    def basis(self) -> np.ndarray:
        """(n·d, b) how the alignment, as far as the landmarks determine it, moves them."""
        centred = self.moving - self.moving.mean(axis=0)
        free, _ = trend.determined_trend(self.align, centred)
        extended = np.c_[centred / free.scale, np.ones(len(centred))]
        return np.einsum("bac,mc->mab", np.asarray(free.generators), extended).reshape(
            centred.size, -1
        )


# ------------------------------------------------------------------ the model at all its parameters


@dataclasses.dataclass(frozen=True, eq=False)
class _LeftOut:
    """Each landmark against the others: the chance of one so far off, and how far it is, mm."""

    chances: np.ndarray
    misses_mm: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class _Model:
    """The small-deformation model of landmarks on a grid of parameters, g in all.

    P = M⁻¹ − VVᵀ is never formed: V has a column for everything that is given away, the alignment's
    parameters and the coordinates of landmarks that were left out. Nor is M⁻¹ = G⊗I, where the
    noise is the same along every axis.

    Args:
        inverse: (g, n, e, n, e) M⁻¹, or with e = 1 the G of M⁻¹ = G⊗I.
        given_away: (g, n, d, k) V.
        base: (g,) −½log|M| − ½log|HᵀM⁻¹H|.
        shares: (g,) how likely the parameters are beforehand.
        freedom: the coordinates less the parameters of the alignment.
        floor: s₀², mm²: beforehand τ² is inverse gamma of one degree of freedom around it; None if
            τ = 1 is known.
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
    def axes(self) -> np.ndarray:
        """(d, d) what a block of `inverse` is multiplied with, to be one of M⁻¹: I where it is a
        single number.
        """
        d = self.given_away.shape[2]
        return np.eye(d) if self.inverse.shape[2] == 1 else np.ones((d, d))

    def column(self, i: int) -> np.ndarray:
        """(g, n, d, d) P between all landmarks and one."""
        v = self.given_away
        return self.axes * self.inverse[:, :, :, i, :] - v @ v[:, None, i].swapaxes(2, 3)

    @functools.cached_property
    def blocks(self) -> np.ndarray:
        """(g, n, d, d) P of each landmark with itself."""
        own = np.einsum("giaib->giab", self.inverse)
        return self.axes * own - self.given_away @ self.given_away.swapaxes(2, 3)

    def duals(self, y: np.ndarray) -> np.ndarray:
        """(g, n, d) λ = Py."""
        v = self.given_away.reshape(len(self.base), y.size, self.given_away.shape[-1])
        given = v @ (y.ravel() @ v)[..., None]
        return (_times(self.inverse, y.ravel()) - given[..., 0]).reshape(-1, *y.shape)

    def misfit(self, y: np.ndarray) -> np.ndarray:
        """(g,) yᵀPy."""
        return np.einsum("gia,ia->g", self.duals(y), y)

    def log_density(self, misfit: np.ndarray) -> np.ndarray:
        """Log p(y | θ) from yᵀPy, τ integrated out: (g, …) for (g, …)."""
        base = self.base.reshape(-1, *[1] * (misfit.ndim - 1))
        return base + _log_radial(misfit, self.freedom, self.floor)

    def log_evidence(self, y: np.ndarray) -> float:
        """Log p(y), θ averaged over."""
        return float(np.logaddexp.reduce(self.log_density(self.misfit(y)) + np.log(self.shares)))

    def swapped_log_evidence(self, y: np.ndarray, places: np.ndarray) -> np.ndarray:
        """(n, n) the same after each exchange of two fixed landmarks: yᵢ changes by e = fⱼ − fᵢ and
        yⱼ by −e.

        The misfit changes by 2e·(λᵢ − λⱼ) + eᵀ(Pᵢᵢ + Pⱼⱼ − Pᵢⱼ − Pⱼᵢ)e, λ = Py, of which V takes
        away the squares of (Vᵢ − Vⱼ)ᵀe, column by column. Half of all that is summed, and then the
        half that has i and j exchanged.
        """
        duals, change, e = self.duals(y), places[None] - places[:, None], self.inverse.shape[2]
        along = lambda vectors: (
            (ahead := vectors @ places.T) - np.einsum("gii->gi", ahead)[:, :, None]
        )  # vᵢ·e
        misfit = 2 * along(duals)
        for a, b in zip(*np.nonzero(np.triu(self.axes)), strict=True):
            block, both = (
                self.inverse[:, :, a % e, :, b % e],
                (1 if a == b else 2) * change[..., a] * change[..., b],
            )
            own = 0.5 * np.einsum("gii->gi", block)
            misfit += both * (own[:, :, None] + own[:, None] - block)
        for column in np.moveaxis(self.given_away, -1, 0):
            half = along(column)
            misfit -= 0.5 * (half + half.swapaxes(1, 2)) ** 2
        misfit += misfit.swapaxes(1, 2) + np.einsum("gia,ia->g", duals, y)[:, None, None]
        return np.logaddexp.reduce(
            self.log_density(misfit) + np.log(self.shares)[:, None, None], axis=0
        )

    def left_out(self, y: np.ndarray) -> _LeftOut:
        """Each landmark judged by the others, under parameters that the others think likely.

        Given θ it misses by Pᵢᵢ⁻¹λᵢ, and λᵢᵀPᵢᵢ⁻¹λᵢ, against the misfit of the others, is Fisher's
        F (χ² where τ is known). The chances are averaged with the weights p(θ | the others), which
        are p(y | θ) without the landmark.
        """
        d = y.shape[1]
        duals = self.duals(y)
        blocks = np.where(self.judged[:, None, None], self.blocks, np.eye(d))
        cofactors, determinants = numerics.cofactors_small(blocks)
        misses = (cofactors @ duals[..., None])[..., 0] / determinants[..., None]
        own = np.sum(misses * duals, axis=-1)
        others = np.maximum(np.einsum("gia,ia->g", duals, y)[:, None] - own, 0)
        freedom = self.freedom - d
        log = (self.base + np.log(self.shares))[:, None] - 0.5 * np.log(np.abs(determinants))
        log += _log_radial(others, freedom, self.floor)
        weights = np.exp(log - np.logaddexp.reduce(log, axis=0))
        tails, count = np.ones_like(own), weights > NEGLIGIBLE
        if self.floor is None:
            tails[count] = gammaincc(d / 2, own[count] / 2)  # χ²
        else:
            tails[count] = fdtrc(
                d, freedom + 1, (own / d * (freedom + 1) / (others + self.floor))[count]
            )
        chances = np.where(self.judged, np.sum(weights * tails, axis=0), 1.0)
        return _LeftOut(chances, np.linalg.norm(np.einsum("gi,gia->ia", weights, misses), axis=1))

    def without(self, i: int) -> "_Model":
        """The model of the other landmarks: P − P·ᵢPᵢᵢ⁻¹Pᵢ·, with the columns P·ᵢR more in V, Pᵢᵢ⁻¹
        = RRᵀ.
        """
        column = self.column(i)
        root, log_det = _inverse_root(column[:, i])
        kept = self.kept & (np.arange(len(self.kept)) != i)
        given_away = np.concatenate([self.given_away, column @ root[:, None]], axis=-1)
        base, freedom = self.base - 0.5 * log_det, self.freedom - root.shape[-1]
        return _Model(self.inverse, given_away, base, self.shares, freedom, self.floor, kept)

    def without_all(self, rows: Iterable[int]) -> "_Model | None":
        """The same of several landmarks; None where the others would say nothing of one of them."""
        model = self
        for i in rows:
            if not model.judged[i]:
                return None
            model = model.without(i)
        return model

    @functools.cached_property
    def judged(self) -> np.ndarray:
        """(n,) of which the others say anything in every direction: the alignment may need a
        landmark for itself.
        """
        blocks = self.blocks[0]
        return self.kept & (np.linalg.eigvalsh(blocks)[:, 0] > DETERMINED * np.abs(blocks).max())


def _inverse_root(matrices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """R with RRᵀ = A⁻¹, and log|A|, of positive definite matrices A; what is not, to rounding,
    counts as if it were.
    """
    values, vectors = np.linalg.eigh(matrices)
    values = (
        np.maximum(values, np.finfo(float).eps * values[..., -1:]) if values.shape[-1] else values
    )
    return vectors / np.sqrt(values)[..., None, :], np.sum(np.log(values), axis=-1)


def _log_radial(misfit: np.ndarray, freedom: int, floor: float | None) -> np.ndarray:
    """What the density of so many coordinates owes to their misfit: normal, or Student's with τ
    integrated out.
    """
    if floor is None:
        return -0.5 * misfit - 0.5 * freedom * np.log(2 * np.pi)
    front = (
        gammaln((freedom + 1) / 2)
        - gammaln(0.5)
        - 0.5 * freedom * np.log(np.pi)
        + 0.5 * np.log(floor)
    )
    return front - 0.5 * (freedom + 1) * np.log(floor + np.maximum(misfit, 0))


def _model(
    setting: _Setting, noise: np.ndarray, known: bool, numbers: int = MOST_NUMBERS
) -> _Model | None:
    """The model at every θ; None where the landmarks are too few to say anything of one by the
    others.
    """
    n, d = setting.moving.shape
    if n * d - setting.basis.shape[1] < 2 * d:
        return None
    scales = _length_scales(setting.moving)
    grid = np.array(
        list(
            itertools.product(
                scales, *(_known_sizes(setting, noise) if known else (RATIOS, (0.0,)))
            )
        )
    )
    grid[grid[:, 1] == 0, 0] = scales[0]  # without a deformation its length scale is nothing
    grid, shares = np.unique(grid, axis=0, return_counts=True)
    most = max(1, numbers // (n * d) ** 2)
    if len(grid) > most:  # those that a sample of the landmarks thinks likeliest
        few = _some(n)
        sample = _model_at(setting.take(few), noise[few], known, grid, shares)
        y = setting.displacements(np.arange(n))[few]
        likeliest = np.argsort(sample.log_density(sample.misfit(y)) + np.log(shares))[-most:]
        grid, shares = grid[likeliest], shares[likeliest]
    return _model_at(setting, noise, known, grid, shares)


def _some(n: int) -> np.ndarray:
    """Some of the landmarks, drawn: a list may have a rhythm."""
    return np.sort(np.random.default_rng(0).permutation(n)[:SAMPLE])


def _model_at(
    setting: _Setting, noise: np.ndarray, known: bool, grid: np.ndarray, shares: np.ndarray
) -> _Model:
    """The model at (g, 3) length scales, and amplitudes and white standard deviations in units of
    the noise.

    `shares` are proportional to how likely these are beforehand.
    """
    n, d = setting.moving.shape
    freedom = n * d - setting.basis.shape[1]
    turn, level = (
        setting.rotation(np.arange(n)),
        float(np.mean(np.trace(noise, axis1=1, axis2=2))) / d,
    )
    squared = _squared_distances(setting.moving, setting.moving)
    inverse, log_det = _inverted(squared, turn.T @ noise @ turn / level, grid)
    basis = setting.basis
    solved = _times(inverse, basis)
    root, log_inner = _inverse_root(basis.T @ solved)
    unit, floor = (level, None) if known else (1.0, (EXACT * setting.extent) ** 2)
    base = -0.5 * (log_det + log_inner + freedom * np.log(unit))
    given_away = (solved @ root).reshape(len(grid), n, d, basis.shape[1]) / np.sqrt(unit)
    shares = shares / shares.sum()
    return _Model(inverse / unit, given_away, base, shares, freedom, floor, np.ones(n, dtype=bool))


def _inverted(
    squared: np.ndarray, noise: np.ndarray, grid: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """M⁻¹ as (g, n, e, n, e) and (g,) log|M| of M = a²K⊗I + D + w²I: e = 1 where the noise is alike
    along every axis.

    With (D + w²I)⁻¹ = RRᵀ and RᵀKR = QΛQᵀ, all amplitudes of a length scale have M⁻¹ = RQ(1 +
    a²Λ)⁻¹QᵀRᵀ.
    """
    n, d = noise.shape[:2]
    e = 1 if _alike_along_axes(noise) else d
    inverse, log_det = np.empty((len(grid), n * e, n * e)), np.empty(len(grid))
    for scale, white in np.unique(grid[:, ::2], axis=0):
        rows = np.flatnonzero((grid[:, ::2] == (scale, white)).all(axis=1))
        root, log_noise = _inverse_root(noise[:, :e, :e] + white**2 * np.eye(e))
        flat = root.swapaxes(1, 2).reshape(n * e, e)
        gram = np.exp(-0.5 / scale**2 * squared)[:, None, :, None] * (flat @ flat.T).reshape(
            n, e, n, e
        )
        values, vectors = np.linalg.eigh(gram.reshape(n * e, n * e))
        half = (root @ vectors.reshape(n, e, n * e)).reshape(n * e, n * e)
        sizes = 1 + grid[rows, 1:2] ** 2 * np.maximum(values, 0)
        inverse[rows] = (half / sizes[:, None]) @ half.T
        log_det[rows] = d / e * (log_noise.sum() + np.sum(np.log(sizes), axis=1))
    return inverse.reshape(-1, n, e, n, e), log_det


def _alike_along_axes(noise: np.ndarray) -> bool:
    """Whether every landmark's noise is the same in every direction."""
    variances = noise[:, :1, :1]
    return bool(
        np.all(np.abs(noise - variances * np.eye(noise.shape[1])) <= 1e-9 * variances.min())
    )


def _times(inverse: np.ndarray, right: np.ndarray) -> np.ndarray:
    """(g, n·d, …) M⁻¹B of (n·d, …) B: a product with G for each axis, where M⁻¹ = G⊗I."""
    count, size = len(inverse), inverse.shape[1] * inverse.shape[2]
    return (inverse.reshape(count, size, size) @ right.reshape(size, right.size // size)).reshape(
        count, *right.shape
    )


def _length_scales(moving: np.ndarray) -> np.ndarray:
    """From half the landmarks' spacing to twice their extent, mm."""
    squared = _squared_distances(moving, moving)
    extent = float(np.sqrt(squared.max())) or 1.0
    apart = np.sqrt(np.where(squared > (1e-6 * extent) ** 2, squared, np.inf).min(axis=1))
    spacing = float(np.median(apart[np.isfinite(apart)])) if np.isfinite(apart).any() else extent
    return np.geomspace(0.5 * spacing, 2 * extent, LENGTHS)


def _known_sizes(setting: _Setting, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Amplitudes, and white standard deviations, over a known noise: up to what the displacements
    may be.

    The noise of localisation may be known, and two brains still differ from landmark to landmark by
    more than that and in no smooth way: without a part that is white, places that vary between
    people would be suspect.
    """
    y = setting.displacements(np.arange(len(noise)))
    level = np.sqrt(np.mean(np.trace(noise, axis1=1, axis2=2)) / y.shape[1])
    largest = float(np.sqrt(np.mean((y - y.mean(axis=0)) ** 2)) / level)
    sizes = lambda least, most, count: np.r_[0.0, np.geomspace(least, max(most, 4 * least), count)]
    return sizes(0.5, 3 * largest, KNOWN_SIZES), sizes(0.5, largest, KNOWN_SIZES - 1)


# ------------------------------------------------------------------------------------------ pairing


def _better_order(setting: _Setting, model: _Model, level: float, whole: bool) -> np.ndarray:
    """The order of the fixed landmarks that explains the pairs far better than their own, which it
    is otherwise.

    Of a group of neighbours, which is no whole list, exchanges only are tried.
    """
    given = np.arange(len(setting.moving))
    worth = lambda order: model.log_evidence(setting.displacements(order)) - _surprise(order)
    plain = worth(given)
    others = [order for order in _other_orders(setting) if worth(order) > plain] if whole else []
    best = max((_exchanged(setting, model, start, level) for start in (given, *others)), key=worth)
    if worth(best) <= plain - np.log(level):
        return given
    for cycle in _cycles(best):
        if not _listed_otherwise(best) and _outliers_explain(setting, model, best, cycle):
            best = np.where(np.isin(given, cycle), given, best)
    return best


def _exchanged(setting: _Setting, model: _Model, order: np.ndarray, level: float) -> np.ndarray:
    """Exchange the two fixed landmarks that gain most, as long as any two gain more than that is
    surprising.

    An exchange that takes more pairs out of their order has to be convincing by itself, and not
    only to ride along.
    """
    n = len(order)
    rows = np.arange(n)
    for _ in rows:
        places, moved = setting.turned_back(order), order != rows
        after = (
            order[None, :] != rows[:, None]
        )  # whether row i is out of order with the fixed landmark of row j
        count = moved.sum() - moved[:, None] - moved[None] + after + after.T
        costs = np.array([_log_count(n, k) for k in range(n + 1)])
        evidence = model.swapped_log_evidence(places - setting.moving, places) - costs[count]
        evidence += np.log(level) * (count > moved.sum())
        np.fill_diagonal(evidence, -np.inf)
        i, j = np.unravel_index(np.argmax(evidence), evidence.shape)
        if evidence[i, j] <= model.log_evidence(places - setting.moving) - costs[moved.sum()]:
            break
        order = order.copy()
        order[[i, j]] = order[[j, i]]
    return order


def _surprise(order: np.ndarray) -> float:
    """−log of how likely an order is beforehand among all wrong ones: a reversal or a shift as
    likely as all others.
    """
    n = len(order)
    return (
        float(np.log(2 * n))
        if _listed_otherwise(order)
        else _log_count(n, int(np.sum(order != np.arange(n))))
    )


def _log_count(n: int, moved: int) -> float:
    """Log of the number of orders that move k of n things, C(n, k)·k!/e, times 2ᵏ: all k together
    weigh ½ at most.
    """
    if moved < 2:
        return 0.0
    return float(gammaln(n + 1) - gammaln(n - moved + 1) - 1 + moved * np.log(2))


def _listed_otherwise(order: np.ndarray) -> str:
    """How a list as a whole is out of order, if it is reversed or shifted; else empty."""
    rows = np.arange(len(order))
    if np.array_equal(order, rows) or len(order) < 3:
        return ""
    if np.array_equal(order, rows[::-1]):
        return "in reverse order"
    shift = min(int(order[0]), len(order) - int(order[0]))
    return f"shifted by {shift}" if np.array_equal(order, (rows + order[0]) % len(order)) else ""


def _cycles(order: np.ndarray) -> Iterator[tuple[int, ...]]:
    """The groups of rows that exchange their fixed landmarks among each other."""
    seen: set[int] = set()
    for first in np.flatnonzero(order != np.arange(len(order))):
        cycle = []
        row = int(first)
        while row not in seen:
            seen.add(row)
            cycle.append(row)
            row = int(order[row])
        if cycle:
            yield tuple(cycle)


def _outliers_explain(
    setting: _Setting, model: _Model, order: np.ndarray, cycle: tuple[int, ...]
) -> bool:
    """Whether one landmark, or all of them, being anywhere is likelier than that they are
    exchanged.

    A landmark that lies anywhere has the density 1/V, V the volume that the landmarks span, and is
    one of n.
    """
    n, d = setting.moving.shape
    rows = np.arange(n)
    undone = np.where(np.isin(rows, cycle), rows, order)
    y, price = setting.displacements(undone), d * np.log(setting.extent) + np.log(n)
    exchanged = model.log_evidence(setting.displacements(order)) - _surprise(order)
    for gone in (*((i,) for i in cycle), *([cycle] if len(cycle) <= MOST_OUTLIERS * n else [])):
        rest = model.without_all(gone)
        if (
            rest is not None
            and rest.log_evidence(y) - _surprise(undone) - len(gone) * price > exchanged
        ):
            return True
    return False


def _other_orders(setting: _Setting) -> Iterator[np.ndarray]:
    """Orders worth a try: the best reversed or shifted one, and that in which the landmarks are the
    nearest.
    """
    rows = np.arange(len(setting.moving))
    shifted = (rows + rows[1:, None]) % len(rows)
    for orders in (
        np.concatenate([rows[None, ::-1], shifted]),
        np.array(list(_nearest_orders(setting))),
    ):
        yield orders[np.argmin(setting.remainders(orders))]


def _nearest_orders(setting: _Setting) -> Iterator[np.ndarray]:
    """Assign each moving landmark a fixed one, align, assign again: from several starts."""
    x, f = setting.moving, setting.fixed
    kind = "similarity" if setting.grows else "rigid" if setting.turns else setting.align
    for costs in _first_costs(setting):
        order = linear_sum_assignment(costs)[1]
        for _ in range(ROUNDS):
            found = trend.procrustes(kind, x, f[order], np.ones(len(x)))
            again = linear_sum_assignment(_squared_distances(np.asarray(found(x)), f))[1]
            if np.array_equal(again, order):
                break
            order = again
        yield order


def _first_costs(setting: _Setting) -> Iterator[np.ndarray]:
    """(n, n) how unlike a moving and a fixed landmark are: as the sets lie, centred, turned, or by
    their distances.
    """
    x, f = setting.moving, setting.fixed
    yield _squared_distances(x, f)
    x, f = x - x.mean(axis=0), f - f.mean(axis=0)
    x = x * (float(np.linalg.norm(f)) / (float(np.linalg.norm(x)) or 1.0)) if setting.grows else x
    yield _squared_distances(x, f)
    if setting.turns:
        (_, u), (_, v) = (np.linalg.eigh(side.T @ side) for side in (x, f))
        for signs in itertools.product((-1, 1), repeat=x.shape[1]):
            turn = (v * signs) @ u.T
            if np.linalg.det(turn) > 0:
                yield _squared_distances(x @ turn.T, f)
        near, far = (np.sort(np.sqrt(_squared_distances(side, side)), axis=1) for side in (x, f))
        yield _squared_distances(
            near, far
        )  # how far the others are does not depend on any alignment


def _squared_distances(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return cdist(x, y, "sqeuclidean")


# ----------------------------------------------------------------------------------------- outliers


def _outliers(model: _Model, y: np.ndarray, level: float) -> tuple[int, ...]:
    """Rosner's generalised test: all landmarks up to the last that is too far off, once those
    before it are gone.
    """
    n, d = y.shape
    taken: list[int] = []
    guilty = 0
    while len(taken) < min(MOST_OUTLIERS * n, guilty + HIDDEN):
        model = model.without(taken[-1]) if taken else model
        if model.freedom < 2 * d:
            break
        chances = model.left_out(y).chances
        worst = int(np.argmin(chances))
        if not model.judged[worst]:
            break
        taken.append(worst)
        if -np.expm1(model.kept.sum() * np.log1p(-min(chances[worst], 1 - 1e-12))) < level:
            guilty = len(taken)
    return tuple(taken[:guilty])


def _misses(model: _Model, y: np.ndarray, outliers: tuple[int, ...]) -> Iterator[float]:
    """How far each outlier is from where the landmarks that are none say, mm."""
    for i in outliers:
        rest = model.without_all(j for j in outliers if j != i) or model
        yield float(rest.left_out(y).misses_mm[i])
