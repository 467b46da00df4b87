"""Kunita: probabilistic diffeomorphic registration of landmarks.

The way the data flow:

    read_landmarks, read_image    files of many formats; in memory RAS mm, always (2-D: x right, y
    down) Landmarks, Landmarks          what was marked, in moving and in fixed space
      → register(moving, fixed)   pairs, aligns, chooses a kernel and a noise, solves
        → kernel                  the prior: a Brownian flow of diffeomorphisms
        → shoot, transport        the mean flow, and any point along it
        → moments, simulate       the uncertainty of the flow, in closed form and by simulation
      → Posterior                 predict, inverse, covariance, jacobian, sample, leave_one_out
      → uncertainty_map, warp_image, label_probability      on whole grids
      → write_transform, write_image, write_landmarks       files that other programs open
    save, load                    the whole record in one file

Nothing is imported until it is used.
"""

import importlib
import sys
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
    "LeaveOneOut": "kunita.inference.leave_out",
    "Posterior": "kunita.posterior",
    "Landmarks": "kunita.data.landmarks",
    "pool_raters": "kunita.data.raters",
    "Grid": "kunita.data.image",
    "Image": "kunita.data.image",
    "read_landmarks": "kunita.io.landmark_files.files",
    "write_landmarks": "kunita.io.landmark_files.files",
    "read_image": "kunita.io.image_files.files",
    "write_image": "kunita.io.image_files.files",
    "Registration": "kunita.record",
    "register": "kunita.registration",
    "Prior": "kunita.prior",
    "Lesson": "kunita.cohort.prior",
    "learn_prior": "kunita.cohort.prior",
    "read_prior": "kunita.io.prior_files",
    "write_prior": "kunita.io.prior_files",
    "Case": "kunita.data.case",
    "read_cases": "kunita.io.case_table",
    "describe_targets": "kunita.outputs.targets",
    "suggest_landmarks": "kunita.outputs.suggestions",
    "uncertainty_map": "kunita.outputs.maps",
    "warp_image": "kunita.outputs.warp",
    "label_probability": "kunita.outputs.labels",
    "forward_transform": "kunita.outputs.transforms",
    "inverse_transform": "kunita.outputs.transforms",
    "write_transform": "kunita.io.transform_files",
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
    _attach_cards()
    return value


def _attach_cards() -> None:
    """Give registrations and posteriors the method by which notebooks show an object.

    It is attached from here, since the modules of the core know nothing of HTML, and only to
    classes that are loaded, since importing `kunita` imports nothing else.
    """
    for (module, name), show in _SHOWN.items():
        shown = getattr(sys.modules.get(module), name, None)
        if shown is not None and not hasattr(shown, "_repr_html_"):
            shown._repr_html_ = show


def _show_registration(self: Any) -> str:
    from kunita import notebook

    return notebook.show_registration(self)


def _show_posterior(self: Any) -> str | None:
    from kunita import notebook

    return notebook.show_posterior(self)


_SHOWN = {
    ("kunita.record", "Registration"): _show_registration,
    ("kunita.posterior", "Posterior"): _show_posterior,
}


def __dir__() -> list[str]:
    return sorted(__all__)
