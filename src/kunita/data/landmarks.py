"""Landmarks: points with names and localisation covariances, and the matching of two sets."""

import collections
import dataclasses
import functools
import operator
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from kunita.data.directions import complement, directions_flaw, orthonormalised
from kunita.errors import LandmarkError

SYMMETRY = 1e-9
"""A covariance may be this far from symmetric, relative to its largest entry."""

FLATNESS = 1e-12
"""A covariance whose smallest eigenvalue is below this, relative to its largest
entry, is refused: its inverse would be lost in rounding."""


@dataclasses.dataclass(frozen=True, eq=False)
class Landmarks:
    """A set of points in one space.

    Args:
        points: (n, d), mm; d = 2 or 3. Kept as a NumPy array.
        names: n distinct, non-empty names, or None. Kept as a tuple, without the
            blanks around them, which no file keeps reliably: names that differ in
            nothing else are the same.
        covariances: (n, d, d) localisation covariances, mm², symmetric positive
            definite; or one variance, or (n,) of them, mm², the same along every
            axis; or None. Kept as (n, d, d).
        free: for each landmark a (k, d) array of independent directions along which
            it says nothing, k < d: one direction for a point on a line, two for a
            point on a surface. None or an empty array stands for a landmark that is
            fully known. Either a sequence of n of them, or a dictionary from rows
            or names to the directions. Kept as a tuple of n read-only arrays with
            orthonormal rows, or as None if every landmark is fully known. Of a
            covariance only the part along the known directions counts.
        undefined: distinct places (from 0) in the list that the landmarks come from
            that hold no point: listed, but never put down. They keep the places of
            the others when two sets are paired by order.
    """

    points: Any
    names: Any = None
    covariances: Any = None
    free: Any = None
    undefined: Any = dataclasses.field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        names = _as_names(self.names)
        points = _as_numbers(self.points, "points")
        _check_shape(points)
        _check_names(names, len(points))
        _check_finite(points, names)
        self._keep("points", points)
        self._keep("names", names)
        self._keep("undefined", _as_places(self.undefined, len(points)))
        # The labels that the following messages need are those of what has been kept so far.
        if self.covariances is not None:
            given = _as_numbers(self.covariances, "covariances")
            covariances = _full_covariances(given, *points.shape)
            check_covariances(covariances, points.shape, "covariances", self.labels)
            self._keep("covariances", covariances)
        if self.free is not None:
            self._keep("free", _as_free(self.free, self.labels, self.dimension))

    def _keep(self, field: str, value: Any) -> None:
        object.__setattr__(self, field, value)

    def __len__(self) -> int:
        return len(self.points)

    @property
    def dimension(self) -> int:
        return self.points.shape[1]

    @property
    def listed(self) -> int:
        """The number of landmarks in the list, undefined ones included."""
        return len(self.points) + len(self.undefined)

    @functools.cached_property
    def places(self) -> tuple[int, ...]:
        """The place of each landmark in its list, from 0."""
        listed = range(self.listed)
        return tuple(place for place in listed if place not in self.undefined)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names; where there are none, the places 1…n."""
        if self.names is not None:
            return self.names
        return tuple(str(place + 1) for place in self.places)

    @property
    def known(self) -> np.ndarray:
        """(n,) the number of directions along which each landmark says where it is, d − k."""
        known = np.full(len(self), self.dimension)
        if self.free is None:
            return known
        return known - [len(directions) for directions in self.free]

    def known_directions(self, row: int) -> np.ndarray:
        """(d − k, d) orthonormal directions along which a landmark says where it is.

        Together with its free directions they are a basis of the space; for a
        landmark that is fully known they are the coordinate axes.
        """
        if self.free is None:
            return np.eye(self.dimension)
        return complement(self.free[row])

    def take(self, index: Sequence[int] | np.ndarray) -> "Landmarks":
        """The landmarks at these rows."""
        rows = [int(i) for i in index]
        return Landmarks(
            self.points[rows],
            _entries(self.names, rows),
            None if self.covariances is None else self.covariances[rows],
            free=_entries(self.free, rows),
        )


@dataclasses.dataclass(frozen=True)
class NoLandmarks:
    """The side of a registration that images alone drive: no points, in so many dimensions."""

    dimension: int

    names: ClassVar[None] = None
    covariances: ClassVar[None] = None
    free: ClassVar[None] = None
    labels: ClassVar[tuple[str, ...]] = ()

    def __len__(self) -> int:
        return 0

    @property
    def points(self) -> np.ndarray:
        return np.zeros((0, self.dimension))

    @property
    def known(self) -> np.ndarray:
        return np.zeros(0, dtype=int)

    def known_directions(self, row: int) -> np.ndarray:
        """Of no landmark."""
        raise IndexError(f"row {row}: there are no landmarks")


def _entries(values: tuple[Any, ...] | None, rows: Sequence[int]) -> tuple[Any, ...] | None:
    """The entries at these rows, where there are any."""
    if values is None:
        return None
    return tuple(values[row] for row in rows)


# ---------------------------------------------------------------------------------------- matching


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
    """Pair two sets: by name where both have names, by order otherwise.

    Only the fixed landmarks may have free directions. A registration predicts where
    a moving point arrives and compares that with the fixed one along the directions
    that are known, so it has to know the moving point itself.
    """
    if moving.dimension != fixed.dimension:
        raise LandmarkError(
            f"mixed dimensions: the moving landmarks are {moving.dimension}-D, "
            f"the fixed ones {fixed.dimension}-D"
        )
    refuse_free(
        moving, " of the moving set", "directions that say nothing belong to the fixed side"
    )
    numbered_moving = _numbered(moving, opposite=fixed)
    numbered_fixed = _numbered(fixed, opposite=moving)
    if numbered_moving.names is None or numbered_fixed.names is None:
        return _match_by_order(numbered_moving, numbered_fixed)
    return _match_by_name(numbered_moving, numbered_fixed)


def refuse_free(landmarks: Landmarks, whose: str, reason: str) -> None:
    """Refuse landmarks with free directions where only fully known ones will do.

    Args:
        landmarks: those to look at.
        whose: what follows the label of a landmark in the message, such as " of the
            moving set".
        reason: why, or what to do instead.
    """
    for label, known in zip(landmarks.labels, landmarks.known, strict=True):
        if known < landmarks.dimension:
            raise LandmarkError(
                f"free: landmark {label!r}{whose} is known along {known} of "
                f"{landmarks.dimension} directions only; {reason}"
            )


def _numbered(landmarks: Landmarks, *, opposite: Landmarks) -> Landmarks:
    """Name landmarks by their places where the names of the other set are nothing but places.

    The other list may be shuffled or shortened, so that its order says nothing.
    """
    if landmarks.names is not None or opposite.names is None:
        return landmarks
    if not set(opposite.names) <= set(landmarks.labels):
        return landmarks
    return dataclasses.replace(landmarks, names=landmarks.labels, undefined=())


def _match_by_name(moving: Landmarks, fixed: Landmarks) -> Pairs:
    """Pair the landmarks that have the same name, in the order of the moving ones."""
    fixed_rows = {name: row for row, name in enumerate(fixed.names)}
    moving_rows = [row for row, name in enumerate(moving.names) if name in fixed_rows]
    if not moving_rows:
        raise LandmarkError(
            f"no common names: moving has {_some(moving.names)}, fixed has {_some(fixed.names)}; "
            "rename them, or give Landmarks no names to pair by order"
        )
    matching_rows = [fixed_rows[moving.names[row]] for row in moving_rows]
    lonely = sorted(set(moving.names) ^ set(fixed.names))
    return Pairs(moving.take(moving_rows), fixed.take(matching_rows), "name", tuple(lonely))


def _match_by_order(moving: Landmarks, fixed: Landmarks) -> Pairs:
    """Pair the landmarks that have the same place in their lists."""
    if moving.listed != fixed.listed:
        raise LandmarkError(
            f"unequal counts: {moving.listed} moving and {fixed.listed} fixed landmarks cannot be "
            "paired by order; give both sets names, or remove the landmarks without a partner"
        )
    common = sorted(set(moving.places) & set(fixed.places))
    if not common:
        raise LandmarkError(
            "no pair: at every place of the two lists one landmark or the other is undefined"
        )
    lonely = tuple(str(place + 1) for place in sorted(set(moving.places) ^ set(fixed.places)))
    # Once places are missing, the rows no longer tell them: the names have to.
    names = [str(place + 1) for place in common] if lonely else None
    kept_moving = dataclasses.replace(_at_places(moving, common), names=names)
    kept_fixed = dataclasses.replace(_at_places(fixed, common), names=names)
    return Pairs(kept_moving, kept_fixed, "order", lonely)


def _at_places(landmarks: Landmarks, places: Sequence[int]) -> Landmarks:
    row_at = {place: row for row, place in enumerate(landmarks.places)}
    rows = [row_at[place] for place in places]
    return landmarks.take(rows)


def _some(names: Sequence[str]) -> str:
    first = ", ".join(repr(name) for name in names[:3])
    if len(names) > 3:
        return f"{first}, …"
    return first


# ------------------------------------------------------------------------------------- covariances


def check_covariances(
    covariances: np.ndarray, shape: tuple[int, ...], what: str, labels: Sequence[str]
) -> None:
    """Refuse covariances that are not (n, d, d), symmetric and positive definite, by landmark."""
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
    if not np.allclose(covariance, covariance.T, atol=SYMMETRY * scale):
        return "not symmetric"
    smallest = np.linalg.eigvalsh(covariance)[0]
    if smallest > FLATNESS * scale:
        return None
    kind = "not positive definite" if smallest <= 0 else "too flat to compute with"
    return f"{kind} (its smallest eigenvalue is {smallest:.3g}, its largest entry {scale:.3g})"


def _full_covariances(variances: np.ndarray, n: int, d: int) -> np.ndarray:
    """One variance, or (n,) of them, as (n, d, d) covariances; anything else as it is."""
    if variances.shape not in ((), (n,)):
        return variances
    each = np.broadcast_to(variances, (n,))
    return each[:, None, None] * np.eye(d)


# --------------------------------------------------------------------------------- free directions


def _as_free(free: Any, labels: Sequence[str], d: int) -> tuple[np.ndarray, ...] | None:
    """Read-only orthonormal free directions of each landmark; None if no landmark has any."""
    listed = _by_row(free, labels)
    found = []
    for label, directions in zip(labels, listed, strict=True):
        found.append(_as_directions(directions, label, d))
    if not any(len(directions) for directions in found):
        return None
    return tuple(found)


def _by_row(free: Any, labels: Sequence[str]) -> list[Any]:
    """What was given for each landmark, None where nothing was."""
    if isinstance(free, Mapping):
        return _from_mapping(free, labels)
    try:
        listed = list(free)
    except TypeError as error:
        raise LandmarkError(
            f"free: expected directions for each landmark, found {free!r:.80}"
        ) from error
    if len(listed) != len(labels):
        raise LandmarkError(
            f"free: expected {len(labels)}, one per point, found {len(listed)}; "
            "undefined places are given by undefined="
        )
    return listed


def _from_mapping(free: Mapping[Any, Any], labels: Sequence[str]) -> list[Any]:
    listed: list[Any] = [None] * len(labels)
    for key, directions in free.items():
        row = _row_of(key, labels)
        if listed[row] is not None:
            raise LandmarkError(
                f"free: landmark {labels[row]!r} is there twice, by row and by name"
            )
        listed[row] = directions
    return listed


def _row_of(key: Any, labels: Sequence[str]) -> int:
    """The row of a landmark that is given by its name, or by its row."""
    if isinstance(key, str):
        key = key.strip()  # as names are
    if key in labels:
        return labels.index(key)
    try:
        row = operator.index(key)
    except TypeError:
        row = -1
    if not 0 <= row < len(labels):
        raise LandmarkError(
            f"free: expected names of landmarks or rows from 0 to {len(labels) - 1}, found {key!r}"
        )
    return row


def _as_directions(value: Any, label: str, d: int) -> np.ndarray:
    """The free directions of one landmark as (k, d) orthonormal rows that nobody can write to."""
    if value is None:
        value = np.empty((0, d))
    what = f"free: landmark {label!r}"
    directions = np.atleast_2d(_as_numbers(value, what))
    if directions.size == 0:
        directions = np.empty((0, d))
    _check_directions(directions, what, d)
    kept = orthonormalised(directions)
    kept.setflags(write=False)
    return kept


def _check_directions(directions: np.ndarray, what: str, d: int) -> None:
    """Refuse what is no set of fewer than d independent directions."""
    if directions.ndim != 2 or directions.shape[1] != d:
        raise LandmarkError(f"{what}: expected a (k, {d}) array, found shape {directions.shape}")
    if len(directions) >= d:
        raise LandmarkError(
            f"{what}: expected fewer than {d} directions, found {len(directions)}; "
            "a landmark that says nothing at all has to be left out"
        )
    flaw = directions_flaw(directions)
    if flaw is not None:
        raise LandmarkError(f"{what} has directions that are {flaw}: {directions.tolist()}")


def known_distances(landmarks: Landmarks | NoLandmarks, points: np.ndarray) -> np.ndarray:
    """(n,) distances of landmarks to (n, d) points along the directions that are known, mm."""
    misses = landmarks.points - points
    distances = np.linalg.norm(misses, axis=1)
    for row in _partial_rows(landmarks):
        known = landmarks.known_directions(row)
        distances[row] = np.linalg.norm(known @ misses[row])
    return distances


def known_variances(landmarks: Landmarks | NoLandmarks, covariances: np.ndarray) -> np.ndarray:
    """(n,) tr(BDBᵀ): the variances of (n, d, d) covariances along the known directions, mm²."""
    variances = np.trace(covariances, axis1=1, axis2=2)
    for row in _partial_rows(landmarks):
        known = landmarks.known_directions(row)
        along = known @ covariances[row] @ known.T
        variances[row] = np.trace(along)
    return variances


def _partial_rows(landmarks: Landmarks | NoLandmarks) -> list[int]:
    """The landmarks that have free directions."""
    is_partial = landmarks.known < landmarks.dimension
    return np.flatnonzero(is_partial).tolist()


# ----------------------------------------------------------------------- numbers, names and places


def _as_numbers(value: Any, what: str) -> np.ndarray:
    """A new array of doubles, with NaN in place of numbers that are masked."""
    try:
        if np.iscomplexobj(value):
            raise TypeError("complex")
        masked: np.ma.MaskedArray = np.ma.asarray(value, dtype=float)
        return np.array(np.ma.filled(masked, np.nan))
    except (TypeError, ValueError) as error:
        raise LandmarkError(
            f"{what}: expected real numbers in a regular array, found {value!r:.80}"
        ) from error


def _as_names(names: Any) -> tuple[str, ...] | None:
    if names is None:
        return None
    if isinstance(names, str):
        raise LandmarkError(f"names: expected one per point, found the single string {names!r}")
    if any(np.ndim(name) for name in names):
        raise LandmarkError(
            "names: expected strings, found arrays (covariances are the third argument)"
        )
    return tuple(str(name).strip() for name in names)


def _as_places(undefined: Any, n: int) -> tuple[int, ...]:
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
                f"undefined: expected places from 0 to {listed - 1}, {listed} being listed, "
                f"found {place}"
            )
    return places


def _check_shape(points: np.ndarray) -> None:
    if points.size == 0:
        raise LandmarkError("no landmarks: at least one is needed")
    if points.ndim != 2 or points.shape[1] not in (2, 3):
        raise LandmarkError(
            f"points: expected an (n, 2) or (n, 3) array, found shape {points.shape}"
        )


def _check_names(names: tuple[str, ...] | None, n: int) -> None:
    if names is None:
        return
    if len(names) != n:
        raise LandmarkError(f"names: expected {n}, one per point, found {len(names)}")
    if "" in names:
        raise LandmarkError(f"names: row {names.index('')} is empty; pass names=None instead")
    for name, count in collections.Counter(names).items():
        if count > 1:
            rows = [row for row, other in enumerate(names) if other == name]
            raise LandmarkError(
                f"names: {name!r} is used more than once (rows {rows}); names must be unique"
            )


def _check_finite(points: np.ndarray, names: tuple[str, ...] | None) -> None:
    bad = np.flatnonzero(~np.isfinite(points).all(axis=1))
    if not bad.size:
        return
    row = bad[0]
    label = str(row + 1) if names is None else names[row]
    raise LandmarkError(f"landmark {label!r} (row {row}) is not finite: {points[row].tolist()}")
