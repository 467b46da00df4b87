"""A cohort's table: the same cases however they are stored, and one clear line where it cannot be
read."""

import os
import pathlib

import numpy as np
import pytest

from kunita.data.image import Image
from kunita.data.landmarks import Landmarks
from kunita.data.raters import pool_raters
from kunita.errors import FileError, KunitaWarning
from kunita.io.case_table import read_case_table, read_cases
from kunita.io.image_files.files import write_image
from kunita.io.landmark_files.files import write_landmarks

RNG = np.random.default_rng(0)
POINTS = RNG.uniform(0, 60, (7, 3))
NAMES = tuple(f"p{i}" for i in range(7))
MOVING, FIXED = Landmarks(POINTS, NAMES), Landmarks(POINTS + RNG.normal(size=(7, 3)), NAMES)


def table(folder, *rows, header=("case", "moving", "fixed")):
    path = folder / "cases.tsv"
    path.write_text("\n".join("\t".join(row) for row in (header, *rows)) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def folder(tmp_path):
    """One case as two files, as one file of two volumes, and with images."""
    (tmp_path / "sub").mkdir()
    write_landmarks(tmp_path / "sub/m.mrk.json", MOVING)
    write_landmarks(tmp_path / "sub/f.fcsv", FIXED)
    write_landmarks(tmp_path / "both.tag", [MOVING, FIXED])
    write_landmarks(tmp_path / "few.tag", [side.take([0, 1, 2, 3]) for side in (MOVING, FIXED)])
    write_landmarks(tmp_path / "flat.csv", Landmarks(POINTS[:, :2], NAMES))
    image = Image(np.arange(64.0).reshape(4, 4, 4), np.diag([20.0, 20, 20, 1]))
    write_image(tmp_path / "image.nii.gz", image)
    return tmp_path


@pytest.mark.parametrize(
    "row",
    [("a", "sub/m.mrk.json", "sub/f.fcsv"), ("a", "both.tag", ""), ("a", "both.tag", "both.tag")],
    ids=["two files", "two volumes", "the same path twice"],
)
def test_a_case_is_the_same_however_it_is_stored(folder, row):
    (case,) = read_cases(table(folder, row))
    assert case.name == "a"
    np.testing.assert_allclose(case.moving.points, MOVING.points, atol=1e-6)
    np.testing.assert_allclose(case.fixed.points, FIXED.points, atol=1e-6)


def test_paths_are_relative_to_the_table_not_to_where_one_stands(folder, monkeypatch):
    path = table(folder, ("a", "both.tag", ""))
    monkeypatch.chdir(folder / "sub")
    assert len(read_cases(os.path.relpath(path))) == 1


def test_several_raters_are_pooled_side_by_side(folder):
    draws = np.random.default_rng(2)
    raters = [
        [
            Landmarks(side.points + draws.normal(scale=0.5, size=(7, 3)), NAMES)
            for side in (MOVING, FIXED)
        ]
        for _ in range(3)
    ]
    for k, sides in enumerate(raters):
        write_landmarks(folder / f"r{k}.tag", sides)
        write_landmarks(folder / f"m{k}.csv", sides[0])
    with pytest.warns(KunitaWarning, match=r"1 mark\(s\) far from the other raters', such as 'p4'"):
        (case,) = read_cases(table(folder, ("a", "r0.tag; r1.tag;r2.tag", "")))
    for side, found in enumerate((case.moving, case.fixed)):
        expected = pool_raters([sides[side] for sides in raters])
        np.testing.assert_allclose(found.points, expected.points, atol=1e-6)
        np.testing.assert_allclose(found.covariances, expected.covariances, rtol=1e-4)
    with pytest.warns(KunitaWarning, match="far from the other raters"):
        (mixed,) = read_cases(table(folder, ("a", "m0.csv;m1.csv;m2.csv", "sub/f.fcsv")))
    np.testing.assert_allclose(mixed.moving.points, case.moving.points, atol=1e-6)
    assert mixed.fixed.covariances is None


def test_landmarks_without_a_partner_are_left_out_and_named(folder):
    write_landmarks(folder / "six.fcsv", FIXED.take(range(6)))
    with pytest.warns(KunitaWarning, match="a: 1 landmarks have no partner.*p6"):
        (case,) = read_cases(table(folder, ("a", "sub/m.mrk.json", "six.fcsv")))
    assert len(case) == 6


def test_images_are_read_for_the_first_case_that_has_both(folder):
    header = ("case", "moving", "fixed", "moving_image", "fixed_image")
    rows = [
        ("a", "both.tag", "", "", ""),
        ("b", "both.tag", "", "image.nii.gz", "image.nii.gz"),
        ("c", "both.tag", "", "image.nii.gz", "image.nii.gz"),
    ]
    path = table(folder, *rows, header=header)
    assert [case.has_images for case in read_cases(path)] == [False, True, False]
    assert [files.has_images for files in read_case_table(path)] == [False, True, True]


@pytest.mark.parametrize(
    ("files", "names"),
    [
        (("MRI.v2.nii.gz", "sub/US.nii"), ("MRI.v2", "US")),
        (("image.nii.gz", "sub/image.nii"), ("moving image", "fixed image")),
    ],
)
def test_images_are_called_as_their_files_unless_these_are_called_the_same(folder, files, names):
    for name in files:
        write_image(
            folder / name, Image(np.ones((4, 4, 4)), np.diag([20.0, 20, 20, 1])), overwrite=True
        )
    header = ("case", "moving", "fixed", "moving_image", "fixed_image")
    (case,) = read_cases(table(folder, ("a", "both.tag", "", *files), header=header))
    assert case.image_names == names


def test_labels_are_named_but_not_read(folder):
    (folder / "labels.nii.gz").write_bytes(b"no image")
    header = ("case", "moving", "fixed", "moving_image", "fixed_image", "labels")
    row = ("a", "both.tag", "", "image.nii.gz", "image.nii.gz", "labels.nii.gz")
    path = table(folder, row, header=header)
    assert read_cases(path)[0].has_images
    assert read_case_table(path)[0].labels == folder / "labels.nii.gz"


def test_other_columns_are_passed_over(folder):
    header = ("case", "moving", "fixed", "age", "images", "moving_side")
    assert (
        len(read_cases(table(folder, ("a", "both.tag", "", "61", "many", "left"), header=header)))
        == 1
    )


@pytest.mark.parametrize(
    ("rows", "header", "line", "said"),
    [
        ([], ("case", "moving", "fixed"), 1, "at least one case"),
        ([("a", "both.tag")], ("case", "moving"), 1, "a column 'fixed'"),
        ([("a", "both.tag", "")], ("case", "moving", "fixd"), 1, "'fixed' .did you mean that.., found 'fixd'"),
        (
            [("a", "both.tag", "", "")],
            ("case", "moving", "fixed", "moving_imag"), 1, "'moving_image' .did you mean that.., found 'moving_imag'",
        ),
        ([("a", "both.tag", ""), ("a", "both.tag", "")], None, 3, "not listed above, found 'a'"),
        ([("a", "both.tag", ""), ("b", "absent.tag", "")], None, 3, "a file that exists.*absent.tag"),
        ([("", "both.tag", "")], None, 2, "the name of a case"),
        ([("a", "", "both.tag")], None, 2, "a file of moving landmarks"),
        ([("a", "few.tag", "")], None, 2, "at least 5 pairs of landmarks, found 4"),
        ([("a", "both.tag")], None, 2, "3 columns"),
        ([("a", "both.tag", "", "x;y")], ("case", "moving", "fixed", "labels"), 2, "a file that exists"),
        (
            [("a", "both.tag", "", "image.nii.gz", "")],
            ("case", "moving", "fixed", "moving_image", "fixed_image"), 2, "both a moving_image and a fixed_image",
        ),
        (
            [("a", "both.tag", "", "image.nii.gz;both.tag")],
            ("case", "moving", "fixed", "labels"), 2, "one file in the column 'labels'",
        ),
    ],
)  # fmt: skip
def test_a_table_that_cannot_be_used_is_refused_in_one_line_that_names_the_row(
    folder, rows, header, line, said
):
    path = table(folder, *rows, header=header or ("case", "moving", "fixed"))
    with pytest.raises(FileError, match=said) as refusal:
        read_cases(path)
    assert str(refusal.value).startswith(f"{path}:{line}: ")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (("a", "sub/m.mrk.json", ""), "m.mrk.json: expected two volumes, found 1"),
        (("a", "both.tag", "sub/f.fcsv"), "both.tag: expected one set of landmarks, found 2"),
    ],
)
def test_a_file_with_another_number_of_sides_is_refused_with_the_cure(folder, row, said):
    with pytest.raises(FileError, match=said + ".*'fixed'"):
        read_cases(table(folder, row))


def test_a_file_that_states_no_frame_wants_one(folder):
    rows = "\n".join(f"{name},{x},{y},{z}" for name, (x, y, z) in zip(NAMES, POINTS, strict=True))
    (folder / "bare.csv").write_text(f"name,x,y,z\n{rows}\n")
    (folder / "bare2.csv").write_text(f"name,x,y,z\n{rows}\n")
    path = table(folder, ("a", "bare.csv", "bare2.csv"))
    with pytest.raises(FileError, match="frame"):
        read_cases(path)
    (ras,), (lps,) = read_cases(path, frame="RAS"), read_cases(path, frame="LPS")
    np.testing.assert_allclose(lps.moving.points, ras.moving.points * [-1, -1, 1])


def test_cases_of_two_dimensions_are_no_cohort(folder):
    write_landmarks(folder / "flat2.csv", Landmarks(POINTS[:, :2] + 1, NAMES))
    with pytest.raises(FileError, match="expected 3-D landmarks, as in case 'a', found '2-D'"):
        read_cases(table(folder, ("a", "both.tag", ""), ("b", "flat.csv", "flat2.csv")))


def test_an_absent_or_empty_table_is_refused(tmp_path):
    with pytest.raises(FileError, match="no such file"):
        read_cases(tmp_path / "absent.tsv")
    (tmp_path / "empty.tsv").write_text("")
    with pytest.raises(FileError, match="a table of cases"):
        read_cases(tmp_path / "empty.tsv")


def test_real_cases_are_read_as_they_are_published(tmp_path):
    data = pathlib.Path(os.environ.get("KUNITA_DATA", "absent")) / "resect"
    if not data.is_dir():
        pytest.skip("KUNITA_DATA names no folder with the RESECT cases")
    tags = sorted(data.resolve().glob("Case*.tag"))
    cases = read_cases(table(tmp_path, *((tag.name.split("-")[0], str(tag), "") for tag in tags)))
    assert len(cases) == 10
    assert all(15 <= len(case) <= 16 for case in cases)
    assert np.mean([case.distances.mean() for case in cases]) == pytest.approx(4.30, abs=0.01)
