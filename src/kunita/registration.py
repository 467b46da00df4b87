"""`register`, the one door: where landmarks meet the model."""

import dataclasses
import time
import warnings as python_warnings
from typing import Any

import jax
import numpy as np

from kunita import checks
from kunita.checks import NoisyPairs, Setting
from kunita.data.landmarks import Pairs, match
from kunita.errors import KunitaWarning
from kunita.fitting import FittedPairs, fit_pairs
from kunita.image_checks import GivenImages
from kunita.image_registration import register_with_images
from kunita.jaxrun.doors import ArrayLike, on_one_blas_thread
from kunita.kernels import AbstractKernel, AbstractProfile
from kunita.prior import Prior
from kunita.record import Registration


@on_one_blas_thread
def register(
    moving: Any = None,
    fixed: Any = None,
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
    moving_image: Any = None,
    fixed_image: Any = None,
    metric: str | None = None,
    moving_mask: Any = None,
    fixed_mask: Any = None,
    init: Any = None,
    key: int | None = None,
    quick: bool = False,
) -> Registration:
    """Find the deformation that takes the moving landmarks to the fixed ones, and its uncertainty.

    With a moving and a fixed image these drive the fit, alone or together with
    landmarks: each counts by its own precision.

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
        moving_image, fixed_image: `Image`s that drive the fit. A volume of one
            slice is taken as a plane, colours as their luminance.
        metric: "lncc" compares how intensities stand out from their surroundings,
            "ssd" the intensities themselves, "both" both. Default: "lncc".
        moving_mask, fixed_mask: images that are positive where theirs count.
        init: where the alignment of images starts: the path of an ITK transform in
            the direction of `forward_xfm`, or a matrix from moving to fixed space.
            Default: a search by mutual information.
        key: of the random numbers for images. Default: 0.
        quick: whether a first look at images will do: the finest level is left out,
            the prior is a default unless it is given, and there are fewer draws.
    """
    asked: dict[str, Any] = {
        "kernel": kernel,
        "align": align,
        "model": model,
        "length_scale": length_scale,
        "amplitude": amplitude,
        "prior": prior,
        "scale_noise": scale_noise,
        "robust": robust,
    }
    images = GivenImages(
        moving=moving_image,
        fixed=fixed_image,
        moving_mask=moving_mask,
        fixed_mask=fixed_mask,
        metric=metric,
        init=init,
        key=key,
        quick=quick,
    )
    if moving_image is not None or fixed_image is not None:
        return register_with_images(moving, fixed, images, noise=noise, **asked)
    images.refuse_without_images()
    return _register_landmarks(moving, fixed, noise, checks.check_setting(**asked), prior)


def _register_landmarks(
    moving: Any, fixed: Any, noise: ArrayLike | None, setting: Setting, prior: Prior | None
) -> Registration:
    """Register landmarks alone."""
    began = time.perf_counter()
    checks.refuse_without_landmarks(moving, fixed)
    pairs = match(checks.as_landmarks(moving), checks.as_landmarks(fixed))
    pairs = checks.with_prior_noise(pairs, prior, noise)
    marked = checks.check_noise(pairs, noise, scale_noise=setting.scale_noise)
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
    """Warn the caller of `register`: four calls up, past its wrapper."""
    for remark in remarks:
        python_warnings.warn(remark, KunitaWarning, stacklevel=5)


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
        noise=marked.among_all(fitted.noise, num_pairs, np.inf),
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
        weights=marked.among_all(fitted.weights, num_pairs, 0.0),
        truncation=fit.truncation,
    )
