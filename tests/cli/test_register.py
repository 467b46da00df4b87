"""`kunita register`: every file that is promised, and what it says on the way."""

import csv
import json
import math
import os
import pathlib

import numpy as np
import pytest

import kunita
from cli.cases import (
    GRID,
    KERNEL,
    NAMES,
    SHAPE,
    contents,
    images,
    kunita_command,
    landmarks,
    write_flat_case,
)
from kunita.data.geometry import Mesh, cells_of
from kunita.errors import ExitStatus, Outcome
from kunita.io.geometry_files.files import write_geometry

DATA = pathlib.Path(os.environ.get("KUNITA_DATA", "absent"))

FILES = {
    "registration.h5", "summary.json", "landmarks.csv", "predicted.mrk.json", "load_in_slicer.py", "overview.png",
    "report.html", "forward_xfm.h5", "inverse_xfm.h5", "forward_xfm.nrrd", "inverse_xfm.nrrd", "forward_xfm.nii.gz",
    "inverse_xfm.nii.gz", "warped.nii.gz", "uncertainty_fc.nii.gz", "uncertainty_std.nii.gz",
    "uncertainty_radius.nii.gz", "uncertainty_cov.nii.gz", "jacobian.nii.gz", "labels_probability.nii.gz",
    "targets.mrk.json", "targets.csv",
}  # fmt: skip
SUMMARY = {
    "version", "model", "kernel", "noise_mm", "align", "pairing", "n_landmarks", "initial_error_mm", "residual_mm",
    "fle_mm", "fre_mm", "loo", "evidence", "energy", "converged", "iterations", "min_jacobian", "suspects", "targets",
    "warnings", "seconds", "dense", "low_rank",
    "expected", "inputs", "software", "command", "created",
}  # fmt: skip
COLUMNS = [
    "name", *(f"{side}_{axis}" for side in ("moving", "fixed", "predicted") for axis in "xyz"),
    "cov_xx", "cov_xy", "cov_xz", "cov_yy", "cov_yz", "cov_zz", "residual", "loo_error", "loo_chi2", "weight",
    "suspect", "suspicion", "known",
]  # fmt: skip


def read_rows(path):
    first, *lines = path.read_text(encoding="utf-8").splitlines()
    return first, list(csv.DictReader(lines))


def columns(rows, *names):
    return np.array([[float(row[name]) for name in names] for row in rows])


def test_every_promised_file_appears_and_nothing_else(result):
    assert set(contents(result)) == FILES


def test_json_is_one_document_on_standard_output_the_same_as_the_summary(result, ended):
    printed = json.loads(ended.out)
    assert printed.pop("out") == str(result)
    assert printed == json.loads((result / "summary.json").read_text(encoding="utf-8"))


def test_the_summary_has_every_promised_key_and_agrees_with_the_record(result):
    summary, reg = (
        json.loads((result / "summary.json").read_text()),
        kunita.load(result / "registration.h5"),
    )
    assert set(summary) >= SUMMARY
    assert summary["kernel"]["family"] == "Gaussian"
    assert [
        summary["kernel"][f"{what}_mm"] for what in ("length_scale", "amplitude")
    ] == pytest.approx([25.0, 4.0])
    assert (summary["model"], summary["align"], summary["pairing"]) == ("endpoint", "rigid", "name")
    assert (summary["noise_mm"], summary["n_landmarks"], summary["converged"]) == (
        pytest.approx(0.7),
        16,
        True,
    )
    assert summary["version"] == kunita.__version__
    assert 0 < summary["residual_mm"] < summary["loo"]["error_mm"] < summary["initial_error_mm"]
    assert list(summary["loo"]["coverage"]) == ["50", "80", "90", "95", "99"]
    assert np.all(np.diff(list(summary["loo"]["coverage"].values())) >= 0)
    assert 0 < summary["min_jacobian"] <= 1.5
    assert summary["dense"]["mean_error_mm"] <= 0.01
    assert summary["dense"]["fc_relative_error"] <= 0.01
    assert (summary["evidence"], summary["energy"]) == (reg.evidence, reg.energy)
    assert summary["iterations"] == reg.iterations > 0
    assert set(summary["files"]) == FILES
    assert (summary["suspects"], summary["warnings"]) == ([], [])


def test_targets_in_the_summary_are_the_posterior_s_own(result, case):
    targets = json.loads((result / "summary.json").read_text())["targets"]
    points = kunita.read_landmarks(case / "targets.csv")
    found = kunita.load(result / "registration.h5").posterior.predict(points.points)
    assert [target["name"] for target in targets] == list(points.names)
    np.testing.assert_allclose([target["position"] for target in targets], found.mean, atol=1e-9)
    np.testing.assert_allclose(
        [target["radius95_mm"] for target in targets], found.radius(0.95), rtol=1e-9
    )
    np.testing.assert_allclose(
        kunita.read_landmarks(result / "targets.mrk.json").points, found.mean, atol=1e-5
    )


def test_targets_are_described_in_the_words_of_the_field_in_the_summary_and_in_a_table(
    result, case
):
    """FLE and FRE are root mean squares over the landmarks, the predicted TRE of a target is √(tr
    C)."""
    summary, reg = (
        json.loads((result / "summary.json").read_text()),
        kunita.load(result / "registration.h5"),
    )
    targets, points = summary["targets"], kunita.read_landmarks(case / "targets.csv").points
    assert summary["fle_mm"] == pytest.approx(np.sqrt(3) * 0.7)
    residuals = reg.fixed.points - reg.posterior.predict(reg.moving.points).mean
    assert summary["fre_mm"] == pytest.approx(np.sqrt(np.mean(np.sum(residuals**2, axis=1))))
    covariances = reg.posterior.predict(points).covariance
    np.testing.assert_allclose([t["covariance"] for t in targets], covariances, rtol=1e-9)
    np.testing.assert_allclose(
        [t["tre_mm"] ** 2 for t in targets], np.trace(covariances, axis1=1, axis2=2)
    )
    assert [t["nearest_mm"] for t in targets] == pytest.approx(
        [np.sqrt(12.0)] * 3
    )  # each is 2 mm off in x, y and z
    assert [t["nearest"] for t in targets] == list(NAMES[:3])
    assert [t["in_sigma"] for t in targets] == pytest.approx([np.sqrt(12.0) / 25] * 3)
    assert {(t["inside_hull"], t["extrapolates"]) for t in targets} <= {
        (True, False),
        (False, False),
    }
    first, rows = read_rows(result / "targets.csv")
    assert "CoordinateSystem = RAS" in first
    assert [row["name"] for row in rows] == ["a", "b", "c"]
    np.testing.assert_allclose(columns(rows, "tre_mm")[:, 0], [t["tre_mm"] for t in targets])
    again = kunita.read_landmarks(result / "targets.csv")  # and it is a file of landmarks
    np.testing.assert_array_equal(again.points, [t["position"] for t in targets])


def test_the_console_shows_targets_and_that_a_small_residual_is_no_promise(case, tmp_path):
    far = kunita.Landmarks([[0.0, 60.0, 0.0], [0.0, 60.0, 300.0]], ["near", "far"])
    kunita.write_landmarks(tmp_path / "targets.csv", far)
    more = (*images(case), "--targets", tmp_path / "targets.csv")
    ended = kunita_command("register", case / "both.tag", "--out", tmp_path / "r", *KERNEL, *more)
    shown = {line.split()[0]: line for line in ended.out.splitlines() if "length scales" in line}
    assert "extrapolates" in shown["far"]
    assert "extrapolates" not in shown["near"]
    assert "a small FRE says little about the TRE" in ended.out
    assert "target 'far' is an extrapolation" in ended.err
    assert (
        "target 'far' is an extrapolation"
        in json.loads((tmp_path / "r" / "summary.json").read_text())["warnings"][0]
    )


def test_a_mesh_says_how_much_of_it_is_extrapolated(case, tmp_path):
    points = np.concatenate([landmarks()[0].points[:3], landmarks()[0].points[:1] + 500.0])
    write_geometry(
        tmp_path / "mesh.vtk", Mesh(points, faces=cells_of(np.array([[0, 1, 2], [1, 2, 3]])))
    )
    more = (*images(case), "--targets", tmp_path / "mesh.vtk")
    ended = kunita_command(
        "register", case / "both.tag", "--out", tmp_path / "r", *KERNEL, *more, "--json"
    )
    (target,) = json.loads(ended.out)["targets"]
    assert (target["n"], target["extrapolating"]) == (4, 0.25)
    assert "25 % of the vertices are extrapolations" in ended.err


def test_landmark_rows_have_the_promised_columns_state_their_frame_and_hold_the_posterior(result):
    first, rows = read_rows(result / "landmarks.csv")
    moving, fixed = landmarks()
    found = kunita.load(result / "registration.h5").posterior.predict(moving.points)
    assert first.startswith("#")
    assert "CoordinateSystem = RAS" in first
    assert list(rows[0]) == COLUMNS
    assert [row["name"] for row in rows] == list(NAMES)
    for side, points in (
        ("moving", moving.points),
        ("fixed", fixed.points),
        ("predicted", found.mean),
    ):
        np.testing.assert_allclose(
            columns(rows, *(f"{side}_{axis}" for axis in "xyz")), points, atol=1e-6
        )
    upper = np.triu_indices(3)
    np.testing.assert_allclose(
        columns(rows, *COLUMNS[10:16]), found.covariance[:, *upper], atol=1e-7
    )
    residuals = np.linalg.norm(fixed.points - found.mean, axis=1)
    np.testing.assert_allclose(columns(rows, "residual")[:, 0], residuals, atol=1e-6)
    assert np.all(columns(rows, "loo_error", "loo_chi2") > 0)


def test_maps_are_on_the_fixed_grid_and_agree_with_the_posterior_at_voxels(result):
    reg = kunita.load(result / "registration.h5")
    index = np.array([[5, 6, 7], [10, 9, 8], [14, 12, 4]])
    arrived = reg.posterior.predict(reg.posterior.inverse(GRID.world(index)).mean)
    maps = {
        what: kunita.read_image(result / f"uncertainty_{what}.nii.gz")
        for what in ("fc", "std", "radius")
    }
    for image in maps.values():
        assert image.grid.shape == SHAPE
        np.testing.assert_allclose(image.affine, GRID.affine, atol=1e-5)
    for what, exact in (
        ("fc", arrived.frobenius),
        ("std", arrived.std),
        ("radius", arrived.radius(0.95)),
    ):
        np.testing.assert_allclose(
            maps[what].data[tuple(index.T)], exact, rtol=0.03
        )  # splines may add 0.01 mm


def test_labels_become_probabilities_with_the_label_s_own_volume(result):
    probability = kunita.read_image(result / "labels_probability.nii.gz").data
    assert 0 <= probability.min() < probability.max() <= 1
    jacobian = kunita.read_image(result / "jacobian.nii.gz").data
    assert np.sum(probability / jacobian) == pytest.approx(
        6 * 6 * 5, rel=0.1
    )  # expanded tissue fills more voxels


@pytest.mark.parametrize(
    "pair", [("moving.csv", "fixed.csv"), ("moving.tag", "fixed.mrk.json"), ("both.tag",)]
)
def test_the_same_points_in_other_files_give_the_same_registration(pair, case, result, tmp_path):
    sides = [case / name for name in pair]
    ended = kunita_command(
        "register", *sides, "--out", tmp_path / "r", *KERNEL, "--quiet", *images(case)
    )
    assert (ended.status, ended.out, ended.err) == (0, "", "")
    points = landmarks()[0].points
    here, there = (
        kunita.load(out / "registration.h5").posterior.predict(points)
        for out in (tmp_path / "r", result)
    )
    np.testing.assert_allclose(here.mean, there.mean, atol=1e-4)


def test_volumes_swap_the_sides(case, tmp_path):
    ended = kunita_command(
        "register",
        case / "both.tag",
        "--out",
        tmp_path / "r",
        "--volumes",
        "2,1",
        *KERNEL,
        *images(case),
    )
    assert ended.status == 0
    reg = kunita.load(tmp_path / "r" / "registration.h5")
    moving, fixed = landmarks()
    np.testing.assert_allclose(reg.moving.points, fixed.points, atol=1e-5)
    np.testing.assert_allclose(reg.fixed.points, moving.points, atol=1e-5)


def test_volumes_choose_from_two_files_too(case, tmp_path):
    words = (
        "register",
        case / "both.tag",
        case / "fixed.csv",
        "--out",
        tmp_path / "r",
        *KERNEL,
        *images(case),
    )
    refused = kunita_command(*words)
    assert refused.status == ExitStatus.REFUSED
    assert "--volumes" in refused.err
    assert kunita_command(*words, "--volumes", "1,1").status == 0


def test_a_registration_without_images_writes_no_maps_and_replaces_a_result_with_all_of_its_files(
    case, tmp_path
):
    out = tmp_path / "r"
    sides = ("register", case / "moving.csv", case / "fixed.csv", "--out", out, *KERNEL)
    assert kunita_command(*sides, *images(case)).status == 0
    (out / "mine.txt").write_text("the user's own")
    assert kunita_command(*sides, "--overwrite").status == 0
    kept = {"registration.h5", "summary.json", "landmarks.csv", "predicted.mrk.json", "load_in_slicer.py",
            "forward_xfm.h5", "inverse_xfm.h5", "report.html", "mine.txt"}  # fmt: skip
    assert set(contents(out)) == kept


def test_progress_goes_to_standard_error_and_the_answer_to_standard_output(case, tmp_path):
    ended = kunita_command(
        "register", case / "both.tag", "--out", tmp_path / "r", *KERNEL, *images(case)
    )
    assert ended.out.startswith("Registration of 16 landmarks in 3-D")
    assert "16 landmarks, RAS (the format's default)" in ended.err


def test_landmarks_outside_their_image_are_named_with_their_distance_and_kept_in_the_summary(
    case, tmp_path
):
    moving, fixed = landmarks()
    top = GRID.world(np.array(SHAPE) - 1.0)
    points = fixed.points.copy()
    points[3] = (
        points[3][0],
        points[3][1],
        top[2] + 0.5 * 3.5 + 4.0,
    )  # half a voxel belongs to the image
    kunita.write_landmarks(tmp_path / "f.csv", kunita.Landmarks(points, NAMES))
    kunita.write_landmarks(
        tmp_path / "m.csv", kunita.Landmarks(moving.points + points - fixed.points, NAMES)
    )
    ended = kunita_command(
        "register", tmp_path / "m.csv", tmp_path / "f.csv", "--out", tmp_path / "r", *KERNEL, "--no-report",
        "--fixed-image", case / "fixed.nii.gz", "--quiet",
    )  # fmt: skip
    (remark,) = json.loads((tmp_path / "r" / "summary.json").read_text())["warnings"]
    assert ended.status == 0
    assert ended.err == f"kunita: warning: {remark}\n"
    assert f"{NAMES[3]} by 4.0 mm" in remark
    assert "1 of 16" in remark


def test_a_fit_that_did_not_converge_exits_3_and_its_files_are_written_and_marked(
    case, tmp_path, monkeypatch
):
    """The registration is a true one whose outcome was changed: nothing that stalls does so in a
    short time."""
    import dataclasses

    import kunita.registration

    fit = kunita.registration.register
    stalled = lambda *sides, **given: dataclasses.replace(
        fit(*sides, **given), outcome=Outcome.STALLED
    )
    monkeypatch.setattr(kunita.registration, "register", stalled)
    ended = kunita_command(
        "register", case / "both.tag", "--out", tmp_path / "r", *KERNEL, *images(case)
    )
    assert ended.status == ExitStatus.NOT_CONVERGED
    assert "NOT CONVERGED" in ended.out
    assert json.loads((tmp_path / "r" / "summary.json").read_text())["converged"] is False
    assert not kunita.load(tmp_path / "r" / "registration.h5").converged


def test_a_bug_shows_its_traceback_exits_1_and_leaves_nothing(case, tmp_path, monkeypatch):
    import kunita.registration

    monkeypatch.setattr(kunita.registration, "register", lambda *sides, **given: 1 / 0)
    ended = kunita_command(
        "register", case / "both.tag", "--out", tmp_path / "r", *KERNEL, *images(case)
    )
    assert ended.status == ExitStatus.BUG
    assert "Traceback" in ended.err
    assert list(tmp_path.iterdir()) == []


def test_a_pair_of_colour_pictures_end_to_end(tmp_path):
    write_flat_case(tmp_path)
    sides = tmp_path / "moving.csv", tmp_path / "fixed.csv"
    pictures = ("--moving-image", tmp_path / "moving.png", "--fixed-image", tmp_path / "fixed.png")
    more = ("--labels", tmp_path / "labels.png", "--targets", tmp_path / "moving.csv", "--cov")
    ended = kunita_command(
        "register", *sides, "--out", tmp_path / "r", *pictures, *more, *KERNEL, "--spacing", "0.5"
    )
    assert ended.status == 0, ended.err
    names = {f"uncertainty_{what}.tif" for what in ("fc", "std", "radius", "cov")} | {
        "jacobian.tif",
        "warped.tif",
    }
    names |= {"labels_probability.tif", "overview.png", "targets.csv", "predicted.csv"}
    assert names < set(contents(tmp_path / "r"))
    reg = kunita.load(tmp_path / "r" / "registration.h5")
    assert np.ptp(reg.moving.points) < 17  # 33 pixels of half a millimetre
    warped = kunita.read_image(tmp_path / "r" / "warped.tif", spacing=0.5)
    moving, fixed = (
        kunita.read_image(tmp_path / f"{side}.png", spacing=0.5) for side in ("moving", "fixed")
    )
    expected = kunita.warp_image(reg, moving, fixed)
    assert_same_picture(warped.data, expected.data)
    mass = kunita.read_image(tmp_path / "r" / "labels_probability.tif").data.sum()
    assert mass == pytest.approx(15 * 12, rel=0.5)
    first, rows = read_rows(tmp_path / "r" / "landmarks.csv")
    assert "CoordinateSystem = IMAGE" in first
    assert "fixed_z" not in rows[0]
    again = kunita_command("warp", tmp_path / "r", tmp_path / "moving.png", "--spacing", "0.5", "--out",
                           tmp_path / "again.png")  # fmt: skip
    assert again.status == 0, again.err
    assert_same_picture(kunita.read_image(tmp_path / "again.png").data, warped.data)


def assert_same_picture(one, other):
    """Maps agree to 0.002 mm however they were computed: rounded to whole grey levels, a few pixels
    differ by one."""
    difference = np.abs(one.astype(int) - other.astype(int))
    assert difference.max() <= 1
    assert np.mean(difference > 0) < 0.005


@pytest.mark.skipif(not DATA.is_dir(), reason="KUNITA_DATA is not set: no real data")
@pytest.mark.parametrize("suffix", [pytest.param(".csv", marks=pytest.mark.slow), ".pts"])
def test_histology_is_registered_from_its_real_files(suffix, tmp_path):
    stem = DATA / "histology_2d" / "Izd2-29-041-w35"
    frame = ("--frame", "IMAGE") if suffix == ".pts" else ()
    ended = kunita_command(
        "register", f"{stem}_HE{suffix}", f"{stem}_proSPC{suffix}", "--out", tmp_path / "r", *frame, "--json",
        "--align", "affine", "--length-scale", "150", "--amplitude", "10", "--noise", "3",
        *(("--fixed-image", f"{stem}_proSPC.jpg", "--moving-image", f"{stem}_HE.jpg") if suffix == ".csv" else ()),
    )  # fmt: skip
    summary = json.loads(ended.out)
    assert ended.status == 0
    assert summary["n_landmarks"] == 78
    assert summary["loo"]["error_mm"] < 0.5 * summary["initial_error_mm"]
    assert math.isfinite(summary["loo"]["nll"])
    assert summary["min_jacobian"] > 0


@pytest.mark.skipif(not DATA.is_dir(), reason="KUNITA_DATA is not set: no real data")
def test_a_real_case_read_in_the_wrong_frame_is_refused_with_the_right_one(tmp_path):
    folder = DATA / "resect"
    for volume in ("1", "2"):
        words = (
            "convert",
            folder / "Case24-MRI-beforeUS.tag",
            tmp_path / f"{volume}.csv",
            "--volume",
            volume,
        )
        assert kunita_command(*words).status == 0
    stated = (tmp_path / "1.csv").read_text()
    (tmp_path / "wrong.csv").write_text(stated.replace("RAS", "LPS"))
    words = ("--out", tmp_path / "r", "--moving-image", folder / "Case24-MRI.nii.gz")
    ended = kunita_command("register", tmp_path / "wrong.csv", tmp_path / "2.csv", *words)
    assert ended.status == ExitStatus.REFUSED
    assert "these look like RAS" in ended.err
    assert "correct the file, which states LPS" in ended.err


def test_a_map_that_folds_gives_all_that_can_be_given_and_says_what_cannot(tmp_path):
    """The small-deformation model may fold: then fixed points have no pre-image, and the rest is
    still worth having."""
    rng = np.random.default_rng(1)
    points, names = rng.uniform(0, 60, (16, 2)), [f"L{i}" for i in range(16)]
    for name, marked in (("a", points), ("b", points + 15 * rng.normal(size=points.shape))):
        kunita.write_landmarks(tmp_path / f"{name}.csv", kunita.Landmarks(marked, names))
    files = [str(tmp_path / "a.csv"), str(tmp_path / "b.csv"), "--out", str(tmp_path / "out")]
    kernel = ["--length-scale", "25", "--amplitude", "15", "--noise", "0.7", "--model", "small"]
    ended = kunita_command("register", *files, *kernel)
    assert ended.status == ExitStatus.DONE
    assert "no forward_xfm" in ended.err
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"registration.h5", "summary.json", "landmarks.csv", "inverse_xfm.h5"} <= written
    assert "forward_xfm.h5" not in written


@pytest.mark.slow
@pytest.mark.skipif("KUNITA_DATA" not in os.environ, reason="KUNITA_DATA is not set: no real data")
def test_a_real_case_goes_from_its_three_files_to_all_outputs(tmp_path):
    """RESECT, case 24: it starts at 1.10 mm, and a rigid alignment alone misses left-out landmarks
    by 0.95 mm."""
    folder = DATA / "resect"
    images = (
        "--moving-image",
        folder / "Case24-MRI.nii.gz",
        "--fixed-image",
        folder / "Case24-US.nii.gz",
    )
    ended = kunita_command(
        "register", folder / "Case24-MRI-beforeUS.tag", "--out", tmp_path / "r", *images, "--json"
    )
    assert ended.status == ExitStatus.DONE
    summary = json.loads(ended.out)
    assert summary["n_landmarks"] == 16
    assert abs(summary["initial_error_mm"] - 1.10) < 0.005
    assert summary["residual_mm"] < 0.6
    assert summary["loo"]["error_mm"] < 0.95
    assert summary["min_jacobian"] > 0
    warped, fixed = (
        kunita.read_image(path) for path in (tmp_path / "r" / "warped.nii.gz", images[3])
    )
    assert np.allclose(warped.affine, fixed.affine, atol=1e-5)
    radius = kunita.read_image(tmp_path / "r" / "uncertainty_radius.nii.gz").data
    assert 0.3 < radius.min() < radius.max() < 3
