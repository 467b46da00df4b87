"""Points, meshes and streamlines carried along by a registration, with the uncertainty of every
vertex.
"""

from typing import Any, TypeVar

import numpy as np

from kunita.data.geometry import Mesh, Streamlines, VertexValues
from kunita.data.landmarks import Landmarks, refuse_free
from kunita.errors import LandmarkError
from kunita.gaussians import GaussianPoints
from kunita.observations.landmarks import noise_of_both_sides
from kunita.record import Registration

LEVEL = 0.95

Geometry = TypeVar("Geometry", bound=Mesh | Streamlines)


def carry_points(reg: Registration, points: np.ndarray, *, inverse: bool = False) -> GaussianPoints:
    """Where points of the moving space are in fixed space (with `inverse`: of the fixed in moving),
    and how sure.
    """
    if points.shape[1] != reg.fixed.dimension:
        raise LandmarkError(
            f"points: expected {reg.fixed.dimension}-D, as the landmarks are, found {points.shape[1]}-D"
        )
    return reg.evaluation.inverse(points) if inverse else reg.evaluation.predict(points)


def carry_landmarks(reg: Registration, landmarks: Landmarks, *, inverse: bool = False) -> Landmarks:
    """Landmarks in the other space; their covariance is the registration's, their own carried over
    and added.
    """
    refuse_free(landmarks, " to be carried over", "only points that are fully known can be")
    arrived = carry_points(reg, landmarks.points, inverse=inverse)
    covariances = np.asarray(arrived.covariance)
    if landmarks.covariances is not None:
        at = np.asarray(arrived.mean) if inverse else landmarks.points
        jacobians = np.asarray(reg.evaluation.jacobian(at))
        jacobians = np.linalg.inv(jacobians) if inverse else jacobians
        covariances = noise_of_both_sides(covariances, landmarks.covariances, jacobians)
    return Landmarks(
        np.asarray(arrived.mean),
        landmarks.names,
        covariances,
        undefined=landmarks.undefined,
    )


def carry_geometry(
    reg: Registration, geometry: Geometry, *, inverse: bool = False
) -> tuple[Geometry, VertexValues]:
    """A mesh or streamlines in the other space, and how sure each vertex is."""
    arrived = carry_points(reg, geometry.points, inverse=inverse)
    values = VertexValues(arrived.std, arrived.radius(LEVEL), np.asarray(arrived.covariance))
    moved: Any = geometry.with_points(np.asarray(arrived.mean))
    return moved, values
