"""How slowly a norm can grow: the smallest ``<theta_j, A_j>`` over all states of n tokens, for Q = K = V = I.

It is the radial rate of Pre-LN, and has the sign of that of Peri-LN.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import lambertw

from attnorm import validate


@dataclass(frozen=True)
class SlowestGrowth:
    """Attributes
    ----------
    rate : float
        The smallest ``<theta_j, A_j>``.
    cosine : float
        The common ``<theta_j, theta_k>`` of all other tokens at which it is attained.
    """

    rate: float
    cosine: float


def slowest_growth(n, beta):
    """The smallest radial rate of Pre-LN over all states in dimension d >= 2, in closed form.

    With ``W = W_0((n - 1)/e)`` it is ``1 - W/beta`` where ``W + 1 <= 2 beta``, attained when all other tokens
    have the cosine ``1 - (W + 1)/beta`` with token j; otherwise they are all opposite to it.

    Parameters
    ----------
    n : int
        Number of tokens, >= 2.
    beta : float
        Inverse temperature, >= 0.

    Returns
    -------
    SlowestGrowth

    Raises
    ------
    ValueError
        On bad input.

    Examples
    --------
    Positive exactly when n - 1 < beta e^{beta + 1}, for beta >= 1: here 40.2.

    >>> [slowest_growth(n, 2.0).rate > 0 for n in (41, 42)]
    [True, False]
    """
    n = validate.integer("n", n, low=2)
    beta = validate.number("beta", beta, low=0.0)
    W = float(lambertw((n - 1) / np.e).real)
    if 2 * beta >= W + 1:
        return SlowestGrowth(1 - W / beta, 1 - (W + 1) / beta)
    crowd = (n - 1) * np.exp(-2 * beta)
    return SlowestGrowth((1 - crowd) / (1 + crowd), -1.0)
