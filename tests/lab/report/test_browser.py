"""The pages in a real Chromium, Debian's, driven by Playwright."""

import re
import shutil
from pathlib import Path

import pytest
from tests.lab.claims import planted
from tests.lab.figures.test_toy import full_runs
from tests.lab.report.test_page import DEMO, HOSTILE, runs, verdict  # noqa: F401 a fixture

from rankrise.lab.figures import build_figure, figure_ids, takes_experiment
from rankrise.lab.report import write_report
from rankrise.view import Axis, Cells, FigureData, Order, Panel, Trace
from rankrise.view._colours import _luminance, colour_ramps, shade

CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium: apt-get install chromium"),
]


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory, runs):  # noqa: F811
    folder = tmp_path_factory.mktemp("more-runs")
    adam = [planted.adam_phases(folder, starts=[(1, 1, 2, 2), (1, 4, 7, 9)])]
    drawn = runs | full_runs(folder) | {"toy-adam-phases": adam}
    figures = [
        build_figure(i, drawn, **({"experiment": "vit-cifar10"} if takes_experiment(i) else {})) for i in figure_ids()
    ]
    verdicts = [verdict(), verdict("b", "fails"), verdict("c", "not tested", value=None)]
    return write_report(tmp_path_factory.mktemp("report"), figures, verdicts, runs, {"python": "3.12"})


@pytest.fixture
def open_page(browser):
    """Open a file; whatever it prints, throws or asks of a server fails the test at its end."""
    complaints, pages = [], []

    def opener(path: Path, *, width=1200, **options):
        page = browser.new_page(viewport={"width": width, "height": 900}, **options)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "request", lambda r: complaints.append(r.url) if not r.url.startswith(("file:", "data:", "blob:")) else 0
        )
        page.goto(path.as_uri())
        pages.append(page)
        return page

    yield opener
    for page in pages:
        page.close()
    assert complaints == []


def scroll_through(page):
    """Figures are drawn when they come near the window."""
    for y in range(0, page.evaluate("document.body.scrollHeight"), 500):
        page.evaluate(f"window.scrollTo(0, {y})")
        page.wait_for_timeout(60)


def overflow(page):
    return page.evaluate("document.documentElement.scrollWidth - window.innerWidth")


def contrast(page, selector):
    """WCAG contrast of an element's text with the page."""
    return page.evaluate(
        """(selector) => {
        const parse = (text) => text.match(/[\\d.]+/g).slice(0, 3).map(Number);
        const light = (rgb) => rgb.map((v) => v / 255).map((v) => v <= 0.04 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
          .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
        const ink = light(parse(getComputedStyle(document.querySelector(selector)).color));
        const page = light(parse(getComputedStyle(document.body).backgroundColor));
        return (Math.max(ink, page) + 0.05) / (Math.min(ink, page) + 0.05);
    }""",
        selector,
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 375])
def test_report_loads(scheme, width, report, open_page):
    page = open_page(report, width=width, color_scheme=scheme)
    scroll_through(page)
    drawn = page.evaluate("[...document.querySelectorAll('.plot')].map((e) => e.querySelectorAll('svg').length > 0)")
    assert len(drawn) > 30
    assert all(drawn)
    assert overflow(page) <= 0
    one_line = (
        "[...document.querySelectorAll('.answer')].every(e => e.offsetHeight < 30 && e.scrollWidth <= e.clientWidth)"
    )
    assert page.evaluate(one_line)  # "not tested" lies beside its sentence, not over the next one
    assert contrast(page, "h1") > 7
    assert contrast(page, "figcaption") > 4.5
    assert contrast(page, ".fails") > 4.5


def test_on_a_phone_rows_and_columns_stay_and_are_swiped_through(report, open_page):
    page = open_page(report, width=390)
    scroll_through(page)
    grid = page.locator("#figure-spectrum_over_training-vit-cifar10 .grid")
    tops = grid.evaluate("(e) => [...e.children].map((panel) => panel.getBoundingClientRect().top)")
    assert len(tops) == 4  # two circuits, two layers
    assert tops[0] == tops[1] < tops[2] == tops[3]
    assert grid.evaluate("(e) => e.scrollWidth > e.clientWidth")
    grid.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_timeout(800)
    assert grid.evaluate("(e) => e.scrollLeft") > 0
    wide = page.locator("#figure-toy_scales .panel.wide").bounding_box()
    assert wide["x"] >= 0
    assert wide["x"] + wide["width"] <= 390
    assert overflow(page) <= 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_numbers_of_a_heat_map_can_be_read(scheme, tmp_path, open_page):
    """Contrast of at least 4.5, over the whole range of colours."""
    values = tuple(tuple(1.0 + 4 * row + col for col in range(4)) for row in range(5))
    cells = Cells(tuple(f"layer {i}" for i in range(5)), tuple("1234"), values, "stable rank")
    panel = Panel("", Axis("head"), Axis(""), cells=cells)
    figure = FigureData("stable_rank_by_head", "", "", (panel,), 1, 1, ())
    page = open_page(write_report(tmp_path, [figure], [], {}, {}), color_scheme=scheme)
    scroll_through(page)
    found = page.eval_on_selector_all(
        ".annotation-text", "texts => texts.map(text => [Number(text.textContent), getComputedStyle(text).fill])"
    )
    assert len(found) == 20
    middle = (
        "all => all.map(one => [one.textContent, one.getBoundingClientRect()]).map(([t, r]) => [t, r.x + r.width / 2])"
    )
    ticks = [place for _, place in page.eval_on_selector_all(".xtick text", middle)]
    for text, place in page.eval_on_selector_all(".annotation-text", middle):
        assert place == pytest.approx(ticks[int(float(text) - 1) % 4], abs=3), text
    ramp = tuple(colour_ramps()[scheme])
    for value, ink in found:
        behind = _luminance(shade((value - 1) / 19, ramp))
        written = _luminance("#" + "".join(f"{int(n):02x}" for n in re.findall(r"\d+", ink)[:3]))
        high, low = max(behind, written), min(behind, written)
        assert (high + 0.05) / (low + 0.05) >= 4.5, (value, ink)
    phone = open_page(tmp_path / "index.html", width=180)
    scroll_through(phone)
    assert phone.locator(".annotation-text").count() == 0


def test_report_is_light_and_dark(report, open_page):
    light, dark = (open_page(report, color_scheme=scheme) for scheme in ("light", "dark"))
    colours = [page.evaluate("getComputedStyle(document.body).backgroundColor") for page in (light, dark)]
    assert colours[0] != colours[1]
    strokes = [page.locator(".plot .js-line").first.evaluate("(e) => e.style.stroke") for page in (light, dark)]
    assert strokes[0] != strokes[1]


def test_alpha_slider_of_the_report_moves_the_curve(report, open_page):
    page = open_page(report)
    stage = page.locator("#figure-toy_scales")
    stage.scroll_into_view_if_needed()
    lines = stage.locator(".plot").first.locator(".js-line")
    lines.first.wait_for()
    assert lines.count() == 3  # two α and the limit
    slider = stage.get_by_label("initial scale α")
    slider.focus()
    page.keyboard.press("ArrowLeft")
    assert stage.locator("output").text_content() == "α = 10⁻²"
    assert lines.count() == 2
    before = lines.first.get_attribute("d")
    page.keyboard.press("End")
    assert stage.locator("output").text_content() == "α = 10⁻⁸"
    assert lines.first.get_attribute("d") != before
    stage.get_by_label("all at once").focus()
    page.keyboard.press("Space")
    assert lines.count() == 3


def test_film_of_the_report_plays(report, open_page):
    page = open_page(report)
    stage = page.locator("#figure-spectrum_over_training-vit-cifar10")
    stage.scroll_into_view_if_needed()
    button = stage.get_by_role("button", name="Play")
    button.focus()
    page.keyboard.press("Enter")
    assert stage.locator("output").text_content() == "epoch 0.5"
    assert stage.get_by_role("button").text_content() == "Pause"
    stage.locator("output", has_text="epoch 10").wait_for()
    stage.get_by_role("button", name="Play").wait_for()  # it stops at the end


def test_focus_is_visible_and_reaches_every_control(report, open_page):
    page = open_page(report)
    scroll_through(page)
    controls = "[...document.querySelectorAll('input, select, button')]"
    assert page.evaluate(f"{controls}.filter((e) => !e.labels?.length && !e.textContent).length") == 0
    page.locator("nav a").first.focus()
    page.keyboard.press("Tab")
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"


def test_nothing_moves_by_itself(report, open_page):
    page = open_page(report, reduced_motion="reduce")
    before = page.locator("output").all_text_contents()
    page.wait_for_timeout(800)
    assert page.locator("output").all_text_contents() == before
    assert page.evaluate("getComputedStyle(document.documentElement).scrollBehavior") == "auto"


def test_report_prints_every_figure(report, open_page, tmp_path):
    page = open_page(report, color_scheme="dark")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("[...document.querySelectorAll('.plot')].every((e) => e.querySelector('svg'))")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator(".controls").first.is_visible()


@pytest.mark.parametrize("name", HOSTILE)
def test_names_do_nothing_in_a_browser(name, tmp_path, open_page):
    trace = Trace((0.0, 1.0), (0.0, 1.0), label=name, group=name, level=0.5)
    end = Trace((0.0, 1.0), (1.0, 0.0), label=name, group=f"{name} 2", level=1.0, at_end=True)
    panel = Panel(name, Axis(name), Axis(name), (trace, end))
    figure = FigureData("toy_scales", name, name, (panel,), 1, 1, (name,), name, Order(name, ((0.0, name),)))
    page = open_page(write_report(tmp_path, [figure], [verdict(name)], {}, {name: name}, title=name))
    scroll_through(page)
    page.locator(".plot svg").first.wait_for()
    page.locator(".plot").first.hover()
    page.wait_for_timeout(200)
    assert page.evaluate("window.hacked") is None
    assert page.locator("img").count() == 0
    assert page.title() == name
    assert page.locator("h1").text_content() == name


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 375])
def test_demo_loads(scheme, width, open_page):
    page = open_page(DEMO, width=width, color_scheme=scheme)
    assert page.locator(".chart svg").count() == 9
    assert overflow(page) <= 0
    assert contrast(page, "h1") > 7
    sizes = page.evaluate("[...document.querySelectorAll('.chart text')].map((e) => e.getBoundingClientRect().height)")
    assert min(sizes) > 9  # legible, not scaled down with the picture


def test_alpha_slider_of_the_demo_moves_the_curve(open_page):
    page = open_page(DEMO)
    chosen = page.locator("#loss path[data-name=chosen]")
    assert page.locator("#alpha-value").text_content() == "α = 10⁻³²"  # the demo opens where the stages are sharp
    before = chosen.get_attribute("d")
    limit = page.locator("#loss path[data-name=limit]").get_attribute("d")
    page.get_by_label("initial scale α").focus()
    page.keyboard.press("Home")
    assert chosen.get_attribute("d") != before
    page.keyboard.press("End")
    assert chosen.get_attribute("d") == before
    assert page.locator("#loss path[data-name=limit]").get_attribute("d") == limit


def test_smaller_alpha_is_nearer_to_the_staircase(open_page):
    """What the demo is for, read off the screen: from 10⁻² on the area between the curve and the stairs shrinks."""
    page = open_page(DEMO)
    page.get_by_label("initial scale α").focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    areas = []
    for _ in range(5):
        areas.append(
            page.evaluate(
                """() => {
            const [curve, limit] = ["chosen", "limit"].map((n) => document.querySelector(`#loss path[data-name=${n}]`));
            const heights = (path) => {
              const found = new Map();
              const total = path.getTotalLength();
              for (let s = 0; s <= total; s += 0.5) {
                const point = path.getPointAtLength(s);
                found.set(Math.round(point.x), point.y);
              }
              return found;
            };
            const [a, b] = [curve, limit].map(heights);
            return [...a.keys()].filter((x) => b.has(x)).reduce((sum, x) => sum + Math.abs(a.get(x) - b.get(x)), 0);
        }"""
            )
        )
        page.keyboard.press("ArrowRight")
    assert areas == sorted(areas, reverse=True)
    assert areas[-1] < areas[0] / 5


def test_film_of_the_demo_plays_and_changes_layer(open_page):
    page = open_page(DEMO)
    bars = "[...document.querySelectorAll('#spectrum-0 rect')].map((e) => e.getAttribute('height'))"
    opened = page.evaluate(bars)
    assert page.locator("#time").input_value() == "0"  # the demo opens at the first epoch
    button = page.get_by_role("button", name="Play")
    button.focus()
    page.keyboard.press("Enter")
    page.wait_for_function(f"(opened) => JSON.stringify({bars}) !== JSON.stringify(opened)", arg=opened)
    page.get_by_role("button", name="Pause").click()
    stopped = page.evaluate(bars)
    page.wait_for_timeout(700)
    assert page.evaluate(bars) == stopped
    layer = page.get_by_label("layer")
    layer.select_option("1" if layer.input_value() == "0" else "0")
    assert page.evaluate(bars) != stopped
