"""The figures of a cohort's page, with what they say."""

from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.figure import Figure

from kunita.cohort.study_findings import OWN
from kunita.cohort.study_pictures import Pictured
from kunita.figures import cohort as figures
from kunita.figures.calibration import Honesty
from kunita.figures.registration import evidence_curve
from kunita.figures.themed import svg
from kunita.inference.intervals import EvidenceProfile
from kunita.report.answer import mm
from kunita.report.cohort_tables import Shown, best_and_worst, by_error, percent
from kunita.report.drawings import Drawing


def case_drawings(cases: Sequence[Shown]) -> Iterator[Drawing]:
    """Every case: its errors and its coverage."""
    rows = [
        figures.CaseErrors(
            one.case.name,
            one.errors_mm,
            one.inside,
            float(one.case.distances.mean()),
            float(one.rigid_mm.mean()),
        )
        for one in by_error(cases)
    ]
    best, worst = best_and_worst(cases)
    alt = (
        f"mean error of {len(rows)} cases before, with rigid alignment and with {OWN}: from {mm(best.mean_mm)} to "
        f"{mm(worst.mean_mm)} mm; the table below has the numbers"
    )
    caption = "The worst case comes first. Left out: every landmark is predicted from the others of its case."
    yield _drawing("case-errors", "Errors by case", figures.case_errors(rows, OWN), alt, caption)
    shares = [one.inside / len(one.errors_mm) for one in rows]
    ends = f"from {percent(min(shares))} to {percent(max(shares))}"
    alt = f"share of landmarks inside their 95 % region, case by case: {ends}"
    caption = (
        "In the same order. The bar is what honest regions do by chance with so many landmarks; × marks a case below "
        "it, as one honest case in forty is, or fewer."
    )
    yield _drawing("case-coverage", "Coverage by case", figures.case_coverage(rows), alt, caption)


def study_drawings(shown: Pictured) -> Iterator[Drawing]:
    """Is the uncertainty true, how large are the errors, does it know which?"""
    inside = float(np.mean(shown.own.pits <= 0.95))
    alt = f"share of left-out landmarks inside their regions against the nominal level; {OWN}: {percent(inside)} at 95 %"
    caption = (
        "On the diagonal the uncertainty is honest; below it is too small, above larger than it need be. The band is "
        f"the 95 % interval of {OWN} over cases."
    )
    drawn = figures.coverage(shown.honesty, shown.levels, shown.band)
    yield _drawing("calibration", "Is the uncertainty true?", drawn, alt, caption)
    caption = (
        "Flat is honest: the band is what chance does, two standard errors. High at the right, errors are larger than "
        "predicted; high at the left, smaller."
    )
    alt = (
        f"histogram of where {len(shown.own.pits)} landmarks fell in their predicted distributions"
    )
    drawn = figures.transform_histogram(shown.own)
    yield _drawing(
        "transform", f"Where landmarks fell in their regions, {OWN}", drawn, alt, caption
    )
    yield from _compared(shown)


def _compared(shown: Pictured) -> Iterator[Drawing]:
    means = ", ".join(f"{one.label} {mm(float(one.errors_mm.mean()))}" for one in shown.errors)
    caption = "Boxes: quartiles of all landmarks, whiskers to the last one within 1.5 times the box; dots: means of cases."
    drawn = figures.method_errors(shown.errors, OWN)
    yield _drawing(
        "method-errors",
        "Errors of every method",
        drawn,
        f"boxes of errors; means in mm: {means}",
        caption,
    )
    caption = f"Right of zero, {OWN} is closer. Dots: cases; diamonds: means, with their 95 % interval over cases."
    drawn, alt = (
        figures.method_differences(shown.errors, OWN),
        f"paired differences of every method and {OWN}, by case",
    )
    yield _drawing("differences", f"Errors more than {OWN}'s, case by case", drawn, alt, caption)
    for one in shown.sparsified:
        if one.label == OWN:
            caption = (
                "How fast the mean error falls when the least sure predictions are set aside, and how fast it could if "
                f"one knew the errors. The area between is {one.area:.2f}; 0 would be perfect."
            )
            alt = f"mean error of what is left when predictions are set aside; area between the curves {one.area:.2f}"
            drawn = figures.sparsification(one)
            yield _drawing("sparsification", "Does it know where it is wrong?", drawn, alt, caption)


def own_calibration(pits: np.ndarray, levels: np.ndarray, band: np.ndarray) -> Drawing:
    """Is the uncertainty of one method true?"""
    inside = percent(float(np.mean(pits <= 0.95)))
    alt = f"share of landmarks inside their regions against the nominal level; {inside} at 95 %"
    caption = (
        "On the diagonal the uncertainty is honest; below it is too small, above larger than it need be. The band is "
        "the 95 % interval over cases, which are those that the prior was learned on."
    )
    drawn = figures.coverage([Honesty("left out, with this prior", pits, own=True)], levels, band)
    return _drawing("calibration", "Is the uncertainty true?", drawn, alt, caption)


def profile_drawing(profile: EvidenceProfile) -> Drawing:
    """The evidence of a cohort against the length scale."""
    interval = (profile.low, profile.high) if np.isfinite(profile.low) else None
    drawn = evidence_curve(
        profile.scales_mm, profile.log_evidence, profile.chosen_mm, interval, profile.identified
    )
    alt = f"log evidence of all cases against length scale; {profile.chosen_mm:.3g} mm was learned"
    caption = (
        f"All cases together, {profile.num_landmarks} landmarks. Of the small-deformation model, amplitude and noise "
        "following; the choice itself also weighs what the flow adds to it."
    )
    return _drawing("evidence", "How far a displacement reaches", drawn, alt, caption)


def _drawing(name: str, title: str, figure: Figure, alt: str, caption: str) -> Drawing:
    from markupsafe import Markup

    return Drawing(name, title, Markup(svg(figure, alt)), caption)
