"""How far the other tokens lie from N tokens drawn at random (Mudarisov et al. 2025, Theorem 1, part 2).

For one row of attention weights a_1, ..., a_L over tokens x_1, ..., x_L let y_i = a_i x_i and Y = sum_i y_i.
A set I of N tokens is drawn uniformly; s and dt are those of `attnorm.capacity`. Then, with c = N / (L - 1),

    E dt = ((L - N) / L) sum_i E[ |y_i - s| given i not in I ]
    E[ s given i not in I ] = c (Y - y_i)
    tr Cov( s given i not in I ) = N (1 - c) / (L - 2) sum_{j != i} |y_j - (Y - y_i) / (L - 1)|^2

so Jensen's inequality bounds each term from both sides, and the triangle inequality from above.
All of it follows from |y_i| and <y_i, Y>: once a row has them, a further N costs elementwise work only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attnorm.rows import attention_rows, check_heads, check_mask, check_tokens, plain
from attnorm.validate import finite_array, integer

_BLOCK = 64  # rows: a block's arrays fit a processor's cache


@dataclass(frozen=True)
class Expected:
    """What `expected_distance` finds in each row.

    `main`, `gap_bound` and `printed` have the shape (L,), or (H, L) for several heads; for several set sizes
    these are along a new first axis. A row that sees fewer than N + 1 tokens, or only one, is NaN there.

    Attributes
    ----------
    set_size : int or tuple of int
        N, the number of tokens drawn.
    main : array
        Main term, ``((L - N) / L) sum_i |(1 + c) y_i - c Y|``; E dt is at least this. In the units of x.
    gap_bound : array
        E dt is at most ``main + gap_bound``. In the units of x.
    printed : array
        The main term as printed, ``((L - N) / L) sum_i |(a_i + c) x_i - xbar|``, read with
        ``xbar = sum_j a_j x_j``. It is not a main term of E dt. In the units of x.
    output_norm : array (L,) or (H, L)
        \\|Y|, the length of the whole output, in the units of x.
    mean_length : array (L,) or (H, L)
        ``sum_i a_i |x_i|``, in the units of x.
    """

    set_size: int | tuple[int, ...]
    main: np.ndarray
    gap_bound: np.ndarray
    printed: np.ndarray
    output_norm: np.ndarray
    mean_length: np.ndarray

    @property
    def upper(self) -> np.ndarray:
        """``main + gap_bound``: E dt is at most this."""
        return self.main + self.gap_bound


def expected_distance(
    weights, x, set_size: int | Sequence[int], *, causal: bool = True, gap: bool = True
) -> Expected:
    """Bounds on the mean distance of a uniformly random set of N tokens, for every row.

    Parameters
    ----------
    weights : array (L, L) or (H, L, L)
        Attention weights; each row is a distribution. If not causal, there may be more or fewer rows than L.
    x : array (L, d) or (H, L, d)
        What the weights average: one set of tokens for all heads, or one for each.
    set_size : int or sequence of int
        N, or several of them, which share most of the work.
    causal : bool
        Row i sees tokens j <= i only, and L is their number. Else every row sees every token.
    gap : bool
        False leaves `gap_bound` out (NaN), and takes little more than half of the time.

    Returns
    -------
    Expected

    Raises
    ------
    ValueError
        If shapes do not fit, an entry is not finite, a weight is negative, a row does not sum to 1 or (if
        causal) looks ahead, L = 1, or a set size is not an integer from 1 to L - 1.

    Notes
    -----
    Source: arXiv 2508.17821, Theorem 1 part 2, for `printed`; `main` and `gap_bound` are derived in the
    chapter on distance. The bound from above takes for each token the smaller of ``sqrt(m_i^2 + v_i)``, with
    m_i the token's part of the main term and v_i the trace of the covariance, and
    ``(1 - c) |y_i| + c sum_j |y_j|``.
    Computed in float64 from squares, so that a term that cancels keeps an error of about 1e-8 of its parts.

    Examples
    --------
    Two tokens, one drawn: the other one lies at \\|y_1 - y_2| from it, whichever it is.

    >>> found = expected_distance([[0.25, 0.75]], [[1.0], [1.0]], 1, causal=False)
    >>> float(found.main[0]), float(found.gap_bound[0])
    (0.5, 0.0)
    """
    weights, x = plain(weights), finite_array("x", plain(x), ndim=2)
    check_heads(weights, causal)
    check_tokens(x, weights)
    several = np.ndim(set_size) > 0
    sizes = [integer("set_size", size, low=1) for size in (set_size if several else [set_size])]
    if not sizes or max(sizes) >= weights.shape[-1]:
        most = weights.shape[-1] - 1
        raise ValueError(f"set_size must be at most the number of tokens less one, {most}; got {set_size}")
    heads = weights if weights.ndim == 3 else weights[None]
    terms = np.empty((3, len(sizes), *heads.shape[:2]))
    norms = np.empty((2, *heads.shape[:2]))
    for head, a in enumerate(heads):
        a = attention_rows(a)
        if causal:
            check_mask(a)
        own = x[head] if x.ndim == 3 else x
        _one_head(a, own, sizes, causal, gap, terms[:, :, head], norms[:, head])
    if weights.ndim == 2:
        terms, norms = terms[:, :, 0], norms[:, 0]
    if not several:
        terms = terms[:, 0]
    return Expected(tuple(sizes) if several else sizes[0], *terms, *norms)


def _one_head(a, x, sizes, causal, gap, terms, norms):
    """Fill `terms` (3, sizes, rows) and `norms` (2, rows) for one head."""
    output, squares = a @ x, np.einsum("ld,ld->l", x, x)
    for start in range(0, len(a), _BLOCK):
        rows = slice(start, min(start + _BLOCK, len(a)))
        seen = rows.stop if causal else a.shape[1]
        visible = np.arange(start + 1, rows.stop + 1) if causal else np.full(rows.stop - start, seen)
        block = _Block(a[rows, :seen], x[:seen], squares[:seen], output[rows], visible)
        norms[:, rows] = block.norms()
        for k, size in enumerate(sizes):
            terms[:, k, rows] = block.terms(size, gap)


class _Block:
    """Some rows of a head, cut to the columns that any of them sees, and what does not depend on N."""

    def __init__(self, a, x, squares, output, visible):
        self.count = visible[:, None].astype(float)
        self.hidden_from = visible.min()
        self.mask = np.arange(self.hidden_from, len(x)) < visible[:, None]
        self.whole = np.einsum("rd,rd->r", output, output)[:, None]  # |Y|^2
        self.squares = squares  # |x_i|^2
        along = output @ x.T  # <x_i, Y>
        self.along_y = a * along  # <y_i, Y>
        self.length = a * np.sqrt(squares)  # |y_i|
        self.square = self.length**2
        self.mean_length = self.length.sum(axis=1, keepdims=True)
        self.power = self.square.sum(axis=1, keepdims=True)
        # The square of |(a_i + c) x_i - Y| is this first one, plus 2c times the second, plus c^2 |x_i|^2.
        self.from_output = self.square - 2 * self.along_y + self.whole
        self.slope = np.subtract(a * squares, along, out=along)
        self.work = np.empty((2, *a.shape))

    def norms(self):
        return np.concatenate([np.sqrt(self.whole), self.mean_length], axis=1).T

    def terms(self, size, gap):
        """main, gap_bound and printed (3, rows) of one set size; NaN in rows that see too few tokens."""
        n = self.count
        c = size / np.maximum(n - 1, 1)
        # main: m_i^2 = (1 + c)^2 |y_i|^2 - 2c (1 + c) <y_i, Y> + c^2 |Y|^2
        main = self._total(
            self._root((1 + c) ** 2, self.square, -2 * c * (1 + c), self.along_y, c**2 * self.whole)
        )
        upper = self._upper(size, c) if gap else np.full_like(main, np.nan)
        printed = self._total(self._root(2 * c, self.slope, c**2, self.squares, self.from_output))
        found = np.concatenate([main, np.maximum(upper - main, 0), printed], axis=1) * (1 - size / n)
        return np.where((n > size) & (n > 1), found, np.nan).T

    def _upper(self, size, c):
        """The bound from above on the sum over the tokens, (rows, 1)."""
        n = self.count
        # v_i = f [power - |y_i|^2 - |Y - y_i|^2 / (n - 1)], and m_i^2 + v_i is another such form
        f = np.where(n > 2, size * (1 - c) / np.maximum(n - 2, 1), 0.0)
        each = f / np.maximum(n - 1, 1)
        constant = (c**2 - each) * self.whole + f * self.power
        spread = self._root(
            (1 + c) ** 2 - f - each, self.square, 2 * each - 2 * c * (1 + c), self.along_y, constant
        )
        straight = np.multiply(self.length, 1 - c, out=self.work[1])
        straight += c * self.mean_length
        return self._total(np.minimum(spread, straight, out=spread))

    def _root(self, p, u, q, v, constant):
        """sqrt(p u + q v + constant), in the first array for work."""
        out, product = self.work
        np.multiply(u, p, out=out)
        out += np.multiply(v, q, out=product)
        out += constant
        return np.sqrt(np.maximum(out, 0, out=out), out=out)

    def _total(self, values):
        values[:, self.hidden_from :] *= self.mask
        return values.sum(axis=1, keepdims=True)
