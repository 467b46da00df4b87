"""`kunita register --from-images`: images drive the registration, alone or with landmarks."""

import dataclasses
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from kunita.console import Console, Stage
from kunita.data.image import Image, as_plane, is_pixel_grid
from kunita.data.landmarks import Landmarks
from kunita.data.slices import refuse_displaced, refuse_turned
from kunita.errors import ArgumentError, ExitStatus
from kunita.image_checks import GivenImages
from kunita.image_record import unit_of
from kunita.inputs import changed, check_dimension, keep_programs, read_sides, read_targets
from kunita.io.bids import bids_names
from kunita.io.image_files.files import read_grid, read_image
from kunita.io.result_folder import REPORT, check_result, result_folder
from kunita.results import Images, Request, output_names, read_images, write_results

STORABLE = (np.dtype(np.uint8), np.dtype(np.uint16), np.dtype(np.float32))
"""Numbers that a TIFF file holds."""

STAGES = {
    "aligning the images": 3.0,
    "choosing the prior": 15.0,
    "fitting": 12.0,
    "drawing from the posterior": 16.0,
    "transform of fixed images": 3.0,
    "transform of moving images": 4.0,
    "evaluating the posterior": 4.0,
    "writing the maps": 2.0,
    "covariance map": 2.0,
    "label probability": 1.0,
    "drawing the report": 4.0,
}
"""What a registration goes through, and how long each takes compared with the others, roughly."""


def register(args: Namespace) -> int:
    """Read, register, write."""
    console = Console(quiet=args.quiet, as_json=args.json)
    began = time.perf_counter()
    with console.warnings():
        refuse_contradictions(args)
        case = _read_case(args)
        rename = case.rename
        check_result(args.out, case.names, overwrite=args.overwrite, rename=rename)
        _note_units(args, case, console)
        with (
            console.one_bar(tuple(_stages(args))) as tell,
            result_folder(args.out, case.names, overwrite=args.overwrite, rename=rename) as folder,
        ):
            reg = _register(args, case, tell)
            document = write_results(reg, case.request, case.images, folder, args.out, (), tell)
        for remark in document["warnings"]:
            if remark not in reg.warnings:  # those were said when they came up
                console.warn(remark)
    document["out"] = str(args.out)
    lines = _lines(case, reg, document, time.perf_counter() - began)
    console.answer("\n".join(lines), document)
    return ExitStatus.DONE if reg.converged else ExitStatus.NOT_CONVERGED


@dataclasses.dataclass(frozen=True, eq=False)
class ImageCase:
    """What a user gave, read.

    Args:
        given: the moving, the fixed, and labels, as they were read.
        images: the same, with one slice as a plane.
        moving, fixed: landmarks beside them, or None.
        request: what to make of the registration.
    """

    given: Images
    images: Images
    moving: Landmarks | None
    fixed: Landmarks | None
    request: Request

    @property
    def dimension(self) -> int:
        assert self.images.moving is not None
        return self.images.moving.grid.dimension

    @property
    def names(self) -> tuple[str, ...]:
        """The files that will be written."""
        assert self.images.fixed is not None
        return output_names(self.request, self.dimension, self.images.fixed.grid)

    @property
    def rename(self) -> Callable[[str], str]:
        """How these are called in the end."""
        return self.request.rename

    @property
    def unit(self) -> str:
        """Of all lengths."""
        assert self.images.moving is not None
        assert self.images.fixed is not None
        return unit_of(self.images.moving.affine, self.images.fixed.affine)


def _stages(args: Namespace) -> Iterator[Stage]:
    """What this registration will go through."""
    left_out = {
        "aligning the images": args.init is not None or args.align == "none",
        "choosing the prior": args.quick or args.prior is not None or args.length_scale is not None,
        "covariance map": not args.cov,
        "label probability": args.labels is None,
        "drawing the report": args.no_report,
    }
    for name, share in STAGES.items():
        if not left_out.get(name, False):
            yield Stage(name, share)


def _read_case(args: Namespace) -> ImageCase:
    """Read all files before anything is computed."""
    first, second = args.from_images
    asked = changed(args, moving_image=first, fixed_image=second)
    request = _request(asked)
    given = read_images(request)
    if given.labels is not None:
        refuse_turned(given.labels, given.moving, "labels", "moving image")
        refuse_displaced(given.labels, given.moving, "labels", "moving image")
    planes = _planes(given)
    if planes.labels is not None and planes.moving is not None:
        check_dimension(args.labels, planes.labels.grid.dimension, planes.moving.grid.dimension)
    moving, fixed = _landmarks(asked)
    case = ImageCase(given, planes, moving, fixed, request)
    if args.targets is None:
        return case
    targets = read_targets(asked, case.dimension)
    return dataclasses.replace(case, request=dataclasses.replace(request, targets=targets))


def _lines(case: ImageCase, reg: Any, document: Any, seconds: float) -> Iterator[str]:
    """What came out, for people."""
    out = Path(document["out"])
    count = len(document["files"])
    yield reg.summary()
    yield from _to_expect(document, case.unit)
    yield f"  written    {out}/ ({count} files, {seconds:.0f} s in all)"
    if case.request.report:
        yield f"  look at    {out / case.rename(REPORT)}"


def _to_expect(document: Any, unit: str) -> Iterator[str]:
    """How sure the registration is, unless nothing of it can be trusted."""
    compared = document["expected"]["compared"]
    if compared is None or not document["registered_images"]["relation"]["found"]:
        return
    middle = f"{compared['median_radius95_mm']:.2f} {unit}"
    worst = f"{compared['worst_radius95_mm']:.2f} {unit}"
    yield f"  to expect  95 % radius {middle} where images were compared (median; {worst} at most)"


def refuse_contradictions(args: Namespace) -> None:
    """Refuse options that do not go with images that drive the fit."""
    if args.moving is not None:
        raise ArgumentError(
            f"--from-images: takes both images, and landmarks by --landmarks; found {args.moving} "
            "besides"
        )
    for option in ("moving_image", "fixed_image"):
        if getattr(args, option) is not None:
            name = f"--{option.replace('_', '-')}"
            raise ArgumentError(
                f"{name}: carries an image along; with --from-images the two images are carried "
                "along anyway"
            )
    if args.kernel not in (None, "gaussian"):
        raise ArgumentError(f"--kernel: images take Gaussian kernels only, found {args.kernel!r}")


def _note_units(args: Namespace, case: ImageCase, console: Console) -> None:
    """Say what a pixel counts as, and what a spacing replaces."""
    if case.unit == "pixel" and args.spacing is None:
        console.note("no --spacing: one pixel counts as one mm, so that all lengths are in pixels")
    if args.spacing is not None:
        for path in args.from_images:
            if not is_pixel_grid(read_grid(path)):
                console.note(
                    f"--spacing: replaces the place that {path} states, its origin and axes; the "
                    "first pixel is at zero"
                )


def _planes(images: Images) -> Images:
    """Volumes of one slice as planes, so that what is written lies on the same grids."""
    flat = lambda image: None if image is None else as_plane(image)
    moving = flat(images.moving)
    return Images(moving and _storable(moving), flat(images.fixed), flat(images.labels))


def _storable(image: Image) -> Image:
    """A plane with numbers that a TIFF file holds, since it will be warped and written as one."""
    if image.grid.dimension == 3 or image.data.dtype in STORABLE:
        return image
    return Image(image.data.astype(np.float32), image.affine, image.channels)


def _landmarks(args: Namespace) -> tuple[Landmarks | None, Landmarks | None]:
    """The landmarks beside the images, if there are any."""
    if args.landmarks is None:
        return None, None
    moving, fixed = read_sides(changed(args, moving=args.landmarks[0], fixed=args.landmarks[1]))
    return moving.landmarks(), fixed.landmarks()


def _request(args: Namespace) -> Request:
    """What to make of the registration."""
    return Request(
        moving_image=args.moving_image,
        fixed_image=args.fixed_image,
        labels=args.labels,
        targets_file=args.targets,
        spacing=args.spacing,
        covariance=args.cov,
        nrrd=args.nrrd,
        nifti_xfm=args.nifti_xfm,
        report=not args.no_report,
        from_images=True,
        moving_mask=args.moving_mask,
        fixed_mask=args.fixed_mask,
        init=args.init,
        has_landmarks=args.landmarks is not None,
        moving=None if args.landmarks is None else args.landmarks[0],
        fixed=None if args.landmarks is None else args.landmarks[1],
        prior=args.prior,
        bids=bids_names(args.moving_image, args.fixed_image) if args.bids else None,
        command=getattr(args, "typed", None),
    )


def _register(args: Namespace, case: ImageCase, tell: Callable[[str], Any]) -> Any:
    from kunita.image_registration import register_with_images
    from kunita.io.prior_files import read_prior

    keep_programs()
    given = GivenImages(
        moving=case.given.moving,
        fixed=case.given.fixed,
        moving_mask=_mask(args.moving_mask, args),
        fixed_mask=_mask(args.fixed_mask, args),
        metric=args.metric,
        init=args.init,
        key=args.seed,
        quick=args.quick,
    )
    return register_with_images(
        case.moving,
        case.fixed,
        given,
        _listener(tell),
        noise=args.noise,
        kernel=args.kernel,
        length_scale=args.length_scale,
        amplitude=args.amplitude,
        align=args.align,
        model=args.model,
        prior=None if args.prior is None else read_prior(args.prior),
        scale_noise=args.scale_noise,
        robust=args.robust,
    )


def _mask(path: Path | None, args: Namespace) -> Image | None:
    return None if path is None else read_image(path, spacing=args.spacing)


def _listener(tell: Callable[[str], Any]) -> Callable[[str, float], None]:
    """Tell what is done, and how much of it; each stage begins once."""
    bars: dict[str, Any] = {}

    def listen(what: str, share: float) -> None:
        stage, _, detail = what.partition(": ")
        if stage not in bars:
            bars[stage] = tell(stage)
        bars[stage](share, detail)

    return listen
