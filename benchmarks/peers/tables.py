"""Results as Markdown: a table per problem, and one of ratios."""

import dataclasses
import itertools
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from peers.catalogue import FITS, FITTED, OURS, WHOLE, Contestant
from peers.problems import DENSE, FLOWER
from peers.trial import Result

Results = Mapping[tuple[Contestant, str], Result]
"""By contestant and problem."""

FLOPS_A_POINT = 330e3
"""Of the plain algorithm for mean and covariance at 37 landmarks and ten steps."""

ALMOST = 1.2
"""A residual is called equal to ours up to this factor."""


@dataclasses.dataclass(frozen=True)
class Table:
    """A title, a table and what is to be said of it: the form in which all parts of the benchmark
    give theirs.
    """

    title: str
    columns: list[str]
    rows: list[list]
    notes: list[str] = dataclasses.field(default_factory=list)

    def markdown(self) -> str:
        lines = [f"### {self.title}", ""]
        if self.rows:
            lines += [row(self.columns), row(["---"] * len(self.columns)), *map(row, self.rows), ""]
        return "\n".join([*lines, *(f"{note}\n" for note in self.notes)])


def row(cells: Iterable) -> str:
    """One row of a Markdown table."""
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def read_table(path: Path) -> Table:
    """A table that another program wrote."""
    found = json.loads(path.read_text())
    return Table(found["title"], found["columns"], found["rows"], found.get("notes", []))


def shown(value: float | None, digits: int = 3) -> str:
    """A number with a few digits, without an exponent where that reads well."""
    if value is None:
        return "–"
    if value == 0 or not 1e-4 <= abs(value) < 1e6:
        return f"{value:.1e}"
    return f"{value:.{max(0, digits - 1 - math.floor(math.log10(abs(value))))}f}"


def seconds(result: Result) -> str:
    """How long a trial took, or why that is not known."""
    if result.seconds is not None:
        return shown(result.seconds)
    return result.status if result.first_s is None else f"{result.status} (second call)"


def ratio(ours: Result | None, theirs: Result) -> str:
    """Our time divided by theirs; a bound where theirs did not end."""
    if ours is None or ours.seconds is None:
        return "–"
    if theirs.seconds is not None:
        return shown(ours.seconds / theirs.seconds, 2)
    return (
        f"< {shown(ours.seconds / float(theirs.status[2:-2]), 2)}"
        if theirs.status.startswith("> ")
        else "–"
    )


def rival(results: Results, contestant: Contestant, problem: str) -> Result | None:
    """Our result on the same problem."""
    ours = [
        c
        for c, name in results
        if name == problem and c.peer == OURS and c.method == contestant.rival
    ]
    return results[ours[0], problem] if ours else None


def fit_table(results: Results, problem: str) -> Table:
    """All fits of one problem."""
    title = "Circle to flower, 2-D" if problem == FLOWER else f"{int(problem):,} landmarks, 3-D"
    columns = [
        "method", "diffeomorphic", "first call (s)", "fit (s)", "ours ÷ it", "residual (mm)", "held-out error (mm)",
        "smallest det J", "memory (GB)", "remarks",
    ]  # fmt: skip
    rows = [
        fit_row(c, r, rival(results, c, problem))
        for (c, name), r in results.items()
        if name == problem
    ]
    return Table(title, columns, rows)


def fit_row(contestant: Contestant, result: Result, ours: Result | None) -> list[str]:
    """One fit."""
    jacobian = "–" if result.min_jacobian is None else shown(result.min_jacobian, 2)
    return [
        contestant.label,
        contestant.kind,
        shown(result.first_s),
        seconds(result),
        ratio(ours, result),
        shown(result.residual_mm),
        shown(result.held_out_mm),
        f"{jacobian}, folds" if (result.min_jacobian or 1) <= 0 else jacobian,
        shown(result.memory_gb, 2),
        result.note,
    ]


def ratio_table(results: Results, limits: Mapping[str, float]) -> Table:
    """Our time divided by everyone's and by the limit; and how the times grow."""
    problems = [name for name in FITTED if any(name == found for _, found in results)]
    rows = []
    for contestant in FITS:
        own = {
            name: results[contestant, name] for name in problems if (contestant, name) in results
        }
        cells = [ratio(rival(results, contestant, n), own[n]) if n in own else "" for n in problems]
        if own:
            rows.append([contestant.label, contestant.kind, *cells, growth(own)])
    if limits:
        rows.append(
            ["limit: one Cholesky factorisation", "", *limit_cells(results, problems, limits), ""]
        )
    columns = ["ours ÷", "diffeomorphic", *problems, "its time grows as"]
    notes = [verdict(results, problem) for problem in problems]
    return Table("Fit: our time divided by theirs", columns, rows, [note for note in notes if note])


def growth(own: Mapping[str, Result]) -> str:
    """The exponent of n from each size to the next: what is computed may change between them."""
    times = sorted(
        (int(n), r.seconds) for n, r in own.items() if n != FLOWER and r.seconds is not None
    )
    exponents = [
        f"n^{np.log(later / earlier) / np.log(more / less):.1f} ({less} → {more})"
        for (less, earlier), (more, later) in itertools.pairwise(times)
    ]
    return ", ".join(exponents)


def limit_cells(results: Results, problems: list[str], limits: Mapping[str, float]) -> list[str]:
    """Our time in factorisations of the landmarks' covariance."""
    cells = []
    for name in problems:
        limit = (
            None if name == FLOWER else limits.get(f"Cholesky of {3 * int(name)} rows, 64 bits (s)")
        )
        ours = rival(results, FITS[0], name)
        cells.append(shown(ours.seconds / limit, 2) if limit and ours and ours.seconds else "")
    return cells


def verdict(results: Results, problem: str) -> str:
    """Our time against the fastest diffeomorphic peer, and the fastest whose residual is as small,
    in a sentence.
    """
    ours = rival(results, FITS[0], problem)
    if ours is None or ours.seconds is None or ours.residual_mm is None:
        return ""
    timed = [
        (r.seconds, c.label, r.residual_mm)
        for (c, name), r in results.items()
        if name == problem
        and c.peer != OURS
        and c.kind == FITS[0].kind
        and r.seconds
        and r.residual_mm is not None
    ]
    equal = [found for found in timed if found[2] <= ALMOST * ours.residual_mm]
    parts = [
        f"the fastest diffeomorphic peer, {label}, takes {shown(s / ours.seconds, 2)} times our time "
        f"(residual {shown(r, 2)} mm, ours {shown(ours.residual_mm, 2)})"
        for s, label, r in sorted(timed)[:1]
    ]
    parts += [
        f"of those with a residual like ours, {label} is the fastest: {shown(s / ours.seconds, 2)} times"
        for s, label, _ in sorted(equal)[:1]
    ]
    return f"{problem}: {'; '.join(parts)}." if parts else ""


def dense_table(results: Results, limits: Mapping[str, float]) -> Table:
    """Evaluation on a grid, ours and the peers'."""
    columns = [
        "method",
        "evaluates",
        "landmarks",
        "seconds",
        "million points/s",
        "ours ÷ it",
        "memory (GB)",
    ]
    rows = [dense_row(c, name, r, rival(results, c, name)) for (c, name), r in results.items()]
    return Table("Dense evaluation on 128³ points", columns, rows, gemm_note(results, limits))


def dense_row(
    contestant: Contestant, problem: str, result: Result, ours: Result | None
) -> list[str]:
    """One evaluation."""
    rate = result.points / result.seconds / 1e6 if result.points and result.seconds else None
    return [
        contestant.label,
        contestant.kind,
        problem.removeprefix(DENSE),
        seconds(result),
        shown(rate),
        ratio(ours, result),
        shown(result.memory_gb, 2),
    ]


def gemm_note(results: Results, limits: Mapping[str, float]) -> list[str]:
    """The rate of ours against that of matrix products."""
    gemm = limits.get("matrix product, 32 bits (Gflop/s)")
    ours = [
        r
        for (c, n), r in results.items()
        if c.peer == OURS and c.method == WHOLE and n == f"{DENSE}37"
    ]
    if not gemm or not ours or not ours[0].seconds or not ours[0].points:
        return []
    part = ours[0].points / ours[0].seconds * FLOPS_A_POINT / (gemm * 1e9)
    return [
        f"Ours ÷ limit: points/s × 330 kflop is {part:.2f} of the 32-bit matrix-product rate (37 landmarks, 32 bits)."
    ]
