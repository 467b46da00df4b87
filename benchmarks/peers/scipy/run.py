"""SciPy's radial basis functions and scikit-learn's Gaussian process: interpolation of
displacements, for orientation.

Neither knows of diffeomorphisms, so a map may fold; no integration, no iteration: one linear
system. The Gaussian process, and the Gaussian basis functions with its ridge, have our kernel and
noise; thin-plate splines have neither and pass through the landmarks.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy.interpolate import RBFInterpolator
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

sys.path.append(str(Path(__file__).resolve().parents[1]))

from trial import PointMap, Problem, in_chunks, main

CHUNK = 2**16
"""Points evaluated at once, so that the matrices of points × landmarks fit into memory."""


def thin_plate(problem: Problem) -> RBFInterpolator:
    """Interpolation by thin-plate splines."""
    return RBFInterpolator(
        problem.moving, problem.fixed - problem.moving, kernel="thin_plate_spline"
    )


def gaussian(problem: Problem) -> RBFInterpolator:
    """The mean of Gaussian process regression: the ridge is (noise/amplitude)², and no polynomial
    is added.
    """
    return RBFInterpolator(
        problem.moving,
        problem.fixed - problem.moving,
        kernel="gaussian",
        epsilon=1 / (np.sqrt(2) * problem.length_scale),
        smoothing=(problem.noise / problem.amplitude) ** 2,
        degree=-1,
    )


def regression(problem: Problem) -> GaussianProcessRegressor:
    """Gaussian process regression with the parameters given, not searched for."""
    kernel = ConstantKernel(problem.amplitude**2, "fixed") * RBF(problem.length_scale, "fixed")
    process = GaussianProcessRegressor(kernel, alpha=problem.noise**2, optimizer=None)
    return process.fit(problem.moving, problem.fixed - problem.moving)


def splined(make: Callable[[Problem], RBFInterpolator]) -> Callable[[Problem], PointMap]:
    """Fit basis functions and evaluate them at the landmarks, as ours are."""

    def fit(problem: Problem) -> PointMap:
        displacement = make(problem)
        displacement(problem.moving)
        return lambda points: points + in_chunks(displacement, points, CHUNK)

    return fit


def regressed(problem: Problem) -> PointMap:
    """Fit the process and predict the landmarks with their standard deviations, as ours are."""
    process = regression(problem)
    process.predict(problem.moving, return_std=True)
    return lambda points: points + in_chunks(process.predict, points, CHUNK)


def splined_grid(
    make: Callable[[Problem], RBFInterpolator],
) -> Callable[[Problem, np.ndarray], Callable[[], object]]:
    """Basis functions on many points."""

    def prepare(problem: Problem, points: np.ndarray) -> Callable[[], object]:
        displacement = make(problem)
        return lambda: in_chunks(displacement, points, CHUNK)

    return prepare


def regressed_grid(problem: Problem, points: np.ndarray) -> Callable[[], object]:
    """Mean and standard deviation on many points."""
    process = regression(problem)
    both = lambda part: np.column_stack(process.predict(part, return_std=True))
    return lambda: in_chunks(both, points, CHUNK)


if __name__ == "__main__":
    main(
        {"thin plate": splined(thin_plate), "gaussian": splined(gaussian), "regression": regressed},
        {
            "thin plate": splined_grid(thin_plate),
            "gaussian": splined_grid(gaussian),
            "mean and deviation": regressed_grid,
        },
    )
