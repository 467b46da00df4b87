"""An image as a file holds it: its header read and believed, its voxels still to come.

A header is a claim. Before a byte is allocated for the voxels, the claim is held against what the
file can hold, so that a few bytes which declare terabytes are refused as quickly as an empty file.
"""

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from kunita.data.image import Grid
from kunita.errors import FileError, ImageError, KunitaError

DEFLATE = 1032
"""No deflate stream (gzip, zlib, PNG) unpacks to more than this many times its length: 258 bytes
take two bits."""

LOOSE = 16 * DEFLATE
"""The same for formats whose packings multiply: bits that become bytes, palettes that become
colours."""

SHEAR = 1e-5
"""Cosines between axes above this are shear; below it they are the rounding of a file in single
precision."""

SPARE = 2**28
"""Bytes that a file of such a format may always declare: a blank page packs better than any ratio
allows."""


@dataclasses.dataclass(frozen=True, eq=False)
class StoredImage:
    """What the header of an image file says, and how to get the voxels.

    Args:
        grid: where the voxels are.
        load: reads them: an array of the grid's shape, with one more axis if there are channels.
        channels: whether there are.
    """

    grid: Grid
    load: Callable[[], np.ndarray]
    channels: bool = False


def check_room(path: Path, declared: int, held: int, growth: int = 1, spare: int = 0) -> None:
    """Refuse a header that declares more bytes of voxels than the file's bytes can become.

    Args:
        path: for the message.
        declared: bytes of voxels, as the header has it.
        held: bytes of the file that they are in.
        growth: by how much unpacking can multiply those; 1 for voxels that are not packed.
        spare: bytes that may be declared whatever the file holds.
    """
    if declared > max(growth * held, spare):
        raise FileError(
            f"{path}: truncated, or not what its header says: {declared} bytes of voxels are declared, "
            f"and the file has only {held} for them"
        )


def stored_grid(path: Path, shape: tuple[int, ...], affine: np.ndarray) -> Grid:
    """The grid that a header describes; if it describes none, the refusal names the file."""
    try:
        return Grid(shape, affine)
    except ImageError as error:
        raise FileError(f"{path}: {error}") from error


def is_sheared(grid: Grid) -> bool:
    """Whether the axes are not at right angles: a quaternion or a rotation cannot hold such a grid."""
    directions = grid.affine[:-1, :-1] / grid.spacing
    return bool(np.abs(directions.T @ directions - np.eye(grid.dimension)).max() > SHEAR)


def is_dicom(path: Path) -> bool:
    """Whether a file has DICOM's mark."""
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        return file.read(132)[128:] == b"DICM"


@contextlib.contextmanager
def refusing(path: Path, expected: str) -> Iterator[None]:
    """One line that names the file, whatever a library raises about it.

    Given a broken file a library may raise anything, from its own error to an index out of range;
    so everything is caught, and nothing but calls to a library belongs inside.
    """
    try:
        yield
    except KunitaError:
        raise
    except MemoryError as error:
        raise FileError(f"{path}: does not fit in memory") from error
    except Exception as error:
        raise FileError(f"{path}: not a complete {expected}: {reason(error)}") from error


def reason(error: Exception) -> str:
    """The line of a library's message that says what is wrong, without the addresses in its memory."""
    lines = [line.strip() for line in str(error).splitlines()]
    told = [
        line for line in lines if line and not line.startswith("Reason:")
    ]  # ITK's "Reason" is a stale errno
    last = (
        re.sub(r"^.*ERROR: |\w+ ?\(0x[0-9a-f]+\): |^\[nrrd\] \w+: ", "", told[-1]) if told else ""
    )
    return f"{last or type(error).__name__:.160}"
