"""Where one more landmark would help most, looked at from three sides."""

import dataclasses
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from kunita.data.landmarks import Landmarks
from kunita.figures.style import styled
from kunita.outputs.suggestions import Suggestions


@dataclasses.dataclass(frozen=True)
class Side:
    """A direction to look from: the axes of the world to the right and up, and what their ends are
    called.
    """

    title: str
    right: int
    up: int
    labels: tuple[str, str]


FLAT = (Side("", 0, 1, ("x (mm)", "y (mm)")),)
SIDES = (
    Side("from above", 0, 1, ("L ← x (mm) → R", "P ← y (mm) → A")),
    Side("from behind", 0, 2, ("L ← x (mm) → R", "I ← z (mm) → S")),
    Side("from the right", 1, 2, ("P ← y (mm) → A", "I ← z (mm) → S")),
)


@styled
def suggestions_figure(found: Suggestions, marked: Landmarks) -> Figure:
    """The region's 95 % radius before and after, the landmarks in moving space, and the suggested
    places by number.

    What is in front of each other is drawn with the least sure on top: that is what one looks for.
    """
    sides = FLAT if marked.dimension == 2 else SIDES
    figure = Figure(
        figsize=(3.3 * len(sides) + 0.8, 5.8) if len(sides) > 1 else (7.0, 3.4),
        layout="constrained",
    )
    shape = (2, len(sides)) if len(sides) > 1 else (1, 2)
    axes = figure.subplots(*shape, squeeze=False).reshape(2, len(sides))
    limits = float(min(found.before.min(), found.after.min())), float(found.before.max())
    for row, (when, radius) in enumerate(
        (("now", found.before), ("with all suggested", found.after))
    ):
        for place, side in zip(axes[row], sides, strict=True):
            drawn = _panel(place, side, found, radius, marked, limits)
            place.set_title(f"{when}, {side.title}" if side.title else when)
    figure.colorbar(drawn, ax=axes, shrink=0.8, label="95 % radius (mm)")
    figure.supxlabel(
        f"○ landmarks, numbers: suggested places; mean over the region {found.before_mm:.2f} → "
        f"{found.after.mean():.2f} mm",
        fontsize=8,
    )
    return figure


def _panel(
    axes: Any,
    side: Side,
    found: Suggestions,
    radius: np.ndarray,
    marked: Landmarks,
    limits: tuple[float, float],
) -> Any:
    across, order = [side.right, side.up], np.argsort(radius)
    drawn = axes.scatter(
        *found.points[order][:, across].T,
        c=radius[order],
        s=26,
        marker="s",
        linewidths=0,
        vmin=limits[0],
        vmax=limits[1],
        alpha=0.85,
    )
    axes.plot(*marked.points[:, across].T, "o", mfc="white", mec="black", ms=4, mew=0.9)
    for number, place in enumerate(found.places, start=1):
        box = {
            "boxstyle": "circle,pad=0.2",
            "facecolor": "#D55E00",
            "edgecolor": "white",
            "linewidth": 0.8,
        }
        axes.text(
            *place.moving[across],
            str(number),
            color="white",
            ha="center",
            va="center",
            weight="bold",
            bbox=box,
        )
    axes.set(xlabel=side.labels[0], ylabel=side.labels[1], aspect="equal")
    if marked.dimension == 2:
        axes.invert_yaxis()  # pictures have y down
    return drawn
