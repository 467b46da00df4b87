"""The record of a registration: what went in, what came out, and how the fit ended."""

import dataclasses
import functools
from typing import TYPE_CHECKING

import numpy as np

from kunita.checks import NoisyPairs
from kunita.data.landmarks import Landmarks, NoLandmarks, known_variances
from kunita.errors import LandmarkError, Outcome
from kunita.evaluation import Evaluation
from kunita.facts import Facts, console_summary, facts_of
from kunita.fitting import profile_pairs
from kunita.image_posterior import ImagePosterior
from kunita.image_record import ImageRecord
from kunita.inference.intervals import EstimatedParameter, EvidenceProfile
from kunita.inference.leave_out import LeaveOneOut
from kunita.inference.robust import with_full_weights
from kunita.inference.search import Progress
from kunita.inference.solve import Truncation
from kunita.kernels import AbstractKernel
from kunita.posterior import Posterior
from kunita.suspects.report import Suspicion

if TYPE_CHECKING:
    # Both kinds answer the same questions. What only landmarks have is asked where there are some.
    SideLandmarks = Landmarks
    AnyPosterior = Posterior
    AnyEvaluation = Evaluation
else:
    SideLandmarks = Landmarks | NoLandmarks
    AnyPosterior = Posterior | ImagePosterior
    AnyEvaluation = Evaluation | ImagePosterior


@dataclasses.dataclass(frozen=True, eq=False)
class Registration:
    """A registration: the posterior over deformations, what went into it, and how the fit ended.

    Args:
        moving, fixed: the pairs of landmarks, row by row.
        pairing: whether they were paired by "name" or by "order".
        used: (n,) which pairs were used.
        kernel: the prior's covariance function.
        noise: (n, d, d) localisation covariances of both sides together, in fixed
            space, mm².
        align, model: what was fitted.
        posterior: where any point goes, and how certain that is.
        evidence: log marginal likelihood; NaN for a robust fit, which has none to
            compare.
        energy: at the fit.
        outcome: how the search ended.
        gap_mm: the largest residual of the optimality conditions, mm.
        history: the log of the search.
        warnings: what deserves a second look.
        seconds: what it took.
        chosen: the hyper-parameters that were estimated, each with a 95 % interval.
        robust: whether the noise has heavy tails.
        weights: (n,) how much each landmark counts in a robust fit.
        learned_on: the names of the cases behind a prior that was given.
        suspicion: which of the used landmarks cannot be right; None in records of
            earlier versions.
        truncation: what was left out to fit very many landmarks; None where nothing
            was.
        images: how images drove the fit; None where landmarks alone did.
    """

    moving: SideLandmarks
    fixed: SideLandmarks
    pairing: str
    used: np.ndarray
    kernel: AbstractKernel
    noise: np.ndarray
    align: str
    model: str
    posterior: AnyPosterior
    evidence: float
    energy: float
    outcome: Outcome
    gap_mm: float
    history: tuple[Progress, ...]
    warnings: tuple[str, ...]
    seconds: float
    chosen: tuple[EstimatedParameter, ...] = ()
    robust: bool = False
    weights: np.ndarray | None = None
    learned_on: tuple[str, ...] = ()
    suspicion: Suspicion | None = None
    truncation: Truncation | None = None
    images: ImageRecord | None = None

    @property
    def converged(self) -> bool:
        return self.outcome.converged

    @property
    def iterations(self) -> int:
        return sum(line.num_iterations for line in self.history)

    @property
    def used_labels(self) -> list[str]:
        """The labels of the pairs that were used."""
        everyone = self.moving.labels
        rows = np.flatnonzero(self.used)
        return [everyone[row] for row in rows]

    @property
    def noise_mm(self) -> float:
        """Typical standard deviation of the localisation noise, mm.

        The root mean square over used landmarks and the directions along which they
        are known; NaN where there are no landmarks.
        """
        if not self.used.any():
            return float("nan")
        variances = known_variances(self.fixed, self.noise)
        total = variances[self.used].sum()
        count = self.fixed.known[self.used].sum()
        return float(np.sqrt(total / count))

    @functools.cached_property
    def loo(self) -> LeaveOneOut | None:
        """Leave-one-out, where the landmarks are enough for it; found once.

        A landmark of little weight in a robust fit is judged as any other: its
        weight was found with it.
        """
        try:
            found = self.posterior.leave_one_out()
        except LandmarkError:
            return None
        if not self.robust or self.weights is None:
            return found
        rows = np.flatnonzero(self.used)
        return with_full_weights(
            found,
            self.fixed.points[rows],
            self.noise[rows],
            self.weights[rows],
            [self.fixed.known_directions(row) for row in rows.tolist()],
        )

    def evidence_profile(self, most_landmarks: int = 200) -> EvidenceProfile | None:
        """How well the landmarks determine the length scale: the log evidence along it.

        It is the evidence of the small-deformation model, with the weak prior of the
        hyper-parameters. For large deformations it may peak elsewhere than the
        diffeomorphic model's, which chose the length scale.

        There is none where the weights of a robust fit replace the evidence, where the
        kernel is more than a family with its length scale and amplitude, and where the
        alignment explains nearly everything.

        Args:
            most_landmarks: of more landmarks than this, so many are drawn by chance: a
                picture of the curve needs no more.
        """
        if self.robust or self.images is not None:
            return None
        rows = np.flatnonzero(self.used)
        return profile_pairs(
            NoisyPairs.of_fit(self.moving, self.fixed, self.noise, rows),
            self.align,
            self.kernel,
            self.chosen,
            most_landmarks,
        )

    @functools.cached_property
    def moving_support(self) -> np.ndarray:
        """(m, d) moving points around which something is known: landmarks, and lattice nodes."""
        return np.concatenate([self.moving.points, self.posterior.informed_nodes])

    @functools.cached_property
    def fixed_support(self) -> np.ndarray:
        """(m, d) the same in fixed space: the fixed landmarks, and where the nodes arrive."""
        arrived = self.posterior.move(self.posterior.informed_nodes)
        return np.concatenate([self.fixed.points, arrived])

    @functools.cached_property
    def informing(self) -> np.ndarray:
        """(m, d) moving points that the fit rests on: used landmarks, nodes that images inform."""
        return np.concatenate([self.moving.points[self.used], self.posterior.informed_nodes])

    @property
    def informing_labels(self) -> list[str]:
        """The labels of these."""
        num_nodes = len(self.informing) - int(self.used.sum())
        return [*self.used_labels, *["image"] * num_nodes]

    @functools.cached_property
    def evaluation(self) -> AnyEvaluation:
        """The posterior prepared for very many points; `posterior` itself does the same now."""
        return self.posterior.prepared

    @functools.cached_property
    def facts(self) -> Facts:
        """What there is to say, found once."""
        return facts_of(self)

    def summary(self) -> str:
        """What was done and how well it went, for people."""
        return console_summary(self.facts)

    def __repr__(self) -> str:
        state = "converged" if self.converged else "not converged"
        if self.images is not None:
            return f"<Registration of images in {self.fixed.dimension}-D, {state}>"
        return (
            f"<Registration of {len(self.moving)} landmarks in {self.fixed.dimension}-D, "
            f"{self.model}, {state}>"
        )
