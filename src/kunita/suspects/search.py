"""The search for landmark pairs that cannot be right, among all landmarks or among neighbours."""

from collections.abc import Iterator

import numpy as np

from kunita.inference import trend
from kunita.suspects.grid import Noise
from kunita.suspects.model import MOST_NUMBERS, build_model
from kunita.suspects.outliers import find_outliers, misses_of
from kunita.suspects.pairing import PairingModel, better_order, listed_order
from kunita.suspects.point_sets import PointSets
from kunita.suspects.report import Suspicion

SUSPICION = 0.01
"""A landmark is suspect if one so far off is expected in fewer than this fraction
of registrations of this size."""

MOST_TOGETHER = 200
"""More landmarks than this are judged in groups of neighbours: those far away say little of one."""

GROUP = 100
"""The most landmarks in a group."""


def suspicion(
    moving: np.ndarray, fixed: np.ndarray, noise: np.ndarray, align: str, *, known: bool
) -> Suspicion:
    """Look for landmark pairs that cannot be right.

    Outliers are found by Rosner's generalised test: the worst landmark is taken out
    again and again; the last one that is worse than chance allows (the worst of
    those left, Šidák) and all that went before it are outliers, so that none hides
    behind another. Another pairing is judged by its Bayes factor against the given
    one, each averaged over its own likely hyper-parameters. The mean of that factor
    is 1 if the given pairing is right, so it exceeds 1/α with a probability of at
    most α.

    Args:
        moving, fixed: (n, d) pairs, mm.
        noise: (n, d, d) localisation covariances, mm², in fixed space.
        align: the kind of alignment.
        known: whether the noise is known (from files, say); else only its relative
            sizes are, and its level is estimated.
    """
    n, d = moving.shape
    sets = PointSets(moving, fixed, align)
    covariances = Noise(noise, known)
    if n > d and trend.looks_mirrored(moving, fixed):
        return Suspicion(sets.given_order, (), (), mirrored=True)
    if n <= MOST_TOGETHER:
        return _search_together(sets, covariances, SUSPICION, whole=True)
    order = listed_order(sets, covariances, SUSPICION)
    if np.any(order != sets.given_order):
        return Suspicion(order, (), (), mirrored=False)
    return _search_in_groups(sets, covariances)


def _search_together(sets: PointSets, noise: Noise, level: float, *, whole: bool) -> Suspicion:
    """Judge every landmark by all others.

    Args:
        sets: the landmarks.
        noise: theirs.
        level: the probability of an accusation that is allowed if all is right.
        whole: whether the landmarks are a whole list, and no group of neighbours in
            one.
    """
    # There are several groups to a list: each has a smaller grid.
    numbers = MOST_NUMBERS if whole else MOST_NUMBERS // 3
    model = build_model(sets, noise, numbers)
    if model is None:
        return Suspicion(sets.given_order, (), (), mirrored=False)
    order = better_order(PairingModel(sets, model), level, whole=whole)
    y = sets.displacements(order)
    outliers = find_outliers(model, y, level)
    misses = tuple(misses_of(model, y, outliers))
    return Suspicion(order, outliers, misses, mirrored=False)


def _search_in_groups(sets: PointSets, noise: Noise) -> Suspicion:
    """Judge every landmark by its neighbours.

    Labels that were exchanged over a long way are outliers here, one by one.
    """
    groups = list(split_into_groups(sets.moving))
    level = SUSPICION / len(groups)
    order = sets.given_order
    misses: dict[int, float] = {}
    for rows in groups:
        part = _search_together(sets.take(rows), noise.take(rows), level, whole=False)
        found = part.spread(rows, len(sets))
        order[rows] = found.order[rows]
        misses.update(zip(found.outliers, found.misses_mm, strict=True))
    worst_first = sorted(misses, key=lambda row: -misses[row])
    distances = tuple(misses[row] for row in worst_first)
    return Suspicion(order, tuple(worst_first), distances, mirrored=False)


def split_into_groups(points: np.ndarray) -> Iterator[np.ndarray]:
    """Rows of neighbours, in groups of about equal size.

    Groups are halved across their longest side until they are small enough.
    """
    waiting = [np.arange(len(points))]
    while waiting:
        rows = waiting.pop()
        if len(rows) <= GROUP:
            yield np.sort(rows)
            continue
        longest = np.argmax(np.ptp(points[rows], axis=0))
        along = rows[np.argsort(points[rows, longest])]
        middle = len(rows) // 2
        waiting += [along[:middle], along[middle:]]
