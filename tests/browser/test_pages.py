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
WIDTHS = (1280, 390)
THEMES = ("light", "dark")
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
    """One page, loaded once and looked at in several widths and themes; and what went on while it loaded."""

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

    def look(self, *, width: int = WIDTHS[0], theme: str = THEMES[0]):
        """Change to a width and a theme, as a reader does who turns the device or presses the button."""
        self.page.set_viewport_size({"width": width, "height": 900})
        self.page.evaluate(
            "theme => Object.assign(document.documentElement.dataset, {theme, mode: theme})", theme
        )
        # A page hears of its new size when it is next drawn; then colours fade, and the theme waits 300 ms.
        self.page.evaluate(
            "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )
        self.page.wait_for_timeout(500)

    def find(self, script: str):
        return self.page.evaluate(script)

    def violations(self, **options) -> list[str]:
        """What axe-core finds, one line for each rule and element."""
        sync = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
        self.find(THIN_OUT)
        options = {"resultTypes": ["violations"], **options}
        return [
            f"{rule['id']}: {node['html'][:160]}: {node.get('failureSummary', '')[:200]}"
            for rule in sync.Axe().run(self.page, options=options).response["violations"]
            for node in rule["nodes"]
        ]


@pytest.fixture(scope="module", params=PAGES)
def visit(request, browser):
    from attnorm.book.screenshots import open_page

    context = browser.new_context(viewport={"width": WIDTHS[0], "height": 900}, color_scheme=THEMES[0])
    visit = Visit(context.new_page())
    open_page(visit.page, (SITE / request.param).as_uri(), THEMES[0])
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


@pytest.mark.parametrize("width", WIDTHS)
def test_page_is_no_wider_than_the_screen(visit, width):
    visit.look(width=width)
    assert visit.find(TOO_WIDE) == []


@pytest.mark.parametrize("width", WIDTHS)
def test_what_is_wider_than_its_box_can_be_scrolled_to(visit, width):
    visit.look(width=width)
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


def test_opened_page_is_no_wider_than_the_screen(visit):
    """What was hidden in dropdowns fits as well: the test above has opened them."""
    visit.look(width=390)
    assert visit.find(TOO_WIDE) == []


# axe takes minutes over the thousands of glyphs and code words of a chapter. The glyphs of a formula are
# hidden from screen readers, which get its MathML; of code, the first three words of each colour are enough.
THIN_OUT = """() => {
    document.querySelectorAll('mjx-container > mjx-math').forEach(e => e.replaceChildren());
    const kept = {};
    document.querySelectorAll('.highlight span[class]').forEach(e => {
        kept[e.className] = (kept[e.className] || 0) + 1;
        if (kept[e.className] > 3) e.replaceWith(e.textContent);
    });
}"""


def test_page_has_no_accessibility_violation(visit):
    """axe-core, with the rules of WCAG 2.1 A and AA, on the page with its dropdowns open."""
    visit.look()
    assert visit.violations(runOnly={"type": "tag", "values": WCAG}) == []


def test_colours_have_contrast_in_the_dark(visit):
    visit.look(theme="dark")
    assert visit.violations(runOnly=["color-contrast", "link-in-text-block"]) == []


def test_narrow_page_can_be_scrolled_with_the_keyboard(visit):
    visit.look(width=390)
    assert visit.violations(runOnly=["scrollable-region-focusable"]) == []


def test_accessibility_check_catches_planted_fault(browser):
    visit = Visit(browser.new_page())
    visit.page.set_content(
        "<html lang='en'><p style='color: #bbb; background: #fff'>pale</p><img src='data:,'>"
    )
    found = visit.violations(runOnly={"type": "tag", "values": WCAG})
    assert {line.split(":")[0] for line in found} >= {"color-contrast", "image-alt"}
    visit.page.close()
