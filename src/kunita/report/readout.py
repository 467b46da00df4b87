"""What a click on the page shows: the posterior at any place, as a spline small enough to be
carried along.

The page knows, at every fixed point y, where it comes from, x = φ⁻¹(y), the covariance with which x
arrives at y, and det Dφ(x). All of them are components of the field that the maps are interpolated
from; here are its coefficients in a tensor product of B-splines, which a few lines of JavaScript
evaluate.
"""

import dataclasses
from typing import Any

import numpy as np
from scipy.interpolate import NdBSpline, make_interp_spline

from kunita.gaussians import radius_polynomial
from kunita.outputs.dense import DEGREE, SmoothField
from kunita.outputs.maps import LEVEL, Maps, summarise

MOST_NODES = 30_000
"""Nodes that a page carries: 1.2 MB of numbers in 3-D."""


@dataclasses.dataclass(frozen=True, eq=False)
class Readout:
    """A field in B-splines.

    Args:
        knots: for each axis, in voxels of the fixed grid.
        degrees: of the splines along each axis; 0, a constant, where there is a single node.
        coefficients: (k₁, …, k_d, c) float32; components: the displacement from the alignment's
            answer (d), the covariance xx, yx, yy, zx, zy, zz, the determinant.
        to_voxels: (d + 1, d + 1), from world to voxels.
        back: (d + 1, d + 1), the alignment from fixed to moving space.
        last_voxel: (d,) of the grid: the field ends there.
        displacement_error_mm, radius_error_mm: the largest errors against the posterior where they
            were looked for.
    """

    knots: tuple[np.ndarray, ...]
    degrees: tuple[int, ...]
    coefficients: np.ndarray
    to_voxels: np.ndarray
    back: np.ndarray
    last_voxel: np.ndarray
    displacement_error_mm: float = np.nan
    radius_error_mm: float = np.nan

    def at(self, points: np.ndarray) -> np.ndarray:
        """The components at (m, d) fixed points, (m, c); NaN outside the grid. The page's own
        program does the same.
        """
        voxels = points @ self.to_voxels[:-1, :-1].T + self.to_voxels[:-1, -1]
        inside = np.all((voxels >= -0.5) & (voxels <= self.last_voxel + 0.5), axis=1)
        values = NdBSpline(self.knots, self.coefficients, self.degrees)(
            np.clip(voxels, 0, self.last_voxel)
        )
        return np.where(inside[:, None], values, np.nan)

    def uncertainty(self, what: str, points: np.ndarray) -> np.ndarray:
        """FC, standard deviation or radius at (m, d) fixed points."""
        d = points.shape[1]
        return summarise(what, self.at(points)[:, d : d + d * (d + 1) // 2])

    @property
    def document(self) -> dict[str, Any]:
        """All but the coefficients, for JSON; with the polynomial that turns a covariance into the
        radius.
        """
        return {
            "knots": [axis.tolist() for axis in self.knots],
            "degrees": self.degrees,
            "shape": self.coefficients.shape,
            "toVoxels": self.to_voxels.tolist(),
            "back": self.back.tolist(),
            "lastVoxel": self.last_voxel.tolist(),
            "radius": radius_polynomial(LEVEL),
        }


def readout(found: Maps, most_nodes: int = MOST_NODES) -> Readout:
    """The maps in B-splines, on their own nodes, or on fewer if those are too many for a page."""
    field = _thinned(_without_the_rest(found.field), most_nodes)
    coefficients = field.values.astype(float)
    knots = []
    degrees = []
    for axis, nodes in enumerate(field.nodes):
        degree = next(k for k in (DEGREE, 3, 1, 0) if len(nodes) > k)
        if degree:
            spline = make_interp_spline(nodes, np.moveaxis(coefficients, axis, 0), k=degree)
            coefficients = np.moveaxis(spline.c, 0, axis)
        knots.append(spline.t if degree else np.array([0.0, 1.0]))
        degrees.append(degree)
    grid = field.grid
    d = grid.dimension
    made = Readout(
        tuple(knots),
        tuple(degrees),
        coefficients.astype(np.float32),
        np.linalg.inv(grid.affine),
        found.pull_back.affine,
        np.array(grid.shape) - 1,
    )
    apart, wrong = _errors(made, field, slice(d, d + d * (d + 1) // 2))
    return dataclasses.replace(made, displacement_error_mm=apart, radius_error_mm=wrong)


def _errors(made: Readout, field: SmoothField, covariance: slice) -> tuple[float, float]:
    """How far the splines are from the posterior, where the field was checked against it."""
    seen, exact = made.at(field.grid.world(field.checks)), field.exact
    apart = np.linalg.norm((seen - exact)[:, : covariance.start], axis=1)
    radii = (summarise("radius", values[:, covariance]) for values in (seen, exact))
    return float(apart.max()), float(np.abs(np.subtract(*radii)).max())


def _without_the_rest(field: SmoothField) -> SmoothField:
    """Displacement, covariance and determinant: what a page shows."""
    d = field.grid.dimension
    kept = d + d * (d + 1) // 2 + 1
    return dataclasses.replace(field, values=field.values[..., :kept], exact=field.exact[:, :kept])


def _thinned(field: SmoothField, most_nodes: int) -> SmoothField:
    """The same field on no more nodes than a page carries."""
    counts = np.array([len(nodes) for nodes in field.nodes])
    fewer = counts
    share = 1.0
    while np.prod(fewer) > most_nodes:
        share *= 0.97
        fewer = np.maximum(np.floor(share * counts), np.minimum(counts, DEGREE + 1)).astype(int)
    if np.array_equal(fewer, counts):
        return field
    nodes = tuple(np.linspace(0, n - 1, k) for n, k in zip(field.grid.shape, fewer, strict=True))
    return dataclasses.replace(field, nodes=nodes, values=field.on(nodes))
