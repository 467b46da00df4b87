"""Images that cannot be, or can hardly be, registered: one clear line and nothing left behind, or it
works."""

import nibabel
import numpy as np
import pytest
import SimpleITK as sitk

import kunita
from cli.cases import kunita_command
from kunita.errors import ArgumentError, InputError
from kunita.phantoms.textures import TextureOptions, texture_pair

SIZE = 48
OPTIONS = TextureOptions(size=SIZE, amplitude=1.5, length_scale=14.0)
PRIOR = ("--length-scale", 14, "--amplitude", 2, "--metric", "ssd", "--quick", "--no-report")


def pair():
    return texture_pair(OPTIONS, seed=6)


def grey(image, low, high, kind):
    """An image whose intensities fill a range of whole numbers."""
    data = np.asarray(image.data)
    share = (data - data.min()) / (data.max() - data.min())
    return np.round(low + share * (high - low)).astype(kind)


def write_volume(path, data, affine=None):
    nibabel.save(nibabel.Nifti1Image(data, np.eye(4) if affine is None else affine), path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Good pictures, and all kinds of bad ones."""
    home = tmp_path_factory.mktemp("hostile")
    good = pair()
    for name, image in (("moving", good.moving), ("fixed", good.fixed)):
        data = np.asarray(image.data, np.float32)
        kunita.write_image(home / f"{name}.tif", kunita.Image(data, np.eye(3)))
        for kind in (np.uint16, np.int16):
            ends = np.iinfo(kind)
            full = grey(image, ends.min, ends.max, kind)
            sitk.WriteImage(
                sitk.GetImageFromArray(full), str(home / f"{name}-{np.dtype(kind)}.nrrd")
            )
        rgb = np.stack(3 * [grey(image, 0, 255, np.uint8)], axis=-1)
        kunita.write_image(home / f"{name}-rgb.png", kunita.Image(rgb, np.eye(3), channels=True))
        write_volume(home / f"{name}-slice.nii.gz", data[:, :, None])
        holed = data.copy()
        holed[10:14, 20:26] = np.nan
        kunita.write_image(home / f"{name}-holed.tif", kunita.Image(holed, np.eye(3)))
    ones = np.ones((SIZE, SIZE), np.uint8)
    kunita.write_image(home / "zero.tif", kunita.Image(0 * ones, np.eye(3)))
    kunita.write_image(home / "small.tif", kunita.Image(ones[:20, :20], np.eye(3)))
    beside = np.eye(4)
    beside[0, 3] = 5.0
    write_volume(home / "beside-slice.nii.gz", ones[:, :, None], beside)
    write_volume(home / "mirrored-slice.nii.gz", ones[:, :, None], np.diag([-1.0, 1.0, 1.0, 1.0]))
    nothing = np.full((SIZE, SIZE), np.nan, np.float32)
    kunita.write_image(home / "nan.tif", kunita.Image(nothing, np.eye(3)))
    (home / "text.nii.gz").write_text("this is no image\n")
    (home / "text.tif").write_text("this is no image\n")
    (home / "text.tfm").write_text("this is no transform\n")
    (home / "empty").mkdir()
    rng = np.random.default_rng(0)
    write_volume(home / "volume.nii.gz", rng.normal(size=(12, 12, 12)).astype(np.float32))
    write_volume(home / "labels3.nii.gz", np.ones((12, 12, 12), np.uint8))
    write_volume(home / "four.nii.gz", rng.normal(size=(12, 12, 12, 3)).astype(np.float32))
    sitk.WriteTransform(sitk.AffineTransform(2), str(home / "start.tfm"))
    sitk.WriteTransform(sitk.AffineTransform(3), str(home / "start3.tfm"))
    return home


def from_images(folder, moving, fixed, *words, init="start.tfm"):
    return kunita_command(
        "register",
        "--from-images",
        folder / moving,
        folder / fixed,
        "--init",
        folder / init,
        "--out",
        folder / "out",
        *PRIOR,
        *(folder / word if str(word).endswith(".tif") else word for word in words),
    )


@pytest.mark.parametrize(
    ("moving", "fixed", "text"),
    [
        ("none.tif", "fixed.tif", "no such file"),
        ("empty", "fixed.tif", "empty"),
        ("text.tif", "fixed.tif", "text.tif"),
        ("moving.tif", "text.nii.gz", "text.nii.gz"),
        ("four.nii.gz", "volume.nii.gz", "four.nii.gz"),
        ("moving.tif", "volume.nii.gz", "2-D"),
        ("moving.tif", "moving.tif", "given twice"),
        ("nan.tif", "fixed.tif", "moving image: none of its voxels"),
        ("moving.tif", "zero.tif", "fixed image: all its voxels have the same value"),
    ],
)
def test_what_is_no_image_to_register_is_refused_in_one_line(folder, moving, fixed, text):
    assert text in refusal(folder, from_images(folder, moving, fixed))


def test_slices_that_are_stored_in_different_ways_are_refused_in_one_line(folder):
    """As planes, one of them would be mirrored."""
    slices = ("moving-slice.nii.gz", "fixed-slice.nii.gz")
    other = "mirrored-slice.nii.gz"
    labels = ("--labels", folder / other)
    assert "moving image: expected a slice" in refusal(
        folder, from_images(folder, slices[0], other)
    )
    assert "labels: expected a slice" in refusal(folder, from_images(folder, *slices, *labels))
    beside = ("--labels", folder / "beside-slice.nii.gz")
    assert "labels: expected a slice that begins" in refusal(
        folder, from_images(folder, *slices, *beside)
    )
    mask = ("--fixed-mask", folder / other)
    assert "fixed mask: expected the grid of" in refusal(
        folder, from_images(folder, *slices, *mask)
    )


def test_labels_of_another_dimension_are_refused_before_anything_is_computed(folder):
    labels = ("--labels", folder / "labels3.nii.gz")
    assert "expected 2-D" in refusal(
        folder, from_images(folder, "moving.tif", "fixed.tif", *labels)
    )


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--moving-mask", "zero.tif"), "moving mask: it is zero everywhere"),
        (("--fixed-mask", "small.tif"), "grid of the fixed image"),
        (("--fixed-mask", "none.tif"), "no such file"),
        (("--fixed-mask", "text.tif"), "text.tif"),
    ],
)
def test_a_mask_that_cannot_be_is_refused_in_one_line(folder, words, text):
    assert text in refusal(folder, from_images(folder, "moving.tif", "fixed.tif", *words))


@pytest.mark.parametrize(
    ("init", "text"),
    [
        ("text.tfm", "not an ITK transform"),
        ("none.tfm", "no such file"),
        ("empty", "empty"),
        ("start3.tfm", "2-D"),
    ],
)
def test_a_start_that_is_no_transform_is_refused_in_one_line(folder, init, text):
    assert text in refusal(folder, from_images(folder, "moving.tif", "fixed.tif", init=init))


def refusal(folder, ended):
    """The one line of a command that was refused and has left nothing behind."""
    assert ended.status == 2, ended.err
    assert ended.out == ""
    errors = [line for line in ended.err.splitlines() if "error:" in line]
    assert len(errors) == 1
    assert "Traceback" not in ended.err
    assert not (folder / "out").exists()
    assert not list(folder.glob(".kunita*"))
    return errors[0]


@pytest.mark.parametrize(
    ("kind", "suffix"),
    [("uint16", "nrrd"), ("int16", "nrrd"), ("rgb", "png"), ("slice", "nii.gz"), ("holed", "tif")],
)
def test_unusual_images_are_registered_as_well_as_plain_ones(folder, tmp_path, kind, suffix):
    """Extreme integers do not overflow, colours are luminance, one slice is a plane, NaN is left
    out."""
    ended = kunita_command(
        "register",
        "--from-images",
        folder / f"moving-{kind}.{suffix}",
        folder / f"fixed-{kind}.{suffix}",
        "--init",
        folder / "start.tfm",
        "--out",
        tmp_path / "out",
        *PRIOR,
    )
    assert ended.status == 0, ended.err
    reg = kunita.load(tmp_path / "out" / "registration.h5")
    points = np.random.default_rng(0).uniform(10, SIZE - 10, (50, 2))
    order = [1, 0] if suffix == "nrrd" else [0, 1]  # where x is the second axis of the array
    true = pair().truth(points[:, order])[:, order]
    miss = np.linalg.norm(reg.posterior.predict(points).mean - true, axis=1)
    assert np.median(miss) < 0.4


def test_an_image_of_one_slice_can_be_warped_by_the_registration_of_another(folder, tmp_path):
    images = [folder / f"{side}-slice.nii.gz" for side in ("moving", "fixed")]
    start = ("--init", folder / "start.tfm")
    kunita_command("register", "--from-images", *images, *start, "--out", tmp_path / "out", *PRIOR)
    ended = kunita_command("warp", tmp_path / "out", images[0], "--out", tmp_path / "warped.tif")
    assert ended.status == 0, ended.err
    again = kunita.read_image(tmp_path / "warped.tif").data
    first = kunita.read_image(tmp_path / "out" / "warped.tif").data
    assert again == pytest.approx(first, abs=1e-3)
    onto = ("--reference", images[1], "--overwrite")
    ended = kunita_command(
        "warp", tmp_path / "out", images[0], "--out", tmp_path / "warped.tif", *onto
    )
    assert ended.status == 0, ended.err


PLACE = np.array([[-0.8, 0, 0, 40], [0, 0, 3, -5], [0, -0.8, 0, 96], [0, 0, 0, 1.0]])
"""Of a slice that lies somewhere in a scanner."""


@pytest.fixture(scope="module")
def of_slices(folder, tmp_path_factory):
    """A result of two slices of 0.8 mm that lie somewhere."""
    home = tmp_path_factory.mktemp("slices")
    for side, image in (("moving", pair().moving), ("fixed", pair().fixed)):
        data = np.asarray(image.data, np.float32)[:, :, None]
        write_volume(home / f"{side}.nii.gz", data, PLACE)
        write_volume(home / "mirrored.nii.gz", data, PLACE @ np.diag([-1.0, 1.0, 1.0, 1.0]))
        write_volume(home / "beside.nii.gz", data, PLACE + 5.0 * np.eye(4, k=3))
    sides = ("--from-images", home / "moving.nii.gz", home / "fixed.nii.gz")
    given = ("--length-scale", 11, "--amplitude", 1.6, "--metric", "ssd", "--quick", "--no-report")
    words = (*sides, *given, "--align", "none", "--out", home / "out")
    ended = kunita_command("register", *words)
    assert ended.status == 0, ended.err
    return home


@pytest.mark.parametrize("suffix", ["nii.gz", "nrrd", "mha"])
def test_on_a_slice_maps_are_written_where_it_lies(of_slices, tmp_path, suffix):
    onto = ("--reference", of_slices / "fixed.nii.gz", "--out")
    moving = of_slices / "moving.nii.gz"
    made = {"std": ("uncertainty", "--what", "std"), "warped": ("warp", moving)}
    for name, (command, *words) in made.items():
        out = tmp_path / f"{name}.{suffix}"
        ended = kunita_command(command, of_slices / "out", *words, *onto, out)
        assert ended.status == 0, ended.err
        found = kunita.read_image(out)
        assert found.data.shape == (SIZE, SIZE, 1)
        np.testing.assert_allclose(found.affine, PLACE, atol=1e-5)
        stem = "warped" if name == "warped" else f"uncertainty_{name}"
        plane = kunita.read_image(of_slices / "out" / f"{stem}.tif")
        np.testing.assert_allclose(found.data[:, :, 0], plane.data, atol=0.02)


def test_a_plane_in_nifti_is_not_said_to_lie_in_a_scanner(of_slices, tmp_path):
    """Without a reference nobody knows where the slices were."""
    out = tmp_path / "std.nii.gz"
    assert kunita_command("uncertainty", of_slices / "out", "--out", out).status == 0
    header = nibabel.load(out).header
    assert (header["sform_code"], header["qform_code"]) == (2, 2)
    assert kunita.read_image(out).grid.spacing == pytest.approx([0.8, 0.8])


@pytest.mark.parametrize("other", ["mirrored", "beside"])
def test_a_slice_that_lies_otherwise_than_the_registered_one_is_refused(of_slices, tmp_path, other):
    """As planes all slices begin at zero, so that the plane alone does not tell."""
    slice_ = of_slices / f"{other}.nii.gz"
    out = ("--out", tmp_path / "made.nii.gz")
    warped = kunita_command("warp", of_slices / "out", slice_, *out)
    onto = ("--reference", slice_)
    mapped = kunita_command("uncertainty", of_slices / "out", *onto, *out)
    for ended, side in ((warped, "moving"), (mapped, "fixed")):
        assert ended.status == 2
        assert f"{other}.nii.gz: expected a slice that" in ended.err
        assert f"the registered {side} image" in ended.err
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_written_on_a_slice_is_refused_before_it_is_computed(of_slices, tmp_path):
    onto = ("--reference", of_slices / "fixed.nii.gz", "--out", tmp_path / "made.nii.gz")
    mirrored = kunita_command("warp", of_slices / "out", of_slices / "mirrored.nii.gz", *onto)
    assert "mirrored.nii.gz: expected a slice that is stored as" in mirrored.err
    components = kunita_command("uncertainty", of_slices / "out", "--what", "cov", *onto)
    assert "expected a name that ends in .nrrd" in components.err
    for ended in (mirrored, components):
        assert ended.status == 2
        assert "evaluating" not in ended.err
    assert list(tmp_path.iterdir()) == []


def test_arrays_are_refused_with_a_hint():
    data = np.asarray(pair().moving.data)
    with pytest.raises(ArgumentError, match=r"moving_image: expected an Image.*kunita\.Image"):
        kunita.register(moving_image=data, fixed_image=data)
    with pytest.raises(ArgumentError, match="expected both of them"):
        kunita.register(moving_image=pair().moving)
    with pytest.raises(ArgumentError, match="moving_mask: expected an Image"):
        kunita.register(moving_image=pair().moving, fixed_image=pair().fixed, moving_mask=data > 0)


@pytest.mark.parametrize(
    "init", [np.zeros((3, 3)), np.eye(2), np.full((3, 3), np.nan), "none.tfm", object()]
)
def test_a_matrix_that_is_no_alignment_is_refused(init):
    with pytest.raises(InputError, match="init|none.tfm"):
        kunita.register(moving_image=pair().moving, fixed_image=pair().fixed, init=init)


@pytest.mark.parametrize(
    "given",
    [{"metric": "lncc"}, {"key": 0}, {"init": np.eye(3)}, {"quick": True}, {"moving_mask": "x"}],
)
def test_what_is_for_images_is_refused_where_landmarks_alone_drive_the_fit(given):
    points = np.random.default_rng(0).uniform(0, 30, (5, 2))
    with pytest.raises(ArgumentError, match=f"{next(iter(given))}: is for images"):
        kunita.register(points, points + 1.0, **given)


@pytest.mark.parametrize(
    "words",
    [
        ("--metric", "lncc"),
        ("--seed", "0"),
        ("--quick",),
        ("--init", "start.tfm"),
        ("--moving-mask", "m.tif"),
        ("--fixed-mask", "m.tif"),
        ("--landmarks", "a.csv", "b.csv"),
    ],
)
def test_options_for_images_are_refused_without_images(case, tmp_path, words):
    ended = kunita_command(
        "register",
        case / "moving.mrk.json",
        case / "fixed.mrk.json",
        "--out",
        tmp_path / "out",
        *words,
    )
    assert ended.status == 2
    assert f"{words[0]}: is for images" in ended.err
    assert ended.err.count("\n") == 1
    assert not (tmp_path / "out").exists()
