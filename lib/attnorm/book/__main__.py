"""The commands behind `make book`, `make chapter`, `make serve` and their like."""

from __future__ import annotations

import argparse
import functools
import http.server
import shutil
import signal
import sys
from pathlib import Path

from attnorm.book.build import BuildError, build, build_chapter
from attnorm.book.notebooks import write_notebooks
from attnorm.book.site import Book


def main(arguments: list[str] | None = None) -> int:
    # Being told to stop is like Ctrl-C, which ends the kernels of the chapters first.
    signal.signal(signal.SIGTERM, _stop)
    given = _parser().parse_args(arguments)
    try:
        given.command(given)
    except (BuildError, ValueError) as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped; nothing was published", file=sys.stderr)
        return 130
    return 0


def _stop(*_):
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m attnorm.book", description=__doc__)
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="folder of the book (default: here)")
    commands = parser.add_subparsers(required=True, metavar="command")
    for name, function, about in (
        ("build", _build, "execute what changed, render strictly, inspect, publish"),
        ("chapter", _chapter, "execute and render one chapter beside the book"),
        ("serve", _serve, "serve the published pages on this machine"),
        ("notebooks", _notebooks, "write the chapters as .ipynb"),
        ("screenshots", _screenshots, "take pictures of every page"),
        ("clean", _clean, "remove everything that was built"),
    ):
        command = commands.add_parser(name, help=about)
        command.set_defaults(command=function)
        if name == "chapter":
            command.add_argument("wanted", help="chapter number or file stem, as 9 or 09-distance")
        if name == "serve":
            command.add_argument("--port", type=int, default=8000)
    return parser


def _build(given):
    page = build(given.root)
    print(f"\nThe book is built. Its first page:\n  {page}")


def _chapter(given):
    print(f"\nThe chapter is built:\n  {build_chapter(given.root, given.wanted)}")


def _serve(given):
    book = Book(given.root)
    if not book.html.is_dir():
        raise BuildError("there are no pages yet: run `make book` first")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=book.html)
    with http.server.ThreadingHTTPServer(("127.0.0.1", given.port), handler) as server:
        print(f"http://127.0.0.1:{given.port}/  (Ctrl-C stops)")
        server.serve_forever()


def _notebooks(given):
    for path in write_notebooks(given.root):
        print(path)


def _screenshots(given):
    from attnorm.book.screenshots import take  # needs playwright, which only developers have

    print(f"pictures are in {take(given.root)}")


def _clean(given):
    shutil.rmtree(Book(given.root).build, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
