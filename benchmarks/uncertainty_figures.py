"""The plots of docs/uncertainty.md: what the uncertainty is and is not, each on generated data with
known truth.

Unless a plot says otherwise: 15 landmarks in a cube of 90 mm, a truth drawn from the prior with σ =
30 mm and a = 6 mm, noise 1 mm. Two plots show what `calibration.py` found: they need its file.

    python benchmarks/uncertainty_figures.py --out docs/uncertainty [--calibration calibration.csv]
    [--only folding]
"""

import argparse
import dataclasses
import functools
import io
import itertools
import pathlib
import time
import warnings
from collections.abc import Callable, Sequence

import calibration
import numpy as np
from calibration import Draw, Row
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image
from scipy.stats import chi2

import kunita
from kunita.cohort.prior import Lesson, learn_prior
from kunita.data.case import Case
from kunita.data.landmarks import Landmarks
from kunita.errors import KunitaWarning
from kunita.figures import style
from kunita.fitting import OVERCONFIDENT
from kunita.record import Registration
from kunita.scores import LEVELS

SIDE_MM, LENGTH_SCALE, AMPLITUDE, NOISE_MM = 90.0, 30.0, 6.0, 1.0
TRUTH = kunita.Gaussian(LENGTH_SCALE, AMPLITUDE)

NUM_QUERIES = 16

LEAST_SIMULATIONS = 10
"""With fewer a cell has no standard error to speak of."""

BLUE, RED, GREEN = style.COLOURS[1:4]


# ------------------------------------------------------------------------------------ data and fits


def case(
    seed: int, n: int = 15, d: int = 3, reach: float = 0.0, kernel: kunita.Gaussian = TRUTH
) -> Draw:
    """Landmarks in the cube and queries up to `reach` mm outside it, with a truth from the prior."""
    rng = np.random.default_rng([seed, n, d])
    start = rng.uniform(0, SIDE_MM, (n, d))
    points = np.concatenate([start, rng.uniform(-reach, SIDE_MM + reach, (NUM_QUERIES, d))])
    truth = kunita.simulate(
        kernel, start, np.zeros_like(start), points, 1, 200, int(rng.integers(2**31))
    )[0]
    return Draw(start, truth[:n] + NOISE_MM * rng.normal(size=start.shape), points, truth)


def fit(made: Draw, length_scale: float = LENGTH_SCALE, noise: float = NOISE_MM) -> Registration:
    """The registration of a case with these parameters, the amplitude being the true one."""
    kernel = kunita.Gaussian(length_scale, AMPLITUDE)
    return kunita.register(made.moving, made.fixed, kernel=kernel, noise=noise, align="none")


def judged(made: Draw, reg: Registration) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of all points, landmarks first: true error and 95 % radius, mm, and whether the 95 % region
    holds the truth.
    """
    found = reg.posterior.predict(made.points)
    missed = made.truth - found.mean
    squared = np.sum(missed * np.linalg.solve(found.covariance, missed[..., None])[..., 0], axis=1)
    return (
        np.linalg.norm(missed, axis=1),
        found.radius(0.95),
        squared <= chi2.ppf(0.95, missed.shape[1]),
    )


def shares(held: Sequence[np.ndarray]) -> tuple[float, float]:
    """Coverage, %, and twice its standard error, a case being what is counted."""
    each = 100 * np.array([np.mean(one) for one in held])
    return float(each.mean()), float(2 * each.std(ddof=1) / np.sqrt(len(each)))


def panel(title: str = "", width: float = 4.2) -> tuple[Figure, Axes]:
    """A figure of one panel."""
    figure = Figure(figsize=(width, 2.7), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title)
    return figure, axes


def claimed(axes: Axes, level: float = 95.0) -> None:
    """The line on which an honest region lies."""
    axes.axhline(level, color="0.5", lw=0.9, zorder=0)
    axes.set_ylabel("true points inside the 95 % region (%)")


# ---------------------------------------------------------------------------------------- the plots


@style.styled
def residual(cases: int = 20) -> Figure:
    """Fit residual, leave-one-out error and true error against the length scale that is assumed."""
    factors = np.array([0.2, 0.35, 0.6, 1.0, 1.6, 2.5, 4.0])
    means = np.zeros((3, len(factors)))
    for (k, factor), seed in itertools.product(enumerate(factors), range(cases)):
        made = case(seed)
        reg = fit(made, factor * LENGTH_SCALE)
        left = np.linalg.norm(made.fixed - reg.posterior.predict(made.moving).mean, axis=1)
        means[:, k] += [
            left.mean(),
            reg.posterior.leave_one_out().error.mean(),
            judged(made, reg)[0][15:].mean(),
        ]
    figure, axes = panel()
    names = ("fit residual (FRE)", "leave-one-out error", "true error elsewhere (TRE)")
    for row, name, colour, marker in zip(
        means / cases, names, (RED, GREEN, BLUE), style.MARKERS, strict=False
    ):
        axes.semilogx(factors * LENGTH_SCALE, row, color=colour, marker=marker, label=name)
    axes.axvline(LENGTH_SCALE, color="0.5", lw=0.9, zorder=0)
    axes.set(
        xlabel="assumed length scale (mm); the true one is 30 mm",
        ylabel="mean distance (mm)",
        ylim=(0, None),
    )
    axes.set_xticks(
        factors * LENGTH_SCALE, [f"{factor * LENGTH_SCALE:g}" for factor in factors], minor=False
    )
    axes.minorticks_off()
    axes.legend()
    return figure


@style.styled
def distance(cases: int = 60) -> Figure:
    """True errors and the 95 % radius against the distance from the nearest landmark."""
    parts = []
    for seed in range(cases):
        made = case(seed, reach=0.6 * SIDE_MM)
        errors, radii, _ = judged(made, fit(made))
        apart = (
            np.linalg.norm(made.points[15:, None] - made.moving, axis=2).min(axis=1) / LENGTH_SCALE
        )
        parts.append(np.stack([apart, errors[15:], radii[15:]]))
    far, error, radius = np.concatenate(parts, axis=1)
    order = np.argsort(far)
    figure, axes = panel()
    inside = error <= radius
    axes.plot(
        far[inside],
        error[inside],
        ".",
        color=BLUE,
        ms=3,
        alpha=0.5,
        label="true error, within its radius",
    )
    axes.plot(
        far[~inside], error[~inside], "x", color=RED, ms=4, label="true error, beyond its radius"
    )
    smooth = np.array([np.mean(part) for part in np.array_split(radius[order], 20)])
    where = np.array([np.mean(part) for part in np.array_split(far[order], 20)])
    axes.plot(where, smooth, color="k", lw=1.6, label="95 % radius (mean)")
    axes.set(
        xlabel="distance from the nearest landmark (length scales)",
        ylabel="mm",
        xlim=(0, 3.5),
        ylim=(0, 34),
    )
    axes.legend(
        loc="upper left",
        title=f"{100 * inside.mean():.0f} % within their radius",
        title_fontsize=7.5,
    )
    return figure


@style.styled
def wrong_prior(cases: int = 60) -> Figure:
    """Coverage away from landmarks and at them against the length scale that is assumed."""
    factors = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
    figure, axes = panel()
    held = [
        [judged(made := case(seed), fit(made, f * LENGTH_SCALE))[2] for seed in range(cases)]
        for f in factors
    ]
    draw_held(axes, factors, held)
    axes.set(xlabel="assumed length scale / true length scale", xscale="log", ylim=(None, 101))
    axes.set_xticks(factors, [f"{factor:g}" for factor in factors], minor=False)
    axes.minorticks_off()
    return figure


@style.styled
def wrong_noise(cases: int = 60) -> Figure:
    """The same against the noise that is assumed."""
    factors = (0.3, 0.5, 2**-0.5, 1.0, 1.5, 2.0, 3.0)
    figure, axes = panel()
    held = [
        [judged(made := case(seed), fit(made, noise=f * NOISE_MM))[2] for seed in range(cases)]
        for f in factors
    ]
    draw_held(axes, factors, held)
    axes.axvline(2**-0.5, color="0.5", ls=":", lw=0.9, zorder=0)
    axes.text(2**-0.5, 57, " one side\n forgotten", fontsize=7, ha="left")
    axes.set(xlabel="assumed noise / true noise", xscale="log", ylim=(None, 101))
    axes.set_xticks(factors, ["0.3", "0.5", "0.71", "1", "1.5", "2", "3"], minor=False)
    axes.minorticks_off()
    return figure


def draw_held(
    axes: Axes, factors: Sequence[float], held: Sequence[Sequence[np.ndarray]], n: int = 15
) -> None:
    """Coverage away and at landmarks, with two standard errors."""
    places = (("away from landmarks", slice(n, None), BLUE), ("at landmarks", slice(n), RED))
    for (name, part, colour), marker in zip(places, style.MARKERS, strict=False):
        found = np.array([shares([one[part] for one in cases]) for cases in held])
        print(f"  {name}: " + ", ".join(f"{share:.1f}" for share in found[:, 0]))
        axes.errorbar(factors, *found.T, color=colour, marker=marker, elinewidth=0.8, label=name)
    claimed(axes)
    axes.legend(loc="lower center")


@style.styled
def parameters(cases: int = 100, taught: int = 10) -> Figure:
    """Coverage where the parameters are known, learned on other cases, or chosen by each case for
    itself.

    With a = 3 mm, where the small-deformation model is as good as the other: it makes hundreds of
    fits affordable.
    """
    truth, counts = kunita.Gaussian(LENGTH_SCALE, AMPLITUDE / 2), (5, 8, 15, 30)
    others = [as_case(case(1000 + i, kernel=truth), f"other-{i}") for i in range(taught)]
    prior = learn_prior(others, Lesson(model="small"))
    register = functools.partial(kunita.register, model="small")
    ways: tuple[tuple[str, Callable[[Draw], Registration]], ...] = (
        (
            "true parameters",
            lambda made: register(made.moving, made.fixed, kernel=truth, noise=NOISE_MM),
        ),
        (
            f"learned on {taught} other cases",
            lambda made: register(made.moving, made.fixed, prior=prior),
        ),
        ("chosen by the case's own evidence", lambda made: register(made.moving, made.fixed)),
    )
    figure, axes = panel()
    for (name, way), colour, marker in zip(ways, ("k", GREEN, RED), style.MARKERS, strict=False):
        held = [
            [judged(made := case(seed, n, kernel=truth), way(made))[2][n:] for seed in range(cases)]
            for n in counts
        ]
        found = np.array([shares(one) for one in held])
        print(f"  {name}: " + ", ".join(f"{share:.1f} ± {error:.1f} %" for share, error in found))
        axes.errorbar(counts, *found.T, color=colour, marker=marker, elinewidth=0.8, label=name)
    claimed(axes)
    axes.set(xlabel="landmarks of the case", xscale="log", ylim=(None, 101))
    axes.set_xticks(counts, [str(n) for n in counts], minor=False)
    axes.minorticks_off()
    axes.legend(loc="lower right")
    return figure


def as_case(made: Draw, name: str) -> Case:
    """A generated case as one of a cohort."""
    return Case(name, Landmarks(made.moving), Landmarks(made.fixed))


@style.styled
def folding(side: int = 29) -> Figure:
    """The mean of a large deformation, which never folds, and a Gaussian draw around it, which
    does.
    """
    kernel, rng = kunita.Gaussian(LENGTH_SCALE, 0.6 * LENGTH_SCALE), np.random.default_rng(3)
    start = rng.uniform(0, SIDE_MM, (15, 2))
    fixed = kunita.simulate(kernel, start, np.zeros_like(start), num_paths=1, num_steps=200, key=3)[
        0
    ]
    reg = kunita.register(start, fixed, kernel=kernel, noise=NOISE_MM, align="none")
    axis = np.linspace(-0.3 * SIDE_MM, 1.3 * SIDE_MM, side)
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
    figure = Figure(figsize=(5.6, 2.9), layout="constrained")
    pictures = (
        ("the mean", reg.posterior.predict(grid).mean),
        ("one draw", reg.posterior.sample(grid, 1, key=0)[0]),
    )
    for axes, (name, points) in zip(
        figure.subplots(1, 2, sharex=True, sharey=True), pictures, strict=True
    ):
        draw_grid(axes, name, points.reshape(side, side, 2))
        axes.plot(*np.asarray(fixed).T, "o", color="k", ms=3)
    return figure


def draw_grid(axes: Axes, name: str, points: np.ndarray) -> None:
    """A deformed grid, its folded cells filled."""
    for line in (*points, *points.swapaxes(0, 1)):
        axes.plot(*line.T, color=BLUE, lw=0.5, zorder=1)
    along, across = points[1:, :-1] - points[:-1, :-1], points[:-1, 1:] - points[:-1, :-1]
    folded = np.argwhere(along[..., 0] * across[..., 1] - along[..., 1] * across[..., 0] <= 0)
    for i, j in folded:
        axes.fill(*points[[i, i + 1, i + 1, i], [j, j, j + 1, j + 1]].T, color=RED, zorder=2)
    axes.set(
        title=f"{name}: {len(folded)} of {(len(points) - 1) ** 2} cells fold",
        aspect="equal",
        xticks=[],
        yticks=[],
    )


@style.styled
def undetermined(angle: float = 10.0) -> Figure:
    """Spread-out and collinear landmarks of a rigid motion: error and radius with the distance from
    them.
    """
    turn = np.radians(angle)
    rotation = np.array(
        [[np.cos(turn), -np.sin(turn), 0], [np.sin(turn), np.cos(turn), 0], [0, 0, 1]]
    )
    spread = np.random.default_rng(0).uniform(-45, 45, (15, 3))
    line = np.linspace(-45, 45, 15)[:, None] * np.array([0.0, 0.0, 1.0])
    away = np.linspace(0, 60, 40)[:, None] * np.array([1.0, 0.0, 0.0])
    figure = Figure(figsize=(5.6, 2.6), layout="constrained")
    for axes, (name, x) in zip(
        figure.subplots(1, 2, sharey=True),
        (("spread out", spread), ("on a line", line)),
        strict=True,
    ):
        noise = 0.5 * np.random.default_rng(1).normal(size=x.shape)
        reg = kunita.register(
            x, x @ rotation.T + noise, kernel=kunita.Gaussian(LENGTH_SCALE, 1.0), noise=0.5
        )
        found = reg.posterior.predict(away)
        axes.plot(away[:, 0], found.radius(0.95), color="k", lw=1.6, label="95 % radius")
        missed = np.linalg.norm(found.mean - away @ rotation.T, axis=1)
        axes.plot(away[:, 0], missed, color=RED, ls="--", label="true error")
        axes.set(title=f"landmarks {name}", xlabel="distance from the middle (mm)")
    figure.axes[0].set_ylabel("mm")
    figure.axes[0].legend()
    return figure


@style.styled
def wrong_pair(cases: int = 60) -> Figure:
    """One landmark marked wrongly by so many mm: coverage of the points near it, and how often it
    is suspected.
    """
    sizes = (0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 15.0)
    held, named = [], []
    for size in sizes:
        near, accused = zip(*(misled(case(seed), size, seed) for seed in range(cases)), strict=True)
        held.append(100 * np.mean(np.concatenate(near)))
        named.append(100 * np.mean(accused))
    figure, axes = panel()
    axes.plot(
        sizes, held, color=BLUE, marker="o", label="true points near it inside the 95 % region"
    )
    axes.plot(sizes, named, color=RED, marker="s", ls="--", label="named a suspect")
    axes.axhline(95, color="0.5", lw=0.9, zorder=0)
    axes.set(xlabel="error of one mark (mm)", ylabel="%", ylim=(-3, 103))
    axes.legend(loc="upper right", bbox_to_anchor=(1.0, 0.93))
    return figure


def misled(made: Draw, size: float, seed: int) -> tuple[np.ndarray, bool]:
    """Whether regions within σ of the first landmark hold the truth once it is marked wrongly, and
    if it is named.
    """
    direction = np.random.default_rng([seed, 9]).normal(size=3)
    fixed = made.fixed.copy()
    fixed[0] += size * direction / np.linalg.norm(direction)
    reg = fit(dataclasses.replace(made, fixed=fixed))
    near = np.linalg.norm(made.points - made.moving[0], axis=1) < LENGTH_SCALE
    return judged(made, reg)[2][near], bool(reg.suspicion.suspect[0])


# -------------------------------------------------------------- the plots of the calibration's file


@style.styled
def too_sure(rows: Sequence[Row]) -> Figure:
    """Coverage of the 95 % region away from landmarks against a/σ, for each number of landmarks and
    dimension.
    """
    figure = Figure(figsize=(5.6, 2.7), layout="constrained")
    for axes, d in zip(figure.subplots(1, 2, sharey=True), (2, 3), strict=True):
        for n, colour, marker in zip((5, 15, 40), style.COLOURS[1:], style.MARKERS, strict=False):
            ratios, held, error = held_95(
                [row for row in rows if (row.dimension, row.landmarks) == (d, n)]
            )
            axes.errorbar(
                ratios,
                held,
                error,
                color=colour,
                marker=marker,
                elinewidth=0.8,
                label=f"{n} landmarks",
            )
        axes.axhline(95, color="0.5", lw=0.9, zorder=0)
        axes.axvspan(OVERCONFIDENT, 1.05, color="0.5", alpha=0.15, lw=0)
        axes.set(
            title=f"{d}-D", xlabel="amplitude / length scale", xlim=(0.05, 1.05), ylim=(75, 100)
        )
    figure.axes[0].set_ylabel("true points inside the 95 % region (%)")
    figure.axes[0].legend(loc="lower left", title="shaded: the summary warns", title_fontsize=7.5)
    return figure


def held_95(rows: Sequence[Row]) -> tuple[np.ndarray, ...]:
    """Ratios a/σ, coverage away from landmarks and two standard errors, where there are simulations
    enough for them.
    """
    ratios, k = sorted({row.ratio for row in rows}), LEVELS.index(0.95)
    found = [
        (r, calibration.coverage(calibration.select(rows, "endpoint", "query", r))) for r in ratios
    ]
    told = [
        (r, one.held[k], 2 * one.error[k])
        for r, one in found
        if one.simulations >= LEAST_SIMULATIONS
    ]
    return tuple(np.array(told).reshape(-1, 3).T)


PLOTS: tuple[Callable[[], Figure], ...] = (
    residual, distance, wrong_prior, wrong_noise, parameters, folding, undetermined, wrong_pair,
)  # fmt: skip


def save(figure: Figure, path: pathlib.Path) -> None:
    """As a PNG of 200 colours, which is small and loses nothing that can be seen."""
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=160)
    Image.open(drawn).convert("RGB").quantize(200, Image.Quantize.MAXCOVERAGE).save(
        path, optimize=True
    )


def main() -> None:
    """Draw what is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=pathlib.Path, required=True, metavar="DIR")
    parser.add_argument(
        "--calibration", type=pathlib.Path, metavar="FILE.csv", help="what calibration.py wrote"
    )
    parser.add_argument("--only", nargs="+", choices=[plot.__name__ for plot in PLOTS])
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", KunitaWarning)
    plots = {
        plot.__name__: plot
        for plot in PLOTS
        if arguments.only is None or plot.__name__ in arguments.only
    }
    if arguments.calibration:
        rows = calibration.read_rows(arguments.calibration)
        plots |= {"calibration": lambda: calibration.plot(rows), "too_sure": lambda: too_sure(rows)}
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, plot in plots.items():
        began = time.perf_counter()
        save(plot(), arguments.out / f"{name}.png")
        print(f"{name}: {time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
