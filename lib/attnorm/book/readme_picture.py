"""Copy the figure of the landing page into the picture of the README, after `make book`.

Run as ``python -m attnorm.book.readme_picture`` in the folder of the book.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path

from attnorm.book.site import Book

PICTURE = "chapters/_static/six-schemes.png"


def copy_picture(book: Book) -> Path:
    """Write the first picture that the landing page computed; return where it is.

    Raises
    ------
    ValueError
        If the landing page was not built, or shows no picture.
    """
    notebook = book.work / "jupyter_execute" / f"{book.documents()[0]}.ipynb"
    if not notebook.is_file():
        raise ValueError("the landing page is not built: run `make book` first")
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        for output in cell.get("outputs", ()):
            if "image/png" in output.get("data", {}):
                target = book.root / PICTURE
                target.write_bytes(base64.b64decode(output["data"]["image/png"]))
                return target
    raise ValueError("the landing page shows no picture")


if __name__ == "__main__":
    print(copy_picture(Book(Path.cwd())))
