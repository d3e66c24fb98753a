"""A book of a few lines that goes through the same build as the real one, for planting faults in."""

from __future__ import annotations

import shutil
from pathlib import Path

import yaml

REPOSITORY = Path(__file__).resolve().parents[1]

HEADER = """---
jupytext:
  text_representation: {extension: .md, format_name: myst}
kernelspec: {display_name: Python 3, language: python, name: python3}
---
"""


def cell(code: str, options: str = "") -> str:
    """A code cell, with metadata in YAML if any."""
    front = f"---\n{options}\n---\n" if options else ""
    return f"```{{code-cell}} ipython3\n{front}{code}\n```\n"


FIGURE = cell(
    "import matplotlib.pyplot as plt\nplt.figure(figsize=(1, 1))\nplt.plot([0, 1]);",
    'mystnb:\n  image: {alt: "a rising line"}',
)
PROBE = cell("import probe\nprint('probe says', probe.VALUE)")


def make_book(root: Path, pages: dict[str, str], *, timeout: int = 60) -> Path:
    """Write a book with the configuration of the real one, a library `probe`, and the given pages.

    Pages lie in chapters/. The page "index" comes first, and an empty one last, since the theme cannot draw
    the navigation of a single page. A page without header has no cells.
    """
    config = yaml.safe_load((REPOSITORY / "_config.yml").read_text(encoding="utf8"))
    config["execute"]["timeout"] = timeout
    pages = {**pages, "end": "# End\n"}
    names = [f"chapters/{name}" for name in sorted(pages, key=lambda name: (name != "index", name == "end"))]
    toc = {"format": "jb-book", "root": names[0], "chapters": [{"file": name} for name in names[1:]]}
    for folder in (root / "lib", root / "chapters"):
        folder.mkdir(parents=True, exist_ok=True)
    (root / "_config.yml").write_text(yaml.safe_dump(config), encoding="utf8")
    (root / "_toc.yml").write_text(yaml.safe_dump(toc), encoding="utf8")
    (root / "lib" / "probe.py").write_text("VALUE = 1\n", encoding="utf8")
    (root / "chapters" / "references.bib").write_text("", encoding="utf8")
    for name, text in pages.items():
        page_of(root, name).write_text(text, encoding="utf8")
    shutil.copytree(REPOSITORY / "chapters" / "_static", root / "chapters" / "_static", dirs_exist_ok=True)
    return root


def page_of(root: Path, name: str) -> Path:
    """Source of a page."""
    return root / "chapters" / f"{name}.md"
