"""The landscape of the energy, merged tokens, the slowest growth of a norm, and the animation in a page."""

import base64
import json
import re

import numpy as np
import pytest
from bs4 import BeautifulSoup
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad

from attnorm import SCHEMES, attention, measures, run_layers, simulate, velocity
from attnorm.animation import LARGEST, sphere_html, view_from
from attnorm.book import foreign, gates
from attnorm.clusters import coarsen
from attnorm.landscape import critical_points, gradient, hessian, linearised, tangent_frames
from attnorm.radial import slowest_growth
from attnorm.schemes import unit

SHAPES = [(2, 2), (4, 3), (3, 5)]


def directions(n, d, seed=0):
    return unit(np.random.default_rng(seed).standard_normal((n, d)))


def along_geodesics(theta, frames, beta):
    """The energy as a function of tangent coordinates."""

    def energy(xi):
        tangent = (frames @ xi.reshape(len(theta), -1, 1))[..., 0]
        length = np.linalg.norm(tangent, axis=1, keepdims=True)
        moved = np.cos(length) * theta + np.sinc(length / np.pi) * tangent
        return float(measures.energy(moved, beta))

    return energy


@pytest.mark.parametrize(("n", "d"), SHAPES)
def test_frames_are_orthonormal_and_tangent(n, d):
    for theta in (directions(n, d), -np.eye(d)[:1], np.eye(d)[:1]):
        frames = tangent_frames(theta)
        full = np.concatenate([theta[:, :, None], frames], axis=2)
        np.testing.assert_allclose(
            full.swapaxes(1, 2) @ full, np.tile(np.eye(d), (len(theta), 1, 1)), atol=1e-14
        )


def test_one_dimension_has_no_tangent_space():
    with pytest.raises(ValueError, match="cannot turn"):
        tangent_frames(np.array([[1.0], [-1.0]]))


@pytest.mark.parametrize("beta", [0.0, 1.3])
@pytest.mark.parametrize(("n", "d"), SHAPES)
def test_derivatives_are_those_of_the_energy(n, d, beta):
    theta = directions(n, d)
    energy = along_geodesics(theta, tangent_frames(theta), beta)
    steps = np.eye(n * (d - 1)) * 1e-3
    first = [(energy(e) - energy(-e)) / 2e-3 for e in steps]
    second = [
        [(energy(e + f) - energy(e - f) - energy(f - e) + energy(-e - f)) / 4e-6 for e in steps]
        for f in steps
    ]
    np.testing.assert_allclose(gradient(theta, beta), first, atol=1e-4)
    np.testing.assert_allclose(hessian(theta, beta), second, atol=2e-4)


def test_critical_points_stand_still_and_are_not_synchronised():
    points = critical_points(np.random.default_rng(0), 5, 3, 2.0, 6)
    assert len(points)
    for theta in points:
        theta_dot, _ = velocity("post-ln", theta, beta=2.0)
        assert np.abs(theta_dot).max() < 1e-9
        assert np.linalg.norm(theta[:, None] - theta[None], axis=-1).max() > 1e-3
        assert np.linalg.eigvals(linearised(theta, 2.0)).real.max() > 1e-3


def test_linearisation_takes_a_speed_for_each_token():
    pair = np.array([[0.0, 1.0], [0.0, -1.0]])
    np.testing.assert_allclose(linearised(pair, 1.0, [1.0, 4.0])[1], linearised(pair, 1.0)[1] / 4)
    with pytest.raises(ValueError, match="positive"):
        linearised(pair, 1.0, [1.0, 0.0])


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(2, 400),
    beta=st.floats(0.0, 12.0),
    cosines=st.lists(st.floats(-1, 1), min_size=1, max_size=6),
)
def test_no_cosines_give_a_smaller_rate(n, beta, cosines):
    """The others are split over the given cosines."""
    share = (n - 1) / len(cosines) * np.exp(beta * (np.array(cosines) - 1))
    rate = (1 + share @ cosines) / (1 + share.sum())
    assert rate >= slowest_growth(n, beta).rate - 1e-12


@settings(max_examples=60, deadline=None)
@given(n=st.integers(2, 400), beta=st.floats(0.0, 12.0))
def test_the_smallest_rate_is_attained(n, beta):
    found = slowest_growth(n, beta)
    theta = np.array([[1.0, 0.0]] + [[found.cosine, np.sqrt(1 - found.cosine**2)]] * (n - 1))
    assert (theta[0] @ attention(theta, beta=beta)[0]) == pytest.approx(found.rate, abs=1e-9)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("step", [0.2, 2.0, 50.0])
def test_a_layer_never_raises_the_energy(scheme, step):
    """Any step; up to two for nGPT."""
    start = np.random.default_rng(1).standard_normal((50, 7, 3))
    step = min(step, 2.0) if scheme == "ngpt" else step
    for beta in (0.5, 4.0):
        path = run_layers(scheme, start, 3, step=step, beta=beta, tau=step)
        assert np.diff(measures.log_energy(path.theta, beta), axis=0).min() > -1e-12


def test_merged_tokens_move_like_all_of_them():
    start = directions(12, 3)[None]
    run = coarsen(start, 3.0, until=6.0, rtol=1e-9)
    flow = simulate("post-ln", start, [6.0], beta=3.0, rtol=1e-10)
    np.testing.assert_allclose(run.theta, flow.theta[0], atol=1e-6)
    assert run.times[-1] == pytest.approx(6.0)
    assert run.log_energy[-1, 0] == pytest.approx(measures.log_energy(flow.theta[0, 0], 3.0), 1e-6)


def test_systems_do_not_depend_on_each_other():
    start = np.random.default_rng(2).standard_normal((4, 6, 3))
    together = coarsen(start, [1.0, 5.0, 2.0, 8.0])
    for i, beta in enumerate([1.0, 5.0, 2.0, 8.0]):
        alone = coarsen(start[i : i + 1], beta)
        np.testing.assert_allclose(alone.depth_of(1), together.depth_of(1)[i], rtol=1e-6)


def test_two_clusters_wait_as_long_as_the_quadrature_says():
    angle, beta, k, m = 1.8, 9.0, 4, 2
    start = np.array([[1.0, 0.0]] * k + [[np.cos(angle), np.sin(angle)]] * m)

    def slowness(log_angle):
        phi = np.exp(log_angle)
        slow = np.exp(beta * (1 - np.cos(phi)))
        return phi / np.sin(phi) / (m / (k * slow + m) + k / (m * slow + k))

    expected, _ = quad(slowness, np.log(1e-4), np.log(angle), epsrel=1e-10)
    assert coarsen(start[None], beta).depth_of(1)[0] == pytest.approx(expected, 1e-3)


def test_a_run_can_stop_at_a_few_clusters_and_go_on_from_there():
    start = np.random.default_rng(4).standard_normal((5, 9, 3))
    whole = coarsen(start, 5.0)
    first = coarsen(start, 5.0, clusters=2)
    assert (first.count[-1] <= 2).all()
    np.testing.assert_allclose(first.depth_of(2), whole.depth_of(2))
    rest = coarsen(first.theta, 5.0)
    np.testing.assert_allclose(first.times[-1] + rest.depth_of(1), whole.depth_of(1), rtol=0.02, atol=1.0)


def test_what_was_not_reached_is_infinitely_deep():
    run = coarsen(directions(6, 3)[None], 2.0, until=0.1)
    assert run.depth_of(1)[0] == np.inf
    assert run.depth_of(6)[0] == 0.0
    with pytest.raises(ArithmeticError, match="1 systems"):
        coarsen(directions(6, 3)[None], 2.0, max_steps=3)


def test_coarsening_refuses_other_shapes():
    with pytest.raises(ValueError, match=r"\(S, n, d\)"):
        coarsen(directions(3, 3), 1.0)
    with pytest.raises(ValueError, match="d >= 2"):
        coarsen([[[1.0], [-1.0]]], 1.0)


# --- The animation

TRACK = unit(np.random.default_rng(3).standard_normal((5, 4, 3)))


def page(**options):
    html = sphere_html(
        "moving",
        {"A": TRACK, "B <b>": TRACK},
        np.arange(5.0),
        colours=["red", "#00f"],
        label='"x"',
        **options,
    )
    return html, BeautifulSoup(f"<article>{html}</article>", "lxml")


def test_animation_passes_the_gates_of_a_page():
    html, soup = page()
    assert not gates.duplicate_ids(soup) + gates.images_without_alt(soup) + foreign.in_page(soup)
    assert len(soup.find_all("canvas")) == 2
    assert soup.find(id="moving")["aria-label"] == '"x"'
    assert soup.find("input").find_parent("label")
    assert "\n\n" not in html


def test_animation_says_a_label_as_it_is_written():
    label = "tokens @DATA@ & co"
    html = sphere_html("a", {"A": TRACK}, np.arange(5.0), colours=["#000000"], label=label)
    assert 'aria-label="tokens @DATA@ &amp; co"' in html


def test_animation_carries_the_tracks():
    html, _ = page(view=np.eye(3)[[1, 2, 0]])
    data = json.loads(re.search(r"data = (\{.*?\});", html).group(1))
    packed = np.frombuffer(base64.b64decode(data["tracks"]), "<i2").reshape(2, 5, 4, 3) / 32767
    np.testing.assert_allclose(packed[1], TRACK[..., [1, 2, 0]], atol=1e-4)
    assert data["tokens"] == 4
    assert data["times"][2] == "2"


def test_view_is_a_rotation_that_looks_from_the_eye():
    view = view_from((1.0, -2.0, 0.5))
    np.testing.assert_allclose(view @ view.T, np.eye(3), atol=1e-14)
    assert np.linalg.det(view) == pytest.approx(1.0)
    np.testing.assert_allclose(view @ unit(np.array([1.0, -2.0, 0.5])), [0, 0, 1], atol=1e-14)


def test_animation_refuses_what_it_cannot_show():
    options = {"colours": ["red"], "label": "x"}
    with pytest.raises(ValueError, match="shape"):
        sphere_html("a", {"A": TRACK[:3]}, np.arange(5.0), **options)
    with pytest.raises(ValueError, match="unit"):
        sphere_html("a", {"A": 2 * TRACK}, np.arange(5.0), **options)
    with pytest.raises(ValueError, match="colours"):
        sphere_html("a", {"A": TRACK}, np.arange(5.0), colours=[], label="x")
    long = np.tile(TRACK[:1], (LARGEST // 20, 1, 1))
    with pytest.raises(ValueError, match="fewer frames"):
        sphere_html("a", {"A": long}, np.arange(float(len(long))), **options)
