"""A cohort that is generated, with a known truth."""

import dataclasses

import numpy as np

from kunita.data.case import Case
from kunita.errors import ArgumentError
from kunita.phantoms.brain_shift import BrainShift, MarkedBrain, brain_shift, marked_brain

COUNTS = (20, 37)
"""How many landmarks a generated case has, at least and at most: as in the paper."""

SHIFTS_MM = (4.0, 12.0)
"""How far the cortex of a generated case sinks, at least and at most."""

KEYS_PER_SEED = 1000
"""Heads that belong to one seed: cohorts of different seeds share none."""


def generated_cohort(
    num_cases: int = 12,
    seed: int = 0,
    *,
    counts: tuple[int, int] = COUNTS,
    image_spacing: float | None = None,
) -> tuple[Case, ...]:
    """Brain-shift cases with a known truth, the same for the same seed; each is one that
    `brain_shift` makes.

    Args:
        num_cases: how many; the landmarks of a case do not depend on it.
        seed: of the numbers of landmarks, the sizes of the shifts, and the heads.
        counts: the least and the largest number of landmarks.
        image_spacing: of the MRI, mm, of the case with the largest shift, the one to look at; the
            others have no images. Default: none has.
    """
    if not 1 <= num_cases <= KEYS_PER_SEED:
        raise ArgumentError(f"num_cases: expected from 1 to {KEYS_PER_SEED}, found {num_cases}")
    if not 0 < counts[0] <= counts[1]:
        raise ArgumentError(
            f"counts: expected a least and a largest number of landmarks, found {counts}"
        )
    keys = [KEYS_PER_SEED * seed + i for i in range(num_cases)]
    draws = [np.random.default_rng([key, 7]) for key in keys]
    shifts = [float(rng.uniform(*SHIFTS_MM)) for rng in draws]
    numbers = [int(rng.integers(counts[0], counts[1] + 1)) for rng in draws]
    largest, cases = int(np.argmax(shifts)), []
    for i, place in enumerate(zip(keys, shifts, numbers, strict=True)):
        if image_spacing is None or i != largest:
            cases.append(_case(f"generated-{i + 1:02d}", marked_brain(*place)))
        else:
            cases.append(_case(f"generated-{i + 1:02d}", brain_shift(*place, image_spacing)))
    return tuple(cases)


def _case(name: str, made: BrainShift | MarkedBrain) -> Case:
    case = Case(
        name, made.moving, made.fixed, true_moving=made.true_moving, true_fixed=made.true_fixed
    )
    if isinstance(made, MarkedBrain):
        return case
    names = ("MRI", "ultrasound")
    return dataclasses.replace(
        case, moving_image=made.moving_image, fixed_image=made.fixed_image, image_names=names
    )
