"""What Kunita writes, it reads back: every format it writes against the same laws."""

import csv
import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kunita.data.landmarks import Landmarks
from kunita.errors import FileError, KunitaWarning, LandmarkError
from kunita.io.landmark_files.files import read_landmarks, read_tables, write_landmarks
from kunita.io.landmark_files.table import LandmarkTable

NOISE = np.array([[2.0, 0.3, -0.4], [0.3, 3.0, 0.5], [-0.4, 0.5, 4.0]])
POINTS = np.array([[1.0, 2.0, 3.0], [-4.5, 5.25, 1e-7], [0.1, -0.2, 1 / 3]])
SET = Landmarks(POINTS, ("a", 'b, "c"', "#µ"), np.array([NOISE, 2 * NOISE, 3 * NOISE]))

WRITTEN = {  # format: (ending, dimensions, what it keeps, how it is read back in 2-D)
    "mrk.json": (".mrk.json", (3,), {"names", "covariances", "descriptions", "undefined"}, {}),
    "csv": (".csv", (2, 3), {"names", "covariances", "descriptions", "undefined"}, {}),
    "tsv": (".tsv", (2, 3), {"names", "covariances", "descriptions", "undefined"}, {}),
    "fcsv": (".fcsv", (3,), {"names", "descriptions"}, {}),
    "tag": (".tag", (3,), {"names"}, {}),
    "ants": (".csv", (2, 3), {"names"}, {"frame": "IMAGE"}),
    "elastix": (".pts", (2, 3), set(), {"frame": "IMAGE"}),
    "birl": (".csv", (2,), set(), {}),
}
CASES = [(name, d) for name, (_, dimensions, _, _) in WRITTEN.items() for d in dimensions]
HYPOTHESIS = settings(
    deadline=None,
    max_examples=15,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

LETTERS = st.sampled_from(",;\"'#%=|\\ \t\u3000\ufeffé漢") | st.characters(
    exclude_categories=("Cc", "Cs")
)
WORDS = st.text(LETTERS, max_size=8).map(lambda word: word.replace("\t", "").strip())


@st.composite
def fields(draw, d, keeps, forbidden=""):
    """The fields of a table that loses nothing in a format that keeps these."""
    n = draw(st.integers(1, 5))
    points = draw(arrays(float, (n, d), elements=st.floats(-1e6, 1e6)))
    words = WORDS.map(lambda word: "".join(c for c in word if c not in forbidden).strip())
    named = "names" in keeps and draw(st.booleans())
    names = (
        draw(st.lists(words.filter(bool), min_size=n, max_size=n, unique=True)) if named else None
    )
    descriptions = (
        draw(st.lists(words, min_size=n, max_size=n)) if "descriptions" in keeps else None
    )
    covariances = None
    if "covariances" in keeps and draw(st.booleans()):
        root = draw(arrays(float, (n, d, d), elements=st.floats(-10, 10)))
        covariances = root @ root.swapaxes(1, 2) + np.eye(d)
        covariances = (covariances + covariances.swapaxes(1, 2)) / 2
    if "undefined" in keeps:
        points[draw(st.lists(st.integers(1, n - 1), unique=True)) if n > 1 else []] = np.nan
    return points, names, covariances, descriptions


def assert_same(table, other):
    np.testing.assert_array_equal(table.points, other.points)
    assert (table.names, table.descriptions) == (other.names, other.descriptions)
    assert (table.covariances is None) == (other.covariances is None)
    if table.covariances is not None:
        np.testing.assert_array_equal(table.covariances, other.covariances)


def options(name, d):
    return WRITTEN[name][3] if d == 2 else {}


@pytest.mark.parametrize(("name", "d"), CASES)
@given(data=st.data())
@HYPOTHESIS
def test_what_is_written_reads_back_to_the_last_bit(tmp_path, name, d, data):
    ending, _, keeps, _ = WRITTEN[name]
    table = LandmarkTable(*data.draw(fields(d, keeps, forbidden='"' if name == "tag" else "")))
    path = tmp_path / f"points{ending}"
    write_landmarks(path, table, format=name, overwrite=True)
    (found,) = read_tables(path, **options(name, d))
    assert_same(table, found)
    assert found.landmarks().undefined == table.landmarks().undefined
    assert found.landmarks().names == table.landmarks().names


@pytest.mark.parametrize(
    ("name", "d"), [(name, d) for name, d in CASES if "names" in WRITTEN[name][2]]
)
@given(data=st.data())
@HYPOTHESIS
def test_names_with_blanks_around_them_read_back_as_the_landmarks_have_them(
    tmp_path, name, d, data
):
    points, names, _, _ = data.draw(fields(d, {"names"}, forbidden='"' if name == "tag" else ""))
    blanks = st.text(st.sampled_from(" \t\n\x1c\x85\u00a0\u2028\u3000"), max_size=2)
    names = names and [data.draw(blanks) + word + data.draw(blanks) for word in names]
    landmarks = Landmarks(points, names)
    path = tmp_path / f"points{WRITTEN[name][0]}"
    write_landmarks(path, landmarks, format=name, overwrite=True)
    assert read_landmarks(path, **options(name, d)).names == landmarks.names


@given(data=st.data())
@HYPOTHESIS
def test_both_volumes_of_a_tag_read_back(tmp_path, data):
    first = LandmarkTable(*data.draw(fields(3, {"names"}, forbidden='"')))
    second = LandmarkTable(first.points[::-1] / 3, first.names)
    write_landmarks(tmp_path / "pair.tag", (first, second), overwrite=True)
    for table, found in zip((first, second), read_tables(tmp_path / "pair.tag"), strict=True):
        assert_same(table, found)
    np.testing.assert_array_equal(
        read_landmarks(tmp_path / "pair.tag", volume=2).points, second.points
    )


@pytest.mark.parametrize("name", ["mrk.json", "csv", "tsv"])
def test_a_file_in_lps_holds_flipped_numbers_and_loads_as_the_one_in_ras(tmp_path, name):
    ending = WRITTEN[name][0]
    for frame in ("RAS", "LPS"):
        write_landmarks(tmp_path / f"{frame}{ending}", SET, frame=frame, format=name)
    (ras,), (lps,) = (read_tables(tmp_path / f"{frame}{ending}") for frame in ("RAS", "LPS"))
    assert_same(ras, lps)
    assert (ras.frame.value, lps.frame.value, ras.stated) == ("RAS", "LPS", "stated in the file")
    assert "-4.5" in (tmp_path / f"RAS{ending}").read_text()
    assert "-4.5" not in (tmp_path / f"LPS{ending}").read_text()


def test_a_covariance_is_flipped_with_its_point_in_the_file_itself(tmp_path):
    write_landmarks(tmp_path / "a.csv", SET, frame="LPS")
    with open(tmp_path / "a.csv", newline="") as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("# ")))
    flip = np.diag([-1.0, -1.0, 1.0])
    for row, point, covariance in zip(rows, SET.points, SET.covariances, strict=True):
        expected = flip @ covariance @ flip
        np.testing.assert_array_equal([float(row[k]) for k in "xyz"], flip @ point)
        for a, b in ("xx", "xy", "xz", "yy", "yz", "zz"):
            assert float(row[f"cov_{a}{b}"]) == expected["xyz".index(a), "xyz".index(b)]


def test_slicers_json_says_how_sure_each_point_is(tmp_path):
    write_landmarks(tmp_path / "a.mrk.json", SET)
    (markup,) = json.loads((tmp_path / "a.mrk.json").read_text(encoding="utf-8"))["markups"]
    assert markup["coordinateSystem"] == "LPS"
    measured = {m["name"]: m["controlPointValues"] for m in markup["measurements"]}
    np.testing.assert_allclose(
        measured["uncertainty_fro"], [np.linalg.norm(c) for c in SET.covariances], rtol=1e-14
    )
    largest = [np.linalg.eigvalsh(c)[-1] ** 0.5 for c in SET.covariances]
    np.testing.assert_allclose(measured["std_max"], largest, rtol=1e-14)
    np.testing.assert_array_equal(measured["cov_xz"], -SET.covariances[:, 0, 2])


def test_covariances_survive_a_program_that_keeps_only_measurements_and_one_that_drops_them(
    tmp_path,
):
    write_landmarks(tmp_path / "a.mrk.json", SET)
    document = json.loads((tmp_path / "a.mrk.json").read_text(encoding="utf-8"))
    without = json.loads(json.dumps(document))
    del without["markups"][0]["measurements"]
    for point in document["markups"][0]["controlPoints"]:
        del point["covariance"]
    for content in (document, without):
        (tmp_path / "b.mrk.json").write_text(json.dumps(content))
        np.testing.assert_array_equal(
            read_landmarks(tmp_path / "b.mrk.json").covariances, SET.covariances
        )


def test_undefined_points_are_written_as_slicer_writes_them(tmp_path):
    write_landmarks(
        tmp_path / "a.mrk.json", Landmarks(POINTS, None, SET.covariances, undefined=[1])
    )
    (markup,) = json.loads((tmp_path / "a.mrk.json").read_text())["markups"]
    assert [point["positionStatus"] for point in markup["controlPoints"]].index("undefined") == 1
    assert markup["controlPoints"][1]["position"] == ""
    assert read_landmarks(tmp_path / "a.mrk.json").undefined == (1,)


def test_vtk_reads_the_tag_that_we_write(tmp_path):
    from vtkmodules.vtkIOMINC import vtkMNITagPointReader

    pair = (Landmarks(POINTS, ("a", "b c", "d;e")), Landmarks(POINTS + 1.0))
    write_landmarks(tmp_path / "a.tag", pair)
    reader = vtkMNITagPointReader()
    reader.SetFileName(str(tmp_path / "a.tag"))
    assert reader.GetNumberOfVolumes() == 2
    for volume, landmarks in enumerate(pair):
        points = reader.GetPoints(volume)
        found = [points.GetPoint(i) for i in range(points.GetNumberOfPoints())]
        np.testing.assert_allclose(found, landmarks.points, rtol=1e-7)  # VTK keeps single precision
    labels = reader.GetLabelText()
    assert [labels.GetValue(i) for i in range(3)] == ["a", "b c", "d;e"]


def test_ants_gets_four_columns_of_numbers_in_lps(tmp_path):
    write_landmarks(tmp_path / "a.csv", Landmarks(POINTS, ("a", "b", "c")), format="ants")
    table = np.genfromtxt(
        tmp_path / "a.csv", delimiter=",", names=True, dtype=None, encoding="utf-8"
    )
    assert table.dtype.names[:4] == ("x", "y", "z", "t")
    np.testing.assert_array_equal([table["x"], table["y"], table["z"]], (POINTS * [-1, -1, 1]).T)
    assert table["label"].tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("path", "landmarks", "options", "message"),
    [
        ("a.tag", Landmarks(POINTS, ("a", 'b"', "c")), {}, r"row 2: 'b\"'.*cannot be written"),
        ("a.tag", Landmarks(POINTS, ("a", "b\nb", "c")), {}, r"row 2.*'\\n'"),
        ("a.csv", Landmarks(POINTS, ("a", "b", "c\r1")), {}, r"row 3.*'\\r'"),
        ("a.tsv", Landmarks(POINTS, ("a", "b\tb", "c")), {}, r"row 2.*'\\t'"),
        ("a.fcsv", Landmarks(POINTS, ("\x001", "b", "c")), {}, r"row 1.*'\\x00'"),
        ("a.fcsv", LandmarkTable(POINTS, None, None, ("", "x\ny", "")), {}, "row 2"),
        ("a.csv", Landmarks(POINTS, ("a", "b\nb", "c")), {"format": "ants"}, "row 2"),
        ("a.mrk.json", Landmarks(POINTS, ("a", "\ud800", "c")), {}, "half a character"),
        ("a.tag", Landmarks(POINTS, undefined=[0]), {}, "tag has no undefined points"),
        ("a.pts", Landmarks(POINTS, undefined=[0]), {}, "elastix has no undefined points"),
        ("a.tag", (Landmarks(POINTS), Landmarks(POINTS[:2])), {}, r"as many points.*\[3, 2\]"),
        (
            "a.tag",
            (Landmarks(POINTS, tuple("abc")), Landmarks(POINTS, tuple("abd"))),
            {},
            "same names in both volumes",
        ),
        ("a.tag", (Landmarks(POINTS),) * 3, {}, r"at most 2 set\(s\)"),
        ("a.tag", (), {}, r"at most 2 set\(s\).*found 0"),
        ("a.csv", (Landmarks(POINTS),) * 2, {}, r"at most 1 set\(s\)"),
        (
            "a.mrk.json",
            Landmarks(POINTS[:, :2]),
            {},
            "mrk.json does not hold 2-D points; write ants, birl, csv",
        ),
        ("a.csv", Landmarks(POINTS), {"format": "birl"}, "birl does not hold 3-D points"),
        ("a.tag", Landmarks(POINTS), {"frame": "LPS"}, "expected the frame RAS.*found 'LPS'"),
        (
            "a.csv",
            Landmarks(POINTS),
            {"frame": "IMAGE"},
            "expected the frame RAS or LPS.*found 'IMAGE'",
        ),
        ("a.doc", Landmarks(POINTS), {}, "expected a format that Kunita writes"),
        ("a.tps", Landmarks(POINTS), {}, "expected a format that Kunita writes"),
        ("a.csv", Landmarks(POINTS), {"format": "tag"}, r"a file name ending in \.tag"),
        ("there.csv", Landmarks(POINTS), {}, "the file exists"),
    ],
)
def test_what_a_format_cannot_hold_is_refused_and_nothing_is_written(
    tmp_path, path, landmarks, options, message
):
    (tmp_path / "there.csv").write_text("before")
    with pytest.raises(FileError, match=message) as refusal:
        write_landmarks(tmp_path / path, landmarks, **options)
    assert str(tmp_path / path) in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert [p.name for p in tmp_path.iterdir()] == ["there.csv"]
    assert (tmp_path / "there.csv").read_text() == "before"


@pytest.mark.parametrize(
    ("path", "table", "message"),
    [
        ("a.tag", LandmarkTable.of(SET.take([0])), "tag files hold no covariances"),
        ("a.pts", LandmarkTable.of(SET), "elastix files hold no names and no covariances"),
        (
            "a.tag",
            LandmarkTable(POINTS, None, None, ("x", "", "")),
            "tag files hold no descriptions",
        ),
    ],
)
def test_what_a_format_leaves_out_is_said(tmp_path, path, table, message):
    with pytest.warns(KunitaWarning, match=message):
        write_landmarks(tmp_path / path, table)
    np.testing.assert_array_equal(read_landmarks(tmp_path / path).points, table.points)


def test_reading_landmarks_does_not_wait_for_jax():
    code = "import sys, kunita.io.landmark_files.files; print([m for m in ('jax', 'vtk', 'scipy') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_free_directions_are_refused_as_no_format_holds_them(tmp_path):
    landmarks = Landmarks(POINTS, ("a", "b", "c"), free={"b": [0.0, 0.0, 1.0]})
    with pytest.raises(LandmarkError, match="'b' is known along 2 of 3 .* no landmark file holds"):
        write_landmarks(tmp_path / "a.csv", landmarks)
    assert not list(tmp_path.iterdir())
