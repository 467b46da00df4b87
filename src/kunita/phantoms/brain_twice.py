"""A head that is scanned twice: two MRIs, between which the brain sank, and the truth."""

import dataclasses

import numpy as np
from scipy import ndimage

from kunita.data.image import Grid, Image
from kunita.errors import ArgumentError
from kunita.phantoms import brain
from kunita.phantoms.brain import Anatomy
from kunita.phantoms.brain_shift import (
    SLAB,
    Deformation,
    coil,
    deformation,
    moving_points,
    mri,
    scanned,
    slab,
)

NOISE = 0.03
"""Of the second scanner: the first has 0.018 of the signal of white matter."""

GAIN = 1150.0
"""Of the second scanner: the first has 700, so that intensities are not comparable as they are."""

SLOPE = 0.3
"""Of the second scanner's bias field: up to 35 per cent from the middle to a border."""


@dataclasses.dataclass(frozen=True, eq=False)
class BrainTwice:
    """A brain with a tumour before and during an operation, by two scanners, and the truth.

    Args:
        moving_image: T1-weighted MRI before the operation, int16.
        fixed_image: another scanner's MRI of the brain after it sank, with its own noise, bias
            field and scale of intensities, int16.
        labels: the tumour, 1, on the grid of the moving image.
        truth: the deformation from moving to fixed space.
        head: the anatomy in moving space, on the lattice of `brain`.
    """

    moving_image: Image
    fixed_image: Image
    labels: Image
    truth: Deformation
    head: Anatomy


def brain_twice(key: int = 0, shift_mm: float = 8.0, spacing: float = 2.0) -> BrainTwice:
    """Two MRIs of one head with a known truth, the same for the same key.

    Args:
        key: of the head, its deformation and all noise; head and truth are those of
            `brain_shift` with the same key.
        shift_mm: how far the cortex sinks below the craniotomy.
        spacing: of both images, mm.
    """
    if not 0.5 <= spacing <= 8:
        raise ArgumentError(f"spacing: expected between 0.5 and 8 mm, found {spacing}")
    if key < 0:
        raise ArgumentError(f"key: expected zero or a positive number, found {key}")
    head = brain.anatomy(key)
    truth = deformation(key, shift_mm)
    moving, labels = mri(head, key, spacing)
    fixed = second_mri(head, truth, moving.grid, key)
    return BrainTwice(moving, fixed, labels, truth, head)


def second_mri(head: Anatomy, truth: Deformation, grid: Grid, key: int) -> Image:
    """The anatomy after it moved, as another scanner sees it on a grid."""
    rng = np.random.default_rng([key, 7])
    signal = np.empty(grid.shape, np.float32)
    for first in range(0, grid.shape[0], SLAB):
        part = slab(grid, first)
        before = moving_points(brain.nodes(part), truth)
        signal[first : first + SLAB] = brain.t1(brain.smoothly_at(head, before))
    brightness = coil(grid.shape, rng.uniform(-SLOPE, SLOPE, 3))
    seen = brightness * ndimage.gaussian_filter(signal, 0.5)
    return Image(scanned(seen, rng, NOISE, GAIN), grid.affine)
