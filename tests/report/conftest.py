"""Results to look at: volumes, pictures, landmarks alone; their names are as hostile as names can
be."""

import shutil

import numpy as np
import pytest

import kunita
from cli.cases import KERNEL, kunita_command, landmarks, write_case, write_flat_case
from kunita.io.landmark_files.files import write_landmarks
from problems import rotation_near_identity

HOSTILE = (
    "<script>alert(1)</script>",
    "</script><b>bold</b>",
    "a & b \"quoted\" 'twice'",
    "$x_1$ {{ 7 * 7 }}",
)

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
FLAGS = (
    "--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--ignore-gpu-blocklist",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run",
)  # fmt: skip
"""WebGL in software: there may be no graphics card."""


def named(points, names):
    return kunita.Landmarks(points, (*HOSTILE, *names[len(HOSTILE) :]))


@pytest.fixture(scope="session")
def case(tmp_path_factory):
    """The user's files, with hostile names."""
    folder = tmp_path_factory.mktemp("hostile")
    write_case(folder)
    for side, points in zip(("moving", "fixed"), landmarks(), strict=True):
        write_landmarks(
            folder / f"{side}.mrk.json", named(points.points, points.names), overwrite=True
        )
    for name in ("moving", "fixed", "labels"):
        image = kunita.read_image(folder / f"{name}.nii.gz")
        kunita.write_image(
            folder / f"{name}.nii.gz", kunita.Image(image.data, oblique(image.grid)), overwrite=True
        )
    write_flat_case(folder)
    return folder


def oblique(grid):
    """The affine of a grid that is turned about its middle, as scanners' are."""
    turn, middle = rotation_near_identity(3), grid.world((np.array(grid.shape) - 1) / 2)
    affine = grid.affine.copy()
    affine[:3, :3] = turn @ affine[:3, :3]
    affine[:3, 3] = middle - affine[:3, :3] @ ((np.array(grid.shape) - 1) / 2)
    return affine


def registered(case, out, *options):
    ended = kunita_command("register", *options, "--out", out, *KERNEL, "--json")
    assert ended.status == 0, ended.err
    return out


@pytest.fixture(scope="session")
def volume_result(case, tmp_path_factory):
    """Landmarks, images, labels and targets in 3-D."""
    return registered(
        case, tmp_path_factory.mktemp("volume") / "result", case / "moving.mrk.json", case / "fixed.mrk.json",
        "--moving-image", case / "moving.nii.gz", "--fixed-image", case / "fixed.nii.gz",
        "--labels", case / "labels.nii.gz", "--targets", case / "targets.csv",
    )  # fmt: skip


@pytest.fixture(scope="session")
def flat_result(case, tmp_path_factory):
    """Landmarks and colour pictures in 2-D."""
    return registered(
        case, tmp_path_factory.mktemp("flat") / "result", case / "moving.csv", case / "fixed.csv",
        "--moving-image", case / "moving.png", "--fixed-image", case / "fixed.png", "--labels", case / "labels.png",
        "--frame", "IMAGE",
    )  # fmt: skip


@pytest.fixture(scope="session")
def bare_result(case, tmp_path_factory):
    """Landmarks alone, in 3-D."""
    return registered(
        case,
        tmp_path_factory.mktemp("bare") / "result",
        case / "moving.mrk.json",
        case / "fixed.mrk.json",
    )


@pytest.fixture(scope="session")
def browser():
    """A real browser."""
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed (Debian: apt-get install chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield running
        running.close()
