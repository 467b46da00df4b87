"""Pairs of textured planes or volumes whose deformation is a draw from the prior, so that the truth is known."""

import dataclasses
import functools

import numpy as np
from scipy import ndimage, special

from kunita.data.image import Image

STEPS = 16
"""Of the Brownian flow; each is the flow of a frozen smooth field."""

FEATURES = 700
"""Random Fourier features of a field."""

CHUNK = 8192
"""Points that are moved together."""


BRIGHTNESS = 3.0
"""Of an object on an empty background, over the standard deviation of its texture."""


@dataclasses.dataclass(frozen=True, eq=False)
class BrownianFlow:
    """A draw from the prior of a Gaussian kernel: a composition of flows of random smooth fields.

    Args:
        frequencies: (t, k, d) of the features of each field, 1/mm.
        phases: (t, k) of them.
        weights: (t, k, d) of them, mm.
    """

    frequencies: np.ndarray
    phases: np.ndarray
    weights: np.ndarray

    @classmethod
    def draw(
        cls, amplitude: float, length_scale: float, dimension: int, seed: int
    ) -> "BrownianFlow":
        """A draw with an amplitude and a length scale, mm."""
        rng = np.random.default_rng(seed)
        shape = (STEPS, FEATURES, dimension)
        scale = amplitude * np.sqrt(2 / (FEATURES * STEPS))
        return cls(
            frequencies=rng.normal(size=shape) / length_scale,
            phases=rng.uniform(0, 2 * np.pi, size=shape[:2]),
            weights=rng.normal(size=shape) * scale,
        )

    def __call__(self, points: np.ndarray) -> np.ndarray:
        """Where (m, d) points go."""
        parts = [
            self._move(points[first : first + CHUNK])
            for first in range(0, max(len(points), 1), CHUNK)
        ]
        return np.concatenate(parts)

    def _move(self, points: np.ndarray) -> np.ndarray:
        moved = np.array(points, dtype=float)
        for step in range(STEPS):
            half = moved + 0.5 * self._field(step, moved)
            moved = moved + self._field(step, half)
        return moved

    def _field(self, step: int, points: np.ndarray) -> np.ndarray:
        # Single precision: it errs by less than 1e-5 of the amplitude, in a fifth of the time.
        frequencies = self.frequencies[step].astype(np.float32)
        phases = self.phases[step].astype(np.float32)
        angles = points.astype(np.float32) @ frequencies.T + phases
        return np.cos(angles) @ self.weights[step].astype(np.float32)


@dataclasses.dataclass(frozen=True, eq=False)
class TexturePair:
    """A pair of images with a known deformation; one pixel is one millimetre.

    Args:
        moving, fixed: the images.
        truth: where moving points go in fixed space.
    """

    moving: Image
    fixed: Image
    truth: BrownianFlow


@dataclasses.dataclass(frozen=True)
class TextureOptions:
    """What a pair is like; the standard deviation of the texture is one.

    Args:
        size: pixels along each axis.
        amplitude, length_scale: of the prior, mm.
        noise_of_moving, noise_of_fixed: standard deviations.
        correlation: width of the noise, pixels; 0 for white noise.
        radius: of the only object, pixels, on an empty background; 0 for texture everywhere.
        edge: width of the object's outline, pixels; 0 where pixels are either in or out, as a brain
            mask leaves them.
        dimension: 2 for planes, 3 for volumes.
    """

    size: int = 128
    amplitude: float = 5.0
    length_scale: float = 25.0
    noise_of_moving: float = 0.15
    noise_of_fixed: float = 0.0
    correlation: float = 0.0
    radius: float = 0.0
    edge: float = 0.0
    dimension: int = 2

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the images."""
        return self.dimension * (self.size,)


def texture_pair(options: TextureOptions, seed: int) -> TexturePair:
    """A pair of images: M(x) = F(φ(x)) + noise, φ a draw from the prior."""
    clean = _clean_pair(options.shape, options.amplitude, options.length_scale, seed)
    rng = np.random.default_rng(seed + 20_000)
    moving = clean.moving + _noise(rng, options.noise_of_moving, options)
    fixed = clean.fixed + _noise(rng, options.noise_of_fixed, options)
    if options.radius:
        moving = _cut_out(moving, clean.arrived, options, seed)
        fixed = _cut_out(fixed, _places(options.shape), options, seed)
    affine = np.eye(options.dimension + 1)
    return TexturePair(Image(moving, affine), Image(fixed, affine), clean.truth)


def is_inside(points: np.ndarray, options: TextureOptions, seed: int) -> np.ndarray:
    """How far each of (m, 2) points of the fixed image is inside the object, from 0 to 1.

    The object is a disc with a few bays.
    """
    rng = np.random.default_rng(seed + 30_000)
    phases = rng.uniform(0, 2 * np.pi, size=2)
    away = points - (options.size - 1) / 2
    angles = np.arctan2(away[:, 1], away[:, 0])
    bays = 0.15 * np.cos(3 * angles + phases[0]) + 0.1 * np.cos(5 * angles + phases[1])
    depth = options.radius * (1 + bays) - np.linalg.norm(away, axis=1)
    if not options.edge:
        return (depth > 0).astype(float)
    return special.expit(4 * depth / options.edge)


def _cut_out(
    values: np.ndarray, places: np.ndarray, options: TextureOptions, seed: int
) -> np.ndarray:
    """The object alone, brighter than the background, which is zero."""
    share = is_inside(places, options, seed).reshape(options.shape)
    return share * (values + BRIGHTNESS)


@dataclasses.dataclass(frozen=True, eq=False)
class _CleanPair:
    """A pair without noise.

    Args:
        moving, fixed: intensities.
        truth: where moving points go.
        arrived: (m, d) where the moving pixels go.
    """

    moving: np.ndarray
    fixed: np.ndarray
    truth: BrownianFlow
    arrived: np.ndarray


@functools.lru_cache(maxsize=64)
def _clean_pair(
    shape: tuple[int, ...], amplitude: float, length_scale: float, seed: int
) -> _CleanPair:
    """What pairs with all kinds of noise share; following the flow takes seconds."""
    margin = int(5 * amplitude) + 8
    whole = texture(tuple(size + 2 * margin for size in shape), seed)
    truth = BrownianFlow.draw(amplitude, length_scale, len(shape), seed + 10_000)
    arrived = truth(_places(shape))
    seen = ndimage.map_coordinates(whole, arrived.T + margin, order=3, mode="mirror")
    inner = tuple(slice(margin, margin + size) for size in shape)
    return _CleanPair(seen.reshape(shape), whole[inner].copy(), truth, arrived)


def _places(shape: tuple[int, ...]) -> np.ndarray:
    """(m, d) of all pixels."""
    return np.moveaxis(np.indices(shape, dtype=float), 0, -1).reshape(-1, len(shape))


def _noise(rng: np.random.Generator, sd: float, options: TextureOptions) -> np.ndarray:
    values = rng.normal(size=options.shape)
    if options.correlation:
        values = ndimage.gaussian_filter(values, options.correlation, mode="wrap")
    return sd * values / values.std()


def texture(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Clouds for even seeds, blobs with edges for odd ones; its standard deviation is one."""
    rng = np.random.default_rng(seed)
    clouds = lambda width: _standardised(
        ndimage.gaussian_filter(rng.normal(size=shape), width, mode="wrap")
    )
    if seed % 2 == 0:
        mixed = 0.5 * clouds(1.5) + 0.8 * clouds(3) + clouds(6)
    else:
        mixed = np.tanh(2 * clouds(4)) + 0.3 * clouds(1.5) + 0.5 * clouds(10)
    return _standardised(mixed)


def _standardised(values: np.ndarray) -> np.ndarray:
    return (values - values.mean()) / values.std()
