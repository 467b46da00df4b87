"""The demo: a brain-shift case with a known truth, as the files a user would have, registered as a
user would do it.
"""

import dataclasses
import json
import shutil
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

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
from kunita.phantoms.brain_shift import BrainShift, brain_shift
from kunita.record import Registration

FILES = (
    "mri.nii.gz",
    "ultrasound.nii.gz",
    "tumour.nii.gz",
    "mri.mrk.json",
    "ultrasound.mrk.json",
    "tumour-centre.csv",
)
NUM_PROBES = 2000


def demo(args: Namespace) -> int:
    """`kunita demo`."""
    console = Console(quiet=args.quiet, as_json=args.json)
    case_folder = args.out / "case"
    case_folder.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        check_writable(case_folder / name, overwrite=args.overwrite)
    check_writable(args.out / REPORT, overwrite=args.overwrite)
    console.note("making a brain-shift case: MRI, ultrasound, 30 landmarks, a tumour")
    return run(brain_shift(args.seed), args, console)


def run(case: BrainShift, args: Namespace, console: Console) -> int:
    """Write a case, run `kunita register` on its files, and compare with the truth."""
    case_folder, result = args.out / "case", args.out / "result"
    case_folder.mkdir(parents=True, exist_ok=True)
    write_case(case, case_folder, overwrite=args.overwrite)
    command = register_command(case_folder, result)
    console.note(f"$ kunita {' '.join(command)}")
    silent = ["--quiet"] if args.quiet or args.json else []
    status = register(
        parser().parse_args([*command, *silent, *(["--overwrite"] if args.overwrite else [])])
    )
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


def tumour_centre(case: BrainShift) -> Landmarks:
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
    return Comparison(seed, *(_accuracy(case, reg, points) for points in places))


def _accuracy(case: BrainShift, reg: Registration, moving: np.ndarray) -> Accuracy:
    true, found = case.truth.forward(moving), reg.posterior.predict(moving)
    after = np.linalg.norm(found.mean - true, axis=1)
    held = (float(np.mean(after <= found.radius(level))) for level in (0.5, 0.8, 0.95))
    before, radius = np.linalg.norm(moving - true, axis=1).mean(), found.radius(0.95).mean()
    return Accuracy(float(before), float(after.mean()), float(after.max()), float(radius), *held)


def _lines(truth: Comparison, summary: dict[str, Any], out: Path) -> Iterator[str]:
    """The outcome in words."""
    centre, loo = truth.tumour_centre, summary["loo"]
    yield "Brain shift: pre-operative MRI onto intra-operative ultrasound, 30 landmarks, truth known"
    yield f"  {'':<24}{'before':>9}{'after':>9}{'95 % within':>14}{'true for':>11}"
    for name, part in (("where ultrasound sees", truth.fan), ("in the tumour", truth.tumour)):
        numbers = f"{part.before_mm:6.1f} mm{part.after_mm:6.1f} mm{part.radius95_mm:11.1f} mm"
        yield f"  {name:<24}{numbers}{100 * part.held_95:9.0f} %"
    yield (
        f"  the tumour's centre was predicted {centre.after_mm:.1f} mm from where it is, "
        f"and said to be within {centre.radius95_mm:.1f} mm"
    )
    yield f"  without the truth one would see: {loo['error_mm']:.1f} mm, each landmark predicted from the others,"
    yield f"  {100 * loo['coverage']['95']:.0f} % of them inside their 95 % region"
    for remark in summary["warnings"]:
        yield f"  warning: {remark}"
    yield f"Look at     {out}/{REPORT}"
    yield f"In Slicer   {out}/result/load_in_slicer.py"
    yield f"Numbers     {out}/result/summary.json, {out}/result/landmarks.csv, {out}/truth.json"
