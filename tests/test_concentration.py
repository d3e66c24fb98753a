"""Concentration of rows of weights, against loops and exact fractions written from the definitions."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnorm.concentration import effective_number, growth, row_entropy, tokens_for_share, weight_bounds

LENGTHS = 2, 3, 17, 1000


def random_rows(seed, shape=(5, 4, 12)):
    rng = np.random.default_rng(seed)
    rows = np.exp(rng.normal(size=shape) * rng.uniform(0, 8, size=(*shape[:-1], 1)))
    return rows / rows.sum(axis=-1, keepdims=True)


def entropy_by_a_loop(row):
    return -math.fsum(a * math.log(a) for a in row if a > 0)


def share_by_a_loop(row, share):
    held = 0.0
    for count, a in enumerate(sorted(row, reverse=True), start=1):
        held += a
        if held >= share:
            return count
    return len(row)


def test_effective_number_is_the_exponential_of_the_entropy():
    rows = random_rows(0)
    expected = [[math.exp(entropy_by_a_loop(row)) for row in head] for head in rows]
    np.testing.assert_allclose(effective_number(rows), expected, rtol=1e-12)


def test_unseen_tokens_do_not_count():
    row = random_rows(1, (7,))
    padded = np.concatenate([row, np.zeros(5)])
    assert effective_number(padded) == pytest.approx(effective_number(row), rel=1e-14)
    assert tokens_for_share(padded) == tokens_for_share(row)


@pytest.mark.parametrize("length", LENGTHS)
def test_a_flat_row_counts_all_its_tokens(length):
    flat = np.full(length, 1 / length)
    assert effective_number(flat) == pytest.approx(length, rel=1e-12)
    assert tokens_for_share(flat, 1.0) == length
    assert tokens_for_share(flat, 0.5) == math.ceil(length / 2)


@pytest.mark.parametrize("share", [0.3, 0.5, 0.9, 0.99])
def test_tokens_for_share_is_the_first_count_that_reaches_it(share):
    rows = random_rows(2)
    expected = [[share_by_a_loop(row, share) for row in head] for head in rows]
    assert tokens_for_share(rows, share).tolist() == expected


def test_effective_number_is_at_least_one_over_the_largest_weight():
    rows = random_rows(3)
    assert (effective_number(rows) >= (1 - 1e-12) / rows.max(axis=-1)).all()


@given(st.integers(1, 10**6), st.integers(1, 10**6))
@settings(max_examples=50, deadline=None)
def test_bounds_are_the_fractions_of_the_lemma(length, ratio):
    lower, upper = weight_bounds(length, math.log(ratio))
    assert lower == pytest.approx(float(Fraction(1, 1 + (length - 1) * ratio)), rel=1e-9)
    assert upper == pytest.approx(float(Fraction(ratio, ratio + length - 1)), rel=1e-9)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("ratio", [1.0, 3.0, 1e4])
def test_bounds_are_attained_by_one_token_against_the_others(length, ratio):
    lower, upper = weight_bounds(length, math.log(ratio))
    up, down = np.ones(length), np.full(length, ratio)
    up[0], down[0] = ratio, 1.0
    assert upper == pytest.approx(up[0] / up.sum(), rel=1e-12)
    assert lower == pytest.approx(down[0] / down.sum(), rel=1e-12)


def test_no_row_leaves_the_bounds():
    rows = random_rows(4)
    log_ratio = np.log(rows.max(axis=-1) / rows.min(axis=-1))
    lower, upper = weight_bounds(rows.shape[-1], log_ratio)
    assert (rows.max(axis=-1) <= upper * (1 + 1e-12)).all()
    assert (rows.min(axis=-1) >= lower * (1 - 1e-12)).all()


def test_bounds_of_a_huge_ratio_do_not_overflow():
    lower, upper = weight_bounds(1024, 5000.0)
    assert (lower, upper) == (0.0, 1.0)


def test_bounds_of_one_token_are_one():
    assert weight_bounds(1, 3.0) == (1.0, 1.0)


def test_growth_recovers_powers_over_leading_axes():
    lengths = np.array([16, 64, 256, 1024])
    exponents = np.array([[-1.0, 0.5], [0.0, -2 / 3]])
    found = growth(lengths, 2.5 * lengths ** exponents[..., None])
    np.testing.assert_allclose(found.exponent, exponents, atol=1e-12)
    np.testing.assert_allclose(found.factor, 2.5, rtol=1e-12)
    np.testing.assert_allclose(found.error, 0, atol=1e-12)


def test_growth_error_covers_the_scatter_of_the_exponent():
    rng = np.random.default_rng(0)
    lengths = np.geomspace(10, 1000, 30)
    found = growth(lengths, np.exp(rng.normal(size=(4000, 30))))
    # The standard error is the standard deviation over repetitions, to a few per cent for 4000 of them.
    assert np.sqrt((found.error**2).mean()) == pytest.approx(found.exponent.std(), rel=0.05)


def test_growth_agrees_with_polyfit():
    rng = np.random.default_rng(1)
    lengths = np.arange(3, 40)
    values = rng.uniform(0.1, 2, size=lengths.shape)
    slope, intercept = np.polyfit(np.log(lengths), np.log(values), 1)
    found = growth(lengths, values)
    assert found.exponent == pytest.approx(slope, rel=1e-10)
    assert found.factor == pytest.approx(math.exp(intercept), rel=1e-10)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: effective_number([0.5, 0.6]), "sum to 1"),
        (lambda: effective_number([1.5, -0.5]), "must not be negative"),
        (lambda: effective_number([np.nan, 1.0]), "finite"),
        (lambda: effective_number(1.0), "dimensions"),
        (lambda: tokens_for_share([0.5, 0.6]), "sum to 1"),
        (lambda: tokens_for_share([0.5, 0.5], 0.0), "share"),
        (lambda: tokens_for_share([0.5, 0.5], 1.1), "share"),
        (lambda: weight_bounds(0, 1.0), "at least 1"),
        (lambda: weight_bounds(4, -1.0), "must not be negative"),
        (lambda: weight_bounds(4, np.inf), "finite"),
        (lambda: growth([1, 2, 3], [1, 2]), "shape"),
        (lambda: growth([1, 2, 3], [1, 0, 2]), "positive"),
        (lambda: growth([2, 2, 2], [1, 2, 3]), "not all alike"),
        (lambda: growth([1, 2], [1, 2]), "at least three"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_the_entropy_of_negative_weights_is_refused():
    with pytest.raises(ValueError, match="must not be negative"):
        row_entropy([[-1.0, 2.0]])
