"""How good were predictions that said how sure they are? Errors, coverage, log score, suspects."""

import dataclasses

import numpy as np
from scipy.stats import chi2

LEVELS = (0.50, 0.80, 0.90, 0.95, 0.99)

SUSPICION = 0.01
"""A landmark is suspect if one so far off is expected in fewer than this fraction of registrations of this size."""


@dataclasses.dataclass(frozen=True)
class Scores:
    """Of a set of predictions: mean error, mm; share of truths inside each region; mean negative log density."""

    error_mm: float
    coverage: tuple[float, ...]
    nll: float


def scores(errors: np.ndarray, squared: np.ndarray, covariances: np.ndarray) -> Scores:
    """Score (n,) distances, (n,) squared standardised errors and the (n, d, d) covariances that were predicted."""
    d = covariances.shape[-1]
    within = tuple(float(np.mean(squared <= chi2.ppf(level, d))) for level in LEVELS)
    density = 0.5 * (squared + np.linalg.slogdet(covariances)[1] + d * np.log(2 * np.pi))
    return Scores(float(np.mean(errors)), within, float(np.mean(density)))


def suspects(squared: np.ndarray, dimension: int) -> np.ndarray:
    """Which of n leave-one-out errors are too large to be chance, the largest of n expected (Šidák)."""
    tail = chi2.sf(squared, dimension)
    return -np.expm1(len(squared) * np.log1p(-np.minimum(tail, 1 - 1e-12))) < SUSPICION
