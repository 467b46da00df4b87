"""Planes drawn as SVG in millimetres: uncertainty in colour, the deformed grid, landmarks with
their 95 % ellipses.
"""

import base64
import dataclasses
import html
import io
import itertools
from collections.abc import Iterator, Sequence

import numpy as np
from scipy.stats import chi2

from kunita.data.image import Grid
from kunita.outputs.summary import LandmarkRows
from kunita.record import Registration
from kunita.report.readout import Readout

MARGIN = 0.15
"""Of the landmarks' extent, what is shown around them."""

BOX_VOXELS = 48
"""Along the longest axis of the grid that stands in for an image's."""

PIXELS = 160
"""Of a plane's colours, along its longer side; between them the browser interpolates."""

LINES, PER_LINE = 21, 61
"""Lines of the deformed grid along the longer side, and points of each."""

COLOURS = "viridis"

LEVELS = ("five", "half", "most")
"""Outlines of a label, from the outermost."""


@dataclasses.dataclass(frozen=True)
class View:
    """A plane as people look at it, in world axes.

    Args:
        title: its name.
        right, up: the world's axes along it.
        across, level: the axis that it cuts, and where; None in 2-D.
        letters: what is to the left, right, below and above.
    """

    title: str
    right: int
    up: int
    across: int | None = None
    level: float = 0.0
    letters: str = ""

    def flat(self, points: np.ndarray) -> np.ndarray:
        """(…, 2) places on the page: to the right and down; 2-D points have y down already."""
        return np.stack([points[..., self.right], self.down * points[..., self.up]], axis=-1)

    def world(self, places: np.ndarray) -> np.ndarray:
        """(…, d) the world's points at places on the page."""
        parts = {self.right: places[..., 0], self.up: self.down * places[..., 1]}
        if self.across is not None:
            parts[self.across] = np.full_like(places[..., 0], self.level)
        return np.stack([parts[axis] for axis in range(len(parts))], axis=-1)

    @property
    def down(self) -> int:
        """The sign of the second axis on the page."""
        return 1 if self.across is None else -1

    def ellipse(self, covariance: np.ndarray) -> tuple[float, float, float]:
        """Half-axes, and angle in degrees, of the region that holds 95 % of the projected point."""
        turn = np.array([1.0, self.down])
        axes = [self.right, self.up]
        values, vectors = np.linalg.eigh(covariance[np.ix_(axes, axes)] * np.outer(turn, turn))
        half = np.sqrt(chi2.ppf(0.95, 2) * np.maximum(values, 0))
        return (
            float(half[1]),
            float(half[0]),
            float(np.degrees(np.arctan2(vectors[1, 1], vectors[0, 1]))),
        )


def views(centre: np.ndarray) -> tuple[View, ...]:
    """The plane itself, or three through a point of space."""
    if len(centre) == 2:
        return (View("", 0, 1),)
    x, y, z = (float(part) for part in centre)
    return (
        View("axial", 0, 1, 2, z, "LRPA"),
        View("coronal", 0, 2, 1, y, "LRIS"),
        View("sagittal", 1, 2, 0, x, "PAIS"),
    )


def box_around(*sets: np.ndarray) -> np.ndarray:
    """(2, d) low and high corner of what is shown of space: all points and a margin."""
    points = np.concatenate(sets)
    room = MARGIN * (float(np.ptp(points, axis=0).max()) or 10.0)
    return np.stack([points.min(axis=0) - room, points.max(axis=0) + room])


def box_of(reg: Registration, rows: LandmarkRows) -> np.ndarray:
    """(2, d) what is shown of space: all landmarks and a margin, or the fixed image that drove a
    registration.
    """
    if reg.images is None:
        return box_around(rows.fixed, rows.predicted)
    grid = reg.images.fixed_grid
    ends = [(-0.5, n - 0.5) for n in grid.shape]
    corners = grid.world(np.array(list(itertools.product(*ends))))
    return np.stack([corners.min(axis=0), corners.max(axis=0)])


def shown_grid(reg: Registration, rows: LandmarkRows) -> Grid:
    """A grid over what is shown of space: the fixed image's, or one around the landmarks."""
    return box_grid(box_of(reg, rows)) if reg.images is None else reg.images.fixed_grid


def middle_of(reg: Registration, rows: LandmarkRows) -> np.ndarray:
    """(d,) the place that planes go through: among the landmarks, or among what images inform."""
    shown = rows.predicted if reg.images is None else reg.fixed_support
    return np.median(shown, axis=0)


def box_grid(box: np.ndarray) -> Grid:
    """A grid over a box, for registrations without images."""
    extents = box[1] - box[0]
    spacing = float(extents.max()) / (BOX_VOXELS - 1)
    shape = np.maximum(np.ceil(extents / spacing).astype(int) + 1, 2)
    affine = np.diag([*(extents / (shape - 1)), 1.0])
    affine[:-1, -1] = box[0]
    return Grid(shape, affine)


@dataclasses.dataclass(frozen=True, eq=False)
class Colours:
    """What the colours of a plane mean: a quantity, its unit and the end of its scale."""

    what: str
    title: str
    unit: str
    top: float


@dataclasses.dataclass(frozen=True, eq=False)
class Picture:
    """A picture of the whole plane: its name in the page, its address (data:), and its corners, mm."""

    name: str
    address: str
    box: np.ndarray


def plane_svg(
    reg: Registration,
    rows: LandmarkRows,
    seen: Readout,
    view: View,
    box: np.ndarray,
    colours: Colours,
    pictures: Sequence[Picture] = (),
    outlines: Sequence[str] = (),
) -> str:
    """One plane: pictures, colours, grid, outlines, landmarks, from below; classes say which is
    which.
    """
    low, high = np.sort(view.flat(box), axis=0)
    size, reach = high - low, float((box[1] - box[0]).max())
    alt = _alternative(rows, view, colours)
    parts = [
        f'<svg class="plane" style="--aspect: {size[0] / size[1]:.4f}" viewBox="{_numbers(*low, *size)}" '
        f'data-right="{view.right}" data-up="{view.up}" data-across="{"" if view.across is None else view.across}" '
        f'data-level="{view.level:.6g}" data-down="{view.down}" role="img" aria-label="{html.escape(alt)}" '
        'xmlns="http://www.w3.org/2000/svg">',
        *(
            _image(picture.address, picture.box[0], picture.box[1], f"layer {picture.name}")
            for picture in pictures
        ),
        _image(_coloured(seen, view, low, size, colours), low, high, "layer colours"),
        f'<path class="grid" d="{_grid_path(reg, view, low, size)}"/>',
        *(
            f'<path class="outline {name}" d="{path}"/>'
            for name, path in zip(LEVELS, outlines, strict=False)
        ),
        *_landmarks(rows, view, reach),
        *_letters(view, low, size, reach),
        "</svg>",
    ]
    return "".join(parts)


def _alternative(rows: LandmarkRows, view: View, colours: Colours) -> str:
    """A plane in words."""
    label = f"{view.title} plane" if view.title else "plane"
    marks = ", landmarks with 95 % ellipses" if len(rows.names) else ""
    return f"{label}: deformed grid over the {colours.title} in {colours.unit}{marks}"


def _coloured(
    seen: Readout, view: View, low: np.ndarray, size: np.ndarray, colours: Colours
) -> str:
    """The uncertainty over the plane as a picture's address; transparent where it is not known."""
    import matplotlib

    counts = np.maximum(np.rint(PIXELS * size / size.max()).astype(int), 2)
    across, down = (low[k] + size[k] * (np.arange(counts[k]) + 0.5) / counts[k] for k in range(2))
    points = view.world(np.stack(np.meshgrid(across, down), axis=-1))
    values = seen.uncertainty(colours.what, points.reshape(-1, points.shape[-1])).reshape(
        points.shape[:2]
    )
    pixels = matplotlib.colormaps[COLOURS](np.nan_to_num(values / colours.top), bytes=True)
    pixels[np.isnan(values), 3] = 0
    return picture_address(pixels)


def picture_address(pixels: np.ndarray, form: str = "PNG") -> str:
    """Pixels as a data: address."""
    from PIL import Image as Pixels

    content = io.BytesIO()
    Pixels.fromarray(pixels).save(content, form, quality=87)
    return f"data:image/{form.lower()};base64,{base64.b64encode(content.getvalue()).decode()}"


def _image(address: str, low: np.ndarray, high: np.ndarray, name: str) -> str:
    width, height = high - low
    return (
        f'<image class="{name}" x="{low[0]:.6g}" y="{low[1]:.6g}" width="{width:.6g}" height="{height:.6g}" '
        f'preserveAspectRatio="none" href="{address}"/>'
    )


def _grid_path(reg: Registration, view: View, low: np.ndarray, size: np.ndarray) -> str:
    """A regular grid of the plane, taken back by the alignment and then carried over: what the
    deformation does.
    """
    step = size.max() / (LINES - 1)
    along = np.linspace(0, 1, PER_LINE)
    lines = []
    for k in range(2):
        for place in np.arange(0.5 * (size[k] % step), size[k] + 1e-9, step):
            line = np.empty((PER_LINE, 2))
            line[:, k], line[:, 1 - k] = low[k] + place, low[1 - k] + size[1 - k] * along
            lines.append(line)
    places = np.stack(lines)
    back = np.linalg.inv(reg.posterior.affine)
    points = view.world(places.reshape(-1, 2)) @ back[:-1, :-1].T + back[:-1, -1]
    moved = view.flat(reg.evaluation.move(points)).reshape(places.shape)
    return "".join(f"M{_numbers(*line[0])}L{_numbers(*line[1:].ravel())}" for line in moved)


def _landmarks(rows: LandmarkRows, view: View, size: float) -> Iterator[str]:
    """Where each came from, its 95 % ellipse, where it is predicted, and where it was marked."""
    moving, fixed, predicted = (
        view.flat(points) for points in (rows.moving, rows.fixed, rows.predicted)
    )
    r = 0.007 * size
    for i, name in enumerate(rows.names):
        (mx, my), (fx, fy), (px, py) = moving[i], fixed[i], predicted[i]
        a, b, angle = view.ellipse(rows.covariances[i])
        doubt = " suspect" if rows.suspect[i] else ""
        said = html.escape(f"{name}: {rows.residuals[i]:.2g} mm from its mark")
        yield (
            f'<g class="landmark{doubt}"><title>{said}</title>'
            f'<path class="from" d="M{_numbers(mx, my)}L{_numbers(px, py)}"/>'
            f'<ellipse rx="{a:.4g}" ry="{b:.4g}" transform="translate({_numbers(px, py)})rotate({angle:.1f})"/>'
            f'<path class="predicted" d="M{_numbers(px - r, py)}H{px + r:.6g}M{_numbers(px, py - r)}V{py + r:.6g}"/>'
            f'<circle cx="{fx:.6g}" cy="{fy:.6g}" r="{r:.4g}"/></g>'
        )


def _letters(view: View, low: np.ndarray, size: np.ndarray, reach: float) -> Iterator[str]:
    edge = 0.03 * reach
    middle, high = low + size / 2, low + size
    places = (
        (low[0] + edge, middle[1]),
        (high[0] - edge, middle[1]),
        (middle[0], high[1] - edge),
        (middle[0], low[1] + edge),
    )
    for letter, (x, y) in zip(view.letters, places, strict=False):
        yield f'<text class="letter" x="{x:.6g}" y="{y:.6g}" font-size="{0.04 * reach:.4g}">{letter}</text>'


def outline_path(probability: np.ndarray, grid: Grid, level: float) -> str:
    """Where a probability on a 2-D grid reaches a level, as a path in the grid's own plane."""
    from contourpy import contour_generator  # takes long to import

    lines = [
        grid.world(np.asarray(line)) for line in contour_generator(z=probability.T).lines(level)
    ]
    return "".join(f"M{_numbers(*line[0])}L{_numbers(*line[1:].ravel())}" for line in lines)


def _numbers(*values: float) -> str:
    return " ".join(f"{value:.6g}" for value in values)
