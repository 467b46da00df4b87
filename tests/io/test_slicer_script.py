"""The script that loads a result into 3D Slicer, run with a stand-in for Slicer that writes down what is loaded."""

import os
import sys
import types

import pytest

from kunita.io.slicer_script import LOADERS, slicer_script


def make_node():
    """What Slicer gives for a file: whatever is asked of it, there is nothing to do."""
    node = types.SimpleNamespace(GetID=lambda: "id", SetName=lambda name: None, AutoWindowLevelOn=lambda: None)
    node.GetDisplayNode, node.SetAndObserveColorNodeID = lambda: node, lambda number: None
    return node


class Slicer:
    """Remembers the files that it was asked to load; refuses those that do not exist, as Slicer does."""

    def __init__(self):
        self.loaded = []

    def load(self, path, properties=None):
        assert os.path.isfile(path), path
        self.loaded.append(os.path.realpath(path))
        return make_node()

    def module(self):
        util = types.SimpleNamespace(
            loadVolume=self.load, loadTransform=self.load, loadMarkups=self.load, getNode=lambda name: make_node(),
            resetSliceViews=lambda: None,
        )  # fmt: skip
        module = types.ModuleType("slicer")
        module.util = util
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


@pytest.mark.parametrize("names", [[], ["forward_xfm.h5", "predicted.mrk.json"], [*LOADERS, "summary.json"]])
@pytest.mark.parametrize("from_console", [False, True])
def test_every_file_that_slicer_opens_is_loaded_once_and_no_other(names, from_console, tmp_path, monkeypatch):
    paths = make(tmp_path, names)
    script = slicer_script(str(tmp_path), [(name, name) for name in names], [])
    given = {} if from_console else {"__file__": str(tmp_path / "load_in_slicer.py")}
    expected = [path for path in paths if os.path.basename(path) in LOADERS]
    assert sorted(loaded_by(script, monkeypatch, **given)) == sorted(expected)


def test_a_moved_folder_still_loads(tmp_path, monkeypatch):
    make(tmp_path, ["warped.nii.gz"])
    script = slicer_script("/where/it/was", [("warped.nii.gz", "warped.nii.gz")], [])
    assert len(loaded_by(script, monkeypatch, __file__=str(tmp_path / "load_in_slicer.py"))) == 1


def test_the_user_s_own_images_are_loaded_where_they_still_are(tmp_path, monkeypatch):
    (image,) = make(tmp_path, ['it\'s "mine", µ.nii.gz'])
    script = slicer_script(str(tmp_path), [], [image, str(tmp_path / "gone.nii.gz")])
    assert loaded_by(script, monkeypatch) == [image]


def test_files_under_other_names_are_loaded_by_those(tmp_path, monkeypatch):
    (path,) = make(tmp_path, ["sub-01_from-a_to-b_xfm.h5"])
    script = slicer_script(str(tmp_path), [("forward_xfm.h5", os.path.basename(path))], [])
    assert loaded_by(script, monkeypatch) == [path]


@pytest.mark.parametrize("name", ['a "quoted" folder', "back\\slash", "trailing\\", "brace{}s", "µ"])
def test_any_folder_s_name_survives_the_script(name, tmp_path, monkeypatch):
    folder = tmp_path / name
    folder.mkdir()
    make(folder, ["warped.nii.gz"])
    assert len(loaded_by(slicer_script(str(folder), [("warped.nii.gz",) * 2], []), monkeypatch)) == 1
