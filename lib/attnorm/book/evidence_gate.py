"""Errors and failed claims in the executed notebooks, also in cells whose output the page hides."""

from __future__ import annotations

import json
from pathlib import Path

from attnorm.evidence import MIME_TYPE

# A cell may raise to show what bad input gives, if it says so; a failed claim is never shown on purpose.
MEANT = "raises-exception"


def faults(notebooks: Path, documents: list[str] | None = None) -> list[str]:
    """Faults of the executed notebooks in a folder, as ``page: fault``.

    Parameters
    ----------
    documents : list of str, optional
        Pages to look at; every notebook in the folder if not given.
    """
    names = documents
    if names is None:
        names = sorted(
            p.relative_to(notebooks).with_suffix("").as_posix() for p in notebooks.rglob("*.ipynb")
        )
    found = []
    for name in names:
        path = notebooks / f"{name}.ipynb"
        if path.is_file():
            cells = json.loads(path.read_text(encoding="utf8"))["cells"]
            found += [f"{name}.html: {fault}" for cell in cells for fault in _faults_of(cell)]
    return found


def _faults_of(cell: dict) -> list[str]:
    found = []
    meant = MEANT in cell["metadata"].get("tags", [])
    for output in cell.get("outputs", []):
        if output["output_type"] == "error" and (not meant or output["ename"] == "ClaimFailed"):
            found.append(f"a cell raised {output['ename']}: {output['evalue']}")
        record = output.get("metadata", {}).get(MIME_TYPE) or output.get("data", {}).get(MIME_TYPE)
        if record is not None and record.get("passed") is not True:
            found.append(f"evidence {record.get('name')!r} for {record.get('claim')} did not pass")
    return found
