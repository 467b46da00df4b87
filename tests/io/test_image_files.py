"""Images survive their files, and lie where nibabel and SimpleITK say they lie."""

import gzip
import locale
import os
import pathlib
import struct
import subprocess
import sys
import tracemalloc
import zlib

import nibabel
import numpy as np
import pytest
import SimpleITK as sitk

from kunita.data.image import Grid, Image
from kunita.errors import ArgumentError, FileError, KunitaWarning
from kunita.io.frames import Frame, flip_points
from kunita.io.image_files.files import read_grid, read_image, slab_writer, write_image
from kunita.io.image_files.itk_images import affine_of, as_array, as_itk
from kunita.io.image_files.nifti_slabs import Intent

SHAPE = (5, 6, 7)
RNG = np.random.default_rng(3)
VOXELS = RNG.integers(-3000, 3000, SHAPE).astype(np.int16)
TURN = np.linalg.qr(RNG.normal(size=(3, 3)))[0]


def placed(directions, spacing=(1.0, 1.0, 1.0), origin=(-11.0, 23.5, 42.25)):
    affine = np.eye(4)
    affine[:3, :3] = np.asarray(directions) * spacing
    affine[:3, 3] = origin
    return affine


AFFINES = {
    "RAS": placed(np.eye(3)),
    "LAS": placed(np.diag([-1, 1, 1])),
    "LPS": placed(np.diag([-1, -1, 1])),
    "PIR": placed([[0, 0, 1], [-1, 0, 0], [0, -1, 0]]),
    "anisotropic": placed(np.diag([1, 1, -1]), (0.5, 0.75, 3.0)),
    "oblique": placed(TURN, (0.9, 1.1, 2.5)),
    "oblique mirrored": placed(TURN * [-1, 1, 1], (0.9, 1.1, 2.5)),
}
SHEARED = placed([[1, 0.2, 0], [0, 1, 0], [0, 0, 1]])
VOLUMES = ("v.nii", "v.nii.gz", "v.nrrd", "v.mha")
TYPES = ("uint8", "int16", "uint16", "int32", "uint32", "float32", "float64")

ROUNDED = 2e-5
"""mm: NIfTI keeps affines and quaternions in single precision, here of numbers below 100."""

every_affine = pytest.mark.parametrize("affine", AFFINES.values(), ids=AFFINES)
every_volume = pytest.mark.parametrize("name", VOLUMES)


def some_indices(shape=SHAPE, count=20):
    return RNG.integers(0, shape, (count, len(shape)))


def itk_world(image, indices):
    """World positions, RAS, by ITK's own arithmetic."""
    points = [image.TransformIndexToPhysicalPoint([int(i) for i in index]) for index in indices]
    return flip_points(np.array(points), Frame.LPS)


def itk_volume(affine, voxels=VOXELS):
    """A volume made with SimpleITK alone: its axes are LPS, its array z, y, x."""
    image = sitk.GetImageFromArray(np.ascontiguousarray(voxels.T))
    spacing = np.linalg.norm(affine[:3, :3], axis=0)
    flip = np.diag([-1.0, -1.0, 1.0])
    image.SetSpacing(spacing.tolist())
    image.SetDirection((flip @ affine[:3, :3] / spacing).ravel().tolist())
    image.SetOrigin((flip @ affine[:3, 3]).tolist())
    return image


@every_affine
@every_volume
def test_what_is_read_is_what_was_written(tmp_path, name, affine):
    write_image(tmp_path / name, Image(VOXELS, affine))
    image = read_image(tmp_path / name)
    np.testing.assert_array_equal(image.data, VOXELS)
    np.testing.assert_allclose(image.affine, affine, atol=ROUNDED)
    grid = read_grid(tmp_path / name)
    assert grid.shape == SHAPE
    np.testing.assert_array_equal(grid.affine, image.affine)


@every_affine
@every_volume
def test_simpleitk_finds_the_voxels_we_write_where_we_say(tmp_path, name, affine):
    write_image(tmp_path / name, Image(VOXELS, affine))
    seen = sitk.ReadImage(str(tmp_path / name))
    indices = some_indices()
    np.testing.assert_allclose(
        itk_world(seen, indices), Grid(SHAPE, affine).world(indices), atol=ROUNDED
    )
    values = [seen.GetPixel([int(i) for i in index]) for index in indices]
    np.testing.assert_array_equal(values, VOXELS[tuple(indices.T)])


@every_affine
@pytest.mark.parametrize("name", ["v.nii", "v.nii.gz"])
def test_both_forms_that_we_write_are_the_grid(tmp_path, name, affine):
    write_image(tmp_path / name, Image(VOXELS, affine))
    seen = nibabel.load(tmp_path / name)
    for form, code in (seen.header.get_sform(coded=True), seen.header.get_qform(coded=True)):
        assert code == 1
        np.testing.assert_allclose(form, affine, atol=ROUNDED)
    np.testing.assert_array_equal(np.asarray(seen.dataobj), VOXELS)


@every_affine
@pytest.mark.parametrize("name", [*VOLUMES, "v.nhdr", "v.mhd"])
def test_voxels_written_by_simpleitk_lie_where_it_says(tmp_path, name, affine):
    written = itk_volume(affine)
    sitk.WriteImage(written, str(tmp_path / name))
    image = read_image(tmp_path / name)
    indices = some_indices()
    np.testing.assert_allclose(image.grid.world(indices), itk_world(written, indices), atol=ROUNDED)
    np.testing.assert_array_equal(image.data, VOXELS)


@pytest.mark.parametrize("channels", [0, 1, 4])
@pytest.mark.parametrize("dimension", [2, 3])
@pytest.mark.parametrize("seed", range(5))
def test_an_image_of_ours_as_one_of_itks_and_back_is_itself(seed, dimension, channels):
    rng = np.random.default_rng(seed)
    affine = np.eye(dimension + 1)
    affine[:-1] = rng.normal(size=(dimension, dimension + 1))
    shape = (*rng.integers(1, 6, dimension), *[channels] * (channels > 0))
    image = Image(rng.normal(size=shape), affine, channels > 0)
    converted = as_itk(image)
    np.testing.assert_allclose(
        affine_of(converted), affine, atol=1e-12
    )  # a product and a quotient of each number
    np.testing.assert_array_equal(as_array(converted).reshape(shape), image.data)
    assert converted.GetSize() == image.grid.shape


@pytest.mark.parametrize("dtype", TYPES)
@every_volume
def test_the_type_of_voxels_is_kept(tmp_path, name, dtype):
    data = (np.arange(60).reshape(3, 4, 5) * 4).astype(dtype)
    for given in (data, data.astype(data.dtype.newbyteorder())):
        write_image(tmp_path / name, Image(given, np.eye(4)), overwrite=True)
        found = read_image(tmp_path / name).data
        np.testing.assert_array_equal(found, data)
        assert found.dtype == dtype
        assert found.dtype.isnative


@pytest.mark.parametrize(
    ("given", "stored"),
    [("bool", "uint8"), ("int64", "int32"), ("uint64", "int32"), ("float16", "float32")],
)
@every_volume
def test_types_that_files_do_not_hold_become_ones_that_keep_the_values(
    tmp_path, name, given, stored
):
    data = np.arange(8).reshape(2, 2, 2).astype(given)
    write_image(tmp_path / name, Image(data, np.eye(4)))
    found = read_image(tmp_path / name).data
    np.testing.assert_array_equal(found, data)
    assert found.dtype == stored


def test_numbers_too_large_for_a_file_are_refused(tmp_path):
    with pytest.raises(
        FileError,
        match=r"v.nii: expected whole numbers that fit in 32 bits, found '0 to 4294967296'",
    ):
        write_image(tmp_path / "v.nii", Image(np.array([[[0, 2**32]]]), np.eye(4)))
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("channels", [2, 3, 6])
@every_volume
def test_channels_are_kept(tmp_path, name, channels):
    data = RNG.normal(size=(*SHAPE, channels)).astype(np.float32)
    write_image(tmp_path / name, Image(data, AFFINES["oblique"], channels=True))
    image = read_image(tmp_path / name)
    assert image.channels
    np.testing.assert_array_equal(image.data, data)
    np.testing.assert_array_equal(
        sitk.GetArrayFromImage(sitk.ReadImage(str(tmp_path / name)))[4, 3, 2], data[2, 3, 4]
    )


@pytest.mark.parametrize("name", ["v.nii", "v.nrrd"])
def test_shear_is_kept_where_the_format_can_hold_it(tmp_path, name):
    write_image(tmp_path / name, Image(VOXELS, SHEARED))
    np.testing.assert_allclose(read_grid(tmp_path / name).affine, SHEARED, atol=ROUNDED)


def test_shear_is_not_given_to_a_form_that_would_drop_it(tmp_path):
    write_image(tmp_path / "v.nii", Image(VOXELS, SHEARED))
    assert nibabel.load(tmp_path / "v.nii").header["qform_code"] == 0
    with pytest.raises(FileError, match="v.mha: expected axes at right angles"):
        write_image(tmp_path / "v.mha", Image(VOXELS, SHEARED))


# 2-D

GREY = RNG.integers(0, 255, (9, 5)).astype(np.uint8)
PICTURES = {
    "grey.png": GREY,
    "deep.png": RNG.integers(0, 65535, (9, 5)).astype(np.uint16),
    "colour.png": RNG.integers(0, 255, (9, 5, 3)).astype(np.uint8),
    "alpha.png": RNG.integers(0, 255, (9, 5, 4)).astype(np.uint8),
    "grey.tif": GREY,
    "float.tif": RNG.normal(size=(9, 5)).astype(np.float32),
    "colour.tiff": RNG.integers(0, 255, (9, 5, 3)).astype(np.uint8),
    "grey.nii.gz": GREY,
    "float.nii": RNG.normal(size=(9, 5)),
    "colour.nrrd": RNG.integers(0, 255, (9, 5, 3)).astype(np.uint8),
    "float.mha": RNG.normal(size=(9, 5)),
}


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_read_as_it_was_written(tmp_path, name):
    data = PICTURES[name]
    affine = np.diag([0.25, 0.5, 1.0])
    write_image(tmp_path / name, Image(data, affine, channels=data.ndim == 3))
    image = read_image(tmp_path / name, spacing=(0.25, 0.5))
    np.testing.assert_array_equal(image.data, data)
    assert image.data.dtype == data.dtype
    assert image.channels == (data.ndim == 3)
    np.testing.assert_array_equal(image.affine, affine)


@pytest.mark.parametrize("name", ["v.nii.gz", "v.nrrd", "v.mha"])
def test_a_2d_image_keeps_its_place_without_a_flip(tmp_path, name):
    affine = np.array([[0.0, -0.5, 3.0], [0.25, 0.0, -7.0], [0.0, 0.0, 1.0]])
    write_image(tmp_path / name, Image(GREY, affine))
    np.testing.assert_allclose(
        read_grid(tmp_path / name).affine, affine, atol=1e-6
    )  # single precision in NIfTI


@pytest.mark.parametrize("shape", [(64, 48), (64, 48, 3)])
def test_a_jpeg_is_read_nearly_as_it_was_written(tmp_path, shape):
    ramps = np.linspace(0, 200, 64)[:, None] + np.linspace(0, 50, 48)
    data = np.broadcast_to(ramps.reshape(64, 48, *[1] * (len(shape) - 2)), shape).astype(np.uint8)
    write_image(tmp_path / "p.jpg", Image(data, np.eye(3), channels=len(shape) == 3))
    found = read_image(tmp_path / "p.jpg").data
    assert np.abs(found.astype(int) - data).max() <= 4  # quality 95 on a smooth ramp


def test_the_print_density_of_a_picture_is_not_its_spacing(tmp_path):
    from PIL import Image as Picture

    for name in ("p.png", "p.jpg", "p.tif"):
        Picture.fromarray(GREY.T).save(tmp_path / name, dpi=(300, 300))
        np.testing.assert_array_equal(read_grid(tmp_path / name).affine, np.eye(3))
        np.testing.assert_array_equal(
            read_grid(tmp_path / name, spacing=0.5).affine, np.diag([0.5, 0.5, 1])
        )


@pytest.mark.parametrize("spacing", [0, -1, np.nan, "wide", (1, 2, 3)])
def test_a_spacing_that_makes_no_sense_is_refused(tmp_path, spacing):
    write_image(tmp_path / "p.png", Image(GREY, np.eye(3)))
    with pytest.raises(ArgumentError, match="spacing: expected"):
        read_grid(tmp_path / "p.png", spacing=spacing)


def test_a_volume_takes_no_spacing(tmp_path):
    write_image(tmp_path / "v.nii", Image(VOXELS, np.eye(4)))
    with pytest.raises(ArgumentError, match="only a 2-D image"):
        read_image(tmp_path / "v.nii", spacing=2.0)


@pytest.mark.parametrize(
    ("name", "image", "message"),
    [
        ("p.png", Image(GREY.astype(float), np.eye(3)), "type uint8 or uint16, found 'float64'"),
        ("p.jpg", Image(PICTURES["deep.png"], np.eye(3)), "type uint8, found 'uint16'"),
        ("p.jpg", Image(PICTURES["alpha.png"], np.eye(3), channels=True), "channels"),
        ("p.png", Image(VOXELS.astype(np.uint8), np.eye(4)), "a 2-D image"),
        ("p.png", Image(GREY, [[1, 0, 5], [0, 1, 0], [0, 0, 1]]), "starts at the origin"),
        ("p.nii", Image(PICTURES["colour.png"], np.eye(3), channels=True), "one channel"),
        ("p.bmp", Image(GREY, np.eye(3)), "a name that ends in"),
        ("p", Image(GREY, np.eye(3)), "a name that ends in"),
        ("p.gz", Image(GREY, np.eye(3)), "a name that ends in"),
    ],
)
def test_what_a_format_cannot_hold_is_refused_and_nothing_is_written(
    tmp_path, name, image, message
):
    with pytest.raises(FileError, match=message) as refusal:
        write_image(tmp_path / name, image)
    assert str(refusal.value).startswith(str(tmp_path / name))
    assert not any(tmp_path.iterdir())


# What headers say


def nifti(path, data, affine=AFFINES["RAS"], header=None, **fields):
    """Save with nibabel, its header changed afterwards."""
    image = nibabel.Nifti1Image(data, affine, header, dtype=data.dtype)
    for name, value in fields.items():
        image.header[name] = value
    image.to_filename(path)
    return path


@pytest.mark.parametrize(
    ("stored", "slope", "intercept", "kept"),
    [
        ("int16", 2.5, -100.0, "float32"),
        ("uint8", 1.0, 300.0, "float32"),
        ("int16", 1e-3, 0.0, "float32"),
        ("int32", 0.5, 0.0, "float64"),
        ("float64", 2.0, 1.0, "float64"),
        ("int16", 1e35, 0.0, "float64"),
        ("int16", 1.0, 0.0, "int16"),
        ("int16", 0.0, 7.0, "int16"),
        ("int16", np.nan, 0.0, "int16"),
    ],
)
@pytest.mark.parametrize("endianness", ["<", ">"])
def test_scaling_is_applied_without_overflow_and_integers_without_it_stay(
    tmp_path, stored, slope, intercept, kept, endianness
):
    data = np.array([[[0, 1, 100]]]).astype(stored)
    if stored == "int16":
        data[0, 0, 0] = -32768
    header = nibabel.Nifti1Header(endianness=endianness)
    header.set_data_dtype(data.dtype)
    header.set_data_shape(data.shape)
    header.set_sform(np.eye(4), 1)
    header["scl_slope"], header["scl_inter"] = slope, intercept
    swapped = data.astype(data.dtype.newbyteorder(endianness))
    block = bytearray(header.binaryblock)
    block[108:112] = struct.pack(endianness + "f", 352)
    (tmp_path / "v.nii").write_bytes(bytes(block) + bytes(4) + swapped.tobytes("F"))
    found = read_image(tmp_path / "v.nii").data
    scaled = slope != 0 and np.isfinite(slope)
    expected = data * float(np.float32(slope)) + intercept if scaled else data
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert found.dtype == kept
    assert found.dtype.isnative


@pytest.mark.parametrize(
    ("shape", "kept"),
    [
        ((5, 6, 7, 1), SHAPE),
        ((5, 6, 7, 1, 1), SHAPE),
        ((5, 6, 1), (5, 6, 1)),
        ((5, 6), (5, 6)),
        ((5, 1, 1), (5, 1, 1)),
    ],
)
def test_axes_of_one_are_dropped_past_the_third_only(tmp_path, shape, kept):
    data = np.arange(np.prod(shape), dtype=np.int16).reshape(shape)
    nifti(tmp_path / "v.nii", data)
    found = read_image(tmp_path / "v.nii").data
    np.testing.assert_array_equal(found, data.reshape(kept))


@pytest.mark.parametrize(
    "shape",
    [(5, 6, 7, 2), (5, 6, 7, 2, 1), (5, 6, 7, 2, 3), (5, 6, 7, 1, 3, 2), (5, 6, 7, 1, 1, 2)],
)
def test_several_volumes_are_refused_with_their_shape(tmp_path, shape):
    nifti(tmp_path / "v.nii", np.zeros(shape, np.uint8))
    with pytest.raises(
        FileError, match=rf"v.nii: expected one volume.*{'×'.join(map(str, shape))}"
    ):
        read_grid(tmp_path / "v.nii")


def test_colours_of_nifti_become_channels(tmp_path):
    colours = RNG.integers(0, 255, (*SHAPE, 3)).astype(np.uint8)
    kind = np.dtype([("R", "u1"), ("G", "u1"), ("B", "u1")])
    nifti(tmp_path / "v.nii.gz", np.ascontiguousarray(colours).view(kind)[..., 0])
    image = read_image(tmp_path / "v.nii.gz")
    np.testing.assert_array_equal(image.data, colours)
    assert image.channels


@pytest.mark.parametrize(
    ("unit", "millimetres"), [(0, 1.0), (1, 1e3), (2, 1.0), (3, 1e-3), (8 + 3, 1e-3)]
)
def test_lengths_are_in_millimetres_whatever_the_files_unit(tmp_path, unit, millimetres):
    affine = placed(np.eye(3), (2.0, 3.0, 4.0))
    nifti(tmp_path / "v.nii", VOXELS, affine, xyzt_units=unit)
    scale = np.diag([millimetres] * 3 + [1.0])
    np.testing.assert_allclose(read_grid(tmp_path / "v.nii").affine, scale @ affine, rtol=1e-6)


@pytest.mark.parametrize(
    ("unit", "millimetres"), [("mm", 1.0), ("um", 1e-3), ("µm", 1e-3), ("m", 1e3)]
)
def test_lengths_of_nrrd_and_metaimage_are_in_millimetres(tmp_path, unit, millimetres):
    (tmp_path / "v.nrrd").write_bytes(nrrd(f'space units: "{unit}" "{unit}" "{unit}"') + bytes(16))
    (tmp_path / "v.mha").write_bytes(meta(f"DistanceUnits = {unit}") + bytes(16))
    for name in ("v.nrrd", "v.mha"):
        np.testing.assert_allclose(
            read_grid(tmp_path / name).spacing, np.array([2.0, 3.0, 4.0]) * millimetres
        )


def test_an_orientation_that_is_not_stated_is_warned_about(tmp_path):
    nifti(tmp_path / "v.nii", VOXELS, None, sform_code=0, qform_code=0)
    (tmp_path / "v.nrrd").write_bytes(
        nrrd("").replace(b"space: RAS", b"space dimension: 3") + bytes(16)
    )
    for name in ("v.nii", "v.nrrd"):
        with pytest.warns(KunitaWarning, match=f"{name}: the orientation is not stated"):
            read_grid(tmp_path / name)


def test_a_2d_nifti_without_a_form_is_index_times_spacing(tmp_path):
    image = nibabel.Nifti1Image(GREY, None)
    image.header.set_zooms((0.5, 0.25))
    image.to_filename(tmp_path / "p.nii")
    np.testing.assert_array_equal(read_grid(tmp_path / "p.nii").affine, np.diag([0.5, 0.25, 1.0]))


def test_the_sform_wins_over_the_qform_as_in_nibabel(tmp_path):
    image = nibabel.Nifti1Image(VOXELS, AFFINES["oblique"])
    image.set_qform(AFFINES["LAS"], 1)
    image.set_sform(AFFINES["oblique"], 2)
    image.to_filename(tmp_path / "v.nii")
    np.testing.assert_allclose(
        read_grid(tmp_path / "v.nii").affine, AFFINES["oblique"], atol=ROUNDED
    )


@pytest.mark.parametrize("given", ["v.hdr", "v.img"])
def test_a_pair_of_files_is_read_by_either_name(tmp_path, given):
    nibabel.Nifti1Pair(VOXELS, AFFINES["PIR"]).to_filename(tmp_path / "v.hdr")
    image = read_image(tmp_path / given)
    np.testing.assert_array_equal(image.data, VOXELS)
    np.testing.assert_allclose(image.affine, AFFINES["PIR"], atol=ROUNDED)


FIXTURES = pathlib.Path(nibabel.__file__).parent / "tests" / "data"
MINC = ("tiny.mnc", "minc1_1_scale.mnc", "minc2_1_scale.mnc", "small.mnc")


@pytest.mark.parametrize("name", MINC)
def test_minc_files_are_read_as_nibabel_reads_them(name):
    if not (FIXTURES / name).exists():
        pytest.skip("this nibabel comes without its test data")
    seen = nibabel.load(FIXTURES / name)
    image = read_image(FIXTURES / name)
    np.testing.assert_array_equal(image.affine, seen.affine)
    np.testing.assert_allclose(image.data, np.asarray(seen.dataobj), rtol=1e-6)
    assert image.data.dtype == np.float32
    assert read_grid(FIXTURES / name).shape == seen.shape


@pytest.mark.parametrize(
    "name",
    ["minc1_4d.mnc", "minc2_4d.mnc", "example4d.nii.gz", "row_major.dconn.nii", "analyze.hdr"],
)
def test_files_of_other_kinds_are_refused(name):
    if not (FIXTURES / name).exists():
        pytest.skip("this nibabel comes without its test data")
    with pytest.raises(FileError, match=f"{name}: expected (one volume|a NIfTI image)"):
        read_grid(FIXTURES / name)


# DICOM


@pytest.fixture(autouse=True)
def same_locale():
    """SimpleITK's DICOM writer leaves the process in the C locale, where every later test would
    read text as ASCII."""
    place = locale.setlocale(locale.LC_ALL)
    yield
    locale.setlocale(locale.LC_ALL, place)


def dicom_series(folder, affine=AFFINES["oblique"], uid="1.2.3.4", without=(), count=SHAPE[2]):
    """A series written by SimpleITK, its files named against the order of the slices."""
    folder.mkdir(exist_ok=True)
    volume = itk_volume(affine)
    rows = np.reshape(volume.GetDirection(), (3, 3))
    for k in sorted(set(range(count)) - set(without)):
        piece = volume[:, :, k]
        tags = {
            "0008|0060": "MR",
            "0020|000e": uid,
            "0020|000d": f"{uid}.1",
            "0008|0018": f"{uid}.2.{k}",
            "0020|0032": "\\".join(
                f"{x:.8g}" for x in volume.TransformIndexToPhysicalPoint((0, 0, k))
            ),
            "0020|0037": "\\".join(f"{x:.8g}" for x in rows[:, :2].T.ravel()),
        }
        for tag, value in tags.items():
            piece.SetMetaData(tag, value)
        writer = sitk.ImageFileWriter()
        writer.KeepOriginalImageUIDOn()
        writer.SetFileName(str(folder / f"{uid}-{99 - k}.dcm"))
        writer.Execute(piece)
    return folder


RIGHT_HANDED = [name for name, affine in AFFINES.items() if np.linalg.det(affine) > 0]


@pytest.mark.parametrize("orientation", RIGHT_HANDED)
def test_a_dicom_series_is_a_volume_in_its_place(tmp_path, orientation):
    folder = dicom_series(tmp_path / "series", AFFINES[orientation])
    (folder / "notes.txt").write_text("not DICOM")
    (folder / "report").write_bytes(bytes(128) + b"DICM a report")
    image = read_image(folder)
    np.testing.assert_array_equal(image.data, VOXELS)
    np.testing.assert_allclose(
        image.affine, AFFINES[orientation], atol=1e-5
    )  # eight digits in the headers
    assert image.data.dtype == np.int16


def test_slices_stacked_against_their_normal_lie_in_the_same_place(tmp_path):
    affine = AFFINES["LAS"]
    image = read_image(dicom_series(tmp_path / "series", affine))
    indices = some_indices()
    mirrored = indices * [1, 1, -1] + [0, 0, SHAPE[2] - 1]
    np.testing.assert_allclose(
        image.grid.world(mirrored), Grid(SHAPE, affine).world(indices), atol=1e-5
    )
    np.testing.assert_array_equal(image.data[:, :, ::-1], VOXELS)


def test_slices_of_a_tilted_gantry_keep_their_own_positions(tmp_path):
    affine = placed([[1, 0, 0], [0, 1, 0.3], [0, 0, 1]], (1.0, 1.0, 2.0))
    volume = itk_volume(placed(np.eye(3), (1.0, 1.0, 2.0)))
    folder = dicom_series(tmp_path / "series", placed(np.eye(3), (1.0, 1.0, 2.0)))
    for k in range(SHAPE[2]):  # once more, each moved along y
        path = folder / f"1.2.3.4-{99 - k}.dcm"
        piece = sitk.ReadImage(str(path))[:, :, 0]
        x, y, z = volume.TransformIndexToPhysicalPoint((0, 0, k))
        for tag in ("0020|000e", "0020|000d", "0008|0018", "0020|0037", "0008|0060"):
            reader = sitk.ImageFileReader()
            reader.SetFileName(str(path))
            reader.ReadImageInformation()
            piece.SetMetaData(tag, reader.GetMetaData(tag))
        piece.SetMetaData("0020|0032", f"{x}\\{y - 0.6 * k}\\{z}")
        writer = sitk.ImageFileWriter()
        writer.KeepOriginalImageUIDOn()
        writer.SetFileName(str(path))
        writer.Execute(piece)
    np.testing.assert_allclose(read_grid(folder).affine, affine, atol=1e-5)


def test_one_file_stands_for_its_series(tmp_path):
    folder = dicom_series(tmp_path / "series")
    dicom_series(folder, AFFINES["RAS"], uid="1.2.3.5", count=3)
    assert read_grid(folder / "1.2.3.4-97.dcm").shape == SHAPE
    assert read_image(folder / "1.2.3.5-98.dcm").data.shape == (*SHAPE[:2], 3)


def test_several_series_in_a_folder_are_listed_and_refused(tmp_path):
    folder = dicom_series(tmp_path / "series")
    dicom_series(folder, uid="1.2.3.5", count=3)
    with pytest.raises(
        FileError, match=r"found 2: 1.2.3.4 \(7 files\), 1.2.3.5 \(3 files\); .*sub-folder"
    ):
        read_grid(folder)


@pytest.mark.parametrize("missing", [1, 3, 5])
def test_a_series_with_a_slice_missing_is_refused(tmp_path, missing):
    with pytest.raises(
        FileError, match=r"series: expected slices 2.5 mm apart .* found '5 mm between"
    ):
        read_grid(dicom_series(tmp_path / "series", without=[missing]))


@pytest.mark.parametrize("broken", [0, 3, 6])
def test_a_series_with_a_truncated_slice_is_refused_by_its_name(tmp_path, broken):
    folder = dicom_series(tmp_path / "series")
    path = folder / f"1.2.3.4-{99 - broken}.dcm"
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(FileError, match=path.name):
        read_image(folder)


def test_a_series_with_two_slices_in_one_place_is_refused(tmp_path):
    folder = dicom_series(tmp_path / "series")
    (folder / "again.dcm").write_bytes((folder / "1.2.3.4-97.dcm").read_bytes())
    with pytest.raises(FileError, match="one slice at each place"):
        read_grid(folder)


def test_a_folder_without_dicom_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("nothing here")
    with pytest.raises(FileError, match="no DICOM series"):
        read_grid(tmp_path)


# Slabs

GRID = Grid(SHAPE, AFFINES["oblique"])


@pytest.mark.parametrize("name", ["v.nii", "v.nii.gz"])
@pytest.mark.parametrize("cuts", [[], [1], [3, 4], range(1, 7)])
def test_a_file_written_in_slabs_is_the_file_nibabel_writes(tmp_path, name, cuts):
    with slab_writer(tmp_path / name, GRID, np.float32, description="a map") as write:
        for slab in np.split(VOXELS.astype(float), cuts, axis=-1):
            write(slab)
    whole = nibabel.Nifti1Image(VOXELS.astype(np.float32), GRID.affine)
    whole.set_sform(GRID.affine, 1)
    whole.set_qform(GRID.affine, 1)
    whole.header.set_xyzt_units("mm")
    whole.header["descrip"] = b"a map"
    whole.to_filename(tmp_path / "whole.nii")
    content = (tmp_path / name).read_bytes()
    content = gzip.decompress(content) if name.endswith("gz") else content
    ours, theirs = (
        np.frombuffer(file, np.uint8) for file in (content, (tmp_path / "whole.nii").read_bytes())
    )
    np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(np.asarray(nibabel.load(tmp_path / name).dataobj), VOXELS)


def test_equal_maps_are_equal_bytes_whatever_their_name_and_slabs(tmp_path):
    for name, cuts in (("a.nii.gz", []), ("b.nii.gz", [2, 5])):
        with slab_writer(tmp_path / name, GRID, np.int16) as write:
            for slab in np.split(VOXELS, cuts, axis=-1):
                write(slab)
    here, there = ((tmp_path / name).read_bytes() for name in ("a.nii.gz", "b.nii.gz"))
    assert here == there


@pytest.mark.parametrize(
    ("intent", "channels"), [(Intent.VECTOR, 3), (Intent.SYMMETRIC_MATRIX, 6), (None, 2)]
)
def test_channels_are_written_one_after_the_other(tmp_path, intent, channels):
    data = RNG.normal(size=(*SHAPE, channels))
    with slab_writer(tmp_path / "v.nii.gz", GRID, float, channels=channels, intent=intent) as write:
        for component in np.moveaxis(data, -1, 0):
            for slab in np.split(component, [4], axis=-1):
                write(slab)
    seen = nibabel.load(tmp_path / "v.nii.gz")
    np.testing.assert_array_equal(np.asarray(seen.dataobj), data[:, :, :, None, :])
    assert seen.header["intent_code"] == (intent or 0)
    np.testing.assert_array_equal(read_image(tmp_path / "v.nii.gz").data, data)
    if intent == Intent.SYMMETRIC_MATRIX:
        assert seen.header["intent_p1"] == 3


def test_a_2d_field_is_written_as_itk_reads_it(tmp_path):
    data = RNG.normal(size=(9, 5, 2)).astype(np.float32)
    grid = Grid((9, 5), np.diag([0.5, 0.25, 1.0]))
    with slab_writer(
        tmp_path / "v.nii", grid, np.float32, channels=2, intent=Intent.VECTOR
    ) as write:
        write(data[..., 0])
        write(data[..., 1])
    seen = sitk.ReadImage(str(tmp_path / "v.nii"))
    assert seen.GetSize() == (9, 5)
    np.testing.assert_array_equal(sitk.GetArrayFromImage(seen), data.transpose(1, 0, 2))


def test_axes_longer_than_nifti1_can_say_make_a_nifti2(tmp_path):
    grid = Grid((2, 2, 40000), np.eye(4))
    with slab_writer(tmp_path / "v.nii.gz", grid, np.uint8) as write:
        write(np.ones(grid.shape, np.uint8))
    assert isinstance(nibabel.load(tmp_path / "v.nii.gz"), nibabel.Nifti2Image)
    assert read_image(tmp_path / "v.nii.gz").data.sum() == grid.size


def test_a_volume_written_in_slabs_is_never_in_memory(tmp_path):
    grid = Grid((256, 256, 200), np.eye(4))
    slab = np.zeros((256, 256, 2), np.float32)
    tracemalloc.start()
    with slab_writer(tmp_path / "v.nii.gz", grid, np.float32) as write:
        for _ in range(100):
            write(slab)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < grid.size * 4 / 10
    assert read_grid(tmp_path / "v.nii.gz").shape == grid.shape


@pytest.mark.parametrize(
    ("slabs", "error", "message"),
    [
        ([VOXELS[:, :, :6]], FileError, "incomplete: expected 7 planes of voxels, found 6"),
        ([VOXELS, VOXELS], ArgumentError, "at most the 0 planes left"),
        ([VOXELS[:4]], ArgumentError, "expected shape"),
        ([VOXELS[:, :, 0]], ArgumentError, "expected shape"),
        ([VOXELS.astype(float)], ArgumentError, "expected int16"),
    ],
)
def test_slabs_that_do_not_make_the_volume_leave_no_file(tmp_path, slabs, error, message):
    def write_all():
        with slab_writer(tmp_path / "v.nii.gz", GRID, np.int16) as write:
            for slab in slabs:
                write(slab)

    with pytest.raises(error, match=message):
        write_all()
    assert not any(tmp_path.iterdir())


def test_a_slab_does_not_reach_into_the_next_channel(tmp_path):
    def write_all():
        with slab_writer(tmp_path / "v.nii", GRID, np.int16, channels=2) as write:
            write(VOXELS[..., :5])
            write(VOXELS[..., :4])

    with pytest.raises(ArgumentError, match="at most the 2 planes left"):
        write_all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": complex}, "dtype"),
        ({"dtype": float, "intent": 1007}, "channels: expected a number"),
        ({"dtype": float, "intent": 1005, "channels": 3}, "channels: expected 6"),
        ({"dtype": float, "intent": 9, "channels": 3}, "intent"),
        ({"dtype": float, "description": "µ" * 40}, "description: expected at most 79 bytes"),
    ],
)
def test_options_that_nifti_cannot_hold_are_refused(tmp_path, options, message):
    with (
        pytest.raises(ArgumentError, match=message),
        slab_writer(tmp_path / "v.nii", GRID, **options),
    ):
        pass


# Bad files


def nrrd(line="", sizes="2 2 2", kind="short", encoding="raw"):
    return (
        f"NRRD0004\ntype: {kind}\ndimension: 3\nspace: RAS\nsizes: {sizes}\n"
        f"space directions: (2,0,0) (0,3,0) (0,0,4)\nendian: little\nencoding: {encoding}\n"
        f"space origin: (1,2,3)\n{line}{chr(10) if line else ''}\n"
    ).encode()


def meta(line="", sizes="2 2 2", kind="MET_SHORT", data="LOCAL"):
    return (
        f"ObjectType = Image\nNDims = 3\n{line}{chr(10) if line else ''}DimSize = {sizes}\nElementType = {kind}\n"
        f"ElementSpacing = 2 3 4\nElementDataFile = {data}\n"
    ).encode()


def nifti_bytes(shape, dtype=np.float64, version=nibabel.Nifti1Header, **fields):
    header = version()
    header.set_data_dtype(dtype)
    header.set_data_shape(shape)
    header.set_sform(np.eye(4), 1)
    for name, value in fields.items():
        header[name] = value
    header["vox_offset"] = header.single_vox_offset
    return header.binaryblock + bytes(4)


def png_bytes(width, height):
    def chunk(kind, content):
        return (
            struct.pack(">I", len(content))
            + kind
            + content
            + struct.pack(">I", zlib.crc32(kind + content))
        )

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0))
    return (
        b"\x89PNG\r\n\x1a\n"
        + header
        + chunk(b"IDAT", zlib.compress(bytes(100)))
        + chunk(b"IEND", b"")
    )


def tiff_bytes(width, height):
    entries = [
        (256, 4, width),
        (257, 4, height),
        (258, 3, 8),
        (259, 3, 1),
        (262, 3, 1),
        (273, 4, 8),
        (277, 3, 1),
    ]
    entries += [(278, 4, height), (279, 4, width * height % 2**32)]
    rows = b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in entries)
    return b"II*\0" + struct.pack("<I", 8) + struct.pack("<H", len(entries)) + rows + bytes(4)


def bmp_bytes(width, height):
    return (
        b"BM"
        + struct.pack("<IHHI", 154, 0, 0, 54)
        + struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, *[0] * 6)
    )


def jpeg_bytes(width, height):
    frame = (
        b"\xff\xc0" + struct.pack(">HBHHB", 17, 8, height, width, 3) + b"\1\x11\0\2\x11\0\3\x11\0"
    )
    scan = b"\xff\xda" + struct.pack(">HB", 12, 3) + b"\1\0\2\0\3\0\0\x3f\0"
    return b"\xff\xd8" + frame + scan + bytes(10) + b"\xff\xd9"


HUGE = (2000, 2000, 2250)
"""72 GB in double precision."""

LIES = {
    "huge.nii": nifti_bytes(HUGE),
    "huge2.nii": nifti_bytes((2**40, 2**40, 2**40), version=nibabel.Nifti2Header),
    "huge.nii.gz": gzip.compress(nifti_bytes(HUGE) + bytes(1000)),
    "huge.nrrd": nrrd(sizes="2000 2000 2250", kind="double") + bytes(100),
    "packed.nrrd": nrrd(sizes="2000 2000 2250", kind="double", encoding="gzip")
    + gzip.compress(bytes(1000)),
    "text.nrrd": nrrd(sizes="2000 2000 2250", kind="double", encoding="ascii") + b"0 " * 100,
    "huge.mha": meta(sizes="2000 2000 2250", kind="MET_DOUBLE") + bytes(100),
    "packed.mha": meta("CompressedData = True", "2000 2000 2250", "MET_DOUBLE")
    + zlib.compress(bytes(1000)),
    "huge.png": png_bytes(200000, 200000),
    "huge.tif": tiff_bytes(200000, 200000),
    "huge.bmp": bmp_bytes(150000, 150000),
    "huge.jpg": jpeg_bytes(65500, 65500),
}

IN_LITTLE_MEMORY = """
import resource, sys
import nibabel, numpy, scipy.io, SimpleITK
from kunita.errors import FileError
from kunita.io.image_files.files import read_image
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, -1))
for path in sys.argv[1:]:
    try:
        read_image(path)
    except FileError as error:
        print(error)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is limited as on Linux")
def test_a_small_file_that_declares_terabytes_is_refused_before_memory_is_asked_for(tmp_path):
    import h5py

    for name, content in LIES.items():
        (tmp_path / name).write_bytes(content)
    paths = [tmp_path / name for name in LIES]
    if (FIXTURES / "minc2_1_scale.mnc").exists():
        paths += [tmp_path / "huge1.mnc", tmp_path / "huge2.mnc"]
        content = (FIXTURES / "tiny.mnc").read_bytes()
        paths[-2].write_bytes(content.replace(b"xspace\0\0\0\0\0\x14", b"xspace\0\0\x3f\0\0\x14"))
        paths[-1].write_bytes((FIXTURES / "minc2_1_scale.mnc").read_bytes())
        with h5py.File(paths[-1], "a") as file:
            folder = file["minc-2.0/image/0"]
            attributes = dict(folder["image"].attrs)
            del folder["image"]
            folder.create_dataset("image", HUGE, "u1", chunks=(100, 100, 100)).attrs.update(
                attributes
            )
    run = [sys.executable, "-c", IN_LITTLE_MEMORY, *map(str, paths)]
    lines = subprocess.run(run, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(lines) == len(paths)
    for path, line in zip(paths, lines, strict=True):
        assert line.startswith(f"{path}: ")
        assert "memory" not in line


SMALL = nifti_bytes((2, 2, 2), np.int16)
BROKEN = {
    "nothing.nii": b"",
    "nothing.nrrd": b"",
    "nothing.png": b"",
    "words.nii": b"these are words, not an image" * 40,
    "words.nii.gz": b"these are words, not an image" * 40,
    "words.hdr": b"these are words, not an image" * 40,
    "words.mnc": b"these are words, not an image",
    "words.nrrd": b"these are words, not an image",
    "words.mha": b"these are words, not an image",
    "words.jpg": b"these are words, not an image",
    "words.png": b"these are words, not an image",
    "words.tif": b"these are words, not an image",
    "words.bmp": b"these are words, not an image",
    "words.dcm": b"these are words, not an image",
    "words.txt": b"these are words, not an image",
    "words": b"these are words, not an image",
    "marked.dcm": bytes(128) + b"DICM" + b"these are words, not an image",
    "packed.nii": gzip.compress(SMALL + bytes(16)),
    "plain.nii.gz": SMALL + bytes(16),
    "is-png.jpg": png_bytes(3, 3),
    "is-nifti.nrrd": SMALL + bytes(16),
    "short.nii": SMALL + bytes(15),
    "header.nii": SMALL[:200],
    "short.nii.gz": gzip.compress(SMALL + RNG.bytes(16))[:-20],
    "cut.nii.gz": gzip.compress(SMALL + RNG.bytes(16))[:-5],
    "short.nrrd": nrrd() + bytes(15),
    "short-packed.nrrd": nrrd(encoding="gzip") + gzip.compress(RNG.bytes(16))[:-12],
    "short.mha": meta() + bytes(15),
    "elsewhere.nhdr": nrrd("data file: absent.raw"),
    "elsewhere.mhd": meta(data="absent.raw"),
    "device.mhd": meta(data="/dev/zero"),
    "many.mhd": meta(data="slice%03d.raw 1 2 1"),
    "bzip2.nrrd": nrrd(encoding="bzip2") + bytes(16),
    "furlong.nrrd": nrrd('space units: "furlong" "furlong" "furlong"') + bytes(16),
    "flat.nrrd": nrrd().replace(b"(2,0,0)", b"(0,0,0)") + bytes(16),
    "plane.nrrd": nrrd().replace(b"(2,0,0)", b"(0,3,0)") + bytes(16),
    "complex.nii": nifti_bytes((2, 2, 2), np.complex64) + bytes(64),
    "zero.nii": nifti_bytes((2, 2, 2), np.int16, srow_x=0.0) + bytes(16),
    "nan.nii": nifti_bytes((2, 2, 2), np.int16, srow_y=np.nan) + bytes(16),
    "infinite.nii": nifti_bytes((2, 2, 2), np.int16, scl_slope=1.0, scl_inter=np.nan) + bytes(16),
    "empty-axis.nii": nifti_bytes((2, 0, 2), np.int16) + bytes(16),
    "negative.nii": nifti_bytes((2, 2, 2), np.int16, dim=[3, 2, -2, -2, 1, 1, 1, 1]) + bytes(16),
    "line.nii": nifti_bytes((8,), np.int16) + bytes(16),
    "type.nii": nifti_bytes((2, 2, 2), np.int16, datatype=999) + bytes(16),
    "offset.nii": nifti_bytes((2, 2, 2), np.int16)[:108]
    + struct.pack("f", 1e9)
    + SMALL[112:]
    + bytes(16),
    "unit.nii": nifti_bytes((2, 2, 2), np.int16, xyzt_units=5) + bytes(16),
    "short.png": png_bytes(3, 3)[:-30],
    "short.jpg": jpeg_bytes(16, 16)[:-2],
    "short.bmp": bmp_bytes(16, 16) + bytes(767),
    "short.tif": tiff_bytes(16, 16)[:-10],
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_refused_in_one_line_that_names_it(tmp_path, name, capfd):
    (tmp_path / name).write_bytes(BROKEN[name])
    with pytest.raises(FileError) as refusal:
        read_image(tmp_path / name)
    message = str(refusal.value)
    assert message.startswith(str(tmp_path / name))
    assert "\n" not in message
    assert len(message) < len(str(tmp_path)) * 2 + 300
    assert "WARNING" not in capfd.readouterr().err


def test_real_pictures_that_end_early_are_refused(tmp_path):
    from PIL import Image as Picture

    pixels = RNG.integers(0, 255, (40, 60, 3)).astype(np.uint8)
    for name in ("p.jpg", "p.png", "p.bmp", "p.tif"):
        Picture.fromarray(pixels).save(tmp_path / name)
        assert read_image(tmp_path / name).data.shape == (60, 40, 3)
        content = (tmp_path / name).read_bytes()
        for part in (0.5, 0.98):
            (tmp_path / name).write_bytes(content[: int(part * len(content))])
            with pytest.raises(FileError, match=name):
                read_image(tmp_path / name)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(FileError, match=r"absent.nii: no such file"):
        read_image(tmp_path / "absent.nii")


def test_a_2d_nifti_that_is_a_slice_of_a_volume_is_refused(tmp_path):
    nifti(tmp_path / "p.nii", GREY, AFFINES["oblique"])
    with pytest.raises(FileError, match="plane of x and y"):
        read_grid(tmp_path / "p.nii")


@pytest.mark.parametrize("name", ["v.nii.gz", "v.nrrd", "v.mha", "p.png", "p.jpg", "p.tif"])
def test_files_are_replaced_only_on_request(tmp_path, name):
    image = Image(VOXELS, np.eye(4)) if name[0] == "v" else Image(GREY, np.eye(3))
    write_image(tmp_path / name, image)
    with pytest.raises(FileError, match="overwrite"):
        write_image(tmp_path / name, image)
    write_image(tmp_path / name, image, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    with pytest.raises(ArgumentError, match="expected an Image"):
        write_image(tmp_path / name, image.data, overwrite=True)


ON_A_FULL_DISK = """
import resource, signal, sys
import numpy as np
from kunita.data.image import Image
from kunita.errors import FileError
from kunita.io.image_files.files import write_image
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
noise = np.random.default_rng(0).integers(0, 255, (200, 200)).astype(np.uint8)
volume = np.random.default_rng(0).integers(0, 255, (40, 40, 40)).astype(np.uint8)
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, -1))
for path in sys.argv[1:]:
    flat = path.endswith(("png", "jpg", "tif"))
    try:
        write_image(path, Image(noise if flat else volume, np.eye(3 if flat else 4)))
    except FileError as error:
        print(error)
"""


@pytest.mark.skipif(os.name != "posix", reason="the size of files is limited as on POSIX")
def test_a_full_disk_is_refused_in_one_line_and_leaves_nothing(tmp_path):
    paths = [
        tmp_path / name
        for name in ("v.nii", "v.nii.gz", "v.nrrd", "v.mha", "p.png", "p.jpg", "p.tif")
    ]
    run = [sys.executable, "-c", ON_A_FULL_DISK, *map(str, paths)]
    lines = subprocess.run(run, capture_output=True, text=True, check=True).stdout.splitlines()
    assert [line.split(": ")[0] for line in lines] == [str(path) for path in paths]
    assert not any(tmp_path.iterdir())


def test_reading_images_imports_a_library_only_when_its_files_are_met():
    code = (
        "import sys, kunita.io.image_files.files; "
        "print([m for m in ('jax', 'nibabel', 'SimpleITK', 'scipy', 'PIL') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


# Real files

DATA = pathlib.Path(os.environ.get("KUNITA_DATA", "absent"))
real = pytest.mark.skipif(not DATA.is_dir(), reason="KUNITA_DATA names no folder with real data")


@real
def test_resect_case_24_has_both_images_on_one_oblique_grid():
    mri, us = (read_image(DATA / "resect" / f"Case24-{name}.nii.gz") for name in ("MRI", "US"))
    assert mri.grid.shape == us.grid.shape == (94, 107, 107)
    np.testing.assert_array_equal(mri.affine, us.affine)
    np.testing.assert_array_equal(
        mri.affine, nibabel.load(DATA / "resect" / "Case24-MRI.nii.gz").affine
    )
    assert np.count_nonzero(mri.affine[:3, :3]) == 9
    seen = sitk.ReadImage(str(DATA / "resect" / "Case24-MRI.nii.gz"))
    indices = some_indices(mri.grid.shape)
    np.testing.assert_allclose(mri.grid.world(indices), itk_world(seen, indices), atol=ROUNDED)


@real
@pytest.mark.parametrize("stain", ["HE", "proSPC"])
def test_histology_pictures_are_read_as_pillow_reads_them_x_first(stain):
    from PIL import Image as Picture

    path = DATA / "histology_2d" / f"Izd2-29-041-w35_{stain}.jpg"
    image = read_image(path, spacing=0.5)
    with Picture.open(path) as picture:
        assert read_grid(path).shape == picture.size
        seen = np.asarray(picture).astype(int)
    differences = np.abs(image.data[::7, ::7] - seen[::7, ::7].transpose(1, 0, 2))
    assert (
        differences.mean() < 2.0
    )  # grey levels, of 255: decoders of JPEG differ in how they spread the colours
    np.testing.assert_array_equal(image.affine, np.diag([0.5, 0.5, 1.0]))
