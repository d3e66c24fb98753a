"""Reducing an expression to zero with sympy, in bounded time."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable

import sympy as sp

# Seconds that simplifying one difference may take: some of sympy's methods never come back.
_PATIENCE = 60.0


def _simplify(d: sp.Expr) -> sp.Expr:
    return sp.simplify(d, doit=False)  # trying to integrate is a rung of its own, the last one


#: From cheap to costly. Each rung gets the raw difference; the first that gives exactly zero decides.
_LADDER: tuple[Callable[[sp.Expr], sp.Expr], ...] = (
    lambda d: d,
    lambda d: d.doit(integrals=False),
    sp.expand,
    lambda d: sp.cancel(sp.together(d)),
    lambda d: sp.expand(sp.powsimp(sp.expand(d))),
    _simplify,
    lambda d: _simplify(d.doit(integrals=False)),
    lambda d: sp.trigsimp(sp.expand(d)),
    lambda d: _simplify(sp.piecewise_fold(d)),
    lambda d: _simplify(sp.expand_log(d)),
    lambda d: _simplify(sp.logcombine(d)),
    lambda d: _simplify(d.rewrite(sp.exp)),
    lambda d: _simplify(sp.expand_func(d)),
    lambda d: _simplify(sp.radsimp(sp.powdenest(d))),
    lambda d: _simplify(d.replace(lambda e: e.is_Pow, lambda e: sp.factor(e.base) ** e.exp)),
    lambda d: _simplify(d.doit()),
)


def residual(difference: sp.Expr) -> sp.Expr:
    """Zero if some rung of the ladder gives zero in time, else the shortest form that was met."""
    shortest = difference
    with contextlib.suppress(_OutOfTime), _time_limit(_PATIENCE):
        for rung in _LADDER:
            try:
                simpler = rung(difference)
            except (NotImplementedError, sp.PolynomialError, ValueError, TypeError):
                continue  # this rung does not apply to expressions of this kind
            if simpler == 0:
                return sp.S.Zero
            if simpler.count_ops() < shortest.count_ops():
                shortest = simpler
    return shortest


class _OutOfTime(BaseException):
    """Not an Exception, since sympy catches those."""


@contextlib.contextmanager
def _time_limit(seconds: float):
    """Raise `_OutOfTime` in the body after so long; no limit where the system has no timer for it."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_):
        raise _OutOfTime

    earlier = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, earlier)
