"""Kunita: probabilistic diffeomorphic registration of landmarks.

The way the data flow:

    Landmarks, Landmarks          what was marked, in moving and in fixed space
      → register(moving, fixed)   pairs, aligns, chooses a kernel and a noise, solves
        → kernel                  the prior: a Brownian flow of diffeomorphisms
        → shoot, transport        the mean flow, and any point along it
        → moments, simulate       the uncertainty of the flow, in closed form and by simulation
      → Posterior                 predict, inverse, covariance, jacobian, sample, leave_one_out
    save, load                    the whole record in one file

Nothing is imported until it is used.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

_HOME = {
    "Gaussian": "kunita.kernels",
    "Matern32": "kunita.kernels",
    "Matern52": "kunita.kernels",
    "Matern72": "kunita.kernels",
    "RationalQuadratic": "kunita.kernels",
    "Sum": "kunita.kernels",
    "Trajectory": "kunita.flow.shooting",
    "shoot": "kunita.flow.shooting",
    "reverse": "kunita.flow.shooting",
    "transport": "kunita.flow.transport",
    "Moments": "kunita.flow.moments",
    "moments": "kunita.flow.moments",
    "simulate": "kunita.flow.simulate",
    "GaussianPoints": "kunita.gaussians",
    "LeaveOneOut": "kunita.posterior",
    "Posterior": "kunita.posterior",
    "Landmarks": "kunita.data.landmarks",
    "Registration": "kunita.registration",
    "register": "kunita.registration",
    "save": "kunita.io.registration_files",
    "load": "kunita.io.registration_files",
    "KunitaError": "kunita.errors",
    "KunitaWarning": "kunita.errors",
}

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'kunita' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
