"""`kunita register --from-images`: images drive the registration, alone or with landmarks."""

import dataclasses
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kunita.console import Console
from kunita.data.image import Image
from kunita.data.landmarks import Landmarks
from kunita.errors import ArgumentError, ExitStatus
from kunita.image_checks import GivenImages, as_plane
from kunita.inputs import changed, keep_programs, read_sides, read_targets
from kunita.io.image_files.files import read_image
from kunita.io.result_folder import check_result, result_folder
from kunita.results import Images, Request, output_names, read_images, write_results


def register(args: Namespace) -> int:
    """Read, register, write."""
    console = Console(quiet=args.quiet, as_json=args.json)
    began = time.perf_counter()
    with console.warnings():
        refuse_contradictions(args)
        case = _read_case(args)
        check_result(args.out, case.names, overwrite=args.overwrite)
        _note_units(args, case.dimension, console)
        with (
            console.progress() as tell,
            result_folder(args.out, case.names, overwrite=args.overwrite) as folder,
        ):
            reg = _register(args, case, tell)
            document = write_results(reg, case.request, case.images, folder, args.out, (), tell)
    _answer(console, args.out, reg, document, time.perf_counter() - began)
    return ExitStatus.DONE if reg.converged else ExitStatus.NOT_CONVERGED


@dataclasses.dataclass(frozen=True, eq=False)
class ImageCase:
    """What a user gave, read.

    Args:
        images: the moving, the fixed, and labels.
        moving, fixed: landmarks beside them, or None.
        request: what to make of the registration.
    """

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
        return output_names(self.request, self.dimension)


def _read_case(args: Namespace) -> ImageCase:
    """Read all files before anything is computed."""
    first, second = args.from_images
    asked = changed(args, moving_image=first, fixed_image=second)
    request = _request(asked)
    images = _planes(read_images(request))
    moving, fixed = _landmarks(asked)
    case = ImageCase(images, moving, fixed, request)
    if args.targets is None:
        return case
    targets = read_targets(asked, case.dimension)
    return dataclasses.replace(case, request=dataclasses.replace(request, targets=targets))


def _answer(console: Console, out: Path, reg: Any, document: Any, seconds: float) -> None:
    """Say what came out."""
    for remark in document["warnings"]:
        if remark not in reg.warnings:  # those were said when they came up
            console.warn(remark)
    document["out"] = str(out)
    count = len(document["files"])
    written = f"  written    {out}/ ({count} files, {seconds:.0f} s in all)"
    console.answer(f"{reg.summary()}\n{written}", document)


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
    if args.bids:
        raise ArgumentError("--bids: not available together with --from-images yet")
    if args.kernel not in (None, "gaussian"):
        raise ArgumentError(f"--kernel: images take Gaussian kernels only, found {args.kernel!r}")


def _note_units(args: Namespace, dimension: int, console: Console) -> None:
    """Say what a pixel counts as, and that no page is made."""
    if dimension == 2 and args.spacing is None:
        console.note("no --spacing: one pixel counts as one mm")
    if not args.no_report:
        console.note("no report.html: there is no page yet for a registration that images drive")


def _planes(images: Images) -> Images:
    """Volumes of one slice as planes, so that what is written lies on the same grids."""
    flat = lambda image: None if image is None else as_plane(image)
    return Images(flat(images.moving), flat(images.fixed), flat(images.labels))


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
        report=False,
        has_landmarks=args.landmarks is not None,
        moving=None if args.landmarks is None else args.landmarks[0],
        fixed=None if args.landmarks is None else args.landmarks[1],
        prior=args.prior,
        command=getattr(args, "typed", None),
    )


def _register(args: Namespace, case: ImageCase, tell: Callable[[str], Any]) -> Any:
    from kunita.image_registration import register_with_images
    from kunita.io.prior_files import read_prior

    keep_programs()
    tell("aligning the images")
    given = GivenImages(
        moving=case.images.moving,
        fixed=case.images.fixed,
        moving_mask=_mask(args.moving_mask, args),
        fixed_mask=_mask(args.fixed_mask, args),
        metric=args.metric,
        init=args.init,
        key=args.seed,
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
    """Turn what is done, and how much of it, into progress bars: one for each thing that begins."""
    bars: dict[str, Any] = {}

    def listen(what: str, share: float) -> None:
        stage = what.partition(",")[0]
        if stage not in bars:
            bars[stage] = tell(stage)
        bars[stage](share)

    return listen
