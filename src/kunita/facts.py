"""What there is to say of a registration, once: typed facts, and the console summary of them.

Whoever tells of a registration (the console, a notebook's card) is given these
facts and computes nothing.
"""

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from kunita import scores
from kunita.checks import EstimationOptions
from kunita.data.landmarks import known_distances
from kunita.image_record import BAD_MATCH, ImageRecord
from kunita.inference.intervals import EstimatedParameter
from kunita.inference.leave_out import LeaveOneOut
from kunita.inference.solve import Truncation
from kunita.kernels import describe_kernel

if TYPE_CHECKING:
    # Facts are part of a registration, so the import can only point the other way.
    from kunita.record import Registration
else:
    Registration = Any

REGION = 0.95
"""The probability of the regions whose coverage is reported."""


@dataclasses.dataclass(frozen=True)
class LeftOutFacts:
    """How well each landmark is predicted from the others.

    Args:
        error_mm: the mean error.
        num_inside: how many are inside their 95 % region.
        num_landmarks: of how many.
    """

    error_mm: float
    num_inside: int
    num_landmarks: int

    @classmethod
    def of(cls, found: LeaveOneOut) -> "LeftOutFacts":
        """From the predictions without each landmark."""
        transformed = scores.pit(np.asarray(found.chi2), np.asarray(found.known))
        inside = scores.covered(transformed, (REGION,))
        return cls(
            error_mm=float(np.mean(found.error)),
            num_inside=int(inside.sum()),
            num_landmarks=len(inside),
        )

    @property
    def coverage(self) -> float:
        """The share that is inside."""
        return self.num_inside / self.num_landmarks


@dataclasses.dataclass(frozen=True)
class SolverFacts:
    """How the search for the flow ended.

    Args:
        converged: whether it did.
        residual_mm: the largest residual of the optimality conditions.
        num_iterations: of all methods together.
        num_time_steps: of the flow.
        seconds: from the landmarks to the posterior.
    """

    converged: bool
    residual_mm: float
    num_iterations: int
    num_time_steps: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class Facts:
    """A registration in numbers and words; lengths in mm, as their names say.

    Args:
        num_landmarks: pairs of landmarks.
        num_used: those that were used.
        dimension: of space.
        pairing: how the two sets were paired.
        model, align: what was fitted.
        kernel: in words.
        noise_mm: typical standard deviation of the localisation noise.
        parameters: the hyper-parameters that were estimated.
        num_estimating: how many landmarks they were estimated on.
        num_teaching: cases behind a prior that was given.
        robust: whether the noise has heavy tails.
        before_mm, after_mm: mean distance of the used landmarks, along the known directions.
        num_partial: used landmarks that are not known along every direction.
        left_out: each landmark predicted from the others; None where there are too
            few.
        solver: how the search ended.
        truncation: what control points leave out; None where there are none.
        log_evidence: None where the weights of a robust fit replace it.
        energy: at the fit.
        suspects: what is wrong with which landmarks; None where nobody looked.
        warnings: all remarks.
        images: how images drove the fit; None where landmarks alone did.
    """

    num_landmarks: int
    num_used: int
    dimension: int
    pairing: str
    model: str
    align: str
    kernel: str
    noise_mm: float
    parameters: tuple[EstimatedParameter, ...]
    num_estimating: int
    num_teaching: int
    robust: bool
    before_mm: float
    after_mm: float
    num_partial: int
    left_out: LeftOutFacts | None
    solver: SolverFacts
    truncation: Truncation | None
    log_evidence: float | None
    energy: float
    suspects: tuple[str, ...] | None
    warnings: tuple[str, ...]
    images: ImageRecord | None = None


# ------------------------------------------------------------------------ facts of a registration


def facts_of(reg: Registration) -> Facts:
    """What there is to say of a registration."""
    before, after = _mean_distances(reg)
    num_used = int(reg.used.sum())
    return Facts(
        num_landmarks=len(reg.moving),
        num_used=num_used,
        dimension=reg.fixed.dimension,
        pairing=reg.pairing,
        model=reg.model,
        align=reg.align,
        kernel=describe_kernel(reg.kernel),
        noise_mm=reg.noise_mm,
        parameters=reg.chosen,
        num_estimating=min(num_used, EstimationOptions().most_landmarks),
        num_teaching=len(reg.learned_on),
        robust=reg.robust,
        before_mm=before,
        after_mm=after,
        num_partial=int(np.sum(reg.fixed.known[reg.used] < reg.fixed.dimension)),
        left_out=None if reg.loo is None else LeftOutFacts.of(reg.loo),
        solver=_solver_facts(reg),
        truncation=reg.truncation,
        log_evidence=reg.evidence if np.isfinite(reg.evidence) else None,
        energy=reg.energy,
        suspects=_suspect_lines(reg),
        warnings=reg.warnings,
        images=reg.images,
    )


def _mean_distances(reg: Registration) -> tuple[float, float]:
    """The mean distance of the used landmarks, mm, before and after; NaN without any."""
    if not reg.used.any():
        return float("nan"), float("nan")
    moving = reg.moving.points
    arrived = reg.evaluation.predict(moving)
    before = known_distances(reg.fixed, moving)
    after = known_distances(reg.fixed, arrived.mean)
    mean_before = before[reg.used].mean()
    mean_after = after[reg.used].mean()
    return float(mean_before), float(mean_after)


def _solver_facts(reg: Registration) -> SolverFacts:
    return SolverFacts(
        converged=reg.converged,
        residual_mm=reg.gap_mm,
        num_iterations=reg.iterations,
        num_time_steps=reg.posterior.num_steps,
        seconds=reg.seconds,
    )


def _suspect_lines(reg: Registration) -> tuple[str, ...] | None:
    """What is wrong with which landmarks; None where nobody looked."""
    if reg.suspicion is None:
        return None
    return tuple(reg.suspicion.lines(reg.used_labels))


# ------------------------------------------------------------------------------- console summary


def console_summary(facts: Facts) -> str:
    """What was done and how well it went, for people."""
    return "\n".join(_lines(facts))


def _lines(facts: Facts) -> Iterator[str]:
    yield _title(facts)
    for name, text in _entries(facts):
        yield f"  {name:<10} {text}"


def _title(facts: Facts) -> str:
    if facts.images is not None:
        together = f" and {facts.num_landmarks} landmarks" if facts.num_landmarks else ""
        return f"Registration of two images{together} in {facts.dimension}-D"
    count = f"{facts.num_landmarks}"
    if facts.num_used < facts.num_landmarks:
        count = f"{facts.num_used} of {facts.num_landmarks}"
    return f"Registration of {count} landmarks in {facts.dimension}-D (paired by {facts.pairing})"


def _entries(facts: Facts) -> Iterator[tuple[str, str]]:
    """The lines of a summary: what each is about, and what there is to say."""
    yield "model", f"{facts.model}, alignment {facts.align}"
    yield "kernel", facts.kernel
    if facts.images is not None:
        yield from _image_entries(facts.images)
    if facts.num_landmarks:
        yield "noise", f"{facts.noise_mm:.3g} mm"
    yield from _origins(facts)
    if facts.num_landmarks:
        yield "distance", _distance(facts)
    if facts.images is None:
        yield "left out", _left_out(facts.left_out)
    for line in facts.suspects or ():
        yield "suspects", line
    residual = "residual" if facts.images is None else "last move"
    yield "solver", _solver(facts.solver, residual)
    if facts.truncation is not None:
        yield "low rank", _low_rank(facts.truncation)
    yield "evidence", _evidence(facts)
    for remark in facts.warnings:
        yield "warning", remark


def mismatch_in_words(images: ImageRecord) -> str:
    """Around how many voxels the noise is larger than usual."""
    badly = 100 * images.share_noisier(BAD_MATCH)
    return (
        f"noise of twice the usual and more around {100 * images.mismatch:.0f} % of the compared "
        f"voxels, of {BAD_MATCH} times around {badly:.0f} %"
    )


def _image_entries(images: ImageRecord) -> Iterator[tuple[str, str]]:
    """How the images were compared, and how well they match."""
    yield "images", f"compared by {images.metric}, {100 * images.overlap:.0f} % overlap"
    if images.unit == "pixel":
        yield "unit", "pixels: their spacing is one, so that one pixel counts as one mm"
    if images.sandwich_ratio is not None:
        ratio = f"{images.sandwich_ratio.median:.2f} times the claimed deviations (median)"
        yield "check", f"by a sandwich with the residuals, {ratio}"
    if images.relation.is_mirrored:
        yield "mismatch", "one of the images seems to be mirrored: do not trust the registration"
    elif images.relation.is_found:
        yield "mismatch", mismatch_in_words(images)
    else:
        yield "mismatch", "the images do not seem to be related: do not trust the registration"
    yield (
        "draws",
        f"{images.num_draws} from the posterior: the radius of a region is good to "
        f"{100 * images.monte_carlo_error:.0f} %",
    )


def _origins(facts: Facts) -> Iterator[tuple[str, str]]:
    """Where kernel and noise come from."""
    if facts.parameters:
        yield "chosen", _estimated(facts)
    if facts.num_teaching:
        yield "prior", f"learned on {facts.num_teaching} other cases"
    if facts.robust:
        yield "robust", "heavy-tailed noise; the weights of the landmarks are in landmarks.csv"


def _estimated(facts: Facts) -> str:
    some = ""
    if facts.num_estimating < facts.num_used:
        some = f" of {facts.num_estimating} of the landmarks"
    intervals = []
    for one in facts.parameters:
        intervals.append(f"{one.name} {one.low:.3g} to {one.high:.3g}")
    return f"by the evidence{some}; 95 % intervals: {', '.join(intervals)}"


def _distance(facts: Facts) -> str:
    along = ""
    if facts.num_partial:
        along = f", of {facts.num_partial} of them along known directions only"
    return (
        f"{facts.before_mm:.3g} mm before → {facts.after_mm:.3g} mm after, "
        f"the landmarks' mean{along} (small is not accurate)"
    )


def _left_out(left_out: LeftOutFacts | None) -> str:
    if left_out is None:
        return "not available: too few landmarks for this alignment"
    return (
        f"each landmark predicted from the others: {left_out.error_mm:.3g} mm off on average, "
        f"{100 * left_out.coverage:.0f} % inside their 95 % region"
    )


def _solver(solver: SolverFacts, residual: str) -> str:
    state = "converged" if solver.converged else "NOT CONVERGED"
    return (
        f"{state}, {residual} {solver.residual_mm:.1e} mm; {solver.num_iterations} iterations, "
        f"{solver.num_time_steps} time steps, {solver.seconds:.2f} s"
    )


def _low_rank(truncation: Truncation) -> str:
    percent = 100 * truncation.matrix_error
    return (
        f"{truncation.num_controls} control points stand for all; that costs at most "
        f"{truncation.mean_error_mm:.1g} mm, and {percent:.1g} % of covariances"
    )


def _evidence(facts: Facts) -> str:
    energy = f"energy {facts.energy:.4g}"
    if facts.log_evidence is None:
        return energy
    return f"{facts.log_evidence:.2f} (log), {energy}"
