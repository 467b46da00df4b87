"""Slabs compressed side by side are one gzip stream as any other, the same bytes however they came."""

import gzip
import shutil
import subprocess
import zlib

import nibabel
import numpy as np
import pytest
import SimpleITK as sitk

from kunita.data.image import Grid
from kunita.io.image_files.nifti_slabs import PIECE, slab_writer

SHAPE = (64, 50, 90)
DATA = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32).cumsum(axis=2)


def written(path, cuts):
    with slab_writer(path, Grid(SHAPE, np.eye(4)), np.float32) as write:
        for layers in np.array_split(DATA, cuts, axis=2):
            write(layers)
    return path


@pytest.fixture(scope="module")
def volume(tmp_path_factory):
    return written(tmp_path_factory.mktemp("slabs") / "volume.nii.gz", 7)


def test_there_are_several_pieces_and_the_last_is_not_whole():
    assert DATA.nbytes > 3 * PIECE
    assert (DATA.nbytes + 352) % PIECE


def test_nibabel_and_simpleitk_read_every_voxel(volume):
    assert np.array_equal(np.asarray(nibabel.load(volume).dataobj), DATA)
    assert np.array_equal(sitk.GetArrayFromImage(sitk.ReadImage(str(volume))).T, DATA)


def test_it_is_one_stream_with_nothing_after_it(volume):
    """Some readers stop after the first member of a gzip file: there is no second."""
    inflate = zlib.decompressobj(16 + zlib.MAX_WBITS)
    content = inflate.decompress(volume.read_bytes())
    assert inflate.eof
    assert inflate.unused_data == b""
    assert content == gzip.decompress(
        volume.read_bytes()
    )  # which compares the checksum and the size


@pytest.mark.skipif(shutil.which("gzip") is None, reason="needs the gzip program")
def test_the_gzip_program_finds_nothing_wrong(volume):
    assert subprocess.run(["gzip", "-t", str(volume)], check=False).returncode == 0


@pytest.mark.parametrize("cuts", [1, 90])
def test_the_bytes_do_not_depend_on_the_slabs(cuts, volume, tmp_path):
    assert written(tmp_path / "volume.nii.gz", cuts).read_bytes() == volume.read_bytes()


def test_it_is_hardly_larger_than_compressed_in_one_piece(volume):
    whole = len(gzip.compress(DATA.tobytes(order="F"), compresslevel=1))
    assert volume.stat().st_size < 1.02 * whole
