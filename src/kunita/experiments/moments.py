"""Validity of the local linearisation: the moments of the flow by simulation and by each closure.

The first experiment of [wassermann:14] (“Validity of the Locally Linear Approximation”): landmarks
on a circle and on a flower, random initial velocity fields with the covariance of the kernel, and
the mean and covariance of where the landmarks arrive, by Euler–Maruyama and by the moment
equations. Both are stepped on the same time grid, so that they differ by the closure and by chance
only.
"""

import concurrent.futures
import contextlib
import dataclasses
import itertools
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import t as student

from kunita import numerics
from kunita.experiments.experiment import Experiment, Plate, Progress, Table, Tell, silent
from kunita.figures import moments as figures
from kunita.flow import shooting
from kunita.flow.moments import CLOSURES, euler_moments
from kunita.flow.referee import CHUNK, Estimate, referee
from kunita.flow.simulate import simulate
from kunita.kernels import Gaussian
from kunita.phantoms.shapes import circle, flower

SHAPES: dict[str, Callable[..., np.ndarray]] = {"circle": circle, "flower": flower}
PAPER_LENGTH_SCALES = (0.1, 2.0, 5.0)
CURVE_SIZES = (8, 32, 128, 512, 2048, 8192)
WILD_MM = 100.0
"""An error, mm or mm², of this size is no approximation of anything."""

CONFIDENCE = 0.95

DROWNED = 1.5
"""An error counts as chance's only if it is no more than this many times what chance alone gives.
"""


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is run; by default all of it."""

    length_scales_mm: tuple[float, ...] = PAPER_LENGTH_SCALES
    amplitude_mm: float = 1.0
    radius_mm: float = 10.0
    num_landmarks: int = 32
    num_experiments: int = 100
    num_paths: int = 2048
    num_steps: int = 50
    num_curve_experiments: int = 4
    num_curve_paths: int = 8192
    seed: int = 0


FULL = Settings()
QUICK = Settings(
    num_experiments=6, num_paths=256, num_steps=25, num_curve_experiments=1, num_curve_paths=512
)


@dataclasses.dataclass(frozen=True)
class Measure:
    """A way to compare two pairs of moments: numbers in groups, whose mean Euclidean difference is
    the error.

    Args:
        name, unit: as they are called in tables.
        features: of a mean, (n, d), and a covariance, (n, d, n, d); (groups, numbers).
        paper: what the paper reports for its three length scales, if it may be this measure.
    """

    name: str
    unit: str
    features: Callable[[np.ndarray, np.ndarray], np.ndarray]
    paper: tuple[float, ...]

    def paper_at(self, length_scale: float) -> float | None:
        return dict(zip(PAPER_LENGTH_SCALES, self.paper, strict=True)).get(length_scale)

    def distance(self, one: Estimate, other: Estimate) -> float:
        """Between two pairs of moments."""
        a, b = (self.features(part.mean, part.covariance) for part in (one, other))
        return float(np.linalg.norm(a - b, axis=1).mean())


def _cloud(mean: np.ndarray, cov: np.ndarray) -> np.ndarray:
    """The d×d covariance of all arrivals of all landmarks thrown together."""
    within = np.einsum("iaib->ab", cov) / len(mean)
    return (within + np.cov(mean.T, bias=True)).reshape(1, -1)


PAPER_DISTANCES, PAPER_COVARIANCES = (0.5, 0.1, 0.012), (11.0, 3.0, 0.5)

MEASURES = (
    Measure("arrival", "mm", lambda mean, cov: mean, PAPER_DISTANCES),
    Measure(
        "point covariance",
        "mm²",
        lambda mean, cov: np.einsum("iaib->iab", cov).reshape(len(mean), -1),
        PAPER_COVARIANCES,
    ),
    Measure("joint covariance", "mm²", lambda mean, cov: cov.reshape(1, -1), PAPER_COVARIANCES),
    Measure("cloud covariance", "mm²", _cloud, PAPER_COVARIANCES),
)
"""Distance of the mean arrivals; Frobenius norm of the covariance's difference: point by point (the
headline), of all coordinates jointly (it grows with the number of landmarks), and of the cloud of
all arrivals."""


# ----------------------------------------------------------------------------------- one experiment


@dataclasses.dataclass(frozen=True, eq=False)
class Draw:
    """A shape with a random initial velocity field, and the geodesic that it starts."""

    shape: str
    kernel: Gaussian
    points: np.ndarray
    momenta: np.ndarray
    trajectory: shooting.Trajectory
    seed: int


def draw(settings: Settings, shape: str, length_scale: float, number: int) -> Draw:
    """The velocity at the landmarks is v ~ N(0, K ⊗ I); its momenta are K⁻¹v = L⁻ᵀξ, with LLᵀ = K."""
    place = [list(SHAPES).index(shape), round(1000 * length_scale)]
    rng = np.random.default_rng([settings.seed, *place, number])
    points = SHAPES[shape](settings.num_landmarks, settings.radius_mm)
    kernel = Gaussian(length_scale, settings.amplitude_mm)
    with jax.enable_x64(True):
        root = np.asarray(numerics.cholesky(kernel.gram(jnp.asarray(points), jnp.asarray(points))))
        momenta = np.linalg.solve(root.T, rng.standard_normal(points.shape))
        times = jnp.linspace(0, 1, settings.num_steps + 1)
        trajectory = shooting.geodesic_jit(kernel, jnp.asarray(points), jnp.asarray(momenta), times)
    return Draw(shape, kernel, points, momenta, trajectory, int(rng.integers(2**31)))


_closure = jax.jit(euler_moments, static_argnums=1)


def closed_moments(case: Draw, closure: str) -> Estimate:
    """Mean and covariance of the arrivals by a closure, on the simulation's own time grid."""
    with jax.enable_x64(True):
        mean, cov = _closure(case.kernel, closure, case.trajectory, jnp.asarray(case.points))
        return Estimate(np.asarray(mean), np.asarray(cov))


def simulated(case: Draw, num_paths: int) -> tuple[Estimate, Estimate]:
    """Two independent estimates of the same by simulation, from half of the paths each; at least
    256 paths in all.
    """
    chunks = max(num_paths // (4 * CHUNK), 2)
    with jax.enable_x64(True):
        return referee(
            case.kernel,
            case.trajectory,
            jnp.asarray(case.points),
            chunks,
            jax.random.key(case.seed),
        )


@dataclasses.dataclass(frozen=True)
class Difference:
    """Of a closure from two independent estimates of the truth, by one measure.

    Args:
        closure, measure: which.
        error: mean distance from their average; chance is part of it.
        chance: the same that chance alone would give: half the distance between the estimates.
        square: of the error without chance, unbiased (so it may be negative): ⟨c − a, c − b⟩. (The
            cloud's covariance is quadratic in the means: its estimates are too large by the square
            of the simulation's error of a mean, some 1e-5 mm², which is let be.)
    """

    closure: str
    measure: str
    error: float
    chance: float
    square: float


def differences(case: Draw, num_paths: int) -> tuple[Difference, ...]:
    """Every closure by every measure, against one simulation."""
    halves = simulated(case, num_paths)
    return tuple(
        difference(closure, measure, closed, halves)
        for closure, closed in ((name, closed_moments(case, name)) for name in CLOSURES)
        for measure in MEASURES
    )


def difference(
    closure: str, measure: Measure, closed: Estimate, halves: tuple[Estimate, Estimate]
) -> Difference:
    """Compare what a closure gives with the two halves of a simulation."""
    c, a, b = (measure.features(part.mean, part.covariance) for part in (closed, *halves))
    with np.errstate(over="ignore", invalid="ignore"):  # a closure may diverge, which is a result
        error, chance = (
            float(np.linalg.norm(part, axis=1).mean()) for part in (c - (a + b) / 2, (a - b) / 2)
        )
        return Difference(
            closure, measure.name, error, chance, float(np.sum((c - a) * (c - b), axis=1).mean())
        )


# ------------------------------------------------------------------------------------------- tables


@dataclasses.dataclass(frozen=True)
class ClosureRow:
    """One closure by one measure over all experiments of one shape and length scale.

    Args:
        error, standard_error: mean over the experiments; chance is part of it.
        median_error: the median over the experiments, which the few in which a closure diverges do
            not move.
        simulation_error: what chance alone gives.
        resolved, resolved_low, resolved_high: root mean square without chance, and its 95 %
            interval.
        below_resolution: whether chance explains the error: the interval holds zero, and the error
            is about the simulation's own (a few huge errors alone make an interval that holds zero,
            too).
        paper: what the paper reports; None for other length scales.
        times_smaller: paper / error.
    """

    shape: str
    length_scale_mm: float
    closure: str
    measure: str
    unit: str
    error: float
    standard_error: float
    median_error: float
    simulation_error: float
    resolved: float
    resolved_low: float
    resolved_high: float
    below_resolution: bool
    paper: float | None
    times_smaller: float | None


def closure_row(
    shape: str, scale: float, measure: Measure, found: Sequence[Difference]
) -> ClosureRow:
    """Average over experiments; the error of an average is its standard deviation over √(number)."""
    error, chance, square = (
        np.array([getattr(f, name) for f in found]) for name in ("error", "chance", "square")
    )
    with np.errstate(over="ignore", invalid="ignore"):
        middle, reach = (
            square.mean(),
            _standard_error(square) * student.ppf((1 + CONFIDENCE) / 2, len(square) - 1),
        )
        rms, low, high = (
            float(np.sqrt(max(value, 0))) for value in (middle, middle - reach, middle + reach)
        )
        standard = _standard_error(error)
    paper = measure.paper_at(scale)
    return ClosureRow(
        shape,
        scale,
        found[0].closure,
        measure.name,
        measure.unit,
        float(error.mean()),
        standard,
        float(np.median(error)),
        float(chance.mean()),
        rms,
        low,
        high,
        below_resolution=bool(low == 0 and error.mean() <= DROWNED * chance.mean()),
        paper=paper,
        times_smaller=None if paper is None else float(paper / error.mean()),
    )


def _standard_error(values: np.ndarray) -> float:
    return float(np.std(values, ddof=1) / np.sqrt(len(values)))


@dataclasses.dataclass(frozen=True)
class CurveRow:
    """Plain Euler–Maruyama with this many paths: its difference from the paper's closure, and from
    the truth.
    """

    shape: str
    length_scale_mm: float
    measure: str
    unit: str
    num_paths: int
    from_ll: float
    from_truth: float
    paper: float | None


def curve_rows(settings: Settings, shape: str, scale: float) -> Iterator[CurveRow]:
    """What one would report who compares `ll` with a plain simulation of ever more paths."""
    samples = [
        sample
        for i in range(settings.num_curve_experiments)
        for sample in _samples(settings, shape, scale, i)
    ]
    for measure in MEASURES:
        for size in sorted({sample.num_paths for sample in samples}):
            pairs = [
                (measure.distance(s.moments, s.ll), measure.distance(s.moments, s.truth))
                for s in samples
                if s.num_paths == size
            ]
            from_ll, from_truth = (float(value) for value in np.mean(pairs, axis=0))
            yield CurveRow(
                shape,
                scale,
                measure.name,
                measure.unit,
                size,
                from_ll,
                from_truth,
                measure.paper_at(scale),
            )


@dataclasses.dataclass(frozen=True, eq=False)
class _Sample:
    num_paths: int
    moments: Estimate
    ll: Estimate
    truth: Estimate


def _samples(settings: Settings, shape: str, scale: float, number: int) -> Iterator[_Sample]:
    """Moments of a few separate samples of each size."""
    case = draw(settings, shape, scale, number)
    draws = simulate(
        case.kernel,
        case.points,
        case.momenta,
        num_paths=settings.num_curve_paths,
        num_steps=settings.num_steps,
        key=case.seed + 1,
    )
    a, b = simulated(case, settings.num_paths)
    truth, ll = (
        Estimate((a.mean + b.mean) / 2, (a.covariance + b.covariance) / 2),
        closed_moments(case, "ll"),
    )
    for size in CURVE_SIZES:
        for start in range(0, len(draws) - size + 1, size)[:8]:
            yield _Sample(size, sample_moments(draws[start : start + size]), ll, truth)


def sample_moments(draws: np.ndarray) -> Estimate:
    """Mean and covariance of (s, n, d) draws."""
    _, n, d = draws.shape
    return Estimate(draws.mean(axis=0), np.cov(draws.reshape(len(draws), -1).T).reshape(n, d, n, d))


# ----------------------------------------------------------------------------------- the experiment


def moments(settings: Settings = FULL, tell: Tell = silent, processes: int = 1) -> Experiment:
    """Run all experiments, and compare with the paper's figures.

    Args:
        settings: what is run.
        tell: told what begins and how far it is.
        processes: over how many the experiments are spread. More than one start Python anew, which
            a script must allow by `if __name__ == "__main__":`; the numbers do not depend on it.
    """
    rows = tuple(_closure_rows(settings, processes, tell("moments: simulations against closures")))
    curve = tuple(_all_curves(settings, tell("moments: plain simulations of ever more paths")))
    plates = (
        Plate("moments_errors", figures.closure_errors(rows)),
        Plate("moments_paths", figures.errors_against_paths(curve, rows)),
        Plate(
            "moments_arrivals",
            figures.arrivals([_arrivals(settings, s) for s in settings.length_scales_mm]),
        ),
    )
    tables = (Table("moments", rows), Table("moments_paths", curve))
    return Experiment("moments", settings, tables, plates, tuple(_findings(settings, rows, curve)))


def _groups(settings: Settings) -> list[tuple[str, float]]:
    return [(shape, scale) for shape in SHAPES for scale in settings.length_scales_mm]


def _closure_rows(settings: Settings, processes: int, progress: Progress) -> Iterator[ClosureRow]:
    """Every shape and length scale, each with all its experiments."""
    groups = _groups(settings)
    jobs = [
        (settings, *group, number) for group in groups for number in range(settings.num_experiments)
    ]
    with _workers(processes) as spread:
        results = spread(_run, jobs)
        for i, (shape, scale) in enumerate(groups):
            found: list[Difference] = []
            for number, result in enumerate(itertools.islice(results, settings.num_experiments)):
                found += result
                progress((i * settings.num_experiments + number + 1) / len(jobs))
            for closure, measure in itertools.product(CLOSURES, MEASURES):
                mine = [f for f in found if (f.closure, f.measure) == (closure, measure.name)]
                yield closure_row(shape, scale, measure, mine)


def _run(job: tuple[Settings, str, float, int]) -> tuple[Difference, ...]:
    return differences(draw(*job), job[0].num_paths)


@contextlib.contextmanager
def _workers(processes: int) -> Iterator[Callable[..., Iterator[Any]]]:
    """A `map` over processes; never threads, in which XLA's compiled programs wait for each other
    for ever.
    """
    if processes == 1:
        yield map
        return
    context = multiprocessing.get_context("spawn")  # a forked process would inherit XLA's locks
    pool = concurrent.futures.ProcessPoolExecutor(processes, context, _end_with_parent)
    try:
        yield pool.map
    finally:
        pool.shutdown(cancel_futures=True)


def _end_with_parent() -> None:
    """However the parent ends, killed perhaps, its workers do not stay behind."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _all_curves(settings: Settings, progress: Progress) -> Iterator[CurveRow]:
    groups = _groups(settings)
    for i, (shape, scale) in enumerate(groups):
        yield from curve_rows(settings, shape, scale)
        progress((i + 1) / len(groups))


def _arrivals(settings: Settings, scale: float) -> figures.Arrivals:
    """One experiment of this length scale to look at."""
    case = draw(settings, "circle", scale, 0)
    draws = simulate(
        case.kernel,
        case.points,
        case.momenta,
        num_paths=400,
        num_steps=settings.num_steps,
        key=case.seed,
    )
    ll, gaussian = (closed_moments(case, name) for name in ("ll", "gaussian"))
    return figures.Arrivals(
        scale, case.points, draws, (ll.mean, ll.covariance), (gaussian.mean, gaussian.covariance)
    )


# ----------------------------------------------------------------------------------------- in words


def _findings(
    settings: Settings, rows: Sequence[ClosureRow], curve: Sequence[CurveRow]
) -> Iterator[str]:
    yield from _against_the_paper(
        [r for r in rows if r.closure == "gaussian" and r.times_smaller is not None]
    )
    yield from _about_ll(rows)
    for closure, scale in sorted(
        {(r.closure, r.length_scale_mm) for r in rows if not r.error < WILD_MM}
    ):
        yield f"`{closure}` diverges in some experiments at σ = {scale:g} mm: it expands beyond the kernel's reach."
    yield from _about_paths(curve)
    sizes = [
        float(np.linalg.norm(np.cov(make(settings.num_landmarks, settings.radius_mm).T, bias=True)))
        for make in SHAPES.values()
    ]
    yield (
        f"The 2×2 covariance of the landmarks' places has Frobenius norm {sizes[0]:.1f} mm² (circle) and "
        f"{sizes[1]:.1f} mm² (flower); the paper compares its differences with an “original variance of the points 74”."
    )


def _against_the_paper(ours: Sequence[ClosureRow]) -> Iterator[str]:
    headline = [row for row in ours if row.measure in ("arrival", "point covariance")]
    rest = [row for row in headline if (row.times_smaller or 0) < 5]
    drowned = sum(row.below_resolution for row in rest)
    others = (
        f"; of the other {len(rest)}, {drowned} are below what the simulation resolves"
        if rest
        else ""
    )
    yield (
        f"`gaussian` is at least five times closer to the simulation than the paper's figure in "
        f"{len(headline) - len(rest)} of {len(headline)} comparisons of means and point covariances{others}."
    )
    least = [
        min(
            (r for r in ours if r.measure == m.name),
            key=lambda r: r.times_smaller or 0,
            default=None,
        )
        for m in MEASURES
    ]
    said = (
        f"{r.times_smaller:.2g} ({r.measure}, {r.shape}, σ = {r.length_scale_mm:g} mm)"
        for r in least
        if r
    )
    yield f"The smallest factors, chance included: {', '.join(said)}."


def _about_ll(rows: Sequence[ClosureRow]) -> Iterator[str]:
    pick = {(r.shape, r.length_scale_mm, r.closure, r.measure): r for r in rows}
    groups = sorted({(r.shape, r.length_scale_mm) for r in rows})
    median = lambda group, closure, name: pick[*group, closure, name].median_error
    worse = sum(
        median(g, "ll", "point covariance") > 1.01 * median(g, "frozen", "point covariance")
        for g in groups
    )
    ratios = [median(g, "ll", "arrival") / median(g, "gaussian", "arrival") for g in groups]
    yield (
        f"`ll`, the paper's closure, has the mean of `frozen`, {min(ratios):.0f} to {max(ratios):.0f} times further "
        f"from the simulation than `gaussian`'s; its point covariance is further off than that of `frozen` in {worse} "
        f"of {len(groups)} cases (medians)."
    )
    for name in ("arrival", "joint covariance", "cloud covariance"):
        said = ", ".join(
            f"{r.median_error / r.paper:.2g} ({r.shape}, σ = {r.length_scale_mm:g} mm)"
            for g in groups
            if (r := pick[*g, "ll", name]).paper
        )
        if said:
            yield f"The {name} error of `ll` itself (median), whatever the number of paths, over the paper's: {said}."


def _about_paths(curve: Sequence[CurveRow]) -> Iterator[str]:
    """How many paths would make the paper's figure by chance alone: chance falls as 1/√paths."""
    longest = max(row.num_paths for row in curve)
    for name in ("arrival", "joint covariance", "cloud covariance"):
        found: dict[float, list[float]] = {}
        for row in curve:
            if row.paper is not None and (row.num_paths, row.measure) == (longest, name):
                found.setdefault(row.length_scale_mm, []).append(
                    longest * (row.from_truth / row.paper) ** 2
                )
        needed = {scale: float(np.mean(counts)) for scale, counts in found.items()}
        said = ", ".join(
            f"{_paths_in_words(count)} (σ = {scale:g} mm)" for scale, count in needed.items()
        )
        alike = len(needed) < 2 or max(needed.values()) < 10 * min(needed.values())
        verdict = (
            "about the same number gives them all"
            if alike
            else "no one number of paths gives them all"
        )
        if needed:
            yield f"Chance alone, without any bias, gives the paper's {name} with this many paths: {said}; {verdict}."


def _paths_in_words(count: float) -> str:
    """A number of paths to two digits."""
    return "less than one" if count < 1 else f"{int(float(f'{count:.2g}')):,}"
