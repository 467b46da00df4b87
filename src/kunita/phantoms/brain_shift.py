"""Generated cases with a known truth."""

import dataclasses
import itertools

import numpy as np
from scipy import ndimage

from kunita.data.image import Grid, Image
from kunita.data.landmarks import Landmarks
from kunita.errors import ArgumentError
from kunita.phantoms import brain
from kunita.phantoms.brain import LATTICE, TUMOUR_CENTRE, Anatomy

APPROACH = np.array([0.70, 0.33, 0.63]) / np.linalg.norm([0.70, 0.33, 0.63])
"""From the tumour to the craniotomy: out of the head, at right angles to the skull."""

CRANIOTOMY = TUMOUR_CENTRE + 25.0 * APPROACH
"""Where the skull is opened, above the cortex."""

GRAVITY = np.array([-0.62, -0.10, -0.78]) / np.linalg.norm([-0.62, -0.10, -0.78])
"""Down, for a head turned so that the craniotomy is on top; not quite along the approach."""

EDGE = 6.0
"""How far from the edge of the ultrasound landmarks are put, mm: four standard deviations of the
noisiest."""


SLAB = 16
"""Slices that are made together: the anatomy of a whole grid is large."""


@dataclasses.dataclass(frozen=True, eq=False)
class Deformation:
    """A diffeomorphism known to machine precision: the flow of a smooth steady velocity, then a
    rigid motion.

    The brain sinks along gravity below the craniotomy, less to the sides and with depth, and is
    pushed about by a few smaller bumps. None of these is a kernel that a registration assumes: a
    model is tested on a truth it did not make.

    Args:
        sag: (3,) velocity at the craniotomy, mm.
        centres, pushes, radii: (k, 3) mm, (k, 3) mm, (k,) mm: bumps of compact support.
        rotation, translation: (3, 3) and (3,) mm, applied after the flow.
    """

    sag: np.ndarray
    centres: np.ndarray
    pushes: np.ndarray
    radii: np.ndarray
    rotation: np.ndarray
    translation: np.ndarray

    def velocity(self, points: np.ndarray) -> np.ndarray:
        """Of (…, 3) points in moving space, mm per unit time."""
        away = points - CRANIOTOMY
        depth = -away @ APPROACH
        aside = np.sum(away**2, -1) - depth**2
        share = (
            (1 + np.exp(-2))
            / (1 + np.exp(np.clip((depth - 50) / 25, -40, 40)))
            / (1 + aside / 70**2) ** 2
        )
        total = share[..., None] * self.sag
        for centre, push, radius in zip(self.centres, self.pushes, self.radii, strict=True):
            inside = np.maximum(1 - np.sum((points - centre) ** 2, -1) / radius**2, 0) ** 4
            total = total + inside[..., None] * push
        return total

    def flow(self, points: np.ndarray, time: float = 1.0, num_steps: int = 20) -> np.ndarray:
        """Carry (…, 3) points along the velocity, backwards for a negative time; RK4, whose error
        is below 1e-6 mm.
        """
        x, step = np.asarray(points, dtype=float), time / num_steps
        for _ in range(num_steps):
            a = self.velocity(x)
            b = self.velocity(x + step / 2 * a)
            c = self.velocity(x + step / 2 * b)
            x = x + step / 6 * (a + 2 * b + 2 * c + self.velocity(x + step * c))
        return x

    def move(self, points: np.ndarray) -> np.ndarray:
        """The rigid motion alone, as a head that moved without sinking."""
        return points @ self.rotation.T + self.translation

    def forward(self, points: np.ndarray) -> np.ndarray:
        """From moving to fixed space, (…, 3) mm."""
        return self.move(self.flow(points))

    def inverse(self, points: np.ndarray) -> np.ndarray:
        """From fixed to moving space, (…, 3) mm."""
        return self.flow((np.asarray(points, dtype=float) - self.translation) @ self.rotation, -1.0)


@dataclasses.dataclass(frozen=True, eq=False)
class Fan:
    """What an ultrasound probe sees: beams from a virtual apex behind it, in fixed space.

    Args:
        apex: (3,) mm.
        axes: (3, 3), rows: sideways, across, along the middle beam.
        near, far: where beams begin and end, mm from the apex.
        half_angles: how far beams lean sideways and across, radians.
    """

    apex: np.ndarray
    axes: np.ndarray
    near: float = 26.0
    far: float = 108.0
    half_angles: tuple[float, float] = (0.50, 0.42)

    def points(self, beams: np.ndarray) -> np.ndarray:
        """World points of (…, 3) beam coordinates: angle sideways, angle across, range from the
        apex.
        """
        lean = np.stack(
            [np.tan(beams[..., 0]), np.tan(beams[..., 1]), np.ones(beams.shape[:-1])], -1
        )
        unit = lean / np.linalg.norm(lean, axis=-1, keepdims=True)
        return self.apex + beams[..., 2:] * unit @ self.axes

    def beams(self, points: np.ndarray) -> np.ndarray:
        """Beam coordinates of (…, 3) world points."""
        local = (points - self.apex) @ self.axes.T
        leans = np.arctan2(local[..., :2], local[..., 2:])
        return np.concatenate([leans, np.linalg.norm(local, axis=-1, keepdims=True)], -1)

    def contains(self, points: np.ndarray, margin_mm: float = 0.0) -> np.ndarray:
        """Whether (…, 3) world points are seen, this far at least from the edge."""
        beams = self.beams(points)
        r = beams[..., 2]
        aside = [
            (h - np.abs(beams[..., i])) * r >= margin_mm for i, h in enumerate(self.half_angles)
        ]
        return aside[0] & aside[1] & (r >= self.near + margin_mm) & (r <= self.far - margin_mm)


@dataclasses.dataclass(frozen=True, eq=False)
class BrainShift:
    """An operation on a brain tumour, generated: MRI before, ultrasound during, landmarks in both,
    and the truth.

    Args:
        moving_image: T1-weighted MRI before the operation, int16.
        fixed_image: ultrasound of the brain after it sank, uint8; 0 outside the fan, at least 1
            inside.
        labels: the tumour, 1, on the grid of the MRI.
        moving, fixed: homologous landmarks as observed, with the covariances of their noise.
        true_moving, true_fixed: where they are in truth, (n, 3) mm.
        truth: the deformation from moving to fixed space.
        fan: what the ultrasound sees.
        head: the anatomy in moving space, on the lattice of `brain`.
    """

    moving_image: Image
    fixed_image: Image
    labels: Image
    moving: Landmarks
    fixed: Landmarks
    true_moving: np.ndarray
    true_fixed: np.ndarray
    truth: Deformation
    fan: Fan
    head: Anatomy


@dataclasses.dataclass(frozen=True, eq=False)
class MarkedBrain:
    """A brain shift without its images: what a leave-one-out needs, made in a fraction of the time.

    Args:
        moving, fixed: homologous landmarks as observed, with the covariances of their noise.
        true_moving, true_fixed: where they are in truth, (n, 3) mm.
        truth: the deformation from moving to fixed space.
        fan: what the ultrasound sees.
        head: the anatomy in moving space, on the lattice of `brain`.
    """

    moving: Landmarks
    fixed: Landmarks
    true_moving: np.ndarray
    true_fixed: np.ndarray
    truth: Deformation
    fan: Fan
    head: Anatomy


def brain_shift(
    key: int = 0, shift_mm: float = 8.0, num_landmarks: int = 30, spacing: float = 1.0
) -> BrainShift:
    """A case of brain shift with a known truth, the same for the same key.

    Args:
        key: of the head, its deformation and all noise.
        shift_mm: how far the cortex sinks below the craniotomy.
        num_landmarks: in each image.
        spacing: of the MRI, mm; the ultrasound is finer by a fixed factor. The anatomy, the truth
            and the landmarks do not depend on it: a coarse case is the same case, quickly.
    """
    if not 0.5 <= spacing <= 8:
        raise ArgumentError(f"spacing: expected between 0.5 and 8 mm, found {spacing}")
    brain = marked_brain(key, shift_mm, num_landmarks)
    moving_image, labels = mri(brain.head, key, spacing)
    ultrasound = _ultrasound(brain.head, brain.truth, brain.fan, key, 0.7 * spacing)
    return BrainShift(
        moving_image,
        ultrasound,
        labels,
        brain.moving,
        brain.fixed,
        brain.true_moving,
        brain.true_fixed,
        brain.truth,
        brain.fan,
        brain.head,
    )


def marked_brain(key: int = 0, shift_mm: float = 8.0, num_landmarks: int = 30) -> MarkedBrain:
    """The landmarks and the truth of `brain_shift`, which do not need its images."""
    if key < 0:
        raise ArgumentError(f"key: expected zero or a positive number, found {key}")
    if not 0 <= shift_mm <= 20:
        raise ArgumentError(f"shift_mm: expected between 0 and 20 mm, found {shift_mm}")
    if num_landmarks < 1:
        raise ArgumentError(f"num_landmarks: expected at least one, found {num_landmarks}")
    head = brain.anatomy(key)
    truth = deformation(key, shift_mm)
    fan = _fan(truth)
    names, true_moving = _places(head, truth, fan, key, num_landmarks)
    true_fixed = truth.forward(true_moving)
    moving, fixed = _observe(names, true_moving, true_fixed, fan, key)
    return MarkedBrain(moving, fixed, true_moving, true_fixed, truth, fan, head)


def deformation(key: int, shift_mm: float) -> Deformation:
    """The truth of this key: how the brain sinks, and how the head is turned."""
    rng = np.random.default_rng([key, 2])
    centres = TUMOUR_CENTRE + rng.uniform(-45, 45, (5, 3)) - 20 * APPROACH
    pushes = rng.standard_normal((5, 3)) * 0.08 * shift_mm
    turn = _rotation(rng.standard_normal(3), np.deg2rad(rng.uniform(2, 4)))
    return Deformation(
        shift_mm * GRAVITY, centres, pushes, rng.uniform(40, 60, 5), turn, rng.uniform(-3, 3, 3)
    )


def _rotation(axis: np.ndarray, angle: float) -> np.ndarray:
    """About an axis of any length, by Rodrigues' formula."""
    x, y, z = axis / np.linalg.norm(axis)
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * cross @ cross


def _fan(truth: Deformation) -> Fan:
    """The probe is held in the craniotomy, where the skull is, not the brain that has sunk away
    from it.
    """
    along = -APPROACH
    sideways = np.cross(along, [0.25, 0.9, 0.1])
    sideways /= np.linalg.norm(sideways)
    axes = np.stack([sideways, np.cross(along, sideways), along])
    return Fan(truth.move(CRANIOTOMY - Fan.near * along), axes @ truth.rotation.T)


# --- images -------------------------------------------------------------------------------------------------------


def mri(head: Anatomy, key: int, spacing: float) -> tuple[Image, Image]:
    """T1-weighted image and tumour label."""
    rng = np.random.default_rng([key, 3])
    grid = _mri_grid(spacing)
    signal, label = _painted(head, grid)
    seen = ndimage.gaussian_filter(signal, 0.5) * _bias(grid.shape, rng)
    return Image(scanned(seen, rng), grid.affine), Image(label, grid.affine)


def _mri_grid(spacing: float) -> Grid:
    """The whole head."""
    extent = np.array([176.0, 208.0, 176.0])
    shape = tuple(int(n) for n in np.round(extent / spacing))
    affine = np.diag([spacing, spacing, spacing, 1.0])
    affine[:3, 3] = LATTICE.affine[:3, 3] + (extent - spacing * (np.array(shape) - 1)) / 2
    return Grid(shape, affine)


def _painted(head: Anatomy, grid: Grid) -> tuple[np.ndarray, np.ndarray]:
    """The signal of T1 and where the tumour is."""
    signal = np.empty(grid.shape, np.float32)
    label = np.empty(grid.shape, np.uint8)
    for first in range(0, grid.shape[0], SLAB):
        part = brain.on_grid(head, slab(grid, first))
        signal[first : first + SLAB] = brain.t1(part)
        label[first : first + SLAB] = (part.tumour > 0) & (part.hull > 0)
    return signal, label


def slab(grid: Grid, first: int) -> Grid:
    """`SLAB` slices of a grid along its first axis."""
    count = min(SLAB, grid.shape[0] - first)
    affine = grid.affine.copy()
    affine[:3, 3] += first * grid.affine[:3, 0]
    return Grid((count, *grid.shape[1:]), affine)


def scanned(
    signal: np.ndarray, rng: np.random.Generator, noise: float = 0.018, gain: float = 700.0
) -> np.ndarray:
    """What a scanner stores of a signal: the magnitude of a complex number, both parts noisy."""
    real = noise * rng.standard_normal(signal.shape, dtype=np.float32)
    imaginary = noise * rng.standard_normal(signal.shape, dtype=np.float32)
    return np.round(gain * np.hypot(signal + real, imaginary)).astype(np.int16)


def coil(shape: tuple[int, ...], slopes: np.ndarray, bowl: float = 0.05) -> np.ndarray:
    """How a coil sees some places brighter than others.

    Args:
        shape: of the image.
        slopes: (3,) change of the logarithm from the middle to the border along each axis.
        bowl: by how much borders are brighter than the middle, in the same unit.
    """
    x, y, z = np.meshgrid(
        *(np.linspace(-1, 1, n, dtype=np.float32) for n in shape), indexing="ij", sparse=True
    )
    a, b, c = slopes.astype(np.float32)
    return np.exp(a * x + b * y + c * z + bowl * (x**2 + y**2 + z**2) - bowl)


def _bias(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    return coil(shape, rng.uniform(-0.06, 0.06, 3))


def _ultrasound(head: Anatomy, truth: Deformation, fan: Fan, key: int, spacing: float) -> Image:
    """Beam by beam, so that resolution falls with depth as beams spread; then on a grid along the
    fan's axes.
    """
    rng = np.random.default_rng([key, 4])
    sideways, across = fan.half_angles
    step = 0.8 * spacing
    counts = [
        int(2 * sideways * 75 / step),
        int(2 * across * 75 / step),
        int((fan.far - fan.near) / step),
    ]
    lines = [np.linspace(-h, h, n) for h, n in zip((sideways, across), counts[:2], strict=True)]
    lines.append(np.linspace(fan.near, fan.far, counts[2]))
    beams = np.stack(np.meshgrid(*lines, indexing="ij"), -1)
    decibel = brain.echo(brain.at_points(head, moving_points(fan.points(beams), truth)))
    grey = _speckle(decibel, beams[..., 2] - fan.near, step, rng)
    grid = _fan_grid(fan, spacing)
    points = brain.nodes(grid)
    seen = fan.beams(points)
    index = [(seen[..., i] - line[0]) / (line[1] - line[0]) for i, line in enumerate(lines)]
    data = ndimage.map_coordinates(grey, index, order=1, mode="nearest")
    return Image(
        np.where(fan.contains(points), np.clip(np.round(data), 1, 255), 0).astype(np.uint8),
        grid.affine,
    )


def moving_points(points: np.ndarray, truth: Deformation) -> np.ndarray:
    """`truth.inverse`, read from a lattice of 5 mm: good to a tenth of a voxel for millions of
    points.
    """
    low = points.min(axis=(0, 1, 2)) - 5
    shape = np.ceil((points.max(axis=(0, 1, 2)) - low) / 5).astype(int) + 2
    nodes = low + 5.0 * np.moveaxis(np.indices(tuple(shape)), 0, -1)
    shift = truth.inverse(nodes) - nodes
    index = np.moveaxis((points - low) / 5, -1, 0)
    moved = [ndimage.map_coordinates(shift[..., i], index, order=1) for i in range(3)]
    return points + np.stack(moved, axis=-1)


def _speckle(
    decibel: np.ndarray, depth: np.ndarray, step: float, rng: np.random.Generator
) -> np.ndarray:
    """Envelope of many scatterers under a beam of finite width, compressed to grey values 0…255."""
    amplitude = (10 ** (decibel / 20)).astype(np.float32)
    widths = (0.75 / step, 0.85 / step, 0.40 / step)
    power = np.zeros_like(amplitude)
    for _ in range(4):
        wave = ndimage.gaussian_filter(
            amplitude * rng.standard_normal(amplitude.shape, dtype=np.float32), widths
        )
        power += wave**2
    power *= np.prod(widths) * 8 * np.pi**1.5 / 4
    ringing = (
        10**-2.3
        * np.exp(-depth / 5)
        * (1.1 + np.cos(2 * np.pi * depth / 3.2))
        * rng.uniform(0.4, 1, depth.shape)
    )
    level = 10 * np.log10(power + ringing + 10**-4.2) - 0.13 * depth
    return 255 * np.clip((level + 42) / 46, 0, 1) ** 1.3


def _fan_grid(fan: Fan, spacing: float) -> Grid:
    """The box around the fan, along its axes: oblique in the world."""
    sideways, across = fan.half_angles
    extremes = itertools.product(
        (-sideways, 0, sideways), (-across, 0, across), (fan.near, fan.far)
    )
    corners = fan.points(np.array(list(extremes)))
    local = (corners - fan.apex) @ fan.axes.T
    low, high = local.min(axis=0), local.max(axis=0)
    shape = np.ceil((high - low) / spacing).astype(int) + 1
    affine = np.eye(4)
    affine[:3, :3] = fan.axes.T * spacing
    affine[:3, 3] = fan.apex + low @ fan.axes
    return Grid(tuple(shape), affine)


# --- landmarks ----------------------------------------------------------------------------------------------------


def _places(
    head: Anatomy, truth: Deformation, fan: Fan, key: int, count: int
) -> tuple[list[str], np.ndarray]:
    """Names and true moving positions: recognisable places that the ultrasound sees, far from each
    other.
    """
    rng = np.random.default_rng([key, 5])
    world = brain.nodes(LATTICE)
    names: list[str] = []
    chosen = np.empty((0, 3))
    for kind, where, share in _recognisable(head):
        wanted = count - len(names) if kind == "sulcus" else round(share * count)
        seen = fan.contains(truth.forward(world[where]), EDGE)
        more = _scatter(world[where][seen], chosen, wanted, rng)
        names += [f"{kind}-{i + 1:02d}" for i in range(len(more))]
        chosen = np.concatenate([chosen, more])
    if len(names) < count:
        raise ArgumentError(
            f"num_landmarks: the ultrasound shows only {len(names)} places to mark, asked were {count}"
        )
    return names, chosen + rng.uniform(-0.5, 0.5, chosen.shape)


def _recognisable(head: Anatomy) -> list[tuple[str, np.ndarray, float]]:
    """What people mark: kind, where it is on the lattice, and its share; sulci come last and make
    up the number.
    """
    sheet = (np.abs(head.fold) < 1) & (head.tumour < -3)
    fundus = sheet & (np.abs(head.hull - head.fold_depth) < 1.5) & (head.fold_depth > 7)
    mouth = sheet & (head.midline < 1.5) & (np.abs(head.hull) < 2)
    return [
        ("tumour", _tips(head.tumour), 0.2),
        ("ventricle", _tips(head.ventricle), 0.17),
        ("falx", mouth, 0.13),
        ("sulcus", fundus, 1.0),
    ]


def _tips(depth: np.ndarray) -> np.ndarray:
    """Where a surface is so convex that little of the neighbourhood lies inside: horns, corners,
    lobules.
    """
    inside = ndimage.gaussian_filter((depth > 0).astype(np.float32), 2.0)
    return (np.abs(depth) < 1) & (inside < 0.4) & (inside > 0.1)


def _scatter(
    candidates: np.ndarray, taken: np.ndarray, count: int, rng: np.random.Generator
) -> np.ndarray:
    """Up to this many of the candidates, each as far as can be from those before it, and at least 3
    mm.
    """
    candidates = rng.permutation(candidates)
    gaps = np.full(len(candidates), np.inf)
    for other in taken:
        gaps = np.minimum(gaps, np.linalg.norm(candidates - other, axis=-1))
    rows: list[int] = []
    while len(rows) < count and gaps.max(initial=0) >= 3:
        rows.append(int(gaps.argmax()))
        gaps = np.minimum(gaps, np.linalg.norm(candidates - candidates[rows[-1]], axis=-1))
    return candidates[rows]


def _observe(
    names: list[str], true_moving: np.ndarray, true_fixed: np.ndarray, fan: Fan, key: int
) -> tuple[Landmarks, Landmarks]:
    """The landmarks as marked: each with a noise of its own, on the ultrasound more across the beam
    and with depth.
    """
    rng = np.random.default_rng([key, 6])
    n = len(names)
    turns = zip(rng.standard_normal((n, 3)), rng.uniform(0, np.pi, n), strict=True)
    free = np.stack([_rotation(axis, angle) for axis, angle in turns])
    blur = (fan.beams(true_fixed)[:, 2] - fan.near) / (fan.far - fan.near)
    across = rng.uniform(0.6, 0.9, (n, 2)) + 0.6 * blur[:, None]
    stds_fixed = np.column_stack([across, rng.uniform(0.5, 0.7, n)])
    stds_moving = rng.uniform(0.5, 1.2, (n, 3))
    return (
        _blurred(names, true_moving, free, stds_moving, rng),
        _blurred(names, true_fixed, np.broadcast_to(fan.axes, (n, 3, 3)), stds_fixed, rng),
    )


def _blurred(
    names: list[str],
    truth: np.ndarray,
    axes: np.ndarray,
    stds: np.ndarray,
    rng: np.random.Generator,
) -> Landmarks:
    """The truth plus a draw of noise with these standard deviations along these axes (rows)."""
    draws = np.einsum("ni,nij->nj", stds * rng.standard_normal(stds.shape), axes)
    return Landmarks(truth + draws, names, np.einsum("nji,nj,njk->nik", axes, stds**2, axes))
