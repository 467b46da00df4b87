"""Registrations to compare with: none, rigid, affine, thin-plate spline. They say where a point
goes, not how surely.

How surely is then one number, learned on other cases: the root mean square of their leave-one-out
errors along an axis.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from kunita.inference.trend import procrustes
from kunita.scores import Predictions

Map = Callable[[np.ndarray], np.ndarray]
"""Takes (m, d) moving points to fixed space."""

Fit = Callable[[np.ndarray, np.ndarray], Map]
"""Finds a map from (n, d) moving and fixed landmarks."""


def stay(_moving: np.ndarray, _fixed: np.ndarray) -> Map:
    """No registration: every point stays where it is."""
    return lambda points: points


def rigid(moving: np.ndarray, fixed: np.ndarray) -> Map:
    """The rotation and translation that minimise Σ|Rxᵢ + t − fᵢ|²."""
    return _aligned("rigid", moving, fixed)


def affine(moving: np.ndarray, fixed: np.ndarray) -> Map:
    """The affine map that minimises Σ|Axᵢ + t − fᵢ|²."""
    return _aligned("affine", moving, fixed)


def _aligned(kind: str, moving: np.ndarray, fixed: np.ndarray) -> Map:
    found = procrustes(kind, moving, fixed, np.ones(len(moving)))
    center, matrix, offset = (
        np.asarray(part) for part in (found.center, found.matrix, found.offset)
    )
    return lambda points: (points - center) @ matrix.T + offset


# -------------------------------------------------------------------------------- thin-plate spline


@dataclasses.dataclass(frozen=True, eq=False)
class ThinPlateSpline:
    """X ↦ x + Σ wᵢ U(|x − xᵢ|) + Bx + b: through every landmark, with the least bending energy
    ∫|D²u|².

    Args:
        knots: (n, d) moving landmarks, centred and brought to size one.
        center, scale: that brought them there.
        weights: (n, d) of the kernel.
        affine: (d + 1, d) the constant and the linear part.
    """

    knots: np.ndarray
    center: np.ndarray
    scale: float
    weights: np.ndarray
    affine: np.ndarray

    def __call__(self, points: np.ndarray) -> np.ndarray:
        unit = (points - self.center) / self.scale
        return (
            points + bending_kernel(unit, self.knots) @ self.weights + _extended(unit) @ self.affine
        )


def thin_plate_spline(moving: np.ndarray, fixed: np.ndarray) -> ThinPlateSpline:
    """Solve [[U, P], [Pᵀ, 0]] [w; B] = [f − x; 0], U the kernel of the dimension.

    Displacements are interpolated rather than places: the same map, as its affine part is free. The
    least-norm solution then is the one nearest to the identity where the landmarks leave the affine
    part open (too few, or in one plane), and coinciding landmarks meet half-way.
    """
    n, d = moving.shape
    center = moving.mean(axis=0)
    scale = float(np.sqrt(np.mean(np.sum((moving - center) ** 2, axis=1)))) or 1.0
    knots = (moving - center) / scale
    linear = _extended(knots)
    system = np.block(
        [[bending_kernel(knots, knots), linear], [linear.T, np.zeros((d + 1, d + 1))]]
    )
    wanted = np.concatenate([fixed - moving, np.zeros((d + 1, d))])
    found = np.linalg.lstsq(system, wanted, rcond=None)[0]
    return ThinPlateSpline(knots, center, scale, found[:n], found[n:])


def bending_kernel(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """(m, n) Green's functions of the squared Laplacian, up to a factor: r² log r in the plane, −r
    in space.
    """
    r = np.linalg.norm(x[:, None] - y, axis=2)
    if x.shape[1] == 3:
        return -r
    return r**2 * np.log(np.where(r > 0, r, 1.0))


def _extended(points: np.ndarray) -> np.ndarray:
    return np.concatenate([np.ones((len(points), 1)), points], axis=1)


# ---------------------------------------------------------------------------------------- leave out


BASELINES: dict[str, Fit] = {
    "none": stay,
    "rigid": rigid,
    "affine": affine,
    "tps": thin_plate_spline,
}
"""From the stiffest to the most pliable."""


def without_each(fit: Fit, moving: np.ndarray, fixed: np.ndarray) -> np.ndarray:
    """(n, d) every landmark as predicted from all the others."""
    everything = np.arange(len(moving))
    return np.concatenate([without(fit, moving, fixed, everything[[i]]) for i in everything])


def without(fit: Fit, moving: np.ndarray, fixed: np.ndarray, left: np.ndarray) -> np.ndarray:
    """(k, d) these landmarks as predicted from the others."""
    kept = np.setdiff1d(np.arange(len(moving)), left)
    return fit(moving[kept], fixed[kept])(moving[left])


def constant_sds(residuals: Sequence[np.ndarray], least_others: int) -> tuple[float, ...]:
    """For each case one standard deviation, mm: the root mean square along an axis of the *other*
    cases' residuals.

    Args:
        residuals: (n, d) leave-one-out residuals of each case.
        least_others: with fewer other cases, each case's own residuals are used.
    """
    alone = len(residuals) <= least_others
    return tuple(
        _root_mean_square([e for j, e in enumerate(residuals) if (j == i) is alone])
        for i in range(len(residuals))
    )


def _root_mean_square(parts: Sequence[np.ndarray]) -> float:
    return float(np.sqrt(np.mean(np.concatenate(parts) ** 2)))


def equally_sure(means: np.ndarray, observed: np.ndarray, sd_mm: float) -> Predictions:
    """Predictions that all have one standard deviation, the same along every axis."""
    n, d = means.shape
    return Predictions(means, np.broadcast_to(sd_mm**2 * np.eye(d), (n, d, d)), observed)
