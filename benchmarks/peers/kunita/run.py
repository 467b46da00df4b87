"""Kunita itself, run as the peers are: the fit with its posterior, and the covariance at every
landmark.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

import kunita
from kunita.evaluation import prepare
from kunita.jaxrun.threads import in_order
from kunita.outputs.dense import slabs
from kunita.outputs.maps import maps

sys.path.append(str(Path(__file__).resolve().parents[1]))

from trial import PointMap, Problem, main


def register(problem: Problem, align: str) -> "kunita.Registration":
    """The registration with the problem's own kernel and noise."""
    kernel = kunita.Gaussian(problem.length_scale, problem.amplitude)
    return kunita.register(
        problem.moving, problem.fixed, kernel=kernel, noise=problem.noise, align=align
    )


def fit(align: str) -> Callable[[Problem], PointMap]:
    """Register and predict the landmarks with their covariances: what the peers do not give is in
    the time.
    """

    def fitted(problem: Problem) -> PointMap:
        posterior = register(problem, align).posterior
        posterior.predict(problem.moving)
        return posterior.move

    return fitted


def predict(problem: Problem, points: np.ndarray) -> Callable[[], object]:
    """Mean and 3 × 3 covariance, in the form and precision that maps are made with, its preparation
    included.
    """
    posterior = register(problem, "none").posterior
    return lambda: prepare(posterior, "float32").predict(points)


def maps_on_grid(problem: Problem, points: np.ndarray) -> Callable[[], object]:
    """Where every voxel comes from, its Jacobian and covariance: as `kunita register` computes them
    for an image.
    """
    del points
    reg, spacing = register(problem, "none"), problem.spacing
    affine = np.diag([*spacing, 1.0])
    affine[:-1, -1] = problem.low
    grid = kunita.Grid((problem.side,) * len(spacing), affine)

    def evaluate() -> None:
        found = maps(reg, grid)
        several = lambda slab: [
            found.pull_back.origins(slab),
            *(found.on(slab, what) for what in ("cov", "jacobian")),
        ]
        for _ in in_order(several, slabs(grid)):
            pass

    return evaluate


def move(problem: Problem, points: np.ndarray) -> Callable[[], object]:
    """The mean alone."""
    posterior = register(problem, "none").posterior
    return lambda: prepare(posterior, "float32").move(points)


if __name__ == "__main__":
    main(
        {"none": fit("none"), "rigid": fit("rigid")},
        {"maps": maps_on_grid, "mean and covariance": predict, "mean": move},
        compiles=True,
    )
