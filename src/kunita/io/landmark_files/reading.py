"""Reading: what the caller says about a landmark file, and how its numbers become points in
memory's frame.
"""

import dataclasses
from typing import Any

import numpy as np

from kunita.data.image import Grid, as_grid
from kunita.errors import ArgumentError, FileError
from kunita.io.frames import Frame, as_frame, flip_covariances, flip_points
from kunita.io.landmark_files.table import DEFAULT, GIVEN, STATED, LandmarkTable
from kunita.io.landmark_files.text import Line, Text

MILLIMETRES = {
    "mm": 1.0,
    "millimeter": 1.0,
    "millimetre": 1.0,
    "um": 1e-3,
    "µm": 1e-3,
    "μm": 1e-3,
    "micrometer": 1e-3,
}
"""The units that a file may state, both characters that look like a µ included."""


@dataclasses.dataclass(frozen=True, eq=False)
class Listed:
    """The rows of a file in the file's own axes and units; an undefined point is a row of NaN."""

    points: np.ndarray
    names: tuple[str, ...] | None = None
    covariances: np.ndarray | None = None
    descriptions: tuple[str, ...] | None = None

    def scaled(self, scale: Any) -> "Listed":
        """The same rows with each axis multiplied; covariances with the product of their two axes."""
        scale = np.broadcast_to(np.asarray(scale, dtype=float), self.points.shape[1:])
        with np.errstate(over="ignore"):  # the table refuses what is not finite
            covariances = (
                None if self.covariances is None else self.covariances * np.outer(scale, scale)
            )
            return dataclasses.replace(self, points=self.points * scale, covariances=covariances)

    def table(self, frame: Frame, stated: str) -> LandmarkTable:
        """The table that these rows are, once their axes are flipped to memory's."""
        covariances = (
            None if self.covariances is None else flip_covariances(self.covariances, frame)
        )
        return LandmarkTable(
            flip_points(self.points, frame),
            self.names,
            covariances,
            self.descriptions,
            frame,
            stated,
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Reading:
    """What the caller says where a file does not.

    Args:
        frame: the file's frame.
        spacing: mm per pixel or voxel: one number, or one per axis.
        image: an Image or a Grid that voxel indices refer to. Kept as a Grid.
        index_base: the index of the first voxel; default the format's.
        axis_order: the axes of the columns of an index file.
        flip: the axes along which indices count from the far end.
    """

    frame: Any = None
    spacing: Any = None
    image: Any = None
    index_base: int | None = None
    axis_order: str = "xyz"
    flip: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "frame", as_frame(self.frame))
        object.__setattr__(self, "image", None if self.image is None else as_grid(self.image))
        object.__setattr__(
            self, "spacing", None if self.spacing is None else _spacing(self.spacing)
        )
        if sorted(self.axis_order) not in (["x", "y"], ["x", "y", "z"]):
            raise ArgumentError(
                f"axis_order: expected the letters xyz or xy in some order, found {self.axis_order!r}"
            )
        if len(set(self.flip)) < len(self.flip) or not set(self.flip) <= set("xyz"):
            raise ArgumentError(
                f"flip: expected some of the letters x, y, z, each once, found {self.flip!r}"
            )

    def world(
        self,
        text: Text,
        listed: Listed,
        *,
        stated: Frame | None = None,
        default: Frame | None = None,
        calibrated: bool = False,
    ) -> LandmarkTable:
        """The table of a file whose numbers are along a frame's axes.

        Args:
            stated: the frame that the file states.
            default: the frame that the format's specification gives a file that states none.
            calibrated: whether the file says that its numbers are lengths already, not pixels.
        """
        self.refuse_index_options(text)
        frame, how = self._frame(text, listed.points.shape[1], stated, default)
        if self.spacing is None or (
            calibrated and frame is Frame.IMAGE
        ):  # lengths already: spacing is for pictures
            return listed.table(frame, how)
        if frame is not Frame.IMAGE:
            raise FileError(
                f"{text.path}: spacing is for pixels and voxel indices; this file's numbers are mm"
            )
        return listed.scaled(self._pixel(text, 2)).table(frame, how)

    def indexed(self, text: Text, listed: Listed, *, base: int) -> LandmarkTable:
        """The table of a file of voxel indices that count from `base` unless the caller says
        otherwise.
        """
        d = listed.points.shape[1]
        index = self._ordered(text, listed.points) - (
            base if self.index_base is None else self.index_base
        )
        if self.image is not None:
            grid = self.grid(text, d)
            world = dataclasses.replace(listed, points=grid.world(self._flipped(index, grid)))
            return world.table(Frame.RAS if d == 3 else Frame.IMAGE, GIVEN)
        if self.flip:
            raise FileError(
                f"{text.path}: flip={self.flip!r} needs the image (image=): its size is not in the file"
            )
        if self.spacing is None or self.frame is None:
            raise FileError(
                f"{text.path}: the file has voxel indices: give the image they refer to (image=), "
                "or --spacing and --frame (spacing=, frame=)"
            )
        frame, how = self._frame(text, d, None, None)
        return (
            dataclasses.replace(listed, points=index).scaled(self._pixel(text, d)).table(frame, how)
        )

    def refuse_index_options(self, text: Text) -> None:
        """Where there are no voxel indices, refuse what is said of them, rather than leave it
        unread.
        """
        if self.index_base is not None or self.axis_order not in ("xyz", "xy") or self.flip:
            raise FileError(
                f"{text.path}: index_base, axis_order and flip are for voxel indices; this file has points"
            )

    def grid(self, text: Text, d: int) -> Grid:
        """The image's grid, if it fits the file's dimension and the spacing that the caller gave."""
        if self.image.dimension != d:
            raise FileError(
                f"{text.path}: the file is {d}-D, the image that it refers to {self.image.dimension}-D"
            )
        if self.spacing is not None and not np.allclose(
            self._pixel(text, d), self.image.spacing, rtol=1e-3
        ):
            raise FileError(
                f"{text.path}: spacing is {self.spacing.tolist()}, but the image's is {self.image.spacing.tolist()}"
            )
        return self.image

    def _frame(
        self, text: Text, d: int, stated: Frame | None, default: Frame | None
    ) -> tuple[Frame, str]:
        if stated is not None and self.frame not in (None, stated):
            raise FileError(
                f"{text.path}: the file says {stated.value}, --frame (frame=) says {self.frame.value}"
            )
        known = ((stated, STATED), (self.frame, GIVEN), (default, DEFAULT))
        frame, how = next(((frame, how) for frame, how in known if frame is not None), (None, ""))
        if frame is None:
            choices = "RAS or --frame LPS" if d == 3 else "IMAGE"
            raise FileError(
                f"{text.path}: the frame is not stated: give --frame {choices} (frame=)"
            )
        if frame.dimension != d:
            raise FileError(
                f"{text.path}: {frame.value} ({how}) is {frame.dimension}-D, but the points are {d}-D"
            )
        return frame, how

    def _pixel(self, text: Text, d: int) -> np.ndarray:
        if self.spacing.size not in (1, d):
            raise FileError(
                f"{text.path}: spacing: expected one number or {d}, found {self.spacing.tolist()}"
            )
        return np.broadcast_to(self.spacing, (d,))

    def _ordered(self, text: Text, columns: np.ndarray) -> np.ndarray:
        axes = "xyz"[: columns.shape[1]]
        order = axes if self.axis_order == "xyz" else self.axis_order
        if len(order) != len(axes) or not set(self.flip) <= set(axes):
            asked = f"axis_order={self.axis_order!r}, flip={self.flip!r}"
            raise FileError(f"{text.path}: the file has {len(axes)} axes, which {asked} do not fit")
        return columns[:, [order.index(axis) for axis in axes]]

    def _flipped(self, index: np.ndarray, grid: Grid) -> np.ndarray:
        reverse = [axis in self.flip for axis in "xyz"[: grid.dimension]]
        return np.where(reverse, np.array(grid.shape) - 1 - index, index)


def frame_code(
    text: Text, line: Line | None, code: str, field: str = "the coordinate system"
) -> Frame:
    """A frame as files spell it: RAS, LPS, IMAGE, or Slicer's numbers."""
    codes = {
        "0": Frame.RAS,
        "RAS": Frame.RAS,
        "1": Frame.LPS,
        "LPS": Frame.LPS,
        "IMAGE": Frame.IMAGE,
    }
    if code.strip().upper() not in codes:
        raise text.refusal(line, f"{field} to be RAS (0), LPS (1) or IMAGE", code)
    return codes[code.strip().upper()]


def millimetres(text: Text, line: Line | None, unit: str, field: str = "the unit") -> float:
    """How many millimetres one of the file's units is."""
    if unit.strip().lower() not in MILLIMETRES:
        raise text.refusal(line, f"{field} to be mm or um", unit)
    return MILLIMETRES[unit.strip().lower()]


def _spacing(value: Any) -> np.ndarray:
    try:
        spacing = np.atleast_1d(np.array(value, dtype=float))
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"spacing: expected a number or one per axis, found {value!r:.80}"
        ) from error
    if spacing.ndim != 1 or not np.all(np.isfinite(spacing) & (spacing > 0)):
        raise ArgumentError(f"spacing: expected positive numbers, found {value!r:.80}")
    return spacing
