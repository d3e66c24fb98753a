"""Jacobians of attention weights, their norms and the probe, against differences and dense linear algebra."""

import numpy as np
import pytest
import sympy as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

from attnorm.sensitivity import (
    entmax_jacobian,
    general_bound,
    general_jacobian,
    jacobian_norms,
    logits_of,
    probe,
    probe_bound,
    softmax_jacobian,
    temper,
    top_gap,
)

x = sp.Symbol("x")


def softmax(l):
    e = np.exp(l - l.max())
    return e / e.sum()


def entmax(l, alpha):
    """alpha-entmax of one row, straight from its threshold equation."""
    z = (alpha - 1) * np.asarray(l, dtype=float)

    def weights(tau):
        return np.maximum(z - tau, 0) ** (1 / (alpha - 1))

    tau = brentq(lambda tau: weights(tau).sum() - 1, z.max() - 1, z.max(), xtol=1e-15, rtol=1e-15)
    return weights(tau)


def differences(f, l, h=1e-6):
    """Jacobian by central differences: column j is the derivative by l_j."""
    return np.stack([(f(l + h * e) - f(l - h * e)) / (2 * h) for e in np.eye(len(l))], axis=-1)


def rows_of_all_kinds():
    """Flat to one-hot rows, ties at the top, a support of one and of two, and near ties."""
    rng = np.random.default_rng(0)
    a = temper(rng.normal(size=(300, 12)) * rng.uniform(0, 40, size=(300, 1)), 1.0)
    special = np.zeros((8, 12))
    special[0, 3] = 1
    special[1, [2, 7]] = 0.5
    special[2] = 1 / 12
    special[3, :3] = 0.4, 0.4, 0.2
    special[4, :3] = 0.4 + 1e-13, 0.4 - 1e-13, 0.2
    special[5, :2] = 1 - 1e-12, 1e-12
    special[6, :2] = 1 - 1e-300, 1e-300
    special[7, :3] = 0.4 + 1e-8, 0.4 - 1e-8, 0.2
    return np.concatenate([a, special])


@pytest.mark.parametrize("F", [sp.exp(x), x**2 + 1, sp.log(1 + sp.exp(x)), 1 / (1 + x**2)])
def test_general_jacobian_is_the_derivative(F):
    l = np.random.default_rng(1).normal(size=5)
    values = sp.lambdify(x, F, "numpy")
    assert general_jacobian(F, l) == pytest.approx(
        differences(lambda t: values(t) / values(t).sum(), l), abs=1e-9
    )


@pytest.mark.parametrize("F", [sp.exp(x), x**2 + 1, sp.log(1 + sp.exp(x)), sp.exp(3 * x)])
def test_general_bound_holds(F):
    l = np.random.default_rng(2).normal(size=(200, 6))
    assert (
        np.linalg.norm(general_jacobian(F, l), 2, axis=(-2, -1)) <= general_bound(F, l) * (1 + 1e-12)
    ).all()


def test_general_bound_is_attained_where_the_slope_is_constant():
    l = np.random.default_rng(3).uniform(0.1, 2, size=(50, 6))
    assert np.linalg.norm(general_jacobian(x, l), 2, axis=(-2, -1)) == pytest.approx(
        general_bound(x, l), rel=1e-12
    )


def test_softmax_jacobian_is_the_derivative():
    l, T = np.random.default_rng(4).normal(size=6), 0.7
    assert softmax_jacobian(softmax(l / T), T) == pytest.approx(
        differences(lambda t: softmax(t / T), l), abs=1e-9
    )


@pytest.mark.parametrize("alpha", [1.2, 1.5, 1.8, 2.0])
def test_entmax_jacobian_is_the_derivative(alpha):
    l, T = np.random.default_rng(5).normal(size=6), 0.7
    assert entmax_jacobian(entmax(l / T, alpha), alpha, T) == pytest.approx(
        differences(lambda t: entmax(t / T, alpha), l), abs=1e-6
    )


@pytest.mark.parametrize("alpha", [1.0, 1.3, 1.5, 2.0])
def test_norms_are_those_of_the_dense_jacobian(alpha):
    a, T = rows_of_all_kinds(), 0.3
    J = entmax_jacobian(a, alpha, T)
    found = jacobian_norms(a, T, alpha=alpha)
    absolute = np.abs(J)
    # numpy's singular values have an absolute error of about 1e-16 times the largest entry that it meets.
    assert found.spectral == pytest.approx(np.linalg.norm(J, 2, axis=(-2, -1)), rel=1e-11, abs=1e-14)
    assert found.frobenius == pytest.approx(np.linalg.norm(J, axis=(-2, -1)), rel=1e-11, abs=1e-14)
    assert found.row_sum == pytest.approx(absolute.sum(axis=-1).max(axis=-1), rel=1e-11, abs=1e-14)
    assert found.row_sum == pytest.approx(absolute.sum(axis=-2).max(axis=-1), rel=1e-11, abs=1e-14)
    assert found.entry == pytest.approx(absolute.max(axis=(-2, -1)), rel=1e-11, abs=1e-14)
    assert (found.support == (a > 0).sum(axis=-1)).all()


def test_nearly_one_hot_rows_keep_their_digits():
    """Two tokens have |J|_2 = 2 p (1 - p) exactly; near p = 1 a dense Jacobian loses the 1 - p."""
    small = np.array([1e-3, 1e-9, 1e-15, 1e-60, 1e-120])
    rows = np.stack([1 - small, small], axis=-1)
    exact = 2 * small * (1 - small)
    found = jacobian_norms(rows)
    for norm in (found.spectral, found.frobenius, found.row_sum):
        assert norm == pytest.approx(exact, rel=1e-12, abs=0)


@given(st.integers(0, 10**6), st.integers(2, 40), st.floats(0, 60))
@settings(max_examples=60, deadline=None)
def test_spectral_norm_lies_between_entry_and_row_sum(seed, length, sharpness):
    a = temper(sharpness * np.random.default_rng(seed).normal(size=(5, length)), 1.0)
    found = jacobian_norms(a)
    assert (found.entry <= found.spectral * (1 + 1e-11)).all()
    assert (found.spectral <= np.minimum(found.row_sum, found.frobenius) * (1 + 1e-11)).all()
    assert (found.frobenius <= 0.5 * (1 + 1e-11)).all()


def test_norms_do_not_depend_on_how_rows_are_laid_out():
    rng = np.random.default_rng(6)
    l = np.where(np.tri(150, dtype=bool), 3 * rng.normal(size=(2, 150, 150)), -np.inf)
    a = temper(l, 1.0)
    whole = jacobian_norms(torch.from_numpy(a))
    assert whole.spectral.shape == (2, 150)
    for head, row in ((0, 0), (1, 1), (0, 77), (1, 149)):
        one = jacobian_norms(a[head, row, : row + 1])
        assert whole.spectral[head, row] == pytest.approx(one.spectral, rel=1e-12, abs=0)
        assert whole.frobenius[head, row] == pytest.approx(one.frobenius, rel=1e-12, abs=0)
    assert whole.spectral[:, 0].tolist() == [0.0, 0.0]


def probe_loop(l, T, step, v):
    """One row, word by word."""
    v = v / np.linalg.norm(v)
    return np.linalg.norm(softmax((l + step * v) / T) - softmax(l / T)) / step


@pytest.mark.parametrize(("dtype", "rel"), [(torch.float64, 1e-7), (torch.float32, 2e-4)])
def test_probe_is_the_difference_quotient(dtype, rel):
    rng = np.random.default_rng(7)
    heads, length, temperatures, steps = 2, 70, (0.05, 1.0, 10.0), (1e-3, 0.1, 10.0)
    l, v = 2 * rng.normal(size=(heads, length, length)), rng.normal(size=(length, length))
    l = torch.from_numpy(l).to(dtype)
    found = probe(l, temperatures, steps, directions=v)
    assert found.shape == (3, 3, heads, length)
    exact = l.double().numpy()
    for t, T in enumerate(temperatures):
        for e, step in enumerate(steps):
            for head in range(heads):
                expected = [
                    probe_loop(exact[head, i, : i + 1], T, step, v[i, : i + 1]) for i in range(length)
                ]
                assert found[t, e, head] == pytest.approx(expected, rel=rel, abs=1e-9 + rel * 1e-2 / T)


def test_probe_reads_nothing_beyond_the_mask():
    l = torch.randn(20, 20, generator=torch.Generator().manual_seed(0))
    v = np.random.default_rng(8).normal(size=(20, 20))
    other, other_v = l.clone(), v.copy()
    other[~torch.ones(20, 20).tril().bool()] = torch.nan
    other_v[~np.tri(20, dtype=bool)] = 9.0
    same = probe(other, [1.0], [0.1], directions=other_v)
    assert np.array_equal(probe(l, [1.0], [0.1], directions=v), same)
    assert same[0, 0, 0] == 0  # a row that sees one token


def test_probe_of_a_small_step_is_the_jacobian_times_the_direction():
    rng = np.random.default_rng(9)
    l, v = rng.normal(size=(40, 8)), rng.normal(size=(40, 8))
    v /= np.linalg.norm(v, axis=-1, keepdims=True)
    expected = np.linalg.norm(np.einsum("rij,rj->ri", softmax_jacobian(temper(l, 0.5), 0.5), v), axis=-1)
    assert probe(l, [0.5], [1e-6], causal=False, directions=v)[0, 0] == pytest.approx(expected, rel=1e-5)


def test_probe_stays_below_its_bound_and_reaches_it():
    temperatures, steps = np.geomspace(0.01, 10, 5), np.array([1e-3, 0.1, 1.0, 10.0])
    bound = probe_bound(temperatures[:, None], steps)
    found = probe(np.random.default_rng(10).normal(size=(300, 3)) * 0.3, temperatures, steps, causal=False)
    assert (found <= bound[..., None] * (1 + 1e-9)).all()
    for t, T in enumerate(temperatures):
        for e, step in enumerate(steps):
            l = np.array([[-1.0, 1.0]]) * step / (2 * np.sqrt(2))
            g = probe(l, [T], [step], causal=False, directions=[[1.0, -1.0]])
            assert g[0, 0, 0] == pytest.approx(bound[t, e], rel=1e-9)
    assert (bound <= np.minimum(1 / (2 * temperatures[:, None]), np.sqrt(2) / steps) * (1 + 1e-12)).all()


def test_probe_repeats_itself_and_seeds_differ():
    l = torch.randn(2, 30, 30, generator=torch.Generator().manual_seed(1))
    one, two, three = (probe(l, [1.0], [0.1], seed=seed) for seed in (3, 3, 4))
    assert np.array_equal(one, two)
    assert not np.array_equal(one, three)


def test_logits_of_weights_give_the_weights_back():
    a = torch.softmax(torch.randn(3, 5, generator=torch.Generator().manual_seed(2)), -1)
    assert torch.softmax(logits_of(a), -1).numpy() == pytest.approx(a.numpy(), rel=1e-6)
    assert logits_of(np.array([1.0, 0.0])).tolist() == [0.0, -np.inf]
    assert temper([0.0, -np.inf], 0.5).tolist() == [1.0, 0.0]


def test_top_gap_counts_ties_and_lonely_logits():
    assert top_gap([[1.0, 1.0, 0.0], [0.0, -np.inf, -np.inf]]).tolist() == [0.0, np.inf]
    assert top_gap([[2.0]]).tolist() == [np.inf]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: jacobian_norms([[0.5, 0.4]]), "must sum to 1"),
        (lambda: jacobian_norms([[1.5, -0.5]]), "must not be negative"),
        (lambda: jacobian_norms([[0.5, np.nan]]), "finite"),
        (lambda: jacobian_norms([]), "at least one row"),
        (lambda: jacobian_norms([[1.0, 0.0]], 0.0), "temperature"),
        (lambda: jacobian_norms([[1.0, 0.0]], alpha=2.5), "alpha"),
        (lambda: entmax_jacobian([[1.0, 0.0]], 0.5), "alpha"),
        (lambda: general_jacobian(x**2, [0.0, 1.0]), "positive"),
        (lambda: general_jacobian(sp.Integer(1), [0.0, 1.0]), "one symbol"),
        (lambda: probe(np.zeros((2, 3)), [1.0], [0.1]), "shape"),
        (lambda: probe(np.zeros((2, 2)), [0.0], [0.1]), "temperature"),
        (lambda: probe(np.zeros((2, 2)), [1.0], [-1.0]), "step"),
        (lambda: probe(np.zeros((2, 2), dtype=int), [1.0], [0.1]), "float32 or float64"),
        (lambda: probe(np.full((2, 2), -np.inf), [1.0], [0.1]), "finite largest logit"),
        (lambda: probe(np.zeros((2, 2)), [1.0], [0.1], directions=np.zeros((2, 2))), "must not be zero"),
        (lambda: probe(np.zeros((2, 2)), [1.0], [0.1], directions=np.ones((2, 3))), "directions"),
    ],
)
def test_bad_input_is_refused_with_a_reason(call, message):
    with pytest.raises(ValueError, match=message):
        call()
