"""Landmark pairs to plant errors in, and a look at them."""

import numpy as np

from kunita.suspects.search import suspicion
from problems import rotation

N = {2: 12, 3: 15}
"""Landmarks, by dimension."""

LABELS = tuple(f"p{i}" for i in range(1, 41))


def pairs(seed, d=3, n=None, sd=1.0):
    """Landmarks 60 mm wide, turned and shifted, with a smooth deformation of some 2 mm and a noise
    of 1 mm."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(0, 60, (n or N[d], d))
    gram = np.exp(-np.sum((x[:, None] - x) ** 2, axis=2) / (2 * 40.0**2))
    smooth = 2 * np.linalg.cholesky(gram + 1e-9 * np.eye(len(x))) @ rng.normal(size=x.shape)
    return x, (x + smooth + sd * rng.normal(size=x.shape)) @ rotation(d, seed).T + 5


def ones(x):
    return np.broadcast_to(np.eye(x.shape[1]), (*x.shape, x.shape[1]))


def look(x, f, align="rigid", noise=None, known=False):
    return suspicion(x, f, ones(x) if noise is None else noise, align, known=known)
