"""Meshes and streamlines survive their files, in whatever frame, and other programs read what we
write."""

import dataclasses
import pathlib
import re
import subprocess
import sys

import nibabel
import numpy as np
import pytest
from vtkmodules.util.numpy_support import vtk_to_numpy
from vtkmodules.vtkCommonCore import vtkStringArray
from vtkmodules.vtkFiltersCore import vtkTriangleFilter
from vtkmodules.vtkIOGeometry import vtkSTLReader, vtkSTLWriter
from vtkmodules.vtkIOLegacy import vtkPolyDataReader, vtkPolyDataWriter
from vtkmodules.vtkIOPLY import vtkPLYReader, vtkPLYWriter
from vtkmodules.vtkIOXML import vtkXMLPolyDataReader, vtkXMLPolyDataWriter

from kunita.data.geometry import Attribute, Cells, Mesh, Role, Streamlines, VertexValues, cells_of
from kunita.data.image import Grid
from kunita.errors import ArgumentError, FileError, KunitaWarning
from kunita.io.geometry_files.files import is_geometry, read_geometry, write_geometry

RNG = np.random.default_rng(7)
POINTS = np.round(RNG.normal(scale=30.0, size=(6, 3)), 2)
OCTAHEDRON = np.array(
    [[0, 2, 4], [2, 1, 4], [1, 3, 4], [3, 0, 4], [2, 0, 5], [1, 2, 5], [3, 1, 5], [0, 3, 5]]
)
MESH = Mesh(POINTS, faces=cells_of(OCTAHEDRON))
RICH = Mesh(
    POINTS,
    vertices=cells_of(np.array([[0], [5]])),
    lines=Cells(np.array([0, 2, 5]), np.array([0, 1, 2, 3, 4])),
    faces=Cells(np.array([0, 3, 7]), np.array([0, 2, 4, 0, 2, 1, 3])),
    strips=cells_of(np.array([[0, 1, 2, 3, 4]])),
    point_data=(
        Attribute("two words", np.arange(6, dtype=np.int32)),
        Attribute("colour", np.arange(18, dtype=np.uint8).reshape(6, 3), Role.SCALARS),
        Attribute("speed", RNG.normal(size=(6, 3)), Role.VECTORS),
        Attribute("Normals", RNG.normal(size=(6, 3)), Role.NORMALS),
        Attribute("pair", RNG.normal(size=(6, 2)).astype(np.float32)),
    ),
    cell_data=(Attribute("label", np.arange(7, dtype=np.int32)),),
)
GRID = Grid(
    (20, 30, 40), np.array([[0, 2.0, 0, -10], [-1.5, 0, 0, 20], [0, 0, 3.0, -30], [0, 0, 0, 1]])
)
LINES = Streamlines(POINTS, [0, 3, 1, 0, 2], grid=GRID)
FACTORS = RNG.normal(size=(6, 3, 3))
VALUES = VertexValues(
    np.arange(1.0, 7.0), np.arange(2.0, 8.0), FACTORS @ FACTORS.transpose(0, 2, 1)
)


def extremes(code):
    """Six numbers of a type, its smallest and its largest among them."""
    limits = np.finfo(code) if code.startswith("f") else np.iinfo(code)
    return np.array([limits.min, limits.max, 0, 1, 2, 3], dtype=code)


NUMBERS = ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8")
VTK_MESHES = {
    "everything": dataclasses.replace(
        RICH,
        point_data=(
            *RICH.point_data,
            Attribute("texture", RNG.normal(size=(6, 2)), Role.TEXTURE),
            Attribute("stress", RNG.normal(size=(6, 3, 3)), Role.TENSORS),
            *(Attribute(code, extremes(code)) for code in NUMBERS),
        ),
        cell_data=(
            *RICH.cell_data,
            Attribute("nine", RNG.normal(size=(7, 9)), Role.SCALARS),
            Attribute("force", RNG.normal(size=(7, 3)).astype(np.float32), Role.VECTORS),
        ),
    ),
    "points": Mesh(POINTS, point_data=(Attribute("big endian", np.arange(6, dtype=">i4")),)),
    "data of no cells": Mesh(POINTS, cell_data=(Attribute("label", np.zeros(0, dtype=np.int32)),)),
    "lines": Mesh(
        POINTS, lines=RICH.lines, cell_data=(Attribute("bundle", np.array([3, 4], dtype=np.uint8)),)
    ),
    "a line without a point": Mesh(
        POINTS, lines=Cells(np.array([0, 2, 2, 3]), np.array([5, 0, 1]))
    ),
    "polygons": Mesh(POINTS, faces=RICH.faces),
    "strips": Mesh(
        POINTS, strips=RICH.strips, cell_data=(Attribute("n", np.ones((1, 3)), Role.NORMALS),)
    ),
    "32 KiB and more": Mesh(
        RNG.normal(size=(5000, 3)), faces=cells_of(RNG.integers(5000, size=(9000, 3)))
    ),
    "32 KiB and no more": Mesh(
        RNG.normal(size=(4096, 3)), point_data=(Attribute("block", RNG.normal(size=4096)),)
    ),
}
VTK_ROLES = (
    Role.SCALARS,
    Role.VECTORS,
    Role.NORMALS,
    Role.TEXTURE,
    Role.TENSORS,
)  # by VTK's numbers for them

DOUBLE, SINGLE = 1e-12, 1e-5  # of coordinates up to 100 mm: 100 × 2⁻²⁴ is 6e-6
PRECISION = {
    ".vtk": DOUBLE, ".vtp": DOUBLE, ".ply": DOUBLE, ".stl": SINGLE, ".gii": SINGLE, ".trk": SINGLE, ".tck": SINGLE,
}  # fmt: skip
FRAMED = (".vtk", ".vtp", ".ply", ".stl")
VTK_READERS = {
    ".vtk": vtkPolyDataReader, ".vtp": vtkXMLPolyDataReader, ".ply": vtkPLYReader, ".stl": vtkSTLReader,
}  # fmt: skip


def sample(suffix):
    return LINES if suffix in (".trk", ".tck") else MESH


def written(folder, suffix, geometry=None, values=None, **options):
    path = folder / f"shape{suffix}"
    write_geometry(path, sample(suffix) if geometry is None else geometry, values, **options)
    return path


def corners(geometry):
    return geometry.points[geometry.triangles]


def by_vtk(path):
    reader = VTK_READERS[path.suffix]()
    reader.SetFileName(str(path))
    reader.Update()
    return reader.GetOutput()


def points_by_vtk(data):
    return vtk_to_numpy(data.GetPoints().GetData()).astype(float)


def faces_by_vtk(data):
    """(k, 3, 3) corners of the triangles."""
    ids = [
        [data.GetCell(i).GetPointId(j) for j in range(3)] for i in range(data.GetNumberOfCells())
    ]
    return points_by_vtk(data)[np.array(ids)]


def attribute(geometry, name):
    return next(each for each in geometry.point_data if each.name == name)


# Round trips


@pytest.mark.parametrize("suffix", PRECISION)
def test_what_is_written_is_read_again(tmp_path, suffix):
    back = read_geometry(written(tmp_path, suffix))
    if isinstance(back, Streamlines):
        np.testing.assert_array_equal(back.lengths, LINES.lengths)
        np.testing.assert_allclose(back.points, POINTS, atol=PRECISION[suffix])
    else:
        np.testing.assert_allclose(corners(back), POINTS[OCTAHEDRON], atol=PRECISION[suffix])
        assert len(back.points) == len(POINTS)


@pytest.mark.parametrize("suffix", PRECISION)
def test_a_file_read_and_written_again_holds_the_same(tmp_path, suffix):
    first = read_geometry(written(tmp_path, suffix, values=VALUES))
    second = read_geometry(written(tmp_path, suffix, first, overwrite=True))
    # only .trk stores other coordinates than it is given: rounding to single precision happens in
    # those
    np.testing.assert_allclose(second.points, first.points, atol=SINGLE if suffix == ".trk" else 0)
    assert [a.name for a in second.point_data] == [a.name for a in first.point_data]
    for one, other in zip(first.point_data, second.point_data, strict=True):
        np.testing.assert_array_equal(one.values, other.values)


@pytest.mark.parametrize("frame", ["RAS", "LPS"])
@pytest.mark.parametrize("suffix", [".vtk", ".vtp"])
def test_vtk_keeps_every_kind_of_cell_and_of_data(tmp_path, suffix, frame):
    back = read_geometry(written(tmp_path, suffix, RICH, VALUES, frame=frame))
    for kind in ("vertices", "lines", "faces", "strips"):
        np.testing.assert_array_equal(getattr(back, kind).offsets, getattr(RICH, kind).offsets)
        np.testing.assert_array_equal(
            getattr(back, kind).connectivity, getattr(RICH, kind).connectivity
        )
    for each in RICH.point_data:
        kept = attribute(back, each.name)
        assert (kept.role, kept.values.dtype) == (each.role, each.values.dtype)
        np.testing.assert_array_equal(kept.values, each.values)
    np.testing.assert_array_equal(back.cell_data[0].values, np.arange(7))
    np.testing.assert_allclose(
        attribute(back, "covariance_mm2").values, VALUES.covariance, rtol=1e-14
    )


def described(attributes):
    """By name: role, type, and rows of columns."""
    return {
        a.name: (a.role, a.values.dtype.newbyteorder("="), a.columns.tolist()) for a in attributes
    }


def described_by_vtk(data):
    active = {
        data.GetAttribute(number).GetName(): role
        for number, role in enumerate(VTK_ROLES)
        if data.GetAttribute(number)
    }
    arrays = {
        data.GetArrayName(i): vtk_to_numpy(data.GetArray(i))
        for i in range(data.GetNumberOfArrays())
    }
    return described(
        Attribute(name, values, active.get(name, Role.PLAIN)) for name, values in arrays.items()
    )


@pytest.mark.parametrize("suffix", [".vtk", ".vtp"])
@pytest.mark.parametrize("name", VTK_MESHES)
def test_vtk_reads_exactly_what_we_write_and_so_do_we(tmp_path, capfd, name, suffix):
    mesh = VTK_MESHES[name]
    path = written(tmp_path, suffix, mesh, frame="RAS")
    data, back = by_vtk(path), read_geometry(path)
    np.testing.assert_array_equal(points_by_vtk(data), mesh.points)
    np.testing.assert_array_equal(back.points, mesh.points)
    theirs = {
        "vertices": data.GetVerts(), "lines": data.GetLines(), "faces": data.GetPolys(), "strips": data.GetStrips(),
    }  # fmt: skip
    for kind, cells in theirs.items():
        ours, again = getattr(mesh, kind), getattr(back, kind)
        np.testing.assert_array_equal(vtk_to_numpy(cells.GetOffsetsArray()), ours.offsets)
        np.testing.assert_array_equal(vtk_to_numpy(cells.GetConnectivityArray()), ours.connectivity)
        np.testing.assert_array_equal(again.offsets, ours.offsets)
        np.testing.assert_array_equal(again.connectivity, ours.connectivity)
    assert (
        described_by_vtk(data.GetPointData())
        == described(back.point_data)
        == described(mesh.point_data)
    )
    assert (
        described_by_vtk(data.GetCellData())
        == described(back.cell_data)
        == described(mesh.cell_data)
    )
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "name",
    ["two words", "100 %20", 'a "b" <c> & d', "größe in µm²", "tab\tand\nline", "{0} {name}"],
)
@pytest.mark.parametrize("suffix", [".vtk", ".vtp"])
def test_names_of_arrays_survive_whatever_is_in_them(tmp_path, suffix, name):
    mesh = Mesh(POINTS, point_data=(Attribute(name, np.arange(6.0), Role.SCALARS),))
    path = written(tmp_path, suffix, mesh)
    assert by_vtk(path).GetPointData().GetScalars().GetName() == name
    assert [(a.name, a.role) for a in read_geometry(path).point_data] == [(name, Role.SCALARS)]


def test_names_in_a_legacy_file_are_quoted_as_vtk_quotes_them(tmp_path):
    signs = "".join(map(chr, range(1, 128))).translate(
        {ord("{"): None, ord("}"): None}
    )  # VTK 9.7 aborts on braces
    names = [signs[start : start + 8] for start in range(0, len(signs), 8)]
    path = written(
        tmp_path,
        ".vtk",
        Mesh(POINTS, point_data=tuple(Attribute(name, np.arange(6.0)) for name in names)),
    )
    data = by_vtk(path)
    for number, name in enumerate(names):
        data.GetPointData().GetArray(number).SetName(name)
    writer = vtkPolyDataWriter()
    writer.SetInputData(data)
    writer.SetFileName(str(tmp_path / "theirs.vtk"))
    writer.Write()
    ours, theirs = (
        re.findall(rb"\n(\S+) 1 6 double\n", file.read_bytes())
        for file in (path, tmp_path / "theirs.vtk")
    )
    assert ours == theirs
    assert len(ours) == len(names)


@pytest.mark.parametrize(
    ("suffix", "name", "stored"), [(".vtk", "", "unknown"), (".vtp", "bell\a \udcff", "bell_ _")]
)
def test_a_name_that_the_format_cannot_hold_is_stored_as_one_that_it_can(
    tmp_path, suffix, name, stored
):
    path = written(
        tmp_path, suffix, Mesh(POINTS, point_data=(Attribute(name, np.arange(6.0), Role.SCALARS),))
    )
    assert by_vtk(path).GetPointData().GetScalars().GetName() == stored
    assert read_geometry(path).point_data[0].name == stored


@pytest.mark.parametrize("suffix", [".vtk", ".vtp"])
def test_of_two_arrays_with_one_role_the_last_has_it_and_of_two_with_one_name_it_is_kept(
    tmp_path, suffix
):
    first, second = (
        Attribute("a", np.zeros((6, 3)), Role.VECTORS),
        Attribute("b", np.ones((6, 3)), Role.VECTORS),
    )
    third, fourth = Attribute("c", np.zeros(6)), Attribute("c", np.ones((6, 2)), Role.TEXTURE)
    path = written(tmp_path, suffix, Mesh(POINTS, point_data=(first, second, third, fourth)))
    expected = described((dataclasses.replace(first, role=Role.PLAIN), second, fourth))
    assert (
        described_by_vtk(by_vtk(path).GetPointData())
        == described(read_geometry(path).point_data)
        == expected
    )


@pytest.mark.parametrize("frame", ["RAS", "LPS"])
def test_ply_keeps_what_it_can_and_makes_triangles_of_strips(tmp_path, frame):
    labels = (Attribute("label", np.arange(3.0)),)
    mesh = Mesh(
        POINTS, faces=RICH.faces, strips=RICH.strips, point_data=RICH.point_data, cell_data=labels
    )
    back = read_geometry(written(tmp_path, ".ply", mesh, VALUES, frame=frame))
    np.testing.assert_array_equal(back.faces.sizes, [3, 4, 3, 3, 3])
    np.testing.assert_array_equal(back.triangles, mesh.triangles)
    np.testing.assert_array_equal(back.cell_data[0].values, [0, 1, 2, 2, 2])
    np.testing.assert_array_equal(attribute(back, "two_words").values, np.arange(6))
    np.testing.assert_array_equal(attribute(back, "pair_1").values, RICH.point_data[4].values[:, 1])
    np.testing.assert_array_equal(attribute(back, "RGB").values, RICH.point_data[1].values)
    np.testing.assert_array_equal(attribute(back, "Normals").values, RICH.point_data[3].values)
    np.testing.assert_allclose(
        attribute(back, "covariance_mm2").values, VALUES.covariance, rtol=1e-14
    )


def test_trk_keeps_numbers_of_vertices_and_of_streamlines(tmp_path):
    colours = Attribute("rgb", np.arange(18, dtype=np.float32).reshape(6, 3))
    anisotropy, weight = Attribute("fa", np.arange(6.0)), Attribute("weight", np.arange(5.0))
    lines = Streamlines(POINTS, LINES.lengths, (anisotropy, colours), (weight,), GRID)
    back = read_geometry(written(tmp_path, ".trk", lines, VALUES))
    assert [a.name for a in back.point_data] == ["fa", "rgb", "std_mm", "radius95_mm"]
    np.testing.assert_array_equal(back.point_data[1].values, lines.point_data[1].values)
    np.testing.assert_array_equal(back.point_data[2].values[:, 0], VALUES.std)
    np.testing.assert_array_equal(back.line_data[0].values[:, 0], np.arange(5))
    assert back.grid.shape == GRID.shape
    np.testing.assert_allclose(back.grid.affine, GRID.affine, atol=SINGLE)


def test_tck_keeps_what_its_header_says_but_for_its_timestamp(tmp_path):
    notes = (("method", "iFOD2"), ("roi", "seed a.mif"), ("roi", "mask b:c.mif"))
    first = written(tmp_path, ".tck", Streamlines(POINTS, LINES.lengths, notes=notes))
    back = read_geometry(first)
    assert back.notes == notes
    before = first.read_bytes()
    written(tmp_path, ".tck", back, overwrite=True)
    stamps = [re.search(rb"timestamp: (\S+)", data)[1] for data in (before, first.read_bytes())]
    assert stamps[0] != stamps[1]


@pytest.mark.parametrize("suffix", [".gii", ".surf.gii"])
def test_gifti_keeps_the_anatomical_structure_and_gives_it_to_the_scalars(tmp_path, suffix):
    notes = (("AnatomicalStructurePrimary", "CortexLeft"),)
    write_geometry(tmp_path / f"lh{suffix}", Mesh(POINTS, faces=MESH.faces, notes=notes), VALUES)
    assert read_geometry(tmp_path / f"lh{suffix}").notes == notes
    scalars = nibabel.load(tmp_path / "lh.std.shape.gii")
    assert dict(scalars.meta) == dict(notes)


# Frames


@pytest.mark.parametrize("suffix", FRAMED)
def test_ras_and_lps_storage_of_a_mesh_load_equal(tmp_path, suffix):
    (tmp_path / "ras").mkdir()
    (tmp_path / "lps").mkdir()
    ras = written(tmp_path / "ras", suffix, frame="RAS")
    lps = written(tmp_path / "lps", suffix, frame="LPS")
    np.testing.assert_array_equal(read_geometry(ras).points, read_geometry(lps).points)
    np.testing.assert_array_equal(
        faces_by_vtk(by_vtk(ras)), faces_by_vtk(by_vtk(lps)) * [-1, -1, 1]
    )


@pytest.mark.parametrize("frame", ["RAS", "LPS"])
@pytest.mark.parametrize("suffix", FRAMED)
def test_a_mesh_is_written_in_the_frame_that_it_came_in_and_says_so(tmp_path, suffix, frame):
    back = read_geometry(written(tmp_path, suffix, frame=frame))
    again = written(tmp_path, suffix, back, overwrite=True)
    assert read_geometry(again).frame == frame
    if suffix != ".vtp":
        assert f"SPACE={frame}".encode() in again.read_bytes()[:200]
    else:
        assert by_vtk(again).GetFieldData().GetAbstractArray("SPACE").GetValue(0) == frame


@pytest.mark.parametrize("suffix", FRAMED)
def test_a_stated_frame_may_be_confirmed_but_not_contradicted(tmp_path, suffix):
    path = written(tmp_path, suffix, frame="LPS")
    read_geometry(path, frame="LPS")
    with pytest.raises(FileError, match=re.escape(str(path)) + ".*LPS.*'RAS'"):
        read_geometry(path, frame="RAS")


@pytest.mark.parametrize("suffix", [".gii", ".trk", ".tck"])
def test_formats_that_are_ras_by_definition_are_never_lps(tmp_path, suffix):
    path = written(tmp_path, suffix)
    read_geometry(path, frame="RAS")
    with pytest.raises(FileError, match="expected the frame RAS"):
        read_geometry(path, frame="LPS")
    with pytest.raises(FileError, match="expected the frame RAS"):
        written(tmp_path, suffix, frame="LPS", overwrite=True)
    with pytest.raises(FileError, match="3-D"):
        read_geometry(path, frame="IMAGE")


def test_an_lps_mesh_becomes_a_gifti_surface_in_ras(tmp_path):
    mesh = read_geometry(written(tmp_path, ".vtk", frame="LPS"))
    np.testing.assert_allclose(
        nibabel.load(written(tmp_path, ".gii", mesh)).darrays[0].data, POINTS, atol=SINGLE
    )


def theirs(folder, suffix, set_up):
    """A file from VTK's own writers, which say nothing about a frame."""
    writers = {
        ".vtk": vtkPolyDataWriter, ".vtp": vtkXMLPolyDataWriter, ".ply": vtkPLYWriter, ".stl": vtkSTLWriter,
    }  # fmt: skip
    data = by_vtk(written(folder, ".vtk", frame="RAS"))
    writer = writers[suffix]()
    writer.SetInputData(data)
    set_up(writer)
    writer.SetFileName(str(folder / f"theirs{suffix}"))
    writer.Write()
    return folder / f"theirs{suffix}"


THEIRS = {
    "text": (".vtk", lambda w: (w.SetFileTypeToASCII(), w.SetFileVersion(42))),
    "binary": (".vtk", lambda w: (w.SetFileTypeToBinary(), w.SetFileVersion(42))),
    "text 5.1": (".vtk", lambda w: (w.SetFileTypeToASCII(), w.SetFileVersion(51))),
    "binary 5.1": (".vtk", lambda w: (w.SetFileTypeToBinary(), w.SetFileVersion(51))),
    "XML text": (".vtp", lambda w: w.SetDataModeToAscii()),
    "XML binary": (".vtp", lambda w: (w.SetDataModeToBinary(), w.SetHeaderTypeToUInt64())),
    "XML plain": (".vtp", lambda w: (w.SetDataModeToBinary(), w.SetCompressorTypeToNone())),
    "XML raw": (".vtp", lambda w: (w.SetDataModeToAppended(), w.EncodeAppendedDataOff())),
    "XML raw plain": (".vtp", lambda w: (w.EncodeAppendedDataOff(), w.SetCompressorTypeToNone())),
    "XML LZMA": (".vtp", lambda w: w.SetCompressorTypeToLZMA()),
    "XML blocks": (".vtp", lambda w: w.SetBlockSize(48)),
    "XML big": (".vtp", lambda w: w.SetByteOrderToBigEndian()),
    "PLY text": (".ply", lambda w: w.SetFileTypeToASCII()),
    "PLY little": (".ply", lambda w: w.SetDataByteOrderToLittleEndian()),
    "PLY big": (".ply", lambda w: w.SetDataByteOrderToBigEndian()),
    "STL text": (".stl", lambda w: w.SetFileTypeToASCII()),
    "STL binary": (".stl", lambda w: w.SetFileTypeToBinary()),
}  # fmt: skip


@pytest.mark.parametrize("kind", THEIRS)
def test_a_mesh_without_a_stated_frame_is_read_in_the_one_given_and_in_no_other(tmp_path, kind):
    path = theirs(tmp_path, *THEIRS[kind])
    with pytest.raises(FileError, match=r"give --frame RAS or LPS; Slicer since 2020 writes LPS"):
        read_geometry(path)
    np.testing.assert_allclose(
        corners(read_geometry(path, frame="RAS")), POINTS[OCTAHEDRON], atol=SINGLE
    )
    np.testing.assert_allclose(
        corners(read_geometry(path, frame="LPS")) * [-1, -1, 1], POINTS[OCTAHEDRON], atol=SINGLE
    )


@pytest.mark.parametrize(
    ("data_space", "to_space", "applied"),
    [(0, 1, True), (1, 3, False), (3, 4, False), (0, 3, False)],
)
def test_gifti_coordinates_of_an_unknown_space_are_taken_to_the_scanner(
    tmp_path, data_space, to_space, applied
):
    path = written(tmp_path, ".gii")
    image = nibabel.load(path)
    shift = np.eye(4)
    shift[:3, 3] = 10, 20, 30
    image.darrays[0].coordsys = nibabel.gifti.GiftiCoordSystem(data_space, to_space, shift)
    nibabel.save(image, path)
    np.testing.assert_allclose(
        read_geometry(path).points, POINTS + applied * shift[:3, 3], atol=SINGLE
    )


def test_a_freesurfer_surface_off_the_scanners_origin_is_warned_about(tmp_path):
    path = written(
        tmp_path, ".gii", Mesh(POINTS, faces=MESH.faces, notes=(("VolGeomC_A", "12.5"),))
    )
    image = nibabel.load(path)
    image.darrays[0].coordsys = nibabel.gifti.GiftiCoordSystem(0, 3, np.eye(4))
    nibabel.save(image, path)
    with pytest.warns(KunitaWarning, match=r"FreeSurfer.*12\.5"):
        read_geometry(path)


# The uncertainty of the vertices


@pytest.mark.parametrize("frame", ["RAS", "LPS"])
@pytest.mark.parametrize("suffix", [".vtk", ".vtp"])
def test_vtk_reads_the_covariance_flipped_with_its_vertex(tmp_path, suffix, frame):
    data = by_vtk(written(tmp_path, suffix, values=VALUES, frame=frame))
    flip = np.diag([-1.0, -1.0, 1.0]) if frame == "LPS" else np.eye(3)
    covariances = vtk_to_numpy(data.GetPointData().GetTensors()).reshape(-1, 3, 3)
    assert data.GetPointData().GetTensors().GetName() == "covariance_mm2"
    np.testing.assert_allclose(covariances, flip @ VALUES.covariance @ flip, rtol=1e-14)
    np.testing.assert_array_equal(vtk_to_numpy(data.GetPointData().GetArray("std_mm")), VALUES.std)
    np.testing.assert_array_equal(
        vtk_to_numpy(data.GetPointData().GetArray("radius95_mm")), VALUES.radius
    )


@pytest.mark.parametrize("frame", ["RAS", "LPS"])
def test_the_table_next_to_an_stl_has_the_covariance_flipped_with_its_vertex(tmp_path, frame):
    path = tmp_path / "skull.stl"
    assert write_geometry(path, MESH, VALUES, frame=frame) == (
        path,
        tmp_path / "skull.uncertainty.csv",
    )
    lines = (tmp_path / "skull.uncertainty.csv").read_text().splitlines()
    assert lines[0] == f"# CoordinateSystem = {frame}"
    rows = np.genfromtxt(lines[1:], delimiter=",", names=True)
    sign = -1 if frame == "LPS" else 1
    np.testing.assert_allclose(rows["x"], sign * POINTS[:, 0], rtol=1e-14)
    np.testing.assert_allclose(rows["cov_xy"], VALUES.covariance[:, 0, 1], rtol=1e-14)
    np.testing.assert_allclose(rows["cov_xz"], sign * VALUES.covariance[:, 0, 2], rtol=1e-14)
    np.testing.assert_array_equal(rows["radius95_mm"], VALUES.radius)


@pytest.mark.parametrize("frame", ["RAS", "LPS"])
def test_the_vertices_of_a_ply_have_their_covariance_in_its_frame(tmp_path, frame):
    data = written(tmp_path, ".ply", values=VALUES, frame=frame).read_bytes()
    header, body = data.split(b"end_header\n")
    names = re.findall(r"property double (\w+)", header.decode())
    rows = np.frombuffer(body, "<f8", 6 * len(names)).reshape(6, -1)
    column = dict(zip(names, rows.T, strict=True))
    sign = -1 if frame == "LPS" else 1
    np.testing.assert_allclose(column["y"], sign * POINTS[:, 1], rtol=1e-14)
    np.testing.assert_allclose(column["cov_yz"], sign * VALUES.covariance[:, 1, 2], rtol=1e-14)
    np.testing.assert_allclose(column["cov_yy"], VALUES.covariance[:, 1, 1], rtol=1e-14)
    np.testing.assert_array_equal(column["std_mm"], VALUES.std)


@pytest.mark.parametrize("suffix", [".ply", ".stl"])
def test_vtk_reads_our_faces_whatever_else_the_file_holds(tmp_path, suffix):
    data = by_vtk(written(tmp_path, suffix, values=VALUES))
    np.testing.assert_allclose(faces_by_vtk(data), POINTS[OCTAHEDRON], atol=SINGLE)


def test_nibabel_reads_our_surface_and_its_scalars(tmp_path):
    path = tmp_path / "lh.pial.surf.gii"
    files = write_geometry(path, MESH, VALUES)
    assert [file.name for file in files] == [
        path.name,
        "lh.pial.std.shape.gii",
        "lh.pial.radius95.shape.gii",
    ]
    points, triangles = nibabel.load(path).agg_data(("pointset", "triangle"))
    np.testing.assert_allclose(points[triangles], POINTS[OCTAHEDRON], atol=SINGLE)
    np.testing.assert_array_equal(nibabel.load(files[1]).agg_data("shape"), VALUES.std)
    np.testing.assert_array_equal(nibabel.load(files[2]).agg_data("shape"), VALUES.radius)


@pytest.mark.parametrize("suffix", [".trk", ".tck"])
def test_nibabel_reads_our_streamlines(tmp_path, suffix):
    full = Streamlines(POINTS, [3, 1, 2], grid=GRID)  # nibabel has no streamlines without a vertex
    file = nibabel.streamlines.load(written(tmp_path, suffix, full, VALUES))
    assert [len(line) for line in file.streamlines] == [3, 1, 2]
    np.testing.assert_allclose(np.concatenate(list(file.streamlines)), POINTS, atol=SINGLE)
    if suffix == ".trk":
        np.testing.assert_array_equal(
            np.concatenate(list(file.tractogram.data_per_point["std_mm"]))[:, 0], VALUES.std
        )
        np.testing.assert_allclose(file.header["voxel_to_rasmm"], GRID.affine, atol=SINGLE)
        np.testing.assert_array_equal(file.header["dimensions"], GRID.shape)


def track_scalars(path):
    """The header and the values of each streamline in a .tsf, by the letter of MRtrix's
    documentation."""
    data = path.read_bytes()
    header = data[: data.index(b"\nEND\n")].decode().splitlines()
    assert header[0] == "mrtrix track scalars"
    fields = dict(line.split(": ", 1) for line in header[1:])
    assert fields["datatype"] == "Float32LE"
    values = np.frombuffer(data[int(fields["file"].split()[1]) :], "<f4")
    assert np.isposinf(values[-1])
    lines, line = [], []
    for value in values[:-1]:
        if np.isnan(value):
            lines.append(line)
            line = []
        else:
            line.append(float(value))
    assert line == []
    return fields, lines


def test_track_scalars_belong_to_their_streamlines(tmp_path):
    """The conditions that MRtrix's tsfvalidate checks: timestamp, count, and the length of each
    streamline."""
    tracks = tmp_path / "cst.tck"
    files = write_geometry(tracks, LINES, VALUES)
    assert [file.name for file in files] == ["cst.tck", "cst_std.tsf", "cst_radius95.tsf"]
    stamp = re.search(r"timestamp: (\S+)", tracks.read_bytes().decode("latin1"))[1]
    for file, expected in zip(files[1:], (VALUES.std, VALUES.radius), strict=True):
        fields, lines = track_scalars(file)
        assert fields["timestamp"] == stamp
        assert int(fields["count"]) == len(lines) == 5
        assert [len(line) for line in lines] == [0, 3, 1, 0, 2]
        np.testing.assert_array_equal(np.concatenate(lines), expected)


# Streamlines of others


@pytest.mark.parametrize(
    "name",
    [
        "standard.trk", "standard.LPS.trk", "complex.trk", "complex_big_endian.trk",
        "standard.tck", "simple_big_endian.tck", "matlab_nan.tck", "multiline_header_field.tck",
    ],
)  # fmt: skip
def test_streamlines_are_where_nibabel_has_them(name):
    path = pathlib.Path(nibabel.__file__).parent / "tests" / "data" / name
    if not path.exists():
        pytest.skip("this nibabel was installed without its test data")
    ours, file = read_geometry(path), nibabel.streamlines.load(path)
    np.testing.assert_array_equal(ours.lengths, [len(line) for line in file.streamlines])
    np.testing.assert_allclose(ours.points, np.concatenate(list(file.streamlines)), atol=SINGLE)
    data = file.tractogram.data_per_point
    assert {a.name: a.values.tolist() for a in ours.point_data} == {
        key: np.concatenate(list(data[key])).tolist() for key in data
    }


def test_moved_streamlines_are_stored_on_the_grid_of_the_space_that_they_moved_to(tmp_path):
    fixed = Grid((7, 8, 9), np.diag([3.0, -2.0, 1.0, 1.0]) + np.eye(4, k=3) * 5)
    path = written(tmp_path, ".trk", LINES.with_points(POINTS + 4.0), reference=fixed)
    back = read_geometry(path)
    np.testing.assert_allclose(back.points, POINTS + 4.0, atol=SINGLE)
    assert back.grid.shape == fixed.shape
    np.testing.assert_allclose(back.grid.affine, fixed.affine, atol=SINGLE)


def test_a_trk_without_a_grid_or_a_matrix_is_refused(tmp_path):
    with pytest.raises(FileError, match="--reference"):
        written(tmp_path, ".trk", Streamlines(POINTS, LINES.lengths))
    path = written(tmp_path, ".trk")
    data = bytearray(path.read_bytes())
    data[992:996] = (1).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(FileError, match=r"vox_to_ras.*version 1"):
        read_geometry(path)


# What moves and what does not


def test_a_moved_mesh_keeps_its_data_but_not_its_normals():
    moved = RICH.with_points(POINTS + 1.0)
    assert [a.name for a in moved.point_data] == ["two words", "colour", "speed", "pair"]
    assert moved.faces is RICH.faces
    with pytest.raises(ArgumentError, match=r"expected shape \(6, 3\)"):
        RICH.with_points(POINTS[:5])


def test_strips_and_polygons_are_split_into_triangles_as_vtk_splits_them(tmp_path):
    mesh = Mesh(POINTS, faces=cells_of(OCTAHEDRON[:2]), strips=RICH.strips)
    triangles = vtkTriangleFilter()
    triangles.SetInputData(by_vtk(written(tmp_path, ".vtk", mesh)))
    triangles.Update()
    found = {frozenset(map(tuple, face)) for face in faces_by_vtk(triangles.GetOutput())}
    assert found == {frozenset(map(tuple, face)) for face in corners(mesh)}
    normals = [
        np.cross(face[1] - face[0], face[2] - face[0]).tolist()
        for face in faces_by_vtk(triangles.GetOutput())
    ]
    ours = np.cross(
        corners(mesh)[:, 1] - corners(mesh)[:, 0], corners(mesh)[:, 2] - corners(mesh)[:, 0]
    )
    np.testing.assert_allclose(sorted(ours.tolist()), sorted(normals), atol=1e-9)


# Refusals


@pytest.mark.parametrize("suffix", PRECISION)
@pytest.mark.parametrize("damage", ["empty", "half", "last tenth", "garbage", "text"])
def test_a_damaged_file_is_refused_by_name_in_one_line_and_in_silence(
    tmp_path, capfd, suffix, damage
):
    path = written(tmp_path, suffix)
    data = path.read_bytes()
    path.write_bytes(
        {
            "empty": b"",
            "half": data[: len(data) // 2],
            "last tenth": data[: -len(data) // 10],
            "garbage": np.random.default_rng(1).bytes(500),
            "text": b"x,y,z\n1,2,3\n",
        }[damage]
    )
    with pytest.raises(FileError) as refusal:
        read_geometry(path, frame="RAS")
    assert str(refusal.value).startswith(str(path))
    assert "\n" not in str(refusal.value)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("suffix", PRECISION)
def test_a_file_cut_short_is_refused_unless_nothing_is_lost(tmp_path, suffix):
    path = written(tmp_path, suffix)
    data, whole = path.read_bytes(), read_geometry(path)
    for length in range(1, len(data), max(len(data) // 80, 1)):
        path.write_bytes(data[:length])
        try:
            cut = read_geometry(path)
        except FileError:
            continue
        np.testing.assert_array_equal(cut.points, whole.points)


def test_a_legacy_file_cut_within_its_data_is_refused(tmp_path):
    """VTK would fill in whatever is in memory."""
    path = written(tmp_path, ".vtk", RICH, VALUES)
    data = path.read_bytes()
    whole = read_geometry(path).point_data
    for length in range(data.index(b"POINT_DATA"), len(data) - 2, 7):
        path.write_bytes(data[:length])
        try:
            cut = read_geometry(path)
        except FileError:
            continue
        for each, expected in zip(
            cut.point_data, whole, strict=False
        ):  # the cut was between two arrays
            assert each.name == expected.name
            np.testing.assert_array_equal(each.values, expected.values)


@pytest.mark.parametrize("version", [42, 51])
@pytest.mark.parametrize("binary", [False, True])
def test_every_part_of_a_legacy_file_of_vtk_is_read(tmp_path, binary, version):
    data = by_vtk(written(tmp_path, ".vtk", RICH, VALUES, frame="RAS"))
    texts = vtkStringArray()
    texts.SetName("SPACE")
    texts.InsertNextValue("RAS")
    data.GetFieldData().AddArray(texts)
    data.GetPointData().GetArray("std_mm").SetComponentName(0, "with metadata")
    writer = vtkPolyDataWriter()
    writer.SetInputData(data)
    writer.SetFileVersion(version)
    (writer.SetFileTypeToBinary if binary else writer.SetFileTypeToASCII)()
    writer.SetFileName(str(tmp_path / "theirs.vtk"))
    writer.Write()
    back = read_geometry(tmp_path / "theirs.vtk")
    np.testing.assert_allclose(back.points, POINTS, atol=SINGLE)
    for kind in ("vertices", "lines", "faces", "strips"):
        np.testing.assert_array_equal(
            getattr(back, kind).connectivity, getattr(RICH, kind).connectivity
        )
    for each in RICH.point_data:
        np.testing.assert_allclose(attribute(back, each.name).values, each.values, atol=SINGLE)
    np.testing.assert_allclose(
        attribute(back, "covariance_mm2").values, VALUES.covariance, rtol=1e-5
    )
    np.testing.assert_array_equal(attribute(back, "std_mm").values, VALUES.std)
    np.testing.assert_array_equal(back.cell_data[0].values, np.arange(7))


HUGE = {
    "points.vtk": b"# vtk DataFile Version 4.2\nSPACE=RAS\nASCII\nDATASET POLYDATA\nPOINTS 900000000000 float\n0 0 0\n",
    "negative.vtk": b"# vtk DataFile Version 4.2\nSPACE=RAS\nASCII\nDATASET POLYDATA\nPOINTS -3 float\n0 0 0\n",
    "field.vtk": b"# vtk DataFile Version 4.2\nSPACE=RAS\nASCII\nDATASET POLYDATA\nPOINTS 1 float\n0 0 0\n"
    b"POINT_DATA 1\nFIELD FieldData 1\nname 99 9999999999 double\n1\n",
    "cells.vtk": b"# vtk DataFile Version 4.2\nSPACE=RAS\nASCII\nDATASET POLYDATA\nPOINTS 3 float\n0 0 0 1 0 0 0 1 0\n"
    b"POLYGONS 1 4\n900000 0 1 2\n",
    "points.vtp": b'<VTKFile type="PolyData"><PolyData><Piece NumberOfPoints="900000000000"/></PolyData></VTKFile>',
    "wide.vtp": b'<VTKFile type="PolyData"><PolyData><Piece NumberOfPoints="9000"><Points><DataArray type="Float32" '
    b'NumberOfComponents="900000000" format="ascii">0</DataArray></Points></Piece></PolyData></VTKFile>',
    "points.ply": b"ply\nformat ascii 1.0\ncomment SPACE=RAS\nelement vertex 900000000000\nproperty float x\n"
    b"property float y\nproperty float z\nend_header\n0 0 0\n",
    "list.ply": b"ply\nformat binary_little_endian 1.0\ncomment SPACE=RAS\nelement vertex 1\nproperty float x\n"
    b"property float y\nproperty float z\nelement face 1\nproperty list uint int vertex_indices\nend_header\n"
    + bytes(12) + b"\xff\xff\xff\xff" + bytes(12),
    "count.stl": b"SPACE=RAS".ljust(80) + b"\xff\xff\xff\xff" + bytes(50),
}  # fmt: skip


@pytest.mark.parametrize("name", HUGE)
def test_a_file_that_declares_more_than_it_holds_is_refused_before_anything_is_allocated(
    tmp_path, name
):
    (tmp_path / name).write_bytes(HUGE[name])
    with pytest.raises(FileError, match=re.escape(name)):
        read_geometry(tmp_path / name)


def test_streamlines_that_declare_more_than_the_file_holds_are_refused(tmp_path):
    path = written(tmp_path, ".trk")
    data = path.read_bytes()
    for place, message in (
        (1000, "place 1"),
        (988, "streamlines"),
    ):  # of a length, and of the number of streamlines
        path.write_bytes(data[:place] + (2**31 - 1).to_bytes(4, "little") + data[place + 4 :])
        with pytest.raises(FileError, match=message):
            read_geometry(path)


NOT_A_NUMBER = {
    "a.vtk": b"# vtk DataFile Version 4.2\nSPACE=RAS\nASCII\nDATASET POLYDATA\nPOINTS 2 float\n0 0 0 1 nan 1\n",
    "a.ply": b"ply\nformat ascii 1.0\ncomment SPACE=RAS\nelement vertex 2\nproperty float x\nproperty float y\n"
    b"property float z\nend_header\n0 0 0\n1 nan 1\n",
    "a.stl": b"solid SPACE=RAS\nfacet normal 0 0 1\nouter loop\nvertex 0 0 0\nvertex 1 nan 1\nvertex 1 0 0\n"
    b"endloop\nendfacet\nendsolid\n",
    "a.tck": b"mrtrix tracks\ndatatype: Float32LE\nfile: . 100\nEND\n".ljust(100)
    + np.array([[0, 0, 0], [1, np.nan, 1], [np.nan] * 3, [np.inf] * 3], "<f4").tobytes(),
}


@pytest.mark.parametrize("name", NOT_A_NUMBER)
def test_a_vertex_that_is_nowhere_is_refused_by_its_number(tmp_path, name):
    (tmp_path / name).write_bytes(NOT_A_NUMBER[name])
    with pytest.raises(FileError, match=re.escape(name) + r": vertex 1 \(from 0\) is not finite"):
        read_geometry(tmp_path / name)


MISFITS = {
    "none.vtk": (
        b"# vtk DataFile Version 4.2\nSPACE=RAS\nASCII\nDATASET POLYDATA\nPOINTS 0 float\n",
        "no vertices",
    ),
    "grid.vtk": (
        b"# vtk DataFile Version 4.2\nx\nASCII\nDATASET STRUCTURED_POINTS\nDIMENSIONS 1 1 1\n",
        "DATASET POLYDATA",
    ),
    "far.vtk": (
        b"# vtk DataFile Version 4.2\nSPACE=RAS\nASCII\nDATASET POLYDATA\nPOINTS 1 int\n0 0 0\nPOLYGONS 1 4\n3 0 7 0\n",
        "expected point numbers from 0 to 0, found 7",
    ),
    "grid.vtp": (b'<VTKFile type="ImageData"><ImageData></ImageData></VTKFile>', "type PolyData"),
    "none.ply": (
        b"ply\nformat ascii 1.0\ncomment SPACE=RAS\nelement vertex 0\nproperty float x\nproperty float y\n"
        b"property float z\nend_header\n",
        "no vertices",
    ),
    "flat.ply": (
        b"ply\nformat ascii 1.0\ncomment SPACE=RAS\nelement vertex 1\nproperty float x\nproperty float y\n"
        b"end_header\n0 0\n",
        "properties x, y and z",
    ),
    "line.ply": (b"ply\nformat ascii 1.0\nelement vertex many\nend_header\n", "ply:3: expected"),
    "curv.gii": (b"<GIFTI Version='1.0' NumberOfDataArrays='0'></GIFTI>", "NIFTI_INTENT_POINTSET"),
    "none.tck": (
        b"mrtrix tracks\ndatatype: Float32LE\nfile: . 49\nEND\n" + b"\x00\x00\x80\x7f" * 3,
        "no vertices",
    ),
    "odd.tck": (b"mrtrix tracks\ndatatype: Int16\nfile: . 47\nEND\n", "Float32LE"),
}


@pytest.mark.parametrize("name", MISFITS)
def test_a_file_of_something_else_is_refused_with_what_was_expected(tmp_path, name):
    content, message = MISFITS[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(FileError, match=message):
        read_geometry(tmp_path / name)


def test_a_compression_that_is_not_read_is_named_with_its_cure(tmp_path):
    path = theirs(tmp_path, ".vtp", lambda writer: writer.SetCompressorTypeToLZ4())
    with pytest.raises(FileError, match="vtkLZ4DataCompressor.*save it with zlib"):
        read_geometry(path, frame="RAS")


@pytest.mark.parametrize("suffix", PRECISION)
def test_files_that_are_not_there_are_refused(tmp_path, suffix):
    assert is_geometry(f"a{suffix.upper()}")
    with pytest.raises(FileError, match="no such file"):
        read_geometry(tmp_path / f"absent{suffix}")
    (tmp_path / f"folder{suffix}").mkdir()
    with pytest.raises(FileError, match="a directory"):
        read_geometry(tmp_path / f"folder{suffix}")


def test_unknown_suffixes_and_impossible_pairs_are_refused(tmp_path):
    assert not is_geometry("a.csv")
    with pytest.raises(FileError, match=r"\.vtk.*'\.obj'"):
        read_geometry(tmp_path / "a.obj")
    with pytest.raises(FileError, match=r"for mesh, found '\.trk'"):
        write_geometry(tmp_path / "a.trk", MESH)
    with pytest.raises(FileError, match=r"for streamlines, found '\.vtk'"):
        write_geometry(tmp_path / "a.vtk", LINES)
    with pytest.raises(FileError, match="each of 6 vertices, found 5"):
        write_geometry(
            tmp_path / "a.vtk", MESH, VertexValues(np.ones(5), np.ones(5), np.ones((5, 3, 3)))
        )
    for suffix in (".ply", ".stl", ".gii"):
        with pytest.raises(FileError, match="lines"):
            write_geometry(tmp_path / f"a{suffix}", RICH)
    many = tuple(Attribute(f"array {i}", np.zeros(6)) for i in range(9))
    with pytest.raises(FileError, match="at most 10"):
        write_geometry(tmp_path / "a.trk", Streamlines(POINTS, [6], many, grid=GRID), VALUES)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "values", [np.ones(6, dtype=bool), np.ones(6, dtype=np.float16), np.array(list("abcdef"))]
)
@pytest.mark.parametrize("suffix", [".vtk", ".vtp"])
def test_what_vtk_has_no_type_for_is_refused_by_the_name_of_its_array(tmp_path, suffix, values):
    with pytest.raises(
        FileError,
        match=rf"shape\{suffix}: 'odd': expected numbers that VTK has, found {values.dtype}",
    ):
        written(tmp_path, suffix, Mesh(POINTS, point_data=(Attribute("odd", values),)))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"points": np.zeros((0, 3))}, "no vertices"),
        ({"points": np.zeros((2, 2))}, r"expected an \(n, 3\)"),
        ({"points": POINTS, "faces": cells_of(np.array([[0, 1, 6]]))}, "from 0 to 5, found 6"),
        (
            {"points": POINTS, "lines": Cells(np.array([0, 3]), np.array([0, 1]))},
            "lines: expected offsets",
        ),
        ({"points": POINTS, "point_data": (Attribute("a", np.zeros(5)),)}, "'a': expected 6 rows"),
    ],
)
def test_meshes_that_do_not_hang_together_are_refused(arguments, message):
    with pytest.raises(ArgumentError, match=message):
        Mesh(**arguments)


@pytest.mark.parametrize("suffix", PRECISION)
def test_a_file_is_replaced_only_on_request(tmp_path, suffix):
    path = written(tmp_path, suffix)
    before = path.read_bytes()
    with pytest.raises(FileError, match="overwrite"):
        written(tmp_path, suffix)
    assert path.read_bytes() == before
    assert not [file for file in tmp_path.iterdir() if "partial" in file.name]


@pytest.mark.parametrize(
    ("suffix", "sibling"),
    [(".stl", "shape.uncertainty.csv"), (".gii", "shape.std.shape.gii"), (".tck", "shape_std.tsf")],
)
def test_nothing_is_written_when_a_file_next_to_it_is_in_the_way(tmp_path, suffix, sibling):
    (tmp_path / sibling).write_text("mine")
    with pytest.raises(FileError, match=re.escape(sibling)):
        written(tmp_path, suffix, values=VALUES)
    assert [file.name for file in tmp_path.iterdir()] == [sibling]
    assert (tmp_path / sibling).read_text() == "mine"


def test_importing_the_doors_imports_nothing_heavy():
    code = (
        "import sys, kunita.io.geometry_files.files;"
        "print([m for m in ('jax', 'vtkmodules', 'nibabel', 'scipy', 'SimpleITK') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_meshes_of_vtk_are_written_and_read_where_vtk_is_not_installed(tmp_path):
    code = (
        "import sys; sys.modules.update(vtk=None, vtkmodules=None)\n"
        "from kunita.data.geometry import Mesh\n"
        "from kunita.io.geometry_files.files import read_geometry, write_geometry\n"
        "for path in sys.argv[1:]: write_geometry(path, Mesh([[1, 2, 3]])); print(read_geometry(path).points.tolist())"
    )
    paths = [str(tmp_path / "a.vtk"), str(tmp_path / "a.vtp")]
    assert (
        subprocess.check_output([sys.executable, "-c", code, *paths], text=True)
        == "[[1.0, 2.0, 3.0]]\n" * 2
    )


@pytest.mark.parametrize("suffix", [".vtk", ".vtp", ".ply", ".stl", ".gii", ".surf.gii"])
def test_the_files_beside_a_mesh_are_known_before_it_is_written(suffix, tmp_path):
    from kunita.io.geometry_files.files import beside

    points = np.eye(3)
    mesh = Mesh(points, faces=cells_of(np.array([[0, 1, 2]])), frame="RAS")
    values = VertexValues(np.ones(3), np.ones(3), np.broadcast_to(np.eye(3), (3, 3, 3)))
    path = tmp_path / f"mesh{suffix}"
    write_geometry(path, mesh, values)
    assert {file.name for file in tmp_path.iterdir()} == {path.name, *beside(path)}
