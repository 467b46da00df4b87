"""Files that other programs write: rendered here from their specifications, and read."""

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kunita.data.image import Grid, Image
from kunita.data.landmarks import Landmarks
from kunita.errors import ArgumentError, FileError, InputError
from kunita.io.landmark_files.files import FORMATS, read_landmarks, read_tables

HYPOTHESIS = settings(
    deadline=None,
    max_examples=12,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
LPS = np.array([-1.0, -1.0, 1.0])
SCHEMA = "https://raw.githubusercontent.com/Slicer/Slicer/main/Resources/Schema/markups-schema-v1.0.4.json#"


def quoted(word):
    return '"' + word.replace('"', '""') + '"'


def numbers(point, missing="nan"):
    return [missing if np.isnan(x) else repr(float(x)) for x in point]


def markups(points, names, system="LPS", **fields):
    rows = [
        {
            "label": name,
            "position": "" if np.isnan(p).any() else p.tolist(),
            "positionStatus": status(p),
        }
        for p, name in zip(points, names, strict=True)
    ]
    known = {"type": "Fiducial", "coordinateSystem": system, "controlPoints": rows}
    return json.dumps({"@schema": SCHEMA, "markups": [{**known, **fields}]})


def status(point):
    return "undefined" if np.isnan(point).any() else "defined"


def fcsv(points, names, header="# CoordinateSystem = 1"):
    rows = [
        f"id,{','.join(numbers(p))},0,0,0,1,1,1,0,{quoted(n)},d,"
        for p, n in zip(points, names, strict=True)
    ]
    return "\n".join(
        ["# Markups fiducial file version = 4.10", header, "# columns = id,x,y,z", *rows, ""]
    )


def slicer_3(points, names):
    rows = [
        f"{quoted(name)},{','.join(numbers(p))},1,1" for p, name in zip(points, names, strict=True)
    ]
    return "\n".join(["# Fiducial List file a.fcsv", "# columns = label,x,y,z,sel,vis", *rows, ""])


def slicer_csv(points, names):
    cells = [(",".join(numbers(p, "0")), int(not np.isnan(p).any())) for p in points]
    rows = [
        f"{quoted(name)},{xyz},{defined},1,1,0,"
        for (xyz, defined), name in zip(cells, names, strict=True)
    ]
    return "\n".join(["label,l,p,s,defined,selected,visible,locked,description", *rows, ""])


def ours(points, names, delimiter=",", comment="# CoordinateSystem=LPS"):
    rows = [
        delimiter.join([*numbers(p, ""), "7", quoted(name)])
        for p, name in zip(points, names, strict=True)
    ]
    return "\n".join(
        [comment, delimiter.join([*"xyz"[: points.shape[1]], "extra", "Name"]), *rows, ""]
    )


def tag(points, names):
    rows = [
        f" {' '.join(numbers(p))} 1 2 3 {quoted(n)}" for p, n in zip(points, names, strict=True)
    ]
    return "\n".join(["MNI Tag Point File", "Volumes=1;", "% why", "Points =", *rows]) + "\n;\n"


def bigwarp(points, names):
    cells = [numbers(p, "Infinity") for p in points]
    rows = [[name, "true", *cell, *cell] for cell, name in zip(cells, names, strict=True)]
    off = [["off", "false", *["1"] * (2 * points.shape[1])]]
    return "".join(",".join(map(quoted, row)) + "\n" for row in off + rows)


def tps(points, names):
    lines = [
        f"LM{'3' if points.shape[1] == 3 else ''}={len(points)}",
        *(" ".join(numbers(p, "NA")) for p in points),
    ]
    return "\n".join([*lines, "CURVES=1", "POINTS=2", "1 1", "2 2", "IMAGE=a.jpg", "ID=7", ""])


def elastix(points, names):
    return "\n".join(["point", str(len(points)), *(" ".join(numbers(p)) for p in points), ""])


def transformix(points, names):
    made = [f"[ {' '.join(numbers(p))} ]" for p in points]
    return "".join(
        f"Point\t{i}\t; InputIndex = [ 1 2 3 ]\t; InputPoint = {p}\t; OutputIndexFixed = [ 1 2 3 ]\t"
        f"; OutputPoint = {p}\t; Deformation = [ 0 0 0 ]\n"
        for i, p in enumerate(made)
    )


def birl(points, names):
    return "\n".join(
        [",X,Y", *(f"{i},{','.join(numbers(p))}" for i, p in enumerate(points, start=1)), ""]
    )


def ants(points, names):
    rows = [
        f"{','.join(numbers(p))},0,{quoted(name)}" for p, name in zip(points, names, strict=True)
    ]
    return "\n".join(["x,y,z,t,label", *rows, ""])


ALL = st.characters(exclude_categories=("Cc", "Cs"))
READ = {  # ending, renderer, dimension, signs to memory, options, names: kept, numbered (tps) or none
    "mrk.json": (".mrk.json", markups, 3, LPS, {}, "kept"),
    "mrk.json in RAS": (".json", lambda p, n: markups(p, n, "RAS"), 3, 1, {}, "kept"),
    "mrk.json by default": (".mkp.json", lambda p, n: markups(p, n, None), 3, LPS, {}, "kept"),
    "fcsv": (".fcsv", fcsv, 3, LPS, {}, "kept"),
    "fcsv, 0 is RAS": (".fcsv", lambda p, n: fcsv(p, n, "# CoordinateSystem = 0,,,,,,"), 3, 1, {}, "kept"),
    "fcsv, no blanks": (".fcsv", lambda p, n: fcsv(p, n, "#CoordinateSystem=LPS"), 3, LPS, {}, "kept"),
    "fcsv, unstated": (".fcsv", lambda p, n: fcsv(p, n, "#"), 3, 1, {}, "kept"),
    "Slicer 3": (".fcsv", lambda p, n: slicer_3(p, n), 3, 1, {}, "kept"),
    "slicer-csv": (".csv", slicer_csv, 3, LPS, {}, "kept"),
    "slicer-csv in RAS": (".csv", lambda p, n: slicer_csv(p, n).replace("l,p,s", "r,a,s", 1), 3, 1, {}, "kept"),
    "csv": (".csv", ours, 3, LPS, {}, "kept"),
    "csv in txt": (".txt", ours, 3, LPS, {}, "kept"),
    "tsv": (".tsv", lambda p, n: ours(p, n, "\t"), 3, LPS, {}, "kept"),
    "csv, semicolons": (".csv", lambda p, n: ours(p, n, ";"), 3, LPS, {}, "kept"),
    "csv, frame given": (".csv", lambda p, n: ours(p, n, comment="#"), 3, LPS, {"frame": "LPS"}, "kept"),
    "csv in 2-D": (".csv", lambda p, n: ours(p, n, comment="#"), 2, 1, {"frame": "IMAGE"}, "kept"),
    "tag": (".tag", tag, 3, 1, {}, "kept"),
    "tag, frame given": (".tag", tag, 3, LPS, {"frame": "LPS"}, "kept"),
    "bigwarp": (".csv", bigwarp, 3, 1, {"frame": "RAS", "volume": 1}, "kept"),
    "bigwarp in 2-D": (".csv", bigwarp, 2, 1, {"volume": 2}, "kept"),
    "tps": (".tps", tps, 3, LPS, {"frame": "LPS"}, "numbered"),
    "tps in 2-D": (".TPS", tps, 2, 1, {"frame": "IMAGE"}, "numbered"),
    "elastix": (".pts", elastix, 3, LPS, {}, "none"),
    "elastix in 2-D": (".txt", elastix, 2, 1, {"frame": "IMAGE"}, "none"),
    "transformix": (".txt", transformix, 3, LPS, {"volume": 2}, "none"),
    "transformix in 2-D": (".txt", transformix, 2, 1, {"volume": 1, "frame": "IMAGE"}, "none"),
    "ants": (".csv", ants, 3, LPS, {}, "kept"),
    "birl": (".csv", birl, 2, 1, {}, "none"),
    "birl, spacing": (".csv", birl, 2, [0.5, 0.25], {"spacing": [0.5, 0.25]}, "none"),
}  # fmt: skip
DRESSES = {
    "plain": lambda text: text.encode(),
    "CRLF": lambda text: text.replace("\n", "\r\n").encode(),
    "byte order mark": lambda text: text.encode("utf-8-sig"),
    "no final newline": lambda text: text.rstrip("\n").encode(),
    "blank lines": lambda text: text.replace("\n", "\n\n").encode(),
}


@st.composite
def lists(draw, d, forbidden):
    n = draw(st.integers(1, 4))
    points = draw(arrays(float, (n, d), elements=st.floats(-1e6, 1e6)))
    points[draw(st.lists(st.integers(1, n - 1), unique=True)) if n > 1 else []] = np.nan
    letters = (st.sampled_from(",;\"'#%= é漢") | ALL).filter(lambda c: c not in forbidden)
    names = st.text(letters, max_size=8).map(str.strip).filter(bool)
    return points, draw(st.lists(names, min_size=n, max_size=n, unique=True))


@pytest.mark.parametrize("case", READ)
@given(data=st.data())
@HYPOTHESIS
def test_what_a_format_says_is_what_is_read(tmp_path, case, data):
    ending, render, d, signs, options, naming = READ[case]
    points, names = data.draw(
        lists(d, '"' if render is tag else "")
    )  # a tag has no way to write a quote
    dress = data.draw(st.sampled_from(sorted(DRESSES)))
    path = tmp_path / f"points{ending}"
    path.write_bytes(DRESSES[dress](render(points, names)))
    (found,) = read_tables(path, **options)
    np.testing.assert_array_equal(found.points, points * signs)
    numbered = tuple(map(str, range(1, len(points) + 1)))
    assert (
        found.names
        == {"kept": tuple(names), "numbered": numbered, "none": ("",) * len(names)}[naming]
    )
    landmarks = read_landmarks(path, **options)
    assert landmarks.undefined == tuple(np.flatnonzero(np.isnan(points).any(axis=1)))


@pytest.mark.parametrize("case", READ)
@given(data=st.data())
@HYPOTHESIS
def test_a_damaged_file_is_read_or_refused_in_one_line_but_never_crashes(tmp_path, case, data):
    ending, render, d, _, options, _ = READ[case]
    content = render(np.arange(1.0, 1 + 3 * d).reshape(3, d), ["a", "b", "c"]).encode()
    start = data.draw(st.integers(0, len(content)))
    stop = data.draw(st.integers(start, len(content)) | st.just(len(content)))
    junk = data.draw(
        st.binary(max_size=3)
        | st.sampled_from([b"nan", b"inf", b"1e999", b"9" * 400, b'"', b";", b"\n"])
    )
    path = tmp_path / f"points{ending}"
    path.write_bytes(content[:start] + junk + content[stop:])
    tables, refusal = (), None
    try:
        tables = read_tables(path, **options)
    except InputError as error:
        refusal = str(error)
    assert (refusal is None) == any(table.defined.any() for table in tables)
    assert refusal is None or (refusal.startswith(str(path)) and "\n" not in refusal)


def write(folder, name, content):
    path = folder / name
    path.write_text(content, encoding="utf-8")
    return path


CSV_3D = "label,x,y,z,cov_xx,cov_xy,cov_xz,cov_yy,cov_yz,cov_zz"


def test_a_covariance_is_flipped_with_its_point(tmp_path):
    ras = f"# CoordinateSystem = RAS\n{CSV_3D}\na,1,2,3,2,.1,.2,3,.3,4\n"
    lps = f"# CoordinateSystem = LPS\n{CSV_3D}\na,-1,-2,3,2,.1,-.2,3,-.3,4\n"
    first, second = (
        read_landmarks(write(tmp_path, f"{i}.csv", c)) for i, c in enumerate((ras, lps))
    )
    np.testing.assert_array_equal(first.points, second.points)
    np.testing.assert_array_equal(first.covariances, second.covariances)
    np.testing.assert_array_equal(
        first.covariances[0], [[2, 0.1, 0.2], [0.1, 3, 0.3], [0.2, 0.3, 4]]
    )


@pytest.mark.parametrize("unit", ["um", ["um", "UCUM", "micrometer"], "µm"])
def test_micrometres_become_millimetres(tmp_path, unit):
    points = np.array([[1000.0, 2000.0, -500.0]])
    path = write(tmp_path, "a.mrk.json", markups(points, ["a"], "RAS", coordinateUnits=unit))
    np.testing.assert_allclose(read_landmarks(path).points, points / 1000, rtol=1e-15)


def test_the_units_of_a_table_scale_points_and_covariances(tmp_path):
    rows = "a,1000,2000,3000,1e6,0,0,2e6,0,3e6\n"
    path = write(tmp_path, "a.csv", f"# CoordinateSystem = RAS; Units = um\n{CSV_3D}\n{rows}")
    landmarks = read_landmarks(path)
    np.testing.assert_allclose(landmarks.points, [[1, 2, 3]], rtol=1e-14)
    np.testing.assert_allclose(landmarks.covariances[0], np.diag([1, 2, 3]), rtol=1e-14)


def test_a_sidecar_states_the_frame(tmp_path):
    write(tmp_path, "a.json", '{"CoordinateSystem": "LPS", "Units": "mm"}')
    (table,) = read_tables(write(tmp_path, "a.tsv", "name\tx\ty\tz\nn\t1\t2\t3\n"))
    np.testing.assert_array_equal(table.points, [[-1, -2, 3]])
    assert (table.frame.value, table.stated) == ("LPS", "stated in the file")


def test_a_table_saved_by_a_spreadsheet_still_states_its_frame(tmp_path):
    content = (
        '"# kunita landmarks; CoordinateSystem = LPS; Units = mm",,,\nlabel,x,y,z\na,1,2,3\n,,,\n'
    )
    np.testing.assert_array_equal(
        read_landmarks(write(tmp_path, "a.csv", content)).points, [[-1, -2, 3]]
    )


@pytest.mark.parametrize(
    ("position", "extra"),
    [('""', ""), ("null", ""), ("[NaN, NaN, NaN]", ""), ('["NA", "NA", "NA"]', ""), ("[null, null, null]", ""),
     ("[1, 2, 3]", ', "positionStatus": "undefined"'), ("[1, 2, 3]", ', "positionStatus": "preview"')],
)  # fmt: skip
def test_every_way_to_say_undefined_keeps_the_places_of_the_others(tmp_path, position, extra):
    rows = f'[{{"position": {position}{extra}}}, {{"position": [1, 2, 3]}}]'
    content = (
        f'{{"@schema": "{SCHEMA}", "markups": [{{"type": "Fiducial", "controlPoints": {rows}}}]}}'
    )
    landmarks = read_landmarks(write(tmp_path, "a.mrk.json", content))
    assert landmarks.undefined == (0,)
    np.testing.assert_array_equal(landmarks.points, [[-1, -2, 3]])


def test_of_several_markups_the_only_one_with_points_is_taken_and_else_one_must_be_chosen(tmp_path):
    full = json.loads(markups(np.ones((2, 3)), ["a", "b"], "RAS"))["markups"][0]
    other = {**full, "coordinateSystem": "LPS"}
    empty = {"type": "Fiducial", "controlPoints": []}
    path = write(tmp_path, "a.json", json.dumps({"@schema": SCHEMA, "markups": [empty, full]}))
    assert len(read_landmarks(path)) == 2
    path = write(tmp_path, "b.json", json.dumps({"@schema": SCHEMA, "markups": [full, other]}))
    with pytest.raises(FileError, match="2 sets of landmarks.*volume="):
        read_landmarks(path)
    np.testing.assert_array_equal(read_landmarks(path, volume=2).points, [[-1, -1, 1]] * 2)


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        ("ab", None),
        ("aa", "'a' twice"),
        (["a", " "], "row 2 has no name"),
        (["", ""], "no row has a name"),
    ],
)
def test_names_are_used_only_if_they_tell_the_points_apart(tmp_path, names, problem):
    path = write(tmp_path, "a.mrk.json", markups(np.eye(3)[:2], names))
    assert read_tables(path)[0].names_problem == problem
    assert read_landmarks(path).names == (None if problem else ("a", "b"))


def test_a_record_of_a_tag_may_wrap_and_what_follows_it_is_its_label(tmp_path):
    head = "MNI Tag Point File\r\nVolumes = 2;\r\n"
    body = 'Points = 1 2\n3 4 # four\n 5 6 tip\n% between\n1 2 3 4 5 6 0.5 -1 -1\n7 8 9 1 2 3 0 -1 -1 "a ; b";'
    first, second = read_tables(write(tmp_path, "a.tag", head + body))
    np.testing.assert_array_equal(first.points, [[1, 2, 3], [1, 2, 3], [7, 8, 9]])
    np.testing.assert_array_equal(second.points, [[4, 5, 6], [4, 5, 6], [1, 2, 3]])
    assert first.names == second.names == ("tip", "", "a ; b")


def test_ants_comments_are_names_where_labels_only_count(tmp_path):
    head = "x,y,z,t,label,comment\n"
    counted = write(tmp_path, "a.csv", head + '1,2,3,0,1,"AC, left"\n1,2,4,0,2,PC\n')
    labelled = write(tmp_path, "b.csv", head + "1,2,3,0,11,seen\n1,2,4,0,12,seen\n")
    assert read_landmarks(counted).names == ("AC, left", "PC")
    (table,) = read_tables(labelled)
    assert (table.names, table.descriptions) == (("11", "12"), ("seen", "seen"))


def test_row_numbers_of_birl_that_leave_some_out_are_names(tmp_path):
    assert read_landmarks(write(tmp_path, "a.csv", ",X,Y\n0,1,2\n1,3,4\n")).names is None
    assert read_landmarks(write(tmp_path, "b.csv", ",X,Y\n1,1,2\n3,3,4\n")).names == ("1", "3")


GRID = Grid((10, 20, 30), [[0, -2.0, 0, 5], [1.5, 0, 0, 6], [0, 0, 3.0, 7], [0, 0, 0, 1]])


@pytest.mark.parametrize(
    ("content", "options", "index"),
    [
        ("1 2 3\n4 5 6\n", {}, [[0, 1, 2], [3, 4, 5]]),
        ("1\t2\t3\r\n4\t5\t6", {"index_base": 0}, [[1, 2, 3], [4, 5, 6]]),
        ("1 2 3\n4 5 6\n", {"axis_order": "yxz"}, [[1, 0, 2], [4, 3, 5]]),
        ("1 2 3\n4 5 6\n", {"axis_order": "yzx"}, [[2, 0, 1], [5, 3, 4]]),
        ("1 2 3\n4 5 6\n", {"flip": "z"}, [[0, 1, 27], [3, 4, 24]]),
        ("1,2,3\n4,5,6.5\n", {"format": "index"}, [[0, 1, 2], [3, 4, 5.5]]),
        ("index\n2\n1 2 3\n4 5 6", {}, [[1, 2, 3], [4, 5, 6]]),
        ("2\n1 2 3\n4 5 6", {}, [[1, 2, 3], [4, 5, 6]]),
        ("2\n1 2 3\n4 5 6", {"index_base": 1, "flip": "xy"}, [[9, 18, 2], [6, 15, 5]]),
    ],
)
def test_indices_go_through_the_image_they_refer_to(tmp_path, content, options, index):
    path = write(tmp_path, "a.txt", content)
    expected = GRID.world(np.array(index, dtype=float))
    for image in (GRID, Image(np.zeros(GRID.shape), GRID.affine)):
        np.testing.assert_array_equal(read_landmarks(path, image=image, **options).points, expected)
    assert read_tables(path, image=GRID, **options)[0].frame.value == "RAS"


def test_indices_without_an_image_need_spacing_and_frame(tmp_path):
    path = write(tmp_path, "a.txt", "1 2 3\n4 5 6\n")
    points = read_landmarks(path, spacing=[1, 2, 0.5], frame="LPS").points
    np.testing.assert_array_equal(points, [[0, -2, 1], [-3, -8, 2.5]])
    flat = write(tmp_path, "b.txt", "index\n1\n4 6\n")
    np.testing.assert_array_equal(read_landmarks(flat, spacing=2, frame="IMAGE").points, [[8, 12]])


BLOCK = "LM=2\n10 20\n30 45\nIMAGE=a.jpg\nID=s1\n"


def test_tps_pixels_are_turned_over_with_the_image_and_taken_as_they_are_with_a_frame(tmp_path):
    path = write(tmp_path, "a.tps", BLOCK)
    image = Grid((80, 50), np.diag([0.5, 0.5, 1.0]))
    np.testing.assert_array_equal(read_landmarks(path, image=image).points, [[5, 15], [15, 2.5]])
    np.testing.assert_array_equal(read_landmarks(path, frame="IMAGE").points, [[10, 20], [30, 45]])
    assert read_tables(path, image=image)[0].descriptions == ("s1 a.jpg",) * 2


def test_tps_scale_is_used_only_if_every_specimen_has_one(tmp_path):
    scaled, image = BLOCK + "SCALE=0.1\n", Grid((80, 50), np.eye(3))
    both = read_tables(write(tmp_path, "a.tps", scaled + scaled), frame="IMAGE")
    one = read_tables(write(tmp_path, "b.tps", scaled + BLOCK), frame="IMAGE")
    np.testing.assert_allclose(both[1].points, [[1, 2], [3, 4.5]], rtol=1e-15)
    np.testing.assert_array_equal(one[0].points, [[10, 20], [30, 45]])
    np.testing.assert_allclose(
        read_tables(tmp_path / "a.tps", image=image)[0].points, [[1, 3], [3, 0.5]], rtol=1e-14
    )


@pytest.mark.parametrize(
    ("name", "content", "options"),
    [
        ("a.csv", "# CoordinateSystem = IMAGE; Units = mm\nx,y\n1,2\n3,4.5\n", {}),
        ("a.tps", BLOCK + "SCALE=0.1\n", {"frame": "IMAGE"}),
        ("a.tps", BLOCK + "SCALE=0.1\n", {"image": Grid((80, 50), np.diag([2.0, 2.0, 1.0]))}),
    ],
)
def test_a_spacing_leaves_lengths_as_they_are(tmp_path, name, content, options):
    """It may be meant for the pictures, which have no other."""
    path = write(tmp_path, name, content)
    expected = read_landmarks(path, **options).points
    np.testing.assert_array_equal(read_landmarks(path, spacing=2, **options).points, expected)


@pytest.mark.parametrize(
    ("content", "options", "points"),
    [
        ("point 2 1 2 3 4 5 6", {}, [[-1, -2, 3], [-4, -5, 6]]),
        ("point\n2\n1\n2\n3\n4\n5\n6\n", {}, [[-1, -2, 3], [-4, -5, 6]]),
        ("point\n2\n1 2 3\n4 5\n6\n", {}, [[-1, -2, 3], [-4, -5, 6]]),
        ("point\n3\n1 2 3 4 5 6\n", {"frame": "IMAGE"}, [[1, 2], [3, 4], [5, 6]]),
    ],
)
def test_rows_of_elastix_that_are_not_one_point_each_are_counted(
    tmp_path, content, options, points
):
    np.testing.assert_array_equal(
        read_landmarks(write(tmp_path, "a.pts", content), **options).points, points
    )


def test_ants_points_in_the_frame_image_lose_their_zero(tmp_path):
    path = write(tmp_path, "a.csv", "x,y,z,t\n1,2,0,0\n3,4,0.0,0\n")
    np.testing.assert_array_equal(
        read_landmarks(path, frame="image", spacing=2).points, [[2, 4], [6, 8]]
    )


def test_the_door_says_how_the_frame_is_known(tmp_path):
    tagged = write(tmp_path, "a.tag", tag(np.ones((1, 3)), ["a"]))
    assert read_tables(tagged)[0].stated == "the format's default"
    assert read_tables(tagged, frame="LPS")[0].stated == "given"
    assert read_tables(tagged, frame="LPS")[0].frame.value == "LPS"


ONE = np.ones((1, 3))
ENTRIES = ("xx", "xy", "xz", "yy", "yz", "zz")


def measured(entries):
    """One point whose covariance is said by measurements."""
    columns = zip(ENTRIES, entries, strict=True)
    return markups(
        ONE, "a", measurements=[{"name": f"cov_{k}", "controlPointValues": [x]} for k, x in columns]
    )


def own(covariance):
    """One point whose covariance is a field of its own."""
    document = json.loads(markups(ONE, "a"))
    document["markups"][0]["controlPoints"][0]["covariance"] = covariance
    return json.dumps(document)


HEAD = "MNI Tag Point File\nVolumes = 1;\nPoints =\n"
RAS = "# CoordinateSystem = RAS\n"
REFUSED = [  # name, content, options, what the one line says
    ("a.csv", "", {}, r":1: expected landmarks, found 'an empty file'"),
    ("a.tag", " \r\n\n", {}, r":1: expected landmarks, found 'an empty file'"),
    ("a.csv", b"label,x\n\xff\xfe1,2", {}, r":2: expected text in UTF-8"),
    ("a.fcsv", b"\x89PNG\r\n\x1a\n\0\0", {}, r":1: expected text in UTF-8"),
    ("a.csv", b"label,x,y\na,\0,2", {}, r":2: expected text, found 'binary data'"),
    ("a.csv", "hello world\n", {}, r":1: expected landmarks in a known format.*format="),
    ("a.csv", "1,2,3\n4,5,6\n", {}, r":1: expected landmarks in a known format"),
    ("a.txt", "1.5 2 3\n4 5 6\n", {}, r":1: expected landmarks in a known format"),
    # frames
    ("a.csv", "label,x,y,z\na,1,2,3\n", {}, r"the frame is not stated: give --frame RAS or --frame LPS \(frame=\)"),
    ("a.csv", "label,x,y\na,1,2\n", {}, r"the frame is not stated: give --frame IMAGE"),
    ("a.csv", RAS + "label,x,y,z\na,1,2,3\n", {"frame": "LPS"}, r"the file says RAS, --frame \(frame=\) says LPS"),
    ("a.csv", RAS + "label,x,y\na,1,2\n", {}, r"RAS \(stated in the file\) is 3-D, but the points are 2-D"),
    ("a.csv", "label,x,y,z\na,1,2,3\n", {"frame": "IMAGE"}, r"IMAGE \(given\) is 2-D, but the points are 3-D"),
    ("a.csv", "# CoordinateSystem = MNI\nlabel,x,y,z\na,1,2,3\n", {}, r":1: expected the coordinate system to be RAS"),
    ("a.csv", RAS + "# CoordinateSystem = LPS\nx,y,z\n1,2,3\n", {}, r":2: expected one coordinate system"),
    ("a.csv", "# CoordinateSystem = RAS; Units = inch\nx,y,z\n1,2,3\n", {}, r":1: expected the unit to be mm or um"),
    ("a.csv", RAS + "x,y,z\n1,2,3\n", {"spacing": 2}, "spacing is for pixels"),
    ("a.csv", ",X,Y\n1,1e300,3\n", {"spacing": 1e10}, "row 1: expected finite"),
    ("a.csv", ",X,Y\n1,2,3\n", {"spacing": [1, 2, 3]}, "spacing: expected one number or 2"),
    ("a.csv", RAS + "x,y,z\n1,2,3\n", {"flip": "z"}, "index_base, axis_order and flip are for voxel indices"),
    ("a.csv", bigwarp(ONE, ["a"]), {}, "the frame is not stated"),
    ("a.pts", "point\n1\n1 2\n", {}, "the frame is not stated: give --frame IMAGE"),
    ("a.fcsv", fcsv(ONE, ["a"], "# CoordinateSystem = IJK"), {}, r":2: expected the coordinate system"),
    ("a.fcsv", fcsv(ONE, ["a"]), {"frame": "RAS"}, "the file says LPS"),
    # our table
    ("a.csv", RAS, {}, r":1: expected landmarks in a known format"),
    ("a.csv", RAS, {"format": "csv"}, r":1: expected a header row"),
    ("a.csv", RAS + "label,x,y,z\n", {}, r"expected at least one landmark, found '0 undefined points'"),
    ("a.csv", RAS + "label,x,y,z\na,n/a,,NaN\n", {}, r"expected at least one landmark, found '1 undefined points'"),
    ("a.csv", RAS + "label,x,y,z\na,1,2\n", {}, r":3: expected 4 columns, as in the header, found '3: a,1,2'"),
    ("a.csv", RAS + "label,x,y,z\na,1,2,3,4\n", {}, r":3: expected 4 columns"),
    ("a.csv", RAS + "label,x,y,z\n\na,1,two,3\n", {}, r":4: expected a finite number, found 'two'"),
    ("a.csv", RAS + "label,x,y,z\na,1,inf,3\n", {}, r":3: expected a finite number, found 'inf'"),
    ("a.csv", RAS + "label,x,y,z\na,1,1e999,3\n", {}, r":3: expected a finite number"),
    ("a.csv", RAS + "label,x,y,z\na,1,1_0,3\n", {}, r":3: expected a finite number, found '1_0'"),
    ("a.csv", RAS + "label,x,y,z\na,1,,3\n", {}, r":3: expected all of a point's coordinates or none"),
    ("a.csv", RAS + "label,x,y,z,x\na,1,2,3,4\n", {}, r":2: expected one column 'x'"),
    ("a.csv", RAS + "x,y,z,cov_xx\n1,2,3,4\n", {}, r":2: expected a column 'cov_xy'"),
    ("a.csv", RAS + CSV_3D + "\na,1,2,3,1,0,0,1,0,1\nb,1,2,3,,,,,,\n", {}, r":4: expected a covariance, as other"),
    ("a.csv", RAS + CSV_3D + "\na,1,2,3,1,0,0,1,0,\n", {}, r":3: expected all of a covariance's entries or none"),
    ("a.csv", RAS + CSV_3D + "\na,1,2,3,-1,0,0,1,0,1\n", {},
        r":3: expected a positive definite covariance, found 'not positive definite .*: \[-1.0, 0.0, 0.0, 1.0"),
    ("a.csv", RAS + CSV_3D + "\na,1,2,3,1,0,0,1,0,1\nb,1,2,3,1,0,0,1,0,1e-20\n", {}, r":4: expected a pos.*too flat"),
    ("a.tsv", (RAS + CSV_3D + "\n\na,1,2,3,0,0,0,0,0,0\n").replace(",", "\t"), {}, r":4: expected a positive definite"),
    ("a.csv", "# CoordinateSystem = IMAGE\nx,y,cov_xx,cov_xy,cov_yy\n1,2,1,2,1\n", {}, r":3: expected a positive def"),
    # Slicer
    ("a.mrk.json", '{"@schema": "x",\n "markups": [', {}, r":2: expected JSON"),
    ("a.mrk.json", '{"a": ' + "[" * 100_000, {}, "expected JSON"),
    ("a.mrk.json", "[1, 2]", {}, "expected document to be an object"),
    ("a.mrk.json", '{"markups": []}', {}, "expected the @schema of Slicer's markups"),
    ("a.mrk.json", f'{{"@schema": "{SCHEMA}"}}', {}, "expected at least one markup"),
    ("a.mrk.json", f'{{"@schema": "{SCHEMA}", "markups": 3}}', {}, r"expected document\.markups to be a list, found 3"),
    ("a.mrk.json", markups(ONE, ["a"], "IJK"), {}, r"markups\[0\]\.coordinateSystem to be RAS .*, found 'IJK'"),
    ("a.mrk.json", markups(ONE, ["a"]), {"frame": "RAS"}, "the file says LPS"),
    ("a.mrk.json", markups(ONE, ["a"], coordinateUnits="inch"), {}, r"coordinateUnits to be mm or um, found 'inch'"),
    ("a.mrk.json", markups(ONE[:, :2], ["a"]), {}, r"markups\[0\]\.controlPoints\[0\]\.position to be 3 numbers"),
    ("a.mrk.json", markups(ONE * 1e300, ["a"]).replace("1e+300", "1" + "0" * 400), {}, "position to be finite numbers"),
    ("a.mrk.json", markups(ONE, ["a"]).replace("[1.0", "[true"), {}, "position to be finite numbers"),
    ("a.mrk.json", markups(ONE, [7]), {}, r"label to be a string, found 7"),
    ("a.mrk.json", markups(ONE, ["a"], measurements=[{"name": "cov_xx"}]), {}, "to have the measurement cov_xy"),
    ("a.mrk.json", markups(ONE, "a", measurements=[{"name": f"cov_{k}", "controlPointValues": [1, 2]}
        for k in ENTRIES]), {}, "controlPointValues to be 1 numbers"),
    ("a.mrk.json", measured([1, 0, 0, -1, 0, 1]), {},
        r"markups\[0\]\.controlPoints\[0\] to have a positive definite covariance, found 'not positive definite"),
    ("a.mrk.json", measured([1, None, 0, 1, 0, 1]), {}, r"controlPoints\[0\] to have a positive.*found 'not finite"),
    ("a.mrk.json", own([1, 0, 0, 0.5, 1, 0, 0, 0, 1]), {},
        r"markups\[0\]\.controlPoints\[0\] to have a positive definite covariance, found 'not symmetric"),
    ("a.mrk.json", own([1, 0, 0]), {}, r"controlPoints\[0\]\.covariance to be 9 numbers, found \[1, 0, 0\]"),
    ("a.mrk.json", markups(ONE * np.nan, ["a"]), {}, "expected at least one landmark, found '1 undefined points'"),
    ("a.fcsv", "# Markups fiducial file version = 4.6\n1,2,3\n", {}, r":2: expected the columns id,x,y,z"),
    ("a.fcsv", "# Markups fiducial file version = 4.6\n1,2,3,x\n", {}, r":2: expected a finite number, found 'x'"),
    ("a.fcsv", "id,1,2,3,0,0,0,1,1,1,0,label,desc,\n", {}, r":1: expected the columns label,x,y,z,sel,vis \(or a"),
    ("a.csv", "label,l,p,s,r,a\na,1,2,3,4,5\n", {}, r":1: expected the columns l,p,s or r,a,s"),
    # tag
    ("a.tag", "MNI tag point file\nVolumes = 1;\nPoints = 1 2 3;", {}, r":1: expected the line 'MNI Tag Point File'"),
    ("a.tag", "MNI Tag Point File\nVolumes = 3;\nPoints = 1 2 3;", {}, r":2: expected 1 or 2 volumes, found '3'"),
    ("a.tag", "MNI Tag Point File\n% c\nVolumes = 1\nPoints = 1 2 3;", {}, r":4: expected ';' of"),
    ("a.tag", "MNI Tag Point File\nVolumes = 1;\n", {}, r":2: expected 'Points' of"),
    ("a.tag", HEAD + " 1 2 3 1 2;", {}, r":4: expected \[weight structure patient\] \[label\]"),
    ("a.tag", HEAD + " 1 2 3 1 2 3 4 5;", {}, r":4: expected \[weight structure patient\] \[label\]"),
    ("a.tag", HEAD + ' 1 2 3 1 b 3 "c";', {}, r":4: expected a finite number, found 'b'"),
    ("a.tag", HEAD + ' 1 2 3 "c";\n 1 2 3;', {}, r":5: expected nothing after the ';'"),
    ("a.tag", HEAD + ' 1 2 3 "c\n 1 2 3;', {}, r":4: expected a quote at the end of the label"),
    ("a.tag", HEAD + ' 1 2 3 "c"\n 1 2', {}, r":5: expected 3 coordinates per point, found 'the end of the file'"),
    ("a.tag", HEAD + ' 1 2 3 "c"\n 1 2 3', {}, r":5: expected ';' after the last point"),
    ("a.tag", HEAD + " 1 x 3;", {}, r":4: expected a finite number, found 'x'"),
    ("a.tag", HEAD + ";", {}, "expected at least one landmark"),
    # elastix and indices
    ("a.pts", "point\n", {}, r":1: expected the number of points, found 'the end of the file'"),
    ("a.pts", "point\n-1\n1 2 3\n", {}, r":2: expected the number of points, found '-1'"),
    ("a.pts", "point\n99999999999999999999\n1 2 3\n", {}, r":2: expected the number of points"),
    ("a.pts", "point\n999999999\n1 2 3\n", {}, r":3: expected 999999999 points of 3 coordinates, found '3 numb"),
    ("a.pts", "point\n2\n1 2 3\n1 2\n", {}, r":4: expected 2 points of 3 coordinates, found '5 numbers'"),
    ("a.pts", "point\n3\n1 2 3\n4 5 6\n", {"frame": "IMAGE"}, r":4: expected 3 points of 3 coordinates, found '6 numb"),
    ("a.pts", "point\n4\n1 2 3\n4 5 6\n7 8", {"frame": "IMAGE"}, r":5: expected 4 points of 3 coordinates, found '8 n"),
    ("a.pts", "point 3 1 2 3\n4 5 6\n", {"frame": "IMAGE"}, r":2: expected 3 points of 3 coordinates, found '6 numb"),
    ("a.pts", "3\n1 2 3\n4 5 6\n", {"frame": "IMAGE", "spacing": 1}, r":3: expected 3 points of 3 coordinates"),
    ("a.pts", "point\n2\n1 2\n3 4\n5 6\n", {}, r":5: expected 2 points of 2 coordinates, found '6 numbers'"),
    ("a.pts", "point\n2\n1 2 3 4 5\n", {}, r":3: expected 2 points of 2 or 3 coordinates, found '5 numbers'"),
    ("a.pts", "point\n1\n1 2 a\n", {}, r":3: expected a finite number, found 'a'"),
    ("a.pts", "index\n1\n1 2 3\n", {}, "give the image they refer to"),
    ("a.txt", "1 2 3\n4 5 6\n", {}, "voxel indices: give the image"),
    ("a.txt", "1 2 3\n4 5 6\n", {"spacing": 1.0}, "voxel indices: give the image"),
    ("a.txt", "1 2 3\n4 5 6\n", {"spacing": 1.0, "frame": "RAS", "flip": "z"}, "flip='z' needs the image"),
    ("a.txt", "1 2 3\n4 5 6\n", {"image": GRID, "spacing": 9.0}, "but the image's is"),
    ("a.txt", "1 2 3\n4 5 6\n", {"image": GRID, "axis_order": "yx"}, "the file has 3 axes"),
    ("a.txt", "1 2\n4 5\n", {"image": GRID, "format": "index"}, "the file is 2-D, the image that it refers to 3-D"),
    ("a.txt", "1 2 3\n4 5\n", {"image": GRID, "format": "index"}, r":2: expected 2 or 3 indices"),
    ("a.txt", "Point 0 ; InputPoint = [ 1 2 3 ] ; OutputPoint = [ 1 2 ]\n", {}, "input and output points of one dim"),
    ("a.txt", transformix(ONE, "a") + "Point 1 ; InputPoint = [ 1 2 3 ]\n", {}, r":2: expected OutputPoint = \["),
    # the others
    ("a.csv", "x,y,z,t\n1,2,3,0\n", {"frame": "IMAGE"}, r":2: expected z = 0"),
    ("a.csv", "x,y,t,z\n1,2,3,0\n", {"format": "ants"}, r":1: expected the columns x,y,z,t first"),
    ("a.csv", "n,X,Y\n1,2,3\n", {"format": "birl"}, r":1: expected the columns ,X,Y"),
    ("a.csv", '"a","true","1","2","3","4"\n"b","yes","1","2","3","4"\n', {}, r":2: expected name, true or false"),
    ("a.csv", '"a","true","1","2","3","4"\n"b","true","1","2","3"\n', {}, r":2: expected name, true or false"),
    ("a.csv", '"a","false","1","2","3","4"\n', {}, "expected at least one landmark"),
    ("a.tps", BLOCK, {}, r"give the image \(image=\).*or --frame IMAGE"),
    ("a.tps", "LM3=1\n1 2 3\n", {}, "the frame is not stated"),
    ("a.tps", "LM=3\n1 2\n3 4\n", {"frame": "IMAGE"}, r":3: expected 3 landmarks, found '2 before the block ends'"),
    ("a.tps", "LM=1\n1 2\n3 4\n", {"frame": "IMAGE"}, r":3: expected KEY=value after the landmarks, found '3 4'"),
    ("a.tps", "LM=1\n1 2 3\n", {"frame": "IMAGE"}, r":2: expected 2 coordinates, found '1 2 3'"),
    ("a.tps", "ID=1\nLM=1\n1 2\n", {"frame": "IMAGE"}, r":1: expected LM=n or LM3=n"),
    ("a.tps", BLOCK + "SCALE=0\n", {"frame": "IMAGE"}, "expected a SCALE above zero"),
    ("a.tps", BLOCK, {"image": GRID}, "the file is 2-D, the image that it refers to 3-D"),
    # volumes
    ("a.tag", HEAD + " 1 2 3;", {"volume": 2}, "expected a volume from 1 to 1, found 2"),
    ("a.tag", HEAD + " 1 2 3;", {"volume": 0}, "expected a volume from 1 to 1, found 0"),
    ("a.tag", HEAD.replace("1", "2") + " 1 2 3 4 5 6;", {}, "2 sets of landmarks; say which with volume="),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "options", "message"), REFUSED)
def test_a_file_that_is_not_what_it_claims_is_refused_with_its_path_and_line(
    tmp_path, name, content, options, message
):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(FileError, match=message) as refusal:
        read_landmarks(path, **options)
    assert str(refusal.value).startswith(str(path))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"CoordinateSystem": ', r"a\.json:1: expected the JSON sidecar of a table, found"),
        ("[" * 100_000, r"a\.json: expected the JSON sidecar of a table, found"),
        (
            '{"CoordinateSystem": "MNI"}',
            r"a\.json: expected CoordinateSystem to be RAS .*, found 'MNI'",
        ),
        (
            '{"CoordinateSystem": "RAS", "Units": "inch"}',
            r"a\.json: expected Units to be mm or um, found 'inch'",
        ),
    ],
)
def test_a_broken_sidecar_is_named(tmp_path, content, message):
    write(tmp_path, "a.json", content)
    with pytest.raises(FileError, match=message):
        read_landmarks(write(tmp_path, "a.csv", "x,y,z\n1,2,3\n"))


def test_what_is_no_file_is_refused(tmp_path):
    with pytest.raises(FileError, match="no such file"):
        read_landmarks(tmp_path / "absent.csv")
    with pytest.raises(FileError, match="a directory, not a file"):
        read_landmarks(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "excel"}, "format: expected one of mrk.json, fcsv"),
        ({"frame": "SCANNER"}, "frame: expected RAS, LPS or IMAGE"),
        ({"spacing": -1}, "spacing: expected positive"),
        ({"spacing": "wide"}, "spacing: expected a number"),
        ({"axis_order": "xxz"}, "axis_order: expected the letters"),
        ({"flip": "zz"}, "flip: expected some of the letters"),
    ],
)
def test_arguments_without_a_meaning_are_refused(tmp_path, options, message):
    with pytest.raises(ArgumentError, match=message):
        read_landmarks(write(tmp_path, "a.csv", RAS + "x,y,z\n1,2,3\n"), **options)


def test_every_format_may_be_named(tmp_path):
    named = {case.split(",")[0].split(" ")[0]: READ[case] for case in reversed(READ)}
    for name in set(FORMATS) - {"index"}:
        ending, render, d, signs, options, _ = named[name]
        path = write(tmp_path, f"points{ending}", render(np.ones((1, d)), ["a"]))
        landmarks = read_landmarks(path, format=name, **options)
        assert isinstance(landmarks, Landmarks)
        np.testing.assert_array_equal(landmarks.points, np.ones((1, d)) * signs)
