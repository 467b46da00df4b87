"""Landmark files from public collections, which hold what nobody would have made up."""

import os
import pathlib
import re

import numpy as np
import pytest

from kunita.io.landmark_files.files import read_landmarks, read_tables, write_landmarks

DATA = pathlib.Path(os.environ.get("KUNITA_DATA", "absent"))
pytestmark = pytest.mark.skipif(
    not DATA.is_dir(), reason="KUNITA_DATA does not name the folder of real data"
)


def test_all_resect_tags_hold_two_volumes_as_a_plain_search_for_numbers_finds_them():
    paths = sorted((DATA / "resect").glob("*.tag"))
    assert len(paths) == 10
    for path in paths:
        moving, fixed = read_tables(path)
        rows = re.findall(r'^ (.*) ""', path.read_text(), re.MULTILINE)
        expected = np.array([[float(word) for word in row.split()] for row in rows])
        np.testing.assert_array_equal(np.hstack([moving.points, fixed.points]), expected)
        assert 15 <= len(moving) <= 16
        assert moving.names_problem == "no row has a name"
        assert (moving.frame.value, moving.stated) == ("RAS", "the format's default")


def test_the_first_numbers_of_a_resect_case_are_known():
    path = DATA / "resect" / "Case14-MRI-beforeUS.tag"
    assert read_landmarks(path, volume=1).points[0].tolist() == [-26.037182, 72.671936, -28.313982]
    assert read_landmarks(path, volume=2).points[0].tolist() == [-25.375485, 71.861204, -31.668054]


def test_all_afids_files_have_the_labels_1_to_32_in_ras():
    paths = sorted((DATA / "afids_dbs").rglob("*.fcsv"))
    assert len(paths) == 101
    for path in paths:
        (table,) = read_tables(path)
        assert (table.frame.value, table.stated) == ("RAS", "stated in the file")
        assert sorted(map(int, table.landmarks().names)) == list(range(1, 33))
        rows = [
            line.split(",")
            for line in path.read_text().splitlines()
            if line.strip() and line[0] != "#"
        ]
        np.testing.assert_array_equal(
            table.points, np.array([row[1:4] for row in rows], dtype=float)
        )


def test_a_label_is_the_name_and_the_anatomy_its_description():
    (table,) = read_tables(DATA / "afids_dbs" / "MNI152NLin2009cAsym_desc-standard_afids.fcsv")
    assert dict(zip(table.names, table.descriptions, strict=True))["1"] == "AC"


@pytest.mark.parametrize("stem", ["Izd2-29-041-w35_HE", "Izd2-29-041-w35_proSPC"])
def test_histology_csv_and_pts_load_equal(stem):
    table = read_landmarks(DATA / "histology_2d" / f"{stem}.csv")
    points = read_landmarks(DATA / "histology_2d" / f"{stem}.pts", frame="IMAGE")
    assert len(table) == len(points) == 78
    np.testing.assert_array_equal(table.points, points.points)
    assert table.names is None


@pytest.mark.parametrize("ending", [".mrk.json", ".csv", ".tsv", ".fcsv"])
def test_a_real_table_survives_conversion(tmp_path, ending):
    (table,) = read_tables(DATA / "afids_dbs" / "MNI152NLin2009cAsym_desc-standard_afids.fcsv")
    write_landmarks(tmp_path / f"a{ending}", table)
    (found,) = read_tables(tmp_path / f"a{ending}")
    np.testing.assert_array_equal(found.points, table.points)
    assert (found.names, found.descriptions) == (table.names, table.descriptions)
