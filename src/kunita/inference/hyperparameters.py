"""The hyper-parameters: which there are, where they are looked for, and their small-model evidence.

A registration needs a kernel and a noise. The kernel is of a family with a length
scale σ and an amplitude a, or a sum of several of one family. The noise is a
standard deviation s, or a factor s on the standard deviations that are given. All
of these are positive and known up to factors at best, so they are looked for by
their logarithms,

    θ = (log σ₁, log a₁, log σ₂, log a₂, …, log s),    σ and a in mm, s in mm or a factor.

What is estimated maximises the log marginal likelihood (evidence) of the landmarks,
log p(F | θ), plus a weak log prior. The evidence of the small-deformation model is
in closed form (`kunita.inference.small.small_evidence`): `SmallEvidence` is its sum
over one or many cases. It is exact, cheap and differentiable.
`kunita.inference.estimation` corrects it by what it misses of the diffeomorphic
model and maximises the sum; `kunita.inference.intervals` says how well each of the
hyper-parameters is identified.

The search is limited to what landmarks can tell at all: length scales from half
their spacing to twice their extent; amplitudes and noise in proportion to their
displacements (`build_search_box`).
"""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np
from jaxtyping import Float

from kunita import numerics
from kunita.inference.ascent import ValueAndGradient
from kunita.inference.sample import RowsAtStart, Sample
from kunita.inference.small import small_evidence
from kunita.jaxrun.doors import Array, Scalar, namespace
from kunita.jaxrun.programs import FEW_LANDMARKS, compiled
from kunita.kernels import AbstractKernel, AbstractProfile, Sum

PRIOR_FACTORS = (3.0, 5.0, 5.0)
"""The weak prior of length scales, amplitudes and noise: one standard deviation is this factor."""

LEAST_FREEDOM = 3
"""Coordinates that the alignment does not explain: with fewer there is nothing to estimate with."""

NOISE_FACTORS = (0.05, 1.0, 20.0)
"""Least, first and largest factor on a noise that is given."""


@dataclasses.dataclass(frozen=True)
class GivenParameters:
    """What the user gives of the kernel, and what is therefore not estimated; None for the rest.

    Args:
        kernel: the whole kernel.
        length_scale, amplitude: of the kernel's family, mm.
    """

    kernel: AbstractKernel | None = None
    length_scale: float | None = None
    amplitude: float | None = None


NOTHING_GIVEN = GivenParameters()


@dataclasses.dataclass(frozen=True)
class Hyperparameters:
    """Which hyper-parameters there are: θ = (log σ₁, log a₁, …, log s).

    Args:
        family: the kernel's class.
        num_scales: how many kernels of that family are summed.
        given: what is not estimated.
        noise_is_factor: whether s is a factor on noise that is given, and not a
            noise in mm.
    """

    family: type[AbstractProfile]
    num_scales: int = 1
    given: GivenParameters = NOTHING_GIVEN
    noise_is_factor: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """What the entries of θ are called."""
        names = []
        for k in range(self.num_scales):
            number = "" if self.num_scales == 1 else f" {k + 1}"
            names.append(f"length scale{number}")
            names.append(f"amplitude{number}")
        names.append("noise factor" if self.noise_is_factor else "noise")
        return tuple(names)

    @property
    def for_programs(self) -> "Hyperparameters":
        """The part that programs are compiled for: given numbers are data, names do not matter."""
        return Hyperparameters(self.family, self.num_scales)

    def kernel(self, theta: Float[Array, " p"]) -> AbstractKernel:
        """The kernel at θ; the one that is given, if one is."""
        if self.given.kernel is not None:
            return self.given.kernel
        xp = namespace(theta)
        sizes = xp.exp(theta)
        length_scales = sizes[:-1:2]
        amplitudes = sizes[1:-1:2]
        parts = tuple(map(self.family, length_scales, amplitudes))
        return parts[0] if len(parts) == 1 else Sum(parts)

    def plain_kernel(self, theta: np.ndarray) -> AbstractKernel:
        """The same kernel, its parameters plain numbers."""
        if self.given.kernel is not None:
            return self.given.kernel
        return jax.tree.map(float, self.kernel(theta))


def arrange(
    num_scales: int, length_scale: float | np.ndarray, amplitude: float, noise: float
) -> np.ndarray:
    """Numbers for length scales, amplitudes and noise in the order of θ, (p,).

    Args:
        num_scales: how many kernels are summed.
        length_scale: one number for all of them, or (num_scales,).
        amplitude, noise: one number each.
    """
    arranged = np.empty(2 * num_scales + 1)
    arranged[0:-1:2] = length_scale
    arranged[1:-1:2] = amplitude
    arranged[-1] = noise
    return arranged


# ------------------------------------------------------------------------------ where they may be


@dataclasses.dataclass(frozen=True, eq=False)
class Hyperprior:
    """A normal prior of θ, each entry by itself; flat where the width is infinite.

    Args:
        center, width: (p,) means and standard deviations.
    """

    center: np.ndarray
    width: np.ndarray

    def log_density(self, theta: np.ndarray) -> ValueAndGradient:
        """log p(θ) up to a constant, and its gradient."""
        away = (theta - self.center) / self.width
        squared = away @ away
        value = float(-0.5 * squared)
        gradient = -away / self.width
        return value, gradient


@dataclasses.dataclass(frozen=True, eq=False)
class SearchBox:
    """Where the hyper-parameters are looked for.

    Args:
        start: (p,) the θ that the search begins with; what is given stays there.
        limits: (p, 2) the least and the largest θ.
        estimated: (p,) which entries of θ are estimated.
        hyperprior: the weak prior of θ.
        displacement_mm: root mean square of the raw displacements: the size of a
            guess where there is nothing to estimate with.
    """

    start: np.ndarray
    limits: np.ndarray
    estimated: np.ndarray
    hyperprior: Hyperprior
    displacement_mm: float = 0.0

    @property
    def bounds(self) -> np.ndarray:
        """(p, 2) the limits of what is estimated; of what is not, its value twice."""
        kept = self.start[:, None]
        estimated = self.estimated[:, None]
        return np.where(estimated, self.limits, kept)


def build_search_box(
    samples: Sequence[Sample],
    hyperparameters: Hyperparameters,
    *,
    weak_prior: bool = False,
    displacement_mm: float = 0.0,
) -> SearchBox:
    """The search box of some samples, from their landmarks' spacing, extent and displacements.

    Args:
        samples: what is to be explained. The search begins at the geometric mean of
            where it would begin for each of them.
        hyperparameters: which there are.
        weak_prior: whether they have a weakly informative prior, log-normal about
            the start, by a factor of three (length scales) or five (amplitudes and
            noise).
        displacement_mm: see `SearchBox`.
    """
    num_scales = hyperparameters.num_scales
    low, first, high = _pooled_ranges(samples, hyperparameters)
    least = arrange(num_scales, *low)
    largest = arrange(num_scales, *high)
    given = _given_theta(hyperparameters)
    start = np.where(np.isnan(given), _first_theta(num_scales, first), given)
    factors = PRIOR_FACTORS if weak_prior else (np.inf, np.inf, np.inf)
    width = np.log(arrange(num_scales, *factors))
    return SearchBox(
        start=start,
        limits=np.log(np.stack([least, largest], axis=1)),
        estimated=_estimated_entries(samples, hyperparameters),
        hyperprior=Hyperprior(center=start, width=width),
        displacement_mm=displacement_mm,
    )


def _first_theta(num_scales: int, first: np.ndarray) -> np.ndarray:
    """(p,) where the search begins, from the first length scale, amplitude and noise, (3,).

    Kernels that are summed begin a factor of two apart, the largest first, and
    share the variance.
    """
    length_scale, amplitude, noise = first
    octaves = np.arange(num_scales)[::-1]
    middle = (num_scales - 1) / 2
    apart = 2.0 ** (octaves - middle)
    length_scales = length_scale * apart
    share = amplitude / num_scales**0.5
    first_values = arrange(num_scales, length_scales, share, noise)
    return np.log(first_values)


def _given_theta(hyperparameters: Hyperparameters) -> np.ndarray:
    """(p,) θ where the user gave it; NaN elsewhere."""
    given = hyperparameters.given
    length_scale = given.length_scale or np.nan
    amplitude = given.amplitude or np.nan
    noise = np.nan
    theta = arrange(hyperparameters.num_scales, length_scale, amplitude, noise)
    return np.log(theta)


def _estimated_entries(samples: Sequence[Sample], hyperparameters: Hyperparameters) -> np.ndarray:
    """(p,) which entries of θ are estimated: those of the kernel not given, the noise if scaled."""
    given = _given_theta(hyperparameters)
    estimated = np.isnan(given)
    if hyperparameters.given.kernel is not None:
        estimated[:-1] = False
    estimated[-1] = any(bool(sample.scaled) for sample in samples)
    return estimated


def _pooled_ranges(
    samples: Sequence[Sample], hyperparameters: Hyperparameters
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The least, first and largest length scale, amplitude and noise, (3,) each, of all samples."""
    ranges = [_plausible_ranges(sample) for sample in samples]
    by_bound = np.log(ranges).swapaxes(0, 1)
    log_low, log_first, log_high = by_bound
    low = np.exp(log_low.min(axis=0))
    first = np.exp(log_first.mean(axis=0))
    high = np.exp(log_high.max(axis=0))
    # a noise in mm is looked for around the displacements, a factor around one
    if hyperparameters.noise_is_factor:
        low[2], first[2], high[2] = NOISE_FACTORS
    return low, first, high


def _plausible_ranges(sample: Sample) -> list[tuple[float, float, float]]:
    """Least, first and largest values, mm, one row each, of length scale, amplitude and noise.

    Length scales are between half the landmarks' spacing, below which deformation
    and noise look the same, and twice their extent, above which deformation looks
    like the alignment.
    """
    size = sample.size_mm
    # Landmarks at one place have no extent, landmarks that did not move no displacement.
    extent, spacing = numerics.extent_and_spacing(sample.positions, otherwise=10 * size or 1.0)
    size = max(size, 1e-4 * extent)
    return [
        (0.5 * spacing, 0.03 * size, 0.003 * size),
        (extent / 3, size, 0.3 * size),
        (2 * extent, 30 * size, 3 * size),
    ]


# ---------------------------------------------------------- evidence of the small-deformation model


@dataclasses.dataclass(frozen=True, eq=False)
class SmallEvidence:
    """Log evidence of the small-deformation model, summed over samples, plus the log prior of θ.

    Args:
        samples: what is explained.
        hyperparameters: which there are.
        box: where they are looked for; the gradient is zero along what is not
            estimated.
    """

    samples: tuple[Sample, ...]
    hyperparameters: Hyperparameters
    box: SearchBox

    def __call__(self, theta: np.ndarray) -> ValueAndGradient:
        value, gradient = self.box.hyperprior.log_density(theta)
        for sample in self.samples:
            more, slope = self.of_sample(sample, theta)
            value = value + more
            gradient = gradient + slope
        along_estimated = np.where(self.box.estimated, gradient, 0.0)
        return value, along_estimated

    def of_sample(self, sample: Sample, theta: np.ndarray) -> ValueAndGradient:
        """Of one sample, without the prior of θ."""
        compiled_for = self.hyperparameters.for_programs
        given = self.hyperparameters.given.kernel
        value, gradient = small_log_evidence(compiled_for, given, theta, sample.at_start)
        return float(value), np.asarray(gradient)


@compiled(static=1, hasty=FEW_LANDMARKS)
def small_log_evidence(
    hyperparameters: Hyperparameters,
    given: AbstractKernel | None,
    theta: Float[Array, " p"],
    start: RowsAtStart,
) -> tuple[Scalar, Float[Array, " p"]]:
    """log p(F | θ) of rows at the start under the small-deformation model, and its gradient in θ.

    Args:
        hyperparameters: which there are, as programs see them.
        given: the kernel, where it is given.
        theta: (p,).
        start: what is explained.
    """

    def value(theta: Float[Array, " p"]) -> Scalar:
        kernel = hyperparameters.kernel(theta) if given is None else given
        rows = start.with_noise(theta[-1])
        return small_evidence(
            kernel,
            start.positions,
            start.basis,
            rows,
            isotropic=start.isotropic,
        )

    return jax.value_and_grad(value)(theta)
