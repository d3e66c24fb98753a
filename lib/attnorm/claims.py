"""Claims of the papers and of the book, and the verbs with which cells record evidence for them.

Statements live in ``claims.toml`` beside this module; adding one needs no code. In a chapter::

    from attnorm import claims

    claim = claims["T4.1-pre-ln-terminal"]
    claim.derives(gap_rate, -2 * u / r, name="linearised gap")
    claim.checks(slope, -2, atol=0.01, name="n-particle flow, n = 64, beta = 2")
    claim.rejects(wrong_slope, -2, atol=0.01, name="s_j = r_j^2")

Each verb shows one line, and raises `ClaimFailed` after showing it when the evidence does not hold.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources

import numpy as np
import sympy as sp

from attnorm import kernel
from attnorm.comparisons import Incomparable, compare, real_array, slack
from attnorm.evidence import Evidence, slug
from attnorm.identities import examine, is_symbolic
from attnorm.statements import Statement, read_statements


class ClaimFailed(Exception):
    """The evidence for a claim does not hold."""


@dataclass(frozen=True)
class Claim:
    """A statement that evidence can be recorded for. Get one from a `Registry`."""

    statement: Statement
    registry: Registry = field(repr=False)

    def derives(self, expr, expected, *, name, assume=None, at=None, model=None) -> None:
        """Record that `expr` equals `expected` identically.

        The difference must simplify to zero, and both sides must agree at random points that respect the
        assumptions on the symbols. See `attnorm.identities.examine` for `assume` and `at`.

        Raises
        ------
        ClaimFailed
            If the two sides differ somewhere, or sympy cannot show that they do not.
        ValueError
            If the sides cannot be compared, or the name was used before.

        Examples
        --------
        >>> x = sp.Symbol("x")
        >>> example().derives((x + 1) ** 2, x**2 + 2 * x + 1, name="square of a sum")
        ✓ passed [example] identity square of a sum: (x + 1)**2 = x**2 + 2*x + 1; simplified to zero...
        """
        found = examine(expr, expected, assume=assume, at=at)
        self._record(
            "symbolic", name, found.holds, sp.sstr(expr), sp.sstr(expected), None, found.detail, model=model
        )

    def checks(self, measured, expected, *, name, atol=0.0, rtol=0.0, model=None, text=None, unit="") -> None:
        """Record that two independently obtained numbers, or arrays of them, agree.

        Parameters
        ----------
        measured, expected : array_like
            Of one shape; `expected` may be one number for all entries.
        name : str
            Unique within the claim.
        atol, rtol : float
            ``|measured - expected| <= atol + rtol |expected|`` at every entry. Both zero asks for equality.
        model, text : str, optional
            The network and the corpus behind the numbers.
        unit : str, optional

        Raises
        ------
        ClaimFailed
            If an entry deviates by more, shapes differ, or a value is NaN or infinite.

        Examples
        --------
        >>> example().checks([1.0, 2.01], [1.0, 2.0], atol=0.1, name="two entries")
        ✓ passed [example] check two entries: measured 2.01, expected 2, tolerance 0.1; largest deviation...
        """
        outcome = self._compare("numeric", name, compare, measured, expected, atol, rtol)
        values = outcome.measured, outcome.expected, outcome.tolerance
        self._record(
            "numeric", name, outcome.agrees, *values, outcome.detail, model=model, text=text, unit=unit
        )

    def rejects(
        self, measured, expected, *, name, atol=0.0, rtol=0.0, at=None, model=None, text=None, unit=""
    ) -> None:
        """Record a control: passes exactly when `checks` with the same arguments would find a deviation.

        Sympy expressions are allowed too: then a random point must show that the two sides differ.

        Raises
        ------
        ClaimFailed
            If the numbers agree, or cannot be compared: a broken control proves nothing.

        Examples
        --------
        >>> example().rejects(3.0, 2.0, atol=0.1, name="wrong exponent")
        ✓ passed [example] control wrong exponent: measured 3, expected 2, tolerance 0.1; deviates, as it must
        """
        if is_symbolic(measured, expected):
            found = examine(measured, expected, at=at)
            detail = (
                f"differs, as it must: {found.detail}"
                if found.refuted
                else "no random point tells the sides apart"
            )
            values = sp.sstr(measured), sp.sstr(expected), None
            self._record("control", name, found.refuted, *values, detail, model=model, text=text, unit=unit)
            return
        outcome = self._compare("control", name, compare, measured, expected, atol, rtol)
        values = outcome.measured, outcome.expected, outcome.tolerance
        verdict = "agrees, so this control catches nothing" if outcome.agrees else "deviates, as it must"
        detail = "; ".join(part for part in (outcome.detail, verdict) if part)
        self._record("control", name, not outcome.agrees, *values, detail, model=model, text=text, unit=unit)

    def bounds(self, measured, *, lower=None, upper=None, name, model=None, text=None, unit="") -> None:
        """Record that every entry lies between `lower` and `upper` (bounds included; one may be left out).

        Raises
        ------
        ClaimFailed
            If an entry lies outside, shapes differ, or a value is NaN or infinite.

        Examples
        --------
        >>> example().bounds([0.2, 0.9], upper=[0.5, 1.0], name="two rows")
        ✓ passed [example] check two rows: measured 0.9, expected <= 1; tightest of shape (2,)
        """
        found = self._compare("numeric", name, slack, measured, lower, upper)
        values = found.measured, found.bound, None
        self._record("numeric", name, found.within, *values, found.detail, model=model, text=text, unit=unit)

    def violates(self, measured, *, lower=None, upper=None, name, model=None, text=None, unit="") -> None:
        """Record a control: passes exactly when `bounds` with the same arguments would find an entry outside.

        Raises
        ------
        ClaimFailed
            If every entry lies inside, or the numbers cannot be compared.

        Examples
        --------
        >>> example().violates(1.2, upper=1.0, name="hypothesis dropped")
        ✓ passed [example] control hypothesis dropped: measured 1.2, expected <= 1; outside, as it must be
        """
        found = self._compare("control", name, slack, measured, lower, upper)
        values = found.measured, found.bound, None
        verdict = "inside, so this control catches nothing" if found.within else "outside, as it must be"
        detail = "; ".join(part for part in (found.detail, verdict) if part)
        self._record("control", name, not found.within, *values, detail, model=model, text=text, unit=unit)

    def measures(self, value, *, name, model, text=None, unit="") -> None:
        """Record one number with the model and the text that it was measured on. It has no verdict.

        Raises
        ------
        ClaimFailed
            If the number is NaN or infinite.
        ValueError
            If `value` is an array: record a summary of it, and say in the name which. If `model` is empty.
        """
        value = real_array(value, "value")
        if value.ndim:
            raise ValueError(
                f"measures takes one number, got shape {value.shape}: give a median, a share, a range"
            )
        if not model:
            raise ValueError(f"measures needs the name of the model; got {model!r}")
        finite = bool(np.isfinite(value))
        detail = "" if finite else "not a finite number"
        self._record(
            "model", name, finite, float(value), None, None, detail, model=model, text=text, unit=unit
        )

    def _compare(self, kind, name, how, *values):
        try:
            return how(*values)
        except Incomparable as error:
            # Neither a check nor a control can pass on a broken computation: show it as failed, which raises.
            self._record(kind, name, False, None, None, None, str(error))

    def _record(self, kind, name, passed, measured, expected, tolerance, detail, **source) -> None:
        evidence = Evidence(
            self.statement.id, kind, name, measured, expected, tolerance, passed, detail=detail, **source
        )
        self.registry.admit(evidence)
        evidence.show(publish=self.registry.publish)
        if not passed:
            raise ClaimFailed(evidence.plain())


class Registry(Mapping[str, Claim]):
    """The claims by id.

    Parameters
    ----------
    statements : iterable of Statement
    papers : mapping of str to dict, optional
        Title and citation key of each paper.
    publish : bool
        False for exercises and demonstrations: evidence is shown, but the register does not collect it.

    Examples
    --------
    >>> claims["T4.1-pre-ln-terminal"].statement.verdict
    'holds'
    """

    def __init__(self, statements, papers: Mapping[str, Mapping] | None = None, *, publish: bool = True):
        self.papers, self.publish = dict(papers or {}), publish
        self._claims = {statement.id: Claim(statement, self) for statement in statements}
        self._seen: dict[str, tuple[object, object]] = {}

    def __getitem__(self, claim_id: str) -> Claim:
        if claim_id not in self._claims:
            near = difflib.get_close_matches(str(claim_id), self._claims, n=3, cutoff=0.5)
            hint = f"; near matches: {', '.join(near)}" if near else ""
            raise KeyError(f"no claim {claim_id!r} in claims.toml{hint}")
        return self._claims[claim_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._claims)

    def __len__(self) -> int:
        return len(self._claims)

    def admit(self, evidence: Evidence) -> None:
        """Refuse a second piece of evidence with one name. Running a cell again is not a second piece.

        Raises
        ------
        ValueError
            If the name (or one that gives the same HTML id) was used in this execution, or by another cell.
        """
        run, cell = kernel.current_run()
        if evidence.anchor in self._seen:
            earlier_run, earlier_cell = self._seen[evidence.anchor]
            if run == earlier_run or cell != earlier_cell:
                raise ValueError(
                    f"{evidence.claim} already has evidence named {evidence.name!r}: names are unique within "
                    "a claim (in a session with an edited cell, run claims.forget() once)"
                )
        self._seen[evidence.anchor] = run, cell

    def forget(self) -> None:
        """Forget which evidence names were used in this process."""
        self._seen.clear()


def example(name: str = "example") -> Claim:
    """A claim to try the verbs on; its evidence is shown and not published.

    Examples
    --------
    >>> example().checks(2 + 2, 4, name="arithmetic")
    ✓ passed [example] check arithmetic: measured 4, expected 4, tolerance 0
    """
    slug(name)
    statement = Statement(name, "this book", "", "An example", "", "holds", theorem=False, chapter="")
    return Registry([statement], publish=False)[name]


#: The statements of ``claims.toml``.
claims = Registry(
    *read_statements(resources.files("attnorm").joinpath("claims.toml").read_text(encoding="utf-8"))
)
