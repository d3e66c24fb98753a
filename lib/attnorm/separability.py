"""Which of the selected tokens can be told apart from the others (Mudarisov et al. 2025, Theorem 2).

For one row of attention weights a_1, ..., a_L over tokens x_1, ..., x_L and a set I of N selected tokens,

    s = sum_{j in I} a_j x_j
    r = min_{k not in I} |a_k x_k - s|
    N_s = #{i in I : |a_i x_i - s| < r}
    W_i = |s|^2 - |a_i x_i - s|^2 = 2 a_i <x_i, s> - a_i^2 |x_i|^2

so that N_s counts the selected tokens whose W exceeds that of every excluded token.
`attnorm.capacity.measure` gives N_s / N of the largest weights; here the set may be any.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from attnorm.rows import check_mask, check_tokens, plain
from attnorm.validate import finite_array, integer, not_negative

# Squared distances closer than this to r^2, relatively, are ties, as in `attnorm.capacity`. The second number
# allows for the rounding of W where an excluded token lies almost on s.
_TIE, _ROUNDING = 1e-10, 1e-14
_BLOCK = 128  # rows done together, to stay in a processor's cache


@dataclass(frozen=True)
class Separability:
    """What `measure` finds in each row; arrays (L,), or (H, L) for heads. NaN where a row selects none.

    Attributes
    ----------
    share : array
        N_s / N; 1 where no token is excluded.
    overlap : array
        Share of the N tokens with the largest W that are selected; never below `share`.
    radius : array
        r, in the units of x; infinite where no token is excluded.
    inside : array
        Mean of ``|a_i x_i - s|`` over the selected tokens, in the units of x.
    inside_squared : array
        Mean of ``|a_i x_i - s|^2`` over the selected tokens.
    """

    share: np.ndarray
    overlap: np.ndarray
    radius: np.ndarray
    inside: np.ndarray
    inside_squared: np.ndarray


def measure(weights, x, selected, *, causal: bool = True) -> Separability:
    """Separability of any set of tokens in every row.

    Parameters
    ----------
    weights : array (R, L) or (H, R, L)
        Attention weights, not negative; R = L if causal.
    x : array (L, d) or (H, L, d)
        What the weights average: one set of tokens for all heads, or one for each.
    selected : array of bool, of the shape of `weights`
        The set I of each row; sets may differ in size.
    causal : bool
        Row i sees tokens j <= i only. Else every row sees every token.

    Returns
    -------
    Separability

    Raises
    ------
    ValueError
        If shapes do not fit, an entry is not finite, a weight is negative, or a row selects a token
        that it does not see.

    Notes
    -----
    Source: arXiv 2508.17821, the definition before Theorem 2, with the strict inequality. A token whose
    squared distance from s differs from r^2 by less than 1e-10 of it is not separable.

    Examples
    --------
    s = 0.8; the selected 0.5 and 0.3 lie at distances 0.3 and 0.5, the excluded one at 0.6.

    >>> found = measure([[0.5, 0.3, 0.2]], [[1.0], [1.0], [1.0]], [[True, True, False]], causal=False)
    >>> float(found.share[0]), float(round(found.radius[0], 12))
    (1.0, 0.6)
    """
    a, x, selected = checked(weights, x, selected, causal)
    shape = np.shape(weights)[:-1]
    found = [_row_quantities(part) for part in _parts(a, x, selected, causal)]
    return Separability(*(values.reshape(shape) for values in _joined(found, a)))


def separable_tokens(weights, x, selected, *, causal: bool = True) -> np.ndarray:
    """The selected tokens that are separable, as a boolean array of the shape of `selected`.

    Arguments and errors as in `measure`.

    Examples
    --------
    >>> row, x = [[0.5, 0.3, 0.2]], [[1.0], [-1.0], [1.0]]  # s = 0.2, and the excluded token is at 0.2
    >>> separable_tokens(row, x, [[True, True, False]], causal=False).tolist()
    [[False, False, False]]
    """
    a, x, selected = checked(weights, x, selected, causal)
    inside = np.zeros(a.shape, dtype=bool)
    for part in _parts(a, x, selected, causal):
        inside[part.head, part.rows, : part.seen] = _inside(part)
    return inside.reshape(np.shape(weights))


def scores(weights, x, selected, *, causal: bool = True) -> np.ndarray:
    """W of every token in every row; minus infinity where the row does not see it.

    Arguments and errors as in `measure`.

    Examples
    --------
    >>> scores([[0.5, 0.25, 0.25]], [[2.0], [0.0], [-2.0]], [[True, False, False]], causal=False).tolist()
    [[1.0, 0.0, -1.25]]
    """
    a, x, selected = checked(weights, x, selected, causal)
    found = np.full(a.shape, -np.inf)
    for part in _parts(a, x, selected, causal):
        found[part.head, part.rows, : part.seen] = np.where(part.visible, part.scores, -np.inf)
    return found.reshape(np.shape(weights))


def random_sets(shape, top_n: int, seed, *, causal: bool = True) -> np.ndarray:
    """For each row a set of `top_n` of the tokens that it sees, all sets equally likely: the control.

    Parameters
    ----------
    shape : tuple (R, L) or (H, R, L)
    top_n : int
        Rows that see fewer tokens select none.
    seed : int or numpy.random.Generator
    causal : bool

    Returns
    -------
    array of bool

    Examples
    --------
    >>> random_sets((4, 4), 2, seed=0).sum(axis=1).tolist()
    [0, 2, 2, 2]
    """
    top_n = integer("top_n", top_n, low=1)
    rows, length = shape[-2:]
    if top_n > length:
        raise ValueError(f"top_n must be at most the number of tokens, {length}; got {top_n}")
    draw = np.random.default_rng(seed).random(shape)
    if causal:
        draw[..., ~np.tri(rows, length, dtype=bool)] = 2.0
    chosen = draw <= np.partition(draw, top_n - 1, axis=-1)[..., top_n - 1, None]
    if causal:
        chosen[..., : top_n - 1, :] = False
    return chosen


@dataclass(frozen=True)
class Coverage:
    """What several heads separate together, one number a row (L,); NaN where no head selects.

    Attributes
    ----------
    measured : array
        Tokens that some head separates, among those that some head selects.
    independent : array
        What independence gives: the mean over the selected tokens t of ``1 - prod_h (1 - p_h)``, the product
        over the heads that select t, with p_h the separable share of the head in this row.
    formula : array
        ``1 - (1 - p)^H``, with p the mean of the p_h: as if every head selected the same tokens.
    chosen_by : array
        Mean number of heads that select a token, over the tokens that some head selects.
    """

    measured: np.ndarray
    independent: np.ndarray
    formula: np.ndarray
    chosen_by: np.ndarray


def coverage(selected, separable, probabilities=None) -> Coverage:
    """Coverage of the selected tokens by several heads.

    Parameters
    ----------
    selected, separable : array of bool (H, R, L)
        `separable` a part of `selected`; see `separable_tokens`.
    probabilities : array (H,) or (H, R), optional
        p_h for `independent` and `formula`; the shares of each row if not given.

    Returns
    -------
    Coverage

    Raises
    ------
    ValueError
        If the arrays are not boolean, of one shape and three dimensions, or a token is separable that is not
        selected.

    Examples
    --------
    Two heads select the same two tokens, and each separates another one.

    >>> found = coverage([[[True, True]], [[True, True]]], [[[True, False]], [[False, True]]])
    >>> float(found.measured[0]), float(found.independent[0]), float(found.formula[0])
    (1.0, 0.75, 0.75)
    """
    selected, separable = _two_masks(selected, separable)
    count = selected.sum(axis=-1)
    if probabilities is None:
        p = separable.sum(axis=-1) / np.maximum(count, 1)
    else:
        p = finite_array("probabilities", probabilities)
        if p.shape not in (selected.shape[:1], selected.shape[:2]) or p.min() < 0 or p.max() > 1:
            raise ValueError("probabilities must lie in [0, 1] and have the shape (H,) or (H, R)")
        p = np.broadcast_to(p[:, None] if p.ndim == 1 else p, selected.shape[:2])
    union = selected.any(axis=0)
    size = union.sum(axis=-1).astype(float)
    size[size == 0] = np.nan
    missed = np.ones(union.shape)
    for head, mask in zip(p, selected, strict=True):
        missed *= np.where(mask, 1 - head[:, None], 1.0)
    active = count > 0
    heads = active.sum(axis=0)
    mean = (p * active).sum(axis=0) / np.maximum(heads, 1)
    return Coverage(
        separable.any(axis=0).sum(axis=-1) / size,
        ((1 - missed) * union).sum(axis=-1) / size,
        np.where(heads > 0, covered(mean, heads), np.nan),
        count.sum(axis=0) / size,
    )


def reassigned(selected, separable, seed) -> np.ndarray:
    """Each head separates as many of its tokens in a row as before, but which ones is drawn at random.

    What is left of a coverage after that owes nothing to dependence between heads.

    Parameters
    ----------
    selected, separable : array of bool (H, R, L)
        `separable` a part of `selected`.
    seed : int or numpy.random.Generator

    Returns
    -------
    array of bool (H, R, L)

    Examples
    --------
    >>> reassigned([[[True, True, False]]], [[[True, True, False]]], seed=0).tolist()
    [[[True, True, False]]]
    """
    selected, separable = _two_masks(selected, separable)
    draw = np.where(selected, np.random.default_rng(seed).random(selected.shape), 2.0)
    order = np.argsort(draw, axis=-1)
    drawn = np.zeros(selected.shape, dtype=bool)
    first = np.arange(selected.shape[-1]) < separable.sum(axis=-1, keepdims=True)
    np.put_along_axis(drawn, order, first, axis=-1)
    return drawn


def covered(p, heads):
    """``1 - (1 - p)^H``: what H independent heads cover together, each of them a share p.

    Examples
    --------
    >>> round(float(covered(0.8, 3)), 3)
    0.992
    """
    p, heads = finite_array("p", p), finite_array("heads", heads)
    if p.min() < 0 or p.max() > 1 or heads.min() < 0:
        raise ValueError("p must lie in [0, 1] and heads must not be negative")
    return 1 - (1 - p) ** heads


def _two_masks(selected, separable):
    selected, separable = np.asarray(selected), np.asarray(separable)
    if selected.dtype != bool or separable.dtype != bool or selected.ndim != 3:
        raise ValueError("selected and separable must be boolean, of shape (H, R, L)")
    if selected.shape != separable.shape or (separable & ~selected).any():
        raise ValueError("separable must be a part of selected")
    return selected, separable


@dataclass(frozen=True)
class _Part:
    """Some rows of a head, cut to the columns that any of them sees."""

    head: int
    rows: slice
    seen: int
    visible: np.ndarray
    selected: np.ndarray
    scores: np.ndarray
    context: np.ndarray  # |s|^2


def _parts(a, x, selected, causal):
    heads, rows, length = a.shape
    tokens = None
    for head in range(heads):
        own = x[head if len(x) > 1 else 0]
        if tokens is None or len(x) > 1:
            tokens, gram = own, None
            squares = np.einsum("ld,ld->l", own, own)
        for start in range(0, rows, _BLOCK):
            block = slice(start, min(start + _BLOCK, rows))
            seen = block.stop if causal else length
            weights, chosen = a[head, block, :seen], selected[head, block, :seen]
            visible = np.tri(block.stop - start, seen, start if causal else seen, dtype=bool)
            row, column = np.divmod(np.flatnonzero(chosen), seen)
            ends = np.searchsorted(row, np.arange(len(weights) + 1))
            taken = sparse.csr_array((weights[row, column], column, ends), shape=weights.shape)
            s = taken @ own[:seen]
            # <x_i, s> by the cheaper of two ways: a sparse product costs some sixteen times as much a number.
            if 16 * len(row) < own.shape[1] * len(weights):
                gram = own @ own.T if gram is None else gram
                inner = taken @ gram[:seen, :seen]
            else:
                inner = s @ own[:seen].T
            inner *= 2
            inner -= weights * squares[:seen]
            inner *= weights
            yield _Part(head, block, seen, visible, chosen, inner, np.einsum("md,md->m", s, s))


def _best_outside(part):
    """Largest W of an excluded token, r^2, and the margin that counts as a tie, each (rows,)."""
    best = np.where(part.visible & ~part.selected, part.scores, -np.inf).max(axis=1)
    squared = np.maximum(part.context - best, 0)
    with np.errstate(invalid="ignore"):
        margin = np.where(np.isfinite(best), _TIE * squared + _ROUNDING * part.context, 0)
    return best, squared, margin


def _inside(part):
    best, _, margin = _best_outside(part)
    return part.selected & (part.scores > (best + margin)[:, None])


def _row_quantities(part):
    best, squared, margin = _best_outside(part)
    row, column = np.divmod(np.flatnonzero(part.selected), part.seen)
    count = np.bincount(row, minlength=len(best)).astype(float)
    own = part.scores[row, column]
    inside = np.bincount(row, own > (best + margin)[row], minlength=len(best))
    away = np.maximum(part.context[row] - own, 0)
    overlap = np.maximum(inside, _kept(part, count, margin))
    with np.errstate(invalid="ignore", divide="ignore"):
        found = (
            inside / count,
            overlap / count,
            np.sqrt(squared),
            np.bincount(row, np.sqrt(away), minlength=len(best)) / count,
            np.bincount(row, away, minlength=len(best)) / count,
        )
    return part.head, [np.where(count > 0, value, np.nan) for value in found]


def _kept(part, count, margin):
    """How many of the N tokens with the largest W are selected; ties go to the excluded ones."""
    seen = np.where(part.visible, part.scores, -np.inf)
    kept = np.zeros(len(seen))
    for size in np.unique(count[count > 0]).astype(int):
        rows = np.flatnonzero(count == size)
        here = seen[rows]
        last = np.partition(here, part.seen - size, axis=1)[:, part.seen - size]
        outside = ~part.selected[rows] & (here >= (last - margin[rows])[:, None])
        above = part.selected[rows] & (here > (last + margin[rows])[:, None])
        kept[rows] = np.maximum(above.sum(axis=1), size - outside.sum(axis=1))
    return kept


def _joined(found, a):
    return [
        np.stack([np.concatenate([values[q] for head, values in found if head == h]) for h in range(len(a))])
        for q in range(len(found[0][1]))
    ]


def checked(weights, x, selected, causal):
    """Weights and selection as (H, R, L), tokens as (1 or H, L, d), if they fit; errors as in `measure`."""
    a, x = not_negative("weights", plain(weights), ndim=2), finite_array("x", plain(x), ndim=2)
    selected = np.asarray(selected)
    if a.ndim > 3 or (causal and a.shape[-1] != a.shape[-2]):
        raise ValueError(f"weights must have shape (L, L) or (H, L, L); got {a.shape}")
    if selected.dtype != bool or selected.shape != a.shape:
        raise ValueError(
            f"selected must be boolean, of the shape of weights {a.shape}; "
            f"got {selected.dtype} of shape {selected.shape}"
        )
    check_tokens(x, a)
    if causal and selected[..., ~np.tri(*a.shape[-2:], dtype=bool)].any():
        raise ValueError("selected must hold only tokens that the row sees: j <= i with causal=True")
    if causal:
        for head in a.reshape(-1, *a.shape[-2:]):
            check_mask(head)
    return (
        a.reshape(-1, *a.shape[-2:]),
        x.reshape(-1, *x.shape[-2:]),
        selected.reshape(-1, *a.shape[-2:]),
    )
