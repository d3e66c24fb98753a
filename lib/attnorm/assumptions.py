"""Assumptions on symbols: read them, strengthen symbols with them, draw random values that satisfy them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import sympy as sp
from sympy.assumptions.assume import AppliedPredicate


def conditions_of(assume) -> tuple:
    """The relations and predicates in `assume`, one by one.

    Raises
    ------
    ValueError
        If something else is among them.
    """
    if assume is None:
        return ()
    conditions = assume if isinstance(assume, (list, tuple)) else (assume,)
    flat = tuple(part for c in conditions for part in (c.args if isinstance(c, sp.And) else (c,)))
    for condition in flat:
        if not isinstance(condition, (sp.core.relational.Relational, AppliedPredicate)):
            raise ValueError(
                f"assume takes relations such as x > 0 and predicates such as Q.real(x), got {condition!r}"
            )
    return flat


def stronger_symbols(conditions) -> dict:
    """Symbols with the domain or sign that `conditions` give them added to what they already assume."""
    known: dict = {}
    for condition in conditions:
        if isinstance(condition, AppliedPredicate):
            symbol, fact = condition.arg, str(condition.function.name)
        else:
            symbol, fact = condition.lhs, _sign(condition)
        if symbol.is_Symbol and fact:
            known.setdefault(symbol, {})[fact] = True
    return {
        symbol: sp.Dummy(symbol.name, **{**symbol.assumptions0, **facts}) for symbol, facts in known.items()
    }


def _sign(relation) -> str:
    """The sign that ``symbol > number`` and the like imply, or an empty string."""
    bound = relation.rhs
    if isinstance(relation, (sp.Gt, sp.Ge)) and bound.is_nonnegative:
        return "nonnegative" if bound.is_zero and relation.rel_op == ">=" else "positive"
    if isinstance(relation, (sp.Lt, sp.Le)) and bound.is_nonpositive:
        return "nonpositive" if bound.is_zero and relation.rel_op == "<=" else "negative"
    return ""


def random_points(symbols, conditions, at: Mapping, rng: np.random.Generator) -> Iterator[dict]:
    """Yield random points that satisfy the assumptions of the symbols and the `conditions`.

    Raises
    ------
    ValueError
        If drawing over and over finds none.
    """
    misses = 0
    while misses < 2000:
        point = {symbol: _draw(symbol, at.get(symbol), rng) for symbol in symbols}
        if all(_satisfies(condition, point) for condition in conditions):
            misses = 0
            yield point
        else:
            misses += 1
    raise ValueError("found no random point that satisfies assume: give ranges with at={symbol: (low, high)}")


def _draw(symbol, bounds, rng) -> sp.Expr:
    """A random exact number that satisfies every assumption of `symbol`, within `bounds` if given."""
    for _ in range(2000):
        if symbol.is_integer:
            low, high = bounds or (-9, 12)
            value = sp.Integer(int(rng.integers(int(np.ceil(low)), int(np.floor(high)) + 1)))
        elif symbol.is_extended_real or bounds:
            low, high = (sp.Rational(float(bound)) for bound in bounds or (-3, 3))
            value = low + (high - low) * sp.Rational(int(rng.integers(1, 10**6)), 10**6)
        else:  # nothing says that it is real
            real, imaginary = (sp.Rational(int(k), 10**6) for k in rng.integers(-3 * 10**6, 3 * 10**6, 2))
            value = real + sp.I * imaginary
        if all(getattr(value, f"is_{fact}") in (truth, None) for fact, truth in symbol.assumptions0.items()):
            return value
    raise ValueError(f"found no value for {symbol} in {bounds} that satisfies {symbol.assumptions0}")


def _satisfies(condition, point) -> bool:
    there = condition.subs(point)
    return bool(sp.ask(there) if isinstance(condition, AppliedPredicate) else there)
