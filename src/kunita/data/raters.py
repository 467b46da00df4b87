"""Several raters' copies of one set of landmarks, pooled into points with covariances."""

import collections
import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from scipy.special import fdtrc, gammaincinv, multigammaln

from kunita.data.landmarks import Landmarks
from kunita.errors import ArgumentError, LandmarkError

TRUSTED = 0.99
"""A mark within this quantile of its landmark's spread has full weight; beyond, it pulls the less
the farther it is."""

LEAST_SCALE = 0.1
"""A landmark's variance, for telling far marks, is at least this fraction of the common: three
marks may coincide."""

FAR = 0.005
"""A mark is far if one so far from the others' is expected of fewer than this fraction of all
marks."""

ROUNDS = 50
PRIOR_RATERS = np.geomspace(0.05, 1000.0, 40)


def pool_raters(raters: Sequence[Landmarks], *, spread: str = "mean") -> Landmarks:
    """Merge several people's marks of the same landmarks: robust means, and covariances that are
    never singular.

    Each landmark has a covariance Σᵢ of its own, Σᵢ ~ inverse Wishart around the one that all
    landmarks share; five raters in 3-D leave a scatter Sᵢ of four degrees of freedom kᵢ, so it is
    shrunk, Σ̂ᵢ = (mΣ₀ + Sᵢ)/(m + kᵢ), with m chosen by the marginal likelihood: large where
    landmarks are alike. Marks far from the others weigh less; how far is told by the *median*
    distance at the landmark, which one or two wild marks of five cannot move.

    Args:
        raters: two or more sets, matched by name, or by order where any has no names. A landmark
            that some did not mark is pooled from the others. Covariances that they may have are not
            used: their spread tells.
        spread: "mean": the covariance of the pooled point, Σ̂ᵢ/(number of raters), which is what a
            registration wants as its noise, if the raters err independently; "rater": Σ̂ᵢ itself,
            the spread of a single rater.
    """
    if spread not in ("mean", "rater"):
        raise ArgumentError(f"spread: expected 'mean' or 'rater', found {spread!r}")
    marks = _collect(raters)
    pooled = _pool(marks)
    counts = (
        np.array([w.sum() ** 2 / (w**2).sum() for w in pooled.weights]) if spread == "mean" else 1.0
    )
    covariances = pooled.covariances / np.reshape(counts, (-1, 1, 1))
    if all(rater.names is not None for rater in raters):
        return Landmarks(pooled.means, marks.names, covariances)
    nobody = [place for place in range(raters[0].listed) if str(place + 1) not in marks.names]
    return Landmarks(pooled.means, None, covariances, undefined=nobody)


def doubts(raters: Sequence[Landmarks], titles: Sequence[str]) -> Iterator[str]:
    """What makes a pooled covariance doubtful: the same marks twice, landmarks that one rater alone
    has marked.
    """
    for (first, a), (second, b) in itertools.combinations(zip(titles, raters, strict=True), 2):
        if np.array_equal(a.points, b.points):
            yield f"{first} and {second} hold the same marks, and count as two raters"
    if all(rater.names is not None for rater in raters):
        counts = collections.Counter(name for rater in raters for name in rater.names)
        alone = [name for name, count in counts.items() if count == 1]
        if alone:
            yield f"{len(alone)} landmarks were marked by one rater only, such as {alone[0]!r}: is it one set?"


def far_marks(raters: Sequence[Landmarks]) -> list[tuple[str, int, float]]:
    """The marks too far from where the others put the landmark: its name, rater (from 0), distance
    to their mean, mm.

    Nothing is dropped for it: `pool_raters` gives marks that are far less weight in any case.
    """
    marks = _collect(raters)
    pooled = _pool(marks)
    found = []
    for i, (name, who, x) in enumerate(zip(marks.names, marks.raters, marks.points, strict=True)):
        prior = pooled.prior_without(i)
        for r, mark in enumerate(x if len(x) > 1 else ()):
            others = np.delete(x, r, axis=0)
            if _chance(mark, others, prior) < FAR:
                found.append((name, int(who[r]), float(np.linalg.norm(mark - others.mean(axis=0)))))
    return found


def _chance(mark: np.ndarray, others: np.ndarray, prior: "_Prior") -> float:
    """Of a mark at least so far from those of the k others, if all raters are alike.

    The mark itself has no say in how wide the spread is: Σᵢ given the scatter S of the others is
    inverse Wishart around mΣ₀ + S, so what the mark misses their mean by is Student's t, and its
    square Fisher's F.
    """
    k, d = others.shape
    miss, freedom = mark - others.mean(axis=0), prior.strength + k + 1
    spread = prior.strength * prior.common + _scatter(others, others.mean(axis=0), np.ones(k))
    squared = float(miss @ np.linalg.solve(spread, miss)) * freedom / (1 + 1 / k)
    return float(fdtrc(d, freedom, squared / d))


@functools.cache
def quantile(level: float, d: int) -> float:
    """Of the squared length of a standard normal vector."""
    return float(2 * gammaincinv(d / 2, level))


@dataclasses.dataclass(frozen=True)
class _Marks:
    """All marks of each landmark."""

    names: tuple[str, ...]
    points: tuple[np.ndarray, ...]
    raters: tuple[np.ndarray, ...]


@dataclasses.dataclass(frozen=True)
class _Prior:
    """What all landmarks share: the covariance Σ₀ of a mark, and for how many marks it counts, m."""

    common: np.ndarray
    strength: float


@dataclasses.dataclass(frozen=True)
class _Pooled:
    """Of each landmark: mean, covariance of a mark, weights of the marks, weighted scatter and its
    freedom.
    """

    means: np.ndarray
    covariances: np.ndarray
    weights: tuple[np.ndarray, ...]
    scatters: np.ndarray
    freedom: np.ndarray

    def prior_without(self, i: int) -> _Prior:
        """What the other landmarks teach, so that a wild mark does not excuse itself; all, if the
        others are none.
        """
        scatters, freedom = np.delete(self.scatters, i, axis=0), np.delete(self.freedom, i)
        return (
            _learned(scatters, freedom)
            if freedom.sum() > 0
            else _learned(self.scatters, self.freedom)
        )


def _collect(raters: Sequence[Any]) -> _Marks:
    if len(raters) < 2:
        raise LandmarkError(f"pooling: expected at least two raters, found {len(raters)}")
    if len({rater.dimension for rater in raters}) > 1:
        raise LandmarkError(
            f"pooling: mixed dimensions, {', '.join(f'{r.dimension}-D' for r in raters)}"
        )
    if any(rater.names is None for rater in raters) and len({rater.listed for rater in raters}) > 1:
        counts = ", ".join(str(rater.listed) for rater in raters)
        raise LandmarkError(
            f"pooling: {counts} landmarks cannot be matched by order; give every set names"
        )
    by_order = any(rater.names is None for rater in raters)
    found: dict[str, list[tuple[int, np.ndarray]]] = collections.defaultdict(list)
    for r, rater in enumerate(raters):
        labels = [str(place + 1) for place in rater.places] if by_order else rater.names
        for label, point in zip(labels, rater.points, strict=True):
            found[label].append((r, point))
    if by_order:  # places in their order, whoever marked them first
        found = {label: found[label] for label in sorted(found, key=int)}
    if max(len(marks) for marks in found.values()) < 2:
        raise LandmarkError("pooling: no landmark was marked by two raters; do their names agree?")
    return _Marks(
        tuple(found),
        tuple(np.array([point for _, point in marks]) for marks in found.values()),
        tuple(np.array([r for r, _ in marks]) for marks in found.values()),
    )


def _pool(marks: _Marks) -> _Pooled:
    """Alternate between weighted means, shrunk covariances, and weights that fall with the squared
    distance.
    """
    means = np.array([np.median(x, axis=0) for x in marks.points])
    covariances = np.broadcast_to(_common_start(marks, means), (len(means), *[means.shape[1]] * 2))
    for _ in range(ROUNDS):
        common = covariances.mean(axis=0)
        weights = tuple(
            _weights(x, mean, common) for x, mean in zip(marks.points, means, strict=True)
        )
        updated = np.array([w @ x / w.sum() for x, w in zip(marks.points, weights, strict=True)])
        scatters = np.array(
            [_scatter(x, m, w) for x, m, w in zip(marks.points, updated, weights, strict=True)]
        )
        freedom = np.array([w.sum() - 1 for w in weights]).clip(0)
        covariances = _shrunk(scatters, freedom, _learned(scatters, freedom))
        settled = np.allclose(updated, means, rtol=0, atol=1e-4 * np.sqrt(np.trace(common)))
        means = updated
        if settled:
            break
    return _Pooled(means, covariances, weights, scatters, freedom)


def _common_start(marks: _Marks, means: np.ndarray) -> np.ndarray:
    """An isotropic covariance from the median distance of all marks to the medians of their
    landmarks.
    """
    d = means.shape[1]
    distances = [
        np.sum((x - mean) ** 2, axis=1)
        for x, mean in zip(marks.points, means, strict=True)
        if len(x) > 1
    ]
    typical = float(np.mean([np.median(squared) for squared in distances])) / quantile(0.5, d)
    typical = (
        typical or float(np.mean(np.concatenate(distances))) / d
    )  # most marks coincide: the few that do not, then
    if not typical > 0:
        raise LandmarkError(
            "pooling: the raters agree exactly, so nothing is known of their spread; are these copies?"
        )
    return typical * np.eye(d)


def _weights(x: np.ndarray, mean: np.ndarray, common: np.ndarray) -> np.ndarray:
    """Full weight within the trusted distance, falling with its square beyond; the landmark's scale
    is a median's.
    """
    d = len(mean)
    squared = np.einsum("ra,ab,rb->r", x - mean, np.linalg.inv(common), x - mean)
    scale = max(float(np.median(squared)) / quantile(0.5, d), LEAST_SCALE)
    return np.minimum(1, quantile(TRUSTED, d) * scale / np.maximum(squared, 1e-300))


def _scatter(x: np.ndarray, mean: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return (x - mean).T @ (weights[:, None] * (x - mean))


def _learned(scatters: np.ndarray, freedom: np.ndarray) -> _Prior:
    """Σ₀ from all scatters together, a little rounded so that it is never singular; m by the
    marginal likelihood.
    """
    d = scatters.shape[1]
    total, k = scatters.sum(axis=0), freedom.sum()
    isotropic = np.trace(total) / d * np.eye(d) / k
    common = (total + d * isotropic) / (k + d)
    return _Prior(
        common,
        float(PRIOR_RATERS[np.argmax(_log_marginal(PRIOR_RATERS, common, scatters, freedom))]),
    )


def _shrunk(scatters: np.ndarray, freedom: np.ndarray, prior: _Prior) -> np.ndarray:
    """E[Σᵢ | Sᵢ] = (mΣ₀ + Sᵢ)/(m + kᵢ)."""
    m = prior.strength
    return (m * prior.common + scatters) / (m + freedom)[:, None, None]


def _log_marginal(
    m: np.ndarray, common: np.ndarray, scatters: np.ndarray, freedom: np.ndarray
) -> np.ndarray:
    """Log p(S | m) for each m: scatters are Wishart given Σᵢ, these inverse Wishart of mean Σ₀ and
    ν = m + d + 1.
    """
    d = len(common)
    nu, psi = m[:, None] + d + 1, m[:, None, None, None] * common
    inside = nu * np.linalg.slogdet(psi)[1] - (nu + freedom) * np.linalg.slogdet(psi + scatters)[1]
    return np.sum(
        inside / 2 + multigammaln((nu + freedom) / 2, d) - multigammaln(nu / 2, d), axis=1
    )
