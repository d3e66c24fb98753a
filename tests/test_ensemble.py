"""Many runs at once are the runs of `attnorm.simulate`, one by one."""

import numpy as np
import pytest

from attnorm import SCHEMES, ensemble, measures, simulate
from attnorm.ensemble import simulate_all

R, N, D = 3, 5, 6
TIMES = np.array([0.0, 0.4, 1.3, 3.0])


def slow_step(t):
    return 1.0 / (1.0 + 0.2 * t)


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(5)
    x0 = rng.standard_normal((R, N, D))
    Q, K, V = rng.standard_normal((3, R, D, D)) / np.sqrt(D)
    return x0, {"beta": 2.0, "Q": Q, "K": K, "V": V, "alpha": slow_step, "tau": 1.0}


@pytest.mark.parametrize(("method", "causal"), [("RK45", False), ("RK45", True), ("RK23", False)])
def test_all_schemes_agree_with_the_high_order_solver(problem, method, causal):
    x0, options = problem
    rtol = 1e-8 if method == "RK45" else 1e-6
    runs = simulate_all(
        None,
        x0,
        TIMES,
        **options,
        causal=causal,
        rtol=rtol,
        method=method,
        dtype="float64",
        keep_theta=True,
    )
    assert runs.schemes == tuple(SCHEMES)
    for s, scheme in enumerate(SCHEMES):
        exact = simulate(scheme, x0, TIMES, **options, causal=causal, rtol=1e-10)
        found = runs.trajectory(scheme)
        # A few hundred steps, and errors that grow along the way.
        np.testing.assert_allclose(found.theta, exact.theta, atol=300 * rtol)
        np.testing.assert_allclose(found.radius, exact.radius, rtol=300 * rtol)
        np.testing.assert_allclose(runs.cosine[s], measures.mean_cosine(exact.theta), atol=300 * rtol)


def test_the_error_falls_with_the_tolerance_down_to_single_precision(problem):
    x0, options = problem
    exact = measures.mean_cosine(simulate("ngpt", x0, TIMES, **options, rtol=1e-10).theta)
    errors = [
        np.abs(simulate_all(["ngpt"], x0, TIMES, **options, rtol=rtol).cosine[0] - exact).max()
        for rtol in (1e-2, 1e-4, 1e-6)
    ]
    assert errors[0] > errors[1] > errors[2]
    assert errors[1] < 1e-3
    assert errors[2] < 2e-5


def test_the_size_of_the_figure_is_accurate_enough_for_it():
    """d = 512 at the tolerance of the chapter, against the solver of high order."""
    rng = np.random.default_rng(6)
    x0 = rng.standard_normal((1, 48, 512))
    x0 /= np.linalg.norm(x0, axis=-1, keepdims=True)
    Q, K, V = rng.standard_normal((3, 512, 512)) / np.sqrt(512)
    options = {"beta": np.sqrt(512), "Q": Q, "K": K, "V": V, "tau": 1.0}
    times = [1.0, 2.0]
    schemes = ["mix-ln", "peri-ln"]
    runs = simulate_all(schemes, x0, times, **options, rtol=1e-3)
    for s, scheme in enumerate(schemes):
        exact = simulate(scheme, x0, times, **options, rtol=1e-5)
        np.testing.assert_allclose(runs.cosine[s], measures.mean_cosine(exact.theta), atol=0.004)


def test_a_system_does_not_depend_on_its_neighbours(problem, monkeypatch):
    x0, options = problem
    together = simulate_all(None, x0, TIMES, **options, dtype="float64")
    alone = simulate_all(
        ["peri-ln"],
        x0[1],
        TIMES,
        **{**options, **{name: options[name][1] for name in "QKV"}},
        dtype="float64",
    )
    at = together.schemes.index("peri-ln")
    np.testing.assert_allclose(together.cosine[at, :, 1], alone.cosine[0, :, 0], atol=1e-12)
    assert together.evaluations[at, 1] == alone.evaluations[0, 0]
    monkeypatch.setattr(ensemble, "_CHUNK", 1)
    one_by_one = simulate_all(None, x0, TIMES, **options, dtype="float64")
    np.testing.assert_allclose(together.cosine, one_by_one.cosine, atol=1e-12)
    np.testing.assert_allclose(together.radius, one_by_one.radius, rtol=1e-12)


def test_each_system_has_its_own_step(problem):
    runs = simulate_all(None, problem[0], TIMES, **problem[1])
    counts = dict(zip(runs.schemes, runs.evaluations.mean(axis=1), strict=True))
    assert counts["ngpt"] > 1.3 * counts["pre-ln"]


def test_identity_matrices_can_be_left_out_and_shared_ones_given_once(problem):
    x0, _ = problem
    eye = np.eye(D)
    implicit = simulate_all(None, x0, TIMES, tau=1.0, dtype="float64")
    for matrix in (eye, np.broadcast_to(eye, (R, D, D))):
        explicit = simulate_all(None, x0, TIMES, Q=matrix, K=matrix, V=matrix, tau=1.0, dtype="float64")
        np.testing.assert_allclose(implicit.cosine, explicit.cosine, atol=1e-12)
    one_sided = simulate_all(["post-ln"], x0, TIMES, K=2 * eye, dtype="float64")
    hot = simulate_all(["post-ln"], x0, TIMES, beta=2.0, dtype="float64")
    np.testing.assert_allclose(one_sided.cosine, hot.cosine, atol=1e-12)


def test_mix_ln_is_post_ln_or_pre_ln_where_its_switch_is_out_of_reach(problem):
    x0, options = problem
    options = {**options, "dtype": "float64", "rtol": 1e-8}
    for tau, other in ((0.0, "pre-ln"), (99.0, "post-ln")):
        mixed = simulate_all(["mix-ln"], x0, TIMES, **{**options, "tau": tau})
        same = simulate_all([other], x0, TIMES, **options)
        np.testing.assert_allclose(mixed.cosine, same.cosine, atol=1e-10)
        np.testing.assert_allclose(mixed.radius, same.radius, rtol=1e-10)


def test_times_need_not_contain_the_start(problem):
    x0, options = problem
    with_start = simulate_all(["pre-ln"], x0, TIMES, **options)
    without = simulate_all(["pre-ln"], x0, TIMES[1:], **options)
    np.testing.assert_array_equal(with_start.cosine[:, 1:], without.cosine)
    only_start = simulate_all(["pre-ln"], x0, [0.0], **options)
    np.testing.assert_allclose(only_start.cosine[0, 0], measures.mean_cosine(x0), atol=1e-6)


def test_a_radius_that_vanishes_ends_the_flow():
    x0 = 0.5 * np.eye(3)
    with pytest.raises(ArithmeticError, match="pre-ln, draw 0"):
        simulate_all(["pre-ln"], x0, [5.0], V=-np.eye(3))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"schemes": "post-ln"}, "iterable of names"),
        ({"schemes": ["post-ln", "post-ln"]}, "names that differ"),
        ({"schemes": []}, "at least one"),
        ({"schemes": ["mix-ln"]}, "needs tau"),
        ({"x0": np.ones((1, 4))}, "n >= 2 tokens"),
        ({"x0": np.ones((2, 2, 3, 4))}, "shape"),
        ({"V": lambda t: np.eye(4)}, "constant in depth"),
        ({"V": np.ones((5, 4, 4))}, "leading dimensions"),
        ({"rtol": 0.0}, "rtol"),
        ({"method": "Euler"}, "RK23, RK45"),
        ({"dtype": "float16"}, "float32"),
        ({"beta": -1.0}, "beta"),
        ({"times": [1.0, 1.0]}, "increasing"),
    ],
)
def test_bad_input_is_named(wrong, says):
    arguments = {"schemes": ["post-ln"], "x0": np.ones((2, 3, 4)), "times": [1.0], **wrong}
    with pytest.raises(ValueError, match=says):
        simulate_all(arguments.pop("schemes"), arguments.pop("x0"), arguments.pop("times"), **arguments)


def test_directions_are_there_only_when_asked_for(problem):
    runs = simulate_all(["pre-ln"], problem[0], TIMES, **problem[1])
    with pytest.raises(ValueError, match="keep_theta"):
        runs.trajectory("pre-ln")
