"""From two images to an alignment."""

import dataclasses
import time
import warnings

import numpy as np

from kunita.data.image import Image
from kunita.errors import ImageError, KunitaWarning
from kunita.inference.trend import check_kind
from kunita.prealignment import itk
from kunita.prealignment.options import OPTIONS, SearchOptions
from kunita.prealignment.overlap import overlap
from kunita.prealignment.search import Search

LITTLE_OVERLAP = 0.1
"""An alignment is doubtful if less than this share of each image lies inside the other."""


@dataclasses.dataclass(frozen=True, eq=False)
class Prealignment:
    """An alignment of two images.

    Args:
        matrix: (d + 1, d + 1) from moving world to fixed world.
        mutual_information: of the aligned intensities where the images overlap, nats;
            NaN if nothing was searched.
        num_starts: how many alignments the search started from.
        seconds: what it took.
    """

    matrix: np.ndarray
    mutual_information: float
    num_starts: int
    seconds: float


def prealign(
    moving: Image,
    fixed: Image,
    kind: str,
    *,
    moving_mask: Image | None = None,
    fixed_mask: Image | None = None,
    seed: int = 0,
    options: SearchOptions | None = None,
) -> Prealignment:
    """Align two images by the mutual information of their intensities.

    The masks take no part in the search, which they make worse (on a chest CT with masks
    of the lungs by 0.5 mm). They only say where the images should overlap.

    Args:
        moving, fixed: voxels that are not finite count as the median; channels are
            averaged.
        kind: of alignment: "none", "translation", "rigid", "similarity" or "affine".
        moving_mask, fixed_mask: not zero where there is something to align.
        seed: of the choice of voxels that take part in the mutual information.
        options: of the search. Default: those of the dimension.
    """
    began = time.perf_counter()
    check_kind(kind)
    d = _common_dimension(moving, fixed)
    if kind == "none":
        return Prealignment(np.eye(d + 1), np.nan, 0, time.perf_counter() - began)
    search = Search.between(moving, fixed, seed, options or OPTIONS[d])
    starts = search.starts(kind)
    with itk.one_thread():
        best = search.run(starts, kind)
    matrix = search.in_world(best.matrix)
    _warn_of_little_overlap(moving, fixed, matrix, moving_mask, fixed_mask)
    return Prealignment(
        matrix=matrix,
        mutual_information=best.mutual_information,
        num_starts=len(starts),
        seconds=time.perf_counter() - began,
    )


def _common_dimension(moving: Image, fixed: Image) -> int:
    """Of two images; different ones are refused."""
    d = fixed.grid.dimension
    if moving.grid.dimension != d:
        raise ImageError(
            "moving and fixed image: expected the same dimension, found "
            f"{moving.grid.dimension}-D and {d}-D"
        )
    return d


def _warn_of_little_overlap(
    moving: Image,
    fixed: Image,
    matrix: np.ndarray,
    moving_mask: Image | None,
    fixed_mask: Image | None,
) -> None:
    """Warn unless a good part of at least one image lies inside the other.

    Of at least one: an image of the whole head may be aligned with one of a part.
    """
    inverse = np.linalg.inv(matrix)
    of_moving = overlap(moving, fixed, matrix, moving_mask, fixed_mask)
    of_fixed = overlap(fixed, moving, inverse, fixed_mask, moving_mask)
    if max(of_moving, of_fixed) < LITTLE_OVERLAP:
        message = (
            f"the images hardly overlap after the pre-alignment ({100 * of_moving:.0f} % of the "
            "moving image lies inside the fixed one): check that both show the same object, or "
            "give an alignment to start from"
        )
        warnings.warn(message, KunitaWarning, stacklevel=3)
