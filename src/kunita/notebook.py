"""Cards for notebooks: what a registration or a posterior says of itself, as a piece of HTML with a
small drawing.

Plain values in, text out. The piece is shown inside somebody else's page, on paper of any colour:
its styles are its own elements' and no others', what is written and drawn has the page's ink, and
nothing is loaded, run or given an id. Where notebooks are not trusted drawings are taken out and
only their words stay: so these have hardly any.
"""

import dataclasses
import html
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from kunita.gaussians import GaussianPoints

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
class Fact:
    """A row of the table: its title, what is to be known, a remark in smaller ink, and more lines."""

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


@dataclasses.dataclass(frozen=True)
class Story:
    """What is to be said of a registration; lengths in mm.

    Args:
        count, used: landmarks, and those that were used.
        dimension: of space.
        pairing: how the two sets were paired.
        before, after: mean distances of the landmarks that were used.
        left_out: mean error of each predicted from the others, how many are inside their 95 %
            region, and of how many; None where there are too few.
        kernel, noise, align, model: what was fitted.
        converged: whether the search was.
        effort: what it took, in words.
        chosen: what the evidence chose: names, and low and high end of their 95 % intervals.
        learned_on: cases that taught the prior.
        robust: whether the noise has heavy tails.
        low_rank: control points that stand for all landmarks, what that costs at most, and that of
            covariances, as a fraction; None where nothing was left out.
        suspects: what is wrong with which landmarks; None where nobody looked.
        warnings: all of them.
    """

    count: int
    used: int
    dimension: int
    pairing: str
    before: float
    after: float
    left_out: tuple[float, int, int] | None
    kernel: str
    noise: float
    align: str
    model: str
    converged: bool
    effort: str
    chosen: tuple[tuple[str, float, float], ...]
    learned_on: int
    robust: bool
    low_rank: tuple[int, float, float] | None
    suspects: tuple[str, ...] | None
    warnings: tuple[str, ...]


# -------------------------------------------------------------------------------------------- cards


def registration_card(story: Story, scene: Scene, sure: Fact) -> str:
    """The card of a registration; `sure` is how surely its landmarks arrive."""
    badge = Badge("converged", True) if story.converged else Badge("NOT CONVERGED", False)
    about = f"{counted(story.count, 'landmark')} in {story.dimension}-D, paired by {story.pairing}"
    told = {f"suspect: {line}" for line in story.suspects or ()}
    warnings = [remark for remark in story.warnings if remark not in told]
    return card(
        "Registration", about, badge, [*_registration_facts(story, sure)], warnings, drawing(scene)
    )


def posterior_card(
    count: int, facts: Sequence[Fact], warnings: Sequence[str], scene: Scene, calls: Sequence[str]
) -> str:
    """The card of a posterior, with what can be asked of it."""
    about = f"over deformations, given {counted(count, 'landmark')} in {scene.fixed.shape[1]}-D"
    code = ", ".join(
        f'<code style="background:transparent;color:inherit">{_text(call)}</code>' for call in calls
    )
    asked = f'<div style="margin-top:8px"><span style="{QUIET}">Ask it:</span> {code}</div>'
    return card("Posterior", about, None, facts, warnings, drawing(scene) + asked)


def card(
    title: str,
    about: str,
    badge: Badge | None,
    facts: Sequence[Fact],
    warnings: Sequence[str],
    below: str = "",
) -> str:
    """A title, a table of facts, warnings, and what is below them, which is HTML already."""
    rows = "".join(
        f'<tr style="background:transparent"><th scope="row" style="{CELL}padding:1px 14px 1px 0;font-weight:600;'
        f'white-space:nowrap">{_text(fact.title)}</th><td style="{CELL}padding:1px 0">{_text(fact.text)}'
        f"{_remark(fact.remark)}{''.join(f'<br/>{_text(line)}' for line in fact.more)}</td></tr>"
        for fact in facts
    )
    return (
        f'<div class="kunita-card" style="{CARD}"><div style="margin-bottom:6px">'
        f'<strong style="font-size:15px">{_text(title)}</strong> <span style="{QUIET}">{_text(about)}</span> '
        f'{_badge(badge)}</div><table style="border-collapse:collapse;border:0;margin:0;width:auto;table-layout:auto;'
        f'color:inherit"><tbody>{rows}</tbody></table>{"".join(_warnings(warnings))}{below}</div>'
    )


def _registration_facts(story: Story, sure: Fact) -> Iterator[Fact]:
    yield Fact(
        "Distance",
        f"{story.before:.3g} → {story.after:.3g} mm",
        "the landmarks' mean; small is not accurate",
    )
    yield _left_out(story)
    yield sure
    yield Fact("Kernel", story.kernel)
    yield Fact(
        "Noise", f"{story.noise:.3g} mm", "heavy-tailed: see weights" if story.robust else ""
    )
    if story.chosen:
        known = "; ".join(
            f"{name} {low:.3g} to {high:.3g}"
            for name, low, high in story.chosen
            if np.isfinite(high)
        )
        yield Fact(
            "Chosen",
            "by the evidence",
            f"95 % intervals: {known}" if known else "which the landmarks do not tell",
        )
    if story.learned_on:
        yield Fact("Prior", f"learned on {counted(story.learned_on, 'other case')}")
    yield Fact("Model", f"{story.model}, alignment {story.align}")
    yield Fact("Solver", f"{'converged' if story.converged else 'NOT CONVERGED'}, {story.effort}")
    if story.low_rank is not None:
        controls, error, share = story.low_rank
        cost = f"which costs at most {error:.1g} mm, and {100 * share:.1g} % of covariances"
        yield Fact("Low rank", f"{counted(controls, 'control point')} for all landmarks", cost)
    if story.used < story.count:
        yield Fact(
            "Not used",
            f"{story.count - story.used} of {counted(story.count, 'landmark')}",
            "infinite noise",
        )
    yield _suspects(story.suspects)


def _left_out(story: Story) -> Fact:
    if story.left_out is None:
        return Fact("Left-out error", "not available", "too few landmarks for this alignment")
    error, inside, n = story.left_out
    doubt = "" if story.converged else "; not to be relied on, as the search did not converge"
    text = f"{error:.3g} mm on average, {inside} of {n} inside their 95 % region"
    return Fact("Left-out error", text, f"each predicted from the others{doubt}")


def _suspects(lines: tuple[str, ...] | None) -> Fact:
    if lines is None:
        return Fact("Suspects", "not looked for", "the record of an earlier version")
    first, *more = _few(lines) or ["none"]
    return Fact("Suspects", first, more=tuple(more))


def sureness(arrived: GaussianPoints, where: str = "landmarks") -> Fact:
    """How surely landmarks arrive."""
    known = np.isfinite(np.asarray(arrived.covariance)).all(axis=(1, 2))
    if not known.any():
        return Fact("Uncertainty", "not known")
    points = GaussianPoints(np.asarray(arrived.mean)[known], np.asarray(arrived.covariance)[known])
    radius, sd = (
        f"{np.median(v):.3g} mm, largest {v.max():.3g}" for v in (points.radius(), points.std)
    )
    return Fact("Uncertainty", f"95 % radius {radius}; sd {sd}", f"{where}' median")


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
    """Every view of the landmarks side by side, at one scale, and what the shapes mean; empty where
    there are none.
    """
    count = max(len(scene.start), len(scene.fixed))
    shown = _drawn(scene)
    if not len(shown.start):
        return ""
    box = _box(shown)
    views, extent = VIEWS[shown.fixed.shape[1]], box[1] - box[0]
    room = WIDTH - 2 * EDGE * len(views)
    scale = min(
        room / sum(extent[view.right] for view in views),
        HEIGHT / max(extent[view.up] for view in views),
    )
    ruler = _round_below(min(extent[view.right] for view in views) / 3)
    pictures = "".join(_figure(shown, view, box, float(scale), ruler) for view in views)
    drawn = max(len(shown.start), len(shown.fixed))
    some = "" if drawn == count else f" · {drawn:,} of {count:,} landmarks drawn"
    return (
        f'<div style="display:flex;flex-wrap:wrap;gap:8px;align-items:flex-end;margin-top:10px">{pictures}</div>'
        f'<div style="font-size:12px;margin-top:2px">{_legend(shown)}<span style="{QUIET}">{some}</span></div>'
    )


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
    alt = f"{view.title} view: {counted(len(scene.start), 'landmark')} from the {scene.origin} place to the predicted "
    alt = f"{alt.strip()} one with its 95 % ellipse; fixed marks as circles"
    ellipses = view.ellipses(np.asarray(scene.arrived.covariance)) * [scale, scale, 1]
    name = (
        f'<div style="text-align:center;font-size:12px;{QUIET}">{view.title}</div>'
        if view.title
        else ""
    )
    return (
        f'<div style="max-width:100%"><svg role="img" aria-label="{alt}" viewBox="0 0 {_n(width, height)}" '
        f'width="{width:.0f}" height="{height:.0f}" style="display:block;max-width:100%;height:auto;color:inherit" '
        f'fill="none" stroke-linecap="round" font-size="11">{_frame(width, height)}'
        f"{_lines(place(scene.start), place(scene.arrived.mean))}{_regions(place(scene.arrived.mean), ellipses)}"
        f"{_joins(scene, place)}{_marks(place(scene.fixed), scene.doubtful, width)}{_sides(view, width, height)}"
        f"{_ruler(ruler, scale, height)}</svg>{name}</div>"
    )


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
