"""How well the landmarks tell the length scale: the evidence as a function of it."""

import dataclasses

import jax
import numpy as np

from kunita.inference.choice import (
    LEAST_FREEDOM,
    Chosen,
    Dials,
    Held,
    length_scale_profile,
    search_for,
)
from kunita.inference.sample import Sample, aligned_sample
from kunita.jaxrun.doors import on_one_blas_thread
from kunita.kernels import AbstractProfile
from kunita.registration import Registration

MOST_LANDMARKS = 200
"""The curve is of so many of the landmarks at most: a picture of it needs no more."""

NUM_SCALES, NUM_CLOSE = 13, 6
"""From half the landmarks' spacing to twice their extent; and around the 95 % interval, where it
may be steep."""


@dataclasses.dataclass(frozen=True, eq=False)
class EvidenceProfile:
    """The log evidence of the small-deformation model along the length scale, the other chosen
    parameters following.

    Args:
        scales_mm: (m,) length scales, rising; the one that was used is among them.
        log_evidence: (m,) with the log prior of the parameters, as the choice has it; NaN where it
            is not finite.
        chosen_mm: the length scale that was used.
        low, high: about where it is, 95 %, mm; NaN where it was given and not chosen.
        decided: whether the landmarks told it.
        num_landmarks: of which the curve is.
    """

    scales_mm: np.ndarray
    log_evidence: np.ndarray
    chosen_mm: float
    low: float
    high: float
    decided: bool
    num_landmarks: int


@on_one_blas_thread
def evidence_profile(reg: Registration) -> EvidenceProfile | None:
    """The curve behind the length scale of a registration; None if there is none to show.

    There is none where the weights of a robust fit replace the evidence, where the kernel is more
    than a family with its length scale and amplitude, and where the alignment explains nearly
    everything.
    """
    kernel = reg.kernel
    if reg.robust or not isinstance(kernel, AbstractProfile) or not _is_plain(kernel):
        return None
    with jax.enable_x64(True):
        sample = _sample(reg)
        if sample.freedom < LEAST_FREEDOM:
            return None
        chosen = {one.name: one for one in reg.chosen}
        held = Held(amplitude=None if "amplitude" in chosen else float(kernel.amplitude))
        dials = Dials(type(kernel))
        search = search_for(
            [sample], dials, held, given_noise="noise" not in chosen, hyperprior=True
        )
        theta = np.log([kernel.length_scale, kernel.amplitude, _noise_scale(reg)])
        used = chosen.get(
            "length scale",
            Chosen("length scale", float(kernel.length_scale), np.nan, np.nan, False),
        )
        scales = _scales(used, search.box[0])
        values = length_scale_profile([sample], dials, search, theta, scales)
    return EvidenceProfile(
        scales, values, used.value, used.low, used.high, used.decided, len(sample.positions)
    )


def _is_plain(kernel: AbstractProfile) -> bool:
    """Whether its family's name, length scale and amplitude say all of it: others may have been
    given with more.
    """
    try:
        return bool(type(kernel)(kernel.length_scale, kernel.amplitude) == kernel)
    except TypeError:
        return False


def _sample(reg: Registration) -> Sample:
    """The landmarks that were used, or some of very many, as the choice of the parameters saw them."""
    rows = np.flatnonzero(reg.used)
    if len(rows) > MOST_LANDMARKS:
        rows = np.sort(np.random.default_rng(0).permutation(rows)[:MOST_LANDMARKS])
    noise = reg.noise[rows] / _noise_scale(reg) ** 2
    free = any(one.name in ("noise", "noise factor") for one in reg.chosen)
    sides = noise, np.zeros_like(noise)
    return aligned_sample(
        reg.moving.points[rows], reg.fixed.points[rows], sides, reg.align, scaled=free
    ).sample


def _noise_scale(reg: Registration) -> float:
    """What the evidence chose to multiply the noise with: 1 where it had no choice."""
    return next((one.value for one in reg.chosen if one.name in ("noise", "noise factor")), 1.0)


def _scales(used: Chosen, box: np.ndarray) -> np.ndarray:
    """Length scales of a search, and beyond it if the one that was used is; that one is among them."""
    low, high = np.exp(box)
    count = NUM_SCALES if used.decided else NUM_SCALES + NUM_CLOSE
    wide = np.geomspace(min(used.value, low), max(used.value, high), count)
    if not used.decided:
        return np.unique([*wide, used.value])
    close = np.geomspace(
        used.low * (used.low / used.value) ** 0.5,
        used.high * (used.high / used.value) ** 0.5,
        NUM_CLOSE,
    )
    return np.unique([*wide, *np.clip(close, wide[0], wide[-1]), used.value])
