"""The pictures of the third experiment: box plots, calibration, a case before and after, and
smoothing compared.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.figure import Figure

from kunita import scores
from kunita.data.case import Case
from kunita.experiments.clinical_tables import Outcome, PanelRow, Prior, PriorRow, best_row, column
from kunita.experiments.experiment import Plate, Progress
from kunita.figures import clinical as figures
from kunita.kernels import Gaussian
from kunita.record import Registration

RIM = 0.15
"""A landmark in this part of the fixed image, at its rim, is not what a figure is about."""


def _groups(
    outcomes: Sequence[Outcome], rows: Sequence[PriorRow], name: str
) -> tuple[np.ndarray, ...]:
    values, priors = column(outcomes, name), np.array([outcome.row.prior for outcome in outcomes])
    return tuple(values[priors == row.prior] for row in rows)


def box_plots(rows: Sequence[PriorRow], outcomes: Sequence[Outcome]) -> Figure:
    """Distances of left-out landmarks under each prior, in both senses (`fig:loo` of
    [wassermann:14]).
    """
    senses = (
        ("paper_mm", "paper_median_mm", "to the solution that had it (the paper)"),
        ("honest_mm", "honest_median_mm", "to the landmark itself (honest)"),
    )
    panels = [
        figures.Distances(title, _groups(outcomes, rows, name), rows.index(best_row(rows, median)))
        for name, median, title in senses
    ]
    return figures.box_plots([row.prior for row in rows], panels, rows[0].before_mean_mm)


def calibration(rows: Sequence[PriorRow], outcomes: Sequence[Outcome]) -> Figure:
    """Whether the uncertainty that each prior predicts is true."""
    predicted = []
    for row in rows:
        spreads = [
            np.trace(outcome.covariance) for outcome in outcomes if outcome.row.prior == row.prior
        ]
        predicted.append(np.sqrt(np.mean(spreads)))
    observed = [np.sqrt(np.mean(group**2)) for group in _groups(outcomes, rows, "honest_mm")]
    coverage = [
        [getattr(row, f"coverage_{100 * level:.0f}") for level in scores.LEVELS] for row in rows
    ]
    found = figures.Calibration(
        tuple(row.prior for row in rows),
        np.array(scores.LEVELS),
        np.array(coverage),
        np.array([row.nll for row in rows]),
        np.array(predicted),
        np.array(observed),
    )
    return figures.calibration(found)


@dataclasses.dataclass(frozen=True, eq=False)
class Picture:
    """What is needed to show a case.

    Args:
        case: one with images.
        best: the prior that the warped image is shown under.
        panels_mm: the length scales that are compared.
        by_the_evidence, as_in_the_paper: register the case with all its landmarks under a prior,
            with amplitude and noise that the evidence chooses on the other cases, or with the
            paper's.
    """

    case: Case
    best: Prior
    panels_mm: tuple[float, ...]
    by_the_evidence: Callable[[Prior], Registration]
    as_in_the_paper: Callable[[Prior], Registration]


def plates_of(
    picture: Picture, progress: Progress
) -> tuple[tuple[Plate, ...], tuple[PanelRow, ...]]:
    """The images before and after, and the smoothing comparison (`fig:reg-us`, `fig:reg-us-un` of
    [wassermann:14]).
    """
    moving, fixed = picture.case.moving_image, picture.case.fixed_image
    assert moving is not None  # a picture is of a case
    assert fixed is not None  # with both images
    rigid, full = picture.by_the_evidence(Prior(None)), picture.by_the_evidence(picture.best)
    cut = _cut(picture.case, rigid, full)
    beside = figures.before_and_after(cut, rigid, full, moving, fixed, picture.case.image_names)
    makers = (
        ("as in the paper", picture.as_in_the_paper),
        ("by the evidence", picture.by_the_evidence),
    )
    shown, rows, panels_mm = [], [], picture.panels_mm
    for title, maker in makers:
        panels = []
        for scale in panels_mm:
            reg = maker(Prior(scale))
            assert isinstance(reg.kernel, Gaussian)
            amplitude = float(reg.kernel.amplitude)
            panels.append(
                figures.panel(f"σ = {scale:g} mm\namplitude {amplitude:.2g} mm", reg, moving, cut)
            )
            radius = panels[-1].radius
            sizes = (float(radius.mean()), float(radius.max()))
            rows.append(PanelRow(title, scale, amplitude, *sizes, reg.converged))
            progress(len(rows) / (len(makers) * len(panels_mm)))
        shown.append((f"amplitude and noise\n{title}", panels))
    smoothing = figures.smoothing(shown, cut, picture.case.fixed.points)
    return (
        Plate("clinical_before_and_after", beside),
        Plate("clinical_smoothing", smoothing),
    ), tuple(rows)


def _cut(case: Case, rigid: Registration, full: Registration) -> figures.Slice:
    """The plane through the landmark, well inside the fixed image, that the deformation does most
    for.
    """
    before, after = (
        np.asarray(reg.posterior.predict(case.moving.points).mean) for reg in (rigid, full)
    )
    gain = np.linalg.norm(before - case.fixed.points, axis=1) - np.linalg.norm(
        after - case.fixed.points, axis=1
    )
    assert case.fixed_image is not None
    grid = case.fixed_image.grid
    place = grid.index(case.fixed.points) / np.array(grid.shape)
    inside = np.all((place > RIM) & (place < 1 - RIM), axis=1)
    best = int(np.argmax(np.where(inside | ~inside.any(), gain, -np.inf)))
    return figures.slice_through(grid, case.fixed.points[best], after[best] - before[best])
