"""What a registration that images drive keeps of them."""

import dataclasses

import numpy as np

from kunita.data.image import Grid, Image
from kunita.inference.sandwich import SandwichRatio
from kunita.observations.relation import Relation

BAD_MATCH = 1.5
"""Images match badly where the noise is so many times the usual one."""


@dataclasses.dataclass(frozen=True, eq=False)
class ImageRecord:
    """How images were compared, and how well they match.

    Args:
        metric: "ssd", "lncc" or "both".
        moving_grid, fixed_grid: of the images.
        mask: where the moving image counted, on its grid.
        overlap: the share of the moving image inside the fixed one after the alignment.
        mutual_information: of the alignment that the search started from; NaN if it was given.
        num_starts: from which that alignment was searched; 0 if it was given.
        decimation: how many neighbouring voxels count as one.
        noise_widths: over which noise was correlated by itself and was divided out, along the axes
            of the moving image, mm; None where none was.
        mismatch: the share of the compared voxels around which the images do not match.
        mismatch_map: in moving space, at the voxels that were compared on the last level: the
            local standard deviation of the noise over the usual one of its channel at such a
            gradient, the largest of all channels. One where the images match, above two where they
            do not, NaN where nothing was compared and in an empty background.
        relation: whether their intensities are related.
        is_prior_chosen: whether the evidence chose the kernel; else it was given, or a default.
        num_draws: from the posterior.
        monte_carlo_error: the relative standard error of a radius from these draws.
        solve_residual: the largest relative residual of the linear systems behind these draws; 0
            where they were factored.
        is_first_look: whether the finest level was left out, to be quick.
        sandwich_ratio: standard deviations as the residuals tell them over those that are claimed,
            at some places that images inform; None if there is none.
        background: the share of the compared voxels that are empty: without gradients.
    """

    metric: str
    moving_grid: Grid
    fixed_grid: Grid
    mask: np.ndarray
    overlap: float
    mutual_information: float
    num_starts: int
    decimation: float
    mismatch: float
    mismatch_map: Image
    relation: Relation
    is_prior_chosen: bool
    num_draws: int
    monte_carlo_error: float
    solve_residual: float = 0.0
    is_first_look: bool = False
    sandwich_ratio: SandwichRatio | None = None
    noise_widths: tuple[float, ...] | None = None
    background: float = 0.0

    def share_noisier(self, factor: float) -> float:
        """The share of the compared voxels around which the noise is so many times the usual."""
        ratios = self.mismatch_map.data
        known = ratios[np.isfinite(ratios)]
        if not len(known):
            return 0.0
        return float(np.mean(known > factor))

    @property
    def unit(self) -> str:
        """Of all lengths: "mm", or "pixel" where planes do not say how large their pixels are."""
        return unit_of(self.moving_grid.affine, self.fixed_grid.affine)


def unit_of(moving: np.ndarray, fixed: np.ndarray) -> str:
    """Of lengths between two images: "pixel" if both are planes whose pixels have the length one.

    Args:
        moving, fixed: (d + 1, d + 1) affines of the images.
    """
    for affine in (moving, fixed):
        d = len(affine) - 1
        spacing = np.linalg.norm(affine[:d, :d], axis=0)
        if d == 3 or not np.allclose(spacing, 1.0):
            return "mm"
    return "pixel"
