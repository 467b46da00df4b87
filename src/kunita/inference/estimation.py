"""Estimate the hyper-parameters: maximise the evidence of one case, or the sum over many.

The evidence of the diffeomorphic model at one θ needs a fit of the flow. That is
too expensive for an optimiser, and noisy. So the small-deformation model leads: its
log evidence ℓ₀(θ) is exact, cheap and differentiable
(`kunita.inference.hyperparameters.SmallEvidence`). What it misses,

    c(θ) = ℓ(θ) − ℓ₀(θ),    ℓ the evidence around the fitted flow,

is smooth in θ. It is measured at θ₀ and at one step along each entry of θ that is
estimated, and taken as linear:

    c(θ) ≈ c(θ₀) + c'(θ₀)(θ − θ₀).

Starting from the maximum θ₀ of ℓ₀, each round maximises ℓ₀(θ) + c(θ) in a region
around θ₀, moves θ₀ there and measures c again, until a round has nothing more to
gain. A round that gains nothing after all makes the region smaller.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from kunita import numerics
from kunita.flow.control import gram_jit
from kunita.inference import intervals, solve
from kunita.inference.ascent import (
    LogDensity,
    ValueAndGradient,
    add,
    ascend,
    finite_or,
    moved,
)
from kunita.inference.evidence import evidence_of
from kunita.inference.hyperparameters import (
    LEAST_FREEDOM,
    Hyperparameters,
    SearchBox,
    SmallEvidence,
    arrange,
)
from kunita.inference.intervals import EstimatedParameter
from kunita.inference.problem import Problem
from kunita.inference.sample import Sample
from kunita.inference.solve import Fit
from kunita.kernels import AbstractKernel

ENOUGH = 0.02
"""A gain in the log evidence that is not worth another round: a fifth of a
hyper-parameter's standard deviation."""

ROUNDS = 8
"""The most rounds of correction and maximisation."""

PROBE = 0.1
"""The step in θ by which the slope of the correction is measured."""

REACH = 1.0
"""How far from θ₀, in every entry of θ, the linear correction is trusted at first."""

NEAR = 0.3
"""How far the maximum without a sample may be from that with all of them for their
correction to be shared."""

STARTS = ((0.0, 0.0, 0.0), (-1.2, 0.0, 0.0), (0.8, 0.7, -1.0), (0.0, -1.0, 1.0))
"""Where the search starts: steps in the logarithms of length scales, amplitudes and noise."""


@dataclasses.dataclass(frozen=True, eq=False)
class Estimate:
    """Estimated hyper-parameters.

    Args:
        hyperparameters: which there are.
        theta: (p,) their values, θ̂; what is given is among them.
        parameters: those that were estimated, each with a 95 % interval.
        evidence: the log evidence at θ̂, summed over the samples; NaN where it was
            not needed.
        at_maximum: whether θ̂ maximises the evidence of the diffeomorphic model. It
            may not, where a fit failed or the rounds ran out.
        fits: rough flows near θ̂, one per sample, to start from; None where there
            is none.
    """

    hyperparameters: Hyperparameters
    theta: np.ndarray
    parameters: tuple[EstimatedParameter, ...]
    evidence: float
    at_maximum: bool
    fits: tuple[Fit | None, ...]

    @property
    def kernel(self) -> AbstractKernel:
        """The kernel at θ̂."""
        return self.hyperparameters.plain_kernel(self.theta)

    @property
    def noise_scale(self) -> float:
        """The noise, mm, where it is estimated; else the factor on the noise that is given."""
        log_scale = self.theta[-1]
        return float(np.exp(log_scale))

    @property
    def unidentified(self) -> tuple[EstimatedParameter, ...]:
        """The hyper-parameters that the landmarks do not determine."""
        found = [one for one in self.parameters if not one.identified]
        return tuple(found)


def estimate(
    samples: Sequence[Sample],
    hyperparameters: Hyperparameters,
    box: SearchBox,
    model: str = "endpoint",
) -> Estimate:
    """Maximise the summed evidence over what is not given.

    Args:
        samples: one case, or many that share their hyper-parameters.
        hyperparameters, box: which there are, and where they are looked for.
        model: "small" for the evidence of the small-deformation model alone.
    """
    small = SmallEvidence(tuple(samples), hyperparameters, box)
    is_given = hyperparameters.given.kernel is not None
    if is_given and not box.estimated.any():
        # nothing to estimate, and no evidence to compare with that of another family
        return _take_given(small)
    freedom = sum(sample.freedom for sample in samples)
    if freedom < LEAST_FREEDOM:
        return _guess(small)
    maximum = _maximise(small, model)
    return _judge(small, maximum)


def estimate_without_each(
    samples: Sequence[Sample],
    hyperparameters: Hyperparameters,
    boxes: Sequence[SearchBox],
    model: str = "endpoint",
) -> tuple[Estimate, ...]:
    """For each sample the estimate on all *others*, looked for in the box at its place.

    The correction of the small-deformation model is measured once, around the
    estimate on all samples. Where the estimate without one of them is farther away
    than that can be trusted for, it is measured again, there.
    """
    everything = SmallEvidence(tuple(samples), hyperparameters, boxes[0])
    shared = _maximise(everything, model)
    estimates = []
    for i, box in enumerate(boxes):
        others = (*samples[:i], *samples[i + 1 :])
        small = SmallEvidence(others, hyperparameters, box)
        maximum = _maximise_nearby(small, shared.without(i), model)
        estimates.append(_judge(small, maximum))
    return tuple(estimates)


def _judge(small: SmallEvidence, maximum: "_Maximum") -> Estimate:
    """The estimate at a maximum: its log evidence, and how well each entry of θ is identified."""
    total = add(small, maximum.correction)
    theta = maximum.theta
    value, _ = total(theta)
    log_prior, _ = small.box.hyperprior.log_density(theta)
    names = small.hyperparameters.names
    return Estimate(
        hyperparameters=small.hyperparameters,
        theta=theta,
        parameters=intervals.find_intervals(total, small.box, names, theta),
        evidence=value - log_prior,
        at_maximum=maximum.is_settled,
        fits=maximum.correction.fits,
    )


def _take_given(small: SmallEvidence) -> Estimate:
    """What is given, where nothing is estimated."""
    return Estimate(
        hyperparameters=small.hyperparameters,
        theta=small.box.start,
        parameters=(),
        evidence=np.nan,
        at_maximum=True,
        fits=(None,) * len(small.samples),
    )


def _guess(small: SmallEvidence) -> Estimate:
    """A guess from the landmarks' extent, where the alignment explains nearly everything.

    The residuals are zero then, or nearly: to estimate from them would promise
    certainty.
    """
    hyperparameters = small.hyperparameters
    box = small.box
    theta = np.where(box.estimated, _guessed_theta(small), box.start)
    return Estimate(
        hyperparameters=hyperparameters,
        theta=theta,
        parameters=intervals.guessed_parameters(box, hyperparameters.names, theta),
        evidence=np.nan,
        at_maximum=True,
        fits=(None,) * len(small.samples),
    )


def _guessed_theta(small: SmallEvidence) -> np.ndarray:
    """Length scale, amplitude and noise of 50, 5 and 2 % of the largest side of the landmarks."""
    hyperparameters = small.hyperparameters
    first = small.samples[0]
    size = float(numerics.largest_side(first.positions)) or small.box.displacement_mm or 1.0
    length_scale = size / 2
    amplitude = 0.05 * size
    noise = 1.0 if hyperparameters.noise_is_factor else 0.02 * size
    guess = arrange(hyperparameters.num_scales, length_scale, amplitude, noise)
    return np.log(guess)


# ------------------------------------------------------------------------------------- maximisation


@dataclasses.dataclass(frozen=True, eq=False)
class _Maximum:
    """Where a maximisation ended.

    Args:
        theta: (p,).
        correction: of the small-deformation model, around there.
        is_measured: whether the correction was measured, or is zero because it
            could not be.
        is_settled: whether this is the maximum of the corrected evidence.
    """

    theta: np.ndarray
    correction: "EvidenceCorrection"
    is_measured: bool
    is_settled: bool

    def without(self, i: int) -> "_Maximum":
        """The same of all samples but one."""
        of_others = self.correction.without(i)
        return dataclasses.replace(self, correction=of_others)


def _maximise(small: SmallEvidence, model: str) -> _Maximum:
    """The maximum of the evidence; of the small-deformation model's, where the flow's is no use."""
    box = small.box
    zero = EvidenceCorrection.zero(len(small.samples), box.start)
    if not box.estimated.any():
        return _Maximum(box.start, zero, is_measured=True, is_settled=True)
    theta = maximise_from_several(small, box)
    if model == "small":
        return _Maximum(theta, zero, is_measured=True, is_settled=True)
    followed = maximise_corrected(small, theta)
    if followed is None:
        return _Maximum(theta, zero, is_measured=False, is_settled=False)
    return followed


def _maximise_nearby(small: SmallEvidence, shared: _Maximum, model: str) -> _Maximum:
    """The maximum with a correction that was measured nearby; with its own, if that is too far."""
    total = add(small, shared.correction)
    theta = ascend(total, shared.theta, small.box.bounds)
    moves = np.abs(theta - shared.theta)
    is_near = moves.max() <= NEAR
    if not (is_near and shared.is_measured):
        return _maximise(small, model)
    return dataclasses.replace(shared, theta=theta)


def maximise_from_several(log_density: LogDensity, box: SearchBox) -> np.ndarray:
    """The best maximum of a few local searches; a start, if none ends in a finite number."""
    num_scales = len(box.start) // 2
    found = []
    for step in STARTS:
        start = box.start + arrange(num_scales, *step) * box.estimated
        found.append(ascend(log_density, start, box.bounds))

    def height(theta: np.ndarray) -> float:
        value, _ = log_density(theta)
        return finite_or(-np.inf, value)

    return max(found, key=height)


def maximise_corrected(small: SmallEvidence, theta: np.ndarray) -> _Maximum | None:
    """From the small-deformation model's maximum to that of the diffeomorphic model.

    None where a flow cannot be fitted at the start: there is nothing to correct
    with.
    """
    correction = measure_correction(small, theta)
    if correction is None:
        return None
    reach = REACH
    for _ in range(ROUNDS):
        total = add(small, correction)
        region = _region(small.box, theta, reach)
        proposal = ascend(total, theta, region)
        here, _ = total(theta)
        promised, _ = total(proposal)
        if promised - here < ENOUGH:
            return _Maximum(theta, correction, is_measured=True, is_settled=True)
        there = measure_correction(small, proposal, correction.fits)
        if there is not None and add(small, there)(proposal)[0] > here:
            theta = proposal
            correction = there
        else:
            reach /= 4
    return _Maximum(theta, correction, is_measured=True, is_settled=False)


def _region(box: SearchBox, theta: np.ndarray, reach: float) -> np.ndarray:
    """(p, 2) bounds around θ, within those of the search."""
    low, high = box.bounds.T
    below = theta - reach
    above = theta + reach
    least = np.clip(below, low, high)
    largest = np.clip(above, low, high)
    return np.stack([least, largest], axis=1)


# ---------------------------------------------------------- what the small-deformation model misses


@dataclasses.dataclass(frozen=True, eq=False)
class EvidenceCorrection:
    """c(θ) ≈ c(θ₀) + c'(θ₀)(θ − θ₀): the flow's log evidence less the small-deformation model's.

    Args:
        center: (p,) θ₀.
        values: (m,) c(θ₀) of each of m samples.
        slopes: (m, p) c'(θ₀).
        fits: the m flows that were fitted at θ₀, from which others may start; None
            where nothing was measured.
    """

    center: np.ndarray
    values: np.ndarray
    slopes: np.ndarray
    fits: tuple[Fit | None, ...]

    @classmethod
    def zero(cls, num_samples: int, center: np.ndarray) -> "EvidenceCorrection":
        """No correction."""
        return cls(
            center=center,
            values=np.zeros(num_samples),
            slopes=np.zeros((num_samples, len(center))),
            fits=(None,) * num_samples,
        )

    def __call__(self, theta: np.ndarray) -> ValueAndGradient:
        """The sum over the samples, and its gradient."""
        slope = self.slopes.sum(axis=0)
        change = slope @ (theta - self.center)
        value = self.values.sum() + change
        return float(value), slope

    def without(self, i: int) -> "EvidenceCorrection":
        """The same of all samples but one."""
        return EvidenceCorrection(
            center=self.center,
            values=np.delete(self.values, i),
            slopes=np.delete(self.slopes, i, axis=0),
            fits=(*self.fits[:i], *self.fits[i + 1 :]),
        )


def measure_correction(
    small: SmallEvidence, theta: np.ndarray, nearby: Sequence[Fit | None] | None = None
) -> EvidenceCorrection | None:
    """Measure the correction at θ, and along each entry that is estimated; None where a fit fails.

    Args:
        small: the model that is corrected.
        theta: (p,) where.
        nearby: flows that were fitted at another θ, to start from.
    """
    nearby = nearby or [None] * len(small.samples)
    measured = []
    for sample, start in zip(small.samples, nearby, strict=True):
        of_sample = _measure_sample(small, sample, theta, start)
        if of_sample is None:
            return None
        measured.append(of_sample)
    values, slopes, fits = zip(*measured, strict=True)
    return EvidenceCorrection(
        center=theta,
        values=np.array(values),
        slopes=np.array(slopes),
        fits=fits,
    )


def _measure_sample(
    small: SmallEvidence, sample: Sample, theta: np.ndarray, nearby: Fit | None
) -> tuple[float, np.ndarray, Fit] | None:
    """The correction of one sample at θ, its slopes by differences, and the flow that was fitted.

    The flows at the steps start from the one at θ.
    """
    here, fit = _missed_evidence(small, sample, theta, nearby)
    if fit is None:
        return None
    slopes = np.zeros(len(theta))
    for entry in np.flatnonzero(small.box.estimated).tolist():
        probe = moved(theta, entry, PROBE)
        there, fit_there = _missed_evidence(small, sample, probe, fit)
        if fit_there is None:
            return None
        slopes[entry] = (there - here) / PROBE
    return here, slopes, fit


def _missed_evidence(
    small: SmallEvidence, sample: Sample, theta: np.ndarray, nearby: Fit | None
) -> tuple[float, Fit | None]:
    """c(θ) of one sample, and the flow that was fitted for it; None if that fails."""
    evidence, fit = flow_evidence(sample, small.hyperparameters, theta, nearby)
    if fit is None:
        return evidence, None
    small_evidence, _ = small.of_sample(sample, theta)
    return evidence - small_evidence, fit


def flow_evidence(
    sample: Sample,
    hyperparameters: Hyperparameters,
    theta: np.ndarray,
    nearby: Fit | None = None,
) -> tuple[float, Fit | None]:
    """The log evidence around the flow that is fitted at θ, and that flow; −∞ and None if it fails.

    Args:
        sample: what is explained.
        hyperparameters, theta: by what.
        nearby: a flow that was fitted at another θ, to start from.
    """
    fit = _fit_roughly(sample, hyperparameters, theta, nearby)
    if not fit.converged:
        return -np.inf, None
    return evidence_of(fit), fit


def _fit_roughly(
    sample: Sample, hyperparameters: Hyperparameters, theta: np.ndarray, nearby: Fit | None
) -> Fit:
    """The flow at θ, good enough for its energy."""
    problem = Problem(
        kernel=hyperparameters.plain_kernel(theta),
        observations=sample.observed_with(theta[-1]),
        trend=sample.trend,
    )
    if nearby is None:
        return solve.solve(problem, sample.start, options=solve.ROUGH)
    momenta = changed_momenta(nearby, problem)
    return solve.solve(problem, nearby.alignment, momenta, solve.ROUGH)


def changed_momenta(fit: Fit, problem: Problem) -> np.ndarray:
    """The momenta p' of a fit under another kernel and scale of the noise, to first order, (n, d).

    In the small-deformation model p = M(y − Kp), so that (I + MK)p = My is what is
    to be explained. With another kernel and M' = cM they solve

        (I + cMK')p' = c(I + MK)p.

    Args:
        fit: the flow, with its momenta p, kernel matrix K and information M.
        problem: the same observations with another kernel and scale of the noise.
    """
    flow = fit.trajectory
    q = np.asarray(flow.positions[0])
    p = np.asarray(flow.momenta[0])
    local = solve.local_information(fit.problem, flow.positions[-1], fit.jacobians)
    information = np.asarray(local)
    ratio = fit.problem.noise_sd / problem.noise_sd
    scale = ratio**2
    # c(I + MK)p
    gram = np.asarray(gram_jit(fit.kernel, q, q))
    deformed = gram @ p
    pulled = np.einsum("iab,ib->ia", information, deformed)
    explained = scale * (p + pulled)
    # I + cMK'
    new_gram = np.asarray(gram_jit(problem.kernel, q, q))
    matrix = _identity_plus(scale * information, new_gram)
    momenta = np.linalg.solve(matrix, explained.ravel())
    return momenta.reshape(q.shape)


def _identity_plus(information: np.ndarray, gram: np.ndarray) -> np.ndarray:
    """I + M(K ⊗ I), (nd, nd), from (n, d, d) M and (n, n) K."""
    n, d, _ = information.shape
    size = n * d
    blocks = information[:, :, None, :]
    entries = gram[:, None, :, None]
    product = blocks * entries
    return np.eye(size) + product.reshape(size, size)
