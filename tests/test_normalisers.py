"""Rules that turn logits into weights, against loops written from their definitions."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import brentq

from attnorm.capacity import measure
from attnorm.heads import each_layer
from attnorm.normalisers import (
    ADAPTIVE_POLYNOMIAL,
    NORMALISERS,
    causal,
    distributions,
    entmax15,
    get_normaliser,
    head_logits,
    inverse_temperature,
    jacobian_norm,
    relu_over_length,
    replaced,
    scalable_softmax,
    softmax,
    softmax1,
    sparsemax,
)
from tiny_models import tiny

every = pytest.mark.parametrize("rule", NORMALISERS.values(), ids=NORMALISERS)


def exponentials(z):
    parts = [math.exp(x) for x in z]
    return [p / sum(parts) for p in parts]


def by_root(z, power, scale):
    """max(scale z - tau, 0)^power with tau found by bisection."""

    def weights(tau):
        return [max(scale * x - tau, 0.0) ** power for x in z]

    top = scale * max(z)
    return weights(brentq(lambda tau: sum(weights(tau)) - 1, top - 1 - 1e-9, top, xtol=1e-15))


def adaptive(z):
    p = exponentials(z)
    entropy = -sum(x * math.log(x) for x in p if x > 0)
    beta = max(1.0, float(np.polyval(ADAPTIVE_POLYNOMIAL, entropy))) if entropy > 0.5 else 1.0
    return exponentials([beta * x for x in z])


REFERENCES = {
    "softmax": exponentials,
    "sparsemax": lambda z: by_root(z, 1, 1.0),
    "entmax-1.5": lambda z: by_root(z, 2, 0.5),
    "scalable-softmax": lambda z: exponentials([0.43 * math.log(len(z)) * x for x in z]),
    "softmax1": lambda z: exponentials([*z, 0.0])[:-1],
    "adaptive-temperature": adaptive,
    "relu": lambda z: [max(x, 0.0) / len(z) for x in z],
}


def logits(shape=(3, 9, 9), scale=2.0, seed=0):
    return scale * np.random.default_rng(seed).normal(size=shape)


@every
@pytest.mark.parametrize("scale", [0.01, 1.0, 5.0])
def test_each_row_is_that_of_a_loop_over_the_tokens_it_sees(rule, scale):
    z = logits(scale=scale)
    found = rule(z, causal(9))
    for head in range(3):
        for i in range(9):
            expected = REFERENCES[rule.name](z[head, i, : i + 1].tolist())
            np.testing.assert_allclose(found[head, i, : i + 1], expected, atol=2e-12)
            assert not found[head, i, i + 1 :].any()


@every
def test_flags_say_what_the_rows_do(rule):
    z = logits()
    plain, shifted = rule(z, causal(9)), rule(z + 0.7, causal(9))
    assert np.allclose(plain.sum(axis=-1), 1) == rule.sums_to_one
    assert np.allclose(plain, shifted, atol=1e-12) == rule.shift_invariant
    assert (plain[:, causal(9)] == 0).any() == rule.sparse
    assert plain.min() >= 0


@every
def test_a_token_of_no_weight_changes_only_rules_that_know_the_length(rule):
    row = np.array([1.0, 0.9, -np.inf])
    change = np.abs(rule(row)[:2] - rule(row[:2])).max()
    assert (change > 1e-3) == rule.length_aware


@every
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numpy_and_torch_give_the_same_weights_of_the_same_kind(rule, dtype):
    z = logits().astype(dtype)
    numpy, tensor = rule(z, causal(9)), rule(torch.from_numpy(z), torch.from_numpy(causal(9)))
    assert numpy.dtype == dtype
    assert isinstance(tensor, torch.Tensor)
    assert np.array_equal(numpy, tensor.numpy())


@every
def test_batches_are_rows_done_one_by_one(rule):
    z = logits((2, 3, 4, 7))
    np.testing.assert_allclose(
        rule(z), np.array([rule(row) for row in z.reshape(-1, 7)]).reshape(z.shape), atol=1e-15
    )


@every
def test_weights_keep_the_order_of_the_logits(rule):
    z = np.sort(logits((50, 12)), axis=-1)
    assert (np.diff(rule(z), axis=-1) >= -1e-15).all()


@every
def test_one_token_and_huge_logits_and_minus_infinity(rule):
    one = rule(np.array([[2.0, 5.0]]), np.array([[True, False]]))
    assert one[0, 1] == 0
    if rule.sums_to_one:
        assert one[0, 0] == 1
    large = rule(np.array([800.0, -800.0, -np.inf]))
    assert np.isfinite(large).all()
    assert large[2] == 0


@every
def test_gradients_exist_where_a_mask_hides_tokens(rule):
    z = torch.tensor(logits((6, 6)), requires_grad=True)
    (rule(z, torch.from_numpy(causal(6))) ** 2).sum().backward()
    assert torch.isfinite(z.grad).all()
    assert (z.grad[~torch.from_numpy(causal(6))] == 0).all()


@every
def test_gradients_are_those_of_finite_differences(rule):
    z = torch.tensor([1.3, 0.7, 0.2, -0.9], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(rule, (z,))


@every
@pytest.mark.parametrize(
    ("z", "visible", "message"),
    [
        (np.array([1, 2]), None, "floating"),
        (np.array([1.0, np.nan]), None, "NaN"),
        (np.array([1.0, np.inf]), None, "infinity"),
        (np.array([-np.inf, -np.inf]), None, "finite logit"),
        (np.array([1.0, 2.0]), np.array([False, False]), "finite logit"),
        (np.array([1.0, 2.0]), np.array([1, 0]), "boolean"),
        (np.array([1.0, 2.0]), np.array([True, False, True]), "broadcast"),
        (np.array(1.0), None, "shape"),
    ],
)
def test_bad_input_is_named(rule, z, visible, message):
    with pytest.raises(ValueError, match=message):
        rule(z, visible)


def test_hidden_tokens_may_hold_anything():
    z = np.array([1.0, np.nan, 0.5, np.inf])
    seen = np.array([True, False, True, False])
    for rule in NORMALISERS.values():
        np.testing.assert_allclose(rule(z, seen)[[0, 2]], rule(np.array([1.0, 0.5])), atol=1e-15)


def test_parameters_are_checked():
    with pytest.raises(ValueError, match="temperature"):
        softmax(np.array([1.0]), temperature=0.0)
    with pytest.raises(ValueError, match="s must be"):
        scalable_softmax(np.array([1.0]), s=-1.0)
    with pytest.raises(ValueError, match="must be one of"):
        get_normaliser("hardmax")
    assert get_normaliser(NORMALISERS["relu"]) is NORMALISERS["relu"]


def test_sparsemax_is_nearer_than_random_points_of_the_simplex():
    rng = np.random.default_rng(1)
    for z in logits((20, 5)):
        p = sparsemax(z)
        others = rng.dirichlet(np.full(5, 0.5), size=500)
        assert (((others - z) ** 2).sum(axis=1) > ((p - z) ** 2).sum()).all()


def test_sparse_rules_agree_with_bisection_in_float32_of_a_thousand_tokens():
    from entmax import entmax_bisect

    z = torch.from_numpy(logits((4, 1024), 3.0)).float()
    for rule, alpha in ((sparsemax, 2.0), (entmax15, 1.5)):
        expected = entmax_bisect(z.double(), alpha=alpha, n_iter=60)
        assert float((rule(z) - expected).abs().max()) < 1e-7


def test_factor_of_adaptive_temperature_never_falls_below_one():
    entropy = np.linspace(0, 12, 500)
    factor = inverse_temperature(entropy)
    assert factor.min() == 1
    assert (factor[entropy <= 0.5] == 1).all()
    assert factor.max() > 2


def test_softmax1_is_softmax_times_a_number_and_relu_can_be_all_zero():
    z = logits((30, 6))
    rows, sums = distributions(softmax1(z))
    np.testing.assert_allclose(rows, softmax(z), atol=1e-14)
    assert (sums < 1).all()
    rows, sums = distributions(relu_over_length(np.array([[-1.0, -2.0], [1.0, 3.0]])))
    assert rows.tolist() == [[1, 0], [0.25, 0.75]]
    assert sums.tolist() == [0, 2]
    with pytest.raises(ValueError, match="negative"):
        distributions([[-1.0, 2.0]])


def test_what_capacity_measures_scales_with_a_row():
    """Why rows that do not sum to one can be measured as distributions."""
    rng = np.random.default_rng(0)
    a, x = rng.dirichlet(np.ones(12)), rng.normal(size=(12, 3))
    found = measure(a[None], x, 3, causal=False)
    c = 0.37
    chosen = np.argsort(-a)[:3]
    rest = np.argsort(-a)[3:]
    s = (c * a[chosen, None] * x[chosen]).sum(axis=0)
    away = np.linalg.norm(c * a[:, None] * x - s, axis=1)
    assert away[rest].sum() == pytest.approx(c * found.distance[0], rel=1e-12)
    assert (away[chosen] < away[rest].min()).mean() == found.separable_share[0]


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_softmax_of_head_logits_is_what_the_model_computes(kind):
    model = tiny(kind)
    window = torch.arange(40) * 7 % 251
    for layer in each_layer(model, window, lambda layer: layer):
        weights = softmax(head_logits(model, layer), causal(40))
        assert float((weights - layer.weights).abs().max()) < 2e-6


def test_styles_differ_in_colour_and_marker_and_dashes():
    styles = [rule.style for rule in NORMALISERS.values()]
    for key in ("color", "marker", "linestyle", "label"):
        assert len({str(style[key]) for style in styles}) == len(styles)


@every
@pytest.mark.parametrize("scale", [0.3, 2.0])
def test_jacobian_norm_is_that_of_the_matrix_of_derivatives(rule, scale):
    z = logits((6, 8), scale)
    found = jacobian_norm(rule, z, causal(8)[[1, 2, 4, 5, 6, 7]])
    for row, seen, norm in zip(z, (2, 3, 5, 6, 7, 8), found, strict=True):
        full = torch.autograd.functional.jacobian(rule, torch.from_numpy(row[:seen]))
        assert norm == pytest.approx(float(torch.linalg.matrix_norm(full, 2)), rel=1e-4, abs=1e-12)


def test_jacobian_norm_of_a_row_without_positive_logits_is_zero_for_relu():
    assert jacobian_norm("relu", np.array([[-1.0, -2.0], [1.0, -2.0]])).tolist() == [0, 0.5]
    with pytest.raises(ValueError, match="steps"):
        jacobian_norm("softmax1", np.zeros(2), steps=0)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_replacing_softmax_by_softmax_changes_nothing_and_another_rule_does(kind):
    model = tiny(kind)
    window = (torch.arange(30) * 7 % 251)[None]
    with torch.no_grad():
        before = model(window).logits
        with replaced(model, softmax):
            same = model(window).logits
        with replaced(model, sparsemax):
            other = model(window).logits
        after = model(window).logits
    scale = float(before.abs().max())
    assert float((same - before).abs().max()) < 1e-4 * scale
    assert float((other - before).abs().max()) > 1e-2 * scale
    assert torch.equal(before, after)
    with pytest.raises(ValueError, match="one sequence"), replaced(model, softmax):
        model(window.expand(2, -1))
