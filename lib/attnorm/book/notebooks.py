"""The chapters as .ipynb files, for Jupyter and for Colab."""

from __future__ import annotations

from pathlib import Path

from attnorm.book.execute import read_notebook
from attnorm.book.site import Book


def write_notebooks(root: Path | str) -> list[Path]:
    """Write every chapter, without outputs, to _build/notebooks; return the files."""
    import jupytext

    book = Book(Path(root))
    written = []
    for document in book.documents():
        source = book.source(document)
        if read_notebook(source) is None:  # a page without cells
            continue
        target = book.build / "notebooks" / f"{document}.ipynb"
        target.parent.mkdir(parents=True, exist_ok=True)
        jupytext.write(jupytext.read(source), target)
        written.append(target)
    return written
