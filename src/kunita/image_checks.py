"""The border of image registration: images, masks and arguments, checked and turned into values."""

import dataclasses
import os
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy import ndimage

from kunita.checks import check_prior
from kunita.data.image import Grid, Image, as_plane
from kunita.errors import ArgumentError, ImageError
from kunita.inference import trend
from kunita.jaxrun.doors import Array
from kunita.kernels import AbstractKernel, Gaussian, Sum
from kunita.observations.features import METRICS
from kunita.observations.image_pair import ImageSide
from kunita.prior import Prior

DEFAULT_METRIC = "lncc"
"""Neither a bias field nor another scale of intensities matters to it."""

DEFAULT_KEY = 0
"""Of the random numbers."""

LEAST_OVERLAP = 0.2
"""The least share of the moving image that must lie inside the fixed one."""

LEAST_NODES = 4
"""The least number of control points that must see structure in both images."""

LUMINANCE = np.array([0.299, 0.587, 0.114])
"""Weights of red, green and blue (ITU-R BT.601)."""

LEAST_VOXELS = 8
"""Along each axis of an image that drives a registration."""

FLAT = 1e-10
"""An image whose intensities differ by less than this, relative to the typical one, is flat; or by
less than eight times what its numbers can tell."""

FAR_FROM_ZERO = 100.0
"""Intensities so many times farther from zero than they are from each other are centred."""

SMALL = 1e-6
LARGE = 1e6
"""Intensities that differ by less or by more are brought to about one, since single precision must
hold their squares."""

LEAST_VOLUME = 1e-6
"""A matrix that shrinks volumes by more than this is no alignment."""

MOST_SCALES = 2
"""Gaussians in a kernel."""

MOST_NODES = 100_000
"""Control points of a lattice; so many take some 10 GB and many minutes."""


@dataclasses.dataclass(frozen=True, eq=False)
class ImageSetting:
    """What was asked for.

    Args:
        scales: (amplitude, length scale) of the prior, mm, the longest first; None to choose them.
        metric: how images are compared.
        align: the kind of alignment.
        init: (d + 1, d + 1) from moving to fixed space, or the path of an ITK transform; None to
            search.
        key: of the random numbers.
        quick: whether a first look will do.
    """

    scales: tuple[tuple[float, float], ...] | None
    metric: str
    align: str
    init: Any
    key: int
    quick: bool = False

    @property
    def chooses_prior(self) -> bool:
        """Whether the evidence chooses the prior."""
        return self.scales is None and not self.quick


@dataclasses.dataclass(frozen=True, eq=False)
class GivenImages:
    """What was given about images, not yet checked; see `kunita.register`."""

    moving: Any
    fixed: Any
    moving_mask: Any = None
    fixed_mask: Any = None
    metric: Any = None
    init: Any = None
    key: Any = None
    quick: Any = False

    def refuse_without_images(self) -> None:
        """Refuse what says how images are registered, where there are none."""
        asked = {
            "metric": self.metric is not None,
            "moving_mask": self.moving_mask is not None,
            "fixed_mask": self.fixed_mask is not None,
            "init": self.init is not None,
            "key": self.key is not None,
            "quick": bool(self.quick),
        }
        for name, is_given in asked.items():
            if is_given:
                raise ArgumentError(
                    f"{name}: is for images that drive the fit, and there are none; give "
                    "moving_image and fixed_image too, or leave it out"
                )


def check_image_setting(
    images: GivenImages,
    *,
    kernel: Any = None,
    length_scale: float | None = None,
    amplitude: float | None = None,
    prior: Prior | None = None,
    align: str | None = None,
    model: str = "endpoint",
    robust: bool = False,
    scale_noise: bool = False,
) -> ImageSetting:
    """The setting that the arguments of `register` ask for."""
    metric = DEFAULT_METRIC if images.metric is None else images.metric
    key = DEFAULT_KEY if images.key is None else images.key
    if metric not in METRICS:
        raise ArgumentError(f"metric: expected one of {', '.join(METRICS)}, found {metric!r}")
    if model != "endpoint":
        raise ArgumentError(f"model: images are registered with 'endpoint' only, found {model!r}")
    if robust or scale_noise:
        raise ArgumentError(
            "robust, scale_noise: these are for landmarks alone; the noise of images is "
            "robust anyway"
        )
    if not isinstance(key, int | np.integer) or isinstance(key, bool) or key < 0:
        raise ArgumentError(f"key: expected zero or a positive whole number, found {key!r}")
    if not isinstance(images.quick, bool | np.bool_):
        raise ArgumentError(f"quick: expected True or False, found {images.quick!r}")
    if prior is not None:
        check_prior(prior, {"kernel": kernel, "length_scale": length_scale, "amplitude": amplitude})
        kernel = prior.kernel
        align = align or prior.align
    return ImageSetting(
        scales=_check_scales(kernel, length_scale, amplitude),
        metric=metric,
        align=trend.check_kind(align or "rigid"),
        init=_check_init(images.init),
        key=int(key),
        quick=bool(images.quick),
    )


def _check_scales(
    kernel: Any, length_scale: float | None, amplitude: float | None
) -> tuple[tuple[float, float], ...] | None:
    """The scales of a Gaussian or of a sum of two, the longest first; None where none are given."""
    is_family = kernel in (None, "gaussian", Gaussian)
    if not is_family and (length_scale is not None or amplitude is not None):
        raise ArgumentError(
            "length_scale, amplitude: the kernel or the prior that is given has its own; give one "
            "of the two"
        )
    if is_family:
        if length_scale is None and amplitude is None:
            return None
        if length_scale is None or amplitude is None:
            raise ArgumentError(
                "length_scale, amplitude: with images give both of them, or none to choose the "
                "prior by the evidence"
            )
        kernel = Gaussian(length_scale=float(length_scale), amplitude=float(amplitude))
    parts: Any = kernel.kernels if isinstance(kernel, Sum) else (kernel,)
    if not all(isinstance(part, Gaussian) for part in parts) or len(parts) > MOST_SCALES:
        raise ArgumentError(
            f"kernel: images take one Gaussian or a sum of two, found {kernel!r:.80}"
        )
    longest_first = sorted(parts, key=lambda part: -float(part.length_scale))
    return tuple((float(part.amplitude), float(part.length_scale)) for part in longest_first)


def refuse_many_nodes(shortest: float, num_nodes: int, dimension: int, unit: str) -> None:
    """Refuse a length scale that is too short for the size of the images."""
    if num_nodes > MOST_NODES:
        least = 1.05 * shortest * (num_nodes / MOST_NODES) ** (1 / dimension)
        raise ArgumentError(
            f"length_scale: {shortest:g} {unit} would take {num_nodes:,} control points in these "
            f"images, more than the {MOST_NODES:,} that are allowed; give at least "
            f"{least:.2g} {unit}, or mask the part that matters"
        )


def kernel_of(scales: tuple[tuple[float, float], ...]) -> AbstractKernel:
    """The kernel with these scales."""
    parts = [Gaussian(length_scale=length, amplitude=amplitude) for amplitude, length in scales]
    return parts[0] if len(parts) == 1 else Sum(tuple(parts))


def _check_init(init: Any) -> Any:
    if init is None or isinstance(init, str | os.PathLike):
        return init
    try:
        matrix = np.asarray(init, dtype=float)
    except (TypeError, ValueError):
        matrix = np.zeros(0)  # refused below, as any other shape that is wrong
    if matrix.ndim != 2 or matrix.shape not in ((3, 3), (4, 4)) or not np.isfinite(matrix).all():
        raise ArgumentError(
            "init: expected the path of an ITK transform, or a (d + 1, d + 1) matrix from moving "
            f"to fixed space, found {init!r:.80}"
        )
    last = np.eye(len(matrix))[-1]
    if abs(np.linalg.det(matrix)) < LEAST_VOLUME or not np.allclose(matrix[-1], last):
        raise ArgumentError(
            f"init: expected a matrix with an inverse and the last row {last.tolist()}, found "
            f"{matrix.tolist()}"
        )
    return matrix


def refuse_mirror(matrix: Float[Array, "d1 d1"]) -> None:
    """Refuse an alignment that turns space inside out: no flow can turn it back."""
    determinant = float(np.linalg.det(matrix))
    if determinant < 0:
        raise ArgumentError(
            f"init: expected an alignment without a mirror, found one with the determinant "
            f"{determinant:.3g}; check which of its axes is reversed"
        )


# ------------------------------------------------------------------------------------------ images


def check_image(image: Any, side: str) -> Image:
    """An image with one number for each voxel; a volume of one slice becomes a plane.

    Args:
        image: what the user gave.
        side: "moving" or "fixed".
    """
    if not isinstance(image, Image):
        raise ArgumentError(
            f"{side}_image: expected an Image, found {type(image).__name__}; where its voxels are "
            "matters: kunita.read_image(path), or kunita.Image(data, affine)"
        )
    image = as_plane(_grey(image, f"{side} image"))
    if image.data.dtype == bool:
        image = Image(image.data.astype(np.uint8), image.affine)
    if min(image.grid.shape) < LEAST_VOXELS:
        raise ImageError(
            f"{side} image: expected at least {LEAST_VOXELS} voxels along each axis, found "
            f"{'×'.join(map(str, image.grid.shape))}"
        )
    return image


def refuse_same(moving: Image, fixed: Image) -> None:
    """Refuse an image with itself: without any noise there is no uncertainty to tell."""
    if moving.grid.shape != fixed.grid.shape or not np.array_equal(moving.affine, fixed.affine):
        return
    if np.array_equal(moving.data, fixed.data):
        raise ImageError(
            "images: the moving and the fixed image are the same, voxel for voxel; was one file "
            "given twice?"
        )


def _grey(image: Image, name: str) -> Image:
    """Colours become luminance; other channels are refused."""
    if not image.channels:
        return image
    count = image.data.shape[-1]
    if count == 1:
        return Image(image.data[..., 0], image.affine)
    if count not in (3, 4):
        raise ImageError(
            f"{name}: expected one number for each voxel, or colours, found {count} "
            "channels; take one of them"
        )
    return Image(
        image.data[..., :3].astype(np.float32) @ LUMINANCE.astype(np.float32), image.affine
    )


def check_mask(mask: Any, image: Image, side: str) -> np.ndarray | None:
    """Where an image counts, on its own grid; of a volume of one slice, that of its plane.

    Args:
        mask: what the user gave.
        image: the image as it was given.
        side: "moving" or "fixed".
    """
    if mask is None:
        return None
    if not isinstance(mask, Image):
        raise ArgumentError(
            f"{side}_mask: expected an Image, found {type(mask).__name__}; kunita.read_image(path)"
        )
    mask = _grey(mask, f"{side} mask")
    grid, own = _comparable(image, mask)
    if own.shape != grid.shape or not np.allclose(
        own.affine, grid.affine, atol=1e-3 * grid.spacing.min()
    ):
        raise ImageError(
            f"{side} mask: expected the grid of the {side} image "
            f"({'×'.join(map(str, grid.shape))}), found another one "
            f"({'×'.join(map(str, own.shape))}{_elsewhere(own, grid)}); resample it with "
            "its image as reference"
        )
    counts = np.asarray(as_plane(mask).data) > 0
    if not counts.any():
        raise ImageError(f"{side} mask: it is zero everywhere")
    return counts


def _comparable(image: Image, mask: Image) -> tuple[Grid, Grid]:
    """The grids of an image and its mask: as planes only where one of them is a plane.

    A plane does not know where in space it lies.
    """
    if image.grid.dimension == mask.grid.dimension:
        return image.grid, mask.grid
    return as_plane(image).grid, as_plane(mask).grid


def _elsewhere(mask: Grid, image: Grid) -> str:
    """How a grid differs where its shape does not."""
    return " elsewhere in space; that of the other image?" if mask.shape == image.shape else ""


@dataclasses.dataclass(frozen=True)
class IntensityScale:
    """The typical intensity of an image, and how far others are from it.

    Args:
        typical: their median.
        spread: the largest minus the smallest.
    """

    typical: float
    spread: float

    @property
    def offset(self) -> float:
        """What is subtracted before single precision loses digits; zero for most images."""
        return self.typical if abs(self.typical) > FAR_FROM_ZERO * self.spread else 0.0

    @property
    def unit(self) -> float:
        """What they are divided by, a power of two; one for most images."""
        return 1.0 if SMALL < self.spread < LARGE else 2.0 ** round(np.log2(self.spread))


def image_side(
    image: Image, mask: np.ndarray | None, side: str, like: IntensityScale | None = None
) -> ImageSide:
    """An image as it is compared: what is not finite does not count.

    Args:
        image: with one number for each voxel.
        mask: where it counts; None for everywhere.
        side: "moving" or "fixed".
        like: the scale of the image that it is compared with, which it shares; None for its own.
    """
    counts = what_counts(image, mask, side)
    own = intensity_scale(image, counts, side)
    scale = like or own
    data = np.asarray(image.data)
    if scale.offset != 0 or scale.unit != 1:
        data = (data.astype(np.float64) - scale.offset) / scale.unit
    filled = without_foreign(data.astype(np.float32), counts, image.grid.spacing)
    return ImageSide(filled, image.affine, counts)


def what_counts(image: Image, mask: np.ndarray | None, side: str) -> np.ndarray:
    """The voxels of an image with a finite number in single precision, inside its mask."""
    finite = np.isfinite(np.asarray(image.data).astype(np.float32))
    counts = finite if mask is None else finite & mask
    if not counts.any():
        raise ImageError(f"{side} image: none of its voxels is a finite number inside the mask")
    return counts


def intensity_scale(image: Image, counts: np.ndarray, side: str) -> IntensityScale:
    """Of what counts of an image; a flat one is refused."""
    data = np.asarray(image.data)[counts]
    typical = float(np.median(data))
    spread = float(data.max()) - float(data.min())
    is_real = np.issubdtype(image.data.dtype, np.floating)
    resolution = 8 * float(np.finfo(image.data.dtype).eps) if is_real else 0.0
    if spread <= max(FLAT, resolution) * abs(typical):
        raise ImageError(
            f"{side} image: all its voxels have the same value, so there is nothing to register"
        )
    return IntensityScale(typical, spread)


def without_foreign(
    data: np.ndarray, counts: np.ndarray, spacing: Float[Array, " d"]
) -> np.ndarray:
    """An image without intensities that are foreign to what counts.

    Features of a voxel depend on its surroundings. What a mask leaves out must not reach them if it
    is foreign, such as a resection or a tool: beside a tool that is far brighter than all else
    errors tripled. So holes in what counts, and voxels without a finite number, take the value of
    the nearest voxel that counts. All else around a region of interest is ordinary anatomy, whose
    outline is seen by both images: it stays, within the range of what counts.

    Args:
        data: intensities.
        counts: where the image counts; all of it is finite there.
        spacing: of the voxels.
    """
    if counts.all():
        return data
    is_foreign = holes(counts) | ~np.isfinite(data)
    within = np.clip(data, data[counts].min(), data[counts].max())
    if not is_foreign.any():
        return within
    nearest = ndimage.distance_transform_edt(
        ~counts, spacing, return_distances=False, return_indices=True
    )
    return np.where(is_foreign, data[tuple(nearest)], within)


def holes(counts: np.ndarray) -> np.ndarray:
    """What is left out of an image, in distinction from what lies around a region of interest.

    Where most of the border counts, all that does not is a hole, such as a needle that reaches the
    border. Else holes are the parts that do not reach it.
    """
    if _share_of_border(counts) > 0.5:
        return ~counts
    return ndimage.binary_fill_holes(counts) & ~counts


def _share_of_border(counts: np.ndarray) -> float:
    """How much of the outermost voxels counts."""
    is_inner = np.zeros_like(counts)
    is_inner[(slice(1, -1),) * counts.ndim] = True
    return float(counts[~is_inner].mean())
