"""Build the book: execute chapters, run Sphinx strictly, inspect the built pages, publish.

Run as ``python -m attnorm.book build|chapter|serve|clean|notebooks|screenshots``.
`timings` says how long each chapter took to execute, for the reproducibility page.
"""

from attnorm.book.execute import timings

__all__ = ["timings"]
