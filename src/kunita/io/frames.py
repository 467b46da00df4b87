"""Frames, the flip between them, and nothing else: the only place where an axis changes its sign.

RAS   x grows to the right, y to the front, z to the head, mm: what Kunita holds in memory in 3-D.
NIfTI, MINC. LPS   x grows to the left, y to the back, z to the head, mm: ITK, ANTs, elastix, DICOM;
Slicer's files by default. IMAGE two dimensions, x right, y down, pixel index × spacing: what Kunita
holds in memory in 2-D. Nothing is flipped.
"""

import enum

import numpy as np

from kunita.errors import ArgumentError


class Frame(enum.Enum):
    """The axes that a file's numbers are along."""

    RAS = "RAS"
    LPS = "LPS"
    IMAGE = "IMAGE"

    @property
    def dimension(self) -> int:
        return 2 if self is Frame.IMAGE else 3

    @property
    def signs(self) -> np.ndarray:
        """What to multiply coordinates by on their way in, and on their way out."""
        return {
            Frame.RAS: np.ones(3),
            Frame.LPS: np.array([-1.0, -1.0, 1.0]),
            Frame.IMAGE: np.ones(2),
        }[self]


def as_frame(name: "str | Frame | None", what: str = "frame") -> Frame | None:
    """A frame by its name; None stays None."""
    if name is None or isinstance(name, Frame):
        return name
    if isinstance(name, str) and name.upper() in Frame.__members__:
        return Frame[name.upper()]
    raise ArgumentError(f"{what}: expected RAS, LPS or IMAGE, found {name!r}")


def flip_points(points: np.ndarray, frame: Frame) -> np.ndarray:
    """(…, d) points from a file's frame to memory's, or back: the flip is its own inverse."""
    return points * frame.signs


def flip_covariances(covariances: np.ndarray, frame: Frame) -> np.ndarray:
    """FΣF for (…, d, d): a covariance is flipped with its point."""
    return covariances * np.outer(frame.signs, frame.signs)


def flip_affine(affine: np.ndarray, frame: Frame) -> np.ndarray:
    """F·A for an affine from voxel index to world, (d + 1, d + 1)."""
    return np.diag(np.append(frame.signs, 1.0)) @ affine


def flip_map(affine: np.ndarray, frame: Frame) -> np.ndarray:
    """F·A·F for an affine from world to world, (d + 1, d + 1)."""
    flip = np.diag(np.append(frame.signs, 1.0))
    return flip @ affine @ flip
