"""Where a result comes from: checksums that other programs agree with, and files that have not
changed."""

import hashlib
import json

import numpy as np
import pytest

import kunita
from kunita.io.provenance import fingerprint, provenance, unchanged


def test_a_checksum_is_that_of_the_bytes_however_many(tmp_path):
    for size in (0, 5, (1 << 20) + 3):
        path = tmp_path / f"{size}.bin"
        path.write_bytes(np.random.default_rng(size).bytes(size))
        found = fingerprint(path)
        assert found["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
        assert found["bytes"] == size


def test_a_folder_has_one_that_any_change_changes(tmp_path):
    folder = tmp_path / "series"
    folder.mkdir()
    for name in ("b", "a"):
        (folder / name).write_bytes(name.encode())
    before = fingerprint(folder)
    assert before["bytes"] == 2
    assert unchanged(before)
    (folder / "a").rename(folder / "c")
    assert not unchanged(before)


@pytest.mark.parametrize(
    ("named", "other"), [("a.mhd", "a.raw"), ("a.hdr", "a.img"), ("a.img", "a.hdr")]
)
def test_an_image_in_two_files_changes_with_either(tmp_path, named, other):
    for name in (named, other):
        (tmp_path / name).write_bytes(b"1")
    before = fingerprint(tmp_path / named)
    assert before["bytes"] == 2
    (tmp_path / other).write_bytes(b"2")
    assert not unchanged(before)


def test_a_file_that_changed_or_went_away_is_not_unchanged(tmp_path):
    path = tmp_path / "x"
    path.write_text("1")
    before = fingerprint(path)
    assert unchanged(before)
    path.write_text("2")
    assert not unchanged(before)
    path.unlink()
    assert not unchanged(before)


def test_what_was_not_given_is_not_listed_and_all_of_it_is_json(tmp_path):
    path = tmp_path / "x"
    path.write_text("1")
    found = json.loads(
        json.dumps(provenance({"moving": path, "labels": None}, "kunita register x"))
    )
    assert list(found["inputs"]) == ["moving"]
    assert found["software"]["kunita"] == kunita.__version__
    assert found["software"]["numpy"] == np.__version__
    assert found["command"] == "kunita register x"
