"""``{chapter-times}``: how long each chapter took when it was last executed, as a table.

The times are those of the build, so they cannot come out of a cell: cells are executed before they are known,
and come from the cache when nothing changed.
"""

from __future__ import annotations

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from attnorm.book.execute import timings
from attnorm.book.register_pages import table


class TimesPlaceholder(nodes.General, nodes.Element):
    """Stands in the page until the pages are written."""


class _ChapterTimes(SphinxDirective):
    def run(self):
        self.env.metadata[self.env.docname]["chapter_times"] = True
        return [TimesPlaceholder()]


def _pages(app, env):
    return [page for page in env.found_docs if env.metadata[page].get("chapter_times")]


def _fill(app, doctree, docname):
    for placeholder in list(doctree.findall(TimesPlaceholder)):
        seconds = timings(app.srcdir)
        titles = app.env.titles
        rows = [
            (titles[page].astext() if page in titles else page, f"{time:.1f} s")
            for page, time in seconds.items()
        ]
        rows.append(("All of them, one after the other", f"{sum(seconds.values()):.1f} s"))
        cells = [[nodes.Text(text) for text in row] for row in rows]
        placeholder.replace_self(table(("Page", "Time to execute"), (70, 30), cells))


def setup(app):
    """Register the directive with Sphinx."""
    app.add_node(TimesPlaceholder)
    app.add_directive("chapter-times", _ChapterTimes)
    app.connect("env-updated", _pages)
    app.connect("doctree-resolved", _fill)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
