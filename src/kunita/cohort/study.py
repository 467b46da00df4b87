"""A study of a cohort: every landmark predicted without it, by our own method and by those it is
compared with.

A method knows nothing of the case it is tried on: its parameters were learned on other cases. Each
landmark is left out alone, and once a whole region: what lies far from all data is harder, and more
like what is asked of a registration.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from kunita.cohort.baselines import BASELINES, constant_sds, equally_sure, without, without_each
from kunita.cohort.leave_one_out import (
    LEAST_OTHERS,
    LeftOut,
    Refit,
    closed_form,
    refits_without,
    register_rows,
)
from kunita.data.case import Case
from kunita.data.landmarks import Landmarks
from kunita.kernels import Gaussian
from kunita.prior import Prior
from kunita.record import Registration
from kunita.scores import Predictions

PAPER = Prior(kernel=Gaussian(50.0, 1.0), noise_mm=0.5**0.5)
"""The paper's own setting: σ = 50 mm, its best; amplitude 1 (`eq:cov-fun` of [wassermann:14]); ‖·‖²
is D = ½I."""

REGION = 3
"""One landmark in so many is in the region that is left out."""

LIKE_PARENT = (
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_disable_most_optimizations",
)
"""What a worker must have as its parent has it: where compiled programs are kept, and how they are
compiled."""


@dataclasses.dataclass(frozen=True, eq=False)
class Trained:
    """A probabilistic method and what it has learned.

    Args:
        name: of the method.
        priors: one for each case of the cohort, learned without it.
        bare: whether the covariances that the files bring are passed over.
    """

    name: str
    priors: tuple[Prior, ...]
    bare: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class Held:
    """Landmarks of a case that were held out.

    Args:
        rows: (k,) which.
        predictions: of them, noise included.
        map_stds_mm: (k,) standard deviations of the map alone, along a typical axis; None if a
            method does not say.
        converged: (k,) whether the fit without each did.
    """

    rows: np.ndarray
    predictions: Predictions
    map_stds_mm: np.ndarray | None
    converged: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Tried:
    """A method tried on a case.

    Args:
        method: its name.
        case: with all its landmarks.
        alone, region: every landmark left out by itself; the landmarks of a region left out
            together.
        prior: what was learned, by a probabilistic method.
        sd_mm: what was learned, by any other.
    """

    method: str
    case: Case
    alone: Held
    region: Held
    prior: Prior | None = None
    sd_mm: float | None = None


def study(
    cases: Sequence[Case],
    methods: Sequence[Trained],
    *,
    exact: bool = True,
    workers: int = 1,
    progress: Callable[[float], None] = lambda fraction: None,
) -> tuple[Tried, ...]:
    """Try the baselines, then these methods, on all cases: method by method, case by case.

    Args:
        cases: of one dimension.
        methods: with a prior for each case.
        exact: whether to refit without each landmark; else the closed form (regions are refitted
            all the same).
        workers: processes; with more than one the result is the same.
        progress: told the fraction that is done.
    """
    num_rows = max(len(case) for case in cases)
    jobs = [
        Job(method.name, without_covariances(case) if method.bare else case, prior, num_rows, exact)
        for method in methods
        for case, prior in zip(cases, method.priors, strict=True)
    ]
    return (*_tried_baselines(cases), *_run(jobs, workers, progress))


def without_covariances(case: Case) -> Case:
    """The case as if its files had said nothing of the noise."""
    moving, fixed = (Landmarks(side.points, side.names) for side in (case.moving, case.fixed))
    return dataclasses.replace(case, moving=moving, fixed=fixed)


def region_of(points: np.ndarray) -> np.ndarray:
    """Rows of a third of the points: the one farthest from the centroid, and its nearest
    neighbours.
    """
    first = int(np.argmax(np.linalg.norm(points - points.mean(axis=0), axis=1)))
    distances = np.linalg.norm(points - points[first], axis=1)
    return np.sort(np.argsort(distances, kind="stable")[: len(points) // REGION])


# ---------------------------------------------------------------------------------------- baselines


def _tried_baselines(cases: Sequence[Case]) -> Iterator[Tried]:
    for name in BASELINES:
        yield from _tried_baseline(name, cases)


def _tried_baseline(name: str, cases: Sequence[Case]) -> Iterator[Tried]:
    fit, points = BASELINES[name], [(case.moving.points, case.fixed.points) for case in cases]
    means = [without_each(fit, *pair) for pair in points]
    sds = constant_sds(
        [pair[1] - mean for pair, mean in zip(points, means, strict=True)], LEAST_OTHERS
    )
    for case, (moving, fixed), mean, sd in zip(cases, points, means, sds, strict=True):
        left = region_of(moving)
        alone = _held_equally(np.arange(len(case)), mean, fixed, sd)
        region = _held_equally(left, without(fit, moving, fixed, left), fixed[left], sd)
        yield Tried(name, case, alone, region, sd_mm=sd)


def _held_equally(rows: np.ndarray, means: np.ndarray, observed: np.ndarray, sd_mm: float) -> Held:
    return Held(rows, equally_sure(means, observed, sd_mm), None, np.ones(len(rows), dtype=bool))


# ---------------------------------------------------------------------------- probabilistic methods


@dataclasses.dataclass(frozen=True, eq=False)
class Job:
    """A probabilistic method to try on a case, in a process of its own perhaps."""

    method: str
    case: Case
    prior: Prior
    num_rows: int
    exact: bool


def held_by_prior(case: Case, prior: Prior, num_rows: int) -> Held:
    """Every landmark of a case as a prior predicts it from the others, in closed form; the prior
    may know the case.
    """
    moving, fixed = prior.landmarks(case)
    full = register_rows(
        moving, fixed, num_rows, kernel=prior.kernel, align=prior.align, model=prior.model
    )
    return _in_closed_form(full, moving, fixed)


def tried(job: Job) -> Tried:
    """Register the case with all landmarks, then without each, then without a region."""
    prior, (moving, fixed) = job.prior, job.prior.landmarks(job.case)
    full = register_rows(
        moving, fixed, job.num_rows, kernel=prior.kernel, align=prior.align, model=prior.model
    )
    each = [(i,) for i in range(len(moving))] if job.exact else []
    *refits, last = refits_without(full, moving, fixed, [*each, region_of(moving.points)])
    alone = (
        _refitted(full, refits, moving, fixed)
        if job.exact
        else _in_closed_form(full, moving, fixed)
    )
    return Tried(job.method, job.case, alone, _refitted(full, [last], moving, fixed), prior)


def _refitted(
    full: Registration, refits: Sequence[Refit], moving: Landmarks, fixed: Landmarks
) -> Held:
    """All landmarks that these refits left out."""
    left = [one for refit in refits for one in refit.all_left_out(moving, fixed)]
    ended = [refit.converged and full.converged for refit in refits for _ in refit.left]
    return _held(
        np.array([i for refit in refits for i in refit.left]), left, fixed, np.array(ended)
    )


def _in_closed_form(full: Registration, moving: Landmarks, fixed: Landmarks) -> Held:
    ended = np.full(len(moving), full.converged)
    return _held(np.arange(len(moving)), closed_form(full, moving, fixed), fixed, ended)


def _held(
    rows: np.ndarray, left: Sequence[LeftOut], fixed: Landmarks, converged: np.ndarray
) -> Held:
    means, maps, noises = (
        np.stack(parts)
        for parts in zip(*((x.mean, x.covariance, x.noise) for x in left), strict=True)
    )
    stds = np.sqrt(np.trace(maps, axis1=1, axis2=2) / maps.shape[1])
    return Held(rows, Predictions(means, maps + noises, fixed.points[rows]), stds, converged)


def _run(jobs: Sequence[Job], workers: int, progress: Callable[[float], None]) -> Iterator[Tried]:
    """The jobs in their order; never in threads, in which XLA's compiled programs wait for each
    other for ever.
    """
    for k, one in enumerate(map(tried, jobs) if workers == 1 else _in_processes(jobs, workers)):
        progress((k + 1) / len(jobs))
        yield one


def _in_processes(jobs: Sequence[Job], workers: int) -> Iterator[Tried]:
    import jax
    from joblib import Parallel, delayed

    settings = tuple((name, jax.config.values[name]) for name in LIKE_PARENT)
    spread = Parallel(n_jobs=workers, backend="loky", return_as="generator")
    yield from spread(delayed(_tried_apart)(settings, job) for job in jobs)


def _tried_apart(settings: tuple[tuple[str, Any], ...], job: Job) -> Tried:
    """`tried` in another process."""
    import jax

    for name, value in settings:
        jax.config.update(name, value)
    return tried(job)
