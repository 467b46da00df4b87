"""`prior.json`: a prior that was learned on some cases, for others to be registered with."""

import json
import math
import os
from pathlib import Path
from typing import Any

import kunita
from kunita.errors import FileError, InputError
from kunita.inference.intervals import EstimatedParameter
from kunita.inference.trend import check_kind
from kunita.io.summary_files import write_json
from kunita.kernels import FAMILIES, AbstractKernel, Sum
from kunita.outputs.summary import describe, parameter
from kunita.posterior import MODELS
from kunita.prior import Prior

FORMAT = "kunita prior"

OF_SUMMARIES = "residual_mm"
"""A key that summaries of registrations have, and no prior."""


def write_prior(path: str | os.PathLike, prior: Prior, *, overwrite: bool = False) -> None:
    """Write a prior; lengths are standard deviations and scales in mm."""
    write_json(Path(path), prior_document(prior), overwrite=overwrite)


def prior_document(prior: Prior) -> Any:
    """A prior as JSON."""
    return {
        "format": FORMAT,
        "version": kunita.__version__,
        "kernel": describe(prior.kernel),
        "noise_mm": prior.noise_mm,
        "noise_factor": prior.noise_factor,
        "align": prior.align,
        "model": prior.model,
        "cases": list(prior.cases),
        "n_landmarks": prior.num_landmarks,
        "evidence": prior.evidence,
        "converged": prior.converged,
        "parameters": [parameter(one) for one in prior.chosen],
    }


def read_prior(path: str | os.PathLike) -> Prior:
    """Read a prior that `write_prior` or a person wrote: `kernel` and `noise_mm` are all that is
    needed.
    """
    document = _document_of_prior(path)
    try:
        return Prior(
            _kernel(document["kernel"]),
            _number(document, "noise_mm"),
            _number(document, "noise_factor") or 1.0,
            check_kind(str(document.get("align", "rigid"))),
            _model(document),
            tuple(str(case) for case in document.get("cases", ())),
            int(document.get("n_landmarks", 0)),
            _or(document.get("evidence"), math.nan),
            tuple(_parameter(one) for one in document.get("parameters", ())),
            bool(document.get("converged", True)),
        )
    except (KeyError, TypeError, AttributeError, ValueError, InputError) as error:
        raise FileError(
            f"{path}: not a complete prior ({type(error).__name__}: {error})"
        ) from error


def _document_of_prior(path: str | os.PathLike) -> dict[str, Any]:
    """What a file holds, if it is a prior."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FileError(f"{path}: not a prior that could be read ({error})") from error
    if not isinstance(document, dict) or "kernel" not in document:
        raise FileError.at(path, None, "a prior, an object with a 'kernel'", str(document))
    if document.get("format", FORMAT) != FORMAT or OF_SUMMARIES in document:
        raise FileError(
            f"{path}: expected a prior, as `kunita tune` writes it, found another kind of file, "
            "such as the summary of a registration"
        )
    return document


def _kernel(document: Any) -> AbstractKernel:
    if not isinstance(document, dict):
        raise FileError(f"kernel: expected an object with a family, found {document!r:.80}")
    named = {cls.__name__.lower(): cls for cls in FAMILIES.values()} | FAMILIES
    family = str(document["family"]).lower()
    if family == "sum":
        return Sum(tuple(_kernel(part) for part in document["kernels"]))
    if family not in named:
        raise FileError(
            f"kernel: expected one of {', '.join(FAMILIES)}, sum; found {document['family']!r}"
        )
    more = {name: float(value) for name, value in document.items() if name == "alpha"}
    return named[family](
        float(document["length_scale_mm"]), float(document["amplitude_mm"]), **more
    )


def _number(document: Any, name: str) -> float | None:
    value = document.get(name)
    if value is None:
        return None
    if not 0 < float(value) < float("inf"):
        raise FileError(f"{name}: expected a positive number, found {value!r}")
    return float(value)


def _parameter(document: Any) -> EstimatedParameter:
    low, high = _or(document["low"], 0.0), _or(document["high"], math.inf)
    return EstimatedParameter(
        document["name"], float(document["value"]), low, high, bool(document["determined"])
    )


def _model(document: Any) -> str:
    model = str(document.get("model", "endpoint"))
    if model not in MODELS:
        raise FileError(f"model: expected one of {', '.join(MODELS)}, found {model!r}")
    return model


def _or(number: Any, otherwise: float) -> float:
    """A number, or what null stands for."""
    return otherwise if number is None else float(number)
