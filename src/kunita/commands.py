"""What each command does: files → landmarks, images → register → outputs → files. Here the layers
meet.
"""

import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kunita import inspection
from kunita.console import Console
from kunita.data.image import Grid, Image
from kunita.data.landmarks import Landmarks
from kunita.errors import ArgumentError, ExitStatus, FileError
from kunita.inputs import (
    changed,
    check_dimension,
    check_images,
    fixed_plane,
    frame_or_format,
    image_in,
    keep_programs,
    load_result,
    one_table,
    read_sides,
    read_targets,
    reference_grid,
    refuse_image_options,
    refuse_other_slice,
    slice_of,
    tables,
    warn_of_the_other_space,
)
from kunita.io.geometry_files.files import is_geometry, read_geometry, write_geometry
from kunita.io.image_files.files import (
    NIFTI,
    PICTURES,
    WRITTEN,
    is_image,
    read_grid,
    read_image,
    write_image,
)
from kunita.io.landmark_files.files import write_landmarks
from kunita.io.landmark_files.table import LandmarkTable
from kunita.io.recorded_grids import recorded_spacing
from kunita.io.result_folder import RECORD, REPORT, check_result, find_record, result_folder
from kunita.io.writing import check_writable

MOST_TARGETS = 10
"""Targets that are listed on the console; all are in the files."""


def register(args: Namespace) -> int:
    """`kunita register`."""
    from kunita import results

    console, began = Console(quiet=args.quiet, as_json=args.json), time.perf_counter()
    with console.warnings():
        args.prior_file, args.prior = args.prior, _prior(args)
        moving, fixed = read_sides(args)
        dimension = moving.dimension
        request = _request(args, dimension)
        names = results.output_names(request, dimension, fixed_plane(args, dimension))
        rename = request.rename
        check_result(args.out, names, overwrite=args.overwrite, rename=rename)
        remarks = check_images(args, moving, fixed)
        _note_sides(args, moving, fixed, console)
        for remark in remarks:
            console.warn(remark)
        with (
            console.progress() as tell,
            result_folder(args.out, names, overwrite=args.overwrite, rename=rename) as folder,
        ):
            images = results.read_images(request)
            reg = _fit(args, moving.landmarks(), fixed.landmarks(), tell)
            document = results.write_results(reg, request, images, folder, args.out, remarks, tell)
    for remark in document["warnings"]:
        if remark not in (*remarks, *reg.warnings):  # those were said when they came up
            console.warn(remark)
    document["out"], seconds = str(args.out), time.perf_counter() - began
    lines = [reg.summary(), *_target_lines(document)]
    lines.append(
        f"  written    {args.out}/ ({len(document['files'])} files, {seconds:.0f} s in all)"
    )
    if request.report:
        lines.append(f"  look at    {args.out / rename(REPORT)}")
    console.answer("\n".join(lines), document)
    return ExitStatus.DONE if reg.converged else ExitStatus.NOT_CONVERGED


def report(args: Namespace) -> int:
    """`kunita report`."""
    from kunita.report.result import read_subject, write_report

    console = Console(quiet=args.quiet, as_json=args.json)
    record = find_record(args.result)
    path = args.out or record.with_name(record.name.replace(RECORD, REPORT))
    if path.suffix.lower() not in (".html", ".htm"):
        raise ArgumentError(f"--out: expected a name that ends in .html, found {path.name!r}")
    check_writable(path, overwrite=args.overwrite or args.out is None)
    keep_programs()
    with console.warnings(), console.progress() as tell:
        subject, remarks = read_subject(
            args.result, args.fixed_image, tell("evaluating the posterior")
        )
        for remark in remarks:
            console.warn(remark)
        tell("drawing the report")
        write_report(subject, path, overwrite=True)
    console.answer(
        f"report of {args.result}: {path}", {"out": str(path), "warnings": list(remarks)}
    )
    return ExitStatus.DONE


def predict(args: Namespace) -> int:
    """`kunita predict`."""
    from kunita.outputs.carry import carry_geometry, carry_landmarks

    console, reg = Console(quiet=args.quiet, as_json=args.json), load_result(args.result)
    args.spacing, more = recorded_spacing(args.result, args.spacing), ""
    check_writable(args.out, overwrite=args.overwrite)
    with console.warnings():
        if is_geometry(args.points):
            moved, values = carry_geometry(
                reg, read_geometry(args.points, frame=args.frame), inverse=args.inverse
            )
            grid = read_grid(args.reference) if args.reference else None
            files = write_geometry(
                args.out, moved, values, reference=grid, overwrite=args.overwrite
            )
            more = "".join(f"; also {path.name}" for path in files if path != args.out)
            radius = np.asarray(values.radius)
        else:
            table = one_table(args.points, args)
            check_dimension(args.points, table.dimension, reg.fixed.dimension)
            more = (
                " (the points' own covariances included)" if table.covariances is not None else ""
            )
            carried = carry_landmarks(reg, table.landmarks(), inverse=args.inverse)
            write_landmarks(
                args.out, carried, format=_known_format(args.out), overwrite=args.overwrite
            )
            radius = _radius(carried)
    space = "moving" if args.inverse else "fixed"
    text = (
        f"{len(radius)} points in {space} space written to {args.out}; "
        f"95 % radius {np.median(radius):.2f} mm (median), {radius.max():.2f} mm (largest){more}"
    )
    document = {
        "n": len(radius),
        "space": space,
        "median_radius95_mm": float(np.median(radius)),
        "max_radius95_mm": float(radius.max()),
        "out": str(args.out),
    }
    console.answer(text, document)
    return ExitStatus.DONE


def warp(args: Namespace) -> int:
    """`kunita warp`."""
    from kunita.outputs.maps import pull_back

    console, reg = Console(quiet=args.quiet, as_json=args.json), load_result(args.result)
    _check_image_name(args.out, reg.fixed.dimension)
    check_writable(args.out, overwrite=args.overwrite)
    interpolation = "nearest" if args.nearest else "cubic" if args.cubic else "linear"
    with console.warnings(), console.progress() as tell:
        grid = reference_grid(args, "moving" if args.inverse else "fixed", reg.fixed.dimension)
        image = _image_to_warp(args, reg.fixed.dimension)
        warn_of_the_other_space(args, image.grid, console)
        pulled = pull_back(reg, grid, inverse=args.inverse, progress=tell("evaluating the map"))
        _warn(console, pulled.remarks)
        _write_warped(args, pulled, image, interpolation, tell(f"writing {args.out.name}"))
    console.answer(
        f"{args.image} warped ({interpolation}) onto {_shape(grid)}: {args.out}",
        {"out": str(args.out)},
    )
    return ExitStatus.DONE


def _image_to_warp(args: Namespace, dimension: int) -> Image:
    """The image that `kunita warp` is given, as the registered one lies."""
    refuse_other_slice(args.image, args.result, "fixed" if args.inverse else "moving")
    spacing = recorded_spacing(args.result, args.spacing, args.image)
    return image_in(args.image, spacing, dimension)


def _write_warped(
    args: Namespace,
    pulled: Any,
    image: Image,
    interpolation: str,
    progress: Callable[[float], None],
) -> None:
    """Write an image slab by slab, as it is warped."""
    from kunita.io.map_files import channel_count, map_writer
    from kunita.outputs.dense import slabs
    from kunita.outputs.warp import warped_slabs

    grid = pulled.grid
    pieces = warped_slabs(pulled, image, interpolation)
    with map_writer(
        args.out,
        grid,
        image.data.dtype,
        channels=channel_count(image),
        place=slice_of(args, grid.dimension),
        overwrite=args.overwrite,
    ) as write:
        for slab, piece in zip(slabs(grid), pieces, strict=True):
            write(piece)
            progress((slab[-1][-1] + 1) / grid.shape[-1])


def uncertainty(args: Namespace) -> int:
    """`kunita uncertainty`."""
    from kunita.io.map_files import write_map
    from kunita.outputs.maps import UNITS, maps

    console, reg = Console(quiet=args.quiet, as_json=args.json), load_result(args.result)
    dimension = reg.fixed.dimension
    _check_image_name(args.out, dimension, vector=args.what == "cov", floats=True)
    check_writable(args.out, overwrite=args.overwrite)
    with console.warnings(), console.progress() as tell:
        grid = reference_grid(args, "fixed", dimension)
        found = maps(reg, grid, tell("evaluating the posterior"))
        _warn(console, found.remarks)
        write_map(
            args.out,
            found,
            args.what,
            tell(f"writing {args.out.name}"),
            place=slice_of(args, dimension),
            overwrite=args.overwrite,
        )
    unit = UNITS[args.what]
    text = f"{args.what} ({unit}) on {_shape(found.grid)}: {args.out}"
    console.answer(text, {"what": args.what, "units": unit, "out": str(args.out)})
    return ExitStatus.DONE


def pool(args: Namespace) -> int:
    """`kunita pool`."""
    from kunita.data.raters import doubts, far_marks, pool_raters

    console = Console(quiet=args.quiet, as_json=args.json)
    check_writable(args.out, overwrite=args.overwrite)
    with console.warnings():
        raters = [one_table(path, args).landmarks() for path in args.files]
        pooled = pool_raters(raters, spread=args.spread)
        for doubt in doubts(raters, [path.name for path in args.files]):
            console.warn(doubt)
        for name, rater, distance in far_marks(raters):
            console.warn(
                f"{args.files[rater].name}: {name!r} is {distance:.1f} mm from the other raters' mean; check it"
            )
        write_landmarks(args.out, pooled, format=_known_format(args.out), overwrite=args.overwrite)
    spread = float(
        np.sqrt(np.mean(np.trace(pooled.covariances, axis1=1, axis2=2)) / pooled.dimension)
    )
    kind = "of a pooled point" if args.spread == "mean" else "of a single rater"
    text = (
        f"{len(pooled)} landmarks from {len(raters)} raters, sd {kind} {spread:.2f} mm: {args.out}"
    )
    console.answer(
        text,
        {
            "n_landmarks": len(pooled),
            "n_raters": len(raters),
            "sd_mm": spread,
            "out": str(args.out),
        },
    )
    return ExitStatus.DONE


def convert(args: Namespace) -> int:
    """`kunita convert`."""
    console = Console(quiet=args.quiet, as_json=args.json)
    check_writable(args.out, overwrite=args.overwrite)
    origin, goal = frame_or_format(args.origin, "--from"), frame_or_format(args.goal, "--to")
    with console.warnings():
        if is_geometry(args.input):
            geometry = read_geometry(args.input, frame=origin.frame or args.frame)
            grid = read_grid(args.reference) if args.reference else None
            write_geometry(
                args.out, geometry, frame=goal.frame, reference=grid, overwrite=args.overwrite
            )
            n, what = len(geometry.points), "vertices"
        elif is_image(args.input):
            image = read_image(args.input, spacing=args.spacing)
            write_image(args.out, image, overwrite=args.overwrite)
            n, what = image.grid.size, "voxels"
        else:
            asked = changed(
                args, frame=origin.frame or args.frame, format=origin.format or args.format
            )
            found = tables(args.input, asked)
            if len(found) > 1 and not args.out.name.lower().endswith(".tag"):
                raise FileError(
                    f"{args.input}: has {len(found)} sets of landmarks; say which with --volume"
                )
            chosen = found[0] if len(found) == 1 else found
            write_landmarks(
                args.out, chosen, frame=goal.frame, format=goal.format, overwrite=args.overwrite
            )
            n, what = sum(len(table) for table in found), "landmarks"
    console.answer(
        f"{n} {what}: {args.input} → {args.out}", {"n": n, "what": what, "out": str(args.out)}
    )
    return ExitStatus.DONE


def info(args: Namespace) -> int:
    """`kunita info`."""
    console = Console(quiet=args.quiet, as_json=args.json)
    with console.warnings():
        document = inspection.describe(args)
    width = max(len(key) for key in document)
    console.answer(
        "\n".join(
            f"{key:<{width}}  {inspection.readable(value)}" for key, value in document.items()
        ),
        document,
    )
    return ExitStatus.DONE


def _prior(args: Namespace) -> Any:
    """The prior that a file holds, which leaves nothing else to say of the kernel."""
    from kunita.io.prior_files import read_prior

    if args.prior is None:
        return None
    for option, value in (
        ("--length-scale", args.length_scale),
        ("--amplitude", args.amplitude),
        ("--kernel", args.kernel),
    ):
        if value is not None:
            raise ArgumentError(f"{option}: the prior has its own; give one of the two")
    return read_prior(args.prior)


def _request(args: Namespace, dimension: int) -> Any:
    from kunita.io.bids import bids_names
    from kunita.results import Request

    refuse_image_options(args)
    if args.labels and not args.fixed_image:
        raise ArgumentError(
            "--labels: expected a --fixed-image too, on whose grid the probabilities are"
        )
    names = None
    if args.bids:
        moving, fixed = (
            args.moving_image or args.moving,
            args.fixed_image or args.fixed or args.moving,
        )
        names = bids_names(moving, fixed)
    return Request(
        moving_image=args.moving_image,
        fixed_image=args.fixed_image,
        labels=args.labels,
        targets_file=args.targets,
        targets=read_targets(args, dimension) if args.targets else None,
        spacing=args.spacing if dimension == 2 else None,
        covariance=args.cov,
        nrrd=args.nrrd,
        nifti_xfm=args.nifti_xfm,
        report=not args.no_report,
        bids=names,
        moving=args.moving,
        fixed=args.fixed,
        prior=args.prior_file,
        command=getattr(args, "typed", None),
    )


def _note_sides(
    args: Namespace, moving: LandmarkTable, fixed: LandmarkTable, console: Console
) -> None:
    """Say what was read, and in which frame."""
    for side, path, table in (
        ("moving", args.moving, moving),
        ("fixed", args.fixed or args.moving, fixed),
    ):
        console.note(
            f"{side:<6} {path}: {len(table)} landmarks, {table.frame.value} ({table.stated})"
        )
        if table.names_problem:
            console.note(f"       paired by order: {table.names_problem}")
    known = [side.covariances is not None for side in (moving, fixed)]
    if args.noise is None and any(known) and not all(known):
        side = "moving" if known[0] else "fixed"
        console.note(
            f"       only the {side} landmarks have covariances: the others count as exact"
        )
    if moving.dimension == 2 and args.spacing is None and (args.moving_image or args.fixed_image):
        console.note("       no --spacing: one pixel counts as one mm")


def _fit(args: Namespace, moving: Landmarks, fixed: Landmarks, tell: Callable[[str], Any]) -> Any:
    from kunita.registration import register as fit

    keep_programs()
    tell("fitting (and compiling, the first time for a number of landmarks)")
    return fit(
        moving,
        fixed,
        kernel=args.kernel,
        length_scale=args.length_scale,
        amplitude=args.amplitude,
        noise=args.noise,
        align=args.align,
        model=args.model,
        prior=args.prior,
        scale_noise=args.scale_noise,
        robust=args.robust,
    )


def _target_lines(document: Any) -> Iterator[str]:
    """Where the targets are, the first few of them, for people; and that a small residual is no
    promise.
    """
    targets = document["targets"]
    named = [target for target in targets if "name" in target]
    if named:
        yield from _target_table(named)
    for target in (target for target in targets if "file" in target):
        yield (
            f"  targets    {target['n']} vertices, within {target['median_radius95_mm']:.2g} mm (95 %; the median, "
            f"{target['max_radius95_mm']:.2g} at most); {100 * target['extrapolating']:.0f} % are extrapolations"
        )
    if targets:
        yield (
            f"  accuracy   FRE {document['fre_mm']:.2g} mm is how closely the landmarks fit, and FLE "
            f"{document['fle_mm']:.2g} mm how well they were marked;"
        )
        yield "             a small FRE says little about the TRE, the error everywhere else"


def _target_table(targets: Sequence[Any]) -> Iterator[str]:
    shown = targets[:MOST_TARGETS]
    frame = "RAS" if len(shown[0]["position"]) == 3 else "IMAGE"
    places = [", ".join(f"{x:.1f}" for x in target["position"]) for target in shown]
    wide, name_width = (
        max(13, *(len(place) for place in places)),
        max(len(target["name"]) for target in shown),
    )
    header = f"{'':<{name_width}}  {f'fixed, {frame}':<{wide}}  95 % within  predicted TRE  nearest landmark"
    yield f"  targets    {header}"
    for target, place in zip(shown, places, strict=True):
        numbers = f"{target['radius95_mm']:8.2f} mm  {target['tre_mm']:10.2f} mm"
        reach = f"{target['nearest_mm']:.0f} mm, {target['in_sigma']:.1f} length scales"
        far = "; extrapolates" if target["extrapolates"] else ""
        yield f"             {target['name']:<{name_width}}  {place:<{wide}}  {numbers}  {reach}{far}"
    if len(targets) > len(shown):
        yield f"             {len(targets) - len(shown)} more in targets.csv"


def _check_image_name(
    path: Path, dimension: int, *, vector: bool = False, floats: bool = False
) -> None:
    """Refuse a name that such an image cannot have, before anything is computed."""
    volumes = tuple(suffix for suffix in WRITTEN if suffix not in PICTURES)
    pictures = (*volumes, ".tif", ".tiff") if floats else WRITTEN
    if dimension == 2 and vector:  # the three components of a plane have no place in NIfTI
        pictures = tuple(suffix for suffix in pictures if suffix not in NIFTI)
    allowed = pictures if dimension == 2 else NIFTI[:2] if vector else volumes
    if not path.name.lower().endswith(allowed):
        raise FileError.at(path, None, f"a name that ends in {', '.join(allowed)}", path.name)


def _warn(console: Console, remarks: Sequence[str]) -> None:
    for remark in remarks:
        console.warn(remark)


def _known_format(path: Path) -> str | None:
    """A .txt could be several things; everything else tells its format by its name."""
    return "csv" if path.suffix.lower() == ".txt" else None


def _radius(landmarks: Landmarks) -> np.ndarray:
    from kunita.gaussians import ball_radius

    return ball_radius(landmarks.covariances, 0.95)


def _shape(grid: Grid) -> str:
    return "×".join(str(n) for n in grid.shape)
