"""Constants of the terminal laws from the symmetric start (Karagodin et al. 2025, Theorem 4.1).

Where ``s = c(t) sigma(u)`` and the clock is ``S = int_0^t dt / c``, the gap obeys
``d(ln u + 2 S)/du = 1/u - sigma / (u escape)``, so ``u e^{2S}`` tends to the exponential of one integral.
"""

import mpmath
import numpy as np
import sympy as sp
from scipy.special import exp1, expi

from attnorm import validate
from attnorm.symmetric import ATTENTION_NORM, ESCAPE, beta, n, u

_INTEGRANDS = {
    attended: sp.lambdify((u, n, beta), (sigma / ESCAPE - 1) / u, "mpmath")
    for attended, sigma in ((False, sp.Integer(1)), (True, ATTENTION_NORM))
}
_DIGITS = 40
_HOTTEST = 300.0  # above, the exponentials leave the range of floats


def gap_exponent(n, beta, *, attended=False):
    """``lim ln(u e^{2S})`` from the symmetric start, by quadrature in high precision.

    Parameters
    ----------
    n : int
        Number of tokens, >= 2.
    beta : float
        Inverse temperature, >= 0.
    attended : bool
        True where the speed factor carries |A| (nGPT, ``S = int alpha``), False where it does not (Post-LN,
        ``S = t``, and sqrt-scaling, ``S = 2 (sqrt(1+t) - 1)``).

    Returns
    -------
    float
        Post-LN: ``ln n + J(1)``.

    Raises
    ------
    ValueError
        On bad input.

    Examples
    --------
    Without temperature Post-LN has u e^{2t} -> n:

    >>> round(float(np.exp(gap_exponent(5, 0.0))), 9)
    5.0
    """
    n, beta = validate.integer("n", n, low=2), validate.number("beta", beta, low=0.0, high=_HOTTEST)
    integrand = _INTEGRANDS[bool(attended)]
    with mpmath.workdps(_DIGITS):
        size, temperature = mpmath.mpf(n), mpmath.mpf(beta)
        # The integrand varies on the scales 1/beta (at zero) and 1/n (at one).
        cells = {mpmath.mpf(0), mpmath.mpf(1)}
        cells |= {mpmath.mpf(2) ** -k for k in range(1, 6)} | {1 - mpmath.mpf(2) ** -k for k in range(2, 12)}
        return float(mpmath.quad(lambda v: integrand(v, size, temperature), sorted(cells)))


def escape_integral(n, beta):
    """J(1) in closed form (derived in the chapter on the symmetric start), for n >= 2 and beta > 0.

    ``n J(1) = Ei(b) - ln b - Euler + e^{bn/(n-1)} (E_1(b/(n-1)) - E_1(bn/(n-1))) - ln n``

    >>> round(float(escape_integral(64, 2.0)), 4)
    0.3331
    """
    n, beta = validate.integer("n", n, low=2), validate.number("beta", beta, above=0.0, high=_HOTTEST)
    x = beta * n / (n - 1)
    bracket = np.exp(x) * (exp1(beta / (n - 1)) - exp1(x))
    return float((expi(beta) - np.log(beta) - np.euler_gamma + bracket - np.log(n)) / n)
