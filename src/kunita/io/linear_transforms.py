"""ITK's transform files, and their linear part as a matrix."""

import functools
import os
from collections.abc import Iterator

import numpy as np
import SimpleITK as sitk

from kunita.errors import FileError
from kunita.io import frames
from kunita.io.frames import Frame
from kunita.prealignment.itk import matrix_of

LARGEST_CONDITION = 1e9
"""A matrix with a larger condition number has no inverse to speak of."""


def read_linear_part(path: str | os.PathLike) -> np.ndarray:
    """(d + 1, d + 1) from moving to fixed world: the linear part of an ITK transform file.

    The file is one that warps moving images onto fixed, as `forward_xfm` does: a map of
    points from fixed to moving space, in LPS in 3-D. The linear transforms of a
    composite are multiplied; its displacement fields are left out.

    Args:
        path: .mat, .txt, .tfm, .h5, or any other that SimpleITK reads.
    """
    transform = read_transform(path)
    to_moving = stored_linear_part(transform)
    if to_moving is None:
        raise FileError(
            f"{path}: expected a linear transform, or a composite that has one, "
            f"found {transform.GetName()}"
        )
    return _inverse_in_memory(path, to_moving)


def read_transform(path: str | os.PathLike) -> sitk.Transform:
    """The transform that a file holds, whatever its kind."""
    if not os.path.isfile(path):
        raise FileError(f"{path}: no such file")
    try:
        return sitk.ReadTransform(os.fspath(path))
    except RuntimeError as error:  # ITK's word for anything that is wrong with a file
        raise FileError(f"{path}: not an ITK transform that can be read") from error


def stored_linear_part(transform: sitk.Transform) -> np.ndarray | None:
    """(d + 1, d + 1) of all linear parts together, between points as the file has them.

    None where it has no linear part.
    """
    matrices = [matrix_of(part) for part in _parts(transform) if part.IsLinear()]
    return functools.reduce(np.matmul, matrices) if matrices else None


def _parts(transform: sitk.Transform) -> Iterator[sitk.Transform]:
    """The transform itself, or those of a composite, of which the last is applied first."""
    if transform.GetTransformEnum() != sitk.sitkComposite:
        yield transform
        return
    composite = sitk.CompositeTransform(transform)
    for number in range(composite.GetNumberOfTransforms()):
        yield from _parts(composite.GetNthTransform(number))


def _inverse_in_memory(path: str | os.PathLike, to_moving: np.ndarray) -> np.ndarray:
    """The inverse of a map between points of ITK's files, in memory's frame."""
    d = len(to_moving) - 1
    frame = Frame.IMAGE if d == 2 else Frame.LPS
    condition = np.linalg.cond(to_moving[:d, :d])
    if not condition < LARGEST_CONDITION:
        raise FileError(f"{path}: expected a transform that has an inverse, found a singular one")
    return frames.flip_map(np.linalg.inv(to_moving), frame)
