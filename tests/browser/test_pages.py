"""The built pages in headless Chromium, opened from the file system as a reader without a server would.

`make browser` runs these after `make book`; they need a Chromium and built pages, and say so if either is
missing.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SITE = Path(os.environ.get("ATTNORM_SITE", ROOT / "_build" / "html"))
REQUIRED = os.environ.get("ATTNORM_BROWSER_REQUIRED") == "1"
# 404.html is made for a server: its addresses start at the server's root.
NAMES = [p.relative_to(SITE).as_posix() for p in sorted(SITE.rglob("*.html")) if "_static" not in p.parts]
PAGES = [name for name in NAMES if name not in ("404.html", "index.html")]
VIEWS = [(theme, width) for theme in ("light", "dark") for width in (1280, 390)]
WCAG = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]


def missing(what: str):
    if REQUIRED:
        pytest.fail(what)
    pytest.skip(what)


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    from attnorm.book.screenshots import ARGUMENTS, find_browser

    if not PAGES:
        missing(f"there are no built pages in {SITE}: run `make book` first")
    path = find_browser()
    if path is None:
        missing("no Chromium is installed")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()


class Visit:
    """A page as one reader sees it, and what went on while it loaded."""

    def __init__(self, page):
        self.page = page
        self.requests: list[str] = []
        self.complaints: list[str] = []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("requestfailed", lambda request: self.complaints.append(f"could not load {request.url}"))

    def _heard(self, message):
        if message.type == "error":
            self.complaints.append(message.text)

    def find(self, script: str):
        return self.page.evaluate(script)


@pytest.fixture(
    scope="module", params=[f"{name}-{theme}-{width}" for name in PAGES for theme, width in VIEWS]
)
def visit(request, browser):
    from attnorm.book.screenshots import open_page

    name, theme, width = request.param.rsplit("-", 2)
    context = browser.new_context(viewport={"width": int(width), "height": 900}, color_scheme=theme)
    visit = Visit(context.new_page())
    open_page(visit.page, (SITE / name).as_uri(), theme)
    yield visit
    context.close()


def test_there_is_a_page_for_each_entry_of_the_contents(browser):
    from attnorm.book.site import Book

    assert [d for d in Book(ROOT).documents() if f"{d}.html" not in PAGES] == []


def test_page_asks_for_nothing_outside_the_site(visit):
    home = SITE.as_uri()
    assert [url for url in visit.requests if not url.startswith((home, "data:", "blob:"))] == []


def test_page_loads_without_errors(visit):
    assert visit.complaints == []


BROKEN_MATHS = """() => [
    ...[...document.querySelectorAll('mjx-merror, [data-mjx-error]')].map(e => e.textContent),
    ...[...document.querySelectorAll('article .math')].filter(e => !e.querySelector('mjx-container'))
        .map(e => e.textContent)]"""
TOO_WIDE = """() => document.documentElement.scrollWidth <= window.innerWidth ? [] :
    [...document.querySelectorAll('body *')]
        .filter(e => e.getBoundingClientRect().right > window.innerWidth + 1)
        .map(e => `${e.tagName} ${e.id} ${e.className}`).slice(-5)"""
CUT_OFF = """() => [...document.querySelectorAll('.math, .cell_output, table, pre, figure, .highlight')]
    .filter(e => e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).overflowX === 'hidden')
    .map(e => `${e.tagName} ${e.id} ${e.className}`)"""


def test_all_mathematics_is_rendered(visit):
    assert visit.find(BROKEN_MATHS) == []


def test_page_is_no_wider_than_the_screen(visit):
    assert visit.find(TOO_WIDE) == []


def test_what_is_wider_than_its_box_can_be_scrolled_to(visit):
    assert visit.find(CUT_OFF) == []


PLANTED = {
    "unread formula": (BROKEN_MATHS, "<article><span class='math'>\\\\(x\\\\)</span></article>"),
    "formula in error": (BROKEN_MATHS, "<mjx-merror>Math input error</mjx-merror>"),
    "wide page": (TOO_WIDE, "<div style='width: 3000px'>wide</div>"),
    "cut off": (CUT_OFF, "<pre style='width: 50px; overflow: hidden'>a line longer than its box</pre>"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_check_catches_planted_fault(browser, name):
    check, body = PLANTED[name]
    page = browser.new_page(viewport={"width": 390, "height": 900})
    page.set_content(f"<!DOCTYPE html><html><body>{body}</body></html>")
    assert page.evaluate(check) != []
    page.set_content("<!DOCTYPE html><html><body><p>sound</p></body></html>")
    assert page.evaluate(check) == []
    page.close()


def test_every_dropdown_opens(visit):
    """Native ones open by their summary, those of sphinx-togglebutton by their button."""
    details = visit.page.locator("article details:not([open]) > summary")
    for _ in range(details.count()):
        details.first.click()  # an opened one leaves the list
    assert details.count() == 0
    hidden = visit.page.locator("article .toggle-hidden")
    for _ in range(hidden.count()):
        hidden.first.locator("button.toggle-button, .toggle-button").first.click()
    assert hidden.count() == 0


def test_page_has_no_accessibility_violation(visit):
    """axe-core, with the rules of WCAG 2.1 A and AA, after the dropdowns have been opened."""
    sync = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
    options = {"runOnly": {"type": "tag", "values": WCAG}, "resultTypes": ["violations"]}
    violations = sync.Axe().run(visit.page, options=options).response["violations"]
    found = [
        f"{v['id']}: {v['help']}: {node['html'][:160]} {node.get('failureSummary', '')[:200]}"
        for v in violations
        for node in v["nodes"]
    ]
    assert found == []
