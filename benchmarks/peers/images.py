"""Image registration by ANTs (SyN) and elastix, on the images that Kunita is tried on.

Makes an environment for both in `.bench/registration`, runs each job there in a process of its own
with one thread, and adds its results to a file. Print what a file holds by naming no job.

    nice python benchmarks/peers/images.py --out .bench/images/peers.json lung-elastix lung-syn-mi \
        oasis-syn-cc histology-syn histology-elastix
    python benchmarks/peers/images.py --out .bench/images/peers.json

| job | fixed ← moving | start | method |
|---|---|---|---|
| lung-elastix | baseline ← follow-up, dilated lung mask | given affine | default B-spline map, 12 mm |
| lung-syn-mi | the same | the same | ANTsPy's default SyN: MI, 40/20/0 |
| oasis-syn-cc | 20 pairs, both ways | ANTsPy's affine, timed with it | CC, radius 4, 40/20/10 |
| histology-syn | ten pairs of stains | multi-start affine | ANTsPy's default SyN |
| histology-elastix | the same | the same | default B-spline map, 10 quarter-size pixels |

Times are of the registration alone, imports and reading excluded, and as the library is called:
both also resample the moving image. Peak memory (`peak_mb`) is that of the process up to the end of
the registration; `start_mb` is what imports and images alone had taken. The maps of OASIS are
stored beside the file, in `oasis/FIXED-MOVING.npz`: for every voxel of the fixed slice its
`positions` in the moving slice, in voxels. The affines of histology are stored in
`histology-affines.json`, in full-size pixels, and are made only where that file is absent. A fold
is a voxel whose Jacobian determinant, by central differences of the whole map, is not positive.
"""

import argparse
import dataclasses
import functools
import importlib.metadata
import itertools
import json
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import SimpleITK as sitk

sys.path.append(str(Path(__file__).resolve().parents[1]))

import image_data
from image_data import Affine, Section, Subject, Timed, Volume, distances, folding, summary
from image_tables import shown, table

PROJECT = Path(__file__).resolve().parents[2]

REQUIREMENTS = """\
antspyx==0.6.3
itk-elastix==0.25.4
nibabel==5.4.2
numpy==2.3.5
SimpleITK==2.5.7
"""

SETTINGS = {
    "ITK_GLOBAL_DEFAULT_NUMBER_OF_THREADS": "1",
    "ITK_GLOBAL_DEFAULT_NUMBER_OF_ITHREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "ANTS_RANDOM_SEED": "1",
}
"""Environment of a job: one thread, and the same samples in every run."""

LUNG_GRID_MM = 12.0
RESOLUTIONS = 4
SYN_MI = {"type_of_transform": "SyNOnly", "reg_iterations": (40, 20, 0)}
SYN_CC = {
    "type_of_transform": "SyN",
    "syn_metric": "CC",
    "syn_sampling": 4,
    "reg_iterations": (40, 20, 10),
}

START_ANGLES_DEG = (-60, -30, -15, 0, 15, 30, 60, 180)
"""Of the rigid searches that precede the affine one on histology."""

SEED = 1
"""Of the samples of the affine search; SimpleITK takes the clock where none is given."""

AFFINES = "histology-affines.json"

Record = dict[str, Any]
"""What is stored of one registration."""


@dataclasses.dataclass(frozen=True, eq=False)
class Registered:
    """A map from the fixed to the moving image and what it took to find it.

    Args:
        points: where the fixed landmarks go.
        positions: where all voxels of the fixed image go, (*shape, d).
        cost: time and memory.
    """

    points: np.ndarray
    positions: np.ndarray
    cost: Record


def main() -> None:
    """Run the jobs that were asked for and print all results of the file."""
    arguments = parsed()
    if arguments.alone:
        run_alone(arguments)
        return
    if arguments.jobs:
        python = environment(arguments.environment)
        for job in arguments.jobs:
            run_apart(python, job, arguments)
    print("\n".join(tables(stored(arguments.out))))


def parsed() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("jobs", nargs="*", metavar="JOB", help=" ".join(JOBS))
    parser.add_argument("--data", metavar="DIR", help="folder of the images (KUNITA_DATA)")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.json")
    parser.add_argument(
        "--environment",
        type=Path,
        default=PROJECT / ".bench" / "registration",
        metavar="DIR",
        help="where ANTs and elastix are installed (.bench/registration)",
    )
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    unknown = [job for job in arguments.jobs if job not in JOBS]
    if unknown:
        parser.error(f"no such job: {' '.join(unknown)}; there are {' '.join(JOBS)}")
    return arguments


def environment(home: Path) -> Path:
    """The interpreter of the peers' environment, made when there is none or it has changed."""
    python = home / "bin" / "python"
    stamp = home / "installed.txt"
    if stamp.exists() and stamp.read_text() == REQUIREMENTS:
        return python
    venv.create(home, with_pip=True)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *REQUIREMENTS.split()], check=True)
    stamp.write_text(REQUIREMENTS)
    return python


def run_apart(python: Path, job: str, arguments: argparse.Namespace) -> None:
    """Run one job in a process of its own."""
    data = image_data.data_folder(arguments.data)
    own = [Path(__file__).resolve(), "--alone", "--data", data, "--out", arguments.out, job]
    subprocess.run([python, *own], check=True, env=os.environ | SETTINGS)


def run_alone(arguments: argparse.Namespace) -> None:
    """Run jobs in this process and add their results to the file."""
    out = arguments.out
    out.parent.mkdir(parents=True, exist_ok=True)
    data = image_data.data_folder(arguments.data)
    for job in arguments.jobs:
        records = []
        for record in JOBS[job](data, out.parent):
            records.append(record)
            print(f"{job}: {line_of(record)}", file=sys.stderr, flush=True)
        store(out, job, {"versions": versions(), "registrations": records})


def stored(path: Path) -> dict[str, Record]:
    """Results by job."""
    return json.loads(path.read_text()) if path.exists() else {}


def store(path: Path, job: str, result: Record) -> None:
    """Add the result of one job, in place of an earlier one."""
    known = stored(path)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(known | {job: result}, indent=1))
    partial.replace(path)


def versions() -> dict[str, str]:
    """What was compared."""
    packages = ("antspyx", "itk-elastix", "SimpleITK", "numpy")
    return {package: importlib.metadata.version(package) for package in packages}


def line_of(record: Record) -> str:
    """The numbers of a record in one line."""
    numbers = {key: value for key, value in record.items() if isinstance(value, int | float | str)}
    return ", ".join(f"{key} {shown(value)}" for key, value in numbers.items())


# The two libraries. Each is imported where it is used, so that a job's memory is of one alone.


def syn(fixed: Volume, moving: Volume, points: np.ndarray, **settings: Any) -> Registered:
    """A registration by ANTs."""
    import ants

    fixed_image = ants_image(fixed)
    moving_image = ants_image(moving)
    with tempfile.TemporaryDirectory() as folder:
        prefix = f"{folder}/syn-"
        with Timed() as timed:
            found = ants.registration(fixed_image, moving_image, outprefix=prefix, **settings)
        transforms = found["fwdtransforms"]
        composed = ants.apply_transforms(fixed_image, moving_image, transforms, compose=prefix)
        displacements = ants.image_read(composed).numpy()
        carried = ants_points(points, transforms)
    positions = fixed.voxels() + displacements
    return Registered(carried, positions, timed.cost)


def ants_image(volume: Volume) -> Any:
    """An image of ANTs."""
    import ants

    return ants.from_numpy(
        volume.values.astype(np.float32),
        origin=tuple(volume.origin),
        spacing=tuple(volume.spacing),
    )


def ants_points(points: np.ndarray, transforms: list[str]) -> np.ndarray:
    """Where ANTs' transforms take fixed points."""
    import ants
    import pandas

    d = points.shape[1]
    axes = list("xyz"[:d])
    table = pandas.DataFrame(points, columns=axes)
    carried = ants.apply_transforms_to_points(d, table, transforms)
    return carried[axes].to_numpy()


def elastix(
    fixed: Volume,
    moving: Volume,
    points: np.ndarray,
    affine: Affine,
    parameters: dict,
    mask: np.ndarray | None = None,
) -> Registered:
    """A registration by elastix, whose transform follows the affine one."""
    import itk

    registration = elastix_method(fixed, moving, affine, parameters, mask)
    with Timed() as timed:
        registration.UpdateLargestPossibleRegion()
    transform = registration.GetCombinationTransform()
    field = itk.transform_to_displacement_field_filter(
        transform,
        reference_image=itk_image(fixed),
        use_reference_image=True,
    )
    displacements = itk.array_from_image(field)
    axes = tuple(reversed(range(fixed.values.ndim)))
    positions = fixed.voxels() + displacements.transpose(*axes, -1)
    carried = [list(transform.TransformPoint(point)) for point in points.tolist()]
    return Registered(np.array(carried), positions, timed.cost)


def elastix_method(
    fixed: Volume, moving: Volume, affine: Affine, parameters: dict, mask: np.ndarray | None
) -> Any:
    """Elastix, ready to run."""
    import itk

    fixed_image = itk_image(fixed)
    moving_image = itk_image(moving)
    kinds = type(fixed_image), type(moving_image)
    registration = itk.ElastixRegistrationMethod[kinds].New(fixed_image, moving_image)
    whole = itk.ParameterObject.New()
    whole.AddParameterMap(parameters)
    registration.SetParameterObject(whole)
    registration.SetInitialTransform(itk_affine(affine))
    if mask is not None:
        registration.SetFixedMask(itk_image(dataclasses.replace(fixed, values=mask), np.uint8))
    registration.SetNumberOfThreads(1)
    registration.SetLogToConsole(False)
    return registration


def bspline(*settings: float) -> dict:
    """Elastix's default parameters of a B-spline registration: number of resolutions, final
    spacing of its grid.
    """
    import itk

    return itk.ParameterObject.GetDefaultParameterMap("bspline", *settings)


def itk_image(volume: Volume, kind: type = np.float32) -> Any:
    """An image of ITK."""
    import itk

    image = itk.image_from_array(np.ascontiguousarray(volume.values.T, dtype=kind))
    image.SetSpacing(volume.spacing.tolist())
    image.SetOrigin(volume.origin.tolist())
    return image


def itk_affine(affine: Affine) -> Any:
    """A transform of ITK."""
    import itk

    transform = itk.AffineTransform[itk.D, len(affine.offset)].New()
    transform.SetMatrix(itk.matrix_from_array(affine.matrix))
    transform.SetOffset(affine.offset.tolist())
    return transform


# The lung.


def lung_elastix(data: Path, folder: Path) -> Iterator[Record]:
    """The chest CTs, by elastix."""
    pair = image_data.lung(data)
    found = elastix(
        pair.fixed,
        pair.moving,
        pair.fixed_points,
        affine=pair.affine,
        parameters=bspline(RESOLUTIONS, LUNG_GRID_MM),
        mask=pair.mask,
    )
    yield lung_record(pair, found)


def lung_syn(data: Path, folder: Path) -> Iterator[Record]:
    """The chest CTs, by ANTs."""
    pair = image_data.lung(data)
    found = syn(
        pair.fixed,
        pair.moving,
        pair.fixed_points,
        initial_transform=str(pair.affine_file),
        mask=ants_image(dataclasses.replace(pair.fixed, values=pair.mask)),
        **SYN_MI,
    )
    yield lung_record(pair, found)


def lung_record(pair: image_data.Lung, found: Registered) -> Record:
    """Target registration errors, mm, and folds inside the mask."""
    start = pair.affine(pair.fixed_points)
    inside = image_data.determinants(found.positions, pair.fixed.spacing)[pair.mask]
    others = np.arange(len(start)) != image_data.MISPLACED_LANDMARK
    errors = distances(found.points, pair.moving_points)
    return {
        "tre": summary(errors),
        "tre_others": summary(errors[others]),
        "tre_affine": summary(distances(start, pair.moving_points)),
        **found.cost,
        **folding(inside, pair.affine),
        "points": found.points.tolist(),
        "errors": errors.tolist(),
    }


# OASIS.


def oasis_syn(data: Path, folder: Path) -> Iterator[Record]:
    """All pairs of brain slices, by ANTs with its own affine."""
    subjects = image_data.oasis_subjects(data)
    sets = {"tuning": image_data.TUNING_PAIRS, "judging": image_data.JUDGING_PAIRS}
    for name, pairs in sets.items():
        for pair in (*pairs, *(pair[::-1] for pair in pairs)):
            found = oasis_pair(subjects, pair)
            keep_map(folder / "oasis", pair, found)
            yield {"set": name, **oasis_record(subjects, pair, found)}


def oasis_pair(subjects: list[Subject], pair: tuple[int, int]) -> Registered:
    """One registration; the fixed subject comes first."""
    fixed, moving = (subjects[i].volume() for i in pair)
    return syn(fixed, moving, np.zeros((1, 2)), **SYN_CC)


def keep_map(folder: Path, pair: tuple[int, int], found: Registered) -> None:
    """Store where the voxels of the fixed slice go."""
    folder.mkdir(parents=True, exist_ok=True)
    fixed, moving = pair
    np.savez_compressed(folder / f"{fixed}-{moving}.npz", positions=found.positions)


def oasis_record(subjects: list[Subject], pair: tuple[int, int], found: Registered) -> Record:
    """Dice of the labels and folds."""
    fixed, moving = (subjects[i].labels for i in pair)
    warped = image_data.labels_at(moving, found.positions)
    return {
        "fixed": pair[0],
        "moving": pair[1],
        "forward": pair[0] < pair[1],
        "dice": image_data.mean_dice(fixed, moving, warped),
        "dice_before": image_data.mean_dice(fixed, moving, moving),
        **found.cost,
        **folding(image_data.determinants(found.positions, np.ones(2))),
    }


# Histology.


def histology_syn(data: Path, folder: Path) -> Iterator[Record]:
    """Ten pairs of stains, by ANTs."""
    for fixed, moving, start in histology_pairs(data, folder):
        found = syn_from(fixed, moving, affine_in(start))
        yield histology_record(fixed, moving, start, found)


def syn_from(fixed: Section, moving: Section, affine: Affine) -> Registered:
    """ANTs' default after an affine transform, which it reads from a file."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/affine.mat"
        sitk.WriteTransform(image_data.sitk_affine(affine), path)
        return syn(fixed.image, moving.image, fixed.points, initial_transform=path, **SYN_MI)


def histology_elastix(data: Path, folder: Path) -> Iterator[Record]:
    """Ten pairs of stains, by elastix.

    Lengths are in quarter-size pixels: elastix's defaults (a grid of 10, and a bending energy whose
    weight depends on the unit) are made for voxels of about one unit.
    """
    for fixed, moving, start in histology_pairs(data, folder):
        found = elastix(
            in_voxels(fixed.image),
            in_voxels(moving.image),
            fixed.image.index(fixed.points),
            affine=affine_in_voxels(fixed.image, moving.image, affine_in(start)),
            parameters=bspline(),
        )
        world = dataclasses.replace(
            found,
            points=moving.image.world(found.points),
            positions=moving.image.world(found.positions),
        )
        yield histology_record(fixed, moving, start, world)


def in_voxels(volume: Volume) -> Volume:
    """The image with its voxels as unit of length."""
    d = volume.values.ndim
    return Volume(volume.values, spacing=np.ones(d), origin=np.zeros(d))


def affine_in_voxels(fixed: Volume, moving: Volume, affine: Affine) -> Affine:
    """The affine transform between voxel indices."""
    matrix = affine.matrix * fixed.spacing / moving.spacing[:, None]
    offset = moving.index(affine(fixed.origin))
    return Affine(matrix, offset)


def histology_record(fixed: Section, moving: Section, start: Record, found: Registered) -> Record:
    """Target registration errors, full-size pixels, and folds."""
    determinants = image_data.determinants(found.positions, fixed.image.spacing)
    errors = distances(found.points, moving.points)
    return {
        "fixed": fixed.stain,
        "moving": moving.stain,
        "tre": summary(errors),
        "tre_affine": start["tre"],
        "tre_before": summary(distances(fixed.points, moving.points)),
        **found.cost,
        **folding(determinants, affine_in(start)),
        "affine": {key: start[key] for key in ("matrix", "offset", "cpu_s")},
        "points": found.points.tolist(),
        "errors": errors.tolist(),
    }


def histology_pairs(data: Path, folder: Path) -> Iterator[tuple[Section, Section, Record]]:
    """The ten pairs, each with its affine start."""
    sections = image_data.histology(data)
    pairs = list(itertools.combinations(sections, 2))
    path = folder / AFFINES
    if not path.exists():
        path.write_text(json.dumps([affine_record(*pair) for pair in pairs], indent=1))
    starts = json.loads(path.read_text())
    for (fixed, moving), start in zip(pairs, starts, strict=True):
        yield fixed, moving, start


def affine_record(fixed: Section, moving: Section) -> Record:
    """The affine start of a pair in full-size pixels, with its errors."""
    with Timed() as timed:
        affine = multistart_affine(fixed.image, moving.image)
    return {
        "fixed": fixed.stain,
        "moving": moving.stain,
        "matrix": affine.matrix.tolist(),
        "offset": affine.offset.tolist(),
        "tre": summary(distances(affine(fixed.points), moving.points)),
        "cpu_s": timed.cost["cpu_s"],
    }


def affine_in(start: Record) -> Affine:
    """The transform of a stored record."""
    return Affine(np.array(start["matrix"]), np.array(start["offset"]))


def multistart_affine(fixed: Volume, moving: Volume) -> Affine:
    """The best of several rigid searches by mutual information, made affine."""
    fixed_image = image_data.sitk_image(fixed)
    moving_image = image_data.sitk_image(moving)
    tries = [rigid_from(fixed_image, moving_image, angle) for angle in START_ANGLES_DEG]
    rigid, _ = min(tries, key=lambda found: found[1])
    affine = sitk.AffineTransform(2)
    affine.SetMatrix(rigid.GetMatrix())
    affine.SetTranslation(rigid.GetTranslation())
    affine.SetCenter(rigid.GetCenter())
    search = mutual_information(shrink=[4, 2], smooth=[2, 1])
    search.SetMetricSamplingStrategy(search.RANDOM)
    search.SetMetricSamplingPercentage(0.3, SEED)
    search.SetOptimizerAsRegularStepGradientDescent(4.0, 0.02, 200, 0.7, 1e-6)
    search.SetOptimizerScalesFromPhysicalShift()
    search.SetInitialTransform(affine, inPlace=True)
    search.Execute(fixed_image, moving_image)
    return image_data.affine_of(affine)


def rigid_from(
    fixed: sitk.Image, moving: sitk.Image, angle_deg: float
) -> tuple[sitk.Euler2DTransform, float]:
    """A rigid search from the moments and an angle, and the value it reached; less is better."""
    moments = sitk.CenteredTransformInitializerFilter.MOMENTS
    centred = sitk.CenteredTransformInitializer(fixed, moving, sitk.Euler2DTransform(), moments)
    rigid = sitk.Euler2DTransform(centred)
    rigid.SetAngle(float(np.deg2rad(angle_deg)))
    search = mutual_information(shrink=[4], smooth=[4])
    search.SetMetricSamplingStrategy(search.REGULAR)
    search.SetMetricSamplingPercentage(0.5, SEED)
    search.SetOptimizerAsRegularStepGradientDescent(8.0, 0.05, 60, 0.6, 1e-6)
    search.SetOptimizerScalesFromPhysicalShift()
    search.SetInitialTransform(rigid, inPlace=True)
    search.Execute(fixed, moving)
    return rigid, search.GetMetricValue()


def mutual_information(shrink: list[int], smooth: list[int]) -> sitk.ImageRegistrationMethod:
    """What the rigid and the affine search have in common."""
    search = sitk.ImageRegistrationMethod()
    search.SetMetricAsMattesMutualInformation(32)
    search.SetInterpolator(sitk.sitkLinear)
    search.SetShrinkFactorsPerLevel(shrink)
    search.SetSmoothingSigmasPerLevel(smooth)
    search.SmoothingSigmasAreSpecifiedInPhysicalUnitsOff()
    return search


JOBS: dict[str, Callable[[Path, Path], Iterator[Record]]] = {
    "lung-elastix": lung_elastix,
    "lung-syn-mi": lung_syn,
    "oasis-syn-cc": oasis_syn,
    "histology-syn": histology_syn,
    "histology-elastix": histology_elastix,
}


# The tables.


def tables(results: dict[str, Record]) -> list[str]:
    """All results as Markdown."""
    lines = []
    for kind, rows in (("lung", lung_rows), ("oasis", oasis_rows), ("histology", histology_rows)):
        own = {job: result for job, result in results.items() if job.startswith(kind)}
        if own:
            lines += [*rows(own), ""]
    return lines


def lung_rows(results: dict[str, Record]) -> list[str]:
    """The lung: errors in mm, with all landmarks and without the misplaced one."""
    head = ["lung, mm", "mean", "median", "p95", "max", "CPU s", "MB", "min det J", "folds"]
    rows = []
    for job, result in results.items():
        (record,) = result["registrations"]
        cost = [record[key] for key in ("cpu_s", "peak_mb", "min_det", "folds")]
        rows.append([job, *record["tre"].values(), *cost])
        rows.append([f"{job}, without 20", *record["tre_others"].values(), *[""] * 4])
    rows.append(["affine", *record["tre_affine"].values(), *[""] * 4])
    return table(head, rows)


def oasis_rows(results: dict[str, Record]) -> list[str]:
    """OASIS: means over pairs with their standard errors."""
    head = ["OASIS", "direction", "before", "Dice", "s.e.", "CPU s", "folds", "min det J"]
    rows = []
    for result in results.values():
        for name, forward in itertools.product(("tuning", "judging"), (True, False)):
            chosen = [
                record
                for record in result["registrations"]
                if record["set"] == name and record["forward"] == forward
            ]
            direction = "first fixed" if forward else "second fixed"
            rows.append([name, direction, *oasis_means(chosen)])
    return table(head, rows)


def oasis_means(records: list[Record]) -> list[float]:
    """Over the pairs of one set in one direction; all folds, and the smallest determinant."""
    column = functools.partial(values_of, records)
    deviation = float(column("dice").std(ddof=1))
    return [
        float(column("dice_before").mean()),
        float(column("dice").mean()),
        deviation / len(records) ** 0.5,
        float(column("cpu_s").mean()),
        int(column("folds").sum()),
        float(column("min_det").min()),
    ]


def values_of(records: list[Record], key: str) -> np.ndarray:
    """One number of every record."""
    return np.array([record[key] for record in records])


def histology_rows(results: dict[str, Record]) -> list[str]:
    """Histology: mean and median error of each pair, full-size pixels."""
    head = ["histology, px", "before", "affine"]
    for job in results:
        head += [f"{job}, mean", "median", "CPU s", "folds"]
    rows = []
    for same_pair in zip(*(result["registrations"] for result in results.values()), strict=True):
        rows.append(histology_row(same_pair))
    numbers = np.array([row[1:] for row in rows], dtype=float)
    return table(head, [*rows, ["mean", *numbers.mean(axis=0).tolist()]])


def histology_row(same_pair: tuple[Record, ...]) -> list:
    """One pair by all methods."""
    first = same_pair[0]
    row = [f"{first['fixed']} ← {first['moving']}"]
    row += [first["tre_before"]["mean"], first["tre_affine"]["mean"]]
    for record in same_pair:
        row += [record["tre"]["mean"], record["tre"]["median"], record["cpu_s"], record["folds"]]
    return row


if __name__ == "__main__":
    main()
