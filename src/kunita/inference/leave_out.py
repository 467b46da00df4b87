"""Leave-one-out in closed form: every group of rows predicted from all others, without refitting.

With P = S⁻¹ − S⁻¹HJhA⁻¹(HJh)ᵀS⁻¹ and w = S⁻¹(y − HJhβ̂) of the joint fit, λ = Hᵀw, the prediction
without the rows of group g misses them by P_gg⁻¹w_g and has covariance P_gg⁻¹, their noise
included: exact for a linear model, first order around the fit otherwise. In mm the miss is
C_gP_gg⁻¹w_g and its covariance C_gP_gg⁻¹C_gᵀ, with C_g = H_g⁺. For a landmark with noise D, HᵀPH is
the precision of what was observed, and the miss is (HᵀPH)_ii⁻¹λ_i.
"""

import dataclasses

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from kunita import numerics
from kunita.errors import LandmarkError
from kunita.gaussians import GaussianPoints
from kunita.inference.path_space import AbstractPathSpace, AbstractRowSpace
from kunita.inference.problem import Step
from kunita.jaxrun.doors import Array, door
from kunita.jaxrun.programs import SMALL_MATRIX, compiled
from kunita.observations.base import Rows

UNDETERMINED = 1e-9
"""Where P is smaller than this share of S⁻¹, the alignment needs the group: the others say nothing.
"""


class LeaveOneOut(eqx.Module):
    """Each fixed landmark as predicted from all the others.

    Args:
        mean: where it is predicted, mm. Along directions in which the landmark is not known this
            is where the fit takes it.
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
    """Rows by group, all groups filled up to the largest one.

    Args:
        rows: the numbers of the rows of each group.
        meant: which of them are meant; the others only fill up.
        site: the site that the rows of a group look at.
        to_mm: C_g = H_g⁺; rows that only fill up count for nothing.
    """

    rows: Int[Array, "g r"]
    meant: Bool[Array, "g r"]
    site: Int[Array, " g"]
    to_mm: Float[Array, "g d r"]

    @classmethod
    def of(cls, rows: Rows) -> "Groups":
        """From the groups that rows belong to; on the host."""
        group = np.asarray(rows.group)
        counts = np.bincount(group)
        order = np.argsort(group, kind="stable")
        starts = np.cumsum(counts) - counts
        places = np.arange(counts.max())
        meant = places < counts[:, None]
        first = starts[:, None]
        filled = order[np.where(meant, first + places, first)]
        sites = np.asarray(rows.site)[filled]
        _refuse_several_sites(sites)
        operator = meant[:, :, None] * np.asarray(rows.operator)[filled]
        return cls(filled, meant, sites[:, 0], np.linalg.pinv(operator))


def _refuse_several_sites(sites: np.ndarray) -> None:
    """Refuse groups whose rows look at several sites: their miss has no place."""
    first = sites[:, :1]
    same = np.all(sites == first, axis=1)
    if not np.all(same):
        group = int(np.argmin(same))
        raise LandmarkError(
            f"leave-one-out: expected groups of rows that look at one site each; "
            f"those of group {group} look at several"
        )


def row_weights(rows: Rows, dual: Float[Array, "n d"]) -> Float[Array, " k"]:
    """w, from λ = Hᵀw and w = r − Hδφ₁, where δφ₁ is what a fit that stopped early lacks.

    Hence M δφ₁ = Hᵀr − λ at every site, M = HᵀH. At a converged fit w = r.
    """
    lacking = rows.missing_displacements(dual)
    operator = np.asarray(rows.operator)
    explained = np.sum(operator * lacking[rows.site], axis=1)
    return np.asarray(rows.residual) - explained


@compiled(hasty=SMALL_MATRIX)
def leave_out(
    linear: AbstractRowSpace,
    weights: Float[Array, " k"],
    arrived: Float[Array, "n d"],
    groups: Groups,
) -> tuple[Float[Array, "g r r"], Float[Array, "g r r"], LeaveOneOut]:
    """The blocks of P and of S⁻¹ of each group, and what follows from them; weights are w."""
    to_mm = groups.to_mm
    inverses = linear.row_precision(groups.rows)
    precision = _meant(groups, inverses - _through_alignment(linear, groups))
    covariance = _inverse(precision)
    of_group = groups.meant * weights[groups.rows]
    miss, chi2 = miss_and_chi2(covariance, of_group)
    miss_mm = jnp.einsum("gar,gr->ga", to_mm, miss)
    residual = groups.meant * linear.rows.residual[groups.rows]
    observed = arrived[groups.site] + jnp.einsum("gar,gr->ga", to_mm, residual)
    found = LeaveOneOut(
        mean=observed - miss_mm,
        covariance=jnp.einsum("gar,grs,gbs->gab", to_mm, covariance, to_mm),
        error=jnp.linalg.norm(miss_mm, axis=1),
        chi2=chi2,
        known=jnp.sum(groups.meant, axis=1),
    )
    return precision, _meant(groups, inverses), found


def miss_and_chi2(
    covariance: Float[Array, "*g r r"], weights: Float[Array, "*g r"]
) -> tuple[Float[Array, "*g r"], Float[Array, "*g"]]:
    """P_gg⁻¹w_g, by which the others miss a group, and w_gᵀP_gg⁻¹w_g, its standardised square.

    Args:
        covariance: P_gg⁻¹, of the prediction and of the rows' own noise.
        weights: w_g.
    """
    product = covariance @ weights[..., None]
    miss = product[..., 0]
    chi2 = (weights * miss).sum(axis=-1)
    return miss, chi2


def _through_alignment(linear: AbstractRowSpace, groups: Groups) -> Float[Array, "g r r"]:
    """The blocks of S⁻¹HJhA⁻¹(HJh)ᵀS⁻¹: what the alignment takes of the rows' precision."""
    solved = linear.solve_rows(linear.design)
    whitened = numerics.solve_lower(linear.trend_factor, solved.T)
    half = whitened[:, groups.rows]
    return numerics.block_squares(half)


def is_determined(precision: np.ndarray, inverses: np.ndarray) -> bool:
    """Whether the others say something of every group, by its blocks of P and of S⁻¹."""
    least = np.linalg.eigvalsh(precision)[:, 0]
    sizes = np.trace(inverses, axis1=1, axis2=2)
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


# --------------------------------------------------------------------- without some of the sites


@dataclasses.dataclass(frozen=True, eq=False)
class Influence:
    """How a fit would change with what was observed at its sites, to first order.

    Args:
        precision: (nd, nd) HᵀPH = Q − QJhA⁻¹(Jh)ᵀQ, the change of λ with the observations.
        gain: (b, nd) A⁻¹(Jh)ᵀQ, that of the alignment.
        dual: (n, d) λ.
        jacobians: (n, d, d) of the flow at the sites, which carry λ back to the initial momenta.
    """

    precision: np.ndarray
    gain: np.ndarray
    dual: np.ndarray
    jacobians: np.ndarray

    @classmethod
    @door
    def of(cls, linear: AbstractPathSpace, dual: Float[Array, "n d"]) -> "Influence":
        """Of the linear model around a fit, and its λ."""
        explained = np.asarray(linear.explain(np.eye(dual.size)))
        solved = np.asarray(linear.solved_design)
        gain = np.asarray(numerics.solve_cholesky(linear.trend_factor, solved.T))
        return cls(
            precision=explained - solved @ gain,
            gain=gain,
            dual=np.asarray(dual),
            jacobians=np.asarray(linear.jacobians),
        )

    def without(self, sites: np.ndarray) -> Step:
        """The step to the fit that does not see what was observed at some of the sites.

        Moved by their miss, −(HᵀPH)⁻¹λ of these sites, the observations pull at nothing.
        """
        d = self.dual.shape[1]
        left = (sites[:, None] * d + np.arange(d)).ravel()
        among = self.precision[np.ix_(left, left)]
        pull = -self.dual[sites].ravel()
        moved = np.linalg.lstsq(among, pull, rcond=None)[0]
        change = (self.precision[:, left] @ moved).reshape(self.dual.shape)
        momenta = np.einsum("iba,ib->ia", self.jacobians, change)
        return Step(self.gain[:, left] @ moved, momenta)


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
