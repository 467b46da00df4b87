"""Leave-one-out in closed form: every group of rows predicted from all others, without refitting.

With P = S⁻¹ − S⁻¹HJhA⁻¹(HJh)ᵀS⁻¹ and w = S⁻¹(y − HJhβ̂) of the joint fit, λ = Hᵀw, the prediction
without the rows of group g misses them by P_gg⁻¹w_g and has covariance P_gg⁻¹, their noise
included: exact for a linear model, first order around the fit otherwise. In mm the miss is
C_gP_gg⁻¹w_g and its covariance C_gP_gg⁻¹C_gᵀ, with C_g = H_gᵀ(H_gH_gᵀ)⁻¹. For a landmark with noise
D, HᵀPH is the precision of what was observed, and the miss is (HᵀPH)_ii⁻¹λ_i.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from kunita import numerics
from kunita.gaussians import GaussianPoints
from kunita.inference.path_space import AbstractRowSpace
from kunita.jaxrun.doors import Array
from kunita.jaxrun.programs import SMALL_MATRIX, compiled
from kunita.observations.base import Rows

UNDETERMINED = 1e-9
"""Where P is smaller than this share of S⁻¹, the alignment needs the group: the others say nothing.
"""


class LeaveOneOut(eqx.Module):
    """Each fixed landmark as predicted from all the others.

    Args:
        mean: where it is predicted, mm.
        covariance: of the prediction and of its own noise, mm². Along directions in which the
            landmark is not known there is none.
        error: distance from where it was observed, along the known directions, mm.
        chi2: squared standardised error.
        known: how many directions of it are known: the degrees of freedom of `chi2`.
    """

    mean: Float[Array, "n d"]
    covariance: Float[Array, "n d d"]
    error: Float[Array, " n"]
    chi2: Float[Array, " n"]
    known: Int[Array, " n"]


class Groups(eqx.Module):
    """Rows by group: their numbers, filled up to the largest group, and which of them are meant."""

    rows: Int[Array, "g r"]
    meant: Bool[Array, "g r"]

    @classmethod
    def of(cls, rows: Rows) -> "Groups":
        """From the groups that rows belong to."""
        group = np.asarray(rows.group)
        counts = np.bincount(group)
        order = np.argsort(group, kind="stable")
        starts = np.cumsum(counts) - counts
        places = np.arange(counts.max())
        meant = places < counts[:, None]
        first = starts[:, None]
        filled = np.where(meant, first + places, first)
        return cls(order[filled], meant)

    @property
    def counts(self) -> np.ndarray:
        meant = np.asarray(self.meant)
        return meant.sum(axis=1)


@compiled(hasty=SMALL_MATRIX)
def leave_out(
    linear: AbstractRowSpace,
    dual: Float[Array, "n d"],
    arrived: Float[Array, "n d"],
    groups: Groups,
) -> tuple[Float[Array, "g r r"], Float[Array, "g r r"], LeaveOneOut]:
    """The blocks of P and of S⁻¹ of each group, and what follows from them."""
    rows = linear.rows
    known = linear.row_precision(groups.rows)
    precision = _meant(groups, known - _through_alignment(linear, groups))
    covariance = _inverse(precision)
    to_mm = _to_mm(rows, groups)
    site = rows.site[groups.rows[:, 0]]
    # w_g from λ, since λ = H_gᵀw_g at the site of the group
    weights = jnp.einsum("gar,ga->gr", to_mm, dual[site])
    miss = jnp.einsum("grs,gs->gr", covariance, weights)
    miss_mm = jnp.einsum("gar,gr->ga", to_mm, miss)
    residual = groups.meant * rows.residual[groups.rows]
    observed = arrived[site] + jnp.einsum("gar,gr->ga", to_mm, residual)
    found = LeaveOneOut(
        mean=observed - miss_mm,
        covariance=jnp.einsum("gar,grs,gbs->gab", to_mm, covariance, to_mm),
        error=jnp.linalg.norm(miss_mm, axis=1),
        chi2=jnp.sum(weights * miss, axis=1),
        known=jnp.sum(groups.meant, axis=1),
    )
    return precision, _meant(groups, known), found


def _through_alignment(linear: AbstractRowSpace, groups: Groups) -> Float[Array, "g r r"]:
    """The blocks of S⁻¹HJhA⁻¹(HJh)ᵀS⁻¹: what the alignment takes of the rows' precision."""
    solved = linear.solve_rows(linear.design)
    whitened = numerics.solve_lower(linear.trend_factor, solved.T)
    half = whitened[:, groups.rows]
    return numerics.block_squares(half)


def _to_mm(rows: Rows, groups: Groups) -> Float[Array, "g d r"]:
    """C_g = H_gᵀ(H_gH_gᵀ)⁻¹; rows that only fill up a group count for nothing."""
    meant = groups.meant[:, :, None]
    operator = meant * rows.operator[groups.rows]
    squares = jnp.einsum("gra,gsa->grs", operator, operator)
    completed = _meant(groups, squares)
    inverse = _inverse(completed)
    return jnp.einsum("gra,grs->gas", operator, inverse)


def is_determined(precision: np.ndarray, known: np.ndarray) -> bool:
    """Whether the others say something of every group."""
    least = np.linalg.eigvalsh(precision)[:, 0]
    sizes = np.trace(known, axis1=1, axis2=2)
    determined = least > UNDETERMINED * sizes
    return bool(np.all(determined))


def _meant(groups: Groups, blocks: Float[Array, "g r r"]) -> Float[Array, "g r r"]:
    """The blocks, with the identity where rows only fill up a group."""
    meant = groups.meant
    both = meant[:, :, None] & meant[:, None, :]
    size = blocks.shape[1]
    return jnp.where(both, blocks, jnp.eye(size))


def _inverse(blocks: Float[Array, "g r r"]) -> Float[Array, "g r r"]:
    size = blocks.shape[1]
    if size == 1:
        return 1 / blocks
    if size <= 3:
        return numerics.solve_identity_small(blocks)
    return jnp.linalg.inv(blocks)


def cavity(at_landmarks: GaussianPoints, observed: np.ndarray, noise: np.ndarray) -> GaussianPoints:
    """The same from the posterior at the landmarks: m − C(D − C)⁻¹(f − m), C + C(D − C)⁻¹C.

    It takes one observation f of noise D out of a Gaussian N(m, C) again, without asking how often
    a landmark is listed. The noise must be the one that the fit itself used: any other, however
    near, can be less than the posterior's own covariance.
    """
    mean = np.asarray(at_landmarks.mean)
    cov = np.asarray(at_landmarks.covariance)
    gain = cov @ np.linalg.inv(noise - cov)
    miss = (observed - mean)[..., None]
    shift = (gain @ miss)[..., 0]
    return GaussianPoints(
        mean=mean - shift,
        covariance=cov + gain @ cov,
    )
