"""Smooth displacements that images tell well, solved at once: the coarse space of a search."""

import dataclasses

import numpy as np
import scipy.linalg
from jaxtyping import Float, Int

from kunita.inference.lattice_model import Duals, LatticeSystem, Vector
from kunita.jaxrun.doors import Array

LEAST_GAIN = 1.0
"""A node takes part in a coarse space if images say more of it than so many times the prior. On
lung CT, whose mask covers a third of the lattice, its matrix is then a seventh as large."""

MOST_COARSE = 1200
WIDER = 1.2
"""A coarse space has at most so many unknowns, as its matrix takes their square times all unknowns.
Where it has more, its nodes are moved apart by this factor, again and again."""

TOGETHER = 64
"""Displacements that are multiplied together: more need much memory."""

JITTER = 1e-6
"""Added to the diagonal of the coarse matrix: rounding in single precision may leave it
indefinite."""


@dataclasses.dataclass(frozen=True, eq=False)
class Deflation:
    """A coarse space that conjugate gradients need not search: Z = ΛE, E unit forces at some sites.

    With A = Λ⁻¹ + M, the products AZ = E + MZ need no inverse of Λ.

    Args:
        sites: (k,) which sites.
        moved: (kd, nd) Zᵀ.
        product: (kd, nd) (AZ)ᵀ.
        scale: (kd,) square roots of the diagonal of ZᵀAZ.
        factor: of ZᵀAZ, scaled so that its diagonal is one.
    """

    sites: np.ndarray
    moved: np.ndarray
    product: np.ndarray
    scale: np.ndarray
    factor: tuple[np.ndarray, bool]

    @classmethod
    def of(cls, system: LatticeSystem, sites: Int[Array, " k"]) -> "Deflation":
        """The coarse space of some sites."""
        covaried = system.flow.columns(sites)
        product = _informed(system, covaried)
        _add_units(product, sites)
        moved = covaried.reshape(len(covaried), -1)
        inner = (moved @ product.T).astype(np.float64)
        scale = np.sqrt(np.diag(inner))
        return cls(sites, moved, product, scale, _factor_scaled(inner, scale))

    @classmethod
    def at_informed(
        cls, system: LatticeSystem, distance: float, most: int = MOST_COARSE
    ) -> "Deflation | None":
        """The coarse space of nodes so far apart, of those that images say something of.

        Of the others the prior decides, and conjugate gradients need no help. Landmarks are in it,
        too: exact ones are what conjugate gradients find last. None without any.

        Args:
            system: Λ and M.
            distance: of the nodes, mm; more where there would be too many.
            most: unknowns.
        """
        information = system.information.whole
        lattice = information.cells.lattice
        gains = information.node_precisions() * system.flow.grid.variance
        is_informed = gains > LEAST_GAIN
        d, num_sites = system.shape
        landmarks = np.arange(lattice.num_nodes, num_sites)[: most // (2 * d)]
        chosen = lattice.subset(distance)
        while (np.sum(is_informed[chosen]) + len(landmarks)) * d > most:
            distance *= WIDER
            chosen = lattice.subset(distance)
        sites = np.concatenate([chosen[is_informed[chosen]], landmarks])
        return cls.of(system, sites) if len(sites) else None

    def coefficients(self, projections: Float[Array, "c k"]) -> Float[Array, "c k"]:
        """(ZᵀAZ)⁻¹y."""
        scaled = projections.astype(np.float64) / self.scale
        solved = scipy.linalg.cho_solve(self.factor, scaled.T).T
        return (solved / self.scale).astype(np.float32)

    def forces(self, coefficients: Float[Array, "c k"], like: Duals) -> Duals:
        """Ec."""
        forces = np.zeros_like(like)
        forces[:, :, self.sites] = coefficients.reshape(len(like), like.shape[1], -1)
        return forces

    def project(self, rest: Duals) -> "Vector":
        """The part of a solution that the coarse space has: Z(ZᵀAZ)⁻¹Zᵀr."""
        flat = rest.reshape(len(rest), -1)
        weights = self.coefficients(flat @ self.moved.T)
        return self._vector(weights, rest)

    def conjugate_part(self, covaried: Duals) -> "Vector":
        """What of z = Λr is not conjugate to the coarse space: Z(ZᵀAZ)⁻¹ZᵀAz."""
        flat = covaried.reshape(len(covaried), -1)
        weights = self.coefficients(flat @ self.product.T)
        return self._vector(weights, covaried)

    def _vector(self, weights: Float[Array, "c k"], like: Duals) -> "Vector":
        moved = (weights @ self.moved).reshape(like.shape)
        return Vector(self.forces(weights, like), moved)


def _informed(system: LatticeSystem, displacements: Duals) -> Float[Array, "c k"]:
    """M times many displacements, some at a time."""
    product = np.empty((len(displacements), displacements[0].size), np.float32)
    for first in range(0, len(displacements), TOGETHER):
        some = slice(first, first + TOGETHER)
        informed = system.information.product(displacements[some])
        product[some] = informed.reshape(len(informed), -1)
    return product


def _add_units(rows: Float[Array, "kd dn"], sites: Int[Array, " k"]) -> None:
    """Add unit forces at the sites, the axes before the sites, in place."""
    numbers = np.arange(len(rows))
    num_axes = len(rows) // len(sites)
    num_sites = rows.shape[1] // num_axes
    columns = (numbers // len(sites)) * num_sites + sites[numbers % len(sites)]
    rows[numbers, columns] += 1.0


def _factor_scaled(
    inner: Float[Array, "k k"], scale: Float[Array, " k"]
) -> tuple[np.ndarray, bool]:
    """The Cholesky factor of a matrix whose diagonal is brought to one."""
    correlations = (inner + inner.T) / (2 * np.outer(scale, scale))
    jitter = JITTER
    while True:
        try:
            lifted = correlations + jitter * np.eye(len(scale))
            return scipy.linalg.cho_factor(lifted, lower=True)
        except np.linalg.LinAlgError:
            # Rounding grows with the matrix. With more of it, conjugate gradients take more steps.
            jitter *= 10
