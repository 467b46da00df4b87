"""Grid and Image: where the voxels are, and what they hold."""

import dataclasses
from typing import Any

import numpy as np

from kunita.errors import ImageError

LEAST_VOXEL = 1e-9
"""A voxel whose edges span less than this fraction of a cube's volume is flat: its affine cannot be
inverted."""


@dataclasses.dataclass(frozen=True, eq=False)
class Grid:
    """A regular grid of voxel centres: world = affine · (index, 1).

    Args:
        shape: voxels along each axis; two or three numbers.
        affine: (d + 1, d + 1), from voxel index to world, mm: RAS+ in 3-D; in 2-D x right, y down.
    """

    shape: Any
    affine: Any

    def __post_init__(self) -> None:
        shape = tuple(int(n) for n in self.shape)
        affine = np.array(self.affine, dtype=float)
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "affine", affine)
        d = len(shape)
        if d not in (2, 3) or min(shape) < 1:
            raise ImageError(
                f"shape: expected two or three positive numbers of voxels, found {shape}"
            )
        if affine.shape != (d + 1, d + 1):
            raise ImageError(
                f"affine: expected a {d + 1}×{d + 1} matrix for {d}-D, found shape {affine.shape}"
            )
        if not np.all(np.isfinite(affine)):
            raise ImageError("affine: expected finite numbers, found NaN or infinity")
        if not np.array_equal(affine[-1], np.eye(d + 1)[-1]):
            raise ImageError(
                f"affine: expected the last row to be {np.eye(d + 1)[-1].tolist()}, found {affine[-1]}"
            )
        if not abs(np.linalg.det(affine[:d, :d])) > LEAST_VOXEL * np.prod(self.spacing):
            raise ImageError(
                f"affine: its axes are zero or dependent, so voxels have no volume: {affine.tolist()}"
            )

    @property
    def dimension(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def spacing(self) -> np.ndarray:
        """Distance between neighbouring voxel centres along each axis, mm."""
        return np.linalg.norm(self.affine[:-1, :-1], axis=0)

    @property
    def voxel_volume(self) -> float:
        """mm³ (mm² in 2-D)."""
        return float(abs(np.linalg.det(self.affine[:-1, :-1])))

    def world(self, index: np.ndarray) -> np.ndarray:
        """World coordinates of (…, d) voxel indices, which may be fractional."""
        return index @ self.affine[:-1, :-1].T + self.affine[:-1, -1]

    def index(self, points: np.ndarray) -> np.ndarray:
        """Fractional voxel indices of (…, d) world points."""
        return (points - self.affine[:-1, -1]) @ np.linalg.inv(self.affine[:-1, :-1]).T

    def distance_outside(self, points: np.ndarray) -> np.ndarray:
        """How far points lie outside the voxels (their outer faces), mm; 0 inside."""
        index = self.index(points)
        nearest = np.clip(index, -0.5, np.array(self.shape) - 0.5)
        return np.linalg.norm(self.world(nearest) - points, axis=-1) * np.any(
            nearest != index, axis=-1
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Image:
    """Voxel values on a grid; a colour or vector image has its channels along one last axis.

    Args:
        data: an array of the grid's shape, with or without a channel axis.
        affine: (d + 1, d + 1) from voxel index to world: RAS+ mm in 3-D; in 2-D x right, y down.
        channels: whether the last axis of the data is not one of space.
    """

    data: Any
    affine: Any
    channels: bool = False

    def __post_init__(self) -> None:
        data = np.asanyarray(self.data)
        if data.dtype.kind not in "biuf":
            raise ImageError(f"data: expected real numbers, found {data.dtype}")
        object.__setattr__(self, "data", data)
        object.__setattr__(
            self, "affine", Grid(data.shape[: data.ndim - self.channels], self.affine).affine
        )

    @property
    def grid(self) -> Grid:
        return Grid(self.data.shape[: self.data.ndim - self.channels], self.affine)


def as_grid(reference: Any) -> Grid:
    """The grid of an image, or the grid itself."""
    if isinstance(reference, Grid):
        return reference
    if isinstance(reference, Image):
        return reference.grid
    raise ImageError(f"reference: expected an Image or a Grid, found {reference!r:.80}")
