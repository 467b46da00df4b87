"""Closed curves: the circle and the flower of the paper's synthetic experiment."""

import numpy as np


def circle(num_points: int = 64, radius: float = 10.0) -> np.ndarray:
    """Points on a circle, (n, 2) mm."""
    return flower(num_points, radius, amplitude=0.0)


def flower(
    num_points: int = 64, radius: float = 10.0, amplitude: float = 0.3, petals: int = 5
) -> np.ndarray:
    """Points on a flower r(θ) = radius·(1 + amplitude·cos(petals·θ)), homologous to those of
    `circle`, (n, 2) mm.
    """
    theta = 2 * np.pi * np.arange(num_points) / num_points
    r = radius * (1 + amplitude * np.cos(petals * theta))
    return np.stack([r * np.cos(theta), r * np.sin(theta)], axis=1)
