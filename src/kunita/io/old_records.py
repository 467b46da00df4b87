"""Records of version 1: what they call a posterior, as the posterior of today.

In version 1 the linear model was of landmarks alone: a factor of Λ + D in place of that of
S = HΛHᵀ + I, and the posterior held the landmarks' targets and noise in place of rows.
"""

from typing import Any

import numpy as np

from kunita.inference.path_space import (
    AbstractPathSpace,
    LowRankPathSpace,
    PathSpace,
    apply_to_matrix,
)
from kunita.inference.search import Progress
from kunita.jaxrun.doors import door
from kunita.observations.base import Rows
from kunita.observations.landmarks import LandmarkObservations
from kunita.posterior import Posterior

Fields = dict[str, Any]
"""The fields of an object in a file, by their names."""


@door
def posterior_of_version_1(fields: Fields) -> Posterior:
    """The posterior of today from the fields of version 1."""
    targets = fields["targets"]
    noise = fields["noise"]
    linear = dict(fields["linear"])
    is_dense = "factor" in linear
    if is_dense:
        arrived = fields["trajectory"].positions[-1]
    else:
        # Only the control points' trajectory was kept. At the fit F − φ₁ = Dλ.
        arrived = targets - np.einsum("iab,ib->ia", noise, fields["dual"])
    observed = LandmarkObservations(targets, targets, noise)
    rows = observed.rows(arrived, np.zeros_like(noise))
    kept = {name: value for name, value in fields.items() if name not in REPLACED}
    return Posterior(
        **kept,
        arrived=arrived,
        linear=_dense(linear, rows) if is_dense else _low_rank(linear, rows, noise),
    )


def progress_of_version_1(fields: Fields) -> Progress:
    """A line of the log; a factor on the noise, which version 1 lowered in stages, is dropped."""
    kept = {name: value for name, value in fields.items() if name != "noise_factor"}
    return Progress(**kept)


REPLACED = ("targets", "noise", "linear")


def _dense(linear: Fields, rows: Rows) -> AbstractPathSpace:
    """chol(S) = H chol(Λ + D), since H = C⁻¹ is lower triangular at every landmark."""
    factor = apply_to_matrix(rows, linear["factor"])
    return PathSpace(rows=rows, **{**linear, "factor": factor})


def _low_rank(linear: Fields, rows: Rows, noise: np.ndarray) -> AbstractPathSpace:
    """From G with GGᵀ = D + E and Ũ = UG⁻ᵀ: U = ŨGᵀ, E = GGᵀ − D, R = G⁻¹."""
    factor = linear.pop("noise_factor")
    whitened = linear.pop("whitened")
    by_site = whitened.reshape(len(whitened), *factor.shape[:2])
    root = np.einsum("kib,iab->kia", by_site, factor).reshape(whitened.shape)
    total = factor @ factor.swapaxes(1, 2)
    log_dets = np.linalg.slogdet(total)[1] - np.linalg.slogdet(noise)[1]
    return LowRankPathSpace(
        rows=rows,
        root=root,
        left=total - noise,
        site_root=np.linalg.inv(factor),
        site_log_det=np.asarray(log_dets.sum()),
        **linear,
    )
