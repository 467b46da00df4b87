"""Volumes of one slice: taken as planes, they no longer say which way they were stored."""

import math
from typing import Any

import numpy as np

from kunita.data.image import (
    Grid,
    Image,
    as_grid,
    as_plane,
    axes_in_plane,
    is_slice,
    plane_of,
    slice_axis,
)
from kunita.errors import ArgumentError, ImageError

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


def grid_in(reference: Any, dimension: int, name: str = "reference") -> Grid:
    """The grid of an image, or the grid itself, for a registration in so many dimensions.

    A volume of one slice is a plane where the registration is one of planes.
    """
    grid = as_grid(reference, name)
    if dimension == 2:
        grid = plane_of(grid)
    if grid.dimension != dimension:
        also = " or a volume of one slice" if dimension == 2 else ""
        raise ArgumentError(
            f"{name}: expected a {dimension}-D grid{also}, as the registration is {dimension}-D, "
            f"found a {grid.dimension}-D one with the shape {grid.shape}"
        )
    return grid


def in_plane(image: Image, place: Grid, dimension: int, name: str) -> Image:
    """An image for a registration in so many dimensions: a slice as a plane, where it may be one.

    Args:
        image: to be carried.
        place: where it is carried to; a slice must be stored the same way.
        dimension: of the registration.
        name: of the image.
    """
    if dimension == 3:
        return image
    refuse_turned(image, place, name, "reference")
    return as_plane(image)


def on_slice(image: Image, place: Grid | None) -> Image:
    """What was made on the plane of a slice, on the slice itself, which lies somewhere in space.

    Args:
        image: on a plane.
        place: the grid of the slice; of anything else the image stays what it is.
    """
    if place is None or image.grid.dimension == 3 or not is_slice(place):
        return image
    thin = slice_axis(place)
    data = np.expand_dims(image.data, thin)
    return Image(data, place.affine, image.channels)


def axis_codes(grid: Grid) -> str:
    """Where each axis of a volume's voxels mostly points, such as RAS or LPS."""
    directions = grid.directions
    strongest = np.argmax(np.abs(directions), axis=0)
    letters = [
        LETTERS[world][int(directions[world, axis] < 0)] for axis, world in enumerate(strongest)
    ]
    return "".join(letters)


def refuse_turned(image: Any, other: Any, name: str, other_name: str) -> None:
    """Refuse two slices that are stored in different ways: as planes, one would be mirrored.

    Args:
        image, other: images or grids; what is no volume of one slice passes.
        name, other_name: what they are, such as "moving image".
    """
    slices = _both_slices(image, other)
    if slices is None:
        return
    grid, goal = slices
    found = _codes_in_plane(grid)
    wanted = _codes_in_plane(goal)
    cosines = _cosines(grid, goal)
    is_alike = found == wanted or np.all(np.diag(cosines) > ALIKE)
    if is_alike and np.linalg.det(cosines) > 0:
        return
    raise ImageError(
        f"{name}: expected a slice that is stored as the {other_name} is, whose axes point to "
        f"{_described(wanted)}, found one whose axes point to {_described(found)}: as planes one "
        f"of them would be mirrored or turned; {_cure(found, wanted, axis_codes(goal))}"
    )


def refuse_displaced(image: Any, other: Any, name: str, other_name: str) -> None:
    """Refuse a slice that begins elsewhere in its plane: as planes, both would begin at zero.

    Less than a voxel is allowed, since slices of one place may have voxels of different sizes.

    Args:
        image, other: images or grids; what is no volume of one slice passes.
        name, other_name: what they are, such as "labels".
    """
    slices = _both_slices(image, other)
    if slices is None:
        return
    grid, goal = slices
    steps = _directions_in_plane(goal)
    beside = (grid.origin - goal.origin) @ steps
    voxels = np.maximum(plane_of(grid).spacing, plane_of(goal).spacing)
    if np.any(np.abs(beside) >= voxels):
        raise ImageError(
            f"{name}: expected a slice that begins where the {other_name} begins, found one "
            f"{beside[0]:.3g} and {beside[1]:.3g} mm beside it along its axes: as planes both "
            f"would begin at zero; resample it with the {other_name} as reference"
        )


def _both_slices(image: Any, other: Any) -> tuple[Grid, Grid] | None:
    """The grids of two volumes of one slice; None if either is something else."""
    grid = as_grid(image)
    goal = as_grid(other)
    return (grid, goal) if is_slice(grid) and is_slice(goal) else None


def _cosines(grid: Grid, other: Grid) -> np.ndarray:
    """Between the two axes of either slice; the determinant is negative where one is mirrored."""
    return _directions_in_plane(grid).T @ _directions_in_plane(other)


def _directions_in_plane(grid: Grid) -> np.ndarray:
    """(3, 2) of a slice's own two axes."""
    return grid.directions[:, axes_in_plane(grid)]


def _codes_in_plane(grid: Grid) -> str:
    """Where a slice's own two axes mostly point, such as RA."""
    codes = axis_codes(grid)
    return "".join(codes[axis] for axis in axes_in_plane(grid))


def _described(codes: str) -> str:
    """The directions of a slice's own two axes."""
    return f"the {DIRECTIONS[codes[0]]} and the {DIRECTIONS[codes[1]]} ({codes})"


def _cure(found: str, wanted: str, whole: str) -> str:
    """What to do.

    Args:
        found, wanted: where the two axes of either slice point.
        whole: where all three axes of the slice point that is wanted.
    """
    if len(_worlds(whole)) < 3:  # oblique: no letters say how it is stored
        return "resample one on the grid of the other"
    if _worlds(found) == _worlds(wanted):
        return f"store both alike, for example by SimpleITK.DICOMOrient(image, {whole!r})"
    return "they lie in different planes of the body; give two slices of the same plane"


def _worlds(codes: str) -> set[int]:
    """The axes of the world that letters stand for."""
    return {axis for axis, pair in enumerate(LETTERS) for code in codes if code in pair}
