"""Two sets of points whose pairing is open, and how the alignment may move one onto the other."""

import dataclasses
import functools

import numpy as np
from scipy.spatial.distance import cdist

from kunita.inference import trend

ROUNDS = 12
"""Rounds of weighting, after which a rotation has settled."""


@dataclasses.dataclass(frozen=True, eq=False)
class PointSets:
    """Moving and fixed points, (n, d) each, mm, and the kind of alignment between them.

    An *order* is an (n,) permutation: the fixed row that belongs to each moving
    row.
    """

    moving: np.ndarray
    fixed: np.ndarray
    align: str

    def __len__(self) -> int:
        return len(self.moving)

    def take(self, rows: np.ndarray) -> "PointSets":
        """Some of the points, the same rows of both sets."""
        moving = self.moving[rows]
        fixed = self.fixed[rows]
        return PointSets(moving, fixed, self.align)

    @property
    def given_order(self) -> np.ndarray:
        """The order in which the pairs were given."""
        return np.arange(len(self))

    @property
    def rotates(self) -> bool:
        """Whether the alignment has a rotation."""
        return self.align not in ("none", "translation")

    @property
    def scales(self) -> bool:
        """Whether the alignment has a change of size."""
        return self.align in ("similarity", "affine")

    @functools.cached_property
    def rms_diameter(self) -> float:
        """Twice the root mean square distance of the moving points to their mean, mm."""
        squared = np.sum(self._centred**2, axis=1)
        typical = float(np.sqrt(np.mean(squared)))
        return 2 * typical or 1.0

    @functools.cached_property
    def basis(self) -> np.ndarray:
        """(n·d, b) H: how the alignment moves the points, as far as they determine it."""
        determined, _ = trend.determined_trend(self.align, self._centred)
        basis = np.asarray(determined.basis(self._centred))
        n, d, b = basis.shape
        return basis.reshape(n * d, b)

    @property
    def _centred(self) -> np.ndarray:
        """(n, d) the moving points relative to their mean."""
        return self.moving - self.moving.mean(axis=0)

    def rotation(self, order: np.ndarray) -> np.ndarray:
        """(d, d) R, from moving to fixed points in this order, around which the model is linear.

        Points that are far off weigh less: a gross error should not turn the others
        away.
        """
        key = order.tobytes()
        if key not in self._rotations:
            self._rotations[key] = self._find_rotation(order)
        return self._rotations[key]

    @functools.cached_property
    def _rotations(self) -> dict[bytes, np.ndarray]:
        """Results by order, as the search comes back to the given order again and again."""
        return {}

    def _find_rotation(self, order: np.ndarray) -> np.ndarray:
        x = self.moving
        f = self.fixed[order]
        rotation = np.eye(x.shape[1])
        if not self.rotates:
            return rotation
        weights = np.ones(len(x))
        for _ in range(ROUNDS):
            x = _centred(x, weights)
            f = _centred(f, weights)
            rotation = trend.best_rotation((weights[:, None] * f).T @ x)
            distances = np.linalg.norm(x @ rotation.T - f, axis=1)
            least = max(_median(distances), 1e-9 * self.rms_diameter)
            weights = 1 / np.maximum(distances, least)
        return rotation

    def turned_back(self, order: np.ndarray) -> np.ndarray:
        """(n, d) the fixed points in this order, turned and shifted onto the moving ones.

        They are moved only where the alignment has a rotation.
        """
        key = order.tobytes()
        if key not in self._turned_back:
            self._turned_back[key] = self._turn_back(order)
        return self._turned_back[key]

    @functools.cached_property
    def _turned_back(self) -> dict[bytes, np.ndarray]:
        """Results by order, as with rotations."""
        return {}

    def _turn_back(self, order: np.ndarray) -> np.ndarray:
        turned = self.fixed[order] @ self.rotation(order)
        if not self.rotates:
            return turned
        return turned + np.median(self.moving - turned, axis=0)

    def displacements(self, order: np.ndarray) -> np.ndarray:
        """(n, d) y, what the model has to explain: y = Rᵀf + shift − x."""
        return self.turned_back(order) - self.moving

    def remainders(self, orders: np.ndarray) -> np.ndarray:
        """(k,) what the best alignment leaves of the squared distances, for (k, n) orders.

        Shifts and rotations are looked at, as far as the alignment has them, and
        what is the same for all orders is left out. The largest tr(RᵀC), C = Σ fxᵀ,
        is the sum of the singular values of C, less twice the least of them where C
        turns a mirror image.
        """
        x = self.moving
        f = self.fixed
        if self.align != "none":
            x = x - x.mean(axis=0)
            f = f - f.mean(axis=0)
        cross = f[orders].swapaxes(1, 2) @ x
        if not self.rotates:
            return -np.trace(cross, axis1=1, axis2=2)
        strengths = np.linalg.svd(cross, compute_uv=False)
        mirrored = np.linalg.det(cross) < 0
        return -(strengths.sum(axis=1) - 2 * strengths[:, -1] * mirrored)


def squared_distances(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """(n, m) between two sets of points, mm²."""
    return cdist(x, y, "sqeuclidean")


def _median(values: np.ndarray) -> float:
    """Of few numbers; `np.median` takes ten times as long."""
    rising = np.sort(values)
    half = len(values) // 2
    below = rising[-half - 1]
    above = rising[half]
    return float((below + above) / 2)


def _centred(points: np.ndarray, weights: np.ndarray) -> np.ndarray:
    mean = weights @ points / weights.sum()
    return points - mean
