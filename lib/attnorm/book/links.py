"""Links between pages of the site that lead nowhere, raw HTML and claims.json included."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import unquote, urlsplit

from bs4 import BeautifulSoup

# Their content or their addresses depend on where they are served.
EXEMPT = ("search.html", "404.html")


def broken(pages: Path, soups: dict[str, BeautifulSoup]) -> list[str]:
    """Links and sources whose file or anchor is not in the site, as ``page: fault``."""
    anchors = {page: _anchors(soup) for page, soup in soups.items()}
    found = []
    for page, soup in soups.items():
        if page in EXEMPT:
            continue
        for attribute in ("href", "src"):
            for tag in soup.find_all(attrs={attribute: True}):
                if not _reaches(pages, page, tag[attribute], anchors):
                    found.append(f'{page}: <{tag.name} {attribute}="{tag[attribute]}"> leads nowhere')
    return found + _broken_evidence(pages, anchors)


def _broken_evidence(pages: Path, anchors: dict[str, set[str]]) -> list[str]:
    register = pages / "claims.json"
    if not register.is_file():
        return []
    return [
        f"claims.json: {claim['id']}, {evidence['name']!r}: {evidence['page']} leads nowhere"
        for claim in json.loads(register.read_text(encoding="utf8"))
        for evidence in claim["evidence"]
        if not _reaches(pages, register.name, evidence["page"], anchors)
    ]


def _anchors(soup: BeautifulSoup) -> set[str]:
    return {tag["id"] for tag in soup.find_all(id=True)} | {
        tag["name"] for tag in soup.find_all("a", attrs={"name": True})
    }


def _reaches(pages: Path, page: str, address: str, anchors: dict[str, set[str]]) -> bool:
    parts = urlsplit(address)
    if parts.scheme or parts.netloc:
        return True
    target = page
    if parts.path:
        path = (pages / page).parent / unquote(parts.path)
        if path.is_dir():
            path = path / "index.html"
        if not path.is_file():
            return False
        target = path.resolve().relative_to(pages.resolve()).as_posix()
    fragment = unquote(parts.fragment)
    return not fragment or fragment == "top" or target not in anchors or fragment in anchors[target]
