"""Landmarks: points with names and localisation covariances, and the matching of two sets."""

import collections
import dataclasses
import functools
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from kunita.errors import LandmarkError


@dataclasses.dataclass(frozen=True, eq=False)
class Landmarks:
    """A set of points in one space.

    Args:
        points: (n, d), mm; d = 2 or 3. Kept as a NumPy array.
        names: n distinct, non-empty names, or None. Kept as a tuple, without the blanks around
            them, which no file keeps reliably: names that differ in nothing else are the same.
        covariances: (n, d, d) localisation covariances, mm², symmetric positive definite; or one
            variance, or (n,) of them, mm², the same along every axis; or None. Kept as (n, d, d).
        undefined: distinct places (from 0) in the list that the landmarks come from that hold no
            point: listed, but never put down. They keep the places of the others when two sets are
            paired by order.
    """

    points: Any
    names: Any = None
    covariances: Any = None
    undefined: Any = ()

    def __post_init__(self) -> None:
        if isinstance(self.names, str):
            raise LandmarkError(
                f"names: expected one per point, found the single string {self.names!r}"
            )
        if self.names is not None and any(np.ndim(name) for name in self.names):
            raise LandmarkError(
                "names: expected strings, found arrays (covariances are the third argument)"
            )
        names = None if self.names is None else tuple(str(name).strip() for name in self.names)
        points = _numbers(self.points, "points")
        object.__setattr__(self, "points", points)
        object.__setattr__(self, "names", names)
        _check_points(points, names)
        object.__setattr__(self, "undefined", _places(self.undefined, len(points)))
        if self.covariances is not None:
            covariances = _full_covariances(
                _numbers(self.covariances, "covariances"), *points.shape
            )
            check_covariances(covariances, points.shape, "covariances", self.labels)
            object.__setattr__(self, "covariances", covariances)

    def __len__(self) -> int:
        return len(self.points)

    @property
    def dimension(self) -> int:
        return self.points.shape[1]

    @property
    def listed(self) -> int:
        """How many landmarks the list has, undefined ones included."""
        return len(self.points) + len(self.undefined)

    @functools.cached_property
    def places(self) -> tuple[int, ...]:
        """The place of each landmark in its list, from 0."""
        return tuple(place for place in range(self.listed) if place not in self.undefined)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names; where there are none, the places 1…n."""
        return (
            self.names if self.names is not None else tuple(str(place + 1) for place in self.places)
        )

    def take(self, index: Sequence[int] | np.ndarray) -> "Landmarks":
        """The landmarks at these rows."""
        rows = [int(i) for i in index]
        names = None if self.names is None else tuple(self.names[i] for i in rows)
        return Landmarks(
            self.points[rows], names, None if self.covariances is None else self.covariances[rows]
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Pairs:
    """Two landmark sets row by row, how they were matched, and the names that had no partner."""

    moving: Landmarks
    fixed: Landmarks
    pairing: str
    unmatched: tuple[str, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        return self.moving.labels


def match(moving: Landmarks, fixed: Landmarks) -> Pairs:
    """Pair two sets: by name where both have names, by order otherwise."""
    if moving.dimension != fixed.dimension:
        raise LandmarkError(
            f"mixed dimensions: the moving landmarks are {moving.dimension}-D, the fixed ones {fixed.dimension}-D"
        )
    moving, fixed = _numbered(moving, fixed), _numbered(fixed, moving)
    if moving.names is None or fixed.names is None:
        return _match_by_order(moving, fixed)
    rows = {name: i for i, name in enumerate(fixed.names)}
    common = [name for name in moving.names if name in rows]
    if not common:
        raise LandmarkError(
            f"no common names: moving has {_some(moving.names)}, fixed has {_some(fixed.names)}; "
            "rename them, or give Landmarks no names to pair by order"
        )
    kept = moving.take([i for i, name in enumerate(moving.names) if name in rows])
    lonely = tuple(sorted(set(moving.names) ^ set(fixed.names)))
    return Pairs(kept, fixed.take([rows[name] for name in common]), "name", lonely)


def _numbered(landmarks: Landmarks, other: Landmarks) -> Landmarks:
    """A set without names opposite one whose names are just numbers of its places, perhaps
    shuffled: then 1…n it is.
    """
    if (
        landmarks.names is None
        and other.names is not None
        and {*other.names} <= {*landmarks.labels}
    ):
        return dataclasses.replace(landmarks, names=landmarks.labels, undefined=())
    return landmarks


def _match_by_order(moving: Landmarks, fixed: Landmarks) -> Pairs:
    """Pair the landmarks that have the same place in their lists."""
    if moving.listed != fixed.listed:
        raise LandmarkError(
            f"unequal counts: {moving.listed} moving and {fixed.listed} fixed landmarks cannot be paired by order; "
            "give both sets names, or remove the landmarks without a partner"
        )
    common = sorted({*moving.places} & {*fixed.places})
    if not common:
        raise LandmarkError(
            "no pair: at every place of the two lists one landmark or the other is undefined"
        )
    lonely = tuple(str(place + 1) for place in sorted({*moving.places} ^ {*fixed.places}))
    names = [str(place + 1) for place in common] if lonely else None
    row = lambda side: {place: i for i, place in enumerate(side.places)}
    kept = lambda side: dataclasses.replace(
        side.take([*map(row(side).__getitem__, common)]), names=names
    )
    return Pairs(kept(moving), kept(fixed), "order", lonely)


def check_covariances(
    covariances: np.ndarray, shape: tuple[int, ...], what: str, labels: Sequence[str]
) -> None:
    """Refuse covariances that are not (n, d, d), symmetric and positive definite, naming the
    landmark.
    """
    expected = (*shape, shape[1])
    if covariances.shape != expected:
        raise LandmarkError(f"{what}: expected shape {expected}, found {covariances.shape}")
    for label, covariance in zip(labels, covariances, strict=True):
        flaw = covariance_flaw(covariance)
        if flaw is not None:
            raise LandmarkError(f"{what}: landmark {label!r} has a covariance that is {flaw}")


def covariance_flaw(covariance: np.ndarray) -> str | None:
    """Why a (d, d) matrix is no covariance to compute with, in whatever unit; None if it is one."""
    if not np.all(np.isfinite(covariance)):
        return "not finite"
    scale = np.abs(covariance).max()
    if not np.allclose(covariance, covariance.T, atol=1e-9 * scale):
        return "not symmetric"
    smallest = np.linalg.eigvalsh(covariance)[0]
    if smallest > 1e-12 * scale:
        return None
    kind = "not positive definite" if smallest <= 0 else "too flat to compute with"
    return f"{kind} (its smallest eigenvalue is {smallest:.3g}, its largest entry {scale:.3g})"


def _full_covariances(variances: np.ndarray, n: int, d: int) -> np.ndarray:
    """One variance, or (n,) of them, as (n, d, d) covariances; anything else as it is."""
    if variances.shape in ((), (n,)):
        return np.broadcast_to(variances, (n,))[:, None, None] * np.eye(d)
    return variances


def _numbers(value: Any, what: str) -> np.ndarray:
    try:
        if np.iscomplexobj(value):
            raise TypeError("complex")
        return np.array(
            np.ma.filled(np.ma.asarray(value, dtype=float), np.nan)
        )  # a masked number is not a number
    except (TypeError, ValueError) as error:
        raise LandmarkError(
            f"{what}: expected real numbers in a regular array, found {value!r:.80}"
        ) from error


def _places(undefined: Any, n: int) -> tuple[int, ...]:
    """The undefined places of a list that has n points at its other places, in order."""
    try:
        places = tuple(sorted(operator.index(place) for place in undefined))
    except TypeError as error:
        raise LandmarkError(
            f"undefined: expected whole numbers, found {undefined!r:.80}"
        ) from error
    listed = n + len(places)
    for place, count in collections.Counter(places).items():
        if count > 1:
            raise LandmarkError(f"undefined: expected distinct places, found {place} {count} times")
        if not 0 <= place < listed:
            raise LandmarkError(
                f"undefined: expected places from 0 to {listed - 1}, {listed} being listed, found {place}"
            )
    return places


def _check_points(points: np.ndarray, names: tuple[str, ...] | None) -> None:
    if points.size == 0:
        raise LandmarkError("no landmarks: at least one is needed")
    if points.ndim != 2 or points.shape[1] not in (2, 3):
        raise LandmarkError(
            f"points: expected an (n, 2) or (n, 3) array, found shape {points.shape}"
        )
    if names is not None:
        if len(names) != len(points):
            raise LandmarkError(f"names: expected {len(points)}, one per point, found {len(names)}")
        if "" in names:
            raise LandmarkError(f"names: row {names.index('')} is empty; pass names=None instead")
        twice = [name for name, count in collections.Counter(names).items() if count > 1]
        if twice:
            rows = [i for i, name in enumerate(names) if name == twice[0]]
            raise LandmarkError(
                f"names: {twice[0]!r} is used more than once (rows {rows}); names must be unique"
            )
    bad = np.flatnonzero(~np.isfinite(points).all(axis=1))
    if bad.size:
        label = str(bad[0] + 1) if names is None else names[bad[0]]
        raise LandmarkError(
            f"landmark {label!r} (row {bad[0]}) is not finite: {points[bad[0]].tolist()}"
        )


def _some(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names[:3]) + (", …" if len(names) > 3 else "")
