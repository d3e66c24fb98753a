"""Comparing numbers so that a broken computation can never look like an agreement."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


class Incomparable(Exception):
    """The two sides cannot be compared: wrong shape, nothing to compare, or a value that is not finite."""


@dataclass(frozen=True)
class Comparison:
    """The entry with the largest deviation relative to its tolerance, and whether all entries agree."""

    measured: float
    expected: float
    tolerance: float
    agrees: bool
    detail: str


def compare(measured, expected, atol: float = 0.0, rtol: float = 0.0) -> Comparison:
    """Compare entry by entry: ``|measured - expected| <= atol + rtol |expected|``.

    Parameters
    ----------
    measured : array_like
        Real numbers of any shape.
    expected : array_like
        The same shape as `measured`, or one number for all entries.
    atol, rtol : float
        Absolute and relative tolerance, finite and not negative. Zero asks for equality.

    Raises
    ------
    Incomparable
        If the shapes differ, nothing is there to compare, or a value is not finite.
    ValueError
        If a tolerance is negative or not finite.
    TypeError
        If a side is not made of real numbers.

    Examples
    --------
    >>> compare([1.0, 2.1], 2.0, atol=0.5).measured
    1.0
    """
    for name, tolerance in (("atol", atol), ("rtol", rtol)):
        if not (np.isfinite(tolerance) and tolerance >= 0):
            raise ValueError(f"{name} must be finite and not negative, got {tolerance!r}")
    measured, expected = real_array(measured, "measured"), real_array(expected, "expected")
    if expected.ndim and expected.shape != measured.shape:
        raise Incomparable(f"measured has shape {measured.shape}, expected has shape {expected.shape}")
    shape = measured.shape
    measured, expected = np.broadcast_arrays(measured, expected)
    require_finite(measured, "measured")
    require_finite(expected, "expected")

    tolerance = atol + rtol * np.abs(expected)
    deviation = np.abs(measured - expected)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        strain = np.where(deviation == 0, 0.0, deviation / tolerance)
    worst = np.lexsort((deviation.ravel(), strain.ravel()))[-1]
    return Comparison(
        measured=float(measured.flat[worst]),
        expected=float(expected.flat[worst]),
        tolerance=float(tolerance.flat[worst]),
        agrees=bool(np.all(deviation <= tolerance)),
        detail=f"largest deviation of shape {shape}" if shape else "",
    )


@dataclass(frozen=True)
class Slack:
    """The entry with the least room to its bound, and whether all entries lie within."""

    measured: float
    bound: str
    within: bool
    detail: str


def slack(measured, lower=None, upper=None) -> Slack:
    """Compare entry by entry: ``lower <= measured <= upper``, where one of the bounds may be left out.

    Raises
    ------
    Incomparable
        If the shapes differ, nothing is there to compare, or a value is not finite.
    ValueError
        If no bound is given.

    Examples
    --------
    >>> slack([0.2, 0.9], upper=[0.5, 1.0])
    Slack(measured=0.9, bound='<= 1.0', within=True, detail='tightest of shape (2,)')
    """
    if lower is None and upper is None:
        raise ValueError("give lower, upper or both")
    measured = real_array(measured, "measured")
    require_finite(measured, "measured")
    tightest = []
    for relation, sign, limit in ((">=", 1, lower), ("<=", -1, upper)):
        if limit is None:
            continue
        limit = real_array(limit, "a bound")
        if limit.ndim and limit.shape != measured.shape:
            raise Incomparable(f"measured has shape {measured.shape}, a bound has shape {limit.shape}")
        require_finite(limit, "a bound")
        limit = np.broadcast_to(limit, measured.shape)
        room = sign * (measured - limit)
        worst = int(np.argmin(room))
        tightest.append(
            (float(room.flat[worst]), float(measured.flat[worst]), f"{relation} {limit.flat[worst]}")
        )
    room, value, bound = min(tightest)
    detail = f"tightest of shape {measured.shape}" if measured.shape else ""
    return Slack(value, bound, room >= 0, detail)


def real_array(values, name: str) -> np.ndarray:
    """`values` as an array of float64; anything that is not made of real numbers is a TypeError."""
    array = np.asarray(values)
    if np.iscomplexobj(array):
        raise TypeError(f"{name} must be real, got complex numbers: compare real and imaginary parts")
    try:
        return array.astype(float)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{name} must be a number or an array of numbers, got {type(values).__name__}"
        ) from error


def require_finite(values: np.ndarray, name: str) -> None:
    """Refuse an empty array and one with NaN or infinite entries."""
    if values.size == 0:
        raise Incomparable(f"{name} is empty, so nothing was compared")
    bad = int(np.sum(~np.isfinite(values)))
    if bad:
        raise Incomparable(f"{bad} of {values.size} entries of {name} are not finite")
