"""Cards for notebooks: a registration or a posterior as a piece of HTML with a small drawing.

The core knows no HTML: `import kunita` gives both classes the method that notebooks ask for. The
piece is shown inside somebody else's page, on paper of any colour:
its styles are its own elements' and no others', what is written and drawn has the page's ink, and
nothing is loaded, run or given an id. Where notebooks are not trusted drawings are taken out and
only their words stay: so these have hardly any.
"""

import dataclasses
import html
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import jax
import numpy as np

from kunita.facts import Facts, SolverFacts, mismatch_in_words
from kunita.gaussians import GaussianPoints
from kunita.inference.intervals import EstimatedParameter
from kunita.inference.path_space import AbstractRowSpace
from kunita.inference.solve import Truncation
from kunita.kernels import describe_kernel
from kunita.outputs.expected import compared_places
from kunita.posterior import Posterior
from kunita.record import Registration

MOST_DRAWN = 100
"""Landmarks in a drawing; of more, those in doubt and others evenly spaced in the list."""

MOST_LINES, MOST_LETTERS = 8, 400
"""Warnings or suspects on a card, and letters of each."""

MOST_NAMED, NAME_LETTERS = 6, 24
"""Landmarks in doubt whose names are in the drawing, unless there are more, and letters of each."""

WIDTH, HEIGHT = 708.0, 300.0
"""Of the drawing, all views of it together, pixels at most."""

FAR = 1.6
"""Moving landmarks that would make the drawing this many times larger are drawn where the alignment
puts them."""

MARGIN, EDGE, THIN = 0.06, 16.0, 0.4
"""Around what is drawn: of its extent, and pixels for the letters; and no side is shorter than this
of the longest."""

CUT_95 = -2 * math.log(0.05)
"""The squared radius of the region that holds 95 % of a standard normal point of the plane."""

NO_TEXT = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
"""What no page can hold, or what turns the words around it: control characters, and halves of
others."""

BLUE, ORANGE, RED = "#2f86d8", "#d2700c", "#d6336c"
"""Legible on white and on black; shapes and words say the same."""

CARD = (
    "font-family:system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;font-size:13px;line-height:1.45;color:inherit;"
    "box-sizing:border-box;max-width:760px;padding:12px 16px;margin:4px 0;text-align:left;overflow-wrap:anywhere;"
    "border:1px solid rgba(128,128,128,.35);border-radius:8px;background:rgba(128,128,128,.06)"
)
CELL = "text-align:left;vertical-align:top;white-space:normal;border:0;background:transparent;font-size:13px;"
QUIET = "opacity:.72"


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of the table: its title, a text, a remark in smaller ink, and more lines."""

    title: str
    text: str
    remark: str = ""
    more: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Badge:
    """A word that is good news or not."""

    word: str
    good: bool


@dataclasses.dataclass(frozen=True, eq=False)
class Scene:
    """Landmarks to draw, mm.

    Args:
        start: (m, d) where they come from.
        arrived: (m, d) where they are predicted, and how surely.
        fixed: (n, d) where they were marked.
        doubtful: the names of those in doubt, by row.
        origin: what `start` is, in words.
        paired: whether the marks are those of the landmarks that start, row by row.
    """

    start: np.ndarray
    arrived: GaussianPoints
    fixed: np.ndarray
    doubtful: Mapping[int, str] = dataclasses.field(default_factory=dict)
    origin: str = "moving"
    paired: bool = True


# -------------------------------------------------------------------------------------------- cards


CALLS = (
    "predict(points)",
    "inverse(points)",
    "covariance(x, y)",
    "sample(points, 10)",
    "leave_one_out()",
)
"""What can be asked of a posterior."""

STOPPED_EARLY = "NOT CONVERGED: the posterior is that of a search that stopped early"


def show_registration(reg: Registration) -> str:
    """The card of a registration: its facts, suspects and warnings, and where its landmarks went."""
    if reg.images is not None:
        seen = reg.evaluation.predict(compared_places(reg))
        return image_card(reg.facts, _scene(reg), uncertainty_row(seen, "compared places"))
    scene = _scene(reg)
    arrived = scene.arrived
    used = GaussianPoints(arrived.mean[reg.used], arrived.covariance[reg.used])
    return registration_card(reg.facts, scene, uncertainty_row(used))


def _scene(reg: Registration) -> Scene:
    """Where the landmarks of a registration went; beside images there may be none."""
    if not len(reg.moving):
        nowhere = np.zeros((0, reg.fixed.dimension))
        return Scene(nowhere, reg.evaluation.predict(nowhere), nowhere)
    moving = reg.moving.points
    arrived = reg.evaluation.predict(moving)
    affine = reg.posterior.affine
    aligned = moving @ affine[:-1, :-1].T + affine[:-1, -1]
    start, origin = starts(moving, aligned, reg.fixed.points)
    return Scene(start, arrived, reg.fixed.points, _doubtful(reg), origin)


def _doubtful(reg: Registration) -> dict[int, str]:
    """The names of the suspects by row."""
    if reg.suspicion is None:
        return {}
    rows = np.flatnonzero(reg.used)
    labels = reg.used_labels
    return {int(rows[i]): labels[i] for i in np.flatnonzero(reg.suspicion.suspect)}


def show_posterior(posterior: Posterior) -> str | None:
    """The card of a posterior; None for what only has the shape of one, or has no landmarks.

    Of the landmarks it knows the control points only, where these stand for all.
    """
    if np.ndim(posterior.arrived) != 2 or not isinstance(posterior.linear, AbstractRowSpace):
        return None
    with jax.enable_x64(True):
        aligned = np.asarray(posterior.trajectory.positions[0])
        moving = np.asarray(posterior.alignment.inverse(aligned))
    arrived = posterior.predict(moving)
    marks = _marks_of(posterior)
    is_whole = len(moving) == len(marks.fixed)
    start, origin = starts(moving, aligned + np.asarray(posterior.origin), marks.fixed)
    scene = Scene(start, arrived, marks.fixed, {}, origin, paired=is_whole)
    is_early = posterior.corrected and posterior.model != "small"
    if is_whole:
        is_early = is_early or marks.are_missed_by(np.asarray(arrived.mean))
    warnings = (STOPPED_EARLY,) if is_early else ()
    return posterior_card(_posterior_rows(posterior, marks, scene), warnings, scene)


def _posterior_rows(posterior: Posterior, marks: "Marks", scene: Scene) -> tuple[Row, ...]:
    align = alignment_words(np.asarray(posterior.trend.generators))
    where = "landmarks" if scene.paired else "control points"
    return (
        Row("Model", f"{posterior.model}, alignment {align}"),
        Row("Kernel", describe_kernel(posterior.kernel)),
        Row("Noise", f"{marks.noise_mm:.3g} mm"),
        uncertainty_row(scene.arrived, where),
    )


@dataclasses.dataclass(frozen=True, eq=False)
class Marks:
    """The fixed landmarks as a posterior knows them: through the whitened rows H of each.

    Args:
        fixed: (n, d) where they were marked; along directions that are not known, where they are
            predicted.
        expected: (n, d) what a search that converged leaves of the way there, Dλ.
        noise_mm: typical standard deviation of their noise, D = (HᵀH)⁻¹.
    """

    fixed: np.ndarray
    expected: np.ndarray
    noise_mm: float

    def are_missed_by(self, means: np.ndarray) -> bool:
        """Whether predictions are not where a search that converged leaves them."""
        off = np.abs(self.fixed - means - self.expected)
        return bool(off.max() > 0.01 * self.noise_mm)


def _marks_of(posterior: Posterior) -> Marks:
    rows = posterior.rows
    site = np.asarray(rows.site)
    fixed = np.asarray(posterior.arrived) + np.asarray(posterior.origin)
    expected = np.zeros_like(fixed)
    variance = 0.0
    for landmark in range(len(fixed)):
        mine = np.flatnonzero(site == landmark)
        to_mm = np.linalg.pinv(np.asarray(rows.operator)[mine])
        fixed[landmark] += to_mm @ np.asarray(rows.residual)[mine]
        expected[landmark] = to_mm @ to_mm.T @ np.asarray(posterior.dual)[landmark]
        variance += np.sum(to_mm**2)
    return Marks(fixed, expected, float(np.sqrt(variance / len(site))))


def registration_card(facts: Facts, scene: Scene, uncertainty: Row) -> str:
    """The card of a registration; `uncertainty` is that of its landmarks' arrival."""
    converged = facts.solver.converged
    badge = Badge("converged", True) if converged else Badge("NOT CONVERGED", False)
    count = counted(facts.num_landmarks, "landmark")
    about = f"{count} in {facts.dimension}-D, paired by {facts.pairing}"
    told = {f"suspect: {line}" for line in facts.suspects or ()}
    warnings = [remark for remark in facts.warnings if remark not in told]
    rows = [*_registration_rows(facts, uncertainty)]
    return card("Registration", about, badge, rows, warnings, drawing(scene))


def image_card(facts: Facts, scene: Scene, uncertainty: Row) -> str:
    """The card of a registration that images drive; `uncertainty` is that of compared places."""
    converged = facts.solver.converged
    badge = Badge("converged", True) if converged else Badge("NOT CONVERGED", False)
    beside = f" and {counted(facts.num_landmarks, 'landmark')}" if facts.num_landmarks else ""
    about = f"two images{beside} in {facts.dimension}-D"
    rows = [*_image_rows(facts, uncertainty)]
    return card("Registration", about, badge, rows, facts.warnings, drawing(scene))


def _image_rows(facts: Facts, uncertainty: Row) -> Iterator[Row]:
    images = facts.images
    assert images is not None
    yield uncertainty
    yield Row("Mismatch", mismatch_in_words(images), "there the registration may be wrong")
    overlap = f"{100 * images.overlap:.0f} % overlap"
    yield Row("Images", f"compared by {images.metric}, {overlap}")
    if facts.num_landmarks:
        distance = f"{facts.before_mm:.3g} → {facts.after_mm:.3g} mm"
        yield Row("Distance", distance, "the landmarks' mean; small is not accurate")
        yield Row("Noise", f"{facts.noise_mm:.3g} mm", "of the landmarks")
    origin = "chosen by the evidence" if images.is_prior_chosen else "given"
    yield Row("Kernel", facts.kernel, origin)
    yield Row("Model", f"{facts.model}, alignment {facts.align}")
    error = f"a radius from them is good to {100 * images.monte_carlo_error:.0f} %"
    yield Row("Draws", f"{images.num_draws}", error)
    yield _solver(facts.solver, "last step")


def posterior_card(rows: Sequence[Row], warnings: Sequence[str], scene: Scene) -> str:
    """The card of a posterior, with what can be asked of it."""
    count = counted(len(scene.fixed), "landmark")
    about = f"over deformations, given {count} in {scene.fixed.shape[1]}-D"
    code = ", ".join(
        f'<code style="background:transparent;color:inherit">{_text(call)}</code>' for call in CALLS
    )
    asked = f'<div style="margin-top:8px"><span style="{QUIET}">Ask it:</span> {code}</div>'
    return card("Posterior", about, None, rows, warnings, drawing(scene) + asked)


def card(
    title: str,
    about: str,
    badge: Badge | None,
    table: Sequence[Row],
    warnings: Sequence[str],
    below: str = "",
) -> str:
    """A title, a table, warnings, and what is below them, which is HTML already."""
    rows = "".join(
        f'<tr style="background:transparent"><th scope="row" style="{CELL}padding:1px 14px 1px 0;font-weight:600;'
        f'white-space:nowrap">{_text(row.title)}</th><td style="{CELL}padding:1px 0">{_text(row.text)}'
        f"{_remark(row.remark)}{''.join(f'<br/>{_text(line)}' for line in row.more)}</td></tr>"
        for row in table
    )
    return (
        f'<div class="kunita-card" style="{CARD}"><div style="margin-bottom:6px">'
        f'<strong style="font-size:15px">{_text(title)}</strong> <span style="{QUIET}">{_text(about)}</span> '
        f'{_badge(badge)}</div><table style="border-collapse:collapse;border:0;margin:0;width:auto;table-layout:auto;'
        f'color:inherit"><tbody>{rows}</tbody></table>{"".join(_warnings(warnings))}{below}</div>'
    )


def _registration_rows(facts: Facts, uncertainty: Row) -> Iterator[Row]:
    distance = f"{facts.before_mm:.3g} → {facts.after_mm:.3g} mm"
    yield Row("Distance", distance, "the landmarks' mean; small is not accurate")
    yield _left_out(facts)
    yield uncertainty
    yield Row("Kernel", facts.kernel)
    heavy = "heavy-tailed: see weights" if facts.robust else ""
    yield Row("Noise", f"{facts.noise_mm:.3g} mm", heavy)
    if facts.parameters:
        yield _estimated(facts.parameters)
    if facts.num_teaching:
        yield Row("Prior", f"learned on {counted(facts.num_teaching, 'other case')}")
    yield Row("Model", f"{facts.model}, alignment {facts.align}")
    yield _solver(facts.solver)
    if facts.truncation is not None:
        yield _low_rank(facts.truncation)
    unused = facts.num_landmarks - facts.num_used
    if unused:
        count = counted(facts.num_landmarks, "landmark")
        yield Row("Not used", f"{unused} of {count}", "infinite noise")
    yield _suspects(facts.suspects)


def _estimated(parameters: Sequence[EstimatedParameter]) -> Row:
    known = "; ".join(
        f"{one.name} {one.low:.3g} to {one.high:.3g}" for one in parameters if np.isfinite(one.high)
    )
    remark = f"95 % intervals: {known}" if known else "which the landmarks do not determine"
    return Row("Chosen", "by the evidence", remark)


def _solver(solver: SolverFacts, left: str = "residual") -> Row:
    state = "converged" if solver.converged else "NOT CONVERGED"
    effort = f"{solver.num_iterations} iterations, {left} {solver.residual_mm:.1e} mm"
    return Row("Solver", f"{state}, {effort}, {solver.seconds:.2f} s")


def _low_rank(truncation: Truncation) -> Row:
    percent = 100 * truncation.matrix_error
    error = truncation.mean_error_mm
    cost = f"which costs at most {error:.1g} mm, and {percent:.1g} % of covariances"
    count = counted(truncation.num_controls, "control point")
    return Row("Low rank", f"{count} for all landmarks", cost)


def _left_out(facts: Facts) -> Row:
    found = facts.left_out
    if found is None:
        return Row("Left-out error", "not available", "too few landmarks for this alignment")
    doubt = ""
    if not facts.solver.converged:
        doubt = "; not to be relied on, as the search did not converge"
    inside = f"{found.num_inside} of {found.num_landmarks} inside their 95 % region"
    text = f"{found.error_mm:.3g} mm on average, {inside}"
    return Row("Left-out error", text, f"each predicted from the others{doubt}")


def _suspects(lines: tuple[str, ...] | None) -> Row:
    if lines is None:
        return Row("Suspects", "not looked for", "the record of an earlier version")
    first, *more = _few(lines) or ["none"]
    return Row("Suspects", first, more=tuple(more))


def uncertainty_row(arrived: GaussianPoints, where: str = "landmarks") -> Row:
    """How certain it is where landmarks arrive."""
    covariances = np.asarray(arrived.covariance)
    known = np.isfinite(covariances).all(axis=(1, 2))
    if not known.any():
        return Row("Uncertainty", "not known")
    points = GaussianPoints(np.asarray(arrived.mean)[known], covariances[known])
    radius = _middle_and_largest(points.radius())
    deviation = _middle_and_largest(points.std)
    return Row("Uncertainty", f"95 % radius {radius}; sd {deviation}", f"{where}' median")


def _middle_and_largest(values: np.ndarray) -> str:
    return f"{np.median(values):.3g} mm, largest {values.max():.3g}"


def counted(count: int, noun: str) -> str:
    """So many of them."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def alignment_words(generators: np.ndarray) -> str:
    """The kind of alignment that (b, d, d + 1) generators [M | t] make: as far as the landmarks
    determine it.
    """
    if not len(generators):
        return "none"
    linear = np.asarray(generators)[:, :, :-1]
    stretch = (linear + linear.swapaxes(1, 2)) / 2
    shear = stretch - np.einsum("baa,cd->bcd", stretch, np.eye(linear.shape[1])) / linear.shape[1]
    kinds = (("affine", shear), ("similarity", stretch), ("rigid", linear))
    return next((kind for kind, part in kinds if np.abs(part).max() > 1e-9), "translation")


def _badge(badge: Badge | None) -> str:
    if badge is None:
        return ""
    tint, mark, weight = ("46,160,67", "✓", 400) if badge.good else ("214,51,108", "✗", 700)
    return (
        f'<span style="display:inline-block;padding:0 8px;border-radius:9px;border:1px solid rgba({tint},.8);'
        f'background:rgba({tint},.16);font-weight:{weight}">{mark} {_text(badge.word)}</span>'
    )


def _remark(text: str) -> str:
    return f' <span style="font-size:12px;{QUIET}">({_text(text)})</span>' if text else ""


def _warnings(warnings: Sequence[str]) -> Iterator[str]:
    for line in _few(warnings):
        yield (
            '<div style="margin-top:6px;padding:3px 9px;border-left:3px solid #d2700c;background:rgba(210,112,12,.13)">'
            f"<strong>⚠ Warning:</strong> {_text(line)}</div>"
        )


def _few(lines: Sequence[str]) -> list[str]:
    """The first of them, and how many more there are."""
    left = len(lines) - MOST_LINES
    return [*lines[:MOST_LINES], *([f"… and {left} more"] if left > 0 else [])]


def _text(text: str, letters: int = MOST_LETTERS) -> str:
    """Anybody's words as HTML: no markup, and not too long."""
    short = text if len(text) <= letters else f"{text[: letters - 1]}…"
    return html.escape(NO_TEXT.sub("\N{REPLACEMENT CHARACTER}", short))


# ------------------------------------------------------------------------------------------ drawing


@dataclasses.dataclass(frozen=True)
class View:
    """A plane as people look at it: the world's axes along it, the sign of the second on the page,
    and its sides.

    Args:
        title: its name.
        right, up: the world's axes along it.
        down: the sign of the second on the page, where y is down.
        sides: what is to the left, right, below and above.
    """

    title: str
    right: int
    up: int
    down: int
    sides: str = ""

    def flat(self, points: np.ndarray) -> np.ndarray:
        """(…, 2) places on the page, mm."""
        return np.stack([points[..., self.right], self.down * points[..., self.up]], axis=-1)

    def ellipses(self, covariances: np.ndarray) -> np.ndarray:
        """(m, 3) half-axes, mm, and angle, degrees, of the regions that hold 95 % of the projected
        points.
        """
        axes, turn = [self.right, self.up], np.array([1.0, self.down])
        values, vectors = np.linalg.eigh(covariances[:, axes][:, :, axes] * np.outer(turn, turn))
        half = np.sqrt(CUT_95 * np.maximum(values[:, ::-1], 0))
        return np.c_[half, np.degrees(np.arctan2(vectors[:, 1, 1], vectors[:, 0, 1]))]


VIEWS = {
    2: (View("", 0, 1, 1),),
    3: (
        View("axial", 0, 1, -1, "LRPA"),
        View("coronal", 0, 2, -1, "LRIS"),
        View("sagittal", 1, 2, -1, "PAIS"),
    ),
}
"""By dimension: RAS in space; in the plane y is down already."""


def starts(moving: np.ndarray, aligned: np.ndarray, fixed: np.ndarray) -> tuple[np.ndarray, str]:
    """Where lines to the predicted landmarks begin, and what that is: the moving landmarks unless
    they are far away.
    """
    reach = float(np.ptp(fixed, axis=0).max())
    both = float(np.ptp(np.concatenate([moving, fixed]), axis=0).max())
    return (moving, "moving") if reach == 0 or both <= FAR * reach else (aligned, "aligned moving")


def drawing(scene: Scene) -> str:
    """Every view of the landmarks side by side, at one scale, and what the shapes mean.

    Empty where there are no landmarks.
    """
    shown = _drawn(scene)
    if not len(shown.start):
        return ""
    pictures = "".join(_figures(shown))
    count = max(len(scene.start), len(scene.fixed))
    drawn = max(len(shown.start), len(shown.fixed))
    some = "" if drawn == count else f" · {drawn:,} of {count:,} landmarks drawn"
    return (
        f'<div style="display:flex;flex-wrap:wrap;gap:8px;align-items:flex-end;margin-top:10px">{pictures}</div>'
        f'<div style="font-size:12px;margin-top:2px">{_legend(shown)}<span style="{QUIET}">{some}</span></div>'
    )


def _figures(scene: Scene) -> Iterator[str]:
    """The views, at one scale and with rulers of one length."""
    box = _box(scene)
    extent = box[1] - box[0]
    views = VIEWS[scene.fixed.shape[1]]
    widths = [extent[view.right] for view in views]
    heights = [extent[view.up] for view in views]
    room = WIDTH - 2 * EDGE * len(views)
    scale = float(min(room / sum(widths), HEIGHT / max(heights)))
    ruler = _round_below(min(widths) / 3)
    for view in views:
        yield _figure(scene, view, box, scale, ruler)


def _drawn(scene: Scene) -> Scene:
    """Those of the landmarks that are drawn: not too many, and all of their numbers finite."""
    covariance = np.asarray(scene.arrived.covariance)
    known = np.isfinite(scene.start + scene.arrived.mean).all(axis=1) & np.isfinite(covariance).all(
        axis=(1, 2)
    )
    marked = np.isfinite(scene.fixed).all(axis=1)
    known, marked = (known & marked, known & marked) if scene.paired else (known, marked)
    rows, marks = _some(known, scene.doubtful), _some(marked, scene.doubtful)
    names = {
        int(np.flatnonzero(marks == i)[0]): scene.doubtful[int(i)]
        for i in marks
        if int(i) in scene.doubtful
    }
    arrived = GaussianPoints(np.asarray(scene.arrived.mean)[rows], covariance[rows])
    return Scene(scene.start[rows], arrived, scene.fixed[marks], names, scene.origin, scene.paired)


def _some(known: np.ndarray, doubtful: Mapping[int, str]) -> np.ndarray:
    """Rows to draw: those in doubt first, then others evenly spaced, in the order of the list."""
    rows = np.flatnonzero(known)
    if len(rows) <= MOST_DRAWN:
        return rows
    first = [row for row in rows if int(row) in doubtful][:MOST_DRAWN]
    others = np.setdiff1d(rows, first)
    spaced = np.linspace(0, len(others) - 1, MOST_DRAWN - len(first)).astype(int)
    return np.sort(np.concatenate([np.array(first, dtype=int), others[spaced]]))


def _box(scene: Scene) -> np.ndarray:
    """(2, d) low and high corner of all that is drawn, ellipses too, and a margin, mm."""
    variances = np.asarray(scene.arrived.covariance).diagonal(axis1=1, axis2=2)
    half = np.sqrt(CUT_95 * np.maximum(variances, 0))
    points = np.concatenate(
        [scene.start, scene.fixed, scene.arrived.mean - half, scene.arrived.mean + half]
    )
    low, high = points.min(axis=0), points.max(axis=0)
    longest = float((high - low).max()) or 10.0
    half_sides = np.maximum((high - low) / 2, THIN / 2 * longest) + MARGIN * longest
    return np.stack([(low + high) / 2 - half_sides, (low + high) / 2 + half_sides])


def _figure(scene: Scene, view: View, box: np.ndarray, scale: float, ruler: float) -> str:
    """One view, with a ruler of this length, and its name below it."""
    low, high = np.sort(view.flat(box), axis=0)
    width, height = (high - low) * scale + 2 * EDGE
    place = lambda points: (view.flat(np.asarray(points)) - low) * scale + EDGE
    ellipses = view.ellipses(np.asarray(scene.arrived.covariance)) * [scale, scale, 1]
    arrived = place(scene.arrived.mean)
    parts = (
        _frame(width, height),
        _lines(place(scene.start), arrived),
        _regions(arrived, ellipses),
        _joins(scene, place),
        _marks(place(scene.fixed), scene.doubtful, width),
        _sides(view, width, height),
        _ruler(ruler, scale, height),
    )
    return (
        f'<div style="max-width:100%"><svg role="img" aria-label="{_alternative(scene, view)}" viewBox="0 0 {_n(width, height)}" '
        f'width="{width:.0f}" height="{height:.0f}" style="display:block;max-width:100%;height:auto;color:inherit" '
        f'fill="none" stroke-linecap="round" font-size="11">{"".join(parts)}</svg>{_title(view)}</div>'
    )


def _alternative(scene: Scene, view: View) -> str:
    """The drawing in words, for those who do not see it."""
    count = counted(len(scene.start), "landmark")
    way = f"{count} from the {scene.origin} place to the predicted one with its 95 % ellipse"
    return f"{view.title} view: {way}; fixed marks as circles".strip()


def _title(view: View) -> str:
    if not view.title:
        return ""
    return f'<div style="text-align:center;font-size:12px;{QUIET}">{view.title}</div>'


def _frame(width: float, height: float) -> str:
    return (
        f'<rect x=".5" y=".5" width="{width - 1:.1f}" height="{height - 1:.1f}" rx="5" stroke="currentColor" '
        'stroke-opacity=".25"/>'
    )


def _lines(start: np.ndarray, end: np.ndarray) -> str:
    """From a dot to where the landmark is predicted."""
    dots = "".join(f"M{_n(*a)}h0" for a in start)
    ways = "".join(f"M{_n(*a)}L{_n(*b)}" for a, b in zip(start, end, strict=True))
    return (
        f'<g stroke="currentColor" stroke-opacity=".55"><path d="{dots}" stroke-width="3.6"/>'
        f'<path d="{ways}" stroke-width="1.1"/></g>'
    )


def _regions(centres: np.ndarray, ellipses: np.ndarray) -> str:
    """Crosses with their ellipses."""
    crosses = "".join(f"M{_n(x - 2.5, y)}h5M{_n(x, y - 2.5)}v5" for x, y in centres)
    around = "".join(
        f'<ellipse rx="{a:.1f}" ry="{b:.1f}" transform="translate({_n(*centre)})rotate({angle:.0f})"/>'
        for centre, (a, b, angle) in zip(centres, ellipses, strict=True)
    )
    return (
        f'<g stroke="{BLUE}" stroke-width="1.3"><g fill="{BLUE}" fill-opacity=".14">{around}</g>'
        f'<path d="{crosses}"/></g>'
    )


def _joins(scene: Scene, place: Callable[[np.ndarray], np.ndarray]) -> str:
    """From where a landmark is predicted to where it was marked."""
    if not scene.paired:
        return ""
    ends = zip(place(scene.arrived.mean), place(scene.fixed), strict=True)
    return f'<path d="{"".join(f"M{_n(*a)}L{_n(*b)}" for a, b in ends)}" stroke="{ORANGE}"/>'


def _marks(places: np.ndarray, doubtful: Mapping[int, str], width: float) -> str:
    """Circles where the landmarks were marked; squares around those in doubt, with their names."""
    circles = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.6"/>' for x, y in places)
    squares = "".join(f"M{_n(*(places[i] - 6.5))}h13v13h-13z" for i in doubtful)
    words = "".join(
        _word(places[i], doubtful[i], width) for i in doubtful if len(doubtful) <= MOST_NAMED
    )
    doubt = f'<path d="{squares}" stroke="{RED}" stroke-width="1.8"/>{words}' if doubtful else ""
    return f'<g stroke="{ORANGE}" stroke-width="1.6">{circles}</g>{doubt}'


def _word(place: np.ndarray, name: str, width: float) -> str:
    """A name beside its mark, on the side where there is room."""
    (x, y), left = place, bool(place[0] > width / 2)
    anchor = ' text-anchor="end"' if left else ""
    beside = f'x="{x + (-10 if left else 10):.1f}" y="{y + 4:.1f}"'
    return f'<text {beside} fill="currentColor"{anchor}>{_text(name, NAME_LETTERS)}</text>'


def _sides(view: View, width: float, height: float) -> str:
    places = (
        (9, height / 2 + 4),
        (width - 9, height / 2 + 4),
        (width / 2, height - 5),
        (width / 2, 13),
    )
    letters = "".join(
        f'<text x="{x:.1f}" y="{y:.1f}">{letter}</text>'
        for letter, (x, y) in zip(view.sides, places, strict=False)
    )
    return (
        f'<g fill="currentColor" fill-opacity=".75" text-anchor="middle">{letters}</g>'
        if letters
        else ""
    )


def _ruler(length: float, scale: float, height: float) -> str:
    y, end = height - 8, 8 + length * scale
    return (
        f'<path d="M8 {y - 3:.1f}v3H{end:.1f}v-3" stroke="currentColor" stroke-opacity=".75"/>'
        f'<text x="8" y="{y - 5:.1f}" fill="currentColor" fill-opacity=".75">{length:g} mm</text>'
    )


def _round_below(length: float) -> float:
    """The largest of …, 1, 2, 5, 10, 20, 50, … that is not larger."""
    power = 10.0 ** math.floor(math.log10(length))
    return max(step for step in (1, 2, 5) if step == 1 or step * power <= length) * power


def _legend(scene: Scene) -> str:
    """What the shapes mean, in words."""
    joined = ", joined to its prediction" if scene.paired else ""
    ink = lambda colour, mark: (
        f'<span aria-hidden="true" style="color:{colour};font-weight:700">{mark}</span>'
    )
    doubt = f" · {ink(RED, '□')} in doubt" if scene.doubtful else ""
    return (
        f"{ink('inherit', '•—')} {scene.origin} to predicted · {ink(BLUE, '+')} predicted, with its 95 % ellipse · "
        f"{ink(ORANGE, '○')} fixed mark{joined}{doubt}"
    )


def _n(*values: float) -> str:
    return " ".join(f"{value:.1f}" for value in values)
