"""Distance and separability of attention rows, against loops that read like the definitions."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnorm.capacity import distance, distances, measure, measure_each, select_top, stack
from strategies import softmax_rows

FIELDS = (
    "excluded",
    "distance",
    "distance_bound",
    "separable_share",
    "selected_mass",
    "context_norm",
    "excluded_length",
)
RTOL = 1e-10


def loop(a, x, top_n, visible):
    """One row, word by word as it is defined; `a` and `x` may be fractions with d = 1."""
    seen = [j for j in range(len(a)) if visible[j]]
    chosen = sorted(seen, key=lambda j: -a[j])[:top_n]  # stable: of equal weights the first
    left = [j for j in seen if j not in chosen]
    s = sum(a[j] * x[j] for j in chosen)
    mass = sum(a[j] for j in chosen)
    rest = sum((a[j] for j in left), start=0 * mass)
    norm = np.linalg.norm
    far = [norm(a[i] * x[i] - s) for i in left]
    nearest = min(far, default=np.inf)
    # Equal distances must not be told apart by rounding: `measure` promises that.
    inside = [j for j in chosen if norm(a[j] * x[j] - s) < nearest * (1 - 1e-11)]
    d1 = max((norm(x[i] - x[j]) for i in left for j in chosen), default=0.0)
    longest = max(norm(x[j]) for j in chosen)
    return {
        "excluded": len(left),
        "distance": sum(far),
        "distance_bound": rest * d1 + longest * (mass * len(left) - rest),
        "separable_share": len(inside) / top_n,
        "selected_mass": mass,
        "context_norm": norm(s),
        "excluded_length": sum(a[i] * norm(x[i]) for i in left),
    }


@st.composite
def problems(draw):
    """Weights, tokens and N; with ties among weights, repeated tokens, and weights that underflow to zero."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    length, d, causal = draw(st.integers(2, 12)), draw(st.integers(1, 5)), draw(st.booleans())
    weights = softmax_rows(rng, (length, length), draw(st.sampled_from([0.0, 0.3, 3.0, 300.0])), causal)
    if draw(st.booleans()):
        weights = np.round(weights * 8) + np.tri(length) * (1 if causal else 0) + (not causal)
        weights *= np.tri(length) if causal else 1
        weights /= weights.sum(axis=-1, keepdims=True)
    x = rng.normal(size=(length, d)) * 10.0 ** draw(st.integers(-3, 3))
    if draw(st.booleans()):
        x = x[rng.integers(0, 2, size=length)]
    return weights, x, draw(st.integers(1, length)), causal


@given(problems())
@settings(deadline=None, max_examples=300)
def test_every_row_agrees_with_a_loop_over_the_definitions(problem):
    weights, x, top_n, causal = problem
    found = measure(weights, x, top_n, causal=causal)
    scale = np.abs(x).max()
    for i, a in enumerate(weights):
        visible = np.arange(len(a)) <= i if causal else np.ones(len(a), bool)
        if visible.sum() < top_n:
            assert all(np.isnan(getattr(found, name)[i]) for name in FIELDS)
            continue
        for name, expected in loop(a, x, top_n, visible).items():
            measured = getattr(found, name)[i]
            # Vectors that cancel leave rounding of their own size behind, in the loop as well.
            assert measured == pytest.approx(expected, rel=RTOL, abs=1e-14 * len(a) * scale), name


@pytest.mark.parametrize("top_n", [1, 3, 40, 150])
@pytest.mark.parametrize("d", [3, 200])
def test_blocks_of_rows_and_both_products_agree_with_the_loop(top_n, d):
    rng = np.random.default_rng(1)
    length = 150  # more than one block of rows
    weights, x = softmax_rows(rng, (length, length), 2.0, causal=True), rng.normal(size=(length, d))
    found = measure(weights, x, top_n)
    for i in [top_n - 1, 127, 128, 149]:
        if i >= top_n - 1:
            for name, expected in loop(weights[i], x, top_n, np.arange(length) <= i).items():
                assert getattr(found, name)[i] == pytest.approx(expected, rel=RTOL), name


def test_a_far_token_and_a_common_offset_do_not_cost_digits():
    """The first token of a trained model is a thousand times longer than the others."""
    rng = np.random.default_rng(2)
    weights = softmax_rows(rng, (60, 60), 1.0, causal=True)
    x = rng.normal(size=(60, 8)) + 100.0
    x[0] *= 1e3
    found = measure(weights, x, 4)
    for i in range(3, 60):
        for name, expected in loop(weights[i], x, 4, np.arange(60) <= i).items():
            assert getattr(found, name)[i] == pytest.approx(expected, rel=RTOL), name


def test_cancelling_distances_agree_with_exact_fractions():
    """a_i x_i nearly equals s: inner products alone would leave half of the digits."""
    tiny = Fraction(1, 10**9)
    a = [Fraction(1, 4), Fraction(1, 4) - tiny, Fraction(1, 2) + tiny]
    x = [Fraction(4), Fraction(4), Fraction(2)]
    s = a[2] * x[2]
    exact = sum(abs(a[i] * x[i] - s) for i in (0, 1))
    weights, tokens = np.array([a], float), np.array(x, float)[:, None]
    # a and x are rounded to doubles, so the difference of 2e-9 keeps about seven digits of its own.
    assert measure(weights, tokens, 1, causal=False).distance[0] == pytest.approx(float(exact), rel=1e-6)


def test_heads_are_measured_one_by_one():
    rng = np.random.default_rng(3)
    weights, x = softmax_rows(rng, (3, 20, 20), 2.0, True), rng.normal(size=(3, 20, 4))
    x[2] = x[1]  # grouped heads share their values
    together = measure(weights, x, 2)
    for h in range(3):
        alone = measure(weights[h], x[h], 2)
        for name in FIELDS:
            np.testing.assert_array_equal(getattr(together, name)[h], getattr(alone, name))
    shared = measure(weights, x[0], 2)
    np.testing.assert_array_equal(shared.distance[0], together.distance[0])
    assert shared.distance.shape == (3, 20)


@given(problems(), st.lists(st.integers(1, 12), min_size=1, max_size=4))
@settings(deadline=None, max_examples=100)
def test_several_n_at_once_are_what_each_gives_alone(problem, top_ns):
    weights, x, _, causal = problem
    top_ns = [min(n, len(weights)) for n in top_ns]
    for top_n, found in zip(top_ns, measure_each(weights, x, top_ns, causal=causal), strict=True):
        alone = measure(weights, x, top_n, causal=causal)
        for name in FIELDS:
            np.testing.assert_array_equal(getattr(found, name), getattr(alone, name), err_msg=name)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("sharpness", [0.3, 6.0])
def test_distances_in_single_precision_agree_with_double(causal, sharpness):
    rng = np.random.default_rng(5)
    weights, x = softmax_rows(rng, (3, 200, 200), sharpness, causal), rng.normal(size=(3, 200, 8))
    top_ns = [1, 7, 60]
    found = distances(weights, x, top_ns, causal=causal)
    for top_n, one in zip(top_ns, found, strict=True):
        np.testing.assert_allclose(one, measure(weights, x, top_n, causal=causal).distance, rtol=1e-5)
    shorter = distances(weights, x, top_ns, causal=causal, rows=90)
    np.testing.assert_allclose(shorter, found[..., :90], rtol=1e-6)


@pytest.mark.parametrize("apart", [1e-2, 1e-4, 0.0])
def test_distances_of_tokens_that_are_almost_alike_keep_their_digits(apart):
    """With one selected token of a flat row, all that is left of each distance is a small difference."""
    rng = np.random.default_rng(3)
    weights = np.tri(64) / np.arange(1, 65)[:, None]
    x = 3 * rng.normal(size=32) + apart * rng.normal(size=(64, 32))
    exact = measure(weights, x, 1).distance
    # Single precision sees tokens of length about 17 up to 1e-6.
    np.testing.assert_allclose(distances(weights, x, [1])[0], exact, rtol=1e-5, atol=1e-5)


def test_no_n_and_too_many_rows_are_refused():
    with pytest.raises(ValueError, match="at least one N"):
        measure_each(GOOD, X, [])
    with pytest.raises(ValueError, match="at least one N"):
        distances(GOOD, X, [])
    with pytest.raises(ValueError, match="rows must be at most 4; got 5"):
        distances(GOOD, X, [1], rows=5)
    with pytest.raises(ValueError, match="rows must be an integer >= 2"):
        distances(GOOD, X, [1], rows=1)


def test_layers_stack_if_they_share_n():
    rng = np.random.default_rng(8)
    weights, x = softmax_rows(rng, (2, 3, 9, 9), 2.0, True), rng.normal(size=(9, 4))
    layers = [measure(w, x, 2) for w in weights]
    for name in (*FIELDS, "ratio", "distance_lower", "distance_upper"):
        np.testing.assert_array_equal(getattr(stack(layers), name), [getattr(a, name) for a in layers])
    with pytest.raises(ValueError, match=r"share one top_n; got \[1, 2\]"):
        stack([layers[0], measure(weights[0], x, 1)])
    with pytest.raises(ValueError, match="no layers"):
        stack([])


@given(problems())
@settings(deadline=None)
def test_distance_of_the_top_set_is_the_distance_that_measure_gives(problem):
    weights, x, top_n, causal = problem
    found = distance(weights, x, select_top(weights, top_n, causal=causal), causal=causal)
    expected = measure(weights, x, top_n, causal=causal).distance
    np.testing.assert_array_equal(np.where(np.isnan(expected), np.nan, found), expected)


@given(problems(), st.integers(0, 2**32 - 1))
@settings(deadline=None)
def test_distance_of_any_set_agrees_with_a_loop(problem, seed):
    weights, x, _, causal = problem
    visible = np.tri(len(x), dtype=bool) if causal else np.ones((len(x),) * 2, bool)
    selected = (np.random.default_rng(seed).random(weights.shape) < 0.4) & visible
    found = distance(weights, x, selected, causal=causal)
    for i, a in enumerate(weights):
        s = (a * selected[i]) @ x
        left = np.flatnonzero(visible[i] & ~selected[i])
        expected = sum(np.linalg.norm(a[j] * x[j] - s) for j in left)
        assert found[i] == pytest.approx(expected, rel=RTOL, abs=1e-14 * len(a) * np.abs(x).max())


@given(problems())
@settings(deadline=None)
def test_the_top_set_has_n_tokens_none_lighter_than_an_excluded_one(problem):
    weights, _, top_n, causal = problem
    selected = select_top(weights, top_n, causal=causal)
    for i, a in enumerate(weights):
        seen = i + 1 if causal else len(a)
        assert selected[i].sum() == (top_n if seen >= top_n else 0)
        if top_n < seen:
            left = ~selected[i] & (np.arange(len(a)) < seen)
            lightest = a[selected[i]].min()
            assert lightest >= a[left].max()
            ties = np.flatnonzero(a[:seen] == lightest)
            assert selected[i][ties].tolist() == sorted(selected[i][ties], reverse=True)  # the first ones


@given(problems())
@settings(deadline=None)
def test_distance_lies_between_all_of_its_bounds(problem):
    weights, x, top_n, causal = problem
    found = measure(weights, x, top_n, causal=causal)
    slack = 1e-12 * (found.distance_upper + np.abs(x).max())
    with np.errstate(invalid="ignore"):
        assert not (found.distance > found.distance_bound + slack).any()
        assert not (found.distance > found.distance_upper + slack).any()
        assert not (found.distance < found.distance_lower - slack).any()


def test_theorem_1_is_attained_when_all_tokens_coincide():
    weights = softmax_rows(np.random.default_rng(4), (9, 9), 2.0, causal=False)
    found = measure(weights, np.tile([3.0, -4.0], (9, 1)), 3, causal=False)
    np.testing.assert_allclose(found.distance, found.distance_bound, rtol=1e-12)


def test_a_set_that_is_not_the_top_n_breaks_the_bound_of_theorem_1():
    """L = 2, x_1 = x_2 = 1, the lighter token selected: dt = 1/2, and the formula of the bound gives -1/2."""
    a, selected = np.array([[0.25, 0.75]]), np.array([[True, False]])
    bound = (1 - 0.25) * 0 + 1 * (0.25 * 1 - (1 - 0.25))
    assert distance(a, np.ones((2, 1)), selected, causal=False)[0] == 0.5 > bound == -0.5


@given(problems(), st.floats(0.01, 100))
@settings(deadline=None)
def test_scaling_x_scales_lengths_and_leaves_shares(problem, factor):
    weights, x, top_n, causal = problem
    one, other = (measure(weights, c * x, top_n, causal=causal) for c in (1.0, factor))
    for name in ("distance", "distance_bound", "context_norm", "excluded_length"):
        atol = 1e-14 * factor * np.abs(x).max() * len(x)
        np.testing.assert_allclose(getattr(other, name), factor * getattr(one, name), rtol=RTOL, atol=atol)
    np.testing.assert_array_equal(other.selected_mass, one.selected_mass)


def test_a_rotation_of_x_changes_nothing():
    rng = np.random.default_rng(5)
    weights, x = softmax_rows(rng, (30, 30), 2.0, True), rng.normal(size=(30, 6))
    turn = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    one, other = measure(weights, x, 3), measure(weights, x @ turn, 3)
    for name in FIELDS:
        np.testing.assert_allclose(getattr(other, name), getattr(one, name), rtol=1e-11)


def test_invisible_tokens_do_not_matter():
    """Row i of a causal head is the last row of the same head cut after token i."""
    rng = np.random.default_rng(6)
    weights, x = softmax_rows(rng, (20, 20), 2.0, True), rng.normal(size=(20, 4))
    whole, cut = measure(weights, x, 3), measure(weights[:11, :11], x[:11], 3)
    for name in FIELDS:
        np.testing.assert_allclose(getattr(whole, name)[:11], getattr(cut, name), rtol=1e-12)


def test_rows_without_outsiders_have_distance_zero_and_all_tokens_separable():
    weights, x = np.eye(3), np.ones((3, 2))
    weights[2] = 1 / 3
    found = measure(weights, x, 3)
    assert np.isnan(found.distance[:2]).all()
    assert (found.distance[2], found.separable_share[2], found.excluded[2]) == (0, 1, 0)
    assert np.isnan(found.ratio[2])


def test_a_copy_of_a_selected_token_outside_is_not_farther_than_it():
    """Strict inequality: tokens 0 and 1 are equal, so the selected one is as far from s as the outsider."""
    weights = np.array([[0.4, 0.4, 0.2]])
    x = np.array([[1.0, 0.1], [1.0, 0.1], [0.0, 5.0]])
    found = measure(weights, x, 1, causal=False)
    assert found.separable_share[0] == 0.0
    assert found.distance[0] == pytest.approx(np.linalg.norm(0.2 * x[2] - 0.4 * x[0]))


def test_torch_tensors_of_float32_are_welcome():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(7)
    weights, x = softmax_rows(rng, (2, 8, 8), 2.0, True), rng.normal(size=(8, 4))
    tensors = torch.tensor(weights, requires_grad=True), torch.tensor(x)
    np.testing.assert_array_equal(measure(*tensors, 2).distance, measure(weights, x, 2).distance)
    single = measure(torch.tensor(weights, dtype=torch.float32), x, 2)
    np.testing.assert_allclose(single.distance, measure(weights, x, 2).distance, rtol=1e-5)


GOOD = np.tri(4) / np.arange(1, 5)[:, None]
X = np.ones((4, 2))


def broken(entry, value):
    weights = GOOD.copy()
    weights[entry] = value
    return weights


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((GOOD * 0.9, X, 1), "sum to 1"),
        ((GOOD, X, 0), "top_n must be an integer >= 1"),
        ((GOOD, X, 1.5), "top_n must be an integer"),
        ((GOOD, X, 5), "at most the number of tokens, 4; got 5"),
        ((np.ones((1, 1)), X[:1], 1), "at least two tokens"),
        ((broken((2, 0), np.nan), X, 1), "finite"),
        ((GOOD, np.full((4, 2), np.inf), 1), "x must be finite"),
        ((GOOD, np.ones((3, 2)), 1), r"x must have shape \(4, d\)"),
        ((GOOD, np.ones((2, 4, 2)), 1), r"x must have shape \(4, d\)"),
        ((GOOD[None], np.ones((2, 4, 2)), 1), r"\(4, d\) or \(1, 4, d\)"),
        ((broken((1, slice(None)), [1.5, -0.5, 0, 0]), X, 1), "negative"),
        ((broken((0, slice(None)), [0.5, 0.5, 0, 0]), X, 1), "causal=False"),
        ((GOOD[:3], X, 1), r"\(L, L\)"),
        ((GOOD[0], X, 1), r"\(L, L\)"),
    ],
)
def test_bad_input_is_refused_with_a_reason(arguments, message):
    with pytest.raises(ValueError, match=message):
        measure(*arguments)


def test_bad_sets_are_refused_with_a_reason():
    with pytest.raises(ValueError, match="boolean"):
        distance(GOOD, X, np.ones((4, 4)))
    with pytest.raises(ValueError, match="shape"):
        distance(GOOD, X, np.ones((4, 3), bool))
    with pytest.raises(ValueError, match="row sees"):
        distance(GOOD, X, np.ones((4, 4), bool))
