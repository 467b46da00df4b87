"""Whether landmarks beside images contradict them.

Given everything, a landmark y with the precision P has the posterior mean m and covariance V. If
the model holds, its force s = P(y − m) has the covariance P − PVP. So sᵀ(P − PVP)⁻s is χ², with as
many degrees of freedom as the landmark has known directions. It is also the squared distance, in
standard deviations, from where the images and the other landmarks put it.
"""

import numpy as np
from jaxtyping import Float
from scipy import stats

from kunita.jaxrun.doors import Array

MOST_EXPLAINED = 0.9
"""The share of its own noise that a landmark's posterior may have: covariances from draws may say
more than all of it."""

KNOWN = 1e-9
"""Directions whose precision is below this share of the largest are not known."""


def chances(
    miss: Float[Array, "k d"],
    precisions: Float[Array, "k d d"],
    covariances: Float[Array, "k d d"],
) -> Float[Array, " k"]:
    """How likely each landmark is to be at least so far away, if it is as exact as it says.

    Args:
        miss: y − m.
        precisions: P.
        covariances: V of the posterior at the landmarks, these included.
    """
    found = [_chance(*of_one) for of_one in zip(miss, precisions, covariances, strict=True)]
    return np.array(found)


def _chance(
    miss: Float[Array, " d"], precision: Float[Array, "d d"], covariance: Float[Array, "d d"]
) -> float:
    """The chance of one landmark."""
    values, vectors = np.linalg.eigh(precision)
    is_known = values > KNOWN * values.max(initial=0.0)
    if not is_known.any():
        return 1.0
    # In units of the noise, along the known directions.
    root = np.sqrt(values[is_known])[:, None] * vectors[:, is_known].T
    explained, axes = np.linalg.eigh(root @ covariance @ root.T)
    left = 1 - np.minimum(explained, MOST_EXPLAINED)
    along = axes.T @ (root @ miss)
    return float(stats.chi2.sf(np.sum(along**2 / left), len(along)))
