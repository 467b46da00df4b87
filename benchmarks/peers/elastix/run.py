"""Elastix: a B-spline transform that minimises the distance of corresponding points, on a blank
image.

The usual way to give elastix landmarks. It has neither kernel nor noise: the spacing of the
B-spline grid regularises. Its optimiser wants a metric with samples before one of points, hence the
bending energy with weight 0. Elastix maps *fixed* points to moving space, so the two sets change
places here.
"""

import functools
import sys
import tempfile
from pathlib import Path

import itk
import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1]))

from trial import PointMap, Problem, main

KNOTS = 6
"""Intervals of the B-spline grid along the judged box: 25 mm in 3-D, half the length scale."""

VOXELS = 32
"""Of the blank image along each side, at which no metric looks."""

MARGIN = 0.1
"""Of the image beyond the box, as a part of its side."""


def blank(problem: Problem) -> itk.Image:
    """An image around the box."""
    width = (problem.high - problem.low) * (1 + 2 * MARGIN)
    image = itk.image_from_array(np.zeros((VOXELS,) * problem.dimension, dtype=np.float32))
    image.SetSpacing((width / (VOXELS - 1)).tolist())
    image.SetOrigin((problem.low - MARGIN * (problem.high - problem.low)).tolist())
    return image


def parameters(problem: Problem) -> itk.ParameterObject:
    """Elastix's own B-spline parameters, one resolution, the points' distance as metric."""
    spacing = float((problem.high - problem.low)[0]) / KNOTS
    chosen = itk.ParameterObject.GetDefaultParameterMap("bspline", 1, spacing)
    chosen["Metric"] = [
        "TransformBendingEnergyPenalty",
        "CorrespondingPointsEuclideanDistanceMetric",
    ]
    chosen["Metric0Weight"], chosen["Metric1Weight"] = ["0.0"], ["1.0"]
    chosen["WriteResultImage"] = ["false"]
    whole = itk.ParameterObject.New()
    whole.AddParameterMap(chosen)
    return whole


def write_points(path: Path, points: np.ndarray) -> str:
    """Points in elastix's own text format."""
    rows = "\n".join(" ".join(f"{x:.9g}" for x in point) for point in points)
    path.write_text(f"point\n{len(points)}\n{rows}\n")
    return str(path)


def fit(problem: Problem) -> PointMap:
    """Register the two sets of points."""
    image = blank(problem)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _, found = itk.elastix_registration_method(
            image,
            image,
            parameter_object=parameters(problem),
            fixed_point_set_file_name=write_points(folder / "fixed.txt", problem.moving),
            moving_point_set_file_name=write_points(folder / "moving.txt", problem.fixed),
            log_to_console=False,
        )
    return functools.partial(carried, image, found)


def carried(image: itk.Image, found: itk.ParameterObject, points: np.ndarray) -> np.ndarray:
    """Where points go, by transformix."""
    with tempfile.TemporaryDirectory() as name:
        moved = itk.transformix_pointset(
            image,
            found,
            fixed_point_set_file_name=write_points(Path(name) / "points.txt", points),
            output_directory=name,
        )
    d = points.shape[1]
    at = list(moved[0]).index("OutputPoint")
    return moved[:, at + 3 : at + 3 + d].astype(float)


if __name__ == "__main__":
    main({"points": fit})
