"""The page of a 256³ case: how large it is, how long it takes to make, and how soon a browser has
it ready.

Images are pure noise, which nothing compresses: the worst case. The browser draws in software (no
graphics card). Limits: 12 MB, ready in 5 s; and the page of landmarks alone adds less than 2 s to a
registration.
"""

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import kunita
from kunita.io.summary_files import summary_document
from kunita.outputs.layers import Layers
from kunita.outputs.maps import maps
from kunita.outputs.summary import landmark_rows, summary
from kunita.report.page import Subject, page

LIMIT_BYTES, LIMIT_READY, LIMIT_ADDED = 12e6, 5.0, 2.0
FLAGS = (
    "--no-sandbox",
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",
    "--ignore-gpu-blocklist",
)


def main() -> None:
    """Print sizes and times, each as a ratio to its limit."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--repeats", type=int, default=3)
    args = options.parse_args()
    rng = np.random.default_rng(args.seed)
    moving = rng.uniform(40, 210, (37, 3))
    fixed = moving + 4 * np.sin(moving[:, [1, 2, 0]] / 40) + 0.5 * rng.normal(size=moving.shape)
    reg = kunita.register(moving, fixed)
    bare = timed(
        lambda: page(
            Subject(reg, landmark_rows(reg), summary_document(summary(reg, landmark_rows(reg))))
        )
    )
    row("landmarks alone: adds", bare[1], LIMIT_ADDED, "s")
    subject = volume_subject(reg, rng)
    made, seconds = timed(lambda: page(subject))
    row(
        "256³, two images of noise, a label: size",
        len(made.encode()) / 1e6,
        LIMIT_BYTES / 1e6,
        "MB",
    )
    print(f"{'… made in (images in memory)':45} {seconds:8.2f} s")
    row("… ready in Chromium, median", ready(made, args.repeats), LIMIT_READY, "s")


def volume_subject(reg: kunita.Registration, rng: np.random.Generator) -> Subject:
    """Two images and a label on 256³ voxels."""
    grid = kunita.Grid((256, 256, 256), np.eye(4))
    images = [
        kunita.Image(rng.integers(0, 255, grid.shape, np.uint8), grid.affine) for _ in range(2)
    ]
    label = np.zeros(grid.shape, np.float32)
    label[90:170, 80:160, 100:180] = 1
    rows, found = landmark_rows(reg), maps(reg, grid)
    layers = Layers(*images, kunita.Image(label, grid.affine))
    return Subject(reg, rows, summary_document(summary(reg, rows, found)), found, layers)


def ready(text: str, repeats: int) -> float:
    """Seconds from opening the file to the viewer's last word, in a new browser each time."""
    browser = shutil.which("chromium") or sys.exit(
        "no Chromium is installed (Debian: apt-get install chromium)"
    )
    from playwright.sync_api import sync_playwright

    times = []
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = Path(folder) / "report.html"
        path.write_text(text, encoding="utf-8")
        for _ in range(repeats):
            running = playwright.chromium.launch(executable_path=browser, args=list(FLAGS))
            opened = running.new_page(viewport={"width": 1280, "height": 900})
            began = time.perf_counter()
            opened.goto(path.as_uri())
            opened.wait_for_selector("html[data-ready=yes]", state="attached", timeout=120_000)
            times.append(time.perf_counter() - began)
            running.close()
    return statistics.median(times)


def timed(function):
    """The second call: what is compiled is compiled."""
    function()
    began = time.perf_counter()
    made = function()
    return made, time.perf_counter() - began


def row(name: str, value: float, limit: float, unit: str) -> None:
    """A number, and what part of its limit it is."""
    print(f"{name:45} {value:8.2f} {unit}   {value / limit:5.2f} of {limit:g} {unit}")


if __name__ == "__main__":
    main()
