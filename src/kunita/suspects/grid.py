"""The noise of landmarks, and the grid of hyper-parameters that is averaged over."""

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np

from kunita import numerics
from kunita.suspects.point_sets import PointSets

LENGTHS = 6
"""Length scales of the grid, from half the landmarks' spacing to twice their extent."""

RATIOS = np.array([0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 64.0])
"""Amplitudes of the grid, as multiples of the noise; zero is the alignment alone."""

KNOWN_SIZES = 4
"""Amplitudes of the grid where the noise is known; there are as many white standard
deviations less one. Both come with zero in addition."""


@dataclasses.dataclass(frozen=True, eq=False)
class Noise:
    """Localisation covariances in fixed space, (n, d, d), mm².

    Args:
        covariances: of the landmarks.
        known: whether their level is known; else only their relative sizes are, and
            the level τ² is integrated out.
    """

    covariances: np.ndarray
    known: bool

    def take(self, rows: np.ndarray) -> "Noise":
        """The noise of some landmarks."""
        covariances = self.covariances[rows]
        return Noise(covariances, self.known)

    @property
    def level(self) -> float:
        """s², the mean variance along an axis, mm²."""
        d = self.covariances.shape[1]
        traces = np.trace(self.covariances, axis1=1, axis2=2)
        return float(np.mean(traces)) / d


@dataclasses.dataclass(frozen=True, eq=False)
class HyperparameterGrid:
    """Points θ of the grid.

    Args:
        values: (g, 3) length scale σ, mm; amplitude a and standard deviation w of a
            white part, both in units of the noise.
        shares: (g,) proportional to the prior probability of each point.
    """

    values: np.ndarray
    shares: np.ndarray

    def __len__(self) -> int:
        return len(self.values)

    @property
    def amplitudes(self) -> np.ndarray:
        return self.values[:, 1]

    def scales_and_whites(self) -> Iterator[tuple[float, float, np.ndarray]]:
        """Each pair of a length scale and a white part once, with the rows that share it."""
        pairs = self.values[:, ::2]
        for pair in np.unique(pairs, axis=0):
            same = (pairs == pair).all(axis=1)
            scale, white = pair
            yield scale, white, np.flatnonzero(same)

    def take(self, rows: np.ndarray) -> "HyperparameterGrid":
        """Some of the points."""
        values = self.values[rows]
        shares = self.shares[rows]
        return HyperparameterGrid(values, shares)


def full_grid(sets: PointSets, noise: Noise) -> HyperparameterGrid:
    """All combinations of length scales, amplitudes and white parts."""
    scales = _length_scales(sets.moving)
    amplitudes = RATIOS
    whites = np.zeros(1)
    if noise.known:
        amplitudes, whites = _known_sizes(sets, noise)
    values = np.array(list(itertools.product(scales, amplitudes, whites)))
    # Without a deformation its length scale means nothing: such points are one.
    values[values[:, 1] == 0, 0] = scales[0]
    values, shares = np.unique(values, axis=0, return_counts=True)
    return HyperparameterGrid(values, shares)


def _length_scales(points: np.ndarray) -> np.ndarray:
    """From half the landmarks' spacing to twice their extent, mm."""
    # Where all points coincide any length serves.
    extent, spacing = numerics.extent_and_spacing(points, otherwise=1.0)
    return np.geomspace(0.5 * spacing, 2 * extent, LENGTHS)


def _known_sizes(sets: PointSets, noise: Noise) -> tuple[np.ndarray, np.ndarray]:
    """Amplitudes and white standard deviations over a known noise, up to the displacements' size.

    The noise of localisation may be known, and two brains still differ from
    landmark to landmark by more than that, and in no smooth way. Without a white
    part, places that vary between people would be suspect.
    """
    y = sets.displacements(sets.given_order)
    centred = y - y.mean(axis=0)
    spread = np.sqrt(np.mean(centred**2))
    # In units of the noise.
    largest = float(spread / np.sqrt(noise.level))
    amplitudes = _zero_and_sizes(3 * largest, KNOWN_SIZES)
    whites = _zero_and_sizes(largest, KNOWN_SIZES - 1)
    return amplitudes, whites


def _zero_and_sizes(most: float, count: int) -> np.ndarray:
    sizes = np.geomspace(0.5, max(most, 2.0), count)
    return np.r_[0.0, sizes]
