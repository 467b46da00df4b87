"""A case: two landmark sets of one patient, with images and true positions where there are any."""

import dataclasses

import numpy as np

from kunita.data.image import Image
from kunita.data.landmarks import Landmarks, refuse_free
from kunita.errors import LandmarkError

LEAST_LANDMARKS = 5
"""The fewest landmarks of a case. With fewer, a rigid alignment to the others
leaves nothing to learn from a landmark that is left out."""


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """A patient: homologous landmarks row by row, with images and truth where there are any.

    Args:
        name: distinct within a cohort.
        moving, fixed: at least five landmarks each, the same number.
        moving_image, fixed_image: to look at, in the spaces of the landmarks.
        image_names: what to call the moving and the fixed image.
        true_moving, true_fixed: where the landmarks are in truth, (n, d) mm, if
            that is known.
    """

    name: str
    moving: Landmarks
    fixed: Landmarks
    moving_image: Image | None = None
    fixed_image: Image | None = None
    image_names: tuple[str, str] = ("moving image", "fixed image")
    true_moving: np.ndarray | None = None
    true_fixed: np.ndarray | None = None

    def __post_init__(self) -> None:
        who = f"case {self.name!r}"
        for side in (self.moving, self.fixed):
            refuse_free(side, f" of {who}", "cohorts take fully known landmarks only")
        shape = self.moving.points.shape
        other = self.fixed.points.shape
        if shape != other:
            raise LandmarkError(
                f"{who}: expected landmarks row by row, found shapes {shape} and {other}"
            )
        if len(self) < LEAST_LANDMARKS:
            raise LandmarkError(
                f"{who}: expected at least {LEAST_LANDMARKS} pairs of landmarks, found {len(self)}"
            )

    def __len__(self) -> int:
        return len(self.moving)

    @property
    def dimension(self) -> int:
        return self.moving.dimension

    @property
    def distances(self) -> np.ndarray:
        """(n,) between moving and fixed landmarks before any registration, mm."""
        displacements = self.fixed.points - self.moving.points
        return np.linalg.norm(displacements, axis=1)

    @property
    def knows_noise(self) -> bool:
        """Whether the landmarks bring covariances, on either side."""
        sides = (self.moving, self.fixed)
        return any(side.covariances is not None for side in sides)

    @property
    def has_images(self) -> bool:
        return self.moving_image is not None and self.fixed_image is not None
