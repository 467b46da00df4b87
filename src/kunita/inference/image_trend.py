"""The directions of an alignment that two images determine.

Along a direction β of the alignment a voxel changes its intensity by gᵀh(x)β, g its gradient. So
what an image says of the alignment is Σ (gᵀh)ᵀ(gᵀh). Stripes say nothing of a translation along
them, a disc nothing of a rotation about its centre. The prior on the alignment is flat: such a
direction would have no posterior, and it is not fitted. Its uncertainty is then that of the flow.
"""

import numpy as np
import scipy.linalg
from jaxtyping import Float

from kunita.inference.image_search import Marks
from kunita.inference.trend import Alignment, Trend, determined_trend
from kunita.jaxrun.doors import Array
from kunita.observations.image_pair import ImagePair
from kunita.observations.structure import Slopes, slopes_of

UNSEEN = 0.02
"""A direction of which an image says less than this share of what isotropic gradients would say is
not fitted. A chest CT says at least 0.26 of every direction of a rigid alignment and 0.16 of an
affine one, slices of brains 0.68 and 0.64, generated textures 0.83 and 0.78, a mask of 10 x 10
pixels of one 0.38 and 0.22. A disc says 0.0001 to 0.001 of its rotation. Along smooth stripes it is
0 if they follow the pixels, and 0.006 to 0.01 if they are oblique, since differences between
neighbours are not quite along the gradient (0.008 to 0.013 for sharp ones at 45 degrees; sharp
ones at 30 degrees, whose jagged edges are structure, 0.02 to 0.04)."""

UNMOVED = 1e-6
"""Directions that landmarks tell less of, relative to the one they tell most of, are not known by
them. Rounding in the gradients tilts a direction by some 1e-8."""


def information(slopes: Slopes, trend: Trend) -> Float[Array, "b b"]:
    """Σ (gᵀh)ᵀ(gᵀh) over all voxels and channels, over Σ|g|²."""
    basis = np.asarray(trend.basis(slopes.places))
    changes = np.einsum("kcd,kdb->kcb", slopes.gradients, basis)
    flat = changes.reshape(-1, changes.shape[-1])
    return flat.T @ flat / slopes.total


def information_if_isotropic(slopes: Slopes, trend: Trend) -> Float[Array, "b b"]:
    """Σ |g|²hᵀh/d, over Σ|g|²: what gradients along all directions alike would say."""
    d = slopes.places.shape[1]
    basis = np.asarray(trend.basis(slopes.places))
    squares = np.sum(slopes.gradients**2, axis=(1, 2))
    weighted = squares[:, None, None] * basis
    return np.einsum("kdb,kdc->bc", weighted, basis) / (d * slopes.total)


def seen_trend(pair: ImagePair, alignment: Alignment, kind: str, marks: Marks) -> Trend:
    """The trend that both images determine, or landmarks beside them.

    Args:
        pair: the images.
        alignment: from moving space to that of the flow, where the search starts.
        kind: of alignment.
        marks: landmarks, or none.
    """
    corners = pair.lattice(pair.extent).nodes
    whole, _ = determined_trend(kind, np.asarray(alignment(corners)))
    sides = _both_sides(pair, alignment)
    if not len(whole.generators):
        return whole
    unseen = _unseen(sides, whole)
    left_open = _unknown(unseen, np.asarray(alignment(marks.moving)), marks, whole)
    kept = _orthogonal_complement(left_open)
    return Trend(np.tensordot(kept, whole.generators, axes=1), whole.scale)


def _both_sides(pair: ImagePair, alignment: Alignment) -> tuple[Slopes, Slopes]:
    """Slopes of either image in the space of the flow."""
    moving, fixed = slopes_of(pair)
    # Gradients are covectors: those of the moving image arrive as A⁻ᵀ∇M.
    inverse = np.linalg.inv(np.asarray(alignment.matrix))
    aligned = np.asarray(alignment(moving.places))
    return Slopes(aligned, moving.gradients @ inverse), fixed


def _unseen(sides: tuple[Slopes, Slopes], trend: Trend) -> Float[Array, "u b"]:
    """Directions of the alignment that one of the images does not show.

    The parallel sum 2A(A + B)⁻¹B of two informations is small wherever one of them is.
    """
    first, second = (information(slopes, trend) for slopes in sides)
    shared = 2 * first @ np.linalg.pinv(first + second, hermitian=True) @ second
    isotropic = np.mean([information_if_isotropic(slopes, trend) for slopes in sides], axis=0)
    values, vectors = scipy.linalg.eigh((shared + shared.T) / 2, isotropic)
    return vectors.T[values < UNSEEN]


def _unknown(
    unseen: Float[Array, "u b"], aligned: Float[Array, "k d"], marks: Marks, trend: Trend
) -> Float[Array, "v b"]:
    """Combinations of directions that images do not show and that move no landmark either."""
    if not len(unseen):
        return unseen
    directions = scipy.linalg.orth(unseen.T).T
    basis = np.asarray(trend.basis(aligned))
    whole = (marks.precisions @ basis).reshape(-1, basis.shape[-1])
    _, pulls, axes = np.linalg.svd(whole @ directions.T)
    strongest = float(np.linalg.norm(whole, ord=2)) if len(whole) else 0.0
    is_moved = np.zeros(len(directions), dtype=bool)
    is_moved[: len(pulls)] = pulls > UNMOVED * strongest
    return axes[~is_moved] @ directions


def _orthogonal_complement(rows: Float[Array, "u b"]) -> Float[Array, "k b"]:
    """Orthonormal rows that are orthogonal to all of these."""
    return scipy.linalg.null_space(rows).T if len(rows) else np.eye(rows.shape[1])
