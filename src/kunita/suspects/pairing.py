"""Other orders of the fixed landmarks that explain the pairs better than the given one."""

import dataclasses
import functools
import itertools
from collections.abc import Iterator

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.special import gammaln

from kunita.inference import trend
from kunita.suspects.grid import Noise
from kunita.suspects.model import GridModel, build_model, sample_rows
from kunita.suspects.outliers import MOST_OUTLIERS
from kunita.suspects.point_sets import PointSets, squared_distances

NEAR_SHIFTS = 3
"""How far a long list may have slipped."""

ROUNDS = 12
"""Rounds of assigning and aligning at most."""


@dataclasses.dataclass(frozen=True, eq=False)
class PairingModel:
    """How well each order of the fixed landmarks explains the two sets."""

    sets: PointSets
    model: GridModel

    def log_evidence(self, order: np.ndarray) -> float:
        """log p(y | order)."""
        key = order.tobytes()
        if key not in self._log_evidences:
            y = self.sets.displacements(order)
            self._log_evidences[key] = self.model.log_evidence(y)
        return self._log_evidences[key]

    @functools.cached_property
    def _log_evidences(self) -> dict[bytes, float]:
        """Results by order: the search asks for those of a few orders again and again."""
        return {}

    def worth(self, order: np.ndarray) -> float:
        """log p(y | order) + log p(order)."""
        return self.log_evidence(order) - surprise(order)


def better_order(pairing: PairingModel, level: float, *, whole: bool) -> np.ndarray:
    """The order that explains the pairs far better than the given one; the given one if none does.

    Args:
        pairing: the sets and their model.
        level: the Bayes factor against the given order has to exceed 1/level.
        whole: whether the landmarks are a whole list. Of a group of neighbours only
            exchanges are tried.
    """
    given = pairing.sets.given_order
    starts = [given]
    if whole:
        starts += _better_starts(pairing)
    found = [_exchange(pairing, start, level) for start in starts]
    best = max(found, key=pairing.worth)
    if pairing.worth(best) <= pairing.worth(given) - np.log(level):
        return given
    return _without_outliers(pairing, best)


def listed_order(sets: PointSets, noise: Noise, level: float) -> np.ndarray:
    """The order of a long list that is reversed or has slipped as a whole; else the given one.

    A sample of its landmarks decides.
    """
    rows = sets.given_order
    few = sample_rows(len(rows))
    model = build_model(sets.take(few), noise.take(few))
    if model is None:
        return rows
    orders = list(_list_orders(rows))
    worths = []
    for order in orders:
        y = sets.displacements(order)[few]
        worths.append(model.log_evidence(y) - surprise(order))
    best = int(np.argmax(worths))
    # The first is the given order.
    return orders[best] if worths[best] > worths[0] - np.log(level) else rows


def _list_orders(rows: np.ndarray) -> Iterator[np.ndarray]:
    """The given order, the reversed one, and small shifts."""
    yield rows
    yield rows[::-1]
    for shift in (*range(1, NEAR_SHIFTS + 1), *range(-NEAR_SHIFTS, 0)):
        yield np.roll(rows, -shift)


# ----------------------------------------------------------------------------- orders in general


def describe_list(order: np.ndarray) -> str:
    """How a list as a whole is out of order, if it is reversed or shifted; else an empty string."""
    n = len(order)
    rows = np.arange(n)
    if n < 3 or np.array_equal(order, rows):
        return ""
    if np.array_equal(order, rows[::-1]):
        return "in reverse order"
    first = int(order[0])
    if np.array_equal(order, (rows + first) % n):
        return f"shifted by {min(first, n - first)}"
    return ""


def surprise(order: np.ndarray) -> float:
    """−log of the prior probability of an order, relative to that of the given one.

    A reversal or a shift is as likely as all other wrong orders together.
    """
    n = len(order)
    if describe_list(order):
        return float(np.log(2 * n))
    return _log_count(n, count_moved(order))


def count_moved(order: np.ndarray) -> int:
    """The number of rows that are out of order."""
    rows = np.arange(len(order))
    return int(np.sum(order != rows))


def _log_count(n: int, moved: int) -> float:
    """log of the number of orders that move k of n things, C(n, k)·k!/e, times 2ᵏ.

    By the factor 2ᵏ, all orders together have at most the weight ½.
    """
    if moved < 2:
        return 0.0
    log_orders = gammaln(n + 1) - gammaln(n - moved + 1) - 1
    return float(log_orders + moved * np.log(2))


def cycles(order: np.ndarray) -> Iterator[tuple[int, ...]]:
    """The groups of rows that exchange their fixed landmarks among each other."""
    seen: set[int] = set()
    for first in np.flatnonzero(order != np.arange(len(order))):
        cycle = []
        row = int(first)
        while row not in seen:
            seen.add(row)
            cycle.append(row)
            row = int(order[row])
        if cycle:
            yield tuple(cycle)


def _undo(order: np.ndarray, cycle: tuple[int, ...]) -> np.ndarray:
    """The order with these rows back at their own places."""
    rows = np.arange(len(order))
    undone = np.isin(rows, cycle)
    return np.where(undone, rows, order)


# ------------------------------------------------------------------------------------- exchanges


def _exchange(pairing: PairingModel, order: np.ndarray, level: float) -> np.ndarray:
    """Exchange the two fixed landmarks that gain most, as long as any exchange is worth it."""
    n = len(order)
    costs = np.array([_log_count(n, moved) for moved in range(n + 1)])
    for _ in range(n):
        worth = pairing.log_evidence(order) - costs[count_moved(order)]
        worths = _exchange_worths(pairing, order, costs, level)
        best = np.argmax(worths)
        if worths.flat[best] <= worth:
            break
        i, j = np.unravel_index(best, worths.shape)
        order = order.copy()
        order[[i, j]] = order[[j, i]]
    return order


def _exchange_worths(
    pairing: PairingModel, order: np.ndarray, costs: np.ndarray, level: float
) -> np.ndarray:
    """(n, n) the worth of an order after each exchange.

    An exchange that takes more pairs out of their order has to be convincing by
    itself, and cannot ride along with others: it pays for the level.
    """
    places = pairing.sets.turned_back(order)
    y = pairing.sets.displacements(order)
    after = _count_moved_after_exchange(order)
    worths = pairing.model.swapped_log_evidence(y, places) - costs[after]
    worths += np.log(level) * (after > count_moved(order))
    # To exchange a landmark with itself is no exchange.
    np.fill_diagonal(worths, -np.inf)
    return worths


def _count_moved_after_exchange(order: np.ndarray) -> np.ndarray:
    """(n, n) the number of rows that are out of order after each exchange."""
    rows = np.arange(len(order))
    moved = order != rows
    # Whether row i is out of order with the fixed landmark of row j.
    crossed = order[None, :] != rows[:, None]
    others = moved.sum() - moved[:, None] - moved[None]
    return others + crossed + crossed.T


def _without_outliers(pairing: PairingModel, order: np.ndarray) -> np.ndarray:
    """The order without those exchanges that outliers explain better."""
    for cycle in cycles(order):
        if not describe_list(order) and _outliers_explain(pairing, order, cycle):
            order = _undo(order, cycle)
    return order


def _outliers_explain(pairing: PairingModel, order: np.ndarray, cycle: tuple[int, ...]) -> bool:
    """Whether outliers are a likelier explanation than that these landmarks are exchanged.

    Either one of them or all of them may lie anywhere. A landmark that lies
    anywhere has the density 1/V, V the volume that the landmarks span, and is one
    of n.
    """
    sets = pairing.sets
    n, d = sets.moving.shape
    undone = _undo(order, cycle)
    y = sets.displacements(undone)
    price = d * np.log(sets.rms_diameter) + np.log(n)
    exchanged = pairing.worth(order)
    for gone in _possible_outliers(cycle, n):
        rest = pairing.model.without_all(gone)
        if rest is None:
            continue
        worth = rest.log_evidence(y) - surprise(undone) - len(gone) * price
        if worth > exchanged:
            return True
    return False


def _possible_outliers(cycle: tuple[int, ...], n: int) -> Iterator[tuple[int, ...]]:
    """Each landmark of a cycle, then all of them if they are not too many."""
    for i in cycle:
        yield (i,)
    if len(cycle) <= MOST_OUTLIERS * n:
        yield cycle


# -------------------------------------------------------------------------- orders to start from


def _better_starts(pairing: PairingModel) -> list[np.ndarray]:
    """Other orders that are worth more than the given one."""
    threshold = pairing.worth(pairing.sets.given_order)
    others = _other_orders(pairing.sets)
    return [order for order in others if pairing.worth(order) > threshold]


def _other_orders(sets: PointSets) -> Iterator[np.ndarray]:
    """Orders worth a try: the best reversed or shifted list, and the nearest landmarks."""
    nearest = np.array(list(_nearest_orders(sets)))
    for orders in (_reversed_and_shifted(sets.given_order), nearest):
        remainders = sets.remainders(orders)
        yield orders[np.argmin(remainders)]


def _reversed_and_shifted(rows: np.ndarray) -> np.ndarray:
    """(n, n) the reversed list, then all shifted ones."""
    shifts = rows[1:, None]
    shifted = (rows + shifts) % len(rows)
    return np.concatenate([rows[None, ::-1], shifted])


def _nearest_orders(sets: PointSets) -> Iterator[np.ndarray]:
    """Assign each moving landmark a fixed one, align, assign again: from several starts."""
    kind = sets.align
    if sets.rotates:
        kind = "similarity" if sets.scales else "rigid"
    for costs in _first_costs(sets):
        order = _assign(costs)
        for _ in range(ROUNDS):
            again = _assign_aligned(sets, kind, order)
            if np.array_equal(again, order):
                break
            order = again
        yield order


def _assign(costs: np.ndarray) -> np.ndarray:
    """The order of the lowest total cost."""
    return linear_sum_assignment(costs)[1]


def _assign_aligned(sets: PointSets, kind: str, order: np.ndarray) -> np.ndarray:
    """The nearest fixed landmarks after the alignment that an order suggests."""
    weights = np.ones(len(sets))
    alignment = trend.procrustes(kind, sets.moving, sets.fixed[order], weights)
    aligned = np.asarray(alignment(sets.moving))
    return _assign(squared_distances(aligned, sets.fixed))


def _first_costs(sets: PointSets) -> Iterator[np.ndarray]:
    """(n, n) how unlike a moving and a fixed landmark are, in several ways.

    As the sets lie, centred, turned, and by their distances to the others.
    """
    yield squared_distances(sets.moving, sets.fixed)
    x = sets.moving - sets.moving.mean(axis=0)
    f = sets.fixed - sets.fixed.mean(axis=0)
    if sets.scales:
        size = float(np.linalg.norm(x)) or 1.0
        x = x * (float(np.linalg.norm(f)) / size)
    yield squared_distances(x, f)
    if not sets.rotates:
        return
    for rotation in _principal_rotations(x, f):
        yield squared_distances(x @ rotation.T, f)
    # How far the others are does not depend on any alignment.
    yield squared_distances(_sorted_distances(x), _sorted_distances(f))


def _principal_rotations(x: np.ndarray, f: np.ndarray) -> Iterator[np.ndarray]:
    """The rotations that take the principal axes of centred points to those of others."""
    u = _principal_axes(x)
    v = _principal_axes(f)
    for signs in itertools.product((-1, 1), repeat=x.shape[1]):
        rotation = (v * signs) @ u.T
        if np.linalg.det(rotation) > 0:
            yield rotation


def _principal_axes(points: np.ndarray) -> np.ndarray:
    """(d, d) the axes of centred points, in columns, the longest last."""
    _, axes = np.linalg.eigh(points.T @ points)
    return axes


def _sorted_distances(points: np.ndarray) -> np.ndarray:
    """(n, n) distances from each point to all points, the nearest first."""
    distances = np.sqrt(squared_distances(points, points))
    return np.sort(distances, axis=1)
