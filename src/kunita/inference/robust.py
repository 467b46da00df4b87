"""Heavy-tailed noise: Student's t as a Gaussian whose precision is itself uncertain, landmark by
landmark.

εᵢ ~ t_ν(0, Dᵢ) is εᵢ | wᵢ ~ N(0, Dᵢ/wᵢ) with wᵢ ~ Gamma(ν/2, ν/2). Given the weights everything is
as before, with Dᵢ/wᵢ for the noise; given the posterior of the deformation, the weights' posterior
mean is closed. The two in turn ascend a lower bound of the evidence (variational Bayes), and so
does the choice of the parameters in between.
"""

import numpy as np
from scipy.special import gammaincinv

from kunita.inference.trend import procrustes

FREEDOM = 4.0
"""ν: small enough that a gross error hardly pulls, large enough that clean landmarks weigh about
the same."""

REWEIGHTINGS = 50

SETTLED_WEIGHT = 1e-3
"""No weight changes by more than this any longer."""


def student_weights(
    residuals: np.ndarray, covariances: np.ndarray, noise: np.ndarray
) -> np.ndarray:
    """E[wᵢ] = (ν + d) / (ν + E[εᵢᵀDᵢ⁻¹εᵢ]), (n,), where εᵢ has mean rᵢ and covariance Cᵢ under the
    posterior.

    Args:
        residuals: (n, d) rᵢ, fixed points less their posterior mean, mm.
        covariances: (n, d, d) Cᵢ, the posterior's at the landmarks, mm².
        noise: (n, d, d) Dᵢ, of a landmark of weight one, mm².
    """
    second = residuals[:, :, None] * residuals[:, None, :] + covariances
    expected = np.trace(np.linalg.solve(noise, second), axis1=1, axis2=2)
    return (FREEDOM + residuals.shape[1]) / (FREEDOM + expected)


def first_weights(align: str, moving: np.ndarray, fixed: np.ndarray) -> np.ndarray:
    """Weights from the alignment alone, whose scale is the median residual's: (n,).

    The bound has several maxima: in one of them a short length scale explains the gross errors as
    deformation. Started from here, what even the stiffest prior finds far off has to earn its
    weight.
    """
    d = moving.shape[1]
    weights = np.ones(len(moving))
    for _ in range(REWEIGHTINGS):
        found = procrustes(align, moving, fixed, weights)
        residuals = fixed - ((moving - found.center) @ np.asarray(found.matrix).T + found.offset)
        squared = np.sum(residuals**2, axis=1)
        variance = float(np.median(squared)) / (2 * gammaincinv(d / 2, 0.5))  # the median of χ²
        if not variance > 0:
            return np.ones(len(moving))
        weights = (FREEDOM + d) / (FREEDOM + squared / variance)
    return weights
