"""Hypothesis strategies shared by the property tests: a seed and sizes, so that a failing example is short
to read."""

import numpy as np
from hypothesis import strategies as st

from attnorm import SCHEMES

schemes = st.sampled_from(sorted(SCHEMES))
betas = st.sampled_from([0.0, 0.3, 1.0, 4.0, 20.0])


@st.composite
def clouds(draw, min_n=1, max_n=7, min_d=2, max_d=5):
    """Gaussian tokens (n, d) with norms of different sizes, and the Generator that made them."""
    n, d = draw(st.integers(min_n, max_n)), draw(st.integers(min_d, max_d))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return rng.standard_normal((n, d)), rng


def matrices(rng, d, k=None):
    """Random Q, K (k, d) and V (d, d) of norm of order one, as keywords."""
    k = d if k is None else k
    Q, K = rng.standard_normal((2, k, d)) / np.sqrt(d)
    return {"Q": Q, "K": K, "V": rng.standard_normal((d, d)) / np.sqrt(d)}


def softmax_rows(rng, shape, sharpness, causal):
    """Random rows of attention (..., L, L): flat for a sharpness of 0, nearly one-hot for a large one."""
    logits = sharpness * rng.normal(size=shape)
    if causal:
        logits[..., ~np.tri(shape[-1], dtype=bool)] = -np.inf
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)
