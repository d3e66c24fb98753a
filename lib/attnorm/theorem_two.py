"""The two sides of Theorem 2 of Mudarisov et al. 2025 on the separable share N_s / N, as printed.

Tokens lie on a sphere of radius M at pairwise distances of at least delta. The lower side holds, in every
row; the upper side does not. Definitions of s, r and N_s: `attnorm.separability`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attnorm import separability
from attnorm.capacity import select_top
from attnorm.validate import finite_array, not_negative


@dataclass(frozen=True)
class Sides:
    """Both printed sides of Theorem 2; see `sides`. Every array has the shape of ``r``.

    Attributes
    ----------
    lower : array
        ``1 - sum_i xi_i / (r N)``; it may be negative.
    upper : array
        ``mean_i exp(-(r - xi_i)^2 / (16 M^2))``.
    """

    lower: np.ndarray
    upper: np.ndarray


def xi(selected_weights, radius, delta=0.0) -> np.ndarray:
    """xi_i, the bound on ``|s - a_i x_i|`` for tokens of length M at pairwise distances of at least delta.

    Parameters
    ----------
    selected_weights : array (..., N)
        The weights a_j of the selected tokens.
    radius : number or array (...)
        M, the length of the tokens (or a bound on it).
    delta : number or array (...)
        Smallest distance between two tokens.

    Returns
    -------
    array (..., N)

    Notes
    -----
    arXiv 2508.17821, Theorem 2: ``xi_i^2 = M^2 sum_{j != i} a_j^2 + (M^2 - delta^2 / 2) sum a_j a_k``
    over the pairs j != k of selected tokens other than i. Negative squares, possible only if no such tokens
    exist, give 0.

    Examples
    --------
    >>> xi([0.5, 0.25, 0.125], 2.0).tolist()
    [0.75, 1.25, 1.5]
    """
    a = not_negative("selected_weights", selected_weights, ndim=1)
    m, delta = (
        finite_array(name, value)[..., None] for name, value in (("radius", radius), ("delta", delta))
    )
    if not (m > 0).all() or not (delta >= 0).all():
        raise ValueError("radius must be positive and delta not negative")
    squares = (a**2).sum(axis=-1, keepdims=True) - a**2
    # Sums over the others: the square of the sum holds each pair twice, as the double sum does.
    sums = a.sum(axis=-1, keepdims=True) - a
    pairs = np.maximum(sums**2 - squares, 0)
    return np.sqrt(np.maximum(m**2 * squares + (m**2 - delta**2 / 2) * pairs, 0))


def sides(selected_weights, r, radius, delta=0.0) -> Sides:
    """The two sides of Theorem 2 as printed.

    Parameters
    ----------
    selected_weights : array (..., N)
    r : number or array (...)
        Distance from s to the nearest excluded token; positive.
    radius, delta
        M and delta, as in `xi`.

    Returns
    -------
    Sides
        The lower side holds, the upper one does not: for N = 1 it is below 1, and so below the lower side.

    Examples
    --------
    >>> both = sides([0.5], r=0.5, radius=1.0)
    >>> float(both.lower), bool(both.upper < 1)
    (1.0, True)
    """
    a = not_negative("selected_weights", selected_weights, ndim=1)
    r = finite_array("r", r)
    if not (r > 0).all():
        raise ValueError("r must be positive")
    bound = xi(a, radius, delta)
    m = finite_array("radius", radius)
    lower = 1 - bound.mean(axis=-1) / r
    upper = np.exp(-(((r[..., None] - bound) / (4 * m[..., None])) ** 2)).mean(axis=-1)
    return Sides(lower, upper)


@dataclass(frozen=True)
class RowsOfHeads:
    """Theorem 2 in every row of a head, (L,) or (H, L); NaN in rows that see no more than N tokens.

    Attributes
    ----------
    share : array
        N_s / N.
    lower, upper : array
        The printed sides, with the row's own r, M (its longest token) and delta (its closest pair).
    radius : array
        r, in the units of x.
    """

    share: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    radius: np.ndarray


def rows_of_heads(weights, x, top_n: int, *, causal: bool = True) -> RowsOfHeads:
    """N_s / N of the `top_n` largest weights of every row, next to the two sides of Theorem 2.

    Parameters
    ----------
    weights, x, causal
        As in `attnorm.separability.measure`.
    top_n : int
        N. Of equal weights, the one that comes first counts as the larger.

    Returns
    -------
    RowsOfHeads
        Rows with r = 0 have minus infinity on the lower side.

    Raises
    ------
    ValueError
        As in `attnorm.separability.measure` and `attnorm.capacity.select_top`.

    Examples
    --------
    >>> row = rows_of_heads([[0.5, 0.3, 0.2]], [[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]], 1, causal=False)
    >>> float(row.share[0]), float(row.lower[0]), bool(row.upper[0] < 1)
    (1.0, 1.0, True)
    """
    selected = select_top(weights, top_n, causal=causal)
    found = separability.measure(weights, x, selected, causal=causal)
    a, x, selected = separability.checked(weights, x, selected, causal)
    enough = selected.any(axis=-1) & (found.radius.reshape(a.shape[:2]) < np.inf)
    if not enough.any():
        nothing = np.full(found.radius.shape, np.nan)
        return RowsOfHeads(nothing, nothing, nothing, nothing)
    chosen = a[selected].reshape(-1, top_n)
    spread = np.zeros((*a.shape[:2], top_n))
    spread[selected.any(axis=-1)] = chosen
    longest, closest = zip(*(_extent(tokens, a.shape[1], causal) for tokens in x), strict=True)
    longest, closest = (np.broadcast_to(np.stack(v), a.shape[:2])[enough] for v in (longest, closest))
    r = found.radius.reshape(a.shape[:2])[enough]
    both = sides(spread[enough], np.maximum(r, 1e-300), longest, closest)
    shape = found.radius.shape

    def rows(values):
        whole = np.full(a.shape[:2], np.nan)
        whole[enough] = values
        return whole.reshape(shape)

    share = found.share.reshape(a.shape[:2])[enough]
    lower = np.where(r > 0, both.lower, -np.inf)
    return RowsOfHeads(rows(share), rows(lower), rows(both.upper), rows(r))


def _extent(tokens, rows, causal):
    """Longest token and smallest distance of two tokens among those that each row sees, (rows,) each."""
    norms = np.linalg.norm(tokens, axis=-1)
    centred = tokens - tokens.mean(axis=0)
    square = np.einsum("ld,ld->l", centred, centred)
    apart = square + square[:, None] - 2 * centred @ centred.T
    apart[~np.tri(len(tokens), k=-1, dtype=bool)] = np.inf
    nearest = np.sqrt(np.maximum(apart.min(axis=1), 0))  # to an earlier token
    nearest[0] = np.inf
    longest, closest = np.maximum.accumulate(norms), np.minimum.accumulate(nearest)
    closest[~np.isfinite(closest)] = 0.0
    if causal:
        return longest, closest
    return np.full(rows, longest[-1]), np.full(rows, closest[-1])
