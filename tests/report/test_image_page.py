"""The page of a registration that images drive: it says what is known, and nothing else."""

import json
import re

import numpy as np
import pytest
from scipy import ndimage

import kunita
from cli.cases import kunita_command
from kunita.gaussians import GaussianPoints
from kunita.phantoms.textures import TextureOptions, texture_pair
from kunita.report.image_answer import image_answer
from report.test_browser import visited

PRIOR = ("--length-scale", 14, "--amplitude", 2, "--metric", "ssd")
OF_LANDMARKS = ("leave-one-out", "left out", "left-out", "suspect", "landmark")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Two pictures, a slice of a volume, and landmarks."""
    folder = tmp_path_factory.mktemp("images")
    pair = texture_pair(TextureOptions(size=48, amplitude=2.0, length_scale=14.0), seed=6)
    for name, image in (("moving", pair.moving), ("fixed", pair.fixed)):
        plain = np.asarray(image.data, np.float32)
        kunita.write_image(folder / f"{name}.tif", kunita.Image(plain, np.eye(3)))
        slice_of_one = kunita.Image(plain[..., None], np.diag([0.5, 0.5, 2.0, 1.0]))
        kunita.write_image(folder / f"{name}.nii.gz", slice_of_one)
    points = np.array([[15.0, 15.0], [33.0, 18.0], [22.0, 35.0]])
    names = ["<b>a</b>", "b", "c"]
    kunita.write_landmarks(folder / "moving.csv", kunita.Landmarks(points, names))
    kunita.write_landmarks(folder / "fixed.csv", kunita.Landmarks(pair.truth(points), names))
    return folder


def registered(home, out, *words, suffix=".tif"):
    images = (home / f"moving{suffix}", home / f"fixed{suffix}")
    ended = kunita_command("register", "--from-images", *images, "--out", home / out, *words)
    assert ended.status == 0, ended.err
    return home / out


@pytest.fixture(scope="module")
def alone(home):
    return registered(home, "alone", *PRIOR, "--targets", home / "moving.csv")


@pytest.fixture(scope="module")
def both(home):
    marks = ("--landmarks", home / "moving.csv", home / "fixed.csv", "--noise", 0.1)
    return registered(home, "both", *PRIOR, *marks)


def words_of(result):
    """What a reader sees: no programs, styles or data."""
    text = (result / "report.html").read_text(encoding="utf-8")
    shown = re.sub(r"<(script|style)\b.*?</\1>", " ", text, flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", shown))


def test_the_page_of_images_alone_names_nothing_that_only_landmarks_have(alone):
    text = words_of(alone).lower()
    assert [word for word in OF_LANDMARKS if word in text] == []
    assert "calibration untested" in text


def test_no_number_of_the_page_is_missing(alone, both):
    for result in (alone, both):
        text = words_of(result)
        assert re.findall(r"\bnan\b|\bNone\b|not a number|–  ?mm|unknown number", text) == []


def test_the_answer_is_that_of_the_summary(alone):
    document = json.loads((alone / "summary.json").read_text())
    compared = document["expected"]["compared"]
    text = words_of(alone)
    assert f"{compared['median_radius95_mm']:.2f} mm Median 95 % radius" in text
    assert "0 % Share of the compared voxels" in text


def test_the_radius_where_images_were_compared_is_the_posterior_s(alone):
    """At every compared pixel, instead of some."""
    reg = kunita.load(alone / "registration.h5")
    mismatch = reg.images.mismatch_map
    places = mismatch.grid.world(np.argwhere(np.isfinite(mismatch.data)))
    radii = reg.evaluation.predict(places).radius(0.95)
    document = json.loads((alone / "summary.json").read_text())
    found = document["expected"]["compared"]["median_radius95_mm"]
    assert found == pytest.approx(np.median(radii), rel=0.02)


def test_the_methods_say_what_was_done(alone):
    images = json.loads((alone / "summary.json").read_text())["registered_images"]
    text = words_of(alone)
    assert "squared differences" in text
    assert f"lattice of {images['nodes']} nodes, {images['node_spacing_mm']:.2f} mm apart" in text
    assert f"{images['decimation']:.1f} voxels counted as one" in text
    assert f"{images['draws']} draws from the posterior" in text
    assert f"were {images['sandwich_ratio']['median']:.2f} times those reported" in text
    assert "amplitude of 2 mm, which was given" in text


def test_unrelated_images_get_no_number_that_reassures(alone):
    document = json.loads((alone / "summary.json").read_text())
    assert len(image_answer(document).tiles) > 1
    document["registered_images"]["relation"]["found"] = False
    (tile,) = image_answer(document).tiles
    assert tile.number == "do not trust"


@pytest.mark.parametrize("figure", ["before-after", "slices", "grid", "jacobian", "history"])
def test_every_figure_is_there(alone, figure):
    assert f'id="figure-{figure}"' in (alone / "report.html").read_text(encoding="utf-8")


def test_landmarks_beside_images_have_a_table_without_judgements(both):
    text = (both / "report.html").read_text(encoding="utf-8")
    table = text[text.index('id="landmark-table"') :].partition("</table>")[0]
    assert "&lt;b&gt;a&lt;/b&gt;" in table
    assert "left out" not in table
    assert "suspicion" not in table
    assert table.count("<tr") == 4


def test_a_second_page_is_the_same(alone):
    before = (alone / "report.html").read_text(encoding="utf-8")
    assert kunita_command("report", alone).status == 0
    assert (alone / "report.html").read_text(encoding="utf-8") == before


def test_without_the_moving_image_the_page_says_what_is_missing(home, alone):
    aside = home / "aside.tif"
    page = home / "without.html"
    (home / "moving.tif").rename(aside)
    try:
        ended = kunita_command("report", alone, "--out", page)
    finally:
        aside.rename(home / "moving.tif")
    assert ended.status == 0, ended.err
    text = page.read_text(encoding="utf-8")
    assert "no comparison of the images before and after" in text
    assert 'id="figure-before-after"' not in text


def test_a_volume_of_one_slice_has_a_page_too_and_again(home):
    result = registered(home, "slice", "--length-scale", 7, "--amplitude", 1, suffix=".nii.gz")
    before = (result / "report.html").read_text(encoding="utf-8")
    ended = kunita_command("report", result)
    assert ended.status == 0, ended.err
    assert (result / "report.html").read_text(encoding="utf-8") == before


@pytest.fixture(scope="module")
def volume(home):
    """Two small volumes, one of them shifted by a fraction of a voxel."""
    whole = ndimage.gaussian_filter(np.random.default_rng(3).normal(size=(30, 28, 26)), 2.0)
    affine = np.diag([2.0, 2.0, 2.0, 1.0])
    for name, shift in (("moving", 0.0), ("fixed", 0.4)):
        seen = ndimage.shift(whole, shift, order=3)[4:26, 4:24, 4:22]
        scaled = (seen / whole.std()).astype(np.float32)
        kunita.write_image(home / f"{name}_volume.nii.gz", kunita.Image(scaled, affine))
    words = ("--length-scale", 24, "--amplitude", 2, "--align", "none")
    return registered(home, "volume", *words, suffix="_volume.nii.gz")


def test_the_files_of_a_volume_are_loaded_into_slicer(volume):
    script = (volume / "load_in_slicer.py").read_text()
    assert "volume('mismatch.nii.gz', " in script
    assert "mismatch.nii.gz" in json.loads((volume / "summary.json").read_text())["files"]


@pytest.mark.parametrize("name", ["alone", "both", "volume"])
def test_a_browser_shows_it_and_says_what_the_posterior_says(browser, request, name):
    result = request.getfixturevalue(name)
    reg = kunita.load(result / "registration.h5")
    place = np.full(reg.fixed.dimension, 22.0)
    with visited(browser, result) as visit:
        (told,) = visit.told_at([place])
        assert visit.complaints == []
    known = reg.evaluation.preimage(place[None])
    told.agrees_with(GaussianPoints(known.points, known.covariance))


def test_a_place_that_the_images_do_not_reach_is_said_to_rest_on_the_prior(browser, home):
    """The mask leaves out half of the picture."""
    mask = np.zeros((48, 48), np.uint8)
    mask[:20] = 1
    kunita.write_image(home / "mask.tif", kunita.Image(mask, np.eye(3)))
    result = registered(home, "masked", *PRIOR, "--moving-mask", home / "mask.tif")
    with visited(browser, result) as visit:
        near, far = visit.told_at([[10.0, 24.0], [46.0, 24.0]])
    assert near.rows["remark"] == ""
    assert "images inform" in far.rows["remark"]
    assert "outside the mask of the moving image" in words_of(result)


def test_the_card_in_a_notebook_says_what_the_page_says(alone, both):
    document = json.loads((alone / "summary.json").read_text())
    radius = document["expected"]["compared"]["median_radius95_mm"]
    card = kunita.load(alone / "registration.h5")._repr_html_()
    assert f"95 % radius {radius:.3g} mm" in card
    assert [word for word in OF_LANDMARKS if word in card.lower()] == []
    beside = kunita.load(both / "registration.h5")._repr_html_()
    assert "two images and 3 landmarks" in beside
    assert beside.count("<circle") == 3
