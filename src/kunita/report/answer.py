"""The answer, at the top of a page: how good is this registration, what to expect of it, and what
to look at twice.
"""

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
from scipy.special import gamma
from scipy.stats import binom

from kunita import scores
from kunita.outputs.summary import LandmarkRows

LEAST_TOLD = 8
"""With fewer landmarks, coverage says nothing."""

LEAST_COMPARED = 5
"""With fewer landmarks, none of them can be told to be wrong."""

RARE = 0.01
"""What honest regions do less often than this by chance counts against them."""

MOST_NAMED = 5

WORTH_SAYING = 0.01
"""The share of a region that is worth a sentence."""


@dataclasses.dataclass(frozen=True)
class Tile:
    """One number that matters: a title, the number with its unit, and a sentence."""

    title: str
    number: str
    text: str


@dataclasses.dataclass(frozen=True)
class Badge:
    """A judgement: its kind (good, doubt, bad or unknown), a word, and a sentence that says why."""

    kind: str
    word: str
    text: str


@dataclasses.dataclass(frozen=True)
class Remark:
    """Something to look at twice: a warning, or a landmark that cannot be right."""

    kind: str
    text: str


@dataclasses.dataclass(frozen=True)
class Answer:
    """What stands at the top."""

    tiles: tuple[Tile, ...]
    badges: tuple[Badge, ...]
    remarks: tuple[Remark, ...]


def answer(document: Any, rows: LandmarkRows, doubts: Collection[str] = ()) -> Answer:
    """From the summary of a registration and its landmarks; `doubts` are warnings that the suspects
    repeat.
    """
    badges = (solver_badge(document), calibration_badge(rows), suspects_badge(document))
    return Answer(
        tuple(_tiles(document, rows.fixed.shape[1])),
        badges,
        tuple(_remarks(document, rows, doubts)),
    )


def mm(number: float | None) -> str:
    """A length for people: no more digits than anybody needs."""
    if number is None or not np.isfinite(number):
        return "–"
    if 0 < abs(number) < 0.1:
        return f"{number:.2g}"
    digits = 2 if abs(number) < 10 else 1 if abs(number) < 100 else 0
    return f"{number:.{digits}f}"


def _tiles(document: Any, dimension: int) -> Iterator[Tile]:
    before, after, loo = document["initial_error_mm"], document["residual_mm"], document["loo"]
    count = _count(document["n_landmarks"], "landmark")
    yield Tile(
        "Landmarks, before → after",
        f"{mm(before)} → {mm(after)} mm",
        f"Mean distance of {count}. A small number after says that they fit, not that the rest is right.",
    )
    if loo is not None:
        marking = mean_distance(document["noise_mm"], dimension)
        text = f"Mean error of each landmark, predicted from the others. Marking alone would give {mm(marking)} mm."
        yield Tile("Left out", f"{mm(loo['error_mm'])} mm", text)
    expected = document.get("expected") or {}
    for key, place in (("hull", "between the landmarks"), ("label", "inside the label")):
        found = expected.get(key)
        if found and (
            key == "label" or document["n_landmarks"] > dimension
        ):  # fewer enclose nothing
            yield Tile(
                f"To expect {place}",
                f"{mm(found['median_radius95_mm'])} mm",
                f"Half of the places {_where(key)} are within this of where they are predicted, 95 % sure; the worst "
                f"within {mm(found['worst_radius95_mm'])} mm.",
            )


def mean_distance(sd: float | None, dimension: int) -> float | None:
    """The mean length √2 Γ((d+1)/2)/Γ(d/2) σ of a Gaussian error of standard deviation σ along each
    axis.
    """
    return (
        None
        if sd is None
        else float(sd * np.sqrt(2) * gamma((dimension + 1) / 2) / gamma(dimension / 2))
    )


def _where(key: str) -> str:
    return "inside their convex hull" if key == "hull" else "inside it"


def solver_badge(document: Any) -> Badge:
    """Whether the fit ended as it should, and whether the map folds."""
    if not document["converged"]:
        return Badge(
            "bad", "not converged", "The solver did not converge: do not rely on this registration."
        )
    least = document["min_jacobian"]
    if least is None:
        return Badge(
            "doubt",
            "converged",
            "The solver converged, but the Jacobian is not a number everywhere.",
        )
    if least <= 0:
        return Badge(
            "bad", "folds", f"The smallest Jacobian determinant is {least:.2g}: the map folds."
        )
    text = f"The solver converged. No fold was found: the smallest Jacobian determinant is {least:.2f}."
    return Badge("good", "converged", text)


def calibration_badge(rows: LandmarkRows) -> Badge:
    """Whether landmarks that were left out fell inside their regions as often as these promise.

    Coverage of n honest regions of probability p is binomial; a count that is so small, or so
    large, once in a hundred times or less counts against them. (Left-out predictions of one case
    are not quite independent, and three counts are looked at: it is a rule, not a test.)
    """
    judged = np.isfinite(rows.loo_chi2)
    n = int(judged.sum())
    if rows.suspect.any():
        text = "Landmarks that cannot be right are in the way: mend the suspects first."
        return Badge("unknown", "calibration not judged", text)
    if n < LEAST_TOLD:
        left = "none could be" if n == 0 else "one was" if n == 1 else f"{n} were"
        return Badge(
            "unknown",
            "calibration untested",
            f"Too few landmarks to test the uncertainty: {left} left out.",
        )
    half, most = (
        int(k)
        for k in scores.covered(
            scores.pit(rows.loo_chi2[judged], rows.known[judged]), (0.5, 0.95)
        ).sum(axis=0)
    )
    low = int(binom.ppf(RARE, n, 0.95))
    text = (
        f"{most} of {n} landmarks that were left out lie inside their 95 % region "
        f"(expected {0.95 * n:.0f}; fewer than {low} would be too few for chance)."
    )
    if most < low:
        return Badge("bad", "too sure", f"{text} The uncertainty is too small.")
    if half < binom.ppf(RARE, n, 0.5):
        share = f"Only {half} lie inside their 50 % region"
        return Badge("bad", "too sure", f"{text} {share}: the uncertainty is too small.")
    if half > binom.isf(RARE, n, 0.5):
        share = f"{half} lie inside their 50 % region already"
        return Badge(
            "doubt", "cautious", f"{text} {share}: the uncertainty is larger than it need be."
        )
    return Badge("good", "calibrated", text)


def suspects_badge(document: Any) -> Badge:
    """Whether any landmark looks wrong."""
    names = document["suspects"]
    if not names and document["n_landmarks"] < LEAST_COMPARED:
        return Badge(
            "unknown", "suspects unknown", "Too few landmarks to tell whether one of them is wrong."
        )
    if not names:
        return Badge("good", "no suspects", "No landmark disagrees with the others.")
    return Badge("bad", _count(len(names), "suspect"), f"Check first: {_listed(names)}.")


def _remarks(document: Any, rows: LandmarkRows, doubts: Collection[str]) -> Iterator[Remark]:
    """One sentence each; suspects by name, with the reason."""
    reasons: dict[str, list[str]] = {}
    for name, bad, why in zip(rows.names, rows.suspect, rows.suspicion, strict=True):
        if bad:
            reasons.setdefault(why or "disagrees with the others", []).append(name)
    yield from (Remark("suspect", f"{_listed(names)}: {why}") for why, names in reasons.items())
    for text in document["warnings"]:
        if text not in doubts:
            said = text.removeprefix("suspect: ")
            yield Remark("suspect" if said != text else "warning", said[:1].upper() + said[1:])
    for key, place in (("hull", "landmarks' convex hull"), ("label", "label")):
        share = ((document.get("expected") or {}).get(key) or {}).get("extrapolating", 0.0)
        if share > WORTH_SAYING:
            yield Remark(
                "warning",
                f"{100 * share:.0f} % of the {place} is far from every landmark: there the prior "
                "says more than the landmarks do",
            )


def _listed(names: Sequence[str]) -> str:
    """Some of the names, and how many more there are."""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def _count(n: int, one: str, many: str | None = None) -> str:
    return f"{n} {one if n == 1 else many or one + 's'}"
