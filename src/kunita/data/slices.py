"""Volumes of one slice: taken as planes, they no longer say which way they were stored."""

import math
from typing import Any

import numpy as np

from kunita.data.image import Grid
from kunita.errors import ImageError

LETTERS = ("RL", "AP", "SI")
"""Along each axis of the world, RAS+, and against it."""

DIRECTIONS = {
    "R": "right",
    "L": "left",
    "A": "front",
    "P": "back",
    "S": "head",
    "I": "feet",
}

ALIKE = math.cos(math.pi / 4)
"""Axes whose cosine is above this point the same way."""


def is_slice(grid: Grid) -> bool:
    """Whether a grid is a volume of one slice."""
    return grid.dimension == 3 and grid.shape[2] == 1


def axis_codes(grid: Grid) -> str:
    """Where each axis of a volume's voxels mostly points, such as RAS or LPS."""
    directions = grid.axes / grid.spacing
    strongest = np.argmax(np.abs(directions), axis=0)
    letters = [
        LETTERS[world][int(directions[world, axis] < 0)] for axis, world in enumerate(strongest)
    ]
    return "".join(letters)


def refuse_turned(image: Any, other: Any, name: str, other_name: str) -> None:
    """Refuse two slices that are stored in different ways: as planes, one would be mirrored.

    Args:
        image, other: images; what is no volume of one slice passes.
        name, other_name: what they are, such as "moving image".
    """
    if not (is_slice(image.grid) and is_slice(other.grid)):
        return
    found = axis_codes(image.grid)
    wanted = axis_codes(other.grid)
    if found[:2] == wanted[:2] or _points_alike(image.grid, other.grid):
        return
    raise ImageError(
        f"{name}: expected a slice that is stored as the {other_name} is, whose axes point to "
        f"{_told(wanted)}, found one whose axes point to {_told(found)}: as planes one of them "
        f"would be mirrored or turned; {_cure(found, wanted, name)}"
    )


def _points_alike(grid: Grid, other: Grid) -> bool:
    """Whether both axes of two slices point nearly the same way."""
    first = (grid.axes / grid.spacing)[:, :2]
    second = (other.axes / other.spacing)[:, :2]
    cosines = np.sum(first * second, axis=0)
    return bool(np.all(cosines > ALIKE))


def _told(codes: str) -> str:
    """The directions of a slice's own two axes."""
    return f"the {DIRECTIONS[codes[0]]} and the {DIRECTIONS[codes[1]]} ({codes[:2]})"


def _cure(found: str, wanted: str, name: str) -> str:
    if _worlds(found[:2]) == _worlds(wanted[:2]):
        side = name.partition(" ")[0]
        return f"store both alike, such as by SimpleITK.DICOMOrient({side}, {wanted!r})"
    return "they lie in different planes of the body; give two slices of the same plane"


def _worlds(codes: str) -> set[int]:
    """The axes of the world that letters stand for."""
    return {axis for axis, pair in enumerate(LETTERS) for code in codes if code in pair}
