"""`kunita suggest`: places for people, for programs, as landmarks and as a figure; refusals in one
line."""

import functools
import json

import numpy as np
import pytest

import kunita
from cli.cases import AFFINE, KERNEL, contents, kunita_command, landmarks, write_flat_case
from kunita.errors import ExitStatus


@functools.cache
def answer(result):
    ended = kunita_command("suggest", result, "--json", "--quiet")
    assert (ended.status, ended.err) == (0, "")
    return json.loads(ended.out)


def test_json_has_three_places_in_both_spaces_and_what_they_are_worth(result):
    found, reg = answer(result), kunita.load(result / "registration.h5")
    places = found["suggestions"]
    assert (found["region"], found["noise_mm"], len(places)) == ("hull", pytest.approx(0.7), 3)
    predicted = reg.posterior.predict([place["moving"] for place in places])
    np.testing.assert_allclose([place["fixed"] for place in places], predicted.mean, atol=1e-9)
    together = [
        found["mean_radius95_mm"],
        *(place["mean_radius95_mm_together"] for place in places),
    ]
    assert np.all(np.diff(together) < 0)
    for place in places:
        assert place["gain_mm"] == pytest.approx(
            found["mean_radius95_mm"] - place["mean_radius95_mm_alone"]
        )
        assert 0 < place["gain_mm"] <= place["gain_together_mm"] + 1e-12
        assert place["nearest"] in landmarks()[0].names


def test_people_are_told_the_same_and_the_result_stays_as_it_is(result, tmp_path):
    before, places = contents(result), [place["moving"] for place in answer(result)["suggestions"]]
    out, figure = tmp_path / "more.mrk.json", tmp_path / "more.png"
    ended = kunita_command("suggest", result, "--out", out, "--figure", figure)
    assert ended.status == 0, ended.err
    assert contents(result) == before
    for place in places:
        assert f"moving ({', '.join(f'{x:.1f}' for x in place)}) RAS" in ended.out
    np.testing.assert_allclose(kunita.read_landmarks(out).points, places, atol=1e-5)
    assert kunita.read_image(figure).data.std() > 10  # it shows something
    again = kunita_command("suggest", result, "--out", out)
    assert again.status == ExitStatus.REFUSED
    assert "--overwrite" in again.err


def test_inside_a_label_places_are_chosen_for_the_label(result, case):
    ended = kunita_command(
        "suggest", result, "--inside", case / "labels.nii.gz", "--label", "3", "--json"
    )
    found = json.loads(ended.out)
    assert (found["region"], found["label"]) == (str(case / "labels.nii.gz"), 3)
    assert found["n_points"] == 6 * 6 * 5
    assert found["suggestions"][0]["moving"] != answer(result)["suggestions"][0]["moving"]


def test_pictures_have_labels_and_figures_too(tmp_path):
    write_flat_case(tmp_path)
    sides = (
        "register",
        tmp_path / "moving.csv",
        tmp_path / "fixed.csv",
        "--out",
        tmp_path / "r",
        *KERNEL,
    )
    pictures = (
        "--moving-image",
        tmp_path / "moving.png",
        "--fixed-image",
        tmp_path / "fixed.png",
        "--no-report",
    )
    assert kunita_command(*sides, *pictures, "--spacing", "0.5").status == 0
    words = (
        "--inside",
        tmp_path / "labels.png",
        "--out",
        tmp_path / "s.csv",
        "--figure",
        tmp_path / "s.png",
        "--json",
    )
    ended = kunita_command("suggest", tmp_path / "r", *words)
    assert ended.status == 0, ended.err
    found = kunita.read_landmarks(tmp_path / "s.csv")
    np.testing.assert_allclose(
        found.points, [place["moving"] for place in json.loads(ended.out)["suggestions"]]
    )
    assert np.all(found.points < 20)  # the recorded spacing of half a millimetre is used


def test_what_cannot_be_is_refused_in_one_line(result, case, tmp_path):
    away = AFFINE.copy()
    away[0, 3] += 900
    marked = kunita.read_image(case / "labels.nii.gz").data
    kunita.write_image(tmp_path / "away.nii.gz", kunita.Image(marked, away))
    kunita.write_image(tmp_path / "flat.png", kunita.Image(np.ones((8, 8), np.uint8), np.eye(3)))
    for words, said in (
        (("--label", "3"), "--label: expected --inside"),
        (("--inside", case / "labels.nii.gz", "--label", "4"), "expected the value 4, found 3"),
        (("--inside", tmp_path / "away.nii.gz"), "expected labels in the moving space"),
        (("--inside", tmp_path / "flat.png"), "expected 3-D"),
        (("--inside", case / "moving.nii.gz"), "labels: expected 1 to 64 values"),
        (("--figure", tmp_path / "s.txt"), "expected a name that ends in .png"),
    ):
        ended = kunita_command("suggest", result, *words)
        assert (ended.status, ended.out) == (ExitStatus.REFUSED, ""), words
        assert said in ended.err
        assert "Traceback" not in ended.err
