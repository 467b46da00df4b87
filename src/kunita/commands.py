"""What each command does: files → landmarks, images → register → outputs → files. Here the layers meet."""

import dataclasses
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kunita.console import Console
from kunita.data.geometry import Mesh, Streamlines
from kunita.data.image import Grid
from kunita.data.landmarks import Landmarks
from kunita.errors import ArgumentError, ExitStatus, FileError, LandmarkError
from kunita.io.frame_check import check_inside
from kunita.io.frames import Frame, flip_points
from kunita.io.geometry_files.files import is_geometry, read_geometry, write_geometry
from kunita.io.image_files.files import NIFTI, PICTURES, WRITTEN, is_image, read_grid, read_image, write_image
from kunita.io.landmark_files.files import FORMATS, read_tables, write_landmarks
from kunita.io.landmark_files.table import LandmarkTable
from kunita.io.recorded_grids import recorded_grid, recorded_spacing, same_place
from kunita.io.result_folder import check_result, find_record, result_folder, results_in
from kunita.io.writing import check_writable


def register(args: Namespace) -> int:
    """`kunita register`."""
    from kunita import results

    console, began = Console(quiet=args.quiet, as_json=args.json), time.perf_counter()
    with console.warnings():
        moving, fixed = _read_sides(args)
        request = _request(args, moving.dimension)
        names, rename = results.output_names(request, moving.dimension), request.bids or (lambda name: name)
        check_result(args.out, names, overwrite=args.overwrite, rename=rename)
        remarks = _check_images(args, moving, fixed)
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
    lines = [reg.summary(), *_target_lines(document["targets"])]
    lines.append(f"  written    {args.out}/ ({len(document['files'])} files, {seconds:.0f} s in all)")
    console.answer("\n".join(lines), document)
    return ExitStatus.DONE if reg.converged else ExitStatus.NOT_CONVERGED


def predict(args: Namespace) -> int:
    """`kunita predict`."""
    from kunita.outputs.carry import carry_geometry, carry_landmarks

    console, reg = Console(quiet=args.quiet, as_json=args.json), _load(args.result)
    args.spacing, more = recorded_spacing(args.result, args.spacing), ""
    check_writable(args.out, overwrite=args.overwrite)
    with console.warnings():
        if is_geometry(args.points):
            moved, values = carry_geometry(reg, read_geometry(args.points, frame=args.frame), inverse=args.inverse)
            grid = read_grid(args.reference) if args.reference else None
            files = write_geometry(args.out, moved, values, reference=grid, overwrite=args.overwrite)
            more = "".join(f"; also {path.name}" for path in files if path != args.out)
            radius = np.asarray(values.radius)
        else:
            table = _one_table(args.points, args)
            _check_dimension(args.points, table.dimension, reg.fixed.dimension)
            more = " (the points' own covariances included)" if table.covariances is not None else ""
            carried = carry_landmarks(reg, table.landmarks(), inverse=args.inverse)
            write_landmarks(args.out, carried, format=_known_format(args.out), overwrite=args.overwrite)
            radius = _radius(carried)
    space = "moving" if args.inverse else "fixed"
    text = (
        f"{len(radius)} points in {space} space written to {args.out}; "
        f"95 % radius {np.median(radius):.2f} mm (median), {radius.max():.2f} mm (largest){more}"
    )
    document = {"n": len(radius), "space": space, "median_radius95_mm": float(np.median(radius)),
                "max_radius95_mm": float(radius.max()), "out": str(args.out)}  # fmt: skip
    console.answer(text, document)
    return ExitStatus.DONE


def warp(args: Namespace) -> int:
    """`kunita warp`."""
    from kunita.io.map_files import channel_count, map_writer
    from kunita.outputs.dense import slabs
    from kunita.outputs.maps import pull_back
    from kunita.outputs.warp import warped_slabs

    console, reg = Console(quiet=args.quiet, as_json=args.json), _load(args.result)
    _check_image_name(args.out, reg.fixed.dimension)
    check_writable(args.out, overwrite=args.overwrite)
    interpolation = "nearest" if args.nearest else "cubic" if args.cubic else "linear"
    with console.warnings(), console.progress() as tell:
        args.spacing = recorded_spacing(args.result, args.spacing)
        grid = _reference(args, "moving" if args.inverse else "fixed")
        _check_dimension(args.reference or args.result, grid.dimension, reg.fixed.dimension)
        image = read_image(args.image, spacing=args.spacing)
        _warn_of_the_other_space(args, image.grid, console)
        _check_dimension(args.image, image.grid.dimension, reg.fixed.dimension)
        pulled = pull_back(reg, grid, inverse=args.inverse, progress=tell("evaluating the map"))
        for remark in pulled.remarks:
            console.warn(remark)
        progress = tell(f"writing {args.out.name}")
        writer = map_writer(args.out, grid, image.data.dtype, channels=channel_count(image), overwrite=args.overwrite)
        with writer as write:
            for slab, piece in zip(slabs(grid), warped_slabs(pulled, image, interpolation), strict=True):
                write(piece)
                progress((slab[-1][-1] + 1) / grid.shape[-1])
    console.answer(f"{args.image} warped ({interpolation}) onto {_shape(grid)}: {args.out}", {"out": str(args.out)})
    return ExitStatus.DONE


def uncertainty(args: Namespace) -> int:
    """`kunita uncertainty`."""
    from kunita.io.map_files import write_map
    from kunita.outputs.maps import UNITS, maps

    console, reg = Console(quiet=args.quiet, as_json=args.json), _load(args.result)
    _check_image_name(args.out, reg.fixed.dimension, vector=args.what == "cov", floats=True)
    check_writable(args.out, overwrite=args.overwrite)
    with console.warnings(), console.progress() as tell:
        args.spacing = recorded_spacing(args.result, args.spacing)
        grid = _reference(args, "fixed")
        _check_dimension(args.reference or args.result, grid.dimension, reg.fixed.dimension)
        found = maps(reg, grid, tell("evaluating the posterior"))
        for remark in found.remarks:
            console.warn(remark)
        write_map(args.out, found, args.what, tell(f"writing {args.out.name}"), overwrite=args.overwrite)
    text = f"{args.what} ({UNITS[args.what]}) on {_shape(found.grid)}: {args.out}"
    console.answer(text, {"what": args.what, "units": UNITS[args.what], "out": str(args.out)})
    return ExitStatus.DONE


def pool(args: Namespace) -> int:
    """`kunita pool`."""
    from kunita.data.raters import doubts, far_marks, pool_raters

    console = Console(quiet=args.quiet, as_json=args.json)
    check_writable(args.out, overwrite=args.overwrite)
    with console.warnings():
        raters = [_one_table(path, args).landmarks() for path in args.files]
        pooled = pool_raters(raters, spread=args.spread)
        for doubt in doubts(raters, [path.name for path in args.files]):
            console.warn(doubt)
        for name, rater, distance in far_marks(raters):
            console.warn(f"{args.files[rater].name}: landmark {name!r} is {distance:.1f} mm off and weighs less")
        write_landmarks(args.out, pooled, format=_known_format(args.out), overwrite=args.overwrite)
    spread = float(np.sqrt(np.mean(np.trace(pooled.covariances, axis1=1, axis2=2)) / pooled.dimension))
    kind = "of a pooled point" if args.spread == "mean" else "of a single rater"
    text = f"{len(pooled)} landmarks from {len(raters)} raters, sd {kind} {spread:.2f} mm: {args.out}"
    console.answer(text, {"n_landmarks": len(pooled), "n_raters": len(raters), "sd_mm": spread, "out": str(args.out)})
    return ExitStatus.DONE


def convert(args: Namespace) -> int:
    """`kunita convert`."""
    console = Console(quiet=args.quiet, as_json=args.json)
    check_writable(args.out, overwrite=args.overwrite)
    origin, goal = _frame_or_format(args.origin, "--from"), _frame_or_format(args.goal, "--to")
    with console.warnings():
        if is_geometry(args.input):
            geometry = read_geometry(args.input, frame=origin.frame or args.frame)
            grid = read_grid(args.reference) if args.reference else None
            write_geometry(args.out, geometry, frame=goal.frame, reference=grid, overwrite=args.overwrite)
            n, what = len(geometry.points), "vertices"
        elif is_image(args.input):
            image = read_image(args.input, spacing=args.spacing)
            write_image(args.out, image, overwrite=args.overwrite)
            n, what = image.grid.size, "voxels"
        else:
            tables = _tables(args.input, args, frame=origin.frame or args.frame, format=origin.format or args.format)
            if len(tables) > 1 and not args.out.name.lower().endswith(".tag"):
                raise FileError(f"{args.input}: has {len(tables)} sets of landmarks; say which with --volume")
            chosen = tables[0] if len(tables) == 1 else tables
            write_landmarks(args.out, chosen, frame=goal.frame, format=goal.format, overwrite=args.overwrite)
            n, what = sum(len(table) for table in tables), "landmarks"
    console.answer(f"{n} {what}: {args.input} → {args.out}", {"n": n, "what": what, "out": str(args.out)})
    return ExitStatus.DONE


def info(args: Namespace) -> int:
    """`kunita info`."""
    console = Console(quiet=args.quiet, as_json=args.json)
    with console.warnings():
        document = _describe(args)
    width = max(len(key) for key in document)
    console.answer("\n".join(f"{key:<{width}}  {_readable(value)}" for key, value in document.items()), document)
    return ExitStatus.DONE


# ------------------------------------------------------------------------------------------- from arguments to objects


@dataclasses.dataclass(frozen=True)
class _FrameOrFormat:
    frame: Frame | None = None
    format: str | None = None


def _frame_or_format(text: str | None, option: str) -> _FrameOrFormat:
    if text is None:
        return _FrameOrFormat()
    if text.upper() in Frame.__members__:
        return _FrameOrFormat(frame=Frame[text.upper()])
    if text.lower() in FORMATS:
        return _FrameOrFormat(format=text.lower())
    known = ", ".join((*Frame.__members__, *FORMATS))
    raise ArgumentError(f"{option}: expected a frame or a format ({known}), found {text!r}")


def _request(args: Namespace, dimension: int) -> Any:
    from kunita.io.bids import bids_names
    from kunita.results import Request

    if args.labels and not args.fixed_image:
        raise ArgumentError("--labels: expected a --fixed-image too, on whose grid the probabilities are")
    names = None
    if args.bids:
        moving, fixed = args.moving_image or args.moving, args.fixed_image or args.fixed or args.moving
        names = bids_names(moving, fixed)
    return Request(
        moving_image=args.moving_image, fixed_image=args.fixed_image, labels=args.labels, targets_file=args.targets,
        targets=_read_targets(args, dimension) if args.targets else None,
        spacing=args.spacing if dimension == 2 else None, covariance=args.cov, nrrd=args.nrrd,
        nifti_xfm=args.nifti_xfm, figure=not args.no_report, bids=names,
    )  # fmt: skip


def _read_targets(args: Namespace, dimension: int) -> Landmarks | Mesh | Streamlines:
    """What is to be carried along, read before anything is computed; its format is told by the file alone."""
    frame = args.moving_frame or args.frame
    if is_geometry(args.targets):
        targets: Any = read_geometry(args.targets, frame=frame)
    else:
        image = args.moving_image
        targets = _one_table(args.targets, args, frame=frame, image=image, volume=None, format=None).landmarks()
    _check_dimension(args.targets, targets.points.shape[1], dimension)
    return targets


def _check_dimension(path: Path, found: int, expected: int) -> None:
    if found != expected:
        raise FileError(f"{path}: expected {expected}-D, as the landmarks are, found {found}-D")


def _read_sides(args: Namespace) -> tuple[LandmarkTable, LandmarkTable]:
    """The moving and the fixed table: from two files, or from two volumes of one."""
    moving_frame, fixed_frame = args.moving_frame or args.frame, args.fixed_frame or args.frame
    if args.fixed is not None and args.fixed != args.moving:
        volumes = args.volumes or (None, None)
        return (
            _one_table(args.moving, args, frame=moving_frame, image=args.moving_image, volume=volumes[0]),
            _one_table(args.fixed, args, frame=fixed_frame, image=args.fixed_image, volume=volumes[1]),
        )
    if moving_frame and fixed_frame and moving_frame != fixed_frame:
        raise ArgumentError("--fixed-frame: one file has one frame; give --frame, or two files")
    frame, order = moving_frame or fixed_frame, args.volumes or (1, 2)
    tables = _tables(args.moving, args, frame=frame, image=args.moving_image)
    if not all(1 <= k <= len(tables) for k in order) or order[0] == order[1]:
        asked = ",".join(str(k) for k in order)
        raise FileError(
            f"{args.moving}: expected two volumes (--volumes {asked}) or a second file, found {len(tables)} volume(s)"
        )
    return _usable(args.moving, tables[order[0] - 1]), _usable(args.moving, tables[order[1] - 1])


def _note_sides(args: Namespace, moving: LandmarkTable, fixed: LandmarkTable, console: Console) -> None:
    """Say what was read, and in which frame."""
    for side, path, table in (("moving", args.moving, moving), ("fixed", args.fixed or args.moving, fixed)):
        console.note(f"{side:<6} {path}: {len(table)} landmarks, {table.frame.value} ({table.stated})")
        if table.names_problem:
            console.note(f"       paired by order: {table.names_problem}")
    known = [side.covariances is not None for side in (moving, fixed)]
    if args.noise is None and any(known) and not all(known):
        side = "moving" if known[0] else "fixed"
        console.note(f"       only the {side} landmarks have covariances: the others count as exact")
    if moving.dimension == 2 and args.spacing is None and (args.moving_image or args.fixed_image):
        console.note("       no --spacing: one pixel counts as one mm")


def _tables(path: Path, args: Namespace, **given: Any) -> tuple[LandmarkTable, ...]:
    """All sets of landmarks in a file, read as the arguments say, or as is given here in their place."""
    if path.is_file() and is_image(path):
        raise FileError(f"{path}: this is an image; landmarks were expected")
    image = given.get("image", getattr(args, "image", None))
    return read_tables(
        path,
        frame=given.get("frame", args.frame),
        volume=given.get("volume", getattr(args, "volume", None)),
        format=given.get("format", args.format),
        spacing=args.spacing,
        image=_grid_of(image, args.spacing) if image else None,
        index_base=args.index_base,
        axis_order=args.axis_order,
        flip=args.flip,
    )


def _one_table(path: Path, args: Namespace, **given: Any) -> LandmarkTable:
    tables = [table for table in _tables(path, args, **given) if len(table)]
    if len(tables) != 1:
        option = "--volume" if hasattr(args, "volume") else "--volumes M,F"
        raise FileError(f"{path}: has {len(tables)} sets of landmarks; say which with {option}")
    return _usable(path, tables[0])


def _usable(path: Path, table: LandmarkTable) -> LandmarkTable:
    """The table, if its rows make landmarks; otherwise the refusal says whose they are."""
    try:
        table.landmarks()
    except LandmarkError as error:
        raise FileError(f"{path}: {error}") from error
    return table


def _grid_of(image: Path, spacing: Any) -> Grid:
    """The grid of an image; a spacing is for pictures, a volume states its own."""
    grid = read_grid(image)
    return read_grid(image, spacing=spacing) if spacing is not None and grid.dimension == 2 else grid


def _check_images(args: Namespace, moving: LandmarkTable, fixed: LandmarkTable) -> tuple[str, ...]:
    """Remarks on landmarks outside their image; a frame that cannot be is refused."""
    sides = (("moving", args.moving_image, moving), ("fixed", args.fixed_image, fixed))
    remarks = _labels_in_the_other_space(args)
    found = (
        check_inside(
            table.landmarks(), _grid_of(image, args.spacing), side, image.name, table.frame, stated=table.stated
        )
        for side, image, table in sides
        if image
    )
    return (*remarks, *(remark for remark in found if remark))


def _fit(args: Namespace, moving: Landmarks, fixed: Landmarks, tell: Callable[[str], Any]) -> Any:
    from kunita.registration import register as fit

    _keep_compiled()
    tell("fitting (and compiling, the first time for a number of landmarks)")
    return fit(
        moving, fixed, kernel=args.kernel, length_scale=args.length_scale, amplitude=args.amplitude,
        noise=args.noise, align=args.align, model=args.model,
    )  # fmt: skip


def _load(result: Path) -> Any:
    from kunita.io.registration_files import load

    record = find_record(result)
    _keep_compiled()
    return load(record)


def _keep_compiled() -> None:
    """Keep compiled programs in the user's own cache, or where JAX was told to: the next run starts at once."""
    import jax
    import platformdirs

    if jax.config.jax_compilation_cache_dir is None:  # type: ignore[attr-defined]
        jax.config.update("jax_compilation_cache_dir", platformdirs.user_cache_dir("kunita"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


def _reference(args: Namespace, side: str) -> Grid:
    """The grid that a map is on: the reference's, or that of the image that was registered."""
    grid = _grid_of(args.reference, args.spacing) if args.reference else recorded_grid(args.result, side)
    if grid is None:
        raise ArgumentError(f"--reference: needed, since {args.result} was registered without a {side} image")
    return grid


def _warn_of_the_other_space(args: Namespace, grid: Grid, console: Console) -> None:
    """An image that lies exactly where the other space's image lies is probably the wrong one."""
    sides = ("moving", "fixed") if args.inverse else ("fixed", "moving")
    other, own = (recorded_grid(args.result, side) for side in sides)
    if same_place(grid, other) and own is not None and not same_place(own, other):
        console.warn(f"{args.image} lies on the grid of the {sides[0]} image: is --inverse wrong or missing?")


def _labels_in_the_other_space(args: Namespace) -> tuple[str, ...]:
    if not (args.labels and args.moving_image and args.fixed_image):
        return ()
    files = (args.labels, args.moving_image, args.fixed_image)
    labels, moving, fixed = (_grid_of(path, args.spacing) for path in files)
    if same_place(labels, fixed) and not same_place(moving, fixed):
        return (f"{args.labels.name} lies on the grid of the fixed image; labels of the moving space were expected",)
    return ()


def _target_lines(targets: Sequence[Any]) -> Iterator[str]:
    """Where the targets are, the first few of them, for people."""
    for target in [target for target in targets if "name" in target][:5]:
        place = ", ".join(f"{x:.1f}" for x in target["position"])
        frame = "RAS" if len(target["position"]) == 3 else "IMAGE"
        yield f"  target     {target['name']}: ({place}) {frame}, within {target['radius95_mm']:.2g} mm (95 %)"


def _check_image_name(path: Path, dimension: int, *, vector: bool = False, floats: bool = False) -> None:
    """Refuse a name that such an image cannot have, before anything is computed."""
    volumes = tuple(suffix for suffix in WRITTEN if suffix not in PICTURES)
    pictures = (*volumes, ".tif", ".tiff") if floats else WRITTEN
    allowed = pictures if dimension == 2 else NIFTI[:2] if vector else volumes
    if not path.name.lower().endswith(allowed):
        raise FileError.at(path, None, f"a name that ends in {', '.join(allowed)}", path.name)


def _known_format(path: Path) -> str | None:
    """A .txt could be several things; everything else tells its format by its name."""
    return "csv" if path.suffix.lower() == ".txt" else None


def _radius(landmarks: Landmarks) -> np.ndarray:
    from kunita.gaussians import ball_radius

    return ball_radius(landmarks.covariances, 0.95)


# ----------------------------------------------------------------------------------------------------- what a file is


def _describe(args: Namespace) -> dict[str, Any]:
    path = args.file
    if not path.exists():
        raise FileError(f"{path}: no such file")
    if path.name.endswith("registration.h5") or (path.is_dir() and results_in(path)):
        return _describe_registration(path)
    if path.suffix.lower() in (".h5", ".hdf5", ".tfm"):
        return _describe_transform(path)
    if is_geometry(path):
        geometry = read_geometry(path, frame=args.frame)
        low, high = geometry.points.min(axis=0), geometry.points.max(axis=0)
        return {"file": str(path), "kind": type(geometry).__name__.lower(), "n_points": len(geometry.points),
                "from_mm": low.tolist(), "to_mm": high.tolist()}  # fmt: skip
    return _describe_image(path, args) if is_image(path) else _describe_landmarks(path, args)


def _describe_registration(path: Path) -> dict[str, Any]:
    reg = _load(path)
    return {
        "file": str(find_record(path)), "kind": "registration", "summary": reg.summary().splitlines(),
    }  # fmt: skip


def _describe_transform(path: Path) -> dict[str, Any]:
    import SimpleITK as sitk

    try:
        transform = sitk.ReadTransform(str(path))
    except RuntimeError as error:
        raise FileError(f"{path}: neither a registration nor an ITK transform") from error
    return {"file": str(path), "kind": "ITK transform", "type": transform.GetName(),
            "dimension": transform.GetDimension(), "frame": "LPS" if transform.GetDimension() == 3 else "IMAGE",
            "maps": "points; an image is warped the other way"}  # fmt: skip


def _describe_image(path: Path, args: Namespace) -> dict[str, Any]:
    grid = _grid_of(path, args.spacing)
    centre = grid.world((np.array(grid.shape) - 1) / 2)
    return {"file": str(path), "kind": "image", "shape": list(grid.shape), "spacing_mm": grid.spacing.tolist(),
            "axes": _axes(grid), "frame": "RAS" if grid.dimension == 3 else "IMAGE", "centre_mm": centre.tolist(),
            "affine": grid.affine.tolist()}  # fmt: skip


def _describe_landmarks(path: Path, args: Namespace) -> dict[str, Any]:
    tables = _tables(path, args)
    return {"file": str(path), "kind": "landmarks", "volumes": [_describe_table(table) for table in tables]}


def _describe_table(table: LandmarkTable) -> dict[str, Any]:
    points = flip_points(table.points[table.defined], table.frame)  # the numbers that the file has
    return {
        "n": len(table), "undefined": int((~table.defined).sum()), "dimension": table.dimension,
        "frame": f"{table.frame.value} ({table.stated})",
        "pairing": f"by order: {table.names_problem}" if table.names_problem else "by name",
        "covariances": table.covariances is not None,
        "from_mm": points.min(axis=0).tolist(), "to_mm": points.max(axis=0).tolist(),
    }  # fmt: skip


def _axes(grid: Grid) -> str:
    """Where each axis of the voxels mostly points, such as RAS or LPS."""
    if grid.dimension == 2:
        return "x right, y down"
    directions = grid.affine[:3, :3] / grid.spacing
    strongest = np.argmax(np.abs(directions), axis=0)
    letters = [("RL", "AP", "SI")[world][int(directions[world, k] < 0)] for k, world in enumerate(strongest)]
    return "".join(letters)


def _shape(grid: Grid) -> str:
    return "×".join(str(n) for n in grid.shape)


def _readable(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return "; ".join(f"{key} {_readable(item)}" for key, item in value.items())
    if isinstance(value, list) and value and isinstance(value[0], dict | list | str):
        return "\n" + "\n".join(f"    {_readable(item)}" for item in value)
    if isinstance(value, list):
        return " ".join(_readable(item) for item in value)
    return str(value)
