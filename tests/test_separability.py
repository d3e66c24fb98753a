"""Separability of rows, Theorem 2 and isotropic tokens, against loops that read like the definitions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnorm import capacity, isotropic, separability, theorem_two
from strategies import softmax_rows


def loop(a, x, chosen, visible):
    """One row, word by word as it is defined."""
    s = sum((a[j] * x[j] for j in chosen), np.zeros(x.shape[1]))
    left = [j for j in visible if j not in chosen]
    far = {j: np.linalg.norm(a[j] * x[j] - s) for j in visible}
    r = min((far[j] for j in left), default=np.inf)
    inside = [j for j in chosen if far[j] < r * (1 - 1e-11)]
    w = {j: s @ s - far[j] ** 2 for j in visible}
    # Ties go to the excluded ones.
    order = sorted(visible, key=lambda j: (-w[j], j in chosen))
    overlap = len(set(order[: len(chosen)]) & set(chosen)) / len(chosen)
    return len(inside) / len(chosen), overlap, r, np.mean([far[j] for j in chosen]), inside, w


@st.composite
def problems(draw):
    """Weights, tokens and sets, of one head or several; sets of the heaviest or any."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    length, d, causal = draw(st.integers(2, 12)), draw(st.integers(1, 5)), draw(st.booleans())
    heads = draw(st.integers(1, 3))
    weights = softmax_rows(rng, (heads, length, length), draw(st.sampled_from([0.3, 1.0, 3.0])), causal)
    x = rng.normal(size=(heads, length, d) if draw(st.booleans()) else (length, d))
    top_n = draw(st.integers(1, length))
    if draw(st.booleans()):
        selected = capacity.select_top(weights, top_n, causal=causal)
    else:
        selected = separability.random_sets(weights.shape, top_n, rng, causal=causal)
    return weights, x, selected, causal


@given(problems())
@settings(deadline=None, max_examples=100)
def test_every_row_agrees_with_a_loop_over_the_definitions(problem):
    weights, x, selected, causal = problem
    found = separability.measure(weights, x, selected, causal=causal)
    tokens = separability.separable_tokens(weights, x, selected, causal=causal)
    scores = separability.scores(weights, x, selected, causal=causal)
    for head, row in np.ndindex(weights.shape[:2]):
        visible = list(range(row + 1 if causal else weights.shape[2]))
        chosen = [j for j in visible if selected[head, row, j]]
        if not chosen:
            assert np.isnan(found.share[head, row])
            continue
        own = x[head] if x.ndim == 3 else x
        share, overlap, r, inside, which, w = loop(weights[head, row], own, chosen, visible)
        assert found.share[head, row] == pytest.approx(share)
        assert found.overlap[head, row] == pytest.approx(overlap)
        assert found.radius[head, row] == pytest.approx(r, rel=1e-6, abs=1e-7)
        assert found.inside[head, row] == pytest.approx(inside, rel=1e-6, abs=1e-7)
        assert np.flatnonzero(tokens[head, row]).tolist() == which
        assert scores[head, row, visible] == pytest.approx(np.array(list(w.values())), rel=1e-6, abs=1e-12)
        assert found.share[head, row] <= found.overlap[head, row]


@pytest.mark.parametrize("d", [3, 200])
def test_share_of_the_heaviest_is_that_of_capacity(d):
    """d on both sides of the choice between the two ways to form inner products; more rows than a block."""
    rng = np.random.default_rng(d)
    weights, x = softmax_rows(rng, (2, 150, 150), 2.0, True), rng.normal(size=(150, d))
    for top_n in (1, 7):
        selected = capacity.select_top(weights, top_n)
        found = separability.measure(weights, x, selected)
        np.testing.assert_array_equal(found.share, capacity.measure(weights, x, top_n).separable_share)


def test_a_tie_is_not_separable():
    """Equal weights and equal tokens: the excluded one lies as near as the selected ones."""
    found = separability.measure(np.full((1, 3), 1 / 3), np.ones((3, 2)), [[True, True, False]], causal=False)
    assert found.share[0] == 0
    assert found.overlap[0] == 0.5


def test_row_that_excludes_nothing_is_separable():
    found = separability.measure([[0.5, 0.5]], np.eye(2), [[True, True]], causal=False)
    assert found.share[0] == found.overlap[0] == 1
    assert np.isinf(found.radius[0])


def test_random_sets_have_the_size_and_are_uniform():
    sets = separability.random_sets((4000, 5, 5), 2, 1)
    assert (sets.sum(axis=-1) == [0, 2, 2, 2, 2]).all()
    assert not sets[:, ~np.tri(5, dtype=bool)].any()
    assert np.abs(sets[:, 4].mean(axis=0) - 2 / 5).max() < 5 * 0.5 / np.sqrt(4000)
    assert np.array_equal(sets, separability.random_sets((4000, 5, 5), 2, 1))


def test_coverage_agrees_with_a_loop():
    rng = np.random.default_rng(0)
    selected = rng.random((3, 20, 9)) < 0.5
    selected[:, 0] = False
    separable = selected & (rng.random(selected.shape) < 0.6)
    found = separability.coverage(selected, separable)
    assert np.isnan(found.measured[0])
    for row in range(1, 20):
        union = [t for t in range(9) if selected[:, row, t].any()]
        p = [separable[h, row].sum() / max(selected[h, row].sum(), 1) for h in range(3)]
        expected = [1 - np.prod([1 - p[h] for h in range(3) if selected[h, row, t]]) for t in union]
        assert found.measured[row] == np.mean([separable[:, row, t].any() for t in union])
        assert found.independent[row] == pytest.approx(np.mean(expected))
        assert found.chosen_by[row] == pytest.approx(np.mean([selected[:, row, t].sum() for t in union]))
        if selected[:, row].any(axis=-1).all():
            assert found.formula[row] == pytest.approx(1 - (1 - np.mean(p)) ** 3)


def test_reassigned_keeps_counts_and_sets():
    rng = np.random.default_rng(3)
    selected = rng.random((2, 50, 8)) < 0.6
    separable = selected & (rng.random(selected.shape) < 0.5)
    drawn = separability.reassigned(selected, separable, 4)
    assert not (drawn & ~selected).any()
    assert np.array_equal(drawn.sum(axis=-1), separable.sum(axis=-1))
    assert not np.array_equal(drawn, separable)


def test_xi_and_the_sides_agree_with_a_loop():
    rng = np.random.default_rng(2)
    a, m, delta, r = rng.dirichlet(np.ones(6))[:4], 2.0, 0.7, 0.3
    squares = [
        m**2 * sum(a[j] ** 2 for j in range(4) if j != i)
        + (m**2 - delta**2 / 2)
        * sum(a[j] * a[k] for j in range(4) for k in range(4) if j != k and i not in (j, k))
        for i in range(4)
    ]
    assert theorem_two.xi(a, m, delta) == pytest.approx(np.sqrt(squares))
    both = theorem_two.sides(a, r, m, delta)
    assert both.lower == pytest.approx(1 - np.sqrt(squares).sum() / (4 * r))
    assert both.upper == pytest.approx(np.mean(np.exp(-((r - np.sqrt(squares)) ** 2) / 64)))


@pytest.mark.parametrize("causal", [True, False])
def test_rows_of_heads_use_the_longest_token_and_the_closest_pair(causal):
    rng = np.random.default_rng(4)
    weights, x = softmax_rows(rng, (2, 9, 9), 1.0, causal), rng.normal(size=(2, 9, 3))
    found = theorem_two.rows_of_heads(weights, x, 3, causal=causal)
    for head, row in np.ndindex(2, 9):
        seen = row + 1 if causal else 9
        if seen <= 3:
            assert np.isnan(found.upper[head, row])
            continue
        own = x[head, :seen]
        delta = min(np.linalg.norm(own[j] - own[k]) for j in range(seen) for k in range(j))
        a = np.sort(weights[head, row, :seen])[::-1][:3]
        both = theorem_two.sides(a, found.radius[head, row], np.linalg.norm(own, axis=-1).max(), delta)
        assert found.lower[head, row] == pytest.approx(both.lower)
        assert found.upper[head, row] == pytest.approx(both.upper)
        assert found.share[head, row] >= found.lower[head, row] - 1e-9


def test_moments_of_isotropic_sums_by_simulation():
    a, d = np.array([0.5, 0.3, 0.1]), 5
    x = isotropic.uniform_tokens((40_000, 3), d, 1)
    square = (np.einsum("j,rjd->rd", a, x) ** 2).sum(axis=-1)
    mean, variance = isotropic.isotropic_moments(a, d)
    assert square.mean() == pytest.approx(mean, abs=5 * np.sqrt(variance / 40_000))
    assert square.var() == pytest.approx(variance, rel=0.05)


def test_gaussian_share_by_simulation_of_normal_numbers():
    rng = np.random.default_rng(5)
    n, d, b, k = 32, 64, 2.0, 10
    sigma = np.sqrt(n / d)
    selected = b**2 * (1 + 2 * sigma * rng.normal(size=100_000))
    excluded = (2 * b * sigma * rng.normal(size=(100_000, k)) - 1).max(axis=1)
    share = isotropic.gaussian_share(n, d, ratio=b, outsiders=k)
    assert np.mean(selected > excluded) == pytest.approx(share, abs=5 * 0.5 / np.sqrt(100_000))


def test_proved_bound_is_below_the_share_and_not_empty_in_many_dimensions():
    a, rest = np.array([0.4, 0.3]), np.full(5, 0.06)
    weights = np.broadcast_to(np.concatenate([a, rest]), (500, 1, 7))
    for d, least in ((8, 0.0), (1024, 0.8)):
        bound = isotropic.isotropic_lower(a, rest, d)
        top = capacity.select_top(weights, 2, causal=False)
        x = isotropic.uniform_tokens((500, 7), d, d)
        assert (
            least
            <= bound
            <= separability.measure(weights, x, top, causal=False).share.mean() + 5 * 0.5 / np.sqrt(500)
        )


def test_tokens_have_the_mean_cosine():
    x = isotropic.tokens_with_cosine((2, 400), 256, 0.3, 1)
    cosine = x[0] @ x[0].T
    assert cosine[np.triu_indices(400, 1)].mean() == pytest.approx(0.3, abs=0.02)
    assert np.linalg.norm(x, axis=-1) == pytest.approx(np.ones((2, 400)))


ROW, X, SET = [[0.5, 0.5]], [[1.0], [2.0]], [[True, False]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: separability.measure([[-0.5, 1.5]], X, SET, causal=False), "must not be negative"),
        (lambda: separability.measure(ROW, X, [[1, 0]], causal=False), "selected must be boolean"),
        (lambda: separability.measure(ROW, X, SET), "weights must have shape"),
        (lambda: separability.measure(ROW, [[1.0]], SET, causal=False), "x must have shape"),
        (lambda: separability.measure(ROW, [[1.0], [np.nan]], SET, causal=False), "x must be finite"),
        (lambda: separability.measure(np.eye(2), X, [[True, True], [True, False]]), "j <= i"),
        (lambda: separability.random_sets((2, 2), 3, 0), "top_n must be at most"),
        (lambda: separability.coverage([SET], [[[True, True]]]), "must be a part of selected"),
        (lambda: separability.coverage([SET], [SET], [1.5]), "must lie in"),
        (lambda: separability.covered(1.2, 3), "p must lie in"),
        (lambda: theorem_two.sides([0.5], 0.0, 1.0), "r must be positive"),
        (lambda: theorem_two.xi([0.5], -1.0), "radius must be positive"),
        (lambda: theorem_two.xi([-0.5], 1.0), "must not be negative"),
        (lambda: isotropic.safe_lower([0.5], 0.0), "must be positive"),
        (lambda: isotropic.gaussian_share(0, 3), "top_n must be an integer"),
        (lambda: isotropic.tokens_with_cosine((3,), 4, 1.5, 0), "cosine must be"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_sides_of_rows_that_leave_nothing_out_are_nan():
    weights, x = np.full((1, 3), 1 / 3), np.eye(3)
    found = theorem_two.rows_of_heads(weights, x, 3, causal=False)
    assert np.isnan([found.share, found.lower, found.upper, found.radius]).all()


def test_weights_on_the_future_are_refused():
    weights = np.full((2, 2), 0.5)
    with pytest.raises(ValueError, match="causal=False"):
        separability.measure(weights, np.eye(2), np.eye(2, dtype=bool))


def test_the_gaussian_limit_falls_slowly_with_the_number_of_outsiders():
    shares = [isotropic.gaussian_share(64, 64, ratio=100.0, outsiders=10**k) for k in (0, 6, 12, 18)]
    assert 0.7 > shares[0] > shares[1] > shares[2] > shares[3] > 0.64


@pytest.mark.parametrize(("top_n", "d"), [(2, 64), (5, 16)])
def test_the_safe_bound_is_markov_s_inequality_on_the_mean_square(top_n, d):
    """Mean square distance of equal weighted tokens from their sum, by drawing them."""
    rng = np.random.default_rng(6)
    x = rng.normal(size=(20_000, top_n, d))
    x /= np.linalg.norm(x, axis=-1, keepdims=True)
    weights = rng.dirichlet(np.ones(top_n))
    y = weights[:, None] * x
    square = ((y.sum(axis=1, keepdims=True) - y) ** 2).sum(axis=-1).mean()
    radius = 0.9
    assert isotropic.safe_lower(weights, radius) == pytest.approx(1 - square / radius**2, abs=0.01)


def test_the_gaussian_share_is_what_flat_weights_give():
    """N = d: Phi(1/2), up to corrections of order 1/sqrt(N)."""
    rng = np.random.default_rng(7)
    top_n = d = 256
    x = rng.normal(size=(20, top_n, d))
    x /= np.linalg.norm(x, axis=-1, keepdims=True)
    s = x.sum(axis=1, keepdims=True)
    inside = (((s - x) ** 2).sum(axis=-1) < (s**2).sum(axis=-1)).mean()  # an outsider without weight is at 0
    assert isotropic.gaussian_share(top_n, d) == pytest.approx(inside, abs=0.03)
