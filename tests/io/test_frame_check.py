"""A wrong frame shows where landmarks and image meet."""

import numpy as np
import pytest

import kunita
from kunita.errors import FileError, LandmarkError
from kunita.io.frame_check import check_inside
from kunita.io.frames import Frame, flip_points
from kunita.io.landmark_files.files import read_tables, write_landmarks

GRID = kunita.Grid(
    (20, 18, 16), np.array([[-3.0, 0, 0, 70], [0, 3, 0, 30], [0, 0, 3, -20], [0, 0, 0, 1.0]])
)
INSIDE = GRID.world(np.random.default_rng(0).uniform(1, 14, (8, 3)))


def remark(points, frame=Frame.RAS, grid=GRID, stated=""):
    landmarks = kunita.Landmarks(points, [f"p{i}" for i in range(len(points))])
    return check_inside(landmarks, grid, "fixed", "us.nii", frame, stated=stated)


def test_landmarks_inside_are_no_cause_for_a_remark():
    assert remark(INSIDE) is None
    assert remark(GRID.world(np.array([[0.0, 0, 0], [19, 17, 15]]))) is None


def test_those_outside_are_named_with_their_distance():
    points = INSIDE.copy()
    points[2] = GRID.world(np.array([5.0, 6.0, 15.5])) + [0, 0, 7.25]
    assert remark(points) == "fixed: 1 of 8 landmarks lie outside us.nii: p2 by 7.2 mm"


def test_many_outside_are_counted_and_five_of_them_named():
    points = np.concatenate([INSIDE[:1], INSIDE + [0, 0, 500.0]])
    said = remark(points)
    assert "8 of 9" in said
    assert "and 3 more" in said
    assert said.count(" by ") == 5


@pytest.mark.parametrize(("read_as", "true"), [(Frame.RAS, "LPS"), (Frame.LPS, "RAS")])
def test_a_flip_that_would_bring_most_inside_is_told(read_as, true):
    with pytest.raises(LandmarkError, match=f"look like {true}.*--fixed-frame {true}"):
        remark(flip_points(INSIDE, Frame.LPS), read_as)


def said_of(table):
    """What to do, as the refusal of a table tells it."""
    with pytest.raises(LandmarkError, match="look like") as refusal:
        remark(table.points, table.frame, stated=table.stated)
    return str(refusal.value).split("if so, ")[1]


@pytest.mark.parametrize("ending", [".mrk.json", ".fcsv", ".csv", ".tsv"])
@pytest.mark.parametrize(("true", "wrong"), [("RAS", "LPS"), ("LPS", "RAS")])
def test_a_frame_that_a_file_states_is_to_be_corrected_in_the_file(tmp_path, ending, true, wrong):
    path = tmp_path / f"points{ending}"
    write_landmarks(path, kunita.Landmarks(INSIDE), frame=true)
    right = path.read_text()
    path.write_text(right.replace(true, wrong))
    assert said_of(read_tables(path)[0]).startswith(
        f"correct the file, which states {wrong}: its CoordinateSystem"
    )
    with pytest.raises(FileError, match=f"the file says {wrong}"):  # so no option could be advised
        read_tables(path, frame=true)
    path.write_text(right)
    (table,) = read_tables(path)
    assert remark(table.points, table.frame, stated=table.stated) is None


def test_columns_named_after_the_wrong_axes_are_to_be_named_anew(tmp_path):
    path = tmp_path / "points.csv"
    rows = [",".join(map(repr, point)) for point in flip_points(INSIDE, Frame.LPS).tolist()]
    path.write_text("\n".join(["r,a,s", *rows]))
    assert said_of(read_tables(path)[0]).endswith("or the names of its columns")
    path.write_text("\n".join(["l,p,s", *rows]))
    assert remark(read_tables(path)[0].points) is None


@pytest.mark.parametrize(("ending", "wrong"), [(".tag", "LPS"), (".pts", "RAS")])
def test_the_option_that_is_told_cures(tmp_path, ending, wrong):
    path = tmp_path / f"points{ending}"
    write_landmarks(path, kunita.Landmarks(INSIDE))
    option, frame = said_of(read_tables(path, frame=wrong)[0]).split(" ")[1:]
    assert option == "--fixed-frame"
    (table,) = read_tables(path, frame=frame)
    assert remark(table.points, table.frame, stated=table.stated) is None


def test_a_few_outside_are_never_taken_for_a_flip():
    points = INSIDE.copy()
    points[:4] = flip_points(points[:4], Frame.LPS)
    assert "4 of 8" in remark(points)


def test_dimensions_must_agree():
    with pytest.raises(LandmarkError, match="landmarks are 2-D, the image us.nii is 3-D"):
        remark(INSIDE[:, :2])


def test_in_two_dimensions_nothing_is_flipped():
    picture = kunita.Grid((40, 30), np.eye(3))
    assert "3 of 3" in remark(-np.array([[5.0, 5], [9, 9], [20, 20]]), Frame.IMAGE, picture)


def test_a_third_outside_that_a_flip_would_bring_in_are_enough_to_refuse():
    """Landmarks near the origin are inside either way round: the others give the flip away."""
    grid = kunita.Grid(
        (30, 30, 30), np.array([[3.0, 0, 0, -10], [0, 3, 0, -60], [0, 0, 3, -20], [0, 0, 0, 1.0]])
    )
    rng = np.random.default_rng(0)
    either, away = (
        rng.uniform([-9, -25, 0], [9, 25, 50], (20, 3)),
        rng.uniform([-70, -20, 0], [-20, 20, 50], (8, 3)),
    )
    with pytest.raises(LandmarkError, match="8 of 28 landmarks lie outside.*look like LPS"):
        remark(np.concatenate([either, away]), Frame.RAS, grid)
    assert "1 of 21" in remark(
        np.concatenate([either, away[:1]]), Frame.RAS, grid
    )  # one alone may be a slip
