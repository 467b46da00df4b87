"""One case, centred and aligned: what the estimation of hyper-parameters and every fit start from.

The moving points x of a case are aligned to the fixed points f by least squares,
and the origin is moved to where the alignment takes their centre. What the
deformation has to explain are then the displacements y = f − x̃ of the aligned
points x̃, up to the small changes h(x̃)β of the alignment itself
(`kunita.inference.trend`).
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from kunita import numerics
from kunita.inference import trend
from kunita.inference.trend import Alignment, Trend
from kunita.jaxrun.doors import Array, Scalar
from kunita.jaxrun.programs import FEW_LANDMARKS, compiled
from kunita.observations.base import Rows
from kunita.observations.landmarks import LandmarkObservations

ISOTROPIC = 1e-9
"""A covariance is isotropic if no entry is off by more than this fraction of the variance."""


class Sample(eqx.Module):
    """The landmarks of one case, centred and aligned, as rows of y = h(x̃)β + u(x̃) + ε.

    Args:
        observed: the landmarks and their noise, the fixed points about the origin.
            The noise is the given one, or known up to a scale.
        scaled: whether a scale s multiplies the noise (its covariances by s²), to
            be estimated.
        trend: the directions in which the alignment may move.
        start: the alignment by least squares: the start of every fit.
        positions: (n, d) x̃, the aligned moving points.
        displacements: (n, d) y, what is left to explain, along the known directions.
        basis: (n, d, b) h(x̃), of the trend.
        noise: (n,) variances of ε where they are the same along every axis, else
            (n, d, d) covariances, in fixed space.
        copies: (n,) how often the landmark of each row is listed, each time with so
            many times its covariance.
        rows: the whitened rows of the observations at x̃; None where the noise is
            isotropic and all directions are known, which is cheaper without them.
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
    rows: Rows | None = None

    def repetition(self, noise: Float[Array, "n ..."]) -> Scalar:
        """What turns the log evidence of the rows into that of the landmarks, if some are repeated.

        A landmark listed k times with k times its covariance D is worth N(f; φ, D)
        as before, but for the factors in front: k of |2πkD|^(−½) in place of one of
        |2πD|^(−½).

        Args:
            noise: (n,) variances or (n, d, d) covariances kD of the rows.
        """
        d = self.positions.shape[1]
        k = self.copies
        is_isotropic = noise.ndim == 1
        log_dets = d * jnp.log(noise) if is_isotropic else numerics.log_det_small(noise)
        constant = d * jnp.log(2 * jnp.pi)
        of_row = log_dets + constant
        of_landmark = of_row - d * jnp.log(k)
        # each of the k rows takes back its own factor, and brings 1/k of the landmark's
        missing = of_row - of_landmark / k
        return 0.5 * jnp.sum(missing)

    def observed_with(self, log_scale: float) -> LandmarkObservations:
        """The observations, their noise at this scale if it has one."""
        factor = 1.0
        if self.scaled:
            factor = float(np.exp(2 * log_scale))
        return self.observed.scaled(factor)

    @property
    def num_rows(self) -> int:
        """How many numbers were observed."""
        if self.rows is None:
            return self.displacements.size
        return len(self.rows.residual)

    @property
    def freedom(self) -> int:
        """Observed numbers less the directions of the alignment: what there is to estimate with."""
        num_directions = self.basis.shape[2]
        return self.num_rows - num_directions

    @property
    def size_mm(self) -> float:
        """The root mean square displacement along one direction, mm."""
        total = np.sum(self.displacements**2)
        return float(np.sqrt(total / self.num_rows))


class Aligned(eqx.Module):
    """A sample, and what its alignment leaves out.

    Args:
        sample: the sample.
        origin: (d,) where the sample's origin is in fixed space.
        open_directions: how many directions of the alignment the landmarks do not
            determine.
    """

    sample: Sample
    origin: Float[Array, " d"]
    open_directions: int


def aligned_sample(
    observed: LandmarkObservations,
    align: str,
    *,
    scaled: bool,
    copies: np.ndarray | None = None,
) -> Aligned:
    """Align the moving points to the fixed ones by least squares.

    Landmarks that are known along some directions only have no part in it.

    Args:
        observed: the landmarks, their noise known up to a scale where that is
            estimated.
        align: the kind of alignment.
        scaled: whether the scale of the noise is estimated.
        copies: (n,) how often the landmark of each row is listed (with so many
            times its covariance); default: once.
    """
    if copies is None:
        copies = np.ones(len(observed.sites))
    start, origin = _least_squares(observed, align)
    positions = (observed.sites - start.center) @ start.matrix.T
    seen = observed.known_directions
    directions, open_directions = trend.determined_trend(align, positions, 1 / copies, seen)
    jacobians = np.broadcast_to(start.matrix, observed.fixed_noise.shape)
    centred = observed.about(origin)
    noise = isotropic(np.asarray(observed.noise(jacobians)))
    plain = noise.ndim == 1 and seen is None
    sample = Sample(
        observed=centred,
        scaled=np.asarray(scaled),
        trend=directions,
        start=start,
        positions=positions,
        displacements=_along_known(seen, centred.fixed - positions),
        basis=np.asarray(directions.basis(positions)),
        noise=noise,
        copies=copies,
        rows=None if plain else rows_at(centred, positions, jacobians),
    )
    return Aligned(sample, origin, open_directions)


def _along_known(seen: np.ndarray | None, displacements: np.ndarray) -> np.ndarray:
    """(n, d) displacements without what is not known of a landmark."""
    if seen is None:
        return displacements
    along = np.einsum("iab,ib->ia", seen, displacements)
    return np.einsum("iab,ia->ib", seen, along)


rows_at = compiled(LandmarkObservations.rows, hasty=FEW_LANDMARKS)


def _least_squares(observed: LandmarkObservations, align: str) -> tuple[Alignment, np.ndarray]:
    """The alignment that takes the centre of the moving points to the origin, and that origin."""
    whole = observed.known_completely
    noise = np.asarray(observed.unturned_noise)
    variances = np.trace(noise[whole], axis1=1, axis2=2)
    found = trend.procrustes(
        align,
        observed.sites[whole],
        observed.fixed[whole],
        weights=1 / variances,
    )
    origin = np.asarray(found.offset)
    nowhere = np.zeros_like(origin)
    centred = Alignment(found.center, found.matrix, nowhere)
    return centred, origin


def isotropic(noise: np.ndarray) -> np.ndarray:
    """(n,) variances if every covariance is a multiple of the identity, else the covariances."""
    d = noise.shape[1]
    variances = np.trace(noise, axis1=1, axis2=2) / d
    scales = variances[:, None, None]
    nearest = scales * np.eye(d)
    off = np.abs(noise - nearest)
    is_isotropic = np.all(off <= ISOTROPIC * scales)
    return variances if is_isotropic else noise
