"""Sphinx extension of the book: what the pages need besides what Jupyter Book brings."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import nbformat
from docutils import nodes
from jupyter_cache import get_cache

from attnorm.book import register, theme_fixes
from attnorm.book.execute import read_notebook

NOTEBOOKS = "notebooks"  # folder of the executed chapters beside the pages


def setup(app):
    # Before the register (priority 500) reads the evidence out of the notebooks.
    app.connect("env-updated", _write_executed_notebooks, priority=100)
    register.setup(app)
    app.connect("builder-inited", _always_load_mathjax)
    app.connect("doctree-read", _name_exercise_bodies)
    app.connect("html-page-context", _offer_notebook, priority=900)  # after the theme has made its buttons
    app.connect("build-finished", _publish_notebooks)
    app.connect("build-finished", theme_fixes.mend)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}


def _always_load_mathjax(app):
    """Formulas in the HTML of a cell's output are invisible to Sphinx, which would leave MathJax out."""
    app.set_html_assets_policy("always")


def _name_exercise_bodies(app, doctree):
    """sphinx-exercise gives the body of every exercise on a page one and the same id."""
    for body in doctree.findall(nodes.section):
        if (
            body["ids"] in (["exercise-content"], ["solution-content"], ["proof-content"])
            and body.parent["ids"]
        ):
            body["ids"] = [f"{body.parent['ids'][0]}-content"]


def _write_executed_notebooks(app, env):
    """Write notebooks with their outputs: myst-nb leaves out those that come from the cache."""
    config = env.mystnb_config
    if config.execution_mode != "cache":
        return
    cache = get_cache(config.execution_cache_path)
    for docname in sorted(env.found_docs):
        notebook = read_notebook(Path(env.doc2path(docname)))
        if notebook is not None and _executed(app, docname).is_file():
            # A page that was left unexecuted on purpose is not in the cache.
            with contextlib.suppress(KeyError):
                _, notebook = cache.merge_match_into_notebook(notebook)
                nbformat.write(notebook, _executed(app, docname))


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
