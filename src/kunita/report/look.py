"""What a page's viewer shows: volumes for NiiVue, or planes as SVG, and the numbers behind a click."""

import base64
import dataclasses
import gzip
from collections.abc import Iterator
from importlib import resources
from typing import Any

import numpy as np

from kunita.data.image import Grid, Image
from kunita.gaussians import GaussianPoints
from kunita.outputs.hull import hull_of
from kunita.outputs.layers import Layers
from kunita.outputs.maps import Maps
from kunita.outputs.summary import LandmarkRows
from kunita.outputs.targets import BEYOND, FAR, main_scale, source_of
from kunita.record import Registration
from kunita.report.planes import (
    Colours,
    Picture,
    View,
    box_of,
    middle_of,
    outline_path,
    picture_address,
    plane_svg,
    views,
)
from kunita.report.readout import Readout
from kunita.report.volumes import BORDERS, coarse, grey_window, scale_top, volumes

MOST_PIXELS = 1_500_000
"""Of a picture on a page."""

NOT_EXACT = 0.05
"""Numbers that err by more than this share of a typical 95 % radius are said to."""

SIDES = "The patient's left is at the left."

MOST_DRAWN = 400
"""Landmarks that are drawn on planes."""


@dataclasses.dataclass(frozen=True)
class Scale:
    """A colour bar: what it is of, its unit, its end."""

    title: str
    unit: str
    top: float

    @property
    def top_text(self) -> str:
        return f"{self.top:.3g}"

    @property
    def middle_text(self) -> str:
        return f"{self.top / 2:.3g}"


@dataclasses.dataclass(frozen=True)
class Drawn:
    """A plane, with its title, and its share of the width of all, %: side by side they have one
    scale.
    """

    title: str
    drawing: str
    share: float


@dataclasses.dataclass(frozen=True)
class Slider:
    """How much of a layer is seen, 0 to 100."""

    id: str
    name: str
    value: int


@dataclasses.dataclass(frozen=True)
class Box:
    """Whether a layer is seen."""

    id: str
    name: str
    on: bool


@dataclasses.dataclass(frozen=True, eq=False)
class Look:
    """Everything that the viewer needs.

    Args:
        kind: "volume", "planes", or "none" where there is nothing to look at.
        note: what to know of it.
        data: for the page's program, as JSON.
        blobs: names and texts (base64) of what is large.
    """

    kind: str
    note: str
    data: dict[str, Any]
    blobs: tuple[tuple[str, str], ...] = ()
    planes: tuple[Drawn, ...] = ()
    sliders: tuple[Slider, ...] = ()
    boxes: tuple[Box, ...] = ()
    scale: Scale = Scale("", "", 1.0)
    label: bool = False
    axes: tuple[str, ...] = ()
    frame: str = ""
    landmarks: bool = True

    @property
    def broad(self) -> bool:
        """Whether it takes the page's whole width: three planes do."""
        return self.kind == "volume" or len(self.planes) > 1


def nothing(reason: str) -> Look:
    """A page without a viewer says why."""
    return Look("none", reason, {"kind": "none"})


def look(reg: Registration, rows: LandmarkRows, found: Maps, seen: Readout, layers: Layers) -> Look:
    """Volumes where there is a fixed image in 3-D, planes else."""
    common = {
        "readout": seen.document,
        "landmarks": _landmarks(reg, rows),
        "reach": _reach(reg),
        "start": _start(rows, found, layers).tolist(),
    }
    blob = ("readout", _base64(gzip.compress(seen.coefficients.tobytes(), 6, mtime=0)))
    if found.grid.dimension == 3 and layers.fixed is not None:
        made = _volume_look(found, layers)
    else:
        made = _plane_look(reg, rows, found, seen, layers)
    error = max(seen.displacement_error_mm, seen.radius_error_mm)
    note = f"{made.note} {_exactness(error, _typical_radius(reg, rows, seen))}"
    three = found.grid.dimension == 3
    return dataclasses.replace(
        made,
        note=note,
        data={**common, **made.data, "kind": made.kind},
        blobs=(blob, *made.blobs),
        axes=("R", "A", "S") if three else ("x", "y"),
        landmarks=len(rows.names) > 0,
        frame="RAS" if three else "IMAGE: x right, y down",
    )


def _typical_radius(reg: Registration, rows: LandmarkRows, seen: Readout) -> float:
    """The median 95 % radius of the landmarks, or of the places that images inform, mm."""
    if reg.images is None:
        radii = GaussianPoints(rows.predicted, rows.covariances).radius(0.95)
        return float(np.median(radii))
    return float(np.nanmedian(seen.uncertainty("radius", reg.fixed_support)))


def _exactness(error_mm: float, radius_mm: float) -> str:
    """How good the numbers of a click are, beside what is uncertain anyway."""
    if not error_mm <= NOT_EXACT * radius_mm:
        size = f"{error_mm:.2g} mm" if error_mm < 1 else "a millimetre and more"
        return f"Numbers of a click are interpolated, and err by up to {size} in places."
    return (
        f"Numbers of a click are within {error_mm:.1g} mm of the posterior, where that was checked."
    )


def _reach(reg: Registration) -> dict[str, Any]:
    """What the page needs to say that a place is far from the landmarks, as
    `outputs.targets.remoteness` does.

    Distances are measured after the alignment's matrix; `sides` are half-spaces whose intersection
    is the hull: how far a place is above one of them it is outside the hull, at least.
    """
    turn, scale = np.asarray(reg.posterior.alignment.matrix), main_scale(reg.kernel)
    source = source_of(reg)
    hull = hull_of(reg.informing @ turn.T)
    normals = hull.sides[:, :-1] @ hull.axes.T
    offsets = hull.sides[:, -1] - normals @ hull.middle
    return {
        "turn": turn.tolist(),
        "nodes": np.round(reg.posterior.informed_nodes, 2).tolist(),
        "one": source.one,
        "region": source.region,
        "sides": np.c_[normals, offsets].tolist(),
        "far": FAR * scale if np.isfinite(scale) else None,
        "beyond": BEYOND * scale if np.isfinite(scale) else None,
    }


def _landmarks(reg: Registration, rows: LandmarkRows) -> list[dict[str, Any]]:
    stds = GaussianPoints(rows.predicted, rows.covariances).std
    rounded = lambda point: [round(float(x), 3) for x in point]
    return [
        {
            "name": name,
            "moving": rounded(rows.moving[i]),
            "predicted": rounded(rows.predicted[i]),
            "std": round(float(stds[i]), 4),
            "used": bool(reg.used[i]),
            "suspect": bool(rows.suspect[i]),
        }
        for i, name in enumerate(rows.names)
    ]


def _start(rows: LandmarkRows, found: Maps, layers: Layers) -> np.ndarray:
    """Where to look first: inside the label, in what was compared, in the middle of the landmarks
    or of the grid.
    """
    last = np.array(found.grid.shape) - 1
    if layers.place is not None:
        middle = layers.place
    elif len(rows.predicted):
        middle = np.median(rows.predicted, axis=0)
    else:
        middle = found.grid.world(last / 2)
    return found.grid.world(np.clip(found.grid.index(middle), 0, last))


# ------------------------------------------------------------------------------------------ volumes


def _volume_look(found: Maps, layers: Layers) -> Look:
    made = volumes(found, layers)
    top = next(one.top for one in made if one.name == "radius")
    assert top is not None
    tables = {one.name: {"top": one.top} for one in made}
    sliders = [Slider("colours", "Uncertainty", 35)]
    if layers.warped is not None:
        sliders.insert(0, Slider("warped", "Fixed → warped", 0))
    return Look(
        "volume",
        _size_note(found),
        {"volumes": tables, "stepMm": float(found.grid.spacing.min())},
        (
            ("niivue", _base64(gzip.compress(_niivue(), 9, mtime=0))),
            *((one.name, _base64(one.data)) for one in made),
        ),
        sliders=tuple(sliders),
        boxes=(Box("show-label", "Label outlines", True),) if layers.probability else (),
        scale=Scale("95 % radius", "mm", top),
        label=layers.probability is not None,
    )


def _size_note(found: Maps) -> str:
    """Whether images are shown at their own resolution."""
    blocks, shape = coarse(found.grid), " × ".join(str(n) for n in found.grid.shape)
    if blocks.whole:
        own = f"Images are shown at their own resolution, {shape} voxels, with one byte each; maps on a coarser grid."
        return f"{SIDES} {own}"
    steps = " × ".join(str(n) for n in blocks.steps)
    return (
        f"{SIDES} To keep this page small, images are shown at a lower resolution: "
        f"means of {steps} voxels, of {shape}. "
        "Voxels at the end that fill no such block are left out, and maps are on a coarser grid. The files of the "
        "result have all of them."
    )


def _niivue() -> bytes:
    return resources.files("kunita.report").joinpath("niivue/niivue.umd.js").read_bytes()


def licences() -> str:
    """Of NiiVue, and of what it brings."""
    folder = resources.files("kunita.report").joinpath("niivue")
    texts = (
        folder.joinpath(name).read_text(encoding="utf-8")
        for name in ("LICENSE", "BUNDLED-LICENSES.md")
    )
    return "NiiVue\n\n" + "\n".join(texts)


# ------------------------------------------------------------------------------------------- planes


def _plane_look(
    reg: Registration, rows: LandmarkRows, found: Maps, seen: Readout, layers: Layers
) -> Look:
    flat, box = found.grid.dimension == 2, _shown_box(reg, rows, found)
    pictures = _pictures(layers) if flat else ()
    outlines = _outlines(layers) if flat else ()
    colours, drawn = coloured_planes(reg, rows, seen, box, "radius", pictures, outlines)
    sliders = [Slider("colours", "Uncertainty", 45 if pictures else 100)]
    if layers.warped is not None and pictures:
        sliders.insert(0, Slider("warped", "Fixed → warped", 0))
    step = float((box[1] - box[0]).max()) / 200
    return Look(
        "planes",
        _plane_note(rows, flat=flat) + _picture_note(layers, pictures),
        {"stepMm": step},
        planes=drawn,
        sliders=tuple(sliders),
        boxes=tuple(_boxes(rows, pictures, outlines)),
        scale=colours,
        label=bool(outlines),
    )


def _boxes(
    rows: LandmarkRows, pictures: tuple[Picture, ...], outlines: tuple[str, ...]
) -> Iterator[Box]:
    """What can be hidden."""
    yield Box("show-grid", "Deformed grid", True)
    if len(rows.names):
        yield Box("show-landmarks", "Landmarks, 95 % ellipses", True)
        yield Box("show-paths", "Where they came from", not pictures)
    if outlines:
        yield Box("show-outlines", "Label outlines", True)


def _plane_note(rows: LandmarkRows, *, flat: bool) -> str:
    """What is drawn on the planes."""
    grid = "he grid is regular before the deformation (alignment apart)."
    if not len(rows.names):
        return f"T{grid}" if flat else f"T{grid} Planes through the middle. {SIDES}"
    note = f"○ marked and + predicted landmarks; t{grid}"
    if not flat:
        note += f" Planes through the middle of the landmarks, which are projected on each. {SIDES}"
    drawn = len(_some(rows).names)
    if drawn == len(rows.names):
        return note
    return f"{note} {drawn} of {len(rows.names)} landmarks are drawn."


def _outlines(layers: Layers) -> tuple[str, ...]:
    """Of the label's probability, at each of the borders."""
    if layers.probability is None or layers.any_label is None:
        return ()
    blocks = coarse(layers.probability.grid, MOST_PIXELS)
    probability = blocks.averaged(layers.any_label)
    return tuple(
        outline_path(probability, Grid(probability.shape, blocks.affine), level)
        for level in BORDERS
    )


def _shown_box(reg: Registration, rows: LandmarkRows, found: Maps) -> np.ndarray:
    """What is shown of the world: the picture with its outer pixels whole, or the box around the
    landmarks.
    """
    if found.grid.dimension == 2:
        ends = found.grid.world(np.stack([np.full(2, -0.5), np.array(found.grid.shape) - 0.5]))
        return np.sort(ends, axis=0)
    return box_of(reg, rows)


def coloured_planes(
    reg: Registration,
    rows: LandmarkRows,
    seen: Readout,
    box: np.ndarray,
    what: str,
    pictures: tuple[Picture, ...] = (),
    outlines: tuple[str, ...] = (),
) -> tuple[Scale, tuple[Drawn, ...]]:
    """The planes through the middle of what is known, in one scale of colours."""
    title, unit = {
        "radius": ("95 % radius", "mm"),
        "fc": ("FC, the Frobenius norm of the covariance", "mm²"),
    }[what]
    planes = views(middle_of(reg, rows))
    top = scale_top(np.concatenate([_sampled(seen, view, box, what) for view in planes]))
    colours, some = Colours(what, title, unit, top), _some(rows)
    widths = np.array([np.ptp(box[:, view.right]) for view in planes])
    drawn = tuple(
        Drawn(
            view.title,
            plane_svg(reg, some, seen, view, box, colours, pictures, outlines),
            float(share),
        )
        for view, share in zip(planes, 100 * widths / widths.sum(), strict=True)
    )
    return Scale(title, unit, top), drawn


def _sampled(seen: Readout, view: View, box: np.ndarray, what: str) -> np.ndarray:
    """Some values of a plane."""
    low, high = np.sort(view.flat(box), axis=0)
    across, down = (np.linspace(low[k], high[k], 24) for k in range(2))
    points = view.world(np.stack(np.meshgrid(across, down), axis=-1))
    values = seen.uncertainty(what, points.reshape(-1, points.shape[-1]))
    return values[np.isfinite(values)]


def _some(rows: LandmarkRows) -> LandmarkRows:
    """Landmarks that are drawn: all, or of very many the suspects and others at equal distances in
    the list.
    """
    n = len(rows.names)
    if n <= MOST_DRAWN:
        return rows
    doubted, others = np.flatnonzero(rows.suspect)[:MOST_DRAWN], np.flatnonzero(~rows.suspect)
    room = min(MOST_DRAWN - len(doubted), len(others))
    kept = np.sort(
        np.concatenate([doubted, others[np.linspace(0, len(others) - 1, room).astype(int)]])
    )
    return dataclasses.replace(
        rows,
        names=tuple(rows.names[i] for i in kept),
        suspicion=tuple(rows.suspicion[i] for i in kept),
        moving=rows.moving[kept],
        fixed=rows.fixed[kept],
        predicted=rows.predicted[kept],
        covariances=rows.covariances[kept],
        residuals=rows.residuals[kept],
        loo_errors=rows.loo_errors[kept],
        loo_chi2=rows.loo_chi2[kept],
        weights=rows.weights[kept],
        suspect=rows.suspect[kept],
        known=rows.known[kept],
    )


def _pictures(layers: Layers) -> tuple[Picture, ...]:
    named = (("fixed", layers.fixed), ("warped", layers.warped))
    return tuple(_picture(name, image) for name, image in named if image is not None)


def _picture(name: str, image: Image) -> Picture:
    blocks = coarse(image.grid, MOST_PIXELS)
    data = np.nan_to_num(blocks.averaged(image.data))
    if image.data.dtype != np.uint8:
        low, high = grey_window(data)
        data = 255 * (data - low) / (high - low)
    pixels = np.swapaxes(
        np.clip(np.rint(data), 0, 255).astype(np.uint8), 0, 1
    )  # memory has x first
    pixels = (
        pixels[..., 0]
        if image.channels and pixels.shape[-1] < 3
        else pixels[..., :3]
        if image.channels
        else pixels
    )
    counts = np.array(image.grid.shape) // blocks.steps * blocks.steps
    corners = image.grid.world(np.stack([np.full(2, -0.5), counts - 0.5]))
    return Picture(name, picture_address(np.ascontiguousarray(pixels), "JPEG"), corners)


def _picture_note(layers: Layers, pictures: tuple[Picture, ...]) -> str:
    if not pictures or layers.fixed is None:
        return ""
    blocks = coarse(layers.fixed.grid, MOST_PIXELS)
    if blocks.whole:
        return ""
    return f" To keep this page small, pictures are means of {blocks.steps[0]} × {blocks.steps[1]} pixels."


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
