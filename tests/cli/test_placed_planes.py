"""Planes whose files say where they lie, as ITK's do: what is written lies there, too."""

import json

import numpy as np
import pytest
import SimpleITK as sitk

import kunita
from cli.cases import kunita_command
from kunita.io.recorded_grids import recorded_grid
from kunita.phantoms.textures import TextureOptions, texture_pair

SIZE = 48
OPTIONS = TextureOptions(size=SIZE, amplitude=1.5, length_scale=14.0)
PRIOR = ("--length-scale", 7, "--amplitude", 1, "--metric", "ssd", "--quick", "--align", "none")


def write_plane(path, data, *, origin=(10.0, -20.0), direction=(-1.0, 0.0, 0.0, -1.0)):
    image = sitk.GetImageFromArray(np.ascontiguousarray(data.T))
    image.SetSpacing((0.5, 0.5))
    image.SetOrigin(origin)
    image.SetDirection(direction)
    sitk.WriteImage(image, str(path))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two planes whose axes point left and up, as NIfTI has them, and labels."""
    home = tmp_path_factory.mktemp("placed")
    pair = texture_pair(OPTIONS, seed=6)
    for name, image in (("moving", pair.moving), ("fixed", pair.fixed)):
        write_plane(home / f"{name}.mha", np.asarray(image.data, np.float32))
    label = np.zeros((SIZE, SIZE), np.uint8)
    label[12:36, 14:30] = 1
    write_plane(home / "label.mha", label)
    return home


@pytest.fixture(scope="module")
def result(folder):
    images = ("--from-images", folder / "moving.mha", folder / "fixed.mha")
    labels = ("--labels", folder / "label.mha")
    ended = kunita_command("register", *images, *labels, "--out", folder / "result", *PRIOR)
    assert ended.status == 0, ended.err
    return folder / "result"


def test_everything_on_the_fixed_plane_lies_where_that_lies(folder, result):
    fixed = kunita.read_image(folder / "fixed.mha")
    names = ("warped", "jacobian", "mismatch", "uncertainty_radius", "labels_probability")
    for name in names:
        made = kunita.read_image(result / f"{name}.nrrd")
        np.testing.assert_allclose(made.affine, fixed.affine, atol=1e-9)
        assert made.grid.shape == fixed.grid.shape
    assert not list(result.glob("*.tif"))
    listed = json.loads((result / "summary.json").read_text())["files"]
    assert set(listed) == {path.name for path in result.iterdir()}
    warped = kunita.read_image(result / "warped.nrrd").data
    assert np.corrcoef(warped[6:-6, 6:-6].ravel(), fixed.data[6:-6, 6:-6].ravel())[0, 1] > 0.95


def test_other_commands_find_the_planes_where_they_lie(folder, result, tmp_path):
    """A spacing, as pictures need one, would put them at zero."""
    out = tmp_path / "again.nrrd"
    ended = kunita_command("warp", result, folder / "moving.mha", "--out", out)
    assert ended.status == 0, ended.err
    made = kunita.read_image(result / "warped.nrrd")
    again = kunita.read_image(out)
    np.testing.assert_allclose(again.affine, recorded_grid(result, "fixed").affine)
    np.testing.assert_allclose(again.data, made.data, atol=0.02)
    ended = kunita_command("report", result, "--out", tmp_path / "again.html")
    assert (ended.status, "warning" in ended.err) == (0, False), ended.err


def test_a_spacing_puts_the_first_pixel_at_zero_and_says_so(folder, tmp_path):
    images = ("--from-images", folder / "moving.mha", folder / "fixed.mha")
    out = tmp_path / "out"
    words = ("--spacing", 0.5, "--no-report", "--init", folder / "absent.tfm")
    ended = kunita_command("register", *images, *words, "--out", out)
    assert "replaces the place that" in ended.err
    assert "fixed.mha states" in ended.err


def test_a_picture_of_such_a_plane_is_refused_before_it_is_computed(folder, result, tmp_path):
    for words in (("warp", result, folder / "moving.mha"), ("uncertainty", result)):
        ended = kunita_command(*words, "--out", tmp_path / "plane.tif")
        assert ended.status == 2
        assert "cannot say where the plane lies" in ended.err
        assert "evaluating" not in ended.err
    assert list(tmp_path.iterdir()) == []


def test_landmarks_with_such_images_have_their_maps_there(folder, tmp_path):
    rng = np.random.default_rng(0)
    fixed = kunita.read_image(folder / "fixed.mha")
    moving = fixed.grid.world(rng.uniform(8, 40, (12, 2)))
    kunita.write_landmarks(tmp_path / "moving.csv", kunita.Landmarks(moving))
    shifted = moving + rng.normal(0, 0.5, moving.shape)
    kunita.write_landmarks(tmp_path / "fixed.csv", kunita.Landmarks(shifted))
    sides = (tmp_path / "moving.csv", tmp_path / "fixed.csv")
    given = ("--length-scale", 7, "--amplitude", 1, "--noise", 0.2, "--no-report")
    image = ("--fixed-image", folder / "fixed.mha")
    out = tmp_path / "out"
    ended = kunita_command("register", *sides, *image, *given, "--out", out)
    assert ended.status == 0, ended.err
    made = kunita.read_image(out / "uncertainty_radius.nrrd")
    np.testing.assert_allclose(made.affine, fixed.affine, atol=1e-9)
    again = kunita_command("register", *sides, *image, *given, "--out", out)
    assert "already" in again.err


def test_images_with_spacings_of_their_own_are_warped_as_they_are(folder, tmp_path):
    """A moving image whose pixels are smaller: what was recorded of the fixed one is not its."""
    upright = {"origin": (0.0, 0.0), "direction": (1.0, 0.0, 0.0, 1.0)}
    for name in ("moving", "fixed"):
        data = np.asarray(kunita.read_image(folder / f"{name}.mha").data)
        write_plane(tmp_path / f"{name}.mha", data, **upright)
    coarse = sitk.ReadImage(str(tmp_path / "moving.mha"))
    size = [2 * SIZE - 1, 2 * SIZE - 1]
    fine = sitk.Resample(coarse, size, sitk.Transform(), sitk.sitkLinear, (0, 0), (0.25, 0.25))
    sitk.WriteImage(fine, str(tmp_path / "fine.mha"))
    images = ("--from-images", tmp_path / "fine.mha", tmp_path / "fixed.mha")
    out = tmp_path / "result"
    assert kunita_command("register", *images, "--out", out, *PRIOR).status in (0, 3)
    ended = kunita_command("warp", out, tmp_path / "fine.mha", "--out", tmp_path / "again.tif")
    assert ended.status == 0, ended.err
    expected = kunita.read_image(out / "warped.tif").data
    found = kunita.read_image(tmp_path / "again.tif").data
    np.testing.assert_allclose(found, expected, atol=1e-3 * np.abs(expected).max())
