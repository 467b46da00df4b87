"""How good were predictions with their uncertainties? Errors, coverage, log score, calibration."""

import dataclasses

import numpy as np
from scipy.special import bdtr, bdtrik, gammainc

LEVELS = (0.50, 0.80, 0.90, 0.95, 0.99)
"""The probabilities of the regions whose coverage is reported."""

CALIBRATION_LEVELS = tuple(k / 20 for k in range(1, 20))
"""0.05, 0.10 … 0.95: the regions whose coverage the calibration error averages over."""

RESAMPLES = 2000
"""How often a bootstrap draws."""

LEAST_CASES = 3
"""With fewer cases there is nothing to resample, and no interval."""


@dataclasses.dataclass(frozen=True)
class Scores:
    """The scores of a set of predictions.

    Args:
        error_mm: the mean error, mm.
        coverage: the share of true points inside the region of each of `LEVELS`.
        nll: the mean negative log density, nats.
    """

    error_mm: float
    coverage: tuple[float, ...]
    nll: float


def scores(
    errors: np.ndarray,
    squared: np.ndarray,
    covariances: np.ndarray,
    freedom: np.ndarray | None = None,
) -> Scores:
    """Score a set of predictions.

    Args:
        errors: (n,) distances, mm.
        squared: (n,) squared standardised errors.
        covariances: (n, d, d) that were predicted, mm².
        freedom: (n,) how many directions of each point were observed; by default all d.
    """
    if freedom is None:
        freedom = np.full(len(squared), covariances.shape[-1])
    transformed = pit(squared, freedom)
    coverage = covered(transformed, LEVELS).mean(axis=0)
    return Scores(
        error_mm=float(np.mean(errors)),
        coverage=tuple(float(share) for share in coverage),
        nll=float(log_scores(squared, covariances, freedom).mean()),
    )


def log_scores(
    squared: np.ndarray, covariances: np.ndarray, freedom: np.ndarray | None = None
) -> np.ndarray:
    """(n,) negative log densities of what was observed, −log N(e; 0, C), in nats.

    Of a point that was observed along some directions only, `freedom` of them, C has no other
    variance, and the density is that along these directions.
    """
    d = covariances.shape[-1]
    if freedom is None:
        freedom = np.full(len(squared), d)
    log_det = np.linalg.slogdet(covariances)[1]
    for i in np.flatnonzero(freedom < d):
        log_det[i] = _log_det_of_largest(covariances[i], freedom[i])
    constant = freedom * np.log(2 * np.pi)
    doubled = squared + log_det + constant
    return 0.5 * doubled


def _log_det_of_largest(covariance: np.ndarray, count: int | np.integer) -> float:
    """log of the product of so many of the variances along principal axes, the largest."""
    variances = np.linalg.eigvalsh(covariance)
    first = len(variances) - count
    logarithms = np.log(variances[first:])
    return float(np.sum(logarithms))


# -------------------------------------------------------------------------------------- predictions


@dataclasses.dataclass(frozen=True, eq=False)
class Predictions:
    """Points that were predicted without being seen, and where they were found.

    Args:
        means: (n, d) where they were predicted, mm.
        covariances: (n, d, d) of the predictions, the noise of the observation included, mm².
        observed: (n, d) where they were found, mm.
    """

    means: np.ndarray
    covariances: np.ndarray
    observed: np.ndarray

    def __len__(self) -> int:
        return len(self.means)

    @property
    def misses(self) -> np.ndarray:
        """(n, d) from the prediction to where the point was found, mm."""
        return self.observed - self.means

    @property
    def errors(self) -> np.ndarray:
        """(n,) distances, mm."""
        misses = self.misses
        return np.linalg.norm(misses, axis=1)

    @property
    def squared(self) -> np.ndarray:
        """(n,) squared standardised errors eᵀC⁻¹e.

        They are χ² of d degrees of freedom if the predictions are calibrated.
        """
        misses = self.misses
        columns = misses[..., None]
        solved = np.linalg.solve(self.covariances, columns)
        products = misses * solved[..., 0]
        return np.sum(products, axis=1)

    @property
    def pit(self) -> np.ndarray:
        """(n,) the probability of the smallest region that holds each point."""
        dimension = self.means.shape[1]
        return pit(self.squared, dimension)

    @property
    def log_scores(self) -> np.ndarray:
        """(n,) negative log densities."""
        return log_scores(self.squared, self.covariances)

    @property
    def stds(self) -> np.ndarray:
        """(n,) predicted standard deviations along a typical axis, √(tr C / d), mm.

        They include the noise of the observation.
        """
        dimension = self.means.shape[1]
        trace = np.trace(self.covariances, axis1=1, axis2=2)
        variance = trace / dimension
        return np.sqrt(variance)


# -------------------------------------------------------------------------------------- calibration


def pit(squared: np.ndarray, dimension: int | np.ndarray) -> np.ndarray:
    """Probability integral transform F_χ²(eᵀC⁻¹e; d).

    It is uniform on [0, 1] if the predictions are calibrated.
    """
    # The distribution function of χ²; scipy.stats has it too, but takes long to import.
    return gammainc(dimension / 2, squared / 2)


def covered(transformed: np.ndarray, levels: tuple[float, ...]) -> np.ndarray:
    """(n, l) whether each point is inside its region of each probability.

    The mean over the points is the coverage.
    """
    column = transformed[:, None]
    return column <= np.array(levels)


def calibrated_coverage(
    n: int, levels: np.ndarray, probability: float
) -> tuple[np.ndarray, np.ndarray]:
    """The range of coverage that n calibrated predictions have, with this probability.

    How many of n independent points are inside their regions is binomial.

    Args:
        n: the number of predictions.
        levels: the probabilities of the regions.
        probability: of the coverage being within the range, at each level.
    """
    inner = np.clip(levels, 1e-9, 1 - 1e-9)
    half = probability / 2
    low = _binomial_quantile(0.5 - half, n, inner)
    high = _binomial_quantile(0.5 + half, n, inner)
    return low / n, high / n


def _binomial_quantile(q: float, n: int, p: np.ndarray) -> np.ndarray:
    """The least k with P(at most k of n) ≥ q."""
    # A real number; where P(0 of n) ≥ q already there is no inverse, and SciPy may return NaN.
    inverse = np.nan_to_num(bdtrik(q, n, p), nan=0.0)
    k = np.ceil(inverse - 1e-9)
    # Rounding may have made it one too large.
    below = np.maximum(k - 1, 0)
    reached = bdtr(below, n, p) >= q
    one_less = (k > 0) & reached
    least = np.maximum(k, 0)
    return np.where(one_less, k - 1, least)


def calibration_error(
    coverage: np.ndarray, levels: tuple[float, ...] = CALIBRATION_LEVELS
) -> np.ndarray | np.floating:
    """Mean of |coverage − level| over the levels, which are the last axis.

    It is 0 for calibrated predictions, and at most about ½.
    """
    expected = np.array(levels)
    differences = np.abs(coverage - expected)
    return differences.mean(axis=-1)


def rank_correlation(stds: np.ndarray, errors: np.ndarray) -> float | None:
    """Spearman's correlation: whether errors are large where they were predicted to be.

    None where the predicted standard deviations do not differ.
    """
    if np.ptp(stds) <= 1e-12 * np.max(stds):
        return None
    from scipy.stats import spearmanr  # takes long to import

    return float(spearmanr(stds, errors).statistic)


@dataclasses.dataclass(frozen=True, eq=False)
class Sparsification:
    """What is left of the mean error when the most uncertain predictions are set aside.

    Args:
        fractions: (n,) shares that are set aside, 0 … (n − 1)/n.
        remaining_mm: (n,) mean error of the rest, where those with the largest predicted
            standard deviation go first.
        oracle_mm: (n,) the same where those with the largest error go first: no order does
            better.
    """

    fractions: np.ndarray
    remaining_mm: np.ndarray
    oracle_mm: np.ndarray

    @property
    def area(self) -> float:
        """Area between the two curves over the mean error: 0 for the oracle's order."""
        mean_error = float(self.remaining_mm[0])
        if not mean_error > 0:
            return 0.0
        excess = self.remaining_mm - self.oracle_mm
        return float(np.trapezoid(excess, self.fractions)) / mean_error


def sparsification(errors: np.ndarray, stds: np.ndarray) -> Sparsification:
    """Set aside the most uncertain predictions one by one.

    Which of equally uncertain predictions goes first is left to chance: each counts with the
    mean error of its group.
    """
    _, group = np.unique(stds, return_inverse=True)
    group_means = np.bincount(group, errors) / np.bincount(group)
    expected = group_means[group]
    by_certainty = expected[np.argsort(stds)]
    by_error = np.sort(errors)
    kept = np.arange(len(errors), 0, -1)
    return Sparsification(
        fractions=1 - kept / len(errors),
        remaining_mm=_means_of_first(by_certainty)[::-1],
        oracle_mm=_means_of_first(by_error)[::-1],
    )


def _means_of_first(values: np.ndarray) -> np.ndarray:
    """(n,) means of the first, the first two, … and all of the values."""
    counts = np.arange(1, len(values) + 1)
    totals = np.cumsum(values)
    return totals / counts


# ---------------------------------------------------------------------------------------- intervals


@dataclasses.dataclass(frozen=True)
class Interval:
    """A mean, and the 95 % interval of a bootstrap over cases.

    There is no interval where there are fewer than `LEAST_CASES`.
    """

    value: float
    low: float | None
    high: float | None

    @property
    def holds_zero(self) -> bool:
        """Whether the sign is open, as it is without an interval."""
        if self.low is None or self.high is None:
            return True
        return self.low <= 0 <= self.high


def case_draws(num_cases: int, seed: int, resamples: int = RESAMPLES) -> np.ndarray:
    """(r, k) cases drawn with replacement.

    Cases are drawn, not landmarks, since landmarks share a registration and a patient.
    """
    rng = np.random.default_rng(seed)
    shape = (resamples, num_cases)
    return rng.integers(num_cases, size=shape)


def pooled_means(values: np.ndarray, owners: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """(r, q) means over all landmarks of the cases in each draw.

    Args:
        values: (n, q) of the landmarks.
        owners: (n,) the case of each landmark, 0 … k − 1.
        draws: (r, k) of cases.
    """
    num_cases = draws.shape[1]
    totals = np.zeros((num_cases, values.shape[1]))
    np.add.at(totals, owners, values)
    counts = np.bincount(owners, minlength=num_cases)
    drawn_totals = totals[draws].sum(axis=1)
    drawn_counts = counts[draws].sum(axis=1)
    return drawn_totals / drawn_counts[:, None]


def interval(value: float, resampled: np.ndarray, num_cases: int) -> Interval:
    """A value with the middle 95 % of what the resampled cases gave."""
    if num_cases < LEAST_CASES:
        return Interval(float(value), None, None)
    low, high = np.quantile(resampled, (0.025, 0.975))
    return Interval(float(value), float(low), float(high))
