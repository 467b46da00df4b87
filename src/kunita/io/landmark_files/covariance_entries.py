"""The entries of a covariance that a file lists: the upper triangle, row by row."""

import numpy as np


def entry_names(dimension: int) -> tuple[str, ...]:
    """cov_xx, cov_xy, … in the order in which they are listed."""
    axes = "xyz"[:dimension]
    return tuple(f"cov_{a}{b}" for i, a in enumerate(axes) for b in axes[i:])


def entries(covariances: np.ndarray) -> np.ndarray:
    """(n, d, d) covariances as (n, d(d + 1)/2) entries."""
    row, column = np.triu_indices(covariances.shape[-1])
    return covariances[:, row, column]


def covariances_of(listed: np.ndarray, dimension: int) -> np.ndarray:
    """(n, d(d + 1)/2) entries as (n, d, d) covariances."""
    row, column = np.triu_indices(dimension)
    covariances = np.empty((len(listed), dimension, dimension))
    covariances[:, row, column] = covariances[:, column, row] = listed
    return covariances
