"""What `kunita register --from-images` says while it runs, and what Ctrl-C leaves behind: nothing."""

import json
import os
import signal
import subprocess
import sys

import jax
import numpy as np
import pytest
import SimpleITK as sitk

import kunita
from cli.cases import contents, kunita_command
from kunita.console import Stage, WorkDone
from kunita.errors import ExitStatus
from kunita.phantoms.textures import TextureOptions, texture_pair

PRIOR = ("--length-scale", 14, "--amplitude", 2, "--no-report")
MOVING = "sub-01_ses-before_T1w.tif"
FIXED = "sub-01_ses-after_T1w.tif"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    home = tmp_path_factory.mktemp("progress")
    pair = texture_pair(TextureOptions(size=48, amplitude=1.5, length_scale=14.0), seed=6)
    for name, image in ((MOVING, pair.moving), (FIXED, pair.fixed)):
        data = np.asarray(image.data, np.float32)
        kunita.write_image(home / name, kunita.Image(data, np.eye(3)))
    sitk.WriteTransform(sitk.AffineTransform(2), str(home / "start.tfm"))
    return home


def words(folder, out, *more):
    given = ("--from-images", folder / MOVING, folder / FIXED, "--init", folder / "start.tfm")
    return [str(word) for word in ("register", *given, "--out", folder / out, *more)]


@pytest.fixture(scope="module")
def quick(folder):
    """A first look, under BIDS names."""
    return kunita_command(*words(folder, "quick", *PRIOR, "--quick", "--bids"))


def test_every_stage_is_one_line_where_there_is_no_terminal(quick):
    assert quick.status == 0, quick.err
    stages = [line for line in quick.err.splitlines() if line.endswith("…")]
    assert len(stages) == len(set(stages))
    assert "  fitting …" in stages
    assert "  drawing from the posterior …" in stages
    assert "choosing the prior" not in quick.err  # it is given


def test_a_first_look_says_that_it_is_one_and_how_good_its_radii_are(folder, quick):
    document = json.loads(next((folder / "quick").rglob("*summary.json")).read_text())
    images = document["registered_images"]
    assert images["first_look"] is True
    assert 0.05 < images["monte_carlo_error"] < 0.15
    error = f"Monte Carlo error of {100 * images['monte_carlo_error']:.0f} %"
    for said in (quick.out, quick.err, " ".join(document["warnings"])):
        assert "first look" in said
        assert error in said


def test_planes_without_spacing_are_in_pixels_and_say_so(folder, quick):
    document = json.loads(next((folder / "quick").rglob("*summary.json")).read_text())
    assert document["registered_images"]["unit"] == "pixel"
    assert "one pixel counts as one mm" in quick.out
    assert "all lengths are in pixels" in quick.err


def test_the_result_has_bids_names(folder, quick):
    names = {path.name for path in (folder / "quick" / "sub-01" / "xfm").iterdir()}
    assert "sub-01_space-afterT1w_desc-regmismatch_map.tif" in names
    assert "sub-01_from-beforeT1w_to-afterT1w_mode-image_desc-mean_xfm.h5" in names


def test_quiet_says_nothing_and_json_nothing_else(folder):
    ended = kunita_command(*words(folder, "quiet", *PRIOR, "--quiet"))
    assert (ended.status, ended.out, ended.err) == (0, "", "")
    again = kunita_command(*words(folder, "quiet", *PRIOR, "--overwrite", "--json"))
    assert json.loads(again.out)["registered_images"]["first_look"] is False


def test_the_time_left_is_that_of_the_rest_at_the_pace_so_far():
    seconds = iter([0.0, 10.0, 30.0])
    work = WorkDone([Stage("first", 1.0), Stage("second", 3.0)], lambda: next(seconds))
    assert work.left == ""  # nothing is done yet
    assert work.reach("first", 1.0) == 0.25
    assert work.seconds_left == pytest.approx(30.0)
    assert work.reach("second", 1 / 3) == pytest.approx(0.5)
    assert work.reach("first", 0.5) == pytest.approx(0.5)  # it never falls
    assert work.reach("another", 0.5) == pytest.approx(0.5)
    assert work.seconds_left == pytest.approx(30.0)


COMMAND = """
import signal, sys
from kunita.cli import main

# Where the tests run in the background of a shell, they inherit that Ctrl-C is ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("is_first", [True, False], ids=["first", "over an earlier result"])
def test_ctrl_c_during_the_fit_is_one_line_and_leaves_what_was_there(folder, tmp_path, is_first):
    out = tmp_path / "result"
    if not is_first:
        assert kunita_command(*words(folder, out, *PRIOR, "--quick", "--quiet")).status == 0
    before = contents(tmp_path)
    environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": jax.config.jax_compilation_cache_dir}
    running = subprocess.Popen(
        [sys.executable, "-c", COMMAND, *words(folder, out, "--overwrite")],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    for line in running.stderr:
        if "choosing the prior" in line:  # a fit, and the longest stage
            break
    running.send_signal(signal.SIGINT)
    said, wrong = running.communicate()
    assert running.returncode == ExitStatus.STOPPED
    assert said == ""
    assert wrong == "kunita: error: stopped; no result was changed\n"
    assert contents(tmp_path) == before
    assert out.exists() is not is_first
