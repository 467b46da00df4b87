"""Several raters' copies of one set of landmarks, pooled into points with covariances."""

import collections
import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from scipy.special import fdtrc, gammaincinv, multigammaln

from kunita.data.landmarks import Landmarks, refuse_free
from kunita.errors import ArgumentError, LandmarkError

TRUSTED = 0.99
"""A mark within this quantile of the spread of its landmark has full weight. Beyond
it, the weight falls with the squared distance."""

LEAST_SCALE = 0.1
"""Where marks are weighted, the variance of a landmark is at least this fraction of
the common one: three marks may coincide by chance."""

FAR = 0.005
"""A mark is far if fewer than this fraction of all marks are expected to lie so far
from those of the other raters."""

ROUNDS = 50
"""The most rounds of weighting."""

SETTLED = 1e-4
"""The weighting has settled when no mean moves by more than this, relative to the common spread."""

PRIOR_RATERS = np.geomspace(0.05, 1000.0, 40)
"""Strengths of the prior that are compared, in marks."""


def pool_raters(raters: Sequence[Landmarks], *, spread: str = "mean") -> Landmarks:
    """Merge several people's marks of the same landmarks into robust means with covariances.

    Each landmark has a covariance Σᵢ of its own, Σᵢ ~ inverse Wishart around the
    covariance that all landmarks share. Five raters in 3-D leave a scatter Sᵢ of
    only four degrees of freedom kᵢ, so it is shrunk: Σ̂ᵢ = (mΣ₀ + Sᵢ)/(m + kᵢ),
    which is never singular. The strength m is chosen by the marginal likelihood; it
    is large where landmarks are alike. Marks far from the others weigh less. The
    unit of distance is the *median* distance at the landmark, which one or two wild
    marks of five cannot move.

    Args:
        raters: two or more sets, matched by name, or by order where any has no
            names. A landmark that some did not mark is pooled from the others.
            Covariances that the sets may have are not used: the spread of the marks
            replaces them.
        spread: "mean": the covariance of the pooled point, Σ̂ᵢ/(number of raters),
            which is what a registration wants as its noise, if the raters err
            independently; "rater": Σ̂ᵢ itself, the spread of a single rater.
    """
    if spread not in ("mean", "rater"):
        raise ArgumentError(f"spread: expected 'mean' or 'rater', found {spread!r}")
    marked = _collect(raters)
    pooled = _pool(marked)
    covariances = pooled.covariances
    if spread == "mean":
        covariances = covariances / pooled.effective_counts[:, None, None]
    labels = [marks.label for marks in marked]
    if not _matched_by_order(raters):
        return Landmarks(pooled.means, labels, covariances)
    places = range(raters[0].listed)
    nobody = [place for place in places if str(place + 1) not in labels]
    return Landmarks(pooled.means, None, covariances, undefined=nobody)


def doubts(raters: Sequence[Landmarks], titles: Sequence[str]) -> Iterator[str]:
    """What makes pooled covariances doubtful, in sentences.

    That is the same marks given twice, and landmarks that only one rater has
    marked.
    """
    for (first, a), (second, b) in itertools.combinations(zip(titles, raters, strict=True), 2):
        if np.array_equal(a.points, b.points):
            yield f"{first} and {second} hold the same marks, and count as two raters"
    if _matched_by_order(raters):
        return
    counts = collections.Counter(name for rater in raters for name in rater.names)
    alone = [name for name, count in counts.items() if count == 1]
    if alone:
        yield (
            f"{len(alone)} landmarks were marked by one rater only, such as {alone[0]!r}: "
            "is it one set?"
        )


def far_marks(raters: Sequence[Landmarks]) -> list[tuple[str, int, float]]:
    """The marks that lie too far from where the other raters put the landmark.

    Each comes as the landmark's name, the rater (from 0), and the distance to the
    mean of the others, mm. No mark is dropped for it: `pool_raters` gives far marks
    less weight in any case.
    """
    marked = _collect(raters)
    pooled = _pool(marked)
    found = []
    for i, marks in enumerate(marked):
        if len(marks.points) < 2:
            continue
        prior = pooled.prior_without(i)
        for mark, others, rater in marks.each_and_others():
            if _chance(mark, others, prior) < FAR:
                distance = np.linalg.norm(mark - others.mean(axis=0))
                found.append((marks.label, rater, float(distance)))
    return found


@functools.cache
def quantile(level: float, d: int) -> float:
    """Quantile of the squared length of a standard normal vector in d dimensions."""
    return float(2 * gammaincinv(d / 2, level))


# ------------------------------------------------------------------------------ collecting marks


@dataclasses.dataclass(frozen=True)
class _Marks:
    """All marks of one landmark.

    Args:
        label: its name, or its place, from 1, where the raters are matched by
            order.
        points: (r, d), mm.
        raters: (r,) who put them, from 0.
    """

    label: str
    points: np.ndarray
    raters: np.ndarray

    def each_and_others(self) -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
        """Each mark, the other marks, and the rater who put the one."""
        for row, rater in enumerate(self.raters):
            others = np.delete(self.points, row, axis=0)
            yield self.points[row], others, int(rater)


def _collect(raters: Sequence[Any]) -> tuple[_Marks, ...]:
    """Gather the marks of each landmark, by name or by order."""
    _check_raters(raters)
    by_order = _matched_by_order(raters)
    points = collections.defaultdict(list)
    numbers = collections.defaultdict(list)
    for number, rater in enumerate(raters):
        for label, point in zip(_labels(rater, by_order), rater.points, strict=True):
            points[label].append(point)
            numbers[label].append(number)

    if max(len(marks) for marks in points.values()) < 2:
        raise LandmarkError("pooling: no landmark was marked by two raters; do their names agree?")
    # Places come in their own order, whoever marked them first; names as they were found.
    labels = sorted(points, key=int) if by_order else points
    return tuple(
        _Marks(label, np.array(points[label]), np.array(numbers[label])) for label in labels
    )


def _matched_by_order(raters: Sequence[Any]) -> bool:
    return any(rater.names is None for rater in raters)


def _labels(rater: Landmarks, by_order: bool) -> Sequence[str]:
    """What the marks of one rater are matched by."""
    if by_order:
        return [str(place + 1) for place in rater.places]
    return rater.names


def _check_raters(raters: Sequence[Any]) -> None:
    """Refuse sets of landmarks that cannot be pooled."""
    if len(raters) < 2:
        raise LandmarkError(f"pooling: expected at least two raters, found {len(raters)}")
    for number, rater in enumerate(raters, start=1):
        refuse_free(rater, f" of rater {number}", "only fully known points can be pooled")

    dimensions = [rater.dimension for rater in raters]
    if len(set(dimensions)) > 1:
        listed = ", ".join(f"{d}-D" for d in dimensions)
        raise LandmarkError(f"pooling: mixed dimensions, {listed}")

    counts = [rater.listed for rater in raters]
    if len(set(counts)) > 1 and _matched_by_order(raters):
        listed = ", ".join(str(count) for count in counts)
        raise LandmarkError(
            f"pooling: {listed} landmarks cannot be matched by order; give every set names"
        )


# ------------------------------------------------------------------------- robust means, weights


@dataclasses.dataclass(frozen=True)
class _WeightedMarks:
    """The marks of one landmark, (r, d), and their weights, (r,), between 0 and 1."""

    points: np.ndarray
    weights: np.ndarray

    @functools.cached_property
    def mean(self) -> np.ndarray:
        total = self.weights @ self.points
        return total / self.weights.sum()

    @property
    def scatter(self) -> np.ndarray:
        """(d, d) S, the weighted sum of squares around the mean."""
        centred = self.points - self.mean
        weighted = self.weights[:, None] * centred
        return centred.T @ weighted

    @property
    def freedom(self) -> float:
        """Degrees of freedom k of the scatter."""
        total = self.weights.sum()
        return max(total - 1, 0.0)

    @property
    def effective_count(self) -> float:
        """The number of equally weighted marks whose mean would have the same variance."""
        total = self.weights.sum()
        return total**2 / (self.weights**2).sum()


@dataclasses.dataclass(frozen=True)
class _Scatters:
    """Scatter matrices S of all landmarks, (n, d, d), and their degrees of freedom k, (n,)."""

    matrices: np.ndarray
    freedom: np.ndarray

    @classmethod
    def of(cls, weighted: Sequence[_WeightedMarks]) -> "_Scatters":
        matrices = np.array([marks.scatter for marks in weighted])
        freedom = np.array([marks.freedom for marks in weighted])
        return cls(matrices, freedom)

    def without(self, i: int) -> "_Scatters":
        """The scatters of all landmarks but one."""
        matrices = np.delete(self.matrices, i, axis=0)
        freedom = np.delete(self.freedom, i)
        return _Scatters(matrices, freedom)


@dataclasses.dataclass(frozen=True)
class _CovariancePrior:
    """The prior of a landmark's covariance: the covariance Σ₀ of a mark, worth m marks."""

    common: np.ndarray
    strength: float


@dataclasses.dataclass(frozen=True)
class _Pooled:
    """The weighted marks of each landmark, and their scatters and (n, d, d) shrunk covariances."""

    weighted: tuple[_WeightedMarks, ...]
    scatters: _Scatters
    covariances: np.ndarray

    @functools.cached_property
    def means(self) -> np.ndarray:
        """(n, d)."""
        return np.array([marks.mean for marks in self.weighted])

    @property
    def effective_counts(self) -> np.ndarray:
        """(n,)."""
        return np.array([marks.effective_count for marks in self.weighted])

    def prior_without(self, i: int) -> _CovariancePrior:
        """The prior as the other landmarks suggest it, so that a wild mark does not excuse itself.

        Where the others have no marks to compare, all landmarks are used.
        """
        others = self.scatters.without(i)
        if others.freedom.sum() > 0:
            return _estimate_prior(others)
        return _estimate_prior(self.scatters)


def _pool(marked: Sequence[_Marks]) -> _Pooled:
    """Alternate between weights, weighted means and shrunk covariances until the means settle."""
    means = np.array([np.median(marks.points, axis=0) for marks in marked])
    common = _first_common(marked, means)
    for _ in range(ROUNDS):
        pooled = _reweight(marked, means, common)
        typical = np.sqrt(np.trace(common))
        if np.allclose(pooled.means, means, rtol=0, atol=SETTLED * typical):
            break
        means = pooled.means
        common = pooled.covariances.mean(axis=0)
    return pooled


def _reweight(marked: Sequence[_Marks], means: np.ndarray, common: np.ndarray) -> _Pooled:
    """One round: the weights of the marks around these means, and all that follows from them."""
    weighted = []
    for marks, mean in zip(marked, means, strict=True):
        weights = _weights(marks.points, mean, common)
        weighted.append(_WeightedMarks(marks.points, weights))
    scatters = _Scatters.of(weighted)
    covariances = _shrink(scatters, _estimate_prior(scatters))
    return _Pooled(tuple(weighted), scatters, covariances)


def _weights(points: np.ndarray, mean: np.ndarray, common: np.ndarray) -> np.ndarray:
    """Full weight within the trusted distance, falling with its square beyond.

    Distances are relative to the common covariance, and to the median at the
    landmark.
    """
    d = len(mean)
    centred = points - mean
    squared = np.einsum("ra,ab,rb->r", centred, np.linalg.inv(common), centred)
    scale = float(np.median(squared)) / quantile(0.5, d)
    trusted = quantile(TRUSTED, d) * max(scale, LEAST_SCALE)
    # A mark may coincide with the mean: its weight is 1, and not a division by zero.
    return np.minimum(1, trusted / np.maximum(squared, 1e-300))


def _first_common(marked: Sequence[_Marks], means: np.ndarray) -> np.ndarray:
    """An isotropic covariance from the distances of marks to the medians of their landmarks."""
    d = means.shape[1]
    distances = []
    for marks, mean in zip(marked, means, strict=True):
        if len(marks.points) > 1:
            distances.append(np.sum((marks.points - mean) ** 2, axis=1))

    typical = float(np.mean([np.median(squared) for squared in distances]))
    variance = typical / quantile(0.5, d)
    if variance == 0:
        # Most marks coincide: the few that do not have to say how far marks spread.
        variance = float(np.mean(np.concatenate(distances))) / d
    if not variance > 0:
        raise LandmarkError(
            "pooling: the raters agree exactly, so nothing is known of their spread; "
            "are these copies?"
        )
    return variance * np.eye(d)


# ---------------------------------------------------------------------------- shrunk covariances


def _estimate_prior(scatters: _Scatters) -> _CovariancePrior:
    """Σ₀ from all scatters together, and m by the marginal likelihood."""
    d = scatters.matrices.shape[1]
    total = scatters.matrices.sum(axis=0)
    freedom = scatters.freedom.sum()
    # Worth d marks more, which err the same along every axis, so that Σ₀ is never singular.
    isotropic = np.trace(total) / d * np.eye(d) / freedom
    common = (total + d * isotropic) / (freedom + d)
    evidence = _log_marginal(PRIOR_RATERS, common, scatters)
    strength = PRIOR_RATERS[np.argmax(evidence)]
    return _CovariancePrior(common, float(strength))


def _shrink(scatters: _Scatters, prior: _CovariancePrior) -> np.ndarray:
    """(n, d, d) E[Σᵢ | Sᵢ] = (mΣ₀ + Sᵢ)/(m + kᵢ)."""
    m = prior.strength
    total = m * prior.common + scatters.matrices
    return total / (m + scatters.freedom)[:, None, None]


def _log_marginal(m: np.ndarray, common: np.ndarray, scatters: _Scatters) -> np.ndarray:
    """log p(S | m) for each m, up to a constant.

    Scatters are Wishart given Σᵢ, and Σᵢ is inverse Wishart with ν = m + d + 1
    degrees of freedom and scale Ψ = mΣ₀, so that its mean is Σ₀.
    """
    d = len(common)
    nu = m[:, None] + d + 1
    psi = m[:, None, None, None] * common
    nu_after = nu + scatters.freedom
    psi_after = psi + scatters.matrices
    log_dets = nu * _log_det(psi) - nu_after * _log_det(psi_after)
    log_gammas = multigammaln(nu_after / 2, d) - multigammaln(nu / 2, d)
    return np.sum(log_dets / 2 + log_gammas, axis=1)


def _log_det(matrices: np.ndarray) -> np.ndarray:
    return np.linalg.slogdet(matrices)[1]


def _chance(mark: np.ndarray, others: np.ndarray, prior: _CovariancePrior) -> float:
    """Probability of a mark at least so far from those of the k others, if all raters are alike.

    The mark itself has no say in how wide the spread is. Σᵢ given the scatter S of
    the others is inverse Wishart around mΣ₀ + S, so the distance of the mark from
    their mean is Student's t, and its square Fisher's F.
    """
    k, d = others.shape
    unweighted = _WeightedMarks(others, np.ones(k))
    miss = mark - unweighted.mean
    spread = prior.strength * prior.common + unweighted.scatter
    freedom = prior.strength + k + 1
    # The mean of k marks errs, too: the variance of the difference is 1 + 1/k times that of a mark.
    squared = float(miss @ np.linalg.solve(spread, miss)) * freedom / (1 + 1 / k)
    return float(fdtrc(d, freedom, squared / d))
