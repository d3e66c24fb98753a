"""The five algorithms on small models, against loops over rows, slower paths of the library, each other."""

import numpy as np
import pytest
import torch

from attnorm import capacity, separability
from attnorm.algorithms import (
    LEVELS,
    Pairs,
    algorithm_1,
    algorithm_2,
    algorithm_3,
    algorithm_4,
    algorithm_5,
    critical,
    grid,
    head_means,
    row_means,
    run_all,
)
from attnorm.heads import each_layer
from attnorm.random_set import expected_distance
from attnorm.samples import crossing, first_number, ks_pvalue, ks_statistic, tost
from attnorm.sensitivity import logits_of, probe
from tiny_models import tiny

LENGTH = 48


@pytest.fixture(scope="module")
def model():
    return tiny("gpt2")


@pytest.fixture(scope="module")
def windows():
    return torch.randint(0, 256, (2, LENGTH), generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="module")
def layers(model, windows):
    """Weights and values in float64 of each window and layer."""
    return [
        each_layer(
            model, window, lambda layer: (layer.weights.double().numpy(), layer.value.double().numpy())
        )
        for window in windows
    ]


def by_hand(layers, quantity, top_n, length):
    """Mean over windows and over the rows that leave a token out, one row after the other."""
    found = []
    for window in layers:
        found.append([])
        for weights, x in window:
            rows = quantity(weights[:, :length, :length], x[:, :length])
            each = [rows[:, n - 1] for n in range(1, length + 1) if n > top_n]
            found[-1].append(np.mean(each, axis=0))
    return np.mean(found, axis=0)


def test_a_shorter_window_is_the_beginning_of_a_longer_one(model, windows):
    """Causal mask: means at length 16 of a window of 48 are those of a window of 16."""
    long = algorithm_1(model, windows, lengths=(16, LENGTH))
    short = algorithm_1(model, windows[:, :16], lengths=(16,))
    for name in ("distance", "bound", "printed", "main"):
        np.testing.assert_allclose(getattr(long, name)[..., 0], getattr(short, name)[..., 0], rtol=1e-4)


def test_algorithm_1_is_a_mean_over_rows(model, windows, layers):
    found = algorithm_1(model, windows, lengths=(8, 20, LENGTH), top_n=3)
    for k, length in enumerate(found.lengths):
        expected = by_hand(layers, lambda a, x: capacity.measure(a, x, 3).distance, 3, length)
        np.testing.assert_allclose(found.distance[0, ..., k], expected, rtol=1e-6)
        expected = by_hand(layers, lambda a, x: expected_distance(a, x, 3).printed, 3, length)
        np.testing.assert_allclose(found.printed[0, ..., k], expected, rtol=1e-6)


def test_algorithm_2_takes_whole_windows(model, windows, layers):
    found = algorithm_2(model, windows, top_ns=(1, 10))
    expected = by_hand(layers, lambda a, x: capacity.measure(a, x, 10).distance_bound, 10, LENGTH)
    np.testing.assert_allclose(found.bound[1, ..., 0], expected, rtol=1e-6)
    assert (found.bound >= found.distance).all()


def test_windows_too_short_for_n_have_no_mean(model, windows):
    found = algorithm_1(model, windows, lengths=(4, 16), top_n=5).distance
    assert np.isnan(found[..., 0]).all()
    assert np.isfinite(found[..., 1]).all()


def scan_of(layers, formula, numbers, length):
    """Head means of dt and of the expectation for every N, in float64."""
    found = []
    for window in layers:
        found.append([])
        for weights, x in window:
            a, x = weights[:, :length, :length], x[:, :length]
            dt = [each.distance for each in capacity.measure_each(a, x, numbers)]
            expected = getattr(expected_distance(a, x, numbers), formula)
            found[-1].append(
                [
                    [np.mean(rows[:, n:], axis=1) for n, rows in zip(numbers, both, strict=True)]
                    for both in (dt, expected)
                ]
            )
    means = np.mean(found, axis=0)  # (layers, 2, N, heads)
    return np.moveaxis(means, 0, 2).reshape(2, len(numbers), -1)


def test_algorithm_3_scans_what_it_computed(model, windows, layers):
    """The first N, against a scan over every N in float64, with scipy-checked p-values."""
    found = algorithm_3(model, windows, lengths=(24, LENGTH))
    assert found.exact.all()
    for f, formula in enumerate(found.formulas):
        for k, length in enumerate(found.lengths):
            numbers = list(range(1, length))
            distance, expected = scan_of(layers, formula, numbers, length)
            for v, level in enumerate(LEVELS):

                def accepts(n, level=level, distance=distance, expected=expected):
                    D = float(ks_statistic(distance[n - 1], expected[n - 1]))
                    return ks_pvalue(D, len(distance[0])) >= level

                scan = first_number(accepts, 1, length - 1)
                assert (np.isnan(found.first[f, v, k]) and scan is None) or found.first[f, v, k] == scan
                bisected = crossing(accepts, 1, length - 1)
                assert bisected is None or scan <= bisected


def test_single_precision_changes_head_means_by_little(model, windows, layers):
    """`capacity.distances` works in float32; a mean over rows keeps five digits."""
    pairs = algorithm_3(model, windows, lengths=(LENGTH,), rounds=0).pairs
    for n, value in pairs.means["distance"][LENGTH].items():
        expected = by_hand(layers, lambda a, x, n=n: capacity.measure(a, x, n).distance, n, LENGTH).ravel()
        np.testing.assert_allclose(value, expected, rtol=2e-5)


def made_up(ratio, heads=40, length=50):
    """Pairs whose expectation is ratio(N) times dt, for every head."""
    dt = np.exp(np.random.default_rng(0).normal(size=heads))
    numbers = range(1, length)
    means = {
        "distance": {length: dict.fromkeys(numbers, dt)},
        "printed": {length: {n: dt * ratio(n) for n in numbers}},
        "main": {length: dict.fromkeys(numbers, dt)},
    }
    return Pairs((length,), means)


def test_first_and_settled_differ_where_acceptance_is_not_monotone():
    pairs = made_up(lambda n: 1.0 if n in (4, 5) or n > 20 else 9.0)
    assert critical(pairs, 50) == (4.0, 21.0)
    assert critical(pairs, 50, formula="main") == (1.0, 1.0)


def test_never_and_not_to_the_end():
    first, settled = critical(made_up(lambda n: 9.0), 50)
    assert np.isnan(first)
    assert np.isnan(settled)
    first, settled = critical(made_up(lambda n: 9.0 if n != 7 else 1.0), 50)
    assert first == 7
    assert np.isnan(settled)


def test_equivalence_is_asked_pair_by_pair():
    """A common factor of 1.3 drowns in the spread of the heads for one test, and not for the other."""
    pairs = made_up(lambda n: 1.3 if n < 30 else 1.01)
    assert critical(pairs, 50)[0] == 1
    assert critical(pairs, 50, margin=0.1)[0] == 30
    _numbers, distance, expected = pairs.every(50, "printed")
    assert tost(distance[0], expected[0], 0.1) > 0.05


def test_fewer_heads_accept_earlier():
    pairs = made_up(lambda n: 1 + 20 / n**2)
    every, few = critical(pairs, 50)[0], critical(pairs, 50, heads=np.arange(6))[0]
    assert few <= every
    assert critical(pairs, 50, heads=np.arange(3))[0] == 1


def test_interpolation_keeps_what_was_computed(model, windows):
    pairs = algorithm_3(model, windows, lengths=(LENGTH,), rounds=0).pairs
    numbers, distance, _ = pairs.every(LENGTH, "main")
    assert numbers.tolist() == list(range(1, LENGTH))
    for n in pairs.computed(LENGTH, "main"):
        np.testing.assert_allclose(distance[n - 1], pairs.means["distance"][LENGTH][n], rtol=1e-12)


def test_chosen_numbers_are_the_scan(model, windows, layers):
    pairs = head_means(model, windows, {LENGTH: (3, 40), 9: (8,)})
    distance, expected = scan_of(layers, "main", [3, 40], LENGTH)
    for k, n in enumerate((3, 40)):
        np.testing.assert_allclose(pairs.means["distance"][LENGTH][n], distance[k], rtol=2e-5)
        np.testing.assert_allclose(pairs.means["main"][LENGTH][n], expected[k], rtol=1e-6)
    assert pairs.computed(9, "main") == [8]
    with pytest.raises(ValueError, match="leave a token out"):
        head_means(model, windows, {9: (9,)})


def test_grid_ends_below_the_length():
    for length in (2, 3, 9, 64, 1024):
        numbers = grid(length)
        assert numbers[0] == 1
        assert numbers[-1] == length - 1
        assert list(numbers) == sorted(set(numbers))


def test_algorithm_4_and_its_controls(model, windows, layers):
    found = algorithm_4(model, windows, top_ns=(2, 6))
    expected = by_hand(layers, lambda a, x: capacity.measure(a, x, 6).separable_share, 6, LENGTH)
    np.testing.assert_allclose(found.share[1], expected, rtol=1e-9)
    random = algorithm_4(model, windows, top_ns=(2, 6), control="random set", seed=1)
    assert (random.share[1] < found.share[1]).mean() > 0.9
    shuffled = algorithm_4(model, windows, top_ns=(2, 6), control="shuffled x")
    assert np.abs(shuffled.share - found.share).max() > 1e-3


def test_sides_of_theorem_2_come_with_the_same_shares(model, windows):
    plain = algorithm_4(model, windows, top_ns=(2, 6), unit=True)
    found = algorithm_4(model, windows, top_ns=(2, 6), unit=True, sides=True)
    np.testing.assert_allclose(found.share, plain.share, atol=1e-9)
    assert (found.lower <= found.share + 1e-9).all()
    assert (found.upper > np.exp(-1 / 16)).all()


def test_unit_vectors_are_what_the_paper_takes(model, windows):
    def direct(layer):
        x = layer.embedding.double().numpy()
        x = x / np.linalg.norm(x, axis=-1, keepdims=True)
        return row_means(capacity.measure(layer.weights, x, 4).separable_share, 4, (LENGTH,))[:, 0]

    expected = np.mean([each_layer(model, window, direct) for window in windows], axis=0)
    found = algorithm_4(model, windows, kind="embedding", unit=True, top_ns=(4,))
    np.testing.assert_allclose(found.share[0], expected, atol=1e-9)


def test_a_random_set_is_less_separable_in_chapter_10s_measure_too(layers):
    weights, x = layers[0][1]
    chosen = separability.random_sets(weights.shape, 4, 0)
    top = capacity.select_top(weights, 4)
    shares = [np.nanmean(separability.measure(weights, x, which).share) for which in (chosen, top)]
    assert shares[0] < shares[1]


def test_algorithm_5_is_the_probe_of_each_row(model, windows):
    found = algorithm_5(model, windows, temperatures=(0.1, 1.0), steps=(1e-3, 1.0), seed=5)
    expected = np.mean(
        [
            each_layer(
                model,
                window,
                lambda layer: probe(
                    logits_of(layer.weights), (0.1, 1.0), (1e-3, 1.0), seed=5 + layer.index
                ).mean(axis=-1),
            )
            for window in windows
        ],
        axis=0,
    )
    np.testing.assert_allclose(found.gradient, np.moveaxis(expected, 0, 2), rtol=1e-6)
    assert found.largest[0, 0] == found.gradient[0, 0].max()


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_run_all_is_each_of_them(kind, windows):
    model = tiny(kind)
    found = run_all(
        model,
        windows[:1],
        lengths=(16, LENGTH),
        share_top_ns=(2, 4),
        temperatures=(0.1, 1.0),
        rounds=8,
    )
    one = algorithm_1(model, windows[:1], lengths=(16, LENGTH))
    three = algorithm_3(model, windows[:1], lengths=(16, LENGTH))
    four = algorithm_4(model, windows[:1], top_ns=(2, 4))
    five = algorithm_5(model, windows[:1], temperatures=(0.1, 1.0))
    np.testing.assert_allclose(found.one.distance, one.distance, rtol=1e-10)
    np.testing.assert_array_equal(found.three.first, three.first)
    np.testing.assert_allclose(found.four.share, four.share)
    np.testing.assert_allclose(found.five.gradient, five.gradient)
    assert found.two.distance.shape[0] == len(found.two.top_ns)


def test_row_means_is_a_loop():
    values = np.random.default_rng(0).normal(size=(3, 9))
    found = row_means(values, 2, (2, 3, 9))
    assert np.isnan(found[:, 0]).all()
    np.testing.assert_allclose(found[:, 2], [np.mean([v[n - 1] for n in range(3, 10)]) for v in values])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lengths": (LENGTH + 1,)}, "lengths must be at most"),
        ({"kind": "weights"}, "kind must be one of"),
        ({"top_n": 0}, "top_n"),
        ({"lengths": (4,), "top_n": 4}, "leave a token out"),
    ],
)
def test_bad_arguments_are_named(model, windows, options, message):
    with pytest.raises(ValueError, match=message):
        algorithm_1(model, windows[:1], **options)


def test_windows_that_are_none_are_named(model):
    for wrong in ([[1, 2, 3]], torch.zeros(0, 8, dtype=torch.long)):
        with pytest.raises(ValueError, match="windows must be a tensor of shape"):
            algorithm_2(model, wrong)


def test_bad_choices_are_named(model, windows):
    with pytest.raises(ValueError, match="at least one N"):
        algorithm_2(model, windows, top_ns=[])
    with pytest.raises(ValueError, match="at least one length"):
        algorithm_1(model, windows, lengths=[])
    with pytest.raises(ValueError, match="control"):
        algorithm_4(model, windows[:1], control="twin")
    with pytest.raises(ValueError, match="random set"):
        algorithm_4(model, windows[:1], control="random set", sides=True)
    with pytest.raises(ValueError, match="formulas"):
        algorithm_3(model, windows[:1], formulas=("exact",))
    with pytest.raises(ValueError, match="rows"):
        row_means(np.ones(4), 1, (5,))
