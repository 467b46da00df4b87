"""Maps on the fixed grid: where every voxel comes from, how sure that is, how tissue expanded.

At a fixed point y everything belongs to its pre-image x = φ⁻¹(y): the covariance shown is that with which x arrives at
y, in fixed space, and the Jacobian is that of φ at x (so a determinant above one says that tissue expanded).
"""

import dataclasses
import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from kunita.data.image import Grid, Image, as_grid
from kunita.errors import ArgumentError, KunitaWarning
from kunita.gaussians import ball_radius_of_variances
from kunita.kernels import length_scales
from kunita.outputs.dense import Lattice, Progress, SmoothField, lattice_points, slabs, smooth_field
from kunita.posterior import Posterior
from kunita.registration import Registration

WHATS = ("fc", "std", "radius", "cov", "jacobian")
UNITS = {"fc": "mm²", "std": "mm", "radius": "mm", "cov": "mm²", "jacobian": "1"}
LEVEL = 0.95

MEAN_TOLERANCE = 2e-3
STD_TOLERANCE = 0.01
DETERMINANT_TOLERANCE = 2e-3
"""Errors that interpolation may add: mm, mm, 1."""

NODES_PER_SCALE = 2.0
BATCH = 8192
"""Points between two signs of progress."""


@dataclasses.dataclass(frozen=True, eq=False)
class PullBack:
    """For every voxel of a grid, the point of the other space that arrives there.

    Args:
        field: displacement from the alignment's answer to the true one, mm, in the other space.
        affine: (d + 1, d + 1), the alignment from the grid's space to the other.
    """

    field: SmoothField
    affine: np.ndarray

    @property
    def grid(self) -> Grid:
        return self.field.grid

    @property
    def remarks(self) -> tuple[str, ...]:
        """What to say of a field that could not be made exact enough."""
        error = float(np.linalg.norm(self.field.error[: self.grid.dimension]))
        if error <= MEAN_TOLERANCE:
            return ()
        return (f"the map varies faster than could be computed: interpolated, it errs by up to {error:.2g} mm",)

    def origins(self, lattice: Lattice) -> np.ndarray:
        """The points that arrive at the voxels of a lattice, (…, d)."""
        d = self.grid.dimension
        aligned = lattice_points(self.grid, lattice) @ self.affine[:d, :d].T + self.affine[:d, d]
        return aligned + self.field.on(lattice, slice(0, d))


@dataclasses.dataclass(frozen=True, eq=False)
class Maps:
    """All maps of one registration on one fixed grid, made slab by slab.

    Args:
        pull_back: its field has, after the displacement, the covariance, the determinant, and the covariance in
            moving space.
    """

    pull_back: PullBack

    @property
    def field(self) -> SmoothField:
        return self.pull_back.field

    @property
    def grid(self) -> Grid:
        return self.field.grid

    def on(self, lattice: Lattice, what: str) -> np.ndarray:
        """One map at the voxels of a lattice: (…) or, for "cov", (…, d(d+1)/2): xx, yx, yy, zx, zy, zz."""
        columns = _columns(self.grid.dimension)
        if what == "jacobian":
            return self.field.on(lattice, columns.determinant)[..., 0]
        covariance = self.field.on(lattice, columns.covariance)
        return covariance if what == "cov" else summarise(what, covariance)

    def component(self, lattice: Lattice, k: int) -> np.ndarray:
        """One component of the covariance, in the order xx, yx, yy, zx, zy, zz."""
        first = _columns(self.grid.dimension).covariance.start + k
        return self.field.on(lattice, slice(first, first + 1))[..., 0]

    def moving_covariances(self, lattice: Lattice) -> np.ndarray:
        """Covariance of the pre-images of a lattice's voxels in moving space, (…, d, d)."""
        return unpacked(self.field.on(lattice, _columns(self.grid.dimension).carried_back))

    def several(self, lattice: Lattice, whats: Sequence[str]) -> Iterator[tuple[str, np.ndarray]]:
        """Several maps, the covariance interpolated once for all of them."""
        covariance = self.field.on(lattice, _columns(self.grid.dimension).covariance)
        for what in whats:
            yield what, self.on(lattice, what) if what == "jacobian" else summarise(what, covariance)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What to say of maps that could not be made exact enough."""
        if self.field.good:
            return ()
        part = self.field.error[_columns(self.grid.dimension).covariance]
        return (
            *self.pull_back.remarks,
            f"the uncertainty varies faster than could be computed: interpolated, a variance errs by up to "
            f"{part.max():.2g} mm²; smaller images, or a longer length scale, help",
        )

    @property
    def least_jacobian(self) -> float:
        """The smallest determinant at the nodes, which are finer than what it varies over."""
        return float(self.field.values[..., _columns(self.grid.dimension).determinant].min())


def maps(reg: Registration, reference: Any, progress: Progress = lambda fraction: None) -> Maps:
    """Evaluate a registration on a grid in fixed space, on nodes as coarse as the tolerances allow."""
    grid = as_grid(reference)
    _check_dimension(reg, grid)
    back = np.linalg.inv(reg.posterior.affine)
    spacing = min(length_scales(reg.kernel)) / NODES_PER_SCALE
    field = smooth_field(
        in_batches(lambda y: _everything(reg.posterior, back, y)),
        lambda exact: _tolerances(exact, grid.dimension),
        grid,
        spacing,
        reg.posterior.predict(reg.moving.points).mean,
        progress,
    )
    return Maps(PullBack(field, back))


def pull_back(
    reg: Registration,
    reference: Any,
    *,
    inverse: bool = False,
    progress: Progress = lambda fraction: None,
) -> PullBack:
    """Where the voxels of a fixed grid come from; with `inverse`, where those of a moving grid go to."""
    grid = as_grid(reference)
    _check_dimension(reg, grid)
    posterior, d = reg.posterior, grid.dimension
    affine = posterior.affine if inverse else np.linalg.inv(posterior.affine)
    move = posterior.move if inverse else posterior.move_back
    displace = in_batches(lambda x: move(x) - (x @ affine[:d, :d].T + affine[:d, d]))
    tolerances = lambda exact: np.full_like(exact, MEAN_TOLERANCE)
    landmarks = reg.moving.points if inverse else reg.fixed.points
    spacing = min(length_scales(reg.kernel)) / NODES_PER_SCALE
    return PullBack(smooth_field(displace, tolerances, grid, spacing, landmarks, progress), affine)


def uncertainty_map(reg: Registration, grid: Any, what: str = "fc") -> Image:
    """One map as an image in fixed space.

    Args:
        reg: a registration.
        grid: a Grid, or an Image on it.
        what: "fc" ‖Λ‖_F, mm²; "std" √(tr Λ/d), mm; "radius" of the 95 % ball, mm; "cov" the components
            xx, yx, yy, zx, zy, zz of Λ, mm², along memory's own axes, RAS (`kunita uncertainty --what cov` writes
            them along LPS, as other programs want); "jacobian" the determinant.
    """
    check_what(what)
    found = maps(reg, grid)
    warn(found.remarks)
    data = np.concatenate([found.on(slab, what) for slab in slabs(found.grid)], axis=found.grid.dimension - 1)
    return Image(data.astype(np.float32), found.grid.affine, channels=what == "cov")


def warn(remarks: Sequence[str]) -> None:
    """Say to the caller of a public function what deserves a second look."""
    for remark in remarks:
        warnings.warn(remark, KunitaWarning, stacklevel=3)


def check_what(what: str) -> str:
    """Refuse a map that does not exist."""
    if what not in WHATS:
        raise ArgumentError(f"what: expected one of {', '.join(WHATS)}, found {what!r}")
    return what


def summarise(what: str, packed_covariance: np.ndarray) -> np.ndarray:
    """FC, standard deviation or 95 % radius of packed covariances (…, d(d+1)/2)."""
    rows, columns = _triangle(packed_covariance.shape[-1])
    on_diagonal = rows == columns
    if what == "radius":
        return ball_radius_of_variances(principal_variances(packed_covariance), LEVEL)
    if what == "fc":
        return np.sqrt(packed_covariance**2 @ np.where(on_diagonal, 1.0, 2.0))
    return np.sqrt(np.maximum(packed_covariance @ on_diagonal.astype(float), 0) / on_diagonal.sum())


def principal_variances(packed_covariance: np.ndarray) -> np.ndarray:
    """Eigenvalues of packed covariances in increasing order, (…, d), in closed form: made for millions of voxels.

    With m the mean of the diagonal and p² = ‖Λ − mI‖²/6, the eigenvalues of a 3×3 matrix are m + 2p·cos(θ + 2πk/3),
    cos 3θ = det(Λ − mI)/2p³.
    """
    c = np.moveaxis(packed_covariance, -1, 0)
    if len(c) == 3:
        xx, yx, yy = c
        mean, spread = (xx + yy) / 2, np.hypot((xx - yy) / 2, yx)
        return np.stack([mean - spread, mean + spread], axis=-1)
    xx, yx, yy, zx, zy, zz = c
    mean = (xx + yy + zz) / 3
    x, y, z = xx - mean, yy - mean, zz - mean
    p = np.sqrt((x**2 + y**2 + z**2 + 2 * (yx**2 + zx**2 + zy**2)) / 6)
    determinant = x * (y * z - zy**2) - yx * (yx * z - zy * zx) + zx * (yx * zy - y * zx)
    cosine = determinant / np.where(p > 0, 2 * p**3, 1.0)
    theta = np.arccos(np.clip(cosine, -1, 1)) / 3
    return np.stack([mean + 2 * p * np.cos(theta + 2 * np.pi * k / 3) for k in (1, 2, 0)], axis=-1)


def packed(covariances: np.ndarray) -> np.ndarray:
    """The lower triangle row by row, NIfTI's order: xx, yx, yy, zx, zy, zz."""
    rows, columns = np.tril_indices(covariances.shape[-1])
    return covariances[..., rows, columns]


def unpacked(components: np.ndarray) -> np.ndarray:
    """(…, d, d) covariances from their packed components."""
    rows, columns = _triangle(components.shape[-1])
    d = rows[-1] + 1
    full = np.empty((*components.shape[:-1], d, d))
    full[..., rows, columns] = full[..., columns, rows] = components
    return full


def in_batches(function: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray, Progress], np.ndarray]:
    """Apply a function to many points, some at a time, telling how far it is."""

    def apply(points: np.ndarray, progress: Progress) -> np.ndarray:
        pieces = []
        for start in range(0, len(points), BATCH):
            pieces.append(function(points[start : start + BATCH]))
            progress(min(1.0, (start + BATCH) / len(points)))
        return np.concatenate(pieces)

    return apply


@dataclasses.dataclass(frozen=True)
class _Columns:
    """Where each quantity is among the components of the field."""

    displacement: slice
    covariance: slice
    determinant: slice
    carried_back: slice


def _columns(d: int) -> _Columns:
    widths = np.cumsum([0, d, d * (d + 1) // 2, 1, d * (d + 1) // 2])
    return _Columns(*(slice(int(a), int(b)) for a, b in itertools.pairwise(widths)))


def _everything(posterior: Posterior, back: np.ndarray, y: np.ndarray) -> np.ndarray:
    """All components of the field at fixed points."""
    d, pre = y.shape[1], posterior.preimage(y)
    displacement = pre.points - (y @ back[:d, :d].T + back[:d, d])
    determinant = np.linalg.det(pre.jacobians)
    return np.c_[displacement, packed(np.asarray(pre.covariance)), determinant, packed(pre.carried_back)]


def _tolerances(exact: np.ndarray, d: int) -> np.ndarray:
    """Allowed errors; a covariance may err by what changes a standard deviation by its tolerance: δΛ = 2σδσ."""
    columns, allowed = _columns(d), np.empty_like(exact)
    allowed[:, columns.displacement] = MEAN_TOLERANCE
    allowed[:, columns.determinant] = DETERMINANT_TOLERANCE
    for part in (columns.covariance, columns.carried_back):
        allowed[:, part] = 2 * STD_TOLERANCE * np.maximum(summarise("std", exact[:, part]), STD_TOLERANCE)[:, None]
    return allowed


def _triangle(size: int) -> tuple[np.ndarray, np.ndarray]:
    return np.tril_indices({3: 2, 6: 3}[size])


def _check_dimension(reg: Registration, grid: Grid) -> None:
    if grid.dimension != reg.fixed.dimension:
        raise ArgumentError(
            f"reference: expected a {reg.fixed.dimension}-D grid, as the landmarks are, found {grid.dimension}-D"
        )
