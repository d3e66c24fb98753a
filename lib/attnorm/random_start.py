"""The random start: directions independent and uniform on the sphere, and what attention makes of them.

With Q = K = V = I, a row of attention is the quotient A_j = N_j / Z_j of two sums::

    Z_j = sum_k e^{beta <theta_j, theta_k>},    N_j = sum_k e^{beta <theta_j, theta_k>} theta_k

Their expectations are exact in n, d and beta (chapter 3 derives them); the quotient of two expectations is
the leading form of |A_j|, of its part along the token and of its part across.
"""

from dataclasses import dataclass

import numpy as np
import sympy as sp
from scipy.special import hyp0f1

from attnorm import validate
from attnorm.attention import check_matrices, times_matrix
from attnorm.schemes import unit

n, d, beta = sp.symbols("n d beta", positive=True)


def cosine_mgf(b, dimension):
    """E exp(b x) for the inner product x of two independent uniform directions: 0F1(; d/2; b^2/4).

    >>> cosine_mgf(2, 3).rewrite(sp.besseli).simplify().equals(sp.sinh(2) / 2)
    True
    """
    return sp.hyper([], [sp.sympify(dimension) / 2], sp.sympify(b) ** 2 / 4)


# E x e^{beta x}: a derivative in beta raises the dimension by two.
FIRST_MOMENT = beta / d * cosine_mgf(beta, d + 2)
NORMALISER = sp.exp(beta) + (n - 1) * cosine_mgf(beta, d)  # E Z_j
RADIAL = sp.exp(beta) + (n - 1) * FIRST_MOMENT  # E <theta_j, N_j>
TANGENTIAL = (n - 1) * (1 - 1 / d) * cosine_mgf(2 * beta, d + 2)  # E |P N_j|^2
NUMERATOR = (  # E |N_j|^2
    sp.exp(2 * beta)
    + 2 * (n - 1) * sp.exp(beta) * FIRST_MOMENT
    + (n - 1) * cosine_mgf(2 * beta, d)
    + (n - 1) * (n - 2) * FIRST_MOMENT**2
)
# The same for large n and d at fixed beta: a part that all tokens share, and a part along the token.
LEADING_RADIAL = beta / d + sp.exp(beta) / n
LEADING_NORM = sp.sqrt(1 / n + LEADING_RADIAL**2)


@dataclass(frozen=True)
class ExpectedAttention:
    """Leading form of an attention vector at a random start; arrays of the shape of the arguments.

    Attributes
    ----------
    norm, radial, turning : array
        ``sqrt(E |N_j|^2) / E Z_j``, ``E <theta_j, N_j> / E Z_j`` and ``sqrt(E |P N_j|^2) / E Z_j``.
        They stand for ``|A_j|``, ``<theta_j, A_j>`` and ``|P A_j|``.
    """

    norm: np.ndarray
    radial: np.ndarray
    turning: np.ndarray


#: Modules with which `sympy.lambdify` turns the expressions above into functions of arrays.
NUMERICS = [{"hyper": lambda _, below, z: hyp0f1(below[0], z)}, "numpy"]

_expected = sp.lambdify(
    (n, d, beta),
    (sp.sqrt(NUMERATOR) / NORMALISER, RADIAL / NORMALISER, sp.sqrt(TANGENTIAL) / NORMALISER),
    NUMERICS,
)


def expected_attention(n, d, beta=1.0):
    """Leading form of an attention vector for n uniform directions in dimension d, with Q = K = V = I.

    The relative error falls like ``1 / sqrt(d)``, for every n (chapter 3).

    Parameters
    ----------
    n, d : int or array
        Number of tokens and dimension, each >= 2; they broadcast.
    beta : float or array
        Inverse temperature, from 0 to 300 (above, the exponentials leave the range of floats).

    Returns
    -------
    ExpectedAttention

    Raises
    ------
    ValueError
        If an argument is out of range.

    Examples
    --------
    In high dimension the tokens are orthogonal, and the symmetric start returns:

    >>> round(float(expected_attention(3, 10**9, 0.0).norm * 3**0.5), 6)
    1.0
    """
    n, d, beta = (validate.finite_array(*pair) for pair in (("n", n), ("d", d), ("beta", beta)))
    for name, value in (("n", n), ("d", d)):
        if not (value >= 2).all():
            raise ValueError(f"{name} must be >= 2; got {value.min():g}")
    if not ((beta >= 0) & (beta <= 300)).all():
        raise ValueError(f"beta must lie between 0 and 300; got {beta.min():g} to {beta.max():g}")
    return ExpectedAttention(*np.broadcast_arrays(*_expected(n, d, beta)))


def uniform_directions(rng, *shape, dtype=np.float64):
    """Independent uniform directions: an array ``shape = (..., n, d)`` of unit vectors.

    Parameters
    ----------
    rng : numpy.random.Generator
    *shape : int
        The last one is the dimension.
    dtype : float64 or float32

    Examples
    --------
    >>> theta = uniform_directions(np.random.default_rng(1), 5, 3)
    >>> bool(np.allclose((theta**2).sum(axis=-1), 1))
    True
    """
    if len(shape) < 2 or min(shape) < 1:
        raise ValueError(f"shape must be (..., n, d) of positive integers; got {shape}")
    return unit(rng.standard_normal(shape, dtype=dtype))


def attention_sums(theta, rows=slice(None), *, beta=1.0, Q=None, K=None, V=None):
    """Z_j and N_j for some rows j, in O(m n) memory for m rows; A_j is their quotient.

    Nothing is subtracted in the exponent: beta |K^T Q| up to about 80 in float32, 700 in float64.

    Parameters
    ----------
    theta : array (..., n, d)
        Directions; float32 stays float32.
    rows : slice or array of int, optional
        The tokens j that attend; all of them by default.
    beta, Q, K, V
        As in `attnorm.attention`.

    Returns
    -------
    Z : array (..., m)
    N : array (..., m, d)

    Examples
    --------
    >>> Z, N = attention_sums(np.eye(4), slice(1), beta=0.0)
    >>> Z.tolist(), N.tolist()
    ([4.0], [[1.0, 1.0, 1.0, 1.0]])
    """
    theta = np.asarray(theta)
    beta = validate.number("beta", beta, low=0.0)
    Q, K, V = (None if M is None else M.astype(theta.dtype) for M in check_matrices(theta.shape, Q, K, V))
    logits = times_matrix(theta[..., rows, :], Q) @ np.swapaxes(times_matrix(theta, K), -1, -2)
    weights = np.exp(theta.dtype.type(beta) * logits)
    return weights.sum(axis=-1), times_matrix(weights @ theta, V)


def mean_and_spread(theta):
    """``|mean|`` of the directions and the spectral norm of ``S = (1/n) sum_k theta_k theta_k^T``.

    Parameters
    ----------
    theta : array (..., n, d)

    Returns
    -------
    mean, spread : array (...,)
    """
    theta = validate.finite_array("theta", theta, ndim=2)
    count, dimension = theta.shape[-2:]
    transposed = np.swapaxes(theta, -1, -2)
    gram = theta @ transposed if count <= dimension else transposed @ theta
    spread = np.linalg.eigvalsh(gram)[..., -1] / count
    return np.linalg.norm(theta.mean(axis=-2), axis=-1), spread


def attention_bound(mean, spread, beta=1.0):
    """``|A_j| <= e^{beta mean} (mean + (e^beta - 1) spread)``, for all tokens at once.

    Holds for any directions with these two numbers (`mean_and_spread`), and |K^T Q| <= 1, |V| <= 1.

    >>> float(attention_bound(0.0, 0.5, beta=0.0))
    0.0
    """
    beta, mean, spread = (
        validate.finite_array(*pair) for pair in (("beta", beta), ("mean", mean), ("spread", spread))
    )
    if min(beta.min(), mean.min(), spread.min()) < 0:
        raise ValueError("beta, mean and spread must not be negative")
    return np.exp(beta * mean) * (mean + np.expm1(beta) * spread)


def random_mean_and_spread(n, d, p):
    """Upper bounds of `mean_and_spread` for n uniform directions; all hold together with probability 1 - 3p.

    From the method of bounded differences for the mean, from Davidson and Szarek's bound on a Gaussian matrix
    and Chernoff's bound on the lengths of its rows for the spread.

    Parameters
    ----------
    n, d : int or array
    p : float or array
        Probability, between 0 and 1.

    Returns
    -------
    mean, spread : array
        Never above 1, which bounds both for any unit vectors.

    Examples
    --------
    >>> mean, spread = random_mean_and_spread(10**6, 10**4, 1e-3)
    >>> round(float(mean), 4), round(float(spread * 1e4), 1)
    (0.0047, 1.3)
    """
    n, d, p = (validate.finite_array(*pair) for pair in (("n", n), ("d", d), ("p", p)))
    if min(n.min(), d.min()) < 1:
        raise ValueError(f"n and d must be >= 1; got {n.min():g} and {d.min():g}")
    n, d, p = np.broadcast_arrays(n, d, p)
    if not ((p > 0) & (p < 1)).all():
        raise ValueError(f"p must lie between 0 and 1; got {p.min():g} to {p.max():g}")
    wide = np.sqrt(2 * np.log(1 / p))
    shortest = d - 2 * np.sqrt(d * np.log(n / p))  # of the squared rows of the Gaussian matrix
    spread = np.ones(n.shape)
    np.divide((np.sqrt(n) + np.sqrt(d) + wide) ** 2, n * shortest, out=spread, where=shortest > 0)
    return np.minimum((1 + wide) / np.sqrt(n), 1.0), np.minimum(spread, 1.0)
