"""Whether landmarks beside images contradict them.

Given everything, a landmark y with the precision P has the posterior mean m and covariance V. If
the model holds, its force s = P(y − m) has the covariance P − PVP, so that sᵀ(P − PVP)⁻s is χ²,
with as many degrees of freedom as the landmark has known directions. From where the images and the
other landmarks alone put it, it is (I − VP)⁻¹(y − m) away: a landmark pulls the map to itself.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import stats

from kunita.jaxrun.doors import Array

MOST_EXPLAINED = 0.95
"""The share of its own noise that a landmark's posterior may have: covariances from draws may say
more than all of it."""

KNOWN = 1e-9
"""Directions whose precision is below this share of the largest are not known."""


class LeftOutMarks(NamedTuple):
    """Landmarks, beside where everything else puts them.

    Args:
        distances: (k,) along the known directions, mm.
        chances: (k,) how likely each is to be at least so far away, if it is as exact as it says.
    """

    distances: np.ndarray
    chances: np.ndarray


def left_out_marks(
    miss: Float[Array, "k d"],
    precisions: Float[Array, "k d d"],
    covariances: Float[Array, "k d d"],
) -> LeftOutMarks:
    """Each landmark without itself.

    Args:
        miss: y − m.
        precisions: P.
        covariances: V of the posterior at the landmarks, these included.
    """
    found = [_left_out(*one) for one in zip(miss, precisions, covariances, strict=True)]
    distances, chances = np.reshape(found, (-1, 2)).T
    return LeftOutMarks(distances, chances)


def _left_out(
    miss: Float[Array, " d"], precision: Float[Array, "d d"], covariance: Float[Array, "d d"]
) -> tuple[float, float]:
    """Distance and chance of one landmark."""
    values, vectors = np.linalg.eigh(precision)
    is_known = values > KNOWN * values.max(initial=0.0)
    if not is_known.any():
        return 0.0, 1.0
    # In units of the noise, along the known directions.
    scale = np.sqrt(values[is_known])
    root = scale[:, None] * vectors[:, is_known].T
    explained, axes = np.linalg.eigh(root @ covariance @ root.T)
    left = 1 - np.minimum(explained, MOST_EXPLAINED)
    along = axes.T @ (root @ miss)
    away = axes @ (along / left) / scale
    chance = stats.chi2.sf(np.sum(along**2 / left), len(along))
    return float(np.linalg.norm(away)), float(chance)
