"""Calibration under the model: do the regions hold as many true points as they say, where the model
is true?

Truths are drawn from the Brownian flow itself, landmarks and query points jointly (Euler–Maruyama),
and fitted with the true kernel and noise, without alignment: whatever is then wrong is the
linearisation's doing. Landmarks and queries are uniform in a box of side 3σ, the noise is 0.1a. At
the landmarks the question is whether the region around the predicted mean holds the landmark's
true, noise-free place; away from them, whether it holds the query's. The small-deformation model is
fitted to the same draws. A fit that did not converge counts as any other, and again in a column of
its own.

Every cell (dimension, landmarks, a/σ) has its own seeds; the file grows simulation by simulation,
and a run that was stopped goes on where it was when the command is given again (one file for one
seed and number of Euler steps).

    python benchmarks/calibration.py --out calibration.csv                                   # a/σ ≤
    0.3, ±2 points python benchmarks/calibration.py --out calibration.csv --ratios 0.45 0.6 0.8 1
    --simulations 60 python benchmarks/calibration.py --out calibration.csv --simulations 0 --plot
    calibration.png
"""

import argparse
import csv
import dataclasses
import itertools
import pathlib
import time
from collections.abc import Iterator, Sequence

import jax
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import chi2

import kunita
from kunita.figures import style
from kunita.inference import solve, trend
from kunita.inference.problem import Problem
from kunita.io.writing import complete
from kunita.observations.landmarks import LandmarkObservations
from kunita.posterior import posterior_from_fit
from kunita.scores import LEVELS

SIDE = 3.0
"""Of the box, in length scales."""

NOISE = 0.1
"""Standard deviation of the localisation noise, in amplitudes."""

QUERIES = 10
"""Points away from the landmarks, per simulation."""

TRUE_STEPS = 200
"""Euler steps of a truth. The coverage does not depend on them: see `--steps`."""

HONEST_UP_TO, ALLOWED = 0.3, 2.0
"""Up to this a/σ, coverage is to be within so many percentage points of what is claimed."""

PLACES = {"landmark": "at landmarks", "query": "away from landmarks"}
MODELS = ("endpoint", "small")
NAMES = {"endpoint": "endpoint (the default)", "small": "small deformation"}


@dataclasses.dataclass(frozen=True)
class Cell:
    """One setting of the experiment; the length scale is 1."""

    dimension: int
    landmarks: int
    ratio: float


@dataclasses.dataclass(frozen=True, eq=False)
class Draw:
    """Landmarks, where they were seen, and where they and the queries truly went: rows of `points`,
    landmarks first.
    """

    moving: np.ndarray
    fixed: np.ndarray
    points: np.ndarray
    truth: np.ndarray


@dataclasses.dataclass(frozen=True)
class Row:
    """One point of one simulation: what a line of the file holds. Lengths are in length scales."""

    dimension: int
    landmarks: int
    ratio: float
    simulation: int
    model: str
    place: str
    converged: bool
    error: float
    squared: float


FIELDS = tuple(field.name for field in dataclasses.fields(Row))


# ----------------------------------------------------------------------------------- one simulation


def draw(cell: Cell, simulation: int, seed: int = 0, steps: int = TRUE_STEPS) -> Draw:
    """A truth from the prior, and what was seen of it."""
    rng = np.random.default_rng(
        [seed, cell.dimension, cell.landmarks, round(1000 * cell.ratio), simulation]
    )
    points = rng.uniform(0, SIDE, (cell.landmarks + QUERIES, cell.dimension))
    kernel, key = kunita.Gaussian(1.0, cell.ratio), int(rng.integers(2**31))
    start = points[: cell.landmarks]
    truth = kunita.simulate(kernel, start, np.zeros_like(start), points, 1, steps, key=key)[0]
    noise = NOISE * cell.ratio * rng.normal(size=start.shape)
    return Draw(start, truth[: cell.landmarks] + noise, points, truth)


def fitted(
    cell: Cell, made: Draw, model: str, kernel: kunita.Gaussian | None = None
) -> tuple[np.ndarray, ...]:
    """Distances and squared standardised errors of all points under the fit, and whether it
    converged.

    With the true kernel, unless another is given.
    """
    n, d = made.moving.shape
    kernel = kunita.Gaussian(1.0, cell.ratio) if kernel is None else kernel
    noise = np.broadcast_to((NOISE * cell.ratio) ** 2 * np.eye(d), (n, d, d))
    with jax.enable_x64(True):
        stay = trend.Alignment(np.zeros(d), np.eye(d), np.zeros(d))
        observed = LandmarkObservations(made.moving, made.fixed, noise, np.zeros_like(noise))
        none, _ = trend.determined_trend("none", made.moving)
        fit = solve.solve_model(Problem(kernel, observed, none), stay, model=model)
        found = posterior_from_fit(fit, np.zeros(d), model).predict(made.points)
    missed = made.truth - found.mean
    squared = np.sum(missed * np.linalg.solve(found.covariance, missed[..., None])[..., 0], axis=1)
    return np.linalg.norm(missed, axis=1), squared, np.array(fit.converged)


def rows_of(cell: Cell, simulation: int, seed: int, steps: int) -> Iterator[Row]:
    """Both models on one draw."""
    made = draw(cell, simulation, seed, steps)
    places = ["landmark"] * cell.landmarks + ["query"] * QUERIES
    for model in MODELS:
        errors, squared, converged = fitted(cell, made, model)
        for place, error, square in zip(places, errors, squared, strict=True):
            yield Row(
                cell.dimension, cell.landmarks, cell.ratio, simulation, model, place, bool(converged),
                round(float(error), 6), round(float(square), 5),
            )  # fmt: skip


# ----------------------------------------------------------------------------------------- the file


def read_rows(path: pathlib.Path) -> list[Row]:
    """Every complete simulation of the file; of one that was cut short, nothing."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    rows = [
        Row(
            int(line["dimension"]), int(line["landmarks"]), float(line["ratio"]), int(line["simulation"]),
            line["model"], line["place"], line["converged"] == "True", float(line["error"]), float(line["squared"]),
        )
        for line in csv.DictReader(text[: text.rfind("\n")].splitlines())
    ]  # fmt: skip
    whole = lambda group: len(group) == len(MODELS) * (group[0].landmarks + QUERIES)
    simulations = [list(group) for _, group in itertools.groupby(rows, key=simulation_of)]
    return [row for group in simulations if whole(group) for row in group]


def simulation_of(row: Row) -> tuple[Cell, int]:
    """Which simulation a row belongs to."""
    return Cell(row.dimension, row.landmarks, row.ratio), row.simulation


def write_rows(path: pathlib.Path, rows: Sequence[Row], *, append: bool) -> None:
    """Add rows to the file, or begin it with them."""
    with path.open("a" if append else "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        if not append:
            writer.writerow(FIELDS)
        writer.writerows([getattr(row, name) for name in FIELDS] for row in rows)


def run(path: pathlib.Path, cells: Sequence[Cell], arguments: argparse.Namespace) -> None:
    """Do the simulations that the file does not have yet; a cell ends early when its minutes are
    used up.
    """
    before = read_rows(path)
    with complete(path, overwrite=True) as partial:
        write_rows(partial, before, append=False)
    done = {simulation_of(row) for row in before}
    for cell in cells:
        began, count = time.perf_counter(), 0
        for simulation in range(arguments.simulations):
            if time.perf_counter() - began > 60 * arguments.minutes:
                break
            if (cell, simulation) not in done:
                write_rows(
                    path,
                    list(rows_of(cell, simulation, arguments.seed, arguments.steps)),
                    append=True,
                )
                count += 1
        print(f"{cell}: {count} new simulations in {time.perf_counter() - began:.0f} s", flush=True)


# --------------------------------------------------------------------------------------- the scores


@dataclasses.dataclass(frozen=True, eq=False)
class Coverage:
    """Of some simulations: the share of true points in each region, %, and its standard error.

    The mean over simulations of the share within one: points of one simulation are right or wrong
    together, so that the simulations, not the points, are what is counted.
    """

    held: np.ndarray
    error: np.ndarray
    simulations: int
    lost: int
    held_converged: np.ndarray

    def deviation(self) -> np.ndarray:
        """In percentage points from what is claimed."""
        return self.held - 100 * np.array(LEVELS)


def coverage(rows: Sequence[Row]) -> Coverage:
    """Share of true points within the regions of `LEVELS`, clustered by simulation."""
    groups: dict[tuple[Cell, int], list[Row]] = {}
    for row in rows:
        groups.setdefault(simulation_of(row), []).append(row)
    d = np.array([cell.dimension for cell, _ in groups])
    limits = chi2.ppf(np.array(LEVELS), d[:, None])
    squared = [np.array([row.squared for row in group]) for group in groups.values()]
    shares = 100 * np.array(
        [np.mean(s[:, None] <= limit, axis=0) for s, limit in zip(squared, limits, strict=True)]
    )
    converged = np.array([group[0].converged for group in groups.values()])
    error = (
        shares.std(axis=0, ddof=1) / np.sqrt(len(shares))
        if len(shares) > 1
        else np.full(len(LEVELS), np.nan)
    )
    return Coverage(
        shares.mean(axis=0), error, len(shares), int((~converged).sum()), shares[converged].mean(axis=0),
    )  # fmt: skip


def select(
    rows: Sequence[Row], model: str, place: str, ratio: float, dimension: int | None = None
) -> list[Row]:
    """The rows of one line of the table; of both dimensions, where none is given."""
    wanted = (row for row in rows if (row.model, row.place, row.ratio) == (model, place, ratio))
    return [row for row in wanted if dimension in (None, row.dimension)]


def pit(rows: Sequence[Row]) -> np.ndarray:
    """What region each true point just falls into, as a probability: uniform where the regions are
    honest.
    """
    return chi2.cdf([row.squared for row in rows], [row.dimension for row in rows])


def print_table(rows: Sequence[Row]) -> None:
    """Coverage per model, ratio, dimension and place, all landmark counts together, the limit
    beside it.
    """
    names = (
        "model",
        "a/σ",
        "d",
        "place",
        "simulations",
        "not converged",
        *(f"{100 * level:g} %" for level in LEVELS),
    )
    print("| " + " | ".join((*names, "largest deviation", "limit")) + " |")
    print("|---" * (len(names) + 2) + "|")
    ratios, dimensions = (
        sorted({row.ratio for row in rows}),
        sorted({row.dimension for row in rows}),
    )
    for model, ratio, d, place in itertools.product(MODELS, ratios, dimensions, PLACES):
        chosen = select(rows, model, place, ratio, d)
        if chosen:
            print(table_line(model, ratio, d, place, coverage(chosen)))


def table_line(model: str, ratio: float, dimension: int, place: str, found: Coverage) -> str:
    """One line: coverage ± standard error, the largest deviation, and the limit on it where there
    is one.
    """
    shares = " | ".join(
        f"{held:.1f} ± {se:.1f}" for held, se in zip(found.held, found.error, strict=True)
    )
    worst = float(np.abs(found.deviation()).max())
    limit = f"≤ {ALLOWED:g}" if model == "endpoint" and ratio <= HONEST_UP_TO else "–"
    lost = str(found.lost)
    if found.lost:
        lost += f" (95 % without them: {found.held_converged[LEVELS.index(0.95)]:.1f})"
    head = f"| {model} | {ratio:g} | {dimension} | {PLACES[place]} | {found.simulations} | {lost}"
    return f"{head} | {shares} | {worst:.1f} | {limit} |"


# ----------------------------------------------------------------------------------------- the plot


@style.styled
def plot(rows: Sequence[Row]) -> Figure:
    """Coverage against a/σ away from landmarks and at them, both models; and the PIT."""
    figure = Figure(figsize=(style.PAGE_WIDTH, 2.6), layout="constrained")
    away, at, histogram = figure.subplots(1, 3)
    for axes, place in ((away, "query"), (at, "landmark")):
        draw_curves(axes, rows, place)
        axes.set(title=PLACES[place], xlabel="a/σ", ylim=(30, 101))
    away.set_ylabel("true points inside the region (%)")
    at.legend(loc="lower left", handlelength=2.6)
    draw_pit(histogram, rows)
    return figure


def draw_curves(axes: Axes, rows: Sequence[Row], place: str) -> None:
    """One line per model and level, claimed levels in grey."""
    ratios = sorted({row.ratio for row in rows})
    for model, dash, colour, marker in zip(
        MODELS, ("-", "--"), style.COLOURS[1:], style.MARKERS, strict=False
    ):
        found = [coverage(select(rows, model, place, ratio)) for ratio in ratios]
        for k in range(len(LEVELS)):
            held, error = [c.held[k] for c in found], [2 * c.error[k] for c in found]
            axes.errorbar(
                ratios, held, error, color=colour, ls=dash, marker=marker, ms=3, elinewidth=0.7,
                label=NAMES[model] if k == 0 else "_",
            )  # fmt: skip
    for level in LEVELS:
        axes.axhline(100 * level, color="0.6", lw=0.8, zorder=0)
    axes.set_yticks([100 * level for level in LEVELS])
    axes.grid(visible=False, axis="y")


def draw_pit(axes: Axes, rows: Sequence[Row]) -> None:
    """Histograms of the level at which a true point away from the landmarks enters its region."""
    ratios = sorted({row.ratio for row in rows})
    shown = [ratio for ratio in ratios if ratio in (0.3, ratios[-1])]
    for ratio, colour, dash in zip(shown, style.COLOURS[1:], style.DASHES, strict=False):
        share, edges = np.histogram(
            pit(select(rows, "endpoint", "query", ratio)), bins=10, range=(0, 1), density=True
        )
        axes.stairs(share, edges, color=colour, ls=dash, label=f"a/σ = {ratio:g}")
    axes.axhline(1, color="0.6", lw=0.8, zorder=0)
    axes.set(title="PIT, away from landmarks", xlabel="level of the region", ylim=(0, None))
    axes.set_ylabel("density (1 is honest)")
    axes.legend(loc="lower left")


def main() -> None:
    """Simulate what is missing, print the table, draw the plot."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ratios", type=float, nargs="+", default=[0.1, 0.2, 0.3], help="a/σ")
    parser.add_argument("--dims", type=int, nargs="+", default=[2, 3])
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=[5, 15, 40], help="numbers of landmarks"
    )
    parser.add_argument(
        "--simulations", type=int, default=240, help="per cell; 0: only read the file"
    )
    parser.add_argument("--minutes", type=float, default=np.inf, help="at most, per cell")
    parser.add_argument("--steps", type=int, default=TRUE_STEPS, help="Euler steps of a truth")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=pathlib.Path, required=True, metavar="FILE.csv")
    parser.add_argument("--plot", type=pathlib.Path, metavar="FILE.png")
    arguments = parser.parse_args()
    cells = [
        Cell(*cell) for cell in itertools.product(arguments.dims, arguments.sizes, arguments.ratios)
    ]
    run(arguments.out, cells, arguments)
    rows = read_rows(arguments.out)
    print_table(rows)
    if arguments.plot:
        plot(rows).savefig(arguments.plot, dpi=160)


if __name__ == "__main__":
    main()
