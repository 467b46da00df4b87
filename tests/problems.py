"""Small problems with known answers, and the instances that laws are checked on."""

import functools

import jax
import numpy as np
import pytest

import kunita
from kunita import numerics
from kunita.inference import solve, trend
from kunita.inference.problem import Problem, look, no_step
from kunita.observations.base import AbstractObservations
from kunita.observations.landmarks import LandmarkObservations

KERNELS = {
    "gaussian": kunita.Gaussian(3.0, 1.2),
    "matern32": kunita.Matern32(3.0, 1.2),
    "matern52": kunita.Matern52(3.0, 1.2),
    "matern72": kunita.Matern72(3.0, 1.2),
    "rational": kunita.RationalQuadratic(3.0, 1.2, alpha=1.5),
    "sum": kunita.Gaussian(5.0, 1.0) + kunita.Matern52(2.0, 0.7),
}


CASES = [
    pytest.param(KERNELS["gaussian"], 2, id="gaussian-2d"),
    pytest.param(KERNELS["matern32"], 2, id="matern32-2d"),
    pytest.param(KERNELS["rational"], 2, id="rational-2d"),
    pytest.param(KERNELS["sum"], 2, id="sum-2d"),
    pytest.param(KERNELS["matern52"], 3, id="matern52-3d"),
    pytest.param(KERNELS["matern52"], 2, id="matern52-2d", marks=pytest.mark.soak),
    pytest.param(KERNELS["matern72"], 2, id="matern72-2d", marks=pytest.mark.soak),
    pytest.param(KERNELS["gaussian"], 3, id="gaussian-3d", marks=pytest.mark.soak),
]
"""Every kernel in 2-D, two of them in 3-D: what the laws of the flow are checked on.

Kernels differ by their profiles alone, which have tests of their own. So the suite has the smoothest,
the roughest, the one with a parameter more, a sum, and one in 3-D.
"""


def random_phase(seed, n=12, d=2, size=6.0, strength=0.35):
    """Landmarks in a box of this size, with random momenta of this strength."""
    rng = np.random.default_rng(seed)
    return rng.uniform(-size / 2, size / 2, (n, d)), strength * rng.normal(size=(n, d))


def gp_displaced(n, seed, length_scale=50.0, side=150.0, rms=6.0, d=3):
    """Landmarks in a cube, displaced by a draw from the Gaussian process scaled to a root mean
    square displacement."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(0, side, (n, d))
    gram = np.exp(-np.sum((x[:, None] - x) ** 2, axis=2) / (2 * length_scale**2))
    u = np.linalg.cholesky(gram + 1e-9 * np.eye(n)) @ rng.normal(size=(n, d))
    return x, x + u * rms / np.sqrt(np.mean(np.sum(u**2, axis=1)))


def initial_velocity(kernel, points, seed):
    """Momenta of a random velocity field with the kernel's covariance: p = K⁻¹v, v ~ N(0, K)."""
    rng = np.random.default_rng(seed)
    gram = np.asarray(kernel.gram(points, points))
    root = np.linalg.cholesky(gram + 1e-10 * gram[0, 0] * np.eye(len(points)))
    return np.linalg.solve(root.T, rng.normal(size=points.shape))


def rotation(d, seed=0):
    """A proper rotation."""
    q, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(d, d)))
    q[:, 0] *= np.sign(np.linalg.det(q))
    return q


THREE = {
    "moving": np.array([[0, 0], [1.5, 0], [0.5, 2.0]]),
    "fixed": np.array([[1.5, 0.3], [2.1, -1.0], [1.7, 2.8]]),
    "queries": np.array([[0.7, 0.7], [3, 1], [-4, 0.0]]),
    "kernel": kunita.Gaussian(2.0, 1.0),
    "noise": np.sqrt(0.15),
}
"""The three-landmark example of the design, whose exact posterior is known from guided simulation.
"""


def landmarks(moving, fixed, covariances):
    """Landmarks with noise on the fixed side."""
    noise = np.array(covariances, dtype=float)
    return LandmarkObservations(np.asarray(moving), np.asarray(fixed), noise)


def anisotropic(n, d, seed, scale=1.0):
    """Covariances of different sizes and directions."""
    roots = np.random.default_rng(seed).normal(size=(n, d, d))
    return scale * (0.3 * np.eye(d) + 0.4 * roots @ roots.swapaxes(1, 2))


class InformationAlone(AbstractObservations):
    """Landmarks that do not give their rows away."""

    landmarks: LandmarkObservations
    sites: jax.Array

    has_rows = False

    @property
    def noise_sd(self):
        return self.landmarks.noise_sd

    def information(self, arrived, jacobians):
        return self.landmarks.information(arrived, jacobians)


def noisy_landmarks(n=12, d=3, rms=8.0):
    """Landmarks with anisotropic noise on both sides."""
    moving, fixed = gp_displaced(n, seed=4, rms=rms, d=d)
    fixed_noise = anisotropic(n, d, seed=5)
    moving_noise = anisotropic(n, d, seed=6, scale=0.5)
    return LandmarkObservations(moving, fixed, fixed_noise, moving_noise)


def fit(kernel, moving, fixed, noise, align="none"):
    """Solve one problem in the core, without the door around it."""
    n, d = moving.shape
    start = trend.procrustes(align, moving, fixed, np.ones(n))
    free, _ = trend.determined_trend(align, np.asarray(start(moving)) - start.offset)
    start = trend.Alignment(
        start.center, start.matrix, np.zeros(d) if align != "none" else start.offset
    )
    origin = fixed.mean(0) if align != "none" else np.zeros(d)
    covariances = np.broadcast_to(noise**2 * np.eye(d), (n, d, d)) if np.ndim(noise) == 0 else noise
    problem = Problem(kernel, landmarks(moving, fixed - origin, covariances), free)
    return solve.solve(problem, start)


def prepared():
    """A small problem with a rigid trend, and the state that its search starts from."""
    moving, fixed = gp_displaced(6, seed=1, rms=15.0)
    start = trend.procrustes("rigid", moving, fixed, np.ones(6))
    origin, start = start.offset, trend.Alignment(start.center, start.matrix, np.zeros(3))
    free, _ = trend.determined_trend("rigid", np.asarray(start(moving)))
    noise = np.broadcast_to(np.eye(3), (6, 3, 3))
    observed = landmarks(moving, fixed - origin, noise)
    problem = Problem(kunita.Gaussian(50.0, 8.0), observed, free)
    times = numerics.time_grid(10)
    state = look(problem, start, np.zeros((6, 3)), no_step(problem), times)
    return problem, state


def grid(points, margin, spacing):
    """A dense grid around some points."""
    low, high = points.min(0) - margin, points.max(0) + margin
    axes = [np.arange(a, b, spacing) for a, b in zip(low, high, strict=True)]
    return np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, points.shape[1])


@functools.cache
def registered(d=3):
    """A registration of 16 landmarks in a box of 60 mm with a rotation, a shift and a smooth
    deformation."""
    rng = np.random.default_rng(7)
    x = rng.uniform(0, 60, (16, d))
    bent = x + 3 * np.sin(np.roll(x, 1, axis=1) / 15)
    turned = (bent - 30) @ rotation_near_identity(d).T + 30 + np.arange(1, d + 1)
    return kunita.register(x, turned, kernel=kunita.Gaussian(25.0, 4.0), noise=0.7)


def rotation_near_identity(d):
    """A rotation by 0.1 radian in the first two axes."""
    turn = np.eye(d)
    turn[:2, :2] = [[np.cos(0.1), -np.sin(0.1)], [np.sin(0.1), np.cos(0.1)]]
    return turn


def grid_around(direction, spacing=(1.5, 2.0, 2.5), middle=(30.0, 30.0, 30.0), side=60.0):
    """A grid over the box of `registered` whose axes are the columns of `direction`."""
    d = len(direction)
    spacing = np.array(spacing[:d])
    shape = np.ceil(side / spacing).astype(int) + 1
    affine = np.eye(d + 1)
    affine[:d, :d] = np.asarray(direction) * spacing
    affine[:d, d] = np.array(middle[:d]) - affine[:d, :d] @ ((shape - 1) / 2)
    return kunita.Grid(shape, affine)


ORIENTATIONS = {
    "RAS": np.eye(3),
    "LAS": np.diag([-1.0, 1.0, 1.0]),
    "LPS": np.diag([-1.0, -1.0, 1.0]),
    "PIR": np.array([[0.0, 0.0, 1.0], [-1.0, 0.0, 0.0], [0.0, -1.0, 0.0]]),
    "oblique": rotation(3, seed=3),
}
