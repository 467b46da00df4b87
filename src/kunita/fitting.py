"""From checked pairs to a posterior: align, estimate what is not given, solve, linearise.

With Gaussian noise that is done once. With heavy-tailed noise it is done again and
again, each time with weights of the landmarks that the last posterior gives
(`kunita.inference.robust`).
"""

import dataclasses
from collections.abc import Iterator

import jax
import numpy as np

from kunita.checks import NoisyPairs, Setting, refuse_contradictions
from kunita.data.landmarks import known_distances
from kunita.flow import shooting
from kunita.gaussians import GaussianPoints
from kunita.inference import solve
from kunita.inference.estimation import Estimate, estimate
from kunita.inference.evidence import evidence_of
from kunita.inference.hyperparameters import GivenParameters, Hyperparameters, build_search_box
from kunita.inference.intervals import (
    EstimatedParameter,
    EvidenceProfile,
    find_parameter,
    profile_evidence,
)
from kunita.inference.problem import Problem
from kunita.inference.robust import REWEIGHTINGS, SETTLED_WEIGHT, first_weights, student_weights
from kunita.inference.sample import Aligned, aligned_sample
from kunita.inference.solve import Fit
from kunita.jaxrun.doors import on_one_blas_thread, to_numpy
from kunita.kernels import AbstractKernel, AbstractProfile, steepness
from kunita.posterior import Posterior, posterior_from_fit

OVERCONFIDENT = 0.45
"""Amplitude over length scale beyond which the linearised posterior is
overconfident (`benchmarks/calibration.py`)."""

LIGHT = 0.3
"""Landmarks of less weight than this in a robust fit are named."""


@dataclasses.dataclass(frozen=True, eq=False)
class FittedPairs:
    """A fit to some pairs, and all that follows from it.

    Args:
        fit: the flow.
        posterior: the posterior around it.
        estimate: the hyper-parameters.
        noise: (n, d, d) covariances of both sides together, in fixed space, of a
            landmark of full weight, mm².
        weights: (n,) of the landmarks; all one, unless the noise has heavy tails.
        evidence: log evidence; NaN where the weights replace it.
        remarks: what a user should know of the fit.
    """

    fit: Fit
    posterior: Posterior
    estimate: Estimate
    noise: np.ndarray
    weights: np.ndarray
    evidence: float
    remarks: tuple[str, ...]


def fit_pairs(marked: NoisyPairs, setting: Setting) -> FittedPairs:
    """Fit the pairs as the setting asks for."""
    if setting.robust:
        return _fit_robustly(marked, setting)
    return _fit_weighted(marked, setting, np.ones(len(marked)))


def _fit_weighted(marked: NoisyPairs, setting: Setting, weights: np.ndarray) -> FittedPairs:
    """Fit pairs whose covariances are divided by weights."""
    aligned = _align(marked, setting, weights)
    found = _estimate(marked, setting, weights, aligned)
    factor = aligned.sample.noise_factor(found.theta[-1])
    at_start = factor * marked.noise(aligned.sample.start.jacobians(len(marked)))
    refuse_contradictions(marked, at_start / weights[:, None, None])
    fit = _solve(setting, aligned, found)
    posterior = posterior_from_fit(fit, aligned.origin, setting.model, near=setting.patient)
    return FittedPairs(
        fit=fit,
        posterior=to_numpy(posterior),
        estimate=found,
        noise=factor * marked.noise(np.asarray(fit.jacobians)),
        weights=weights,
        evidence=evidence_of(fit),
        remarks=tuple(_remarks(setting, aligned, found, fit)),
    )


def _align(marked: NoisyPairs, setting: Setting, weights: np.ndarray) -> Aligned:
    """The pairs, centred and aligned."""
    observed = marked.observe(weights)
    is_scaled = setting.scale_noise or not marked.is_noise_given
    return aligned_sample(observed, setting.align, scaled=is_scaled)


def _solve(setting: Setting, aligned: Aligned, found: Estimate) -> Fit:
    """The most probable flow, from the one that the estimation ended with, if it has one."""
    sample = aligned.sample
    observed = sample.observed_with(found.theta[-1])
    problem = Problem(found.kernel, observed, sample.trend)
    start = sample.start
    momenta = None
    nearby = found.fits[0]
    if nearby is not None and setting.model != "small":
        start = nearby.alignment
        momenta = nearby.trajectory.momenta[0]
    return solve.solve_model(
        problem,
        start,
        momenta,
        model=setting.model,
        options=dataclasses.replace(solve.THOROUGH, patient=setting.patient),
    )


# --------------------------------------------------------------------------------- hyper-parameters


def _estimate(
    marked: NoisyPairs, setting: Setting, weights: np.ndarray, aligned: Aligned
) -> Estimate:
    """The hyper-parameters that are not given; of several families the one of largest evidence."""
    drawn = draw_rows(marked.known_completely, setting.estimation.most_landmarks)
    if drawn is not None:
        marked = marked.take(drawn)
        aligned = _align(marked, setting, weights[drawn])
    estimates = [_estimate_family(marked, setting, aligned, family) for family in setting.families]
    best = estimates[0]
    if len(estimates) > 1:
        best = max(estimates, key=lambda one: one.evidence)
    if drawn is not None:
        # the flows of some landmarks are no start for all of them
        best = dataclasses.replace(best, fits=(None,))
    return best


@on_one_blas_thread
def profile_pairs(
    marked: NoisyPairs,
    align: str,
    kernel: AbstractKernel,
    estimated: tuple[EstimatedParameter, ...],
    most_landmarks: int,
) -> EvidenceProfile | None:
    """The log evidence along the length scale of a fit to some pairs; None if it has none.

    Args:
        marked: the pairs, with the noise that the fit ended with.
        align: the kind of alignment.
        kernel: of the fit.
        estimated: the hyper-parameters that were estimated for it.
        most_landmarks: of more landmarks than this, so many are drawn.
    """
    drawn = draw_rows(marked.known_completely, most_landmarks)
    if drawn is not None:
        marked = marked.take(drawn)
    noise = find_parameter(estimated, "noise", "noise factor")
    scale = 1.0 if noise is None else noise.value
    with jax.enable_x64(True):
        # The noise as it was before the scale that was estimated.
        observed = marked.observe(weights=np.full(len(marked), scale**2))
        aligned = aligned_sample(observed, align, scaled=noise is not None)
        return profile_evidence(aligned.sample, kernel, estimated)


def draw_rows(whole: np.ndarray, most: int) -> np.ndarray | None:
    """So many rows drawn by a chance that is always the same; None if there are no more.

    Every so many-th row would not do: a list may have a rhythm.

    Args:
        whole: (n,) which landmarks are known along every direction. Half of the draw
            is of these, as far as there are any: the alignment starts from them.
        most: how many are drawn.
    """
    if len(whole) <= most:
        return None
    mixed = np.random.default_rng(0).permutation(len(whole))
    needed = mixed[whole[mixed]][: most // 2]
    others = mixed[~np.isin(mixed, needed)]
    drawn = np.concatenate([needed, others])[:most]
    return np.sort(drawn)


def _estimate_family(
    marked: NoisyPairs, setting: Setting, aligned: Aligned, family: type[AbstractProfile]
) -> Estimate:
    """The hyper-parameters of a family of kernels, by the evidence and a weak prior.

    What the evidence leaves open the weak prior decides, not a limit of the search.
    Below the landmarks' spacing, say, deformation and noise are the same to the
    evidence, and an exact interpolation of all marks would be as good as anything.
    """
    hyperparameters = Hyperparameters(
        family,
        given=setting.given,
        noise_is_factor=marked.is_noise_given,
    )
    samples = [aligned.sample]
    box = build_search_box(
        samples,
        hyperparameters,
        weak_prior=True,
        displacement_mm=_root_mean_square_displacement(marked),
    )
    if setting.patient:
        return estimate(samples, hyperparameters, box, setting.model)
    found = estimate(samples, hyperparameters, box, "small")
    is_given = setting.given.kernel is not None
    return dataclasses.replace(found, at_maximum=is_given)


def _root_mean_square_displacement(marked: NoisyPairs) -> float:
    """From moving to fixed points along one direction, of those that are known, mm."""
    distances = known_distances(marked.pairs.fixed, marked.moving)
    total = np.sum(distances**2)
    count = marked.pairs.fixed.known.sum()
    return float(np.sqrt(total / count))


# ----------------------------------------------------------------------------- heavy-tailed noise


def _fit_robustly(marked: NoisyPairs, setting: Setting) -> FittedPairs:
    """Student's t by reweighting: with the small-deformation model first, which cannot fail.

    With it the hyper-parameters are estimated again for every change of the
    weights. With the model that is asked for they are estimated once, and kept.
    """
    quick = dataclasses.replace(setting, model="small")
    weights, _ = _reweigh(marked, quick, _first_weights(marked, setting))
    first = _fit_weighted(marked, setting, weights)
    kept = dataclasses.replace(
        setting,
        given=GivenParameters(first.estimate.kernel),
        scale_noise=False,
    )
    as_estimated = marked.with_noise(first.noise)
    weights, is_settled = _reweigh(as_estimated, kept, weights)
    last = _fit_weighted(as_estimated, kept, weights)
    only_first = tuple(remark for remark in first.remarks if remark not in last.remarks)
    of_weights = tuple(_weight_remarks(marked, weights, is_settled))
    return dataclasses.replace(
        last,
        estimate=first.estimate,
        evidence=np.nan,
        remarks=only_first + last.remarks + of_weights,
    )


def _first_weights(marked: NoisyPairs, setting: Setting) -> np.ndarray:
    """(n,) weights from the alignment alone; one for landmarks with free directions."""
    whole = marked.known_completely
    weights = np.ones(len(marked))
    weights[whole] = first_weights(
        setting.align,
        marked.moving[whole],
        marked.fixed[whole],
    )
    return weights


def _reweigh(marked: NoisyPairs, setting: Setting, weights: np.ndarray) -> tuple[np.ndarray, bool]:
    """Fit and weigh in turns until the weights settle; and whether they did."""
    is_settled = False
    for _ in range(REWEIGHTINGS):
        fitted = _fit_weighted(marked, setting, weights)
        updated = _updated_weights(marked, fitted)
        change = np.abs(updated - weights).max()
        weights = updated
        is_settled = bool(change < SETTLED_WEIGHT)
        if is_settled:
            break
    return weights, is_settled


def _updated_weights(marked: NoisyPairs, fitted: FittedPairs) -> np.ndarray:
    """(n,) posterior means of the weights; of each landmark only the known directions count."""
    arrived = fitted.posterior.predict(marked.moving)
    residuals = marked.fixed - arrived.mean
    weights = student_weights(residuals, arrived.covariance, fitted.noise)
    partial = ~marked.known_completely
    for row in np.flatnonzero(partial).tolist():
        weights[row] = _weight_along(marked, row, arrived, fitted.noise[row])
    return weights


def _weight_along(
    marked: NoisyPairs, row: int, arrived: GaussianPoints, noise: np.ndarray
) -> float:
    """The posterior mean of the weight of a landmark with free directions."""
    known = marked.pairs.fixed.known_directions(row)
    miss = marked.fixed[row] - arrived.mean[row]
    residual = known @ miss
    covariance = known @ arrived.covariance[row] @ known.T
    along = known @ noise @ known.T
    (weight,) = student_weights(
        residual[None],
        covariance[None],
        along[None],
    )
    return float(weight)


# ------------------------------------------------------------------------------------------ remarks


def _remarks(setting: Setting, aligned: Aligned, found: Estimate, fit: Fit) -> Iterator[str]:
    """What a user should know of a fit."""
    if not setting.patient and not fit.converged:
        # No deformation leads to a mirror image. Doubts about the hyper-parameters of such a fit
        # would only hide that.
        yield from _open_remarks(setting, aligned)
        yield from _solver_remarks(setting, fit)
        return
    num_landmarks = len(aligned.sample.positions)
    if num_landmarks == 1:
        yield _single_remark(found)
    else:
        yield from _open_remarks(setting, aligned)
        yield from _unidentified_remarks(found)
    if not found.at_maximum:
        yield (
            "the evidence of the flow could not be followed to its maximum: "
            "the hyper-parameters are near it at best"
        )
    yield from _steepness_remarks(setting, fit)
    yield from _solver_remarks(setting, fit)


def _single_remark(found: Estimate) -> str:
    names = ", ".join(one.name for one in found.unidentified)
    guessed = f" (with a guessed {names})" if names else ""
    return (
        "a single landmark determines a translation only; everything else is the "
        f"prior{guessed}, and an unknown rotation is not in the uncertainty"
    )


def _open_remarks(setting: Setting, aligned: Aligned) -> Iterator[str]:
    if aligned.open_directions:
        yield (
            "the landmarks are collinear, coplanar, too few or known along too few directions: "
            f"{aligned.open_directions} of the directions of the {setting.align} alignment are "
            "not determined by them and were not fitted; their uncertainty is not in the "
            "posterior, which is overconfident away from the landmarks' line or plane"
        )


def _unidentified_remarks(found: Estimate) -> Iterator[str]:
    if found.unidentified:
        described = "; the ".join(_describe(one) for one in found.unidentified)
        yield (
            f"the landmarks do not determine the {described}; a prior learned on other cases would"
        )


def _describe(one: EstimatedParameter) -> str:
    """A hyper-parameter that is not identified, with what was used instead."""
    unit = "" if one.name == "noise factor" else " mm"
    used = f"{one.value:.3g}{unit} was used"
    if not np.isfinite(one.high):
        return f"{one.name} ({used}, a guess)"
    interval = f"{one.low:.3g} to {one.high:.3g}"
    return f"{one.name} ({used}; {interval} would do about as well)"


def _steepness_remarks(setting: Setting, fit: Fit) -> Iterator[str]:
    steep = steepness(fit.kernel)
    if steep > OVERCONFIDENT and setting.model != "small":
        yield (
            f"the prior's amplitude is {steep:.2g} of its length scale: beyond "
            f"{OVERCONFIDENT:g} the uncertainty, a linearisation, is too small away from "
            "landmarks (docs/uncertainty.md)"
        )


def _solver_remarks(setting: Setting, fit: Fit) -> Iterator[str]:
    if np.linalg.det(fit.alignment.matrix) < 0:
        yield (
            "suspect: the alignment is a mirror image, so the whole map turns space inside "
            "out; check left and right"
        )
    if not fit.converged and setting.patient:
        yield fit.outcome.value
    elif not fit.converged:
        yield (
            "not converged: no deformation leads to a mirror image, and none was sought; "
            "check left and right"
        )
    drift = float(fit.trajectory.drift)
    if drift > shooting.MAX_DRIFT:
        yield f"the energy drifts by {drift:.0e} along the flow even with the finest time steps"


def _weight_remarks(marked: NoisyPairs, weights: np.ndarray, is_settled: bool) -> Iterator[str]:
    if not is_settled:
        yield f"robust: the weights did not settle within {REWEIGHTINGS} rounds"
    labels = marked.pairs.labels
    light = [
        f"{labels[row]} ({weights[row]:.2f})" for row in np.argsort(weights) if weights[row] < LIGHT
    ]
    if light:
        names = ", ".join(light)
        yield f"robust: these landmarks weigh less than {LIGHT:g} of the others: {names}"
