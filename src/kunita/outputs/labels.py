"""Labels carried by a registration as probabilities: how sure is it that a fixed voxel belongs to the label?"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import ndimage, stats

from kunita.data.image import Image
from kunita.errors import ImageError
from kunita.outputs.dense import slabs
from kunita.outputs.maps import Maps, maps
from kunita.outputs.warp import nearest
from kunita.registration import Registration

NUM_DRAWS = 256
REACH = 4.0
"""Beyond this many standard deviations from any border, a voxel's label is certain."""

BATCH = 16384
MOST_LABELS = 64


def label_probability(reg: Registration, labels: Image, reference: Any) -> Image:
    """For each voxel of a fixed grid, the probability that it belongs to a label of the moving space.

    With a pre-image known up to N(x, C), C = J⁻¹ΛJ⁻ᵀ, that is P(y ∈ φ(A)) = ∫_A N(u; x, C) du (model, §6). One label
    gives one image; several give one channel each, in the order of their values (see `label_values`).
    """
    found = maps(reg, reference)
    data = np.concatenate(list(probability_slabs(found, labels)), axis=found.grid.dimension - 1)
    one = data.shape[-1] == 1
    return Image(data[..., 0] if one else data, found.grid.affine, channels=not one)


def label_values(labels: Image) -> np.ndarray:
    """The values that mark labels: all but 0."""
    if labels.channels or (labels.data.dtype.kind not in "biu" and not np.all(labels.data == np.rint(labels.data))):
        raise ImageError("labels: expected one whole number per voxel, found colours or fractions")
    values = np.unique(labels.data)
    values = values[values != 0]
    if not 0 < len(values) <= MOST_LABELS:
        raise ImageError(f"labels: expected 1 to {MOST_LABELS} values other than 0, found {len(values)}")
    return values


def probability_slabs(found: Maps, labels: Image) -> Iterator[np.ndarray]:
    """The probabilities slab by slab, (…, number of labels), float32."""
    values, near_border = label_values(labels), _BorderSearch(labels)
    if labels.grid.dimension != found.grid.dimension:
        raise ImageError(f"labels: expected {found.grid.dimension}-D, found {labels.grid.dimension}-D")
    for slab in slabs(found.grid):
        points = found.pull_back.origins(slab)
        covariances = found.moving_covariances(slab)
        here = nearest(labels, labels.grid.index(points))
        probability = (here[..., None] == values).astype(np.float32)
        open_question = near_border(points, covariances)
        probability[open_question] = _integrated(labels, values, points[open_question], covariances[open_question])
        yield probability


class _BorderSearch:
    """Whether any two labels meet within reach of an uncertain point: cubes of a few sizes, filtered once each."""

    def __init__(self, labels: Image) -> None:
        self.labels = labels
        self.mixed: dict[int, Image] = {}

    def __call__(self, points: np.ndarray, covariances: np.ndarray) -> np.ndarray:
        spread = np.sqrt(np.maximum(np.trace(covariances, axis1=-2, axis2=-1), 0))
        voxels = REACH * spread / self.labels.grid.spacing.min() + 1
        level = np.ceil(np.log2(np.clip(voxels, 1, max(self.labels.grid.shape)))).astype(int)
        index = self.labels.grid.index(points)
        found = np.zeros(level.shape, dtype=bool)
        for k in np.unique(level):
            found[level == k] = nearest(self._mixed(2 ** int(k)), index[level == k]).astype(bool)
        return found

    def _mixed(self, radius: int) -> Image:
        """Where a cube holds more than one label, the outside counting as background; on the padded grid."""
        if radius not in self.mixed:
            data, size = self.labels.data, 2 * radius + 1
            lowest = ndimage.minimum_filter(data, size, mode="constant", cval=0)
            highest = ndimage.maximum_filter(data, size, mode="constant", cval=0)
            self.mixed[radius] = Image(highest != lowest, self.labels.affine)
        return self.mixed[radius]


def _integrated(labels: Image, values: np.ndarray, points: np.ndarray, covariances: np.ndarray) -> np.ndarray:
    """∫ over N(x, C) of each label's indicator, by quasi-random points, the same for all voxels: (m, labels)."""
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
    uniform = stats.qmc.Sobol(dimension, rng=np.random.default_rng(0)).random(NUM_DRAWS // 2)
    normals = stats.norm.ppf(uniform)
    return np.concatenate([normals, -normals])
