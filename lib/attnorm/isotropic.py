"""What separability is for random tokens: independent and uniform on a sphere, or with a common direction.

No head and no training is in here; chapters compare heads with it.
"""

from __future__ import annotations

import numpy as np
from scipy import integrate, stats

from attnorm.validate import finite_array, integer, not_negative, number


def isotropic_moments(weights, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of ``|sum_j a_j x_j|^2`` for independent x_j, uniform on the unit sphere.

    Parameters
    ----------
    weights : array (..., N)
        May be negative.
    d : int

    Returns
    -------
    mean, variance : array (...)
        ``sum a_j^2`` and ``(2 / d) ((sum a_j^2)^2 - sum a_j^4)``.

    Examples
    --------
    >>> [float(v) for v in isotropic_moments([1.0, 1.0], 4)]
    [2.0, 1.0]
    """
    d = integer("d", d, low=1)
    a = finite_array("weights", weights)
    second, fourth = (a**2).sum(axis=-1), (a**4).sum(axis=-1)
    return second, 2 / d * np.maximum(second**2 - fourth, 0)


def safe_lower(selected_weights, r, radius=1.0) -> np.ndarray:
    """Lower bound on the expected share inside a ball of fixed radius r around s; tokens uniform, length M.

    Parameters
    ----------
    selected_weights : array (..., N)
    r : number or array (...)
        A fixed number, chosen without looking at the tokens.
    radius : number or array (...)
        M.

    Returns
    -------
    array (...)
        ``1 - (1 - 1/N) M^2 sum a_j^2 / r^2``.

    Examples
    --------
    >>> float(safe_lower([0.25, 0.25], 0.5))
    0.75
    """
    a, r, m = (
        not_negative("selected_weights", selected_weights, ndim=1),
        finite_array("r", r),
        finite_array("radius", radius),
    )
    if not (r > 0).all() or not (m > 0).all():
        raise ValueError("r and radius must be positive")
    return 1 - (1 - 1 / a.shape[-1]) * m**2 * (a**2).sum(axis=-1) / r**2


def isotropic_lower(selected_weights, excluded_weights, d: int, *, thresholds: int = 400) -> float:
    """Proved lower bound on E[N_s] / N for independent uniform tokens, with r as it is: random.

    Parameters
    ----------
    selected_weights : array (N,)
    excluded_weights : array (K,)
    d : int
        Dimension of the tokens. Their length does not matter.
    thresholds : int
        Number of fixed radii tried; each gives a bound, and the best is returned.

    Returns
    -------
    float
        At least 0.

    Notes
    -----
    ``P(|s - a_i x_i| < r) >= 1 - P(|s - a_i x_i| >= rho) - P(r < rho)`` for every fixed rho; both
    probabilities by Cantelli's inequality with `isotropic_moments`, the second by a union over the excluded
    tokens.
    """
    a, b = (
        not_negative("selected_weights", selected_weights, ndim=1),
        not_negative("excluded_weights", excluded_weights, ndim=1),
    )
    others = np.where(np.eye(a.size, dtype=bool), 0.0, a)
    with_one = np.concatenate([np.broadcast_to(a, (b.size, a.size)), -b[:, None]], axis=1)
    (low, low_var), (high, high_var) = isotropic_moments(others, d), isotropic_moments(with_one, d)
    rho = np.linspace(low.min(), high.max(), thresholds)[:, None]
    leaves = _cantelli(rho - low, low_var).mean(axis=1)
    enters = _cantelli(high - rho, high_var).sum(axis=1)
    return float(np.clip(1 - leaves - enters, 0, 1).max())


def _cantelli(gap, variance):
    """``P(X >= mean + gap)`` at most, for a variable of this variance; 1 if the gap is not positive."""
    gap, variance = np.broadcast_arrays(np.maximum(gap, 0), variance)
    total = variance + gap**2
    return np.where(gap > 0, np.divide(variance, total, out=np.ones_like(total), where=total > 0), 1.0)


def gaussian_share(top_n: int, d: int, *, ratio: float = np.inf, outsiders: int = 1) -> float:
    """E[N_s] / N of a row with two weights and isotropic tokens, in the limit of many tokens and dimensions.

    Parameters
    ----------
    top_n, d : int
        N and d; the limit is N, d to infinity at a fixed N / d.
    ratio : float
        b, the weight of a selected token over that of an excluded one. Infinite: the excluded weigh nothing.
    outsiders : int
        K, the number of excluded tokens.

    Returns
    -------
    float
        ``E Phi((1 + 1/b^2) / (2 sigma) - g_K / b)`` with ``sigma = sqrt(N / d)`` and g_K the largest of K
        independent standard normal numbers; ``Phi(sqrt(d / N) / 2)`` for infinite b.

    Examples
    --------
    >>> round(gaussian_share(64, 64), 4)
    0.6915
    """
    top_n, d, outsiders = (
        integer(name, value, low=1) for name, value in (("top_n", top_n), ("d", d), ("outsiders", outsiders))
    )
    ratio = number("ratio", ratio, above=0, finite=False)
    if np.isinf(ratio):
        return float(stats.norm.cdf(np.sqrt(d / top_n) / 2))
    centre = (1 + ratio**-2) / 2 * np.sqrt(d / top_n)

    def density(g):
        largest = outsiders * np.exp(stats.norm.logpdf(g) + (outsiders - 1) * stats.norm.logcdf(g))
        return stats.norm.cdf(centre - g / ratio) * largest

    # All but 1e-17 of the largest of K normal numbers.
    low, high = stats.norm.isf(-np.expm1(-39.0 / outsiders)), stats.norm.isf(1e-17 / outsiders)
    return float(np.clip(integrate.quad(density, low, high, limit=200)[0], 0, 1))


def power_law_weights(length: int, exponent: float) -> np.ndarray:
    """Weights (length,) in proportion to ``j ** -exponent``, j = 1, ..., length, that sum to one.

    Examples
    --------
    >>> power_law_weights(2, 1.0).round(3).tolist()
    [0.667, 0.333]
    """
    weights = np.arange(1, integer("length", length, low=1) + 1) ** -number("exponent", exponent)
    return weights / weights.sum()


def uniform_tokens(shape, d: int, seed) -> np.ndarray:
    """Independent vectors (*shape, d), uniform on the unit sphere.

    Parameters
    ----------
    shape : tuple
    d : int
    seed : int or numpy.random.Generator
    """
    x = np.random.default_rng(seed).normal(size=(*shape, integer("d", d, low=1)))
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def tokens_with_cosine(shape, d: int, cosine: float, seed) -> np.ndarray:
    """Random unit vectors (*shape, d) whose expected cosine over pairs tends to `cosine` as d grows.

    Each is the normalised sum of one common direction and noise; the last axis of `shape` shares a direction.

    Parameters
    ----------
    shape : tuple
    d : int
    cosine : float
        From 0 to 1.
    seed : int or numpy.random.Generator
    """
    cosine = number("cosine", cosine, low=0, high=1)
    rng = np.random.default_rng(seed)
    common = rng.normal(size=(*shape[:-1], 1, integer("d", d, low=1)))
    common /= np.linalg.norm(common, axis=-1, keepdims=True)
    noise = rng.normal(size=(*shape, d)) / np.sqrt(d)
    x = np.sqrt(cosine) * common + np.sqrt(1 - cosine) * noise
    return x / np.linalg.norm(x, axis=-1, keepdims=True)
