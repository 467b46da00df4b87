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

from kunita.inference import trend
from kunita.inference.trend import Alignment, Trend
from kunita.jaxrun.doors import Array, Scalar
from kunita.observations.base import Rows
from kunita.observations.landmarks import LandmarkObservations


class RowsAtStart(eqx.Module):
    """What the small-deformation model explains: rows of y = h(x̃)β + u(x̃) + ε.

    Args:
        positions: (n, d) x̃, the aligned moving points.
        basis: (n, d, b) h(x̃), of the trend.
        rows: of the observations at x̃, their scale one where it is estimated.
        scaled: whether a scale s multiplies the noise (its covariances by s²), to
            be estimated.
        count: how many different numbers were observed; of a landmark that is listed
            several times only once.
        isotropic: whether the noise is the same along every axis.
    """

    positions: Float[Array, "n d"]
    basis: Float[Array, "n d b"]
    rows: Rows
    scaled: Bool[Array, ""]
    count: Scalar
    isotropic: bool = eqx.field(static=True)

    def with_noise(self, log_scale: Scalar) -> Rows:
        """The rows at the start, their noise at this scale if it has one."""
        scale = jnp.where(self.scaled, jnp.exp(log_scale), 1.0)
        return self.rows.rescaled(scale, self.count)


class Sample(eqx.Module):
    """The observations of one case, centred and aligned.

    Args:
        observed: the observations about the origin, their noise the given one, or
            known up to a scale.
        trend: the directions in which the alignment may move.
        start: the alignment by least squares: the start of every fit.
        at_start: the observations there, as rows.
    """

    observed: LandmarkObservations
    trend: Trend
    start: Alignment
    at_start: RowsAtStart

    @property
    def positions(self) -> Float[Array, "n d"]:
        """x̃, the aligned moving points."""
        return self.at_start.positions

    @property
    def basis(self) -> Float[Array, "n d b"]:
        """h(x̃), of the trend."""
        return self.at_start.basis

    @property
    def scaled(self) -> bool:
        """Whether the scale of the noise is estimated."""
        return bool(self.at_start.scaled)

    def noise_factor(self, log_scale: float) -> float:
        """s², by which the covariances are multiplied; one where they have no scale."""
        return float(np.exp(2 * log_scale)) if self.scaled else 1.0

    def observed_with(self, log_scale: float) -> LandmarkObservations:
        """The observations, their noise at this scale if it has one."""
        return self.observed.scaled(self.noise_factor(log_scale))

    @property
    def displacements(self) -> np.ndarray:
        """(n, d) y, what is left to explain, along the directions that are observed, mm."""
        return self.at_start.rows.missing_displacements(np.zeros_like(self.positions))

    @property
    def freedom(self) -> int:
        """Observed numbers less the directions of the alignment: what there is to estimate with."""
        num_directions = self.basis.shape[2]
        return round(float(self.at_start.count)) - num_directions

    @property
    def size_mm(self) -> float:
        """The root mean square displacement along one direction, mm."""
        total = np.sum(self.displacements**2)
        return float(np.sqrt(total / len(self.at_start.rows.residual)))


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


def aligned_sample(observed: LandmarkObservations, align: str, *, scaled: bool) -> Aligned:
    """Align the moving points to the fixed ones by least squares.

    Landmarks that are known along some directions only have no part in it.

    Args:
        observed: the landmarks, their noise known up to a scale where that is
            estimated.
        align: the kind of alignment.
        scaled: whether the scale of the noise is estimated.
    """
    start, origin = _least_squares(observed, align)
    positions = start(observed.sites)
    directions, open_directions = trend.determined_trend(
        align,
        positions,
        observed.shares,
        observed.known_directions,
    )
    centred = observed.about(origin)
    rows = centred.rows(positions, start.jacobians(len(positions)))
    at_start = RowsAtStart(
        positions=positions,
        basis=np.asarray(directions.basis(positions)),
        rows=rows,
        scaled=np.asarray(scaled),
        count=np.asarray(observed.num_different),
        isotropic=rows.is_isotropic(),
    )
    sample = Sample(centred, directions, start, at_start)
    return Aligned(sample, origin, open_directions)


def _least_squares(observed: LandmarkObservations, align: str) -> tuple[Alignment, np.ndarray]:
    """The alignment that takes the centre of the moving points to the origin, and that origin."""
    pairs = observed.correspondences()
    found = trend.procrustes(align, pairs.moving, pairs.fixed, pairs.weights)
    origin = np.asarray(found.offset)
    nowhere = np.zeros_like(origin)
    centred = Alignment(found.center, found.matrix, nowhere)
    return centred, origin
