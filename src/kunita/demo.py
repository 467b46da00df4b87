"""The demos: cases with a known truth, as the files a user would have, registered as a user would do
it.

By landmarks: an MRI and an ultrasound. By images: two MRIs, before and after the brain sank.
"""

import dataclasses
import json
import shutil
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from kunita import from_images
from kunita.arguments import parser
from kunita.commands import register
from kunita.console import Console
from kunita.data.landmarks import Landmarks
from kunita.io.image_files.files import write_image
from kunita.io.landmark_files.files import write_landmarks
from kunita.io.registration_files import load
from kunita.io.result_folder import RECORD, REPORT, SUMMARY
from kunita.io.summary_files import write_json
from kunita.io.writing import check_writable, complete
from kunita.outputs.labels import label_values
from kunita.phantoms import brain
from kunita.phantoms.brain_shift import BrainShift, Deformation, brain_shift
from kunita.phantoms.brain_twice import BrainTwice, brain_twice
from kunita.record import Registration

FILES = (
    "mri.nii.gz",
    "ultrasound.nii.gz",
    "tumour.nii.gz",
    "mri.mrk.json",
    "ultrasound.mrk.json",
    "tumour-centre.csv",
)
IMAGE_FILES = ("before.nii.gz", "after.nii.gz", "tumour.nii.gz", "tumour-centre.csv")
"""Of the demo by images."""

NUM_PROBES = 2000


def demo(args: Namespace) -> int:
    """`kunita demo`."""
    console = Console(quiet=args.quiet, as_json=args.json)
    _check_places(args, IMAGE_FILES if args.images else FILES)
    if args.images:
        console.note("making a case: two MRIs, between which the brain sank, and a tumour")
        return run_images(brain_twice(args.seed), args, console)
    console.note("making a brain-shift case: MRI, ultrasound, 30 landmarks, a tumour")
    return run(brain_shift(args.seed), args, console)


def _check_places(args: Namespace, names: tuple[str, ...]) -> None:
    """Refuse to write where something is, before anything is computed."""
    folder = args.out / "case"
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        check_writable(folder / name, overwrite=args.overwrite)
    check_writable(args.out / REPORT, overwrite=args.overwrite)


def run(case: BrainShift, args: Namespace, console: Console) -> int:
    """Write a case, run `kunita register` on its files, and compare with the truth."""
    case_folder, result = args.out / "case", args.out / "result"
    case_folder.mkdir(parents=True, exist_ok=True)
    write_case(case, case_folder, overwrite=args.overwrite)
    command = register_command(case_folder, result)
    console.note(f"$ kunita {' '.join(command)}")
    status = register(parser().parse_args([*command, *_manner(args)]))
    truth = against_truth(case, load(result / RECORD), args.seed)
    write_json(args.out / "truth.json", dataclasses.asdict(truth), overwrite=True)
    with complete(args.out / REPORT, overwrite=args.overwrite) as partial:
        shutil.copyfile(result / REPORT, partial)
    summary = json.loads((result / SUMMARY).read_text(encoding="utf-8"))
    console.answer(
        "\n".join(_lines(truth, summary, args.out)),
        {**dataclasses.asdict(truth), "summary": summary},
    )
    return status


def write_case(case: BrainShift, folder: Path, *, overwrite: bool) -> None:
    """The files that a user would have."""
    images = (case.moving_image, case.fixed_image, case.labels)
    for name, image in zip(FILES[:3], images, strict=True):
        write_image(folder / name, image, overwrite=overwrite)
    for name, landmarks in zip(
        FILES[3:], (case.moving, case.fixed, tumour_centre(case)), strict=True
    ):
        write_landmarks(folder / name, landmarks, overwrite=overwrite)


def tumour_centre(case: BrainShift | BrainTwice) -> Landmarks:
    """The point that a surgeon would ask for."""
    inside = np.argwhere(case.labels.data == label_values(case.labels)[0])
    return Landmarks([case.labels.grid.world(inside.mean(axis=0))], ["tumour centre"])


def register_command(case: Path, result: Path) -> list[str]:
    """What a user would type after `kunita`."""
    files = {name: str(case / name) for name in FILES}
    return [
        "register",
        files["mri.mrk.json"],
        files["ultrasound.mrk.json"],
        "--out",
        str(result),
        "--moving-image",
        files["mri.nii.gz"],
        "--fixed-image",
        files["ultrasound.nii.gz"],
        "--labels",
        files["tumour.nii.gz"],
        "--targets",
        files["tumour-centre.csv"],
    ]


@dataclasses.dataclass(frozen=True)
class Accuracy:
    """Mean distances to the truth over some places, mm, what was promised, and how often that was
    true.
    """

    before_mm: float
    after_mm: float
    worst_mm: float
    radius95_mm: float
    held_50: float
    held_80: float
    held_95: float


@dataclasses.dataclass(frozen=True)
class Comparison:
    """How far a registration of a case is from its truth, and where."""

    seed: int
    fan: Accuracy
    tumour: Accuracy
    tumour_centre: Accuracy


def against_truth(case: BrainShift, reg: Registration, seed: int) -> Comparison:
    """Errors and coverage at random places inside the ultrasound's fan and inside the tumour."""
    rng = np.random.default_rng(seed)
    seen = case.fixed_image.grid.world(
        rng.permutation(np.argwhere(case.fixed_image.data > 0))[:NUM_PROBES]
    )
    tumour = case.labels.grid.world(rng.permutation(np.argwhere(case.labels.data > 0))[:NUM_PROBES])
    places = (case.truth.inverse(seen), tumour, tumour_centre(case).points)
    return Comparison(seed, *(_accuracy(case.truth, reg, points) for points in places))


def _accuracy(truth: Deformation, reg: Registration, moving: np.ndarray) -> Accuracy:
    true, found = truth.forward(moving), reg.posterior.predict(moving)
    after = np.linalg.norm(found.mean - true, axis=1)
    held = (float(np.mean(after <= found.radius(level))) for level in (0.5, 0.8, 0.95))
    before, radius = np.linalg.norm(moving - true, axis=1).mean(), found.radius(0.95).mean()
    return Accuracy(float(before), float(after.mean()), float(after.max()), float(radius), *held)


def _lines(truth: Comparison, summary: dict[str, Any], out: Path) -> Iterator[str]:
    """The outcome in words."""
    centre, loo = truth.tumour_centre, summary["loo"]
    yield "Brain shift: pre-operative MRI onto intra-operative ultrasound, 30 landmarks, truth known"
    yield from _table((("where ultrasound sees", truth.fan), ("in the tumour", truth.tumour)))
    yield _centre_line(centre)
    yield f"  without the truth one would see: {loo['error_mm']:.1f} mm, each landmark predicted from the others,"
    yield f"  {100 * loo['coverage']['95']:.0f} % of them inside their 95 % region"
    for remark in summary["warnings"]:
        yield f"  warning: {remark}"
    yield f"Look at     {out}/{REPORT}"
    yield f"In Slicer   {out}/result/load_in_slicer.py"
    yield f"Numbers     {out}/result/summary.json, {out}/result/landmarks.csv, {out}/truth.json"


def _table(parts: tuple[tuple[str, Accuracy], ...], decimals: int = 1) -> Iterator[str]:
    """Errors before and after, what was promised, and how often that was true."""
    yield f"  {'':<24}{'before':>9}{'after':>9}{'95 % within':>14}{'true for':>11}"
    for name, part in parts:
        before = f"{part.before_mm:6.{decimals}f} mm"
        after = f"{part.after_mm:6.{decimals}f} mm"
        radius = f"{part.radius95_mm:11.{decimals}f} mm"
        yield f"  {name:<24}{before}{after}{radius}{100 * part.held_95:9.0f} %"


def _centre_line(centre: Accuracy, decimals: int = 1) -> str:
    return (
        f"  the tumour's centre was predicted {centre.after_mm:.{decimals}f} mm from where it is, "
        f"and said to be within {centre.radius95_mm:.{decimals}f} mm"
    )


# --------------------------------------------------------------------------------------- by images


@dataclasses.dataclass(frozen=True)
class ImageComparison:
    """How far a registration of two images is from its truth, and where."""

    seed: int
    brain: Accuracy
    tumour: Accuracy
    tumour_centre: Accuracy


def run_images(case: BrainTwice, args: Namespace, console: Console, *options: str) -> int:
    """Write a case, run `kunita register --from-images` on its files, and compare with the truth.

    Args:
        case: two scans of a head.
        args: of `kunita demo`.
        console: to talk to the user.
        options: further ones of `kunita register`.
    """
    case_folder = args.out / "case"
    result = args.out / "result"
    case_folder.mkdir(parents=True, exist_ok=True)
    write_images_case(case, case_folder, overwrite=args.overwrite)
    command = [*image_command(case_folder, result), *options]
    console.note(f"$ kunita {' '.join(command)}")
    status = from_images.register(parser().parse_args([*command, *_manner(args)]))
    truth = against_image_truth(case, load(result / RECORD), args.seed)
    write_json(args.out / "truth.json", dataclasses.asdict(truth), overwrite=True)
    if (result / REPORT).exists():
        with complete(args.out / REPORT, overwrite=args.overwrite) as partial:
            shutil.copyfile(result / REPORT, partial)
    summary = json.loads((result / SUMMARY).read_text(encoding="utf-8"))
    document = {**dataclasses.asdict(truth), "summary": summary}
    console.answer("\n".join(_image_lines(truth, summary, args.out)), document)
    return status


def _manner(args: Namespace) -> list[str]:
    """How the command is to talk, and whether it may replace what is there."""
    silent = ["--quiet"] if args.quiet or args.json else []
    replacing = ["--overwrite"] if args.overwrite else []
    return [*silent, *replacing]


def write_images_case(case: BrainTwice, folder: Path, *, overwrite: bool) -> None:
    """The files that a user would have."""
    images = (case.moving_image, case.fixed_image, case.labels)
    for name, image in zip(IMAGE_FILES[:3], images, strict=True):
        write_image(folder / name, image, overwrite=overwrite)
    write_landmarks(folder / IMAGE_FILES[3], tumour_centre(case), overwrite=overwrite)


def image_command(case: Path, result: Path) -> list[str]:
    """What a user would type after `kunita`."""
    before, after, tumour, centre = (str(case / name) for name in IMAGE_FILES)
    return [
        "register",
        "--from-images",
        before,
        after,
        "--metric",
        "lncc",
        "--out",
        str(result),
        "--labels",
        tumour,
        "--targets",
        centre,
    ]


def against_image_truth(case: BrainTwice, reg: Registration, seed: int) -> ImageComparison:
    """Errors and coverage at random places inside the brain and inside the tumour."""
    rng = np.random.default_rng(seed)
    inside = brain.nodes(brain.LATTICE)[case.head.dura > 0]
    tumour = case.labels.grid.world(np.argwhere(case.labels.data > 0))
    places = (
        rng.permutation(inside)[:NUM_PROBES],
        rng.permutation(tumour)[:NUM_PROBES],
        tumour_centre(case).points,
    )
    found = (_accuracy(case.truth, reg, points) for points in places)
    return ImageComparison(seed, *found)


def _image_lines(truth: ImageComparison, summary: dict[str, Any], out: Path) -> Iterator[str]:
    """The outcome in words."""
    yield "Brain shift: MRI before onto MRI after, by the images alone, truth known"
    yield from _table((("in the brain", truth.brain), ("in the tumour", truth.tumour)), decimals=2)
    yield _centre_line(truth.tumour_centre, decimals=2)
    for remark in summary["warnings"]:
        yield f"  warning: {remark}"
    if (out / REPORT).exists():
        yield f"Look at     {out}/{REPORT}"
    yield f"In Slicer   {out}/result/load_in_slicer.py"
    yield f"Numbers     {out}/result/summary.json, {out}/truth.json"
