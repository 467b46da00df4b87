"""The figures of the clinical experiment: leave-one-out over length scales, calibration, and a case
to look at.

After `fig:loo`, `fig:reg-us` and `fig:reg-us-un` of [wassermann:14].
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from kunita.data.image import Grid, Image
from kunita.figures.overview import NEAR_MM, Layer, View, draw_layer, views_of
from kunita.figures.style import COLOURS, DASHES, MARKERS, PAGE_WIDTH, styled
from kunita.outputs.dense import lattice_points
from kunita.outputs.maps import PullBack, maps
from kunita.outputs.warp import interpolator
from kunita.record import Registration

MOST_PIXELS = 400
"""Along the longer side of a picture: more than a printed panel shows."""

BEFORE, BEST = COLOURS[3], COLOURS[5]
"""Green and yellow, as in the paper; told apart by their dashes too."""

WORDS_HEIGHT = 0.13
"""Part of the height of a panel of box plots that is kept free above everything, for the words on a
line up there."""

SCALE_BAR_MM = 10.0


# ------------------------------------------------------------------------------------------ numbers


@dataclasses.dataclass(frozen=True, eq=False)
class Distances:
    """What one panel of box plots shows.

    Args:
        title: of the panel.
        groups: distances, mm, of all landmarks under each prior.
        best: which group is drawn as the best.
    """

    title: str
    groups: tuple[np.ndarray, ...]
    best: int


@styled
def box_plots(labels: Sequence[str], panels: Sequence[Distances], before_mm: float) -> Figure:
    """Left-out distances against σ (`fig:loo` of [wassermann:14]), medians, quartiles and every
    outlier at once.

    *Departure*: on a logarithmic scale, which shows the small distances beside the outliers.
    """
    figure = Figure(figsize=(PAGE_WIDTH, 3.4), layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    low = 0.8 * min(max(float(group.min()), 1e-2) for panel in panels for group in panel.groups)
    high = max(before_mm, *(float(group.max()) for panel in panels for group in panel.groups))
    top = high * (high / low) ** (WORDS_HEIGHT / (1 - WORDS_HEIGHT))
    for place, panel in zip(axes, panels, strict=True):
        _boxes(place, panel, labels)
        _levels(place, panel, before_mm, len(labels))
        place.set(yscale="log", xlabel="length scale σ of the prior (mm)", title=panel.title)
        place.set_ylim(low, top)
        place.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        place.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        place.yaxis.set_minor_formatter(NullFormatter())
        place.grid(axis="x", visible=False)
    axes[0].set_ylabel("distance (mm, logarithmic)")
    figure.supxlabel(
        "box: quartiles, line: median, whiskers: 1.5 × the interquartile range, dots: outliers; "
        "rigid: the alignment alone",
        fontsize=7,
    )
    return figure


def _boxes(axes: Axes, panel: Distances, labels: Sequence[str]) -> None:
    drawn = axes.boxplot(
        [np.maximum(group, 1e-3) for group in panel.groups],
        tick_labels=list(labels),
        widths=0.6,
        patch_artist=True,
        medianprops={"color": COLOURS[0], "linewidth": 1.6},
        flierprops={
            "marker": ".",
            "markersize": 3,
            "markerfacecolor": "0.35",
            "markeredgecolor": "none",
        },
        whiskerprops={"linewidth": 0.8},
        capprops={"linewidth": 0.8},
    )
    for k, box in enumerate(drawn["boxes"]):
        box.set(facecolor="0.72" if k == panel.best else "0.93", edgecolor="0.2", linewidth=0.8)


def _levels(axes: Axes, panel: Distances, before_mm: float, count: int) -> None:
    """The mean distance before registration, and the median of the best group, named at the end of
    their lines.
    """
    median = float(np.median(panel.groups[panel.best]))
    end = 1.34 * count + 0.5  # room for words beside the boxes
    axes.set_xlim(0.4, end)
    for level, colour, dashes, words in (
        (before_mm, BEFORE, DASHES[0], "mean before"),
        (median, BEST, DASHES[1], "median of best"),
    ):
        axes.axhline(level, color=colour, linestyle=dashes, linewidth=1.3, zorder=1.5)
        axes.text(
            end - 0.06,
            1.04 * level,
            f"{words}\n{level:.2f} mm",
            fontsize=6.5,
            ha="right",
            va="bottom",
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Calibration:
    """How honest the predictions were: one entry per prior, in the order of the labels.

    Args:
        labels: of the priors.
        levels: (l,) probabilities of regions.
        coverage: (k, l) share of landmarks inside them.
        nll: (k,) mean negative log density of the landmarks.
        predicted_mm, observed_mm: (k,) root mean square length of the errors, as predicted and as
            they were.
    """

    labels: tuple[str, ...]
    levels: np.ndarray
    coverage: np.ndarray
    nll: np.ndarray
    predicted_mm: np.ndarray
    observed_mm: np.ndarray


@styled
def calibration(found: Calibration) -> Figure:
    """Coverage against what was promised, the log score, and the predicted size of errors against
    the true one.
    """
    figure = Figure(figsize=(PAGE_WIDTH, 3.0), layout="constrained")
    curves, score, size = figure.subplots(1, 3, width_ratios=(1.15, 1, 1))
    _coverage_curves(curves, found)
    x = np.arange(len(found.labels))
    score.plot(x, found.nll, color=COLOURS[1], marker=MARKERS[1])
    best = int(np.argmin(found.nll))
    score.plot(x[best], found.nll[best], MARKERS[0], ms=10, mfc="none", mec=COLOURS[0])
    score.set(
        title="log score", ylabel="mean −log density of a landmark (nats)", ylim=_room(found.nll)
    )
    score.text(
        0.5, 0.95, "circle: best", transform=score.transAxes, ha="center", va="top", fontsize=7
    )
    size.plot(x, found.observed_mm, color=COLOURS[0], marker=MARKERS[0], label="as it was")
    size.plot(
        x,
        found.predicted_mm,
        color=COLOURS[2],
        marker=MARKERS[2],
        linestyle=DASHES[1],
        label="as predicted",
    )
    size.set(title="size of errors", ylabel="root mean square distance (mm)")
    size.set_ylim(0, 1.1 * max(found.observed_mm.max(), found.predicted_mm.max()))
    size.legend(loc="lower center", frameon=False)
    for axes in (score, size):
        axes.set_xticks(x, found.labels)
        axes.set_xlabel("σ (mm)")
    handles, labels = curves.get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=len(labels),
        frameon=False,
        handlelength=2.6,
    )
    return figure


def _coverage_curves(axes: Axes, found: Calibration) -> None:
    percent = 100 * found.levels
    axes.plot([40, 100], [40, 100], color="0.6", linewidth=0.8)
    axes.text(
        41, 44, "honest", fontsize=7, color="0.35", rotation=38, rotation_mode="anchor", va="bottom"
    )
    for k, label in enumerate(found.labels):
        axes.plot(
            percent,
            100 * found.coverage[k],
            color=COLOURS[k % len(COLOURS)],
            marker=MARKERS[k % len(MARKERS)],
            linestyle=DASHES[k % len(DASHES)],
            markersize=3.5,
            label=label if label == "rigid" else f"σ {label}",
        )
    axes.set(title="coverage", xlabel="nominal (%)", ylabel="landmarks inside (%)", xlim=(40, 101))
    axes.set_ylim(min(30.0, 100 * float(found.coverage.min()) - 5), 102)


def _room(values: np.ndarray) -> tuple[float, float]:
    span = max(float(np.ptp(values)), 0.1)
    return float(values.min()) - 0.15 * span, float(values.max()) + 0.3 * span


# ------------------------------------------------------------------------------------------- a case


@dataclasses.dataclass(frozen=True, eq=False)
class Slice:
    """A plane of the fixed space through one landmark, as a grid one voxel thick (a picture's own
    grid in 2-D).
    """

    grid: Grid
    view: View
    cross: np.ndarray

    def near(self, points: np.ndarray) -> np.ndarray:
        """(n,) which world points are drawn on the plane."""
        if self.view.across is None:
            return np.ones(len(points), dtype=bool)
        return (
            np.abs(self.grid.index(points)[:, self.view.across])
            * self.grid.spacing[self.view.across]
            < NEAR_MM
        )

    def flat(self, points: np.ndarray) -> np.ndarray:
        """(2, n) where world points are drawn."""
        return self.grid.index(points)[:, [self.view.right, self.view.up]].T


def slice_through(grid: Grid, point: np.ndarray, motion: np.ndarray) -> Slice:
    """The plane through a point, along two axes of a grid, that shows most of a motion there."""
    views = views_of(grid)
    steps = np.abs(grid.index(point + motion) - grid.index(point)) * grid.spacing
    view = min(views, key=lambda v: 0.0 if v.across is None else steps[v.across])
    coarser = max(1.0, max(grid.shape) / MOST_PIXELS)
    scale = np.array([1.0 if axis == view.across else coarser for axis in range(grid.dimension)])
    corner = np.where(np.arange(grid.dimension) == view.across, grid.index(point), 0.0)
    affine = grid.affine.copy()
    affine[:-1, :-1] = grid.affine[:-1, :-1] * scale
    affine[:-1, -1] = grid.world(corner)
    shape = [
        1 if axis == view.across else int((n - 1) / coarser) + 1
        for axis, n in enumerate(grid.shape)
    ]
    return Slice(Grid(tuple(shape), affine), view, point)


def sampled(image: Image, points: np.ndarray) -> np.ndarray:
    """The values of an image at (…, d) world points, linearly interpolated."""
    return interpolator(image, "linear")(image.grid.index(points))


def warped(pulled: PullBack, moving: Image) -> np.ndarray:
    """A moving image on the slice that it was pulled back to."""
    return sampled(moving, pulled.origins(_lattice(pulled.grid)))


def _grey(title: str, data: np.ndarray) -> Layer:
    """A picture whose few brightest and darkest voxels do not take the contrast from the rest."""
    return Layer(title, np.clip(data, *np.quantile(data, (0.002, 0.995))), "gray")


def _lattice(grid: Grid) -> tuple[np.ndarray, ...]:
    return tuple(np.arange(n, dtype=float) for n in grid.shape)


@styled
def before_and_after(
    cut: Slice,
    rigid: Registration,
    full: Registration,
    moving: Image,
    fixed: Image,
    names: tuple[str, str],
) -> Figure:
    """The moving image rigidly aligned, the fixed image, and the moving image warped, on one plane.

    As `fig:reg-us` of [wassermann:14].

    Args:
        cut: the plane, through the landmark at the crosshair.
        rigid, full: registrations without and with deformation.
        moving, fixed: the images.
        names: what to call the images.
    """
    shown = sampled(fixed, lattice_points(cut.grid, _lattice(cut.grid)))
    pictures = [warped(maps(reg, cut.grid).pull_back, moving) for reg in (rigid, full)]
    figure = Figure(figsize=(PAGE_WIDTH, 3.0), layout="constrained")
    axes = figure.subplots(1, 3)
    titles = (f"a  {names[0]}, rigidly aligned", f"b  {names[1]}", f"c  {names[0]}, warped")
    for place, title, data in zip(axes, titles, (pictures[0], shown, pictures[1]), strict=True):
        draw_layer(place, _grey(title, data), cut.view, cut.grid)
        place.set_title("")
        place.set_title(title, fontsize=8.5, loc="left")
        _crosshair(place, cut)
        _fan(place, cut, shown if place is not axes[1] else None)
    for place, reg in zip(axes, (rigid, None, full), strict=True):
        _landmarks(
            place,
            cut,
            full.fixed.points,
            None if reg is None else reg.posterior.predict(full.moving.points).mean,
        )
    _scale_bar(axes[0], cut)
    depth = f" within {NEAR_MM:.0f} mm of the plane" if cut.grid.dimension == 3 else ""
    figure.supxlabel(
        f"○ landmarks{depth}, in the {names[1]}; × where the registration puts them; crosshair: one of them\n"
        f"dotted: what the {names[1]} sees",
        fontsize=7,
    )
    return figure


def _crosshair(axes: Any, cut: Slice) -> None:
    """Lines that leave the place itself open."""
    (x,), (y,) = cut.flat(cut.cross[None])
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    gap_x, gap_y = 0.05 * (right - left), 0.05 * (top - bottom)
    style = {"color": COLOURS[6], "linewidth": 0.8}
    for a, b in ((left, x - gap_x), (x + gap_x, right)):
        axes.plot([a, b], [y, y], **style)
    for a, b in ((bottom, y - gap_y), (y + gap_y, top)):
        axes.plot([x, x], [a, b], **style)
    axes.set(xlim=(left, right), ylim=(bottom, top))


def _scale_bar(axes: Any, cut: Slice) -> None:
    """A length in the lower left corner: white with a dark outline, to be seen on any picture."""
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    outline = [withStroke(linewidth=3.0, foreground="black")]
    start, height = left + 0.06 * (right - left), bottom + 0.05 * (top - bottom)
    end = start + np.sign(right - left) * SCALE_BAR_MM / cut.grid.spacing[cut.view.right]
    style = {"color": "white", "path_effects": outline}
    axes.plot(
        [start, end],
        [height, height],
        linewidth=1.8,
        solid_capstyle="butt",
        gid="scale bar",
        **style,
    )
    above = height + 0.02 * (top - bottom)
    axes.text(start, above, f"{SCALE_BAR_MM:g} mm", fontsize=6.5, ha="left", va="bottom", **style)
    axes.set(xlim=(left, right), ylim=(bottom, top))


def _fan(axes: Any, cut: Slice, fixed: np.ndarray | None) -> None:
    """The outline of where the fixed image has anything to see, on pictures of the other image."""
    flat = None if fixed is None else cut.view.flat(fixed)
    if flat is not None and flat.ndim == 2 and 0.02 < np.mean(flat == 0) < 0.98:
        axes.contour(flat > 0, [0.5], colors=COLOURS[5], linewidths=0.7, linestyles=":")


def _landmarks(axes: Any, cut: Slice, fixed: np.ndarray, predicted: np.ndarray | None) -> None:
    limits, near = (axes.get_xlim(), axes.get_ylim()), cut.near(fixed)
    axes.plot(*cut.flat(fixed[near]), "o", mfc="none", mec=COLOURS[2], ms=6, mew=1.1)
    if predicted is not None:
        axes.plot(*cut.flat(predicted[near]), "x", color=COLOURS[5], ms=4.5, mew=1.1)
    axes.set(xlim=limits[0], ylim=limits[1])


@dataclasses.dataclass(frozen=True, eq=False)
class Panel:
    """A warped image and the 95 % radius over it, mm, on one slice."""

    title: str
    picture: np.ndarray
    radius: np.ndarray


def panel(title: str, reg: Registration, moving: Image, cut: Slice) -> Panel:
    """What a registration says on a slice."""
    found = maps(reg, cut.grid)
    return Panel(title, warped(found.pull_back, moving), found.on(_lattice(cut.grid), "radius"))


@styled
def smoothing(
    rows: Sequence[tuple[str, Sequence[Panel]]], cut: Slice, landmarks: np.ndarray
) -> Figure:
    """The warped image under ever smoother priors, the uncertainty over it in translucent colour
    and contours.

    As `fig:reg-us-un` of [wassermann:14].

    Args:
        rows: a title and the panels of each row, from rough to smooth; one colour bar serves all.
        cut: the slice that all panels are on.
        landmarks: fixed landmarks, of which the near ones are drawn.
    """
    columns = max(len(panels) for _, panels in rows)
    height, width = cut.view.flat(rows[0][1][0].radius).shape
    tall = height * cut.grid.spacing[cut.view.up] / (width * cut.grid.spacing[cut.view.right])
    cell = (PAGE_WIDTH - 1.1) / columns
    figure = Figure(
        figsize=(PAGE_WIDTH, len(rows) * (min(tall, 2.0) * cell + 0.36) + 0.25),
        layout="constrained",
    )
    places = figure.subplots(len(rows), columns, squeeze=False)
    everything = np.concatenate([one.radius.ravel() for _, panels in rows for one in panels])
    top = float(np.quantile(everything, 0.98))
    for line, (title, panels) in zip(places, rows, strict=True):
        for place, one in zip(line, panels, strict=False):
            drawn = _overlay(place, one, cut, top)
            place.plot(
                *cut.flat(landmarks[cut.near(landmarks)]),
                "o",
                mfc="none",
                mec="white",
                ms=3.5,
                mew=0.8,
            )
        line[0].set_ylabel(title, fontsize=7.5)
        for place in line[len(panels) :]:
            place.set_axis_off()
    _scale_bar(places[0][0], cut)
    figure.colorbar(
        drawn,
        ax=places,
        label="radius of the 95 % region (mm)",
        shrink=0.85,
        extend="max",
        pad=0.01,
    )
    depth = f" within {NEAR_MM:.0f} mm of the plane" if cut.grid.dimension == 3 else ""
    figure.supxlabel(f"contours: the same radius, in mm; ○ landmarks{depth}", fontsize=7)
    return figure


def _overlay(axes: Any, one: Panel, cut: Slice, top: float) -> Any:
    draw_layer(axes, _grey(one.title, one.picture), cut.view, cut.grid)
    axes.set_title(one.title, fontsize=7.5)
    aspect = float(cut.grid.spacing[cut.view.up] / cut.grid.spacing[cut.view.right])
    limits, flat = (axes.get_xlim(), axes.get_ylim()), cut.view.flat(one.radius)
    drawn = axes.imshow(
        flat, cmap="viridis", origin="lower", vmin=0, vmax=top, alpha=0.45, aspect=aspect
    )
    levels = MaxNLocator(8).tick_values(0, top)
    if np.any((levels > flat.min()) & (levels < flat.max())):
        lines = axes.contour(flat, levels, colors="white", linewidths=0.6)
        axes.clabel(lines, fontsize=5.5, fmt=lambda value: f"{value:g}")
    axes.set(xlim=limits[0], ylim=limits[1])
    return drawn
