"""`register`, the one door: where landmarks meet the model."""

import dataclasses
import functools
import time
import warnings as python_warnings

import jax
import numpy as np

from kunita import checks
from kunita.checks import NoisyPairs, Setting
from kunita.data.landmarks import Landmarks, Pairs, known_variances, match
from kunita.errors import KunitaWarning, LandmarkError, Outcome
from kunita.evaluation import Evaluation
from kunita.facts import Facts, console_summary, facts_of
from kunita.fitting import FittedPairs, fit_pairs
from kunita.inference.intervals import EstimatedParameter
from kunita.inference.leave_out import LeaveOneOut
from kunita.inference.robust import with_full_weights
from kunita.inference.search import Progress
from kunita.inference.solve import Truncation
from kunita.jaxrun.doors import ArrayLike, on_one_blas_thread
from kunita.kernels import AbstractKernel, AbstractProfile
from kunita.posterior import Posterior
from kunita.prior import Prior
from kunita.suspects.report import Suspicion


@dataclasses.dataclass(frozen=True, eq=False)
class Registration:
    """A registration: the posterior over deformations, what went into it, and how the fit ended.

    Args:
        moving, fixed: the pairs of landmarks, row by row.
        pairing: whether they were paired by "name" or by "order".
        used: (n,) which pairs were used.
        kernel: the prior's covariance function.
        noise: (n, d, d) localisation covariances of both sides together, in fixed
            space, mm².
        align, model: what was fitted.
        posterior: where any point goes, and how certain that is.
        evidence: log marginal likelihood; NaN for a robust fit, which has none to
            compare.
        energy: at the fit.
        outcome: how the search ended.
        gap_mm: the largest residual of the optimality conditions, mm.
        history: the log of the search.
        warnings: what deserves a second look.
        seconds: what it took.
        chosen: the hyper-parameters that were estimated, each with a 95 % interval.
        robust: whether the noise has heavy tails.
        weights: (n,) how much each landmark counts in a robust fit.
        learned_on: the names of the cases behind a prior that was given.
        suspicion: which of the used landmarks cannot be right; None in records of
            earlier versions.
        truncation: what was left out to fit very many landmarks; None where nothing
            was.
    """

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
    history: tuple[Progress, ...]
    warnings: tuple[str, ...]
    seconds: float
    chosen: tuple[EstimatedParameter, ...] = ()
    robust: bool = False
    weights: np.ndarray | None = None
    learned_on: tuple[str, ...] = ()
    suspicion: Suspicion | None = None
    truncation: Truncation | None = None

    @property
    def converged(self) -> bool:
        return self.outcome.converged

    @property
    def iterations(self) -> int:
        return sum(line.num_iterations for line in self.history)

    @property
    def used_labels(self) -> list[str]:
        """The labels of the pairs that were used."""
        everyone = self.moving.labels
        rows = np.flatnonzero(self.used)
        return [everyone[row] for row in rows]

    @property
    def noise_mm(self) -> float:
        """Typical standard deviation of the localisation noise, mm.

        The root mean square over used landmarks and the directions along which they
        are known.
        """
        variances = known_variances(self.fixed, self.noise)
        total = variances[self.used].sum()
        count = self.fixed.known[self.used].sum()
        return float(np.sqrt(total / count))

    @functools.cached_property
    def loo(self) -> LeaveOneOut | None:
        """Leave-one-out, where the landmarks are enough for it; found once.

        A landmark of little weight in a robust fit is judged as any other: its
        weight was found with it.
        """
        try:
            found = self.posterior.leave_one_out()
        except LandmarkError:
            return None
        if not self.robust or self.weights is None:
            return found
        rows = np.flatnonzero(self.used)
        return with_full_weights(
            found,
            self.fixed.points[rows],
            self.noise[rows],
            self.weights[rows],
            [self.fixed.known_directions(row) for row in rows.tolist()],
        )

    @functools.cached_property
    def evaluation(self) -> Evaluation:
        """The posterior prepared for very many points; `posterior` itself does the same now."""
        return self.posterior.prepared

    @functools.cached_property
    def facts(self) -> Facts:
        """What there is to say, found once."""
        return facts_of(self)

    def summary(self) -> str:
        """What was done and how well it went, for people."""
        return console_summary(self.facts)

    def __repr__(self) -> str:
        state = "converged" if self.converged else "not converged"
        return (
            f"<Registration of {len(self.moving)} landmarks in {self.fixed.dimension}-D, "
            f"{self.model}, {state}>"
        )


@on_one_blas_thread
def register(
    moving: Landmarks | ArrayLike,
    fixed: Landmarks | ArrayLike,
    *,
    kernel: AbstractKernel | type[AbstractProfile] | str | None = None,
    noise: ArrayLike | None = None,
    align: str | None = None,
    model: str = "endpoint",
    length_scale: float | None = None,
    amplitude: float | None = None,
    prior: Prior | None = None,
    scale_noise: bool = False,
    robust: bool = False,
) -> Registration:
    """Find the deformation that takes the moving landmarks to the fixed ones, and its uncertainty.

    Args:
        moving, fixed: landmarks in the two spaces, or plain (n, d) arrays; paired
            by name, else by order.
        kernel: the prior's covariance function; or a family (a class or its name,
            such as "matern52"), whose length scale and amplitude are then estimated
            by the evidence; or "best", for the family with the largest evidence.
            Default: a Gaussian, estimated so.
        noise: localisation noise, mm: one standard deviation, (n,) of them, or (n,
            d, d) covariances; inf leaves a landmark out. Default: the covariances
            of the landmarks (a side without any counts as exact), and where neither
            side has any, one estimated value.
        align: "none", "translation", "rigid", "similarity" or "affine"; its
            uncertainty is part of the posterior. Default: "rigid"; with a prior,
            what that was learned with.
        model: "endpoint" (default), "pathwise" (the paper's figure) or "small"
            (small deformation, may fold).
        length_scale, amplitude: of the kernel's family, mm: what is given is kept,
            the rest estimated by the evidence.
        prior: kernel and noise learned on other cases (see `learn_prior`), in place
            of the evidence of this one.
        scale_noise: whether one factor on all given noise is estimated by the
            evidence, too.
        robust: whether the noise has heavy tails (Student's t), so that gross
            errors pull less; see `weights`.
    """
    began = time.perf_counter()
    setting = checks.check_setting(
        kernel=kernel,
        align=align,
        model=model,
        length_scale=length_scale,
        amplitude=amplitude,
        prior=prior,
        scale_noise=scale_noise,
        robust=robust,
    )
    pairs = match(checks.as_landmarks(moving), checks.as_landmarks(fixed))
    pairs = checks.with_prior_noise(pairs, prior, noise)
    marked = checks.check_noise(pairs, noise, scale_noise=scale_noise)
    checks.refuse_unaligned(marked, setting)
    suspects = checks.look_for_suspects(marked, setting)
    remarks = checks.pairing_remarks(pairs, marked, suspects)
    _warn(remarks)  # at once: a fit to the wrong pairs may take long
    with jax.enable_x64(True):
        fitted = fit_pairs(marked, setting.for_suspects(suspects))
    _warn(fitted.remarks)
    reg = _record(pairs, marked, setting, fitted)
    return dataclasses.replace(
        reg,
        suspicion=suspects,
        warnings=remarks + fitted.remarks,
        learned_on=() if prior is None else prior.cases,
        seconds=time.perf_counter() - began,
    )


def _warn(remarks: tuple[str, ...]) -> None:
    """Warn the caller of `register`: three calls up, past its wrapper."""
    for remark in remarks:
        python_warnings.warn(remark, KunitaWarning, stacklevel=4)


def _record(
    pairs: Pairs, marked: NoisyPairs, setting: Setting, fitted: FittedPairs
) -> Registration:
    """The record of a fit to some of the pairs."""
    fit = fitted.fit
    num_pairs = len(pairs.moving)
    return Registration(
        moving=pairs.moving,
        fixed=pairs.fixed,
        pairing=pairs.pairing,
        used=np.isin(np.arange(num_pairs), marked.rows),
        kernel=fit.kernel,
        noise=_among_all(fitted.noise, marked, num_pairs, np.inf),
        align=setting.align,
        model=setting.model,
        posterior=fitted.posterior,
        evidence=fitted.evidence,
        energy=fit.energy,
        outcome=fit.outcome,
        gap_mm=fit.gap_mm,
        history=fit.history,
        warnings=fitted.remarks,
        seconds=0.0,
        chosen=fitted.estimate.parameters,
        robust=setting.robust,
        weights=_among_all(fitted.weights, marked, num_pairs, 0.0),
        truncation=fit.truncation,
    )


def _among_all(
    values: np.ndarray, marked: NoisyPairs, num_pairs: int, otherwise: float
) -> np.ndarray:
    """One entry per pair, those that are not used included."""
    shape = (num_pairs, *values.shape[1:])
    full = np.full(shape, otherwise)
    full[marked.rows] = values
    return full
