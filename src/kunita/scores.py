"""How good were predictions that said how sure they are? Errors, coverage, log score, calibration."""

import dataclasses

import numpy as np
from scipy.special import bdtr, bdtrik, gammainc

LEVELS = (0.50, 0.80, 0.90, 0.95, 0.99)

CALIBRATION_LEVELS = tuple(k / 20 for k in range(1, 20))
"""0.05, 0.10 … 0.95: the regions whose coverage the calibration error averages over."""

RESAMPLES = 2000
"""Of a bootstrap."""

LEAST_CASES = 3
"""With fewer there is nothing to resample, and no interval."""


@dataclasses.dataclass(frozen=True)
class Scores:
    """Of a set of predictions: mean error, mm; share of truths inside each region; mean negative
    log density.
    """

    error_mm: float
    coverage: tuple[float, ...]
    nll: float


def scores(errors: np.ndarray, squared: np.ndarray, covariances: np.ndarray) -> Scores:
    """Score (n,) distances, (n,) squared standardised errors and the (n, d, d) covariances that
    were predicted.
    """
    within = covered(pit(squared, covariances.shape[-1]), LEVELS).mean(axis=0)
    return Scores(
        float(np.mean(errors)),
        tuple(float(share) for share in within),
        float(log_scores(squared, covariances).mean()),
    )


def log_scores(squared: np.ndarray, covariances: np.ndarray) -> np.ndarray:
    """(n,) negative log densities of what was observed, −log N(e; 0, C), in nats."""
    d = covariances.shape[-1]
    return 0.5 * (squared + np.linalg.slogdet(covariances)[1] + d * np.log(2 * np.pi))


# -------------------------------------------------------------------------------------- predictions


@dataclasses.dataclass(frozen=True, eq=False)
class Predictions:
    """Points that were predicted without being seen, and where they were found.

    Args:
        means: (n, d) where they were expected, mm.
        covariances: (n, d, d) how surely, the noise of the observation included, mm².
        observed: (n, d) where they were, mm.
    """

    means: np.ndarray
    covariances: np.ndarray
    observed: np.ndarray

    def __len__(self) -> int:
        return len(self.means)

    @property
    def errors(self) -> np.ndarray:
        """(n,) distances, mm."""
        return np.linalg.norm(self.observed - self.means, axis=1)

    @property
    def squared(self) -> np.ndarray:
        """(n,) squared standardised errors eᵀC⁻¹e: χ² of d degrees if all is well."""
        miss = self.observed - self.means
        return np.sum(miss * np.linalg.solve(self.covariances, miss[..., None])[..., 0], axis=1)

    @property
    def pit(self) -> np.ndarray:
        """(n,) the probability of the smallest region that holds each point."""
        return pit(self.squared, self.means.shape[1])

    @property
    def log_scores(self) -> np.ndarray:
        """(n,) negative log densities."""
        return log_scores(self.squared, self.covariances)

    @property
    def stds(self) -> np.ndarray:
        """(n,) predicted standard deviations along a typical axis, √(tr C / d), mm; noise included."""
        return np.sqrt(np.trace(self.covariances, axis1=1, axis2=2) / self.means.shape[1])


# -------------------------------------------------------------------------------------- calibration


def pit(squared: np.ndarray, dimension: int) -> np.ndarray:
    """Probability integral transform F_χ²(eᵀC⁻¹e; d): uniform on [0, 1] if the predictions are
    calibrated.
    """
    return gammainc(dimension / 2, squared / 2)  # the distribution function of χ²


def covered(transformed: np.ndarray, levels: tuple[float, ...]) -> np.ndarray:
    """(n, l) whether each point is inside its region of each probability; the mean over points is
    the coverage.
    """
    return transformed[:, None] <= np.array(levels)


def honest_coverage(
    n: int, levels: np.ndarray, probability: float
) -> tuple[np.ndarray, np.ndarray]:
    """Between which shares of n independent, honest regions of each level hold, with this
    probability: binomial.
    """
    inner = np.clip(levels, 1e-9, 1 - 1e-9)
    ends = [
        _binomial_quantile(q, n, inner) / n for q in (0.5 - probability / 2, 0.5 + probability / 2)
    ]
    return ends[0], ends[1]


def _binomial_quantile(q: float, n: int, p: np.ndarray) -> np.ndarray:
    """The least k with P(at most k of n) ≥ q."""
    k = np.ceil(np.nan_to_num(bdtrik(q, n, p), nan=0.0) - 1e-9)
    return np.where((k > 0) & (bdtr(np.maximum(k - 1, 0), n, p) >= q), k - 1, np.maximum(k, 0))


def calibration_error(
    coverage: np.ndarray, levels: tuple[float, ...] = CALIBRATION_LEVELS
) -> np.ndarray | np.floating:
    """Mean over the levels, along the last axis, of |coverage − level|: 0 if honest, at most about
    ½.
    """
    return np.abs(coverage - np.array(levels)).mean(axis=-1)


def rank_correlation(stds: np.ndarray, errors: np.ndarray) -> float | None:
    """Spearman's: whether errors are large where they were expected to be; None where no difference
    was expected.
    """
    if np.ptp(stds) <= 1e-12 * np.max(stds):
        return None
    from scipy.stats import spearmanr  # takes long to import

    return float(spearmanr(stds, errors).statistic)


@dataclasses.dataclass(frozen=True, eq=False)
class Sparsification:
    """What is left of the mean error when the least sure predictions are set aside.

    Args:
        fractions: (n,) set aside, 0 … (n − 1)/n.
        remaining_mm: (n,) mean error of the rest, where those with the largest predicted sd go
            first.
        oracle_mm: (n,) the same where those with the largest error go first: no order does better.
    """

    fractions: np.ndarray
    remaining_mm: np.ndarray
    oracle_mm: np.ndarray

    @property
    def area(self) -> float:
        """Between the two curves, as a multiple of the mean error: 0 for the oracle's order."""
        apart = float(np.trapezoid(self.remaining_mm - self.oracle_mm, self.fractions))
        return apart / float(self.remaining_mm[0]) if self.remaining_mm[0] > 0 else 0.0


def sparsification(errors: np.ndarray, stds: np.ndarray) -> Sparsification:
    """Set aside the least sure predictions one by one; which of equally sure ones goes first is
    left to chance.
    """
    _, group = np.unique(stds, return_inverse=True)
    expected = (np.bincount(group, errors) / np.bincount(group))[
        group
    ]  # of any that is taken from a group of ties
    kept = np.arange(1, len(errors) + 1)
    remaining, oracle = (
        np.cumsum(values)[::-1] / kept[::-1]
        for values in (expected[np.argsort(stds)], np.sort(errors))
    )
    return Sparsification(1 - kept[::-1] / len(errors), remaining, oracle)


# ---------------------------------------------------------------------------------------- intervals


@dataclasses.dataclass(frozen=True)
class Interval:
    """A mean, and the 95 % interval of a bootstrap over cases; no interval where the cases are too
    few.
    """

    value: float
    low: float | None
    high: float | None

    @property
    def holds_zero(self) -> bool:
        """Whether the sign is open; it is where there is no interval."""
        return self.low is None or self.high is None or self.low <= 0 <= self.high


def case_draws(num_cases: int, seed: int, resamples: int = RESAMPLES) -> np.ndarray:
    """(r, k) cases drawn with replacement: landmarks share a registration and a patient, so cases
    are what varies.
    """
    return np.random.default_rng(seed).integers(num_cases, size=(resamples, num_cases))


def pooled_means(values: np.ndarray, owners: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """(r, q) means over all landmarks of the cases that each draw has.

    Args:
        values: (n, q) of the landmarks.
        owners: (n,) the case of each landmark, 0 … k − 1.
        draws: (r, k) of cases.
    """
    num_cases = draws.shape[1]
    totals = np.zeros((num_cases, values.shape[1]))
    np.add.at(totals, owners, values)
    counts = np.bincount(owners, minlength=num_cases)
    return totals[draws].sum(axis=1) / counts[draws].sum(axis=1)[:, None]


def interval(value: float, resampled: np.ndarray, num_cases: int) -> Interval:
    """A value with the middle 95 % of what resampled cases gave."""
    if num_cases < LEAST_CASES:
        return Interval(float(value), None, None)
    low, high = np.quantile(resampled, (0.025, 0.975))
    return Interval(float(value), float(low), float(high))
