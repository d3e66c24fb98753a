"""Random weights: draws have the variances they promise, and the closed law is that of its equations."""

import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.special import i0

from attnorm import SCHEMES
from attnorm.random_weights import draw, mean_field

TIMES = np.array([0.0, 0.5, 1.5, 3.0, 6.0])
SETTING = {"n": 80, "d": 300, "value_variance": 1.3, "logit_variance": 0.8}


def slow_step(t):
    return 1.0 / (1.0 + 0.3 * t)


def reference(scheme, t_end, *, n, d, value_variance, logit_variance, r0, tau):
    """The two equations of the law with an adaptive solver, schemes written out by hand."""
    v, g = value_variance, logit_variance

    def state(clock, eta):
        q, nu = (i0(2 * np.sqrt(v) * clock) - 1) / n, v * eta**2
        c = q / (1 + q + nu)
        b = (np.exp(g * (1 - c)) - 1) / n + g * (1 - c) ** 2 / d
        return c, np.sqrt(1 + q + nu), np.sqrt(v * (c + (1 - c) * (1 / n + b))), np.sqrt(b)

    def solve(pace, start, begin, end):
        if end <= begin:
            return start

        def right(t, y):
            _, R, a, root = state(*y)
            return [pace(t, R, a), pace(t, R, a) * root]

        return solve_ivp(right, (begin, end), start, rtol=1e-10, atol=1e-12).y[:, -1]

    paces = {
        "post-ln": lambda t, R, a: 1.0,
        "pre-ln": lambda t, R, a: 1 / (r0 * R),
        "peri-ln": lambda t, R, a: 1 / (r0 * R * a),
        "ngpt": lambda t, R, a: slow_step(t) / a,
        "sqrt-scaling": lambda t, R, a: 1 / np.sqrt(t + 1),
    }
    if scheme != "mix-ln":
        y = solve(paces[scheme], [0.0, 0.0], 0.0, t_end)
        c, R, _, _ = state(*y)
        return c, r0 * R if scheme in ("pre-ln", "peri-ln") else r0
    y = solve(paces["post-ln"], [0.0, 0.0], 0.0, min(tau, t_end))
    at_switch = state(*y)[1]
    y = solve(lambda t, R, a: at_switch / (r0 * R), y, tau, t_end)
    c, R, _, _ = state(*y)
    return c, r0 * R / at_switch


@pytest.mark.parametrize("scheme", sorted(SCHEMES))
def test_the_law_solves_its_two_equations(scheme):
    found = mean_field(scheme, TIMES, **SETTING, r0=0.7, alpha=slow_step, tau=1.1)
    for k, t in enumerate(TIMES[1:], start=1):
        cosine, radius = reference(scheme, t, **SETTING, r0=0.7, tau=1.1)
        assert found.cosine[k] == pytest.approx(cosine, abs=2e-6)
        assert found.radius[k] == pytest.approx(radius, rel=2e-6)
    assert found.cosine[0] == 0.0
    assert found.radius[0] == pytest.approx(0.7)


def test_settings_broadcast():
    n, v = np.array([[40.0], [160.0]]), np.array([0.8, 1.0, 1.4])
    many = mean_field("mix-ln", TIMES, n=n, d=256, value_variance=v, tau=1.0, step=0.1)
    assert many.cosine.shape == many.radius.shape == many.clock.shape == (5, 2, 3)
    one = mean_field("mix-ln", TIMES, n=160, d=256, value_variance=1.4, tau=1.0, step=0.1)
    np.testing.assert_allclose(many.cosine[:, 1, 2], one.cosine)


def test_the_scale_of_v_is_a_clock_an_inverse_norm_or_nothing():
    quiet = {"n": 80, "d": 300, "logit_variance": 0.8}

    def run(scheme, times, v, r0=1.0):
        return mean_field(scheme, times, **quiet, value_variance=v, r0=r0).cosine

    later = TIMES[1:]
    np.testing.assert_allclose(run("post-ln", later, 4.0), run("post-ln", 2 * later, 1.0), atol=1e-7)
    np.testing.assert_allclose(run("pre-ln", later, 4.0), run("pre-ln", later, 1.0, 0.5), atol=1e-7)
    for scheme in ("peri-ln", "ngpt"):
        np.testing.assert_allclose(run(scheme, later, 4.0), run(scheme, later, 1.0), atol=1e-7)


def test_nothing_overflows_at_large_depth():
    deep = mean_field("post-ln", [2000.0], n=50, d=100, step=1.0)
    assert deep.cosine[0] == pytest.approx(1.0)
    assert mean_field("pre-ln", [1e3], n=50, d=100, step=0.5).radius[0] == pytest.approx(1e3, rel=0.05)


def test_draws_have_the_variances_that_were_asked_for():
    drawn = draw(np.random.default_rng(0), 3, 40, 200, value_variance=1.7, logit_variance=0.6)
    np.testing.assert_allclose(np.linalg.norm(drawn["x0"], axis=-1), 1.0)
    assert drawn["V"].var() * 200 == pytest.approx(1.7, rel=0.02)
    query, key = (drawn["x0"] @ drawn[name].swapaxes(1, 2) for name in "QK")
    assert (drawn["beta"] * query @ key.swapaxes(1, 2)).var() == pytest.approx(0.6, rel=0.1)
    again = draw(np.random.default_rng(0), 3, 40, 200, value_variance=1.7, logit_variance=0.6)
    np.testing.assert_array_equal(drawn["K"], again["K"])


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"n": 0.0}, "n must be > 0"),
        ({"value_variance": -1.0}, "value_variance must be > 0"),
        ({"logit_variance": np.nan}, "logit_variance must be finite"),
        ({"r0": 0.0}, "r0"),
        ({"step": 0.0}, "step"),
        ({"times": [2.0, 1.0]}, "increasing"),
        ({"scheme": "mix-ln"}, "needs tau"),
        ({"scheme": "rms"}, "unknown scheme"),
    ],
)
def test_bad_input_is_named(wrong, says):
    arguments = {"scheme": "post-ln", "times": [1.0], "n": 10, "d": 10, **wrong}
    with pytest.raises(ValueError, match=says):
        mean_field(arguments.pop("scheme"), arguments.pop("times"), **arguments)


@pytest.mark.parametrize("wrong", [{"draws": 0}, {"n": 1.5}, {"d": 0}])
def test_sizes_of_draws_are_whole_and_positive(wrong):
    sizes = {"draws": 1, "n": 2, "d": 2, **wrong}
    with pytest.raises(ValueError, match="integer >= 1"):
        draw(np.random.default_rng(0), **sizes)
