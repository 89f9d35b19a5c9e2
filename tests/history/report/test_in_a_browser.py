"""The report as a real browser sees it, offline; skipped where none is installed."""

import shutil
from pathlib import Path

import pytest

from bench_utils.history import selection
from bench_utils.history.report import columns, page
from tests.history.report.support import columns_of
from tests.history.report.test_report import hostile_record

ROOT = Path(__file__).parent.parent.parent.parent
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome", "msedge")
# Quiet, and without a sandbox of its own: a container's root has none to give.
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]


@pytest.fixture(scope="module")
def browser():
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"none of {', '.join(NAMES)} is installed")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=found, args=[*FLAGS, "--disable-component-update"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The page of the committed records."""
    found = columns.collect(selection.select([], ROOT / "results").loaded)
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(page.render(found), encoding="utf-8")
    return path


class Visit:
    """A page opened offline, with all that went wrong and all that was asked for."""

    def __init__(self, browser, path, **options):
        self.context = browser.new_context(offline=True, **options)
        self.page = self.context.new_page()
        self.troubles, self.requests = [], []
        self.page.on("console", lambda told: told.type in ("error", "warning") and self.troubles.append(told.text))
        self.page.on("pageerror", lambda error: self.troubles.append(str(error)))
        self.page.on("requestfailed", lambda asked: self.troubles.append(asked.url))
        self.page.on("request", lambda asked: self.requests.append(asked.url))
        self.page.goto(path.as_uri())
        self.page.evaluate("window.reportDrawn.then(() => true)")

    def count(self, selector):
        return self.page.locator(selector).count()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_every_plot_is_drawn_without_an_error_or_a_request(browser, report, scheme, width):
    visit = Visit(browser, report, color_scheme=scheme, viewport={"width": width, "height": 900})
    assert visit.troubles == []
    assert visit.requests == [report.as_uri()]
    assert visit.count(".plot svg") == visit.count(".plot") > 20
    # Wide tables scroll in their own place; the page itself does not.
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_point_shows_its_samples_on_hover(browser, report):
    visit = Visit(browser, report, viewport={"width": 1280, "height": 900})
    visit.page.locator("#A3 .plot svg .mark-symbol path").first.hover()
    visit.page.wait_for_selector("#vg-tooltip-element.visible")
    assert "samples, ms:" in visit.page.locator("#vg-tooltip-element").inner_text()


def test_it_is_read_with_the_keyboard_and_by_a_screen_reader(browser, report):
    visit = Visit(browser, report, viewport={"width": 1280, "height": 900})
    visit.page.keyboard.press("Tab")
    assert visit.page.evaluate("document.activeElement.textContent") == "To the scoreboard"
    assert visit.page.evaluate("document.documentElement.lang") == "en"
    unnamed = "[...document.querySelectorAll('.plot')].filter((place) => !place.ariaLabel).length"
    assert visit.page.evaluate(unnamed) == 0
    assert visit.count("h1") == 1
    assert visit.count("th:not([scope])") == 0
    summary = visit.page.locator("#A3 summary").first
    summary.focus()
    visit.page.keyboard.press("Enter")
    assert visit.page.locator("#A3 details").first.get_attribute("open") is not None


def test_it_changes_with_the_readers_colours(browser, report):
    visit = Visit(browser, report, color_scheme="light")
    before = visit.page.locator("#A3 .plot svg text").first.evaluate("(text) => text.getAttribute('fill')")
    visit.page.emulate_media(color_scheme="dark")
    visit.page.wait_for_timeout(100)
    visit.page.evaluate("window.reportDrawn.then(() => true)")
    after = visit.page.locator("#A3 .plot svg text").first.evaluate("(text) => text.getAttribute('fill')")
    assert before != after


def test_markup_in_a_record_runs_nothing(browser, tmp_path):
    path = tmp_path / "hostile.html"
    path.write_text(page.render(columns_of(tmp_path, hostile_record())), encoding="utf-8")
    opened = []
    visit = Visit(browser, path)
    visit.page.on("dialog", lambda dialog: opened.append(dialog.message))
    visit.page.reload()
    visit.page.evaluate("window.reportDrawn.then(() => true)")
    assert opened == []
    assert visit.count("img") == 0
    assert visit.troubles == []
