"""A check of the claimed covariance against the residuals: the sandwich.

The claimed covariance takes the score b = Σ N_kᵀ h w r for one of the covariance M, the information
itself. Neighbouring residuals are correlated, which the decimation factor makes up for on the
whole, but not at each place and for each displacement. With V, the covariance of the score as the
residuals tell it, the estimate of a point z errs by

    Λ_sand(z, z) = Λ_post(z, z) + T_z (V − M) T_zᵀ,    T_z = Λ_post(z, C).

T_z is how z follows a force on the sites C, the alignment included. It is the covariance of z and
C, so the draws u of the posterior have it. With S of them

    tr T_z(V − M)T_zᵀ ≈ Σ_{s≠t} (u_s(z)·u_t(z)) (u_sᵀ(V − M)u_t) / S(S − 1),

which is right on average, as two draws are independent. T_z is local: what is known of a place does
not depend on what is far away. So only nodes within some reach of z count, and chance has little to
say.
"""

import dataclasses

import numpy as np
from jaxtyping import Float, Int
from scipy.spatial import cKDTree

from kunita.inference.lattice_model import TINY
from kunita.inference.lattice_posterior import Draws, LatticePosterior
from kunita.jaxrun.doors import Array
from kunita.observations.lattice import CellInformation, Lattice

PLACES = 40
"""Of the check, about."""

REACH = 2.0
"""Within which the nodes count, over the shortest length scale. With solves for each direction the
median, the 5th and the 95th percentile were .948, .880 and 1.042 on a brain of 16,128 nodes; with
88 draws and this reach .949, .882 and 1.043. On textures all were within .01."""

INFORMED = 0.5
"""Places are nodes of which this share of the cells around is informed."""


@dataclasses.dataclass(frozen=True)
class SandwichRatio:
    """Standard deviations by the sandwich over those that are claimed, over some places.

    Above one the regions are too small, as far as the residuals tell.

    Args:
        median: of the places.
        low, high: the 5th and the 95th percentile.
    """

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, ratios: Float[Array, " m"]) -> "SandwichRatio":
        """From the ratio at each place."""
        low, median, high = np.percentile(ratios, [5, 50, 95])
        return cls(float(median), float(low), float(high))


def sandwich_ratio(
    posterior: LatticePosterior, draws: Draws, score: CellInformation
) -> SandwichRatio | None:
    """The check at some informed nodes of the lattice, evenly chosen; None if there is none.

    Args:
        posterior: that claims.
        draws: from it.
        score: V, of the images; landmarks are independent.
    """
    places = _places(posterior.model.information.cells)
    if not len(places):
        return None
    reach = REACH * posterior.model.flow.grid.shortest
    return SandwichRatio.of(sandwich_ratios(posterior, draws, score, places, reach))


def sandwich_ratios(
    posterior: LatticePosterior,
    draws: Draws,
    score: CellInformation,
    places: Int[Array, " m"],
    reach: float,
) -> Float[Array, " m"]:
    """√(tr Λ_sand/tr Λ_post) at some nodes.

    Args:
        posterior: that claims.
        draws: from it.
        score: V.
        places: the numbers of the nodes.
        reach: within which other nodes count, mm.
    """
    claimed = posterior.model.information.cells
    lattice = claimed.lattice
    excess = CellInformation(lattice, score.cells - claimed.cells)
    moved = _moved(posterior, draws)
    pulled = excess.product(moved)
    near = cKDTree(lattice.nodes).query_ball_point(lattice.nodes[places], reach)
    ratios = []
    for place, others in zip(places, near, strict=True):
        forms = _forms(moved[:, :, others], pulled[:, :, others])
        ratios.append(_ratio(moved[:, :, place], forms))
    return np.array(ratios)


def _moved(posterior: LatticePosterior, draws: Draws) -> Float[Array, "s d n"]:
    """How far each draw moves the nodes, mm."""
    num_nodes = posterior.model.lattice.num_nodes
    at_nodes = draws.at(posterior.model.flow)[:, :num_nodes]
    return np.ascontiguousarray(at_nodes.swapaxes(1, 2), np.float32)


def _forms(moved: Float[Array, "s d k"], pulled: Float[Array, "s d k"]) -> Float[Array, "s s"]:
    """u_sᵀ(V − M)u_t over the nodes within reach."""
    count = len(moved)
    return moved.reshape(count, -1) @ pulled.reshape(count, -1).T


def _ratio(at_place: Float[Array, "s d"], forms: Float[Array, "s s"]) -> float:
    """√(1 + tr T(V − M)Tᵀ/tr Λ_post) of one place, by its draws."""
    count = len(at_place)
    products = (at_place @ at_place.T).astype(np.float64)
    claimed = np.trace(products) / count
    excess = _mean_of_different(products * forms)
    return _root_of_sum(excess / max(claimed, TINY))


def _mean_of_different(pairs: Float[Array, "s s"]) -> float:
    """Over all pairs of two different draws."""
    count = len(pairs)
    total = pairs.sum() - np.trace(pairs)
    return total / (count * (count - 1))


def _root_of_sum(excess: float) -> float:
    """√(1 + x), zero where chance makes that negative."""
    return float(np.sqrt(max(1 + excess, 0.0)))


def _places(cells: CellInformation) -> Int[Array, " m"]:
    """Some informed nodes, evenly chosen."""
    informed = cells.informed(INFORMED)
    distance = _distance(cells.lattice, len(informed))
    chosen = np.intersect1d(cells.lattice.subset(distance), informed)
    return chosen if len(chosen) else informed[:1]


def _distance(lattice: Lattice, num_informed: int) -> float:
    """How far apart places are, mm."""
    nodes_for_each = num_informed / PLACES
    step = np.exp(np.mean(np.log(lattice.steps)))
    return float(step * nodes_for_each ** (1 / len(lattice.axes)))
