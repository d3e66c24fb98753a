"""Pictures of every published page, light and dark, wide and narrow, for looking through by eye."""

from __future__ import annotations

import shutil
from pathlib import Path

from attnorm.book.build import BuildError
from attnorm.book.site import Book

WIDTHS = (1280, 390)
THEMES = ("light", "dark")
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
# Without these a browser calls home, or needs rights that a container lacks.
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def find_browser() -> str | None:
    """Path of an installed Chromium, or None."""
    return next((path for path in map(shutil.which, BROWSERS) if path), None)


def open_page(page, address: str, theme: str) -> None:
    """Load a page in one theme and wait until MathJax is done with it."""
    page.add_init_script(
        f"localStorage.setItem('mode', '{theme}'); localStorage.setItem('theme', '{theme}');"
    )
    page.goto(address, wait_until="load")
    page.evaluate("() => window.MathJax && MathJax.startup ? MathJax.startup.promise.then(() => true) : true")
    page.evaluate("() => document.fonts.ready.then(() => true)")


def take(root: Path | str) -> Path:
    """Take a picture of every page in every width and theme; return their folder.

    Raises
    ------
    BuildError
        If there are no built pages, or no Chromium is installed.
    """
    from playwright.sync_api import sync_playwright

    book, browser_path = Book(Path(root)), find_browser()
    if not book.html.is_dir():
        raise BuildError("there are no pages yet: run `make book` first")
    if browser_path is None:
        raise BuildError(f"no browser found; install one of: {', '.join(BROWSERS)}")
    folder = book.build / "screenshots"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=ARGUMENTS)
        for theme in THEMES:
            for width in WIDTHS:
                context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
                for document in book.documents():
                    page = context.new_page()
                    open_page(page, (book.html / f"{document}.html").as_uri(), theme)
                    name = document.replace("/", "--")
                    page.screenshot(path=folder / f"{name}-{theme}-{width}.png", full_page=True)
                    page.close()
                context.close()
        browser.close()
    return folder
