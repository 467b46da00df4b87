"""Volumes that a page carries: NIfTI with one byte a voxel, at a bounded size, for its viewer to
draw.
"""

import dataclasses
import gzip

import numpy as np

from kunita.data.image import Grid, Image
from kunita.outputs.dense import Lattice
from kunita.outputs.layers import Layers
from kunita.outputs.maps import Maps

MOST_VOXELS = 2_500_000
"""Of one volume on a page; more are averaged in blocks. Two such images of pure noise are 6.7 MB of
text."""

MOST_SMOOTH = 250_000
"""The same of a map, which varies slowly: the viewer interpolates."""

BORDERS = (0.05, 0.5, 0.95)
"""The label's outlines: where it almost surely begins, where it probably is, where it almost surely
is."""

QUANTILES = (0.005, 0.995)
"""Of an image's values other than 0, those that are drawn black and white."""


@dataclasses.dataclass(frozen=True)
class Volume:
    """A volume for the viewer.

    Args:
        name: "fixed", "warped", "radius" or "label".
        data: a compressed NIfTI file.
        top: the value of the last colour of the table, where there is a scale.
    """

    name: str
    data: bytes
    top: float | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Coarse:
    """A grid in blocks of voxels: along each axis so many make one."""

    grid: Grid
    steps: np.ndarray

    @property
    def lattice(self) -> Lattice:
        """The blocks' middles, in voxels of the whole grid."""
        counts = np.array(self.grid.shape) // self.steps
        return tuple(
            (k - 1) / 2 + k * np.arange(n) for n, k in zip(counts, self.steps, strict=True)
        )

    @property
    def affine(self) -> np.ndarray:
        """From blocks to world."""
        scaled = self.grid.affine @ np.diag([*self.steps, 1.0])
        scaled[:-1, -1] = self.grid.world((self.steps - 1) / 2)
        return scaled

    @property
    def whole(self) -> bool:
        return bool(np.all(self.steps == 1))

    def averaged(self, data: np.ndarray) -> np.ndarray:
        """The mean of each block, colours by themselves; voxels at the end that fill none are left
        out.
        """
        counts = np.array(self.grid.shape) // self.steps
        cut = data[tuple(slice(0, n * k) for n, k in zip(counts, self.steps, strict=True))]
        sizes = [size for n, k in zip(counts, self.steps, strict=True) for size in (n, k)]
        blocks = cut.reshape(*sizes, *data.shape[len(counts) :])
        return blocks.mean(axis=tuple(range(1, 2 * len(counts), 2)), dtype=np.float32)


def coarse(grid: Grid, most: int = MOST_VOXELS) -> Coarse:
    """Blocks that are no more than so many, and as nearly cubes as can be."""
    steps = np.ones(grid.dimension, dtype=int)
    while np.prod(np.array(grid.shape) // steps, dtype=float) > most:
        steps[np.argmin(np.where(steps < grid.shape, steps * grid.spacing, np.inf))] += 1
    return Coarse(grid, steps)


def volumes(found: Maps, layers: Layers) -> tuple[Volume, ...]:
    """Everything that the viewer draws: the images, the 95 % radius, the label's outlines."""
    made = [
        _grey(name, image)
        for name, image in (("fixed", layers.fixed), ("warped", layers.warped))
        if image
    ]
    lattice, affine = spanning(found.grid, MOST_SMOOTH)
    radius = found.on(lattice, "radius")
    made.append(_scaled("radius", radius, affine, scale_top(radius)))
    if layers.probability is not None and layers.any_label is not None:
        blocks = coarse(layers.probability.grid)
        made.append(
            Volume("label", _nifti(outlined(blocks.averaged(layers.any_label)), blocks.affine))
        )
    return tuple(made)


def spanning(grid: Grid, most: int) -> tuple[Lattice, np.ndarray]:
    """A lattice of no more places, as nearly cubic as can be, from the first voxels to the last,
    and its affine.
    """
    counts = np.array(grid.shape)
    while np.prod(counts, dtype=float) > most:
        counts[
            np.argmin(
                np.where(counts > 2, (np.array(grid.shape) - 1) * grid.spacing / counts, np.inf)
            )
        ] -= 1
    lattice = tuple(np.linspace(0, n - 1, k) for n, k in zip(grid.shape, counts, strict=True))
    steps = [(n - 1) / (k - 1) if k > 1 else 1.0 for n, k in zip(grid.shape, counts, strict=True)]
    return lattice, grid.affine @ np.diag([*steps, 1.0])


def outlined(probability: np.ndarray) -> np.ndarray:
    """How many of the borders a voxel is inside of; and so many more if it is at one of them, just
    inside.
    """
    levels = np.digitize(probability, BORDERS).astype(np.uint8)
    outside = levels.copy()
    for axis in range(levels.ndim):
        ahead, behind = (
            tuple(slice(*ends) if a == axis else slice(None) for a in range(levels.ndim))
            for ends in ((1, None), (None, -1))
        )
        outside[behind] = np.minimum(outside[behind], levels[ahead])
        outside[ahead] = np.minimum(outside[ahead], levels[behind])
    return np.where(outside < levels, levels + len(BORDERS), levels).astype(np.uint8)


def grey(data: np.ndarray, *, colours: bool) -> np.ndarray:
    """One finite number a voxel: colours are averaged."""
    return np.nan_to_num(data.mean(axis=-1) if colours else data, posinf=0.0, neginf=0.0)


def scale_top(values: np.ndarray) -> float:
    """The end of a colour scale that most values are below: a round number."""
    top = float(np.quantile(values, 0.98)) or 1.0
    size = 10.0 ** np.floor(np.log10(top))
    return float(next(step * size for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if step * size >= top))


def grey_window(data: np.ndarray) -> tuple[float, float]:
    """The values that are drawn black and white."""
    values = data[data != 0]
    low, high = np.quantile(values, QUANTILES) if values.size else (0.0, 1.0)
    low = min(float(low), 0.0) if float(data.min()) >= 0 else float(low)
    return low, float(high) if high > low else low + 1.0


def _grey(name: str, image: Image) -> Volume:
    blocks = coarse(image.grid)
    data = grey(blocks.averaged(image.data), colours=image.channels)
    return Volume(name, _bytes_of(data, blocks.affine, *grey_window(data)))


def _scaled(name: str, data: np.ndarray, affine: np.ndarray, top: float) -> Volume:
    return Volume(name, _bytes_of(data, affine, 0.0, top), top)


def _bytes_of(data: np.ndarray, affine: np.ndarray, low: float, high: float) -> bytes:
    stored = np.clip(np.rint((data - low) * (255 / (high - low))), 0, 255).astype(np.uint8)
    return _nifti(stored, affine, slope=(high - low) / 255, offset=low)


def _nifti(
    data: np.ndarray, affine: np.ndarray, *, slope: float = 1.0, offset: float = 0.0
) -> bytes:
    import nibabel

    image = nibabel.Nifti1Image(data, affine)
    image.header.set_slope_inter(slope, offset)
    image.header.set_xyzt_units("mm")
    return gzip.compress(image.to_bytes(), 6, mtime=0)
