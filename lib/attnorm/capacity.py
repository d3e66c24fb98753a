"""How far the tokens that attention leaves out lie from the ones it selects (Mudarisov et al. 2025).

For one row of attention weights a_1, ..., a_n over tokens x_1, ..., x_n, a set I of N selected tokens gives

    s = sum_{j in I} a_j x_j               the selected context, not renormalised
    abar = sum_{j in I} a_j                the selected mass
    dt = sum_{i not in I} |a_i x_i - s|    the distance of the excluded tokens
    N_s = #{i in I : |a_i x_i - s| < min_{k not in I} |a_k x_k - s|}    the separable tokens

The rows of a head are done together, by matrix products in float64.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property, partial

import numpy as np
from scipy import sparse

from attnorm.parallel import each
from attnorm.rows import attention_rows, check_heads, check_mask, check_tokens, plain
from attnorm.validate import finite_array, integer

# |a x - s|^2 is made of inner products. Where it is this small against its terms, rounding would show
# (1e-16 / 1e-4 is the relative error left elsewhere), and the vectors themselves are subtracted.
_CANCELLED = 1e-4
_CANCELLED_SINGLE = 1e-2  # the same in single precision, for a relative error of 1e-5
# Squared distances that differ by less than this, relatively, are equal: rounding makes less of equal ones.
_TIE = 1e-10
# Rows are taken in blocks that fit a processor's cache; a causal block leaves out columns that it cannot see.
_BLOCK = 128
_CHUNK = 2**20  # numbers in a temporary array


@dataclass(frozen=True)
class Capacity:
    """What `measure` finds in each row; every array has shape (L,), or (H, L) for several heads.

    A row that sees fewer than ``top_n`` tokens is NaN everywhere.

    Attributes
    ----------
    top_n : int
        N, the number of selected tokens.
    excluded : array
        Number of tokens that the row sees and does not select.
    distance : array
        dt, in the units of x; 0 (an empty sum) where no token is excluded.
    distance_bound : array
        Theorem 1, part 1: ``(1 - abar) d1 + max_{j in I} |x_j| (abar excluded - (1 - abar))``, where d1 is
        the largest distance from a selected to an excluded token; in the units of x.
    separable_share : array
        N_s / N; 1 where no token is excluded, since then nothing lies nearer to s than a selected token.
    selected_mass : array
        abar.
    context_norm : array
        \\|s|, in the units of x.
    excluded_length : array
        Sum of ``a_i |x_i|`` over the excluded tokens, in the units of x.
    """

    top_n: int
    excluded: np.ndarray
    distance: np.ndarray
    distance_bound: np.ndarray
    separable_share: np.ndarray
    selected_mass: np.ndarray
    context_norm: np.ndarray
    excluded_length: np.ndarray

    @property
    def leading(self) -> np.ndarray:
        """``excluded |s|``, which dt is never farther from than `excluded_length`."""
        return self.excluded * self.context_norm

    @property
    def distance_lower(self) -> np.ndarray:
        """Lower bound of the book, by the triangle inequality: ``leading - excluded_length``."""
        return self.leading - self.excluded_length

    @property
    def distance_upper(self) -> np.ndarray:
        """Upper bound of the book, by the triangle inequality: ``leading + excluded_length``."""
        return self.leading + self.excluded_length

    @property
    def ratio(self) -> np.ndarray:
        """``dt / leading``; NaN where no token is excluded or s = 0."""
        leading = self.leading
        return np.divide(self.distance, leading, out=np.full_like(leading, np.nan), where=leading > 0)


def measure(weights, x, top_n: int, *, causal: bool = True) -> Capacity:
    """Distance and separability of the `top_n` largest weights of every row.

    Parameters
    ----------
    weights : array (L, L) or (H, L, L)
        Attention weights; each row is a distribution. If not causal, there may be more or fewer rows than L.
    x : array (L, d) or (H, L, d)
        What the weights average: one set of tokens for all heads, or one for each.
    top_n : int
        N. Of equal weights, the one that comes first counts as the larger.
    causal : bool
        Row i sees tokens j <= i only, and no sum has any other. Else every row sees every token.

    Returns
    -------
    Capacity

    Raises
    ------
    ValueError
        If shapes do not fit, an entry is not finite, a weight is negative, a row does not sum to 1 or (if
        causal) looks ahead, L = 1, or `top_n` is not an integer from 1 to L.

    Notes
    -----
    Source: arXiv 2508.17821, Theorem 1 part 1 for the bound; what it calls L is here the number of tokens
    that the row sees. 1 - abar is summed over the excluded tokens, so that the bound also holds for a row
    that misses 1 by rounding.

    Examples
    --------
    One row, d = 1, and s = 0.5: both excluded tokens are at 0, so dt = 0.5 + 0.5.

    >>> row = measure([[0.5, 0.3, 0.2]], [[1.0], [0.0], [0.0]], 1, causal=False)
    >>> float(row.distance[0]), float(row.distance_bound[0]), float(row.separable_share[0])
    (1.0, 1.0, 1.0)
    """
    return measure_each(weights, x, [top_n], causal=causal)[0]


def measure_each(weights, x, top_ns, *, causal: bool = True) -> list[Capacity]:
    """`measure` for several N, which share what does not depend on N.

    Heads are measured on as many threads as torch uses.

    Parameters
    ----------
    weights, x, causal
        As in `measure`.
    top_ns : sequence of int

    Returns
    -------
    list of Capacity
        One for each N.

    Raises
    ------
    ValueError
        As in `measure`, or if there is no N.

    Examples
    --------
    >>> rows = [[0.5, 0.3, 0.2]]
    >>> found = measure_each(rows, [[1.0], [0.0], [0.0]], [1, 2], causal=False)
    >>> [float(each.distance[0]) for each in found]
    [1.0, 0.5]
    """
    weights, x = _weights(weights, causal), finite_array("x", plain(x), ndim=2)
    top_ns = [_top_n(top_n, weights) for top_n in top_ns]
    if not top_ns:
        raise ValueError("top_ns must name at least one N")

    def rows_of(a, tokens):
        by_block = [
            [_rows(block, tokens, _largest(block, top_n), top_n) for top_n in top_ns]
            for block in _blocks(a, causal)
        ]
        return list(zip(*by_block, strict=True))

    heads = _each_head(weights, x, causal, rows_of)
    return [Capacity(top_n, *_gather([head[k] for head in heads], weights)) for k, top_n in enumerate(top_ns)]


def distances(weights, x, top_ns, *, causal: bool = True, rows: int | None = None) -> np.ndarray:
    """dt alone of the top N of every row, for several N, in single precision.

    Several times as fast as `measure_each`, and within about 1e-5 of it, relatively.

    Parameters
    ----------
    weights, x, top_ns, causal
        As in `measure_each`.
    rows : int, optional
        Only the first so many rows; with a causal mask, they are a window of so many tokens.

    Returns
    -------
    array (len(top_ns), L) or (len(top_ns), H, L)
        In the units of x; L is `rows` where that is given. NaN where a row sees fewer than N tokens.

    Raises
    ------
    ValueError
        As in `measure_each`, or if there are fewer rows.

    Examples
    --------
    >>> distances([[0.5, 0.3, 0.2]], [[1.0], [0.0], [0.0]], [1, 2], causal=False).tolist()
    [[1.0], [0.5]]
    """
    weights, x = _weights(weights, causal), finite_array("x", plain(x), ndim=2)
    rows = weights.shape[-2] if rows is None else integer("rows", rows, low=2 if causal else 1)
    if rows > weights.shape[-2]:
        raise ValueError(f"rows must be at most {weights.shape[-2]}; got {rows}")
    if causal:
        weights, x = weights[..., :rows, :rows], x[..., :rows, :]
    else:
        weights = weights[..., :rows, :]
    top_ns = [_top_n(top_n, weights) for top_n in top_ns]
    if not top_ns:
        raise ValueError("top_ns must name at least one N")

    def rows_of(a, tokens):
        found = np.full((len(top_ns), len(a)), np.nan)
        vectors, squares = tokens.x.astype(np.float32), tokens.squares.astype(np.float32)
        for block in _blocks(a, causal):
            near, close = vectors[: block.seen], squares[: block.seen]
            shrunk = block.weights.astype(np.float32)
            lengths, twice = shrunk**2 * close, -2 * shrunk
            for k, top_n in enumerate(top_ns):
                chosen = _largest(block, top_n)
                s = (shrunk * chosen) @ near
                s_squared = np.einsum("md,md->m", s, s)[:, None]
                square = s @ near.T
                square *= twice
                square += lengths
                square += s_squared
                excluded = block.visible & ~chosen
                m, i = _places((square < _CANCELLED_SINGLE * (lengths + s_squared)) & excluded)
                away = partial(_away, shrunk, near, s, m, i)
                _subtract(square, (m, i), away, near.shape[1])
                np.sqrt(np.maximum(square, 0, out=square), out=square)
                square *= excluded
                found[k, block.rows] = np.where(block.count >= top_n, square.sum(axis=1), np.nan)
        return found

    found = np.stack(_each_head(weights, x, causal, rows_of), axis=1)
    return found if weights.ndim == 3 else found[:, 0]


def stack(layers) -> Capacity:
    """Capacities of several layers as one, with a new first axis: (layers, L) or (layers, H, L).

    Raises
    ------
    ValueError
        If there are none, or they were measured with different ``top_n``.

    Examples
    --------
    >>> row = measure([[0.5, 0.3, 0.2]], [[1.0], [0.0], [0.0]], 1, causal=False)
    >>> stack([row, row]).distance.shape
    (2, 1)
    """
    layers = list(layers)
    numbers = sorted({layer.top_n for layer in layers})
    if len(numbers) != 1:
        raise ValueError(f"layers must share one top_n; got {numbers or 'no layers'}")
    names = [field.name for field in fields(Capacity)[1:]]
    return Capacity(numbers[0], *(np.stack([getattr(layer, name) for layer in layers]) for name in names))


def distance(weights, x, selected, *, causal: bool = True) -> np.ndarray:
    """dt of every row for sets I of any kind, not only of the largest weights.

    Parameters
    ----------
    weights, x, causal
        As in `measure`.
    selected : array of bool (L, L) or (H, L, L)
        Which tokens each row selects. A row that selects none has s = 0.

    Returns
    -------
    array (L,) or (H, L)
        In the units of x.

    Raises
    ------
    ValueError
        As in `measure`, or if `selected` has another shape than `weights`, is not boolean, or has tokens that
        the row does not see.

    Examples
    --------
    The set need not hold the largest weight.

    >>> float(distance([[0.25, 0.75]], [[1.0], [1.0]], [[True, False]], causal=False)[0])
    0.5
    """
    weights, x = _weights(weights, causal), finite_array("x", plain(x), ndim=2)
    selected = np.asarray(selected)
    if selected.dtype != bool or selected.shape != weights.shape:
        raise ValueError(
            f"selected must be boolean, of the shape of weights {weights.shape}; "
            f"got {selected.dtype} of shape {selected.shape}"
        )
    masks = selected if selected.ndim == 3 else selected[None]
    found = []
    for mask, (a, tokens) in zip(masks, _heads(weights, x, causal), strict=True):
        blocks = []
        for block in _blocks(a, causal):
            chosen = mask[block.rows]
            if (chosen[:, : block.seen] & ~block.visible).any() or chosen[:, block.seen :].any():
                raise ValueError("selected must hold only tokens that the row sees: j <= i with causal=True")
            chosen = chosen[:, : block.seen]
            squares, _ = _squared_distances(block, tokens, _places(chosen))
            blocks.append([(np.sqrt(squares) * (block.visible & ~chosen)).sum(axis=1)])
        found.append(blocks)
    return _gather(found, weights)[0]


def select_top(weights, top_n: int, *, causal: bool = True) -> np.ndarray:
    """The `top_n` largest weights of each row, as a boolean array of the shape of `weights`.

    Rows that see fewer tokens select none. See `measure` for arguments, ties and errors.

    Examples
    --------
    >>> select_top([[0.2, 0.4, 0.4]], 1, causal=False).tolist()
    [[False, True, False]]
    """
    weights = _weights(weights, causal)
    top_n = _top_n(top_n, weights)
    selected = np.zeros(weights.shape, dtype=bool)
    for head, mask in enumerate(selected if weights.ndim == 3 else selected[None]):
        for block in _blocks(_checked(weights if weights.ndim == 2 else weights[head], causal), causal):
            mask[block.rows, : block.seen] = _largest(block, top_n)
    return selected


@dataclass(frozen=True)
class _Block:
    """Some rows of a head, cut to the columns that any of them sees."""

    rows: slice
    seen: int
    weights: np.ndarray
    visible: np.ndarray

    @cached_property
    def count(self):
        """Tokens that each row sees."""
        return self.visible.sum(axis=1)

    @cached_property
    def seen_weights(self):
        return np.where(self.visible, self.weights, -1.0)

    @cached_property
    def ranked(self):
        """The weights of each row in rising order, behind as many -1 as there are tokens that it misses."""
        return np.sort(self.seen_weights, axis=1)


def _blocks(a, causal):
    for start in range(0, len(a), _BLOCK):
        rows = slice(start, min(start + _BLOCK, len(a)))
        seen = rows.stop if causal else a.shape[1]
        visible = np.tri(rows.stop - start, seen, start if causal else seen, dtype=bool)
        yield _Block(rows, seen, a[rows, :seen], visible)


class _Tokens:
    """The tokens of a head and what depends on nothing else, so that heads with the same tokens share it."""

    def __init__(self, x, causal):
        self.x, self.causal = x, causal
        self.squares = np.einsum("ld,ld->l", x, x)
        self.norms = np.sqrt(self.squares)

    @cached_property
    def gram(self):
        return self.x @ self.x.T

    @cached_property
    def apart(self):
        """Squared distances of all pairs (L, L)."""
        centred = self.x - self.x.mean(axis=0)  # distances do not change, and lose fewer digits
        square = np.einsum("ld,ld->l", centred, centred)
        apart = centred @ centred.T
        apart *= -2
        apart += square
        apart += square[:, None]
        j, i = _places(apart < _CANCELLED * (square + square[:, None]))
        _subtract(apart, (j, i), lambda part: centred[j[part]] - centred[i[part]], self.x.shape[1])
        return apart

    @cached_property
    def reach(self):
        """Entry (j, i): the squared distance from j to the farthest of the tokens 0 ... i."""
        return np.maximum.accumulate(self.apart, axis=1)

    @cached_property
    def farthest(self):
        """Entry (j, i): which of the tokens 0 ... i that is."""
        attained = (self.apart >= self.reach) * np.arange(len(self.x), dtype=np.int32)
        return np.maximum.accumulate(attained, axis=1)

    def widest(self, block, places, excluded):
        """d1 of each row: the largest distance from a selected to an excluded token; 0 without a pair."""
        rows, chosen = places
        last = block.rows.start + rows if self.causal else np.full_like(rows, len(self.x) - 1)
        reach = self.reach[chosen, last]
        settled = excluded[rows, self.farthest[chosen, last]]
        widest = np.zeros(len(excluded))
        np.maximum.at(widest, rows[settled], reach[settled])
        # Where the farthest token is selected itself, look for the next, if it can still matter: few pairs.
        pairs = np.flatnonzero(~settled & (reach > widest[rows]))
        for part in np.array_split(pairs, 1 + len(pairs) * block.seen // _CHUNK):
            apart = np.where(excluded[rows[part]], self.apart[chosen[part], : block.seen], 0.0)
            np.maximum.at(widest, rows[part], apart.max(axis=1, initial=0.0))
        return np.sqrt(widest)


def _rows(block, tokens, selected, top_n):
    """The fields of `Capacity` for the rows of a block."""
    a, norms = block.weights, tokens.norms[: block.seen]
    excluded = block.visible & ~selected
    places = rows, columns = _places(selected)
    squares, s_squared = _squared_distances(block, tokens, places)
    nearest = np.where(excluded, squares, np.inf).min(axis=1)
    separable = rows[squares[places] < nearest[rows] * (1 - _TIE)]
    rest, excluded_length = ((a * excluded) @ np.stack([np.ones_like(norms), norms], axis=1)).T
    count = excluded.sum(axis=1).astype(float)
    mass = np.bincount(rows, a[places], minlength=len(a))
    longest = np.zeros(len(a))
    np.maximum.at(longest, rows, norms[columns])
    bound = rest * tokens.widest(block, places, excluded) + longest * (mass * count - rest)
    found = (
        count,
        (np.sqrt(squares, out=squares) * excluded).sum(axis=1),
        bound,
        np.bincount(separable, minlength=len(a)) / top_n,
        mass,
        np.sqrt(s_squared),
        excluded_length,
    )
    return [np.where(block.count >= top_n, value, np.nan) for value in found]


def _squared_distances(block, tokens, places):
    """|a_i x_i - s|^2 of each row and token seen, and |s|^2 of each row."""
    a, x = block.weights, tokens.x[: block.seen]
    rows, columns = places
    starts = np.searchsorted(rows, np.arange(len(a) + 1))
    chosen = sparse.csr_array((a[rows, columns], columns, starts), shape=a.shape)
    s = chosen @ x
    s_squared = np.einsum("md,md->m", s, s)
    # <x_i, s>, by the cheaper of two ways: a sparse product costs some sixteen times as much a number.
    few = 16 * len(rows) < x.shape[1] * len(a)
    inner = chosen @ tokens.gram[: block.seen, : block.seen] if few else s @ x.T
    lengths = a * a
    lengths *= tokens.squares[: block.seen]
    lengths += s_squared[:, None]
    inner *= a
    inner *= 2
    squares = np.subtract(lengths, inner, out=inner)
    lengths *= _CANCELLED
    m, i = _places(squares < lengths)
    _subtract(squares, (m, i), partial(_away, a, x, s, m, i), x.shape[1])
    return squares, s_squared


def _away(a, x, s, m, i, part):
    """The vectors a_i x_i - s of a part of the entries (m, i)."""
    return a[m[part], i[part], None] * x[i[part]] - s[m[part]]


def _subtract(squares, entries, difference, d):
    """Replace `entries` of squared lengths by those of ``difference(part)``, a part of them at a time."""
    for part in np.array_split(np.arange(len(entries[0])), 1 + len(entries[0]) * d // _CHUNK):
        vectors = difference(part)
        squares[entries[0][part], entries[1][part]] = np.einsum("pd,pd->p", vectors, vectors)


def _largest(block, top_n):
    if top_n > block.seen:
        return np.zeros(block.visible.shape, dtype=bool)
    seen, threshold = block.seen_weights, block.ranked[:, block.seen - top_n, None]
    selected = (seen >= threshold) & (block.count >= top_n)[:, None]
    crowded = np.flatnonzero(selected.sum(axis=1) > top_n)
    if len(crowded):
        above = seen[crowded] > threshold[crowded]
        tied = seen[crowded] == threshold[crowded]
        room = top_n - above.sum(axis=1, keepdims=True)
        selected[crowded] = above | (tied & (np.cumsum(tied, axis=1) <= room))
    return selected


def _places(mask):
    """Rows and columns where a mask is true, row by row; several times as quick as np.nonzero on a matrix."""
    return np.divmod(np.flatnonzero(mask), mask.shape[1])


def _each_head(weights, x, causal, work):
    """``work(weights of a head, its tokens)`` of every head, in order."""
    return each(lambda head: work(*head), _heads(weights, x, causal))


def _heads(weights, x, causal):
    """Each head's checked weights and its tokens; tokens that heads share are prepared once."""
    heads = weights.shape[0] if weights.ndim == 3 else 1
    check_tokens(x, weights)
    tokens = None
    for head in range(heads):
        own = x[head] if x.ndim == 3 else x
        if tokens is None or not (own is x or np.array_equal(own, tokens.x)):
            tokens = _Tokens(own, causal)
        yield _checked(weights[head] if weights.ndim == 3 else weights, causal), tokens


def _gather(heads, weights):
    """One array a quantity out of the blocks of all heads, with the axis of heads that `weights` has."""
    arrays = [
        np.stack([np.concatenate([block[q] for block in blocks]) for blocks in heads])
        for q in range(len(heads[0][0]))
    ]
    return arrays if weights.ndim == 3 else [array[0] for array in arrays]


def _weights(weights, causal):
    weights = plain(weights)
    check_heads(weights, causal)
    return weights


def _checked(a, causal):
    """One head's weights in float64, if its rows are distributions over what they see."""
    a = attention_rows(a)
    if causal:
        check_mask(a)
    return a


def _top_n(top_n, weights):
    top_n = integer("top_n", top_n, low=1)
    if top_n > weights.shape[-1]:
        raise ValueError(f"top_n must be at most the number of tokens, {weights.shape[-1]}; got {top_n}")
    return top_n
