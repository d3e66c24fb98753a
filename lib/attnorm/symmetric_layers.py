"""Stacks of layers from the symmetric start: the gap and the norm after each layer, at any size of the gap.

All pairs keep one inner product under a layer too. A layer makes ``p theta_j + q A_j`` of a token and then
rescales it, so with ``pi = (e^beta - e^{beta gamma}) / Z``, the eigenvalue of the attention matrix on vectors
that sum to zero, the gap follows ::

    u  <-  u (p + q pi)^2 / (p^2 + 2 p q rho + q^2 a^2)

without any difference of nearly equal numbers. Coefficients p and q are read off `Scheme.layer`.
"""

from dataclasses import dataclass

import numpy as np
import sympy as sp

from attnorm import validate
from attnorm.dynamics import check_tau
from attnorm.schemes import get_scheme
from attnorm.symmetric import ALIGNMENT, ATTENTION_NORM, beta, n, u

_state = sp.lambdify((u, n, beta), (ALIGNMENT, ATTENTION_NORM), "numpy")


@dataclass(frozen=True)
class EquiangularLayers:
    """The symmetric start layer by layer; every array has shape (L + 1,), entry 0 is the start.

    Attributes
    ----------
    times, gap, radius
        Depth ``k step``, ``1 - gamma`` (accurate in relative terms down to 1e-300), common norm.
    """

    times: np.ndarray
    gap: np.ndarray
    radius: np.ndarray


def equiangular_layers(scheme, n_layers, *, n, beta, step=1.0, r0=1.0, alpha=1.0, tau=None):
    """Apply the layer of a scheme to n orthonormal directions of norm r0, with Q = K = V = I.

    The same tokens as ``run_layers(scheme, r0 * np.eye(n), n_layers, ...)``, but two numbers per layer, and
    no rounding at small gaps.

    Parameters
    ----------
    scheme : str or Scheme
    n_layers : int
        >= 0.
    n : int
        Number of tokens, >= 2.
    beta : float
        Inverse temperature, >= 0.
    step : float
        Length of one layer in depth, > 0.
    r0 : float
        Initial norm, > 0.
    alpha : float or callable of t
        Step of nGPT, >= 0.
    tau : float, optional
        Depth of Mix-LN's switch, >= 0.

    Returns
    -------
    EquiangularLayers

    Raises
    ------
    ValueError
        On bad input.

    Examples
    --------
    Near the cluster a Post-LN layer of step 1 divides the gap by four:

    >>> stack = equiangular_layers("post-ln", 60, n=8, beta=1.0)
    >>> round(float(stack.gap[59] / stack.gap[60]), 9)
    4.0
    """
    scheme = get_scheme(scheme)
    n_layers = validate.integer("n_layers", n_layers, low=0)
    n, beta = validate.integer("n", n, low=2), validate.number("beta", beta, low=0.0)
    step, r0 = validate.number("step", step, above=0.0), validate.number("r0", r0, above=0.0)
    alpha, tau = validate.depth_function("alpha", alpha, low=0.0), check_tau(scheme, tau)
    keeps_norm = {late: scheme.laws(late)[1] == 0 for late in (False, True)}
    gap, radius = np.ones(n_layers + 1), np.full(n_layers + 1, r0)
    for k in range(n_layers):
        t, late = k * step, scheme.switches and k * step >= tau
        rho, a = (float(value) for value in _state(gap[k], n, beta))
        p, q = _coefficients(scheme, radius[k], a, step, t, alpha(t), tau)
        norm_squared = p * p + 2 * p * q * rho + q * q * a * a
        mixing = -np.expm1(-beta * gap[k]) / (1 + (n - 1) * np.exp(-beta * gap[k]))
        gap[k + 1] = gap[k] * (p + q * mixing) ** 2 / norm_squared
        radius[k + 1] = radius[k] if keeps_norm[late] else np.sqrt(norm_squared)
    return EquiangularLayers(step * np.arange(n_layers + 1), gap, radius)


def _coefficients(scheme, radius, a, step, t, alpha, tau):
    """p and q of a layer, up to a common factor where it normalises: its action on two orthogonal vectors,
    on which it must be the same combination."""
    token, attended = np.array([[radius, 0.0]]), np.array([[0.0, a]])
    along, across = scheme.layer(token, lambda theta: attended, step, t, alpha, tau)[0]
    return along, across / a
