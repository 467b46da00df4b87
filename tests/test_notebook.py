"""Cards for notebooks: well-formed, harmless on any page, of bounded size, and true to the numbers."""

import dataclasses
import functools
import re
import time
from html.parser import HTMLParser
from xml.etree import ElementTree

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kunita
from kunita import notebook
from kunita.gaussians import GaussianPoints
from kunita.inference.intervals import EstimatedParameter
from kunita.inference.solve import Truncation
from kunita.inference.trend import KINDS, generators
from kunita.io.registration_files import load, save
from kunita.kernels import describe_kernel
from problems import KERNELS, gp_displaced, registered

NASTY = (
    "<script>alert(1)</script>",
    '" onmouseover="x',
    "a\x00b\x1b",
    "half \ud83d",
    "\u202eturned",
    "</svg>&amp;",
    "标志点",
)
ABOUT = re.compile(r"\d+\.?\d*(?:e[+-]\d+)?")


@functools.cache
def planted():
    """Landmarks with nasty names, one of which is far off, and one left out."""
    moving, fixed = gp_displaced(12, seed=5, rms=8.0)
    fixed[0] += [60.0, 0, 0]
    names = [*NASTY, *(f"L{i}" for i in range(len(NASTY), 12))]
    noise = np.r_[np.ones(11), np.inf]
    with pytest.warns(kunita.KunitaWarning, match="left out"):
        return kunita.register(
            kunita.Landmarks(moving, names),
            kunita.Landmarks(fixed, names),
            kernel=KERNELS["sum"],
            noise=noise,
        )


@functools.cache
def mirrored():
    """A registration that does not converge."""
    moving, fixed = gp_displaced(12, seed=5, rms=8.0)
    with pytest.warns(kunita.KunitaWarning):
        return kunita.register(moving, fixed * [-1, 1, 1])


@functools.cache
def single(d=3):
    x = np.arange(1.0, d + 1)[None]
    with pytest.warns(kunita.KunitaWarning, match="translation only"):
        return kunita.register(x, x + 2.0)


@functools.cache
def robust():
    moving, fixed = gp_displaced(12, seed=5, rms=8.0)
    return kunita.register(moving, fixed, kernel=kunita.Gaussian(50.0, 5.0), noise=1.0, robust=True)


@functools.cache
def of_model(model):
    moving, fixed = gp_displaced(12, seed=5, rms=8.0)
    return kunita.register(
        moving, fixed, kernel=kunita.Gaussian(50.0, 5.0), noise=1.0, model=model, align="affine"
    )


REGISTRATIONS = {
    "3-D": registered,
    "2-D": functools.partial(registered, 2),
    "nasty": planted,
    "not converged": mirrored,
    "single": single,
    "single 2-D": functools.partial(single, 2),
    "robust": robust,
    "pathwise": functools.partial(of_model, "pathwise"),
    "small": functools.partial(of_model, "small"),
}

every = pytest.mark.parametrize("make", REGISTRATIONS.values(), ids=REGISTRATIONS)


def both(make):
    reg = make()
    return reg._repr_html_(), reg.posterior._repr_html_()


class Tags(HTMLParser):
    """What a browser's parser makes of a card: its tags, that all are closed in order, and its
    words."""

    def __init__(self, text):
        super().__init__()
        self.open, self.seen, self.words = [], [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.seen.append((tag, dict(attrs)))

    def handle_startendtag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def words(text):
    return " ".join("".join(Tags(text).words).split())


def facts(text):
    """The table, by title."""
    rows = ElementTree.fromstring(text).iter("tr")
    return {row.find("th").text: "".join(row.find("td").itertext()) for row in rows}


def numbers(text):
    return [float(number) for number in ABOUT.findall(text)]


def scene_of(n, d=3, doubtful=None, seed=0):
    rng = np.random.default_rng(seed)
    start = rng.uniform(0, 100, (n, d))
    root = rng.normal(size=(n, d, d))
    arrived = GaussianPoints(start + rng.normal(size=(n, d)), root @ root.swapaxes(1, 2))
    return notebook.Scene(start, arrived, start + rng.normal(size=(n, d)), doubtful or {})


# -------------------------------------------------------------------------------------- on any page


@every
def test_a_card_is_well_formed_in_html_and_in_xml_and_can_be_written_to_a_file(make):
    for text in both(make):
        assert Tags(text).seen
        assert ElementTree.fromstring(text).tag == "div"
        assert text.encode("utf-8")


@every
def test_a_card_runs_nothing_loads_nothing_and_leaves_the_page_around_it_alone(make):
    for text in both(make):
        for tag, attributes in Tags(text).seen:
            assert tag in {"div", "span", "strong", "code", "br", "table", "tbody", "tr", "th", "td", "svg", "g"} | {
                "rect", "path", "ellipse", "circle", "text",
            }  # fmt: skip
            assert not {
                name for name in attributes if name.startswith("on")
            } | attributes.keys() & {
                "id",
                "href",
                "src",
            }
            assert attributes.get("class", "kunita-").startswith("kunita-")
        assert "http" not in text
        assert "url(" not in text


@every
def test_a_card_has_the_pages_ink_and_no_paper_of_its_own(make):
    for text in both(make):
        assert set(re.findall(r"background:([^;\"]*)", text)) <= {"transparent"} | set(
            re.findall(r"rgba\([^)]*\)", text)
        )
        assert not re.search(r"(?<![-\w])(color|fill|stroke)[=:]\"?(white|black|#fff|#000)", text)
        root = ElementTree.fromstring(text)
        assert {element.get("fill") for element in root.iter("text")} <= {"currentColor", None}


@every
def test_drawings_speak_to_those_who_do_not_see_them_and_rows_have_headers(make):
    for text in both(make):
        root = ElementTree.fromstring(text)
        drawings = list(root.iter("svg"))
        assert len(drawings) == {2: 1, 3: 3}[make().fixed.dimension]
        for drawing in drawings:
            assert drawing.get("role") == "img"
            assert "landmark" in drawing.get("aria-label")
        assert all(header.get("scope") == "row" and header.text for header in root.iter("th"))


def test_names_are_shown_as_they_are_and_never_read_as_markup():
    text = planted()._repr_html_()
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "<script>alert(1)</script>" in words(text)


@pytest.mark.parametrize("name", NASTY)
def test_any_name_may_be_in_doubt(name):
    text = notebook.card("t", name, None, [notebook.Row(name, name, name, (name,))], [name])
    text += notebook.drawing(scene_of(3, doubtful={1: name}))
    ElementTree.fromstring(f"<div>{text}</div>").iter()
    text.encode("utf-8")
    assert not {"\x00", "\x1b", "\u202e"} & set(text)


# ------------------------------------------------------------------------------ true to the numbers


@every
def test_the_facts_are_those_of_the_summary(make):
    reg = make()
    told, summary = facts(reg._repr_html_()), reg.summary()
    line = lambda title: next(row for row in summary.splitlines() if row.strip().startswith(title))
    assert numbers(told["Distance"]) == numbers(line("distance"))
    assert describe_kernel(reg.kernel) == told["Kernel"]
    assert numbers(told["Noise"]) == numbers(line("noise"))
    assert told["Model"] == line("model").split(None, 1)[1]
    if reg.loo is None:
        assert "not available" in told["Left-out error"]
    else:
        error, inside, n, level = numbers(told["Left-out error"])
        assert (error, round(100 * inside / n), level) == tuple(numbers(line("left out")))
        assert n == reg.used.sum()


@every
def test_it_says_in_words_how_the_search_ended(make):
    reg = make()
    text = words(reg._repr_html_())
    assert ("NOT CONVERGED" in text) != reg.converged
    assert ("✓ converged" in text) == reg.converged
    assert ("NOT CONVERGED" in words(reg.posterior._repr_html_())) != reg.converged


@every
def test_every_warning_is_on_the_card(make):
    reg = make()
    text = words(reg._repr_html_())
    for remark in reg.warnings:
        clean = notebook.NO_TEXT.sub("\ufffd", remark.removeprefix("suspect: "))[:300]
        assert " ".join(clean.split()) in text


def test_suspects_and_landmarks_that_were_not_used_are_named():
    reg = planted()
    text = reg._repr_html_()
    assert 0 in np.flatnonzero(reg.used)[reg.suspicion.suspect]
    assert NASTY[0] in facts(text)["Suspects"]
    assert "1 of 12" in facts(text)["Not used"]
    assert "L11" in words(text)
    assert "in doubt" in words(text)
    assert facts(registered()._repr_html_())["Suspects"] == "none"


def test_records_of_earlier_versions_say_that_nobody_looked_for_suspects():
    reg = dataclasses.replace(registered(), suspicion=None, weights=None)
    assert "not looked for" in facts(reg._repr_html_())["Suspects"]


@every
def test_a_posterior_tells_how_surely_the_landmarks_arrive(make):
    reg = make()
    told = facts(reg.posterior._repr_html_())
    arrived = reg.posterior.predict(reg.moving.points[reg.used])
    radius, sd = arrived.radius(), arrived.std
    expected = [95, np.median(radius), radius.max(), np.median(sd), sd.max()]
    np.testing.assert_allclose(numbers(told["Uncertainty"]), expected, rtol=0.006)  # three digits
    assert told["Uncertainty"] == told_by(reg)["Uncertainty"]
    assert told["Kernel"] == told_by(reg)["Kernel"]


def told_by(reg):
    return facts(reg._repr_html_())


def test_a_posterior_says_what_can_be_asked_of_it():
    text = words(registered().posterior._repr_html_())
    for method in ("predict", "inverse", "covariance", "sample", "leave_one_out"):
        assert f"{method}(" in text
        assert callable(getattr(registered().posterior, method))


def test_a_posterior_of_jax_arrays_has_the_same_card():
    post = registered().posterior
    traced = jax.tree.map(
        lambda leaf: jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf, post
    )
    assert traced._repr_html_() == post._repr_html_()


def test_a_tree_that_only_has_the_shape_of_a_posterior_has_no_card():
    assert jax.tree.map(lambda _: None, registered().posterior)._repr_html_() is None


def test_a_record_has_the_card_of_the_registration(tmp_path):
    save(planted_without_halves(), tmp_path / "record.h5")
    assert load(tmp_path / "record.h5")._repr_html_() == planted_without_halves()._repr_html_()


@functools.cache
def planted_without_halves():
    """Names that a file can hold."""
    reg = planted()
    names = tuple(notebook.NO_TEXT.sub("?", name) for name in reg.moving.labels)
    renamed = {
        side: dataclasses.replace(getattr(reg, side), names=names) for side in ("moving", "fixed")
    }
    remarks = tuple(notebook.NO_TEXT.sub("?", remark) for remark in reg.warnings)
    return dataclasses.replace(reg, warnings=remarks, **renamed)


@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_an_alignment_is_known_by_its_generators_however_they_are_mixed(kind, d):
    basis = generators(kind, d)
    mix = np.linalg.qr(np.random.default_rng(0).normal(size=(len(basis), len(basis))))[0]
    assert notebook.alignment_words(np.tensordot(mix, basis, axes=1)) == kind


# ----------------------------------------------------------------------------------------- drawings


def places(text, tag="circle"):
    """(views, n, 2) centres, pixels."""
    views = ElementTree.fromstring(f"<div>{text}</div>").iter("svg")
    return np.array(
        [[[float(c.get("cx")), float(c.get("cy"))] for c in view.iter(tag)] for view in views]
    )


def test_right_is_right_and_up_is_anterior_or_superior_at_one_scale():
    x = np.array([[0.0, 0, 0], [30, 0, 0], [0, 20, 0], [0, 0, 10]])
    tiny = GaussianPoints(x, np.broadcast_to(1e-4 * np.eye(3), (4, 3, 3)))
    axial, coronal, sagittal = places(notebook.drawing(notebook.Scene(x, tiny, x)))
    scale = (axial[1] - axial[0])[0] / 30
    assert scale > 0
    for view, (right, up) in ((axial, (0, 1)), (coronal, (0, 2)), (sagittal, (1, 2))):
        moved = np.c_[x[:, right], -x[:, up]] * scale
        np.testing.assert_allclose(
            view - view[0], moved - moved[0], atol=0.15
        )  # a digit of a pixel


def test_the_letters_of_a_view_are_on_their_sides():
    views = ElementTree.fromstring(f"<div>{notebook.drawing(scene_of(5))}</div>").iter("svg")
    for view, (left, right, below, above) in zip(views, ("LRPA", "LRIS", "PAIS"), strict=True):
        at = {word.text: (float(word.get("x")), float(word.get("y"))) for word in view.iter("text")}
        assert at[left][0] < at[below][0] == at[above][0] < at[right][0]
        assert at[above][1] < at[left][1] == at[right][1] < at[below][1]


def test_in_the_plane_y_is_down():
    x = np.array([[0.0, 0], [0, 10]])
    tiny = GaussianPoints(x, np.broadcast_to(1e-4 * np.eye(2), (2, 2, 2)))
    (view,) = places(notebook.drawing(notebook.Scene(x, tiny, x)))
    assert view[1, 1] > view[0, 1]


@pytest.mark.parametrize(
    "view", [*notebook.VIEWS[2], *notebook.VIEWS[3]], ids=lambda view: view.title or "plane"
)
def test_an_ellipse_holds_95_percent_of_what_is_drawn(view):
    d = 3 if view.title else 2
    root = np.random.default_rng(1).normal(size=(d, d))
    ((a, b, angle),) = view.ellipses((root @ root.T)[None])
    draws = view.flat(np.random.default_rng(2).normal(size=(40_000, d)) @ root.T)
    c, s = np.cos(np.radians(angle)), np.sin(np.radians(angle))
    along = draws @ np.array([[c, -s], [s, c]])
    share = np.mean((along[:, 0] / a) ** 2 + (along[:, 1] / b) ** 2 <= 1)
    assert abs(share - 0.95) < 4 * np.sqrt(0.95 * 0.05 / 40_000)


@pytest.mark.parametrize("d", [2, 3])
def test_all_that_is_drawn_is_inside_its_frame(d):
    text = notebook.drawing(scene_of(60, d))
    for view, centres in zip(
        ElementTree.fromstring(f"<div>{text}</div>").iter("svg"), places(text), strict=True
    ):
        size = np.array([float(part) for part in view.get("viewBox").split()[2:]])
        assert np.all((centres > 0) & (centres < size))


@pytest.mark.parametrize("d", [2, 3])
def test_of_very_many_landmarks_some_are_drawn_those_in_doubt_among_them_and_it_says_so(d):
    doubtful = {4321: "'" * 1000, 17: "<" * 1000}
    text = notebook.drawing(scene_of(5000, d, doubtful))
    assert f"{notebook.MOST_DRAWN} of 5,000 landmarks drawn" in text
    assert places(text).shape[1] == notebook.MOST_DRAWN
    assert "'''" in words(text)
    assert "&lt;&lt;" in text


def test_a_card_of_very_many_landmarks_and_endless_remarks_stays_small():
    scene = scene_of(5000, doubtful=dict.fromkeys(range(5000), "<" * 5000))
    told = dataclasses.replace(
        registered().facts, num_landmarks=5000, num_used=4000, kernel="k" * 5000, num_teaching=3, robust=True,
        parameters=(EstimatedParameter("noise", 1.0, 0.0, np.inf, False),), truncation=Truncation(100, 0.1, 0.1),
        suspects=("<" * 5000,) * 5000, warnings=("&" * 5000,) * 5000,
    )  # fmt: skip
    text = notebook.registration_card(told, scene, notebook.uncertainty_row(scene.arrived))
    ElementTree.fromstring(text)
    assert len(text.encode()) < 200_000
    assert "and 4992 more" in text


def test_numbers_that_are_none_are_not_drawn():
    scene = scene_of(5)
    scene.arrived.covariance[1, 0, 0] = np.nan
    scene.fixed[2, 1] = np.inf
    assert places(notebook.drawing(scene)).shape[1] == 3
    nothing = GaussianPoints(np.full((2, 3), np.nan), np.full((2, 3, 3), np.nan))
    assert notebook.drawing(notebook.Scene(np.zeros((2, 3)), nothing, np.zeros((2, 3)))) == ""
    assert notebook.uncertainty_row(nothing).text == "not known"


@pytest.mark.parametrize(("few", "many"), [(3, 8), (300, 3000)])
def test_control_points_are_not_joined_to_the_marks_of_others(few, many):
    some, everyone = scene_of(few), scene_of(many)
    apart = notebook.drawing(notebook.Scene(some.start, some.arrived, everyone.fixed, paired=False))
    joins = re.compile(f'<path d="[^"]*" stroke="{notebook.ORANGE}"/>')
    assert places(apart).shape[1] == min(many, notebook.MOST_DRAWN)
    assert "joined" not in apart
    assert len(joins.findall(apart)) == 0
    assert len(joins.findall(notebook.drawing(everyone))) == 3


def test_landmarks_at_one_place_on_a_line_or_far_from_the_origin_are_drawn():
    for x in (
        np.zeros((3, 3)),
        np.outer(np.arange(4.0), [0, 0, 1]),
        1e7 + np.eye(3),
        1e-7 * np.eye(3),
    ):
        sure = GaussianPoints(x, np.zeros((len(x), 3, 3)))
        assert np.isfinite(places(notebook.drawing(notebook.Scene(x, sure, x)))).all()


def test_lines_begin_at_the_moving_landmarks_unless_these_are_far_away():
    x = np.random.default_rng(0).uniform(0, 100, (9, 3))
    assert notebook.starts(x + 20, x, x)[1] == "moving"
    start, origin = notebook.starts(x + 500, x, x)
    np.testing.assert_array_equal(start, x)
    assert origin == "aligned moving"


def test_a_card_takes_no_time_once_the_programs_are_compiled():
    reg = registered()
    reg._repr_html_()
    began = time.perf_counter()
    reg._repr_html_()
    assert time.perf_counter() - began < 0.3
