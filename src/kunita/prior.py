"""A prior: the kernel and the noise that were learned on one case, or better on many others."""

import dataclasses

from kunita.data.case import Case
from kunita.data.landmarks import Landmarks
from kunita.errors import LandmarkError
from kunita.inference.intervals import EstimatedParameter
from kunita.kernels import AbstractKernel


@dataclasses.dataclass(frozen=True, eq=False)
class Prior:
    """What to expect of a patient before any landmark is seen.

    Args:
        kernel: of the deformation.
        noise_mm: standard deviation of landmarks whose files say nothing of it; None
            where it was not learned.
        noise_factor: on the standard deviations that files bring.
        align, model: what it was learned with.
        cases: the names of those it was learned on.
        num_landmarks: of all of them.
        evidence: log evidence of all of them together.
        chosen: the hyper-parameters that were estimated, each with a 95 % interval.
        converged: whether these maximise the evidence of the model itself; if not, they
            maximise that of the small-deformation model.
    """

    kernel: AbstractKernel
    noise_mm: float | None
    noise_factor: float = 1.0
    align: str = "rigid"
    model: str = "endpoint"
    cases: tuple[str, ...] = ()
    num_landmarks: int = 0
    evidence: float = float("nan")
    chosen: tuple[EstimatedParameter, ...] = ()
    converged: bool = True

    @property
    def unidentified(self) -> tuple[str, ...]:
        """The hyper-parameters that the cases do not determine."""
        return tuple(one.name for one in self.chosen if not one.identified)

    def landmarks(self, case: Case) -> tuple[Landmarks, Landmarks]:
        """The moving and the fixed landmarks of a case, with the noise of this prior."""
        return self.with_noise(case.moving, case.fixed)

    def with_noise(self, moving: Landmarks, fixed: Landmarks) -> tuple[Landmarks, Landmarks]:
        """Two sets with the noise of this prior.

        It is their own times the factor, or the noise that was learned where neither
        set brings any.
        """
        if moving.covariances is not None or fixed.covariances is not None:
            return self._scaled(moving), self._scaled(fixed)
        if self.noise_mm is None:
            raise LandmarkError(
                "noise: the prior was learned on landmarks that bring their own, and these "
                "bring none; give a noise"
            )
        variance = self.noise_mm**2
        return moving, dataclasses.replace(fixed, covariances=variance)

    def _scaled(self, landmarks: Landmarks) -> Landmarks:
        if landmarks.covariances is None or self.noise_factor == 1.0:
            return landmarks
        covariances = self.noise_factor**2 * landmarks.covariances
        return dataclasses.replace(landmarks, covariances=covariances)
