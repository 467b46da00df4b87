"""Maps as files: NIfTI written slab by slab in 3-D; TIFF in 2-D, or NRRD where that has a place."""

import contextlib
import functools
import math
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from kunita.data.image import Grid, Image, is_pixel_grid
from kunita.data.slices import on_slice
from kunita.errors import FileError
from kunita.io.frames import Frame, flip_covariances
from kunita.io.image_files.files import slab_writer, write_image
from kunita.io.image_files.nifti_slabs import Intent
from kunita.jaxrun.threads import in_order
from kunita.outputs.dense import Lattice, Progress, slabs
from kunita.outputs.maps import Maps, packed
from kunita.outputs.warp import warped_slabs

Write = Callable[[np.ndarray], None]

DESCRIPTIONS = {
    "fc": "kunita: Frobenius norm of the covariance, mm2",
    "std": "kunita: standard deviation, mm",
    "radius": "kunita: radius of the 95 % ball, mm",
    "cov": "kunita: covariance xx yx yy zx zy zz, LPS, mm2",
    "jacobian": "kunita: Jacobian determinant",
    "mismatch": "kunita: local noise over the usual; 0 not compared",
}
"""What a file says of itself, once it is renamed."""


def channel_count(image: Image) -> int | None:
    """How many numbers a voxel has; None for an image of plain numbers."""
    return image.data.shape[-1] if image.channels else None


def map_suffix(dimension: int, grid: Grid | None = None) -> str:
    """.nii.gz in 3-D; .tif in 2-D, which holds floats and colours and opens everywhere.

    .nrrd for a plane that does not start at zero, or whose axes are turned: a TIFF has no place.

    Args:
        dimension: of the registration.
        grid: that of the fixed image, where there is one.
    """
    if dimension == 3:
        return ".nii.gz"
    return ".tif" if grid is None or is_pixel_grid(grid) else ".nrrd"


@contextlib.contextmanager
def map_writer(
    path: Path,
    grid: Grid,
    dtype: Any,
    *,
    channels: int | None = None,
    description: str = "",
    place: Grid | None = None,
    overwrite: bool = False,
) -> Iterator[Write]:
    """What takes the slabs of a map one after the other, (…) or (…, channels); a NIfTI file of a
    volume is never held whole.

    Args:
        path: its suffix tells the format.
        grid: where the voxels are.
        dtype: of their numbers.
        channels: numbers for each voxel; None for one.
        description: what the file says of itself, if it can.
        place: the slice that a plane was, if it was one and the file is to be one.
        overwrite: whether an existing file may be replaced.
    """
    if path.name.lower().endswith((".nii", ".nii.gz")) and grid.dimension == 3:
        writer = slab_writer(
            path, grid, dtype, channels=channels, description=description, overwrite=overwrite
        )
        with writer as write:
            if channels is None:
                yield write
            else:
                with _spool(path.parent, channels, write) as keep:
                    yield keep
        return
    parts: list[np.ndarray] = []
    yield parts.append
    data = np.concatenate(parts, axis=grid.dimension - 1)
    made = Image(data, grid.affine, channels is not None)
    write_image(path, on_slice(made, place), overwrite=overwrite)


@contextlib.contextmanager
def _spool(folder: Path, channels: int, write: Write) -> Iterator[Write]:
    """Keep slabs with channels on the disk until all are there: NIfTI wants the first channel of
    all of them first.
    """
    pieces: list[tuple[tuple[int, ...], np.dtype]] = []
    with tempfile.TemporaryFile(dir=folder) as spool:

        def keep(slab: np.ndarray) -> None:
            pieces.append((slab.shape[:-1], slab.dtype))
            for channel in range(channels):
                spool.write(np.ascontiguousarray(slab[..., channel]).tobytes())

        yield keep
        sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in pieces]
        starts = channels * np.cumsum([0, *sizes])
        for channel in range(channels):
            for (shape, dtype), size, start in zip(pieces, sizes, starts, strict=False):
                spool.seek(int(start) + channel * size)
                write(np.frombuffer(spool.read(size), dtype).reshape(shape))


def write_map(
    path: Path,
    found: Maps,
    what: str,
    progress: Progress,
    *,
    place: Grid | None = None,
    overwrite: bool = False,
) -> None:
    """One map of a registration; `place` is that of the slice that a plane was."""
    if what == "cov":
        return write_covariance(path, found, progress, overwrite=overwrite)
    with map_writer(
        path,
        found.grid,
        np.float32,
        description=DESCRIPTIONS[what],
        place=place,
        overwrite=overwrite,
    ) as write:
        done = 0
        for data in in_order(
            lambda slab: found.on(slab, what).astype(np.float32), slabs(found.grid)
        ):
            write(data)
            done += data.shape[-1]
            progress(done / found.grid.shape[-1])
    return None


def write_covariance(
    path: Path, found: Maps, progress: Progress, *, overwrite: bool = False
) -> None:
    """The covariance as a vector of components xx, yx, yy, zx, zy, zz in the frame of the
    displacement files, LPS.
    """
    d, grid = found.grid.dimension, found.grid
    frame = Frame.LPS if d == 3 else Frame.IMAGE
    signs = packed(flip_covariances(np.ones((d, d)), frame))
    if d == 2:
        data = np.concatenate([found.on(slab, "cov") for slab in slabs(grid)], axis=1)
        return write_image(
            path, Image(data.astype(np.float32), grid.affine, channels=True), overwrite=overwrite
        )
    if not path.name.lower().endswith((".nii", ".nii.gz")):
        raise FileError.at(
            path, None, "a name that ends in .nii or .nii.gz for a covariance map", path.name
        )
    text = DESCRIPTIONS["cov"]
    with slab_writer(
        path,
        grid,
        np.float32,
        channels=len(signs),
        intent=Intent.VECTOR,
        description=text,
        overwrite=overwrite,
    ) as write:
        for component, sign in enumerate(signs):
            for data in in_order(
                functools.partial(_component, found, component, sign), slabs(grid)
            ):
                write(data)
            progress((component + 1) / len(signs))
    return None


def _component(found: Maps, component: int, sign: float, slab: Lattice) -> np.ndarray:
    return (sign * found.component(slab, component)).astype(np.float32)


def write_all_maps(
    folder: Path, found: Maps, scalars: tuple[str, ...], image: Image | None, progress: Progress
) -> None:
    """The scalar maps, and the warped image if there is one, side by side in a single pass over the
    grid.
    """
    grid = found.grid
    suffix = map_suffix(grid.dimension, grid)
    names = {what: what if what == "jacobian" else f"uncertainty_{what}" for what in scalars}
    with contextlib.ExitStack() as files:
        opened = {
            what: map_writer(
                folder / f"{name}{suffix}", grid, np.float32, description=DESCRIPTIONS[what]
            )
            for what, name in names.items()
        }
        write = {what: files.enter_context(writer) for what, writer in opened.items()}
        warp = files.enter_context(_warped_writer(folder / f"warped{suffix}", found, image))
        several = lambda slab: [
            (what, data.astype(np.float32)) for what, data in found.several(slab, scalars)
        ]
        for slab, computed in zip(slabs(grid), in_order(several, slabs(grid)), strict=True):
            for what, data in computed:
                write[what](data)
            warp()
            progress((slab[-1][-1] + 1) / grid.shape[-1])


@contextlib.contextmanager
def _warped_writer(path: Path, found: Maps, image: Image | None) -> Iterator[Callable[[], None]]:
    """What writes the next slab of the warped image, if there is one."""
    if image is None:
        yield lambda: None
        return
    pieces = warped_slabs(found.pull_back, image, "linear")
    with map_writer(path, found.grid, image.data.dtype, channels=channel_count(image)) as write:
        yield lambda: write(next(pieces))
