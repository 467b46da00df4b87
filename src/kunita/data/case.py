"""A case: two landmark sets of one patient, and what else there is."""

import dataclasses

import numpy as np

from kunita.data.image import Image
from kunita.data.landmarks import Landmarks
from kunita.errors import LandmarkError

LEAST_LANDMARKS = 5
"""With fewer, a rigid alignment to the others leaves nothing to learn from a landmark that is left
out."""


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """A patient: homologous landmarks row by row, and what else there is.

    Args:
        name: distinct within a cohort.
        moving, fixed: at least five landmarks each, the same number.
        moving_image, fixed_image: to look at, in the spaces of the landmarks.
        image_names: what to call the moving and the fixed image.
        true_moving, true_fixed: where the landmarks are in truth, (n, d) mm, if that is known.
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
        if self.moving.points.shape != self.fixed.points.shape:
            shapes = f"{self.moving.points.shape} and {self.fixed.points.shape}"
            raise LandmarkError(
                f"case {self.name!r}: expected landmarks row by row, found shapes {shapes}"
            )
        if len(self.moving) < LEAST_LANDMARKS:
            raise LandmarkError(
                f"case {self.name!r}: expected at least {LEAST_LANDMARKS} pairs of landmarks, found {len(self.moving)}"
            )

    def __len__(self) -> int:
        return len(self.moving)

    @property
    def dimension(self) -> int:
        return self.moving.dimension

    @property
    def distances(self) -> np.ndarray:
        """(n,) between moving and fixed landmarks before any registration, mm."""
        return np.linalg.norm(self.fixed.points - self.moving.points, axis=1)

    @property
    def knows_noise(self) -> bool:
        """Whether the landmarks bring covariances, on either side."""
        return self.moving.covariances is not None or self.fixed.covariances is not None

    @property
    def has_images(self) -> bool:
        return self.moving_image is not None and self.fixed_image is not None
