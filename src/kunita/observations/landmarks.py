"""Homologous landmarks as observations."""

import dataclasses

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from kunita import numerics
from kunita.jaxrun.doors import Array, Scalar, namespace
from kunita.observations.base import AbstractObservations, Rows


class Correspondences(eqx.Module):
    """Points of both spaces that belong together: an alignment by least squares starts from them.

    Args:
        moving, fixed: the points.
        weights: of the pairs, the larger the more precise.
    """

    moving: Float[Array, "k d"]
    fixed: Float[Array, "k d"]
    weights: Float[Array, " k"]


class LandmarkObservations(AbstractObservations):
    """Homologous landmarks: fᵢ = φ₁(xᵢ) + εᵢ, εᵢ ~ N(0, Dᵢ), heteroscedastic and anisotropic.

    The noise may sit on both sides, Dᵢ = C_f,i + Jᵢ C_m,i Jᵢᵀ with J the Jacobian of the whole map.
    With D = CCᵀ a landmark has the d rows H = C⁻¹. A landmark that is known along some directions
    only, a point on a line or on a surface, has one row for each of them: B, whose rows are these
    directions, takes the place of the identity, and H = C⁻¹B with CCᵀ = BDBᵀ.

    Args:
        sites: the moving landmarks.
        fixed: the fixed ones.
        fixed_noise: covariances of the fixed points, mm².
        moving_noise: those of the moving points in their own space, mm²; None if they are exact.
        directions: orthonormal rows for each landmark, those that are known first; None if all are.
        known: the landmark and the place among its directions of every row; None if all are known.
        copies: how often each landmark is listed, each time with so many times its covariance;
            None if once.
    """

    sites: Float[Array, "n d"]
    fixed: Float[Array, "n d"]
    fixed_noise: Float[Array, "n d d"]
    moving_noise: Float[Array, "n d d"] | None = None
    directions: Float[Array, "n d d"] | None = None
    known: Int[Array, "k 2"] | None = None
    copies: Float[Array, " n"] | None = None

    @property
    def noise_sd(self) -> Scalar:
        """That of the median landmark along a typical direction of those that are known, mm."""
        total = self._unturned_noise
        xp = namespace(total)
        dimension = total.shape[1]
        typical = xp.trace(total, axis1=1, axis2=2) / dimension
        if self.known_directions is not None:
            seen = self.known_directions
            variances = xp.einsum("iab,ibc,iac->i", seen, total, seen)
            counts = xp.sum(seen**2, axis=(1, 2))  # the rows are of unit length, or zero
            typical = variances / counts
        median = xp.median(typical)
        sd = xp.sqrt(median)
        return xp.asarray(sd)

    def noise(self, jacobians: Float[Array, "n d d"]) -> Float[Array, "n d d"]:
        """Dᵢ = C_f,i + Jᵢ C_m,i Jᵢᵀ, with J the Jacobian of the whole map at the landmark."""
        if self.moving_noise is None:
            return self.fixed_noise
        return noise_of_both_sides(self.fixed_noise, self.moving_noise, jacobians)

    @property
    def _unturned_noise(self) -> Float[Array, "n d d"]:
        """C_f + C_m: the noise of both sides, before any map is known."""
        if self.moving_noise is None:
            return self.fixed_noise
        return self.fixed_noise + self.moving_noise

    @property
    def known_directions(self) -> Float[Array, "n d d"] | None:
        """B, filled up with zeros where a direction is not known; None if all are."""
        if self.directions is None or self.known is None:
            return None
        is_known = _is_known(self.known, self.sites.shape)
        return is_known[:, :, None] * self.directions

    @property
    def shares(self) -> np.ndarray | None:
        """(n,) how much of a landmark each copy of it stands for; None if all are listed once."""
        return None if self.copies is None else 1 / np.asarray(self.copies)

    @property
    def num_different(self) -> float:
        """How many numbers are observed, those of a landmark that is listed several times once."""
        n, d = self.sites.shape
        shares = np.ones(n) if self.shares is None else self.shares
        if self.known is None:
            return d * float(shares.sum())
        landmark = np.asarray(self.known)[:, 0]
        return float(shares[landmark].sum())

    @property
    def known_completely(self) -> np.ndarray:
        """(n,) which landmarks are known along all directions."""
        n, d = self.sites.shape
        if self.known is None:
            return np.ones(n, dtype=bool)
        known = np.asarray(self.known)
        counts = np.bincount(known[:, 0], minlength=n)
        return counts == d

    def correspondences(self) -> Correspondences:
        """The landmarks that are known along all directions, weighted by their noise."""
        whole = self.known_completely
        noise = np.asarray(self._unturned_noise)[whole]
        variances = np.trace(noise, axis1=1, axis2=2)
        return Correspondences(self.sites[whole], self.fixed[whole], 1 / variances)

    def scaled(self, factor: Scalar) -> "LandmarkObservations":
        """The same with all covariances multiplied by a factor."""
        moving_noise = None
        if self.moving_noise is not None:
            moving_noise = factor * self.moving_noise
        return dataclasses.replace(
            self,
            fixed_noise=factor * self.fixed_noise,
            moving_noise=moving_noise,
        )

    def about(self, origin: Float[Array, " d"]) -> "LandmarkObservations":
        """The same with the fixed points relative to another origin."""
        fixed = self.fixed - origin
        return dataclasses.replace(self, fixed=fixed)

    def rows(self, arrived: Float[Array, "n d"], jacobians: Float[Array, "n d d"]) -> Rows:
        noise = self.noise(jacobians)
        miss = self.fixed - arrived
        if self.directions is None or self.known is None:
            return _rows_of_whole_landmarks(noise, miss, self.copies)
        return _rows_along_directions(
            noise,
            miss,
            self.directions,
            self.known,
            self.copies,
        )


def noise_of_both_sides(
    fixed_noise: Float[Array, "n d d"],
    moving_noise: Float[Array, "n d d"],
    jacobians: Float[Array, "n d d"],
) -> Float[Array, "n d d"]:
    """D = C_f + J C_m Jᵀ: the noise of both sides, where the fixed landmarks are."""
    xp = namespace(fixed_noise, moving_noise, jacobians)
    carried = xp.einsum("iab,ibc,idc->iad", jacobians, moving_noise, jacobians)
    return fixed_noise + carried


def _rows_of_whole_landmarks(
    noise: Float[Array, "n d d"], miss: Float[Array, "n d"], copies: Float[Array, " n"] | None
) -> Rows:
    """H = C⁻¹, d rows for each landmark."""
    n, d = miss.shape
    xp = namespace(noise, miss)
    factor = numerics.cholesky_small(noise)
    operator = numerics.inverse_small(factor)
    landmark = xp.repeat(xp.arange(n), d)
    return Rows(
        site=landmark,
        operator=operator.reshape(n * d, d),
        residual=xp.einsum("iab,ib->ia", operator, miss).ravel(),
        log_det=_log_det(factor, xp.full(n, d), copies),
        group=landmark,
        per_site=d,
    )


def _rows_along_directions(
    noise: Float[Array, "n d d"],
    miss: Float[Array, "n d"],
    directions: Float[Array, "n d d"],
    known: Int[Array, "k 2"],
    copies: Float[Array, " n"] | None,
) -> Rows:
    """H = C⁻¹B, CCᵀ = BDBᵀ: one row for each direction that is known."""
    d = miss.shape[1]
    landmark = known[:, 0]
    place = known[:, 1]
    is_known = _is_known(known, miss.shape)
    xp = namespace(noise, miss, directions, known)
    turned = xp.einsum("iab,ibc,idc->iad", directions, noise, directions)
    # What is not known is uncoupled and of unit variance: its rows are left out below, and its
    # part of the factor, the identity, neither reaches the others nor counts in the determinant.
    both = is_known[:, :, None] * is_known[:, None, :]
    completed = both * turned + (1 - both) * xp.eye(d)
    factor = numerics.cholesky_small(completed)
    operator = numerics.inverse_small(factor) @ directions
    residual = xp.einsum("iab,ib->ia", operator, miss)
    return Rows(
        site=landmark,
        operator=operator[landmark, place],
        residual=residual[landmark, place],
        log_det=_log_det(factor, is_known.sum(axis=1), copies),
        group=landmark,
    )


def _is_known(known: Int[Array, "k 2"], shape: tuple[int, ...]) -> Float[Array, "n d"]:
    """One at every place among the directions of a landmark that is known, else zero."""
    landmark = known[:, 0]
    place = known[:, 1]
    if isinstance(known, np.ndarray):
        marks = np.zeros(shape)
        marks[landmark, place] = 1.0
        return marks
    return jnp.zeros(shape).at[landmark, place].set(1.0)


def _log_det(
    factor: Float[Array, "n d d"],
    num_rows: Float[Array, " n"] | Int[Array, " n"],
    copies: Float[Array, " n"] | None,
) -> Scalar:
    """Σ log|Dᵢ|, from the factors of Dᵢ = CCᵀ; each landmark as if it were listed once.

    A landmark of r rows that is listed k times with k times its covariance D is worth N(f; φ, D) as
    before, but for the factors in front. Each copy should bring |2πD|^(−1/2k), and brings
    |2πkD|^(−½). With (2π)^r set aside, as in log|R|, its share is

        (log|kD| − r log k + r log 2π)/k − r log 2π.

    Args:
        factor: of Dᵢ, of a copy kDᵢ; the identity along what is not known.
        num_rows: r, how many directions of each landmark are known.
        copies: k; None if every landmark is listed once.
    """
    xp = namespace(factor)
    diagonals = xp.diagonal(factor, axis1=-2, axis2=-1)
    logarithms = xp.log(diagonals)
    log_dets = 2 * xp.sum(logarithms, axis=1)
    if copies is None:
        return xp.sum(log_dets)
    constants = num_rows * xp.log(2 * xp.pi)
    of_landmark = log_dets - num_rows * xp.log(copies) + constants
    shares = of_landmark / copies - constants
    return xp.sum(shares)


def rows_of_known_directions(counts: np.ndarray) -> np.ndarray:
    """(k, 2) landmark and place of each row, from the number of known directions of each."""
    landmarks = np.arange(len(counts))
    places = [np.arange(count) for count in counts]
    columns = [
        np.repeat(landmarks, counts),
        np.concatenate(places),
    ]
    return np.stack(columns, axis=1)
