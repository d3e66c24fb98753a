"""One piece of evidence for a claim, and the single line that shows it.

The same record serves the reader (a line in the page), the terminal (plain text) and the claims register
(a JSON-safe dictionary kept in the metadata of the cell output).
"""

from __future__ import annotations

import math
import re
import unicodedata
from dataclasses import asdict, dataclass, fields
from html import escape

from attnorm import kernel

#: The key under which a cell output carries its record.
MIME_TYPE = "application/vnd.attnorm.evidence+json"

_KINDS = {
    "symbolic": "identity",
    "numeric": "check",
    "control": "control",
    "model": "measurement",
}


def slug(name: str) -> str:
    """Turn a name into the part of an HTML id: lower case letters, digits and single hyphens.

    Raises
    ------
    ValueError
        If no letter or digit is left.

    Examples
    --------
    >>> slug("n-particle flow, n = 64, beta = 2")
    'n-particle-flow-n-64-beta-2'
    """
    ascii_name = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    words = re.findall(r"[a-z0-9]+", ascii_name.lower())
    if not words:
        raise ValueError(f"a name needs at least one ASCII letter or digit, got {name!r}")
    return "-".join(words)


@dataclass(frozen=True)
class Evidence:
    """What one call of a verb found.

    Attributes
    ----------
    claim, kind, name : str
        Claim id; one of ``symbolic``, ``numeric``, ``control``, ``model``; a name unique within the claim.
    measured, expected : float, str or None
        The two sides that were compared. Expressions and bounds are strings.
    tolerance : float or None
        Largest deviation allowed at the entry shown.
    passed : bool
    detail : str
        One clause for the reader: which entry is shown, how many points were tried, why it failed.
    model, text : str or None
        The network and the corpus that the number was measured on.
    unit : str
    """

    claim: str
    kind: str
    name: str
    measured: float | str | None
    expected: float | str | None
    tolerance: float | None
    passed: bool
    detail: str = ""
    model: str | None = None
    text: str | None = None
    unit: str = ""

    @property
    def anchor(self) -> str:
        """The HTML id of the line, ``evidence-<claim>-<slug of the name>``."""
        return f"evidence-{self.claim}-{slug(self.name)}"

    def record(self) -> dict:
        """The JSON-safe form: non-finite numbers become strings, since JSON has none."""
        record = {key: _json_safe(value) for key, value in asdict(self).items()}
        return record | {"anchor": self.anchor}

    @classmethod
    def from_record(cls, record: dict) -> Evidence:
        """Rebuild the evidence from its JSON-safe form."""
        return cls(**{f.name: record[f.name] for f in fields(cls)})

    def plain(self) -> str:
        """One line for a terminal."""
        mark, word = ("✓", "passed") if self.passed else ("✗", "FAILED")
        return f"{mark} {word} [{self.claim}] {_KINDS[self.kind]} {self.name}: {self.finding()}"

    def html(self) -> str:
        """One line for a page. Colour is a second cue only: the mark and the word carry the result."""
        mark, word = ("✓", "passed") if self.passed else ("✗", "failed")
        edge = "#009E73" if self.passed else "#D55E00"
        # Inline style, since Jupyter and Colab know nothing of the book's style sheet. Text takes the colour
        # of its surroundings, so that it reads in light and in dark mode.
        return (
            f'<div class="attnorm-evidence attnorm-{word}" id="{escape(self.anchor)}" '
            f'style="border-left:0.3rem solid {edge};padding:0.1rem 0.6rem;margin:0.2rem 0;'
            f'overflow-wrap:anywhere;font-size:0.9em">'
            f'<span aria-hidden="true">{mark}</span> <strong>{word}</strong> '
            f"{_KINDS[self.kind]} <em>{escape(self.name)}</em>: {escape(self.finding())} "
            f"<code>{escape(self.claim)}</code></div>"
        )

    def show(self, publish: bool = True) -> None:
        """Show the line: as rich output in a kernel, on stdout elsewhere.

        ``publish=False`` leaves the record out, so that the claims register does not see it.
        """
        if kernel.shell() is None:
            print(self.plain())
            return
        from IPython.display import display

        # The record rides in the metadata, not in the data: a document builder that meets an unknown data
        # type warns about it, and metadata survives jupyter-cache unchanged.
        metadata = {MIME_TYPE: self.record()} if publish else {}
        display({"text/html": self.html(), "text/plain": self.plain()}, raw=True, metadata=metadata)

    def finding(self) -> str:
        """What was found, without saying whether it passed."""
        source = ", ".join(part for part in (self.model, self.text) if part)
        told = "; ".join(part for part in (self._comparison(), self.detail) if part)
        return told + (f" ({source})" if source else "")

    def _comparison(self) -> str:
        value = f"{_short(self.measured)}{' ' + self.unit if self.unit else ''}"
        if self.kind == "model":
            return value
        if isinstance(self.measured, str):  # expressions
            if max(len(self.measured), len(str(self.expected))) > 60:
                return ""  # too long to read here; the cell shows them
            shown = "=" if self.kind == "symbolic" else "≠"
            return f"{self.measured} {shown if self.passed else '≟'} {self.expected}"
        if self.measured is None:
            return ""  # nothing could be compared; the detail says why
        tolerance = "" if self.tolerance is None else f", tolerance {_short(self.tolerance)}"
        return f"measured {value}, expected {_short(self.expected)}{tolerance}"


def _short(value) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    bound = re.fullmatch(r"([<>]=) (\S+)", str(value))
    return f"{bound[1]} {float(bound[2]):.6g}" if bound else str(value)


def _json_safe(value):
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    # Some expressions fill pages; the register is for reading.
    return crop(value, 1000) if isinstance(value, str) else value


def crop(text: str, length: int) -> str:
    """The beginning of a text, with an ellipsis where something is left out."""
    return text if len(text) <= length else text[: length - 1] + "…"
