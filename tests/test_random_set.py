"""Mean distance of a random set, against the mean over all sets and against loops over the formulas."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnorm.random_set import expected_distance
from strategies import softmax_rows

# Squares that cancel leave 1e-8 of their parts behind.
CANCELLED = 1e-7


def mean_over_all_sets(y, size):
    """E dt of one row, set by set."""
    found = []
    for chosen in combinations(range(len(y)), size):
        s = y[list(chosen)].sum(axis=0)
        found.append(sum(np.linalg.norm(y[i] - s) for i in range(len(y)) if i not in chosen))
    return np.mean(found)


def moments_over_all_sets(y, i, size):
    """Mean and trace of the covariance of s over the sets without token i."""
    others = [j for j in range(len(y)) if j != i]
    s = np.array([y[list(chosen)].sum(axis=0) for chosen in combinations(others, size)])
    return s.mean(axis=0), s.var(axis=0).sum()


def loop(a, x, size):
    """main, gap_bound and printed of one row; its moments are counted and not computed from a formula."""
    y, n, norm = a[:, None] * x, len(a), np.linalg.norm
    main = upper = printed = 0.0
    for i in range(n):
        mean, variance = moments_over_all_sets(y, i, size)
        m = norm(y[i] - mean)
        straight = norm(y[i]) + size / (n - 1) * sum(norm(y[j]) for j in range(n) if j != i)
        main += m
        upper += min(np.sqrt(m**2 + variance), straight)
        printed += norm((a[i] + size / (n - 1)) * x[i] - a @ x)
    share = (n - size) / n
    return share * main, share * (upper - main), share * printed


@st.composite
def problems(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    length, d, causal = draw(st.integers(2, 7)), draw(st.integers(1, 4)), draw(st.booleans())
    weights = softmax_rows(rng, (length, length), draw(st.sampled_from([0.0, 0.3, 3.0, 300.0])), causal)
    x = rng.normal(size=(length, d)) * 10.0 ** draw(st.integers(-3, 3))
    if draw(st.booleans()):
        x = x[rng.integers(0, 2, size=length)]
    return weights, x, draw(st.integers(1, length - 1)), causal


@given(problems())
@settings(deadline=None, max_examples=60)
def test_every_row_agrees_with_moments_counted_over_all_sets_and_encloses_the_mean(problem):
    weights, x, size, causal = problem
    found = expected_distance(weights, x, size, causal=causal)
    atol = CANCELLED * np.abs(x).max() * len(x)
    for i, a in enumerate(weights):
        n = i + 1 if causal else len(a)
        row = found.main[i], found.gap_bound[i], found.printed[i]
        if n < max(size + 1, 2):
            assert np.isnan(row).all()
            continue
        assert row == pytest.approx(loop(a[:n], x[:n], size), rel=1e-10, abs=atol)
        exact = mean_over_all_sets(a[:n, None] * x[:n], size)
        assert found.main[i] - atol <= exact <= found.upper[i] + atol
        # The book's two-sided theorem on the random set.
        share = (n - size) / n
        assert share * (size - 1) * found.output_norm[i] <= exact + atol
        assert exact <= share * (size + 1) * found.mean_length[i] + atol


def test_output_and_mean_length_are_those_of_the_row():
    rng = np.random.default_rng(0)
    weights, x = softmax_rows(rng, (9, 9), 1.0, causal=True), rng.normal(size=(9, 3))
    found = expected_distance(weights, x, 2)
    np.testing.assert_allclose(found.output_norm, np.linalg.norm(weights @ x, axis=1), rtol=1e-13)
    np.testing.assert_allclose(found.mean_length, weights @ np.linalg.norm(x, axis=1), rtol=1e-13)


def test_a_one_hot_row_attains_the_bound_in_the_set_size():
    """Both sides meet: every set holds the heavy token, or leaves s = 0."""
    found = expected_distance([[1.0, 0.0, 0.0, 0.0, 0.0]], np.ones((5, 1)), 2, causal=False)
    assert found.main[0] == pytest.approx(3 / 5 * 3)
    assert found.gap_bound[0] == pytest.approx(0, abs=1e-7)


def test_equal_weighted_tokens_leave_no_gap():
    """s is the same for every set, so that the mean is known."""
    found = expected_distance([[1 / 3, 2 / 3]] * 2, [[2.0], [1.0]], 1, causal=False)
    assert found.upper == pytest.approx([0, 0], abs=1e-7)


@pytest.mark.parametrize("causal", [True, False])
def test_blocks_of_rows_agree_with_a_single_row(causal):
    rng = np.random.default_rng(1)
    weights, x = softmax_rows(rng, (150, 150), 2.0, causal), rng.normal(size=(150, 5))
    found = expected_distance(weights, x, 20, causal=causal)
    for i in (20, 63, 64, 149):
        n = i + 1 if causal else 150
        row = expected_distance(weights[i : i + 1, :n], x[:n], 20, causal=False)
        for name in ("main", "gap_bound", "printed", "output_norm", "mean_length"):
            assert getattr(found, name)[i] == pytest.approx(getattr(row, name)[0], rel=1e-10), name


def test_several_sizes_and_heads_come_along_new_axes():
    rng = np.random.default_rng(2)
    weights, x = softmax_rows(rng, (3, 12, 12), 1.0, causal=True), rng.normal(size=(3, 12, 4))
    found = expected_distance(weights, x, [1, 5, 11])
    assert found.main.shape == (3, 3, 12)
    assert found.output_norm.shape == (3, 12)
    assert found.set_size == (1, 5, 11)
    for k, size in enumerate(found.set_size):
        for head in range(3):
            one = expected_distance(weights[head], x[head], size)
            assert one.main.shape == (12,)
            np.testing.assert_array_equal(found.main[k, head], one.main)
            np.testing.assert_array_equal(found.gap_bound[k, head], one.gap_bound)
            np.testing.assert_array_equal(found.printed[k, head], one.printed)
    shared = expected_distance(weights, x[0], [1, 5])
    np.testing.assert_array_equal(shared.main[:, 0], found.main[:2, 0])


def test_torch_tensors_of_single_precision_are_taken():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(3)
    weights, x = softmax_rows(rng, (20, 20), 1.0, causal=True), rng.normal(size=(20, 4))
    single = expected_distance(torch.tensor(weights).float(), torch.tensor(x).float(), 3)
    np.testing.assert_allclose(single.main, expected_distance(weights, x, 3).main, rtol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weights": [0.5, 0.5]}, "must have shape"),
        ({"weights": [[1.0]], "x": [[1.0]]}, "at least two"),
        ({"weights": [[0.5, 0.4], [0.5, 0.5]], "causal": False}, "sum to 1"),
        ({"weights": [[1.5, -0.5], [0.5, 0.5]], "causal": False}, "negative"),
        ({"weights": [[0.5, 0.5], [0.5, 0.5]]}, "causal=False"),
        ({"weights": [[1.0, 0.0], [np.nan, 0.5]]}, "finite"),
        ({"x": [[1.0]]}, "x must have shape"),
        ({"x": [[1.0], [np.inf]]}, "finite"),
        ({"set_size": 0}, "integer >= 1"),
        ({"set_size": 1.5}, "set_size"),
        ({"set_size": 2}, "at most"),
        ({"set_size": []}, "at most"),
        ({"set_size": [1, 2]}, "at most"),
    ],
)
def test_bad_input_is_named(change, message):
    good = {"weights": [[1.0, 0.0], [0.5, 0.5]], "x": [[1.0], [2.0]], "set_size": 1}
    with pytest.raises((ValueError, TypeError), match=message):
        expected_distance(**{**good, **change})


def test_the_gap_can_be_left_out():
    rng = np.random.default_rng(5)
    weights, x = softmax_rows(rng, (2, 9, 9), 2.0, True), rng.normal(size=(9, 3))
    whole, lean = (expected_distance(weights, x, [1, 4], gap=gap) for gap in (True, False))
    np.testing.assert_array_equal(lean.main, whole.main)
    np.testing.assert_array_equal(lean.printed, whole.printed)
    assert np.isnan(lean.gap_bound).all()
