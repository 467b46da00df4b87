"""A case as the inference sees it: observations, the alignment to start from, and what the evidence
is made of.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from kunita import numerics
from kunita.inference import trend
from kunita.inference.trend import Alignment, Trend
from kunita.jaxrun.doors import Array, Scalar
from kunita.observations import LandmarkObservations


class Sample(eqx.Module):
    """Landmarks of one case, centred and aligned.

    Args:
        observed: what was seen, the fixed points about the origin; its noise is the given one, or
            known up to a scale.
        scaled: whether a scale s multiplies that noise (as s²).
        trend: the directions in which the alignment is free.
        start: the alignment by least squares, and the start of every fit.
        positions, displacements, basis: (N, d) aligned points, what is left to explain, and the
            trend's basis there.
        noise: (N,) variances where they are the same along every axis, else (N, d, d), in fixed
            space.
        copies: (N,) how often the landmark of each row is listed, with so many times its
            covariance.
    """

    observed: LandmarkObservations
    scaled: Bool[Array, ""]
    trend: Trend
    start: Alignment
    positions: Float[Array, "n d"]
    displacements: Float[Array, "n d"]
    basis: Float[Array, "n d b"]
    noise: Float[Array, "n ..."]
    copies: Float[Array, " n"]

    def repetition(self, noise: Float[Array, "n ..."]) -> Scalar:
        """What is to be added to the log evidence of the rows, with this noise, to have that of the
        landmarks.

        A landmark listed k times with k times its covariance D is worth N(f; φ, D) as before, but
        for the factors in front: k of |2πkD|^(−½) in place of one of |2πD|^(−½).
        """
        d, k = self.positions.shape[1], self.copies
        log_dets = d * jnp.log(noise) if noise.ndim == 1 else numerics.log_det_small(noise)
        log_dets = log_dets + d * jnp.log(2 * jnp.pi)
        return 0.5 * jnp.sum(log_dets - (log_dets - d * jnp.log(k)) / k)

    def observed_with(self, log_scale: float) -> LandmarkObservations:
        """What was seen, with the noise at this scale."""
        factor = float(np.exp(2 * log_scale)) if self.scaled else 1.0
        seen = self.observed
        return LandmarkObservations(
            seen.moving, seen.fixed, factor * seen.fixed_noise, factor * seen.moving_noise
        )

    @property
    def freedom(self) -> int:
        """Coordinates that the alignment does not explain."""
        return self.displacements.size - self.basis.shape[2]


class Aligned(eqx.Module):
    """A sample, where the fixed points' origin was, and how many directions of the alignment are
    open.
    """

    sample: Sample
    origin: Float[Array, " d"]
    open_directions: int


def aligned_sample(
    moving: np.ndarray,
    fixed: np.ndarray,
    noises: tuple[np.ndarray, np.ndarray],
    align: str,
    *,
    scaled: bool,
    copies: np.ndarray | None = None,
) -> Aligned:
    """Align the moving points to the fixed ones by least squares.

    Args:
        moving, fixed: (N, d), mm.
        noises: (N, d, d) covariances of the fixed and of the moving points, up to a scale where
            that is free.
        align: the kind of alignment.
        scaled: whether the scale of the noise is free.
        copies: (N,) how often the landmark of each row is listed (with so many times its
            covariance); default: once.
    """
    n, d = moving.shape
    copies = np.ones(n) if copies is None else copies
    weights = 1 / np.trace(noises[0] + noises[1], axis1=1, axis2=2)
    start = trend.procrustes(align, moving, fixed, weights)
    origin, start = np.asarray(start.offset), Alignment(start.center, start.matrix, np.zeros(d))
    observed = LandmarkObservations(moving, fixed - origin, *noises)
    positions = (moving - start.center) @ start.matrix.T
    free, open_directions = trend.determined_trend(align, positions, 1 / copies)
    noise = np.asarray(noises[0] + start.matrix @ noises[1] @ start.matrix.T)
    sample = Sample(
        observed,
        np.asarray(scaled),
        free,
        start,
        positions,
        fixed - origin - positions,
        np.asarray(free.basis(positions)),
        isotropic(noise),
        copies,
    )
    return Aligned(sample, origin, open_directions)


def isotropic(noise: np.ndarray) -> np.ndarray:
    """(n,) variances if every covariance is a multiple of the identity, else the covariances."""
    variance = np.trace(noise, axis1=1, axis2=2) / noise.shape[1]
    alike = (
        np.abs(noise - variance[:, None, None] * np.eye(noise.shape[1]))
        <= 1e-9 * variance[:, None, None]
    )
    return variance if alike.all() else noise
