"""How concentrated rows of attention weights are, what the logits allow, and how it changes with length.

The bounds are Lemma 1 of Mudarisov et al. 2025 (arXiv 2508.17821) in its sharp form: a row
``a_i = F(l_i) / sum_j F(l_j)`` whose values of F lie within a factor ``kappa`` of each other has
``1 / (1 + (L - 1) kappa) <= a_i <= kappa / (kappa + L - 1)``, and both ends are attained.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import entr, expit

from attnorm.rows import attention_rows, plain
from attnorm.validate import finite_array, not_negative, number


def row_entropy(weights) -> np.ndarray:
    """``-sum_i a_i log a_i`` of every row, in nats; a weight of zero adds nothing.

    Parameters
    ----------
    weights : array or tensor (..., L)

    Returns
    -------
    array (...)

    Examples
    --------
    >>> row_entropy(np.array([[0.5, 0.5], [1.0, 0.0]])).round(4).tolist()
    [0.6931, 0.0]
    """
    return entr(not_negative("weights", plain(weights), ndim=1)).sum(axis=-1)


def effective_number(weights) -> np.ndarray:
    """Number of tokens that a row spreads over: exp of its entropy, from 1 (one token) to L (all alike).

    Parameters
    ----------
    weights : array_like (..., L)
        Rows that are not negative and sum to 1; tokens that a row does not see have weight 0.

    Returns
    -------
    array (...)

    Raises
    ------
    ValueError
        If an entry is negative or not finite, or a row does not sum to 1.

    Examples
    --------
    >>> effective_number([[0.25, 0.25, 0.25, 0.25], [1, 0, 0, 0]]).tolist()
    [4.0, 1.0]
    """
    return np.exp(row_entropy(attention_rows(weights)))


def tokens_for_share(weights, share: float = 0.9) -> np.ndarray:
    """Smallest number of tokens of a row that hold a share of its mass together.

    Parameters
    ----------
    weights : array_like (..., L)
        As in `effective_number`.
    share : float
        Above 0 and at most 1. A sum that misses it by rounding (relatively 1e-12) has reached it.

    Returns
    -------
    array of int (...)

    Raises
    ------
    ValueError
        As in `effective_number`, or for a share out of range.

    Examples
    --------
    >>> tokens_for_share([0.1, 0.6, 0.05, 0.25], 0.9)
    array(3)
    """
    share = number("share", share, above=0.0, high=1.0)
    a = attention_rows(weights)
    held = np.cumsum(np.sort(a, axis=-1)[..., ::-1], axis=-1)
    # A row sums to 1 only up to rounding: count the share of what it holds.
    return np.asarray((held < share * (1 - 1e-12) * held[..., -1:]).sum(axis=-1) + 1)


def weight_bounds(length, log_ratio) -> tuple[np.ndarray, np.ndarray]:
    """Smallest and largest weight that a row of `length` tokens can have (sharp Lemma 1).

    Parameters
    ----------
    length : array_like
        Number of tokens L that the row sees, at least 1.
    log_ratio : array_like
        Natural logarithm of ``kappa = F_max / F_min``, at least 0; of a softmax the range of the logits
        over the temperature. It may be large: nothing overflows.

    Returns
    -------
    lower, upper : arrays of the common shape
        ``1 / (1 + (L - 1) kappa)`` and ``kappa / (kappa + L - 1)``.

    Raises
    ------
    ValueError
        If a length is below 1, or a logarithm is negative or not finite.

    Examples
    --------
    >>> lower, upper = weight_bounds(5, np.log(4.0))
    >>> print(f"{lower:.4f} {upper:.4f}")  # 1 / (1 + 4 * 4) and 4 / (4 + 4)
    0.0588 0.5000
    """
    length, log_ratio = finite_array("length", length), not_negative("log_ratio", log_ratio)
    if length.min() < 1:
        raise ValueError(f"length must be at least 1; got {length.min():g}")
    with np.errstate(divide="ignore"):  # one token: log 0, and both bounds are 1
        others = np.log(length - 1)
    return expit(-log_ratio - others), expit(log_ratio - others)


@dataclass(frozen=True)
class PowerLaw:
    """A fit ``log value = log factor + exponent log length``, each an array over the leading axes.

    Attributes
    ----------
    exponent, factor : array (...)
    error : array (...)
        Standard error of the exponent, from the residuals; it takes the points for independent.
    """

    exponent: np.ndarray
    factor: np.ndarray
    error: np.ndarray


def growth(lengths, values) -> PowerLaw:
    """Fit a power of the length to values, by least squares on the logarithms.

    Parameters
    ----------
    lengths : array_like (T,)
        Positive, at least three, not all alike.
    values : array_like (..., T)
        Positive.

    Returns
    -------
    PowerLaw

    Raises
    ------
    ValueError
        If the shapes do not match, or a number is not positive.

    Examples
    --------
    >>> fit = growth([1, 10, 100], [3.0, 0.3, 0.03])
    >>> print(f"{fit.exponent:.6f} {fit.factor:.6f}")
    -1.000000 3.000000
    """
    lengths, values = finite_array("lengths", lengths), finite_array("values", values)
    if lengths.ndim != 1 or values.shape[-1:] != lengths.shape:
        raise ValueError(
            f"values must have shape (..., T) for T lengths; got {values.shape} and {lengths.shape}"
        )
    if lengths.min() <= 0 or values.min() <= 0:
        raise ValueError("lengths and values must be positive: their logarithms are fitted")
    if len(lengths) < 3 or lengths.min() == lengths.max():
        raise ValueError("a fit needs at least three lengths that are not all alike")
    x, y = np.log(lengths), np.log(values)
    centred, mean = x - x.mean(), y.mean(axis=-1)
    exponent = y @ centred / (centred @ centred)
    residual = y - mean[..., None] - exponent[..., None] * centred
    error = np.sqrt((residual**2).sum(axis=-1) / (len(x) - 2) / (centred @ centred))
    return PowerLaw(exponent, np.exp(mean - exponent * x.mean()), error)
