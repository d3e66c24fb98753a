"""Two samples of head means: when a Kolmogorov-Smirnov test tells them apart, and when they are equivalent.

The two questions differ. The test rejects if the samples look unlike for two independent draws from one
distribution; where it does not, the samples may still differ, by more the fewer or the more spread out they
are. Equivalence within a margin is shown by rejecting that the difference lies outside the margin.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
from scipy import stats

from attnorm.validate import finite_array, integer, number


def ks_statistic(first, second) -> np.ndarray:
    """Largest distance D between the empirical distribution functions of two samples of one size.

    Parameters
    ----------
    first, second : array (..., H)
        Samples on the last axis.

    Returns
    -------
    array (...)
        Multiples of 1 / H.

    Raises
    ------
    ValueError
        If shapes differ or an entry is not finite.

    Examples
    --------
    >>> float(ks_statistic([1.0, 2.0, 3.0, 4.0], [3.5, 4.5, 5.5, 6.5]))
    0.75
    """
    first, second = finite_array("first", first, ndim=1), finite_array("second", second, ndim=1)
    if first.shape != second.shape:
        raise ValueError(f"samples must have one shape; got {first.shape} and {second.shape}")
    both = np.concatenate([first, second], axis=-1)
    steps = np.repeat([1, -1], first.shape[-1])
    order = np.argsort(both, axis=-1, kind="stable")
    height = np.abs(np.cumsum(steps[order], axis=-1))
    ranked = np.take_along_axis(both, order, axis=-1)
    # Within equal values neither function has a step of its own: only the last of them counts.
    last = np.ones(both.shape, dtype=bool)
    last[..., :-1] = ranked[..., 1:] > ranked[..., :-1]
    return np.where(last, height, 0).max(axis=-1) / first.shape[-1]


def ks_pvalue(statistic: float, size: int) -> float:
    """Exact probability that two independent samples of one continuous distribution differ by D or more.

    Parameters
    ----------
    statistic : float
        D, a multiple of 1 / size.
    size : int
        H, the size of each sample.

    Raises
    ------
    ValueError
        If D is not a multiple of 1 / size from 0 to 1.

    Notes
    -----
    Source: Gnedenko and Korolyuk (1951). With k = D H,
    ``2 sum_{j >= 1} (-1)^(j-1) C(2H, H - j k) / C(2H, H)``, summed here in whole numbers.

    Examples
    --------
    Three against three can differ by D = 1 in 2 of 20 orders.

    >>> ks_pvalue(1.0, 3)
    0.1
    """
    size = integer("size", size, low=1)
    statistic = number("statistic", statistic, low=0.0, high=1.0)
    height = round(statistic * size)
    if abs(statistic * size - height) > 1e-9 * size:
        raise ValueError(f"statistic must be a multiple of 1/{size}; got {statistic!r}")
    if height == 0:
        return 1.0
    orders = sum(
        (-1) ** (j - 1) * math.comb(2 * size, size - j * height) for j in range(1, size // height + 1)
    )
    return float(Fraction(2 * orders, math.comb(2 * size, size)))


def ks_critical(size: int, level: float) -> float:
    """Smallest D that a test at this level rejects: its p-value is below the level. Infinite if none is.

    Examples
    --------
    Three heads against three are never told apart at the level 0.05.

    >>> ks_critical(3, 0.05), ks_critical(4, 0.05)
    (inf, 1.0)
    """
    size, level = integer("size", size, low=1), number("level", level, above=0.0, high=1.0)
    low, high = 0, size + 1  # the p-value falls with D: rejected at high, not at low
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if ks_pvalue(middle / size, size) < level else (middle, high)
    return high / size if high <= size else math.inf


def overlooked_shift(size: int, level: float, spread: float = 1.0) -> float:
    """Smallest common shift that makes the test reject, for normal samples of standard deviation `spread`.

    In the limit where the empirical distribution functions are the normal ones:
    ``2 spread Phi^{-1}((1 + D) / 2)`` with D from `ks_critical`. Infinite where no D is rejected, or D = 1.

    Examples
    --------
    >>> round(overlooked_shift(144, 0.01), 2)
    0.49
    """
    critical = ks_critical(size, level)
    spread = number("spread", spread, above=0.0)
    return math.inf if critical >= 1 else 2 * spread * float(stats.norm.ppf((1 + critical) / 2))


def largest_window(values, width) -> np.ndarray:
    """Largest share of a sample that lies in one interval of this width, closed on the left only.

    It is the Kolmogorov-Smirnov statistic between the sample and the sample shifted by `width`.

    Parameters
    ----------
    values : array (H,)
    width : float
        Not negative.

    Examples
    --------
    >>> largest_window([0.0, 0.4, 0.9, 2.0], 1.0)
    0.75
    """
    values = np.sort(finite_array("values", values, ndim=1))
    width = number("width", width, low=0.0)
    ends = np.searchsorted(values, values + width, side="left")
    return float(np.max(np.maximum(ends - np.arange(len(values)), 0)) / len(values))


def tost(first, second, margin: float) -> np.ndarray:
    """Two one-sided t-tests that paired samples are equivalent: p-value, small if they are.

    The null hypothesis is that the mean of ``log(first / second)`` lies outside
    ``(-log(1 + margin), log(1 + margin))``.

    Parameters
    ----------
    first, second : array (..., H)
        Positive; entry h of both belongs to one head.
    margin : float
        0.1 asks whether the typical ratio lies between 1 / 1.1 and 1.1.

    Returns
    -------
    array (...)
        The larger of the two p-values.

    Raises
    ------
    ValueError
        If shapes differ, there are fewer than two pairs, an entry is not positive, or the margin is not.

    Examples
    --------
    >>> a = np.array([1.0, 2.0, 4.0, 8.0])
    >>> bool(tost(a, a * [1.01, 0.99, 1.02, 0.98], 0.1) < 0.05), bool(tost(a, 1.3 * a, 0.1) < 0.05)
    (True, False)
    """
    first, second = finite_array("first", first, ndim=1), finite_array("second", second, ndim=1)
    if first.shape != second.shape or first.shape[-1] < 2:
        raise ValueError(
            f"samples must have one shape, with two pairs or more; got {first.shape} and {second.shape}"
        )
    if first.min() <= 0 or second.min() <= 0:
        raise ValueError("samples must be positive: their ratios are compared on a logarithmic scale")
    edge = math.log1p(number("margin", margin, above=0.0))
    ratio = np.log(first) - np.log(second)
    size = ratio.shape[-1]
    mean, error = ratio.mean(axis=-1), ratio.std(axis=-1, ddof=1) / math.sqrt(size)
    with np.errstate(divide="ignore", invalid="ignore"):
        nearer = np.where(error > 0, (edge - np.abs(mean)) / error, np.sign(edge - np.abs(mean)) * np.inf)
    return stats.t.sf(nearer, size - 1)


def first_number(accepts: Callable[[int], bool], low: int, high: int) -> int | None:
    """Smallest N from `low` to `high` with ``accepts(N)``, by asking each; None if there is none.

    Examples
    --------
    >>> first_number(lambda n: n * n > 50, 1, 20)
    8
    """
    return next((n for n in range(low, high + 1) if accepts(n)), None)


def crossing(accepts: Callable[[int], bool], low: int, high: int) -> int | None:
    """An N with ``accepts(N)`` and not ``accepts(N - 1)``, or `low` if that is accepted, by bisection.

    It is the smallest one where acceptance is monotone in N. Else it may be any crossing. None if `high` is
    not accepted.

    Examples
    --------
    >>> crossing(lambda n: n * n > 50, 1, 20)
    8

    A gap in the acceptance hides the first crossing.

    >>> crossing(lambda n: n in (3, 4) or n > 12, 1, 20)
    13
    """
    if not accepts(high):
        return None
    if accepts(low):
        return low
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if accepts(middle) else (middle, high)
    return high
