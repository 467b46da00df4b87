"""Sets of directions in space: whether they can be used, made orthonormal, and completed."""

import numpy as np

LEAST_SINGULAR_VALUE = 1e-6
"""Of unit directions: with a smaller one they count as linearly dependent. Two directions that
enclose a small angle θ have θ/√2."""

ROUNDING = 1e-14
"""Rows that are orthonormal up to this are left as they are, to the last bit."""


def directions_flaw(directions: np.ndarray) -> str | None:
    """Why the rows of a (k, d) array are no k directions to compute with; None if they are."""
    if not np.all(np.isfinite(directions)):
        return "not finite"
    if not np.all(np.any(directions, axis=1)):
        return "zero"
    smallest = _singular_values(_unit_rows(directions)).min(initial=1.0)
    if smallest < LEAST_SINGULAR_VALUE:
        return "linearly dependent"
    return None


def orthonormalised(directions: np.ndarray) -> np.ndarray:
    """Orthonormal rows that span the same space as k independent directions, (k, d).

    The first row points along the first direction, as in the method of Gram and
    Schmidt. Rows that are orthonormal already come back unchanged, so that doing it
    twice changes nothing.
    """
    if _are_orthonormal(directions):
        return directions
    columns, triangle = np.linalg.qr(_unit_rows(directions).T)
    signs = np.sign(np.diag(triangle))
    return np.ascontiguousarray((columns * signs).T)


def complement(directions: np.ndarray) -> np.ndarray:
    """Orthonormal rows, (d − k, d), that complete k orthonormal directions to a basis of the space.

    The method is that of Gram and Schmidt, applied to the coordinate axes: the axis
    of which most is left comes first. Axes that are not touched by the directions
    are therefore kept exactly, and the complement of no directions at all is the
    identity.
    """
    count, d = directions.shape
    left = np.eye(d) - directions.T @ directions
    found = np.empty((d - count, d))
    for row in range(d - count):
        lengths = np.linalg.norm(left, axis=1)
        # The first of the longest: rounding must not decide between axes that are alike.
        axis = int(np.argmax(lengths > lengths.max() - 1e-9))
        found[row] = left[axis] / lengths[axis]
        left = left - np.outer(left @ found[row], found[row])
    return found


def _are_orthonormal(directions: np.ndarray) -> bool:
    if np.any(np.abs(directions) > 2):  # the products might overflow
        return False
    overlaps = directions @ directions.T
    return np.allclose(overlaps, np.eye(len(directions)), rtol=0, atol=ROUNDING)


def _unit_rows(directions: np.ndarray) -> np.ndarray:
    # Divided by the largest entry first, so that no square overflows or vanishes.
    scaled = directions / np.abs(directions).max(axis=1, keepdims=True)
    return scaled / np.linalg.norm(scaled, axis=1, keepdims=True)


def _singular_values(matrix: np.ndarray) -> np.ndarray:
    return np.linalg.svd(matrix, compute_uv=False)
