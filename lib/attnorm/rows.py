"""Rows of attention weights, and the tokens that they weigh: what functions of them take, and refuse."""

from __future__ import annotations

import numpy as np

from attnorm.validate import not_negative

#: A row may miss 1 by this much: a float32 softmax misses it by about 1e-6.
ROW_SUM_TOLERANCE = 1e-5


def plain(values) -> np.ndarray:
    """A torch tensor of any floating-point type and on any device, or anything like an array, as an array.

    >>> plain([1, 2]).tolist()
    [1, 2]
    """
    if not hasattr(values, "detach"):
        return np.asarray(values)
    values = values.detach().cpu()
    half = values.is_floating_point() and values.dtype.itemsize < 4  # numpy has no bfloat16
    return (values.float() if half else values).numpy()


def attention_rows(weights) -> np.ndarray:
    """Rows of weights (..., L) in float64.

    Raises
    ------
    ValueError
        If a weight is negative or not finite, or a row does not sum to 1 within `ROW_SUM_TOLERANCE`.

    Examples
    --------
    >>> attention_rows([[0.25, 0.75]]).tolist()
    [[0.25, 0.75]]
    """
    a = not_negative("weights", plain(weights), ndim=1)
    miss = np.abs(a.sum(axis=-1) - 1).max()
    if miss > ROW_SUM_TOLERANCE:
        half = " (half precision does: load the model in float32)" if miss < 1e-2 else ""
        raise ValueError(f"rows of weights must sum to 1; one misses it by {miss:g}{half}")
    return a


def check_heads(weights, causal: bool) -> None:
    """Refuse weights that are not (L, L) or (H, L, L) over at least two tokens; (R, L) too if not causal."""
    shape = weights.shape
    if weights.ndim not in (2, 3) or 0 in shape or (causal and shape[-2] != shape[-1]):
        raise ValueError(f"weights must have shape (L, L) or (H, L, L); got {shape}")
    if shape[-1] < 2:
        raise ValueError(f"weights must be over at least two tokens, or nothing can be excluded; got {shape}")


def check_tokens(x, weights) -> None:
    """Refuse tokens that are not (L, d), for all heads, or (H, L, d), for weights (H, L, L)."""
    length = weights.shape[-1]
    allowed = [(length,)] if weights.ndim == 2 else [(length,), (weights.shape[0], length)]
    if x.shape[:-1] not in allowed:
        shapes = " or ".join(f"({', '.join(map(str, shape))}, d)" for shape in allowed)
        raise ValueError(f"x must have shape {shapes} for weights of shape {weights.shape}; got {x.shape}")


def check_mask(a) -> None:
    """Refuse weights of one head that look ahead."""
    if np.triu(a, 1).any():
        raise ValueError("weights must be zero for j > i; pass causal=False if every row sees every token")
