"""Circle to flower: the small-deformation model and the diffeomorphic one at equal parameters.

The second experiment of [wassermann:14] (`fig:synth`): where each model's map folds, how sure each
says it is, and whether what the paper says of them holds. The paper does not give its length scale.
Besides a scale like its other experiments', there are two at which the small-deformation map folds:
one much shorter than the petals, and one as long as they are, with landmarks that must be met
closely. These two were found by looking for folds: they show that the map can fold, not how often
it does.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import numpy as np
from scipy.spatial import KDTree

from kunita.experiments.experiment import (
    PAPER_AMPLITUDE_MM,
    PAPER_NOISE_MM,
    Experiment,
    Plate,
    Table,
    Tell,
    silent,
)
from kunita.figures.synthetic import (
    Comparison,
    Deformed,
    Profile,
    fc_against_distance,
    readings,
    warped_grids,
)
from kunita.kernels import Gaussian
from kunita.phantoms.shapes import circle, flower
from kunita.record import Registration
from kunita.registration import register

BAND = (0.1, 0.9)
"""Quantiles, over the places at one distance, that a band shows."""

SIDES = (("inside", -1), ("outside", 1))
"""Of the circle, and their sign in a signed distance."""

STRETCH = 1.25
"""Where the flow stretches area by this factor or more it is said to expand, and the other way
round to shrink."""

DIFFERENT = 1.01
"""Variances within this factor count as equal: far from all landmarks every model has the prior's.
"""

COMPARABLE = 2.0
"""Two variances are called comparable within this factor."""


@dataclasses.dataclass(frozen=True)
class Parameters:
    """Of one comparison, equal for all models; and about the side of the cells that it is drawn and
    measured with.
    """

    label: str
    length_scale_mm: float
    amplitude_mm: float = PAPER_AMPLITUDE_MM
    noise_mm: float = PAPER_NOISE_MM
    cell_mm: float = 0.5

    @property
    def title(self) -> str:
        parts = f"σ = {self.length_scale_mm:g} mm, a = {self.amplitude_mm:g} mm, noise {self.noise_mm:.2g} mm"
        return f"{self.label}: {parts}"


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is compared; by default all of it.

    Args:
        num_landmarks, radius_mm, petal_height, petals: of the circle and the flower.
        box_mm: side of the square of moving space, around the circle's centre, that is drawn and
            measured.
        near_mm, far_mm: distances to the nearest moving landmark that count as near and as far.
        bin_mm: width of the classes of distance.
        refinement: how many times smaller cells are where the folds of the small deformation are
            measured, which costs little and is where accuracy is needed.
        parameters: one comparison each.
    """

    num_landmarks: int = 32
    radius_mm: float = 10.0
    petal_height: float = 0.3
    petals: int = 5
    box_mm: float = 32.0
    near_mm: float = 1.0
    far_mm: float = 5.0
    bin_mm: float = 0.5
    refinement: int = 3
    parameters: tuple[Parameters, ...] = (
        Parameters("paper", 5.0),
        Parameters("short", 1.0, cell_mm=0.3),
        Parameters("long", 7.0, 3.0, 0.1, cell_mm=0.6),
    )


FULL = Settings()
QUICK = Settings(
    bin_mm=1.0,
    parameters=(Parameters("paper", 5.0, cell_mm=1.1), Parameters("short", 1.0, cell_mm=0.55)),
)


@dataclasses.dataclass(frozen=True)
class Row:
    """One model at one set of parameters, measured over the box; FC is the median of the places
    named.
    """

    parameters: str
    length_scale_mm: float
    amplitude_mm: float
    noise_mm: float
    model: str
    converged: bool
    residual_mm: float
    min_jacobian: float
    folded_area_mm2: float
    folded_percent: float
    folded_triangles_mm2: float
    fc_near_mm2: float
    fc_inside_mm2: float
    fc_outside_mm2: float
    fc_mean_mm2: float
    fc_max_mm2: float
    fc_prior_mm2: float


@dataclasses.dataclass(frozen=True)
class RatioRow:
    """FC of one model over that of another, place by place: quantiles over the box, and medians
    where the flow acts.
    """

    parameters: str
    model: str
    over: str
    larger_percent: float
    smaller_percent: float
    ratio_of_means: float
    ratio_median: float
    ratio_low: float
    ratio_high: float
    comparable_percent: float
    ratio_where_expanding: float
    ratio_where_shrinking: float


@dataclasses.dataclass(frozen=True)
class DistanceRow:
    """FC of the places at some distance to the nearest moving landmark: median, 10 % and 90 %.

    Places and distances are in moving space; sides are those of the circle.
    """

    parameters: str
    model: str
    side: str
    from_mm: float
    to_mm: float
    num_places: int
    fc_median_mm2: float
    fc_low_mm2: float
    fc_high_mm2: float
    fc_prior_mm2: float


def synthetic(settings: Settings = FULL, tell: Tell = silent) -> Experiment:
    """Register circle to flower with every model and set of parameters, and compare maps and
    uncertainties.
    """
    progress = tell("circle to flower: small deformation and diffeomorphic")
    comparisons = []
    for i, parameters in enumerate(settings.parameters):
        comparisons.append(compare(settings, parameters))
        progress((i + 1) / len(settings.parameters))
    pairs = list(zip(settings.parameters, comparisons, strict=True))
    rows = tuple(row for parameters, c in pairs for row in _rows(settings, parameters, c))
    ratios = tuple(row for parameters, c in pairs for row in _ratio_rows(parameters, c))
    curve = tuple(row for parameters, c in pairs for row in _distance_rows(settings, parameters, c))
    profiles = [
        [_profile(curve, p.label, deformed.model) for deformed in c.models] for p, c in pairs
    ]
    plates = (
        Plate("synthetic_grids", warped_grids(comparisons)),
        Plate("synthetic_distance", fc_against_distance(comparisons, profiles)),
        Plate("synthetic_readings", readings(comparisons)),
    )
    tables = (
        Table("synthetic", rows),
        Table("synthetic_ratios", ratios),
        Table("synthetic_distance", curve),
    )
    return Experiment(
        "synthetic", settings, tables, plates, tuple(_findings(settings, rows, ratios, curve))
    )


# ----------------------------------------------------------------------------------- the comparison


def compare(settings: Settings, parameters: Parameters) -> Comparison:
    """Fit all models with the same parameters and carry the same mesh with each.

    The two diffeomorphic readings share one fit: they differ in the covariance alone.
    """
    n, radius = settings.num_landmarks, settings.radius_mm
    moving, fixed = circle(n, radius), flower(n, radius, settings.petal_height, settings.petals)
    kernel = Gaussian(parameters.length_scale_mm, parameters.amplitude_mm)
    small, endpoint = (
        register(moving, fixed, kernel=kernel, noise=parameters.noise_mm, align="none", model=model)
        for model in ("small", "endpoint")
    )
    nodes, finer = (
        cell_centres(settings.box_mm, parameters.cell_mm / k) for k in (1, settings.refinement)
    )
    prior_fc = float(np.sqrt(2)) * parameters.amplitude_mm**2
    flow = deformed(endpoint, nodes)
    return Comparison(
        parameters.title,
        moving,
        fixed,
        prior_fc,
        small=deformed(small, nodes),
        endpoint=flow,
        pathwise=deformed(pathwise(endpoint), nodes, flow),
        fine=deformed(small, finer),
    )


def pathwise(reg: Registration) -> Registration:
    """The pathwise reading of a diffeomorphic fit, without fitting again."""
    posterior = dataclasses.replace(reg.posterior, model="pathwise")
    return dataclasses.replace(reg, model="pathwise", posterior=posterior)


def cell_centres(side_mm: float, cell_mm: float) -> np.ndarray:
    """Centres of the cells that tile a square around the origin, (r, c, 2) mm: every node stands
    for an equal area.
    """
    count = round(side_mm / cell_mm)
    line = (np.arange(count) + 0.5) * (side_mm / count) - side_mm / 2
    return np.stack(np.meshgrid(line, line), axis=-1)


def deformed(reg: Registration, nodes: np.ndarray, flow: Deformed | None = None) -> Deformed:
    """The mesh as a registration maps it; where the same flow has carried it already, only its
    uncertainty is new.
    """
    shape, points = nodes.shape[:2], np.concatenate([nodes.reshape(-1, 2), reg.moving.points])
    got = reg.posterior.predict(points)
    fc = got.frobenius[: -len(reg.moving)].reshape(shape)
    if flow is not None:
        return dataclasses.replace(flow, model=reg.model, fc=fc)
    stretch = np.linalg.det(reg.posterior.jacobian(points))
    return Deformed(
        model=reg.model,
        converged=reg.converged,
        nodes=nodes,
        arrived=got.mean[: -len(reg.moving)].reshape(nodes.shape),
        fc=fc,
        stretch=stretch[: -len(reg.moving)].reshape(shape),
        landmarks=got.mean[-len(reg.moving) :],
    )


# --------------------------------------------------------------------------------------- the tables


def _rows(settings: Settings, parameters: Parameters, comparison: Comparison) -> Iterator[Row]:
    signed = signed_distance(comparison, settings.radius_mm)
    near = np.abs(signed) <= settings.near_mm
    for result in comparison.models:
        measured = comparison.fine if result is comparison.small else result
        folded = float(np.mean(measured.stretch <= 0))
        yield Row(
            parameters.label,
            parameters.length_scale_mm,
            parameters.amplitude_mm,
            parameters.noise_mm,
            model=result.model,
            converged=result.converged,
            residual_mm=float(np.linalg.norm(result.landmarks - comparison.fixed, axis=1).mean()),
            min_jacobian=float(measured.stretch.min()),
            folded_area_mm2=folded * settings.box_mm**2,
            folded_percent=100 * folded,
            folded_triangles_mm2=overturned_area(measured.nodes, measured.arrived),
            fc_near_mm2=float(np.median(result.fc[near])),
            fc_inside_mm2=float(np.median(result.fc[signed <= -settings.far_mm])),
            fc_outside_mm2=float(np.median(result.fc[signed >= settings.far_mm])),
            fc_mean_mm2=float(result.fc.mean()),
            fc_max_mm2=float(result.fc.max()),
            fc_prior_mm2=comparison.prior_fc,
        )


def signed_distance(comparison: Comparison, radius: float) -> np.ndarray:
    """Distance of every node to the nearest moving landmark, in moving space; negative inside the
    circle, (r, c) mm.
    """
    distance = KDTree(comparison.moving).query(comparison.small.nodes)[0]
    return np.where(np.linalg.norm(comparison.small.nodes, axis=-1) < radius, -distance, distance)


def overturned_area(nodes: np.ndarray, arrived: np.ndarray) -> float:
    """Area of the mesh's triangles whose images lie upside down, mm²: folds found from the map
    alone, without J.
    """
    before, after = _triangle_areas(nodes), _triangle_areas(arrived)
    return float(before[after <= 0].sum())


def _triangle_areas(mesh: np.ndarray) -> np.ndarray:
    """Signed areas of both triangles of every cell between four nodes, mm²."""
    a, b, c, d = mesh[:-1, :-1], mesh[:-1, 1:], mesh[1:, 1:], mesh[1:, :-1]
    return np.stack([_signed_area(a, b, c), _signed_area(a, c, d)])


def _signed_area(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    u, v = b - a, c - a
    return 0.5 * (u[..., 0] * v[..., 1] - u[..., 1] * v[..., 0])


def _ratio_rows(parameters: Parameters, comparison: Comparison) -> Iterator[RatioRow]:
    stretch = comparison.endpoint.stretch
    pairs = (
        (comparison.endpoint, comparison.small),
        (comparison.pathwise, comparison.small),
        (comparison.pathwise, comparison.endpoint),
    )
    for upper, lower in pairs:
        ratio = upper.fc / lower.fc
        low, middle, high = (float(q) for q in np.quantile(ratio, (0.05, 0.5, 0.95)))
        yield RatioRow(
            parameters.label,
            upper.model,
            lower.model,
            larger_percent=100 * float(np.mean(ratio > DIFFERENT)),
            smaller_percent=100 * float(np.mean(ratio < 1 / DIFFERENT)),
            ratio_of_means=float(upper.fc.mean() / lower.fc.mean()),
            ratio_median=middle,
            ratio_low=low,
            ratio_high=high,
            comparable_percent=100 * float(np.mean(np.abs(np.log(ratio)) <= np.log(COMPARABLE))),
            ratio_where_expanding=_median(ratio[stretch >= STRETCH]),
            ratio_where_shrinking=_median(ratio[stretch <= 1 / STRETCH]),
        )


def _median(values: np.ndarray) -> float:
    """Of no values: not a number."""
    return float(np.median(values)) if values.size else float("nan")


def _distance_rows(
    settings: Settings, parameters: Parameters, comparison: Comparison
) -> Iterator[DistanceRow]:
    signed = signed_distance(comparison, settings.radius_mm)
    for result, (side, sign) in itertools.product(comparison.models, SIDES):
        there = np.sign(signed) == sign
        distance, fc = np.abs(signed[there]), result.fc[there]
        edges = np.arange(
            0, distance.max(), settings.bin_mm
        )  # what is left over is a corner, or the very centre
        for start, end in itertools.pairwise(edges.tolist()):
            inside = fc[(distance >= start) & (distance < end)]
            low, middle, high = (float(q) for q in np.quantile(inside, (BAND[0], 0.5, BAND[1])))
            yield DistanceRow(
                parameters.label,
                result.model,
                side,
                start,
                end,
                inside.size,
                middle,
                low,
                high,
                comparison.prior_fc,
            )


def _profile(curve: Sequence[DistanceRow], label: str, model: str) -> Profile:
    """From the far inside to the far outside."""
    sides, mine = (
        dict(SIDES),
        [row for row in curve if (row.parameters, row.model) == (label, model)],
    )
    signed = np.array([sides[row.side] * (row.from_mm + row.to_mm) / 2 for row in mine])
    values = np.array([(row.fc_median_mm2, row.fc_low_mm2, row.fc_high_mm2) for row in mine])
    order = np.argsort(signed)
    return Profile(model, signed[order], *values[order].T)


# ------------------------------------------------------------------------------------- the findings


def _findings(
    settings: Settings,
    rows: Sequence[Row],
    ratios: Sequence[RatioRow],
    curve: Sequence[DistanceRow],
) -> Iterator[str]:
    for parameters in settings.parameters:
        mine = [row for row in rows if row.parameters == parameters.label]
        compared = [row for row in ratios if row.parameters == parameters.label]
        distances = [row for row in curve if row.parameters == parameters.label]
        said = [
            *_unconverged(mine),
            _folding(mine),
            _growth(mine, distances),
            _smaller(compared),
            *_cause(compared),
        ]
        yield f"{parameters.title}. {' '.join(said)}"


def _unconverged(rows: Sequence[Row]) -> Iterator[str]:
    lost = [row.model for row in rows if not row.converged]
    if lost:
        yield f"NOT CONVERGED: {', '.join(lost)}; what follows is of an unfinished fit."


def _folding(rows: Sequence[Row]) -> str:
    small, flow = rows[0], rows[1]
    return f"The small-deformation map {_folds(small)}; the diffeomorphic map {_folds(flow)}."


def _folds(row: Row) -> str:
    lowest = f"smallest det J {row.min_jacobian:.2f}"
    missed = f"landmarks missed by {row.residual_mm:.2f} mm"
    if row.min_jacobian > 0 and row.folded_triangles_mm2 == 0:
        return f"folds nowhere ({lowest}, {missed})"
    return (
        f"folds {row.folded_area_mm2:.1f} mm² or {row.folded_percent:.1f} % of the box ({lowest}, {missed}; "
        f"{row.folded_triangles_mm2:.1f} mm² by overturned triangles)"
    )


def _growth(rows: Sequence[Row], curve: Sequence[DistanceRow]) -> str:
    """Is uncertainty lower close to the landmarks, and does it grow away from them?"""
    lower = [
        row.model for row in rows if row.fc_near_mm2 < min(row.fc_inside_mm2, row.fc_outside_mm2)
    ]
    growing = [row.model for row in rows if _grows([c for c in curve if c.model == row.model])]
    return (
        f"Uncertainty is lower close to the landmarks than far from them for {_listed(lower)}, and its median grows "
        f"with every {curve[0].to_mm - curve[0].from_mm:g} mm of distance, on both sides of the circle, for "
        f"{_listed(growing)} (falls of less than 1 % of the prior's do not count)."
    )


def _grows(curve: Sequence[DistanceRow]) -> bool:
    """On both sides, never falling by a hundredth of the prior's: where that is reached there is
    nothing to grow.
    """
    sides = [
        np.array([row.fc_median_mm2 for row in curve if row.side == side]) for side, _ in SIDES
    ]
    return all(np.max(np.maximum.accumulate(m) - m) < 0.01 * curve[0].fc_prior_mm2 for m in sides)


def _listed(models: Sequence[str]) -> str:
    return ", ".join(models) if models else "none of the models"


def _smaller(ratios: Sequence[RatioRow]) -> str:
    """Has the small-deformation model the smaller variance in general, and are the two comparable?"""
    row = ratios[0]
    by_area, by_mean = row.larger_percent > row.smaller_percent, row.ratio_of_means > DIFFERENT
    return (
        f"That the small-deformation model has the smaller variance in general {_holds(by_area, by_mean)}: its FC is "
        f"the smaller one on {row.larger_percent:.0f} % of the box and the larger one on {row.smaller_percent:.0f} %, "
        f"and the mean FC of the diffeomorphic model ({row.model}) is {row.ratio_of_means:.2f} times its own. That FC "
        f"values are comparable {_holds(row.comparable_percent >= 90)}: they are within a factor of {COMPARABLE:g} on "
        f"{row.comparable_percent:.0f} % of the box, and the ratio is {row.ratio_low:.2f} to {row.ratio_high:.2f} on "
        f"the middle 90 %."
    )


def _holds(*claims: bool) -> str:
    if all(claims):
        return "holds"
    return "holds in part" if any(claims) else "does not hold"


def _cause(ratios: Sequence[RatioRow]) -> Iterator[str]:
    """What the flow does to uncertainty, and what the two readings differ by."""
    row, readings_row = ratios[0], ratios[2]
    if row.ratio_where_expanding > 1 > row.ratio_where_shrinking:
        yield (
            f"The flow carries uncertainty with it: FC is {row.ratio_where_expanding:.2f} times that of the small "
            f"deformation where the flow expands and {row.ratio_where_shrinking:.2f} times where it shrinks."
        )
    yield (
        f"The pathwise reading's FC is {readings_row.ratio_low:.2f} to {readings_row.ratio_high:.2f} times the "
        f"endpoint's (middle 90 % of the box)."
    )
