"""A prior: the kernel and the noise that one case, or better many others, have taught."""

import dataclasses
from typing import Any

from kunita.data.case import Case
from kunita.data.landmarks import Landmarks
from kunita.errors import LandmarkError
from kunita.inference.choice import Chosen
from kunita.kernels import AbstractKernel


@dataclasses.dataclass(frozen=True, eq=False)
class Prior:
    """What to expect of a patient before any landmark is seen.

    Args:
        kernel: of the deformation.
        noise_mm: standard deviation of marks whose files say nothing of it; None where it was not
            learned.
        noise_factor: on the standard deviations that files bring.
        align, model: what it was learned with.
        cases: the names of those it was learned on.
        num_landmarks: of all of them.
        evidence: log evidence of all of them together.
        chosen: how well each parameter is told.
        converged: whether the evidence of the model itself could be followed (not: the
            small-deformation model's).
    """

    kernel: AbstractKernel
    noise_mm: float | None
    noise_factor: float = 1.0
    align: str = "rigid"
    model: str = "endpoint"
    cases: tuple[str, ...] = ()
    num_landmarks: int = 0
    evidence: float = float("nan")
    chosen: tuple[Chosen, ...] = ()
    converged: bool = True

    @property
    def undecided(self) -> tuple[str, ...]:
        """Parameters that the cases do not determine."""
        return tuple(one.name for one in self.chosen if not one.decided)

    def landmarks(self, case: Case) -> tuple[Landmarks, Landmarks]:
        """The moving and the fixed landmarks of a case, with the noise that this prior says."""
        return self.with_noise(case.moving, case.fixed)

    def with_noise(self, moving: Landmarks, fixed: Landmarks) -> tuple[Landmarks, Landmarks]:
        """Two sets with their own noise times the factor; where neither brings any, with the noise
        that was learned.
        """
        if moving.covariances is not None or fixed.covariances is not None:
            return self._scaled(moving), self._scaled(fixed)
        if self.noise_mm is None:
            raise LandmarkError(
                "noise: the prior was learned on landmarks that bring their own, and these bring none; give a noise"
            )
        return moving, dataclasses.replace(fixed, covariances=self.noise_mm**2)

    def _scaled(self, landmarks: Landmarks) -> Landmarks:
        if landmarks.covariances is None or self.noise_factor == 1.0:
            return landmarks
        scaled: Any = self.noise_factor**2 * landmarks.covariances
        return dataclasses.replace(landmarks, covariances=scaled)
