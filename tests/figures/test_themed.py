"""Figures for a page: one drawing that follows its theme, and text that stays text."""

import re
import warnings
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.figure import Figure

from kunita.figures import themed
from kunita.figures.themed import svg

NASTY = (
    "<script>alert(1)</script>",
    "a & b",
    "a$b$",
    r"\$x^{",
    'id="m1" url(#m1)',
    "标志点",
    "bell\a",
    "#010a01",
    "$",
)


@themed.themed
def drawn(words=("plain",), size=2.0):
    """A figure with all that has ids: markers, a clip path, a hatch; and all colours."""
    figure = Figure(figsize=(3, size))
    axes = figure.subplots()
    for k, colour in enumerate(themed.VARIABLES):
        axes.plot([0, 1], [k, k + 1], "o-", color=colour)
    axes.axvspan(0.2, 0.4, facecolor="none", edgecolor=themed.FAINT, hatch="//")
    axes.set_yticks(range(len(words)), words)
    axes.set_xlabel(words[0])
    return figure


def parsed(figure, alt="what it shows"):
    return ElementTree.fromstring(svg(figure, alt))


def texts(root):
    return [element.text for element in root.iter(f"{{{themed.SVG}}}text")]


def ids(text):
    return re.findall(r'\bid="([^"]*)"', text)


def test_every_colour_is_a_variable_of_the_page_and_no_other_is_left():
    text = svg(drawn(), "")
    assert set(re.findall(r"var\(--[\w-]+\)", text)) == set(themed.VARIABLES.values())
    assert not re.findall(r"#[0-9a-f]{6}\b", text)


def test_text_has_the_font_of_the_page_and_its_ink():
    for element in parsed(drawn()).iter(f"{{{themed.SVG}}}text"):
        assert "font-family" not in element.get("style")
        assert "font-size" in element.get("style")
        assert "fill: var(--ink)" in element.get("style")


@pytest.mark.parametrize(
    ("style", "expected"),
    [
        (
            "font: 8px 'DejaVu Sans', 'Arial', sans-serif; text-anchor: middle",
            "font-size: 8px; text-anchor: middle",
        ),
        (
            "font-size: 8px; font-family: 'DejaVu Sans', sans-serif; fill: red",
            "font-size: 8px; fill: red",
        ),
    ],
    ids=["as matplotlib 3.8 writes it", "as matplotlib 3.11 does"],
)
def test_the_font_is_dropped_however_it_is_written(style, expected):
    assert themed.without_family(style) == expected


def test_names_come_out_as_text_whatever_is_in_them():
    root = parsed(drawn(NASTY), alt='<script>"&\0\ud800')
    shown = texts(root)
    for name in NASTY:
        assert name.replace("\a", "\N{REPLACEMENT CHARACTER}") in shown
    assert not list(root.iter(f"{{{themed.SVG}}}script"))
    assert root.get("aria-label") == '<script>"&' + 2 * "\N{REPLACEMENT CHARACTER}"
    assert "<script" not in svg(drawn(NASTY), "<script>")


def test_letters_that_the_drawing_has_no_font_for_are_left_to_the_page():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert svg(drawn(NASTY), "").startswith("<svg")


def test_it_is_an_element_that_scales_and_says_what_it_shows():
    text = svg(drawn(), "what it shows")
    root = ElementTree.fromstring(text)
    assert text.startswith("<svg")
    assert root.get("width") is root.get("height") is None
    assert root.get("viewBox") == "0 0 216 144"
    assert (root.get("role"), root.get("aria-label")) == ("img", "what it shows")
    assert root[0].tag == f"{{{themed.SVG}}}title"
    assert root[0].text == "what it shows"


def test_nothing_outside_is_referred_to_and_nothing_reaches_the_rest_of_the_page():
    text = svg(drawn(), "")
    assert re.findall(r"https?://[^\"]*", text) == [themed.SVG]
    assert not re.search("metadata|<style|DOCTYPE|<\\?xml|Matplotlib", text)


def test_ids_are_unique_in_a_page_and_every_reference_has_its_target():
    one, other = svg(drawn(), "one"), svg(drawn(size=2.5), "other")
    assert len(ids(one)) > 2
    everything = ids(one) + ids(other)
    assert len(set(everything)) == len(everything)
    for text in (one, other):
        assert set(re.findall(r'href="#([^"]*)"', text)) | set(
            re.findall(r"url\(#([^)]*)\)", text)
        ) == set(ids(text))


def test_the_same_figure_is_the_same_text():
    assert svg(drawn(NASTY), "x") == svg(drawn(NASTY), "x")
    figure = drawn()
    assert svg(figure, "x") == svg(figure, "x")


def test_a_picture_is_inside():
    @themed.themed
    def picture():
        figure = Figure(figsize=(2, 2))
        figure.subplots().imshow(np.eye(4))
        return figure

    (image,) = parsed(picture()).iter(f"{{{themed.SVG}}}image")
    assert image.get("href").startswith("data:image/png;base64,")


def test_no_global_setting_changes():
    import matplotlib

    before = dict(matplotlib.rcParams)
    svg(drawn(), "")
    assert dict(matplotlib.rcParams) == before
