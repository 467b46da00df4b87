"""Everything that `kunita register` writes, from a registration and the files that it was asked
for.
"""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from kunita.data.geometry import Mesh, Streamlines
from kunita.data.image import Grid, Image, is_slice
from kunita.data.landmarks import Landmarks
from kunita.errors import InverseError
from kunita.io.bids import BidsNames, dataset_description, sidecar
from kunita.io.geometry_files.files import beside, is_geometry, write_geometry
from kunita.io.image_files.files import read_grid, read_image
from kunita.io.landmark_files.files import write_landmarks
from kunita.io.map_files import DESCRIPTIONS, map_suffix, map_writer, write_all_maps, write_map
from kunita.io.provenance import provenance
from kunita.io.registration_files import save
from kunita.io.result_folder import RECORD, REPORT, SHARED, SUMMARY
from kunita.io.slicer_script import slicer_script
from kunita.io.summary_files import summary_document, write_json, write_landmark_rows
from kunita.io.target_files import write_targets
from kunita.io.transform_files import write_transform
from kunita.io.writing import complete
from kunita.jaxrun.doors import on_one_blas_thread
from kunita.jaxrun.threads import in_order
from kunita.outputs import labels as label_maps
from kunita.outputs.carry import carry_geometry, carry_landmarks
from kunita.outputs.dense import Progress, slabs
from kunita.outputs.layers import Layers
from kunita.outputs.maps import Maps, maps
from kunita.outputs.mismatch import mismatch_slabs
from kunita.outputs.summary import LandmarkRows, landmark_rows, summary
from kunita.outputs.targets import (
    describe_targets,
    extrapolation_remarks,
    remoteness,
    source_of,
)
from kunita.outputs.transforms import CompositeTransform, forward_transform, inverse_transform
from kunita.record import Registration
from kunita.report.page import Subject
from kunita.report.result import read_layers, write_report

SCALARS = ("fc", "std", "radius", "jacobian")
SCRIPT = "load_in_slicer.py"
OVERVIEW = "overview.png"
TARGETS = "targets.csv"

PICTURE_CHANNELS = (1, 3, 4)
"""Numbers per pixel that a TIFF file can have: one label each."""

Tell = Callable[[str], Progress]
"""Told what begins; gives what is to be told how far it is."""


@dataclasses.dataclass(frozen=True)
class Request:
    """What to make beside the record: the user's files, and the forms that were asked for."""

    moving_image: Path | None = None
    fixed_image: Path | None = None
    labels: Path | None = None
    targets_file: Path | None = None
    targets: Landmarks | Mesh | Streamlines | None = None
    spacing: Any = None
    covariance: bool = False
    nrrd: bool = False
    nifti_xfm: bool = False
    report: bool = True
    bids: BidsNames | None = None
    moving: Path | None = None
    fixed: Path | None = None
    prior: Path | None = None
    has_landmarks: bool = True
    from_images: bool = False
    moving_mask: Path | None = None
    fixed_mask: Path | None = None
    init: Path | None = None
    command: str | None = None

    @property
    def rename(self) -> Callable[[str], str]:
        """How files are called in the end."""
        return self.bids or (lambda name: name)

    @property
    def transform_suffixes(self) -> tuple[str, ...]:
        return (
            ".h5",
            *((".nrrd",) if self.nrrd else ()),
            *((".nii.gz",) if self.nifti_xfm else ()),
        )


@dataclasses.dataclass(frozen=True)
class Images:
    """The images of a request in memory, read before anything is computed: a broken file is refused
    at once.
    """

    moving: Image | None = None
    fixed: Image | None = None
    labels: Image | None = None


def read_images(request: Request) -> Images:
    """Read the images, and refuse labels that cannot be carried along."""
    files = (request.moving_image, request.fixed_image, request.labels)
    images = Images(
        *(read_image(path, spacing=request.spacing) if path else None for path in files)
    )
    if images.labels is not None:
        label_maps.label_values(images.labels)
    return images


def output_names(request: Request, dimension: int, fixed: Grid | None = None) -> tuple[str, ...]:
    """The names of all files that a request leads to, before anything is computed.

    Args:
        request: what is to be made.
        dimension: of the registration.
        fixed: the grid of the fixed image, if there is one.
    """
    image = map_suffix(dimension, fixed)
    names = [RECORD, SUMMARY, *_point_names(request, dimension)]
    names += [
        f"{side}_xfm{form}"
        for side in ("forward", "inverse")
        for form in request.transform_suffixes
    ]
    names += _script_names(dimension)
    names += _map_names(request, image)
    if request.targets_file:
        target = _target_name(request.targets_file, dimension)
        names += [
            target,
            *(beside(Path(target)) if is_geometry(request.targets_file) else (TARGETS,)),
        ]
    names += [REPORT] if request.report else []
    return (*names, *(SHARED if request.bids else ()))


def _map_names(request: Request, image: str) -> list[str]:
    """The files on the fixed grid, with the suffix of images, and the picture of them."""
    if not request.fixed_image:
        return []
    names = [f"uncertainty_{what}{image}" for what in ("fc", "std", "radius")]
    names.append(f"jacobian{image}")
    names += [f"uncertainty_cov{image}"] if request.covariance else []
    names += [f"warped{image}"] if request.moving_image else []
    names += [f"mismatch{image}"] if request.from_images else []
    names += _label_names(image) if request.labels else []
    names += [OVERVIEW] if request.report else []
    return names


def _label_names(image: str) -> list[str]:
    """A picture holds few labels; how many there are is known when they have been read."""
    suffixes = (image, ".nrrd") if image == ".tif" else (image,)
    return [f"labels_probability{suffix}" for suffix in suffixes]


def _label_suffix(image: str, num_labels: int) -> str:
    """The suffix of images, or .nrrd where a picture cannot hold so many labels."""
    return ".nrrd" if image == ".tif" and num_labels not in PICTURE_CHANNELS else image


def _script_names(dimension: int) -> list[str]:
    """Slicer has volumes only."""
    return [SCRIPT] if dimension == 3 else []


def _point_names(request: Request, dimension: int) -> tuple[str, ...]:
    """The files about landmarks."""
    if not request.has_landmarks:
        return ()
    return ("landmarks.csv", _points_name("predicted", dimension))


@on_one_blas_thread
def write_results(
    reg: Registration,
    request: Request,
    images: Images,
    folder: Path,
    place: Path,
    remarks: tuple[str, ...],
    tell: Tell,
) -> Any:
    """Write all files into `folder` and give the summary; `place` is where they will be in the end."""
    save(reg, folder / RECORD)
    rows, found = landmark_rows(reg), None
    _write_points(reg, rows, folder)
    remarks += _write_transforms(reg, request, images, folder, tell)
    if images.fixed is not None:
        try:
            found = maps(reg, images.fixed, tell("evaluating the posterior"))
            remarks += _write_maps(reg, found, request, images, folder, tell)
        except InverseError as error:
            remarks += (f"no maps on the fixed grid: {error}",)
    targets, doubts = _write_targets(reg, request, folder) if request.targets_file else ((), ())
    remarks += doubts
    told = summary(reg, rows, found, targets, remarks, images.labels)
    document = summary_document(told, **_origin(request, images))
    files = _write_for_others(request, folder, place, document)
    if request.report:
        tell("drawing the report")
        layers = _layers(reg, images, found, folder)
        _write_overview(found, layers, rows, folder)
        write_report(
            Subject(reg, rows, document, found, layers, tuple(files.items())), folder / REPORT
        )
    write_json(folder / SUMMARY, document)
    return document


def _write_points(reg: Registration, rows: LandmarkRows, folder: Path) -> None:
    if not len(reg.moving):
        return
    write_landmark_rows(folder / "landmarks.csv", rows)
    predicted = Landmarks(rows.predicted, reg.moving.labels, rows.covariances)
    write_landmarks(folder / _points_name("predicted", reg.fixed.dimension), predicted)


def _write_transforms(
    reg: Registration, request: Request, images: Images, folder: Path, tell: Tell
) -> tuple[str, ...]:
    """Both directions, one written while the other is computed; remarks on what could not be made
    exact enough.
    """

    def made() -> Iterator[tuple[str, CompositeTransform | InverseError]]:
        yield (
            "inverse_xfm",
            inverse_transform(reg, _grid(images.moving), tell("transform of fixed images")),
        )
        try:
            yield (
                "forward_xfm",
                forward_transform(reg, _grid(images.fixed), tell("transform of moving images")),
            )
        except InverseError as error:
            yield "forward_xfm", error

    def write(one: tuple[str, CompositeTransform | InverseError]) -> str | None:
        name, transform = one
        if isinstance(transform, InverseError):
            return f"no {name}: {transform}"
        for suffix in request.transform_suffixes:
            write_transform(folder / f"{name}{suffix}", transform)
        error = f"{transform.error_mm:.2g} mm; for points use `kunita predict`"
        return None if transform.good else f"{name}: interpolating its field errs by up to {error}"

    return tuple(remark for remark in in_order(write, made()) if remark)


def _write_maps(
    reg: Registration, found: Maps, request: Request, images: Images, folder: Path, tell: Tell
) -> tuple[str, ...]:
    """Everything on the fixed grid."""
    suffix, remarks = map_suffix(found.grid.dimension, found.grid), found.remarks
    write_all_maps(folder, found, SCALARS, images.moving, tell("writing the maps"))
    _write_mismatch(found, reg, folder)
    if request.covariance:
        write_map(folder / f"uncertainty_cov{suffix}", found, "cov", tell("covariance map"))
    if images.labels is not None:
        num_labels = len(label_maps.label_values(images.labels))
        path = folder / f"labels_probability{_label_suffix(suffix, num_labels)}"
        remarks += _write_labels(found, images.labels, path, tell("label probability"))
    return remarks


def _write_labels(found: Maps, labels: Image, path: Path, progress: Progress) -> tuple[str, ...]:
    values = label_maps.label_values(labels)
    several = len(values) > 1
    with map_writer(
        path, found.grid, np.float32, channels=len(values) if several else None
    ) as write:
        for slab, part in zip(
            slabs(found.grid), label_maps.probability_slabs(found, labels), strict=True
        ):
            write(part if several else part[..., 0])
            progress((slab[-1][-1] + 1) / found.grid.shape[-1])
    order = ", ".join(str(value) for value in values)
    return (f"{path.name}: one channel per label, in the order {order}",) if several else ()


def _write_mismatch(found: Maps, reg: Registration, folder: Path) -> None:
    """Where the images that drove a registration do not match, on the fixed grid."""
    if reg.images is None:
        return
    path = folder / f"mismatch{map_suffix(found.grid.dimension, found.grid)}"
    description = DESCRIPTIONS["mismatch"]
    with map_writer(path, found.grid, np.float32, description=description) as write:
        for part in mismatch_slabs(found.pull_back, reg.images.mismatch_map):
            write(part)


def _layers(reg: Registration, images: Images, found: Maps | None, folder: Path) -> Layers:
    """What there is to look at; the moving image as well where it drove the fit."""
    if found is None:
        return Layers()
    moving = None if reg.images is None else images.moving
    return read_layers(folder, images.fixed, moving=moving)


def _write_overview(found: Maps | None, layers: Layers, rows: LandmarkRows, folder: Path) -> None:
    """The slices of the report as a picture of their own."""
    if found is None:
        return
    from kunita.figures.overview import overview

    figure = overview(found, layers, rows)
    with complete(folder / OVERVIEW) as partial:
        figure.savefig(partial, format="png", dpi=120, facecolor="white")


def _write_targets(
    reg: Registration, request: Request, folder: Path
) -> tuple[tuple[Any, ...], tuple[str, ...]]:
    """The user's points of the moving space in fixed space; what the summary says of them, and what
    it warns of.
    """
    assert request.targets_file is not None
    name, points = _target_name(request.targets_file, reg.fixed.dimension), request.targets
    if isinstance(points, Mesh | Streamlines):
        return _write_geometry(reg, points, folder / name)
    assert points is not None
    targets = describe_targets(reg, points)
    write_targets(folder / TARGETS, targets)
    if name != TARGETS:
        write_landmarks(folder / name, carry_landmarks(reg, points))
    entries = (
        {**dataclasses.asdict(target), "inside_hull": target.inside_hull} for target in targets
    )
    return tuple(entries), tuple(extrapolation_remarks(targets, source_of(reg)))


def _write_geometry(
    reg: Registration, geometry: Mesh | Streamlines, path: Path
) -> tuple[tuple[Any, ...], tuple[str, ...]]:
    """The same for a mesh or streamlines, whose vertices have no names."""
    moved, values = carry_geometry(reg, geometry)
    write_geometry(path, moved, values)
    middle, most = (float(f(values.radius)) for f in (np.median, np.max))
    share = float(np.mean(remoteness(reg, geometry.points).extrapolates))
    entry = {
        "file": path.name,
        "n": len(moved.points),
        "median_radius95_mm": middle,
        "max_radius95_mm": most,
        "extrapolating": share,
    }
    far = f"{path.name}: {100 * share:.0f} % of the vertices are extrapolations, whose uncertainty rests on the prior"
    return (entry,), (far,) if share > 0 else ()


def _write_for_others(request: Request, folder: Path, place: Path, document: Any) -> dict[str, str]:
    """Sidecars and the script for Slicer; the summary then lists all files, those that are still to
    come as well.

    The names in the folder, by the usual ones.
    """
    rename = request.rename
    if request.bids:
        for stem in sorted(
            {file.name.partition(".")[0] for file in folder.iterdir()}
        ):  # one for all forms of a file
            text = sidecar(stem, request.bids)
            if text is not None:
                write_json(folder / f"{stem}.json", text)
        write_json(folder / SHARED[0], dataset_description())
        (folder / SHARED[1]).write_text("**/xfm/\n", encoding="utf-8")
    files = {file.name: Path(rename(file.name)) for file in sorted(folder.iterdir())}
    if document["dimension"] == 3:
        images = [
            str(path.absolute()) for path in (request.fixed_image, request.moving_image) if path
        ]
        home = (place / rename(SCRIPT)).parent.absolute()
        script = slicer_script(
            str(home), [(usual, there.name) for usual, there in files.items()], images
        )
        (folder / SCRIPT).write_text(script, encoding="utf-8")
        files[SCRIPT] = Path(rename(SCRIPT))
    pictures = (OVERVIEW,) if any(folder.glob("jacobian.*")) else ()
    for name in (*((*pictures, REPORT) if request.report else ()), SUMMARY):
        files[name] = Path(rename(name))
    own = {usual: there for usual, there in files.items() if usual not in SHARED}
    document["files"] = [str(there) for there in own.values()]
    document["file_names"] = {usual: there.name for usual, there in own.items()}
    return document["file_names"]


def _origin(request: Request, images: Images) -> dict[str, Any]:
    """Where the result comes from, and the grids that the maps were made on: `kunita warp` uses the
    same.
    """
    paths = {"moving": request.moving_image, "fixed": request.fixed_image}
    grids = {"moving": _grid(images.moving), "fixed": _grid(images.fixed)}
    inputs = {
        "moving": request.moving,
        "fixed": request.fixed,
        "moving_image": request.moving_image,
        "fixed_image": request.fixed_image,
        "moving_mask": request.moving_mask,
        "fixed_mask": request.fixed_mask,
        "init": request.init,
        "labels": request.labels,
        "targets": request.targets_file,
        "prior": request.prior,
    }
    return {
        "images": {side: str(path) if path else None for side, path in paths.items()},
        "grids": {side: _described(grid) for side, grid in grids.items()},
        "slices": {side: _described(_slice(path)) for side, path in paths.items()},
        **provenance(inputs, request.command),
    }


def _grid(image: Image | None) -> Grid | None:
    return None if image is None else image.grid


def _slice(path: Path | None) -> Grid | None:
    """The grid of a volume of one slice, which its plane does not tell."""
    grid = read_grid(path) if path else None
    return grid if grid is not None and is_slice(grid) else None


def _described(grid: Grid | None) -> dict[str, Any] | None:
    return None if grid is None else {"shape": grid.shape, "affine": grid.affine}


def _points_name(stem: str, dimension: int) -> str:
    return f"{stem}.mrk.json" if dimension == 3 else f"{stem}.csv"


def _target_name(path: Path, dimension: int) -> str:
    return (
        f"targets{path.suffix.lower()}" if is_geometry(path) else _points_name("targets", dimension)
    )
