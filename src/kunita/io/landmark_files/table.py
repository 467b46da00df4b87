"""LandmarkTable: what one landmark file, or one volume of it, lists."""

import collections
import dataclasses
from typing import Any

import numpy as np

from kunita.data.landmarks import Landmarks, refuse_free
from kunita.errors import LandmarkError
from kunita.io.frames import Frame

STATED = "stated in the file"
DEFAULT = "the format's default"
GIVEN = "given"


@dataclasses.dataclass(frozen=True, eq=False)
class LandmarkTable:
    """The rows of a landmark file, the undefined ones and the remarks included, before they become
    `Landmarks`.

    Args:
        points: (n, d) in memory's frame: RAS+ mm in 3-D, IMAGE in 2-D. An undefined point is a row
            of NaN.
        names: n strings without blanks around them, empty or used twice where the file has them so;
            default all empty.
        covariances: (n, d, d) in memory's frame, mm², or None; not looked at where the point is
            undefined.
        descriptions: n strings; default all empty.
        frame: the frame of the file, which the points were in before they were flipped; default
            memory's.
        stated: how the frame is known: `STATED`, `DEFAULT` or `GIVEN`.
    """

    points: Any
    names: Any = None
    covariances: Any = None
    descriptions: Any = None
    frame: Any = None
    stated: str = GIVEN

    def __post_init__(self) -> None:
        points = _rows_of_points(self.points)
        frame = self.frame or (Frame.RAS if points.shape[1] == 3 else Frame.IMAGE)
        if frame.dimension != points.shape[1]:
            raise LandmarkError(
                f"frame: {frame.value} is {frame.dimension}-D, the points are {points.shape[1]}-D"
            )
        object.__setattr__(self, "points", points)
        object.__setattr__(self, "frame", frame)
        for field in ("names", "descriptions"):
            object.__setattr__(self, field, _strings(getattr(self, field), len(points), field))
        if self.covariances is not None:
            covariances = np.array(self.covariances, dtype=float)
            if covariances.shape != (*points.shape, points.shape[1]):
                expected = (*points.shape, points.shape[1])
                raise LandmarkError(
                    f"covariances: expected shape {expected}, found {covariances.shape}"
                )
            covariances[~self.defined] = np.nan
            object.__setattr__(self, "covariances", covariances)

    @classmethod
    def of(cls, landmarks: Landmarks) -> "LandmarkTable":
        """The list that these landmarks come from, with their undefined places empty."""
        refuse_free(landmarks, "", "no landmark file holds free directions: write them without")
        n, d, places = landmarks.listed, landmarks.dimension, list(landmarks.places)
        points, names, covariances = np.full((n, d), np.nan), [""] * n, np.full((n, d, d), np.nan)
        points[places] = landmarks.points
        for place, name in zip(places, landmarks.names or (), strict=landmarks.names is not None):
            names[place] = name
        if landmarks.covariances is None:
            return cls(points, names)
        covariances[places] = landmarks.covariances
        return cls(points, names, covariances)

    def __len__(self) -> int:
        return len(self.points)

    @property
    def dimension(self) -> int:
        return self.points.shape[1]

    @property
    def defined(self) -> np.ndarray:
        """(n,) which rows hold a point."""
        return ~np.isnan(self.points).any(axis=1)

    @property
    def names_problem(self) -> str | None:
        """Why the names cannot tell the defined points apart; None if they can."""
        named = [(row, self.names[row]) for row in np.flatnonzero(self.defined)]
        if not any(name for _, name in named):
            return "no row has a name"
        nameless = [row + 1 for row, name in named if not name]
        if nameless:
            return f"row {nameless[0]} has no name"
        twice = [
            name
            for name, count in collections.Counter(name for _, name in named).items()
            if count > 1
        ]
        return f"{twice[0]!r} twice" if twice else None

    def landmarks(self) -> Landmarks:
        """The defined points, with their names if these tell them apart; the places of the others
        are kept.
        """
        rows = np.flatnonzero(self.defined)
        if not rows.size:
            raise LandmarkError(f"no landmarks: each of the {len(self)} points listed is undefined")
        names = None if self.names_problem else tuple(self.names[row] for row in rows)
        covariances = None if self.covariances is None else self.covariances[rows]
        empty = np.flatnonzero(~self.defined)
        return Landmarks(self.points[rows], names, covariances, undefined=empty)


def _rows_of_points(value: Any) -> np.ndarray:
    points = np.array(value, dtype=float)
    if points.ndim != 2 or points.shape[1] not in (2, 3):
        raise LandmarkError(
            f"points: expected an (n, 2) or (n, 3) array, found shape {points.shape}"
        )
    missing = np.isnan(points)
    bad = np.flatnonzero(
        np.isinf(points).any(axis=1) | (missing.any(axis=1) & ~missing.all(axis=1))
    )
    if bad.size:
        raise LandmarkError(
            f"points: row {bad[0] + 1}: expected finite or only NaN, found {points[bad[0]].tolist()}"
        )
    return points


def _strings(value: Any, n: int, field: str) -> tuple[str, ...]:
    strings = ("",) * n if value is None else tuple(str(item).strip() for item in value)
    if len(strings) != n:
        raise LandmarkError(f"{field}: expected {n}, one per point, found {len(strings)}")
    return strings
