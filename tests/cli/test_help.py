"""Help is complete, and costs nothing."""

import json
import re
import subprocess
import sys

import pytest

from cli.cases import kunita_command

HEAVY = (
    "jax",
    "numpy",
    "scipy",
    "SimpleITK",
    "nibabel",
    "matplotlib",
    "vtkmodules",
    "h5py",
    "rich",
)

READING = ("--frame", "--spacing", "--format")
TALKING = ("--json", "--quiet")
OPTIONS = {
    "demo": ("--out", "--overwrite", *TALKING),
    "register": (
        "MOVING", "FIXED", "--out", "--length-scale", "--amplitude", "--noise", "--kernel", "--align", "--model",
        "--moving-image", "--fixed-image", "--labels", "--targets", "--moving-frame", "--fixed-frame", "--volumes",
        "--nrrd", "--nifti-xfm", "--bids", "--no-report", "--overwrite", "gaussian", "matern32", "matern52", "matern72",
        "rational", "none", "translation", "rigid", "similarity", "affine", "endpoint", "pathwise", "small", "RAS",
        "LPS", "IMAGE", "--prior", "--robust", "--scale-noise", "best", *READING, *TALKING,
    ),
    "tune": ("CASES.tsv", "--out", "--kernel", "--scales", "--align", "--overwrite", *TALKING),
    "loo": (
        "CASES.tsv", "--out", "--length-scales", "--prior", "--workers", "--fast", "--seed", "--overwrite", *TALKING,
    ),
    "suggest": ("DIR", "--inside", "--label", "--noise", "--out", "--figure", "--spacing", "--overwrite", *TALKING),
    "predict": ("DIR", "POINTS", "--out", "--inverse", "--overwrite", *READING, *TALKING),
    "warp": ("DIR", "IMAGE", "--out", "--reference", "--nearest", "--inverse", "--overwrite", *TALKING),
    "uncertainty": (
        "DIR", "--reference", "--out", "--what", "fc", "std", "radius", "cov", "jacobian", "--overwrite", *TALKING,
    ),
    "pool": ("FILES", "--out", "--overwrite", *READING, *TALKING),
    "convert": ("IN", "OUT", "--from", "--to", "--overwrite", *TALKING),
    "info": ("FILE", *READING, *TALKING),
}  # fmt: skip
"""What users are promised of each command."""


@pytest.mark.parametrize("command", OPTIONS)
def test_the_help_of_a_command_lists_all_that_is_promised(command):
    ended = kunita_command(command, "--help")
    assert (ended.status, ended.err) == (0, "")
    assert [word for word in OPTIONS[command] if word not in ended.out] == []


def test_the_help_lists_every_command_the_exit_statuses_and_what_the_software_is_not_for():
    ended = kunita_command("--help")
    assert (ended.status, ended.err) == (0, "")
    assert [name for name in OPTIONS if not re.search(rf"^ +{name}\b", ended.out, re.M)] == []
    assert "Not for clinical decisions" in ended.out
    assert all(
        status in ended.out
        for status in ("0 done", "1 a bug", "2 the input was refused", "3 the fit")
    )


def test_help_and_refused_options_import_nothing_heavy():
    code = f"""
import contextlib, io, json, sys
from kunita.cli import main
for words in ([], ["--version"], ["register", "a", "--out", "b", "--kernel", "no"],
              *([*c, "--help"] for c in {[[], *([name] for name in OPTIONS)]!r})):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        with contextlib.suppress(SystemExit):
            main(words)
print(json.dumps(sorted(set({HEAVY!r}) & set(sys.modules))))
"""
    assert json.loads(subprocess.check_output([sys.executable, "-c", code], text=True)) == []
