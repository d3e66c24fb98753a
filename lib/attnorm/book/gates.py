"""Faults that Sphinx lets pass, found in the built pages. Each message names the page and the element."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from bs4 import BeautifulSoup, Tag

from attnorm.book import evidence_gate, foreign, links, mathjax

MEDIA = ("img", "svg", "canvas", "video", "audio", "iframe", "table", "math", "hr", "input", "details")


NO_PROSE = ("pre", "code", "script", "style", "textarea", "noscript", "template")
TEX = re.compile(r"\\[a-zA-Z]{2,}|\$[^$]*[\\^_{][^$]*\$")


def inspect(pages: Path, notebooks: Path, documents: list[str] | None = None) -> list[str]:
    """Every fault in the built pages and the notebooks behind them.

    Parameters
    ----------
    pages : Path
        Root of the built site.
    notebooks : Path
        Folder of the executed notebooks, laid out like the pages.
    documents : list of str, optional
        Look at these pages only, and leave links between pages alone.

    Returns
    -------
    list of str
        ``page: fault``, in the order of the pages.
    """
    whole = documents is None
    paths = site_pages(pages) if whole else [pages / f"{name}.html" for name in documents]
    soups = {p.relative_to(pages).as_posix(): BeautifulSoup(p.read_bytes(), "lxml") for p in paths}
    found = []
    for page, soup in soups.items():
        for gate in (duplicate_ids, images_without_alt, empty_outputs, tex_in_prose, foreign.in_page):
            found += [f"{page}: {fault}" for fault in gate(soup)]
    found += foreign.in_files(pages, soups)
    if whole:
        found += links.broken(pages, soups)
    found += mathjax.faults(soups)
    found += evidence_gate.faults(notebooks, documents)
    return found


def site_pages(pages: Path) -> list[Path]:
    """Every page of the site; what lies in _static are templates of the theme."""
    return sorted(p for p in pages.rglob("*.html") if p.relative_to(pages).parts[0] != "_static")


def duplicate_ids(soup: BeautifulSoup) -> list[str]:
    """Two elements of one page with the same id: a link reaches only the first."""
    counts = Counter(tag["id"] for tag in soup.find_all(id=True))
    return [f'{n} elements have the id "{name}"' for name, n in counts.items() if n > 1]


def images_without_alt(soup: BeautifulSoup) -> list[str]:
    """Pictures in the text that say nothing to a reader who does not see them."""
    article = soup.find("article") or soup
    found = []
    for image in article.find_all("img"):
        alt, source = (image.get("alt") or "").strip(), image.get("src", "")
        if not alt or alt == source or alt.rsplit("/", 1)[-1] == source.rsplit("/", 1)[-1]:
            found.append(f"{describe(image)} has no alt text")
    for drawing in article.find_all(["svg", "canvas"]):
        labelled = drawing.get("aria-label") or drawing.get("aria-labelledby") or drawing.find("title")
        hidden = drawing.find_parent(attrs={"aria-hidden": "true"}) or drawing.get("aria-hidden") == "true"
        if not labelled and not hidden:
            found.append(f"{describe(drawing)} has no aria-label or title")
    return found


def empty_outputs(soup: BeautifulSoup) -> list[str]:
    """Output of a cell in which a reader sees nothing, such as a plot whose script comes from elsewhere."""
    found = []
    for output in soup.select(".cell_output > *, .cell_output:empty"):
        if not _shows_something(output):
            found.append(f"the output of the cell {_cell_text(output)!r} is empty")
    return found


def tex_in_prose(soup: BeautifulSoup) -> list[str]:
    """TeX that stands in the text as it was typed, because nothing takes it for mathematics."""
    article = soup.find("article") or soup
    found = []
    for text in article.find_all(string=TEX):
        if not text.find_parent(NO_PROSE) and not text.find_parent(class_="math"):
            found.append(f"TeX is shown as text: {text.strip()[:80]!r}")
    return found


def _shows_something(element: Tag) -> bool:
    if element.name in MEDIA or element.find(MEDIA):
        return True
    hidden = ("script", "style", "template", "noscript")
    texts = (text for text in element.find_all(string=True) if not text.find_parent(hidden))
    return element.name in hidden or any(text.strip() for text in texts)


def _cell_text(output: Tag) -> str:
    cell = output.find_parent(class_="cell")
    source = cell.find("pre") if cell else None
    lines = source.get_text().strip().splitlines() if source else []
    return lines[-1] if lines else "(hidden)"


def describe(tag: Tag) -> str:
    """A tag as a reader of the source would look for it."""
    names = [f'{key}="{tag[key]}"' for key in ("id", "src", "href") if tag.has_attr(key)]
    return "<" + " ".join([tag.name, *names]) + ">"
