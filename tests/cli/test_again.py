"""The program itself, twice: the second process takes its programs from the user's cache, and every
number is equal."""

import json
import os
import subprocess
import sys

import h5py
import numpy as np

from kunita.errors import ExitStatus


def program(cache, *words):
    """Run as a user does, with a cache of the user's own; but programs are compiled in haste."""
    alone = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    alone["XDG_CACHE_HOME"] = str(cache)
    alone["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    command = [sys.executable, "-m", "kunita.cli", *map(str, words)]
    return subprocess.run(command, env=alone, capture_output=True, text=True, check=False)


def numbers(out):
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    for of_the_run in ("seconds", "created", "command"):
        del summary[of_the_run]
    with h5py.File(out / "forward_xfm.h5") as file:
        vectors = file["TransformGroup/2/TransformParameters"][:]
    return (
        summary,
        *((out / name).read_text() for name in ("landmarks.csv", "carried.csv")),
        vectors,
    )


def test_a_second_run_takes_its_programs_from_the_cache_and_gives_the_same_numbers(case, tmp_path):
    cache, outs = tmp_path / "cache", [tmp_path / "first", tmp_path / "second"]
    sides = case / "moving.mrk.json", case / "fixed.mrk.json"
    kept = []
    for out in outs:
        ended = program(
            cache,
            "register",
            *sides,
            "--fixed-image",
            case / "fixed.nii.gz",
            "--out",
            out,
            "--no-report",
        )
        assert ended.returncode == 0
        assert "warning" not in ended.stderr
        assert "written" in ended.stdout  # nothing is lost, though the program ends at once
        assert (
            program(cache, "predict", out, sides[0], "--out", out / "carried.csv").returncode == 0
        )
        kept.append(
            {path.name: path.stat().st_mtime_ns for path in cache.rglob("*") if path.is_file()}
        )
    assert kept[0] == kept[1]
    assert len(kept[0]) > 5
    first, second = map(numbers, outs)
    assert first[:3] == second[:3]
    np.testing.assert_array_equal(first[3], second[3])


def test_the_program_ends_with_the_status_of_its_command(tmp_path):
    ended = program(tmp_path, "info", tmp_path / "nothing.nii.gz")
    assert ended.returncode == ExitStatus.REFUSED
    assert ended.stderr.count("\n") == 1
    assert program(tmp_path, "--version").stdout.startswith("kunita ")


def test_a_reader_that_goes_away_costs_nothing_but_the_text(case, tmp_path):
    """As `kunita … 2>&1 | head -1` does: the pipe is closed before the first word."""
    reading, writing = os.pipe()
    os.close(reading)
    out = tmp_path / "converted.csv"
    command = [
        sys.executable,
        "-m",
        "kunita.cli",
        "convert",
        str(case / "moving.mrk.json"),
        str(out),
    ]
    ended = subprocess.run(command, stdout=writing, stderr=writing, check=False)
    os.close(writing)
    assert ended.returncode == 0
    assert out.exists()
