"""Cones of tokens, the rate of their variance, constants of terminal laws and stacks of symmetric layers."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnorm import SCHEMES, cone, constants, equiangular, measures, run_layers, simulate
from attnorm.schemes import unit
from attnorm.symmetric_layers import equiangular_layers
from strategies import clouds, matrices, schemes

OPTIONS = {"alpha": lambda t: 0.5 + 0.3 * np.cos(t), "tau": 1.0}


@given(clouds(min_n=2))
def test_width_is_one_minus_the_smallest_inner_product(cloud):
    theta = unit(cloud[0])
    np.testing.assert_allclose(cone.width(theta), 1 - (theta @ theta.T).min(), atol=1e-13)


def test_width_keeps_relative_accuracy_for_close_tokens():
    angle = 1e-9
    pair = np.array([[1.0, 0.0], [np.cos(angle), np.sin(angle)]])
    assert cone.width(pair) == pytest.approx(angle**2 / 2, rel=1e-7)


@settings(max_examples=25)
@given(
    st.integers(2, 7), st.integers(2, 5), st.sampled_from([1e-10, 1e-4, 0.1, 0.7, 1.0]), st.integers(0, 99)
)
def test_a_cloud_has_unit_tokens_and_the_width_asked_for(n, d, delta, seed):
    theta = cone.cloud(np.random.default_rng(seed), (3, n, d), delta)
    np.testing.assert_allclose(np.linalg.norm(theta, axis=-1), 1.0, rtol=1e-14)
    np.testing.assert_allclose(cone.width(theta), delta, rtol=1e-5)


def test_contractions_have_norm_one_and_differ():
    M = cone.contractions(np.random.default_rng(0), (4, 2, 5))
    np.testing.assert_allclose(np.linalg.svd(M, compute_uv=False)[:, 0], 1.0, rtol=1e-13)
    assert np.abs(M[0] - M[1]).max() > 0.1


@settings(max_examples=20)
@given(schemes, clouds(min_n=2))
def test_variance_rate_is_the_slope_of_the_variance_along_the_flow(scheme, cloud):
    """With general Q, K, V, norms and alpha_t: the formula is exact for any motion."""
    x, rng = cloud
    options = {"beta": 2.0, **matrices(rng, x.shape[1]), **OPTIONS}
    step = 1e-3
    try:
        flow = simulate(scheme, x, [0.0, step, 2 * step], rtol=1e-12, **options)
    except ArithmeticError:
        return
    middle = flow.theta[1] * flow.radius[1][:, None]
    rate = cone.variance_rate(scheme, middle, step, **options)
    var = measures.variance(flow.theta)
    slope = (var[2] - var[0]) / (2 * step)
    # Random tokens of small norm turn fast: what a central difference leaves out grows with the speed.
    speed = np.abs(np.diff(flow.theta, axis=0)).max() / step
    np.testing.assert_allclose(rate, slope, atol=1e-8 + step**2 * (1 + speed) ** 3 * 10)


@settings(max_examples=25)
@given(st.integers(2, 6), st.sampled_from([1e-6, 1e-2, 0.3, 1.0]), st.sampled_from([0.0, 0.3, 2.0]))
def test_rate_of_the_variance_lies_in_the_explicit_band(n, delta, beta):
    rng = np.random.default_rng(1)
    theta = cone.cloud(rng, (20, n, 4), delta)
    Q, K = cone.contractions(rng, (2, 20, 4, 4))
    rate = cone.variance_rate("post-ln", theta, beta=beta, Q=Q, K=K) / measures.variance(theta)
    low, high = cone.rate_bounds(delta, beta, 1.0, 1.0)
    assert (rate >= low - 1e-9).all()
    assert (rate <= high + 1e-9).all()


@pytest.mark.parametrize("scheme", sorted(SCHEMES))
def test_layers_of_two_numbers_are_layers_of_particles(scheme):
    options = {"step": 0.7, "beta": 2.0, **OPTIONS}
    particles = run_layers(scheme, 1.3 * np.eye(6), 9, **options)
    stack = equiangular_layers(scheme, 9, n=6, r0=1.3, **options)
    np.testing.assert_allclose(stack.times, particles.times)
    np.testing.assert_allclose(stack.gap, measures.gap(particles.theta), rtol=1e-11)
    np.testing.assert_allclose(stack.radius, particles.radius.mean(axis=1), rtol=1e-13)


@pytest.mark.parametrize("scheme", sorted(SCHEMES))
def test_symmetric_layers_converge_to_the_scalar_equation_with_order_one(scheme):
    options = {"n": 12, "beta": 1.5, "r0": 0.8, **OPTIONS}
    exact = equiangular(scheme, [2.0], **options)
    errors = []
    for n_layers in (128, 256, 512):
        stack = equiangular_layers(scheme, n_layers, step=2 / n_layers, **options)
        errors.append([np.log(stack.gap[-1] / exact.gap[0]), np.log(stack.radius[-1] / exact.radius[0])])
    moving = [0, 1] if SCHEMES[scheme].moves_radius else [0]
    ratios = np.array(errors)[:-1, moving] / np.array(errors)[1:, moving]
    # The next term of the error is of relative size h, at most 1/64.
    np.testing.assert_allclose(ratios, 2.0, atol=0.1)


def test_a_scheme_of_ones_own_is_read_off_its_layer():
    """Another form of the nGPT layer: same flow, another factor per layer."""
    other = replace(
        SCHEMES["ngpt"],
        layer=lambda x, A, h, t, alpha, tau: (
            np.linalg.norm(x, axis=-1, keepdims=True) * unit(unit(x) + h * alpha * unit(A(unit(x))))
        ),
    )
    gap = equiangular_layers(other, 80, n=8, beta=1.0, alpha=0.5).gap
    assert gap[80] / gap[79] == pytest.approx(1 / 1.5**2, rel=1e-12)
    gap = equiangular_layers("ngpt", 80, n=8, beta=1.0, alpha=0.5).gap
    assert gap[80] / gap[79] == pytest.approx(0.25, rel=1e-12)


def test_no_layer_is_the_start():
    stack = equiangular_layers("pre-ln", 0, n=4, beta=1.0, r0=2.0)
    assert (stack.gap.tolist(), stack.radius.tolist()) == ([1.0], [2.0])


@pytest.mark.parametrize(("n", "beta"), [(2, 0.5), (64, 2.0), (1000, 6.0)])
def test_gap_exponents_are_limits_of_the_scalar_equation(n, beta):
    for scheme, attended in (("post-ln", False), ("ngpt", True)):
        late = equiangular(scheme, [150.0], n=n, beta=beta).gap[0]
        assert np.log(late) + 300 == pytest.approx(
            constants.gap_exponent(n, beta, attended=attended), abs=1e-7
        )


@pytest.mark.parametrize(("n", "beta"), [(2, 0.5), (64, 2.0), (1000, 6.0), (7, 1e-3)])
def test_closed_form_of_the_escape_integral_is_its_quadrature(n, beta):
    assert constants.escape_integral(n, beta) == pytest.approx(
        constants.gap_exponent(n, beta) - np.log(n), abs=1e-10
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda rng: cone.cloud(rng, (5, 1, 3), 0.1), "n >= 2 and d >= 2"),
        (lambda rng: cone.cloud(rng, (3, 3), 1.5), "delta must be a finite number"),
        (lambda rng: cone.cloud(rng, (3, 3), 0.0), "> 0"),
        (lambda rng: cone.width([1.0, 0.0]), "at least 2 dimensions"),
        (lambda rng: cone.contractions(rng, (4,)), "shape must be"),
        (lambda rng: cone.rate_bounds(-0.1, 1.0, 1.0, 1.0), "must not be negative"),
        (lambda rng: cone.rate_bounds(0.1, 1.0, 2.0, 1.0), "fastest not below slowest"),
        (lambda rng: constants.escape_integral(4, 1e4), "beta must be"),
        (lambda rng: constants.gap_exponent(1, 1.0), "n must be an integer >= 2"),
        (lambda rng: constants.escape_integral(4, 0.0), "beta must be"),
        (lambda rng: equiangular_layers("mix-ln", 3, n=4, beta=1.0), "mix-ln needs tau"),
        (lambda rng: equiangular_layers("post-ln", -1, n=4, beta=1.0), "n_layers"),
        (lambda rng: equiangular_layers("post-ln", 3, n=4, beta=1.0, step=0.0), "step must be"),
        (lambda rng: equiangular_layers("nope", 3, n=4, beta=1.0), "unknown scheme"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call(np.random.default_rng(0))


def test_bounds_on_the_rate_by_hand():
    """delta = 0.02 and beta = 1: eta = 0.2."""
    lower, upper = cone.rate_bounds(0.02, 1.0, 0.5, 1.0)
    assert lower == pytest.approx(-2 * 1.2214027581601699)
    assert upper == pytest.approx(-2 * (0.5 * 0.975 - 0.2214027581601699))
