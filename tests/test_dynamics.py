"""The particle flow and its layers, for every scheme and with general Q, K, V, norms and alpha_t."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.linalg
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.integrate import solve_ivp

from attnorm import SCHEMES, attention, measures, run_layers, simulate, velocity
from strategies import betas, clouds, matrices, schemes

TIMES = np.array([0.0, 0.4, 1.0])
OPTIONS = {"tau": 0.5, "alpha": lambda t: 0.5 + 0.3 * np.cos(t)}
few = settings(max_examples=25)


def rotation(rng, d):
    return scipy.linalg.qr(rng.standard_normal((d, d)))[0]


def flow_or_skip(*arguments, **options):
    """Random V can drive a radius to zero, where the ODE ends; such an example says nothing."""
    try:
        return simulate(*arguments, **options)
    except ArithmeticError:
        assume(False)


@given(schemes, clouds(), betas)
def test_velocity_is_tangent_to_the_sphere(scheme, cloud, beta):
    x, rng = cloud
    theta = x / np.linalg.norm(x, axis=1, keepdims=True)
    turning, _ = velocity(scheme, x, 0.7, beta=beta, **matrices(rng, x.shape[1]), **OPTIONS)
    size = np.abs(turning).max() + 1e-300
    np.testing.assert_allclose((turning * theta).sum(axis=1) / size, 0.0, atol=1e-13)


@few
@given(schemes, clouds(), st.sampled_from([0.0, 1.0, 4.0]))
def test_directions_stay_unit_and_radii_positive(scheme, cloud, beta):
    x, rng = cloud
    flow = flow_or_skip(scheme, x, TIMES, beta=beta, **matrices(rng, x.shape[1]), **OPTIONS)
    np.testing.assert_allclose(np.linalg.norm(flow.theta, axis=-1), 1.0, rtol=1e-14)
    assert (flow.radius > 0).all()
    np.testing.assert_allclose(flow.radius[0], np.linalg.norm(x, axis=1), rtol=1e-15)
    np.testing.assert_allclose(flow.theta[0] * flow.radius[0][:, None], x, rtol=1e-13)


CARTESIAN = {
    # x' of each scheme in Cartesian coordinates, from its layer update by hand; A is the attention vector,
    # N(x) = theta.
    "post-ln": lambda theta, A, t, alpha: A - (theta * A).sum(1, keepdims=True) * theta,
    "pre-ln": lambda theta, A, t, alpha: A,
    "peri-ln": lambda theta, A, t, alpha: A / np.linalg.norm(A, axis=1, keepdims=True),
    "ngpt": lambda theta, A, t, alpha: (
        alpha * (A - (theta * A).sum(1, keepdims=True) * theta) / np.linalg.norm(A, axis=1, keepdims=True)
    ),
    "sqrt-scaling": lambda theta, A, t, alpha: (
        (A - (theta * A).sum(1, keepdims=True) * theta) / np.sqrt(1 + t)
    ),
}


@pytest.mark.parametrize("scheme", sorted(CARTESIAN))
def test_polar_flow_agrees_with_cartesian_coordinates(scheme):
    """An independent integration of x (not of theta and r), with general Q, K, V, norms and alpha_t."""
    rng = np.random.default_rng(3)
    x0, M = rng.standard_normal((6, 4)) * 1.7, matrices(rng, 4)
    on_sphere = scheme in ("post-ln", "ngpt", "sqrt-scaling")
    r0 = np.linalg.norm(x0, axis=1, keepdims=True)

    def velocity_of_x(t, x):
        x = x.reshape(x0.shape)
        theta = x / np.linalg.norm(x, axis=1, keepdims=True)
        A = attention(theta, beta=2.0, **M)
        return CARTESIAN[scheme](theta, A, t, OPTIONS["alpha"](t)).ravel()

    start = x0 / r0 if on_sphere else x0
    x = solve_ivp(velocity_of_x, (0, 2), start.ravel(), rtol=1e-11, atol=1e-12).y[:, -1].reshape(x0.shape)
    flow = simulate(scheme, x0, [2.0], beta=2.0, **M, **OPTIONS)
    np.testing.assert_allclose(flow.theta[0], x / np.linalg.norm(x, axis=1, keepdims=True), atol=1e-7)
    np.testing.assert_allclose(
        flow.radius[0], r0[:, 0] if on_sphere else np.linalg.norm(x, axis=1), rtol=1e-7
    )


def test_mix_ln_is_post_ln_and_then_pre_ln():
    """The switch is at tau exactly: continuing a Post-LN run as Pre-LN gives the same, wherever the output
    times lie."""
    rng = np.random.default_rng(4)
    x0, M = rng.standard_normal((5, 4)), matrices(rng, 4)
    early = simulate("post-ln", x0, [0.3, 0.777], **M)
    late = simulate("pre-ln", early.theta[-1] * early.radius[-1][:, None], [2.0 - 0.777], **M)
    mix = simulate("mix-ln", x0, [0.3, 2.0], tau=0.777, **M)
    np.testing.assert_allclose(mix.theta[0], early.theta[0], atol=1e-7)
    np.testing.assert_allclose(mix.theta[1], late.theta[0], atol=1e-7)
    np.testing.assert_allclose(mix.radius[1], late.radius[0], rtol=1e-7)


@pytest.mark.parametrize(("tau", "same_as"), [(0.0, "pre-ln"), (5.0, "post-ln"), (np.inf, "post-ln")])
def test_mix_ln_has_both_limits(tau, same_as):
    x0 = np.random.default_rng(5).standard_normal((4, 3))
    mix, limit = simulate("mix-ln", x0, TIMES, tau=tau), simulate(same_as, x0, TIMES)
    np.testing.assert_array_equal(mix.theta, limit.theta)
    np.testing.assert_array_equal(mix.radius, limit.radius)


@few
@given(schemes, clouds(min_n=2), st.sampled_from([0.0, 1.0, 4.0]))
def test_flow_is_equivariant_under_rotations(scheme, cloud, beta):
    x, rng = cloud
    M, R = matrices(rng, x.shape[1]), rotation(rng, x.shape[1])
    turned = {"Q": M["Q"] @ R.T, "K": M["K"] @ R.T, "V": R @ M["V"] @ R.T}
    flow = flow_or_skip(scheme, x, TIMES, beta=beta, **M, **OPTIONS)
    image = flow_or_skip(scheme, x @ R.T, TIMES, beta=beta, **turned, **OPTIONS)
    np.testing.assert_allclose(image.theta, flow.theta @ R.T, atol=1e-6)
    np.testing.assert_allclose(image.radius, flow.radius, rtol=1e-6)


@few
@given(schemes, clouds(min_n=2), st.sampled_from([0.0, 1.0, 4.0]))
def test_flow_is_equivariant_under_permutations(scheme, cloud, beta):
    x, rng = cloud
    M, order = matrices(rng, x.shape[1]), rng.permutation(len(x))
    flow = flow_or_skip(scheme, x, TIMES, beta=beta, **M, **OPTIONS)
    image = flow_or_skip(scheme, x[order], TIMES, beta=beta, **M, **OPTIONS)
    np.testing.assert_allclose(image.theta, flow.theta[:, order], atol=1e-6)
    np.testing.assert_allclose(image.radius, flow.radius[:, order], rtol=1e-6)


def test_a_causal_mask_breaks_permutation_equivariance():
    x = np.random.default_rng(6).standard_normal((4, 3))
    flow = simulate("post-ln", x, TIMES, causal=True)
    image = simulate("post-ln", x[::-1], TIMES, causal=True)
    assert np.abs(image.theta - flow.theta[:, ::-1]).max() > 1e-2


@few
@given(schemes, clouds(min_n=2), betas)
def test_energy_never_increases(scheme, cloud, beta):
    """dE/dt = -2 beta sum_j (Z_j / s_j) |P A_j|^2 <= 0 for Q = K = V = I, for every scheme."""
    x, _ = cloud
    flow = flow_or_skip(scheme, x, np.linspace(0, 4, 17), beta=beta, **OPTIONS)
    log_energy = measures.log_energy(flow.theta, beta)  # log of -E
    # -E is known to rtol of the integrator times beta.
    assert (np.diff(log_energy) >= -1e-7 * (1 + beta)).all()


def test_energy_increases_when_values_repel():
    """The control: V = -I turns the descent into an ascent."""
    x = np.random.default_rng(7).standard_normal((6, 3))
    flow = simulate("post-ln", x, np.linspace(0, 4, 17), V=-np.eye(3))
    assert measures.log_energy(flow.theta, 1.0)[-1] < measures.log_energy(flow.theta, 1.0)[0] - 0.1


@pytest.mark.parametrize("scheme", sorted(SCHEMES))
def test_layers_converge_to_the_flow_with_order_one(scheme):
    rng = np.random.default_rng(8)
    x0, M = 1.5 * rng.standard_normal((5, 4)), matrices(rng, 4)
    flow = simulate(scheme, x0, [1.0], beta=2.0, rtol=1e-10, **M, **OPTIONS)
    errors = []
    for n_layers in (256, 512, 1024):
        layers = run_layers(scheme, x0, n_layers, step=1 / n_layers, beta=2.0, **M, **OPTIONS)
        x, y = (f.theta[-1] * f.radius[-1][:, None] for f in (layers, flow))
        errors.append(np.abs(x - y).max())
    orders = np.log2(np.array(errors[:-1]) / errors[1:])
    # The next term of the error is of relative size h: below 1 % at 256 layers.
    np.testing.assert_allclose(orders, 1.0, atol=0.02)


@pytest.mark.parametrize("scheme", ["post-ln", "ngpt", "sqrt-scaling"])
def test_schemes_on_the_sphere_carry_the_radius_unchanged(scheme):
    x0 = np.random.default_rng(9).standard_normal((5, 4))
    r0 = np.linalg.norm(x0, axis=1)
    np.testing.assert_allclose(run_layers(scheme, x0, 7).radius, np.tile(r0, (8, 1)), rtol=1e-13)
    np.testing.assert_allclose(simulate(scheme, x0, TIMES).radius, np.tile(r0, (3, 1)), rtol=1e-13)


def test_ngpt_layer_interpolates_between_direction_and_attention():
    x0 = np.random.default_rng(10).standard_normal((5, 4))
    unit = lambda x: x / np.linalg.norm(x, axis=1, keepdims=True)  # noqa: E731
    theta, h, alpha = unit(x0), 0.3, 0.4
    expected = unit((1 - h * alpha) * theta + h * alpha * unit(attention(theta, beta=1.0)))
    np.testing.assert_allclose(run_layers("ngpt", x0, 1, step=h, alpha=alpha).theta[1], expected, rtol=1e-13)


def test_mix_ln_layer_is_post_ln_where_its_depth_is_below_tau():
    x0 = np.random.default_rng(11).standard_normal((5, 4))
    mix = run_layers("mix-ln", x0, 4, step=0.5, tau=1.0)
    changed = np.abs(np.diff(mix.radius, axis=0)).max(axis=1) > 1e-12
    assert changed.tolist() == [False, False, True, True]


def test_a_batch_is_independent_systems():
    x0 = np.random.default_rng(12).standard_normal((3, 5, 4))
    together = simulate("peri-ln", x0, TIMES, beta=2.0)
    for b in range(3):
        alone = simulate("peri-ln", x0[b], TIMES, beta=2.0)
        np.testing.assert_allclose(together.theta[:, b], alone.theta, atol=1e-7)


def test_matrices_may_depend_on_depth():
    """V(t) = e^{-t} I is Post-LN on the clock 1 - e^{-t}."""
    x0 = np.random.default_rng(13).standard_normal((5, 4))
    moving = simulate("post-ln", x0, [1.0], V=lambda t: np.exp(-t) * np.eye(4))
    still = simulate("post-ln", x0, [1 - np.exp(-1.0)])
    np.testing.assert_allclose(moving.theta, still.theta, atol=1e-7)


def test_ngpt_stands_still_without_a_step():
    x0 = np.random.default_rng(14).standard_normal((5, 4))
    flow = simulate("ngpt", x0, [3.0], alpha=0.0)
    np.testing.assert_allclose(flow.theta[0] * flow.radius[0][:, None], x0, rtol=1e-13)


def test_a_radius_that_reaches_zero_ends_the_flow():
    with pytest.raises(ArithmeticError, match=r"pre-ln: a radius reached zero|pre-ln: .* near t = 1"):
        simulate("pre-ln", np.eye(2)[:1], [2.0], V=-np.eye(2))


def test_a_vanishing_attention_vector_is_an_error():
    with pytest.raises(ArithmeticError, match="A_j zero"):
        simulate("peri-ln", np.eye(2), [1.0], V=np.zeros((2, 2)))


def test_tokens_that_slide_along_a_vanishing_attention_vector_end_the_flow():
    """At beta = 0 all A_j are V times the mean, which this V drives to zero; nGPT's velocity jumps there."""
    with pytest.raises(ArithmeticError, match="some A_j reached zero"):
        simulate("ngpt", [[0.6, 0.8], [0.8, -0.6]], [50.0], beta=0.0, V=-np.eye(2))


@pytest.mark.parametrize(
    ("scheme", "x0", "times", "options", "message"),
    [
        ("layer-ln", np.eye(2), [1.0], {}, "unknown scheme 'layer-ln'; allowed: post-ln"),
        ("post-ln", np.eye(2)[0], [1.0], {}, "x0 must have at least 2 dimensions"),
        ("post-ln", np.zeros((2, 2)), [1.0], {}, "zero vectors; token 0"),
        ("post-ln", np.eye(2) * 1e200, [1.0], {}, "size between 1e-150 and 1e150; got 1e.200"),
        ("post-ln", np.eye(2) * 1e-200, [1.0], {}, "size between 1e-150 and 1e150; got 1e-200"),
        ("post-ln", [[1.0, np.inf]], [1.0], {}, "x0 must be finite"),
        ("post-ln", np.empty((0, 2)), [1.0], {}, "must not be empty"),
        ("post-ln", np.eye(2), [1.0, 1.0], {}, "strictly increasing; they are not at index 1"),
        ("post-ln", np.eye(2), [-1.0, 1.0], {}, "times must not be negative"),
        ("post-ln", np.eye(2), [[1.0]], {}, "one-dimensional"),
        ("post-ln", np.eye(2), [1.0], {"beta": -2}, "beta must be a finite number >= 0; got -2"),
        ("mix-ln", np.eye(2), [1.0], {}, "mix-ln needs tau"),
        ("mix-ln", np.eye(2), [1.0], {"tau": -1.0}, "tau must be a number >= 0; got -1"),
        ("post-ln", np.eye(2), [1.0], {"tau": -1.0}, "tau must be a number >= 0; got -1"),
        ("ngpt", np.eye(2), [1.0], {"alpha": -0.1}, "alpha must be a finite number >= 0"),
        ("ngpt", np.eye(2), [1.0], {"alpha": lambda t: -t}, r"alpha\(t = .*\) must be a finite number >= 0"),
        ("post-ln", np.eye(2), [1.0], {"Q": lambda t: np.eye(3)}, r"Q must have shape \(k, 2\)"),
        ("post-ln", np.eye(2), [1.0], {"rtol": 0.0}, "rtol must be"),
        ("post-ln", np.eye(2), [1.0], {"V": np.ones((3, 2, 2))}, "V must have no leading dimensions"),
        ("post-ln", np.eye(2) * 1j, [1.0], {}, "x0 must be an array of real numbers; got complex"),
        ("post-ln", np.eye(2), [1.0], {"beta": 1 + 0j}, "beta must be a real number"),
    ],
)
def test_bad_input_is_named(scheme, x0, times, options, message):
    with pytest.raises(ValueError, match=message):
        simulate(scheme, x0, times, **options)


@pytest.mark.parametrize(
    ("n_layers", "step", "message"),
    [(-1, 1.0, "n_layers must be an integer >= 0"), (2.5, 1.0, "n_layers"), (2, 0.0, "step must be")],
)
def test_bad_layers_are_named(n_layers, step, message):
    with pytest.raises(ValueError, match=message):
        run_layers("post-ln", np.eye(2), n_layers, step=step)


def test_a_wrong_speed_is_another_flow():
    """The control of the convergence test: with s_j = r_j^2 the layers of Pre-LN do not converge to the
    flow."""
    pre = SCHEMES["pre-ln"]
    x0 = 1.5 * np.random.default_rng(15).standard_normal((5, 4))
    wrong = simulate(replace(pre, speed=pre.speed**2), x0, [1.0])
    layers = run_layers("pre-ln", x0, 1024, step=1 / 1024)
    assert np.abs(wrong.theta[-1] - layers.theta[-1]).max() > 1e-2


@pytest.mark.parametrize(("t", "law"), [(0.5, "post-ln"), (1.0, "post-ln"), (1.5, "pre-ln")])
def test_the_velocity_of_mix_ln_is_that_of_its_phase(t, law):
    x = 2.0 * np.random.default_rng(8).standard_normal((4, 3))
    for found, expected in zip(velocity("mix-ln", x, t, tau=1.0), velocity(law, x, t), strict=True):
        np.testing.assert_allclose(found, expected)
