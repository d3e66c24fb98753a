"""Sphinx extension of the book: what the pages need besides what Jupyter Book brings."""

from __future__ import annotations

import importlib
import importlib.util


def setup(app):
    if importlib.util.find_spec("attnorm.book.register") is not None:
        importlib.import_module("attnorm.book.register").setup(app)
    app.connect("builder-inited", _always_load_mathjax)
    app.connect("html-page-context", _leave_out_foreign_scripts, priority=900)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}


def _always_load_mathjax(app):
    """Formulas in the HTML of a cell's output are invisible to Sphinx, which would leave MathJax out."""
    app.set_html_assets_policy("always")


def _leave_out_foreign_scripts(app, pagename, templatename, context, doctree):
    """sphinx-thebe names a script on another host on every page; nothing here uses it."""
    context["script_files"] = [js for js in context["script_files"] if "thebe" not in _told(js)]


def _told(script) -> str:
    return f"{getattr(script, 'filename', script)} {getattr(script, 'attributes', {}).get('body', '')}".lower()
