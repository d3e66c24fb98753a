"""Softmax attention on the sphere: A_j = sum_k p_jk V theta_k,  p_jk = softmax_k(beta <Q theta_j, K
theta_k>)."""

import numpy as np
import torch
from scipy.special import softmax
from torch.nn.functional import pad, scaled_dot_product_attention

from attnorm import validate


def attention(theta, *, beta=1.0, Q=None, K=None, V=None, causal=False):
    """Attention vectors A_j (Karagodin et al. 2025, equation of the model).

    Uses the fused kernel of torch: memory O(n d), and the largest logit of a row is subtracted before the
    exponential, so no ``beta`` overflows.

    Parameters
    ----------
    theta : array (..., n, d)
        Directions of n >= 1 tokens, or any vectors on which to attend.
    beta : float
        Inverse temperature, >= 0.
    Q, K : array (k, d), optional
        Query and key matrices; None is the identity (then both must be None or k = d).
    V : array (d, d), optional
        Value matrix; None is the identity.
    causal : bool
        If true, token j attends to tokens k <= j only.

    Returns
    -------
    array (..., n, d)

    Raises
    ------
    ValueError
        If shapes do not fit, an entry is not finite or ``beta`` is negative.

    Examples
    --------
    A single token attends to itself; at beta = 0 every token sees the mean.

    >>> attention(np.array([[0.6, 0.8]])).tolist()
    [[0.6, 0.8]]
    >>> attention(np.eye(2), beta=0.0).tolist()
    [[0.5, 0.5], [0.5, 0.5]]
    """
    theta, Q, K, V = _checked(theta, Q, K, V)
    beta = validate.number("beta", beta, low=0.0)
    return fused(theta, beta, Q, K, V, causal)


def attention_weights(theta, *, beta=1.0, Q=None, K=None, causal=False):
    """The matrix p_jk, shape (..., n, n), in O(n^2) memory; parameters as in `attention`.

    >>> attention_weights(np.eye(2), beta=0.0).tolist()
    [[0.5, 0.5], [0.5, 0.5]]
    """
    theta, Q, K, _ = _checked(theta, Q, K, None)
    beta = validate.number("beta", beta, low=0.0)
    logits = beta * times_matrix(theta, Q) @ np.swapaxes(times_matrix(theta, K), -1, -2)
    if causal:
        n = theta.shape[-2]
        logits = np.where(np.tri(n, dtype=bool), logits, -np.inf)
    return softmax(logits, axis=-1)


def fused(theta, beta, Q, K, V, causal):
    """`attention` without the checks: what the integrator calls at every step."""
    # beta goes into the query: as a scale of zero it would meet the mask's -inf and give NaN.
    query, key, value = (
        torch.from_numpy(np.ascontiguousarray(x))
        for x in (beta * times_matrix(theta, Q), times_matrix(theta, K), times_matrix(theta, V))
    )
    width = max(query.shape[-1], value.shape[-1])
    # The fused kernel wants (batch, head, n, width) with one width for all three; zero columns change no
    # inner product.
    query, key, value = (
        pad(x, (0, width - x.shape[-1])).reshape(-1, 1, x.shape[-2], width) for x in (query, key, value)
    )
    out = scaled_dot_product_attention(query, key, value, is_causal=causal, scale=1.0)
    d = theta.shape[-1]
    return out[..., :d].reshape(theta.shape).numpy()


def times_matrix(theta, M):
    """M theta_j, row by row; None is the identity."""
    return theta if M is None else theta @ np.swapaxes(M, -1, -2)


def check_matrices(shape, Q, K, V):
    """Q, K of shape (..., k, d) and V of shape (..., d, d), as float64 arrays or None, for tokens of `shape`.

    Leading dimensions, where a matrix has any, are those of the tokens.
    """
    d = shape[-1]
    Q, K, V = (
        None if M is None else validate.finite_array(name, M, ndim=2)
        for name, M in (("Q", Q), ("K", K), ("V", V))
    )
    for name, M in (("Q", Q), ("K", K)):
        if M is not None and M.shape[-1] != d:
            raise ValueError(f"{name} must have shape (k, {d}) for tokens of dimension {d}; got {M.shape}")
    rows = [d if M is None else M.shape[-2] for M in (Q, K)]
    if rows[0] != rows[1]:
        raise ValueError(
            f"Q and K must have the same number of rows (None is the identity); got {rows[0]} and {rows[1]}"
        )
    if V is not None and V.shape[-2:] != (d, d):
        raise ValueError(f"V must have shape ({d}, {d}) for tokens of dimension {d}; got {V.shape}")
    for name, M in (("Q", Q), ("K", K), ("V", V)):
        if M is not None and M.shape[:-2] not in ((), shape[:-2]):
            raise ValueError(
                f"{name} must have no leading dimensions or those of the tokens, {shape[:-2]}; got {M.shape}"
            )
    return Q, K, V


def _checked(theta, Q, K, V):
    theta = validate.finite_array("theta", theta, ndim=2)
    return theta, *check_matrices(theta.shape, Q, K, V)
