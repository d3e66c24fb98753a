"""The claims register as data: what the executed chapters recorded, set against what claims.toml declares."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from attnorm.evidence import MIME_TYPE, Evidence
from attnorm.statements import Statement

#: What a reader calls each kind, one and many.
KIND_NAMES = {
    "symbolic": ("identity", "identities"),
    "numeric": ("check", "checks"),
    "control": ("control", "controls"),
    "model": ("measurement", "measurements"),
}

_UNSEEN = {"remove-output", "remove_output", "remove-cell", "remove_cell"}


@dataclass(frozen=True)
class Entry:
    """Evidence and the page that shows it; `visible` is False where the page drops its output."""

    page: str
    evidence: Evidence
    visible: bool = True


def collect(notebooks: Mapping[str, Path]) -> list[Entry]:
    """Read the evidence out of executed notebooks.

    Parameters
    ----------
    notebooks : mapping of page name to path of an .ipynb file
        Pages are read in the order given, cells from top to bottom.
    """
    entries = []
    for page, path in notebooks.items():
        for cell in json.loads(Path(path).read_text(encoding="utf-8"))["cells"]:
            visible = not _UNSEEN & set(cell["metadata"].get("tags", ()))
            for output in cell.get("outputs", ()):
                record = output.get("metadata", {}).get(MIME_TYPE)
                if record is not None:
                    entries.append(Entry(page, Evidence.from_record(record), visible))
    return entries


def faults(statements: Iterable[Statement], entries: Iterable[Entry], *, complete: bool = True) -> list[str]:
    """Say what is wrong with the register, one sentence each; an empty list if nothing is.

    Parameters
    ----------
    complete : bool
        False when only some pages were built: then missing evidence is no fault.
    """
    statements, entries = list(statements), list(entries)
    declared = {statement.id for statement in statements}
    found, anchors = [], set()
    for entry in entries:
        evidence = entry.evidence
        where = f"{entry.page}: evidence {evidence.name!r} for {evidence.claim}"
        if evidence.claim not in declared:
            found.append(f"{where}: no such claim in claims.toml")
        if evidence.passed is not True:
            found.append(f"{where} did not pass: {evidence.finding()}")
        if evidence.anchor in anchors:
            found.append(f"{where}: the name is used twice")
        if not entry.visible:
            found.append(f"{where} is in a cell whose output is removed from the page")
        anchors.add(evidence.anchor)
    if complete:
        for statement in statements:
            kinds = {e.evidence.kind for e in entries if e.evidence.claim == statement.id}
            lacking = ", ".join(_lacking(statement, kinds))
            if lacking:
                found.append(f"claim {statement.id} lacks {lacking} ({statement.chapter})")
    return found


def _lacking(statement: Statement, kinds: set[str]) -> Iterable[str]:
    if not kinds:
        yield "evidence of any kind"
        return
    # A refuted statement is settled by a counterexample; there is nothing to derive.
    if statement.theorem and statement.verdict != "refuted" and "symbolic" not in kinds:
        yield "a derivation"
    if not kinds & {"numeric", "model"}:
        yield "a check"
    if "control" not in kinds:
        yield "a control"


def to_json(statements: Iterable[Statement], entries: Iterable[Entry], link: Callable[[str], str]) -> str:
    """The text of claims.json: claims in the order of claims.toml, evidence in the order of the pages.

    It holds no times and no paths, so that two builds of the same state give the same bytes.

    Parameters
    ----------
    link : callable
        Turns a page name into its address seen from the root of the site.
    """
    evidence: dict[str, list] = {}
    for entry in entries:
        record = entry.evidence.record()
        kept = ("kind", "name", "measured", "expected", "tolerance", "passed")
        evidence.setdefault(entry.evidence.claim, []).append(
            {key: record[key] for key in kept}
            | {"page": f"{link(entry.page)}#{record['anchor']}", "model": record["model"]}
        )
    claims = [
        {key: getattr(statement, key) for key in ("id", "paper", "label", "title", "printed", "verdict")}
        | {"evidence": evidence.get(statement.id, [])}
        for statement in statements
    ]
    return json.dumps(claims, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def tally(entries: Iterable[Entry]) -> dict[str, int]:
    """How many pieces of evidence there are of each kind, in the order of `KIND_NAMES`; none is left out."""
    kinds = [entry.evidence.kind for entry in entries]
    return {kind: kinds.count(kind) for kind in KIND_NAMES if kind in kinds}


def count(number: int, kind: str) -> str:
    """A number with the name of a kind, such as "2 identities"."""
    return f"{number} {KIND_NAMES[kind][number != 1]}"
