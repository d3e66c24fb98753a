"""The two-sample tests of head means, against scipy, enumeration and loops that read like the definitions."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from attnorm.samples import (
    crossing,
    first_number,
    ks_critical,
    ks_pvalue,
    ks_statistic,
    largest_window,
    overlooked_shift,
    tost,
)

SAMPLES = st.lists(st.integers(0, 6), min_size=2, max_size=9)


@given(SAMPLES, st.randoms())
def test_statistic_is_scipys_also_with_ties(values, random):
    other = [random.randint(0, 6) for _ in values]
    expected = stats.ks_2samp(values, other, method="asymp").statistic
    assert ks_statistic(values, other) == pytest.approx(expected, abs=1e-12)


def test_statistic_takes_many_samples_at_once():
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(2, 3, 4, 17))
    found = ks_statistic(first, second)
    assert found.shape == (3, 4)
    assert found[1, 2] == ks_statistic(first[1, 2], second[1, 2])


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6])
def test_pvalue_counts_the_orders_of_two_samples(size):
    """All ways to choose which places in the merged order belong to the first sample."""
    heights = []
    for places in itertools.combinations(range(2 * size), size):
        steps = np.full(2 * size, -1)
        steps[list(places)] = 1
        heights.append(np.abs(np.cumsum(steps)).max())
    for k in range(1, size + 1):
        assert ks_pvalue(k / size, size) == pytest.approx(np.mean(np.array(heights) >= k), rel=1e-12)


@pytest.mark.parametrize("size", [9, 40, 144, 270])
def test_pvalue_is_scipys_exact_one(size):
    rng = np.random.default_rng(size)
    for shift in (0.0, 0.2, 0.6):
        first, second = rng.normal(size=size), rng.normal(shift, size=size)
        found = stats.ks_2samp(first, second, method="exact")
        assert ks_pvalue(float(ks_statistic(first, second)), size) == pytest.approx(found.pvalue, rel=1e-6)


@pytest.mark.parametrize("size", [4, 10, 144])
@pytest.mark.parametrize("level", [0.01, 0.05])
def test_critical_value_is_the_first_that_is_rejected(size, level):
    first = next((k / size for k in range(1, size + 1) if ks_pvalue(k / size, size) < level), math.inf)
    assert ks_critical(size, level) == first


def test_window_share_is_the_statistic_of_a_shifted_sample():
    rng = np.random.default_rng(1)
    for width in (0.0, 0.1, 0.7, 3.0, 50.0):
        values = rng.normal(size=31)
        assert largest_window(values, width) == pytest.approx(ks_statistic(values, values + width), abs=1e-12)


def test_shift_that_is_overlooked_splits_large_normal_samples():
    """With 144 values at the normal quantiles, a little less is accepted and a little more is rejected."""
    values = 0.7 * stats.norm.ppf((np.arange(144) + 0.5) / 144)
    edge = overlooked_shift(144, 0.05, 0.7)
    critical = ks_critical(144, 0.05)
    assert ks_statistic(values, values + 0.95 * edge) < critical <= ks_statistic(values, values + 1.05 * edge)


def test_tost_is_two_t_tests():
    rng = np.random.default_rng(2)
    first = np.exp(rng.normal(size=25))
    second = first * np.exp(rng.normal(0.03, 0.1, size=25))
    ratio, edge = np.log(first / second), np.log(1.2)
    low = stats.ttest_1samp(ratio, -edge, alternative="greater").pvalue
    high = stats.ttest_1samp(ratio, edge, alternative="less").pvalue
    assert tost(first, second, 0.2) == pytest.approx(max(low, high), rel=1e-9)


def test_tost_of_equal_ratios():
    values = np.array([1.0, 3.0, 9.0])
    assert tost(values, values, 0.1) == 0
    assert tost(values, 1.2 * values, 0.1) == 1


@given(st.integers(1, 40), st.integers(1, 60))
def test_bisection_is_the_scan_where_acceptance_is_monotone(edge, high):
    def accepts(n):
        return n >= edge

    assert crossing(accepts, 1, high) == first_number(accepts, 1, high)


@given(st.sets(st.integers(1, 30)))
def test_bisection_finds_a_crossing_where_it_is_not(accepted):
    found = crossing(lambda n: n in accepted, 1, 30)
    if 30 in accepted:
        assert found in accepted
        assert found == 1 or found - 1 not in accepted
    else:
        assert found is None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ks_statistic([1.0], [1.0, 2.0]), "one shape"),
        (lambda: ks_statistic([np.nan], [1.0]), "finite"),
        (lambda: ks_pvalue(0.3, 4), "multiple"),
        (lambda: ks_pvalue(1.5, 4), "statistic"),
        (lambda: ks_critical(4, 0.0), "level"),
        (lambda: tost([1.0], [1.0], 0.1), "two pairs"),
        (lambda: tost([1.0, -1.0], [1.0, 1.0], 0.1), "positive"),
        (lambda: tost([1.0, 1.0], [1.0, 1.0], 0.0), "margin"),
        (lambda: largest_window([1.0], -1.0), "width"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
