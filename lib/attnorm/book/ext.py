"""Sphinx extension of the book: what the pages need besides what Jupyter Book brings."""

from __future__ import annotations

import shutil
from pathlib import Path

from attnorm.book import register

NOTEBOOKS = "notebooks"  # folder of the executed chapters beside the pages


def setup(app):
    register.setup(app)
    app.connect("builder-inited", _always_load_mathjax)
    app.connect("html-page-context", _offer_notebook, priority=900)  # after the theme has made its buttons
    app.connect("build-finished", _publish_notebooks)
    app.connect("build-finished", _one_search_field)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}


def _always_load_mathjax(app):
    """Formulas in the HTML of a cell's output are invisible to Sphinx, which would leave MathJax out."""
    app.set_html_assets_policy("always")


def _executed(app, docname: str) -> Path:
    return Path(app.env.mystnb_config.output_folder, f"{docname}.ipynb")


def _is_notebook(app, docname: str) -> bool:
    return "kernelspec" in app.env.metadata.get(docname, {}) and _executed(app, docname).is_file()


def _offer_notebook(app, pagename, templatename, context, doctree):
    """Link the executed notebook; a launch button would open the text source, which no server runs."""
    if doctree is not None and _is_notebook(app, pagename):
        context.setdefault("header_buttons", []).append(
            {
                "type": "link",
                "url": context["pathto"](f"{NOTEBOOKS}/{pagename}.ipynb", 1),
                "icon": "fas fa-download",
                "tooltip": "Download this chapter as a notebook",
                "label": "download-notebook-button",
            }
        )


def _publish_notebooks(app, exception):
    if exception is not None or app.builder.format != "html":
        return
    for docname in sorted(app.env.found_docs):
        if _is_notebook(app, docname):
            target = Path(app.outdir, NOTEBOOKS, f"{docname}.ipynb")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(_executed(app, docname), target)


def _one_search_field(app, exception):
    """The theme puts its search field twice on the search page, both with the same id."""
    page = Path(app.outdir, "search.html")
    if exception is None and page.is_file():
        before, field, after = page.read_text(encoding="utf8").partition('id="search-input"')
        after = after.replace('id="search-input"', 'id="search-page-input"')
        page.write_text(before + field + after, encoding="utf8")
