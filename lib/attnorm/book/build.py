"""From sources to published pages: execute, render strictly, inspect, publish as a whole."""

from __future__ import annotations

import json
import os
import platform
import shutil
import time
import warnings
from pathlib import Path

from filelock import FileLock, Timeout

from attnorm.book import gates
from attnorm.book.execute import cache_folder, execute, timings
from attnorm.book.fingerprint import execution_key, installed_versions, sources_key
from attnorm.book.site import Book


class BuildError(Exception):
    """The book was not published; the message says why, one fault a line."""


def build(root: Path | str, *, say=print) -> Path:
    """Build and publish the book; return its first page.

    Raises
    ------
    BuildError
        If another build is running, a chapter fails, Sphinx warns, or a gate finds a fault.
        What was published before stays as it is.
    """
    book = Book(Path(root))
    with _only_build(book):
        start = time.perf_counter()
        key = execution_key(book.root)
        sources = sources_key(book.root, key)
        if _published_sources(book) == sources:
            say("nothing changed since the last build, which passed every gate")
            return first_page(book)
        _stop_on([str(failure) for failure in execute(book, key, say=say)], "chapters failed")
        pages = render(book, key)
        _write_record(book, pages, sources, time.perf_counter() - start)
        _stop_on(gates.inspect(pages, book.work / "jupyter_execute"), "faults in the built pages", book)
        _publish(book, pages)
    return first_page(book)


def build_chapter(root: Path | str, wanted: str, *, say=print) -> Path:
    """Execute and render one chapter beside the book, in seconds; return its page.

    References to other pages stay open here, so only what the page itself contains is inspected.

    Raises
    ------
    BuildError
        If the chapter fails, or a gate finds a fault in its page.
    ValueError
        If no page or several pages fit `wanted`.
    """
    book = Book(Path(root))
    document = book.document(wanted)
    with _only_build(book):
        key = execution_key(book.root)
        _stop_on([str(failure) for failure in execute(book, key, [document], say=say)], "chapter failed")
        pages = render(book, key, only=document)
        page = pages / f"{document}.html"
        if not page.is_file():
            raise BuildError(f"{document} was not rendered; the messages of Sphinx above say why")
        _stop_on(
            gates.inspect(pages, pages.parent / "jupyter_execute", [document]), "faults in the built page"
        )
    return page


def first_page(book: Book) -> Path:
    return book.html / f"{book.documents()[0]}.html"


def render(book: Book, key: str, *, only: str | None = None) -> Path:
    """Run Sphinx through Jupyter Book; return the folder of pages.

    Pages are always written into an empty folder and all written anew, because a page that did not change
    may still refer to one that did. What Sphinx has read is kept only from a build without warnings: it
    would not repeat the warnings of a page that it does not read again.
    """
    from jupyter_book.sphinx import build_sphinx

    work = book.work if only is None else book.build / "chapter"
    pages, doctrees, unfinished = work / "html", work / "doctrees", work / "unfinished"
    if unfinished.exists() or only is not None:
        shutil.rmtree(work, ignore_errors=True)
    shutil.rmtree(pages, ignore_errors=True)
    work.mkdir(parents=True, exist_ok=True)
    unfinished.touch()
    settings = {
        "latex_individualpages": False,
        "nb_execution_cache_path": str(cache_folder(book, key)),
        "nitpicky": only is None,
    }
    toc = book.root / "_toc.yml"
    if only is not None:
        # The theme cannot draw the navigation of a single page: another one keeps it company, unexecuted.
        other = next(document for document in book.documents() if document != only)
        toc = work / "_toc.yml"
        toc.write_text(f"format: jb-book\nroot: {only}\nchapters:\n- file: {other}\n", encoding="utf8")
        settings["nb_execution_excludepatterns"] = [f"{other}.*"]
        settings["suppress_warnings"] = ["ref", "myst.xref_missing", "bibtex", "toc", "myst.domains"]
    settings["external_toc_path"] = str(toc)
    # The table of contents looks through all objects in memory, and so wakes torch's deprecated names.
    warnings.filterwarnings("ignore", category=FutureWarning, module="sphinx_external_toc")
    result = build_sphinx(
        str(book.root),
        str(pages),
        noconfig=True,
        path_config=str(book.root / "_config.yml"),
        confoverrides=settings,
        doctreedir=str(doctrees),
        force_all=True,
        warningiserror=only is None,
        keep_going=True,
        quiet=True,
    )
    if isinstance(result, KeyboardInterrupt):
        raise result
    if isinstance(result, BaseException) or result:
        raise BuildError("Sphinx found faults, printed above; nothing was published")
    if only is not None:
        unfinished.unlink()
    return pages


def _only_build(book: Book):
    book.build.mkdir(exist_ok=True)
    lock = FileLock(book.build / "lock", timeout=0)
    try:
        return lock.acquire()
    except Timeout:
        raise BuildError(f"another build of {book.root} is running; wait for it to end") from None


def _stop_on(faults: list[str], what: str, book: Book | None = None) -> None:
    if faults:
        raise BuildError("\n".join([f"{len(faults)} {what}; nothing was published", *faults]))


def _published_sources(book: Book) -> str | None:
    """Key of the sources of the published pages."""
    record = book.html / "build.json"
    return json.loads(record.read_text(encoding="utf8")).get("sources") if record.is_file() else None


def _write_record(book: Book, pages: Path, sources: str, total: float) -> None:
    record = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "sources": sources,
        "versions": dict(line.split("==", 1) for line in installed_versions()),
        "chapter_seconds": timings(book.root),
        "total_seconds": round(total, 1),
    }
    (pages / "build.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf8")


def _publish(book: Book, pages: Path) -> None:
    """Put the new pages in the place of the old ones: two renames, so that no reader sees half a book."""
    old = book.build / "html.old"
    shutil.rmtree(old, ignore_errors=True)
    if book.html.exists():
        book.html.rename(old)
    pages.rename(book.html)
    (book.work / "unfinished").unlink()
    shutil.rmtree(old, ignore_errors=True)
