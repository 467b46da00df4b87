"""The alignment as part of the model: translation, rigid, similarity or affine, with a flat prior.

The moving points are aligned first, x̃ = A₀(x − c) + b, and the flow starts at x̃. A small change
of the alignment is x̃ + h(x̃)β with the basis h of the Lie algebra; a finite one is its
exponential, so that a rotation stays one.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from kunita import numerics
from kunita.errors import ArgumentError
from kunita.jaxrun.doors import Array, Scalar, namespace

KINDS = ("none", "translation", "rigid", "similarity", "affine")

UNDETERMINED = 1e-6
"""A direction of the alignment that moves the landmarks less than this, relative to the strongest,
is not fitted."""


class Alignment(eqx.Module):
    """An affine map x ↦ A(x − c) + b, centred so that nothing is lost far from the origin."""

    center: Float[Array, " d"]
    matrix: Float[Array, "d d"]
    offset: Float[Array, " d"]

    def __call__(self, points: Float[Array, "m d"]) -> Float[Array, "m d"]:
        return (points - self.center) @ self.matrix.T + self.offset

    def inverse(self, points: Float[Array, "m d"]) -> Float[Array, "m d"]:
        return jnp.linalg.solve(self.matrix, (points - self.offset).T).T + self.center


class Trend(eqx.Module):
    """The directions in which the alignment may still move: b generators [M | t] of x ↦ x +
    Mx/scale + t.

    All coefficients β are in mm: `scale` is the spread of the landmarks.
    """

    generators: Float[Array, "b d d1"]
    scale: Scalar

    def basis(self, points: Float[Array, "m d"]) -> Float[Array, "m d b"]:
        """h(x): the displacement of each point per unit of β."""
        xp = namespace(points, self.generators)
        extended = xp.concatenate([points / self.scale, xp.ones((len(points), 1))], axis=1)
        return xp.einsum("bac,mc->mab", self.generators, extended)

    def move(self, alignment: Alignment, beta: Float[Array, " b"]) -> Alignment:
        """T_β ∘ alignment, with T_β the exponential of the generators."""
        d = alignment.offset.shape[0]
        algebra = jnp.tensordot(beta, self.generators, axes=1) / jnp.append(
            self.scale * jnp.ones(d), 1.0
        )
        group = numerics.exponential(jnp.concatenate([algebra, jnp.zeros((1, d + 1))]))
        a, t = group[:d, :d], group[:d, d]
        return Alignment(alignment.center, a @ alignment.matrix, a @ alignment.offset + t)


def generators(kind: str, dimension: int) -> np.ndarray:
    """All generators [M | t] of a kind of alignment: translations, rotations, scaling, general
    linear maps.
    """
    d = dimension
    shift = [np.c_[np.zeros((d, d)), np.eye(d)[a]] for a in range(d)]
    unit = [[np.outer(np.eye(d)[a], np.eye(d)[b]) for b in range(d)] for a in range(d)]
    turn = [(unit[b][a] - unit[a][b]) / np.sqrt(2) for a in range(d) for b in range(a + 1, d)]
    linear = {
        "none": [],
        "translation": [],
        "rigid": turn,
        "similarity": [*turn, np.eye(d) / np.sqrt(d)],
        "affine": [matrix for row in unit for matrix in row],
    }[kind]
    rows = [] if kind == "none" else [*shift, *(np.c_[m, np.zeros(d)] for m in linear)]
    return np.array(rows).reshape(len(rows), d, d + 1)


def check_kind(kind: str) -> str:
    """Refuse an alignment that does not exist."""
    if kind not in KINDS:
        raise ArgumentError(f"align: expected one of {', '.join(KINDS)}, found {kind!r}")
    return kind


def determined_trend(
    kind: str, points: np.ndarray, weights: np.ndarray | None = None
) -> tuple[Trend, int]:
    """The trend that these (aligned, centred) points determine, and how many directions they leave
    open.

    Collinear or coplanar points, or a single one, do not fix every rotation or shear: those
    directions are left out. Points that are listed more than once weigh the less, so that the scale
    of the trend does not depend on it.
    """
    full = generators(kind, points.shape[1])
    middle = np.average(points, axis=0, weights=weights)
    scale = (
        float(np.sqrt(np.average(np.sum((points - middle) ** 2, axis=1), weights=weights))) or 1.0
    )
    if not len(full):
        return Trend(full, scale), 0
    extended = np.c_[points / scale, np.ones(len(points))]
    design = np.einsum("bac,mc->mab", full, extended).reshape(-1, len(full))
    _, strengths, directions = np.linalg.svd(design, full_matrices=len(design) < design.shape[1])
    kept = directions[: int(np.sum(strengths > UNDETERMINED * strengths[0]))]
    return Trend(np.tensordot(kept, full, axes=1), scale), len(full) - len(kept)


def procrustes(kind: str, moving: np.ndarray, fixed: np.ndarray, weights: np.ndarray) -> Alignment:
    """The alignment that minimises Σ wᵢ|A(xᵢ − c) + b − fᵢ|²: the start of the joint fit, and its
    centre.

    Rotations are proper (never a mirror); where points determine no rotation, the smallest is
    taken.
    """
    w = weights / weights.sum()
    d = moving.shape[1]
    center = w @ moving
    if kind == "none":
        return Alignment(center, np.eye(d), center)
    x, y = moving - center, fixed - w @ fixed
    matrix = np.eye(d)
    if kind in ("rigid", "similarity", "affine"):
        matrix = best_rotation((y * w[:, None]).T @ x)
    if kind == "similarity" and np.any(x):
        ratio = np.sum(w[:, None] * y * (x @ matrix.T)) / np.sum(w[:, None] * x**2)
        matrix = matrix * (ratio if ratio > 0 else 1.0)
    if kind == "affine":
        root = np.sqrt(w)[:, None]
        rest = np.linalg.lstsq(root * x, root * (y - x @ matrix.T), rcond=UNDETERMINED)[0].T
        matrix = matrix + rest
    return Alignment(center, matrix, w @ fixed)


def best_rotation(cross: np.ndarray) -> np.ndarray:
    """argmax_R tr(Rᵀ C) over proper rotations (Kabsch), closest to the identity where C leaves it
    open.
    """
    tiny = UNDETERMINED * np.linalg.norm(cross) * np.eye(len(cross))
    u, _, vt = np.linalg.svd(cross + tiny)
    sign = np.ones(len(cross))
    sign[-1] = np.sign(np.linalg.det(u @ vt))
    return (u * sign) @ vt if np.any(cross) else np.eye(len(cross))


def looks_mirrored(moving: np.ndarray, fixed: np.ndarray) -> bool:
    """Whether a reflection fits the pairs much better than any rotation: left and right swapped,
    say.

    The sign of det Σ(f − f̄)(x − x̄)ᵀ is tested first; an affine alignment would fit a mirrored set
    perfectly. Both sets are brought to size one, so that their scales do not matter.
    """
    x, y = moving - moving.mean(0), fixed - fixed.mean(0)
    size = np.linalg.norm(x) * np.linalg.norm(y)
    if not size or np.linalg.det(y.T @ x / size) >= 0:
        return False
    strengths = np.linalg.svd(y.T @ x / size, compute_uv=False)
    mirrored, proper = strengths.sum(), strengths.sum() - 2 * strengths[-1]
    if strengths[-1] < UNDETERMINED:  # flat sets: a mirror is a turn
        return False
    return bool(1 - mirrored**2 < 0.5 * (1 - proper**2))
