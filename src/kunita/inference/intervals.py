"""How well the hyper-parameters are identified: 95 % intervals, and profiles of the length scale.

Near its maximum θ̂ the log evidence ℓ is about a parabola,

    ℓ(θ) ≈ ℓ(θ̂) − ½(θ − θ̂)ᵀC(θ − θ̂),

so the landmarks say θ ~ N(θ̂, C⁻¹), and the 95 % interval of an entry is θ̂ⱼ ± 1.96
√(C⁻¹)ⱼⱼ. Where that interval is wide, or reaches a limit of the search, ℓ is no
parabola over so far a distance. Then the interval is that of the profile likelihood
instead: all values of θⱼ at which ℓ, maximised over the other entries, is at most
½·3.84 below its maximum (3.84 is the 95 % quantile of χ²₁, by Wilks' theorem). A
hyper-parameter is *identified* if its interval is narrower than a factor of 16 and
ends within the limits of the search.

ℓ here is the small-deformation model's evidence, plus the log prior of θ, corrected
to first order by what the model misses at θ̂ (`kunita.inference.estimation`).
"""

import dataclasses
from collections.abc import Iterable

import numpy as np

from kunita.inference.ascent import LogDensity, ascend, climb, finite_or, moved
from kunita.inference.hyperparameters import (
    LEAST_FREEDOM,
    GivenParameters,
    Hyperparameters,
    SearchBox,
    SmallEvidence,
    build_search_box,
)
from kunita.inference.sample import Sample
from kunita.kernels import AbstractKernel, AbstractProfile

IDENTIFIED = np.log(16.0)
"""The widest interval of an identified hyper-parameter, in log: four times up and down."""

NORMAL_95 = 1.96
"""Standard deviations to either side that hold 95 % of a normal distribution."""

DROP = 1.92
"""How far the log evidence falls to the ends of a 95 % interval: half the 95 % quantile of χ²₁."""

HALVINGS = 6
"""How closely the ends of a profile interval are looked for: to 1/64 of the way to the limit."""

CURVATURE_STEP = 0.05
"""The step in θ of the finite differences of the gradient."""

FLAT = 1e-6
"""Less curvature than this is none: the standard deviation along such a direction is 1000."""

AT_LIMIT = 1e-3
"""An end closer than this to a limit of the search, in log, is that limit."""

WIDE_SCALES = 13
"""Length scales of a profile, from half the landmarks' spacing to twice their extent."""

CLOSE_SCALES = 6
"""More of them around the 95 % interval, where the profile may be steep."""


@dataclasses.dataclass(frozen=True)
class EstimatedParameter:
    """A hyper-parameter that was estimated, with its 95 % interval.

    Args:
        name: "length scale", "amplitude", "noise" or "noise factor", with a number
            where several kernels are summed.
        value: the estimate, mm, or a factor.
        low, high: the ends of the interval, in the same unit.
        identified: whether the landmarks determine it. If not, the weak prior or a
            limit of the search has a large share in the value.
    """

    name: str
    value: float
    low: float
    high: float
    identified: bool


# ------------------------------------------------------------------------------------- intervals


def find_intervals(
    log_density: LogDensity, box: SearchBox, names: tuple[str, ...], theta: np.ndarray
) -> tuple[EstimatedParameter, ...]:
    """The 95 % intervals of all hyper-parameters that were estimated.

    Args:
        log_density: the log evidence with the log prior, as a function of θ.
        box: where it was maximised.
        names: (p,) of the entries of θ.
        theta: (p,) the maximum.
    """
    entries = np.flatnonzero(box.estimated)
    curvature = _curvature(log_density, theta, entries)
    deviations = _standard_deviations(curvature)
    found = []
    for j, deviation in zip(entries.tolist(), deviations, strict=True):
        limits = box.limits[j]
        reach = NORMAL_95 * deviation
        low = theta[j] - reach
        high = theta[j] + reach
        if not _is_identified(low, high, limits):
            low, high = _profile_interval(log_density, box, theta, j)
        identified = _is_identified(low, high, limits)
        parameter = _parameter(names[j], theta[j], low, high, identified)
        found.append(parameter)
    return tuple(found)


def _parameter(
    name: str, log_value: float, log_low: float, log_high: float, identified: bool
) -> EstimatedParameter:
    return EstimatedParameter(
        name=name,
        value=float(np.exp(log_value)),
        low=float(np.exp(log_low)),
        high=float(np.exp(log_high)),
        identified=identified,
    )


def guessed_parameters(
    box: SearchBox, names: tuple[str, ...], theta: np.ndarray
) -> tuple[EstimatedParameter, ...]:
    """What stands in for estimates that could not be made: any value would do."""
    return tuple(
        _parameter(names[j], theta[j], -np.inf, np.inf, False)
        for j in np.flatnonzero(box.estimated).tolist()
    )


def find_parameter(
    parameters: Iterable[EstimatedParameter], *names: str
) -> EstimatedParameter | None:
    """The first of some estimates that has one of these names; None if there is none."""
    for parameter in parameters:
        if parameter.name in names:
            return parameter
    return None


def _curvature(log_density: LogDensity, theta: np.ndarray, entries: np.ndarray) -> np.ndarray:
    """C = −∂²ℓ/∂θ² along some entries of θ, by central differences of the gradient."""
    curvature = np.zeros((len(entries), len(entries)))
    for row, entry in enumerate(entries.tolist()):
        below = moved(theta, entry, -CURVATURE_STEP)
        above = moved(theta, entry, CURVATURE_STEP)
        _, slope_below = log_density(below)
        _, slope_above = log_density(above)
        fall = slope_below - slope_above
        curvature[row] = fall[entries] / (2 * CURVATURE_STEP)
    # differences are symmetric only up to their error
    both = curvature + curvature.T
    return 0.5 * both


def _standard_deviations(curvature: np.ndarray) -> np.ndarray:
    """√ of the diagonal of C⁻¹; very large along directions that curve nowhere, or upwards."""
    strengths, directions = np.linalg.eigh(curvature)
    along_each = 1 / np.maximum(strengths, FLAT)
    variances = directions**2 @ along_each
    return np.sqrt(variances)


def _is_identified(low: float, high: float, limits: np.ndarray) -> bool:
    """Whether an interval of log values is narrow, and ends within the limits of the search."""
    least, largest = limits
    is_narrow = high - low < IDENTIFIED
    is_above = low > least + AT_LIMIT
    is_below = high < largest - AT_LIMIT
    return bool(is_narrow and is_above and is_below)


def _profile_interval(
    log_density: LogDensity, box: SearchBox, theta: np.ndarray, entry: int
) -> tuple[float, float]:
    """The interval of one entry of θ in which the profile is at most 1.92 below its maximum."""
    least, largest = box.limits[entry]
    low = _profile_end(log_density, box, theta, entry, least)
    high = _profile_end(log_density, box, theta, entry, largest)
    return low, high


def _profile_end(
    log_density: LogDensity, box: SearchBox, theta: np.ndarray, entry: int, limit: float
) -> float:
    """How far an entry of θ can go towards a limit before the profile falls by 1.92."""
    best, _ = log_density(theta)

    def is_outside(value: float) -> bool:
        profile = _profile_value(log_density, box, theta, entry, value)
        return best - profile > DROP

    if not is_outside(limit):
        return float(limit)
    near = float(theta[entry])
    far = float(limit)
    for _ in range(HALVINGS):
        middle = 0.5 * (near + far)
        if is_outside(middle):
            far = middle
        else:
            near = middle
    return near


def _profile_value(
    log_density: LogDensity, box: SearchBox, theta: np.ndarray, entry: int, value: float
) -> float:
    """The largest log density with one entry of θ at this value, over the others' estimates."""
    start = theta.copy()
    start[entry] = value
    others = box.estimated.copy()
    others[entry] = False
    if not others.any():
        highest, _ = log_density(start)
        return highest
    bounds = np.where(others[:, None], box.bounds, start[:, None])
    _, highest = climb(log_density, start, bounds)
    return highest


# --------------------------------------------------------------------- profiles of the length scale


@dataclasses.dataclass(frozen=True, eq=False)
class EvidenceProfile:
    """The log evidence of the small-deformation model along the length scale.

    At each length scale the other hyper-parameters that were estimated are
    estimated again.

    Args:
        scales_mm: (m,) length scales, rising; the one that was used is among them.
        log_evidence: (m,) with the log prior of the hyper-parameters; NaN where it
            is not finite.
        chosen_mm: the length scale that was used.
        low, high: its 95 % interval, mm; NaN where it was given and not estimated.
        identified: whether the landmarks determine it.
        num_landmarks: how many landmarks the curve is made from.
    """

    scales_mm: np.ndarray
    log_evidence: np.ndarray
    chosen_mm: float
    low: float
    high: float
    identified: bool
    num_landmarks: int


def profile_evidence(
    sample: Sample, kernel: AbstractKernel, estimated: tuple[EstimatedParameter, ...]
) -> EvidenceProfile | None:
    """The profile of a kernel's length scale, what is given kept; None if it has none.

    There is none where the kernel is more than a family with its length scale and
    amplitude, and where the alignment explains nearly everything.

    Args:
        sample: what is explained, its noise up to the scale that was estimated.
        kernel: that was used.
        estimated: the hyper-parameters that were estimated.
    """
    if not isinstance(kernel, AbstractProfile) or not _is_plain(kernel):
        return None
    if sample.freedom < LEAST_FREEDOM:
        return None
    small = _evidence_with_given(sample, kernel, estimated)
    used = _used_length_scale(kernel, estimated)
    noise = find_parameter(estimated, "noise", "noise factor")
    noise_scale = 1.0 if noise is None else noise.value
    theta = np.log([kernel.length_scale, kernel.amplitude, noise_scale])
    return profile_around(small, theta, used, len(sample.positions))


def profile_around(
    small: SmallEvidence, theta: np.ndarray, used: EstimatedParameter, num_landmarks: int
) -> EvidenceProfile:
    """The profile around hyper-parameters θ, of which `used` is the length scale."""
    scales = profile_scales(used, small.box.limits[0])
    values = profile_length_scale(small, small.box, theta, scales)
    return EvidenceProfile(
        scales_mm=scales,
        log_evidence=values,
        chosen_mm=used.value,
        low=used.low,
        high=used.high,
        identified=used.identified,
        num_landmarks=num_landmarks,
    )


def _is_plain(kernel: AbstractProfile) -> bool:
    """Whether the family, the length scale and the amplitude are all there is to a kernel.

    A rational quadratic, say, may have been given with an α of its own.
    """
    try:
        return bool(type(kernel)(kernel.length_scale, kernel.amplitude) == kernel)
    except TypeError:
        return False


def _evidence_with_given(
    sample: Sample, kernel: AbstractProfile, estimated: tuple[EstimatedParameter, ...]
) -> SmallEvidence:
    """The evidence of the small-deformation model, the amplitude given if it was not estimated."""
    given = GivenParameters()
    if find_parameter(estimated, "amplitude") is None:
        given = GivenParameters(amplitude=float(kernel.amplitude))
    is_factor = find_parameter(estimated, "noise") is None
    hyperparameters = Hyperparameters(type(kernel), given=given, noise_is_factor=is_factor)
    box = build_search_box([sample], hyperparameters, weak_prior=True)
    return SmallEvidence((sample,), hyperparameters, box)


def _used_length_scale(
    kernel: AbstractProfile, estimated: tuple[EstimatedParameter, ...]
) -> EstimatedParameter:
    """The length scale with its interval; without one, where it was given."""
    found = find_parameter(estimated, "length scale")
    if found is not None:
        return found
    return EstimatedParameter("length scale", float(kernel.length_scale), np.nan, np.nan, False)


def profile_scales(used: EstimatedParameter, limits: np.ndarray) -> np.ndarray:
    """The length scales of a profile, mm, rising: closer together where it may be steep.

    Args:
        used: the length scale that was used, which is among them.
        limits: (2,) log limits of the search, widened to what was used if that is
            outside.
    """
    least, largest = np.exp(limits)
    low = min(used.value, least)
    high = max(used.value, largest)
    if not used.identified:
        wide = np.geomspace(low, high, WIDE_SCALES + CLOSE_SCALES)
        return np.unique([*wide, used.value])
    wide = np.geomspace(low, high, WIDE_SCALES)
    first = wide[0]
    last = wide[-1]
    close = np.clip(_close_scales(used), first, last)
    return np.unique([*wide, *close, used.value])


def _close_scales(used: EstimatedParameter) -> np.ndarray:
    """Length scales around an interval, and half as far again as it reaches, in log."""
    down = used.low / used.value
    up = used.high / used.value
    half_down = down**0.5
    half_up = up**0.5
    first = used.low * half_down
    last = used.high * half_up
    return np.geomspace(first, last, CLOSE_SCALES)


def profile_length_scale(
    log_density: LogDensity, box: SearchBox, theta: np.ndarray, scales: np.ndarray
) -> np.ndarray:
    """max over the other estimated entries of ℓ(θ), as a function of the first length scale.

    Away from θ̂ to either side, each maximisation starts from the one before, so
    that the curve stays on one ridge.

    Args:
        log_density: ℓ, the log evidence with the log prior.
        box: where the other hyper-parameters may be.
        theta: (p,) θ̂, where to start from.
        scales: (m,) length scales, mm, in any order.

    Returns:
        (m,) values; NaN where they are not finite.
    """
    logs = np.log(scales)
    rising = np.argsort(logs)
    below = logs[rising] < theta[0]
    downwards = rising[below][::-1]
    upwards = rising[~below]
    values = np.full(len(scales), np.nan)
    for way in (downwards, upwards):
        values[way] = _follow_ridge(log_density, box, theta, logs[way])
    return values


def _follow_ridge(
    log_density: LogDensity, box: SearchBox, theta: np.ndarray, logs: np.ndarray
) -> list[float]:
    """The largest log density at one log length scale after the other, from θ on."""
    values = []
    for log_scale in logs:
        bounds = box.bounds.copy()
        bounds[0] = log_scale
        start = np.array([log_scale, *theta[1:]])
        theta = ascend(log_density, start, bounds)
        value, _ = log_density(theta)
        values.append(finite_or(np.nan, value))
    return values
