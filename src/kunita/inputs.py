"""From arguments to objects: the files that a command names, read and checked before anything is
computed.
"""

import dataclasses
from argparse import Namespace
from pathlib import Path
from typing import Any

from kunita.console import Console
from kunita.data.geometry import Mesh, Streamlines
from kunita.data.image import Grid, Image, as_plane, is_pixel_grid, is_slice, plane_of
from kunita.data.landmarks import Landmarks
from kunita.data.slices import refuse_displaced, refuse_turned
from kunita.errors import ArgumentError, FileError, LandmarkError
from kunita.io.frame_check import check_inside
from kunita.io.frames import Frame
from kunita.io.geometry_files.files import is_geometry, read_geometry
from kunita.io.image_files.files import PICTURES, is_image, read_grid, read_image
from kunita.io.landmark_files.files import FORMATS, read_tables
from kunita.io.landmark_files.table import LandmarkTable
from kunita.io.recorded_grids import recorded_grid, recorded_slice, recorded_spacing, same_place
from kunita.io.result_folder import find_record


@dataclasses.dataclass(frozen=True)
class FrameOrFormat:
    """What `--from` or `--to` says: a frame, a format of landmark files, or nothing."""

    frame: Frame | None = None
    format: str | None = None


def frame_or_format(text: str | None, option: str) -> FrameOrFormat:
    """The frame or the format that a word names; no word is both."""
    if text is None:
        return FrameOrFormat()
    if text.upper() in Frame.__members__:
        return FrameOrFormat(frame=Frame[text.upper()])
    if text.lower() in FORMATS:
        return FrameOrFormat(format=text.lower())
    known = ", ".join((*Frame.__members__, *FORMATS))
    raise ArgumentError(f"{option}: expected a frame or a format ({known}), found {text!r}")


def changed(args: Namespace, **other: Any) -> Namespace:
    """The same arguments, some of them replaced."""
    return Namespace(**{**vars(args), **other})


def tables(path: Path, args: Namespace) -> tuple[LandmarkTable, ...]:
    """All sets of landmarks in a file, read as the arguments say."""
    if path.is_file() and is_image(path):
        raise FileError(
            f"{path}: this is an image; landmarks were expected (images are registered with "
            "--from-images)"
        )
    image = getattr(args, "image", None)
    return read_tables(
        path,
        frame=args.frame,
        volume=getattr(args, "volume", None),
        format=args.format,
        spacing=args.spacing,
        image=grid_of(image, args.spacing) if image else None,
        index_base=args.index_base,
        axis_order=args.axis_order,
        flip=args.flip,
    )


def one_table(path: Path, args: Namespace) -> LandmarkTable:
    """The only set of landmarks in a file."""
    found = [table for table in tables(path, args) if len(table)]
    if len(found) != 1:
        option = "--volumes M,F" if hasattr(args, "volumes") else "--volume"
        raise FileError(f"{path}: has {len(found)} sets of landmarks; say which with {option}")
    return _usable(path, found[0])


def _usable(path: Path, table: LandmarkTable) -> LandmarkTable:
    """The table, if its rows make landmarks; otherwise the refusal says whose they are."""
    try:
        table.landmarks()
    except LandmarkError as error:
        raise FileError(f"{path}: {error}") from error
    return table


def _frames(args: Namespace) -> tuple[str | None, str | None]:
    """The frames that were given for both sides; a command without landmarks is refused."""
    if args.moving is None:
        raise ArgumentError("MOVING: expected landmarks, or two images by --from-images")
    return args.moving_frame or args.frame, args.fixed_frame or args.frame


IMAGE_OPTIONS = (
    "landmarks",
    "metric",
    "moving_mask",
    "fixed_mask",
    "init",
    "seed",
    "quick",
)
"""What `kunita register` takes together with --from-images only."""


def refuse_image_options(args: Namespace) -> None:
    """Refuse what says how images are registered, where landmarks alone drive the fit."""
    for name in IMAGE_OPTIONS:
        value = getattr(args, name, None)
        if value is not None and value is not False:
            option = f"--{name.replace('_', '-')}"
            raise ArgumentError(
                f"{option}: is for images that drive the fit; give them by --from-images MOVING "
                "FIXED, or leave it out"
            )


def read_sides(args: Namespace) -> tuple[LandmarkTable, LandmarkTable]:
    """The moving and the fixed table: from two files, or from two volumes of one."""
    moving_frame, fixed_frame = _frames(args)
    if args.fixed is not None and args.fixed != args.moving:
        volumes = args.volumes or (None, None)
        return (
            one_table(
                args.moving,
                changed(args, frame=moving_frame, image=args.moving_image, volume=volumes[0]),
            ),
            one_table(
                args.fixed,
                changed(args, frame=fixed_frame, image=args.fixed_image, volume=volumes[1]),
            ),
        )
    if moving_frame and fixed_frame and moving_frame != fixed_frame:
        raise ArgumentError("--fixed-frame: one file has one frame; give --frame, or two files")
    frame, order = moving_frame or fixed_frame, args.volumes or (1, 2)
    found = tables(args.moving, changed(args, frame=frame, image=args.moving_image))
    if not all(1 <= k <= len(found) for k in order) or order[0] == order[1]:
        asked = ",".join(str(k) for k in order)
        raise FileError(
            f"{args.moving}: expected two volumes (--volumes {asked}) or a second file, found {len(found)} volume(s)"
        )
    return _usable(args.moving, found[order[0] - 1]), _usable(args.moving, found[order[1] - 1])


def read_targets(args: Namespace, dimension: int) -> Landmarks | Mesh | Streamlines:
    """What is to be carried along, read before anything is computed; its format is told by the file
    alone.
    """
    frame = args.moving_frame or args.frame
    if is_geometry(args.targets):
        targets: Any = read_geometry(args.targets, frame=frame)
    else:
        own = changed(args, frame=frame, image=args.moving_image, volume=None, format=None)
        targets = one_table(args.targets, own).landmarks()
    check_dimension(args.targets, targets.points.shape[1], dimension)
    return targets


def grid_of(image: Path, spacing: Any, dimension: int | None = None) -> Grid:
    """The grid of an image; a spacing is for pictures, a volume states its own.

    A volume of one slice is a plane where two dimensions are asked for.
    """
    grid = read_grid(image)
    if dimension == 2 and grid.dimension == 3:
        return plane_of(grid)
    return (
        read_grid(image, spacing=spacing) if spacing is not None and grid.dimension == 2 else grid
    )


def fixed_plane(args: Namespace, dimension: int) -> Grid | None:
    """The grid of the fixed image where it is a plane, on which the names of files depend."""
    if args.fixed_image is None or dimension == 3:
        return None
    return grid_of(args.fixed_image, args.spacing, dimension)


def reference_grid(args: Namespace, side: str, dimension: int) -> Grid:
    """The grid that a map is on: the reference's, or that of the image that was registered."""
    grid = (
        grid_of(
            args.reference,
            recorded_spacing(args.result, args.spacing, args.reference),
            dimension,
        )
        if args.reference
        else recorded_grid(args.result, side)
    )
    if grid is None:
        raise ArgumentError(
            f"--reference: needed, since {args.result} was registered without a {side} image"
        )
    check_dimension(args.reference or args.result, grid.dimension, dimension)
    if args.reference:
        refuse_other_slice(args.reference, args.result, side)
    _check_place(args.out, grid)
    return grid


def slice_of(args: Namespace, dimension: int) -> Grid | None:
    """The reference where it is a volume of one slice and planes were registered.

    What is made on its plane is written as such a volume, which says where it lies; a picture
    cannot.
    """
    if dimension == 3 or args.reference is None or args.out.suffix.lower() in PICTURES:
        return None
    grid = read_grid(args.reference)
    return grid if is_slice(grid) else None


def refuse_other_slice(path: Path, result: Path, side: str) -> None:
    """Refuse a slice that is stored otherwise than the one that was registered, or begins elsewhere.

    Args:
        path: an image or a reference.
        result: of the registration.
        side: "moving" or "fixed": which of its images the slice stands for.
    """
    registered = recorded_slice(result, side)
    if registered is not None:
        grid = read_grid(path)
        refuse_turned(grid, registered, str(path), f"registered {side} image")
        refuse_displaced(grid, registered, str(path), f"registered {side} image")


def _check_place(out: Path, grid: Grid) -> None:
    """Refuse a picture of a plane that has a place of its own, before anything is computed."""
    if out.suffix.lower() in PICTURES and not is_pixel_grid(grid):
        raise FileError.at(
            out,
            None,
            "a name that ends in .nrrd, .mha or .nii.gz, since a picture cannot say where the plane "
            "lies",
            out.name,
        )


def check_dimension(path: Path, found: int, expected: int) -> None:
    """Refuse a file in the plane for a registration in space, and the other way round."""
    if found != expected:
        raise FileError(f"{path}: expected {expected}-D, as the registration is, found {found}-D")


def image_in(path: Path, spacing: Any, dimension: int) -> Image:
    """An image of a registration in so many dimensions; one slice is a plane.

    A spacing is for pictures, a volume states its own.
    """
    image = read_image(path, spacing=spacing if read_grid(path).dimension == 2 else None)
    if dimension == 2:
        image = as_plane(image)
    check_dimension(path, image.grid.dimension, dimension)
    return image


def check_images(args: Namespace, moving: LandmarkTable, fixed: LandmarkTable) -> tuple[str, ...]:
    """Remarks on landmarks outside their image; a frame that cannot be is refused."""
    sides = (("moving", args.moving_image, moving), ("fixed", args.fixed_image, fixed))
    remarks = _labels_in_the_other_space(args)
    found = (
        check_inside(
            table.landmarks(),
            grid_of(image, args.spacing),
            side,
            image.name,
            table.frame,
            stated=table.stated,
        )
        for side, image, table in sides
        if image
    )
    return (*remarks, *(remark for remark in found if remark))


def _labels_in_the_other_space(args: Namespace) -> tuple[str, ...]:
    """A remark when the labels lie exactly where the fixed image lies: they are probably the wrong
    ones.
    """
    if not (args.labels and args.moving_image and args.fixed_image):
        return ()
    files = (args.labels, args.moving_image, args.fixed_image)
    labels, moving, fixed = (grid_of(path, args.spacing) for path in files)
    if same_place(labels, fixed) and not same_place(moving, fixed):
        return (
            f"{args.labels.name} lies on the grid of the fixed image; labels of the moving space were expected",
        )
    return ()


def warn_of_the_other_space(args: Namespace, grid: Grid, console: Console) -> None:
    """An image that lies exactly where the other space's image lies is probably the wrong one."""
    sides = ("moving", "fixed") if args.inverse else ("fixed", "moving")
    other, own = (recorded_grid(args.result, side) for side in sides)
    if same_place(grid, other) and own is not None and not same_place(own, other):
        console.warn(
            f"{args.image} lies on the grid of the {sides[0]} image: is --inverse wrong or missing?"
        )


def load_result(result: Path) -> Any:
    """The registration that a folder or a file holds; what its use compiles is kept for the next
    run.
    """
    from kunita.io.registration_files import load

    record = find_record(result)
    keep_programs()
    return load(record)


def keep_programs() -> None:
    """Keep a registration's programs in the user's own cache, so that the next one starts at once.

    Where JAX was told to keep what it compiles, that is left to it.
    """
    import jax
    import platformdirs

    from kunita.jaxrun import programs

    if jax.config.jax_compilation_cache_dir is None:  # type: ignore[attr-defined]
        programs.keep(platformdirs.user_cache_path("kunita") / "programs")


def keep_compiled() -> None:
    """Let JAX keep all that it compiles in the user's own cache: for commands that run for long, in
    many programs.
    """
    import jax
    import platformdirs

    if jax.config.jax_compilation_cache_dir is None:  # type: ignore[attr-defined]
        jax.config.update("jax_compilation_cache_dir", platformdirs.user_cache_dir("kunita"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
