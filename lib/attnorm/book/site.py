"""Where a book keeps its sources, its work and its published pages."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml


@dataclass(frozen=True)
class Book:
    """Folders of the book whose sources lie in `root` (the folder with _config.yml and _toc.yml).

    Raises
    ------
    ValueError
        If `root` has no _config.yml or no _toc.yml.
    """

    root: Path

    def __post_init__(self):
        object.__setattr__(self, "root", Path(self.root).resolve())
        for name in ("_config.yml", "_toc.yml"):
            if not (self.root / name).is_file():
                raise ValueError(f"no book in {self.root}: {name} is missing there")

    @property
    def build(self) -> Path:
        return self.root / "_build"

    @property
    def html(self) -> Path:
        """The published pages: replaced as a whole, and only by a build that passed every gate."""
        return self.build / "html"

    @property
    def work(self) -> Path:
        return self.build / "work"

    @property
    def caches(self) -> Path:
        return self.build / "executed"

    def config(self) -> dict:
        return yaml.safe_load((self.root / "_config.yml").read_text(encoding="utf8"))

    def documents(self) -> list[str]:
        """Names of the pages in reading order, without suffix."""
        toc = yaml.safe_load((self.root / "_toc.yml").read_text(encoding="utf8"))
        return list(_files(toc))

    def source(self, document: str) -> Path:
        """The file of a page.

        Raises
        ------
        ValueError
            If the page is in the table of contents but no source file has its name.
        """
        for suffix in (".md", ".ipynb", ".rst"):
            path = self.root / (document + suffix)
            if path.is_file():
                return path
        raise ValueError(f"_toc.yml names {document}, but there is no {document}.md in {self.root}")

    def document(self, wanted: str) -> str:
        """The page that a reader means by `wanted`: its number, file stem or path.

        Raises
        ------
        ValueError
            If no page or more than one page fits.
        """
        name = wanted.removesuffix(".md").strip("/")
        found = [d for d in self.documents() if _names(d, name)]
        if len(found) != 1:
            options = ", ".join(d.rsplit("/", 1)[-1] for d in self.documents())
            raise ValueError(
                f"C={wanted} fits {len(found)} pages; give a chapter number or one of: {options}"
            )
        return found[0]


def _files(node):
    if isinstance(node, dict):
        for key in ("root", "file"):
            if key in node:
                yield node[key].removesuffix(".md")
        for key in ("parts", "chapters", "sections"):
            yield from _files(node.get(key, []))
    elif isinstance(node, list):
        for child in node:
            yield from _files(child)


def _names(document: str, name: str) -> bool:
    stem = document.rsplit("/", 1)[-1]
    number = stem.split("-", 1)[0]
    same_number = name.isdigit() and number.isdigit() and int(name) == int(number)
    return same_number or name in (stem, document)
