"""`predict`, `warp`, `uncertainty`, `pool`, `convert` and `info` on the files of one result."""

import itertools
import json
import os
import pathlib
import warnings

import numpy as np
import pytest
import SimpleITK as sitk

import kunita
from cli.cases import AFFINE, NAMES, SHAPE, contents, kunita_command, landmarks
from kunita.errors import KunitaWarning
from kunita.io.geometry_files.files import read_geometry
from kunita.io.landmark_files.files import read_landmarks

DATA = pathlib.Path(os.environ.get("KUNITA_DATA", "absent"))
CARRIED = {"moving.csv": "out.mrk.json", "mesh.vtk": "out.vtp", "lines.trk": "out.tck"}


def points_in(path):
    return (
        read_geometry(path).points
        if path.suffix in (".vtk", ".vtp", ".trk", ".tck")
        else read_landmarks(path).points
    )


@pytest.mark.parametrize(("name", "out"), CARRIED.items())
@pytest.mark.parametrize("way", [(), ("--inverse",)])
def test_predict_carries_every_kind_of_points_as_the_posterior_does(
    name, out, way, case, result, tmp_path
):
    ended = kunita_command("predict", result, case / name, "--out", tmp_path / out, *way, "--json")
    posterior = kunita.load(result / "registration.h5").posterior
    given = points_in(case / name)
    expected = posterior.inverse(given) if way else posterior.predict(given)
    assert ended.status == 0
    np.testing.assert_allclose(
        points_in(tmp_path / out), expected.mean, atol=1e-3
    )  # .tck holds 32 bits
    document = json.loads(ended.out)
    assert (document["n"], document["space"]) == (len(given), "moving" if way else "fixed")
    assert document["max_radius95_mm"] == pytest.approx(expected.radius(0.95).max(), rel=1e-6)


@pytest.mark.parametrize("name", CARRIED)
def test_predict_inverse_undoes_predict(name, case, result, tmp_path):
    there, back = tmp_path / f"there-{name}", tmp_path / f"back-{name}"
    assert kunita_command("predict", result, case / name, "--out", there).status == 0
    assert kunita_command("predict", result, there, "--out", back, "--inverse").status == 0
    np.testing.assert_allclose(points_in(back), points_in(case / name), atol=2e-3)
    assert np.abs(points_in(there) - points_in(case / name)).max() > 1


def test_predicted_landmarks_keep_their_names_and_gain_covariances(case, result, tmp_path):
    kunita_command("predict", result, case / "moving.csv", "--out", tmp_path / "out.mrk.json")
    found = read_landmarks(tmp_path / "out.mrk.json")
    exact = kunita.load(result / "registration.h5").posterior.predict(landmarks()[0].points)
    assert found.names == NAMES
    np.testing.assert_allclose(found.covariances, exact.covariance, atol=1e-5)


@pytest.mark.parametrize(
    ("option", "way"),
    [((), "linear"), (("--nearest",), "nearest"), (("--cubic",), "cubic")],
    ids=lambda v: str(v),
)
@pytest.mark.parametrize("inverse", [False, True])
def test_warp_uses_the_registered_grid_and_equals_warp_image(
    option, way, inverse, case, result, tmp_path
):
    side, back = ("fixed", ("--inverse",)) if inverse else ("moving", ())
    ended = kunita_command(
        "warp", result, case / f"{side}.nii.gz", "--out", tmp_path / "w.nii.gz", *option, *back
    )
    assert ended.status == 0, ended.err
    found, image = (
        kunita.read_image(tmp_path / "w.nii.gz"),
        kunita.read_image(case / f"{side}.nii.gz"),
    )
    reg = kunita.load(result / "registration.h5")
    onto = kunita.read_image(case / f"{'moving' if inverse else 'fixed'}.nii.gz")
    expected = kunita.warp_image(reg, image, onto, interpolation=way, inverse=inverse)
    np.testing.assert_array_equal(found.data, expected.data)
    assert found.data.dtype == image.data.dtype
    np.testing.assert_allclose(found.affine, AFFINE, atol=1e-5)


def test_warp_without_options_makes_the_image_that_register_wrote(case, result, tmp_path):
    kunita_command("warp", result, case / "moving.nii.gz", "--out", tmp_path / "w.nii.gz")
    found, there = (
        kunita.read_image(tmp_path / "w.nii.gz"),
        kunita.read_image(result / "warped.nii.gz"),
    )
    different = (
        found.data != there.data
    )  # two splines of the same map, both within its tolerance: rounding may differ
    assert different.mean() < 0.02
    assert np.abs(found.data.astype(int) - there.data).max() <= 1


def test_warp_takes_the_grid_of_a_reference_and_nearest_keeps_the_labels(case, result, tmp_path):
    kunita.write_image(
        tmp_path / "ref.nrrd",
        kunita.Image(np.zeros((9, 8, 7), np.float32), AFFINE @ np.diag([2.0, 2.0, 2.0, 1.0])),
    )
    words = (
        "warp",
        result,
        case / "labels.nii.gz",
        "--nearest",
        "--reference",
        tmp_path / "ref.nrrd",
    )
    assert kunita_command(*words, "--out", tmp_path / "w.mha").status == 0
    found = kunita.read_image(tmp_path / "w.mha")
    assert found.grid.shape == (9, 8, 7)
    assert set(np.unique(found.data)) <= {0, 3}


@pytest.mark.parametrize("what", ["fc", "std", "radius", "cov", "jacobian"])
def test_a_map_of_uncertainty_is_the_one_that_register_wrote(what, case, result, tmp_path):
    words = (
        "uncertainty",
        result,
        "--reference",
        case / "fixed.nii.gz",
        "--out",
        tmp_path / "u.nii.gz",
    )
    ended = kunita_command(*words, "--what", what, "--json")
    assert ended.status == 0
    assert json.loads(ended.out)["what"] == what
    written = f"{'' if what == 'jacobian' else 'uncertainty_'}{what}.nii.gz"
    here, there = (kunita.read_image(path) for path in (tmp_path / "u.nii.gz", result / written))
    np.testing.assert_array_equal(here.data, there.data)
    np.testing.assert_array_equal(here.affine, there.affine)


@pytest.mark.skipif(not DATA.is_dir(), reason="KUNITA_DATA is not set: no real data")
def test_raters_are_pooled_into_their_middle_with_covariances(tmp_path):
    files = sorted((DATA / "afids_dbs" / "sub-115").glob("*.fcsv"))
    ended = kunita_command("pool", *files, "--out", tmp_path / "p.mrk.json", "--json")
    document = json.loads(ended.out)
    assert (ended.status, document["n_raters"], document["n_landmarks"]) == (0, 5, 32)
    pooled, raters = (
        read_landmarks(tmp_path / "p.mrk.json"),
        [read_landmarks(file) for file in files],
    )
    marks = np.stack([[r.points[r.names.index(name)] for name in pooled.names] for r in raters])
    away = np.linalg.norm(pooled.points - np.median(marks, axis=0), axis=1)
    assert np.median(away) < 0.5
    assert np.all(np.linalg.eigvalsh(pooled.covariances) > 0)
    single = kunita_command(
        "pool", *files, "--out", tmp_path / "q.csv", "--json", "--spread", "rater"
    )
    assert (
        json.loads(single.out)["sd_mm"] > 1.5 * document["sd_mm"]
    )  # √5 times, less what is shrunk


WRITABLE = {"mrk.json": "a.mrk.json", "fcsv": "a.fcsv", "tag": "a.tag", "csv": "a.csv", "tsv": "a.tsv",
            "ants": "a_ants.csv", "elastix": "a.pts"}  # fmt: skip
READ_BACK = {"elastix": ("--from", "LPS")}
"""The form of a .pts file does not tell its frame."""


@pytest.mark.parametrize(("first", "second"), list(itertools.permutations(WRITABLE, 2)))
def test_points_survive_conversion_between_any_two_formats(first, second, case, tmp_path):
    one, two, back = (tmp_path / folder for folder in ("one", "two", "back"))
    for folder in (one, two, back):
        folder.mkdir()
    steps = (
        (case / "moving.csv", one / WRITABLE[first], ("--to", first)),
        (
            one / WRITABLE[first],
            two / WRITABLE[second],
            ("--to", second, *READ_BACK.get(first, ())),
        ),
        (two / WRITABLE[second], back / "b.csv", READ_BACK.get(second, ())),
    )
    for source, goal, options in steps:
        ended = kunita_command("convert", source, goal, *options, "--quiet")
        assert ended.status == 0, ended.err
    np.testing.assert_allclose(
        read_landmarks(back / "b.csv").points, landmarks()[0].points, atol=2e-4
    )


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz", ".nrrd", ".mha"])
def test_images_survive_conversion(suffix, case, tmp_path):
    ended = kunita_command("convert", case / "moving.nii.gz", tmp_path / f"i{suffix}", "--json")
    assert (ended.status, json.loads(ended.out)["n"]) == (0, np.prod(SHAPE))
    here, there = (
        kunita.read_image(tmp_path / f"i{suffix}"),
        kunita.read_image(case / "moving.nii.gz"),
    )
    np.testing.assert_array_equal(here.data, there.data)
    np.testing.assert_allclose(here.affine, there.affine, atol=1e-5)


def test_a_mesh_is_converted_to_the_frame_that_is_asked_for(case, tmp_path):
    assert (
        kunita_command("convert", case / "mesh.vtk", tmp_path / "m.ply", "--to", "LPS").status == 0
    )
    np.testing.assert_allclose(
        points_in_ply(tmp_path / "m.ply"), points_in(case / "mesh.vtk"), atol=1e-4
    )


def points_in_ply(path):
    return read_geometry(path).points


def test_conversion_says_what_a_format_cannot_hold(case, tmp_path):
    ended = kunita_command("convert", case / "moving.csv", tmp_path / "a.pts")
    assert ended.status == 0
    assert ended.err.startswith("kunita: warning: ")
    assert "names" in ended.err


INFO = {
    "moving.mrk.json": "landmarks", "both.tag": "landmarks", "moving.nii.gz": "image", "mesh.vtk": "mesh",
    "lines.trk": "streamlines",
}  # fmt: skip


@pytest.mark.parametrize(("name", "kind"), INFO.items())
def test_info_says_what_a_file_is(name, kind, case):
    ended = kunita_command("info", case / name, "--json")
    assert (ended.status, ended.err, json.loads(ended.out)["kind"]) == (0, "", kind)
    spoken = kunita_command("info", case / name)
    assert kind in spoken.out


def test_info_gives_a_file_s_numbers_in_its_own_frame(case):
    (stored,) = json.loads(kunita_command("info", case / "moving.mrk.json", "--json").out)[
        "volumes"
    ]
    points = landmarks()[0].points * [-1, -1, 1]
    assert stored["frame"].startswith("LPS")
    np.testing.assert_allclose(stored["from_mm"], points.min(axis=0), atol=1e-5)
    assert json.loads(kunita_command("info", case / "moving.nii.gz", "--json").out)["axes"] == "LAS"


def test_info_tells_a_registration_and_a_transform(result):
    for path in (result, result / "registration.h5"):
        document = json.loads(kunita_command("info", path, "--json").out)
        assert document["kind"] == "registration"
        assert "16 landmarks in 3-D" in document["summary"][0]
    assert (
        json.loads(kunita_command("info", result / "forward_xfm.h5", "--json").out)["kind"]
        == "ITK transform"
    )


@pytest.mark.parametrize("suffix", [".mat", ".txt", ".tfm"])
def test_info_gives_the_matrix_of_a_linear_transform(suffix, tmp_path):
    """Binary or text, between points as the file has them."""
    path = tmp_path / f"start{suffix}"
    shift = sitk.TranslationTransform(3, (4.0, 5.0, 6.0))
    sitk.WriteTransform(shift, str(path))
    ended = kunita_command("info", path, "--json")
    assert (ended.status, ended.err) == (0, "")
    document = json.loads(ended.out)
    assert (document["kind"], document["frame"]) == ("ITK transform", "LPS")
    assert "from fixed to moving" in document["maps"]
    expected = np.eye(4)
    expected[:3, 3] = (4, 5, 6)
    np.testing.assert_allclose(document["matrix"], expected, atol=1e-12)


def test_info_refuses_a_file_that_is_called_like_a_transform_in_one_line(tmp_path):
    path = tmp_path / "other.mat"
    path.write_bytes(b"MATLAB 5.0 MAT-file" + bytes(200))
    ended = kunita_command("info", path)
    assert (ended.status, ended.out) == (2, "")
    assert "not an ITK transform" in ended.err
    assert ended.err.count("\n") == 1


def test_no_command_changes_the_result_it_reads(case, result, tmp_path):
    before = contents(result)
    with warnings.catch_warnings():
        warnings.simplefilter("error", KunitaWarning)
        kunita_command("predict", result, case / "moving.csv", "--out", tmp_path / "p.csv")
        kunita_command("info", result)
    assert contents(result) == before
