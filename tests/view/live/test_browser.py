"""The live page in a real Chromium, Debian's, driven by Playwright, beside a process that trains."""

import json
import re
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from tests.lab.report.test_browser import CHROMIUM, browser, contrast, overflow  # noqa: F401 a fixture
from tests.runs.test_open_run import planted
from tests.view.live.server import serving

from rankrise.store import create_run, rows, scalar_rows

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium: apt-get install chromium"),
]
EVIL = "<img src=x onerror=alert(1)>"
LATER = 30_000  # milliseconds that a page may take on a busy machine; what must be quick is measured elsewhere

# A process that records a loss and a rank that rises from 1 to 2 at step 30, until it is killed.
TRAINING = """
import sys, time
sys.path[:0] = sys.argv[2:]
import torch
from rankrise.store import create_run, rows, scalar_rows
layers = [{"index": n, "name": str(n), "num_heads": 2, "head_dim": 2, "views": {}} for n in range(2)]
run = create_run(sys.argv[1], spec={"layers": layers}, initial={"w": torch.zeros(1)})
for step in range(1, 100_000):
    run.append(scalar_rows([(step, "loss", 1 + 1 / step)]))
    for quantity in ("stable_rank", "frobenius_norm"):
        rank = 1.0 + (step > 30)
        run.append(rows(step, quantity, [[rank, rank], [1.0, 1.0]], circuit="kq", layers=(0, 1), heads=True))
    time.sleep(0.02 if step < 60 else 0.2)
"""


def spectral(folder):
    """A run with two layers of three heads, and spectra at six steps."""
    layers = [{"index": n, "name": EVIL, "num_heads": 3, "head_dim": 4, "views": {}} for n in range(2)]
    config = {"experiment": EVIL}
    run = create_run(folder, spec={"layers": layers, "notes": [EVIL], "config": config}, initial={"w": torch.zeros(1)})
    values = 1 + np.arange(6.0).reshape(2, 3)
    for step in range(1, 31):
        run.append(scalar_rows([(step, EVIL, 1 / step), (step, "loss", 2 / step)]))
        for circuit in ("kq", "vo"):
            where = {"circuit": circuit, "layers": (0, 1), "heads": True}
            run.append(rows(step, "stable_rank", values, **where))
            run.append(rows(step, "frobenius_norm", values * step, **where))
            if step % 5 == 0:
                run.append(rows(step, "spectrum", values[..., None] * [1.0, 0.1, 0.01], **where))
    run.seal()
    return folder


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("served")
    planted(root / "runs" / "mine")
    planted(root / "runs" / "other", steps=range(1, 31))
    spectral(root / EVIL)
    claim = {"claim": {"statement": EVIL}, "verdict": "fails", "reason": EVIL, "runs": []}
    (root / "verdicts.json").write_text(json.dumps([claim]))
    return root


@pytest.fixture(scope="module")
def server(root):
    with serving(root) as process:
        yield process


@pytest.fixture
def open_page(browser, server):  # noqa: F811
    """Open the page; whatever it prints, throws or asks of anybody else fails the test at its end."""
    complaints, pages = [], []

    def opener(*, width=1200, **options):
        page = browser.new_page(viewport={"width": width, "height": 900}, **options)
        page.set_default_timeout(LATER)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(dialog.message))
        page.on("request", lambda r: complaints.append(r.url) if not r.url.startswith(server.url) else 0)
        page.goto(server.url)
        page.wait_for_selector("tbody tr")
        pages.append(page)
        return page

    yield opener
    for page in pages:
        page.close()
    assert complaints == []


def wait(page, expression, argument=None):
    """Wait until an expression is true; Playwright's own wait uses `eval`, which the policy of the page forbids."""
    end = time.monotonic() + LATER / 1000
    while not page.evaluate(expression, argument):
        assert time.monotonic() < end, expression
        page.wait_for_timeout(50)


def open_run(page, name):
    page.get_by_role("link", name=name, exact=True).click()
    page.wait_for_selector("h1 .badge")


def num_points(page):
    return int(page.locator('path.line[data-name="loss"]').get_attribute("data-points"))


def test_a_run_appears_grows_shows_a_stage_and_is_marked_when_it_is_killed(open_page, root):
    page = open_page()
    training = subprocess.Popen([sys.executable, "-c", TRAINING, str(root / "born"), *sys.path])
    try:
        while not (root / "born" / "MANIFEST.json").exists():  # importing torch takes a minute on a busy machine
            assert training.poll() is None
            time.sleep(0.1)
        page.get_by_role("link", name="born", exact=True).wait_for()
        wait(page, "document.querySelector('tr[data-state=running]')?.textContent.includes('born')")
        open_run(page, "born")
        assert page.locator("h1").inner_text() == "born running"
        page.wait_for_selector('path.line[data-name="loss"]')
        before = num_points(page)
        wait(page, "n => Number(document.querySelector('path.line[data-name=loss]').dataset.points) > n", before)
        marker = page.locator("[data-circuit=kq] .stage")
        marker.first.wait_for(state="attached", timeout=60_000)
        assert 25 < float(marker.first.get_attribute("data-step")) < 36
        assert re.search(r"step \d+: rank of kq in layer 0 rises by 1", page.locator(".stages").inner_text())
        assert page.locator("[data-circuit=kq] path.line").count() == 2
    finally:
        training.kill()
        training.wait()
    page.wait_for_selector("h1 .badge.stopped")
    page.keyboard.press("Escape")
    page.wait_for_selector("tr[data-state=stopped]:has-text('born')")


def test_a_new_measurement_is_on_the_page_within_two_seconds(open_page, root):
    layer = {"index": 0, "name": "a", "num_heads": 1, "head_dim": 1, "views": {}}
    run = create_run(root / "quick", spec={"layers": [layer]}, initial={"w": torch.zeros(1)})
    run.append(scalar_rows([(1, "loss", 1.0)]))
    page = open_page()
    page.get_by_role("link", name="quick", exact=True).wait_for()
    open_run(page, "quick")
    page.wait_for_selector(".meta:has-text('steps 1 to 1')")
    seconds = []
    for step in range(2, 7):
        begin = time.monotonic()
        run.append(scalar_rows([(step, "loss", 1 / step)]))
        page.wait_for_selector(f".meta:has-text('steps 1 to {step} ')")
        seconds.append(time.monotonic() - begin)
        assert num_points(page) == step
    run.seal()
    assert sorted(seconds)[len(seconds) // 2] < 2, seconds


def test_one_measurement_is_a_dot_and_a_refusal_is_said(open_page, browser, server, root):  # noqa: F811
    page = open_page()
    planted(root / "single", steps=range(1, 2))
    page.get_by_role("link", name="single", exact=True).wait_for()
    open_run(page, "single")
    page.wait_for_selector("circle.dot")
    assert page.locator("circle.dot").count() == 1 + 2 * 2  # the loss, and two layers of two circuits
    shutil.rmtree(root / "single")
    page.wait_for_selector("h1 .badge.removed")
    assert page.locator("h1").inner_text() == "single removed"
    assert "was removed from the folder" in page.locator(".meta").inner_text()
    stranger = browser.new_page()  # whose console may complain of the answer 404
    stranger.goto(f"{server.url}#/run/%zz")
    stranger.wait_for_selector("#connection:has-text('There is no such run.')")
    stranger.close()


def test_two_runs_lie_over_each_other(open_page):
    page = open_page()
    for name in ("runs/mine", "runs/other"):
        page.get_by_label(f"Compare {name}").check()
    page.get_by_role("button", name="Compare 2 runs").click()
    wait(page, "document.querySelectorAll('path.line').length === 6")
    lines = page.eval_on_selector_all("path.line", "all => all.map(e => [e.dataset.name, e.getAttribute('stroke')])")
    assert lines[:2] == lines[2:4] == lines[4:]
    (mine, first), (other, second) = lines[:2]
    assert (mine, other) == ("mine", "other")
    assert first != second
    page.locator(".controls select").nth(2).select_option("1")
    page.locator(".lines").nth(1).hover()
    assert "mine" in page.locator(".readout").nth(1).inner_text()
    cells = page.locator("tbody tr").first.locator("td").all_inner_texts()
    assert cells == ["finished", "40", "1", "2.00", "1.00"]


def test_names_from_anywhere_are_text(open_page):
    page = open_page()
    page.get_by_text("Every claim").click()
    assert page.locator("td.words").first.inner_text() == EVIL
    open_run(page, EVIL)
    assert page.locator("h1").inner_text() == f"{EVIL} finished"
    assert EVIL in page.locator(".meta").inner_text()
    assert page.locator(".notes li").inner_text() == EVIL
    page.get_by_label("Show").first.select_option(EVIL)
    assert page.locator(".plot .title").first.text_content() == EVIL
    page.keyboard.press("Escape")
    page.get_by_label(f"Compare {EVIL}").check()
    page.get_by_label("Compare runs/mine").check()
    page.get_by_role("button", name="Compare 2 runs").click()
    page.wait_for_selector(".legend a")
    assert page.locator(".legend a").all_inner_texts().count(EVIL) == 1
    assert page.locator("img").count() == 0


def test_the_keyboard_is_enough(open_page):
    page = open_page()
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "filter"
    page.keyboard.type("img")
    wait(page, "document.querySelectorAll('.runs tbody tr').length === 1")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_selector("h1 .badge")
    page.locator(".plot").first.focus()
    page.keyboard.press("Home")
    assert "step 1" in page.locator(".readout").first.inner_text()
    page.keyboard.press("ArrowRight")
    assert "step 2" in page.locator(".readout").first.inner_text()
    page.locator(".heat").focus()
    chosen = page.get_by_role("heading", name="kq of layer", exact=False)
    assert chosen.inner_text() == "kq of layer 1, head 2"  # it learned most
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowLeft")
    assert "layer 0, head 1: stable rank of kq 2" in page.locator(".heat + .readout").inner_text()
    page.keyboard.press("Enter")
    page.wait_for_selector("h3:has-text('kq of layer 0, head 1')")
    slider = page.get_by_label("Step of training")
    assert slider.get_attribute("aria-valuetext") == "step 30"
    slider.focus()
    page.keyboard.press("ArrowLeft")
    assert slider.get_attribute("aria-valuetext") == "step 25"
    page.keyboard.press("Home")
    assert slider.get_attribute("aria-valuetext") == "step 5"
    page.get_by_role("button", name="Play").press("Enter")
    wait(page, "document.querySelector('input[type=range]').value === '5'")
    page.keyboard.press("Escape")
    page.wait_for_selector("#filter")


def test_what_a_foreign_page_could_ask_is_refused(browser, server):  # noqa: F811
    ask = browser.new_context().request
    outside = server.url.rsplit("/", 2)[0]
    assert ask.get(f"{server.url}runs").status == 200
    assert ask.get(f"{outside}/runs").status == 403
    assert ask.get(f"{server.url}runs", headers={"Host": "evil.example"}).status == 400
    assert ask.get(f"{server.url}..%2F..%2Fetc%2Fpasswd").status == 404
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert ask.fetch(f"{server.url}runs", method=method).status == 405


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 375])
def test_every_page_fits_and_can_be_read(scheme, width, open_page):
    page = open_page(width=width, color_scheme=scheme)

    def check(*selectors):
        assert overflow(page) <= 0
        assert contrast(page, "h1") > 7
        for selector in selectors:
            assert contrast(page, selector) > 4.5, selector

    page.wait_for_selector(".spark")
    check(".badge", "tbody a", "[data-changed]")
    open_run(page, EVIL)
    page.wait_for_selector("input[type=range]")
    check(".meta", ".badge", "h3", ".card .soft")
    assert page.locator(".plot svg").count() == 4
    page.keyboard.press("Escape")
    for name in ("runs/mine", "runs/other"):
        page.get_by_label(f"Compare {name}").check()
    page.get_by_role("button", name="Compare 2 runs").click()
    page.wait_for_selector("path.line")
    check(".badge", "thead th")
