"""A cohort that several files look at."""

import functools

import numpy as np

from kunita.data.case import Case
from kunita.data.landmarks import Landmarks
from problems import gp_displaced

NUM_LANDMARKS = 12
ERROR_MM = 0.7
"""Of every coordinate on the fixed side; the landmarks come without covariances."""


@functools.cache
def three_cases():
    """Three heads with twelve landmarks each, displaced smoothly by some millimetres: what
    `generated_cohort` makes is more like a brain, and takes seconds."""
    return tuple(_case(k) for k in range(3))


def _case(k):
    moving, fixed = gp_displaced(NUM_LANDMARKS, k, length_scale=40.0, side=120.0, rms=5.0)
    errors = np.random.default_rng(k).normal(0, ERROR_MM, fixed.shape)
    names = tuple(f"mark {i + 1}" for i in range(NUM_LANDMARKS))
    return Case(f"case-{k + 1:02d}", Landmarks(moving, names), Landmarks(fixed + errors, names))
