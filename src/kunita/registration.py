"""`register`, the one door: where landmarks meet the model."""

import dataclasses
import functools
import time
import warnings as python_warnings
from collections.abc import Iterator

import jax
import numpy as np

from kunita import scores
from kunita.data.landmarks import Landmarks, Pairs, check_covariances, match
from kunita.errors import ArgumentError, KunitaWarning, LandmarkError, Outcome
from kunita.flow import shooting
from kunita.inference import evidence, solve, trend
from kunita.inference.problem import Problem
from kunita.kernels import FAMILIES, AbstractKernel, AbstractProfile, Gaussian
from kunita.observations import LandmarkObservations
from kunita.posterior import MODELS, LeaveOneOut, Posterior, posterior_from_fit
from kunita.precision import ArrayLike, as_floats, to_numpy

CONTRADICTION = 6.0
"""Coinciding moving landmarks whose targets differ by more than this many standard deviations are refused."""

REFRESH_ROUNDS = 20

LEAST_SD, MOST_SD = 1e-100, 1e100
"""Standard deviations whose squares are numbers."""


@dataclasses.dataclass(frozen=True, eq=False)
class Registration:
    """A registration: the posterior over deformations, what went into it, and how the fit ended."""

    moving: Landmarks
    fixed: Landmarks
    pairing: str
    used: np.ndarray
    kernel: AbstractKernel
    noise: np.ndarray
    align: str
    model: str
    posterior: Posterior
    evidence: float
    energy: float
    outcome: Outcome
    gap_mm: float
    history: tuple[solve.Progress, ...]
    warnings: tuple[str, ...]
    seconds: float

    @property
    def converged(self) -> bool:
        return self.outcome.converged

    @property
    def iterations(self) -> int:
        return len(self.history)

    @property
    def noise_mm(self) -> float:
        """Typical standard deviation of the localisation noise, mm (root mean square over used landmarks and axes)."""
        return float(np.sqrt(np.mean(np.trace(self.noise[self.used], axis1=1, axis2=2)) / self.fixed.dimension))

    @functools.cached_property
    def loo(self) -> LeaveOneOut | None:
        """Leave-one-out, where the landmarks are enough for it; found once, since every summary asks for it."""
        try:
            return self.posterior.leave_one_out()
        except LandmarkError:
            return None

    def summary(self) -> str:
        """What was done and how well it went, for people."""
        return "\n".join(_summary_lines(self))

    def __repr__(self) -> str:
        state = "converged" if self.converged else "not converged"
        return f"<Registration of {len(self.moving)} landmarks in {self.fixed.dimension}-D, {self.model}, {state}>"


def register(
    moving: Landmarks | ArrayLike,
    fixed: Landmarks | ArrayLike,
    *,
    kernel: AbstractKernel | type[AbstractProfile] | str | None = None,
    noise: ArrayLike | None = None,
    align: str = "rigid",
    model: str = "endpoint",
    length_scale: float | None = None,
    amplitude: float | None = None,
) -> Registration:
    """Find the deformation that takes the moving landmarks to the fixed ones, and how sure it is everywhere.

    Args:
        moving, fixed: landmarks in the two spaces, or plain (n, d) arrays; paired by name, else by order.
        kernel: the prior's covariance function; or a family (a class or its name, such as "matern52"), whose length
            scale and amplitude are then chosen by the evidence. Default: a Gaussian, chosen so.
        noise: localisation noise, mm: one standard deviation, (n,) of them, or (n, d, d) covariances; inf leaves a
            landmark out. Default: the covariances of the landmarks (a side without any counts as exact), and where
            neither side has any, one estimated value.
        align: "none", "translation", "rigid", "similarity" or "affine"; its uncertainty is part of the posterior.
        model: "endpoint" (default), "pathwise" (the paper's figure) or "small" (small deformation, may fold).
        length_scale, amplitude: of the kernel's family, mm: what is given is kept, the rest chosen by the evidence.
    """
    began = time.perf_counter()
    if model not in MODELS:
        raise ArgumentError(f"model: expected one of {', '.join(MODELS)}, found {model!r}")
    trend.check_kind(align)
    family, given = _check_kernel(kernel)
    held = _check_held(given, length_scale, amplitude)
    pairs = match(_as_landmarks(moving), _as_landmarks(fixed))
    noises, used = _check_noise(pairs, noise)
    active = dataclasses.replace(pairs, moving=pairs.moving.take(used), fixed=pairs.fixed.take(used))
    before = tuple(_pairing_remarks(pairs, active, used))
    for remark in before:  # at once: a fit to the wrong pairs may take long
        python_warnings.warn(remark, KunitaWarning, stacklevel=2)
    with jax.enable_x64(True):
        fitted = _fit(active, family, given, held, noises, align, model)
    full_noise = np.full((len(pairs.moving), *fitted.noise.shape[1:]), np.inf)
    full_noise[used] = fitted.noise
    for remark in fitted.remarks:
        python_warnings.warn(remark, KunitaWarning, stacklevel=2)
    fit = fitted.fit
    return Registration(
        moving=pairs.moving, fixed=pairs.fixed, pairing=pairs.pairing, used=np.isin(np.arange(len(pairs.moving)), used),
        kernel=fit.kernel, noise=full_noise, align=align, model=model, posterior=fitted.posterior,
        evidence=fitted.evidence, energy=float(fit.energy), outcome=fit.outcome, gap_mm=fit.gap_mm,
        history=fit.history, warnings=before + fitted.remarks, seconds=time.perf_counter() - began,
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class _Fitted:
    fit: solve.Fit
    posterior: Posterior
    noise: np.ndarray
    evidence: float
    remarks: tuple[str, ...]


def _fit(
    pairs: Pairs,
    family: type[AbstractProfile],
    kernel: AbstractKernel | None,
    held: tuple[float | None, float | None],
    noises: tuple[np.ndarray, np.ndarray] | None,
    align: str,
    model: str,
) -> _Fitted:
    """Align, choose what is not given, solve, linearise: the pipeline on arrays."""
    x, f = pairs.moving.points, pairs.fixed.points
    n, d = x.shape
    weights = np.ones(n) if noises is None else 1 / np.trace(noises[0] + noises[1], axis1=1, axis2=2)
    start = trend.procrustes(align, x, f, weights)
    origin = np.asarray(start.offset)
    start = trend.Alignment(start.center, start.matrix, np.zeros(d))
    targets, aligned = f - origin, (x - start.center) @ start.matrix.T
    free, open_directions = trend.determined_trend(align, aligned)
    basis = np.asarray(free.basis(aligned))
    given = None if noises is None else noises[0] + start.matrix @ noises[1] @ start.matrix.T
    reach = float(np.sqrt(np.mean((f - x) ** 2)))
    choice = evidence.choose_parameters(family, kernel, given, aligned, targets - aligned, basis, reach, held)
    observed = LandmarkObservations(x, targets, *(noises or (choice.noise, np.zeros((n, d, d)))))
    _refuse_contradictions(pairs, choice.noise)
    fit, settled = solve_observed(observed, choice.kernel, free, start, model)
    posterior = posterior_from_fit(fit, origin, model)
    value = evidence.gauss_newton_evidence(posterior.linear, fit.energy)
    remarks = tuple(_fit_remarks(pairs, align, open_directions, choice, fit, settled))
    return _Fitted(fit, to_numpy(posterior), np.asarray(fit.noise), float(value), remarks)


def solve_observed(
    observed: LandmarkObservations,
    kernel: AbstractKernel,
    free: trend.Trend,
    start: trend.Alignment,
    model: str,
    momenta: np.ndarray | None = None,
) -> tuple[solve.Fit, bool]:
    """Solve; where the moving landmarks are uncertain too, refresh the noise that the map carries over, and repeat.

    Also says whether the noise settled. The small-deformation model carries it with the alignment alone, to its order.
    Where momenta are given, the search starts with them: from a fit of similar landmarks, say.
    """
    alignment = start
    noise = np.asarray(observed.noise(np.broadcast_to(start.matrix, observed.fixed_noise.shape)))
    for _ in range(REFRESH_ROUNDS):
        problem = Problem(kernel, observed.moving, observed.fixed, noise, free)
        fit = solve.solve_small(problem, alignment) if model == "small" else solve.solve(problem, alignment, momenta)
        jacobians = np.asarray(fit.trajectory.jacobians[-1]) @ np.asarray(fit.alignment.matrix)
        carried = np.asarray(observed.noise(jacobians))
        change, size = (np.abs(part).max(axis=(1, 2)) for part in (carried - noise, noise))
        if np.all(change <= 1e-6 * size):
            return fit, True
        noise, alignment, momenta = carried, fit.alignment, fit.trajectory.momenta[0]
    return fit, False


# ------------------------------------------------------------------------------------------------- checks at the border


def _as_landmarks(points: Landmarks | ArrayLike) -> Landmarks:
    return points if isinstance(points, Landmarks) else Landmarks(points)


def _check_kernel(
    kernel: AbstractKernel | type[AbstractProfile] | str | None,
) -> tuple[type[AbstractProfile], AbstractKernel | None]:
    """The family to choose from and the kernel that was given, if one was."""
    if kernel is None or isinstance(kernel, AbstractKernel):
        return Gaussian, kernel
    if isinstance(kernel, str):
        named = {**FAMILIES, **{cls.__name__.lower(): cls for cls in FAMILIES.values()}}
        if kernel.lower() in named:
            return named[kernel.lower()], None
    if isinstance(kernel, type) and kernel in FAMILIES.values():
        return kernel, None
    raise ArgumentError(f"kernel: expected a kernel, or one of {', '.join(FAMILIES)}, found {kernel!r}")


def _check_held(
    kernel: AbstractKernel | None, length_scale: float | None, amplitude: float | None
) -> tuple[float | None, float | None]:
    """The kernel's parameters that are not to be chosen."""
    for name, value in (("length_scale", length_scale), ("amplitude", amplitude)):
        if value is not None and kernel is not None:
            raise ArgumentError(f"{name}: the kernel that is given has its own; give a family such as 'matern52'")
        if value is not None and not (isinstance(value, int | float | np.number) and 0 < value < np.inf):
            raise ArgumentError(f"{name}: expected a positive number (mm), found {value!r}")
    return length_scale, amplitude


def _check_noise(pairs: Pairs, noise: ArrayLike | None) -> tuple[tuple[np.ndarray, np.ndarray] | None, np.ndarray]:
    """Covariances on the fixed and on the moving side (None: to be estimated), and the rows that are used."""
    n, d = pairs.fixed.points.shape
    everything, zero = np.arange(n), np.zeros((n, d, d))
    if noise is None:
        sides = (pairs.fixed.covariances, pairs.moving.covariances)
        if all(side is None for side in sides):
            return None, everything
        fixed, moving = (zero if side is None else side for side in sides)
        return (fixed, moving), everything
    array = as_floats(noise, "noise")
    if array.ndim == 3:
        outside = np.isinf(array.diagonal(axis1=1, axis2=2)).all(axis=1)  # infinite in every direction: left out
        used = np.flatnonzero(~outside) if array.shape == (n, d, d) else everything
        check_covariances(array[used], (len(used), d), "noise", [pairs.labels[i] for i in used])
        fixed = array[used]
    else:
        sds = _check_sds(pairs, array)
        used = np.flatnonzero(np.isfinite(sds))
        fixed = sds[used, None, None] ** 2 * np.eye(d)
    if not used.size:
        raise LandmarkError("noise: every landmark is left out (infinite noise)")
    return (fixed, zero[used]), used


def _check_sds(pairs: Pairs, sds: np.ndarray) -> np.ndarray:
    """One positive standard deviation per landmark."""
    n, d = pairs.fixed.points.shape
    if sds.shape not in ((), (n,)):
        raise ArgumentError(
            f"noise: expected a number, ({n},) numbers or ({n}, {d}, {d}) covariances, found shape {sds.shape}"
        )
    sds = np.broadcast_to(sds, (n,))
    for label, sd in zip(pairs.labels, sds, strict=True):
        if not (sd > 0 and (np.isinf(sd) or LEAST_SD < sd < MOST_SD)):
            raise ArgumentError(f"noise: expected positive standard deviations (mm), found {sd} for landmark {label!r}")
    return sds


def _refuse_contradictions(pairs: Pairs, noise: np.ndarray) -> None:
    """Coinciding moving landmarks are fine, unless their targets contradict each other."""
    x, f = pairs.moving.points, pairs.fixed.points
    close = np.sum((x[:, None] - x) ** 2, axis=2) <= (1e-9 * (np.ptp(x, axis=0).max() + 1e-300)) ** 2
    for i, j in np.argwhere(np.triu(close, 1)):
        difference = f[i] - f[j]
        sds = float(np.sqrt(difference @ np.linalg.solve(noise[i] + noise[j], difference)))
        if sds > CONTRADICTION:
            a, b = pairs.labels[i], pairs.labels[j]
            raise LandmarkError(
                f"landmarks {a!r} and {b!r} are the same moving point, but their fixed points differ by "
                f"{np.linalg.norm(difference):.3g} mm, {sds:.3g} standard deviations; remove one or raise its noise"
            )


# ----------------------------------------------------------------------------------------------------- remarks, summary


def _pairing_remarks(pairs: Pairs, active: Pairs, used: np.ndarray) -> Iterator[str]:
    if pairs.unmatched:
        yield f"{len(pairs.unmatched)} landmarks have no partner and are not used: {', '.join(pairs.unmatched[:5])}"
    left_out = [label for i, label in enumerate(pairs.labels) if i not in used]
    if left_out:
        yield f"left out (infinite noise): {', '.join(left_out)}"
    if len(used) > active.moving.dimension and trend.looks_mirrored(active.moving.points, active.fixed.points):
        yield "suspect: the fixed landmarks look like a mirror image of the moving ones; check left and right (RAS/LPS)"


def _fit_remarks(
    pairs: Pairs, align: str, open_directions: int, choice: evidence.Choice, fit: solve.Fit, settled: bool
) -> Iterator[str]:
    n = len(pairs.moving)
    if n == 1:
        guessed = f" (with a guessed {', '.join(choice.undecided)})" if choice.undecided else ""
        yield (
            f"a single landmark determines a translation only; everything else is the prior{guessed}, "
            "and an unknown rotation is not in the uncertainty"
        )
    if open_directions and n > 1:
        yield (
            f"the landmarks are collinear, coplanar or too few: {open_directions} of the directions of the {align} "
            "alignment are not determined by them and were not fitted; their uncertainty is not in the posterior, "
            "which is too sure away from the landmarks' line or plane"
        )
    if choice.undecided and n > 1:
        yield f"the landmarks do not determine the {', '.join(choice.undecided)}: the value used is a limit or a guess"
    if np.linalg.det(fit.alignment.matrix) < 0:
        yield "suspect: the alignment is a mirror image, so the whole map turns space inside out; check left and right"
    if not fit.converged:
        yield fit.outcome.value
    if not settled:
        yield "the noise of the moving landmarks, carried over by the map, did not settle; raise it or the length scale"
    if fit.trajectory.drift > shooting.MAX_DRIFT:
        yield f"the energy drifts by {float(fit.trajectory.drift):.0e} along the flow even with the finest time steps"


def _summary_lines(reg: Registration) -> Iterator[str]:
    before, after = _distances(reg)
    count = f"{len(reg.moving)} landmarks" if reg.used.all() else f"{reg.used.sum()} of {len(reg.moving)} landmarks"
    yield f"Registration of {count} in {reg.fixed.dimension}-D (paired by {reg.pairing})"
    yield f"  model      {reg.model}, alignment {reg.align}"
    yield f"  kernel     {describe_kernel(reg.kernel)}"
    yield f"  noise      {reg.noise_mm:.3g} mm"
    yield f"  distance   {before:.3g} mm before → {after:.3g} mm after, the landmarks' mean (small is not accurate)"
    yield from _loo_lines(reg)
    steps = reg.posterior.trajectory.num_steps
    state = "converged" if reg.converged else "NOT CONVERGED"
    effort = f"{reg.iterations} iterations, {steps} time steps, {reg.seconds:.2f} s"
    yield f"  solver     {state}, gap {reg.gap_mm:.1e} mm; {effort}"
    yield f"  evidence   {reg.evidence:.2f} (log), energy {reg.energy:.4g}"
    for remark in reg.warnings:
        yield f"  warning    {remark}"


def _loo_lines(reg: Registration) -> Iterator[str]:
    if reg.loo is None:
        yield "  left out   not available: too few landmarks for this alignment"
        return
    held = scores.scores(np.asarray(reg.loo.error), np.asarray(reg.loo.chi2), np.asarray(reg.loo.covariance))
    inside = f"{100 * held.coverage[scores.LEVELS.index(0.95)]:.0f} % inside their 95 % region"
    yield f"  left out   each landmark predicted from the others: {held.error_mm:.3g} mm off on average, {inside}"
    odd = scores.suspects(np.asarray(reg.loo.chi2), reg.fixed.dimension)
    if odd.any():
        names = ", ".join(np.array(reg.moving.labels)[reg.used][odd])
        yield f"  suspects   {names}: too far from what the others say; swapped or mislabelled?"


def _distances(reg: Registration) -> tuple[float, float]:
    predicted = reg.posterior.predict(reg.moving.points).mean
    before = np.linalg.norm(reg.fixed.points - reg.moving.points, axis=1)
    after = np.linalg.norm(reg.fixed.points - predicted, axis=1)
    return float(before[reg.used].mean()), float(after[reg.used].mean())


def describe_kernel(kernel: AbstractKernel) -> str:
    """A kernel in words."""
    if isinstance(kernel, AbstractProfile):
        return (
            f"{type(kernel).__name__}, length scale {kernel.length_scale:.3g} mm, amplitude {kernel.amplitude:.3g} mm"
        )
    return " + ".join(describe_kernel(part) for part in getattr(kernel, "kernels", ())) or repr(kernel)
