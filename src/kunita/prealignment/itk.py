"""ITK's side of the search for an alignment: its images, its transforms, its optimiser.

To ITK the coordinates of the search are a world like any other: no axis is flipped.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import SimpleITK as sitk

from kunita.data.image import Image
from kunita.prealignment.options import Level, SearchOptions

Method = sitk.ImageRegistrationMethod

TRANSFORMS: dict[tuple[str, int], Callable[[], Any]] = {
    ("translation", 2): lambda: sitk.TranslationTransform(2),
    ("translation", 3): lambda: sitk.TranslationTransform(3),
    ("rigid", 2): sitk.Euler2DTransform,
    ("rigid", 3): sitk.Euler3DTransform,
    ("similarity", 2): sitk.Similarity2DTransform,
    ("similarity", 3): sitk.Similarity3DTransform,
    ("affine", 2): lambda: sitk.AffineTransform(2),
    ("affine", 3): lambda: sitk.AffineTransform(3),
}
"""ITK's transforms by the kind of alignment and the dimension."""


def climb(
    method: Method, moving: Image, fixed: Image, start: np.ndarray, kind: str
) -> tuple[np.ndarray, float] | None:
    """Maximise the mutual information from a start: a matrix and its mutual information in nats.

    None where nothing overlaps.
    """
    transform = as_transform(start, kind)
    method.SetInitialTransform(transform, inPlace=True)
    try:
        method.Execute(as_itk(fixed), as_itk(moving))
    except RuntimeError:  # ITK: no sample lies inside the moving image
        return None
    return matrix_of(transform), -method.GetMetricValue()


def method_at(
    num_voxels: int, length: float, level: Level, seed: int, options: SearchOptions
) -> Method:
    """ITK's search at a level.

    Args:
        num_voxels: of the fixed image.
        length: of a voxel, in the coordinates of the search.
        level: of the search.
        seed: of the choice of voxels.
        options: of the search.
    """
    share = min(1.0, level.samples / num_voxels)
    method = Method()
    method.SetNumberOfThreads(1)
    method.SetMetricAsMattesMutualInformation(options.bins)
    method.SetMetricSamplingStrategy(method.RANDOM)
    # To SimpleITK the seed 0 is the wall clock.
    method.SetMetricSamplingPercentage(share, 1 + seed % (2**31 - 1))
    method.MetricUseFixedImageGradientFilterOff()
    method.MetricUseMovingImageGradientFilterOff()
    method.SetInterpolator(sitk.sitkLinear)
    method.SetOptimizerAsRegularStepGradientDescent(
        learningRate=level.first_step * length,
        minStep=level.last_step * length,
        numberOfIterations=level.iterations,
        relaxationFactor=options.relaxation,
        gradientMagnitudeTolerance=1e-9,
    )
    return method


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Let ITK work on one thread, without a word.

    The method's own number of threads is not enough: parts of the metric go by the
    global one, and their sums then depend on which thread is first.
    """
    threads = sitk.ProcessObject.GetGlobalDefaultNumberOfThreads()
    shown = sitk.ProcessObject.GetGlobalWarningDisplay()
    sitk.ProcessObject.SetGlobalDefaultNumberOfThreads(1)
    sitk.ProcessObject.SetGlobalWarningDisplay(False)
    try:
        yield
    finally:
        sitk.ProcessObject.SetGlobalDefaultNumberOfThreads(threads)
        sitk.ProcessObject.SetGlobalWarningDisplay(shown)


def as_itk(image: Image) -> sitk.Image:
    """An image of ITK's; its world is ours."""
    affine = image.affine
    spacing = image.grid.spacing
    data = np.ascontiguousarray(image.data.T, dtype=np.float32)
    converted = sitk.GetImageFromArray(data)
    converted.SetOrigin(affine[:-1, -1].tolist())
    converted.SetSpacing(spacing.tolist())
    direction = affine[:-1, :-1] / spacing
    converted.SetDirection(direction.ravel().tolist())
    return converted


def matrix_of(transform: sitk.Transform) -> np.ndarray:
    """(d + 1, d + 1) of a linear transform: what it does to the origin and to the unit vectors."""
    d = transform.GetDimension()
    offset = np.array(transform.TransformPoint([0.0] * d))
    matrix = np.eye(d + 1)
    matrix[:d, d] = offset
    for axis, unit in enumerate(np.eye(d)):
        arrived = transform.TransformPoint(unit.tolist())
        matrix[:d, axis] = arrived - offset
    return matrix


def as_transform(matrix: np.ndarray, kind: str) -> sitk.Transform:
    """A transform of a kind, about the origin, which starts as a matrix."""
    d = len(matrix) - 1
    transform = TRANSFORMS[kind, d]()
    offset = matrix[:d, d].tolist()
    if kind == "translation":
        transform.SetOffset(offset)
    else:
        transform.SetMatrix(matrix[:d, :d].ravel().tolist())
        transform.SetTranslation(offset)
    return transform
