"""`register`, the one door: where landmarks meet the model."""

import dataclasses
import functools
import time
import warnings as python_warnings
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from scipy.spatial import cKDTree

from kunita import notebook, scores
from kunita.data.landmarks import Landmarks, Pairs, check_covariances, match
from kunita.errors import ArgumentError, KunitaWarning, LandmarkError, Outcome
from kunita.evaluation import Evaluation, prepare
from kunita.flow import shooting
from kunita.gaussians import GaussianPoints
from kunita.inference import solve, trend
from kunita.inference.choice import Choice, Chosen, Dials, Held, choose, search_for
from kunita.inference.evidence import gauss_newton_evidence
from kunita.inference.robust import REWEIGHTINGS, SETTLED_WEIGHT, first_weights, student_weights
from kunita.inference.sample import Sample, aligned_sample
from kunita.jaxrun.doors import ArrayLike, as_floats, on_one_blas_thread, to_numpy
from kunita.kernels import (
    BEST,
    FAMILIES,
    AbstractKernel,
    AbstractProfile,
    Gaussian,
    describe_kernel,
    steepness,
)
from kunita.posterior import MODELS, LeaveOneOut, Posterior, posterior_from_fit
from kunita.prior import Prior
from kunita.suspects import Suspicion, suspicion

CONTRADICTION = 6.0
"""Coinciding moving landmarks whose targets differ by more than this many standard deviations are
refused."""

TOO_SURE = 0.45
"""Amplitude over length scale beyond which the linearised posterior is too sure
(`benchmarks/calibration.py`)."""

LIGHT = 0.3
"""Landmarks of less weight in a robust fit are named."""

MOST_TELLING = 400
"""Parameters are chosen on so many of the landmarks at most."""

LEAST_SD, MOST_SD = 1e-100, 1e100
"""Standard deviations whose squares are numbers."""


@dataclasses.dataclass(frozen=True, eq=False)
class Registration:
    """A registration: the posterior over deformations, what went into it, and how the fit ended.

    `chosen` says how well the parameters are told that the evidence chose; `weights` how much each
    landmark counted in a robust fit, which has no evidence to compare; `learned_on` names the cases
    behind a prior that was given; `suspicion` which of the landmarks that were used cannot be right
    (None in records of earlier versions); `truncation` what was left out to fit very many of them
    (None where nothing was).
    """

    moving: Landmarks
    fixed: Landmarks
    pairing: str
    used: np.ndarray
    kernel: AbstractKernel
    noise: np.ndarray
    align: str
    model: str
    posterior: Posterior
    evidence: float
    energy: float
    outcome: Outcome
    gap_mm: float
    history: tuple[solve.Progress, ...]
    warnings: tuple[str, ...]
    seconds: float
    chosen: tuple[Chosen, ...] = ()
    robust: bool = False
    weights: np.ndarray | None = None
    learned_on: tuple[str, ...] = ()
    suspicion: Suspicion | None = None
    truncation: solve.Truncation | None = None

    @property
    def converged(self) -> bool:
        return self.outcome.converged

    @property
    def iterations(self) -> int:
        return len(self.history)

    @property
    def noise_mm(self) -> float:
        """Typical standard deviation of the localisation noise, mm (root mean square over used
        landmarks and axes).
        """
        return float(
            np.sqrt(
                np.mean(np.trace(self.noise[self.used], axis1=1, axis2=2)) / self.fixed.dimension
            )
        )

    @functools.cached_property
    def loo(self) -> LeaveOneOut | None:
        """Leave-one-out, where the landmarks are enough for it; found once, since every summary
        asks for it.

        A landmark of little weight in a robust fit is judged as any other: its weight was found
            with it.
        """
        try:
            found = self.posterior.leave_one_out()
        except LandmarkError:
            return None
        if not self.robust:
            return found
        covariance = found.covariance - self.posterior.noise + self.noise[self.used]
        miss = self.fixed.points[self.used] - found.mean
        squared = np.einsum("ia,ia->i", miss, np.linalg.solve(covariance, miss[..., None])[..., 0])
        return LeaveOneOut(found.mean, covariance, found.error, squared)

    @functools.cached_property
    def evaluation(self) -> Evaluation:
        """The posterior prepared for very many points, in double precision."""
        return prepare(self.posterior)

    def summary(self) -> str:
        """What was done and how well it went, for people."""
        return "\n".join(_summary_lines(self))

    def __repr__(self) -> str:
        state = "converged" if self.converged else "not converged"
        return f"<Registration of {len(self.moving)} landmarks in {self.fixed.dimension}-D, {self.model}, {state}>"

    def _repr_html_(self) -> str:
        """A card for notebooks: the summary's numbers, suspects and warnings, and a drawing of the
        landmarks.
        """
        rows, moving, fixed = np.flatnonzero(self.used), self.moving.points, self.fixed.points
        labels = [self.moving.labels[i] for i in rows]
        arrived, affine = self.evaluation.predict(moving), self.posterior.affine
        distance = lambda points: float(np.linalg.norm(fixed - points, axis=1)[rows].mean())
        cut, left_out, suspects, doubtful = self.truncation, None, None, {}
        if self.loo is not None:
            inside = scores.covered(
                scores.pit(np.asarray(self.loo.chi2), self.fixed.dimension), (0.95,)
            )
            left_out = (float(np.mean(self.loo.error)), int(inside.sum()), len(inside))
        if self.suspicion is not None:
            suspects = tuple(self.suspicion.lines(labels))
            doubtful = {int(rows[i]): labels[i] for i in np.flatnonzero(self.suspicion.suspect)}
        story = notebook.Story(
            count=len(moving),
            used=len(rows),
            dimension=self.fixed.dimension,
            pairing=self.pairing,
            before=distance(moving),
            after=distance(arrived.mean),
            left_out=left_out,
            kernel=describe_kernel(self.kernel),
            noise=self.noise_mm,
            align=self.align,
            model=self.model,
            converged=self.converged,
            effort=f"{self.iterations} iterations, gap {self.gap_mm:.1e} mm, {self.seconds:.2f} s",
            chosen=tuple((one.name, one.low, one.high) for one in self.chosen),
            learned_on=len(self.learned_on),
            robust=self.robust,
            low_rank=None
            if cut is None
            else (cut.num_controls, cut.mean_error_mm, cut.matrix_error),
            suspects=suspects,
            warnings=self.warnings,
        )
        aligned = moving @ affine[:-1, :-1].T + affine[:-1, -1]
        start, origin = notebook.starts(moving, aligned, fixed)
        scene = notebook.Scene(start, arrived, fixed, doubtful, origin)
        used = GaussianPoints(arrived.mean[rows], arrived.covariance[rows])
        return notebook.registration_card(story, scene, notebook.sureness(used))


@on_one_blas_thread
def register(
    moving: Landmarks | ArrayLike,
    fixed: Landmarks | ArrayLike,
    *,
    kernel: AbstractKernel | type[AbstractProfile] | str | None = None,
    noise: ArrayLike | None = None,
    align: str | None = None,
    model: str = "endpoint",
    length_scale: float | None = None,
    amplitude: float | None = None,
    prior: Prior | None = None,
    scale_noise: bool = False,
    robust: bool = False,
) -> Registration:
    """Find the deformation that takes the moving landmarks to the fixed ones, and how sure it is
    everywhere.

    Args:
        moving, fixed: landmarks in the two spaces, or plain (n, d) arrays; paired by name, else by
            order.
        kernel: the prior's covariance function; or a family (a class or its name, such as
            "matern52"), whose length scale and amplitude are then chosen by the evidence; or
            "best", for the family with the largest evidence. Default: a Gaussian, chosen so.
        noise: localisation noise, mm: one standard deviation, (n,) of them, or (n, d, d)
            covariances; inf leaves a landmark out. Default: the covariances of the landmarks (a
            side without any counts as exact), and where neither side has any, one estimated value.
        align: "none", "translation", "rigid", "similarity" or "affine"; its uncertainty is part of
            the posterior. Default: "rigid"; with a prior, what that was learned with.
        model: "endpoint" (default), "pathwise" (the paper's figure) or "small" (small deformation,
            may fold).
        length_scale, amplitude: of the kernel's family, mm: what is given is kept, the rest chosen
            by the evidence.
        prior: kernel and noise learned on other cases (see `learn_prior`), in place of the evidence
            of this one.
        scale_noise: whether one factor on all given noise is chosen by the evidence, too.
        robust: whether the noise has heavy tails (Student's t), so that gross errors pull less; see
            `weights`.
    """
    began = time.perf_counter()
    if model not in MODELS:
        raise ArgumentError(f"model: expected one of {', '.join(MODELS)}, found {model!r}")
    align = trend.check_kind(align or (prior.align if isinstance(prior, Prior) else "rigid"))
    pairs = match(_as_landmarks(moving), _as_landmarks(fixed))
    if prior is not None:
        kernel, pairs = _with_prior(prior, pairs, kernel, noise, length_scale, amplitude)
    families, given = _check_kernel(kernel)
    held = _check_held(given, length_scale, amplitude)
    noises, used = _check_noise(pairs, noise)
    if scale_noise and not noises.known:
        raise ArgumentError("scale_noise: there is no given noise to scale; it is estimated anyway")
    active = dataclasses.replace(
        pairs, moving=pairs.moving.take(used), fixed=pairs.fixed.take(used)
    )
    doubts = _suspicion(active, noises, align, believed=noise is None and not scale_noise)
    before = tuple(_pairing_remarks(pairs, active, used, doubts))
    for remark in before:  # at once: a fit to the wrong pairs may take long
        python_warnings.warn(remark, KunitaWarning, stacklevel=3)
    patient = not doubts.mirrored or align == "affine"
    wish = _Wish(families, given, held, align, model, scale_noise, patient)
    with jax.enable_x64(True):
        fitted = _fit_robustly(active, noises, wish) if robust else _fit(active, noises, wish)
    for remark in fitted.remarks:
        python_warnings.warn(remark, KunitaWarning, stacklevel=3)
    fit = fitted.fit
    return Registration(
        moving=pairs.moving,
        fixed=pairs.fixed,
        pairing=pairs.pairing,
        used=np.isin(np.arange(len(pairs.moving)), used),
        kernel=fit.kernel,
        noise=_spread_out(fitted.noise, used, len(pairs.moving)),
        align=align,
        model=model,
        posterior=fitted.posterior,
        evidence=fitted.evidence,
        energy=float(fit.energy),
        outcome=fit.outcome,
        gap_mm=fit.gap_mm,
        history=fit.history,
        warnings=before + fitted.remarks,
        seconds=time.perf_counter() - began,
        chosen=fitted.choice.chosen,
        robust=robust,
        learned_on=() if prior is None else prior.cases,
        suspicion=doubts,
        truncation=fit.truncation,
        weights=_spread_out(fitted.weights, used, len(pairs.moving), 0.0),
    )


@dataclasses.dataclass(frozen=True, eq=False)
class _Noises:
    """Covariances of the fixed and of the moving points, (n, d, d); unit ones where they are to be
    estimated.
    """

    fixed: np.ndarray
    moving: np.ndarray
    known: bool

    def weighted(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Both sides, divided by the landmarks' weights."""
        return self.fixed / weights[:, None, None], self.moving / weights[:, None, None]


@dataclasses.dataclass(frozen=True)
class _Wish:
    """What is asked for: kernels to choose from (or one that is given), parameters that are kept,
    and the model.

    There is reason to be patient unless the landmarks are a mirror image that the alignment cannot
    turn: no flow turns space inside out, and to look for one that nearly does takes minutes and
    ends nowhere.
    """

    families: tuple[type[AbstractProfile], ...]
    kernel: AbstractKernel | None
    held: Held
    align: str
    model: str
    scale_noise: bool
    patient: bool


@dataclasses.dataclass(frozen=True, eq=False)
class _Fitted:
    """A fit: its noise is what a landmark of full weight has."""

    fit: solve.Fit
    posterior: Posterior
    choice: Choice
    noise: np.ndarray
    weights: np.ndarray
    evidence: float
    remarks: tuple[str, ...]


def _fit(pairs: Pairs, noises: _Noises, wish: _Wish, weights: np.ndarray | None = None) -> _Fitted:
    """Align, choose what is not given, solve, linearise: the pipeline on arrays."""
    x, f = pairs.moving.points, pairs.fixed.points
    weights = np.ones(len(x)) if weights is None else weights
    scaled = wish.scale_noise or not noises.known
    aligned = aligned_sample(x, f, noises.weighted(weights), wish.align, scaled=scaled)
    sample = aligned.sample
    telling = _telling(len(x))
    few = (
        aligned
        if telling is None
        else aligned_sample(
            x[telling],
            f[telling],
            tuple(side[telling] for side in noises.weighted(weights)),
            wish.align,
            scaled=scaled,
        )
    )
    choice = _choose(few.sample, np.asarray(few.origin), wish, given_noise=noises.known)
    observed = sample.observed_with(choice.theta[-1])
    _refuse_contradictions(
        pairs, np.asarray(observed.noise(np.broadcast_to(sample.start.matrix, noises.fixed.shape)))
    )
    near = choice.fits[0] if choice.fits and telling is None and wish.model != "small" else None
    start = (sample.start, None) if near is None else (near.alignment, near.trajectory.momenta[0])
    fit, settled = solve.solve_observed(
        observed, choice.kernel, sample.trend, start[0], wish.model, start[1], patient=wish.patient
    )
    posterior = posterior_from_fit(fit, aligned.origin, wish.model, near=wish.patient)
    value = gauss_newton_evidence(posterior.linear, fit.energy)
    remarks = tuple(_fit_remarks(pairs, wish, aligned.open_directions, choice, fit, settled))
    noise = np.asarray(fit.noise) * weights[:, None, None]
    return _Fitted(fit, to_numpy(posterior), choice, noise, weights, float(value), remarks)


def _telling(n: int) -> np.ndarray | None:
    """Of very many landmarks those that choose the parameters, which hundreds tell as well as
    thousands; else None.
    """
    if n <= MOST_TELLING:
        return None
    return np.sort(
        np.random.default_rng(0).permutation(n)[:MOST_TELLING]
    )  # a list may have a rhythm


def _choose(sample: Sample, origin: np.ndarray, wish: _Wish, *, given_noise: bool) -> Choice:
    """The parameters that are not given, by the evidence; of several families that with the
    largest.

    What the evidence leaves open the weak prior of the search decides, not a limit: below the
    landmarks' spacing, say, deformation and noise are the same to it, and an exact interpolation of
    all marks would be as good as any.
    """
    choices = []
    for family in wish.families:
        dials = Dials(family, given=wish.kernel, noise="noise factor" if given_noise else "noise")
        reach = float(
            np.sqrt(np.mean((sample.observed.fixed + origin - sample.observed.moving) ** 2))
        )
        search = search_for(
            [sample], dials, wish.held, given_noise=given_noise, hyperprior=True, reach=reach
        )
        if wish.patient:
            choices.append(choose([sample], dials, search, wish.model))
        else:
            choices.append(
                dataclasses.replace(
                    choose([sample], dials, search, "small"), followed=wish.kernel is not None
                )
            )
    return max(choices, key=lambda choice: choice.evidence) if len(choices) > 1 else choices[0]


def _fit_robustly(pairs: Pairs, noises: _Noises, wish: _Wish) -> _Fitted:
    """Student's t by reweighting: in the small-deformation model first, which is quick and cannot
    fail.

    Parameters are chosen again with every change of the weights in the former, once in the latter.
    """
    weights = first_weights(wish.align, pairs.moving.points, pairs.fixed.points)
    weights, _ = _reweighted(pairs, noises, dataclasses.replace(wish, model="small"), weights)
    first = _fit(pairs, noises, wish, weights)
    held = dataclasses.replace(wish, kernel=first.choice.kernel, scale_noise=False)
    known = _Noises(first.noise, np.zeros_like(first.noise), known=True)
    weights, settled = _reweighted(pairs, known, held, weights)
    last = _fit(pairs, known, held, weights)
    remarks = (
        *(r for r in first.remarks if r not in last.remarks),
        *last.remarks,
        *_weight_remarks(pairs, weights, settled),
    )
    return dataclasses.replace(last, choice=first.choice, remarks=remarks, evidence=np.nan)


def _reweighted(
    pairs: Pairs, noises: _Noises, wish: _Wish, weights: np.ndarray
) -> tuple[np.ndarray, bool]:
    """Fit and weigh again, until the weights settle; and whether they did."""
    for _ in range(REWEIGHTINGS):
        fitted = _fit(pairs, noises, wish, weights)
        arrived = fitted.posterior.predict(pairs.moving.points)
        updated = student_weights(
            pairs.fixed.points - arrived.mean, arrived.covariance, fitted.noise
        )
        settled = bool(np.abs(updated - weights).max() < SETTLED_WEIGHT)
        weights = updated
        if settled:
            break
    return weights, settled


def _suspicion(pairs: Pairs, noises: _Noises, align: str, *, believed: bool) -> Suspicion:
    """Which pairs cannot be right, before anything is fitted to them.

    The level of a noise that the landmarks bring is believed. Of any other only the relative sizes
    are: what is typed or estimated may be what the gross errors that are looked for suggest.
    """
    x, f = pairs.moving.points, pairs.fixed.points
    turn = np.asarray(trend.procrustes(align, x, f, np.ones(len(x))).matrix)
    noise = noises.fixed + turn @ noises.moving @ turn.T
    return suspicion(x, f, noise, align, known=believed and noises.known)


def _spread_out(values: np.ndarray, used: np.ndarray, n: int, absent: float = np.inf) -> np.ndarray:
    """One entry per landmark, those that are not used included."""
    full = np.full((n, *values.shape[1:]), absent)
    full[used] = values
    return full


# ----------------------------------------------------------------------------- checks at the border


def _as_landmarks(points: Landmarks | ArrayLike) -> Landmarks:
    return points if isinstance(points, Landmarks) else Landmarks(points)


def _with_prior(
    prior: Prior,
    pairs: Pairs,
    kernel: Any,
    noise: Any,
    length_scale: float | None,
    amplitude: float | None,
) -> tuple[AbstractKernel, Pairs]:
    """The prior's kernel, and the pairs with its noise unless one is given."""
    if not isinstance(prior, Prior):
        raise ArgumentError(
            f"prior: expected what learn_prior or read_prior gives, found {prior!r:.80}"
        )
    for name, value in (
        ("kernel", kernel),
        ("length_scale", length_scale),
        ("amplitude", amplitude),
    ):
        if value is not None:
            raise ArgumentError(f"{name}: the prior has its own; give one of the two")
    if noise is not None:
        return prior.kernel, pairs
    moving, fixed = prior.with_noise(pairs.moving, pairs.fixed)
    return prior.kernel, dataclasses.replace(pairs, moving=moving, fixed=fixed)


def _check_kernel(
    kernel: AbstractKernel | type[AbstractProfile] | str | None,
) -> tuple[tuple[type[AbstractProfile], ...], AbstractKernel | None]:
    """The families to choose from and the kernel that was given, if one was."""
    if kernel is None or isinstance(kernel, AbstractKernel):
        return (Gaussian,), kernel
    if isinstance(kernel, str):
        named = {**FAMILIES, **{cls.__name__.lower(): cls for cls in FAMILIES.values()}}
        if kernel.lower() in named:
            return (named[kernel.lower()],), None
        if kernel.lower() == BEST:
            return tuple(FAMILIES.values()), None
    if isinstance(kernel, type) and kernel in FAMILIES.values():
        return (kernel,), None
    raise ArgumentError(
        f"kernel: expected a kernel, or one of {', '.join(FAMILIES)}, {BEST}; found {kernel!r}"
    )


def _check_held(
    kernel: AbstractKernel | None, length_scale: float | None, amplitude: float | None
) -> Held:
    """The kernel's parameters that are not to be chosen."""
    for name, value in (("length_scale", length_scale), ("amplitude", amplitude)):
        if value is not None and kernel is not None:
            raise ArgumentError(
                f"{name}: the kernel that is given has its own; give a family such as 'matern52'"
            )
        if value is not None and not (
            isinstance(value, int | float | np.number) and 0 < value < np.inf
        ):
            raise ArgumentError(f"{name}: expected a positive number (mm), found {value!r}")
    return Held(length_scale, amplitude)


def _check_noise(pairs: Pairs, noise: ArrayLike | None) -> tuple[_Noises, np.ndarray]:
    """The noise of both sides, and the rows that are used."""
    n, d = pairs.fixed.points.shape
    everything, zero = np.arange(n), np.zeros((n, d, d))
    if noise is None:
        sides = (pairs.fixed.covariances, pairs.moving.covariances)
        if all(side is None for side in sides):
            return _Noises(zero + np.eye(d), zero, known=False), everything
        fixed, moving = (zero if side is None else side for side in sides)
        return _Noises(fixed, moving, known=True), everything
    array = as_floats(noise, "noise")
    if array.ndim == 3:
        outside = np.isinf(array.diagonal(axis1=1, axis2=2)).all(
            axis=1
        )  # infinite in every direction: left out
        used = np.flatnonzero(~outside) if array.shape == (n, d, d) else everything
        check_covariances(array[used], (len(used), d), "noise", [pairs.labels[i] for i in used])
        fixed = array[used]
    else:
        sds = _check_sds(pairs, array)
        used = np.flatnonzero(np.isfinite(sds))
        fixed = sds[used, None, None] ** 2 * np.eye(d)
    if not used.size:
        raise LandmarkError("noise: every landmark is left out (infinite noise)")
    return _Noises(fixed, zero[used], known=True), used


def _check_sds(pairs: Pairs, sds: np.ndarray) -> np.ndarray:
    """One positive standard deviation per landmark."""
    n, d = pairs.fixed.points.shape
    if sds.shape not in ((), (n,)):
        raise ArgumentError(
            f"noise: expected a number, ({n},) numbers or ({n}, {d}, {d}) covariances, found shape {sds.shape}"
        )
    sds = np.broadcast_to(sds, (n,))
    for label, sd in zip(pairs.labels, sds, strict=True):
        if not (sd > 0 and (np.isinf(sd) or LEAST_SD < sd < MOST_SD)):
            raise ArgumentError(
                f"noise: expected positive standard deviations (mm), found {sd} for landmark {label!r}"
            )
    return sds


def _refuse_contradictions(pairs: Pairs, noise: np.ndarray) -> None:
    """Coinciding moving landmarks are fine, unless their targets contradict each other."""
    x, f = pairs.moving.points, pairs.fixed.points
    close = cKDTree(x).query_pairs(1e-9 * (np.ptp(x, axis=0).max() + 1e-300))
    for i, j in sorted(close):
        difference = f[i] - f[j]
        sds = float(np.sqrt(difference @ np.linalg.solve(noise[i] + noise[j], difference)))
        if sds > CONTRADICTION:
            a, b = pairs.labels[i], pairs.labels[j]
            raise LandmarkError(
                f"landmarks {a!r} and {b!r} are the same moving point, but their fixed points differ by "
                f"{np.linalg.norm(difference):.3g} mm, {sds:.3g} standard deviations; remove one or raise its noise"
            )


# --------------------------------------------------------------------------------- remarks, summary


def _pairing_remarks(
    pairs: Pairs, active: Pairs, used: np.ndarray, doubts: Suspicion
) -> Iterator[str]:
    if pairs.unmatched:
        yield f"{len(pairs.unmatched)} landmarks have no partner and are not used: {', '.join(pairs.unmatched[:5])}"
    left_out = [label for i, label in enumerate(pairs.labels) if i not in used]
    if left_out:
        yield f"left out (infinite noise): {', '.join(left_out)}"
    if len(used) > active.moving.dimension and trend.looks_mirrored(
        active.moving.points, active.fixed.points
    ):
        yield "suspect: the fixed landmarks look like a mirror image of the moving ones; check left and right (RAS/LPS)"
    elif not doubts.mirrored:
        yield from (f"suspect: {line}" for line in doubts.lines(active.labels))


def _fit_remarks(
    pairs: Pairs, wish: _Wish, open_directions: int, choice: Choice, fit: solve.Fit, settled: bool
) -> Iterator[str]:
    n, names = len(pairs.moving), [one.name for one in choice.undecided]
    if n == 1:
        guessed = f" (with a guessed {', '.join(names)})" if names else ""
        yield (
            f"a single landmark determines a translation only; everything else is the prior{guessed}, "
            "and an unknown rotation is not in the uncertainty"
        )
    if open_directions and n > 1:
        yield (
            f"the landmarks are collinear, coplanar or too few: {open_directions} of the directions of the "
            f"{wish.align} alignment are not determined by them and were not fitted; their uncertainty is not in the "
            "posterior, which is too sure away from the landmarks' line or plane"
        )
    if choice.undecided and n > 1:
        told = "; the ".join(_told(one) for one in choice.undecided)
        yield f"the landmarks do not determine the {told}; a prior learned on other cases would"
    if not choice.followed:
        yield "the evidence of the flow could not be followed to its maximum: the parameters are near it at best"
    if steepness(fit.kernel) > TOO_SURE and wish.model != "small":
        yield (
            f"the prior's amplitude is {steepness(fit.kernel):.2g} of its length scale: beyond {TOO_SURE:g} the "
            "uncertainty, a linearisation, is too small away from landmarks (docs/uncertainty.md)"
        )
    if np.linalg.det(fit.alignment.matrix) < 0:
        yield "suspect: the alignment is a mirror image, so the whole map turns space inside out; check left and right"
    if not fit.converged and wish.patient:
        yield fit.outcome.value
    elif not fit.converged:
        yield "not converged: no deformation leads to a mirror image, and none was sought; check left and right"
    if not settled:
        yield "the noise of the moving landmarks, carried over by the map, did not settle; raise it or the length scale"
    if fit.trajectory.drift > shooting.MAX_DRIFT:
        yield f"the energy drifts by {float(fit.trajectory.drift):.0e} along the flow even with the finest time steps"


def _told(one: Chosen) -> str:
    """A parameter that was not told, with what was used instead."""
    unit = "" if one.name == "noise factor" else " mm"
    if np.isfinite(one.high):
        return f"{one.name} ({one.value:.3g}{unit} was used; {one.low:.3g} to {one.high:.3g} would do about as well)"
    return f"{one.name} ({one.value:.3g}{unit} was used, a guess)"


def _weight_remarks(pairs: Pairs, weights: np.ndarray, settled: bool) -> Iterator[str]:
    if not settled:
        yield f"robust: the weights did not settle within {REWEIGHTINGS} rounds"
    light = [
        f"{pairs.labels[i]} ({weights[i]:.2f})" for i in np.argsort(weights) if weights[i] < LIGHT
    ]
    if light:
        yield f"robust: these landmarks weigh less than {LIGHT:g} of the others: {', '.join(light)}"


def _summary_lines(reg: Registration) -> Iterator[str]:
    before, after = _distances(reg)
    count = (
        f"{len(reg.moving)} landmarks"
        if reg.used.all()
        else f"{reg.used.sum()} of {len(reg.moving)} landmarks"
    )
    yield f"Registration of {count} in {reg.fixed.dimension}-D (paired by {reg.pairing})"
    yield f"  model      {reg.model}, alignment {reg.align}"
    yield f"  kernel     {describe_kernel(reg.kernel)}"
    yield f"  noise      {reg.noise_mm:.3g} mm"
    yield from _origin_lines(reg)
    yield f"  distance   {before:.3g} mm before → {after:.3g} mm after, the landmarks' mean (small is not accurate)"
    yield from _loo_lines(reg)
    steps = reg.posterior.trajectory.num_steps
    state = "converged" if reg.converged else "NOT CONVERGED"
    effort = f"{reg.iterations} iterations, {steps} time steps, {reg.seconds:.2f} s"
    yield f"  solver     {state}, gap {reg.gap_mm:.1e} mm; {effort}"
    if reg.truncation is not None:
        error = f"{reg.truncation.mean_error_mm:.1g} mm, and {100 * reg.truncation.matrix_error:.1g} % of covariances"
        yield f"  low rank   {reg.truncation.num_controls} control points stand for all; that costs at most {error}"
    yield f"  evidence   {'' if reg.robust else f'{reg.evidence:.2f} (log), '}energy {reg.energy:.4g}"
    for remark in reg.warnings:
        yield f"  warning    {remark}"


def _origin_lines(reg: Registration) -> Iterator[str]:
    """Where kernel and noise come from: how surely the landmarks tell them, or the cases that
    taught the prior.
    """
    if reg.chosen:
        told = ", ".join(f"{one.name} {one.low:.3g} to {one.high:.3g}" for one in reg.chosen)
        n = int(reg.used.sum())
        on = f" of {MOST_TELLING} of the landmarks" if n > MOST_TELLING else ""
        yield f"  chosen     by the evidence{on}; 95 % intervals: {told}"
    if reg.learned_on:
        yield f"  prior      learned on {len(reg.learned_on)} other cases"
    if reg.robust:
        yield "  robust     heavy-tailed noise; the weights of the landmarks are in landmarks.csv"


def _loo_lines(reg: Registration) -> Iterator[str]:
    if reg.loo is None:
        yield "  left out   not available: too few landmarks for this alignment"
    else:
        held = scores.scores(
            np.asarray(reg.loo.error), np.asarray(reg.loo.chi2), np.asarray(reg.loo.covariance)
        )
        inside = f"{100 * held.coverage[scores.LEVELS.index(0.95)]:.0f} % inside their 95 % region"
        yield f"  left out   each landmark predicted from the others: {held.error_mm:.3g} mm off on average, {inside}"
    if reg.suspicion is not None:
        names = [reg.moving.labels[i] for i in np.flatnonzero(reg.used)]
        yield from (f"  suspects   {line}" for line in reg.suspicion.lines(names))


def _distances(reg: Registration) -> tuple[float, float]:
    predicted = reg.evaluation.predict(reg.moving.points).mean
    before = np.linalg.norm(reg.fixed.points - reg.moving.points, axis=1)
    after = np.linalg.norm(reg.fixed.points - predicted, axis=1)
    return float(before[reg.used].mean()), float(after[reg.used].mean())
