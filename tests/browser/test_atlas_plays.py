"""The atlas of heads in headless Chromium: reached by keyboard, played, narrow, without a network."""

from __future__ import annotations

import numpy as np
import pytest

from attnorm.atlas import QUANTITIES, Atlas, atlas_html
from attnorm.book.screenshots import ARGUMENTS, find_browser

GROUNDS = {"light": ("#ffffff", "#222222"), "dark": ("#121212", "#dddddd")}


def made_up(title, shape):
    rng = np.random.default_rng(1)
    values = {key: rng.uniform(0.1, 2.0, size=shape) for key, *_ in QUANTITIES}
    return Atlas(title, tuple(32 * 2**k for k in range(shape[0])), 16, values)


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = find_browser()
    if path is None:
        pytest.skip("no Chromium is installed")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(params=["light", "dark"])
def page(browser, tmp_path, request):
    html = atlas_html("heads", [made_up("a model", (3, 12, 12)), made_up("another", (2, 30, 9))])
    ground, ink = GROUNDS[request.param]
    file = tmp_path / "atlas.html"
    file.write_text(
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>atlas</title></head>'
        f'<body style="margin: 16px; background: {ground}; color: {ink}">{html}</body></html>',
        encoding="utf-8",
    )
    page = browser.new_page(viewport={"width": 390, "height": 900})
    page.complaints, page.requests = [], []
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.on("request", lambda sent: page.requests.append(sent.url))
    page.goto(file.as_uri())
    yield page
    assert page.complaints == []
    assert page.requests == [file.as_uri()]
    page.close()


def cells(page):
    return page.locator('[role="gridcell"]')


def test_it_fits_a_narrow_screen(page):
    assert cells(page).count() == 144
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    box = cells(page).first.bounding_box()
    assert min(box["width"], box["height"]) >= 24


def test_arrow_keys_go_from_head_to_head(page):
    first = page.locator('[role="gridcell"][tabindex="0"]')
    assert first.count() == 1
    first.focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowUp", "ArrowUp", "End"):
        page.keyboard.press(key)
    label = page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert label.startswith("layer 0, head 11: entropy ")
    assert page.locator(".words").inner_text().startswith(label)


def test_it_plays_to_the_longest_window_and_stops(page):
    page.locator("input").fill("0")
    assert page.locator(".length").inner_text() == "L = 32"
    page.locator("button").click()
    assert page.locator("button").inner_text() == "Pause"
    page.wait_for_function("document.querySelector('button').textContent === 'Play'")
    assert page.locator(".length").inner_text() == "L = 128"


def test_another_model_and_quantity_can_be_chosen(page):
    page.locator(".model").select_option("1")
    page.locator(".quantity").select_option("3")
    assert cells(page).count() == 270
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
