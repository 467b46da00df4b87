"""JPEG, PNG, TIFF and BMP: 2-D, in the frame IMAGE, one unit per pixel.

A print density says how large a page was to be, not how large the tissue is: it is neither read nor
written.
"""

import io
import struct
from pathlib import Path

import numpy as np

from kunita.data.image import Image, is_pixel_grid
from kunita.errors import FileError
from kunita.io.image_files.itk_images import as_itk, declared_bytes, load, read_header, save
from kunita.io.image_files.stored_images import LOOSE, SPARE, StoredImage, check_room, stored_grid
from kunita.io.writing import complete

READERS = {
    ".jpg": "JPEGImageIO",
    ".jpeg": "JPEGImageIO",
    ".png": "PNGImageIO",
    ".bmp": "BMPImageIO",
    ".tif": "TIFFImageIO",
    ".tiff": "TIFFImageIO",
}

MARKS = {
    "JPEGImageIO": (b"\xff\xd8",),
    "PNGImageIO": (b"\x89PNG",),
    "BMPImageIO": (b"BM",),
    "TIFFImageIO": (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"),
}
"""How a file of each begins."""

PNG_END = b"IEND\xae\x42\x60\x82"

VOXELS = {
    "JPEGImageIO": ("uint8",),
    "PNGImageIO": ("uint8", "uint16"),
    "TIFFImageIO": ("uint8", "uint16", "float32"),
}
"""What can be written to each without losing a bit."""

CHANNELS = {"JPEGImageIO": (1, 3), "PNGImageIO": (1, 2, 3, 4), "TIFFImageIO": (1, 3, 4)}

QUALITY = 95
"""Of JPEG, out of 100."""


def open_picture(path: Path) -> StoredImage:
    """Read the header of a picture."""
    reader_name = READERS[path.suffix.lower()]
    kind = f"{reader_name.removesuffix('ImageIO')} picture"
    _check_ends(path, reader_name)
    header = read_header(path, reader_name, kind)
    if header.GetDimension() != 2:
        pages = header.GetSize()[-1]
        raise FileError.at(
            path,
            None,
            "one page (a stack with an orientation can be a NIfTI file)",
            f"{pages} pages",
        )
    check_room(path, declared_bytes(header), path.stat().st_size, LOOSE, SPARE)
    grid = stored_grid(path, header.GetSize(), np.eye(3))
    return StoredImage(grid, lambda: load(path, header, kind), header.GetNumberOfComponents() > 1)


def _check_ends(path: Path, reader_name: str) -> None:
    """Refuse a picture of another kind, or one that ends early: ITK would fill in the rest of it
    and say nothing.
    """
    with open(path, "rb") as file:
        start = file.read(34)
    if not start.startswith(MARKS[reader_name]):
        raise FileError.at(
            path, None, f"a {reader_name.removesuffix('ImageIO')} picture", start[:8]
        )
    if reader_name == "JPEGImageIO":
        ends = _jpeg_ends(path.read_bytes())
    elif reader_name == "PNGImageIO":
        ends = PNG_END in path.read_bytes()
    elif reader_name == "BMPImageIO":
        ends = path.stat().st_size >= _bmp_length(start)
    else:
        ends = True  # the pages of a TIFF lie anywhere in it, and ITK minds what is missing
    if not ends:
        raise FileError(f"{path}: truncated: a picture without its end")


def _jpeg_ends(content: bytes) -> bool:
    """Whether the mark of the end follows the first scan; marks of an embedded thumbnail come
    before it.
    """
    place = 2
    while place + 4 <= len(content):
        mark, length = struct.unpack(">HH", content[place : place + 4])
        if mark == 0xFFDA:
            return content.find(b"\xff\xd9", place) >= 0
        place += 1 if mark == 0xFFFF else 2 + length  # marks may be padded with 0xFF
    return False


def _bmp_length(start: bytes) -> int:
    """Bytes that a BMP picture takes by its header; of a packed one, those of the header."""
    if len(start) < 34:
        return 34
    offset, _, width, height, _, bits, packed = struct.unpack("<IIiiHHI", start[10:34])
    return 34 if packed else offset + (width * bits + 31) // 32 * 4 * abs(height)


def write_picture(path: Path, image: Image, *, overwrite: bool = False) -> None:
    """Write .png, .jpg or .tif; only what these can hold, so that nothing is lost in silence
    (JPEG's loss aside).
    """
    reader_name = READERS[path.suffix.lower()]
    _check_picture(path, image, reader_name)
    if reader_name == "JPEGImageIO":
        _write_jpeg(path, image, overwrite=overwrite)
    else:
        save(path, as_itk(Image(image.data, np.eye(3), image.channels)), overwrite=overwrite)


def _check_picture(path: Path, image: Image, reader_name: str) -> None:
    if reader_name not in VOXELS:
        raise FileError.at(path, None, "a name that ends in .png, .jpg or .tif", path.name)
    if image.grid.dimension != 2:
        raise FileError.at(
            path, None, "a 2-D image (write .nii.gz)", f"the shape {image.data.shape}"
        )
    if not is_pixel_grid(image.grid):
        wanted = "an image that starts at the origin, x right and y down (write .nii.gz or .nrrd, which keep the place)"
        raise FileError.at(path, None, wanted, image.affine.tolist())
    if image.data.dtype.name not in VOXELS[reader_name]:
        raise FileError.at(
            path, None, f"voxels of type {' or '.join(VOXELS[reader_name])}", image.data.dtype.name
        )
    channels = image.data.shape[2] if image.channels else 1
    if channels not in CHANNELS[reader_name]:
        raise FileError.at(
            path, None, f"one of {CHANNELS[reader_name]} channels (write .nrrd)", channels
        )


def _write_jpeg(path: Path, image: Image, *, overwrite: bool) -> None:
    """Through Pillow and through memory: on a full disk ITK's writer of JPEG ends the process, and
    Pillow's own file is cut short in silence.
    """
    from PIL import Image as Picture

    pixels = np.swapaxes(image.data, 0, 1)
    content = io.BytesIO()
    picture = Picture.fromarray(
        np.ascontiguousarray(pixels.squeeze(axis=-1) if pixels.shape[2:] == (1,) else pixels)
    )
    picture.save(content, format="JPEG", quality=QUALITY)
    with complete(path, overwrite=overwrite) as partial:
        partial.write_bytes(content.getbuffer())
