"""The script that loads a result into 3D Slicer, run with a stand-in for Slicer that writes down
what is loaded."""

import os
import re
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from kunita.data.geometry import Mesh, Streamlines, VertexValues, cells_of
from kunita.data.image import Grid
from kunita.io.bids import BidsNames
from kunita.io.geometry_files.files import MESHES, STREAMLINES, write_geometry
from kunita.io.slicer_script import slicer_script
from kunita.results import Request, output_names

READS = {
    "loadVolume": (".nii.gz", ".nii", ".nrrd"),
    "loadTransform": (".h5", ".tfm", ".nrrd", ".nii.gz"),
    "loadMarkups": (".mrk.json",),
    "loadModel": (".vtk", ".vtp", ".ply", ".stl", ".obj"),
}
"""Which files each of Slicer's functions takes, without extensions of Slicer."""

POINTS = "targets.mrk.json"


def make_node():
    """What Slicer gives for a file: whatever is asked of it, there is nothing to do."""
    node = types.SimpleNamespace(
        GetID=lambda: "id", SetName=lambda name: None, AutoWindowLevelOn=lambda: None
    )
    node.GetDisplayNode, node.SetAndObserveColorNodeID = lambda: node, lambda number: None
    return node


class Slicer:
    """Remembers the files that it was asked to load; refuses those that do not exist or that it
    cannot read."""

    def __init__(self):
        self.loaded = []

    def loader(self, suffixes):
        def load(path, properties=None):
            if not (os.path.isfile(path) and path.endswith(suffixes)):
                raise RuntimeError(f"cannot load {path}")
            self.loaded.append(os.path.realpath(path))
            return make_node()

        return load

    def module(self):
        module = types.ModuleType("slicer")
        module.util = types.SimpleNamespace(
            getNode=lambda name: make_node(), resetSliceViews=lambda: None
        )
        for name, suffixes in READS.items():
            setattr(module.util, name, self.loader(suffixes))
        return module


def loaded_by(script, monkeypatch, **given):
    slicer = Slicer()
    monkeypatch.setitem(sys.modules, "slicer", slicer.module())
    exec(compile(script, "load_in_slicer.py", "exec"), dict(given))
    return slicer.loaded


def make(folder, names):
    for name in names:
        (folder / name).write_text("x")
    return [str(folder / name) for name in names]


def remarked(script):
    """The files that comments name."""
    return [
        eval(name) for name in re.findall(r"^# not loaded: ('.*') \(.+\)$", script, re.MULTILINE)
    ]


TARGETS = ("points.fcsv", *(f"geometry{suffix}" for suffix in (*MESHES, *STREAMLINES)))


def everything(folder, target):
    """The names of all files that a run with every option writes, those beside the target's
    included."""
    image = Path("image.nii.gz")
    request = Request(image, image, image, Path(target), covariance=True, nrrd=True, nifti_xfm=True)
    names = {*output_names(request, 3), "forward_xfm.json"} - {"load_in_slicer.py", "summary.json"}
    suffix, points = Path(target).suffix, np.eye(3)
    if suffix in (*MESHES, *STREAMLINES):
        grid = Grid((2, 2, 2), np.eye(4))
        geometry = (
            Mesh(points, faces=cells_of(np.array([[0, 1, 2]])))
            if suffix in MESHES
            else Streamlines(points, [3], grid=grid)
        )
        values = VertexValues(np.ones(3), np.ones(3), np.ones((3, 1, 1)) * np.eye(3))
        names |= {
            path.name for path in write_geometry(folder / f"targets{suffix}", geometry, values)
        }
    return sorted(names)


@pytest.mark.parametrize(
    "rename", [str, BidsNames("01", "preT1w", "usUS", "T1w")], ids=["usual", "BIDS"]
)
@pytest.mark.parametrize("target", TARGETS)
def test_every_file_of_a_run_is_loaded_once_or_named_in_a_comment(
    target, rename, tmp_path, monkeypatch
):
    usual = everything(tmp_path, target)
    names = [Path(rename(name)).name for name in usual]
    make(tmp_path, names)
    script = slicer_script(str(tmp_path), list(zip(usual, names, strict=True)), [])
    loaded = [os.path.basename(path) for path in loaded_by(script, monkeypatch)]
    assert sorted(loaded + remarked(script)) == sorted(names)


@pytest.mark.parametrize("target", TARGETS)
def test_targets_are_left_to_a_comment_only_where_no_reader_of_slicer_takes_them(
    target, tmp_path, monkeypatch
):
    (name,) = [
        name
        for name in everything(tmp_path, target)
        if name in (f"targets{Path(target).suffix}", POINTS)
    ]
    make(tmp_path, [name])
    loaded = loaded_by(slicer_script(str(tmp_path), [(name, name)], []), monkeypatch)
    assert len(loaded) == any(name.endswith(suffixes) for suffixes in READS.values())


def test_maps_landmarks_and_transforms_are_loaded_from_the_shell_and_from_the_console(
    tmp_path, monkeypatch
):
    names = [
        "forward_xfm.h5",
        "predicted.mrk.json",
        "warped.nii.gz",
        "uncertainty_std.nii.gz",
        "jacobian.nii.gz",
    ]
    paths = make(tmp_path, names)
    script = slicer_script(str(tmp_path), [(name, name) for name in names], [])
    for given in ({}, {"__file__": str(tmp_path / "load_in_slicer.py")}):
        assert sorted(loaded_by(script, monkeypatch, **given)) == sorted(paths)


def test_a_moved_folder_still_loads(tmp_path, monkeypatch):
    make(tmp_path, ["warped.nii.gz"])
    script = slicer_script("/where/it/was", [("warped.nii.gz", "warped.nii.gz")], [])
    assert len(loaded_by(script, monkeypatch, __file__=str(tmp_path / "load_in_slicer.py"))) == 1


def test_the_user_s_own_images_are_loaded_where_they_still_are_and_others_do_not_stop_the_script(
    tmp_path, monkeypatch
):
    image, strange, map_ = make(
        tmp_path, ['it\'s "mine", µ.nii.gz', "strange.mnc", "warped.nii.gz"]
    )
    images = [
        str(tmp_path / "gone.nii.gz"),
        strange,
        str(tmp_path),
        image,
    ]  # a folder is a DICOM series
    script = slicer_script(str(tmp_path), [("warped.nii.gz", "warped.nii.gz")], images)
    assert loaded_by(script, monkeypatch) == [image, map_]


def test_files_under_other_names_are_loaded_by_those(tmp_path, monkeypatch):
    (path,) = make(tmp_path, ["sub-01_from-a_to-b_xfm.h5"])
    script = slicer_script(str(tmp_path), [("forward_xfm.h5", os.path.basename(path))], [])
    assert loaded_by(script, monkeypatch) == [path]


@pytest.mark.parametrize(
    "name", ['a "quoted" folder', "back\\slash", "trailing\\", "brace{}s", "µ"]
)
def test_any_folder_s_name_survives_the_script(name, tmp_path, monkeypatch):
    folder = tmp_path / name
    folder.mkdir()
    make(folder, ["warped.nii.gz"])
    assert (
        len(loaded_by(slicer_script(str(folder), [("warped.nii.gz",) * 2], []), monkeypatch)) == 1
    )
