"""Heavy-tailed noise: Student's t as a Gaussian whose precision is itself uncertain.

εᵢ ~ t_ν(0, Dᵢ) is εᵢ | wᵢ ~ N(0, Dᵢ/wᵢ) with wᵢ ~ Gamma(ν/2, ν/2), a weight for
each landmark. Given the weights everything is as before, with Dᵢ/wᵢ for the noise;
given the posterior of the deformation, the posterior mean of the weights is in
closed form. The two in turn ascend a lower bound of the evidence (variational
Bayes), and so does the estimation of the hyper-parameters in between.
"""

from collections.abc import Sequence

import numpy as np
from scipy.special import gammaincinv

from kunita.inference.leave_out import LeaveOneOut
from kunita.inference.trend import procrustes

FREEDOM = 4.0
"""ν: small enough that a gross error hardly pulls, large enough that clean
landmarks weigh about the same."""

REWEIGHTINGS = 50
"""The most rounds of weighing."""

SETTLED_WEIGHT = 1e-3
"""The weights have settled when none changes by more than this."""


def student_weights(
    residuals: np.ndarray, covariances: np.ndarray, noise: np.ndarray
) -> np.ndarray:
    """E[wᵢ] = (ν + d) / (ν + E[εᵢᵀDᵢ⁻¹εᵢ]), (n,).

    Under the posterior εᵢ has mean rᵢ and covariance Cᵢ, so that E[εᵢᵀDᵢ⁻¹εᵢ] is
    the trace of Dᵢ⁻¹(rᵢrᵢᵀ + Cᵢ).

    Args:
        residuals: (n, d) rᵢ, fixed points less their posterior mean, mm.
        covariances: (n, d, d) Cᵢ, of the posterior at the landmarks, mm².
        noise: (n, d, d) Dᵢ, of a landmark of weight one, mm².
    """
    columns = residuals[:, :, None]
    rows = residuals[:, None, :]
    second_moments = columns * rows + covariances
    standardised = np.linalg.solve(noise, second_moments)
    expected = np.trace(standardised, axis1=1, axis2=2)
    return _weights_of(expected, residuals.shape[1])


def _weights_of(squared: np.ndarray, dimension: int) -> np.ndarray:
    """(ν + d) / (ν + χ²) for (n,) squared standardised errors χ²."""
    expected = FREEDOM + squared
    return (FREEDOM + dimension) / expected


def first_weights(align: str, moving: np.ndarray, fixed: np.ndarray) -> np.ndarray:
    """Weights from the alignment alone, (n,); the median residual sets the scale of the noise.

    The bound has several maxima: in one of them a short length scale explains the
    gross errors as deformation. Started from here, what even the stiffest prior
    finds far off has to earn its weight.
    """
    d = moving.shape[1]
    median_of_chi2 = 2 * gammaincinv(d / 2, 0.5)
    weights = np.ones(len(moving))
    for _ in range(REWEIGHTINGS):
        squared = _squared_residuals(align, moving, fixed, weights)
        typical = float(np.median(squared))
        variance = typical / median_of_chi2
        if not variance > 0:
            return np.ones(len(moving))
        weights = _weights_of(squared / variance, d)
    return weights


def _squared_residuals(
    align: str, moving: np.ndarray, fixed: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    """|f − A(x − c) − b|², (n,), of the alignment by weighted least squares."""
    alignment = procrustes(align, moving, fixed, weights)
    residuals = fixed - alignment(moving)
    return np.sum(residuals**2, axis=1)


def with_full_weights(
    found: LeaveOneOut,
    fixed: np.ndarray,
    noise: np.ndarray,
    weights: np.ndarray,
    directions: Sequence[np.ndarray],
) -> LeaveOneOut:
    """Leave-one-out with every landmark judged as if it had full weight.

    The noise of a landmark of weight w is D/w in a robust fit, and so it is in the
    covariance of its prediction. The weight was found with the landmark, so D takes
    its place here.

    Args:
        found: leave-one-out of the robust fit.
        fixed: (n, d) where the landmarks were observed, mm.
        noise: (n, d, d) D, mm².
        weights: (n,) w.
        directions: (k, d) orthonormal ones along which each landmark is known.
    """
    change = noise - noise / weights[:, None, None]
    covariances = np.array(found.covariance)
    squared = np.zeros(len(fixed))
    for i, known in enumerate(directions):
        covariance = known @ (covariances[i] + change[i]) @ known.T
        miss = known @ (fixed[i] - found.mean[i])
        squared[i] = miss @ np.linalg.solve(covariance, miss)
        covariances[i] = known.T @ covariance @ known
    return LeaveOneOut(
        mean=found.mean,
        covariance=covariances,
        error=found.error,
        chi2=squared,
        known=found.known,
    )
