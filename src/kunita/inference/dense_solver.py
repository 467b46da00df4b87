"""Small linear problems of images, by matrices."""

import dataclasses

import numpy as np
import scipy.linalg
from jaxtyping import Float

from kunita import numerics
from kunita.inference.lattice_model import Duals, LatticeSystem, Solved, as_rows, unit_forces
from kunita.jaxrun.doors import Array


@dataclasses.dataclass(frozen=True, eq=False)
class DenseSolver:
    """(I + MΛ)⁻¹ by a factor of I + LᵀML, Λ = LLᵀ.

    Args:
        root: L.
        information: M.
        factor: of I + LᵀML.
    """

    root: np.ndarray
    information: np.ndarray
    factor: tuple[np.ndarray, bool]

    @classmethod
    def of(cls, system: LatticeSystem) -> "DenseSolver":
        """Form Λ by products with unit vectors, and factor."""
        covariance = as_rows(system.flow.product(unit_forces(*system.shape)))
        return cls.of_matrices(covariance, system.information.matrix())

    @classmethod
    def of_matrices(
        cls, covariance: Float[Array, "k k"], information: Float[Array, "k k"]
    ) -> "DenseSolver":
        """Factor Λ and I + LᵀML."""
        root = numerics.factor_semidefinite(covariance)
        inner = root.T @ information @ root
        inner[np.diag_indices(len(inner))] += 1
        return cls(root, information, _factor_above_one(inner))

    @property
    def log_det(self) -> float:
        """log|I + MΛ|."""
        return 2 * float(np.log(np.diag(self.factor[0])).sum())

    def solve(self, force: Duals) -> Duals:
        """(I + MΛ)⁻¹g = g − ML(I + LᵀML)⁻¹Lᵀg."""
        columns = force.reshape(len(force), -1).T.astype(np.float64)
        inner = scipy.linalg.cho_solve(self.factor, self.root.T @ columns)
        solved = columns - self.information @ (self.root @ inner)
        return np.ascontiguousarray(solved.T).reshape(force.shape).astype(np.float32)

    def solved(self, system: LatticeSystem, force: Duals) -> Solved:
        """The same with Λl."""
        found = system.covaried(self.solve(force))
        return Solved(found.dual, found.moved, num_iterations=0, residual=0.0)


def _factor_above_one(matrix: Float[Array, "k k"]) -> tuple[np.ndarray, bool]:
    """A factor of I + LᵀML, whose eigenvalues are no less than one.

    Where images agree to rounding, M is so large that its own rounding makes some of them less, and
    even negative. These are one.
    """
    try:
        return scipy.linalg.cho_factor(matrix, lower=True)
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(matrix)
        at_least_one = (vectors * np.maximum(values, 1)) @ vectors.T
        return scipy.linalg.cho_factor(at_least_one, lower=True)
