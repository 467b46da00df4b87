"""Some 80 results of the package as JSON, to show that another version gives the same numbers.

Fits in 2-D and 3-D with all kernels, alignments and models, noise of every form on either side or
both, robust fits, 300 and 1,000 landmarks, chosen hyper-parameters, planted errors, a cohort,
maps; and formulas at a flow that is given: geodesics, moments, and whatever a saved registration
answers. All data are generated with fixed seeds.

`save` keeps five registrations of one version as files. `record` runs the cases and, with
`--registration`, asks the saved registrations, so that two versions can be compared at the same
flow. It takes some five minutes of one core. `compare` prints one row per result, with the quantity
that differs most in proportion to its tolerance, and ends with status 1 if one is outside.

    python benchmarks/same_numbers.py save --folder saved --source OLD/src
    python benchmarks/same_numbers.py record --out old.json --source OLD/src --registration saved/*.h5
    python benchmarks/same_numbers.py record --out new.json --source NEW/src --registration saved/*.h5
    python benchmarks/same_numbers.py compare old.json new.json
"""

import argparse
import dataclasses
import functools
import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import kunita

Quantities = dict[str, dict[str, Any]]
"""Of one result, by name: a value, and what kind of number it is."""


# -------------------------------------------------------------------------------- how it is compared


@dataclasses.dataclass(frozen=True)
class Kind:
    """How far two values of a quantity may be apart.

    Args:
        tolerance: largest difference that is allowed.
        relative: whether it is relative to the largest entry.
        unit: of the difference.
    """

    tolerance: float
    relative: bool = False
    unit: str = ""


KINDS = {
    # at the same flow
    "formula": Kind(1e-8, relative=True),
    "single": Kind(1e-6, relative=True),  # grids are handed out in single precision
    # after a fit, which ends within 1e-6 mm of the optimum
    "place": Kind(1e-5, unit="mm"),
    "shape": Kind(1e-5, relative=True),  # covariances, Jacobians, weights
    "energy": Kind(1e-6, unit="nats"),
    "evidence": Kind(1e-6, unit="nats"),
    "share": Kind(1 / 256 + 1e-6),  # probabilities of labels: one draw of 256
    # of hyper-parameters that were chosen, and what follows from them
    "log": Kind(1e-4, unit="in the logarithm"),
    "follows": Kind(1e-3, relative=True),
    # names, numbers of things, yes and no
    "exact": Kind(0.0),
}


def value(kind: str, content: Any) -> dict[str, Any]:
    """A quantity as it is written."""
    assert kind in KINDS
    plain = content.tolist() if isinstance(content, np.ndarray | np.generic) else content
    return {"kind": kind, "value": plain}


def difference(kind: Kind, old: Any, new: Any) -> float:
    """How far two values are apart, in the unit of their kind; infinite where they cannot be compared."""
    if kind.tolerance == 0:
        return 0.0 if old == new else np.inf
    a, b = np.asarray(old, dtype=float), np.asarray(new, dtype=float)
    if a.shape != b.shape:
        return np.inf
    if not a.size:
        return 0.0
    both_missing = np.isnan(a) & np.isnan(b)
    same = (a == b) | both_missing  # infinite on both sides, say
    apart = np.where(same, 0.0, np.abs(np.where(same, 0.0, a - b)))
    if np.isnan(apart).any():
        return np.inf
    finite = np.abs(a[np.isfinite(a)])
    scale = finite.max(initial=0.0) if kind.relative else 1.0
    return float(apart.max() / (scale or 1.0))


# ------------------------------------------------------------------------------------- the landmarks


def displaced(
    n: int, seed: int, d: int = 3, rms: float = 6.0, noise: float = 0.5
) -> tuple[np.ndarray, np.ndarray]:
    """Landmarks in a box of 150 mm, displaced by a smooth random field, with errors of their own."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(0, 150, (n, d))
    squares = np.sum((x[:, None] - x) ** 2, axis=2)
    gram = np.exp(-squares / (2 * 50.0**2))
    u = np.linalg.cholesky(gram + 1e-9 * np.eye(n)) @ rng.normal(size=(n, d))
    u *= rms / np.sqrt(np.mean(np.sum(u**2, axis=1)))
    return x, x + u + noise * rng.normal(size=(n, d))


def turned(points: np.ndarray, degrees: float = 12.0) -> np.ndarray:
    """The points after a rotation in their first two axes and a shift."""
    angle = np.deg2rad(degrees)
    turn = np.eye(points.shape[1])
    turn[:2, :2] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    return (points - 75.0) @ turn.T + 75.0 + np.arange(1, points.shape[1] + 1)


def covariances(n: int, d: int, seed: int, sd: float = 1.0) -> np.ndarray:
    """(n, d, d) random covariances about as large as sd²."""
    roots = np.random.default_rng(seed).normal(size=(n, d, d))
    return sd**2 * (roots @ roots.swapaxes(1, 2) / d + 0.2 * np.eye(d))


def queries(points: np.ndarray, count: int = 16) -> np.ndarray:
    """Points within and around a set of landmarks."""
    rng = np.random.default_rng(count)
    low, high = points.min(axis=0), points.max(axis=0)
    margin = 0.15 * (high - low) + 1.0
    return rng.uniform(low - margin, high + margin, (count, points.shape[1]))


def names(n: int) -> tuple[str, ...]:
    """What the landmarks are called."""
    return tuple(f"mark {i + 1}" for i in range(n))


def kernels() -> dict[str, Any]:
    """One of each family, and a sum."""
    return {
        "gaussian": kunita.Gaussian(50.0, 6.0),
        "matern32": kunita.Matern32(80.0, 6.0),
        "matern52": kunita.Matern52(65.0, 6.0),
        "matern72": kunita.Matern72(60.0, 6.0),
        "rational": kunita.RationalQuadratic(45.0, 6.0, alpha=1.5),
        "sum": kunita.Gaussian(60.0, 5.0) + kunita.Matern52(25.0, 2.5),
    }


def smooth_kernel() -> Any:
    """The kernel of most fits."""
    return kunita.Gaussian(50.0, 6.0)


# ---------------------------------------------------------------------------- what a fit is asked for


@dataclasses.dataclass(frozen=True, eq=False)
class Fit:
    """A registration: its landmarks, and what `kunita.register` is asked for."""

    moving: Any
    fixed: Any
    settings: dict[str, Any]

    def register(self) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", kunita.KunitaWarning)
            return kunita.register(self.moving, self.fixed, **self.settings)

    def record(self) -> Quantities:
        """All that is compared of it."""
        reg = self.register()
        if reg.chosen:
            return {**choice(reg), **predictions(reg, "follows", "follows"), **suspects(reg)}
        energies = {
            "energy": value("energy", reg.energy),
            "evidence": value("evidence", reg.evidence),
        }
        return {**energies, **predictions(reg, "place", "shape"), **suspects(reg), **ending(reg)}


def ending(reg: Any) -> Quantities:
    """How the fit ended, and how many control points it has."""
    controls = None if reg.truncation is None else reg.truncation.num_controls
    return {
        "converged": value("exact", bool(reg.converged)),
        "used": value("exact", reg.used),
        "control points": value("exact", controls),
    }


def predictions(reg: Any, place: str, shape: str) -> Quantities:
    """Predictions and leave-one-out; the kinds say how closely they must agree."""
    ahead = reg.posterior.predict(queries(reg.moving.points))
    found = {
        "mean": value(place, ahead.mean),
        "covariance": value(shape, ahead.covariance),
        "affine": value(shape, reg.posterior.affine),
        "noise": value(shape, reg.noise),
    }
    if reg.weights is not None:
        found["weights"] = value(shape, reg.weights)
    return {**found, **left_out(reg, place, shape)}


def answers(reg: Any, place: str, shape: str) -> Quantities:
    """All else that a posterior is asked for."""
    there = queries(reg.moving.points)
    back = reg.posterior.inverse(queries(reg.fixed.points))
    return {
        "inverse mean": value(place, back.mean),
        "inverse covariance": value(shape, back.covariance),
        "joint covariance": value(shape, reg.posterior.covariance(there[:3], there[3:5])),
        "Jacobian": value(shape, reg.posterior.jacobian(there)),
        "moved": value(place, reg.posterior.move(there)),
        "moved back": value(place, reg.posterior.move_back(queries(reg.fixed.points))),
        "samples": value(place, reg.posterior.sample(there[:3], 4, key=5)),
    }


def left_out(reg: Any, place: str, shape: str) -> Quantities:
    """Leave-one-out in closed form; nothing where the landmarks are too few for it."""
    loo = reg.loo
    if loo is None:
        return {"leave-one-out": value("exact", None)}
    return {
        "leave-one-out mean": value(place, loo.mean),
        "leave-one-out covariance": value(shape, loo.covariance),
        "leave-one-out error": value(place, loo.error),
        "leave-one-out χ²": value(shape, loo.chi2),
    }


def choice(reg: Any) -> Quantities:
    """Kernel, noise and the intervals of hyper-parameters."""
    return {
        "family": value("exact", family(reg.kernel)),
        "kernel": value("log", np.log(sizes(reg.kernel))),
        "noise sd": value("log", np.log(reg.noise_mm)),
        **intervals(reg.chosen),
        "energy": value("follows", reg.energy),
        "evidence": value("follows", reg.evidence),
        "converged": value("exact", bool(reg.converged)),
    }


def intervals(chosen: Sequence[Any]) -> Quantities:
    """The hyper-parameters that were estimated, each with its interval."""
    with np.errstate(divide="ignore"):
        limits = {one.name: value("log", np.log([one.value, one.low, one.high])) for one in chosen}
    identified = [one.name for one in chosen if is_identified(one)]
    return {**limits, "identified": value("exact", identified)}


def is_identified(one: Any) -> bool:
    """Whether the data identify a hyper-parameter; the attribute may be called either way."""
    return bool(one.decided if hasattr(one, "decided") else one.identified)


def family(kernel: Any) -> list[str]:
    """The classes of a kernel and its parts."""
    return [type(part).__name__ for part in parts(kernel)]


def sizes(kernel: Any) -> np.ndarray:
    """Length scale and amplitude of every part."""
    return np.array([[float(part.length_scale), float(part.amplitude)] for part in parts(kernel)])


def parts(kernel: Any) -> tuple[Any, ...]:
    """What a sum consists of; otherwise the kernel itself."""
    return getattr(kernel, "kernels", (kernel,))


def suspects(reg: Any) -> Quantities:
    """Which landmarks are in doubt, by name, and why."""
    doubts = reg.suspicion
    labels = [reg.moving.labels[i] for i in np.flatnonzero(reg.used)]
    return {
        "suspects": value("exact", [labels[i] for i in np.flatnonzero(doubts.suspect)]),
        "outliers": value("exact", [labels[i] for i in doubts.outliers]),
        "misses": value("shape", np.array(doubts.misses_mm)),
        "swaps": value("exact", [[labels[i], labels[j]] for i, j in doubts.swaps]),
        "order": value("exact", [labels[i] for i in doubts.order]),
        "mirrored": value("exact", bool(doubts.mirrored)),
    }


# ------------------------------------------------------------------------- fits with a given kernel


N = 14
"""Landmarks of most cases: one shape, so that most programs are compiled once."""


def fits() -> Iterator[tuple[str, Fit]]:
    """Every registration with given hyper-parameters."""
    yield from fits_by_kernel()
    yield from fits_by_alignment()
    yield from fits_by_model()
    yield from fits_by_noise()
    yield from fits_of_many()
    yield from fits_of_few()


def fits_by_kernel() -> Iterator[tuple[str, Fit]]:
    """Every kernel in 2-D, two of them in 3-D."""
    plane = displaced(N, seed=1, d=2)
    space = displaced(N, seed=2)
    for name, kernel in kernels().items():
        yield f"fit/2-D {name}", Fit(*plane, {"kernel": kernel, "noise": 0.5})
    for name in ("matern52", "sum"):
        yield f"fit/3-D {name}", Fit(*space, {"kernel": kernels()[name], "noise": 0.5})


def fits_by_alignment() -> Iterator[tuple[str, Fit]]:
    """Every alignment in 3-D, two of them in 2-D."""
    moving, fixed = displaced(N, seed=3)
    for align in ("translation", "rigid", "similarity", "affine"):
        settings = {"kernel": smooth_kernel(), "noise": 0.5, "align": align}
        yield f"fit/3-D {align}", Fit(moving, turned(fixed), settings)
    settings = {"kernel": smooth_kernel(), "noise": 0.5, "align": "none"}
    yield "fit/3-D none", Fit(moving, fixed, settings)
    moving, fixed = displaced(N, seed=4, d=2)
    yield "fit/2-D none", Fit(moving, fixed, settings)
    yield "fit/2-D affine", Fit(moving, turned(fixed), {**settings, "align": "affine"})


def fits_by_model() -> Iterator[tuple[str, Fit]]:
    """The models that are not the default."""
    for d in (2, 3):
        landmarks = displaced(N, seed=4 + d, d=d)
        for model in ("pathwise", "small"):
            settings = {"kernel": smooth_kernel(), "noise": 0.5, "model": model}
            yield f"fit/{d}-D {model}", Fit(*landmarks, settings)


def fits_by_noise() -> Iterator[tuple[str, Fit]]:
    """Every form in which a noise can be given."""
    moving, fixed = displaced(N, seed=8)
    kernel = {"kernel": smooth_kernel()}
    sds = np.linspace(0.3, 1.5, N)
    yield "fit/noise per landmark", Fit(moving, fixed, {**kernel, "noise": sds})
    sds[[2, 7]] = np.inf
    yield "fit/infinite noise", Fit(moving, fixed, {**kernel, "noise": sds})
    full = covariances(N, 3, seed=1)
    yield "fit/anisotropic noise", Fit(moving, fixed, {**kernel, "noise": full})
    full = full.copy()
    full[3] = np.diag([np.inf] * 3)
    yield "fit/infinite covariance", Fit(moving, fixed, {**kernel, "noise": full})
    yield from fits_with_both_noises(moving, fixed)
    fixed = fixed.copy()
    fixed[5] += 12.0
    yield "fit/robust", Fit(moving, fixed, {**kernel, "noise": 0.5, "robust": True})


def fits_with_both_noises(moving: np.ndarray, fixed: np.ndarray) -> Iterator[tuple[str, Fit]]:
    """Covariances that the landmarks bring."""
    vague = kunita.Landmarks(moving, names(N), covariances(N, 3, seed=2, sd=0.7))
    exact = kunita.Landmarks(moving, names(N))
    marked = kunita.Landmarks(fixed, names(N), covariances(N, 3, seed=3))
    bare = kunita.Landmarks(fixed, names(N))
    kernel = {"kernel": smooth_kernel()}
    yield "fit/noise on the fixed side", Fit(exact, marked, kernel)
    yield "fit/noise on the moving side", Fit(vague, bare, kernel)
    yield "fit/noise on both sides", Fit(vague, marked, {**kernel, "align": "affine"})
    yield "fit/both sides, pathwise", Fit(vague, marked, {**kernel, "model": "pathwise"})
    yield "fit/both sides, small", Fit(vague, marked, {**kernel, "model": "small"})


def fits_of_many() -> Iterator[tuple[str, Fit]]:
    """Control points carry the momenta, where the kernel is smooth."""
    moving, fixed = displaced(300, seed=300, noise=1.0)
    for name in ("gaussian", "matern32"):
        yield f"fit/300 {name}", Fit(moving, fixed, {"kernel": kernels()[name], "noise": 1.0})
    vague = kunita.Landmarks(moving, None, 0.25)
    marked = kunita.Landmarks(fixed, None, 1.0)
    yield "fit/300, noise on both sides", Fit(vague, marked, {"kernel": smooth_kernel()})
    large = displaced(1000, seed=1000, noise=1.0)
    yield "fit/1000 gaussian", Fit(*large, {"kernel": smooth_kernel(), "noise": 1.0})


def fits_of_few() -> Iterator[tuple[str, Fit]]:
    """Too few or too special landmarks to determine the alignment; the same landmark twice."""
    moving, fixed = displaced(4, seed=9, d=2)
    settings = {"kernel": smooth_kernel(), "noise": 0.5}
    yield "fit/one landmark", Fit(moving[:1], fixed[:1], settings)
    line = np.stack([np.linspace(0, 100, 4), np.zeros(4), np.zeros(4)], axis=1)
    bent = line + displaced(4, seed=10)[1] - displaced(4, seed=10)[0]
    yield "fit/on a line", Fit(line, bent, settings)
    moving, fixed = displaced(N, seed=11)
    moving[1] = moving[0]
    fixed[1] = fixed[0] + 0.5
    yield "fit/one landmark twice", Fit(moving, fixed, settings)


# ------------------------------------------------------------------- hyper-parameters, planted errors


def chosen_fits() -> Iterator[tuple[str, Fit]]:
    """Registrations whose hyper-parameters the evidence chooses."""
    space = displaced(N, seed=21)
    plane = displaced(N, seed=22, d=2)
    yield "chosen/3-D", Fit(*space, {})
    yield "chosen/2-D", Fit(*plane, {})
    yield "chosen/best family", Fit(*plane, {"kernel": "best", "noise": 0.5})
    yield "chosen/length scale given", Fit(*plane, {"length_scale": 60.0})
    yield "chosen/amplitude given", Fit(*plane, {"amplitude": 5.0, "noise": 0.5})
    yield "chosen/affine, small", Fit(*space, {"align": "affine", "model": "small"})
    yield "chosen/pathwise", Fit(*plane, {"model": "pathwise", "noise": 0.5})
    moving = kunita.Landmarks(space[0], None, 0.1)
    fixed = kunita.Landmarks(space[1], None, 0.3)
    yield "chosen/scaled noise", Fit(moving, fixed, {"scale_noise": True})
    outlier = space[1].copy()
    outlier[5] += 12.0
    yield "chosen/robust", Fit(space[0], outlier, {"robust": True})


def planted_errors() -> Iterator[tuple[str, Fit]]:
    """Landmarks that cannot be right; fitted by the small-deformation model, which is quick."""
    n = 18
    moving, fixed = displaced(n, seed=31, rms=4.0)
    orders = {
        "nothing": np.arange(n),
        "a swapped pair": exchanged(n, [4, 11], [11, 4]),
        "three in a cycle": exchanged(n, [2, 8, 15], [8, 15, 2]),
        "reversed": np.arange(n)[::-1],
        "shifted": np.roll(np.arange(n), -1),
    }
    for name, order in orders.items():
        yield f"suspects/{name}", planted(moving, fixed[order])
    gross = fixed.copy()
    gross[6] += [15.0, -10.0, 5.0]
    yield "suspects/an outlier", planted(moving, gross)
    gross[12] -= [12.0, 12.0, 0.0]
    yield "suspects/two outliers", planted(moving, gross)
    yield "suspects/mirrored", planted(moving, fixed * [-1, 1, 1])
    yield "suspects/260 landmarks, two swapped", crowd()
    settings = {"kernel": smooth_kernel(), "noise": 0.5}
    yield "suspects/an outlier, fitted", Fit(named(moving), named(gross), settings)


def exchanged(n: int, rows: list[int], by: list[int]) -> np.ndarray:
    """0…n − 1 with some rows taking the places of others."""
    order = np.arange(n)
    order[rows] = by
    return order


def named(points: np.ndarray) -> Any:
    """Landmarks with names."""
    return kunita.Landmarks(points, names(len(points)))


def planted(moving: np.ndarray, fixed: np.ndarray) -> Fit:
    """A quick fit of landmarks that have names."""
    settings = {"kernel": smooth_kernel(), "noise": 0.5, "model": "small"}
    return Fit(named(moving), named(fixed), settings)


def crowd() -> Fit:
    """More landmarks than are judged together; two neighbours are exchanged."""
    moving, fixed = displaced(260, seed=32, rms=4.0)
    near = int(np.argsort(np.linalg.norm(moving - moving[100], axis=1))[3])
    fixed[[100, near]] = fixed[[near, 100]]
    return planted(moving, fixed)


# ---------------------------------------------------------------------------- a cohort, maps, labels


def cases() -> list[Any]:
    """Three small cases whose landmarks know their noise."""
    made = []
    for seed, n in ((41, 9), (42, 11), (43, 12)):
        moving, fixed = displaced(n, seed=seed, rms=8.0)
        sides = kunita.Landmarks(moving, None, 0.1), kunita.Landmarks(fixed, None, 0.3)
        made.append(kunita.Case(f"case {seed}", *sides))
    return made


def without_noise(case: Any) -> Any:
    """The same case, its landmarks without covariances."""
    sides = kunita.Landmarks(case.moving.points), kunita.Landmarks(case.fixed.points)
    return kunita.Case(case.name, *sides)


def learned(prior: Any) -> Quantities:
    """What a cohort has taught."""
    noise = np.nan if prior.noise_mm is None else np.log(prior.noise_mm)
    return {
        "kernel": value("log", np.log(sizes(prior.kernel))),
        "noise sd": value("log", noise),
        "noise factor": value("log", np.log(prior.noise_factor)),
        "evidence": value("follows", prior.evidence),
        **intervals(prior.chosen),
    }


def learned_with_noise() -> Quantities:
    """A prior learned on landmarks that know their noise."""
    return learned(kunita.learn_prior(cases()))


def learned_noise() -> Quantities:
    """Noise is learned too; the prior is then used for another case."""
    prior = kunita.learn_prior([without_noise(case) for case in cases()])
    fit = Fit(*displaced(10, seed=44), {"prior": prior})
    return {**learned(prior), **predictions(fit.register(), "follows", "follows")}


def learned_factor() -> Quantities:
    """Another family and model, with a factor on the given noise."""
    lesson = kunita.Lesson(family="matern52", align="affine", model="small", scale_noise=True)
    return learned(kunita.learn_prior(cases(), lesson))


def refits(model: str) -> Quantities:
    """Leave-one-out by refits of one case."""
    from kunita.cohort import leave_one_out

    case = cases()[2]
    full = leave_one_out.register_rows(
        case.moving, case.fixed, len(case), kernel=smooth_kernel(), model=model
    )
    found = list(leave_one_out.refits(full, case.moving, case.fixed))
    squared = [
        refit.left_out(case.moving, case.fixed).squared(case.fixed.points[refit.landmark])
        for refit in found
    ]
    return {
        "mean": value("place", np.array([refit.predicted.mean for refit in found])),
        "covariance": value("shape", np.array([refit.predicted.covariance for refit in found])),
        "χ²": value("shape", np.array(squared)),
        "converged": value("exact", [bool(refit.converged) for refit in found]),
    }


def map_of(reg: Any, what: str) -> np.ndarray:
    """A map on a small grid around the fixed landmarks."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", kunita.KunitaWarning)
        return kunita.uncertainty_map(reg, small_grid(reg), what).data


def small_grid(reg: Any) -> Any:
    """Some 1,000 voxels that hold the fixed landmarks."""
    low, high = reg.fixed.points.min(axis=0), reg.fixed.points.max(axis=0)
    d = len(low)
    count = {2: 32, 3: 10}[d]
    affine = np.eye(d + 1)
    affine[:d, :d] = np.diag((high - low) / (count - 1))
    affine[:d, d] = low
    return kunita.Grid((count,) * d, affine)


MAPS = ("fc", "std", "radius", "cov", "jacobian")


def maps(d: int) -> Quantities:
    """All maps after a fit, the probability of a label, and a warped image."""
    settings = {"kernel": smooth_kernel(), "noise": 0.5}
    reg = Fit(*displaced(N, seed=50 + d, d=d), settings).register()
    grid = small_grid(reg)
    index = np.stack(np.indices(grid.shape), axis=-1)
    away = np.linalg.norm(grid.world(index) - reg.fixed.points.mean(axis=0), axis=-1)
    label = kunita.Image((away < 45.0).astype(np.uint8), grid.affine)
    picture = kunita.Image(np.cos(away / 20).astype(np.float32), grid.affine)
    shares = kunita.label_probability(reg, label, grid).data
    return {
        **{what: value("shape", map_of(reg, what).astype(float)) for what in MAPS},
        "label": value("share", shares.astype(float)),
        "warped": value("shape", kunita.warp_image(reg, picture, grid).data.astype(float)),
    }


# --------------------------------------------------------------------------------- at a given flow


def flow_kernels() -> dict[str, Any]:
    """For landmarks in a box of side 6."""
    return {
        "gaussian": kunita.Gaussian(3.0, 1.2),
        "matern32": kunita.Matern32(3.0, 1.2),
        "matern52": kunita.Matern52(3.0, 1.2),
        "matern72": kunita.Matern72(3.0, 1.2),
        "rational": kunita.RationalQuadratic(3.0, 1.2, alpha=1.5),
        "sum": kunita.Gaussian(5.0, 1.0) + kunita.Matern52(2.0, 0.7),
    }


def phase(seed: int, n: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Landmarks with random momenta."""
    rng = np.random.default_rng(seed)
    return rng.uniform(-3, 3, (n, d)), 0.35 * rng.normal(size=(n, d))


def geodesic(name: str, d: int) -> Quantities:
    """A geodesic, points that it carries, and the way back."""
    kernel = flow_kernels()[name]
    shot = kunita.shoot(kernel, *phase(60 + d, 10, d))
    path = kunita.transport(kernel, shot, phase(70 + d, 8, d)[0])
    back = kunita.reverse(kernel, shot)
    return {
        "steps": value("exact", int(shot.num_steps)),
        "positions": value("formula", shot.positions[-1]),
        "momenta": value("formula", shot.momenta[-1]),
        "Jacobians": value("formula", shot.jacobians[-1]),
        "energies": value("formula", shot.energies),
        "carried": value("formula", path.positions[-1]),
        "carried Jacobians": value("formula", path.jacobians[-1]),
        "back": value("formula", back.positions[-1]),
    }


CLOSURES = ("frozen", "ll", "second", "gaussian")


def moments(closure: str, name: str, d: int) -> Quantities:
    """Mean and covariance of the Brownian flow around a geodesic, at its end and on the way."""
    start = phase(80 + d, 5, d)
    kernel = flow_kernels()[name]
    end = kunita.moments(kernel, *start, closure=closure)
    between = kunita.moments(kernel, *start, closure=closure, times=[0.25, 0.8])
    return {
        "mean": value("formula", end.mean),
        "covariance": value("formula", end.covariance),
        "covariance in time": value("formula", between.covariance),
    }


def simulated() -> Quantities:
    """Random paths from a given key."""
    kernel = flow_kernels()["matern52"]
    ends = kunita.simulate(kernel, *phase(90, 6, 2), num_paths=5, num_steps=50, key=3)
    return {"ends": value("formula", ends)}


def saved_answers(path: Path) -> Quantities:
    """All that a saved registration answers: no fit is made."""
    reg = kunita.load(path)
    many = reg.evaluation.predict(queries(reg.moving.points))
    found = {
        **predictions(reg, "formula", "formula"),
        **answers(reg, "formula", "formula"),
        **ending(reg),
        "energy": value("formula", reg.energy),
        "evidence": value("formula", reg.evidence),
        "kernel": value("formula", sizes(reg.kernel)),
        "many means": value("formula", many.mean),
        "many covariances": value("formula", many.covariance),
        "map cov": value("single", map_of(reg, "cov").astype(float)),
        "map jacobian": value("single", map_of(reg, "jacobian").astype(float)),
    }
    for one in reg.chosen:
        found[f"chosen {one.name}"] = value("formula", [one.value, one.low, one.high])
    return {**found, **suspects(reg)}


# ------------------------------------------------------------------------------ registrations to save


def to_save() -> dict[str, Fit]:
    """Five registrations whose files are asked by both versions."""
    moving, fixed = displaced(N, seed=101)
    vague = kunita.Landmarks(moving, names(N), covariances(N, 3, seed=102, sd=0.7))
    marked = kunita.Landmarks(turned(fixed), names(N), covariances(N, 3, seed=103))
    kernel = {"kernel": smooth_kernel()}
    given = {**kernel, "noise": 1.0}
    pathwise = {"kernel": kernels()["sum"], "noise": 0.5, "model": "pathwise", "align": "none"}
    return {
        "endpoint-2d-rigid": Fit(*displaced(N, seed=104, d=2), {}),
        "endpoint-3d-affine": Fit(vague, marked, {**kernel, "align": "affine"}),
        "pathwise-3d-none": Fit(*displaced(N, seed=105), pathwise),
        "small-3d-rigid": Fit(*displaced(N, seed=106), {**given, "model": "small"}),
        "low-rank-3d-rigid": Fit(*displaced(300, seed=107, noise=1.0), given),
    }


def save(arguments: argparse.Namespace) -> int:
    """Save them."""
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for name, fit in to_save().items():
        path = arguments.folder / f"{name}.h5"
        kunita.save(fit.register(), path, overwrite=True)
        print(f"{path}: {path.stat().st_size} bytes", flush=True)
    return 0


# ---------------------------------------------------------------------------------------- recording


def results(registrations: Sequence[Path]) -> dict[str, Callable[[], Quantities]]:
    """Every result by name, and how it is found."""
    found: dict[str, Callable[[], Quantities]] = {}
    for name in flow_kernels():
        found[f"flow/2-D {name}"] = functools.partial(geodesic, name, 2)
    for name in ("gaussian", "matern52"):
        found[f"flow/3-D {name}"] = functools.partial(geodesic, name, 3)
    for closure in CLOSURES:
        found[f"moments/2-D {closure}"] = functools.partial(moments, closure, "gaussian", 2)
    found["moments/2-D gaussian, sum"] = functools.partial(moments, "gaussian", "sum", 2)
    found["moments/3-D gaussian"] = functools.partial(moments, "gaussian", "matern52", 3)
    found["flow/simulated"] = simulated
    for path in registrations:
        found[f"saved/{path.stem}"] = functools.partial(saved_answers, path)
    for name, fit in (*fits(), *planted_errors(), *chosen_fits()):
        found[name] = fit.record
    for d in (2, 3):
        found[f"maps/{d}-D"] = functools.partial(maps, d)
    found["cohort/refits"] = functools.partial(refits, "endpoint")
    found["cohort/refits, pathwise"] = functools.partial(refits, "pathwise")
    found["cohort/learned"] = learned_with_noise
    found["cohort/learned with its noise"] = learned_noise
    found["cohort/learned with a factor"] = learned_factor
    return found


def record(arguments: argparse.Namespace) -> int:
    """Find every result and write all of them."""
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        if not arguments.optimised:
            keep_programs(Path(folder))
        found = {}
        for name, find in results(arguments.registration).items():
            if not name.startswith(tuple(arguments.only or [""])):
                continue
            before = time.process_time()
            found[name] = find()
            print(f"{time.process_time() - before:6.1f} s  {name}", flush=True)
    rows = [f"{json.dumps(name)}: {json.dumps(one)}" for name, one in found.items()]
    arguments.out.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")
    print(f"{len(found)} results, {time.process_time() - began:.0f} s of CPU: {arguments.out}")
    return 0


def keep_programs(folder: Path) -> None:
    """Compile as the command line does: small programs in haste, five times as fast."""
    try:
        from kunita.jaxrun import programs
    except ImportError:  # where it was before the second edition of the core
        from kunita import programs
    programs.keep(folder)


# ---------------------------------------------------------------------------------------- comparing


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The quantity of a result that differs most, in proportion to its tolerance."""

    quantity: str
    difference: float
    kind: Kind
    words: str

    @property
    def outside(self) -> bool:
        return self.words not in ("same", LOWER)

    @property
    def share(self) -> float:
        """The difference over its tolerance."""
        if self.difference == 0:
            return 0.0
        return self.difference / self.kind.tolerance if self.kind.tolerance else np.inf

    def row(self, name: str) -> str:
        unit = "relative" if self.kind.relative else self.kind.unit
        sizes = f"{self.difference:.1e} | {self.kind.tolerance:g} {unit}".rstrip()
        return f"| {name} | {self.quantity} | {sizes} | {self.words} |"


LOWER = "lower minimum"
HIGHER = "another minimum"


def verdict(old: Quantities, new: Quantities) -> Verdict:
    """What two versions of a result differ in."""
    if set(old) != set(new):
        other = ", ".join(sorted(set(old) ^ set(new)))
        return Verdict(other, np.inf, KINDS["exact"], "missing")
    if old.get("energy", {}).get("kind") == "energy":
        minimum = other_minimum(old["energy"]["value"], new["energy"]["value"])
        if minimum is not None:
            return minimum
    compared = [compared_quantity(name, old[name], new[name]) for name in old]
    return max(compared, key=lambda one: one.share)


def other_minimum(old: float, new: float) -> Verdict | None:
    """Where the energies differ, the two fits ended in different minima; the rest is not compared."""
    kind = KINDS["energy"]
    if abs(new - old) <= kind.tolerance:
        return None
    return Verdict("energy", abs(new - old), kind, LOWER if new < old else HIGHER)


def compared_quantity(name: str, old: dict[str, Any], new: dict[str, Any]) -> Verdict:
    """One quantity of both versions."""
    kind = KINDS[old["kind"]]
    found = Verdict(name, difference(kind, old["value"], new["value"]), kind, "same")
    return found if found.share <= 1 else dataclasses.replace(found, words="OUTSIDE")


def compare(arguments: argparse.Namespace) -> int:
    """Print one row per result; status 1 if one is outside its tolerance."""
    old, new = (
        json.loads(path.read_text(encoding="utf-8")) for path in (arguments.old, arguments.new)
    )
    print("| result | quantity that differs most | largest difference | tolerance | verdict |")
    print("|---|---|---|---|---|")
    outside = 0
    for name in (name for name in old if name in new):
        found = verdict(old[name], new[name])
        outside += found.outside
        print(found.row(name))
    alone = sorted(set(old) ^ set(new))
    print(f"{len(set(old) & set(new))} results compared, {outside} outside")
    if alone:
        print(f"in one of the files only: {', '.join(alone)}")
    return int(bool(outside or alone))


# ------------------------------------------------------------------------------------- the program


def restart_with(source: Path) -> None:
    """Run this program again with the package of a folder in place of the installed one."""
    if not (source / "kunita" / "__init__.py").is_file():
        sys.exit(f"--source {source}: there is no package kunita in this folder")
    wanted = str(source.resolve())
    if os.environ.get("PYTHONPATH") != wanted:
        environment = {**os.environ, "PYTHONPATH": wanted}
        os.execve(sys.executable, [sys.executable, *sys.argv], environment)


def arguments_of_command_line() -> argparse.Namespace:
    """What was asked for."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    commands = parser.add_subparsers(dest="command", required=True)
    saving = commands.add_parser("save", help="save registrations")
    saving.add_argument("--folder", type=Path, required=True)
    recording = commands.add_parser("record", help="find all results")
    recording.add_argument("--out", type=Path, required=True, metavar="FILE.json")
    recording.add_argument(
        "--registration", type=Path, nargs="+", default=[], help="files of `save`, to be asked too"
    )
    recording.add_argument("--only", nargs="+", help="how the names of wanted results begin")
    recording.add_argument(
        "--optimised",
        action="store_true",
        help="compile with all optimisations: slower, and other rounding errors",
    )
    for one in (saving, recording):
        one.add_argument("--source", type=Path, help="folder with the package kunita")
    comparing = commands.add_parser("compare", help="compare two files")
    comparing.add_argument("old", type=Path)
    comparing.add_argument("new", type=Path)
    return parser.parse_args()


def main() -> int:
    """Save, record or compare."""
    arguments = arguments_of_command_line()
    if arguments.command == "compare":
        return compare(arguments)
    if arguments.source is not None:
        restart_with(arguments.source)
    return {"save": save, "record": record}[arguments.command](arguments)


if __name__ == "__main__":
    sys.exit(main())
