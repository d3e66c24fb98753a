import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnorm import attention, attention_weights
from strategies import betas, clouds, matrices


@given(clouds(), betas, st.booleans(), st.sampled_from([1, 2, 6]))
def test_fused_attention_is_weights_times_values(cloud, beta, causal, k):
    x, rng = cloud
    M = matrices(rng, x.shape[1], k)
    weights = attention_weights(x, beta=beta, Q=M["Q"], K=M["K"], causal=causal)
    np.testing.assert_allclose(
        attention(x, beta=beta, causal=causal, **M), weights @ (x @ M["V"].T), rtol=1e-10, atol=1e-12
    )


@given(clouds(), betas, st.booleans())
def test_rows_sum_to_one_and_causal_rows_are_zero_beyond_the_diagonal(cloud, beta, causal):
    x, _ = cloud
    weights = attention_weights(x, beta=beta, causal=causal)
    np.testing.assert_allclose(weights.sum(axis=-1), 1.0, rtol=1e-13)
    assert (weights >= 0).all()
    if causal:
        assert (weights[np.triu_indices(len(x), 1)] == 0.0).all()


@given(clouds(min_n=2))
def test_a_common_shift_of_the_logits_changes_nothing_at_large_beta(cloud):
    """A constant coordinate adds beta to every logit of a row: 1e4 here, far beyond the range of exp."""
    x, _ = cloud
    theta = x / np.linalg.norm(x, axis=1, keepdims=True)
    shifted = np.hstack([theta, np.ones((len(theta), 1))])
    forget = np.diag(np.append(np.ones(theta.shape[1]), 0.0))
    plain, moved = attention(theta, beta=1e4), attention(shifted, beta=1e4, V=forget)
    assert np.isfinite(moved).all()
    # The shift leaves 1e4 * 2^-53 of rounding in each logit.
    np.testing.assert_allclose(moved[:, :-1], plain, atol=1e-10)
    np.testing.assert_allclose(
        attention_weights(shifted, beta=1e4), attention_weights(theta, beta=1e4), atol=1e-10
    )


def test_one_token_sees_itself():
    x = np.array([[0.6, 0.8]])
    np.testing.assert_array_equal(attention(x, beta=1e4), x)


def test_memory_grows_linearly_in_the_number_of_tokens():
    """16,384 tokens: the matrix of weights alone would take 2 GiB; the fused field stays under a tenth of
    it."""
    code = """
import resource, numpy as np
from attnorm import attention
x = np.random.default_rng(0).standard_normal((16384, 16))
attention(x[:64])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert np.isfinite(attention(x, beta=2.0)).all()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    pytest.importorskip(
        "resource", reason="peak memory is read from the resource module, which Windows lacks"
    )
    kilobytes = int(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    )
    assert kilobytes * (1 if sys.platform == "darwin" else 1024) < 200e6


@pytest.mark.parametrize(
    ("theta", "options", "message"),
    [
        (np.ones(3), {}, "at least 2 dimensions"),
        ([[np.nan, 1.0]], {}, "theta must be finite"),
        ([["a", "b"]], {}, "array of real numbers"),
        (np.eye(2), {"beta": -1.0}, "beta must be a finite number >= 0; got -1"),
        (np.eye(2), {"beta": np.inf}, "beta must be a finite number"),
        (np.eye(2), {"Q": np.eye(3)}, r"Q must have shape \(k, 2\)"),
        (np.eye(2), {"Q": np.ones((1, 2))}, "same number of rows"),
        (np.eye(2), {"V": np.ones((1, 2))}, r"V must have shape \(2, 2\)"),
        (np.eye(2), {"K": np.full((2, 2), np.inf)}, "K must be finite"),
    ],
)
def test_bad_input_is_named(theta, options, message):
    with pytest.raises(ValueError, match=message):
        attention(theta, **options)
