"""NIfTI written slab by slab, so that a map need never be in memory as a whole."""

import collections
import concurrent.futures
import contextlib
import enum
import math
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from kunita.data.image import Grid
from kunita.errors import ArgumentError, FileError
from kunita.io.image_files.stored_images import is_sheared
from kunita.io.writing import complete

SPEED = 1
"""gzip level: maps of floats hardly shrink further at higher ones, which take several times as
long."""

BLOCK = 2**22
"""Bytes, about, that are put into Fortran order at a time."""

PIECE = 2**18
"""Bytes that are compressed by themselves: always the same, so that equal maps are equal bytes on
any machine."""

GZIP_HEADER = b"\x1f\x8b\x08\x00" + bytes(4) + b"\x04\xff"
"""Deflate, no name, no time, the fastest method, no system."""

GZIP_END = b"\x03\x00"
"""A last, empty block of deflate."""

SCANNER, ALIGNED = 1, 2
"""The code of both forms. Equal codes and equal matrices, because programs differ in which form
they believe; and 1 (the scanner's space) rather than 2 (aligned to something), because a map lies
where its fixed image lies. But a plane is nowhere in a scanner: it is aligned with other planes."""


class Intent(enum.IntEnum):
    """What the channels of a voxel mean, by NIfTI's codes."""

    SYMMETRIC_MATRIX = 1005
    VECTOR = 1007


@contextlib.contextmanager
def slab_writer(
    path: str | os.PathLike,
    grid: Grid,
    dtype: Any,
    *,
    channels: int | None = None,
    intent: int | None = None,
    description: str = "",
    overwrite: bool = False,
) -> Iterator[Callable[[np.ndarray], None]]:
    """A function that takes the next slab of a NIfTI file; the file appears when the block ends
    with all of them.

    Slabs follow one another along the last axis of the grid: each has the shape grid.shape[:-1] +
    (k,). NIfTI stores channels slowest, so with channels all slabs of the first come before those
    of the second: a map with C channels is computed in C passes, or kept by its maker.

    Args:
        path: .nii or .nii.gz; NIfTI-1, or NIfTI-2 where an axis is longer than NIfTI-1 can say.
        grid: 2-D or 3-D. A sheared grid has an sform only.
        dtype: of the voxels in the file.
        channels: None for one number per voxel; else stored as X×Y×Z×1×C, in 2-D as X×Y×1×1×C, as
            ITK does.
        intent: what the channels mean (an `Intent`).
        description: at most 79 bytes.
        overwrite: whether an existing file may be replaced.
    """
    header = _header(Path(path), grid, np.dtype(dtype), channels, intent, description)
    with complete(path, overwrite=overwrite) as partial:
        with _opened(partial) as file:
            header.write_to(file)
            slabs = _Slabs(file, grid.shape, header.get_data_dtype(), channels or 1)
            yield slabs.write
        if slabs.done != slabs.total:
            raise FileError(
                f"{path}: incomplete: expected {slabs.total} planes of voxels, found {slabs.done}"
            )


class _Slabs:
    """The place in the file, counted in planes across the last axis of the grid."""

    def __init__(self, file: Any, shape: tuple[int, ...], dtype: np.dtype, channels: int) -> None:
        self.file, self.shape, self.dtype = file, shape, dtype
        self.done, self.total = 0, shape[-1] * channels

    def write(self, slab: np.ndarray) -> None:
        slab = np.asarray(slab)
        if slab.shape[:-1] != self.shape[:-1] or slab.ndim != len(self.shape):
            raise ArgumentError(
                f"slab: expected shape {(*self.shape[:-1], 'k')}, found {slab.shape}"
            )
        left = min(self.shape[-1] - self.done % self.shape[-1], self.total - self.done)
        if slab.shape[-1] > left:
            raise ArgumentError(
                f"slab: expected at most the {left} planes left, found {slab.shape[-1]}"
            )
        if not np.can_cast(slab.dtype, self.dtype, "same_kind"):
            raise ArgumentError(
                f"slab: expected {self.dtype} or what fits in it, found {slab.dtype}"
            )
        step = max(1, BLOCK // (math.prod(self.shape[:-1]) * self.dtype.itemsize))
        for start in range(0, slab.shape[-1], step):
            block = slab[..., start : start + step].astype(
                self.dtype, casting="same_kind", copy=False
            )
            self.file.write(block.tobytes(order="F"))
        self.done += slab.shape[-1]


class _ParallelGzip:
    """One gzip stream whose pieces are compressed side by side (zlib leaves Python's lock) and
    written in order.

    Each piece is deflated by itself up to a byte's border, so that all together they are one stream
    as any other, with one header and one checksum: readers that stop after a stream's first member
    lose nothing.
    """

    def __init__(
        self, file: BinaryIO, pool: concurrent.futures.ThreadPoolExecutor, ahead: int
    ) -> None:
        self.file, self.pool, self.ahead = file, pool, ahead
        self.rest, self.checksum, self.size = bytearray(), 0, 0
        self.waiting: collections.deque[concurrent.futures.Future[bytes]] = collections.deque()
        file.write(GZIP_HEADER)

    def write(self, data: bytes) -> int:
        self.checksum, self.size = zlib.crc32(data, self.checksum), self.size + len(data)
        self.rest += data
        whole = len(self.rest) // PIECE * PIECE
        for start in range(0, whole, PIECE):
            self._submit(bytes(self.rest[start : start + PIECE]))
        del self.rest[:whole]
        return len(data)

    def finish(self) -> None:
        self._submit(bytes(self.rest))
        while self.waiting:
            self.file.write(self.waiting.popleft().result())
        self.file.write(GZIP_END + struct.pack("<II", self.checksum, self.size % 2**32))

    def _submit(self, piece: bytes) -> None:
        self.waiting.append(self.pool.submit(_deflated, piece))
        if len(self.waiting) > self.ahead:
            self.file.write(self.waiting.popleft().result())


def _deflated(piece: bytes) -> bytes:
    deflate = zlib.compressobj(SPEED, zlib.DEFLATED, -zlib.MAX_WBITS)
    return deflate.compress(piece) + deflate.flush(zlib.Z_SYNC_FLUSH)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """The file, through gzip if it is called so."""
    with open(path, "wb") as file:
        if path.suffix.lower() != ".gz":
            yield file
            return
        workers = os.cpu_count() or 1
        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            packed = _ParallelGzip(file, pool, ahead=2 * workers)
            yield packed
            packed.finish()


def _header(
    path: Path,
    grid: Grid,
    dtype: np.dtype,
    channels: int | None,
    intent: int | None,
    description: str,
) -> Any:
    from nibabel.nifti1 import Nifti1Header
    from nibabel.nifti2 import Nifti2Header

    if not path.name.lower().endswith((".nii", ".nii.gz")):
        raise FileError.at(path, None, "a name that ends in .nii or .nii.gz", path.name)
    shape = grid.shape if channels is None else (*grid.shape, 1, 1)[:4] + (channels,)
    header = (Nifti2Header if max(shape) > np.iinfo(np.int16).max else Nifti1Header)()
    header.set_data_dtype(_stored_type(dtype))
    header.set_data_shape(shape)
    _set_forms(header, grid)
    _set_intent(header, grid.dimension, channels, intent)
    header.set_xyzt_units("mm")
    if len(description.encode()) > 79:
        raise ArgumentError(
            f"description: expected at most 79 bytes, found {len(description.encode())}"
        )
    header["descrip"] = description.encode()
    return header


def _stored_type(dtype: np.dtype) -> np.dtype:
    if dtype.kind == "b":
        return np.dtype(np.uint8)
    if dtype.kind not in "iuf" or dtype.itemsize > 8 or dtype == np.float16:
        raise ArgumentError(
            f"dtype: expected whole numbers or floats of 32 or 64 bits, found {dtype}"
        )
    return dtype.newbyteorder("=")


def _set_forms(header: Any, grid: Grid) -> None:
    """Both forms the same; of a sheared grid only the sform, and of a 2-D one the plane z = 0."""
    affine = np.eye(4)
    axes = [*range(grid.dimension), 3]
    affine[np.ix_(axes, axes)] = grid.affine
    code = SCANNER if grid.dimension == 3 else ALIGNED
    header.set_qform(affine, 0 if is_sheared(grid) else code, strip_shears=True)
    header.set_sform(affine, code)


def _set_intent(header: Any, dimension: int, channels: int | None, intent: int | None) -> None:
    if intent is None:
        return
    if intent not in list(Intent):
        raise ArgumentError(f"intent: expected one of {[int(i) for i in Intent]}, found {intent}")
    entries = dimension * (dimension + 1) // 2
    if channels is None or (intent == Intent.SYMMETRIC_MATRIX and channels != entries):
        wanted = (
            f"{entries} for symmetric matrices"
            if intent == Intent.SYMMETRIC_MATRIX
            else "a number for vectors"
        )
        raise ArgumentError(f"channels: expected {wanted}, found {channels}")
    header.set_intent(int(intent), (dimension,) if intent == Intent.SYMMETRIC_MATRIX else ())
