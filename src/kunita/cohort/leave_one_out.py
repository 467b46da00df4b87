"""Leave-one-out by refits: every landmark predicted by a registration that never saw it (`fig:loo`
of [wassermann:14]).

Another number of landmarks is another program to compile. So what is left of n landmarks is fitted
as N ≥ n rows: a landmark listed k times, each time with k times its covariance, says exactly as
much as once. One program then serves all refits of a whole cohort, and nothing is approximated: no
landmark is merely made vague.
"""

import dataclasses
import warnings
from collections.abc import Iterator, Sequence

import numpy as np

from kunita.cohort.lanes import Common, Lane, Refitted, bucket, num_points, refit_lanes
from kunita.data.case import Case
from kunita.data.landmarks import Landmarks
from kunita.errors import KunitaWarning, LandmarkError
from kunita.flow.shooting import MAX_DRIFT, enough_steps
from kunita.gaussians import GaussianPoints
from kunita.inference.leave_out import Influence, cavity
from kunita.inference.path_space import PathSpace
from kunita.inference.problem import Problem, Step
from kunita.inference.solve import solve_model
from kunita.inference.trend import determined_trend
from kunita.jaxrun.doors import door, to_numpy
from kunita.kernels import AbstractKernel, Gaussian
from kunita.observations.landmarks import LandmarkObservations, noise_of_both_sides
from kunita.posterior import Posterior, posterior_from_fit
from kunita.record import Registration
from kunita.registration import register

STILL = Gaussian(100.0, 1e-3)
"""A prior that allows next to no deformation: what is left is the alignment alone."""

ROOM = 4.0
"""By so much the energy of a refit may drift more than that of the fit of all landmarks before it
needs more steps."""

LEAST_OTHERS = 2
"""With fewer other cases to learn from, a case's own parameters are used."""


@dataclasses.dataclass(frozen=True, eq=False)
class RepeatedRows:
    """Landmarks listed once or more: the same information in any number of rows.

    Args:
        which: (N,) the landmark that each row lists.
    """

    which: np.ndarray

    @classmethod
    def of(cls, kept: np.ndarray, num_rows: int) -> "RepeatedRows":
        """These landmarks in so many rows, all of them about equally often."""
        return cls(kept[np.arange(max(num_rows, len(kept))) % len(kept)])

    @property
    def copies(self) -> np.ndarray:
        """(N,) how often the landmark of each row is listed."""
        return np.bincount(self.which)[self.which]

    def landmarks(self, landmarks: Landmarks) -> Landmarks:
        """The rows of a set, nameless: they are paired by their order."""
        known = landmarks.covariances is not None
        return Landmarks(
            landmarks.points[self.which], None, self.covariances(landmarks) if known else None
        )

    def covariances(self, landmarks: Landmarks) -> np.ndarray:
        """(N, d, d), zero for landmarks that count as exact."""
        if landmarks.covariances is None:
            return np.zeros((len(self.which), landmarks.dimension, landmarks.dimension))
        return landmarks.covariances[self.which] * self.copies[:, None, None]

    def observations(
        self, moving: Landmarks, fixed: Landmarks, *, unit_noise: bool = False
    ) -> LandmarkObservations:
        """The rows of two sets as observations; with a noise of 1 mm, if theirs is not known."""
        fixed_noise = self.covariances(fixed)
        if unit_noise:
            fixed_noise = self.copies[:, None, None] * np.eye(fixed.dimension)
        return LandmarkObservations(
            sites=moving.points[self.which],
            fixed=fixed.points[self.which],
            fixed_noise=fixed_noise,
            moving_noise=self.covariances(moving),
            copies=self.copies.astype(float),
        )

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
    return Landmarks(landmarks.points, landmarks.names, noise_mm**2, free=landmarks.free)


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
    """`register`, in so many rows where the landmarks know their noise (else as they are: it is
    then estimated).

    Quietly: what it would warn of is in the result's `warnings`, and a caller with thousands of
    fits counts it.
    """
    if moving.covariances is not None or fixed.covariances is not None:
        rows = RepeatedRows.of(np.arange(len(moving)), num_rows)
        moving, fixed = rows.landmarks(moving), rows.landmarks(fixed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KunitaWarning)
        return register(
            moving, fixed, kernel=kernel, length_scale=length_scale, align=align, model=model
        )


@dataclasses.dataclass(frozen=True, eq=False)
class LeftOut:
    """A landmark as predicted without it: (d,) mean and (d, d) covariance; and the noise of its
    own, (d, d).
    """

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
        predicted: the landmarks that were left out.
        jacobians: (k, d, d) of the whole map at them.
        elsewhere: (k, d) where the further points go that were asked for, if any were.
        alone: whether it needed the whole search, by itself.
    """

    left: tuple[int, ...]
    posterior: Posterior
    converged: bool
    predicted: GaussianPoints
    jacobians: np.ndarray
    elsewhere: np.ndarray | None = None
    alone: bool = False

    @property
    def landmark(self) -> int:
        """The row that was left out, the first where there are several."""
        return self.left[0]

    def left_out(self, moving: Landmarks, fixed: Landmarks) -> LeftOut:
        """The landmark that was left out, among all of them."""
        return self.all_left_out(moving, fixed)[0]

    def all_left_out(self, moving: Landmarks, fixed: Landmarks) -> tuple[LeftOut, ...]:
        """Every landmark that was left out, each by itself: how their errors go together is not
        asked.
        """
        noise = noise_in_fixed_space(self.jacobians, moving.take(self.left), fixed.take(self.left))
        means, covariances = np.asarray(self.predicted.mean), np.asarray(self.predicted.covariance)
        return tuple(LeftOut(*each) for each in zip(means, covariances, noise, strict=True))


def noise_in_fixed_space(jacobians: np.ndarray, moving: Landmarks, fixed: Landmarks) -> np.ndarray:
    """(n, d, d) the noise of both sides where fixed landmarks are, zero for a side without any."""
    none = np.zeros_like(jacobians)
    fixed_noise = none if fixed.covariances is None else fixed.covariances
    moving_noise = none if moving.covariances is None else moving.covariances
    return noise_of_both_sides(fixed_noise, moving_noise, jacobians)


def refits(
    full: Registration, moving: Landmarks, fixed: Landmarks, elsewhere: np.ndarray | None = None
) -> Iterator[Refit]:
    """Leave out each landmark in turn and fit the others again, kernel and noise as they are.

    Args:
        full: what `register_rows` made of all landmarks, with at least as many rows: where each
            refit starts.
        moving, fixed: the landmarks once each, with their covariances (on one side at least).
        elsewhere: (n, d) a further point for each landmark, to be predicted without it too.
    """
    return refits_without(full, moving, fixed, [(i,) for i in range(len(moving))], elsewhere)


def refit_without(full: Registration, moving: Landmarks, fixed: Landmarks, i: int) -> Refit:
    """Fit all landmarks but one."""
    return refit_without_all(full, moving, fixed, (i,))


def refit_without_all(
    full: Registration, moving: Landmarks, fixed: Landmarks, left: Sequence[int] | np.ndarray
) -> Refit:
    """Fit all landmarks but these."""
    return next(refits_without(full, moving, fixed, [left]))


def refits_without(
    full: Registration,
    moving: Landmarks,
    fixed: Landmarks,
    lefts: Sequence[Sequence[int] | np.ndarray],
    elsewhere: np.ndarray | None = None,
) -> Iterator[Refit]:
    """Fit all landmarks but some, for each of several choices: in batches, and alone where that
    does not converge.
    """
    questions = [Question.of(moving, np.asarray(left, dtype=int), elsewhere) for left in lefts]
    for question in questions:
        _refuse_undetermined(full, moving, question.kept(len(moving)))
    starts = Starts.of(full, moving, fixed)
    most = max(len(question.points) for question in questions)
    lanes = [starts.lane(question, most) for question in questions]
    for question, lane, found in zip(questions, lanes, starts.refitted(lanes), strict=True):
        if found is not None and found.converged:
            yield question.answered(
                found.posterior, True, found.mean, found.covariance, found.jacobians
            )
        else:
            yield refit_alone(full, lane, question)


@dataclasses.dataclass(frozen=True, eq=False)
class Question:
    """Landmarks to leave out, (k,), and points to predict, (m, d): these landmarks, and further
    ones if any.
    """

    left: np.ndarray
    points: np.ndarray

    @classmethod
    def of(cls, moving: Landmarks, left: np.ndarray, elsewhere: np.ndarray | None) -> "Question":
        further = [] if elsewhere is None else [elsewhere[left]]
        return cls(left, np.concatenate([moving.points[left], *further]))

    def kept(self, num_landmarks: int) -> np.ndarray:
        """The others."""
        return np.setdiff1d(np.arange(num_landmarks), self.left)

    def answered(
        self,
        posterior: Posterior,
        converged: bool,
        means: np.ndarray,
        covariances: np.ndarray,
        jacobians: np.ndarray,
    ) -> Refit:
        """With what is said of these points, in their order."""
        k, m = len(self.left), len(self.points)
        left = tuple(int(i) for i in self.left)
        elsewhere = means[k:m] if m > k else None
        return Refit(
            left,
            posterior,
            converged,
            GaussianPoints(means[:k], covariances[:k]),
            jacobians[:k],
            elsewhere,
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Starts:
    """Where the refits of a case start: at the fit of all its landmarks, a step to first order away
    from it.

    Args:
        full: that fit.
        moving, fixed: the landmarks once each.
        influence: of the rows of the fit; none where others carry their momenta, or nothing moves.
    """

    full: Registration
    moving: Landmarks
    fixed: Landmarks
    influence: Influence | None

    @classmethod
    def of(cls, full: Registration, moving: Landmarks, fixed: Landmarks) -> "Starts":
        posterior = full.posterior
        influence = None
        if full.model != "small" and isinstance(posterior.linear, PathSpace):
            influence = Influence.of(posterior.linear, posterior.trajectory.momenta[-1])
        return cls(full, moving, fixed, influence)

    def lane(self, question: Question, most_points: int) -> Lane:
        """One refit, in the rows of its bucket; points are filled up with the first one."""
        num_rows = bucket(len(self.moving) - 1)
        which = RepeatedRows.of(question.kept(len(self.moving)), num_rows)
        observed = which.observations(self.moving, self.fixed)
        observed = observed.about(np.asarray(self.full.posterior.origin))
        momenta, beta = self._first(question.left)
        step = Step(beta, np.zeros_like(observed.sites))
        missing = num_points(most_points, num_rows) - len(question.points)
        points = np.concatenate([question.points, np.repeat(question.points[:1], missing, axis=0)])
        return Lane(observed, which.split(momenta), step, points)

    def _first(self, left: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(n, d) momenta of the landmarks, none of those that are left out, and the change of the
        alignment.
        """
        if self.influence is None:
            return np.zeros(self.moving.points.shape), np.zeros(
                len(self.full.posterior.trend.generators)
            )
        listed = RepeatedRows.of(np.arange(len(self.moving)), len(self.full.moving))
        step = self.influence.without(np.flatnonzero(np.isin(listed.which, left)))
        momenta = np.asarray(self.full.posterior.trajectory.momenta[0]) + step.momenta
        return listed.collected(momenta, len(self.moving)), np.asarray(step.beta)

    def refitted(self, lanes: Sequence[Lane]) -> Iterator[Refitted | None]:
        """The lanes in batches; nothing where control points carry the momenta, which is for the
        whole search.
        """
        found = self.full.posterior
        if not isinstance(found.linear, PathSpace):
            return iter([None] * len(lanes))
        common = Common(self.full.kernel, found.trend, found.alignment, np.asarray(found.origin))
        return refit_lanes(common, lanes, self.full.model, _num_steps(self.full))


def _num_steps(full: Registration) -> int:
    """Time steps for refits: those of the fit of all landmarks, more where its drift leaves them no
    room.
    """
    trajectory = full.posterior.trajectory
    if not trajectory.num_steps:
        return 0
    return enough_steps(trajectory.num_steps, float(trajectory.drift), MAX_DRIFT / ROOM)


@door
def refit_alone(full: Registration, lane: Lane, question: Question) -> Refit:
    """A refit by the whole search, from the same start."""
    found = full.posterior
    alignment = to_numpy(found.trend.move(found.alignment, lane.step.beta))
    problem = Problem(full.kernel, lane.observed, found.trend)
    fit = solve_model(problem, alignment, lane.momenta, model=full.model)
    posterior = to_numpy(posterior_from_fit(fit, found.origin, full.model))
    at = posterior.predict(question.points)
    jacobians = posterior.alignment.jacobians(len(at.covariance))
    if posterior.model != "small":  # which carries noise with the alignment alone, to its order
        jacobians = np.asarray(posterior.jacobian(question.points))
    ended = fit.converged
    return dataclasses.replace(
        question.answered(posterior, ended, at.mean, at.covariance, jacobians), alone=True
    )


def _refuse_undetermined(full: Registration, moving: Landmarks, kept: np.ndarray) -> None:
    """Refuse to fit landmarks that no longer determine the alignment: every number would be
    rounding.
    """
    aligned = np.asarray(full.posterior.alignment(moving.points))
    _, before = determined_trend(full.align, _stand_ins(aligned))
    _, after = determined_trend(full.align, _stand_ins(aligned[kept]))
    if after > before:
        names = ", ".join(label for i, label in enumerate(moving.labels) if i not in kept)
        raise LandmarkError(
            f"without {names} the {len(kept)} other landmarks do not determine the {full.align} alignment; "
            "choose a simpler one, or add landmarks"
        )


def _stand_ins(points: np.ndarray) -> np.ndarray:
    """A few centred points with the moments of all: what an alignment asks of them, thousands of
    times for a cohort.
    """
    root = np.linalg.qr(points - points.mean(axis=0), mode="r") * np.sqrt(
        min(points.shape) / len(points)
    )
    return np.concatenate([root, -root])


def closed_form(full: Registration, moving: Landmarks, fixed: Landmarks) -> tuple[LeftOut, ...]:
    """Leave-one-out of a registration without refits, to first order, whatever its rows.

    With the noise that the fit itself used: any other, however near, can be less than the
    posterior's own covariance.
    """
    n = len(moving)
    for i in range(n):
        _refuse_undetermined(full, moving, np.delete(np.arange(n), i))
    copies = RepeatedRows.of(np.arange(n), len(full.moving)).copies[:n]
    noise = full.noise[:n] / copies[:, None, None]
    found = cavity(full.posterior.predict(moving.points), fixed.points, noise)
    return tuple(LeftOut(*each) for each in zip(found.mean, found.covariance, noise, strict=True))


# ------------------------------------------------------------- parameters learned on other patients


@dataclasses.dataclass(frozen=True)
class Parameters:
    """What the evidence chooses at a length scale: the kernel's amplitude, and the noise where the
    files bring none.

    Args:
        amplitude_mm, noise_mm: standard deviations; no noise where it is known.
        remarks: what the registration that chose them warned of.
        converged: whether that registration did.
        undetermined: whether the evidence was flat, so that a value is a limit of the search or a
            guess.
    """

    amplitude_mm: float
    noise_mm: float | None
    remarks: tuple[str, ...] = dataclasses.field(default=(), compare=False)
    converged: bool = dataclasses.field(default=True, compare=False)
    undetermined: bool = dataclasses.field(default=False, compare=False)


def own_parameters(
    case: Case, length_scale: float | None, num_rows: int, align: str = "rigid"
) -> Parameters:
    """What a case's own evidence chooses at a length scale, mm; at None, no deformation, there is
    only the noise.
    """
    if length_scale is None and case.knows_noise:
        return Parameters(float(STILL.amplitude), None)
    kernel = STILL if length_scale is None else None
    reg = register_rows(
        case.moving, case.fixed, num_rows, kernel=kernel, length_scale=length_scale, align=align
    )
    assert isinstance(reg.kernel, Gaussian)  # the family that `register` chooses from
    noise = None if case.knows_noise else reg.noise_mm
    flat = any(not one.identified for one in reg.chosen)
    return Parameters(float(reg.kernel.amplitude), noise, reg.warnings, reg.converged, flat)


def leave_one_patient_out(own: Sequence[Parameters]) -> tuple[Parameters, ...]:
    """For each case the medians over all *other* cases: nothing about a case is chosen on it.

    With fewer than two others each keeps its own. An unknown noise is learned from cases that have
    to estimate it too; where there is no other such case it stays the case's own estimate.
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
