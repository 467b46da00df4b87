"""A registration in numbers: what `summary.json` and `landmarks.csv` hold."""

import dataclasses
from typing import Any

import numpy as np

import kunita
from kunita import scores
from kunita.data.image import Image
from kunita.data.landmarks import known_distances
from kunita.image_posterior import ImagePosterior
from kunita.inference.intervals import EstimatedParameter
from kunita.inference.leave_out import LeaveOneOut
from kunita.kernels import AbstractKernel, AbstractProfile
from kunita.outputs.expected import (
    Expected,
    expected_in_hull,
    expected_in_labels,
    expected_where_compared,
)
from kunita.outputs.maps import Maps
from kunita.outputs.targets import fle_mm, fre_mm
from kunita.record import Registration

PROBES = 9
"""Points along each axis where the Jacobian is looked at when there is no image."""


@dataclasses.dataclass(frozen=True)
class Summary:
    """The numbers that other programs read; the names are those of the file."""

    version: str
    model: str
    kernel: Any
    noise_mm: float
    parameters: tuple[Any, ...]
    learned_on: tuple[str, ...]
    robust: bool
    align: str
    pairing: str
    n_landmarks: int
    dimension: int
    initial_error_mm: float
    residual_mm: float
    fle_mm: float
    fre_mm: float
    loo: Any
    evidence: float
    energy: float
    converged: bool
    iterations: int
    min_jacobian: float
    expected: Any
    dense: Any
    low_rank: Any
    suspects: tuple[str, ...]
    targets: tuple[Any, ...]
    warnings: tuple[str, ...]
    seconds: float
    registered_images: Any = None


@dataclasses.dataclass(frozen=True, eq=False)
class LandmarkRows:
    """One row per landmark pair: where it was, where it should go, where it went, and how far off.

    Distances are in mm, along the directions in which the landmark is known; `known` says how many
    these are.
    """

    names: tuple[str, ...]
    moving: np.ndarray
    fixed: np.ndarray
    predicted: np.ndarray
    covariances: np.ndarray
    before: np.ndarray
    residuals: np.ndarray
    loo_errors: np.ndarray
    loo_chi2: np.ndarray
    weights: np.ndarray
    suspect: np.ndarray
    suspicion: tuple[str, ...]
    known: np.ndarray


def landmark_rows(reg: Registration) -> LandmarkRows:
    """What became of every landmark; leave-one-out is NaN for those not used, or where there are
    too few.
    """
    predicted = reg.evaluation.predict(reg.moving.points)
    loo, n = reg.loo, len(reg.moving)
    errors, squared = np.full(n, np.nan), np.full(n, np.nan)
    if loo is not None:
        errors[reg.used], squared[reg.used] = loo.error, loo.chi2
    residuals = known_distances(reg.fixed, np.asarray(predicted.mean))
    suspect, reasons = _suspicion(reg)
    weights = reg.used.astype(float) if reg.weights is None else reg.weights
    return LandmarkRows(
        reg.moving.labels,
        reg.moving.points,
        reg.fixed.points,
        np.asarray(predicted.mean),
        np.asarray(predicted.covariance),
        known_distances(reg.fixed, reg.moving.points),
        residuals,
        errors,
        squared,
        weights,
        suspect,
        reasons,
        reg.fixed.known,
    )


def _suspicion(reg: Registration) -> tuple[np.ndarray, tuple[str, ...]]:
    """Which landmarks are in doubt, and why; those that were not used are not."""
    used = np.flatnonzero(reg.used)
    suspect = np.zeros(len(reg.moving), dtype=bool)
    if reg.suspicion is None:
        return suspect, ("",) * len(reg.moving)
    suspect[used] = reg.suspicion.suspect
    words = iter(reg.suspicion.reasons([reg.moving.labels[i] for i in used]))
    return suspect, tuple(next(words) if is_used else "" for is_used in reg.used)


def summary(
    reg: Registration,
    rows: LandmarkRows,
    found: Maps | None = None,
    targets: tuple[Any, ...] = (),
    warnings: tuple[str, ...] = (),
    labels: Image | None = None,
) -> Summary:
    """The numbers of a registration; labels are a region of the moving space that matters most."""
    return Summary(
        version=kunita.__version__,
        model=reg.model,
        kernel=describe(reg.kernel),
        noise_mm=reg.noise_mm,
        parameters=tuple(parameter(one) for one in reg.chosen),
        learned_on=reg.learned_on,
        robust=reg.robust,
        align=reg.align,
        pairing=reg.pairing,
        n_landmarks=int(reg.used.sum()),
        dimension=reg.fixed.dimension,
        initial_error_mm=_mean(rows.before[reg.used]),
        residual_mm=_mean(rows.residuals[reg.used]),
        fle_mm=fle_mm(reg),
        fre_mm=fre_mm(rows.residuals[reg.used]),
        loo=_loo_scores(reg.loo),
        evidence=reg.evidence,
        energy=reg.energy,
        converged=reg.converged,
        iterations=reg.iterations,
        min_jacobian=least_jacobian(reg) if found is None else found.least_jacobian,
        expected=_expected(reg, labels),
        dense=None if found is None else dataclasses.asdict(found.accuracy),
        low_rank=reg.truncation and dataclasses.asdict(reg.truncation),
        suspects=tuple(name for name, bad in zip(rows.names, rows.suspect, strict=True) if bad),
        targets=targets,
        warnings=(*reg.warnings, *warnings),
        seconds=reg.seconds,
        registered_images=image_numbers(reg),
    )


def _expected(reg: Registration, labels: Image | None) -> Any:
    """How sure the registration says it is, region by region; null where there is none."""
    regions: dict[str, Expected | None] = {
        "hull": expected_in_hull(reg),
        "label": None if labels is None else expected_in_labels(reg, labels),
        "compared": expected_where_compared(reg),
    }
    return {name: one and dataclasses.asdict(one) for name, one in regions.items()}


def _mean(values: np.ndarray) -> float:
    """NaN where there are none."""
    return float(values.mean()) if len(values) else float("nan")


def image_numbers(reg: Registration) -> Any:
    """How images were compared, as JSON; null where landmarks alone drove the fit."""
    images = reg.images
    if images is None:
        return None
    nodes, spacing = _lattice(reg)
    return {
        "metric": images.metric,
        "overlap": images.overlap,
        "mutual_information": images.mutual_information,
        "starts": images.num_starts,
        "prior_chosen": images.is_prior_chosen,
        "nodes": nodes,
        "node_spacing_mm": spacing,
        "decimation": images.decimation,
        "noise_widths_mm": images.noise_widths and list(images.noise_widths),
        "sandwich_ratio": images.sandwich_ratio and dataclasses.asdict(images.sandwich_ratio),
        "background": images.background,
        "mismatch": images.mismatch,
        "relation": {
            "found": images.relation.is_found,
            "before": images.relation.before,
            "after": images.relation.after,
            "within": images.relation.within,
            "chance": images.relation.chance,
            "mirrored": images.relation.is_mirrored,
            "init_inverted": images.relation.is_inverted,
        },
        "draws": images.num_draws,
        "monte_carlo_error": images.monte_carlo_error,
        "solve_residual": images.solve_residual,
        "first_look": images.is_first_look,
        "unit": images.unit,
    }


def _lattice(reg: Registration) -> tuple[int, float]:
    """How many nodes what the images say is condensed on, and how far apart they are, mm."""
    assert isinstance(reg.posterior, ImagePosterior)
    lattice = reg.posterior.cells.lattice
    voxels = np.linalg.norm(lattice.affine[:-1, :-1], axis=0)
    steps = [axis.step * voxel for axis, voxel in zip(lattice.axes, voxels, strict=True)]
    return lattice.num_nodes, float(np.mean(steps))


def least_jacobian(reg: Registration) -> float:
    """The smallest determinant on a coarse lattice over the moving landmarks' box, which may be
    flat or a point.
    """
    low, high = reg.moving_support.min(axis=0), reg.moving_support.max(axis=0)
    axes = [np.linspace(a, b, PROBES) for a, b in zip(low, high, strict=True)]
    points = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(axes))
    return float(np.linalg.det(reg.evaluation.jacobian(points)).min())


def parameter(one: EstimatedParameter) -> Any:
    """A parameter that was chosen by the evidence, as JSON: where it is, 95 %, and whether it was
    told at all.
    """
    return {
        "name": one.name,
        "value": one.value,
        "low": one.low,
        "high": one.high,
        "determined": one.identified,
    }


def describe(kernel: AbstractKernel) -> Any:
    """A kernel as a JSON document, with every parameter it has."""
    if isinstance(kernel, AbstractProfile):
        scale, amplitude = float(kernel.length_scale), float(kernel.amplitude)
        known = {
            "family": type(kernel).__name__,
            "length_scale_mm": scale,
            "amplitude_mm": amplitude,
        }
        more = [
            field.name
            for field in dataclasses.fields(kernel)
            if field.name not in ("length_scale", "amplitude")
        ]
        return {**known, **{name: float(getattr(kernel, name)) for name in more}}
    return {
        "family": type(kernel).__name__,
        "kernels": [describe(part) for part in getattr(kernel, "kernels", ())],
    }


def _loo_scores(loo: LeaveOneOut | None) -> Any:
    if loo is None:
        return None
    scored = scores.scores(
        np.asarray(loo.error),
        np.asarray(loo.chi2),
        np.asarray(loo.covariance),
        np.asarray(loo.known),
    )
    coverage = {
        f"{100 * level:.0f}": share
        for level, share in zip(scores.LEVELS, scored.coverage, strict=True)
    }
    return {"error_mm": scored.error_mm, "coverage": coverage, "nll": scored.nll}
