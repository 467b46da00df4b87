"""A full disk and a kill: the earlier result stays whole, and the next run tidies up."""

import contextlib
import json
import math
import os
import resource
import shutil
import signal
import subprocess
import sys
import time

import jax
import pytest

import kunita
from cli.cases import KERNEL, contents, kunita_command
from kunita.errors import ExitStatus

LIMITED = """
import math, resource, signal, sys, jax
from kunita.cli import main
jax.config.update("jax_persistent_cache_min_compile_time_secs", math.inf)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
sys.exit(main(sys.argv[2:]))
"""


def words(case, out, *more):
    return [str(word) for word in (
        "register", case / "moving.mrk.json", case / "fixed.mrk.json", "--out", out, *KERNEL, "--overwrite", "--quiet",
        "--moving-image", case / "moving.nii.gz", "--fixed-image", case / "fixed.nii.gz", *more,
    )]  # fmt: skip


@pytest.fixture
def earlier(result, tmp_path):
    """An earlier result, which is to survive."""
    out = tmp_path / "result"
    shutil.copytree(result, out)
    return out


@contextlib.contextmanager
def small_disk(size):
    """Limits the size of files, for no longer than a command: pytest's own output may go to a file.
    Compiled programs, which it would cut off, are not kept."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    kept = jax.config.jax_persistent_cache_min_compile_time_secs
    jax.config.update("jax_persistent_cache_min_compile_time_secs", math.inf)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", kept)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("size", [100, 20_000, 80_000])
def test_no_space_for_the_record_is_one_line_and_the_earlier_result_stays(size, case, earlier):
    before = contents(earlier)
    with small_disk(size):
        ended = kunita_command(*words(case, earlier))
    assert ended.status == ExitStatus.REFUSED
    assert (
        ended.err
        == f"kunita: error: {earlier}/registration.h5: cannot be written: the disk is full (nothing was changed)\n"
    )
    assert contents(earlier) == before


WRITERS = {
    "points as JSON": ("predict {result} {case}/moving.csv --out {out}/p.mrk.json", 2000),
    "a mesh": ("predict {result} {case}/mesh.vtk --out {out}/m.vtk", 200),
    "streamlines": ("predict {result} {case}/lines.trk --out {out}/l.trk", 1100),
    "a compressed map": (
        "uncertainty {result} --reference {case}/fixed.nii.gz --out {out}/u.nii.gz",
        9000,
    ),
    "a map": ("uncertainty {result} --reference {case}/fixed.nii.gz --out {out}/u.nii", 9000),
    "covariances": (
        "uncertainty {result} --what cov --reference {case}/fixed.nii.gz --out {out}/u.nii.gz",
        9000,
    ),
    "an image of ITK": ("warp {result} {case}/moving.nii.gz --out {out}/w.nrrd", 2000),
    "a warped image": ("warp {result} {case}/moving.nii.gz --out {out}/w.nii.gz", 2000),
    "a table": ("convert {case}/moving.csv {out}/c.tsv", 200),
}


@pytest.mark.parametrize(("command", "size"), WRITERS.values(), ids=WRITERS)
def test_no_space_for_a_file_is_one_line_and_leaves_nothing(command, size, case, result, tmp_path):
    typed = [part.format(case=case, result=result, out=tmp_path) for part in command.split()]
    with small_disk(size):
        ended = kunita_command(*typed, "--quiet")
    assert ended.status == ExitStatus.REFUSED
    assert ended.err.startswith(f"kunita: error: {tmp_path}/")
    assert "cannot be written" in ended.err
    assert ended.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def process(code, *arguments):
    cache = jax.config.jax_compilation_cache_dir
    environment = {
        **os.environ,
        "JAX_COMPILATION_CACHE_DIR": cache,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": str(
            jax.config.jax_persistent_cache_min_compile_time_secs
        ),
    }
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stderr=subprocess.PIPE, text=True, env=environment
    )  # fmt: skip


def test_no_space_for_a_transform_is_refused_and_the_earlier_result_stays(case, earlier):
    before = contents(earlier)
    running = process(LIMITED, "100000", *words(case, earlier))
    _, said = running.communicate()
    assert contents(earlier) == before
    assert running.returncode == ExitStatus.REFUSED
    assert said.count("\n") == 1


COMMAND = "import sys; from kunita.cli import main; sys.exit(main(sys.argv[1:]))"
FIRST_AND_LAST = ("registration.h5", "summary.json")
MORE = (
    "registration.h5",
    "forward_xfm.h5",
    "uncertainty_fc.nii.gz",
    "landmarks.csv",
    "summary.json",
)


@pytest.mark.parametrize(
    "moments", [FIRST_AND_LAST, pytest.param(MORE, marks=pytest.mark.soak)], ids=["few", "more"]
)
def test_a_kill_while_any_file_is_written_leaves_one_whole_result_and_the_next_run_tidies_up(
    moments, case, earlier
):
    before = contents(earlier)
    for moment in moments:
        running = process(COMMAND, *words(case, earlier, "--no-report"))
        while not list(earlier.glob(f".kunita-partial*/*/*{moment}")) and running.poll() is None:
            time.sleep(0.0005)
        running.kill()
        running.communicate()
        if running.returncode == -signal.SIGKILL:
            assert (
                "registration" in kunita_command("info", earlier, "--json").out
            )  # this settles what was left
        found = contents(earlier)
        assert found == before or set(found) == set(json.loads(found["summary.json"])["files"])
        assert kunita.load(earlier / "registration.h5").converged
        before = found
    assert kunita_command(*words(case, earlier, "--no-report")).status == 0
    assert not list(earlier.glob(".kunita*"))
