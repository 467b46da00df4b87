"""The choice of the prior's parameters: length scales, amplitudes and noise that maximise the
evidence.

The evidence of the diffeomorphic model needs a fit for every value. So the small-deformation model
leads: its evidence is exact, cheap and differentiable, and its optimum is the start. What it
misses, the evidence around the fitted flow less its own, is smooth in the parameters: it is
measured there and at one step along each parameter, taken as linear, and the sum is maximised;
again from where that leads, until nothing more is gained. One case or the sum over many.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from jaxtyping import Float
from scipy.spatial.distance import cdist

from kunita.flow.control import gram_jit
from kunita.inference import solve
from kunita.inference.evidence import gauss_newton_evidence, small_evidence
from kunita.inference.sample import Sample
from kunita.inference.solve import Fit
from kunita.jaxrun.doors import Array, Scalar, namespace
from kunita.jaxrun.programs import FEW_LANDMARKS, compiled
from kunita.kernels import AbstractKernel, AbstractProfile, Sum

ENOUGH = 0.02
"""A gain in the log evidence that is not worth another round: a fifth of a parameter's standard
deviation."""

ROUNDS = 8

PROBE, REACH = 0.1, 1.0
"""In the logarithm of a parameter: the step that tells how the missing part changes, and how far it
is trusted."""

NEAR = 0.3
"""How far the optimum without a sample may be from that on all of them for their measurement to be
shared."""

LEAST_FREEDOM = 3
"""Coordinates that the alignment does not explain: with fewer there is nothing to choose with."""

TOLD = np.log(16.0)
"""A parameter is told by the data if its 95 % interval is narrower than this factor, four times up
and down."""

DROP, HALVINGS = 1.92, 6
"""Of the log evidence at the ends of a 95 % interval, half a quantile of χ²₁; and how closely they
are looked for."""

Value = tuple[float, np.ndarray]
"""A number and its gradient in θ."""


@dataclasses.dataclass(frozen=True)
class Dials:
    """What can be turned: θ = (log σ₁, log a₁, …, log s), mm; s is the noise, or the factor on a
    given noise.

    Args:
        family: the kernel's class.
        num_scales: how many of its kind are summed.
        given: a kernel, whose parameters are then not turned.
        noise: what s is called.
    """

    family: type[AbstractProfile]
    num_scales: int = 1
    given: AbstractKernel | None = None
    noise: str = "noise"

    @property
    def names(self) -> tuple[str, ...]:
        """Of the parameters, in the order of θ."""
        count = [""] if self.num_scales == 1 else [f" {k + 1}" for k in range(self.num_scales)]
        return (
            *(f"{what}{k}" for k in count for what in ("length scale", "amplitude")),
            self.noise,
        )

    @property
    def kind(self) -> "Dials":
        """What programs are compiled for: a given kernel is data, and names do not matter."""
        return Dials(self.family, self.num_scales)

    def kernel(self, theta: Float[Array, " p"]) -> AbstractKernel:
        """The kernel with these parameters."""
        if self.given is not None:
            return self.given
        sizes = namespace(theta).exp(theta)
        parts = tuple(self.family(s, a) for s, a in zip(sizes[:-1:2], sizes[1:-1:2], strict=True))
        return parts[0] if len(parts) == 1 else Sum(parts)


@dataclasses.dataclass(frozen=True)
class Held:
    """Parameters that are not to be chosen, mm; None to choose."""

    length_scale: float | None = None
    amplitude: float | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Search:
    """Where to look.

    Args:
        start, box, free: of θ: where from, between which limits, and along which of its entries.
        center, width: of a normal prior on θ, of infinite width where there is none.
        factor: whether s is a factor on given noises.
        reach: size of the raw displacements, mm, to guess from where there is nothing to choose
            with.
    """

    start: np.ndarray
    box: np.ndarray
    free: np.ndarray
    center: np.ndarray
    width: np.ndarray
    factor: bool = False
    reach: float = 0.0

    @property
    def bounds(self) -> np.ndarray:
        return np.where(self.free[:, None], self.box, self.start[:, None])

    def log_prior(self, theta: np.ndarray) -> Value:
        """Of the parameters, up to a constant."""
        away = (theta - self.center) / self.width
        return float(-0.5 * away @ away), -away / self.width


NOTHING_HELD = Held()


def search_for(
    samples: Sequence[Sample],
    dials: Dials,
    held: Held = NOTHING_HELD,
    *,
    given_noise: bool,
    hyperprior: bool = False,
    reach: float = 0.0,
) -> Search:
    """The box of the search, from the landmarks' spacing, extent and displacements: geometric means
    over the samples.

    Args:
        samples, dials: what is to be explained, and by what.
        held: parameters that are kept.
        given_noise: whether s is a factor on given noises (where any sample has its noise scaled at
            all).
        hyperprior: whether parameters have a weakly informative prior: log-normal about the start,
            by a factor of three (length scales) or five (amplitudes and noise).
        reach: size of the raw displacements, mm.
    """
    boxes = np.array([_search_box(sample) for sample in samples])
    low, start, high = np.exp([boxes[:, 0].min(0), boxes[:, 1].mean(0), boxes[:, 2].max(0)])
    noise = (0.05, 1.0, 20.0) if given_noise else (low[2], start[2], high[2])
    spread = [2.0 ** (k - (dials.num_scales - 1) / 2) for k in range(dials.num_scales)][::-1]
    theta = np.log(
        [x for factor in spread for x in (start[0] * factor, start[1] / dials.num_scales**0.5)]
        + [noise[1]]
    )
    box = np.log(
        [
            *np.tile([(low[0], high[0]), (low[1], high[1])], (dials.num_scales, 1)),
            (noise[0], noise[2]),
        ]
    )
    kept = np.log(
        [
            *np.tile([held.length_scale or np.nan, held.amplitude or np.nan], dials.num_scales),
            np.nan,
        ]
    )
    turned = dials.given is None
    free = np.array(
        [*(turned & np.isnan(kept[:-1])), any(bool(sample.scaled) for sample in samples)]
    )
    theta = np.where(np.isnan(kept), theta, kept)
    width = (
        np.log([*np.tile([3.0, 5.0], dials.num_scales), 5.0])
        if hyperprior
        else np.full(len(theta), np.inf)
    )
    return Search(theta, box, free, theta, width, given_noise, reach)


def _search_box(sample: Sample) -> np.ndarray:
    """Least, first and largest values, in log mm: between the landmarks' spacing and twice their
    extent.
    """
    distances = cdist(sample.positions, sample.positions)
    size = float(np.sqrt(np.mean(sample.displacements**2)))
    extent = float(distances.max()) or 10 * size or 1.0
    size = max(size, 1e-4 * extent)
    apart = np.where(distances > 1e-6 * extent, distances, np.inf).min(axis=1)
    spacing = float(np.median(apart[np.isfinite(apart)])) if np.isfinite(apart).any() else extent
    return np.log(
        [
            (0.5 * spacing, 0.03 * size, 0.003 * size),
            (extent / 3, size, 0.3 * size),
            (2 * extent, 30 * size, 3 * size),
        ]
    )


@dataclasses.dataclass(frozen=True)
class Chosen:
    """A parameter that was chosen: its value (mm, or a factor) and about where it is, 95 %, if it
    was told at all.

    The interval is that of the small-deformation model's evidence, tilted by what it misses at the
    value itself.
    """

    name: str
    value: float
    low: float
    high: float
    decided: bool


@dataclasses.dataclass(frozen=True, eq=False)
class Choice:
    """What was chosen.

    Args:
        kernel, noise_scale: the noise in mm where it is free, or the factor on the given one.
        theta: the same as numbers.
        chosen: how well each of the free parameters is told.
        evidence: the log evidence at the choice, summed over the samples.
        followed: whether that is the largest of the diffeomorphic model's; not, where a fit failed
            or rounds ran out.
        fits: rough flows near the choice, one per sample, to start from.
    """

    kernel: AbstractKernel
    noise_scale: float
    theta: np.ndarray
    chosen: tuple[Chosen, ...]
    evidence: float
    followed: bool
    fits: tuple[Fit | None, ...] = ()

    @property
    def undecided(self) -> tuple[Chosen, ...]:
        return tuple(one for one in self.chosen if not one.decided)


def choose(
    samples: Sequence[Sample], dials: Dials, search: Search, model: str = "endpoint"
) -> Choice:
    """Maximise the summed evidence over what is free."""
    if (
        dials.given is not None and not search.free.any()
    ):  # nothing to choose, nor to compare with another family
        theta = search.start
        return Choice(
            dials.given, float(np.exp(theta[-1])), theta, (), np.nan, True, (None,) * len(samples)
        )
    if sum(sample.freedom for sample in samples) < LEAST_FREEDOM:
        return _guess(samples, dials, search)
    return _choice(samples, dials, search, _searched(samples, dials, search, model))


def choose_without_each(
    samples: Sequence[Sample], dials: Dials, searches: Sequence[Search], model: str = "endpoint"
) -> tuple[Choice, ...]:
    """For each sample the choice on all *others*, searched for as entry i of `searches` says.

    What the small model misses is measured once, around the choice on all samples; where the choice
    without one of them is farther away than that can be trusted for, it is measured again, there.
    """
    everything = _searched(samples, dials, searches[0], model)
    choices = []
    for i, search in enumerate(searches):
        others, there = [*samples[:i], *samples[i + 1 :]], everything.without(i)
        leading = functools.partial(_small_total, others, dials, search)
        theta = _ascend(
            lambda at: _plus(leading(at), there.missing(at)), there.theta, search.bounds
        )
        far = np.abs(theta - there.theta).max() > NEAR or not there.measured
        found = (
            _searched(others, dials, search, model)
            if far
            else dataclasses.replace(there, theta=theta)
        )
        choices.append(_choice(others, dials, search, found))
    return tuple(choices)


@dataclasses.dataclass(frozen=True, eq=False)
class _Found:
    """Where a search ended, what the small model misses around there, whether that was measured,
    and is the optimum.
    """

    theta: np.ndarray
    missing: "Missing"
    measured: bool
    settled: bool

    def without(self, i: int) -> "_Found":
        """The same of all samples but one."""
        return dataclasses.replace(self, missing=self.missing.without(i))


def _searched(samples: Sequence[Sample], dials: Dials, search: Search, model: str) -> _Found:
    nothing = Missing.nothing(len(samples), search.start)
    if not search.free.any():
        return _Found(search.start, nothing, measured=True, settled=True)
    leading = functools.partial(_small_total, samples, dials, search)
    theta = maximise(leading, search.start, search)
    if model == "small":
        return _Found(theta, nothing, measured=True, settled=True)
    return follow(samples, dials, search, theta) or _Found(
        theta, nothing, measured=False, settled=False
    )


# ------------------------------------------------------------- the small-deformation model, leading


@compiled(static=1, hasty=FEW_LANDMARKS)
def _small(
    dials: Dials, given: AbstractKernel | None, theta: Float[Array, " p"], sample: Sample
) -> tuple[Scalar, Float[Array, " p"]]:
    """The log evidence of one sample under the small-deformation model, and its gradient in θ."""

    def value(theta: Float[Array, " p"]) -> Scalar:
        kernel = dials.kernel(theta) if given is None else given
        noise = jnp.where(sample.scaled, jnp.exp(2 * theta[-1]), 1.0) * sample.noise
        found = small_evidence(kernel, sample.positions, sample.displacements, sample.basis, noise)
        return found + sample.repetition(noise)

    return jax.value_and_grad(value)(theta)


def _small_total(
    samples: Sequence[Sample], dials: Dials, search: Search, theta: np.ndarray
) -> Value:
    """Log evidence of the small-deformation model over all samples, plus the log prior of the
    parameters.
    """
    value, slope = search.log_prior(theta)
    for sample in samples:
        more, along = _small(dials.kind, dials.given, theta, sample)
        value, slope = value + float(more), slope + np.asarray(along)
    return value, np.where(search.free, slope, 0.0)


STARTS = ((0.0, 0.0, 0.0), (-1.2, 0.0, 0.0), (0.8, 0.7, -1.0), (0.0, -1.0, 1.0))
"""From where the optimum is looked for: steps in the logarithm of length scales, amplitudes and
noise."""


def maximise(value: Callable[[np.ndarray], Value], start: np.ndarray, search: Search) -> np.ndarray:
    """The best of a few local searches; the start itself if none of them ends in a finite number."""
    steps = np.array(
        [[*(scale, amplitude) * (len(start) // 2), noise] for scale, amplitude, noise in STARTS]
    )
    found = [_ascend(value, start + step * search.free, search.bounds) for step in steps]
    return max(found, key=lambda theta: _finite(value(theta)[0]))


def _ascend(
    value: Callable[[np.ndarray], Value], start: np.ndarray, bounds: np.ndarray
) -> np.ndarray:
    """The nearest maximum within bounds."""
    start = np.clip(start, *bounds.T)
    size = max(1.0, abs(_finite(value(start)[0], 1.0)))

    def loss(theta: np.ndarray) -> Value:
        found, slope = value(theta)
        return -found / size, -slope / size

    found = scipy.optimize.minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds)
    return found.x if np.isfinite(found.fun) else start


def _finite(number: float, otherwise: float = -np.inf) -> float:
    return number if np.isfinite(number) else otherwise


# ------------------------------------------------------------------------- what it misses, measured


@dataclasses.dataclass(frozen=True, eq=False)
class Missing:
    """The evidence of the diffeomorphic model less that of the small one, linear around θ₀: a row
    per sample.

    With the flows that were fitted there, from which others may start; no flow where nothing was
    measured.
    """

    center: np.ndarray
    values: np.ndarray
    slopes: np.ndarray
    fits: tuple[Fit | None, ...]

    @classmethod
    def nothing(cls, num_samples: int, center: np.ndarray) -> "Missing":
        return cls(
            center,
            np.zeros(num_samples),
            np.zeros((num_samples, len(center))),
            (None,) * num_samples,
        )

    def __call__(self, theta: np.ndarray) -> Value:
        slope = self.slopes.sum(axis=0)
        return float(self.values.sum() + slope @ (theta - self.center)), slope

    def without(self, i: int) -> "Missing":
        """The same of all samples but one."""
        fits = (*self.fits[:i], *self.fits[i + 1 :])
        return Missing(
            self.center, np.delete(self.values, i), np.delete(self.slopes, i, axis=0), fits
        )


def follow(
    samples: Sequence[Sample], dials: Dials, search: Search, theta: np.ndarray
) -> "_Found | None":
    """From the small model's optimum to that of the diffeomorphic one; None if it cannot be
    evaluated there.
    """
    leading = functools.partial(_small_total, samples, dials, search)
    missing, reach = missing_around(samples, dials, search.free, theta), REACH
    if missing is None:
        return None
    for _ in range(ROUNDS):
        total = lambda at, m=missing: _plus(leading(at), m(at))
        near = np.clip(
            np.stack([theta - reach, theta + reach], axis=1), *search.bounds.T[:, :, None]
        )
        proposal = _ascend(total, theta, near)
        if total(proposal)[0] - total(theta)[0] < ENOUGH:
            return _Found(theta, missing, measured=True, settled=True)
        there = missing_around(samples, dials, search.free, proposal, missing.fits)
        if there is not None and leading(proposal)[0] + there(proposal)[0] > total(theta)[0]:
            theta, missing = proposal, there
        else:
            reach /= 4
    return _Found(theta, missing, measured=True, settled=False)


def missing_around(
    samples: Sequence[Sample],
    dials: Dials,
    free: np.ndarray,
    theta: np.ndarray,
    near: Sequence[Fit | None] | None = None,
) -> Missing | None:
    """Measure what the small model misses at θ and a step along each free parameter; None where a
    fit fails.

    The flows start from those that were fitted nearby, if there are any.
    """
    rows = []
    for sample, start in zip(samples, near or [None] * len(samples), strict=True):
        rows.append(_missing_of(sample, dials, free, theta, start))
        if rows[-1] is None:
            return None
    values, slopes, fits = zip(*rows, strict=True)
    return Missing(theta, np.array(values), np.array(slopes), fits)


def _missing_of(
    sample: Sample, dials: Dials, free: np.ndarray, theta: np.ndarray, near: Fit | None
) -> tuple[float, np.ndarray, Fit] | None:
    """Of one sample: the value, its slopes by differences, and the flow at θ, from which those at
    the steps start.
    """
    small = lambda at: float(_small(dials.kind, dials.given, at, sample)[0])
    value, fit = flow_evidence(sample, dials, theta, near)
    if fit is None:
        return None
    here, slopes = value - small(theta), np.zeros(len(theta))
    for j in np.flatnonzero(free):
        step = PROBE * np.eye(len(theta))[j]
        there, moved = flow_evidence(sample, dials, theta + step, fit)
        if moved is None:
            return None
        slopes[j] = (there - small(theta + step) - here) / PROBE
    return here, slopes, fit


def flow_evidence(
    sample: Sample, dials: Dials, theta: np.ndarray, near: Fit | None = None
) -> tuple[float, Fit | None]:
    """The log evidence around the flow that is fitted with these parameters; no fit where it did
    not converge.
    """
    kernel, observed = _settled(dials, theta), sample.observed_with(theta[-1])
    start, momenta = sample.start, None
    if near is not None:
        start = near.alignment
        momenta = changed_momenta(
            near, kernel, np.asarray(observed.noise(near.trajectory.jacobians[-1]))
        )
    fit, settled = solve.solve_observed(
        observed, kernel, sample.trend, start, momenta=momenta, roughly=True
    )
    if not (fit.converged and settled):
        return -np.inf, None
    value = float(gauss_newton_evidence(fit.linear, fit.energy)) + float(
        repetition(sample, fit.noise)
    )
    return value, fit


repetition = compiled(Sample.repetition, hasty=FEW_LANDMARKS)


def changed_momenta(fit: Fit, kernel: AbstractKernel, noise: np.ndarray) -> np.ndarray:
    """What the momenta p of a fit become with another kernel and noise, to first order: (K' + D')p'
    = (K + D)p.

    In the small-deformation model both sides are what is to be explained.
    """
    q, p = (np.asarray(part[0]) for part in (fit.trajectory.positions, fit.trajectory.momenta))
    before = np.asarray(gram_jit(fit.kernel, q, q)) @ p + np.einsum("iab,ib->ia", fit.noise, p)
    n, d = q.shape
    after = np.kron(np.asarray(gram_jit(kernel, q, q)), np.eye(d)).reshape(n, d, n, d)
    after[np.arange(n), :, np.arange(n)] += noise
    return np.linalg.solve(after.reshape(n * d, n * d), before.ravel()).reshape(n, d)


def _plus(a: Value, b: Value) -> Value:
    return a[0] + b[0], a[1] + b[1]


# ------------------------------------------------------------------------------ how well it is told


def _choice(samples: Sequence[Sample], dials: Dials, search: Search, found: _Found) -> Choice:
    leading = functools.partial(_small_total, samples, dials, search)
    total = lambda at: _plus(leading(at), found.missing(at))
    theta, value = found.theta, total(found.theta)[0] - search.log_prior(found.theta)[0]
    chosen = tuple(_told(dials, search, theta, total))
    return Choice(
        _settled(dials, theta),
        float(np.exp(theta[-1])),
        theta,
        chosen,
        value,
        found.settled,
        found.missing.fits,
    )


def _guess(samples: Sequence[Sample], dials: Dials, search: Search) -> Choice:
    """Where the alignment explains nearly everything: a guess from the landmarks' extent, not a
    residual of zero.
    """
    size = float(np.ptp(samples[0].positions, axis=0).max()) or search.reach or 1.0
    noise = 1.0 if search.factor else 0.02 * size
    guess = np.log([*np.tile([size / 2, 0.05 * size], dials.num_scales), noise])
    theta = np.where(search.free, guess, search.start)
    values = [(dials.names[j], float(np.exp(theta[j]))) for j in np.flatnonzero(search.free)]
    chosen = tuple(Chosen(name, value, 0.0, np.inf, False) for name, value in values)
    return Choice(
        _settled(dials, theta),
        float(np.exp(theta[-1])),
        theta,
        chosen,
        np.nan,
        True,
        (None,) * len(samples),
    )


def _settled(dials: Dials, theta: np.ndarray) -> AbstractKernel:
    """The kernel with plain numbers."""
    return dials.given if dials.given is not None else jax.tree.map(float, dials.kernel(theta))


def _told(
    dials: Dials, search: Search, theta: np.ndarray, total: Callable[[np.ndarray], Value]
) -> Iterator[Chosen]:
    """For each free parameter, 95 % of a normal of the curvature at the maximum; where that is
    flat, of the profile.
    """
    places = np.flatnonzero(search.free)
    curvature = np.zeros((len(places), len(places)))
    for k, place in enumerate(places):
        step = 0.5 * PROBE * np.eye(len(theta))[place]
        curvature[k] = (total(theta - step)[1] - total(theta + step)[1])[places] / PROBE
    sds = _deviations(0.5 * (curvature + curvature.T))
    for j, sd in zip(map(int, places), sds, strict=True):
        box = search.box[j]
        low, high = theta[j] - 1.96 * sd, theta[j] + 1.96 * sd
        if not _is_told(low, high, box):
            low, high = (_profile_end(j, float(end), search, theta, total) for end in box)
        value, least, most = (float(np.exp(x)) for x in (theta[j], low, high))
        yield Chosen(dials.names[j], value, least, most, _is_told(low, high, box))


def _is_told(low: float, high: float, box: np.ndarray) -> bool:
    """Whether an interval is narrow, and its ends are not the limits of the search."""
    return bool(high - low < TOLD and low > box[0] + 1e-3 and high < box[1] - 1e-3)


def _profile_end(
    j: int, limit: float, search: Search, theta: np.ndarray, total: Callable[[np.ndarray], Value]
) -> float:
    """How far parameter j can go towards a limit, the others following, until the log evidence
    falls by 1.92.
    """
    best, others = total(theta)[0], search.free & (np.arange(len(theta)) != j)

    def falls_short(at: float) -> bool:
        start = np.where(np.arange(len(theta)) == j, at, theta)
        bounds = np.where(others[:, None], search.bounds, start[:, None])
        loss = lambda t: tuple(-part for part in total(t))
        found = (
            scipy.optimize.minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds)
            if others.any()
            else None
        )
        return best - (total(start)[0] if found is None else -found.fun) > DROP

    if not falls_short(limit):
        return limit
    near, far = float(theta[j]), limit
    for _ in range(HALVINGS):
        middle = 0.5 * (near + far)
        near, far = (near, middle) if falls_short(middle) else (middle, far)
    return near


def length_scale_profile(
    samples: Sequence[Sample], dials: Dials, search: Search, theta: np.ndarray, scales: np.ndarray
) -> np.ndarray:
    """The small-deformation model's log evidence, with the log prior of θ, as a function of the
    first length scale.

    The other free parameters follow. They start from those of the neighbour that is nearer to θ, so
    that the curve stays on one ridge.

    Args:
        samples, dials, search: what is explained, by what, and where the other parameters may be.
        theta: where to start from: the choice.
        scales: (m,) length scales, mm, in any order.

    Returns:
        (m,) values; NaN where they are not finite.
    """
    leading = functools.partial(_small_total, samples, dials, search)
    logs, values = np.log(scales), np.full(len(scales), np.nan)
    order = np.argsort(logs)
    below = logs[order] < theta[0]
    for way in (order[below][::-1], order[~below]):
        at = theta
        for i in way:
            bounds = np.vstack([np.full((1, 2), logs[i]), search.bounds[1:]])
            at = _ascend(leading, np.array([logs[i], *at[1:]]), bounds)
            values[i] = _finite(leading(at)[0], np.nan)
    return values


def _deviations(curvature: np.ndarray) -> np.ndarray:
    """√ of the diagonal of the inverse; along directions that curve nowhere or upwards there is no
    limit.
    """
    strengths, directions = np.linalg.eigh(curvature)
    variances = np.where(strengths > 1e-6, 1 / np.maximum(strengths, 1e-6), 1e6)
    return np.sqrt(directions**2 @ variances)
