"""`kunita report`: the page again, from the files of a result."""

import json
import os
import shutil

import pytest

from cli.cases import KERNEL, kunita_command
from kunita.errors import ExitStatus


@pytest.fixture
def copied(volume_result, tmp_path):
    return shutil.copytree(volume_result, tmp_path / "copy")


def test_the_page_is_made_again_from_the_folder_alone(copied, volume_result):
    (copied / "report.html").unlink()
    ended = kunita_command("report", copied, "--json")
    assert ended.status == ExitStatus.DONE
    assert json.loads(ended.out)["out"] == str(copied / "report.html")
    assert (copied / "report.html").read_text(encoding="utf-8") == (
        volume_result / "report.html"
    ).read_text(encoding="utf-8")


@pytest.fixture
def record(volume_result, tmp_path):
    """A folder with the record alone, whose page is the quickest to make."""
    folder = tmp_path / "record"
    folder.mkdir()
    shutil.copy(volume_result / "registration.h5", folder)
    return folder


def test_an_old_page_is_replaced_and_another_file_only_when_asked(record, tmp_path):
    (record / "report.html").write_text("old")
    assert kunita_command("report", record).status == ExitStatus.DONE
    assert "Kunita" in (record / "report.html").read_text(encoding="utf-8")
    other = tmp_path / "mine.html"
    other.write_text("mine")
    assert kunita_command("report", record, "--out", other).status == ExitStatus.REFUSED
    assert other.read_text(encoding="utf-8") == "mine"
    assert kunita_command("report", record, "--out", other, "--overwrite").status == ExitStatus.DONE
    assert "Kunita" in other.read_text(encoding="utf-8")


def test_without_its_image_a_result_has_a_page_of_planes_and_says_why(copied, case):
    summary = json.loads((copied / "summary.json").read_text(encoding="utf-8"))
    summary["inputs"]["fixed_image"]["path"] = str(copied / "gone.nii.gz")
    (copied / "summary.json").write_text(json.dumps(summary))
    ended = kunita_command("report", copied)
    assert ended.status == ExitStatus.DONE
    assert "--fixed-image" in ended.err
    assert 'class="stage planes"' in (copied / "report.html").read_text(encoding="utf-8")
    ended = kunita_command("report", copied, "--fixed-image", case / "fixed.nii.gz")
    assert (ended.status, ended.err.count("warning")) == (ExitStatus.DONE, 0)
    assert 'class="stage volume"' in (copied / "report.html").read_text(encoding="utf-8")


def test_an_image_that_has_changed_is_not_shown_as_the_one_that_was_registered(
    copied, case, tmp_path
):
    summary = json.loads((copied / "summary.json").read_text(encoding="utf-8"))
    other = shutil.copy(case / "moving.nii.gz", tmp_path / "fixed.nii.gz")
    summary["inputs"]["fixed_image"]["path"] = str(other)
    (copied / "summary.json").write_text(json.dumps(summary))
    assert "not what it was" in kunita_command("report", copied).err
    assert "not what it was" in (copied / "report.html").read_text(encoding="utf-8")


def test_another_image_on_the_same_grid_is_shown_with_a_warning(copied, case):
    ended = kunita_command("report", copied, "--fixed-image", case / "moving.nii.gz")
    assert ended.status == ExitStatus.DONE
    assert "is not the fixed image that was registered" in ended.err
    text = (copied / "report.html").read_text(encoding="utf-8")
    assert "is not the fixed image that was registered" in text


def test_a_page_is_not_written_over_another_kind_of_file(copied):
    before = (copied / "summary.json").read_bytes()
    ended = kunita_command("report", copied, "--out", copied / "summary.json", "--overwrite")
    assert ended.status == ExitStatus.REFUSED
    assert (copied / "summary.json").read_bytes() == before


def test_an_image_on_another_grid_is_refused(copied, case):
    ended = kunita_command("report", copied, "--fixed-image", case / "fixed.png")
    assert ended.status == ExitStatus.REFUSED
    assert "grid" in ended.err.splitlines()[-1]


def test_a_record_alone_has_a_page(record):
    assert kunita_command("report", record).status == ExitStatus.DONE
    assert (record / "report.html").stat().st_size > 50_000


def test_a_result_of_an_earlier_version_has_a_page_with_all_it_knows(copied, monkeypatch):
    path = copied / "summary.json"
    summary = json.loads(path.read_text(encoding="utf-8"))
    for newer in ("expected", "inputs", "software", "command", "created", "file_names"):
        del summary[newer]
    path.write_text(json.dumps(summary), encoding="utf-8")
    ended = kunita_command("report", copied)
    assert (ended.status, ended.err.count("warning")) == (ExitStatus.DONE, 0)
    text = (copied / "report.html").read_text(encoding="utf-8")
    assert 'class="stage volume"' in text
    assert 'id="target-table"' in text
    assert "<code>forward_xfm.h5</code>" in text


def test_a_summary_that_is_damaged_is_refused(copied):
    text = (copied / "summary.json").read_text(encoding="utf-8")
    (copied / "summary.json").write_text(text[:200], encoding="utf-8")
    before = (copied / "report.html").read_bytes()
    ended = kunita_command("report", copied)
    assert ended.status == ExitStatus.REFUSED
    assert "summary.json" in ended.err
    assert (copied / "report.html").read_bytes() == before


@pytest.mark.skipif(os.name == "nt", reason="names are text there")
def test_a_file_whose_name_is_no_text_is_registered_all_the_same(case, tmp_path):
    odd = tmp_path / os.fsdecode(b"m\xe9ving.mrk.json")
    shutil.copy(case / "moving.mrk.json", odd)
    ended = kunita_command(
        "register", odd, case / "fixed.mrk.json", "--out", tmp_path / "r", *KERNEL
    )
    assert ended.status == ExitStatus.DONE, ended.err
    assert "m\N{REPLACEMENT CHARACTER}ving" in (tmp_path / "r" / "report.html").read_text(
        encoding="utf-8"
    )


def test_a_folder_without_a_result_is_refused_in_one_line(tmp_path):
    ended = kunita_command("report", tmp_path)
    assert (ended.status, ended.err.count("\n")) == (ExitStatus.REFUSED, 1)


def test_no_report_writes_none(case, tmp_path):
    ended = kunita_command(
        "register", case / "moving.mrk.json", case / "fixed.mrk.json", "--out", tmp_path / "r", "--no-report",
        *KERNEL,
    )  # fmt: skip
    assert ended.status == ExitStatus.DONE
    assert not (tmp_path / "r" / "report.html").exists()
    assert "report.html" not in ended.out
