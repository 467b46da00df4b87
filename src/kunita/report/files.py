"""The files of a result: what each means, and how to open it in Slicer, with ANTs and with
SimpleITK.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

SLICER, ANTS, SITK = "3D Slicer (Python console)", "ANTs", "SimpleITK (Python)"
IMPORT = "import SimpleITK as sitk"

MODELS = ("vtk", "vtp", "ply", "stl")
"""Meshes that Slicer reads."""

MEANINGS = {
    "registration.h5": "the complete record: everything else can be made again from it",
    "summary.json": "all numbers of this page, for programs",
    "landmarks.csv": "one row per landmark: moving, fixed, predicted, covariance, errors",
    "predicted": "the moving landmarks in fixed space, with covariances",
    "forward_xfm": "warps the moving image onto the fixed one; as a map of points it goes from fixed to moving",
    "inverse_xfm": "warps the fixed image onto the moving one; as a map of points it goes from moving to fixed",
    "warped": "the moving image on the fixed grid",
    "uncertainty_fc": "Frobenius norm of the covariance, mm²",
    "uncertainty_std": "standard deviation along a typical axis, mm",
    "uncertainty_radius": "radius of the ball that holds the true point, 95 %, mm",
    "uncertainty_cov": "covariance, xx yx yy zx zy zz, LPS, mm²",
    "jacobian": "Jacobian determinant of the map; above 1 tissue expands",
    "mismatch": "how badly the images match: local noise over the usual noise; 1 where they match, above 2 "
    "where they do not, 0 where nothing was compared",
    "labels_probability": "probability that a voxel belongs to the label",
    "targets": "your targets in fixed space, with their uncertainty",
    "load_in_slicer.py": "loads everything into 3D Slicer",
    "overview.png": "planes through images and uncertainty",
    "report.html": "this page",
}
"""By its usual name, or the part before the suffix."""


MISSING: Mapping[str, Sequence[float]] = MappingProxyType({})


@dataclasses.dataclass(frozen=True)
class Opening:
    """How a program opens a file: a command to copy."""

    program: str
    command: str


@dataclasses.dataclass(frozen=True)
class ResultFile:
    """A file of a result."""

    name: str
    meaning: str
    openings: tuple[Opening, ...]


def result_files(
    files: Sequence[tuple[str, str]],
    dimension: int,
    spacings: Mapping[str, Sequence[float]] = MISSING,
) -> tuple[ResultFile, ...]:
    """Pairs of usual name and name in the folder, explained; sidecars and files of a whole dataset
    are not.

    In 2-D the transforms speak of millimetres as the registration did: `spacings` of the moving and
    the fixed picture.
    """
    return tuple(
        ResultFile(name, meaning, tuple(_openings(usual, name, dimension, spacings)))
        for usual, name in files
        if (meaning := _meaning(usual)) is not None
    )


def _meaning(usual: str) -> str | None:
    stem = usual.partition(".")[0]
    sidecar = usual.endswith(".json") and not usual.endswith(".mrk.json")
    return MEANINGS.get(usual, None if sidecar else MEANINGS.get(stem))


def _openings(
    usual: str, name: str, dimension: int, spacings: Mapping[str, Sequence[float]]
) -> Iterator[Opening]:
    """The commands; names are quoted as Python and the shell want them (they have no spaces: ours)."""
    stem, _, suffix = usual.partition(".")
    if usual == "load_in_slicer.py":
        yield Opening("shell", f"Slicer --python-script {name}")
    elif stem.endswith("_xfm"):
        yield from _transform(stem, name, dimension, spacings)
    elif suffix == "nii.gz":
        yield Opening(SLICER, f'slicer.util.loadVolume("{name}")')
        yield Opening("ANTs (ANTsPy)", f'import ants; image = ants.image_read("{name}")')
        yield Opening(SITK, f'{IMPORT}; image = sitk.ReadImage("{name}")')
    elif suffix in ("tif", "nrrd"):
        yield Opening(SITK, f'{IMPORT}; image = sitk.ReadImage("{name}")')
    elif suffix == "mrk.json":
        yield Opening(SLICER, f'slicer.util.loadMarkups("{name}")')
    elif suffix in MODELS:
        yield Opening(SLICER, f'slicer.util.loadModel("{name}")')
    elif usual == "registration.h5":
        yield Opening("Kunita (Python)", f'import kunita; reg = kunita.load("{name}")')
        yield Opening(
            "Kunita (shell)", f"kunita predict {name} POINTS.csv --out predicted_points.csv"
        )
    elif suffix == "csv":  # the first line states the frame; a name may have a # in it
        yield Opening(
            "pandas (Python)", f'import pandas; table = pandas.read_csv("{name}", skiprows=1)'
        )


def _transform(
    stem: str, name: str, dimension: int, spacings: Mapping[str, Sequence[float]]
) -> Iterator[Opening]:
    """Images one way and points the other: the same file does both."""
    image, onto = ("MOVING", "FIXED") if stem == "forward_xfm" else ("FIXED", "MOVING")
    if dimension == 3:
        yield Opening(SLICER, f'slicer.util.loadTransform("{name}")')
    if name.endswith(".nrrd"):  # Slicer's own form: ITK's programs take the .h5
        return
    form = "nii.gz" if dimension == 3 else "png"
    out = f"{image.lower()}_on_{onto.lower()}.{form}"
    yield Opening(
        ANTS,
        f"antsApplyTransforms -d {dimension} -i {image}.{form} -r {onto}.{form} -t {name} -o {out}",
    )
    frame = " (x, y, z in LPS)" if dimension == 3 else ""
    points = f"antsApplyTransformsToPoints -d {dimension} -i {onto}_points.csv -o moved_points.csv -t {name}"
    yield Opening(f"ANTs, points{frame}", points)
    moved = f'{IMPORT}; image, onto = sitk.ReadImage("{image}.{form}"), sitk.ReadImage("{onto}.{form}"); '
    if dimension == 2:  # a picture's print density is not the registration's spacing
        sides = (("image", image.lower()), ("onto", onto.lower()))
        moved += "".join(f"{one}.SetSpacing({_spacing(spacings, side)}); " for one, side in sides)
    yield Opening(SITK, f'{moved}moved = sitk.Resample(image, onto, sitk.ReadTransform("{name}"))')


def _spacing(spacings: Mapping[str, Sequence[float]], side: str) -> str:
    return ", ".join(f"{step:.9g}" for step in spacings.get(side, (1.0, 1.0))).join("()")
