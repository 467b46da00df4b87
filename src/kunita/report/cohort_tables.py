"""The cases of a cohort's page, and its tables: methods, cases, the landmarks of a case, and the
files that went in.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from kunita.cohort.study import Held
from kunita.cohort.study_findings import OWN
from kunita.cohort.study_tables import MethodRow
from kunita.data.case import Case
from kunita.kernels import AbstractProfile
from kunita.prior import Prior
from kunita.report.answer import mm
from kunita.report.tables import MOST_ROWS, Cell, Column, Row, Table, number


@dataclasses.dataclass(frozen=True, eq=False)
class Shown:
    """A case on a page.

    Args:
        id: of its section, which links lead to; made of its number, as a name can be anything.
        case: with its landmarks.
        held: every landmark as our own method predicts it from the others.
        rigid_mm: (n,) errors if it is predicted by rigid alignment to the others.
        prior: that it was registered with.
        region_mm: mean error where a region was left out, if one was.
    """

    id: str
    case: Case
    held: Held
    rigid_mm: np.ndarray
    prior: Prior
    region_mm: float | None = None

    @property
    def errors_mm(self) -> np.ndarray:
        return self.held.predictions.errors

    @property
    def mean_mm(self) -> float:
        return float(self.errors_mm.mean())

    @property
    def inside(self) -> int:
        """Landmarks inside their 95 % region."""
        return int(np.sum(self.held.predictions.pit <= 0.95))

    @property
    def unconverged(self) -> int:
        return int(np.sum(~self.held.converged))

    @property
    def words(self) -> str:
        """The case in a line."""
        ended = f"; {self.unconverged} not converged" if self.unconverged else ""
        return f"{mm(self.mean_mm)} mm left out; {self.inside} of {len(self.case)} inside their 95 % region{ended}"

    @property
    def link(self) -> str:
        """Its name, as a link to its section."""
        from markupsafe import Markup

        return Markup('<a href="#{}">{}</a>').format(self.id, self.case.name)


def best_and_worst(cases: Sequence[Shown]) -> tuple[Shown, Shown]:
    """The cases with the least and the largest mean error."""
    ordered = by_error(cases)
    return ordered[-1], ordered[0]


def by_error(cases: Sequence[Shown]) -> list[Shown]:
    """The worst first."""
    return sorted(cases, key=lambda one: -one.mean_mm)


def percent(share: float | None) -> str:
    """A share for people."""
    return "–" if share is None else f"{100 * share:.1f} %"


def between(value: str, low: str, high: str) -> str:
    """A number with its interval, if it has one; a unit is said once."""
    return (
        value
        if "–" in (low, high)
        else f"{value} ({low.removesuffix(' %')} to {high.removesuffix(' %')})"
    )


# ------------------------------------------------------------------------------------------ methods


def method_table(methods: Sequence[MethodRow], regions: Sequence[MethodRow]) -> Table:
    """How well each method predicts what it has not seen."""
    columns = (
        Column("method", number=False),
        Column("error", "mean distance of a left-out landmark; 95 % interval over cases"),
        Column("median", "of the same distances"),
        Column(
            "95 % held",
            "share of landmarks inside the region that should hold 95 %; interval over cases",
        ),
        Column("50 % held", "share of landmarks inside the region that should hold 50 %"),
        Column("NLL", "mean negative log density, nats: lower is better; interval over cases"),
        Column(
            "sd",
            "mean predicted standard deviation along an axis, the landmark's own noise included",
        ),
        Column(
            "region",
            "mean distance where a third of the landmarks, all on one side, is left out together",
        ),
        Column("95 % held there", "share of these landmarks inside their 95 % region"),
        Column("not converged", "landmarks whose fit did not converge"),
    )
    rows = (_method_row(one, region) for one, region in zip(methods, regions, strict=True))
    return Table(
        "method-table",
        "Methods",
        columns,
        tuple(rows),
        "Every landmark left out; lengths in mm; intervals are 95 %, over cases.",
    )


def _method_row(one: MethodRow, region: MethodRow) -> Row:
    lost = one.unconverged + region.unconverged
    cells = (
        Cell(one.method),
        number(
            one.error_mm, between(mm(one.error_mm), mm(one.error_low_mm), mm(one.error_high_mm))
        ),
        number(one.error_median_mm),
        number(
            one.coverage_95,
            between(*map(percent, (one.coverage_95, one.coverage_95_low, one.coverage_95_high))),
        ),
        number(one.coverage_50, percent(one.coverage_50)),
        number(one.nll, between(mm(one.nll), mm(one.nll_low), mm(one.nll_high))),
        number(one.sd_mm),
        number(region.error_mm),
        number(region.coverage_95, percent(region.coverage_95)),
        number(float(lost), str(lost)),
    )
    return Row(cells, "own" if one.method == OWN else "")


# -------------------------------------------------------------------------------------------- cases


def case_table(cases: Sequence[Shown]) -> Table:
    """All cases, the worst first, each with a link to its landmarks."""
    extras = Extras.of(cases)
    columns = (
        Column("case", "with its landmarks below", number=False),
        Column("landmarks"),
        Column("before", "mean distance before any registration"),
        Column("rigid", "mean error of rigid alignment, the landmark left out"),
        Column("left out", "mean error of our own prediction, the landmark left out"),
        Column("largest", "of these errors"),
        Column("95 % held", "landmarks inside their 95 % region"),
        Column("NLL", "mean negative log density, nats: lower is better"),
        Column(
            "sd",
            "mean predicted standard deviation along an axis, the landmark's own noise included",
        ),
        *extras.columns,
    )
    shown = by_error(cases)[:MOST_ROWS]
    note = (
        f"The {MOST_ROWS} worst of {len(cases)}; lengths in mm."
        if len(shown) < len(cases)
        else "Lengths in mm."
    )
    rows = (_case_row(one, extras) for one in shown)
    return Table("cases-table", "Cases", columns, tuple(rows), note)


@dataclasses.dataclass(frozen=True)
class Extras:
    """Columns that not every table of cases has: of a region, of priors that differ, of fits that
    failed.
    """

    regional: bool
    learned: bool
    failed: bool

    @classmethod
    def of(cls, cases: Sequence[Shown]) -> "Extras":
        return cls(
            any(one.region_mm is not None for one in cases),
            len({one.prior for one in cases}) > 1,
            any(one.unconverged for one in cases),
        )

    @property
    def columns(self) -> tuple[Column, ...]:
        return (
            *(
                (Column("region", "mean error where a third is left out together"),)
                if self.regional
                else ()
            ),
            *(
                (
                    Column("scale", "length scale that was learned for it"),
                    Column("amplitude", "of deformations"),
                    Column("noise", "that was learned, where its files bring none"),
                )
                if self.learned
                else ()
            ),
            *(
                (Column("not converged", "landmarks whose fit did not converge"),)
                if self.failed
                else ()
            ),
        )

    def cells(self, one: Shown) -> tuple[Cell, ...]:
        kernel = one.prior.kernel if isinstance(one.prior.kernel, AbstractProfile) else None
        sizes = (
            (None, None)
            if kernel is None
            else (float(kernel.length_scale), float(kernel.amplitude))
        )
        noise = None if one.case.knows_noise else one.prior.noise_mm
        return (
            *((number(one.region_mm),) if self.regional else ()),
            *(map(number, (*sizes, noise)) if self.learned else ()),
            *((number(float(one.unconverged), str(one.unconverged)),) if self.failed else ()),
        )


def _case_row(one: Shown, extras: Extras) -> Row:
    n, found = len(one.case), one.held.predictions
    cells = (
        Cell(one.link),
        number(float(n), str(n)),
        number(float(one.case.distances.mean())),
        number(float(one.rigid_mm.mean())),
        number(one.mean_mm),
        number(float(one.errors_mm.max())),
        number(one.inside / n, f"{one.inside} of {n}"),
        number(float(found.log_scores.mean())),
        number(float(found.stds.mean())),
        *extras.cells(one),
    )
    return Row(cells, "suspect" if one.unconverged else "")


def landmark_table(one: Shown) -> Table:
    """The landmarks of a case as they are predicted from the others, the worst first."""
    columns = (
        Column("name", "of the landmark", number=False),
        Column("before", "distance before any registration"),
        Column("left out", "error if it is predicted from the others"),
        Column(
            "region", "probability of the smallest region that holds it, %: near 100 is a surprise"
        ),
        Column("sd", "predicted standard deviation along an axis, its own noise included"),
        Column("map sd", "of the map alone"),
    )
    order = np.argsort(-one.errors_mm, kind="stable")
    rows = tuple(_landmark_row(one, int(i)) for i in order[:MOST_ROWS])
    note = (
        f"The {MOST_ROWS} worst of {len(order)}; lengths in mm." if len(rows) < len(order) else ""
    )
    return Table(f"landmarks-of-{one.id}", f"Landmarks of {one.case.name}", columns, rows, note)


def _landmark_row(one: Shown, i: int) -> Row:
    found, maps, row = one.held.predictions, one.held.map_stds_mm, int(one.held.rows[i])
    pit = float(found.pit[i])
    cells = (
        Cell(one.case.moving.labels[row]),
        number(float(one.case.distances[row])),
        number(float(one.errors_mm[i])),
        number(100 * pit, f"{100 * pit:.1f} %"),
        number(float(found.stds[i])),
        number(None if maps is None else float(maps[i])),
    )
    return Row(cells, "suspect" if not one.held.converged[i] else "outside" if pit > 0.95 else "")


# ------------------------------------------------------------------------------------------- inputs
