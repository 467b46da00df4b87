"""Where images do not match, carried from moving space to the fixed grid."""

from collections.abc import Callable, Iterator

import numpy as np

from kunita.data.image import Image
from kunita.outputs.dense import slabs
from kunita.outputs.maps import PullBack
from kunita.outputs.warp import interpolator

UNKNOWN = 0.0
"""What a file says where nothing was compared: no mismatch is below one."""

LEAST_SHARE = 0.5
"""Of the neighbours that a value is interpolated from, the share that was compared at least."""


def mismatch_slabs(pulled: PullBack, mismatch: Image) -> Iterator[np.ndarray]:
    """The map of a record on the fixed grid, slab by slab; 0 where nothing was compared.

    Args:
        pulled: where the voxels of the fixed grid come from.
        mismatch: `ImageRecord.mismatch_map`.
    """
    look_up = mismatch_interpolator(mismatch)
    for slab in slabs(pulled.grid):
        yield look_up(mismatch.grid.index(pulled.origins(slab)))


def mismatch_interpolator(mismatch: Image) -> Callable[[np.ndarray], np.ndarray]:
    """From (…, d) voxel coordinates to the mean of the neighbours that were compared."""
    known = np.isfinite(mismatch.data).astype(np.float32)
    filled = np.nan_to_num(mismatch.data)
    sum_of_known = interpolator(Image(filled, mismatch.affine), "linear")
    share_of_known = interpolator(Image(known, mismatch.affine), "linear")

    def look_up(index: np.ndarray) -> np.ndarray:
        share = share_of_known(index)
        is_known = share >= LEAST_SHARE
        mean = sum_of_known(index) / np.where(is_known, share, 1.0)
        return np.where(is_known, mean, UNKNOWN).astype(np.float32)

    return look_up
