"""The figures of one registration's page, with what they say."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from kunita import scores
from kunita.errors import InverseError
from kunita.figures import registration as figures
from kunita.figures.overview import overview
from kunita.figures.themed import svg
from kunita.outputs.layers import Layers
from kunita.outputs.maps import Maps, maps
from kunita.outputs.summary import LandmarkRows
from kunita.record import Registration
from kunita.report.look import Scale, coloured_planes
from kunita.report.planes import box_of, shown_grid
from kunita.report.readout import Readout, readout

HISTOGRAM_NODES = 60_000


@dataclasses.dataclass(frozen=True)
class Drawing:
    """A figure: an `<svg>` (or several) with its title and what it says; colour bar and width where
    they matter.
    """

    name: str
    title: str
    drawing: str
    caption: str
    wide: bool = False
    scale: Scale | None = None


def drawings(
    reg: Registration,
    rows: LandmarkRows,
    document: Any,
    found: Maps | None,
    seen: Readout | None,
    layers: Layers,
) -> Iterator[Drawing]:
    """Every figure that there is something to draw for."""
    if found is not None and seen is not None:
        if layers.fixed is not None:
            yield _slices(found, layers, rows)
        yield grid_drawing(reg, rows, seen if layers.fixed is None else _around(reg, rows) or seen)
    yield _errors(rows)
    if np.isfinite(rows.loo_chi2).any():
        yield _calibration(rows)
    if found is not None:
        yield jacobian_drawing(found, document["min_jacobian"])
    if reg.iterations > 1:
        yield _history(reg)
    yield from _evidence(reg)


def _around(reg: Registration, rows: LandmarkRows) -> Readout | None:
    """The posterior in a box around the landmarks, where an image ends sooner; None where it cannot
    be had.
    """
    try:
        return readout(maps(reg, shown_grid(reg, rows)))
    except InverseError:
        return None


def grid_drawing(reg: Registration, rows: LandmarkRows, seen: Readout) -> Drawing:
    """A regular grid after the deformation, over the uncertainty."""
    box = box_of(reg, rows)
    scale, drawn = coloured_planes(reg, rows, seen, box, "fc")
    frames = "".join(
        f'<div class="plane-frame" style="--share: {one.share:.4g}">'
        f"{f'<h4>{one.title}</h4>' if one.title else ''}{one.drawing}</div>"
        for one in drawn
    )
    middle = "the landmarks" if reg.images is None else "what the images inform"
    planes = f"planes through the middle of {middle}" if len(drawn) > 1 else "the plane"
    marks = (
        "○ marked, + predicted landmarks with their 95 % ellipses; dashed: where each came from. "
        if len(rows.names)
        else ""
    )
    return Drawing(
        "grid",
        "Deformed grid and its uncertainty",
        f'<div class="plane-row">{frames}</div>',
        f"A regular grid after the deformation, over FC: {planes}. {marks}"
        "FC is the paper's measure of uncertainty.",
        len(drawn) > 1,
        scale,
    )


def _slices(found: Maps, layers: Layers, rows: LandmarkRows) -> Drawing:
    through = "the label" if layers.inside is not None else "the middle of the landmarks"
    where = f"Planes through {through}: the" if found.grid.dimension == 3 else "The"
    caption = f"{where} fixed image, the warped one beside it, and the 95 % radius in mm over the fixed one."
    drawn = svg(
        overview(found, layers, rows),
        "planes of the fixed image, of the warped one and of the 95 % radius",
    )
    return Drawing("slices", "Images and uncertainty", drawn, caption, wide=True)


def _errors(rows: LandmarkRows) -> Drawing:
    figure = figures.landmark_errors(
        rows.names, rows.before, rows.residuals, rows.loo_errors, rows.suspect
    )
    alt = (
        f"errors of {len(rows.names)} landmarks: before {np.mean(rows.before):.2g} mm, after "
        f"{np.mean(rows.residuals):.2g} mm on average; the table below has the numbers"
    )
    caption = (
        "Left out: the landmark is predicted from the others. That is how good the registration is elsewhere; the "
        "distance after the fit is not."
    )
    return Drawing("errors", "Landmarks before, after, and left out", svg(figure, alt), caption)


def _calibration(rows: LandmarkRows) -> Drawing:
    judged = np.isfinite(rows.loo_chi2)
    pits = scores.pit(rows.loo_chi2[judged], rows.known[judged])
    inside = np.mean(pits <= 0.95)
    alt = f"share of left-out landmarks inside their regions against the nominal level; {100 * inside:.0f} % at 95 %"
    caption = "On the diagonal the uncertainty is honest; below it is too small, above larger than it need be."
    return Drawing(
        "calibration",
        "Is the uncertainty true?",
        svg(figures.calibration_curve(pits), alt),
        caption,
    )


def jacobian_drawing(found: Maps, least: float | None) -> Drawing:
    """How much tissue expands or shrinks."""
    determinants = np.append(found.determinants(HISTOGRAM_NODES), [] if least is None else [least])
    what, tissue = ("volume", "tissue") if found.grid.dimension == 3 else ("area", "it")
    alt = f"histogram of the Jacobian determinant, from {determinants.min():.3g} to {determinants.max():.3g}"
    caption = f"Over the fixed grid. Above 1 {tissue} expands, below 1 it shrinks; at 0 or less the map would fold."
    figure = figures.jacobian_histogram(determinants, found.grid.dimension)
    return Drawing("jacobian", f"Change of {what}", svg(figure, alt), caption)


def _history(reg: Registration) -> Drawing:
    alt = (
        f"energy and residual over {reg.iterations} iterations; "
        f"the residual ends at {reg.gap_mm:.1e} mm"
    )
    methods = dict.fromkeys(row.method for row in reg.history)
    caption = (
        "The residual is how far a landmark would still move, at most. "
        f"Methods: {', then '.join(methods)}."
    )
    return Drawing(
        "history",
        "How the solver got there",
        svg(figures.solver_history(reg.history), alt),
        caption,
    )


def _evidence(reg: Registration) -> Iterator[Drawing]:
    profile = reg.evidence_profile()
    if profile is None:
        return
    interval = (profile.low, profile.high) if np.isfinite(profile.low) else None
    figure = figures.evidence_curve(
        profile.scales_mm, profile.log_evidence, profile.chosen_mm, interval, profile.identified
    )
    alt = f"log evidence against length scale; {profile.chosen_mm:.3g} mm was used"
    caption = (
        f"Of the small-deformation model ({profile.num_landmarks} landmarks), the other chosen parameters following; "
        "the choice itself also weighs what the flow adds to it."
    )
    yield Drawing("evidence", "How far a displacement reaches", svg(figure, alt), caption)
