"""What is measured on a cloud of tokens; every function takes directions ``theta`` of shape (..., n, d)."""

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from scipy.special import logsumexp

from attnorm import validate
from attnorm.schemes import unit


def variance(theta):
    """Var = (1/n) sum_k |theta_k - mean|^2, shape (...,) (Karagodin et al. 2025, Theorem 4.3).

    Accurate in relative terms for clustered tokens, where ``1 - |mean|^2`` would be rounding.
    """
    theta = validate.finite_array("theta", theta, ndim=2)
    centred = theta - theta.mean(axis=-2, keepdims=True)
    return (centred**2).sum(axis=-1).mean(axis=-1)


def gap(theta):
    """1 - mean cosine over pairs j != k, shape (...,); equals n/(n-1) Var for unit directions.

    >>> float(gap(np.eye(4)))
    1.0
    """
    theta = validate.finite_array("theta", theta, ndim=2)
    n = theta.shape[-2]
    if n < 2:
        raise ValueError(f"a pair needs at least two tokens; got n = {n}")
    return n / (n - 1) * variance(unit(theta))


def mean_cosine(theta):
    """Mean of <theta_j, theta_k> over pairs j != k, shape (...,)."""
    return 1.0 - gap(theta)


def log_energy(theta, beta):
    """log(-E), shape (...,), without overflow for any ``beta``; E as in `energy`."""
    theta = validate.tokens("theta", theta)
    beta = validate.number("beta", beta, low=0.0)
    return logsumexp(beta * theta @ np.swapaxes(theta, -1, -2), axis=(-2, -1))


def energy(theta, beta):
    """E = - sum_{j,k} exp(beta <theta_j, theta_k>), shape (...,) (Karagodin et al. 2025, gradient-flow form).

    Leaves the range of floats near beta = 700; `log_energy` does not.

    >>> float(energy(np.eye(2), 0.0))
    -4.0
    """
    return -np.exp(log_energy(theta, beta))


def angular_step(theta):
    """Angle in radians between consecutive states of each token: theta (T, ..., n, d) gives (T - 1, ..., n).

    >>> np.round(angular_step(np.array([[[1.0, 0.0]], [[0.0, 1.0]]])) / np.pi, 12).tolist()
    [[0.5]]
    """
    theta = validate.tokens("theta", theta)
    before, after = unit(theta[:-1]), unit(theta[1:])
    # arccos of a cosine near 1 loses half of the digits; this form keeps them for small and for large angles.
    return 2.0 * np.arctan2(np.linalg.norm(after - before, axis=-1), np.linalg.norm(after + before, axis=-1))


def cluster_count(theta, *, angle=1e-2):
    """Number of clusters of tokens (n, d): components of the graph that joins tokens closer than ``angle``
    (radians).

    >>> cluster_count(np.array([[1.0, 0.0], [1.0, 1e-4], [0.0, 1.0]]))
    2
    """
    theta = unit(validate.tokens("theta", theta))
    if theta.ndim != 2:
        raise ValueError(f"theta must have shape (n, d); got {theta.shape}")
    angle = validate.number("angle", angle, above=0.0, high=np.pi)
    # Chord, not cosine: exact for the small angles that matter here.
    squared_chord = np.maximum(2.0 - 2.0 * theta @ theta.T, 0.0)
    near = squared_chord <= (2.0 * np.sin(angle / 2.0)) ** 2
    return int(connected_components(csr_array(near), directed=False, return_labels=False))


def effective_rank(x):
    """exp of the entropy of the normalised singular values of x (..., n, d) (Roy and Vetterli 2007), shape
    (...,).

    >>> round(float(effective_rank(np.eye(3))), 12)
    3.0
    """
    x = validate.tokens("x", x)
    weights = np.linalg.svd(x, compute_uv=False)
    weights = weights / weights.sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(weights > 0, weights * np.log(weights), 0.0)
    return np.exp(-terms.sum(axis=-1))
