"""How well the landmarks of a registration determine the length scale: the evidence along it."""

import dataclasses

import jax
import numpy as np

from kunita.checks import NoiseSource, NoisyPairs
from kunita.data.landmarks import Pairs
from kunita.fitting import draw_rows
from kunita.inference.estimation import LEAST_FREEDOM
from kunita.inference.hyperparameters import (
    GivenParameters,
    Hyperparameters,
    SmallEvidence,
    build_search_box,
)
from kunita.inference.intervals import (
    EstimatedParameter,
    EvidenceProfile,
    find_parameter,
    profile_length_scale,
    profile_scales,
)
from kunita.inference.sample import Sample, aligned_sample
from kunita.jaxrun.doors import on_one_blas_thread
from kunita.kernels import AbstractProfile
from kunita.registration import Registration


@dataclasses.dataclass(frozen=True)
class ProfileOptions:
    """How a profile is computed.

    Args:
        most_landmarks: of more landmarks than this, so many are drawn by chance: a
            picture of the curve needs no more.
    """

    most_landmarks: int = 200


USUAL = ProfileOptions()


@on_one_blas_thread
def evidence_profile(reg: Registration, options: ProfileOptions = USUAL) -> EvidenceProfile | None:
    """The log evidence along the length scale of a registration; None if there is none to show.

    There is none where the weights of a robust fit replace the evidence, where the
    kernel is more than a family with its length scale and amplitude, and where the
    alignment explains nearly everything.
    """
    kernel = reg.kernel
    if reg.robust or not isinstance(kernel, AbstractProfile) or not _is_plain(kernel):
        return None
    with jax.enable_x64(True):
        sample = _sample(reg, options)
        if sample.freedom < LEAST_FREEDOM:
            return None
        small = _small_evidence(reg, kernel, sample)
        used = _used_length_scale(reg, kernel)
        scales = profile_scales(used, small.box.limits[0])
        sizes = [kernel.length_scale, kernel.amplitude, _noise_scale(reg)]
        theta = np.log(sizes)
        values = profile_length_scale(small, small.box, theta, scales)
    return EvidenceProfile.around(used, scales, values, len(sample.positions))


def _is_plain(kernel: AbstractProfile) -> bool:
    """Whether the family, the length scale and the amplitude are all there is to a kernel.

    A rational quadratic, say, may have been given with an α of its own.
    """
    try:
        return bool(type(kernel)(kernel.length_scale, kernel.amplitude) == kernel)
    except TypeError:
        return False


def _sample(reg: Registration, options: ProfileOptions) -> Sample:
    """The landmarks that were used, or some of very many, as the estimation saw them."""
    rows = np.flatnonzero(reg.used)
    whole = reg.fixed.known[rows] == reg.fixed.dimension
    drawn = draw_rows(whole, options.most_landmarks)
    if drawn is not None:
        rows = rows[drawn]
    noise = reg.noise[rows] / _noise_scale(reg) ** 2
    marked = NoisyPairs(
        pairs=Pairs(reg.moving.take(rows), reg.fixed.take(rows), reg.pairing, ()),
        rows=rows,
        fixed_noise=noise,
        moving_noise=np.zeros_like(noise),
        source=NoiseSource.ARGUMENT,
    )
    observed = marked.observe(np.ones(len(rows)))
    is_scaled = _estimated_noise(reg) is not None
    return aligned_sample(observed, reg.align, scaled=is_scaled).sample


def _small_evidence(reg: Registration, kernel: AbstractProfile, sample: Sample) -> SmallEvidence:
    """The evidence of the small-deformation model, with what was given to the registration given."""
    given = GivenParameters()
    if find_parameter(reg.chosen, "amplitude") is None:
        given = GivenParameters(amplitude=float(kernel.amplitude))
    is_factor = find_parameter(reg.chosen, "noise") is None
    hyperparameters = Hyperparameters(type(kernel), given=given, noise_is_factor=is_factor)
    box = build_search_box([sample], hyperparameters, weak_prior=True)
    return SmallEvidence((sample,), hyperparameters, box)


def _used_length_scale(reg: Registration, kernel: AbstractProfile) -> EstimatedParameter:
    """The length scale with its interval; without one, where it was given."""
    estimated = find_parameter(reg.chosen, "length scale")
    if estimated is not None:
        return estimated
    return EstimatedParameter("length scale", float(kernel.length_scale), np.nan, np.nan, False)


def _estimated_noise(reg: Registration) -> EstimatedParameter | None:
    return find_parameter(reg.chosen, "noise", "noise factor")


def _noise_scale(reg: Registration) -> float:
    """What the noise was multiplied with by the estimation: 1 where it was not estimated."""
    estimated = _estimated_noise(reg)
    return 1.0 if estimated is None else estimated.value
