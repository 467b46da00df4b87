"""A pair of images that is compared, and its levels of smoothing.

Moving space is the world of the moving image. The flow lives in the space of the fixed image,
relative to an origin near its middle, so that single precision is enough.
"""

import dataclasses
import functools

import numpy as np
from jaxtyping import Float, Int

from kunita import splines
from kunita.jaxrun.doors import Array
from kunita.observations.features import DEFAULT_FEATURES, FeatureOptions, features
from kunita.observations.intensities import FixedFeatures, IntensityLevel
from kunita.observations.lattice import CELLS_PER_NODE, Lattice, LatticeAxis


@dataclasses.dataclass(frozen=True, eq=False)
class ImageSide:
    """One image as it is compared.

    Args:
        data: intensities, all finite.
        affine: (d + 1, d + 1) from voxels to the world.
        mask: where it counts, on the same grid.
    """

    data: np.ndarray
    affine: np.ndarray
    mask: np.ndarray

    @property
    def dimension(self) -> int:
        return self.data.ndim

    @functools.cached_property
    def spacing(self) -> Float[Array, " d"]:
        """Of the voxels, mm."""
        d = self.dimension
        return np.linalg.norm(self.affine[:d, :d], axis=0)

    def box(self) -> tuple[Int[Array, " d"], Int[Array, " d"]]:
        """The first and the last voxel along each axis that count."""
        low = []
        high = []
        for axis in range(self.dimension):
            others = tuple(a for a in range(self.dimension) if a != axis)
            seen = np.flatnonzero(self.mask.any(axis=others))
            low.append(seen[0])
            high.append(seen[-1])
        return np.array(low), np.array(high)


@dataclasses.dataclass(frozen=True)
class Smoothing:
    """One level of a pyramid.

    Args:
        width: τ, in voxels.
        stride: between compared voxels, in units of τ or of voxels, whichever is longer.
    """

    width: float
    stride: float


@dataclasses.dataclass(frozen=True, eq=False)
class ImagePair:
    """A moving and a fixed image, and how they are compared.

    Args:
        moving, fixed: the images.
        origin: of the space of the flow, in the world of the fixed image.
        metric: "ssd", "lncc" or "both".
        options: of the features.
    """

    moving: ImageSide
    fixed: ImageSide
    origin: np.ndarray
    metric: str
    options: FeatureOptions = DEFAULT_FEATURES

    @functools.cached_property
    def voxel(self) -> float:
        """The length that τ is in units of: the finest spacing of the coarser image, mm."""
        return float(max(self.moving.spacing.min(), self.fixed.spacing.min()))

    @property
    def edges(self) -> Float[Array, " d"]:
        """Of the box that holds what counts of the moving image, mm."""
        low, high = self.moving.box()
        return (high - low + 1) * self.moving.spacing

    @property
    def extent(self) -> float:
        """The typical length of these edges, mm."""
        return float(np.exp(np.mean(np.log(self.edges))))

    def lattice(self, spacing: float) -> Lattice:
        """Nodes over what counts of the moving image, so many mm apart."""
        low, high = self.moving.box()
        cells = CELLS_PER_NODE[self.moving.dimension]
        axes = []
        for first, last, step in zip(low, high, self.moving.spacing, strict=True):
            axis = LatticeAxis.covering(float(first), float(last), spacing / step, cells)
            axes.append(axis)
        return Lattice(tuple(axes), self.moving.affine)

    def level(self, lattice: Lattice, smoothing: Smoothing) -> IntensityLevel:
        """The pair at one smoothing, on a regular part of the moving image's voxels."""
        d = self.moving.dimension
        places = self._places(smoothing)
        values, slopes = self._moving_features(smoothing.width, np.ix_(*places))
        view = lattice.at([place.astype(float) for place in places])
        strides = np.array([p[1] - p[0] if len(p) > 1 else 1 for p in places])
        num_channels = values.shape[-1]
        return IntensityLevel(
            view=view,
            values=values.reshape(-1, num_channels),
            slopes=slopes.reshape(-1, num_channels, d),
            counts=self.moving.mask[np.ix_(*places)].ravel().astype(np.float32),
            fixed=self._fixed_features(smoothing.width),
            smoothing=smoothing.width * self.voxel,
            spacing=strides * self.moving.spacing,
            voxel=self.voxel,
        )

    def _places(self, smoothing: Smoothing) -> list[np.ndarray]:
        """The voxels along each axis that are compared."""
        low, high = self.moving.box()
        apart = smoothing.stride * max(smoothing.width, 1.0) * self.voxel
        places = []
        for first, last, step in zip(low, high, self.moving.spacing, strict=True):
            stride = max(1, round(apart / step))
            places.append(np.arange(first, last + 1, stride))
        return places

    def _moving_features(
        self, width: float, chosen: tuple[np.ndarray, ...]
    ) -> tuple[Float[Array, "*some c"], Float[Array, "*some c d"]]:
        """Features of the moving image at some voxels, and gradients per mm of moving space."""
        side = self.moving
        d = side.dimension
        values = features(side.data, side.spacing, self.metric, width, self.voxel, self.options)
        # As exact as the gradients of the fixed image: the information is the product of both.
        # Differences of neighbours lose a part of what is fine, and widen the regions. On textures
        # with correlated noise (condition C of benchmarks/image_truth.py, seeds 0 to 11) those of
        # 50 % held 54 % with them, and hold 50.
        by_axis = [splines.slopes_at_nodes(values, axis)[chosen] for axis in range(d)]
        per_voxel = np.stack(by_axis, axis=-1)
        to_voxels = np.linalg.inv(side.affine[:d, :d])
        return values[chosen], per_voxel @ to_voxels.astype(np.float32)

    def _fixed_features(self, width: float) -> FixedFeatures:
        side = self.fixed
        d = side.dimension
        values = features(side.data, side.spacing, self.metric, width, self.voxel, self.options)
        to_index = np.linalg.inv(side.affine)
        shift = np.eye(d + 1)
        shift[:d, d] = self.origin
        mask = None if side.mask.all() else side.mask
        return FixedFeatures.of(values, to_index @ shift, mask)
