"""The demo's promise: the truth is closer after than before, and inside the region that was said to
hold it."""

import json
from argparse import Namespace

from kunita.console import Console
from kunita.demo import FILES, IMAGE_FILES, run, run_images
from kunita.phantoms.brain_shift import brain_shift
from kunita.phantoms.brain_twice import brain_twice
from kunita.results import Request, output_names


def test_the_demo_runs_end_to_end_and_its_numbers_are_those_of_the_truth(tmp_path, capsys):
    """The same case on coarse voxels: truth and landmarks do not depend on them."""
    args = Namespace(out=tmp_path, seed=0, overwrite=False, quiet=False, json=False)
    assert run(brain_shift(0, spacing=5.0), args, Console(quiet=False, as_json=False)) == 0
    truth = json.loads((tmp_path / "truth.json").read_text())
    assert truth["fan"]["after_mm"] < 0.3 * truth["fan"]["before_mm"]
    assert truth["tumour"]["after_mm"] < 0.2 * truth["tumour"]["before_mm"]
    assert truth["fan"]["held_95"] > 0.85
    assert truth["tumour_centre"]["after_mm"] < truth["tumour_centre"]["radius95_mm"]
    printed = capsys.readouterr().out
    assert "where ultrasound sees" in printed
    assert str(tmp_path / "report.html") in printed
    assert (tmp_path / "report.html").read_bytes() == (
        tmp_path / "result" / "report.html"
    ).read_bytes()
    assert {path.name for path in (tmp_path / "case").iterdir()} == set(FILES)
    asked = Request(
        moving_image=tmp_path,
        fixed_image=tmp_path,
        labels=tmp_path,
        targets_file=tmp_path / FILES[-1],
    )
    assert {path.name for path in (tmp_path / "result").iterdir()} == set(output_names(asked, 3))


def test_the_demo_by_images_runs_end_to_end_and_its_numbers_are_those_of_the_truth(
    tmp_path, capsys
):
    """The same heads on coarse voxels, with a given prior, which takes a fifth of the time."""
    args = Namespace(out=tmp_path, seed=0, overwrite=False, quiet=False, json=False)
    console = Console(quiet=False, as_json=False)
    prior = ("--length-scale", "30", "--amplitude", "5")
    assert run_images(brain_twice(0, spacing=3.0), args, console, *prior) == 0
    truth = json.loads((tmp_path / "truth.json").read_text())
    for part in ("brain", "tumour"):
        assert truth[part]["after_mm"] < 0.25 * truth[part]["before_mm"]
        assert truth[part]["held_95"] > 0.85
    assert truth["tumour_centre"]["after_mm"] < truth["tumour_centre"]["radius95_mm"]
    printed = capsys.readouterr().out
    assert "in the brain" in printed
    assert "true for" in printed
    assert (tmp_path / "report.html").exists()
    assert {path.name for path in (tmp_path / "case").iterdir()} == set(IMAGE_FILES)
