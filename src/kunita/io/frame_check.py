"""Do landmarks and image speak of the same space? A wrong flip of axes shows here, before it costs
anything.
"""

import numpy as np

from kunita.data.image import Grid
from kunita.data.landmarks import Landmarks
from kunita.errors import LandmarkError
from kunita.io.frames import Frame, flip_points
from kunita.io.landmark_files.table import STATED

TOUCHING = 1e-6

SUSPICIOUS = 0.2
"""From this share of landmarks outside on, the other frame is tried: it is the answer if it more
than halves them."""


def check_inside(
    landmarks: Landmarks, grid: Grid, side: str, image: str, frame: Frame, *, stated: str = ""
) -> str | None:
    """A remark that names the landmarks outside their image and how far, or None; refuse a frame
    that cannot be.

    It is refused where many landmarks are outside as read, and with x and y flipped fewer than half
    as many.

    Args:
        landmarks: in memory's frame.
        grid: that of the image.
        side: moving or fixed.
        image: what to call the image.
        frame: the frame that the landmarks were read as.
        stated: how it is known, as a LandmarkTable says: what a file states, no option overrules.
    """
    if grid.dimension != landmarks.dimension:
        raise LandmarkError(
            f"{side}: the landmarks are {landmarks.dimension}-D, the image {image} is {grid.dimension}-D"
        )
    distances = grid.distance_outside(landmarks.points)
    outside = np.flatnonzero(distances > TOUCHING)
    if not outside.size:
        return None
    n = len(landmarks)
    if len(outside) >= SUSPICIOUS * n and landmarks.dimension == 3:
        flipped = grid.distance_outside(flip_points(landmarks.points, Frame.LPS)) > TOUCHING
        if 2 * flipped.sum() < len(outside):
            other = Frame.RAS if frame is Frame.LPS else Frame.LPS
            raise LandmarkError(
                f"{side}: {len(outside)} of {n} landmarks lie outside {image} when read as {frame.value}, "
                f"{n - flipped.sum()} of {n} inside when read as {other.value}: these look like {other.value}; "
                f"if so, {_cure(side, frame, other, stated)}"
            )
    some = ", ".join(f"{landmarks.labels[i]} by {distances[i]:.1f} mm" for i in outside[:5])
    more = f" and {len(outside) - 5} more" if len(outside) > 5 else ""
    return f"{side}: {len(outside)} of {n} landmarks lie outside {image}: {some}{more}"


def _cure(side: str, frame: Frame, other: Frame, stated: str) -> str:
    """What to do about a wrong frame; columns are named after their axes in tables that Slicer
    exports.
    """
    if stated != STATED:
        return f"say --{side}-frame {other.value}"
    return f"correct the file, which states {frame.value}: its CoordinateSystem, or the names of its columns"
