"""`kunita register --from-images`: files in, an ordinary result out."""

import json

import numpy as np
import pytest
import SimpleITK as sitk

import kunita
from cli.cases import kunita_command
from kunita.phantoms.textures import TextureOptions, texture_pair

OPTIONS = TextureOptions(size=48, amplitude=2.0, length_scale=14.0)
PRIOR = ("--length-scale", 14, "--amplitude", 2, "--metric", "ssd")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two pictures, masks, five labels, landmarks, targets, and a transform that does nothing."""
    home = tmp_path_factory.mktemp("images")
    pair = texture_pair(OPTIONS, seed=6)
    for name, image in (("moving", pair.moving), ("fixed", pair.fixed)):
        plain = kunita.Image(np.asarray(image.data, np.float32), image.affine)
        kunita.write_image(home / f"{name}.tif", plain)
    kunita.write_image(home / "mask.tif", kunita.Image(np.ones((48, 48), np.uint8), np.eye(3)))
    kunita.write_image(home / "other.tif", kunita.Image(np.ones((20, 20), np.uint8), np.eye(3)))
    bands = np.arange(48, dtype=np.uint8)[:, None] // 8 * np.ones(48, np.uint8)
    kunita.write_image(home / "bands.tif", kunita.Image(bands, np.eye(3)))
    points = np.array([[15.0, 15.0], [33.0, 18.0], [22.0, 35.0]])
    names = ["a", "b", "c"]
    kunita.write_landmarks(home / "moving.csv", kunita.Landmarks(points, names))
    kunita.write_landmarks(home / "fixed.csv", kunita.Landmarks(pair.truth(points), names))
    sitk.WriteTransform(sitk.AffineTransform(2), str(home / "start.tfm"))
    return home


def from_images(folder, out, *words):
    return kunita_command(
        "register",
        "--from-images",
        folder / "moving.tif",
        folder / "fixed.tif",
        "--init",
        folder / "start.tfm",
        "--out",
        folder / out,
        *words,
    )


@pytest.fixture(scope="module")
def ended(folder):
    more = ("--targets", folder / "moving.csv", "--labels", folder / "bands.tif")
    return from_images(folder, "result", *PRIOR, "--json", *more)


def test_images_alone_make_a_result_without_landmarks(folder, ended):
    assert ended.status == 0, ended.err
    document = json.loads(ended.out)
    assert document["n_landmarks"] == 0
    assert document["loo"] is None
    assert document["suspects"] == []
    images = document["registered_images"]
    assert images["metric"] == "ssd"
    assert 0.5 < images["overlap"] <= 1
    assert 0 < images["monte_carlo_error"] <= 0.05
    assert 0 <= images["solve_residual"] < 0.02
    ratio = images["sandwich_ratio"]
    assert 0.5 < ratio["low"] <= ratio["median"] <= ratio["high"] < 1.5
    written = {path.name for path in (folder / "result").iterdir()}
    assert {"registration.h5", "summary.json", "forward_xfm.h5", "warped.tif"} <= written
    assert {"uncertainty_radius.tif", "jacobian.tif", "targets.csv"} <= written
    assert {"mismatch.tif", "overview.png", "report.html"} <= written
    assert set(document["files"]) == written
    assert "landmarks.csv" not in written


def test_the_mismatch_lies_on_the_fixed_grid_and_is_at_least_one_where_it_is_known(folder, ended):
    mismatch = kunita.read_image(folder / "result" / "mismatch.tif").data
    fixed = kunita.read_image(folder / "fixed.tif").data
    assert mismatch.shape == fixed.shape
    assert mismatch.dtype == np.float32
    known = mismatch[mismatch != 0]
    assert known.size > 0.7 * mismatch.size
    assert known.min() >= 1.0 - 1e-6


def test_more_labels_than_a_picture_can_hold_are_written_all_the_same(folder, ended):
    """Pictures have up to four numbers for a pixel; the five labels and the background add to one."""
    probability = kunita.read_image(folder / "result" / "labels_probability.nrrd")
    assert probability.channels
    assert probability.data.shape == (48, 48, 5)
    assert not (folder / "result" / "labels_probability.tif").exists()
    total = probability.data.sum(axis=-1)[16:44, 6:42]
    np.testing.assert_allclose(total, 1.0, atol=1e-3)
    assert any("in the order 1, 2, 3, 4, 5" in text for text in json.loads(ended.out)["warnings"])


def test_targets_are_carried_to_their_true_places(folder, ended):
    targets = json.loads(ended.out)["targets"]
    true = kunita.read_landmarks(folder / "fixed.csv").points
    found = np.array([target["position"] for target in targets])
    assert np.linalg.norm(found - true, axis=1).max() < 0.5


def test_its_transform_does_what_the_posterior_says(folder, ended):
    """ITK reads the file, and maps fixed points to where they come from."""
    reg = kunita.load(folder / "result" / "registration.h5")
    transform = sitk.ReadTransform(str(folder / "result" / "forward_xfm.h5"))
    points = np.random.default_rng(0).uniform(8, 40, size=(20, 2))
    found = np.array([transform.TransformPoint(point) for point in points.tolist()])
    np.testing.assert_allclose(found, reg.posterior.move_back(points), atol=0.02)


def test_other_commands_take_the_result(folder, ended):
    out = folder / "again.tif"
    words = ("warp", folder / "result", folder / "moving.tif", "--out", out)
    assert kunita_command(*words).status == 0
    made = kunita.read_image(folder / "result" / "warped.tif").data
    np.testing.assert_allclose(kunita.read_image(out).data, made, atol=0.02)
    predicted = folder / "predicted.csv"
    points = folder / "moving.csv"
    assert kunita_command("predict", folder / "result", points, "--out", predicted).status == 0
    info = kunita_command("info", folder / "result" / "registration.h5")
    assert "two images" in info.out


def test_landmarks_beside_images_get_their_table(folder):
    marks = ("--landmarks", folder / "moving.csv", folder / "fixed.csv", "--noise", 0.1)
    ended = from_images(folder, "both", *PRIOR, *marks, "--no-report")
    assert ended.status == 0, ended.err
    document = json.loads((folder / "both" / "summary.json").read_text())
    assert document["n_landmarks"] == 3
    radius = document["expected"]["compared"]["median_radius95_mm"]
    assert f"to expect  95 % radius {radius:.2f} pixel where images were compared" in ended.out
    written = {path.name for path in (folder / "both").iterdir()}
    assert {"landmarks.csv", "mismatch.tif"} <= written
    assert not {"report.html", "overview.png"} & written


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--moving-image", "x.tif"), "carries an image along"),
        (("--fixed-mask", "other.tif"), "grid of the fixed image"),
        (("--model", "pathwise"), "'endpoint' only"),
        (("--kernel", "matern52"), "Gaussian kernels only"),
        (("--robust",), "landmarks alone"),
        (("--noise", "1"), "there are none"),
        (("--bids",), "a BIDS name"),
    ],
)
def test_what_does_not_go_with_images_is_refused_in_one_line(folder, words, text):
    named = [folder / word if word.endswith("other.tif") else word for word in words]
    ended = from_images(folder, "refused", *named)
    assert ended.status == 2
    assert text in ended.err
    assert not (folder / "refused").exists()


def test_neither_landmarks_nor_images_is_refused(folder):
    ended = kunita_command("register", "--out", folder / "nothing")
    assert ended.status == 2
    assert "--from-images" in ended.err
