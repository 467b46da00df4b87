"""Probabilities of labels from a registration, and how good they are.

A registration says where each voxel of the fixed slice comes from. Looking the moving labels up
there gives one label, and no doubt. There are two ways to probabilities:

- The warp with a constant blur: the moving labels as maps of zeros and ones, blurred by a Gaussian
  of one width everywhere, are interpolated at the positions. Any registration can have that.
- Draws from the posterior: each draw looks the labels up with a fixed small blur, for the voxels at
  a boundary that hold two tissues, and the probability is the mean over the draws.

Let φ be the mean map from moving to fixed space, x = φ⁻¹(y) where a voxel y comes from, and J the
Jacobian of φ at x. In draw s, points near x arrive at φ(·) + u_s(·). So y comes, to first order in
u, from

    x_s = x − J⁻¹ u_s(x),    u_s(x) = sample_s(x) − φ(x).

This is the same approximation as that of `posterior.inverse`.

Scores, over the voxels of the brain (where the fixed slice is positive, and one voxel around it):

- NLL, the mean of −log p of the true label, p at least 0.005.
- Brier score, the mean of Σ (p_k − [k is true])² over the labels k.
- ECE, the expected calibration error of the most probable label: ten bins of equal width by its
  probability; the mean over voxels of |share that is right − mean probability| of their bin.
"""

import dataclasses
from typing import Any

import numpy as np
from image_data import Subject
from scipy import ndimage

NUM_LABELS = 25
PARTIAL_VOLUME_PX = 0.7
FLOOR = 0.005
BINS = 10
BLURS_PX = (0.0, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0)
"""Constant blurs that are tried; the best for each score on the tuning pairs is taken."""

SCORES = ("nll", "brier", "ece")


@dataclasses.dataclass(frozen=True, eq=False)
class Truth:
    """What probabilities are compared with.

    Args:
        voxels: (m, d) of the brain, in the fixed slice.
        labels: (m,) theirs.
    """

    voxels: np.ndarray
    labels: np.ndarray

    @classmethod
    def of(cls, fixed: Subject) -> "Truth":
        """The voxels of the brain of the fixed slice."""
        brain = ndimage.binary_dilation(fixed.values > 0)
        return cls(np.argwhere(brain), fixed.labels[brain])


def one_hot(labels: np.ndarray, blur: float) -> np.ndarray:
    """(k, *shape) a map for each label, blurred by a Gaussian of so many voxels."""
    maps = np.stack([labels == label for label in range(NUM_LABELS)]).astype(np.float32)
    if not blur:
        return maps
    widths = (0.0, *[blur] * labels.ndim)
    return ndimage.gaussian_filter(maps, widths, mode="nearest")


def interpolated(maps: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """(m, k) maps at positions in voxels, (m, d), linearly; the edge's beyond the image."""
    columns = [ndimage.map_coordinates(one, positions.T, order=1, mode="nearest") for one in maps]
    return np.stack(columns, axis=1)


def of_blurred_warp(labels: np.ndarray, positions: np.ndarray, blur: float) -> np.ndarray:
    """(m, k) probabilities of a warp with a constant blur."""
    return interpolated(one_hot(labels, blur), positions)


def of_draws(labels: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """(m, k) probabilities from (s, m, d) draws of where voxels come from."""
    maps = one_hot(labels, PARTIAL_VOLUME_PX)
    total = np.zeros((draws.shape[1], NUM_LABELS))
    for positions in draws:
        total += interpolated(maps, positions)
    return total / len(draws)


def drawn_origins(posterior: Any, voxels: np.ndarray, num_draws: int, key: int) -> np.ndarray:
    """(s, m, d) draws of where fixed points come from: x − J⁻¹u(x)."""
    origins = posterior.move_back(voxels)
    jacobians = posterior.jacobian(origins)
    deviations = posterior.sample(origins, num_draws, key=key) - posterior.move(origins)
    back = np.linalg.solve(jacobians, np.moveaxis(deviations, 0, -1))
    return origins - np.moveaxis(back, -1, 0)


def score(probabilities: np.ndarray, true: np.ndarray) -> dict[str, Any]:
    """How good (m, k) probabilities are for (m,) labels, with what a reliability curve needs."""
    rows = np.arange(len(true))
    of_true = probabilities[rows, true]
    squares = np.sum(probabilities**2, axis=1) - 2 * of_true + 1
    confidence = probabilities.max(axis=1)
    right = probabilities.argmax(axis=1) == true
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    counts = np.bincount(bins, minlength=BINS)
    sums_of_confidence = np.bincount(bins, confidence, minlength=BINS)
    sums_of_right = np.bincount(bins, right, minlength=BINS)
    return {
        "nll": float(-np.log(np.maximum(of_true, FLOOR)).mean()),
        "brier": float(squares.mean()),
        "ece": float(np.abs(sums_of_right - sums_of_confidence).sum() / len(true)),
        "accuracy": float(right.mean()),
        "confidence": float(confidence.mean()),
        "bins": {
            "count": counts.tolist(),
            "confidence": sums_of_confidence.tolist(),
            "right": sums_of_right.tolist(),
        },
    }


def blurred_scores(labels: np.ndarray, positions: np.ndarray, truth: Truth) -> dict[str, Any]:
    """The scores of a warp, by blur."""
    return {
        str(blur): score(of_blurred_warp(labels, positions, blur), truth.labels)
        for blur in BLURS_PX
    }


def best_blur(records: list[dict], method: str, name: str) -> str:
    """The blur with the least mean of a score."""
    means = {
        str(blur): float(np.mean([record[method][str(blur)][name] for record in records]))
        for blur in BLURS_PX
    }
    return min(means, key=lambda blur: means[blur])
