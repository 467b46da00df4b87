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
from report.cohort_pages import made
from report.conftest import HOSTILE

KINDS = ("volume_result", "flat_result", "bare_result")
WITHIN = 0.0151
"""The page shows two decimals, and its splines are exact to 0.01 mm on these cases."""


WIDTH = 900
HEIGHT = 650
"""The volumes are drawn by the processor, whose time goes with the size of the window."""

TOO_WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"

STAGE = ".stage canvas, .stage svg.plane"

AFRESH = """() => {
    window.opened ??= [...document.querySelectorAll("table.sortable")].map(
        (table) => [table, [...table.tBodies[0].rows]]);
    for (const [table, rows] of window.opened) {
        table.tBodies[0].append(...rows);
        table.querySelectorAll("[aria-sort]").forEach((head) => head.removeAttribute("aria-sort"));
    }
    delete document.documentElement.dataset.theme;
    document.querySelector("#flicker[aria-pressed=true]")?.click();
    document.querySelectorAll("#controls input, #controls select").forEach((control) => {
        const before = [control.value, control.checked];
        if (control.tagName === "SELECT")
            control.selectedIndex = Math.max(0, [...control.options].findIndex((one) => one.defaultSelected));
        control.checked = control.defaultChecked;
        if (control.type === "range") control.value = control.defaultValue;
        if (before[0] === control.value && before[1] === control.checked) return;
        control.dispatchEvent(new Event(control.type === "range" ? "input" : "change"));
    });
    document.querySelectorAll("#go input").forEach((input) => input.removeAttribute("aria-invalid"));
    document.activeElement?.blur();
    scrollTo(0, 0);
    return kunita.ready.then(({ goTo }) => { goTo(data.start); });
}"""
"""Puts back whatever a test may have changed on a page."""

TOLD = """() => {
    const told = {};
    for (const title of document.querySelectorAll("#here dt"))
        told[title.textContent] = title.nextElementSibling.textContent;
    told.remark = document.querySelector("#here .far")?.textContent ?? "";
    return told;
}"""

TOLD_AT = (
    """(places) => places.map((place) => {
    document.querySelectorAll("#go input").forEach((input, k) => { input.value = place[k]; });
    document.getElementById("go").requestSubmit();
    return ("""
    + TOLD
    + """)();
})"""
)


@dataclasses.dataclass(frozen=True)
class Told:
    """What the page says of a place, by its titles."""

    rows: dict

    def number(self, title):
        return float(self.rows[title].split()[0])

    def place(self, title):
        text = self.rows[title].replace("−", "-").removesuffix(" mm")
        return np.array([float(x) for x in text.split(",")])

    def agrees_with(self, prediction):
        assert self.number("standard deviation") == pytest.approx(prediction.std[0], abs=WITHIN)
        assert self.number("95 % radius") == pytest.approx(prediction.radius(0.95)[0], abs=WITHIN)


@dataclasses.dataclass
class Visit:
    """A page that is open, what it complained of and what it asked for."""

    page: object
    complaints: list
    requests: list

    def start_afresh(self):
        """Puts back whatever another test may have changed."""
        self.page.context.clear_permissions()
        self.page.emulate_media(color_scheme="light")
        self.page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
        self.page.evaluate(AFRESH)

    def told(self):
        return Told(self.page.evaluate(TOLD))

    def told_at(self, places):
        """What the page says of each place in turn: the form is filled and submitted as a whole,
        because to type and to click wait for the picture to stand still."""
        texts = [[f"{x:.6f}" for x in place] for place in places]
        return [Told(rows) for rows in self.page.evaluate(TOLD_AT, texts)]

    def picture(self):
        """What is drawn, once the next two frames are."""
        self.page.evaluate(
            "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done())))"
        )
        shot = self.page.locator(STAGE).first.screenshot()
        return np.asarray(Image.open(io.BytesIO(shot)).convert("RGB")).astype(float)

    def stage_box(self):
        """Where the stage is, once it has been scrolled to."""
        stage = self.page.locator(STAGE).first
        stage.evaluate("(stage) => stage.scrollIntoView({ block: 'center', behavior: 'instant' })")
        return stage.bounding_box()

    def slide(self, name, value):
        self.page.locator(f"#{name}").evaluate(
            "(slider, value) => { slider.value = value; slider.dispatchEvent(new Event('input')); }",
            value,
        )


@contextlib.contextmanager
def visited(browser, folder, **more):
    context = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT}, offline=True, **more)
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


@pytest.fixture(scope="module")
def open_page(browser):
    """Opens the page of a result, which all tests of this file share: to open one takes a second."""
    with contextlib.ExitStack() as stack:
        opened = {}

        def once(folder):
            if folder not in opened:
                opened[folder] = stack.enter_context(visited(browser, folder))
            return opened[folder]

        yield once


@pytest.fixture(params=KINDS)
def folder(request):
    return request.getfixturevalue(request.param)


def on(*kinds):
    """Runs a test on the pages of these kinds of result only."""
    return pytest.mark.parametrize("folder", kinds, indirect=True)


@pytest.fixture
def visit(open_page, folder):
    found = open_page(folder)
    found.start_afresh()
    return found


def test_the_page_loads_without_a_complaint_and_without_the_network(visit, folder):
    assert visit.page.evaluate("document.documentElement.dataset.ready") == "yes"
    assert visit.complaints == []
    assert [url for url in visit.requests if not url.startswith(("data:", "blob:"))] == [
        (folder / "report.html").as_uri()
    ]


@on("volume_result")
def test_names_are_shown_as_text_and_nothing_of_them_runs(visit):
    shown = visit.page.locator("#landmark-table tbody th").all_inner_texts()
    assert {name for name in HOSTILE if name in shown} == set(HOSTILE)
    assert visit.page.locator("b", has_text="bold").count() == 0
    assert visit.complaints == []


def test_the_viewer_draws(visit):
    drawn = visit.picture()
    assert np.ptp(drawn) > 200
    assert len(np.unique(drawn.reshape(-1, 3), axis=0)) > 200


def test_a_place_shows_what_the_posterior_says(visit, folder):
    reg = kunita.load(folder / "registration.h5")
    rng = np.random.default_rng(0)
    moving = reg.moving.points[:3] + rng.normal(0, 1, (3, reg.moving.dimension))
    there = reg.posterior.predict(moving)
    for k, told in enumerate(visit.told_at(there.mean)):
        assert told.place("fixed") == pytest.approx(there.mean[k], abs=WITHIN)
        assert told.place("comes from") == pytest.approx(moving[k], abs=WITHIN)
        assert told.number("standard deviation") == pytest.approx(there.std[k], abs=WITHIN)
        assert told.number("95 % radius") == pytest.approx(there.radius(0.95)[k], abs=WITHIN)


@on("flat_result")
def test_a_place_is_typed_and_sent_off_by_a_click(visit, folder):
    page = visit.page
    page.fill("#go input[name='0']", "12.5")
    page.fill("#go input[name='1']", "14")
    page.click("#go button")
    assert visit.told().place("fixed") == pytest.approx([12.5, 14.0], abs=WITHIN)


VOXEL = np.array([9.0, 8.0, 7.0])


def check_a_click_on_a_voxel(visit, folder):
    """On the axial plane, whose place on the canvas NiiVue itself tells; the image is oblique, as
    scanners' are."""
    reg = kunita.load(folder / "registration.h5")
    image = kunita.read_image(folder / "uncertainty_std.nii.gz")
    there = image.grid.world(VOXEL)
    away = there + [8.0, -8.0, 0.0]  # on the same plane
    visit.page.select_option("#layout", "axial")
    visit.told_at([there])
    x, y = visit.page.evaluate("""async () => {
        const { nv } = await kunita.ready, [x, y] = nv.frac2canvasPos(nv.scene.crosshairPos);
        return [x / nv.uiData.dpr, y / nv.uiData.dpr]; }""")
    box = visit.stage_box()
    visit.told_at([away])
    visit.page.mouse.click(box["x"] + x, box["y"] + y)
    told = visit.told()
    clicked = told.place("fixed")
    assert clicked == pytest.approx(there, abs=0.3)  # to a pixel
    predicted = reg.posterior.predict(reg.posterior.inverse(clicked[None]).mean)
    told.agrees_with(predicted)
    of_the_map = image.data[9, 8, 7]
    assert told.number("standard deviation") == pytest.approx(of_the_map, abs=0.05)


@on("volume_result")
def test_a_click_on_a_voxel_shows_what_the_posterior_says(visit, folder):
    check_a_click_on_a_voxel(visit, folder)


def test_a_click_on_a_fine_screen_shows_what_the_posterior_says(browser, volume_result):
    with visited(browser, volume_result, device_scale_factor=2) as visit:
        check_a_click_on_a_voxel(visit, volume_result)


@on("flat_result", "bare_result")
def test_a_click_on_a_plane_shows_what_the_posterior_says(visit, folder):
    reg = kunita.load(folder / "registration.h5")
    box = visit.stage_box()
    before = visit.told().place("fixed")
    visit.page.mouse.click(box["x"] + 0.4 * box["width"], box["y"] + 0.45 * box["height"])
    told = visit.told()
    clicked = told.place("fixed")
    assert np.abs(clicked - before).max() > 0.1
    told.agrees_with(reg.posterior.predict(reg.posterior.inverse(clicked[None]).mean))


def test_an_outside_place_is_said_to_be_outside(visit, folder):
    d = kunita.load(folder / "registration.h5").moving.dimension
    [told] = visit.told_at([[9999.0] * d])
    assert "outside" in told.rows


@on("volume_result", "flat_result")
def test_opacity_and_flicker_show_the_warped_image(visit):
    page = visit.page
    visit.slide("colours", 0)
    visit.slide("warped", 0)
    fixed = visit.picture()
    visit.slide("warped", 100)
    assert np.abs(visit.picture() - fixed).mean() > 2
    visit.slide("warped", 0)
    assert np.abs(visit.picture() - fixed).mean() < 0.5
    page.click("#flicker")
    for value in ("100", "0", "100"):
        page.wait_for_function(
            "(value) => document.getElementById('warped').value === value", arg=value
        )
    page.click("#flicker")
    assert page.locator("#flicker").get_attribute("aria-pressed") == "false"


@on("volume_result")
def test_spheres_outlines_and_layouts_change_what_is_drawn(visit):
    page = visit.page
    visit.slide("colours", 0)
    before = visit.picture()
    page.select_option("#spheres", "0")
    without = visit.picture()
    assert np.abs(without - before).max() > 50
    page.uncheck("#show-label")
    assert np.abs(visit.picture() - without).max() > 50
    for layout in ("axial", "coronal", "sagittal", "render"):
        page.select_option("#layout", layout)
        assert np.ptp(visit.picture()) > 100, layout
    assert visit.complaints == []


@on("volume_result")
def test_tables_sort_by_every_column_both_ways(visit):
    for column in range(1, 7):
        for direction in ("ascending", "descending"):
            found, texts = visit.page.evaluate(
                """(column) => {
                const table = document.getElementById("landmark-table"), head = table.tHead.rows[0].cells[column];
                head.querySelector("button").click();
                const cells = [...table.tBodies[0].rows].map((row) => row.cells[column].dataset.value);
                return [head.getAttribute("aria-sort"), cells]; }""",
                column,
            )
            values = [float(text) for text in texts]
            assert found == direction
            assert values == sorted(values, reverse=direction == "descending")
            assert len(values) == 16


def test_everything_is_reached_by_keyboard_and_the_focus_is_seen(visit):
    page = visit.page
    page.evaluate("""() => {
        window.reached = [];
        window.looking = new AbortController();
        document.addEventListener("focusin", ({ target }) => {
            const seen = parseFloat(getComputedStyle(target).outlineWidth) > 0;
            window.reached.push([target.id || target.tagName, target.tagName.toLowerCase(), seen]);
        }, { signal: window.looking.signal }); }""")
    for _ in range(120):
        page.keyboard.press("Tab")
    reached = page.evaluate("() => { window.looking.abort(); return window.reached; }")
    assert [name for name, _, seen in reached if not seen] == []
    names = {name for name, _, _ in reached}
    tags = {tag for _, tag, _ in reached}
    assert {"theme", "colours"} <= names
    assert {"a", "button", "input"} <= tags
    assert tags & {"canvas", "svg"}


@on("volume_result")
@pytest.mark.parametrize(("layout", "right", "up", "across"), [("axial", 0, 1, 2), ("coronal", 0, 2, 1),
                                                               ("sagittal", 1, 2, 0)])  # fmt: skip
def test_arrow_keys_go_where_they_point_on_every_plane(visit, layout, right, up, across):
    visit.page.select_option("#layout", layout)
    visit.page.locator("#canvas").focus()
    for key, axis in (("ArrowRight", right), ("ArrowUp", up), ("PageUp", across)):
        before = visit.told().place("fixed")
        visit.page.keyboard.press(key)
        moved = visit.told().place("fixed") - before
        assert moved[axis] > 1
        assert np.abs(np.delete(moved, axis)).max() < 0.02


def test_arrow_keys_move_the_place(visit):
    before = visit.told().place("fixed")
    visit.page.locator(STAGE).first.focus()
    for _ in range(3):
        visit.page.keyboard.press("ArrowRight")
    moved = visit.told().place("fixed") - before
    assert moved[0] > 0
    assert np.abs(moved[1:]).max() < 0.02


@pytest.mark.parametrize("width", [360, 640, 1280])
def test_narrow_screens_and_zoom_do_not_break_the_page(visit, width):
    """A width of 640 is what 200 % leaves of 1280; nothing sticks out to the side."""
    visit.page.set_viewport_size({"width": width, "height": 800})
    assert visit.page.evaluate(TOO_WIDE) <= 0
    cut = visit.page.evaluate("""() => [...document.querySelectorAll(
            '.tile, .badge, .remark, h1, h2, figcaption, #here, #go')]
        .filter((e) => e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).overflowX === 'visible')
        .map((e) => e.className || e.id || e.tagName)""")
    assert cut == []
    assert np.ptp(visit.picture()) > 100


@on("volume_result")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast_in_both_themes_and_the_button_changes_them(visit, scheme):
    page = visit.page
    page.emulate_media(color_scheme=scheme)
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
    rng, compared = np.random.default_rng(0), 0
    marked, d = reg.moving.points, reg.moving.dimension
    moving = marked.mean(axis=0) + rng.normal(0, 1, (12, d)) * np.ptp(marked, axis=0)
    far = remoteness(reg, moving)
    for k, told in enumerate(visit.told_at(reg.posterior.predict(moving).mean)):
        if "outside" in told.rows:  # of the grid
            continue
        clear = (
            abs(far.outside_mm[k] - 12.5) > 2 and abs(far.nearest_mm[k] - 25) > 0.1
        )  # a corner counts for less
        if clear:
            extrapolates = "rests on the prior" in told.rows["remark"]
            assert extrapolates == bool(far.extrapolates[k]), (moving[k], told)
            compared += 1
    assert compared > 2


@on("flat_result")
def test_outlines_of_a_label_are_drawn_in_2d_and_can_be_hidden(visit):
    outlines = visit.page.locator(".stage .outline")
    assert outlines.count() == 3
    assert outlines.nth(1).is_visible()
    visit.page.uncheck("#show-outlines")
    assert not outlines.nth(1).is_visible()


@on("volume_result")
@pytest.mark.parametrize("table", ["landmark-table", "target-table"])
def test_a_name_in_a_table_leads_to_its_place(visit, folder, table):
    visit.page.locator(f"#{table} tbody th button").nth(1).click()
    if table == "target-table":
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        there = summary["targets"][1]["position"]
    else:
        reg = kunita.load(folder / "registration.h5")
        there = reg.posterior.predict(reg.moving.points[1:2]).mean[0]
    assert visit.told().place("fixed") == pytest.approx(there, abs=WITHIN)


@on("bare_result")
@pytest.mark.parametrize("text", ["12abc", "", "1e999", "20 5 30"])
def test_what_is_no_place_is_marked_and_nothing_moves(visit, text):
    before = visit.told()
    invalid = visit.page.evaluate(
        """(text) => {
        const field = document.querySelector("#go input");
        field.value = text;
        document.getElementById("go").requestSubmit();
        return field.getAttribute("aria-invalid"); }""",
        text,
    )
    assert invalid == "true"
    assert visit.told() == before


@on("volume_result")
def test_commands_are_copied(visit):
    page = visit.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    row = page.locator(".file", has_text="forward_xfm.h5").locator("li", has_text="ANTs").first
    row.locator("button.copy").click()
    row.locator("button.copy", has_text="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == row.locator("code").inner_text()


def test_figures_have_words_for_those_who_cannot_see_them(visit):
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


def test_the_page_of_a_cohort_opens_and_its_links_open_their_cases(browser, tmp_path):
    (tmp_path / "report.html").write_text(made("study"), encoding="utf-8")
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
        page.goto((tmp_path / "report.html").as_uri())
        assert page.evaluate(TOO_WIDE) <= 0
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
