"""Where one more landmark would help most: in closed form from the posterior, before anything is
marked.

A landmark marked at z with noise D lowers the covariance at x from C(x, x) to C(x, x) − C(x,
z)(C(z, z) + D)⁻¹C(z, x), whatever will be observed: so its worth is known beforehand. (Where the
new mark is not where it was predicted the flow changes a little, and the covariance with it; what
was expected is then right to first order.)
"""

import dataclasses
import functools

import numpy as np

from kunita.data.image import Image
from kunita.errors import ArgumentError, ImageError, LandmarkError
from kunita.gaussians import ball_radius
from kunita.outputs.dense import Progress
from kunita.outputs.hull import Hull, hull_of
from kunita.outputs.labels import label_values
from kunita.outputs.targets import main_scale, remoteness
from kunita.outputs.warp import nearest
from kunita.posterior import Posterior
from kunita.record import Registration

LEVEL = 0.95
COUNT = 3
MOST_POINTS = 250
"""Points that stand for a region: what they say of its mean is good to a few per cent."""

ROWS, COLUMNS = 256, 64
"""All blocks of covariance have one shape, so that one program gives them: the region with a few
marks, and places."""

STARTS, HALVINGS = 4, 5
"""So many of the best places are refined, by so many halvings of the lattice's spacing."""

APART_SCALES, APART_SIZES = 0.25, 0.2
"""Suggested places are farther from each other than so many length scales, or so many sizes of the
hull if that is less: two marks of one spot would average their noise, but what makes a spot hard to
mark, they share."""


@dataclasses.dataclass(frozen=True, eq=False)
class Region:
    """Where certainty is wanted, and where a landmark may be marked.

    Args:
        points: (m, d) of the moving space, which stand for the region.
        candidates: (k, d) places to begin with.
        spacing: mm between neighbouring candidates.
        apart: mm between places that are suggested, at least.
        hull: that of the landmarks, in which one may be marked.
        label: where one may be marked as well: not zero inside.
    """

    points: np.ndarray
    candidates: np.ndarray
    spacing: float
    apart: float
    hull: Hull
    label: Image | None = None

    @property
    def directions(self) -> np.ndarray:
        """(d, r) along which a place can be moved: those of the hull, which may be flat, or all."""
        return self.hull.axes if self.label is None else np.eye(self.points.shape[1])

    def allows(self, places: np.ndarray, marked: np.ndarray) -> np.ndarray:
        """Whether places are in the hull or inside the label, and apart from those that are to be
        marked already.
        """
        inside = self.hull.outside(places) == 0
        if self.label is not None:
            inside |= nearest(self.label, self.label.grid.index(places)) != 0
        distances = np.linalg.norm(places[:, None] - marked, axis=2)
        return inside & np.all(distances > self.apart, axis=1)


@dataclasses.dataclass(frozen=True, eq=False)
class Suggestion:
    """A place for one more landmark, and what it would be worth.

    Args:
        moving: (d,) in moving space.
        fixed: (d,) where that is in fixed space, as far as is known now.
        radius95_mm: how far from there it has to be looked for, in 95 of 100 cases.
        alone_mm: mean 95 % radius of the region if it alone is marked.
        together_mm: the same if those suggested before it are marked, too.
        nearest: the landmark nearest to it.
        nearest_mm: how far that is.
    """

    moving: np.ndarray
    fixed: np.ndarray
    radius95_mm: float
    alone_mm: float
    together_mm: float
    nearest: str
    nearest_mm: float


@dataclasses.dataclass(frozen=True, eq=False)
class Suggestions:
    """The best places, the best first, each given those before it.

    Args:
        points: (m, d) of the moving space, which stand for the region.
        before: (m,) 95 % radius there now, mm.
        after: (m,) the same once all suggested landmarks are marked.
        noise_mm: standard deviation of the marks that this is expected of.
        places: the suggestions.
        remarks: what to keep in mind.
    """

    points: np.ndarray
    before: np.ndarray
    after: np.ndarray
    noise_mm: float
    places: tuple[Suggestion, ...]
    remarks: tuple[str, ...] = ()

    @property
    def before_mm(self) -> float:
        """Mean 95 % radius of the region now."""
        return float(self.before.mean())


def suggest_landmarks(
    reg: Registration,
    *,
    inside: Image | None = None,
    label: int | None = None,
    noise: float | None = None,
    progress: Progress = lambda _fraction: None,
) -> Suggestions:
    """The three places where a landmark more lowers the mean 95 % radius of a region most, one
    after the other.

    Args:
        reg: a registration.
        inside: labels in the *moving* space: certainty is then wanted inside of them. Default: in
            the convex hull of the moving landmarks. A landmark may be marked in the hull or inside
            the labels in either case.
        label: one of their values; default: all but 0.
        noise: standard deviation of a new landmark, mm; default: that of a typical one of the
            registration.
        progress: told the fraction that is done.
    """
    if reg.images is not None:
        raise ArgumentError(
            "reg: places for landmarks are suggested where landmarks alone drive it"
        )
    noise = _check(reg, noise)
    if inside is not None and not isinstance(inside, Image):
        raise ArgumentError(
            f"inside: expected an image of labels (see read_image), found {inside!r:.80}"
        )
    region = region_of(reg, inside, label)
    variance = noise**2 * np.eye(reg.fixed.dimension)
    now = known = Knowledge(
        reg.posterior, region.points, np.zeros((0, reg.fixed.dimension)), variance
    )
    found = []
    for k in range(COUNT):
        place = _best(known, region)
        further = known.with_mark(place)
        found.append(_suggestion(reg, place, now.with_mark(place).mean_radius, further.mean_radius))
        known = further
        progress((k + 1) / COUNT)
    remarks = tuple(_remarks(reg, region))
    return Suggestions(region.points, now.radius, known.radius, noise, tuple(found), remarks)


# --------------------------------------------------------------------------------------- the region


def region_of(reg: Registration, inside: Image | None, label: int | None) -> Region:
    """The hull of the landmarks, or labels."""
    hull = hull_of(reg.moving.points[reg.used])
    lattice, spacing = hull.lattice(MOST_POINTS)
    apart = min(APART_SCALES * main_scale(reg.kernel), APART_SIZES * hull.size)
    if inside is None:
        if hull.rank == 0:
            raise LandmarkError(
                "suggest: the landmarks are all in one place; expected a hull, or labels to look inside"
            )
        return Region(lattice, lattice, spacing, apart, hull)
    chosen = chosen_label(inside, label)
    voxels = np.argwhere(chosen.data)
    some = np.random.default_rng(0).permutation(len(voxels))[:MOST_POINTS]
    points = chosen.grid.world(voxels[np.sort(some)])
    _check_near(reg, points)
    between = (chosen.grid.voxel_volume * len(voxels) / len(points)) ** (1 / chosen.grid.dimension)
    return Region(
        points, np.concatenate([lattice, points]), max(spacing, between), apart, hull, chosen
    )


def chosen_label(labels: Image, label: int | None) -> Image:
    """Where labels have this value, or any but 0."""
    values = label_values(labels)
    if label is not None and label not in values:
        there = ", ".join(f"{value:g}" for value in values)
        raise ImageError(f"labels: expected the value {label}, found {there}")
    return Image(
        (labels.data == label if label is not None else labels.data != 0).astype(np.uint8),
        labels.affine,
    )


def _check(reg: Registration, noise: float | None) -> float:
    if noise is not None and not 0 < noise < np.inf:
        raise ArgumentError(f"noise: expected a positive number (mm), found {noise!r}")
    return reg.noise_mm if noise is None else float(noise)


def _check_near(reg: Registration, points: np.ndarray) -> None:
    """Refuse labels farther from the landmarks than these are from each other: they are of some
    other space.
    """
    if points.shape[1] != reg.moving.dimension:
        raise ImageError(
            f"labels: expected {reg.moving.dimension}-D, as the landmarks are, found {points.shape[1]}-D"
        )
    marked = reg.moving.points[reg.used]
    distance = float(remoteness(reg, points).nearest_mm.min())
    extent = float(np.linalg.norm(np.ptp(marked, axis=0)))
    if len(marked) > 1 and distance > extent:
        raise ImageError(
            f"labels: expected labels in the moving space, near the landmarks, which extend over {extent:.0f} mm; "
            f"the nearest voxel is {distance:.0f} mm away from all of them"
        )


# ---------------------------------------------------------------------------------- the closed form


@dataclasses.dataclass(frozen=True, eq=False)
class Knowledge:
    """What is known of a region when some more places are marked, beside the landmarks.

    Args:
        posterior: of the registration.
        points: (m, d) of the region.
        marked: (j, d) the additional places.
        noise: (d, d) of each of them.
    """

    posterior: Posterior
    points: np.ndarray
    marked: np.ndarray
    noise: np.ndarray

    def with_mark(self, place: np.ndarray) -> "Knowledge":
        """One place more."""
        return dataclasses.replace(self, marked=np.vstack([self.marked, place]))

    @functools.cached_property
    def covariances(self) -> np.ndarray:
        """C(x, x) − C(x, Z)(C(Z, Z) + D)⁻¹C(Z, x), (m, d, d)."""
        now, (told, matrix) = np.asarray(self.posterior.predict(self.points).covariance), self._told
        shape = (len(matrix), *self.points.shape)
        weights = np.linalg.solve(matrix, told)
        return now - np.einsum("zma,zmb->mab", told.reshape(shape), weights.reshape(shape))

    @functools.cached_property
    def radius(self) -> np.ndarray:
        """95 % radius of each point of the region, mm."""
        return ball_radius(self.covariances, LEVEL)

    @property
    def mean_radius(self) -> float:
        return float(self.radius.mean())

    def radius_after(self, places: np.ndarray) -> np.ndarray:
        """(k,) mean 95 % radius of the region if each place, alone, is marked as well."""
        parts = (self._after(places[k : k + COLUMNS]) for k in range(0, len(places), COLUMNS))
        return np.concatenate([ball_radius(part, LEVEL).mean(axis=0) for part in parts])

    def _after(self, places: np.ndarray) -> np.ndarray:
        """(m, k, d, d) covariances of the region: `covariances` with one mark more, for many places
        at once.
        """
        (m, d), k, (told, matrix) = self.points.shape, len(places), self._told
        blocks = self._blocks(places)
        shared = blocks[m:].reshape(len(matrix), k * d)  # C(Z, z)
        weights = np.linalg.solve(matrix, shared)
        cross = blocks[:m] - (told.T @ weights).reshape(m, d, k, d)
        own, shape = np.asarray(self.posterior.predict(places).covariance), (len(matrix), k, d)
        own = own - np.einsum("zka,zkb->kab", shared.reshape(shape), weights.reshape(shape))
        gain = np.linalg.inv(own + self.noise)
        return self.covariances[:, None] - np.einsum(
            "makb,kbc,mekc->mkae", cross, gain, cross, optimize=True
        )

    @functools.cached_property
    def _told(self) -> tuple[np.ndarray, np.ndarray]:
        """C(Z, x), (j·d, m·d), and C(Z, Z) + D, (j·d, j·d)."""
        m, (j, d), blocks = len(self.points), self.marked.shape, self._blocks(self.marked)
        matrix = blocks[m:].reshape(j * d, j * d) + np.kron(np.eye(j), self.noise)
        return blocks[:m].reshape(m * d, j * d).T, matrix

    def _blocks(self, places: np.ndarray) -> np.ndarray:
        """C between the region and the marked, one after the other, and other places: (m + j, d, k,
        d).
        """
        rows = np.concatenate([self.points, self.marked])
        filled = _filled(rows, ROWS)
        parts = [
            self.posterior.covariance(filled, _filled(places[k : k + COLUMNS], COLUMNS))[
                : len(rows)
            ]
            for k in range(0, max(len(places), 1), COLUMNS)
        ]
        return np.concatenate(parts, axis=2)[:, :, : len(places)]


def _filled(points: np.ndarray, size: int) -> np.ndarray:
    """Points up to a fixed number; those that are added are not looked at."""
    return np.concatenate([points, np.zeros((size - len(points), points.shape[1]))])


# --------------------------------------------------------------------------------------- the search


def _best(known: Knowledge, region: Region) -> np.ndarray:
    """The best candidate, refined; a few are, since the second best may be the foot of a higher
    hill.
    """
    d = region.points.shape[1]
    candidates = region.candidates[region.allows(region.candidates, known.marked)]
    tops = candidates[_apart(candidates, known.radius_after(candidates), 1.5 * region.spacing)]
    axes = region.directions
    around = np.stack(np.meshgrid(*[(-1.0, 0.0, 1.0)] * axes.shape[1], indexing="ij"), axis=-1)
    around = around.reshape(-1, axes.shape[1]) @ axes.T
    for halving in range(1, HALVINGS + 1):
        places = tops[:, None] + region.spacing / 2**halving * around
        allowed = region.allows(places.reshape(-1, d), known.marked).reshape(len(tops), -1)
        radius = np.full(allowed.shape, np.inf)
        radius[allowed] = known.radius_after(places[allowed])
        tops = places[np.arange(len(tops)), radius.argmin(axis=1)]
    return tops[radius.min(axis=1).argmin()]


def _apart(places: np.ndarray, radius: np.ndarray, distance: float) -> list[int]:
    """The rows of the best places that are farther than this from each other."""
    chosen: list[int] = []
    for row in np.argsort(radius, kind="stable"):
        if all(np.linalg.norm(places[row] - places[other]) > distance for other in chosen):
            chosen.append(int(row))
        if len(chosen) == STARTS:
            break
    return chosen


def _suggestion(reg: Registration, place: np.ndarray, alone: float, together: float) -> Suggestion:
    arrived, far = reg.posterior.predict(place[None]), remoteness(reg, place[None])
    name = reg.informing_labels[far.nearest[0]]
    radius = float(arrived.radius(LEVEL)[0])
    return Suggestion(
        place, np.asarray(arrived.mean)[0], radius, alone, together, name, float(far.nearest_mm[0])
    )


def _remarks(reg: Registration, region: Region) -> list[str]:
    if region.label is None and region.hull.rank < reg.moving.dimension:
        flat = ("place", "line", "plane")[region.hull.rank]
        return [
            f"the landmarks lie in one {flat}, and only places in it were looked at; one off it may help far more"
        ]
    return []
