"""scikit-shapes: its extrinsic (LDDMM) deformation with the points' squared distance as loss, on
KeOps kernels.

The same energy as ours up to a factor: with a kernel of unit amplitude the flow's energy has weight
2·noise²/amplitude² beside the squared distances. Ten Runge–Kutta steps; its L-BFGS takes twenty
iterations a step, a hundred in all. It works in 32 bits.
"""

import sys
from pathlib import Path

import numpy as np
import skshapes
import torch

sys.path.append(str(Path(__file__).resolve().parents[1]))

from trial import PointMap, Problem, in_chunks, main

STEPS = 10
ROUNDS = 5
"""Of twenty iterations."""

CHUNK = 8000
"""Points carried at once."""


def model(problem: Problem, control_points: bool) -> skshapes.ExtrinsicDeformation:
    """The flow, carried by the shape's own points or by others."""
    return skshapes.ExtrinsicDeformation(
        n_steps=STEPS,
        kernel="gaussian",
        scale=problem.length_scale,
        control_points=control_points,
        solver="rk4",
    )


def shape(points: np.ndarray, carriers: skshapes.PolyData | None = None) -> skshapes.PolyData:
    """Points as a shape."""
    return skshapes.PolyData(torch.from_numpy(points).float(), control_points=carriers)


def fit(problem: Problem) -> PointMap:
    """The momenta of least energy, and the map that they give."""
    registration = skshapes.Registration(
        model=model(problem, control_points=False),
        loss=skshapes.L2Loss(),
        optimizer=skshapes.LBFGS(),
        regularization_weight=2 * problem.noise**2 / problem.amplitude**2,
        n_iter=ROUNDS,
        gpu=False,
    )
    moving = shape(problem.moving)
    registration.fit(source=moving, target=shape(problem.fixed))
    carry = model(problem, control_points=True)
    parameter = registration.parameter_

    def move(points: np.ndarray) -> np.ndarray:
        morphed = carry.morph(shape(points, moving), parameter.clone().detach()).morphed_shape
        return morphed.points.detach().numpy().astype(float)

    return lambda points: in_chunks(move, points, CHUNK)


if __name__ == "__main__":
    main({"extrinsic": fit}, compiles=True)
