"""Requests to other hosts: a page must be complete on a machine without network.

A link that a reader may follow is no request; everything that a browser fetches by itself is.
"""

from __future__ import annotations

import re
from pathlib import Path

from bs4 import BeautifulSoup

FETCHED = {
    "src": None,  # on any element
    "srcset": None,
    "poster": None,
    "data": ("object",),
    "background": None,
    "xlink:href": ("image", "use"),
}
FETCHING_RELATIONS = {
    "stylesheet", "icon", "shortcut", "apple-touch-icon", "manifest",
    "preload", "prefetch", "modulepreload", "preconnect", "dns-prefetch", "prerender",
}  # fmt: skip
OTHER_HOST = re.compile(r"^\s*(?:https?:)?//", re.IGNORECASE)
CSS_REQUEST = re.compile(r"""(?:url\(\s*["']?|@import\s+["'])\s*((?:https?:)?//[^"')\s]+)""", re.IGNORECASE)
CODE_ADDRESS = re.compile(r"""["'`]((?:https?:)?//[\w.-]+\.[a-z]{2,}[^"'`\s]*)""", re.IGNORECASE)
NAMESPACES = ("http://www.w3.org/", "https://www.w3.org/", "http://www.inkscape.org/")
# MathJax names the home of its speech engine, and asks it only when a reader switches speech on.
MATHJAX = "_static/mathjax/"
# Scripts are long and name addresses that they only print; these hosts serve files.
FILE_HOSTS = re.compile(
    r"""["'`](?:https?:)?//(?:[\w-]+\.)*
    (?:unpkg\.com|jsdelivr\.net|cdnjs\.cloudflare\.com|googleapis\.com|gstatic\.com|polyfill\.io|esm\.sh|
       skypack\.dev|jspm\.io|bootstrapcdn\.com|plot\.ly|mathjax\.org|githubusercontent\.com|mybinder\.org)""",
    re.IGNORECASE | re.VERBOSE,
)


def in_page(soup: BeautifulSoup) -> list[str]:
    """Elements of one page that make a browser ask another host."""
    found = []
    for tag in soup.find_all(True):
        for attribute, value in tag.attrs.items():
            text = " ".join(value) if isinstance(value, list) else value
            if _fetches(tag, attribute) and any(OTHER_HOST.match(part) for part in text.split(",")):
                found.append(f'<{tag.name} {attribute}="{text}"> asks another host')
            if attribute == "style":
                found += [f"<{tag.name} style> asks {address}" for address in CSS_REQUEST.findall(text)]
        if tag.name == "style":
            found += [f"<style> asks {address}" for address in CSS_REQUEST.findall(tag.get_text())]
        if tag.name == "script" and not tag.get("src"):
            found += [f"a script in the page names {address}" for address in _addresses(tag.get_text())]
        if tag.name == "meta" and (tag.get("http-equiv") or "").lower() == "refresh":
            target = (tag.get("content") or "").partition("url=")[2]
            found += [f"<meta refresh> leads to {target}"] if OTHER_HOST.match(target) else []
    return found


def in_files(pages: Path, soups: dict[str, BeautifulSoup]) -> list[str]:
    """Style sheets of the site, and scripts that its pages load, that name files of another host."""
    found = []
    for sheet in sorted(pages.rglob("*.css")):
        text = sheet.read_text(encoding="utf8", errors="replace")
        name = sheet.relative_to(pages).as_posix()
        found += [f"{name}: asks {address}" for address in CSS_REQUEST.findall(text)]
    for name, users in sorted(_loaded_scripts(pages, soups).items()):
        if name.startswith(MATHJAX):
            continue
        for match in FILE_HOSTS.finditer((pages / name).read_text(encoding="utf8", errors="replace")):
            found.append(f"{users[0]}: its script {name} names {match.group()[1:]}")
    return found


def _loaded_scripts(pages: Path, soups: dict[str, BeautifulSoup]) -> dict[str, list[str]]:
    loaded: dict[str, list[str]] = {}
    for page, soup in soups.items():
        for tag in soup.find_all("script", src=True):
            source = tag["src"].split("?")[0]
            path = (pages / source.lstrip("/")) if source.startswith("/") else (pages / page).parent / source
            if not OTHER_HOST.match(tag["src"]) and path.is_file():
                loaded.setdefault(path.resolve().relative_to(pages.resolve()).as_posix(), []).append(page)
    return loaded


def _fetches(tag, attribute: str) -> bool:
    if attribute == "href" and tag.name == "link":
        return bool(FETCHING_RELATIONS & {relation.lower() for relation in tag.get("rel") or []})
    if attribute not in FETCHED:
        return False
    elements = FETCHED[attribute]
    return elements is None or tag.name in elements


def _addresses(code: str) -> list[str]:
    return [address for address in CODE_ADDRESS.findall(code) if not address.startswith(NAMESPACES)]
