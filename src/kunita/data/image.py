"""Grid and Image: where the voxels are, and what they hold."""

import dataclasses
from typing import Any

import numpy as np

from kunita.errors import ImageError

LEAST_VOXEL = 1e-9
"""A voxel whose edges span less than this fraction of a box of the same edges is
flat: its affine cannot be inverted."""


@dataclasses.dataclass(frozen=True, eq=False)
class Grid:
    """A regular grid of voxel centres: world = affine · (index, 1).

    Args:
        shape: voxels along each axis; two or three numbers.
        affine: (d + 1, d + 1), from voxel index to world, mm: RAS+ in 3-D; in 2-D x
            right, y down.
    """

    shape: Any
    affine: Any

    def __post_init__(self) -> None:
        shape = tuple(int(n) for n in self.shape)
        affine = np.array(self.affine, dtype=float)
        _check_voxel_counts(shape)
        _check_affine(affine, len(shape))
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "affine", affine)

    @property
    def dimension(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def axes(self) -> np.ndarray:
        """(d, d) the step from a voxel to the next along each axis, mm, in the columns."""
        return self.affine[:-1, :-1]

    @property
    def origin(self) -> np.ndarray:
        """(d,) the world coordinates of voxel 0, mm."""
        return self.affine[:-1, -1]

    @property
    def spacing(self) -> np.ndarray:
        """Distance between neighbouring voxel centres along each axis, mm."""
        return np.linalg.norm(self.axes, axis=0)

    @property
    def directions(self) -> np.ndarray:
        """(d, d) unit vectors along the axes, in the columns."""
        return self.axes / self.spacing

    @property
    def voxel_volume(self) -> float:
        """mm³ (mm² in 2-D)."""
        volume = abs(np.linalg.det(self.axes))
        return float(volume)

    def world(self, index: np.ndarray) -> np.ndarray:
        """World coordinates of (…, d) voxel indices, which may be fractional."""
        return index @ self.axes.T + self.origin

    def index(self, points: np.ndarray) -> np.ndarray:
        """Fractional voxel indices of (…, d) world points."""
        steps = np.linalg.inv(self.axes)
        return (points - self.origin) @ steps.T

    def distance_outside(self, points: np.ndarray) -> np.ndarray:
        """How far points lie outside the voxels (their outer faces), mm; 0 inside."""
        index = self.index(points)
        last = np.array(self.shape) - 0.5
        nearest = np.clip(index, -0.5, last)
        distance = np.linalg.norm(self.world(nearest) - points, axis=-1)
        # Inside it is 0 exactly: to the world and back there is rounding.
        outside = np.any(nearest != index, axis=-1)
        return distance * outside


@dataclasses.dataclass(frozen=True, eq=False)
class Image:
    """Voxel values on a grid; a colour or vector image has its channels along one last axis.

    Args:
        data: an array of the grid's shape, with or without a channel axis.
        affine: (d + 1, d + 1) from voxel index to world: RAS+ mm in 3-D; in 2-D x
            right, y down.
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
        # The grid checks the affine, and makes an array of it.
        object.__setattr__(self, "affine", self.grid.affine)

    @property
    def grid(self) -> Grid:
        axes_of_space = self.data.ndim - self.channels
        return Grid(self.data.shape[:axes_of_space], self.affine)


def as_grid(reference: Any, name: str = "reference") -> Grid:
    """The grid of an image, or the grid itself."""
    if isinstance(reference, Grid):
        return reference
    if isinstance(reference, Image):
        return reference.grid
    raise ImageError(f"{name}: expected an Image or a Grid, found {type(reference).__name__}")


def is_pixel_grid(grid: Grid) -> bool:
    """Whether a plane is pixel index × spacing, x right and y down, as that of a picture is."""
    upright = np.diag([*grid.spacing, 1.0])
    rounding = 1e-6 * float(np.min(grid.spacing)) / max(grid.shape)
    return grid.dimension == 2 and np.allclose(grid.affine, upright, rtol=0, atol=rounding)


def _check_voxel_counts(shape: tuple[int, ...]) -> None:
    if len(shape) not in (2, 3) or min(shape) < 1:
        raise ImageError(f"shape: expected two or three positive numbers of voxels, found {shape}")


def _check_affine(affine: np.ndarray, d: int) -> None:
    """Refuse a matrix that does not take the indices of d-D voxels to the world and back."""
    if affine.shape != (d + 1, d + 1):
        raise ImageError(
            f"affine: expected a {d + 1}×{d + 1} matrix for {d}-D, found shape {affine.shape}"
        )
    if not np.all(np.isfinite(affine)):
        raise ImageError("affine: expected finite numbers, found NaN or infinity")
    last = np.eye(d + 1)[-1]
    if not np.array_equal(affine[-1], last):
        raise ImageError(f"affine: expected the last row to be {last.tolist()}, found {affine[-1]}")
    axes = affine[:d, :d]
    volume = abs(np.linalg.det(axes))
    spacing = np.linalg.norm(axes, axis=0)
    if not volume > LEAST_VOXEL * np.prod(spacing):
        raise ImageError(
            f"affine: its axes are zero or dependent, so voxels have no volume: {affine.tolist()}"
        )


def as_plane(image: Image) -> Image:
    """A volume of one slice as a plane: x right, y down, pixel index × spacing."""
    if not is_slice(image.grid):
        return image
    thin = slice_axis(image.grid)
    data = np.take(image.data, 0, axis=thin)
    plane = plane_of(image.grid)
    return Image(data, plane.affine, image.channels)


def is_slice(grid: Grid) -> bool:
    """Whether a grid is a volume of one slice."""
    return grid.dimension == 3 and 1 in grid.shape


def slice_axis(grid: Grid) -> int:
    """The axis along which a volume of one slice has one voxel; the last of them if several do."""
    return 2 - grid.shape[::-1].index(1)


def axes_in_plane(grid: Grid) -> list[int]:
    """The two axes that a volume of one slice has as a plane."""
    return [axis for axis in range(3) if axis != slice_axis(grid)]


def plane_of(grid: Grid) -> Grid:
    """The plane that a volume of one slice is taken as; any other grid is what it was."""
    if not is_slice(grid):
        return grid
    first, second = axes_in_plane(grid)
    shape = (grid.shape[first], grid.shape[second])
    across = grid.spacing[first]
    down = grid.spacing[second]
    affine = np.diag([across, down, 1.0])
    return Grid(shape, affine)
