"""Is one sympy expression equal to another? Asked twice, independently, and both answers must be yes.

Random points can miss an error that is zero there; a simplifier can use a rule outside its domain. An
identity passes only when the difference simplifies to zero *and* both sides, unsimplified, agree at random
points that respect the assumptions on the symbols.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import sympy as sp
from sympy.core.function import AppliedUndef

from attnorm.assumptions import conditions_of, random_points, stronger_symbols
from attnorm.evidence import crop
from attnorm.zero import residual

# Working digits at random points, and the relative difference from which two values count as different.
_DIGITS, _AGREEMENT = 40, sp.Float("1e-25", 30)


@dataclass(frozen=True)
class Identity:
    """What was found: `holds`, why in one clause, and whether random points have refuted it."""

    holds: bool
    refuted: bool
    detail: str


def examine(expr, expected, *, assume=None, at: Mapping | None = None, points: int = 12, seed: int = 0):
    """Test whether `expr` equals `expected` for all values that the assumptions on the symbols allow.

    Parameters
    ----------
    expr, expected : sympy expression, matrix, or (nested) tuple or list of them
        Both of one shape, with exact numbers only: a float hides the identity.
    assume : sympy relation or predicate, or a sequence of them, optional
        For example ``x > 0``, ``sp.Q.integer(n)`` or ``gamma < 1``. Random points satisfy all of them; a sign
        or a domain of a single symbol is also used in simplification.
    at : mapping of symbol to (low, high), optional
        Where the random values of a symbol lie, instead of a default range around one.
    points : int
        Number of random points.
    seed : int
        Seed of the generator of the points.

    Returns
    -------
    Identity

    Raises
    ------
    ValueError
        If the shapes differ, a float occurs, two different symbols share a name, or no points can be found.
    """
    pairs = list(_pairs(expr, expected))
    conditions = conditions_of(assume)
    _refuse_floats(pairs)
    symbols = _symbols(pairs, conditions, at or {})
    # Fix the order by name, so that a seed means the same points in every process.
    at_points = random_points(symbols, conditions, at or {}, np.random.default_rng(seed))
    functions = sorted({f.func for pair in pairs for side in pair for f in side.atoms(AppliedUndef)}, key=str)
    for left, right in pairs:
        refutation = _compare_at_points(
            _concrete(left, functions), _concrete(right, functions), at_points, points
        )
        if refutation:
            return Identity(False, True, refutation)
    stronger = stronger_symbols(conditions)
    for left, right in pairs:
        left_over = residual((left - right).subs(stronger, simultaneous=True))
        if left_over != 0:
            detail = f"agrees at {points} random points, but sympy leaves the difference {_crop(left_over)}"
            return Identity(False, False, detail)
    return Identity(True, False, f"simplified to zero and equal at {points} random points")


def is_symbolic(*values) -> bool:
    """True if a value is, or contains, a sympy expression with free symbols or a sympy matrix."""
    for value in values:
        if isinstance(value, (list, tuple)):
            if is_symbolic(*value):
                return True
        elif isinstance(value, sp.MatrixBase) or (isinstance(value, sp.Basic) and value.free_symbols):
            return True
    return False


def _pairs(left, right) -> Iterable[tuple[sp.Expr, sp.Expr]]:
    if isinstance(left, sp.MatrixBase) or isinstance(right, sp.MatrixBase):
        shapes = getattr(left, "shape", "a scalar"), getattr(right, "shape", "a scalar")
        if shapes[0] != shapes[1]:
            raise ValueError(f"shapes differ: {shapes[0]} against {shapes[1]}")
        left, right = list(left), list(right)
    sequences = [isinstance(side, (list, tuple, sp.Tuple)) for side in (left, right)]
    if any(sequences):
        if not all(sequences) or len(left) != len(right) or not len(left):
            raise ValueError(f"shapes differ, or are empty: {left!s} against {right!s}")
        for one, other in zip(left, right, strict=True):
            yield from _pairs(one, other)
        return
    sides = sp.sympify(left), sp.sympify(right)
    for side in sides:
        if not isinstance(side, sp.Expr):
            raise ValueError(f"an identity is between expressions, got {type(side).__name__}: {side!s}")
    yield sides


def _refuse_floats(pairs) -> None:
    floats = {number for pair in pairs for side in pair for number in side.atoms(sp.Float)}
    if floats:
        raise ValueError(f"an identity takes exact numbers such as sympy.Rational, got {sorted(floats)}")


def _symbols(pairs, conditions, at) -> list[sp.Symbol]:
    found = {symbol for pair in pairs for side in pair for symbol in side.free_symbols}
    found |= {symbol for condition in conditions for symbol in condition.free_symbols}
    stray = set(at) - found
    if stray:
        raise ValueError(f"at names {sorted(map(str, stray))}, which occur in neither side")
    names = [symbol.name for symbol in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(
            f"different symbols share the names {twice}: their assumptions differ, so they never cancel"
        )
    return sorted(found, key=lambda symbol: symbol.name)


def _compare_at_points(left, right, at_points, points) -> str:
    """Say where the sides differ, or return an empty string when they agree at all `points`."""
    tried = found = 0
    while found < points and tried < 20 * points:
        point = next(at_points)
        tried += 1
        values = [_value(side, point) for side in (left, right)]
        if (values[0] is None) != (values[1] is None):
            return f"only one side is finite at {_show(point)}"
        if values[0] is None:
            continue
        found += 1
        gap = abs(values[0] - values[1])
        # The terms are looked at only where the sums differ: an identity whose sides are both zero leaves
        # rounding of the terms behind, and only their size tells that rounding from a difference.
        if gap > _AGREEMENT * max(map(abs, values)) and gap > _AGREEMENT * _largest_term(left, right, point):
            return f"{sp.N(values[0], 8)} against {sp.N(values[1], 8)} at {_show(point)}"
    if found < points:
        raise ValueError(
            f"both sides are finite at only {found} of {tried} random points: give ranges with "
            "at={symbol: (low, high)}"
        )
    return ""


def _value(side, point):
    """The side at the point to 40 digits, or None where it is not finite."""
    value = sp.N(side.subs(point).doit(integrals=False), _DIGITS, maxn=400)
    if value.has(sp.nan, sp.zoo, sp.oo, -sp.oo):
        return None
    if not all(part.is_Float or part.is_Rational for part in value.as_real_imag()):
        raise ValueError(f"cannot evaluate {_crop(side)} at {_show(point)}")
    return value


def _largest_term(left, right, point):
    terms = [_value(term, point) for side in (left, right) for term in sp.Add.make_args(side.expand())]
    return max((abs(value) for value in terms if value is not None), default=sp.S.Zero)


def _concrete(side, functions):
    """Replace undefined functions by fixed smooth ones (positive, as some are declared); differentiate."""
    for k, function in enumerate(functions):
        side = side.replace(
            function,
            lambda *args, k=k: (
                sp.exp(sum(sp.Rational(2 + k, 5 + 2 * j) * a for j, a in enumerate(args)) / 7)
                + sp.Rational(k + 1, 3)
            ),
        )
    # Integrals stay: evaluating them numerically is quicker, and independent of sympy's rules.
    return side.doit(integrals=False)


def _show(point) -> str:
    return ", ".join(f"{symbol} = {sp.N(value, 6)}" for symbol, value in point.items()) or "no symbols"


def _crop(expr) -> str:
    return crop(sp.sstr(expr), 200)
