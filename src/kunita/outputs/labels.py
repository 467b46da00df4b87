"""Labels carried by a registration as probabilities: how sure is it that a fixed voxel belongs to
the label?
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from kunita.data.image import Image, as_grid
from kunita.data.slices import in_plane, on_slice
from kunita.errors import ImageError
from kunita.outputs.dense import Lattice, slabs
from kunita.outputs.maps import Maps, maps, warn
from kunita.outputs.warp import nearest
from kunita.record import Registration

NUM_DRAWS = 256
REACH = 4.0
"""Beyond this many standard deviations from any border, a voxel's label is certain."""

BATCH = 16384
MOST_LABELS = 64


def label_probability(reg: Registration, labels: Any, reference: Any) -> Image:
    """For each voxel of a fixed grid, the probability that it belongs to a label of the moving
    space.

    With a pre-image known up to N(x, C), C = J⁻¹ΛJ⁻ᵀ, that is P(y ∈ φ(A)) = ∫_A N(u; x, C) du
    (model, §6). One label gives one image; several give one channel each, in the order of their
    values (see `label_values`). Where planes were registered, labels and reference may be volumes
    of one slice, stored the same way.
    """
    if not isinstance(labels, Image):
        raise ImageError(
            f"labels: expected an Image (see read_image), found {type(labels).__name__}"
        )
    place = as_grid(reference)
    labels = in_plane(labels, place, reg.fixed.dimension, "labels")
    found = maps(reg, place)
    warn(found.remarks)
    data = np.concatenate(list(probability_slabs(found, labels)), axis=found.grid.dimension - 1)
    one = data.shape[-1] == 1
    probability = Image(data[..., 0] if one else data, found.grid.affine, channels=not one)
    return on_slice(probability, place)


def label_values(labels: Image) -> np.ndarray:
    """The values that mark labels: all but 0."""
    if labels.channels or (
        labels.data.dtype.kind not in "biu" and not np.all(labels.data == np.rint(labels.data))
    ):
        raise ImageError("labels: expected one whole number per voxel, found colours or fractions")
    values = np.unique(labels.data)
    values = values[values != 0]
    if not 0 < len(values) <= MOST_LABELS:
        raise ImageError(
            f"labels: expected 1 to {MOST_LABELS} values other than 0, found {len(values)}"
        )
    return values


def probability_slabs(found: Maps, labels: Image) -> Iterator[np.ndarray]:
    """The probabilities slab by slab, (…, number of labels), float32."""
    question = LabelQuestion(labels)
    for slab in slabs(found.grid):
        yield question.probability(found, slab)


class LabelQuestion:
    """How probable is each label where? Where any two labels meet is found once for each size of
    neighbourhood.
    """

    def __init__(self, labels: Image) -> None:
        self.labels, self.values = labels, label_values(labels)
        self.mixed: dict[int, Image] = {}

    def probability(self, found: Maps, lattice: Lattice) -> np.ndarray:
        """At the voxels of a lattice, (…, number of labels), float32."""
        if self.labels.grid.dimension != found.grid.dimension:
            raise ImageError(
                f"labels: expected {found.grid.dimension}-D, found {self.labels.grid.dimension}-D"
            )
        points, covariances = found.pull_back.origins(lattice), found.moving_covariances(lattice)
        here = nearest(self.labels, self.labels.grid.index(points))
        probability = (here[..., None] == self.values).astype(np.float32)
        near = self._near_border(points, covariances)
        probability[near] = _integrated(self.labels, self.values, points[near], covariances[near])
        return probability

    def _near_border(self, points: np.ndarray, covariances: np.ndarray) -> np.ndarray:
        """Whether two labels meet within reach of an uncertain point."""
        spread = np.sqrt(np.maximum(np.trace(covariances, axis1=-2, axis2=-1), 0))
        voxels = REACH * spread / self.labels.grid.spacing.min() + 1
        level = np.ceil(np.log2(np.clip(voxels, 1, max(self.labels.grid.shape)))).astype(int)
        index = self.labels.grid.index(points)
        near = np.zeros(level.shape, dtype=bool)
        for k in np.unique(level):
            near[level == k] = self._meets(2 ** int(k), index[level == k])
        return near

    def _meets(self, radius: int, index: np.ndarray) -> np.ndarray:
        """Whether a cube of this radius, in voxels, around these coordinates holds more than one
        label.

        A point outside of the image is moved to its border first, and its cube is that much larger
        in effect: the outside counts as background.
        """
        from scipy import ndimage  # takes long to import

        if radius not in self.mixed:
            data, size = self.labels.data, 2 * radius + 1
            lowest = ndimage.minimum_filter(data, size, mode="constant", cval=0)
            highest = ndimage.maximum_filter(data, size, mode="constant", cval=0)
            self.mixed[radius] = Image(highest != lowest, self.labels.affine)
        clipped = np.clip(index, 0, np.array(self.labels.grid.shape) - 1)
        return nearest(self.mixed[radius], clipped).astype(bool)


def _integrated(
    labels: Image, values: np.ndarray, points: np.ndarray, covariances: np.ndarray
) -> np.ndarray:
    """∫ over N(x, C) of each label's indicator, by quasi-random points, the same for all voxels:
    (m, labels).
    """
    normals = _normals(points.shape[1])
    probability = np.empty((len(points), len(values)), dtype=np.float32)
    for start in range(0, len(points), BATCH):
        part = slice(start, start + BATCH)
        variances, axes = np.linalg.eigh(covariances[part])
        roots = axes * np.sqrt(np.maximum(variances, 0))[:, None, :]
        draws = points[part, None] + np.einsum("mab,kb->mka", roots, normals)
        drawn = nearest(labels, labels.grid.index(draws))
        probability[part] = np.mean(drawn[..., None] == values, axis=1)
    return probability


def _normals(dimension: int) -> np.ndarray:
    """Quasi-random standard normals, each with its mirror image, so that their mean is zero."""
    from scipy import stats  # takes long to import

    uniform = stats.qmc.Sobol(dimension, rng=np.random.default_rng(0)).random(NUM_DRAWS // 2)
    normals = stats.norm.ppf(uniform)
    return np.concatenate([normals, -normals])
