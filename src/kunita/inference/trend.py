"""The alignment as part of the model: translation, rigid, similarity or affine, with a flat prior.

The moving points are aligned first, x̃ = A₀(x − c) + b, and the flow starts at x̃.
A small change of the alignment is x̃ + h(x̃)β with the basis h of the Lie algebra;
a finite one is its exponential, so that a rotation stays one.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from kunita import numerics
from kunita.errors import ArgumentError
from kunita.jaxrun.doors import Array, Scalar, namespace

KINDS = ("none", "translation", "rigid", "similarity", "affine")

ROTATING = ("rigid", "similarity", "affine")
"""The kinds of alignment that rotate."""

UNDETERMINED = 1e-6
"""A direction of the alignment that moves the landmarks less than this, relative to
the strongest, is not fitted."""

MUCH_BETTER = 0.5
"""A mirror image fits much better than a rotation if it leaves less than this share
of the squared residuals."""


# --------------------------------------------------------------------- alignments and their changes


class Alignment(eqx.Module):
    """An affine map x ↦ A(x − c) + b, centred so that nothing is lost far from the origin."""

    center: Float[Array, " d"]
    matrix: Float[Array, "d d"]
    offset: Float[Array, " d"]

    def __call__(self, points: Float[Array, "m d"]) -> Float[Array, "m d"]:
        """A(x − c) + b."""
        turned = (points - self.center) @ self.matrix.T
        return turned + self.offset

    def inverse(self, points: Float[Array, "m d"]) -> Float[Array, "m d"]:
        """A⁻¹(y − b) + c."""
        xp = namespace(points, self.matrix, self.offset)
        columns = (points - self.offset).T
        solved = xp.linalg.solve(self.matrix, columns)
        return solved.T + self.center

    def jacobians(self, num_points: int) -> Float[Array, "m d d"]:
        """A, once for each of so many points."""
        xp = namespace(self.matrix)
        shape = (num_points, *self.matrix.shape)
        return xp.broadcast_to(self.matrix, shape)


class Trend(eqx.Module):
    """The directions in which the alignment may still move.

    They are b generators [M | t] of x ↦ x + Mx/scale + t. All coefficients β are in
    mm: `scale` is the root mean square distance of the landmarks from their centre.
    """

    generators: Float[Array, "b d d1"]
    scale: Scalar

    def basis(self, points: Float[Array, "m d"]) -> Float[Array, "m d b"]:
        """h(x): the displacement of each point per unit of β."""
        xp = namespace(points, self.generators)
        ones = xp.ones((len(points), 1))
        relative = points / self.scale
        extended = xp.concatenate([relative, ones], axis=1)
        return xp.einsum("bac,mc->mab", self.generators, extended)

    def move(self, alignment: Alignment, beta: Float[Array, " b"]) -> Alignment:
        """T_β ∘ alignment, with T_β the exponential of the generators."""
        d = alignment.offset.shape[0]
        units = jnp.append(self.scale * jnp.ones(d), 1.0)
        generator = jnp.tensordot(beta, self.generators, axes=1)
        algebra = generator / units
        last_row = jnp.zeros((1, d + 1))
        square = jnp.concatenate([algebra, last_row])
        group = numerics.exponential(square)
        linear = group[:d, :d]
        shift = group[:d, d]
        return Alignment(
            center=alignment.center,
            matrix=linear @ alignment.matrix,
            offset=linear @ alignment.offset + shift,
        )


def check_kind(kind: str) -> str:
    """Refuse an alignment that does not exist."""
    if kind not in KINDS:
        raise ArgumentError(f"align: expected one of {', '.join(KINDS)}, found {kind!r}")
    return kind


# -------------------------------------------------------------------------------------- generators


def generators(kind: str, dimension: int) -> np.ndarray:
    """All generators [M | t] of a kind of alignment, (b, d, d + 1): translations first."""
    if kind == "none":
        return np.zeros((0, dimension, dimension + 1))
    rows = _translations(dimension)
    no_shift = np.zeros((dimension, 1))
    for matrix in _linear_generators(kind, dimension):
        rows.append(np.hstack([matrix, no_shift]))
    return np.array(rows)


def _translations(dimension: int) -> list[np.ndarray]:
    """[0 | e] for each unit vector e."""
    no_turn = np.zeros((dimension, dimension))
    found = []
    for unit in np.eye(dimension):
        found.append(np.column_stack([no_turn, unit]))
    return found


def _linear_generators(kind: str, dimension: int) -> list[np.ndarray]:
    """The matrices M of a kind of alignment, each of Frobenius norm one."""
    rotations = _rotations(dimension)
    scaling = np.eye(dimension) / np.sqrt(dimension)
    if kind == "translation":
        return []
    if kind == "rigid":
        return rotations
    if kind == "similarity":
        return [*rotations, scaling]
    return _unit_matrices(dimension)


def _rotations(dimension: int) -> list[np.ndarray]:
    """(Eᵦₐ − Eₐᵦ)/√2 for a < b, in terms of the unit matrices E."""
    rotations = []
    for a in range(dimension):
        for b in range(a + 1, dimension):
            turn = np.zeros((dimension, dimension))
            turn[b, a] = 1.0
            turn[a, b] = -1.0
            rotations.append(turn / np.sqrt(2))
    return rotations


def _unit_matrices(dimension: int) -> list[np.ndarray]:
    """All matrices with one entry of one."""
    shape = (dimension, dimension)
    flat = np.eye(dimension * dimension)
    return [row.reshape(shape) for row in flat]


def determined_trend(
    kind: str,
    points: np.ndarray,
    weights: np.ndarray | None = None,
    known: np.ndarray | None = None,
) -> tuple[Trend, int]:
    """The trend that these points determine, and how many directions they leave open.

    Collinear or coplanar points, or a single one, do not fix every rotation or
    shear: those directions are left out. Nor do points fix what moves them only
    along directions in which they are not known.

    Args:
        kind: of alignment.
        points: (n, d) aligned points, about the origin.
        weights: (n,); points that are listed more than once weigh the less, so that
            the scale of the trend does not depend on it. Default: all the same.
        known: (n, d, d) the directions along which each point is known, in rows,
            filled up with zeros. Default: all are.
    """
    full = generators(kind, points.shape[1])
    trend = Trend(full, _root_mean_square(points, weights))
    if not len(full):
        return trend, 0
    basis = np.asarray(trend.basis(points))
    if known is not None:
        basis = known @ basis
    design = basis.reshape(-1, len(full))
    mixing = _determined_directions(design)
    kept = np.tensordot(mixing, full, axes=1)
    determined = Trend(kept, trend.scale)
    open_directions = len(full) - len(kept)
    return determined, open_directions


def _root_mean_square(points: np.ndarray, weights: np.ndarray | None) -> float:
    """The weighted root mean square distance from the centre; one, where there is none."""
    center = np.average(points, axis=0, weights=weights)
    away = points - center
    squared = np.sum(away**2, axis=1)
    mean = np.average(squared, weights=weights)
    distance = float(np.sqrt(mean))
    return distance or 1.0


def _determined_directions(design: np.ndarray) -> np.ndarray:
    """(k, b) orthonormal combinations of the columns of a design matrix that do not vanish."""
    _, strengths, directions = np.linalg.svd(design, full_matrices=False)
    strongest = strengths[0]
    is_determined = strengths > UNDETERMINED * strongest
    return directions[is_determined]


# ----------------------------------------------------------------------------------- least squares


def procrustes(kind: str, moving: np.ndarray, fixed: np.ndarray, weights: np.ndarray) -> Alignment:
    """The alignment that minimises Σ wᵢ|A(xᵢ − c) + b − fᵢ|²: where the joint fit starts.

    Rotations are proper (never a mirror). Where points determine no rotation, the
    smallest is taken.

    Args:
        kind: of alignment.
        moving, fixed: (n, d) x and f.
        weights: (n,) w, of any sum.
    """
    w = weights / weights.sum()
    center = w @ moving
    if kind == "none":
        return Alignment(center, np.eye(len(center)), center)
    middle = w @ fixed
    matrix = _best_matrix(
        kind,
        moving - center,
        fixed - middle,
        w[:, None],
    )
    return Alignment(center, matrix, middle)


def _best_matrix(kind: str, x: np.ndarray, y: np.ndarray, w: np.ndarray) -> np.ndarray:
    """A of a kind of alignment that minimises Σ wᵢ|Axᵢ − yᵢ|², of centred points; w is (n, 1)."""
    if kind not in ROTATING:
        return np.eye(x.shape[1])
    cross = (y * w).T @ x
    rotation = best_rotation(cross)
    if kind == "similarity":
        return _best_ratio(rotation, x, y, w) * rotation
    if kind == "affine":
        return rotation + _best_remainder(rotation, x, y, w)
    return rotation


def _best_ratio(rotation: np.ndarray, x: np.ndarray, y: np.ndarray, w: np.ndarray) -> float:
    """The scale of a similarity; one, where the best is not positive or there is no size."""
    if not np.any(x):
        return 1.0
    turned = x @ rotation.T
    agreement = np.sum(w * y * turned)
    size = np.sum(w * x**2)
    ratio = float(agreement / size)
    return ratio if ratio > 0 else 1.0


def _best_remainder(
    rotation: np.ndarray, x: np.ndarray, y: np.ndarray, w: np.ndarray
) -> np.ndarray:
    """What an affine map adds to a rotation: the least that explains what the rotation leaves.

    Least squares of the remainder, and not of the whole, leave alone what the
    points do not determine: there the map rotates, and does not collapse.
    """
    root = np.sqrt(w)
    turned = x @ rotation.T
    left = y - turned
    solution = np.linalg.lstsq(root * x, root * left, rcond=UNDETERMINED)
    remainder = solution[0]
    return remainder.T


def best_rotation(cross: np.ndarray) -> np.ndarray:
    """argmax_R tr(Rᵀ C) over proper rotations (Kabsch), the smallest one where C leaves it open."""
    identity = np.eye(len(cross))
    if not np.any(cross):
        return identity
    # A little of the identity decides where C does not, and turns the rest by 1e-6 rad at most.
    tiny = UNDETERMINED * np.linalg.norm(cross)
    u, _, vt = np.linalg.svd(cross + tiny * identity)
    orthogonal = u @ vt
    signs = np.ones(len(cross))
    signs[-1] = np.sign(np.linalg.det(orthogonal))
    return (u * signs) @ vt


# ----------------------------------------------------------------------------------- mirror images


def looks_mirrored(moving: np.ndarray, fixed: np.ndarray) -> bool:
    """Whether a reflection fits the pairs much better than any rotation: left and right swapped?

    Both sets are centred and brought to size one, so that their scales do not
    matter. With the singular values s₁ ≥ … ≥ s_d of C = Σ(f − f̄)(x − x̄)ᵀ, a
    similarity leaves 1 − (Σs)² of the squared size of the fixed points if it may
    reflect, and 1 − (Σs − 2s_d)² if it may not. (An affine alignment would fit a
    mirrored set perfectly.)
    """
    cross = _normalised_cross_covariance(moving, fixed)
    if cross is None or np.linalg.det(cross) >= 0:
        return False
    strengths = np.linalg.svd(cross, compute_uv=False)
    least = strengths[-1]
    if least < UNDETERMINED:  # flat sets: a mirror is a turn
        return False
    reflected = strengths.sum()
    rotated = reflected - 2 * least
    left_by_reflection = 1 - reflected**2
    left_by_rotation = 1 - rotated**2
    return bool(left_by_reflection < MUCH_BETTER * left_by_rotation)


def _normalised_cross_covariance(moving: np.ndarray, fixed: np.ndarray) -> np.ndarray | None:
    """Σ(f − f̄)(x − x̄)ᵀ of sets brought to size one; None where one of them is a single place."""
    x = moving - moving.mean(0)
    y = fixed - fixed.mean(0)
    size = np.linalg.norm(x) * np.linalg.norm(y)
    if size == 0:
        return None
    cross = y.T @ x
    return cross / size
