"""Names and sidecars of a result as a BIDS derivative.

Subject, session and suffix are read from the names of the user's own images (or landmarks).
`from-A_to-B_mode-image` is the file that moves *images* from A to B: as a map of points it goes
from B to A, and the sidecar says both.
"""

import dataclasses
import re
from pathlib import Path
from typing import Any

import kunita
from kunita.errors import FileError

DESCRIPTIONS = {
    "uncertainty_fc": (
        "desc-regfro_uncertainty",
        "Frobenius norm of the posterior covariance",
        "mm2",
    ),
    "uncertainty_std": (
        "desc-regstd_uncertainty",
        "Posterior standard deviation along a typical axis",
        "mm",
    ),
    "uncertainty_radius": (
        "desc-regradius95_uncertainty",
        "Radius of the ball that holds the true point, 95 %",
        "mm",
    ),
    "uncertainty_cov": (
        "desc-regcov_uncertainty",
        "Posterior covariance, xx yx yy zx zy zz, LPS",
        "mm2",
    ),
    "jacobian": (
        "desc-regjacobian_map",
        "Determinant of the Jacobian of moving to fixed, at the pre-image",
        "1",
    ),
    "mismatch": (
        "desc-regmismatch_map",
        "Noise around a voxel over the usual one: above two the images do not match",
        "1",
    ),
    "labels_probability": (
        "desc-labels_probseg",
        "Probability that a voxel belongs to the label",
        "1",
    ),
}


@dataclasses.dataclass(frozen=True)
class BidsNames:
    """How a result's files are called: subject, and what is moved onto what."""

    subject: str
    moving: str
    fixed: str
    suffix: str

    @property
    def folder(self) -> str:
        return f"sub-{self.subject}/xfm"

    def __call__(self, name: str) -> str:
        """The path of one of the usual files below the derivative's root."""
        if name in ("dataset_description.json", ".bidsignore"):
            return name
        stem, _, ending = name.partition(".")
        return f"{self.folder}/sub-{self.subject}_{self._entities(stem)}.{ending}"

    def _entities(self, stem: str) -> str:
        there, back = f"from-{self.moving}_to-{self.fixed}", f"from-{self.fixed}_to-{self.moving}"
        if stem in DESCRIPTIONS:
            return f"space-{self.fixed}_{DESCRIPTIONS[stem][0]}"
        usual = {
            "forward_xfm": f"{there}_mode-image_desc-mean_xfm",
            "inverse_xfm": f"{back}_mode-image_desc-mean_xfm",
            "warped": f"space-{self.fixed}_desc-warped_{self.suffix}",
            "landmarks": f"space-{self.fixed}_desc-pairs_landmarks",
            "predicted": f"space-{self.fixed}_desc-warped_landmarks",
            "targets": f"space-{self.fixed}_desc-targets_landmarks",
        }
        return usual.get(stem, f"{there}_{stem}")


def bids_names(moving: Path, fixed: Path) -> BidsNames:
    """Names from the files' own: sub-01_ses-preop_T1w.nii.gz and sub-01_ses-intraop_US.nii.gz, say."""
    (subject, moving_label, suffix), (other, fixed_label, _) = _parse(moving), _parse(fixed)
    if subject != other:
        raise FileError(
            f"{fixed}: expected the subject sub-{subject} of {moving.name}, found sub-{other}"
        )
    if moving_label == fixed_label:
        moving_label, fixed_label = f"{moving_label}moving", f"{fixed_label}fixed"
    return BidsNames(subject, moving_label, fixed_label, suffix)


def sidecar(name: str, names: BidsNames) -> Any:
    """What a file is, in JSON; None for files that say it themselves."""
    stem = name.partition(".")[0]
    by = {"GeneratedBy": [{"Name": "kunita", "Version": kunita.__version__}]}
    if stem in DESCRIPTIONS:
        _, text, unit = DESCRIPTIONS[stem]
        return {"Description": text, "Units": unit, "Space": names.fixed, **by}
    if stem in ("forward_xfm", "inverse_xfm"):
        ends = (names.moving, names.fixed) if stem == "forward_xfm" else (names.fixed, names.moving)
        return {
            "ImageMapping": f"{ends[0]}->{ends[1]}",
            "PointMapping": f"{ends[1]}->{ends[0]}",
            "Units": "mm",
            "CoordinateSystem": "LPS",
            **by,
        }
    return {"Space": names.fixed, **by} if stem == "warped" else None


def dataset_description() -> Any:
    """The file that makes a folder a BIDS derivative."""
    return {
        "Name": "Kunita registrations",
        "BIDSVersion": "1.9.0",
        "DatasetType": "derivative",
        "GeneratedBy": [{"Name": "kunita", "Version": kunita.__version__}],
    }


def _parse(path: Path) -> tuple[str, str, str]:
    stem = path.name.partition(".")[0]
    entities = dict(part.split("-", 1) for part in stem.split("_") if "-" in part)
    suffix = re.sub(r"[^0-9A-Za-z]", "", stem.split("_")[-1].split("-")[-1]) or "image"
    if not re.fullmatch(r"[0-9A-Za-z]+", entities.get("sub", "")):
        raise FileError.at(
            path, None, "a BIDS name such as sub-01_T1w.nii.gz (for --bids)", path.name
        )
    return entities["sub"], entities.get("ses", "") + suffix, suffix
