"""The page in a real browser: it opens from a file, asks nobody for anything, draws, and its
numbers are right."""

import contextlib
import dataclasses
import io
import json
import re

import numpy as np
import pytest
from PIL import Image

import kunita
import kunita.report.page
from kunita.errors import InverseError
from kunita.outputs.targets import remoteness
from kunita.report.result import read_subject, write_report
from report.conftest import HOSTILE

KINDS = ("volume_result", "flat_result", "bare_result")
WITHIN = 0.0151
"""The page shows two decimals, and its splines are exact to 0.01 mm on these cases."""


@dataclasses.dataclass
class Visit:
    """A page that is open, what it complained of and what it asked for."""

    page: object
    complaints: list
    requests: list

    def number(self, name):
        return float(self.page.inner_text(f"#here-{name}").split()[0])

    def place(self, row):
        text = self.page.evaluate(
            "(name) => [...document.querySelectorAll('#here dt')].find((d) => d.textContent === name)"
            ".nextElementSibling.textContent", row
        )  # fmt: skip
        return np.array([float(x) for x in text.replace("−", "-").removesuffix(" mm").split(",")])

    def go_to(self, point):
        for k, x in enumerate(point):
            self.page.fill(f"#go input[name='{k}']", f"{x:.6f}")
        self.page.click("#go button")


@contextlib.contextmanager
def visited(browser, folder, width=1280, height=900, **more):
    context = browser.new_context(viewport={"width": width, "height": height}, offline=True, **more)
    page, complaints, requests = context.new_page(), [], []
    page.on(
        "console",
        lambda message: (
            complaints.append(message.text) if message.type in ("error", "warning") else None
        ),
    )
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto((folder / "report.html").as_uri())
    page.wait_for_selector("html[data-ready]", state="attached", timeout=60_000)
    try:
        yield Visit(page, complaints, requests)
    finally:
        context.close()


@pytest.fixture(params=KINDS)
def folder(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def visit(browser, folder):
    with visited(browser, folder) as found:
        yield found


def picture(page, selector):
    page.wait_for_timeout(300)
    return np.asarray(
        Image.open(io.BytesIO(page.locator(selector).first.screenshot())).convert("RGB")
    ).astype(float)


def test_the_page_loads_without_a_complaint_and_without_the_network(visit, folder):
    assert visit.page.evaluate("document.documentElement.dataset.ready") == "yes"
    assert visit.complaints == []
    assert [url for url in visit.requests if not url.startswith(("data:", "blob:"))] == [
        (folder / "report.html").as_uri()
    ]


def test_names_are_shown_as_text_and_nothing_of_them_runs(browser, volume_result):
    with visited(browser, volume_result) as visit:
        shown = visit.page.locator("#landmark-table tbody th").all_inner_texts()
        assert {name for name in HOSTILE if name in shown} == set(HOSTILE)
        assert visit.page.locator("b", has_text="bold").count() == 0
        assert visit.complaints == []


def test_the_viewer_draws(visit, folder):
    drawn = picture(visit.page, ".stage canvas, .stage svg.plane")
    assert np.ptp(drawn) > 200
    assert len(np.unique(drawn.reshape(-1, 3), axis=0)) > 200


def test_a_place_shows_what_the_posterior_says(visit, folder):
    reg = kunita.load(folder / "registration.h5")
    rng = np.random.default_rng(0)
    for moving in reg.moving.points[:3] + rng.normal(0, 1, (3, reg.moving.dimension)):
        there = reg.posterior.predict(moving[None])
        visit.go_to(there.mean[0])
        assert visit.place("fixed") == pytest.approx(there.mean[0], abs=WITHIN)
        assert visit.place("comes from") == pytest.approx(moving, abs=WITHIN)
        assert visit.number("std") == pytest.approx(there.std[0], abs=WITHIN)
        assert visit.number("radius") == pytest.approx(there.radius(0.95)[0], abs=WITHIN)


@pytest.mark.parametrize("dots", [1, 2])
def test_a_click_on_a_voxel_shows_what_the_posterior_says(browser, volume_result, dots):
    """On the axial plane, whose place on the canvas NiiVue itself tells; the image is oblique, as
    scanners' are."""
    reg, image = (
        kunita.load(volume_result / "registration.h5"),
        kunita.read_image(volume_result / "uncertainty_std.nii.gz"),
    )
    with visited(browser, volume_result, device_scale_factor=dots) as visit:
        visit.page.select_option("#layout", "axial")
        visit.go_to(image.grid.world(np.array([9.0, 8.0, 7.0])))
        x, y = visit.page.evaluate("""async () => {
            const { nv } = await kunita.ready, [x, y] = nv.frac2canvasPos(nv.scene.crosshairPos);
            return [x / nv.uiData.dpr, y / nv.uiData.dpr]; }""")
        box = visit.page.locator("#canvas").bounding_box()
        visit.go_to(
            image.grid.world(np.array([9.0, 8.0, 7.0])) + [8.0, -8.0, 0.0]
        )  # away, on the same plane
        visit.page.mouse.click(box["x"] + x, box["y"] + y)
        clicked = visit.place("fixed")
        assert clicked == pytest.approx(
            image.grid.world(np.array([9.0, 8.0, 7.0])), abs=0.3
        )  # to a pixel
        there = reg.posterior.predict(reg.posterior.inverse(clicked[None]).mean)
        assert visit.number("std") == pytest.approx(there.std[0], abs=WITHIN)
        assert visit.number("radius") == pytest.approx(there.radius(0.95)[0], abs=WITHIN)
        assert visit.number("std") == pytest.approx(
            image.data[9, 8, 7], abs=0.05
        )  # the map at the voxel


@pytest.mark.parametrize("kind", ["flat_result", "bare_result"])
def test_a_click_on_a_plane_shows_what_the_posterior_says(browser, kind, request):
    folder = request.getfixturevalue(kind)
    reg = kunita.load(folder / "registration.h5")
    with visited(browser, folder) as visit:
        box = visit.page.locator(".stage svg.plane").first.bounding_box()
        visit.page.mouse.click(box["x"] + 0.4 * box["width"], box["y"] + 0.45 * box["height"])
        there = reg.posterior.predict(reg.posterior.inverse(visit.place("fixed")[None]).mean)
        assert visit.number("std") == pytest.approx(there.std[0], abs=WITHIN)
        assert visit.number("radius") == pytest.approx(there.radius(0.95)[0], abs=WITHIN)


def test_an_outside_place_is_said_to_be_outside(visit, folder):
    d = kunita.load(folder / "registration.h5").moving.dimension
    visit.go_to([9999.0] * d)
    assert "outside" in visit.page.inner_text("#here")


@pytest.mark.parametrize("kind", ["volume_result", "flat_result"])
def test_opacity_and_flicker_show_the_warped_image(browser, kind, request):
    with visited(browser, request.getfixturevalue(kind)) as visit:
        page, stage = visit.page, ".stage canvas, .stage svg.plane"
        for slider in ("colours", "warped"):
            page.locator(f"#{slider}").fill("0")
        fixed = picture(page, stage)
        page.locator("#warped").fill("100")
        assert np.abs(picture(page, stage) - fixed).mean() > 2
        page.locator("#warped").fill("0")
        assert np.abs(picture(page, stage) - fixed).mean() < 0.5
        page.click("#flicker")
        for value in ("100", "0", "100"):
            page.wait_for_function(
                "(value) => document.getElementById('warped').value === value", arg=value
            )
        page.click("#flicker")
        assert page.locator("#flicker").get_attribute("aria-pressed") == "false"


def test_spheres_outlines_and_layouts_change_what_is_drawn(browser, volume_result):
    with visited(browser, volume_result) as visit:
        page = visit.page
        page.locator("#colours").fill("0")
        before = picture(page, "#canvas")
        page.select_option("#spheres", "0")
        without = picture(page, "#canvas")
        assert np.abs(without - before).max() > 50
        page.uncheck("#show-label")
        assert np.abs(picture(page, "#canvas") - without).max() > 50
        for layout in ("axial", "coronal", "sagittal", "render"):
            page.select_option("#layout", layout)
            assert np.ptp(picture(page, "#canvas")) > 100, layout
        assert visit.complaints == []


def test_tables_sort_by_every_column_both_ways(browser, volume_result):
    with visited(browser, volume_result) as visit:
        page = visit.page
        heads = page.locator("#landmark-table thead button")
        for column in range(1, 7):
            values = []
            for direction in ("ascending", "descending"):
                heads.nth(column).click()
                head = page.locator("#landmark-table thead th").nth(column)
                assert head.get_attribute("aria-sort") == direction
                cells = page.locator(f"#landmark-table tbody tr > :nth-child({column + 1})")
                values.append(
                    [
                        float(value)
                        for value in cells.evaluate_all("all => all.map(c => c.dataset.value)")
                    ]
                )
            assert values[0] == sorted(values[0])
            assert values[1] == sorted(values[1], reverse=True)
            assert len(values[0]) == 16


def test_everything_is_reached_by_keyboard_and_the_focus_is_seen(visit, folder):
    page, reached = visit.page, set()
    for _ in range(120):
        page.keyboard.press("Tab")
        found = page.evaluate("""() => { const e = document.activeElement, s = getComputedStyle(e);
            return [e.id || e.tagName, e.tagName,
                parseFloat(s.outlineWidth) > 0 || e === document.body]; }""")
        assert found[2], f"no outline on {found[0]}"
        reached |= {found[0], found[1].lower()}
    assert {"theme", "colours", "a", "button", "input"} <= reached
    assert reached & {"canvas", "svg"}


@pytest.mark.parametrize(("layout", "right", "up", "across"), [("axial", 0, 1, 2), ("coronal", 0, 2, 1),
                                                               ("sagittal", 1, 2, 0)])  # fmt: skip
def test_arrow_keys_go_where_they_point_on_every_plane(
    browser, volume_result, layout, right, up, across
):
    with visited(browser, volume_result) as visit:
        visit.page.select_option("#layout", layout)
        visit.page.locator("#canvas").focus()
        for key, axis in (("ArrowRight", right), ("ArrowUp", up), ("PageUp", across)):
            before = visit.place("fixed")
            visit.page.keyboard.press(key)
            moved = visit.place("fixed") - before
            assert moved[axis] > 1
            assert np.abs(np.delete(moved, axis)).max() < 0.02


def test_arrow_keys_move_the_place(visit, folder):
    page = visit.page
    before = visit.place("fixed")
    page.locator(".stage canvas, .stage svg.plane").first.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    moved = visit.place("fixed") - before
    assert moved[0] > 0
    assert np.abs(moved[1:]).max() < 0.02


@pytest.mark.parametrize("width", [360, 640, 1280])
def test_narrow_screens_and_zoom_do_not_break_the_page(browser, folder, width):
    """A width of 640 is what 200 % leaves of 1280; nothing sticks out to the side."""
    with visited(browser, folder, width=width, height=800) as visit:
        page = visit.page
        assert (
            page.evaluate(
                "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            )
            <= 0
        )
        cut = page.evaluate("""() => [...document.querySelectorAll(
                '.tile, .badge, .remark, h1, h2, figcaption, #here, #go')]
            .filter((e) => e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).overflowX === 'visible')
            .map((e) => e.className || e.id || e.tagName)""")
        assert cut == []
        assert np.ptp(picture(page, ".stage canvas, .stage svg.plane")) > 100


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast_in_both_themes_and_the_button_changes_them(
    browser, volume_result, scheme
):
    with visited(browser, volume_result, color_scheme=scheme) as visit:
        page = visit.page
        brightness = "() => getComputedStyle(document.body).backgroundColor"
        first = page.evaluate(brightness)
        assert contrast(page, "body") > 7
        for selector in (".tile p", ".badge.good", "figcaption", "nav a", "#here dt", ".program"):
            assert contrast(page, selector) > 4.5, selector  # WCAG AA
        page.click("#theme")
        assert page.evaluate(brightness) != first
        assert contrast(page, "body") > 7


def contrast(page, selector):
    """WCAG's ratio of an element's text and what is behind it."""
    colours = page.locator(selector).first.evaluate("""(e) => {
        const ink = getComputedStyle(e).color; let back = "rgba(0, 0, 0, 0)";
        for (; e && /, 0\\)$|transparent/.test(back); e = e.parentElement) back = getComputedStyle(e).backgroundColor;
        return [ink, back]; }""")
    channels = [
        np.array([int(x) for x in re.findall(r"\d+", colour)[:3]]) / 255 for colour in colours
    ]
    linear = [np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4) for c in channels]
    low, high = sorted(float(part @ [0.2126, 0.7152, 0.0722]) for part in linear)
    return (high + 0.05) / (low + 0.05)


def test_a_place_that_the_tables_call_an_extrapolation_is_called_one_here_too(visit, folder):
    reg = kunita.load(folder / "registration.h5")
    rng, told = np.random.default_rng(0), 0
    marked, d = reg.moving.points, reg.moving.dimension
    for moving in marked.mean(axis=0) + rng.normal(0, 1, (12, d)) * np.ptp(marked, axis=0):
        visit.go_to(reg.posterior.predict(moving[None]).mean[0])
        text = visit.page.inner_text("#here")
        if "outside\n" in text:  # of the grid
            continue
        far = remoteness(reg, moving[None])
        clear = (
            abs(far.outside_mm[0] - 12.5) > 2 and abs(far.nearest_mm[0] - 25) > 0.1
        )  # a corner counts for less
        if clear:
            assert ("rests on the prior" in text) == bool(far.extrapolates[0]), (moving, text)
            told += 1
    assert told > 2


def test_outlines_of_a_label_are_drawn_in_2d_and_can_be_hidden(browser, flat_result):
    with visited(browser, flat_result) as visit:
        outlines = visit.page.locator(".stage .outline")
        assert outlines.count() == 3
        assert outlines.nth(1).is_visible()
        visit.page.uncheck("#show-outlines")
        assert not outlines.nth(1).is_visible()


@pytest.mark.parametrize("table", ["landmark-table", "target-table"])
def test_a_name_in_a_table_leads_to_its_place(browser, volume_result, table):
    with visited(browser, volume_result) as visit:
        visit.page.locator(f"#{table} tbody th button").nth(1).click()
        if table == "target-table":
            there = json.loads((volume_result / "summary.json").read_text(encoding="utf-8"))[
                "targets"
            ][1]["position"]
        else:
            reg = kunita.load(volume_result / "registration.h5")
            there = reg.posterior.predict(reg.moving.points[1:2]).mean[0]
        assert visit.place("fixed") == pytest.approx(there, abs=WITHIN)


@pytest.mark.parametrize("text", ["12abc", "", "1e999", "20 5 30"])
def test_what_is_no_place_is_marked_and_nothing_moves(browser, bare_result, text):
    with visited(browser, bare_result) as visit:
        before = visit.page.inner_text("#here")
        visit.page.fill("#go input[name='0']", text)
        visit.page.click("#go button")
        assert visit.page.locator("#go input[name='0']").get_attribute("aria-invalid") == "true"
        assert visit.page.inner_text("#here") == before


def test_commands_are_copied(browser, volume_result):
    with visited(
        browser, volume_result, permissions=["clipboard-read", "clipboard-write"]
    ) as visit:
        page = visit.page
        row = page.locator(".file", has_text="forward_xfm.h5").locator("li", has_text="ANTs").first
        row.locator("button.copy").click()
        row.locator("button.copy", has_text="Copied").wait_for()
        assert page.evaluate("navigator.clipboard.readText()") == row.locator("code").inner_text()


def test_figures_have_words_for_those_who_cannot_see_them(visit, folder):
    pictures = visit.page.locator("svg[role=img], [role=img]")
    labels = pictures.evaluate_all("all => all.map((e) => e.getAttribute('aria-label') || '')")
    assert len(labels) >= 6
    assert all(len(label) > 10 for label in labels)
    assert visit.page.locator("figure").count() >= 6


def test_a_page_without_anything_to_look_at_says_why_and_has_the_rest(
    browser, bare_result, tmp_path, monkeypatch
):
    def refuse(*_):
        raise InverseError("the map could not be inverted")

    monkeypatch.setattr(kunita.report.page, "maps", refuse)
    subject, _ = read_subject(bare_result, None, lambda fraction: None)
    write_report(subject, tmp_path / "report.html")
    with visited(browser, tmp_path) as visit:
        assert "the map could not be inverted" in visit.page.inner_text("#viewer")
        assert visit.page.locator("#figure-errors svg").is_visible()
        assert visit.complaints == []


def test_a_browser_without_webgl_says_so_and_shows_the_rest(browser, volume_result):
    context = browser.new_context(offline=True)
    page = context.new_page()
    page.add_init_script("HTMLCanvasElement.prototype.getContext = () => null;")
    page.goto((volume_result / "report.html").as_uri())
    page.wait_for_selector("html[data-ready]", state="attached", timeout=60_000)
    assert page.evaluate("document.documentElement.dataset.ready") == "failed"
    assert "could not start" in page.inner_text(".stage")
    assert page.locator("#figure-errors svg").is_visible()
    context.close()


def test_the_page_of_a_cohort_opens_and_its_links_open_their_cases(browser, cohort_result):
    with contextlib.ExitStack() as stack:
        context = browser.new_context(viewport={"width": 390, "height": 800}, offline=True)
        stack.callback(context.close)
        page, complaints, requests = context.new_page(), [], []
        page.on(
            "console",
            lambda message: complaints.append(message.text) if message.type == "error" else None,
        )
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto((cohort_result / "report.html").as_uri())
        assert (
            page.evaluate(
                "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            )
            <= 0
        )
        for title in ("Best case", "Worst case"):
            link = page.locator(".tile", has_text=title).locator("a")
            link.click()
            section = page.locator(f"details{link.get_attribute('href')}[open]")
            section.wait_for()  # the page opens it when the address has changed
            assert section.locator("table").first.is_visible()
        page.locator("table.sortable").first.locator("thead button").nth(1).click()
        assert page.locator("th[aria-sort=ascending]").count() == 1
        assert complaints == []
        assert len(requests) == 1
