"""Maps on the fixed grid: where every voxel comes from, how sure that is, how tissue expanded.

At a fixed point y everything belongs to its pre-image x = φ⁻¹(y): the covariance shown is that with
which x arrives at y, in fixed space, and the Jacobian is that of φ at x (so a determinant above one
says that tissue expanded).
"""

import dataclasses
import functools
import itertools
import operator
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from kunita.data.image import Grid, Image, as_grid
from kunita.data.slices import grid_in, on_slice
from kunita.errors import ArgumentError, KunitaWarning
from kunita.evaluation import prepare
from kunita.gaussians import ball_radius_of_invariants
from kunita.jaxrun.threads import in_order
from kunita.kernels import length_scales
from kunita.outputs.dense import (
    MOST_NODES,
    SINGLE_SHARE,
    Function,
    Lattice,
    Progress,
    SmoothField,
    fineness,
    lattice_map,
    random_places,
    slabs,
    smooth_field,
)
from kunita.record import AnyEvaluation, AnyPosterior, Registration

WHATS = ("fc", "std", "radius", "cov", "jacobian")
UNITS = {"fc": "mm²", "std": "mm", "radius": "mm", "cov": "mm²", "jacobian": "1"}
LEVEL = 0.95

MEAN_TOLERANCE = 2e-3
STD_TOLERANCE = 0.01
DETERMINANT_TOLERANCE = 2e-3
"""Errors that interpolation may add: mm, mm, 1."""

IMAGE_EASE = 5.0
"""Where images drive a registration, means and determinants may err by so many times as much, and
standard deviations by twice as much: radii from draws have a standard error of about 5 per cent."""

IMAGE_NODES_PER_SCALE = 5.5
"""The velocity is a cubic spline there, which nodes that are farther apart do not follow: on lung
CT they are refined to this in any case."""

PROMISED_MEAN = 0.01
PROMISED_FC = 0.01
IMAGE_PROMISED_MEAN = 0.02
IMAGE_PROMISED_FC = 0.05
"""What is promised of every voxel: mm, and relative to FC, which is small at the landmarks. From
draws, FC itself has a standard error of about 10 per cent."""

NODES_PER_SCALE = 2.0
BATCH = 32_768
"""Points between two signs of progress."""


@dataclasses.dataclass(frozen=True)
class Accuracy:
    """How far interpolated maps are from the posterior, at voxels that had no part in making them.

    Args:
        mean_error_mm: the largest distance between where a voxel comes from and where the map says
            so.
        fc_relative_error: the largest error of FC, relative to it.
        checked: the number of voxels, half of them anywhere and half of them around landmarks.
        precision: the numbers that the nodes were computed with; the checks are in float64 always.
        promised_fc: what the error of FC is promised not to exceed.
        promised_mean_mm: what the distance is promised not to exceed.
    """

    mean_error_mm: float
    fc_relative_error: float
    checked: int
    precision: str
    promised_fc: float = PROMISED_FC
    promised_mean_mm: float = PROMISED_MEAN

    @property
    def kept(self) -> bool:
        """Whether it is as good as promised."""
        is_mean_kept = self.mean_error_mm <= self.promised_mean_mm
        return is_mean_kept and self.fc_relative_error <= self.promised_fc


@dataclasses.dataclass(frozen=True, eq=False)
class PullBack:
    """For every voxel of a grid, the point of the other space that arrives there.

    Args:
        field: displacement from the alignment's answer to the true one, mm, in the other space.
        affine: (d + 1, d + 1), the alignment from the grid's space to the other.
        tolerance: what the field was to err by at most, mm.
    """

    field: SmoothField
    affine: np.ndarray
    tolerance: float = MEAN_TOLERANCE

    @property
    def grid(self) -> Grid:
        return self.field.grid

    @property
    def remarks(self) -> tuple[str, ...]:
        """What to say of a field that could not be made exact enough."""
        error = float(np.linalg.norm(self.field.error[: self.grid.dimension]))
        if error <= self.tolerance * fineness(self.grid):
            return ()
        return (
            f"the map varies faster than could be computed: interpolated, it errs by up to {error:.2g} mm",
        )

    def origins(self, lattice: Lattice) -> np.ndarray:
        """The points that arrive at the voxels of a lattice, (…, d)."""
        aligned = lattice_map(self.affine @ self.grid.affine, lattice)
        return aligned + self.field.on(lattice, slice(0, self.grid.dimension))


@dataclasses.dataclass(frozen=True, eq=False)
class Maps:
    """All maps of one registration on one fixed grid, made slab by slab.

    Args:
        pull_back: its field has, after the displacement, the covariance, the determinant, and the
            covariance in moving space.
        accuracy: what a check at other voxels found.
    """

    pull_back: PullBack
    accuracy: Accuracy

    @property
    def field(self) -> SmoothField:
        return self.pull_back.field

    @property
    def grid(self) -> Grid:
        return self.field.grid

    def on(self, lattice: Lattice, what: str) -> np.ndarray:
        """One map at the voxels of a lattice: (…) or, for "cov", (…, d(d+1)/2): xx, yx, yy, zx, zy,
        zz.
        """
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
            yield (
                what,
                self.on(lattice, what) if what == "jacobian" else summarise(what, covariance),
            )

    @property
    def remarks(self) -> tuple[str, ...]:
        """What to say of maps that could not be made exact enough."""
        if self.field.good and self.accuracy.kept:
            return ()
        part = self.field.error[_columns(self.grid.dimension).covariance]
        return (
            *self.pull_back.remarks,
            f"the uncertainty varies faster than could be computed: interpolated, a variance errs by up to "
            f"{part.max():.2g} mm² and FC by {100 * self.accuracy.fc_relative_error:.2g} %; smaller images, or a "
            "longer length scale, help",
        )

    @property
    def least_jacobian(self) -> float:
        """The smallest determinant at the nodes, which are finer than what it varies over."""
        return float(self.field.values[..., _columns(self.grid.dimension).determinant].min())

    def determinants(self, most: int) -> np.ndarray:
        """Determinants at no more than so many places, evenly over the grid."""
        share = min(1.0, (most / self.grid.size) ** (1 / self.grid.dimension))
        counts = [max(1, int(share * n)) for n in self.grid.shape]
        lattice = tuple(
            np.linspace(0, n - 1, k) for n, k in zip(self.grid.shape, counts, strict=True)
        )
        return self.on(lattice, "jacobian")


@dataclasses.dataclass(frozen=True)
class MapOptions:
    """How maps are computed.

    Args:
        most_nodes: there are no more.
        single_share: of the tolerance, what single precision may err by.
        worth_single: landmarks times nodes from which on a second program, in single precision,
            takes less time than it saves.
    """

    most_nodes: int = MOST_NODES
    single_share: float = SINGLE_SHARE
    worth_single: int = 2_000_000


USUAL = MapOptions()


def maps(
    reg: Registration,
    reference: Any,
    progress: Progress = lambda fraction: None,
    options: MapOptions = USUAL,
) -> Maps:
    """Evaluate a registration on a grid in fixed space, on nodes as coarse as the tolerances allow."""
    grid = grid_in(reference, reg.fixed.dimension)
    back = np.linalg.inv(reg.posterior.affine)
    spacing = first_spacing(reg)
    tolerances = _tolerances_of(reg)
    around = reg.evaluation.move(reg.moving_support)
    field = smooth_field(
        in_batches(lambda y: _everything(reg.evaluation, back, y)),
        lambda exact: _allowed(exact, grid.dimension, fineness(grid), tolerances),
        grid,
        spacing,
        around,
        progress,
        derived=lambda values: _with_fc(values, grid.dimension),
        faster=faster_form(reg.posterior, lambda evaluation, y: _everything(evaluation, back, y)),
        many=options.worth_single // max(len(reg.moving), 1),
        most_nodes=options.most_nodes,
        single_share=options.single_share,
    )
    checks = random_places(grid, around, spacing, seed=1)
    accuracy = _accuracy(field, checks, _everything(reg.evaluation, back, grid.world(checks)))
    return Maps(PullBack(field, back, tolerances.mean), _promised(reg, accuracy))


def _promised(reg: Registration, accuracy: Accuracy) -> Accuracy:
    """With what is promised of a registration; less where images drive it."""
    if reg.images is None:
        return accuracy
    return dataclasses.replace(
        accuracy, promised_fc=IMAGE_PROMISED_FC, promised_mean_mm=IMAGE_PROMISED_MEAN
    )


def first_spacing(reg: Registration) -> float:
    """The distance of nodes that an interpolation begins with, mm."""
    shortest = min(length_scales(reg.kernel))
    return shortest / (NODES_PER_SCALE if reg.images is None else IMAGE_NODES_PER_SCALE)


@dataclasses.dataclass(frozen=True)
class Tolerances:
    """Errors that interpolation may add.

    Args:
        mean: of positions, mm.
        std: of standard deviations, mm.
        determinant: of the Jacobian.
        fc: of FC, relative to it.
    """

    mean: float = MEAN_TOLERANCE
    std: float = STD_TOLERANCE
    determinant: float = DETERMINANT_TOLERANCE
    fc: float = PROMISED_FC


def _tolerances_of(reg: Registration) -> Tolerances:
    """What is allowed, more where images drive a registration."""
    if reg.images is None:
        return Tolerances()
    return Tolerances(
        mean=IMAGE_EASE * MEAN_TOLERANCE,
        std=2 * STD_TOLERANCE,
        determinant=IMAGE_EASE * DETERMINANT_TOLERANCE,
        fc=IMAGE_PROMISED_FC,
    )


def faster_form(
    posterior: AnyPosterior, function: Callable[[AnyEvaluation, np.ndarray], np.ndarray]
) -> Function | None:
    """A function of an evaluation and points in single precision, where there is such an
    evaluation.
    """
    if not posterior.has_single_precision:
        return None
    evaluation = functools.cache(lambda: prepare(posterior, "float32"))
    return in_batches(lambda points: function(evaluation(), points).astype(np.float32))


def _with_fc(values: np.ndarray, d: int) -> np.ndarray:
    """All components and log FC, whose error is FC's relative error."""
    fc = summarise("fc", values[:, _columns(d).covariance])
    return np.c_[values, np.log(np.maximum(fc, np.finfo(np.float32).tiny))]


def _accuracy(field: SmoothField, checks: np.ndarray, exact: np.ndarray) -> Accuracy:
    d, found = field.grid.dimension, field.at(checks)
    distance = np.linalg.norm((found - exact)[:, :d], axis=1)
    relative = np.expm1(np.abs(_with_fc(found, d)[:, -1] - _with_fc(exact, d)[:, -1]))
    return Accuracy(float(distance.max()), float(relative.max()), len(checks), field.precision)


def pull_back(
    reg: Registration,
    reference: Any,
    *,
    inverse: bool = False,
    progress: Progress = lambda fraction: None,
) -> PullBack:
    """Where the voxels of a fixed grid come from; with `inverse`, where those of a moving grid go
    to.
    """
    grid = grid_in(reference, reg.fixed.dimension)
    posterior = reg.posterior
    affine = posterior.affine if inverse else np.linalg.inv(posterior.affine)
    displace = lambda map_, x: displacement(map_, x, affine, inverse=inverse)
    tolerance = _tolerances_of(reg).mean
    landmarks = reg.moving_support if inverse else reg.fixed_support
    exactly = in_batches(lambda x: displace(reg.evaluation, x))
    field = smooth_field(
        exactly,
        lambda exact: np.full_like(exact, tolerance * fineness(grid)),
        grid,
        first_spacing(reg),
        landmarks,
        progress,
        faster=faster_form(posterior, displace),
    )
    return PullBack(field, affine, tolerance)


def displacement(
    map_: AnyEvaluation, x: np.ndarray, affine: np.ndarray, *, inverse: bool
) -> np.ndarray:
    """From an affine map's answer to the true one, where moving points go to (`inverse`) or fixed
    points come from.
    """
    d = x.shape[1]
    return (map_.move(x) if inverse else map_.move_back(x)) - (x @ affine[:d, :d].T + affine[:d, d])


def uncertainty_map(
    reg: Registration, grid: Any, what: str = "fc", *, options: MapOptions = USUAL
) -> Image:
    """One map as an image in fixed space.

    Args:
        reg: a registration.
        grid: a Grid, or an Image on it. On a volume of one slice the map of a plane is a volume of
            one slice; but the covariance, whose axes are those of the plane, stays a plane.
        what: "fc" ‖Λ‖_F, mm²; "std" √(tr Λ/d), mm; "radius" of the 95 % ball, mm; "cov" the
            components xx, yx, yy, zx, zy, zz of Λ, mm², along memory's own axes, RAS (`kunita
            uncertainty --what cov` writes them along LPS, as other programs want); "jacobian" the
            determinant.
        options: how it is computed.
    """
    check_what(what)
    found = maps(reg, grid, options=options)
    warn(found.remarks)
    parts = in_order(lambda slab: found.on(slab, what).astype(np.float32), slabs(found.grid))
    data = np.concatenate(list(parts), axis=found.grid.dimension - 1)
    image = Image(data, found.grid.affine, channels=what == "cov")
    return image if what == "cov" else on_slice(image, as_grid(grid))


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
    parts = [packed_covariance[..., k] for k in range(len(rows))]
    trace = _sum(
        part for part, row, column in zip(parts, rows, columns, strict=True) if row == column
    )
    if what == "std":
        return np.sqrt(np.maximum(trace, 0) / (rows[-1] + 1))
    square = _sum(
        (1 if row == column else 2) * part**2
        for part, row, column in zip(parts, rows, columns, strict=True)
    )
    if what == "fc":
        return np.sqrt(square)
    return ball_radius_of_invariants(
        trace, square, _determinant(parts) if len(parts) == 6 else 0.0, LEVEL
    )


def _sum(parts: Iterator[np.ndarray]) -> np.ndarray:
    return functools.reduce(operator.add, parts)


def _determinant(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Of symmetric 3×3 matrices."""
    xx, yx, yy, zx, zy, zz = parts
    return xx * (yy * zz - zy**2) - yx * (yx * zz - zy * zx) + zx * (yx * zy - yy * zx)


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


def in_batches(
    function: Callable[[np.ndarray], np.ndarray],
) -> Callable[[np.ndarray, Progress], np.ndarray]:
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


def _everything(map_: AnyEvaluation, back: np.ndarray, y: np.ndarray) -> np.ndarray:
    """All components of the field at fixed points."""
    d, pre = y.shape[1], map_.preimage(y)
    displacement = pre.points - (y @ back[:d, :d].T + back[:d, d])
    determinant = np.linalg.det(pre.jacobians)
    return np.c_[
        displacement, packed(np.asarray(pre.covariance)), determinant, packed(pre.carried_back)
    ]


def _allowed(exact: np.ndarray, d: int, share: float, tolerances: Tolerances) -> np.ndarray:
    """Allowed errors; a covariance may err by what changes a standard deviation by its tolerance:
    δΛ = 2σδσ.

    And so that FC, whose logarithm is the last, errs by no more than promised.
    """
    columns = _columns(d)
    allowed = np.empty_like(exact)
    std = share * tolerances.std
    allowed[:, -1] = tolerances.fc
    allowed[:, columns.displacement] = share * tolerances.mean
    allowed[:, columns.determinant] = tolerances.determinant
    for part in (columns.covariance, columns.carried_back):
        allowed[:, part] = 2 * std * np.maximum(summarise("std", exact[:, part]), std)[:, None]
    return allowed


def _triangle(size: int) -> tuple[np.ndarray, np.ndarray]:
    return np.tril_indices({3: 2, 6: 3}[size])
