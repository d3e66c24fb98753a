"""How strongly attention weights answer to their logits: Jacobians, their norms, and a probe of finite steps.

Rows of weights are a_i = F(l_i) / sum_j F(l_j). Softmax has F(l) = exp(l / T), and then

    J = da/dl = (diag(a) - a a^T) / T

All of this is about one row at a time. Rows, heads and temperatures are done together.
Source of the questions: arXiv 2508.17821, Lemma 2, Corollary 3 and algorithm 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import sympy as sp

from attnorm.rows import attention_rows, plain
from attnorm.validate import finite_array, integer, number

# Rows are taken in blocks that fit a processor's cache.
_BLOCK = 64
_NORM_BLOCK = 512
# A step of the root finder squares the error, so after one that moves by less than this none is needed.
_LAST_MOVE = 1e-8
_MOST_STEPS = 100  # some five are needed
# Below this a shift is applied through expm1, which keeps small differences; above it exp could overflow.
_SMALL_SHIFT = 4.0


def general_jacobian(F, logits) -> np.ndarray:
    """Jacobian of a_i = F(l_i) / sum_j F(l_j), ``(I - a 1^T) diag(F'(l)) / sum F``.

    Parameters
    ----------
    F : sympy expression
        Positive and smooth, in one symbol.
    logits : array (..., L)

    Returns
    -------
    array (..., L, L)
        Entry (i, j) is the derivative of a_i by l_j.

    Raises
    ------
    ValueError
        If `F` does not have exactly one symbol, or is not positive at a logit.

    Notes
    -----
    Source: the derivative in arXiv 2508.17821, Lemma 2, derived in chapter 11.

    Examples
    --------
    >>> x = sp.Symbol("x")
    >>> general_jacobian(sp.exp(x), [0.0, 0.0]).tolist()
    [[0.25, -0.25], [-0.25, 0.25]]
    """
    values, slopes = _values_and_slopes(F, logits)
    total = values.sum(axis=-1, keepdims=True)
    a = values / total
    return (np.eye(a.shape[-1]) - a[..., :, None]) * (slopes / total)[..., None, :]


def general_bound(F, logits) -> np.ndarray:
    """Bound on the spectral norm of `general_jacobian`: ``sqrt(L) |a|_2 max |F'| / sum F``, shape (...).

    Attained when |F'| is the same at all logits. Arguments and errors as in `general_jacobian`.

    Examples
    --------
    >>> x = sp.Symbol("x")
    >>> round(float(general_bound(x, [0.5, 0.5])), 12)
    1.0
    """
    values, slopes = _values_and_slopes(F, logits)
    total = values.sum(axis=-1)
    a = values / total[..., None]
    return np.sqrt(a.shape[-1]) * np.linalg.norm(a, axis=-1) * np.abs(slopes).max(axis=-1) / total


def softmax_jacobian(weights, temperature: float = 1.0) -> np.ndarray:
    """``(diag(a) - a a^T) / T`` of rows a = softmax(l / T), shape (..., L, L).

    Raises
    ------
    ValueError
        If a weight is negative, a row does not sum to 1, or the temperature is not positive.

    Examples
    --------
    >>> softmax_jacobian([0.5, 0.5], temperature=0.5).tolist()
    [[0.5, -0.5], [-0.5, 0.5]]
    """
    return entmax_jacobian(weights, 1.0, temperature)


def entmax_jacobian(weights, alpha: float, temperature: float = 1.0) -> np.ndarray:
    """``(diag(s) - s s^T / sum s) / T`` with s = a^(2 - alpha) on the support, shape (..., L, L).

    Parameters
    ----------
    weights : array (..., L)
        Rows a = alpha-entmax(l / T).
    alpha : float
        From 1 (softmax) to 2 (sparsemax). 2 means the projection onto the simplex.
    temperature : float

    Raises
    ------
    ValueError
        If a weight is negative, a row does not sum to 1, or a number is out of its range.

    Notes
    -----
    Where a logit is about to enter or leave the support, this is the derivative on the side on which the
    support is that of `weights`.

    Examples
    --------
    >>> entmax_jacobian([0.75, 0.25, 0.0], alpha=2.0).tolist()
    [[0.5, -0.5, 0.0], [-0.5, 0.5, 0.0], [0.0, 0.0, 0.0]]
    """
    temperature = number("temperature", temperature, above=0)
    s = _slopes(_rows(weights), number("alpha", alpha, low=1, high=2))
    outer = s[..., :, None] * (s / s.sum(axis=-1, keepdims=True))[..., None, :]
    return (s[..., :, None] * np.eye(s.shape[-1]) - outer) / temperature


@dataclass(frozen=True)
class JacobianNorms:
    """Norms of the Jacobian of each row; every array has the shape of the weights less the last axis.

    Attributes
    ----------
    spectral : array
        \\|J|_2, the largest singular value.
    frobenius : array
        \\|J|_F.
    row_sum : array
        The largest sum of absolute values in a row or a column: the infinity- and the 1-norm, which are equal
        because J is symmetric.
    entry : array
        The largest absolute value of an entry; it is on the diagonal.
    support : array of int
        Number of weights that are not zero.
    """

    spectral: np.ndarray
    frobenius: np.ndarray
    row_sum: np.ndarray
    entry: np.ndarray
    support: np.ndarray


def jacobian_norms(weights, temperature: float = 1.0, *, alpha: float = 1.0) -> JacobianNorms:
    """Norms of the Jacobian of softmax, or of alpha-entmax, for every row; no Jacobian is built.

    Parameters
    ----------
    weights : array (..., L)
        Rows a = softmax(l / T) or a = alpha-entmax(l / T). Tokens that a row does not see have weight zero.
    temperature : float
        T. The norms are divided by it.
    alpha : float
        1 is softmax, 2 sparsemax.

    Returns
    -------
    JacobianNorms

    Raises
    ------
    ValueError
        If a weight is negative, a row does not sum to 1, or a number is out of its range.

    Notes
    -----
    With s = a^(2 - alpha), the largest eigenvalue of diag(s) - s s^T / sum s is the root between the two
    largest s of the secular equation ``sum_i s_i / (s_i - x) = 0``. It is found to 1e-12, relatively, by the
    iteration of Bunch, Nielsen and Sorensen (1978): the terms of the smaller s are replaced by
    ``p + q / (x - s_2)`` with the same value and slope, which leaves a quadratic equation. Nothing cancels in
    nearly one-hot rows.

    Examples
    --------
    >>> norms = jacobian_norms([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])
    >>> norms.spectral.tolist(), norms.entry.tolist()
    ([0.5, 0.0], [0.25, 0.0])
    """
    temperature = number("temperature", temperature, above=0)
    alpha = number("alpha", alpha, low=1, high=2)
    weights = plain(weights)
    if weights.ndim < 1 or weights.size == 0:
        raise ValueError(f"weights must have at least one row; got shape {weights.shape}")
    rows = weights.reshape(-1, weights.shape[-1])
    found = [
        _norms(_rows(_trimmed(rows[start : start + _NORM_BLOCK])), alpha)
        for start in range(0, len(rows), _NORM_BLOCK)
    ]
    *norms, support = (
        np.concatenate(parts).reshape(weights.shape[:-1]) for parts in zip(*found, strict=True)
    )
    return JacobianNorms(*(norm / temperature for norm in norms), support)


def logits_of(weights):
    """Logits of attention weights, ``log a``: the model's own, up to a constant in each row.

    Parameters
    ----------
    weights : array or tensor (..., L)

    Returns
    -------
    array or tensor (..., L)
        Of the kind and type of `weights`; minus infinity where a weight is zero. A float32 softmax gives an
        exact zero when a logit is more than about 100 below the largest of its row.

    Examples
    --------
    >>> logits_of(np.array([0.5, 0.5, 0.0])).round(3).tolist()
    [-0.693, -0.693, -inf]
    """
    if hasattr(weights, "log"):  # a tensor
        return weights.log()
    with np.errstate(divide="ignore"):
        return np.log(weights)


def temper(logits, temperature: float) -> np.ndarray:
    """``softmax(l / T)`` along the last axis, in float64; a logit of minus infinity has weight zero.

    Examples
    --------
    >>> temper([0.0, 0.0, -np.inf], 0.1).tolist()
    [0.5, 0.5, 0.0]
    """
    temperature = number("temperature", temperature, above=0)
    logits = np.asarray(plain(logits), dtype=np.float64)
    weights = np.exp((logits - logits.max(axis=-1, keepdims=True)) / temperature)
    return weights / weights.sum(axis=-1, keepdims=True)


def top_gap(logits) -> np.ndarray:
    """Difference of the two largest logits of each row, shape (...); infinite where only one is finite.

    Examples
    --------
    >>> float(top_gap([0.25, 3.0, 1.0]))
    2.0
    """
    logits = np.asarray(plain(logits), dtype=np.float64)
    if logits.shape[-1] < 2:
        return np.full(logits.shape[:-1], np.inf)
    second, first = np.moveaxis(np.partition(logits, (-2, -1), axis=-1)[..., -2:], -1, 0)
    return first - second


def probe_bound(temperature, step):
    """Largest value that the probe can take: ``sqrt(2) tanh(eps / (2 sqrt(2) T)) / eps``.

    At most min(1 / (2 T), sqrt(2) / eps), and close to it unless eps is about T. Arrays broadcast.

    Examples
    --------
    >>> round(float(probe_bound(1.0, 1e-3)), 6), round(float(probe_bound(1e-3, 10.0)), 6)
    (0.5, 0.141421)
    """
    temperature, step = np.asarray(temperature, dtype=float), np.asarray(step, dtype=float)
    return np.sqrt(2) * np.tanh(step / (2 * np.sqrt(2) * temperature)) / step


def probe(
    logits,
    temperatures: Sequence[float],
    steps: Sequence[float],
    *,
    seed: int = 0,
    causal: bool = True,
    directions=None,
) -> np.ndarray:
    """``g(T, eps) = |softmax((l + eps v) / T) - softmax(l / T)|_2 / eps`` for every row, T and eps.

    Parameters
    ----------
    logits : tensor or array (L, L) or (H, L, L)
        Logits l; minus infinity for a weight of zero. Computed in their type, float32 or float64.
        If not causal, there may be more or fewer rows than L.
    temperatures, steps : sequences of positive numbers
        T and eps.
    seed : int
        Of the directions v: uniform on the unit sphere over the tokens that the row sees. Each row has its
        own, and the heads share it.
    causal : bool
        Row i sees tokens j <= i only; what is beyond is not read. Else every row sees every token.
    directions : array (rows, L), optional
        v instead of random ones; normalised here over the tokens that the row sees.

    Returns
    -------
    array (temperatures, steps, L) or (temperatures, steps, H, L)
        Of float64. A row that sees one token has g = 0.

    Raises
    ------
    ValueError
        If shapes do not fit, a number is not positive, a row has no finite logit, or a direction is zero.

    Notes
    -----
    Source: arXiv 2508.17821, algorithm 5. For small shifts u = expm1(eps v / T) the difference of two
    softmaxes is ``a (u - U) / (1 + U)`` with U = sum_j a_j u_j: a subtraction would lose its digits.

    Examples
    --------
    >>> row = probe(np.zeros((1, 2)), [1.0], [1e-3], causal=False, directions=[[1.0, -1.0]])
    >>> row.shape, round(float(row[0, 0, 0]), 4)
    ((1, 1, 1), 0.5)
    """
    import torch

    temperatures = [number("temperature", T, above=0) for T in temperatures]
    steps = [number("step", step, above=0) for step in steps]
    logits = torch.as_tensor(logits).detach()
    if not logits.is_floating_point() or logits.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"logits must be of float32 or float64; got {logits.dtype}")
    if logits.ndim not in (2, 3) or (causal and logits.shape[-1] != logits.shape[-2]):
        raise ValueError(
            f"logits must have shape (L, L) or (H, L, L), or other numbers of rows with causal=False; "
            f"got {tuple(logits.shape)}"
        )
    heads = logits if logits.ndim == 3 else logits[None]
    count, length = heads.shape[1:]
    visible = torch.ones(count, length, dtype=torch.bool)
    if causal:
        visible = visible.tril()
    v = _directions(directions, visible, seed, heads.dtype)
    found = np.empty((len(temperatures), len(steps), len(heads), count))
    with torch.no_grad():
        for start in range(0, count, _BLOCK):
            rows = slice(start, min(start + _BLOCK, count))
            seen = rows.stop if causal else length
            hidden = ~visible[rows, :seen]
            part = heads[:, rows, :seen].masked_fill(hidden, -torch.inf)
            top = part.amax(dim=-1, keepdim=True)
            if not torch.isfinite(top).all():
                raise ValueError("every row needs a finite largest logit; one has NaN, infinity or none")
            _probe_block(part - top, v[rows, :seen], temperatures, steps, found[:, :, :, rows])
    return found if logits.ndim == 3 else found[:, :, 0]


def _probe_block(logits, v, temperatures, steps, out):
    """Fill `out` (temperatures, steps, H, rows) for logits (H, rows, columns)."""
    import torch

    scaled, a, buffer = (torch.empty_like(logits) for _ in range(3))
    largest = float(v.abs().max())
    for t, T in enumerate(temperatures):
        torch.mul(logits, 1 / T, out=scaled)
        torch.softmax(scaled, dim=-1, out=a)
        for e, step in enumerate(steps):
            shift = v * (step / T)
            if largest * step / T < _SMALL_SHIFT:
                u = torch.expm1(shift)
                torch.mul(a, u, out=buffer)
                mean = buffer.sum(dim=-1, keepdim=True)
                torch.sub(u, mean, out=buffer)
                buffer.mul_(a)
                change = torch.linalg.vector_norm(buffer, dim=-1) / (1 + mean[..., 0])
            else:
                torch.add(scaled, shift, out=buffer)
                change = torch.linalg.vector_norm(torch.softmax(buffer, dim=-1).sub_(a), dim=-1)
            out[t, e] = (change.double() / step).numpy()


def _directions(directions, visible, seed, dtype):
    """Unit vectors over the visible tokens of each row, as a tensor."""
    import torch

    if directions is None:
        rng = np.random.default_rng(integer("seed", seed, low=0))
        directions = rng.standard_normal(tuple(visible.shape))
    directions = finite_array("directions", directions, ndim=2)
    if directions.shape != tuple(visible.shape):
        raise ValueError(f"directions must have shape {tuple(visible.shape)}; got {directions.shape}")
    directions = np.where(visible.numpy(), directions, 0.0)
    lengths = np.linalg.norm(directions, axis=-1, keepdims=True)
    if not (lengths > 0).all():
        raise ValueError("directions must not be zero on the tokens that a row sees")
    return torch.from_numpy(directions / lengths).to(dtype)


def _norms(a, alpha):
    """Spectral, Frobenius, row-sum and entry norm (rows,) at T = 1, and the support."""
    s = _slopes(a, alpha)
    total = s.sum(axis=-1)
    s /= total[:, None]  # now the Jacobian is total * (diag(s) - s s^T)
    every = np.arange(len(s))
    top = s.argmax(axis=-1)
    first = s[every, top]
    s[every, top] = 0.0
    rest = s.sum(axis=-1)  # 1 - first, without cancellation
    entry = first * rest  # p (1 - p) is largest at the largest p, also if that is above one half
    squares = s**2
    others = squares.sum(axis=-1)
    frobenius = first**2 * (rest**2 + others)
    frobenius += (squares * ((1 - s) ** 2 + (first**2 + others)[:, None] - squares)).sum(axis=-1)
    spectral = _largest_eigenvalue(first, s, rest)
    norms = spectral, np.sqrt(frobenius), 2 * entry, entry
    return *(total * norm for norm in norms), (a > 0).sum(axis=-1)


def _largest_eigenvalue(first, others, rest):
    """Largest eigenvalue of diag(p) - p p^T, for p of largest entry `first` (m,) and `others` (m, n)."""
    second = others.max(axis=-1)
    found = np.where(rest > 0, first, 0.0)  # with a tie at the top the eigenvalue is the tied weight
    open_ = np.flatnonzero((rest > 0) & (first - second > 1e-15 * first))
    # Entries so small against the eigenvalue change nothing. Rows that keep about as many go together.
    count = (others > 1e-18 * (first * rest)[:, None]).sum(axis=-1)
    falling = -np.sort(-others, axis=-1)
    for group in np.array_split(open_[np.argsort(count[open_])], 1 + len(open_) // 32):
        if len(group):
            p = falling[group, : count[group].max()]
            found[group] = _secular_root(first[group], p, rest[group])
    return found


def _secular_root(first, p, rest):
    """Root x of sum p / (x - p) = first / (first - x) between the largest p (m, n) and `first` (m,)."""
    second = p[:, 0]
    gap = first - second
    lower = np.maximum(first * rest, second)
    upper = np.minimum(2 * first * rest, first)
    # x = second + y; the differences x - p are d + y, so they never cancel. At the root second / y is at most
    # first / (gap - y), the sum of which it is a term, so y cannot be below this:
    floor = second * gap / (first + second)
    y = np.maximum((lower + upper) / 2 - second, floor)
    d = second[:, None] - p
    for _ in range(_MOST_STEPS):
        reach = d + y[:, None]
        # The terms p / reach of the sum, as level + q / y: same value and slope here. Quotients of at most 1
        # are formed first, so that nothing under- or overflows in rows that are nearly one-hot.
        share = d / reach
        level = np.einsum("ri,ri->r", p / reach, share)
        share = 1 - share
        q = np.einsum("ri,ri->r", p, share * share)
        # level + q / y = first / (gap - y): a quadratic with one root between 0 and gap.
        b = first + q - level * gap
        root = np.sqrt(b**2 + 4 * level * q * gap)
        with np.errstate(divide="ignore", invalid="ignore"):
            new = np.where(b > 0, 2 * q * gap / (b + root), (root - b) / (2 * level))
        new = np.clip(new, floor, gap)
        moved = np.abs(new - y) > _LAST_MOVE * (second + y)
        y = new
        if not moved.any():
            break
    return second + y


def _slopes(a, alpha):
    """s = a^(2 - alpha) on the support, zero elsewhere."""
    if alpha == 1:
        return a.copy()
    return np.where(a > 0, a, 1.0) ** (2 - alpha) * (a > 0)


def _values_and_slopes(F, logits):
    F = sp.sympify(F)
    if len(F.free_symbols) != 1:
        raise ValueError(f"F must be an expression in one symbol; got {F}")
    (x,) = F.free_symbols
    logits = finite_array("logits", logits, ndim=1)
    values, slopes = (
        np.broadcast_to(sp.lambdify(x, f, "numpy")(logits), logits.shape).astype(float)
        for f in (F, F.diff(x))
    )
    if not (values > 0).all():
        raise ValueError(f"F must be positive at every logit; {F} is {values.min():g} at one")
    return values, slopes


def _rows(weights):
    """Rows of weights as float64, summing to one exactly."""
    a = attention_rows(weights)
    return a / a.sum(axis=-1, keepdims=True)


def _trimmed(rows):
    """Without the columns at the end that are zero in all of `rows`: with a causal mask half of the work."""
    used = np.flatnonzero((rows != 0).any(axis=0))
    return rows[:, : max(used[-1] + 1 if len(used) else 1, 1)]
