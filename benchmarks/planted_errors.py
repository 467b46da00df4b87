"""Planted errors: how many gross errors are found among real landmarks, and how many innocent ones
are accused.

RESECT (brain MRI and ultrasound, 15 or 16 pairs a case), each trial on a case drawn at random: a
fixed landmark moved by 10 mm in a random direction; the fixed landmarks of any two labels
exchanged, also of neighbours; the fixed set mirrored (x → −x); its list reversed, or shifted by
one. Twice: with the case alone, as a user with one patient; and with a noise that is the median of
what the *other* patients' own evidence says, as with a learned prior. The first trials of each kind
go through `kunita.register` and the suspicion of its result, and must agree with the direct call
that the others take. AFIDs (32 landmarks, five raters): one mark of one rater moved by 10 mm,
judged against the other four.

Accused: the share of the landmarks (marks) with nothing planted that were flagged, in the same
trials.

    python benchmarks/planted_errors.py --data DATA [--trials 200] [--through-register 20] [--size
    10]

The folder holds `resect/*.tag` and `afids_dbs/sub-*/*.fcsv`; KUNITA_DATA names it if `--data` does
not.
"""

import argparse
import dataclasses
import itertools
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np

import kunita
from kunita.data.raters import far_marks
from kunita.errors import KunitaWarning
from kunita.suspects.report import Suspicion
from kunita.suspects.search import suspicion

NEAR_MM = (0, 5, 10, 20, 100)
"""Bounds of the distances between exchanged landmarks."""


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """A patient, and the noise that the other patients teach, mm."""

    moving: np.ndarray
    fixed: np.ndarray
    learned_mm: float


@dataclasses.dataclass(frozen=True, eq=False)
class Planted:
    """Fixed landmarks with an error, the rows that it touches, and whether a suspicion has found
    it.
    """

    fixed: np.ndarray
    rows: np.ndarray
    found: Callable[[Suspicion], bool]


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Of one trial: found or not, how many innocent landmarks there were and were accused, the
    planted distance, mm.
    """

    found: bool
    accused: int
    innocent: int
    distance_mm: float


def anywhere(rng: np.random.Generator, size_mm: float) -> np.ndarray:
    """A step of this size in a random direction."""
    step = rng.normal(size=3)
    return size_mm * step / np.linalg.norm(step)


def plant_nothing(case: Case, rng: np.random.Generator, size_mm: float) -> Planted:
    """Leave the case as it is."""
    return Planted(case.fixed, np.array([], dtype=int), lambda found: not found.suspect.any())


def plant_outlier(case: Case, rng: np.random.Generator, size_mm: float) -> Planted:
    """Move one landmark."""
    row, fixed = int(rng.integers(len(case.fixed))), case.fixed.copy()
    fixed[row] += anywhere(rng, size_mm)
    return Planted(fixed, np.array([row]), lambda found: bool(found.suspect[row]))


def plant_swap(case: Case, rng: np.random.Generator, size_mm: float) -> Planted:
    """Exchange two landmarks."""
    rows, fixed = np.sort(rng.choice(len(case.fixed), 2, replace=False)), case.fixed.copy()
    fixed[rows] = fixed[rows[::-1]]
    return Planted(fixed, rows, lambda found: (int(rows[0]), int(rows[1])) in found.swaps)


def plant_mirror(case: Case, rng: np.random.Generator, size_mm: float) -> Planted:
    """Left for right."""
    return Planted(
        case.fixed * [-1, 1, 1], np.arange(len(case.fixed)), lambda found: found.mirrored
    )


def plant_reversal(case: Case, rng: np.random.Generator, size_mm: float) -> Planted:
    """List them backwards."""
    rows = np.arange(len(case.fixed))
    return Planted(case.fixed[::-1], rows, lambda found: found.permuted == "in reverse order")


def plant_shift(case: Case, rng: np.random.Generator, size_mm: float) -> Planted:
    """List the last one first."""
    rows = np.arange(len(case.fixed))
    return Planted(
        np.roll(case.fixed, 1, axis=0), rows, lambda found: found.permuted == "shifted by 1"
    )


KINDS = {
    "clean": (plant_nothing, None),
    "outlier": (plant_outlier, 0.95),
    "two swapped": (plant_swap, 0.90),
    "mirrored": (plant_mirror, 1.0),
    "reversed": (plant_reversal, None),
    "shifted by 1": (plant_shift, None),
}
"""What is planted, and the least share that has to be found."""


def read_resect(folder: Path) -> list[Case]:
    """All cases, each with the noise that the evidence of the others says."""
    paths = sorted((folder / "resect").glob("*.tag"))
    sides = [
        [kunita.read_landmarks(path, volume=volume).points for volume in (1, 2)] for path in paths
    ]
    own = np.array([kunita.register(*both, model="small").noise_mm for both in sides])
    return [Case(*both, float(np.median(np.delete(own, i)))) for i, both in enumerate(sides)]


def looked_at(case: Case, fixed: np.ndarray, learned: bool, through_register: bool) -> Suspicion:
    """What a user is told: with the noise unknown, or learned on other patients."""
    covariances = np.broadcast_to(case.learned_mm**2 * np.eye(3), (len(fixed), 3, 3))
    found = suspicion(case.moving, fixed, covariances, "rigid", known=learned)
    if (
        through_register
    ):  # the small-deformation model: contradicting landmarks can make the fit of a flow slow
        target = kunita.Landmarks(fixed, None, covariances if learned else None)
        told = kunita.register(case.moving, target, model="small").suspicion
        labels = [str(i) for i in range(len(fixed))]
        assert told.reasons(labels) == found.reasons(labels), "register tells something else"
    return found


def trials(
    cases: list[Case], kind: str, learned: bool, options: argparse.Namespace
) -> list[Verdict]:
    """So many random cases with this error; the same ones for the same seed, whatever is known of
    the noise.
    """
    rng, verdicts = np.random.default_rng([7, list(KINDS).index(kind)]), []
    for k in range(options.trials if kind != "clean" else len(cases)):
        case = cases[k] if kind == "clean" else cases[rng.integers(len(cases))]
        planted = KINDS[kind][0](case, rng, options.size)
        found = looked_at(case, planted.fixed, learned, k < options.through_register)
        innocent = ~np.isin(np.arange(len(case.fixed)), planted.rows)
        apart = (
            float(np.linalg.norm(np.subtract(*case.fixed[planted.rows])))
            if len(planted.rows) == 2
            else np.nan
        )
        accused = int(found.suspect[innocent].sum())
        verdicts.append(Verdict(bool(planted.found(found)), accused, int(innocent.sum()), apart))
    return verdicts


def row(kind: str, mode: str, verdicts: list[Verdict], least: float | None) -> str:
    """A line of the table: shares, with the limits beside them."""
    accused, innocent = (
        sum(getattr(v, name) for v in verdicts) for name in ("accused", "innocent")
    )
    share = f"{100 * accused / innocent:.2f} % of {innocent} (≤ 5 %)" if innocent else "–"
    found = f"{100 * np.mean([v.found for v in verdicts]):.1f} %" + (
        f" (≥ {100 * least:.0f} %)" if least else ""
    )
    return f"| {kind} | {mode} | {len(verdicts)} | {'–' if kind == 'clean' else found} | {share} |"


def holds(verdicts: list[Verdict], least: float | None) -> bool:
    """Whether the limits are kept."""
    accused, innocent = (
        sum(getattr(v, name) for v in verdicts) for name in ("accused", "innocent")
    )
    enough = least is None or np.mean([v.found for v in verdicts]) >= least
    return bool(enough and accused <= 0.05 * innocent)


def by_distance(verdicts: list[Verdict]) -> str:
    """The share of exchanges found, by how far apart the two landmarks are."""
    parts = []
    for low, high in itertools.pairwise(NEAR_MM):
        some = [v.found for v in verdicts if low <= v.distance_mm < high]
        parts.append(f"{low}–{high} mm: {sum(some)} of {len(some)}")
    return "; ".join(parts)


def rater_trials(folder: Path, options: argparse.Namespace) -> tuple[list[Verdict], list[Verdict]]:
    """One mark of one rater moved, and the files as they are."""
    patients = [
        [kunita.read_landmarks(path) for path in sorted(sub.glob("*.fcsv"))]
        for sub in sorted((folder / "afids_dbs").glob("sub-*"))
    ]
    clean = [Verdict(True, len(far_marks(sets)), sum(map(len, sets)), np.nan) for sets in patients]
    rng, verdicts = np.random.default_rng([7, 100]), []
    for _ in range(options.trials):
        sets = list(patients[rng.integers(len(patients))])
        rater = int(rng.integers(len(sets)))
        points, which = sets[rater].points.copy(), int(rng.integers(len(sets[rater])))
        points[which] += anywhere(rng, options.size)
        name, sets[rater] = sets[rater].names[which], kunita.Landmarks(points, sets[rater].names)
        flagged = [(label, who) for label, who, _ in far_marks(sets)]
        hit = (name, rater) in flagged
        verdicts.append(Verdict(hit, len(flagged) - hit, sum(map(len, sets)) - 1, np.nan))
    return clean, verdicts


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=os.environ.get("KUNITA_DATA"))
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--through-register", type=int, default=20)
    parser.add_argument("--size", type=float, default=10.0, help="of an outlier, mm")
    options = parser.parse_args()
    if options.data is None:
        parser.error("--data: expected a folder, or KUNITA_DATA in the environment")
    warnings.simplefilter("ignore", KunitaWarning)
    cases = read_resect(Path(options.data))
    print("| planted | noise | trials | found | accused |\n|---|---|---|---|---|")
    distances, kept = [], []
    for learned in (False, True):
        for kind, (_, least) in KINDS.items():
            verdicts = trials(cases, kind, learned, options)
            mode = "of other patients" if learned else "unknown"
            print(row(kind, mode, verdicts, least), flush=True)
            kept.append(holds(verdicts, least))
            if kind == "two swapped":
                distances.append(f"swapped, noise {mode}: {by_distance(verdicts)}")
    clean, marks = rater_trials(Path(options.data), options)
    print(row("clean", "AFIDs raters", clean, None))
    print(row("mark of one rater", "AFIDs raters", marks, 0.95))
    print(*distances, sep="\n")
    if not all((*kept, holds(clean, None), holds(marks, 0.95))):
        sys.exit("a limit was not kept")


if __name__ == "__main__":
    main()
