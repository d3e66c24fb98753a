"""The second paper's algorithms 1 to 5 as they read: a head, a row and a token at a time.

Written from the definitions, with nothing of `attnorm`, so that the book's matrix products can be compared
with them. ``heads`` is a list of pairs (a, x): attention weights (L, L), row n of which sees the first n
tokens, and vectors (L, d). A mean is over the rows that see more than N tokens.
"""

from __future__ import annotations

import numpy as np
from scipy.stats import ks_2samp


def algorithm_1(heads, lengths, top_n):
    """dt, its bound and its printed expectation, each (heads, lengths)."""
    return _over_rows(heads, [(length, top_n) for length in lengths])


def algorithm_2(heads, length, top_ns):
    """dt, its bound and its printed expectation, each (heads, N)."""
    return _over_rows(heads, [(length, top_n) for top_n in top_ns])


def algorithm_3(heads, lengths, level):
    """First N, for each length, at which dt and its printed expectation pass for one distribution; or NaN."""
    found = []
    for length in lengths:
        first = np.nan
        for top_n in range(1, length):
            distance, expected = [], []
            for a, x in heads:
                rows = [(a[m, : m + 1], x[: m + 1], top_n) for m in range(top_n, length)]
                distance.append(np.mean([row_distance(*row) for row in rows]))
                expected.append(np.mean([row_expectation(*row) for row in rows]))
            if ks_2samp(distance, expected, method="exact").pvalue >= level:
                first = top_n
                break
        found.append(first)
    return np.array(found, dtype=float)


def algorithm_4(heads, length, top_ns):
    """Mean of N_s / N, (heads, N)."""
    return np.array(
        [
            [
                np.mean([row_share(a[m, : m + 1], x[: m + 1], top_n) for m in range(top_n, length)])
                for top_n in top_ns
            ]
            for a, x in heads
        ]
    )


def algorithm_5(logits, temperatures, steps, rng):
    """Mean over rows of g(T, eps), (temperatures, steps, heads), for logits of one layer (heads, L, L)."""
    length = logits.shape[-1]
    directions = rng.standard_normal((length, length))
    found = np.zeros((len(temperatures), len(steps), len(logits)))
    for t, temperature in enumerate(temperatures):
        for e, step in enumerate(steps):
            for h, head in enumerate(logits):
                for m in range(length):
                    seen = head[m, : m + 1]
                    v = directions[m, : m + 1] / np.linalg.norm(directions[m, : m + 1])
                    moved = softmax((seen + step * v) / temperature) - softmax(seen / temperature)
                    found[t, e, h] += np.linalg.norm(moved) / step / length
    return found


def _over_rows(heads, sizes):
    found = np.zeros((3, len(heads), len(sizes)))
    for h, (a, x) in enumerate(heads):
        for k, (length, top_n) in enumerate(sizes):
            rows = [(a[m, : m + 1], x[: m + 1], top_n) for m in range(top_n, length)]
            for q, quantity in enumerate((row_distance, row_bound, row_expectation)):
                found[q, h, k] = np.mean([quantity(*row) for row in rows]) if rows else np.nan
    return found


def selected(a, top_n):
    """The numbers of the N largest weights; of equal ones the first."""
    return sorted(range(len(a)), key=lambda i: (-a[i], i))[:top_n]


def context(a, x, chosen):
    """s = sum of a_i x_i over the selected tokens."""
    s = np.zeros(x.shape[-1])
    for i in chosen:
        s = s + a[i] * x[i]
    return s


def row_distance(a, x, top_n):
    """dt = sum over the other tokens of |a_i x_i - s|."""
    chosen = selected(a, top_n)
    s, total = context(a, x, chosen), 0.0
    for i in range(len(a)):
        if i not in chosen:
            total += np.linalg.norm(a[i] * x[i] - s)
    return total


def row_bound(a, x, top_n):
    """(1 - abar) d1 + max |x_j| [abar (L - N) - (1 - abar)], Theorem 1, part 1."""
    chosen = selected(a, top_n)
    others = [i for i in range(len(a)) if i not in chosen]
    mass = sum(a[j] for j in chosen)
    widest = max(np.linalg.norm(x[i] - x[j]) for i in others for j in chosen)
    longest = max(np.linalg.norm(x[j]) for j in chosen)
    return (1 - mass) * widest + longest * (mass * len(others) - (1 - mass))


def row_expectation(a, x, top_n):
    """(L - N) / L sum_i |(a_i + N / (L - 1)) x_i - sum_j a_j x_j|, Theorem 1, part 2, as printed."""
    length = len(a)
    mean, total = context(a, x, range(length)), 0.0
    for i in range(length):
        total += np.linalg.norm((a[i] + top_n / (length - 1)) * x[i] - mean)
    return (length - top_n) / length * total


def row_share(a, x, top_n):
    """N_s / N: the share of selected tokens nearer to s than every other token."""
    chosen = selected(a, top_n)
    s = context(a, x, chosen)
    radius = min(np.linalg.norm(s - a[i] * x[i]) for i in range(len(a)) if i not in chosen)
    return sum(np.linalg.norm(a[i] * x[i] - s) < radius for i in chosen) / top_n


def softmax(logits):
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()
