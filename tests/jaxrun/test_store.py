"""A kept program is loaded only if nobody but the user can have written it, with this version of
JAX, and if it is whole."""

import json
import os
import pathlib
import time

import jax
import numpy as np
import pytest

from kunita.errors import KunitaWarning
from kunita.jaxrun import programs, store

traced = []


def scaled(factor, x):
    traced.append(factor)
    return factor * x


FACTORS = []
"""Another one in each test, and so another program: what JAX finds in its own cache cannot be kept."""


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch):
    monkeypatch.setattr(programs._Kept, "store", None)
    FACTORS.append(time.time())


def times_compiled(folder):
    """How often a new process would compile the program: never, if it loads the kept one."""
    programs.keep(folder)
    before = len(traced)
    program = programs.compiled(scaled, static=1)
    factor = FACTORS[-1]
    np.testing.assert_array_equal(program(factor, np.arange(3.0)), [0, factor, 2 * factor])
    return len(traced) - before


def kept_file(folder):
    (path,) = (path for path in folder.rglob("*") if path.is_file())
    return path


@pytest.fixture
def folder(tmp_path):
    """A folder in which the program is kept, and from which it is loaded."""
    folder = tmp_path / "programs"
    assert times_compiled(folder) == 1
    assert programs._Kept.store is not None
    assert times_compiled(folder) == 0
    return folder


def test_folders_and_files_are_made_for_the_user_alone(tmp_path):
    usual = os.umask(0)
    try:
        times_compiled(tmp_path / "made" / "too")
    finally:
        os.umask(usual)
    made = tmp_path / "made"
    assert [path.stat().st_mode & 0o077 for path in (made, *made.rglob("*"))] == [0] * 4


FOLDERS = {"all": lambda folder: folder, "version": lambda folder: kept_file(folder).parent}


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o1777], ids=oct)
@pytest.mark.parametrize("which", FOLDERS)
def test_a_folder_that_others_can_write_to_is_not_used(folder, mode, which):
    unsafe = FOLDERS[which](folder)
    unsafe.chmod(mode)
    with pytest.warns(KunitaWarning, match=f"{unsafe}: other users can write to it; delete it"):
        assert times_compiled(folder) == 1
    assert programs._Kept.store is None


def test_the_warning_comes_once(folder):
    folder.chmod(0o770)
    with pytest.warns(KunitaWarning, match="other users"):
        programs.keep(folder)
    programs.keep(folder)  # a second warning would be an error here


def test_a_folder_below_one_that_anybody_can_write_to_is_used_if_that_is_sticky(folder):
    folder.parent.chmod(0o1777)
    assert times_compiled(folder) == 0
    folder.parent.chmod(0o777)
    with pytest.warns(KunitaWarning, match=f"anybody can write to {folder.parent}; run chmod"):
        assert times_compiled(folder) == 1


def test_a_group_may_write_above_the_folder(folder):
    folder.parent.chmod(0o775)
    assert times_compiled(folder) == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
@pytest.mark.parametrize("which", FOLDERS)
def test_a_folder_of_another_user_is_not_used(folder, which):
    theirs = FOLDERS[which](folder)
    os.chown(theirs, 12_345, -1)
    with pytest.warns(KunitaWarning, match=f"{theirs}: it belongs to another user"):
        assert times_compiled(folder) == 1
    os.chown(theirs, os.geteuid(), -1)
    assert times_compiled(folder) == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_file_of_another_user_is_compiled_again(folder):
    os.chown(kept_file(folder), 12_345, -1)
    with pytest.warns(KunitaWarning, match="they are compiled again"):
        assert times_compiled(folder) == 1


def test_a_file_that_others_can_write_to_is_compiled_again(folder):
    kept_file(folder).chmod(0o660)
    with pytest.warns(KunitaWarning, match=f"{kept_file(folder).parent}: .* compiled again"):
        assert times_compiled(folder) == 1


def test_a_link_is_not_followed(folder, tmp_path):
    path = kept_file(folder)
    path.replace(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert times_compiled(folder) == 1


def test_a_link_to_a_folder_is_as_safe_as_where_it_leads(folder, tmp_path):
    (tmp_path / "link").symlink_to(folder)
    assert times_compiled(tmp_path / "link") == 0
    folder.chmod(0o777)
    with pytest.warns(KunitaWarning, match="other users can write to it"):
        assert times_compiled(tmp_path / "link") == 1


@pytest.mark.parametrize("package", ["jax", "jaxlib", "equinox", "python"])
def test_a_program_of_another_version_is_compiled_again(folder, package):
    path = kept_file(folder)
    header, _, payload = path.read_bytes().partition(b"\n")
    stated = json.loads(header)
    assert stated["jax"] == jax.__version__
    path.write_bytes(json.dumps({**stated, package: "0.0.1"}).encode() + b"\n" + payload)
    assert times_compiled(folder) == 1


def test_another_version_looks_in_another_folder(folder, monkeypatch):
    monkeypatch.setattr(jax, "__version__", "0.0.1")
    store._fingerprint.cache_clear()
    try:
        assert times_compiled(folder) == 1
        assert len(list(folder.iterdir())) == 2
    finally:
        store._fingerprint.cache_clear()


@pytest.mark.parametrize("where", [0, 20, -100, -1])
def test_a_damaged_program_is_compiled_again(folder, where):
    path = kept_file(folder)
    content = bytearray(path.read_bytes())
    content[where] ^= 1
    path.write_bytes(content)
    assert times_compiled(folder) == 1


def test_a_payload_that_is_not_the_stated_one_is_never_unpickled(folder):
    path = kept_file(folder)
    header = path.read_bytes().partition(b"\n")[0]
    path.write_bytes(header + b"\n" + b"cos\nsystem\n(S'exit 1'\ntR.")
    assert store.ProgramStore(path.parent).load(path.name) is None
    assert times_compiled(folder) == 1


def test_without_owners_and_modes_only_the_users_profile_is_trusted(folder, monkeypatch):
    monkeypatch.delattr(os, "geteuid")
    monkeypatch.setattr(pathlib.Path, "home", lambda: folder.parent)
    assert times_compiled(folder) == 0
    monkeypatch.setattr(pathlib.Path, "home", lambda: folder / "somebody")
    with pytest.warns(KunitaWarning, match="outside your profile"):
        assert times_compiled(folder) == 1


def test_a_folder_that_cannot_be_made_is_done_without(tmp_path):
    (tmp_path / "file").write_text("not a folder", encoding="utf-8")
    assert times_compiled(tmp_path / "file") == 1
    assert programs._Kept.store is None


def test_keeping_can_be_turned_off(folder, monkeypatch):
    monkeypatch.setenv(store.OFF, "0")
    assert times_compiled(folder) == 1
