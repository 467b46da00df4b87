"""The answer at the top of the page of a registration that images drive: what it says of itself,
and what nobody knows.
"""

from collections.abc import Iterator
from typing import Any

from kunita.report.answer import WORTH_SAYING, Answer, Badge, Remark, Tile, mm, solver_badge


def image_answer(document: Any) -> Answer:
    """From the summary of a registration."""
    return Answer(
        tuple(_tiles(document)),
        (solver_badge(document), _calibration_badge(document)),
        tuple(_remarks(document)),
    )


def _tiles(document: Any) -> Iterator[Tile]:
    relation = document["registered_images"]["relation"]
    if relation.get("mirrored"):
        yield Tile(
            "One image seems to be mirrored",
            "do not trust",
            "With axes of the moving image reversed the gradients of the images agree far better: no "
            "number of this page says how wrong the registration is.",
        )
        return
    if not relation["found"]:
        yield Tile(
            "Images do not seem to be related",
            "do not trust",
            "Their gradients have little in common, before the flow and after it: no number of this "
            "page says how wrong the registration is.",
        )
        return
    expected = document.get("expected") or {}
    for key, place, where in (
        ("compared", "where the images were compared", "there"),
        ("label", "inside the label", "inside it"),
    ):
        found = expected.get(key)
        if found:
            yield Tile(
                f"To expect {place}",
                f"{mm(found['median_radius95_mm'])} mm",
                f"Median 95 % radius: half of the places {where} are within this of where they are "
                f"predicted, 95 % sure, if the model holds; the worst of those looked at within "
                f"{mm(found['worst_radius95_mm'])} mm.",
            )
    share = 100 * document["registered_images"]["mismatch"]
    yield Tile(
        "Images do not match",
        f"{share:.0f} %" if share >= 1 or share == 0 else f"{share:.1g} %",
        "Share of the compared voxels around which the noise is more than twice the usual: what one "
        "image lacks, or where the registration is wrong.",
    )
    if document["n_landmarks"]:
        before, after = document["initial_error_mm"], document["residual_mm"]
        count = document["n_landmarks"]
        plural = "landmark" if count == 1 else "landmarks"
        yield Tile(
            "Landmarks, before → after",
            f"{mm(before)} → {mm(after)} mm",
            f"Mean distance of {count} {plural} that the fit used, too. A small number after says "
            "that they fit, not that the rest is right.",
        )


def _calibration_badge(document: Any) -> Badge:
    """Nothing that drives a fit can test it."""
    used = "Images and landmarks" if document["n_landmarks"] else "Images"
    text = (
        f"{used} that drive a registration cannot test its uncertainty: that takes points whose "
        "true places are known and that had no part in it."
    )
    return Badge("unknown", "calibration untested", text)


def _remarks(document: Any) -> Iterator[Remark]:
    for text in document["warnings"]:
        yield Remark("warning", text[:1].upper() + text[1:])
    label = (document.get("expected") or {}).get("label") or {}
    share = label.get("extrapolating", 0.0)
    if share > WORTH_SAYING:
        yield Remark(
            "warning",
            f"{100 * share:.0f} % of the label is far from everything that the images inform: there "
            "the prior says more than they do",
        )
