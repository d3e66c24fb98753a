"""The scalar reduction against integrations that share no code with it."""

import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import solve_ivp

from attnorm import SCHEMES, equiangular, measures, simulate

GAPS = ("0.9", "0.5", "1e-3", "1e-20", "1e-200")
CORNERS = [(0.0, 2), (0.0, 10**6), (1.0, 30), (5.0, 256), (12.0, 1000), (20.0, 2), (20.0, 10**6)]


def fields(u, n, beta, lib=mp):
    """Escape, <theta, A> and |A| at the gap u, from the attention row written out as printed."""
    g = 1 - u
    Z = lib.exp(beta) + (n - 1) * lib.exp(beta * g)
    escape = lib.exp(beta * g) * (1 + (n - 1) * g) / Z
    rho = (lib.exp(beta) + (n - 1) * g * lib.exp(beta * g)) / Z
    square = (
        lib.exp(2 * beta)
        + 2 * (n - 1) * g * lib.exp(beta * (1 + g))
        + (n - 1) * (1 + (n - 2) * g) * lib.exp(2 * beta * g)
    )
    return escape, rho, lib.sqrt(square) / Z


def integral(f, start, stop):
    """Gauss-Legendre over cells that shrink towards `start`, where the integrand varies on the scale 1/n."""
    steps = [mp.mpf(10) ** k for k in range(-7, 0)] + [mp.mpf(k) for k in (0.5, 1, 2, 4, 8, 16, 60)]
    return mp.quad(
        f, [start, *(start + step for step in steps if start + step < stop), stop], method="gauss-legendre"
    )


CLOCKS = {
    # s = c(t) sigma(u): sigma, the depth at which int dt/c reaches S, and 1/c there.
    "post-ln": (lambda a: 1, lambda S: S, lambda t: 1),
    "sqrt-scaling": (lambda a: 1, lambda S: (1 + S / 2) ** 2 - 1, lambda t: 1 / mp.sqrt(1 + t)),
    "ngpt": (lambda a: a, lambda S: S / mp.mpf(0.7), lambda t: mp.mpf(0.7)),
}


@pytest.mark.parametrize(("beta", "n"), CORNERS)
@pytest.mark.parametrize("scheme", sorted(CLOCKS))
def test_gap_on_the_sphere_agrees_with_high_precision_to_1e_8(scheme, beta, n):
    """Depth as a function of the gap, by 30-digit quadrature of dw/dt = 2 escape/s."""
    sigma, depth_of, tick = CLOCKS[scheme]
    with mp.workdps(30):
        n_, beta_ = mp.mpf(n), mp.mpf(beta)

        def slowness(w):
            escape, _, a = fields(mp.exp(-w), n_, beta_)
            return sigma(a) / (2 * escape)

        ends = [-mp.log(mp.mpf(gap)) for gap in GAPS]
        clocks = np.cumsum([integral(slowness, a, b) for a, b in zip([mp.mpf(0), *ends], ends, strict=False)])
        depths = [depth_of(S) for S in clocks]
        rounded = np.array([float(t) for t in depths])
        flow = equiangular(scheme, rounded, n=n, beta=beta, alpha=0.7)
        for w, t, t_rounded, gap in zip(ends, depths, rounded, flow.gap, strict=True):
            # The depth handed over is rounded: move the reference there, to first order.
            w_there = w + tick(t) / slowness(w) * (mp.mpf(t_rounded) - t)
            assert abs(mp.exp(w_there) * mp.mpf(gap) - 1) < 1e-8


@pytest.mark.parametrize(("beta", "n"), CORNERS)
@pytest.mark.parametrize("scheme", ["pre-ln", "peri-ln", "mix-ln"])
def test_gap_and_radius_of_growing_schemes_agree_to_1e_8(scheme, beta, n):
    """The gap as the independent variable: radius by 20-digit quadrature of d ln r/dw, depth by an ODE in w.

    The depth is well conditioned here (the gap is a power of it), so double precision is enough for it.
    """
    r0, tau = 0.3, 0.7
    ends = np.array([-float(mp.log(mp.mpf(gap))) for gap in GAPS])
    start, w0 = 0.0, 0.0
    if scheme == "mix-ln":
        start, w0 = tau, -np.log(equiangular("post-ln", [tau], n=n, beta=beta).gap[0])
        ends = ends[ends > w0]

    def slowness(
        w, y
    ):  # d(ln r)/dw = (r'/r) / w' and dt/dw; the factor r |A| or r of the speed cancels in the first
        escape, rho, a = fields(math.exp(-w), n, beta, math)
        growth = rho / (2 * escape)
        return [growth, r0 * np.exp(y[0]) * (a if scheme == "peri-ln" else 1.0) / (2 * escape)]

    def leaves_the_range_of_doubles(w, y):
        return y[0] - 650.0

    leaves_the_range_of_doubles.terminal = True
    solution = solve_ivp(
        slowness,
        (w0, ends[-1]),
        [0.0, 0.0],
        method="DOP853",
        t_eval=ends,
        rtol=1e-12,
        atol=[1e-12, 1e-20],
        events=leaves_the_range_of_doubles,
    )
    reached = ends[: len(solution.t)]
    if len(reached) == 0:
        assert equiangular(scheme, [1e250], n=n, beta=beta, r0=r0, tau=tau).gap[0] > float(GAPS[0])
        return
    flow = equiangular(scheme, start + solution.y[1], n=n, beta=beta, r0=r0, tau=tau)
    np.testing.assert_allclose(flow.gap, np.exp(-reached), rtol=1e-8)
    with mp.workdps(20):
        for w, radius in zip(reached, flow.radius, strict=True):
            log_r = integral(
                lambda v: (lambda f: f[1] / (2 * f[0]))(fields(mp.exp(-v), mp.mpf(n), mp.mpf(beta))),
                mp.mpf(w0),
                mp.mpf(w),
            )
            assert abs(radius / (r0 * mp.exp(log_r)) - 1) < 1e-8


# Escape from beta = 5 takes depth 100 and more; sizes are chosen so that every scheme visits the cluster.
@pytest.mark.parametrize("scheme", sorted(SCHEMES))
@pytest.mark.parametrize(("beta", "n", "r0"), [(0.0, 5, 1.0), (1.0, 16, 2.0), (3.0, 9, 0.5)])
def test_particles_follow_the_scalar_ode_from_the_symmetric_start(scheme, beta, n, r0):
    times = np.array([0.0, 0.5, 1.0, 3.0, 10.0, 30.0])
    options = {"tau": 1.3, "alpha": lambda t: 0.6 + 0.3 * np.sin(t)}
    scalar = equiangular(scheme, times, n=n, beta=beta, r0=r0, **options)
    flow = simulate(scheme, r0 * np.eye(n), times, beta=beta, **options)
    np.testing.assert_allclose(measures.mean_cosine(flow.theta), scalar.gamma, atol=1e-7)
    np.testing.assert_allclose(flow.radius, np.tile(scalar.radius[:, None], n), rtol=1e-7)


@settings(max_examples=15)
@given(
    st.sampled_from(sorted(SCHEMES)),
    st.integers(2, 10**6),
    st.floats(0, 20),
    st.sampled_from([1e-3, 1.0, 50.0]),
)
def test_the_gap_falls_and_the_radius_grows(scheme, n, beta, r0):
    flow = equiangular(scheme, np.geomspace(1e-3, 1e6, 30), n=n, beta=beta, r0=r0, tau=2.0)
    assert (flow.gap <= 1).all()
    assert (np.diff(flow.gap) <= 0).all()
    assert (np.diff(flow.radius) >= 0).all()
    assert (flow.speed >= 0).all()
    np.testing.assert_allclose(flow.gamma, 1 - flow.gap, atol=1e-15)


@pytest.mark.parametrize("scheme", sorted(SCHEMES))
def test_speed_is_the_derivative_of_gamma(scheme):
    times = np.array([0.999, 1.0, 1.001, 4.999, 5.0, 5.001])
    flow = equiangular(scheme, times, n=12, beta=2.0, tau=2.0, alpha=lambda t: 1 / (1 + t))
    for k in (1, 4):
        slope = (flow.gamma[k + 1] - flow.gamma[k - 1]) / (times[k + 1] - times[k - 1])
        np.testing.assert_allclose(flow.speed[k], slope, rtol=1e-5)


@pytest.mark.parametrize("beta", [0.0, 20.0, 50.0, 100.0])
@pytest.mark.parametrize("scheme", sorted(SCHEMES))
def test_gamma_is_accurate_in_relative_terms_early(scheme, beta):
    """To first order gamma = gamma'(0) t, however small: also where the escape lies at depths of e^beta."""
    t = 1e-6
    flow = equiangular(scheme, [t, 2 * t], n=3, beta=beta, tau=1.0)
    start = equiangular(scheme, [0.0], n=3, beta=beta, tau=1.0).speed[0]
    np.testing.assert_allclose(flow.gamma, start * np.array([t, 2 * t]), rtol=1e-5)


def test_the_start_is_orthonormal():
    for scheme in SCHEMES:
        flow = equiangular(scheme, [0.0], n=8, beta=1.0, r0=3.0, tau=1.0)
        assert (flow.gap[0], flow.radius[0]) == (1.0, 3.0)
        assert flow.speed[0] > 0


def test_ngpt_with_a_summable_step_stops_short_and_with_none_never_starts():
    flow = equiangular("ngpt", [10.0, 100.0, 1e4], n=8, beta=1.0, alpha=lambda t: np.exp(-t))
    np.testing.assert_allclose(flow.gap, flow.gap[0], rtol=1e-3)
    assert flow.gap[-1] > 0.05
    assert equiangular("ngpt", [10.0], n=8, beta=1.0, alpha=0.0).gap[0] == 1.0


def test_mix_ln_switches_exactly_at_tau():
    post = equiangular("post-ln", [1.7], n=8, beta=1.0)
    mix = equiangular("mix-ln", [1.7, 1.7000001], n=8, beta=1.0, r0=2.0, tau=1.7)
    np.testing.assert_allclose(mix.gap[0], post.gap[0], rtol=1e-12)
    np.testing.assert_allclose(mix.speed[0], post.speed[0], rtol=1e-12)
    # Just behind the switch the speed is divided by r0 = 2.
    np.testing.assert_allclose(mix.speed[1], post.speed[0] / 2, rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 1}, "n must be an integer >= 2; got 1"),
        ({"n": -3}, "n must be an integer >= 2; got -3"),
        ({"n": 2.5}, "n must be an integer"),
        ({"beta": -1.0}, "beta must be a finite number >= 0"),
        ({"beta": np.nan}, "beta must be"),
        ({"r0": 0.0}, "r0 must be a finite number > 0; got 0"),
        ({"alpha": -1.0}, "alpha must be"),
        ({"tau": -1.0}, "tau must be a number >= 0"),
        ({"times": [1.0, 0.5]}, "strictly increasing"),
        ({"times": [-1.0]}, "not be negative"),
        ({"scheme": "mix-ln"}, "mix-ln needs tau"),
        ({"scheme": "ln"}, "unknown scheme"),
    ],
)
def test_bad_input_is_named(options, message):
    arguments = {"scheme": "post-ln", "times": [1.0], "n": 4, "beta": 1.0, **options}
    with pytest.raises(ValueError, match=message):
        equiangular(arguments.pop("scheme"), arguments.pop("times"), **arguments)
