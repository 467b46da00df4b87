"""The page as text: complete, self-contained, escaped, of a bounded size."""

import dataclasses
import html.parser
import json
import re
import warnings

import numpy as np
import pytest

import kunita
from cli.cases import kunita_command
from kunita.data.image import Grid, Image
from kunita.errors import KunitaWarning
from kunita.io.summary_files import summary_document
from kunita.outputs.layers import Layers
from kunita.outputs.maps import maps
from kunita.outputs.summary import landmark_rows, summary
from kunita.report import look
from kunita.report.files import result_files
from kunita.report.methods import methods, program
from kunita.report.page import Subject, page
from problems import registered
from report.conftest import HOSTILE

MOST_BYTES = 12_000_000
KINDS = ("volume_result", "flat_result", "bare_result")


class Seen(html.parser.HTMLParser):
    """Tags, ids and addresses of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.ids, self.addresses, self.links = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.tags.append(tag)
        self.ids += [found["id"]] if "id" in found else []
        self.addresses += [
            found[name] for name in ("src", "href", "xlink:href", "data") if found.get(name)
        ]
        self.links += [found["href"][1:]] if tag == "a" else []


@pytest.fixture(params=KINDS)
def text(request):
    return (request.getfixturevalue(request.param) / "report.html").read_text(encoding="utf-8")


def test_nothing_is_loaded_from_elsewhere(text):
    assert all(address.startswith(("data:", "#")) for address in Seen(text).addresses)
    assert "@import" not in text
    assert "default-src 'none'" in text


def test_ids_are_unique_and_links_lead_somewhere(text):
    seen = Seen(text)
    assert len(seen.ids) == len(set(seen.ids))
    assert set(seen.links) <= set(seen.ids)


def test_every_section_is_there(text):
    sections = {
        "answer",
        "viewer",
        "figures",
        "landmarks",
        "parameters",
        "files",
        "provenance",
        "methods",
    }
    assert sections <= set(Seen(text).ids)


def test_every_figure_is_there(text):
    figures = {"grid", "errors", "calibration", "jacobian", "history", "evidence"}
    assert {f"figure-{name}" for name in figures} <= set(Seen(text).ids)


def test_slices_are_there_if_there_are_images(volume_result, bare_result):
    there, not_there = (
        (folder / "report.html").read_text(encoding="utf-8")
        for folder in (volume_result, bare_result)
    )
    assert 'id="figure-slices"' in there
    assert 'id="figure-slices"' not in not_there


def test_no_name_is_markup(volume_result):
    text = (volume_result / "report.html").read_text(encoding="utf-8")
    for name in HOSTILE[:3]:
        assert name not in re.sub(
            r'<script type="text/plain".*?</script>', "", text, flags=re.DOTALL
        ), name
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "{{ 7 * 7 }}" in text
    assert "$x_1$ 49" not in text


def test_inputs_are_named_with_their_checksums_and_no_folder_of_the_user_s(volume_result, case):
    import hashlib

    text = (volume_result / "report.html").read_text(encoding="utf-8")
    table = re.search(r'<table class="sortable" id="inputs">.*?</table>', text, re.DOTALL)[0]
    for name in (
        "moving.mrk.json",
        "fixed.mrk.json",
        "moving.nii.gz",
        "fixed.nii.gz",
        "labels.nii.gz",
        "targets.csv",
    ):
        assert name in table
        assert hashlib.sha256((case / name).read_bytes()).hexdigest() in table
    assert str(case) not in text


def test_every_file_of_the_result_is_explained(volume_result):
    text = (volume_result / "report.html").read_text(encoding="utf-8")
    for name in json.loads((volume_result / "summary.json").read_text(encoding="utf-8"))["files"]:
        assert f"<code>{name}</code>" in text, name


def test_the_same_result_gives_the_same_page(bare_result, tmp_path):
    out = tmp_path / "again.html"
    assert kunita_command("report", bare_result, "--out", out).status == 0
    assert out.read_text(encoding="utf-8") == (bare_result / "report.html").read_text(
        encoding="utf-8"
    )


def test_numbers_that_are_not_are_no_crash():
    """A fit that went wrong has no numbers, and still a page."""
    none = dict.fromkeys(
        ("min_jacobian", "residual_mm", "noise_mm", "initial_error_mm", "fre_mm", "loo")
    )
    assert "not a number" in page(subject_of(registered(3), **none, expected=None))


def test_no_command_overwrites_a_file_of_the_result(volume_result):
    names = json.loads((volume_result / "summary.json").read_text(encoding="utf-8"))["files"]
    for file in result_files([(name, name) for name in names], 3):
        for way in file.openings:
            written = re.findall(r"(?:-o|--out) (\S+)", way.command)
            assert not set(written) & set(names), way.command


@pytest.mark.parametrize(("dimension", "form"), [(2, "h5"), (3, "h5"), (3, "nii.gz"), (3, "nrrd")])
def test_every_transform_has_a_command(dimension, form):
    (file,) = result_files([(f"forward_xfm.{form}", f"sub-01_forward_xfm.{form}")], dimension)
    assert file.openings
    assert all("sub-01_forward_xfm" in way.command for way in file.openings)


def test_tables_begin_with_one_line_that_states_the_frame(volume_result, flat_result):
    """Which is why they are read with skiprows=1."""
    for folder in (volume_result, flat_result):
        for path in folder.glob("*.csv"):
            first, second, *_ = path.read_text(encoding="utf-8").splitlines()
            assert first.startswith("#")
            assert not second.startswith("#")


def test_a_picture_is_given_the_spacing_of_the_registration():
    (file,) = result_files(
        [("forward_xfm.h5", "forward_xfm.h5")], 2, {"moving": (0.5, 0.5), "fixed": (0.25, 0.2)}
    )
    (command,) = (way.command for way in file.openings if way.program.startswith("SimpleITK"))
    assert "image.SetSpacing((0.5, 0.5)); onto.SetSpacing((0.25, 0.2))" in command


def test_one_page_has_one_smallest_determinant(bare_result):
    text = (bare_result / "report.html").read_text(encoding="utf-8")
    stated = float(re.search(r"smallest Jacobian determinant</dt><dd>([\d.]+)", text)[1])
    drawn = float(re.search(r"least, ([\d.]+)", text)[1])
    assert drawn == pytest.approx(stated, abs=6e-4)


def test_python_commands_run_as_they_are(volume_result, monkeypatch):
    monkeypatch.chdir(volume_result)
    names = json.loads((volume_result / "summary.json").read_text(encoding="utf-8"))["files"]
    tried = 0
    for file in result_files([(name, name) for name in names], 3):
        for way in file.openings:
            if (
                way.program in ("SimpleITK (Python)", "Kunita (Python)")
                and "MOVING" not in way.command
            ):
                exec(way.command, {})
                tried += 1
    assert tried > 5


@pytest.mark.parametrize("model", ["endpoint", "pathwise", "small"])
@pytest.mark.parametrize("robust", [False, True])
def test_the_methods_say_what_was_done(model, robust):
    document = {
        **summary_document(summary(registered(3), landmark_rows(registered(3)))),
        "model": model,
    }
    text = methods({**document, "robust": robust})
    assert ("flow of diffeomorphisms" in text) == (model != "small")
    assert ("Student's t" in text) == robust
    assert f"{document['n_landmarks']} pairs" in text
    assert program(kunita.__version__, model, document["align"]) in text
    assert not re.search(r"\bNone\b|\{|\bnan\b", text)


def subject_of(reg, grid=None, layers=None, **changed):
    rows, found = landmark_rows(reg), None if grid is None else maps(reg, grid)
    document = {**summary_document(summary(reg, rows, found)), **changed}
    return Subject(reg, rows, document, found, layers or Layers())


def quietly_registered(moving, fixed, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KunitaWarning)
        return kunita.register(moving, fixed, kernel=kunita.Gaussian(20.0, 4.0), **options)


@pytest.mark.slow
def test_a_page_of_256_cubed_is_small_enough_for_a_mail_even_if_the_images_are_noise():
    grid = Grid((256, 256, 256), np.diag([0.3, 0.3, 0.3, 1.0]))
    rng = np.random.default_rng(0)
    noise = [Image(rng.integers(0, 255, grid.shape, np.uint8), grid.affine) for _ in range(2)]
    label = np.zeros(grid.shape, np.float32)
    label[90:170, 80:160, 100:180] = 1
    made = page(subject_of(registered(3), grid, Layers(*noise, Image(label, grid.affine))))
    assert len(made.encode()) <= MOST_BYTES
    assert "means of 2 × 2 × 2 voxels, of 256 × 256 × 256" in made


def test_a_page_of_many_landmarks_draws_some_of_them_and_says_so():
    """The rows of a registration again and again, until they are more than a page draws."""
    reg = registered(3)
    usual = subject_of(reg)
    times = look.MOST_DRAWN // len(reg.moving) + 1
    repeated = {
        field.name: times * getattr(usual.rows, field.name)
        if isinstance(getattr(usual.rows, field.name), tuple)
        else np.concatenate(times * [getattr(usual.rows, field.name)])
        for field in dataclasses.fields(usual.rows)
    }
    rows = dataclasses.replace(usual.rows, **repeated)
    many = dataclasses.replace(
        reg,
        used=np.tile(reg.used, times),
        moving=kunita.Landmarks(np.tile(reg.moving.points, (times, 1))),
        fixed=kunita.Landmarks(np.tile(reg.fixed.points, (times, 1))),
        noise=np.tile(reg.noise, (times, 1, 1)),
    )
    made = page(dataclasses.replace(usual, rows=rows, reg=many))
    assert f"{look.MOST_DRAWN} of {len(rows.names)} landmarks are drawn" in made
    # in the viewer and in the figure, three planes each
    assert made.count('<g class="landmark') == 2 * 3 * look.MOST_DRAWN


@pytest.mark.parametrize(("n", "d"), [(1, 3), (2, 2)])
def test_a_page_of_very_few_landmarks_says_what_it_can(n, d):
    points = 10 * np.eye(3)[:n, :d] + 5
    reg = quietly_registered(points, points + 0.5, noise=0.5, align="translation")
    made = page(subject_of(reg))
    assert "calibration untested" in made
    assert 'id="figure-grid"' in made


def test_a_page_of_a_registration_that_did_not_converge_says_so():
    rng = np.random.default_rng(0)
    moving = rng.uniform(0, 50, (16, 3))
    reg = quietly_registered(moving, moving * [-1, 1, 1], noise=0.7)
    assert not reg.converged
    made = page(subject_of(reg))
    assert "do not rely on this registration" in made


def test_robust_fits_show_weights_and_no_evidence():
    reg = registered(3)
    fitted = quietly_registered(reg.moving.points, reg.fixed.points, noise=0.7, robust=True)
    made = page(subject_of(fitted))
    assert ">weight<" in made
    assert 'id="figure-evidence"' not in made
