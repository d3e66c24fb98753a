"""Tokens in a cone: all inner products at least 1 - delta (Karagodin et al. 2025, Theorem 4.3).

Everything here is accurate in relative terms for tokens that have nearly met, down to where unit vectors in
double precision stop: differences near 1e-16, so variances near 1e-31.
"""

import numpy as np

from attnorm import validate
from attnorm.dynamics import velocity
from attnorm.schemes import unit

# A scale at which tokens around an axis are at a right angle to it.
_FAR = 1e3


def width(theta):
    """The smallest delta with <theta_j, theta_k> >= 1 - delta for all pairs, shape (...,).

    Parameters
    ----------
    theta : array (..., n, d)
        Unit directions.

    Returns
    -------
    array (...,)
        Half the square of the longest chord: 0 for one point, 2 for an antipodal pair.

    Raises
    ------
    ValueError
        If ``theta`` is not an array of at least two dimensions with finite entries.

    Examples
    --------
    >>> float(width(np.eye(3)))
    1.0
    """
    theta = validate.finite_array("theta", theta, ndim=2)
    chords = theta[..., :, np.newaxis, :] - theta[..., np.newaxis, :, :]
    return (chords**2).sum(axis=-1).max(axis=(-2, -1)) / 2


def cloud(rng, shape, delta):
    """Random unit directions of shape (..., n, d) in random cones whose width is ``delta``.

    The tokens are ``N(w + scale z_j)`` with a random axis w and Gaussian z_j orthogonal to it; the scale is
    found by bisection.

    Parameters
    ----------
    rng : numpy.random.Generator
    shape : tuple of int
        ``(..., n, d)`` with n >= 2 and d >= 2; leading dimensions are independent clouds.
    delta : float
        Width, 0 < delta <= 1.

    Returns
    -------
    array of the given shape

    Raises
    ------
    ValueError
        If the shape or ``delta`` is not as above.

    Examples
    --------
    >>> theta = cloud(np.random.default_rng(0), (2, 4, 3), 0.01)
    >>> width(theta).round(12).tolist()
    [0.01, 0.01]
    """
    if len(shape) < 2 or shape[-2] < 2 or shape[-1] < 2:
        raise ValueError(f"shape must be (..., n, d) with n >= 2 and d >= 2; got {shape}")
    delta = validate.number("delta", delta, above=0.0, high=1.0)
    axis = unit(rng.standard_normal((*shape[:-2], 1, shape[-1])))
    spread = np.zeros(shape)
    narrow = np.ones((*shape[:-2], 1, 1), dtype=bool)
    # Tokens that all lie to one side of the axis never get as far apart as delta: draw those clouds again.
    while narrow.any():
        fresh = rng.standard_normal(shape)
        fresh -= (fresh * axis).sum(axis=-1, keepdims=True) * axis
        spread = np.where(narrow, fresh, spread)
        narrow = (width(unit(axis + _FAR * spread)) < delta)[..., np.newaxis, np.newaxis]
    low, high = np.zeros(axis.shape), np.full(axis.shape, _FAR)
    for _ in range(70):
        middle = (low + high) / 2
        wide = (width(unit(axis + middle * spread)) > delta)[..., np.newaxis, np.newaxis]
        low, high = np.where(wide, low, middle), np.where(wide, middle, high)
    return unit(axis + low * spread)


def contractions(rng, shape):
    """Random matrices of shape (..., k, d) with operator norm one: Gaussian, over their largest singular
    value.

    >>> M = contractions(np.random.default_rng(0), (5, 3, 3))
    >>> np.linalg.norm(M, 2, axis=(-2, -1)).round(12).tolist()
    [1.0, 1.0, 1.0, 1.0, 1.0]
    """
    if len(shape) < 2 or min(shape) < 1:
        raise ValueError(f"shape must be (..., k, d) of positive integers; got {shape}")
    M = rng.standard_normal(shape)
    return M / np.linalg.norm(M, 2, axis=(-2, -1), keepdims=True)


def variance_rate(scheme, x, t=0.0, **options):
    """Var' of the directions at tokens ``x`` and depth ``t``, from the velocity of the particles.

    ``Var' = (2/n) sum_j <theta_j - mean, theta_j'>``, exact for any motion of the directions.

    Parameters
    ----------
    scheme : str or Scheme
    x : array (..., n, d)
        Tokens, of any norm but zero.
    t : float
        Depth.
    **options
        As in `attnorm.velocity`: beta, Q, K, V, causal, alpha, tau.

    Returns
    -------
    array (...,)

    Raises
    ------
    ValueError, ArithmeticError
        As `attnorm.velocity`.

    Examples
    --------
    >>> float(variance_rate("post-ln", np.eye(2), beta=0.0).round(12))
    -0.5
    """
    theta_dot, _ = velocity(scheme, x, t, **options)
    theta = unit(validate.tokens("x", x))
    centred = theta - theta.mean(axis=-2, keepdims=True)
    return 2 * (centred * theta_dot).sum(axis=-1).mean(axis=-1)


def rate_bounds(delta, beta, slowest, fastest):
    """Bounds on Var'/Var for V = I and any Q, K with |Q^T K| <= 1, from the width of the cone.

    ``-2 fastest e^eta <= Var'/Var <= -2 (slowest (1 - 5 delta/4) - fastest (e^eta - 1))`` with ``eta = beta
    sqrt(2 delta)`` (derived in the chapter on terminal speed).

    Parameters
    ----------
    delta, beta : float or array
        Width of the cone and inverse temperature.
    slowest, fastest : float or array
        Smallest and largest ``1/s_j`` of a token.

    Returns
    -------
    tuple of two arrays
        Lower and upper bound.

    Examples
    --------
    >>> [round(float(bound), 3) for bound in rate_bounds(1e-6, 1.0, 1.0, 1.0)]
    [-2.003, -1.997]
    """
    delta, beta, slowest, fastest = (
        validate.finite_array(name, value)
        for name, value in (("delta", delta), ("beta", beta), ("slowest", slowest), ("fastest", fastest))
    )
    if min(delta.min(), beta.min(), slowest.min()) < 0 or (fastest < slowest).any():
        raise ValueError("delta, beta and slowest must not be negative, and fastest not below slowest")
    excess = np.expm1(beta * np.sqrt(2 * delta))
    return -2 * fastest * (1 + excess), -2 * (slowest * (1 - 1.25 * delta) - fastest * excess)
