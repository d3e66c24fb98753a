"""Small faults of the theme's templates, mended in the written pages."""

from __future__ import annotations

import re
from pathlib import Path

# A browser refuses them where pages are opened from the file system; the style sheet loads the fonts anyway.
FONT_PRELOADS = re.compile(r'<link rel="preload" as="font"[^>]*>\s*')
# Deprecated in the accessibility standard; the entries stand in an element of role list.
BIBLIOGRAPHY_ENTRY = 'role="doc-biblioentry"'
SEARCH_FIELD = 'id="search-input"'


def mend(app, exception):
    """Mend every page of a finished build; a handler for Sphinx."""
    if exception is not None or app.builder.format != "html":
        return
    for page in Path(app.outdir).rglob("*.html"):
        text = page.read_text(encoding="utf8")
        mended = one_search_field(FONT_PRELOADS.sub("", text)).replace(BIBLIOGRAPHY_ENTRY, 'role="listitem"')
        if mended != text:
            page.write_text(mended, encoding="utf8")


def one_search_field(text: str) -> str:
    """The search page has the field twice, with one id.

    >>> one_search_field('<input id="search-input"><input id="search-input">')
    '<input id="search-input"><input id="search-page-input">'
    """
    before, field, after = text.partition(SEARCH_FIELD)
    return before + field + after.replace(SEARCH_FIELD, 'id="search-page-input"')
