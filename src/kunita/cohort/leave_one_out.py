"""Leave-one-out by refits: every landmark predicted by a registration that never saw it (`fig:loo` of [wassermann:14]).

Another number of landmarks is another program to compile. So what is left of n landmarks is fitted as N ≥ n rows: a
landmark listed k times, each time with k times its covariance, says exactly as much as once. One program then serves
all refits of a whole cohort, and nothing is approximated: no landmark is merely made vague.
"""

import dataclasses
import warnings
from collections.abc import Iterator, Sequence

import numpy as np

from kunita.data.cohort import Case
from kunita.data.landmarks import Landmarks
from kunita.errors import KunitaWarning, LandmarkError
from kunita.gaussians import GaussianPoints
from kunita.inference.solve import solve_observed
from kunita.inference.trend import determined_trend
from kunita.kernels import AbstractKernel, Gaussian
from kunita.observations import LandmarkObservations
from kunita.posterior import Posterior, posterior_from_fit
from kunita.precision import door, to_numpy
from kunita.registration import Registration, register

STILL = Gaussian(100.0, 1e-3)
"""A prior that allows next to no deformation: what is left is the alignment alone."""

LEAST_OTHERS = 2
"""With fewer other cases to learn from, a case's own parameters are used."""


@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """Landmarks listed once or more: the same information in any number of rows.

    Args:
        which: (N,) the landmark that each row lists.
    """

    which: np.ndarray

    @classmethod
    def of(cls, kept: np.ndarray, num_rows: int) -> "Rows":
        """These landmarks in so many rows, all of them about equally often."""
        return cls(kept[np.arange(max(num_rows, len(kept))) % len(kept)])

    @property
    def copies(self) -> np.ndarray:
        """(N,) how often the landmark of each row is listed."""
        return np.bincount(self.which)[self.which]

    def landmarks(self, landmarks: Landmarks) -> Landmarks:
        """The rows of a set, nameless: they are paired by their order."""
        known = landmarks.covariances is not None
        return Landmarks(landmarks.points[self.which], None, self.covariances(landmarks) if known else None)

    def covariances(self, landmarks: Landmarks) -> np.ndarray:
        """(N, d, d), zero for landmarks that count as exact."""
        if landmarks.covariances is None:
            return np.zeros((len(self.which), landmarks.dimension, landmarks.dimension))
        return landmarks.covariances[self.which] * self.copies[:, None, None]

    def split(self, momenta: np.ndarray) -> np.ndarray:
        """(N, d) momenta of the rows from those of the landmarks: copies share evenly."""
        return momenta[self.which] / self.copies[:, None]

    def collected(self, momenta: np.ndarray, num_landmarks: int) -> np.ndarray:
        """(n, d) momenta of the landmarks from those of the rows."""
        total = np.zeros((num_landmarks, momenta.shape[1]))
        np.add.at(total, self.which, momenta)
        return total


def with_noise(landmarks: Landmarks, noise_mm: float) -> Landmarks:
    """The same landmarks, all with this standard deviation."""
    return Landmarks(landmarks.points, landmarks.names, noise_mm**2)


def register_rows(
    moving: Landmarks,
    fixed: Landmarks,
    num_rows: int,
    *,
    kernel: AbstractKernel | None = None,
    length_scale: float | None = None,
    align: str = "rigid",
    model: str = "endpoint",
) -> Registration:
    """`register`, in so many rows where the landmarks know their noise (else as they are: it is then estimated).

    Quietly: what it would warn of is in the result's `warnings`, and a caller with thousands of fits counts it.
    """
    if moving.covariances is not None or fixed.covariances is not None:
        rows = Rows.of(np.arange(len(moving)), num_rows)
        moving, fixed = rows.landmarks(moving), rows.landmarks(fixed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KunitaWarning)
        return register(moving, fixed, kernel=kernel, length_scale=length_scale, align=align, model=model)


@dataclasses.dataclass(frozen=True, eq=False)
class LeftOut:
    """A landmark as predicted without it: (d,) mean and (d, d) covariance; and the noise of its own, (d, d)."""

    mean: np.ndarray
    covariance: np.ndarray
    noise: np.ndarray

    def squared(self, observed: np.ndarray) -> float:
        """The squared standardised error of where it was observed: χ² of d degrees if all is well."""
        miss = observed - self.mean
        return float(miss @ np.linalg.solve(self.covariance + self.noise, miss))


@dataclasses.dataclass(frozen=True, eq=False)
class Refit:
    """A registration without some of the landmarks.

    Args:
        left: the rows that were left out, one or more.
        posterior: of the others.
        converged: whether the fit did, and the noise that the map carries over settled.
    """

    left: tuple[int, ...]
    posterior: Posterior
    converged: bool

    @property
    def landmark(self) -> int:
        """The row that was left out, the first where there are several."""
        return self.left[0]

    def left_out(self, moving: Landmarks, fixed: Landmarks) -> LeftOut:
        """The landmark that was left out, among all of them."""
        return self.all_left_out(moving, fixed)[0]

    def all_left_out(self, moving: Landmarks, fixed: Landmarks) -> tuple[LeftOut, ...]:
        """Every landmark that was left out, each by itself: how their errors go together is not asked."""
        found = self.posterior.predict(moving.points[list(self.left)])
        noise = noise_in_fixed_space(self.posterior, moving.take(self.left), fixed.take(self.left))
        return tuple(LeftOut(*each) for each in zip(found.mean, found.covariance, noise, strict=True))


def noise_in_fixed_space(posterior: Posterior, moving: Landmarks, fixed: Landmarks) -> np.ndarray:
    """(n, d, d) the noise of both sides where fixed landmarks are: D + J D_m Jᵀ, J the Jacobian of the whole map."""
    n, d = moving.points.shape
    noise = np.zeros((n, d, d)) if fixed.covariances is None else fixed.covariances
    if moving.covariances is None:
        return noise
    jacobians = np.broadcast_to(posterior.alignment.matrix, (n, d, d))
    if posterior.model != "small":  # which carries noise with the alignment alone, to its order
        jacobians = np.asarray(posterior.jacobian(moving.points))
    return noise + jacobians @ moving.covariances @ jacobians.swapaxes(1, 2)


def refits(full: Registration, moving: Landmarks, fixed: Landmarks) -> Iterator[Refit]:
    """Leave out each landmark in turn and fit the others again, kernel and noise as they are.

    Args:
        full: what `register_rows` made of all landmarks, with at least as many rows: where each refit starts.
        moving, fixed: the landmarks once each, with their covariances (on one side at least).
    """
    for i in range(len(moving)):
        yield refit_without(full, moving, fixed, i)


def refit_without(full: Registration, moving: Landmarks, fixed: Landmarks, i: int) -> Refit:
    """Fit all landmarks but one, in as many rows as before, from where the full fit ended."""
    return refit_without_all(full, moving, fixed, (i,))


@door
def refit_without_all(
    full: Registration, moving: Landmarks, fixed: Landmarks, left: Sequence[int] | np.ndarray
) -> Refit:
    """Fit all landmarks but these, in as many rows as before, from where the full fit ended."""
    n, origin = len(moving), full.posterior.origin
    kept = np.setdiff1d(np.arange(n), left)
    _refuse_undetermined(full, moving, kept)
    listed = Rows.of(np.arange(n), len(full.moving))
    rows = Rows.of(kept, len(full.moving))
    momenta = rows.split(listed.collected(np.asarray(full.posterior.trajectory.momenta[0]), n))
    observed = LandmarkObservations(
        moving.points[rows.which], fixed.points[rows.which] - origin, rows.covariances(fixed), rows.covariances(moving)
    )
    found = full.posterior
    fit, settled = solve_observed(observed, full.kernel, found.trend, found.alignment, full.model, momenta)
    posterior = to_numpy(posterior_from_fit(fit, origin, full.model))
    return Refit(tuple(int(i) for i in left), posterior, bool(fit.converged and settled))


def _refuse_undetermined(full: Registration, moving: Landmarks, kept: np.ndarray) -> None:
    """Refuse to fit landmarks that no longer determine the alignment: every number would be rounding."""
    aligned = np.asarray(full.posterior.alignment(moving.points))
    _, before = determined_trend(full.align, aligned - aligned.mean(axis=0))
    _, after = determined_trend(full.align, aligned[kept] - aligned[kept].mean(axis=0))
    if after > before:
        names = ", ".join(label for i, label in enumerate(moving.labels) if i not in kept)
        raise LandmarkError(
            f"without {names} the {len(kept)} other landmarks do not determine the {full.align} alignment; "
            "choose a simpler one, or add landmarks"
        )


def cavity(at_landmarks: GaussianPoints, observed: np.ndarray, noise: np.ndarray) -> GaussianPoints:
    """Leave-one-out in closed form, from the posterior at the landmarks: m − C(D − C)⁻¹(f − m), C + C(D − C)⁻¹C.

    Takes one observation f = m + … with noise D out of a Gaussian N(m, C) again: what `Posterior.leave_one_out` says,
    without asking how often a landmark is listed. Exact for a linear model, first order around the fit otherwise.
    """
    mean, cov = np.asarray(at_landmarks.mean), np.asarray(at_landmarks.covariance)
    gain = cov @ np.linalg.inv(noise - cov)
    return GaussianPoints(mean - (gain @ (observed - mean)[..., None])[..., 0], cov + gain @ cov)


def closed_form(full: Registration, moving: Landmarks, fixed: Landmarks) -> tuple[LeftOut, ...]:
    """Leave-one-out of a registration without refits, to first order, whatever its rows.

    With the noise that the fit itself used: any other, however near, can be less than the posterior's own covariance.
    """
    n = len(moving)
    for i in range(n):
        _refuse_undetermined(full, moving, np.delete(np.arange(n), i))
    copies = Rows.of(np.arange(n), len(full.moving)).copies[:n]
    noise = np.asarray(full.posterior.noise)[:n] / copies[:, None, None]
    found = cavity(full.posterior.predict(moving.points), fixed.points, noise)
    return tuple(LeftOut(*each) for each in zip(found.mean, found.covariance, noise, strict=True))


# -------------------------------------------------------------------------------- parameters learned on other patients


@dataclasses.dataclass(frozen=True)
class Parameters:
    """What the evidence chooses at a length scale: the kernel's amplitude, and the noise where the files bring none.

    Args:
        amplitude_mm, noise_mm: standard deviations; no noise where it is known.
        remarks: what the registration that chose them warned of.
        converged: whether that registration did.
        undetermined: whether the evidence was flat, so that a value is a limit of the search or a guess.
    """

    amplitude_mm: float
    noise_mm: float | None
    remarks: tuple[str, ...] = dataclasses.field(default=(), compare=False)
    converged: bool = dataclasses.field(default=True, compare=False)
    undetermined: bool = dataclasses.field(default=False, compare=False)


def own_parameters(case: Case, length_scale: float | None, num_rows: int, align: str = "rigid") -> Parameters:
    """What a case's own evidence chooses at a length scale, mm; at None, no deformation, there is only the noise."""
    if length_scale is None and case.knows_noise:
        return Parameters(float(STILL.amplitude), None)
    kernel = STILL if length_scale is None else None
    reg = register_rows(case.moving, case.fixed, num_rows, kernel=kernel, length_scale=length_scale, align=align)
    assert isinstance(reg.kernel, Gaussian)  # the family that `register` chooses from
    noise = None if case.knows_noise else reg.noise_mm
    flat = any(not one.decided for one in reg.chosen)
    return Parameters(float(reg.kernel.amplitude), noise, reg.warnings, reg.converged, flat)


def leave_one_patient_out(own: Sequence[Parameters]) -> tuple[Parameters, ...]:
    """For each case the medians over all *other* cases: nothing about a case is chosen on it.

    With fewer than two others each keeps its own. An unknown noise is learned from cases that have to estimate it too;
    where there is no other such case it stays the case's own estimate.
    """
    if len(own) <= LEAST_OTHERS:
        return tuple(own)
    return tuple(_median(own[i], [*own[:i], *own[i + 1 :]]) for i in range(len(own)))


def _median(mine: Parameters, others: Sequence[Parameters]) -> Parameters:
    noises = [other.noise_mm for other in others if other.noise_mm is not None]
    noise = float(np.median(noises)) if mine.noise_mm is not None and noises else mine.noise_mm
    return Parameters(float(np.median([other.amplitude_mm for other in others])), noise)


def kernel_of(length_scale: float | None, parameters: Parameters) -> Gaussian:
    """The kernel with these parameters; without a length scale the one that stays still."""
    return STILL if length_scale is None else Gaussian(length_scale, parameters.amplitude_mm)


def known_noise(case: Case, parameters: Parameters) -> tuple[Landmarks, Landmarks]:
    """The case's landmarks, with the learned noise where the files bring none."""
    if parameters.noise_mm is None:
        return case.moving, case.fixed
    return case.moving, with_noise(case.fixed, parameters.noise_mm)
