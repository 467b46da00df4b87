"""Files appear under their final name when they are complete, or not at all."""

import errno
import os

import pytest

from kunita.errors import FileError
from kunita.io.writing import check_writable, complete, refusals


def test_a_file_is_invisible_until_it_is_complete(tmp_path):
    with complete(tmp_path / "a.nii.gz") as partial:
        partial.write_text("new")
        assert not (tmp_path / "a.nii.gz").exists()
        assert partial.parent == tmp_path  # a rename across file systems is a copy
        assert partial.name.endswith("a.nii.gz")  # libraries tell the format by the suffix
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"a.nii.gz": "new"}


@pytest.mark.parametrize("failure", [KeyboardInterrupt, ZeroDivisionError, FileError, OSError])
def test_whatever_goes_wrong_the_old_file_stays_and_nothing_else(failure, tmp_path):
    place = tmp_path / "a.txt"
    place.write_text("old")
    with pytest.raises((failure, FileError)), complete(place, overwrite=True) as partial:  # noqa: PT012
        partial.write_text("half")
        raise failure
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"a.txt": "old"}


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_is_one_line_that_names_the_file(code, tmp_path):
    line = r"^.*a\.txt: cannot be written: the disk is full.*$"
    with pytest.raises(FileError, match=line) as refused, refusals(tmp_path / "a.txt"):
        raise OSError(code, os.strerror(code))
    assert "\n" not in str(refused.value)


def test_a_device_without_space_refuses_a_file():
    with (
        pytest.raises(FileError, match="the disk is full"),
        refusals("/dev/full"),
        open("/dev/full", "w") as file,
    ):
        file.write("x")


@pytest.mark.parametrize(
    ("name", "overwrite", "words"),
    [("there", False, "--overwrite"), ("folder", True, "a directory"), ("no/where", False, "does not exist"),
     ("there/below", False, "does not exist")],
)  # fmt: skip
def test_a_place_that_cannot_be_written_is_refused_before_anything_is_computed(
    name, overwrite, words, tmp_path
):
    (tmp_path / "there").write_text("old")
    (tmp_path / "folder").mkdir()
    with pytest.raises(FileError, match=words):
        check_writable(tmp_path / name, overwrite=overwrite)
