"""The statements that the book examines, as written in ``claims.toml``."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields

VERDICTS = ("holds", "corrected", "refuted", "measured")


@dataclass(frozen=True)
class Statement:
    """One entry of ``claims.toml``.

    Attributes
    ----------
    id : str
        Name in the register, for example ``T4.1-pre-ln-terminal``.
    paper : str
        arXiv number, or ``this book``.
    label, title : str
        Where it stands in the paper, and what it says in a few words.
    printed : str
        The statement as printed, in LaTeX and in the book's own notation.
    verdict : str
        ``holds``, ``corrected`` (true after the change in `corrected`), ``refuted`` or ``measured``.
    theorem : bool
        Whether it needs a derivation.
    chapter : str
        The page that gives the evidence.
    corrected : str
        The version that holds, in LaTeX, where the printed one does not.
    """

    id: str
    paper: str
    label: str
    title: str
    printed: str
    verdict: str
    theorem: bool
    chapter: str
    corrected: str = ""

    def __post_init__(self):
        if self.verdict not in VERDICTS:
            raise ValueError(f"{self.id}: verdict must be one of {', '.join(VERDICTS)}, got {self.verdict!r}")
        if (self.verdict in ("corrected", "refuted")) != bool(self.corrected):
            raise ValueError(f"{self.id}: 'corrected' is given exactly for corrected and refuted statements")
        if not isinstance(self.theorem, bool):
            raise ValueError(f"{self.id}: theorem must be true or false, got {self.theorem!r}")


def read_statements(toml: str) -> tuple[list[Statement], dict[str, dict]]:
    """Read the text of a file in the form of ``claims.toml``: the statements, and the papers.

    Raises
    ------
    ValueError
        If a key is missing or unknown, an id occurs twice, or a verdict or paper is not one of those allowed.
    """
    tables = tomllib.loads(toml)
    papers = tables.get("papers", {})
    known = {f.name for f in fields(Statement)}
    statements: dict[str, Statement] = {}
    for entry in tables.get("claim", []):
        unknown = set(entry) - known
        if unknown:
            raise ValueError(
                f"claim {entry.get('id')!r} has unknown keys {sorted(unknown)}; known: {sorted(known)}"
            )
        try:
            statement = Statement(**entry)
        except TypeError as error:
            raise ValueError(f"claim {entry.get('id')!r} is not complete: {error}") from error
        if statement.paper not in papers:
            raise ValueError(f"{statement.id}: paper {statement.paper!r} is not one of {sorted(papers)}")
        if statement.id in statements:
            raise ValueError(f"claim {statement.id!r} is declared twice")
        statements[statement.id] = statement
    return list(statements.values()), papers
