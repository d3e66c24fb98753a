"""The random start: expectations against quadrature and draws, bounds against arbitrary tokens."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import ive

from attnorm import attention, symmetric
from attnorm.random_start import (
    attention_bound,
    attention_sums,
    cosine_mgf,
    expected_attention,
    mean_and_spread,
    random_mean_and_spread,
    uniform_directions,
)
from attnorm.schemes import unit


def mean_over_sphere(f, d):
    """E f(x) for one coordinate x of a uniform direction, by quadrature in the polar angle."""

    def integral(g):
        value, _ = quad(
            lambda phi: g(np.sin(phi)) * np.cos(phi) ** (d - 2), -np.pi / 2, np.pi / 2, epsabs=1e-13
        )
        return value

    return integral(f) / integral(np.ones_like)


@pytest.mark.parametrize(("b", "d"), [(0.3, 2), (1.0, 3), (2.0, 16), (5.0, 7), (20.0, 400)])
def test_generating_function_is_the_mean_over_the_sphere(b, d):
    assert float(cosine_mgf(b, d).evalf()) == pytest.approx(
        mean_over_sphere(lambda x: np.exp(b * x), d), 1e-9
    )


@pytest.mark.parametrize("beta", [0.0, 0.7, 3.0])
@pytest.mark.parametrize(("n", "d"), [(2, 2), (10, 3), (300, 40)])
def test_expected_attention_is_made_of_means_over_the_sphere(n, d, beta):
    mean = partial(mean_over_sphere, d=d)
    Z = np.exp(beta) + (n - 1) * mean(lambda x: np.exp(beta * x))
    first = mean(lambda x: x * np.exp(beta * x))
    along = np.exp(beta) + (n - 1) * first
    second = mean(lambda x: (x * np.exp(beta * x)) ** 2)
    across = (n - 1) * mean(lambda x: np.exp(2 * beta * x) * (1 - x**2))
    square = along**2 + (n - 1) * (second - first**2) + across
    found = expected_attention(n, d, beta)
    np.testing.assert_allclose(found.radial, along / Z, rtol=1e-9)
    np.testing.assert_allclose(found.turning, np.sqrt(across) / Z, rtol=1e-9)
    np.testing.assert_allclose(found.norm, np.sqrt(square) / Z, rtol=1e-9)


def test_expected_attention_stays_accurate_where_dimension_and_temperature_are_large():
    """The Bessel form, scaled, against the hypergeometric one."""
    d, b = 64, 250.0
    order = d / 2 - 1
    log_mgf = sum(np.log(np.arange(1, order + 1))) + order * np.log(2 / b) + np.log(ive(order, b)) + b
    # With two tokens E Z = e^beta + M, and the rest of the quotient is known.
    Z = np.exp(b) + np.exp(log_mgf)
    radial = expected_attention(2, d, b).radial
    first = np.exp(log_mgf) * ive(order + 1, b) / ive(order, b)
    assert radial == pytest.approx((np.exp(b) + first) / Z, 1e-9)


@pytest.mark.parametrize("beta", [0.0, 1.0, 4.0])
def test_high_dimension_is_the_symmetric_start(beta):
    numbers = {symmetric.u: 1, symmetric.n: 20, symmetric.beta: beta}
    expected = float(symmetric.ATTENTION_NORM.subs(numbers))
    assert expected_attention(20, 10**9, beta).norm == pytest.approx(expected, 1e-6)


def test_uniform_directions_have_the_right_first_moments():
    theta = uniform_directions(np.random.default_rng(0), 40_000, 3)
    np.testing.assert_allclose((theta**2).sum(axis=-1), 1.0)
    np.testing.assert_allclose(theta.mean(axis=0), 0.0, atol=4 / np.sqrt(3 * 40_000))
    np.testing.assert_allclose(theta.T @ theta / 40_000, np.eye(3) / 3, atol=4 * 0.3 / np.sqrt(40_000))


def test_attention_sums_are_numerator_and_denominator_of_attention():
    rng = np.random.default_rng(1)
    theta = uniform_directions(rng, 2, 9, 5)
    Q, K, V = rng.standard_normal((3, 5, 5))
    rows = np.array([7, 0, 3])
    Z, N = attention_sums(theta, rows, beta=1.3, Q=Q, K=K, V=V)
    logits = 1.3 * (theta @ Q.T) @ np.swapaxes(theta @ K.T, -1, -2)
    np.testing.assert_allclose(Z, np.exp(logits).sum(axis=-1)[:, rows])
    np.testing.assert_allclose(
        N / Z[..., None], attention(theta, beta=1.3, Q=Q, K=K, V=V)[:, rows], rtol=1e-12
    )
    single = attention_sums(theta.astype(np.float32), rows, beta=1.3, Q=Q, K=K, V=V)
    assert {part.dtype for part in single} == {np.dtype(np.float32)}
    np.testing.assert_allclose(single[1], N, rtol=1e-3, atol=1e-4)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 30), st.integers(1, 12), st.floats(0, 6), st.floats(0, 3))
def test_no_attention_vector_exceeds_the_bound(seed, n, d, beta, lean):
    """Any tokens, any K^T Q and V of norm at most one."""
    rng = np.random.default_rng(seed)
    theta = unit(rng.standard_normal((n, d)) * rng.lognormal(size=d) + lean * rng.standard_normal(d))
    M, V = rng.standard_normal((2, d, d))
    M, V = (matrix / np.linalg.norm(matrix, 2) for matrix in (M, V))
    A = np.linalg.norm(attention(theta, beta=beta, Q=M, K=np.eye(d), V=V), axis=-1)
    bound = attention_bound(*mean_and_spread(theta), beta)
    assert A.max() <= bound * (1 + 1e-12)


def test_mean_and_spread_of_an_orthonormal_set():
    mean, spread = mean_and_spread(np.eye(5)[:3])
    assert mean == pytest.approx(1 / np.sqrt(3))
    assert spread == pytest.approx(1 / 3)


@pytest.mark.parametrize(("n", "d"), [(50, 300), (400, 100)])
def test_bounds_at_random_hold_as_often_as_promised(n, d):
    theta = uniform_directions(np.random.default_rng(n), 200, n, d)
    limits = random_mean_and_spread(n, d, 0.05)
    broken = sum(found > limit for found, limit in zip(mean_and_spread(theta), limits, strict=True)) > 0
    assert broken.mean() <= 0.15


def test_bounds_at_random_are_trivial_where_the_dimension_is_too_small():
    assert random_mean_and_spread(1000, 4, 0.01)[1] == 1.0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: expected_attention(1, 4), "n must be >= 2"),
        (lambda: expected_attention(4, [3, 1]), "d must be >= 2"),
        (lambda: expected_attention(4, 4, -1.0), "beta must lie between"),
        (lambda: random_mean_and_spread(4, 4, 1.0), "p must lie between"),
        (lambda: random_mean_and_spread(0, 4, 0.1), "n and d must be >= 1"),
        (lambda: attention_bound(-0.1, 0.5), "must not be negative"),
        (lambda: uniform_directions(np.random.default_rng(0), 4), "shape must be"),
        (lambda: attention_sums(np.eye(3), beta=-1.0), "beta must be"),
        (lambda: mean_and_spread(np.ones(3)), "theta must have at least 2 dimensions"),
    ],
)
def test_bad_input_is_refused_with_a_reason(call, words):
    with pytest.raises(ValueError, match=words):
        call()
