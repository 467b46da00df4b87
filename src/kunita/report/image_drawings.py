"""The figures of the page of a registration that images drive, with what they say."""

from collections.abc import Iterator
from typing import Any

from kunita.figures import registration as figures
from kunita.figures.comparison import before_after, compared_planes
from kunita.figures.overview import centre_voxel, overview
from kunita.figures.themed import svg
from kunita.image_record import ImageRecord
from kunita.outputs.comparison import before_and_after
from kunita.outputs.layers import Layers
from kunita.outputs.maps import Maps
from kunita.outputs.summary import LandmarkRows
from kunita.record import Registration
from kunita.report.drawings import Drawing, grid_drawing, jacobian_drawing
from kunita.report.readout import Readout


def image_drawings(
    reg: Registration,
    rows: LandmarkRows,
    document: Any,
    found: Maps | None,
    seen: Readout | None,
    layers: Layers,
) -> Iterator[Drawing]:
    """Every figure that there is something to draw for."""
    assert reg.images is not None
    if found is not None and seen is not None:
        if layers.fixed is not None and layers.moving is not None:
            yield _before_after(reg.images, rows, found, layers)
        if layers.fixed is not None:
            yield _slices(rows, found, layers)
        yield grid_drawing(reg, rows, seen)
        yield jacobian_drawing(found, document["min_jacobian"])
    if reg.iterations > 1:
        yield _history(reg)


def _before_after(images: ImageRecord, rows: LandmarkRows, found: Maps, layers: Layers) -> Drawing:
    """A checkerboard and the difference of the images, before and after."""
    assert layers.moving is not None
    assert layers.fixed is not None
    same_scale = images.metric != "lncc"
    on = before_and_after(found, layers.moving, layers.fixed, same_scale=same_scale)
    compared = compared_planes(found.grid, centre_voxel(found, layers, rows), on)
    before, after = compared.mean_differences()
    alt = (
        "checkerboards of the fixed and the moving image, and their difference, before and after; "
        f"mean absolute difference {before:.2g} before, {after:.2g} after"
    )
    window = (
        "Differences are in parts of the grey window of the fixed image"
        if same_scale
        else "Each image has its own grey window, and differences are in parts of it"
    )
    planes = "on these planes" if found.grid.dimension == 3 else "where both images are"
    caption = (
        "Squares of the fixed and of the moving image in turn, and fixed minus moving. Before: the "
        "moving image carried by the fitted alignment alone. After: by the whole registration. "
        f"{window}; their mean size {planes} is {before:.3f} before and {after:.3f} after. A small "
        "difference says that the images look alike, not that the registration is right."
    )
    title = "Before and after"
    return Drawing("before-after", title, svg(before_after(compared), alt), caption, wide=True)


def _slices(rows: LandmarkRows, found: Maps, layers: Layers) -> Drawing:
    through = "the label" if layers.inside is not None else "the middle of what was compared"
    where = f"Planes through {through}: the" if found.grid.dimension == 3 else "The"
    parts = ["fixed image"]
    if layers.warped is not None:
        parts.append("the warped one")
    parts.append("the 95 % radius in mm")
    if layers.mismatch is not None:
        parts.append("the mismatch")
    caption = f"{where} {', '.join(parts[:-1])} and {parts[-1]}; maps lie over the fixed image."
    if layers.mismatch is not None:
        caption += (
            " The mismatch is the local noise over the usual noise: one where the images match, "
            "above two where they do not; there the registration may be wrong. Without colour: "
            "not compared."
        )
    drawn = svg(overview(found, layers, rows), f"planes of the {', '.join(parts)}")
    title = "Images, uncertainty and mismatch" if layers.mismatch else "Images and uncertainty"
    return Drawing("slices", title, drawn, caption, wide=True)


def _history(reg: Registration) -> Drawing:
    alt = f"energy and step over {reg.iterations} iterations; the last step was {reg.gap_mm:.1e} mm"
    caption = (
        "The step is the root mean square of how far places moved from one iteration to the next, as far "
        "as the images see it. Levels go from "
        "smooth images to sharp ones. The energy is in units of the noise, which is estimated anew "
        "at every step: it need not fall."
    )
    figure = figures.solver_history(reg.history, "step (mm)")
    return Drawing("history", "How the solver got there", svg(figure, alt), caption)
