"""The problems that all peers are given: draws of a Gaussian process in 3-D, and the circle that
becomes a flower.
"""

from pathlib import Path

import numpy as np
import scipy.linalg
from fit_speed import displaced
from peers.trial import Problem, write_problem

from kunita.experiments import synthetic
from kunita.phantoms.shapes import circle, flower

FLOWER = "flower"
DENSE = "dense "
"""Begins the name of a problem whose evaluation is timed."""

SIZES = (37, 300, 1000, 5000)
DENSE_SIZES = (37, 300)
HELD_OUT = 500
SIDE_MM, LENGTH_SCALE_MM, AMPLITUDE_MM, NOISE_MM = 150.0, 50.0, 5.0, 1.0
JITTER = 1e-9
"""On the diagonal of the Gram matrix, as in the draw of the landmarks."""

FOLD_SIDE, FLOWER_SIDE, DENSE_SIDE = 40, 64, 128
"""Points along a side of the grid, for folds in 3-D and in 2-D, and for dense evaluation."""


def problem(name: str) -> Problem:
    """The problem of a name: `37`, `flower`, `dense 300`."""
    if name == FLOWER:
        return circle_to_flower()
    if name.startswith(DENSE):
        return drawn(int(name.removeprefix(DENSE)), DENSE_SIDE, dense=True)
    return drawn(int(name), FOLD_SIDE)


def stored(name: str, folder: Path) -> Path:
    """Where a problem is stored; it is made once."""
    path = folder / f"{name.replace(' ', '-')}.npz"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_problem(path, problem(name))
    return path


def drawn(n: int, side: int, dense: bool = False) -> Problem:
    """The landmarks of `fit_speed.displaced`, and held-out points displaced by the same draw."""
    moving, fixed = displaced(n)
    held = np.random.default_rng([n, 1]).uniform(0, SIDE_MM, (HELD_OUT, 3))
    truth = held + continued(moving, fixed - moving, held, seed=n)
    low, high = np.zeros(3), np.full(3, SIDE_MM)
    return Problem(
        moving, fixed, held, truth, low, high, side, LENGTH_SCALE_MM, AMPLITUDE_MM, NOISE_MM, dense
    )


def continued(x: np.ndarray, u: np.ndarray, z: np.ndarray, seed: int) -> np.ndarray:
    """The displacement at z, drawn given that at the landmarks x: together they are one draw of the
    process.

    The landmarks' displacements were scaled after they were drawn, so the process' amplitude s is
    read from them: 3n s² = uᵀK⁻¹u.
    """
    factor = np.linalg.cholesky(gram(x, x) + JITTER * np.eye(len(x)))
    white, half = (scipy.linalg.solve_triangular(factor, b, lower=True) for b in (u, gram(x, z)))
    amplitude = np.sqrt(np.mean(white**2))
    root = np.linalg.cholesky(gram(z, z) - half.T @ half + 10 * JITTER * np.eye(len(z)))
    return half.T @ white + amplitude * root @ np.random.default_rng([seed, 2]).normal(size=z.shape)


def gram(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The Gaussian kernel of unit amplitude."""
    square = np.sum(x**2, axis=1)[:, None] + np.sum(y**2, axis=1) - 2 * x @ y.T
    return np.exp(-np.maximum(square, 0) / (2 * LENGTH_SCALE_MM**2))


def circle_to_flower() -> Problem:
    """The paper's synthetic experiment with its parameters; other points of the circle are held
    out.
    """
    settings = synthetic.FULL
    paper = settings.parameters[0]
    shape = settings.radius_mm, settings.petal_height, settings.petals
    moving, fixed = (
        circle(settings.num_landmarks, settings.radius_mm),
        flower(settings.num_landmarks, *shape),
    )
    held, truth = circle(HELD_OUT, settings.radius_mm), flower(HELD_OUT, *shape)
    half = np.full(2, settings.box_mm / 2)
    scales = paper.length_scale_mm, paper.amplitude_mm, paper.noise_mm
    return Problem(moving, fixed, held, truth, -half, half, FLOWER_SIDE, *scales)
