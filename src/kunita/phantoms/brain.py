"""A generated head: its anatomy as distances to its parts, and how MRI and ultrasound see them.

The parts are smooth shapes and bands of noise on a coarse lattice that does not depend on the
images, so that every grid, fine or coarse, shows the same head. Only what is sharp (cortex, sulci,
folia, skull) is made voxel by voxel. The origin is near the anterior commissure; RAS+ mm.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import numpy as np
from scipy import fft, ndimage

from kunita.data.image import Grid

LATTICE = Grid(
    (90, 108, 90), np.array([[2.0, 0, 0, -88], [0, 2, 0, -122], [0, 0, 2, -82], [0, 0, 0, 1]])
)
"""Where the anatomy is laid down; a head of ordinary size fills it."""

TUMOUR_CENTRE = np.array([34.0, 6.0, 40.0])
TUMOUR_RADIUS = 13.5

CORTEX = 2.5
"""Thickness of the cortex, mm."""

Number = float | int
Triple = tuple[Number, Number, Number]


@dataclasses.dataclass(frozen=True, eq=False)
class Anatomy:
    """What is where, at some points: distances in mm, positive inside, to the parts of a head.

    Args:
        skin: depth below the skin.
        dura: depth below the inner face of the skull.
        hull: depth below the smooth hull of the cerebrum, its fissure between the hemispheres
            included.
        midline: distance to the sheet between the hemispheres, where the falx is.
        fold: signed distance to the nearest sulcal sheet.
        fold_depth: how deep that sulcus goes.
        dimple: signed distance to the nearest shallow sulcal sheet.
        sylvian: distance to the Sylvian fissure and the sheet over the insula.
        ventricle: depth in the ventricles.
        grey: depth in the deep grey nuclei.
        pale: depth in thalamus and pallidum, brighter than the other nuclei on T1.
        cerebellum: depth in the cerebellum.
        folia: arc length across the folia.
        stem: depth in the brain stem.
        callosum: depth in the corpus callosum.
        tumour: depth in the tumour.
        oedema: depth in the swollen white matter around it.
        eye: depth in the eyes.
        air: depth in the airways.
        base: height above the base of the skull.
        texture: a field of noise of unit variance, for whatever should not be uniform.
    """

    skin: np.ndarray
    dura: np.ndarray
    hull: np.ndarray
    midline: np.ndarray
    fold: np.ndarray
    fold_depth: np.ndarray
    dimple: np.ndarray
    sylvian: np.ndarray
    ventricle: np.ndarray
    grey: np.ndarray
    pale: np.ndarray
    cerebellum: np.ndarray
    folia: np.ndarray
    stem: np.ndarray
    callosum: np.ndarray
    tumour: np.ndarray
    oedema: np.ndarray
    eye: np.ndarray
    air: np.ndarray
    base: np.ndarray
    texture: np.ndarray

    @functools.cached_property
    def sulcus(self) -> np.ndarray:
        """Distance to the nearest sulcus: to its sheet above the fundus, to the fundus below it."""
        deep = np.hypot(self.fold, np.maximum(self.hull - self.fold_depth, 0))
        shallow = np.hypot(self.dimple, np.maximum(self.hull - 0.5 * self.fold_depth, 0))
        return np.minimum(np.minimum(deep, shallow), self.sylvian)

    @functools.cached_property
    def cortex(self) -> np.ndarray:
        """Depth below the folded surface of the cerebrum; a sulcus is open towards the surface."""
        opening = 0.6 + 0.5 * np.exp(-np.maximum(self.hull, 0) / 6)
        return np.minimum(self.hull, self.sulcus - opening)


def anatomy(key: int) -> Anatomy:
    """The head of this key, on `LATTICE`."""
    rng = np.random.default_rng([key, 1])
    mean = _individual(np.moveaxis(nodes(LATTICE), -1, 0).astype(np.float32), rng)
    points = _pushed(mean)
    outer, midline = _cerebrum(mean), _midline(points)
    hull = _soft_min(outer, midline - 0.5, 2.0)
    cerebellum, folia = _cerebellum(points, rng)
    stem, tumour = _stem(points), _tumour(points, rng)
    inside = np.maximum(np.maximum(outer, cerebellum), stem - 2)
    dura = _smooth(_distance(_smooth(inside, 3.0) > -2.2), 1.5)
    skin, eye, air = _head(mean, dura)
    grey, pale = _nuclei(points)
    depth = np.minimum(20 + 5 * _noise(45.0, rng), -1.6 * _core(points))
    fields = Anatomy(
        skin=skin,
        dura=dura,
        hull=hull,
        midline=midline,
        fold=_fold(hull, 23.0, rng),
        fold_depth=np.clip(depth, 0, 26),
        dimple=_fold(hull, 17.0, rng),
        sylvian=_sylvian(points),
        ventricle=_ventricles(points),
        grey=grey,
        pale=pale,
        cerebellum=cerebellum,
        folia=folia,
        stem=stem,
        callosum=_callosum(points),
        tumour=tumour,
        oedema=tumour + 9 + 4 * _noise(28.0, rng),
        eye=eye,
        air=air,
        base=mean[2] + 28 - 0.2 * mean[1],
        texture=_noise(14.0, rng),
    )
    return _each(fields, lambda field: field.astype(np.float32))


def nodes(grid: Grid) -> np.ndarray:
    """World points of all voxel centres of a grid, (…, 3) mm."""
    return grid.world(np.moveaxis(np.indices(grid.shape, dtype=float), 0, -1))


def at_points(fields: Anatomy, points: np.ndarray) -> Anatomy:
    """The anatomy at any (…, 3) points, from that on `LATTICE`."""
    index = np.moveaxis(LATTICE.index(points), -1, 0).astype(np.float32)
    return _each(
        fields, lambda field: ndimage.map_coordinates(field, index, order=1, mode="nearest")
    )


def smoothly_at(fields: Anatomy, points: np.ndarray) -> Anatomy:
    """The anatomy at any (…, 3) points by the cubic B-spline of `on_grid`, whose coefficients the
    fields are.
    """
    index = np.moveaxis(LATTICE.index(points), -1, 0).astype(np.float32)
    return _each(
        fields,
        lambda field: ndimage.map_coordinates(
            field, index, order=3, prefilter=False, mode="nearest"
        ),
    )


def on_grid(fields: Anatomy, grid: Grid) -> Anatomy:
    """The anatomy on a grid whose axes are those of `LATTICE`: cubic splines, one axis after the
    other.
    """
    first, last = LATTICE.index(grid.world(np.array([np.zeros(3), np.subtract(grid.shape, 1)])))
    lines = [np.linspace(a, b, n) for a, b, n in zip(first, last, grid.shape, strict=True)]
    return _each(fields, lambda field: functools.reduce(_along, enumerate(lines), field))


def _each(fields: Anatomy, change: Callable[[np.ndarray], np.ndarray]) -> Anatomy:
    return Anatomy(*(change(getattr(fields, field.name)) for field in dataclasses.fields(fields)))


def _along(field: np.ndarray, line: tuple[int, np.ndarray]) -> np.ndarray:
    """A field at these fractional indices of one axis, by the cubic B-spline whose coefficients it
    is.
    """
    axis, index = line
    shape = [-1 if i == axis else 1 for i in range(field.ndim)]
    start = np.floor(index).astype(int) - 1
    total: np.ndarray = np.zeros((1,) * field.ndim, np.float32)
    for k in range(4):
        t = np.abs(index - start - k)
        weight = np.where(t < 1, 2 / 3 - t**2 + t**3 / 2, (2 - t) ** 3 / 6).astype(np.float32)
        total = total + weight.reshape(shape) * np.take(field, start + k, axis=axis, mode="clip")
    return total


# --- shapes: of (3, …) points, the depth inside them, mm ------------------------------------------------------------


def _individual(points: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Where the points of this head are in the mean head: people differ."""
    return points + 1.4 * np.stack([_noise(70.0, rng) for _ in range(3)])


def _pushed(points: np.ndarray) -> np.ndarray:
    """Where they would be without the tumour, which pushes away what is around it."""
    away = points - TUMOUR_CENTRE.reshape(3, 1, 1, 1).astype(np.float32)
    return points - 0.32 * np.exp(-(_length(away) ** 2) / 24.0**2) * away


def _length(vectors: np.ndarray) -> np.ndarray:
    x, y, z = vectors
    return np.sqrt(x**2 + y**2 + z**2)


def _ellipsoid(points: np.ndarray, centre: Triple, axes: Triple, power: float = 2.0) -> np.ndarray:
    """In a (super)ellipsoid mirrored at the midline: exact on its surface, right to first order
    around it.
    """
    mirrored = (np.abs(points[0]), points[1], points[2])
    u = [np.abs(x - c) / a for x, c, a in zip(mirrored, centre, axes, strict=True)]
    rest = [v ** (power - 1) for v in u]
    r = (rest[0] * u[0] + rest[1] * u[1] + rest[2] * u[2]) ** (1 / power) + 1e-6
    slope = (
        _length(np.stack([v / a for v, a in zip(rest, axes, strict=True)])) / r ** (power - 1)
        + 1e-6
    )
    return np.clip((1 - r) / slope, -200, min(axes))


def _tube(points: np.ndarray, path: Sequence[Triple], radii: Sequence[float]) -> np.ndarray:
    """In a tube of varying radius along a polyline, mirrored at the midline."""
    depth = np.full(points.shape[1:], -np.inf, np.float32)
    for a, b, ra, rb in zip(path[:-1], path[1:], radii[:-1], radii[1:], strict=True):
        away = [np.abs(points[0]) - a[0], points[1] - a[1], points[2] - a[2]]
        along = [q - p for p, q in zip(a, b, strict=True)]
        t = np.clip(
            sum(d * v for d, v in zip(away, along, strict=True)) / sum(v * v for v in along), 0, 1
        )
        distance = _length(np.stack([d - t * v for d, v in zip(away, along, strict=True)]))
        depth = np.maximum(depth, ra + t * (rb - ra) - distance)
    return depth


def _soft_min(a: np.ndarray, b: np.ndarray, width: Number) -> np.ndarray:
    """The smaller of two, rounded off where they are within a width of each other."""
    h = np.maximum(width - np.abs(a - b), 0) / width
    return np.minimum(a, b) - h**2 * width / 4


def _soft_max(a: np.ndarray, b: np.ndarray, width: Number) -> np.ndarray:
    return -_soft_min(-a, -b, width)


def _smooth(field: np.ndarray, std_mm: float) -> np.ndarray:
    return ndimage.gaussian_filter(field, std_mm / LATTICE.spacing, mode="nearest")


def _distance(mask: np.ndarray) -> np.ndarray:
    """Signed distance to the border of a mask on the lattice, mm, positive inside."""
    inside = ndimage.distance_transform_edt(mask, sampling=LATTICE.spacing)
    return (inside - ndimage.distance_transform_edt(~mask, sampling=LATTICE.spacing)).astype(
        np.float32
    )


def _noise(wavelength: float, rng: np.random.Generator) -> np.ndarray:
    """Noise of unit variance on the lattice with waves of about this length, mm."""
    white = fft.rfftn(rng.standard_normal(LATTICE.shape, dtype=np.float32))
    waves = [
        np.fft.fftfreq(n, step) for n, step in zip(LATTICE.shape, LATTICE.spacing, strict=True)
    ]
    x, y, z = np.meshgrid(
        *waves[:2], np.abs(waves[2][: white.shape[2]]), indexing="ij", sparse=True
    )
    band = np.exp(-((np.sqrt(x**2 + y**2 + z**2) * wavelength - 1) ** 2) / (2 * 0.22**2))
    field = fft.irfftn(white * band.astype(np.float32), LATTICE.shape)
    return field / field.std()


def _cerebrum(points: np.ndarray) -> np.ndarray:
    _, y, z = points
    vault = _ellipsoid(points, (0, -18, 14), (70, 88, 63), 2.25)
    base = z + 20 - 6 * np.exp(-(((y + 62) / 30) ** 2)) - 0.1 * np.maximum(y + 18, 0)
    temporal = _soft_min(_ellipsoid(points, (45, -12, -24), (22, 42, 21), 2.2), vault + 6, 8)
    return _smooth(_distance(_soft_max(_soft_min(vault, base, 14), temporal, 10) > 0), 1.6)


def _midline(points: np.ndarray) -> np.ndarray:
    """Distance to the sheet between the hemispheres: the plane x = 0 but for callosum and what lies
    below it.
    """
    x, y, z = points
    below = np.minimum(4 - z, 16 - np.abs(y + 18))
    return np.hypot(x, np.maximum(np.maximum(_under_callosum(y, z), below), 0))


def _under_callosum(y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Depth below the arch of the callosum, in the midline."""
    return 29 * (1 - np.hypot((y + 4) / 37, (z - 1) / 27))


def _core(points: np.ndarray) -> np.ndarray:
    """In the middle of the brain, which no sulcus enters."""
    return _ellipsoid(points, (0, -6, 3), (26, 42, 31))


def _callosum(points: np.ndarray) -> np.ndarray:
    """An arch, thicker at its two ends, genu and splenium."""
    x, y, z = points
    half = 2.8 + 1.4 * np.exp(-(((y + 36) / 8) ** 2)) + 1.4 * np.exp(-(((y - 28) / 8) ** 2))
    arch = half - np.abs(_under_callosum(y, z) - half)
    return np.minimum(arch, np.minimum(13 - np.abs(x), z + 5 - 4 * (y < 0)))


def _sylvian(points: np.ndarray) -> np.ndarray:
    """Distance to two sheets: the cleft above the temporal lobe, and the one over the insula at its
    bottom.
    """
    x, y, z = np.abs(points[0]), points[1], points[2]
    height = z - (2 - 0.45 * y + 2.5 * np.sin(y / 9))
    beyond = lambda value, limit: np.maximum(np.abs(value) - limit, 0)
    cleft = _length(np.stack([0.91 * height, np.maximum(39 - x, 0), beyond(y + 6, 30)]))
    insula = _length(
        np.stack([x - 39 - 0.003 * (y + 4) ** 2, beyond(height, 12), beyond(y + 2, 22)])
    )
    return np.minimum(cleft, insula)


def _ventricles(points: np.ndarray) -> np.ndarray:
    path: list[Triple] = [(9, 33, 3), (7, 18, 11), (7, -5, 18.5), (12, -26, 18), (24, -42, 11)]
    body = _tube(points, path, [3.2, 6.0, 5.2, 5.2, 6.5])
    cella = _ellipsoid(points, (5, 8, 11), (6, 24, 6.5))
    occipital = _tube(points, [(24, -42, 11), (25, -58, 7), (24, -68, 6)], [6.0, 3.5, 1.0])
    temporal = _tube(points, [(24, -42, 11), (34, -36, -4), (35, -16, -18)], [5.5, 3.2, 1.8])
    lateral = _soft_max(_soft_max(_soft_max(body, cella, 3), occipital, 3), temporal, 3)
    third, fourth = (
        _ellipsoid(points, (0, -12, -1), (2.4, 14, 9)),
        _ellipsoid(points, (0, -45, -34), (6.5, 5, 10)),
    )
    septum = np.abs(points[0]) - 0.3
    return np.maximum(np.minimum(lateral, septum), np.maximum(third, fourth))


def _nuclei(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The dark ones on T1 (caudate, putamen, claustrum) and the pale ones (thalamus, pallidum, red
    nucleus).
    """
    caudate = _tube(
        points, [(13, 22, 0), (14, 12, 11), (14.5, -4, 19), (20, -22, 21)], [5.0, 5.5, 3.5, 2.0]
    )
    putamen = _ellipsoid(points, (27, 2, 1), (5.5, 17, 10))
    claustrum = _ellipsoid(points, (34.3, 2, 1), (0.9, 17, 11))
    thalamus = _ellipsoid(points, (11.5, -19, 7), (9.5, 15, 9))
    pallidum = _ellipsoid(points, (19.5, -3, -1), (4.5, 9, 6))
    red = _ellipsoid(points, (5, -21, -10), (3.5, 4, 4))
    return np.maximum(np.maximum(caudate, putamen), claustrum), np.maximum(
        np.maximum(thalamus, pallidum), red
    )


def _cerebellum(points: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Depth in it, and the arc length across its folia: leaves of a book that opens at the fourth
    ventricle.
    """
    x, y, z = points
    lobe, vermis = (
        _ellipsoid(points, (24, -63, -38), (28, 27, 22)),
        _ellipsoid(points, (0, -64, -34), (12, 23, 20)),
    )
    folia = 26 * np.arctan2(z + 36, -y - 47) + 1.3 * _noise(30.0, rng) + 0.12 * np.abs(x)
    return _soft_max(lobe, vermis, 8), folia


def _stem(points: np.ndarray) -> np.ndarray:
    midbrain, pons = (
        _ellipsoid(points, (7, -23, -14), (11, 12, 12)),
        _ellipsoid(points, (0, -27, -34), (17, 13, 15)),
    )
    medulla = _tube(points, [(0, -32, -44), (0, -40, -66), (0, -46, -95)], [9.5, 7.5, 6.5])
    return _soft_max(_soft_max(midbrain, pons, 6), medulla, 6)


def _head(points: np.ndarray, dura: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Depth below the skin, in the eyes and in the airways."""
    neck = _tube(points, [(0, -40, -40), (0, -45, -120)], [60.0, 54.0])
    face = _ellipsoid(points, (0, 28, -50), (60, 58, 80), 2.3)
    nose = _tube(points, [(0, 78, -30), (0, 96, -58)], [5.0, 12.0])
    skin = _soft_max(_soft_max(_smooth(dura, 6.0) + 12.5, neck, 20), _soft_max(face, nose, 14), 24)
    maxillary, sphenoid = (
        _ellipsoid(points, (25, 48, -58), (13, 18, 16)),
        _ellipsoid(points, (0, 20, -38), (13, 11, 9)),
    )
    nasal = _ellipsoid(points, (5, 55, -52), (3.5, 26, 20))
    pharynx = _tube(points, [(0, 8, -55), (0, -4, -100)], [9.0, 8.0])
    air = np.maximum(np.maximum(maxillary, sphenoid), np.maximum(nasal, pharynx))
    return skin, _ellipsoid(points, (31, 60, -31), (12, 12.5, 12)), air


def _tumour(points: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """In these points its own pushing has been undone: distances are shorter by a fifth than in the
    head.
    """
    away = _length(points - TUMOUR_CENTRE.reshape(3, 1, 1, 1).astype(np.float32))
    return 1.2 * (0.8 * TUMOUR_RADIUS - away) + 2.2 * _noise(22.0, rng) + 0.7 * _noise(9.0, rng)


def _fold(hull: np.ndarray, wavelength: float, rng: np.random.Generator) -> np.ndarray:
    """Signed distance to sheets that enter from the hull at right angles and meander along it.

    They are where a noise field, read at the foot of each point on a shell below the hull, changes
    its sign; half of the field is the same on both sides, as the sulci of the two hemispheres
    resemble each other. The foot sways, or the sheets would be as flat as the teeth of a comb.
    """
    normal = np.stack(np.gradient(_smooth(hull, 2.0), *LATTICE.spacing))
    normal /= _length(normal) + 1e-3
    sway = 2.2 * np.stack([_noise(28.0, rng) for _ in range(3)])
    shell = (hull > -5) & (hull < 30)  # no sulcus is deeper
    foot = nodes(LATTICE)[shell] + ((6 - np.minimum(hull, 26)) * normal + sway)[:, shell].T
    mirrored = np.abs(foot) * [1, 0, 0] + foot * [0, 1, 1]
    field = np.ones_like(hull)
    field[shell] = _read(_noise(wavelength, rng), foot) + 0.9 * _read(
        _noise(wavelength, rng), mirrored
    )
    slope = _length(np.stack(np.gradient(field, *LATTICE.spacing)))
    return field / np.hypot(slope, 1 / wavelength)


def _read(field: np.ndarray, points: np.ndarray) -> np.ndarray:
    return ndimage.map_coordinates(field, LATTICE.index(points).T, order=3, mode="nearest")


# --- what MRI sees ------------------------------------------------------------------------------------------------


def _part(depth: np.ndarray, width: float = 1.0) -> np.ndarray:
    """How much of a voxel belongs to a part, from the depth of its centre."""
    return np.clip(0.5 + depth / width, 0, 1)


def _paint(canvas: np.ndarray, value: Number | np.ndarray, share: np.ndarray) -> np.ndarray:
    return canvas + share * (value - canvas)


def t1(a: Anatomy) -> np.ndarray:
    """T1-weighted signal: white matter 1."""
    canvas = _outside_brain(a)
    cortex = a.cortex
    leaf = np.abs(((a.folia / 4.2) % 1) - 0.5) * 4.2
    canvas = _paint(canvas, 0.17, _part(a.dura))
    canvas = _paint(
        canvas,
        0.40,
        _part(0.8 - a.midline) * _part(a.hull + 4) * _part(a.dura) * _part(0.2 - cortex),
    )
    canvas = _paint(canvas, 0.63, _part(a.cerebellum))
    canvas = _paint(
        canvas, 0.30, _part(0.5 - leaf) * _part(a.cerebellum) * _part(6 - a.cerebellum, 4.0)
    )
    canvas = _paint(canvas, 0.93, _part(leaf - 1.5) * _part(a.cerebellum - 2.5))
    canvas = _paint(canvas, 0.93, _part(a.cerebellum - 12 + 1.5 * a.texture, 5.0))
    canvas = _paint(canvas, 0.66 + 0.01 * a.texture, _part(cortex))
    canvas = _paint(canvas, 1.0 + 0.012 * a.texture, _part(cortex - CORTEX - 0.25 * a.texture))
    canvas = _paint(canvas, 0.68, _part(a.grey) * _part(cortex))
    canvas = _paint(canvas, 0.80, _part(a.pale, 2.0) * _part(cortex))
    canvas = _paint(canvas, 0.90 + 0.02 * a.texture, _part(a.stem))
    canvas = _paint(canvas, 1.0, _part(a.callosum))
    canvas = _paint(canvas, 0.17, _part(a.ventricle))
    return _paint_tumour(canvas, a)


def _paint_tumour(canvas: np.ndarray, a: Anatomy) -> np.ndarray:
    inside = _part(a.hull) * _part(a.cortex + 0.5)
    canvas = _paint(
        canvas, canvas * 0.80, _part(a.oedema, 6.0) * _part(a.cortex - CORTEX) * _part(-a.ventricle)
    )
    canvas = _paint(
        canvas,
        0.50 + 0.05 * a.texture,
        _part(a.tumour, 1.5) * np.maximum(inside, _part(a.tumour - 3)),
    )
    return _paint(canvas, 0.33, _part(a.tumour - 7 + 2 * a.texture, 3.0))


def _outside_brain(a: Anatomy) -> np.ndarray:
    """Skin, fat, skull with its marrow, and below the base of the skull muscle, eyes and airways."""
    above = _part(a.base, 14.0)
    canvas = _paint(np.zeros_like(a.skin), 0.55, _part(a.skin))
    canvas = _paint(canvas, 1.02 + 0.05 * a.texture, _part(a.skin - 1.8))
    muscle = 0.46 + 0.05 * a.texture + 0.35 * _part(a.texture - 1.3, 0.8)
    canvas = _paint(canvas, muscle, _part(a.skin - 6 - a.texture, 2.0) * (1 - above))
    canvas = _paint(canvas, 1.0, _part(a.eye + 7, 3.0) * _part(a.skin - 2))
    canvas = _paint(canvas, 0.45, _part(a.eye + 1.0))
    canvas = _paint(canvas, 0.22, _part(a.eye - 0.5))
    canvas = _paint(canvas, 0.03, _part(a.air + 0.7 * a.texture))
    bone = -a.dura
    canvas = _paint(
        canvas, 0.08, _part(7.5 - bone) * np.maximum(above, _part(4.5 - bone)) * _part(a.skin - 3)
    )
    marrow = (
        _part(5.6 - bone + 0.5 * a.texture)
        * _part(bone - 2.4 + 0.3 * a.texture)
        * _part(a.skin - 5)
    )
    return _paint(canvas, 0.60 + 0.06 * a.texture, marrow * above)


# --- what ultrasound sees -----------------------------------------------------------------------------------------


def echo(a: Anatomy) -> np.ndarray:
    """Scattering strength, dB: sulci, falx and borders are bright, fluid is dark, the tumour
    brighter than brain.
    """
    border = lambda depth, width: np.exp(-((depth / width) ** 2))
    brain = np.maximum(np.maximum(a.hull, a.cerebellum), a.stem)
    canvas = _paint(np.full_like(a.hull, -50.0), -21 + 1.5 * a.texture, _part(brain))
    canvas = _paint(canvas, -17 + 1.5 * a.texture, _part(a.cortex - CORTEX) * _part(a.hull))
    canvas = _paint(canvas, -20 + 1.5 * a.texture, _part(np.maximum(a.grey, a.pale)))
    canvas = _paint(canvas, -11 + 1.5 * a.texture, 0.6 * _part(a.oedema, 6.0) * _part(a.hull))
    canvas = _paint(
        canvas, 1 + 2 * a.texture, border(a.sulcus, 1.1) * _part(a.hull) * (a.tumour < 0)
    )
    canvas = _paint(canvas, -1.0, border(a.hull, 0.8) * _part(a.dura))
    canvas = _paint(canvas, 5.0, border(a.midline, 1.0) * _part(a.hull + 2))
    canvas = _paint(canvas, -7 + 3.5 * a.texture, _part(a.tumour) * _part(a.hull))
    canvas = _paint(canvas, -26.0, _part(a.tumour - 7 + 2 * a.texture, 2.0))
    canvas = _paint(canvas, 0.0, border(a.tumour, 1.3) * _part(a.hull))
    canvas = _paint(canvas, -48.0, _part(a.ventricle))
    return _paint(canvas, -2.0, border(a.ventricle, 0.8) * _part(a.hull))
