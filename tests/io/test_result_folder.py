"""All files of a result appear, or none; a kill at any moment leaves one whole result."""

import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest

from kunita.errors import FileError
from kunita.io.result_folder import (
    RECORD,
    SUMMARY,
    check_result,
    find_record,
    result_folder,
    results_in,
    settle,
)
from kunita.io.writing import PARTIAL

NAMES = (RECORD, "a.txt", "b.txt", SUMMARY)

WRITER = """
import json, os, signal, sys
from kunita.io.result_folder import result_folder

CHANGES = ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree", "open")

def write(out, content, names, moment, bids):
    rename = (lambda name: f"sub-1/xfm/sub-1_{name}") if bids else (lambda name: name)
    calls = 0

    def die_at_the_moment(event, args):
        nonlocal calls
        if event in CHANGES and out in str(args[0]):
            calls += 1
            if calls == moment:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(die_at_the_moment)
    with result_folder(out, names, overwrite=True, rename=rename) as folder:
        for name in names:
            files = [rename(other) for other in names if other != "summary.json"]
            text = json.dumps({"content": content, "files": files}) if name == "summary.json" else content
            (folder / name).write_text(text)

for job in json.loads(sys.argv[1]):
    child = os.fork()  # a process of its own for each result, without the time that Python takes to start
    if not child:
        write(*job)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


MEETING = """
import fcntl, itertools, json, pathlib, sys, threading
from kunita.io.result_folder import result_folder, settle

EVENTS = ("open", "os.mkdir", "os.remove", "os.rmdir", "fcntl.flock", "shutil.rmtree")

class Run(threading.Thread):
    def __init__(self, work, moment):
        super().__init__()
        self.work, self.left, self.there, self.go_on = work, moment, threading.Event(), threading.Event()
        self.start()
        self.there.wait()  # until its moment, or, where it has fewer, its end

    def run(self):
        try:
            self.work()
        finally:
            self.there.set()

def wait_at_the_moment(event, args):
    run = threading.current_thread()
    if event in EVENTS and isinstance(run, Run):
        run.left -= 1
        if run.left == 0:
            run.there.set()
            run.go_on.wait()

def meet(home, moment, moment_of_other):
    at_work, may_end = threading.Event(), threading.Event()

    def write():
        try:
            with result_folder(home, ["a.txt"], overwrite=False) as folder:
                at_work.set()
                threading.current_thread().there.set()
                may_end.wait()
                (folder / "a.txt").write_text("whole")
        finally:
            at_work.set()

    run, other = Run(write, moment), Run(lambda: settle(home), moment_of_other)
    run.go_on.set()
    at_work.wait()
    other.go_on.set()
    other.join()
    settle(home)  # a third, who finds the lock as the other left it
    may_end.set()
    run.join()
    return [path.name for path in home.iterdir()]

sys.addaudithook(wait_at_the_moment)
found = {}
for moments in itertools.product(range(1, 7), range(1, 16)):
    home = pathlib.Path(sys.argv[1], "-".join(map(str, moments)))
    home.mkdir()
    found[home.name] = meet(home, *moments)
print(json.dumps(found))
"""

LOOKING = """
import sys
from kunita.errors import FileError
from kunita.io.result_folder import find_record

sys.addaudithook(lambda event, args: print(args[0]) if event in ("os.scandir", "os.listdir") else None)
try:
    find_record(sys.argv[1])
except FileError:
    pass
"""


def said_by(script, argument):
    """What a script prints in a process of its own: hooks cannot be taken off again."""
    return subprocess.check_output(
        [sys.executable, "-c", script, str(argument)], text=True, timeout=60
    )


def write_all(*jobs):
    """Write results, each in a process of its own that is killed at its nth change of the folder;
    how each ended."""
    return [int(status) for status in said_by(WRITER, json.dumps(jobs)).split()]


def write(out, content, names=NAMES, moment=0, bids=False):
    (status,) = write_all((str(out), content, names, moment, bids))
    return status


def seen(out):
    """The files that a user sees, and what they hold."""
    files = [p for p in sorted(out.rglob("*")) if p.is_file() and "kunita-partial" not in str(p)]
    return {
        p.name: json.loads(p.read_text())["content"] if p.suffix == ".json" else p.read_text()
        for p in files
    }


def leftovers(out):
    return list(out.rglob("*kunita-partial*"))


@pytest.mark.parametrize("bids", [False, True])
def test_a_kill_at_any_moment_leaves_the_earlier_result_or_the_new_one(bids, tmp_path):
    newer = (RECORD, "a.txt", "c.txt", SUMMARY)
    title = "sub-1_{}".format if bids else str
    old, new = {title(n): "old" for n in NAMES}, {title(n): "new" for n in newer}
    places = {moment: tmp_path / f"{moment}" for moment in range(1, 60)}
    write_all(*((str(out), "old", NAMES, 0, bids) for out in places.values()))
    ends = write_all(*((str(out), "new", newer, moment, bids) for moment, out in places.items()))
    outcomes = set()
    for out, end in zip(places.values(), ends, strict=True):
        record = find_record(out)  # as every command that reads a result does
        assert record.read_text() == seen(out)[record.name]
        assert seen(out) in (old, new), out.name
        assert leftovers(out) == []
        outcomes.add((end == -signal.SIGKILL, seen(out) == new))
    assert outcomes == {(True, False), (True, True), (False, True)}


def test_the_next_run_clears_what_a_killed_one_left(tmp_path):
    write(tmp_path, "old", moment=6)
    assert leftovers(tmp_path)
    assert write(tmp_path, "new") == 0
    assert leftovers(tmp_path) == []
    assert set(seen(tmp_path).values()) == {"new"}


def test_a_run_at_work_is_left_alone(tmp_path):
    with result_folder(tmp_path, NAMES, overwrite=True) as mine:
        (mine / RECORD).write_text("mine")
        assert write(tmp_path, "other") == 0
        assert (mine / RECORD).read_text() == "mine"
    assert seen(tmp_path)[RECORD] == "mine"


def write_while_another_does(out):
    with result_folder(out, NAMES, overwrite=False) as mine:
        (mine / RECORD).write_text("mine")
        assert write(out, "other") == 0


def test_a_run_that_was_faster_is_not_overwritten_unasked(tmp_path):
    with pytest.raises(FileError, match="already; give --overwrite"):
        write_while_another_does(tmp_path)
    assert seen(tmp_path)[RECORD] == "other"
    assert leftovers(tmp_path) == []


def test_a_run_that_meets_another_tidying_up_is_left_alone_whoever_is_how_far(tmp_path):
    # the other is stopped at each of its changes, while this one goes on from each of its own up to
    # its lock
    found = json.loads(said_by(MEETING, tmp_path))
    assert {moments: files for moments, files in found.items() if files != ["a.txt"]} == {}


def test_a_folder_that_is_not_yet_locked_is_cleared_when_its_run_is_no_more(tmp_path):
    (tmp_path / f"{PARTIAL}-x").mkdir()
    settle(tmp_path)
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("failure", [KeyboardInterrupt, ZeroDivisionError, FileError, OSError])
def test_whatever_goes_wrong_everything_is_as_before(failure, tmp_path):
    write(tmp_path / "r", "old")
    for out in (tmp_path / "r", tmp_path / "new" / "deep"):
        with (  # noqa: PT012
            pytest.raises((failure, FileError)),
            result_folder(out, NAMES, overwrite=True) as folder,
        ):
            (folder / RECORD).write_text("half")
            raise failure
    assert set(seen(tmp_path).values()) == {"old"}
    assert [p.name for p in tmp_path.iterdir()] == ["r"]
    assert leftovers(tmp_path) == []


def test_a_refusal_inside_names_the_folder_that_the_user_knows(tmp_path):
    with (
        pytest.raises(FileError, match=f"^{tmp_path}/r/a.txt: no"),
        result_folder(tmp_path / "r", NAMES, overwrite=False) as folder,
    ):
        raise FileError(f"{folder / 'a.txt'}: no")


def test_files_of_the_replaced_result_go_and_the_user_s_own_stay(tmp_path):
    write(tmp_path, "old")
    (tmp_path / "mine.txt").write_text("mine")
    write(tmp_path, "new", (RECORD, SUMMARY))
    assert seen(tmp_path) == {RECORD: "new", SUMMARY: "new", "mine.txt": "mine"}


def test_files_can_be_read_by_whom_they_could_be_read_before(tmp_path):
    (tmp_path / "usual").write_text("x")
    write(tmp_path / "r", "old")
    modes = {p.stat().st_mode & 0o777 for p in (tmp_path / "r").iterdir()}
    assert modes == {(tmp_path / "usual").stat().st_mode & 0o777}


def test_the_dataset_s_own_files_are_written_once_and_then_left(tmp_path):
    names = ("dataset_description.json", *NAMES)
    for content in ("first", "second"):
        with result_folder(tmp_path, names, overwrite=True) as folder:
            for name in names:
                (folder / name).write_text(content)
    assert (tmp_path / "dataset_description.json").read_text() == "first"
    assert (tmp_path / RECORD).read_text() == "second"


def test_a_result_is_found_by_its_folder_and_its_record(tmp_path):
    write(tmp_path, "x")
    assert find_record(tmp_path) == find_record(tmp_path / RECORD) == tmp_path / RECORD


def test_a_result_under_bids_names_is_found_from_the_dataset_the_subject_and_its_own_folder(
    tmp_path,
):
    write(tmp_path, "x", bids=True)
    record = tmp_path / "sub-1" / "xfm" / f"sub-1_{RECORD}"
    assert {find_record(given) for given in (tmp_path, *record.parents[:2], record)} == {record}


def test_one_of_several_results_has_to_be_named(tmp_path):
    write(tmp_path, "x")
    write(tmp_path, "x", bids=True)
    assert len(results_in(tmp_path)) == 2
    with pytest.raises(FileError, match=f"one {RECORD}, found {RECORD}, sub-1/xfm/sub-1_{RECORD}"):
        find_record(tmp_path)


@pytest.mark.parametrize(
    ("given", "listed"),
    [("", {"", "sub-1/xfm"}), (RECORD, {""}), ("sub-1", {"sub-1", "sub-1/xfm"})],
)
def test_only_folders_where_a_result_can_be_are_looked_into(given, listed, tmp_path):
    write(tmp_path, "x")
    for folder in ("sub-1/xfm", "sub-1/anat", "photos/2024", "sub-2"):
        (tmp_path / folder).mkdir(parents=True)
    seen_by_it = {
        os.path.relpath(line, tmp_path) for line in said_by(LOOKING, tmp_path / given).splitlines()
    }
    assert seen_by_it == {os.path.normpath(folder) for folder in listed}


def test_what_runs_left_elsewhere_is_left_to_those_who_look_there(tmp_path):
    write(tmp_path, "x")
    write(tmp_path / "deep", "x", moment=6)
    assert leftovers(tmp_path / "deep")
    find_record(tmp_path)
    assert leftovers(tmp_path / "deep")


@pytest.mark.parametrize(("name", "words"), [("file", "found a file"), ("file/deep", "is a file")])
def test_a_place_where_no_folder_can_be_is_refused(name, words, tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(FileError, match=words):
        check_result(tmp_path / name, NAMES, overwrite=True)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_refused(tmp_path):
    closed = pathlib.Path(tmp_path / "closed")
    closed.mkdir(mode=0o500)
    with pytest.raises(FileError, match="cannot be written to"):
        check_result(closed / "r", NAMES, overwrite=True)
